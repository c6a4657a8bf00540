"""Ridge regression and classification on random features, in one pass over the rows.

Sigma, alpha and the decision are given; ``ridge_search.py`` chooses them.
"""

from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Literal, overload

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from .._arrays import namespace, rounding_of, to_host
from .._memory import check_fits
from .._sums import Memory
from .._threads import narrow_blas
from .._typing import Array, RandomState, Result, Sigma, Transformer
from .._validation import (
    Interval,
    StrOptions,
    check_integer,
    check_positive,
    draw_seed,
    read_only,
    validate_rows,
)
from ..features import ClusterNystroem, RFFSampler
from .base import (
    CLASS_WEIGHT,
    SIGMA,
    Classification,
    KernelEstimator,
    Regression,
    blocks_of,
    in_dtype,
    maps_of,
    predictions_in,
)
from .data import Sizes, merged_rows
from .decide import DECISIONS, Argmax, Decision, Discriminants, best_classes, name_of
from .evidence import check_noise_by_leave_one_out, check_sizes, sigma_by_evidence
from .moments import RidgeSums, bytes_of_moments, check_range, features_of, plain_features
from .near_far import NearFarRows, check_leaves
from .rows import ExactRows, KernelMap
from .solve import Spectrum, solve_posterior, solve_problems

POSITIVE = Interval(Real, 0, None, closed="neither")
FEW_ROWS = 2048  # up to which the exact kernel is a feature map, with every row a landmark
LEAVES = [Interval(Integral, 2, None, closed="left"), None]
_WAVES = 1024  # frequencies of what landmarks lack of a drawn function


class Ridge(KernelEstimator):
    """What all ridge estimators share: the map, the sums, and what is public of the solution.

    A subclass defines `_solution(fitted)`, from moments that are complete.
    """

    _default_map = ClusterNystroem(512)
    _default_map_of_sparse = RFFSampler(512)  # also of a first batch
    _parameter_constraints = {
        **KernelEstimator._parameter_constraints,
        "sigma": [StrOptions({"scale", "median"}), SIGMA, None],
        "alpha": [POSITIVE, StrOptions({"evidence"})],
    }
    _takes_sizes = True
    _hint = noise_variance = max_leaf_size = None

    def _least_alpha(self):
        """Return what will be added to the diagonal, or 0 if that is not known yet."""
        if self.noise_variance is not None:
            return check_positive("noise_variance", self.noise_variance)
        return 0.0 if self.alpha == "evidence" else check_positive("alpha", self.alpha)

    def _map_at(self, sigma, data, is_first_batch=False):
        default = self._default_map
        if self.feature_map is not None:  # "exact"
            default = ClusterNystroem(len(data.y))
        # Landmarks would be dense, and those of a first batch unlike the others.
        elif is_first_batch or sp.issparse(data.X):
            default = self._default_map_of_sparse
        return self._prepared(sigma, hint=self._hint, default=default)

    def _fit_map(self, data, is_first_batch=False):
        self._least_alpha()  # raise before any work
        feature_map = self._map_at(self.sigma, data, is_first_batch)
        fitted_map = data.fitted(self._check_size(feature_map, data))
        return self._fit_under(fitted_map, data)

    def _obstacle_to_batches(self):
        if self.max_leaf_size is not None:
            return f"max_leaf_size={self.max_leaf_size} keeps all rows and has no sums: call fit."
        return super()._obstacle_to_batches()

    def _fit_under(self, fitted_map, data):
        """Take a fitted map, and return a fit to no rows, or unsolved to all in their leaves."""
        self.feature_map_ = fitted_map
        if hasattr(fitted_map, "sigma_"):
            self.sigma_ = fitted_map.sigma_
        maps, most, least = maps_of(fitted_map), self.max_leaf_size, self._least_alpha()
        n_groups = self._n_groups(maps[0].n_columns or 0)
        fitted = RidgeSums(self.get_params(), maps, data.targets.shape, n_groups, least, data.total)
        if most is None:
            return replace(fitted, sizes=Sizes() if self._takes_sizes else None)
        check_leaves(fitted_map, data.X, most)
        if not least:
            raise ValueError(
                f"max_leaf_size={most} needs alpha to be a number, got {self.alpha!r}."
            )
        kept_rows = NearFarRows.of(maps[0], data, most)
        sizes = merged_rows(data)[1] if self._takes_sizes else None
        return replace(fitted, n_groups=0, kept_rows=kept_rows, sizes=sizes)

    def _bytes_of_sums(self, n_columns, data):
        return bytes_of_moments(n_columns, len(data.targets.unit))

    def _n_groups(self, n_columns):
        """Return of how many classes the moments of so many features are kept apart."""
        return 0

    def _solves_pairs(self, data):
        """Return whether pairs of classes are solved on the exact kernel of their own rows."""
        return False

    def _finish(self, fitted):
        with narrow_blas(fitted.n_columns):
            solution = self._solution(fitted)
        coef, intercept = map(read_only, self._linear(solution))
        self.alpha_, self.intercept_ = solution.alpha, intercept
        if not isinstance(fitted.maps[0], KernelMap) and not solution.reads_rows:
            self.component_coef_ = coef.T
        return super()._finish(replace(fitted, kept_rows=None, solution=solution, total=None))

    @property
    def _outputs(self):
        return self._fitted.shape

    @property
    def coef_(self) -> None:
        """Refused, because other tools read it as one coefficient per column of X."""
        raise AttributeError(
            f"{type(self).__name__} has no coef_, which would hold coefficients of the columns of "
            "X: component_coef_ holds those of the components of feature_map_."
        )

    def _linear(self, solution):
        return solution.linear

    def _of_features(self, X, feature_map, function):
        """Return the concatenated results of function(features, rows) for blocks, and a dtype."""
        X, memory = validate_rows(self, X, reset=False), Memory()

        def answer(rows):
            block = X[rows, :]
            with np.errstate(over="ignore", invalid="ignore"):
                return function(plain_features(feature_map, block, memory), block)

        size, map_blocks = blocks_of(feature_map, X)
        results = map_blocks(answer, X.shape[0], size)
        predictions = namespace(results[0]).concat(results, axis=0)
        check_range(predictions)
        return predictions, X.dtype


class ApproxKernelRidge(Regression, Ridge):
    """Ridge regression on random features, in one pass over the rows.

    Least squares on the features of any transformer, with an intercept and a penalty `alpha` on the
    squares of the coefficients. This is kernel ridge regression with the kernel of the features;
    the prediction is the posterior mean of the Gaussian process with that kernel. Only sums of
    products of centred features are kept, so memory grows with the square of the number of
    features, not with the number of rows, and ``partial_fit`` is exact.

    Feature rows of a positive map are divided by their norms, on a log scale. The kernel is then
    K(x, y) / sqrt(K(x, x) K(y, y)), where K is the kernel of the original features.

    Parameters
    ----------
    feature_map : transformer or "exact", default=None
        Any scikit-learn transformer: a feature map of this library, Nystroem, a Pipeline, or a
        fitted transformer in a FrozenEstimator. Of an asymmetric map, only the query side is used.
        "exact" takes all distinct rows as landmarks, which gives the exact Gaussian kernel.
        None is ``ClusterNystroem(512)``, which gives the exact kernel for up to 512 distinct rows;
        for sparse rows, and in ``partial_fit``, whose first batch may differ from the others, it is
        ``RFFSampler(512)``.
    sigma : float, "scale", "median", "evidence" or None, default=None
        Replaces the map's own sigma; None keeps it. A larger sigma is a narrower kernel. "evidence"
        maximises the marginal likelihood over sigma and alpha, on at most 2,000 rows; alpha must
        then be "evidence" as well.
    alpha : float or "evidence", default=1.0
        Penalty, > 0; "evidence" maximises the marginal likelihood of Bayesian linear regression.
    noise_variance : float, default=None
        Noise variance of the targets, if known. It replaces `alpha`, and the model is then the
        Gaussian process with the kernel of the features. None estimates it.
    max_leaf_size : int, default=None
        With it, the kernel is exact between rows in one leaf of a tree of the rows, of at most so
        many distinct ones, and goes through the landmarks of `ClusterNystroem` otherwise. Fits take
        time linear in the rows. On some tables leaves of 1,500 rows beside 400 landmarks come close
        to the exact kernel; on others, more landmarks without leaves are better in the same time.
        All rows are kept: there are no batches, and no `sample_y`.
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None keeps it.

    Attributes
    ----------
    component_coef_ : ndarray of shape (n_columns,) or (n_outputs, n_columns)
        Coefficients of the features.
    intercept_ : float or ndarray of shape (n_outputs,)
        Intercept.
    alpha_ : float
        The penalty.
    sigma_ : float
        The sigma in use, if the map has one.
    noise_variance_ : ndarray of shape (n_outputs,)
        Noise variance of the targets; NaN if there are too few rows to estimate it.
    feature_map_ : transformer
        The fitted clone of the feature map.
    n_features_in_ : int
        Number of input features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input features, if X had any.

    Raises
    ------
    ValueError
        By `fit`, if a parameter or the data are invalid, or if features of a map that is not
        positive exceed the range of floats.

    See Also
    --------
    ApproxKernelRidgeCV : The same, with sigma and alpha chosen by cross-validation.
    KernelRegressor : Weighted means of targets, with positive maps.
    sklearn.kernel_ridge.KernelRidge : The exact kernel, in time cubic in the number of rows.

    Notes
    -----
    Rows in float32 are mapped and multiplied in float32, and accumulated in float64. If alpha is so
    small that rounding could matter (below 1e-7 times the mean eigenvalue), and for "evidence",
    products are computed in float64.

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
        **Ridge._parameter_constraints,
        "sigma": [StrOptions({"scale", "median", "evidence"}), SIGMA, None],
        "noise_variance": [POSITIVE, None],
        "max_leaf_size": LEAVES,
    }

    def __init__(
        self,
        feature_map: Transformer | Literal["exact"] | None = None,
        *,
        sigma: Sigma | Literal["evidence"] | None = None,
        alpha: float | Literal["evidence"] = 1.0,
        noise_variance: float | None = None,
        max_leaf_size: int | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.feature_map = feature_map
        self.sigma = sigma
        self.alpha = alpha
        self.noise_variance = noise_variance
        self.max_leaf_size = max_leaf_size
        self.random_state = random_state

    def _leaves_sigma_open(self, feature_map):
        return isinstance(self.sigma, str) and self.sigma == "evidence"

    def _map_at(self, sigma, data, is_first_batch=False):
        if not (isinstance(sigma, str) and sigma == "evidence"):
            return super()._map_at(sigma, data, is_first_batch)
        if self._least_alpha():
            raise ValueError(
                "sigma='evidence' needs alpha='evidence', without noise_variance, got "
                f"alpha={self.alpha!r} and noise_variance={self.noise_variance!r}."
            )
        feature_map = super()._map_at(1.0, data, is_first_batch)
        return feature_map.set_params(sigma=sigma_by_evidence(feature_map, data))

    def _solution(self, fitted):
        alpha, noise = self._least_alpha(), self.noise_variance
        if fitted.kept_rows is not None:
            return fitted.kept_rows.solved(None, alpha, fitted.sizes, noise)
        if not alpha:
            check_sizes(fitted.sizes)
            return Spectrum(fitted.moments).solved_by_evidence(fitted.sizes)
        noise = None if noise is None else alpha
        return solve_posterior(fitted.moments, alpha, fitted.sizes, noise)

    def _check_fit(self, data):
        if not self._least_alpha():
            check_noise_by_leave_one_out(self._fitted, data)

    def _finish(self, fitted):
        super()._finish(fitted)
        solution = self._fitted.solution
        with np.errstate(over="ignore"):
            self.noise_variance_ = read_only(solution.posterior.deviation**2)
        if not fitted.shape:
            self.intercept_ = float(self.intercept_[0])
            if not solution.reads_rows:
                self.component_coef_ = self.component_coef_[0]
        return self

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
            deviations.

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
            If covariances do not fit in memory.

        Warns
        -----
        RuntimeWarning
            If X is in float32 and predictions overflow or underflow there.
        """
        check_is_fitted(self)
        if return_std and return_cov:
            raise ValueError("return_std and return_cov must not both be True.")
        if return_cov:
            covariances = self._covariances(X)  # first, because there may be too many to hold
            return self.predict(X), covariances
        feature_map, solution = self._fitted.reader
        shape = self._fitted.shape
        if return_std:
            self._check_noise("return_std=True")
            feature_map, solution = self._fitted.maps[0], self._fitted.solution

        def means_and_deviations(features, block):
            means = solution.values_at(features, block)
            if not return_std:
                return means
            deviations = solution.deviations_at(features, block, feature_map.is_projected)
            return namespace(means).concat([means, deviations], axis=1)

        predictions = predictions_in(*self._of_features(X, feature_map, means_and_deviations))
        xp, size = namespace(predictions), len(solution.intercept)
        starts = range(0, predictions.shape[1], size)
        outputs = [xp.reshape(predictions[:, a : a + size], (-1, *shape)) for a in starts]
        return tuple(outputs) if return_std else outputs[0]

    def _covariances(self, X):
        self._check_noise("return_cov=True")
        X, feature_map = validate_rows(self, X, reset=False), self._fitted.maps[0]
        solution, n_outputs = self._fitted.solution, max(len(self._fitted.shape), 1)
        n_numbers = X.shape[0] ** 2 * (3 + n_outputs)
        check_fits(8 * n_numbers, f"return_cov=True at {X.shape[0]} rows", "their covariances")
        covariances = solution.covariances_at(features_of(feature_map, X), X, feature_map)
        variances = solution.posterior.deviation**2
        return (
            covariances[:, :, None] * variances if self._fitted.shape else covariances * variances
        )

    def sample_y(self, X: Array, n_samples: int = 1, random_state: RandomState = 0) -> np.ndarray:
        """Return functions drawn from the posterior, at given rows and without the targets' noise.

        The same seed gives the same functions, whatever the rows. What landmarks lack of their
        kernel is drawn with 1,024 random frequencies.

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
            If there were too few rows to estimate the noise, or for landmarks of a Laplacian kernel
            with an exponent below 1.
        MemoryError
            If the functions do not fit in memory.

        References
        ----------
        Wilson et al., Efficiently sampling functions from Gaussian process posteriors (2020).
        """
        check_is_fitted(self)
        if self._fitted.solution.reads_rows:
            raise ValueError(
                "sample_y draws no functions of a model that was fitted with max_leaf_size: use "
                "return_cov, or fit with max_leaf_size=None."
            )
        self._check_noise("sample_y")
        n_samples = check_integer("n_samples", n_samples)
        solution, feature_map = self._fitted.solution, self._fitted.maps[0]
        X, (coef, intercept) = to_host(validate_rows(self, X, reset=False)), solution.linear
        n_coefs = 3 * (len(coef) + 1) + 4 * _WAVES * feature_map.is_projected
        n_numbers = n_samples * coef.shape[1] * (2 * X.shape[0] + n_coefs)
        description = f"n_samples={n_samples} at {X.shape[0]} rows"
        check_fits(8 * n_numbers, description, "values and coefficients")
        rng = np.random.default_rng(draw_seed(random_state))
        normal = rng.standard_normal((n_samples, *np.add(coef.shape, (1, 0))))
        changes, offset = solution.posterior.drawn(np.moveaxis(normal, 0, 2))
        coef, offset = coef[:, :, None] + changes, intercept[:, None] + offset

        def drawn(features, _):
            return np.tensordot(features.astype(np.float64), coef, 1) + offset

        values, dtype = self._of_features(X, feature_map, drawn)
        if feature_map.is_projected:
            values += self._drawn_beyond(X, n_samples, rng)
        return in_dtype(values if self._fitted.shape else values[:, 0], dtype)

    def _drawn_beyond(self, X, n_samples, rng):
        """Return drawn functions of what landmarks lack of the kernel, (n, T, n_samples)."""
        posterior, feature_map = self._fitted.solution.posterior, self._fitted.maps[0]
        landmarks, _ = feature_map.projected(X[:1, :])
        residual = landmarks.residual_waves(_WAVES, rng)
        sizes = posterior.deviation * np.sqrt(posterior.prior)
        weights = rng.standard_normal((n_samples, 2 * _WAVES, len(sizes)))
        weights = np.moveaxis(weights, 0, 2) * sizes[:, None]

        def drawn(features, block):
            _, rows = feature_map.projected(block)
            return np.tensordot(residual(rows, features.astype(np.float64)), weights, 1)

        return self._of_features(X, feature_map, drawn)[0]

    def _check_noise(self, what):
        """Raise if there are too few rows to estimate the noise."""
        solution = self._fitted.solution
        if np.isnan(solution.posterior.deviation).any():
            raise ValueError(
                f"{what} needs a variance of the noise, which cannot be estimated with "
                f"alpha={solution.alpha!r}: the rows are worth {solution.posterior.freedom:g} of "
                "equal weight, less than the degrees of freedom. Pass noise_variance, or a larger "
                "alpha."
            )


class ApproxKernelRidgeClassifier(Classification, Ridge):
    """Ridge classification on random features, in one pass over the rows.

    The targets are -1 and 1 for every class, as in scikit-learn's RidgeClassifier, and two classes
    are separated by the sign of the regression. With three or more classes, the largest regression
    often misses a class that lies between others. The regressions are therefore turned into linear
    discriminants, which follow from the same sums, or replaced by one regression per pair of
    classes, as in scikit-learn's OneVsOneClassifier but in a single pass over the rows. See
    `ApproxKernelRidge` for the regression.

    Parameters
    ----------
    feature_map : transformer or "exact", default=None
        As in `ApproxKernelRidge`. With "exact" and more than 2,048 rows, each pair of classes is
        solved on its own n rows, in n^3 / 3 operations and with three n x n matrices per thread,
        unless `decision` or `alpha` requires one system of all rows ("argmax" or "discriminants"
        of three or more classes, "evidence").
    sigma : float, "scale", "median" or None, default=None
        Replaces the map's own sigma; None keeps it. A larger sigma is a narrower kernel.
    alpha : float or "evidence", default=1.0
        Penalty, > 0; "evidence" maximises the marginal likelihood of Bayesian linear regression.
    decision : {"auto", "argmax", "discriminants", "one-vs-one"} or Decision, default="auto"
        Decision rule for K > 2 classes: the largest of K regressions on -1 and 1, the linear
        discriminants that follow from them, or the votes of one regression per pair of classes.
        Votes are usually the most accurate with a few thousand rows, but take K (K - 1) / 2 linear
        solves, and the moments of every class in memory, K n_components^2 numbers. "auto" is
        "one-vs-one", or "discriminants" if the solves would take more than a minute or so (K^2
        n_components^3 / 6 > 2e12).
    class_weight : dict, "balanced" or None, default=None
        Factors for the row weights of each class, {label: factor}; missing labels have a factor of
        1. "balanced" is the weight of all rows divided by K times that of the class, as in
        RidgeClassifier; for this, `fit` must see all rows at once. The scores of a search are
        weighted in the same way.
    max_leaf_size : int, default=None
        As in `ApproxKernelRidge`; not for "discriminants".
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None keeps it.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels; the column indices if y is multilabel.
    multilabel_ : bool
        Whether y is multilabel, with columns of 0 and 1.
    decisions_ : str
        The decision rule in use; "argmax" for two classes.
    component_coef_ : ndarray of shape (1 or n_classes or n_pairs, n_columns)
        Coefficients of the features: in the regression for two classes, in the decision values up
        to a term that all classes share, or in the regressions for the pairs (0, 1), (0, 2), ...,
        (1, 2), ..., which are positive for the second class.
    dual_coef_ : ndarray of shape (1, n_rows) or (n_pairs, n_rows)
        Instead of `component_coef_` and `feature_map_`, if pairs of classes were solved on their
        own rows: coefficients of the kernel with every row, in the order of the classes.
    intercept_ : ndarray of shape (1,), (n_classes,) or (n_pairs,)
        Intercepts.
    alpha_ : float
        The penalty.
    sigma_ : float
        The sigma in use, if the map has one.
    feature_map_ : transformer
        The fitted clone of the feature map.
    n_features_in_ : int
        Number of input features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input features, if X had any.

    See Also
    --------
    ApproxKernelRidgeClassifierCV : The same, with sigma and alpha chosen by cross-validation.
    KernelRegressionClassifier : Weighted votes, with probabilities.
    ApproxKernelRidge : The underlying regression.

    References
    ----------
    Rahimi and Recht, Random features for large-scale kernel machines (2007); Hastie, Tibshirani and
    Buja, Flexible discriminant analysis by optimal scoring (1994). The regression is that of
    `ApproxKernelRidge`; for one regression per pair, see Hastie and Tibshirani, Classification by
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
        **Ridge._parameter_constraints,
        "max_leaf_size": LEAVES,
        "decision": [StrOptions({"auto", *DECISIONS}), Decision],
        "class_weight": CLASS_WEIGHT,
    }

    def __init__(
        self,
        feature_map: Transformer | Literal["exact"] | None = None,
        *,
        sigma: Sigma | None = None,
        alpha: float | Literal["evidence"] = 1.0,
        decision: Literal["auto", "argmax", "discriminants", "one-vs-one"] | Decision = "auto",
        class_weight: dict | Literal["balanced"] | None = None,
        max_leaf_size: int | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.feature_map = feature_map
        self.sigma = sigma
        self.alpha = alpha
        self.decision = decision
        self.class_weight = class_weight
        self.max_leaf_size = max_leaf_size
        self.random_state = random_state

    # ------------------------------------------------------------ rows

    def _values_of_labels(self, y):
        if name_of(self.decision) not in ("auto", "argmax") or self.class_weight is not None:
            raise ValueError(
                "decision must be 'auto' or 'argmax', and class_weight None, where y has several "
                f"labels per row, got {self.decision!r} and {self.class_weight!r}."
            )
        return 2.0 * y - 1

    # ------------------------------------------------------------ solutions

    @property
    def _takes_sizes(self):
        return not self._least_alpha()

    def _decision(self, n_columns):
        """Return the decision that is made from sums of so many features."""
        if self.multilabel_ or len(self.classes_) <= 2:
            return Argmax()
        if isinstance(self.decision, str) and self.decision == "auto":
            return self._default_decision(n_columns)
        decision = DECISIONS.get(self.decision, self.decision)
        if self.max_leaf_size is not None and isinstance(decision, Discriminants):
            raise ValueError(
                "decision must not be 'discriminants' with max_leaf_size="
                f"{self.max_leaf_size}, which knows no means of features: use 'argmax'."
            )
        return decision

    def _default_decision(self, n_columns):
        pairs = DECISIONS["one-vs-one"]
        is_affordable = pairs.is_affordable(len(self.classes_), n_columns)
        return pairs if is_affordable else DECISIONS["discriminants"]

    def _solves_pairs(self, data):
        is_exact = isinstance(self.feature_map, str) and self.max_leaf_size is None
        if not is_exact or len(data.y) <= FEW_ROWS or self.multilabel_ or not self._least_alpha():
            return False
        if np.ptp(data.class_codes) == 0:  # a single class has rows
            return False
        return len(self.classes_) == 2 or name_of(self.decision) in ("auto", "one-vs-one")

    def _fit_map(self, data, is_first_batch=False):
        if not self._solves_pairs(data):
            return super()._fit_map(data, is_first_batch)
        return self._fit_pairs(data, data.resolved(self.sigma or "scale"))

    def _fit_pairs(self, data, sigma):
        """Return an unsolved fit to the exact kernel of all rows."""
        kept_rows, self.sigma_ = ExactRows.of(data, sigma), sigma
        maps, least_alpha = (kept_rows.kernel,) * 2, self._least_alpha()
        return RidgeSums(self.get_params(), maps, (), 0, least_alpha, kept_rows=kept_rows)

    def _bytes_of_sums(self, n_columns, data):
        n_bytes = super()._bytes_of_sums(n_columns, data)
        return n_bytes * (len(data.targets.unit) if name_of(self.decision) == "one-vs-one" else 1)

    def _n_groups(self, n_columns):
        return 0 if self._decision(n_columns).uses_targets else len(self.classes_)

    def _solution(self, fitted):
        n_classes, alpha, kept_rows = len(self.classes_), self._least_alpha(), fitted.kept_rows
        decision = self._decision(0 if kept_rows is not None else fitted.n_columns)
        self.decisions_, problems = name_of(decision), decision.problems(n_classes)
        if kept_rows is not None:
            return kept_rows.solved(None if self.multilabel_ else problems, alpha)
        if not alpha:
            check_sizes(fitted.sizes)
            alpha, _ = Spectrum(fitted.moments.together).by_evidence(fitted.sizes)
        return solve_problems(fitted.moments, problems, [alpha])[0]

    @property
    def _decided(self):
        """The decision that predictions are made by."""
        is_known = self.decisions_ in DECISIONS
        return DECISIONS[self.decisions_] if is_known else self._fitted.params["decision"]

    def _linear(self, solution):
        """Return coefficients and intercepts of the scores, up to a common term."""
        coef, intercept = solution.linear
        if self.decisions_ != "discriminants":
            return coef, intercept
        turn, levels = self._decided.turn_of(solution)
        return coef @ turn, intercept @ turn + levels

    @property
    def dual_coef_(self) -> np.ndarray:
        """Coefficients of the kernel with every row, if pairs were solved on their own rows."""
        # Not a second time in a pickle: there is one for every row and pair of classes.
        if self._fitted is None or not isinstance(self._fitted.maps[0], KernelMap):
            raise AttributeError("dual_coef_ exists after a fit in the rows of pairs of classes.")
        return read_only(self._fitted.solution.linear[0].T)

    # ------------------------------------------------------------ predictions

    def _values(self, X):
        """Return the values of all regressions, and a dtype."""
        check_is_fitted(self)
        feature_map, solution = self._fitted.reader
        return self._of_features(X, feature_map, solution.values_at)

    def _scores(self, values):
        return self._decided.read(values, self._fitted.solution)

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
        values, dtype = self._values(X)
        scores = in_dtype(self._scores(values), dtype)
        is_single = len(self.classes_) == 2 and not self.multilabel_
        return scores[:, 0] if is_single else scores

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
            predictions = predictions[:, None]
        return self._labels_at(best_classes(predictions, rounding))
