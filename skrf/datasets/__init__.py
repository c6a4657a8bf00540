"""The data used in the papers: eight UCI classification sets and four regimes of pairs."""

from .regimes import REGIMES as REGIMES
from .regimes import make_regime
from .uci import load_uci

__all__ = ["load_uci", "make_regime"]
