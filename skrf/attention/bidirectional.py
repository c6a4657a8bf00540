"""Attention of all queries to all keys: sums over the keys once, read by every query.

ALGORITHM. Every feature f has the sum ``S_f = sum_j k_jf [1, v_j]``; query i reads
``sum_f q_if S_f`` and divides by its first column. Exponents are those of `skrf._sums`.
"""

from .._sums import Sums, added
from ._groups import blocks


def attend(group, out, block_size=None):
    """Write the attention of all queries of a `KeyGroup` to an `Output`."""
    size = group.rows_at_once(block_size)
    sums = key_sums(group, size)
    if sums.top.ndim > 1:  # an axis for the query heads of a set
        sums = Sums(sums.sums[..., None, :, :], sums.top[..., None, :])
    sums = sums.balanced() if group.maps.is_positive else sums
    for rows in blocks(group.q.shape[-2], size):
        out.put_quotients(rows, sums.weigh(group.query_features(rows)))


def key_sums(group, size):
    """Return the `Sums` over all keys."""
    sums = None
    for rows in blocks(group.k.shape[-2], size):
        sums = added(sums, group.key_features(rows), group.values(rows))
    return sums
