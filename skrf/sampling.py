"""Drawing keys in proportion to their kernel with a query, without looking at all of them."""

from typing import Self

import numpy as np
import scipy.sparse as sp
from sklearn.utils import gen_batches
from sklearn.utils.validation import check_is_fitted

from ._arrays import to_host
from ._estimator import EstimatorBase
from ._memory import check_fits
from ._sums import exp_max_one, finite, log_sum_exp
from ._typing import Array, RandomState, Transformer
from ._validation import (
    as_generator,
    check_integer,
    check_weights,
    commit,
    draft_of,
    draw_seed,
    validate_rows,
)
from .features import OptimalPositiveRF, as_feature_map, fit_to, in_range, mapped, prepared

__all__ = ["KernelSampler"]

_BRANCHES = 64  # children of a node
_DRAWS = 2**15  # that go down the tree together
_LEAST = 1e-200  # sum of a feature over all keys below which scales are found anew
_ROOM = 600.0  # nats by which a key's features may exceed those of `fit`


class KernelSampler(EstimatorBase):
    r"""Draws keys k with probability proportional to w_k phi(q) . phi(k), for any query q.

    First a feature f is drawn, in proportion to phi_f(q) times the sum of w_k phi_f(k) over the
    keys, and then a key, in proportion to w_k phi_f(k), by descending a tree of sums. A draw costs
    O(M + log n) with M features and n keys; the probabilities are exact for the kernel that the
    features define. With the softmax kernel, this is sampled softmax whose negatives follow the
    model's own distribution.

    Parameters
    ----------
    feature_map : feature map, default=None
        Positive features; None means ``OptimalPositiveRF(256, kernel="softmax")``. A
        FrozenEstimator is used as fitted.
    random_state : int, RandomState instance or None, default=None
        Source of the seed of the feature map, if the map's own random_state is None.

    Attributes
    ----------
    feature_map_ : feature map
        The fitted map.
    n_keys_ : int
        Number of keys.
    n_features_in_ : int
        Width of queries and keys.

    See Also
    --------
    skrf.OptimalPositiveRF : The default features.
    skrf.graphical.KernelHMM : Samples paths in the same way.

    References
    ----------
    Rawat et al., Sampled softmax with random Fourier features (2019), with positive features in
    place of those that may be negative.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.sampling import KernelSampler
    >>> rng = np.random.default_rng(0)
    >>> keys, queries = rng.normal(size=(1000, 8)) / 2, rng.normal(size=(2, 8)) / 2
    >>> sampler = KernelSampler(random_state=0).fit(keys)
    >>> drawn = sampler.sample(queries, 5, random_state=0)
    >>> drawn.shape, sampler.log_prob(queries, drawn).shape
    ((2, 5), (2, 5))
    """

    _parameter_constraints = {"random_state": ["random_state"]}

    def __init__(
        self, feature_map: Transformer | None = None, *, random_state: RandomState = None
    ) -> None:
        self.feature_map = feature_map
        self.random_state = random_state

    def fit(
        self,
        X: Array,
        y: None = None,
        *,
        queries: Array | None = None,
        sample_weight: Array | None = None,
    ) -> Self:
        """Fit the map to keys, and sum their features.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_keys, n_features)
            Keys.
        y : None
            Ignored.
        queries : array-like of shape (n_queries, n_features), default=None
            Rows like the queries to come, to which the parameters of the map are fitted; None means
            that queries are like the keys.
        sample_weight : array-like of shape (n_keys,), default=None
            Weights >= 0 that multiply the probabilities of keys, such as their frequencies.

        Returns
        -------
        self : object
            The sampler.

        Raises
        ------
        ValueError
            If features are not positive.
        """
        self._validate_params()
        draft, feature_map = draft_of(self), self.feature_map
        keys = to_host(validate_rows(draft, X, reset=True))
        queries = keys if queries is None else to_host(draft._checked("queries", queries))
        if feature_map is None:
            feature_map = OptimalPositiveRF(256, kernel="softmax")
        seed = draw_seed(self.random_state)
        copied = prepared(
            feature_map, owner="KernelSampler", seed=lambda own: seed if own is None else own
        )
        draft.feature_map_ = fit_to(copied, queries, keys)
        draft._maps = [as_feature_map(draft.feature_map_, keys=side) for side in (False, True)]
        if not all(side.is_positive for side in draft._maps):
            raise ValueError(
                f"feature_map={feature_map!r} is not positive: probabilities must be. Use a "
                "positive map, such as OptimalPositiveRF or AdaptiveRF."
            )
        draft.n_keys_, n_columns = keys.shape[0], draft._maps[1].n_columns
        check_fits(8 * draft.n_keys_ * n_columns, f"X of {draft.n_keys_} keys", "their features")
        draft._log_weights = np.zeros(draft.n_keys_)
        if sample_weight is not None:
            with np.errstate(divide="ignore"):
                draft._log_weights = np.log(check_weights(sample_weight, keys))
        draft._keys = keys.toarray() if sp.issparse(keys) else keys.copy()
        draft._build()
        return commit(self, draft)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _build(self):
        """Compute all features, and their sums."""
        logs = self._logs(1, "X", self._keys) + self._log_weights[:, None]
        self._top = finite(logs.max(axis=0))
        self._levels = [np.ascontiguousarray(np.exp(logs - self._top).T)]
        while self._levels[-1].shape[1] > 1:
            self._levels.append(_sums(self._levels[-1]))
        self._has_some = self._levels[-1][:, 0] > 0

    def _checked(self, name, rows):
        return validate_rows(self, rows, reset=False, name=name)

    def _logs(self, side, name, rows):
        """Return the logarithms of features, (n, M), as float64."""
        feature_map = self._maps[side]
        return mapped(feature_map, in_range(feature_map, rows, name)).values.astype(np.float64)

    def _of_queries(self, q):
        """Return log weights of the features of queries, which include those of the keys' scale."""
        check_is_fitted(self, "n_keys_")
        queries = np.atleast_2d(q) if np.ndim(q) == 1 else q
        logs = self._logs(0, "q", to_host(self._checked("q", queries)))
        return logs + self._top, np.ndim(q) == 1

    def log_partition(self, q: Array) -> np.ndarray | float:
        """Return the log of the sum of w_k phi(q) . phi(k) over all keys.

        Parameters
        ----------
        q : array-like of shape (n_features,) or (n_queries, n_features)
            Queries.

        Returns
        -------
        float or ndarray of shape (n_queries,)
            Estimates of the log of the sum of the kernel over the keys; O(M) each.
        """
        logs, is_one = self._of_queries(q)
        with np.errstate(divide="ignore"):
            values = log_sum_exp(logs + np.log(self._levels[-1][:, 0]))
        return float(values[0]) if is_one else values

    def sample(
        self, q: Array, n_samples: int = 1, *, random_state: RandomState = None
    ) -> np.ndarray:
        """Draw keys for queries, with replacement.

        Parameters
        ----------
        q : array-like of shape (n_features,) or (n_queries, n_features)
            Queries.
        n_samples : int, default=1
            Number of draws for each query.
        random_state : int, RandomState instance or None, default=None
            Source of the draws.

        Returns
        -------
        ndarray of int of shape (n_samples,) or (n_queries, n_samples)
            Indices of keys.

        Raises
        ------
        MemoryError
            If the draws do not fit into memory.
        """
        check_integer("n_samples", n_samples)
        rng, (logs, is_one) = as_generator(random_state), self._of_queries(q)
        check_fits(32 * len(logs) * int(n_samples), f"n_samples={n_samples!r}", "draws of queries")
        with np.errstate(divide="ignore"):
            shares = exp_max_one(logs + np.log(self._levels[-1][:, 0]))
        edges = np.cumsum(shares, axis=1)
        edges /= edges[:, -1:]
        points = rng.uniform(size=(len(logs), n_samples))
        features = [
            np.searchsorted(edge, point, side="right")
            for edge, point in zip(edges, points, strict=True)
        ]
        features = np.minimum(np.ravel(features), shares.shape[1] - 1)
        places = np.zeros(len(features), dtype=np.intp)
        for rows in gen_batches(len(features), _DRAWS):
            for level in self._levels[-2::-1]:
                places[rows] = _descend(level, features[rows], places[rows], rng)
        places = places.reshape(len(logs), n_samples)
        return places[0] if is_one else places

    def log_prob(self, q: Array, indices: Array) -> np.ndarray:
        """Return the log probabilities with which `sample` draws keys.

        Parameters
        ----------
        q : array-like of shape (n_features,) or (n_queries, n_features)
            Queries.
        indices : array-like of int of shape (n,) or (n_queries, n)
            Indices of keys.

        Returns
        -------
        ndarray of the shape of `indices`
            Log probabilities; O(M) each.
        """
        logs, is_one = self._of_queries(q)
        indices = np.asarray(indices)
        shape = indices.shape if is_one else indices.shape[1:]
        is_shaped = indices.ndim == (1 if is_one else 2) and len(shape) == 1
        if not is_shaped or indices.dtype.kind not in "iu" or (len(indices) != len(logs)) > is_one:
            raise ValueError(
                "indices must be integers with a row for every query, got shape "
                f"{indices.shape} of {indices.dtype}."
            )
        if indices.size and not (0 <= indices.min() and indices.max() < self.n_keys_):
            raise ValueError(
                f"indices must lie in 0 to {self.n_keys_ - 1}, got {indices.min()} to "
                f"{indices.max()}."
            )
        chosen, sums = np.atleast_2d(indices), self._levels[-1]
        # Shares of a feature, and of keys in it, neither of which leaves the range of floats.
        with np.errstate(divide="ignore"):
            shares = exp_max_one(logs + np.log(sums[:, 0]))
        shares /= shares.sum(axis=1, keepdims=True)
        inverse, values = 1 / np.where(sums > 0, sums, 1.0), np.empty(chosen.shape)
        for row, (share, places) in enumerate(zip(shares, chosen, strict=True)):
            values[row] = share @ (self._levels[0][:, places] * inverse)
        with np.errstate(divide="ignore"):
            return np.log(values).reshape(indices.shape)

    def update(self, i: int, key: Array) -> Self:
        """Replace a key in O(M log n) time.

        Parameters
        ----------
        i : int
            Index of the key to replace.
        key : array-like of shape (n_features,)
            The new key; the map is not fitted again.

        Returns
        -------
        self : object
            The sampler.
        """
        check_is_fitted(self, "n_keys_")
        if check_integer("i", i, 0) >= self.n_keys_:
            raise ValueError(f"i must lie in 0 to {self.n_keys_ - 1}, got {i!r}.")
        row = to_host(self._checked("key", key if np.ndim(key) == 2 or sp.issparse(key) else [key]))
        if row.shape[0] != 1:
            raise ValueError(f"key must have shape ({self.n_features_in_},), got {np.shape(key)}.")
        row = row.toarray() if sp.issparse(row) else row
        logs = self._logs(1, "key", row)[0] + self._log_weights[i]
        self._keys[i] = row[0]
        if (logs - self._top).max() > _ROOM:  # beyond the scale of the other keys
            self._build()
            return self
        self._levels[0][:, i] = np.exp(logs - self._top)
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            i //= _BRANCHES
            above[:, i] = below[:, _BRANCHES * i : _BRANCHES * (i + 1)].sum(axis=1)
        totals = self._levels[-1][:, 0]
        if totals.min(where=self._has_some, initial=1.0) < _LEAST:  # far below the scale of `fit`
            self._build()
        return self


def _sums(level):
    """Return sums of neighbours, (M, n / branches)."""
    starts = np.arange(0, level.shape[1], _BRANCHES)
    return np.add.reduceat(level, starts, axis=1)


def _descend(level, features, places, rng):
    """Draw children of nodes in proportion to their sums."""
    children = places[:, None] * _BRANCHES + np.arange(_BRANCHES)
    is_there = children < level.shape[1]
    at = np.minimum(children, level.shape[1] - 1)
    edges = np.cumsum(np.where(is_there, level[features[:, None], at], 0.0), axis=1)
    points = rng.uniform(size=len(features)) * edges[:, -1]
    # The first edge above the point has weight; the last one guards against rounding.
    child = np.minimum((edges <= points[:, None]).sum(axis=1), is_there.sum(axis=1) - 1)
    return places * _BRANCHES + child
