"""Softmax attention computed exactly, block by block: the reference for approximations."""

from typing import Any

import array_api_compat
import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from .._arrays import arithmetic, cast, is_array_api, largest_entry, like, namespace
from .._sums import peaked, transposed
from .._typing import Array
from .._validation import check_integer
from ._heads import Output, blocks
from ._shapes import check_logits, check_qkv, check_scale
from .masks import as_mask

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
    is_weighted = mask is not None and str(getattr(mask, "dtype", "")) not in ("bool", "torch.bool")
    if mask is not None:
        mask = _as_mask(mask, n_queries, n_keys)
    dtype = _dtype_of_logits(heads, scale, is_weighted)
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
            numbers = np.arange(rows.start, rows.stop)
            with np.errstate(divide="ignore"):
                logs = np.log(mask.entries(numbers, slice(0, n), np.float64()))
            logits = do.add(logits, like(logs, logits))
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


def _dtype_of_logits(heads, scale, is_weighted):
    """Return the inputs' dtype, or float64 if their logits or log weights may need it."""
    with np.errstate(over="ignore"):
        largest = np.multiply(largest_entry(heads.q), largest_entry(heads.k))
        bound = check_logits(largest * scale * heads.q.shape[-1], heads.q, heads.k, scale)
    # Logarithms of weights may be large too, unless the mask is boolean (0 and -inf).
    if is_weighted or bound > _LARGEST_SINGLE_LOGIT:
        return namespace(heads.q).float64
    return heads.q.dtype


def _as_mask(mask, n_queries, n_keys):
    """Return an object with the entries of a mask, or raise unless it has entries."""
    if isinstance(mask, LinearOperator):
        raise TypeError(
            "mask must be an array, a sparse matrix or an object with toarray(), got "
            f"{type(mask).__name__}."
        )
    if hasattr(mask, "toarray") and not sp.issparse(mask):
        mask = mask.toarray()
    return as_mask(mask, n_queries, n_keys, causal=False)
