"""Kernel regression with sigma chosen by cross-validation, in one pass for all folds."""

import copy
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import Any, Self

from .._arrays import to_host
from .._estimator import SIGMAS
from .._typing import Array, RandomState, Transformer
from .._validation import HasMethods, Interval, commit
from .._warnings import note_names, once
from .batches import HAS_FOLDS, kernel_searches
from .classifier import KernelRegressionClassifier
from .data import as_slice, contiguous, splits_of, sums_of_splits
from .moments import beside_threads
from .regressor import KernelRegressor
from .scoring import scorer_of
from .search import Equal, Grid, check_gaussian, learns_from, maps_of, search, sigma_grid

_DECADES = -1, 2  # of a grid, relative to sigma="scale"


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
    _foreign_parameters = SIGMAS

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

    @once()
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
            Training rows; arrays of other libraries are copied to the host.
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
        splits = splits_of(self, y, data, groups)
        sigmas = sigma_grid(self.sigmas, data, _DECADES)
        feature_map = self._map_of_batches(float(sigmas[0]))
        is_apart = learns_from(feature_map, data.target)
        self._check_size(feature_map, data, 2 if is_apart else 4 * len(splits))
        judge = draft._judge_apart if is_apart else draft._judge
        judge = judge(feature_map, *contiguous(data, splits))
        equal = Equal(ceiling=1.0 if self.scoring is None else None)
        with beside_threads(feature_map):
            found = search(Grid(sigmas), judge, equal, verbose=self.verbose)
        draft._take(found)
        if found.kept is None:  # every fold had a map of its own
            draft.feature_map_ = data.fit_at_sigma(feature_map)(draft.sigma_)
            sums = draft._before(maps_of(draft.feature_map_), data).added(data)
        else:
            draft.feature_map_, sums = found.kept
        return commit(self, draft._finished(sums))

    def _take(self, found):
        self.sigma_, self.best_score_ = found.point["sigma"], found.score
        self.cv_results_ = found.table

    def _judge(self, feature_map, data, splits):
        """Return what scores a sigma, with the map and the sums of all rows."""
        fit, score = data.fit_at_sigma(feature_map), self._score_of_rows()
        tests = [data.part(as_slice(test)) for test in splits.tests]

        def judge(point):
            fitted = fit(point["sigma"])
            trains, total = sums_of_splits(self._before(maps_of(fitted), data), data, splits)
            scores = [score(self._on(sums), test) for sums, test in zip(trains, tests, strict=True)]
            return scores, (fitted, total)

        return judge

    def _judge_apart(self, feature_map, data, splits):
        """Return the same with maps that are fitted only to the rows that a split trains on."""
        score = self._score_of_rows()
        parts = [
            [data.part(as_slice(rows)) for rows in split]
            for split in zip(splits.trains, splits.tests, strict=True)
        ]
        fits = [train.fit_at_sigma(feature_map) for train, _ in parts]

        def judge(point):
            scores = []
            for fit, (train, test) in zip(fits, parts, strict=True):
                sums = self._before(maps_of(fit(point["sigma"])), train).added(train)
                scores.append(score(self._on(sums), test))
            return scores, None

        return judge

    def _score_of_rows(self):
        """Return a function of an estimator and rows of any weight."""
        return scorer_of(self) or (lambda fitted, test: fitted._score(test))

    def _obstacle_to_batches(self):
        return HAS_FOLDS

    def _read_rows(self, *rows, **options):
        draft, data = super()._read_rows(*rows, **options)
        return draft, replace(data, X=to_host(data.X))

    def _map_of_batches(self, sigma, data=None):
        feature_map = self._prepared(sigma=sigma, hint="A search needs a feature map that has it")
        check_gaussian(feature_map)
        return feature_map

    def _passes(self, classes, scope):
        self._validate_params()
        if self.scoring is not None:
            raise ValueError(
                "scoring must be None, accuracy or the coefficient of determination, for rows that "
                f"come in batches, got {self.scoring!r}."
            )
        return kernel_searches(self, classes, scope, _DECADES)

    def _finished(self, sums):
        self.sigmas_ = self.cv_results_["param_sigma"]
        self.n_splits_ = sum(name.startswith("split") for name in self.cv_results_)
        return super()._finished(sums)

    def _on(self, sums):
        """Return a copy that predicts from these sums, for scoring."""
        copied = copy.copy(self)
        vars(copied).pop("feature_names_in_", None)  # it will not see tables
        copied._warns = False  # its sigma may not be the chosen one
        return copied._hold(sums)


class KernelRegressionClassifierCV(_Search, KernelRegressionClassifier):
    """`KernelRegressionClassifier` with sigma chosen by cross-validation.

    This gives the result of a grid search several times faster: for every sigma, the sums over the
    training rows of a split are merged from those of the other folds, and merging all folds gives
    the fitted model. There is no `partial_fit`.

    Parameters
    ----------
    feature_map : transformer, default=None
        A map with a parameter ``sigma``; None is ``ClusterQuantizer(256)``.
    sigmas : int or array-like of shape (n_sigmas,), default=10
        Values to try. An int is the number of values, evenly spaced on a log scale from a tenth of
        the sigma of "scale", where all rows look alike, to a hundred times the sigma of "scale".
    cv : int, splitter or iterable, default=5
        Splits, as in GridSearchCV, TimeSeriesSplit among them. Rows are summed once, in the cells
        that splits never divide, unless these are many more than the splits.
    scoring : str or callable, default=None
        Score to maximise, as in GridSearchCV; None is accuracy.
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None keeps it. All sigmas share one draw.
    verbose : int, default=0
        With 1, `fit` prints a line per sigma.

    Attributes
    ----------
    sigma_ : float
        The best sigma. If others are nearly as good, with a shortfall from the best possible score
        that is at most one part in 10,000 larger, it is the smallest of them.
    best_score_ : float
        Mean score of `sigma_`; all values that are nearly as good have rank 1 in ``cv_results_``.
    sigmas_ : ndarray of shape (n_sigmas,)
        The values that were tried.
    cv_results_ : dict of ndarray
        Scores of every sigma and split, named as in GridSearchCV.
    n_splits_ : int
        Number of splits.
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    multilabel_ : bool
        Whether y is multilabel, with columns of 0 and 1.
    class_count_ : ndarray of shape (n_classes,)
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
        By `fit`, if a training set holds a row twice, the map has no
        ``sigma`` or uses the softmax kernel, or the data are invalid.

    See Also
    --------
    KernelRegressionClassifier : The model without the search.
    ApproxKernelRidgeClassifierCV : The same kind of search for ridge classification.

    Notes
    -----
    Parameters that a map learns from X alone, such as its centre, are learned from all rows,
    including held-out ones, but not from labels. Maps that learn from y, such as `AdaptiveRF`, are
    fitted to the training rows of every fold; the clusters are found once and serve all sigmas.
    While scores are computed, the features of one sigma are kept if they take at most 128 MiB;
    otherwise they are computed twice. With many features of `RFFSampler`, the products of rows and
    projections are kept instead, up to the same size, and serve all sigmas.

    References
    ----------
    The model is that of `KernelRegressionClassifier`; merging the sums of folds is our own.

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

    See `KernelRegressionClassifierCV` for what is shared between sigmas and folds.

    Parameters
    ----------
    feature_map : transformer, default=None
        A map with a parameter ``sigma``; None is ``ClusterQuantizer(256)``.
    sigmas : int or array-like of shape (n_sigmas,), default=10
        Values to try, or how many, as in `KernelRegressionClassifierCV`.
    cv : int, splitter or iterable, default=5
        Splits, as in GridSearchCV, TimeSeriesSplit among them. Rows are summed once, in the cells
        that splits never divide, unless these are many more than the splits.
    scoring : str or callable, default=None
        Score to maximise, as in GridSearchCV; None is the coefficient of determination.
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None keeps it. All sigmas share one draw.
    verbose : int, default=0
        With 1, `fit` prints a line per sigma.

    Attributes
    ----------
    sigma_ : float
        The best sigma. If others are nearly as good, with a shortfall from the best possible score
        that is at most one part in 10,000 larger, it is the smallest of them.
    best_score_ : float
        Mean score of `sigma_`; all values that are nearly as good have rank 1 in ``cv_results_``.
    sigmas_ : ndarray of shape (n_sigmas,)
        The values that were tried.
    cv_results_ : dict of ndarray
        Scores of every sigma and split, named as in GridSearchCV.
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
        By `fit`, if a training set holds a row twice, the map has no
        ``sigma`` or uses the softmax kernel, or the data are invalid.

    See Also
    --------
    KernelRegressor : The model without the search.
    ApproxKernelRidgeCV : The same kind of search for ridge regression.

    References
    ----------
    The model is that of `KernelRegressor`; merging the sums of folds is our own.

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
