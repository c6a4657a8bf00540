"""Errors of estimates in closed form, as functions of a pair's geometry.

What is about pairs of inputs and couplings of projections, with the series and special functions
that this needs. It knows no mechanism: these are in `skrf.features`, each with its own variance.
"""

from ._hypergeometric import log_hyp0f1
from .coupling import cosine_pair, exponential_pair, log_mean_squared_error
from .geometry import PairGeometry, log_expm1
from .spectral import log_trigonometric_variance, matern_pair, matern_variance
from .tails import log_upper_tail

__all__ = [
    "PairGeometry",
    "cosine_pair",
    "exponential_pair",
    "log_expm1",
    "log_hyp0f1",
    "log_mean_squared_error",
    "log_trigonometric_variance",
    "log_upper_tail",
    "matern_pair",
    "matern_variance",
]
