"""Sums of key features, which kernel regression consists of."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from .._arrays import cast, in_library_of, is_array_api, namespace, take, to_host
from .._memory import check_fits
from .._sums import (
    Memory,
    Readout,
    SignedReadout,
    Sums,
    differences,
    finite,
    log_sum_exp,
    sums_of_block,
)
from ..features import in_range
from .base import BLOCK_ROWS, beside_threads, blocks_of

# Limits on blocks whose sums are held at once: their number, and the numbers they hold.
_MERGED_BLOCKS, _HELD_NUMBERS = 64, 2**23
_SPREAD = 23.0  # groups on a common scale may differ by e^23, about 1e10
_SINGLE_BITS = 64  # values in float32 may differ by 2^64
_LEAST, _MOST = -1074, 1023  # exponents of 2 of floats
_LOG_2 = float(np.log(2.0))


@dataclass(frozen=True, eq=False)
class TargetStatistics:
    """Statistics of the targets, one number per output.

    Parameters
    ----------
    mean, low, high : ndarray of shape (n_outputs,)
        Weighted mean and range.
    most, least : ndarray of int of shape (n_outputs,)
        Largest and smallest exponents of 2 of the nonzero targets.
    shape : tuple
        () for one output without an axis, otherwise (n_outputs,).
    """

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    most: np.ndarray
    least: np.ndarray
    shape: tuple

    @classmethod
    def of(cls, y, weights, shape):
        """Return the statistics of y of shape (n, n_outputs)."""
        # Compute shares first: sums of weights or of targets may overflow.
        shares = np.ldexp(weights, -np.frexp(weights.max())[1])
        mean, (most, least) = (shares / shares.sum()) @ y, exponents_of(y)
        return cls(mean, y.min(axis=0), y.max(axis=0), most, least, shape)

    def merge(self, other, shares):
        """Return the statistics of both, given their shares of the weights."""
        mean = shares[0] * self.mean + shares[1] * other.mean
        low, least = np.minimum(self.low, other.low), np.minimum(self.least, other.least)
        high, most = np.maximum(self.high, other.high), np.maximum(self.most, other.most)
        return TargetStatistics(mean, low, high, most, least, self.shape)


@dataclass(frozen=True, eq=False)
class KeySums:
    """Feature maps and the sums over all rows so far; immutable.

    Parameters
    ----------
    params : dict
        Parameters of the estimator at its first fit.
    maps : tuple of FeatureMap
        Queries and keys.
    sums : Sums or None
        A single value with a leading axis for groups and their values, each with its own
        exponents. None before the first row.
    weights, log_weights : ndarray of shape (n_groups,)
        Sums of the given weights, which may overflow, and their logarithms.
    n_values : int
        Number of values per group, including the weight, which comes first.
    has_one_scale : bool
        Whether one scale has suited all rows of all groups so far.
    targets : Targets or None
        Statistics of a regressor's targets.
    prior_share : float, default=0.0
        Share of the class frequencies in probabilities; it goes with the map, which is chosen with
        it.
    """

    params: dict
    maps: tuple
    sums: Sums | None
    weights: np.ndarray
    log_weights: np.ndarray
    n_values: int
    has_one_scale: bool = True
    targets: Any = None
    prior_share: float = 0.0

    @classmethod
    def before(cls, params, maps, data):
        """Return the sums before the first row, given the rows that will come first."""
        n_columns = maps[1].n_columns or 0
        n_bytes = bytes_of_sums(n_columns, data)
        check_fits(
            n_bytes, f"feature_map with {n_columns} columns", "the sums of kernel regression"
        )
        nothing = np.zeros(data.n_groups), np.full(data.n_groups, -np.inf)
        return cls(params, maps, None, *nothing, 1 + data.values.shape[1])

    @property
    def emptied(self):
        """The sums before the first row, with one scale only if one has suited so far."""
        n_groups = len(self.weights)
        nothing = {"weights": np.zeros(n_groups), "log_weights": np.full(n_groups, -np.inf)}
        return replace(self, sums=None, targets=None, **nothing)

    @property
    def shares(self):
        """Share of each group in the weights."""
        with np.errstate(over="ignore"):
            total = self.weights.sum()
        if np.isfinite(total):
            return self.weights / total
        return np.exp(self.log_weights - log_sum_exp(self.log_weights))

    def reference(self):
        """Return a log scale per column near the mean of every group, or None.

        It is None for maps with signs, and if groups are too far apart.
        """
        if self.sums is None or not (self.has_one_scale and self.maps[1].is_positive):
            return None
        is_used = self.log_weights > -np.inf
        with np.errstate(invalid="ignore"):
            means = self._log_sizes()[:: self.n_values][is_used] - self.log_weights[is_used, None]
            top = means.max(axis=0)
            return top if (means - top).min() > -_SPREAD else None

    def _log_sizes(self):
        """Return logs of absolute sums, of shape (n_groups * n_values, M)."""
        with np.errstate(divide="ignore"):
            return np.log(np.abs(self.sums.sums[:, :, 0])) + self.sums.top

    @cached_property
    def exponents(self):
        """Exponents of 2 of values over weights, which are the units of results."""
        ratios = finite(self._over_weights(self.sums.top).max(axis=(0, 2)))
        return np.clip(ratios // _LOG_2, _LEAST, _MOST).astype(int)

    @cached_property
    def _is_wide(self):
        """Whether values over weights span too wide a range for float32."""
        ratios = self._over_weights(self._log_sizes()) - self.exponents[:, None] * _LOG_2
        return bool(((ratios > -np.inf) & (ratios < -_SINGLE_BITS * _LOG_2))[:, 1:].any())

    def _over_weights(self, logs):
        """Return logs less those of the weights' scale, of shape (n_groups, n_values, M)."""
        logs, top = (
            sums.reshape(-1, self.n_values, sums.shape[1]) for sums in (logs, self.sums.top)
        )
        return differences(logs, finite(top[:, :1]))

    def _of_block(self, sums, weights, suits, units):
        """Return the sums over a block; its values are in units of ``2**units``."""
        values = np.moveaxis(to_host(sums.sums), 2, 1)
        top = to_host(sums.top)[:, None, :] + units[:, None] * _LOG_2
        with np.errstate(divide="ignore", over="ignore"):
            return replace(
                self,
                sums=Sums(values.reshape(-1, values.shape[2], 1), top.reshape(-1, top.shape[2])),
                weights=np.ldexp(weights, units[0]),
                log_weights=np.log(weights) + units[0] * _LOG_2,
                has_one_scale=self.has_one_scale and suits,
            )

    def added(self, data):
        """Return the sums with more rows."""
        with beside_threads(self.maps[1]):
            if self.maps[1].is_indicator:
                more = self._of_indicators(data)
            elif self.maps[1].inner is not None:
                more = self._of_inner(data)
            else:
                more = self._of_features(data)
            if data.values.shape[1]:
                shape = data.y.shape[1:]
                more = replace(more, targets=TargetStatistics.of(data.values, data.weights, shape))
            return self.merge(more)

    def _of_features(self, data):
        """Return the sums over more rows alone, whose blocks are merged in order."""
        unit = np.frexp(data.weights.max())[1] - 1
        X, total = data.X, self.emptied
        units, least = exponents_of(data.values)
        is_wide = (units - least).max(initial=0) > _SINGLE_BITS
        weights = np.ldexp(data.weights, -unit)[:, None]
        values = np.column_stack([weights, weights * np.ldexp(data.values, -units)])
        units = np.insert(units, 0, 0) + unit
        feature_map, n_groups, memory = self.maps[1], len(self.weights), Memory()
        size, map_blocks = blocks_of(feature_map, X)
        # At most as many sums are held at once as there are blocks in a batch.
        n_held = _HELD_NUMBERS // ((feature_map.n_columns or 1) * n_groups * (values.shape[1] + 1))
        most = min(max(n_held, 4), _MERGED_BLOCKS) * size
        # The first batches of a positive map are small: they set the scale of the others.
        is_scaled = self.sums is not None or is_array_api(X) or not feature_map.is_positive
        start, length = 0, most if is_scaled else BLOCK_ROWS
        while start < X.shape[0]:
            before = self if total.sums is None else total
            reference = None if is_array_api(X) else before.reference()

            def sums(rows, reference=reference):
                block = _precise(X[rows, :], is_wide), data.class_codes[rows], values[rows]
                return _block_sums(feature_map, *block, n_groups, memory, reference)

            for block_sums in map_blocks(sums, min(start + length, X.shape[0]), size, start):
                total = total.merge(total._of_block(*block_sums, units))
            start, length = start + length, min(8 * length, most)
        return total

    def _of_indicators(self, data):
        """Return the sums over more rows alone, each of which has a single feature, 1."""
        columns = self.maps[1].columns(to_host(data.X), data.map_y)
        n_columns, n_groups = self.maps[1].n_columns, len(self.weights)
        units, _ = exponents_of(data.values)
        terms = np.column_stack([np.ones(len(columns)), np.ldexp(data.values, -units)])
        # Every column has the unit of its heaviest row.
        heaviest = np.zeros(n_columns)
        np.maximum.at(heaviest, columns, data.weights)
        terms *= (data.weights / heaviest[columns])[:, None]
        places = data.class_codes * n_columns + columns
        sums = [np.bincount(places, values, n_groups * n_columns) for values in terms.T]
        sums = np.stack(sums, axis=1).reshape(n_groups, n_columns, -1).transpose(0, 2, 1)
        is_empty = np.bincount(places, minlength=n_groups * n_columns) == 0
        with np.errstate(divide="ignore"):
            top = np.log(heaviest) + np.insert(units, 0, 0)[:, None] * _LOG_2
            top = np.where(is_empty.reshape(n_groups, 1, n_columns), -np.inf, top)
            log_weights = log_sum_exp(np.log(sums[:, 0]) + top[:, 0])
        return replace(
            self,
            sums=Sums(sums.reshape(-1, n_columns, 1), top.reshape(-1, n_columns)),
            weights=np.bincount(data.class_codes, data.weights, n_groups),
            log_weights=log_weights,
        )

    def merge(self, other):
        """Return the sums over the rows of both, which share their maps."""
        if self.sums is None or other.sums is None:
            return self if other.sums is None else other
        log_weights = np.logaddexp(self.log_weights, other.log_weights)
        targets = self.targets
        if targets is not None:
            shares = np.array([self.log_weights[0], other.log_weights[0]]) - log_weights[0]
            targets = targets.merge(other.targets, np.exp(shares))
        with np.errstate(over="ignore"):
            weights = self.weights + other.weights
        return replace(
            self,
            sums=self.sums.merge(other.sums),
            weights=weights,
            log_weights=log_weights,
            has_one_scale=self.has_one_scale and other.has_one_scale,
            targets=targets,
        )

    def _of_inner(self, data):
        """Return the sums over more rows alone, whose features are multiplied by a matrix."""
        key_map = self.maps[1]
        total = replace(self.emptied, maps=(key_map.inner,) * 2)._of_features(data)
        sums = Sums(key_map.matrix.T @ total.sums.sums, total.sums.top)
        return replace(total, maps=self.maps, sums=sums)

    def query(self, X, function):
        """Return the concatenated results of function(sums, block) for blocks of rows.

        `sums` are those of the block's rows, (n, n_groups, n_values), in units of
        ``2**exponents`` and up to a factor for each row.
        """
        feature_map, n_groups, memory = self.maps[0], len(self.weights), Memory()
        top = self.sums.top - np.tile(self.exponents, n_groups)[:, None] * _LOG_2
        sums, matrix = Sums(self.sums.sums, top).joined().in_library_of(X), feature_map.matrix
        feature_map = feature_map.inner or feature_map
        if feature_map.is_positive:
            readout = Readout(sums, True, self.n_values)
        else:
            readout = SignedReadout(sums, self.n_values, matrix)

        def answer(rows):
            block = in_range(feature_map, _precise(X[rows, :], self._is_wide))
            block_sums = readout(feature_map, block, memory)
            block_sums = namespace(block_sums).reshape(block_sums, (-1, n_groups, self.n_values))
            block_sums = (
                block_sums if is_array_api(X) else block_sums.astype(np.float64, copy=False)
            )
            return function(block_sums, block)

        size, map_blocks = blocks_of(feature_map, X)
        results = map_blocks(answer, X.shape[0], size)
        return namespace(results[0]).concat(results, axis=0)

    def log_shares(self, X):
        """Return the logs of every group's share of the weights that rows see, (n, n_groups)."""
        logs = self.maps[0](X).values
        sums_of_groups = self.sums.in_library_of(X).groups()
        scores = namespace(logs).stack([sums.log_weigh(logs) for sums in sums_of_groups], axis=1)
        return scores - log_sum_exp(scores)[:, None]


def bytes_of_sums(n_columns, data):
    """Return how many bytes the sums of features with so many columns hold."""
    return 16 * n_columns * data.n_groups * (1 + data.values.shape[1])  # numbers and exponents


def exponents_of(values):
    """Return the largest and smallest exponents of 2 of columns, ignoring zeros."""
    exponents, is_used = np.frexp(values)[1] - 1, values != 0
    least = exponents.min(axis=0, initial=_MOST, where=is_used)
    return exponents.max(axis=0, initial=_LEAST, where=is_used), least


def _precise(X, is_wide):
    return cast(X, namespace(X).float64) if is_wide else X


def _block_sums(feature_map, X, groups, values, n_groups, memory, reference):
    """Return the sums of a block, whose rows are sorted so that groups are slices."""
    if (groups[1:] < groups[:-1]).any():
        order = np.argsort(groups, kind="stable")
        X, groups, values = take(X, order), groups[order], values[order]
    bounds = np.searchsorted(groups, np.arange(n_groups + 1)).tolist()
    weights = np.bincount(groups, values[:, 0], n_groups)
    X, values = in_range(feature_map, X), in_library_of(values, X)
    sums, suits = sums_of_block(feature_map, X, values, memory, bounds, reference)
    return sums, weights, suits or reference is None
