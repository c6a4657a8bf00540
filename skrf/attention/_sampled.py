"""Exact attention of a few queries, by which anchors are chosen and outputs judged."""

import numpy as np

from .._arrays import arithmetic, beside, cast, constant, like, namespace, take, to_host
from .._sums import peaked, transposed
from ._heads import blocks

_LOGITS = 2**16  # that are held at a time
_KEYS = 4096  # whose sums are
_FIRST = 4  # keys of a window: language models put much weight on them


def sampled(is_free, n):
    """Return indices (..., n) of free rows, spread over all of them with a fixed seed.

    If there are fewer than n, some occur more than once.
    """
    shares = (np.arange(n) + np.random.default_rng(0).random(n)) / n
    order = np.argsort(~is_free, axis=-1, kind="stable")
    numbers = np.floor(shares * np.maximum(is_free.sum(axis=-1, keepdims=True), 1)).astype(int)
    return np.take_along_axis(order, numbers, axis=-1)


def taken(array, places):
    """Return rows (..., m, c) of an array (..., n, c), given their indices (..., m)."""
    leading, (n, width) = array.shape[:-2], array.shape[-2:]
    places = np.broadcast_to(places, (*leading, places.shape[-1]))
    flat = namespace(array).reshape(array, (-1, width))
    starts = n * np.arange(flat.shape[0] // n).reshape(leading)
    rows = take(flat, (starts[..., None] + places).ravel())
    return namespace(array).reshape(rows, (*places.shape, width))


def free(unit):
    """Return, on the host, which keys of a unit are not padding."""
    if unit.hidden is None:
        return np.ones(unit.k.shape[:-1], bool)
    return ~to_host(unit.hidden)


def real_queries(hidden, n_queries):
    """Return which queries (..., L) count, given on the host which keys (..., S) are padding.

    With as many queries as keys, a padded position is padding as a query, too, unless all are.
    """
    if hidden.shape[-1] != n_queries:
        return np.ones((*hidden.shape[:-1], n_queries), bool)
    return ~hidden | hidden.all(axis=-1, keepdims=True)


def exact_weights(unit, places, scale, causal=False):
    """Yield (indices of some queries, their weights (..., G, n, S), which keys they do not see)."""
    q, keys = constant(unit.q), transposed(cast(constant(unit.k), unit.dtype))[..., None, :, :]
    n_keys, is_free = unit.k.shape[-2], free(unit)
    for rows in blocks(places.shape[-1], max(8, _LOGITS // n_keys)):
        own = places[..., rows]
        logits = (cast(taken(q, own[..., None, :]), unit.dtype) * scale) @ keys
        unseen = ~is_free[..., None, None, :]
        if causal:
            unseen = unseen | (np.arange(n_keys) > own[..., None, :, None])
        if unseen.any():
            logits = arithmetic(logits).fill(logits, beside(unseen, logits), -np.inf)
        weights, xp = peaked(logits), namespace(logits)
        total = xp.sum(weights, axis=-1, keepdims=True)
        yield own, weights / xp.where(total == 0, like(1.0, total), total), unseen


def scores(unit, places, scale):
    """Return, on the host, the importance of every key, sum_i a_ij^2 |o_i - v_j|^2 over queries."""
    values, total = constant(unit.v), 0.0
    if unit.value_unit != 1:
        values = values / unit.value_unit
    values, xp = cast(values, unit.dtype), namespace(values)
    for _, weights, _ in exact_weights(unit, places, scale):
        out = weights @ values[..., None, :, :]
        parts = [xp.ones_like(out[..., :1]), xp.sum(out * out, axis=-1, keepdims=True), -2 * out]
        parts, found = xp.concat(parts, axis=-1), []
        for rows in blocks(values.shape[-2], _KEYS):
            # For every key: the sums of a^2, of a^2 |o|^2, and of -2 a^2 o.
            own, v = weights[..., rows], values[..., rows, :]
            own = xp.sum(transposed(own * own) @ parts, axis=-3)
            size = own[..., 0] * xp.sum(v * v, axis=-1) + own[..., 1]
            found.append(size + xp.sum(own[..., 2:] * v, axis=-1))
        total = total + to_host(xp.concat(found, axis=-1))
    return total


def errors_of(unit, out, places, scale, causal, window=None):
    """Return the distances of outputs and simple answers from exact attention at some positions.

    Parameters
    ----------
    unit : Unit
        The inputs, in units.
    out : list of array of shape (..., G, L, e)
        Outputs, in the units of the values.
    places : ndarray of int of shape (..., n)
        The queries.
    scale, causal
        As in `NearAttention`.
    window : int, default=None
        Number of keys of an exact window to judge as well: the first 4 and the nearest.

    Returns
    -------
    ndarray of shape (2, n_answers)
        Squared distances and distances, summed over the queries, of every output, the mean of the
        values, the window if there is one, and 0.
    """
    values = cast(constant(unit.v), unit.dtype)[..., None, :, :]
    values = values if unit.value_unit == 1 else values / unit.value_unit
    xp, total = namespace(values), 0.0
    keys = np.arange(unit.k.shape[-2])
    is_first = (np.cumsum(free(unit), axis=-1) <= _FIRST)[..., None, None, :]
    for own, weights, unseen in exact_weights(unit, places, scale, causal):
        exact = weights @ values
        seen = like(~unseen, weights)
        answers = [taken(constant(part), own[..., None, :]) / unit.value_unit for part in out]
        answers.append(_mean(seen, values))
        if window is not None:
            reach = own[..., None, :, None] - keys
            reach = reach if causal else 2 * np.abs(reach)
            is_near = is_first | (reach < window - _FIRST)
            answers.append(_mean(weights * like(is_near, weights), values))
        answers.append(like(0.0, exact))
        squares = [xp.sum((part - exact) ** 2, axis=-1) for part in answers]
        both = squares, [xp.sqrt(part) for part in squares]
        total = total + np.array([[float(xp.sum(part)) for part in parts] for parts in both])
    return total


def _mean(weights, values):
    total = namespace(weights).sum(weights, axis=-1, keepdims=True)
    return weights @ values / namespace(weights).where(total == 0, like(1.0, total), total)
