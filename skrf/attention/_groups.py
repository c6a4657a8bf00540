"""A set of keys with the queries that read it: what a mode of attention computes at a time.

NumPy sets are computed one by one, on threads, if they are long. Otherwise all sets are computed
together, with a leading axis for them, which the shapes below leave out. Column 0 of the values is
their weight, 1, or 0 for padding, so that numerators and denominators are one product.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .._arrays import arithmetic, cast, constant, like, namespace, rows_at_once, to_host
from .._sums import Memory, Rows, Sums, finite
from .._threads import rows_of_call, run_all
from ..features import needs_double
from ._inputs import check_finite

FEATURE_ROWS = 1024  # rows whose features are held at a time
RESET = 20.0  # nats by which a gate lets the past fall so far that a block begins there
_FAR = 64.0  # nats that float32 holds to 4e-6
_USUAL = 1e6  # values between this and its inverse stay inside the range of float32
_ROW_ENTRIES = 512  # of features and sums, roughly, for a query of one head
_THREADED_ROWS = 2**11  # queries and keys of a set, from which on threads pay
_NEW = Memory(np.empty, np.empty)


@dataclass(eq=False)
class KeySet:
    """Keys, values and the queries that read them, in the precision of the computation.

    Parameters
    ----------
    q : array of shape (G, L, d)
        Queries of G heads.
    k : array of shape (S, d)
        Keys; padded ones 0.
    v : array of shape (S, e)
        Values.
    padding : array of bool of shape (S,) or None
        True where a key is padding.
    log_gates : array of shape (S,) or None
        Logs of the share of the past that a position keeps.
    dtype : dtype
        In which to compute.
    """

    q: Any
    k: Any
    v: Any
    padding: Any
    log_gates: Any
    dtype: Any

    @classmethod
    def of(cls, inputs, number=None, **options):
        """Return that of a set of `Inputs`, or of all together."""
        parts = inputs.q, inputs.k, inputs.v, inputs.padding, inputs.log_gates
        if number is not None:
            parts = [None if array is None else array[number] for array in parts]
        return cls(*parts, **options)


class KeyGroup(KeySet):
    """A `KeySet` with feature maps.

    Parameters
    ----------
    *parts : array or None
        Those of a `KeySet`.
    maps : list of HeadMaps
        Of the sets; if they are fewer, they serve the next ones in turn.
    is_double : bool, default=False
        Whether to compute in float64 in any case.

    Attributes
    ----------
    is_positive : bool
        Whether features are logarithms.
    is_usual : bool
        Whether sums of the values stay inside the range of float32.
    xp : module
        The library of the arrays.
    is_numpy : bool
        Whether it is NumPy.
    """

    def __init__(self, *parts, maps, is_double=False):
        super().__init__(*parts, dtype=parts[0].dtype)
        self.maps, self.is_positive = maps, all([head.is_positive for head in maps])
        self.is_numpy, self.xp = isinstance(self.q, np.ndarray), namespace(self.q)
        largest = check_finite("v", self.v)
        self.is_usual = largest == 0 or 1 / _USUAL < largest < _USUAL
        is_double = is_double or not self.is_usual
        is_double = is_double or self.log_gates is not None and _falls_far(self.log_gates)
        # Both sides are checked, and have the highest precision that one of them needs.
        if self._needs_double(is_double or self.dtype == self.xp.float64):
            self.dtype = self.xp.float64
        self._memory = _NEW, _NEW  # for a step, which is one block
        if self.is_numpy and self.k.ndim == 2:
            self._memory = Memory(), Memory()

    @classmethod
    def of(cls, inputs, number, maps, is_double=False):
        """Return that of a set of `Inputs`, or of all together, given the maps of all."""
        maps = maps if number is None else [maps[number % len(maps)]]
        return super().of(inputs, number, maps=maps, is_double=is_double)

    def _needs_double(self, is_double):
        """Return whether features need float64, or raise if their exponents leave its range."""
        if is_double:
            reach = min([head.reach(self.k.shape[-1]) for head in self.maps])
            if max(check_finite("q", self.q), check_finite("k", self.k)) <= reach:
                return True
        n = len(self.maps)
        needed = [
            needs_double(side, rows if n == 1 else rows[i::n, ...], name)
            for i, head in enumerate(self.maps)
            for side, rows, name in ((head.queries, self.q, "q"), (head.keys, self.k, "k"))
        ]
        return is_double or any(needed)

    def rows_at_once(self, block_size):
        """Return how many rows of every head to work on at once: more on a GPU."""
        n_heads = math.prod(self.q.shape[:-2])
        return block_size or rows_at_once(self.q, n_heads * _ROW_ENTRIES, FEATURE_ROWS)

    def query_features(self, rows):
        """Return the features of some queries (G, n, M)."""
        sides = [head.queries for head in self.maps]
        return self._features(sides, self.q, rows, self._memory[0])

    def key_features(self, rows):
        """Return the features of some keys (n, M); those of padding are zero."""
        sides = [head.keys for head in self.maps]
        features = self._features(sides, self.k, rows, self._memory[1])
        if self.padding is None:
            return features
        hidden, (values, scale) = self.padding[..., rows, None], features
        fill = arithmetic(values).fill
        if features.holds_logs:
            return Rows(fill(values, hidden, -np.inf))
        return Rows(values, fill(scale, hidden, -np.inf))

    def _features(self, sides, X, rows, memory):
        """Return the features of some rows of every set, each by its own map."""
        with rows_of_call(math.prod(X.shape[:-1])):
            return self._of_rows(sides, cast(X[..., rows, :], self.dtype), memory)

    def _of_rows(self, sides, X, memory):
        (*lead, width), n = X.shape, len(sides)
        reshape = self.xp.reshape
        if n == 1:
            values, scale = memory.rows(sides[0], reshape(X, (-1, width)))
            scale = None if scale is None else reshape(scale, (*lead, -1))
            return Rows(reshape(values, (*lead, -1)), scale)
        # Scratch memory would serve one map at a time.
        own = (reshape(X[i::n, ...], (-1, width)) for i in range(n))
        parts = list(map(_NEW.rows, sides, own))
        if not self.is_positive:
            parts = [_signed(part) for part in parts]
        each = lead[0] // n, -1  # sets of a map, and their rows

        def together(arrays):
            arrays = [reshape(array, (*each, array.shape[-1])) for array in arrays]
            return reshape(self.xp.stack(arrays, axis=1), (*lead, -1))

        return Rows(*(None if a[0] is None else together(a) for a in zip(*parts, strict=True)))

    def values(self, rows):
        """Return [1, values] of some keys; rows of padding are 0."""
        xp, values = self.xp, cast(self.v[..., rows, :], self.dtype)
        values = xp.concat([xp.ones_like(values[..., :1]), values], axis=-1)
        if self.padding is None:
            return values
        return xp.where(self.padding[..., rows, None], like(0.0, values), values)


def _signed(rows):
    """Return features as numbers with log scales, also those given as logarithms."""
    values, scale, xp = *rows, namespace(rows.values)
    if not rows.holds_logs:
        return Rows(values, xp.broadcast_to(scale, values.shape))
    scale = constant(values)
    return Rows(xp.exp(values - finite(scale)), scale)


def _falls_far(log_gates):
    """Return whether gates of a block add exponents of which float32 would lose digits."""
    gates, xp = constant(log_gates), namespace(log_gates)
    if gates.shape[-1] == 1:  # a step of a stream
        return False
    gates = xp.where(gates < -RESET, like(0.0, gates), gates)  # those begin a block
    falls = (
        xp.min(xp.sum(gates[..., rows], axis=-1)) for rows in blocks(gates.shape[-1], FEATURE_ROWS)
    )
    return min(map(float, falls)) < -_FAR


class Output:
    """Rows of a result in their order, block by block.

    Parameters
    ----------
    group : KeyGroup
        What they are computed from.
    wants_lse : bool, default=False
        Whether logarithms of denominators are kept as well.
    """

    def __init__(self, group, wants_lse=False):
        self.may_be_lost, self.wants_lse = not group.is_positive, wants_lse
        self._outs, self._logs, self._zeros = [], [], []

    def put(self, sums, level):
        """Add the rows of denominators and numerators (..., n, 1 + e), given their log scales."""
        weights = sums[..., :1]
        if self.may_be_lost:
            self._zeros.append(to_host(constant(weights[..., 0]) == 0))
        if self.wants_lse:
            self._logs.append(log_weights(weights[..., 0], level[..., 0]))
        self._outs.append(quotients(sums))

    def joined(self):
        """Return all rows, (..., L, e)."""
        return side_by_side(self._outs, -2)

    def lse(self):
        """Return the logarithms of all denominators, (..., L), in float64; None if not wanted."""
        return side_by_side(self._logs, -1) if self.wants_lse else None

    def zeros(self):
        """Return, on the host, which denominators are 0, (..., L); None for positive maps."""
        return side_by_side(self._zeros, -1) if self.may_be_lost else None


def quotients(sums):
    """Return numerators over denominators, the first of the sums; 0 where that is 0."""
    weights = sums[..., :1]
    is_zero = weights == 0
    if isinstance(sums, np.ndarray) and not is_zero.any():
        return sums[..., 1:] / weights
    # Dividing by inf gives 0, and no gradient.
    return sums[..., 1:] / namespace(sums).where(is_zero, like(np.inf, sums), weights)


def log_weights(weights, level):
    """Return the logarithms of weights times exp(level), in float64; 0 has -inf and no gradient."""
    xp = namespace(weights)
    is_zero = weights == 0
    logs = xp.log(cast(xp.where(is_zero, like(1.0, weights), weights), xp.float64)) + level
    return xp.where(is_zero, like(-np.inf, logs), logs)


class Attended(NamedTuple):
    """What is computed of a set, or of all sets with an axis for them.

    Parameters
    ----------
    out : array of shape (G, L, e)
        Outputs.
    lse : array of shape (G, L) or None
        Logarithms of sums of weights.
    sums : Sums or None
        Over all keys, in causal attention that goes on.
    is_double : bool
        Whether values are outside the safe range of float32.
    n_lost : int
        Queries whose weights sum to 0 although they see a key.
    distances : ndarray or float
        As from `judged`, or 0.
    """

    out: Any
    lse: Any
    sums: Sums | None
    is_double: bool
    n_lost: int
    distances: Any

    @classmethod
    def of_sets(cls, found, is_joint):
        """Return that of all sets, given those of each, or the only one of all together."""
        if is_joint:
            return found[0]
        outs, logs, sums, is_double, n_lost, distances = zip(*found, strict=True)
        logs = None if logs[0] is None else np.stack(logs)
        sums = None if any(one is None for one in sums) else Sums.stack(sums)
        return cls(np.stack(outs), logs, sums, any(is_double), sum(n_lost), sum(distances))


def for_each(function, inputs, is_joint):
    """Return the results of a function of the number of a set: of all at once, or of each.

    The number is None for all sets together. Each is computed on threads where sets are long.
    """
    if is_joint:
        return [function(None)]
    is_short = inputs.q.shape[-2] + inputs.k.shape[-2] < _THREADED_ROWS
    return run_all(function, range(inputs.q.shape[0]), is_short=is_short)


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
