"""Products with masks: arrays and sparse matrices, grids through the FFT, operators of users."""

import math

import numpy as np
import scipy.fft
from numpy.lib.stride_tricks import sliding_window_view

# Bound, in bytes, on each of the few arrays that a masked product makes besides its inputs and
# arrays of the size of its output (or one row or column, where that is longer).
BLOCK_BYTES = 2**24
# Batches of columns stay in the cache: larger ones took up to 1.5 times as long.
_BATCH_BYTES = 2**21
# Rows of a sparse mask share keys only here and there, so that more rows at once multiply more
# zeros. From this density on it is treated as an array.
_SPARSE_ROWS = 32
_DENSE_FROM = 1 / 16
# Cost of a column through the FFT over P log2(P), and of forming one entry of a grid's mask, in
# multiply-adds of a matrix product.
_FFT_COST = 15
_ENTRY_COST = 30
_EPS = np.finfo(np.float64).eps


class Mask:
    """A mask W of shape (L, S), as the masked product sees it.

    Subclasses have `dot`, `transposed_dot` and `rows`.

    Attributes
    ----------
    shape : tuple of int
        (L, S).
    rounding : float
        Upper estimate of the error of `dot`, relative to the 2-norm of the column.
    batch : int
        Columns that `dot` takes at once.
    block_rows : int
        Rows that `block` should be asked for at once.
    """

    rounding = 0.0

    def __init__(self, shape, column=None):
        self.shape = shape
        longest = max(*shape, 1)
        self.batch = max(1, _BATCH_BYTES // (8 * (column or longest)))
        self.block_rows = max(1, BLOCK_BYTES // (8 * longest))

    def columns_pay(self, n_features, n_values):
        """Tell whether `dot` on all columns is faster than `block` on all rows.

        All columns are features times (values and 1); all rows cost the matrix of kernel values
        and its product with the values. That is less wherever the entries are at hand.
        """
        return False

    def block(self, index):
        """Return the keys that any of these rows has, and the rows at those keys."""
        rows = self.rows(index)
        keys = np.flatnonzero(rows.any(axis=0))
        return keys, rows if len(keys) == rows.shape[1] else rows[:, keys]


class DenseMask(Mask):
    """Mask that is an array; booleans become floats where they are used."""

    def __init__(self, matrix):
        super().__init__(matrix.shape)
        self.matrix = matrix

    def dot(self, Z):
        """Return W Z for Z of shape (S, c)."""
        return self.matrix.astype(np.float64, copy=False) @ Z

    def transposed_dot(self, Z):
        """Return W'Z for Z of shape (L, c)."""
        return self.matrix.T.astype(np.float64, copy=False) @ Z

    def rows(self, index):
        """Return rows of W as a new dense array."""
        return self.matrix[index].astype(np.float64, copy=False)


class SparseMask(DenseMask):
    """Mask that is a CSR matrix of float64."""

    def __init__(self, matrix):
        super().__init__(matrix)
        if matrix.nnz < _DENSE_FROM * math.prod(matrix.shape):
            self.block_rows = min(self.block_rows, _SPARSE_ROWS)

    def rows(self, index):
        """Return rows of W as a new dense array."""
        return self.matrix[index].toarray()

    def block(self, index):
        """Return the keys that any of these rows has, and the rows at those keys."""
        rows = self.matrix[index]
        keys, positions = np.unique(rows.indices, return_inverse=True)
        entries = np.zeros((len(index), len(keys)))
        entries[np.repeat(np.arange(len(index)), np.diff(rows.indptr)), positions] = rows.data
        return keys, entries


class GridMask(Mask):
    """Block-Toeplitz mask: a convolution, done as a circular one of at least twice the size.

    The transform of the weights is kept. Its products are not sums of nonnegative terms: what they
    round is a share of the largest keys, wherever those are.

    Parameters
    ----------
    weights : ndarray
        Weights of the offsets, middle first zero.
    grid : tuple of int
        Positions on each axis.
    causal : bool
        Whether keys after the query count 0.
    """

    def __init__(self, weights, grid, causal):
        if causal:
            # Row-major numbers of positions and of offsets agree in order: j <= i exactly where
            # the offset comes at or behind the middle.
            weights = weights.copy()
            weights.reshape(-1)[: weights.size // 2] = 0
        self.weights, self.grid = weights, grid
        self.padded = tuple(scipy.fft.next_fast_len(size, real=True) for size in weights.shape)
        self.axes = tuple(range(1, len(grid) + 1))
        size = math.prod(self.padded)
        super().__init__((math.prod(grid),) * 2, column=size)
        kernel = np.zeros(self.padded)
        kernel[tuple(slice(n) for n in weights.shape)] = weights
        kernel = np.roll(kernel, [1 - n for n in grid], range(len(grid)))
        self.transform = scipy.fft.rfftn(kernel)
        self.column_cost = size * math.log2(max(size, 2))
        self.rounding = 2 * _EPS * math.log2(max(size, 2)) * np.linalg.norm(weights)

    def columns_pay(self, n_features, n_values):
        """Tell whether `dot` on all columns is faster than `block` on all rows."""
        density = np.count_nonzero(self.weights) / self.weights.size
        entries = math.prod(self.shape) * (_ENTRY_COST + density * (n_features + n_values))
        return _FFT_COST * self.column_cost * n_features * (n_values + 1) < entries

    def dot(self, Z):
        """Return W Z for Z of shape (S, c); fastest where each column is contiguous."""
        return self._convolve(Z, self.transform)

    def transposed_dot(self, Z):
        """Return W'Z for Z of shape (L, c); fastest where each column is contiguous."""
        return self._convolve(Z, self.transform.conj())

    def _convolve(self, Z, transform):
        """Return the circular convolution of every column, in batches."""
        result = np.empty((Z.shape[1], self.shape[0]))
        for start in range(0, len(result), self.batch):
            part = Z.T[start : start + self.batch]
            waves = scipy.fft.rfftn(part.reshape(-1, *self.grid), self.padded, self.axes)
            waves *= transform
            full = scipy.fft.irfftn(waves, self.padded, self.axes, overwrite_x=True)
            own = full[(slice(None), *(slice(n) for n in self.grid))]
            result[start : start + self.batch] = own.reshape(len(part), -1)
        return result.T

    def rows(self, index):
        """Return rows of W as a new dense array."""
        return grid_rows(self.weights, self.grid, index)


class OperatorMask(Mask):
    """Mask that is a LinearOperator: gradients and rows need its adjoint.

    How it computes is not known. It may be an FFT: so its error is taken to be one, for rows as
    long as the longest of W, measured on random signs.
    """

    _draws = 16

    def __init__(self, operator):
        if np.issubdtype(operator.dtype, np.complexfloating):
            raise TypeError(f"mask must be real, got a LinearOperator of dtype {operator.dtype}.")
        super().__init__(operator.shape)
        self.operator = operator
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (self.shape[1], self._draws))
        longest = np.sqrt(np.mean(self.dot(signs) ** 2, axis=1).max(initial=0))
        self.rounding = 2 * _EPS * math.log2(max(*self.shape, 2)) * longest

    def columns_pay(self, n_features, n_values):
        """Tell whether `dot` is to be used: entries are not at hand."""
        return True

    def dot(self, Z):
        """Return W Z for Z of shape (S, c)."""
        return np.asarray(self.operator.matmat(Z), dtype=np.float64)

    def transposed_dot(self, Z):
        """Return W'Z for Z of shape (L, c)."""
        try:
            return np.asarray(self.operator.rmatmat(Z), dtype=np.float64)
        except (NotImplementedError, TypeError) as error:
            raise ValueError(
                "mask: this LinearOperator has no adjoint (rmatvec or rmatmat). Gradients need it, "
                "and so do rows whose keys weigh too little beside the others for products with "
                "all keys to be exact. Give it one, or a sparse matrix or an array."
            ) from error

    def rows(self, index):
        """Return rows of W as a new dense array: products of the adjoint with unit vectors."""
        units = np.zeros((self.shape[0], len(index)))
        units[index, np.arange(len(index))] = 1
        rows = self.transposed_dot(units).T
        if not np.all(rows >= -1e-9 * np.abs(rows).max(initial=0)):
            raise ValueError(f"mask must be finite and >= 0 everywhere, got {rows.min()}.")
        return np.maximum(rows, 0)


def grid_rows(weights, grid, index):
    """Return rows of the matrix whose entry (i, j) is the weight of position i less position j."""
    # Row i reads the weights backwards from the place of its offset from the first position.
    windows = sliding_window_view(np.flip(weights), grid)
    places = np.unravel_index(index, grid)
    rows = windows[tuple(n - 1 - place for n, place in zip(grid, places, strict=True))]
    return rows.reshape(len(index), -1)
