"""The contract of every mechanism: scikit-learn's methods outside, private steps inside.

A mechanism learns parameters from statistics (`_fit_parameters`), draws random numbers from a
seed (`_draw`), joins the two (`_assemble`) and maps rows (`_features`, or `_log_features` where
all features are positive). Consumers call those private paths on validated arrays; the public
methods validate, warn and delegate.
"""

import copy
import warnings
from abc import ABC, abstractmethod
from numbers import Integral, Real

import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import pdist
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from .. import _kernels
from .._arrays import (
    ScaledRows,
    is_foreign,
    like,
    namespace,
    squared_distances,
    squared_norms,
    to_host,
)
from .._threads import Scratch, block_rows, run_rows
from .._validation import drop_zero_weights, validate_rows
from ..statistics import PairStatistics

# Independent streams of random numbers, so that one choice never shifts another.
OMEGA, PHASE, SUBSAMPLE, CHOICE, SPECTRUM, COEFFICIENTS = range(6)

_MEDIAN_ROWS = 1000
_SMALL = 2**16  # entries below which threads cost more than they save
_LARGEST_SIGMA = 1e150  # its square still is a float
_RELATIVE_ROUNDING = 1e-14  # of a mean of thousands of equal numbers, with room


def _maps_to_positive(mechanism):
    return mechanism.is_positive


def _has_mergeable_parameters(mechanism):
    return mechanism._is_mergeable()


class BaseRandomFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, ABC):
    """Base class of all random-feature mechanisms."""

    _parameter_constraints = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "sigma": [StrOptions({"scale", "median"}), Interval(Real, 0, None, closed="neither")],
        "kernel": [StrOptions({"gaussian", "softmax"})],
        "random_state": ["random_state"],
    }
    _needs_full_statistics = False
    _is_bounded = False  # no feature can vanish with all of its row, or overflow

    # ---------------------------------------------------------------- what subclasses say

    @property
    @abstractmethod
    def is_positive(self):
        """Whether every feature is positive."""

    @property
    @abstractmethod
    def is_unbiased(self):
        """Whether the mean of the estimate is the kernel."""

    @property
    @abstractmethod
    def is_symmetric(self):
        """Whether `transform` and `transform_keys` are the same function."""

    @abstractmethod
    def _fit_parameters(self, statistics):
        """Set the fitted parameters, functions of `statistics` and ``sigma_`` alone."""

    def _learn_from_rows(self, X, keys, sample_weight):
        """Set what depends on single rows (centres, choices); such mechanisms do not merge."""

    @abstractmethod
    def _draw(self, seed):
        """Draw the random numbers; parameters are left as they are."""

    def _assemble(self):
        """Join parameters and random numbers into what maps rows; called after either changes."""

    @property
    def _columns_per_projection(self):
        return 1

    def _count_projections(self):
        """Return the number of projections for ``n_components``, or raise ValueError.

        A single column cannot hold a pair: mechanisms of pairs fold it with a random phase or
        sign, which keeps it unbiased.
        """
        if self.n_components == 1:
            return 1
        columns = self._columns_per_projection
        count, rest = divmod(self.n_components, columns)
        if rest:
            nearest = [str(max(k * columns, 1)) for k in (count, count + 1)]
            raise ValueError(
                f"n_components={self.n_components} cannot be made by {type(self).__name__}: it "
                f"must be 1 or a multiple of {columns}, the columns of one projection. The nearest "
                f"allowed: {' and '.join(nearest)}."
            )
        return count

    def _log_features(self, X, *, keys=False):
        """Return log features of validated rows; positive mechanisms only."""
        raise NotImplementedError

    def _features(self, X, *, keys=False):
        """Return the features of validated rows, query side or key side."""
        logs = self._log_features(X, keys=keys)
        return namespace(logs).exp(logs)

    def _pull_back(self, X, gradient, *, keys=False):
        """Return the gradient with respect to rows of X, shape of X.

        Of the sum of gradient times features, or times log features where all are positive; the
        fitted parameters are constants.
        """
        raise NotImplementedError(
            f"Gradients are not known for {type(self).__name__}. Known: the mechanisms of Gaussian "
            "projections, and attention's GeneralizedMap."
        )

    def _log_features_into(self, X, out, scratch, *, keys=False, lower=None):
        """Write the log features of validated rows into `out`, less `lower`, a number a column."""
        out[...] = self._log_features(X, keys=keys)
        if lower is not None:
            out -= lower.astype(out.dtype)

    def _features_into(self, X, out, scratch, *, keys=False):
        """Write the features of validated rows into `out`.

        `scratch` is a `_threads.Scratch`.
        """
        if self.is_positive:
            self._log_features_into(X, out, scratch, keys=keys)
            np.exp(out, out=out)
        else:
            out[...] = self._features(X, keys=keys)

    @abstractmethod
    def _log_variance(self, X, Y):
        """Return the log variance of the estimate for all pairs of rows."""

    def _rows(self, X, offset=None, *, keys=False):
        """Return rows of X on the scale of the features, shifted by `offset` (units of X)."""
        return ScaledRows(X, self._sigma, offset)

    def _pull_back_rows(self, gradient, *, keys=False):
        """Return the gradient with respect to X, given that with respect to `_rows`."""
        return gradient * self._sigma

    def _log_outer_factor(self, X, Y):
        """Return the log of what multiplies the Gaussian variance: |x|^2 + |y|^2 for softmax."""
        if self.kernel != "softmax":
            return 0.0
        norms = (self._rows(Z, keys=keys).on_host() for Z, keys in ((X, False), (Y, True)))
        return np.add.outer(*(squared_norms(rows) for rows in norms))

    def _is_mergeable(self):
        """Tell whether the parameters are functions of mergeable statistics."""
        return self.sigma != "median"

    # ---------------------------------------------------------------- fitting

    def fit(self, X, y=None, sample_weight=None, *, keys=None):
        """Compute the statistics of the data, the optimal parameters, and draw.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Queries.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the queries, at least 0; a row of weight 0 counts as removed.
        keys : {array-like, sparse matrix} of shape (n_keys, n_features), default=None
            Keys, on the same scale as X; None takes X. Search utilities cut fit parameters that
            have the length of X, and a Pipeline does not transform them: in both give the keys
            already prepared, or leave them out.

        Returns
        -------
        self : object
            The fitted mechanism.

        Raises
        ------
        ValueError
            Where a parameter, X, the weights or the keys are not allowed; the message names
            the parameter, its value and what is allowed.
        """
        return self._fit(X, sample_weight, keys, first=True)

    @available_if(_has_mergeable_parameters)
    def partial_fit(self, X, y=None, sample_weight=None, *, keys=None):
        """Add a batch to the statistics and update the parameters.

        Statistics and parameters equal those of `fit` on all batches together, to rounding. The
        random numbers are drawn at the first call and kept. Absent with ``sigma="median"``, for
        which no mergeable statistic exists.

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
            The fitted mechanism.
        """
        return self._fit(X, sample_weight, keys, first=not hasattr(self, "statistics_"))

    def _fit(self, X, sample_weight, keys, *, first):
        self._validate_params()
        n_projections = self._count_projections()
        X = to_host(validate_rows(self, X, reset=first))
        sample_weight, X = drop_zero_weights(sample_weight, X)
        if keys is not None:
            keys = to_host(validate_rows(self, keys, reset=False, name="keys"))
        statistics = PairStatistics.of(X, keys, sample_weight, full=self._needs_full_statistics)
        if first:
            self._seed = _draw_seed(self.random_state)
            self._n_projections = n_projections
            self._n_columns = self.n_components
            self.statistics_ = statistics
        else:
            self.statistics_ = self.statistics_.merge(statistics)
        self._sigma = self._resolve_sigma(X, sample_weight)
        self._fit_parameters(self.statistics_)
        if first:
            self._learn_from_rows(X, X if keys is None else keys, sample_weight)
            self._draw(self._seed)
        self._assemble()
        return self

    def _adapted(self, X, keys):
        """Return a copy with the parameters of other data and the same draw (of rows as they are).

        Parameters
        ----------
        X, keys : ndarray of shape (n, n_features) and (n_keys, n_features)
            Validated queries and keys.
        """
        other = copy.copy(self)
        other.statistics_ = PairStatistics.of(X, keys, None, full=self._needs_full_statistics)
        other._sigma = other._resolve_sigma(X, None)
        other._fit_parameters(other.statistics_)
        if type(self)._learn_from_rows is not BaseRandomFeatures._learn_from_rows:
            other._learn_from_rows(X, keys, None)
            other._draw(self._seed)
        other._assemble()
        return other

    # Whether no member of the family does without data.
    _needs_data = False

    def _fit_without_data(self, n_features):
        """Fit the member of the family that needs no data: A = 0, no shift, no centres."""
        return self.fit(np.zeros((1, n_features)))

    def redraw(self, random_state=None):
        """Draw the random numbers anew, the fitted parameters kept.

        Parameters
        ----------
        random_state : int, RandomState instance or None, default=None
            Source of the new seed.

        Returns
        -------
        self : object
            The mechanism with new random numbers.

        Raises
        ------
        NotFittedError
            Before `fit`.
        """
        check_is_fitted(self)
        self._seed = _draw_seed(random_state)
        self._draw(self._seed)
        self._assemble()
        return self

    def _rng(self, stream):
        return np.random.default_rng([self._seed, stream])

    def _resolve_sigma(self, X, sample_weight):
        if self.sigma == "scale":
            queries = self.statistics_.queries
            variance = queries.entry_variance
            # Constant data have the variance of rounding, which would make an enormous sigma.
            is_constant = variance <= _RELATIVE_ROUNDING**2 * np.mean(queries.mean**2)
            gamma = 1.0 if is_constant else 1 / (self.n_features_in_ * variance)
            return float(np.sqrt(2 * gamma))
        if self.sigma == "median":
            median = self._median_distance(X, sample_weight)
            return float(np.sqrt(2.0)) if median == 0 else 1 / median
        if self.sigma > _LARGEST_SIGMA:
            raise ValueError(
                f"The 'sigma' parameter of {type(self).__name__} must be 'scale', 'median' or a "
                f"float in the range (0.0, {_LARGEST_SIGMA}]. Got {self.sigma!r} instead."
            )
        return float(self.sigma)

    def _median_distance(self, X, sample_weight):
        """Return the median distance of a subsample's rows that differ; 0 where none do."""
        weights = np.ones(X.shape[0]) if sample_weight is None else sample_weight
        if X.shape[0] > _MEDIAN_ROWS:
            rows = np.sort(self._rng(SUBSAMPLE).choice(X.shape[0], _MEDIAN_ROWS, replace=False))
            X, weights = X[rows], weights[rows]
        pairs = np.triu_indices(X.shape[0], 1)
        if sp.issparse(X):
            X = X.astype(np.float64)
            products = (X @ X.T).toarray()
            norms = np.diagonal(products)
            # Equal rows have equal products, so their distance comes out as 0 and is left out.
            squares = np.add.outer(norms, norms) - 2 * products
            distances = np.sqrt(np.maximum(squares[pairs], 0))
        else:
            distances = pdist(np.asarray(X, dtype=np.float64))
        apart = distances > 0
        if not apart.any():
            return 0.0
        return _weighted_median(distances[apart], np.outer(weights, weights)[pairs][apart])

    # ---------------------------------------------------------------- fitted attributes

    @property
    def sigma_(self):
        """Multiplier of the inputs: sigma = 1 / length_scale = sqrt(2 gamma)."""
        check_is_fitted(self)
        return self._sigma

    @property
    def gamma_(self):
        """Gamma of the equivalent RBF kernel exp(-gamma |x - y|^2): sigma^2 / 2."""
        return self.sigma_**2 / 2

    @property
    def length_scale_(self):
        """Length scale of the equivalent RBF kernel: 1 / sigma."""
        return 1 / self.sigma_

    @property
    def n_components_(self):
        """Number of output columns."""
        check_is_fitted(self)
        return self._n_columns

    @property
    def _n_features_out(self):
        return self.n_components_

    def __sklearn_is_fitted__(self):
        return hasattr(self, "statistics_")

    # ---------------------------------------------------------------- maps

    def transform(self, X):
        """Return the query-side features of X.

        ``transform(X) @ transform_keys(Y).T`` estimates the kernel of X and Y.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Queries, NumPy, SciPy sparse, CuPy or torch.

        Returns
        -------
        ndarray of shape (n_samples, n_components_)
            Features, float32 for float32 input and float64 for any other.

        Warns
        -----
        RuntimeWarning
            Where a row of features vanished or overflowed in the output's dtype.
        """
        return self._public_features(X, keys=False, name="X")

    def transform_keys(self, Y):
        """Return the key-side features of Y; equal to `transform` where `is_symmetric`.

        Parameters
        ----------
        Y : {array-like, sparse matrix} of shape (n_samples, n_features)
            Keys.

        Returns
        -------
        ndarray of shape (n_samples, n_components_)
            Features, float32 for float32 input and float64 for any other.

        Warns
        -----
        RuntimeWarning
            Where a row of features vanished or overflowed in the output's dtype.
        """
        return self._public_features(Y, keys=True, name="Y")

    @available_if(_maps_to_positive)
    def log_transform(self, X):
        """Return the logarithms of the query-side features, finite at every sigma.

        Mechanisms with positive features only.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Queries.

        Returns
        -------
        ndarray of shape (n_samples, n_components_)
            Log features.
        """
        check_is_fitted(self)
        return self._mapped(validate_rows(self, X, reset=False), self._log_features_into)[0]

    @available_if(_maps_to_positive)
    def log_transform_keys(self, Y):
        """Return the logarithms of the key-side features, finite at every sigma.

        Mechanisms with positive features only.

        Parameters
        ----------
        Y : {array-like, sparse matrix} of shape (n_samples, n_features)
            Keys.

        Returns
        -------
        ndarray of shape (n_samples, n_components_)
            Log features.
        """
        check_is_fitted(self)
        Y = validate_rows(self, Y, reset=False, name="Y")
        return self._mapped(Y, self._log_features_into, keys=True)[0]

    def _public_features(self, X, *, keys, name):
        check_is_fitted(self)
        X = validate_rows(self, X, reset=False, name=name)
        features, (has_vanished, has_overflowed) = self._mapped(X, self._features_into, keys=keys)
        if has_vanished:
            self._warn_of_range(X, f"rows of features of {name} vanished")
        elif has_overflowed:
            self._warn_of_range(X, f"features of {name} overflowed")
        return features

    def _mapped(self, X, write, *, keys=False):
        """Return mapped rows, and whether rows vanished or overflowed (see `_flaws`).

        Rows go in blocks on the threads that are allowed: beside the output no more is held than
        the temporaries of a block a thread. Arrays of other libraries go at once.
        """
        if is_foreign(X):
            make = self._features if write == self._features_into else self._log_features
            features = make(X, keys=keys)
            return features, _flaws(features, False)
        features = np.empty((X.shape[0], self.n_components_), dtype=X.dtype)
        if not self.is_positive:
            _kernels.load(X, features.size)
        found, scratch = [], Scratch()

        def work(rows):
            # Settings of floating-point warnings belong to a thread.
            with np.errstate(over="ignore", invalid="ignore"):
                write(X[rows], features[rows], scratch, keys=keys)
            if not self._is_bounded:
                found.append(_flaws(features[rows], self.is_positive))

        if features.size < _SMALL:
            work(slice(None))
        else:
            run_rows(work, len(features), block_rows(*features.shape))
        return features, tuple(map(any, zip(*found, strict=True))) or (False, False)

    def _warn_of_range(self, X, what):
        norms = (X.multiply(X)).sum(axis=1) if sp.issparse(X) else squared_norms(X)
        largest = float(to_host(norms).max()) ** 0.5
        warnings.warn(
            f"{type(self).__name__}: {what} in the output's dtype at sigma={self.sigma_:.4g} and "
            f"largest input norm {largest:.4g}. Take a smaller sigma or standardise the inputs"
            + ("; log_transform stays finite." if self.is_positive else "."),
            RuntimeWarning,
            stacklevel=4,
        )

    # ---------------------------------------------------------------- kernels and their error

    def exact_kernel(self, X, Y=None):
        """Return the kernel that the features estimate.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_x, n_features)
            Queries.
        Y : {array-like, sparse matrix} of shape (n_y, n_features), default=None
            Keys; None takes X.

        Returns
        -------
        ndarray of shape (n_x, n_y)
            exp(-sigma^2 |x - y|^2 / 2), or exp(sigma^2 x.y) for the softmax kernel.

        Warns
        -----
        RuntimeWarning
            Where a value overflows.
        """
        X, Y = self._pair(X, Y)
        logs = self._log_exact_kernel(X, Y)
        # Distances are made on the host.
        logs = like(logs, X) if is_foreign(X) and not is_foreign(logs) else logs
        return self._flagged(_exp(logs), X, "kernel values")

    def approximate_kernel(self, X, Y=None):
        """Return the estimate of the kernel made of the features of X and Y.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_x, n_features)
            Queries.
        Y : {array-like, sparse matrix} of shape (n_y, n_features), default=None
            Keys; None takes X.

        Returns
        -------
        ndarray of shape (n_x, n_y)
            ``transform(X) @ transform_keys(Y).T``; for positive maps computed with the largest
            exponents taken out, so that it is right where single features underflow.
        """
        X, Y = self._pair(X, Y)
        if not self.is_positive:
            with np.errstate(over="ignore", invalid="ignore"):
                values = self._features(X) @ self._features(Y, keys=True).T
            return self._flagged(values, X, "kernel estimates")
        queries, keys = self._log_features(X), self._log_features(Y, keys=True)
        xp = namespace(queries)
        top_x = xp.max(queries, axis=1, keepdims=True)
        top_y = xp.max(keys, axis=1, keepdims=True)
        product = xp.exp(queries - top_x) @ xp.exp(keys - top_y).T
        with np.errstate(divide="ignore"):
            logs = xp.log(product) + top_x + top_y.T
        return self._flagged(_exp(logs), X, "kernel estimates")

    def kernel_variance(self, X, Y=None, *, log=False):
        """Return the closed-form variance of `approximate_kernel` at the fitted parameters.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_x, n_features)
            Queries.
        Y : {array-like, sparse matrix} of shape (n_y, n_features), default=None
            Keys; None takes X.
        log : bool, default=False
            Return the natural logarithm, which neither overflows nor underflows (-inf where the
            estimate is exact).

        Returns
        -------
        ndarray of shape (n_x, n_y)
            Variance over draws, about the mean of the estimate; a proven upper bound where
            ``kernel_variance_is_exact_`` is False.

        Raises
        ------
        NotImplementedError
            Where neither a closed form nor a bound is known; the message says what is.
        """
        X, Y = self._pair(X, Y)
        logs = self._log_variance(X, Y)
        if is_foreign(X):
            logs = like(logs, X)
        return logs if log else self._flagged(_exp(logs), X, "variances")

    @property
    def kernel_variance_is_exact_(self):
        """Whether `kernel_variance` is the variance itself and not an upper bound."""
        check_is_fitted(self)
        return True

    def _pair(self, X, Y):
        check_is_fitted(self)
        X = validate_rows(self, X, reset=False)
        return X, (X if Y is None else validate_rows(self, Y, reset=False, name="Y"))

    def _log_exact_kernel(self, X, Y):
        if self.kernel == "softmax":
            product = X @ Y.T
            return (product.toarray() if sp.issparse(product) else product) * self.sigma_**2
        return squared_distances(X, Y) * (-self.gamma_)

    def _flagged(self, values, X, what):
        """Return values, with a warning where some overflowed."""
        xp = namespace(values)
        if not bool(xp.all(xp.isfinite(values))):
            self._warn_of_range(X, f"{what} overflowed")
        return values

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _flaws(features, is_positive):
    """Return whether a row is 0 in all features, and whether one is infinite or NaN."""
    if is_positive:
        # One pass: a row sum is 0 only where all are, and finite where all are.
        with np.errstate(over="ignore", invalid="ignore"):
            sums = features @ np.ones(features.shape[1], features.dtype)
        return bool((sums == 0).any()), not bool(np.isfinite(sums).all())
    xp = namespace(features)
    top, low = xp.max(features, axis=1), xp.min(features, axis=1)
    has_vanished = bool(xp.any((top == 0) & (low == 0)))
    return has_vanished, not bool(xp.all(xp.isfinite(top) & xp.isfinite(low)))


def _exp(logs):
    with np.errstate(over="ignore"):
        return namespace(logs).exp(logs)


def _weighted_median(values, weights):
    """Return the median of values that are each repeated as often as their weight says."""
    order = np.argsort(values)
    shares = np.cumsum(weights[order])
    sides = [np.searchsorted(shares, shares[-1] / 2, side) for side in ("left", "right")]
    return float(np.mean(values[order[sides]]))


def _draw_seed(random_state):
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
