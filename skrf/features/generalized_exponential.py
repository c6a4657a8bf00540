"""Exponential features exp(A |w|^2 + B w.x + C |x|^2) with a complex, fitted parameter."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.optimize import minimize

from .. import _kernels
from .._arrays import columns, like, namespace
from ..variances import cosine_pair, exponential_pair, log_expm1
from ._docs import document
from ._map import signed_rows
from .exponential import Exponential, optimal_rho
from .gaussian import CenteredRandomFeatures
from .nonlinearities import Nonlinearity
from .streams import PHASE, rng_of

_SAME = 1e-9  # relative to 1 and to the value: smaller gains do not matter
_WIDE = 1e-3  # step of differences
_LEAST_BEND = 1e-11  # second difference, relative to the same, that is far above rounding


@dataclass(frozen=True)
class GeneralizedExponential(Nonlinearity):
    """Real and imaginary part of D exp(A |w|^2 + B w.x + C |x|^2) with complex A.

    Side 1 is [Re f1, Im f1] with B = sqrt(s (1 - 4A)); side 2 is [Re f2, -Im f2] with s B, the
    parts of the conjugate. D = (1 - 4A)^(d/4), C = -(s + 1) / 2, principal roots. With a phase,
    uniform on (0, 2 pi), the pair is folded into one column, sqrt(2) Re(e^{i phase} f1) and
    sqrt(2) Re(e^{-i phase} f2).

    The pair term does not depend on A: tilting the norms by exp(2 A |w|^2) rescales the radial
    integrals by powers of 1 - 4A, which D and B undo. This holds for complex A too, so coupled
    projections have a closed form for every member of the family. Source of the variance:
    Likhosherstov et al., Chefs' random tables, theorem 3.1.

    Parameters
    ----------
    A : complex
        Re(1 - 8A) > 0.
    s : {-1, 1}
        1 for exponential, -1 for oscillating features.
    phase : float or None
        Phase of a folded pair.
    """

    A: complex
    s: int
    phase: float | None = None

    @property
    def columns_per_projection(self):
        """Two, or one for a folded pair."""
        return 2 if self.phase is None else 1

    @property
    def is_symmetric(self):
        """Whether both sides agree: for s = -1 and real A they are [cos, sin]."""
        return self.s == -1 and self.A.imag == 0

    def multiplier(self, projection):
        """Return the projection as it is and A |w|^2 + log D."""
        log_D = projection.n_features / 4 * np.log(1 - 4 * self.A)
        return projection, self.A * projection.squared_norms + log_D

    @property
    def norm_slope(self):
        """C, the multiplier of |x|^2."""
        return -(self.s + 1) / 2

    def log_own(self, geometry):
        """Return log(second moment / K^2 - 1)."""
        v2 = geometry.sum2 if self.s == 1 else geometry.difference2
        # K^2 exp(|x + s y|^2 (s + 1)/2 ...): -(s + 1) n + |Delta|^2 = -v2 for s = 1, v2 for -1.
        excess = self.log_second_moment(v2, geometry.n_features) - self.s * v2
        return log_expm1(np.maximum(excess, 0))

    def log_second_moment(self, v2, n_features):
        """Return log of exp((s + 1) n) times the second moment, at v2 = |x + s y|^2."""
        A, s, d = self.A, self.s, n_features
        log_a1 = d / 2 * np.log(1 + 16 * A**2 / (1 - 8 * A))
        a2 = s + s / (1 - 8 * A)
        width = 1 - 8 * A.real
        log_a3 = d / 2 * np.log1p(16 * abs(A) ** 2 / width)
        a4 = s / 2 + (s + 2 * abs(1 - 4 * A)) / (2 * width)
        exponent = log_a1 + a2 * v2 - log_a3 - a4 * v2
        # Re exp(e) - 1 without cancellation; |exp(e)| <= 1.
        size, angle = np.minimum(exponent.real, 0.0), exponent.imag
        excess = np.expm1(size) * np.cos(angle) - 2 * np.sin(angle / 2) ** 2
        total = np.log1p((excess + (0 if self.phase is None else 1)) / 2)
        return log_a3 + a4 * v2 + total

    def pair(self, geometry, cosine, log_unit=0.0):
        """Return the pair term over exp(log_unit); it does not depend on A."""
        d = geometry.n_features
        if self.s == 1:
            return exponential_pair(geometry.sum2, d, cosine, log_unit)
        # cosine_pair is in absolute units; the scale here is K^2.
        return cosine_pair(geometry.difference2, d, cosine, log_unit - geometry.difference2)

    def log_range(self, geometry):
        """Return that of numbers of either sign, which are bounded for Re A < 0."""
        if self.A.real < 0 or (self.A == 0 and self.s == -1):
            nearest2 = geometry.sum2 if self.s == 1 else geometry.difference2
            size = self._slope(False).real ** 2 / (-8 * self.A.real or 1.0)
            log_D2 = geometry.n_features / 2 * math.log(abs(1 - 4 * self.A))
            bound = log_D2 + size * nearest2 + self.norm_slope * geometry.norms2
            return bound + math.log(2 if self.phase is None else 4)

    def _slope(self, keys):
        """Return the factor of products: B, or for keys the conjugate of s B."""
        B = complex(np.sqrt(complex(self.s * (1 - 4 * self.A))))
        return self.s * B.conjugate() if keys else B

    def _polar(self, products, row, bias, keys):
        """Return log magnitudes and angles."""
        slope, bias = self._slope(keys), bias.conj() if keys else bias
        logs = products * slope.real + (row[:, None] + like(bias.real, products)[None, :])
        angle = products * slope.imag + like(bias.imag, products)[None, :]
        if self.phase is None:
            return logs, angle
        return logs + math.log(2) / 2, angle + self.phase

    def apply(self, products, row, bias, *, keys=False):
        """Return the columns of one side, each on its own scale."""
        xp = namespace(products)
        logs, angle = self._polar(products, row, bias, keys)
        if self.phase is not None:
            return signed_rows(xp.cos(angle), logs)
        return signed_rows(columns([xp.cos(angle), xp.sin(angle)]), columns([logs, logs]))

    def write(self, products, row, bias, out, *, keys=False, plain=False):
        """Write the columns and return their scale; NumPy only."""
        if self.phase is not None:
            return super().write(products, row, bias, out, keys=keys, plain=plain)
        logs, angle = self._polar(products, row, bias, keys)
        _kernels.sine_cosine(angle, None, out)
        if not plain:
            return columns([logs, logs])
        m = logs.shape[1]
        _kernels.exp(logs, logs)
        out[:, :m] *= logs
        out[:, m:] *= logs
        return 0.0


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
        nonlinearity = GeneralizedExponential(A, s)
        value = nonlinearity.log_second_moment(mean_squared_sums[s], n_features)
        return float(value - (s + 1) * mean_norms2)

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

    def _learn(self, parameters, statistics):
        super()._learn(parameters, statistics)
        square = parameters.sigma**2
        sums = {s: square * statistics.mean_squared_sum(parameters.offset_, s) for s in (1, -1)}
        mean_norms2 = (sums[1] + sums[-1]) / 2
        parameters.A_, parameters.s_ = fit_generalized(sums, mean_norms2, parameters.n_features)
        # A real exponential map needs one column per projection.
        columns = 1 if _is_real(parameters) else 2
        parameters.n_projections = -(-self.n_components // columns)

    def _draw(self, parameters, seed):
        draw = super()._draw(parameters, seed)
        draw.phase = rng_of(seed, PHASE).uniform(0, 2 * math.pi)
        return draw

    def _nonlinearity(self, parameters=None, draw=None):
        if parameters is None:
            return GeneralizedExponential(0j, -1)
        if _is_real(parameters):
            return Exponential(parameters.A_.real)
        phase = getattr(draw, "phase", 0.0) if self.n_components == 1 else None
        return GeneralizedExponential(parameters.A_, parameters.s_, phase)


def _is_real(parameters):
    return parameters.s_ == 1 and parameters.A_.imag == 0
