"""Members of a kernel machine: a kernel, learned scales, and regressions that judge themselves.

Rows are scaled columns in float32. Up to a limit they are one leaf, whose kernel is kept; beyond,
near rows are exact and far rows go through landmarks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.linalg import LinAlgError
from scipy.special import expit
from sklearn.utils import gen_batches

from .. import _kernels
from .decide import Problem
from .feature_machine import Directions, Multipliers, rounds
from .near_far import (
    Distinct,
    Ground,
    NearFarSolution,
    Spread,
    Tree,
    leaves_of,
    left_out,
    sampled,
    solve_near_far,
)

_RANK = 1e-5  # of the landmarks' kernel, relative to the largest eigenvalue: less is rounding
_N_MEDIAN = 1000  # rows whose distances give the unit of widths
_SCALE_ROWS = 1000  # of a half, from which scales are learned, and by which they are judged
_ALL_ROWS = 1200  # up to so many, trials look at all
_TRIAL_ROWS = 700  # distinct ones, and all that equal them; whole leaves have more
_ALPHAS = (0.02, 0.1, 0.5, 2.0, 8.0, 32.0)
_LEAST_ALPHA = 1e-4  # smaller ones are lost in the rounding of kernels in float32
_STEPS = 5  # of a climb
_SAME = 1e-5  # relative difference of errors that does not matter
_KEPT = 2**26  # numbers of the residuals of all leaves that are kept
_BLOCK = 2**25  # numbers of a kernel that are held at once
_MOST_LOGIT, _LEAST_VARIANCE = 6.0, 0.02  # of a logistic step


@dataclass(frozen=True)
class Kernel:
    """exp(-(distance / width)^exponent).

    Parameters
    ----------
    name : {"laplacian", "gaussian"}
        Of L1 or of Euclidean distances.
    exponent : float
        The exponent, 2 for the Gaussian kernel.
    """

    name: str
    exponent: float

    def distances(self, X, Y):
        """Return the distances of all pairs of rows, (n, m), in the dtype of the first."""
        if self.name == "laplacian":
            return _kernels.city_block(X, Y)
        # By a product, whose rounding the least penalty hides.
        squares = np.square(X).sum(axis=1)[:, None] + np.square(Y).sum(axis=1) - 2 * (X @ Y.T)
        return np.sqrt(np.maximum(squares, 0, out=squares), out=squares)

    def at(self, distances, width):
        """Return the kernel at distances."""
        scaled = distances * np.float32(1 / width)
        if self.exponent == 2:
            scaled *= scaled
        elif self.exponent != 1:
            scaled **= np.float32(self.exponent)
        return np.exp(np.negative(scaled, out=scaled), out=scaled)

    @property
    def start(self):
        """The width from which trials start, in units of the median distance, and their step."""
        if self.name == "gaussian":
            return 0.8, 2.0
        return (1.0 if self.exponent == 1 else 1.5), 2.5

    @property
    def machine(self):
        """What learns scales."""
        return Directions if self.name == "gaussian" else Multipliers

    def sigma_of(self, width):
        """Return the sigma that other estimators name the width by."""
        return (np.sqrt(2) if self.name == "gaussian" else 1.0) / width


def scaled(X, scales):
    """Return rows in the coordinates of a kernel; scales are multipliers, a matrix or None.

    A row is rounded alike whatever others are scaled with it, so that equal ones remain equal.
    """
    if scales is None:
        return X
    if scales.ndim == 1:
        return X * scales
    return (X.astype(np.float64) @ scales).astype(np.float32)


def median_distance(kernel, X):
    """Return the median distance of distinct rows, from at most 1,000 of them."""
    some = X[np.random.default_rng(0).permutation(len(X))[:_N_MEDIAN]]
    distances = kernel.distances(some, some)[np.triu_indices(len(some), 1)]
    distances = distances[distances > 0]
    return float(np.median(distances)) if len(distances) else 1.0


# ---------------------------------------------------------------- grounds


@dataclass(frozen=True, eq=False)
class Landmarks:
    """Some rows, and features whose products are the kernel's projection on them.

    Directions in which their kernel is only rounding are left out. This is to a `Ground` what a
    map of landmarks is.
    """

    kernel_of: Kernel
    width: float
    points: np.ndarray
    scales: np.ndarray | None

    def projected(self, X):
        """Return this, and the rows."""
        return self, X

    def coordinates(self, X):
        """Return the coordinates of rows, in float64."""
        return scaled(X, self.scales).astype(np.float64)

    @cached_property
    def root(self):
        """What turns the kernel with the points into features, (M, M')."""
        gram = self.kernel(self.points, self.points).astype(np.float64)
        values, axes = np.linalg.eigh(gram)
        is_some = values > _RANK * values[-1]
        return (axes[:, is_some] / np.sqrt(values[is_some])).astype(np.float32)

    def kernel(self, X, Y):
        """Return the kernel of all pairs of rows."""
        return self.kernel_of.at(self.kernel_of.distances(X, Y), self.width)

    def features(self, X):
        """Return the features of rows."""
        return self.kernel(X, self.points) @ self.root


@dataclass(frozen=True)
class Limits:
    """How large what is solved at once may be.

    Parameters
    ----------
    n_landmarks : int
        Number of landmarks.
    leaf : int
        Rows of a leaf.
    """

    n_landmarks: int
    leaf: int

    @property
    def exact(self):
        """Rows up to which there is a single leaf."""
        return 5 * self.leaf // 3


@dataclass(frozen=True, eq=False)
class Scene:
    """Rows in the coordinates of scales, whatever the width of the kernel.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    scales : ndarray or None
        What turned columns into coordinates.
    X : ndarray of shape (m, d)
        Distinct rows.
    number : ndarray of int of shape (n,)
        The distinct row of each row.
    tree : Tree
        The leaves.
    bounds : ndarray of int of shape (n_leaves + 1,)
        Where leaves begin and end.
    points : ndarray of shape (M, d)
        Landmarks.
    """

    kernel: Kernel
    scales: np.ndarray | None
    X: np.ndarray
    number: np.ndarray
    tree: Tree
    bounds: np.ndarray
    points: np.ndarray

    @classmethod
    def of(cls, kernel, scales, X, number, limits, rng):
        """Return the scene of distinct rows."""
        X = scaled(X, scales)
        most = len(X) if len(X) <= limits.exact else limits.leaf
        tree, distinct, order, bounds, again = leaves_of(X, most)  # some may be equal by scaling
        n_landmarks = limits.n_landmarks if tree.n_leaves > 1 else 0
        points = distinct[np.sort(rng.permutation(len(distinct))[:n_landmarks])]
        return cls(kernel, scales, distinct[order], again[number], tree, bounds, points)

    @cached_property
    def unit(self):
        """The median distance."""
        return median_distance(self.kernel, self.X)

    @cached_property
    def distances(self):
        """Distances of all rows, where they are one leaf."""
        return self.kernel.distances(self.X, self.X) if self.tree.n_leaves == 1 else None

    def ground(self, kernel, width):
        """Return the ground at a width in units of the median distance."""
        width, residuals = width * self.unit, {}
        if self.distances is not None:
            residuals[0] = kernel.at(self.distances, width), np.zeros((len(self.X), 0), np.float32)
        landmarks = Landmarks(kernel, width, self.points, self.scales)
        given = landmarks, landmarks, self.tree, self.X, self.bounds, self.number
        return Ground(*given, _KEPT, residuals)


# ---------------------------------------------------------------- what is asked


@dataclass(frozen=True, eq=False)
class Asked:
    """Rows and targets of a kernel machine.

    Parameters
    ----------
    X : dict of str to ndarray of shape (m, d)
        Columns of the distinct rows for every kernel by name.
    number : ndarray of int of shape (n,)
        The distinct row of each row.
    weights : ndarray of shape (n,)
        Weights of the rows.
    targets : ndarray of shape (n, T)
        Targets with mean 0; those of more than two classes are 0 and 1 less their mean.
    codes : ndarray of int of shape (n,) or None
        Classes; None for numbers.
    problems : sequence of Problem or None
        The regressions of classes.
    limits : Limits
        Sizes.
    seed : int
        Of samples and landmarks.
    """

    X: dict
    number: np.ndarray
    weights: np.ndarray
    targets: np.ndarray
    codes: np.ndarray | None
    problems: Sequence[Problem] | None
    limits: Limits
    seed: int

    def rng(self):
        """Return a generator that begins anew."""
        return np.random.default_rng(self.seed)

    @property
    def modes(self):
        """Whether regressions take a step of the logistic loss: those of many classes do both."""
        if self.codes is None:
            return (False,)
        return (True,) if len(self.problems) == 1 else (False, True)

    def learned(self, kernel, learning, judging):
        """Return scales of every round that suits rows of another half; the first are None."""
        parts = []
        for rows in (learning, judging):
            kept, number = np.unique(self.number[rows], return_inverse=True)
            distinct = Distinct(kept, np.array([0, len(kept)]), number, self.weights[rows])
            some = np.sort(self.rng().permutation(len(kept))[:_SCALE_ROWS])
            means = distinct.means(self.targets[rows])[some]
            parts.append((self.X[kernel.name][kept[some]], distinct.totals[some], means))
        if min(len(part[0]) for part in parts) < 2:
            return [None]
        found = [scales.astype(np.float32) for _, scales in rounds(kernel.machine, *parts)]
        return [None, *found[1:]]


@dataclass(frozen=True)
class Half:
    """Scales of every round, and the rows that they have not seen.

    Parameters
    ----------
    scales : list of ndarray or None
        The scales by the name of a kernel; the first are None.
    judge : ndarray of int
        The rows.
    """

    scales: dict
    judge: np.ndarray

    def at(self, kernel, number):
        """Return the scales of a round, or of the last."""
        scales = self.scales[kernel.name]
        return scales[min(number, len(scales) - 1)]


# ---------------------------------------------------------------- trials


@dataclass(frozen=True)
class Point:
    """What a search chooses for a kernel: of equals, few rounds, a wide kernel, a large alpha.

    Parameters
    ----------
    round : int
        Of the scales.
    width : float
        In units of the median distance.
    alpha : float
        The ridge.
    """

    round: int
    width: float
    alpha: float


@dataclass(eq=False)
class Trials:
    """Mean squared leave-one-out errors of points, at rows that their scales have not seen.

    Parameters
    ----------
    asked : Asked
        Rows and targets.
    halves : list of Half
        What was learned.
    kernel : Kernel
        The first of the kernels with these distances.
    """

    asked: Asked
    halves: list
    kernel: Kernel
    scenes: dict = field(default_factory=dict)  # the last of each half
    errors: dict = field(default_factory=dict)

    def scene(self, number, half):
        """Return the scene of some rows of a round, the rows, and their share of all."""
        scales, (known, scene) = half.at(self.kernel, number), self.scenes.get(id(half), (0, 0))
        if known is not scales:
            scene = self._scene(scales, half)
            self.scenes[id(half)] = scales, scene
        return scene

    def _scene(self, scales, half):
        asked, rows = self.asked, np.arange(len(self.asked.number))
        X, limits = asked.X[self.kernel.name], asked.limits
        if len(X) > limits.exact:
            scene = Scene.of(self.kernel, scales, X, asked.number, limits, asked.rng())
            rows = sampled(scene.bounds, scene.number, asked.rng())
            return scene, rows, len(np.unique(scene.number[rows])) / len(scene.X)
        if len(X) > _ALL_ROWS:
            kept = np.unique(asked.number[half.judge])
            kept = asked.rng().permutation(kept)[:_TRIAL_ROWS]
            rows = np.flatnonzero(np.isin(asked.number, kept))
        kept, number = np.unique(asked.number[rows], return_inverse=True)
        given = X[kept], number, limits, asked.rng()
        return Scene.of(self.kernel, scales, *given), rows, 1.0

    def __call__(self, kernel, number, width, alphas):
        """Judge a kernel at some penalties, unless that was done."""
        points = [Point(number, width, max(alpha, _LEAST_ALPHA)) for alpha in alphas]
        points = [point for point in points if (kernel, point) not in self.errors]
        n_distinct = len(self.asked.X[kernel.name])
        few = self.halves if n_distinct <= _ALL_ROWS else self.halves[:1]
        sums = np.zeros((2, len(points)))
        for half in few if points else ():
            scene, rows, share = self.scene(number, half)
            ground, weights = scene.ground(kernel, width), self.asked.weights[rows]
            has_all = len(scene.number) > len(rows)
            distinct = ground.part(rows if has_all else np.arange(len(rows)), weights)
            targets, is_judge = self.asked.targets[rows], np.isin(rows, half.judge)
            for k, point in enumerate(points):
                given = distinct.means(targets), point.alpha, share
                try:
                    solution = solve_near_far(ground, distinct, *given)
                except LinAlgError:  # lost in the rounding of the kernel
                    sums[0, k] = np.inf
                    continue
                rest = left_out(solution, distinct, targets, point.alpha, weights)[0] - targets
                sums[0, k] += weights[is_judge] @ np.square(rest[is_judge]).sum(axis=1)
                sums[1, k] += weights[is_judge].sum()
        for point, error, weight in zip(points, *sums, strict=True):
            self.errors[kernel, point] = error / weight if weight else np.inf

    def best(self, *kernels):
        """Return the best point of some kernels."""
        errors = {key: error for key, error in self.errors.items() if key[0] in kernels}
        least = min(errors.values())
        good = [point for (_, point), error in errors.items() if error <= (1 + _SAME) * least]
        return min(good, key=lambda point: (point.round, -point.width, -point.alpha))

    def search(self, kernel):
        """Return the best `Point` of a kernel, by climbing from where the last one was best."""
        width, step = kernel.start
        if not self.errors:
            last = max(len(half.scales[kernel.name]) for half in self.halves) - 1
            for number in sorted({0, last}):
                self(kernel, number, width, _ALPHAS)
            for number in range(1, last):
                self(kernel, number, width, [self.best(kernel).alpha])
        else:
            known = {one for one, _ in self.errors}
            at = self.best(*known)
            self(kernel, at.round, 1.5 * at.width, [at.alpha])
        for _ in range(_STEPS):
            at = self.best(kernel)
            number, width, alpha = at.round, at.width, at.alpha
            self(kernel, number, width, [alpha / 4, 4 * alpha])
            self(kernel, number, width * step, [alpha, alpha / 4])
            self(kernel, number, width / step, [alpha, 4 * alpha])
            if self.best(kernel) == at:
                break
        return self.best(kernel)


# ---------------------------------------------------------------- members


@dataclass(frozen=True, eq=False)
class Member(NearFarSolution):
    """Regressions of one kernel at learned scales, of columns in place of features.

    Parameters
    ----------
    kernel : Kernel, default=None
        The kernel.
    """

    kernel: Kernel | None = None

    @property
    def alpha_(self):
        """The ridge."""
        return self.alpha

    @property
    def kernel_(self):
        """Name of the kernel."""
        return self.kernel.name

    @property
    def exponent_(self):
        """Exponent of the distance."""
        return self.kernel.exponent

    @property
    def sigma_(self):
        """Multiplier of distances, as of `ClusterNystroem`."""
        return float(self.kernel.sigma_of(self.ground.landmarks.width))

    @property
    def relevance_(self):
        """Multipliers of the columns, or a matrix; None where all count alike."""
        return self.ground.landmarks.scales

    def __repr__(self):
        return (
            f"Member(kernel_={self.kernel_!r}, exponent_={self.exponent_:g}, "
            f"sigma_={self.sigma_:.3g}, alpha_={self.alpha_:.3g})"
        )

    def _by_block(self, function, X):
        """Return a function of features and rows, of blocks whose kernel fits into memory."""
        largest, parts = int(np.diff(self.ground.bounds).max()) + len(self.coef), []
        for block in gen_batches(len(X), max(1, _BLOCK // largest)):
            rows = X[block]
            features = self.ground.features(self.ground.landmarks.coordinates(rows))
            parts.append(function(features, rows))
        return np.concatenate(parts)

    def predict(self, X):
        """Return the regressions at rows, (n, V), in float64, so that others do not matter."""
        return self._by_block(self.values_at, X)

    def predict_std(self, X):
        """Return the standard deviations of targets at rows in units of that of the noise."""
        return self._by_block(self.posterior.deviations, X)[:, 0]


def fit_member(asked, kernel, point, half):
    """Return the `Member` of a half's scales, fitted to all rows, and what it says of its judges.

    These are leave-one-out values of the judging rows, (n, V), and for numbers the variances of
    these in units of that of the noise, (n,). Rows of other classes than a regression's have its
    plain values. The ridge is the least multiple of alpha by powers of 4 that rounding allows:
    what some rows allow may be too small for all.
    """
    scene = Scene.of(
        kernel, half.at(kernel, point.round), asked.X[kernel.name], asked.number, asked.limits,
        asked.rng(),
    )  # fmt: skip
    ground = scene.ground(kernel, point.width)
    try:
        return _fit_member(asked, kernel, ground, point.alpha, half.judge)
    except LinAlgError:
        return fit_member(asked, kernel, replace(point, alpha=4 * point.alpha), half)


def _fit_member(asked, kernel, ground, alpha, judge):
    expansions, judged, fits = [], [], []
    for is_logistic in asked.modes:
        for problem in asked.problems or [None]:
            rows, targets = np.arange(len(asked.number)), asked.targets
            if problem is not None:
                rows = np.flatnonzero(np.isin(asked.codes, problem.groups))
                targets = np.where(asked.codes[rows] == problem.groups[1], 1.0, -1.0)[:, None]
            distinct = ground.part(rows, asked.weights[rows])
            fit = fits.pop(0) if is_logistic and fits else None
            if fit is None:
                given = ground, distinct, distinct.means(targets), alpha
                fit = solve_near_far(*given, judges=not is_logistic)
            of_rows, working = alpha, targets
            if is_logistic:
                working, of_rows = logistic_step(fit, distinct, targets, alpha)
                fit = solve_near_far(ground, distinct, distinct.means(working), of_rows)
            elif problem is not None:
                fits.append(fit)  # from which the logistic step goes on
            expansions.append(fit.expansion(distinct, len(ground.X)))
            left, inverse = left_out(fit, distinct, working, of_rows, asked.weights[rows])
            judged.append((rows, left))
    coef, of_rows, intercept = map(np.hstack, zip(*expansions, strict=True))
    coef, of_rows = coef.astype(np.float32), of_rows.astype(np.float32)
    posterior, variances = None, np.zeros(len(judge))
    if asked.problems is None:
        noise, total = alpha / distinct.totals, distinct.totals.sum()
        posterior = Spread(ground, fit, noise, alpha, np.ones(1), total)
        variances = (asked.weights / (alpha * inverse))[judge]
    far, unit = ground.far_sums(of_rows), np.ones(len(intercept))
    member = Member(
        alpha, coef, unit, intercept, posterior=posterior, ground=ground, rows=of_rows, far=far,
        kernel=kernel,
    )  # fmt: skip
    values = np.zeros((len(asked.number), coef.shape[1]))
    if asked.problems is not None and len(asked.problems) > 1:
        values = (ground.at_own_rows(coef, of_rows) + intercept)[ground.number]
    start = 0
    for rows, left in judged:
        values[rows, start : start + left.shape[1]] = left
        start += left.shape[1]
    ground.residuals.clear()  # members are many
    return member, values[judge], variances


def logistic_step(fit, distinct, targets, alpha):
    """Return working targets of a Newton step of the logistic loss, and the ridge of every row.

    A ridge regression on -1 and 1 is the first step from 0, with half the logarithm of the odds;
    this is the next. Working targets depend on the row itself, so that its leave-one-out values are
    approximate.
    """
    residuals = (alpha / distinct.totals)[:, None] * fit.centred[1]
    logits = np.clip(2 * (distinct.means(targets) - residuals), -_MOST_LOGIT, _MOST_LOGIT)
    shares = expit(logits)
    variances = np.maximum(shares * (1 - shares), _LEAST_VARIANCE)
    rest = ((targets > 0) - shares[distinct.number]) / variances[distinct.number]
    return (logits[distinct.number] + rest) / 2, alpha / (4 * variances[:, 0])
