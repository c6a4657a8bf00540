"""The search of ridge estimators: which sigma and alpha suit held-out rows best.

All points are scored on the splits of a sample of the rows, under one map for all splits. Classes
get a second look: at the two best values of sigma, the decision is scored by its accuracy. Where
there are more rows, the best few points are compared again on one split of more of them, with the
kind of map that is fitted in the end. In leaves, all points are scored on the same whole ones,
whose rows are left out one by one. Nothing here knows an estimator: a `RidgeSearch` returns a
`SearchResult`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from itertools import product
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone

from .._arrays import LARGEST, rounding_of
from .._progress import Progress
from .._validation import check_positive, read_only
from ..features import ClusterNystroem
from .data import Data, Splits, contiguous, stratified
from .decide import Calibration, Decision, best_classes, best_scale, signs_of
from .held_out import FeatureSource, KernelSource, LeafSource

# Scores count as equal within this share of what the best one lacks, and within their rounding.
_EQUAL, ROUNDING = 1e-4, 1e-13
_RARE = 64  # rows of a class that are not too many for a search
_MORE = 4  # times as many rows, on which the best points of a search are compared again
_MOST_EXACT = 9216  # rows of the exact kernel, on which they are
_LANDMARKS = 256  # of a first look, at most, unless half of all are more
_BEST = 3  # points that are compared
SAME_ACCURACY = 1e-6  # differences below it do not matter: a row of a million
_MOST_OPERATIONS = 4e12  # of the solutions for all pairs in a search: some minutes


# ---------------------------------------------------------------- points


def sigma_grid(sigmas, data, decades):
    """Return the values of a search: those given, or as many over decades around "scale"."""
    if isinstance(sigmas, Integral):
        return data.resolved("scale") * np.logspace(*decades, sigmas)
    values = positive_array("sigmas", sigmas)
    if values.max() > LARGEST:
        raise ValueError(f"sigmas must be at most {LARGEST:g}, got {sigmas!r}.")
    return values


def positive_array(name, values):
    """Return a sequence of positive numbers as an array, or raise and name it."""
    numbers = np.array(values, dtype=object)  # of text beside numbers NumPy would make numbers
    if numbers.ndim != 1 or len(numbers) == 0:
        raise ValueError(f"{name} must be a sequence of finite numbers > 0, got {values!r}.")
    return np.array([check_positive(f"{name}[{i}]", value) for i, value in enumerate(numbers)])


def grid_of(sigmas, alphas):
    """Return the values of a search by name, in the order of its table."""
    return {"sigma": sigmas, "alpha": alphas} if len(sigmas) else {"alpha": alphas}


# ---------------------------------------------------------------- what counts as equal


@dataclass(frozen=True)
class Ties:
    """Which scores are as good as the best but for rounding and tiny differences.

    Parameters
    ----------
    ceiling : float or None, default=0.0
        The best possible score, if there is one.
    rounding : float, default=1e-13
        Rounding error of scores, with a margin.
    unit : float, default=1.0
        Scores are in units of its square.
    """

    ceiling: float | None = 0.0
    rounding: float = ROUNDING
    unit: float = 1.0

    def __call__(self, scores):
        """Return a mask of the scores."""
        best = scores.max()
        lack = abs(best) / 100 if self.ceiling is None else abs(self.ceiling - best)
        with np.errstate(over="ignore"):  # if all are as bad as can be
            return scores >= best - _EQUAL * lack - self.rounding


# ---------------------------------------------------------------- searches


def search(
    grid: dict,
    score_sigma: Callable,
    equal: Ties,
    *,
    verbose: int = 0,
    is_split: bool = True,
) -> dict:
    """Return the table of scores of a grid of sigma and alpha, named as in GridSearchCV.

    Parameters
    ----------
    grid : dict of ndarray
        Values of ``"sigma"``, if the map has one, and of ``"alpha"``.
    score_sigma : callable
        Given a sigma, which is 0 if the map has none, returns the scores of all splits,
        (n_splits, n_alphas).
    equal : Ties
        Which scores are nearly the best. These have rank 1.
    verbose : int, default=0
        With 1, print a line for every sigma.
    is_split : bool, default=True
        Whether scores are those of splits.
    """
    progress, scores = Progress(verbose), []
    sigmas = grid.get("sigma", np.zeros(1)).tolist()
    for number, sigma in enumerate(sigmas, start=1):
        scores.append(np.transpose(score_sigma(sigma)))
        if verbose:
            means = np.nan_to_num(scores[-1].mean(axis=1), nan=-np.inf)
            best = means.max() * equal.unit * equal.unit
            progress(f"sigma {number} of {len(sigmas)} ({sigma:.3g}): score {best:.4g}")
    # In one order in memory, so that equal rows have means that are equal to the last bit.
    scores = np.ascontiguousarray(np.concatenate(scores))
    points = product(*(np.asarray(values).tolist() for values in grid.values()))
    params = [dict(zip(grid, values, strict=True)) for values in points]
    means = np.nan_to_num(scores.mean(axis=1), nan=-np.inf)
    means[equal(means)] = means.max()
    ranks = rankdata(-means, method="min").astype(int)
    table: dict[str, Any] = {"params": params, "rank_test_score": ranks}
    table |= {f"param_{name}": np.array([values[name] for values in params]) for name in grid}
    with np.errstate(over="ignore", invalid="ignore"):
        scores = scores * equal.unit * equal.unit
        table["mean_test_score"] = scores.mean(axis=1)
        if is_split:
            table["std_test_score"] = scores.std(axis=1)
            table |= {f"split{k}_test_score": score.copy() for k, score in enumerate(scores.T)}
    return {name: read_only(values) for name, values in table.items()}


def _points_of(table):
    """Return the points (sigma, alpha) of a table; sigma is 0 if the map has none."""
    return [(params.get("sigma", 0.0), params["alpha"]) for params in table["params"]]


def scores_of_points(table):
    """Return the mean scores of a table by (sigma, alpha)."""
    return dict(zip(_points_of(table), table["mean_test_score"].tolist(), strict=True))


def best_point(table):
    """Return the least sigma, with the largest alpha, of the points of rank 1."""
    points = zip(_points_of(table), table["rank_test_score"], strict=True)
    return min((point for point, rank in points if rank == 1), key=_sigma_then_alpha)


def simplest(scores, equal):
    """Return the least sigma, with the largest alpha, of the points that are nearly the best."""
    are_best = equal(np.array(list(scores.values())))
    points = zip(scores, are_best, strict=True)
    return min((point for point, is_best in points if is_best), key=_sigma_then_alpha)


def _sigma_then_alpha(point):
    sigma, alpha = point
    return sigma, -alpha


def two_best_sigmas(table):
    """Return the two best values of sigma in a table; of equals the least comes first."""
    best = {}
    for (sigma, _), score in scores_of_points(table).items():
        best[sigma] = max(best.get(sigma, -np.inf), score)
    sigmas = sorted(best)
    first = simplest({(sigma, 0.0): best[sigma] for sigma in sigmas}, Ties())[0]
    return [first] + sorted((s for s in sigmas if s != first), key=lambda s: -best[s])[:1]


# ---------------------------------------------------------------- scorers


class KnownPredictions(RegressorMixin, BaseEstimator):
    """A regressor that predicts what it is given.

    Parameters
    ----------
    predictions : ndarray of shape (n,) or (n, n_outputs)
        What it predicts, in the order of the rows.
    """

    def __init__(self, predictions):
        self.predictions = predictions

    def __sklearn_is_fitted__(self):
        return True

    def predict(self, X):
        """Return the predictions."""
        return self.predictions


class KnownLabels(ClassifierMixin, KnownPredictions):
    """A classifier of several labels per row by the values that it is given."""

    @property
    def classes_(self):
        """Numbers of the labels."""
        return np.arange(self.predictions.shape[1])

    def decision_function(self, X):
        """Return the values of the labels."""
        return self.predictions

    def predict(self, X):
        """Return the labels."""
        return (self.predictions > rounding_of(X)).astype(int)


class KnownDecisions(ClassifierMixin, BaseEstimator):
    """A classifier that decides by the values that it is given.

    Parameters
    ----------
    classes : ndarray of shape (n_classes,)
        Labels.
    values : ndarray of shape (n, n_values)
        Values of the regressions, in the order of the rows.
    scores : ndarray of shape (n, n_classes) or (n, 1)
        What a decision reads from them.
    codes : ndarray of int of shape (n,)
        Numbers of the true classes, to which the scale of probabilities is fitted.
    is_of_pairs : bool
        Whether values are those of pairs.
    """

    def __init__(self, classes, values, scores, codes, is_of_pairs):
        self.classes_, self.values, self.scores, self.codes = classes, values, scores, codes
        self.is_of_pairs = is_of_pairs

    def decision_function(self, X):
        """Return the scores of the classes, or of the second of two."""
        return self.scores[:, 0] if len(self.classes_) == 2 else self.scores

    def predict(self, X):
        """Return the labels, the first of equals."""
        return self.classes_[best_classes(self.scores, rounding_of(X))]

    def predict_proba(self, X):
        """Return the probabilities of the classes."""
        values = self.values if self.is_of_pairs else self.scores
        calibration = Calibration.of(values, self.codes, None, self.is_of_pairs)
        return calibration(values, len(self.classes_))


def scorer_of(estimator):
    """Return a function of an estimator, or what stands for one, and of held-out rows; or None."""
    if estimator.scoring is None:
        return None
    from sklearn.metrics import check_scoring  # megabytes

    scorer = check_scoring(estimator, scoring=estimator.scoring)
    takes_weights = "sample_weight" in signature(scorer).parameters

    def score(fitted, test):
        weights = {"sample_weight": test.score_weights} if takes_weights else {}
        return scorer(fitted, test.X, test.y, **weights)

    return score


# ---------------------------------------------------------------- the search of ridge estimators


@dataclass(frozen=True, eq=False)
class SearchRows:
    """All rows and their splits, of which a search looks at some.

    Parameters
    ----------
    data : Data
        All rows.
    splits : Splits
        Of all rows.
    cv : object
        What the splits come from, for error messages.
    most : int or None
        About how many rows are looked at first; None is all.
    """

    data: Data
    splits: Splits
    cv: Any
    most: int | None

    @cached_property
    def first(self):
        """The rows on which all points are scored, and their splits."""
        return contiguous(*self._drawn(self.most))

    def more(self, most):
        """Return more rows and the split that trains on most of them; None if all were seen."""
        if len(self.first[0].y) == len(self.data.y):
            return None
        data, splits = self._drawn(most)
        return data, splits.largest()

    def _drawn(self, most):
        if most is None or len(self.data.y) <= most:
            return self.data, self.splits
        rows = stratified(self.data.class_codes, most, _RARE if self.data.targets.n_classes else 0)
        return self.data.part(rows), self.splits.among(rows, self.cv)


class Look(NamedTuple):
    """The mean score of a point, and its held-out values of every split."""

    score: float
    predictions: list


@dataclass(frozen=True, eq=False)
class SearchResult:
    """What a search chose.

    Parameters
    ----------
    sigma, alpha : float
        The best values; sigma is 0 if the map has none.
    table : dict of ndarray
        Scores of all points, named as in GridSearchCV.
    n_rows : int, default=None
        Number of rows in the table; None if all were left out one by one.
    decision : Decision, default=None
        What classes are decided by; None where targets are numbers.
    scale : float, default=None
        The multiplier of values in `Calibration`.
    fit : callable, default=None
        Returns the map that scored the table, fitted at a sigma.
    """

    sigma: float
    alpha: float
    table: dict
    n_rows: int | None = None
    decision: Decision | None = None
    scale: float | None = None
    fit: Callable | None = None

    @property
    def score(self):
        """The score of the chosen values in the table."""
        return scores_of_points(self.table)[self.sigma, self.alpha]


@dataclass(frozen=True, eq=False)
class RidgeSearch:
    """A search of sigma and alpha: `run` returns those that suit held-out rows best.

    A point is a pair of sigma and alpha.

    Parameters
    ----------
    rows : SearchRows
        The rows.
    feature_map : transformer or None
        Unfitted; None is the exact kernel, in the rows of pairs of classes.
    sigmas : ndarray of float
        Values of sigma; none keeps that of the map.
    alphas : ndarray of float
        Penalties.
    scorer : callable, default=None
        Score of a fitted estimator, or what stands for one, and rows; None is the squared error,
        and the accuracy of decisions.
    map_per_split : bool, default=False
        Whether every split has a map of its own, because it learns from targets.
    classes : ndarray, default=None
        Labels; None where targets are numbers, or several labels per row.
    is_multilabel : bool, default=False
        Whether rows have several labels.
    decision : Decision, default=None
        What classes are decided by.
    max_leaf_size : int, default=None
        As of the estimator.
    verbose : int, default=0
        With 1, print a line for every sigma.
    """

    rows: SearchRows
    feature_map: Any
    sigmas: np.ndarray
    alphas: np.ndarray
    scorer: Callable | None = None
    map_per_split: bool = False
    classes: np.ndarray | None = None
    is_multilabel: bool = False
    decision: Decision | None = None
    max_leaf_size: int | None = None
    verbose: int = 0

    def run(self):
        """Return the `SearchResult`."""
        first_look = self._on_few_landmarks()
        source = first_look._source(self.rows.first, self.map_per_split)
        table = self._table(source)
        scores, best, looks, scale = scores_of_points(table), best_point(table), {}, None
        if self.n_classes > 1 and self.scorer is None:
            points = list(product(two_best_sigmas(table), self._decided_alphas.tolist()))
            looks = self._look(source, points, self._n_affordable_splits(source, len(points)))
            scores = {point: look.score for point, look in looks.items()}
            best = simplest(scores, Ties(1.0, SAME_ACCURACY))
        if first_look is not self:
            source = self._source(self.rows.first, self.map_per_split)
        best, looks = self._compared(source, best, scores, looks)
        if self.n_classes:
            of_splits = (looks or self._look(source, [best]))[best].predictions
            losses = [split.log_losses(0, self.decision) for split in of_splits]
            scale = best_scale(np.mean(losses, axis=0))
        n_rows, fit = len(self.rows.first[0].y), getattr(source, "fit", None)
        if self.max_leaf_size is not None:
            n_rows = len(source.data.y)
        return SearchResult(*best, table, n_rows, self.decision, scale, fit)

    # ------------------------------------------------------------ what is scored

    @property
    def n_classes(self):
        """Number of classes; 0 for numbers."""
        return 0 if self.classes is None else len(self.classes)

    @property
    def _decided_alphas(self):
        """The penalties that are tried for the decision: of large ones the least at most."""
        alphas = np.unique(self.alphas)
        return alphas[alphas <= max(self.decision.most_alpha, alphas[0])]

    @property
    def _decided_problems(self):
        """The problems of the decision; None if they are the targets of all rows."""
        if not self.n_classes or (self.feature_map is not None and self.decision.uses_targets):
            return None
        return self.decision.problems(self.n_classes)

    def _source(self, rows, map_per_split, fit=None):
        """Return what makes values of held-out rows."""
        if self.feature_map is None:
            return KernelSource(*rows, self.n_classes)
        least, has_sigma = min(self.alphas), bool(len(self.sigmas))
        source = FeatureSource(
            self.feature_map, *rows, least, map_per_split, self.n_classes, has_sigma, fit
        )
        if self.max_leaf_size is None:
            return source
        sigma = float(self.sigmas[0]) if has_sigma else 0.0
        return LeafSource(source.fit, source.data, self.max_leaf_size, sigma)

    def _on_few_landmarks(self):
        """Return the search of the first look at some of many rows, where half the landmarks do."""
        is_sample = len(self.rows.first[0].y) < len(self.rows.data.y)
        if not (is_sample and isinstance(self.feature_map, ClusterNystroem)):
            return self
        n = max(self.feature_map.n_components // 2, min(self.feature_map.n_components, _LANDMARKS))
        return replace(self, feature_map=clone(self.feature_map).set_params(n_components=n))

    # ------------------------------------------------------------ scores

    def _table(self, source):
        """Return the table of all points, by squared errors or by the scorer.

        Errors are those of -1 and 1 for every class, which need no sums of each; those of pairs,
        and the scorer, are for the values that decide.
        """
        targets = source.data.targets
        unit, rounding = float(targets.unit.max()), ROUNDING
        if not targets.n_classes and not self.is_multilabel:
            # Errors come from far larger squares.
            rounding *= np.var(targets(slice(None)), axis=0).mean()
        equal, alphas, problems = Ties(rounding=rounding, unit=unit), self.alphas, None
        if self.scorer is not None:
            equal = Ties(ceiling=None)
        if self.n_classes and (self.feature_map is None or self.scorer is not None):
            alphas, problems = self._decided_alphas, self._decided_problems
        signs = signs_of(self.n_classes) if problems is not None and self.scorer is None else None

        def score_sigma(sigma):
            of_splits = source.predict(sigma, alphas, problems)
            if self.scorer is not None:
                return list(map(self._scores, of_splits))
            if signs is not None:
                return [-split.pair_errors(signs) for split in of_splits]
            return [-split.errors() for split in of_splits]

        return search(grid_of(self.sigmas, alphas), score_sigma, equal, verbose=self.verbose)

    def _scores(self, predictions):
        """Return the scores of all alphas: accuracies, negative errors, or those of the scorer."""
        if self.scorer is None and self.n_classes:
            return predictions.accuracies(self.decision)
        if self.scorer is None:
            return -predictions.errors()
        stand_ins, rows = [], predictions.rows
        for place, values in enumerate(predictions.values):
            if self.is_multilabel:
                stand_ins.append(KnownLabels(values))
            elif not self.n_classes:
                stand_ins.append(KnownPredictions(values.reshape(rows.y.shape)))
            else:
                scores, codes = predictions.scores_at(place, self.decision), rows.class_codes
                is_of_pairs = scores.shape[1] == 1 or self.decision.is_of_pairs
                stand_ins.append(KnownDecisions(self.classes, values, scores, codes, is_of_pairs))
        return np.array([self.scorer(stand_in, rows) for stand_in in stand_ins])

    def _look(self, source, points, n_splits=None):
        """Return a `Look` at every point; points that share a sigma share its features."""
        looks = {}
        for sigma in dict.fromkeys(sigma for sigma, _ in points):
            alphas = [alpha for other, alpha in points if other == sigma]
            of_splits = source.predict(sigma, alphas, self._decided_problems, n_splits)
            scores = np.mean(list(map(self._scores, of_splits)), axis=0).tolist()
            for place, alpha in enumerate(alphas):
                predictions = [split.for_alpha(place) for split in of_splits]
                looks[sigma, alpha] = Look(scores[place], predictions)
        return looks

    def _n_affordable_splits(self, source, n_points):
        """Return on how many splits a decision is scored, so that pairs do not take too long."""
        counts = np.sort(np.bincount(source.data.class_codes))
        n_rows = int(counts[-2:].sum())
        n_numbers = min(n_rows, source.n_columns or n_rows)
        n_problems = len(self.decision.problems(self.n_classes))
        cost = n_problems * n_points * n_numbers**3 / 3
        return int(np.clip(_MOST_OPERATIONS / max(cost, 1), 1, len(source.splits)))

    # ------------------------------------------------------------ on more rows

    def _compared(self, source, best, scores, looks):
        """Return the best of a few points on more rows, and looks at them; or what was given.

        More rows may ask for a narrower kernel or a smaller penalty, and the final map for others.
        """
        most = self.rows.most and _MORE * self.rows.most
        if self.feature_map is None:
            most = min(most, _MOST_EXACT) if most else most
        rows = self.rows.more(most)
        if rows is None:
            return best, looks
        runners_up = sorted((p for p in scores if p != best), key=lambda p: -scores[p])
        # Numbers keep the landmarks of the search; those of classes are found with labels.
        fit = None if self.n_classes or self.map_per_split else source.fit
        source = self._source(rows, fit is None, fit)
        points, looks = [best, *runners_up[: _BEST - 1]], {}
        while points:
            looks |= self._look(source, points)
            for point, look in looks.items():
                if look.score > looks[best].score + SAME_ACCURACY:
                    best = point
            # Landmarks limit what more rows can tell; the exact kernel goes on while it gains.
            points = self._sharper(*best) if self.feature_map is None else []
            points = [point for point in points if point not in looks]
        return best, looks

    def _sharper(self, sigma, alpha):
        """Return the point of the next narrower kernel, and that of the next smaller penalty."""
        sigmas = np.sort(self.sigmas[self.sigmas > sigma])[:1].tolist()
        alphas = self._decided_alphas
        alphas = np.sort(alphas[alphas < alpha])[-1:].tolist()
        return [(narrower, alpha) for narrower in sigmas] + [(sigma, less) for less in alphas]
