"""Gates: the share of the past that every position keeps, on a log scale.

A position multiplies what earlier ones have left by its gate, so that key j has the weight
exp(G_i - G_j) phi(q_i) . phi(k_j) for query i, G the running sum of log gates. The factor exp(G_i)
cancels in the quotient, and exp(-G_j) is added to the exponents of the key's features. Counted from
the first position of every block, these shifts stay small; all sums fall by the gate of that
position before the block, and by the others after it. Gates that keep nearly nothing begin a block.
"""

from dataclasses import replace

import numpy as np

from .._arrays import (
    arithmetic,
    cast,
    constant,
    in_library_of,
    is_array_api,
    like,
    namespace,
    to_host,
)
from .._sums import Rows, Sums
from ._entries import check_decay
from ._groups import RESET, blocks_between
from ._inputs import as_array, check_real
from .masks import DecayMask


def with_gates(inputs, log_gates, mask, is_causal):
    """Return inputs with the log gates of a call and of a mask that is a decay, (U, S)."""
    is_decay = isinstance(mask, DecayMask)
    if log_gates is None and not is_decay:
        return inputs
    if not is_causal:
        raise ValueError("log_gates and ToeplitzMask.decay need causal=True, got causal=False.")
    if mask is not None and not is_decay:
        raise ValueError(
            f"log_gates need mask=None or ToeplitzMask.decay(rate), got mask={type(mask).__name__}."
        )
    k, leading, total = inputs.k, inputs.key_leading or (1,), 0.0  # without heads there is one
    xp, (n_sets, n, _) = namespace(k), k.shape
    if log_gates is not None:
        log_gates = log_gates if is_array_api(log_gates) else as_array("log_gates", log_gates)
        check_real("log_gates", log_gates)
        allowed = f"(..., heads, S), broadcastable to {(*leading, n)}"
        total = _broadcast(log_gates, k, (*leading, n), "log_gates", allowed)
        total = xp.reshape(total, (n_sets, n))
        is_gate = total <= 0  # NaN is none
        if not bool(xp.all(is_gate if inputs.padding is None else is_gate | inputs.padding)):
            raise ValueError(
                "log_gates must hold numbers <= 0, as gates lie in [0, 1]; -inf forgets the past."
            )
    if is_decay:
        if is_array_api(mask.rate):
            check_decay(mask.rate)  # again, because training changes it
        allowed = f"a number, or one for each of {inputs.n_key_heads} key heads"
        rates = _broadcast(mask.rate, k, leading, "the rate of ToeplitzMask.decay", allowed)
        total = total - xp.broadcast_to(xp.reshape(rates, (n_sets, 1)), (n_sets, n))
    if inputs.padding is not None:  # where nothing of the past is lost
        total = xp.where(inputs.padding, like(0.0, total), total)
    return replace(inputs, log_gates=total)


def _broadcast(values, k, shape, name, allowed):
    """Return values in float64, in the library of k and in a shape, or raise and name them."""
    if not (is_array_api(values) and is_array_api(k)):
        values = in_library_of(to_host(values), k)
    try:
        return namespace(k).broadcast_to(cast(values, namespace(k).float64), shape)
    except (ValueError, RuntimeError):
        raise ValueError(f"{name} must be {allowed}, got shape {tuple(values.shape)}.") from None


def blocks_of_gates(log_gates, edges, size):
    """Return slices of at most `size` positions between edges.

    Gates close at the first position of a slice only.
    """
    is_reset = to_host(constant(log_gates)) < -RESET
    resets = np.flatnonzero(is_reset.reshape(-1, is_reset.shape[-1]).any(axis=0))
    return blocks_between(np.unique([*edges, *resets]).tolist(), size)


def gated(keys, log_gates):
    """Return the features of the keys of a block, raised by its gates but the first.

    The factor of a query cancels in its quotient: its logarithm is returned as well,
    (..., 1, n, 1). NumPy features are overwritten.
    """
    xp = namespace(log_gates)
    falls = xp.concat([xp.zeros_like(log_gates[..., :1]), running(log_gates[..., 1:])], axis=-1)
    falls = falls[..., None]
    return _shifted(keys, -cast(falls, keys.values.dtype)), falls[..., None, :, :]


def _shifted(rows, shift):
    """Return features with a shift of their logarithms."""
    if rows.holds_logs:
        return Rows(arithmetic(rows.values).add(rows.values, shift))
    fixed, values = constant(shift), rows.values
    if is_array_api(values):  # no gradient flows through scales
        values = values * namespace(values).exp(shift - fixed)
    return Rows(values, rows.scale + fixed)


def running(log_gates):
    """Return the sums of log gates (..., n) up to every position."""
    if not is_array_api(log_gates):
        return np.cumsum(log_gates, axis=-1)
    return namespace(log_gates).cumulative_sum(log_gates, axis=-1)


def faded(sums, log_gates):
    """Return `Sums` as they are after some gates (..., n)."""
    xp, values = namespace(log_gates), sums.sums
    fall = log_gates if log_gates.shape[-1] == 1 else xp.sum(log_gates, axis=-1, keepdims=True)
    fixed = constant(fall)
    if is_array_api(values):  # no gradient flows through exponents, nor to a gate of 0
        change = xp.where(fixed > -np.inf, fall - fixed, like(0.0, fixed))
        values = values * xp.exp(change)[..., None]
    with np.errstate(over="ignore"):  # to -inf: nothing is left
        return Sums(values, sums.top + fixed)
