"""What feature maps learn from data: weighted moments of queries and keys that can be merged."""

from dataclasses import dataclass, replace
from functools import reduce
from typing import Self

import numpy as np
import scipy.sparse as sp
from sklearn.utils import gen_batches

from ._arrays import cast, in_library_of, is_array_api, less_offset, namespace, to_host
from ._memory import check_fits
from ._threads import WIDE, Scratch, map_rows, narrow_blas
from ._typing import Array
from ._validation import check_range

_ENTRIES, _PARTS = 2**17, 16  # a float64 copy of a block fits in the cache
_BLOCK_ROWS = 1024  # of sparse matrices, of other libraries, and of products of wide rows
_FAR = 100.0  # squared distance of a shift from the mean, in variances
_TINY = np.finfo(float).tiny
_CONSTANT = 1e-14  # times the largest, below which deviations from the mean are its rounding


@dataclass(frozen=True)
class Moments:
    """Weight, mean and covariance of a set of rows.

    Up to rounding, ``merge`` is associative and commutative, and the moments of a concatenation
    are the merged moments of its parts.

    Parameters
    ----------
    weight : float
        Sum of the weights of the rows; if it is infinite, nothing can be merged.
    origin : ndarray of shape (d,)
        A float64 point near the rows. For rows far from zero, the mean alone would lose digits.
    step : ndarray of shape (d,)
        Weighted mean minus the origin.
    covariance : ndarray of shape (d, d) or (d,)
        Weighted mean of the outer products of deviations from the mean, or only of their squares.
    minimum : ndarray of shape (d,)
        Smallest entry of every column.
    mean_absolute : ndarray of shape (d,)
        Weighted mean of the absolute values of every column.

    See Also
    --------
    PairStatistics : Moments of queries and keys.
    skrf.features.BaseRandomFeatures.fit_statistics : Fits a feature map to them.
    """

    weight: float
    origin: np.ndarray
    step: np.ndarray
    covariance: np.ndarray
    minimum: np.ndarray
    mean_absolute: np.ndarray

    @classmethod
    def of(
        cls, X: Array, sample_weight: Array | None = None, *, full: bool = False, sizes: bool = True
    ) -> Self:
        """Return the moments of the rows of X in one pass over blocks of rows.

        With ``sizes=False``, minimum and mean absolute value are NaN instead of being computed.
        """
        weights, exponent, d = sample_weight, 0, X.shape[1]
        # Besides sums, sparse rows have as few numbers as they please.
        check_fits(64 * d, f"X with {d} columns", "their means and variances")
        if full:
            check_fits(8 * d * d, f"X with {d} columns", "their covariances")
        if weights is not None:
            # Factor out a power of two to avoid overflow and underflow.
            exponent = np.frexp(weights.max())[1]
            weights = np.ldexp(weights, -exponent)
        with narrow_blas(d):
            if sp.issparse(X):
                moments = _sparse(X, np.ones(X.shape[0]) if weights is None else weights, full)
            else:
                moments = _dense(X, weights, full, sizes)
        with np.errstate(over="ignore"):
            return replace(moments, weight=float(np.ldexp(moments.weight, exponent)))

    def merge(self, other: "Moments") -> "Moments":
        """Return the moments of the union of two disjoint sets of rows."""
        weight = self.weight + other.weight
        apart = other.origin - self.origin + (other.step - self.step)
        share = other.weight / weight
        between = np.outer(apart, apart) if self.covariance.ndim == 2 else apart * apart
        within = self.covariance + share * (other.covariance - self.covariance)
        return Moments(
            weight,
            self.origin,
            self.step + share * apart,
            within + share * (1 - share) * between,
            np.minimum(self.minimum, other.minimum),
            self.mean_absolute + share * (other.mean_absolute - self.mean_absolute),
        )

    @property
    def mean(self) -> np.ndarray:
        """Weighted mean, shape (d,)."""
        return self.origin + self.step

    @property
    def variances(self) -> np.ndarray:
        """Variance of every column, shape (d,)."""
        diagonal = np.diagonal(self.covariance) if self.covariance.ndim == 2 else self.covariance
        # Rounding may make a variance negative if one row has nearly all of the weight.
        return np.maximum(diagonal, 0.0)

    def mapped(self, matrix: np.ndarray) -> "Moments":
        """Return the moments of matrix @ x; requires moments computed with ``full=True``.

        Minimum and mean absolute value of a linear image are unknown and set to NaN.
        """
        unknown = np.full_like(self.step, np.nan)
        covariance = matrix @ self.covariance @ matrix.T
        places = matrix @ self.origin, matrix @ self.step
        return Moments(self.weight, *places, covariance, unknown, unknown)

    @property
    def entry_variance(self) -> float:
        """Variance of all entries of all columns taken together."""
        return float(np.mean(self.variances) + np.var(self.mean))

    @property
    def spread(self) -> float:
        """sqrt(d Var X / 2), 0 for constant rows.

        Of columns with the same mean, this is half the root of the mean squared distance of rows.
        """
        # The variance of constant rows is rounding.
        is_constant = self.entry_variance <= _CONSTANT**2 * np.mean(self.mean**2)
        return 0.0 if is_constant else float(np.sqrt(len(self.mean) * self.entry_variance / 2))


def _dense(X, weights, full, sizes):
    weight = float(X.shape[0] if weights is None else weights.sum())
    sums = _sums_elsewhere if is_array_api(X) else _sums_about
    shift = to_host(X[0, :]).astype(np.float64)
    for _ in range(2):
        total, squares = sums(X, shift, weights, full)
        step = total / weight
        covariance = squares / weight - (np.outer(step, step) if full else step * step)
        # Digits are lost if the shift is far from the mean; then repeat with the mean itself.
        spread = np.diagonal(covariance) if full else covariance
        if (step * step <= _FAR * spread).all():
            break
        shift = shift + step
    absolute, minimum = np.full((2, X.shape[1]), np.nan)
    if sizes:
        absolute, minimum = _sizes(to_host(X), weights)
    return Moments(weight, shift, step, covariance, minimum, absolute / weight)


def _over_blocks(function, join, X, *, in_turn=False):
    """Return function(rows) of blocks of the rows of X, joined in order on several threads.

    In turn, only two results are held at once, and BLAS has the threads.
    """
    size = _BLOCK_ROWS if in_turn else max(_ENTRIES // max(X.shape[1], 1), 1)

    def run(rows):
        blocks = range(rows.start, rows.stop, size)
        return reduce(join, (function(slice(a, min(a + size, rows.stop))) for a in blocks))

    if in_turn:
        return run(slice(0, len(X)))
    # As many results are held at once as there are parts.
    return reduce(join, map_rows(run, len(X), size * -(-len(X) // (size * _PARTS))))


def _sums_about(X, shift, weights, full):
    """Return the weighted sums of deviations from a point, and of their (outer) squares."""
    room = Scratch()

    def sums(rows):
        deviations = np.subtract(X[rows], shift, out=room(X[rows].shape, np.float64))
        block_weights = np.ones(len(deviations)) if weights is None else weights[rows]
        weighted = deviations if weights is None else deviations * block_weights[:, None]
        if full:
            return block_weights @ deviations, weighted.T @ deviations
        return block_weights @ deviations, np.einsum("ij,ij->j", weighted, deviations)

    def join(one, two):
        return one[0] + two[0], one[1] + two[1]

    # Products of wide rows are too large to be held for every part.
    return _over_blocks(sums, join, X, in_turn=full and X.shape[1] > WIDE)


def _sizes(X, weights):
    """Return the weighted sum of the absolute values of every column, and its smallest entry."""
    room = Scratch()

    def sizes(rows):
        absolute = np.abs(X[rows], out=room(X[rows].shape, np.float64))
        block_weights = np.ones(len(absolute)) if weights is None else weights[rows]
        return block_weights @ absolute, X[rows].min(axis=0).astype(np.float64)

    return _over_blocks(sizes, lambda one, two: (one[0] + two[0], np.minimum(one[1], two[1])), X)


def _sums_elsewhere(X, shift, weights, full):
    """Do the same for unweighted rows of another library, copying only sums."""
    xp, total, squares = namespace(X), 0.0, 0.0
    shift = in_library_of(shift, X)
    for block in gen_batches(X.shape[0], _BLOCK_ROWS):
        deviations = cast(X[block, :], xp.float64) - shift
        total = total + xp.sum(deviations, axis=0)
        block_squares = (
            deviations.T @ deviations if full else xp.sum(deviations * deviations, axis=0)
        )
        squares = squares + block_squares
    return to_host(total), to_host(squares)


def _sparse(X, weights, full):
    X = X.tocsr()
    blocks = list(gen_batches(X.shape[0], _BLOCK_ROWS))
    stored, total = (
        sum(_column_sums(X[block], weights[block], power) for block in blocks) for power in (0, 1)
    )
    # In columns with most of the weight the mean may be far larger than the spread.
    weight = weights.sum()
    origin = np.where(stored > weight / 2, total / weight, 0.0)
    parts = (_sparse_block(X[block], weights[block], origin, full) for block in blocks)
    return reduce(Moments.merge, parts)


def _sparse_block(X, weights, origin, full):
    X, weight = X.astype(np.float64), float(weights.sum())
    minimum = X.min(axis=0).toarray().ravel()
    mean_absolute = _column_sums(abs(X), weights, 1) / weight
    X = less_offset(X, origin)
    step = _column_sums(X, weights, 1) / weight
    if full:
        covariance = (X.multiply(weights[:, None] / weight).T @ X).toarray() - np.outer(step, step)
    else:
        # Rounding may make constant columns slightly different from 0.
        covariance = np.maximum(_column_sums(X, weights, 2) / weight - step * step, 0.0)
    return Moments(weight, origin, step, covariance, minimum, mean_absolute)


def _column_sums(X, weights, power):
    """Return weighted sums of powers of the entries that every column stores."""
    entry_weights = np.repeat(weights, np.diff(X.indptr))
    return np.bincount(X.indices, entry_weights * X.data**power, minlength=X.shape[1])


@dataclass(frozen=True)
class PairStatistics:
    """Moments of queries and keys, and averages over all of their pairs.

    Parameters
    ----------
    queries, keys : Moments
        The two sets, in units of the input.

    See Also
    --------
    Moments : The moments of one side.
    skrf.features.BaseRandomFeatures.fit_statistics : Fits a feature map to them.

    References
    ----------
    Parameters as functions of such means: Likhosherstov et al., Chefs' random tables (2022),
    theorem 3.3.
    """

    queries: Moments
    keys: Moments

    @classmethod
    def of(
        cls,
        X: Array,
        keys: Array | None = None,
        sample_weight: Array | None = None,
        key_weight: Array | None = None,
        **options: bool,
    ) -> Self:
        """Return the weighted statistics of queries X and keys (by default X itself)."""
        for name, rows in (("X", X), ("keys", keys)):
            if rows is not None and not is_array_api(rows):  # their sums do not warn
                check_range(name, rows)
        queries = Moments.of(X, sample_weight, **options)
        return cls(queries, queries if keys is None else Moments.of(keys, key_weight, **options))

    def merge(self, other: "PairStatistics") -> "PairStatistics":
        """Return the merged statistics of both sets; associative up to rounding."""
        queries = self.queries.merge(other.queries)
        if self.keys is self.queries and other.keys is other.queries:
            return PairStatistics(queries, queries)
        return PairStatistics(queries, self.keys.merge(other.keys))

    @property
    def midpoint(self) -> np.ndarray:
        """Shift c = (mean x + mean y) / 2 that minimises the mean of |x + y - 2c|^2."""
        return (self.queries.mean + self.keys.mean) / 2

    def mean_squared_sum(self, offset: float | np.ndarray = 0.0, sign: int = 1) -> float:
        """Return the mean over all pairs of |(x - offset) + sign (y - offset)|^2."""
        total = self.queries.mean - offset + sign * (self.keys.mean - offset)
        return float(np.sum(self.queries.variances + self.keys.variances) + total @ total)

    def mean_outer_sum(self, offset: float | np.ndarray = 0.0) -> np.ndarray:
        """Return the mean over all pairs of z z', z = (x - offset) + (y - offset)."""
        total = self.queries.mean + self.keys.mean - 2 * offset
        return self.queries.covariance + self.keys.covariance + np.outer(total, total)

    def mapped(self, query_map: np.ndarray, key_map: np.ndarray) -> "PairStatistics":
        """Return the statistics of query_map @ x and key_map @ y."""
        return PairStatistics(self.queries.mapped(query_map), self.keys.mapped(key_map))


def standardised(values, weights):
    """Return columns of any size with mean 0 and variance 1, or 0 where they are constant."""
    values = np.ldexp(values, -1 - np.frexp(np.abs(values).max(axis=0))[1])
    values = values - np.average(values, axis=0, weights=weights)
    values[:, np.abs(values).max(axis=0) < _CONSTANT] = 0.0  # only the rounding of the mean
    values = np.ldexp(values, -np.frexp(np.abs(values).max(axis=0))[1])
    return values / np.sqrt(np.maximum(np.average(values**2, axis=0, weights=weights), _TINY))
