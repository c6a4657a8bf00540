"""Masked attention of one head, forward and backward, from features in float64.

Row i of the result is sum_j W_ij A_ij v_j / sum_j W_ij A_ij with the mask W and the kernel
A_ij = sum_f q_if k_jf. There are two ways to it:

- by columns: W multiplies k_f * v_c for every feature f and value c. Time and memory are those of
  products with W. Such a product rounds by a share of its largest keys, so rows that see only
  small ones are found by an estimate of their error, and go the other way.
- by rows: blocks of rows of W and A are formed, in time L S. For positive features all terms
  are nonnegative, so nothing cancels.

Exponents are taken out as in `skrf._sums`: the largest over the keys, and the largest of a row.
Where the keys that a row sees lie so far below others that its sums near underflow, its block is
cut in two, down to single rows: there the maximum is that of the row's own keys, and the
denominator of a positive map is at least 1. So none ever needs an epsilon.
"""

import numpy as np

from .._sums import Rows, finite, lifted, lowered
from ._heads import blocks, hide
from ._products import BLOCK_BYTES

# Largest relative error that a row may have by columns, as estimated. The gradient of such rows
# then rounds by a like share of the whole gradient.
_TOLERANCE = 1e-11
# Terms that underflow are below 1e-307: beside a sum of this size they do not count.
_LEAST = 1e-280


def masked(unit, mask, out):
    """Write the masked attention of a unit of NumPy, which is worked on in float64.

    Returns how many queries got 0 because their weights sum to 0, though they see a key.
    """
    n_lost = 0
    for g, ((queries, keys), values) in enumerate(_inputs(unit)):
        own, saved = masked_attention(queries, keys, values, mask)
        own *= out.unit
        out.array[g] = out.array[g] + own if out.adds else own
        if not unit.head.is_positive:
            is_lost = np.ones(len(queries.values), dtype=bool)
            for rows, denominators in saved:
                is_lost[slice(None) if rows is None else rows] &= np.isinf(denominators)
            n_lost += int(_see_a_key(np.flatnonzero(is_lost), keys, mask).sum())
    return n_lost


def masked_backward(unit, mask, gradient, found):
    """Write the gradients of masked attention of a unit of NumPy."""
    by_queries, by_keys, by_values = [], 0.0, 0.0
    for (rows, values), own in zip(_inputs(unit), gradient.astype(np.float64), strict=True):
        out, saved = masked_attention(*rows, values, mask)
        by_q, by_k, by_v = masked_attention_backward(*rows, values, mask, out, saved, own)
        by_queries.append(by_q)
        by_keys, by_values = by_keys + by_k, by_values + by_v
    every = slice(0, None)
    found.put_queries(every, np.stack(by_queries))
    found.put_keys(every, by_keys)
    found.put_values(every, by_values)


def _inputs(unit):
    """Yield (features of queries and keys), values of every query head; padded keys are zero."""
    unit.dtype, every = np.float64, slice(0, None)
    keys = unit.head.keys(unit.keys(every))
    keys = keys if unit.hidden is None else hide(keys, unit.hidden)
    for queries in unit.queries(every):
        yield (unit.head.queries(queries), keys), unit.values(every)[:, 1:]


def masked_attention(queries, keys, values, mask):
    """Return the attention of one head under a mask.

    Parameters
    ----------
    queries : Rows of shape (L, M)
        Features of the queries in float64.
    keys : Rows of shape (S, M)
        Features of the keys; padded ones are zero.
    values : ndarray of shape (S, e)
        Values in float64.
    mask : Mask
        What `as_mask` returned.

    Returns
    -------
    out : ndarray of shape (L, e)
        The attention; zeros in rows whose denominator is 0, as without any key.
    saved : list of tuple
        For the backward pass: rows that were computed together (None is all of them, by columns)
        and their denominators, infinite for rows that stand elsewhere in the list.
    """
    extended = np.column_stack([values, np.ones(len(values))])
    out = np.zeros((len(queries.values), values.shape[1]))
    rest, saved = np.arange(len(out)), []
    if mask.columns_pay(keys.values.shape[1], values.shape[1]):
        sums, is_done = _by_columns(queries, keys, extended, mask)
        saved.append((None, _divide(out, slice(None), sums, is_done)))
        rest = np.flatnonzero(~is_done)
    stack = [rest[part] for part in blocks(len(rest), mask.block_rows)]
    while stack:
        block = _Block(stack.pop(), queries, keys, mask)
        sums, sizes = block.sums(extended)
        is_done = (sizes >= _LEAST * mask.largest) | (len(sums) == 1)
        zeros = np.flatnonzero(~is_done & (sizes == 0))
        if len(zeros):
            is_done[zeros] = ~_see_a_key(block.rows[zeros], keys, mask)
        saved.append((block.rows, _divide(out, block.rows, sums, is_done)))
        stack += [rows for rows in np.array_split(block.rows[~is_done], 2) if len(rows)]
    return out, saved


def masked_attention_backward(queries, keys, values, mask, out, saved, grad_out):
    """Return the gradients of `masked_attention`, exponents held constant.

    Parameters
    ----------
    queries, keys, values, mask
        As given to it.
    out, saved
        What it returned.
    grad_out : ndarray of shape (L, e)
        Gradient with respect to out.

    Returns
    -------
    tuple of ndarray
        Gradients with respect to the values of the features of queries and keys, and to values.
    """
    extended = np.column_stack([values, np.ones(len(values))])
    grads = np.zeros_like(queries.values), np.zeros_like(keys.values), np.zeros_like(extended)
    slopes = np.column_stack([grad_out, -np.einsum("ij,ij->i", grad_out, out)])
    for rows, denominators in saved:
        if rows is None:
            own = slopes / denominators[:, None]
            _backward_by_columns(queries, keys, extended, mask, own, grads)
        else:
            own = slopes[rows] / denominators[:, None]
            _Block(rows, queries, keys, mask).backward(extended, own, grads)
    return grads[0], grads[1], grads[2][:, :-1]


def _see_a_key(rows, keys, mask):
    """Tell which rows see a key that is not padded."""
    is_key = keys.exponents.max(axis=1) > -np.inf
    found = [np.zeros(0, dtype=bool)]
    for part in blocks(len(rows), mask.block_rows):
        seen = mask.seen(rows[part])
        found.append(mask.entries(rows[part], seen[is_key[seen]]).any(axis=1))
    return np.concatenate(found)


def _divide(out, rows, sums, is_done):
    """Write the rows that are done, and return denominators: infinite where there is none."""
    denominators = np.where(is_done & (sums[:, -1] != 0), sums[:, -1], np.inf)
    out[rows] += sums[:, :-1] / denominators[:, None]
    return denominators


# ------------------------------------------------------------------ by columns


def _by_columns(queries, keys, extended, mask):
    """Return the sums (L, e + 1), and which rows are right to the tolerance."""
    V = np.ascontiguousarray(extended.T)
    sums, errors = np.zeros((2, len(V), len(queries.values)))
    for _, (Q, _), (K, _) in _feature_blocks(queries, keys, len(V), mask):
        for part in blocks(len(V), mask.batch):
            columns = K[:, None] * V[part]
            sums[part] += np.einsum("fl,fcl->cl", Q, _each(mask.dot, columns))
            norms = np.sqrt(np.einsum("fcs,fcs->cf", columns, columns))
            errors[part] += norms @ abs(Q)
    errors *= mask.rounding
    # A sum of values may cancel: it is compared with all of its row, in units of usual values.
    units = np.array([[np.median(v[v > 0]) if v.any() else 1.0] for v in abs(V[:-1])])
    largest = (abs(sums[:-1]) / units).max(axis=0, initial=0)
    is_right = (errors[:-1] / units).max(axis=0, initial=0) <= _TOLERANCE * largest
    is_right &= errors[-1] <= _TOLERANCE * abs(sums[-1])
    if keys.scale is None:
        is_right &= sums[-1] >= _LEAST * mask.largest
    return sums.T, is_right


def _backward_by_columns(queries, keys, extended, mask, by_sums, grads):
    """Add the gradients of the rows whose gradients of sums (L, e + 1) are not 0."""
    V, G = np.ascontiguousarray(extended.T), np.ascontiguousarray(by_sums.T)
    for features, (Q, q_slopes), (K, k_slopes) in _feature_blocks(queries, keys, len(V), mask):
        dQ, dK = np.zeros_like(Q), np.zeros_like(K)
        for part in blocks(len(V), mask.batch):
            seen = _each(mask.dot, K[:, None] * V[part])
            dQ += np.einsum("cl,fcl->fl", G[part], seen)
            seen = _each(mask.transposed_dot, Q[:, None] * G[part])
            dK += np.einsum("cs,fcs->fs", V[part], seen)
            grads[2][:, part] += np.einsum("fs,fcs->sc", K, seen)
        grads[0][:, features] += (dQ * q_slopes).T
        grads[1][:, features] += (dK * k_slopes).T


def _feature_blocks(queries, keys, n_columns, mask):
    """Yield features (a slice), and factors and slopes of queries (F, L) and of keys (F, S)."""
    top = keys.exponents.max(axis=0, keepdims=True)
    parts = blocks(len(queries.values), max(1, BLOCK_BYTES // (8 * top.size)))
    tops = np.hstack([(queries.exponents[part] + top).max(axis=1) for part in parts])
    for features in blocks(keys.values.shape[1], max(1, mask.batch // n_columns)):
        # One row for all features, or one for each.
        of_queries, of_keys, own = (
            logs.T[features] if logs.shape[1] > 1 else logs.T
            for logs in (queries.exponents, keys.exponents, top)
        )
        sides = (of_queries + own - finite(tops), queries), (of_keys - finite(own), keys)
        slopes = [np.exp(logs) for logs, _ in sides]
        yield (
            features,
            *(
                (slope if rows.scale is None else rows.values.T[features] * slope, slope)
                for slope, (_, rows) in zip(slopes, sides, strict=True)
            ),
        )


def _each(product, columns):
    """Return the products with columns of shape (F, C, n)."""
    flat = columns.reshape(-1, columns.shape[-1])
    return product(flat.T).T.reshape(*columns.shape[:2], -1)


# ------------------------------------------------------------------ by rows


class _Block:
    """Some rows of the masked kernel, formed in parts of the keys that they see."""

    def __init__(self, rows, queries, keys, mask):
        self.rows, self.keys, self.mask = rows, keys, mask
        self.seen, self.logs = mask.seen(rows), None
        if len(rows) == 1:
            # The weights join the logarithms: the maximum is that of the products.
            weights = mask.entries(rows, self.seen)[0]
            self.seen, self.logs = self.seen[weights > 0], np.log(weights[weights > 0])
        longest = max(keys.values.shape[1], len(rows))
        self.parts = blocks(len(self.seen), max(1, BLOCK_BYTES // (8 * longest)))
        nothing = np.full(keys.exponents.shape[1], -np.inf)
        self.top = np.max(
            [nothing, *(self._key_rows(p).exponents.max(axis=0) for p in self.parts)], 0
        )
        self.factors, self.slopes = lifted(queries.part(rows), self.top)

    def _key_rows(self, part):
        """Return the features of some keys as new arrays."""
        values, scale = rows = self.keys.part(self.seen[part])
        if self.logs is None:
            return rows
        logs = self.logs[part, None]
        return Rows(values + logs) if scale is None else Rows(values, scale + logs)

    def _kernel(self):
        """Yield numbers of keys, their weights, and factors and slopes of keys."""
        for part in self.parts:
            seen, weights = self.seen[part], 1.0
            if self.logs is None:
                weights = self.mask.entries(self.rows, seen)
            yield seen, weights, *lowered(self._key_rows(part), self.top)

    def sums(self, extended):
        """Return numerators and denominators, shape (B, e + 1), and sizes that tell underflow."""
        sums, sizes = np.zeros((len(self.rows), extended.shape[1])), np.zeros(len(self.rows))
        for seen, weights, K, _ in self._kernel():
            kernel = self.factors @ K.T
            kernel *= weights
            sums += kernel @ extended[seen]
            if self.keys.scale is not None:
                # Terms may cancel: how large they may be tells whether they are seen.
                sizes += np.sum((abs(self.factors) @ abs(K).T) * weights, axis=1)
        return sums, sums[:, -1] if self.keys.scale is None else sizes

    def backward(self, extended, by_sums, grads):
        """Add the gradients, given those of the sums (B, e + 1)."""
        dQ = np.zeros_like(self.factors)
        for seen, weights, K, slopes in self._kernel():
            H = weights * (by_sums @ extended[seen].T)
            dQ += H @ K
            grads[1][seen] += H.T @ self.factors * slopes
            kernel = self.factors @ K.T
            kernel *= weights
            grads[2][seen] += kernel.T @ by_sums
        grads[0][self.rows] += dQ * self.slopes
