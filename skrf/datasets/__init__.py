"""The data on which the papers report: eight UCI classification sets and four regimes of pairs."""

from .regimes import REGIMES as REGIMES
from .regimes import make_regime
from .uci import load_uci

__all__ = ["load_uci", "make_regime"]
