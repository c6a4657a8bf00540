"""Sums over the keys before every position, in parts of positions that share a scale.

Within a part the products of queries and keys are a triangle; all earlier keys enter as sums. One
step covers parts whose exponents suit one scale.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .._arrays import arithmetic, cast, is_array_api, namespace
from .._sums import transposed

PART_ROWS = 128  # of a triangular product


class Step(NamedTuple):
    """Some positions of causal attention that share a scale.

    Parameters
    ----------
    products : array of shape (..., G, n, e + 1)
        Denominators and numerators of the positions.
    total : array of shape (..., M, e + 1)
        Sums over the keys of these positions.
    """

    products: Any
    total: Any


def step(before, queries, keys, values):
    """Return the `Step` of some positions.

    Parameters
    ----------
    before : array of shape (..., M, e + 1)
        Sums over the keys of earlier positions.
    queries, keys : array of shape (..., G, n, M) and (..., n, M)
        Factors of the features, on the scale of these sums.
    values : array of shape (..., n, e + 1)
        [weight, values].
    """
    n, values = values.shape[-2], in_parts(cast(values, keys.dtype))
    queries, keys = heads_together(queries), in_parts(keys)
    turned = transposed(keys)
    triangles = _lower(queries @ turned)
    sums = turned * values if n == 1 else turned @ values  # libraries are slow at outer products
    earlier, total = running(cast(before, values.dtype), sums)
    products = arithmetic(values).add(queries @ earlier, triangles @ values)
    xp, c = namespace(products), values.shape[-2]
    products = xp.reshape(products, (*products.shape[:-2], -1, c, products.shape[-1]))
    return Step(as_rows(xp.moveaxis(products, -3, -4))[..., :n, :], total)


def in_parts(array, size=PART_ROWS):
    """Return rows (..., n, c) in parts (..., B, size, c), the last one padded with zeros."""
    *leading, n, width = array.shape
    n_parts = -(-n // size)
    if n_parts > 1 and n_parts * size > n:
        xp = namespace(array)
        zeros = xp.zeros_like(array[..., :1, :])
        zeros = xp.broadcast_to(zeros, (*leading, n_parts * size - n, width))
        array = xp.concat([array, zeros], axis=-2)
    return namespace(array).reshape(array, (*leading, n_parts, -1, width))


def heads_together(array, size=PART_ROWS):
    """Return rows of heads (..., G, n, c) in parts, those of all heads together."""
    return as_rows(namespace(array).moveaxis(in_parts(array, size), -4, -3))


def as_rows(array):
    """Return the rows of all parts, or of all heads, (..., B, n, c), as one axis (..., B n, c)."""
    shape = (*array.shape[:-3], array.shape[-3] * array.shape[-2], array.shape[-1])
    return namespace(array).reshape(array, shape)


def running(first, products):
    """Return sums over what comes before every part, and over all parts alone.

    Parameters
    ----------
    first : array of shape (..., M, c)
        What comes before the first part.
    products : array of shape (..., B, M, c)
        Sums over each part; NumPy arrays are overwritten.
    """
    if products.shape[-3] == 1:
        return first[..., None, :, :], products[..., 0, :, :]
    if is_array_api(products):
        xp = namespace(products)
        sums = xp.cumulative_sum(products, axis=-3, dtype=products.dtype)
        first = first[..., None, :, :]
        return xp.concat([first, first + sums[..., :-1, :, :]], axis=-3), sums[..., -1, :, :]
    total = 0.0
    for i in range(products.shape[-3]):
        before, total = total, total + products[..., i, :, :]
        products[..., i, :, :] = first + before
    return products, total


def _lower(products):
    """Return products (..., G c, c) with 0 for later keys; NumPy's are overwritten."""
    xp, c = namespace(products), products.shape[-1]
    if c == 1:
        return products
    heads = xp.reshape(products, (*products.shape[:-2], -1, c, c))
    if is_array_api(products):
        return xp.reshape(xp.tril(heads), products.shape)
    heads *= _ones_below(c, products.dtype)
    return products


@lru_cache(maxsize=16)
def _ones_below(n, dtype):
    return np.tri(n, dtype=dtype)
