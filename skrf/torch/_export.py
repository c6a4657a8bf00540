"""Attention as plain operations on tensors, which torch can export, compile, map and differentiate.

A positive map whose logarithms are quadratic functions of a row, with one quadratic form for all
features, is known from its values at a few rows: log phi(x) = x'Qx + x W + b. No content is looked
at: everything is in float64 and on one scale per feature, that of the whole sequence.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

_PART_ROWS = 128  # of a triangular product
_CLOSE = 1e-9  # what rounding may change at the rows of a test


class LogFeatures(NamedTuple):
    """Quadratic logarithms of the features of one side, for every head or for all.

    Parameters
    ----------
    square : Tensor of shape (heads or 1, d, d)
        Q.
    slope : Tensor of shape (heads or 1, d, M)
        W.
    start : Tensor of shape (heads or 1, 1, M)
        b.
    """

    square: Any
    slope: Any
    start: Any

    @classmethod
    def of(cls, maps, width, name):
        """Return that of the feature maps of heads, or raise and name them."""
        coefficients = []
        for feature_map in maps:
            quadratic = feature_map.is_positive and _quadratic(feature_map, width)
            if not quadratic:
                raise ValueError(
                    "check_values=False needs features whose logarithms are quadratic functions of "
                    f"a row, such as those of OptimalPositiveRF, got feature_map={name!r}."
                )
            coefficients.append(quadratic)
        stacks = map(np.stack, zip(*coefficients, strict=True))
        return cls(*map(torch.tensor, stacks))

    def logs(self, rows):
        """Return the logarithms of the features of rows (batch, heads, ..., n, d)."""
        shape = -1, *[1] * (rows.ndim - 4)
        square, slope, start = (
            array.to(rows.device).reshape(*shape, *array.shape[1:]) for array in self
        )
        return ((rows @ square) * rows).sum(-1, keepdim=True) + rows @ slope + start


def _quadratic(feature_map, width):
    """Return Q, W and b of a positive map, or None if it has no such form."""
    unit = np.eye(width)
    i, j = np.triu_indices(width, 1)
    rng = np.random.default_rng(0)
    test = rng.normal(size=(4, width))
    rows = [np.zeros((1, width)), unit, -unit, unit[i] + unit[j], test]
    logs = feature_map(np.concatenate(rows)).values
    start, ahead, back, pairs, values = np.split(logs, np.cumsum([len(part) for part in rows])[:-1])
    slope, square = (ahead - back) / 2, np.diag(((ahead + back) / 2 - start).mean(axis=1))
    mixed = (pairs - ahead[i] - ahead[j] + start).mean(axis=1) / 2
    square[i, j] = square[j, i] = mixed
    expected = np.einsum("ni,ij,nj->n", test, square, test)[:, None] + test @ slope + start
    if not np.allclose(values, expected, rtol=_CLOSE, atol=_CLOSE * max(1.0, np.abs(logs).max())):
        return None
    return square, slope, start


def attend(sides, query, key, value, is_causal):
    """Return attention with the features of both `LogFeatures`.

    Parameters
    ----------
    sides : pair of LogFeatures
        Queries and keys.
    query, key, value : Tensor of shape (batch, heads, length, width)
        The inputs; keys may have fewer heads.
    is_causal : bool
        Whether queries, which are then as many as keys, do not see later keys.
    """
    dtype, (n_batch, n_heads, n_queries, width) = query.dtype, query.shape
    query, key, value = (tensor.double() for tensor in (query, key, value))
    query = query.reshape(n_batch, key.shape[1], -1, n_queries, width)
    values = torch.cat([torch.ones_like(value[..., :1]), value], dim=-1)[:, :, None]
    keys = sides[1].logs(key)[:, :, None]
    top = keys.detach().amax(dim=-2, keepdim=True)
    keys, queries = (keys - top).exp(), sides[0].logs(query) + top
    queries = (queries - queries.detach().amax(dim=-1, keepdim=True)).exp()
    if is_causal:
        sums = _causal(queries, keys, values)
    else:
        sums = queries @ (keys.mT @ values)
    out = sums[..., 1:] / sums[..., :1]
    return out.reshape(n_batch, n_heads, n_queries, -1).to(dtype)


def _causal(queries, keys, values):
    """Return the sums of the values of earlier keys by products of features."""
    n = keys.shape[-2]
    # A size of 1, also without a part, would be a constant of exports.
    n_parts = n // _PART_ROWS + 3
    missing = n_parts * _PART_ROWS - n
    queries, keys, values = (
        torch.nn.functional.pad(rows, (0, 0, 0, missing)).unflatten(-2, (n_parts, _PART_ROWS))
        for rows in (queries, keys, values)
    )
    sums = (keys.mT @ values).cumsum(dim=-3)
    # Moved on by a part: subtracting later keys, which may weigh far more, would lose all digits.
    earlier = torch.nn.functional.pad(sums[..., :-1, :, :], (0, 0, 0, 0, 1, 0))
    sums = queries @ earlier + (queries @ keys.mT).tril() @ values
    return sums.flatten(-3, -2)[..., :n, :]
