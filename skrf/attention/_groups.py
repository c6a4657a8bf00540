"""A set of keys with the queries that read it: what a mode of attention computes at a time.

NumPy sets are computed one by one, on threads. In other libraries all sets that share their feature
maps are computed together, with a leading axis for them, which the shapes below leave out. Column 0
of the values is their weight, 1, or 0 for padding, so that numerators and denominators are one
product.
"""

import math
from itertools import pairwise

import numpy as np

from .. import _kernels
from .._arrays import arithmetic, cast, constant, like, namespace, rows_at_once, take
from .._sums import Memory, Rows
from .._threads import run_all
from ..features import needs_double
from ._inputs import check_finite

FEATURE_ROWS = 1024  # rows whose features are held at a time
RESET = 20.0  # nats by which a gate lets the past fall so far that a block begins there
_FAR = 64.0  # nats that float32 holds to 4e-6
_USUAL = 1e6  # values between this and its inverse stay inside the range of float32
_ROW_ENTRIES = 512  # of features and sums, roughly, for a query of one head
_THREADED_ROWS = 2**11  # queries and keys of a set, from which on threads pay


class KeyGroup:
    """Keys, values and the queries that read them, in the precision of the computation.

    Parameters
    ----------
    maps : HeadMaps
        Feature maps of both sides.
    q : array of shape (G, L, d)
        Queries of G heads.
    k : array of shape (S, d)
        Keys; padded ones 0.
    v : array of shape (S, e)
        Values.
    padding : array of bool of shape (S,), default=None
        True where a key is padding.
    is_double : bool, default=False
        Whether to compute in float64 in any case.
    log_gates : array of shape (S, r), default=None
        Logs of the share of the past that a position keeps, in each of r exponentials.
    log_weights : array of shape (r,), default=None
        Logs of what these are multiplied by.

    Attributes
    ----------
    is_usual : bool
        Whether sums of the values stay inside the range of float32.
    """

    def __init__(
        self, maps, q, k, v, padding=None, log_gates=None, log_weights=None, is_double=False
    ):
        self.log_gates, self.log_weights = log_gates, log_weights
        self.maps, self.q, self.k, self.v, self.padding = maps, q, k, v, padding
        self.is_numpy = isinstance(q, np.ndarray)
        largest = check_finite("v", v)
        self.is_usual = largest == 0 or 1 / _USUAL < largest < _USUAL
        sides = (maps.queries, q, "q"), (maps.keys, k, "k")
        # Both sides are checked, and have the highest precision that one of them needs.
        needed = [is_double, not self.is_usual, *(needs_double(*side) for side in sides)]
        needed.append(log_gates is not None and _falls_far(log_gates))
        self.dtype = namespace(q).float64 if any(needed) else q.dtype
        self._memory = Memory(), Memory()
        if self.is_numpy:
            for feature_map, rows, _ in sides:
                n_rows = math.prod(rows.shape[:-1])
                work = n_rows * feature_map.n_sines, n_rows * feature_map.n_transformed
                _kernels.load(np.empty(0, self.dtype), *work)

    def rows_at_once(self, block_size):
        """Return how many rows of every head to work on at once: more on a GPU."""
        n_heads = math.prod(self.q.shape[:-2])
        return block_size or rows_at_once(self.q, n_heads * _ROW_ENTRIES, FEATURE_ROWS)

    def query_features(self, rows):
        """Return the features of some queries (G, n, M)."""
        features = self._memory[0].rows(self.maps.queries, cast(self.q[..., rows, :], self.dtype))
        if self.log_weights is None:
            return features
        return features.repeated(self.log_weights[..., None, :])

    def key_features(self, rows):
        """Return the features of some keys (n, M); those of padding are zero."""
        features = self._memory[1].rows(self.maps.keys, cast(self.k[..., rows, :], self.dtype))
        if self.log_weights is not None:
            features = features.repeated(namespace(self.k).zeros_like(self.log_weights))
        if self.padding is None:
            return features
        hidden, (values, scale) = self.padding[..., rows, None], features
        fill = arithmetic(values).fill
        if scale is None:
            return Rows(fill(values, hidden, -np.inf))
        return Rows(values, fill(scale, hidden, -np.inf))

    def values(self, rows):
        """Return [1, values] of some keys; rows of padding are 0."""
        values = cast(self.v[..., rows, :], self.dtype)
        xp = namespace(values)
        values = xp.concat([xp.ones_like(values[..., :1]), values], axis=-1)
        if self.padding is None:
            return values
        return xp.where(self.padding[..., rows, None], like(0.0, values), values)


def _falls_far(log_gates):
    """Return whether gates of a block add exponents of which float32 would lose digits."""
    gates, xp = constant(log_gates), namespace(log_gates)
    if gates.shape[-2] == 1:  # a step of a stream
        return False
    gates = xp.where(gates < -RESET, like(0.0, gates), gates)  # those begin a block
    falls = (
        xp.min(xp.sum(gates[..., rows, :], axis=-2))
        for rows in blocks(gates.shape[-2], FEATURE_ROWS)
    )
    return min(map(float, falls)) < -_FAR


class Output:
    """Rows of a result, written block by block: into an array, or side by side where none is given.

    Parameters
    ----------
    array : ndarray, default=None
        Array to write to; None keeps the blocks.

    Attributes
    ----------
    zeros : list of (slice, array of bool)
        Rows among which some have the denominator 0, and which.
    """

    def __init__(self, array=None):
        self.array, self.blocks, self.zeros = array, {}, []

    def put_quotients(self, rows, sums):
        """Write numerators over denominators, the first of the sums; 0 where that is 0."""
        weights = sums[..., :1]
        if self.array is None:
            self.zeros.append((rows, weights[..., 0] == 0))
            self.blocks[rows.start] = quotients(sums)
            return
        out = self.array[..., rows, :]
        if weights.all():
            np.divide(sums[..., 1:], weights, out=out, casting="same_kind")
        else:
            self.zeros.append((rows, weights[..., 0] == 0))
            out[...] = quotients(sums)

    def put(self, values):
        """Write all rows."""
        if self.array is None:
            self.blocks = {0: values}
        else:
            self.array[...] = values

    def joined(self):
        """Return the whole result."""
        if self.array is not None:
            return self.array
        return side_by_side([self.blocks[start] for start in sorted(self.blocks)], -2)


def quotients(sums):
    """Return numerators over denominators, the first of the sums; 0 where that is 0."""
    weights = sums[..., :1]
    # Dividing by inf gives 0, and no gradient.
    return sums[..., 1:] / namespace(sums).where(weights == 0, like(np.inf, sums), weights)


def sets_of_groups(inputs, maps, is_joint=None):
    """Return the sets of every group: a number for a single set of NumPy, or a list of numbers.

    `is_joint` says whether sets with the same maps form one group; None means outside NumPy.
    """
    if inputs.is_numpy if is_joint is None else not is_joint:
        return list(range(len(maps)))
    sharing = {}
    for number, head in enumerate(maps):
        sharing.setdefault(id(head), []).append(number)
    return list(sharing.values())


def key_group(inputs, maps, sets, is_double=False):
    """Return the `KeyGroup` of one set, or of a list of sets that share their maps."""
    parts = inputs.q, inputs.k, inputs.v, inputs.padding, inputs.log_gates, inputs.log_weights
    if not isinstance(sets, list):
        parts, maps = [None if array is None else array[sets] for array in parts], maps[sets]
    else:
        if len(sets) < len(maps):
            parts = [None if array is None else take(array, sets) for array in parts]
        maps = maps[sets[0]]
    return KeyGroup(maps, *parts, is_double)


def for_each(function, groups, inputs):
    """Return [function(sets), ...] for the groups, on threads where they are long sets of NumPy."""
    is_short = inputs.q.shape[-2] + inputs.k.shape[-2] < _THREADED_ROWS
    if not inputs.is_numpy or isinstance(groups[0], list):
        return list(map(function, groups))
    return run_all(function, groups, is_short=is_short)


def in_order(parts, groups):
    """Return arrays of groups of sets, with an axis for the sets, as one in the order of the sets.

    Arrays of single sets have no such axis.
    """
    if not isinstance(groups[0], list):
        return np.stack(parts)
    if len(parts) == 1:
        return parts[0]
    return take(namespace(parts[0]).concat(parts, axis=0), np.argsort(np.concatenate(groups)))


def side_by_side(parts, axis):
    """Return arrays joined along an axis."""
    return parts[0] if len(parts) == 1 else namespace(parts[0]).concat(parts, axis=axis)


def blocks_between(edges, size):
    """Return slices of at most `size` numbers that cover those between edges, and cross none."""
    return [
        slice(start + block.start, start + block.stop)
        for start, stop in pairwise(edges)
        for block in blocks(stop - start, size)
    ]


def blocks(n, size):
    """Return slices of `size` numbers that cover n."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]
