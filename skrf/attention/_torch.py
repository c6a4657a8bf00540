"""Attention of torch's tensors on the host: NumPy's way forward and back, as one node of the graph.

It takes a fraction of the time in which torch differentiates the same blocks operation by
operation, and keeps nothing but the inputs for the way back.
"""

import copy
import sys
from dataclasses import replace
from functools import lru_cache


def is_on_host(*arrays):
    """Tell whether all arrays are torch's, in the memory of the host."""
    torch = sys.modules.get("torch")
    return torch is not None and all(
        isinstance(array, torch.Tensor) and array.device.type == "cpu" for array in arrays
    )


def attend(operator, groups, n_key_heads):
    """Return what `operator` finds for groups of torch's tensors on the host.

    None where gradients are not known, so that torch has to find them.
    """
    parts = groups.q, groups.k, groups.v
    host = groups.on_host()
    sets = operator._sets(host, n_key_heads)
    if not all(side.has_gradient for own in sets[0].heads for side in (own.queries, own.keys)):
        return None
    found = operator._answer(host, sets)
    found.out = _node().apply(found.out, copy.copy(operator), host, sets, *parts)
    return found


@lru_cache(maxsize=1)
def _node():
    """Return the function of torch's graph; torch is imported by those alone who use it."""
    import torch
    from torch.autograd.function import once_differentiable

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, out, operator, host, sets, q, k, v):
            # Saved tensors, for torch raises where they are changed in place before the way back.
            ctx.save_for_backward(q, k, v)
            ctx.given = operator, replace(host, q=None, k=None, v=None), sets
            return torch.from_numpy(out)

        @staticmethod
        @once_differentiable
        def backward(ctx, gradient):
            operator, host, sets = ctx.given
            q, k, v = (part.detach().numpy() for part in ctx.saved_tensors)
            if not torch.isfinite(gradient).all():  # as scalers of losses expect it
                arrays = (torch.full_like(part, torch.nan) for part in ctx.saved_tensors)
                return None, None, None, None, *arrays
            arrays = operator._gradients(replace(host, q=q, k=k, v=v), sets, gradient.numpy())
            return None, None, None, None, *map(torch.from_numpy, arrays)

    return Attention
