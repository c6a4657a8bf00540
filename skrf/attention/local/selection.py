"""Heavy keys: those beyond the window that queries give the largest weights in the mean.

A query of mean m whose numbers have the variances s, if they are normal and independent, gives the
key k the mean weight E exp(q.k) = exp(m.k + s.k^2 / 2). Queries of trained models are neither, but
this says much better than m.k alone which keys some of them look for.

Scores are brought to the host, where keys are chosen by number; their rows stay where they are.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from ..._arrays import cast, constant, like, namespace, rows_at_once, take, to_host
from .._groups import blocks

_TERMS = 2**17  # of scores that are added at once
_ROUNDING = 1e-12  # of squares, of which variances are differences


class Queries(NamedTuple):
    """The mean of the queries of every head, and the variances of their numbers.

    Parameters
    ----------
    mean, variance : array of shape (U, G, d)
        Of as many sets of keys and heads, in float64.
    """

    mean: Any
    variance: Any

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")
    def of(cls, mean, squares):
        """Return them from means of queries and of their squares; what is rounding counts as 0."""
        xp, variance = namespace(mean), squares - mean * mean
        is_some = variance > _ROUNDING * squares  # not of squares beyond the range of floats
        return cls(mean, xp.where(is_some, variance, like(0.0, variance)))

    def scaled(self, scale):
        """Return those of multiples of the queries."""
        return Queries(scale * self.mean, scale * (scale * self.variance))


@np.errstate(over="ignore")
def scores_of(queries, keys, is_key=None):
    """Return logarithms of the mean weights of keys (U, n, d), (U, G, n), on the host.

    Halves of the terms are added to each other in float64, so that a score depends on nothing but
    its key and its queries, however many keys are computed at once. Those of padding are -inf.
    """
    xp, keys = namespace(keys), constant(keys)
    mean, half = (
        cast(constant(array), xp.float64)[..., None, :]
        for array in (queries.mean, queries.variance / 2)
    )
    size = math.prod(mean.shape)
    at_once = rows_at_once(keys, size, usual=max(1, _TERMS // size))  # which stay in a cache
    scores = []
    for some in blocks(keys.shape[1], at_once):
        part = cast(keys[:, None, some, :], xp.float64)
        scores.append(to_host(_added(part * (mean + half * part))))
    scores = np.concatenate(scores, axis=-1)
    return scores if is_key is None else np.where(to_host(is_key)[:, None, :], scores, -np.inf)


def _added(terms):
    """Return the sums of terms over the last axis, in an order that depends on its length alone."""
    xp = namespace(terms)
    while (width := terms.shape[-1]) > 1:
        half = width // 2
        added = terms[..., :half] + terms[..., half : 2 * half]
        terms = added if width == 2 * half else xp.concat([added, terms[..., 2 * half :]], axis=-1)
    return terms[..., 0]


def ranked(scores):
    """Return the places of scores from the largest to the smallest, equal ones in their order."""
    return np.argsort(-scores, axis=-1, kind="stable")


def run(held, scores, edges):
    """Return which keys are heavy when more and more of them are known.

    Parameters
    ----------
    held : ndarray of shape (U, G, h)
        Scores of the heavy keys so far, in the order of positions; -inf for none.
    scores : ndarray of shape (U, G, n)
        Scores of the keys that follow.
    edges : list of int
        How many of these are known each time.

    Returns
    -------
    heavy : ndarray of shape (U, G, len(edges), h)
        Heavy keys each time, in the order of positions: numbers below h are those so far.
    lost : ndarray of shape (U, G, n)
        All others, in the order in which they became so.
    """
    n_heavy, known = held.shape[-1], np.concatenate([held, scores], axis=-1)
    now = np.broadcast_to(np.arange(n_heavy), held.shape)
    heavy, lost = [], []
    for start, stop in zip([0, *edges[:-1]], edges, strict=True):
        new = np.broadcast_to(np.arange(start, stop) + n_heavy, (*held.shape[:2], stop - start))
        numbers = np.concatenate([now, new], axis=-1)
        order = ranked(np.take_along_axis(known, numbers, axis=-1))
        numbers = np.take_along_axis(numbers, order, axis=-1)
        now = np.sort(numbers[..., :n_heavy], axis=-1)
        heavy.append(now)
        lost.append(numbers[..., n_heavy:])
    return np.stack(heavy, axis=2), np.concatenate(lost, axis=-1)


def taken(rows, numbers):
    """Return rows (..., *m, w) of an array (..., n, w), given numbers (..., *m) of the host.

    Leading axes of length 1 serve all numbers.
    """
    xp, width = namespace(rows), rows.shape[-1]
    flat = take(xp.reshape(rows, (-1, width)), flat_numbers(rows, numbers).ravel())
    return xp.reshape(flat, (*numbers.shape, width))


def flat_numbers(rows, numbers):
    """Return the numbers of `taken` for rows without leading axes."""
    *lead, n, _ = rows.shape
    starts = n * np.arange(math.prod(lead)).reshape(lead)
    return numbers + starts.reshape(*lead, *[1] * (numbers.ndim - len(lead)))
