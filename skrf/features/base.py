"""The contract of every mechanism: what it learns, what it draws, and the maps it makes.

`fit` collects statistics; from them a mechanism learns parameters (`_learn`), draws random numbers
from a seed (`_draw`) and combines the two into feature maps (`_assemble`). These steps are pure
functions of the parameters at `fit`, and their results are kept together in one immutable `Fitted`.
Consumers hold the feature maps.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from numbers import Integral, Real
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from .._arrays import is_array_api, namespace, to_host
from .._batches import TakesBatches
from .._estimator import GAMMA, EstimatorBase, Unless
from .._memory import check_fits, components
from .._threads import narrow_blas, serial_blas
from .._typing import Array, RandomState
from .._validation import (
    Interval,
    StrOptions,
    check_unchanged,
    commit,
    draft_of,
    draw_seed,
    drop_zero_weights,
    freeze,
    validate_rows,
)
from ..projections.base import dense_bytes
from ..statistics import PairStatistics
from ._clusters import unique_rows
from ._kernel_matrix import KernelMatrixMixin
from ._map import FeatureMap, as_dtype, in_range, mapped
from ._sigma import resolve_sigma
from ._survey import fitted_to_survey

# Independent streams of random numbers, so that one choice never affects another.
OMEGA, PHASE, SUBSAMPLE, CHOICE, SPECTRUM, COEFFICIENTS, BASES = range(7)


def rng_of(seed, stream):
    """Return the generator of one stream of a seed."""
    return np.random.default_rng([seed, stream])


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows that a mechanism may look at one by one.

    Parameters
    ----------
    queries : ndarray or sparse matrix of shape (n, d)
        Queries.
    keys : ndarray or sparse matrix of shape (n_keys, d)
        Keys; the same object if there are no separate keys.
    weights : ndarray of shape (n,) or None
        Positive weights of the queries.
    seed : int
        Seed of the fit.
    labels : ndarray of shape (n,) or None, default=None
        Class codes of the queries.
    key_weights : ndarray of shape (n_keys,) or None, default=None
        Positive weights of the keys.
    """

    queries: object
    keys: object
    weights: np.ndarray | None
    seed: int
    labels: np.ndarray | None = None
    key_weights: np.ndarray | None = None
    _found: dict = field(default_factory=dict)

    def once(self, name, rng, make):
        """Return make(), cached because sigma does not enter; `rng` advances as if it had run."""
        if name not in self._found:
            self._found[name] = make(), rng.bit_generator.state
        value, rng.bit_generator.state = self._found[name]
        return value

    def kept_for(self, part):
        """Return the same rows, with a separate cache of `once` for a part of a mechanism."""
        return replace(self, _found=self._found.setdefault(part, {}))

    def distinct(self):
        """Return the distinct rows in lexicographic order, weighted by how often they occur."""
        queries, weights, labels = unique_rows(self.queries, self.weights, self.labels)
        keys, key_weights = queries, weights
        if self.keys is not self.queries:
            keys, key_weights, _ = unique_rows(self.keys)
        return Sample(queries, keys, weights, self.seed, labels, key_weights)

    def statistics(self, **options):
        """Return the `PairStatistics` of both sides."""
        keys = None if self.keys is self.queries else self.keys
        return PairStatistics.of(self.queries, keys, self.weights, self.key_weights, **options)

    def rng_of_rows(self):
        """Return the generator of the stream that subsamples are drawn from."""
        return rng_of(self.seed, SUBSAMPLE)


@dataclass(frozen=True, eq=False)
class Fitted:
    """The immutable result of a fit.

    Parameters
    ----------
    spec : mechanism
        An unfitted copy with the parameters of the fit.
    seed : int
        Source of all random numbers.
    statistics : PairStatistics
        Of the data.
    learned, draw : SimpleNamespace
        Parameters and random numbers; names that end with an underscore are public.
    queries, keys : FeatureMap
        The two sides, the same object for symmetric mechanisms.
    """

    spec: "BaseRandomFeatures"
    seed: int
    statistics: PairStatistics
    learned: SimpleNamespace
    draw: SimpleNamespace
    queries: FeatureMap
    keys: FeatureMap

    @classmethod
    def assemble(cls, spec, seed, statistics, learned, draw):
        """Combine parameters and random numbers into maps with read-only arrays."""
        maps = spec._assemble(learned, draw)
        return freeze(cls(spec, seed, statistics, learned, draw, *maps))

    @classmethod
    def to(cls, spec, statistics, sample, *, before=None):
        """Return the result of fitting a mechanism to statistics and rows.

        Parameters
        ----------
        spec : mechanism
            Unfitted, with the parameters to use.
        statistics : PairStatistics
            Of all data.
        sample : Sample
            The latest rows.
        before : Fitted, default=None
            An earlier result, whose random numbers are kept if the parameters allow it.
        """
        learned = spec._sizes()
        learned.n_features = len(statistics.queries.mean)
        check_fits(spec._n_bytes(learned, sample), components(spec), "its projections or centres")
        with narrow_blas(learned.n_features):
            learned.sigma = resolve_sigma(spec, statistics, sample)
            spec._learn(learned, statistics)
            spec._learn_from_rows(learned, sample)
            if before is not None and spec._keeps_draw(before.learned, learned):
                draw = before.draw
            else:
                draw = spec._draw(learned, sample.seed)
            return cls.assemble(spec, sample.seed, statistics, learned, draw)

    def redrawn(self, seed):
        """Return the same result with other random numbers."""
        draw = self.spec._draw(self.learned, seed)
        return self.assemble(self.spec, seed, self.statistics, self.learned, draw)

    @property
    def attributes(self):
        """Public attributes by name."""
        both = {**vars(self.learned), **vars(self.draw)}
        return {name: value for name, value in both.items() if name.endswith("_")}


def _obstacle_to_batches(mechanism):
    """Return why batches cannot be merged, or None."""
    obstacle = mechanism._obstacle_to_merging()
    if obstacle is not None:
        return (
            f"it learns {obstacle}, which cannot be computed batch by batch. Call fit on all rows "
            "or on a sample of them, or use a mechanism that learns from sums alone, such as "
            "DenseExponentialRF(sigma='scale')."
        )


def _obstacle_to_going_on(mechanism):
    """Return the same at the parameters of an earlier fit, if there was one."""
    return _obstacle_to_batches(mechanism._spec)


def _obstacle_to_logs(mechanism):
    """Return why features have no logarithms, or None."""
    if not mechanism.is_positive:
        return "its features have signs. Use a mechanism with is_positive=True."


class BaseRandomFeatures(
    KernelMatrixMixin,
    TakesBatches,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    EstimatorBase,
    ABC,
):
    """Base class of all random-feature mechanisms.

    See Also
    --------
    gaussian.GaussianRandomFeatures : Mechanisms with Gaussian projections.
    FeatureMap : What `fit` leaves behind.

    References
    ----------
    Rahimi and Recht, Random features for large-scale kernel machines (2007).
    """

    # A class lists the constraints it adds; only those of its constructor's parameters apply.
    _allowed = _parameter_constraints = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "sigma": [StrOptions({"scale", "median"}), Interval(Real, 0, None, closed="neither")],
        "kernel": [StrOptions({"gaussian", "softmax"})],
        "random_state": ["random_state"],
    }
    _foreign_parameters = GAMMA
    _needs_full_statistics = _needs_sizes = False
    _looks_at_rows = False  # at single rows, which are then weighted
    _reads_labels = False
    _is_bounded = False  # no row can vanish in all features, and no feature can overflow
    _fitted = None

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        cls._allowed = {**cls._allowed, **vars(cls).get("_parameter_constraints", {})}
        names = signature(cls.__init__).parameters
        cls._parameter_constraints = {n: own for n, own in cls._allowed.items() if n in names}

    # ---------------------------------------------------------------- what subclasses define

    # Before `fit`; afterwards the maps decide.
    _is_positive = False
    _is_symmetric = True
    _is_unbiased = True

    def _sizes(self):
        """Return a namespace with ``n_projections``, or raise ValueError for ``n_components``.

        A single column cannot hold a pair: mechanisms with pairs fold it with a random phase or
        sign, which keeps the estimate unbiased.
        """
        columns = self.columns_per_projection
        count, rest = divmod(int(self.n_components), columns)
        if rest and self.n_components > 1:
            nearest = [str(max(k * columns, 1)) for k in (count, count + 1)]
            raise ValueError(
                f"n_components={self.n_components} cannot be made by {type(self).__name__}: it "
                f"must be 1 or a multiple of {columns}, the columns of one projection. The nearest "
                f"allowed: {' and '.join(nearest)}."
            )
        return SimpleNamespace(n_projections=max(count, 1))

    def _n_columns(self, n_rows):
        """Return the number of output columns after a fit to this many rows."""
        columns = self._sizes().n_projections * self.columns_per_projection
        return min(columns, int(self.n_components))

    def _n_bytes(self, learned, sample):
        """Return about how many bytes a fit of these sizes holds, rather too few than too many."""
        return dense_bytes(learned.n_projections, learned.n_features)

    @abstractmethod
    def _learn(self, learned, statistics):
        """Add the parameters that depend only on statistics and ``learned.sigma``."""

    def _learn_from_rows(self, learned, sample):
        """Add what depends on single rows (centres, choices); such mechanisms do not merge."""

    @abstractmethod
    def _draw(self, learned, seed):
        """Return a namespace of random numbers."""

    def _keeps_draw(self, before, learned):
        """Return whether random numbers drawn for other parameters can be reused for these."""
        return before.n_projections == learned.n_projections

    @abstractmethod
    def _assemble(self, learned, draw):
        """Return the `FeatureMap` objects of queries and keys."""

    @abstractmethod
    def _log_variance(self, fitted, X, Y):
        """Return the log variance of the estimate for all pairs of rows."""

    def _check_variance(self, learned):
        """Raise NotImplementedError if `_log_variance` is unknown, without computing anything."""

    def _log_term_range(self, fitted, X, Y, upper):
        """Return the log range of the terms that the estimate averages, or raise."""
        raise ValueError(
            "hoeffding_bound and bernstein_bound need bounded, independent terms, but "
            f"{self!r} has none. These have them with coupling='iid' and projection='dense': "
            "RFFSampler; OptimalPositiveRF and GeneralizedExponentialRF, where the real part of "
            "the fitted A_ is negative; PositiveRF(variant='regularized'). For side='upper' those "
            "whose features are positive may have coupling='orthogonal' or 'simplex', too."
        )

    def _log_term_variance(self, fitted, X, Y):
        """Return the log variance of a term, if terms are independent."""
        return self._log_variance(fitted, X, Y) + np.log(fitted.learned.n_projections)

    def _log_block_moment(self, fitted, X, Y):
        """Return the log of the summed second moments of the blocks' parts, or raise."""
        raise ValueError(
            "left_tail_bound needs features that are never negative, in independent blocks, but "
            f"{self!r} has none. These have them with projection='dense': PositiveRF, "
            "OptimalPositiveRF and, where A_ is real and s_ is 1, GeneralizedExponentialRF with "
            "coupling='iid', 'orthogonal' or 'simplex'; DenseExponentialRF with 'iid' or "
            "'orthogonal'; PoissonRF, GeometricRF and DiscreteRF with positive=True."
        )

    def _variance_is_exact(self, learned):
        """Return whether `_log_variance` is exact rather than a bound."""
        return True

    @property
    def columns_per_projection(self) -> int:
        """Number of columns per projection."""
        return 1

    def _obstacle_to_merging(self):
        """Return what is learned from more than mergeable statistics, or None."""
        if self._looks_at_rows:
            return "centres of clusters"
        return "sigma='median'" if self.sigma == "median" else None

    @property
    def needs_data(self) -> bool:
        """Whether every member of the family needs statistics of data."""
        return False

    def _labels(self, y, kept, keys):
        """Return class codes of the kept rows of y; None if labels are ignored."""

    def _sample(self, X, keys, weights, seed, labels=None):
        """Return the rows that parameters are learned from."""
        sample = Sample(X, X if keys is None else keys, weights, seed, labels)
        return sample.distinct() if self._looks_at_rows else sample

    def _forget_data(self, learned):
        """Set the parameters to those of the member of the family that needs no data."""

    # ---------------------------------------------------------------- claims

    def _as_spec(self):
        """Return an unfitted copy that later changes of parameters do not affect."""
        return draft_of(self)

    @property
    def _spec(self):
        """A mechanism with the parameters in effect: those of the fit, if there was one."""
        return self if self._fitted is None else self._fitted.spec

    @property
    def is_positive(self) -> bool:
        """Whether no feature is negative.

        Features are 0 only in blocks of clusters that a row does not belong to.
        """
        return self._is_positive if self._fitted is None else self._fitted.queries.is_positive

    @property
    def is_unbiased(self) -> bool:
        """Whether the mean of the estimate is the kernel."""
        return self._spec._is_unbiased

    @property
    def is_symmetric(self) -> bool:
        """Whether `transform` and `transform_keys` are the same function."""
        fitted = self._fitted
        return self._is_symmetric if fitted is None else fitted.queries is fitted.keys

    # ---------------------------------------------------------------- fitting

    def fit(
        self,
        X: Array,
        y: Any = None,
        sample_weight: Array | None = None,
        *,
        keys: Array | None = None,
    ) -> Self:
        """Compute statistics and optimal parameters from the data, and draw.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Queries.
        y : array-like of shape (n_samples,), default=None
            Class labels of X, for mechanisms with a parameter ``centers``, which look for clusters
            within classes; ignored by others, if keys are given, and if labels are not discrete.
            Floats are treated as regression targets and are ignored unless ``centers="classes"``.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the queries, at least 0; rows of weight 0 are dropped. For mechanisms that
            look at single rows, weights count as repetitions.
        keys : {array-like, sparse matrix} of shape (n_keys, n_features), default=None
            Keys, on the same scale as X; None means X. Search utilities split fit parameters that
            have the length of X, and a Pipeline does not transform them: with either, pass keys
            that are already prepared, or leave them out.

        Returns
        -------
        self : object
            The fitted mechanism.

        Raises
        ------
        ValueError
            If a parameter, X, the weights or the keys are invalid; the message names the
            parameter, its value and what is allowed.
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

        Statistics and parameters equal those of `fit` on all batches together, to rounding. The
        random numbers are drawn at the first call and kept. Not available with ``sigma="median"``,
        which has no mergeable statistic, and for mechanisms that look at single rows.

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
        """Fit to statistics of rows instead of the rows; those of parts can be merged.

        Gives the result of `fit` on the rows, to rounding.

        Parameters
        ----------
        statistics : skrf.statistics.PairStatistics
            Of queries and keys. ``PairStatistics.of(X, full=True)`` has everything that any
            mechanism needs, and ``one.merge(other)`` gives the statistics of the rows of both.

        Returns
        -------
        self : object
            The fitted mechanism.

        Raises
        ------
        TypeError
            If `statistics` has another type.
        ValueError
            If the mechanism needs moments that `statistics` lacks.
        """
        self._validate_params()
        self._sizes()
        if not isinstance(statistics, PairStatistics):
            raise TypeError(f"statistics must be a PairStatistics, got {statistics!r:.60}.")
        _check_weight(statistics)
        sides = statistics.queries, statistics.keys
        lacks = {
            "covariances": self._needs_full_statistics
            and any(side.covariance.ndim < 2 for side in sides),
            "minimum and mean_absolute": self._needs_sizes
            and any(np.isnan(side.minimum).any() for side in sides),
        }
        if any(lacks.values()):
            raise ValueError(
                f"{type(self).__name__} needs statistics with {max(lacks, key=lacks.get)}, which "
                "these are without: make them with PairStatistics.of(X, full=True)."
            )
        draft = draft_of(self)
        draft.n_features_in_ = len(statistics.queries.mean)
        sample = Sample(None, None, None, draw_seed(self.random_state))
        return commit(self, draft._set(Fitted.to(self._as_spec(), statistics, sample)))

    def _passes(self, classes, scope):
        """Return the passes of a fit to batches, as `skrf._batches.driven` takes them."""
        return fitted_to_survey(self, scope)

    def learns_from(self, y: Array) -> bool:
        """Return whether this y changes what `fit` learns from the rows.

        Parameters
        ----------
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Labels or targets.

        Returns
        -------
        bool
            True for labels that decide where to look for clusters.
        """
        return self._labels(y, slice(None), None) is not None

    def fit_each(
        self,
        sigmas: Iterable[float],
        X: Array,
        y: Array | None = None,
        sample_weight: Array | None = None,
    ) -> Iterator[Self]:
        """Yield a fitted copy for every sigma, sharing one draw, the statistics and the clusters.

        Each equals the result of `fit` at its sigma with the same seed, to rounding.

        Parameters
        ----------
        sigmas : iterable of float
            Values of the parameter sigma.
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,), default=None
            As in `fit`.
        sample_weight : array-like of shape (n_samples,), default=None
            As in `fit`.

        Yields
        ------
        mechanism
            The fitted copy.
        """
        draft, statistics, sample = self._gather(X, sample_weight, None, y=y)
        fitted = None
        for sigma in sigmas:
            own = copy.copy(draft).set_params(sigma=sigma)
            own._validate_params()
            fitted = Fitted.to(own._as_spec(), statistics, sample, before=fitted)
            yield own._set(fitted)

    def _fit(self, X, sample_weight, keys, *, before, y=None):
        draft, statistics, sample = self._gather(X, sample_weight, keys, before=before, y=y)
        spec = self._as_spec() if before is None else before.spec
        draft._set(Fitted.to(spec, statistics, sample, before=before))
        return commit(self, draft)

    def _gather(self, X, sample_weight, keys, *, before=None, y=None):
        """Return a draft to fit, and the statistics and rows to learn from."""
        self._validate_params()
        self._sizes()
        draft = draft_of(self, forget=before is None)
        X = to_host(validate_rows(draft, X, reset=before is None))
        if self._reads_labels and y is not None and keys is None:
            check_consistent_length(X, y)
        sample_weight, X, kept = drop_zero_weights(sample_weight, X, np.arange(X.shape[0]))
        if keys is not None:
            keys = to_host(validate_rows(draft, keys, reset=False, name="keys"))
        seed = draw_seed(self.random_state) if before is None else before.seed
        labels = self._labels(y, kept, keys)
        sample = self._sample(X, keys, sample_weight, seed, labels)
        statistics = sample.statistics(full=self._needs_full_statistics)
        if before is not None:
            statistics = before.statistics.merge(statistics)
            _check_weight(statistics)
        return draft, statistics, sample

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
            The mechanism with new random numbers.

        Raises
        ------
        NotFittedError
            Before `fit`.
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
            The fitted mechanism.

        Raises
        ------
        ValueError
            If there is no such member, or sigma is not a number.
        """
        if self.needs_data:
            raise ValueError(f"{self!r} needs statistics of data: call fit.")
        if isinstance(self.sigma, str):
            raise ValueError(
                f"sigma must be a number for fit_without_data, because sigma={self.sigma!r} stands "
                f"for a number that data give; got {self!r}. Pass one, or call fit."
            )
        fitted = clone(self).fit(np.zeros((1, n_features)))._fitted
        fitted.spec._forget_data(fitted.learned)
        draft = draft_of(self)
        draft.n_features_in_ = n_features
        return commit(self, draft._set(fitted.redrawn(fitted.seed)))

    def adapted(self, X: Array, keys: Array | None = None) -> Self:
        """Return a copy fitted to other data with the same random numbers.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Queries, of any library. From libraries other than NumPy, only sums are copied to the
            host if the mechanism needs no more.
        keys : array of shape (n_keys, n_features), default=None
            Keys; None takes X.

        Returns
        -------
        mechanism
            The fitted copy, whose centres and counts are drawn from the same seed.

        Raises
        ------
        NotFittedError
            Before `fit`.
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
        """The `FeatureMap` objects of queries and keys, which consumers hold."""
        fitted = self._known
        return fitted.queries, fitted.keys

    @property
    def sigma_(self) -> float:
        """Multiplier of the inputs: sigma = 1 / length_scale = sqrt(2 gamma)."""
        return self._known.learned.sigma

    @property
    def gamma_(self) -> float:
        """Gamma of the equivalent RBF kernel exp(-gamma |x - y|^2): sigma^2 / 2."""
        return self.sigma_**2 / 2

    @property
    def length_scale_(self) -> float:
        """Length scale of the equivalent RBF kernel: 1 / sigma."""
        return 1 / self.sigma_

    @property
    def n_components_(self) -> int:
        """Number of output columns."""
        return self._known.queries.n_columns

    @property
    def n_projections_(self) -> int:
        """Number of projections."""
        return self._known.learned.n_projections

    @property
    def seed_(self) -> int:
        """The integer drawn from ``random_state``."""
        return self._known.seed

    @property
    def _n_features_out(self):
        return self.n_components_

    def __sklearn_is_fitted__(self):
        return self._fitted is not None

    # ---------------------------------------------------------------- maps

    def transform(self, X: Array) -> Array:
        """Return the query-side features of X.

        ``transform(X) @ transform_keys(Y).T`` estimates the kernel of X and Y.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Queries, NumPy, SciPy sparse, CuPy or torch.

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

    def transform_keys(self, Y: Array) -> Array:
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
    def log_transform(self, X: Array) -> Array:
        """Return the logarithms of the query-side features, finite at every sigma.

        Only for mechanisms with positive features. Mechanisms with clusters give -inf in blocks
        that a row does not belong to.

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
    def log_transform_keys(self, Y: Array) -> Array:
        """Return the logarithms of the key-side features, finite at every sigma.

        Only for mechanisms with positive features. Mechanisms with clusters give -inf in blocks
        that a row does not belong to.

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

    def _rows(self, X, *, keys, name):
        """Return the map of one side, and validated rows in the precision they need."""
        feature_map = self.feature_maps_[keys]
        X = validate_rows(self, X, reset=False, name=name)
        return feature_map, in_range(feature_map, X, name), X.dtype

    def _logs(self, X, *, keys, name):
        feature_map, X, dtype = self._rows(X, keys=keys, name=name)
        return as_dtype(mapped(feature_map, X).values, dtype)

    def _features(self, X, *, keys, name):
        feature_map, X, dtype = self._rows(X, keys=keys, name=name)
        found = [(False, False)]

        def look(features):
            if not self._fitted.spec._is_bounded:
                is_positive = feature_map.is_positive and not is_array_api(features)
                found.append(_flaws(features, is_positive))

        features = mapped(feature_map, X, plain=True, look=look)
        if features.dtype != dtype or is_array_api(features):
            features = as_dtype(features, dtype)
            with serial_blas():
                look(features)
        has_vanished, has_overflowed = (any(flaw) for flaw in zip(*found, strict=True))
        if has_vanished:
            others = " and others overflowed" if has_overflowed else ""
            self._warn_of_range(f"Rows of features of {name} vanished{others}", dtype)
        elif has_overflowed:
            self._warn_of_range(f"Features of {name} overflowed", dtype)
        return features

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


def _flaws(features, is_positive):
    """Return whether a row is 0 in all features, and whether one is infinite or NaN."""
    if is_positive:
        # One pass: a row sum is 0 only if all entries are, and finite only if all are.
        with np.errstate(over="ignore", invalid="ignore"):
            sums = features @ np.ones(features.shape[1], features.dtype)
        return bool((sums == 0).any()), not bool(np.isfinite(sums).all())
    xp = namespace(features)
    top, low = xp.max(features, axis=1), xp.min(features, axis=1)
    has_vanished = bool(xp.any((top == 0) & (low == 0)))
    return has_vanished, not bool(xp.all(xp.isfinite(top) & xp.isfinite(low)))
