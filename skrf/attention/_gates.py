"""Gates: the share of the past that every position keeps, on a log scale.

A position multiplies what earlier ones have left by its gate, so that key j has the weight
exp(G_i - G_j) phi(q_i) . phi(k_j) for query i, G the running sum of log gates. The factor exp(G_i)
cancels in the quotient, and exp(-G_j) is added to the exponents of the key's features. Counted from
the first position of every block, these shifts stay small; all sums fall by the gate of that
position before the block, and by the others after it. Gates that keep nearly nothing begin a block.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from .._arrays import (
    arithmetic,
    cast,
    constant,
    in_library_of,
    is_array_api,
    namespace,
    to_host,
)
from .._sums import Rows, Sums
from ._groups import RESET, blocks
from ._inputs import as_array, check_real
from ._masks import checked_entries
from .masks import DecayMask


def with_gates(inputs, log_gates, mask, is_causal):
    """Return inputs with the log gates of a call and of a mask that is a decay, (U, S)."""
    rate = mask.rate if isinstance(mask, DecayMask) else None
    if log_gates is None and rate is None:
        return inputs
    if not is_causal:
        raise ValueError("log_gates and ToeplitzMask.decay need causal=True, got causal=False.")
    if mask is not None and rate is None:
        raise ValueError(
            f"log_gates need mask=None or ToeplitzMask.decay(rate), got mask={type(mask).__name__}."
        )
    shape, k = (*inputs.key_leading, inputs.k.shape[-2]), inputs.k
    total = 0.0
    if log_gates is not None:
        total = total + _broadcast(_checked(log_gates, k), shape, "log_gates", "(..., heads, S)")
    if rate is not None:
        if is_array_api(rate):
            checked_entries(rate, "rate")  # again, because training changes it
        rates = _in_library(rate, k)
        if rates.ndim:
            rates = rates[:, None]
        allowed = f"a number, or one for each of {inputs.n_key_heads} key heads"
        total = total - _broadcast(rates, shape, "the rate of ToeplitzMask.decay", allowed)
    return replace(inputs, log_gates=namespace(k).reshape(total, inputs.k.shape[:-1]))


def _in_library(values, k):
    if not (is_array_api(values) and is_array_api(k)):
        values = in_library_of(to_host(values), k)
    return cast(values, namespace(k).float64)


def _checked(log_gates, k):
    log_gates = log_gates if is_array_api(log_gates) else as_array("log_gates", log_gates)
    check_real("log_gates", log_gates)
    log_gates, xp = _in_library(log_gates, k), namespace(k)
    if not bool(xp.all(xp.isfinite(log_gates) & (log_gates <= 0))):
        raise ValueError("log_gates must hold finite numbers <= 0: gates lie in (0, 1].")
    return log_gates


def _broadcast(values, shape, name, allowed):
    try:
        return namespace(values).broadcast_to(values, shape)
    except (ValueError, RuntimeError):
        raise ValueError(
            f"{name} must be {allowed}, broadcastable to {shape}, got {tuple(values.shape)}."
        ) from None


def blocks_of_gates(log_gates, size):
    """Return slices of at most `size` positions, in which gates close at the first one only."""
    is_reset = to_host(constant(log_gates)) < -RESET
    resets = np.flatnonzero(is_reset.reshape(-1, is_reset.shape[-1]).any(axis=0))
    edges = np.unique([0, *resets, is_reset.shape[-1]]).tolist()
    return [
        slice(start + block.start, start + block.stop)
        for start, end in pairwise(edges)
        for block in blocks(end - start, size)
    ]


def gated(keys, log_gates):
    """Return the features of the keys of a block, raised by its gates but the first.

    NumPy features are overwritten.
    """
    xp, rest = namespace(log_gates), log_gates[..., 1:]
    falls = xp.concat([xp.zeros_like(log_gates[..., :1]), _running(rest)], axis=-1)
    shift = -cast(falls, keys.values.dtype)[..., None]
    if keys.scale is None:
        return Rows(arithmetic(keys.values).add(keys.values, shift))
    fixed, values = constant(shift), keys.values
    if is_array_api(values):  # no gradient flows through scales
        values = values * namespace(values).exp(shift - fixed)
    return Rows(values, keys.scale + fixed)


def _running(log_gates):
    if not is_array_api(log_gates):
        return np.cumsum(log_gates, axis=-1)
    return namespace(log_gates).cumulative_sum(log_gates, axis=-1)


def faded(sums, log_gates):
    """Return `Sums` as they are after some gates."""
    xp, values = namespace(log_gates), sums.sums
    fall = log_gates[..., 0] if log_gates.shape[-1] == 1 else xp.sum(log_gates, axis=-1)
    fixed = constant(fall)
    if is_array_api(values):  # no gradient flows through exponents
        values = values * xp.exp(fall - fixed)[..., None, None]
    with np.errstate(over="ignore"):  # to -inf: nothing is left
        return Sums(values, sums.top + fixed[..., None])
