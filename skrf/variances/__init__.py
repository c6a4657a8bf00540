"""Closed forms: the mean squared error of every estimator as a function of a pair's geometry.

Pure formulas of numbers. Mechanisms name the law that describes them; `skrf.theory` asks
mechanisms. One file a family.
"""

from .coupling import log_mean_squared_error
from .gaussian import (
    AxisExponential,
    Exponential,
    Generalized,
    Hyperbolic,
    PairGeometry,
    RandomPhase,
    Regularized,
    Trigonometric,
)

__all__ = [
    "AxisExponential",
    "Exponential",
    "Generalized",
    "Hyperbolic",
    "PairGeometry",
    "RandomPhase",
    "Regularized",
    "Trigonometric",
    "log_mean_squared_error",
]
