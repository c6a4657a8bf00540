"""Features of rows in blocks, and their second moments: all that ridge regression needs of rows.

Ridge regression depends on features through their inner products alone. A search of fewer rows than
features writes them in an orthonormal basis of the space that they span: as many numbers as rows,
with the same inner products.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg.lapack import dtrtrs

from .._arrays import (
    cast,
    is_array_api,
    library,
    like,
    namespace,
    rows_at_once,
    squared_norms,
    take,
    to_host,
)
from .._memory import check_fits
from .._sums import Memory, Rows, exp_max_one, transposed
from .._threads import Scratch
from ..features import FeatureMap, in_range
from .base import beside_threads, blocks_of
from .data import Sizes, Targets, merged_rows
from .solve import Solution

_MAGNIFICATION = 1e9  # condition of the landmarks' kernel beyond which the root drops directions
_FIRST_ROWS = 256  # used to find approximate means
# Large blocks, because adding up their products costs the squared number of columns per block.
_BLOCK, _PARTS = 2**20, 16
_GPU_ROWS = 2**14  # at most: errors of float32 sums grow with their length
_RUN = 8  # at most: blocks that a thread adds up alone, so that it seldom waits for the others
_HELD_RUNS, _HELD_NUMBERS = 16, 2**24  # of sums of runs, held at once
_MANY_ROWS = 4  # per column, from which a matrix is applied to sums
_MAGNIFIED = 1e-6  # rounding of moments, of the ridge: predictions then differ by less than 1e-8
_SINGLE = 1e-7  # relative error of products in float32, with a margin
# Rounding of exponentials times coefficients stays below 1e-9 of the targets.
_LARGEST_COEF = 1e-9 / np.finfo(float).eps


# ---------------------------------------------------------------- features


def plain_features(feature_map, X, memory, n_more=0):
    """Return the features of rows, with rows of positive maps divided by their norm.

    The largest exponent of such a row is factored out first, so nothing vanishes or overflows.
    Features with signs on the host are followed by `n_more` columns, to be filled by the caller.
    """
    X = in_range(feature_map, X)
    is_written = not (feature_map.is_positive or feature_map.n_columns is None or is_array_api(X))
    with np.errstate(over="ignore", invalid="ignore"):
        if is_written:
            out = memory.features((X.shape[0], feature_map.n_columns + n_more), X.dtype)
            features = out[:, : feature_map.n_columns]
            if feature_map.level is None:
                feature_map.write_plain(X, features, memory.room)
            else:
                feature_map.write(X, features, memory.room)
                out *= math.exp(feature_map.level)  # several times as fast as a part of every row
            return out
        rows = memory.rows(feature_map, X)
        if not rows.holds_logs:
            return rows.plain()
    xp, do = namespace(rows.values), library(rows.values)
    features = exp_max_one(rows.values)
    norms = xp.sqrt(squared_norms(features))[:, None]
    return do.divide(features, xp.where(norms > 0, norms, like(1.0, norms)))


def check_range(values):
    """Raise if features with signs have left the range of floats."""
    xp = namespace(values)
    if not bool(xp.all(xp.isfinite(values))):
        raise ValueError(
            "Features of X, or their products, exceed the range of floats: use a smaller sigma, "
            "rows of float64, or a map with positive features, whose rows are normalised."
        )


class StoredFeatures(FeatureMap):
    """Map that reads features in place of rows.

    Parameters
    ----------
    n_columns : int
        Number of features.
    """

    n_features = n_columns = None
    is_positive = False

    def __init__(self, n_columns):
        self.n_columns = n_columns

    def __call__(self, X):
        """Return the `Rows`."""
        return Rows(X, np.zeros((len(X), 1), X.dtype))


def features_of(feature_map, X):
    """Return the features of rows on the host in float64, as ridge regression reads them."""
    if isinstance(feature_map, StoredFeatures):
        return X
    memory = Memory()

    def block(rows):
        values = to_host(plain_features(feature_map, X[rows, :], memory))
        return values.astype(np.float64)  # a copy: the next block reuses the memory

    size, map_blocks = blocks_of(feature_map, X)
    return np.concatenate(map_blocks(block, X.shape[0], size))


def store_features(feature_map, data):
    """Return a map that reads features in place of rows, and the data with their features.

    Fewer rows than features have fewer numbers instead, with the same inner products.
    """
    features = _coordinates(feature_map, data.X)
    if len(features) < features.shape[1]:
        features = np.ascontiguousarray(np.linalg.qr(features.T, mode="r").T)
    return StoredFeatures(features.shape[1]), replace(data, X=features)


def _coordinates(feature_map, X):
    """Return the features of rows, or others with the same inner products that are cheaper."""
    lower, magnification = feature_map.cholesky
    if lower is None or magnification * feature_map.n_columns > _MAGNIFICATION:
        return features_of(feature_map, X)
    features = features_of(feature_map.inner, X)
    return dtrtrs(lower, features.T, lower=1)[0].T


# ---------------------------------------------------------------- moments


@dataclass(frozen=True, eq=False)
class RidgeMoments:
    """Weighted second moments of groups of rows, each about the means of its group.

    Features stand side by side with targets. There are several groups, one for each class, where
    regressions of some of the classes are wanted; their targets follow from the class. `merge` is
    associative and commutative to rounding; it changes neither side.

    Parameters
    ----------
    weight : ndarray of shape (G,)
        Sums of the weights.
    mean : ndarray of shape (G, M + T)
        Means of the features, then of the targets; 0 in a group without rows.
    products : ndarray of shape (G, M + T, M + T)
        Sums of weight times products of deviations.
    unit : ndarray of shape (T,)
        Powers of 2 that the targets are divided by.
    """

    weight: np.ndarray
    mean: np.ndarray
    products: np.ndarray
    unit: np.ndarray

    def __post_init__(self):
        with np.errstate(over="ignore"):
            total = self.weight.sum() + np.trace(self.products, axis1=1, axis2=2).sum()
        if not np.isfinite(total):
            raise ValueError(
                "Squares of features, times sample_weight, add up to more than the largest float, "
                f"{np.finfo(float).max:.2g}: divide sample_weight and alpha by the same number."
            )

    @cached_property
    def n_columns(self):
        """Number of features."""
        return self.mean.shape[1] - len(self.unit)

    @cached_property
    def gram(self):
        """Products of features, of a single group."""
        return self.products[0, : self.n_columns, : self.n_columns]

    @cached_property
    def cross(self):
        """Products of features and targets of a single group, (M, T)."""
        return self.products[0, : self.n_columns, self.n_columns :]

    @cached_property
    def squares(self):
        """Squares of the targets of a single group, (T,)."""
        return np.diagonal(self.products[0])[self.n_columns :]

    @cached_property
    def means(self):
        """Means of the features and of the targets of a single group."""
        return self.mean[0, : self.n_columns], self.mean[0, self.n_columns :]

    @property
    def total(self):
        """Sum of all weights."""
        return float(self.weight.sum())

    def in_units(self, unit):
        """Return the same with targets in other units."""
        if np.array_equal(unit, self.unit):
            return self
        scale = np.concatenate([np.ones(self.n_columns), self.unit / unit])
        products = self.products * scale * scale[:, None]
        return replace(self, mean=self.mean * scale, products=products, unit=unit)

    def times(self, matrix):
        """Return the moments of the features times a matrix, (M, n_columns)."""
        m, n = self.n_columns, matrix.shape[1]
        products = np.empty((len(self.weight), *(n + len(self.unit),) * 2))
        products[:, :n, :n] = matrix.T @ self.products[:, :m, :m] @ matrix
        products[:, :n, n:] = matrix.T @ self.products[:, :m, m:]
        products[:, n:, :n] = products[:, :n, n:].transpose(0, 2, 1)
        products[:, n:, n:] = self.products[:, m:, m:]
        mean = np.concatenate([self.mean[:, :m] @ matrix, self.mean[:, m:]], axis=1)
        return replace(self, mean=mean, products=products)

    def merge(self, other):
        """Return the moments of the rows of both."""
        unit = np.maximum(self.unit, other.unit)
        first, second = self.in_units(unit), other.in_units(unit)
        weight, gap = first.weight + second.weight, second.mean - first.mean
        share = np.divide(second.weight, weight, out=np.zeros_like(weight), where=weight > 0)
        with np.errstate(over="ignore"):
            products = first.products + second.products
            scaled = (first.weight * share)[:, None] * gap
            for of_group, scaled_gap, own_gap in zip(products, scaled, gap, strict=True):
                of_group += np.outer(scaled_gap, own_gap)
        return RidgeMoments(weight, first.mean + share[:, None] * gap, products, unit)

    def pooled(self, groups, targets):
        """Return the moments of some groups together, with targets of their own.

        Parameters
        ----------
        groups : sequence of int
            The groups; those without rows have no part in it.
        targets : ndarray of shape (len(groups), T)
            The targets of the rows of every group.
        """
        weight = self.weight[groups]
        is_seen = weight > 0
        shares = weight / weight.sum()
        # Written as sums about the means of the groups, the products keep all their digits.
        heaviest = int(np.argmax(weight))
        gaps = np.where(is_seen[:, None], self.mean[groups] - self.mean[groups[heaviest]], 0.0)
        centre, level = shares @ gaps, shares @ targets
        table = np.column_stack([np.where(is_seen[:, None], gaps - centre, 0.0), targets - level])
        n = self.n_columns
        products = (table * weight[:, None]).T @ table
        products[:n, :n] += sum(self.products[k] for k in np.asarray(groups)[is_seen])
        mean = np.append(self.mean[groups[heaviest]] + centre, level)
        unit = np.ones(targets.shape[1])
        return RidgeMoments(np.array([weight.sum()]), mean[None], products[None], unit)

    @property
    def together(self):
        """The moments of all rows; those of classes get the targets -1 and 1 for every class."""
        n = len(self.weight)
        return self if n == 1 else self.pooled(np.arange(n), 2.0 * np.eye(n) - 1)

    @property
    def shares(self):
        """Weights of the targets' errors, in these units, in their mean in the largest unit."""
        return (self.unit / self.unit.max()) ** 2 / len(self.unit)


def bytes_of_moments(n_columns, n_targets):
    """Return how many bytes the moments of so many features and targets hold."""
    return 8 * (n_columns + n_targets) ** 2


def moments_of_rows(feature_map, X, targets, weights, least_alpha=0.0):
    """Return the moments of rows, computed from products of blocks.

    Parameters
    ----------
    feature_map : FeatureMap
        The map.
    X : array or sparse matrix of shape (n, d)
        Rows.
    targets : callable
        Returns the targets of a slice of rows, (n, T), in units of its ``unit``.
    weights : ndarray of shape (n,) or None
        Positive weights.
    least_alpha : float, default=0.0
        Their share of the smallest ridge that will be added. If products of float32 features may
        have errors of its size, they are computed in float64.
    """
    if _is_inner_precise(feature_map, X, weights, least_alpha):
        inner = moments_of_rows(feature_map.inner, X, targets, weights, least_alpha)
        return inner.times(feature_map.matrix)
    n, memory, room = X.shape[0], Memory(), Scratch()
    _, map_runs = blocks_of(feature_map, X)
    weight, weight_unit, heaviest = float(n), 1.0, None
    first = np.arange(min(n, _FIRST_ROWS))
    if weights is not None:
        weight_unit = 2.0 ** np.floor(np.log2(weights.max()))
        weights = weights / weight_unit
        weight = float(weights.sum())
        # They give the best estimate of the means, and distance from them costs digits.
        first = np.sort(np.argsort(-weights, kind="stable")[: len(first)])
        heaviest = weights[first]
    n_columns = feature_map.n_columns
    if n_columns is None:  # one row tells
        n_columns = plain_features(feature_map, take(X, first[:1]), memory).shape[1]
    n_bytes = bytes_of_moments(n_columns, len(targets.unit))
    check_fits(n_bytes, f"feature_map with {n_columns} columns", "their second moments")
    features = to_host(plain_features(feature_map, take(X, first), memory)).astype(np.float64)
    check_range(features)
    table = np.column_stack([features, targets(first)])
    shift = np.average(table, axis=0, weights=heaviest)
    total = np.zeros((len(shift) + 1, len(shift) + 1))
    with np.errstate(over="ignore", invalid="ignore"):
        trace = features.var(axis=0).sum() * weight * weight_unit
    is_double = least_alpha < _SINGLE * trace / n_columns
    centre = np.append(shift[:n_columns], np.zeros(len(total) - n_columns))

    def block(rows):
        features = plain_features(feature_map, X[rows, :], memory, len(total) - n_columns)
        xp = namespace(features)
        dtype = xp.float64 if is_double else features.dtype
        last_columns = [targets(rows) - shift[n_columns:], np.ones((rows.stop - rows.start, 1))]
        if is_array_api(features):
            features = cast(features, dtype) - like(shift[:n_columns], features)
            table = xp.concat(
                [features, *(like(values, features) for values in last_columns)], axis=1
            )
        else:
            table = features  # with room for the others, if it could be had
            if features.dtype != dtype or features.shape[1] == n_columns:
                table = room((len(features), len(total)), dtype)
                table[:, :n_columns] = features[:, :n_columns]
            np.concatenate(last_columns, axis=1, out=table[:, n_columns:], casting="same_kind")
            table -= centre.astype(dtype)  # twice as fast as from a part of every row
        if weights is not None:
            table = library(table).multiply(table, like(np.sqrt(weights[rows, None]), table))
        return to_host(transposed(table) @ table)

    def run(rows):
        moments = np.zeros_like(total)
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(rows.start, rows.stop, size):
                moments += block(slice(start, min(start + size, rows.stop)))
        return moments

    least, usual = n_columns, _BLOCK // n_columns
    most = max(usual, least, min(rows_at_once(X, n_columns, usual), _GPU_ROWS))
    size = min(max(-(-n // _PARTS), least), most)
    length = size * min(-(-n // (_PARTS * size)), _RUN)
    step = length * max(min(_HELD_RUNS, _HELD_NUMBERS // n_columns**2), 2)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, n, step):
            total += sum(map_runs(run, min(start + step, n), length, start))
    check_range(total)
    gap = total[-1, :-1] / weight
    with np.errstate(over="ignore"):
        products = (total[:-1, :-1] - np.outer(total[-1, :-1], gap)) * weight_unit
        weight = float(np.float64(weight) * weight_unit)
    return RidgeMoments(np.array([weight]), (shift + gap)[None], products[None], targets.unit)


def _is_inner_precise(feature_map, X, weights, least_alpha):
    """Return whether features may be multiplied by their matrix after they are summed.

    That takes less time for many rows, but magnifies the rounding of the products.
    """
    inner, n = feature_map.inner, X.shape[0]
    if inner is None or n < _MANY_ROWS * inner.n_columns:
        return False
    sample = take(X, np.arange(0, n, -(-n // _FIRST_ROWS)))
    features = to_host(plain_features(inner, sample, Memory()))
    with np.errstate(over="ignore", invalid="ignore"):
        weight = n if weights is None else weights.sum()
        rounding = np.finfo(float).eps * weight * features.var(axis=0).sum()
    return feature_map.magnification * rounding < _MAGNIFIED * least_alpha


# ---------------------------------------------------------------- moments of every class


def moments_of_groups(feature_map, X, codes, n_groups, weights, least_alpha=0.0):
    """Return the moments of every group of rows without targets; see `moments_of_rows`."""
    n_columns = feature_map.n_columns or 0
    n_bytes = n_groups * bytes_of_moments(n_columns, 0)
    description = f"the second moments of {n_groups} classes"
    check_fits(n_bytes, f"feature_map with {n_columns} columns", description)
    nothing = Targets(np.empty((len(codes), 0)), np.empty(0), (0,))
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=n_groups))
    products = None
    for group, rows in enumerate(np.split(order, ends[:-1])):
        if len(rows):
            group_rows = take(X, rows), nothing[rows], None if weights is None else weights[rows]
            moments = moments_of_rows(feature_map, *group_rows, least_alpha=least_alpha)
            if products is None:
                n_columns = moments.n_columns
                weight, mean = np.zeros(n_groups), np.zeros((n_groups, n_columns))
                products = np.zeros((n_groups, n_columns, n_columns))
            weight[group], mean[group] = moments.weight[0], moments.mean[0]
            products[group] = moments.products[0]
    return RidgeMoments(weight, mean, products, nothing.unit)


# ---------------------------------------------------------------- fits


@dataclass(frozen=True, eq=False)
class RidgeSums:
    """Feature maps with the moments of all rows so far and, at the end, the solution; immutable.

    Parameters
    ----------
    params : dict
        Parameters of the estimator at its first fit.
    maps : tuple of FeatureMap
        Maps of queries and keys; only the first is used.
    shape : tuple
        As in `Targets`.
    n_groups : int
        Number of classes whose moments are kept apart; 0 if all rows are summed together.
    least_alpha : float
        The smallest ridge that may be added, or 0 if that is not known.
    total : float, default=None
        Weight of all rows that will be solved for, if they are known to come at once.
    moments : RidgeMoments, default=None
        Moments of all rows so far.
    sizes : Sizes, default=None
        What these are worth; None if that is not counted.
    kept_rows : ExactRows or NearFarRows, default=None
        All rows themselves, for the exact kernel of pairs of classes, or within leaves.
    solution : Solution, default=None
        The solution.
    """

    params: dict
    maps: tuple
    shape: tuple
    n_groups: int
    least_alpha: float
    total: float | None = None
    moments: RidgeMoments | None = None
    sizes: Sizes | None = None
    kept_rows: Any = None
    solution: Solution | None = None

    @property
    def n_columns(self):
        """Number of numbers that are solved for at once."""
        return self.moments.n_columns if self.kept_rows is None else self.kept_rows.n_columns

    @cached_property
    def reader(self):
        """What predicts: the map and the solution, or those of the inner map where it is precise.

        Targets are about 1 in the units of the coefficients.
        """
        feature_map = self.maps[0]
        if feature_map.inner is None or self.solution.reads_rows:
            return feature_map, self.solution
        coef = feature_map.matrix @ self.solution.coef
        if np.abs(coef).sum(axis=0).max() > _LARGEST_COEF:
            return feature_map, self.solution
        return feature_map.inner, replace(self.solution, coef=coef)

    def added(self, data):
        """Return an unsolved fit with more rows."""
        if self.kept_rows is not None:  # it has them
            return self
        sizes = self.sizes and merged_rows(data)[1]
        weight, before = data.total, 0.0 if self.moments is None else self.moments.total
        total = self.total or before + weight
        share = weight / total if total < np.inf else 0.0
        feature_map, weights, least = self.maps[0], data.sample_weight, share * self.least_alpha
        with beside_threads(feature_map):
            if self.n_groups:
                rows = data.X, data.class_codes, self.n_groups, weights
                moments = moments_of_groups(feature_map, *rows, least)
            else:
                moments = moments_of_rows(feature_map, data.X, data.targets, weights, least)
        return self.merge(replace(self, moments=moments, sizes=sizes))

    def merge(self, other):
        """Return an unsolved fit to the rows of both."""
        if self.moments is None or other.moments is None:
            return self if other.moments is None else other
        sizes = self.sizes and self.sizes.merge(other.sizes)
        return replace(self, moments=self.moments.merge(other.moments), sizes=sizes, solution=None)
