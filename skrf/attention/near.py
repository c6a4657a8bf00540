"""What a query sees exactly, beside the features that stand for everything else."""

from dataclasses import dataclass
from numbers import Integral

import numpy as np

from .._typing import Array
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
        How many keys of every head are anchors: those that matter most to a sample of 16 queries;
        causal, the first that are not padding. Or their positions.

    Raises
    ------
    ValueError
        If `block` is less than 1, or an anchor or their number is negative.

    See Also
    --------
    ApproxKernelAttention : Takes one as ``near``.
    recommend_attention : Chooses block and anchors.

    References
    ----------
    Ours.

    Examples
    --------
    Positions on a curve, which see their neighbours most:

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
