"""The keys that a query sees exactly; features approximate all others."""

from dataclasses import dataclass
from numbers import Integral

import numpy as np

from .._typing import Array
from .._validation import check_integer


@dataclass(frozen=True)
class NearField:
    """Keys that attention computes exactly: those of nearby blocks, and anchors.

    Position i is in block ``i // block``. A query sees the keys of its own block and the two
    neighbouring ones exactly; with causal attention, those of its own block and the previous one.
    Anchors are exact for every query. All other keys are far, and random features approximate them.

    Parameters
    ----------
    block : int, default=32
        Number of positions in a block.
    anchors : int or array-like of int, default=64
        Number of anchors per head, or their positions. A number selects the keys that matter most
        to a sample of 16 queries, or, with causal attention, the first that are not padding.

    Raises
    ------
    ValueError
        If `block` is less than 1, or an anchor or the number of anchors is negative.

    See Also
    --------
    ApproxKernelAttention : Accepts one as ``near``.
    recommend_attention : Chooses block and anchors.

    References
    ----------
    Ours.

    Examples
    --------
    Positions on a curve, which attend mostly to their neighbours:

    >>> import numpy as np
    >>> from skrf import OptimalPositiveRF
    >>> from skrf.attention import ApproxKernelAttention, NearField, exact_attention
    >>> angles = np.arange(500)[:, None] / np.geomspace(2, 200, 4)
    >>> x = 2 * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    >>> v = np.random.default_rng(0).normal(size=(500, 3))
    >>> for near in None, NearField(block=16, anchors=0):
    ...     attention = ApproxKernelAttention(OptimalPositiveRF(64, random_state=0), near=near)
    ...     errors = attention.diagnose(x, x, v).sampled_errors
    ...     print(near is None, bool(errors["attention"] < 0.6))
    True False
    False True
    """

    block: int = 32
    anchors: int | Array = 64

    def __post_init__(self):
        check_integer("block", self.block)
        if isinstance(self.anchors, Integral) and not isinstance(self.anchors, bool):
            check_integer("anchors", self.anchors, least=0)
            return
        positions = np.asarray(self.anchors)
        if positions.ndim != 1 or (positions.size and positions.dtype.kind not in "iu"):
            raise ValueError(
                f"anchors must be an integer >= 0 or a list of positions, got {self.anchors!r}."
            )
        if positions.size and positions.min() < 0:
            raise ValueError(f"anchors must be positions >= 0, got {positions.min()}.")
        object.__setattr__(self, "anchors", tuple(np.unique(positions).tolist()))

    @property
    def n_anchors(self) -> int:
        """The largest number of anchors."""
        return len(self.anchors) if isinstance(self.anchors, tuple) else self.anchors

    def n_exact(self, *, causal: bool = False) -> int:
        """Return the largest number of keys that a query sees exactly.

        Parameters
        ----------
        causal : bool, default=False
            Whether later keys are hidden.

        Returns
        -------
        int
            Anchors and the keys of two or three blocks.
        """
        return self.n_anchors + (2 if causal else 3) * self.block
