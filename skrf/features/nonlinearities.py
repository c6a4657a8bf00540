"""What omega becomes: the functions f(omega, x) of a product omega.x, a row term and |omega|^2.

A nonlinearity maps products P = X omega' of shape (n, m) to columns. `row` holds everything that
is constant along a row, on a log scale: the nonlinearity adds its own term to it, so exponents
are summed before they are exponentiated. Every function is written for one projection; the
1/sqrt(m) of the average travels in `row`.
"""

import math
from dataclasses import dataclass

from .._arrays import columns, like, namespace


@dataclass(frozen=True)
class SineCosine:
    """Columns [cos w.x, sin w.x]: unbiased for exp(-|x - y|^2 / 2)."""

    columns_per_projection = 2
    is_positive = False

    def row_term(self, norms2, n_features):
        """Return the exponent that depends on x alone: 0."""
        return 0 * norms2

    def apply(self, products, row, omega_norms2):
        """Return the columns, scaled by exp(row)."""
        xp = namespace(products)
        amplitude = xp.exp(row)[:, None]
        return columns([xp.cos(products) * amplitude, xp.sin(products) * amplitude], products)


@dataclass(frozen=True)
class PhasedCosine:
    """One column sqrt(2) cos(w.x + phase), phase uniform on (0, 2 pi): the pair folded into one."""

    phase: float
    columns_per_projection = 1
    is_positive = False

    def row_term(self, norms2, n_features):
        """Return the exponent that depends on x alone: log(2) / 2."""
        return 0 * norms2 + math.log(2) / 2

    def apply(self, products, row, omega_norms2):
        """Return the column, scaled by exp(row)."""
        xp = namespace(products)
        return xp.cos(products + self.phase) * xp.exp(row)[:, None]


@dataclass(frozen=True)
class Exponential:
    """One column D exp(A |w|^2 + B w.x - |x|^2), B = sqrt(1 - 4A), D = (1 - 4A)^(d/4), A real."""

    A: float = 0.0
    columns_per_projection = 1
    is_positive = True

    def row_term(self, norms2, n_features):
        """Return log D - |x|^2."""
        return n_features / 4 * math.log1p(-4 * self.A) - norms2

    def log_apply(self, products, row, omega_norms2):
        """Return the logarithms of the columns."""
        logs = products * math.sqrt(1 - 4 * self.A) if self.A else products
        return logs + (row[:, None] + like(self.A * omega_norms2, products)[None, :])


@dataclass(frozen=True)
class Hyperbolic:
    """Columns [exp(w.x - |x|^2), exp(-w.x - |x|^2)] / sqrt 2."""

    columns_per_projection = 2
    is_positive = True

    def row_term(self, norms2, n_features):
        """Return -|x|^2 - log(2) / 2."""
        return -norms2 - math.log(2) / 2

    def log_apply(self, products, row, omega_norms2):
        """Return the logarithms of the columns."""
        return columns([products + row[:, None], row[:, None] - products], products)
