"""Ridge regression on random features, in one pass over the rows."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from numbers import Integral, Real
from operator import methodcaller
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from .._arrays import namespace, rounding_of
from .._estimator import Unless
from .._sums import Memory
from .._threads import narrow_blas, run_all
from .._typing import Array, RandomState, Sigma, Transformer
from .._validation import (
    HasMethods,
    Interval,
    StrOptions,
    check_positive,
    commit,
    naming,
    read_only,
    validate_rows,
)
from ..features import ClusterNystroem, RFFSampler, as_feature_map
from ._base import SIGMA, BaseKernelRegression
from ._blocks import beside_threads, blocks_of
from ._class_moments import ClassMoments, PairRidges, is_affordable
from ._cv import Search
from ._decisions import (
    DECISIONS,
    N_SIGMAS,
    SAME_ACCURACY,
    best_sigmas,
    candidates_of,
    grid_of,
    judged_decisions,
    n_scored_folds,
    simplest,
)
from ._leave_one_out import leave_one_out_errors
from ._mixins import Classification, Regression, in_dtype, predictions_in
from ._probabilities import best_scale, probabilities
from ._ridge import (
    Moments,
    Ridge,
    Spectrum,
    bytes_of_moments,
    check_range,
    discriminants,
    moments_of_rows,
    plain_features,
    solve,
    solved,
)
from ._row_space import is_smaller, judged_apart_in_row_space, judged_in_row_space
from ._search import (
    ROUNDING,
    fitted_apart,
    fitted_together,
    learns_from,
    maps_of,
    nearly_best,
    positive_array,
)

# Rounding of exponentials times coefficients stays below 1e-9 of the targets.
_LARGEST_COEF = 1e-9 / np.finfo(float).eps
_POSITIVE = Interval(Real, 0, None, closed="neither")


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
class FittedRidge:
    """The immutable result of a fit.

    Parameters
    ----------
    params : dict
        Parameters of the estimator at its first fit.
    maps : tuple of FeatureMap
        Maps of queries and keys; only the first is used.
    moments : Moments or ClassMoments or None
        Moments of all rows so far.
    ridge : Ridge or None
        The solution computed from them at the end.
    shape : tuple
        As in `Targets`.
    total : float, default=None
        Weight of all rows that will be summed, if they come in batches.
    """

    params: dict
    maps: tuple
    moments: Moments | ClassMoments | None
    ridge: Ridge | None
    shape: tuple
    total: float | None = None

    @property
    def emptied(self):
        """The fit before the first row."""
        return replace(self, moments=None)

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

    def merge(self, other):
        """Return an unsolved fit to the rows of both."""
        if self.moments is None or other.moments is None:
            return self if other.moments is None else other
        return replace(self, moments=self.moments.merge(other.moments), ridge=None)


class _BaseRidge(BaseKernelRegression):
    """Code shared by all ridge estimators."""

    _parameter_constraints = {
        "feature_map": [HasMethods(["fit", "transform"]), StrOptions({"exact"}), None],
        "random_state": ["random_state"],
    }
    _default_map = ClusterNystroem(512)
    _default_map_of_sparse = RFFSampler(512)  # also of a first batch
    _scores_rows = False

    sigma = None

    def _leaves_sigma_open(self, feature_map):
        return False

    def _default_for(self, data, is_first_batch=False):
        if self.feature_map is not None:  # "exact"
            return ClusterNystroem(len(data.y))
        # Landmarks would be dense, and those of a first batch unlike the others.
        if is_first_batch or sp.issparse(data.X):
            return self._default_map_of_sparse
        return self._default_map

    def _fit_map(self, data, is_first_batch=False):
        self._least_alpha()  # raise before any work
        feature_map = self._prepared(self.sigma, default=self._default_for(data, is_first_batch))
        self.feature_map_ = data.fitted(self._check_size(feature_map, data))
        return self._before(maps_of(self.feature_map_), data)

    def _bytes_of_sums(self, n_columns, data):
        return bytes_of_moments(n_columns, len(data.values.unit))

    def _before(self, maps, data):
        return FittedRidge(self.get_params(), maps, None, None, data.values.shape, data.total)

    def _added(self, before, data):
        total = before.total or before.moments.weight + data.total
        share = data.total / total if total < np.inf else 0.0
        alpha = share * self._least_alpha()
        with beside_threads(before.maps[0]):
            moments = self._moments_of(before.maps[0], data, alpha)
        return before.merge(replace(before, moments=moments))

    def _moments_of(self, feature_map, data, least_alpha):
        """Return the moments of rows."""
        rows = data.X, data.values, data.sample_weight
        return moments_of_rows(feature_map, *rows, least_alpha=least_alpha)

    def _decided(self, moments):
        """Return the solution that predictions are made from."""
        return self._solved(moments.together)

    def _finished(self, sums):
        with narrow_blas(sums.moments.n_columns):
            ridge = self._decided(sums.moments)
        return super()._finished(replace(sums, ridge=ridge, total=None))

    @property
    def _outputs(self):
        return self._fitted.shape

    def _hold(self, fitted):
        ridge = fitted.ridge
        coef, intercept = map(read_only, ridge.linear)
        self.alpha_, self.coef_, self.intercept_ = ridge.alpha, coef.T, intercept
        if not is_classifier(self):
            with np.errstate(over="ignore"):
                self.noise_variance_ = read_only(ridge.deviation**2)
            if not fitted.shape:
                self.coef_, self.intercept_ = coef[:, 0], float(intercept[0])
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
        "alpha": [_POSITIVE, StrOptions({"evidence"})],
    }
    noise_variance = None

    def __init__(
        self,
        feature_map: Transformer | Literal["exact"] | None = None,
        *,
        sigma: Sigma | None = None,
        alpha: float | Literal["evidence"] = 1.0,
        random_state: RandomState = None,
    ) -> None:
        super().__init__(feature_map, sigma=sigma, random_state=random_state)
        self.alpha = alpha

    def _least_alpha(self):
        """Return what will be added to the diagonal, or 0 if that is not known yet."""
        if self.noise_variance is not None:
            return check_positive("noise_variance", self.noise_variance)
        return 0.0 if self.alpha == "evidence" else check_positive("alpha", self.alpha)

    def _solved(self, moments):
        alpha = self._least_alpha()
        if not alpha:
            return Spectrum(moments).solved_by_evidence()
        return solved(moments, alpha, noise=None if self.noise_variance is None else alpha)


class _Search(Search, _BaseRidge):
    """Ridge with a search for alpha and sigma."""

    _hint = "Use sigmas=None"

    _parameter_constraints = {
        **_BaseRidge._parameter_constraints,
        "sigmas": ["array-like", Interval(Integral, 2, None, closed="left"), None],
        "alphas": ["array-like"],
        "cv": ["cv_object"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        feature_map: Transformer | Literal["exact"] | None = None,
        *,
        sigmas: int | Array | None = 10,
        alphas: Array = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0),
        cv: Any = 5,
        random_state: RandomState = None,
        verbose: int = 0,
    ) -> None:
        self.feature_map = feature_map
        self.sigmas = sigmas
        self.alphas = alphas
        self.cv = cv
        self.random_state = random_state
        self.verbose = verbose

    def _others(self):
        return {"alpha": positive_array("alphas", self.alphas)}

    def _unit(self, data):
        return data.values.unit.max()

    def _rounding(self, data):
        """Return the rounding of mean squared errors, which come from far larger squares."""
        if is_classifier(self):
            return ROUNDING
        values = data.values
        return ROUNDING * np.var(values.values / values.unit, axis=0).mean()

    def _judge(self):
        """Return a function that scores all alphas, given the sums of training and test rows."""
        alphas = positive_array("alphas", self.alphas)

        def judge(train, _, test):
            # Together they hold all rows, so the unit is the same for all folds.
            train, test = train.moments.together, test.moments.together
            unit = np.maximum(train.unit, test.unit)
            train, test = train.in_units(unit), test.in_units(unit)
            coefs = np.stack(run_all(partial(solve, train), alphas), axis=2)
            return -test.mean_errors(train, coefs)

        return judge

    def _runs(self, is_apart, best, *given):
        feature_map, data, tests, *_ = given
        n_rows = len(data.y) - (min(map(len, tests)) if is_apart else 0)
        if not is_smaller(feature_map, n_rows):
            return super()._runs(is_apart, best, *given)
        return (judged_apart_in_row_space if is_apart else judged_in_row_space)(self, *given)

    def _scores_of(self, trains, tests, _):
        """Return the scores of all sigmas and folds of a search in batches, and their unit."""
        judge, pairs = self._judge(), zip(trains, tests, strict=True)
        scores = [[judge(one, None, two) for one, two in zip(*pair, strict=True)] for pair in pairs]
        units = (sums[0][0].moments.together.unit for sums in (trains, tests))
        return scores, np.maximum(*units).max()

    def _least_alpha(self):
        """Return what will be added to the diagonal, or may be."""
        return getattr(self, "alpha_", positive_array("alphas", self.alphas).min())

    def _finished(self, sums):
        draft = super()._finished(sums)
        if self.sigmas is not None:  # nothing can be added to a search
            self._fitted = replace(self._fitted, moments=None)
        return draft

    def _fit_one_sigma(self, X, y, sample_weight):
        """Fit with the map's own sigma, and the alpha of exact leave-one-out."""
        draft, data = self._read(X, y, sample_weight)
        sums = draft._added(draft._fit_map(data), data)
        moments = sums.moments.together
        with beside_threads(sums.maps[0]), narrow_blas(moments.n_columns):
            errors = leave_one_out_errors(sums.maps[0], data, moments, self._others()["alpha"])
        draft._choose_alpha(moments, errors)
        return commit(self, draft._finished(sums))

    def _choose_alpha(self, moments, errors):
        sigmas = [self.feature_map_.sigma_] if hasattr(self.feature_map_, "sigma_") else []
        rounding = ROUNDING * np.mean(moments.squares) / moments.weight
        unit = moments.unit.max()
        self._choose([([-errors], None, None)], sigmas, unit, rounding, is_split=False)

    def _solved(self, moments):
        if not hasattr(self, "alpha_"):  # of batches, which are not seen again
            self._choose_alpha(moments, Spectrum(moments).cross_validation(self._others()["alpha"]))
        return solved(moments, self.alpha_)


# ---------------------------------------------------------------- predictions


class _Regression(Regression):
    """Predictions of numbers, with standard deviations."""

    def _to_sum(self, y, classes):
        values = y.reshape(len(y), -1)
        largest = np.maximum(values.max(axis=0), -values.min(axis=0))
        unit = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1.0))))
        return y, np.zeros(len(y), dtype=int), Targets(values, unit, y.shape[1:]), 1

    def predict(self, X: Array, return_std: bool = False) -> Any:
        """Return predictions, and on request the standard deviations of targets.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        return_std : bool, default=False
            Whether to return posterior standard deviations, which include the noise.

        Returns
        -------
        mean : array of shape (n_samples,) or (n_samples, n_outputs)
            Predictions.
        std : array of shape (n_samples,) or (n_samples, n_outputs)
            Standard deviations, if `return_std` is True.

        Raises
        ------
        ValueError
            If there were too few rows to estimate the noise.

        Warns
        -----
        RuntimeWarning
            If predictions overflow or vanish in float32, for rows of float32.
        """
        check_is_fitted(self)
        ridge, shape = self._fitted.ridge, self._fitted.shape
        if return_std and np.isnan(ridge.deviation).any():
            raise ValueError(
                f"return_std=True needs a variance of the noise, which cannot be estimated with "
                f"alpha={ridge.alpha!r}: the weights of the rows add up to {ridge.weight:g}, less "
                "than the degrees of freedom. Pass noise_variance, or a larger alpha."
            )
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


def class_factors(class_weight, classes, codes, weights, is_batch):
    """Return the factors by which the weights of the rows of every class are multiplied."""
    if isinstance(class_weight, dict):
        unknown = [label for label in class_weight if label not in classes]
        if unknown:
            raise ValueError(f"class_weight names {unknown!r}, which are not in {classes!r}.")
        with naming("class_weight"):
            factors = np.array([class_weight.get(label, 1.0) for label in classes.tolist()], float)
        if not ((factors >= 0) & (factors < np.inf)).all() or not factors[codes].any():
            raise ValueError(
                f"class_weight must hold numbers >= 0, not all 0, got {class_weight!r}."
            )
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

    def _to_sum(self, y, classes):
        codes, target = self._coded(y, classes)
        n_classes = len(self.classes_)
        ones = np.arange(n_classes) if n_classes > 2 else np.array([1])
        targets = Targets(codes, np.ones(len(ones)), (), ones)
        return target, np.zeros(len(y), dtype=int), targets, 1

    def _read(self, X, y, sample_weight=None, *, classes=None, **options):
        draft, data = super()._read(X, y, sample_weight, classes=classes, **options)
        if self.class_weight is None:
            return draft, data
        codes, is_batch = data.values.values, classes is not None
        factors = class_factors(self.class_weight, draft.classes_, codes, data.weights, is_batch)
        data = replace(data, sample_weight=data.weights * factors[codes])
        return draft, data if factors.all() else data.part(np.flatnonzero(data.sample_weight))

    def _differences(self, other):
        if isinstance(self.class_weight, str):
            yield "class_weight='balanced', which needs the rows of both at once"
        yield from super()._differences(other)

    def _bytes_of_sums(self, n_columns, data):
        n_bytes = super()._bytes_of_sums(n_columns, data)
        return n_bytes * (len(data.values.classes) if self.decision == "one-vs-one" else 1)

    def _keeps_classes(self, n_columns):
        """Return whether the moments of every class are kept, for pairs of classes."""
        return len(self.classes_) > 2 and self._decision(n_columns) == "one-vs-one"

    def _decision(self, n_columns):
        """Return the decision that is made from sums of so many features."""
        if len(self.classes_) <= 2:
            return "argmax"
        if self.decision != "auto":
            return self.decision
        return self._default_decision(n_columns)

    def _moments_of(self, feature_map, data, least_alpha):
        if not self._keeps_classes(feature_map.n_columns or 0):
            return super()._moments_of(feature_map, data, least_alpha)
        rows = data.X, data.values.values, len(self.classes_), data.sample_weight
        return ClassMoments.of_rows(feature_map, *rows, least_alpha)

    def _decided(self, moments):
        ridge, self.decisions_ = super()._decided(moments), self._decision(moments.n_columns)
        if self.decisions_ == "one-vs-one":
            return PairRidges.solved(moments, ridge.alpha)
        return ridge if self.decisions_ == "argmax" else discriminants(ridge, moments.together)

    def decision_function(self, X: Array) -> Array:
        """Return the ridge regressions on -1 and 1, or what is decided from them.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to classify.

        Returns
        -------
        array of shape (n_samples, n_classes), or (n_samples,) for two classes
            For two classes the regression, positive for ``classes_[1]``. For more, by
            ``decisions_``: the regressions ("argmax"); logarithms of the classes' probabilities,
            if the features of every class were normal with the same covariance
            ("discriminants"); votes, with a fraction that breaks ties ("one-vs-one").
        """
        check_is_fitted(self)
        feature_map, solution = self._fitted.reader
        predictions = in_dtype(*self._of_features(X, feature_map, solution.means))
        return predictions if len(self.classes_) > 2 else predictions[:, 0]

    def predict(self, X: Array) -> Array:
        """Return the class with the largest decision value; ties go to the first class.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to classify.

        Returns
        -------
        array of shape (n_samples,)
            Labels.
        """
        predictions = self.decision_function(X)
        xp, rounding = namespace(predictions), rounding_of(predictions)
        if predictions.ndim == 1:
            return self._labels_at(xp.astype(predictions > rounding, xp.int64))
        top = xp.max(predictions, axis=1, keepdims=True)
        are_best = predictions >= top - rounding * (1 + xp.abs(top))
        return self._labels_at(xp.argmax(xp.astype(are_best, xp.int8), axis=1))


class ApproxKernelRidge(_Regression, _Plain):
    """Ridge regression on random features, in one pass over the rows.

    Least squares on the features of any transformer, with an intercept and a penalty `alpha` on
    the squares of the coefficients. This is kernel ridge regression, and the mean of a Gaussian
    process, with the kernel of the features. Only sums of products of centred features are kept,
    so memory grows with the square of the number of features, not with the number of rows, and
    ``partial_fit`` is exact.

    Feature rows of a positive map are divided by their norms, on a log scale, so its kernel here is
    K(x, y) / sqrt(K(x, x) K(y, y)), where K is the kernel of the features.

    Parameters
    ----------
    feature_map : transformer, default=None
        Any scikit-learn transformer: a feature map of this library, Nystroem, a Pipeline, or a
        fitted one as FrozenEstimator. Of asymmetric maps the query side is used. None is
        ``ClusterNystroem(512)``, the exact kernel of no more than 512 distinct rows; of sparse rows
        and in ``partial_fit``, whose first batch may differ from the others, it is
        ``RFFSampler(512)``.
    sigma : float, "scale", "median" or None, default=None
        Replaces the map's own sigma; None keeps it. A larger sigma is a narrower kernel.
    alpha : float or "evidence", default=1.0
        Penalty, > 0; "evidence" maximises the marginal likelihood of Bayesian linear regression.
    noise_variance : float, default=None
        Variance of the noise of the targets, if it is known. It replaces `alpha`, and the model is
        the Gaussian process with the kernel of the features. None estimates it.
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None keeps it.

    Attributes
    ----------
    coef_ : ndarray of shape (n_columns,) or (n_outputs, n_columns)
        Coefficients of the features.
    intercept_ : float or ndarray of shape (n_outputs,)
        Intercept.
    alpha_ : float
        The penalty.
    noise_variance_ : ndarray of shape (n_outputs,)
        Variance of the noise of the targets; NaN if there are too few rows to estimate it.
    feature_map_ : transformer
        The fitted clone of the feature map.
    n_features_in_ : int
        Number of input features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input features, if X had any.

    Raises
    ------
    ValueError
        By `fit`, if a parameter or the data are invalid, or features with signs leave the range of
        floats.

    See Also
    --------
    ApproxKernelRidgeCV : The same with sigma and alpha chosen by cross-validation.
    KernelRegressor : Weighted means of targets, with positive maps.
    sklearn.kernel_ridge.KernelRidge : The exact kernel, in time cubic in the rows.

    Notes
    -----
    Rows of float32 are mapped and multiplied in float32, and summed in float64. If alpha is so
    small that this could matter (below 1e-7 of the mean eigenvalue), and for "evidence", products
    are computed in float64.

    References
    ----------
    Rahimi and Recht, Random features for large-scale kernel machines (2007); Rasmussen and
    Williams, Gaussian processes for machine learning (2006), chapter 2.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import ApproxKernelRidge
    >>> X = np.linspace(0, 1, 200)[:, None]
    >>> y = np.sin(6 * X[:, 0])
    >>> model = ApproxKernelRidge(alpha="evidence", random_state=0).fit(X, y)
    >>> mean, std = model.predict(X, return_std=True)
    >>> bool(abs(mean - y).max() < 1e-3)
    True
    """

    _parameter_constraints = {
        **_Plain._parameter_constraints,
        "noise_variance": [_POSITIVE, None],
    }

    def __init__(
        self,
        feature_map: Transformer | Literal["exact"] | None = None,
        *,
        sigma: Sigma | None = None,
        alpha: float | Literal["evidence"] = 1.0,
        noise_variance: float | None = None,
        random_state: RandomState = None,
    ) -> None:
        super().__init__(feature_map, sigma=sigma, alpha=alpha, random_state=random_state)
        self.noise_variance = noise_variance


class ApproxKernelRidgeClassifier(_Classification, _Plain):
    """Ridge classification on random features, in one pass over the rows.

    Targets are -1 and 1 for every class, as in scikit-learn's RidgeClassifier, and two classes are
    told apart by the sign of the regression. The largest of three or more regressions often misses
    a class that lies between others, so they are turned into linear discriminants, which follow
    from the same sums, or every pair of classes has a regression of its own, as in scikit-learn's
    OneVsOneClassifier but from a single pass over the rows. See `ApproxKernelRidge` for the
    regression.

    Parameters
    ----------
    feature_map : transformer or "exact", default=None
        As in `ApproxKernelRidge`.
    sigma : float, "scale", "median" or None, default=None
        Replaces the map's own sigma; None keeps it. A larger sigma is a narrower kernel.
    alpha : float or "evidence", default=1.0
        Penalty, > 0; "evidence" maximises the marginal likelihood of Bayesian linear regression.
    decision : {"auto", "argmax", "discriminants", "one-vs-one"}, default="auto"
        How three or more classes are told apart: by the largest of K regressions on -1 and 1, by
        the linear discriminants that follow from them, or by the votes of a regression for every
        pair of classes, which is usually the most accurate with some thousands of rows and costs
        K (K - 1) / 2 solutions and the moments of every class in memory, K n_components^2
        numbers. "auto" is "one-vs-one", or "discriminants" where the solutions would take more
        than a minute or so (K^2 n_components^3 / 6 > 2e12).
    class_weight : dict, "balanced" or None, default=None
        Factor of the weights of the rows of every class, {label: factor}; labels that are not in it
        have 1. "balanced" is the weight of all rows over K times that of the class, as in
        RidgeClassifier, for which `fit` must see all rows at once. Scores of a search are weighted
        alike.
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None keeps it.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    decisions_ : str
        How classes are told apart; "argmax" for two.
    coef_ : ndarray of shape (1, n_columns), (n_classes, n_columns) or (n_pairs, n_columns)
        Coefficients of the features in the regression, in the decision values up to a common term,
        or in the regressions of the pairs (0, 1), (0, 2), ..., (1, 2), ..., which are positive for
        the second class.
    intercept_ : ndarray of shape (1,), (n_classes,) or (n_pairs,)
        Intercepts.
    alpha_ : float
        The penalty.
    feature_map_ : transformer
        The fitted clone of the feature map.
    n_features_in_ : int
        Number of input features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input features, if X had any.

    See Also
    --------
    ApproxKernelRidgeClassifierCV : The same with sigma and alpha chosen by cross-validation.
    KernelRegressionClassifier : Weighted votes, with probabilities.
    ApproxKernelRidge : The regression.

    References
    ----------
    Rahimi and Recht, Random features for large-scale kernel machines (2007); Hastie, Tibshirani and
    Buja, Flexible discriminant analysis by optimal scoring (1994). The regression is that of
    `ApproxKernelRidge`; one regression for every pair: Hastie and Tibshirani, Classification by
    pairwise coupling (1998).

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skrf import ApproxKernelRidgeClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = ApproxKernelRidgeClassifier(alpha=0.1, random_state=0)
    >>> bool(model.fit(X[:1000], y[:1000]).score(X[1000:], y[1000:]) > 0.95)
    True
    """

    _parameter_constraints = {
        **_Plain._parameter_constraints,
        "decision": [StrOptions({"auto", *DECISIONS})],
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        feature_map: Transformer | Literal["exact"] | None = None,
        *,
        sigma: Sigma | None = None,
        alpha: float | Literal["evidence"] = 1.0,
        decision: Literal["auto", "argmax", "discriminants", "one-vs-one"] = "auto",
        class_weight: dict | Literal["balanced"] | None = None,
        random_state: RandomState = None,
    ) -> None:
        super().__init__(feature_map, sigma=sigma, alpha=alpha, random_state=random_state)
        self.decision = decision
        self.class_weight = class_weight

    def _default_decision(self, n_columns):
        return "one-vs-one" if is_affordable(len(self.classes_), n_columns) else "discriminants"


class ApproxKernelRidgeCV(_Regression, _Search):
    """Ridge regression on random features that chooses sigma and alpha itself.

    With ``sigmas`` every pair of a sigma and an alpha is scored by cross-validation, in one pass
    over the rows per sigma: the sums of a fold give the squared errors on its held-out rows, the
    sums of the other folds are merged for its training set, and the final fit merges all of them.
    With ``sigmas=None`` the map keeps its sigma, and alpha is chosen by leave-one-out in closed
    form, as in scikit-learn's RidgeCV; equal rows are left out together. `fit_batches` does not see
    rows again, and takes generalised cross-validation, which gives all rows the mean leverage.

    Parameters
    ----------
    feature_map : transformer or "exact", default=None
        As in `ApproxKernelRidge`. It is fitted to all rows, including held-out ones, but if it
        learns from y, to the training rows of each fold.
    sigmas : int, array-like or None, default=10
        Values of the map's sigma. An int is the number of values, spread evenly on a log scale
        from a tenth of the sigma of "scale" to ten times that.
    alphas : array-like, default=(0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
        Penalties, > 0.
    cv : int, splitter or iterable of splits, default=5
        As in GridSearchCV. Every training set must be the complement of its test set. Ignored with
        ``sigmas=None``.
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None keeps it.
    verbose : int, default=0
        With 1, `fit` prints a line per sigma.

    Attributes
    ----------
    alpha_ : float
        The best penalty, the largest of those that are nearly as good.
    sigma_ : float
        The best sigma, the smallest of those that are nearly as good, if the map has one.
    best_score_ : float
        Its score: the negative mean squared error of held-out rows, averaged over folds and
        outputs, or of rows that are left out.
    cv_results_ : dict of ndarray
        Scores of all pairs, named as in GridSearchCV.
    coef_ : ndarray of shape (n_columns,) or (n_outputs, n_columns)
        Coefficients of the features.
    intercept_ : float or ndarray of shape (n_outputs,)
        Intercept.
    noise_variance_ : ndarray of shape (n_outputs,)
        Variance of the noise of the targets; NaN if there are too few rows to estimate it.
    feature_map_ : transformer
        The fitted clone of the feature map, with the best sigma.
    n_features_in_ : int
        Number of input features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input features, if X had any.

    Raises
    ------
    ValueError
        By `fit`, if a parameter, the splits or the data are invalid.

    See Also
    --------
    ApproxKernelRidge : The chosen model.
    KernelRegressorCV : The search for kernel regression.

    References
    ----------
    The model is that of `ApproxKernelRidge`; generalised cross-validation: Golub, Heath and Wahba
    (1979). That folds are scored from merged sums is ours.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import ApproxKernelRidgeCV
    >>> X = np.random.default_rng(0).uniform(-3, 3, size=(300, 1))
    >>> y = np.sin(3 * X[:, 0])
    >>> model = ApproxKernelRidgeCV(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.99)
    True
    """


class ApproxKernelRidgeClassifierCV(_Classification, _Search):
    """Ridge classification on random features that chooses sigma and alpha itself.

    Like `ApproxKernelRidgeCV`, on targets -1 and 1 for every class; the score is their negative
    mean squared error. Of three or more classes the two best values of sigma are then scored once
    more, by the accuracy of every decision on held-out rows, with the same maps. Predictions are
    those of `ApproxKernelRidgeClassifier`.

    Parameters
    ----------
    feature_map : transformer, default=None
        As in `ApproxKernelRidgeCV`. A map that learns from labels, such as `ClusterNystroem`, is
        fitted to the training rows of every fold. With ``sigmas=None`` there are no folds, so its
        score is too optimistic: it has seen all labels.
    sigmas : int, array-like or None, default=7
        Values of the map's sigma. An int is the number of values, spread evenly on a log scale
        from a tenth of the sigma of "scale" to ten times that.
    alphas : array-like, default=(0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
        Penalties, > 0. Those above 1 are not tried for pairs of classes.
    cv : int, splitter or iterable of splits, default=3
        As in `ApproxKernelRidgeCV`; folds of an int are stratified.
    decision : {"auto", "argmax", "discriminants", "one-vs-one"}, default="auto"
        How three or more classes are told apart: by the largest of K regressions on -1 and 1, by
        the linear discriminants that follow from them, or by the votes of a regression for every
        pair of classes, which is usually the most accurate with some thousands of rows and costs
        K (K - 1) / 2 solutions. "auto" takes the most accurate on held-out rows, the first of
        equals.
    class_weight : dict, "balanced" or None, default=None
        Factor of the weights of the rows of every class, {label: factor}; labels that are not in it
        have 1. "balanced" is the weight of all rows over K times that of the class, as in
        RidgeClassifier, for which `fit` must see all rows at once. Scores of a search are weighted
        alike.
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None keeps it.
    verbose : int, default=0
        With 1, `fit` prints a line per sigma.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    decisions_ : str
        How classes are told apart; "argmax" for two.
    decision_scores_ : dict of float
        The best accuracy of every decision that was tried on held-out rows.
    probability_scale_ : float
        Multiplier of decisions in `predict_proba`, of the least log loss on held-out rows.
    alpha_ : float
        The best penalty, the largest of those that are nearly as good.
    sigma_ : float
        The best sigma, the smallest of those that are nearly as good, if the map has one.
    best_score_ : float
        Its score in ``cv_results_``.
    cv_results_ : dict of ndarray
        Scores of all pairs of sigma and alpha, named as in GridSearchCV.
    coef_ : ndarray of shape (1, n_columns), (n_classes, n_columns) or (n_pairs, n_columns)
        Coefficients of the features, as in `ApproxKernelRidgeClassifier`.
    intercept_ : ndarray of shape (1,), (n_classes,) or (n_pairs,)
        Intercepts.
    feature_map_ : transformer
        The fitted clone of the feature map, with the best sigma.
    n_features_in_ : int
        Number of input features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input features, if X had any.

    See Also
    --------
    ApproxKernelRidgeClassifier : The chosen model.
    KernelRegressionClassifierCV : The search for kernel regression.

    References
    ----------
    The model is that of `ApproxKernelRidgeClassifier`; that folds are scored from merged sums is
    ours.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skrf import ApproxKernelRidgeClassifierCV, RFFSampler
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ApproxKernelRidgeClassifierCV(RFFSampler(100), random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    _parameter_constraints = {
        **_Search._parameter_constraints,
        "decision": [StrOptions({"auto", *DECISIONS})],
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        feature_map: Transformer | Literal["exact"] | None = None,
        *,
        sigmas: int | Array | None = 7,
        alphas: Array = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0),
        cv: Any = 3,
        decision: Literal["auto", "argmax", "discriminants", "one-vs-one"] = "auto",
        class_weight: dict | Literal["balanced"] | None = None,
        random_state: RandomState = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            feature_map,
            sigmas=sigmas,
            alphas=alphas,
            cv=cv,
            random_state=random_state,
            verbose=verbose,
        )
        self.decision = decision
        self.class_weight = class_weight

    _n_kept_fits = N_SIGMAS

    def _default_decision(self, n_columns):  # until folds have chosen
        return vars(self).get("decisions_", "discriminants")

    def _decisions_to_score(self):
        """Return the decisions among which held-out rows choose, or which they give an alpha."""
        decisions = DECISIONS if self.decision == "auto" else (self.decision,)
        is_scored = len(self.classes_) > 2 and "one-vs-one" in decisions
        return decisions if is_scored else ()

    def _decision_grid(self, decisions):
        """Return the pairs (decision, alpha) to score."""
        return grid_of(decisions, np.unique(self._others()["alpha"]))

    def _obstacle_to_probabilities(self):
        if self.sigmas is None:
            return "probabilities need folds. Pass sigmas, or use CalibratedClassifierCV."
        if self._fitted is not None and not hasattr(self, "probability_scale_"):
            return (
                "probabilities need decisions on held-out rows. A search in batches has them only "
                "for three or more classes, with decision='auto' or 'one-vs-one'."
            )

    @partial(Unless, methodcaller("_obstacle_to_probabilities"))
    def predict_proba(self, X: Array) -> Array:
        """Return the probabilities of the classes.

        Decisions times ``probability_scale_`` are logarithms of odds. With one-vs-one they are
        those of the two classes of every pair, from which the probabilities of all classes are
        coupled (Wu, Lin and Weng, 2004), so that the most probable class is now and then not the
        one of most votes.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        array of shape (n_samples, n_classes)
            Probabilities.
        """
        check_is_fitted(self)
        feature_map, solution = self._fitted.reader
        values, dtype = self._of_features(X, feature_map, solution.values)
        n_classes = len(self.classes_)
        is_of_pairs = n_classes == 2 or self.decisions_ == "one-vs-one"
        return in_dtype(
            probabilities(values, self.probability_scale_, n_classes, is_of_pairs), dtype
        )

    @partial(Unless, methodcaller("_obstacle_to_probabilities"))
    def predict_log_proba(self, X: Array) -> Array:
        """Return the logarithms of `predict_proba`.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        array of shape (n_samples, n_classes)
            Log probabilities, -inf where a probability is 0.
        """
        shares = self.predict_proba(X)
        with np.errstate(divide="ignore"):
            return namespace(shares).log(shares)

    def _chooses_again(self, feature_map, data, tests, best):
        decisions, n_classes = self._decisions_to_score(), len(self.classes_)
        sigmas = best_sigmas(self.cv_results_) if decisions else np.array([self.sigma_])
        grid = [(self._decision(0), self.alpha_)]
        if decisions:
            grid = self._decision_grid(decisions)
        fits = best.of(map(float, sigmas))
        if fits is None:
            fitted = fitted_apart if learns_from(feature_map, data) else fitted_together
            fits = fitted(feature_map, data, tests, sigmas)
        scores = []
        for of_sigma in fits:
            n_columns = min(as_feature_map(of_sigma[0][0]).n_columns or 0, len(data.y))
            n_folds = n_scored_folds(len(tests), grid, len(sigmas), n_classes, n_columns)
            of_folds = [judged_decisions(*fit, grid, n_classes) for fit in of_sigma[:n_folds]]
            scores.append(np.mean(of_folds, axis=0))
        former, candidates = self.sigma_, candidates_of(grid, sigmas, scores)
        if not decisions:
            self.probability_scale_ = best_scale(candidates[0].losses)
            return False
        self._take(candidates)
        return self.decisions_ == "one-vs-one" or self.sigma_ != former

    def _take(self, candidates):
        """Set the parameters of the best candidate."""
        scores = np.array([one.score for one in candidates])
        chosen = simplest(candidates, nearly_best(scores, 1.0, SAME_ACCURACY))
        self.decisions_, self.sigma_, self.alpha_ = chosen.decision, chosen.sigma, chosen.alpha
        self.probability_scale_ = best_scale(chosen.losses)
        table = self.cv_results_
        place = (table["param_sigma"] == chosen.sigma) & (table["param_alpha"] == chosen.alpha)
        self.best_score_ = float(table["mean_test_score"][place][0])
        self.decision_scores_ = {}
        for one in candidates:
            score = self.decision_scores_.get(one.decision, 0.0)
            self.decision_scores_[one.decision] = max(score, one.score)
