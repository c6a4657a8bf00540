"""The state of causal attention between calls, as torch handles such things."""

from dataclasses import fields, replace
from typing import Any, Self

import torch
from torch.utils import _pytree

from ..attention import AttentionState


class _TensorState:
    """What the states of attention modules have in common: a pytree of tensors."""

    def tensors(self) -> dict:
        """Return the tensors of the state by name; none before the first step."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: v for name, v in values.items() if isinstance(v, torch.Tensor)}

    def carriers(self) -> dict:
        """Return the tensors that gradients may flow through, by name."""
        return {name: v for name, v in self.tensors().items() if name in self._carriers}

    def detach(self) -> Self:
        """Return the state, detached from the autograd graph.

        Returns
        -------
        StreamState
            The state.
        """
        return self._mapped(torch.Tensor.detach)

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
        moved = self._mapped(lambda tensor: tensor.to(*args, **kwargs))
        for ours, theirs in zip(self.tensors().values(), moved.tensors().values(), strict=True):
            if ours.dtype != theirs.dtype:
                raise ValueError(f"A state keeps its dtype, {ours.dtype}, got {args} {kwargs}.")
        return moved

    def _mapped(self, function):
        tensors = {name: function(tensor) for name, tensor in self.tensors().items()}
        return replace(self, **tensors)


class StreamState(_TensorState, AttentionState):
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

    _carriers = ("sums",)


def _flatten(state):
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    tensors = state.tensors()
    rest = {name: value for name, value in values.items() if name not in tensors}
    return list(tensors.values()), (type(state), tuple(tensors), tuple(rest.items()))


def _unflatten(tensors, context):
    kind, names, rest = context
    return kind(**dict(zip(names, tensors, strict=True)), **dict(rest))


_pytree.register_pytree_node(
    StreamState, _flatten, _unflatten, serialized_type_name="skrf.torch.StreamState"
)
torch.serialization.add_safe_globals([StreamState])
