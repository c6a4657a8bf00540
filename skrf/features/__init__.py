"""Random-feature mechanisms: what omega becomes."""

from .base import BaseRandomFeatures
from .exponential import OptimalPositiveRF
from .positive import PositiveRF, SimplexRF, SimplexRFPlus
from .trigonometric import RFFSampler

__all__ = [
    "BaseRandomFeatures",
    "OptimalPositiveRF",
    "PositiveRF",
    "RFFSampler",
    "SimplexRF",
    "SimplexRFPlus",
]
