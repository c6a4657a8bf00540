"""Blocks of queries: one softmax over the keys near a block, heavy keys and summaries."""

import math
from typing import Any, NamedTuple

import numpy as np

from ..._arrays import (
    Pure,
    arithmetic,
    constant,
    in_library_of,
    namespace,
    rows_at_once,
    take,
)
from ..._sums import transposed


class Block(NamedTuple):
    """Positions that see the same keys exactly, or several such blocks in a row.

    Parameters
    ----------
    queries : slice
        The queries.
    near : slice
        The rows of keys and values near them; causal ones end with their own.
    far : int or None
        Which of the sets of keys beyond is theirs; that of the first block.
    count : int, default=1
        Number of blocks, which are equally long and see windows that move on by this length.
    """

    queries: slice
    near: slice
    far: int | None
    count: int = 1

    @property
    def length(self):
        """Queries of every block."""
        return (self.queries.stop - self.queries.start) // self.count

    @property
    def n_near(self):
        """Rows that every block sees exactly."""
        return self.near.stop - self.near.start - (self.count - 1) * self.length

    def with_next(self, block):
        """Return the `Block` of all of these and the next one, or None if it does not fit."""
        count, length = self.count, self.length
        expected = Block(
            slice(self.queries.stop, self.queries.stop + length),
            slice(self.near.start + count * length, self.near.stop + length),
            None if self.far is None else self.far + count,
        )
        if block != expected:
            return None
        queries, near = (
            slice(ours.start, theirs.stop) for ours, theirs in zip(self[:2], block[:2], strict=True)
        )
        return Block(queries, near, self.far, count + 1)

    def windows(self, rows):
        """Return what every block sees of rows (U, n, ...): (U * count, n_near, ...)."""
        rows = rows[:, self.near, ...]
        if self.count == 1:
            return rows
        starts = self.length * np.arange(self.count)
        numbers = starts[:, None] + np.arange(self.n_near)
        rows = take(rows, numbers.ravel(), axis=1)
        return namespace(rows).reshape(rows, (-1, self.n_near, *rows.shape[2:]))

    def split(self, rows):
        """Return what belongs to every query of rows (U, G, n, w): (U * count, G, length, w)."""
        rows = rows[..., self.queries, :]
        if self.count == 1:
            return rows
        (*lead, _, width), size = rows.shape, (self.count, self.length)
        return _with_sets(namespace(rows).reshape(rows, (*lead, *size, width)))

    def joined(self, rows):
        """Return rows (U * count, G, length, w) as (U, G, n, w), which undoes `split`."""
        if self.count == 1:
            return rows
        n_heads, length, width = rows.shape[1:]
        return namespace(rows).reshape(self.apart(rows), (-1, n_heads, self.count * length, width))

    @property
    def all_far(self):
        """Which of the sets of keys beyond are theirs, as a slice."""
        return slice(self.far, self.far + self.count)

    def apart(self, array):
        """Return an array (U * count, G, ...) as (U, G, count, ...)."""
        xp, (_, *rest) = namespace(array), array.shape
        return xp.moveaxis(xp.reshape(array, (-1, self.count, *rest)), 1, 2)


def _with_sets(array):
    """Return an array (U, G, m, ...) as (U * m, G, ...)."""
    if array.shape[2] == 1:
        return array[:, :, 0, ...]
    xp, (_, n_heads, _, *rest) = namespace(array), array.shape
    return xp.reshape(xp.moveaxis(array, 2, 1), (-1, n_heads, *rest))


class Far(NamedTuple):
    """What blocks see beyond their windows, one softmax term for each.

    Parameters
    ----------
    pool : array of shape (p, d + e) or (U, G, m, h + s, d + e)
        Keys and values, of which a block sees those of its numbers, or else its own.
    numbers : ndarray of int of shape (U, G, m, h) or None
        Heavy keys of m blocks, on the host.
    summaries : array of shape (U, G, m, s, d + e) or None
        Keys and values that stand for others.
    bias : array of shape (U, G, m, h + s)
        What is added to the products of queries and keys; -inf where there is none.
    """

    pool: Any
    numbers: np.ndarray | None
    summaries: Any
    bias: Any

    def rows(self, some):
        """Return the keys and values of a slice of the blocks, (U, G, m, h + s, d + e)."""
        if self.numbers is None:
            return self.pool[:, :, some, ...]
        numbers = self.numbers[:, :, some]
        heavy = take(self.pool, numbers.ravel())
        heavy = namespace(heavy).reshape(heavy, (*numbers.shape, heavy.shape[-1]))
        return namespace(heavy).concat([heavy, self.summaries[:, :, some, ...]], axis=-2)


class Terms(NamedTuple):
    """Some terms of the softmax of a block.

    Parameters
    ----------
    logs : array of shape (U, G, n, m)
        Logarithms of the weights; -inf for keys that a query does not see.
    keys : array of shape (U, m, d) or (U, G, m, d)
        Keys.
    values : array of shape (U, m, e) or (U, G, m, e)
        Values.
    """

    logs: Any
    keys: Any
    values: Any


def attend(q, rows, blocks, far, is_causal):
    """Return the outputs of all blocks and their log-sum-exps, side by side: (U, G, n, e + 1).

    Parameters
    ----------
    q : array of shape (U, G, n, d)
        Scaled queries.
    rows : array of shape (U, m, d + e)
        Keys and values.
    blocks : list of Block
        The blocks, which cover the last queries.
    far : Far or None
        What they see beyond.
    is_causal : bool
        Whether queries do not see later rows.
    """
    xp, outs = namespace(q), []
    for block in together(q, blocks):
        sums, total, top = read(terms_of(q, rows, block, far, is_causal))
        outs.append(block.joined(xp.concat([sums / total, xp.log(total) + top], axis=-1)))
    return outs[0] if len(outs) == 1 else xp.concat(outs, axis=-2)


def together(q, blocks):
    """Return blocks joined so far as this saves time: on a GPU, where an operation costs more."""
    size = max(block.length * block.n_near for block in blocks)
    most = rows_at_once(q, q.shape[0] * q.shape[1] * size, usual=1)
    if most == 1:
        return blocks
    found = blocks[:1]
    for block in blocks[1:]:
        joined = found[-1].with_next(block) if found[-1].count < most else None
        if joined is None:
            found.append(block)
        else:
            found[-1] = joined
    return found


def terms_of(q, rows, block, far, is_causal):
    """Return the `Terms` of a block near its queries, and of what it sees beyond.

    Blocks in a row count as sets: what is (U, ...) here is then (U * count, ...).
    """
    q, near = block.split(q), block.windows(rows)
    (n, width), m = q.shape[-2:], near.shape[-2]
    keys = near[..., :width]
    logs = matmul(q, transposed(keys))
    do = arithmetic(logs)
    if is_causal and n > 1:
        is_later = in_library_of(np.triu(np.ones((n, n), bool), 1), logs)
        own = do.fill(logs[..., m - n :], is_later, -np.inf)
        if do is Pure:
            logs = namespace(q).concat([logs[..., : m - n], own], axis=-1)
    terms = [Terms(logs, keys, near[..., width:])]
    if block.far is not None:
        bias = _with_sets(far.bias[:, :, block.all_far, :])
        beyond = _with_sets(far.rows(block.all_far))
        keys = beyond[..., :width]
        logs = matmul(q, transposed(keys))
        logs = arithmetic(logs).add(logs, bias[..., None, :])
        terms.append(Terms(logs, keys, beyond[..., width:]))
    return terms


def read(terms):
    """Return the sums of the values of `Terms` by weights, the weights' sums, and their scale.

    Parameters
    ----------
    terms : list of Terms
        Their logarithms are overwritten. Every query sees a key.

    Returns
    -------
    sums : array of shape (U, G, n, e)
        Sums of values.
    total : array of shape (U, G, n, 1)
        Sums of weights.
    top : array of shape (U, G, n, 1)
        Logarithm of what all of these were divided by.
    """
    xp = namespace(terms[0].logs)
    # Constants: what all terms are divided by has no gradient, and the terms are overwritten.
    tops = [xp.max(constant(part.logs), axis=-1, keepdims=True) for part in terms]
    top = tops[0] if len(tops) == 1 else xp.maximum(*tops)
    # Weights add up to at most 1, so that sums of values near the largest float are floats.
    top = top + math.log(sum(part.logs.shape[-1] for part in terms))
    total = out = None
    for logs, _, values in terms:
        weights = arithmetic(logs).exp(arithmetic(logs).subtract(logs, top))
        sums, read_out = xp.sum(weights, axis=-1, keepdims=True), matmul(weights, values)
        total, out = (sums, read_out) if out is None else (total + sums, out + read_out)
    return out, total, top


def matmul(left, right):
    """Return left (U, G, n, m) times right, which may lack the axis of G."""
    if right.ndim == 4:
        return left @ right
    xp, (n_sets, n_heads, n, m) = namespace(left), left.shape
    stacked = xp.reshape(left, (n_sets, n_heads * n, m)) @ right
    return xp.reshape(stacked, (n_sets, n_heads, n, right.shape[-1]))
