"""A set of keys with the queries that read it: the unit that attention computes.

NumPy sets are computed one by one, on threads; in other libraries all sets that share their feature
maps are computed together, with a leading axis for them. Column 0 of the values is their weight, 1,
or 0 for padding, so that numerator and denominator are one product.
"""

import copy
import math
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from array_api_compat import device, is_torch_array

from .. import _kernels
from .._arrays import arithmetic, cast, is_array_api, like, namespace, rows_at_once, take
from .._sums import Memory, Rows, pays_in_parts
from .._threads import run_all
from ..features import as_feature_map, needs_double, side_by_side
from ._shapes import check_finite, unit_for

# Features of a set up to which all sets are computed at once: Python's overhead dominates.
TOGETHER = 2**13
EVERYTHING = slice(None)
PART_ROWS = 512  # of causal attention at a time, where features are taken in parts
_ROW_ENTRIES = 512  # of features, near scores and sums, roughly, for a query of one head
_SAMPLED_KEYS = 64  # per set, to guess the size of all exponents
_THREADED_ROWS = 2**11  # queries and keys of a set, from which on threads pay


class Head:
    """Feature maps of queries and of keys, and the mechanism that they belong to.

    Parameters
    ----------
    mechanism : mechanism
        Fitted.
    """

    def __init__(self, mechanism):
        self.mechanism = mechanism
        self.queries, self.keys = (as_feature_map(mechanism, keys=keys) for keys in (False, True))
        self.is_positive = self.keys.is_positive

    def beside(self, others):
        """Return a head with the columns of others appended to its own."""
        own, heads = copy.copy(self), [self, *others]
        own.queries = side_by_side([head.queries for head in heads])
        own.keys = side_by_side([head.keys for head in heads])
        return own


@dataclass(frozen=True, eq=False)
class HeadSet:
    """Feature maps of some query heads and their keys.

    Parameters
    ----------
    groups : tuple of tuple of Head
        For every group of features one `Head`, or one per query head; no group if far keys are
        left out.
    shrink : ndarray, default=None
        Factor of the far part per query head; None is 1.
    """

    groups: tuple
    shrink: np.ndarray | None = None

    @cached_property
    def heads(self):
        """One head for all query heads, or one for each, with the columns of all groups."""
        return [first.beside(others) for first, *others in zip(*self.groups, strict=True)]


class Unit:
    """Keys, values and the queries that read them, in the precision of the computation.

    Parameters
    ----------
    maps : HeadSet
        The feature maps; `head` is the first of them.
    q : array of shape (..., G, L, d)
        Queries of G heads.
    k : array of shape (..., S, d)
        Keys; padded ones 0.
    v : array of shape (..., S, e)
        Values.
    hidden : array of bool of shape (..., S), default=None
        True where a key is padding.
    """

    def __init__(self, maps, q, k, v, hidden=None):
        self.maps, self.head = maps, maps.heads[0] if maps.groups else None
        self.hidden, self.q, self.k, self.v = hidden, q, k, v
        self.memory = Memory(), Memory()
        self.value_unit, self._largest_value = 1.0, check_finite("v", v)
        # All use the highest precision that one of them needs.
        sides = [
            side for head in maps.heads for side in ((head.queries, q, "q"), (head.keys, k, "k"))
        ]
        needed = [needs_double(*side) for side in sides]
        self.dtype = namespace(q).float64 if any(needed) else q.dtype
        if isinstance(q, np.ndarray):
            for feature_map, rows, _ in sides:
                n_rows = math.prod(rows.shape[:-1])
                _kernels.load(np.empty(0, self.dtype), n_rows * feature_map.n_sines)

    def rows_at_once(self, usual):
        """Return how many rows of every head to work on at once: `usual`, more on a GPU."""
        return rows_at_once(self.q, math.prod(self.q.shape[:-2]) * _ROW_ENTRIES, usual)

    def of(self, head, queries=slice(None)):
        """Return the unit with other features, or restricted to some query heads."""
        own = copy.copy(self)
        own.head, own.memory, own.q = head, (Memory(), Memory()), self.q[..., queries, :, :]
        return own

    def take_units(self):
        """Divide huge or tiny values by a power of 2 of about their size."""
        self.value_unit = unit_for(self._largest_value)

    def queries(self, rows):
        """Return some queries (..., G, n, d)."""
        return cast(self.q[..., rows, :], self.dtype)

    def keys(self, rows):
        """Return some keys (..., n, d)."""
        return cast(self.k[..., rows, :], self.dtype)

    def values(self, rows):
        """Return [1, values] of some keys; rows of padded ones are 0."""
        return self.shown(self.extended(self.v[..., rows, :]), rows)

    def shown(self, array, rows):
        """Return an array of some keys with 0 in the rows of padded ones."""
        if self.hidden is None:
            return array
        return namespace(array).where(self.hidden[..., rows, None], like(0.0, array), array)

    def extended(self, values):
        """Return [1, values], in the unit of the values."""
        values = cast(values, self.dtype)
        if self.value_unit != 1:
            values = values / self.value_unit
        xp = namespace(values)
        return xp.concat([xp.ones_like(values[..., :1]), values], axis=-1)

    def query_rows(self, rows, lower=None):
        """Return the features of some queries, less `lower`."""
        return self.memory[0].rows(self.head.queries, self.queries(rows), lower)

    def key_rows(self, rows, lower=None):
        """Return the features of some keys, less `lower`; those of padded ones are zero."""
        features = self.memory[1].rows(self.head.keys, self.keys(rows), lower)
        return features if self.hidden is None else hide(features, self.hidden[..., rows])

    # ---------------------------------------------------------------- parts without zeros

    @property
    def is_parted(self):
        """Whether features have enough zeros to be worth skipping."""
        return pays_in_parts(self.head.keys, min(PART_ROWS, self.k.shape[-2]))

    @property
    def is_joint(self):
        """Whether sets have to be taken apart first, as each has its zeros elsewhere."""
        return self.k.ndim > 2 and self.is_parted

    def sets(self):
        """Return units of single sets, without the axis for sets."""
        found = []
        for u in range(self.k.shape[0]):
            own = self.of(self.head)
            own.q, own.k, own.v = (part[u, ...] for part in (self.q, self.k, self.v))
            own.hidden = None if self.hidden is None else self.hidden[u, ...]
            found.append(own)
        return found

    def query_parts(self, rows):
        """Return rows, columns and features of each part of some queries, head by head."""
        return self._parts(self.head.queries, as_rows(self.queries(rows)), self.memory[0])

    def key_parts(self, rows):
        """Return rows, columns and features of each part of some keys; padded ones are zero."""
        parts = self._parts(self.head.keys, self.keys(rows), self.memory[1])
        if self.hidden is None:
            return parts
        hidden = self.hidden[..., rows]
        return [(own, columns, hide(part, some(hidden, own, -1))) for own, columns, part in parts]

    def _parts(self, feature_map, X, memory):
        if not self.is_parted:
            return [(EVERYTHING, EVERYTHING, memory.rows(feature_map, X))]
        return [(*own, part(take(X, own[0]))) for *own, part in feature_map.parts(X)]

    # ---------------------------------------------------------------- scales that are guessed

    @property
    def takes_guesses(self):
        """Whether scales of sums may be guessed."""
        # A guess only saves passes for single sets of NumPy.
        return self.head.is_positive and isinstance(self.q, np.ndarray) and self.k.ndim == 2

    def level(self, sums):
        """Return exponents that suit blocks of keys after these sums, or None."""
        if sums is None or not (self.takes_guesses and np.isfinite(sums.top).all()):
            return None
        return sums.top

    def guess(self):
        """Return exponents of about the size of those of all keys, from a few keys, or None."""
        if not self.takes_guesses:
            return None
        n_keys = self.k.shape[-2]
        some = self.key_rows(slice(0, n_keys, max(1, n_keys // _SAMPLED_KEYS)))
        top = some.values.max(axis=0).astype(np.float64)
        return top if np.isfinite(top).all() else None


def unit_of(groups, sets, numbers):
    """Return the `Unit` of one NumPy set (an int) or of several that share maps (a list)."""
    parts = groups.q, groups.k, groups.v, groups.padding
    if not isinstance(numbers, list):
        return Unit(sets[numbers], *(None if part is None else part[numbers] for part in parts))
    if len(numbers) < len(sets):
        parts = (None if part is None else take(part, numbers) for part in parts)
    return Unit(sets[numbers[0]], *parts)


def are_short(groups):
    """Return whether sets have too few rows for threads to pay."""
    return groups.q.shape[-2] + groups.k.shape[-2] < _THREADED_ROWS


def for_each_unit(groups, sets, function, *, is_serial=False, is_joint=None):
    """Return the sets of every unit and the result of function(i, unit, sets) for it.

    Sets that share their maps form one unit if `is_joint`; None means in all libraries but NumPy.
    Others are computed one by one, on threads unless they are short or `is_serial`.
    """
    if not (is_array_api(groups.q) if is_joint is None else is_joint):
        units = range(len(sets))
        run = map if is_serial else partial(run_all, is_short=are_short(groups))
        return units, list(run(lambda u: function(u, unit_of(groups, sets, u), u), units))
    sharing = {}
    for u, own in enumerate(sets):
        sharing.setdefault(id(own), []).append(u)
    units = list(sharing.values())
    found = enumerate(units)
    return units, [function(i, unit_of(groups, sets, own), own) for i, own in found]


class Output:
    """Rows of a result, written block by block: into an array, or side by side for torch.

    Parameters
    ----------
    array : ndarray or None
        Array to write to; None keeps the blocks.
    unit : float, default=1.0
        Factor of everything that is written.

    Attributes
    ----------
    adds : bool
        Set after a first pass, so that later ones add to its results.
    """

    def __init__(self, array=None, unit=1.0):
        self.array, self.unit, self.parts, self.zeros, self.adds = array, unit, {}, [], False

    def put(self, rows, values):
        """Write rows, a slice of axis -2."""
        if self.unit != 1:
            values = values * self.unit
        if self.array is None:
            self.parts[rows.start] = self.parts[rows.start] + values if self.adds else values
        elif self.adds:
            self.array[..., rows, :] += values
        else:
            self.array[..., rows, :] = values

    def put_quotients(self, rows, sums):
        """Write numerators over denominators, the first of the sums; 0 where that is 0."""
        weight = sums[..., :1]
        if self.array is not None and self.unit == 1 and not self.adds and weight.all():
            np.divide(sums[..., 1:], weight, out=self.array[..., rows, :], casting="same_kind")
            return
        self.zeros.append((rows, weight[..., 0] == 0))
        self.put(rows, quotients(sums))

    def joined(self):
        """Return the whole result."""
        if self.array is not None:
            return self.array
        parts = [self.parts[start] for start in sorted(self.parts)]
        return parts[0] if len(parts) == 1 else namespace(parts[0]).concat(parts, axis=-2)


def quotients(sums):
    """Return numerators over denominators, the first of the sums; 0 where that is 0."""
    if is_torch_array(sums) and sums.requires_grad:
        from ._torch import Quotients

        return Quotients.apply(sums)
    return sums[..., 1:] / divisors(sums)


def divisors(sums):
    """Return denominators, inf in place of 0: dividing by it gives 0, and no gradient."""
    weight = sums[..., :1]
    return namespace(sums).where(weight == 0, like(np.inf, sums), weight)


def joined(groups, sets, outputs):
    """Return the outputs of another library for lists of sets as one array, in their order."""
    return joined_in_order([cast(out.joined(), groups.q.dtype) for out in outputs], sets)


def joined_in_order(parts, sets):
    """Return arrays for lists of sets as one array, in the order of the sets."""
    if len(parts) == 1:
        return parts[0]
    return take(namespace(parts[0]).concat(parts, axis=0), np.argsort(np.concatenate(sets)))


def some(X, places, axis=-2):
    """Return some rows or columns, and X itself for `EVERYTHING`."""
    return X if places is EVERYTHING else take(X, places, axis)


def hide(rows, hidden):
    """Return features with those of hidden rows zero; NumPy's logarithms are overwritten."""
    values, scale = rows
    fill, hidden = arithmetic(values).fill, hidden[..., None]
    if scale is None:
        return Rows(fill(values, hidden, -np.inf))
    return Rows(values, fill(scale, hidden, -np.inf))


def blocks(n, size):
    """Return slices of `size` numbers that cover n."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def as_blocks(array, n_blocks):
    """Return rows (..., n, c) as blocks (..., n_blocks, n / n_blocks, c)."""
    shape = (*array.shape[:-2], n_blocks, array.shape[-2] // n_blocks, array.shape[-1])
    return namespace(array).reshape(array, shape)


def as_rows(array):
    """Return the rows of all blocks, or of all heads, (..., B, n, c), as one axis (..., B n, c)."""
    shape = (*array.shape[:-3], array.shape[-3] * array.shape[-2], array.shape[-1])
    return namespace(array).reshape(array, shape)


def filled(array, before, after, fill=0.0):
    """Return rows with more of a value before and after them."""
    if not before and not after:
        return array
    xp, (*leading, _, width) = namespace(array), array.shape

    def more(n):
        return xp.full((*leading, n, width), fill, dtype=array.dtype, device=device(array))

    return xp.concat([more(before), array, more(after)], axis=-2)
