"""Summaries: one key that stands for many.

The logarithm of the sum of exp(q.k) over a set of keys is a convex function of the query q. At the
mean query m its value is Z and its slope the mean mu of the keys weighted by exp(m.k), so that
Z + (q - m).mu, its tangent there, is never above it (Jensen). A key mu with the logarithm
Z - m.mu added to its products, and the mean of the values with the same weights, is that tangent:
a term of softmax attention like any other, without variance. Positive random features estimate the
same sum for every query without bias, at a variance that grows with |q - m|; the control variates
of Zheng et al. (2023) correct such an estimate by sums like these.
"""

from typing import Any, NamedTuple

import numpy as np

from ..._arrays import (
    cast,
    constant,
    filled,
    in_library_of,
    like,
    namespace,
    take,
)
from ..._sums import finite, transposed
from .._groups import blocks

_ITERATIONS = 5  # of k-means, after which the summaries hardly change
_SAMPLE = 512  # keys that the centres are means of
_ROUNDING = 1e-15  # of float64, for each term of a sum
_PARTS = 64  # of running summaries that are computed at once


class Summary(NamedTuple):
    """Summaries of sets of keys.

    Parameters
    ----------
    log_weight : array of shape (..., n)
        Logarithm of the sum of the weights; -inf for no key.
    mean : array of shape (..., n, w)
        Mean of the keys and values; 0 for no key.
    """

    log_weight: Any
    mean: Any


def no_summary(shape, width, X):
    """Return `Summary` objects of no key, where X is."""
    return Summary(
        *(filled(*parts, X, X.dtype) for parts in ((-np.inf, shape), (0.0, (*shape, width))))
    )


def summary_of(logs, rows):
    """Return the `Summary` of rows (..., c, w) with logarithms of their weights (..., n, c).

    If rows have an axis of length 1 before their last two, they serve all of logs along it.
    """
    xp, (*lead, n, c) = namespace(rows), logs.shape
    largest = constant(xp.max(logs, axis=-1, keepdims=True))
    top = finite(largest)
    weights = xp.exp(cast(logs - top, rows.dtype))
    total = xp.sum(weights, axis=-1, keepdims=True)
    total = xp.where(total == 0, like(1.0, total), total)
    weights = weights / total  # first, because sums of values may leave the range of floats
    if rows.shape[-3] == 1 < lead[-1]:  # one product instead of many
        weights = xp.reshape(weights, (*lead[:-1], 1, lead[-1] * n, c))
    means = xp.reshape(weights @ rows, (*lead, n, rows.shape[-1]))
    log_weight = xp.log(cast(total, top.dtype)) + top
    log_weight = xp.where(largest > -np.inf, log_weight, like(-np.inf, top))[..., 0]
    return Summary(log_weight, means)


def merged(a, b):
    """Return the `Summary` of two disjoint sets of keys."""
    xp = namespace(a.mean)
    top = finite(constant(xp.maximum(a.log_weight, b.log_weight)))
    of_a, of_b = xp.exp(a.log_weight - top), xp.exp(b.log_weight - top)
    total = of_a + of_b
    is_empty = total == 0
    total = xp.where(is_empty, like(1.0, total), total)
    log_weight = xp.where(is_empty, like(-np.inf, total), xp.log(total) + top)
    shares = (cast(part / total, a.mean.dtype)[..., None] for part in (of_a, of_b))
    return Summary(log_weight, next(shares) * a.mean + next(shares) * b.mean)


def running(first, parts):
    """Return the summaries of a `Summary` and of all parts up to every one.

    Parameters
    ----------
    first : Summary
        Of shapes (..., 1) and (..., 1, w).
    parts : Summary
        Of shapes (..., n) and (..., n, w).

    Returns
    -------
    Summary
        Of shapes (..., n + 1) and (..., n + 1, w), the first of which is `first`.
    """
    xp, found = namespace(parts.mean), [first]
    for some in blocks(parts.log_weight.shape[-1], _PARTS):
        logs, rows = found[-1].log_weight[..., -1:], found[-1].mean[..., -1:, :]
        logs = xp.concat([logs, parts.log_weight[..., some]], axis=-1)
        rows = xp.concat([rows, parts.mean[..., some, :]], axis=-2)
        n = logs.shape[-1]
        is_known = in_library_of(np.arange(n) <= np.arange(1, n)[:, None], logs)
        found.append(summary_of(xp.where(is_known, logs[..., None, :], like(-np.inf, logs)), rows))
    return Summary(
        xp.concat([summary.log_weight for summary in found], axis=-1),
        xp.concat([summary.mean for summary in found], axis=-2),
    )


def bias_of(summary, mean, width):
    """Return what is added to the products of queries and the mean keys of a `Summary`.

    The mean query has the axes of the summary but the last.
    """
    slopes = cast(summary.mean[..., :width], mean.dtype) * mean
    return summary.log_weight - namespace(mean).sum(slopes, axis=-1)


def logs_of(mean, keys):
    """Return the products of mean queries (U, G, d) and keys (U, G, ..., d), with gradients."""
    column = cast(mean, keys.dtype)
    column = namespace(keys).reshape(column, (*mean.shape[:2], *[1] * (keys.ndim - 4), -1, 1))
    return (keys @ column)[..., 0]


def clusters(keys, n):
    """Return which of n clusters every key is in, (U, S, n): k-means from evenly spread keys."""
    xp, n_keys = namespace(keys), keys.shape[1]
    keys = cast(constant(keys), xp.float64)
    largest = xp.max(xp.abs(keys), axis=(1, 2), keepdims=True)
    keys = keys / xp.where(largest == 0, like(1.0, keys), largest)
    some = slice(None, None, -(-n_keys // _SAMPLE))
    sample = keys[:, some, :]
    centers = take(keys, np.arange(n) * n_keys // n, axis=1)
    for _ in range(_ITERATIONS):
        members = cast(is_member(_nearest(sample, centers), n), keys.dtype)
        sizes = xp.sum(members, axis=1)[..., None]
        means = (transposed(members) @ sample) / xp.where(sizes == 0, like(1.0, sizes), sizes)
        centers = xp.where(sizes == 0, centers, means)
    return is_member(_nearest(keys, centers), n)


def _nearest(keys, centers):
    """Return the number of the nearest centre of every key, the first of equally near ones."""
    xp = namespace(keys)
    halves = xp.sum(centers * centers, axis=-1)[:, None, :] / 2
    closeness = keys @ transposed(centers) - halves
    # What sums of this size may differ by on other processors.
    size = xp.linalg.vector_norm(keys, axis=-1, keepdims=True)
    largest = xp.max(halves, axis=-1, keepdims=True)
    margin = _ROUNDING * keys.shape[-1] * (size * xp.sqrt(2 * largest) + largest)
    is_best = closeness >= xp.max(closeness, axis=-1, keepdims=True) - margin
    return xp.argmax(cast(is_best, xp.int64), axis=-1)


def is_member(labels, n):
    """Return which of n clusters every key is in, (U, S, n), given their numbers."""
    return labels[..., None] == in_library_of(np.arange(n), labels)
