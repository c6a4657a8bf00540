"""How coupled projections change the error: pair terms of blocks of rows.

Two rows of a block have independent chi_d norms and directions at a fixed cosine t, uniformly
rotated. With S = |omega_i + omega_j|^2 everything follows from the moments

    E[S^k] = 2^k Gamma(k + d) / Gamma(d) * E[(1 + t sin a)^k],

a of density proportional to sin(a)^(d - 1) on (0, pi). Sources: Reid et al., Simplex random
features, section 3, and Likhosherstov et al., Chefs' random tables, for the exponents.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.polynomial.legendre import leggauss
from scipy.special import gammaln, hyp1f1

from .geometry import PairGeometry

_TABLE_ENTRIES = 2**21


def log_mean_squared_error(
    nonlinearity: Any,
    geometry: PairGeometry,
    n_projections: int,
    blocks: dict[int, int],
    cosine: Callable[[int], float | None],
) -> np.ndarray:
    """Return the log of the mean squared error of the average over coupled projections.

    Parameters
    ----------
    nonlinearity : object
        With ``log_scale``, ``log_own`` and ``pair``, like those of `skrf.features.nonlinearities`.
        If it also has ``linear_part``, its pair terms leave out that share of the cosine times its
        own term.
    geometry : PairGeometry
        The pairs of inputs.
    n_projections : int
        Number of projections m.
    blocks : dict of int to int
        Maps a number of rows in a block to the number of such blocks.
    cosine : callable
        Maps the number of rows in a block to the cosine between its directions.

    Returns
    -------
    ndarray
        log MSE for every pair; -inf where the estimate is exact.

    See Also
    --------
    PairGeometry : The quantities that closed forms depend on.
    skrf.theory.kernel_variance : The variance for a fitted feature map.

    References
    ----------
    Reid et al., Simplex random features (2023), section 3; exponents: Likhosherstov et al., Chefs'
    random tables (2022).
    """
    log_own = nonlinearity.log_own(geometry) - np.log(n_projections)
    # Pair terms in units of the own term, so that no enormous or tiny variance is lost.
    unit = np.where(np.isneginf(log_own), np.inf, log_own)
    gain, cosines, left = 0.0, 0.0, 1.0
    for rows, count in blocks.items():
        if rows > 1:
            t, share = cosine(rows), count * rows * (rows - 1) / n_projections**2
            gain = gain + share * nonlinearity.pair(geometry, t, unit)
            cosines += count * rows * (t / (1 / (rows - 1)))  # of a simplex -count * rows, exactly
    if hasattr(nonlinearity, "linear_part"):
        left = 1 + cosines / n_projections * nonlinearity.linear_part(geometry)
    # Rounding may miss a gain of -1 (an exact estimate).
    with np.errstate(divide="ignore"):
        return nonlinearity.log_scale(geometry) + log_own + np.log(np.maximum(left + gain, 0.0))


def exponential_pair(v2, n_features, cosine, log_unit=0.0, *, linear=True):
    """Return (E[exp((omega_i + omega_j).z - |z|^2)] - 1) exp(-log_unit) at |z|^2 = v2.

    The value is the mean over k ~ Poisson(v2) of r_k - 1, where r_k is E[S^k] over its value for
    independent rows, so no two large numbers are subtracted. The term k = 1 is odd in the cosine.
    With ``linear=False`` it is left out, for means over both signs, where it cancels but would
    dominate the others at small v2.
    """
    v2 = np.asarray(v2, dtype=np.float64)
    u = v2.ravel()
    unit = np.broadcast_to(log_unit, v2.shape).ravel()
    # The term lies in [-1, 0] for a cosine that is not positive, and is below rounding against an
    # own term above e^60. Otherwise it grows like the own term, but not for long: lengths differ.
    u = np.minimum(u, 60.0 if cosine <= 0 else 60.0 + n_features)
    order = np.argsort(u, kind="stable")
    out = np.empty_like(u)
    start = 0
    while start < len(u):
        # The mass of r_k Poisson(u) lies at (1 + t) u or below; the largest u sets the table.
        top = u[order[min(start + 255, len(u) - 1)]] * (1 + max(cosine, 0.0))
        last = int(top + 10 * np.sqrt(top) + 50)
        rows = order[start : start + min(256, max(1, _TABLE_ENTRIES // last))]
        start += len(rows)
        k = np.arange(1, last + 1)
        log_ratio = _log_moment_ratios(last, n_features, float(cosine))
        # r - 1 = -expm1(-log r) r where r > 1, so that r itself may overflow.
        size = np.where(log_ratio > 0, -np.expm1(-log_ratio), np.expm1(log_ratio))
        with np.errstate(divide="ignore"):
            logs = k * np.log(u[rows])[:, None] - u[rows][:, None] - gammaln(k + 1)
        logs += np.maximum(log_ratio, 0.0) - unit[rows][:, None]
        first = 0 if linear else 1
        out[rows] = np.exp(logs[:, first:]) @ size[first:]
    return out.reshape(v2.shape)


def cosine_pair(delta2, n_features, cosine, log_unit=0.0):
    """Return (E[cos((omega_i + omega_j).Delta)] - exp(-|Delta|^2)) exp(-log_unit).

    Averaged over the sign of omega_j, as sine-cosine features require. Up to |Delta| = 2 the
    moment series is used, which loses nothing; beyond, the mean over the angle of
    1F1(d; d/2; -(1 + t sin a) |Delta|^2 / 2), with an absolute error of about 1e-14.
    """
    delta2 = np.asarray(delta2, dtype=np.float64)
    out = np.empty_like(delta2)
    near = delta2 <= 4.0
    unit = np.broadcast_to(log_unit, delta2.shape)
    k = np.arange(2, 80)  # the first one is odd in the cosine
    excess = sum(np.expm1(_log_moment_ratios(79, n_features, float(t))) for t in (cosine, -cosine))
    with np.errstate(divide="ignore"):
        logs = k * np.log(delta2[near])[:, None] - gammaln(k + 1)
    # Combined in one exponent, because both may leave the range of floats.
    powers = np.exp(np.where(logs > -np.inf, logs - unit[near][:, None], -np.inf))
    out[near] = powers @ (excess[1:] / 2 * (-1.0) ** k)
    if not near.all():
        out[~near] = _mean_cosine(np.sqrt(delta2[~near]), n_features, cosine)
        out[~near] -= np.exp(-delta2[~near])
        out[~near] *= np.exp(-unit[~near])
    return out


@lru_cache(maxsize=64)
def _log_moment_ratios(last, n_features, cosine):
    """Return log r_k for k = 1, ..., last: E[S^k] over its value for independent rows."""
    d = n_features
    steps = np.arange(last)
    # prod_j (d + j) / (d + 2j) from ratios near one: exactly 1 at k = 1.
    orthogonal = np.cumsum(np.log1p(-steps / (d + 2.0 * steps)))
    if cosine == 0:
        return orthogonal
    sines, weights = _angle_rule(d)
    with np.errstate(divide="ignore"):
        log_base = np.log1p(cosine * sines)
    tilt = np.empty(last)
    for start in range(0, last, 1024):
        k = np.arange(start + 1, min(start + 1024, last) + 1)
        logs = np.multiply.outer(k, log_base)
        top = logs.max(axis=1)
        # log mean = top + log1p(mean of expm1(logs - top)): exact where all logs are small.
        mean = np.expm1(logs - top[:, None]) @ weights
        with np.errstate(divide="ignore"):
            tilt[k - 1] = top + np.log1p(np.maximum(mean, -1.0))
    return orthogonal + tilt


@lru_cache(maxsize=32)
def _angle_rule(n_features):
    """Return nodes sin a and weights of the mean over the angle (Gauss-Legendre on (0, pi))."""
    # The density has width d^(-1/2), and powers of (1 + t sin a) narrow it: resolve both.
    nodes, weights = leggauss(256 + 24 * int(np.sqrt(n_features)))
    sines = np.sin(np.pi * (nodes + 1) / 2)
    logs = np.log(weights) + (n_features - 1) * np.log(sines)
    weights = np.exp(logs - logs.max())
    return sines, weights / weights.sum()


def _decay(n_features, squares):
    """Return 1F1(d; d/2; -squares); SciPy's never returns for large squares and even d."""
    if n_features > 1:  # less than 1e-15 from here on
        squares = np.minimum(squares, 1e5)
    return hyp1f1(n_features, n_features / 2, -squares)


def _mean_cosine(delta, n_features, cosine):
    if cosine == 0:
        return _decay(n_features, delta**2 / 2)
    sines, weights = _angle_rule(n_features)
    stretch = np.concatenate([1 + cosine * sines, 1 - cosine * sines]) / 2

    def at(points):
        values = _decay(n_features, np.multiply.outer(points**2, stretch))
        return values @ np.concatenate([weights, weights]) / 2

    # A smooth function of one number: for many pairs, interpolate.
    low, high = 2.0, float(delta.max())
    degree = int(64 + 8 * (high - low))
    if delta.size <= degree:
        return at(delta)
    series = chebyshev.chebinterpolate(lambda s: at(low + (s + 1) * (high - low) / 2), degree)
    return chebyshev.chebval(2 * (delta - low) / (high - low) - 1, series)
