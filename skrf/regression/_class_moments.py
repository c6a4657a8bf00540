"""Moments of the features of each class, and a ridge regression for every pair of classes."""

from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations

import numpy as np
from scipy.linalg.lapack import dposv

from .._arrays import cast, like, namespace, take
from .._memory import check_fits
from .._threads import run_all
from ._ridge import Moments, bytes_of_moments, moments_of_rows, solve

# Multiplications of the solutions for all pairs up to which they are worth it: about a minute.
_MOST_OPERATIONS = 2e12
TIE = 1e-5  # values so near to each other may differ by rounding alone, for float32 rows, too


def n_operations(n_classes, n_columns):
    """Return how many multiplications the solutions for all pairs of classes take."""
    return n_classes * (n_classes - 1) / 2 * n_columns**3 / 3


def is_affordable(n_classes, n_columns):
    """Return whether one-vs-one is what ``decision="auto"`` may choose."""
    return n_operations(n_classes, n_columns) <= _MOST_OPERATIONS


@dataclass(frozen=True, eq=False)
class NoTargets:
    """Targets of rows of a single class: none."""

    unit = np.empty(0)

    def __call__(self, rows):
        """Return nothing for a slice, or indices, of rows."""
        n = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        return np.empty((n, 0))


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """Weighted second moments of the features of every class, each about its own mean.

    `merge` is associative and commutative to rounding; it changes neither side.

    Parameters
    ----------
    classes : tuple of (Moments or None)
        Moments without targets; None for a class without rows.
    """

    classes: tuple

    @classmethod
    def of_rows(cls, feature_map, X, codes, n_classes, weights, least_alpha=0.0):
        """Return the moments of rows with these class codes; see `moments_of_rows`."""
        n_columns = feature_map.n_columns or 0
        n_bytes = n_classes * bytes_of_moments(n_columns, 0)
        what = f"the second moments of {n_classes} classes"
        check_fits(n_bytes, f"feature_map with {n_columns} columns", what)
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=n_classes))
        classes = []
        for rows in np.split(order, ends[:-1]):
            if len(rows) == 0:
                classes.append(None)
                continue
            given = take(X, rows), NoTargets(), None if weights is None else weights[rows]
            classes.append(moments_of_rows(feature_map, *given, least_alpha=least_alpha))
        return cls(tuple(classes))

    @property
    def n_columns(self):
        """Number of features."""
        return next(moments.n_columns for moments in self.classes if moments is not None)

    def merge(self, other):
        """Return the moments of the rows of both."""
        pairs = zip(self.classes, other.classes, strict=True)
        return ClassMoments(
            tuple(
                two if one is None else one if two is None else one.merge(two) for one, two in pairs
            )
        )

    @property
    def weight(self):
        """Sum of the weights."""
        return sum(moments.weight for moments in self.classes if moments is not None)

    @cached_property
    def together(self):
        """The `Moments` of all features, and of targets -1 and 1 for every class."""
        weights = np.array([0.0 if one is None else one.weight for one in self.classes])
        n, seen = self.n_columns, np.flatnonzero(weights)
        weight, means = weights.sum(), np.zeros((len(weights), n))
        means[seen] = [self.classes[k].mean for k in seen]
        shares = weights / weight
        deviations = means - shares @ means
        deviations[weights == 0] = 0.0
        targets = 2 * shares - 1
        products = np.empty((n + len(weights),) * 2)
        products[:n, :n] = sum(self.classes[k].products for k in seen)
        products[:n, :n] += (deviations * weights[:, None]).T @ deviations
        products[:n, n:] = 2 * (deviations * weights[:, None]).T
        products[n:, :n] = products[:n, n:].T
        products[n:, n:] = 4 * (np.diag(weights) - np.outer(weights, shares))
        mean = np.concatenate([shares @ means, targets])
        return Moments(weight, mean, products, np.ones(len(weights)))

    def of_pair(self, first, second):
        """Return the `Moments` of two classes, the first with target -1 and the second with 1.

        It is None if one of them has no rows.
        """
        one, two = self.classes[first], self.classes[second]
        if one is None or two is None:
            return None
        weight = one.weight + two.weight
        share, gap = two.weight / weight, two.mean - one.mean
        # Written as sums about the means of the classes, the products keep all their digits.
        size = one.weight * share
        n = len(gap)
        products = np.empty((n + 1, n + 1))
        products[:n, :n] = one.products + two.products
        products[:n, :n] += np.outer(size * gap, gap)
        products[:n, n] = products[n, :n] = 2 * size * gap
        products[n, n] = 4 * size
        mean = np.append(one.mean + share * gap, 2 * share - 1)
        return Moments(weight, mean, products, np.ones(1))


def pairs_of(n_classes):
    """Return all pairs of classes (first, second), in the order of their ridge regressions."""
    return list(combinations(range(n_classes), 2))


def signs_of(n_classes):
    """Return 1 where a class is the second of a pair and -1 where it is the first, (K, P)."""
    first, second = np.array(pairs_of(n_classes)).T
    signs = np.zeros((n_classes, len(first)))
    signs[first, np.arange(len(first))], signs[second, np.arange(len(first))] = -1.0, 1.0
    return signs


@dataclass(frozen=True, eq=False)
class PairRidges:
    """A ridge regression for every pair of classes, which vote.

    Parameters
    ----------
    alpha : float
        The ridge added to the diagonal.
    coef : ndarray of shape (M, P)
        Coefficients; positive values speak for the second class of a pair.
    intercept : ndarray of shape (P,)
        Intercepts.
    n_classes : int
        Number of classes.
    """

    alpha: float
    coef: np.ndarray
    intercept: np.ndarray
    n_classes: int

    @classmethod
    def solved(cls, moments, alpha):
        """Return the solutions from `ClassMoments`."""
        pairs = pairs_of(len(moments.classes))
        solutions = run_all(partial(_solution, moments, alpha), pairs)
        coefs, intercepts = zip(*solutions, strict=True)
        return cls(alpha, np.stack(coefs, axis=1), np.array(intercepts), len(moments.classes))

    @property
    def linear(self):
        """Coefficients (M, P) and intercepts."""
        return self.coef, self.intercept

    def values(self, features):
        """Return the regressions of all pairs, (n, P)."""
        values = features @ like(self.coef, features)
        values = cast(values, namespace(values).float64)
        return values + like(self.intercept, values)

    def means(self, features):
        """Return the votes for every class, (n, n_classes), with ties broken; see `votes`."""
        return votes(self.values(features), self.n_classes)


def votes(values, n_classes):
    """Return how many pairs every class wins, and a fraction by which ties are broken.

    Parameters
    ----------
    values : array of shape (n, P)
        Regressions of the pairs, positive for the second class.
    n_classes : int
        Number of classes.

    Returns
    -------
    array of shape (n, n_classes)
        Votes plus less than a third: the sum of tanh of the values for a class, divided by three
        times the number of its pairs. Raw sums would let one far value outvote the others. A value
        that may be 0 but for rounding, as where all features are 0 between two classes of the same
        weight, is half a vote for each.
    """
    xp = namespace(values)
    wins = xp.where(xp.abs(values) > TIE, xp.sign(values) / 2, like(0.0, values))
    scores = wins + xp.tanh(values) / (3.0 * (n_classes - 1))
    return scores @ like(signs_of(n_classes).T, scores) + (n_classes - 1) / 2


def _solution(moments, alpha, pair):
    """Return the coefficients and the intercept of a pair."""
    of_pair = moments.of_pair(*pair)
    if of_pair is None:
        return np.zeros(moments.n_columns), 1.0 if moments.classes[pair[0]] is None else -1.0
    coef = solve(of_pair, alpha)[:, 0]
    return coef, of_pair.mean[-1] - of_pair.mean[:-1] @ coef


def pair_values(features, codes, weights, alpha, others, n_classes):
    """Return the regressions of all pairs at other rows, solved in the rows of every pair.

    The same as by `PairRidges`, and cheaper where a pair has fewer rows than features.

    Parameters
    ----------
    features : ndarray of shape (n, M)
        Features of the training rows.
    codes : ndarray of int of shape (n,)
        Their classes.
    weights : ndarray of shape (n,) or None
        Their weights.
    alpha : sequence of float
        The ridges.
    others : ndarray of shape (n_others, M)
        Features of the other rows.
    n_classes : int
        Number of classes.

    Returns
    -------
    ndarray of shape (n_alphas, n_others, P)
        The regressions.
    """
    gram, cross = features @ features.T, others @ features.T
    rows = [np.flatnonzero(codes == k) for k in range(n_classes)]
    roots = np.ones(len(codes)) if weights is None else np.sqrt(weights)
    pairs = pairs_of(n_classes)
    values = np.empty((len(alpha), len(others), len(pairs)))
    for p, (first, second) in enumerate(pairs):
        if not (len(rows[first]) and len(rows[second])):
            values[:, :, p] = -1.0 if len(rows[first]) else 1.0
            continue
        members = np.concatenate([rows[first], rows[second]])
        targets = np.repeat([-1.0, 1.0], [len(rows[first]), len(rows[second])])
        root = roots[members]
        share = root**2 / np.sum(root**2)
        block = gram[np.ix_(members, members)]
        mean = block @ share
        centred = (block - mean - mean[:, None] + share @ mean) * root * root[:, None]
        target = share @ targets
        sides = (targets - target) * root
        at_others = cross[:, members]
        for k, ridge in enumerate(alpha):
            shifted = centred.copy(order="F")
            shifted[np.diag_indices_from(shifted)] += ridge
            _, dual, info = dposv(shifted, sides, lower=1, overwrite_a=1)
            if info:  # the ridge is lost in rounding
                dual = np.linalg.lstsq(centred, sides, rcond=None)[0]
            dual = dual * root
            dual -= share * dual.sum()
            values[k, :, p] = at_others @ dual - mean @ dual + target
    return values
