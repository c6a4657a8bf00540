"""Random-feature mechanisms: what omega becomes."""

from .adaptive import AdaptiveRF
from .base import BaseRandomFeatures
from .exponential import DenseExponentialRF, GeneralizedExponentialRF, OptimalPositiveRF
from .positive import PositiveRF, SimplexRF, SimplexRFPlus
from .trigonometric import RFFSampler

__all__ = [
    "AdaptiveRF",
    "BaseRandomFeatures",
    "DenseExponentialRF",
    "GeneralizedExponentialRF",
    "OptimalPositiveRF",
    "PositiveRF",
    "RFFSampler",
    "SimplexRF",
    "SimplexRFPlus",
]
