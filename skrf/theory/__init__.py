"""Errors before they are paid for: conformity, concentration, sizes, comparison and advice."""

from .choice import Comparison, compare, default_mechanisms, kernel_variance, recommend
from .concentration import chebyshev_bound, hoeffding_bound
from .conformity import expected_conformity, sample_conformity
from .size import n_components_for

__all__ = [
    "Comparison",
    "chebyshev_bound",
    "compare",
    "default_mechanisms",
    "expected_conformity",
    "hoeffding_bound",
    "kernel_variance",
    "n_components_for",
    "recommend",
    "sample_conformity",
]
