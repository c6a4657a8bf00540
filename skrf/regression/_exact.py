"""Kernel regression without features: the quadratic reference."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.utils import gen_batches

from .._arrays import largest_entry, like, scaled_squares, to_host
from .._sums import Rows, exp_max_one
from ..features import FeatureMap, row_codes
from ..statistics import standardised
from ._search import is_constant, refined, resolved

_BLOCK = 2**21  # kernel values held at once
_TINY = np.finfo(float).tiny
_PRECISE = 256.0  # exponents for which float64 is used


@dataclass(frozen=True, eq=False)
class ExactMap(FeatureMap):
    """The Gaussian kernel with every training row, as one feature per row.

    Parameters
    ----------
    rows : ndarray or sparse matrix of shape (n, d)
        Training rows.
    sigma : float
        Multiplies differences of rows.
    """

    rows: Any
    sigma: float
    is_positive = True
    n_features = property(lambda self: self.rows.shape[1])
    n_columns = property(lambda self: self.rows.shape[0])

    def __call__(self, X):
        """Return the logarithms of the kernel."""
        return Rows(like(scaled_squares(to_host(X), self.rows, self.sigma) / -2, X))

    def exponent_bound(self, X):
        """Return an upper bound on the exponents, always large enough to force float64."""
        length = self.sigma * (largest_entry(X) + self._largest)
        return max(X.shape[1] * length * length, _PRECISE)

    @cached_property
    def _largest(self):
        return largest_entry(self.rows)


def exact_sigma(model, data):
    """Return the sigma that an estimator requests; None means "loo"."""
    sigma = model.sigma
    if sigma is None or (isinstance(sigma, str) and sigma in ("loo", "auto")):
        return _loo_sigma(data)
    return resolved(sigma, data)


def _loo_sigma(data):
    """Return the sigma that best predicts rows from all rows that differ from them."""
    X, scale = to_host(data.X), resolved("scale", data)
    _, first, number = np.unique(row_codes(X), return_index=True, return_inverse=True)
    if len(first) < 2 or is_constant(data):
        return scale
    points, score = X[first], _Score(data, number)

    def evaluate(sigmas):
        scores = np.zeros(len(sigmas))
        for rows in gen_batches(len(first), max(1, _BLOCK // len(first))):
            squares = scaled_squares(points[rows], points, scale)
            squares[np.arange(len(squares)), np.arange(rows.start, rows.stop)] = np.inf
            for k, sigma in enumerate(sigmas):
                scores[k] += score(
                    exp_max_one(squares * ((sigma / scale) ** 2 / -2)) @ score.sums, rows
                )
        return scores

    return refined(scale, evaluate)


class _Score:
    """Scores of points whose targets are predicted from those of others.

    For classes the logarithms of smoothed probabilities, otherwise negative squared errors.

    Parameters
    ----------
    data : Data
        Rows.
    number : ndarray of int of shape (n,)
        The point that each row is.
    """

    def __init__(self, data, number):
        self.n_groups, weights = data.n_groups, data.weights / data.weights.max()
        weights /= weights.sum()
        values = standardised(data.values, weights)
        columns = np.column_stack([np.eye(self.n_groups)[data.groups], values])
        self.sums = np.zeros((number.max() + 1, columns.shape[1]))
        np.add.at(self.sums, number, columns * weights[:, None])

    def __call__(self, sums, rows):
        """Return the score of some points up to a constant, given the sums they see."""
        own_sums = self.sums[rows]
        # Compared with one point, the weights of all others may be too small for floats.
        total = sums[:, : self.n_groups].sum(axis=1, keepdims=True)
        sums = sums / np.where(total > 0, total, 1.0)
        if sums.shape[1] > self.n_groups:
            weights, means = own_sums[:, :1], sums[:, 1:]
            targets = own_sums[:, 1:] / np.where(weights > 0, weights, 1.0)
            return -np.sum(weights * (means - targets) ** 2)
        n, shares = len(self.sums), self.sums.sum(axis=0)
        chances = (n * sums + shares) / (n + 1)  # smoothed by about 1 / (n + 1)
        return np.sum(own_sums * np.log(np.maximum(chances, _TINY)))
