"""Ridge regression on random features, in one pass over the rows."""

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any, Literal

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._arrays import namespace
from .._estimator import Unless
from .._typing import Array, RandomState, Result, Sigma, Transformer
from .._validation import StrOptions
from ..features import as_feature_map
from ._ridge import POSITIVE, _Classification, _Plain, _Regression, _Search
from .base import SIGMA
from .decide import (
    DECISIONS,
    SAME_ACCURACY,
    at_one_sigma,
    candidate_sigmas,
    grid_of,
    judged_decisions,
    n_scored_folds,
    of_two_classes,
    raced,
    simplest,
)
from .evidence import sigma_by_evidence
from .mixins import probabilities_in
from .probabilities import best_scale, probabilities
from .rows import MOST_COMPARED, PairSearch, judged_pairs
from .scoring import scorer_of
from .search import Criterion, nearly_best, positive_array
from .solve import is_affordable


class ApproxKernelRidge(_Regression, _Plain):
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
        for sparse rows, and in ``partial_fit``, whose first rows may differ from the others, it is
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
        **_Plain._parameter_constraints,
        "sigma": [StrOptions({"scale", "median", "evidence"}), SIGMA, None],
        "noise_variance": [POSITIVE, None],
    }

    def __init__(
        self,
        feature_map: Transformer | Literal["exact"] | None = None,
        *,
        sigma: Sigma | Literal["evidence"] | None = None,
        alpha: float | Literal["evidence"] = 1.0,
        noise_variance: float | None = None,
        random_state: RandomState = None,
    ) -> None:
        super().__init__(feature_map, sigma=sigma, alpha=alpha, random_state=random_state)
        self.noise_variance = noise_variance

    def _leaves_sigma_open(self, feature_map):
        return isinstance(self.sigma, str) and self.sigma == "evidence"

    def _prepared(self, sigma=None, **options):
        is_open = self._leaves_sigma_open(None) and sigma == self.sigma
        return super()._prepared(1.0 if is_open else sigma, **options)

    def _fit_map(self, data, is_first_batch=False):
        if self._leaves_sigma_open(None) and self._least_alpha():
            raise ValueError(
                "sigma='evidence' needs alpha='evidence', without noise_variance, got "
                f"alpha={self.alpha!r} and noise_variance={self.noise_variance!r}."
            )
        return super()._fit_map(data, is_first_batch)

    def _sized(self, feature_map, data):
        """Return a prepared map with its sigma."""
        if self._leaves_sigma_open(feature_map):
            feature_map.set_params(sigma=sigma_by_evidence(feature_map, data))
        return feature_map


class ApproxKernelRidgeClassifier(_Classification, _Plain):
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
    decision : {"auto", "argmax", "discriminants", "one-vs-one"}, default="auto"
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

    With ``sigmas``, every pair of sigma and alpha is scored by cross-validation, in one pass over
    the rows per sigma: the sums of a fold give the squared errors on its held-out rows, the sums of
    the other folds are merged for its training set, and the final fit merges all folds. With
    ``sigmas=None`` the map keeps its sigma, and alpha is chosen by closed-form leave-one-out, as in
    scikit-learn's RidgeCV; duplicate rows are left out together. `fit_batches` does not revisit
    rows, so it uses generalised cross-validation, in which all rows have the mean leverage.

    Parameters
    ----------
    feature_map : transformer or "exact", default=None
        As in `ApproxKernelRidge`. It is fitted to all rows, including held-out ones; if it learns
        from y, it is fitted to the training rows of each fold instead.
    sigmas : int, array-like or None, default=10
        Values of the map's sigma. An int is the number of values, evenly spaced on a log scale from
        a tenth of the sigma of "scale" to ten times the sigma of "scale".
    alphas : array-like, default=(0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
        Penalties, > 0.
    cv : int, splitter or iterable of splits, default=5
        As in GridSearchCV. Every training set must be the complement of its test set. Ignored with
        ``sigmas=None``.
    scoring : str or callable, default=None
        Score to maximise, as in GridSearchCV; None is the negative mean squared error, which is
        much cheaper. A callable gets an estimator that can predict the rows of the test set and no
        others. Ignored with ``sigmas=None``; not supported by `fit_batches` otherwise.
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None keeps it.
    verbose : int, default=0
        With 1, `fit` prints a line per sigma.

    Attributes
    ----------
    alpha_ : float
        The best penalty; if several are nearly as good, the largest of them.
    sigma_ : float
        The best sigma, if the map has one; if several are nearly as good, the smallest of them.
    best_score_ : float
        Score of the best pair: by default the negative mean squared error on held-out rows,
        averaged over folds and outputs, or, with ``sigmas=None``, that of leave-one-out.
    cv_results_ : dict of ndarray
        Scores of all pairs, named as in GridSearchCV.
    component_coef_ : ndarray of shape (n_columns,) or (n_outputs, n_columns)
        Coefficients of the features.
    intercept_ : float or ndarray of shape (n_outputs,)
        Intercept.
    noise_variance_ : ndarray of shape (n_outputs,)
        Noise variance of the targets; NaN if there are too few rows to estimate it.
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
    ApproxKernelRidge : The model without the search.
    KernelRegressorCV : The same kind of search for kernel regression.

    References
    ----------
    The model is that of `ApproxKernelRidge`; for generalised cross-validation, see Golub, Heath and
    Wahba (1979). Scoring folds from merged sums is our own.

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

    The search is that of `ApproxKernelRidgeCV`, on targets of -1 and 1 for every class; the score
    is their negative mean squared error. The two best values of sigma and up to two smaller ones
    are then scored again, with the same maps, by the accuracy of every decision rule on held-out
    rows. A smaller sigma is taken only if it is better by a standard error; with two classes, the
    same holds for any pair of sigma and alpha other than the one with the least squared error.
    Predictions are those of `ApproxKernelRidgeClassifier`.

    Parameters
    ----------
    feature_map : transformer or "exact", default=None
        As in `ApproxKernelRidgeCV`. A map that learns from labels, such as `ClusterNystroem`, is
        fitted to the training rows of every fold. With ``sigmas=None`` there are no folds, so the
        score of such a map is too optimistic: it has seen all labels.
        "exact" is as in `ApproxKernelRidgeClassifier`; the search then looks at about 4,096 rows,
        drawn in proportion to the classes but for rare ones, a comparison with narrower kernels and
        smaller penalties at about 9,216, and the final fit uses all rows.
    sigmas : int, array-like or None, default=7
        Values of the map's sigma. An int is the number of values, evenly spaced on a log scale from
        a tenth of the sigma of "scale" to ten times the sigma of "scale".
    alphas : array-like, default=(0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
        Penalties, > 0. For "one-vs-one", those above 1 are not tried.
    cv : int, splitter or iterable of splits, default=3
        As in `ApproxKernelRidgeCV`; with an int, folds are stratified.
    scoring : str or callable, default=None
        Score to maximise, as in `ApproxKernelRidgeCV`, for decision rules as well; None is the
        negative mean squared error, and accuracy for decision rules. For scores of probabilities,
        their scale, a single number, is fitted to the test rows.
    decision : {"auto", "argmax", "discriminants", "one-vs-one"}, default="auto"
        Decision rule for K > 2 classes: the largest of K regressions on -1 and 1, the linear
        discriminants that follow from them, or the votes of one regression per pair of classes.
        Votes are usually the most accurate with a few thousand rows, but take K (K - 1) / 2 linear
        solves. "auto" takes the rule that is most accurate on held-out rows; ties go to the first.
    class_weight : dict, "balanced" or None, default=None
        Factors for the row weights of each class, {label: factor}; missing labels have a factor of
        1. "balanced" is the weight of all rows divided by K times that of the class, as in
        RidgeClassifier; for this, `fit` must see all rows at once. The scores of a search are
        weighted in the same way.
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None keeps it.
    verbose : int, default=0
        With 1, `fit` prints a line per sigma.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels; the column indices if y is multilabel.
    multilabel_ : bool
        Whether y is multilabel, with columns of 0 and 1.
    decisions_ : str
        The decision rule in use; "argmax" for two classes.
    decision_scores_ : dict of float
        The best accuracy, or score, on held-out rows of every decision rule that was tried.
    probability_scale_ : float
        Multiplier of the decision values in `predict_proba`, which minimises the log loss on
        held-out rows.
    alpha_ : float
        The best penalty; if several are nearly as good, the largest of them.
    sigma_ : float
        The best sigma, if the map has one; if several are nearly as good, the smallest of them.
    best_score_ : float
        Score of `sigma_` and `alpha_` in ``cv_results_``.
    cv_results_ : dict of ndarray
        Scores of all pairs of sigma and alpha, named as in GridSearchCV. Where pairs of classes are
        solved on their own rows, errors are those of their regressions at rows of the two classes.
    component_coef_ : ndarray of shape (1 or n_classes or n_pairs, n_columns)
        Coefficients of the features, as in `ApproxKernelRidgeClassifier`.
    dual_coef_ : ndarray of shape (1, n_rows) or (n_pairs, n_rows)
        Instead of `component_coef_` and `feature_map_`, if pairs of classes were solved on their
        own rows: coefficients of the kernel with every row, in the order of the classes.
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
    ApproxKernelRidgeClassifier : The model without the search.
    KernelRegressionClassifierCV : The same kind of search for kernel regression.

    References
    ----------
    The model is that of `ApproxKernelRidgeClassifier`; scoring folds from merged sums is our own.

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
        scoring: str | Callable | None = None,
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
            scoring=scoring,
            random_state=random_state,
            verbose=verbose,
        )
        self.decision = decision
        self.class_weight = class_weight

    def _default_decision(self, n_columns):  # until folds have chosen
        return vars(self).get("decisions_", "discriminants")

    def _decisions_to_score(self):
        """Return the decisions among which held-out rows choose, or which they give an alpha."""
        decisions = DECISIONS if self.decision == "auto" else (self.decision,)
        if self.multilabel_ or len(self.classes_) < 2:
            return ()
        if len(self.classes_) == 2:
            return ("argmax",) if self.scoring is None else ()
        return decisions if "one-vs-one" in decisions else ()

    def _decision_grid(self, decisions):
        """Return the pairs (decision, alpha) to score."""
        return grid_of(decisions, np.unique(positive_array("alphas", self.alphas)))

    def _obstacle_to_probabilities(self):
        if self.sigmas is None:
            return "probabilities need folds. Pass sigmas, or use CalibratedClassifierCV."
        if getattr(self, "multilabel_", False):
            return "y had several labels per row: calibrate one classifier per label."
        if self._fitted is not None and not hasattr(self, "probability_scale_"):
            return (
                "probabilities need decisions on held-out rows. A search in batches has them for "
                "two classes, and with decision='auto' or 'one-vs-one'."
            )

    @partial(Unless, methodcaller("_obstacle_to_probabilities"))
    def predict_proba(self, X: Array) -> Result:
        """Return the probabilities of the classes.

        Decision values times ``probability_scale_`` are log odds. With one-vs-one they are the log
        odds within each pair of classes, which pairwise coupling (Wu, Lin and Weng, 2004) turns
        into probabilities of all classes; the most probable class is therefore sometimes not the
        one with the most votes.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        array of shape (n_samples, n_classes)
            Probabilities, in float64 for rows of NumPy.
        """
        check_is_fitted(self)
        feature_map, solution = self._fitted.reader
        values, dtype = self._of_features(X, feature_map, solution.values)
        n_classes = len(self.classes_)
        is_of_pairs = n_classes == 2 or self.decisions_ == "one-vs-one"
        values = probabilities_in(values, values.dtype)
        return probabilities_in(
            probabilities(values, self.probability_scale_, n_classes, is_of_pairs), dtype
        )

    @partial(Unless, methodcaller("_obstacle_to_probabilities"))
    def predict_log_proba(self, X: Array) -> Result:
        """Return the logarithms of `predict_proba`.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        array of shape (n_samples, n_classes)
            Log probabilities, in float64 for rows of NumPy; -inf where a probability is 0.
        """
        shares = self.predict_proba(X)
        with np.errstate(divide="ignore"):
            return namespace(shares).log(shares)

    @property
    def _decision_of_pairs(self):
        return ("one-vs-one",) if len(self.classes_) > 2 else ("argmax",)

    def _searched_in_rows(self, search):
        """Choose sigma and alpha by pairs of classes on some rows, and return the fit to all."""
        data, whole, search = search.data, search, PairSearch.within(search)
        alphas = np.unique([alpha for _, alpha in self._decision_grid(self._decision_of_pairs)])
        judge = partial(judged_pairs, alphas=alphas, classes=self.classes_, score=scorer_of(self))
        ceiling = 0.0 if self.scoring is None else None
        criterion = Criterion(judge, True, {"alpha": alphas}, ceiling=ceiling)
        search.chosen(search.runs(criterion), criterion)
        self._chooses_again(search)
        if len(search.data.y) < len(data.y):
            self._sharpen(PairSearch.within(whole, MOST_COMPARED))
        return self._fit_of_rows(data, self.sigma_)

    def _sharpen(self, search):
        """Take a narrower kernel or a smaller ridge of the grid while the first fold gains by it.

        More rows than those of the search before may ask for either.
        """
        table, score, (decision,) = self.cv_results_, scorer_of(self), self._decision_of_pairs
        sigmas, alphas = np.unique(table["param_sigma"]), np.unique(table["param_alpha"])[::-1]

        def judged_at(sigma, alpha):
            fold = search.fits_at(sigma)[0]
            return judged_decisions(*fold, [(decision, alpha)], self.classes_, score)[0]

        now = judged_at(self.sigma_, self.alpha_)
        while True:
            pairs = [(sigma, self.alpha_) for sigma in sigmas[sigmas > self.sigma_][:1]]
            pairs += [(self.sigma_, alpha) for alpha in alphas[alphas < self.alpha_][:1]]
            tried = [(judged_at(*map(float, pair)), pair) for pair in pairs]
            best, pair = max(tried, key=lambda one: one[0][0], default=(now, None))
            if not best[0] > now[0] + SAME_ACCURACY:  # or a score is NaN
                break
            now, (self.sigma_, self.alpha_) = best, map(float, pair)
        self.probability_scale_ = best_scale(now[1:])
        place = (table["param_sigma"] == self.sigma_) & (table["param_alpha"] == self.alpha_)
        self.best_score_ = float(table["mean_test_score"][place][0])

    def _chooses_again(self, search):
        if self.multilabel_:
            return False
        decisions, n_classes = self._decisions_to_score(), len(self.classes_)
        if search.is_of_pairs:
            decisions = [one for one in decisions if one in self._decision_of_pairs]
        sigmas = candidate_sigmas(self.cv_results_) if decisions else np.array([self.sigma_])
        grid = [(self._decision(0), self.alpha_)]
        if decisions:
            grid = self._decision_grid(decisions)
        fits = [search.fits_at(sigma) for sigma in sigmas]
        n_columns = min(as_feature_map(fits[0][0][0]).n_columns or 0, len(search.data.y))
        n_columns = 0 if search.is_of_pairs else n_columns  # pairs of few rows cost little
        n_folds = n_scored_folds(len(fits[0]), grid, len(sigmas), n_classes, n_columns)
        fits = [of_sigma[:n_folds] for of_sigma in fits]
        candidates = raced(fits, grid, sigmas, self.classes_, scorer_of(self))
        former = self.sigma_
        if not decisions:
            self.probability_scale_ = best_scale(candidates[0].losses)
            return False
        self._take(candidates, sigmas, sum(len(test.y) for *_, test in fits[0]))
        return self.decisions_ == "one-vs-one" or self.sigma_ != former

    def _take(self, candidates, sigmas, n_rows):
        """Set the parameters of the best candidate, by the accuracy of so many rows."""
        ceiling = 1.0 if self.scoring is None else None
        good = candidates
        if len(self.classes_) == 2:
            good = of_two_classes(candidates, self.sigma_, self.alpha_, n_rows)
        elif self.scoring is None:
            good = at_one_sigma(candidates, sigmas, n_rows)
        scores = np.array([one.score for one in good])
        chosen = simplest(good, nearly_best(scores, ceiling, SAME_ACCURACY))
        self.decisions_, self.sigma_, self.alpha_ = chosen.decision, chosen.sigma, chosen.alpha
        self.probability_scale_ = best_scale(chosen.losses)
        table = self.cv_results_
        place = (table["param_sigma"] == chosen.sigma) & (table["param_alpha"] == chosen.alpha)
        self.best_score_ = float(table["mean_test_score"][place][0])
        self.decision_scores_ = {}
        for one in candidates:
            score = self.decision_scores_.get(one.decision, -np.inf)
            self.decision_scores_[one.decision] = max(score, one.score)
