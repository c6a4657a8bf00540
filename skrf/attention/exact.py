"""Softmax attention computed exactly, block by block: the reference for approximations."""

from typing import Any

import array_api_compat
import numpy as np
import scipy.sparse as sp

from .._arrays import arithmetic, cast, is_array_api, largest_entry, like, namespace, to_host
from .._sums import peaked, transposed
from .._typing import Array
from .._validation import check_integer
from ._heads import Output, blocks
from ._shapes import as_array, check_qkv, check_scale
from .masks import _checked

# Float32 logits of this size are off by up to 1e-5. Inputs that may exceed it use float64.
_LARGEST_SINGLE_LOGIT = 256.0


def exact_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    mask: Any = None,
    scale: float | None = None,
    key_padding_mask: Array | None = None,
    block_size: int = 1024,
) -> Array:
    """Compute softmax attention exactly, in memory linear in the number of keys.

    Output i is the mean of the values with weights proportional to
    ``mask[i, j] * exp(scale * q[i] @ k[j])``. This is the reference that approximations are
    compared with; its time is quadratic, its memory O(block_size * S).

    Parameters
    ----------
    q : array-like of shape (..., L, d)
        Queries; leading axes are batch and heads.
    k : array-like of shape (..., S, d)
        Keys, with the leading axes of q, or fewer heads: their number divides that of q, and
        query head h reads key head h // (heads of q / heads of k). Without leading axes the keys
        are shared by all queries.
    v : array-like of shape (..., S, e)
        Values, with the leading axes of k.
    causal : bool, default=False
        Whether position i reads only positions up to i; requires L = S.
    mask : array-like, sparse matrix or object with ``toarray()``, of shape (L, S), default=None
        Multiplies the numerators of the softmax: entries >= 0, or booleans with True = keep.
        With `causal` both apply.
    scale : float, default=None
        Factor of the products q.k; None is 1/sqrt(d).
    key_padding_mask : array-like of bool, default=None
        True marks padding, keys that are ignored, as in torch's MultiheadAttention
        (scaled_dot_product_attention means the opposite). Shape (S,), or with the leading axes of
        k, with or without its heads.
    block_size : int, default=1024
        Number of queries to process at once.

    Returns
    -------
    array of shape (..., L, e)
        Outputs, with the leading axes of q; float64 if one of q, k and v is, otherwise float32, or
        float16 or bfloat16 if all three are, with sums in float32 or better. A query without any
        key left gets zeros. The result is a torch tensor or CuPy array if q, k and v are; all their
        heads are processed together, and torch can differentiate.

    Raises
    ------
    ValueError
        If shapes do not fit, an axis is empty, an entry is not finite, a mask entry is
        negative, or a parameter is invalid.
    TypeError
        If an input is not made of real numbers, or the padding not of booleans.

    See Also
    --------
    ApproxKernelAttention : Linear in the length.
    skrf.plotting.AttentionMatrixDisplay : Both matrices side by side.

    References
    ----------
    Likhosherstov, Random features for efficient attention approximation (2022), section 2.2.2.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.attention import exact_attention
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 2, 5, 4))  # two heads
    >>> exact_attention(q, k, v).shape
    (2, 5, 4)
    >>> bool(np.allclose(exact_attention(q, k, v, causal=True)[:, 0], v[:, 0]))
    True
    """
    heads = check_qkv(q, k, v, key_padding_mask, causal)
    scale = check_scale(scale, heads.q.shape[-1])
    block_size = check_integer("block_size", block_size)
    n_queries, n_keys = heads.q.shape[2], heads.k.shape[1]
    mask = None if mask is None else _RowsOfMask(mask, (n_queries, n_keys))
    dtype = _dtype_of_logits(heads, scale, mask)
    q, k, v = (cast(part, dtype) for part in (heads.q, heads.k, heads.v))
    given = scale, causal, mask, block_size
    if is_array_api(q):
        padding = None if heads.padding is None else heads.padding[:, None, :]
        out = _attend(q, k[:, None, :, :], v[:, None, :, :], padding, *given, Output())
        return heads.ungroup(out)
    out = np.empty((*q.shape[:3], v.shape[-1]), dtype=heads.q.dtype)
    for u, keys in enumerate(k):
        padding = None if heads.padding is None else heads.padding[u]
        for g, queries in enumerate(q[u]):
            _attend(queries, keys, v[u], padding, *given, Output(out[u, g]))
    return heads.ungroup(out)


def _attend(q, k, v, padding, scale, causal, mask, block_size, out):
    """Return the outputs of queries (..., L, d), computed block by block."""
    xp, place = namespace(q), {"device": array_api_compat.device(q)}
    for rows in blocks(q.shape[-2], block_size):
        # No query of a causal block reads keys after the block's last query.
        n = rows.stop if causal else k.shape[-2]
        logits = (q[..., rows, :] * scale) @ transposed(k[..., :n, :])
        do = arithmetic(logits)
        if mask is not None:
            logits = do.add(logits, like(mask.log_block(rows, n), logits))
        if padding is not None:
            logits = do.fill(logits, padding[..., None, :n], -np.inf)
        if causal:
            positions = xp.arange(rows.start, rows.stop, **place)
            is_later = xp.arange(n, **place)[None, :] > positions[:, None]
            logits = do.fill(logits, is_later, -np.inf)
        weights = peaked(logits)
        total = xp.sum(weights, axis=-1, keepdims=True)
        # Divide before multiplying by the values, which may be near the largest float.
        weights = do.divide(weights, xp.where(total == 0, like(1.0, total), total))
        out.put(rows, weights @ v[..., :n, :])
        del logits, weights  # free them before the next block
    return out.joined()


def _dtype_of_logits(heads, scale, mask):
    """Return the inputs' dtype, or float64 if their logits or log weights may need it."""
    with np.errstate(over="ignore"):
        largest = np.multiply(largest_entry(heads.q), largest_entry(heads.k))
        bound = largest * scale * heads.q.shape[-1]
    if not np.isfinite(bound):
        raise ValueError(
            "q and k are too large: the products scale * q.k may exceed the range of float64 "
            f"(largest entries {largest_entry(heads.q):.3g} and {largest_entry(heads.k):.3g}, "
            f"scale={scale:.3g})."
        )
    # Logarithms of weights may be large too, unless the mask is boolean (0 and -inf).
    is_weighted = mask is not None and not mask.is_boolean
    if is_weighted or bound > _LARGEST_SINGLE_LOGIT:
        return namespace(heads.q).float64
    return heads.q.dtype


class _RowsOfMask:
    """A validated mask of shape (L, S) that returns logarithms of its entries by blocks of rows."""

    def __init__(self, mask, shape):
        given = type(mask).__name__
        if sp.issparse(mask):
            mask = mask.tocsr()
        else:
            mask = as_array("mask", mask.toarray() if hasattr(mask, "toarray") else to_host(mask))
        if mask.dtype.kind not in "biuf":
            raise TypeError(
                "mask must be an array, a sparse matrix or an object with toarray(), of booleans "
                f"or real numbers; got {given} of dtype {mask.dtype}."
            )
        if mask.shape != shape:
            raise ValueError(f"mask must have shape (L, S) = {shape}, got {mask.shape}.")
        _checked(mask.data if sp.issparse(mask) else mask, "mask")
        self.is_boolean, self._rows = mask.dtype == bool, mask

    def log_block(self, rows, n_keys):
        """Return the log weights of the first `n_keys` keys for a slice of queries."""
        block = self._rows[rows, :n_keys]
        with np.errstate(divide="ignore"):
            return np.log(block.toarray() if sp.issparse(block) else block, dtype=np.float64)
