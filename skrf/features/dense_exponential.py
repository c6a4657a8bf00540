"""Exponential features with one parameter for every principal axis of the data."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .._typing import Kernel, RandomState, Sigma
from ..projections import CouplingLike
from ..variances import log_expm1
from ._docs import document
from .exponential import log_spread, optimal_rho
from .gaussian import CenteredRandomFeatures
from .nonlinearities import PositiveNonlinearity


@dataclass(frozen=True)
class DenseExponential(PositiveNonlinearity):
    """One column det(I - 4A)^(1/4) exp(w'Aw + w'(I - 4A)^(1/2) x - |x|^2), A <= 0 symmetric.

    The symmetric root keeps the map a smooth function of A, free of the signs and order of its
    axes; with equal eigenvalues it is the exponential map of the same projections. The variance is
    that of `Exponential` along every axis.

    Parameters
    ----------
    A : ndarray of shape (d,)
        Eigenvalues of A, at most 0.
    axes : ndarray of shape (d, d)
        Eigenvectors of A, one per row.
    """

    A: np.ndarray
    axes: np.ndarray

    @property
    def rho(self):
        """The root of every axis, 1 / (1 - 8A)."""
        return 1 / (1 - 8 * self.A)

    @property
    def quadratic_form(self):
        """The matrix M of |M (x + y)|^2, the sum over the axes of rho times squares of x + y."""
        return np.sqrt(self.rho)[:, None] * self.axes

    def log_second_moment(self, geometry):
        """Return delta, the log of the second moment over K^2: a sum over the axes."""
        return np.sum(log_spread(self.rho)) + geometry.weighted_sum2

    def log_own(self, geometry):
        """Return log(exp(delta) - 1)."""
        return log_expm1(self.log_second_moment(geometry))

    def knows_pairs(self, cosine):
        """Return whether projections are orthogonal, whose error is at most that of independent."""
        return cosine == 0

    def _symmetric(self, values):
        return (self.axes.T * values) @ self.axes

    def multiplier(self, projection):
        """Return the projection after (I - 4A)^(1/2), and w'Aw = -|(-A)^(1/2) w|^2."""
        bias = -projection.after(self._symmetric(np.sqrt(-self.A))).squared_norms
        return projection.after(self._symmetric(np.sqrt(1 - 4 * self.A))), bias

    def row_term(self, norms2, n_features):
        """Return log det(I - 4A) / 4 - |x|^2."""
        log_det = float(np.sum(np.log1p(-4 * self.A)))
        return log_det / 4 + super().row_term(norms2, n_features)


class PrincipalAxesRandomFeatures(CenteredRandomFeatures):
    """Base of the maps fitted along the principal axes of x + y, after balancing if asymmetric."""

    _parameter_constraints = {"asymmetric": ["boolean"]}
    _needs_full_statistics = True

    def _learn(self, parameters, statistics):
        parameters.balance = None
        if self.asymmetric and self.kernel != "softmax":
            raise ValueError(
                f"asymmetric=True balances x.y and needs kernel='softmax', got "
                f"kernel={self.kernel!r}."
            )
        if self.asymmetric and statistics.keys is not statistics.queries:
            parameters.balance = balancing_map(
                statistics.queries.covariance,
                statistics.keys.covariance,
                *(_FLOOR * np.mean(side.mean**2) for side in (statistics.queries, statistics.keys)),
            )
            statistics = statistics.mapped(*parameters.balance)
        super()._learn(parameters, statistics)
        second_moment = parameters.sigma**2 * statistics.mean_outer_sum(parameters.offset_)
        squares, axes = np.linalg.eigh(second_moment)
        parameters.rotation_ = axes.T
        parameters.rho_ = np.array([optimal_rho(max(square, 0.0), 1) for square in squares])

    @property
    def _is_symmetric(self):
        return not self.asymmetric

    def _nonlinearity(self, parameters=None, draw=None):
        if parameters is None:
            return DenseExponential(np.zeros(1), np.eye(1))
        return DenseExponential(
            np.minimum((1 - 1 / parameters.rho_) / 8, 0.0), parameters.rotation_
        )


@document
class DenseExponentialRF(PrincipalAxesRandomFeatures):
    r"""Optimal positive features fitted along each principal axis of the data (FAVOR#).

    Choose it over `OptimalPositiveRF` if a few directions hold most of the variance of the data:
    the fit costs O(n d^2 + d^3), and the variance is never larger on average. With
    ``asymmetric=True`` (softmax kernel), queries and keys with different covariances are balanced
    first. The two sides are then mapped differently, so for linear models prefer a symmetric
    feature map.

    %(sigma)s

    Parameters
    ----------
    %(n_components)s
    asymmetric : bool, default=False
        Replace x.y by (S x).(S^-T y) with the S that gives queries and keys the same covariance
        (the identity without separate keys). Softmax kernel only.
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
    rho_ : ndarray of shape (n_features,)
        The root rho* of every principal axis.
    rotation_ : ndarray of shape (n_features, n_features)
        The principal axes of x + y, one per row.

    Raises
    ------
    ValueError
        By `fit`, if a parameter is invalid, or for ``asymmetric=True`` with the Gaussian kernel.

    See Also
    --------
    OptimalPositiveRF : One number in place of the matrix.
    AdaptiveRF : Projections near the data, mixed with this proposal.

    Notes
    -----
    A feature is that of `OptimalPositiveRF` with one A_l for every principal axis l of x + y: the
    exponent is the sum over the axes of A_l w_l^2 + sqrt(1 - 4 A_l) w_l x_l - x_l^2, with the
    coordinates of w and x along them.

    References
    ----------
    Likhosherstov et al., FAVOR#: Sharp attention kernel approximations via new classes of
    positive random features (2023); the asymmetric form with covariances is ours.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import DenseExponentialRF, OptimalPositiveRF
    >>> X = np.random.default_rng(0).normal(size=(50, 4)) * [3.0, 1.0, 0.3, 0.1]
    >>> dense = DenseExponentialRF(64, coupling="iid", random_state=0).fit(X)
    >>> optimal = OptimalPositiveRF(64, coupling="iid", random_state=0).fit(X)
    >>> bool(
    ...     dense.kernel_variance(X, log=True).mean() < optimal.kernel_variance(X, log=True).mean()
    ... )
    True
    """

    def __init__(
        self,
        n_components: int = 100,
        *,
        asymmetric: bool = False,
        sigma: Sigma | None = None,
        kernel: Kernel = "gaussian",
        coupling: CouplingLike = "orthogonal",
        projection: Literal["dense", "hadamard"] = "dense",
        center: bool = True,
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.asymmetric = asymmetric
        self.sigma = sigma
        self.kernel = kernel
        self.coupling = coupling
        self.projection = projection
        self.center = center
        self.random_state = random_state


# Share of the mean variance, added to all variances: directions in which a set hardly varies are
# set by rounding, and would change with the order and batches of the same rows.
_RIDGE = 1e-3
# Share of the mean square, added to variances before balancing: variances made of rounding alone
# would stretch means by many orders of magnitude and destroy all digits.
_FLOOR = 1e-10
_ROUNDING = 1e-18  # share of the floor, which the variance of constant rows does not exceed


def balancing_map(query_covariance, key_covariance, query_floor=0.0, key_floor=0.0):
    """Return S and S^-T that give S x and S^-T y the same covariance; (S x).(S^-T y) = x.y.

    Parameters
    ----------
    query_covariance, key_covariance : ndarray of shape (d, d)
        Covariances of queries and keys; a ridge of a thousandth of their mean variance is added.
    query_floor, key_floor : float
        Added to all their variances.

    Returns
    -------
    tuple of ndarray of shape (d, d)
        S and its inverse transpose; identities if one of the sets does not vary.
    """
    identity, roots = np.eye(len(query_covariance)), []
    for C, floor in ((query_covariance, query_floor), (key_covariance, key_floor)):
        variance = np.trace(C) / len(C)
        if variance <= _ROUNDING * floor:
            return identity, identity
        roots.append(np.linalg.cholesky(C + (_RIDGE * variance + floor) * identity))
    # S'S = Z Z' with Z = X^-T U D^(1/2) solves S'S Cx S'S = Cy, for Cx = X X', Cy = Y Y' and
    # X'Y = U D V'. Singular values of factors have twice the digits of eigenvalues of products.
    left, sizes, _ = np.linalg.svd(roots[0].T @ roots[1])
    axes, stretch, _ = np.linalg.svd(np.linalg.solve(roots[0].T, left * np.sqrt(sizes)))
    return (axes * stretch) @ axes.T, (axes / stretch) @ axes.T
