"""Chernoff's bound for means of bounded positive terms, from all of their moments."""

import numpy as np
from scipy.special import gammaln
from sklearn.utils import gen_batches

# Multipliers of a term in units of its largest value, at each of which the bound holds; the least
# is taken. Neighbours differ by 12 percent, which costs less than one percent of the exponent.
_MULTIPLIERS = np.geomspace(1e-6, 64.0, 160)
_N_MOMENTS = 300  # the rest of the series is below 1e-60
_BLOCK = 2**22  # entries of a temporary array


def log_upper_tail(log_moments, share, n_terms):
    """Return an upper bound on log P(mean of terms - their expectation >= share * largest value).

    P is at most exp(-m t (mu + share)) M(t)^m for every t >= 0, where M(t) = sum_k t^k mu_k / k!,
    mu_k are the moments of a term divided by its largest value, and mu = mu_1. All terms of the
    series are positive, so nothing is lost.

    Parameters
    ----------
    log_moments : callable
        Takes a slice of pairs and an array of k >= 1 and returns log mu_k, (n, n_k).
    share : ndarray of shape (n_pairs,)
        Errors in units of the largest value.
    n_terms : int
        Number m of independent terms.
    """
    k = np.arange(1, _N_MOMENTS + 1)
    weights = np.exp(k * np.log(_MULTIPLIERS)[:, None] - gammaln(k + 1))
    logs = np.empty(len(share))
    for rows in gen_batches(len(share), max(1, _BLOCK // _N_MOMENTS)):
        moments = np.exp(log_moments(rows, k))
        series = np.log1p(moments @ weights.T)
        with np.errstate(over="ignore"):  # to a bound of 0
            rates = series - _MULTIPLIERS * (moments[:, :1] + share[rows, None])
            logs[rows] = n_terms * rates.min(axis=1)
    return np.minimum(logs, 0.0)
