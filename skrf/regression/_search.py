"""Scores of many sigmas by cross-validation, from sums computed once per sigma.

Sums of the rows outside a fold are merged from those of the other folds and never subtracted: if a
fold holds nearly everything that a query sees, a difference has no digits.
"""

import warnings
from dataclasses import dataclass, replace
from itertools import accumulate, repeat
from numbers import Integral

import numpy as np

from .._batches import joined
from .._progress import Progress
from .._sums import Memory, Rows, Sums
from .._threads import Scratch, block_rows, run_rows
from .._validation import check_positive
from ..features import (
    FeatureMap,
    OptimalPositiveRF,
    as_feature_map,
    in_range,
)
from ._blocks import blocks_of

# Up to which features of all rows at one sigma, or products for all, are kept. To touch more memory
# for the first time takes about as long as to make cheap features again.
KEPT_BYTES = 2**27
# Number of sines from which making them twice takes less time than keeping them.
MANY_SINES = 2**20
# Span of exponents up to which products of features, and their sums, keep all digits.
_NARROW = {"float32": 30.0, "float64": 300.0}
_LIGHTEST = 1e-10  # of weights, relative to the largest, beside which these digits remain
_FIRST_ROWS = 256  # of which the middles of exponents are found
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


# ---------------------------------------------------------------- features that are kept


class KeptMap(FeatureMap):
    """Map that reads previously computed features in place of rows: values, then scales.

    Parameters
    ----------
    n_columns : int
        Number of features.
    n_scales : int or None
        Number of scales of a row; 0 if the values are features, None if they are logarithms.
    """

    n_features = n_columns = None

    def __init__(self, n_columns, n_scales):
        self.n_columns, self.is_positive, self.is_view = n_columns, n_scales is None, n_scales == 0

    def __call__(self, X):
        """Return the `Rows`."""
        values, scale = np.split(X, [self.n_columns], axis=1)
        if self.is_positive:
            return Rows(values)
        # Sums overwrite scales of single features.
        return Rows(values, np.zeros((len(X), 1), X.dtype) if self.is_view else scale.copy())


@dataclass(frozen=True)
class Kept:
    """Features of all rows, kept for sums and for predictions.

    Features are kept without scales if they fit: divided by the level of all rows, or, if they are
    positive and span few exponents, each by its middle. Of many sines and cosines that are read
    only once, or that are too many, products are kept instead, for the maps of several sigmas.

    Parameters
    ----------
    rows : ndarray of shape (n, M) or (n, M + S) or (n, m)
        The features, and their scales, or the products.
    feature_map : FeatureMap
        Reads them.
    top : ndarray of shape (M,) or (1,) or float
        Exponents of what features are divided by.
    source : FeatureMap or None
        Map that made the products.
    """

    rows: np.ndarray
    feature_map: FeatureMap
    top: np.ndarray | float = 0.0
    source: FeatureMap | None = None

    @classmethod
    def of(cls, maps, X, room, weights=None, before=None, is_read_once=True):
        """Return the features of rows, or None if they are too many.

        Parameters
        ----------
        maps : tuple of FeatureMap
            Queries and keys; features are kept for symmetric pairs.
        X : ndarray or sparse matrix of shape (n, d)
            The rows.
        room : callable
            Allocates memory, like `numpy.empty`.
        weights : ndarray of shape (n,), default=None
            Their weights. Beside far larger ones, only logarithms tell the scores of a class.
        before : Kept, default=None
            What is kept for another sigma, in the same memory.
        is_read_once : bool, default=True
            Whether features will be read only once after their first use.
        """
        feature_map = maps[0]
        if maps[1] is not feature_map:
            return None
        X, memory = in_range(feature_map, X), Memory()
        values, scale = feature_map(X[:_FIRST_ROWS])
        n_rows, n, n_scales = X.shape[0], values.shape[1], 0 if scale is None else scale.shape[1]
        is_kept = n_rows * (n + n_scales) * X.dtype.itemsize <= KEPT_BYTES
        if not is_kept or (is_read_once and n_rows * n >= MANY_SINES):
            products = cls._of_products(feature_map, X, room, before)
            if products is not None or not is_kept:
                return products
        size, map_blocks = blocks_of(feature_map, X)
        if scale is None:
            with np.errstate(invalid="ignore"):  # features that are 0 are not narrow
                top = (values.min(axis=0) + values.max(axis=0)) / 2
                most = _NARROW[X.dtype.name] - np.ptp(top)
                is_plain = np.abs(values - top).max() < most
            if weights is not None:
                is_plain = is_plain and weights.min() > _LIGHTEST * weights.max()
        else:
            top, is_plain = feature_map.level, feature_map.level is not None

        def keep_plain(rows):
            """Keep features without scales, and return whether they fit."""
            block = out[rows]
            scale = feature_map.write(X[rows], block, memory.room, top if n_scales == 0 else None)
            if scale is not None:
                return True
            largest = max(block.max(), -block.min())
            with np.errstate(over="ignore"):
                np.exp(block, out=block)
            return largest < most

        def keep(rows):
            values, scale = memory.rows(feature_map, X[rows])
            out[rows, :n], out[rows, n:] = values, 0 if scale is None else scale

        if is_plain:
            out = room((n_rows, n), X.dtype)
            if all(map_blocks(keep_plain, n_rows, size)):
                return cls(out, KeptMap(n, 0), np.asarray(top, np.float64))
        out = room((n_rows, n + n_scales), X.dtype)
        map_blocks(keep, n_rows, size)
        return cls(out, KeptMap(n, n_scales or None))

    @classmethod
    def _of_products(cls, feature_map, X, room, before):
        """Return kept products, those from before if they serve, or None."""
        source = None if before is None else before.source
        if source is not None and X.dtype == before.rows.dtype:
            product_map = feature_map.of_products(source)
            if product_map is not None:
                return replace(before, feature_map=product_map)
        product_map = feature_map.of_products(feature_map)
        if (
            product_map is None
            or X.shape[0] * product_map.n_features * X.dtype.itemsize > KEPT_BYTES
        ):
            return None
        out = room((X.shape[0], product_map.n_features), X.dtype)

        def keep(rows):
            out[rows] = feature_map.products(X[rows])

        run_rows(keep, X.shape[0], block_rows(*out.shape, X.shape[1]))
        return cls(out, product_map, source=feature_map)

    def seen(self, sums):
        """Return sums of kept features as kept queries see them, up to a factor."""
        factors = np.exp(2 * (self.top - np.max(self.top)))  # of queries and keys alike
        return Sums(sums.sums * np.reshape(factors, (-1, 1)), sums.top)

    def whole(self, sums):
        """Return sums of kept features as those of the map's features."""
        return Sums(sums.sums, sums.top + self.top)


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
        Draft; if it may keep features, it then predicts only the rows of its test.
    feature_map : transformer
        Unfitted.
    data : Data
        Rows, on the host if features may be kept.
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
    data, room, kept = data.part(order), Scratch(), None
    rounds = [
        [(number, as_slice(np.sort(place[rows]))) for number, rows in folds] for folds in rounds
    ]
    parts = [[data.part(rows) for _, rows in folds] for folds in rounds]
    for fitted in data.fit_at_sigmas(feature_map, sigmas):
        maps, scores = maps_of(fitted), [None] * len(tests)
        if model._may_keep:
            kept = Kept.of(maps, data.X, room, data.sample_weight, kept, len(rounds) == 1)
        nothing = model._before(maps if kept is None else (kept.feature_map,) * 2, data)
        for folds, fold_data in zip(rounds, parts, strict=True):
            sums, before = [], nothing
            for (_, rows), test_data in zip(folds, fold_data, strict=True):
                read = test_data if kept is None else replace(test_data, X=kept.rows[rows])
                sums.append(model._added(before, read))
                before = sums[-1].emptied
            others, total = all_but_one(nothing, sums)
            for (number, rows), test_data, train, test in zip(
                folds, fold_data, others, sums, strict=True
            ):
                if number is not None:
                    if kept is not None:
                        train = replace(train, sums=kept.seen(train.sums), kept=kept.rows[rows])
                    scores[number] = judge(train, test_data, test)
        if kept is not None:
            total = replace(total, sums=kept.whole(total.sums))
        yield scores, fitted, replace(total, maps=maps)


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
