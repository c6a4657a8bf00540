"""The state of local attention between calls."""

from dataclasses import dataclass, fields
from typing import Any, Self

from ..._arrays import filled, namespace, take, to_host
from ..._typing import Array
from .._state import check_maker, checked_indices
from .causal import Held, with_room
from .layout import in_order

_OF_MAKER = "sizes", "maker"
_OF_KEYS = "recent", "counts", "n_first"  # one for every key head


@dataclass(frozen=True, eq=False)
class LocalState:
    """State of streaming local attention, made by `LocalAttention.init_state`.

    Once there are heavy keys, its size does not grow. The arrays belong to the library of the
    inputs, have the batch as their first axis, and are never modified: every step returns new ones.
    They are None before the first step.

    Parameters
    ----------
    recent : array of shape (..., m, d + e), default=None
        The last keys and values.
    counts : array of int of shape (...), default=None
        Number of positions that are not padding.
    far : array of shape (..., h + 1, d + e), default=None
        Heavy keys and values of every query head, and the mean of all others beyond the window; h
        is 0 while all keys are near, then `n_heavy`.
    bias : array of shape (..., h + 1), default=None
        Added to the inner products of queries with these keys; -inf where there is no key.
    scores : array of shape (..., h), default=None
        What the heavy keys were chosen by; -inf where there is no key.
    log_weight : array of shape (...), default=None
        Logarithm of the total weight of all others.
    first_sums : array of shape (..., 4, d), default=None
        Sums of queries, their squares, keys, and their squares, over the first positions.
    n_first : array of shape (...), default=None
        Number of positions in these sums.
    sizes : tuple, default=None
        Sizes of the operator, width of the keys, and whether the operator was fitted.
    maker : tuple of float, default=()
        The scale, and numbers that tell the fit of the operator from others.

    See Also
    --------
    LocalAttention.step : Returns the next state.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.attention import LocalAttention
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 4, 2, 1, 8))  # four texts, two heads
    >>> attention = LocalAttention(causal=True)
    >>> out, state = attention.step(q, k, v, attention.init_state())
    >>> state.select([2, 2, 0]).far.shape
    (3, 2, 1, 16)
    """

    recent: Array | None = None
    counts: Array | None = None
    far: Array | None = None
    bias: Array | None = None
    scores: Array | None = None
    log_weight: Array | None = None
    first_sums: Array | None = None
    n_first: Array | None = None
    sizes: tuple | None = None
    maker: tuple[float, ...] = ()

    def select(self, indices: Array) -> Self:
        """Return the state of some entries of the batch (first axis), for example in a beam search.

        Parameters
        ----------
        indices : array-like of int
            The entries, which may repeat.

        Returns
        -------
        LocalState
            The state of these entries.
        """
        if self.recent is None:
            return self
        if self.recent.ndim < 4:
            raise ValueError("select needs a batch and heads, but the keys had fewer axes.")
        rows = checked_indices(indices)
        return self.mapped(lambda _, array: take(array, rows))

    def mapped(self, function: Any) -> Self:
        """Return a state in which a function has been applied to every array.

        Parameters
        ----------
        function : callable
            Takes a name and an array, and returns an array.

        Returns
        -------
        LocalState
            The state.
        """
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        changed = {
            name: None if array is None else function(name, array) for name, array in arrays.items()
        }
        return type(self)(**changed, sizes=self.sizes, maker=self.maker)


_ARRAYS = tuple(field.name for field in fields(LocalState) if field.name not in _OF_MAKER)


def checked_counts(state, sizes, maker, inputs):
    """Return the counts of all sets on the host, or raise if a state does not fit.

    Parameters
    ----------
    state : LocalState
        The state.
    sizes : tuple
        Sizes of the operator, width of the keys, and whether it was fitted.
    maker : tuple of float
        The scale, and numbers that tell the fit.
    inputs : Inputs
        The positions that continue it.
    """
    xp, width = namespace(inputs.q), sizes[-2] + inputs.v.shape[-1]
    heads = tuple(state.recent.shape[:-2]), tuple(state.far.shape[:-2])
    given = *heads, state.far.shape[-1], namespace(state.far).__name__, state.sizes
    needed = tuple(inputs.key_leading), tuple(inputs.leading), width, xp.__name__, sizes
    names = "heads of keys", "heads of queries", "numbers per key and value", "library", "sizes"
    for name, one, other in zip(names, given, needed, strict=True):
        if one != other:
            raise ValueError(
                "state must come from earlier positions of the same inputs and operator: its "
                f"{name} are {one}, these are {other}."
            )
    check_maker(state.maker, maker)
    return to_host(state.counts).reshape(-1)


def goes_on(state, sizes, counts, rows):
    """Return whether rows without padding are one position within a block after the first."""
    count = counts[0]
    return (
        rows.shape[1] == 1
        and rows.dtype == state.recent.dtype
        and count > sizes.n_first
        and count % sizes.block > 0
        and bool((counts == count).all())
    )


def flat(state, inputs):
    """Return a state with one axis for all sets of keys, (U, ...), and one for their heads."""
    lead = tuple(inputs.q.shape[:2]), (inputs.q.shape[0],)
    return _reshaped(state, (len(inputs.leading), len(inputs.key_leading)), lead)


def held_of(state, stretch):
    """Return the `Held` of the sets of a `Stretch`; the state is flat."""
    if not isinstance(stretch.sets, slice):
        state = state.mapped(lambda _, array: take(array, stretch.sets))
    return Held(stretch.count, *(getattr(state, name) for name in Held._fields[1:]))


def state_of(kind, sizes, maker, helds, stretches, inputs):
    """Return the state of what is held of every `Stretch`, in the layout of inputs."""
    xp, n_rows = namespace(inputs.q), max(held.recent.shape[1] for held in helds)
    n_heavy = max(held.scores.shape[-1] for held in helds)

    def put(array):  # behind others, to the same number of rows
        missing = n_rows - array.shape[1]
        if not missing:
            return array
        shape = array.shape[0], missing, *array.shape[2:]
        return xp.concat([filled(0, shape, array, array.dtype), array], axis=1)

    parts = []
    for held in (with_room(held, n_heavy) for held in helds):
        arrays = dict(zip(Held._fields[1:], held[1:], strict=True))
        arrays["recent"] = put(held.recent)
        counts = filled(held.count, held.recent.shape[:1], held.recent, xp.int64)
        parts.append(kind(counts=counts, sizes=sizes, maker=maker, **arrays))
    state = parts[0].mapped(
        lambda name, _: in_order([getattr(part, name) for part in parts], stretches)
    )
    return _reshaped(state, (2, 1), (tuple(inputs.leading), tuple(inputs.key_leading)))


def _reshaped(state, n_lead, lead):
    """Return a state with other leading axes, those of query heads and of keys."""

    def reshaped(name, array):
        of_keys = name in _OF_KEYS
        shape = *lead[of_keys], *array.shape[n_lead[of_keys] :]
        return array if array.shape == shape else namespace(array).reshape(array, shape)

    return state.mapped(reshaped)
