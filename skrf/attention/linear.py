"""Attention in time linear in the length: sums over keys, read by queries, on the log scale.

Every feature f has the sum ``S_f = sum_j k_jf [1, v_j]``; query i reads ``sum_f q_if S_f`` and
divides by its first column. Exponents are those of `skrf._sums`.

Causal attention takes positions in blocks, and query i reads keys up to i. What precedes a block is
held in `Sums`, on one scale; where exponents rise too far for that, the block is cut in two, down
to single rows. Every denominator of a positive map is then at least exp(-limit), so that nothing
needs an epsilon. A later key changes earlier outputs by rounding only. Within a block, parts of
positions have triangles of products; all that is earlier than a part enters as sums.
"""

from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from .._arrays import arithmetic, cast, constant, filled, is_array_api, is_on_gpu, namespace
from .._sums import Sums, added, rise_limit, scale_keys, scale_queries, transposed
from ._gates import blocks_of_gates, faded, gated
from ._groups import blocks, blocks_between

_PART_ROWS, _ARRAY_API_PART_ROWS = 128, 64  # of a triangular product, half of which is for nothing
_ALONE = 64  # positions of a call up to which their pairs cost less than sums of features


class Block(NamedTuple):
    """What positions of causal attention that share a scale read, and what they add.

    Parameters
    ----------
    products : array of shape (..., G, n, e + 1)
        Denominators and numerators of the positions.
    level : array of shape (..., G, n, 1)
        Log scale of the products of every position.
    total : array of shape (..., M, e + 1) or None
        Sums over the keys of these positions; None if nothing comes before or after them.
    """

    products: Any
    level: Any
    total: Any


def key_sums(group, size):
    """Return the `Sums` over all keys."""
    sums = None
    for rows in blocks(group.k.shape[-2], size):
        sums = added(sums, group.key_features(rows), group.values(rows))
    return sums


def attend_to_all(group, out, block_size=None):
    """Write the attention of all queries of a `KeyGroup` to all keys to an `Output`."""
    size = group.rows_at_once(block_size)
    sums = key_sums(group, size)
    sums = sums.balanced() if group.is_positive else sums
    if sums.top.ndim > 1:  # an axis for the query heads of a set
        sums = Sums(sums.sums[..., None, :, :], sums.top[..., None, :])
    for rows in blocks(group.q.shape[-2], size):
        out.put(*sums.weigh(group.query_features(rows)))


def attend_to_earlier(group, out, sums, block_size, goes_on=True):
    """Write causal attention of a `KeyGroup` to an `Output`, and return the sums over all keys.

    Parameters
    ----------
    group : KeyGroup
        The positions.
    out : Output
        What is written.
    sums : Sums or None
        Over the keys of earlier positions.
    block_size : int or None
        Number of positions whose features are held at a time.
    goes_on : bool, default=True
        Whether the sums are wanted.
    """
    n, gates = group.k.shape[-2], group.log_gates
    if n == 1 and gates is None:  # a step
        return _after(group, out, slice(0, 1), None, sums)
    size = group.rows_at_once(block_size)
    edges = [0, n - group.q.shape[-2], n]  # queries are those of the last positions
    if sums is None and not goes_on and edges[1] == 0 and 1 < n <= min(size, _ALONE):
        if gates is None and _attend_alone(group, out):
            return None
    if gates is None:
        for rows in blocks_between(edges, size):
            sums = _after(group, out, rows, None, sums)
        return sums
    for rows in blocks_of_gates(gates, edges, size):
        sums = None if sums is None else faded(sums, gates[..., rows.start : rows.start + 1])
        own = None if rows.stop - rows.start == 1 else gates[..., rows]
        sums = _after(group, out, rows, own, sums)
        sums = sums if own is None else faded(sums, own[..., 1:])
    return sums


def _after(group, out, block, gates, sums):
    """Write the attention of a block to the output, and return the sums including its keys."""
    first = group.k.shape[-2] - group.q.shape[-2]
    queries, keys, values, fall = None, group.key_features(block), group.values(block), 0.0
    if block.start >= first:  # or else queries are missing
        queries = group.query_features(slice(block.start - first, block.stop - first))
    if gates is not None:
        keys, fall = gated(keys, gates)
    if queries is None:
        return added(sums, keys, values)
    sums = Sums.before(keys, values) if sums is None else sums
    if block.stop - block.start == 1:
        products, level, sums = position_of(sums, queries, keys, values)
        out.put(products, level)
        return sums
    for rows, top in _safe_parts(sums, keys):
        sums = Sums(sums.at(top), top)
        part = block_of(sums, queries.part(rows), keys.part(rows), values[..., rows, :])
        own_fall = fall if gates is None else fall[..., rows, :]
        out.put(part.products, part.level + own_fall)
        sums = Sums(sums.sums + cast(part.total, sums.sums.dtype), top)
    return sums


def _attend_alone(group, out):
    """Write the attention of a few positions without any before or after them, if one scale suits.

    Return whether it does.
    """
    rows = slice(0, group.k.shape[-2])
    keys = group.key_features(rows)
    exponents = constant(keys.exponents[..., 0, :])
    nothing = Sums(None, filled(-np.inf, exponents.shape, exponents))
    part, top = next(_safe_parts(nothing, keys))
    if part != rows:
        return False
    block = block_of(Sums(None, top), group.query_features(rows), keys, group.values(rows))
    out.put(block.products, block.level)
    return True


def _safe_parts(sums, keys):
    """Yield (rows, exponents at their end), where exponents rise by at most the limit within rows.

    Every feature then has a key of exponent top - limit or more before any row of the part.
    """
    limit = rise_limit(keys.values)
    waiting = [slice(0, keys.values.shape[-2])]
    while waiting:
        rows = waiting.pop()
        block = keys.part(rows)
        top = sums.raised(block)
        if rows.stop - rows.start > 1 and sums.rise(block, top) > limit:
            middle = (rows.start + rows.stop) // 2
            waiting += [slice(middle, rows.stop), slice(rows.start, middle)]
            continue
        yield rows, top
        sums = Sums(sums.sums, top)


def position_of(before, queries, keys, values):
    """Return what a single position reads, the log scales of that, and the sums including its key.

    The parameters are those of `block_of`, but `before` may be at any exponents.
    """
    xp, exponents = namespace(values), keys.exponents[..., 0, :]
    highest = cast(constant(exponents), xp.float64)
    top = xp.maximum(before.top, highest)
    level = xp.where(top > -np.inf, top, xp.zeros_like(top))
    fall, earlier = before.top - level, before.sums
    if xp is not np or fall.any():
        earlier = earlier * xp.exp(fall)[..., None]
    factors = xp.exp(exponents - level)
    if not keys.holds_logs:
        factors = keys.values[..., 0, :] * factors
    sums = factors[..., None] * values
    sums = arithmetic(sums).add(sums, earlier)
    exponents = queries.exponents + top[..., None, None, :]
    highest = xp.max(constant(exponents), axis=-1, keepdims=True)
    level = xp.where(highest > -np.inf, highest, xp.zeros_like(highest))
    factors = xp.exp(exponents - level)
    if not queries.holds_logs:
        factors = queries.values * factors
    return factors @ sums[..., None, :, :], level, Sums(sums, top)


def block_of(before, queries, keys, values):
    """Return the `Block` of features of some positions.

    Parameters
    ----------
    before : Sums
        Over the keys of earlier positions, at exponents that suit these; without sums if there are
        no others.
    queries, keys : Rows
        Features of shapes (..., G, n, M) and (..., n, M); NumPy's are overwritten.
    values : array of shape (..., n, e + 1)
        [weight, values].
    """
    queries, _, level = scale_queries(queries, before.top[..., None, :])
    keys, _ = scale_keys(keys, before.top)
    n, values = values.shape[-2], in_parts(cast(values, keys.dtype))
    queries, keys = heads_together(queries), in_parts(keys)
    turned = transposed(keys)
    products, total = _lower(queries @ turned) @ values, None
    if before.sums is not None:
        earlier, total = running(cast(before.sums, values.dtype), turned @ values)
        products = arithmetic(values).add(products, queries @ earlier)
    xp, c = namespace(products), values.shape[-2]
    products = xp.reshape(products, (*products.shape[:-2], -1, c, products.shape[-1]))
    return Block(as_rows(xp.moveaxis(products, -3, -4))[..., :n, :], level, total)


def in_parts(array):
    """Return rows (..., n, c) in parts (..., B, size, c), the last one padded with zeros."""
    *leading, n, width = array.shape
    size = _ARRAY_API_PART_ROWS if is_array_api(array) else _PART_ROWS
    n_parts = -(-n // size)
    if n_parts > 1 and n_parts * size > n:
        xp = namespace(array)
        zeros = xp.zeros_like(array[..., :1, :])
        zeros = xp.broadcast_to(zeros, (*leading, n_parts * size - n, width))
        array = xp.concat([array, zeros], axis=-2)
    return namespace(array).reshape(array, (*leading, n_parts, -1, width))


def heads_together(array):
    """Return rows of heads (..., G, n, c) in parts, those of all heads together."""
    return as_rows(namespace(array).moveaxis(in_parts(array), -4, -3))


def as_rows(array):
    """Return the rows of all parts, or of all heads, (..., B, n, c), as one axis (..., B n, c)."""
    shape = (*array.shape[:-3], array.shape[-3] * array.shape[-2], array.shape[-1])
    return namespace(array).reshape(array, shape)


def running(first, products):
    """Return sums over what comes before every part, and over all parts alone.

    Parameters
    ----------
    first : array of shape (..., M, c)
        What comes before the first part.
    products : array of shape (..., B, M, c)
        Sums over each part; NumPy arrays are overwritten.
    """
    if products.shape[-3] == 1:
        return first[..., None, :, :], products[..., 0, :, :]
    if is_on_gpu(products):
        xp = namespace(products)
        sums = xp.cumulative_sum(products, axis=-3, dtype=products.dtype)
        first = first[..., None, :, :]
        return xp.concat([first, first + sums[..., :-1, :, :]], axis=-3), sums[..., -1, :, :]
    if is_array_api(products):  # the gradient of a cumulative sum would take twice as long
        xp = namespace(products)
        earlier = accumulate(xp.unstack(products, axis=-3)[:-1], initial=first)
        return xp.stack(list(earlier), axis=-3), xp.sum(products, axis=-3)
    total = 0.0
    for i in range(products.shape[-3]):
        before, total = total, total + products[..., i, :, :]
        products[..., i, :, :] = first + before
    return products, total


def _lower(products):
    """Return products (..., G c, c) with 0 for later keys; NumPy's are overwritten."""
    xp, c = namespace(products), products.shape[-1]
    heads = xp.reshape(products, (*products.shape[:-2], -1, c, c))
    if is_array_api(products):
        return xp.reshape(xp.tril(heads), products.shape)
    heads *= _ones_below(c, products.dtype)
    return products


@lru_cache(maxsize=16)
def _ones_below(n, dtype):
    return np.tri(n, dtype=dtype)
