"""Tail bounds: how likely an estimate is off by more than a given amount."""

import numpy as np
from sklearn.utils import check_array

from .._arrays import squared_distances


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
        Where ``error`` is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import RFFSampler
    >>> from skrf.theory import chebyshev_bound
    >>> X = np.zeros((2, 3))
    >>> chebyshev_bound(RFFSampler(random_state=0).fit(X), X, error=0.1).max() == 0
    np.True_
    """
    _check_error(error)
    logs = mechanism.kernel_variance(X, Y, log=True) - 2 * np.log(error)
    return np.exp(np.minimum(logs, 0.0))


def hoeffding_bound(mechanism, X, Y=None, *, error):
    """Return the exponential tail bound for bounded independent features (Gaussian kernel).

    Parameters
    ----------
    mechanism : RFFSampler or OptimalPositiveRF
        Fitted with ``coupling="iid"`` and the Gaussian kernel; optimal positive features are
        bounded where A < 0.
    X, Y : array-like of shape (n_x, n_features) and (n_y, n_features)
        Queries and keys; Y None takes X.
    error : float
        Absolute error > 0.

    Returns
    -------
    ndarray of shape (n_x, n_y)
        2 exp(-m error^2 / 2) for sines and cosines, 2 exp(-2 m error^2 (1 - 4A)^(-d) e^{n/(2A)})
        for optimal positive features, n = |x|^2 + |y|^2 of scaled, centred inputs; at most 1.

    Raises
    ------
    ValueError
        Where ``error`` is not positive, or the features are not bounded and independent.

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
    _check_error(error)
    if getattr(mechanism, "coupling", None) != "iid" or mechanism.kernel != "gaussian":
        raise ValueError(
            "hoeffding_bound needs coupling='iid' and kernel='gaussian', got "
            f"coupling={getattr(mechanism, 'coupling', None)!r}, kernel={mechanism.kernel!r}."
        )
    X = check_array(X, accept_sparse="csr")
    Y = X if Y is None else check_array(Y, accept_sparse="csr", input_name="Y")
    m, d = mechanism.n_projections_, mechanism.n_features_in_
    if not mechanism.is_positive:
        exponent = np.full((X.shape[0], Y.shape[0]), -m * error**2 / 2)
    elif getattr(mechanism, "A_", 0.0) < 0:
        A, sigma = mechanism.A_, mechanism.sigma_
        # Rows may be sparse: |sigma (x - c)|^2 by distances from the shift.
        norms2 = [squared_distances(Z, mechanism.offset_[None, :])[:, 0] for Z in (X, Y)]
        norms2 = sigma**2 * np.add.outer(*norms2)
        log_range = d / 2 * np.log1p(-4 * A) - norms2 / (4 * A)
        exponent = -2 * m * np.exp(2 * (np.log(error) - log_range))
    else:
        raise ValueError(
            f"hoeffding_bound needs bounded features, got {mechanism!r}: take RFFSampler, or "
            "OptimalPositiveRF fitted to data that are not all at the centre."
        )
    return np.minimum(2 * np.exp(exponent), 1.0)


def _check_error(error):
    if not error > 0:
        raise ValueError(f"error must be > 0, got {error!r}.")
