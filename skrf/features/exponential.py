"""Exponential features exp(A |w|^2 + B w.x + C |x|^2) with parameters fitted to the data."""

import math
from functools import partial
from typing import Literal

import numpy as np
from scipy.optimize import minimize

from .. import variances
from .._typing import Kernel, RandomState, Sigma
from ..projections import CouplingLike
from ._docs import document
from .nonlinearities import DenseExponential, Exponential, GeneralizedExponential
from .positive import CenteredRandomFeatures
from .streams import PHASE, rng_of

_SAME = 1e-9  # relative to 1 and to the value: smaller gains do not matter
_WIDE = 1e-3  # step of differences
_LEAST_BEND = 1e-11  # second difference, relative to the same, that is far above rounding


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

    def _learn(self, learned, statistics):
        super()._learn(learned, statistics)
        mean_squared_sum = learned.sigma**2 * statistics.mean_squared_sum(learned.offset_)
        learned.rho_ = optimal_rho(mean_squared_sum, learned.n_features)
        learned.A_ = (1 - 1 / learned.rho_) / 8

    def _nonlinearity(self, learned=None, draw=None):
        return Exponential(0.0 if learned is None else learned.A_)

    def _law(self, learned):
        return variances.Exponential(learned.rho_)


def fit_generalized(mean_squared_sums, mean_norms2, n_features):
    """Return the (A, s) with the smallest log second moment at the mean statistics.

    Parameters
    ----------
    mean_squared_sums : dict of int to float
        Mean of |x + s y|^2 over pairs, for s = 1 and s = -1.
    mean_norms2 : float
        Mean of |x|^2 + |y|^2 over pairs.
    n_features : int
        Dimension d.

    Returns
    -------
    tuple of complex and int
        A and s. They are never worse than trigonometric, positive or optimal positive features,
        which are among the starting points.
    """

    def curve(point):
        # Exactly the half plane Re(1 - 8A) > 0.
        return (1 - np.exp(complex(point[0], math.pi / 2 * math.tanh(point[1])))) / 8

    def objective(point, s):
        A = complex(curve(point))
        # A line search may step to where A is 1/8 to rounding, or to where its square overflows.
        if not (1 - 8 * A.real > 0 and abs(A) < 1e150):
            return math.inf
        law = variances.Generalized(A, s)
        value = law.log_second_moment(mean_squared_sums[s], n_features) - (s + 1) * mean_norms2
        return float(value)

    optimal = -math.log(optimal_rho(mean_squared_sums[1], n_features))
    candidates = []
    for s, alpha in ((1, optimal), (1, 0.0), (-1, 0.0)):
        # On the real line (beta = 0) the gradient has no imaginary part, so start beside it too.
        for beta in (0.0, 0.3, 1.0):
            start = np.array([alpha, beta])
            with np.errstate(all="ignore"):
                optimum = minimize(objective, start, args=(s,), method="L-BFGS-B")
                values = [objective(point, s) for point in (start, optimum.x)]
            for point, value in zip((start, optimum.x), values, strict=True):
                if np.isfinite(value):
                    candidates.append((value, point, s))
    least = min(value for value, *_ in candidates)
    worst = least + _SAME * (1 + abs(least))
    point, s = next((point, s) for value, point, s in candidates if value <= worst)
    point = _polished(partial(objective, s=s), point)
    real = np.array([point[0], 0.0])
    if objective(real, s) <= worst:
        # Drop an imaginary part that gains nothing: it would only cost columns.
        return np.complex128(curve(real).real), s
    return np.complex128(curve(point)), s


def _polished(function, point):
    """Return a minimum of a function of two numbers, given one to about eight digits.

    Where it is flat, rounding decides where a line search ends. Here steps are wide, so that
    rounding hardly enters.
    """
    steps = _WIDE * np.eye(2)
    with np.errstate(all="ignore"):
        for _ in range(3):
            ahead, back = ([function(point + sign * step) for step in steps] for sign in (1, -1))
            mixed = function(point + steps[0] + steps[1]) + function(point - steps[0] - steps[1])
            middle = function(point)
            bent = np.add(ahead, back) - 2 * middle
            cross = (mixed - 2 * middle - bent.sum()) / 2
            slopes, curves = np.subtract(ahead, back) / 2, np.diag(bent) + cross * (1 - np.eye(2))
            if not np.isfinite(curves).all():
                break
            if np.linalg.eigvalsh(curves)[0] <= _LEAST_BEND * (1 + abs(middle)):
                break
            move = _WIDE * np.linalg.solve(curves, slopes)
            if np.abs(move).max() > _WIDE:
                break
            point = point - move
    return point


@document
class GeneralizedExponentialRF(CenteredRandomFeatures):
    r"""Generalised exponential features with a complex parameter fitted to the data (CRT-GERF).

    Choose it when low variance matters most and features may be negative: the
    family contains trigonometric, positive and optimal positive features, and `fit` picks its best
    member. Queries and keys are mapped differently unless the fitted map is real; if you
    need only one side (linear models on ``transform``), prefer a symmetric feature map.

    %(sigma)s

    Parameters
    ----------
    %(n_components)s Every projection makes two unless the fitted map is real, so
        the number must be even, or 1, which folds the pair into one with a random phase.
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
    A_ : complex
        The fitted parameter.
    s_ : {-1, 1}
        The fitted sign: 1 for exponential, -1 for oscillating features.

    Raises
    ------
    ValueError
        By `fit`, if a parameter is invalid.

    See Also
    --------
    OptimalPositiveRF : The best real parameter: positive features.
    DenseExponentialRF : A matrix in place of the one number A.

    Notes
    -----
    A feature is (1 - 4A)^(d/4) exp(A |w|^2 + B w.x - (s + 1) |x|^2 / 2) / sqrt(m), with
    B = sqrt(s (1 - 4A)), and s B in its place for keys. Of complex ones, real and imaginary parts
    are two components.

    References
    ----------
    Likhosherstov et al., Chefs' random tables (2022), theorem 3.1.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import GeneralizedExponentialRF, RFFSampler
    >>> X = np.random.default_rng(0).normal(size=(50, 16))
    >>> generalized = GeneralizedExponentialRF(64, coupling="iid", random_state=0).fit(X)
    >>> trigonometric = RFFSampler(64, coupling="iid", random_state=0).fit(X)
    >>> far = generalized.exact_kernel(X) < 0.5
    >>> bool(
    ...     np.median(generalized.kernel_variance(X, log=True)[far])
    ...     < np.median(trigonometric.kernel_variance(X, log=True)[far])
    ... )
    True
    """

    _is_symmetric = False  # unless the fitted map is real

    def _learn(self, learned, statistics):
        super()._learn(learned, statistics)
        square = learned.sigma**2
        sums = {s: square * statistics.mean_squared_sum(learned.offset_, s) for s in (1, -1)}
        mean_norms2 = (sums[1] + sums[-1]) / 2
        learned.A_, learned.s_ = fit_generalized(sums, mean_norms2, learned.n_features)
        # A real exponential map needs one column per projection.
        columns = 1 if _is_real(learned) else 2
        learned.n_projections = -(-self.n_components // columns)

    def _draw(self, learned, seed):
        draw = super()._draw(learned, seed)
        draw.phase = rng_of(seed, PHASE).uniform(0, 2 * math.pi)
        return draw

    def _nonlinearity(self, learned=None, draw=None):
        if learned is None:
            return GeneralizedExponential(0j, -1)
        if _is_real(learned):
            return Exponential(learned.A_.real)
        phase = draw.phase if self.n_components == 1 else None
        return GeneralizedExponential(learned.A_, learned.s_, phase)

    def _law(self, learned):
        is_folded = self.n_components == 1 and not _is_real(learned)
        return variances.Generalized(learned.A_, learned.s_, is_folded)


def _is_real(learned):
    return learned.s_ == 1 and learned.A_.imag == 0


class PrincipalAxesRandomFeatures(CenteredRandomFeatures):
    """Base of the maps fitted along the principal axes of x + y, after balancing if asymmetric."""

    _parameter_constraints = {"asymmetric": ["boolean"]}
    _needs_full_statistics = True
    # What is known about the error, and for which couplings.
    _known_errors = "closed form or bound", "'iid' (exact), 'orthogonal' (bound)"

    def _learn(self, learned, statistics):
        learned.balance = None
        if self.asymmetric and self.kernel != "softmax":
            raise ValueError(
                f"asymmetric=True balances x.y and needs kernel='softmax', got "
                f"kernel={self.kernel!r}."
            )
        if self.asymmetric and statistics.keys is not statistics.queries:
            learned.balance = balancing_map(
                statistics.queries.covariance,
                statistics.keys.covariance,
                *(_FLOOR * np.mean(side.mean**2) for side in (statistics.queries, statistics.keys)),
            )
            statistics = statistics.mapped(*learned.balance)
        super()._learn(learned, statistics)
        second_moment = learned.sigma**2 * statistics.mean_outer_sum(learned.offset_)
        squares, axes = np.linalg.eigh(second_moment)
        learned.rotation_ = axes.T
        learned.rho_ = np.array([optimal_rho(max(square, 0.0), 1) for square in squares])

    @property
    def _is_symmetric(self):
        return not self.asymmetric

    def _quadratic_form(self, learned):
        return np.sqrt(learned.rho_)[:, None] * learned.rotation_

    def _check_variance(self, learned):
        if self.coupling not in ("iid", "orthogonal"):
            what, couplings = self._known_errors
            raise NotImplementedError(
                f"No {what} is known for {type(self).__name__} with coupling={self.coupling!r}. "
                f"Known: {couplings}. theory.compare estimates the error from draws."
            )
        self._check_is_dense()

    def _log_variance(self, fitted, X, Y):
        learned = fitted.learned
        self._check_variance(learned)
        # The error of orthogonal projections does not exceed that of independent ones.
        return self._log_mean_squared_error(learned, X, Y, {1: learned.n_projections})


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

    def _nonlinearity(self, learned=None, draw=None):
        if learned is None:
            return DenseExponential(np.zeros(1), np.eye(1))
        return DenseExponential(np.minimum((1 - 1 / learned.rho_) / 8, 0.0), learned.rotation_)

    def _law(self, learned):
        return variances.AxisExponential(learned.rho_)

    def _variance_is_exact(self, learned):
        return self.coupling == "iid" or learned.n_features == 1


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
