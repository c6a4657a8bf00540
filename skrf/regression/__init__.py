"""Kernel regression (Nadaraya-Watson) in time linear in the number of rows.

The estimate at x is a mean of the training targets with weights K(x, x_i). With features, all that
it needs from the training set is one sum of key features per class (or target), so fitting takes
one pass, `partial_fit` is exact, and the order of the rows does not matter.
"""

from .decide import Argmax, Decision, Discriminants, OneVsOne, Problem
from .kernel_machine import KernelMachineClassifier, KernelMachineRegressor
from .kernel_regression import KernelRegressionClassifier, KernelRegressor
from .relevance import RelevanceProjection, RelevanceScaler
from .ridge import ApproxKernelRidge, ApproxKernelRidgeClassifier
from .ridge_search import ApproxKernelRidgeClassifierCV, ApproxKernelRidgeCV

__all__ = [
    "ApproxKernelRidge",
    "ApproxKernelRidgeCV",
    "ApproxKernelRidgeClassifier",
    "ApproxKernelRidgeClassifierCV",
    "Argmax",
    "Decision",
    "Discriminants",
    "KernelMachineClassifier",
    "KernelMachineRegressor",
    "KernelRegressionClassifier",
    "KernelRegressor",
    "OneVsOne",
    "Problem",
    "RelevanceProjection",
    "RelevanceScaler",
]
