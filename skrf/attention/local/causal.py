"""Causal local attention: keys leave the window, become heavy, or are added to a summary."""

import math
from typing import Any, NamedTuple

import numpy as np

from ..._arrays import (
    cast,
    filled,
    in_library_of,
    is_array_api,
    like,
    namespace,
    take,
    to_host,
)
from .blocks import Block, Far, attend
from .selection import Statistics, moments_of, run, scores_of
from .summaries import Summary, bias_of, logs_of, running, summary_of

# Keys of a text that are heavy in any case: language models give them much weight at any length,
# whatever the mean query says.
_FIRST = 4


class Held(NamedTuple):
    """What is kept of earlier positions, which are as many in all sets.

    Parameters
    ----------
    count : int
        Number of positions.
    recent : array of shape (U, m, d + e)
        The last keys and values, all that are needed and less than a block more.
    far : array of shape (U, G, h + 1, d + e)
        Heavy keys in the order of positions, and the summary of all others beyond the window; h is
        0 while there are none, then `n_heavy`.
    bias : array of shape (U, G, h + 1)
        What is added to the products of queries and these keys.
    scores : array of shape (U, G, h)
        What the heavy keys were chosen by; -inf where there is no key.
    log_weight : array of shape (U, G)
        Logarithm of the weight of the summary.
    first_sums : array of shape (U, G, 4, d)
        Sums of queries, not scaled, their squares, keys and their squares, in the blocks that see
        all keys.
    n_first : array of shape (U,)
        How many positions these are.
    """

    count: int
    recent: Any
    far: Any
    bias: Any
    scores: Any
    log_weight: Any
    first_sums: Any
    n_first: Any

    @property
    def statistics(self):
        """The `Statistics` of the blocks that see all keys."""
        return Statistics.of(self.first_sums / self.n_first[:, None, None, None])


def nothing_held(q, rows):
    """Return the `Held` before the first position."""
    lead = q.shape[:2]
    return Held(
        0,
        rows[:, :0, :],
        filled(0.0, (*lead, 1, rows.shape[-1]), rows, rows.dtype),
        filled(-np.inf, (*lead, 1), rows, rows.dtype),
        filled(-np.inf, (*lead, 0), rows),
        filled(-np.inf, lead, rows),
        filled(0.0, (*lead, 4, q.shape[-1]), rows),
        filled(0.0, (lead[0],), rows),
    )


def with_room(held, n_heavy):
    """Return what is held with room for heavy keys, before those that there are."""
    missing = n_heavy - held.scores.shape[-1]
    if not missing:
        return held
    xp, (*lead, _, width) = namespace(held.far), held.far.shape
    far = filled(0.0, (*lead, missing, width), held.far, held.far.dtype)
    bias = filled(-np.inf, (*lead, missing), held.bias, held.bias.dtype)
    scores = filled(-np.inf, (*lead, missing), held.scores)
    return held._replace(
        far=xp.concat([far, held.far], axis=2),
        bias=xp.concat([bias, held.bias], axis=2),
        scores=xp.concat([scores, held.scores], axis=2),
    )


def attend_causal(sizes, held, q, rows, scale, known=None, first=0, attend=attend):
    """Return the outputs of the next positions with log-sum-exps, and what is `Held` after them.

    Parameters
    ----------
    sizes : Sizes
        The numbers of keys.
    held : Held
        Of the earlier positions.
    q : array of shape (U, G, n, d)
        Queries.
    rows : array of shape (U, n, d + e)
        Keys and values.
    scale : float
        Factor of the products of queries and keys.
    known : Statistics, default=None
        Of queries that are not scaled; None means those of the blocks that see all keys.
    first : int, default=0
        Number of positions whose outputs are not wanted.
    attend : callable
        Computes the blocks.
    """
    n, count, size = q.shape[-2], held.count, sizes.block
    end, held = count + n, _with_rows(held, rows)
    shift = held.recent.shape[1] - end  # from positions to rows
    if known is None and count < sizes.n_first:
        held = _with_first(held, q[..., : sizes.n_first - count, :], count + shift)
    starts = list(range(count - count % size, end, size))
    begun = [start for start in starts if start >= max(count, 1) and sizes.seen_from(start)]
    goes_on = starts[0] < count and bool(sizes.seen_from(starts[0]))
    n_without = len(starts) - len(begun) - goes_on
    before, far = held, None
    if begun:
        edges = [sizes.seen_from(begun[0] - size), *map(sizes.seen_from, begun)]
        known = (held.statistics if known is None else known).scaled(scale)
        rows_of_edges = [edge + shift for edge in edges]
        held, far = _retired(sizes, held, rows_of_edges, known, position=edges[0])
    if goes_on:
        far = _with_block(before, far)
    blocks = []
    for i, start in enumerate(starts):
        here, stop = max(start, count), min(start + size, end)
        if stop > count + first:
            near = slice(sizes.seen_from(start) + shift, stop + shift)
            number = i - n_without if i >= n_without else None
            blocks.append(Block(slice(here - count, stop - count), near, number))
    if blocks:
        q = cast(q, held.recent.dtype) * scale
        out = attend(q, held.recent, blocks, far, True)
    else:
        width = held.recent.shape[-1] - q.shape[-1] + 1
        out = filled(0.0, (*q.shape[:2], 0, width), held.recent, held.recent.dtype)
    held = held._replace(count=end)
    surplus = held.recent.shape[1] - sizes.n_needed(end)
    if surplus >= size or not count:
        held = held._replace(recent=_owned(held.recent[:, surplus:, :]))
    return out[..., out.shape[-2] - n + first :, :], held


def _owned(part):
    """Return a copy of a part of an array, which does not keep the whole."""
    return namespace(part).concat([part], axis=0)


def _with_rows(held, rows):
    """Return what is held with more rows; the count stays."""
    xp, before = namespace(rows), held.recent
    if before.dtype != rows.dtype:  # of chunks of which some need float64
        before, rows = (cast(array, xp.float64) for array in (before, rows))
    if before.shape[1]:
        rows = xp.concat([before, rows], axis=1)
    far, bias = (cast(array, rows.dtype) for array in (held.far, held.bias))
    return held._replace(recent=rows, far=far, bias=bias)


def _with_first(held, q, first):
    """Return what is held with more of the first positions, added in their order.

    The queries are those of the rows from `first` on.
    """
    xp, n = namespace(q), q.shape[-2]
    total = held.first_sums
    moments = moments_of(q, held.recent[:, first : first + n, : q.shape[-1]])
    # Slices would cost gradients of all positions each.
    parts = xp.unstack(moments, axis=2) if is_array_api(q) else np.moveaxis(moments, 2, 0)
    for part in parts:
        total = total + part
    return held._replace(first_sums=total, n_first=held.n_first + n)


def _retired(sizes, held, edges, known, position):
    """Return what is held after rows from edge to edge have left the window, and `Far` each time.

    They meet the weakest heavy keys, and the losers are added to the summary, from which nothing
    is ever subtracted.
    """
    held = with_room(held, sizes.n_heavy)
    rows, n_heavy, n_times = held.recent[:, edges[0] : edges[-1], :], sizes.n_heavy, len(edges) - 1
    scores, heavy, lost = _chosen(held, rows, edges, known, position)
    lost, is_key = _in_blocks(lost, scores, sizes.block)
    pool, own, shared = _pool(held, not sizes.seen_from(sizes.last_begun(held.count)))
    shared = shared + edges[0] - n_heavy
    # Numbers below n_heavy are those of heavy keys so far, others those of rows.
    places, lost = (np.where(n < n_heavy, own + n, shared + n) for n in (heavy, lost))
    losers = namespace(rows).reshape(take(pool, lost.ravel()), (*lost.shape, -1))
    summaries = _summarised(held, losers, is_key, known.mean, n_times)

    scores = np.take_along_axis(scores, heavy, axis=-1)
    bias = _bias_of(scores, summaries, known.mean, sizes.n_summaries)
    far = Far(pool, places, summaries.mean[..., None, :], cast(bias, rows.dtype))
    held = held._replace(
        far=far.rows(slice(n_times - 1, n_times))[:, :, 0, ...],
        bias=_owned(far.bias[:, :, -1, :]),
        scores=in_library_of(scores[:, :, -1].copy(), summaries.log_weight),
        log_weight=_owned(summaries.log_weight[..., -1]),
    )
    return held, far


def _chosen(held, rows, edges, known, position):
    """Return the scores of heavy keys so far and of rows, (U, G, 1, h + n), and who is heavy.

    That is, the numbers of the heavy keys at every edge but the first, (U, G, m, h), and those of
    all others in the order in which they lost, (U, G, n).
    """
    before = to_host(held.scores)
    scores = scores_of(known, rows[..., : known.mean.shape[-1]])
    scores[..., : max(_FIRST - position, 0)] = np.inf
    heavy, lost = run(before, scores, [edge - edges[0] for edge in edges[1:]])
    return np.concatenate([before, scores], axis=-1)[:, :, None, :], heavy, lost


def _in_blocks(lost, scores, size):
    """Return losers in parts of a block, (U, G, m, size), and which of them are keys.

    The first part is filled up in front by no key.
    """
    lost = lost[:, :, None, :]
    of_lost = np.take_along_axis(scores, lost, axis=-1)
    lost, of_lost = (
        np.pad(array, [(0, 0)] * 3 + [(-array.shape[-1] % size, 0)], constant_values=value)
        for array, value in ((lost, 0), (of_lost, -np.inf))
    )
    shape = *lost.shape[:2], -1, size
    return lost.reshape(shape), of_lost.reshape(shape) > -np.inf


def _summarised(held, losers, is_key, mean, n_times):
    """Return the last n summaries, of what is held with losers (U, G, m, size, d + e) so far."""
    xp = namespace(losers)
    logs = cast(logs_of(mean, losers[..., : mean.shape[-1]]), xp.float64)
    logs = xp.where(in_library_of(is_key, logs), logs, like(-np.inf, logs))
    parts = summary_of(logs[..., None, :], losers)
    parts = Summary(parts.log_weight[..., 0], parts.mean[..., 0, :])
    before = Summary(held.log_weight[..., None], held.far[:, :, -1:, :])
    log_weight, means = running(before, parts)
    return Summary(log_weight[..., -n_times:], means[..., -n_times:, :])


def _bias_of(scores, summaries, mean, n_summaries):
    """Return what is added to the products of queries with heavy keys and with the summary."""
    of_keys = in_library_of(np.where(scores > -np.inf, 0.0, -np.inf), summaries.log_weight)
    of_summary = bias_of(summaries, mean[:, :, None, :], mean.shape[-1])
    if not n_summaries:
        of_summary = filled(-np.inf, of_summary.shape, of_summary)
    return namespace(of_summary).concat([of_keys, of_summary[..., None]], axis=-1)


def _pool(held, is_first):
    """Return all keys and values without leading axes, and where those of every head begin.

    Parameters
    ----------
    held : Held
        With the rows.
    is_first : bool
        Whether there are no heavy keys yet.

    Returns
    -------
    pool : array of shape (p, d + e)
        Heavy keys if there are any, and the rows.
    own, shared : ndarray of int of shape (U, G, 1, 1)
        Numbers of the first heavy key, and of the first row.
    """
    xp, (n_sets, n_heads, n_far, width) = namespace(held.recent), held.far.shape
    heads = np.arange(n_sets * n_heads).reshape(n_sets, n_heads, 1, 1)
    shared, pool = held.recent.shape[1] * (heads // n_heads), xp.reshape(held.recent, (-1, width))
    if is_first:
        return pool, 0 * heads, shared
    far = xp.reshape(held.far, (-1, width))
    return xp.concat([far, pool], axis=0), n_far * heads, shared + far.shape[0]


def _with_block(held, far):
    """Return `Far` with a block before it that sees what is held."""
    xp, n_heavy = namespace(held.far), held.far.shape[2] - 1
    bias = held.bias[:, :, None, :]
    if far is None:
        return Far(held.far[:, :, None, :, :], None, None, bias)
    summary = held.far[:, :, None, n_heavy:, :]
    lead = held.far.shape[:2]
    numbers = np.arange(math.prod(held.far.shape[:3])).reshape(*lead, 1, -1)[..., :n_heavy]
    numbers = np.concatenate([numbers, far.numbers], axis=2)
    rest = (xp.concat(pair, axis=2) for pair in zip((summary, bias), far[2:], strict=True))
    return Far(far.pool, numbers, *rest)
