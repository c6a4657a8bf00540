"""Which mechanism to take: predicted and measured errors side by side, and advice."""

from dataclasses import dataclass, field

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_array

from ..features import (
    AdaptiveRF,
    DenseExponentialRF,
    GeneralizedExponentialRF,
    OptimalPositiveRF,
    PositiveRF,
    RFFSampler,
)
from ._sample import relative_error, sample_rows

_N_DRAWS = 5


def kernel_variance(mechanism, X, Y=None, *, log=False):
    """Return the closed-form variance of a fitted mechanism's estimate of the kernel.

    Parameters
    ----------
    mechanism : mechanism
        A fitted mechanism.
    X, Y : array-like of shape (n_x, n_features) and (n_y, n_features)
        Queries and keys; Y None takes X.
    log : bool, default=False
        Return the logarithm.

    Returns
    -------
    ndarray of shape (n_x, n_y)
        As ``mechanism.kernel_variance(X, Y, log=log)``.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import RFFSampler
    >>> from skrf.theory import kernel_variance
    >>> X = np.zeros((2, 3))
    >>> float(kernel_variance(RFFSampler(random_state=0).fit(X), X).max())
    0.0
    """
    return mechanism.kernel_variance(X, Y, log=log)


def default_mechanisms(n_components=100, *, sigma=1.0, kernel="gaussian"):
    """Return the mechanisms that `compare` and `recommend` try.

    Parameters
    ----------
    n_components : int, default=100
        Number of output columns; an odd one is lowered by one for maps of pairs.
    sigma : float, "scale" or "median", default=1.0
        Multiplier of the inputs.
    kernel : {"gaussian", "softmax"}, default="gaussian"
        The kernel.

    Returns
    -------
    dict of str to mechanism
        Unfitted mechanisms by name.

    Examples
    --------
    >>> from skrf.theory import default_mechanisms
    >>> default_mechanisms(101)["trigonometric"].n_components
    100
    """
    even = max(n_components - n_components % 2, 1)
    common = {"sigma": sigma, "kernel": kernel}
    return {
        "trigonometric": RFFSampler(even, **common),
        "positive": PositiveRF(n_components, **common),
        "optimal positive": OptimalPositiveRF(n_components, **common),
        "optimal positive, simplex": OptimalPositiveRF(n_components, coupling="simplex", **common),
        "generalized": GeneralizedExponentialRF(even, **common),
        "dense": DenseExponentialRF(n_components, **common),
        "adaptive": AdaptiveRF(n_components, **common),
    }


@dataclass(frozen=True)
class Comparison:
    """One row of `compare`.

    Parameters
    ----------
    name : str
        Name of the mechanism.
    mechanism : mechanism
        The unfitted mechanism.
    predicted : float
        Closed-form relative error of the kernel matrix; NaN where none is known.
    is_exact : bool
        Whether the prediction is exact and not a bound.
    measured : float
        Median over draws of the measured relative error.
    is_positive : bool
        Whether the fitted features are positive.
    cost : int
        Multiplications of one row by projections.
    """

    name: str
    mechanism: object = field(repr=False)
    predicted: float
    is_exact: bool
    measured: float
    is_positive: bool
    cost: int


def compare(X, Y=None, *, n_components=100, mechanisms=None, random_state=0):
    """Return predicted and measured errors of the kernel matrix for several mechanisms.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Queries.
    Y : array-like of shape (n_keys, n_features), default=None
        Keys; None takes X.
    n_components : int, default=100
        Number of output columns of the default mechanisms.
    mechanisms : dict of str to mechanism, default=None
        What to compare; None takes `default_mechanisms`.
    random_state : int, default=0
        First of the five seeds that are drawn, and seed of the subsample of 400 rows on which
        errors are taken.

    Returns
    -------
    list of Comparison
        The least measured error first.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.theory import compare
    >>> table = compare(np.random.default_rng(0).normal(size=(60, 3)), n_components=32)
    >>> errors = [row.measured for row in table]
    >>> errors == sorted(errors)
    True
    """
    X = check_array(X, accept_sparse="csr")
    Y = None if Y is None else check_array(Y, accept_sparse="csr", input_name="Y")
    rows = sample_rows(X, random_state)
    keys = rows if Y is None else sample_rows(Y, random_state)
    mechanisms = default_mechanisms(n_components) if mechanisms is None else mechanisms
    table = [
        _row(name, mechanism, X, Y, rows, keys, random_state)
        for name, mechanism in mechanisms.items()
    ]
    return sorted(table, key=lambda row: row.measured)


def _row(name, mechanism, X, Y, rows, keys, random_state):
    fitted = clone(mechanism).set_params(random_state=random_state).fit(X, keys=Y)
    exact = fitted.exact_kernel(rows, keys)
    size = np.linalg.norm(exact)
    errors = [
        np.linalg.norm(fitted.redraw(random_state + draw).approximate_kernel(rows, keys) - exact)
        for draw in range(_N_DRAWS)
    ]
    try:
        predicted = relative_error(fitted, rows, keys)
    except NotImplementedError:
        predicted = float("nan")
    return Comparison(
        name,
        clone(mechanism),
        predicted,
        bool(fitted.kernel_variance_is_exact_),
        float(np.median(errors) / size),
        bool(fitted.is_positive),
        fitted._n_projections * fitted.n_features_in_,
    )


def recommend(
    X,
    Y=None,
    *,
    n_components=100,
    sigma=1.0,
    kernel="gaussian",
    positive=False,
    mechanisms=None,
    random_state=0,
):
    """Return the unfitted mechanism of least measured error of the kernel matrix.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Queries.
    Y : array-like of shape (n_keys, n_features), default=None
        Keys; None takes X.
    n_components : int, default=100
        Number of output columns.
    sigma : float, "scale" or "median", default=1.0
        Multiplier of the inputs.
    kernel : {"gaussian", "softmax"}, default="gaussian"
        The kernel.
    positive : bool, default=False
        Consider positive mechanisms only.
    mechanisms : dict of str to mechanism, default=None
        What to try; None takes `default_mechanisms` at the parameters above.
    random_state : int, default=0
        Seed of draws and subsample.

    Returns
    -------
    mechanism
        An unfitted clone.

    Raises
    ------
    ValueError
        Where no positive mechanism is among those to try.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.theory import recommend
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> recommend(X, n_components=32, sigma=3.0, positive=True)
    AdaptiveRF(n_components=32, sigma=3.0)
    """
    if mechanisms is None:
        mechanisms = default_mechanisms(n_components, sigma=sigma, kernel=kernel)
    table = compare(X, Y, mechanisms=mechanisms, random_state=random_state)
    allowed = [row for row in table if row.is_positive or not positive]
    if not allowed:
        raise ValueError(f"positive=True, but none of {list(mechanisms)} is positive.")
    return allowed[0].mechanism
