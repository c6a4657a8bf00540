"""Closed forms for features of Gaussian projections (Gaussian kernel K = exp(-|x - y|^2 / 2)).

A law describes one estimator. The mean squared error of m projections is

    exp(log_scale) * (exp(log_own) / m + pair terms / m^2),

log_own the log variance of a single projection and `pair` the covariance of two projections of a
block, both in units of exp(log_scale). The forms lose nothing to cancellation or overflow.
Sources: Likhosherstov et al., Chefs' random tables, theorems 3.1 and 3.2; Reid et al., Simplex
random features, theorem 3.4.
"""

from dataclasses import dataclass

import numpy as np

from .._arrays import squared_distances
from ._hypergeometric import log_hyp0f1
from .coupling import cosine_pair, exponential_pair

_NEAR = 4.0  # |x + y|^2 up to which `Regularized` uses its series


def log_expm1(t):
    """Return log(exp(t) - 1) for t >= 0, accurate for tiny and huge t; -inf at 0."""
    t = np.asarray(t, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return t + np.log(-np.expm1(-t))


@dataclass(frozen=True)
class PairGeometry:
    """The quantities that closed forms depend on, for every pair of inputs.

    Parameters
    ----------
    n_features : int
        Dimension d.
    norms2 : ndarray of shape (n_x, n_y)
        |x|^2 + |y|^2.
    sum2, difference2 : ndarray of shape (n_x, n_y)
        |x + y|^2 and |x - y|^2.
    weighted_sum2 : ndarray of shape (n_x, n_y) or None
        A quadratic form of x + y, for the laws that need one.

    See Also
    --------
    log_mean_squared_error : The error of a closed form at these pairs.
    skrf.theory.kernel_variance : The variance for a fitted feature map.

    References
    ----------
    Likhosherstov et al., Chefs' random tables (2022), theorems 3.1 and 3.2.
    """

    n_features: int
    norms2: np.ndarray
    sum2: np.ndarray
    difference2: np.ndarray
    weighted_sum2: np.ndarray | None = None

    @classmethod
    def of(cls, X: np.ndarray, Y: np.ndarray, axes: np.ndarray | None = None) -> "PairGeometry":
        """Return the geometry of all pairs of rows of two dense float64 arrays.

        Parameters
        ----------
        X, Y : ndarray of shape (n_x, d) and (n_y, d)
            The rows.
        axes : ndarray of shape (d, d), default=None
            Matrix of the quadratic form ``weighted_sum2``, |axes (x + y)|^2.
        """
        x2, y2 = (np.einsum("ij,ij->i", Z, Z) for Z in (X, Y))
        return cls(
            X.shape[1],
            np.add.outer(x2, y2),
            squared_distances(X, Y, sign=1),
            squared_distances(X, Y),
            None if axes is None else squared_distances(X @ axes.T, Y @ axes.T, sign=1),
        )


class _InKernelUnits:
    """A law in units of the squared kernel."""

    def log_scale(self, geometry):
        """Return log K^2."""
        return -geometry.difference2


@dataclass(frozen=True)
class Exponential(_InKernelUnits):
    """D exp(A |w|^2 + B w.x - |x|^2) on both sides, A = (1 - 1/rho) / 8 (rho = 1: positive)."""

    rho: float = 1.0

    def log_own(self, geometry):
        """Return log(exp(delta) - 1), delta = d log1p((1 - sqrt rho)^2/(2 sqrt rho)) + rho v^2."""
        root = np.sqrt(self.rho)
        spread = geometry.n_features * np.log1p((1 - root) ** 2 / (2 * root))
        return log_expm1(spread + self.rho * geometry.sum2)

    def pair(self, geometry, cosine, log_unit=0.0):
        """Return the pair term divided by exp(log_unit); it does not depend on rho."""
        return exponential_pair(geometry.sum2, geometry.n_features, cosine, log_unit)


@dataclass(frozen=True)
class Generalized(_InKernelUnits):
    """Real and imaginary part of D exp(A |w|^2 + B w.x + C |x|^2), complex A, s = 1 or -1.

    The pair term does not depend on A: tilting the norms by exp(2 A |w|^2) rescales the radial
    integrals by powers of 1 - 4A, which D and B undo. This holds for complex A too, so coupled
    projections have a closed form for every member of the family.

    Parameters
    ----------
    A : complex
        Re(1 - 8A) > 0.
    s : {-1, 1}
        Sign of the family.
    folded : bool, default=False
        Whether there is one projection, in a single column with a random phase.
    """

    A: complex
    s: int
    folded: bool = False

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
        total = np.log1p((excess + (1 if self.folded else 0)) / 2)
        return log_a3 + a4 * v2 + total

    def pair(self, geometry, cosine, log_unit=0.0):
        """Return the pair term over exp(log_unit); it does not depend on A."""
        d = geometry.n_features
        if self.s == 1:
            return exponential_pair(geometry.sum2, d, cosine, log_unit)
        # cosine_pair is in absolute units; the scale here is K^2.
        return cosine_pair(geometry.difference2, d, cosine, log_unit - geometry.difference2)


@dataclass(frozen=True)
class AxisExponential(_InKernelUnits):
    """Dense exponential features: the optimal positive map along each principal axis.

    Parameters
    ----------
    rho : ndarray of shape (d,)
        The root of every axis.
    log_penalty : float, default=0
        Log factor of the second moment: log(1 / a) bounds features drawn from a mixture in
        which this proposal has the share a.
    """

    rho: np.ndarray
    log_penalty: float = 0.0

    def log_own(self, geometry):
        """Return log(exp(delta) - 1), delta a sum over the axes; requires `weighted_sum2`."""
        root = np.sqrt(self.rho)
        spread = np.sum(np.log1p((1 - root) ** 2 / (2 * root)))
        return log_expm1(spread + geometry.weighted_sum2 + self.log_penalty)


@dataclass(frozen=True)
class Hyperbolic(_InKernelUnits):
    """[exp(w.x - |x|^2), exp(-w.x - |x|^2)] / sqrt 2 on both sides."""

    def log_own(self, geometry):
        """Return log(2 sinh(v^2 / 2)^2)."""
        with np.errstate(divide="ignore"):
            return geometry.sum2 - np.log(2) + 2 * np.log(-np.expm1(-geometry.sum2))

    def pair(self, geometry, cosine, log_unit=0.0):
        """Return the pair term over exp(log_unit), averaged over the sign of omega_j."""
        d = geometry.n_features
        signs = (cosine, -cosine)
        return sum(exponential_pair(geometry.sum2, d, t, log_unit, linear=False) for t in signs) / 2


@dataclass(frozen=True)
class Trigonometric:
    """[cos w.x, sin w.x] on both sides."""

    def log_scale(self, geometry):
        """Return 0."""
        return np.zeros_like(geometry.difference2)

    def log_own(self, geometry):
        """Return log((1 - K^2)^2 / 2)."""
        with np.errstate(divide="ignore"):
            return 2 * np.log(-np.expm1(-geometry.difference2)) - np.log(2)

    def pair(self, geometry, cosine, log_unit=0.0):
        """Return the pair term over exp(log_unit)."""
        return cosine_pair(geometry.difference2, geometry.n_features, cosine, log_unit)


@dataclass(frozen=True)
class RandomPhase(Trigonometric):
    """sqrt(2) cos(w.x + phase) on both sides, phase uniform: a sine-cosine pair in one column."""

    def log_own(self, geometry):
        """Return log((1 - K^2)^2 / 2 + 1 / 2)."""
        return np.log1p(np.expm1(-geometry.difference2) ** 2) - np.log(2)

    def pair(self, geometry, cosine, log_unit=0.0):
        """Raise, because the phase is drawn only for a single projection."""
        raise NotImplementedError("RandomPhase describes a single projection, which has no pair.")


@dataclass(frozen=True)
class Regularized:
    """Positive features whose projections all have length sqrt(d).

    The mean is a lower kernel, exp(-n) F(v^2 / 2) with F(u) = 0F1(; d/2; d u / 2), and two rows at
    cosine t have |omega_i + omega_j|^2 = 2 d (1 + t), hence the second moment F((1 + t) v^2): every
    pair term is exact. Near v = 0 a series computes their differences. The projections of a simplex
    block add up to 0, so t times the own term would cancel there, and `pair` leaves it out.
    """

    def log_scale(self, geometry):
        """Return the log of the squared lower kernel."""
        grown = np.sqrt(geometry.n_features * geometry.sum2)
        return 2 * (self._log_moment(geometry, 0.5) + grown - geometry.norms2)

    def log_own(self, geometry):
        """Return the log of the one-projection variance."""
        far = log_expm1(np.maximum(self._log_excess(geometry, 1.0), 0.0))
        with np.errstate(divide="ignore"):
            near = np.log(_near_series(geometry)) + self._log_unit(geometry)
        return np.where(geometry.sum2 <= _NEAR, near, far)

    def pair(self, geometry, cosine, log_unit=0.0):
        """Return the pair term over exp(log_unit), less its linear part."""
        excess = self._log_excess(geometry, cosine)
        with np.errstate(over="ignore", invalid="ignore"):  # near 0
            far = np.exp(excess - log_unit) - np.exp(-np.asarray(log_unit))
        near = _near_series(geometry, cosine) * np.exp(self._log_unit(geometry) - log_unit)
        return np.where(geometry.sum2 <= _NEAR, near, far)

    def linear_part(self, geometry):
        """Return the share of cosine times the own term that `pair` leaves out."""
        return (geometry.sum2 <= _NEAR).astype(float)

    def _log_moment(self, geometry, factor):
        """Return log F(factor v^2) minus its growth sqrt(2 factor d) v."""
        d = geometry.n_features
        return log_hyp0f1(d / 2, factor * d / 2 * geometry.sum2)

    def _log_excess(self, geometry, cosine):
        """Return log(F((1 + t) v^2) / F(v^2 / 2)^2); both grow alike for t = 1."""
        grown = np.sqrt(2 * geometry.n_features * geometry.sum2) * (
            np.sqrt(1 + cosine) - np.sqrt(2)
        )
        moments = self._log_moment(geometry, 1 + cosine), self._log_moment(geometry, 0.5)
        return moments[0] - 2 * moments[1] + grown

    def _log_unit(self, geometry):
        """Return the log of the unit of the series, v^2 / F(v^2 / 2)^2."""
        grown = np.sqrt(geometry.n_features * geometry.sum2)
        with np.errstate(divide="ignore"):
            return np.log(geometry.sum2) - 2 * (self._log_moment(geometry, 0.5) + grown)


def _near_series(geometry, cosine=None):
    """Return (F((1 + t) v^2) - F(v^2 / 2)^2) / v^2 for v^2 up to 4, as a power series.

    Without a cosine this is the own term, t = 1; with one it is the pair term minus t times the own
    term. F(v^2 / 2)^2 is the mean over two independent directions.
    """
    d = geometry.n_features
    k, steps = np.arange(1, 51), np.arange(50)
    independent = np.cumsum(np.log1p(steps / np.maximum(d - 1 + steps, 1)))
    terms = 2.0**k - np.exp(independent)
    if cosine is not None:
        with np.errstate(divide="ignore"):
            terms = np.expm1(k * np.log1p(cosine)) - np.expm1(independent) - cosine * terms
        terms[0] = 0.0
    sizes = np.cumprod(d / ((d + 2 * steps) * k))
    return np.polynomial.polynomial.polyval(np.minimum(geometry.sum2, _NEAR), terms * sizes)


def log_trigonometric_variance(log_kernel, log_double, folded=False):
    """Return log((1 + K(2 Delta) - 2 K(Delta)^2) / 2), the variance of one sine-cosine pair.

    Parameters
    ----------
    log_kernel, log_double : ndarray
        log K(Delta) and log K(2 Delta) of any shift-invariant kernel.
    folded : bool, default=False
        One column with a random phase, which adds 1/2.
    """
    value = (np.expm1(log_double) - 2 * np.expm1(2 * log_kernel)) / 2 + (0.5 if folded else 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(value, 0.0))
