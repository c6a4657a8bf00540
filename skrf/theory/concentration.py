"""Tail bounds: how likely an estimate is off by more than a given amount."""

import numpy as np

from .._arrays import to_host
from .._validation import check_positive
from ._sample import check_mechanism


def chebyshev_bound(mechanism, X, Y=None, *, error):
    """Return an upper bound on P(|estimate - mean| >= error) from the closed-form variance.

    Parameters
    ----------
    mechanism : mechanism
        A fitted mechanism with a closed-form variance or a bound.
    X, Y : array-like of shape (n_x, n_features) and (n_y, n_features)
        Queries and keys; Y None takes X.
    error : float
        Absolute error > 0.

    Returns
    -------
    ndarray of shape (n_x, n_y)
        min(1, variance / error^2).

    Raises
    ------
    ValueError
        Where ``error`` is not a positive number.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import RFFSampler
    >>> from skrf.theory import chebyshev_bound
    >>> X = np.zeros((2, 3))
    >>> chebyshev_bound(RFFSampler(random_state=0).fit(X), X, error=0.1).max() == 0
    np.True_
    """
    error = check_positive("error", error)
    check_mechanism(mechanism)
    logs = mechanism.kernel_variance(X, Y, log=True) - 2 * np.log(error)
    return np.exp(np.minimum(logs, 0.0))


def hoeffding_bound(mechanism, X, Y=None, *, error):
    """Return Hoeffding's bound on P(|estimate - mean| >= error), which falls exponentially in m.

    Parameters
    ----------
    mechanism : RFFSampler, OptimalPositiveRF or GeneralizedExponentialRF
        Fitted with ``coupling="iid"`` and ``projection="dense"``; exponentials are bounded where
        the real part of the fitted ``A_`` is negative.
    X, Y : array-like of shape (n_x, n_features) and (n_y, n_features)
        Queries and keys; Y None takes X.
    error : float
        Absolute error > 0.

    Returns
    -------
    ndarray of shape (n_x, n_y)
        min(1, 2 exp(-2 m error^2 / range^2)) for m projections and the range of what one of them
        estimates, ``mechanism.term_range(X, Y)``: 2 for sines and cosines, 4 for a single column,
        (1 - 4A)^(d/2) exp(-(|x|^2 + |y|^2) / (4A)) for optimal positive features of scaled,
        centred inputs.

    Raises
    ------
    ValueError
        Where ``error`` is not a positive number, or the estimate is not a mean of bounded,
        independent terms.

    References
    ----------
    Hoeffding (1963); Likhosherstov et al., Chefs' random tables (2022), theorem 4.2, with the
    factors that the printed exponent lacks.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import RFFSampler
    >>> from skrf.theory import hoeffding_bound
    >>> X = np.zeros((1, 3))
    >>> features = RFFSampler(2000, coupling="iid", random_state=0).fit(X)
    >>> bool(hoeffding_bound(features, X, error=0.2)[0, 0] < 1e-8)
    True
    """
    error = check_positive("error", error)
    check_mechanism(mechanism)
    logs = to_host(mechanism.term_range(X, Y, log=True))
    with np.errstate(over="ignore"):
        exponent = -2.0 * mechanism.n_projections_ * np.exp(2 * (np.log(error) - logs))
    return np.minimum(2 * np.exp(exponent), 1.0)
