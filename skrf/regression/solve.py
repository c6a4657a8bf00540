"""Solutions of ridge regressions from moments: of targets, of classes, and of pairs of classes."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise

import numpy as np
from scipy.linalg import LinAlgError, cholesky, eigh
from scipy.linalg.lapack import dposv, dtrtri
from scipy.optimize import brentq

from .._arrays import cast, like, namespace, squared_norms
from .._threads import run_all

# Logarithms of the alphas to try, in units of the largest eigenvalue.
_LOG_ALPHAS, _STEP = np.linspace(-28.0, 10.0, 77, retstep=True)
_FLAT = 1e-6
_LEAST_SHARE = np.sqrt(np.finfo(float).eps)  # of a contrast of classes: less is decided anyway
_LEAST = 1e-290  # eigenvalue whose quotients by alphas are floats
# Multiplications of the solutions for all pairs up to which they are worth it: about a minute.
_MOST_OPERATIONS = 2e12
TIE = 1e-5  # values so near to each other may differ by rounding alone, for float32 rows, too


@dataclass(frozen=True, eq=False)
class Ridge:
    """A solution: the posterior of a Bayesian linear regression with a flat intercept.

    Parameters
    ----------
    alpha : float
        The ridge added to the diagonal.
    coef : ndarray of shape (M, T)
        Coefficients, for targets in units.
    unit : ndarray of shape (T,)
        Powers of 2 that the targets are divided by.
    intercept : ndarray of shape (T,)
        Intercepts.
    root : ndarray of shape (M, M) or None
        R R' is the inverse of gram + alpha.
    mean : ndarray of shape (M,)
        Mean of the features.
    weight : float
        Sum of the weights.
    deviation : ndarray of shape (T,) or None
        Standard deviation of the noise; NaN if there are too few rows to estimate it.
    basis : ndarray of shape (M, r) or None
        Orthonormal columns that span the training rows, if the root is in these coordinates.
    """

    alpha: float
    coef: np.ndarray
    unit: np.ndarray
    intercept: np.ndarray
    root: np.ndarray | None
    mean: np.ndarray
    weight: float
    deviation: np.ndarray | None
    basis: np.ndarray | None

    @property
    def linear(self):
        """Coefficients (M, T) and intercepts, in the units of the targets."""
        return self.coef * self.unit, self.intercept

    def means(self, features):
        """Return the predictions for features, (n, T)."""
        predictions = features @ like(self.coef, features)
        predictions = cast(predictions, namespace(predictions).float64)
        return predictions * like(self.unit, predictions) + like(self.intercept, predictions)

    def values(self, features):
        """Return what classes are decided by: here the predictions."""
        return self.means(features)

    def deviations(self, features, is_projected=False):
        """Return the standard deviations of targets for features, (n, T).

        Of a kernel with K(x, x) = 1 that was projected on a few directions, what the features lack
        has the deviation of the prior: no row says anything about it.
        """
        xp = namespace(features)
        features = cast(features, xp.float64)
        spread = self._spread(features - like(self.mean, features))
        if is_projected:
            spread = spread + self._beyond(features)
        return xp.sqrt(spread[:, None] + 1 + 1 / self.weight) * like(self.deviation, spread)

    def covariances(self, features, is_projected=False):
        """Return the covariances of the targets of all rows, (n, n), of noise of variance 1."""
        centred, covariances = features - self.mean, 1 / self.weight
        coordinates = centred
        if self.basis is not None:
            coordinates = centred @ self.basis
            covariances += (centred @ centred.T - coordinates @ coordinates.T) / self.alpha
        rooted = coordinates @ self.root
        covariances += rooted @ rooted.T
        beyond = self._beyond(features) if is_projected else 0.0
        np.einsum("ii->i", covariances)[...] += 1 + beyond
        return covariances

    def _spread(self, features):
        """Return the variances that uncertain coefficients give to centred features."""
        if self.basis is None:
            return squared_norms(features @ like(self.root, features))
        coordinates, xp = features @ like(self.basis, features), namespace(features)
        # No row says anything about what is at right angles to all rows.
        rest = squared_norms(features) - squared_norms(coordinates)
        rest = xp.where(rest > 0, rest, like(0.0, rest)) / self.alpha
        return rest + squared_norms(coordinates @ like(self.root, features))

    def _beyond(self, features):
        """Return the variance of the prior for what projected features lack, one for each row."""
        xp = namespace(features)
        return xp.clip(1 - squared_norms(features), 0.0, 1.0) / self.alpha

    def lifted(self, basis):
        """Return the same for features, if this is for their coordinates in a basis."""
        return replace(self, coef=basis @ self.coef, mean=basis @ self.mean, basis=basis)

    def drawn(self, normal):
        """Return the coefficients and intercepts of functions from the posterior.

        Parameters
        ----------
        normal : ndarray of shape (M + 1, T, n_samples)
            Independent standard normal numbers.

        Returns
        -------
        coef : ndarray of shape (M, T, n_samples)
            Coefficients, in the units of the targets.
        intercept : ndarray of shape (T, n_samples)
            Intercepts.
        """
        # The symmetric root is unique, and the same in a basis of the rows.
        vectors, values, _ = np.linalg.svd(self.root)
        normal = normal * self.deviation[:, None]
        coordinates = normal[:-1]
        if self.basis is not None:
            coordinates = np.tensordot(self.basis.T, coordinates, 1)
        changes = np.tensordot((vectors * values) @ vectors.T, coordinates, 1)
        if self.basis is not None:
            changes = np.tensordot(self.basis, changes - coordinates / np.sqrt(self.alpha), 1)
            changes += normal[:-1] / np.sqrt(self.alpha)
        coef, intercept = self.linear
        offset = normal[-1] / np.sqrt(self.weight) - np.tensordot(self.mean, changes, 1)
        return coef[:, :, None] + changes, intercept[:, None] + offset


@dataclass(frozen=True, eq=False)
class Discriminants(Ridge):
    """Linear discriminants, which are combinations of the regressions on -1 and 1 for every class.

    They are logarithms of the classes' probabilities for rows scattered about the mean of their
    class with one covariance, that of the features within classes plus alpha. Discriminants of a
    contrast that the features nearly explain are large, so the regressions are combined in float64:
    their rounding is then the same for classes that differ in other contrasts.

    Parameters
    ----------
    turn : ndarray of shape (T, T)
        Multiplies the regressions.
    levels : ndarray of shape (T,)
        Is added to them.
    """

    turn: np.ndarray
    levels: np.ndarray

    @property
    def linear(self):
        """Coefficients and intercepts, up to a common term."""
        coef, intercept = super().linear
        return coef @ self.turn, intercept @ self.turn + self.levels

    def means(self, features):
        """Return the logarithms of the probabilities for features, (n, T)."""
        predictions = super().means(features)
        xp = namespace(predictions)
        predictions = predictions @ like(self.turn, predictions) + like(self.levels, predictions)
        predictions = predictions - xp.max(predictions, axis=1, keepdims=True)
        return predictions - xp.log(xp.sum(xp.exp(predictions), axis=1, keepdims=True))


def solved(moments, alpha, noise=None):
    """Return the `Ridge` of moments.

    Parameters
    ----------
    moments : Moments
        Of all rows.
    alpha : float
        The ridge.
    noise : float, default=None
        Variance of the noise of the targets; None estimates it.
    """
    coef, root = _root_solve(moments, alpha)
    fitted = np.einsum("mt,mt->t", moments.cross, coef) + alpha * np.square(coef).sum(axis=0)
    freedom = moments.weight - 1 - len(coef) + alpha * np.square(root).sum()
    deviation = _deviation(np.maximum(moments.squares - fitted, 0.0), freedom) * moments.unit
    if noise is not None:
        deviation = np.full(coef.shape[1], np.sqrt(noise))
    return ridge_of(moments, alpha, coef, root, deviation)


def discriminants(ridge, moments):
    """Return a `Ridge` of targets -1 and 1 for every class turned into `Discriminants`."""
    means, targets = np.split(moments.mean, [moments.n_columns])
    shares = (1 + targets) / 2
    # Classes without rows, or with no more weight than rounding, are left to the end.
    is_seen = shares > np.finfo(float).eps
    shares, cross = shares[is_seen], moments.cross[:, is_seen] / moments.weight
    roots = np.sqrt(shares)
    explained = cross.T @ ridge.coef[:, is_seen] / 4 / np.outer(roots, roots)
    # An eigenvalue is the share of a contrast of classes that the features do not explain.
    values, vectors = eigh(np.eye(len(roots)) - (explained + explained.T) / 2)
    values = np.maximum(values, _LEAST_SHARE)
    turn = (vectors / values) @ vectors.T / (2 * np.outer(roots, roots))
    halves = np.einsum("mt,mt->t", cross, ridge.coef[:, is_seen] @ turn) / (4 * shares)
    levels = np.log(shares) - halves - targets[is_seen] @ turn
    # The others get the mean of these and less, so they are never the largest.
    of_all = np.full((len(targets), len(targets)), 0.0)
    of_all[is_seen] = turn.mean(axis=1, keepdims=True)
    of_all[np.ix_(is_seen, is_seen)] = turn
    all_levels = np.full(len(targets), levels.mean() + np.log(np.finfo(float).eps))
    all_levels[is_seen] = levels
    return Discriminants(*vars(ridge).values(), of_all, all_levels)


def _deviation(squares, freedom):
    """Return standard deviations, NaN if there are no degrees of freedom."""
    return np.sqrt(squares / freedom) if freedom > 0 else np.full_like(squares, np.nan)


def ridge_of(moments, alpha, coef, root=None, deviation=None):
    """Return the `Ridge` of coefficients; without a root it has no standard deviations."""
    means, targets = np.split(moments.mean, [moments.n_columns])
    intercept = (targets - means @ coef) * moments.unit
    given = alpha, coef, moments.unit, intercept, root, means, moments.weight, deviation
    return Ridge(*given, basis=None)


def _shifted(gram, alpha, penalty=None):
    shifted = gram.T.copy(order="F")  # the same and, of rows that are contiguous, much faster
    if penalty is None:
        np.einsum("ii->i", shifted)[...] += alpha
    else:
        shifted += alpha * penalty
    return shifted


def _root_solve(moments, alpha):
    """Return the coefficients, and R with R R' the inverse of gram + alpha."""
    try:
        lower = cholesky(_shifted(moments.gram, alpha), lower=True, overwrite_a=True)
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
    of_mean = np.linalg.norm(rounding * moments.mean[: len(values)]) ** 2 * moments.weight
    return values > max(rounding * values[-1], of_mean, _LEAST), rounding


def solve(moments, alpha):
    """Return only the coefficients, (M, T), in the units of the moments."""
    shifted = _shifted(moments.gram, alpha, moments.penalty)
    _, coef, info = dposv(shifted, moments.cross, lower=1, overwrite_a=1)
    return _root_solve(moments, alpha)[0] if info else coef


class Spectrum:
    """Eigenvalues of the gram matrix, which give the solutions for all alphas at once.

    Parameters
    ----------
    moments : Moments
        Of all rows.
    """

    def __init__(self, moments):
        values, self.vectors = eigh(moments.gram, driver="evd")
        is_some, rounding = _beyond_rounding(moments, values)
        self.moments, self.values = moments, np.where(is_some, values, 0.0)
        self.sides = self.vectors.T @ moments.cross * is_some[:, None]
        self.explained = (self.sides / np.sqrt(np.where(is_some, values, 1.0))[:, None]) ** 2
        rest = moments.squares - self.explained.sum(axis=0)
        self.rest = np.where(rest > rounding * moments.squares, rest, 0.0)

    def cross_validation(self, alphas):
        """Return the mean squared errors of generalised cross-validation, like `mean_errors`.

        They are infinite if less than one degree of freedom is left.
        """
        shrunk = alphas / (self.values[:, None] + alphas)
        squares = self.rest[:, None] + self.explained.T @ shrunk**2
        left = self.moments.weight - 1 - np.sum(1 - shrunk, axis=0)
        divisor = np.where(left < 1, 1.0, left)
        errors = squares / divisor * (self.moments.weight / divisor)
        return np.where(left < 1, np.inf, self.moments.shares @ errors)

    def by_evidence(self):
        """Return the alpha of largest marginal likelihood, and -2 times the logarithm of that.

        There is one alpha for all targets, and the logarithm lacks a term that depends on the
        targets alone. The root of the derivative is sought, because the maximum is too flat to find
        exactly.
        """
        is_some = self.moments.squares > 0
        units = -np.frexp(self.moments.squares[is_some])[1]  # small shares of them must be floats
        explained, rest = (np.ldexp(x[..., is_some], units) for x in (self.explained, self.rest))
        freedom = self.moments.weight - 1
        size = self.values[-1] or 1.0

        def loss(log_alpha):
            shrunk, left = parts(log_alpha)
            return freedom * np.log(left).sum() - len(left) * np.log(shrunk).sum()

        def slope(log_alpha):
            shrunk, left = parts(log_alpha)
            by_alpha = (shrunk * (1 - shrunk)) @ explained
            return freedom * np.sum(by_alpha / left) - len(left) * np.sum(1 - shrunk)

        def parts(log_alpha):
            shrunk = 1 / (1 + self.values / (size * np.exp(log_alpha)))
            return shrunk, rest + shrunk @ explained

        # If all rows can be fitted exactly it is flat towards 0; choose the largest of equal ones.
        losses = np.array([loss(point) for point in _LOG_ALPHAS])
        best = _LOG_ALPHAS[losses <= losses.min() + _FLAT][-1]
        low, high = best - _STEP, best + _STEP
        if slope(low) < -_FLAT and slope(high) > _FLAT:
            best = brentq(slope, low, high, xtol=1e-12)
        return float(size * np.exp(best)), loss(best)

    def solved_by_evidence(self):
        """Return the `Ridge` of largest marginal likelihood."""
        alpha, _ = self.by_evidence()
        coef = self.vectors @ (self.sides / (self.values + alpha)[:, None])
        root = self.vectors / np.sqrt(self.values + alpha)
        squares = self.rest + (alpha / (self.values + alpha)) @ self.explained
        deviation = _deviation(squares, self.moments.weight - 1)
        return ridge_of(self.moments, alpha, coef, root, deviation * self.moments.unit)


# ---------------------------------------------------------------- pairs of classes


def n_operations(n_classes, n_columns):
    """Return how many multiplications the solutions for all pairs of classes take."""
    return n_classes * (n_classes - 1) / 2 * n_columns**3 / 3


def is_affordable(n_classes, n_columns):
    """Return whether one-vs-one is what ``decision="auto"`` may choose."""
    return n_operations(n_classes, n_columns) <= _MOST_OPERATIONS


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
        solutions = run_all(partial(pair_solutions, moments, [alpha]), pairs)
        coefs, intercepts = (
            np.concatenate(parts, axis=-1) for parts in zip(*solutions, strict=True)
        )
        return cls(alpha, coefs, intercepts, len(moments.classes))

    def lifted(self, basis):
        """Return the same for features, if this is for their coordinates in a basis."""
        return replace(self, coef=basis @ self.coef)

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
        """Return the votes for every class, (n, n_classes), with ties broken; see `votes`.

        Two classes have one value, (n, 1), which is that of their pair.
        """
        values = self.values(features)
        return values if self.n_classes == 2 else votes(values, self.n_classes)


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


def pair_solutions(moments, alphas, pair):
    """Return the coefficients (M, n_alphas) and the intercepts of a pair."""
    of_pair = moments.of_pair(*pair)
    if of_pair is None:
        sign = 1.0 if moments.classes[pair[0]] is None else -1.0
        return np.zeros((moments.n_columns, len(alphas))), np.full(len(alphas), sign)
    coefs = np.column_stack([solve(of_pair, alpha) for alpha in alphas])
    return coefs, of_pair.mean[-1] - of_pair.mean[:-1] @ coefs


def pair_values(gram, cross, codes, weights, alphas, n_classes, of_large=None):
    """Return the regressions of all pairs at other rows, solved in the rows of a pair.

    The same as by `PairRidges`, and cheaper where many pairs have fewer rows than features.

    Parameters
    ----------
    gram : ndarray of shape (n, n)
        Inner products of the features of the training rows: their kernel.
    cross : ndarray of shape (n_others, n)
        The kernel of other rows and the training rows.
    codes : ndarray of int of shape (n,)
        Classes of the training rows, in order.
    weights : ndarray of shape (n,) or None
        Their weights.
    alphas : sequence of float
        The ridges.
    n_classes : int
        Number of classes.
    of_large : callable, default=None
        Given a pair and its number of rows, returns its regressions, (n_others, n_alphas), or None
        if it is to be solved in its rows.

    Returns
    -------
    ndarray of shape (n_alphas, n_others, P)
        The regressions.
    """
    rows = slices_of(codes, n_classes)

    def of_pair(pair):
        one, two = (rows[k] for k in pair)
        n_rows = one.stop - one.start + two.stop - two.start
        known = of_large and of_large(pair, n_rows)
        if known is not None:
            return known
        block = np.block([[gram[i, j] for j in (one, two)] for i in (one, two)])
        duals, offsets = pair_duals(block, one, two, weights, alphas)
        duals = np.split(duals, [one.stop - one.start])
        return cross[:, one] @ duals[0] + cross[:, two] @ duals[1] + offsets

    return np.stack(run_all(of_pair, pairs_of(n_classes)), axis=2).transpose(1, 0, 2)


def slices_of(codes, n_classes):
    """Return the rows of every class as a slice, given the codes of all rows in order."""
    ends = np.searchsorted(codes, range(1, n_classes + 1))
    return [slice(*pair) for pair in pairwise([0, *ends.tolist()])]


def pair_duals(block, one, two, weights, alphas):
    """Return the regressions of a pair as coefficients of the kernel of its rows, and offsets.

    Parameters
    ----------
    block : ndarray of shape (n, n)
        Kernel of the rows of the first class and then the second; overwritten.
    one, two : slice
        Their places among the weights.
    weights : ndarray or None
        Weights of all rows.
    alphas : sequence of float
        The ridges.

    Returns
    -------
    duals : ndarray of shape (n, n_alphas)
        Coefficients.
    offsets : ndarray of shape (n_alphas,)
        What is added to the sums.
    """
    targets = np.repeat([-1.0, 1.0], [one.stop - one.start, two.stop - two.start])
    if one.start == one.stop or two.start == two.stop:  # a class without rows
        offset = 1.0 if one.start == one.stop else -1.0
        return np.zeros((len(targets), len(alphas))), np.full(len(alphas), offset)
    root = np.ones(len(targets))
    if weights is not None:
        root = np.sqrt(np.concatenate([weights[one], weights[two]]))
    share = root**2 / np.sum(root**2)
    mean = block @ share
    block -= mean
    block -= mean[:, None] - share @ mean
    if weights is not None:
        block *= root
        block *= root[:, None]
    target = share @ targets
    sides, duals = (targets - target) * root, []
    for alpha in alphas:
        _, dual, info = dposv(_shifted(block, alpha), sides, lower=1, overwrite_a=1)
        if info:  # the ridge is lost in rounding
            dual = np.linalg.lstsq(block, sides, rcond=None)[0]
        dual = dual * root
        duals.append(dual - share * dual.sum())
    duals = np.stack(duals, axis=1)
    return duals, target - mean @ duals
