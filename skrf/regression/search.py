"""Searches over sigma: scores of every value on every fold, from sums computed once per value."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from numbers import Integral
from operator import itemgetter

import numpy as np
from scipy.stats import rankdata
from sklearn.base import is_classifier

from .._arrays import LARGEST
from .._progress import Progress
from .._validation import as_numpy, check_positive, naming, read_only
from ..features import OptimalPositiveRF, as_feature_map
from .blocks import beside_threads
from .sample import all_but_one, as_slice, rounds_of, splitter_for, tests_of

# Scores count as equal within this share of what the best one lacks, and within their rounding.
_EQUAL, ROUNDING = 1e-4, 1e-13


def maps_of(transformer):
    """Return the maps of queries and keys of a fitted transformer."""
    return tuple(as_feature_map(transformer, keys=keys) for keys in (False, True))


# ---------------------------------------------------------------- sigmas


def resolved(sigma, data):
    """Return the sigma for a number, "scale" or "median"."""
    return data.fitted(OptimalPositiveRF(1, sigma=sigma, random_state=0)).sigma_


def sigma_grid(sigmas, data, decades):
    """Return the values of a search: those given, or as many over decades around "scale"."""
    if isinstance(sigmas, Integral):
        return resolved("scale", data) * np.logspace(*decades, sigmas)
    values = positive_array("sigmas", sigmas)
    if values.max() > LARGEST:
        raise ValueError(f"sigmas must be at most {LARGEST:g}, got {sigmas!r}.")
    return values


def nearly_best(scores, ceiling=0.0, rounding=ROUNDING):
    """Return which scores are as good as the best but for rounding and tiny differences.

    Parameters
    ----------
    scores : ndarray
        The larger, the better.
    ceiling : float or None, default=0.0
        The best possible score, if there is one.
    rounding : float, default=1e-13
        Rounding error of scores, with a margin.
    """
    best = scores.max()
    lack = abs(best) / 100 if ceiling is None else abs(ceiling - best)
    with np.errstate(over="ignore"):  # if all are as bad as can be
        return scores >= best - _EQUAL * lack - rounding


def positive_array(name, values):
    """Return a sequence of positive numbers as an array, or raise and name it."""
    given = np.array(values, dtype=object)  # of text beside numbers NumPy would make numbers
    if given.ndim != 1 or len(given) == 0:
        raise ValueError(f"{name} must be a sequence of finite numbers > 0, got {values!r}.")
    return np.array([check_positive(f"{name}[{i}]", value) for i, value in enumerate(given)])


def check_gaussian(feature_map):
    """Raise for the softmax kernel, which does not smooth."""
    if getattr(feature_map, "kernel", None) == "softmax":
        raise ValueError(
            "sigma cannot be searched for kernel='softmax', which is not a function of distances; "
            f"got feature_map={feature_map!r}. Pass sigma, or use kernel='gaussian'."
        )


def learns_from(feature_map, data):
    """Return whether a map learns from the targets, which is assumed if it does not say."""
    return not hasattr(feature_map, "_learns_from") or feature_map._learns_from(data.target)


# ---------------------------------------------------------------- scores


@dataclass(frozen=True)
class Criterion:
    """How held-out rows score a fit to all others.

    Parameters
    ----------
    judge : callable
        Returns the score, or those of all values of `others`, given the fit, the rows of the test,
        and the fit to these, which is None if `scores_rows`.
    scores_rows : bool
        Whether the rows of a test are scored rather than their sums.
    others : dict, default={}
        Values of parameters that are scored besides sigma, by name.
    ceiling : float or None, default=0.0
        The best score that there can be, if there is one.
    unit : float, default=1.0
        Scores are in units of its square.
    rounding : float, default=1e-13
        Their rounding error, in these units.
    """

    judge: Callable
    scores_rows: bool
    others: dict = field(default_factory=dict)
    ceiling: float | None = 0.0
    unit: float = 1.0
    rounding: float = ROUNDING


def sums_of(model, fitted, data):
    """Return the fit of an estimator to rows under a fitted map."""
    return model._before(maps_of(fitted), data).added(data)


def judged(model, fitted, train, test, criterion):
    """Return the scores of a test, given a map and training rows."""
    before = model._scored(maps_of(fitted), train)
    of_test = None if criterion.scores_rows else before.added(test)
    return criterion.judge(before.added(train), test, of_test)


def judged_together(search, criterion):
    """Yield scores of every test, the map, and its sums over all rows, for every sigma.

    The map is fitted to all rows.
    """
    data, tests = search.data, search.tests
    rounds = rounds_of(tests, len(data.y))
    # Store the rows of a fold of the first round contiguously, and those of a group within it, to
    # read them without a copy.
    order = [rows[np.argsort(data.groups[rows], kind="stable")] for _, rows in rounds[0]]
    order = np.concatenate(order)
    place = np.argsort(order)
    data = data.part(order)
    parts = [[data.part(as_slice(np.sort(place[rows]))) for _, rows in folds] for folds in rounds]
    rounds = [[number for number, _ in folds] for folds in rounds]
    for fitted in map(search.fit, search.sigmas):
        scores, nothing = [None] * len(tests), search.model._scored(maps_of(fitted), data)
        for folds, fold_data in zip(rounds, parts, strict=True):
            sums, before = [], nothing
            for test_data in fold_data:
                sums.append(before.added(test_data))
                before = sums[-1].emptied
            others, total = all_but_one(nothing, sums)
            for number, *given in zip(folds, others, fold_data, sums, strict=True):
                if number is not None:
                    scores[number] = criterion.judge(*given)
        yield scores, fitted, total


def judged_apart(search, criterion):
    """Yield the same with maps that are fitted only to the rows outside a test, so without sums."""
    for fits in map(search.fits_at, search.sigmas):
        yield [judged(search.model, *fit, criterion) for fit in fits], None, None


def split_rows(data, tests):
    """Return for every test the rows outside and inside of it."""
    everything = np.arange(len(data.y))
    return [(data.part(np.setdiff1d(everything, test)), data.part(test)) for test in tests]


def reported(runs, sigmas, verbose, unit):
    """Yield the runs of sigmas, and print a line with the best score for each if requested."""
    progress = Progress(verbose)
    for number, (sigma, run) in enumerate(zip(sigmas, runs, strict=True), 1):
        if verbose:
            with np.errstate(over="ignore", invalid="ignore"):
                score = np.mean(run[0], axis=0).max() * unit * unit
            progress(f"sigma {number} of {len(sigmas)} ({sigma:.3g}): score {score:.4g}")
        yield run


# ---------------------------------------------------------------- searches


class SigmaSearch:
    """A search of an estimator over values of sigma.

    Parameters
    ----------
    model : estimator
        Draft, which gets what is chosen.
    data : Data
        Rows.
    feature_map : transformer
        Unfitted.
    sigmas : ndarray of float
        The values.
    tests : list of ndarray of int
        Held-out rows.
    """

    is_of_pairs = False

    def __init__(self, model, data, feature_map, sigmas, tests):
        self.model, self.data, self.feature_map = model, data, feature_map
        self.sigmas, self.tests = sigmas, tests
        self.is_apart = learns_from(feature_map, data)

    @classmethod
    def of(cls, estimator, X, y, sample_weight, groups):
        """Return the search that an estimator's parameters describe."""
        draft, data = estimator._read(X, y, sample_weight)
        y = as_numpy("y", y)
        with naming("cv"):
            cv = splitter_for(estimator.cv, y, classifier=is_classifier(estimator))
            tests = tests_of(cv, y, data, groups)
        sigmas = sigma_grid(estimator.sigmas, data, estimator._decades)
        feature_map = estimator._map_at(float(sigmas[0]), data)
        search = cls(draft, data, feature_map, sigmas, tests)
        estimator._check_size(feature_map, data, 2 if search.is_apart else 4 * len(tests))
        return search

    def runs(self, criterion):
        """Return an iterator over every sigma's scores, with a map and sums if all have one."""
        return (judged_apart if self.is_apart else judged_together)(self, criterion)

    def chosen(self, runs, criterion):
        """Set what is chosen, and return the map and the sums of the best run if it has them."""
        with beside_threads(self.feature_map):
            runs = reported(runs, self.sigmas, self.model.verbose, criterion.unit)
            return choose(self.model, runs, self.sigmas, criterion)

    @cached_property
    def fit(self):
        """A function that returns the map fitted to all rows at a sigma."""
        return self.data.fit_at_sigma(self.feature_map)

    @cached_property
    def _splits(self):
        return split_rows(self.data, self.tests)

    @cached_property
    def _fits_apart(self):
        return [train.fit_at_sigma(self.feature_map) for train, _ in self._splits]

    def fits_at(self, sigma):
        """Return the maps of all folds at a sigma, each with the training and the test rows."""
        if self.is_apart:
            maps = [fit(sigma) for fit in self._fits_apart]
        else:
            maps = [self.fit(sigma)] * len(self.tests)
        return [(fitted, *split) for fitted, split in zip(maps, self._splits, strict=True)]

    def made_at(self, sigma):
        """Return the map that is fitted to all rows, and their sums."""
        fitted = self.fit(sigma)
        return fitted, sums_of(self.model, fitted, self.data)


def choose(model, runs, sigmas, criterion, is_split=True):
    """Set the best parameters and the table of scores; return the best run's map and sums.

    Parameters
    ----------
    model : estimator
        Draft.
    runs : iterable of tuple
        For every sigma the scores of all splits, of shape (n_splits,), or (n_splits, n_others) if
        there are other parameters; then a map and sums.
    sigmas : sequence of float
        The values, none if the map has no sigma.
    criterion : Criterion
        What the scores are.
    is_split : bool, default=True
        Whether scores are those of splits.
    """
    ceiling, rounding = criterion.ceiling, criterion.rounding
    scores, means, good = [], [], []
    for sigma, (score, *made) in zip(sigmas if len(sigmas) else [0.0], runs, strict=True):
        scores.append(np.atleast_2d(np.array(np.transpose(score), order="C")))
        means.append(np.nan_to_num(scores[-1].mean(axis=1), nan=-np.inf))
        # Of those whose sums are kept, every larger sigma has a better score.
        good = [score for score in good if score[1] < sigma or score[0] > means[-1].max()]
        if not any(score[1] <= sigma and score[0] >= means[-1].max() for score in good):
            good.append((means[-1].max(), sigma, made))
        are_best = nearly_best(np.array([score[0] for score in good]), ceiling, rounding)
        good = [score for score, is_best in zip(good, are_best, strict=True) if is_best]
    grid = ({"sigma": sigmas} if len(sigmas) else {}) | criterion.others
    params = [
        dict(zip(grid, values, strict=True))
        for values in product(*(np.asarray(values).tolist() for values in grid.values()))
    ]
    means = np.concatenate(means)
    means[nearly_best(means, ceiling, rounding)] = means.max()
    ranks = rankdata(-means, method="min").astype(int)
    table = {f"param_{name}": np.array([values[name] for values in params]) for name in grid}
    table |= {"params": params, "rank_test_score": ranks}
    with np.errstate(over="ignore", invalid="ignore"):
        scores = np.concatenate(scores) * criterion.unit * criterion.unit
        table["mean_test_score"] = scores.mean(axis=1)
        if is_split:
            table["std_test_score"] = scores.std(axis=1)
            table |= {f"split{k}_test_score": score.copy() for k, score in enumerate(scores.T)}
    model.cv_results_ = {name: read_only(values) for name, values in table.items()}
    # Of nearly equal ones the smallest sigma, and the largest alpha.
    place = max(
        np.flatnonzero(ranks == 1),
        key=lambda k: (-params[k].get("sigma", 0.0), params[k].get("alpha", 0.0)),
    )
    model.best_score_ = float(table["mean_test_score"][place])
    for name, value in params[place].items():
        setattr(model, f"{name}_", value)
    return min(good, key=itemgetter(1))[2]
