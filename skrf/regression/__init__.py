"""Kernel regression (Nadaraya-Watson) in time linear in the number of rows.

The estimate at x is a mean of the training targets with weights K(x, x_i). With features it needs
nothing of the training set but one sum of key features for each class (or target): fitting is one
pass, exact under `partial_fit` and independent of order.
"""

from .classifier import KernelRegressionClassifier
from .regressor import KernelRegressor
from .ridge import (
    ApproxKernelRidge,
    ApproxKernelRidgeClassifier,
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
)
from .search import KernelRegressionClassifierCV, KernelRegressorCV

__all__ = [
    "ApproxKernelRidge",
    "ApproxKernelRidgeCV",
    "ApproxKernelRidgeClassifier",
    "ApproxKernelRidgeClassifierCV",
    "KernelRegressionClassifier",
    "KernelRegressionClassifierCV",
    "KernelRegressor",
    "KernelRegressorCV",
]
