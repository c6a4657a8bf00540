"""What all estimators on sums have in common: they read rows, add, merge, finish, and answer.

An estimator has a fit, `_fitted`: `KeySums` of kernel regression, or `RidgeSums`. Both hold the
feature maps and are immutable; they begin without rows, and have ``added(data)`` and
``merge(other)``. Fits, batches and searches need no more.
"""

import warnings
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from numbers import Number, Real
from operator import methodcaller
from typing import Self

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin, is_classifier
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted

from .._arrays import (
    LARGEST,
    cast,
    constant,
    in_library_of,
    is_array_api,
    namespace,
    rows_at_once,
    to_host,
)
from .._batches import NO_ROWS, Pass, TakesBatches
from .._estimator import GAMMA, EstimatorBase, Unless
from .._threads import block_rows, map_rows, rows_of_call, serial_blas
from .._typing import Array
from .._validation import (
    HasMethods,
    Interval,
    StrOptions,
    as_numpy,
    check_classes,
    check_indicators,
    check_labels,
    check_targets,
    check_unchanged,
    commit,
    draft_of,
    drop_zero_weights,
    naming,
    same,
    validate_rows,
)
from .._warnings import note_names, once
from ..features import as_feature_map, check_columns, difference, lacks_rows, last_step, prepared
from ..features._batch_summary import BatchSummary, scope_of
from .data import Data, Targets, check_class_weight, class_factors, is_multilabel, sorted_classes

SIGMA = Interval(Real, 0, LARGEST, closed="right")
CLASS_WEIGHT = [dict, StrOptions({"balanced"}), None]
BLOCK_ROWS = 1024
_TORCH_ROWS = 2**14  # of a block: other libraries use threads inside an operation
# Scores count as equal within this share of what the best one lacks, and within their rounding.
_EQUAL, ROUNDING = 1e-4, 1e-13
_FEW_ROWS = 32  # fewer rows than these say too little of the scale of the data


# ---------------------------------------------------------------- maps and blocks of rows


def maps_of(transformer):
    """Return the maps of queries and keys of a fitted transformer."""
    return tuple(as_feature_map(transformer, keys=keys) for keys in (False, True))


def blocks_of(feature_map, X):
    """Return the size of a block of rows, and a `map` over blocks, threaded where allowed."""
    n_columns = feature_map.n_columns
    if is_array_api(X):
        size = _TORCH_ROWS if n_columns is None else rows_at_once(X, n_columns, _TORCH_ROWS)
        return size, _map_in_turn
    if not feature_map.is_parallel:
        return BLOCK_ROWS, _map_in_turn
    size = block_rows(X.shape[0], n_columns, X.shape[1])
    return size, map_rows


def beside_threads(feature_map):
    """Limit BLAS to one thread if features of a map come from our threads."""
    is_feature_map = hasattr(feature_map, "_learns_from")
    is_parallel = is_feature_map or getattr(feature_map, "is_parallel", False)
    return serial_blas() if is_parallel else nullcontext()


def _map_in_turn(function, n_rows, size, start=0):
    # Maps of other packages may hold ours, and warn in every block.
    with rows_of_call(n_rows), once():
        return [function(slice(a, min(a + size, n_rows))) for a in range(start, n_rows, size)]


# ---------------------------------------------------------------- fits


class KernelEstimator(TakesBatches, EstimatorBase):
    """Base of the estimators on sums of features.

    All of them share one template of a fit::

        draft, data = self._read(X, y, sample_weight)  # _validate_y, _encode_y, _weighted_by_class
        before = draft._fit_map(data)  # sets feature_map_, and returns a fit to no rows
        draft._finish(before.added(data))  # solves, and sets what is public
        commit(self, draft)

    `partial_fit` leaves out `_fit_map` after the first batch, `merge` finishes the merged fit of
    two estimators, and `fit_batches` does each step in a pass of its own. A subclass defines the
    steps that are named here, and `_bytes_of_sums`.
    """

    _foreign_parameters = GAMMA
    _parameter_constraints = {
        "feature_map": [HasMethods(["fit", "transform"]), StrOptions({"exact"}), None],
        "random_state": ["random_state"],
    }
    _fitted = None

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
        return self._fit_rows(X, y, sample_weight, forget=True)

    def _prepared(self, sigma=None, hint=None, default=None):
        """Return an unfitted copy of the map."""
        feature_map, owner = self.feature_map, type(self).__name__
        if feature_map is None or isinstance(feature_map, str):
            feature_map = default or self._default_map
        feature_map = prepared(feature_map, owner=owner, sigma=sigma, hint=hint)
        return prepared(feature_map, owner=owner, random_state=self.random_state)

    def _leaves_sigma_open(self, feature_map):
        """Return whether a fit chooses sigma, given the prepared map."""
        return False

    def _check_size(self, feature_map, data, n_sums=2):
        """Raise, before a map is drawn, if sums of its features cannot be held at once."""

        def n_bytes(n_columns):
            return n_sums * self._bytes_of_sums(n_columns, data)

        check_columns(feature_map, data.X.shape[0], n_bytes, f"the sums of {type(self).__name__}")
        return feature_map

    def _fit_rows(self, X, y, sample_weight, *, forget, classes=None):
        draft, data = self._read(X, y, sample_weight, forget=forget, classes=classes)
        if not len(data.y):  # a batch of classes without weight, which are known from now on
            return commit(self, draft)
        with once():
            note_names(draft)
            before = draft._fitted
            is_first_batch = before is None and not forget
            if before is None:
                before = draft._fit_map(data, is_first_batch=is_first_batch)
            draft._finish(before.added(data))
            if forget:
                draft._check_fit(data)
            if is_first_batch:
                draft._check_first_batch(len(data.y))
        return commit(self, draft)

    def _check_fit(self, data):
        """Warn if a fit to all rows is to be doubted."""

    def _check_first_batch(self, n_rows):
        """Warn if the first batch, which sets the map for good, has too few rows for it."""
        unfitted, transformer = last_step(self.feature_map), last_step(self.feature_map_)
        if isinstance(unfitted, FrozenEstimator):
            return
        sigmas = self.sigma, getattr(unfitted, "sigma", None)
        if lacks_rows(transformer, n_rows):
            purpose = (
                f"the {transformer.n_components} components of {type(transformer).__name__}, "
                "which are placed near rows"
            )
        elif (
            n_rows < _FEW_ROWS
            and hasattr(transformer, "sigma_")
            and not any(isinstance(sigma, Number) for sigma in sigmas)
        ):
            purpose = "sigma, which is learned from them"
        else:
            return
        warnings.warn(
            f"partial_fit fits the feature map to the first batch alone, and {n_rows} "
            f"{'row is' if n_rows == 1 else 'rows are'} too few for {purpose}. Use fit_batches, or "
            "begin with a larger batch.",
            UserWarning,
            stacklevel=4,
        )

    def _read(self, X, y, sample_weight=None, *, forget=True, classes=None):
        """Return a draft to fit, and the validated rows with all their weights."""
        draft, data = self._read_rows(X, y, sample_weight, forget=forget, classes=classes)
        draft._check_class_weight()
        data = draft._weighted_by_class(data, is_batch=classes is not None)
        if forget and not len(data.y):
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
        y = draft._validate_y(X, y, classes)
        weights, X, y, numbers = drop_zero_weights(sample_weight, X, y, np.arange(len(y)))
        return draft, Data(X, y, weights, numbers, *draft._encode_y(y, classes))

    def _finish(self, fitted):
        """Solve for all rows that are summed, set what is public, and return this draft."""
        self._fitted = fitted
        return self

    # ------------------------------------------------------------ batches

    def _passes(self, classes, scope):
        """Return the passes of a fit to batches, as `skrf._batches.run_passes` takes them.

        The first surveys the batches, `_planned` fits a map to what was found, and the last one
        sums features. An engine only calls what each pass does with a batch, and merges.
        """
        self._validate_params()
        if isinstance(self.feature_map, str) or getattr(self, "max_leaf_size", None) is not None:
            raise ValueError(self._obstacle_to_batches())  # it keeps all rows
        feature_map = self._prepared(None if self.sigma == "evidence" else self.sigma)
        is_searched = self._leaves_sigma_open(feature_map)
        is_told = is_classifier(self) and classes is not None
        classes = sorted_classes(classes) if is_told else None
        seed = getattr(feature_map, "random_state", self.random_state)
        scope = scope_of(feature_map, scope, seed, needs_rows=is_searched)
        is_fitted = isinstance(feature_map, FrozenEstimator) and not is_searched
        survey = partial(self._survey, scope, classes)
        if is_fitted and not (is_classifier(self) and classes is None):
            survey_and_sum = partial(self._survey_and_sum, survey)
            summary, sums = yield Pass("sums", survey_and_sum, is_last=True)
            draft = self._planned(summary)
        else:
            summary = yield Pass("statistics", survey)
            draft = self._planned(summary)
            sums = yield Pass("sums", draft._sum_of_batch, is_last=True)
        # Only arrays were sent.
        return draft._finish(replace(sums, params=draft._fitted.params, maps=draft._fitted.maps))

    def _survey(self, scope, classes, X, y, weights, number):
        """Return the `BatchSummary` of a batch."""
        is_new = classes is None and is_classifier(self) and y is not None and not is_multilabel(y)
        # With given classes, a batch of few rows may well have a class per row.
        names = np.unique(check_labels("y", y)) if is_new else classes
        draft, data = self._read_rows(X, y, weights, classes=names)
        # Those of rows without weight do not count, but those without a weight of their class do.
        names_of_weight = np.unique(data.y) if is_new else None
        data = draft._weighted_by_class(data, is_batch=True)
        if is_new:
            draft.classes_ = names_of_weight
        if not len(data.y):
            return BatchSummary(scope, classes=getattr(draft, "classes_", None))
        rows = data.X, data.y, data.sample_weight
        return BatchSummary.of(draft, rows, number, data.numbers, scope)

    def _planned(self, summary):
        """Return a draft with a fitted map and empty sums."""
        sample = summary.sample
        if sample is None:
            raise ValueError(NO_ROWS)
        # Their weights are already those of their classes.
        draft, data = self._read_rows(sample.X, sample.y, sample.weights, classes=summary.classes)
        draft._check_class_weight()
        if summary.names is not None:
            draft.feature_names_in_ = summary.names
        draft._fitted = draft._fit_map(replace(data, statistics=summary.statistics))
        return draft

    def _sum_of_batch(self, X, y, weights, _number):
        """Return the sums of a batch under this draft, None if its classes have no weight."""
        classes = getattr(self, "classes_", None)
        draft, data = self._read_rows(X, y, weights, forget=False, classes=classes)
        data = draft._weighted_by_class(data, is_batch=True)
        if not len(data.y):
            return None
        return replace(draft._fitted.added(data), params=None, maps=None)

    def _survey_and_sum(self, survey, *batch):
        summary = survey(*batch)
        sums = None if summary.sample is None else self._planned(summary)._sum_of_batch(*batch)
        return summary, sums

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
            If parameters, columns, classes, targets or maps differ; the message says which.
        """
        check_is_fitted(self)
        if type(other) is not type(self):
            raise TypeError(f"other must be a {type(self).__name__}, got {other!r:.60}.")
        check_is_fitted(other)
        for model in (self, other):
            check_unchanged(model, model._fitted.params, "merge takes models as they were fitted")
        obstacle = next(self._differences(other), None)
        if obstacle is not None:
            raise ValueError(f"{type(self).__name__} cannot merge with other: {obstacle}.")
        return draft_of(self, forget=False)._finish(self._fitted.merge(other._fitted))

    def _differences(self, other):
        """Yield what keeps two fitted estimators from being merged."""
        params = [dict(model._fitted.params) for model in (self, other)]
        for name in params[0]:
            value, other_value = (values.get(name) for values in params)
            is_of_map = name.startswith("feature_map") or name in ("sigma", "random_state")
            is_equal = isinstance(value, Number) and value == other_value
            is_same = is_equal or same(value, other_value)
            if not (is_of_map or is_same):
                yield f"parameter {name}={value!r} against {other_value!r}"
        for name in ("n_features_in_", "feature_names_in_", "classes_", "_outputs"):
            value, other_value = (getattr(model, name, None) for model in (self, other))
            if not (same(value, other_value) or np.array_equal(value, other_value)):
                hint = ": fit parts that may lack a class by partial_fit(X, y, classes=...)"
                hint = hint if name == "classes_" else ""
                yield f"{name.strip('_')}={value!r} against {other_value!r}{hint}"
        part = difference(self.feature_map_, other.feature_map_)
        if part is not None:
            yield f"the feature maps differ in {part}"

    def __sklearn_is_fitted__(self):
        return self._fitted is not None

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


# ---------------------------------------------------------------- answers


def in_dtype(values, dtype):
    """Return values in the dtype of the rows; probabilities may vanish there."""
    with np.errstate(over="ignore"):
        return cast(values, dtype)


def probabilities_in(values, dtype):
    """Return probabilities, or their logarithms, in the dtype of the rows; NumPy's in float64.

    In float32, probabilities below 1e-45 are 0, and their logarithms are not: two answers about the
    same rows that contradict each other.
    """
    return in_dtype(values, dtype if is_array_api(values) else np.float64)


def predictions_in(values, dtype):
    """Return predictions of targets, (n, T), in the dtype of the rows; warn if it cannot."""
    predictions = in_dtype(values, dtype)
    if predictions.dtype != values.dtype:
        xp = namespace(values)
        sizes, limits = xp.max(xp.abs(constant(values)), axis=0), xp.finfo(dtype)
        is_beyond = (sizes > limits.max) | ((sizes > 0) & (sizes < limits.smallest_normal))
        if bool(xp.any(is_beyond)):
            warnings.warn(
                "Predictions overflow or vanish in float32, the dtype of X: pass X in float64, or "
                "divide y by a number.",
                RuntimeWarning,
                stacklevel=3,
            )
    return predictions


# ---------------------------------------------------------------- scores


@dataclass(frozen=True)
class Ties:
    """Which scores are as good as the best but for rounding and tiny differences.

    Parameters
    ----------
    ceiling : float or None, default=0.0
        The best possible score, if there is one.
    rounding : float, default=1e-13
        Rounding error of scores, with a margin.
    unit : float, default=1.0
        Scores are in units of its square.
    """

    ceiling: float | None = 0.0
    rounding: float = ROUNDING
    unit: float = 1.0

    def __call__(self, scores):
        """Return a mask of the scores."""
        best = scores.max()
        lack = abs(best) / 100 if self.ceiling is None else abs(self.ceiling - best)
        with np.errstate(over="ignore"):  # if all are as bad as can be
            return scores >= best - _EQUAL * lack - self.rounding


def score(self, X: Array, y: Array, sample_weight: Array | None = None) -> float:
    """Return the coefficient of determination of `predict`, or its accuracy for a classifier.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n_samples, n_features)
        Rows.
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Their true targets or labels.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights.

    Returns
    -------
    float
        The score, computed on the host by scikit-learn.
    """
    from sklearn.metrics import accuracy_score, r2_score  # here because they use megabytes

    measure = accuracy_score if is_classifier(self) else r2_score
    predicted, weights = map(to_host, (self.predict(X), sample_weight))
    return measure(as_numpy("y", y), predicted, sample_weight=weights)


# ---------------------------------------------------------------- labels and targets


class Classification(ClassifierMixin):
    """Labels: how they are read, weighted, and returned."""

    score = score
    class_weight = None  # of classifiers that do not have the parameter

    @partial(Unless, methodcaller("_obstacle_to_batches"))
    def partial_fit(
        self, X: Array, y: Array, classes: Array | None = None, sample_weight: Array | None = None
    ) -> Self:
        """Add a batch; the first one alone sets the feature map's parameters.

        Its rows should resemble those to come. A few hundred are enough for most maps, and four per
        component where components are placed near rows. `fit_batches` learns the map from all rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            A batch of training rows.
        y : array-like of shape (n_samples,)
            Their labels.
        classes : array-like of shape (n_classes,), default=None
            All labels that will ever occur; required only in the first call.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, at least 0.

        Returns
        -------
        self : object
            The classifier with the batch added.

        Raises
        ------
        ValueError
            If the first call lacks ``classes``, a later call passes different ones, a label is not
            one of them, or a parameter has changed.
        """
        classes = self._classes_of_batch(classes)
        return self._fit_rows(X, y, sample_weight, forget=False, classes=classes)

    def _classes_of_batch(self, classes):
        """Return all classes, which the first batch names and later ones must not change."""
        known = getattr(self, "classes_", None)  # also of a batch of classes without weight
        if known is None and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit, got None.")
        classes = known if classes is None else sorted_classes(classes)
        if not (known is None or np.array_equal(classes, known)):
            raise ValueError(
                f"classes={classes!r} is not the same as on the first call to partial_fit, which "
                f"was {self.classes_!r}."
            )
        return classes

    def _validate_y(self, X, y, classes):
        return check_indicators(X, y) if is_multilabel(y) else check_classes(X, y, classes)

    def _check_class_weight(self):
        if self.class_weight is not None and self.multilabel_:
            raise ValueError(
                "class_weight must be None where y has several labels per row, got "
                f"{self.class_weight!r}."
            )
        check_class_weight(self.class_weight, self.classes_)

    def _weighted_by_class(self, data, *, is_batch):
        if self.class_weight is None:
            return data
        codes = np.searchsorted(self.classes_, data.y)
        factors = class_factors(self.class_weight, self.classes_, codes, data.weights, is_batch)
        with np.errstate(over="ignore"):
            weights = data.weights * factors[codes]
        if not np.isfinite(weights).all():
            raise ValueError(
                "class_weight times sample_weight must be at most the largest float, "
                f"{np.finfo(float).max:.2g}, got class_weight={self.class_weight!r}."
            )
        data = replace(data, sample_weight=weights)
        return data if weights.all() else data.part(np.flatnonzero(weights))

    def _differences(self, other):
        if isinstance(self.class_weight, str):
            yield "class_weight='balanced', which needs the rows of both at once"
        yield from super()._differences(other)

    def _encode_y(self, y, classes):
        """Set the classes, by default those of y; return a map's y, and the `Targets`."""
        self.multilabel_ = y.ndim == 2
        if self.multilabel_:
            self.classes_ = np.arange(y.shape[1])
            if classes is not None and not np.array_equal(classes, self.classes_):
                raise ValueError(
                    f"classes must be the numbers of the columns of y, {self.classes_!r}, got "
                    f"{classes!r}."
                )
            values = self._values_of_labels(y)
            return values, Targets.of_numbers(values)
        with naming("y"):
            classes_of_y = np.unique(y) if classes is None else classes
            codes = np.searchsorted(classes_of_y, y)
            if classes is not None:
                _check_known(y, classes_of_y, codes)
        self.classes_ = classes_of_y
        # Code floats, which a map could mistake for targets.
        map_y = codes if y.dtype.kind == "f" else y
        return map_y, Targets.of_classes(codes, len(self.classes_))

    def _labels_at(self, places):
        """Return labels in the library of their indices, if they are numbers."""
        labels = self.classes_[to_host(places)]
        return in_library_of(labels, places) if labels.dtype.kind in "biuf" else labels

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


def _check_known(y, classes, codes):
    """Raise if labels are not those at their indices."""
    is_unknown = classes[np.minimum(codes, len(classes) - 1)] != y
    if is_unknown.any():
        unknown = np.unique(y[is_unknown])
        raise ValueError(f"y contains labels {unknown!r} that are not in classes={classes!r}.")


class Regression(RegressorMixin):
    """Targets: how they are read."""

    score = score

    @partial(Unless, methodcaller("_obstacle_to_batches"))
    def partial_fit(self, X: Array, y: Array, sample_weight: Array | None = None) -> Self:
        """Add a batch; the first one alone sets the feature map's parameters.

        Its rows should resemble those to come. A few hundred are enough for most maps, and four per
        component where components are placed near rows. `fit_batches` learns the map from all rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            A batch of training rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, at least 0.

        Returns
        -------
        self : object
            The regressor with the batch added.

        Raises
        ------
        ValueError
            If the number of outputs differs from the first call, or a parameter has changed.

        Warns
        -----
        RuntimeWarning
            As in `fit`.
        """
        return self._fit_rows(X, y, sample_weight, forget=False)

    def _validate_y(self, X, y, classes):
        y = check_targets(X, y)
        outputs = None if self._fitted is None else self._outputs  # None before the first batch
        if outputs not in (None, y.shape[1:]):
            raise ValueError(
                f"y has {y.shape[1:] or (1,)} outputs, but the first batch had {outputs or (1,)}."
            )
        return y

    def _encode_y(self, y, classes):
        return y, Targets.of_numbers(y)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        return tags
