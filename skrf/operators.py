"""The approximate kernel matrix as a linear operator: products without the matrix."""

import numpy as np
import scipy.sparse.linalg
from sklearn.utils.validation import check_is_fitted

from ._memory import check_fits
from ._sums import finite
from ._typing import Array, Transformer
from ._validation import check_rows
from .features import as_feature_map, in_range, mapped, maps_sides_alike

# Exponents of products up to which no scale is factored out.
_RANGE = {np.dtype(np.float64): 600.0, np.dtype(np.float32): 60.0}


class KernelOperator(scipy.sparse.linalg.LinearOperator):
    """The approximate kernel matrix of queries and keys as a SciPy operator.

    It stores the features and multiplies by them: a product costs O((n_x + n_y) M) with M features
    per row, and the matrix is never formed. It works wherever SciPy accepts a ``LinearOperator``.

    Parameters
    ----------
    feature_map : feature map or transformer
        Fitted.
    X : {array-like, sparse matrix} of shape (n_x, n_features)
        Queries: the rows of the matrix.
    Y : {array-like, sparse matrix} of shape (n_y, n_features), default=None
        Keys: its columns. None takes X.

    Attributes
    ----------
    shape : tuple of int
        (n_x, n_y).
    dtype : numpy.dtype
        float32 if X and Y are, otherwise float64.
    log_scale : float
        The operator is the matrix times exp(-log_scale), where log_scale is 0 unless values would
        exceed the range of the dtype.
    is_symmetric : bool
        Whether the operator is symmetric, and hence positive semi-definite: Y is None and both
        sides are mapped alike. SciPy's ``eigsh`` and ``cg`` rely on it without a check.

    Raises
    ------
    NotFittedError
        If `feature_map` is not fitted.
    ValueError
        If the widths of X, Y and the map differ.

    See Also
    --------
    ApproxKernelRidge : Ridge regression without an operator.
    features.as_feature_map : Returns the map that computes the features.
    scipy.sparse.linalg.LinearOperator : The interface that solvers accept.

    References
    ----------
    The product with features in place of a kernel matrix: Likhosherstov, Random features for
    efficient attention approximation (2022), algorithm 1. The solvers are SciPy's.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse.linalg import eigsh
    >>> from skrf import KernelOperator, OptimalPositiveRF
    >>> X = np.random.default_rng(0).normal(size=(200, 3)) / 2
    >>> features = OptimalPositiveRF(64, random_state=0).fit(X)
    >>> kernel = KernelOperator(features, X)
    >>> dense = features.approximate_kernel(X)
    >>> np.allclose(kernel @ X, dense @ X), np.isclose(kernel.trace(), np.trace(dense))
    (True, np.True_)
    >>> values, vectors = eigsh(kernel, k=3)
    >>> np.allclose(values, np.linalg.eigvalsh(dense)[-3:])
    True
    """

    def __init__(self, feature_map: Transformer, X: Array, Y: Array | None = None) -> None:
        check_is_fitted(feature_map)
        maps = [as_feature_map(feature_map, keys=keys) for keys in (False, True)]
        self.is_symmetric = Y is None and maps_sides_alike(feature_map)
        X = _checked(maps[0], "X", X)
        Y = X if Y is None else _checked(maps[1], "Y", Y)
        dtype = np.result_type(X.dtype, Y.dtype)
        queries = _rows(maps[0], "X", X)
        keys = queries if self.is_symmetric else _rows(maps[1], "Y", Y)
        tops = [side.exponents.max(axis=0).astype(np.float64) for side in (queries, keys)]
        levels = tops[0] + tops[1]  # -inf where a feature is 0 on one side and adds nothing
        self.log_scale = float(finite(levels.max()))
        if abs(self.log_scale) <= _RANGE[dtype]:
            self.log_scale = 0.0
        levels = np.where(levels > -np.inf, levels, self.log_scale)
        halves = (levels - self.log_scale) / 2
        self._queries = self._keys = _factor(queries, finite(tops[0]) - halves, dtype)
        if not self.is_symmetric:
            self._keys = _factor(keys, finite(tops[1]) - halves, dtype)
        super().__init__(dtype, (len(self._queries), len(self._keys)))

    def _matmat(self, V):
        return self._queries @ (self._keys.T @ V)

    def _rmatmat(self, V):
        return self._keys @ (self._queries.T @ V)

    # Products with vectors need no other code, and SciPy's own calls add a reshape.
    _matvec, _rmatvec = _matmat, _rmatmat

    def diagonal(self) -> np.ndarray:
        """Return the diagonal.

        Returns
        -------
        ndarray of shape (min(n_x, n_y),)
            The entries (i, i).
        """
        n = min(self.shape)
        return np.einsum("ij,ij->i", self._queries[:n], self._keys[:n])

    def trace(self) -> float:
        """Return the sum of the diagonal.

        Returns
        -------
        float
            The trace.

        Raises
        ------
        ValueError
            If the operator is not square.
        """
        if self.shape[0] != self.shape[1]:
            raise ValueError(f"trace needs a square operator, got shape {self.shape}.")
        return self.diagonal().sum()


def _checked(feature_map, name, X):
    """Return rows of the map's width, dense or CSR, float32 or float64."""
    X = check_rows(name, X)
    if feature_map.n_features not in (None, X.shape[1]):
        raise ValueError(
            f"{name} has {X.shape[1]} features, but feature_map was fitted with "
            f"{feature_map.n_features}."
        )
    return X


def _rows(feature_map, name, X):
    X = in_range(feature_map, X, name)
    if feature_map.n_columns is None:  # transformers of other packages, which split rows themselves
        return feature_map(X)
    n, n_columns = X.shape[0], feature_map.n_columns
    n_bytes = n * n_columns * X.dtype.itemsize
    check_fits(n_bytes, f"{name} with {n} rows", f"{n_columns} features of each")
    return mapped(feature_map, X)


def _factor(rows, level, dtype):
    """Return features times exp(-level), with a level per column or one for all."""
    factor = np.exp(rows.exponents - level)
    if not rows.holds_logs:
        factor = rows.values * factor
    return factor.astype(dtype, copy=False)
