"""Attention of arrays of other libraries than NumPy, in plain array-API code.

The formulas are those of `_linear` and `exact`; nothing is written in place, so that torch can
differentiate with respect to queries, keys and values. Heads that share a mechanism are worked on
together: queries have shape (B, G, L, d), keys and values (B, S, d) and (B, S, e).
"""

import array_api_compat
import numpy as np

from .._arrays import constant, like, namespace, take, to_host
from .._sums import FeatureSums, differences, lift, lower
from ._linear import _CAUSAL_ROWS, _CHECKED_QUERIES, _LIMITS, _blocks


def attend(groups, heads, causal, block_rows, states=None):
    """Return attention, the states of all sets of keys, and effective numbers of features.

    Parameters
    ----------
    groups : HeadGroups
        Inputs of one other library.
    heads : list of Head
        The head of every set of keys.
    causal : bool
        Whether position i reads positions up to i only.
    block_rows : int
        Rows of a head whose features are held at a time.
    states : list of FeatureSums, default=None
        Causal only: what was seen before, a set of keys each.

    Returns
    -------
    out : array of shape (U, G, L, e)
        The attention, in the dtype of the inputs.
    states : list of FeatureSums
        What has been seen after it.
    effective : ndarray or None
        Effective number of features of some queries; None for maps with signs or without keys.
    """
    xp = namespace(groups.q)
    after, parts, effective, order = [None] * len(heads), [], [], []
    for sets in _sharing(heads):
        head = heads[sets[0]]
        q, k, v, hidden = groups.q, groups.k, groups.v, groups.padding
        if len(sets) < len(heads):
            q, k, v, hidden = (None if x is None else take(x, sets) for x in (q, k, v, hidden))
        if q.dtype != xp.float64 and (head.are_long(q) or head.are_long(k, keys=True)):
            q, k, v = (xp.astype(part, xp.float64) for part in (q, k, v))
        values = xp.concat([v, xp.ones_like(v[..., :1])], axis=-1)
        if hidden is not None:
            values = xp.where(hidden[..., None], like(0.0, v), values)
        keys = _Keys(head, k, values, hidden)
        state = None if states is None else _stacked([states[u] for u in sets])
        out, state = (_causal if causal else _bidirectional)(head, q, keys, state, block_rows)
        parts.append(xp.astype(out, groups.q.dtype))
        effective.append(_effective_features(head, state, q))
        for i, u in enumerate(sets):
            top = None if state.top is None else state.top[i, ...]
            after[u] = FeatureSums(state.sums[i, ...], top)
        order += sets
    out = parts[0] if len(parts) == 1 else take(xp.concat(parts, axis=0), np.argsort(order))
    known = np.concatenate(effective) if heads[0].is_log else np.empty(0)
    return out, after, (known if len(known) else None)


def _sharing(heads):
    """Return lists of the numbers of heads that share a mechanism."""
    sets = {}
    for u, head in enumerate(heads):
        sets.setdefault(id(head.mechanism), []).append(u)
    return list(sets.values())


def _stacked(states):
    """Return the states of several sets of keys as one."""
    xp = namespace(states[0].sums)
    tops = [state.top for state in states]
    return FeatureSums(
        xp.stack([state.sums for state in states]), None if tops[0] is None else xp.stack(tops)
    )


class _Keys:
    """Keys and values [v, 1], from which blocks of features are made; hidden ones count 0."""

    def __init__(self, head, rows, values, hidden):
        self.head, self.rows, self.values, self.hidden = head, rows, values, hidden

    def block(self, rows):
        """Return features and values of some keys."""
        features = _features(self.head, self.rows[:, rows, :], keys=True)
        if self.hidden is not None and self.head.is_log:
            hidden = self.hidden[:, rows][..., None]
            features = namespace(features).where(hidden, like(-np.inf, features), features)
        return features, self.values[:, rows, :]


def _features(head, X, *, keys=False):
    xp = namespace(X)
    features = head.map(xp.reshape(X, (-1, X.shape[-1])), keys=keys)
    return xp.reshape(features, (*X.shape[:-1], features.shape[-1]))


def _each_query(top):
    """Return what all G query heads of a set share, with an axis for them."""
    return None if top is None else top[:, None, :]


def _divide(sums):
    """Return numerators over denominators; 0 in rows without any key."""
    xp = namespace(sums)
    below = sums[..., -1:]
    quotients = sums[..., :-1] / xp.where(below == 0, like(1.0, sums), below)
    return xp.where(below == 0, like(0.0, sums), quotients)


def _bidirectional(head, queries, keys, state, block_rows):
    xp = namespace(queries)
    for rows in _blocks(keys.rows.shape[1], block_rows):
        features, values = keys.block(rows)
        if state is None:
            state = FeatureSums.before(features, values, head.is_log)
        state = state.add(features, values)
    top, sums = _each_query(state.top), xp.astype(state.sums, queries.dtype)[:, None, :, :]
    parts = []
    for rows in _blocks(queries.shape[2], block_rows):
        parts.append(_divide(lift(_features(head, queries[:, :, rows, :]), top) @ sums))
    return xp.concat(parts, axis=2), state


def _causal(head, queries, keys, state, block_rows):
    xp = namespace(queries)
    parts = []
    for block in _blocks(queries.shape[2], block_rows):
        query_features = _features(head, queries[:, :, block, :])
        key_features, values = keys.block(block)
        if state is None:
            state = FeatureSums.before(key_features, values, head.is_log)
        for part in _blocks(values.shape[1], _CAUSAL_ROWS):
            for rows in _safe_parts(state, key_features, part):
                own, extended = key_features[:, rows, :], values[:, rows, :]
                top = state.raised(own)
                left = lift(query_features[:, :, rows, :], _each_query(top))
                near = xp.tril(left @ xp.matrix_transpose(lower(own, top))[:, None, :, :])
                far = left @ xp.astype(state.at(top), left.dtype)[:, None, :, :]
                parts.append(_divide(far + near @ extended[:, None, :, :]))
                state = state.add(own, extended)
    return xp.concat(parts, axis=2), state


def _safe_parts(state, key_features, part):
    """Return slices within which no exponent rises by more than the limit; see `_linear`."""
    xp = namespace(key_features)
    limit = _LIMITS[np.dtype(np.float32 if key_features.dtype == xp.float32 else np.float64)]
    safe, waiting = [], [part]
    while waiting:
        rows = waiting.pop()
        own = key_features[:, rows, :]
        end = state.raised(own)
        if end is not None and own.shape[1] > 1:
            rise = -differences(state.raised(own[:, :1, :]), end)
            rise = xp.where(end > -np.inf, rise, like(0.0, rise))
            if float(xp.max(rise)) > limit:
                middle = (rows.start + rows.stop) // 2
                waiting += [slice(middle, rows.stop), slice(rows.start, middle)]
                continue
        safe.append(rows)
        state = FeatureSums(state.sums, end)
    return safe


def _effective_features(head, state, queries):
    """Return, on the host, the effective number of features of some queries that see a key."""
    if not head.is_log:
        return np.empty(0)
    xp = namespace(queries)
    thinned = constant(queries)[:, :, :: -(-queries.shape[2] // _CHECKED_QUERIES), :]
    factors = lift(_features(head, thinned), _each_query(state.top))
    shares = factors * xp.astype(constant(state.sums)[..., -1], factors.dtype)[:, None, None, :]
    sums, squares = (to_host(xp.sum(part, axis=-1)) for part in (shares, shares * shares))
    return sums[squares > 0] ** 2 / squares[squares > 0]


def exact(groups, dtype, scale, causal, mask, block_rows):
    """Return exact attention (U, G, L, e), blocks of the queries of all heads at a time.

    Parameters
    ----------
    groups : HeadGroups
        Inputs of one other library.
    dtype : dtype
        In which to work, float32 or float64 of that library.
    scale : float
        Factor of the products q.k.
    causal : bool
        Whether position i reads positions up to i only.
    mask : object or None
        Gives ``log_block(rows, n_keys, dtype)``, logarithms of weights on the host.
    block_rows : int
        Queries of a head at a time.
    """
    xp = namespace(groups.q)
    q, k, v = (xp.astype(part, dtype) for part in (groups.q, groups.k, groups.v))
    nothing = like(-np.inf, q)
    parts = []
    for rows in _blocks(q.shape[2], block_rows):
        n = rows.stop if causal else k.shape[1]
        logits = (q[:, :, rows, :] * scale) @ xp.matrix_transpose(k[:, None, :n, :])
        if mask is not None:
            logits = logits + like(mask.log_block(rows, n, np.float64), q)
        if groups.padding is not None:
            logits = xp.where(groups.padding[:, None, None, :n], nothing, logits)
        if causal:
            place = {"device": array_api_compat.device(q)}
            positions = xp.arange(rows.start, rows.stop, **place)
            is_later = xp.arange(n, **place)[None, :] > positions[:, None]
            logits = xp.where(is_later, nothing, logits)
        top = xp.max(logits, axis=-1, keepdims=True)
        weights = xp.exp(logits - xp.where(top > -np.inf, top, like(0.0, top)))
        total = xp.sum(weights, axis=-1, keepdims=True)
        weights = weights / xp.where(total == 0, like(1.0, total), total)
        parts.append(weights @ v[:, None, :n, :])
    return xp.astype(xp.concat(parts, axis=2), groups.q.dtype)
