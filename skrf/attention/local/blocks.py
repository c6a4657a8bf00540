"""Blocks of queries: one softmax over the keys near a block, heavy keys and summaries."""

import math
from typing import Any, NamedTuple

import numpy as np

from ..._arrays import Pure, arithmetic, in_library_of, like, namespace, take
from ..._sums import finite, transposed


class Block(NamedTuple):
    """Positions that see the same keys exactly.

    Parameters
    ----------
    queries : slice
        The queries.
    near : slice
        The rows of keys and values near them; causal ones end with their own.
    far : int or None
        Which of the sets of keys beyond is theirs.
    """

    queries: slice
    near: slice
    far: int | None


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

    def rows(self, i):
        """Return the keys and values of a block, (U, G, h + s, d + e)."""
        if self.numbers is None:
            return self.pool[:, :, i, ...]
        of_block = self.numbers[:, :, i]
        heavy = take(self.pool, of_block.ravel())
        heavy = namespace(heavy).reshape(heavy, (*of_block.shape, heavy.shape[-1]))
        return namespace(heavy).concat([heavy, self.summaries[:, :, i, ...]], axis=-2)


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


def attend(q, rows, is_key, blocks, far, is_causal):
    """Return the outputs (U, G, n, e) of all blocks.

    Parameters
    ----------
    q : array of shape (U, G, n, d)
        Scaled queries.
    rows : array of shape (U, m, d + e)
        Keys and values.
    is_key : array of bool of shape (U, m) or None
        Which of them are no padding.
    blocks : list of Block
        The blocks, which cover the last queries.
    far : Far or None
        What they see beyond.
    is_causal : bool
        Whether queries do not see later rows.
    """
    xp, outs = namespace(q), []
    for block in blocks:
        out, total, _ = read(terms_of(q, rows, is_key, block, far, is_causal), is_key is not None)
        outs.append(out / total)
    return outs[0] if len(outs) == 1 else xp.concat(outs, axis=-2)


def terms_of(q, rows, is_key, block, far, is_causal):
    """Return the `Terms` of a block near its queries, and of what it sees beyond."""
    q, near = q[..., block.queries, :], rows[:, block.near, :]
    (n, width), m = q.shape[-2:], near.shape[-2]
    logs = matmul(q, transposed(near[..., :width]))
    do = arithmetic(logs)
    if is_causal and n > 1:
        is_later = in_library_of(np.triu(np.ones((n, n), bool), 1), logs)
        own = do.fill(logs[..., m - n :], is_later, -np.inf)
        if do is Pure:
            logs = namespace(q).concat([logs[..., : m - n], own], axis=-1)
    if is_key is not None:
        logs = do.fill(logs, ~is_key[:, None, None, block.near], -np.inf)
    terms = [Terms(logs, near[..., :width], near[..., width:])]
    if block.far is not None:
        beyond = far.rows(block.far)
        logs = matmul(q, transposed(beyond[..., :width]))
        logs = arithmetic(logs).add(logs, far.bias[:, :, block.far, None, :])
        terms.append(Terms(logs, beyond[..., :width], beyond[..., width:]))
    return terms


def read(terms, is_padded):
    """Return the sums of the values of `Terms` by weights, the weights' sums, and their scale.

    Parameters
    ----------
    terms : list of Terms
        Their logarithms are overwritten.
    is_padded : bool
        Whether a query may see no key; its sums are 0 and that of the weights is 1.

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
    tops = [xp.max(part.logs, axis=-1, keepdims=True) for part in terms]
    top = tops[0] if len(tops) == 1 else xp.maximum(*tops)
    if is_padded:
        top = finite(top)
    # Weights add up to at most 1, so that sums of values near the largest float are floats.
    top = top + math.log(sum(part.logs.shape[-1] for part in terms))
    total = out = None
    for logs, _, values in terms:
        weights = arithmetic(logs).exp(arithmetic(logs).subtract(logs, top))
        sums, read_out = xp.sum(weights, axis=-1, keepdims=True), matmul(weights, values)
        total, out = (sums, read_out) if out is None else (total + sums, out + read_out)
    if is_padded:
        total = xp.where(total == 0, like(1.0, total), total)
    return out, total, top


def matmul(left, right):
    """Return left (U, G, n, m) times right, which may lack the axis of G."""
    if right.ndim == 4:
        return left @ right
    xp, (n_sets, n_heads, n, m) = namespace(left), left.shape
    stacked = xp.reshape(left, (n_sets, n_heads * n, m)) @ right
    return xp.reshape(stacked, (n_sets, n_heads, n, right.shape[-1]))
