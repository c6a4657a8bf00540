"""Ridge regression and classification that choose sigma and alpha on held-out rows."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import signature
from numbers import Integral
from operator import methodcaller
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import is_classifier

from .._arrays import namespace
from .._estimator import SIGMAS, Unless
from .._threads import narrow_blas
from .._typing import Array, RandomState, Result, Transformer
from .._validation import Interval, commit
from .._warnings import note_names, once
from ..features import ClusterNystroem, columns_of
from .base import CLASS_WEIGHT, ROUNDING, Ties, beside_threads, probabilities_in
from .data import Splits, makes_folds, merged_copies, needs_groups, rows_of_folds, splits_of
from .decide import DECISIONS, Decision, name_of, odds_of, probabilities
from .evidence import leave_one_out_errors
from .ridge import LEAVES, ApproxKernelRidge, ApproxKernelRidgeClassifier, Ridge
from .search import (
    RidgeSearch,
    SearchResult,
    SearchRows,
    best_point,
    positive_array,
    scorer_of,
    search,
    sigma_grid,
)
from .solve import Spectrum

_HINT = "Use sigmas=None"  # where a map has no sigma
_DECADES = -1, 1  # of a grid, relative to sigma="scale"
_CONSTRAINTS = {
    **{name: Ridge._parameter_constraints[name] for name in ("feature_map", "random_state")},
    "sigmas": ["array-like", Interval(Integral, 2, None, closed="left"), None],
    "alphas": ["array-like"],
    "cv": ["cv_object"],
    "scoring": [str, callable, None],
    "subsample": [Interval(Integral, 2, None, closed="left"), None],
    "max_leaf_size": LEAVES,
    "verbose": ["verbose"],
}


class RidgeCV:
    """What both searches share: a fit that searches, of rows at once or in batches."""

    @once()
    def fit(
        self, X: Array, y: Array, sample_weight: Array | None = None, groups: Array | None = None
    ) -> Self:
        """Score every sigma and alpha on every fold, and refit with the best ones on all rows.

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
        draft, data = self._read(X, y, sample_weight)
        note_names(draft)
        if self._is_closed_form:
            fitted = draft._fit_by_leave_one_out(data)
        else:
            fitted = draft._fit_by_search(y, data, groups).added(data)
        return commit(self, draft._finish(fitted))

    # ------------------------------------------------------------ alpha alone

    @property
    def _is_closed_form(self):
        """Whether alpha alone is chosen, by the leverages of rows."""
        return self.sigmas is None and isinstance(self.cv, Integral) and self.max_leaf_size is None

    def _fit_by_leave_one_out(self, data):
        """Return a fit with the map's own sigma, and choose alpha by exact leave-one-out."""
        fitted = self._fit_map(data).added(data)
        moments = fitted.moments.together
        rows = merged_copies(data, is_classifier(self))
        alphas = positive_array("alphas", self.alphas)
        with beside_threads(fitted.maps[0]), narrow_blas(moments.n_columns):
            errors = leave_one_out_errors(fitted.maps[0], rows, moments, alphas)
        self._set_alpha(moments, errors)
        return fitted

    def _set_alpha(self, moments, errors):
        """Choose alpha by mean squared errors of rows that are left out one by one."""
        sigmas = np.array([self.sigma_] if hasattr(self, "sigma_") else [])
        alphas = positive_array("alphas", self.alphas)
        rounding = ROUNDING * np.mean(moments.squares) / moments.total
        equal = Ties(rounding=rounding, unit=moments.unit.max())
        table = search(sigmas, alphas, lambda sigma: [-errors], equal, is_split=False)
        self._set_result(SearchResult(*best_point(table), table))

    # ------------------------------------------------------------ searches

    def _fit_by_search(self, y, data, groups=None):
        """Return a fit to no rows under the map that a search of rows chooses.

        Where pairs of classes are solved in their own rows, it is an unsolved fit to all of them.
        """
        y, rows, groups = rows_of_folds(self, y, data, groups)
        result = self._search_of(rows, self._splits(y, rows, groups)).run()
        self._set_result(result)
        if result.fit is None:
            return self._fit_pairs(data, result.sigma)
        feature_map = self._map_at(result.sigma or None, data)
        is_exact = isinstance(self.feature_map, str)  # with every row a landmark
        if isinstance(feature_map, ClusterNystroem) and not (is_exact or is_classifier(self)):
            fitted_map = result.fit(result.sigma)  # numbers keep the landmarks of the search
        else:
            fitted_map = data.fit_at_sigma(feature_map, self.sigmas is not None)(result.sigma)
        return self._fit_under(fitted_map, data)

    def _splits(self, y, data, groups):
        """Return the splits of a search, which leaves out the rows of leaves one by one."""
        if self.max_leaf_size is None:
            return splits_of(self, y, data, groups)
        default = signature(type(self)).parameters["cv"].default
        if not (isinstance(self.cv, Integral) and self.cv == default):
            raise ValueError(
                f"cv must be left at {default} with max_leaf_size={self.max_leaf_size}, which "
                f"leaves out rows one by one, got {self.cv!r}."
            )
        return Splits.one_by_one(len(data.y))

    def _search_of(self, data, splits):
        """Return the `RidgeSearch` of validated rows."""
        most = self.subsample if self.max_leaf_size is None else None
        rows, sigmas = SearchRows(data, splits, self.cv, most), np.array([])
        sample = rows.first[0]
        if self.sigmas is not None:
            sigmas = sigma_grid(self.sigmas, data, _DECADES)
        feature_map, map_per_split = None, False
        if not self._solves_pairs(data):
            sigma = float(sigmas[0]) if len(sigmas) else None
            feature_map = self._map_at(sigma, sample)
            map_per_split = needs_targets(feature_map, sample.map_y)
            self._check_size(feature_map, sample, 2 if map_per_split else 4 * len(splits))
        return RidgeSearch(
            rows=rows,
            feature_map=feature_map,
            sigmas=sigmas,
            alphas=positive_array("alphas", self.alphas),
            scorer=scorer_of(self),
            map_per_split=map_per_split,
            max_leaf_size=self.max_leaf_size,
            classes=getattr(self, "classes_", None),
            decision=self._decision_of(feature_map, len(sample.y)),
            verbose=self.verbose,
        )

    def _decision_of(self, feature_map, n_rows):
        """Return the decision of a search, None if there is none to make."""

    def _set_result(self, result):
        """Set what a search tells."""
        self.alpha_, self.best_score_, self.cv_results_ = result.alpha, result.score, result.table
        if result.sigma:
            self.sigma_ = result.sigma
        if result.n_rows is not None:
            self.n_samples_searched_ = result.n_rows
        if result.decision is not None:
            self.decisions_, self.probability_scale_ = name_of(result.decision), result.scale

    # ------------------------------------------------------------ steps of a fit

    def _fit_map(self, data, is_first_batch=False):
        """Return a fit to no rows, under the map that a search of a sample of all rows chooses."""
        if self.sigmas is None:
            return super()._fit_map(data, is_first_batch)
        return self._fit_by_search(data.y, data)

    def _finish(self, fitted):
        if not hasattr(self, "alpha_"):  # of batches, which are not seen again
            moments = fitted.moments.together
            with narrow_blas(moments.n_columns):
                errors = Spectrum(moments).cross_validation(np.asarray(self.alphas, float))
            self._set_alpha(moments, errors)
        super()._finish(fitted)
        if self.sigmas is not None:  # nothing can be added to the sums of a search
            self._fitted = replace(self._fitted, moments=None, sizes=None)
        return self

    def _least_alpha(self):
        return getattr(self, "alpha_", positive_array("alphas", self.alphas).min())

    # ------------------------------------------------------------ batches

    def _leaves_sigma_open(self, feature_map):
        return self.sigmas is not None

    def _passes(self, classes, scope):
        is_splitter = hasattr(self.cv, "split") and not needs_groups(self.cv)
        if self.sigmas is None and not isinstance(self.cv, Integral):
            raise ValueError(
                "cv must be an integer with sigmas=None for rows that come in batches, which "
                f"then choose alpha by generalised cross-validation, got {self.cv!r}."
            )
        if not (makes_folds(self.cv) or is_splitter):
            raise ValueError(
                "cv must be None, an integer or a splitter that needs no groups, for rows that "
                f"come in batches, of which a search sees a sample, got {self.cv!r}."
            )
        return super()._passes(classes, scope)

    def _obstacle_to_batches(self):
        folds = "a search scores folds of all rows. Call fit, or fit_batches."
        return super()._obstacle_to_batches() or folds


def needs_targets(feature_map, target):
    """Return whether a map learns from the targets, which is assumed if it does not say.

    Landmarks can do without: a search then shares them among all folds.
    """
    centers = feature_map.centers if isinstance(feature_map, ClusterNystroem) else None
    if isinstance(centers, str) and centers == "auto":
        return False
    return not hasattr(feature_map, "_learns_from") or feature_map._learns_from(target)


# ---------------------------------------------------------------- the estimators


class ApproxKernelRidgeCV(RidgeCV, ApproxKernelRidge):
    """Ridge regression on random features that chooses sigma and alpha itself.

    With ``sigmas``, every pair of sigma and alpha is scored by cross-validation. The features of a
    sigma are computed once, and summed fold by fold: the sums of the other folds are merged for the
    training set of each. The final fit sums all rows. With ``sigmas=None`` the map keeps its sigma,
    and alpha is chosen by closed-form leave-one-out, as in scikit-learn's RidgeCV; copies are left
    out together. There, `fit_batches` uses generalised cross-validation, in which all rows have the
    mean leverage, because it does not revisit rows; with ``sigmas``, it searches a sample of
    100,000 rows, or all if there are fewer.

    Parameters
    ----------
    feature_map : transformer or "exact", default=None
        As in `ApproxKernelRidge`. In a search it is fitted to all rows without y, including
        held-out ones; a map that needs y is fitted to the training rows of each split instead.
        The landmarks of `ClusterNystroem` are kept.
    sigmas : int, array-like or None, default=10
        Values of the map's sigma. An int is the number of values, evenly spaced on a log scale from
        a tenth of the sigma of "scale" to ten times the sigma of "scale".
    alphas : array-like, default=(0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
        Penalties, > 0.
    cv : int, splitter or iterable of splits, default=5
        As in GridSearchCV. With ``sigmas=None``, an int stands for leave-one-out, and splits choose
        alpha. With an int, copies of a row stay on one side of a split; a splitter of your own is
        left alone (:ref:`copies`).
    scoring : str or callable, default=None
        Score to maximise, as in GridSearchCV; None is the negative mean squared error, which is
        much cheaper. A callable gets an estimator that can predict the rows of the test set and no
        others. Ignored by leave-one-out.
    subsample : int or None, default=4096
        About how many rows all pairs are scored on, if there are more, drawn at random. The best
        three are then compared on one split of up to four times as many. None scores all rows.
        Ignored with `max_leaf_size`.
    max_leaf_size : int, default=None
        As in `ApproxKernelRidge`. The score is then that of exact leave-one-out: `cv` keeps its
        default, also with ``sigmas=None``, and all pairs are scored on the rows of some leaves,
        at least 3,000, in their leaves and with landmarks that weigh as much as with all rows.
        `scoring` then holds for every search.
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
    n_samples_searched_ : int
        Number of rows that all pairs were scored on.
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

    _parameter_constraints = _CONSTRAINTS
    _foreign_parameters = SIGMAS
    sigma = None
    _hint = _HINT

    def __init__(
        self,
        feature_map: Transformer | Literal["exact"] | None = None,
        *,
        sigmas: int | Array | None = 10,
        alphas: Array = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0),
        cv: Any = 5,
        scoring: str | Callable | None = None,
        subsample: int | None = 4096,
        max_leaf_size: int | None = None,
        random_state: RandomState = None,
        verbose: int = 0,
    ) -> None:
        self.feature_map = feature_map
        self.sigmas = sigmas
        self.alphas = alphas
        self.cv = cv
        self.scoring = scoring
        self.subsample = subsample
        self.max_leaf_size = max_leaf_size
        self.random_state = random_state
        self.verbose = verbose


class ApproxKernelRidgeClassifierCV(RidgeCV, ApproxKernelRidgeClassifier):
    """Ridge classification on random features that chooses sigma and alpha itself.

    The search is that of `ApproxKernelRidgeCV`, on targets of -1 and 1 for every class; the score
    is their negative mean squared error. The two best values of sigma get a second look, with the
    same maps: the pair of sigma and alpha wins whose decisions are the most accurate on held-out
    rows. Predictions are those of `ApproxKernelRidgeClassifier`.

    Parameters
    ----------
    feature_map : transformer or "exact", default=None
        As in `ApproxKernelRidgeCV`. A map that learns from labels, such as `AdaptiveRF`, is fitted
        to the training rows of every fold. Leave-one-out has no folds, so the score of such a map
        is too optimistic: it has seen all labels. A search places the landmarks of
        `ClusterNystroem` without labels, once for all folds, and the final fit with them.
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
        Score to maximise, as in `ApproxKernelRidgeCV`; None is the negative mean squared error,
        and the accuracy for the second look. For scores of probabilities, their scale, a single
        number, is fitted to the test rows.
    subsample : int or None, default=4096
        About how many rows all pairs are scored on, if there are more, drawn from every class in
        proportion to its size, but at least 64 of each. The best three are then compared on one
        split of up to four times as many. None scores all rows. Ignored with `max_leaf_size`.
    max_leaf_size : int, default=None
        As in `ApproxKernelRidgeClassifier`, and as in `ApproxKernelRidgeCV` for the search.
    decision : {"auto", "argmax", "discriminants", "one-vs-one"} or Decision, default="auto"
        As in `ApproxKernelRidgeClassifier`.
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
    probability_scale_ : float
        Multiplier of the decision values in `predict_proba`, which minimises the log loss on
        held-out rows.
    alpha_ : float
        The best penalty; if several are nearly as good, the largest of them.
    sigma_ : float
        The best sigma, if the map has one; if several are nearly as good, the smallest of them.
    best_score_ : float
        Score of `sigma_` and `alpha_` in ``cv_results_``.
    n_samples_searched_ : int
        Number of rows that all pairs were scored on.
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
        **_CONSTRAINTS,
        "decision": ApproxKernelRidgeClassifier._parameter_constraints["decision"],
        "class_weight": CLASS_WEIGHT,
    }
    _foreign_parameters = SIGMAS
    _takes_sizes = False
    sigma = None
    _hint = _HINT

    def __init__(
        self,
        feature_map: Transformer | Literal["exact"] | None = None,
        *,
        sigmas: int | Array | None = 7,
        alphas: Array = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0),
        cv: Any = 3,
        scoring: str | Callable | None = None,
        subsample: int | None = 4096,
        max_leaf_size: int | None = None,
        decision: Literal["auto", "argmax", "discriminants", "one-vs-one"] | Decision = "auto",
        class_weight: dict | Literal["balanced"] | None = None,
        random_state: RandomState = None,
        verbose: int = 0,
    ) -> None:
        self.feature_map = feature_map
        self.sigmas = sigmas
        self.alphas = alphas
        self.cv = cv
        self.scoring = scoring
        self.subsample = subsample
        self.max_leaf_size = max_leaf_size
        self.decision = decision
        self.class_weight = class_weight
        self.random_state = random_state
        self.verbose = verbose

    def _decision_of(self, feature_map, n_rows):
        if self.multilabel_:
            return None
        is_whole = feature_map is None or self.max_leaf_size is not None
        return self._decision(0 if is_whole else columns_of(feature_map, n_rows) or 0)

    def _solves_pairs(self, data):
        return self.sigmas is not None and super()._solves_pairs(data)

    def _default_decision(self, n_columns):
        is_known = hasattr(self, "decisions_")  # of a search
        return DECISIONS[self.decisions_] if is_known else super()._default_decision(n_columns)

    def _obstacle_to_probabilities(self):
        if self._is_closed_form:
            return "probabilities need folds. Pass sigmas, or use CalibratedClassifierCV."
        if getattr(self, "multilabel_", False):
            return "y had several labels per row: calibrate one classifier per label."

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
        values, dtype = self._values(X)
        decision, n_classes = self._decided, len(self.classes_)
        odds, is_of_pairs = odds_of(decision, n_classes, values, self._fitted.solution)
        of_classes = probabilities(odds, self.probability_scale_, n_classes, is_of_pairs)
        return probabilities_in(of_classes, dtype)

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
