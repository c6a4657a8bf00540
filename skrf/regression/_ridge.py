"""Code shared by ridge estimators: their fit, how alpha is found, and predictions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from numbers import Integral, Real
from typing import Any, Literal, Self, overload

import numpy as np
import scipy.sparse as sp
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from .._arrays import namespace, rounding_of, to_host
from .._estimator import SIGMAS
from .._memory import check_fits
from .._sums import Memory
from .._threads import narrow_blas, run_all
from .._typing import Array, RandomState, Result, Sigma, Transformer
from .._validation import (
    Interval,
    StrOptions,
    check_indicators,
    check_integer,
    check_positive,
    commit,
    draw_seed,
    naming,
    read_only,
    validate_rows,
)
from ..features import ClusterNystroem, RFFSampler
from .base import SIGMA, KernelEstimator
from .batches import HAS_FOLDS, searches
from .blocks import beside_threads, blocks_of
from .exact import KernelMap
from .held import (
    features_of,
    in_basis,
    is_smaller,
    judged_apart_in_row_space,
    judged_in_row_space,
)
from .leave_one_out import leave_one_out_errors
from .mixins import Classification, Regression, in_dtype, predictions_in
from .moments import (
    ClassMoments,
    Moments,
    bytes_of_moments,
    check_range,
    moments_of_rows,
    plain_features,
    rounding_of_products,
)
from .rows import FEW_ROWS, ClassRows
from .scoring import KnownDecisions, KnownPredictions, scorer_of
from .search import (
    ROUNDING,
    Criterion,
    SigmaSearch,
    choose,
    maps_of,
    positive_array,
    resolved,
)
from .solve import PairRidges, Ridge, Spectrum, discriminants, ridge_of, solve, solved

# Rounding of exponentials times coefficients stays below 1e-9 of the targets.
_LARGEST_COEF = 1e-9 / np.finfo(float).eps
_SCORED = 1e-3  # rounding of what is scored, of the ridge: scores then differ by less than 1e-5
POSITIVE = Interval(Real, 0, None, closed="neither")


@dataclass(frozen=True, eq=False)
class Targets:
    """Targets of rows, computed block by block: scaled numbers, or -1 and 1 for every class.

    Parameters
    ----------
    values : ndarray of shape (n, T), or (n,) with classes
        Numbers, or the codes of the classes.
    unit : ndarray of shape (T,)
        Powers of 2.
    shape : tuple
        () for a single target without an axis, otherwise (T,).
    classes : ndarray of shape (T,), default=None
        Codes of the classes whose targets are 1.
    """

    values: np.ndarray
    unit: np.ndarray
    shape: tuple
    classes: np.ndarray | None = None

    def __call__(self, rows):
        """Return the targets of a slice of rows, (n, T)."""
        if self.classes is None:
            return self.values[rows] / self.unit
        return np.where(self.values[rows, None] == self.classes, 1.0, -1.0)

    def __getitem__(self, rows):
        """Return the targets of some rows."""
        return Targets(self.values[rows], self.unit, self.shape, self.classes)


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """Feature maps with the moments of all rows so far and, at the end, the solution; immutable.

    Parameters
    ----------
    params : dict
        Parameters of the estimator at its first fit.
    maps : tuple of FeatureMap
        Maps of queries and keys; only the first is used.
    shape : tuple
        As in `Targets`.
    n_classes : int
        Number of classes whose moments are kept apart; 0 if all rows are summed together.
    least_alpha : float
        The smallest ridge that may be added, or 0 if that is not known.
    total : float, default=None
        Weight of all rows that will be summed, if they come in batches.
    moments : Moments, ClassMoments or ClassRows, default=None
        Moments of all rows so far, or all rows themselves.
    ridge : Ridge or PairRidges, default=None
        The solution.
    penalty : ndarray of shape (M, M), default=None
        As in `Moments`.
    basis : ndarray of shape (M, r), default=None
        Orthonormal columns that span few rows, if moments are those of coordinates in them.
    is_solved : bool, default=True
        Whether all rows will be solved for; otherwise moments are compared, and there is no basis.
    """

    params: dict
    maps: tuple
    shape: tuple
    n_classes: int
    least_alpha: float
    total: float | None = None
    moments: Moments | ClassMoments | ClassRows | None = None
    ridge: Ridge | PairRidges | None = None
    penalty: np.ndarray | None = None
    basis: np.ndarray | None = None
    is_solved: bool = True

    @property
    def emptied(self):
        """The fit before the first row."""
        return replace(self, moments=None, basis=None)

    @property
    def unit(self):
        """The largest unit of targets."""
        return self.moments.together.unit.max()

    @cached_property
    def reader(self):
        """What predicts: the map and the solution, or those of the inner map where it is precise.

        Targets are about 1 in the units of the coefficients.
        """
        feature_map = self.maps[0]
        if feature_map.inner is None:
            return feature_map, self.ridge
        coef = feature_map.matrix @ self.ridge.coef
        if np.abs(coef).sum(axis=0).max() > _LARGEST_COEF:
            return feature_map, self.ridge
        return feature_map.inner, replace(self.ridge, coef=coef)

    def added(self, data):
        """Return an unsolved fit with more rows."""
        if isinstance(self.moments, ClassRows):  # it has them
            return self
        total = self.total or self.moments.weight + data.total
        share = data.total / total if total < np.inf else 0.0
        feature_map, X, basis = self.maps[0], data.X, None
        least = share * self.least_alpha
        with beside_threads(feature_map):
            if self._takes_basis(data):
                basis, feature_map, X = in_basis(feature_map, X)
            if self.n_classes:
                rows = X, data.values.values, self.n_classes, data.sample_weight
                moments = ClassMoments.of_rows(feature_map, *rows, least)
            else:
                rows = X, data.values, data.sample_weight
                moments = moments_of_rows(feature_map, *rows, least)
                moments = replace(moments, penalty=self.penalty)
        return self.merge(replace(self, moments=moments, basis=basis))

    def _takes_basis(self, data):
        """Return whether these are all rows, and so few that a basis of their own pays."""
        is_whole = self.is_solved and self.moments is None and data.total == self.total
        return is_whole and 2 * len(data.y) <= (self.maps[0].n_columns or 0)

    def merge(self, other):
        """Return an unsolved fit to the rows of both."""
        if self.moments is None or other.moments is None:
            return self if other.moments is None else other
        moments = self._of_features.merge(other._of_features)
        return replace(self, moments=moments, basis=None, ridge=None)

    @property
    def _of_features(self):
        """The moments of the features themselves."""
        if self.basis is None:
            return self.moments
        n_columns, n_targets = len(self.basis), len(self.moments.together.unit)
        n_bytes = max(self.n_classes, 1) * bytes_of_moments(n_columns, n_targets)
        check_fits(n_bytes, f"feature_map with {n_columns} columns", "their second moments")
        return self.moments.times(self.basis.T)


class _BaseRidge(KernelEstimator):
    """Code shared by all ridge estimators.

    A subclass defines `_least_alpha()`, `_solved(moments)` and `_solution(moments, alpha)`.
    """

    _default_map = ClusterNystroem(512)
    _default_map_of_sparse = RFFSampler(512)  # also of a first batch

    sigma = None

    def _solves_in_rows(self, data):
        """Return whether pairs of classes are solved on the exact kernel of their rows."""
        return False

    def _default_for(self, data, is_first_batch=False):
        if self.feature_map is not None and not self._solves_in_rows(data):  # "exact"
            return ClusterNystroem(len(data.y))
        # Landmarks would be dense, and those of a first batch unlike the others.
        if is_first_batch or sp.issparse(data.X):
            return self._default_map_of_sparse
        return self._default_map

    def _fit_map(self, data, is_first_batch=False):
        self._least_alpha()  # raise before any work
        feature_map = self._prepared(self.sigma, default=self._default_for(data, is_first_batch))
        feature_map = self._sized(self._check_size(feature_map, data), data)
        self.feature_map_ = data.fitted(feature_map)
        if hasattr(self.feature_map_, "sigma_"):
            self.sigma_ = self.feature_map_.sigma_
        return self._before(maps_of(self.feature_map_), data)

    def _sized(self, feature_map, data):
        """Return a prepared map, or that with another sigma."""
        return feature_map

    def _bytes_of_sums(self, n_columns, data):
        return bytes_of_moments(n_columns, len(data.values.unit))

    def _before(self, maps, data):
        n_classes, least_alpha = self._n_apart(maps[0].n_columns or 0), self._least_alpha()
        return RidgeFit(
            self.get_params(), maps, data.values.shape, n_classes, least_alpha, data.total
        )

    def _scored(self, maps, data):
        """Return a fit to no rows for scores alone.

        Where digits allow, features are those of the inner map, and the matrix enters the penalty.
        """
        fit, feature_map = self._before(maps, data), maps[0]
        fit = replace(fit, n_classes=0, is_solved=False)
        lower, magnification = feature_map.cholesky
        if lower is None:
            return fit
        rounding = magnification * rounding_of_products(feature_map.inner, data.X, data.total)
        if rounding > _SCORED * self._least_alpha():
            return fit
        return replace(fit, maps=(feature_map.inner,) * 2, penalty=feature_map.gram)

    def _n_apart(self, n_columns):
        """Return of how many classes the moments of so many features are kept apart."""
        return 0

    def _decided(self, moments):
        """Return the solution that predictions are made from."""
        return self._solved(moments.together)

    def _finished(self, fitted):
        with narrow_blas(fitted.moments.n_columns):
            ridge = self._decided(fitted.moments)
        if fitted.basis is not None:
            ridge = ridge.lifted(fitted.basis)
        moments = None if isinstance(fitted.moments, ClassRows) else fitted.moments
        return super()._finished(replace(fitted, moments=moments, ridge=ridge, total=None))

    @property
    def coef_(self) -> None:
        """Refused, because other tools read it as one coefficient per column of X."""
        raise AttributeError(
            f"{type(self).__name__} has no coef_, which would hold coefficients of the columns of "
            "X: component_coef_ holds those of the components of feature_map_."
        )

    @property
    def _outputs(self):
        return self._fitted.shape

    def _hold(self, fitted):
        ridge = fitted.ridge
        coef, intercept = map(read_only, ridge.linear)
        self.alpha_, self.intercept_ = ridge.alpha, intercept
        if not isinstance(fitted.maps[0], KernelMap):
            self.component_coef_ = coef.T
        if not is_classifier(self):
            with np.errstate(over="ignore"):
                self.noise_variance_ = read_only(ridge.deviation**2)
            if not fitted.shape:
                self.component_coef_, self.intercept_ = coef[:, 0], float(intercept[0])
        return super()._hold(fitted)

    def _of_features(self, X, feature_map, function):
        """Return the concatenated results of function(features) for blocks, and the rows' dtype."""
        X, memory = validate_rows(self, X, reset=False), Memory()

        def answer(rows):
            with np.errstate(over="ignore", invalid="ignore"):
                return function(plain_features(feature_map, X[rows, :], memory))

        size, map_blocks = blocks_of(feature_map, X)
        parts = map_blocks(answer, X.shape[0], size)
        predictions = namespace(parts[0]).concat(parts, axis=0)
        check_range(predictions)
        return predictions, X.dtype


# ---------------------------------------------------------------- how alpha is found


class _Plain(_BaseRidge):
    """Ridge with a given alpha or that of the marginal likelihood; rows may come in batches."""

    _parameter_constraints = {
        **_BaseRidge._parameter_constraints,
        "sigma": [StrOptions({"scale", "median"}), SIGMA, None],
        "alpha": [POSITIVE, StrOptions({"evidence"})],
    }
    noise_variance = None

    def __init__(
        self,
        feature_map: Transformer | Literal["exact"] | None = None,
        *,
        sigma: Sigma | Literal["evidence"] | None = None,
        alpha: float | Literal["evidence"] = 1.0,
        random_state: RandomState = None,
    ) -> None:
        self.feature_map = feature_map
        self.sigma = sigma
        self.alpha = alpha
        self.random_state = random_state

    def _least_alpha(self):
        """Return what will be added to the diagonal, or 0 if that is not known yet."""
        if self.noise_variance is not None:
            return check_positive("noise_variance", self.noise_variance)
        return 0.0 if self.alpha == "evidence" else check_positive("alpha", self.alpha)

    def _needs_all_eigenvalues(self):
        return self.alpha == "evidence"

    def _solved(self, moments):
        alpha = self._least_alpha()
        if not alpha:
            return Spectrum(moments).solved_by_evidence()
        return self._solution(moments, alpha)


class _Search(_BaseRidge):
    """Ridge with a search for alpha and sigma."""

    _parameter_constraints = {
        **_BaseRidge._parameter_constraints,
        "sigmas": ["array-like", Interval(Integral, 2, None, closed="left"), None],
        "alphas": ["array-like"],
        "cv": ["cv_object"],
        "scoring": [str, callable, None],
        "verbose": ["verbose"],
    }
    _foreign_parameters = SIGMAS
    _decades = -1, 1  # of a grid, relative to sigma="scale"

    def __init__(
        self,
        feature_map: Transformer | Literal["exact"] | None = None,
        *,
        sigmas: int | Array | None = 10,
        alphas: Array = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0),
        cv: Any = 5,
        scoring: str | Callable | None = None,
        random_state: RandomState = None,
        verbose: int = 0,
    ) -> None:
        self.feature_map = feature_map
        self.sigmas = sigmas
        self.alphas = alphas
        self.cv = cv
        self.scoring = scoring
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Array,
        y: Array,
        sample_weight: Array | None = None,
        groups: Array | None = None,
    ) -> Self:
        """Score every sigma on every fold, and refit with the best one on all rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets, or the labels of a classifier.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, at least 0, of the rows in fits and scores; rows of weight 0 are dropped.
        groups : array-like of shape (n_samples,), default=None
            Groups of rows for a splitter that keeps them together, such as GroupKFold.

        Returns
        -------
        self : object
            The fitted estimator.

        Warns
        -----
        UserWarning
            If there are fewer rows, or fewer rows of the largest class, than folds; the search then
            uses as many folds of two or more rows as possible.
        """
        if self.sigmas is None:
            return self._fit_one_sigma(X, y, sample_weight)
        search = SigmaSearch.of(self, X, y, sample_weight, groups)
        draft = search.model
        if draft._solves_in_rows(search.data):
            return commit(self, draft._finished(draft._searched_in_rows(search)))
        criterion = draft._criterion(search.data)
        n_rows = len(search.data.y) - search.is_apart * min(map(len, search.tests))
        if is_smaller(search.feature_map, n_rows):
            judge = judged_apart_in_row_space if search.is_apart else judged_in_row_space
            runs = judge(search, criterion)
        else:
            runs = search.runs(criterion)
        draft.feature_map_, fitted = search.chosen(runs, criterion)
        is_whole = fitted is not None and fitted.penalty is None
        if draft._chooses_again(search) or not is_whole:
            draft.feature_map_, fitted = search.made_at(draft.sigma_)
        return commit(self, draft._finished(fitted))

    def _passes(self, classes, scope):
        if self.sigmas is None:
            return super()._passes(classes, scope)
        self._validate_params()
        if self.scoring is not None:
            raise ValueError(
                f"scoring must be None for rows that come in batches, got {self.scoring!r}: their "
                "sums give squared errors alone."
            )
        return searches(self, classes, scope)

    def _obstacle_to_batches(self):
        return super()._obstacle_to_batches() or HAS_FOLDS

    def _map_at(self, sigma, data=None):
        default = data and self._default_for(data)
        return self._prepared(sigma=sigma, hint="Use sigmas=None", default=default)

    def _criterion(self, data):
        """Return how a search scores held-out rows, or their sums, for all alphas at once."""
        score = scorer_of(self)
        if score is not None:
            alphas = positive_array("alphas", self.alphas)
            return Criterion(
                partial(self._scores_of_alphas, score), True, {"alpha": alphas}, ceiling=None
            )
        alphas, rounding = positive_array("alphas", self.alphas), ROUNDING
        if not is_classifier(self):  # errors come from far larger squares
            rounding *= np.var(data.values.values / data.values.unit, axis=0).mean()

        def judge(train, _, test):
            # Together they hold all rows, so the unit is the same for all folds.
            train, test = train.moments.together, test.moments.together
            unit = np.maximum(train.unit, test.unit)
            train, test = train.in_units(unit), test.in_units(unit)
            coefs = np.stack(run_all(partial(solve, train), alphas), axis=2)
            return -test.mean_errors(train, coefs)

        unit = data.values.unit.max()
        return Criterion(judge, False, {"alpha": alphas}, unit=unit, rounding=rounding)

    def _scores_of_alphas(self, score, train, test, _):
        """Return the scores by scikit-learn of all alphas."""
        features = features_of(train.maps[0], test.X)
        moments, scores = train.moments.together, []
        for alpha in positive_array("alphas", self.alphas):
            ridge = ridge_of(moments, alpha, solve(moments, alpha))
            scores.append(score(self._known(ridge, moments, features, test), test))
        return np.array(scores)

    def _chooses_again(self, search):
        """Choose what sums cannot score, and return whether it needs other sums."""
        return False

    def _needs_all_eigenvalues(self):
        return self.sigmas is None  # for leave-one-out

    def _decisions_to_score(self):
        """Return the decisions of a classifier that sums cannot score."""
        return ()

    def _least_alpha(self):
        return getattr(self, "alpha_", positive_array("alphas", self.alphas).min())

    def _finished(self, fitted):
        draft = super()._finished(fitted)
        if self.sigmas is not None:  # nothing can be added to a search
            self._fitted = replace(self._fitted, moments=None)
        return draft

    def _fit_one_sigma(self, X, y, sample_weight):
        """Fit with the map's own sigma, and the alpha of exact leave-one-out."""
        draft, data = self._read(X, y, sample_weight)
        fitted = draft._fit_map(data).added(data)
        moments, alphas = fitted.moments.together, positive_array("alphas", self.alphas)
        with beside_threads(fitted.maps[0]), narrow_blas(moments.n_columns):
            errors = leave_one_out_errors(fitted.maps[0], data, moments, alphas, fitted.basis)
        draft._choose_alpha(moments, errors)
        return commit(self, draft._finished(fitted))

    def _choose_alpha(self, moments, errors):
        sigmas = [self.feature_map_.sigma_] if hasattr(self.feature_map_, "sigma_") else []
        others = {"alpha": positive_array("alphas", self.alphas)}
        rounding = ROUNDING * np.mean(moments.squares) / moments.weight
        criterion = Criterion(None, False, others, unit=moments.unit.max(), rounding=rounding)
        choose(self, [([-errors], None, None)], sigmas, criterion, is_split=False)

    def _solved(self, moments):
        if not hasattr(self, "alpha_"):  # of batches, which are not seen again
            alphas = positive_array("alphas", self.alphas)
            self._choose_alpha(moments, Spectrum(moments).cross_validation(alphas))
        return self._solution(moments, self.alpha_)


# ---------------------------------------------------------------- predictions


class _Regression(Regression):
    """Predictions of numbers, with standard deviations."""

    def _to_sum(self, y, classes):
        values = y.reshape(len(y), -1)
        largest = np.maximum(values.max(axis=0), -values.min(axis=0))
        unit = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1.0))))
        return y, np.zeros(len(y), dtype=int), Targets(values, unit, y.shape[1:]), 1

    def _solution(self, moments, alpha):
        noise = vars(self).get("noise_variance")
        return solved(moments, alpha, noise=None if noise is None else alpha)

    def _known(self, ridge, moments, features, test):
        """Return what stands for the regressor of a solution on test rows."""
        return KnownPredictions(ridge.means(features).reshape(test.y.shape))

    @overload
    def predict(self, X: Array) -> Result: ...
    @overload
    def predict(
        self, X: Array, return_std: bool = ..., return_cov: bool = ...
    ) -> tuple[Result, Result]: ...
    def predict(self, X: Array, return_std: bool = False, return_cov: bool = False) -> Any:
        """Return predictions and, on request, standard deviations or covariances of the targets.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        return_std : bool, default=False
            Whether to return posterior standard deviations, which include the noise.
        return_cov : bool, default=False
            Whether to return posterior covariances; the diagonal holds the squares of these
            deviations. The part of the kernel that landmarks do not span counts on the diagonal
            only.

        Returns
        -------
        mean : array of shape (n_samples,) or (n_samples, n_outputs)
            Predictions.
        std : array of shape (n_samples,) or (n_samples, n_outputs)
            Standard deviations, if `return_std` is True.
        cov : ndarray of shape (n_samples, n_samples) or (n_samples, n_samples, n_outputs)
            Covariances, if `return_cov` is True.

        Raises
        ------
        ValueError
            If there were too few rows to estimate the noise, or if both `return_std` and
            `return_cov` are True.
        MemoryError
            If the covariances of so many rows cannot be held.

        Warns
        -----
        RuntimeWarning
            If X is in float32 and predictions overflow or underflow there.
        """
        check_is_fitted(self)
        ridge, shape = self._fitted.ridge, self._fitted.shape
        if return_std and return_cov:
            raise ValueError("return_std and return_cov must not both be True.")
        if return_std:
            self._check_noise("return_std=True")
        if return_cov:
            covariances = self._covariances(X)  # first, because there may be too many to hold
            return self.predict(X), covariances
        feature_map, solution = self._fitted.reader
        functions = (solution.means,)
        if return_std:
            feature_map = self._fitted.maps[0]
            functions = (
                ridge.means,
                partial(ridge.deviations, is_projected=feature_map.is_projected),
            )

        def both(features):
            return namespace(features).concat(
                [function(features) for function in functions], axis=1
            )

        predictions = predictions_in(*self._of_features(X, feature_map, both))
        xp, size = namespace(predictions), len(ridge.intercept)
        starts = range(0, predictions.shape[1], size)
        parts = [xp.reshape(predictions[:, a : a + size], (-1, *shape)) for a in starts]
        return tuple(parts) if return_std else parts[0]

    def sample_y(self, X: Array, n_samples: int = 1, random_state: RandomState = 0) -> np.ndarray:
        """Return functions drawn from the posterior, at given rows and without the targets' noise.

        The same seed gives the same functions, whatever the rows. They also leave out the part of
        the kernel that landmarks do not span.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_rows, n_features)
            Rows.
        n_samples : int, default=1
            Number of functions.
        random_state : int, RandomState instance or None, default=0
            Source of the draw.

        Returns
        -------
        ndarray of shape (n_rows, n_samples) or (n_rows, n_outputs, n_samples)
            Values of the functions.

        Raises
        ------
        ValueError
            If there were too few rows to estimate the noise.
        MemoryError
            If values of so many functions cannot be held.
        """
        check_is_fitted(self)
        self._check_noise("sample_y")
        ridge, n_samples = self._fitted.ridge, check_integer("n_samples", n_samples)
        n_rows, (n_columns, n_targets) = (
            validate_rows(self, X, reset=False).shape[0],
            ridge.coef.shape,
        )
        n_bytes = 8 * n_samples * n_targets * (n_rows + 2 * n_columns)
        check_fits(n_bytes, f"n_samples={n_samples} at {n_rows} rows", "values and coefficients")
        rng = np.random.default_rng(draw_seed(random_state))
        normal = rng.standard_normal((n_samples, *np.add(ridge.coef.shape, (1, 0))))
        coef, intercept = ridge.drawn(np.moveaxis(normal, 0, 2))

        def drawn(features):
            return np.tensordot(to_host(features).astype(np.float64), coef, 1) + intercept

        values, dtype = self._of_features(X, self._fitted.maps[0], drawn)
        return in_dtype(values if self._fitted.shape else values[:, 0], dtype)

    def _covariances(self, X):
        check_is_fitted(self)
        self._check_noise("return_cov=True")
        ridge, feature_map = self._fitted.ridge, self._fitted.maps[0]
        X, n_targets = validate_rows(self, X, reset=False), len(ridge.intercept)
        n_bytes = 8 * X.shape[0] ** 2 * (1 + n_targets)
        check_fits(n_bytes, f"return_cov=True at {X.shape[0]} rows", "their covariances")
        features = features_of(feature_map, X)
        covariances = ridge.covariances(features, feature_map.is_projected)
        variances = ridge.deviation**2
        return (
            covariances[:, :, None] * variances if self._fitted.shape else covariances * variances
        )

    def _check_noise(self, what):
        """Raise if there are too few rows to estimate the noise."""
        ridge = self._fitted.ridge
        if np.isnan(ridge.deviation).any():
            raise ValueError(
                f"{what} needs a variance of the noise, which cannot be estimated with "
                f"alpha={ridge.alpha!r}: the weights of the rows add up to {ridge.weight:g}, less "
                "than the degrees of freedom. Pass noise_variance, or a larger alpha."
            )


def class_factors(class_weight, classes, codes, weights, is_batch):
    """Return the factors by which the weights of the rows of every class are multiplied."""
    if isinstance(class_weight, dict):
        with naming("class_weight"):
            factors = np.array([class_weight.get(label, 1.0) for label in classes.tolist()], float)
        if not ((factors >= 0) & (factors < np.inf)).all():
            raise ValueError(f"class_weight must hold finite numbers >= 0, got {class_weight!r}.")
        return factors
    if is_batch:
        raise ValueError(
            "class_weight='balanced' needs all rows at once: pass a dict of factors, "
            "or sample_weight, with batches."
        )
    totals = np.bincount(codes, weights, minlength=len(classes))
    return totals.sum() / (len(totals) * totals)


class _Classification(Classification):
    """Predictions of classes from ridge regressions on -1 and 1."""

    def _checked(self, X, y, classes):
        shape = np.shape(y) if isinstance(y, (list, tuple)) else getattr(y, "shape", ())
        if len(shape) == 2 and shape[1] > 1:
            return check_indicators(X, y)
        return super()._checked(X, y, classes)

    def _to_sum(self, y, classes):
        self.multilabel_ = y.ndim == 2
        if self.multilabel_:
            self.classes_, values = np.arange(y.shape[1]), 2.0 * y - 1
            self._check_labels(classes)
            targets = Targets(values, np.ones(y.shape[1]), y.shape[1:])
            return values, np.zeros(len(y), dtype=int), targets, 1
        codes, target = self._coded(y, classes)
        n_classes = len(self.classes_)
        ones = np.arange(n_classes) if n_classes > 2 else np.array([1])
        targets = Targets(codes, np.ones(len(ones)), (), ones)
        return target, np.zeros(len(y), dtype=int), targets, 1

    def _check_labels(self, classes):
        """Raise for what rows of several labels do not allow."""
        if classes is not None and not np.array_equal(classes, self.classes_):
            raise ValueError(
                f"classes must be the numbers of the columns of y, {self.classes_!r}, got "
                f"{classes!r}."
            )
        if self.decision not in ("auto", "argmax") or self.class_weight is not None:
            raise ValueError(
                "decision must be 'auto' or 'argmax', and class_weight None, where y has several "
                f"labels per row, got {self.decision!r} and {self.class_weight!r}."
            )

    def _check_class_weight(self):
        if isinstance(self.class_weight, dict):
            unknown = [label for label in self.class_weight if label not in self.classes_]
            if unknown:
                raise ValueError(
                    f"class_weight names {unknown!r}, which are not in {self.classes_!r}."
                )

    def _weighted_by_class(self, data, *, is_batch):
        if self.class_weight is None:
            return data
        codes = data.values.values
        factors = class_factors(self.class_weight, self.classes_, codes, data.weights, is_batch)
        data = replace(data, sample_weight=data.weights * factors[codes])
        return data if factors.all() else data.part(np.flatnonzero(data.sample_weight))

    def _differences(self, other):
        if isinstance(self.class_weight, str):
            yield "class_weight='balanced', which needs the rows of both at once"
        yield from super()._differences(other)

    def _solves_in_rows(self, data):
        if not isinstance(self.feature_map, str) or len(data.y) <= FEW_ROWS:
            return False
        targets = data.values
        if targets.classes is None or np.ptp(targets.values) == 0 or self._needs_all_eigenvalues():
            return False
        return len(targets.classes) == 1 or self.decision in ("auto", "one-vs-one")

    def _fit_map(self, data, is_first_batch=False):
        if not self._solves_in_rows(data):
            return super()._fit_map(data, is_first_batch)
        return self._fit_of_rows(data, resolved(self.sigma or "scale", data))

    def _fit_of_rows(self, data, sigma):
        """Return an unsolved fit to the exact kernel of all rows."""
        least_alpha, n_classes = self._least_alpha(), len(self.classes_)
        rows, self.sigma_ = ClassRows.of(data, sigma, n_classes), sigma
        maps = (rows.kernel,) * 2
        return RidgeFit(self.get_params(), maps, (), n_classes, least_alpha, moments=rows)

    @property
    def dual_coef_(self) -> np.ndarray:
        """Coefficients of the kernel with every row, if pairs were solved on their own rows."""
        # Not a second time in a pickle: there is one for every row and pair of classes.
        if self._fitted is None or not isinstance(self._fitted.maps[0], KernelMap):
            raise AttributeError("dual_coef_ exists after a fit in the rows of pairs of classes.")
        return read_only(self._fitted.ridge.linear[0].T)

    def _bytes_of_sums(self, n_columns, data):
        n_bytes = super()._bytes_of_sums(n_columns, data)
        return n_bytes * (len(data.values.classes) if self.decision == "one-vs-one" else 1)

    def _n_apart(self, n_columns):
        keeps_classes = len(self.classes_) > 2 and self._decision(n_columns) == "one-vs-one"
        return len(self.classes_) if keeps_classes else 0

    def _decision(self, n_columns):
        """Return the decision that is made from sums of so many features."""
        if self.multilabel_ or len(self.classes_) <= 2:
            return "argmax"
        if self.decision != "auto":
            return self.decision
        return self._default_decision(n_columns)

    def _known(self, ridge, moments, features, test):
        """Return what stands for the classifier of a solution on test rows."""
        decision = "labels" if self.multilabel_ else self._decision(0)
        if decision == "discriminants":
            ridge = discriminants(ridge, moments)
        values = ridge.values(features)
        return KnownDecisions(self.classes_, values, decision, test.values.values)

    def _solution(self, moments, alpha):
        return ridge_of(moments, alpha, solve(moments, alpha))

    def _decided(self, moments):
        if isinstance(moments, ClassRows):
            self.decisions_ = "one-vs-one" if len(self.classes_) > 2 else "argmax"
            return moments.solved(self._least_alpha())
        ridge, self.decisions_ = super()._decided(moments), self._decision(moments.n_columns)
        ridge = replace(ridge, root=None, deviation=None)  # which evidence has found
        if self.decisions_ == "one-vs-one":
            return PairRidges.solved(moments, ridge.alpha)
        return ridge if self.decisions_ == "argmax" else discriminants(ridge, moments.together)

    def decision_function(self, X: Array) -> Result:
        """Return the ridge regressions on -1 and 1, or the decision values derived from them.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to classify.

        Returns
        -------
        array of shape (n_samples, n_classes), or (n_samples,) for two classes
            For two classes the regression, positive for ``classes_[1]``. For more, depending on
            ``decisions_``: the regressions ("argmax"); the log probabilities of the classes under
            the assumption that the features of every class are normal with a common covariance
            ("discriminants"); votes, with a fraction that breaks ties ("one-vs-one").
        """
        check_is_fitted(self)
        feature_map, solution = self._fitted.reader
        predictions = in_dtype(*self._of_features(X, feature_map, solution.means))
        is_single = len(self.classes_) == 2 and not self.multilabel_
        return predictions[:, 0] if is_single else predictions

    def predict(self, X: Array) -> Result:
        """Return the class with the largest decision value; ties go to the first class.

        If y was multilabel, every label with a positive value is predicted.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to classify.

        Returns
        -------
        array of shape (n_samples,) or (n_samples, n_labels)
            Labels.
        """
        predictions = self.decision_function(X)
        xp, rounding = namespace(predictions), rounding_of(predictions)
        if self.multilabel_:
            return xp.astype(predictions > rounding, xp.int64)
        if predictions.ndim == 1:
            return self._labels_at(xp.astype(predictions > rounding, xp.int64))
        top = xp.max(predictions, axis=1, keepdims=True)
        are_best = predictions >= top - rounding * (1 + xp.abs(top))
        return self._labels_at(xp.argmax(xp.astype(are_best, xp.int8), axis=1))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
