"""What classifier and regressor share: the feature map and the sums of its key features."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import gen_batches
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from .._arrays import beside, is_array_api, namespace, take, to_host
from .._sums import Memory, Readout, Sums, sums_of_block
from .._threads import block_rows, map_rows
from .._validation import HasMethods, check_unchanged, commit, draft_of, freeze, validate_rows
from ..features import OptimalPositiveRF, as_feature_map, in_range, prepared

_BLOCK_ROWS = 1024
_DEVICE_BLOCK_ROWS = 2**14  # a device wants larger pieces
# Of blocks whose sums are held at a time.
_MERGED_BLOCKS, _HELD_NUMBERS = 64, 2**23
_SPREAD = 23.0  # groups on one scale may differ by e^23, which is 1e10


@dataclass(frozen=True, eq=False)
class KeySums:
    """Feature maps and the sums over all rows so far; nothing of it changes.

    Parameters
    ----------
    params : dict
        Parameters of the estimator at its first fit.
    maps : tuple of FeatureMap
        Queries and keys.
    sums : Sums or None
        With a leading axis for groups; None before the first row.
    weights : ndarray of shape (n_groups,)
        Sums of the first values.
    has_one_scale : bool
        Whether one scale has suited all rows of all groups so far.
    targets : Targets or None
        What a regressor knows of the targets.
    """

    params: dict
    maps: tuple
    sums: Sums | None
    weights: np.ndarray
    has_one_scale: bool = True
    targets: Any = None

    def reference(self):
        """Return one log scale for each column that is of the size of every group's mean, or None.

        There is none for maps with signs, and where groups are too far apart.
        """
        if self.sums is None or not (self.has_one_scale and self.maps[1].is_positive):
            return None
        top, some = self.sums.top.max(axis=0), self.weights > 0
        with np.errstate(divide="ignore"):
            logs = np.log(self.sums.sums[some, :, 0] / self.weights[some, None])
        return top if (logs + self.sums.top[some] - top).min() > -_SPREAD else None

    def merge(self, sums, weights, suits):
        """Return the sums with those of other rows, and whether their reference suited these."""
        sums = Sums(to_host(sums.sums), to_host(sums.top))
        return replace(
            self,
            sums=sums if self.sums is None else self.sums.merge(sums),
            weights=self.weights + weights,
            has_one_scale=self.has_one_scale and suits,
        )

    def add(self, X, groups, values):
        """Return the sums with more rows, blocks of which are merged in their order.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, d)
            Rows.
        groups : ndarray of int of shape (n,)
            Their groups.
        values : ndarray of shape (n, n_values)
            What their features are multiplied with, the weight first.
        """
        feature_map, n_groups, memory = self.maps[1], len(self.weights), Memory()
        size, map_blocks = _blocks_of(feature_map, X)
        # As many sums are held at a time as there are blocks in a batch.
        n_held = _HELD_NUMBERS // ((feature_map.n_columns or 1) * n_groups * (values.shape[1] + 1))
        most = min(max(n_held, 4), _MERGED_BLOCKS) * size
        # The first batches are small: they tell the scale of the others, if there is one.
        is_scaled = self.sums is not None or is_array_api(X)
        start, length, total = 0, most if is_scaled else _BLOCK_ROWS, self
        while start < X.shape[0]:
            reference = None if is_array_api(X) else total.reference()

            def sums(rows, start=start, reference=reference):
                rows = slice(rows.start + start, rows.stop + start)
                own = X[rows, :], groups[rows], values[rows]
                return _block_sums(feature_map, *own, n_groups, memory, reference)

            for part in map_blocks(sums, min(length, X.shape[0] - start), size):
                total = total.merge(*part)
            start, length = start + length, min(8 * length, most)
        return total

    def query(self, X, function):
        """Return function(sums, block) of blocks of rows put together.

        `sums` are those of the block's rows, (n, n_groups, n_values), up to a factor for each row.
        """
        feature_map = self.maps[0]
        n_groups, _, n_values = self.sums.sums.shape
        joined, memory = self.sums.joined().beside(X), Memory()
        readout = Readout(joined, feature_map.is_positive, n_values)

        def answer(rows):
            block = in_range(feature_map, X[rows, :])
            found = readout(feature_map, block, memory)
            found = namespace(found).reshape(found, (-1, n_groups, n_values))
            return function(found if is_array_api(X) else found.astype(np.float64), block)

        size, map_blocks = _blocks_of(feature_map, X)
        parts = map_blocks(answer, X.shape[0], size)
        return namespace(parts[0]).concat(parts, axis=0)

    def log_weights(self, X):
        """Return the logarithms of the weights that rows see of every group, (n, n_groups)."""
        logs = self.maps[0](X).values
        parts = self.sums.beside(X).groups()
        return namespace(logs).stack([part.log_weigh(logs) for part in parts], axis=1)


def _blocks_of(feature_map, X):
    """Return the size of a block of rows, and what maps blocks: threads where they are allowed."""
    if is_array_api(X):
        return _DEVICE_BLOCK_ROWS, _map_in_turn
    if not feature_map.is_parallel:
        return _BLOCK_ROWS, _map_in_turn
    return block_rows(X.shape[0], feature_map.n_columns), map_rows


def _map_in_turn(function, n_rows, size):
    return [function(rows) for rows in gen_batches(n_rows, size)]


def _block_sums(feature_map, X, groups, values, n_groups, memory, reference):
    """Return the sums of a block, whose rows are ordered by group to be slices."""
    order = np.argsort(groups, kind="stable")
    bounds = np.searchsorted(groups[order], np.arange(n_groups + 1)).tolist()
    weights = np.bincount(groups, values[:, 0], n_groups)
    X, values = in_range(feature_map, take(X, order)), beside(values[order], X)
    sums, suits = sums_of_block(feature_map, X, values, memory, bounds, reference)
    return sums, weights, suits or reference is None


class BaseKernelRegression(BaseEstimator):
    """Base of the estimators that divide sums of features."""

    _parameter_constraints = {
        "feature_map": [HasMethods(["fit", "transform"]), None],
        "random_state": ["random_state"],
    }
    _fitted = None

    def __init__(self, feature_map=None, *, sigma=None, random_state=None):
        self.feature_map = feature_map
        self.sigma = sigma
        self.random_state = random_state

    def _fit_map(self, X, y, sample_weight, n_groups):
        """Fit the feature map to the first rows, and begin the sums."""
        feature_map = prepared(
            OptimalPositiveRF(sigma="scale") if self.feature_map is None else self.feature_map,
            owner=type(self).__name__,
            sigma=self.sigma,
            random_state=self.random_state,
        )
        weighted = sample_weight is not None and has_fit_parameter(feature_map, "sample_weight")
        X = to_host(X)  # statistics are taken there
        feature_map.fit(X, y, **({"sample_weight": sample_weight} if weighted else {}))
        width = getattr(feature_map, "n_features_in_", X.shape[1])
        if width != X.shape[1]:  # fitted before, and frozen
            raise ValueError(
                f"X has {X.shape[1]} features, but feature_map={feature_map!r} was fitted with "
                f"{width} features."
            )
        self.feature_map_ = feature_map
        maps = tuple(as_feature_map(feature_map, keys=keys) for keys in (False, True))
        return KeySums(self.get_params(), maps, None, np.zeros(n_groups))

    def _begin(self, X, y, *, forget):
        """Return a draft to fit, and validated rows."""
        self._validate_params()
        draft = draft_of(self, forget=forget)
        X = validate_rows(draft, X, reset=draft._fitted is None)
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        if draft._fitted is not None:
            check_unchanged(self, draft._fitted.params)
        return draft, X

    def _finish(self, draft, sums):
        draft._fitted = freeze(sums)
        return commit(self, draft)

    def _query(self, X, function):
        check_is_fitted(self)
        return self._fitted.query(validate_rows(self, X, reset=False), function)

    def __sklearn_is_fitted__(self):
        return self._fitted is not None

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
