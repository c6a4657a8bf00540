"""Folds: of rows that are all there, and of rows that come in batches.

Sums of the rows outside a fold are merged from those of the other folds and never subtracted: if a
fold holds nearly everything that a query sees, a difference has no digits.
"""

import warnings
from dataclasses import dataclass
from itertools import accumulate
from numbers import Integral

import numpy as np
from sklearn.base import is_classifier

from .._batches import joined
from .._validation import check_labels, naming

_STREAM = 0xF01D5  # of random numbers, apart from those of other parts


def splitter_for(cv, y, *, classifier):
    """Return the splitter that `cv` stands for, with fewer folds if rows do not allow as many."""
    from sklearn.model_selection import check_cv  # imported here because it uses megabytes

    if isinstance(cv, Integral):
        if classifier and y.ndim == 1:
            most, what = np.unique(y, return_counts=True)[1].max(), "rows of a class"
        else:
            most, what = len(y), "rows"
        if 2 <= most < cv:
            # Of a single row there is no coefficient of determination.
            n_folds = int(most) if what == "rows of a class" else max(int(most) // 2, 2)
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


def as_slice(rows):
    """Return row indices as a slice if they are consecutive."""
    start, stop = rows[0], rows[0] + len(rows)
    return slice(start, stop) if np.array_equal(rows, np.arange(start, stop)) else rows


# ---------------------------------------------------------------- of batches


@dataclass(frozen=True, eq=False)
class Folds:
    """Folds of rows in batches: those of an integer `cv` for all rows in order.

    Parameters
    ----------
    labels : ndarray of shape (n_strata,)
        Labels that rows are stratified by.
    ends : ndarray of int of shape (n_strata, n_splits)
        Number of rows of a stratum in a fold and the ones before it.
    starts : dict of int to ndarray
        Number of rows of every stratum in earlier batches.
    seed : int or None
        Seed of random folds.
    """

    labels: np.ndarray
    ends: np.ndarray
    starts: dict
    seed: int | None

    @classmethod
    def of(cls, cv, summary):
        """Return the folds of a splitter, given the counts of a survey."""
        numbers = sorted(summary.counts)
        labels = np.unique(np.concatenate([summary.counts[k][0] for k in numbers]))
        # In order of their first row, as scikit-learn stratifies.
        totals, starts, order = np.zeros(len(labels), int), {}, []
        for number in numbers:
            names, counts, first = summary.counts[number]
            codes, starts[number] = np.searchsorted(labels, names), totals
            order += [code for code in codes[np.argsort(first)] if not totals[code]]
            totals = totals + np.bincount(codes, counts, len(labels)).astype(int)
        with naming("cv"):  # complains about too few rows, as it does for all rows
            few = np.repeat(labels, np.minimum(totals, cv.n_splits))
            next(cv.split(np.zeros((len(few), 1)), few))
        k, sizes = np.arange(cv.n_splits), np.empty((len(labels), cv.n_splits), int)
        if len(labels) == 1:  # the first folds have one more
            sizes[0] = totals[0] // cv.n_splits + (k < totals[0] % cv.n_splits)
        else:
            ends = np.cumsum(totals[order])[:, None]
            before = ends - totals[order][:, None]
            # Every n_splits-th of the sorted rows belongs to a fold.
            sizes[order] = (ends - k - 1) // cv.n_splits - (before - k - 1) // cv.n_splits
        return cls(labels, sizes.cumsum(axis=1), starts, cv.random_state if cv.shuffle else None)

    @property
    def n_splits(self):
        """Number of folds."""
        return self.ends.shape[1]

    def __call__(self, labels, number):
        """Return the fold of every row of a batch, given the labels to stratify by."""
        codes = np.searchsorted(self.labels, labels)
        return self.of_ranks(codes, ranks_of(codes), number)

    def of_ranks(self, codes, ranks, number):
        """Return the folds of rows that are the ranks-th of their stratum in a batch."""
        if self.seed is not None:
            rng = np.random.default_rng([self.seed, _STREAM, number])
            return (self.n_splits * rng.random(ranks.max() + 1)).astype(int)[ranks]
        ranks = ranks + self.starts[number][codes]
        return np.sum(self.ends[codes] <= ranks[:, None], axis=1)

    def of_sample(self, labels, sample):
        """Return the folds of the rows of a sample."""
        codes, folds = np.searchsorted(self.labels, labels), np.empty(len(labels), int)
        for number in np.unique(sample.batches):
            in_batch = sample.batches == number
            folds[in_batch] = self.of_ranks(codes[in_batch], sample.ranks[in_batch], number)
        return folds


def ranks_of(codes):
    """Return for every row the number of earlier rows of its kind."""
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    ranks = np.empty(len(codes), int)
    ranks[order] = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks


def splitter_of(model):
    """Return the splitter that `cv` stands for, if its folds can be found in batches."""
    from sklearn.model_selection import KFold, StratifiedKFold, check_cv  # megabytes

    with naming("cv"):
        cv = check_cv(model.cv, [0, 1], classifier=is_classifier(model))
    is_seeded = isinstance(getattr(cv, "random_state", None), Integral)
    if type(cv) is KFold and (not cv.shuffle or is_seeded):
        return cv
    if type(cv) is StratifiedKFold and not cv.shuffle and is_classifier(model):
        return cv
    raise ValueError(
        "cv must be an integer, KFold (with an integer random_state if it shuffles) or, for "
        "classifiers, StratifiedKFold(shuffle=False), if rows come in batches; got "
        f"{model.cv!r}."
    )


def check_folds(records):
    """Raise if a fold has no record."""
    if any(record is None for record in records):
        raise ValueError(
            "cv must leave rows of positive weight to train and to test on in every fold, but one "
            "has none."
        )


def labels_of(X, y):
    """Return the labels that rows are stratified by."""
    return check_labels("y", y)


def one_stratum(X, y):
    """Return the same label for all rows."""
    return np.zeros(X.shape[0] if hasattr(X, "shape") else len(X), int)
