"""Rows: what is summed over them, what repeated ones are worth, and how they are split.

Sums of the rows outside a fold are merged from those of the other folds and never subtracted: if a
fold holds nearly everything that a query sees, a difference has no digits.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.utils.validation import check_consistent_length, has_fit_parameter

from .._arrays import take, to_host
from .._validation import as_numpy, check_labels, naming
from .._warnings import warn
from ..features import by_first, fit_at_sigma, fit_to_statistics, row_codes, sigma_of, spread_rows

_SAMPLE = 0x5EA2C4  # of random numbers, apart from those of other parts
_WEIGHT_BITS = 32  # weights on a common scale may differ by 2^32
_N_FOLDS = 5  # of cv=None, as in scikit-learn
_CELL_ROWS = 5  # rows of equal X, on average, that are cells of a design rather than copies


# ---------------------------------------------------------------- labels and targets


def sorted_classes(classes):
    """Return given classes in order, or raise if there are none."""
    labels = check_labels("classes", classes)
    if len(labels) == 0:
        raise ValueError(f"classes must hold all labels that will ever occur, got {classes!r}.")
    with naming("classes"):
        return np.unique(labels)


def is_multilabel(y):
    """Return whether y has a column for each of several labels."""
    with naming("y"):
        shape = np.shape(y) if isinstance(y, (list, tuple)) else getattr(y, "shape", ())
    return len(shape) == 2 and shape[1] > 1


@dataclass(frozen=True, eq=False)
class Targets:
    """Targets of rows, computed block by block: scaled numbers, or -1 and 1 for every class.

    Parameters
    ----------
    values : ndarray of shape (n, T), or (n,) with classes
        Numbers, or the codes of the classes.
    unit : ndarray of shape (T,)
        Powers of 2.
    shape : tuple
        () for a single target without an axis, otherwise (T,).
    n_classes : int, default=0
        Number of classes; 0 for numbers.
    """

    values: np.ndarray
    unit: np.ndarray
    shape: tuple
    n_classes: int = 0

    @classmethod
    def of_numbers(cls, y):
        """Return the targets of numbers, in units that make them about 1."""
        values = y.reshape(len(y), -1)
        largest = np.maximum(values.max(axis=0), -values.min(axis=0))
        unit = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1.0))))
        return cls(values, unit, y.shape[1:])

    @classmethod
    def of_classes(cls, codes, n_classes):
        """Return -1 and 1 for every class, of two for the second alone."""
        return cls(codes, np.ones(n_classes if n_classes > 2 else 1), (), n_classes)

    def __call__(self, rows):
        """Return the targets of a slice of rows, or of their indices, (n, T)."""
        if not self.n_classes:
            return self.values[rows] / self.unit
        ones = np.arange(self.n_classes) if self.n_classes > 2 else [1]
        return np.where(self.values[rows, None] == ones, 1.0, -1.0)

    def __getitem__(self, rows):
        """Return the targets of some rows."""
        return replace(self, values=self.values[rows])


# ---------------------------------------------------------------- rows


@dataclass(frozen=True, eq=False)
class Data:
    """Validated rows and what is summed over them.

    Parameters
    ----------
    X : array or sparse matrix of shape (n, d)
        Rows, all of positive weight.
    y : ndarray of shape (n,) or (n, n_outputs)
        Labels or targets, as scores compare them.
    sample_weight : ndarray of shape (n,) or None
        Weights, or None if none were given.
    numbers : ndarray of int of shape (n,)
        Positions of the rows in the input.
    map_y : ndarray of shape (n,) or (n, n_outputs), or None
        Labels or targets that a map is fitted to.
    targets : Targets
        Labels or targets, as models are fitted to them.
    statistics : PairStatistics, default=None
        Those of all rows, if these are a sample of them.
    """

    X: Any
    y: np.ndarray
    sample_weight: np.ndarray | None
    numbers: np.ndarray
    map_y: np.ndarray | None
    targets: Targets
    statistics: Any = None

    @cached_property
    def weights(self):
        """Weights, 1 if none were given."""
        return np.ones(len(self.y)) if self.sample_weight is None else self.sample_weight

    @property
    def class_codes(self):
        """Classes of the rows, from 0; all 0 where targets are numbers."""
        return self.targets.values if self.targets.n_classes else np.zeros(len(self.y), dtype=int)

    @property
    def n_groups(self):
        """Number of classes; 1 where targets are numbers."""
        return max(self.targets.n_classes, 1)

    @property
    def values(self):
        """Targets that are numbers, (n, n_values); none of classes."""
        return np.empty((len(self.y), 0)) if self.targets.n_classes else self.targets.values

    @property
    @np.errstate(over="ignore")
    def total(self):
        """Sum of the weights of all rows, inf if it overflows."""
        of_all = self.statistics
        return self.weights.sum() if of_all is None else of_all.queries.weight

    @property
    def score_weights(self):
        """Weights scaled so that scorers can add them up; None if none were given."""
        weights = self.sample_weight
        return None if weights is None else np.ldexp(weights, -np.frexp(weights.max())[1])

    @property
    def fit_weights(self):
        """Weights that a map is fitted to, scaled if far from 1; None if none were given."""
        weights = self.sample_weight
        is_usual = weights is None or abs(np.frexp(weights.max())[1]) <= _WEIGHT_BITS
        return weights if is_usual else self.score_weights

    def resolved(self, sigma, kernel="gaussian"):
        """Return the sigma that a number, "scale" or "median" stands for."""
        return sigma_of(sigma, to_host(self.X), self.fit_weights, self.statistics, kernel)

    def part(self, rows):
        """Return some of the rows, given a slice or indices."""
        names = "y", "sample_weight", "numbers", "map_y", "targets"
        arrays = {
            name: getattr(self, name)[rows] for name in names if getattr(self, name) is not None
        }
        return replace(self, X=take(self.X, rows), statistics=None, **arrays)

    def fitted(self, feature_map):
        """Fit a map to all rows, and return it."""
        feature_map = fit_to_statistics(feature_map, **self._fit_arguments(feature_map))
        width = getattr(feature_map, "n_features_in_", self.X.shape[1])
        if width != self.X.shape[1]:  # fitted before, and frozen
            raise ValueError(
                f"X has {self.X.shape[1]} features, but feature_map={feature_map!r} was fitted "
                f"with {width} features."
            )
        return feature_map

    def fit_at_sigma(self, feature_map, has_sigma=True):
        """Return a function that fits a map to all rows at a sigma; its results share a draw.

        A map without sigma is fitted once, as it is.
        """
        if has_sigma:
            return fit_at_sigma(feature_map, **self._fit_arguments(feature_map))
        fitted = self.fitted(clone(feature_map))
        return lambda sigma: fitted

    def _fit_arguments(self, feature_map):
        """Return what a map is fitted to, on the host, with weights if it accepts them."""
        arguments = {"X": to_host(self.X), "y": self.map_y, "statistics": self.statistics}
        if self.sample_weight is not None and has_fit_parameter(feature_map, "sample_weight"):
            arguments["sample_weight"] = self.fit_weights
        return arguments


def check_class_weight(class_weight, classes):
    """Raise if there are weights for classes that do not exist."""
    if isinstance(class_weight, dict):
        unknown = [label for label in class_weight if label not in classes]
        if unknown:
            raise ValueError(f"class_weight names {unknown!r}, which are not in {classes!r}.")


def class_factors(class_weight, classes, codes, weights, is_batch):
    """Return the factors by which the weights of the rows of every class are multiplied."""
    if isinstance(class_weight, dict):
        with naming("class_weight"):
            factors = np.array([class_weight.get(label, 1.0) for label in classes.tolist()], float)
        if not ((factors >= 0) & (factors < np.inf)).all():
            raise ValueError(f"class_weight must hold finite numbers >= 0, got {class_weight!r}.")
        return factors
    if is_batch:
        raise ValueError(
            "class_weight='balanced' needs all rows at once: pass a dict of factors, "
            "or sample_weight, with batches."
        )
    weights = np.ldexp(weights, -np.frexp(weights.max())[1])  # whose sums do not overflow
    totals = np.bincount(codes, weights, minlength=len(classes))
    return totals.sum() / (len(totals) * totals)


# ---------------------------------------------------------------- repetitions


@dataclass(frozen=True, eq=False)
class Sizes:
    """How many independent rows weighted and repeated rows are worth.

    The same row X with several targets is information; the same row with the same target, or a
    weight above that of others, is not. So rows that are equal in X and target are merged, and
    rows that share their X with other targets (J) count their weight, all others

        F = sum_J w + (sum_rest sqrt w)^2 / sum_rest w,

    which does not change if all weights are multiplied, and s = F / sum w.

    Parameters
    ----------
    several : float
        Weight of the rows whose X has several targets.
    roots, single : float
        Sums of the square roots of the weights, and of the weights, of the other rows.
    n_distinct : int
        Number of rows after merging.
    """

    several: float = 0.0
    roots: float = 0.0
    single: float = 0.0
    n_distinct: int = 0

    @property
    def freedom(self):
        """F."""
        of_others = self.roots * (self.roots / self.single) if self.single else 0.0
        return self.several + of_others

    @property
    def scale(self):
        """The share s of its weight that a row counts."""
        return self.freedom / (self.several + self.single)

    def merge(self, other):
        """Return the sizes of both; rows that are repeated across them are not seen."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Sizes(*(size + other_size for size, other_size in pairs))


def copy_groups(x_codes, y_codes, are_classes):
    """Return the group of copies of each row: all of it is left out, or held back, at once.

    A copy that stays would know the target of the row that leaves. This is the rule of every
    leave-one-out and of every fold that the library makes itself:

    - Numbers: rows equal in X and target are copies.
    - Classes: rows equal in X are copies where all of them have one class. Where their classes
      differ, each row leaves alone, because then the others say how much noise there is.
    - Where rows stand at every distinct X five times or more, on average, they are not copies but
      the cells of a design, and each leaves alone.

    Parameters
    ----------
    x_codes : ndarray of int of shape (n,)
        Number of the distinct row of X that each row equals, from 0.
    y_codes : ndarray of int of shape (n,)
        Number of the distinct target of each row, from 0.
    are_classes : bool
        Whether targets are classes.

    Returns
    -------
    ndarray of int of shape (n,)
        Groups, numbered by their first rows.
    """
    n, n_distinct = len(x_codes), x_codes.max() + 1
    if n >= _CELL_ROWS * n_distinct:
        return np.arange(n)
    pairs, groups = np.unique(x_codes * (y_codes.max() + 1) + y_codes, return_inverse=True)
    if are_classes:
        n_classes = np.bincount(pairs // (y_codes.max() + 1))
        is_alone = n_classes[x_codes] > 1
        groups[is_alone] = len(pairs) + np.flatnonzero(is_alone)
    return by_first(groups)


def codes_of_targets(y):
    """Return the number of the distinct target of each row, (n,)."""
    if y.ndim == 2:
        y = y[:, 0] if y.shape[1] == 1 else row_codes(y)
    return np.unique(y, return_inverse=True)[1]  # 0 is -0


def merged_copies(data, are_classes):
    """Return the data with a single row for every group of copies, of their weight together.

    Its rows are in the order of their first copies. See `copy_groups`.
    """
    x_codes, y_codes = row_codes(to_host(data.X)), codes_of_targets(data.targets.values)
    return _merged(data, copy_groups(x_codes, y_codes, are_classes))


def _merged(data, groups):
    """Return the data with the first row of every group, of their weight together."""
    if groups[-1] + 1 == len(groups):
        return data
    first = np.unique(groups, return_index=True)[1]
    with np.errstate(over="ignore"):
        weights = np.bincount(groups, data.weights)
    return replace(data.part(first), sample_weight=weights, statistics=data.statistics)


def spread_copies(X, y_codes, weights, most, rng, are_classes):
    """Return rows that are distinct in X and target, their weights, and shares that leave.

    They are at most so many, spread evenly over the targets; see `spread_rows`. Where the rows that
    one stands for leave one by one, the share of its weight that leaves with it is that of one.

    Parameters
    ----------
    X : ndarray or sparse matrix of shape (n, d)
        Rows.
    y_codes : ndarray of int of shape (n,)
        Codes in the order of the targets.
    weights : ndarray of shape (n,)
        Weights of the rows.
    most : int
        Largest number of rows.
    rng : Generator
        Source of the draw.
    are_classes : bool
        Whether targets are classes.
    """
    x_codes = row_codes(X)
    _, leaving = np.unique(copy_groups(x_codes, y_codes, are_classes), return_index=True)
    _, number = np.unique(x_codes * (y_codes.max() + 1) + y_codes, return_inverse=True)
    n_leaving = np.bincount(number[leaving])
    rows, weights = spread_rows(X, y_codes, weights, most, rng)
    return rows, weights, 1 / n_leaving[number[rows]]


def merged_rows(data):
    """Return the data with rows that are equal in X and targets merged, and their `Sizes`."""
    x_codes, y_codes = row_codes(to_host(data.X)), codes_of_targets(data.targets.values)
    groups = by_first(x_codes * (y_codes.max() + 1) + y_codes)
    data, first = _merged(data, groups), np.unique(groups, return_index=True)[1]
    return data, _sizes(x_codes[first], data.weights)


@np.errstate(over="ignore")  # moments tell
def _sizes(of_x, weights):
    """Return the `Sizes` of distinct rows, given numbers of their X."""
    is_several = np.bincount(of_x)[of_x] > 1
    single = weights[~is_several]
    return Sizes(
        float(weights[is_several].sum()),
        float(np.sqrt(single).sum()),
        float(single.sum()),
        len(weights),
    )


# ---------------------------------------------------------------- splits


def makes_folds(cv):
    """Return whether folds are those that the library makes itself, which keep copies together."""
    return cv is None or isinstance(cv, Integral)


def needs_groups(cv):
    """Return whether a splitter cannot split rows without their groups."""
    is_told = hasattr(cv, "get_metadata_routing")
    return is_told and cv.get_metadata_routing().split.requests.get("groups") is True


def rows_of_folds(model, y, data, groups=None):
    """Return the targets, the rows and the groups that a search splits.

    Its own folds split rows of positive weight, and copies are one row. A splitter of the user
    splits all rows.
    """
    y = y.toarray() if hasattr(y, "toarray") else as_numpy("y", y)
    if not makes_folds(model.cv):
        return y, data, groups
    rows = merged_copies(data, is_classifier(model))
    if groups is not None:
        check_consistent_length(y, groups)
        groups = as_numpy("groups", groups)[rows.numbers]
    return y[rows.numbers], replace(rows, numbers=np.arange(len(rows.numbers))), groups


def splits_of(model, y, data, groups):
    """Return the `Splits` of rows, as `rows_of_folds` returns them.

    There are fewer folds than `cv` says if rows do not allow as many.
    """
    from sklearn.model_selection import check_cv  # imported here because it uses megabytes

    cv, is_of_labels = model.cv, is_classifier(model)
    with naming("cv"):
        if makes_folds(cv):
            cv = _N_FOLDS if cv is None else cv
            most, unit = len(y), "rows"
            if is_of_labels and y.ndim == 1:
                most, unit = int(np.unique(y, return_counts=True)[1].max()), "rows of a class"
            if 2 <= most < cv:
                # Of a single row there is no coefficient of determination.
                n_folds = most if unit == "rows of a class" else max(most // 2, 2)
                message = (
                    f"cv={cv} needs as many {unit}, copies counted once: {n_folds} folds are used."
                )
                warn(message, UserWarning)
                cv = n_folds
        return Splits.of(check_cv(cv, y, classifier=is_of_labels), y, data, groups)


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

    @classmethod
    def one_by_one(cls, n):
        """Return the split of rows that are left out one by one."""
        rows = [np.arange(n)]
        return cls(rows, rows, n)

    def __len__(self):
        return len(self.tests)

    def __iter__(self):
        return zip(self.trains, self.tests, strict=True)

    def __getitem__(self, places):
        """Return a slice of the splits."""
        return Splits(self.trains[places], self.tests[places], self.n)

    def among(self, rows, cv):
        """Return the splits of some of the rows, leaving out those without rows on a side."""
        place = np.full(self.n, -1)
        place[rows] = np.arange(len(rows))
        pairs = [[moved[moved >= 0] for moved in (place[a], place[b])] for a, b in self]
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
        return self[k : k + 1]

    @cached_property
    def are_folds(self):
        """Whether every row is tested once, and every split trains on all other rows."""
        rows, tested = np.arange(self.n), np.sort(np.concatenate(self.tests))
        return np.array_equal(tested, rows) and all(
            np.array_equal(train, np.delete(rows, test)) for train, test in self
        )


def in_order_of_classes(data):
    """Return the rows in the order of their classes."""
    return data.part(np.argsort(data.class_codes, kind="stable"))


def contiguous(data, splits):
    """Return the rows in the order of their folds, which are then read without a copy."""
    if not splits.are_folds:
        return data, splits
    order = np.concatenate(sorted(splits.tests, key=lambda test: test[0]))
    return data.part(order), splits.moved(np.argsort(order))


def sums_of_splits(nothing, data, splits):
    """Return the sums of the rows that every split trains on.

    Rows of folds are summed once, and sums are merged, never subtracted, which would lose digits.

    Parameters
    ----------
    nothing : fit
        The sums of no rows, with ``added`` and ``merge``.
    data : Data
        All rows.
    splits : Splits
        Of these rows.
    """
    if not splits.are_folds:
        return [nothing.added(data.part(as_slice(train))) for train in splits.trains]
    folds = [nothing.added(data.part(as_slice(test))) for test in splits.tests]
    merge = type(nothing).merge
    before = accumulate(folds[:-1], merge, initial=nothing)
    after = list(accumulate(folds[:0:-1], merge, initial=nothing))
    return list(map(merge, before, after[::-1]))


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
    rng, samples = np.random.default_rng(_SAMPLE), []
    for k, count in enumerate(np.bincount(codes)):
        share = round(most * count / len(codes))
        rows = rng.permutation(np.flatnonzero(codes == k))
        samples.append(rows[: max(share, least)])
    return np.sort(np.concatenate(samples))


def as_slice(rows):
    """Return row indices as a slice if they are consecutive."""
    start, stop = rows[0], rows[0] + len(rows)
    return slice(start, stop) if np.array_equal(rows, np.arange(start, stop)) else rows
