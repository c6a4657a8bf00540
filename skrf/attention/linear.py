"""Attention in time linear in the length: sums over keys, read by queries, on the log scale.

Feature f has the sum ``S_f = sum_j k_jf [1, v_j]``; query i reads ``sum_f q_if S_f`` and divides by
its first column. Exponents are those of `skrf._sums`. Column 0 of the values is their weight, 1, or
0 for padding, so that numerators and denominators are one product.

Causal attention takes positions in blocks, and query i reads keys up to i. What precedes a block is
held in `Sums`, on one scale; where exponents rise too far for that, the block is cut in two, down
to single rows. Every denominator of a positive map is then at least exp(-limit), so that nothing
needs an epsilon. A later key changes earlier outputs by rounding only. Within a block, parts of
positions have triangles of products; all that is earlier than a part enters as sums.

A gate multiplies what earlier positions have left: key j has the weight exp(G_i - G_j) for query i,
G the running sum of log gates. The factor exp(G_i) cancels in the quotient, and exp(-G_j) is added
to the exponents of the key's features. Counted from the first position of every block, these shifts
stay small; all sums fall by the gate of that position before the block, and by the others after it.
Gates that keep nearly nothing begin a block.

There are U sets of keys, each read by G query heads. NumPy takes as many sets at a time as have
about 1,024 positions, other libraries all.
"""

import math
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from .._arrays import (
    arithmetic,
    cast,
    constant,
    is_array_api,
    is_on_gpu,
    is_torch,
    like,
    namespace,
    rows_at_once,
    to_host,
)
from .._sums import (
    Memory,
    Rows,
    Sums,
    added,
    finite,
    rise_limit,
    scale_keys,
    scale_queries,
    transposed,
)
from .._threads import rows_of_call
from ..features import needs_double
from ._gates import gate_sums
from ._inputs import blocks, blocks_between, check_finite, side_by_side
from .merging import log_weights

FEATURE_ROWS = 1024  # rows whose features are held at a time
_PART_ROWS, _ARRAY_API_PART_ROWS = 128, 64  # of a triangular product, half of which is for nothing
_ALONE = 64  # positions of a call up to which their pairs cost less than sums of features
_RESET = 20.0  # nats by which a gate lets the past fall so far that a block begins there
_FAR = 64.0  # nats that float32 holds to 4e-6
_USUAL = 1e6  # values between this and its inverse stay inside the range of float32
_ROW_ENTRIES = 512  # of features and sums, roughly, for a query of one head
_NEW = Memory(np.empty, np.empty)


class KeyFeatures:
    """Features and values of sets of keys, and features of the queries that read them.

    Parameters
    ----------
    inputs : Inputs
        All sets.
    maps : list of HeadMaps
        Of all sets; if they are fewer, they serve the next ones in turn.
    sets : slice
        The sets to take, as from `Inputs.slices`.
    is_double : bool, default=False
        Whether to compute in float64 in any case.

    Attributes
    ----------
    dtype : dtype
        In which features and values are computed.
    is_positive : bool
        Whether features are logarithms.
    is_usual : bool
        Whether sums of the values stay inside the range of float32.
    """

    def __init__(self, inputs, maps, sets, is_double=False):
        n = len(maps)
        if sets.stop - sets.start < n:
            maps = [maps[i % n] for i in range(sets.start, sets.stop)]
        self.inputs, self.maps, self.xp = inputs.of(sets), maps, namespace(inputs.q)
        self._parts, inputs = {}, self.inputs
        self.is_positive = all([head.is_positive for head in maps])
        largest, gates = check_finite("v", inputs.v), inputs.log_gates
        self.is_usual = largest == 0 or 1 / _USUAL < largest < _USUAL
        is_double = is_double or not self.is_usual or inputs.q.dtype == self.xp.float64
        is_double = is_double or (gates is not None and _fall_far(gates))
        # Both sides are checked, and have the highest precision that one of them needs.
        self.dtype = self.xp.float64 if self._needs_double(is_double) else inputs.q.dtype
        self._memory = _NEW, _NEW  # for a step, which is one block
        if inputs.is_numpy and inputs.k.shape[-2] > 1:
            self._memory = Memory(), Memory()

    def _needs_double(self, is_double):
        """Return whether features need float64, or raise if their exponents leave its range."""
        q, k, n = self.inputs.q, self.inputs.k, len(self.maps)
        if is_double:
            reach = min([head.reach(k.shape[-1]) for head in self.maps])
            if max(check_finite("q", q), check_finite("k", k)) <= reach:
                return True
        needed = [
            needs_double(side, rows if n == 1 else rows[i::n, ...], name)
            for i, head in enumerate(self.maps)
            for side, rows, name in ((head.queries, q, "q"), (head.keys, k, "k"))
        ]
        return is_double or any(needed)

    def rows_at_once(self, block_size):
        """Return how many rows of every head to work on at once: more on a GPU."""
        n_heads = math.prod(self.inputs.q.shape[:-2])
        return block_size or rows_at_once(self.inputs.q, n_heads * _ROW_ENTRIES, FEATURE_ROWS)

    def cut(self, name, parts):
        """Cut an input into the slices of rows that are read: all of its rows, in their order.

        Torch fills a gradient of the whole length for every slice that is read alone.
        """
        array = getattr(self.inputs, name)
        if is_torch(array) and len(parts) > 1:
            pieces = array.split([rows.stop - rows.start for rows in parts], dim=-2)
            self._parts[name] = {
                rows.start: piece for rows, piece in zip(parts, pieces, strict=True)
            }

    def _rows(self, name, rows):
        """Return some rows of an input."""
        if name in self._parts:
            return self._parts[name][rows.start]
        return getattr(self.inputs, name)[..., rows, :]

    def queries(self, rows):
        """Return the features of some queries (U, G, n, M)."""
        sides = [head.queries for head in self.maps]
        return self._of(sides, self._rows("q", rows), self._memory[0])

    def keys(self, rows):
        """Return the features of some keys (U, n, M); those of padding are zero."""
        sides, padding = [head.keys for head in self.maps], self.inputs.padding
        features = self._of(sides, self._rows("k", rows), self._memory[1])
        if padding is None:
            return features
        hidden, fill = padding[..., rows, None], arithmetic(features.values).fill
        if features.holds_logs:
            return Rows(fill(features.values, hidden, -np.inf))
        return Rows(features.values, fill(features.scale, hidden, -np.inf))

    def values(self, rows):
        """Return [1, values] of some keys (U, n, 1 + e); rows of padding are 0."""
        xp, values, padding = self.xp, self._rows("v", rows), self.inputs.padding
        values = cast(values, self.dtype)
        values = xp.concat([xp.ones_like(values[..., :1]), values], axis=-1)
        if padding is None:
            return values
        return xp.where(padding[..., rows, None], like(0.0, values), values)

    def _of(self, sides, X, memory):
        """Return the features of rows (U, ..., d) of every set, each by its own map."""
        reshape, (*lead, width), n = self.xp.reshape, X.shape, len(sides)
        X = cast(X, self.dtype)
        with rows_of_call(math.prod(lead)):
            if n == 1:
                rows = memory.rows(sides[0], reshape(X, (-1, width)))
                return rows.map(lambda array: reshape(array, (*lead, array.shape[-1])))
            # Scratch memory would serve one map at a time.
            parts = [_NEW.rows(sides[i], reshape(X[i::n, ...], (-1, width))) for i in range(n)]
        if not (self.is_positive or all(part.shares_scale for part in parts)):
            parts = [_signed(part) for part in parts]

        def together(arrays):
            arrays = [reshape(array, (lead[0] // n, -1, array.shape[-1])) for array in arrays]
            return reshape(self.xp.stack(arrays, axis=1), (*lead, -1))

        return Rows(*(None if a[0] is None else together(a) for a in zip(*parts, strict=True)))


def _signed(rows):
    """Return features as numbers with log scales, also those given as logarithms."""
    values, scale, xp = *rows, namespace(rows.values)
    if not rows.holds_logs:
        return Rows(values, xp.broadcast_to(scale, values.shape))
    scale = constant(values)
    return Rows(xp.exp(values - finite(scale)), scale)


# ---------------------------------------------------------------- all keys


def key_sums(features, size):
    """Return the `Sums` over all keys."""
    sums, parts = None, blocks(features.inputs.k.shape[-2], size)
    features.cut("k", parts)
    features.cut("v", parts)
    for rows in parts:
        sums = added(sums, features.keys(rows), features.values(rows))
    return sums


def attend_to_all(features, out, block_size=None):
    """Write the attention of all queries to all keys to an `Output`."""
    size = features.rows_at_once(block_size)
    sums = key_sums(features, size)
    sums = sums.balanced() if features.is_positive else sums
    sums = Sums(sums.sums[..., None, :, :], sums.top[..., None, :])  # for the heads of a set
    parts = blocks(features.inputs.q.shape[-2], size)
    features.cut("q", parts)
    for rows in parts:
        out.put(*sums.weigh(features.queries(rows)))


# ---------------------------------------------------------------- earlier keys


def attend_to_earlier(features, out, sums, block_size, goes_on=True):
    """Write causal attention to an `Output`, and return the sums over all keys.

    Parameters
    ----------
    features : KeyFeatures
        The positions; queries are those of the last ones.
    out : Output
        What is written.
    sums : Sums or None
        Over the keys of earlier calls.
    block_size : int or None
        Number of positions whose features are held at a time.
    goes_on : bool, default=True
        Whether the sums are wanted.
    """
    n, gates = features.inputs.k.shape[-2], features.inputs.log_gates
    first = n - features.inputs.q.shape[-2]
    parts = [slice(0, 1)]
    if n > 1:
        parts = _blocks_of_gates([0, first, n], gates, features.rows_at_once(block_size))
    is_alone = sums is None and not goes_on and len(parts) == 1 and n <= _ALONE
    own = [slice(rows.start - first, rows.stop - first) for rows in parts if rows.start >= first]
    for name, of_input in (("q", own), ("k", parts), ("v", parts)):
        features.cut(name, of_input)
    for rows in parts:
        keys, values, fall = features.keys(rows), features.values(rows), None
        block_gates = None if gates is None else gates[..., rows]
        if block_gates is not None and sums is not None:
            sums = _faded(sums, block_gates[..., :1])
        if block_gates is not None and block_gates.shape[-1] > 1:
            keys, fall = _gated(keys, block_gates)
        sums = Sums.before(keys, values) if sums is None else sums
        if rows.start < first:
            sums = sums.add(keys, values)
        else:
            queries = features.queries(slice(rows.start - first, rows.stop - first))
            sums = _attend_in_block(out, sums, queries, keys, values, fall, is_alone)
        if fall is not None:
            sums = _faded(sums, block_gates[..., 1:])
    return sums


def _attend_in_block(out, sums, queries, keys, values, fall, is_alone):
    """Write the attention of the positions of a block, and return the sums including their keys.

    Parameters
    ----------
    out : Output
        What is written.
    sums : Sums
        Over the keys of earlier positions.
    queries, keys : Rows
        Features (U, G, n, M) and (U, n, M).
    values : array of shape (U, n, 1 + e)
        [weight, values].
    fall : array of shape (U, 1, n, 1) or None
        Logarithms of factors that cancel in the quotients.
    is_alone : bool
        Whether nothing comes before or after, so that no sums are needed.
    """
    n = values.shape[-2]
    if n == 1:
        products, level, sums = _position(sums, queries, keys, values)
        out.put(products, level)
        return sums
    for rows, top in _safe_parts(sums, keys):
        is_alone = is_alone and rows == slice(0, n)
        earlier = None if is_alone else sums.at(top)
        left, _, level = scale_queries(queries.part(rows), top[..., None, :])
        right, _ = scale_keys(keys.part(rows), top)
        products, total = _products(left, right, values[..., rows, :], earlier)
        if not is_alone:
            sums = Sums(earlier + cast(total, earlier.dtype), top)
        out.put(products, level if fall is None else level + fall[..., rows, :])
    return sums


def _safe_parts(sums, keys):
    """Yield (rows, exponents at their end), where exponents rise by at most the limit within rows.

    Every feature then has a key of exponent top - limit or more before any row of the part.
    """
    limit = rise_limit(keys.values)
    waiting = [slice(0, keys.values.shape[-2])]
    while waiting:
        rows = waiting.pop()
        block = keys.part(rows)
        top = sums.raised(block)
        if rows.stop - rows.start > 1 and sums.rise(block, top) > limit:
            middle = (rows.start + rows.stop) // 2
            waiting += [slice(middle, rows.stop), slice(rows.start, middle)]
            continue
        yield rows, top
        sums = Sums(sums.sums, top)


def _position(before, queries, keys, values):
    """Return what a single position reads, the log scales of that, and the sums including its key.

    Parameters
    ----------
    before : Sums
        Over the keys of earlier positions.
    queries, keys : Rows
        Features (U, G, 1, M) and (U, 1, M).
    values : array of shape (U, 1, 1 + e)
        [weight, values].
    """
    xp, exponents = namespace(values), keys.exponents[..., 0, :]
    highest = cast(constant(exponents), xp.float64)
    top = xp.maximum(before.top, highest)
    level = xp.where(top > -np.inf, top, xp.zeros_like(top))
    fall, earlier = before.top - level, before.sums
    if xp is not np or fall.any():
        earlier = earlier * xp.exp(fall)[..., None]
    factors = xp.exp(exponents - level)
    if not keys.holds_logs:
        factors = keys.values[..., 0, :] * factors
    sums = factors[..., None] * values
    sums = arithmetic(sums).add(sums, earlier)
    exponents = queries.exponents + top[..., None, None, :]
    highest = xp.max(constant(exponents), axis=-1, keepdims=True)
    level = xp.where(highest > -np.inf, highest, xp.zeros_like(highest))
    factors = xp.exp(exponents - level)
    if not queries.holds_logs:
        factors = queries.values * factors
    return factors @ sums[..., None, :, :], level, Sums(sums, top)


def _products(queries, keys, values, earlier=None):
    """Return what positions read of keys up to their own, and the sums over these keys.

    Parameters
    ----------
    queries, keys : array of shape (U, G, n, M) and (U, n, M)
        Factors of features; NumPy's are overwritten.
    values : array of shape (U, n, 1 + e)
        [weight, values].
    earlier : array of shape (U, M, 1 + e), default=None
        Sums over the keys of earlier positions; None if nothing comes before or after these, which
        leaves out their sums.

    Returns
    -------
    products : array of shape (U, G, n, 1 + e)
        Denominators and numerators.
    total : array of shape (U, M, 1 + e) or None
        The sums.
    """
    xp, n = namespace(keys), keys.shape[-2]
    size = _PART_ROWS if xp is np else _ARRAY_API_PART_ROWS
    keys, values = _in_parts(keys, size, xp), _in_parts(cast(values, keys.dtype), size, xp)
    queries = _heads_as_rows(xp.moveaxis(_in_parts(queries, size, xp), -4, -3), xp)
    turned, total = transposed(keys), None
    products = _lower(queries @ turned) @ values
    if earlier is not None:
        earlier, total = _sums_before(cast(earlier, values.dtype), turned @ values)
        products = arithmetic(values).add(products, queries @ earlier)
    products = xp.reshape(products, (*products.shape[:-2], -1, *values.shape[-2:]))
    return _heads_as_rows(xp.moveaxis(products, -3, -4), xp)[..., :n, :], total


def _in_parts(array, size, xp):
    """Return rows (..., n, c) in parts (..., P, p, c), the last one padded with zeros."""
    *leading, n, width = array.shape
    if n > size and n % size:
        zeros = xp.broadcast_to(xp.zeros_like(array[..., :1, :]), (*leading, -n % size, width))
        array = xp.concat([array, zeros], axis=-2)
    return xp.reshape(array, (*leading, -(-n // size), -1, width))


def _heads_as_rows(array, xp):
    """Return the rows of all heads, or of all parts, (..., P, p, c), as one axis (..., P p, c)."""
    shape = (*array.shape[:-3], array.shape[-3] * array.shape[-2], array.shape[-1])
    return xp.reshape(array, shape)


def _sums_before(first, products):
    """Return sums over what comes before every part, and over all parts alone.

    Parameters
    ----------
    first : array of shape (U, M, c)
        What comes before the first part.
    products : array of shape (U, P, M, c)
        Sums over each part; NumPy arrays are overwritten.
    """
    xp, first = namespace(products), first[:, None, :, :]
    if products.shape[1] == 1:
        return first, products[:, 0, :, :]
    if is_on_gpu(products):
        sums = xp.cumulative_sum(products, axis=1, dtype=products.dtype)
        return xp.concat([first, first + sums[:, :-1, :, :]], axis=1), sums[:, -1, :, :]
    if is_array_api(products):  # the gradient of a cumulative sum would take twice as long
        earlier = accumulate(xp.unstack(products, axis=1)[:-1], initial=first[:, 0, :, :])
        return xp.stack(list(earlier), axis=1), xp.sum(products, axis=1)
    total = 0.0
    for i in range(products.shape[1]):
        before, total = total, total + products[:, i]
        products[:, i] = first[:, 0] + before
    return products, total


def _lower(products):
    """Return products (..., G c, c) with 0 for later keys; NumPy's are overwritten."""
    xp, c = namespace(products), products.shape[-1]
    heads = xp.reshape(products, (*products.shape[:-2], -1, c, c))
    if is_array_api(products):
        return xp.reshape(xp.tril(heads), products.shape)
    heads *= np.tri(c, dtype=products.dtype)
    return products


# ---------------------------------------------------------------- gates


def _blocks_of_gates(edges, gates, size):
    """Return slices of at most `size` positions that cross no edge.

    Gates close at the first position of a slice only.
    """
    if gates is not None:
        is_reset = to_host(constant(gates)) < -_RESET
        edges = np.unique([*edges, *np.flatnonzero(is_reset.any(axis=0))]).tolist()
    return blocks_between(edges, size)


def _gated(keys, gates):
    """Return the features of the keys of a block, raised by its gates (U, n) but the first.

    The factor of a query cancels in its quotient: its logarithm is returned as well, (U, 1, n, 1).
    NumPy features are overwritten.
    """
    xp = namespace(gates)
    falls = xp.concat([xp.zeros_like(gates[..., :1]), gate_sums(gates[..., 1:])], axis=-1)[
        ..., None
    ]
    return _shifted(keys, -cast(falls, keys.values.dtype)), falls[..., None, :, :]


def _shifted(rows, shift):
    """Return features with a shift of their logarithms."""
    if rows.holds_logs:
        return Rows(arithmetic(rows.values).add(rows.values, shift))
    fixed, values = constant(shift), rows.values
    if is_array_api(values):  # no gradient flows through scales
        values = values * namespace(values).exp(shift - fixed)
    return Rows(values, rows.scale + fixed)


def _faded(sums, log_gates):
    """Return `Sums` as they are after some gates (..., n)."""
    xp, values = namespace(log_gates), sums.sums
    fall = log_gates if log_gates.shape[-1] == 1 else xp.sum(log_gates, axis=-1, keepdims=True)
    fixed = constant(fall)
    if is_array_api(values):  # no gradient flows through exponents, nor to a gate of 0
        change = xp.where(fixed > -np.inf, fall - fixed, like(0.0, fixed))
        values = values * xp.exp(change)[..., None]
    with np.errstate(over="ignore"):  # to -inf: nothing is left
        return Sums(values, sums.top + fixed)


def _fall_far(gates):
    """Return whether gates of a block add exponents of which float32 would lose digits."""
    if gates.shape[-1] == 1:  # a step of a stream
        return False
    gates, xp = constant(gates), namespace(gates)
    gates = xp.where(gates < -_RESET, like(0.0, gates), gates)  # those begin a block
    parts = blocks(gates.shape[-1], FEATURE_ROWS)
    return min(float(xp.min(xp.sum(gates[..., rows], axis=-1))) for rows in parts) < -_FAR


# ---------------------------------------------------------------- results


class Output:
    """Outputs of some sets, written block by block in the order of their rows.

    Parameters
    ----------
    features : KeyFeatures
        What they are computed from.
    wants_lse : bool, default=False
        Whether logarithms of denominators are kept as well.
    """

    def __init__(self, features, wants_lse=False):
        self.may_be_lost, self.wants_lse = not features.is_positive, wants_lse
        self._outs, self._logs, self._zeros = [], [], []

    def put(self, sums, level):
        """Add the rows of denominators and numerators (..., n, 1 + e), given their log scales."""
        weights = sums[..., :1]
        is_zero = weights == 0
        if self.may_be_lost:
            self._zeros.append(to_host(constant(is_zero[..., 0])))
        if self.wants_lse:
            self._logs.append(log_weights(weights[..., 0], level[..., 0]))
        if is_array_api(sums) or is_zero.any():  # dividing by inf gives 0, and no gradient
            weights = namespace(sums).where(is_zero, like(np.inf, sums), weights)
        self._outs.append(sums[..., 1:] / weights)

    def joined(self):
        """Return all rows, (..., L, e)."""
        return side_by_side(self._outs, -2)

    def lse(self):
        """Return the logarithms of all denominators, (..., L), in float64; None if not wanted."""
        return side_by_side(self._logs, -1) if self.wants_lse else None

    def zeros(self):
        """Return, on the host, which denominators are 0, (..., L); None for positive maps."""
        return side_by_side(self._zeros, -1) if self.may_be_lost else None


class AttentionResult(NamedTuple):
    """What is computed of some sets.

    Parameters
    ----------
    out : array of shape (U, G, L, e)
        Outputs.
    lse : array of shape (U, G, L) or None
        Logarithms of sums of weights.
    sums : Sums or None
        Over all keys, in causal attention that goes on.
    is_double : bool
        Whether values are outside the safe range of float32.
    n_lost : int
        Queries whose weights sum to 0 although they see a key.
    distances : ndarray or float
        As from `sampled_distances`, or 0.
    """

    out: Any
    lse: Any
    sums: Sums | None
    is_double: bool
    n_lost: int
    distances: Any

    @classmethod
    def joined(cls, results):
        """Return the result of all sets, given those of parts of them in their order."""
        if len(results) == 1:
            return results[0]
        outs, logs, sums, is_double, n_lost, distances = zip(*results, strict=True)
        logs = None if logs[0] is None else side_by_side(logs, 0)
        sums = None if sums[0] is None else [(part.sums, part.top) for part in sums]
        if sums is not None:
            sums = Sums(*(side_by_side(arrays, 0) for arrays in zip(*sums, strict=True)))
        return cls(side_by_side(outs, 0), logs, sums, any(is_double), sum(n_lost), sum(distances))
