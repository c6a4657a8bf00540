"""Attention to disjoint sets of keys, merged into that to all of them."""

from collections.abc import Sequence

import numpy as np

from .._arrays import cast, namespace
from .._sums import exp_and_max
from .._typing import Array, Result
from ._inputs import check_real


def merge_attention(outputs: Sequence[Array], lses: Sequence[Array]) -> tuple[Result, Result]:
    """Merge the attention of the same queries to disjoint sets of keys.

    The outputs are averaged with weights proportional to exp(lse), so contexts can be computed once
    and kept, computed on several machines, or by different operators.

    Parameters
    ----------
    outputs : sequence of arrays of shape (..., L, e)
        Attention to each set of keys, as operators return it with ``return_lse=True``.
    lses : sequence of arrays of shape (..., L)
        The logarithms of the sums of weights that belong to them; -inf where there is no key.

    Returns
    -------
    out : array of shape (..., L, e)
        Attention to all keys, in the dtype of the outputs; 0 without any key.
    lse : array of shape (..., L)
        Logarithm of the sum of all weights, by which the result can be merged again.

    Raises
    ------
    ValueError
        If nothing is given, or shapes do not fit.
    TypeError
        If an array does not hold real numbers, or arrays belong to different libraries.

    See Also
    --------
    exact_attention : Its results merge exactly.
    ApproxKernelAttention : Its results merge exactly if both calls have one draw and one fit.
    WindowAttention : Its results merge with attention to the keys that it leaves out.

    Notes
    -----
    A bidirectional call of an operator that is not fitted takes statistics from its own keys: its
    features differ from those of the next call, and merging them is one more approximation. Call
    ``fit`` first.

    With gates or a decay, weights fall with every later position: add the sum of the log gates of
    all later positions to the lse of an earlier part before merging.

    References
    ----------
    Milakov and Gimelshein, Online normalizer calculation for softmax (2018).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.attention import exact_attention, merge_attention
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 2, 100, 8))  # two heads
    >>> parts = [slice(60), slice(60, None)]
    >>> results = [exact_attention(q, k[:, p], v[:, p], return_lse=True) for p in parts]
    >>> out, lse = merge_attention(*zip(*results))
    >>> bool(np.allclose(out, exact_attention(q, k, v)))
    True
    """
    outputs, lses = list(outputs), list(lses)
    if not outputs or len(outputs) != len(lses):
        raise ValueError(
            "outputs and lses must be as many, and at least one, got "
            f"{len(outputs)} outputs and {len(lses)} lses."
        )
    arrays = [
        array if hasattr(array, "dtype") else np.asarray(array) for array in (*outputs, *lses)
    ]
    if len({namespace(array) for array in arrays}) > 1:
        kinds = ", ".join(sorted({type(array).__name__ for array in arrays}))
        raise TypeError(f"outputs and lses must be arrays of one library, got {kinds}.")
    n = len(outputs)
    outputs, lses = arrays[:n], arrays[n:]
    for i, (out, lse) in enumerate(zip(outputs, lses, strict=True)):
        for name, array in (("outputs", out), ("lses", lse)):
            check_real(f"{name}[{i}]", namespace(array), array.dtype)
        shape = tuple(outputs[0].shape)
        if not shape or tuple(out.shape) != shape or tuple(lse.shape) != shape[:-1]:
            raise ValueError(
                "outputs must have one shape (..., L, e), and lses (..., L), got "
                f"outputs[0] of shape {shape}, outputs[{i}] of shape {tuple(out.shape)} and "
                f"lses[{i}] of shape {tuple(lse.shape)}."
            )
    xp, dtype = namespace(outputs[0]), outputs[0].dtype
    logs = xp.stack([cast(lse, xp.float64) for lse in lses], axis=-1)
    weights, level = exp_and_max(logs)
    total = xp.sum(weights, axis=-1, keepdims=True)
    lse = log_weights(total[..., 0], level[..., 0])
    shares, out = weights / xp.where(total == 0, xp.ones_like(total), total), 0.0
    for i in range(n):
        share, output = shares[..., i][..., None], cast(outputs[i], xp.float64)
        # What an operator returns without any key may be NaN, as in torch: its weight is 0.
        out = out + share * xp.where(share == 0, 0.0, output)
    return cast(out, dtype), cast(lse, lses[0].dtype)


def log_weights(weights, level):
    """Return the logarithms of weights times exp(level), in float64; 0 has -inf and no gradient."""
    xp = namespace(weights)
    is_zero = weights == 0
    logs = xp.log(cast(xp.where(is_zero, 1.0, weights), xp.float64)) + level
    return xp.where(is_zero, -np.inf, logs)
