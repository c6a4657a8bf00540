"""Regression on random features, in time linear in the number of rows."""

import warnings
from dataclasses import dataclass, replace

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from .._arrays import cast, like, namespace, to_host
from .._validation import check_present, drop_zero_weights, naming
from ._base import BaseKernelRegression, exponents_of

_DOUBLE_BITS = 500  # how far below the largest target of an output sums hold others
_SINGLE_BITS = 100  # sizes of predictions that float32 holds


@dataclass(frozen=True, eq=False)
class Targets:
    """What is known of the targets, one number for each output.

    Parameters
    ----------
    mean, low, high : ndarray of shape (n_outputs,)
        Weighted mean and range.
    most, least : ndarray of int of shape (n_outputs,)
        Largest and smallest exponents of 2 of those that are not 0.
    shape : tuple
        () for one output without an axis, else (n_outputs,).
    """

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    most: np.ndarray
    least: np.ndarray
    shape: tuple

    @classmethod
    def of(cls, y, weights, shape):
        """Return what is known of y of shape (n, n_outputs)."""
        # Shares first: sums of weights or of targets may overflow.
        shares = np.ldexp(weights, -np.frexp(weights.max())[1])
        mean, (most, least) = (shares / shares.sum()) @ y, exponents_of(y)
        return cls(mean, y.min(axis=0), y.max(axis=0), most, least, shape)

    def merge(self, other, shares):
        """Return what is known of both, given their shares in the weights."""
        if other.shape != self.shape:
            raise ValueError(
                f"y has {other.shape or (1,)} outputs, but the first batch had "
                f"{self.shape or (1,)}."
            )
        mean = shares[0] * self.mean + shares[1] * other.mean
        low, least = np.minimum(self.low, other.low), np.minimum(self.least, other.least)
        high, most = np.maximum(self.high, other.high), np.maximum(self.most, other.most)
        return Targets(mean, low, high, most, least, self.shape)


class KernelRegressor(RegressorMixin, BaseKernelRegression):
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

    def __init__(self, feature_map=None, *, sigma=None, random_state=None):
        super().__init__(feature_map, sigma=sigma, random_state=random_state)

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

        Warns
        -----
        RuntimeWarning
            Where targets of an output are more than 2^500 times apart: the small ones may count
            as 0.
        """
        return self._add(X, y, sample_weight, forget=True)

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

        Warns
        -----
        RuntimeWarning
            As `fit`.
        """
        return self._add(X, y, sample_weight, forget=False)

    def _add(self, X, y, sample_weight, *, forget):
        draft, X = self._begin(X, y, forget=forget)
        with naming("y"):
            y = np.asarray(to_host(y))
            check_present("y", y)
            if y.dtype.kind in "mM":
                raise TypeError("dates and times are not numbers.")
            y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
            check_consistent_length(X, y)
        shape, y = y.shape[1:], y.reshape(len(y), -1)
        sample_weight, X, y = drop_zero_weights(sample_weight, X, y)
        weights = np.ones(len(y)) if sample_weight is None else sample_weight
        own, sums = Targets.of(y, weights, shape), draft._fitted
        if sums is None:
            sums = draft._fit_map(X, y if shape else y[:, 0], sample_weight, 1, 1 + y.shape[1])
        else:
            own = sums.targets.merge(own, sums.shares_with(weights))
        if (own.most - own.least).max(initial=0) > _DOUBLE_BITS:
            warnings.warn(
                f"Targets of y that are 2^{_DOUBLE_BITS} times smaller than the largest of their "
                "output may count as 0.",
                RuntimeWarning,
                stacklevel=3,
            )
        draft.target_mean_ = own.mean
        sums = sums.add(X, np.zeros(len(y), dtype=int), weights, y)
        return self._finish(draft, replace(sums, targets=own))

    def predict(self, X):
        """Return the weighted means of the training targets.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        array of shape (n_samples,) or (n_samples, n_outputs)
            Predictions, the plain mean of the targets where the estimated weights do not have a
            positive sum; of another library in the dtype of X, or float64 where targets are
            beyond 2^100 or below its inverse.

        Warns
        -----
        FeatureCollapseWarning
            Where all weights of a row are 0, because its features are, or because those that
            another package made of it are infinite or NaN.
        """
        check_is_fitted(self)
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

        means = self._query(X, means_of)
        return namespace(means).reshape(means, (means.shape[0], *targets.shape))

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
