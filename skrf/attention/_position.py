"""One position of a stream, in few operations, since Python's overhead dominates its cost.

The results are those of `_linear` and `_near`, to rounding.
"""

import math
import threading

import array_api_compat
import numpy as np

from .._arrays import arithmetic, beside, cast, constant, namespace
from .._sums import Sums, lowered, transposed
from ._near import LARGEST_SINGLE_LOGIT, NearState, grouped, longest, swapped

_FIRST = slice(0, 1)


def by_features(unit, sums, out):
    """Write causal attention by features alone; return the sums including the position's key."""
    keys, values = unit.key_rows(_FIRST), unit.values(_FIRST)
    queries = unit.query_rows(_FIRST)
    if keys.scale is None:
        after, found = _by_logarithms(sums, keys.values, values, queries.values)
        if math.isfinite(float(namespace(found).sum(constant(found)[..., 0]))):
            out.put(_FIRST, found[..., 1:] / found[..., :1])
            return after
        # NumPy features were overwritten.
        keys, queries = unit.key_rows(_FIRST), unit.query_rows(_FIRST)
    # One key needs no product of matrices.
    xp, top = namespace(unit.k), sums.raised(keys)
    factors, _ = lowered(keys, top)
    own = transposed(cast(factors, xp.float64)) * cast(values, xp.float64)
    sums = Sums(arithmetic(own).add(own, sums.at(top)), top)
    seen = Sums(sums.sums[..., None, :, :], sums.top[..., None, :])  # by every query head
    out.put_quotients(_FIRST, seen.weigh(queries))
    return sums


def _by_logarithms(sums, keys, values, queries):
    """Return the sums including a key, and what queries read from them, if no feature is 0.

    Features that are 0 give NaN: -inf minus -inf.
    """
    xp = namespace(keys)
    with np.errstate(invalid="ignore"):
        own = cast(keys[..., 0, :], xp.float64)
        top = xp.maximum(sums.top, constant(own))
        total = xp.exp(own - top)[..., None] * values
        total = arithmetic(total).add(total, sums.sums * xp.exp(sums.top - top)[..., None])
        logs = queries + cast(top, queries.dtype)[..., None, None, :]
        do, highest = arithmetic(logs), constant(xp.max(logs, axis=-1, keepdims=True))
        weights = do.exp(do.subtract(logs, highest))
    return Sums(total, top), weights @ cast(total, weights.dtype)[..., None, :, :]


def near(unit, field, scale, before, out):
    """Write attention with a near field, and return the state after the position.

    Returns None, and writes nothing, where `NearAttention` must do it: if `_is_usual` is False, or
    logits are so large that they need float64.
    """
    if before is None or not _is_usual(unit, field, before):
        return None
    n, maps = before.keys.shape[-2], unit.maps
    window = before.window or Window(before, field.block, len(maps.groups))
    largest = max(window.largest, longest(unit.k))
    if not scale * longest(unit.q) * largest <= LARGEST_SINGLE_LOGIT:
        return None
    if not window.is_next(n):
        window = Window(before, field.block, len(maps.groups))
        window.is_next(n)
    window.largest = largest
    state = window.state_after(before, unit.k, unit.v)
    logs = unit.query_rows(_FIRST).values[..., 0, :] if before.sums else None
    if before.sums and maps.shrink is not None:  # of a single query head
        logs = logs + float(np.log(maps.shrink[0]))
    found = window.read(unit.q[..., 0, :] * scale, logs, n + 1)
    # Weights are 1 or more. The mean is over groups.
    found = found[..., 1:] / found[..., :1]
    found = namespace(found).mean(found, axis=-3) if len(maps.groups) > 1 else found[..., 0, :, :]
    out.put(_FIRST, found[..., None, :])
    return state


class Window:
    """What the positions of a block see, laid out for reading: far sums, anchors, near keys.

    Consecutive states share it. Each owns a number of its first rows, and every row is written
    once, by the first state that reaches it. Copies and pickles of states leave it out.

    Parameters
    ----------
    state : NearState
        State whose rows come first.
    block : int
        Number of positions in a block; there is room for two blocks.
    n_groups : int
        Groups of features.

    Attributes
    ----------
    largest : float
        The largest length of a key.
    """

    def __init__(self, state, block, n_groups):
        like, anchors, xp = state.keys, state.anchors, namespace(state.keys)
        place = {"dtype": like.dtype, "device": array_api_compat.device(like)}
        *leading, self._n, width = like.shape
        self._n_groups = n_groups = max(n_groups, 1)
        self._first = first = anchors.keys.shape[-2]
        rows, size = slice(first, first + self._n), first + 2 * block
        self._hidden = np.zeros((*leading, size), bool)
        self._hidden[..., rows] = state.hidden
        is_any = state.hidden.any()
        self._unseen = beside(self._hidden[..., None, :], like) if is_any else None
        self._keys = xp.empty((*leading, size, width), **place)
        self._keys[..., :first, :] = anchors.keys
        self._keys[..., rows, :] = state.keys
        self.largest = longest(self._keys[..., : rows.stop, :])
        # Weights before the values, and sums of far keys before those of single ones.
        self._n_far = sum(own.sums.shape[-2] for own in state.sums) // n_groups
        shape = (*leading, n_groups, self._n_far + size, state.values.shape[-1] + 1)
        self._sums = xp.ones(shape, **place)
        for own in state.sums:
            self._top = cast(own.top, like.dtype)[..., None, :]
            far = xp.reshape(own.sums, (*leading, n_groups, self._n_far, shape[-1]))
            self._sums[..., : self._n_far, :] = cast(far, like.dtype)
        self._values = self._sums[..., self._n_far :, 1:]
        self._values[..., :first, :] = anchors.values[..., None, :, :]
        self._values[..., rows, :] = state.values[..., None, :, :]
        self._lock = threading.Lock()

    def __reduce__(self):
        return type(None), ()

    def is_next(self, n):
        """Claim row n of the near keys, and return whether nobody else has it."""
        if _is_frozen(self._keys):
            return False
        with self._lock:
            is_next = self._n == n
            self._n += is_next
        return is_next

    def state_after(self, state, k, v):
        """Write the row that follows those of a state, and return the state that includes it."""
        place = self._first + state.keys.shape[-2]
        own, rows = slice(place, place + 1), slice(self._first, place + 1)
        self._keys[..., own, :] = k
        self._values[..., own, :] = v[..., None, :, :]
        return NearState(
            state.position + 1,
            state.sums,
            self._keys[..., rows, :],
            self._values[..., 0, rows, :],
            self._hidden[..., rows],
            state.anchors,
            self,
        )

    def read(self, q, logs, n):
        """Return the sums of queries over n near keys and all others, (..., n_groups, G, e + 1).

        Parameters
        ----------
        q : array of shape (..., G, d)
            Scaled queries.
        logs : array of shape (..., G, M) or None
            Their log features; NumPy arrays are overwritten.
        n : int
            Number of near keys.
        """
        stop, xp = self._first + n, namespace(q)
        with np.errstate(invalid="ignore"):  # BLAS may compute with what its buffers hold
            logits = q @ transposed(self._keys[..., :stop, :])
        if self._unseen is not None:
            logits = arithmetic(logits).fill(logits, self._unseen[..., :stop], -np.inf)
        logits = logits[..., None, :, :]
        if logs is not None:
            logs = swapped(grouped(arithmetic(logs).add(logs, self._top), self._n_groups))
            if self._n_groups > 1:
                logits = xp.broadcast_to(logits, (*logs.shape[:-1], stop))
            logits = xp.concat([logs, logits], axis=-1)
        # The maximum is finite: a query sees its own key.
        do, top = arithmetic(logits), xp.max(logits, axis=-1, keepdims=True)
        weights = do.exp(do.subtract(logits, top))
        return weights @ self._sums[..., : self._n_far + stop, :]


def _is_usual(unit, field, before):
    """Return whether a unit is an ordinary single position.

    It is not if it holds several positions, begins a block (where keys become far), is an anchor or
    padding, needs float64 for float32 inputs, has features with signs or several heads' features,
    or is a tensor that torch may differentiate, since rows are written in place.
    """
    heads = unit.maps.heads
    return (
        unit.q.shape[-2] == 1
        and before.keys.shape[-2] % field.block > 0
        and not (isinstance(field.anchors, tuple) and before.position in field.anchors)
        and unit.hidden is None
        and unit.dtype == unit.q.dtype == before.keys.dtype == before.values.dtype
        and len(heads) <= 1
        and all(head.is_positive for head in heads)
        and not _is_differentiated(unit.q, unit.k, unit.v)
        and (before.window is not None or _can_go_on(before, field))
    )


def _can_go_on(state, field):
    """Return whether all anchors are known and a row may be written after those of a state."""
    anchors = state.anchors
    n_anchors = anchors.keys.shape[-2]
    arrays = state.keys, state.values, anchors.keys, anchors.values, *(s.sums for s in state.sums)
    return (
        (isinstance(field.anchors, tuple) or n_anchors == field.anchors)
        and anchors.positions.min(initial=0) >= 0
        and array_api_compat.is_writeable_array(state.keys)
        and not _is_differentiated(*arrays)
    )


def _is_differentiated(*arrays):
    """Return whether torch may differentiate results of any of these."""
    return any(getattr(own, "requires_grad", False) for own in arrays)


def _is_frozen(array):
    """Return whether a tensor was made in torch's inference mode, which is now off."""
    is_torch = array_api_compat.is_torch_array(array)
    return is_torch and array.is_inference() and not namespace(array).is_inference_mode_enabled()
