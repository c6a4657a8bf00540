"""Kernels in plain array-API code, for NumPy, CuPy, torch and whatever follows the standard."""

import math
from functools import lru_cache

import numpy as np
from scipy.linalg import hadamard as hadamard_rows
from scipy.spatial.distance import cdist

from .._arrays import is_array_api, like, namespace

# One matrix product up to this order; above, a Kronecker product of smaller ones is faster.
LARGEST_FACTOR = 64

TIES = 256 * np.finfo(float).eps  # of a log: paths that lack no more are as probable


# ---------------------------------------------------------------- orders and matrices


def next_order(n):
    """Return the least power of two that is at least n."""
    return 1 << (n - 1).bit_length()


@lru_cache(maxsize=64)
def hadamard_matrix(order):
    """Return Sylvester's matrix H: symmetric, with entries +-1 and H H' = order I.

    In float64 and cached, so callers must not write to it. Dense, so for small orders only.
    """
    return hadamard_rows(order, dtype=np.float64)


@lru_cache(maxsize=64)
def _factor_orders(order):
    """Return orders whose Hadamard matrices make that of `order` as a Kronecker product."""
    if order <= LARGEST_FACTOR:
        return (order,)
    stages = order.bit_length() - 1
    n_factors = -(-stages // 6)
    return tuple(2 ** (stages // n_factors + (i < stages % n_factors)) for i in range(n_factors))


# ---------------------------------------------------------------- transforms


def hadamard(X):
    """Return X H along the last axis, H = `hadamard_matrix` of the width, not normalised.

    Parameters
    ----------
    X : array of shape (..., order)
        The rows, real floating.

    Returns
    -------
    array of shape (..., order)
        H x for every row x; a new array.
    """
    xp = namespace(X)
    order = X.shape[-1]
    lead = math.prod(X.shape[:-1])
    right, rows = 1, X
    for size in reversed(_factor_orders(order)):
        factor = like(hadamard_matrix(size), X)
        left = order // (size * right)
        if right == 1:
            rows = xp.reshape(rows, (lead * left, size)) @ factor
        else:
            rows = factor @ xp.reshape(rows, (lead * left, size, right))
        right *= size
    return xp.reshape(rows, X.shape)


def simplex_weights(n_rows):
    """Return (a, b, c): S u = (a u_i - b t for i < n - 1, c t), t the sum of u_1, ..., u_{n-1}."""
    n = n_rows
    return math.sqrt(n / (n - 1)), (math.sqrt(n) + 1) / (n - 1) ** 1.5, 1 / math.sqrt(n - 1)


def simplex(U):
    """Return S u along the last axis in O(n), S of `simplex_weights`.

    Parameters
    ----------
    U : array of shape (..., n)
        The rows, real floating.

    Returns
    -------
    array of shape (..., n)
        Unit rows of a simplex times every u.
    """
    n = U.shape[-1]
    if n == 1:
        return U
    xp = namespace(U)
    a, b, c = simplex_weights(n)
    head = U[..., :-1]
    total = xp.sum(head, axis=-1, keepdims=True)
    return xp.concat([a * head - b * total, c * total], axis=-1)


def project(X, diagonals, lengths, simplices, out=None):
    """Return products with the rows of W = D S (H D_k) ... (H D_1), block by block.

    Parameters
    ----------
    X : array of shape (n, d)
        The rows; padded with zeros to the order.
    diagonals : ndarray of shape (n_blocks, n_layers, order)
        The D_k of every block, in the dtype of X.
    lengths : ndarray of shape (m,)
        D, in the dtype of X; m < n_blocks * order truncates the last block.
    simplices : bool
        Whether S is the simplex product of as many rows as the block keeps, or the identity.
    out : ndarray of shape (n, m), default=None
        Array to write to; None makes a new one.

    Returns
    -------
    array of shape (n, m)
        The products.
    """
    xp = namespace(X)
    (n, d), order = X.shape, diagonals.shape[2]
    # Other libraries need the device of new zeros; NumPy has none.
    place = {"device": X.device} if is_array_api(X) else {}
    padding = xp.zeros((n, order - d), dtype=X.dtype, **place)
    blocks = []
    for k, layers in enumerate(diagonals):
        cut = lengths[k * order : (k + 1) * order]
        rows = xp.concat([X, padding], axis=1) if order > d else X
        for diagonal in layers:
            rows = hadamard(rows * like(diagonal, X))
        rows = rows[:, : len(cut)]
        if simplices:
            rows = simplex(rows)
        rows = rows * like(cut, X)
        if out is None:
            blocks.append(rows)
        else:
            out[:, k * order : k * order + len(cut)] = rows
    return xp.concat(blocks, axis=1) if out is None else out


# ---------------------------------------------------------------- sweeps of simplex+
#
# Products p_i with the rows w_i s_i of a block, and their sum t. A step of a sweep turns row i to
# -r / |r|, where r.x = t - p_i: so p_i becomes -b (t - p_i) with the share b = w_i / |r|, and t
# becomes (1 - b) (t - p_i).


def sweep(products, sweeps):
    """Return products with the rows of simplex+, given those with the rows of simplices.

    Parameters
    ----------
    products : array of shape (n, m)
        The products, block by block. NumPy arrays are overwritten.
    sweeps : ndarray of shape (n_blocks, n_sweeps, order)
        The shares b.

    Returns
    -------
    array of shape (n, m)
        The products.
    """
    xp, order, blocks = namespace(products), sweeps.shape[2], []
    for k, of_block in enumerate(sweeps):
        block = products[:, k * order : min((k + 1) * order, products.shape[1])]
        if block.shape[1] == 1:  # a lone row stays
            blocks.append(block)
            continue
        columns, total = [block[:, j] for j in range(block.shape[1])], xp.sum(block, axis=1)
        for shares in of_block:
            for j in range(len(columns)):
                total = total - columns[j]
                columns[j] = -float(shares[j]) * total
                total = total + columns[j]
        blocks.append(xp.stack(columns, axis=1))
    result = xp.concat(blocks, axis=1)
    if is_array_api(products):
        return result
    products[:] = result
    return products


# ---------------------------------------------------------------- sine and cosine


def sine_cosine(products, amplitude, out):
    """Write [cos P * a, sin P * a] side by side into a NumPy array, one amplitude a per row."""
    m = products.shape[1]
    np.cos(products, out=out[:, :m])
    np.sin(products, out=out[:, m:])
    if amplitude is None or not len(out):
        return
    # A number is several times as fast as one for every row.
    is_shared = (amplitude == amplitude[0]).all()
    out *= amplitude[0] if is_shared else amplitude[:, None]


# ---------------------------------------------------------------- exponentials


exp = np.exp  # of a NumPy array, written to another or to itself


# ---------------------------------------------------------------- L1 distances


def city_block(X, Y):
    """Return the L1 distances of all pairs of rows, in the library and the dtype of X.

    Parameters
    ----------
    X : array of shape (n, d)
        Rows.
    Y : ndarray of shape (m, d)
        Other rows, on the host.

    Returns
    -------
    array of shape (n, m)
        The distances.
    """
    if not is_array_api(X):
        return cdist(X, Y, "cityblock").astype(X.dtype, copy=False)
    xp, Y, distances = namespace(X), like(Y, X), 0.0
    for k in range(X.shape[1]):  # one column at a time, which keeps memory
        distances = distances + xp.abs(X[:, k, None] - Y[None, :, k])
    return distances


# ---------------------------------------------------------------- hidden Markov models
#
# Sequences lie one after the other in `symbols`, which are rows of `weights`, the emission values
# of all states; `starts` and `ends` say where a sequence begins and ends.


def filter_states(A, start, weights, symbols, starts, least, posteriors, totals):
    """Write posteriors given the past and their divisors, and return whether all are above `least`.

    Parameters
    ----------
    A : ndarray of shape (n, n)
        Values of transitions.
    start : ndarray of shape (n,)
        Values of first states.
    weights : ndarray of shape (n_symbols, n)
        Values of emissions.
    symbols : ndarray of intp of shape (T,)
        Rows of `weights`.
    starts : ndarray of bool of shape (T,)
        Where a sequence begins.
    least : float
        A smaller divisor ends the pass.
    posteriors : ndarray of shape (T, n) or (1, n)
        All posteriors, or only the last one, is written here.
    totals : ndarray of shape (T,)
        Divisors.
    """
    keeps, last = len(posteriors) > 1, start
    for t, row in enumerate(weights[symbols]):
        last = row * (start if starts[t] else last @ A)
        totals[t] = total = last.sum()
        if not total > least:
            return False
        last /= total
        posteriors[t if keeps else 0] = last
    return True


def smooth_states(A, weights, symbols, starts, totals, posteriors, counts=None):
    """Turn posteriors given the past into those given all.

    Parameters
    ----------
    A, weights, symbols, starts, totals, posteriors
        As in `filter_states`, which wrote the last two.
    counts : tuple of ndarray, default=None
        Expected counts are added to these: of transitions, (n, n), divided by A; of states with
        symbols, (n_symbols, n); and of first states, (n,), divided by `start`.
    """
    ends, before, v = np.append(starts[1:], True), posteriors.copy(), weights[symbols]
    v /= totals[:, None]
    for t in range(len(symbols) - 1, -1, -1):
        back = np.ones(len(A)) if ends[t] else A @ v[t + 1]
        posteriors[t] *= back
        total = posteriors[t].sum()
        posteriors[t] /= total
        v[t] *= back / total
    if counts is not None:
        moves, by_symbol, by_start = counts
        moves += before[~ends].T @ v[~starts]
        np.add.at(by_symbol, symbols, posteriors)
        by_start += v[starts].sum(axis=0)


def largest_places(values, margin):
    """Return the first place in every row of probabilities that lacks at most a relative margin."""
    tops = values.max(axis=1, keepdims=True)
    return (values >= tops - margin * tops).argmax(axis=1)


def filter_logs(A, log_A, log_start, log_weights, symbols, starts, posteriors, norms):
    """Write log posteriors given the past and log divisors, -inf where what is seen cannot be."""
    keeps, last = len(posteriors) > 1, log_start
    for t, row in enumerate(log_weights[symbols]):
        last = row + (log_start if starts[t] else np.logaddexp.reduce(last[:, None] + log_A))
        norms[t] = total = np.logaddexp.reduce(last)
        last = last - total if total > -np.inf else last
        posteriors[t if keeps else 0] = last


def smooth_logs(A, log_A, log_weights, symbols, starts, norms, posteriors, counts=None):
    """Turn log posteriors given the past into posteriors given all.

    Counts are those of `smooth_states`, divided by nothing.
    """
    ends, ahead = np.append(starts[1:], True), np.zeros(len(A))
    for t in range(len(symbols) - 1, -1, -1):
        back = np.zeros(len(A)) if ends[t] else np.logaddexp.reduce(log_A + ahead, axis=1)
        ahead = log_weights[symbols[t]] + back - norms[t]
        posteriors[t] = np.exp(posteriors[t] + back)
        posteriors[t] /= posteriors[t].sum()
        if counts is not None and not starts[t]:
            counts[0][:] += np.exp(posteriors[t - 1][:, None] + log_A + ahead)
    if counts is not None:
        np.add.at(counts[1], symbols, posteriors)
        counts[2][:] += posteriors[starts].sum(axis=0)


def best_values(log_A, log_start, log_weights, symbols, starts, best):
    """Write log probabilities of the best paths to every state at every position."""
    turned, last = np.ascontiguousarray(log_A.T), log_start
    for t, row in enumerate(log_weights[symbols]):
        last = row + (log_start if starts[t] else (turned + last).max(axis=1))
        best[t] = last


def trace(log_A, best, ends, path):
    """Write the best path, from its end; of equals but for rounding the first is taken."""
    turned, after = np.ascontiguousarray(log_A.T), 0
    for t in range(len(best) - 1, -1, -1):
        values = best[t] if ends[t] else best[t] + turned[after]
        top = values.max()
        after = path[t] = (values >= top - TIES * (1.0 + abs(top))).argmax()
