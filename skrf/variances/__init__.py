"""Closed forms: the mean squared error of every estimator as a function of a pair's geometry.

These are pure numerical formulas, in one file per family. Every feature map names the law that
describes it, and `skrf.theory` uses these laws through the feature maps.
"""

from ._hypergeometric import log_hyp0f1
from .coupling import log_mean_squared_error
from .discrete import Geometric, Poisson, Tabulated, log_relative_second_moment
from .gaussian import (
    AxisExponential,
    Exponential,
    Generalized,
    Hyperbolic,
    PairGeometry,
    RandomPhase,
    Regularized,
    Trigonometric,
    log_expm1,
    log_trigonometric_variance,
)
from .hybrid import hybrid_log_variance, is_covariance_known, shared_covariance
from .spectral import matern_pair, matern_variance
from .tails import log_upper_tail

__all__ = [
    "AxisExponential",
    "Exponential",
    "Generalized",
    "Geometric",
    "Hyperbolic",
    "PairGeometry",
    "Poisson",
    "RandomPhase",
    "Regularized",
    "Tabulated",
    "Trigonometric",
    "hybrid_log_variance",
    "is_covariance_known",
    "log_expm1",
    "log_hyp0f1",
    "log_mean_squared_error",
    "log_relative_second_moment",
    "log_trigonometric_variance",
    "log_upper_tail",
    "matern_pair",
    "matern_variance",
    "shared_covariance",
]
