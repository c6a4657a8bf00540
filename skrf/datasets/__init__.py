"""Datasets: eight UCI classification sets, four regimes of pairs, and cells around points."""

from .cells import make_cells
from .regimes import REGIMES as REGIMES
from .regimes import make_regime
from .uci import load_uci

__all__ = ["load_uci", "make_cells", "make_regime"]
