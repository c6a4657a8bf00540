"""Linear-time attention of one head: products of features, streaming state, gradients.

Positive maps come as logarithms. A feature's largest key exponent so far, `top`, is taken out of
its sums, and a query's largest exponent is taken out of its row: every denominator is at least 1,
or exp(-limit) in causal blocks, so nothing is divided by zero and no epsilon is added. Other maps
come as plain features, whose exponents are all 0.

A head is one mechanism; G query heads may share its keys: queries have shape (G, L, d), keys and
values (S, d) and (S, e). Values carry a column of ones, so that numerator and denominator are one
product. Sums are kept in float64 whatever the inputs.
"""

from dataclasses import dataclass

import numpy as np

from .._arrays import constant, like, namespace, squared_norms

_FEATURE_ROWS = 1024  # rows whose features are held at a time
_CAUSAL_ROWS = 128  # rows of a triangular product
# How far the exponents of a feature may rise within a causal block before it is split.
_LIMITS = {np.dtype(np.float32): 40.0, np.dtype(np.float64): 300.0}
_CHECKED_QUERIES = 16  # of a head, by the collapse check
_PRECISE_NORM2 = 256.0  # rows longer than this are mapped in float64: exponents grow with them


@dataclass(frozen=True)
class State:
    """What attention remembers of the keys that it has seen.

    Law: absorbing keys one by one or in any blocks gives the same state to rounding.

    Parameters
    ----------
    top : ndarray of shape (M,)
        Largest exponent of every feature, -inf before the first key; 0 for plain features.
    sums : ndarray of shape (M, e + 1)
        Sums of exp(exponent - top) times [value, 1], float64.
    """

    top: np.ndarray
    sums: np.ndarray

    @classmethod
    def empty(cls, n_features, n_values, is_log):
        """Return the state before any key."""
        top = np.full(n_features, -np.inf if is_log else 0.0)
        return cls(top, np.zeros((n_features, n_values + 1)))

    def at(self, top):
        """Return the sums on the scale of another top."""
        return self.sums * np.exp(_differences(self.top, top))[:, None]


@dataclass(frozen=True)
class Sweep:
    """What the reverse sweep remembers of the later queries.

    Parameters
    ----------
    top : ndarray of shape (M,)
        The scale of the sums, as in `State`.
    sums : ndarray of shape (M, e + 1)
        Sums of query features times gradients of numerator and denominator, float64.
    """

    top: np.ndarray
    sums: np.ndarray


def _differences(low, high):
    """Return low - high, -inf where low is -inf (also where both are)."""
    seen = np.isfinite(low)
    return np.where(seen, low - np.where(seen, high, 0.0), -np.inf)


def _finite(top):
    """Return top with 0 for features that no key has."""
    return np.where(np.isfinite(top), top, 0.0)


def with_ones(values, padding):
    """Return [values, 1]; rows of padded keys are 0."""
    extended = np.empty((len(values), values.shape[1] + 1), dtype=values.dtype)
    extended[:, :-1], extended[:, -1] = values, 1.0
    if padding is not None:
        extended[padding] = 0.0
    return extended


def divide(sums, out):
    """Write numerators over denominators; rows without any key become 0."""
    denominator = sums[..., -1:]
    if denominator.all():
        np.divide(sums[..., :-1], denominator, out=out, casting="same_kind")
    else:
        quotient = np.zeros(out.shape, sums.dtype)
        np.divide(sums[..., :-1], denominator, out=quotient, where=denominator != 0)
        out[...] = quotient


def split_gradient(sums, gradient):
    """Return gradients with respect to the sums, given those of the quotients."""
    denominator = sums[..., -1:]
    inverse = np.divide(1.0, denominator, out=np.zeros_like(denominator), where=denominator != 0)
    scaled = gradient * inverse
    quotients = sums[..., :-1] * inverse
    return np.concatenate([scaled, -(scaled * quotients).sum(axis=-1, keepdims=True)], axis=-1)


class Head:
    """A mechanism as attention sees it: features of blocks of rows, in a safe precision.

    Parameters
    ----------
    mechanism : mechanism
        Fitted; or anything with its contract.
    """

    def __init__(self, mechanism):
        self.mechanism = mechanism
        self.is_log = mechanism.is_positive
        self.map = mechanism._log_features if self.is_log else mechanism._features

    def rows(self, X, *, keys=False):
        """Return rows in the precision in which they are mapped: float64 where they are long."""
        if X.dtype == np.float64 or not self.are_long(X, keys=keys):
            return X
        return X.astype(np.float64)

    def are_long(self, X, *, keys=False):
        """Tell whether the exponents of a row of any of these axes may be large."""
        if getattr(self.mechanism, "_balance", None) is not None:
            # Balancing may stretch rows, and their means, by orders of magnitude.
            X = X @ like(self.mechanism._balance[keys].T, X) - like(self.mechanism.offset_, X)
        rows = namespace(X).reshape(X, (-1, X.shape[-1]))
        largest = float(namespace(X).max(squared_norms(constant(rows))))
        return largest * self.mechanism.sigma_**2 >= _PRECISE_NORM2

    def features(self, X, padding=None, *, keys=False):
        """Return the features of rows; log features of padded keys are -inf."""
        features = self.map(self.rows(X, keys=keys), keys=keys)
        if padding is not None and self.is_log:
            features[padding] = -np.inf
        return features

    def query_features(self, queries):
        """Return the features of (G, n, d) queries."""
        n_heads, n_rows, width = queries.shape
        features = self.features(queries.reshape(-1, width))
        return features.reshape(n_heads, n_rows, -1)

    def pull_back(self, X, gradient, *, keys=False):
        """Return the gradient with respect to rows."""
        return self.mechanism._pull_back(self.rows(X, keys=keys), gradient, keys=keys)

    def empty_state(self, values):
        """Return the state before any key."""
        return State.empty(self.mechanism.n_components_, values.shape[-1], self.is_log)

    def lift(self, queries, top):
        """Turn query features into factors of the sums at `top`, in place where possible."""
        if not self.is_log:
            return queries
        queries += _finite(top).astype(queries.dtype)
        queries -= queries.max(axis=-1, keepdims=True)
        return np.exp(queries, out=queries)

    def lower(self, keys, top):
        """Turn key features into factors at `top`."""
        if not self.is_log:
            return keys
        keys = keys - _finite(top).astype(keys.dtype)
        return np.exp(keys, out=keys)

    def raised(self, top, keys):
        """Return the top after a block of keys."""
        return np.maximum(top, keys.max(axis=0)) if self.is_log else top


def _blocks(n, size):
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _part(padding, block):
    return None if padding is None else padding[block]


# -------------------------------------------------------------------- bidirectional


def absorb(head, state, keys, values, padding=None, block_size=_FEATURE_ROWS):
    """Return the state after more keys."""
    for block in _blocks(len(keys), block_size):
        extended = with_ones(values[block], _part(padding, block))
        features = head.features(keys[block], _part(padding, block), keys=True)
        top = head.raised(state.top, features)
        state = State(top, state.at(top) + head.lower(features, top).T @ extended)
    return state


def query(head, state, queries, out, block_size=_FEATURE_ROWS):
    """Write the attention of (G, n, d) queries to all keys of a state into (G, n, e)."""
    for block in _blocks(queries.shape[1], block_size):
        factors = head.lift(head.query_features(queries[:, block]), state.top)
        divide(factors @ state.sums.astype(factors.dtype), out[:, block])


def backward(head, queries, keys, values, padding, gradient, block_size=_FEATURE_ROWS):
    """Return gradients of sum(gradient * attention) for queries, keys and values."""
    state = absorb(head, head.empty_state(values), keys, values, padding, block_size)
    by_queries, by_keys, by_values = map(np.empty_like, (queries, keys, values))
    later = np.zeros_like(state.sums)
    for block in _blocks(queries.shape[1], block_size):
        factors = head.lift(head.query_features(queries[:, block]), state.top)
        by_sums = split_gradient(factors @ state.sums, gradient[:, block])
        later += np.einsum("gim,gie->me", factors, by_sums, optimize=True)
        by_features = by_sums @ state.sums.T
        if head.is_log:
            by_features *= factors
        by_queries[:, block] = _pull_back_queries(head, queries[:, block], by_features)
    for block in _blocks(len(keys), block_size):
        extended = with_ones(values[block], _part(padding, block))
        features = head.features(keys[block], _part(padding, block), keys=True)
        factors = head.lower(features, state.top)
        by_values[block] = _keep(factors @ later[:, :-1], _part(padding, block))
        by_features = extended @ later.T
        if head.is_log:
            by_features *= factors
        by_keys[block] = head.pull_back(keys[block], by_features, keys=True)
    return by_queries, by_keys, by_values


def _pull_back_queries(head, queries, by_features):
    width = queries.shape[-1]
    flat = by_features.reshape(-1, by_features.shape[-1])
    return head.pull_back(queries.reshape(-1, width), flat).reshape(queries.shape)


def _keep(by_values, padding):
    if padding is not None:
        by_values[padding] = 0.0
    return by_values


# -------------------------------------------------------------------- causal


def causal(head, state, queries, keys, values, padding, out, block_size=_FEATURE_ROWS):
    """Write causal attention, the keys of `state` before those given, and return the new state."""
    for block in _blocks(len(keys), block_size):
        mask = _part(padding, block)
        query_features = head.query_features(queries[:, block])
        key_features = head.features(keys[block], mask, keys=True)
        extended = with_ones(values[block], mask)
        own = out[:, block]
        for part in _blocks(len(extended), _CAUSAL_ROWS):
            for rows, top in _safe_parts(head, state.top, key_features, part):
                sums = state.at(top)
                left = head.lift(query_features[:, rows], top)
                right = head.lower(key_features[rows], top)
                near = _triangle(left @ right.T)
                far = left @ sums.astype(left.dtype)
                divide(far + near @ extended[rows], own[:, rows])
                state = State(top, sums + right.T @ extended[rows])
    return state


def _safe_parts(head, top, key_features, part):
    """Yield (rows, top at their end): exponents rise by no more than the limit within a part.

    Every feature then has a key of exponent top - limit or more before any row of the part, so the
    row's denominator is at least exp(-limit).
    """
    waiting = [part]
    while waiting:
        rows = waiting.pop()
        own = key_features[rows]
        end = head.raised(top, own)
        if head.is_log and len(own) > 1:
            rise = -_differences(head.raised(top, own[:1]), end)
            if rise[np.isfinite(end)].max(initial=0.0) > _LIMITS[own.dtype]:
                middle = (rows.start + rows.stop) // 2
                waiting += [slice(middle, rows.stop), slice(rows.start, middle)]
                continue
        yield rows, end
        top = end


_TRIANGLES = {}


def _triangle(products):
    """Set products with later keys to 0."""
    key = products.shape[-1], products.dtype
    if key not in _TRIANGLES and key[0] == _CAUSAL_ROWS:
        _TRIANGLES[key] = np.tri(key[0], dtype=products.dtype)
    products *= _TRIANGLES[key] if key in _TRIANGLES else np.tri(key[0], dtype=products.dtype)
    return products


def causal_backward(
    head, state, queries, keys, values, padding, gradient, sweep=None, block_size=_FEATURE_ROWS
):
    """Return gradients of causal attention, and the sweep before these positions.

    Parameters
    ----------
    head : Head
        The mechanism.
    state : State
        What the forward pass knew before these positions; a constant.
    queries, keys, values : ndarray of shape (G, n, d), (n, d), (n, e)
        Inputs of these positions.
    padding : ndarray of shape (n,) or None
        True where a key is padding.
    gradient : ndarray of shape (G, n, e)
        Gradient with respect to the output.
    sweep : Sweep or None
        What later positions left; None at the end.
    block_size : int
        Rows whose features are held at a time.

    Returns
    -------
    by_queries, by_keys, by_values : ndarray
        Gradients, shapes of the inputs.
    sweep : Sweep
        For the positions before.
    """
    by_queries, by_keys, by_values = map(np.empty_like, (queries, keys, values))
    starts = []
    for block in _blocks(len(keys), block_size):
        starts.append((block, state))
        state = absorb(head, state, keys[block], values[block], _part(padding, block), block_size)
    if sweep is None:
        sweep = Sweep(state.top, np.zeros_like(state.sums))
    for block, start in reversed(starts):
        mask = _part(padding, block)
        by_q, by_k, by_v, sweep = _block_backward(
            head,
            start,
            queries[:, block],
            keys[block],
            values[block],
            mask,
            gradient[:, block],
            sweep,
        )
        by_queries[:, block] = _pull_back_queries(head, queries[:, block], by_q)
        by_keys[block] = head.pull_back(keys[block], by_k, keys=True)
        by_values[block] = by_v
    return by_queries, by_keys, by_values, sweep


def _block_backward(head, state, queries, keys, values, padding, gradient, sweep):
    """Return gradients with respect to features and values of one block, and the sweep before."""
    query_features = head.query_features(queries)
    key_features = head.features(keys, padding, keys=True)
    extended = with_ones(values, padding)
    by_queries, by_keys = np.empty_like(query_features), np.empty_like(key_features)
    by_values = np.empty(values.shape, key_features.dtype)
    checkpoints = []
    for part in _blocks(len(keys), _CAUSAL_ROWS):
        for rows, top in _safe_parts(head, state.top, key_features, part):
            sums = state.at(top)
            checkpoints.append((rows, top, sums))
            right = head.lower(key_features[rows], top)
            state = State(top, sums + right.T @ extended[rows])
    later, later_top = sweep.sums, sweep.top
    for rows, top, sums in reversed(checkpoints):
        later = later * np.exp(_differences(top, later_top))[:, None] if head.is_log else later
        later_top = top
        left = head.lift(query_features[:, rows].copy(), top)
        right = head.lower(key_features[rows], top)
        near = _triangle(left @ right.T)
        by_sums = split_gradient(left @ sums + near @ extended[rows], gradient[:, rows])
        by_near = _triangle(by_sums @ extended[rows].T)
        by_left = by_sums @ sums.T + by_near @ right
        by_right = extended[rows] @ later.T + np.einsum("gij,gim->jm", by_near, left, optimize=True)
        through = right @ later + np.einsum("gij,gie->je", near, by_sums, optimize=True)
        by_values[rows] = _keep(through[:, :-1], _part(padding, rows))
        by_queries[:, rows] = by_left * left if head.is_log else by_left
        by_keys[rows] = by_right * right if head.is_log else by_right
        later = later + np.einsum("gim,gie->me", left, by_sums, optimize=True)
    return by_queries, by_keys, by_values, Sweep(later_top, later)
