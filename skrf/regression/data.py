"""Validated rows, and what is summed over them."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.utils.validation import has_fit_parameter

from .._arrays import take, to_host
from ..features import fit_at_sigma, fit_to_statistics, sigma_of

_WEIGHT_BITS = 32  # weights on a common scale may differ by 2^32


@dataclass(frozen=True, eq=False)
class Data:
    """Validated rows and what is summed over them.

    Parameters
    ----------
    X : array or sparse matrix of shape (n, d)
        Rows, all of positive weight.
    y : ndarray of shape (n,) or (n, n_outputs)
        Labels or targets, as scores compare them.
    sample_weight : ndarray of shape (n,) or None
        Weights, or None if none were given.
    numbers : ndarray of int of shape (n,)
        Positions of the rows in the input.
    target : ndarray of shape (n,) or (n, n_outputs), or None
        Labels or targets that a map is fitted to.
    groups : ndarray of int of shape (n,)
        Groups of the sums, from 0.
    values : ndarray of shape (n, n_values)
        Values to sum besides the weight.
    n_groups : int
        Number of groups.
    statistics : PairStatistics, default=None
        Those of all rows, if these are a sample of them.
    """

    X: Any
    y: np.ndarray
    sample_weight: np.ndarray | None
    numbers: np.ndarray
    target: np.ndarray
    groups: np.ndarray
    values: np.ndarray
    n_groups: int
    statistics: Any = None

    @cached_property
    def weights(self):
        """Weights, 1 if none were given."""
        return np.ones(len(self.y)) if self.sample_weight is None else self.sample_weight

    @property
    @np.errstate(over="ignore")
    def total(self):
        """Sum of the weights of all rows, inf if it overflows."""
        known = self.statistics
        return self.weights.sum() if known is None else known.queries.weight

    @property
    def score_weights(self):
        """Weights scaled so that scorers can add them up; None if none were given."""
        weights = self.sample_weight
        return None if weights is None else np.ldexp(weights, -np.frexp(weights.max())[1])

    @property
    def fit_weights(self):
        """Weights that a map is fitted to, scaled if far from 1; None if none were given."""
        weights = self.sample_weight
        is_usual = weights is None or abs(np.frexp(weights.max())[1]) <= _WEIGHT_BITS
        return weights if is_usual else self.score_weights

    def resolved(self, sigma, kernel="gaussian"):
        """Return the sigma that a number, "scale" or "median" stands for."""
        return sigma_of(sigma, to_host(self.X), self.fit_weights, self.statistics, kernel)

    def part(self, rows):
        """Return some of the rows, given a slice or indices."""
        names = "y", "sample_weight", "numbers", "target", "groups", "values"
        arrays = {
            name: getattr(self, name)[rows] for name in names if getattr(self, name) is not None
        }
        return replace(self, X=take(self.X, rows), statistics=None, **arrays)

    def fitted(self, feature_map):
        """Fit a map to all rows, and return it."""
        feature_map = fit_to_statistics(feature_map, **self._fit_arguments(feature_map))
        width = getattr(feature_map, "n_features_in_", self.X.shape[1])
        if width != self.X.shape[1]:  # fitted before, and frozen
            raise ValueError(
                f"X has {self.X.shape[1]} features, but feature_map={feature_map!r} was fitted "
                f"with {width} features."
            )
        return feature_map

    def fit_at_sigma(self, feature_map):
        """Return a function that fits a map to all rows at a sigma; its results share a draw."""
        return fit_at_sigma(feature_map, **self._fit_arguments(feature_map))

    def _fit_arguments(self, feature_map):
        """Return what a map is fitted to, on the host, with weights if it accepts them."""
        arguments = {"X": to_host(self.X), "y": self.target, "statistics": self.statistics}
        if self.sample_weight is not None and has_fit_parameter(feature_map, "sample_weight"):
            arguments["sample_weight"] = self.fit_weights
        return arguments
