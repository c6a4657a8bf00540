"""What a query sees exactly, beside the features that stand for everything else."""

from dataclasses import dataclass
from numbers import Integral

import numpy as np

from .._validation import check_integer


@dataclass(frozen=True)
class NearField:
    """Keys that attention takes exactly: those of the own and the neighbouring blocks, and anchors.

    Position i is in block ``i // block``. A key is exact for the queries of its own and the two
    neighbouring blocks; causal attention has the own block and the one before. Anchors are exact
    for every query. All other keys are far, and random features stand for them.

    Parameters
    ----------
    block : int, default=32
        Positions of a block.
    anchors : int or array-like of int, default=64
        How many keys of every head are anchors: those that matter most to a sample of 64 queries;
        causal, the first that are not padding. Or their positions.

    Raises
    ------
    ValueError
        Where `block` is less than 1, or an anchor or their number is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.attention import ApproxKernelAttention, NearField, exact_attention
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 2, 500, 8))  # 2 heads
    >>> attention = ApproxKernelAttention(near=NearField(block=16, anchors=8))
    >>> error = attention(q, k, v) - exact_attention(q, k, v)
    >>> bool(np.abs(error).max() < 0.2)
    True
    """

    block: int = 32
    anchors: int | tuple = 64

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
    def n_anchors(self):
        """The largest number of anchors."""
        return len(self.anchors) if isinstance(self.anchors, tuple) else self.anchors

    def n_exact(self, *, causal=False):
        """Return how many keys a query sees exactly, at most.

        Parameters
        ----------
        causal : bool, default=False
            Whether later keys are not seen.

        Returns
        -------
        int
            Anchors and the keys of two or three blocks.
        """
        return self.n_anchors + (2 if causal else 3) * self.block
