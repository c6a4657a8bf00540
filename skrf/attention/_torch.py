"""Causal attention for torch with its own backward pass, which makes fewer arrays than autograd."""

from itertools import islice

import torch

from .._arrays import cast
from .._sums import Rows, lifted, lowered
from ._backward import by_sums_of
from ._heads import as_rows
from ._linear import in_parts, running, together
from ._near import ExactGradients

_PART_ROWS = 64  # of a triangular product, half of which is for nothing


class Quotients(torch.autograd.Function):
    """Numerators over denominators (column 0 of the sums); 0 where the denominator is 0."""

    generate_vmap_rule = True

    @staticmethod
    def forward(sums):
        weight = sums[..., :1]
        return sums[..., 1:] / torch.where(weight == 0, torch.inf, weight)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        return by_sums_of(*ctx.saved_tensors, gradient)


def _check_once():
    """Raise if gradients are to be differentiated: autograd would see only a part of the graph."""
    if torch.is_grad_enabled():
        raise NotImplementedError(
            "Second derivatives (create_graph=True) of causal attention and of near fields are not "
            "available."
        )


def is_differentiated(inputs):
    """Return whether autograd records operations on any of the inputs."""
    return torch.is_grad_enabled() and any(array.requires_grad for array in inputs)


def exact_parts(attention, ranges, inputs):
    """Return the sums of the exact parts of some ranges of `NearAttention`, and log scales."""
    found = _ExactParts.apply(attention, ranges, *inputs)
    return list(zip(found[: len(ranges)], found[len(ranges) :], strict=True))


class _ExactParts(torch.autograd.Function):
    """The sums of `exact_parts`, followed by their log scales, which are constants."""

    @staticmethod
    def forward(ctx, attention, ranges, *inputs):
        parts, operands = zip(*(attention.exact(*own) for own in ranges), strict=True)
        ctx.save_for_backward(*(part for own in operands for part in own))
        shapes = [part.shape for part in inputs]
        ctx.given = attention.layout, attention.scale, attention.unit.value_unit, ranges, shapes
        found, tops = zip(*parts, strict=True)
        ctx.mark_non_differentiable(*tops)
        return *found, *tops

    @staticmethod
    def backward(ctx, *gradients):
        _check_once()
        (layout, scale, unit, ranges, shapes), saved = ctx.given, iter(ctx.saved_tensors)
        by = ExactGradients(layout, scale, *map(gradients[0].new_zeros, shapes))
        for own, by_sums in zip(ranges, gradients, strict=False):
            by.add(tuple(islice(saved, 7)), by_sums, *own)
        if unit != 1:
            by.v.div_(unit)
            by.anchor_values.div_(unit)
        return None, None, by.q, by.k, by.v, by.anchor_keys, by.anchor_values


def causal_product(before, queries, keys, values):
    """Return numerators and denominators of some positions, and the sums over their keys.

    Parameters
    ----------
    before : Sums
        Over the keys of earlier positions, at exponents (U, M) or (U, 1) that suit these.
    queries, keys : Rows
        Features of shapes (U, G, n, M) and (U, n, M).
    values : Tensor of shape (U, n, e + 1)
        [weight, values].
    """
    far = cast(before.sums, values.dtype)
    return _CausalProduct.apply(*queries, *keys, values, far, before.top)


def _fixed(array):
    """Return a constant that may be overwritten: a copy if it is part of another array.

    Whole arrays of features have no other user: feature maps make new ones.
    """
    if array is None:
        return None
    is_part = array.untyped_storage().nbytes() > array.nbytes
    return array.detach().clone() if is_part else array.detach()


class _CausalProduct(torch.autograd.Function):
    """What `causal_product` returns; features are overwritten by their factors."""

    @staticmethod
    def forward(ctx, queries, query_scale, keys, key_scale, values, far, top):
        left, left_slopes = lifted(Rows(*map(_fixed, (queries, query_scale))), top[..., None, :])
        right, right_slopes = lowered(Rows(*map(_fixed, (keys, key_scale))), top)
        left, right, values = _folded(left), _folded(right), _folded(values)
        near = _triangles(left @ right.mT)
        earlier = right.mT @ values
        _, total = running(far, earlier.unflatten(0, (len(far), -1)))
        found = (left @ earlier).baddbmm_(near, values)
        ctx.save_for_backward(left, right, values, near, earlier, left_slopes, right_slopes)
        return _unfolded(found, queries), total

    @staticmethod
    def backward(ctx, by_found, by_total):
        _check_once()
        left, right, values, near, earlier, *slopes = ctx.saved_tensors
        by_found = _folded(by_found)
        later = left.mT @ by_found
        _, by_far = running(by_total, later.unflatten(0, (len(by_total), -1)), is_reverse=True)
        by_near = _triangles(by_found @ values.mT)
        by_left = (by_found @ earlier.mT).baddbmm_(by_near, right)
        by_right = (values @ later.mT).baddbmm_(by_near.mT, left)
        by_values = (right @ later).baddbmm_(near.mT, by_found)
        pairs = zip((by_left, by_right), slopes, strict=True)
        by_queries, by_keys = (_unfolded(part, own).mul_(own) for part, own in pairs)
        by_values = _unfolded(by_values, slopes[1])
        return by_queries, None, by_keys, None, by_values, by_far, None


def _folded(rows):
    """Return rows (..., n, c) in parts, with the heads of a set together: (parts, rows, c)."""
    fold = together if rows.ndim == 4 else in_parts  # of several query heads
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
