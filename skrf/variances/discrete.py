"""Closed forms for features made of the Taylor series of exp(x.y) (Poisson and geometric counts).

Source: Likhosherstov et al., Chefs' random tables (2022), theorem 4.1.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import i0e, i1e

_BLOCK_ENTRIES = 2**22


@dataclass(frozen=True)
class Poisson:
    """exp(sum lam / 2) prod x^w lam^(-w/2), w_l ~ Poisson(lam_l).

    Parameters
    ----------
    lam : ndarray of shape (d,)
        Rates.
    """

    lam: np.ndarray

    def coordinate_delta(self, product):
        """Return the log second moment over the squared mean of every coordinate x_l y_l."""
        gap = product - self.lam
        with np.errstate(over="ignore"):  # it may be infinite, its square sooner
            return gap * (gap / self.lam)


@dataclass(frozen=True)
class Geometric:
    """p^(-d/2) prod x^w (1 - p)^(-w/2) (w!)^(-1/2), w_l geometric: p_k = p (1 - p)^k.

    Parameters
    ----------
    p : ndarray of shape (d,)
        Success probabilities.
    """

    p: np.ndarray

    def coordinate_delta(self, product):
        """Return the log second moment over the squared mean of every coordinate x_l y_l."""
        argument = 2 * np.abs(product) / np.sqrt(1 - self.p)
        return -np.log(self.p) + np.log(i0e(argument)) + (argument - 2 * product)

    def slope(self, product):
        """Return the derivative of `coordinate_delta` in p."""
        size = np.abs(product)
        argument = 2 * size / np.sqrt(1 - self.p)
        return -1 / self.p + i1e(argument) / i0e(argument) * size / (1 - self.p) ** 1.5


def log_relative_second_moment(law, X, Y):
    """Return delta, the sum over coordinates of the law, for all pairs of rows.

    Parameters
    ----------
    law : Poisson or Geometric
        The counts.
    X, Y : ndarray of shape (n_x, d) and (n_y, d)
        Rows as they enter the products.

    Returns
    -------
    ndarray of shape (n_x, n_y)
        delta >= 0: the variance of one feature product is its squared mean times expm1(delta).
    """
    out = np.empty((len(X), len(Y)))
    step = max(1, _BLOCK_ENTRIES // Y.size)
    for start in range(0, len(X), step):
        products = X[start : start + step, None, :] * Y[None, :, :]
        out[start : start + step] = law.coordinate_delta(products).sum(axis=2)
    return np.maximum(out, 0.0)
