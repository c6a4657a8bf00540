"""Products with masks: arrays and sparse matrices, grids through the FFT, operators of users."""

import math
import threading

import numpy as np
import scipy.fft

# Bound, in bytes, on each of the few arrays that a masked product makes besides its inputs and
# arrays of the size of its output (or on one row or column of them, where that is longer). Larger
# ones leave the cache: FFTs took up to 1.5 times as long, blocks of rows as long or longer.
BLOCK_BYTES = 2**22
# Rows of a mask that are formed at once. Those of a sparse one share keys only here and there, so
# that more of them multiply more zeros; from some density on it is treated as an array.
_BLOCK_ROWS = 1024
_SPARSE_ROWS = 32
_DENSE_FROM = 1 / 16
# Cost of a column through the FFT over P log2(P), and of one entry of a grid's mask and the kernel
# without their matrix products: in multiply-adds of such products.
_FFT_COST = 15
_ENTRY_COST = 100
_EPS = np.finfo(np.float64).eps


class Mask:
    """A mask W of shape (L, S), as the masked product sees it.

    Subclasses have `dot`, `transposed_dot` and `entries`.

    Attributes
    ----------
    shape : tuple of int
        (L, S).
    rounding : float
        Upper estimate of the error of `dot`, relative to the 2-norm of the column.
    batch : int
        Columns that `dot` takes at once.
    block_rows : int
        Rows that `entries` is best asked for at once.
    largest : float
        The largest entry, or 1 where that is less or not known.
    """

    rounding = 0.0
    block_rows = _BLOCK_ROWS

    def __init__(self, shape, largest=1.0, longest=None):
        self.shape, self.largest = shape, max(float(largest), 1.0)
        # Columns and their transforms share a block.
        self.batch = max(1, BLOCK_BYTES // (16 * (longest or max(*shape, 1))))

    def columns_pay(self, n_features, n_values):
        """Tell whether `dot` on all columns is faster than forming all entries.

        The columns are the products of features with values (and 1). Entries cost the kernel and
        its product with the values, which is less wherever they are at hand.
        """
        return False

    def seen(self, rows):
        """Return the keys that any of these rows may see; numbers in order, as those of rows."""
        return np.arange(self.shape[1])


class DenseMask(Mask):
    """Mask that is an array; booleans become floats where they are used."""

    def __init__(self, matrix):
        super().__init__(matrix.shape, matrix.max() if matrix.size else 0.0)
        self.matrix = matrix

    def dot(self, Z):
        """Return W Z for Z of shape (S, c)."""
        return self.matrix.astype(np.float64, copy=False) @ Z

    def transposed_dot(self, Z):
        """Return W'Z for Z of shape (L, c)."""
        return self.matrix.T.astype(np.float64, copy=False) @ Z

    def entries(self, rows, keys):
        """Return W at rows and keys as a new dense array."""
        return self.matrix[np.ix_(rows, keys)].astype(np.float64, copy=False)


class SparseMask(DenseMask):
    """Mask that is a CSR matrix of float64."""

    def __init__(self, matrix):
        super().__init__(matrix)
        if matrix.nnz < _DENSE_FROM * math.prod(matrix.shape):
            self.block_rows = _SPARSE_ROWS

    def seen(self, rows):
        """Return the keys that any of these rows may see; numbers in order, as those of rows."""
        return np.unique(self.matrix[rows].indices)

    def entries(self, rows, keys):
        """Return W at rows and keys as a new dense array."""
        part = self.matrix[rows]
        entries = np.zeros((len(rows), len(keys)))
        if len(keys):
            places = np.searchsorted(keys, part.indices)
            found = keys.take(places, mode="clip") == part.indices
            numbers = np.repeat(np.arange(len(rows)), np.diff(part.indptr))
            entries[numbers[found], places[found]] = part.data[found]
        return entries


class GridMask(Mask):
    """Block-Toeplitz mask: a convolution, done as a circular one of about twice the size.

    The transform of the weights is kept. Its products are not sums of nonnegative terms: they
    round by a share of the largest keys, wherever those are.

    Parameters
    ----------
    weights : ndarray
        Weights of the offsets.
    grid : tuple of int
        Positions on each axis.
    causal : bool
        Whether keys behind the query count 0.
    """

    def __init__(self, weights, grid, causal):
        if causal:
            # Row-major numbers of positions and of offsets agree in order: j <= i exactly where
            # the offset is the middle one or comes after it.
            weights = weights.copy()
            weights.reshape(-1)[: weights.size // 2] = 0
        self.weights, self.grid = weights, grid
        self.padded = tuple(scipy.fft.next_fast_len(n, real=True) for n in weights.shape)
        self.axes = tuple(range(1, len(grid) + 1))
        kernel = np.zeros(self.padded)
        kernel[tuple(slice(n) for n in weights.shape)] = weights
        kernel = np.roll(kernel, [1 - n for n in grid], range(len(grid)))
        self.transform = scipy.fft.rfftn(kernel)
        n_positions, size = math.prod(grid), math.prod(self.padded)
        super().__init__((n_positions, n_positions), weights.max(), longest=size)
        self.column_cost = size * math.log2(max(size, 2))
        # About three times the largest error seen (sizes 8 to 2,000, one to three axes).
        scale = weights.max() or 1.0
        norm = scale * np.linalg.norm(weights / scale)
        self.rounding = _EPS * math.log2(max(size, 2)) * norm
        # Query i sees no keys but those from i - last to i - first.
        offsets = np.argwhere(weights) + 1 - np.array(grid)
        steps = np.array([math.prod(grid[axis:]) for axis in self.axes])
        differences = offsets @ steps
        self.first = differences.min(initial=n_positions)
        self.last = differences.max(initial=-n_positions)

    def columns_pay(self, n_features, n_values):
        """Tell whether `dot` on all columns is faster than forming all entries."""
        middle = np.arange(self.shape[0])
        ends = np.minimum(middle - self.first, self.shape[0] - 1)
        n_entries = np.maximum(ends - np.maximum(middle - self.last, 0) + 1, 0).sum()
        by_columns = _FFT_COST * self.column_cost * n_features * (n_values + 1)
        return bool(by_columns < n_entries * (_ENTRY_COST + n_features + n_values))

    def seen(self, rows):
        """Return the keys that any of these rows may see; numbers in order, as those of rows."""
        start, stop = rows[0] - self.last, rows[-1] - self.first + 1
        return np.arange(max(start, 0), min(stop, self.shape[1]))

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

    def entries(self, rows, keys):
        """Return W at rows and keys as a new dense array."""
        return grid_entries(self.weights, self.grid, rows, keys)


class OperatorMask(Mask):
    """Mask that is a LinearOperator: entries and gradients need its adjoint.

    How it computes is not known, and may be an FFT: its rounding is estimated as if it were, with
    the norm of the longest row of W, which products with random signs show.
    """

    def __init__(self, operator):
        if np.issubdtype(operator.dtype, np.complexfloating):
            raise TypeError(f"mask must be real, got a LinearOperator of dtype {operator.dtype}.")
        super().__init__(operator.shape)
        self.operator = operator
        # Heads are worked on in threads, and an operator may have work arrays of its own.
        self.lock = threading.Lock()
        self.block_rows = min(_BLOCK_ROWS, max(1, BLOCK_BYTES // (8 * max(*self.shape, 1))))
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (self.shape[1], 16))
        norms2 = np.mean(self.dot(signs) ** 2, axis=1)
        size = max(*self.shape, 2)
        self.rounding = 2 * _EPS * math.log2(size) * math.sqrt(norms2.max(initial=0))

    def columns_pay(self, n_features, n_values):
        """Tell that `dot` is to be used: entries are not at hand."""
        return True

    def dot(self, Z):
        """Return W Z for Z of shape (S, c)."""
        with self.lock:
            return np.array(self.operator.matmat(Z), dtype=np.float64)

    def transposed_dot(self, Z):
        """Return W'Z for Z of shape (L, c)."""
        try:
            with self.lock:
                return np.array(self.operator.rmatmat(Z), dtype=np.float64)
        except (NotImplementedError, TypeError) as error:
            raise ValueError(
                "mask: this LinearOperator has no adjoint (rmatvec or rmatmat). Gradients need it, "
                "and so do rows whose keys weigh so little beside the others that products with "
                "all of them are not exact. Give it one, or give a sparse matrix or an array."
            ) from error

    def entries(self, rows, keys):
        """Return W at rows and keys as a new dense array, by the adjoint of unit vectors."""
        units = np.zeros((self.shape[0], len(rows)))
        units[rows, np.arange(len(rows))] = 1
        entries = self.transposed_dot(units).T
        least, largest = entries.min(initial=0), abs(entries).max(initial=0)
        # An operator may round; negative entries that are no rounding errors are refused.
        if not (least >= -1e-9 * largest and largest < np.inf):
            raise ValueError(f"mask must be finite and >= 0 everywhere, got {least}.")
        return np.maximum(entries[:, keys], 0)


def grid_entries(weights, grid, rows, keys):
    """Return entries of the matrix whose (i, j) is the weight of position i less position j."""
    # In the array of the weights, positions are as far from each other as their offsets are.
    places = [np.ravel_multi_index(np.unravel_index(n, grid), weights.shape) for n in (rows, keys)]
    return weights.take(places[0][:, None] - places[1] + weights.size // 2)
