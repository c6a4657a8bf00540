"""Ridge regression from sums: moments of features and targets, and their solutions."""

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import LinAlgError, cholesky, eigh
from scipy.linalg.lapack import dposv, dtrtri
from scipy.optimize import brentq

from .._arrays import (
    arithmetic,
    cast,
    is_array_api,
    like,
    namespace,
    rows_at_once,
    squared_norms,
    take,
    to_host,
)
from .._memory import check_fits
from .._sums import Memory, exp_max_one, transposed
from .._threads import Scratch
from ..features import in_range
from ._blocks import blocks_of

_FIRST_ROWS = 256  # used to find approximate means
# Large blocks, because adding up their products costs the squared number of columns per block.
_BLOCK, _PARTS = 2**20, 16
_GPU_ROWS = 2**14  # at most: errors of float32 sums grow with their length
_RUN = 8  # at most: blocks that a thread adds up alone, so that it seldom waits for the others
_HELD_RUNS, _HELD_NUMBERS = 16, 2**24  # of sums of runs, held at once
_SINGLE = 1e-7  # relative error of products in float32, with a margin
# Logarithms of the alphas to try, in units of the mean eigenvalue.
_LOG_ALPHAS, _STEP = np.linspace(-24.0, 14.0, 77, retstep=True)
_FLAT = 1e-6
_LEAST_SHARE = np.sqrt(np.finfo(float).eps)  # of a contrast of classes: less is decided anyway
_LEAST = 1e-290  # eigenvalue whose quotients by alphas are floats


def plain_features(feature_map, X, memory, n_more=0):
    """Return the features of rows, with rows of positive maps divided by their norm.

    The largest exponent of such a row is factored out first, so nothing vanishes or overflows.
    Features with signs on the host are followed by `n_more` columns, to be filled by the caller.
    """
    X = in_range(feature_map, X)
    is_written = not (feature_map.is_positive or feature_map.n_columns is None or is_array_api(X))
    with np.errstate(over="ignore", invalid="ignore"):
        if is_written:
            out = memory.features((X.shape[0], feature_map.n_columns + n_more), X.dtype)
            features = out[:, : feature_map.n_columns]
            if feature_map.level is None:
                feature_map.write_plain(X, features, memory.room)
            else:
                feature_map.write(X, features, memory.room)
                out *= math.exp(feature_map.level)  # several times as fast as a part of every row
            return out
        rows = memory.rows(feature_map, X)
        if rows.scale is not None:
            return rows.plain()
    xp, do = namespace(rows.values), arithmetic(rows.values)
    features = exp_max_one(rows.values)
    norms = xp.sqrt(squared_norms(features))[:, None]
    return do.divide(features, xp.where(norms > 0, norms, like(1.0, norms)))


def check_range(values):
    """Raise if features with signs have left the range of floats."""
    if not bool(namespace(values).all(namespace(values).isfinite(values))):
        raise ValueError(
            "Features of X, or their products, exceed the range of floats: use a smaller sigma, "
            "rows of float64, or a map with positive features, whose rows are normalised."
        )


# ---------------------------------------------------------------- moments


@dataclass(frozen=True, eq=False)
class Moments:
    """Weighted second moments of features and targets side by side, about their means.

    `merge` is associative and commutative to rounding; it changes neither side.

    Parameters
    ----------
    weight : float
        Sum of the weights.
    mean : ndarray of shape (M + T,)
        Means of the features, then of the targets.
    products : ndarray of shape (M + T, M + T)
        Sums of weight times products of deviations.
    unit : ndarray of shape (T,)
        Powers of 2 that the targets are divided by.
    """

    weight: float
    mean: np.ndarray
    products: np.ndarray
    unit: np.ndarray

    def __post_init__(self):
        with np.errstate(over="ignore"):
            total = self.weight + np.trace(self.products)
        if not np.isfinite(total):
            raise ValueError(
                "sample_weight, times squares of features, adds up to more than the largest float, "
                f"{np.finfo(float).max:.2g}: divide it, and alpha, by a number."
            )

    @property
    def n_columns(self):
        """Number of features."""
        return len(self.mean) - len(self.unit)

    @property
    def gram(self):
        """Products of features."""
        return self.products[: self.n_columns, : self.n_columns]

    @property
    def cross(self):
        """Products of features and targets, (M, T)."""
        return self.products[: self.n_columns, self.n_columns :]

    @property
    def squares(self):
        """Squares of the targets, (T,)."""
        return np.diagonal(self.products)[self.n_columns :]

    @property
    def together(self):
        """The moments of all rows, as `ClassMoments` has them, too."""
        return self

    def in_units(self, unit):
        """Return the same with targets in other units."""
        if np.array_equal(unit, self.unit):
            return self
        scale = np.concatenate([np.ones(self.n_columns), self.unit / unit])
        products = self.products * scale * scale[:, None]
        return replace(self, mean=self.mean * scale, products=products, unit=unit)

    def merge(self, other):
        """Return the moments of the rows of both."""
        unit = np.maximum(self.unit, other.unit)
        one, two = self.in_units(unit), other.in_units(unit)
        weight, gap = one.weight + two.weight, two.mean - one.mean
        with np.errstate(over="ignore"):
            products = one.products + two.products
            products += np.outer(one.weight * (two.weight / weight) * gap, gap)
        return Moments(weight, one.mean + two.weight / weight * gap, products, unit)

    @property
    def shares(self):
        """Weights of the targets' errors, in these units, in their mean in the largest unit."""
        return (self.unit / self.unit.max()) ** 2 / len(self.unit)

    def mean_errors(self, other, coef):
        """Return mean squared errors of predictions from other moments, in the largest unit.

        Parameters
        ----------
        other : Moments
            Moments that the coefficients come from, in the same units.
        coef : ndarray of shape (M, T, n_alphas)
            Coefficients.
        """
        # Coefficients may be only rounding, if alpha is lost in it.
        with np.errstate(over="ignore", invalid="ignore"):
            of_features = np.tensordot(self.gram, coef, 1) - 2 * self.cross[:, :, None]
            spread = np.einsum("mta,mta->ta", coef, of_features) + self.squares[:, None]
            gap, target_gap = np.split(self.mean - other.mean, [self.n_columns])
            offset = target_gap[:, None] - np.tensordot(gap, coef, 1)
            errors = self.shares @ (np.maximum(spread, 0.0) / self.weight + offset**2)
        return np.where(np.isnan(errors), np.inf, errors)


def bytes_of_moments(n_columns, n_targets):
    """Return how many bytes the moments of so many features and targets hold."""
    return 8 * (n_columns + n_targets) ** 2


def moments_of_rows(feature_map, X, targets, weights, least_alpha=0.0):
    """Return the moments of rows, computed from products of blocks.

    Parameters
    ----------
    feature_map : FeatureMap
        The map.
    X : array or sparse matrix of shape (n, d)
        Rows.
    targets : callable
        Returns the targets of a slice of rows, (n, T), in units of its ``unit``.
    weights : ndarray of shape (n,) or None
        Positive weights.
    least_alpha : float, default=0.0
        Their share of the smallest ridge that will be added. If products of float32 features may
        have errors of its size, they are computed in float64.
    """
    n, memory, room = X.shape[0], Memory(), Scratch()
    _, map_runs = blocks_of(feature_map, X)
    weight, weight_unit, heaviest = float(n), 1.0, None
    first = np.arange(min(n, _FIRST_ROWS))
    if weights is not None:
        weight_unit = 2.0 ** np.floor(np.log2(weights.max()))
        weights = weights / weight_unit
        weight = float(weights.sum())
        # They give the best estimate of the means, and distance from them costs digits.
        first = np.sort(np.argsort(-weights, kind="stable")[: len(first)])
        heaviest = weights[first]
    n_columns = feature_map.n_columns
    if n_columns is None:  # one row tells
        n_columns = plain_features(feature_map, take(X, first[:1]), memory).shape[1]
    n_bytes = bytes_of_moments(n_columns, len(targets.unit))
    check_fits(n_bytes, f"feature_map with {n_columns} columns", "their second moments")
    features = to_host(plain_features(feature_map, take(X, first), memory)).astype(np.float64)
    check_range(features)
    both = np.column_stack([features, targets(first)])
    shift = np.average(both, axis=0, weights=heaviest)
    total = np.zeros((len(shift) + 1, len(shift) + 1))
    with np.errstate(over="ignore", invalid="ignore"):
        trace = features.var(axis=0).sum() * weight * weight_unit
    is_double = least_alpha < _SINGLE * trace / n_columns
    centre = np.append(shift[:n_columns], np.zeros(len(total) - n_columns))

    def block(rows):
        features = plain_features(feature_map, X[rows, :], memory, len(total) - n_columns)
        xp = namespace(features)
        dtype = xp.float64 if is_double else features.dtype
        others = [targets(rows) - shift[n_columns:], np.ones((rows.stop - rows.start, 1))]
        if is_array_api(features):
            features = cast(features, dtype) - like(shift[:n_columns], features)
            table = xp.concat([features, *(like(values, features) for values in others)], axis=1)
        else:
            table = features  # with room for the others, if it could be had
            if features.dtype != dtype or features.shape[1] == n_columns:
                table = room((len(features), len(total)), dtype)
                table[:, :n_columns] = features[:, :n_columns]
            np.concatenate(others, axis=1, out=table[:, n_columns:], casting="same_kind")
            table -= centre.astype(dtype)  # twice as fast as from a part of every row
        if weights is not None:
            table = arithmetic(table).multiply(table, like(np.sqrt(weights[rows, None]), table))
        return to_host(transposed(table) @ table)

    def run(rows):
        moments = np.zeros_like(total)
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(rows.start, rows.stop, size):
                moments += block(slice(start, min(start + size, rows.stop)))
        return moments

    least, usual = n_columns, _BLOCK // n_columns
    most = max(usual, least, min(rows_at_once(X, n_columns, usual), _GPU_ROWS))
    size = min(max(-(-n // _PARTS), least), most)
    length = size * min(-(-n // (_PARTS * size)), _RUN)
    step = length * max(min(_HELD_RUNS, _HELD_NUMBERS // n_columns**2), 2)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, n, step):
            total += sum(map_runs(run, min(start + step, n), length, start))
    check_range(total)
    gap = total[-1, :-1] / weight
    with np.errstate(over="ignore"):
        products = (total[:-1, :-1] - np.outer(total[-1, :-1], gap)) * weight_unit
        weight = float(np.float64(weight) * weight_unit)
    return Moments(weight, shift + gap, products, targets.unit)


# ---------------------------------------------------------------- solutions


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
    """

    alpha: float
    coef: np.ndarray
    unit: np.ndarray
    intercept: np.ndarray
    root: np.ndarray | None
    mean: np.ndarray
    weight: float
    deviation: np.ndarray | None

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
        spread = squared_norms((features - like(self.mean, features)) @ like(self.root, features))
        if is_projected:
            spread = spread + xp.clip(1 - squared_norms(features), 0.0, 1.0) / self.alpha
        return xp.sqrt(spread[:, None] + 1 + 1 / self.weight) * like(self.deviation, spread)


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
    return Ridge(alpha, coef, moments.unit, intercept, root, means, moments.weight, deviation)


def _shifted(gram, alpha):
    shifted = gram.copy(order="F")
    shifted[np.diag_indices_from(shifted)] += alpha
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
    _, coef, info = dposv(_shifted(moments.gram, alpha), moments.cross, lower=1, overwrite_a=1)
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

    def solved_by_evidence(self):
        """Return the `Ridge` of largest marginal likelihood, with one alpha for all targets.

        The root of the derivative is sought, because the maximum is too flat to find exactly.
        """
        is_some = self.moments.squares > 0
        units = -np.frexp(self.moments.squares[is_some])[1]  # small shares of them must be floats
        explained, rest = (np.ldexp(x[..., is_some], units) for x in (self.explained, self.rest))
        freedom = self.moments.weight - 1
        size = self.values.mean() or 1.0

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
        alpha = float(size * np.exp(best))
        coef = self.vectors @ (self.sides / (self.values + alpha)[:, None])
        root = self.vectors / np.sqrt(self.values + alpha)
        deviation = _deviation(self.rest + parts(best)[0] @ self.explained, freedom)
        return ridge_of(self.moments, alpha, coef, root, deviation * self.moments.unit)
