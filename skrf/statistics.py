"""What mechanisms learn from data: weighted moments of queries and keys that can be merged."""

from dataclasses import dataclass
from functools import reduce

import numpy as np
import scipy.sparse as sp
from sklearn.utils import gen_batches

_BLOCK_ROWS = 1024  # a float64 copy of a block stays in the cache
_FAR = 100.0  # squared distance of a shift from the mean, in variances


@dataclass(frozen=True)
class Moments:
    """Weight, mean and centred second moments of a set of rows.

    Law: ``merge`` is associative and commutative to rounding, and the moments of a concatenation
    are the merge of the moments of its parts.

    Parameters
    ----------
    weight : float
        Sum of the weights of the rows.
    mean : ndarray of shape (d,)
        Weighted mean, float64.
    scatter : ndarray of shape (d,) or (d, d)
        Weighted sum of squared deviations from the mean (of their outer products when square).
    minimum : ndarray of shape (d,)
        Smallest entry of every column.
    mean_absolute : ndarray of shape (d,)
        Weighted mean of the absolute values of every column.
    """

    weight: float
    mean: np.ndarray
    scatter: np.ndarray
    minimum: np.ndarray
    mean_absolute: np.ndarray

    @classmethod
    def of(cls, X, sample_weight=None, *, full=False, sizes=True):
        """Return the moments of the rows of X in one pass of row blocks.

        With ``sizes=False`` minimum and mean absolute value are left out: NaN.
        """
        if not sp.issparse(X):
            return _dense(X, sample_weight, full, sizes)
        weights = np.ones(X.shape[0]) if sample_weight is None else sample_weight
        blocks = gen_batches(X.shape[0], _BLOCK_ROWS)
        return reduce(cls.merge, (_sparse_block(X[rows], weights[rows], full) for rows in blocks))

    def merge(self, other):
        """Return the moments of the union of two disjoint sets of rows."""
        weight = self.weight + other.weight
        step = other.mean - self.mean
        share = other.weight / weight
        product = np.outer(step, step) if self.scatter.ndim == 2 else step * step
        return Moments(
            weight,
            self.mean + share * step,
            self.scatter + other.scatter + self.weight * share * product,
            np.minimum(self.minimum, other.minimum),
            self.mean_absolute + share * (other.mean_absolute - self.mean_absolute),
        )

    @property
    def variances(self):
        """Variance of every column, shape (d,)."""
        scatter = np.diagonal(self.scatter) if self.scatter.ndim == 2 else self.scatter
        return scatter / self.weight

    @property
    def covariance(self):
        """Covariance matrix, shape (d, d); needs moments made with ``full=True``."""
        return self.scatter / self.weight

    def mapped(self, matrix):
        """Return the moments of matrix @ x; needs moments made with ``full=True``.

        Minimum and mean absolute value of a linear image are not known: NaN.
        """
        unknown = np.full_like(self.mean, np.nan)
        scatter = matrix @ self.scatter @ matrix.T
        return Moments(self.weight, matrix @ self.mean, scatter, unknown, unknown)

    @property
    def entry_variance(self):
        """Variance of all entries taken together, whatever their column."""
        return float(np.mean(self.variances) + np.var(self.mean))


def _dense(X, weights, full, sizes):
    n, d = X.shape
    w = np.ones(n) if weights is None else weights
    weight, room = float(w.sum()), np.empty((min(n, _BLOCK_ROWS), d))
    shift, blocks = X[0].astype(np.float64), list(gen_batches(n, _BLOCK_ROWS))
    for _ in range(2):
        total, squares = np.zeros(d), 0.0
        for block in blocks:
            own = w[block]
            deviations = np.subtract(X[block], shift, out=room[: len(own)])
            total += own @ deviations
            if full:
                squares = squares + (deviations * own[:, None]).T @ deviations
            elif weights is None:
                squares = squares + np.einsum("ij,ij->j", deviations, deviations)
            else:
                squares = squares + np.einsum("i,ij,ij->j", own, deviations, deviations)
        step = total / weight
        scatter = squares - weight * (np.outer(step, step) if full else step * step)
        # Digits are lost where the shift is far from the mean: then again with the mean itself.
        spread = np.diagonal(scatter) if full else scatter
        if (weight * step * step <= _FAR * spread).all():
            break
        shift = shift + step
    if not sizes:
        return Moments(weight, shift + step, scatter, *np.full((2, d), np.nan))
    sizes = sum(w[block] @ np.abs(X[block].astype(np.float64)) for block in blocks)
    minimum = X.min(axis=0).astype(np.float64)
    return Moments(weight, shift + step, scatter, minimum, sizes / weight)


def _sparse_block(X, weights, full):
    X = X.tocsr().astype(np.float64)
    n, d = X.shape
    weight = float(weights.sum())
    entry_weight = np.repeat(weights, np.diff(X.indptr))

    def column_sums(values):
        return np.bincount(X.indices, weights=values, minlength=d)

    mean = column_sums(entry_weight * X.data) / weight
    minimum = X.min(axis=0).toarray().ravel()
    mean_absolute = column_sums(entry_weight * np.abs(X.data)) / weight
    if full:
        weighted = sp.csr_array((entry_weight * X.data, X.indices, X.indptr), shape=X.shape)
        scatter = (weighted.T @ X).toarray() - weight * np.outer(mean, mean)
    else:
        squares = column_sums(entry_weight * (X.data - mean[X.indices]) ** 2)
        # The weight of zeros: none in full columns, where the sums differ by rounding alone.
        is_full = np.bincount(X.indices, minlength=d) == n
        missing = np.where(is_full, 0.0, weight - column_sums(entry_weight))
        scatter = squares + missing * mean**2
    return Moments(weight, mean, scatter, minimum, mean_absolute)


@dataclass(frozen=True)
class PairStatistics:
    """Moments of queries and of keys, the averages over all their pairs, and their merge.

    Parameters
    ----------
    queries, keys : Moments
        The two sets, in units of the input.
    """

    queries: Moments
    keys: Moments

    @classmethod
    def of(cls, X, keys=None, sample_weight=None, key_weight=None, **options):
        """Return the weighted statistics of queries X and keys (X itself by default)."""
        queries = Moments.of(X, sample_weight, **options)
        return cls(queries, queries if keys is None else Moments.of(keys, key_weight, **options))

    def merge(self, other):
        """Return the statistics of both sets of pairs; associative to rounding."""
        return PairStatistics(self.queries.merge(other.queries), self.keys.merge(other.keys))

    @property
    def midpoint(self):
        """Shift c = (mean x + mean y) / 2 that minimises the mean of |x + y - 2c|^2."""
        return (self.queries.mean + self.keys.mean) / 2

    def mean_squared_sum(self, offset=0.0, sign=1):
        """Return the mean over all pairs of |(x - offset) + sign (y - offset)|^2."""
        total = self.queries.mean - offset + sign * (self.keys.mean - offset)
        return float(np.sum(self.queries.variances + self.keys.variances) + total @ total)

    def mean_outer_sum(self, offset=0.0):
        """Return the mean over all pairs of z z', z = (x - offset) + (y - offset)."""
        total = self.queries.mean + self.keys.mean - 2 * offset
        return self.queries.covariance + self.keys.covariance + np.outer(total, total)

    def mapped(self, query_map, key_map):
        """Return the statistics of query_map @ x and key_map @ y."""
        return PairStatistics(self.queries.mapped(query_map), self.keys.mapped(key_map))
