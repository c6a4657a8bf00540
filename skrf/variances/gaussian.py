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
from scipy.special import gammaln

from .._arrays import squared_distances
from .coupling import cosine_pair, exponential_pair


def log_expm1(t):
    """Return log(exp(t) - 1) for t >= 0, right for tiny and for huge t; -inf at 0."""
    t = np.asarray(t, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return t + np.log(-np.expm1(-t))


@dataclass(frozen=True)
class PairGeometry:
    """What the closed forms need to know of every pair of inputs.

    Parameters
    ----------
    n_features : int
        Dimension d.
    norms2 : ndarray of shape (n_x, n_y)
        |x|^2 + |y|^2.
    sum2, difference2 : ndarray of shape (n_x, n_y)
        |x + y|^2 and |x - y|^2.
    """

    n_features: int
    norms2: np.ndarray
    sum2: np.ndarray
    difference2: np.ndarray

    @classmethod
    def of(cls, X, Y):
        """Return the geometry of all pairs of rows of two dense float64 arrays."""
        x2, y2 = (np.einsum("ij,ij->i", Z, Z) for Z in (X, Y))
        return cls(
            X.shape[1],
            np.add.outer(x2, y2),
            squared_distances(X, Y, sign=1),
            squared_distances(X, Y),
        )


@dataclass(frozen=True)
class Exponential:
    """D exp(A |w|^2 + B w.x - |x|^2) on both sides, A = (1 - 1/rho) / 8 (rho = 1: positive)."""

    rho: float = 1.0

    def log_scale(self, geometry):
        """Return log K^2."""
        return -geometry.difference2

    def log_own(self, geometry):
        """Return log(exp(delta) - 1), delta = d log1p((1 - sqrt rho)^2/(2 sqrt rho)) + rho v^2."""
        root = np.sqrt(self.rho)
        spread = geometry.n_features * np.log1p((1 - root) ** 2 / (2 * root))
        return log_expm1(spread + self.rho * geometry.sum2)

    def pair(self, geometry, cosine, log_unit=0.0):
        """Return the pair term over exp(log_unit); it does not depend on rho."""
        return exponential_pair(geometry.sum2, geometry.n_features, cosine, log_unit)


@dataclass(frozen=True)
class Hyperbolic:
    """[exp(w.x - |x|^2), exp(-w.x - |x|^2)] / sqrt 2 on both sides."""

    def log_scale(self, geometry):
        """Return log K^2."""
        return -geometry.difference2

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
class RandomPhase:
    """sqrt(2) cos(w.x + phase) on both sides, phase uniform: a sine-cosine pair in one column."""

    def log_scale(self, geometry):
        """Return 0."""
        return np.zeros_like(geometry.difference2)

    def log_own(self, geometry):
        """Return log((1 - K^2)^2 / 2 + 1 / 2)."""
        return np.log1p(np.expm1(-geometry.difference2) ** 2) - np.log(2)

    def pair(self, geometry, cosine, log_unit=0.0):
        """Raise: the phase is drawn for a single projection only."""
        raise NotImplementedError("RandomPhase describes a single projection, which has no pair.")


@dataclass(frozen=True)
class Regularized:
    """Positive features whose projections all have the length sqrt(d).

    The mean is a lower kernel, exp(-n) F(d v^2 / 4) with F = 0F1(; d/2; .), and two rows at
    cosine t have |omega_i + omega_j|^2 = 2 d (1 + t): every pair term is exact.
    """

    def log_scale(self, geometry):
        """Return the log of the squared lower kernel."""
        return 2 * (self._log_series(geometry, 0.5) - geometry.norms2)

    def log_own(self, geometry):
        """Return the log of the one-projection variance."""
        return log_expm1(self._log_excess(geometry, 1.0))

    def pair(self, geometry, cosine, log_unit=0.0):
        """Return the pair term over exp(log_unit)."""
        excess = self._log_excess(geometry, cosine)
        return np.where(
            excess > 0,
            -np.expm1(-np.abs(excess)) * np.exp(np.maximum(excess, 0) - log_unit),
            np.expm1(np.minimum(excess, 0)) * np.exp(-np.asarray(log_unit)),
        )

    def _log_excess(self, geometry, cosine):
        return self._log_series(geometry, 1 + cosine) - 2 * self._log_series(geometry, 0.5)

    @staticmethod
    def _log_series(geometry, factor):
        """Return log 0F1(; d/2; factor d v^2 / 2), by its series of positive terms."""
        d = geometry.n_features
        z = factor * d * geometry.sum2.ravel() / 2
        out = np.empty_like(z)
        for start in range(0, len(z), 1024):
            part = z[start : start + 1024]
            last = int(3 * np.sqrt(part.max()) + 60)
            k = np.arange(1, last + 1)
            with np.errstate(divide="ignore"):
                logs = k * np.log(part)[:, None]
            logs -= gammaln(k + 1) + gammaln(d / 2 + k) - gammaln(d / 2)
            top = np.maximum(logs.max(axis=1), 0.0)
            tail = np.exp(logs - top[:, None]).sum(axis=1)
            out[start : start + 1024] = np.where(
                top > 0, top + np.log(np.exp(-top) + tail), np.log1p(tail)
            )
        return out.reshape(geometry.sum2.shape)
