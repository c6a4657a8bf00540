"""Kernel regression on random features, in time linear in the number of rows."""

import warnings
from dataclasses import replace
from typing import Literal

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._arrays import cast, is_array_api, like, namespace, rounding_of, to_host
from .._typing import Array, RandomState, Result, Sigma, Transformer
from .._validation import StrOptions, validate_rows
from ..exceptions import FeatureCollapseWarning
from ..features import ClusterQuantizer, suits_ratios
from .base import (
    CLASS_WEIGHT,
    SIGMA,
    Classification,
    KernelEstimator,
    Regression,
    beside_threads,
    in_dtype,
    maps_of,
    predictions_in,
    probabilities_in,
)
from .key_sums import KeySums, bytes_of_sums
from .leave_one_out import best_exact_sigma, best_sigma
from .rows import ExactMap

_SINGLE_BITS = 100  # sizes of predictions that float32 can represent
_LOG_OF_ZERO = -746.0  # no positive float64 has a logarithm this low
_LOST, _LOST_SINGLE = -550.0, -60.0  # logs of smaller shares have lost digits
_DOUBLE_BITS = 500  # range below an output's largest target that sums can represent


class KernelRegression(KernelEstimator):
    """Base of the estimators that divide sums of features by a sum of features."""

    _default_map = ClusterQuantizer(256)
    _parameter_constraints = {
        **KernelEstimator._parameter_constraints,
        "sigma": [StrOptions({"scale", "median"}), SIGMA, None],
    }

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

    def _leaves_sigma_open(self, feature_map):
        if self.sigma is not None or getattr(feature_map, "kernel", None) == "softmax":
            return False
        return feature_map.get_params(deep=False).get("sigma", 1.0) is None

    def _fit_map(self, data, is_first_batch=False):
        share, score = 0.0, None
        if isinstance(self.feature_map, str):
            if self.sigma is None:
                self.sigma_, share, score = best_exact_sigma(data)
            else:
                self.sigma_ = data.resolved(self.sigma)
            maps = (ExactMap(to_host(data.X).copy(), self.sigma_),) * 2
        else:
            feature_map = self._check_size(self._prepared(sigma=self.sigma), data)
            if not suits_ratios(feature_map):
                raise ValueError(
                    f"feature_map={feature_map!r} does not suit kernel regression, because sums of "
                    "its features may be negative: use ridge regression, or another map."
                )
            if self._leaves_sigma_open(feature_map):
                with beside_threads(feature_map):
                    sigma, share, score = best_sigma(feature_map, data)
                feature_map.set_params(sigma=sigma)
            self.feature_map_ = data.fitted(feature_map)
            if hasattr(self.feature_map_, "sigma_"):
                self.sigma_ = self.feature_map_.sigma_
            maps = maps_of(self.feature_map_)
        if score is not None:
            self.best_score_ = score
        return replace(KeySums.before(self.get_params(), maps, data), prior_share=share)

    def _bytes_of_sums(self, n_columns, data):
        return bytes_of_sums(n_columns, data)

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
        if any(lost):
            warnings.warn(
                "Some rows of X are predicted by the class shares or the mean target alone: the "
                "features of feature_map are 0 there, or beyond the range of floats. Use a "
                "positive map, such as OptimalPositiveRF, or smaller inputs.",
                FeatureCollapseWarning,
                stacklevel=3,
            )
        return answer, X.dtype

    def _means_of(self):
        """Return a function of the sums of a block that returns its means of the targets."""
        targets, exponents = self._fitted.targets, self._fitted.exponents[1:]
        is_double = max(np.abs(exponents).max(), targets.most.max()) > _SINGLE_BITS

        def means_of(sums, _):
            weight, weighted = sums[:, 0, :1], sums[:, 0, 1:]
            xp = namespace(sums)
            means = weighted / xp.where(weight > 0, weight, like(1.0, weight))
            means = cast(means, xp.float64) if is_double else means
            with np.errstate(over="ignore"):
                means = means * like(np.ldexp(1.0, exponents), means)
            means = xp.clip(means, like(targets.low, means), like(targets.high, means))
            return xp.where(weight > 0, means, like(targets.mean, means))

        return means_of


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
    class_weight : dict, "balanced" or None, default=None
        Factors for the row weights of each class, {label: factor}; missing labels have a factor of
        1. "balanced" is the weight of all rows divided by K times that of the class, for K classes;
        for this, `fit` must see all rows at once. The choice of sigma is weighted in the same way,
        and y must have one label per row.
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

    _parameter_constraints = {
        **KernelRegression._parameter_constraints,
        "class_weight": CLASS_WEIGHT,
    }

    def __init__(
        self,
        feature_map: Transformer | Literal["exact"] | None = None,
        *,
        sigma: Sigma | None = None,
        class_weight: dict | Literal["balanced"] | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.feature_map = feature_map
        self.sigma = sigma
        self.class_weight = class_weight
        self.random_state = random_state

    def _values_of_labels(self, y):
        return y.astype(np.float64)

    def _finish(self, sums):
        self.class_count_, self.prior_share_ = sums.weights.copy(), sums.prior_share
        if self.multilabel_:
            self.class_count_ = sums.weights * sums.targets.mean
        return super()._finish(sums)

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


class KernelRegressor(Regression, KernelRegression):
    """Nadaraya-Watson regression on random features, linear in the number of rows.

    The prediction is the mean of the training targets, weighted by the kernel as estimated from
    features. With a positive map it is a true weighted mean, computed in log space. With other maps
    it is clipped to the range of the training targets, which contains every weighted mean, and
    falls back to the plain mean if the estimated weights do not have a positive sum.

    Parameters
    ----------
    feature_map : transformer or "exact", default=None
        As in `KernelRegressionClassifier`: None is ``ClusterQuantizer(256)``, and "exact" uses the
        kernel itself.
    sigma : float, "scale", "median" or None, default=None
        Replaces the map's own sigma. A larger sigma is a narrower kernel. None keeps the map's
        sigma if it was set; otherwise `fit` chooses the sigma that best predicts each row from the
        others, by squared error, as in `KernelRegressionClassifier`.
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None keeps it.

    Attributes
    ----------
    feature_map_ : transformer
        The fitted clone of the feature map; absent for "exact".
    sigma_ : float
        The sigma in use, if the map has one.
    best_score_ : float
        Leave-one-out R2, averaged over targets if there are several; only set if `fit` has chosen
        sigma.
    target_mean_ : ndarray of shape (n_outputs,)
        Weighted mean of the training targets.
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
    ApproxKernelRidge : Ridge regression on the same features.
    KernelRegressionClassifier : The same for labels.

    Notes
    -----
    X may be a CuPy or torch array: products with features are computed in its library and on its
    device, and results stay there. Statistics of the rows are computed on the host, where the
    fitted attributes live, so a fitted model can predict for arrays of any library. Feature maps
    from other packages, and Pipelines, run on the host.

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

    def _finish(self, sums):
        if (sums.targets.most - sums.targets.least).max(initial=0) > _DOUBLE_BITS:
            warnings.warn(
                f"Targets of y that are 2^{_DOUBLE_BITS} times smaller than the largest of their "
                "output may count as 0.",
                RuntimeWarning,
                stacklevel=4,
            )
        self.target_mean_ = sums.targets.mean
        return super()._finish(sums)

    @property
    def _outputs(self):
        return getattr(self._fitted.targets, "shape", None)

    def predict(self, X: Array) -> Result:
        """Return the weighted means of the training targets.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        array of shape (n_samples,) or (n_samples, n_outputs)
            Predictions; the plain mean of the targets if the estimated weights do not have a
            positive sum.

        Warns
        -----
        FeatureCollapseWarning
            If all weights of a row are 0, because its features are 0, or because another
            package's features for it are infinite or NaN.
        RuntimeWarning
            If X is in float32 and predictions overflow or underflow there.
        """
        check_is_fitted(self)
        means, shape = predictions_in(*self._query(X, self._means_of())), self._outputs
        return namespace(means).reshape(means, (means.shape[0], *shape))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags
