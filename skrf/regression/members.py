"""Members of a kernel machine: a kernel, learned scales, and regressions with leave-one-out.

Rows are scaled columns in float32. Up to a limit they are one leaf, whose kernel is kept; beyond,
near rows are exact and far rows go through landmarks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from scipy.linalg import LinAlgError
from scipy.special import expit
from sklearn.utils import gen_batches

from .decide import Problem
from .feature_machine import (
    Directions,
    GaussianMultipliers,
    Multipliers,
    l1_distances,
    l2_distances,
    rounds,
    scaled_columns,
)
from .near_far import (
    DistinctRows,
    Factors,
    LeafPosterior,
    NearFarKernel,
    NearFarSolution,
    Tree,
    leave_one_out,
    leaves_of,
    problem_targets,
    sampled,
    solve_near_far,
)

_RANK = 1e-5  # of the landmarks' kernel, relative to the largest eigenvalue: less is rounding
_N_MEDIAN = 1000  # rows whose distances give the unit of widths
SCALE_ROWS = 1000  # of a half, from which scales are learned, and by which they are judged
_MOST_DIRECTIONS = 800  # columns, beyond which the Gaussian kernel has multipliers, too
_ALL_ROWS = 1200  # up to so many, trials look at all
_TRIAL_ROWS = 700  # distinct ones, and all that equal them; whole leaves have more
_ALPHAS = (0.02, 0.1, 0.5, 2.0, 8.0, 32.0)
_LEAST_ALPHA = 1e-4  # smaller ones are lost in the rounding of kernels in float32
_STEPS, _LEAF_STEPS = 5, 2  # of a climb
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
        return l1_distances(X, Y) if self.name == "laplacian" else l2_distances(X, Y)

    def evaluate(self, distances, width):
        """Return the kernel at distances."""
        scaled = distances * np.float32(1 / width)
        if self.exponent == 2:
            scaled *= scaled
        elif self.exponent != 1:  # by logarithms, which is faster than a power
            with np.errstate(divide="ignore"):
                np.log(scaled, out=scaled)
            # Equal rows have a logarithm of minus infinity, which 0 must not multiply.
            scaled *= max(np.float32(self.exponent), np.finfo(np.float32).tiny)
            np.exp(scaled, out=scaled)
        return np.exp(np.negative(scaled, out=scaled), out=scaled)

    @property
    def initial_width(self):
        """The width from which a search starts, in units of the median distance, and its step."""
        if self.name == "gaussian":
            return 0.8, 2.0
        return (1.0 if self.exponent == 1 else 1.5), 2.5

    def scale_learner(self, n_columns):
        """Return the class that learns scales: directions of many columns would take too long."""
        if self.name == "laplacian":
            return Multipliers
        return Directions if n_columns <= _MOST_DIRECTIONS else GaussianMultipliers

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
        return scaled_columns(X, scales)
    return (X.astype(np.float64) @ scales).astype(np.float32)


def median_distance(kernel, X):
    """Return the median distance of distinct rows, from at most 1,000 of them."""
    sample = X[np.random.default_rng(0).permutation(len(X))[:_N_MEDIAN]]
    distances = kernel.distances(sample, sample)[np.triu_indices(len(sample), 1)]
    distances = distances[distances > 0]
    return float(np.median(distances)) if len(distances) else 1.0


# ---------------------------------------------------------------- rows and landmarks


@dataclass(frozen=True, eq=False)
class Landmarks:
    """Some rows, and features whose products are the kernel's projection on them.

    Directions in which their kernel is only rounding are left out. A `NearFarKernel` takes this in
    the place of a map of landmarks.
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
        return self.kernel_of.evaluate(self.kernel_of.distances(X, Y), self.width)

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
    def of_trials(self):
        """Less of both, with which the same hyperparameters are best in a fraction of the time."""
        return Limits(max(1, self.n_landmarks // 2), max(2, 3 * self.leaf // 10))


@dataclass(frozen=True, eq=False)
class ScaledRows:
    """Rows in the coordinates of scales, whatever the width of the kernel.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    scales : ndarray or None
        What turned columns into coordinates.
    X : ndarray of shape (m, d)
        Distinct rows.
    row_to_distinct : ndarray of int of shape (n,)
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
    row_to_distinct: np.ndarray
    tree: Tree
    bounds: np.ndarray
    points: np.ndarray

    @classmethod
    def of(cls, kernel, scales, X, row_to_distinct, limits, rng):
        """Return distinct rows in the coordinates of scales."""
        X = scaled(X, scales)
        # Some may be equal by scaling.
        tree, distinct, order, bounds, again = leaves_of(X, limits.leaf)
        n_landmarks = limits.n_landmarks if tree.n_leaves > 1 else 0
        points = distinct[np.sort(rng.permutation(len(distinct))[:n_landmarks])]
        return cls(kernel, scales, distinct[order], again[row_to_distinct], tree, bounds, points)

    @cached_property
    def unit(self):
        """The median distance."""
        return median_distance(self.kernel, self.X)

    @cached_property
    def distances(self):
        """Distances of all rows, where they are one leaf."""
        return self.kernel.distances(self.X, self.X) if self.tree.n_leaves == 1 else None

    def near_far_kernel(self, kernel, width):
        """Return the kernel at a width in units of the median distance."""
        width, residuals = width * self.unit, {}
        if self.distances is not None:
            residuals[0] = (
                kernel.evaluate(self.distances, width),
                np.zeros((len(self.X), 0), np.float32),
            )
        landmarks = Landmarks(kernel, width, self.points, self.scales)
        return NearFarKernel(
            landmarks, landmarks, self.tree, self.X, self.bounds, self.row_to_distinct,
            most_kept=_KEPT, residuals=residuals,
        )  # fmt: skip


# ---------------------------------------------------------------- training data


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Rows and targets of a kernel machine.

    Parameters
    ----------
    X : dict of str to ndarray of shape (m, d)
        Columns of the distinct rows for every kernel by name.
    row_to_distinct : ndarray of int of shape (n,)
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
    factors : Factors
        Where the members' posteriors keep the factors of leaves.
    groups : dict of str to ndarray of int of shape (d,), default={}
        For every kernel by name, groups of columns that share one scale.
    """

    X: dict
    row_to_distinct: np.ndarray
    weights: np.ndarray
    targets: np.ndarray
    codes: np.ndarray | None
    problems: Sequence[Problem] | None
    limits: Limits
    seed: int
    factors: Factors = field(default_factory=Factors)
    groups: dict = field(default_factory=dict)

    def rng(self):
        """Return a generator that begins anew."""
        return np.random.default_rng(self.seed)

    @property
    def modes(self):
        """Whether regressions take a step of the logistic loss: those of pairs of several do both.

        Of many classes, a step of softmax would be judged too well by leave-one-out.
        """
        if self.codes is None:
            return (False,)
        if len(self.problems) > 1:
            return False, True
        return (len(self.problems[0].groups) == 2,)

    def subset(self, rows):
        """Return some of the rows, all of which count as distinct."""
        return replace(
            self,
            X={name: X[self.row_to_distinct[rows]] for name, X in self.X.items()},
            row_to_distinct=np.arange(len(rows)),
            weights=self.weights[rows],
            targets=self.targets[rows],
            codes=None if self.codes is None else self.codes[rows],
        )

    @property
    def has_leaves(self):
        """Whether the rows are too many for a single leaf."""
        return len(self.X["laplacian"]) > self.limits.leaf

    def expected_seconds(self, n_members):
        """Return about how long the fits of members take, on one core of a recent processor."""
        n_rows, n_landmarks, n_problems, share = len(self.X["laplacian"]), 0, 1, 1.0
        n_leaves = int(np.ceil(n_rows / self.limits.leaf))
        if n_leaves > 1:  # they are about three quarters full
            n_leaves, n_landmarks = 4 * n_leaves / 3, self.limits.n_landmarks
        if self.problems is not None:
            n_problems = len(self.problems)
            share = len(self.problems[0].groups) / (1 + self.codes.max())
        m, per_row, per_leaf = share * n_rows / n_leaves, 4e-8 * n_landmarks, 2e-8 * n_landmarks**2
        n_solutions = n_members * len(self.modes) * n_problems * n_leaves
        return n_solutions * (m * (3e-11 * m**2 + per_row) + per_leaf)

    def learn_scales(self, kernel, learning_rows, validation_rows):
        """Return scales of every round that suits rows of another half; the first are None."""
        sides = []
        for rows in (learning_rows, validation_rows):
            kept, row_to_distinct = np.unique(self.row_to_distinct[rows], return_inverse=True)
            distinct = DistinctRows(
                kept, np.array([0, len(kept)]), row_to_distinct, self.weights[rows]
            )
            sample = np.sort(self.rng().permutation(len(kept))[:SCALE_ROWS])
            means = distinct.means(self.targets[rows])[sample]
            sides.append((self.X[kernel.name][kept[sample]], distinct.totals[sample], means))
        if min(len(side[0]) for side in sides) < 2:
            return [None]
        learner, groups = kernel.scale_learner(len(sides[0][0][0])), self.groups.get(kernel.name)
        if learner is not Directions:
            learner = partial(learner, groups=groups)
        scales = [scales.astype(np.float32) for _, scales in rounds(learner, *sides)]
        return [None, *scales[1:]]


@dataclass(frozen=True)
class HalfScales:
    """Scales of every round, learned from half of the rows, and the other half.

    Parameters
    ----------
    scales : list of ndarray or None
        The scales by the name of a kernel; the first are None.
    validation_rows : ndarray of int
        The rows that the scales have not seen.
    """

    scales: dict
    validation_rows: np.ndarray

    def scales_of(self, kernel, round_number):
        """Return the scales of a round, or of the last."""
        scales = self.scales[kernel.name]
        return scales[min(round_number, len(scales) - 1)]


# ---------------------------------------------------------------- searches


@dataclass(frozen=True)
class Hyperparameters:
    """The parameters of a member: of equally good ones, few rounds, a wide kernel, a large alpha.

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
class MemberSearch:
    """Mean squared leave-one-out errors at rows that scales have not seen.

    Parameters
    ----------
    data : TrainingData
        Rows and targets.
    halves : list of HalfScales
        The learned scales.
    kernel : Kernel
        The first of the kernels with these distances.
    in_leaves : bool, default=False
        Whether rows are those of some whole leaves, as dense as all are. These differ from round
        to round, so that errors compare within a round alone.
    """

    data: TrainingData
    halves: list
    kernel: Kernel
    in_leaves: bool = False
    cache: dict = field(default_factory=dict)  # the last of each half
    errors: dict = field(default_factory=dict)

    def sample(self, round_number, half):
        """Return rows in the scales of a round, their places, and their share of all rows."""
        scales = half.scales_of(self.kernel, round_number)
        cached_scales, sample = self.cache.get(id(half), (0, 0))
        if cached_scales is not scales:
            sample = self._leaves(scales) if self.in_leaves else self._rows(scales, half)
            self.cache[id(half)] = scales, sample
        return sample

    def _leaves(self, scales):
        data, X = self.data, self.data.X[self.kernel.name]
        scaled_rows = ScaledRows.of(
            self.kernel, scales, X, data.row_to_distinct, data.limits.of_trials, data.rng()
        )
        rows = sampled(scaled_rows.bounds, scaled_rows.row_to_distinct, data.rng())
        n_distinct = len(np.unique(scaled_rows.row_to_distinct[rows]))
        return scaled_rows, rows, n_distinct / len(scaled_rows.X)

    def _rows(self, scales, half):
        data, rows = self.data, np.arange(len(self.data.row_to_distinct))
        X = data.X[self.kernel.name]
        if len(X) > _ALL_ROWS:
            kept = np.unique(data.row_to_distinct[half.validation_rows])
            kept = data.rng().permutation(kept)[:_TRIAL_ROWS]
            rows = np.flatnonzero(np.isin(data.row_to_distinct, kept))
        kept, row_to_distinct = np.unique(data.row_to_distinct[rows], return_inverse=True)
        X, limits = X[kept], Limits(0, len(kept))
        return ScaledRows.of(self.kernel, scales, X, row_to_distinct, limits, data.rng()), rows, 1.0

    def __call__(self, kernel, round_number, width, alphas):
        """Compute the errors of a kernel at some penalties, unless they are known."""
        settings = [
            Hyperparameters(round_number, width, max(alpha, _LEAST_ALPHA)) for alpha in alphas
        ]
        settings = [setting for setting in settings if (kernel, setting) not in self.errors]
        n_distinct = len(self.data.X[kernel.name])
        halves = self.halves if n_distinct <= _ALL_ROWS else self.halves[:1]
        sums = np.zeros((2, len(settings)))
        for half in halves if settings else ():
            scaled_rows, rows, share = self.sample(round_number, half)
            near_far, weights = scaled_rows.near_far_kernel(kernel, width), self.data.weights[rows]
            places = rows if self.in_leaves else np.arange(len(rows))
            distinct = near_far.distinct_rows(places, weights)
            targets, is_validation = self.data.targets[rows], np.isin(rows, half.validation_rows)
            for k, setting in enumerate(settings):
                means, alpha = distinct.means(targets), setting.alpha
                try:
                    solution = solve_near_far(near_far, distinct, means, alpha, share)
                except LinAlgError:  # lost in the rounding of the kernel
                    sums[0, k] = np.inf
                    continue
                residuals = leave_one_out(solution, distinct, targets, alpha, weights)[0] - targets
                sums[0, k] += weights[is_validation] @ np.square(residuals[is_validation]).sum(
                    axis=1
                )
                sums[1, k] += weights[is_validation].sum()
        for setting, error, weight in zip(settings, *sums, strict=True):
            self.errors[kernel, setting] = error / weight if weight else np.inf

    def best(self, *kernels):
        """Return the best hyperparameters of some kernels."""
        errors = {key: error for key, error in self.errors.items() if key[0] in kernels}
        least = min(errors.values())
        candidates = [
            setting for (_, setting), error in errors.items() if error <= (1 + _SAME) * least
        ]
        return min(candidates, key=lambda setting: (setting.round, -setting.width, -setting.alpha))

    def best_kernel(self):
        """Return the kernel of least error, of equals the first.

        Errors compare if all kernels had the same rounds.
        """
        least = {}
        for (kernel, _), error in self.errors.items():
            least[kernel] = min(error, least.get(kernel, np.inf))
        bound = (1 + _SAME) * min(least.values())
        return next(kernel for kernel, error in least.items() if error <= bound)

    def search(self, kernel):
        """Return the best `Hyperparameters` of a kernel, climbing from those of the last kernel."""
        width = kernel.initial_width[0]
        if not self.errors:
            last = max(len(half.scales[kernel.name]) for half in self.halves) - 1
            for round_number in sorted({0, last}):
                self(kernel, round_number, width, _ALPHAS)
            for round_number in range(1, last):
                self(kernel, round_number, width, [self.best(kernel).alpha])
        else:
            searched = {searched_kernel for searched_kernel, _ in self.errors}
            best = self.best(*searched)
            self(kernel, best.round, 1.5 * best.width, [best.alpha])
        return self._climb(kernel, _STEPS)

    def refine(self, kernel, setting):
        """Return the best `Hyperparameters` of a kernel near some others, and of their round."""
        self(kernel, setting.round, setting.width, [setting.alpha])
        return self._climb(kernel, _LEAF_STEPS)

    def _climb(self, kernel, n_steps):
        step = kernel.initial_width[1]
        for _ in range(n_steps):
            best = self.best(kernel)
            round_number, width, alpha = best.round, best.width, best.alpha
            self(kernel, round_number, width, [alpha / 4, 4 * alpha])
            self(kernel, round_number, width * step, [alpha, alpha / 4])
            self(kernel, round_number, width / step, [alpha, 4 * alpha])
            if self.best(kernel) == best:
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
        return float(self.kernel.sigma_of(self.near_far.landmarks.width))

    @property
    def relevance_(self):
        """Multipliers of the columns, or a matrix; None where all count alike."""
        return self.near_far.landmarks.scales

    def __repr__(self):
        return (
            f"Member(kernel_={self.kernel_!r}, exponent_={self.exponent_:g}, "
            f"sigma_={self.sigma_:.3g}, alpha_={self.alpha_:.3g})"
        )

    def predict(self, X, return_std=False):
        """Return the regressions at rows, (n, V), in float64, so that other rows do not matter.

        With `return_std`, the standard deviations of targets are returned, too, in units of that of
        the noise.
        """
        near_far, values, deviations = self.near_far, [], []
        largest = int(np.diff(near_far.bounds).max()) + len(self.coef) + X.shape[1]
        for block in gen_batches(len(X), max(1, _BLOCK // largest)):
            coordinates = near_far.coordinates(X[block])
            features, by_leaf = near_far.features(coordinates), near_far.by_leaf(coordinates)
            if return_std:
                by_leaf = list(by_leaf)
                deviations.append(self.posterior.deviations(features, by_leaf)[:, 0])
            values.append(near_far.values(features, by_leaf, self.coef, self.rows, self.far))
        values = np.concatenate(values) + self.intercept
        return (values, np.concatenate(deviations)) if return_std else values

    def predict_in_leaf(self, X):
        """Return the regressions at rows, (n, V), in float32, where there is a single leaf."""
        near_far = self.near_far
        kernel = near_far.kernel(scaled(X, self.relevance_), near_far.X)
        return kernel @ self.rows + self.intercept


def fit_member(data, kernel, setting, half):
    """Return the `Member` with the scales of a half, fitted to all rows, and what judges it.

    These are leave-one-out predictions of the validation rows, (n, V), and for numbers their
    variances in units of that of the noise, (n,). Rows of other classes than those of a regression
    have its plain values. The ridge is the least multiple of alpha by powers of 4 that rounding
    allows: what a sample of the rows allows may be too small for all.
    """
    scales, X = half.scales_of(kernel, setting.round), data.X[kernel.name]
    scaled_rows = ScaledRows.of(kernel, scales, X, data.row_to_distinct, data.limits, data.rng())
    near_far = scaled_rows.near_far_kernel(kernel, setting.width)
    try:
        return _fit_member(data, kernel, near_far, setting.alpha, half.validation_rows)
    except LinAlgError:
        return fit_member(data, kernel, replace(setting, alpha=4 * setting.alpha), half)


def _fit_member(data, kernel, near_far, alpha, validation_rows):
    expansions, loo_predictions, fits = [], [], []
    for is_logistic in data.modes:
        for rows, targets, level in problem_targets(data.problems, data.codes, data.targets):
            if rows is None:
                expansions.append((np.zeros((0, 1)), np.zeros((len(near_far.X), 1)), level))
                continue
            distinct = near_far.distinct_rows(rows, data.weights[rows])
            fit = fits.pop(0) if is_logistic and fits else None
            if fit is None:
                means = distinct.means(targets)
                fit = solve_near_far(near_far, distinct, means, alpha, with_inverse=not is_logistic)
            of_rows, working = alpha, targets
            if is_logistic:
                working, of_rows = logistic_step(fit, distinct, targets, alpha)
                fit = solve_near_far(near_far, distinct, distinct.means(working), of_rows)
            elif data.problems is not None:
                fits.append(fit)  # from which the logistic step goes on
            expansions.append(fit.expansion(distinct, len(near_far.X)))
            left, inverse = leave_one_out(fit, distinct, working, of_rows, data.weights[rows])
            loo_predictions.append((rows, left))
    coef, of_rows, intercept = map(np.hstack, zip(*expansions, strict=True))
    coef, of_rows = coef.astype(np.float32), of_rows.astype(np.float32)
    posterior, variances = None, np.zeros(len(validation_rows))
    if data.problems is None:
        noise, total = alpha / distinct.totals, distinct.totals.sum()
        posterior = LeafPosterior(near_far, fit, noise, alpha, np.ones(1), total, data.factors)
        variances = (data.weights / (alpha * inverse))[validation_rows]
    far, unit = near_far.far_sums(of_rows), np.ones(len(intercept))
    member = Member(
        alpha, coef, unit, intercept, posterior=posterior, near_far=near_far, rows=of_rows, far=far,
        kernel=kernel,
    )  # fmt: skip
    values = np.zeros((len(data.row_to_distinct), coef.shape[1]))
    if data.problems is not None and len(data.problems) > 1:
        values = (near_far.at_own_rows(coef, of_rows) + intercept)[near_far.row_to_distinct]
    start = 0
    for rows, left in loo_predictions:
        values[rows, start : start + left.shape[1]] = left
        start += left.shape[1]
    near_far.residuals.clear()  # members are many
    return member, values[validation_rows], variances


def refit(member, data):
    """Return the `Member` of other rows with the kernel, the scales and the ridge of a member."""
    kernel, width = member.kernel, member.near_far.landmarks.width
    X = data.X[kernel.name]
    scaled_rows = ScaledRows.of(
        kernel, member.relevance_, X, data.row_to_distinct, data.limits, data.rng()
    )
    near_far = scaled_rows.near_far_kernel(kernel, width / scaled_rows.unit)
    with np.errstate(divide="ignore", invalid="ignore"):  # nothing predicts a row that is alone
        return _fit_member(data, kernel, near_far, member.alpha, np.arange(0))[0]


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
    inverse = distinct.row_to_distinct
    steps = ((targets > 0) - shares[inverse]) / variances[inverse]
    return (logits[inverse] + steps) / 2, alpha / (4 * variances[:, 0])
