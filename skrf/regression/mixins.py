"""What all classifiers have in common, and what all regressors have in common."""

import warnings
from functools import partial
from operator import methodcaller
from typing import Self

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin, is_classifier

from .._arrays import cast, constant, in_library_of, is_array_api, namespace, to_host
from .._estimator import Unless
from .._typing import Array
from .._validation import (
    as_numpy,
    check_classes,
    check_indicators,
    check_labels,
    check_targets,
    naming,
)


def sorted_classes(classes):
    """Return given classes in order, or raise if there are none."""
    labels = check_labels("classes", classes)
    if len(labels) == 0:
        raise ValueError(f"classes must hold all labels that will ever occur, got {classes!r}.")
    with naming("classes"):
        return np.unique(labels)


def _check_known(y, classes, codes):
    """Raise if labels are not those at their indices."""
    is_unknown = classes[np.minimum(codes, len(classes) - 1)] != y
    if is_unknown.any():
        unknown = np.unique(y[is_unknown])
        raise ValueError(f"y contains labels {unknown!r} that are not in classes={classes!r}.")


def is_multilabel(y):
    """Return whether y has a column for each of several labels."""
    with naming("y"):
        shape = np.shape(y) if isinstance(y, (list, tuple)) else getattr(y, "shape", ())
    return len(shape) == 2 and shape[1] > 1


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


class Classification(ClassifierMixin):
    """Labels: how they are read, and returned."""

    score = score

    @partial(Unless, methodcaller("_obstacle_to_batches"))
    def partial_fit(
        self, X: Array, y: Array, classes: Array | None = None, sample_weight: Array | None = None
    ) -> Self:
        """Add a batch; only the first rows set the feature map's parameters.

        The model, and its pickles, keep these rows until 256 of them are distinct (four per
        component, where components are placed near rows), or until there are 4,096 of them or 4
        million numbers. Meanwhile the map is fitted again whenever their number has doubled.

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
        return self._add(X, y, sample_weight, forget=False, classes=classes)

    def _classes_of_batch(self, classes):
        """Return all classes, which the first batch names and later ones must not change."""
        first = self._fitted is None
        if first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit, got None.")
        classes = self.classes_ if classes is None else sorted_classes(classes)
        if not (first or np.array_equal(classes, self.classes_)):
            raise ValueError(
                f"classes={classes!r} is not the same as on the first call to partial_fit, which "
                f"was {self.classes_!r}."
            )
        return classes

    def _checked(self, X, y, classes):
        return check_indicators(X, y) if is_multilabel(y) else check_classes(X, y, classes)

    def _columns_of_labels(self, y, classes):
        """Set the classes of rows of several labels: the numbers of the columns of y."""
        self.classes_ = np.arange(y.shape[1])
        if classes is not None and not np.array_equal(classes, self.classes_):
            raise ValueError(
                f"classes must be the numbers of the columns of y, {self.classes_!r}, got "
                f"{classes!r}."
            )

    def _coded(self, y, classes):
        """Set the classes, by default those of y; return indices of labels, and a map's target."""
        with naming("y"):
            known = np.unique(y) if classes is None else classes
            codes = np.searchsorted(known, y)
            if classes is not None:
                _check_known(y, known, codes)
        self.classes_ = known
        # Code floats, which a map could mistake for targets.
        return codes, codes if y.dtype.kind == "f" else y

    def _labels_at(self, places):
        """Return labels in the library of their indices, if they are numbers."""
        labels = self.classes_[to_host(places)]
        return in_library_of(labels, places) if labels.dtype.kind in "biuf" else labels


class Regression(RegressorMixin):
    """Targets: how they are read."""

    score = score

    @partial(Unless, methodcaller("_obstacle_to_batches"))
    def partial_fit(self, X: Array, y: Array, sample_weight: Array | None = None) -> Self:
        """Add a batch; only the first rows set the feature map's parameters.

        The model, and its pickles, keep these rows until 256 of them are distinct (four per
        component, where components are placed near rows), or until there are 4,096 of them or 4
        million numbers. Meanwhile the map is fitted again whenever their number has doubled.

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
        return self._add(X, y, sample_weight, forget=False)

    def _checked(self, X, y, classes):
        y = check_targets(X, y)
        known = None if self._fitted is None else self._outputs  # None before the first batch
        if known not in (None, y.shape[1:]):
            raise ValueError(
                f"y has {y.shape[1:] or (1,)} outputs, but the first batch had {known or (1,)}."
            )
        return y

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        return tags
