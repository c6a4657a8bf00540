"""Attention with random features as a torch module that replaces exact attention."""

import copy
import math
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from .._estimator import naming_parameters
from .._typing import RandomState, Transformer
from .._validation import draw_seed
from ..attention import ApproxKernelAttention
from ..attention._inputs import check_scale
from ..attention._record import below, record_of_fit, restore_fit
from ._arguments import check_is_eager, check_share, checked_tensors, padding_and_mask
from ._export import LogFeatures
from ._export import attend as attend_unread
from ._masks import TRAINED_PARTS, is_stream_mask, mask_of_call, owned
from ._packing import attend_packed
from .states import StreamState

__all__ = ["RandomFeatureAttention"]

_DIRECTIONS = {False: "bidirectional", True: "causal"}
_FITTED_SEED = "fitted_seed"
_RECORD = "record/"  # prefix of the names of buffers
_OF_OPERATORS = "feature_map", "scale"


class _Operator(ApproxKernelAttention):
    """An operator that never changes once it is drawn and fitted: `at` returns another one."""

    def at(self, seed=None, **parameters):
        """Return the operator with other parameters, and with the draw of a seed if one is given.

        A mask is the caller's to keep as it is.
        """
        if seed is None and all(getattr(self, name) is parameters[name] for name in parameters):
            return self
        other = copy.copy(self)
        for name, value in parameters.items():
            setattr(other, name, value)
        if "mask" in parameters:
            other._used_mask = other.mask, other.mask
        return other if seed is None else other.redraw(seed)


class RandomFeatureAttention(nn.Module):
    """Softmax attention with random features, in place of ``scaled_dot_product_attention``.

    It takes queries, keys and values of shape (batch, heads, length, width), or (batch, length,
    width) for one head, and has no weights of its own. All random numbers are determined by a seed.
    Statistics come from `fit`; without it, bidirectional calls compute them from a sample of their
    inputs, as in `ApproxKernelAttention`.

    Parameters
    ----------
    feature_map : transformer or GeneralizedMap, default=None
        As in `ApproxKernelAttention`.
    is_causal : bool, default=False
        Whether position i attends only to positions up to i, unless a call says otherwise.
    scale : float, default=None
        Multiplies the inner products of queries and keys; None means 1/sqrt(width).
    mask : mask of ApproxKernelAttention or callable, default=None
        Multiplies the attention weights; its entries must not become negative. A mask made from
        parameters is trained; a callable, such as another module, returns the mask of each call.
    dropout : float, default=0.0
        Share of the entries of the values that are dropped during training.
    random_state : int, RandomState instance or None, default=None
        Source of the seed; None uses that of `feature_map` or, if it has none, torch's generator.
    check_values : bool, default=True
        Whether calls read their inputs: to check contents, to choose the precision, and to cut
        sequences into parts that share a scale. False is for ``torch.export``,
        ``torch.compile(fullgraph=True)``, ``torch.func``, ``torch.vmap`` and meta tensors. It needs
        a positive map, a fit or `is_causal`, and one call on ordinary tensors before the first
        trace; it allows no masks, padding or gates. Computation is then in float64, and exponents
        of features may rise by at most 600 over a causal sequence; beyond, the first outputs are
        NaN, and nothing is raised: check ``out.isfinite().all()`` once, or call a module that reads
        its inputs on the longest of yours. Steps read their inputs all the same.

    Attributes
    ----------
    seed : int
        Seed of the random numbers in use; it determines the seed of the next redraw.

    See Also
    --------
    skrf.attention.ApproxKernelAttention : The operator behind each direction.
    skrf.attention.ToeplitzMask : Masks whose weights can be trained.

    Notes
    -----
    Everything that the outputs depend on is stored in ``state_dict`` as buffers: the seed and,
    after a fit, the statistics and what was learned from them. A module with the same arguments
    that loads this ``state_dict`` gives the same outputs, bit for bit. The buffers keep their dtype
    under ``half()`` and similar methods; they are a record that calls do not read.

    Sums are in float32 or better, also under autocast. Under ``torch.compile``, calls cause graph
    breaks.

    References
    ----------
    Choromanski et al., Rethinking attention with Performers (2021).

    Examples
    --------
    >>> import torch
    >>> from skrf.torch import RandomFeatureAttention
    >>> q, k, v = torch.randn(3, 2, 4, 300, 16, generator=torch.Generator().manual_seed(0)) / 2
    >>> attend = RandomFeatureAttention(random_state=0)
    >>> error = attend(q, k, v) - torch.nn.functional.scaled_dot_product_attention(q, k, v)
    >>> bool(error.norm() < 0.2 * attend(q, k, v).norm())
    True
    """

    _foreign_parameters = {
        "causal": "Pass is_causal instead.",
        "nb_features": "Pass feature_map=OptimalPositiveRF(nb_features) instead.",
        "dim_heads": "Width and heads are those of the inputs of a call.",
    }

    @naming_parameters
    def __init__(
        self,
        feature_map: Transformer | None = None,
        *,
        is_causal: bool = False,
        scale: float | None = None,
        mask: Any = None,
        dropout: float = 0.0,
        random_state: RandomState = None,
        check_values: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(check_values, bool):
            raise ValueError(f"check_values must be True or False, got {check_values!r}.")
        if not isinstance(is_causal, bool):
            raise ValueError(f"is_causal must be True or False, got {is_causal!r}.")
        self.feature_map = feature_map
        self.is_causal, self.scale, self.mask = is_causal, scale, mask
        self.dropout, self.check_values = check_share("dropout", dropout), check_values
        if modules := _modules_of(feature_map):
            self.feature_modules = modules
        if random_state is None:
            random_state = getattr(feature_map, "random_state", None)
        if random_state is None:
            random_state = torch.randint(2**31 - 1, (), device="cpu").item()
        self.seed = draw_seed(random_state)
        self._stream = None  # the states of `chunked_loss`, while it runs
        self._fits = {}  # fitted operators and their records, by direction
        self._renew()

    def __setattr__(self, name, value):
        if name == "mask":
            value = owned(value)
            for part in ("rate", "weights"):
                is_trained = part in TRAINED_PARTS.get(type(value), ())
                array = getattr(value, part) if is_trained else None
                parameter = array if isinstance(array, nn.Parameter) else None
                super().__setattr__(f"mask_{part}", parameter)
        super().__setattr__(name, value)
        if name in _OF_OPERATORS and "_operators" in vars(self):
            self._renew()

    # ---------------------------------------------------------------- operators

    def _unfitted(self, is_causal, seed):
        """Return an operator of a direction with the draw of a seed."""
        return _Operator(self.feature_map, causal=is_causal, scale=self.scale).at(seed)

    def _renew(self):
        """Replace the operators of both directions, after a change of what they depend on."""
        self._operators, self._log_features = {}, {}
        for is_causal in _DIRECTIONS:
            if is_causal in self._fits:
                fitted, record = self._fits[is_causal]
                parameters = {name: getattr(self, name) for name in _OF_OPERATORS}
                seed = None if self.seed == record[_FITTED_SEED] else self.seed
                self._operators[is_causal] = fitted.at(seed, **parameters)
            else:
                self._operators[is_causal] = self._unfitted(is_causal, self.seed)
        self._register()

    def _direction(self, is_causal):
        """Return the direction of a call: that of the module, unless the call says otherwise."""
        is_causal = self.is_causal if is_causal is None else is_causal
        if not isinstance(is_causal, bool):
            raise ValueError(f"is_causal must be True, False or None, got {is_causal!r}.")
        return is_causal

    def fit(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        key_padding_mask: "torch.Tensor | None" = None,
        is_causal: bool | None = None,
    ) -> Self:
        """Compute the statistics that all later calls in one direction use.

        Parameters
        ----------
        query, key, value : Tensor of shape (batch, heads, length, width)
            Inputs like those of later calls.
        key_padding_mask : Tensor of bool of shape (batch, length), default=None
            True where a key is padding and ignored.
        is_causal : bool, default=None
            The direction to fit; None uses the module's setting.

        Returns
        -------
        self : object
            The fitted module.

        Raises
        ------
        ValueError
            If the parameters of `feature_map` cannot be stored in buffers, as with `AdaptiveRF`.
        """
        is_causal = self._direction(is_causal)
        query, key, _ = (tensor.detach() for tensor in checked_tensors(query, key, value))
        operator = self._unfitted(is_causal, self.seed)
        operator.fit(query, key, key_padding_mask=key_padding_mask)
        record = {**record_of_fit(operator), _FITTED_SEED: np.array(self.seed)}
        self._fits[is_causal] = operator, record
        self._renew()
        return self

    def redraw(self, random_state: RandomState = None) -> Self:
        """Redraw the random numbers, keeping the statistics.

        States returned by `step` belong to the old random numbers: start again with `init_state`.

        Parameters
        ----------
        random_state : int, RandomState instance or None, default=None
            Source of the new seed; None derives it from the current seed.

        Returns
        -------
        self : object
            The module with new random numbers.
        """
        if random_state is None:
            self.seed = int(np.random.default_rng(self.seed).integers(2**31 - 1))
        else:
            self.seed = draw_seed(random_state)
        self._renew()
        return self

    # ---------------------------------------------------------------- calls

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
            (L, S) costs time L S. Other masks raise an error.
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
            For causal attention: logarithms, at most 0, of the share of the past that each position
            keeps, one per key head; -inf forgets it. Gradients flow through them.
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
        is_causal = self._direction(is_causal)
        inputs = checked_tensors(query, key, value)
        if self.check_values:
            check_is_eager(inputs, self._has_func_grad(is_causal))
        if not enable_gqa and inputs[0].shape[1] != inputs[1].shape[1]:
            raise ValueError(
                f"query has {inputs[0].shape[1]} heads and key {inputs[1].shape[1]}: pass "
                f"enable_gqa=True, got {enable_gqa!r}."
            )
        if scale is not None:
            width = query.shape[-1]
            factor = math.sqrt(check_scale(scale, width) / check_scale(self.scale, width))
            inputs[:2] = inputs[0] * factor, inputs[1] * factor
        padding, mask = padding_and_mask(attn_mask, key_padding_mask, *inputs[:2], is_causal)
        inputs[2] = nn.functional.dropout(inputs[2], self.dropout, self.training)
        inputs[2] = nn.functional.dropout(inputs[2], check_share("dropout_p", dropout_p))
        options = {"key_padding_mask": padding, "log_gates": log_gates, "return_lse": return_lse}
        if not self.check_values:
            unread = padding, mask, self.mask, log_gates, cu_seqlens, self._stream
            if return_lse or any(option is not None for option in unread):
                raise ValueError(
                    "check_values=False allows no masks, padding, gates, cu_seqlens, chunked_loss "
                    "or return_lse."
                )
            results = self._attend_unread(*inputs, is_causal)
        elif cu_seqlens is not None:
            masks = attn_mask, key_padding_mask, self.mask
            if any(each is not None for each in masks) or self._stream is not None:
                raise ValueError(
                    "cu_seqlens needs attn_mask=None, key_padding_mask=None, a module whose mask "
                    "is None, and a call outside of chunked_loss."
                )
            results = self._attend_packed(cu_seqlens, inputs, is_causal, log_gates, return_lse)
        elif self._stream is not None:
            if mask is not None or not is_causal:
                raise ValueError(
                    "Attention within chunked_loss needs is_causal=True and no attn_mask of shape "
                    f"(L, S), got is_causal={is_causal!r}."
                )
            results = self._stream.attend(self, inputs, **options)
        else:
            results = self._attend(inputs, is_causal, mask, **options)
        if query.ndim == 4:
            return results
        return tuple(part[:, 0] for part in results) if return_lse else results[:, 0]

    def init_state(self) -> StreamState:
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
        if not self.is_causal or not is_stream_mask(self.mask):
            raise ValueError(
                "States need is_causal=True, and mask=None or ToeplitzMask.decay(rate), got "
                f"is_causal={self.is_causal!r} and mask={type(self.mask).__name__}."
            )
        return StreamState()

    def step(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        state: StreamState,
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
        TypeError
            If it is no `StreamState`.
        """
        self.init_state()
        if not isinstance(state, StreamState):
            raise TypeError(f"state must come from init_state() or step(), got {state!r:.60}.")
        inputs = checked_tensors(query, key, value)
        check_is_eager(inputs, has_func_grad=False)
        if self.training and self.dropout:
            inputs[2] = nn.functional.dropout(inputs[2], self.dropout)
        options = {"log_gates": log_gates, "return_lse": return_lse}
        options["key_padding_mask"] = key_padding_mask
        *results, state = self._attend(inputs, True, state=state, **options)
        return *(part[:, 0] if query.ndim == 3 else part for part in results), state

    @torch.compiler.disable
    def _attend(self, inputs, is_causal, mask=None, state=None, **options):
        """Return what the operator of a direction returns for a call or, with a state, a step.

        The mask is that of the module unless the call has one.
        """
        if mask is None:
            mask = mask_of_call(self)
        elif self.mask is not None:
            raise ValueError("attn_mask of shape (L, S) needs a module whose mask is None.")
        operator = self._operators[is_causal].at(mask=mask)
        with torch.autocast(inputs[0].device.type, enabled=False):
            if state is None:
                return operator(*inputs, **options)
            return operator.step(*inputs, state, **options)

    @torch.compiler.disable
    def _attend_packed(self, cu_seqlens, inputs, is_causal, log_gates, return_lse):
        """Return the attention of packed sequences."""

        def call(batch, **options):
            results = self._attend(batch, is_causal, return_lse=return_lse, **options)
            return results if return_lse else (results,)

        results = attend_packed(call, cu_seqlens, inputs, log_gates)
        return tuple(results) if return_lse else results[0]

    def _mask_of_call(self):
        """Return the mask of a call, for `compare_attention`."""
        return mask_of_call(self)

    def _has_func_grad(self, is_causal):
        """Return whether ``torch.func.grad`` serves."""
        # Without a fit, and for features with signs, contents are read on the host.
        maps = getattr(self._operators[is_causal], "feature_maps_", None)
        return maps is not None and getattr(maps[0], "is_positive", False)

    def _attend_unread(self, query, key, value, is_causal):
        """Return attention by plain operations on tensors."""
        if is_causal and query.shape[-2] != key.shape[-2]:
            raise ValueError(
                "check_values=False needs as many queries as keys in causal attention, got "
                f"{query.shape[-2]} and {key.shape[-2]}."
            )
        width = key.shape[-1]
        if (is_causal, width) not in self._log_features:
            if torch.compiler.is_compiling() or torch.jit.is_tracing():
                raise RuntimeError(
                    "check_values=False: call the module once on ordinary tensors of this width "
                    "before it is exported or compiled."
                )
            maps = self._operators[is_causal]._maps_without_data(width)
            if maps is None:
                raise ValueError(
                    f"feature_map={self.feature_map!r} takes statistics from data: call fit first."
                )
            self._log_features[is_causal, width] = tuple(
                LogFeatures.of([getattr(head, side) for head in maps], width, self.feature_map)
                for side in ("queries", "keys")
            )
        return attend_unread(self._log_features[is_causal, width], query, key, value, is_causal)

    def extra_repr(self) -> str:
        """Return the arguments to show in the module's representation.

        Returns
        -------
        str
            The most important arguments.
        """
        names = "feature_map", "is_causal", "dropout", "seed"
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    # ---------------------------------------------------------------- state

    def _register(self):
        """Write everything besides the arguments that outputs depend on into buffers."""
        device = self._buffers[f"{_RECORD}seed"].device if self._buffers else None
        arrays = {"seed": np.array(self.seed)}
        for is_causal, (_, record) in self._fits.items():
            direction = _DIRECTIONS[is_causal]
            arrays.update({f"{direction}/{name}": array for name, array in record.items()})
        self._buffers.clear()
        for name, array in arrays.items():
            self.register_buffer(f"{_RECORD}{name}", torch.tensor(array, device=device))

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        self._register()  # on the new device, but not in shorter floats
        return self

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors
    ):
        record = below(state_dict, f"{prefix}{_RECORD}")
        arrays = {name: value.numpy(force=True) for name, value in record.items()}
        if "seed" in arrays:
            self._restore(arrays)
        # The buffers are now those of the state; checkpoints of exact attention have none.
        lacking = []
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, lacking, unexpected, errors
        )
        ours = () if record else f"{prefix}{_RECORD}"
        missing += [name for name in lacking if not name.startswith(ours)]

    def _restore(self, arrays):
        """Take the seed and the fits of a record."""
        self.seed, self._fits = int(arrays["seed"]), {}
        for is_causal, direction in _DIRECTIONS.items():
            if record := below(arrays, f"{direction}/"):
                operator = self._unfitted(is_causal, int(record[_FITTED_SEED]))
                self._fits[is_causal] = restore_fit(operator, record), record
        self._renew()


def _modules_of(feature_map):
    """Return the modules among the functions of a `GeneralizedMap`."""
    functions = getattr(feature_map, "functions", None) or ()
    functions = *functions, getattr(feature_map, "nonlinearity", None)
    return nn.ModuleList(function for function in functions if isinstance(function, nn.Module))
