"""Code shared by classifier and regressor: the feature map and the sums of its key features."""

import copy
import warnings
from dataclasses import dataclass, replace
from functools import cached_property, partial
from numbers import Number, Real
from operator import methodcaller
from typing import Any, Literal, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from .._arrays import LARGEST, cast, in_library_of, is_array_api, namespace, take, to_host
from .._batches import TakesBatches
from .._estimator import GAMMA, EstimatorBase, Unless
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
from .._typing import Array, RandomState, Sigma, Transformer
from .._validation import (
    HasMethods,
    Interval,
    StrOptions,
    check_unchanged,
    commit,
    draft_of,
    drop_zero_weights,
    same,
    validate_rows,
)
from ..exceptions import FeatureCollapseWarning
from ..features import (
    ClusterQuantizer,
    check_columns,
    difference,
    fit_at_sigmas,
    fit_to_statistics,
    in_range,
    lacks_rows,
    prepared,
)
from ._batches import passes
from ._blocks import BLOCK_ROWS, beside_threads, blocks_of
from ._exact import ExactMap
from ._leave_one_out import best_exact_sigma, best_sigma
from ._search import maps_of, resolved

# Limits on blocks whose sums are held at once: their number, and the numbers they hold.
_MERGED_BLOCKS, _HELD_NUMBERS = 64, 2**23
_SPREAD = 23.0  # groups on a common scale may differ by e^23, about 1e10
_WEIGHT_BITS = 32  # weights on a common scale may differ by 2^32
_SINGLE_BITS = 64  # and other values in float32 by 2^64
_LEAST, _MOST = -1074, 1023  # exponents of 2 of floats
_LOG_2 = float(np.log(2.0))
SIGMA = Interval(Real, 0, LARGEST, closed="right")


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
    target : ndarray of shape (n,) or (n, n_outputs)
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

    def part(self, rows):
        """Return some of the rows, given a slice or indices."""
        names = ["y", "numbers", "target", "groups", "values"]
        names += [] if self.sample_weight is None else ["sample_weight"]
        arrays = {name: getattr(self, name)[rows] for name in names}
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

    def fit_at_sigmas(self, feature_map, sigmas):
        """Return an iterator over maps fitted to all rows, one per sigma, that share a draw."""
        return fit_at_sigmas(feature_map, sigmas, **self._fit_arguments(feature_map))

    def _fit_arguments(self, feature_map):
        """Return what a map is fitted to, on the host, with weights if it accepts them."""
        arguments = {"X": to_host(self.X), "y": self.target, "statistics": self.statistics}
        if self.sample_weight is not None and has_fit_parameter(feature_map, "sample_weight"):
            is_usual = abs(np.frexp(self.sample_weight.max())[1]) <= _WEIGHT_BITS
            arguments["sample_weight"] = self.sample_weight if is_usual else self.score_weights
        return arguments


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
        Share of the class frequencies in probabilities.
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
    def before(cls, params, maps, n_groups, n_values):
        """Return the sums before the first row."""
        nothing = np.zeros(n_groups), np.full(n_groups, -np.inf)
        return cls(params, maps, None, *nothing, n_values)

    @property
    def emptied(self):
        """The sums before the first row, with one scale only if one has suited so far."""
        empty = self.before(self.params, self.maps, len(self.weights), self.n_values)
        return replace(empty, has_one_scale=self.has_one_scale, prior_share=self.prior_share)

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

    def alone(self, data):
        """Return the sums over more rows alone, whose blocks are merged in order."""
        if self.maps[1].inner is not None:
            return self._of_inner(data)
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
                block = _precise(X[rows, :], is_wide), data.groups[rows], values[rows]
                return _block_sums(feature_map, *block, n_groups, memory, reference)

            for block_sums in map_blocks(sums, min(start + length, X.shape[0]), size, start):
                total = total.merge(total._of_block(*block_sums, units))
            start, length = start + length, min(8 * length, most)
        return total

    def of_indicators(self, data):
        """Return the sums over more rows alone, each of which has a single feature, 1."""
        columns = self.maps[1].columns(to_host(data.X), data.target)
        n_columns, n_groups = self.maps[1].n_columns, len(self.weights)
        units, _ = exponents_of(data.values)
        terms = np.column_stack([np.ones(len(columns)), np.ldexp(data.values, -units)])
        # Every column has the unit of its heaviest row.
        heaviest = np.zeros(n_columns)
        np.maximum.at(heaviest, columns, data.weights)
        terms *= (data.weights / heaviest[columns])[:, None]
        places = data.groups * n_columns + columns
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
            weights=np.bincount(data.groups, data.weights, n_groups),
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
        prior_share = self.prior_share
        if other.prior_share != prior_share:
            totals = np.array([log_sum_exp(part.log_weights) for part in (self, other)])
            shares = np.exp(totals - log_sum_exp(totals))
            prior_share = float(shares @ [self.prior_share, other.prior_share])
        return replace(
            self,
            prior_share=prior_share,
            sums=self.sums.merge(other.sums),
            weights=weights,
            log_weights=log_weights,
            has_one_scale=self.has_one_scale and other.has_one_scale,
            targets=targets,
        )

    def _of_inner(self, data):
        """Return the sums over more rows alone, whose features are multiplied by a matrix."""
        key_map = self.maps[1]
        total = replace(self.emptied, maps=(key_map.inner,) * 2).alone(data)
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
            seen = readout(feature_map, block, memory)
            seen = namespace(seen).reshape(seen, (-1, n_groups, self.n_values))
            seen = seen if is_array_api(X) else seen.astype(np.float64, copy=False)
            return function(seen, block)

        size, map_blocks = blocks_of(feature_map, X)
        parts = map_blocks(answer, X.shape[0], size)
        return namespace(parts[0]).concat(parts, axis=0)

    def log_shares(self, X):
        """Return the logs of every group's share of the weights that rows see, (n, n_groups)."""
        logs = self.maps[0](X).values
        parts = self.sums.in_library_of(X).groups()
        scores = namespace(logs).stack([sums.log_weigh(logs) for sums in parts], axis=1)
        return scores - log_sum_exp(scores)[:, None]


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


def _warn_of_first_batch(feature_map, n_rows):
    """Warn that a first batch, which sets the map for good, is too small for it."""
    warnings.warn(
        f"partial_fit fits the feature map to the first batch alone, and its {n_rows} rows are too "
        f"few for the {feature_map.n_components} components of {type(feature_map).__name__}, "
        "which are placed near rows. Use fit_batches, or begin with a larger batch.",
        UserWarning,
        stacklevel=4,
    )


class BaseKernelRegression(TakesBatches, EstimatorBase):
    """Base of the estimators that divide sums of features."""

    _default_map = ClusterQuantizer(256)
    _foreign_parameters = GAMMA
    _parameter_constraints = {
        "feature_map": [HasMethods(["fit", "transform"]), StrOptions({"exact"}), None],
        "sigma": [StrOptions({"scale", "median"}), SIGMA, None],
        "random_state": ["random_state"],
    }
    _fitted = None
    _warns = True
    _scores_rows = True  # in searches, rather than their sums

    def _obstacle_to_batches(self):
        """Return why there are no sums of rows that could be added up, or None."""
        if isinstance(self.feature_map, str):
            return f"feature_map={self.feature_map!r} keeps all rows and has no sums: call fit."

    def __init__(
        self,
        feature_map: Transformer | Literal["exact"] | None = None,
        *,
        sigma: Sigma | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.feature_map = feature_map
        self.sigma = sigma
        self.random_state = random_state

    def fit(self, X: Array, y: Array, sample_weight: Array | None = None) -> Self:
        """Fit the feature map, and sum over the rows in one pass.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets, or the labels of a classifier.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, at least 0; rows of weight 0 are dropped.

        Returns
        -------
        self : object
            The fitted estimator.

        Warns
        -----
        RuntimeWarning
            By `KernelRegressor`, if targets of an output differ by a factor of more than 2^500:
            the small ones may count as 0.
        """
        return self._add(X, y, sample_weight, forget=True)

    def _default_for(self, data, is_first_batch=False):
        """Return the map that None stands for, given the rows."""
        return self._default_map

    def _prepared(self, sigma=None, hint=None, default=None):
        """Return an unfitted copy of the map."""
        feature_map, owner = self.feature_map, type(self).__name__
        if feature_map is None or isinstance(feature_map, str):
            feature_map = default or self._default_map
        feature_map = prepared(feature_map, owner=owner, sigma=sigma, hint=hint)
        return prepared(feature_map, owner=owner, random_state=self.random_state)

    def _check_size(self, feature_map, data, n_sums=2):
        """Raise, before a map is drawn, if sums of its features cannot be held at once."""

        def n_bytes(n_columns):
            return n_sums * self._bytes_of_sums(n_columns, data)

        check_columns(feature_map, data.X.shape[0], n_bytes, f"the sums of {type(self).__name__}")
        return feature_map

    def _bytes_of_sums(self, n_columns, data):
        """Return how many bytes the sums of features with so many columns hold."""
        return 16 * n_columns * data.n_groups * (1 + data.values.shape[1])  # numbers and exponents

    def _leaves_sigma_open(self, feature_map):
        """Return whether sigma is chosen by leave-one-out, given the prepared map."""
        if self.sigma is not None or getattr(feature_map, "kernel", None) == "softmax":
            return False
        return feature_map.get_params(deep=False).get("sigma", 1.0) is None

    def _fit_map(self, data, is_first_batch=False):
        """Return empty sums, with a map fitted to the first rows."""
        if isinstance(self.feature_map, str):
            is_open = self.sigma is None
            chosen = best_exact_sigma(data) if is_open else (resolved(self.sigma, data), 0.0)
            self.sigma_, share = chosen
            maps = (ExactMap(to_host(data.X).copy(), self.sigma_),) * 2
            return replace(self._before(maps, data), prior_share=share)
        feature_map, share = self._check_size(self._prepared(sigma=self.sigma), data), 0.0
        if self._leaves_sigma_open(feature_map):
            with beside_threads(feature_map):
                sigma, share = best_sigma(feature_map, data)
            feature_map.set_params(sigma=sigma)
        self.feature_map_ = data.fitted(feature_map)
        if hasattr(self.feature_map_, "sigma_"):
            self.sigma_ = self.feature_map_.sigma_
        return replace(self._before(maps_of(self.feature_map_), data), prior_share=share)

    def _before(self, maps, data):
        """Return the empty sums of a pair of maps."""
        n_columns = maps[1].n_columns or 0
        n_bytes, of = self._bytes_of_sums(n_columns, data), f"the sums of {type(self).__name__}"
        check_fits(n_bytes, f"feature_map with {n_columns} columns", of)
        return KeySums.before(self.get_params(), maps, data.n_groups, 1 + data.values.shape[1])

    def _added(self, sums, data):
        """Return sums with more rows."""
        with beside_threads(sums.maps[1]):
            more = (sums.of_indicators if sums.maps[1].is_indicator else sums.alone)(data)
            return sums.merge(replace(more, targets=self._statistics_of(data)))

    def _statistics_of(self, data):
        """Return the `Targets` of a regressor."""

    def _sums_of(self, fitted, data):
        """Return the sums of rows under a fitted map."""
        return self._added(self._before(maps_of(fitted), data), data)

    def _on(self, sums):
        """Return a copy that predicts from these sums, for scoring."""
        copied = copy.copy(self)
        vars(copied).pop("feature_names_in_", None)  # it will not see tables
        copied._warns = False  # its sigma may not be the chosen one
        return copied._hold(sums)

    def _hold(self, sums):
        self._fitted = sums
        return self

    def _add(self, X, y, sample_weight, *, forget, classes=None):
        draft, data = self._read(X, y, sample_weight, forget=forget, classes=classes)
        before = draft._fitted
        if before is None:
            before = draft._fit_map(data, is_first_batch=not forget)
            if not forget and lacks_rows(draft.feature_map_, len(data.y)):
                _warn_of_first_batch(draft.feature_map_, len(data.y))
        return commit(self, draft._finished(draft._added(before, data)))

    def _passes(self, classes, scope):
        self._validate_params()
        return passes(self, classes, scope)

    @partial(Unless, methodcaller("_obstacle_to_batches"))
    def merge(self, other: Self) -> Self:
        """Return a model of the rows of both estimators, which must be fitted with the same map.

        Fit a map once, to some rows or with `fit_statistics`, and pass it to both in a
        ``FrozenEstimator``. The order of merges does not matter, except for rounding. If parts may
        lack a class, fit them with ``partial_fit(X, y, classes=...)``.

        Parameters
        ----------
        other : estimator
            Fitted, of the same class.

        Returns
        -------
        estimator
            A new estimator; both inputs are unchanged.

        Raises
        ------
        TypeError
            If `other` has another class.
        ValueError
            If parameters, columns, classes, targets or maps differ; the message says which.
        """
        check_is_fitted(self)
        if type(other) is not type(self):
            raise TypeError(f"other must be a {type(self).__name__}, got {other!r:.60}.")
        check_is_fitted(other)
        for model in (self, other):
            check_unchanged(model, model._fitted.params, "merge takes models as they were fitted")
        what = next(self._differences(other), None)
        if what is not None:
            raise ValueError(f"{type(self).__name__} cannot merge with other: {what}.")
        return draft_of(self, forget=False)._finished(self._fitted.merge(other._fitted))

    def _differences(self, other):
        """Yield what keeps two fitted estimators from being merged."""
        params = [dict(model._fitted.params) for model in (self, other)]
        for name in params[0]:
            one, two = (values.get(name) for values in params)
            is_of_map = name.startswith("feature_map") or name in ("sigma", "random_state")
            is_same = same(one, two) or (isinstance(one, Number) and one == two)
            if not (is_of_map or is_same):
                yield f"parameter {name}={one!r} against {two!r}"
        for name in ("n_features_in_", "feature_names_in_", "classes_", "_outputs"):
            one, two = (getattr(model, name, None) for model in (self, other))
            if not (same(one, two) or np.array_equal(one, two)):
                hint = ": fit parts that may lack a class by partial_fit(X, y, classes=...)"
                hint = hint if name == "classes_" else ""
                yield f"{name.strip('_')}={one!r} against {two!r}{hint}"
        what = difference(self.feature_map_, other.feature_map_)
        if what is not None:
            yield f"the feature maps differ in {what}"

    def _read(self, X, y, sample_weight=None, *, forget=True, classes=None):
        """Return a draft to fit, and the validated rows."""
        self._validate_params()
        draft = draft_of(self, forget=forget)
        X = validate_rows(draft, X, reset=draft._fitted is None)
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        if draft._fitted is not None:
            check_unchanged(self, draft._fitted.params)
        y = draft._checked(X, y, classes)
        weights, X, y, numbers = drop_zero_weights(sample_weight, X, y, np.arange(len(y)))
        return draft, Data(X, y, weights, numbers, *draft._to_sum(y, classes))

    def _finished(self, sums):
        """Return this draft with its sums."""
        return self._hold(sums)

    def _query(self, X, function):
        """Return `KeySums.query` for rows that the user passes to a public method, and a dtype.

        The dtype is that of the rows, which predictions have, too.
        """
        check_is_fitted(self)
        lost = []

        def noted(sums, block):
            xp, weights = namespace(sums), sums[:, :, 0]
            is_partial = bool(xp.any(weights[:, 0] == 0))  # all weights take several times as long
            lost.append(is_partial and bool(xp.any(xp.all(weights == 0, axis=1))))
            return function(sums, block)

        X = validate_rows(self, X, reset=False)
        answer = self._fitted.query(X, noted)
        if any(lost) and self._warns:
            warnings.warn(
                "Some rows of X are predicted by the class shares or the mean target alone: the "
                "features of feature_map are 0 there, or beyond the range of floats. Use a "
                "positive map, such as OptimalPositiveRF, or smaller inputs.",
                FeatureCollapseWarning,
                stacklevel=3,
            )
        return answer, X.dtype

    def __sklearn_is_fitted__(self):
        return self._fitted is not None

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
