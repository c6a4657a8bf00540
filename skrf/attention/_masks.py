"""Masks as attention sees them: entries of some rows, or products with columns; and their checks.

Entries are over the largest one, so that they are at most 1: only their ratios count.
"""

import copy
import math

import array_api_compat
import numpy as np
import scipy.fft
import scipy.sparse as sp

from .._arrays import (
    cast,
    constant,
    in_library_of,
    is_array_api,
    is_torch,
    like,
    namespace,
    take,
    to_host,
)
from .._validation import check_not_masked
from ._inputs import as_array

# Rows of entries that are formed at once. Rows of a sparse mask share few keys, so that more of
# them multiply more zeros; from _DENSE_FROM on a sparse mask counts as an array.
_BLOCK_ROWS, _SPARSE_ROWS, _DENSE_FROM = 1024, 32, 1 / 16
# In multiply-adds of a matrix product: the FFT of a column of P numbers takes _FFT_COST P log2(P),
# and an entry of a mask times the kernel, without the products that follow, _ENTRY_COST.
_FFT_COST, _ENTRY_COST = 25, 50


class Mask:
    """A mask W of shape (L, S) by its entries, and for some masks by products with columns.

    A subclass has `_entries`. If `products_pay` may be True, it has `size` as well, and:

    - ``multiplier(X, heads)``, the function that multiplies W and columns like X: the plan of a
      call. It takes columns (..., C, S) and returns W Z of shape (..., G, C, L), G being 1 unless
      heads have weights of their own. Of the first `n_extra` rows it may return anything.
    - ``rounding(X)``, an upper estimate of the error of products, over the 2-norm of the column. It
      is never 0: features of both signs have nothing else that shows an underflow.

    Rows whose products are not accurate are computed from entries all the same.

    Attributes
    ----------
    shape : tuple of int
        (L, S).
    n_heads : int or None
        Number of query heads that have weights of their own; None means one mask for all.
    largest : float
        What entries are divided by.
    block_rows : int
        Best number of rows per call of `entries`.
    n_extra : int
        Number of leading rows that products leave out.
    size : int
        Numbers that the product with a column needs in memory.
    """

    n_heads, largest, block_rows, n_extra = None, 1.0, _BLOCK_ROWS, 0

    def __init__(self, shape, is_causal=False):
        self.shape, self.is_causal = shape, is_causal
        self.first = shape[1] - shape[0] if is_causal else 0  # position of the first query

    def products_pay(self, n_features, n_values):
        """Return whether products with columns are faster than entries.

        The columns are the products of features with values (and 1).
        """
        return False

    def visible(self, rows):
        """Return the keys that any of these rows may see: a slice, or numbers in order."""
        stop = self.first + int(rows[-1]) + 1 if self.is_causal else self.shape[1]
        return slice(0, stop)

    def entries(self, rows, keys, X, heads=None):
        """Return W at rows and keys, (n, m) or (*heads.shape, n, m), like X.

        Parameters
        ----------
        rows : ndarray of int
            Queries.
        keys : slice or ndarray of int
            Keys.
        X : array
            Of the library and dtype of the result.
        heads : ndarray of int, default=None
            Query heads, used where they have weights of their own.
        """
        entries = self._entries(rows, keys, X, heads)
        if not self.is_causal:
            return entries
        numbers = np.arange(keys.start, keys.stop) if isinstance(keys, slice) else keys
        is_seen = numbers <= self.first + rows[:, None]
        return entries * like(is_seen.astype(np.float64), X)


class ArrayMask(Mask):
    """Mask that is an array (L, S) or (H, L, S) of NumPy or of the inputs' library."""

    def __init__(self, array, largest, is_causal):
        super().__init__(tuple(array.shape[-2:]), is_causal)
        self.array, self.largest = array, largest
        self.n_heads = array.shape[0] if array.ndim == 3 else None

    def _entries(self, rows, keys, X, heads):
        entries = self.array if self.n_heads is None else _of_heads(self.array, heads)
        entries = some_rows(entries, rows)[..., keys]
        if not is_array_api(entries):
            return like(entries if self.largest == 1 else entries / self.largest, X)
        if namespace(X).isdtype(entries.dtype, ("bool", "integral")):
            entries = cast(entries, X.dtype)
        return cast(entries / self.largest, X.dtype)


class SparseMask(Mask):
    """Mask that is a CSR matrix."""

    def __init__(self, matrix, largest, is_causal):
        super().__init__(matrix.shape, is_causal)
        self.matrix, self.largest = matrix, largest
        if matrix.nnz < _DENSE_FROM * math.prod(matrix.shape):
            self.block_rows = _SPARSE_ROWS

    def visible(self, rows):
        """Return the keys that any of these rows may see: numbers in order."""
        return np.unique(self.matrix[rows].indices)

    def _entries(self, rows, keys, X, heads):
        return like((self.matrix[rows][:, keys] / self.largest).toarray(), X)


class GridMask(Mask):
    """Block-Toeplitz mask: a convolution, done as a circular one of about twice the size.

    Its products are not sums of nonnegative terms: their rounding error is proportional to the
    largest columns, wherever those are.

    Parameters
    ----------
    weights : array of shape (2 n_1 - 1, ...) or (H, 2 n_1 - 1, ...)
        Weights of the offsets, of NumPy or of the inputs' library.
    grid : tuple of int
        Positions on each axis.
    n_extra : int
        Number of positions before the grid, which see all others, and are seen, with weight 1.
    is_causal : bool
        Whether later keys have weight 0.
    n_queries : int, default=None
        Number of queries, those of the last positions; None means all.
    """

    def __init__(self, weights, grid, n_extra, is_causal, n_queries=None):
        n = math.prod(grid) + n_extra
        # The grid is causal by its weights.
        shape = n if n_queries is None else n_queries, n
        super().__init__(shape, is_causal and n_extra > 0)
        self.first = n - self.shape[0]
        self.n_heads = weights.shape[0] if weights.ndim > len(grid) else None
        sizes = weights.shape[-len(grid) :]
        is_seen = np.ones(sizes)
        if is_causal:
            # Row-major numbers of positions and of offsets agree in order: j <= i exactly where the
            # offset is the middle one or comes after it.
            is_seen.reshape(-1)[: is_seen.size // 2] = 0
            weights = weights * like(is_seen, weights)
        host = to_host(constant(weights)).astype(np.float64)
        self.largest = max(float(host.max()), 1.0 if n_extra else 0.0) or 1.0
        self.weights, self.grid, self.n_extra = weights, grid, n_extra
        self.padded = tuple(scipy.fft.next_fast_len(size, real=True) for size in sizes)
        self.size = math.prod(self.padded)
        axes = tuple(range(-len(grid), 0))
        self._norm = float(np.sqrt(np.sum((host / self.largest) ** 2, axis=axes)).max())
        # Weights of 0 that are trained count as seen, because their gradients are wanted.
        if not getattr(weights, "requires_grad", False):
            is_seen = host if self.n_heads is None else host.max(axis=0)
        self._lags = _lags(is_seen, grid)
        self._is_extra = np.arange(n) < n_extra
        # Positions of the grid in the array of the weights, as far apart as their offsets.
        numbers = np.unravel_index(np.arange(n - n_extra), grid)
        self._places = np.pad(np.ravel_multi_index(numbers, sizes), (n_extra, 0))

    def products_pay(self, n_features, n_values):
        """Return whether products with columns are faster than entries."""
        if self.first:
            return False
        queries = np.arange(self.shape[0])
        ends = np.minimum(queries - self._lags[0], self.shape[0] - 1)
        n_entries = np.maximum(ends - np.maximum(queries - self._lags[1], 0) + 1, 0).sum()
        column = self.size * math.log2(max(self.size, 2))
        by_products = _FFT_COST * column * n_features * (n_values + 1)
        return bool(by_products < n_entries * (_ENTRY_COST + n_features + n_values))

    def visible(self, rows):
        """Return the keys that any of these rows may see: a slice."""
        n = self.shape[1]
        if self.n_extra:
            return super().visible(rows)
        rows = rows[[0, -1]] + self.first
        start = min(max(int(rows[0] - self._lags[1]), 0), n)
        return slice(start, max(min(int(rows[-1] - self._lags[0]) + 1, n), start))

    def _entries(self, rows, keys, X, heads):
        weights, xp, rows = self._like(X), namespace(X), rows + self.first
        if weights.ndim == 1 and not self.n_extra and isinstance(weights, np.ndarray):
            windows = np.lib.stride_tricks.sliding_window_view(weights[::-1], self.grid)
            return some_rows(windows, len(windows) - 1 - rows[::-1])[::-1, keys]  # often a view
        weights = weights if self.n_heads is None else _of_heads(weights, heads)
        leading, middle = weights.shape[: -len(self.grid)], self._places[-1]
        places = middle + self._places[rows][:, None] - self._places[keys]
        entries = take(xp.reshape(weights, (*leading, -1)), places.ravel(), -1)
        entries = xp.reshape(entries, (*leading, *places.shape))
        if not self.n_extra:
            return entries
        is_extra = in_library_of(self._is_extra[rows][:, None] | self._is_extra[keys], X)
        return xp.where(is_extra, like(1 / self.largest, X), entries)

    def _like(self, X):
        """Return the weights over the largest, in the library and dtype of X."""
        weights = self.weights / self.largest
        return cast(weights, X.dtype) if is_array_api(weights) else like(weights, X)

    def multiplier(self, X, heads):
        """Return the function that convolves the weights and columns; see `Mask.multiplier`."""
        xp, weights, extra = namespace(X), self._like(X), self.n_extra
        weights = weights[None, ...] if self.n_heads is None else _of_heads(weights, heads)
        axes = tuple(range(-len(self.grid), 0))
        for axis, n, padded in zip(axes, self.grid, self.padded, strict=True):
            shape = list(weights.shape)
            shape[axis] = padded - shape[axis]
            weights = xp.concat([weights, like(np.zeros(shape), X)], axis=axis)
            weights = xp.roll(weights, 1 - n, axis=axis)
        fft = xp.fft if is_array_api(X) else scipy.fft  # SciPy's keep float32 and are faster
        every, on_grid = (slice(None),) * len(axes), tuple(slice(n) for n in self.grid)
        transform = fft.rfftn(weights, axes=axes)[(..., None, *every)]

        def product(columns):
            leading = columns.shape[:-1]
            grid = xp.reshape(columns[..., extra:], (*leading, *self.grid))
            waves = fft.rfftn(grid, s=self.padded, axes=axes)[(..., None, slice(None), *every)]
            filtered = fft.irfftn(waves * transform, s=self.padded, axes=axes)[(..., *on_grid)]
            filtered = xp.reshape(filtered, (*filtered.shape[: -len(axes)], -1))
            if not extra:
                return filtered
            total = xp.sum(columns[..., :extra], axis=-1, keepdims=True) / self.largest
            unused = like(np.zeros((*filtered.shape[:-1], extra)), X)
            return xp.concat([unused, filtered + total[..., None, :, :]], axis=-1)

        return product

    def rounding(self, X):
        """Return an upper estimate of the error of products, over the 2-norm of the column."""
        # About three times the largest error seen (sizes 8 to 2,000, one to three axes).
        return float(namespace(X).finfo(X.dtype).eps) * math.log2(max(self.size, 2)) * self._norm


def as_mask(mask, n_queries, n_keys, n_heads, is_causal, X=None):
    """Check the mask of a call and return the `Mask` that applies it.

    Parameters
    ----------
    mask : ToeplitzMask, sparse matrix or array-like
        As given by users: (L, S), or (H, L, S) for an array; entries >= 0, boolean True is 1. With
        fewer queries than keys, causal ones may have all S rows, the last L of which count.
    n_queries, n_keys, n_heads : int
        The required shape, and the number of query heads.
    is_causal : bool
        Whether to remove the keys j > i as well.
    X : array, default=None
        An array in the library of the inputs; None is NumPy.
    """
    is_grid = hasattr(mask, "n_extra")
    if not (is_grid or sp.issparse(mask)):
        mask = array_of(mask)
        while mask.ndim > 2 and mask.shape[0] == 1:
            mask = mask[0, ...]
    shape = (mask.n_positions,) * 2 if is_grid else tuple(mask.shape)
    own_heads = None
    if is_grid and mask.weights.ndim > len(mask.shape):
        own_heads = mask.weights.shape[0]
    elif len(shape) == 3:
        own_heads, *shape = shape
    if is_causal and n_queries < n_keys and tuple(shape) == (n_keys, n_keys):
        # A step of decoding does not look at the rows of the positions before.
        first = n_keys - n_queries
        if sp.issparse(mask):
            mask = mask.tocsr()[first:]
        elif not is_grid:
            mask = mask[..., first:, :]
        shape = [n_queries, n_keys]
    if tuple(shape) != (n_queries, n_keys) or own_heads not in (None, n_heads):
        got = tuple(shape) if own_heads is None else (own_heads, *shape)
        raise ValueError(
            "mask must have the shape (number of queries, number of keys) = "
            f"{(n_queries, n_keys)}, or with an axis for {n_heads} query heads in front, got a "
            f"{type(mask).__name__} of shape {got}. Padding of single texts is key_padding_mask."
        )
    if is_grid:
        if is_array_api(mask.weights):
            checked_entries(mask.weights, "weights")  # again, because training changes them
        weights = _in_library(mask.weights, X)
        if not is_array_api(X):
            weights = weights.astype(np.float64, copy=False)
        return GridMask(weights, mask.shape, mask.n_extra, is_causal, n_queries)
    if sp.issparse(mask):
        mask = mask.tocsr()
        checked_entries(mask.data, "mask")
        mask = mask.astype(np.float64)
        mask.sum_duplicates()
        return SparseMask(mask, float(mask.data.max(initial=0.0)) or 1.0, is_causal)
    entries = checked_entries(mask, "mask")
    largest = float(entries.max(initial=0)) or 1.0
    return ArrayMask(_in_library(mask, X), largest, is_causal)


def array_of(mask):
    """Return a mask that is neither sparse nor a grid as an array, or raise."""
    array = mask if is_array_api(mask) else as_array("mask", mask)
    if array.dtype == object:
        raise TypeError(
            "mask must be an array of shape (L, S) or (heads, L, S), a sparse matrix or a "
            "ToeplitzMask, whose weights may have an axis for heads; got an object of type "
            f"{type(mask).__name__}."
        )
    return array


def _of_heads(array, heads):
    """Return the parts of an array (H, ...) that belong to heads, (*heads.shape, ...)."""
    selected = take(array, np.ravel(heads))
    return namespace(selected).reshape(selected, (*np.shape(heads), *selected.shape[1:]))


def _lags(is_seen, grid):
    """Return the least and the largest lag among offsets whose weights are not 0.

    Query i sees no keys but those from i minus the largest to i minus the least.
    """
    n, steps = math.prod(grid), [math.prod(grid[axis:]) for axis in range(1, len(grid) + 1)]
    lags = (np.argwhere(is_seen) + 1 - np.array(grid)) @ np.array(steps)
    return lags.min(initial=n), lags.max(initial=-n)


def some_rows(X, rows):
    """Return rows of an array (axis -2), a slice or sorted indices on the host; may be a view."""
    if not isinstance(rows, slice) and len(rows) == rows[-1] + 1 - rows[0]:
        rows = slice(int(rows[0]), int(rows[-1]) + 1)
    return X[..., rows, :] if isinstance(rows, slice) else take(X, rows, -2)


def _in_library(values, X):
    """Return entries in the library of X and on its device, with their graph."""
    if not is_array_api(X):
        return np.asarray(to_host(values))
    if not (is_array_api(values) and namespace(values) is namespace(X)):
        return in_library_of(to_host(values), X)
    values, xp = array_api_compat.to_device(values, array_api_compat.device(X)), namespace(X)
    is_float = xp.isdtype(values.dtype, "real floating")
    return cast(values, xp.float32) if is_float and xp.finfo(values.dtype).bits < 32 else values


# ---------------------------------------------------------------- entries of callers


def owned(values):
    """Return a copy of the arrays of a caller.

    Tensors of torch, which may be trained, and objects with entries of their own stay as they are.
    """
    if isinstance(values, (np.ndarray, list, tuple)) or sp.issparse(values):
        return copy.deepcopy(values)
    if is_array_api(values) and not is_torch(values):
        return namespace(values).asarray(values, copy=True)
    return values


def as_doubles(values):
    """Return entries of any library as float64 on the host, which lacks some short floats."""
    if is_array_api(values) and namespace(values).isdtype(values.dtype, "real floating"):
        values = cast(constant(values), namespace(values).float64)
    values = np.asarray(to_host(values))
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def checked_entries(entries, name):
    """Return entries as an array of real, finite numbers >= 0, or raise."""
    check_not_masked(name, entries)
    entries = np.asarray(as_doubles(entries) if is_array_api(entries) else entries)
    if entries.dtype.kind not in "buif":
        raise TypeError(f"{name} must hold real numbers or booleans, got {entries.dtype}.")
    # Minimum and maximum need no temporary arrays, and NaN fails both comparisons.
    if entries.size and not (entries.min() >= 0 and entries.max() < np.inf):
        wrong, hint = entries[~((entries >= 0) & (entries < np.inf))], ""
        if (wrong == -np.inf).any():
            hint = (
                ". It multiplies weights, but one with -inf is meant to be added to logarithms: "
                f"pass exp({name})"
            )
        raise ValueError(f"{name} must be finite and >= 0 everywhere, got {wrong[0]}{hint}.")
    return entries


def check_decay(rate):
    """Raise a ValueError unless these are rates of a decay."""
    shape = checked_entries(rate, "rate").shape
    if len(shape) > 1:
        raise ValueError(f"rate must be a number or an array of shape (n_heads,), got {shape}.")
