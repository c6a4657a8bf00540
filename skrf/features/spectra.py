"""Shift-invariant kernels by their spectra: how Gaussian rows become frequencies.

Every spectrum starts from the same coupled standard normal rows, so each kernel works under every
coupling.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import gammaln, ndtr

from .. import variances

_ROUNDING = 1e-14  # of the mean of thousands of equal numbers, relative to it, with a margin


class Spectrum:
    """Base of all kernels of differences."""

    metric = "euclidean"

    def scale(self, moments):
        """Return 1/sigma for ``sigma="scale"``, 0 for constant rows.

        The kernel is about exp(-2) at a typical distance.
        """
        return moments.spread


class ProductSpectrum(Spectrum):
    """Base of the kernels that are products over columns.

    A column of frequencies is a function of one of Gaussian rows, so that their directions are not
    uniform, and the covariance of two orthogonal rows has no closed form.
    """

    has_exact_pairs = False

    def variance(self, X, Y):
        """Return the variance of one sine-cosine pair for all pairs of scaled rows."""
        logs = self.log_kernel(X, Y), self.log_kernel(2 * X, 2 * Y)
        return np.exp(variances.log_trigonometric_variance(*logs))

    def pair(self, X, Y):
        """Return a bound on the covariance of the cosines of two orthogonal rows.

        Let a(u) be the mean cosine of a row with the direction u, and a_k its part of degree k in
        spherical harmonics. The covariance is sum_k P_k(0) E[a_k(u)^2] over k = 2, 4, ..., with
        Gegenbauer polynomials P_k, P_k(1) = 1, of which P_4(0) = 3 / (d^2 - 1) is the largest; and
        sum_k E[a_k(u)^2] is at most the variance of a cosine. Where a(u) is smooth, P_2(0) < 0
        counts for more.
        """
        return 3 / (X.shape[1] ** 2 - 1) * self.variance(X, Y)


@dataclass(frozen=True)
class Laplacian(ProductSpectrum):
    """exp(-|Delta|_1): Cauchy frequencies."""

    metric = "cityblock"

    def scale(self, moments):
        """Return half of the mean L1 distance of rows, estimated from the moments.

        In a column of standard deviation s, the mean distance is 2 s / sqrt(pi) if it is normal; it
        is at most twice the mean of x - min x, which it nearly is if most entries are the minimum.
        """
        deviations = np.sqrt(moments.variances)
        deviations[deviations <= _ROUNDING * np.abs(moments.mean)] = 0.0
        halves = np.minimum(deviations / math.sqrt(math.pi), moments.mean - moments.minimum)
        return float(np.maximum(halves, 0.0).sum())

    def frequencies(self, rows, rng):
        """Return frequencies made from standard normal rows."""
        return np.tan(np.pi * (ndtr(rows) - 0.5))

    def log_kernel(self, X, Y):
        """Return the log kernel of all pairs of scaled rows."""
        return -cdist(X, Y, "cityblock")


@dataclass(frozen=True)
class Cauchy(ProductSpectrum):
    """prod_l 1 / (1 + Delta_l^2): Laplace frequencies."""

    def scale(self, moments):
        """Return the root of half of the mean squared distance.

        With many columns, the kernel is exp(-|Delta|^2), the square of the Gaussian one.
        """
        return math.sqrt(2) * super().scale(moments)

    def frequencies(self, rows, rng):
        """Return frequencies made from standard normal rows."""
        # The Laplace quantile of Phi(g), computed from the smaller tail on either side.
        return -np.sign(rows) * np.log(2 * ndtr(-np.abs(rows)))

    def log_kernel(self, X, Y):
        """Return the log kernel of all pairs of scaled rows."""
        out = np.zeros((len(X), len(Y)))
        for x, y in zip(X.T, Y.T, strict=True):
            out -= np.log1p(np.subtract.outer(x, y) ** 2)
        return out


@dataclass(frozen=True)
class Matern(Spectrum):
    """The Matern kernel of half-integer nu: frequencies of a multivariate t distribution.

    Parameters
    ----------
    nu : float
        0.5, 1.5 or 2.5.
    """

    nu: float
    has_exact_pairs = True

    def frequencies(self, rows, rng):
        """Return frequencies made from standard normal rows, with one chi square per row."""
        chi2 = rng.chisquare(2 * self.nu, size=len(rows))
        return rows * np.sqrt(2 * self.nu / chi2)[:, None]

    def log_kernel(self, X, Y):
        """Return the log kernel of all pairs of scaled rows."""
        return self.log_profile(cdist(X, Y))

    def log_profile(self, distances):
        """Return the log kernel at distances."""
        r = np.sqrt(2 * self.nu) * distances
        polynomial = {0.5: 0.0, 1.5: r, 2.5: r + r**2 / 3}[self.nu]
        return np.log1p(polynomial) - r

    def density(self, squares, n_axes):
        """Return the spectral density at frequencies with these squared lengths."""
        power = self.nu + n_axes / 2
        log = n_axes * np.log(4 * np.pi) / 2 + gammaln(power) - gammaln(self.nu)
        return np.exp(log + self.nu * np.log(2 * self.nu) - power * np.log(2 * self.nu + squares))

    def variance(self, X, Y):
        """Return the variance of one sine-cosine pair for all pairs of scaled rows."""
        return variances.matern_variance(cdist(X, Y), self.nu)

    def pair(self, X, Y):
        """Return the covariance of the cosines of two orthogonal rows."""
        return variances.matern_pair(cdist(X, Y), X.shape[1], self.nu)


class Gaussian(Spectrum):
    """exp(-|Delta|^2 / 2), whose frequencies are the Gaussian rows themselves."""

    def log_profile(self, distances):
        """Return the log kernel at distances."""
        return distances * distances / -2

    def density(self, squares, n_axes):
        """Return the spectral density at frequencies with these squared lengths."""
        return (2 * np.pi) ** (n_axes / 2) * np.exp(squares / -2)


# The Gaussian kernel needs no other frequencies, and is not among these.
SPECTRA = {
    "laplacian": Laplacian(),
    "cauchy": Cauchy(),
    "matern12": Matern(0.5),
    "matern32": Matern(1.5),
    "matern52": Matern(2.5),
}
