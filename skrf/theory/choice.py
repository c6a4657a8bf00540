"""Which mechanism to take: predicted and measured errors side by side, and advice."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from sklearn.base import clone

from .._sums import log_estimate
from .._validation import check_integer
from ..features import (
    AdaptiveRF,
    DenseExponentialRF,
    GeneralizedExponentialRF,
    OptimalPositiveRF,
    PositiveRF,
    RFFSampler,
    in_range,
    mapped,
)
from ._sample import check_mechanism, check_rows, relative_error, sample_rows

_N_DRAWS = 50
_LOG_ROWS = 100


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
    check_mechanism(mechanism)
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
    n_components = check_integer("n_components", n_components)
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
        Median over draws of the measured relative error of the kernel matrix (Frobenius norm).
    log_error : float
        Median over pairs, then over draws, of ``abs(log estimate - log kernel)``; an estimate
        that is not positive counts as infinitely wrong.
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
    log_error: float
    is_positive: bool
    cost: int


_CRITERIA = {"log": "log_error", "frobenius": "measured"}


def compare(X, Y=None, *, n_components=100, mechanisms=None, criterion="log", random_state=0):
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
    criterion : {"log", "frobenius"}, default="log"
        The error by which the table is sorted, ``log_error`` or ``measured``.
    random_state : int, default=0
        First of the 50 seeds that are drawn, and seed of the subsample of 400 rows on which
        errors are taken; log errors on at most 100 of them.

    Returns
    -------
    list of Comparison
        The least error first.

    Raises
    ------
    ValueError
        If the criterion is not one of the two.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.theory import compare
    >>> table = compare(np.random.default_rng(0).normal(size=(60, 3)), n_components=32)
    >>> errors = [row.log_error for row in table]
    >>> errors == sorted(errors)
    True
    """
    if not isinstance(criterion, str) or criterion not in _CRITERIA:
        raise ValueError(f"criterion must be 'log' or 'frobenius'; got {criterion!r}")
    random_state = check_integer("random_state", random_state, 0)
    X = check_rows(X)
    Y = None if Y is None else check_rows(Y, "Y")
    rows = sample_rows(X, random_state)
    keys = rows if Y is None else sample_rows(Y, random_state)
    mechanisms = default_mechanisms(n_components) if mechanisms is None else mechanisms
    if not isinstance(mechanisms, Mapping):
        raise TypeError(f"mechanisms must be a dict of str to mechanism, got {mechanisms!r}.")
    for name, mechanism in mechanisms.items():
        check_mechanism(mechanism, f"mechanisms[{name!r}]")
    table = [
        _row(name, mechanism, X, Y, rows, keys, random_state)
        for name, mechanism in mechanisms.items()
    ]
    return sorted(table, key=lambda row: getattr(row, _CRITERIA[criterion]))


def _row(name, mechanism, X, Y, rows, keys, random_state):
    fitted = clone(mechanism).set_params(random_state=random_state).fit(X, keys=Y)
    log_exact = fitted.exact_kernel(rows, keys, log=True)
    top = log_exact.max()
    errors, log_errors = [], []
    few = _few(rows.shape[0]), _few(keys.shape[0])
    for draw in range(_N_DRAWS):
        maps = fitted.redraw(random_state + draw).feature_maps_
        pairs = zip(maps, (rows, keys), strict=True)
        sides = [mapped(side, in_range(side, Z)) for side, Z in pairs]
        logs, sign = log_estimate(*sides, is_exact=False)
        with np.errstate(over="ignore"):  # an estimate may be infinitely wrong
            errors.append(np.linalg.norm(sign * np.exp(logs - top) - np.exp(log_exact - top)))
        logs, sign = log_estimate(*(side.part(own) for side, own in zip(sides, few, strict=True)))
        differences = np.abs(logs - log_exact[np.ix_(*few)])
        log_errors.append(np.median(np.where(sign > 0, differences, np.inf)))
    size = np.linalg.norm(np.exp(log_exact - top))
    try:
        predicted = relative_error(fitted, rows, keys)
        is_exact = fitted.kernel_variance_is_exact_
    except NotImplementedError:
        predicted, is_exact = float("nan"), False
    return Comparison(
        name,
        clone(mechanism),
        predicted,
        is_exact,
        float(np.median(errors) / size),
        float(np.median(log_errors)),
        bool(fitted.is_positive),
        fitted.n_projections_ * fitted.n_features_in_,
    )


def _few(n):
    """Tell which of n rows the log errors are taken on: at most 100, evenly spread."""
    return np.arange(n) % -(-n // _LOG_ROWS) == 0


def recommend(
    X,
    Y=None,
    *,
    n_components=100,
    sigma=1.0,
    kernel="gaussian",
    positive=False,
    mechanisms=None,
    criterion="log",
    random_state=0,
):
    """Return the unfitted mechanism of least measured error of the kernel.

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
    criterion : {"log", "frobenius"}, default="log"
        The error that counts. "log" is the median over pairs of ``abs(log estimate - log kernel)``:
        take it for kernel regression and attention, where each row is divided by its sum.
        "frobenius" is that of the kernel matrix: take it for ridge regression or support vectors.
    random_state : int, default=0
        Seed of draws and subsample.

    Returns
    -------
    mechanism
        An unfitted clone.

    Raises
    ------
    ValueError
        Where no positive mechanism is among those to try, and for an unknown criterion.

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
    table = compare(X, Y, mechanisms=mechanisms, criterion=criterion, random_state=random_state)
    allowed = [row for row in table if row.is_positive or not positive]
    if not allowed:
        raise ValueError(f"positive=True, but none of {list(mechanisms)} is positive.")
    return allowed[0].mechanism
