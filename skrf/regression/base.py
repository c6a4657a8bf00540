"""What all estimators of this folder have in common: they read rows, add, merge, and finish.

An estimator has a fit, `_fitted`: `KeySums` of kernel regression, or `RidgeSums`. Both hold the
feature maps and are immutable; they are made by ``before``, and have ``added(data)``,
``merge(other)`` and ``emptied``. Fits, batches and searches need no more.
"""

import warnings
from functools import partial
from numbers import Number, Real
from operator import methodcaller
from typing import Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._arrays import LARGEST
from .._batches import TakesBatches
from .._estimator import GAMMA, EstimatorBase, Unless
from .._typing import Array
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
from .._warnings import note_names, once
from ..features import check_columns, difference, lacks_rows, prepared
from .batches import passes
from .data import Data
from .first_rows import FirstRows, enough_for

SIGMA = Interval(Real, 0, LARGEST, closed="right")


class KernelEstimator(TakesBatches, EstimatorBase):
    """Base of the estimators on sums of features.

    A subclass defines `_fit_map(data, is_first_batch)`, which sets ``feature_map_`` and returns
    `_before(maps, data)`, a fit to no rows; `_bytes_of_sums`; `_hold(fitted)`, which sets what is
    public; and, for labels or targets, `_checked` and `_to_sum`.
    """

    _foreign_parameters = GAMMA
    _parameter_constraints = {
        "feature_map": [HasMethods(["fit", "transform"]), StrOptions({"exact"}), None],
        "random_state": ["random_state"],
    }
    _fitted = None
    _first_rows_ = None  # of partial_fit; a fit drops whatever ends like this

    def _obstacle_to_batches(self):
        """Return why there are no sums of rows that could be added up, or None."""
        if isinstance(self.feature_map, str):
            return f"feature_map={self.feature_map!r} keeps all rows and has no sums: call fit."

    def fit(self, X: Array, y: Array, sample_weight: Array | None = None) -> Self:
        """Fit the feature map, and sum its features over the rows in one pass.

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

    def _prepared(self, sigma=None, hint=None, default=None):
        """Return an unfitted copy of the map."""
        feature_map, owner = self.feature_map, type(self).__name__
        if feature_map is None or isinstance(feature_map, str):
            feature_map = default or self._default_map
        feature_map = prepared(feature_map, owner=owner, sigma=sigma, hint=hint)
        return prepared(feature_map, owner=owner, random_state=self.random_state)

    def _default_for(self, data, is_first_batch=False):
        """Return the map that None stands for, given the rows."""
        return self._default_map

    def _leaves_sigma_open(self, feature_map):
        """Return whether a fit chooses sigma, given the prepared map."""
        return False

    def _check_size(self, feature_map, data, n_sums=2):
        """Raise, before a map is drawn, if sums of its features cannot be held at once."""

        def n_bytes(n_columns):
            return n_sums * self._bytes_of_sums(n_columns, data)

        check_columns(feature_map, data.X.shape[0], n_bytes, f"the sums of {type(self).__name__}")
        return feature_map

    def _add(self, X, y, sample_weight, *, forget, classes=None):
        draft, data = self._read(X, y, sample_weight, forget=forget, classes=classes)
        with once():
            note_names(draft)
            before, first = draft._fitted, draft._first_rows_
            if before is None:
                before = draft._fit_map(data, is_first_batch=not forget)
                if not forget:
                    first = FirstRows(enough_for(draft.feature_map_)).added(data)
            elif first is not None:
                first = first.added(data)
                if first.ask_for_a_map:
                    draft, data = draft._anew(*first.together, classes)
                    before = draft._fit_map(data, is_first_batch=True)
            if first is not None:
                draft._keep(first)
            draft._finished(before.added(data))
            if forget:
                draft._check_fit(data)
        return commit(self, draft)

    def _check_fit(self, data):
        """Warn if a fit to all rows is to be doubted."""

    def _anew(self, X, y, weights, classes):
        """Return an unfitted draft for rows that were read before, and these."""
        draft = draft_of(self)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self, name):
                setattr(draft, name, getattr(self, name))
        return draft, Data(X, y, weights, np.arange(len(y)), *draft._to_sum(y, classes))

    def _keep(self, first):
        """Keep the first rows of this draft, or drop them if they suffice for its map."""
        n_rows = first.n_rows
        first = first.mapped if first.ask_for_a_map else first
        if first is not None:
            self._first_rows_ = first.owned
            return
        vars(self).pop("_first_rows_", None)
        if lacks_rows(self.feature_map_, n_rows):
            _warn_of_first_rows(self.feature_map_, n_rows)

    def _read(self, X, y, sample_weight=None, *, forget=True, classes=None):
        """Return a draft to fit, and the validated rows with all their weights."""
        draft, data = self._read_rows(X, y, sample_weight, forget=forget, classes=classes)
        draft._check_class_weight()
        data = draft._weighted_by_class(data, is_batch=classes is not None)
        if not len(data.y):
            raise ValueError(
                "class_weight must be positive for the class of at least one row, got "
                f"{self.class_weight!r}."
            )
        return draft, data

    def _check_class_weight(self):
        """Raise if there are weights for classes that do not exist."""

    def _weighted_by_class(self, data, *, is_batch):
        """Return rows with the weights of their classes; none is left if those are all 0."""
        return data

    def _read_rows(self, X, y, sample_weight=None, *, forget=True, classes=None):
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

    def _finished(self, fitted):
        """Return this draft with its fit to all rows."""
        return self._hold(fitted)

    def _hold(self, fitted):
        self._fitted = fitted
        return self

    def _passes(self, classes, scope):
        self._validate_params()
        return passes(self, classes, scope)

    @partial(Unless, methodcaller("_obstacle_to_batches"))
    def merge(self, other: Self) -> Self:
        """Return a model of the rows of both estimators, which must share the same fitted map.

        Fit a map once, to some rows or with `fit_statistics`, and pass it to both in a
        ``FrozenEstimator``. The order of merges does not matter, up to rounding. If parts may lack
        a class, fit them with ``partial_fit(X, y, classes=...)``.

        Parameters
        ----------
        other : estimator
            A fitted estimator of the same class.

        Returns
        -------
        estimator
            A new estimator; both inputs are unchanged.

        Raises
        ------
        TypeError
            If `other` is of another class.
        ValueError
            If parameters, columns, classes, targets or maps differ; the message says which. Also
            if `partial_fit` still keeps the first rows of one, whose map is not final.
        """
        check_is_fitted(self)
        if type(other) is not type(self):
            raise TypeError(f"other must be a {type(self).__name__}, got {other!r:.60}.")
        check_is_fitted(other)
        for model in (self, other):
            check_unchanged(model, model._fitted.params, "merge takes models as they were fitted")
            first = model._first_rows_
            if first is not None:
                raise ValueError(
                    f"{type(self).__name__} cannot merge: partial_fit still keeps its first rows, "
                    f"got {len(first.known)} distinct ones, to which the feature map will be "
                    f"fitted again: merge after at least {first.enough} distinct rows, or fit."
                )
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

    def __sklearn_is_fitted__(self):
        return self._fitted is not None

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _warn_of_first_rows(feature_map, n_rows):
    """Warn that the first rows, which set the map for good, are too few for it."""
    warnings.warn(
        f"partial_fit fits the feature map to the first rows alone, and these {n_rows} are too few "
        f"for the {feature_map.n_components} components of {type(feature_map).__name__}, which are "
        "placed near rows. Use fit_batches, or begin with a larger batch.",
        UserWarning,
        stacklevel=5,
    )
