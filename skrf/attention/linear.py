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

import numpy as np

from .._arrays import constant, is_on_gpu, library, namespace, to_host
from .._sums import Memory, Rows, Sums, finite, scale_keys, scale_queries
from .._threads import rows_of_call
from ..features import needs_double
from ._gates import gate_sums
from ._inputs import FEATURE_ROWS, blocks, blocks_between, side_by_side
from .merging import log_weights

_PART_ROWS, _ARRAY_API_PART_ROWS = 128, 64  # of a triangular product, half of which is for nothing
_ALONE = 64  # positions of a call up to which their pairs cost less than sums of features
_RESET = 20.0  # nats by which a gate lets the past fall so far that a block begins there
_FAR = 64.0  # nats that float32 holds to 4e-6
_USUAL = 1e6  # values between this and its inverse stay inside the range of float32
# How far exponents of a feature may rise among rows that share a scale.
_RISES = {"float32": 40.0, "float64": 300.0}
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
    n_rows : int
        Number of rows whose features are held at a time.
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

    def __init__(self, inputs, maps, sets, n_rows, is_double=False):
        n = len(maps)
        if sets.stop - sets.start < n:
            maps = [maps[i % n] for i in range(sets.start, sets.stop)]
        self.inputs, self.maps, self.library = inputs.of(sets), maps, inputs.library
        self._pieces, inputs, self.xp = {}, self.inputs, inputs.library.xp
        self.is_positive = all([head.is_positive for head in maps])
        (largest,), gates = inputs.largest_entries("v"), inputs.log_gates
        self.is_usual = largest == 0 or 1 / _USUAL < largest < _USUAL
        is_double = is_double or not self.is_usual or inputs.q.dtype == self.xp.float64
        is_double = is_double or (gates is not None and _fall_far(gates))
        # Both sides are checked, and have the highest precision that one of them needs.
        self.dtype = self.xp.float64 if self._needs_double(is_double) else inputs.q.dtype
        self.n_rows, n = n_rows, max(inputs.q.shape[-2], inputs.k.shape[-2])
        self._memory = _NEW, _NEW  # for a single block
        if self.xp is np and n > (n_rows if gates is None else 1):
            self._memory = Memory(), Memory()

    def _needs_double(self, is_double):
        """Return whether features need float64, or raise if their exponents leave its range."""
        q, k, n = self.inputs.q, self.inputs.k, len(self.maps)
        if is_double:
            reach = min([head.reach(k.shape[-1]) for head in self.maps])
            if max(self.inputs.largest_entries("q", "k")) <= reach:
                return True
        needed = [
            needs_double(side, rows if n == 1 else rows[i::n, ...], name)
            for i, head in enumerate(self.maps)
            for side, rows, name in ((head.queries, q, "q"), (head.keys, k, "k"))
        ]
        return is_double or any(needed)

    def cut(self, **slices):
        """Cut inputs into the slices of rows that are read: all of their rows, in their order.

        Torch fills a gradient of the whole length for every slice that is read alone.
        """
        for name, rows in slices.items() if self.library.is_torch else ():
            if len(rows) > 1:
                sizes = [part.stop - part.start for part in rows]
                pieces = getattr(self.inputs, name).split(sizes, dim=-2)
                starts = (part.start for part in rows)
                self._pieces[name] = dict(zip(starts, pieces, strict=True))

    def _rows(self, name, rows):
        """Return some rows of an input."""
        if name in self._pieces:
            return self._pieces[name][rows.start]
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
        hidden, fill = padding[..., rows, None], self.library.fill
        if features.holds_logs:
            return Rows(fill(features.values, hidden, -np.inf))
        return Rows(features.values, fill(features.scale, hidden, -np.inf))

    def values(self, rows):
        """Return [1, values] of some keys (U, n, 1 + e); rows of padding are 0."""
        xp, padding = self.xp, self.inputs.padding
        values = self.library.cast(self._rows("v", rows), self.dtype)
        values = xp.concat([xp.ones_like(values[..., :1]), values], axis=-1)
        if padding is None:
            return values
        return xp.where(padding[..., rows, None], 0.0, values)

    def _of(self, sides, X, memory):
        """Return the features of rows (U, ..., d) of every set, each by its own map."""
        reshape, (*lead, width), n = self.xp.reshape, X.shape, len(sides)
        X = self.library.cast(X, self.dtype)
        if n == 1:
            values, scale = memory.rows(sides[0], reshape(X, (-1, width)))
        else:
            with rows_of_call(math.prod(lead)):  # scratch memory would serve one map at a time
                of_maps = [
                    _NEW.rows(sides[i], reshape(X[i::n, ...], (-1, width))) for i in range(n)
                ]
            if not (self.is_positive or all(rows.shares_scale for rows in of_maps)):
                of_maps = [_signed(rows) for rows in of_maps]
            values, scale = (self._in_turn(arrays) for arrays in zip(*of_maps, strict=True))
        scale = None if scale is None else reshape(scale, (*lead, scale.shape[-1]))
        return Rows(reshape(values, (*lead, values.shape[-1])), scale)

    def _in_turn(self, arrays):
        """Return arrays (n, M) of maps, each for every so many sets, with all sets in order."""
        if arrays[0] is None:
            return None
        n_sets, width = self.inputs.k.shape[0] // len(arrays), arrays[0].shape[-1]
        by_map = [self.xp.reshape(array, (n_sets, -1, width)) for array in arrays]
        return self.xp.stack(by_map, axis=1)


def _signed(rows):
    """Return features as numbers with log scales, also those given as logarithms."""
    values, scale, xp = *rows, namespace(rows.values)
    if not rows.holds_logs:
        return Rows(values, xp.broadcast_to(scale, values.shape))
    scale = constant(values)
    return Rows(xp.exp(values - finite(scale)), scale)


# ---------------------------------------------------------------- all keys


def key_sums(features):
    """Return the `Sums` over all keys."""
    sums, slices = None, blocks(features.inputs.k.shape[-2], features.n_rows)
    features.cut(k=slices, v=slices)
    for rows in slices:
        keys, values = features.keys(rows), features.values(rows)
        sums = (Sums.before(keys, values) if sums is None else sums).add(keys, values)
    return sums


def attend_to_all(features, out):
    """Write the attention of all queries to all keys to an `Output`."""
    sums = key_sums(features)
    sums = sums.balanced() if features.is_positive else sums
    sums = Sums(sums.sums[..., None, :, :], sums.top[..., None, :])  # for the heads of a set
    slices = blocks(features.inputs.q.shape[-2], features.n_rows)
    features.cut(q=slices)
    for rows in slices:
        out.write(*sums.weigh(features.queries(rows)))


# ---------------------------------------------------------------- earlier keys


def attend_to_earlier(features, out, sums, goes_on):
    """Write causal attention to an `Output`, and return the sums over all keys.

    Parameters
    ----------
    features : KeyFeatures
        The positions; queries are those of the last ones.
    out : Output
        What is written.
    sums : Sums or None
        Over the keys of earlier calls.
    goes_on : bool
        Whether the sums are wanted.
    """
    n, gates = features.inputs.k.shape[-2], features.inputs.log_gates
    first = n - features.inputs.q.shape[-2]
    slices = [slice(0, 1)]
    if n > 1:
        slices = _blocks_of_gates([0, first, n], gates, features.n_rows)
    is_alone = sums is None and not goes_on and len(slices) == 1 and n <= _ALONE
    of_queries = [slice(s.start - first, s.stop - first) for s in slices if s.start >= first]
    features.cut(q=of_queries, k=slices, v=slices)
    for rows in slices:
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
    do, n = out.library, values.shape[-2]
    if n == 1:
        products, level, sums = _position(do, sums, queries, keys, values)
        out.write(products, level)
        return sums
    for rows, top in _safe_slices(do, sums.top, keys.exponents):
        is_alone = is_alone and rows == slice(0, n)
        earlier = None if is_alone else sums.at(top)
        left, level = scale_queries(queries.part(rows), top[..., None, :])
        right = scale_keys(keys.part(rows), top)
        products, total = _products(do, left, right, values[..., rows, :], earlier)
        if not is_alone:
            sums = Sums(earlier + do.cast(total, earlier.dtype), top)
        out.write(products, level if fall is None else level + fall[..., rows, :])
    return sums


def _safe_slices(do, top, exponents):
    """Yield (rows, exponents at their end), where exponents rise by at most a limit within rows.

    Every feature then has a key of exponent top - limit or more before any row of the slice.

    Parameters
    ----------
    do : Library
        That of the arrays.
    top : array of shape (U, M) or (U, 1)
        Exponents before the first row.
    exponents : array of shape (U, n, M) or (U, n, 1)
        Those of the rows.
    """
    xp, exponents = do.xp, do.constant(exponents)
    limit = _RISES[str(exponents.dtype).rsplit(".", 1)[-1]]
    waiting = [slice(0, exponents.shape[-2])]
    while waiting:
        rows = waiting.pop()
        block = exponents[..., rows, :]
        end = xp.maximum(top, do.cast(xp.max(block, axis=-2), xp.float64))
        if rows.stop - rows.start > 1:
            start = xp.maximum(top, do.cast(block[..., 0, :], xp.float64))
            is_seen = end > -np.inf
            rise = xp.where(is_seen, end, 0.0) - xp.where(is_seen, start, 0.0)
            if float(xp.max(rise)) > limit:
                middle = (rows.start + rows.stop) // 2
                waiting += [slice(middle, rows.stop), slice(rows.start, middle)]
                continue
        yield rows, end
        top = end


def _position(do, before, queries, keys, values):
    """Return what a single position reads, the log scales of that, and the sums including its key.

    Parameters
    ----------
    do : Library
        That of the arrays.
    before : Sums
        Over the keys of earlier positions.
    queries, keys : Rows
        Features (U, G, 1, M) and (U, 1, M).
    values : array of shape (U, 1, 1 + e)
        [weight, values].
    """
    xp, exponents = do.xp, keys.exponents[..., 0, :]
    top = xp.maximum(before.top, do.cast(do.constant(exponents), xp.float64))
    level = xp.where(top > -np.inf, top, 0.0)
    fall, earlier = before.top - level, before.sums
    if xp is not np or fall.any():
        earlier = earlier * xp.exp(fall)[..., None]
    factors = xp.exp(exponents - level)
    if not keys.holds_logs:
        factors = keys.values[..., 0, :] * factors
    sums = do.add(factors[..., None] * values, earlier)
    exponents = queries.exponents + top[..., None, None, :]
    highest = xp.max(do.constant(exponents), axis=-1, keepdims=True)
    level = xp.where(highest > -np.inf, highest, 0.0)
    factors = xp.exp(exponents - level)
    if not queries.holds_logs:
        factors = queries.values * factors
    return factors @ sums[..., None, :, :], level, Sums(sums, top)


def _products(do, queries, keys, values, earlier=None):
    """Return what positions read of keys up to their own, and the sums over these keys.

    Parameters
    ----------
    do : Library
        That of the arrays.
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
    xp, n, values = do.xp, keys.shape[-2], do.cast(values, keys.dtype)
    size = _PART_ROWS if xp is np else _ARRAY_API_PART_ROWS
    keys, values = _in_parts(keys, size, xp), _in_parts(values, size, xp)
    queries = _heads_as_rows(xp.moveaxis(_in_parts(queries, size, xp), -4, -3), xp)
    turned, total = xp.matrix_transpose(keys), None
    products = _lower(queries @ turned, xp) @ values
    if earlier is not None:
        earlier, total = _sums_before(do.cast(earlier, values.dtype), turned @ values, xp)
        products = do.add(products, queries @ earlier)
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


def _sums_before(first, products, xp):
    """Return sums over what comes before every part, and over all parts alone.

    Parameters
    ----------
    first : array of shape (U, M, c)
        What comes before the first part.
    products : array of shape (U, P, M, c)
        Sums over each part; NumPy arrays are overwritten.
    xp : module
        Their namespace.
    """
    first = first[:, None, :, :]
    if products.shape[1] == 1:
        return first, products[:, 0, :, :]
    if xp is np:
        total = 0.0
        for i in range(products.shape[1]):
            before, total = total, total + products[:, i]
            products[:, i] = first[:, 0] + before
        return products, total
    if is_on_gpu(products):
        sums = xp.cumulative_sum(products, axis=1, dtype=products.dtype)
        return xp.concat([first, first + sums[:, :-1, :, :]], axis=1), sums[:, -1, :, :]
    # The gradient of a cumulative sum would take twice as long.
    earlier = accumulate(xp.unstack(products, axis=1)[:-1], initial=first[:, 0, :, :])
    return xp.stack(list(earlier), axis=1), xp.sum(products, axis=1)


def _lower(products, xp):
    """Return products (..., G c, c) with 0 for later keys; NumPy's are overwritten."""
    c = products.shape[-1]
    heads = xp.reshape(products, (*products.shape[:-2], -1, c, c))
    if xp is not np:
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
    do, sums = library(gates), gate_sums(gates[..., 1:])
    falls = do.xp.concat([do.xp.zeros_like(gates[..., :1]), sums], axis=-1)[..., None]
    return _shifted(keys, -do.cast(falls, keys.values.dtype), do), falls[..., None, :, :]


def _shifted(rows, shift, do):
    """Return features with a shift of their logarithms."""
    if rows.holds_logs:
        return Rows(do.add(rows.values, shift))
    fixed, values = do.constant(shift), rows.values
    if do.xp is not np:  # no gradient flows through scales
        values = values * do.xp.exp(shift - fixed)
    return Rows(values, rows.scale + fixed)


def _faded(sums, log_gates):
    """Return `Sums` as they are after some gates (..., n)."""
    do, values, fall = library(log_gates), sums.sums, log_gates
    xp = do.xp
    if log_gates.shape[-1] > 1:
        fall = xp.sum(log_gates, axis=-1, keepdims=True)
    fixed = do.constant(fall)
    if xp is not np:  # no gradient flows through exponents, nor to a gate of 0
        change = xp.where(fixed > -np.inf, fall - fixed, 0.0)
        values = values * xp.exp(change)[..., None]
    with np.errstate(over="ignore"):  # to -inf: nothing is left
        return Sums(values, sums.top + fixed)


def _fall_far(gates):
    """Return whether gates of a block add exponents of which float32 would lose digits."""
    if gates.shape[-1] == 1:  # a step of a stream
        return False
    gates, xp = constant(gates), namespace(gates)
    gates = xp.where(gates < -_RESET, 0.0, gates)  # those begin a block
    slices = blocks(gates.shape[-1], FEATURE_ROWS)
    return min(float(xp.min(xp.sum(gates[..., rows], axis=-1))) for rows in slices) < -_FAR


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
        self.library = features.library
        self._outs, self._logs, self._zeros = [], [], []

    def write(self, sums, level):
        """Write the quotients of the next rows, [denominators, numerators] (..., n, 1 + e).

        `level` has the log scales of the rows.
        """
        weights = sums[..., :1]
        is_zero = weights == 0
        if self.may_be_lost:
            self._zeros.append(to_host(constant(is_zero[..., 0])))
        if self.wants_lse:
            self._logs.append(log_weights(weights[..., 0], level[..., 0]))
        xp = self.library.xp
        if xp is not np or is_zero.any():  # dividing by inf gives 0, and no gradient
            weights = xp.where(is_zero, np.inf, weights)
        self._outs.append(sums[..., 1:] / weights)

    def joined(self):
        """Return what was written.

        Returns
        -------
        outputs : array of shape (..., L, e)
            The quotients.
        logs : array of shape (..., L) or None
            Logarithms of denominators, in float64, if they are wanted.
        zeros : ndarray of bool of shape (..., L) or None
            On the host, which denominators are 0; None for positive maps.
        """
        logs = side_by_side(self._logs, -1) if self.wants_lse else None
        zeros = side_by_side(self._zeros, -1) if self.may_be_lost else None
        return side_by_side(self._outs, -2), logs, zeros
