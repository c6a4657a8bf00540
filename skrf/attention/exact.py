"""Softmax attention computed exactly, block by block: the reference for approximations."""

import math
from typing import Any

import array_api_compat
import numpy as np
import scipy.sparse as sp

from .._arrays import (
    constant,
    in_library_of,
    largest_entry,
    library,
    like,
    namespace,
)
from .._sums import exp_and_max, transposed
from .._typing import Array
from .._validation import check_integer
from ._gates import gate_sums, with_gates
from ._inputs import blocks, check_inputs, check_scale, side_by_side
from ._masks import array_of, as_mask
from .masked import LEAST, name_of
from .masks import DecayMask
from .merging import log_weights

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
    return_lse: bool = False,
) -> Any:
    """Compute softmax attention exactly, in memory linear in the number of keys.

    Output i is the mean of the values with weights proportional to
    ``mask[i, j] * exp(scale * q[i] @ k[j])``. This is the reference for approximations. It takes
    quadratic time and O(block_size * S) memory.

    Parameters
    ----------
    q : array-like of shape (..., L, d)
        Queries; leading axes are batch and heads.
    k : array-like of shape (..., S, d)
        Keys, with the leading axes of q. There may be fewer heads than in q, if their number
        divides that of q: query head h then reads key head h // (heads of q / heads of k). Keys
        without leading axes are shared by all queries.
    v : array-like of shape (..., S, e)
        Values, with the leading axes of k.
    causal : bool, default=False
        Whether position i attends only to positions up to i. Fewer queries than keys are those of
        the last positions.
    mask : array-like, sparse matrix or object with ``toarray()``, of shape (L, S), default=None
        Multiplies the numerators of the softmax: entries >= 0, or booleans (True keeps). An array
        of shape (heads, L, S) holds one mask per query head, and others may have any shape that
        broadcasts to (..., L, S) with the leading axes of q. With `causal`, both masks apply, and
        ``ToeplitzMask.decay(rate)`` serves any length; it counts keys that are not padding.
    scale : float, default=None
        Multiplies the inner products q.k; None means 1/sqrt(d).
    key_padding_mask : array-like of bool, default=None
        True marks keys that are padding and are ignored, as in torch's MultiheadAttention (in
        scaled_dot_product_attention, True has the opposite meaning). The shape is (S,), or has
        the leading axes of k, with or without its heads.
    block_size : int, default=1024
        Number of queries to process at once.
    return_lse : bool, default=False
        Whether to return the log-sum-exp of every query as well, for `merge_attention`.

    Returns
    -------
    out : array of shape (..., L, e)
        Outputs, with the leading axes of q. The dtype is float64 if any of q, k and v is float64,
        float16 or bfloat16 if all three are, and float32 otherwise; sums are in float32 or better.
        A query that has no key left gets zeros. If q, k and v are torch tensors or CuPy arrays, so
        is the result; their heads are all processed together, and torch can differentiate.
    lse : array of shape (..., L)
        With `return_lse`: the logarithm of the sum of ``mask[i, j] * exp(scale * q[i] @ k[j])``
        over the keys, -inf without a key; in float64 if the outputs are, else in float32.

    Raises
    ------
    ValueError
        If shapes do not fit, an axis is empty, an entry is not finite, a mask entry is
        negative, or a parameter is invalid.
    TypeError
        If an input is not made of real numbers, or `key_padding_mask` not of booleans.

    See Also
    --------
    ApproxKernelAttention : An approximation in time linear in the length.
    skrf.plotting.AttentionMatrixDisplay : Exact and approximate weights, side by side.

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
    inputs = check_inputs(q, k, v, key_padding_mask, causal)
    scale = check_scale(scale, inputs.q.shape[-1])
    block_size = check_integer("block_size", block_size)
    if isinstance(mask, DecayMask):
        inputs, mask = with_gates(inputs, None, mask, causal), None
    if mask is not None:
        is_other = hasattr(mask, "toarray") and not hasattr(mask, "tocsr")
        sizes = inputs.q.shape[2], inputs.k.shape[1], inputs.n_query_heads
        is_last = causal and sizes[0] < sizes[1]
        mask, n_masks = _of_all_leading(mask.toarray() if is_other else mask, inputs)
        mask = as_mask(mask, *sizes[:2], n_masks or sizes[2], is_causal=is_last)
    heads = inputs.heads_of(np.arange(inputs.k.shape[0]))
    if mask is not None and mask.n_heads not in (None, inputs.n_query_heads):
        heads = np.arange(heads.size).reshape(heads.shape)  # every head of the batch has its own
    options = dtype_of_logits(inputs.q, inputs.k, scale), scale, causal, mask, block_size
    results = []
    for sets in inputs.slices(block_size):
        outs, logs = zip(*_by_block(inputs.of(sets), heads[sets], *options), strict=True)
        results.append((side_by_side(outs, 2), side_by_side(logs, 2)))
    out, lse = (side_by_side(arrays, 0) for arrays in zip(*results, strict=True))
    return inputs.results(out, lse if return_lse else None)


def _of_all_leading(mask, inputs):
    """Return a mask that broadcasts, with an axis for all leading ones if it has several.

    The second value is the number of masks then, and None otherwise.
    """
    if hasattr(mask, "n_extra") or sp.issparse(mask):
        return mask, None
    mask = array_of(mask)
    whole = (*inputs.leading, inputs.q.shape[-2], inputs.k.shape[-2])
    shape = tuple(mask.shape)
    if shape[-2:] == whole[-2:] and len(shape) in (2, 3):
        return mask, None
    try:
        is_right = np.broadcast_shapes(shape, whole) == whole
    except ValueError:
        is_right = False
    if not is_right:
        return mask, None  # as_mask says what is wrong
    xp, lead = namespace(mask), shape[:-2]
    if all(size == 1 for size in lead[:-1]):  # none for single sequences
        return xp.broadcast_to(mask, (*lead, *whole[-2:])), None
    mask = xp.reshape(xp.broadcast_to(mask, whole), (-1, *whole[-2:]))
    return mask, math.prod(inputs.leading)


def _by_block(inputs, heads, dtype, scale, causal, mask, block_size):
    """Yield outputs (U, G, n, e) and log-sum-exps (U, G, n) of blocks of queries.

    The parameters are those of `exact_attention`, checked, with the query heads (U, G) and a `Mask`
    or None. At any time two arrays of a block of logits are held.
    """
    do, n_keys, n_queries = inputs.library, inputs.k.shape[-2], inputs.q.shape[-2]
    xp = do.xp
    size = -(-block_size // inputs.q.shape[1]) if inputs.is_numpy else block_size
    for rows in blocks(n_queries, size):
        # No query of a causal block reads keys after the block's last query.
        n = n_keys - n_queries + rows.stop if causal else n_keys
        weights, level = exp_and_max(exact_logits(inputs, rows, n, dtype, scale, causal))
        if mask is not None:
            numbers, keys = np.arange(rows.start, rows.stop), slice(0, n)
            entries = mask.entries(numbers, keys, constant(weights), heads)
            weights = do.multiply(weights, entries)
        total = xp.sum(weights, axis=-1, keepdims=True)
        if mask is not None and not bool(xp.all(constant(total) >= LEAST[name_of(total)])):
            # Some queries see no key, or only such as weigh far less than others.
            with np.errstate(divide="ignore"):
                logs = np.log(mask.entries(numbers, keys, np.float64(), heads))
            logits = exact_logits(inputs, rows, n, xp.float64, scale, causal)
            weights, level = exp_and_max(do.add(logits, like(logs, logits)))
            total = xp.sum(weights, axis=-1, keepdims=True)
        means, logs = means_and_logs(weights, total, level, inputs.v[:, None, :n, :])
        yield means, logs if mask is None else logs + math.log(mask.largest)
        del weights  # free them before the next block


def means_and_logs(weights, total, level, v):
    """Return means of values, and the logarithms of their weights' totals times exp(level)."""
    logs = log_weights(total[..., 0], level[..., 0])
    # Divide before multiplying by the values, which may be near the largest float.
    do = library(weights)
    weights = do.divide(weights, do.xp.where(total == 0, 1.0, total))
    return do.cast(weights @ do.cast(v, weights.dtype), v.dtype), logs


def exact_logits(inputs, rows, n, dtype, scale, causal):
    """Return the logarithms of the weights (U, G, m, n) of the first n keys for some queries.

    Parameters
    ----------
    inputs : Inputs
        Queries, keys, padding and gates.
    rows : slice or ndarray of int of shape (U, m)
        The queries, or those of every set.
    n : int
        Number of keys.
    dtype : dtype
        In which to compute.
    scale : float
        Multiplies the products.
    causal : bool
        Whether later keys are hidden.
    """
    do, k, first = inputs.library, inputs.k[:, None, :n, :], 0
    xp, q = do.xp, rows_of_each_set(inputs.q, rows, do.xp)
    logits = (do.cast(q, dtype) * scale) @ transposed(do.cast(k, dtype))
    if causal:
        first = inputs.k.shape[-2] - inputs.q.shape[-2]
    is_slice = isinstance(rows, slice)
    positions = first + (np.arange(rows.start, rows.stop)[None] if is_slice else rows)
    positions = in_library_of(positions, q)
    if inputs.log_gates is not None:
        sums = gate_sums(inputs.log_gates)
        places = xp.broadcast_to(positions, (sums.shape[0], positions.shape[1]))
        falls = xp.take_along_axis(sums, places, axis=1)
        logits = do.add(logits, falls[:, None, :, None] - sums[:, None, None, :n])
    if inputs.padding is not None:
        logits = do.fill(logits, inputs.padding[:, None, None, :n], -np.inf)
    if causal:
        keys = xp.arange(n, device=array_api_compat.device(k))
        logits = do.fill(logits, keys > positions[:, None, :, None], -np.inf)
    return logits


def rows_of_each_set(array, rows, xp):
    """Return rows of an array (U, G, n, c): a slice of all, or those of every set, (U, m)."""
    if isinstance(rows, slice):
        return array[..., rows, :]
    shape = (*array.shape[:2], rows.shape[1], array.shape[3])
    places = np.broadcast_to(rows[:, None, :, None], shape)
    return xp.take_along_axis(array, in_library_of(places, array), axis=2)


def dtype_of_logits(q, k, scale):
    """Return the dtype of queries and keys, or float64 if their logits may need it."""
    sizes = largest_entry(q), largest_entry(k)
    bound = sizes[0] * sizes[1] * scale * q.shape[-1]  # Python's floats overflow to inf
    if not math.isfinite(bound):
        raise ValueError(
            "q and k are too large: products of theirs may exceed the range of float64; their "
            f"largest entries are {sizes[0]:.3g} and {sizes[1]:.3g}, and scale={scale:.3g}."
        )
    return namespace(q).float64 if bound > _LARGEST_SINGLE_LOGIT else q.dtype
