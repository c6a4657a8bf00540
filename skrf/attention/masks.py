"""Masks that multiply the attention matrix: relative positions on grids, and validation."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import array_api_compat
import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from .._arrays import beside, cast, constant, is_array_api, namespace, to_host
from .._typing import Array
from .._validation import check_integer
from ._products import DenseMask, GridMask, OperatorMask, SparseMask
from ._shapes import as_array

__all__ = ["ToeplitzMask"]


class ToeplitzMask:
    """Mask on a grid whose entries depend only on relative positions.

    The positions of a grid of ``n_1 x ... x n_k`` points are numbered in row-major order. The
    entry for query i and key j is the weight of the offset i - j, axis by axis: a relative
    position encoding. It multiplies the attention matrix, so a bias b inside the exponential
    is a weight ``exp(b)``. For L positions, a product with it takes ``O(L log(L))`` operations per
    column, and memory linear in L.

    Positions outside the grid, such as class tokens, come before those of the grid. They see all
    positions and are seen by all, with weight 1.

    Parameters
    ----------
    weights : array-like of shape (2 * n_1 - 1, ..., 2 * n_k - 1)
        Finite numbers >= 0. The weight of offset o is ``weights[o + n - 1]`` on every axis, so the
        middle belongs to offset 0. CuPy arrays and torch tensors, through which gradients flow,
        are kept as they are.
    shape : tuple of int, default=None
        The grid. None is the largest one that the weights cover, ``n_1, ..., n_k``. A smaller grid
        uses only its own offsets, so that weights for long sequences also serve short ones.
    n_extra : int, default=0
        Number of positions outside the grid.

    Attributes
    ----------
    weights : ndarray of float64, or array of the library that they were given in
        The weights of the grid's offsets; NumPy arrays are read-only copies.
    shape : tuple of int
        The grid.
    n_extra : int
        Number of positions outside the grid.
    n_positions : int
        Number L of all positions: the mask is an L x L matrix.

    See Also
    --------
    ToeplitzMask.from_function : Weights given by a function of the offsets.
    ApproxKernelAttention : Accepts one as ``mask``.
    skrf.torch.RandomFeatureAttention : Trains its weights.

    References
    ----------
    Likhosherstov, Random features for efficient attention approximation (2022), section 4.5.3.

    Examples
    --------
    Four positions; weights of the offsets -3 to 3:

    >>> from skrf.attention import ToeplitzMask
    >>> ToeplitzMask([0, 0, 1, 4, 3, 2, 1]).toarray()
    array([[4., 1., 0., 0.],
           [3., 4., 1., 0.],
           [2., 3., 4., 1.],
           [1., 2., 3., 4.]])

    A class token and two positions:

    >>> ToeplitzMask([3, 5, 2], n_extra=1).toarray()
    array([[1., 1., 1.],
           [1., 5., 3.],
           [1., 2., 5.]])
    """

    def __init__(
        self, weights: Array, shape: tuple[int, ...] | None = None, n_extra: int = 0
    ) -> None:
        host = _checked(weights, "weights")
        if not is_array_api(weights):
            weights = host.astype(np.float64)
        if weights.ndim == 0 or any(size % 2 == 0 for size in weights.shape):
            raise ValueError(
                "weights must have the shape (2 * n_1 - 1, ..., 2 * n_k - 1) for a grid of "
                f"n_1 x ... x n_k positions, so that every axis is odd; got {tuple(weights.shape)}."
            )
        largest = tuple((size + 1) // 2 for size in weights.shape)
        self.shape = largest if shape is None else _grid(shape)
        if len(self.shape) != len(largest) or np.any(np.greater(self.shape, largest)):
            raise ValueError(
                f"shape must be at most {largest}, the grid that weights of shape "
                f"{tuple(weights.shape)} cover; got {self.shape}."
            )
        if self.shape != largest:
            pairs = zip(self.shape, largest, strict=True)
            weights = weights[tuple(slice(most - n, most + n - 1) for n, most in pairs)]
        if not is_array_api(weights):
            weights.flags.writeable = False
        self.weights, self.n_extra = weights, check_integer("n_extra", n_extra, least=0)
        self.n_positions = math.prod(self.shape) + self.n_extra

    @classmethod
    def from_function(
        cls, function: Callable[..., Array], shape: tuple[int, ...], n_extra: int = 0
    ) -> Self:
        """Return the mask whose weights are a function of the offsets.

        Parameters
        ----------
        function : callable
            Takes one array of offsets (query minus key) per axis and returns weights >= 0 of the
            same shape, or of a shape that broadcasts to it.
        shape : tuple of int
            The grid.
        n_extra : int, default=0
            Number of positions outside the grid.

        Returns
        -------
        ToeplitzMask
            The mask.

        Examples
        --------
        Positions of a 32 x 32 image whose weights fall with their distance:

        >>> import numpy as np
        >>> from skrf.attention import ToeplitzMask
        >>> ToeplitzMask.from_function(lambda dx, dy: np.exp(-np.hypot(dx, dy) / 8), (32, 32))
        ToeplitzMask(shape=(32, 32))
        """
        shape = _grid(shape)
        offsets = np.meshgrid(*(np.arange(1 - n, n) for n in shape), indexing="ij")
        return cls(np.broadcast_to(function(*offsets), offsets[0].shape), n_extra=n_extra)

    def toarray(self) -> np.ndarray:
        """Return the mask as a matrix, for small grids.

        Returns
        -------
        ndarray of shape (n_positions, n_positions)
            Entry (i, j) is the weight of position i relative to position j.
        """
        own = GridMask(_as_doubles(self.weights), self.shape, self.n_extra, False, False)
        n = self.n_positions
        return np.array(own.entries(np.arange(n), slice(0, n), own.weights))

    def __repr__(self):
        extra = f", n_extra={self.n_extra}" if self.n_extra else ""
        return f"ToeplitzMask(shape={self.shape}{extra})"


@dataclass(frozen=True, eq=False)
class HeadMasks:
    """The mask of a call, or one per query head.

    Parameters
    ----------
    masks : tuple of Mask
        One mask, or one per query head.
    n_groups : int
        Number of query heads per set of keys.
    form : {"one", "array", "list"}
        Form of the input: one for all heads, or an array or a list with one per head.
    """

    masks: tuple
    n_groups: int
    form: str

    def of(self, sets):
        """Return (sets, query heads, mask) of a unit: a set of NumPy (an int), or a list of them.

        Sets are numbered from the first one of the unit; None means all of them.
        """
        if self.form == "one":
            return [(None, slice(None), self.masks[0])]
        firsts, parts = np.atleast_1d(sets) * self.n_groups % len(self.masks), []
        for first in np.unique(firsts):
            own = np.flatnonzero(firsts == first).tolist()
            own = None if len(own) == len(firsts) else own
            for g in range(self.n_groups):
                parts.append((own, slice(g, g + 1), self.masks[(first + g) % len(self.masks)]))
        return parts

    def gradients(self, by_masks, dtype):
        """Return the gradients with respect to the input, given one per `Mask`."""
        found = [by_masks[mask].astype(dtype, copy=False) for mask in self.masks]
        if self.form == "one":
            return found[0]
        return np.stack(found) if self.form == "array" else found


def as_masks(mask, groups, causal, is_trained=False):
    """Check the mask of a call and return an object that applies it.

    Parameters
    ----------
    mask : ToeplitzMask, sparse matrix, LinearOperator, array-like, or list or tuple of them
        As given by users.
    groups : HeadGroups
        The inputs.
    causal : bool
        Whether to remove the keys j > i as well.
    is_trained : bool, default=False
        Whether gradients with respect to the mask are needed.

    Returns
    -------
    HeadMasks
        The masks.
    """
    n_queries, n_keys = groups.q.shape[2], groups.k.shape[1]
    n_heads, form = (groups.leading[-1] if groups.leading else 1), "one"
    if isinstance(mask, (list, tuple)) and any(map(_is_whole, mask)):
        form = "list"
    elif not _is_whole(mask):
        mask = as_array("mask", mask)
    if form == "one" and getattr(mask, "ndim", 2) == 3:
        form = "array"
    if form != "one" and len(mask) != n_heads:
        raise ValueError(
            "mask must be one for all heads, or one for each query head: a list of "
            f"{n_heads} masks or an array of shape {(n_heads, n_queries, n_keys)}; got "
            f"{len(mask)} of them."
        )
    given = [mask] if form == "one" else [mask[h] for h in range(n_heads)]
    masks = tuple(as_mask(own, n_queries, n_keys, causal, groups.q, is_trained) for own in given)
    return HeadMasks(masks, groups.q.shape[1], form)


def _is_whole(mask):
    """Return whether something is a mask rather than a list of numbers or of masks."""
    kinds = ToeplitzMask, LinearOperator, np.ndarray
    return isinstance(mask, kinds) or sp.issparse(mask) or is_array_api(mask)


def as_mask(mask, n_queries, n_keys, causal, X=None, is_trained=False):
    """Check a mask and return an object that applies it.

    Parameters
    ----------
    mask : ToeplitzMask, sparse matrix, LinearOperator or array-like of shape (n_queries, n_keys)
        Entries >= 0; boolean True is 1. The entries of a LinearOperator are not visible, so they
        are checked only when its rows are formed.
    n_queries, n_keys : int
        The required shape of the mask.
    causal : bool
        Whether to remove the keys j > i as well.
    X : array, default=None
        An array in the library of the inputs; None is NumPy.
    is_trained : bool, default=False
        Whether gradients with respect to the mask are needed.

    Returns
    -------
    Mask
        The mask.
    """
    if causal and n_queries != n_keys:
        raise ValueError(
            "causal=True with a mask needs as many keys as queries, got "
            f"{n_keys} keys and {n_queries} queries."
        )
    mask = mask if _is_whole(mask) else as_array("mask", mask)
    shape = (mask.n_positions,) * 2 if isinstance(mask, ToeplitzMask) else tuple(mask.shape)
    if shape != (n_queries, n_keys):
        raise ValueError(
            "mask must have the shape (number of queries, number of keys) = "
            f"{(n_queries, n_keys)}, got a {type(mask).__name__} of shape {shape}."
        )
    if isinstance(mask, ToeplitzMask):
        if is_array_api(mask.weights):
            _checked(mask.weights, "weights")  # again, because training changes them
        weights = _in_library(mask.weights, X)
        if not is_array_api(X):
            weights = weights.astype(np.float64, copy=False)
        is_wide = is_trained or getattr(weights, "requires_grad", False)
        return GridMask(weights, mask.shape, mask.n_extra, causal, is_wide)
    if isinstance(mask, LinearOperator):
        return _operator(mask, causal, X)
    if sp.issparse(mask):
        mask = mask.tocsr()
        entries = _checked(mask.data, "mask")
        mask = mask.astype(np.float64)
        mask.sum_duplicates()
        return SparseMask(mask, causal, mask.data.max(initial=0.0))
    entries = _checked(mask, "mask")
    return DenseMask(_in_library(mask, X), causal, entries.max() if entries.size else 0.0)


def _operator(mask, causal, X):
    """Return an object that applies a LinearOperator."""
    if is_array_api(X):
        raise TypeError(
            f"mask: a LinearOperator works on NumPy arrays, got q of {type(X)!r}. Allowed for "
            "other libraries: a ToeplitzMask, a sparse matrix or an array."
        )
    if causal:
        raise ValueError(
            "mask: a LinearOperator cannot be made causal, because its entries are not known. "
            "Pass one that is zero above its diagonal together with causal=False, or a "
            "ToeplitzMask, a sparse matrix or an array."
        )
    return OperatorMask(mask)


def _in_library(values, X):
    """Return entries in the library of X and on its device, with their graph."""
    if not is_array_api(X):
        return np.asarray(to_host(values))
    if not (is_array_api(values) and namespace(values) is namespace(X)):
        return beside(to_host(values), X)
    values, xp = array_api_compat.to_device(values, array_api_compat.device(X)), namespace(X)
    is_float = xp.isdtype(values.dtype, "real floating")
    return cast(values, xp.float32) if is_float and xp.finfo(values.dtype).bits < 32 else values


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


def _as_doubles(values):
    """Return entries of any library as float64 on the host, which lacks some short floats."""
    if is_array_api(values) and namespace(values).isdtype(values.dtype, "real floating"):
        values = cast(constant(values), namespace(values).float64)
    values = np.asarray(to_host(values))
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def _checked(entries, name):
    """Return entries as an array of real, finite numbers >= 0."""
    entries = np.asarray(_as_doubles(entries) if is_array_api(entries) else entries)
    if entries.dtype.kind not in "buif":
        raise TypeError(f"{name} must hold real numbers or booleans, got {entries.dtype}.")
    # Minimum and maximum need no temporary arrays, and NaN fails both comparisons.
    if entries.size and not (entries.min() >= 0 and entries.max() < np.inf):
        wrong = entries[~((entries >= 0) & (entries < np.inf))]
        raise ValueError(f"{name} must be finite and >= 0 everywhere, got {wrong[0]}.")
    return entries
