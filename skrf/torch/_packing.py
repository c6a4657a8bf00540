"""Sequences packed one after the other into one: taken apart into batches, and put back."""

import torch


def _edges(cu_seqlens, query, key):
    """Return where packed sequences begin and end as a list of int, or raise."""
    is_right = isinstance(cu_seqlens, torch.Tensor) and cu_seqlens.ndim == 1
    if not is_right or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens must be a tensor of int of one axis, got {cu_seqlens!r:.80}.")
    edges, n = cu_seqlens.tolist(), key.shape[-2]
    is_ordered = all(a <= b for a, b in zip(edges[:-1], edges[1:], strict=True))
    if n == 0 or len(edges) < 2 or edges[0] != 0 or edges[-1] != n or not is_ordered:
        raise ValueError(
            f"cu_seqlens must rise from 0 to the number of positions, {n}, got {edges!r:.80}."
        )
    if key.shape[0] != 1 or query.shape[-2] != n:
        raise ValueError(
            "cu_seqlens needs batch 1, and as many queries as keys, got query of shape "
            f"{tuple(query.shape)} and key of shape {tuple(key.shape)}."
        )
    return edges


def attend_packed(call, cu_seqlens, inputs, log_gates):
    """Return the results of a call for packed sequences, each as if it were alone.

    Sequences whose lengths differ by less than a factor of 2 are one batch, padded at its end.

    Parameters
    ----------
    call : callable
        Takes the queries, keys and values of a batch, its `key_padding_mask` and `log_gates`, and
        returns tensors of shape (batch, heads, length, ...).
    cu_seqlens : Tensor of int
        Where sequences begin and end.
    inputs : list of Tensor of shape (1, heads, T, width)
        Queries, keys and values.
    log_gates : array or None
        As in a call.
    """
    device, edges, lengths = inputs[0].device, _edges(cu_seqlens, *inputs[:2]), {}
    for start, stop in zip(edges[:-1], edges[1:], strict=True):
        if stop > start:
            lengths.setdefault((stop - start - 1).bit_length(), []).append((start, stop - start))
    if log_gates is not None:
        shape, log_gates = tuple(inputs[1].shape[:3]), torch.as_tensor(log_gates, device=device)
        try:
            log_gates = log_gates.expand(shape)
        except RuntimeError:
            raise ValueError(
                f"log_gates must be (..., heads, S), broadcastable to {shape}, got "
                f"{tuple(log_gates.shape)}."
            ) from None
    results, places = [], []
    for sequences in lengths.values():
        starts, sizes = torch.tensor(sequences, device=device).T
        numbers = torch.arange(max(size for _, size in sequences), device=device)
        is_padding = numbers >= sizes[:, None]
        positions = torch.where(is_padding, 0, starts[:, None] + numbers)
        batch = [tensor[0][:, positions].movedim(0, 1) for tensor in inputs]
        gates = None if log_gates is None else log_gates[0][:, positions].movedim(0, 1)
        padding = is_padding if bool(is_padding.any()) else None
        outputs = call(batch, key_padding_mask=padding, log_gates=gates)
        results.append([output.movedim(1, 0)[:, ~is_padding] for output in outputs])
        places.append(positions[~is_padding])
    order = torch.cat(places).argsort()
    return [torch.cat(pieces, dim=1)[None, :, order] for pieces in zip(*results, strict=True)]
