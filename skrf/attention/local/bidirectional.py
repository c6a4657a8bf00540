"""Bidirectional local attention: heavy keys and summaries of what is outside of every window.

Keys that are heavy for some window are among the candidates, those of the largest scores. Windows
move on, so that sums over all others before and after a window are running sums in both directions;
candidates outside of it that are not heavy there are added to them. Nothing is ever subtracted.
"""

from itertools import pairwise

import numpy as np

from ..._arrays import cast, filled, in_library_of, like, namespace, take
from .._groups import blocks
from .blocks import Block, Far, attend
from .selection import flat_numbers, ranked, scores_of, taken
from .summaries import (
    Summary,
    bias_of,
    clusters,
    logs_of,
    merged,
    no_summary,
    running,
    summary_of,
)

_BLOCKS_AT_ONCE = 64


def attend_around(sizes, q, rows, known, attend=attend):
    """Return the outputs with log-sum-exps; the parameters are those of `attend_causal`."""
    xp, n = namespace(q), q.shape[-2]
    starts = range(0, n, sizes.block)
    windows = [slice(0, n) if n <= sizes.units else sizes.around(start, n) for start in starts]
    if n <= sizes.units or not sizes.n_heavy + sizes.n_summaries:
        whole = [
            Block(slice(start, min(start + sizes.block, n)), window, None)
            for start, window in zip(starts, windows, strict=True)
        ]
        return attend(q, rows, whole, None, False)
    others, outs = _Others(sizes, rows, known, windows), []
    for some in blocks(len(starts), _BLOCKS_AT_ONCE):
        group = [
            Block(slice(start, min(start + sizes.block, n)), window, i)
            for i, (start, window) in enumerate(zip(starts[some], windows[some], strict=True))
        ]
        outs.append(attend(q, rows, group, others.beyond(some), False))
    return xp.concat(outs, axis=-2)


class _Others:
    """The keys outside of windows.

    Parameters
    ----------
    sizes : Sizes
        The numbers of keys.
    rows : array of shape (U, n, d + e)
        Keys and values.
    known : Statistics
        Of the scaled queries and the keys.
    windows : list of slice
        The windows of all blocks.
    """

    def __init__(self, sizes, rows, known, windows):
        xp, mean, width = namespace(rows), known.mean, known.mean.shape[-1]
        self.sizes, self.mean = sizes, mean
        self.edges = np.array([(window.start, window.stop) for window in windows])
        scores = scores_of(known, rows[..., :width])
        order = ranked(scores)
        self.places = order[..., : sizes.n_heavy + sizes.window]
        groups = blocks(len(windows), _BLOCKS_AT_ONCE)
        self.heavy = np.concatenate([self._chosen(some) for some in groups], axis=2)
        self.places = self.places[..., : max(self.heavy.max(initial=0) + 1, 1)]
        self.scores = np.take_along_axis(scores, self.places, axis=-1)
        rows = rows[:, None, :, :]
        self.pool = xp.reshape(rows, (-1, rows.shape[-1]))
        self.numbers = flat_numbers(rows, self.places)
        self.none = filled(0.0, (1, 1, 1, 0, rows.shape[-1]), rows, rows.dtype)
        if not sizes.n_summaries:
            return
        self.candidates = taken(rows, self.places)
        is_in = clusters(rows[:, 0, :, :width], sizes.n_summaries)[:, None, :, :]
        logs = logs_of(mean, rows[..., :width])
        logs = xp.where(is_in, logs[..., None], like(-np.inf, logs))
        self.logs = xp.matrix_transpose(taken(logs, self.places))  # (U, G, s, C)
        is_other = np.ones(scores.shape, bool)
        np.put_along_axis(is_other, self.places, False, axis=-1)
        logs = xp.where(in_library_of(is_other, mean)[..., None], logs, like(-np.inf, logs))
        self.starts, self.stops = map(np.unique, self.edges.T)
        self.before = _running(logs, rows, list(pairwise(self.starts)))
        self.after = _running(logs, rows, list(pairwise(self.stops))[::-1])

    def _is_outside(self, some):
        """Return which candidates are outside of the windows of some blocks, (U, G, m, C)."""
        starts, stops = self.edges[some].T[:, :, None]
        places = self.places[:, :, None, :]
        return (places < starts) | (places >= stops)

    def _chosen(self, some):
        """Return which candidates are heavy for some blocks, (U, G, m, h): the first outside."""
        is_outside = self._is_outside(some)
        is_heavy = is_outside & (is_outside.cumsum(axis=-1) <= self.sizes.n_heavy)
        return np.nonzero(is_heavy)[-1].reshape(*is_heavy.shape[:3], self.sizes.n_heavy)

    def beyond(self, some):
        """Return the `Far` of some blocks."""
        xp, sizes, mean = namespace(self.pool), self.sizes, self.mean
        heavy = self.heavy[:, :, some]
        scores, numbers = (
            np.take_along_axis(array[:, :, None, :], heavy, axis=-1)
            for array in (self.scores, self.numbers)
        )
        bias = in_library_of(np.where(scores > -np.inf, 0.0, -np.inf), mean)
        if not sizes.n_summaries:
            none = xp.broadcast_to(self.none, (*heavy.shape[:3], *self.none.shape[-2:]))
            return Far(self.pool, numbers, none, cast(bias, self.pool.dtype))
        is_rest = self._is_outside(some)
        np.put_along_axis(is_rest, heavy, False, axis=-1)
        is_rest = in_library_of(is_rest, mean)[..., None, :]
        logs = xp.where(is_rest, self.logs[:, :, None, :, :], like(-np.inf, self.logs))
        rest = summary_of(logs, self.candidates[:, :, None, :, :])
        starts, stops = self.edges[some].T
        n_before = np.searchsorted(self.starts, starts)
        n_after = len(self.stops) - 1 - np.searchsorted(self.stops, stops)
        outer = merged(_at(self.before, n_before), _at(self.after, n_after))
        summaries = merged(outer, rest)
        of_summaries = bias_of(summaries, mean[:, :, None, None, :], mean.shape[-1])
        bias = xp.concat([bias, of_summaries], axis=-1)
        return Far(self.pool, numbers, summaries.mean, cast(bias, self.pool.dtype))


def _at(summaries, numbers):
    """Return some of many summaries (U, G, s, m), as (U, G, m, s)."""
    xp = namespace(summaries.mean)
    return Summary(*(xp.moveaxis(take(array, numbers, axis=3), 3, 2) for array in summaries))


def _running(logs, rows, pieces):
    """Return the summaries of no piece of the rows, of the first one, of the first two and so on.

    Parameters
    ----------
    logs : array of shape (U, G, n, s)
        Logarithms of the weights of the rows in every summary.
    rows : array of shape (U, 1, n, d + e)
        Rows.
    pieces : list of (int, int)
        First row and end of each.
    """
    xp, (*lead, _, n_summaries) = namespace(rows), logs.shape
    before = no_summary((*lead, n_summaries, 1), rows.shape[-1], rows)
    if not pieces:
        return before
    numbers = np.full((len(pieces), max(stop - start for start, stop in pieces)), -1)
    for i, (start, stop) in enumerate(pieces):
        numbers[i, : stop - start] = np.arange(start, stop)
    flat = np.maximum(numbers, 0).ravel()
    logs, rows = (
        xp.reshape(take(array, flat, axis=2), (*array.shape[:2], *numbers.shape, array.shape[-1]))
        for array in (logs, rows)
    )
    logs = xp.where(in_library_of(numbers >= 0, logs)[..., None], logs, like(-np.inf, logs))
    parts = summary_of(xp.matrix_transpose(logs), rows)
    parts = (xp.moveaxis(array, 2, 3) for array in parts)
    return running(before, Summary(*parts))
