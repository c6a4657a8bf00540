"""Which array library an input belongs to, and the few operations that depend on it.

NumPy arrays and SciPy sparse matrices share one path; every other library that follows the array
API standard (CuPy, torch) uses its own namespace, so that the output lives where the input does.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import array_api_compat
import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import cdist

LARGEST = 1e150  # its square is still a float
_NEAR = 1e-3  # share of |x|^2 + |y|^2 below which expanded squares lose more than 3 digits
_PAIRS, _NUMBERS = 2**12, 2**20  # pairs of sparse rows, and numbers, subtracted at once
_WIDE = 256  # columns from which expanded squares save time
_GPU_ENTRIES = 2**25  # of a block, which hide the time that a GPU takes to begin an operation
_LIBRARIES = {}  # by type, because a lookup costs as much as a small operation


@dataclass(frozen=True, eq=False)
class Library:
    """An array library: its namespace, and what the array API standard leaves to libraries.

    Arithmetic takes a temporary array first, which it may overwrite: NumPy and torch do where they
    can, because a new array costs as much as the operation.

    Parameters
    ----------
    xp : module
        The array-API namespace.
    is_torch : bool
        Whether it is that of torch.
    constant : callable
        Returns an array without its gradients, which only torch has.
    cast : callable
        Takes an array and a dtype of the library, and returns the array itself if it has the dtype.
    add, subtract, multiply, divide, exp : callable
        Arithmetic.
    fill : callable
        Takes logarithms, where to replace them, in a shape that broadcasts to theirs, and a number.
    """

    xp: Any
    is_torch: bool
    constant: Callable
    cast: Callable
    add: Callable
    subtract: Callable
    multiply: Callable
    divide: Callable
    exp: Callable
    fill: Callable


def library(X):
    """Return the `Library` of X; that of NumPy for NumPy, sparse input, and anything else."""
    kind = type(X)
    if kind not in _LIBRARIES:
        _LIBRARIES[kind] = _library_of(X)
    return _LIBRARIES[kind]


def _library_of(X):
    """Return the `Library` of an array of a type that was not seen before."""
    is_other = (
        not isinstance(X, np.ndarray)
        and not sp.issparse(X)
        and array_api_compat.is_array_api_obj(X)
        and not array_api_compat.is_numpy_array(X)
        and not array_api_compat.is_dask_array(X)  # which cannot hold rows
    )
    if not is_other:
        return _NUMPY
    xp = array_api_compat.array_namespace(X)
    return _torch(xp) if array_api_compat.is_torch_array(X) else _standard(xp)


def namespace(X):
    """Return the array-API namespace of X; NumPy for NumPy, sparse input, and anything else."""
    return library(X).xp


def is_array_api(X):
    """Return whether X is an array of a library other than NumPy (and not sparse)."""
    return type(X) is not np.ndarray and library(X) is not _NUMPY


def is_torch(X):
    """Return whether X is a tensor of torch."""
    return library(X).is_torch


def rounding_of(X):
    """Return the relative rounding error, with a margin, of results that come from rows like X."""
    return 1e-10 if X.dtype == namespace(X).float64 else 1e-5


def is_on_gpu(X):
    """Return whether X is an array of another library in the memory of a GPU."""
    if is_torch(X):
        return X.device.type != "cpu"
    return array_api_compat.is_cupy_array(X)


def rows_at_once(X, n_columns, usual):
    """Return how many rows to compute at once: `usual`, or on a GPU what fills a large block."""
    return max(usual, _GPU_ENTRIES // max(n_columns, 1)) if is_on_gpu(X) else usual


def to_host(X):
    """Return an array of another library as NumPy of the same dtype; anything else unchanged."""
    if not is_array_api(X):
        return X
    if is_torch(X):
        return X.numpy(force=True)
    if array_api_compat.is_cupy_array(X):
        return X.get()
    return np.from_dlpack(X)


def in_library_of(values, X, **dtype):
    """Return host `values` in the library and on the device of X."""
    if not is_array_api(X):
        return np.asarray(values, **dtype)
    if isinstance(values, np.ndarray) and not values.flags.writeable:
        values = values.copy("K")  # libraries may share memory, and fitted arrays are read-only
    return namespace(X).asarray(values, device=array_api_compat.device(X), **dtype)


def like(values, X):
    """Return host `values` in the library, on the device and in the dtype of X."""
    xp = namespace(X)
    if xp is np:
        return np.asarray(values, dtype=X.dtype)
    if isinstance(values, float):  # to copy it from the host, a GPU would have to finish first
        return xp.full((), values, dtype=X.dtype, device=array_api_compat.device(X))
    return in_library_of(values, X, dtype=X.dtype)


def filled(value, shape, X, dtype=None):
    """Return an array of one value in the library and on the device of X, float64 unless given."""
    xp = namespace(X)
    place = {"device": array_api_compat.device(X)} if is_array_api(X) else {}
    return xp.full(shape, value, dtype=dtype or xp.float64, **place)


def cast(X, dtype):
    """Return X in a dtype of its library, or X itself if it has that dtype."""
    if X.dtype == dtype:
        return X
    return namespace(X).astype(X, dtype) if is_array_api(X) else X.astype(dtype)


def take(X, rows, axis=0):
    """Return rows of X, or parts along another axis.

    They are chosen by integers of its library or of the host; rows also by a slice.
    """
    if isinstance(rows, slice):
        return X[rows, ...]
    if not is_array_api(X):
        return X[rows] if axis == 0 else X.take(rows, axis)
    rows = rows if is_array_api(rows) else in_library_of(rows, X)
    return namespace(X).take(X, rows, axis=axis)


def constant(X):
    """Return X as a constant without gradients, which only torch has."""
    return X.detach() if type(X) is not np.ndarray and is_torch(X) else X


def columns(parts):
    """Join column blocks side by side."""
    return namespace(parts[0]).concat(parts, axis=1)


def squared_norms(X):
    """Return the squared Euclidean norm of every row of a dense array."""
    if is_array_api(X):
        return namespace(X).sum(X * X, axis=1)
    return np.einsum("ij,ij->i", X, X)


def squared_distances(X, Y, sign=-1):
    """Return |x + sign y|^2 for every pair of rows, in float64 on the host.

    Rows are subtracted before squaring: the usual expansion loses all digits if two rows nearly
    agree, which is exactly where closed-form variances are needed. For sparse and for wide rows
    this is done only for the pairs that need it.
    """
    X, Y = to_host(X), to_host(Y)
    is_sparse = sp.issparse(X) or sp.issparse(Y)
    if is_sparse:
        X, Y = (sp.csr_array(Z, dtype=np.float64) for Z in (X, Y))
        sizes = np.add.outer(*(Z.multiply(Z).sum(axis=1) for Z in (X, Y)))
    else:
        X, Y = (Z.astype(np.float64, copy=False) for Z in (X, Y))
        if X.shape[1] < _WIDE:
            return cdist(X, -sign * Y, "sqeuclidean")
        with np.errstate(over="ignore"):
            sizes = np.add.outer(squared_norms(X), squared_norms(Y))
        if not np.isfinite(sizes).all():
            return cdist(X, -sign * Y, "sqeuclidean")
    products = X @ Y.T
    squares = sizes + 2 * sign * (products.toarray() if is_sparse else products)
    near = np.nonzero(squares < _NEAR * sizes)
    n_pairs = max(1, _PAIRS if is_sparse else _NUMBERS // X.shape[1])
    for start in range(0, len(near[0]), n_pairs):
        i, j = (indices[start : start + n_pairs] for indices in near)
        difference = X[i] + sign * Y[j]
        squares[i, j] = (difference * difference).sum(axis=1)
    return squares


def scaled_squares(X, Y, sigma):
    """Return |sigma (x - y)|^2 for every pair of rows, in float64 on the host.

    Rows are scaled by a power of 2, which rounds nothing, so that equal parts cancel, and squares
    of rows of any size are floats.
    """
    unit = math.ldexp(1.0, math.frexp(sigma)[1] - 1)
    X, Y = (cast(Z, namespace(Z).float64) * unit for Z in (X, Y))
    return squared_distances(X, Y) * (sigma / unit) ** 2


def less_offset(X, offset):
    """Return sparse rows minus an offset; columns with a nonzero offset become dense.

    Parameters
    ----------
    X : csr matrix of shape (n, d)
        Rows.
    offset : ndarray of shape (d,)
        The offset, in the dtype of X.
    """
    columns = np.flatnonzero(offset)
    if not len(columns):
        return X
    n, d = X.shape
    dense = X[:, columns].toarray() - like(offset[columns], X)
    others = offset[X.indices] == 0
    entry_rows = np.repeat(np.arange(n), np.diff(X.indptr))
    parts = (
        (X.data[others], dense.ravel()),
        (entry_rows[others], np.repeat(np.arange(n), len(columns))),
        (X.indices[others], np.tile(columns, n)),
    )
    data, rows, indices = map(np.concatenate, parts)
    return sp.csr_array((data, (rows, indices)), shape=(n, d))


def largest_norm2(X):
    """Return the largest squared norm of a row of a dense array, inf only if it is that large.

    Rows are first divided by the largest entry, because squares may leave the range of float32.
    """
    # One pass without a temporary array, unless it over- or underflows.
    if is_array_api(X):
        xp = namespace(X)
        norm = float(xp.max(xp.linalg.vector_norm(constant(X), axis=-1)))
        norm2 = norm * norm
    else:
        norm2 = float(squared_norms(X).max())
    if 1e-30 < norm2 < 1e30:
        return norm2
    largest = largest_entry(X)
    if not 1e-15 < largest < 1e15:
        if not 0.0 < largest < math.inf:
            return largest * largest
        return largest_norm2(constant(X) / largest) * largest * largest
    return float(namespace(X).max(squared_norms(constant(X))))


def largest_entry(X):
    """Return the largest absolute value, or NaN if there is a NaN, without a temporary array."""
    if type(X) is np.ndarray:  # asked for by every position of a stream
        low, high = float(X.min()), float(X.max())
    else:
        xp, X = namespace(X), constant(X)
        low, high = xp.aminmax(X) if hasattr(xp, "aminmax") else (xp.min(X), xp.max(X))
        low, high = float(low), float(high)
    return -low if high < -low else high + 0.0 * low  # the sum keeps NaN


def _fill(X, where, value):
    """Set entries of a NumPy array."""
    np.copyto(X, value, where=where)
    return X


_NUMPY = Library(
    xp=np,
    is_torch=False,
    constant=np.asarray,
    cast=np.asarray,
    add=operator.iadd,
    subtract=operator.isub,
    multiply=operator.imul,
    divide=operator.itruediv,
    exp=lambda X: np.exp(X, out=X),
    fill=_fill,
)


@cache
def _standard(xp):
    """Return a `Library` that changes no array."""
    return Library(
        xp=xp,
        is_torch=False,
        constant=lambda X: X,
        cast=lambda X, dtype: xp.astype(X, dtype, copy=False),
        add=operator.add,
        subtract=operator.sub,
        multiply=operator.mul,
        divide=operator.truediv,
        exp=xp.exp,
        fill=lambda X, where, value: xp.where(where, value, X),
    )


@cache
def _torch(xp):
    """Return the `Library` of torch, whose arithmetic overwrites tensors where autograd lets it.

    A tensor must be unshared, and not an output saved for gradients. Views are not changed, because
    autograd would then record costly copies.
    """

    def is_shared(X):
        return X._base is not None

    def multiply(X, Y):
        return X * Y if X.requires_grad or is_shared(X) else X.mul_(Y)

    def fill(X, where, value):
        with xp.no_grad():  # after exp, their gradients are 0
            return X.masked_fill_(where, value)

    return Library(
        xp=xp,
        is_torch=True,
        constant=xp.Tensor.detach,
        cast=xp.Tensor.to,
        add=lambda X, Y: X + Y if is_shared(X) else X.add_(Y),
        subtract=lambda X, Y: X - Y if is_shared(X) else X.sub_(Y),
        multiply=multiply,
        divide=operator.truediv,
        exp=lambda X: X.exp() if is_shared(X) else X.exp_(),
        fill=fill,
    )


class Kept:
    """Values computed once per dtype, library and device; copies and saved models start empty."""

    def __init__(self):
        self._values = {}

    def like(self, X, make):
        """Return the host result of `make()` in the library, device and dtype of X."""
        if not is_array_api(X):
            key = X.dtype
        elif is_torch(X) and namespace(X).is_inference_mode_enabled():
            return like(make(), X)  # such tensors cannot be used where gradients are needed
        else:
            key = namespace(X).__name__, str(X.dtype), str(array_api_compat.device(X))
        if key not in self._values:
            self._values[key] = like(make(), X)
        return self._values[key]

    def __reduce__(self):
        return Kept, ()
