"""Attention of all queries to all keys: sums over the keys once, read by every query.

ALGORITHM. Every feature f has the sum ``S_f = sum_j k_jf [1, v_j]``; query i reads
``sum_f q_if S_f`` and divides by its first column. Exponents are those of `skrf._sums`.
"""

import numpy as np

from .._sums import Readout, Sums, added, is_inside, product
from ._groups import blocks

_SAMPLED_KEYS = 64  # to guess the size of all exponents


def attend(group, out, block_size=None):
    """Write the attention of all queries of a `KeyGroup` to an `Output`."""
    size = group.rows_at_once(block_size)
    sums = key_sums(group, size)
    if sums.top.ndim > 1:  # an axis for the query heads of a set
        sums = Sums(sums.sums[..., None, :, :], sums.top[..., None, :])
    readout = Readout(sums, group.maps.is_positive)
    for rows in blocks(group.q.shape[-2], size):
        out.put_quotients(rows, group.read(readout, rows))


def key_sums(group, size):
    """Return the `Sums` over all keys."""
    sums = _sums_on_a_guess(group, size)
    if sums is None:
        for rows in blocks(group.k.shape[-2], size):
            sums = added(sums, group.key_features(rows), group.values(rows))
    return sums


def _sums_on_a_guess(group, size):
    """Return the sums on a scale guessed from a few keys, or None where the guess is bad.

    It saves the pass that finds the largest exponents.
    """
    if not (group.maps.is_positive and group.is_numpy and group.k.ndim == 2):
        return None
    n_keys, total = group.k.shape[-2], 0.0
    few = group.key_features(slice(0, n_keys, max(1, n_keys // _SAMPLED_KEYS)))
    guess = few.values.max(axis=0).astype(np.float64)
    if not np.isfinite(guess).all():
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in blocks(n_keys, size):
            factors = group.key_features(rows, guess).values
            total += product(np.exp(factors, out=factors), group.values(rows))
    return Sums(total, guess) if is_inside(total[:, 0], factors.dtype) else None
