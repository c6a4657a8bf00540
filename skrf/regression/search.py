"""Kernel regression with sigma chosen by cross-validation, in one pass for all folds."""

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from numbers import Integral
from typing import Any, Self

import numpy as np
from sklearn.base import is_classifier

from .._arrays import to_host
from .._typing import Array, RandomState, Transformer
from .._validation import HasMethods, Interval, freeze, naming
from ..features import fitted_at
from ._batches import searches
from ._search import (
    FOREIGN,
    check_gaussian,
    judged_apart,
    judged_together,
    learns_from,
    positive_array,
    resolved,
    table_of,
    tests_of,
    told,
    wide_grid,
)
from .classifier import KernelRegressionClassifier
from .regressor import KernelRegressor


class _Search:
    """Code shared by the searches of classifier and regressor."""

    _parameter_constraints = {
        "feature_map": [HasMethods(["fit", "transform"]), None],
        "sigmas": [Interval(Integral, 2, None, closed="left"), "array-like"],
        "cv": ["cv_object"],
        "scoring": [str, callable, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }
    _takes_batches = False
    _foreign_parameters = FOREIGN
    _scores_rows, _sums_tests = True, False

    def __init__(
        self,
        feature_map: Transformer | None = None,
        *,
        sigmas: int | Array = 10,
        cv: Any = 5,
        scoring: str | Callable | None = None,
        random_state: RandomState = None,
        verbose: int = 0,
    ) -> None:
        self.feature_map = feature_map
        self.sigmas = sigmas
        self.cv = cv
        self.scoring = scoring
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Array, y: Array, sample_weight: Array | None = None) -> Self:
        """Score every sigma on every fold, and keep the sums of all rows for the best.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training rows; those of other array libraries are searched on the host.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Labels or targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, at least 0, of rows and of their scores; rows of weight 0 are dropped.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        from sklearn.model_selection import check_cv  # imported here because it uses megabytes

        draft, data = self._read(X, y, sample_weight=sample_weight)
        y = np.asarray(to_host(y))
        with naming("cv"):
            tests = tests_of(check_cv(self.cv, y, classifier=is_classifier(self)), y, data)
        data, sigmas = replace(data, X=to_host(data.X)), self._grid(data)
        feature_map = self._map_at(float(sigmas[0]))
        judge, may_keep = self._judge(), not callable(self.scoring)
        is_apart = learns_from(feature_map, data)
        if is_apart:
            apart = draft._judge_apart(judge)
            runs = judged_apart(feature_map, data, tests, sigmas, apart)
            scores = list(told(runs, sigmas, self.verbose, np.mean))
        else:
            runs = judged_together(draft, feature_map, data, tests, sigmas, judge, may_keep)
            runs = told(runs, sigmas, self.verbose, lambda run: np.mean(run[0]))
            scores, maps, sums = zip(*runs, strict=True)
        best = draft._choose(sigmas, scores)
        if is_apart:
            own = data.fit_arguments(feature_map)
            (draft.feature_map_,) = fitted_at(feature_map, sigmas[[best]], **own)
            fitted = draft._sums_of(draft.feature_map_, data)
        else:
            draft.feature_map_, fitted = maps[best], sums[best]
        return self._finish(draft, fitted)

    def _map_at(self, sigma):
        hint = "A search needs a feature map that has it"
        feature_map = self._prepared(sigma=sigma, hint=hint)
        check_gaussian(feature_map)
        return feature_map

    def _passes(self, classes, scope):
        self._validate_params()
        if self.scoring is not None:
            raise ValueError(
                "scoring must be None, accuracy or the coefficient of determination, for rows that "
                f"come in batches, got {self.scoring!r}."
            )
        return searches(self, classes, scope)

    def _settle(self, sigmas, trains, tests, scores):
        """Set the best sigma of a search in batches."""
        moments, losses = scores
        scores = [list(map(self._score_of, own, moments)) for own in losses]
        self._choose(sigmas, scores)

    def _choose(self, sigmas, scores):
        """Set the best sigma, given scores of sigmas and splits, and return its index."""
        scores = np.asarray(scores)
        means = scores.mean(axis=1)
        best = np.lexsort((sigmas, -np.nan_to_num(means, nan=-np.inf)))[0]
        self.sigma_, self.best_score_ = float(sigmas[best]), float(means[best])
        self.sigmas_, self.n_splits_ = sigmas, scores.shape[1]
        params = [{"sigma": sigma} for sigma in sigmas.tolist()]
        self.cv_results_ = table_of(params, scores, self.n_splits_)
        freeze([self.sigmas_, self.cv_results_])
        return best

    def _grid(self, data, survey=None):
        if isinstance(self.sigmas, Integral):
            return wide_grid(resolved("scale", data, survey), self.sigmas)
        return positive_array("sigmas", self.sigmas)

    def _judge(self):
        """Return a function that scores a model on part of the data, with any weights."""
        if self.scoring is None:
            return lambda model, part: model._score(part)
        from sklearn.metrics import check_scoring  # more megabytes

        scorer = check_scoring(self, scoring=self.scoring)
        takes_weights = "sample_weight" in signature(scorer).parameters

        def judge(model, part):
            weights = {"sample_weight": part.score_weights} if takes_weights else {}
            return scorer(model, part.X, part.y, **weights)

        return judge


class KernelRegressionClassifierCV(_Search, KernelRegressionClassifier):
    """`KernelRegressionClassifier` with sigma chosen by cross-validation.

    Gives the result of a grid search several times faster: for every sigma the features of all
    rows are computed once, and the sums over a fold's training rows are merged from the sums of the
    other folds. The sums of all folds together are the fitted model. There is no `partial_fit`.

    Parameters
    ----------
    feature_map : transformer, default=None
        A map with a parameter ``sigma``; None is ``AdaptiveRF(256)``.
    sigmas : int or array-like of shape (n_sigmas,), default=10
        Values to try. An int is the number of values, spread evenly on a log scale from a tenth of
        the sigma of "scale", where all rows look alike, to a hundred times that.
    cv : int, splitter or iterable, default=5
        Folds, as in GridSearchCV. Every training set must be the complement of its test set;
        rows outside all test sets are always trained on.
    scoring : str or callable, default=None
        Score to maximise, as in GridSearchCV; None is accuracy. With a callable the features are
        computed a second time for the scores.
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None keeps it. All sigmas share one draw.
    verbose : int, default=0
        With 1, `fit` prints a line per sigma.

    Attributes
    ----------
    sigma_ : float
        The best sigma, or the smallest of several.
    best_score_ : float
        Its mean score.
    sigmas_ : ndarray of shape (n_sigmas,)
        The values that were tried.
    cv_results_ : dict of ndarray
        Scores of every sigma and split, with the names of GridSearchCV.
    n_splits_ : int
        Number of splits.
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    class_weight_ : ndarray of shape (n_classes,)
        Sum of the weights of the training rows of each class.
    feature_map_ : transformer
        The map, fitted to all rows at the best sigma.
    n_features_in_ : int
        Number of input features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input features, if X had any.

    Raises
    ------
    ValueError
        By `fit`, if a training set is not the complement of its test set, the map has no
        ``sigma`` or uses the softmax kernel, or the data are invalid.

    See Also
    --------
    KernelRegressionClassifier : The chosen model.
    ApproxKernelRidgeClassifierCV : The search for ridge classification.

    Notes
    -----
    Parameters that a map learns from X alone, such as its centre, are learned from all rows,
    including held-out ones, but not from labels. Maps that learn from y, such as `AdaptiveRF`, are
    fitted to the training rows of every fold, with clusters that are found once for all sigmas.
    While scores are computed, the features of one sigma are kept if they take at most 256 MiB;
    otherwise they are computed twice.

    References
    ----------
    The model is that of `KernelRegressionClassifier`; that sums of folds are merged is ours.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skrf import KernelRegressionClassifierCV, OptimalPositiveRF
    >>> X, y = load_iris(return_X_y=True)
    >>> search = KernelRegressionClassifierCV(OptimalPositiveRF(64), random_state=0).fit(X, y)
    >>> bool(search.best_score_ > 0.9)
    True
    """


class KernelRegressorCV(_Search, KernelRegressor):
    """`KernelRegressor` with sigma chosen by cross-validation.

    See `KernelRegressionClassifierCV` for what sigmas and folds share.

    Parameters
    ----------
    feature_map : transformer, default=None
        A map with a parameter ``sigma``; None is ``AdaptiveRF(256)``.
    sigmas : int or array-like of shape (n_sigmas,), default=10
        Values to try; the number of values if an int, as in `KernelRegressionClassifierCV`.
    cv : int, splitter or iterable, default=5
        Folds, as in GridSearchCV. Every training set must be the complement of its test set;
        rows outside all test sets are always trained on.
    scoring : str or callable, default=None
        Score to maximise, as in GridSearchCV; None is the coefficient of determination.
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None keeps it. All sigmas share one draw.
    verbose : int, default=0
        With 1, `fit` prints a line per sigma.

    Attributes
    ----------
    sigma_ : float
        The best sigma, or the smallest of several.
    best_score_ : float
        Its mean score.
    sigmas_ : ndarray of shape (n_sigmas,)
        The values that were tried.
    cv_results_ : dict of ndarray
        Scores of every sigma and split, with the names of GridSearchCV.
    n_splits_ : int
        Number of splits.
    feature_map_ : transformer
        The map, fitted to all rows at the best sigma.
    target_mean_ : ndarray of shape (n_outputs,)
        Weighted mean of the training targets.
    n_features_in_ : int
        Number of input features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input features, if X had any.

    Raises
    ------
    ValueError
        By `fit`, if a training set is not the complement of its test set, the map has no
        ``sigma`` or uses the softmax kernel, or the data are invalid.

    See Also
    --------
    KernelRegressor : The chosen model.
    ApproxKernelRidgeCV : The search for ridge regression.

    References
    ----------
    The model is that of `KernelRegressor`; that sums of folds are merged is ours.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import KFold
    >>> from skrf import KernelRegressorCV, OptimalPositiveRF
    >>> X = np.linspace(0, 1, 200)[:, None]
    >>> y = np.sin(6 * X[:, 0])
    >>> cv = KFold(5, shuffle=True, random_state=0)
    >>> search = KernelRegressorCV(OptimalPositiveRF(64), cv=cv, random_state=0).fit(X, y)
    >>> bool(search.best_score_ > 0.9)
    True
    """
