"""What classifier and regressor share: the feature map and the sums of its key features."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import gen_batches
from sklearn.utils._param_validation import HasMethods
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from .._arrays import is_foreign, like, namespace, take, to_host
from .._sums import Memory, Readout, Sums, sums_of_block
from .._threads import block_rows, map_rows
from .._validation import changed_parameters, commit, draft_of, freeze, validate_rows
from ..features import OptimalPositiveRF, as_feature_map, in_range, prepared

_BLOCK_ROWS = 1024
_FOREIGN_BLOCK_ROWS = 2**14  # a device wants larger pieces
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

    def merge(self, sums, weights, suits=True):
        """Return the sums with those of other rows, and whether their reference suited these."""
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
        if is_foreign(X):
            return self._add_foreign(X, groups, values)
        n_groups, memory = len(self.weights), Memory()
        width = self.maps[1].n_columns or 1
        size = _block_size(self.maps[1], X.shape[0])
        # As many sums are held at a time as there are blocks in a batch.
        n_held = _HELD_NUMBERS // (width * n_groups * (values.shape[1] + 1))
        most = min(max(n_held, 4), _MERGED_BLOCKS) * size
        # The first batches are small: they tell the scale of the others, if there is one.
        start, length, total = 0, most if self.sums is not None else _BLOCK_ROWS, self
        while start < X.shape[0]:
            own = [part[start : start + length] for part in (X, groups, values)]
            reference = total.reference()

            def sums(rows, own=own, reference=reference):
                parts = (part[rows] for part in own)
                return _block_sums(self.maps[1], *parts, n_groups, memory, reference)

            for part in _map_rows(sums, own[0].shape[0], size, self.maps[1]):
                total = total.merge(*part)
            start, length = start + length, min(8 * length, most)
        return total

    def _add_foreign(self, X, groups, values):
        """Do it for another library: products there, sums on the host."""
        total, n_groups = self, len(self.weights)
        for rows in gen_batches(X.shape[0], _FOREIGN_BLOCK_ROWS):
            order = np.argsort(groups[rows], kind="stable")
            own = take(X[rows, :], order)
            features = self.maps[1](in_range(self.maps[1], own))
            own_values = like(values[rows][order], features.values)
            nothing = Sums.before(features, own_values)
            bounds = np.searchsorted(groups[rows][order], np.arange(n_groups + 1))
            parts = [
                nothing.add(features.part(slice(a, b)), own_values[a:b, :]) if a < b else nothing
                for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
            ]
            sums = Sums.stack(parts)
            weights = np.bincount(groups[rows], values[rows, 0], n_groups)
            total = total.merge(Sums(to_host(sums.sums), to_host(sums.top)), weights)
        return total

    def query(self, X, function):
        """Return function(sums, block) of blocks of rows put together.

        `sums` are those of the block's rows, (n, n_groups, n_values), up to a factor for each row.
        """
        feature_map = self.maps[0]
        n_groups, _, n_values = self.sums.sums.shape
        joined = self.sums.joined()
        if is_foreign(X):
            joined = Sums(like(joined.sums, X), like(joined.top, X))
        readout, memory = Readout(joined, feature_map.is_positive, n_values), Memory()

        def answer(rows):
            block = in_range(feature_map, X[rows, :] if is_foreign(X) else X[rows])
            found = readout(feature_map, block, memory)
            found = namespace(found).reshape(found, (-1, n_groups, n_values))
            return function(found if is_foreign(X) else found.astype(np.float64), block)

        if is_foreign(X):
            parts = [answer(rows) for rows in gen_batches(X.shape[0], _FOREIGN_BLOCK_ROWS)]
            return namespace(X).concat(parts, axis=0)
        size = _block_size(feature_map, X.shape[0])
        return np.concatenate(_map_rows(answer, X.shape[0], size, feature_map))

    def log_weights(self, X):
        """Return the logarithms of the weights that rows see of every group, (n, n_groups)."""
        logs, groups = self.maps[0](X).values, range(len(self.weights))
        parts = [Sums(self.sums.sums[group], self.sums.top[group]) for group in groups]
        if is_foreign(X):
            parts = [Sums(like(part.sums, logs), like(part.top, logs)) for part in parts]
        return namespace(logs).stack([part.log_weigh(logs) for part in parts], axis=1)


def _block_size(feature_map, n_rows):
    if not feature_map.is_parallel:
        return _BLOCK_ROWS
    return block_rows(n_rows, feature_map.n_columns)


def _map_rows(function, n_rows, size, feature_map):
    """Return [function(rows), ...] for blocks of rows, on threads where the map allows it."""
    if feature_map.is_parallel:
        return map_rows(function, n_rows, size)
    return [function(block) for block in gen_batches(n_rows, size)]


def _block_sums(feature_map, X, groups, values, n_groups, memory, reference):
    """Return the sums of a block, whose rows are ordered by group to be slices."""
    order = np.argsort(groups, kind="stable")
    X, groups, values = X[order], groups[order], values[order]
    bounds = np.searchsorted(groups, np.arange(n_groups + 1))
    weights = np.array([values[a:b, 0].sum() for a, b in zip(bounds[:-1], bounds[1:], strict=True)])
    sums, suits = sums_of_block(
        feature_map, in_range(feature_map, X), values, memory, bounds=bounds, reference=reference
    )
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
            changed = changed_parameters(self, draft._fitted.params)
            if changed:
                raise ValueError(f"partial_fit goes on where it began, but {changed}: call fit.")
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
