"""Blocks of queries: one softmax over the keys near a block, heavy keys and summaries."""

from typing import Any, NamedTuple

import numpy as np

from ..._arrays import arithmetic, cast, in_library_of, like, namespace
from ..._sums import exp_max_one, transposed
from .selection import choose, scores_of, taken
from .summaries import Summary, clusters, far_of, filled, is_member, merged, no_summary, summary_of


class Held(NamedTuple):
    """What causal attention keeps of earlier positions, which are as many in all sets.

    Parameters
    ----------
    count : int
        Number of positions.
    rows : array of shape (U, m, d + e)
        The last keys and values.
    is_key : array of bool of shape (U, m) or None
        Which of them are no padding; None is all.
    heavy : array of shape (U, G, n_heavy, d + e)
        Heavy keys and their values, in the order of positions.
    scores : array of shape (U, G, n_heavy)
        Products with the mean query; -inf where there is no key yet.
    summary : Summary
        Of all other keys beyond the window, (U, G, 1).
    query_sum : array of shape (U, G, d)
        Sum of the scaled queries of the first block.
    n_queries : array of shape (U, 1, 1)
        How many these are.
    """

    count: int
    rows: Any
    is_key: Any
    heavy: Any
    scores: Any
    summary: Summary
    query_sum: Any
    n_queries: Any


def nothing_held(sizes, q, rows):
    """Return the `Held` before the first position."""
    n_sets, n_heads, _, width = q.shape
    lead, n_columns = (n_sets, n_heads), rows.shape[-1]

    def full(value, *shape, dtype=None):
        return filled(value, shape, rows, dtype)

    return Held(
        0,
        rows[:, :0, :],
        None,
        full(0.0, *lead, sizes.n_heavy, n_columns, dtype=rows.dtype),
        full(-np.inf, *lead, sizes.n_heavy),
        no_summary((*lead, 1), n_columns, rows),
        full(0.0, *lead, width),
        full(0.0, n_sets, 1, 1),
    )


def attend_causal(sizes, held, q, rows, is_key, mean=None, first=0):
    """Return the outputs of the next positions, and what is `Held` after them.

    Parameters
    ----------
    sizes : Sizes
        The numbers of keys.
    held : Held
        Of the earlier positions.
    q : array of shape (U, G, n, d)
        Scaled queries.
    rows : array of shape (U, n, d + e)
        Keys and values.
    is_key : array of bool of shape (U, n) or None
        Which keys are no padding.
    mean : array of shape (U, G, d), default=None
        Mean query; None is that of the first block.
    first : int, default=0
        Number of positions whose outputs are not wanted.
    """
    xp, n, width = namespace(q), q.shape[-2], q.shape[-1]
    held, far, outs = _with_rows(held, rows, is_key), None, []
    shift = held.rows.shape[-2] - n - held.count  # from positions to rows
    position, end = held.count, held.count + n
    while position < end:
        start = position - position % sizes.block
        stop = min(start + sizes.block, end)
        queries = q[..., position - held.count : stop - held.count, :]
        if start == 0:
            held = _with_queries(held, queries, slice(position + shift, stop + shift))
        elif sizes.seen_from(start):
            if position == start:
                before = slice(sizes.seen_from(start - sizes.block), sizes.seen_from(start))
                of_rows = slice(before.start + shift, before.stop + shift)
                held = _retired(held, of_rows, _mean_of(held, mean), width)
                far = None
            if far is None:
                summary = held.summary if sizes.n_summaries else None
                far = far_of(held.heavy, held.scores, summary, _mean_of(held, mean), width)
        if stop > held.count + first:
            near = slice(sizes.seen_from(start) + shift, stop + shift)
            outs.append(attended(queries, held.rows, held.is_key, near, far, is_causal=True))
        position = stop
    after = slice(held.rows.shape[-2] - sizes.n_needed(end), None)
    is_key = None if held.is_key is None else held.is_key[:, after]
    held = held._replace(count=end, rows=held.rows[:, after, :], is_key=is_key)
    return xp.concat(outs, axis=-2), held


def _with_rows(held, rows, is_key):
    """Return what is held with more rows; the count stays."""
    xp, before = namespace(rows), held.rows
    dtype = before.dtype if before.dtype == xp.float64 else rows.dtype
    before, heavy = (cast(array, dtype) for array in (before, held.heavy))
    if is_key is not None or held.is_key is not None:
        parts = (held.is_key, before), (is_key, rows)
        is_key = xp.concat(
            [
                xp.ones_like(array[..., 0], dtype=xp.bool) if known is None else known
                for known, array in parts
            ],
            axis=-1,
        )
    rows = xp.concat([before, cast(rows, dtype)], axis=-2) if before.shape[-2] else rows
    return held._replace(rows=rows, is_key=is_key, heavy=heavy)


def _with_queries(held, queries, of_rows):
    """Return what is held with queries of the first block, added in the order of positions."""
    xp, total, number = namespace(queries), held.query_sum, held.n_queries
    queries, n = cast(queries, xp.float64), queries.shape[-2]
    is_query = xp.ones_like(queries[:, 0, :, 0])
    if held.is_key is not None:
        is_query = cast(held.is_key[:, of_rows], xp.float64)
    for i in range(n):
        factor = is_query[:, i, None, None]
        total, number = total + factor * queries[..., i, :], number + factor
    return held._replace(query_sum=total, n_queries=number)


def _mean_of(held, mean):
    return held.query_sum / held.n_queries if mean is None else mean


def _retired(held, of_rows, mean, width):
    """Return what is held after some rows have left the window.

    They meet the weakest heavy keys, and the losers are added to the summary, from which nothing
    is ever subtracted.
    """
    rows = held.rows[:, of_rows, :]
    is_key = None if held.is_key is None else held.is_key[:, of_rows]
    xp, n_heavy = namespace(rows), held.heavy.shape[-2]
    scores = xp.concat([held.scores, scores_of(mean, rows[..., :width], is_key)], axis=-1)
    shape = *held.heavy.shape[:2], *rows.shape[1:]
    rows = xp.concat([held.heavy, xp.broadcast_to(rows[:, None, :, :], shape)], axis=-2)
    winners, losers = choose(scores, n_heavy)
    lost, of_lost = cast(taken(rows, losers), xp.float64), taken(scores[..., None], losers)[..., 0]
    logs = logs_of(mean, lost[..., :width], of_lost)
    return held._replace(
        heavy=taken(rows, winners),
        scores=taken(scores[..., None], winners)[..., 0],
        summary=merged(held.summary, summary_of(logs[..., None, :], lost)),
    )


def logs_of(mean, keys, scores):
    """Return the scores of keys (U, G, n, d), which may need gradients; -inf where they are."""
    logs = (keys @ mean[..., None])[..., 0]
    return namespace(logs).where(scores == -np.inf, scores, logs)


def attend_around(sizes, q, rows, is_key, mean):
    """Return the outputs of bidirectional attention, given what `attend_causal` is given."""
    xp, n, width = namespace(q), q.shape[-2], q.shape[-1]
    if n <= sizes.units:
        return attended(q, rows, is_key, slice(0, n), None)
    others = _Others(sizes, rows, is_key, mean, width)
    outs = []
    for start in range(0, n, sizes.block):
        near = sizes.around(start, n)
        queries = q[..., start : start + sizes.block, :]
        outs.append(attended(queries, rows, is_key, near, others.beyond(near)))
    return xp.concat(outs, axis=-2)


class _Others:
    """The keys outside of every window.

    The keys of the largest scores, as many as are heavy and in a window, are candidates. Windows
    move on, so that sums over all others before and after each come from running sums in both
    directions; candidates outside of a window that are not heavy there are added to them.
    """

    def __init__(self, sizes, rows, is_key, mean, width):
        xp, n = namespace(rows), rows.shape[-2]
        self.sizes, self.mean, self.width = sizes, mean, width
        scores = scores_of(mean, rows[..., :width], is_key)
        order = xp.argsort(-scores, axis=-1, stable=True)
        self.places = order[..., : sizes.n_heavy + sizes.window]
        shape = *scores.shape[:2], *rows.shape[1:]
        self.candidates = taken(xp.broadcast_to(rows[:, None, :, :], shape), self.places)
        self.scores = taken(scores[..., None], self.places)[..., 0]
        if not sizes.n_summaries:
            return
        labels = clusters(rows[..., :width], is_key, sizes.n_summaries)
        is_in = xp.matrix_transpose(is_member(labels, sizes.n_summaries))[:, None, :, :]
        wide = cast(rows, xp.float64)[:, None, :, :]
        of_all = logs_of(mean, xp.broadcast_to(wide[..., :width], (*shape[:3], width)), scores)
        below = like(-np.inf, of_all)
        logs = xp.where(is_in, of_all[..., None, :], below)  # (U, G, s, n)
        of_candidates = taken(xp.matrix_transpose(logs), self.places)
        self.logs = xp.matrix_transpose(of_candidates)
        is_candidate = xp.argsort(order, axis=-1) < self.places.shape[-1]
        logs = xp.where(is_candidate[..., None, :], below, logs)
        near = [sizes.around(start, n) for start in range(0, n, sizes.block)]
        self.before = _running(logs, wide, [0, *(part.start for part in near)])
        self.after = _running(logs, wide, [n, *(part.stop for part in near[::-1])])

    def beyond(self, near):
        """Return the `Far` of a window."""
        xp = namespace(self.candidates)
        is_outside = (self.places < near.start) | (self.places >= near.stop)
        order = xp.argsort(cast(~is_outside, xp.int64), axis=-1, stable=True)
        first = order[..., : self.sizes.n_heavy]
        heavy, scores = taken(self.candidates, first), taken(self.scores[..., None], first)[..., 0]
        if not self.sizes.n_summaries:
            return far_of(heavy, scores, None, self.mean, self.width)
        is_rest = is_outside & (xp.argsort(order, axis=-1) >= self.sizes.n_heavy)
        logs = xp.where(is_rest[..., None, :], self.logs, like(-np.inf, self.logs))
        rest = summary_of(logs, cast(self.candidates, xp.float64))
        outer = merged(self.before[near.start], self.after[near.stop])
        return far_of(heavy, scores, merged(outer, rest), self.mean, self.width)


def _running(logs, rows, edges):
    """Return the summaries of all rows from the first edge to every edge, by edge."""
    found = {edges[0]: no_summary(logs.shape[:-1], rows.shape[-1], rows)}
    for a, b in zip(edges[:-1], edges[1:], strict=True):
        if b not in found:
            part = slice(min(a, b), max(a, b))
            more = summary_of(logs[..., part], rows[..., part, :])
            found[b] = merged(found[a], more)
    return found


def attended(q, rows, is_key, near, far, is_causal=False):
    """Return the attention of queries (U, G, n, d) to a slice of rows and to what is far.

    If it is causal, the last of these rows are the queries' own.
    """
    xp, (n_sets, n_heads, n, width) = namespace(q), q.shape
    rows = rows[:, near, :]
    m = rows.shape[-2]
    stacked = xp.reshape(cast(q, rows.dtype), (n_sets, n_heads * n, width))
    logits = xp.reshape(stacked @ transposed(rows[..., :width]), (n_sets, n_heads, n, m))
    do = arithmetic(logits)
    if is_causal and n > 1:
        is_later = np.arange(m) > np.arange(m - n, m)[:, None]
        logits = do.fill(logits, in_library_of(is_later, logits), -np.inf)
    if is_key is not None:
        logits = do.fill(logits, ~is_key[:, None, None, near], -np.inf)
    if far is not None:
        beyond = cast(q, rows.dtype) @ transposed(far.keys) + far.bias[..., None, :]
        logits = xp.concat([logits, beyond], axis=-1)
    weights = exp_max_one(logits)
    total = xp.sum(weights, axis=-1, keepdims=True)
    # Divide before multiplying by the values, which may be near the largest float.
    weights = arithmetic(weights).divide(weights, xp.where(total == 0, like(1.0, total), total))
    stacked = xp.reshape(weights[..., :m], (n_sets, n_heads * n, m))
    out = xp.reshape(stacked @ rows[..., width:], (n_sets, n_heads, n, -1))
    return out if far is None else out + weights[..., m:] @ far.values
