"""Attention by its definitions: dense, in float64, through the public face of the library."""

import math

import numpy as np
from sklearn.base import clone

from skrf.attention import GeneralizedMap


def maps_of(attention, q, k, causal=None):
    """Return the fitted feature map of a set of keys (S, d) and its queries (G, L, d)."""
    width = k.shape[-1]
    scale = 1 / math.sqrt(width) if attention.scale is None else attention.scale
    feature_map = clone(attention.feature_map).set_params(sigma=math.sqrt(scale))
    if isinstance(feature_map, GeneralizedMap):
        return feature_map.fit_without_data(width)
    feature_map.set_params(kernel="softmax")
    if attention.causal if causal is None else causal:
        return feature_map.fit_without_data(width)
    return feature_map.fit(q.reshape(-1, width), keys=k)


def log_products(feature_map, q, k):
    """Return the log sizes of the products of features of queries and keys, and their signs."""
    (left, left_scale), (right, right_scale) = (
        side(rows) for side, rows in zip(feature_map.feature_maps_, (q, k), strict=True)
    )
    if left_scale is None:
        logs = left[:, None] + right[None]
        top = logs.max(axis=2, keepdims=True)
        top = np.where(top > -np.inf, top, 0.0)
        with np.errstate(divide="ignore"):
            return np.log(np.exp(logs - top).sum(axis=2)) + top[..., 0], 1.0
    scale = left_scale[:, None] + right_scale[None]
    top = scale.max(axis=2, keepdims=True)
    sums = np.sum(left[:, None] * right[None] * np.exp(scale - top), axis=2)
    with np.errstate(divide="ignore"):
        return np.log(np.abs(sums)) + top[..., 0], np.sign(sums)


def matrix_of(feature_map, q, k, weights, hidden=None):
    """Return the rows of W o (phi(q) . psi(k)) over their sums; rows of zeros where that is 0."""
    logs, signs = log_products(feature_map, q, k)
    weights = weights if hidden is None else weights * ~hidden
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = logs + np.log(weights)
        top = logs.max(axis=1, keepdims=True)
        matrix = signs * np.exp(logs - np.where(top > -np.inf, top, 0.0))
    total = matrix.sum(axis=1, keepdims=True)
    return matrix / np.where(total == 0, 1.0, total)


def dense_weights(attention, n_heads, n_queries, n_keys):
    """Return what multiplies the weights of every query head, (H, L, S): mask and causality."""
    weights = np.ones((n_queries, n_keys))
    if attention.mask is not None:
        mask = attention.mask
        weights = np.asarray(mask.toarray() if hasattr(mask, "toarray") else mask, dtype=float)
    weights = np.tril(weights) if attention.causal else weights
    return np.broadcast_to(weights, (n_heads, n_queries, n_keys))


def attention_of(attention, q, k, v, padding=None):
    """Return what an operator has to return, for q (B, H, L, d) and k, v (B, K, S, .).

    Without a fit, statistics come from at most 1,024 rows: all of them here.
    """
    q, k, v = (np.asarray(part, dtype=np.float64) for part in (q, k, v))
    out = np.empty((*q.shape[:-1], v.shape[-1]))
    n_per_key = q.shape[1] // k.shape[1]
    weights = dense_weights(attention, q.shape[1], q.shape[2], k.shape[2])
    for b, h in np.ndindex(k.shape[:2]):
        heads = slice(h * n_per_key, (h + 1) * n_per_key)
        hidden = None if padding is None else padding[b]
        if hasattr(attention, "feature_maps_"):
            feature_map = attention.feature_maps_[h]
        else:
            seen = np.ones(k.shape[2], bool) if hidden is None or hidden.all() else ~hidden
            real = seen if q.shape[2] == k.shape[2] else slice(None)
            feature_map = maps_of(attention, q[b, heads][:, real], k[b, h][seen])
        for head in range(heads.start, heads.stop):
            out[b, head] = (
                matrix_of(feature_map, q[b, head], k[b, h], weights[head], hidden) @ v[b, h]
            )
    return out
