"""Closed forms for features from the Taylor series of exp(x.y), by the law of their counts.

Source: Likhosherstov et al., Chefs' random tables (2022), theorems 3.4 (Poisson) and
3.5 (geometric); the tabulated law is ours.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, i0e, i1e

_BLOCK_ENTRIES = 2**18  # a few such arrays fit in the cache
_ROUNDING = 40.0  # nats by which the omitted part of a series is below the rest
_LARGEST, _STEPS = 1e100, 8  # no sum grows by 1e200 in this many steps


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
        """Return the log ratio of second moment to squared mean for every coordinate x_l y_l."""
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
        """Return the log ratio of second moment to squared mean for every coordinate x_l y_l."""
        argument = 2 * np.abs(product) / np.sqrt(1 - self.p)
        return -np.log(self.p) + np.log(i0e(argument)) + (argument - 2 * product)

    def slope(self, product):
        """Return the derivative of `coordinate_delta` in p."""
        size = np.abs(product)
        argument = 2 * size / np.sqrt(1 - self.p)
        return -1 / self.p + i1e(argument) / i0e(argument) * size / (1 - self.p) ** 1.5


@dataclass(frozen=True, eq=False)
class Tabulated:
    """prod x^w (w! p_w)^(-1/2), w_l of any law: a table, mixed with a geometric law for support.

    Parameters
    ----------
    log_table : ndarray of shape (d, n_counts)
        Log probabilities of the counts 0, 1, ... of every column, by the table alone.
    share : ndarray of shape (d,)
        Shares of the geometric laws, in (0, 1].
    p : ndarray of shape (d,)
        Success probabilities of the geometric laws, at most 1/2.
    """

    log_table: np.ndarray
    share: np.ndarray
    p: np.ndarray

    def log_mass(self, counts):
        """Return the log probabilities of counts of shape (n, d)."""
        d, n_counts = self.log_table.shape
        place = np.minimum(counts, n_counts - 1).astype(np.int64)
        with np.errstate(divide="ignore"):  # a share of 1 leaves nothing for the table
            table = self.log_table[np.arange(d), place] + np.log1p(-self.share)
        table = np.where(counts < n_counts, table, -np.inf)
        return np.logaddexp(table, np.log(self.share * self.p) + counts * np.log1p(-self.p))

    def coordinate_delta(self, product):
        """Return the log ratio of second moment to squared mean for every coordinate x_l y_l."""
        size = np.abs(product)
        # The counts of such large products lie beyond the table.
        is_far = size > 2 * self.log_table.shape[1] + 50
        delta = self._log_series(np.where(is_far, 0.0, size)) - 2 * product
        if is_far.any():
            tail = Geometric(self.p).coordinate_delta(product) - np.log(self.share)
            delta = np.where(is_far, tail, delta)
        return delta

    def _log_series(self, size):
        """Return log sum_k size^2k / (k!^2 p_k), nested from the last term to the first."""
        counts = np.arange(self._n_terms(float(size.max(initial=0.0))))[:, None]
        logs = self.log_mass(np.broadcast_to(counts, (len(counts), len(self.p))))
        ratios = np.exp(logs[:-1] - logs[1:]) / counts[1:] ** 2
        squares, total, unit, log_scale = size**2, np.ones_like(size), 1.0, -logs[0]
        for k in reversed(range(len(ratios))):
            total *= squares
            total *= ratios[k]
            total += unit
            if k % _STEPS == 0 and total.max(initial=0.0) > _LARGEST:
                factor = np.where(total > _LARGEST, total, 1.0)
                total, unit, log_scale = total / factor, unit / factor, log_scale + np.log(factor)
        return np.log(total) + log_scale

    def _n_terms(self, size):
        """Return a number of terms after which the geometric laws bound the rest to rounding."""
        grown = max(size / np.sqrt(1 - self.p.max()), 1e-300)
        log_least = np.log(self.share * self.p).min()
        counts = np.arange(60 + int(8 * grown - log_least))
        rest = 2 * (counts * np.log(grown) - gammaln(counts + 1)) - log_least
        is_enough = (counts > grown) & (rest < 2 * size - _ROUNDING)
        return 2 + int(np.argmax(is_enough))


def log_relative_second_moment(law, X, Y):
    """Return delta, the sum of the law's terms over the coordinates, for all pairs of rows.

    Parameters
    ----------
    law : Poisson, Geometric or Tabulated
        The counts.
    X, Y : ndarray of shape (n_x, d) and (n_y, d)
        Rows that enter the products.

    Returns
    -------
    ndarray of shape (n_x, n_y)
        delta >= 0: the variance of one feature product is its squared mean times expm1(delta).
    """
    out = np.empty((len(X), len(Y)))
    step = max(1, _BLOCK_ENTRIES // Y.size)
    for start in range(0, len(X), step):
        products = X[start : start + step, None, :] * Y[None, :, :]
        with np.errstate(over="ignore"):  # a sum may be infinite, too
            out[start : start + step] = law.coordinate_delta(products).sum(axis=2)
    return np.maximum(out, 0.0)
