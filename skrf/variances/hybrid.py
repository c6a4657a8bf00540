"""Closed form for a random convex combination of two estimators of one kernel."""

import numpy as np
from scipy.special import logsumexp


def hybrid_log_variance(mean, mean_square, log_first, log_second, covariance, log_scale):
    """Return the log variance of lam P + (1 - lam) T, lam independent of P and T.

    Parameters
    ----------
    mean, mean_square : ndarray
        E lam and E lam^2.
    log_first, log_second : ndarray
        Log variances of P and T, both unbiased for the kernel.
    covariance : ndarray
        Cov(P, T) in units of exp(log_scale).
    log_scale : ndarray
        Log of the unit of the covariance.

    Returns
    -------
    ndarray
        log Var. Source: Choromanski et al., Hybrid random features (2022), theorem 3.3, with the
        covariance of shared projections.
    """
    mixed = 2 * (mean - mean_square) * covariance
    with np.errstate(divide="ignore"):
        logs = [
            np.log(mean_square) + log_first,
            np.log(np.maximum(1 - 2 * mean + mean_square, 0)) + log_second,
            np.log(np.abs(mixed)) + log_scale,
        ]
        signs = [np.ones_like(mixed), np.ones_like(mixed), np.sign(mixed)]
        total, sign = logsumexp(np.stack(logs), axis=0, b=np.stack(signs), return_sign=True)
    return np.where(sign > 0, total, -np.inf)
