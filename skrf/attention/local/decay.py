"""A decay within local attention: one more number for queries and keys."""

import numpy as np

from ..._arrays import cast, in_library_of, namespace
from .selection import Statistics


def decaying(q, rows, known, rates, count, scale):
    """Return queries, keys with values, and statistics with one more number for a decay.

    The weight exp(-rate (i - j)) is exp(rate j) up to a factor that all keys of a query share. Key
    j gets the number rate j, and queries get 1 / scale, which the scale makes 1.
    """
    xp, n, width = namespace(rows), rows.shape[-2], q.shape[-1]
    places = in_library_of(count + np.arange(n), rates)
    shifts = cast(rates[:, None] * cast(places, rates.dtype), rows.dtype)
    rows = xp.concat([rows[..., :width], shifts[..., None], rows[..., width:]], axis=-1)

    def wider(array, value):
        return xp.concat([array, xp.full_like(array[..., :1], value)], axis=-1)

    if known is not None:  # without a variance of the queries, those of keys do not matter
        known = Statistics(wider(known.mean, 1 / scale), *(wider(part, 0.0) for part in known[1:]))
    return wider(q, 1 / scale), rows, known


def split(out, rates, first):
    """Return outputs and log-sum-exps, which a decay shares out among positions from a first one.

    Every key that position i sees has been raised by rate i, see `decaying`.
    """
    out, lse = out[..., :-1], out[..., -1]
    if rates is not None:
        places = in_library_of(first + np.arange(lse.shape[-1]), rates)
        lse = lse - cast(rates[:, None, None] * cast(places, rates.dtype), lse.dtype)
    return out, lse
