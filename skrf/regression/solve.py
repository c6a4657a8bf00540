"""Solutions of ridge regressions, from moments or in rows, for one alpha or for many."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.linalg import LinAlgError, cholesky, eigh
from scipy.linalg.lapack import dposv, dtrtri
from scipy.optimize import brentq

from .._arrays import cast, like, namespace, squared_norms
from .._threads import run_all

# Logarithms of the alphas to try, in units of the largest eigenvalue.
_LOG_ALPHAS, _STEP = np.linspace(-28.0, 10.0, 77, retstep=True)
_FLAT = 1e-6
_LEAST = 1e-290  # eigenvalue whose quotients by alphas are floats


@dataclass(frozen=True, eq=False)
class Solution:
    """Ridge regressions that share features and alpha.

    Parameters
    ----------
    alpha : float
        The ridge added to the diagonal.
    coef : ndarray of shape (M, V)
        Coefficients, for targets in units.
    unit : ndarray of shape (V,)
        Powers of 2 that the targets are divided by.
    intercept : ndarray of shape (V,)
        Intercepts.
    shares : ndarray of shape (K,), default=None
        Shares of the classes in the weights, where targets are those of classes.
    class_values : ndarray of shape (K, V), default=None
        Values at the mean features of the classes, less those at the mean of all rows.
    posterior : Posterior, default=None
        How uncertain coefficients are.
    """

    alpha: float
    coef: np.ndarray
    unit: np.ndarray
    intercept: np.ndarray
    shares: np.ndarray | None = None
    class_values: np.ndarray | None = None
    posterior: "Posterior | None" = None
    reads_rows = False  # whether values depend on the rows as well as on their features

    @property
    def linear(self):
        """Coefficients (M, V) and intercepts, in the units of the targets."""
        return self.coef * self.unit, self.intercept

    def values_at(self, features, X):
        """Return the regressions at rows, (n, V), given their features."""
        values = features @ like(self.coef, features)
        values = cast(values, namespace(values).float64)
        return values * like(self.unit, values) + like(self.intercept, values)

    def deviations_at(self, features, X, is_projected):
        """Return the standard deviations of targets at rows, (n, T); see `Posterior`."""
        return self.posterior.deviations(features, is_projected)

    def covariances_at(self, features, X, feature_map):
        """Return the covariances of the targets at rows, (n, n); see `Posterior`."""
        beyond = None
        if feature_map.is_projected:
            landmarks, rows = feature_map.projected(X)
            beyond = landmarks.residual(rows, features)
        return self.posterior.covariances(features, beyond)


def values_of(solutions, features):
    """Return the regressions of solutions for several alphas at features, (n_alphas, n, V)."""
    coef = np.concatenate([solution.coef for solution in solutions], axis=1)
    values = (features @ coef).reshape(len(features), len(solutions), -1).transpose(1, 0, 2)
    intercepts = np.stack([solution.intercept for solution in solutions])
    return values * solutions[0].unit + intercepts[:, None]


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is known of the coefficients of a Bayesian linear regression with a flat intercept.

    Coefficients have the prior variance noise / (s alpha), rows count s times their weight, and
    the mean of the targets is known from F rows; see `Sizes`.

    Parameters
    ----------
    root : ndarray of shape (M, M)
        R R' is the inverse of s (gram + alpha).
    mean : ndarray of shape (M,)
        Mean of the features.
    freedom : float
        F.
    prior : float
        1 / (s alpha).
    deviation : ndarray of shape (T,)
        Standard deviations of the noise; NaN if there are too few rows to estimate it.
    """

    root: np.ndarray
    mean: np.ndarray
    freedom: float
    prior: float
    deviation: np.ndarray

    def deviations(self, features, is_projected=False):
        """Return the standard deviations of targets for features, (n, T).

        Of a kernel with K(x, x) = 1 that was projected on a few directions, what the features lack
        has the deviation of the prior: no row says anything about it.
        """
        xp = namespace(features)
        features = cast(features, xp.float64)
        centred = features - like(self.mean, features)
        spread = squared_norms(centred @ like(self.root, features))
        if is_projected:
            spread = spread + xp.clip(1 - squared_norms(features), 0.0, 1.0) * self.prior
        return xp.sqrt(spread[:, None] + 1 + 1 / self.freedom) * like(self.deviation, spread)

    def covariances(self, features, beyond=None):
        """Return the covariances of the targets of all rows, (n, n), of noise of variance 1.

        Parameters
        ----------
        features : ndarray of shape (n, M)
            The rows.
        beyond : ndarray of shape (n, n), default=None
            The kernel of the rows less the products of their features.
        """
        rooted = (features - self.mean) @ self.root
        covariances = rooted @ rooted.T + 1 / self.freedom
        if beyond is not None:
            covariances += beyond * self.prior
        np.einsum("ii->i", covariances)[...] += 1
        return covariances

    def drawn(self, normal):
        """Return the changes of coefficients (M, T, n) and intercepts (T, n) in drawn functions.

        Parameters
        ----------
        normal : ndarray of shape (M + 1, T, n)
            Independent standard normal numbers.
        """
        # The symmetric root is unique.
        vectors, values, _ = np.linalg.svd(self.root)
        normal = normal * self.deviation[:, None]
        changes = np.tensordot((vectors * values) @ vectors.T, normal[:-1], 1)
        offset = normal[-1] / np.sqrt(self.freedom) - np.tensordot(self.mean, changes, 1)
        return changes, offset


def solution_of(moments, alpha, coef, posterior):
    """Return the `Solution` with given coefficients and their posterior."""
    features, targets = moments.means
    intercept = (targets - features @ coef) * moments.unit
    return Solution(alpha, coef, moments.unit, intercept, posterior=posterior)


def solve_cholesky(moments, alphas):
    """Return (G + alpha)^-1 C for all alphas, each (M, T), in the units of the moments."""
    coefs = []
    for alpha in alphas:
        _, coef, info = dposv(shifted(moments.gram, alpha), moments.cross, lower=1, overwrite_a=1)
        coefs.append(_solve_with_root(moments, alpha)[0] if info else coef)
    return coefs


def solve_posterior(moments, alpha, sizes, noise=None):
    """Return the `Solution` with its posterior.

    Parameters
    ----------
    moments : RidgeMoments
        Of all rows.
    alpha : float
        The ridge.
    sizes : Sizes
        What the rows are worth.
    noise : float, default=None
        Variance of the noise, which is then alpha, too; None estimates it.
    """
    coef, root = _solve_with_root(moments, alpha)
    if noise is not None:
        mean, deviation = moments.means[0], np.full(coef.shape[1], np.sqrt(noise))
        posterior = Posterior(root, mean, moments.total, 1 / alpha, deviation)
        return solution_of(moments, alpha, coef, posterior)
    # Rounding of coefficients moves this by alpha times itself: shorter forms lose small residuals.
    fitted = np.einsum("mt,mt->t", 2 * moments.cross - moments.gram @ coef, coef)
    squares = np.maximum(moments.squares - fitted, 0.0)
    lost = len(coef) - alpha * np.square(root).sum()
    return _with_posterior(moments, alpha, coef, root, squares, sizes, lost)


def _with_posterior(moments, alpha, coef, root, squares, sizes, lost=0.0):
    """Return the `Solution` whose noise is estimated from squares about the fit."""
    freedom = sizes.freedom - 1 - lost
    deviation = np.full_like(squares, np.nan)
    if freedom > 0:
        deviation = np.sqrt(sizes.scale * squares / freedom) * moments.unit
    root, prior = root / np.sqrt(sizes.scale), 1 / (sizes.scale * alpha)
    posterior = Posterior(root, moments.means[0], sizes.freedom, prior, deviation)
    return solution_of(moments, alpha, coef, posterior)


def solve_problems(moments, problems, alphas):
    """Return a `Solution` of all problems for every alpha, from the moments of every class.

    Parameters
    ----------
    moments : RidgeMoments
        Of every class, or of all rows with the targets of a single problem.
    problems : sequence of Problem
        What is solved for.
    alphas : sequence of float
        The ridges.
    """
    if len(moments.weight) == 1:  # of all rows, with their targets
        return _of_targets(moments, alphas)
    shares = moments.weight / moments.total
    gaps = moments.mean - shares @ moments.mean
    gaps[moments.weight == 0] = 0.0

    def of_problem(problem):
        if problem.lacks_a_side(moments.weight):
            level = problem.only_target(moments.weight)
            nothing = np.zeros((moments.n_columns, 1))
            return [(nothing, level)] * len(alphas)
        pooled = moments.pooled(problem.groups, problem.targets)
        return [(solution.coef, solution.intercept) for solution in _of_targets(pooled, alphas)]

    solved = run_all(of_problem, problems)
    solutions = []
    for number, alpha in enumerate(alphas):
        coef, intercept = (
            np.concatenate(of_problems, axis=-1)
            for of_problems in zip(*(of_alphas[number] for of_alphas in solved), strict=True)
        )
        unit = np.ones(len(intercept))
        solutions.append(Solution(alpha, coef, unit, intercept, shares, gaps @ coef))
    return solutions


def _of_targets(moments, alphas):
    """Return a `Solution` for targets of all rows, which may be -1 and 1 for every class."""
    features, targets = moments.means
    shares = (1 + targets) / 2
    sizes = 2 * moments.total * shares
    gaps = np.divide(moments.cross, sizes, out=np.zeros_like(moments.cross), where=sizes > 0).T
    solutions = []
    for alpha, coef in zip(alphas, solve_cholesky(moments, alphas), strict=True):
        intercept = (targets - features @ coef) * moments.unit
        solutions.append(Solution(alpha, coef, moments.unit, intercept, shares, gaps @ coef))
    return solutions


def shifted(gram, alpha):
    """Return a matrix plus alpha on the diagonal, as a copy that may be overwritten."""
    summed = gram.T.copy(order="F")  # the same and, of rows that are contiguous, much faster
    np.einsum("ii->i", summed)[...] += alpha
    return summed


def _solve_with_root(moments, alpha):
    """Return the coefficients, and R with R R' the inverse of gram + alpha."""
    try:
        lower = cholesky(shifted(moments.gram, alpha), lower=True, overwrite_a=True)
        root = dtrtri(lower, lower=1)[0].T
        sides = root.T @ moments.cross
    except LinAlgError:  # alpha is lost in rounding
        values, vectors = eigh(moments.gram, driver="evd")
        is_some, _ = _beyond_rounding(moments, values)
        root = vectors / np.sqrt(np.where(is_some, values, 0.0) + alpha)
        sides = root.T @ moments.cross * is_some[:, None]
    return root @ sides, root


def _beyond_rounding(moments, values):
    """Return which eigenvalues exceed rounding, and its size relative to the largest.

    The others are set to 0, and so are coefficients in those directions.
    """
    rounding = len(values) * np.finfo(float).eps
    of_mean = np.linalg.norm(rounding * moments.means[0]) ** 2 * moments.total
    return values > max(rounding * values[-1], of_mean, _LEAST), rounding


class Spectrum:
    """Eigenvalues of the gram matrix, which give the solutions for all alphas at once.

    Parameters
    ----------
    moments : RidgeMoments
        Of all rows.
    """

    def __init__(self, moments):
        values, self.vectors = eigh(moments.gram, driver="evd")
        is_some, rounding = _beyond_rounding(moments, values)
        self.moments, self.values = moments, np.where(is_some, values, 0.0)
        self.sides = self.vectors.T @ moments.cross * is_some[:, None]
        self.explained = (self.sides / np.sqrt(np.where(is_some, values, 1.0))[:, None]) ** 2
        unexplained = moments.squares - self.explained.sum(axis=0)
        self.unexplained = np.where(unexplained > rounding * moments.squares, unexplained, 0.0)

    def shrunk(self, alphas):
        """Return the inverses of the eigenvalues plus every alpha, (M, n_alphas)."""
        return (self.values > 0)[:, None] / (self.values[:, None] + alphas)

    def cross_validation(self, alphas):
        """Return mean squared errors of generalised cross-validation, in the largest unit.

        They are infinite if less than one degree of freedom is left.
        """
        shrunk, weight = alphas / (self.values[:, None] + alphas), self.moments.total
        squares = self.unexplained[:, None] + self.explained.T @ shrunk**2
        left = weight - 1 - np.sum(1 - shrunk, axis=0)
        divisor = np.where(left < 1, 1.0, left)
        errors = squares / divisor * (weight / divisor)
        return np.where(left < 1, np.inf, self.moments.shares @ errors)

    def by_evidence(self, sizes):
        """Return the alpha of largest marginal likelihood, and -2 times the logarithm of that.

        There is one alpha for all targets, and the logarithm lacks a term that depends on the
        targets alone. The root of the derivative is sought, because the maximum is too flat to find
        exactly. Moments times s have the same shares of eigenvalues in alphas times s, so s does
        not enter.
        """
        is_some = self.moments.squares > 0
        units = -np.frexp(self.moments.squares[is_some])[1]  # small shares of them must be floats
        explained, unexplained = (
            np.ldexp(x[..., is_some], units) for x in (self.explained, self.unexplained)
        )
        freedom, size = sizes.freedom - 1, self.values[-1] or 1.0

        def loss(log_alpha):
            shrunk, left = shares_and_squares(log_alpha)
            return freedom * np.log(left).sum() - len(left) * np.log(shrunk).sum()

        def slope(log_alpha):
            shrunk, left = shares_and_squares(log_alpha)
            by_alpha = (shrunk * (1 - shrunk)) @ explained
            return freedom * np.sum(by_alpha / left) - len(left) * np.sum(1 - shrunk)

        def shares_and_squares(log_alpha):
            shrunk = 1 / (1 + self.values / (size * np.exp(log_alpha)))
            return shrunk, unexplained + shrunk @ explained

        # If all rows can be fitted exactly it is flat towards 0; choose the largest of equal ones.
        losses = np.array([loss(point) for point in _LOG_ALPHAS])
        best = _LOG_ALPHAS[losses <= losses.min() + _FLAT][-1]
        low, high = best - _STEP, best + _STEP
        if slope(low) < -_FLAT and slope(high) > _FLAT:
            best = brentq(slope, low, high, xtol=1e-12)
        return float(size * np.exp(best)), loss(best)

    def solved_by_evidence(self, sizes):
        """Return the `Solution` of largest marginal likelihood, with its posterior."""
        alpha, _ = self.by_evidence(sizes)
        coef = self.vectors @ (self.sides / (self.values + alpha)[:, None])
        root = self.vectors / np.sqrt(self.values + alpha)
        squares = self.unexplained + (alpha / (self.values + alpha)) @ self.explained
        return _with_posterior(self.moments, alpha, coef, root, squares, sizes)


# ---------------------------------------------------------------- regressions in rows


@dataclass(frozen=True, eq=False)
class RowSystem:
    """Rows in the order of their classes, and the kernel between them.

    Parameters
    ----------
    kernel : callable
        Returns the kernel of the rows of two slices.
    codes : ndarray of int of shape (n,)
        Classes of the rows, in order.
    weights : ndarray of shape (n,) or None
        Their weights.
    n_classes : int
        Number of classes.
    """

    kernel: Callable
    codes: np.ndarray
    weights: np.ndarray | None
    n_classes: int

    @classmethod
    def of_gram(cls, gram, codes, weights, n_classes):
        """Return the system of rows whose kernel is known."""
        return cls(lambda first, second: gram[first, second], codes, weights, n_classes)

    def solve_duals(self, problems, alphas):
        """Return, for every problem, slices of rows, their coefficients and offsets.

        These are those of the kernel with each row, (n, T, n_alphas), and (T, n_alphas).
        """
        ends = np.searchsorted(self.codes, range(1, self.n_classes + 1))
        slices = [slice(*pair) for pair in pairwise([0, *ends.tolist()])]
        counts = np.bincount(self.codes, minlength=self.n_classes)

        def of_problem(problem):
            rows, n_rows = [slices[k] for k in problem.groups], counts[problem.groups]
            targets = np.repeat(problem.targets, n_rows, axis=0)
            if problem.lacks_a_side(counts):
                offset = np.repeat(problem.only_target(counts)[:, None], len(alphas), axis=1)
                return rows, np.zeros((*targets.shape, len(alphas))), offset
            block = self._block(rows, np.cumsum([0, *n_rows]))
            weights = None
            if self.weights is not None:
                weights = self.weights[np.r_[tuple(rows)]]
            return rows, *duals_of(block, targets, weights, alphas)

        return run_all(of_problem, problems)

    def _block(self, rows, ends):
        """Return the kernel of the rows of some slices."""
        block = np.empty((ends[-1], ends[-1]))
        places = [slice(*pair) for pair in pairwise(ends.tolist())]
        for i, first in enumerate(places):
            for j, second in enumerate(places[: i + 1]):
                block[first, second] = self.kernel(rows[i], rows[j])
                block[second, first] = block[first, second].T
        return block

    def values(self, cross, problems, alphas):
        """Return the regressions of every problem at other rows, each (n_alphas, n_others, T).

        Parameters
        ----------
        cross : ndarray of shape (n_others, n)
            The kernel of other rows and these.
        problems : sequence of Problem
            What is solved for.
        alphas : sequence of float
            The ridges.
        """
        of_problems = []
        for rows, duals, offsets in self.solve_duals(problems, alphas):
            values = np.tensordot(cross[:, np.r_[tuple(rows)]], duals, 1) + offsets
            of_problems.append(np.moveaxis(values, 2, 0))
        return of_problems


def duals_of(block, targets, weights, alphas):
    """Return ridge regressions as coefficients of the kernel of their rows, and offsets.

    Parameters
    ----------
    block : ndarray of shape (n, n)
        Kernel of the rows; overwritten.
    targets : ndarray of shape (n, T)
        Their targets.
    weights : ndarray of shape (n,) or None
        Their weights.
    alphas : sequence of float
        The ridges.

    Returns
    -------
    duals : ndarray of shape (n, T, n_alphas)
        Coefficients, whose sum is 0.
    offsets : ndarray of shape (T, n_alphas)
        What is added to the sums.
    """
    root = np.ones(len(targets)) if weights is None else np.sqrt(weights)
    share = root**2 / np.sum(root**2)
    mean = block @ share
    block -= mean
    block -= mean[:, None] - share @ mean
    if weights is not None:
        block *= root
        block *= root[:, None]
    level = share @ targets
    sides, duals = (targets - level) * root[:, None], []
    for alpha in alphas:
        _, dual, info = dposv(shifted(block, alpha), sides, lower=1, overwrite_a=1)
        if info:  # the ridge is lost in rounding
            dual = np.linalg.lstsq(block, sides, rcond=None)[0]
        dual = dual * root[:, None]
        duals.append(dual - share[:, None] * dual.sum(axis=0))
    duals = np.stack(duals, axis=2)
    return duals, level[:, None] - np.tensordot(mean, duals, 1)
