"""Random-feature mechanisms: what omega becomes."""

from .adaptive import AdaptiveRF
from .base import BaseRandomFeatures
from .discrete import GeometricRF, PoissonRF
from .exponential import DenseExponentialRF, GeneralizedExponentialRF, OptimalPositiveRF
from .hybrid import HybridRF
from .positive import PositiveRF, SimplexRF, SimplexRFPlus
from .trigonometric import RFFSampler

__all__ = [
    "AdaptiveRF",
    "BaseRandomFeatures",
    "DenseExponentialRF",
    "GeneralizedExponentialRF",
    "GeometricRF",
    "HybridRF",
    "OptimalPositiveRF",
    "PoissonRF",
    "PositiveRF",
    "RFFSampler",
    "SimplexRF",
    "SimplexRFPlus",
]
