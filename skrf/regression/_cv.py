"""What all searches have in common: scores of every sigma and fold, and a fit of the best."""

from itertools import product
from numbers import Integral
from operator import itemgetter
from typing import Self

import numpy as np
from scipy.stats import rankdata
from sklearn.base import is_classifier

from .._arrays import LARGEST, to_host
from .._typing import Array
from .._validation import commit, naming, read_only
from ._batches import searches
from ._blocks import beside_threads
from ._search import (
    ROUNDING,
    BestFits,
    judged_apart,
    judged_together,
    learns_from,
    nearly_best,
    positive_array,
    reported,
    resolved,
    splitter_for,
    tests_of,
)


class Search:
    """Mixin of estimators that choose sigma, and their other parameters, by cross-validation."""

    _foreign_parameters = {"gamma": "Pass sigmas, each sqrt(2 gamma), instead."}
    _decades = -1, 1  # of a grid, relative to sigma="scale"
    _hint = None
    _ceiling = 0.0  # the best score that there can be
    _n_kept_fits = 0  # of the best values of sigma

    def fit(
        self,
        X: Array,
        y: Array,
        sample_weight: Array | None = None,
        groups: Array | None = None,
    ) -> Self:
        """Score every sigma on every fold, and fit the best to all rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training rows; kernel regression searches those of other array libraries on the host.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets, or the labels of a classifier.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, at least 0, of rows and of their scores; rows of weight 0 are dropped.
        groups : array-like of shape (n_samples,), default=None
            Groups of rows for a splitter that keeps them together, such as GroupKFold.

        Returns
        -------
        self : object
            The fitted estimator.

        Warns
        -----
        UserWarning
            If there are fewer rows, or rows of the largest class, than folds: there are then as
            many folds as these allow, of two rows or more.
        """
        if self.sigmas is None:
            return self._fit_one_sigma(X, y, sample_weight)
        draft, data = self._read(X, y, sample_weight)
        y = np.asarray(to_host(y))
        with naming("cv"):
            cv = splitter_for(self.cv, y, classifier=is_classifier(self))
            tests = tests_of(cv, y, data, groups)
        sigmas, judge, unit = self._grid(data), draft._judge(), self._unit(data)
        feature_map = self._map_at(float(sigmas[0]), data)
        is_apart = learns_from(feature_map, data)
        self._check_size(feature_map, data, 2 if is_apart else 4 * len(tests))
        best = BestFits(self._n_kept_fits)
        with beside_threads(feature_map):
            runs = draft._runs(is_apart, best, feature_map, data, tests, sigmas, judge)
            runs = reported(runs, sigmas, self.verbose, unit)
            draft.feature_map_, sums = draft._choose(runs, sigmas, unit, self._rounding(data))
        if draft._chooses_again(feature_map, data, tests, best):
            sums = None
        if sums is None:  # or if every fold had a map of its own
            (draft.feature_map_,) = data.fit_at_sigmas(feature_map, [draft.sigma_])
            sums = draft._sums_of(draft.feature_map_, data)
        return commit(self, draft._finished(sums))

    def _passes(self, classes, scope):
        self._validate_params()
        return (
            super()._passes(classes, scope)
            if self.sigmas is None
            else searches(self, classes, scope)
        )

    def _obstacle_to_batches(self):
        scores_folds = "a search scores folds of all rows. Call fit, or fit_batches."
        return super()._obstacle_to_batches() or scores_folds

    def _runs(self, is_apart, best, *given):
        """Return an iterator over the scores of all sigmas, with maps and sums."""
        return judged_apart(self, *given, best) if is_apart else judged_together(self, *given)

    def _chooses_again(self, feature_map, data, tests, best):
        """Choose what sums cannot score, and return whether it needs other sums."""
        return False

    def _decisions_to_score(self):
        """Return the decisions of a classifier that sums cannot score."""
        return ()

    def _map_at(self, sigma, data=None):
        default = data and self._default_for(data)
        return self._prepared(sigma=sigma, hint=self._hint, default=default)

    def _grid(self, data):
        if isinstance(self.sigmas, Integral):
            return resolved("scale", data) * np.logspace(*self._decades, self.sigmas)
        sigmas = positive_array("sigmas", self.sigmas)
        if sigmas.max() > LARGEST:
            raise ValueError(f"sigmas must be at most {LARGEST:g}, got {self.sigmas!r}.")
        return sigmas

    def _others(self):
        """Return the values of parameters that a judge scores besides sigma, by name."""
        return {}

    def _unit(self, data):
        """Return the unit of targets in whose square scores are given."""
        return 1.0

    def _rounding(self, data):
        """Return the rounding error of scores."""
        return ROUNDING

    def _choose(self, runs, sigmas, unit=1.0, rounding=ROUNDING, is_split=True):
        """Set the best parameters and the table of scores; return the best run's map and sums.

        Parameters
        ----------
        runs : iterable of tuple
            For every sigma the scores of all splits, of shape (n_splits,), or (n_splits, n_others)
            if there are other parameters; then a map and sums.
        sigmas : sequence of float
            The values, none if the map has no sigma.
        unit : float, default=1.0
            Scores are in units of its square.
        rounding : float, default=1e-13
            Their rounding error, in these units.
        is_split : bool, default=True
            Whether scores are those of splits.
        """
        scores, means, good = [], [], []
        for sigma, (score, *made) in zip(sigmas if len(sigmas) else [0.0], runs, strict=True):
            scores.append(np.atleast_2d(np.array(np.transpose(score), order="C")))
            means.append(np.nan_to_num(scores[-1].mean(axis=1), nan=-np.inf))
            # Of those whose sums are kept, every larger sigma has a better score.
            good = [score for score in good if score[1] < sigma or score[0] > means[-1].max()]
            if not any(score[1] <= sigma and score[0] >= means[-1].max() for score in good):
                good.append((means[-1].max(), sigma, made))
            are_best = nearly_best(np.array([score[0] for score in good]), self._ceiling, rounding)
            good = [score for score, is_best in zip(good, are_best, strict=True) if is_best]
        grid = ({"sigma": sigmas} if len(sigmas) else {}) | self._others()
        params = [
            dict(zip(grid, values, strict=True))
            for values in product(*(np.asarray(values).tolist() for values in grid.values()))
        ]
        means = np.concatenate(means)
        means[nearly_best(means, self._ceiling, rounding)] = means.max()
        ranks = rankdata(-means, method="min").astype(int)
        table = {f"param_{name}": np.array([values[name] for values in params]) for name in grid}
        table |= {"params": params, "rank_test_score": ranks}
        with np.errstate(over="ignore", invalid="ignore"):
            scores = np.concatenate(scores) * unit * unit
            table["mean_test_score"] = scores.mean(axis=1)
            if is_split:
                table["std_test_score"] = scores.std(axis=1)
                table |= {f"split{k}_test_score": score.copy() for k, score in enumerate(scores.T)}
        self.cv_results_ = {name: read_only(values) for name, values in table.items()}
        # Of nearly equal ones the smallest sigma, and the largest alpha.
        place = max(
            np.flatnonzero(ranks == 1),
            key=lambda k: (-params[k].get("sigma", 0.0), params[k].get("alpha", 0.0)),
        )
        self.best_score_ = float(table["mean_test_score"][place])
        for name, value in params[place].items():
            setattr(self, f"{name}_", value)
        return min(good, key=itemgetter(1))[2]
