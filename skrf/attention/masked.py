"""Attention under a mask: row i is sum_j W_ij A_ij v_j / sum_j W_ij A_ij, A_ij = sum_f q_if k_jf.

There are two ways to compute it:

- by products: W multiplies the columns k_f * v_c of all features f and values c. Time and memory
  are those of products with W. The rounding error of such a product is proportional to its largest
  keys, so rows that see only small ones are found by an error estimate and computed the other way.
- by entries: blocks of rows of W and A are formed, in time L S. Exponents are factored out as in
  `skrf._sums`: the largest over the keys that the block sees, and the largest of a row. Where that
  leaves a row too small, its block is taken in float64, then cut in two, down to single rows, for
  which every pair has an exponent of its own.

So no epsilon is ever needed.
"""

import math
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np

from .._arrays import (
    cast,
    constant,
    in_library_of,
    is_array_api,
    library,
    like,
    namespace,
    take,
    to_host,
)
from .._sums import Rows, finite, scale_keys, scale_queries, transposed
from .._threads import run_all
from ._inputs import blocks, blocks_between, side_by_side
from ._masks import some_rows

# Largest estimated relative error of a row computed by products. The estimate is a bound, 100 times
# too large where errors of features do not add up.
_TOLERANCE = {"float32": 1e-3, "float64": 1e-11}
# Terms that underflow are below 1e-38 or 1e-307: beside a sum of this size they do not count.
LEAST = {"float32": 1e-25, "float64": 1e-280}
_COLUMN_BYTES, _DEVICE_BYTES = 2**18, 2**26  # of columns multiplied at once: larger leave the cache
_BLOCK_BYTES = 2**22  # of a block of entries
_LEAST_COLUMNS = 8  # which fill the processor's vectors
_HIGHEST = 600.0  # exponents of keys of weight 0 are cut here: their exponentials are floats


@dataclass(frozen=True, eq=False)
class Features:
    """What masked attention is computed from.

    Parameters
    ----------
    queries : Rows of shape (..., G, L, M)
        Features of the queries of G heads.
    keys : Rows of shape (..., S, M)
        Features of the keys; padded ones are zero.
    values : array of shape (..., S, e + 1)
        [weight, values]: the weight is 1, or 0 for padding.
    heads : ndarray of int of shape (..., G)
        The query heads, for masks with weights of their own.
    """

    queries: Rows
    keys: Rows
    values: Any
    heads: np.ndarray

    @cached_property
    def doubled(self):
        """The same in float64; this object if it already is."""
        dtype = namespace(self.values).float64
        if self.values.dtype == dtype:
            return self
        queries, keys = (
            rows.map(lambda array: cast(array, dtype)) for rows in (self.queries, self.keys)
        )
        return Features(queries, keys, cast(self.values, dtype), self.heads)

    @property
    def is_signed(self):
        """Whether features have signs, so that sums may cancel."""
        return not self.keys.holds_logs


def attend_under_mask(key_features, mask, heads, out):
    """Write attention under a mask to an `Output`.

    Parameters
    ----------
    key_features : KeyFeatures
        The inputs.
    mask : Mask
        The mask.
    heads : ndarray of int of shape (U, G)
        Query heads of the sets.
    out : Output
        What is written.

    Returns
    -------
    int
        Number of queries whose output is 0 because their weights sum to 0, though they see a key.
    """
    every = slice(0, None)
    queries, keys = key_features.queries(every), key_features.keys(every)
    features = Features(queries, keys, key_features.values(every), heads)
    pieces, n_queries = [], queries.values.shape[-2]
    remaining = np.arange(n_queries)
    if mask.products_pay(queries.values.shape[-1], features.values.shape[-1] - 1):
        result, is_right = _by_products(features, mask)
        pieces, remaining = _piece(remaining, result, is_right), remaining[~is_right]
    row_blocks = [remaining[block] for block in blocks(len(remaining), mask.block_rows)]
    work = partial(_by_entries, features=features, mask=mask)
    results = run_all(work, row_blocks) if key_features.inputs.is_numpy else map(work, row_blocks)
    pieces += chain.from_iterable(results)
    order, *result = zip(*pieces, strict=True)
    order, result = np.concatenate(order), [side_by_side(arrays, -2) for arrays in result]
    if np.any(order[1:] < order[:-1]):
        result = [take(array, np.argsort(order), -2) for array in result]
    sums, level = result
    out.write(sums, level + math.log(mask.largest))
    return _n_lost(sums, features, mask) if features.is_signed else 0


def _piece(rows, result, is_right):
    """Return the accurate ones of some rows with their sums and log scales, or nothing."""
    done = np.flatnonzero(is_right)
    return [(rows[done], *(some_rows(array, done) for array in result))] if len(done) else []


def _n_lost(sums, features, mask):
    """Return the number of queries whose weights sum to 0 although they see a key."""
    is_lost, n_lost = to_host(sums[..., 0] == 0), 0
    places = np.flatnonzero(is_lost.reshape(-1, is_lost.shape[-1]).any(axis=0))
    for block in blocks(len(places), mask.block_rows):
        rows = places[block]
        n_lost += int((is_lost[..., rows] & _sees_a_key(rows, features, mask)).sum())
    return n_lost


def _sees_a_key(rows, features, mask):
    """Return, on the host, which rows see a key that is not padded: (..., G or 1, n)."""
    xp, visible = namespace(features.values), mask.visible(rows)
    is_key = to_host(xp.max(constant(features.keys.exponents), axis=-1) > -np.inf)[..., visible]
    entries = mask.entries(rows, visible, features.values, features.heads)
    is_seen = _of_all_heads(to_host(constant(entries)) > 0, mask)
    return (is_seen & is_key[..., None, None, :]).any(axis=-1)


def _all_sets(flags):
    """Return on the host for which rows a flag of shape (..., n) holds in all sets and heads."""
    flags = to_host(flags)
    return flags.reshape(-1, flags.shape[-1]).all(axis=0)


def name_of(X):
    """Return the name of a dtype."""
    return str(X.dtype).rsplit(".", 1)[-1]


def _rows_of(features, rows):
    """Return features of some rows, by views where possible."""
    return features.map(lambda array: some_rows(array, rows))


def _new_rows(features, rows):
    """Return features of some rows, which may be overwritten."""
    return _rows_of(features, rows).map(lambda array: 1 * array)


# ------------------------------------------------------------------ by products


def _by_products(features, mask):
    """Return sums (..., G, L, e + 1) in float64 with log scales, and which rows are accurate."""
    keys, queries, values = features.keys, features.queries, features.values
    xp, every = namespace(values), slice(0, None)
    top = constant(xp.max(keys.exponents, axis=-2))
    Q, level = scale_queries(_new_rows(queries, every), top[..., None, :])
    K = scale_keys(_new_rows(keys, every), top)
    Q, K, V = (transposed(array) for array in (Q, K, values))
    if not is_array_api(values):  # NumPy's transforms are faster on contiguous rows
        Q, K, V = map(np.ascontiguousarray, (Q, K, V))
    product = mask.multiplier(values, features.heads)
    n_bytes = _DEVICE_BYTES if is_array_api(values) else _COLUMN_BYTES
    n_bytes //= (4 if values.dtype == xp.float32 else 8) * mask.size
    batch = max(_LEAST_COLUMNS, n_bytes // math.prod(values.shape[:-2]))

    def sums_of(columns_of_values):
        """Return the sums of some values, (..., G, c, L)."""
        few_values, total = V[..., None, columns_of_values, :], 0.0
        for block in blocks(K.shape[-2], max(1, batch // few_values.shape[-2])):
            columns = K[..., block, None, :] * few_values
            *leading, n_features, n_values, n_keys = columns.shape
            masked = product(xp.reshape(columns, (*leading, -1, n_keys)))
            masked = xp.reshape(masked, (*masked.shape[:-2], n_features, n_values, -1))
            total = total + xp.sum(Q[..., block, None, :] * masked, axis=-3)
        return total

    # More parts than threads; transforms are fastest for a power of 2 of columns.
    n_columns = V.shape[-2]
    column_blocks = blocks(n_columns, min(batch, 1 << max(0, (n_columns // 8).bit_length() - 1)))
    run = map if is_array_api(values) else run_all
    sums = side_by_side(list(run(sums_of, column_blocks)), -2)
    is_right = _products_are_right(*map(constant, (sums, Q, K, V)), features.is_signed, mask)
    is_right[: mask.n_extra] = False
    return (cast(transposed(sums), xp.float64), cast(level, xp.float64)), is_right


def _products_are_right(sums, Q, K, V, is_signed, mask):
    """Return, on the host, which rows of sums are within the tolerance, for all sets and heads."""
    xp, tolerance = namespace(sums), _TOLERANCE[name_of(sums)]
    sizes = xp.max(xp.abs(V), axis=-1, keepdims=True)
    unit = V / xp.where(sizes == 0, like(1.0, V), sizes)
    norms = xp.sqrt((unit * unit) @ transposed(K * K)) * sizes
    errors = (norms[..., None, :, :] @ xp.abs(Q)) * mask.rounding(sums)
    # A sum of values may cancel, so it is compared with the whole row in units of usual values.
    usual = _usual(V[..., 1:, :])[..., None, :, None]
    largest = xp.max(xp.abs(sums[..., 1:, :]) / usual, axis=-2)
    wrong = xp.max(errors[..., 1:, :] / usual, axis=-2)
    weights = sums[..., 0, :]
    if sums.dtype == xp.float32:
        # An output that is small beside its values is as accurate as they allow, as elsewhere.
        largest = xp.maximum(largest, xp.abs(weights))
    is_right = (wrong <= tolerance * largest) & (errors[..., 0, :] <= tolerance * xp.abs(weights))
    return _all_sets(is_right if is_signed else is_right & (weights >= LEAST[name_of(sums)]))


def _usual(values):
    """Return the geometric mean of the sizes of the values in every column; 1 where all are 0."""
    xp = namespace(values)
    sizes = xp.abs(values)
    is_some = sizes > 0
    logs = xp.log(xp.where(is_some, sizes, 1.0))
    n = xp.sum(cast(is_some, values.dtype), axis=-1)
    return xp.exp(xp.sum(logs, axis=-1) / xp.where(n == 0, 1.0, n))


# ------------------------------------------------------------------ by entries


def _by_entries(rows, features, mask):
    """Return pieces (rows, sums (..., G, n, e + 1) in float64, log scales) that cover some rows."""
    if len(rows) == 1 and features.doubled is features:
        return [(rows, *_row_alone(rows, features, mask))]
    result, is_right = _block(rows, features, mask)
    remaining, pieces = rows[~is_right], _piece(rows, result, is_right)
    if len(remaining):
        is_double = features.doubled is features
        is_stuck = is_double and len(remaining) == len(rows)
        for block in np.array_split(remaining, 2) if is_stuck else [remaining]:
            pieces += _by_entries(block, features.doubled, mask)
    return pieces


def _key_blocks(keys, n_each):
    """Return keys, a slice or numbers, in blocks that take limited memory for n numbers per key."""
    size = max(1, _BLOCK_BYTES // (8 * n_each))
    if isinstance(keys, slice):
        return blocks_between([keys.start, keys.stop], size)
    return [keys[block] for block in blocks(len(keys), size)]


def _of_all_heads(entries, mask):
    """Return entries with an axis for heads."""
    return entries[None, ...] if mask.n_heads is None else entries


def _block(rows, features, mask):
    """Return sums of rows and log scales, and on the host which of them are accurate."""
    values = features.values
    xp, n_rows = namespace(values), len(rows) * math.prod(features.queries.values.shape[:-2])
    key_blocks = _key_blocks(mask.visible(rows), n_rows)
    exponents = constant(features.keys.exponents)
    top = xp.full_like(exponents[..., 0, :], -np.inf)
    for block in key_blocks:
        top = xp.maximum(top, xp.max(some_rows(exponents, block), axis=-2))
    Q, level = scale_queries(_new_rows(features.queries, rows), top[..., None, :])
    shape = (*Q.shape[:-1], values.shape[-1])
    sums, sizes = in_library_of(np.zeros(shape), values), 0.0
    for block in key_blocks:
        K = scale_keys(_new_rows(features.keys, block), top)
        K = transposed(K)[..., None, :, :]
        entries = mask.entries(rows, block, values, features.heads)
        weights = _of_all_heads(entries, mask)
        kernel = Q @ K
        kernel = library(kernel).multiply(kernel, weights)
        sums = sums + cast(kernel @ some_rows(values, block)[..., None, :, :], xp.float64)
        if features.is_signed:
            # Terms may cancel: their largest possible size decides whether the sum is accurate.
            most = (xp.abs(Q) @ xp.abs(K)) * weights
            sizes = sizes + constant(xp.sum(most, axis=-1))
    sizes = sizes if features.is_signed and key_blocks else constant(sums[..., 0])
    is_right = to_host(sizes >= LEAST[name_of(values)])
    if not is_right.all():
        is_right = is_right | ~_sees_a_key(rows, features, mask)
    return (sums, cast(level, xp.float64)), _all_sets(is_right)


def _row_alone(rows, features, mask):
    """Return the sums of one row, whose pairs have their own exponents, and its log scale."""
    values, visible = features.values, mask.visible(rows)
    xp, queries = namespace(values), _rows_of(features.queries, rows)
    n_entries = math.prod(queries.values.shape[:-2]) * queries.values.shape[-1]
    key_blocks = _key_blocks(visible, n_entries)
    if not key_blocks:
        shape = queries.values.shape[:-1]
        return [in_library_of(np.zeros((*shape, n)), values) for n in (values.shape[-1], 1)]
    pairs = [_pairs(queries, _rows_of(features.keys, block)) for block in key_blocks]
    signs, logs = (side_by_side(list(pieces), -1) for pieces in zip(*pairs, strict=True))
    entries = mask.entries(rows, visible, values, features.heads)
    weights = _of_all_heads(entries, mask)[..., 0, :]
    # Weights enter as logarithms. Those of 0 have no logarithm, but a gradient.
    sizes = constant(weights)
    is_used = sizes > 0
    sizes = xp.where(is_used, sizes, 1.0)
    logs = logs + xp.log(sizes)
    level = constant(xp.where(is_used, logs, -np.inf))
    level = finite(xp.max(level, axis=-1, keepdims=True))
    kernel = signs * xp.exp(xp.clip(logs - level, None, _HIGHEST)) * (weights / sizes)
    sums = kernel[..., None, :] @ some_rows(values, visible)[..., None, :, :]
    return sums, level[..., None]


def _pairs(queries, keys):
    """Return the products of one query of every head with keys, (..., G, m): factors and logs."""
    xp = namespace(keys.values)
    exponents = queries.exponents + keys.exponents[..., None, :, :]
    logs = xp.max(constant(exponents), axis=-1)
    factors = xp.exp(exponents - finite(logs)[..., None])
    if not keys.holds_logs:
        factors = factors * queries.values * keys.values[..., None, :, :]
    return xp.sum(factors, axis=-1), logs
