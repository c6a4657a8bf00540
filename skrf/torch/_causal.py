"""Causal attention for torch with its own backward pass, which makes fewer arrays than autograd."""

import torch

from .._arrays import cast
from .._sums import Rows, scale_keys, scale_queries
from ..attention.linear import Block, as_rows, heads_together, in_parts

_PART_ROWS = 64  # of a triangular product, half of which is for nothing


def block_of(before, queries, keys, values):
    """Return the `Block` of features of some positions; see `skrf.attention.linear.block_of`."""
    far = None if before.sums is None else cast(before.sums, values.dtype)
    products, total, level = _CausalProduct.apply(*queries, *keys, values, far, before.top)
    return Block(products, level, total)


def _fixed(array):
    """Return a constant that may be overwritten: a copy if it is part of another array.

    Whole arrays of features have no other user: feature maps make new ones.
    """
    if array is None:
        return None
    is_part = array.untyped_storage().nbytes() > array.nbytes
    return array.detach().clone() if is_part else array.detach()


def in_full_precision(function):
    """Return a backward pass that autocast does not change, though it is on where a user calls."""

    def wrapped(ctx, gradient, *others):
        functorch = torch._C._functorch
        # Passes that write in place would fail within torch, with words that name nothing.
        if functorch.is_batchedtensor(gradient) or functorch.is_legacy_batchedtensor(gradient):
            raise NotImplementedError(
                "Batched gradients (is_grads_batched=True) of this attention are not available: "
                "call torch.autograd.grad for each."
            )
        with torch.autocast(gradient.device.type, enabled=False):
            return function(ctx, gradient, *others)

    return wrapped


class _CausalProduct(torch.autograd.Function):
    """What `block_of` returns; features are overwritten by their factors."""

    @staticmethod
    def forward(ctx, queries, query_scale, keys, key_scale, values, far, top):
        left, left_slopes, level = scale_queries(
            Rows(*map(_fixed, (queries, query_scale))), top[..., None, :]
        )
        right, right_slopes = scale_keys(Rows(*map(_fixed, (keys, key_scale))), top)
        left, right, values = _folded(left), _folded(right), _folded(values)
        near, earlier, total = _triangles(left @ right.mT), None, None
        if far is None:
            products = near @ values
        else:
            earlier = right.mT @ values
            _, total = _running(far, earlier.unflatten(0, (len(far), -1)))
            products = (left @ earlier).baddbmm_(near, values)
        ctx.save_for_backward(left, right, values, near, earlier, left_slopes, right_slopes)
        ctx.mark_non_differentiable(level)
        return _unfolded(products, queries), total, level

    @staticmethod
    @in_full_precision
    def backward(ctx, by_products, by_total, _):
        if torch.is_grad_enabled():  # autograd would see only a part of the graph
            raise NotImplementedError(
                "Second derivatives (create_graph=True) of causal attention are not available."
            )
        left, right, values, near, earlier, *slopes = ctx.saved_tensors
        by_products = _folded(by_products)
        by_near, by_far = _triangles(by_products @ values.mT), None
        if earlier is None:
            by_left, by_right, by_values = by_near @ right, by_near.mT @ left, near.mT @ by_products
        else:
            later = left.mT @ by_products
            _, by_far = _running(by_total, later.unflatten(0, (len(by_total), -1)), is_reverse=True)
            by_left = (by_products @ earlier.mT).baddbmm_(by_near, right)
            by_right = (values @ later.mT).baddbmm_(by_near.mT, left)
            by_values = (right @ later).baddbmm_(near.mT, by_products)
        pairs = zip((by_left, by_right), slopes, strict=True)
        by_queries, by_keys = (_unfolded(gradient, side).mul_(side) for gradient, side in pairs)
        by_values = _unfolded(by_values, slopes[1])
        return by_queries, None, by_keys, None, by_values, by_far, None


def _running(first, products, is_reverse=False):
    """Overwrite products with what comes before every part, and return it and the total."""
    ordered = products.flip(1) if is_reverse else products
    sums = ordered.cumsum(1)
    total, sums = sums[:, -1], first[:, None] + sums[:, :-1]
    if is_reverse:
        products[:, :-1], products[:, -1] = sums.flip(1), first
    else:
        products[:, 1:], products[:, 0] = sums, first
    return products, total


def _folded(rows):
    """Return rows (..., n, c) in parts, with the heads of a set together: (parts, rows, c)."""
    fold = heads_together if rows.ndim == 4 else in_parts  # of several query heads
    return fold(rows, _PART_ROWS).flatten(0, 1)


def _unfolded(parts, rows):
    """Undo `_folded`."""
    *heads, n = rows.shape[1:-1]
    parts = parts.unflatten(0, (rows.shape[0], -1))
    if heads:
        parts = parts.unflatten(2, (heads[0], -1)).movedim(2, 1)
    return as_rows(parts)[..., :n, :]


def _triangles(products):
    """Set products with later keys to 0, for every head of a set."""
    products.unflatten(1, (-1, products.shape[-1])).tril_()
    return products
