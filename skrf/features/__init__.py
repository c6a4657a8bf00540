"""Feature maps: transformers whose features estimate a kernel."""

from ._adapters import (
    as_feature_map,
    check_columns,
    columns_of,
    fit_at_sigma,
    fit_to,
    fit_to_statistics,
    frozen_kernel,
    last_step,
    maps_sides_alike,
    prepared,
    suits_ratios,
)
from ._clusters import by_first, row_codes, spread_rows
from ._coefficients import Coefficients
from ._fitted import sigma_of
from ._map import FeatureMap, in_range, mapped, needs_double, signed_rows
from ._record import difference, record_of, restored
from .adaptive import AdaptiveRF
from .base import BaseRandomFeatures
from .dense_exponential import DenseExponentialRF
from .discrete import DiscreteRF, GeometricRF, PoissonRF
from .exponential import OptimalPositiveRF
from .generalized_exponential import GeneralizedExponentialRF
from .hybrid import HybridRF
from .landmarks import ClusterNystroem
from .positive import PositiveRF, SimplexRF, SimplexRFPlus
from .quadrature import QuadratureFourierFeatures
from .quantizer import ClusterQuantizer, lacks_rows
from .scaling import SmoothClipScaler
from .trigonometric import RFFSampler

__all__ = [
    "AdaptiveRF",
    "BaseRandomFeatures",
    "ClusterNystroem",
    "ClusterQuantizer",
    "Coefficients",
    "DenseExponentialRF",
    "DiscreteRF",
    "FeatureMap",
    "GeneralizedExponentialRF",
    "GeometricRF",
    "HybridRF",
    "OptimalPositiveRF",
    "PoissonRF",
    "PositiveRF",
    "QuadratureFourierFeatures",
    "RFFSampler",
    "SimplexRF",
    "SimplexRFPlus",
    "SmoothClipScaler",
    "as_feature_map",
    "by_first",
    "check_columns",
    "columns_of",
    "difference",
    "fit_to",
    "fit_at_sigma",
    "fit_to_statistics",
    "frozen_kernel",
    "in_range",
    "lacks_rows",
    "last_step",
    "mapped",
    "maps_sides_alike",
    "needs_double",
    "sigma_of",
    "signed_rows",
    "suits_ratios",
    "prepared",
    "record_of",
    "restored",
    "row_codes",
    "spread_rows",
]
