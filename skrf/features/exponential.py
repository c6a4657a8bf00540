"""Exponential features exp(A |w|^2 + B w.x + C |x|^2) with a real parameter fitted to the data."""

import math
from dataclasses import dataclass

import numpy as np

from ..variances import exponential_pair, log_expm1
from ._docs import document
from .gaussian import CenteredRandomFeatures
from .nonlinearities import PositiveNonlinearity


@dataclass(frozen=True)
class Exponential(PositiveNonlinearity):
    """One column D exp(A |w|^2 + B w.x - |x|^2), B = sqrt(1 - 4A), D = (1 - 4A)^(d/4), A < 1/8.

    Its variance is K^2 (exp(delta) - 1), delta = d log((1 + rho) / (2 sqrt(rho))) + rho |x + y|^2
    with rho = 1 / (1 - 8A); A = 0 gives plain positive features. Sources: Likhosherstov et al.,
    Chefs' random tables, theorem 3.2; pairs: Reid et al., Simplex random features, theorem 3.4.
    """

    A: float = 0.0

    @property
    def rho(self):
        """The root, 1 / (1 - 8A)."""
        return 1 / (1 - 8 * self.A)

    @property
    def slope(self):
        """B, the multiplier of the inputs."""
        return math.sqrt(1 - 4 * self.A)

    def log_own(self, geometry):
        """Return log(exp(delta) - 1)."""
        spread = geometry.n_features * log_spread(self.rho)
        return log_expm1(spread + self.rho * geometry.sum2)

    def pair(self, geometry, cosine, log_unit=0.0):
        """Return the pair term divided by exp(log_unit); it does not depend on A."""
        return exponential_pair(geometry.sum2, geometry.n_features, cosine, log_unit)

    def log_range(self, geometry):
        """Return that from 0 to the largest value, which exists for A < 0."""
        if self.A < 0:
            log_D2 = geometry.n_features / 2 * math.log1p(-4 * self.A)
            return log_D2 - geometry.difference2 / 2 - geometry.sum2 / (8 * self.A)

    log_largest = log_range  # from 0 on

    def log_moments(self, n_features, sum2, k):
        """Return those of D^2 exp(2 A |w|^2 + B w.(x + y)), A < 0, over its largest value."""
        wider = 1 - 4 * self.A * k
        per_square = k * (1 - 4 * self.A) / (8 * self.A * wider)
        return sum2[:, None] * per_square - n_features / 2 * np.log(wider)

    def multiplier(self, projection):
        """Return the projection as it is and A |w|^2."""
        return projection, (self.A * projection.squared_norms if self.A else None)

    def row_term(self, norms2, n_features):
        """Return log D - |x|^2."""
        return n_features / 4 * math.log1p(-4 * self.A) - norms2


def log_spread(rho):
    """Return log((1 + rho) / (2 sqrt(rho))), what a coordinate adds to delta at x + y = 0."""
    root = np.sqrt(rho)
    return np.log1p((1 - root) ** 2 / (2 * root))


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
    # The two terms of the root are added, never subtracted, so this is stable for every v.
    root = math.hypot(b, math.sqrt(8 * n_features) * math.sqrt(mean_squared_sum))
    return max(2 * n_features / (b + root), 1e-300)


@document
class OptimalPositiveRF(CenteredRandomFeatures):
    """Optimal positive features (FAVOR++): bounded exponentials fitted to the data.

    Choose it where features must be positive and the fit must be fast, in batches, or independent
    of labels. Maps that place their projections by the data, such as `AdaptiveRF`, are often more
    accurate. Its single parameter is set in closed form from the mean of |x + y|^2 over
    the data, and its variance grows far more slowly than that of plain positive features.

    %(sigma)s

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
        By `fit`, if a parameter is invalid.

    See Also
    --------
    GeneralizedExponentialRF : The same with a real or complex parameter.
    DenseExponentialRF : A matrix of parameters, for inputs whose columns differ.
    AdaptiveRF : Projections near the data.

    Notes
    -----
    A feature is (1 - 4A)^(d/4) exp(A |w|^2 + sqrt(1 - 4A) w.x - |x|^2) / sqrt(m), with A <= 0. The
    variance of the estimate with independent projections is K^2 (exp(delta) - 1) / m, where
    delta = d log((1 + rho) / (2 sqrt(rho))) + rho |x + y|^2 and A = (1 - 1/rho) / 8; rho* minimises
    the mean of delta over the data.

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

    def _learn(self, parameters, statistics):
        super()._learn(parameters, statistics)
        mean_squared_sum = parameters.sigma**2 * statistics.mean_squared_sum(parameters.offset_)
        parameters.rho_ = optimal_rho(mean_squared_sum, parameters.n_features)
        parameters.A_ = (1 - 1 / parameters.rho_) / 8

    def _nonlinearity(self, parameters=None, draw=None):
        return Exponential(0.0 if parameters is None else parameters.A_)
