"""Sine-cosine features of Matern kernels: one row, and two orthogonal rows of a block.

A row of frequencies is a Gaussian row times s, s^2 = 2 nu / chi2_{2 nu}. Along any direction, two
orthogonal rows have independent lengths times two entries of one unit vector, of which

    E[v_1^2k v_2^2l] = Gamma(d/2) (1/2)_k (1/2)_l / Gamma(d/2 + k + l).

Hankel's integral for 1 / Gamma separates k from l: for functions f = 1 - cos of both rows

    E[f(omega_i.Delta) f(omega_j.Delta)] = Gamma(d/2) / (2 pi i) int e^p p^(-d/2) F(p)^2 dp,
    F(p) = 1 - E[(1 + s^2 |Delta|^2 / (2p))^(-d/2)],

along a path from the lower left around 0 to the upper left. This form is ours.
"""

from functools import lru_cache

import numpy as np
from scipy.interpolate import make_interp_spline
from scipy.special import expm1, gammainc, gammaln, log1p

# Distances between which the mean of both rows is tabulated: below, it is a power of the distance;
# above, cosines of both rows are independent and have the mean 0.
_NEAREST, _FARTHEST = 1e-8, 1e5
_NODES, _DEGREE = 384, 7  # of a spline in the log of the distance: 3e-11, relative
_PATH = 20  # points of half of the path: 1e-12, relative


def matern_variance(distances, nu):
    """Return (1 + K(2 Delta) - 2 K(Delta)^2) / 2, the variance of one sine-cosine pair.

    Parameters
    ----------
    distances : ndarray
        Scaled distances |Delta|.
    nu : float
        Smoothness, 0.5, 1.5 or 2.5.
    """
    twice = 2 * np.sqrt(2 * nu) * distances
    # Incomplete gamma functions are what the exponentials leave after cancellation.
    return (gammainc(2 * nu, twice) + (nu == 2.5) * _decaying(twice, 4) / 36) / 2


def matern_pair(distances, n_features, nu):
    """Return the covariance of cos(omega_i.Delta) and cos(omega_j.Delta), two orthogonal rows.

    Parameters
    ----------
    distances : ndarray
        Scaled distances |Delta|.
    n_features : int
        Length d of the rows, at least 2.
    nu : float
        Smoothness, 0.5, 1.5 or 2.5.
    """
    scaled = np.sqrt(2 * nu) * distances
    complement = gammainc(nu + 0.5, scaled) + (nu == 2.5) * _decaying(scaled, 2) / 6  # 1 - K
    power = 2 if nu < 1 else 4
    tabulated = np.clip(distances, _NEAREST, _FARTHEST)
    mean = np.exp(_log_both_rows(n_features, nu)(np.log(tabulated)))
    mean *= np.minimum(distances / tabulated, 1.0) ** power
    return mean - complement**2


def _decaying(x, power):
    """Return x^power exp(-x)."""
    x = np.minimum(x, 1e3)
    return x**power * np.exp(-x)


@lru_cache(maxsize=32)
def _log_both_rows(n_features, nu):
    """Return a spline in log |Delta| of log E[(1 - cos omega_i.Delta) (1 - cos omega_j.Delta)]."""
    logs = np.linspace(np.log(_NEAREST), np.log(_FARTHEST), _NODES)
    # A parabola through the saddle point of e^p p^(-d/2), or to the right of 0.
    half = n_features / 2
    middle = max(half, 4.0)
    top = np.sqrt((38 + middle - half) / middle)  # where the integrand is e^-38 of its middle
    root = 1 + 1j * (np.arange(_PATH) + 0.5) * (top / _PATH)
    p = middle * root**2
    weights = np.exp(p - half * np.log(p) + gammaln(half)) * root
    weights /= weights.sum().real  # for F = 1
    # The mean over s by the trapezoidal rule in log x, x = chi2 / 2 of density x^(nu - 1) e^-x. Its
    # step is that of 2 log |Delta|, so that all means are sums over windows of one array.
    step = 2 * (logs[1] - logs[0])
    log_x = np.arange(4.5, -110.0, -step)
    shares = step * np.exp(nu * log_x - np.exp(log_x) - gammaln(nu))
    log_ratios = 2 * logs[0] - log_x[0] + step * np.arange(_NODES + len(log_x) - 1)
    ratios = np.multiply.outer(nu / (2 * p), np.exp(log_ratios))
    complements = -expm1(-half * log1p(ratios))
    means = np.array([np.correlate(complement, shares, "valid") for complement in complements])
    return make_interp_spline(logs, np.log((weights @ means**2).real), _DEGREE)


def log_trigonometric_variance(log_kernel, log_double):
    """Return log((1 + K(2 Delta) - 2 K(Delta)^2) / 2), the variance of one sine-cosine pair.

    Parameters
    ----------
    log_kernel, log_double : ndarray
        log K(Delta) and log K(2 Delta) of any shift-invariant kernel.
    """
    value = (np.expm1(log_double) - 2 * np.expm1(2 * log_kernel)) / 2
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(value, 0.0))
