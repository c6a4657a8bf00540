"""Masks that multiply the attention matrix, for users: relative positions on grids."""

import math
from collections.abc import Callable
from typing import Self

import numpy as np

from .._arrays import is_array_api, to_host
from .._memory import check_fits
from .._typing import Array
from .._validation import check_integer
from ._masks import GridMask, as_doubles, check_decay, checked_entries, owned

__all__ = ["DecayMask", "ToeplitzMask"]


class DecayMask:
    """Weights exp(-rate * lag) of earlier keys, for causal attention of any length.

    Unlike other masks, it can be streamed: it is part of the state, which is multiplied by a
    factor at every position. The lag counts the positions that are not padding.
    `ToeplitzMask.decay` creates it.

    Parameters
    ----------
    rate : float or array of shape (n_heads,)
        Finite numbers >= 0, one for all key heads or one each. Torch tensors are kept as they are,
        and gradients flow through them; of other arrays the mask keeps a copy.

    See Also
    --------
    ToeplitzMask.decay : Creates one.
    ApproxKernelAttention : Accepts one as ``mask``; calls also take a gate for every position.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.attention import ToeplitzMask
    >>> ToeplitzMask.decay(np.log(2)).toarray(3)
    array([[1.  , 0.  , 0.  ],
           [0.5 , 1.  , 0.  ],
           [0.25, 0.5 , 1.  ]])
    """

    def __init__(self, rate: float | Array) -> None:
        check_decay(rate)
        self.rate = owned(rate) if is_array_api(rate) else np.array(rate)

    def toarray(self, length: int) -> np.ndarray:
        """Return the mask for a given number of positions as a matrix.

        Parameters
        ----------
        length : int
            Number of positions.

        Returns
        -------
        ndarray of shape (length, length) or (n_heads, length, length)
            Entry (i, j) is exp(-rate (i - j)) if j <= i, and 0 otherwise.
        """
        length, n = check_integer("length", length), math.prod(self.rate.shape)
        check_fits(8 * n * length**2, f"length={length} with {n} rates", "all entries")
        lags = np.subtract.outer(*2 * (np.arange(length),))
        rates = to_host(self.rate).astype(np.float64)[..., None, None]
        return np.where(lags >= 0, np.exp(-rates * np.maximum(lags, 0)), 0.0)

    def __repr__(self):
        return f"ToeplitzMask.decay({to_host(self.rate).tolist()})"


class ToeplitzMask:
    """Mask on a grid whose entries depend only on relative positions.

    The positions of a grid of ``n_1 x ... x n_k`` points are numbered in row-major order. The
    entry for query i and key j is the weight of the offset i - j, taken axis by axis, so the mask
    is a relative position encoding. It multiplies the attention matrix: a bias b inside the
    exponential corresponds to a weight ``exp(b)``. For L positions, a product with the mask takes
    ``O(L log(L))`` operations per column, and memory linear in L.

    Positions outside the grid, such as class tokens, come before those of the grid. They see all
    positions and are seen by all, with weight 1.

    Parameters
    ----------
    weights : array-like of shape (2 * n_1 - 1, ..., 2 * n_k - 1)
        Finite numbers >= 0. The weight of offset o is ``weights[o + n - 1]`` on every axis, so
        offset 0 is in the middle. Torch tensors are kept as they are, and gradients flow through
        them; of other arrays the mask keeps a copy. If `shape` is given, one more axis may come
        first, with the weights of every query head.
    shape : tuple of int, default=None
        The grid. None means the largest one that the weights cover, ``n_1, ..., n_k``. A smaller
        grid uses only its own offsets, so weights for long sequences also serve short ones. With
        `shape`, an axis for heads can be told from an axis of the grid.
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
    Four positions, with weights for the offsets -3 to 3:

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
        host = checked_entries(weights, "weights")
        weights = owned(weights) if is_array_api(weights) else host.astype(np.float64)
        grid = None if shape is None else _grid(shape)
        has_heads = grid is not None and weights.ndim == len(grid) + 1
        sizes = tuple(weights.shape)[has_heads:]
        if not sizes or any(size % 2 == 0 for size in sizes):
            raise ValueError(
                "weights must have the shape (2 * n_1 - 1, ..., 2 * n_k - 1) for a grid of "
                "n_1 x ... x n_k positions, so that every axis is odd, and with shape=(n_1, ..., "
                f"n_k) may have one more axis in front, for heads; got {tuple(weights.shape)}."
            )
        largest = tuple((size + 1) // 2 for size in sizes)
        self.shape = largest if grid is None else grid
        if len(self.shape) != len(largest) or np.any(np.greater(self.shape, largest)):
            raise ValueError(
                f"shape must be at most {largest}, the grid that weights of shape "
                f"{tuple(weights.shape)} cover; got {self.shape}."
            )
        if self.shape != largest:
            pairs = zip(self.shape, largest, strict=True)
            cut = tuple(slice(most - n, most + n - 1) for n, most in pairs)
            weights = weights[(..., *cut)]
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
        Weights for a 32 x 32 image that decrease with the distance between pixels:

        >>> import numpy as np
        >>> from skrf.attention import ToeplitzMask
        >>> ToeplitzMask.from_function(lambda dx, dy: np.exp(-np.hypot(dx, dy) / 8), (32, 32))
        ToeplitzMask(shape=(32, 32))
        """
        shape = _grid(shape)
        offsets = np.meshgrid(*(np.arange(1 - n, n) for n in shape), indexing="ij")
        return cls(np.broadcast_to(function(*offsets), offsets[0].shape), n_extra=n_extra)

    @staticmethod
    def decay(rate: float | Array) -> DecayMask:
        """Return a mask with weights exp(-rate * lag), which can be streamed.

        Parameters
        ----------
        rate : float or array of shape (n_heads,)
            Finite numbers >= 0, one for all key heads or one each. ``2.0 ** -np.arange(1, 9)``
            gives slopes like those of ALiBi.

        Returns
        -------
        DecayMask
            The mask, for causal attention of any length.

        Examples
        --------
        >>> import numpy as np
        >>> from skrf.attention import ApproxKernelAttention, ToeplitzMask
        >>> q, k, v = np.random.default_rng(0).normal(size=(3, 2, 100, 8))  # two heads
        >>> mask = ToeplitzMask.decay([0.1, 0.01])
        >>> attention = ApproxKernelAttention(causal=True, mask=mask, random_state=0)
        >>> first, state = attention.step(*(x[:, :60] for x in (q, k, v)), attention.init_state())
        >>> rest, state = attention.step(*(x[:, 60:] for x in (q, k, v)), state)
        >>> bool(np.allclose(np.concatenate([first, rest], axis=1), attention(q, k, v)))
        True
        """
        return DecayMask(rate)

    def toarray(self) -> np.ndarray:
        """Return the mask as a matrix, for small grids.

        Returns
        -------
        ndarray of shape (n_positions, n_positions) or (n_heads, n_positions, n_positions)
            Entry (i, j) is the weight of position i relative to position j.
        """
        weights = as_doubles(self.weights)
        mask = GridMask(weights, self.shape, self.n_extra, is_causal=False)
        mask.largest, n = 1.0, self.n_positions
        heads = None if mask.n_heads is None else np.arange(mask.n_heads)
        return mask.entries(np.arange(n), slice(0, n), weights, heads)

    def __repr__(self):
        extra = f", n_extra={self.n_extra}" if self.n_extra else ""
        heads = len(self.shape) < self.weights.ndim
        heads = f", n_heads={self.weights.shape[0]}" if heads else ""
        return f"ToeplitzMask(shape={self.shape}{extra}{heads})"


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
