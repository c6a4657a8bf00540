"""The state of causal attention between calls, as torch handles such things."""

from typing import Any, Self

import torch
from torch.utils import _pytree

from ..attention import AttentionState


class StreamState(AttentionState):
    """State of causal attention, made by `RandomFeatureAttention.init_state`.

    It is a pytree of tensors with the batch as the first axis, so the pytree functions of
    ``torch.utils`` can map over it, and ``torch.load(weights_only=True)`` can read it. Gradients
    flow through ``sums``.

    Parameters
    ----------
    sums : Tensor of shape (batch, heads, n_features, e + 1), default=None
        Sums, over the keys, of features times ``[1, values]``, in float64; None before the first
        step.
    log_scale : Tensor of shape (batch, heads, n_features) or (batch, heads, 1), default=None
        Logarithms of the scales of these sums, without gradients.
    width : int, default=None
        Width of queries and keys.
    is_double : bool, default=False
        Whether values were too large or too small for sums in float32.
    maker : tuple of float, default=()
        Numbers that tell the draw and the fit of the module from others.

    See Also
    --------
    RandomFeatureAttention.step : Returns the next state.
    skrf.attention.AttentionState : The same for other libraries.

    References
    ----------
    Likhosherstov, Random features for efficient attention approximation (2022), section 3.3.

    Examples
    --------
    >>> import torch
    >>> from skrf.torch import RandomFeatureAttention
    >>> q, k, v = torch.randn(3, 4, 2, 1, 8, generator=torch.Generator().manual_seed(0))
    >>> attend = RandomFeatureAttention(is_causal=True, random_state=0)
    >>> out, state = attend.step(q, k, v, attend.init_state())
    >>> state.select([2, 2, 0]).sums.shape
    torch.Size([3, 2, 256, 9])
    """

    def detach(self) -> Self:
        """Return the state, detached from the autograd graph.

        Returns
        -------
        StreamState
            The state.
        """
        return self.mapped(torch.Tensor.detach)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return the state on another device.

        Parameters
        ----------
        *args, **kwargs
            As for ``torch.Tensor.to``, but without a dtype.

        Returns
        -------
        StreamState
            The state.
        """
        moved = self.mapped(lambda tensor: tensor.to(*args, **kwargs))
        for name, tensor in self.arrays().items():
            if moved.arrays()[name].dtype != tensor.dtype:
                raise ValueError(f"A state keeps its dtype, {tensor.dtype}, got {args} {kwargs}.")
        return moved


def _flatten(state):
    tensors = state.arrays()
    others = tuple((name, x) for name, x in vars(state).items() if name not in tensors)
    return list(tensors.values()), (tuple(tensors), others)


def _unflatten(tensors, context):
    names, others = context
    return StreamState(**dict(zip(names, tensors, strict=True)), **dict(others))


_pytree.register_pytree_node(
    StreamState, _flatten, _unflatten, serialized_type_name="skrf.torch.StreamState"
)
torch.serialization.add_safe_globals([StreamState])
