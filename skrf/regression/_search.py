"""Scores of many sigmas by cross-validation, from sums computed once per sigma.

Sums of the rows outside a fold are merged from those of the other folds and never subtracted: if a
fold holds nearly everything that a query sees, a difference has no digits.
"""

import warnings
from itertools import accumulate, repeat
from numbers import Integral

import numpy as np

from .._batches import joined
from .._progress import Progress
from .._validation import check_positive
from ..features import OptimalPositiveRF, as_feature_map

# Scores count as equal within this share of what the best one lacks, and within their rounding.
_EQUAL, ROUNDING = 1e-4, 1e-13


def maps_of(transformer):
    """Return the maps of queries and keys of a fitted transformer."""
    return tuple(as_feature_map(transformer, keys=keys) for keys in (False, True))


# ---------------------------------------------------------------- sigmas


def resolved(sigma, data):
    """Return the sigma for a number, "scale" or "median"."""
    return data.fitted(OptimalPositiveRF(1, sigma=sigma, random_state=0)).sigma_


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


# ---------------------------------------------------------------- folds


def rounds_of(tests, n):
    """Return lists of (index, rows): disjoint tests, and rows in no test with index None."""
    rounds = []
    for number, test in enumerate(tests):
        open_rounds = (round_ for round_ in rounds if not round_[1][test].any())
        folds, is_taken = next(open_rounds, ([], np.zeros(n, bool)))
        if not folds:
            rounds.append((folds, is_taken))
        folds.append((number, test))
        is_taken[test] = True
    return [
        [*folds, *([] if is_taken.all() else [(None, np.flatnonzero(~is_taken))])]
        for folds, is_taken in rounds
    ]


def all_but_one(nothing, sums):
    """Return for every part the sums of all others, and those of all.

    They are merged from both sides, because a subtraction would lose digits.
    """

    def merged(parts):
        return list(accumulate(parts, joined, initial=nothing))

    before, after = merged(sums), merged(reversed(sums))[::-1]
    return [joined(*pair) for pair in zip(before, after[1:], strict=False)], before[-1]


def judged_together(model, feature_map, data, tests, sigmas, judge):
    """Yield scores of every test, the map, and its sums over all rows, for every sigma.

    The map is fitted to all rows.

    Parameters
    ----------
    model : estimator
        Draft.
    feature_map : transformer
        Unfitted.
    data : Data
        Rows.
    tests : list of ndarray of int
        Held-out rows.
    sigmas : iterable of float
        The values.
    judge : callable
        Returns scores, given sums of all rows but a test, the rows of the test, and their sums.
    """
    rounds = rounds_of(tests, len(data.y))
    # Store the rows of a fold of the first round contiguously, and those of a group within it, to
    # read them without a copy.
    order = [rows[np.argsort(data.groups[rows], kind="stable")] for _, rows in rounds[0]]
    order = np.concatenate(order)
    place = np.argsort(order)
    data = data.part(order)
    parts = [[data.part(as_slice(np.sort(place[rows]))) for _, rows in folds] for folds in rounds]
    rounds = [[number for number, _ in folds] for folds in rounds]
    for fitted in data.fit_at_sigmas(feature_map, sigmas):
        maps, scores = maps_of(fitted), [None] * len(tests)
        nothing = model._before(maps, data)
        for folds, fold_data in zip(rounds, parts, strict=True):
            sums, before = [], nothing
            for test_data in fold_data:
                sums.append(model._added(before, test_data))
                before = sums[-1].emptied
            others, total = all_but_one(nothing, sums)
            for number, *given in zip(folds, others, fold_data, sums, strict=True):
                if number is not None:
                    scores[number] = judge(*given)
        yield scores, fitted, total


def as_slice(rows):
    """Return row indices as a slice if they are consecutive."""
    start, stop = rows[0], rows[0] + len(rows)
    return slice(start, stop) if np.array_equal(rows, np.arange(start, stop)) else rows


def judged_apart(model, feature_map, data, tests, sigmas, judge, best=None):
    """Yield the same with maps that are fitted only to the rows outside a test, so without sums.

    `BestFits` get the fits of every sigma, if given.
    """
    for number, fits in enumerate(fitted_apart(feature_map, data, tests, sigmas)):
        scores = [judged(model, *fit, judge) for fit in fits]
        if best is not None:
            best.add(float(sigmas[number]), fits, np.mean(scores, axis=0).max())
        yield scores, None, None


class BestFits:
    """The fits of all folds for the best values of sigma so far, which are used again.

    Parameters
    ----------
    n : int
        Number of values.
    """

    def __init__(self, n):
        self.n, self.fits, self.scores = n, {}, {}

    def add(self, sigma, fits, score):
        """Add a value of sigma, and drop the worst one if there are too many."""
        self.fits[sigma], self.scores[sigma] = fits, score
        if len(self.fits) > self.n:
            worst = min(self.scores, key=self.scores.get)
            del self.fits[worst], self.scores[worst]

    def of(self, sigmas):
        """Return the fits of these values, or None if some are not kept."""
        sigmas = list(sigmas)
        return [self.fits[one] for one in sigmas] if set(sigmas) <= set(self.fits) else None


def judged(model, fitted, train, test, judge):
    """Return the scores of a test, given a map and training rows."""
    of_test = None if model._scores_rows else model._sums_of(fitted, test)
    return judge(model._sums_of(fitted, train), test, of_test)


def fitted_apart(feature_map, data, tests, sigmas):
    """Return an iterator over (map, train, test) of all tests for every sigma."""

    def run(test):
        train = data.part(np.setdiff1d(np.arange(len(data.y)), test))
        return zip(train.fit_at_sigmas(feature_map, sigmas), repeat(train), repeat(data.part(test)))

    return zip(*map(run, tests), strict=True)


def fitted_together(feature_map, data, tests, sigmas):
    """Return an iterator over the same of maps that are fitted to all rows."""
    parts = [
        (data.part(np.setdiff1d(np.arange(len(data.y)), test)), data.part(test)) for test in tests
    ]
    for fitted in data.fit_at_sigmas(feature_map, sigmas):
        yield [(fitted, *part) for part in parts]


def reported(runs, sigmas, verbose, unit):
    """Yield the runs of sigmas, and print a line with the best score for each if requested."""
    progress = Progress(verbose)
    for number, (sigma, run) in enumerate(zip(sigmas, runs, strict=True), 1):
        if verbose:
            with np.errstate(over="ignore", invalid="ignore"):
                score = np.mean(run[0], axis=0).max() * unit * unit
            progress(f"sigma {number} of {len(sigmas)} ({sigma:.3g}): score {score:.4g}")
        yield run


# ---------------------------------------------------------------- inputs and results of searches


def positive_array(name, values):
    """Return a sequence of positive numbers as an array, or raise and name it."""
    given = np.array(values, dtype=object)  # of text beside numbers NumPy would make numbers
    if given.ndim != 1 or len(given) == 0:
        raise ValueError(f"{name} must be a sequence of finite numbers > 0, got {values!r}.")
    return np.array([check_positive(f"{name}[{i}]", value) for i, value in enumerate(given)])


def splitter_for(cv, y, *, classifier):
    """Return the splitter that `cv` stands for, with fewer folds if rows do not allow as many."""
    from sklearn.model_selection import check_cv  # imported here because it uses megabytes

    if isinstance(cv, Integral):
        if classifier:
            most, what = np.unique(y, return_counts=True)[1].max(), "rows of a class"
        else:
            most, what = len(y), "rows"
        if 2 <= most < cv:
            # Of a single row there is no coefficient of determination.
            n_folds = int(most) if classifier else max(int(most) // 2, 2)
            message = f"cv={cv} needs as many {what}: {n_folds} folds are used."
            warnings.warn(message, UserWarning, stacklevel=3)
            cv = n_folds
    return check_cv(cv, y, classifier=classifier)


def tests_of(cv, y, data, groups=None):
    """Return the rows of `data` that every split holds out."""
    n, tests = len(y), []
    place = np.full(n, -1)
    place[data.numbers] = np.arange(len(data.numbers))
    for number, (train, test) in enumerate(cv.split(np.zeros((n, 1)), y, groups)):
        train, test = (np.arange(n)[rows] for rows in (train, test))
        times = np.bincount(np.concatenate([train, test]), minlength=n)
        if not (times == 1).all():
            row = np.flatnonzero(times != 1)[0]
            raise ValueError(
                "cv must give training sets that are the complements of their test sets, but row "
                f"{row} is {times[row]} times in split {number}. Sums of all folds are shared: "
                "for other splits use GridSearchCV."
            )
        test = place[test]
        tests.append(test[test >= 0])
        if not 0 < len(tests[-1]) < len(data.numbers):
            raise ValueError(
                f"cv must leave rows of positive weight to train and to test on, but split "
                f"{number} has {len(tests[-1])} of {len(data.numbers)} to test on."
            )
    if not tests:
        raise ValueError(f"cv must give at least one split, got {cv!r}.")
    return tests


# ---------------------------------------------------------------- maps and labels


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
