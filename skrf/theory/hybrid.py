"""The largest error of angular hybrid features over all angles."""

import math

import numpy as np
from scipy.optimize import minimize_scalar

from .._validation import check_integer, check_positive
from ..features.positive import Hyperbolic
from ..variances import PairGeometry

_LONGEST = 1e6  # a radius whose fourth power still has all digits
_SHORTEST = 1e-10  # up to which the error is proportional to the squared radius, to all digits
_N_ANGLES = 2000


def hybrid_max_error(
    radius: float, *, n_projections: int, n_coefficients: int, log: bool = False
) -> float:
    """Return the largest relative error of angular hybrid features on a sphere.

    This is the largest root mean squared error, relative to exp(x.y), with which
    ``HybridRF(base=("hyperbolic", "trigonometric"), shared=False, coupling="iid",
    kernel="softmax", center=False)`` estimates exp(x.y) for rows x and y of the same length: the
    maximum of the closed form over all angles. The bound in theorem 3.5 of the reference does not
    hold: with one coefficient, the error is 1.009 times the bound at radius 4.2, and 1.205 times
    at radius 6.

    Parameters
    ----------
    radius : float
        Length of the scaled rows, at most 1e6.
    n_projections : int
        Number of projections of each base, at least 1.
    n_coefficients : int
        Number of coefficient features, at least 1.
    log : bool, default=False
        Return the natural logarithm, which does not overflow.

    Returns
    -------
    float
        The error, inf if it overflows.

    Raises
    ------
    ValueError
        If a number is out of its range.

    See Also
    --------
    skrf.HybridRF : The features.
    kernel_variance : The error at given pairs.

    References
    ----------
    Choromanski et al., Hybrid random features (2022), definition 3.3 and theorem 3.5.

    Examples
    --------
    >>> from skrf.theory import hybrid_max_error
    >>> round(hybrid_max_error(1.0, n_projections=64, n_coefficients=8), 4)
    0.156
    """
    radius = check_positive("radius", radius)
    if radius > _LONGEST:
        raise ValueError(f"radius must be at most {_LONGEST:g}, got {radius!r}.")
    n_projections = check_integer("n_projections", n_projections)
    n_coefficients = check_integer("n_coefficients", n_coefficients)
    length = max(radius, _SHORTEST)  # the squares of shorter ones may vanish

    def log_square(angle):
        return _log_relative_variance(length, angle, n_coefficients)

    # An angle and its supplement have the same error. For long rows the maximum is near 1 / radius.
    angles = np.geomspace(1e-2 / max(length, 1.0), np.pi / 2, _N_ANGLES)
    values = log_square(angles)
    best = int(np.argmax(values))
    ends = angles[max(best - 1, 0)], angles[min(best + 1, _N_ANGLES - 1)]
    optimum = minimize_scalar(
        lambda angle: -log_square(angle), bounds=ends, method="bounded", options={"xatol": 1e-12}
    )
    result = (max(float(values[best]), -float(optimum.fun)) - math.log(n_projections)) / 2
    result += 2 * math.log(radius / length)
    if log:
        return result
    with np.errstate(over="ignore"):
        return float(np.exp(result))


def _log_relative_variance(radius, angle, n_coefficients):
    """Return the log variance of one projection, divided by the squared kernel."""
    far = angle / np.pi
    spread = far * (1 - far) / n_coefficients
    sums, differences = (4 * radius**2 * side(angle / 2) ** 2 for side in (np.cos, np.sin))
    # A trigonometric estimate has the variance of a hyperbolic one at the angle's supplement.
    terms = [
        np.log(share**2 + spread)
        # Only |x + y|^2 matters.
        + Hyperbolic().log_own(PairGeometry(1, square, square, square))
        for share, square in ((far, sums), (1 - far, differences))
    ]
    return np.logaddexp(*terms)
