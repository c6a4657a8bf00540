"""Calls of attention modules, with the arguments of torch's own attention."""

import copy
import math
from typing import Any

import torch
from torch import nn

from ..attention import DecayMask, ToeplitzMask
from ..attention._inputs import check_scale
from ..attention._masks import owned
from ._arguments import check_is_eager, check_share, padding_and_mask, with_heads

_OF_MASKS = {ToeplitzMask: ("weights",), DecayMask: ("rate",)}  # what may be trained


class Attention(nn.Module):
    """Base of the attention modules: arguments, checks and states.

    A subclass has `is_causal`, `scale`, `mask`, `dropout` and `seed`, the type of its states, and
    computes ``_attend`` and ``_step``.
    """

    _state_type = None
    seed = 0
    check_values = True

    def __init__(self):
        super().__init__()
        self._stream = None  # the states of `chunked_loss`, while it runs

    def __setattr__(self, name, value):
        value = owned(value) if name == "mask" else value
        super().__setattr__(name, value)
        if name != "mask":
            return
        for part in ("rate", "weights"):
            given = getattr(value, part, None) if type(value) in _OF_MASKS else None
            super().__setattr__(f"mask_{part}", given if isinstance(given, nn.Parameter) else None)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: "torch.Tensor | None" = None,
        dropout_p: float = 0.0,
        is_causal: bool | None = None,
        *,
        scale: float | None = None,
        enable_gqa: bool = True,
        key_padding_mask: "torch.Tensor | None" = None,
        log_gates: "torch.Tensor | None" = None,
        return_lse: bool = False,
        cu_seqlens: "torch.Tensor | None" = None,
    ) -> Any:
        """Return the attention of queries to keys.

        Parameters
        ----------
        query : Tensor of shape (batch, heads, L, width)
            Queries. In causal attention there may be fewer queries than keys; they are then the
            last positions.
        key : Tensor of shape (batch, heads, S, width)
            Keys; their number of heads may be a divisor of that of the queries.
        value : Tensor of shape (batch, heads, S, e)
            Values.
        attn_mask : Tensor of bool or floats, default=None
            As in ``scaled_dot_product_attention``: booleans, True where a key is kept, or floats
            that are added to the logarithms of the weights. Masks of shape (batch, S) or
            (batch, 1, 1, S) mark padding; their floats must be 0 or at most -10,000. The shape
            (L, S) is for `RandomFeatureAttention` only, at a cost of L S. Other masks raise an
            error.
        dropout_p : float, default=0.0
            Share of the entries of the values that are dropped; the weights of pairs cannot be
            dropped, because they are never computed.
        is_causal : bool, default=None
            Whether position i attends only to positions up to i; None uses the module's setting.
        scale : float, default=None
            Multiplies the inner products of queries and keys; None uses the module's setting.
        enable_gqa : bool, default=True
            Whether keys may have fewer heads than queries.
        key_padding_mask : Tensor of bool of shape (batch, S), default=None
            True where a key is padding and ignored.
        log_gates : Tensor of shape (S,), (heads, S) or (batch, heads, S), default=None
            For causal `RandomFeatureAttention`: logarithms, at most 0, of the share of the past
            that each position keeps, one per key head; -inf forgets it. Gradients flow through
            them.
        return_lse : bool, default=False
            Whether to return the logarithms of the sums of weights as well, for
            `skrf.attention.merge_attention`.
        cu_seqlens : Tensor of int of shape (number of sequences + 1,), default=None
            Where packed sequences begin and end, from 0 to L; the batch is 1. Every sequence is
            attended to as if it were alone. Gates are allowed, masks and padding are not.

        Returns
        -------
        out : Tensor of shape (batch, heads, L, e)
            Outputs in the dtype of the inputs.
        lse : Tensor of shape (batch, heads, L)
            With `return_lse`: as in `skrf.attention`, in float64 if the inputs are and in float32
            otherwise. Gradients flow through it.
        """
        is_causal, parts = self._checked(query, key, value, is_causal)
        if self.check_values:
            check_is_eager(parts, self._has_func_grad(is_causal))
        if not enable_gqa and parts[0].shape[1] != parts[1].shape[1]:
            raise ValueError(
                f"query has {parts[0].shape[1]} heads and key {parts[1].shape[1]}: pass "
                f"enable_gqa=True, got {enable_gqa!r}."
            )
        module = self
        if scale is not None:
            module, parts[:2] = self._at_scale(check_scale(scale, query.shape[-1]), *parts[:2])
        hidden, mask = padding_and_mask(attn_mask, key_padding_mask, *parts[:2], is_causal)
        parts[2] = nn.functional.dropout(parts[2], self.dropout, self.training)
        parts[2] = nn.functional.dropout(parts[2], check_share("dropout_p", dropout_p))
        if not self.check_values:
            given = hidden, mask, self.mask, log_gates, cu_seqlens, self._stream
            if return_lse or any(option is not None for option in given):
                raise ValueError(
                    "check_values=False allows no masks, padding, gates, cu_seqlens, chunked_loss "
                    "or return_lse."
                )
            found = module._attend_unchecked(*parts, is_causal)
        elif cu_seqlens is not None:
            masks = attn_mask, key_padding_mask, self.mask
            if any(given is not None for given in masks) or self._stream is not None:
                raise ValueError(
                    "cu_seqlens needs attn_mask=None, key_padding_mask=None, a module whose mask "
                    "is None, and a call outside of chunked_loss."
                )
            found = module._attend_packed(cu_seqlens, parts, is_causal, log_gates, return_lse)
        elif self._stream is not None:
            if mask is not None or not is_causal:
                raise ValueError(
                    "Attention within chunked_loss needs is_causal=True and no attn_mask of shape "
                    f"(L, S), got is_causal={is_causal!r}."
                )
            found = self._stream.attend(self, module._step, *parts, hidden, log_gates, return_lse)
        else:
            found = module._attend(*parts, hidden, mask, is_causal, log_gates, return_lse)
        if query.ndim == 4:
            return found
        return tuple(part[:, 0] for part in found) if return_lse else found[:, 0]

    def init_state(self) -> Any:
        """Return the state before the first position, for `step`.

        Returns
        -------
        StreamState
            A state that has seen no key.

        Raises
        ------
        ValueError
            If the module is not causal, or has a mask other than a decay.
        """
        if not self.is_causal or not self._mask_streams:
            raise ValueError(
                "States need is_causal=True, and mask=None or ToeplitzMask.decay(rate), got "
                f"is_causal={self.is_causal!r} and mask={type(self.mask).__name__}."
            )
        return self._state_type()

    @property
    def _mask_streams(self):
        """Whether the mask is None or a decay; what a callable returns is checked at every step."""
        mask = self.mask
        is_called = callable(mask) and not isinstance(mask, torch.Tensor)
        return is_called or mask is None or isinstance(mask, DecayMask)

    def _mask_of_call(self):
        """Return the mask with what is trained of it as it is now."""
        mask = self.mask
        if type(mask) in _OF_MASKS:
            # torch replaces parameters in load_state_dict(assign=True) and functional_call.
            mask = copy.copy(mask)
            for part in _OF_MASKS[type(mask)]:
                if (trained := getattr(self, f"mask_{part}")) is not None:
                    setattr(mask, part, trained)
        elif callable(mask) and not isinstance(mask, torch.Tensor):
            mask = mask()
        return mask

    def step(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        state: Any,
        *,
        key_padding_mask: "torch.Tensor | None" = None,
        log_gates: "torch.Tensor | None" = None,
        return_lse: bool = False,
    ) -> tuple:
        """Return causal attention of the next positions, and the state after them.

        However a sequence is split into chunks, the result is that of a single call, up to
        rounding, and so are gradients that flow through the states.

        Parameters
        ----------
        query, key, value : Tensor of shape (batch, heads, n, width), and (batch, heads, n, e)
            The next n positions.
        state : StreamState
            From `init_state` or the previous step; it is not changed.
        key_padding_mask : Tensor of bool of shape (batch, n), default=None
            True where a key is padding and ignored.
        log_gates : Tensor of shape (n,), (heads, n) or (batch, heads, n), default=None
            As in a call.
        return_lse : bool, default=False
            Whether to return the logarithms of the sums of weights as well.

        Returns
        -------
        out : Tensor of shape (batch, heads, n, e)
            Attention of these positions to all positions so far.
        lse : Tensor of shape (batch, heads, n)
            With `return_lse`: as in a call.
        state : StreamState
            The state after them.

        Raises
        ------
        ValueError
            If the state was made for other widths, heads or batches.
        """
        self.init_state()
        _, parts = self._checked(query, key, value, True)
        check_is_eager(parts, has_func_grad=False)
        if self.training and self.dropout:
            parts[2] = nn.functional.dropout(parts[2], self.dropout)
        options = key_padding_mask, log_gates, return_lse, state, self.seed
        *found, state = self._step(*parts, *options)
        return *(part[:, 0] if query.ndim == 3 else part for part in found), state

    def _has_func_grad(self, is_causal):
        """Return whether ``torch.func.grad`` serves."""
        return False

    def _attend_packed(self, cu_seqlens, parts, is_causal, log_gates, return_lse):
        """Return the attention of packed sequences."""
        raise ValueError(
            "cu_seqlens must be None: only RandomFeatureAttention has packed sequences."
        )

    def _attend(self, query, key, value, key_padding_mask, mask, is_causal, log_gates, return_lse):
        """Return the attention of inputs with heads."""
        raise NotImplementedError

    def _step(self, query, key, value, key_padding_mask, log_gates, return_lse, state, seed):
        """Return the attention of the next positions and the state after them."""
        raise NotImplementedError

    def _seed_of_call(self):
        """Return the seed of the random numbers of a call."""
        return self.seed

    def _at_scale(self, scale, query, key):
        """Return what attends at another scale, and the queries and keys to pass to it."""
        factor = math.sqrt(scale / check_scale(self.scale, query.shape[-1]))
        return self, (query * factor, key * factor)

    def _checked(self, query, key, value, is_causal):
        """Return the direction of a call and its inputs."""
        is_causal = self.is_causal if is_causal is None else is_causal
        if not isinstance(is_causal, bool):
            raise ValueError(f"is_causal must be True, False or None, got {is_causal!r}.")
        inputs = {"query": query, "key": key, "value": value}
        for name, tensor in inputs.items():
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}.")
            if tensor.is_nested or tensor.layout != torch.strided:
                kind = "a nested tensor" if tensor.is_nested else f"layout {tensor.layout}"
                raise TypeError(
                    f"{name} must be a dense tensor, got {kind}: pad it, and pass key_padding_mask."
                )
        return is_causal, with_heads(inputs)
