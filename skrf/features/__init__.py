"""Random-feature mechanisms: what omega becomes."""

from ._entry import as_feature_map, fit_to, prepared
from ._map import FeatureMap, in_range, mapped, needs_double, signed_rows
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
    "FeatureMap",
    "GeneralizedExponentialRF",
    "GeometricRF",
    "HybridRF",
    "OptimalPositiveRF",
    "PoissonRF",
    "PositiveRF",
    "RFFSampler",
    "SimplexRF",
    "SimplexRFPlus",
    "as_feature_map",
    "fit_to",
    "in_range",
    "mapped",
    "needs_double",
    "signed_rows",
    "prepared",
]
