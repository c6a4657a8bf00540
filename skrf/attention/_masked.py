"""Masked attention, forward and backward, from features, for every array library.

Row i of the result is sum_j W_ij A_ij v_j / sum_j W_ij A_ij with the mask W and the kernel
A_ij = sum_f q_if k_jf. There are two ways to compute it:

- by columns: W multiplies k_f * v_c for every feature f and value c, once for all query heads of a
  set. Time and memory are those of products with W. The rounding error of such a product is
  proportional to its largest keys, so rows that see only small ones are found by an error estimate
  and computed the other way.
- by rows: blocks of rows of W and A are formed, in time L S. For positive features all terms
  are nonnegative, so nothing cancels.

Exponents are factored out as in `skrf._sums`: the largest over the keys, and the largest of a row.
Where the keys that a row sees lie so far below others that its sums near underflow, its block is
taken in float64, then cut in two, down to single rows: there the maximum is that of the row's own
keys, and the denominator of a positive map is at least 1. So no epsilon is ever needed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

import array_api_compat
import numpy as np

from .._arrays import (
    arithmetic,
    beside,
    cast,
    constant,
    is_array_api,
    like,
    namespace,
    take,
    to_host,
)
from .._sums import Rows, finite, lifted, lowered, transposed
from .._threads import run_all
from ._backward import by_sums_of
from ._heads import as_rows, blocks, joined_in_order, quotients
from ._products import BLOCK_BYTES, parts_of, rows_of

# Largest estimated relative error of a row computed by columns. The estimate is a bound, 100 times
# too large where errors of features do not add up. Gradients of such rows have a similar rounding
# error relative to the whole gradient.
_TOLERANCE = {"float32": 1e-3, "float64": 1e-11}
# Terms that underflow are below 1e-38 or 1e-307: beside a sum of this size they do not count.
_LEAST = {"float32": 1e-25, "float64": 1e-280}
# Gradients are summed in this many parts, one thread each; the number is fixed so that rounding
# does not depend on the number of threads.
_SHARES = 4


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs of masked attention.

    Parameters
    ----------
    queries : Rows of shape (..., G, L, M)
        Features of the queries of G heads.
    keys : Rows of shape (..., S, M)
        Features of the keys; padded ones are zero.
    values : array of shape (..., S, e + 1)
        [weight, values]: the weight is 1, or 0 for padding.
    """

    queries: Rows
    keys: Rows
    values: Any

    @cached_property
    def doubled(self):
        """The same in float64; this object if it already is."""
        dtype = namespace(self.values).float64
        if self.values.dtype == dtype:
            return self
        queries, keys = (
            rows.map(lambda part: cast(part, dtype)) for rows in (self.queries, self.keys)
        )
        return Inputs(queries, keys, cast(self.values, dtype))


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows that were computed together, in a way that the backward pass repeats.

    Parameters
    ----------
    rows : ndarray of int
        Their indices.
    way : callable
        Returns the `_Columns` or `_Block` that computed them.
    sums : array of shape (..., G, n, e + 1)
        Denominators and numerators in float64.
    """

    rows: np.ndarray
    way: Callable
    sums: Any


# ------------------------------------------------------------------ units


def masked(unit, parts, out):
    """Write the masked attention of a unit.

    Parameters
    ----------
    unit : Unit
        The inputs.
    parts : list of (list or None, slice, Mask)
        From `HeadMasks.of`: sets of the unit, their query heads, and the mask of these.
    out : Output
        What is written.

    Returns
    -------
    int
        Number of queries whose output is 0 because their weights sum to 0, though they see a key.
    """
    found, n_lost = {}, 0
    for sets, heads, mask in parts:
        own = _part_of(unit, sets, heads)
        inputs = _inputs(own)
        pieces = masked_attention(inputs, mask)
        found.setdefault(None if sets is None else tuple(sets), []).append(assembled(pieces))
        if not unit.head.is_positive:
            n_lost += _count_lost(pieces, inputs, mask)
    of_sets = [_side_by_side(own, -3) for own in found.values()]
    if len(of_sets) > 1:
        of_sets = [joined_in_order(of_sets, list(found))]
    out.put(slice(0, None), cast(of_sets[0], unit.dtype))
    return n_lost


def masked_backward(unit, parts, gradient, found, by_masks):
    """Write the gradients of masked attention of a unit; NumPy only.

    Parameters
    ----------
    unit, parts
        As `masked` takes them.
    gradient : ndarray of shape (G, L, e)
        Gradient with respect to the output.
    found : Gradients
        What is written.
    by_masks : dict or None
        What gradients with respect to each `Mask` are added to.
    """
    by_queries, by_keys, by_values = [], 0.0, 0.0
    for sets, heads, mask in parts:
        inputs = _inputs(_part_of(unit, sets, heads))
        by_mask = None if by_masks is None else mask.no_gradient(unit.q)
        pieces = masked_attention(inputs, mask)
        own = masked_attention_backward(inputs, mask, pieces, gradient[heads], by_mask)
        by_queries.append(own[0])
        by_keys, by_values = by_keys + own[1], by_values + own[2]
        if by_masks is not None:
            by_masks[mask] = by_masks.get(mask, 0.0) + by_mask * found.by_q.unit
    every = slice(0, None)
    found.put_queries(every, np.concatenate(by_queries))
    found.put_keys(every, by_keys)
    found.put_values(every, by_values[..., 1:])


def _part_of(unit, sets, heads):
    """Return some sets and query heads of a unit."""
    own = unit.of(unit.head, heads)
    if sets is not None:
        parts = own.q, own.k, own.v, own.hidden
        own.q, own.k, own.v, own.hidden = (
            None if part is None else take(part, np.asarray(sets)) for part in parts
        )
    return own


def _inputs(unit):
    """Return the inputs of masked attention of a unit."""
    every = slice(0, None)
    return Inputs(unit.query_rows(every), unit.key_rows(every), unit.values(every))


def _side_by_side(parts, axis):
    return parts[0] if len(parts) == 1 else namespace(parts[0]).concat(parts, axis=axis)


def _count_lost(pieces, inputs, mask):
    """Return the number of queries whose weights sum to 0 although they see a key."""
    n_lost = 0
    for piece in pieces:
        is_lost = to_host(piece.sums[..., 0] == 0)
        places = np.flatnonzero(is_lost.reshape(-1, len(piece.rows)).any(axis=0))
        for part in blocks(len(places), mask.block_rows):
            own = places[part]
            n_lost += int((is_lost[..., own] & _sees_a_key(piece.rows[own], inputs, mask)).sum())
    return n_lost


# ------------------------------------------------------------------ all rows


def masked_attention(inputs, mask):
    """Return the attention under a mask as a list of `Piece`, whose rows are all, in any order."""
    values, (n_queries, n_features) = inputs.values, inputs.queries.values.shape[-2:]
    rest, pieces = np.arange(n_queries), []
    if mask.columns_pay(n_features, values.shape[-1] - 1):
        own = inputs.doubled if mask.is_double else inputs
        sums, is_done = _Columns(own, mask).sums()
        done, rest = np.flatnonzero(is_done), np.flatnonzero(~is_done)
        if len(done):
            pieces.append(Piece(done, partial(_Columns, own, mask), rows_of(sums, done)))
    parts = [rest[part] for part in blocks(len(rest), mask.block_rows)]
    work = partial(_by_rows, inputs=inputs, mask=mask)
    found = map(work, parts) if is_array_api(values) else run_all(work, parts)
    return pieces + list(chain.from_iterable(found))


def assembled(pieces):
    """Return the attention of all rows; zeros where the denominator is 0, as without any key."""
    outs, rows = [quotients(piece.sums) for piece in pieces], [piece.rows for piece in pieces]
    out, order = _side_by_side(outs, -2), np.concatenate(rows)
    if np.all(order[1:] > order[:-1]):
        return out
    return namespace(out).take(out, beside(np.argsort(order), out), axis=-2)


def masked_attention_backward(inputs, mask, pieces, grad_out, by_mask=None):
    """Return the gradients of `masked_attention`, with exponents held constant; NumPy only.

    Parameters
    ----------
    inputs, mask
        As given to it.
    pieces
        What it returned.
    grad_out : ndarray of shape (G, L, e)
        Gradient with respect to the attention.
    by_mask : ndarray, default=None
        What the gradient with respect to the entries or weights of the mask is added to.

    Returns
    -------
    tuple of ndarray
        Gradients with respect to the values of the features of queries and keys, and to values.
    """
    by_queries = np.zeros_like(inputs.queries.values)
    by_sums = [by_sums_of(piece.sums, grad_out[..., piece.rows, :]) for piece in pieces]
    pairs = list(zip(pieces, by_sums, strict=True))

    def work(share):
        found = SimpleNamespace(
            by_queries=by_queries,
            by_keys=np.zeros_like(inputs.keys.values),
            by_values=np.zeros_like(inputs.values),
            by_mask=None if by_mask is None else mask.share(by_mask),
        )
        for piece, gradient in share:
            way = piece.way()
            way.backward(piece.rows, cast(gradient, way.inputs.values.dtype), found)
        return found

    # `_Columns` divides its work among threads itself.
    n_columns = sum(piece.way.func is _Columns for piece in pieces)
    by_rows = pairs[n_columns:]
    shares = [pairs[:n_columns], *(by_rows[i::_SHARES] for i in range(min(_SHARES, len(by_rows))))]
    parts = [work(shares[0]), *run_all(work, shares[1:])]
    for own in parts:
        if own.by_mask is not by_mask:
            by_mask += own.by_mask
    return by_queries, sum(own.by_keys for own in parts), sum(own.by_values for own in parts)


def _sees_a_key(rows, inputs, mask):
    """Return, on the host, which rows see a key that is not padded: shape (..., 1, n)."""
    xp, exponents = namespace(inputs.values), inputs.keys.exponents
    is_key = to_host(xp.max(exponents, axis=-1) > -np.inf)
    seen = mask.seen(rows)
    weights = to_host(constant(mask.entries(rows, seen, inputs.values)))
    own = is_key[..., seen]
    return (own.astype(np.float32) @ (weights > 0).astype(np.float32).T > 0)[..., None, :]


def _name(dtype):
    return str(dtype).rsplit(".", 1)[-1]


def _least(mask, X):
    """Return the size below which sums may have lost terms."""
    return _LEAST[_name(X.dtype)] * mask.largest / mask.unit(X)


def _all_sets(flags):
    """Return on the host for which rows a flag of shape (..., n) holds in all sets and heads."""
    flags = to_host(flags)
    return flags.reshape(-1, flags.shape[-1]).all(axis=0)


# ------------------------------------------------------------------ by columns


class _Columns:
    """Products of the mask with features times values, of all rows."""

    def __init__(self, inputs, mask):
        self.inputs, self.mask = inputs, mask
        queries, keys, values = inputs.queries, inputs.keys, inputs.values
        top = constant(namespace(values).max(keys.exponents, axis=-2))
        sides = lifted(_copied(queries), top[..., None, :]), lowered(_copied(keys), top)
        (self.Q, self.q_slopes), (self.K, self.k_slopes) = (
            tuple(_contiguous(transposed(part)) for part in side) for side in sides
        )
        self.V = _contiguous(transposed(values))
        n_sets = int(np.prod(values.shape[:-2]))
        self.batch, self.n_columns = mask.batch(values, n_sets), values.shape[-1]

    def sums(self):
        """Return the sums (..., G, L, e + 1), and on the host which rows are accurate."""
        xp = namespace(self.V)
        # More parts than threads; transforms are fastest for a power of 2 of columns.
        size = min(self.batch, 1 << max(0, (self.n_columns // 8).bit_length() - 1))
        parts = blocks(self.n_columns, size)
        found = map(self._sums_of, parts) if is_array_api(self.V) else run_all(self._sums_of, parts)
        found = list(found)
        sums = _side_by_side(found, -2)
        is_right = _all_sets(self._is_right(constant(sums)))
        is_right[: self.mask.n_extra] = False
        return cast(transposed(sums), xp.float64), is_right

    def _sums_of(self, part):
        """Return the sums of some values, (..., G, c, L)."""
        V, total = self.V[..., None, part, :], 0.0
        for features in blocks(self.K.shape[-2], max(1, self.batch // V.shape[-2])):
            columns = self.K[..., features, None, :] * V
            seen = self.mask.product(self.mask.waves(columns), columns)
            weighted = self.Q[..., features, None, :] * seen[..., None, :, :, :]
            total = total + namespace(V).sum(weighted, axis=-3)
        return total

    def _is_right(self, sums):
        """Return which rows are within the tolerance, for all sets and heads."""
        xp, name = namespace(sums), _name(sums.dtype)
        V, K, Q = (constant(part) for part in (self.V, self.K, self.Q))
        sizes = xp.max(xp.abs(V), axis=-1, keepdims=True)
        unit = V / xp.where(sizes == 0, like(1.0, V), sizes)
        norms = xp.sqrt((unit * unit) @ transposed(K * K)) * sizes
        errors = (norms[..., None, :, :] @ xp.abs(Q)) * self.mask.rounding(sums)
        # A sum of values may cancel, so it is compared with the whole row in units of usual values.
        usual = _usual(V[..., 1:, :])[..., None, :, None]
        largest = xp.max(xp.abs(sums[..., 1:, :]) / usual, axis=-2)
        wrong = xp.max(errors[..., 1:, :] / usual, axis=-2)
        weights = sums[..., 0, :]
        if sums.dtype == xp.float32:
            # An output that is small beside its values is as accurate as they allow, as elsewhere.
            largest = xp.maximum(largest, xp.abs(weights))
        is_right = (wrong <= _TOLERANCE[name] * largest) & (
            errors[..., 0, :] <= _TOLERANCE[name] * xp.abs(weights)
        )
        if self.inputs.keys.scale is None:
            is_right = is_right & (weights >= _least(self.mask, sums))
        return is_right

    def backward(self, rows, by_sums, found):
        """Add the gradients, given those of the sums of some rows; the others have none."""
        (G, _, n), mask = self.Q.shape, self.mask
        self.by_sums = np.zeros((G, self.n_columns, n), self.V.dtype)
        self.by_sums[..., rows] = transposed(by_sums)
        waves, is_trained = 0.0, found.by_mask is not None
        shares = np.array_split(np.arange(self.K.shape[0]), min(_SHARES, self.K.shape[0]))
        work = partial(self._backward_of, found=found, is_trained=is_trained)
        for by_values, own in run_all(work, [slice(s[0], s[-1] + 1) for s in shares]):
            found.by_values += by_values.T
            waves = waves + own
        if is_trained:
            mask.add_waves(found.by_mask, waves, self.V)

    def _backward_of(self, share, found, is_trained):
        """Add the gradients for queries and keys; return those for values and mask."""
        mask, by_values, total = self.mask, np.zeros_like(self.V), 0.0
        for part in blocks(share.stop - share.start, max(1, self.batch // self.n_columns)):
            own = slice(share.start + part.start, share.start + part.stop)
            Q, K = self.Q[:, own], self.K[own]
            by_Q, by_K = np.zeros_like(Q), np.zeros_like(K)
            for c in blocks(self.n_columns, self.batch):
                columns = K[:, None] * self.V[c]
                waves = mask.waves(columns)
                kept = [waves.copy()] if is_trained else []  # products overwrite waves
                seen = mask.product(waves, columns)
                for g, gradient in enumerate(self.by_sums[:, c]):
                    by_Q[g] += np.einsum("cl,fcl->fl", gradient, seen)
                columns = sum(
                    q[:, None] * gradient for q, gradient in zip(Q, self.by_sums[:, c], strict=True)
                )
                waves = mask.waves(columns)
                if is_trained:
                    total = total + mask.correlation(*kept, waves)
                back = mask.transposed_product(waves, columns)
                by_K += np.einsum("cs,fcs->fs", self.V[c], back)
                by_values[c] += np.einsum("fs,fcs->cs", K, back)
            q_slopes, k_slopes = (
                slopes[..., own, :] if slopes.shape[-2] > 1 else slopes
                for slopes in (self.q_slopes, self.k_slopes)
            )
            found.by_queries[..., own] += transposed(by_Q * q_slopes)
            found.by_keys[..., own] += transposed(by_K * k_slopes)
        return by_values, total


def _usual(values):
    """Return the geometric mean of the sizes of the values in every column; 1 where all are 0."""
    xp = namespace(values)
    sizes = xp.abs(values)
    is_some = sizes > 0
    logs = xp.log(xp.where(is_some, sizes, like(1.0, values)))
    n = xp.sum(cast(is_some, values.dtype), axis=-1)
    return xp.exp(xp.sum(logs, axis=-1) / xp.where(n == 0, like(1.0, n), n))


def _contiguous(X):
    return np.ascontiguousarray(X) if isinstance(X, np.ndarray) else X


def _copied(rows):
    """Return rows that may be overwritten."""
    return rows.map(np.array) if isinstance(rows.values, np.ndarray) else rows


# ------------------------------------------------------------------ by rows


def _by_rows(rows, inputs, mask):
    """Return the pieces of a block of rows."""
    pieces, stack = [], [(rows, inputs.doubled if mask.is_double else inputs, False)]
    while stack:
        rows, own, is_alone = stack.pop()
        block = _Block(own, mask, rows, is_alone)
        sums, is_done = block.sums()
        done, rest = np.flatnonzero(is_done), rows[~is_done]
        if len(done):
            # The scale of the sums depends on the other rows, too.
            way = partial(_Block, own, mask, rows[done], is_alone, block.top)
            sums = sums if len(done) == len(rows) else rows_of(sums, done)
            pieces.append(Piece(rows[done], way, sums))
        if len(rest) and own.doubled is not own:
            stack.append((rest, own.doubled, False))
        elif len(rest) == 1:
            stack.append((rest, own, True))
        else:
            stack += [(half, own, False) for half in np.array_split(rest, 2) if len(half)]
    return pieces


class _Block:
    """Some rows of the masked kernel, formed in parts of the keys that they see."""

    def __init__(self, inputs, mask, rows, is_alone=False, top=None):
        self.inputs, self.mask, self.rows, self.is_alone = inputs, mask, rows, is_alone
        longest = max(inputs.keys.values.shape[-1], len(rows))
        self.parts = parts_of(mask.seen(rows), max(1, BLOCK_BYTES // (8 * longest)))
        own = inputs.queries.map(lambda part: rows_of(part, rows))
        self.top = self._top_of(constant(own.exponents)) if top is None else top
        self.factors, self.slopes = lifted(_copied(own), self.top[..., None, :])

    def _top_of(self, queries):
        """Return exponents that scale the factors, given those of queries (..., G, n, M).

        They are the largest of all keys. For a single row they are lower where keys of weight 0
        exceed the level of its sums, so that neither the sums nor the gradients of weights of 0
        underflow.
        """
        exponents = constant(self.inputs.keys.exponents)
        xp = namespace(exponents)
        top = needed = xp.full_like(exponents[..., 0, :], -np.inf)
        for part in self.parts:
            keys, weights = self._weighted(part) if self.is_alone else (self._keys(part), None)
            exponents = constant(keys.exponents)
            top = xp.maximum(top, xp.max(exponents, axis=-2))
            if self.is_alone:
                is_used = constant(weights)[0, :, None] > 0
                exponents = xp.where(is_used, exponents, like(-np.inf, exponents))
                needed = xp.maximum(needed, xp.max(exponents, axis=-2))
        if self.is_alone:
            level = xp.max(queries + needed[..., None, None, :], axis=-1, keepdims=True)
            top = xp.minimum(top, xp.min(finite(level) - queries, axis=-3)[..., 0, :])
        return top

    def _keys(self, part):
        return self.inputs.keys.map(lambda array: rows_of(array, part))

    def _weighted(self, part):
        """Return the features of some keys times the weights of a single row, and 1 as weights.

        Weights are added to the logarithms, so that the largest exponents are those of products.
        Weights of 0 stay 0 instead, because the logarithm has no gradient there.
        """
        weights, (values, scale) = self._weights(part), self._keys(part)
        sizes = self._sizes(weights)
        logs = namespace(sizes).log(sizes)[0, :, None]
        keys = Rows(values + logs) if scale is None else Rows(values, scale + logs)
        return keys, weights / sizes

    def _weights(self, part):
        return self.mask.entries(self.rows, part, self.inputs.values)

    def _sizes(self, weights):
        """Return weights, and 1 in place of 0, as constants."""
        weights = constant(weights)
        return namespace(weights).where(weights > 0, weights, like(1.0, weights))

    def _kernel(self):
        """Yield keys, their weights, and factors and slopes of keys."""
        for part in self.parts:
            if self.is_alone:
                keys, weights = self._weighted(part)
                keys = self._limited(keys)
            else:
                keys, weights = self._keys(part), self._weights(part)
            yield part, weights, *lowered(_copied(keys), self.top)

    def _limited(self, keys):
        """Return keys whose factors are finite: those of weight 0 may be far above the others."""
        values, scale = keys
        xp, most = namespace(values), finite(self.top)[..., None, :] - math.log(_LEAST["float64"])
        if scale is None:
            return Rows(xp.minimum(values, most))
        return Rows(values, xp.minimum(scale, most))

    def sums(self):
        """Return the sums (..., G, n, e + 1), and on the host which rows are accurate."""
        values = self.inputs.values
        xp, is_signed = namespace(values), self.inputs.keys.scale is not None
        shape = *self.factors.shape[:-1], values.shape[-1]
        place = {"device": array_api_compat.device(values), "dtype": xp.float64}
        sums, sizes = xp.zeros(shape, **place), 0.0
        for part, weights, K, _ in self._kernel():
            kernel = self.factors @ transposed(K)[..., None, :, :]
            kernel = arithmetic(kernel).multiply(kernel, weights)
            sums = sums + cast(
                kernel @ rows_of(self.inputs.values, part)[..., None, :, :], xp.float64
            )
            if is_signed:
                # Terms may cancel: their largest possible size decides whether the sum is accurate.
                most = xp.abs(self.factors) @ xp.abs(transposed(K))[..., None, :, :]
                sizes = sizes + constant(xp.sum(most * weights, axis=-1))
        if self.is_alone:
            return sums, np.ones(1, dtype=bool)
        sizes = sizes if is_signed and self.parts else constant(sums[..., 0])
        is_done = to_host(sizes >= _least(self.mask, values))
        if not is_done.all():
            is_done = is_done | ~_sees_a_key(self.rows, self.inputs, self.mask)
        return sums, _all_sets(is_done)

    def backward(self, rows, by_sums, found):
        """Add the gradients, given those of the sums (G, n, e + 1)."""
        by_factors = np.zeros_like(self.factors)
        for part, weights, K, slopes in self._kernel():
            values = rows_of(self.inputs.values, part)
            kernel, by_kernel = self.factors @ K.T, by_sums @ values.T
            if found.by_mask is not None:
                by_entries = np.einsum("gij,gij->ij", kernel, by_kernel)
                if self.is_alone:
                    by_entries /= self._sizes(self._weights(part))
                self.mask.add_gradient(found.by_mask, rows, part, by_entries)
            kernel *= weights
            by_kernel *= weights
            by_factors += by_kernel @ K
            flat = as_rows(by_kernel)
            found.by_keys[part] += flat.T @ as_rows(self.factors) * slopes
            found.by_values[part] += as_rows(kernel).T @ as_rows(by_sums)
        found.by_queries[..., rows, :] += by_factors * self.slopes
