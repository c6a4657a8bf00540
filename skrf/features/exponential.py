"""Exponential features exp(A |w|^2 + B w.x + C |x|^2) with parameters fitted to the data."""

import math

from .. import variances
from ._docs import document
from .nonlinearities import Exponential
from .positive import CenteredRandomFeatures


def optimal_rho(mean_squared_sum, n_features):
    """Return rho*, the minimiser of the mean log second moment of exponential features.

    Parameters
    ----------
    mean_squared_sum : float
        Mean v^2 of |x + y|^2 over pairs of scaled, centred inputs.
    n_features : int
        Dimension d.

    Returns
    -------
    float
        The positive root of 2 v^2 r^2 + (2 v^2 + d) r - d = 0, at least 1e-300; 1 at v = 0.
    """
    b = 2 * mean_squared_sum + n_features
    # The two terms of the root are added, never subtracted: stable for every v.
    root = math.hypot(b, math.sqrt(8 * n_features) * math.sqrt(mean_squared_sum))
    return max(2 * n_features / (b + root), 1e-300)


@document
class OptimalPositiveRF(CenteredRandomFeatures):
    """Optimal positive features (FAVOR++): bounded exponentials fitted to the data.

    %(sigma)s

    Choose it by default wherever features must be positive: kernel regression, attention,
    graphical models. Its single parameter is set in closed form from the mean of |x + y|^2 over
    the data, and its variance grows far more slowly than that of plain positive features.

    Parameters
    ----------
    %(n_components)s
    %(sigma_parameter)s
    %(kernel)s
    %(coupling)s
    %(projection)s
    %(center)s
    %(random_state)s

    Attributes
    ----------
    %(attributes)s
    %(offset_)s
    rho_ : float
        The fitted root rho* in (0, 1]; 1 gives plain positive features.
    A_ : float
        The parameter A = (1 - 1/rho_) / 8 <= 0 of the features.

    Raises
    ------
    ValueError
        By `fit`, where a parameter is not allowed.

    References
    ----------
    Likhosherstov et al., Chefs' random tables (2022), theorem 3.3 (the root printed in its
    equation 7 covers the discriminant only).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import OptimalPositiveRF
    >>> X = np.random.default_rng(0).normal(size=(50, 3))
    >>> features = OptimalPositiveRF(n_components=64, sigma="scale", random_state=0).fit(X)
    >>> round(features.rho_, 3)
    0.24
    >>> bool(np.isfinite(features.log_transform(1e3 * X)).all())
    True
    """

    def __init__(
        self,
        n_components=100,
        *,
        sigma=1.0,
        kernel="gaussian",
        coupling="orthogonal",
        projection="dense",
        center=True,
        random_state=None,
    ):
        self.n_components = n_components
        self.sigma = sigma
        self.kernel = kernel
        self.coupling = coupling
        self.projection = projection
        self.center = center
        self.random_state = random_state

    def _fit_parameters(self, statistics):
        super()._fit_parameters(statistics)
        mean_squared_sum = self.sigma_**2 * statistics.mean_squared_sum(self.offset_)
        self.rho_ = optimal_rho(mean_squared_sum, self.n_features_in_)
        self.A_ = (1 - 1 / self.rho_) / 8

    @property
    def _nonlinearity(self):
        return Exponential(getattr(self, "A_", 0.0))

    @property
    def _law(self):
        return variances.Exponential(self.rho_)
