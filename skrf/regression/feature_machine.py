"""Recursive feature machines: scales of columns, learned from the slopes of ridge regressions.

The mean outer product of the gradients of a kernel ridge regression on the rows X W says in which
directions the targets change. With respect to X that is W M W, whose root is the next W: a few
rounds of this learn the metric in which the targets are smooth (Radhakrishnan, Beaglehole, Pandit
and Belkin, 2024). Only ratios of scales count, so that factors common to all gradients are left
out.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy

import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import cdist, pdist, squareform

from .. import _kernels
from .._threads import serial_blas
from ..features import by_first, row_codes
from ..statistics import standardised
from .near_far import factor_of, inverse_root
from .solve import shifted

_ROUNDS = 4
_MOST_SCALES = 256
_N_SLOPES = 400  # rows at which gradients are taken
_N_MEDIAN = 32  # rows whose distances from the others give the unit of widths
_MOST_OUTPUTS = 64  # more are mixed at random, which keeps sums of their squares on average
_WIDTHS, _PENALTIES = (0.5, 1.2, 3.0), (0.05, 0.3, 2.0)  # evenly spaced logarithms; first round
_FIRST_ROWS = 500  # above which half of the rows choose the first of them
_STEPS = (-1, 0, 1)  # from the last choice, of widths and penalties in turn
_SAME = 1e-4  # of an error: rounding of float32, with a margin
_FARTHEST = np.exp(-10.0)  # ratio of the smallest scale to the largest
_LEAST_WEIGHT = 1e-30  # relative to the largest, because penalties are divided by weights


def l1_distances(X, Y):
    """Return the L1 distances of all pairs of rows, (n, m), in the dtype of the first.

    Where columns are many, those of 0 and one other value, such as levels, take a sparse product.
    """
    if X.shape[1] <= _MOST_SCALES:
        return _kernels.city_block(X, Y)
    largest = np.maximum(X.max(axis=0, initial=0), Y.max(axis=0))
    is_mark = are_marks(X, largest) & are_marks(Y, largest)
    marks, others = X[:, is_mark], Y[:, is_mark]
    shared = sp.csr_array(marks) @ (others > 0).T.astype(X.dtype)
    distances = marks.sum(axis=1)[:, None] + others.sum(axis=1, dtype=X.dtype) - 2 * shared
    distances = np.maximum(distances, 0, out=distances)
    numbers, others = (np.ascontiguousarray(rows[:, ~is_mark]) for rows in (X, Y))
    return distances + _kernels.city_block(numbers, others) if numbers.shape[1] else distances


def l2_distances(X, Y):
    """Return the Euclidean distances of all pairs of rows, (n, m), in the dtype of the first.

    They are computed by a product, whose rounding the least penalty hides.
    """
    is_sparse = X.shape[1] > _MOST_SCALES and 8 * np.count_nonzero(X) < X.size
    product = (sp.csr_array(X) if is_sparse else X) @ Y.T
    squares = np.square(X).sum(axis=1)[:, None] + np.square(Y).sum(axis=1) - 2 * product
    return np.sqrt(np.maximum(squares, 0, out=squares), out=squares)


def are_marks(X, largest):
    """Return which columns hold nothing but 0 and their largest number."""
    return ((X == 0) | (X == largest)).all(axis=0)


class FeatureMachine(ABC):
    """A kernel ridge regression on rows whose scales it learns.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Distinct rows.
    weights : ndarray of shape (n,)
        Their weights, which act as repetitions.
    targets : ndarray of shape (n, n_outputs)
        Their targets.
    groups : ndarray of int of shape (d,), default=None
        Of more than 256 columns, those of one group have the same multiplier, and the smallest
        multipliers are 0. Without groups, neither holds.
    """

    exponent: int
    start: Callable
    between: Callable  # the distances of all pairs of scaled rows

    def __init__(self, X, weights, targets, groups=None):
        self.groups = groups
        self.X, self.shares = X, weights / weights.sum()
        self.mean = self.shares @ targets
        self.targets = targets - self.mean
        self._rescale(self.start(X.shape[1]))

    @abstractmethod
    def scaled(self, X):
        """Return scaled rows."""

    @abstractmethod
    def slopes(self, at):
        """Return the mean squares of the gradients at some of the rows, or their outer products."""

    @abstractmethod
    def stepped(self, slopes):
        """Return the next scales."""

    def _rescale(self, scales):
        self.scales = scales
        self.rows = self.scaled(self.X)
        self.distances = self.between(self.rows, self.rows).astype(np.float32, copy=False)
        sample = self.distances[:: math.ceil(len(self.X) / _N_MEDIAN)]
        self.unit = np.median(sample[sample > 0]) if np.any(sample) else 1.0

    def _kernel(self, distances, width):
        scaled = distances * np.float32(-1 / (width * self.unit))
        return np.exp(scaled if self.exponent == 1 else -scaled * scaled)

    def regression(self, width, penalty):
        """Return kernel and coefficients, and the mean squared leave-one-out error."""
        kernel = self._kernel(self.distances, width)
        noise = penalty / (len(kernel) * self.shares)
        root = inverse_root(factor_of(shifted(kernel, noise), noise.min()))
        coef = root.T @ (root @ self.targets.astype(root.dtype))
        residuals = coef / np.einsum("ij,ij->j", root, root)[:, None]
        return kernel, coef, self.shares @ np.square(residuals).sum(axis=1)

    def fit(self, *choices):
        """Fit with the best width and penalty by leave-one-out, and return their number."""
        fits = [self.regression(*choice) for choice in choices]
        errors = np.array([error for _, _, error in fits])
        best = int(np.argmax(errors <= (1 + _SAME) * errors.min()))
        self.width, (self.kernel, self.coef, _) = choices[best][0], fits[best]
        return best

    def error(self, X, weights, targets):
        """Return the mean squared error at other rows."""
        kernel = self._kernel(self.between(self.scaled(X), self.rows), self.width)
        squares = np.square(kernel @ self.coef + self.mean - targets).sum(axis=1)
        return np.average(squares, weights=weights)

    def step(self):
        """Learn the next scales."""
        slopes = self.slopes(np.random.default_rng(0).permutation(len(self.X))[:_N_SLOPES])
        if np.any(slopes):
            self._rescale(self.stepped(slopes))


class Multipliers(FeatureMachine):
    """With a scale per column, and the kernel exp(-|x - y|_1)."""

    exponent, start, between = 1, staticmethod(np.ones), staticmethod(l1_distances)

    def __init__(self, X, weights, targets, groups=None):
        super().__init__(X, weights, targets, groups)
        self.is_mark = are_marks(X, X.max(axis=0)) if X.shape[1] > _MOST_SCALES else np.array(False)
        # Signs of differences are those of ranks, which any scales leave as they are. Of a number
        # and its ranks they are the same.
        numbers, places = (X[:, ~self.is_mark] if self.is_mark.any() else X).T, {}
        ranks = [np.unique(x, return_inverse=True)[1].astype(np.float32) for x in numbers]
        self.places = np.array([places.setdefault(x.tobytes(), len(places)) for x in ranks], int)
        self.ranks = [np.frombuffer(x, np.float32) for x in places]

    def scaled(self, X):
        """Return scaled rows, without the columns whose scale is 0."""
        return scaled_columns(X, self.scales)

    def slopes(self, at):
        """Return the mean squares of -sum_m coef_m k(x, z_m) sign(x - z_m) at rows x."""
        kernel, coef = self.kernel[at].astype(np.float32), self.coef.astype(np.float32)
        signs, squares = np.empty_like(kernel), np.zeros(len(self.ranks))
        of_numbers = self.scales[~self.is_mark] if self.is_mark.any() else self.scales
        for place in np.unique(self.places[of_numbers > 0]):
            ranks = self.ranks[place]
            np.subtract(ranks[at, None], ranks, out=signs)
            np.clip(signs, -1, 1, out=signs)
            signs *= kernel
            squares[place] = self.shares[at] @ np.square(signs @ coef).sum(axis=1)
        squares = squares[self.places]
        if not self.is_mark.any():
            return squares
        marks = (self.X[:, self.is_mark] > 0).astype(np.float32)
        of_all = np.zeros(len(self.is_mark))
        of_all[~self.is_mark] = squares
        of_all[self.is_mark] = self._squares_of_gradients(marks, kernel, coef, at)
        return of_all

    def _squares_of_gradients(self, rows, kernel, coef, at):
        """Return the mean squares of -sum_m coef_m k(x, z_m) (x - z_m) at rows x."""
        total, columns = 0.0, sp.csc_array(rows)
        for c in coef.T:
            products = kernel * c
            gradients = products @ columns - products.sum(axis=1)[:, None] * rows[at]
            total = total + self.shares[at] @ np.square(gradients)
        return total

    def stepped(self, slopes):
        """Return the next scales."""
        is_limited = self.groups is not None and len(slopes) > _MOST_SCALES
        if is_limited:
            sizes = np.bincount(self.groups)[self.groups]
            slopes = np.bincount(self.groups, slopes)[self.groups] / sizes
        scales = self.scales * np.sqrt(slopes / slopes.max())
        scales = np.maximum(scales / scales.max(), _FARTHEST) * (self.scales > 0)
        if is_limited:
            least = np.partition(scales, -_MOST_SCALES)[-_MOST_SCALES]
            scales = np.where(scales >= least, scales, 0.0)
        return scales


class GaussianMultipliers(Multipliers):
    """With a scale per column, and the kernel exp(-|x - y|^2), for many columns."""

    exponent, between = 2, staticmethod(l2_distances)

    def __init__(self, X, weights, targets, groups=None):
        FeatureMachine.__init__(self, X, weights, targets, groups)

    def slopes(self, at):
        """Return the mean squares of -sum_m coef_m k(x, z_m) (x - z_m) at rows x."""
        slopes = np.zeros(len(self.scales))
        slopes[self.scales > 0] = self._squares_of_gradients(
            self.rows, self.kernel[at], self.coef, at
        )
        return slopes


def scaled_columns(X, scales):
    """Return the columns whose multiplier is not 0, times that."""
    kept = scales > 0
    return X * scales if kept.all() else X[:, kept] * scales[kept]


class Directions(FeatureMachine):
    """With a symmetric matrix of scales, and the kernel exp(-|x - y|^2)."""

    exponent, start = 2, staticmethod(np.eye)

    def scaled(self, X):
        """Return scaled rows."""
        return X @ self.scales

    def between(self, X, Y):
        """Return the Euclidean distances of all pairs of scaled rows."""
        return squareform(pdist(X)) if X is Y else cdist(X, Y)

    def slopes(self, at):
        """Return the mean outer products of -sum_m coef_m k(x, z_m) (x - z_m) at rows x."""
        X, kernel, total = self.rows[at], self.kernel[at], np.zeros_like(self.scales)
        for coef in self.coef.T:
            gradients = (kernel * coef) @ self.rows - (kernel @ coef)[:, None] * X
            total += gradients.T @ (self.shares[at, None] * gradients)
        return total

    def stepped(self, slopes):
        """Return the next scales."""
        squares = self.scales @ (slopes / np.abs(slopes).max()) @ self.scales
        values, vectors = np.linalg.eigh(squares)
        roots = np.sqrt(np.maximum(values, 0.0))
        return (vectors * np.maximum(roots / roots.max(), _FARTHEST)) @ vectors.T


@serial_blas()
def learned_scales(machine, X, weights, y, is_class):
    """Return the scales of as many rounds as suit rows that these have not seen.

    They keep the sum of the squares of all entries.

    Half of the rows judge the scales that the other half learns. Those of as many rounds as are
    best are then learned from all rows, with the same widths and penalties.

    Parameters
    ----------
    machine : type
        `Multipliers` or `Directions`.
    X : ndarray of shape (n, d)
        Rows, at least two of them distinct.
    weights : ndarray of shape (n,)
        Their weights.
    y : ndarray of shape (n,) or (n, n_outputs)
        Codes of their classes, or targets.
    is_class : bool
        Whether they are classes.
    """
    X = X / np.abs(X).max()  # so that no square overflows
    rows = _distinct(X, weights, y, is_class)
    part = halves(rows[0], rows[2].argmax(axis=1) if is_class else None)
    n_outputs = rows[2].shape[1]
    if n_outputs > _MOST_OUTPUTS:
        mixed = np.random.default_rng(0).normal(size=(n_outputs, _MOST_OUTPUTS))
        rows = (*rows[:2], rows[2] @ mixed)
    learning, judging = ([values[part == k] for values in rows] for k in range(2))
    chosen = [choice for choice, _ in rounds(machine, learning, judging)]
    learner = machine(*rows)
    for choice in chosen[:-1]:
        learner.fit(choice)
        learner.step()
    return learner.scales * np.sqrt(np.sum(np.square(X)) / np.sum(np.square(learner.scaled(X))))


def rounds(machine, learning, judging):
    """Yield the width and penalty of every round and its scales, as long as they help other rows.

    Parameters
    ----------
    machine : type
        `Multipliers` or `Directions`.
    learning, judging : sequence
        Distinct rows, their weights and targets; of the second, any rows.
    """
    learner, error = machine(*learning), np.inf
    choices = [(i, j) for i in range(len(_WIDTHS)) for j in range(len(_PENALTIES))]
    if len(learning[0]) > _FIRST_ROWS:  # fewer choose among so many, in an eighth of the time
        few = machine(*(values[::2] for values in learning))
        choices = [choices[few.fit(*[_on_grid(choice) for choice in choices])]]
    for number in range(_ROUNDS + 1):
        before = copy(learner)
        if number:
            learner.step()
        values = [_on_grid(choice) for choice in choices]
        best = learner.fit(*values)
        if number:  # the scales before may gain as much by the new width or penalty
            before.fit(values[best])
            error = min(error, before.error(*judging))
        share = 1 / len(judging[0])  # a gain of less than that of a row is luck
        enough, error = (1 - share) * error, learner.error(*judging)
        if not error < enough:
            return
        yield values[best], learner.scales
        i, j = choices[best]
        choices = [(i + step, j) if number % 2 else (i, j + step) for step in _STEPS]


def _on_grid(choice):
    """Return the width and the penalty at places of grids, which go on beyond their ends."""
    grids = zip((_WIDTHS, _PENALTIES), choice, strict=True)
    return tuple(grid[0] * (grid[1] / grid[0]) ** place for grid, place in grids)


def _distinct(X, weights, y, is_class):
    """Return distinct rows in lexicographic order, with weights and mean targets."""
    weights = np.maximum(weights / weights.max(), _LEAST_WEIGHT)
    if is_class:
        targets = np.equal.outer(y, np.unique(y)).astype(np.float64)
    else:
        targets = standardised(y, weights)
    _, first, number = np.unique(row_codes(X), return_index=True, return_inverse=True)
    totals = np.bincount(number, weights)
    sums = np.zeros((len(first), targets.shape[1]))
    np.add.at(sums, number, weights[:, None] * targets)
    return X[first], totals, sums / totals[:, None]


def halves(X, classes):
    """Return 0 or 1 for each of several sorted rows, with as many of a class in either half."""
    order = np.random.default_rng(0).permutation(len(X))  # rows may be a lattice
    if classes is not None:
        order = order[np.argsort(by_first(classes[order]), kind="stable")]
    part = np.empty(len(X), int)
    part[order] = np.arange(len(X)) % 2
    return part
