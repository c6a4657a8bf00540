"""What torch users pass to attention, as the operator takes it."""

import torch

_HIDDEN = -1e4  # a logarithm that hides a key


def checked_tensors(query, key, value):
    """Return tensors of shape (batch, heads, length, width), given those or others for one head."""
    inputs = {"query": query, "key": key, "value": value}
    for name, tensor in inputs.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}.")
        if tensor.is_nested or tensor.layout != torch.strided:
            kind = "a nested tensor" if tensor.is_nested else f"layout {tensor.layout}"
            raise TypeError(
                f"{name} must be a dense tensor, got {kind}: pad it, and pass key_padding_mask."
            )
    for name, tensor in inputs.items():
        if tensor.ndim not in (3, 4) or tensor.ndim != query.ndim:
            raise ValueError(
                f"{name} must have the shape (batch, heads, length, width), or all three inputs "
                f"(batch, length, width), got {tuple(tensor.shape)}."
            )
    return [tensor[:, None] if tensor.ndim == 3 else tensor for tensor in inputs.values()]


def check_is_eager(inputs, has_func_grad):
    """Raise where the contents of tensors cannot be read, or ``torch.func.grad`` cannot serve."""
    functorch, unserved = torch._C._functorch, None
    if torch.jit.is_tracing():
        unserved = "torch.jit.trace, which would record one length and one draw"
    elif torch.compiler.is_compiling():
        unserved = "torch.export" if getattr(torch.compiler, "is_exporting", bool)() else None
    elif any(tensor.is_meta for tensor in inputs):
        unserved = "tensors of the device meta"
    elif any(map(functorch.is_batchedtensor, inputs)):
        unserved = "torch.vmap"
    elif not has_func_grad and any(map(functorch.is_gradtrackingtensor, inputs)):
        unserved = "torch.func.grad"
    if unserved is not None:
        raise RuntimeError(
            "Attention that reads its inputs, to check them and to choose scales, cannot serve "
            f"{unserved}: RandomFeatureAttention(check_values=False) can."
        )


def check_share(name, share):
    """Return a share, or raise and name it unless it is a number from 0 to less than 1."""
    if not (isinstance(share, (int, float)) and 0 <= share < 1):
        raise ValueError(f"{name} must be a number from 0 to less than 1, got {share!r}.")
    return share


def padding_and_mask(attn_mask, key_padding_mask, query, key, is_causal):
    """Return which keys are padding, (batch, S), and factors of the weights, (L, S), or None.

    Parameters
    ----------
    attn_mask : Tensor or None
        As torch has it: True where a key is kept, or floats that are added to logarithms.
    key_padding_mask : Tensor of bool or None
        True where a key is padding.
    query, key : Tensor of shape (batch, heads, L, width) and (batch, heads, S, width)
        The inputs.
    is_causal : bool
        Whether later keys are not seen.
    """
    if attn_mask is None:
        return key_padding_mask, None
    if key_padding_mask is not None and tuple(key_padding_mask.shape[1:3]) == (1, 1):
        key_padding_mask = key_padding_mask[:, 0, 0]  # of a mask (batch, 1, 1, S)
    if not isinstance(attn_mask, torch.Tensor):
        raise TypeError(f"attn_mask must be a torch.Tensor, got {type(attn_mask).__name__}.")
    is_bool = attn_mask.dtype == torch.bool
    if not (is_bool or attn_mask.is_floating_point()):
        raise TypeError(f"attn_mask must be of bool or floats, got {attn_mask.dtype}.")
    n_batch, n_queries, n_keys = key.shape[0], query.shape[-2], key.shape[-2]
    shape = tuple(attn_mask.shape)
    is_of_batch = shape == (n_batch, n_keys)
    if len(shape) == 4 and shape[1:3] == (1, 1):
        is_of_batch, attn_mask = True, attn_mask[:, 0, 0].expand(n_batch, -1)
    elif len(shape) == 4 and shape[:2] == (1, 1):
        attn_mask = attn_mask[0, 0]
    elif is_of_batch and n_batch == n_queries > 1:
        raise ValueError(
            f"attn_mask of shape {shape} could be (batch, S) or (L, S): add axes, "
            "attn_mask[:, None, None, :] or attn_mask[None, None]."
        )
    if tuple(attn_mask.shape) != ((n_batch if is_of_batch else n_queries), n_keys):
        raise ValueError(
            f"attn_mask has the shape {shape}; sums of features can honour (batch, S), "
            f"(batch, 1, 1, S) and (L, S), here {(n_batch, n_keys)}, {(n_batch, 1, 1, n_keys)} "
            f"and {(n_queries, n_keys)}. For causal attention pass is_causal=True, and padding "
            "as key_padding_mask."
        )
    if not is_of_batch:
        return key_padding_mask, _factors(attn_mask, is_causal)
    hidden = ~attn_mask if is_bool else attn_mask <= _HIDDEN
    if not (is_bool or bool((hidden | (attn_mask == 0)).all())):
        raise ValueError(
            f"attn_mask of shape {shape} must be of bool, True where a key is kept, or of floats "
            f"that are 0 or at most {_HIDDEN:g}, got values between {attn_mask.min().item():g} and "
            f"{attn_mask.max().item():g}."
        )
    return hidden if key_padding_mask is None else hidden | key_padding_mask, None


def _factors(attn_mask, is_causal):
    """Return the factors of the weights of pairs, at most 1 in every row that has any key."""
    if attn_mask.dtype == torch.bool:
        return attn_mask.float()
    logs = attn_mask.to(torch.promote_types(attn_mask.dtype, torch.float32))
    seen = logs
    if is_causal:
        is_later = torch.ones_like(logs, dtype=torch.bool).triu(1 + logs.shape[1] - logs.shape[0])
        seen = logs.masked_fill(is_later, -torch.inf)
    top = seen.detach().amax(dim=-1, keepdim=True)
    return (seen - top.masked_fill(top == -torch.inf, 0.0)).exp()
