"""Kernel regression (Nadaraya-Watson) in time linear in the number of rows.

The estimate at x is a mean of the training targets with weights K(x, x_i). With features it needs
nothing of the training set but one sum of key features a class (or a target): fitting is one pass,
exact under `partial_fit` and independent of order.
"""

import array_api_compat
import numpy as np
import scipy.sparse as sp
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import assert_all_finite, check_array, column_or_1d, gen_batches
from sklearn.utils._param_validation import HasMethods
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    has_fit_parameter,
)

from ._arrays import is_foreign, like, namespace, take, to_host
from ._sums import FeatureSums, lift, log_sum_exp
from ._threads import Scratch, block_rows, map_rows
from ._validation import drop_zero_weights, validate_rows
from .features.base import BaseRandomFeatures
from .features.exponential import OptimalPositiveRF

_BLOCK_ROWS = 1024
_FOREIGN_BLOCK_ROWS = 2**14  # a device wants larger pieces
# Of blocks whose sums are held at a time.
_MERGED_BLOCKS, _HELD_NUMBERS = 64, 2**23
_SAMPLED_ROWS = 64
_ROOM = 46.0  # e^46 is 1e20: half of the range of float32 on the log scale
_LOG_OF_ZERO = -746.0  # no positive float64 has a logarithm this low


class _KeySums:
    """Sums of key features times values, one group of rows at a time, on a log scale.

    Group g holds ``sums[:, g] * exp(top[:, g])``. Positive maps give logarithms, whose largest
    per column and group is `top`; other maps give plain features and `top` stays 0.

    Law: ``add`` and ``merge`` are associative and commutative to rounding.

    Parameters
    ----------
    n_columns, n_groups, n_values : int
        Width of the features, number of groups, number of values of a row.
    is_log : bool
        Whether features come as logarithms.
    """

    def __init__(self, n_columns, n_groups, n_values, is_log):
        self.is_log = is_log
        self.sums = np.zeros((n_columns, n_groups, n_values))
        self.top = np.full((n_columns, n_groups), -np.inf if is_log else 0.0)
        self.weights = np.zeros(n_groups)  # sums of the first values
        self.has_one_scale = is_log  # as far as is known, for all rows of all groups

    def add(self, features, group, values):
        """Add rows of one group: features (n, n_columns), overwritten; values (n, n_values)."""
        self.weights[group] += values[:, 0].sum()
        if features.dtype == np.float32:
            values = values.astype(np.float32)  # products in the type of the rows
        if not self.is_log:
            self.sums[:, group] += features.T @ values
            return
        top = np.maximum(self.top[:, group], features.max(axis=0))
        self.sums[:, group] *= np.exp(self.top[:, group] - top)[:, None]
        features -= top.astype(features.dtype)
        self.sums[:, group] += np.exp(features, out=features).T @ values
        self.top[:, group] = top

    def reference(self):
        """Return one log scale a column that is of the size of every group's mean, or None."""
        if not self.has_one_scale:
            return None
        top, some = self.scale, self.weights > 0
        with np.errstate(divide="ignore"):
            logs = np.log(self.sums[:, some, 0] / self.weights[some]) + self.top[:, some]
        return top if (logs - top[:, None]).min() > -_ROOM / 2 else None

    def add_lowered(self, features, bounds, values, reference):
        """Add rows ordered by group, log features less `reference` and overwritten, in one go.

        Returns
        -------
        bool
            Whether the reference suits the rows: the means of all columns are so far inside the
            range of float32 that what has left it, at either end, does not count.
        """
        own = values.astype(features.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            np.exp(features, out=features)
            for group, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
                if start < stop:
                    self.sums[:, group] = features[start:stop].T @ own[start:stop]
                    self.weights[group] = values[start:stop, 0].sum()
        some = self.weights > 0
        self.top[:, some] = reference[:, None]
        means = self.sums[:, some, 0] / self.weights[some]
        is_inside = means.min() > np.exp(-_ROOM) and means.max() < np.exp(_ROOM)
        return bool(is_inside and np.isfinite(self.sums).all())

    def merge(self, other):
        """Add the sums of other rows."""
        self.weights += other.weights
        self.has_one_scale &= other.has_one_scale
        if np.array_equal(self.top, other.top):
            self.sums += other.sums
            return
        top = np.maximum(self.top, other.top)
        with np.errstate(invalid="ignore"):  # -inf - -inf, where neither has rows
            for sums, low in ((self.sums, self.top), (other.sums, other.top)):
                sums *= np.where(np.isneginf(low), 0.0, np.exp(low - top))[:, :, None]
        self.sums += other.sums
        self.top = top

    @property
    def scale(self):
        """The log scale of every column, (n_columns,), or None."""
        return self.top.max(axis=1) if self.is_log else None

    def relative(self):
        """Return what query features multiply, (n_columns, n_groups * n_values).

        Of positive maps on the one scale of every column, the largest sum of first values 1.
        """
        sums = self.sums
        if self.is_log:
            with np.errstate(invalid="ignore"):
                sums = sums * np.exp(self.top - self.scale[:, None])[:, :, None]
            sums /= sums[:, :, 0].max()
        return sums.reshape(len(sums), -1)

    def query(self, features, relative, room, *, is_level=False):
        """Return sums weighted by query features up to a factor a row, (n, n_groups, n_values).

        Log features of positive maps come raised by `scale`, and the largest term of a row becomes
        1, so that no row is 0/0.

        Parameters
        ----------
        features : ndarray of shape (n, n_columns)
            Query features.
        relative : ndarray
            What `relative` returned.
        room : ndarray
            An array like the features to work in.
        is_level : bool
            Whether to try first to leave the log features as they are. It is good enough where the
            sums of first values come out far inside the range of float32.
        """
        shape = (-1, *self.sums.shape[1:])
        if not self.is_log:
            return (features @ relative).reshape(shape)
        relative = relative.astype(features.dtype)
        if is_level:
            with np.errstate(over="ignore", invalid="ignore"):
                sums = (np.exp(features, out=room) @ relative).reshape(shape)
                totals = sums[:, :, 0].sum(axis=1)
            is_inside = totals.min() > np.exp(-_ROOM / 2) and totals.max() < np.exp(_ROOM / 2)
            if is_inside and np.isfinite(sums).all():
                return sums.astype(np.float64)
        np.subtract(features, features.max(axis=1)[:, None], out=room)
        return (np.exp(room, out=room) @ relative).reshape(shape).astype(np.float64)

    def foreign_query(self, features):
        """Return the same sums for features of another library, in their dtype."""
        raised = like(np.zeros(len(self.top)), features) if self.is_log else None
        flat = lift(features, raised) @ like(self.relative(), features)
        return namespace(flat).reshape(flat, (features.shape[0], *self.sums.shape[1:]))

    def log_query(self, features, group):
        """Return the log of a group's sum of first values for raised log features."""
        with np.errstate(divide="ignore"):
            own = self.top[:, group] - self.scale + np.log(self.sums[:, group, 0])
        if is_foreign(features):
            return log_sum_exp(features + like(own, features))
        return logsumexp(features + own, axis=1)


class _KernelRegression(BaseEstimator):
    """What classifier and regressor share: the feature map and the sums of its key features."""

    _parameter_constraints = {
        "feature_map": [HasMethods(["fit", "transform"]), None],
        "random_state": ["random_state"],
    }

    def __init__(self, feature_map=None, *, sigma=None, random_state=None):
        self.feature_map = feature_map
        self.sigma = sigma
        self.random_state = random_state

    def _make_feature_map(self):
        if self.feature_map is None:
            feature_map = OptimalPositiveRF(sigma="scale")
        elif isinstance(self.feature_map, type):
            raise TypeError(
                f"feature_map={self.feature_map!r} must be an instance with the methods fit and "
                "transform, not a class."
            )
        else:
            feature_map = clone(self.feature_map)
        for name in ("sigma", "random_state"):
            value = getattr(self, name)
            if value is None:
                continue
            if name not in feature_map.get_params():
                raise ValueError(
                    f"{name}={value!r} was given to {type(self).__name__}, but "
                    f"feature_map={feature_map!r} has no parameter {name!r}. Leave {name}=None "
                    "or take a feature map that has it."
                )
            feature_map.set_params(**{name: value})
        return feature_map

    def _fit_map(self, X, y, sample_weight):
        feature_map = self._make_feature_map()
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

    @property
    def _is_own(self):
        return isinstance(self.feature_map_, BaseRandomFeatures)

    def _block_size(self, n_rows):
        return block_rows(n_rows, self.feature_map_.n_components_) if self._is_own else _BLOCK_ROWS

    def _map_rows(self, function, n_rows):
        """Return [function(rows), ...] for blocks of rows, on threads for maps of this library."""
        size = self._block_size(n_rows)
        if self._is_own:
            return map_rows(function, n_rows, size)
        return [function(block) for block in gen_batches(n_rows, size)]

    def _accumulate(self, X, groups, values, n_groups):
        """Add rows to the key sums; blocks are merged in their order."""
        if is_foreign(X):
            for rows in gen_batches(X.shape[0], _FOREIGN_BLOCK_ROWS):
                part = self._foreign_sums(X[rows, :], groups[rows], values[rows], n_groups)
                self._merge(part)
            return
        scratches = Scratch(), Scratch()
        width = self.feature_map_.n_components_ if self._is_own else 1
        # As many sums are held at a time as there are blocks in a batch.
        n_held = _HELD_NUMBERS // (width * n_groups * (values.shape[1] + 1))
        most = min(max(n_held, 4), _MERGED_BLOCKS) * self._block_size(X.shape[0])
        start = 0
        # The first batches are small: they tell the scale of the others, if there is one.
        size = most if hasattr(self, "_key_sums") else _BLOCK_ROWS
        while start < X.shape[0]:
            known = getattr(self, "_key_sums", None)
            own = [part[start : start + size] for part in (X, groups, values)]
            reference = None if known is None else known.reference()

            def sums(rows, own=own, reference=reference):
                own = (part[rows] for part in own)
                return self._block_sums(*own, n_groups, scratches, reference)

            for part in self._map_rows(sums, own[0].shape[0]):
                self._merge(part)
            start, size = start + size, min(8 * size, most)

    def _merge(self, part):
        if hasattr(self, "_key_sums"):
            self._key_sums.merge(part)
        else:
            self._key_sums = part

    def _foreign_sums(self, X, groups, values, n_groups):
        """Return the key sums of another library's rows: products there, their sums on the host."""
        order = np.argsort(groups, kind="stable")
        features, is_log = _foreign_features(self.feature_map_, take(X, order), keys=True)
        total = _KeySums(features.shape[1], n_groups, values.shape[1], is_log)
        total.weights += np.bincount(groups, values[:, 0], n_groups)
        values = like(values[order], features)
        bounds = np.searchsorted(groups[order], np.arange(n_groups + 1))
        for group, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
            if start < stop:
                own = features[start:stop, :], values[start:stop, :]
                part = FeatureSums.before(*own, is_log).add(*own)
                total.sums[:, group] = to_host(part.sums)
                if is_log:
                    total.top[:, group] = to_host(part.top)
        return total

    def _block_sums(self, X, groups, values, n_groups, scratches, reference):
        """Return the key sums of a block, whose rows are ordered by group to be slices."""
        order = np.argsort(groups, kind="stable")
        X, groups, values = X[order], groups[order], values[order]
        bounds = np.searchsorted(groups, np.arange(n_groups + 1))
        if reference is not None:
            features, _ = _features(self.feature_map_, X, scratches, keys=True, lower=reference)
            total = _KeySums(features.shape[1], n_groups, values.shape[1], is_log=True)
            if total.add_lowered(features, bounds, values, reference):
                return total
        features, is_log = _features(self.feature_map_, X, scratches, keys=True)
        total = _KeySums(features.shape[1], n_groups, values.shape[1], is_log)
        total.has_one_scale &= reference is None
        for group, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
            if start < stop:
                total.add(features[start:stop], group, values[start:stop])
        return total

    def _query(self, X, function):
        """Return function(features, sums) of the rows of X, in blocks put together."""
        check_is_fitted(self)
        X = validate_rows(self, X, reset=False)
        scale = self._key_sums.scale
        lower = None if scale is None else -scale
        if is_foreign(X):
            parts = []
            for rows in gen_batches(X.shape[0], _FOREIGN_BLOCK_ROWS):
                features, _ = _foreign_features(self.feature_map_, X[rows, :], keys=False)
                if lower is not None:
                    features = features - like(lower, features)
                parts.append(function(features, self._key_sums.foreign_query(features)))
            return namespace(X).concat(parts, axis=0)
        scratches, own = (Scratch(), Scratch()), Scratch()
        relative, is_level = self._key_sums.relative(), False

        def features_of(rows):
            return _features(self.feature_map_, X[rows], scratches, keys=False, lower=lower)[0]

        if lower is not None and X.shape[0] > _BLOCK_ROWS:
            # A few rows tell whether the largest terms of most are near 1 as they are.
            some = slice(None, None, max(1, X.shape[0] // _SAMPLED_ROWS))
            # In one block, which holds BLAS to one thread: its others would spin on afterwards.
            [tops] = self._map_rows(lambda _: features_of(some).max(axis=1), 1)
            is_level = np.abs(tops).max() < _ROOM / 2

        def answer(rows):
            features = features_of(rows)
            room = own(features.shape, features.dtype)
            sums = self._key_sums.query(features, relative, room, is_level=is_level)
            return function(features, sums)

        return np.concatenate(self._map_rows(answer, X.shape[0]))

    def __sklearn_is_fitted__(self):
        return hasattr(self, "_key_sums")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _features(feature_map, X, scratches, *, keys, lower=None):
    """Return (features, whether they are logarithms) of a fitted transformer.

    Mechanisms of this library give logarithms where they are positive, also behind a
    FrozenEstimator or at the end of a Pipeline; other transformers count as symmetric. What comes
    may lie in the first of the two `_threads.Scratch`, and the second has been written to.
    Logarithms come less `lower`, a number a column.
    """
    if isinstance(feature_map, FrozenEstimator):
        return _features(feature_map.estimator, X, scratches, keys=keys, lower=lower)
    if isinstance(feature_map, Pipeline):
        *steps, last = (step for _, step in feature_map.steps)
        for step in steps:
            X = X if _is_identity(step) else step.transform(X)
        if _is_identity(last):
            return _as_array(X), False
        last = last.estimator if isinstance(last, FrozenEstimator) else last
        if isinstance(last, BaseRandomFeatures):
            # Private paths want floats: a step may have made whole numbers or a table.
            X = validate_rows(last, X, reset=False)
        return _features(last, X, scratches, keys=keys, lower=lower)
    if isinstance(feature_map, BaseRandomFeatures):
        features = scratches[0]((X.shape[0], feature_map.n_components_), X.dtype)
        if feature_map.is_positive:
            feature_map._log_features_into(X, features, scratches[1], keys=keys, lower=lower)
        else:
            feature_map._features_into(X, features, scratches[1], keys=keys)
        return features, feature_map.is_positive
    if keys and hasattr(feature_map, "transform_keys"):
        return _as_array(feature_map.transform_keys(X)), False
    return _as_array(feature_map.transform(X)), False


def _foreign_features(feature_map, X, *, keys):
    """Return (features, whether they are logarithms) in the library of X.

    Pipelines and transformers of other packages work on the host.
    """
    if isinstance(feature_map, FrozenEstimator):
        return _foreign_features(feature_map.estimator, X, keys=keys)
    if not isinstance(feature_map, BaseRandomFeatures):
        scratches = Scratch(), Scratch()
        features, is_log = _features(feature_map, to_host(X), scratches, keys=keys)
        return like(features, X), is_log
    if feature_map.is_positive:
        return feature_map._log_features(X, keys=keys), True
    return feature_map._features(X, keys=keys), False


def _is_identity(step):
    return step is None or isinstance(step, str)


def _as_array(values):
    return values.toarray() if sp.issparse(values) else np.asarray(values)


class KernelRegressionClassifier(ClassifierMixin, _KernelRegression):
    """Nadaraya-Watson classifier on random features, linear in the number of rows.

    The score of a class is the sum of the kernel between the query and the rows of the class,
    estimated by features; the model holds n_components x n_classes numbers. With a positive map
    everything is computed in log space, so no row is 0/0 at any sigma.

    The classifier applies its feature map itself: in
    ``make_pipeline(scaler, OptimalPositiveRF(), KernelRegressionClassifier())`` the data would be
    mapped twice. Write ``make_pipeline(scaler, KernelRegressionClassifier(OptimalPositiveRF()))``.

    Parameters
    ----------
    feature_map : transformer, default=None
        Any scikit-learn transformer; a mechanism of this library, Nystroem, a Pipeline, or a
        fitted one as FrozenEstimator. One without ``transform_keys`` counts as symmetric. None
        is ``OptimalPositiveRF(sigma="scale")``.
    sigma : float, "scale", "median" or None, default=None
        Replaces the map's own sigma; None leaves it. A larger sigma is a narrower kernel.
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None leaves it.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    class_weight_ : ndarray of shape (n_classes,)
        Sum of the weights of the training rows of each class.
    feature_map_ : transformer
        The fitted clone of the feature map.
    n_features_in_ : int
        Number of input features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input features, where X had any.

    Raises
    ------
    ValueError
        By `fit`, where ``sigma`` or ``random_state`` is given and the map has no such parameter,
        or where the data are not allowed.

    Notes
    -----
    X may be an array of CuPy or torch: products with features stay in its library and on its
    device, and so do results, but for labels that are no numbers. Statistics of the rows are
    taken on the host, and there the fitted attributes live: the model predicts for any library.
    Feature maps of other packages, and Pipelines, work on the host.

    References
    ----------
    Nadaraya (1964), Watson (1964); with random features as in Likhosherstov et al., Chefs'
    random tables (2022), section 5.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skrf import KernelRegressionClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = KernelRegressionClassifier(sigma=1.0, random_state=1).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    def fit(self, X, y, sample_weight=None):
        """Fit the feature map and sum the key features of each class.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training rows.
        y : array-like of shape (n_samples,)
            Class labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, at least 0; a row of weight 0 counts as removed.

        Returns
        -------
        self : object
            The fitted classifier.
        """
        self._forget()
        return self._add(X, y, None, sample_weight)

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        """Add a batch; the first batch alone sets the feature map's statistics.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            A batch of training rows.
        y : array-like of shape (n_samples,)
            Their labels.
        classes : array-like of shape (n_classes,), default=None
            All labels that will ever come; needed in the first call only.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, at least 0.

        Returns
        -------
        self : object
            The classifier with the batch added.

        Raises
        ------
        ValueError
            Where the first call lacks ``classes``, a later one gives others, or a label is none
            of them.
        """
        first, classes = not hasattr(self, "_key_sums"), to_host(classes)
        if first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit, got None.")
        if classes is not None and len(classes) == 0:
            raise ValueError(f"classes must hold all labels that will ever come, got {classes!r}.")
        if (
            not first
            and classes is not None
            and not np.array_equal(np.unique(classes), self.classes_)
        ):
            raise ValueError(
                f"classes={np.unique(classes)!r} is not the same as on the first call to "
                f"partial_fit, which was {self.classes_!r}."
            )
        return self._add(X, y, self.classes_ if not first else np.unique(classes), sample_weight)

    def _forget(self):
        for name in ("_key_sums", "class_weight_"):
            self.__dict__.pop(name, None)

    def _add(self, X, y, classes, sample_weight):
        self._validate_params()
        first = not hasattr(self, "_key_sums")
        X = validate_rows(self, X, reset=first)
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        y = column_or_1d(to_host(y), warn=True)
        assert_all_finite(y, input_name="y")
        check_consistent_length(X, y)
        if classes is None or y.dtype.kind in "fO":  # of others it is asked below which they are
            check_classification_targets(y)
        sample_weight, X, y = drop_zero_weights(sample_weight, X, y)
        classes = np.unique(y) if classes is None else classes
        groups = np.searchsorted(classes, y)
        is_unknown = classes[np.minimum(groups, len(classes) - 1)] != y
        if is_unknown.any():
            unknown = np.unique(y[is_unknown])
            raise ValueError(f"y contains labels {unknown!r} that are not in classes={classes!r}.")
        weights = np.ones(len(y)) if sample_weight is None else sample_weight
        if first:
            self.classes_ = classes
            self.class_weight_ = np.zeros(len(classes))
            # Floats that are labels: a map could take them for targets.
            self._fit_map(X, groups if y.dtype.kind == "f" else y, sample_weight)
        self._accumulate(X, groups, weights[:, None], len(classes))
        self.class_weight_ = self.class_weight_ + np.bincount(groups, weights, len(classes))
        return self

    def _from_scores(self, X, function):
        """Return function(features, scores) of rows; scores carry a positive factor for each."""
        return self._query(X, lambda features, sums: function(features, sums[:, :, 0]))

    def predict(self, X):
        """Return the class of the largest score; ties go to the first class.

        A class without training rows is never returned, though its score, 0, may be the largest.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to classify.

        Returns
        -------
        array of shape (n_samples,)
            Labels.
        """
        check_is_fitted(self)

        def best_of(_, scores):
            xp = namespace(scores)
            is_present = like(self.class_weight_ > 0, scores) > 0
            return xp.argmax(xp.where(is_present, scores, like(-np.inf, scores)), axis=1)

        best = self._from_scores(X, best_of)
        if is_foreign(best) and self.classes_.dtype.kind in "biuf":
            place = {"device": array_api_compat.device(best)}
            return namespace(best).asarray(self.classes_[to_host(best)], **place)
        return self.classes_[to_host(best)]

    def score(self, X, y, sample_weight=None):
        """Return the accuracy of `predict`, computed on the host.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,)
            Their true labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights.

        Returns
        -------
        float
            The accuracy.
        """
        from sklearn.metrics import accuracy_score  # megabytes that only this needs

        predicted, y, weights = (to_host(part) for part in (self.predict(X), y, sample_weight))
        return accuracy_score(y, predicted, sample_weight=weights)

    def predict_proba(self, X):
        """Return the shares of the positive parts of the scores.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to classify.

        Returns
        -------
        array of shape (n_samples, n_classes)
            Probabilities; the weighted class shares of the training set where no score is
            positive, which happens with maps that are not positive.
        """
        return self._from_scores(X, lambda _, scores: self._probabilities(scores))

    def _probabilities(self, scores):
        xp = namespace(scores)
        scores = xp.clip(scores, 0.0, None)
        total = xp.sum(scores, axis=1, keepdims=True)
        shares = like(self.class_weight_ / self.class_weight_.sum(), scores)
        return xp.where(total > 0, scores / xp.where(total > 0, total, like(1.0, total)), shares)

    def predict_log_proba(self, X):
        """Return the logarithms of `predict_proba`, finite for positive maps at every sigma.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to classify.

        Returns
        -------
        array of shape (n_samples, n_classes)
            Log probabilities; with a map that is not positive, -inf where a score is not.
        """

        def logs_of(features, scores):
            with np.errstate(divide="ignore"):
                logs = namespace(scores).log(self._probabilities(scores))
            return self._refined(logs, features) if self._key_sums.is_log else logs

        return self._from_scores(X, logs_of)

    def _refined(self, logs, features):
        """Return logs without those of probabilities too small for the common scale of their row.

        NumPy's are replaced in place.
        """
        xp = namespace(logs)
        is_zero = xp.isinf(logs)
        rows = np.flatnonzero(to_host(xp.any(is_zero, axis=1)))
        if not len(rows):
            return logs
        if is_foreign(logs):
            exact = self._exact_logs(features)
            return xp.where(is_zero, exact - log_sum_exp(exact)[:, None], logs)
        exact = self._exact_logs(features[rows])
        exact -= np.logaddexp.reduce(exact, axis=1, keepdims=True)
        logs[rows] = np.where(is_zero[rows], exact, logs[rows])
        return logs

    def _exact_logs(self, features):
        """Return the logarithms of the scores, each class on a scale of its own."""
        groups = range(len(self.classes_))
        logs = [self._key_sums.log_query(features, group) for group in groups]
        return namespace(features).stack(logs, axis=1)

    def decision_function(self, X):
        """Return log probabilities (for two classes their difference), always finite.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to classify.

        Returns
        -------
        array of shape (n_samples, n_classes), or (n_samples,) for two classes
            Confidence; for two classes, positive for ``classes_[1]``.
        """
        # ROC curves and calibration refuse -inf: it becomes less than the row's finite logarithms.
        logs = self.predict_log_proba(X)
        xp = namespace(logs)
        is_zero = xp.isinf(logs)
        lowest = xp.min(xp.where(is_zero, like(0.0, logs), logs), axis=1, keepdims=True)
        logs = xp.where(is_zero, xp.minimum(lowest - 1, like(_LOG_OF_ZERO, logs)), logs)
        return logs[:, 1] - logs[:, 0] if len(self.classes_) == 2 else logs


class KernelRegressor(RegressorMixin, _KernelRegression):
    """Nadaraya-Watson regression on random features, linear in the number of rows.

    The prediction is the mean of the training targets weighted by the kernel, estimated by
    features. With a positive map it is a true weighted mean, computed in log space; with other
    maps it is clipped to the range of the training targets, which contains every weighted mean,
    and is the plain mean of the targets where the estimated weights do not have a positive sum.

    Parameters
    ----------
    feature_map : transformer, default=None
        As in `KernelRegressionClassifier`; None is ``OptimalPositiveRF(sigma="scale")``.
    sigma : float, "scale", "median" or None, default=None
        Replaces the map's own sigma; None leaves it. A larger sigma is a narrower kernel.
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None leaves it.

    Attributes
    ----------
    feature_map_ : transformer
        The fitted clone of the feature map.
    target_mean_ : ndarray of shape (n_outputs,)
        Weighted mean of the training targets.
    n_features_in_ : int
        Number of input features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input features, where X had any.

    Raises
    ------
    ValueError
        By `fit`, where ``sigma`` or ``random_state`` is given and the map has no such parameter,
        or where the data are not allowed.

    Notes
    -----
    X may be an array of CuPy or torch: products with features stay in its library and on its
    device, and so do results. Statistics of the rows are taken on the host, and there the fitted
    attributes live: the model predicts for any library. Feature maps of other packages, and
    Pipelines, work on the host.

    References
    ----------
    Nadaraya (1964), Watson (1964).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import KernelRegressor
    >>> X = np.linspace(0, 1, 200)[:, None]
    >>> y = np.sin(6 * X[:, 0])
    >>> model = KernelRegressor(sigma=20.0, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    def fit(self, X, y, sample_weight=None):
        """Fit the feature map and sum the key features times the targets.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, at least 0; a row of weight 0 counts as removed.

        Returns
        -------
        self : object
            The fitted regressor.
        """
        self.__dict__.pop("_key_sums", None)
        return self.partial_fit(X, y, sample_weight)

    def partial_fit(self, X, y, sample_weight=None):
        """Add a batch; the first batch alone sets the feature map's statistics.

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
            Where y has not as many outputs as in the first call.
        """
        self._validate_params()
        first = not hasattr(self, "_key_sums")
        X = validate_rows(self, X, reset=first)
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        y = check_array(to_host(y), ensure_2d=False, dtype=np.float64, input_name="y")
        check_consistent_length(X, y)
        shape, y = y.shape[1:], y.reshape(len(y), -1)
        if not first and shape != self._target_shape:
            raise ValueError(
                f"y has {shape or (1,)} outputs, but the first batch had "
                f"{self._target_shape or (1,)}."
            )
        sample_weight, X, y = drop_zero_weights(sample_weight, X, y)
        weights = np.ones(len(y)) if sample_weight is None else sample_weight
        total, mean = weights.sum(), np.average(y, axis=0, weights=weights)
        low, high = y.min(axis=0), y.max(axis=0)
        if first:
            self._target_shape = shape
            self._fit_map(X, y if shape else y[:, 0], sample_weight)
            self._weight, self.target_mean_, self._range = total, mean, (low, high)
            # Sums are of targets of about 1, so that they stay inside the range of float32.
            largest = np.maximum(np.abs(low), np.abs(high))
            self._unit = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1.0))))
        else:
            self._weight += total
            step = (mean - self.target_mean_) * (total / self._weight)
            self.target_mean_ = self.target_mean_ + step
            self._range = np.minimum(self._range[0], low), np.maximum(self._range[1], high)
        values = weights[:, None] * np.column_stack([np.ones(len(y)), y / self._unit])
        self._accumulate(X, np.zeros(len(y), dtype=int), values, 1)
        return self

    def predict(self, X):
        """Return the weighted means of the training targets.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        array of shape (n_samples,) or (n_samples, n_outputs)
            Predictions.
        """

        def means_of(features, sums):
            weight, weighted = sums[:, 0, :1], sums[:, 0, 1:]
            xp = namespace(sums)
            means = weighted / xp.where(weight > 0, weight, like(1.0, weight))
            means = means * like(self._unit, means)
            means = xp.clip(means, *(like(end, means) for end in self._range))
            return xp.where(weight > 0, means, like(self.target_mean_, means))

        means = self._query(X, means_of)
        return namespace(means).reshape(means, (means.shape[0], *self._target_shape))

    def score(self, X, y, sample_weight=None):
        """Return the coefficient of determination of `predict`, computed on the host.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their true targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights.

        Returns
        -------
        float
            The coefficient.
        """
        from sklearn.metrics import r2_score  # megabytes that only this needs

        predicted, y, weights = (to_host(part) for part in (self.predict(X), y, sample_weight))
        return r2_score(y, predicted, sample_weight=weights)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        tags.regressor_tags.poor_score = True
        return tags
