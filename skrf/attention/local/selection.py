"""Heavy keys: those beyond the window that queries give the largest weights in the mean.

The weight of a key k is exp(q.k) over its sum for all keys, which is exp(q.n + c.q^2 / 2), up to a
factor, if the numbers of keys are normal with the means n and the variances c. Its mean over
queries whose numbers are normal with the means m and the variances s is then, up to a factor, the
exponential of the sum of (m k + s (k - n)^2 / 2) / (1 + s c) over the numbers of k. The queries and
keys of trained models are not normal, but this says far better than m.k which keys they look for.

Scores are brought to the host, where keys are chosen by number; their rows stay where they are.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from ..._arrays import cast, constant, like, namespace, rows_at_once, take, to_host
from .._groups import blocks

_SAMPLE = 512  # positions that say enough about variances
_TERMS = 2**17  # of scores that are added at once
_ROUNDING = 1e-12  # of squares, of which variances are differences


class Statistics(NamedTuple):
    """Means and variances of the numbers of queries, and of the keys that they see.

    Parameters
    ----------
    mean, variance, key_mean, key_variance : array of shape (..., d)
        Of every head, in float64.
    """

    mean: Any
    variance: Any
    key_mean: Any
    key_variance: Any

    @classmethod
    def of(cls, moments):
        """Return them from the means of `moments_of`, of shape (..., 4, d)."""
        q, q_squares, k, k_squares = (moments[..., i, :] for i in range(4))
        xp, variance = namespace(q), _variance(q, q_squares)
        # Where squares of keys are beyond the range of floats, the mean query alone decides.
        variance = xp.where(xp.isfinite(k_squares), variance, like(0.0, variance))
        return cls(q, variance, k, _variance(k, k_squares))

    def scaled(self, scale):
        """Return those of multiples of the queries."""
        return self._replace(mean=scale * self.mean, variance=scale * (scale * self.variance))

    @property
    @np.errstate(over="ignore")
    def slope_and_curve(self):
        """Numbers a and b of which k.(a + b k / 2) is what keys are chosen by, up to a constant."""
        share = 1 / (1 + self.variance * self.key_variance)
        curve = share * self.variance
        return share * self.mean - curve * self.key_mean, curve


@np.errstate(over="ignore", invalid="ignore")
def _variance(mean, squares):
    """Return variances, given means of numbers and of squares; what is rounding counts as 0."""
    xp, variance = namespace(mean), squares - mean * mean
    is_some = variance > _ROUNDING * squares  # not of squares beyond the range of floats
    return xp.where(is_some, variance, like(0.0, variance))


@np.errstate(over="ignore")
def moments_of(q, k):
    """Return queries (U, G, n, d), keys (U, n, d) and the squares of both, (U, G, n, 4, d).

    Sums of these are what `Statistics` are made of. Only those of the queries have gradients.
    """
    xp = namespace(q)
    q, k = cast(q, xp.float64), cast(constant(k), xp.float64)
    k = xp.broadcast_to(k[:, None, :, :], q.shape)
    return xp.stack([q, constant(q) ** 2, k, k * k], axis=-2)


@np.errstate(over="ignore")
def scores_of(statistics, keys):
    """Return what keys (U, n, d) are chosen by, (U, G, n), on the host.

    Halves of the terms are added to each other in float64, so that a score depends on nothing but
    its key and the statistics, however many keys are computed at once.
    """
    xp, keys = namespace(keys), constant(keys)
    slope, curve = (
        cast(constant(array), xp.float64)[..., None, :] for array in statistics.slope_and_curve
    )
    size = math.prod(slope.shape)
    at_once = rows_at_once(keys, size, usual=max(1, _TERMS // size))  # which stay in a cache
    scores = []
    for some in blocks(keys.shape[1], at_once):
        part = cast(keys[:, None, some, :], xp.float64)
        scores.append(to_host(_added(part * (slope + curve / 2 * part))))
    return np.concatenate(scores, axis=-1)


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


@np.errstate(over="ignore")  # of squares
def statistics_of(q, k):
    """Return the `Statistics` of every set: all but the mean query from evenly spread positions."""
    n = q.shape[-2]
    some = slice(None, None, -(-n // _SAMPLE))
    moments = moments_of(q[..., some, :], k[:, some, :])
    moments = _summed(moments, 2) / moments.shape[2]
    mean = _summed(cast(q, namespace(q).float64), 2) / n
    return Statistics.of(moments)._replace(mean=mean)


def _summed(terms, axis):
    """Return sums over an axis: halves are added to each other, however arrays are stored."""
    xp, lead = namespace(terms), (slice(None),) * axis
    while (length := terms.shape[axis]) > 1:
        half = length // 2
        added = terms[*lead, :half, ...] + terms[*lead, half : 2 * half, ...]
        rest = terms[*lead, 2 * half :, ...]
        terms = added if length == 2 * half else xp.concat([added, rest], axis=axis)
    return terms[*lead, 0, ...]
