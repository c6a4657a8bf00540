"""Masks that multiply the attention matrix: relative positions on grids; the check of all."""

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from .._arrays import to_host
from ._products import DenseMask, GridMask, OperatorMask, SparseMask, grid_entries
from ._shapes import as_array

__all__ = ["ToeplitzMask"]


class ToeplitzMask:
    """Mask on a grid whose entries depend on relative positions only.

    The positions of a grid of ``n_1 x ... x n_k`` points are numbered in row-major order. The
    entry for query i and key j is the weight of the offset i - j, axis by axis: a relative
    position encoding. It multiplies the attention matrix, so a bias b inside the exponential
    is a weight ``exp(b)``. For L positions a product with it takes a multiple of ``L log(L)``
    operations per column, and memory linear in L.

    Parameters
    ----------
    weights : array-like of shape (2 * n_1 - 1, ..., 2 * n_k - 1)
        Finite numbers >= 0. The weight of offset o is ``weights[o + n - 1]`` on every axis, so the
        middle belongs to offset 0.
    shape : tuple of int, default=None
        The grid. None is the largest one that the weights cover, ``n_1, ..., n_k``. A smaller one
        uses the offsets that it has, so that weights for long sequences serve short ones.

    Attributes
    ----------
    weights : ndarray of float64
        The weights of the offsets that the grid has, read-only.
    shape : tuple of int
        The grid.
    n_positions : int
        Number L of its positions: the mask is an L x L matrix.

    See Also
    --------
    ToeplitzMask.from_function : Weights given by a function of the offsets.

    Examples
    --------
    Four positions; weights of the offsets -3 to 3:

    >>> from skrf.attention import ToeplitzMask
    >>> ToeplitzMask([0, 0, 1, 4, 3, 2, 1]).toarray()
    array([[4., 1., 0., 0.],
           [3., 4., 1., 0.],
           [2., 3., 4., 1.],
           [1., 2., 3., 4.]])
    """

    def __init__(self, weights, shape=None):
        weights = _checked(weights, "weights").astype(np.float64)
        if weights.ndim == 0 or any(size % 2 == 0 for size in weights.shape):
            raise ValueError(
                "weights must have the shape (2 * n_1 - 1, ..., 2 * n_k - 1) for a grid of "
                f"n_1 x ... x n_k positions, so that every axis is odd; got {weights.shape}."
            )
        largest = tuple((size + 1) // 2 for size in weights.shape)
        self.shape = largest if shape is None else _grid(shape)
        if len(self.shape) != len(largest) or np.any(np.greater(self.shape, largest)):
            raise ValueError(
                f"shape must be at most {largest}, the grid that weights of shape {weights.shape} "
                f"cover; got {self.shape}."
            )
        pairs = zip(self.shape, largest, strict=True)
        self.weights = weights[tuple(slice(most - n, most + n - 1) for n, most in pairs)]
        self.weights.flags.writeable = False
        self.n_positions = int(np.prod(self.shape))

    @classmethod
    def from_function(cls, function, shape):
        """Return the mask whose weights are a function of the offsets.

        Parameters
        ----------
        function : callable
            Takes one array of offsets (query minus key) per axis, and returns weights >= 0 of the
            same shape, or of one that broadcasts to it.
        shape : tuple of int
            The grid.

        Returns
        -------
        ToeplitzMask
            The mask.

        Examples
        --------
        Positions of a 32 x 32 image that see each other less the farther they are apart:

        >>> import numpy as np
        >>> from skrf.attention import ToeplitzMask
        >>> ToeplitzMask.from_function(lambda dx, dy: np.exp(-np.hypot(dx, dy) / 8), (32, 32))
        ToeplitzMask(shape=(32, 32))
        """
        shape = _grid(shape)
        offsets = np.meshgrid(*(np.arange(1 - n, n) for n in shape), indexing="ij")
        return cls(np.broadcast_to(function(*offsets), offsets[0].shape))

    def toarray(self):
        """Return the mask as a matrix, for small grids.

        Returns
        -------
        ndarray of shape (n_positions, n_positions)
            Entry (i, j) is the weight of position i relative to position j.
        """
        everything = np.arange(self.n_positions)
        return grid_entries(self.weights, self.shape, everything, everything)

    def __repr__(self):
        return f"ToeplitzMask(shape={self.shape})"


def as_mask(mask, n_queries, n_keys, causal):
    """Check a mask and return what applies it.

    Parameters
    ----------
    mask : ToeplitzMask, sparse matrix, LinearOperator or array-like of shape (n_queries, n_keys)
        Entries >= 0, boolean True is 1. The entries of a LinearOperator cannot be seen and are
        checked only where rows of it are formed.
    n_queries, n_keys : int
        The shape that the mask has to have.
    causal : bool
        Whether to take out the keys j > i as well.

    Returns
    -------
    Mask
        The mask, in float64.
    """
    if causal and n_queries != n_keys:
        raise ValueError(
            "causal=True with a mask needs as many keys as queries, got "
            f"{n_keys} keys and {n_queries} queries."
        )
    is_lazy = isinstance(mask, (ToeplitzMask, LinearOperator)) or sp.issparse(mask)
    mask = mask if is_lazy else as_array("mask", to_host(mask))
    shape = (mask.n_positions,) * 2 if isinstance(mask, ToeplitzMask) else mask.shape
    if shape != (n_queries, n_keys):
        raise ValueError(
            "mask must have the shape (number of queries, number of keys) = "
            f"{(n_queries, n_keys)}, got a {type(mask).__name__} of shape {shape}."
        )
    if isinstance(mask, ToeplitzMask):
        return GridMask(mask.weights, mask.shape, causal)
    if isinstance(mask, LinearOperator):
        if causal:
            raise ValueError(
                "mask: a LinearOperator cannot be made causal, because its entries are not known. "
                "Give one that is zero above its diagonal together with causal=False, or a "
                "ToeplitzMask, a sparse matrix or an array."
            )
        return OperatorMask(mask)
    if sp.issparse(mask):
        mask = mask.tocsr()
        _checked(mask.data, "mask")
        mask = mask.astype(np.float64)
        mask.sum_duplicates()
        return SparseMask(sp.tril(mask, format="csr") if causal else mask)
    mask = _checked(mask, "mask")
    return DenseMask(np.tril(mask) if causal else mask)


def _grid(shape):
    """Return the shape of a grid as a tuple of positive integers."""
    try:
        grid = tuple(int(n) for n in shape)
        is_right = min(grid) >= 1 and grid == tuple(shape)
    except (TypeError, ValueError):
        is_right = False
    if not is_right:
        raise ValueError(f"shape must be a tuple of one or more integers >= 1, got {shape!r}.")
    return grid


def _checked(entries, name):
    """Return entries as an array of real, finite numbers >= 0."""
    entries = np.asarray(to_host(entries))
    if entries.dtype.kind not in "buif":
        raise TypeError(f"{name} must hold real numbers or booleans, got {entries.dtype}.")
    # Least and largest entry make no temporary arrays, and NaN fails both.
    if entries.size and not (entries.min() >= 0 and entries.max() < np.inf):
        wrong = entries[~((entries >= 0) & (entries < np.inf))]
        raise ValueError(f"{name} must be finite and >= 0 everywhere, got {wrong[0]}.")
    return entries
