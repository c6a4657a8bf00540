"""Tail bounds: how likely an estimate is to be off by more than a given amount."""

import contextlib
import math
from typing import Literal

import numpy as np
from scipy.optimize import minimize_scalar

from .._arrays import to_host
from .._typing import Array
from .._validation import check_positive
from ..features import BaseRandomFeatures, RFFSampler
from ._sample import check_feature_map

_SMALLEST_NET = 700.0  # nats by which the distance c of a net may be below its maximum
_LARGEST_EXPONENT = 650.0  # nats of an exponent whose exponential is still a float


def chebyshev_bound(
    feature_map: BaseRandomFeatures, X: Array, Y: Array | None = None, *, error: float
) -> np.ndarray:
    """Return an upper bound on P(|estimate - mean| >= error) from the closed-form variance.

    Parameters
    ----------
    feature_map : feature map
        A fitted feature map with a closed-form variance or a bound on it.
    X, Y : array-like of shape (n_x, n_features) and (n_y, n_features)
        Queries and keys; None for Y means X.
    error : float
        Absolute error > 0.

    Returns
    -------
    ndarray of shape (n_x, n_y)
        min(1, variance / error^2).

    Raises
    ------
    ValueError
        If ``error`` is not a positive number.

    See Also
    --------
    bernstein_bound : Exponential in the number of components, for bounded maps.
    left_tail_bound : For estimates that are too small.
    kernel_variance : The variance used here.

    References
    ----------
    Chebyshev's inequality with the variance of `kernel_variance`.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import RFFSampler
    >>> from skrf.theory import chebyshev_bound
    >>> X = np.zeros((2, 3))
    >>> chebyshev_bound(RFFSampler(random_state=0).fit(X), X, error=0.1).max() == 0
    np.True_
    """
    return _chebyshev(feature_map, X, Y, _checked(feature_map, error))


def _chebyshev(feature_map, X, Y, log_error):
    logs = to_host(feature_map.kernel_variance(X, Y, log=True)) - 2 * log_error
    return np.exp(np.minimum(logs, 0.0))


def hoeffding_bound(
    feature_map: BaseRandomFeatures,
    X: Array,
    Y: Array | None = None,
    *,
    error: float,
    side: Literal["two", "upper"] = "two",
) -> np.ndarray:
    """Return Hoeffding's bound on P(|estimate - mean| >= error), which is exponential in m.

    Parameters
    ----------
    feature_map : RFFSampler, OptimalPositiveRF, GeneralizedExponentialRF or regularised PositiveRF
        Fitted with ``coupling="iid"`` and ``projection="dense"``; exponentials are bounded if the
        real part of the fitted ``A_`` is negative. For ``side="upper"``, feature maps with positive
        features may also have the couplings "orthogonal" and "simplex".
    X, Y : array-like of shape (n_x, n_features) and (n_y, n_features)
        Queries and keys; None for Y means X.
    error : float
        Absolute error > 0.
    side : {"two", "upper"}, default="two"
        "upper" bounds P(estimate - mean >= error) instead.

    Returns
    -------
    ndarray of shape (n_x, n_y)
        min(1, 2 exp(-2 m error^2 / range^2)), without the leading 2 for the upper side, where m is
        the number of projections and the range is that of a single projection: 2 for sines and
        cosines, 4 for a single column, K (1 - 4A)^(d/2) exp(-|x + y|^2 / (8A)) for optimal positive
        features of scaled, centred inputs, and exp(-|x|^2 - |y|^2) 2 sinh(sqrt(d) |x + y|) for
        regularised features, about their own mean.

    Raises
    ------
    ValueError
        If ``error`` is not a positive number, ``side`` is not one of the two, or the estimate is
        not a mean of bounded, independent terms.

    See Also
    --------
    bernstein_bound : Uses the variance, and is smaller if the variance is small.
    chebyshev_bound : For every closed-form variance.
    uniform_bound : For all pairs in a ball at once.

    References
    ----------
    Hoeffding (1963); Likhosherstov et al., Chefs' random tables (2022), theorem 4.2, with the
    factors that the printed exponent lacks and the largest value in place of a bound on it. The
    exponential moments of blocks are no larger than those of independent projections: for
    orthogonal blocks, see theorem 8 there.

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
    return _hoeffding(feature_map, X, Y, _checked(feature_map, error, side), side)


def _hoeffding(feature_map, X, Y, log_error, side):
    log_range = _log_range(feature_map, X, Y, side)
    return _on_sides(feature_map, math.log(2) + 2 * (log_error - log_range), side)


def bernstein_bound(
    feature_map: BaseRandomFeatures,
    X: Array,
    Y: Array | None = None,
    *,
    error: float,
    side: Literal["two", "upper"] = "two",
) -> np.ndarray:
    """Return Bernstein's bound on P(|estimate - mean| >= error), which uses the variance.

    It is smaller than Hoeffding's bound if the variance is far below the squared range, as it is
    for positive features, which seldom come near their largest value.

    Parameters
    ----------
    feature_map : RFFSampler, OptimalPositiveRF, GeneralizedExponentialRF or regularised PositiveRF
        As in `hoeffding_bound`.
    X, Y : array-like of shape (n_x, n_features) and (n_y, n_features)
        Queries and keys; None for Y means X.
    error : float
        Absolute error > 0.
    side : {"two", "upper"}, default="two"
        "upper" bounds P(estimate - mean >= error) instead.

    Returns
    -------
    ndarray of shape (n_x, n_y)
        min(1, 2 exp(-m error^2 / (2 variance + 2/3 range error))), without the leading 2 for
        the upper side. Variance and range are those of a single projection, as in
        `hoeffding_bound`.

    Raises
    ------
    ValueError
        As in `hoeffding_bound`.

    See Also
    --------
    hoeffding_bound : Uses only the range.
    chebyshev_bound : For every closed-form variance.

    References
    ----------
    Bernstein (1924); for blocks, see `hoeffding_bound`.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import OptimalPositiveRF
    >>> from skrf.theory import bernstein_bound, hoeffding_bound
    >>> X = np.random.default_rng(0).normal(size=(50, 3)) / 2
    >>> features = OptimalPositiveRF(100, sigma=1.0, random_state=0).fit(X)
    >>> pair = {"X": X[:1], "Y": X[1:2], "error": 0.5, "side": "upper"}
    >>> bool(bernstein_bound(features, **pair) < 1e-5 < 1e-4 < hoeffding_bound(features, **pair))
    True
    """
    return _bernstein(feature_map, X, Y, _checked(feature_map, error, side), side)


def _bernstein(feature_map, X, Y, log_error, side):
    log_range = _log_range(feature_map, X, Y, side)
    log_variance = to_host(feature_map._of_pairs(X, Y, "_log_term_variance"))
    # Both in units of the error, so that neither square leaves the range of floats.
    log_spread = np.logaddexp(
        math.log(2) + log_variance - 2 * log_error, math.log(2 / 3) + log_range - log_error
    )
    return _on_sides(feature_map, -log_spread, side)


def _checked(feature_map, error, side="two"):
    """Return the log of the error, and raise if it, the map or the side is not allowed."""
    error = check_positive("error", error)
    check_feature_map(feature_map)
    if side not in ("two", "upper"):
        raise ValueError(f"side must be 'two' or 'upper', got {side!r}.")
    return math.log(error)


def _log_range(feature_map, X, Y, side):
    """Return the log range of one term for the requested sides."""
    return to_host(feature_map._of_pairs(X, Y, "_log_term_range", side == "upper"))


def _on_sides(feature_map, log_rate, side):
    """Return the bound for the log of the exponent per projection."""
    with np.errstate(over="ignore"):
        exponent = -feature_map._n_projections * np.exp(log_rate)
    return np.minimum((2 if side == "two" else 1) * np.exp(exponent), 1.0)


def upper_tail_bound(
    feature_map: BaseRandomFeatures, X: Array, Y: Array | None = None, *, error: float
) -> np.ndarray:
    """Return Chernoff's bound on P(estimate - mean >= error), from all moments of a projection.

    It is the smallest of the upper-tail bounds, often by a factor of ten or more.

    Parameters
    ----------
    feature_map : OptimalPositiveRF, GeneralizedExponentialRF or regularised PositiveRF
        Fitted, with ``projection="dense"`` and the coupling "iid", "orthogonal" or "simplex"; for
        exponentials, the fitted ``A_`` must be real and negative, and ``s_`` must be 1.
    X, Y : array-like of shape (n_x, n_features) and (n_y, n_features)
        Queries and keys; None for Y means X.
    error : float
        Absolute error > 0.

    Returns
    -------
    ndarray of shape (n_x, n_y)
        The minimum over t > 0 of exp(-m t (mean + error)) M(t)^m, where M(t) = E exp(t Z) is summed
        as a series in the moments of Z, the estimate from one projection. It never exceeds
        Bernstein's bound.

    Raises
    ------
    ValueError
        If ``error`` is not a positive number, or the feature map is not one of these.

    See Also
    --------
    bernstein_bound : Uses the variance and the range; also for maps with signs.
    left_tail_bound : For estimates that are too small.

    References
    ----------
    Chernoff (1952); for why blocks are no worse than independent rows, see `hoeffding_bound`.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import OptimalPositiveRF
    >>> from skrf.theory import bernstein_bound, upper_tail_bound
    >>> X = np.random.default_rng(0).normal(size=(50, 3)) / 2
    >>> features = OptimalPositiveRF(100, sigma=1.0, random_state=0).fit(X)
    >>> pair = {"X": X[:1], "Y": X[1:2], "error": 0.5}
    >>> bound = upper_tail_bound(features, **pair)
    >>> bool(bound < bernstein_bound(features, side="upper", **pair) / 10)
    True
    """
    return _upper_tail(feature_map, X, Y, _checked(feature_map, error))


def _upper_tail(feature_map, X, Y, log_error):
    bound = np.exp(to_host(feature_map._of_pairs(X, Y, "_log_upper_tail", log_error)))
    return np.minimum(bound, _bernstein(feature_map, X, Y, log_error, "upper"))


def left_tail_bound(
    feature_map: BaseRandomFeatures, X: Array, Y: Array | None = None, *, error: float
) -> np.ndarray:
    """Return a bound on P(estimate <= mean - error) for features that are never negative.

    Terms need not be bounded: nonnegative values are rarely far below their mean.

    Parameters
    ----------
    feature_map : feature map
        Fitted, with ``projection="dense"``: `PositiveRF`, `OptimalPositiveRF` and a
        `GeneralizedExponentialRF` whose ``A_`` is real and ``s_`` is 1, with the couplings "iid",
        "orthogonal" and "simplex"; `DenseExponentialRF` with "iid" or "orthogonal"; `PoissonRF`,
        `GeometricRF` and `DiscreteRF` with ``positive=True``.
    X, Y : array-like of shape (n_x, n_features) and (n_y, n_features)
        Queries and keys; None for Y means X.
    error : float
        Absolute error > 0.

    Returns
    -------
    ndarray of shape (n_x, n_y)
        exp(-error^2 / (2 S)), where S is the sum over independent blocks of
        E[(part of the estimate)^2]. For m independent projections, S is E[Z^2] / m, where Z is the
        estimate from one projection. For blocks, S is the mean squared error plus the squared
        kernel times the sum of the squared shares of the blocks. That sum is about 1 over the
        number of blocks, so the bound says little about a single block.

    Raises
    ------
    NotImplementedError
        If the second moment of a block is not known.
    ValueError
        If ``error`` is not a positive number, or if parts are dependent or may be negative.

    See Also
    --------
    bernstein_bound : For estimates that are too large as well.
    chebyshev_bound : For every closed-form variance.

    References
    ----------
    Maurer, A bound on the deviation probability for sums of non-negative random variables (2003).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import OptimalPositiveRF
    >>> from skrf.theory import left_tail_bound
    >>> X = np.random.default_rng(0).normal(size=(50, 3)) / 2
    >>> features = OptimalPositiveRF(1000, sigma=1.0, random_state=0).fit(X)
    >>> bool(left_tail_bound(features, X[:1], error=0.5)[0, 0] < 1e-4)
    True
    """
    return _left_tail(feature_map, X, Y, _checked(feature_map, error))


def _left_tail(feature_map, X, Y, log_error):
    logs = to_host(feature_map._of_pairs(X, Y, "_log_block_moment"))
    with np.errstate(over="ignore"):
        return np.exp(-np.exp(2 * log_error - logs) / 2)


def least_bound(feature_map, X, Y, log_errors):
    """Return the least known bound on P(|estimate - mean| >= error) of every pair, or None.

    Parameters
    ----------
    feature_map : feature map
        Fitted.
    X, Y : array-like of shape (n_x, n_features) and (n_y, n_features)
        Queries and keys.
    log_errors : ndarray of shape (n_x, n_y)
        Logarithms of absolute errors.
    """

    def both_tails():
        return _upper_tail(feature_map, X, Y, log_errors) + _left_tail(
            feature_map, X, Y, log_errors
        )

    ways = (
        lambda: _chebyshev(feature_map, X, Y, log_errors),
        lambda: _hoeffding(feature_map, X, Y, log_errors, "two"),
        lambda: _bernstein(feature_map, X, Y, log_errors, "two"),
        both_tails,
    )
    bounds = []
    for way in ways:
        with contextlib.suppress(ValueError, NotImplementedError):  # not for this map
            bounds.append(way())
    return np.minimum.reduce([np.ones(log_errors.shape), *bounds]) if bounds else None


def uniform_bound(feature_map: BaseRandomFeatures, *, error: float, radius: float) -> float:
    """Return a bound on the probability that any estimate within a ball is off by `error` or more.

    The bound holds for all pairs of queries and keys at once, with explicit constants. It is far
    too conservative for choosing sizes (see `n_components_uniform`).

    Parameters
    ----------
    feature_map : OptimalPositiveRF, RFFSampler or GeneralizedExponentialRF
        Fitted with ``coupling="iid"`` and ``projection="dense"``; generalised features must be
        positive and bounded: ``A_`` real and negative, ``s_`` = 1. For the softmax kernel, the
        bound is that of the Gaussian kernel at ``error * exp(-(R + sigma |offset_|)^2)``.
    error : float
        Absolute error > 0.
    radius : float
        Largest length R > 0 of sigma * (x - offset_), of queries and of keys.

    Returns
    -------
    float
        At most 1: the minimum over c > 0 of
        2 (1 + 2 sqrt(2) R / c)^(2d) exp(-m error^2 / (2 b^2))
        + (2 c / error)^2 16 b^2 ((1 - 4A) d + 4 R^2), with b = (1 - 4A)^(d/2) exp(-R^2 / (2A)). For
        sines and cosines, whose estimate depends on x - y alone, the minimum of
        2 (1 + 4 R / c)^d exp(-m error^2 / 8) + (2 c / error)^2 (sqrt(d) + exp(-1/2))^2.

    Raises
    ------
    ValueError
        If ``error`` or ``radius`` is not a positive number, or the feature map is not supported.

    See Also
    --------
    n_components_uniform : The number of components for a probability.
    hoeffding_bound : For one pair.

    Notes
    -----
    The first term is Hoeffding's bound at the points of a net that has a point within c of every
    pair; the second is Markov's inequality for the square of the Lipschitz constant. For sines and
    cosines, that constant is at most the mean length of the projections plus the largest slope of
    the kernel.

    References
    ----------
    Likhosherstov et al., Chefs' random tables (2022), theorem 4.3, and Rahimi and Recht (2007),
    claim 1, prove uniform convergence; the constants are ours.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import OptimalPositiveRF
    >>> from skrf.theory import uniform_bound
    >>> X = np.random.default_rng(0).normal(size=(50, 2)) / 4
    >>> features = OptimalPositiveRF(10**6, sigma=1.0, coupling="iid", random_state=0).fit(X)
    >>> uniform_bound(features, error=0.3, radius=0.5) < 1e-3
    True
    """
    per_projection, log_net, log_slope = _uniform_terms(feature_map, error, radius)
    exponent = feature_map._n_projections * per_projection

    def log_bound(log_c):
        return np.logaddexp(log_net(log_c) - exponent, log_slope(log_c))

    # Convex in log c; search downwards from where the second term is 1.
    top = -log_slope(0.0) / 2
    optimum = minimize_scalar(log_bound, bounds=(top - _SMALLEST_NET, top), method="bounded")
    return math.exp(min(float(optimum.fun), 0.0))


def n_components_uniform(
    feature_map: BaseRandomFeatures, *, error: float, radius: float, probability: float = 0.05
) -> int:
    """Return the number of components at which `uniform_bound` falls to a given probability.

    For d = 4, R = 1 and an error of 0.1 it is 5e7, whereas `n_components_for` gives thousands.

    Parameters
    ----------
    feature_map : OptimalPositiveRF, RFFSampler or GeneralizedExponentialRF
        As in `uniform_bound`.
    error : float
        Absolute error > 0.
    radius : float
        Largest length R > 0 of sigma * (x - offset_), of queries and of keys.
    probability : float, default=0.05
        Probability of an error that large anywhere in the ball, between 0 and 1.

    Returns
    -------
    int
        The number of components.

    Raises
    ------
    ValueError
        As in `uniform_bound`, or if ``probability`` is not between 0 and 1.

    See Also
    --------
    uniform_bound : The bound.
    n_components_for : The number of components for given data.

    References
    ----------
    Likhosherstov et al., Chefs' random tables (2022), theorem 4.3, proves uniform convergence for
    attention; the constants are ours.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import OptimalPositiveRF
    >>> from skrf.theory import n_components_uniform
    >>> X = np.concatenate([np.eye(4), -np.eye(4)])
    >>> features = OptimalPositiveRF(sigma=1.0, coupling="iid", random_state=0).fit(X)
    >>> count = n_components_uniform(features, error=0.1, radius=1.0)
    >>> f"{count:.0e}"
    '5e+07'
    """
    per_projection, log_net, log_slope = _uniform_terms(feature_map, error, radius)
    probability = check_positive("probability", probability)
    if probability >= 1:
        raise ValueError(f"probability must be below 1, got {probability!r}.")
    if per_projection < math.exp(-_LARGEST_EXPONENT):
        raise ValueError(
            f"error={error!r} is too small at radius={radius!r}: the number of components leaves "
            "the range of floats. Allowed: a larger error or a smaller radius."
        )
    top = (math.log(probability) - log_slope(0.0)) / 2

    def count(step):  # for the part of the probability that the second term leaves
        left = math.log(probability) + math.log(-math.expm1(-2 * step))
        return (log_net(top - step) - left) / per_projection

    optimum = minimize_scalar(count, bounds=(1e-6, _SMALLEST_NET), method="bounded")
    return feature_map._columns_per_projection * math.ceil(optimum.fun)


def _uniform_terms(feature_map, error, radius):
    """Return the terms of the bound: its exponent per projection, and functions of log c."""
    error, radius = check_positive("error", error), check_positive("radius", radius)
    check_feature_map(feature_map)
    log_error, d = math.log(error), getattr(feature_map, "n_features_in_", 0)
    A = getattr(feature_map, "A_", 0.0)
    is_paired = isinstance(feature_map, RFFSampler) and feature_map._columns_per_projection == 2
    is_bounded = feature_map.is_positive and A.real < 0
    if not (is_paired or is_bounded) or feature_map.kernel not in ("gaussian", "softmax"):
        raise ValueError(
            "uniform_bound needs a fitted OptimalPositiveRF, RFFSampler of two components or more, "
            f"or GeneralizedExponentialRF with s_ = 1 and a real A_ < 0, got {feature_map!r} with "
            f"A_ = {A!r}."
        )
    # Raises unless projections are independent.
    feature_map._of_pairs(np.zeros((1, d)), None, "_log_term_range", False)
    if feature_map.kernel == "softmax":  # the Gaussian kernel times at most this
        offset = getattr(feature_map, "offset_", np.zeros(d))
        log_error -= (radius + feature_map.sigma_ * np.linalg.norm(offset)) ** 2
    if is_paired:  # a function of x - y, in a ball of radius 2 R, with values from -1 to 1
        log_range, n_dimensions, log_reach = math.log(2), d, math.log(4 * radius)
        log_gradient = 2 * math.log(2 * (math.sqrt(d) + math.exp(-0.5)))
    else:  # of x and y
        A = A.real
        log_range = d / 2 * math.log1p(-4 * A) - radius**2 / (2 * A)
        n_dimensions, log_reach = 2 * d, math.log(math.sqrt(8) * radius)
        log_gradient = math.log(64) + 2 * log_range + math.log((1 - 4 * A) * d + 4 * radius**2)

    def log_net(log_c):
        return math.log(2) + n_dimensions * np.logaddexp(0.0, log_reach - log_c)

    def log_slope(log_c):
        return 2 * (log_c - log_error) + log_gradient

    log_exponent = min(2 * (log_error - log_range), _LARGEST_EXPONENT)
    return math.exp(log_exponent) / 2, log_net, log_slope
