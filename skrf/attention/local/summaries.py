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

import array_api_compat
import numpy as np

from ..._arrays import cast, constant, in_library_of, is_array_api, largest_entry, like, namespace
from ..._sums import finite, transposed
from .selection import taken

_ITERATIONS = 5  # of k-means, after which the summaries hardly change
_MARGIN = 1e-9  # of squared distances to centres, for equal ones to be equal on every processor


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


def filled(value, shape, X, dtype=None):
    """Return an array of one value where X is, in float64 unless given."""
    xp = namespace(X)
    place = {"device": array_api_compat.device(X)} if is_array_api(X) else {}
    return xp.full(shape, value, dtype=dtype or xp.float64, **place)


def no_summary(shape, width, X):
    """Return `Summary` objects of no key, where X is."""
    return Summary(filled(-np.inf, shape, X), filled(0.0, (*shape, width), X))


def summary_of(logs, rows):
    """Return the `Summary` of rows (..., c, w) with logarithms of their weights (..., n, c)."""
    xp = namespace(logs)
    top = finite(constant(xp.max(logs, axis=-1, keepdims=True)))
    weights = xp.exp(logs - top)
    total = xp.sum(weights, axis=-1, keepdims=True)
    is_empty = total == 0
    total = xp.where(is_empty, like(1.0, total), total)
    log_weight = xp.where(is_empty, like(-np.inf, total), xp.log(total) + top)[..., 0]
    return Summary(log_weight, (weights / total) @ rows)


def merged(a, b):
    """Return the `Summary` of two disjoint sets of keys."""
    xp = namespace(a.mean)
    logs = xp.stack([a.log_weight, b.log_weight], axis=-1)
    both = summary_of(logs[..., None, :], xp.stack([a.mean, b.mean], axis=-2))
    return Summary(both.log_weight[..., 0], both.mean[..., 0, :])


class Far(NamedTuple):
    """What a block sees beyond its window, one softmax term for each.

    Parameters
    ----------
    keys : array of shape (U, G, f, d)
        Heavy keys and summaries.
    values : array of shape (U, G, f, e)
        Their values.
    bias : array of shape (U, G, f)
        What is added to the products of queries and keys; -inf where there is none.
    """

    keys: Any
    values: Any
    bias: Any


def far_of(heavy, scores, summary, mean, width):
    """Return the `Far` of heavy rows, none where scores are -inf, and of a `Summary` or None."""
    xp = namespace(heavy)
    bias, rows = xp.where(scores == -np.inf, scores, like(0.0, scores)), heavy
    if summary is not None:
        slopes = xp.sum(summary.mean[..., :width] * mean[..., None, :], axis=-1)
        bias = xp.concat([bias, summary.log_weight - slopes], axis=-1)
        rows = xp.concat([heavy, cast(summary.mean, heavy.dtype)], axis=-2)
    return Far(rows[..., :width], rows[..., width:], cast(bias, heavy.dtype))


def clusters(keys, is_key, n):
    """Return in which of n clusters each key is, (U, S): k-means from keys at equal distances."""
    xp = namespace(keys)
    keys = cast(constant(keys), xp.float64)
    keys = keys / (largest_entry(keys) or 1.0)
    n_sets, n_keys, width = keys.shape
    starts = np.broadcast_to(np.arange(n) * n_keys // n, (n_sets, n))
    centers = taken(keys, in_library_of(starts.copy(), keys))
    weights = xp.ones_like(keys[..., :1]) if is_key is None else cast(is_key, xp.float64)[..., None]
    for _ in range(_ITERATIONS):
        members = weights * cast(is_member(_nearest(keys, centers), n), xp.float64)
        sizes = xp.sum(members, axis=1)[..., None]
        means = (transposed(members) @ keys) / xp.where(sizes == 0, like(1.0, sizes), sizes)
        centers = xp.where(sizes == 0, centers, means)
    return _nearest(keys, centers)


def _nearest(keys, centers):
    """Return the number of the nearest centre of every key, the first of equally near ones."""
    xp = namespace(keys)
    closeness = keys @ transposed(centers) - xp.sum(centers * centers, axis=-1)[:, None, :] / 2
    is_best = closeness >= xp.max(closeness, axis=-1, keepdims=True) - _MARGIN * keys.shape[-1]
    return xp.argmax(cast(is_best, xp.int64), axis=-1)


def is_member(labels, n):
    """Return which of n clusters every key is in, (U, S, n), given their numbers."""
    return labels[..., None] == in_library_of(np.arange(n), labels)
