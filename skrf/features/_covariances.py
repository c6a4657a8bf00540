"""Closed forms for random combinations of estimators of one kernel."""

import numpy as np
from scipy.special import logsumexp

from .exponential import Exponential
from .positive import Hyperbolic
from .trigonometric import SineCosine


def hybrid_log_variance(moments, log_variances, covariances):
    """Return the log variance of sum_k l_k E_k, weights l_k that add up to 1, independent of E_k.

    Parameters
    ----------
    moments : ndarray of shape (p + 1, p + 1, ...)
        E l_k l_j.
    log_variances : sequence of ndarray
        Log variances of the E_k, all unbiased for the kernel.
    covariances : dict of tuple of int to tuple of ndarray
        For k < j: Cov(E_k, E_j) over a unit, and the log of the unit. Missing pairs are
        independent.

    Returns
    -------
    ndarray
        log Var = log sum_kj E[l_k l_j] Cov(E_k, E_j). Source: Choromanski et al., Hybrid random
        features (2022), theorem 3.1 for two independent estimators.
    """
    terms = [(moments[k, k], log_variance) for k, log_variance in enumerate(log_variances)]
    terms += [(2 * moments[pair] * value, unit) for pair, (value, unit) in covariances.items()]
    with np.errstate(divide="ignore"):
        logs = np.stack([np.log(np.abs(factor)) + unit for factor, unit in terms])
    total, sign = logsumexp(
        logs,
        axis=0,
        b=np.stack([np.sign(log_variance) for log_variance, _ in terms]),
        return_sign=True,
    )
    return np.where(sign > 0, total, -np.inf)


def is_covariance_known(*nonlinearities):
    """Return whether `shared_covariance` supports these nonlinearities."""
    return {type(each) for each in nonlinearities} <= {Exponential, Hyperbolic, SineCosine}


def shared_covariance(nonlinearities, geometry, norm_gap):
    """Return the covariance of two estimates that share a projection, in a unit, and its log.

    Exponentials are exp(2A |w|^2 + B w.z) up to constants, with z = x + y and B^2 = b = 1 - 4A;
    cosines are cos(w.(x - y)). So all means of products are Gaussian integrals.

    Parameters
    ----------
    nonlinearities : tuple of two nonlinearities
        Two of Exponential, Hyperbolic and SineCosine.
    geometry : PairGeometry
        Of all pairs.
    norm_gap : ndarray
        |x|^2 - |y|^2 of all pairs.

    Returns
    -------
    tuple of ndarray
        The covariance of all pairs over its unit, and the log of the unit.
    """
    first, second = nonlinearities
    if first == second:  # one estimate twice
        unit = first.log_scale(geometry) + first.log_own(geometry)
        return np.ones_like(unit), unit
    shapes = [_exponents(each) for each in nonlinearities if not isinstance(each, SineCosine)]
    if len(shapes) == 1:
        b = shapes[0][0]
        excess = geometry.difference2 / 2 * (1 - 1 / b)
        value = -2 * np.sin(norm_gap / (2 * np.sqrt(b))) ** 2 - np.expm1(-excess)
        return value, excess - geometry.difference2
    (b, slopes), (c, other_slopes) = shapes
    s = b + c - 1
    spread = geometry.n_features / 2 * np.log1p((b - 1) * (c - 1) / s)
    deltas = np.stack(
        [
            spread + geometry.sum2 * ((slope + other_slope) ** 2 / (2 * s) - 1)
            for slope in slopes
            for other_slope in other_slopes
        ]
    )
    top = np.maximum(deltas.max(axis=0), 0.0)
    sizes = np.exp(np.maximum(deltas, 0.0) - top)  # expm1(delta) = +-size expm1(-|delta|)
    value = np.mean(np.sign(deltas) * sizes * -np.expm1(-np.abs(deltas)), axis=0)
    return value, top - geometry.difference2


def _exponents(nonlinearity):
    """Return b and the multipliers of w.z in the terms that an estimate averages."""
    if isinstance(nonlinearity, Hyperbolic):
        return 1.0, (1.0, -1.0)
    return 1 - 4 * nonlinearity.A, (nonlinearity.slope,)
