"""Which array library an input belongs to, and the few operations that depend on it.

NumPy arrays and SciPy sparse matrices share one path; every other library that follows the array
API standard (CuPy, torch) goes through its own namespace, so that the output lives where the input
lived.
"""

import array_api_compat
import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import cdist


def is_foreign(X):
    """Tell whether X is an array of a library other than NumPy (and not sparse)."""
    return (
        not isinstance(X, np.ndarray)
        and not sp.issparse(X)
        and array_api_compat.is_array_api_obj(X)
        and not array_api_compat.is_numpy_array(X)
    )


def namespace(X):
    """Return the array-API namespace of X; NumPy for NumPy and sparse input."""
    return array_api_compat.array_namespace(X) if is_foreign(X) else np


def to_host(X):
    """Return a foreign array as a NumPy array of the same dtype; anything else unchanged."""
    if not is_foreign(X):
        return X
    if array_api_compat.is_torch_array(X):
        return X.numpy(force=True)
    if array_api_compat.is_cupy_array(X):
        return X.get()
    return np.from_dlpack(X)


def like(values, X):
    """Return host `values` in the library, on the device and in the dtype of X."""
    if not is_foreign(X):
        return np.asarray(values, dtype=X.dtype)
    return namespace(X).asarray(values, dtype=X.dtype, device=array_api_compat.device(X))


def take(X, rows):
    """Return rows of X, chosen along its first axis by integers of its library or of the host."""
    if not is_foreign(X):
        return X[rows]
    if not is_foreign(rows):
        rows = namespace(X).asarray(rows, device=array_api_compat.device(X))
    return namespace(X).take(X, rows, axis=0)


def constant(X):
    """Return X as a number that no gradient flows through; only torch has gradients."""
    return X.detach() if array_api_compat.is_torch_array(X) else X


def columns(parts, X):
    """Join column blocks side by side."""
    return namespace(X).concat(parts, axis=1)


def squared_norms(X):
    """Return the squared Euclidean norm of every row of a dense array."""
    if is_foreign(X):
        return namespace(X).sum(X * X, axis=1)
    return np.einsum("ij,ij->i", X, X)


def squared_distances(X, Y, sign=-1):
    """Return |x + sign y|^2 for every pair of rows, in float64 on the host.

    Dense rows are subtracted before they are squared: the usual expansion loses all digits where
    two rows nearly agree, and closed-form variances are asked for exactly there.
    """
    X, Y = to_host(X), to_host(Y)
    if sp.issparse(X) or sp.issparse(Y):
        from sklearn.metrics.pairwise import euclidean_distances  # megabytes that only this needs

        return euclidean_distances(X, -sign * Y, squared=True).astype(np.float64)
    return cdist(X.astype(np.float64), -sign * Y.astype(np.float64), "sqeuclidean")


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
        Shift in units of X; None is no shift.
    """

    def __init__(self, X, scale, offset=None):
        self.scale = scale
        self.offset = None if offset is None or not np.any(offset) else offset
        self.is_sparse = sp.issparse(X)
        if self.is_sparse:
            self.values = X
        else:
            shifted = X if self.offset is None else X - like(self.offset, X)
            self.values = shifted * scale

    def scaled(self, factor):
        """Return the rows times a number."""
        if factor == 1:
            return self
        if self.is_sparse:
            return ScaledRows(self.values, self.scale * factor, self.offset)
        return ScaledRows(self.values, factor)

    def dot(self, projection, out=None):
        """Return the products with every row of a projection, shape (n, n_projections).

        A matrix writes those of dense rows into `out`, where that is given.
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
        data = entries.data.astype(np.float64)
        if self.offset is None:
            terms, constant = data**2, 0.0
        else:
            # (x - c)^2 - c^2 = x (x - 2c) at the stored entries; |c|^2 everywhere.
            terms = data * (data - 2 * self.offset[entries.indices])
            constant = float(self.offset @ self.offset)
        rows = np.repeat(np.arange(entries.shape[0]), np.diff(entries.indptr))
        norms = np.bincount(rows, weights=terms, minlength=entries.shape[0]) + constant
        return (norms * self.scale**2).astype(self.values.dtype)

    def on_host(self):
        """Return the rows as a dense float64 NumPy array (for work on pairs of rows)."""
        if not self.is_sparse:
            return np.asarray(to_host(self.values), dtype=np.float64)
        dense = self.values.toarray().astype(np.float64)
        return (dense if self.offset is None else dense - self.offset) * self.scale
