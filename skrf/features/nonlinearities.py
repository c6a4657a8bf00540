"""The functions f(omega, x) of a product omega.x, a row term and a bias.

A nonlinearity turns a drawn projection into what multiplies the inputs (`multiplier`: the
projection and one bias per column on a log scale) and maps products P of shape (n, m) to columns.
`row` holds everything that is constant along a row, on a log scale; exponents are summed before
they are exponentiated. Every function is written for one projection; the 1/sqrt(m) of the average
travels in `row`. Inputs arrive multiplied by `slope`.
"""

import math
from dataclasses import dataclass

import numpy as np

from .. import _kernels
from .._arrays import columns, like, namespace
from ..variances import log_hyp0f1
from ._map import Rows, signed_rows


@dataclass(frozen=True)
class Nonlinearity:
    """Base: one column per projection, the same on both sides, no bias."""

    columns_per_projection = 1
    is_positive = False
    is_symmetric = True
    slope = 1.0
    norm_slope = 0.0  # factor of |x|^2 in row_term
    needs_products = True  # in pull_back
    has_level = False  # whether all rows share one log scale, `row_term`, a constant; without bias
    is_log_linear = False  # whether columns are exp(w.x + row + bias), or exp(row - w.x)

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

    def pull_back(self, products, row, bias, by_values, *, keys=False):
        """Return gradients with respect to products and row of sum(by_values * values).

        The scale of a row is constant. Unless `needs_products`, products and row are None.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class SineCosine(Nonlinearity):
    """Columns [cos w.x, sin w.x]: unbiased for exp(-|x - y|^2 / 2)."""

    columns_per_projection = 2
    has_level = True

    def log_range(self, geometry):
        """Return that of cos w.(x - y), from -1 to 1."""
        return math.log(2) + 0 * geometry.norms2

    def apply(self, products, row, bias, *, keys=False):
        """Return the columns, on the scale `row`."""
        xp = namespace(products)
        return signed_rows(columns([xp.cos(products), xp.sin(products)]), row)

    def write(self, products, row, bias, out, *, keys=False, plain=False):
        """Write the columns and return their scale; NumPy only."""
        _kernels.sine_cosine(products, np.exp(row) if plain else None, out)
        return row[:, None]

    def pull_back(self, products, row, bias, by_values, *, keys=False):
        """Return gradients with respect to products and row."""
        xp, m = namespace(products), products.shape[1]
        cosine, sine = xp.cos(products), xp.sin(products)
        by_cosine, by_sine = by_values[:, :m], by_values[:, m:]
        by_row = xp.sum(by_cosine * cosine + by_sine * sine, axis=1)
        return by_sine * cosine - by_cosine * sine, by_row


@dataclass(frozen=True)
class PhasedCosine(Nonlinearity):
    """One column sqrt(2) cos(w.x + phase), phase uniform on (0, 2 pi): the pair folded into one."""

    phase: float
    has_level = True

    def log_range(self, geometry):
        """Return that of a product of two such columns, from -2 to 2."""
        return math.log(4) + 0 * geometry.norms2

    def row_term(self, norms2, n_features):
        """Return log(2) / 2."""
        return 0 * norms2 + math.log(2) / 2

    def apply(self, products, row, bias, *, keys=False):
        """Return the column, on the scale `row`."""
        return signed_rows(namespace(products).cos(products + self.phase), row)

    def pull_back(self, products, row, bias, by_values, *, keys=False):
        """Return gradients with respect to products and row."""
        xp = namespace(products)
        by_row = xp.sum(by_values * xp.cos(products + self.phase), axis=1)
        return -by_values * xp.sin(products + self.phase), by_row


@dataclass(frozen=True)
class PositiveNonlinearity(Nonlinearity):
    """Base of the exponentials: positive columns, whose logarithms are linear in w.x."""

    is_positive = is_log_linear = True
    needs_products = False
    norm_slope = -1.0

    def apply(self, products, row, bias, *, keys=False):
        """Return the logarithms of the columns."""
        terms = row[:, None] if bias is None else row[:, None] + like(bias, products)[None, :]
        return Rows(products + terms)

    def pull_back(self, products, row, bias, by_values, *, keys=False):
        """Return gradients with respect to products and row: logs are their sums."""
        return by_values, namespace(by_values).sum(by_values, axis=1)


@dataclass(frozen=True)
class Exponential(PositiveNonlinearity):
    """One column D exp(A |w|^2 + B w.x - |x|^2), B = sqrt(1 - 4A), D = (1 - 4A)^(d/4), A real."""

    A: float = 0.0

    @property
    def slope(self):
        """B, the multiplier of the inputs."""
        return math.sqrt(1 - 4 * self.A)

    def log_range(self, geometry):
        """Return that from 0 to the largest value, which exists for A < 0."""
        if self.A < 0:
            log_D2 = geometry.n_features / 2 * math.log1p(-4 * self.A)
            return log_D2 - geometry.difference2 / 2 - geometry.sum2 / (8 * self.A)

    log_largest = log_range  # from 0 on

    def log_moments(self, n_features, sum2, k):
        """Return those of D^2 exp(2 A |w|^2 + B w.(x + y)), A < 0, over its largest value."""
        wider = 1 - 4 * self.A * k
        per_square = k * (1 - 4 * self.A) / (8 * self.A * wider)
        return sum2[:, None] * per_square - n_features / 2 * np.log(wider)

    def multiplier(self, projection):
        """Return the projection as it is and A |w|^2."""
        return projection, (self.A * projection.squared_norms if self.A else None)

    def row_term(self, norms2, n_features):
        """Return log D - |x|^2."""
        return n_features / 4 * math.log1p(-4 * self.A) + super().row_term(norms2, n_features)


@dataclass(frozen=True)
class Regularized(PositiveNonlinearity):
    """One column exp(w.x - |x|^2) with every w stretched to the length sqrt(d)."""

    def log_range(self, geometry):
        """Return that from exp(-sqrt(d) |x + y| - |x|^2 - |y|^2) to the same without a minus."""
        longest = np.sqrt(geometry.n_features * geometry.sum2)
        with np.errstate(divide="ignore"):
            return longest + np.log(-np.expm1(-2 * longest)) - geometry.norms2

    def log_largest(self, geometry):
        """Return sqrt(d) |x + y| - |x|^2 - |y|^2."""
        return np.sqrt(geometry.n_features * geometry.sum2) - geometry.norms2

    def log_moments(self, n_features, sum2, k):
        """Return those of exp(w.(x + y)), |w| = sqrt(d), over its largest value."""
        return log_hyp0f1(n_features / 2, n_features / 4 * sum2[:, None] * k**2)

    def multiplier(self, projection):
        """Return the projection with rows of one length."""
        return projection.with_norms(math.sqrt(projection.n_features)), None


@dataclass(frozen=True)
class Hyperbolic(PositiveNonlinearity):
    """Columns [exp(w.x - |x|^2), exp(-w.x - |x|^2)] / sqrt 2."""

    columns_per_projection = 2

    def row_term(self, norms2, n_features):
        """Return -|x|^2 - log(2) / 2."""
        return super().row_term(norms2, n_features) - math.log(2) / 2

    def apply(self, products, row, bias, *, keys=False):
        """Return the logarithms of the columns."""
        return Rows(columns([products + row[:, None], row[:, None] - products]))

    def pull_back(self, products, row, bias, by_values, *, keys=False):
        """Return gradients with respect to products and row."""
        m = by_values.shape[1] // 2
        by_row = namespace(by_values).sum(by_values, axis=1)
        return by_values[:, :m] - by_values[:, m:], by_row


@dataclass(frozen=True)
class DenseExponential(PositiveNonlinearity):
    """One column det(I - 4A)^(1/4) exp(w'Aw + w'(I - 4A)^(1/2) x - |x|^2), A <= 0 symmetric.

    The symmetric root keeps the map a smooth function of A, free of the signs and order of its
    axes; with equal eigenvalues it is the exponential map of the same projections.

    Parameters
    ----------
    A : ndarray of shape (d,)
        Eigenvalues of A, at most 0.
    axes : ndarray of shape (d, d)
        Eigenvectors of A, one per row.
    """

    A: np.ndarray
    axes: np.ndarray

    def _symmetric(self, values):
        return (self.axes.T * values) @ self.axes

    def multiplier(self, projection):
        """Return the projection after (I - 4A)^(1/2), and w'Aw = -|(-A)^(1/2) w|^2."""
        bias = -projection.after(self._symmetric(np.sqrt(-self.A))).squared_norms
        return projection.after(self._symmetric(np.sqrt(1 - 4 * self.A))), bias

    def row_term(self, norms2, n_features):
        """Return log det(I - 4A) / 4 - |x|^2."""
        log_det = float(np.sum(np.log1p(-4 * self.A)))
        return log_det / 4 + super().row_term(norms2, n_features)


@dataclass(frozen=True)
class WeightedExponential(PositiveNonlinearity):
    """One column sqrt(p(w) / q(w)) exp(w.x - |x|^2) for w drawn from a density q, p normal.

    Parameters
    ----------
    log_weights : ndarray of shape (m,)
        log p(w) - log q(w) of the drawn rows.
    """

    log_weights: np.ndarray

    def multiplier(self, projection):
        """Return the projection as it is and half the log weights."""
        return projection, self.log_weights / 2


@dataclass(frozen=True)
class GeneralizedExponential(Nonlinearity):
    """Real and imaginary part of D exp(A |w|^2 + B w.x + C |x|^2) with complex A.

    Side 1 is [Re f1, Im f1] with B = sqrt(s (1 - 4A)); side 2 is [Re f2, -Im f2] with s B, the
    parts of the conjugate. D = (1 - 4A)^(d/4), C = -(s + 1) / 2, principal roots. With a phase,
    uniform on (0, 2 pi), the pair is folded into one column, sqrt(2) Re(e^{i phase} f1) and
    sqrt(2) Re(e^{-i phase} f2).

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

    def pull_back(self, products, row, bias, by_values, *, keys=False):
        """Return gradients with respect to products and row."""
        xp = namespace(products)
        slope, (_, angle) = self._slope(keys), self._polar(products, row, bias, keys)
        cosine, sine = xp.cos(angle), xp.sin(angle)
        by_cosine, by_sine = by_values, 0.0
        if self.phase is None:
            m = products.shape[1]
            by_cosine, by_sine = by_values[:, :m], by_values[:, m:]
        by_log = by_cosine * cosine + by_sine * sine
        by_angle = by_sine * cosine - by_cosine * sine
        return by_log * slope.real + by_angle * slope.imag, xp.sum(by_log, axis=1)
