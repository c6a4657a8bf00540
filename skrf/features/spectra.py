"""Shift-invariant kernels by their spectra: how Gaussian rows become frequencies.

Every spectrum starts from the same coupled standard normal rows, so each kernel works under every
coupling.
"""

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import ndtr


@dataclass(frozen=True)
class Laplacian:
    """exp(-|Delta|_1): Cauchy frequencies."""

    def frequencies(self, rows, rng):
        """Return frequencies made from standard normal rows."""
        return np.tan(np.pi * (ndtr(rows) - 0.5))

    def log_kernel(self, X, Y):
        """Return the log kernel of all pairs of scaled rows."""
        return -cdist(X, Y, "cityblock")


@dataclass(frozen=True)
class Cauchy:
    """prod_l 1 / (1 + Delta_l^2): Laplace frequencies."""

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
class Matern:
    """The Matern kernel of half-integer nu: frequencies of a multivariate t distribution.

    Parameters
    ----------
    nu : float
        0.5, 1.5 or 2.5.
    """

    nu: float

    def frequencies(self, rows, rng):
        """Return frequencies made from standard normal rows, with one chi square per row."""
        chi2 = rng.chisquare(2 * self.nu, size=len(rows))
        return rows * np.sqrt(2 * self.nu / chi2)[:, None]

    def log_kernel(self, X, Y):
        """Return the log kernel of all pairs of scaled rows."""
        r = np.sqrt(2 * self.nu) * cdist(X, Y)
        polynomial = {0.5: 0.0, 1.5: r, 2.5: r + r**2 / 3}[self.nu]
        return np.log1p(polynomial) - r


SPECTRA = {
    "laplacian": Laplacian(),
    "cauchy": Cauchy(),
    "matern12": Matern(0.5),
    "matern32": Matern(1.5),
    "matern52": Matern(2.5),
}
