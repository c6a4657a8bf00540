"""Regression on random features, in time linear in the number of rows."""

import warnings

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._arrays import namespace
from .._typing import Array, Result
from .base import Regression, predictions_in
from .kernel_regression import KernelRegression

_DOUBLE_BITS = 500  # range below an output's largest target that sums can represent


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
    KernelRegressorCV : The same, with sigma chosen by cross-validation.
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

    def _finished(self, sums):
        if (sums.targets.most - sums.targets.least).max(initial=0) > _DOUBLE_BITS:
            warnings.warn(
                f"Targets of y that are 2^{_DOUBLE_BITS} times smaller than the largest of their "
                "output may count as 0.",
                RuntimeWarning,
                stacklevel=4,
            )
        return super()._finished(sums)

    def _to_sum(self, y, classes):
        return y, np.zeros(len(y), dtype=int), y.reshape(len(y), -1), 1

    def _outcomes(self, data, exponent=0):
        """Return squared errors, (n, n_outputs), of targets in units of ``2**exponent``."""
        errors = self._fitted.query(data.X, self._means_of()) - data.values
        return np.ldexp(errors, -exponent) ** 2

    def _score_of(self, sums, moments):
        """Return the result of `score` from sums of weighted outcomes, and moments of targets."""
        spread = moments.variances * moments.weight
        shares = np.where(spread > 0, sums / np.where(spread > 0, spread, 1.0), sums > 0)
        return np.mean(1 - shares)

    def _score(self, data):
        """Return the result of `score`, computed in units in which squares are finite."""
        from sklearn.metrics import r2_score  # imported here because it uses megabytes

        both = np.stack([data.values, self._fitted.query(data.X, self._means_of())])
        both = np.ldexp(both, -np.frexp(np.abs(both).max(axis=(0, 1)))[1])
        return r2_score(*both, sample_weight=data.score_weights)

    @property
    def _outputs(self):
        return getattr(self._fitted.targets, "shape", None)

    def _hold(self, sums):
        self.target_mean_ = sums.targets.mean
        return super()._hold(sums)

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
