"""Masks as attention sees them: entries, products through the FFT, and users' operators."""

import math
import threading

import numpy as np
import scipy.fft

from .._arrays import arithmetic, beside, cast, is_array_api, like, namespace, take, to_host
from ._heads import blocks

# Bounds, in bytes, on the columns transformed at once and on blocks of the masked kernel. Larger
# ones leave the cache; those of other libraries are larger because their calls cost more.
COLUMN_BYTES, BLOCK_BYTES, DEVICE_BYTES = 2**18, 2**22, 2**26
# Transforms of this many columns fill the processor's vectors.
_LEAST_COLUMNS = 8
# Rows of a mask formed at once. Rows of a sparse mask share few keys, so larger blocks multiply
# more zeros; from _DENSE_FROM on a sparse mask is treated as an array.
_BLOCK_ROWS = 1024
_SPARSE_ROWS = 32
_DENSE_FROM = 1 / 16
# Cost of a column through the FFT over P log2(P), and of one entry of a mask and the kernel
# without their matrix products: in multiply-adds of such products.
_FFT_COST = 25
_ENTRY_COST = 50


class Mask:
    """A mask W of shape (L, S), as the masked product sees it.

    Subclasses have `entries`; those with products have `waves`, `product` and
    `transposed_product`, and those with gradients `no_gradient` and `add_gradient`.

    Attributes
    ----------
    shape : tuple of int
        (L, S).
    block_rows : int
        Best number of rows per call of `entries`.
    largest : float
        The largest entry, or 1 if that is smaller or unknown.
    is_double : bool
        Whether products exist in float64 only.
    n_extra : int
        Number of leading positions without products.
    """

    is_double = False
    n_extra = 0
    block_rows = _BLOCK_ROWS

    def __init__(self, shape, largest=1.0):
        self.shape, self.largest = shape, max(float(largest), 1.0)
        # A power of 2: entries over it are at most 1, and only ratios of entries count.
        self._unit = math.ldexp(1.0, math.frexp(largest)[1]) if largest > 0 else 1.0

    def unit(self, X):
        """Return the divisor of entries in the dtype of X: float32 has a small range."""
        return 1.0 if X.dtype == namespace(X).float64 else self._unit

    def columns_pay(self, n_features, n_values):
        """Return whether products with all columns are faster than forming all entries.

        The columns are the products of features with values (and 1). Entries cost the kernel and
        its product with the values, which is less wherever they are at hand.
        """
        return False

    def seen(self, rows):
        """Return the keys that any of these rows may see: a slice, or numbers in order."""
        return slice(0, self.shape[1])

    def no_gradient(self, X):
        """Raise: entries of this mask are not parameters."""
        raise TypeError(
            "with_mask=True needs a ToeplitzMask or an array as mask, or one for every head; got "
            "a sparse matrix or a LinearOperator."
        )


class DenseMask(Mask):
    """Mask that is an array of NumPy or of the inputs' library; booleans become floats in use."""

    def __init__(self, matrix, causal, largest):
        super().__init__(tuple(matrix.shape), largest)
        self.matrix, self.causal = matrix, causal

    def seen(self, rows):
        """Return the keys that any of these rows may see: a slice, or numbers in order."""
        return slice(0, int(rows[-1]) + 1) if self.causal else slice(0, self.shape[1])

    def entries(self, rows, keys, X):
        """Return W at rows and keys, over the unit, in the library and dtype of X."""
        part = self._entries(rows, keys, X)
        return part * like(below(rows, keys), X) if self.causal else part

    def _entries(self, rows, keys, X):
        """Return the same without causality."""
        part, unit = rows_of(self.matrix, rows, axis=0)[:, keys], self.unit(X)
        if not is_array_api(part):
            return like(part if unit == 1 else part / unit, X)
        if namespace(X).isdtype(part.dtype, ("bool", "integral")):
            part = cast(part, X.dtype)
        return cast(part / unit, X.dtype)

    def no_gradient(self, X):
        """Return the gradient with respect to the entries, before anything is added."""
        return np.zeros(self.shape, X.dtype)

    def share(self, total):
        """Return the rows that one of several threads adds its gradients to."""
        return total

    def add_gradient(self, total, rows, keys, gradient):
        """Add the gradient with respect to entries over the unit."""
        own = gradient * below(rows, keys) if self.causal else gradient
        total[rows, keys] += own / self.unit(gradient)


class SparseMask(DenseMask):
    """Mask that is a CSR matrix of float64."""

    def __init__(self, matrix, causal, largest):
        super().__init__(matrix, causal, largest)
        if matrix.nnz < _DENSE_FROM * math.prod(matrix.shape):
            self.block_rows = _SPARSE_ROWS

    def seen(self, rows):
        """Return the keys that any of these rows may see: a slice, or numbers in order."""
        return np.unique(self.matrix[rows].indices)

    def _entries(self, rows, keys, X):
        """Return W at rows and keys without causality."""
        return like((self.matrix[rows][:, keys] / self.unit(X)).toarray(), X)

    no_gradient = Mask.no_gradient


class GridMask(Mask):
    """Block-Toeplitz mask: a convolution, done as a circular one of about twice the size.

    Its products are not sums of nonnegative terms: their rounding error is proportional to the
    largest keys, wherever those are.

    Parameters
    ----------
    weights : array
        Weights of the offsets, of NumPy or of the inputs' library.
    grid : tuple of int
        Positions on each axis.
    n_extra : int
        Number of positions before the grid, which see all others, and are seen, with weight 1.
    causal : bool
        Whether later keys have weight 0.
    is_wide : bool
        Whether offsets of weight 0 count as seen, because their gradients are wanted.
    """

    def __init__(self, weights, grid, n_extra, causal, is_wide):
        self.kept = np.ones(weights.shape)
        if causal:
            # Row-major numbers of positions and of offsets agree in order: j <= i exactly where
            # the offset is the middle one or comes after it.
            self.kept.reshape(-1)[: self.kept.size // 2] = 0
            weights = weights * like(self.kept, weights)
        self.weights, self.grid, self.n_extra, self.causal = weights, grid, n_extra, causal
        host = to_host(weights).astype(np.float64)
        n_positions = math.prod(grid) + n_extra
        super().__init__((n_positions, n_positions), max(host.max(), 1.0 if n_extra else 0.0))
        self.padded = tuple(scipy.fft.next_fast_len(n, real=True) for n in weights.shape)
        self.size = math.prod(self.padded)
        self.norm = float(np.linalg.norm(host / self._unit))
        # Query i sees no keys but those from i - largest_lag to i - least_lag.
        steps = np.array([math.prod(grid[axis:]) for axis in range(1, len(grid) + 1)])
        offsets = np.argwhere(self.kept if is_wide else host) + 1 - np.array(grid)
        differences = offsets @ steps
        self._least_lag = differences.min(initial=n_positions)
        self._largest_lag = differences.max(initial=-n_positions)
        # Flat indices of positions in the array of the weights, as far apart as their offsets.
        # Those of extra positions lie beyond the array, whatever is subtracted.
        numbers = np.unravel_index(np.arange(math.prod(grid)), grid)
        places = np.ravel_multi_index(numbers, weights.shape)
        beyond = np.full(n_extra, 2 * self.kept.size)
        self._row_places = np.concatenate([beyond, places + self.kept.size // 2])
        self._key_places = np.concatenate([-beyond, places])
        self._cache = {}

    def columns_pay(self, n_features, n_values):
        """Return whether products with all columns are faster than forming all entries."""
        middle = np.arange(self.shape[0])
        ends = np.minimum(middle - self._least_lag, self.shape[0] - 1)
        n_entries = np.maximum(ends - np.maximum(middle - self._largest_lag, 0) + 1, 0).sum()
        column = self.size * math.log2(max(self.size, 2))
        by_columns = _FFT_COST * column * n_features * (n_values + 1)
        return bool(by_columns < n_entries * (_ENTRY_COST + n_features + n_values))

    def seen(self, rows):
        """Return the keys that any of these rows may see: a slice."""
        n, extra = self.shape[1], self.n_extra
        if extra:
            is_first = self.causal and rows[-1] < extra
            return slice(0, int(rows[-1]) + 1 if is_first else n)
        start = min(max(int(rows[0] - self._largest_lag), 0), n)
        return slice(start, max(min(int(rows[-1] - self._least_lag) + 1, n), start))

    # ---------------------------------------------------------------- entries

    def entries(self, rows, keys, X):
        """Return W at rows and keys (a slice), over the unit, in the library and dtype of X."""
        weights, extra, xp = self._weights_like(X), self.n_extra, namespace(X)
        if not (extra or is_array_api(X)):
            return self._windows(rows, keys, weights)
        # Extra positions find a last weight of 1.
        flat = xp.concat([xp.reshape(weights, (-1,)), like([1 / self.unit(X)], X)])
        part = take(flat, beside(self._flat_places(rows, keys), X))
        part = xp.reshape(part, (len(rows), keys.stop - keys.start))
        return part * like(below(rows, keys), X) if extra and self.causal else part

    def _weights_like(self, X):
        """Return the weights over the unit in the library and dtype of X."""

        def make():
            own = self.weights / self.unit(X)
            return cast(own, X.dtype) if is_array_api(own) else like(own, X)

        return self._remembered("weights", X, make)

    def _remembered(self, name, X, make):
        if (name, X.dtype) not in self._cache:
            self._cache[name, X.dtype] = make()
        return self._cache[name, X.dtype]

    def _flat_places(self, rows, keys):
        """Return flat indices of the weights of rows and keys; the next one if either is extra."""
        places = self._row_places[rows][:, None] - self._key_places[keys]
        return np.minimum(places, self.kept.size, out=places).ravel()

    def _windows(self, rows, keys, weights):
        """Return NumPy entries: windows of the reversed weights."""

        def windows():
            back = np.ascontiguousarray(np.flip(weights))
            seen = np.lib.stride_tricks.sliding_window_view(back, self.grid)
            return np.flip(seen, tuple(range(len(self.grid))))

        found = self._remembered("windows", weights, windows)
        length = math.prod(self.grid[1:])
        first = keys.start // length
        some = (slice(None),) * len(self.grid) + (slice(first, -(-keys.stop // length)),)
        if len(self.grid) == 1:
            return rows_of(found, rows, axis=0)[:, keys]
        part = found[some][np.unravel_index(rows, self.grid)].reshape(len(rows), -1)
        return part[:, keys.start - first * length : keys.stop - first * length]

    # ---------------------------------------------------------------- products

    def batch(self, X, n_sets):
        """Return the best number of columns to transform at once."""
        n_bytes = DEVICE_BYTES if is_array_api(X) else COLUMN_BYTES
        each = 4 if X.dtype == namespace(X).float32 else 8
        return max(_LEAST_COLUMNS, n_bytes // (each * self.size * n_sets))

    def rounding(self, X):
        """Return an upper estimate of the error of products, over the 2-norm of the column."""
        # About three times the largest error seen (sizes 8 to 2,000, one to three axes).
        share = float(namespace(X).finfo(X.dtype).eps) * math.log2(max(self.size, 2))
        return share * self.norm * self._unit / self.unit(X)

    def _axes(self, leading):
        return tuple(range(len(leading), len(leading) + len(self.grid)))

    def waves(self, columns):
        """Return the transforms of columns of shape (..., S) without extra keys."""
        leading, xp = columns.shape[:-1], namespace(columns)
        own = xp.reshape(columns[..., self.n_extra :], (*leading, *self.grid))
        return _fft(own).rfftn(own, s=self.padded, axes=self._axes(leading))

    def product(self, waves, columns):
        """Return W Z for columns Z of shape (..., S), without rows of extra positions.

        NumPy waves are overwritten.
        """
        waves = arithmetic(waves).multiply(waves, self._transform(columns))
        return self._convolved(waves, columns)

    def transposed_product(self, waves, columns):
        """Return W'Z for columns of shape (..., L) that are 0 at extra positions.

        Waves are overwritten.
        """
        waves *= self._transform(columns).conj()
        return self._convolved(waves, columns, is_back=True)

    def _transform(self, X):
        """Return the transform of the weights, which is kept."""

        def make():
            xp, weights = namespace(X), self._weights_like(X)
            for axis, (n, padded) in enumerate(zip(self.grid, self.padded, strict=True)):
                shape = list(weights.shape)
                shape[axis] = padded - shape[axis]
                rest = like(np.zeros(shape), X)
                weights = xp.concat([weights, rest], axis=axis)
                weights = xp.roll(weights, 1 - n, axis=axis)
            return _fft(X).rfftn(weights)

        return self._remembered("transform", X, make)

    def _convolved(self, waves, columns, is_back=False):
        """Return columns of the convolution, and what extra positions add."""
        leading, xp, extra = columns.shape[:-1], namespace(columns), self.n_extra
        full = _fft(columns).irfftn(waves, s=self.padded, axes=self._axes(leading))
        own = full[(..., *(slice(n) for n in self.grid))]
        own = xp.reshape(own, (*leading, -1))
        if not extra:
            return own
        part = columns[..., extra:] if is_back else columns[..., :extra]
        total = xp.sum(part, axis=-1, keepdims=True) / self.unit(columns)
        nothing = xp.zeros_like(columns[..., :extra])
        if is_back:
            return xp.concat([nothing + total, own], axis=-1)
        return xp.concat([nothing, own + total], axis=-1)

    # ---------------------------------------------------------------- gradients

    def no_gradient(self, X):
        """Return the gradient with respect to the weights, before anything is added."""
        return np.zeros(self.kept.shape)

    def share(self, total):
        """Return the array that one of several threads adds its gradients to."""
        return np.zeros_like(total)

    def add_gradient(self, total, rows, keys, gradient):
        """Add the gradient with respect to entries over the unit."""
        index = self._flat_places(rows, keys)
        found = np.bincount(index, gradient.ravel(), minlength=total.size + 1)
        found = found[:-1].reshape(total.shape)
        total += found * self.kept / self.unit(gradient)

    def correlation(self, waves, gradient_waves):
        """Return the transformed gradient, given waves of columns and of their gradients."""
        axes = tuple(range(waves.ndim - len(self.grid)))
        return np.sum(gradient_waves * waves.conj(), axis=axes)

    def add_waves(self, total, waves, X):
        """Add the gradient, given the sum of `correlation` over all columns in the dtype of X."""
        full = scipy.fft.irfftn(waves, s=self.padded)
        full = np.roll(full, [n - 1 for n in self.grid], range(len(self.grid)))
        own = full[tuple(slice(n) for n in self.kept.shape)]
        total += own * self.kept / self.unit(X)


class OperatorMask(Mask):
    """Mask that is a LinearOperator: entries and gradients need its adjoint.

    It may compute by an FFT: its rounding error is estimated as if it did, from the norm of the
    longest row of W, which products with random signs reveal.
    """

    is_double = True

    def __init__(self, operator):
        if np.issubdtype(operator.dtype, np.complexfloating):
            raise TypeError(f"mask must be real, got a LinearOperator of dtype {operator.dtype}.")
        super().__init__(operator.shape)
        self.operator = operator
        # Heads run on threads, and an operator may have work arrays of its own.
        self.lock = threading.Lock()
        self.block_rows = min(_BLOCK_ROWS, max(1, BLOCK_BYTES // (8 * max(*self.shape, 1))))
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (16, self.shape[1]))
        norms2 = np.mean(self.product(signs, signs) ** 2, axis=0)
        size = max(*self.shape, 2)
        eps = np.finfo(np.float64).eps
        self._rounding = 2 * eps * math.log2(size) * math.sqrt(norms2.max(initial=0))

    def columns_pay(self, n_features, n_values):
        """Return True: entries are not at hand."""
        return True

    def batch(self, X, n_sets):
        """Return the best number of columns to multiply at once."""
        return max(1, BLOCK_BYTES // (16 * max(*self.shape, 1)))

    def rounding(self, X):
        """Return an upper estimate of the error of products, over the 2-norm of the column."""
        return self._rounding

    def waves(self, columns):
        """Return the columns unchanged."""
        return columns

    def product(self, waves, columns):
        """Return W Z for columns Z of shape (..., S)."""
        flat = columns.reshape(-1, columns.shape[-1])
        with self.lock:
            found = np.array(self.operator.matmat(flat.T), dtype=np.float64)
        return found.T.reshape(*columns.shape[:-1], -1)

    def transposed_product(self, waves, columns):
        """Return W'Z for columns Z of shape (..., L)."""
        flat = columns.reshape(-1, columns.shape[-1])
        try:
            with self.lock:
                found = np.array(self.operator.rmatmat(flat.T), dtype=np.float64)
        except (NotImplementedError, TypeError) as error:
            raise ValueError(
                "mask: this LinearOperator has no adjoint (rmatvec or rmatmat). Gradients need it, "
                "and so do rows whose keys weigh so little beside the others that products with "
                "all of them are not exact. Give it one, or pass a sparse matrix or an array."
            ) from error
        return found.T.reshape(*columns.shape[:-1], -1)

    def entries(self, rows, keys, X):
        """Return W at rows and keys, by the adjoint of unit vectors."""
        units = np.zeros((len(rows), self.shape[0]))
        units[np.arange(len(rows)), rows] = 1
        entries = self.transposed_product(units, units)
        least, largest = entries.min(initial=0), abs(entries).max(initial=0)
        # Negative entries beyond rounding errors are refused.
        if not (least >= -1e-9 * largest and largest < np.inf):
            raise ValueError(f"mask must be finite and >= 0 everywhere, got {least}.")
        return np.maximum(entries[:, keys], 0)


def _fft(X):
    """Return the module with the transforms: SciPy's keep float32 and are faster than NumPy's."""
    return namespace(X).fft if is_array_api(X) else scipy.fft


def below(rows, keys):
    """Return 1 where a key is not behind the query, else 0, for rows and keys."""
    numbers = np.arange(keys.start, keys.stop) if isinstance(keys, slice) else keys
    return (numbers <= rows[:, None]).astype(np.float64)


def rows_of(X, rows, axis=-2):
    """Return rows of an array, a slice or sorted indices on the host; NumPy's may be a view."""
    if not isinstance(rows, slice):
        start, stop = int(rows[0]), int(rows[-1]) + 1
        rows = slice(start, stop) if stop - start == len(rows) else rows
    if isinstance(rows, slice):
        index = [slice(None)] * X.ndim
        index[axis] = rows
        return X[tuple(index)]
    if is_array_api(X):
        return namespace(X).take(X, beside(rows, X), axis=axis)
    return X.take(rows, axis=axis)


def parts_of(keys, size):
    """Split keys (a slice or indices) into parts of limited size."""
    if isinstance(keys, slice):
        n = keys.stop - keys.start
        return [slice(keys.start + p.start, keys.start + p.stop) for p in blocks(n, size)]
    return [keys[part] for part in blocks(len(keys), size)]
