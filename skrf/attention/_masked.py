"""Masked attention of one head, forward and backward, from features in float64.

Row i of the result is sum_j W_ij A_ij v_j / sum_j W_ij A_ij with the mask W and the kernel
A_ij = sum_f q_if k_jf. There are two ways to it:

- by columns: W multiplies k_f * v_c for every feature f and value c. Time and memory are those of
  products with W. Such a product rounds by a share of its largest keys, so rows that see only
  small ones are told by an estimate of their error, and go the other way.
- by rows: blocks of rows of W and A are formed, in time L S. For positive features all terms
  are nonnegative, so nothing cancels.

Log features are scaled by the maximum a_f of feature f over the keys, and in every row by
u_i = max_f (q_if + a_f). Where the keys that a row sees lie so far below others that its
denominator nears underflow, its block is cut in two, down to single rows: there the maximum is
that of the row's own keys, and the denominator is at least 1. So none ever needs an epsilon.
"""

import numpy as np

from ._products import BLOCK_BYTES

# Largest relative error that a row may have by columns, as estimated. The gradient of such rows
# then rounds by a like share of the whole gradient.
_TOLERANCE = 1e-11
# Terms that underflow are below 1e-307: beside a sum of this size they do not count.
_LEAST = 1e-280


def masked_attention(queries, keys, values, mask, is_log):
    """Return the attention of one head under a mask.

    Parameters
    ----------
    queries : ndarray of shape (L, M)
        Features of the queries in float64, or their logarithms.
    keys : ndarray of shape (S, M)
        The same of the keys; a padded one is a row of zeros, or of -inf for logarithms.
    values : ndarray of shape (S, e)
        Values in float64.
    mask : Mask
        What `as_mask` returned.
    is_log : bool
        Whether the features are logarithms.

    Returns
    -------
    out : ndarray of shape (L, e)
        The attention; zeros in rows whose denominator is 0, as without any key.
    saved : list of tuple
        For the backward pass: rows that were computed together (None is all of them, by columns)
        and their denominators, infinite for rows that stand elsewhere in the list.
    """
    extended = np.column_stack([values, np.ones(len(values))])
    out = np.zeros((len(queries), values.shape[1]))
    rest, saved = np.arange(len(queries)), []
    if mask.columns_pay(keys.shape[1], values.shape[1]):
        sums, is_done = _by_columns(queries, keys, extended, mask, is_log)
        saved.append((None, _divide(out, slice(None), sums, is_done)))
        rest = np.flatnonzero(~is_done)
    stack = [rest[part] for part in _parts(len(rest), mask.block_rows)]
    while stack:
        block = _Block(stack.pop(), queries, keys, mask, is_log)
        sums = block.sums(extended)
        is_done = (sums[:, -1] >= _LEAST * mask.largest) | (not is_log or len(sums) == 1)
        zeros = np.flatnonzero(~is_done & (sums[:, -1] == 0))
        if len(zeros):
            is_done[zeros] = block.are_empty(block.rows[zeros])
        saved.append((block.rows, _divide(out, block.rows, sums, is_done)))
        stack += [rows for rows in np.array_split(block.rows[~is_done], 2) if len(rows)]
    return out, saved


def masked_attention_backward(queries, keys, values, mask, is_log, out, saved, grad_out):
    """Return the gradients of `masked_attention`, the maxima held constant.

    Parameters
    ----------
    queries, keys, values, mask, is_log
        As given to it.
    out, saved
        What it returned.
    grad_out : ndarray of shape (L, e)
        Gradient with respect to out.

    Returns
    -------
    tuple of ndarray
        Gradients with respect to queries and keys (the logarithms if is_log) and values.
    """
    extended = np.column_stack([values, np.ones(len(values))])
    grads = np.zeros_like(queries), np.zeros_like(keys), np.zeros_like(extended)
    slopes = np.column_stack([grad_out, -np.einsum("ij,ij->i", grad_out, out)])
    for rows, denominators in saved:
        if rows is None:
            own = slopes / denominators[:, None]
            _backward_by_columns(queries, keys, extended, mask, is_log, own, grads)
        else:
            own = slopes[rows] / denominators[:, None]
            _Block(rows, queries, keys, mask, is_log).backward(extended, own, grads)
    return grads[0], grads[1], grads[2][:, :-1]


def _divide(out, rows, sums, is_done):
    """Write the rows that are done, and return denominators: infinite where there is none."""
    denominators = np.where(is_done & (sums[:, -1] != 0), sums[:, -1], np.inf)
    out[rows] += sums[:, :-1] / denominators[:, None]
    return denominators


def _parts(n, step):
    """Yield slices of at most step numbers out of n."""
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def _finite(maxima):
    """Return maxima with 0 for -inf, which no exponential may subtract."""
    return np.where(np.isfinite(maxima), maxima, 0)


# ------------------------------------------------------------------ by columns


def _by_columns(queries, keys, extended, mask, is_log):
    """Return the sums (L, e + 1), and which rows are right to the tolerance."""
    V = np.ascontiguousarray(extended.T)
    sums, errors = np.zeros((2, len(V), len(queries)))
    for _, Q, K in _feature_blocks(queries, keys, len(V), mask, is_log):
        for part in _parts(len(V), mask.batch):
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
    if is_log:
        is_right &= sums[-1] >= _LEAST * mask.largest
    return sums.T, is_right


def _backward_by_columns(queries, keys, extended, mask, is_log, slopes, grads):
    """Add the gradients of the rows whose slopes (L, e + 1) are not 0."""
    V, G = np.ascontiguousarray(extended.T), np.ascontiguousarray(slopes.T)
    for features, Q, K in _feature_blocks(queries, keys, len(V), mask, is_log):
        dQ, dK = np.zeros_like(Q), np.zeros_like(K)
        for part in _parts(len(V), mask.batch):
            seen = _each(mask.dot, K[:, None] * V[part])
            dQ += np.einsum("cl,fcl->fl", G[part], seen)
            seen = _each(mask.transposed_dot, Q[:, None] * G[part])
            dK += np.einsum("cs,fcs->fs", V[part], seen)
            grads[2][:, part] += np.einsum("fs,fcs->sc", K, seen)
        grads[0][:, features] += (dQ * Q if is_log else dQ).T
        grads[1][:, features] += (dK * K if is_log else dK).T


def _feature_blocks(queries, keys, n_columns, mask, is_log):
    """Yield features (a slice) with their queries (F, L) and keys (F, S), scaled."""
    if is_log:
        maxima = keys.max(axis=0)
        parts = _parts(len(queries), max(1, BLOCK_BYTES // (8 * keys.shape[1])))
        tops = _finite(np.hstack([(queries[part] + maxima).max(axis=1) for part in parts]))
    for features in _parts(keys.shape[1], max(1, mask.batch // n_columns)):
        Q, K = queries.T[features].copy(), keys.T[features].copy()
        if is_log:
            Q = np.exp(Q + maxima[features, None] - tops)
            K = np.exp(K - _finite(maxima[features, None]))
        yield features, Q, K


def _each(product, columns):
    """Return the products with columns of shape (F, C, n)."""
    flat = columns.reshape(-1, columns.shape[-1])
    return product(flat.T).T.reshape(*columns.shape[:2], -1)


# ------------------------------------------------------------------ by rows


class _Block:
    """Some rows of the masked kernel, formed in parts of the keys that they see."""

    def __init__(self, rows, queries, keys, mask, is_log):
        self.rows, self.queries, self.keys = rows, queries[rows], keys
        self.mask, self.is_log = mask, is_log
        self.seen, self.logs = mask.seen(rows), None
        if is_log and len(rows) == 1:
            # The weights join the logarithms: the maximum is that of the products.
            weights = mask.entries(rows, self.seen)[0]
            self.seen, self.logs = self.seen[weights > 0], np.log(weights[weights > 0])
        longest = max(keys.shape[1], len(rows))
        self.parts = list(_parts(len(self.seen), max(1, BLOCK_BYTES // (8 * longest))))
        if is_log:
            maxima = [self._keys(part).max(axis=0) for part in self.parts]
            maxima = np.max(maxima, axis=0, initial=-np.inf)
            self.queries += maxima
            self.queries -= _finite(self.queries.max(axis=1, keepdims=True))
            np.exp(self.queries, out=self.queries)
            self.maxima = _finite(maxima)

    def _keys(self, part):
        """Return the (log) features of some keys as a new array."""
        keys = self.keys[self.seen[part]]
        if self.logs is not None:
            keys += self.logs[part, None]
        return keys

    def _kernel(self):
        """Yield numbers of keys, weights, the kernel under them, and scaled features of keys."""
        for part in self.parts:
            seen, K = self.seen[part], self._keys(part)
            if self.is_log:
                K -= self.maxima
                np.exp(K, out=K)
            kernel, weights = self.queries @ K.T, 1.0
            if self.logs is None:
                weights = self.mask.entries(self.rows, seen)
                kernel *= weights
            yield seen, weights, kernel, K

    def sums(self, extended):
        """Return numerators and denominators, shape (B, e + 1)."""
        sums = np.zeros((len(self.rows), extended.shape[1]))
        for seen, _, kernel, _ in self._kernel():
            sums += kernel @ extended[seen]
        return sums

    def are_empty(self, rows):
        """Tell which rows have no key left, because all that they see are padded."""
        is_empty = np.ones(len(rows), dtype=bool)
        for part in self.parts:
            seen = self.seen[part]
            seen = seen[self.keys[seen].max(axis=1) > -np.inf]
            is_empty &= ~self.mask.entries(rows, seen).any(axis=1)
        return is_empty

    def backward(self, extended, slopes, grads):
        """Add the gradients, given slopes (B, e + 1)."""
        dQ = np.zeros_like(self.queries)
        for seen, weights, kernel, K in self._kernel():
            H = weights * (slopes @ extended[seen].T)
            dQ += H @ K
            dK = H.T @ self.queries
            grads[1][seen] += dK * K if self.is_log else dK
            grads[2][seen] += kernel.T @ slopes
        grads[0][self.rows] += dQ * self.queries if self.is_log else dQ
