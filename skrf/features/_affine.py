"""How a feature map prepares rows for projection: scaled, shifted and balanced."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from .._arrays import (
    LARGEST,
    cast,
    largest_entry,
    largest_norm2,
    less_offset,
    like,
    namespace,
    squared_norms,
    to_host,
)

_LARGEST_SINGLE, _FAR_SINGLE = 1e30, 1e25  # an exponent and a factor too large for float32


@dataclass(frozen=True, eq=False)
class Affine:
    """Rows sigma * (matrix @ x - offset).

    Parameters
    ----------
    sigma : float
        Multiplies the rows.
    offset : ndarray of shape (d,), default=None
        Shift in units of matrix @ x; None means no shift.
    matrix : ndarray of shape (d, d), default=None
        Multiplies every row first; None means the identity.
    is_softmax : bool, default=False
        Whether features carry exp(|x|^2 / 2), the outer factor of the softmax kernel.
    """

    sigma: float
    offset: np.ndarray | None = None
    matrix: np.ndarray | None = None
    is_softmax: bool = False

    def __call__(self, X):
        """Return the rows of X, ready to be projected."""
        X, offset = self._mapped(X), self.offset if self.is_shifted else None
        if self.is_shifted and sp.issparse(X):
            # Shifting by linearity would cancel the digits of rows far from the origin. Only
            # columns that most rows store can be far compared with their spread; shift them first.
            is_full = np.bincount(X.indices, minlength=X.shape[1]) > X.shape[0] / 2
            if is_full.all():
                X = X.toarray()
            else:
                first = np.where(is_full, offset, 0.0)
                X, offset = less_offset(X, first), offset - first
        return ScaledRows(X, self.sigma, offset)

    @property
    def factor(self):
        """Sigma, or 1 where squares of rows without sigma may leave the range of floats."""
        return self.sigma if 1e-3 < self.sigma < 1e3 else 1.0

    def less_factor(self, X, out=None):
        """Return the rows of X, a dense array, divided by `factor`; NumPy's are written to `out`.

        One pass less than by a call, if what multiplies them can have the factor instead.
        """
        remaining = self.sigma / self.factor
        if out is None:
            return Affine(remaining, self.offset, self.matrix)(X).values
        X = self._mapped(X)
        if not self.is_shifted:
            return np.multiply(X, remaining, out=out)
        np.subtract(X, like(self.offset, X), out=out)
        if remaining != 1:
            out *= remaining
        return out

    def unshifted(self, X):
        """Return the rows without the shift, for the outer factor of the softmax kernel."""
        return ScaledRows(self._mapped(X), self.sigma)

    def outer_term(self, X):
        """Return the exponent of the outer factor of every row, or 0 without one.

        exp(x.y) = exp(|x|^2 / 2) K(x, y) exp(|y|^2 / 2), with unshifted inputs.
        """
        return self.unshifted(X).squared_norms() / 2 if self.is_softmax else 0.0

    def _mapped(self, X):
        return X if self.matrix is None else X @ like(self.matrix.T, X)

    def pull_back(self, gradient):
        """Return the gradient with respect to X, given the gradient with respect to the rows."""
        gradient = gradient * self.sigma
        return gradient if self.matrix is None else gradient @ like(self.matrix, gradient)

    def on_host(self, X):
        """Return the rows as a dense float64 NumPy array (for work on pairs of rows).

        They are float64 before the shift, so that float32 rows give the same choices.
        """
        return self(to_host(X).astype(np.float64, copy=False)).on_host()

    def exponent_bound(self, X):
        """Return an upper bound on the squared norms of rows, shifted or not.

        For float32 rows it is at most four times too large; for others it is only sharp enough to
        decide whether it exceeds the square of `LARGEST`.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, d)
            The rows.
        """
        if sp.issparse(X):
            with np.errstate(over="ignore"):
                norm2 = float(self.unshifted(X.astype(np.float64)).squared_norms().max())
        else:
            X = self._mapped(cast(X, namespace(X).float64) if self._least_bound else X)
            is_double = X.dtype == namespace(X).float64
            if is_double:
                largest = largest_entry(X)
                norm2 = X.shape[1] * largest * largest
            else:
                norm2 = largest_norm2(X)
            norm2 *= self.sigma * self.sigma
        bound = max(self._with_shift(norm2), self._least_bound)
        if bound <= LARGEST**2 or sp.issparse(X):
            return bound
        X = cast(X, namespace(X).float64)
        if self.is_softmax:
            return self._with_shift(self._scaled_norm2(X))
        X = X - like(self.offset, X) if self.is_shifted else X
        return max(self._scaled_norm2(X), self._least_bound)

    def _scaled_norm2(self, X):
        """Return the largest squared norm of dense rows times sigma, inf if it leaves floats."""
        largest = largest_entry(X)
        if not 0.0 < largest < math.inf:
            return largest
        scale = largest * self.sigma
        return largest_norm2(X / largest) * scale * scale

    @cached_property
    def _least_bound(self):
        """Bound that forces float64 if a factor nearly leaves the range of float32."""
        stretch = 1.0 if self.matrix is None else float(np.abs(self.matrix).max())
        is_single = max(self.sigma, 1 / self.sigma, stretch) < _FAR_SINGLE
        return 0.0 if is_single else _LARGEST_SINGLE

    def _with_shift(self, norm2):
        if not self.is_shifted:
            return norm2
        length = math.sqrt(norm2) + self.sigma * self._offset_length
        return length * length

    @cached_property
    def is_shifted(self):
        """Whether the offset changes anything."""
        return self.offset is not None and bool(np.any(self.offset))

    @cached_property
    def _offset_length(self):
        return math.sqrt(float(self.offset @ self.offset))


class ScaledRows:
    """Rows scale * (x - offset) of an input, dense or sparse, ready to be projected.

    A sparse input stays sparse: the shift acts on products and norms by linearity.

    Parameters
    ----------
    X : array or sparse matrix of shape (n, d)
        The rows, validated.
    scale : float
        Multiplies the rows.
    offset : ndarray of shape (d,) or None
        Shift in units of X; None means no shift.
    """

    def __init__(self, X, scale, offset=None):
        self.scale, self.offset = scale, offset
        self.is_sparse = sp.issparse(X)
        if self.is_sparse:
            self.values = X
        else:
            self.values = (X if offset is None else X - like(offset, X)) * scale

    def scaled(self, factor):
        """Return the rows times a number."""
        if factor == 1:
            return self
        if self.is_sparse:
            return ScaledRows(self.values, self.scale * factor, self.offset)
        return ScaledRows(self.values, factor)

    def dot(self, projection, out=None):
        """Return the products with every row of a projection, shape (n, n_projections).

        A dense projection writes products of dense rows into `out` if that is given.
        """
        if out is not None:
            return projection.multiply(self.values, out)
        product = projection.multiply(self.values)
        if not self.is_sparse:
            return product
        if self.offset is not None:
            product = product - projection.multiply(like(self.offset, self.values)[None, :])
        return product * self.values.dtype.type(self.scale)

    def squared_norms(self):
        """Return |scale (x - offset)|^2 for every row."""
        if not self.is_sparse:
            return squared_norms(self.values)
        entries = self.values.tocsr()
        data = entries.data.astype(np.float64) * self.scale
        if self.offset is None:
            terms, constant = data**2, 0.0
        else:
            # (x - c)^2 - c^2 = x (x - 2c) at the stored entries; |c|^2 everywhere.
            offset = self.offset * self.scale
            terms = data * (data - 2 * offset[entries.indices])
            constant = float(offset @ offset)
        rows = np.repeat(np.arange(entries.shape[0]), np.diff(entries.indptr))
        norms = np.bincount(rows, weights=terms, minlength=entries.shape[0]) + constant
        return norms.astype(self.values.dtype)

    def on_host(self):
        """Return the rows as a dense float64 NumPy array (for work on pairs of rows).

        They are float64 before the shift, so that float32 rows give the same choices.
        """
        if not self.is_sparse:
            return np.asarray(to_host(self.values), dtype=np.float64)
        dense = self.values.astype(np.float64, copy=False).toarray()
        if self.offset is not None:
            dense -= self.offset
        if self.scale != 1:
            dense *= self.scale
        return dense


def about_a_row(sigma, X, Y):
    """Return dense scaled rows of both sides relative to one row: only differences matter."""
    origin = Affine(1.0).on_host(X[:1, :])[0]
    return [Affine(sigma, origin).on_host(Z) for Z in (X, Y)]
