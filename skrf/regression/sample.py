"""Which rows a search reads: a sample of them, and their folds, also of rows in batches.

Sums of the rows outside a fold are merged from those of the other folds and never subtracted: if a
fold holds nearly everything that a query sees, a difference has no digits.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from numbers import Integral

import numpy as np
from sklearn.base import is_classifier

from .._batches import joined, merged
from .._validation import as_numpy, check_labels, naming
from .._warnings import warn
from .mixins import is_multilabel

_STREAM, _SAMPLE = 0xF01D5, 0x5EA2C4  # of random numbers, apart from those of other parts


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
            warn(message, UserWarning)
            cv = n_folds
    return check_cv(cv, y, classifier=classifier)


def splits_of(model, y, data, groups):
    """Return the `Splits` of validated rows, given y as it was passed."""
    y = y.toarray() if hasattr(y, "toarray") else as_numpy("y", y)
    with naming("cv"):
        cv = splitter_for(model.cv, y, classifier=is_classifier(model))
        return Splits.of(cv, y, data, groups)


@dataclass(frozen=True, eq=False)
class Splits:
    """Rows to train on and rows to test on.

    Parameters
    ----------
    trains, tests : list of ndarray of int
        Sorted row numbers, one array for each split.
    n : int
        Number of rows.
    """

    trains: list
    tests: list
    n: int

    @classmethod
    def of(cls, cv, y, data, groups=None):
        """Return the splits of a splitter, in row numbers of some data."""
        n, trains, tests = len(y), [], []
        place = np.full(n, -1)
        place[data.numbers] = np.arange(len(data.numbers))
        for number, split in enumerate(cv.split(np.zeros((n, 1)), y, groups)):
            train, test = (np.arange(n)[rows] for rows in split)
            times = np.bincount(train, minlength=n)
            if times.max() > 1:
                row = int(np.argmax(times > 1))
                raise ValueError(
                    f"cv must not train on a row more than once, but row {row} is {times[row]} "
                    f"times in the training set of split {number}: use sample_weight."
                )
            train, test = (np.sort(place[rows]) for rows in (train, test))
            trains.append(train[train >= 0])
            tests.append(test[test >= 0])
            if not (len(trains[-1]) and len(tests[-1])):
                raise ValueError(
                    "cv must leave rows of positive weight to train and to test on, but split "
                    f"{number} has {len(trains[-1])} to train and {len(tests[-1])} to test on, of "
                    f"{len(data.numbers)}."
                )
        if not tests:
            raise ValueError(f"cv must give at least one split, got {cv!r}.")
        return cls(trains, tests, len(data.numbers))

    def __len__(self):
        return len(self.tests)

    def among(self, rows, cv):
        """Return the splits of some of the rows, leaving out those without rows on a side."""
        place = np.full(self.n, -1)
        place[rows] = np.arange(len(rows))
        pairs = [
            [part[part >= 0] for part in (place[train], place[test])]
            for train, test in zip(self.trains, self.tests, strict=True)
        ]
        pairs = [pair for pair in pairs if all(map(len, pair))]
        if not pairs:
            raise ValueError(
                f"cv must hold out some of the {len(rows):,} rows that a search looks at, got "
                f"{cv!r}."
            )
        return Splits(*map(list, zip(*pairs, strict=True)), len(rows))

    def moved(self, place):
        """Return the splits of rows that were moved to other places."""
        trains, tests = (
            [np.sort(place[rows]) for rows in side] for side in (self.trains, self.tests)
        )
        return Splits(trains, tests, self.n)

    def largest(self):
        """Return the split that trains on the most rows alone, the first of equals."""
        k = int(np.argmax([len(train) for train in self.trains]))
        return Splits([self.trains[k]], [self.tests[k]], self.n)

    @cached_property
    def cells(self):
        """Return the cells of rows that splits never divide, and which of them each trains on.

        They are None if there are so many that it is cheaper to read the rows of every split.
        """
        is_used = np.zeros((self.n, 2 * len(self)), bool)
        for k, (train, test) in enumerate(zip(self.trains, self.tests, strict=True)):
            is_used[train, k] = is_used[test, len(self) + k] = True
        kinds, cell = np.unique(np.packbits(is_used, axis=1), axis=0, return_inverse=True)
        if len(kinds) > 2 * len(self) + 1:
            return None
        cells = [np.flatnonzero(cell == k) for k in range(len(kinds))]
        first = [rows[0] for rows in cells]
        order = np.argsort(first)
        trained = np.array([is_used[first[k], : len(self)] for k in order]).T
        return [cells[k] for k in order], trained


def contiguous(data, splits):
    """Return the rows in the order of their cells and groups, and their splits.

    Parts of them are then read without a copy.
    """
    if splits.cells is None:
        return data, splits
    cells, _ = splits.cells
    order = np.concatenate([rows[np.argsort(data.groups[rows], kind="stable")] for rows in cells])
    return data.part(order), splits.moved(np.argsort(order))


def sums_of_splits(nothing, data, splits):
    """Return the sums of the rows that every split trains on, and those of all rows.

    Every row is summed once, and sums are merged, never subtracted.

    Parameters
    ----------
    nothing : fit
        The sums of no rows, with ``added`` and ``merge``.
    data : Data
        All rows.
    splits : Splits
        Of these rows.
    """
    if splits.cells is None:
        trains = [nothing.added(data.part(as_slice(train))) for train in splits.trains]
        return trains, nothing.added(data)
    (cells, trained), sums, before = splits.cells, [], nothing
    for rows in cells:
        sums.append(before.added(data.part(as_slice(rows))))
        before = sums[-1].emptied
    return sums_of_cells(sums, trained)


def sums_of_cells(sums, are_in):
    """Return the sums of several sets of cells, and those of all.

    Parameters
    ----------
    sums : list
        Of every cell; None adds nothing.
    are_in : ndarray of bool of shape (n_sets, n_cells)
        Which cells a set has.
    """
    others, total = all_but_one(sums)
    sets = []
    for is_in in are_in:
        left_out = np.flatnonzero(~is_in)
        if len(left_out) == 1:
            sets.append(others[left_out[0]])
        else:
            sets.append(merged(sums[k] for k in np.flatnonzero(is_in)))
    return sets, total


def stratified(codes, most, least=0):
    """Return the sorted numbers of some rows of every class, in proportion to its size.

    Parameters
    ----------
    codes : ndarray of int of shape (n,)
        Classes of the rows.
    most : int
        About how many rows.
    least : int, default=0
        Rows of a class that are taken in any case, if it has as many.
    """
    # Not the stream of splitters with the seed 0, whose tests would be what is left out.
    rng, chosen = np.random.default_rng(_SAMPLE), []
    for k, count in enumerate(np.bincount(codes)):
        share = round(most * count / len(codes))
        rows = rng.permutation(np.flatnonzero(codes == k))
        chosen.append(rows[: max(share, least)])
    return np.sort(np.concatenate(chosen))


def all_but_one(sums):
    """Return for every part the sums of all others, and those of all.

    They are merged from both sides, because a subtraction would lose digits.
    """

    def merged(parts):
        return list(accumulate([None, *parts], joined))

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
    ends : ndarray of int of shape (n_strata, n_cells)
        Number of rows of a stratum in a cell and the ones before it.
    starts : dict of int to ndarray
        Number of rows of every stratum in earlier batches.
    seed : int or None
        Seed of random folds.
    trained, tested : ndarray of bool of shape (n_splits, n_cells)
        Which cells a split trains and tests on.
    """

    labels: np.ndarray
    ends: np.ndarray
    starts: dict
    seed: int | None
    trained: np.ndarray
    tested: np.ndarray

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
        if hasattr(cv, "max_train_size"):
            return cls._in_order(cv, labels, int(totals[0]), starts)
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
        seed, tested = cv.random_state if cv.shuffle else None, np.eye(cv.n_splits, dtype=bool)
        return cls(labels, sizes.cumsum(axis=1), starts, seed, ~tested, tested)

    @classmethod
    def _in_order(cls, cv, labels, n, starts):
        """Return the folds of TimeSeriesSplit, whose sides are stretches of rows."""
        with naming("cv"):
            splits = [
                [(rows[0], rows[-1] + 1) for rows in split] for split in cv.split(np.zeros((n, 1)))
            ]
        ends = np.unique([0, n, *np.ravel(splits)])
        begins, ends = ends[:-1], ends[1:]
        trained, tested = (
            np.array([(side[k][0] <= begins) & (ends <= side[k][1]) for side in splits])
            for k in (0, 1)
        )
        return cls(labels, ends[None], starts, None, trained, tested)

    @property
    def n_cells(self):
        """Number of cells."""
        return self.ends.shape[1]

    def __call__(self, labels, number):
        """Return the cell of every row of a batch, given the labels to stratify by."""
        codes = np.searchsorted(self.labels, labels)
        return self.of_ranks(codes, ranks_of(codes), number)

    def of_ranks(self, codes, ranks, number):
        """Return the cells of rows that are the ranks-th of their stratum in a batch."""
        if self.seed is not None:
            rng = np.random.default_rng([self.seed, _STREAM, number])
            return (self.n_cells * rng.random(ranks.max() + 1)).astype(int)[ranks]
        ranks = ranks + self.starts[number][codes]
        return np.sum(self.ends[codes] <= ranks[:, None], axis=1)

    def of_sample(self, labels, sample):
        """Return the cells of the rows of a sample."""
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
    from sklearn.model_selection import KFold, StratifiedKFold, TimeSeriesSplit, check_cv

    with naming("cv"):
        cv = check_cv(model.cv, [0, 1], classifier=is_classifier(model))
    is_seeded = isinstance(getattr(cv, "random_state", None), Integral)
    if type(cv) is KFold and (not cv.shuffle or is_seeded):
        return cv
    if type(cv) is StratifiedKFold and not cv.shuffle and is_classifier(model):
        return cv
    if type(cv) is TimeSeriesSplit:
        return cv
    raise ValueError(
        "cv must be an integer, KFold (with an integer random_state if it shuffles), "
        "TimeSeriesSplit or, for classifiers, StratifiedKFold(shuffle=False), if rows come in "
        "batches; got "
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
    """Return the labels that rows are stratified by, the same for all rows of several labels."""
    return one_stratum(X, y) if is_multilabel(y) else check_labels("y", y)


def one_stratum(X, y):
    """Return the same label for all rows."""
    return np.zeros(X.shape[0] if hasattr(X, "shape") else len(X), int)
