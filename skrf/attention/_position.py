"""One position of a stream, in few operations: Python's time for them is most of what it costs.

The results are those of `_linear` and `_near`, to rounding.
"""

import threading

import array_api_compat
import numpy as np

from .._arrays import arithmetic, beside, cast, is_array_api, namespace
from .._sums import Sums, added, peaked, transposed
from ._near import LARGEST_SINGLE_LOGIT, NearState, grouped, longest, swapped

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
    window = before.window or Window(before, field.block, len(maps.groups))
    largest = max(window.largest, longest(unit.k))
    if not scale * longest(unit.q) * largest <= LARGEST_SINGLE_LOGIT:
        return None
    if not window.is_next(n):
        window = Window(before, field.block, len(maps.groups))
        window.is_next(n)
    window.largest = largest
    state = window.state_after(before, unit.k, unit.v)
    logs = unit.query_rows(_FIRST).values[..., 0, :] if maps.groups else None
    found = window.read(unit.q[..., 0, :] * scale, logs, n + 1)
    # Weights are 1 or more. The mean is over groups.
    found = found[..., 1:] / found[..., :1]
    found = namespace(found).mean(found, axis=-3) if len(maps.groups) > 1 else found[..., 0, :, :]
    out.put(_FIRST, found[..., None, :])
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
        """Return what queries see of n near keys and all others: sums (..., n_groups, G, e + 1).

        Parameters
        ----------
        q : array of shape (..., G, d)
            Scaled queries.
        logs : array of shape (..., G, M) or None
            Their log features; NumPy's are overwritten.
        n : int
            Number of near keys.
        """
        stop, xp = self._first + n, namespace(q)
        logits = q @ transposed(self._keys[..., :stop, :])
        if self._unseen is not None:
            logits = arithmetic(logits).fill(logits, self._unseen[..., :stop], -np.inf)
        logits = logits[..., None, :, :]
        if logs is not None:
            logs = swapped(grouped(arithmetic(logs).add(logs, self._top), self._n_groups))
            if self._n_groups > 1:
                logits = xp.broadcast_to(logits, (*logs.shape[:-1], stop))
            logits = xp.concat([logs, logits], axis=-1)
        return peaked(logits) @ self._sums[..., : self._n_far + stop, :]


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
