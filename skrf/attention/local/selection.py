"""Heavy keys: those beyond the window that the mean query gives the largest weights."""

import numpy as np

from ..._arrays import cast, constant, in_library_of, like, namespace, take


def scores_of(mean, keys, is_key=None):
    """Return the products of mean queries (U, G, d) and keys (U, n, d), (U, G, n), in float64.

    Halves of the terms are added to each other, so that a score depends on nothing but its two
    vectors, however many keys are computed at once. Those of padding are -inf.
    """
    xp = namespace(keys)
    mean, keys = (cast(constant(rows), xp.float64) for rows in (mean, keys))
    terms = mean[..., :, None, :] * keys[..., None, :, :]
    while (width := terms.shape[-1]) > 1:
        half = width // 2
        added = terms[..., :half] + terms[..., half : 2 * half]
        terms = added if width == 2 * half else xp.concat([added, terms[..., 2 * half :]], axis=-1)
    scores = terms[..., 0]
    return scores if is_key is None else xp.where(is_key[:, None, :], scores, like(-np.inf, scores))


def choose(scores, n):
    """Return the places of the n largest scores, in order, and the places of all others.

    Of equal scores the first are taken. Places are along the last axis.
    """
    xp = namespace(scores)
    order = xp.argsort(-scores, axis=-1, stable=True)
    return xp.sort(order[..., :n], axis=-1), order[..., n:]


def taken(rows, places):
    """Return rows (..., m, w) of an array (..., n, w), given their places (..., m)."""
    xp, (n, width) = namespace(rows), rows.shape[-2:]
    flat = xp.reshape(rows, (-1, width))
    starts = in_library_of(np.arange(flat.shape[0] // n) * n, places, dtype=places.dtype)
    numbers = places + xp.reshape(starts, (*rows.shape[:-2], 1))
    return xp.reshape(take(flat, xp.reshape(numbers, (-1,))), (*places.shape, width))
