"""Searches: a strategy asks for points and is told their scores; the result is a value.

The search of ridge estimators asks which sigma, alpha and decision suit held-out rows best. All
points are scored on the splits of a sample of the rows, under one map for all splits; where there
are more rows, the best few points are compared again on one split of more of them, with the kind of
map that is fitted in the end. In leaves, all points are scored on the same whole ones, whose rows
are left out one by one. Nothing here knows an estimator: a task goes in, a choice comes out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from itertools import product
from numbers import Integral
from typing import Any

import numpy as np
from scipy.stats import rankdata
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone

from .._arrays import LARGEST, rounding_of
from .._progress import Progress
from .._validation import check_positive, read_only
from ..features import ClusterNystroem
from .data import Data, Splits, contiguous, stratified
from .decide import DECISIONS, Calibration, Decision, best_classes, best_scale, name_of, signs_of
from .held import FeatureSource, KernelSource, LeafSource

# Scores count as equal within this share of what the best one lacks, and within their rounding.
_EQUAL, ROUNDING = 1e-4, 1e-13
_RARE = 64  # rows of a class that are not too many for a search
_MORE = 4  # times as many rows, on which the best points of a search are compared again
_MOST_EXACT = 9216  # rows of the exact kernel, on which they are
_LANDMARKS = 256  # of a first look, at most, unless half of all are more
_BEST = 3  # points that are compared
_N_SMALLER = 2  # values of sigma than the best, at which decisions are scored, too
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
    given = np.array(values, dtype=object)  # of text beside numbers NumPy would make numbers
    if given.ndim != 1 or len(given) == 0:
        raise ValueError(f"{name} must be a sequence of finite numbers > 0, got {values!r}.")
    return np.array([check_positive(f"{name}[{i}]", value) for i, value in enumerate(given)])


def grid_of(sigmas, alphas):
    """Return the values of a search by name, in the order of its table."""
    return {"sigma": sigmas, "alpha": alphas} if len(sigmas) else {"alpha": alphas}


# ---------------------------------------------------------------- what counts as equal


@dataclass(frozen=True)
class Equal:
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


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found.

    Parameters
    ----------
    point : dict
        The best values, by name.
    score : float
        Their mean score.
    table : dict of ndarray
        Scores of all points, named as in GridSearchCV.
    """

    point: dict
    score: float
    table: dict


def search(
    grid: dict,
    judge: Callable,
    equal: Equal,
    *,
    verbose: int = 0,
    is_split: bool = True,
) -> Found:
    """Return what is `Found` in a grid of sigma and alpha.

    Parameters
    ----------
    grid : dict of ndarray
        Values of ``"sigma"``, if the map has one, and of ``"alpha"``.
    judge : callable
        Given a sigma, which is 0 if the map has none, returns the scores of all splits,
        (n_splits, n_alphas).
    equal : Equal
        Which scores are nearly the best. Of these, the smallest sigma and the largest alpha win.
    verbose : int, default=0
        With 1, print a line for every sigma.
    is_split : bool, default=True
        Whether scores are those of splits.
    """
    progress, sigmas, scores = Progress(verbose), grid.get("sigma", np.zeros(1)).tolist(), []
    for number, sigma in enumerate(sigmas, start=1):
        scores.append(np.transpose(judge(sigma)))
        if verbose:
            means = np.nan_to_num(scores[-1].mean(axis=1), nan=-np.inf)
            best = means.max() * equal.unit * equal.unit
            progress(f"sigma {number} of {len(sigmas)} ({sigma:.3g}): score {best:.4g}")
    # In one order in memory, so that equal rows have means that are equal to the last bit.
    scores = np.ascontiguousarray(np.concatenate(scores))
    place, table = _table(grid, scores, equal, is_split)
    return Found(dict(table["params"][place]), float(table["mean_test_score"][place]), table)


def _table(grid, scores, equal, is_split):
    """Return the place of the best point, and the table of scores."""
    points = product(*(np.asarray(values).tolist() for values in grid.values()))
    params = [dict(zip(grid, values, strict=True)) for values in points]
    means = np.nan_to_num(scores.mean(axis=1), nan=-np.inf)
    means[equal(means)] = means.max()
    ranks = rankdata(-means, method="min").astype(int)
    table = {f"param_{name}": np.array([values[name] for values in params]) for name in grid}
    table |= {"params": params, "rank_test_score": ranks}
    with np.errstate(over="ignore", invalid="ignore"):
        scores = scores * equal.unit * equal.unit
        table["mean_test_score"] = scores.mean(axis=1)
        if is_split:
            table["std_test_score"] = scores.std(axis=1)
            table |= {f"split{k}_test_score": score.copy() for k, score in enumerate(scores.T)}
    place = max(
        np.flatnonzero(ranks == 1),
        key=lambda k: (-params[k].get("sigma", 0.0), params[k].get("alpha", 0.0)),
    )
    return place, {name: read_only(values) for name, values in table.items()}


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
        seen = self.values if self.is_of_pairs else self.scores
        return Calibration.of(seen, self.codes, None, self.is_of_pairs)(seen, len(self.classes_))


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
        n, targets = len(self.data.y), self.data.values
        if most is None or n <= most:
            return self.data, self.splits
        is_of_classes = targets.classes is not None
        codes = targets.values if is_of_classes else np.zeros(n, int)
        rows = stratified(codes, most, _RARE if is_of_classes else 0)
        return self.data.part(rows), self.splits.among(rows, self.cv)


@dataclass(frozen=True, eq=False)
class Task:
    """What a search is asked.

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
    score : callable, default=None
        Score of a fitted estimator, or what stands for one, and rows; None is the squared error,
        and the accuracy of decisions.
    learns : bool, default=False
        Whether the map learns from targets, so that every split has its own.
    classes : ndarray, default=None
        Labels; None where targets are numbers, or several labels per row.
    is_multilabel : bool, default=False
        Whether rows have several labels.
    decisions : tuple of Decision, default=()
        The decisions to choose from.
    max_leaf_size : int, default=None
        As of the estimator.
    verbose : int, default=0
        With 1, print a line for every sigma.
    """

    rows: SearchRows
    feature_map: Any
    sigmas: np.ndarray
    alphas: np.ndarray
    score: Callable | None = None
    learns: bool = False
    classes: np.ndarray | None = None
    is_multilabel: bool = False
    decisions: tuple = ()
    max_leaf_size: int | None = None
    verbose: int = 0

    @property
    def n_classes(self):
        """Number of classes; 0 for numbers."""
        return 0 if self.classes is None else len(self.classes)

    def source(self, rows, learns, fit=None):
        """Return what makes values of held-out rows."""
        if self.feature_map is None:
            return KernelSource(*rows, self.n_classes)
        least, has_sigma = min(self.alphas), bool(len(self.sigmas))
        given = self.feature_map, *rows, least, learns, self.n_classes, has_sigma
        source = FeatureSource(*given, given_fit=fit)
        if self.max_leaf_size is None:
            return source
        sigma = float(self.sigmas[0]) if has_sigma else 0.0
        return LeafSource(source.fit, source.data, self.max_leaf_size, sigma)

    def on_few_landmarks(self):
        """Return the task of the first look at some of many rows, where half the landmarks do."""
        is_sample = len(self.rows.first[0].y) < len(self.rows.data.y)
        if not (is_sample and isinstance(self.feature_map, ClusterNystroem)):
            return self
        n = max(self.feature_map.n_components // 2, min(self.feature_map.n_components, _LANDMARKS))
        return replace(self, feature_map=clone(self.feature_map).set_params(n_components=n))

    @property
    def first_decision(self):
        """The decision that the table scores, if a scorer needs one."""
        if not self.n_classes:
            return None
        is_known = DECISIONS["discriminants"] in self.decisions and len(self.decisions) > 1
        return DECISIONS["discriminants"] if is_known else self.decisions[0]

    @property
    def is_decided_again(self):
        """Whether decisions are scored, at the best points of the table and near them."""
        if self.n_classes < 2:
            return False
        if self.n_classes == 2:
            return self.score is None
        return len(self.decisions) > 1 or not (self.score or self.decisions[0].uses_targets)

    def alphas_for(self, decision):
        """Return the penalties that are tried for a decision: of large ones the least at most."""
        alphas = np.unique(self.alphas)
        most = max(decision.most_alpha, alphas[0])
        return alphas[alphas <= most]


@dataclass(frozen=True)
class Candidate:
    """A decision at a point, with its score on held-out rows.

    Parameters
    ----------
    decision : Decision or None
        None where targets are numbers.
    sigma, alpha : float
        The point.
    score : float
        Its mean score over splits.
    """

    decision: Decision | None
    sigma: float
    alpha: float
    score: float = field(compare=False)


@dataclass(frozen=True, eq=False)
class Choice:
    """What a search chose.

    Parameters
    ----------
    best : Candidate
        The choice.
    table : dict of ndarray
        Scores of all points, named as in GridSearchCV.
    n_rows : int, default=None
        Number of rows in the table; None if all were left out one by one.
    decision_scores : dict, default={}
        The best score of every decision by name.
    scale : float, default=None
        The multiplier of values in `Calibration`.
    fit : callable, default=None
        Returns the map that scored the table, fitted at a sigma.
    """

    best: Candidate
    table: dict
    n_rows: int | None = None
    decision_scores: dict = field(default_factory=dict)
    scale: float | None = None
    fit: Callable | None = None

    @property
    def score(self):
        """The score of the point in the table."""
        is_of_sigma = self.table.get("param_sigma", np.zeros(1)) == self.best.sigma
        place = np.argmax(is_of_sigma & (self.table["param_alpha"] == self.best.alpha))
        return float(self.table["mean_test_score"][place])


def best_of(found, decision=None):
    """Return the best point of a table as a candidate."""
    return Candidate(decision, found.point.get("sigma", 0.0), found.point["alpha"], found.score)


def searched(task: Task) -> Choice:
    """Return what suits the held-out rows of a task best."""
    first, scored = task.on_few_landmarks(), {}
    source = first.source(task.rows.first, task.learns)
    found, scores, scale = _table_of(task, source, scored), {}, None
    chosen = best_of(found, task.first_decision)
    if task.is_decided_again:
        sigmas = candidate_sigmas(found.table)
        candidates = _candidates(task, source, scored, sigmas)
        n_rows, scores = sum(map(len, source.splits.tests)), best_scores(candidates)
        chosen = decided(task, candidates, sigmas, (chosen.sigma, chosen.alpha), n_rows)
    else:
        candidates = _points_of(found.table, chosen.decision)
    whole = source if first is task else task.source(task.rows.first, task.learns)
    chosen, held = _compared(task, whole, chosen, candidates)
    if task.n_classes:
        of_splits = held or _held(task, whole, chosen)
        judged = np.mean([one.judged(0, chosen.decision) for one in of_splits], axis=0)
        scale = best_scale(judged[1:])
    fit = getattr(whole, "fit", None)
    return Choice(chosen, found.table, len(source.data.y), scores, scale, fit)


# ---------------------------------------------------------------- scores


def _table_of(task, source, scored):
    """Return what a search of the grid finds, by squared errors or by the task's scorer.

    The mean scores of decisions that come with it, by decision and sigma, go into `scored`.
    """
    targets, decision = source.data.values, task.first_decision
    unit, rounding = float(targets.unit.max()), ROUNDING
    if targets.classes is None and not task.is_multilabel:  # errors come from far larger squares
        rounding *= np.var(targets(slice(None)), axis=0).mean()
    equal = Equal(rounding=rounding, unit=unit) if task.score is None else Equal(ceiling=None)
    alphas, problems, signs = task.alphas, None, None
    if task.n_classes and (task.feature_map is None or (task.score and not decision.uses_targets)):
        alphas, problems = task.alphas_for(decision), decision.problems(task.n_classes)
        signs = signs_of(task.n_classes) if task.score is None else None
    together = [one for one in task.decisions if problems is None and one.uses_targets]

    def judge(sigma):
        of_splits = source.held(sigma, alphas, problems)
        known = {
            one: [scores_of(task, held, one) for held in of_splits]
            for one in (together if task.is_decided_again else ())
        }
        for one, scores in known.items():
            scored[one, sigma] = alphas, np.mean(scores, axis=0)
        if task.score is not None:
            scores = known.get(decision)
            return scores or [scores_of(task, held, decision) for held in of_splits]
        if signs is not None:
            return [-held.pair_errors(signs) for held in of_splits]
        return [-held.errors() for held in of_splits]

    return search(grid_of(task.sigmas, alphas), judge, equal, verbose=task.verbose)


def scores_of(task, held, decision):
    """Return the scores of all alphas: accuracies, negative errors, or those of the scorer."""
    if task.score is None:
        return held.accuracies(decision) if task.n_classes else -held.errors()
    known, rows = [], held.rows
    for place, values in enumerate(held.values):
        if task.is_multilabel:
            known.append(KnownLabels(values))
        elif not task.n_classes:
            known.append(KnownPredictions(values.reshape(rows.y.shape)))
        else:
            scores, codes = held.scores_at(place, decision), rows.values.values
            is_of_pairs = scores.shape[1] == 1 or decision.is_of_pairs
            known.append(KnownDecisions(task.classes, values, scores, codes, is_of_pairs))
    return np.array([task.score(one, rows) for one in known])


def _candidates(task, source, scored, sigmas):
    """Return all decisions with the penalties that are worth it, at some values of sigma."""
    scored = {(one, sigma): scored[one, sigma] for one, sigma in scored if sigma in sigmas}
    for decision in task.decisions:
        if (decision, sigmas[0]) in scored:
            continue
        problems, alphas = decision.problems(task.n_classes), task.alphas_for(decision)
        n_splits, best = n_scored_splits(task, source, len(alphas) * len(sigmas), decision), None
        for number, sigma in enumerate(sigmas):
            if number > 1 and best != min(sigmas[:number]):
                break  # a smaller one is tried if the one before is the best so far
            of_splits = source.held(sigma, alphas, problems, n_splits)
            means = np.mean([scores_of(task, held, decision) for held in of_splits], axis=0)
            scored[decision, sigma] = alphas, means
            tops = {at: scored[one, at][1].max() for one, at in scored if one == decision}
            best = max(tops, key=tops.get)
    return [
        Candidate(decision, float(sigma), float(alpha), float(score))
        for (decision, sigma), (alphas, scores) in scored.items()
        for alpha, score in zip(alphas, scores, strict=True)
        if alpha in task.alphas_for(decision)
    ]


def candidate_sigmas(table):
    """Return the two best values of sigma in a table of scores, and smaller ones.

    Squared errors are least where the kernel is narrower than suits votes of pairs. The best comes
    first, the least of equals.
    """
    of_points = table.get("param_sigma", np.zeros(len(table["mean_test_score"])))
    sigmas = np.unique(of_points)
    scores = [table["mean_test_score"][of_points == sigma].max() for sigma in sigmas]
    scores, left, best = np.nan_to_num(scores, nan=-np.inf), np.arange(len(sigmas)), []
    for _ in range(min(2, len(sigmas))):
        best.append(left[np.argmax(Equal()(scores[left]))])
        left = left[left != best[-1]]
    smaller = range(best[0] - 1, max(best[0] - 1 - _N_SMALLER, -1), -1)
    return sigmas[best + [place for place in smaller if place not in best]]


def n_scored_splits(task, source, n_points, decision):
    """Return on how many splits a decision is scored, so that pairs do not take too long."""
    counts = np.sort(np.bincount(source.data.values.values))
    n_rows = int(counts[-2:].sum())
    n_numbers = min(n_rows, source.n_columns or n_rows)
    n_problems = len(decision.problems(task.n_classes))
    cost = n_problems * n_points * n_numbers**3 / 3
    return int(np.clip(_MOST_OPERATIONS / max(cost, 1), 1, len(source.splits)))


def best_scores(candidates):
    """Return the best score of every decision by name."""
    scores = {}
    for one in candidates:
        name = name_of(one.decision)
        scores[name] = max(scores.get(name, -np.inf), one.score)
    return scores


def _points_of(table, decision):
    """Return the points of a table as candidates, the best first."""
    order = np.argsort(-np.nan_to_num(table["mean_test_score"], nan=-np.inf), kind="stable")
    params, scores = table["params"], table["mean_test_score"]
    return [
        Candidate(decision, params[k].get("sigma", 0.0), params[k]["alpha"], float(scores[k]))
        for k in order[: _BEST + 1]
    ]


# ---------------------------------------------------------------- choices


def decided(task, candidates, sigmas, point, n_rows):
    """Return the candidate that is chosen by its score on so many rows."""
    good = candidates
    if task.n_classes == 2:
        good = of_two_classes(candidates, *point, n_rows)
    elif task.score is None:
        good = at_one_sigma(candidates, sigmas, n_rows)
    equal = Equal(1.0 if task.score is None else None, SAME_ACCURACY)
    return simplest(good, equal(np.array([one.score for one in good])))


def simplest(candidates, is_good):
    """Return the simplest of the good candidates: its decision, then least sigma, most alpha."""
    order = list(DECISIONS.values())

    def rank(one):
        place = order.index(one.decision) if one.decision in order else len(order)
        return place, one.sigma, -one.alpha

    return min((one for one, good in zip(candidates, is_good, strict=True) if good), key=rank)


def at_one_sigma(candidates, sigmas, n_rows):
    """Return the candidates of the better of two values of sigma, or of a clearly better one.

    That is by a standard error of its accuracy on so many rows: squared errors, which put the two
    first, have less noise than accuracies.
    """
    chosen, best, margin = [], -np.inf, 0.0
    for number, sigma in enumerate(sigmas):
        others = [one for one in candidates if one.sigma == sigma]
        score = max((one.score for one in others), default=-np.inf)
        if number > 1 and others:
            margin = _standard_error(score, n_rows)
        if score > best + margin:
            chosen, best = others, score
    return chosen


def of_two_classes(candidates, sigma, alpha, n_rows):
    """Return the candidate of the least squared error, or all if one is clearly more accurate.

    That is by a standard error of its accuracy on so many rows. Where classes touch at a sharp
    border, squared errors are least at a kernel much narrower than is good for decisions.
    """
    best = max(one.score for one in candidates)
    least = best - _standard_error(best, n_rows)
    first = [one for one in candidates if (one.sigma, one.alpha) == (sigma, alpha)]
    return first if first and first[0].score >= least else candidates


def _standard_error(accuracy, n_rows):
    """Return the standard error of an accuracy, which rounding may have put above 1."""
    return np.sqrt(max(accuracy * (1 - accuracy), 0.0) / n_rows)


def _compared(task, source, chosen, candidates):
    """Return the best of a few candidates on more rows, and what is held there; or the chosen.

    More rows may ask for a narrower kernel or a smaller penalty, and the final map for others.
    """
    most = task.rows.most and _MORE * task.rows.most
    if task.feature_map is None:
        most = min(most, _MOST_EXACT) if most else most
    rows = task.rows.more(most)
    if rows is None:
        return chosen, None
    others = sorted((one for one in candidates if one != chosen), key=lambda one: -one.score)
    # Numbers keep the landmarks of the search; those of classes are found with labels.
    fit = None if task.n_classes or task.learns else source.fit
    source = task.source(rows, fit is None, fit)
    few, seen, best = [chosen, *others[: _BEST - 1]], {}, chosen
    while few:
        seen |= _scored_again(task, source, few)
        for one, (score, _) in seen.items():
            if score > seen[best][0] + SAME_ACCURACY:
                best = one
        # Landmarks limit what more rows can tell; the exact kernel goes on while it gains.
        few = _sharper(task, best) if task.feature_map is None else []
        few = [one for one in few if one not in seen]
    return best, [seen[best][1]]


def _scored_again(task, source, candidates):
    """Return the scores of candidates, and what is held of them; features of a sigma are shared."""
    alike, scores = {}, {}
    for one in candidates:
        alike.setdefault((one.decision, one.sigma), []).append(one)
    for (decision, _), group in alike.items():
        (held,) = _held(task, source, group[0], [one.alpha for one in group])
        for place, score in enumerate(scores_of(task, held, decision).tolist()):
            scores[group[place]] = score, held.at(place)
    return scores


def _sharper(task, one):
    """Return a candidate with the next narrower kernel, and with the next smaller penalty."""
    sigmas = np.sort(task.sigmas[task.sigmas > one.sigma])[:1]
    alphas = task.alphas_for(one.decision)
    alphas = np.sort(alphas[alphas < one.alpha])[-1:]
    steps = [{"sigma": float(sigma)} for sigma in sigmas]
    steps += [{"alpha": float(alpha)} for alpha in alphas]
    return [replace(one, score=np.nan, **step) for step in steps]


def _held(task, source, candidate, alphas=None):
    """Return what is held of every split at a candidate, or at others of its penalties."""
    decision, problems = candidate.decision, None
    if task.n_classes and (task.feature_map is None or not decision.uses_targets):
        problems = decision.problems(task.n_classes)
    return source.held(candidate.sigma, alphas or [candidate.alpha], problems)
