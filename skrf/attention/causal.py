"""Causal attention, in one shot or continued from a state: query i reads keys up to i.

Positions are taken in blocks. A block goes through `_prefix_sums.step` on one scale; where its
exponents rise too far for that, it is cut in two, down to single rows. Every denominator of a
positive map is then at least exp(-limit), so that nothing needs an epsilon. A later key changes
earlier outputs by rounding only.
"""

from .._arrays import cast
from .._sums import Sums, added, rise_limit, scale_keys, scale_queries
from . import _prefix_sums
from ._gates import blocks_of_gates, faded, gated
from ._groups import blocks_between


def step(before, queries, keys, values):
    """Return the `Step` of features of some positions after `Sums` on a scale that suits them.

    NumPy features are overwritten.
    """
    queries, _ = scale_queries(queries, before.top[..., None, :])
    keys, _ = scale_keys(keys, before.top)
    return _prefix_sums.step(before.sums, queries, keys, values)


def attend(group, out, sums=None, block_size=None, step=step):
    """Write causal attention of a `KeyGroup` to an `Output`, and return the sums over all keys.

    Parameters
    ----------
    group : KeyGroup
        The positions.
    out : Output
        What is written.
    sums : Sums, default=None
        Over the keys of earlier positions.
    block_size : int, default=None
        Number of positions whose features are held at a time.
    step : callable, default=step
        Computes the positions that share a scale: another library may have its own way.
    """
    size, n = group.rows_at_once(block_size), group.k.shape[-2]
    edges = [0, n - group.q.shape[-2], n]  # queries are those of the last positions
    if group.log_gates is None:
        for block in blocks_between(edges, size):
            sums = _after_block(group, out, block, None, sums, step)
        return sums
    for block in blocks_of_gates(group.log_gates, edges, size):
        gates, is_one = group.log_gates[..., block, :], block.stop - block.start == 1
        sums = None if sums is None else faded(sums, gates[..., :1, :])
        sums = _after_block(group, out, block, None if is_one else gates, sums, step)
        sums = sums if is_one else faded(sums, gates[..., 1:, :])
    return sums


def _after_block(group, out, block, gates, sums, step):
    """Write the attention of a block to the output, and return the sums including its keys."""
    values, first = group.values(block), group.k.shape[-2] - group.q.shape[-2]
    if block.stop <= first:  # queries are missing
        keys = group.key_features(block)
        return added(sums, keys if gates is None else gated(None, keys, gates)[1], values)
    of_queries = slice(block.start - first, block.stop - first)
    queries, keys = group.query_features(of_queries), group.key_features(block)
    if gates is not None:
        queries, keys = gated(queries, keys, gates)
    sums = Sums.before(keys, values) if sums is None else sums
    for rows, top in _safe_parts(sums, keys):
        sums = Sums(sums.at(top), top)
        result = step(sums, queries.part(rows), keys.part(rows), values[..., rows, :])
        start = of_queries.start
        out.put_quotients(slice(start + rows.start, start + rows.stop), result.products)
        sums = Sums(sums.sums + cast(result.total, sums.sums.dtype), top)
    return sums


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
