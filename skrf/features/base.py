"""What every feature map shares: fitting, the fitted attributes, and features of rows."""

import copy
from dataclasses import replace
from functools import partial
from inspect import signature
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from .._arrays import to_host
from .._batches import TakesBatches
from .._estimator import GAMMA, EstimatorBase, Unless
from .._threads import serial_blas
from .._typing import Array, RandomState, Result
from .._validation import (
    Interval,
    StrOptions,
    as_numpy,
    check_unchanged,
    commit,
    draft_of,
    draw_seed,
    drop_zero_weights,
    validate_rows,
)
from ..statistics import PairStatistics
from ._batch_summary import passes_of_fit
from ._contract import Contract
from ._fitted import Fitted, Sample
from ._flaws import warn_of_scales
from ._kernel_matrix import KernelMatrixMixin
from ._map import FeatureMap, as_dtype, in_range, mapped, out_of_range, plain_features


def _obstacle_to_batches(feature_map):
    """Return why batches cannot be merged, or None."""
    return _obstacle_to(feature_map._as_spec())


def _obstacle_to(spec):
    obstacle = spec._obstacle_to_merging()
    if obstacle is not None:
        return (
            f"it learns {obstacle}, which cannot be computed batch by batch. Call fit on all rows "
            "or on a sample of them, or use a feature map that learns from sums alone, such as "
            "DenseExponentialRF(sigma='scale')."
        )


def _obstacle_to_going_on(feature_map):
    """Return the same at the parameters of an earlier fit, if there was one."""
    return _obstacle_to(feature_map._spec)


def _obstacle_to_logs(feature_map):
    """Return why features have no logarithms, or None."""
    if not feature_map.is_positive:
        return "its features have signs. Use a feature map with is_positive=True."


class BaseRandomFeatures(
    KernelMatrixMixin,
    TakesBatches,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    EstimatorBase,
    Contract,
):
    """Base class of all feature maps.

    See Also
    --------
    gaussian.GaussianRandomFeatures : Feature maps with Gaussian projections.
    FeatureMap : The result of `fit`, one for each side.

    References
    ----------
    Rahimi and Recht, Random features for large-scale kernel machines (2007).
    """

    # A class lists the constraints it adds; only those of its constructor's parameters apply.
    _allowed = _parameter_constraints = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "sigma": [StrOptions({"scale", "median"}), Interval(Real, 0, None, closed="neither"), None],
        "kernel": [StrOptions({"gaussian", "softmax"})],
        "random_state": ["random_state"],
    }
    _foreign_parameters = GAMMA
    _fitted = None

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        cls._allowed = {**cls._allowed, **vars(cls).get("_parameter_constraints", {})}
        names = signature(cls.__init__).parameters
        cls._parameter_constraints = {
            n: constraint for n, constraint in cls._allowed.items() if n in names
        }

    # ---------------------------------------------------------------- claims

    def _as_spec(self):
        """Return an unfitted copy that later changes of parameters do not affect."""
        return draft_of(self)

    @property
    def _spec(self):
        """A feature map with the parameters in effect: those of the fit, if there was one."""
        return self._as_spec() if self._fitted is None else self._fitted.spec

    def _checked_spec(self):
        """Return an unfitted copy whose parameters are valid, or raise ValueError."""
        self._validate_params()
        spec = self._as_spec()
        spec._sizes()
        return spec

    @property
    def is_positive(self) -> bool:
        """Whether no feature is negative.

        Features of such maps are 0 only for clusters that a row is not in.
        """
        fitted = self._fitted
        return self._spec._is_positive if fitted is None else fitted.queries.is_positive

    @property
    def is_unbiased(self) -> bool:
        """Whether the mean of the estimate is the kernel."""
        return self._spec._is_unbiased

    @property
    def is_symmetric(self) -> bool:
        """Whether `transform` and `transform_keys` are the same function."""
        fitted = self._fitted
        return self._spec._is_symmetric if fitted is None else fitted.queries is fitted.keys

    # ---------------------------------------------------------------- fitting

    def fit(
        self,
        X: Array,
        y: Any = None,
        sample_weight: Array | None = None,
        *,
        keys: Array | None = None,
    ) -> Self:
        """Compute statistics and optimal parameters from the data, and draw the random numbers.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Queries.
        y : array-like of shape (n_samples,), default=None
            Class labels of X. Feature maps with a parameter ``centers`` use them to find clusters
            within classes; other maps ignore them. They are also ignored if keys are given or if
            they are not discrete. Floats are treated as regression targets and ignored unless
            ``centers="classes"``.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the queries, at least 0; rows of weight 0 are dropped. Feature maps that use
            individual rows treat weights as repetitions.
        keys : {array-like, sparse matrix} of shape (n_keys, n_features), default=None
            Keys, on the same scale as X; None means X. scikit-learn's searches split fit parameters
            that have the length of X, and a Pipeline does not transform fit parameters: with
            either, pass keys that are already prepared, or omit them.

        Returns
        -------
        self : object
            The fitted feature map.

        Raises
        ------
        ValueError
            If a parameter, X, the weights or the keys are invalid; the message names the
            parameter, its value and what is allowed.

        Warns
        -----
        UserWarning
            If columns differ in scale by more than 1e4: the small ones hardly count.
        """
        return self._fit(X, sample_weight, keys, before=None, y=y)

    @partial(Unless, _obstacle_to_going_on)
    def partial_fit(
        self,
        X: Array,
        y: Any = None,
        sample_weight: Array | None = None,
        *,
        keys: Array | None = None,
    ) -> Self:
        """Add a batch to the statistics and update the parameters.

        Statistics and parameters equal those of one `fit` on all batches, up to rounding. The
        random numbers are drawn at the first call and kept. Not available with ``sigma="median"``,
        which has no mergeable statistic, or for feature maps that use individual rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            A batch of queries.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the queries, at least 0.
        keys : {array-like, sparse matrix} of shape (n_keys, n_features), default=None
            A batch of keys; None takes X.

        Returns
        -------
        self : object
            The fitted feature map.

        Raises
        ------
        ValueError
            If a parameter has changed since the first call.
        """
        if self._fitted is not None:
            check_unchanged(self, self._fitted.spec.get_params())
        return self._fit(X, sample_weight, keys, before=self._fitted)

    @partial(Unless, _obstacle_to_batches)
    def fit_statistics(self, statistics: PairStatistics) -> Self:
        """Fit to statistics of the rows instead of the rows themselves.

        The result equals that of `fit` on the rows, up to rounding. Statistics of parts of the data
        can be merged.

        Parameters
        ----------
        statistics : skrf.statistics.PairStatistics
            Statistics of queries and keys. ``PairStatistics.of(X, full=True)`` has everything that
            any feature map needs, and ``one.merge(other)`` returns those of the combined rows.

        Returns
        -------
        self : object
            The fitted feature map.

        Raises
        ------
        TypeError
            If `statistics` is not a PairStatistics.
        ValueError
            If the feature map needs moments that `statistics` lacks.
        """
        spec = self._checked_spec()
        if not isinstance(statistics, PairStatistics):
            raise TypeError(f"statistics must be a PairStatistics, got {statistics!r:.60}.")
        _check_weight(statistics)
        sides = statistics.queries, statistics.keys
        lacks = {
            "covariances": spec._needs_full_statistics
            and any(side.covariance.ndim < 2 for side in sides),
            "minimum and mean_absolute": spec._needs_sizes
            and any(np.isnan(side.minimum).any() for side in sides),
        }
        if any(lacks.values()):
            raise ValueError(
                f"{type(self).__name__} needs statistics with {max(lacks, key=lacks.get)}, which "
                "these are without: make them with PairStatistics.of(X, full=True)."
            )
        draft = draft_of(self)
        draft.n_features_in_ = len(statistics.queries.mean)
        warn_of_scales(draft, statistics.queries)
        sample = Sample(None, None, None, draw_seed(self.random_state))
        copied = copy.deepcopy(statistics)  # those of a fit are read-only
        return commit(self, draft._set(Fitted.to(spec, copied, sample)))

    def _passes(self, classes, scope):
        """Return the passes of a fit to batches, as `skrf._batches.run_passes` takes them."""
        return passes_of_fit(self, scope)

    def _learns_from(self, y):
        """Return whether this y changes what `fit` learns from the rows."""
        return self._labels(y, slice(None), None) is not None

    def _fit_at_sigma(self, X, y=None, sample_weight=None):
        """Return a function that returns a fitted copy, given sigma.

        The copies share one draw, the statistics and the clusters. Each equals the result of `fit`
        at its sigma with the same seed, to rounding.
        """
        draft, _, statistics, sample = self._gather(X, sample_weight, None, y=y)
        warn_of_scales(draft, statistics.queries, sample.queries)
        fitted = None

        def fit(sigma):
            nonlocal fitted
            copied = copy.copy(draft).set_params(sigma=sigma)
            fitted = Fitted.to(copied._checked_spec(), statistics, sample, before=fitted)
            return copied._set(fitted)

        return fit

    def _fit(self, X, sample_weight, keys, *, before, y=None):
        draft, spec, statistics, sample = self._gather(X, sample_weight, keys, before=before, y=y)
        warn_of_scales(draft, statistics.queries, sample.queries if before is None else None)
        draft._set(Fitted.to(spec, statistics, sample, before=before))
        return commit(self, draft)

    def _gather(self, X, sample_weight, keys, *, before=None, y=None):
        """Return a draft to fit, its parameters, and the statistics and rows to learn from."""
        spec = self._checked_spec() if before is None else before.spec
        draft = draft_of(self, forget=before is None)
        X = to_host(validate_rows(draft, X, reset=before is None))
        if self._reads_labels and y is not None and keys is None:
            check_consistent_length(X, y)
        sample_weight, X, kept_rows = drop_zero_weights(sample_weight, X, np.arange(X.shape[0]))
        if keys is not None:
            keys = to_host(validate_rows(draft, keys, reset=False, name="keys"))
        seed = draw_seed(self.random_state) if before is None else before.seed
        labels = self._labels(y, kept_rows, keys)
        sample = spec._sample(X, keys, sample_weight, seed, labels)
        if labels is not None:
            sample = replace(sample, classes=np.unique(as_numpy("y", y)[kept_rows]))
        statistics = sample.statistics(full=spec._needs_full_statistics)
        if before is not None:
            statistics = before.statistics.merge(statistics)
            _check_weight(statistics)
        return draft, spec, statistics, sample

    def _set(self, fitted):
        self._fitted = fitted
        self.statistics_ = fitted.statistics
        vars(self).update(fitted.attributes)
        return self

    def redraw(self, random_state: RandomState = None) -> Self:
        """Redraw the random numbers and keep the fitted parameters.

        Parameters
        ----------
        random_state : int, RandomState instance or None, default=None
            Source of the new seed.

        Returns
        -------
        self : object
            The feature map with new random numbers.

        Raises
        ------
        NotFittedError
            If the feature map is not fitted.
        """
        return commit(self, self._with(self._known.redrawn(draw_seed(random_state))))

    def _with(self, fitted):
        """Return a copy with another fit."""
        return copy.copy(self)._set(fitted)

    def fit_without_data(self, n_features: int) -> Self:
        """Fit the member of the family that needs no data: A = 0, no shift, no centres.

        Parameters
        ----------
        n_features : int
            Width of the rows.

        Returns
        -------
        self : object
            The fitted feature map.

        Raises
        ------
        ValueError
            If there is no such member, or sigma is not a number.
        """
        if self._needs_data:
            raise ValueError(f"{self!r} needs statistics of data: call fit.")
        if isinstance(self.sigma, str) or (self.sigma is None and self.kernel != "softmax"):
            raise ValueError(
                f"sigma must be a number for fit_without_data, because sigma={self.sigma!r} is "
                f"computed from data; got {self!r}. Pass a number, or call fit."
            )
        fitted = clone(self).fit(np.zeros((1, n_features)))._fitted
        fitted.spec._forget_data(fitted.parameters)
        draft = draft_of(self)
        draft.n_features_in_ = n_features
        return commit(self, draft._set(fitted.redrawn(fitted.seed)))

    def _adapted(self, X, keys=None):
        """Return a copy fitted to other data with the same random numbers.

        From libraries other than NumPy, only sums are copied to the host if the feature map needs
        no more. Centres and counts are drawn from the same seed.
        """
        fitted = self._known
        spec = fitted.spec
        if type(spec)._learn_from_rows is not BaseRandomFeatures._learn_from_rows:
            X, keys = to_host(X), to_host(keys)
        sample = spec._sample(X, keys, None, fitted.seed)
        statistics = sample.statistics(full=spec._needs_full_statistics, sizes=spec._needs_sizes)
        return self._with(Fitted.to(spec, statistics, sample, before=fitted))

    # ---------------------------------------------------------------- fitted attributes

    @property
    def _known(self):
        """The `Fitted`, available only after `fit`."""
        check_is_fitted(self)
        return self._fitted

    @property
    def feature_maps_(self) -> tuple[FeatureMap, FeatureMap]:
        """The `FeatureMap` objects of queries and keys, which consumers use."""
        fitted = self._known
        return fitted.queries, fitted.keys

    @property
    def sigma_(self) -> float:
        """Multiplier of the inputs: sigma = 1 / length_scale = sqrt(2 gamma)."""
        return self._known.parameters.sigma

    @property
    def gamma_(self) -> float:
        """Gamma of the Gaussian kernel exp(-gamma |x - y|^2); other kernels have none."""
        kernel = self._known.spec.kernel
        if kernel != "gaussian":
            raise AttributeError(
                f"{type(self).__name__} has gamma_ with kernel='gaussian' only, got {kernel!r}: "
                "use sigma_."
            )
        return self.sigma_**2 / 2

    @property
    def n_components_(self) -> int:
        """Number of components."""
        return self._known.queries.n_columns

    @property
    def _n_projections(self):
        """Number of projections."""
        return self._known.parameters.n_projections

    @property
    def _seed(self):
        """The integer drawn from ``random_state``."""
        return self._known.seed

    @property
    def _n_features_out(self):
        return self.n_components_

    def __sklearn_is_fitted__(self):
        return self._fitted is not None

    # ---------------------------------------------------------------- maps

    if TYPE_CHECKING:  # scikit-learn's has no types

        def fit_transform(self, X: Array, y: Any = None, **fit_params: Any) -> Result:
            """Fit, and return the features."""

    def transform(self, X: Array) -> Result:
        """Return the query-side features of X.

        ``transform(X) @ transform_keys(Y).T`` estimates the kernel of X and Y.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Queries: a NumPy, SciPy sparse, CuPy or torch array.

        Returns
        -------
        ndarray of shape (n_samples, n_components_)
            Features, float32 for float32 input and float64 otherwise.

        Warns
        -----
        RuntimeWarning
            If a row of features vanished or overflowed in the output's dtype.
        """
        return self._features(X, keys=False, name="X")

    def transform_keys(self, Y: Array) -> Result:
        """Return the key-side features of Y, equal to `transform` if `is_symmetric`.

        Parameters
        ----------
        Y : {array-like, sparse matrix} of shape (n_samples, n_features)
            Keys.

        Returns
        -------
        ndarray of shape (n_samples, n_components_)
            Features, float32 for float32 input and float64 otherwise.

        Warns
        -----
        RuntimeWarning
            If a row of features vanished or overflowed in the output's dtype.
        """
        return self._features(Y, keys=True, name="Y")

    @partial(Unless, _obstacle_to_logs)
    def log_transform(self, X: Array) -> Result:
        """Return the logarithms of the query-side features, finite at every sigma.

        Available only for feature maps with positive features. Feature maps with clusters return
        -inf for clusters that a row is not in.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Queries.

        Returns
        -------
        ndarray of shape (n_samples, n_components_)
            Log features.
        """
        return self._logs(X, keys=False, name="X")

    @partial(Unless, _obstacle_to_logs)
    def log_transform_keys(self, Y: Array) -> Result:
        """Return the logarithms of the key-side features, finite at every sigma.

        Available only for feature maps with positive features. Feature maps with clusters return
        -inf for clusters that a row is not in.

        Parameters
        ----------
        Y : {array-like, sparse matrix} of shape (n_samples, n_features)
            Keys.

        Returns
        -------
        ndarray of shape (n_samples, n_components_)
            Log features.
        """
        return self._logs(Y, keys=True, name="Y")

    def _logs(self, X, *, keys, name):
        feature_map = self.feature_maps_[keys]
        X = validate_rows(self, X, reset=False, name=name)
        return as_dtype(mapped(feature_map, in_range(feature_map, X, name)).values, X.dtype)

    def _features(self, X, *, keys, name):
        feature_map = self.feature_maps_[keys]
        X = validate_rows(self, X, reset=False, name=name)
        features, has_vanished, has_overflowed = plain_features(feature_map, X, name)
        if features.dtype != X.dtype:
            features = as_dtype(features, X.dtype)
            with serial_blas():
                has_vanished, has_overflowed = out_of_range(feature_map, features)
        if has_vanished:
            self._warn_of_vanished(features, name, has_overflowed)
        elif has_overflowed:
            self._warn_of_range(f"Features of {name} overflowed", X.dtype)
        return features

    def _warn_of_vanished(self, features, name, has_overflowed):
        overflowed = " and others overflowed" if has_overflowed else ""
        self._warn_of_range(f"Rows of features of {name} vanished{overflowed}", features.dtype)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _check_weight(statistics):
    """Raise if the weights of merged statistics are lost."""
    if not np.isfinite(statistics.queries.weight):
        raise ValueError(
            "sample_weight adds up to more than the largest float, "
            f"{np.finfo(float).max:.2g}, over all batches: divide it by a number."
        )
