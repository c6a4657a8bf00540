"""One position of a stream, in few operations: Python's time for them is most of what it costs.

The results are those of `_linear` and `_near`, to rounding.
"""

import threading

import array_api_compat
import numpy as np

from .._arrays import arithmetic, beside, cast, is_array_api, namespace
from .._sums import Sums, added, peaked, transposed
from ._near import LARGEST_SINGLE_LOGIT, NearState, grouped, longest, mean_quotients, swapped

_FIRST = slice(0, 1)


def by_features(unit, sums, out):
    """Write causal attention by features alone; return the sums with the key of the position."""
    sums = added(sums, unit.key_rows(_FIRST), unit.values(_FIRST))
    seen = Sums(sums.sums[..., None, :, :], sums.top[..., None, :])  # by every query head
    out.put_quotients(_FIRST, seen.weigh(unit.query_rows(_FIRST)))
    return sums


def near(unit, field, scale, before, out):
    """Write attention with a near field, and return the state after the position.

    None, with nothing written, is for what `NearAttention` must do: the first position of a block,
    at which keys become far; anchors; padding; float64 for single inputs; features of single query
    heads, or with signs; and tensors that torch may differentiate, as rows are written in place.
    """
    n, maps = before.keys.shape[-2], unit.maps
    if (
        n % field.block == 0
        or _may_be_anchor(before, field)
        or unit.hidden is not None
        or not unit.dtype == unit.q.dtype == before.keys.dtype == before.values.dtype
        or maps.shrink is not None
        or len(maps.heads) > 1
        or not all(head.is_positive for head in maps.heads)
        or not _can_be_written(unit, before)
    ):
        return None
    window = before.window or Window(before, field.block)
    largest = max(window.largest, longest(unit.k))
    if not scale * longest(unit.q) * largest <= LARGEST_SINGLE_LOGIT:
        return None
    if not window.is_next(n):
        window = Window(before, field.block)
        window.is_next(n)
    window.largest = largest
    state = window.state_after(before, unit.k, unit.v)
    logits, values = window.exact(unit.q[..., 0, :] * scale, n + 1)
    if maps.heads:
        logs = unit.query_rows(_FIRST).values[..., 0, :]
        found = window.with_far(logits, values, logs, len(maps.groups))
    else:
        found = peaked(logits) @ values
    out.put(_FIRST, mean_quotients(found)[..., None, :])
    return state


class Window:
    """What the positions of a block see, ready to be read: sums of far keys, anchors, near keys.

    States that follow each other share it. Each has its first rows, and a row is written once: by
    the first state that comes to it. Copies and pickles of states leave it out.

    Parameters
    ----------
    state : NearState
        Whose rows are the first.
    block : int
        Positions of a block; there is room for two.

    Attributes
    ----------
    largest : float
        The largest length of a key.
    """

    def __init__(self, state, block):
        like, anchors, xp = state.keys, state.anchors, namespace(state.keys)
        place = {"dtype": like.dtype, "device": array_api_compat.device(like)}
        *leading, self._n, width = like.shape
        self._first = first = anchors.keys.shape[-2]
        rows, own = slice(first, first + self._n), (*leading, first + 2 * block)
        self._keys = xp.empty((*own, width), **place)
        self._values = xp.ones((*own, state.values.shape[-1] + 1), **place)  # weights first
        for target, part, earlier in (
            (self._keys, state.keys, anchors.keys),
            (self._values[..., 1:], state.values, anchors.values),
        ):
            target[..., :first, :] = earlier
            target[..., rows, :] = part
        self._hidden = np.zeros(own, bool)
        self._hidden[..., rows] = state.hidden
        is_any = state.hidden.any()
        self._unseen = beside(self._hidden[..., None, :], like) if is_any else None
        self._far = [
            (cast(sums.sums, like.dtype), cast(sums.top, like.dtype)[..., None, :])
            for sums in state.sums
        ]
        self.largest = longest(self._keys[..., : rows.stop, :])
        self._lock = threading.Lock()

    def __reduce__(self):
        return type(None), ()

    def is_next(self, n):
        """Tell whether nobody has row n of the near keys yet, and take it."""
        with self._lock:
            is_next = self._n == n
            self._n += is_next
        return is_next

    def state_after(self, state, k, v):
        """Write the row behind those of a state, and return the state that has it."""
        place = self._first + state.keys.shape[-2]
        own, rows = slice(place, place + 1), slice(self._first, place + 1)
        self._keys[..., own, :] = k
        self._values[..., own, 1:] = v
        return NearState(
            state.position + 1,
            state.sums,
            self._keys[..., rows, :],
            self._values[..., rows, 1:],
            self._hidden[..., rows],
            state.anchors,
            self,
        )

    def exact(self, q, n):
        """Return logits (..., 1, G, r) of queries (..., G, d), and [1, values] (..., 1, r, e + 1)."""
        stop = self._first + n
        logits = q @ transposed(self._keys[..., :stop, :])
        if self._unseen is not None:
            logits = arithmetic(logits).fill(logits, self._unseen[..., :stop], -np.inf)
        return logits[..., None, :, :], self._values[..., None, :stop, :]

    def with_far(self, logits, values, logs, n_groups):
        """Return the sums over all that queries with log features (..., G, M) see, of each group."""
        ((far, top),) = self._far
        xp = namespace(logits)
        logs = swapped(grouped(arithmetic(logs).add(logs, top), n_groups))  # (..., groups, G, m)
        far = xp.reshape(far, (*logs.shape[:-2], logs.shape[-1], far.shape[-1]))
        logits = xp.broadcast_to(logits, (*logs.shape[:-1], logits.shape[-1]))
        weights, n_far = peaked(xp.concat([logs, logits], axis=-1)), logs.shape[-1]
        return weights[..., :n_far] @ far + weights[..., n_far:] @ values


def _may_be_anchor(state, field):
    """Tell whether the next position may be an anchor, or places of earlier ones are empty."""
    positions = state.anchors.positions
    if isinstance(field.anchors, tuple):
        is_complete = state.position not in field.anchors
    else:
        is_complete = positions.shape[-1] == field.anchors
    return not is_complete or bool((positions < 0).any())


def _can_be_written(unit, state):
    """Tell whether rows may be written in place behind those of a state."""
    arrays = [unit.q, unit.k, unit.v]
    if state.window is None:
        anchors = state.anchors
        arrays += [state.keys, state.values, anchors.keys, anchors.values]
        arrays += [own.sums for own in state.sums]
    if not is_array_api(unit.q):
        return True
    return array_api_compat.is_writeable_array(state.keys) and not any(
        getattr(own, "requires_grad", False) for own in arrays
    )
