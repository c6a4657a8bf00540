"""Attention with random features as a torch module that replaces exact attention."""

import copy
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from .._estimator import naming_parameters
from .._typing import RandomState, Transformer
from .._validation import draw_seed
from ..attention import ApproxKernelAttention
from ..attention._feature_maps import ignores_data, needs_data
from ..attention._record import below, record_of_fit, restore_fit
from ._arguments import check_share
from ._attention import Attention
from ._export import Side
from ._export import attend as attend_unchecked
from ._packing import attend_packed
from .states import StreamState

__all__ = ["RandomFeatureAttention"]

_DIRECTIONS = {False: "bidirectional", True: "causal"}
_FITTED_SEED = "fitted_seed"
_RECORD = "record/"  # prefix of the names of buffers
_OF_OPERATORS = "feature_map", "scale"


class _Operator(ApproxKernelAttention):
    """The operator with what modules need beside calls."""

    def at(self, mask):
        """Return the operator with a mask, which is the caller's to keep as it is."""
        other = copy.copy(self)
        other.mask, other._used_mask = mask, (mask, mask)
        return other

    def maps_without_data(self, width):
        """Return the `HeadMaps` of a fit, or one that needs none, for calls that see no data."""
        prototype = self._prototype(width)
        if hasattr(self, "feature_maps_"):
            return self._fitted_maps
        if needs_data(prototype) or not (self.causal or ignores_data(prototype)):
            raise ValueError(
                f"feature_map={self.feature_map!r} takes statistics from data: call fit first."
            )
        return self._drawn[width][2]


class RandomFeatureAttention(Attention):
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

    _state_type = StreamState
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
        self.check_values, self._sides = check_values, {}
        if not isinstance(is_causal, bool):
            raise ValueError(f"is_causal must be True or False, got {is_causal!r}.")
        check_share("dropout", dropout)
        self.feature_map = feature_map
        self.is_causal, self.scale, self.mask = is_causal, scale, mask
        self.dropout = dropout
        if modules := _modules_of(feature_map):
            self.feature_modules = modules
        if random_state is None:
            random_state = getattr(feature_map, "random_state", None)
        if random_state is None:
            random_state = torch.randint(2**31 - 1, (), device="cpu").item()
        self.seed = draw_seed(random_state)
        self._forget()

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name in _OF_OPERATORS and "_operators" in vars(self):
            for operator in (
                *self._operators.values(),
                *(operator for operator, _ in self._fitted.values()),
            ):
                setattr(operator, name, value)
            self._sides = {}

    # ---------------------------------------------------------------- operators

    def _operator(self, is_causal, seed):
        """Return the unfitted operator of a direction."""
        return _Operator(self.feature_map, causal=is_causal, scale=self.scale).redraw(seed)

    def _drawn(self, is_causal, seed):
        """Return the operator of a direction with the random numbers of a seed."""
        if is_causal not in self._fitted:
            return self._operator(is_causal, seed)
        operator, fitted_seed = self._fitted[is_causal]
        return operator if seed == fitted_seed else copy.copy(operator).redraw(seed)

    def _forget(self):
        """Reset the operators of both directions to unfitted ones."""
        self._operators = {
            is_causal: self._operator(is_causal, self.seed) for is_causal in _DIRECTIONS
        }
        self._fitted, self._records, self._sides = {}, {}, {}
        self._register()

    def _keep(self, is_causal, operator, record):
        """Keep an operator as it was fitted, and use its statistics from now on."""
        self._fitted[is_causal] = operator, int(record[_FITTED_SEED])
        self._records[is_causal] = record
        self._operators[is_causal] = self._drawn(is_causal, self.seed)
        self._sides = {}

    def _mask_or(self, given):
        """Return the mask of a call: the module's, or one given to the call."""
        if given is None:
            return self._mask_of_call()
        if self.mask is not None:
            raise ValueError("attn_mask of shape (L, S) needs a module whose mask is None.")
        return given

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
        is_causal, parts = self._checked(query, key, value, is_causal)
        parts = [tensor.detach() for tensor in parts]
        operator = self._operator(is_causal, self.seed)
        operator.fit(*parts[:2], key_padding_mask=key_padding_mask)
        record = {**record_of_fit(operator), _FITTED_SEED: np.array(self.seed)}
        self._keep(is_causal, operator, record)
        self._register()
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
        self._operators = {
            is_causal: self._drawn(is_causal, self.seed) for is_causal in _DIRECTIONS
        }
        self._sides = {}
        self._register()
        return self

    # ---------------------------------------------------------------- calls

    @torch.compiler.disable
    def _attend(self, query, key, value, key_padding_mask, mask, is_causal, log_gates, return_lse):
        operator = self._operators[is_causal].at(self._mask_or(mask))
        options = {"key_padding_mask": key_padding_mask, "log_gates": log_gates}
        with torch.autocast(query.device.type, enabled=False):
            return operator(query, key, value, return_lse=return_lse, **options)

    def _has_func_grad(self, is_causal):
        # Without a fit, and for features with signs, contents are read on the host.
        maps = getattr(self._operators[is_causal], "feature_maps_", None)
        return maps is not None and getattr(maps[0], "is_positive", False)

    def _attend_unchecked(self, query, key, value, is_causal):
        """Return attention by plain operations on tensors."""
        if is_causal and query.shape[-2] != key.shape[-2]:
            raise ValueError(
                "check_values=False needs as many queries as keys in causal attention, got "
                f"{query.shape[-2]} and {key.shape[-2]}."
            )
        if (is_causal, key.shape[-1]) not in self._sides:
            if torch.compiler.is_compiling() or torch.jit.is_tracing():
                raise RuntimeError(
                    "check_values=False: call the module once on ordinary tensors of this width "
                    "before it is exported or compiled."
                )
            operator = self._operators[is_causal]
            maps, width = operator.maps_without_data(key.shape[-1]), key.shape[-1]
            given = width, operator.feature_map
            self._sides[is_causal, width] = tuple(
                Side.of([getattr(head, side) for head in maps], *given)
                for side in ("queries", "keys")
            )
        return attend_unchecked(self._sides[is_causal, key.shape[-1]], query, key, value, is_causal)

    @torch.compiler.disable
    def _attend_packed(self, cu_seqlens, parts, is_causal, log_gates, return_lse):
        operator = self._operators[is_causal]

        def call(query, key, value, padding, gates):
            options = {"key_padding_mask": padding, "log_gates": gates}
            found = operator(query, key, value, return_lse=return_lse, **options)
            return found if return_lse else (found,)

        with torch.autocast(parts[0].device.type, enabled=False):
            found = attend_packed(call, cu_seqlens, parts, log_gates)
        return tuple(found) if return_lse else found[0]

    def _of_seed(self, is_causal, seed):
        """Return the operator of a direction with the random numbers of a seed."""
        return self._operators[is_causal] if seed == self.seed else self._drawn(is_causal, seed)

    @torch.compiler.disable
    def _step(self, query, key, value, key_padding_mask, log_gates, return_lse, state, seed):
        operator = self._of_seed(True, seed).at(self._mask_of_call())
        options = {"key_padding_mask": key_padding_mask, "log_gates": log_gates}
        with torch.autocast(query.device.type, enabled=False):
            *found, state = operator.step(
                query, key, value, state, return_lse=return_lse, **options
            )
        return *found, StreamState(**vars(state))

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
        for is_causal, record in self._records.items():
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
        given = below(state_dict, f"{prefix}{_RECORD}")
        arrays = {name: value.numpy(force=True) for name, value in given.items()}
        if "seed" in arrays:
            self._restore(arrays)
        # The buffers are now those of the state; checkpoints of exact attention have none.
        lacking = []
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, lacking, unexpected, errors
        )
        ours = () if given else f"{prefix}{_RECORD}"
        missing += [name for name in lacking if not name.startswith(ours)]

    def _restore(self, arrays):
        self.seed = int(arrays["seed"])
        self._forget()
        for is_causal, direction in _DIRECTIONS.items():
            if record := below(arrays, f"{direction}/"):
                operator = self._operator(is_causal, int(record[_FITTED_SEED]))
                restore_fit(operator, record)
                self._keep(is_causal, operator, record)
        self._register()


def _modules_of(feature_map):
    """Return the modules among the functions of a `GeneralizedMap`."""
    functions = getattr(feature_map, "functions", None) or ()
    functions = *functions, getattr(feature_map, "nonlinearity", None)
    return nn.ModuleList(function for function in functions if isinstance(function, nn.Module))
