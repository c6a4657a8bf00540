"""Which array library an input belongs to, and the few operations that depend on it.

NumPy arrays and SciPy sparse matrices share one path; every other library that follows the array
API standard (CuPy, torch) uses its own namespace, so that the output lives where the input does.
"""

import math

import array_api_compat
import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import cdist

LARGEST = 1e150  # its square is still a float
_NEAR = 1e-3  # share of |x|^2 + |y|^2 below which expanded squares lose more than 3 digits
_PAIRS, _NUMBERS = 2**12, 2**20  # pairs of sparse rows, and numbers, subtracted at once
_WIDE = 256  # columns from which expanded squares save time
_GPU_ENTRIES = 2**25  # of a block, which hide the time that a GPU takes to begin an operation
_NAMESPACES, _OF_TORCH = {}, {}  # by type, because a lookup costs as much as a small operation


def is_array_api(X):
    """Return whether X is an array of a library other than NumPy (and not sparse)."""
    return type(X) is not np.ndarray and namespace(X) is not np


def namespace(X):
    """Return the array-API namespace of X; NumPy for NumPy, sparse input, and anything else."""
    kind = type(X)
    if kind not in _NAMESPACES:
        is_other = (
            not isinstance(X, np.ndarray)
            and not sp.issparse(X)
            and array_api_compat.is_array_api_obj(X)
            and not array_api_compat.is_numpy_array(X)
            and not array_api_compat.is_dask_array(X)  # which cannot hold rows
        )
        _NAMESPACES[kind] = array_api_compat.array_namespace(X) if is_other else np
    return _NAMESPACES[kind]


def is_torch(X):
    """Return whether X is a tensor of torch."""
    kind = type(X)
    if kind not in _OF_TORCH:
        _OF_TORCH[kind] = array_api_compat.is_torch_array(X)
    return _OF_TORCH[kind]


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


class InPlace:
    """Arithmetic that overwrites its first operand, a NumPy array."""

    add = staticmethod(lambda X, Y: np.add(X, Y, out=X))
    subtract = staticmethod(lambda X, Y: np.subtract(X, Y, out=X))
    multiply = staticmethod(lambda X, Y: np.multiply(X, Y, out=X))
    divide = staticmethod(lambda X, Y: np.divide(X, Y, out=X))
    exp = staticmethod(lambda X: np.exp(X, out=X))

    @staticmethod
    def fill(X, where, value):
        """Set entries to a value; `where` has the shape of X or one that broadcasts to it."""
        np.copyto(X, value, where=where)
        return X


class Pure:
    """The same arithmetic without changing operands, for libraries that differentiate."""

    add = staticmethod(lambda X, Y: X + Y)
    subtract = staticmethod(lambda X, Y: X - Y)
    multiply = staticmethod(lambda X, Y: X * Y)
    divide = staticmethod(lambda X, Y: X / Y)
    exp = staticmethod(lambda X: namespace(X).exp(X))

    @staticmethod
    def fill(X, where, value):
        """Return X with entries replaced by a value."""
        return namespace(X).where(where, like(value, X), X)


class Recorded(Pure):
    """The same for torch, in place: X must be unshared, and not an output saved for gradients.

    Views are not changed, because autograd would then record costly copies.
    """

    @staticmethod
    def add(X, Y):
        """Return X + Y."""
        return X + Y if _is_shared(X) else X.add_(Y)

    @staticmethod
    def subtract(X, Y):
        """Return X - Y."""
        return X - Y if _is_shared(X) else X.sub_(Y)

    @staticmethod
    def multiply(X, Y):
        """Return X * Y."""
        return X * Y if X.requires_grad or _is_shared(X) else X.mul_(Y)

    @staticmethod
    def fill(X, where, value):
        """Return logarithms with some entries replaced; after exp, their gradients are 0."""
        with namespace(X).no_grad():
            return X.masked_fill_(where, value)

    @staticmethod
    def exp(X):
        """Return exp(X)."""
        return X.exp() if _is_shared(X) else X.exp_()


def _is_shared(X):
    """Return whether a torch tensor is a view; never in inference mode."""
    return X._base is not None


def arithmetic(X):
    """Return the version for X, a temporary array that may be overwritten if possible.

    NumPy and torch work in place, because a new array costs as much as the operation.
    """
    if not is_array_api(X):
        return InPlace
    return Recorded if is_torch(X) else Pure


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
