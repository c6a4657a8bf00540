"""The search of ridge estimators: which sigma and alpha suit held-out rows best.

All points are scored on the splits of a sample of the rows, under one map for all splits. Classes
get a second look: at the two best values of sigma, the decision is scored by its accuracy. Where
there are more rows, the best few points are compared again on one split of more of them, with the
kind of map that is fitted in the end. In leaves, all points are scored on the same whole ones,
whose rows are left out one by one.

Values of held-out rows come from a source: `FeatureSource` makes them from features, `KernelSource`
by the exact kernel in the rows of every problem, and `LeafSource` in whole leaves. Nothing here
knows an estimator: a `RidgeSearch` returns a `SearchResult`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from itertools import product
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone

from .._arrays import LARGEST, rounding_of, take, to_host
from .._progress import Progress
from .._typing import Array
from .._validation import check_positive, read_only
from ..features import ClusterNystroem, as_feature_map, columns_of
from .base import ROUNDING, Ties, beside_threads
from .data import (
    Data,
    Splits,
    as_slice,
    contiguous,
    in_order_of_classes,
    stratified,
    sums_of_splits,
)
from .decide import (
    Decision,
    best_classes,
    best_scale,
    losses,
    odds_of,
    probabilities,
    signs_of,
)
from .moments import RidgeSums, features_of, moments_of_groups, store_features
from .near_far import NearFarKernel, NearFarRows, check_leaves, sampled
from .rows import kernel_between
from .solve import RowSystem, solve_problems, values_of

_RARE = 64  # rows of a class that are not too many for a search
_MORE = 4  # times as many rows, on which the best points of a search are compared again
_MOST_EXACT = 9216  # rows of the exact kernel, on which they are
_LANDMARKS = 256  # of a first look, at most, unless half of all are more
_BEST = 3  # points that are compared
SAME_ACCURACY = 1e-6  # differences below it do not matter: a row of a million
_MOST_OPERATIONS = 4e12  # of the solutions for all pairs in a search: some minutes
_MOST_NUMBERS = 2**25  # of features that are held at once: 256 MB
_MOST_ROWS = 4096  # whose products are held, where pairs are solved in their rows
_CENTER_ROWS = 5000  # in which a search looks for landmarks


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


# ---------------------------------------------------------------- tables


def search(
    sigmas: Array,
    alphas: Array,
    score_sigma: Callable,
    equal: Ties,
    *,
    verbose: int = 0,
    is_split: bool = True,
) -> dict:
    """Return the table of scores of all pairs of sigma and alpha, named as in GridSearchCV.

    Parameters
    ----------
    sigmas, alphas : ndarray
        Values; no sigmas if the map has none.
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
    progress, scores = Progress(verbose) if verbose else None, []
    values = {"sigma": sigmas, "alpha": alphas} if len(sigmas) else {"alpha": alphas}
    for number, sigma in enumerate(values.get("sigma", np.zeros(1)).tolist(), start=1):
        scores.append(np.transpose(score_sigma(sigma)))
        if progress:
            means = np.nan_to_num(scores[-1].mean(axis=1), nan=-np.inf)
            best = means.max() * equal.unit * equal.unit
            progress(f"sigma {number} of {len(sigmas)} ({sigma:.3g}): score {best:.4g}")
    # In one order in memory, so that equal rows have means that are equal to the last bit.
    scores = np.ascontiguousarray(np.concatenate(scores))
    points = product(*(values[name].tolist() for name in values))
    params = [dict(zip(values, point, strict=True)) for point in points]
    means = np.nan_to_num(scores.mean(axis=1), nan=-np.inf)
    means[equal(means)] = means.max()
    ranks = rankdata(-means, method="min").astype(int)
    table: dict[str, Any] = {"params": params, "rank_test_score": ranks}
    table |= {f"param_{name}": np.array([point[name] for point in params]) for name in values}
    with np.errstate(over="ignore", invalid="ignore"):
        scores = scores * equal.unit * equal.unit
        table["mean_test_score"] = scores.mean(axis=1)
        if is_split:
            table["std_test_score"] = scores.std(axis=1)
            table |= {f"split{k}_test_score": score.copy() for k, score in enumerate(scores.T)}
    return {name: read_only(column) for name, column in table.items()}


def _points_of(table):
    """Return the points (sigma, alpha) of a table; sigma is 0 if the map has none."""
    return [(params.get("sigma", 0.0), params["alpha"]) for params in table["params"]]


def scores_of_points(table):
    """Return the mean scores of a table by (sigma, alpha)."""
    return dict(zip(_points_of(table), table["mean_test_score"].tolist(), strict=True))


def best_point(table):
    """Return the least sigma, with the largest alpha, of the points of rank 1."""
    return _simplest(_points_of(table), table["rank_test_score"] == 1)


def simplest(scores, equal):
    """Return the least sigma, with the largest alpha, of the points that are nearly the best."""
    return _simplest(scores, equal(np.array(list(scores.values()))))


def _simplest(points, are_best):
    best = [point for point, is_best in zip(points, are_best, strict=True) if is_best]
    return min(best, key=lambda point: (point[0], -point[1]))


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


class KnownDecisions(ClassifierMixin, KnownPredictions):
    """A classifier that decides as it is told.

    Parameters
    ----------
    classes : ndarray of shape (n_classes,)
        Labels.
    predictions : ndarray of shape (n,) or (n, n_labels)
        Labels of the rows, or 1 where a row has a label.
    scores : ndarray of shape (n, n_classes) or (n,)
        Scores of the classes, or of the second of two.
    predict_proba : function of this name, default=None
        Returns probabilities of the classes.
    """

    def __init__(self, classes, predictions, scores, predict_proba=None):
        super().__init__(predictions)
        self.classes_, self.scores = classes, scores
        if predict_proba is not None:
            self.predict_proba = predict_proba

    def decision_function(self, X):
        """Return the scores."""
        return self.scores


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


# ---------------------------------------------------------------- held-out rows


@dataclass(frozen=True, eq=False)
class HeldOutPredictions:
    """Values of rows by regressions that have not seen them, for every alpha.

    Parameters
    ----------
    values : ndarray of shape (n_alphas, n, V)
        Values of the regressions.
    rows : Data
        The rows.
    solutions : list of Solution or None
        What the values come from, which decisions read; None where they come from rows.
    """

    values: np.ndarray
    rows: Data
    solutions: list

    def errors(self):
        """Return the mean squared errors of the targets, (n_alphas,), in their largest unit."""
        targets, unit = self.rows.targets, self.rows.targets.unit
        # Coefficients may be only rounding, if alpha is lost in it.
        with np.errstate(over="ignore", invalid="ignore"):
            gaps = self.values / unit - targets(slice(None))
            errors = np.average(gaps**2, axis=1, weights=self.rows.score_weights)
            errors = errors @ ((unit / unit.max()) ** 2 / len(unit))
        return np.where(np.isnan(errors), np.inf, errors)

    def pair_errors(self, signs):
        """Return the mean squared errors of pairs at rows of their classes, (n_alphas,)."""
        signs = signs[self.rows.class_codes]
        errors = np.square(self.values - signs)[:, signs != 0]
        weights = self.rows.score_weights
        if weights is not None:
            weights = np.repeat(weights, np.count_nonzero(signs, axis=1))
        return np.average(errors, axis=1, weights=weights)

    def scores_at(self, place, decision):
        """Return the scores of the classes for an alpha, (n, n_classes), of two for the second."""
        return decision.read(self.values[place], self.solutions[place])

    def accuracies(self, decision):
        """Return the shares of the rows that a decision gets right, (n_alphas,)."""
        codes, tie = self.rows.class_codes, rounding_of(self.rows.X)
        scores = [self.scores_at(place, decision) for place in range(len(self.values))]
        right = [best_classes(of_alpha, tie) == codes for of_alpha in scores]
        return np.average(right, axis=1, weights=self.rows.score_weights)

    def log_losses(self, place, decision):
        """Return the mean log losses of a decision for all multipliers; see `losses`."""
        codes, weights = self.rows.class_codes, self.rows.score_weights
        odds, is_of_pairs = self._odds_at(place, decision)
        total = len(codes) if weights is None else weights.sum()
        return losses(odds, codes, weights, is_of_pairs) / total

    def known_decisions(self, place, decision, classes):
        """Return what stands for a classifier with an alpha; it scales its own probabilities."""
        odds, is_of_pairs = self._odds_at(place, decision)

        def predict_proba(X):
            scale = best_scale(losses(odds, self.rows.class_codes, None, is_of_pairs))
            return probabilities(odds, scale, len(classes), is_of_pairs)

        scores = self.scores_at(place, decision)
        labels = classes[best_classes(scores, rounding_of(self.rows.X))]
        scores = scores[:, 0] if len(classes) == 2 else scores
        return KnownDecisions(classes, labels, scores, predict_proba)

    def _odds_at(self, place, decision):
        n_classes = self.rows.targets.n_classes
        return odds_of(decision, n_classes, self.values[place], self.solutions[place])


# ---------------------------------------------------------------- sources


@dataclass(frozen=True, eq=False)
class FeatureSource:
    """Values of held-out rows by regressions on features.

    Parameters
    ----------
    feature_map : transformer
        Unfitted.
    data : Data
        All rows.
    splits : Splits
        Of the rows.
    least_alpha : float
        The smallest ridge.
    map_per_split : bool
        Whether every split has its own map, fitted to the rows that it trains on. Otherwise all
        share one, fitted to all rows without their labels.
    has_sigma : bool, default=True
        Whether maps are fitted at values of sigma, or as they are.
    shared_fit : callable, default=None
        Returns a fitted map at a sigma, for all splits.
    """

    feature_map: Any
    data: Data
    splits: Splits
    least_alpha: float
    map_per_split: bool
    has_sigma: bool = True
    shared_fit: Callable | None = None

    @cached_property
    def fit(self):
        """A function that returns the map fitted to all rows at a sigma."""
        data = self.data if self.map_per_split else replace(self.data, map_y=None)
        return self.shared_fit or self._fit_to(data)

    def _fit_to(self, data):
        if isinstance(self.feature_map, ClusterNystroem) and len(data.y) > _CENTER_ROWS:
            data = data.part(stratified(data.class_codes, _CENTER_ROWS))
        return data.fit_at_sigma(self.feature_map, self.has_sigma)

    @cached_property
    def n_columns(self):
        """Number of features, if it is known."""
        return columns_of(self.feature_map, len(self.data.y))

    @cached_property
    def _fits(self):
        """What fits a map at a sigma, the splits that share it, and the rows that they test on."""
        tests = [self.data.part(as_slice(test)) for test in self.splits.tests]
        if not self.map_per_split:
            return [(self.fit, self.splits, tests)]
        return [
            (self._fit_to(self.data.part(train)), self.splits[k : k + 1], tests[k : k + 1])
            for k, train in enumerate(self.splits.trains)
        ]

    def predict(self, sigma: float, alphas: Sequence[float], problems=None, n_splits=None):
        """Return the `HeldOutPredictions` of every split, or of the first few.

        Parameters
        ----------
        sigma : float
            Multiplies differences of rows.
        alphas : sequence of float
            The ridges.
        problems : sequence of Problem, default=None
            What is solved for among the classes; None is the targets of all rows.
        n_splits : int, default=None
            Number of splits; None is all.
        """
        results = []
        with beside_threads(self.feature_map):
            for fit, splits, tests in self._fits[:n_splits]:
                feature_map = as_feature_map(fit(sigma))
                sides = splits[:n_splits], tests[:n_splits]
                results += self._of_map(feature_map, *sides, alphas, problems)
        return results

    def _of_map(self, feature_map, splits, tests, alphas, problems):
        """Yield the `HeldOutPredictions` of splits that share a map."""
        data, sums = self.data, [None] * len(splits)
        if len(data.y) * (feature_map.n_columns or 1) <= _MOST_NUMBERS:
            feature_map, data = store_features(feature_map, data)
        if problems is None:
            shape = data.targets.shape
            nothing = RidgeSums({}, (feature_map,) * 2, shape, 0, self.least_alpha)
            sums = sums_of_splits(nothing, data, splits)
        for of_train, (train, test), rows in zip(sums, splits, tests, strict=True):
            features = features_of(feature_map, take(data.X, as_slice(test)))
            if problems is None:
                solutions = solve_problems(of_train.moments, problems, alphas)
                values = values_of(solutions, features)
            else:
                values, solutions = _of_classes(
                    feature_map, data.part(train), features, alphas, problems
                )
            yield HeldOutPredictions(values, rows, solutions)


def _of_classes(feature_map, train, features, alphas, problems):
    """Return the values of problems among classes, and solutions without coefficients.

    A problem is solved in its rows if they are fewer than features.
    """
    n_classes, n_columns = train.targets.n_classes, features.shape[1]
    counts = np.bincount(train.class_codes, minlength=n_classes)
    is_in_rows = np.array([counts[problem.groups].sum() < n_columns for problem in problems])
    is_in_rows &= len(train.y) <= _MOST_ROWS
    in_rows, in_columns = np.flatnonzero(is_in_rows), np.flatnonzero(~is_in_rows)
    solutions, values = [None] * len(alphas), {}
    if len(in_columns):
        classes = train.class_codes, n_classes, train.sample_weight
        moments = moments_of_groups(feature_map, train.X, *classes, min(alphas))
        solutions = solve_problems(moments, [problems[k] for k in in_columns], alphas)
        ends = np.cumsum([problems[k].targets.shape[1] for k in in_columns])
        of_problems = np.split(values_of(solutions, features), ends[:-1], axis=2)
        values |= dict(zip(in_columns, of_problems, strict=True))
    if len(in_rows):
        train = in_order_of_classes(train)
        rows = features_of(feature_map, train.X)
        classes = train.class_codes, train.sample_weight, n_classes
        system = RowSystem.of_gram(rows @ rows.T, *classes)
        of_problems = system.values(features @ rows.T, [problems[k] for k in in_rows], alphas)
        values |= dict(zip(in_rows, of_problems, strict=True))
    return np.concatenate([values[k] for k in range(len(problems))], axis=2), solutions


@dataclass(frozen=True, eq=False)
class KernelSource:
    """Values of held-out rows by regressions with the exact kernel, in the rows of each problem.

    Parameters
    ----------
    data : Data
        All rows.
    splits : Splits
        Of the rows.
    """

    data: Data
    splits: Splits

    n_columns = fit = None

    def predict(self, sigma: float, alphas: Sequence[float], problems, n_splits=None):
        """Return the `HeldOutPredictions` of every split; see `FeatureSource`."""
        results = []
        for train, test in self.splits[:n_splits]:
            train, test = in_order_of_classes(self.data.part(train)), self.data.part(test)
            rows = to_host(train.X)
            gram, cross = (kernel_between(to_host(side.X), rows, sigma) for side in (train, test))
            classes = train.class_codes, train.sample_weight, train.targets.n_classes
            values = RowSystem.of_gram(gram, *classes).values(cross, problems, alphas)
            values = np.concatenate(values, axis=2)
            results.append(HeldOutPredictions(values, test, [None] * len(alphas)))
        return results


@dataclass(frozen=True, eq=False)
class LeafSource:
    """Values of the rows of whole leaves, each by regressions on all others.

    The leaves and their rows are the same for every sigma.

    Parameters
    ----------
    fit : callable
        Returns the map fitted at a sigma.
    everything : Data
        All rows.
    most : int
        Distinct rows of a leaf, at most.
    sigma : float
        Where leaves are cut.
    """

    fit: Callable
    everything: Data
    most: int
    sigma: float

    n_columns = None

    @cached_property
    def _near_far(self):
        fitted = self.fit(self.sigma)
        check_leaves(fitted, self.everything.X, self.most)
        return NearFarKernel.of(as_feature_map(fitted), self.everything.X, self.most)

    @cached_property
    def _rows(self):
        near_far = self._near_far
        return sampled(near_far.bounds, near_far.row_to_distinct, np.random.default_rng(0))

    @cached_property
    def data(self):
        """The rows of some leaves, which stand for all."""
        return self.everything.part(self._rows)

    @property
    def splits(self):
        """All of these rows, which are left out one by one."""
        return Splits.one_by_one(len(self._rows))

    def _total(self, problem):
        """Return the weight of all rows of a problem's classes, or of all."""
        weights = self.everything.weights
        if problem is None:
            return weights.sum()
        return weights[np.isin(self.everything.class_codes, problem.groups)].sum()

    def predict(self, sigma: float, alphas: Sequence[float], problems=None, n_splits=None):
        """Return a list of the only `HeldOutPredictions`; see `FeatureSource`."""
        data, feature_map = self.data, as_feature_map(self.fit(sigma))
        with beside_threads(feature_map):
            leaves = self._near_far.subset(feature_map, data.X, self._rows)
            values = NearFarRows.under(leaves, data).held(problems, alphas, self._total)
        if problems is None:
            values = values * data.targets.unit
        return [HeldOutPredictions(values, data, [None] * len(alphas))]


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
    """The mean score of a point, and the place of its alpha among held-out rows of every split."""

    score: float
    place: int
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
        The multiplier of values in `probabilities`.
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
        Labels; None where targets are numbers.
    decision : Decision, default=None
        What classes are decided by; None where targets are numbers, or several labels per row.
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
            _, place, of_splits = (looks or self._look(source, [best]))[best]
            of_scales = [split.log_losses(place, self.decision) for split in of_splits]
            scale = best_scale(np.mean(of_scales, axis=0))
        n_rows = len(source.data.y)
        return SearchResult(*best, table, n_rows, self.decision, scale, source.fit)

    # ------------------------------------------------------------ what is scored

    @property
    def n_classes(self):
        """Number of classes; 0 for numbers, and for several labels per row."""
        return self.rows.data.targets.n_classes

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
            return KernelSource(*rows)
        least, has_sigma = min(self.alphas), bool(len(self.sigmas))
        source = FeatureSource(self.feature_map, *rows, least, map_per_split, has_sigma, fit)
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
        if self.classes is None:
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

        return search(self.sigmas, alphas, score_sigma, equal, verbose=self.verbose)

    def _scores(self, predictions):
        """Return the scores of all alphas: accuracies, negative errors, or those of the scorer."""
        if self.scorer is None and self.n_classes:
            return predictions.accuracies(self.decision)
        if self.scorer is None:
            return -predictions.errors()
        return np.array(
            [
                self.scorer(self._stand_in(predictions, place), predictions.rows)
                for place in range(len(predictions.values))
            ]
        )

    def _stand_in(self, predictions, place):
        """Return what stands for an estimator with an alpha."""
        if self.n_classes:
            return predictions.known_decisions(place, self.decision, self.classes)
        values, rows = predictions.values[place], predictions.rows
        if self.classes is None:
            return KnownPredictions(values.reshape(rows.y.shape))
        labels = (values > rounding_of(rows.X)).astype(int)
        return KnownDecisions(self.classes, labels, values)

    def _look(self, source, points, n_splits=None):
        """Return a `Look` at every point; points that share a sigma share its features."""
        looks = {}
        for sigma in dict.fromkeys(sigma for sigma, _ in points):
            alphas = [alpha for other, alpha in points if other == sigma]
            of_splits = source.predict(sigma, alphas, self._decided_problems, n_splits)
            scores = np.mean(list(map(self._scores, of_splits)), axis=0).tolist()
            for place, (alpha, score) in enumerate(zip(alphas, scores, strict=True)):
                looks[sigma, alpha] = Look(score, place, of_splits)
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
