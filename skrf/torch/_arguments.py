"""What torch users pass to attention, as the operator takes it."""

import torch


def with_heads(inputs):
    """Return tensors of shape (batch, heads, length, width), given those or others for one head.

    Parameters
    ----------
    inputs : dict of str to Tensor
        Queries, keys and values by name.
    """
    n_axes = inputs["query"].ndim
    for name, tensor in inputs.items():
        if tensor.ndim not in (3, 4) or tensor.ndim != n_axes:
            raise ValueError(
                f"{name} must have the shape (batch, heads, length, width), or all three inputs "
                f"(batch, length, width), got {tuple(tensor.shape)}."
            )
    return [tensor[:, None] if tensor.ndim == 3 else tensor for tensor in inputs.values()]


def padding_and_mask(attn_mask, key_padding_mask, query, key):
    """Return which keys are padding, (batch, S), and factors of the weights, (L, S), or None.

    Parameters
    ----------
    attn_mask : Tensor or None
        As torch has it: True where a key is kept, or floats that are added to logarithms.
    key_padding_mask : Tensor of bool or None
        True where a key is padding.
    query, key : Tensor of shape (batch, heads, L, width) and (batch, heads, S, width)
        The inputs.
    """
    if attn_mask is None:
        return key_padding_mask, None
    if not isinstance(attn_mask, torch.Tensor):
        raise TypeError(f"attn_mask must be a torch.Tensor, got {type(attn_mask).__name__}.")
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
    is_bool = attn_mask.dtype == torch.bool
    if not is_of_batch:
        return key_padding_mask, attn_mask.to(query.dtype) if is_bool else attn_mask.exp()
    if not is_bool:
        raise ValueError(
            f"attn_mask of shape {shape} must be of bool, True where a key is kept, got "
            f"{attn_mask.dtype}."
        )
    return ~attn_mask if key_padding_mask is None else ~attn_mask | key_padding_mask, None
