"""Classification by kernel regression, in time linear in the number of rows."""

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._arrays import is_array_api, like, namespace, rounding_of, to_host
from .._typing import Array, Result
from .base import Classification, in_dtype, probabilities_in
from .kernel_regression import KernelRegression

_LOG_OF_ZERO = -746.0  # no positive float64 has a logarithm this low
_LOST, _LOST_SINGLE = -550.0, -60.0  # logs of smaller shares have lost digits


class KernelRegressionClassifier(Classification, KernelRegression):
    """Nadaraya-Watson classifier on random features, linear in the number of rows.

    The score of a class is the sum of the kernel between the query and the rows of the class,
    estimated from features; the model stores n_components x n_classes numbers. With a positive map,
    everything is computed in log space, so no row becomes 0/0 at any sigma.

    The classifier applies its feature map itself, so
    ``make_pipeline(scaler, OptimalPositiveRF(), KernelRegressionClassifier())`` would map the data
    twice. Write ``make_pipeline(scaler, KernelRegressionClassifier(OptimalPositiveRF()))`` instead.

    Parameters
    ----------
    feature_map : transformer or "exact", default=None
        Any scikit-learn transformer: a feature map of this library, Nystroem, a Pipeline, or a
        fitted transformer in a FrozenEstimator. A transformer without ``transform_keys`` is treated
        as symmetric. None is ``ClusterQuantizer(256)``. "exact" uses the Gaussian kernel itself, in
        time quadratic in the number of rows and without `partial_fit`.
    sigma : float, "scale", "median" or None, default=None
        Replaces the map's own sigma. A larger sigma is a narrower kernel. None keeps the map's
        sigma if it was set; otherwise `fit` chooses the sigma that best predicts each row from the
        others, by the mean log probability of the labels, on at most 2,000 rows (all rows with
        "exact"). A map in a Pipeline, and one with the softmax kernel, keep their defaults.
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None keeps it.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    multilabel_ : bool
        Whether y is multilabel, with columns of 0 and 1.
    class_count_ : ndarray of shape (n_classes,)
        Sum of the weights of the training rows of each class, inf if it overflows; the model
        itself is correct for weights of any size.
    feature_map_ : transformer
        The fitted clone of the feature map; absent for "exact".
    sigma_ : float
        The sigma in use, if the map has one.
    prior_share_ : float
        Weight with which the class frequencies are mixed into all probabilities; chosen together
        with sigma, and 0 if sigma is given.
    best_score_ : float
        Mean leave-one-out log probability of the labels; only set if `fit` has chosen sigma.
    n_features_in_ : int
        Number of input features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input features, if X had any.

    Raises
    ------
    ValueError
        By `fit`, if ``sigma`` or ``random_state`` is given and the map has no such parameter, or
        if the data are invalid.

    See Also
    --------
    KernelRegressionClassifierCV : The same, with sigma chosen by cross-validated accuracy.
    ApproxKernelRidgeClassifier : Ridge classification on the same features.
    KernelRegressor : The same for numeric targets.

    Notes
    -----
    X may be a CuPy or torch array: products with features are computed in its library and on its
    device, and results stay there, except labels that are not numbers. Statistics of the rows are
    computed on the host, where the fitted attributes live, so a fitted model can predict for arrays
    of any library. Feature maps from other packages, and Pipelines, run on the host.

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

    def _to_sum(self, y, classes):
        self.multilabel_ = y.ndim == 2
        if self.multilabel_:
            self._columns_of_labels(y, classes)
            values = y.astype(np.float64)
            return values, np.zeros(len(y), dtype=int), values, 1
        groups, target = self._coded(y, classes)
        return target, groups, np.empty((len(y), 0)), len(self.classes_)

    def _outcomes(self, data, _exponent=0):
        """Return for every row whether its prediction is correct."""
        is_right = self.predict(data.X) == data.y
        return (is_right.all(axis=1) if self.multilabel_ else is_right).astype(float)

    def _score_of(self, sums, moments):
        """Return the accuracy of rows, given the sum of weighted outcomes."""
        return sums / moments.weight

    def _score(self, data):
        """Return the result of `score` without repeating its checks."""
        return np.average(self._outcomes(data), weights=data.score_weights)

    def _hold(self, sums):
        self.class_count_, self.prior_share_ = sums.weights.copy(), sums.prior_share
        if self.multilabel_:
            self.class_count_ = sums.weights * sums.targets.mean
        return super()._hold(sums)

    def predict(self, X: Array) -> Result:
        """Return the most probable class; ties go to the first class.

        If y was multilabel, every label is predicted whose share of the rows seen is above a half.

        If no score is positive, which may happen with maps that are not positive, this is the class
        with the largest weighted share of the training set.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to classify.

        Returns
        -------
        array of shape (n_samples,) or (n_samples, n_labels)
            Labels.

        Warns
        -----
        FeatureCollapseWarning
            As in `predict_proba`.
        """
        check_is_fitted(self)
        if self.multilabel_:
            shares = self.predict_proba(X)
            xp = namespace(shares)
            return xp.astype(shares > 0.5 + rounding_of(shares), xp.int64)
        places, _ = self._query(X, self._best)
        return self._labels_at(places)

    def _best(self, sums, block):
        """Return the first class of the largest score, or the most frequent if none is positive."""
        scores, most_frequent = self._scores(sums), int(np.argmax(self._fitted.shares))
        xp = namespace(scores)
        best = xp.argmax(scores, axis=1)
        if is_array_api(scores):
            top = xp.max(scores, axis=1)
        else:  # NumPy takes five times as long for the maxima of short rows
            top = scores[np.arange(len(best)), best]
        are_best = scores >= (top * (1 - rounding_of(block)))[:, None]
        if is_array_api(scores) or np.count_nonzero(are_best) > len(best):  # some rows have ties
            best = xp.argmax(xp.astype(are_best, xp.int8), axis=1)
        return xp.where(top > 0, best, xp.full_like(best, most_frequent))

    def predict_proba(self, X: Array) -> Result:
        """Return the normalised positive parts of the scores, mixed with class frequencies.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to classify.

        Returns
        -------
        array of shape (n_samples, n_classes)
            Probabilities, in float64 for rows of NumPy; the weighted class shares of the training
            set if no score is positive, which may happen with maps that are not positive. If y was
            multilabel, the probability of each label.

        Warns
        -----
        FeatureCollapseWarning
            If all scores of a row are 0, because its features are 0, or because another
            package's features for it are infinite or NaN.
        """
        check_is_fitted(self)
        if self.multilabel_:
            return probabilities_in(*self._query(X, self._means_of()))

        def shares_of(sums, block):
            return self._refined(self._probabilities(sums), block, namespace(sums).exp)

        return probabilities_in(*self._query(X, shares_of))

    def _scores(self, sums):
        """Return the scores of the classes, with their share of the class frequencies."""
        scores, share = sums[:, :, 0], self._fitted.prior_share
        if not share:
            return scores
        xp = namespace(scores)
        scores = xp.clip(scores, 0.0, None)
        total = xp.sum(scores, axis=1, keepdims=True)
        return (1 - share) * scores + share * total * like(self._fitted.shares, scores)

    def _probabilities(self, sums):
        xp = namespace(sums)
        scores = xp.clip(self._scores(sums), 0.0, None)
        total = xp.sum(scores, axis=1, keepdims=True)
        shares = like(self._fitted.shares, scores)
        return xp.where(total > 0, scores / xp.where(total > 0, total, like(1.0, total)), shares)

    def predict_log_proba(self, X: Array) -> Result:
        """Return the logarithms of `predict_proba`, finite for positive maps at every sigma.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to classify.

        Returns
        -------
        array of shape (n_samples, n_classes)
            Log probabilities, in float64 for rows of NumPy; with a map that is not positive, -inf
            where a score is not positive.

        Warns
        -----
        FeatureCollapseWarning
            As in `predict_proba`.
        """
        check_is_fitted(self)
        if self.multilabel_:
            shares = self.predict_proba(X)
            with np.errstate(divide="ignore"):
                return namespace(shares).log(shares)
        return self._as_logs(*self._query(X, self._logs_of))

    def _logs_of(self, sums, block):
        with np.errstate(divide="ignore"):
            logs = namespace(sums).log(self._probabilities(sums))
        return self._refined(logs, block, lambda logs: logs)

    def _as_logs(self, logs, dtype):
        """Return logs that are 0, as in `predict_proba`, where probabilities close to 1 are 1."""
        logs = probabilities_in(logs, dtype)
        xp = namespace(logs)
        return xp.where(xp.exp(logs) == 1, like(0.0, logs), logs)

    def _refined(self, values, block, of_logs):
        """Recompute probabilities, or logs, that are too small for the common scale of their row.

        `of_logs` makes values of logs. NumPy arrays are changed in place.
        """
        if self._fitted.prior_share or not self._fitted.maps[0].is_positive:
            return values
        xp = namespace(values)
        is_double = block.dtype == namespace(block).float64
        is_lost = values < of_logs(like(_LOST if is_double else _LOST_SINGLE, values))
        rows = np.flatnonzero(to_host(xp.any(is_lost, axis=1)))
        if not len(rows):
            return values
        if is_array_api(values):
            return xp.where(is_lost, of_logs(self._fitted.log_shares(block)), values)
        precise = of_logs(self._fitted.log_shares(block[rows]))
        values[rows] = np.where(is_lost[rows], precise, values[rows])
        return values

    def decision_function(self, X: Array) -> Result:
        """Return log probabilities (for two classes, their difference), which are always finite.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to classify.

        Returns
        -------
        array of shape (n_samples, n_classes), or (n_samples,) for two classes
            Confidence; for two classes, positive for ``classes_[1]``. If y was multilabel, twice
            the probability of each label, less 1.
        """
        check_is_fitted(self)
        if self.multilabel_:
            means, dtype = self._query(X, self._means_of())
            return in_dtype(2 * means - 1, dtype)
        # ROC curves and calibration reject -inf; use a value below the row's finite logarithms.
        logs, dtype = self._query(X, self._logs_of)
        logs = self._as_logs(logs, dtype)
        xp = namespace(logs)
        is_zero = xp.isinf(logs)
        lowest = xp.min(xp.where(is_zero, like(0.0, logs), logs), axis=1, keepdims=True)
        logs = xp.where(is_zero, xp.minimum(lowest - 1, like(_LOG_OF_ZERO, logs)), logs)
        return in_dtype(logs[:, 1] - logs[:, 0] if len(self.classes_) == 2 else logs, dtype)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
