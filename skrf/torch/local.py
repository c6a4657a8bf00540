"""Local attention as a torch module."""

import copy
from typing import Any, Self

import numpy as np
import torch

from .._estimator import naming_parameters
from ..attention import LocalAttention as Operator
from ..attention.local.layout import sizes_of
from ._arguments import check_share
from ._attention import Attention
from ._local import attend
from .states import LocalStreamState

_RECORD = (
    "mean_queries",
    "query_variances",
    "mean_keys",
    "key_variances",
    "n_queries",
    "n_keys",
)


class _Operator(Operator):
    """The operator with a backward pass of its own."""

    _blocks = staticmethod(attend)


class LocalAttention(Attention):
    """Attention to nearby keys, a few heavy ones and summaries of the rest, in a torch model.

    Use it in place of ``scaled_dot_product_attention``. It takes queries, keys and values of shape
    (batch, heads, length, width), or (batch, length, width) for one head, and computes the same as
    `skrf.attention.LocalAttention`. It has no weights and no random numbers.

    Parameters
    ----------
    window : int, default=None
        Number of keys before a block of positions; with ``is_causal=False``, of keys in and around
        it.
    n_heavy : int, default=None
        Number of keys beyond the window that are treated exactly.
    n_summaries : int, default=None
        Number of summaries of all other keys.
    block : int, default=32
        Number of positions in a block.
    is_causal : bool, default=False
        Whether position i attends only to positions up to i, unless a call says otherwise.
    scale : float, default=None
        Multiplies the inner products of queries and keys; None means 1/sqrt(width).
    dropout : float, default=0.0
        Share of the entries of the values that are dropped during training.
    mask : DecayMask or callable, default=None
        ``ToeplitzMask.decay(rate)``, only with `is_causal`. A rate that is a parameter is trained;
        a callable returns the mask of each call.

    See Also
    --------
    skrf.attention.LocalAttention : The operator; its defaults and notes also apply here.
    RandomFeatureAttention : For models that are trained with random features.

    Notes
    -----
    Means and variances of a fit are part of ``state_dict``, in float64. Gradients treat the choice
    of keys as constant. Under ``torch.compile``, calls cause graph breaks.

    Examples
    --------
    >>> import torch
    >>> from skrf.torch import LocalAttention
    >>> q, k, v = torch.randn(3, 2, 4, 600, 16, generator=torch.Generator().manual_seed(0)) / 2
    >>> attend = LocalAttention(is_causal=True)
    >>> exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> bool((attend(q, k, v) - exact).norm() < 0.1 * exact.norm())
    True
    """

    _state_type = LocalStreamState
    _foreign_parameters = {"causal": "Pass is_causal instead."}

    @naming_parameters
    def __init__(
        self,
        window: int | None = None,
        n_heavy: int | None = None,
        n_summaries: int | None = None,
        *,
        block: int = 32,
        is_causal: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
        mask: Any = None,
    ) -> None:
        super().__init__()
        if not isinstance(is_causal, bool):
            raise ValueError(f"is_causal must be True or False, got {is_causal!r}.")
        check_share("dropout", dropout)
        self.window, self.n_heavy, self.n_summaries = window, n_heavy, n_summaries
        self.block, self.is_causal, self.scale, self.dropout = block, is_causal, scale, dropout
        self.mask = mask
        for name in _RECORD:
            self.register_buffer(name, None)
        sizes_of(window, n_heavy, n_summaries, block, is_causal)  # which checks them

    def _operator(self, is_causal):
        """Return the operator of a direction."""
        sizes = self.window, self.n_heavy, self.n_summaries
        options = {"scale": self.scale, "mask": self._mask_of_call()}
        operator = _Operator(*sizes, block=self.block, causal=is_causal, **options)
        if self.mean_queries is not None:
            for name in _RECORD:
                setattr(operator, f"{name}_", getattr(self, name).numpy(force=True))
        return operator

    def fit(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: "torch.Tensor | None" = None,
        *,
        key_padding_mask: "torch.Tensor | None" = None,
    ) -> Self:
        """Compute means and variances of the queries and keys of heads, which later calls use.

        Parameters
        ----------
        query, key : Tensor of shape (batch, heads, length, width)
            Inputs like those of later calls.
        value : Tensor, default=None
            Unused.
        key_padding_mask : Tensor of bool of shape (batch, length), default=None
            True where a key is padding; the query at the same position is then padding, too.

        Returns
        -------
        self : object
            The fitted module.
        """
        return self._learn("fit", query, key, key_padding_mask)

    def partial_fit(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: "torch.Tensor | None" = None,
        *,
        key_padding_mask: "torch.Tensor | None" = None,
    ) -> Self:
        """Update means and variances with more queries and keys.

        Parameters
        ----------
        query, key, value, key_padding_mask : Tensor
            Inputs, as in `fit`.

        Returns
        -------
        self : object
            The fitted module.
        """
        return self._learn("partial_fit", query, key, key_padding_mask)

    def _learn(self, verb, query, key, key_padding_mask):
        """Set what a method of the operator learns."""
        _, (query, key, _) = self._checked(query, key, key, None)
        operator = self._operator(self.is_causal)
        parts = query.detach(), key.detach()
        getattr(operator, verb)(*parts, key_padding_mask=key_padding_mask)
        for name in _RECORD:
            array = np.asarray(getattr(operator, f"{name}_"), np.float64)
            setattr(self, name, torch.tensor(array, device=query.device))
        return self

    @torch.compiler.disable
    def _attend(self, query, key, value, key_padding_mask, mask, is_causal, log_gates, return_lse):
        _check_no_gates(log_gates)
        if mask is not None:
            raise ValueError(
                f"attn_mask of shape {tuple(mask.shape)}: local attention honours (batch, S) and "
                "(batch, 1, 1, S) alone. For causal attention pass is_causal=True."
            )
        with torch.autocast(query.device.type, enabled=False):
            options = {"key_padding_mask": key_padding_mask, "return_lse": return_lse}
            return self._operator(is_causal)(query, key, value, **options)

    @torch.compiler.disable
    def _step(self, query, key, value, key_padding_mask, log_gates, return_lse, state, seed):
        _check_no_gates(log_gates)
        parts = query, key, value, state
        options = {"key_padding_mask": key_padding_mask, "return_lse": return_lse}
        if not torch.is_autocast_enabled(query.device.type):
            return self._operator(True).step(*parts, **options)
        with torch.autocast(query.device.type, enabled=False):
            return self._operator(True).step(*parts, **options)

    def _at_scale(self, scale, query, key):
        module = copy.copy(self)  # statistics stay those of queries and keys
        module.scale = scale
        return module, (query, key)

    def _apply(self, fn, recurse=True):
        kept = {name: getattr(self, name) for name in _RECORD}
        super()._apply(fn, recurse)
        for name, tensor in kept.items():  # on the new device, but not in shorter floats
            if tensor is not None:
                setattr(self, name, tensor.to(getattr(self, name).device))
        return self

    def _load_from_state_dict(self, state_dict, prefix, *others):
        # Checkpoints of exact attention have none of them, and those of a fit have.
        found: Any = {name: state_dict.get(prefix + name) for name in _RECORD}
        is_whole = all(tensor is not None for tensor in found.values())
        for name, tensor in found.items():
            setattr(self, name, tensor.detach().clone() if is_whole else None)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def extra_repr(self) -> str:
        """Return the arguments to show in the module's representation.

        Returns
        -------
        str
            The most important arguments.
        """
        names = "window", "n_heavy", "n_summaries", "block", "is_causal", "dropout"
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


def _check_no_gates(log_gates):
    if log_gates is not None:
        raise ValueError("log_gates must be None: LocalAttention has no gates.")
