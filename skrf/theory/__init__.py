"""Errors known in advance: closed forms, tail bounds, sizes, comparison and advice."""

from .choice import Comparison, ComparisonTable, compare, default_feature_maps, kernel_variance
from .concentration import (
    bernstein_bound,
    chebyshev_bound,
    hoeffding_bound,
    left_tail_bound,
    n_components_uniform,
    uniform_bound,
    upper_tail_bound,
)
from .conformity import expected_conformity, sample_conformity
from .hybrid import hybrid_max_error
from .size import n_components_for

__all__ = [
    "Comparison",
    "ComparisonTable",
    "bernstein_bound",
    "chebyshev_bound",
    "compare",
    "default_feature_maps",
    "expected_conformity",
    "hoeffding_bound",
    "hybrid_max_error",
    "kernel_variance",
    "left_tail_bound",
    "n_components_for",
    "n_components_uniform",
    "sample_conformity",
    "uniform_bound",
    "upper_tail_bound",
]
