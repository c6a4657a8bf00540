"""What a nonlinearity is: a function f(omega, x) of a product omega.x, and the error it makes.

A nonlinearity turns a drawn projection into what multiplies the inputs (`multiplier`: the
projection and one bias per column on a log scale) and maps products P of shape (n, m) to columns.
`row` holds everything that is constant along a row, on a log scale; exponents are summed before
they are exponentiated. Every function is written for one projection; the 1/sqrt(m) of the average
travels in `row`. Inputs arrive multiplied by `slope`.

The mean squared error of m projections is exp(log_scale) * (exp(log_own) / m + pair terms / m^2),
log_own the log variance of a single projection and `pair` the covariance of two projections of a
block, both in units of exp(log_scale), for the Gaussian kernel K = exp(-|x - y|^2 / 2). They lose
nothing to cancellation or overflow, and depend on parameters alone, not on what is drawn.
"""

from dataclasses import dataclass

import numpy as np

from .._arrays import like, namespace
from .._sums import Rows


@dataclass(frozen=True)
class Nonlinearity:
    """Base: one column per projection, the same on both sides, no bias."""

    columns_per_projection = 1
    is_positive = False
    is_symmetric = True
    slope = 1.0
    norm_slope = 0.0  # factor of |x|^2 in row_term
    has_level = False  # whether all rows share one log scale, `row_term`, a constant; without bias
    is_bounded = False  # whether no feature can overflow, and no row vanish in all of them
    is_log_linear = False  # whether columns are exp(w.x + row + bias), or exp(row - w.x)
    quadratic_form = None  # a matrix, of x + y, for `PairGeometry.weighted_sum2`

    def multiplier(self, projection):
        """Return the projection that multiplies the inputs and the bias of its columns."""
        return projection, None

    def row_term(self, norms2, n_features):
        """Return the exponent that depends only on |x|^2."""
        return self.norm_slope * norms2

    def apply(self, products, row, bias, *, keys=False):
        """Return the columns as `Rows`: logarithms if positive, otherwise with a log scale."""
        raise NotImplementedError

    def write(self, products, row, bias, out, *, keys=False, plain=False):
        """Write the values into `out` and return their scale; plain features have scale 0."""
        values, scale = self.apply(products, row, bias, keys=keys)
        if plain:
            np.multiply(values, np.exp(scale), out=out)
        else:
            out[...] = values
        return scale

    def log_scale(self, geometry):
        """Return the log of the unit of the closed form: log K^2."""
        return -geometry.difference2

    def log_own(self, geometry):
        """Return the log variance of one projection in this unit.

        A method ``pair(geometry, cosine, log_unit=0.0)`` returns the covariance of two projections
        of a block, over exp(log_unit). Without one, the closed form holds for independent ones.
        """
        raise NotImplementedError

    def knows_pairs(self, cosine):
        """Return whether the error of pairs at this cosine is known, or that it is no larger."""
        return hasattr(self, "pair")

    def log_range(self, geometry):
        """Return the log length of an interval that contains the estimate of one projection.

        None if there is no such interval.

        Parameters
        ----------
        geometry : PairGeometry
            Of queries and keys.
        """

    def log_largest(self, geometry):
        """Return the log of the largest estimate of one positive projection, or None."""

    def log_moments(self, n_features, sum2, k):
        """Return the logs of the k-th moments of such an estimate over the largest.

        Parameters
        ----------
        n_features : int
            Dimension d.
        sum2 : ndarray of shape (n_pairs,)
            |x + y|^2.
        k : ndarray of shape (n_k,)
            Orders.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class PositiveNonlinearity(Nonlinearity):
    """Base of the exponentials: positive columns, whose logarithms are linear in w.x."""

    is_positive = is_log_linear = True
    norm_slope = -1.0

    def apply(self, products, row, bias, *, keys=False):
        """Return the logarithms of the columns."""
        terms = row[:, None] if bias is None else row[:, None] + like(bias, products)[None, :]
        return Rows(products + terms)

    def pull_back(self, by_values):
        """Return gradients of sum(by_values * logs) with respect to products and row."""
        return by_values, namespace(by_values).sum(by_values, axis=1)
