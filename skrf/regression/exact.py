"""The exact kernel with every training row, in place of features."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .._arrays import largest_entry, like, namespace, scaled_squares, to_host
from .._sums import Rows
from ..features import FeatureMap

_PRECISE = 256.0  # exponents for which float64 is used


def kernel_between(X, Y, sigma):
    """Return the Gaussian kernel of all pairs of rows, (n, m), without a second array as large."""
    values = scaled_squares(X, Y, sigma)
    values *= -0.5
    return np.exp(values, out=values)


@dataclass(frozen=True, eq=False)
class ExactMap(FeatureMap):
    """The Gaussian kernel with every training row, as one feature per row.

    Parameters
    ----------
    rows : ndarray or sparse matrix of shape (n, d)
        Training rows.
    sigma : float
        Multiplies differences of rows.
    """

    rows: Any
    sigma: float
    is_positive = is_indicator = True
    are_means = False
    labels = None
    n_features = property(lambda self: self.rows.shape[1])
    n_columns = property(lambda self: self.rows.shape[0])

    def __call__(self, X):
        """Return the logarithms of the kernel."""
        return Rows(like(scaled_squares(to_host(X), self.rows, self.sigma) / -2, X))

    def columns(self, X, labels=None):
        """Return the numbers of the training rows, which X must be."""
        return np.arange(X.shape[0])

    def exponent_bound(self, X):
        """Return an upper bound on the exponents, always large enough to force float64."""
        length = self.sigma * (largest_entry(X) + self._largest)
        return max(X.shape[1] * length * length, _PRECISE)

    @cached_property
    def _largest(self):
        return largest_entry(self.rows)


class KernelMap(ExactMap):
    """The same kernel itself in place of its logarithms, for coefficients of both signs."""

    is_positive = is_indicator = False
    is_double = True

    def __call__(self, X):
        """Return the `Rows` of X."""
        logs = super().__call__(X).values
        xp = namespace(logs)
        top = xp.max(logs, axis=1, keepdims=True)
        return Rows(xp.exp(logs - top), top)
