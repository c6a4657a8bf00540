"""Gates: the share of the past that every position keeps, on a log scale.

A position multiplies what earlier ones have left by its gate, so that key j has the weight
exp(G_i - G_j) phi(q_i) . phi(k_j) for query i, G the running sum of log gates. The factor exp(G_i)
cancels in the quotient, and exp(-G_j) is added to the exponents of the key's features. Counted from
the first position of every block, these shifts stay small; all sums fall by the gate of that
position before the block, and by the others after it. Gates that keep nearly nothing begin a block.
"""

import math
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
from .._memory import check_fits
from .._sums import Rows, Sums
from ._entries import check_decay
from ._groups import RESET, blocks_between
from ._inputs import as_array, check_real
from .masks import DecayMask


def with_gates(inputs, log_gates, mask, is_causal):
    """Return inputs with the log gates of a call and of a mask that is a decay, (U, S, r)."""
    is_decay = isinstance(mask, DecayMask)
    if log_gates is None and not is_decay:
        return inputs
    if not is_causal:
        raise ValueError("log_gates and ToeplitzMask.decay need causal=True, got causal=False.")
    if mask is not None and not is_decay:
        raise ValueError(
            f"log_gates need mask=None or ToeplitzMask.decay(rate), got mask={type(mask).__name__}."
        )
    if is_decay and mask.weights is not None:
        n_exponentials = mask.weights.shape[-1]
        n_bytes = 16 * math.prod(inputs.k.shape[:2]) * n_exponentials
        check_fits(n_bytes, f"rate of {n_exponentials} exponentials", "their gates")
    leading, (n_sets, n, _), k = inputs.key_leading or (1,), inputs.k.shape, inputs.k
    xp, total, log_weights = namespace(k), 0.0, None
    if log_gates is not None:
        given = tuple(np.shape(log_gates))
        allowed = f"(..., heads, S), broadcastable to {(*leading, n)}, got {given}"
        total = _broadcast(_floats_of(log_gates, k), (*leading, n), "log_gates", allowed)
        total = _unless_padded(xp.reshape(total, (n_sets, n, 1)), inputs.padding)
        if not bool(xp.all(total <= 0)):  # NaN is not
            raise ValueError(
                "log_gates must hold numbers <= 0, as gates lie in [0, 1]; -inf forgets the past."
            )
    if is_decay:
        rates, log_weights = exponentials_of(mask, inputs)
        rates = xp.broadcast_to(rates[:, None, :], (n_sets, n, rates.shape[-1]))
        total = total - _unless_padded(rates, inputs.padding)
    return replace(inputs, log_gates=total, log_weights=log_weights)


def _unless_padded(values, padding):
    """Return log gates with 0 for padding, where nothing of the past is lost."""
    if padding is None:
        return values
    return namespace(values).where(padding[..., None], like(0.0, values), values)


def exponentials_of(mask, inputs):
    """Return the rates of a decay, (U, r), and the logarithms of its weights or None."""
    if is_array_api(mask.rate) or is_array_api(mask.weights):
        check_decay(mask.rate, mask.weights)  # again, because training changes them
    n = 1 if mask.weights is None else mask.weights.shape[-1]
    shape = (*(inputs.key_leading or (1,)), n)  # keys without leading axes are one head
    allowed = f"a number, or one for each of {inputs.n_key_heads} key heads"

    def of_sets(name, values):
        values, given = _in_library(values, inputs.k), tuple(values.shape)
        values = values[..., None] if mask.weights is None else values
        name = f"the {name} of ToeplitzMask.decay"
        values = _broadcast(values, shape, name, f"{allowed}, got shape {given}")
        return namespace(values).reshape(values, (-1, n))

    rates = of_sets("rate", mask.rate)
    if mask.weights is None:
        return rates, None
    weights = of_sets("weights", mask.weights)
    return rates, namespace(weights).log(weights)


def _in_library(values, k):
    if not (is_array_api(values) and is_array_api(k)):
        values = in_library_of(to_host(values), k)
    return cast(values, namespace(k).float64)


def _floats_of(log_gates, k):
    log_gates = log_gates if is_array_api(log_gates) else as_array("log_gates", log_gates)
    check_real("log_gates", log_gates)
    return _in_library(log_gates, k)


def _broadcast(values, shape, name, allowed):
    try:
        return namespace(values).broadcast_to(values, shape)
    except (ValueError, RuntimeError):
        raise ValueError(f"{name} must be {allowed}.") from None


def blocks_of_gates(log_gates, edges, size):
    """Return slices of at most `size` positions between edges.

    Gates close at the first position of a slice only.
    """
    is_reset = to_host(constant(log_gates)) < -RESET
    n = is_reset.shape[-2]
    resets = np.flatnonzero(is_reset.reshape(-1, n, is_reset.shape[-1]).any(axis=(0, 2)))
    return blocks_between(np.unique([*edges, *resets]).tolist(), size)


def gated(queries, keys, log_gates):
    """Return the features of the queries and keys of a block with its gates but the first.

    Keys are raised by them. Queries, which may be None, fall by them where there are several
    exponentials. The factor of a single one cancels in the quotient of a query: its logarithm is
    returned as well, (..., 1, n, 1). NumPy features are overwritten.
    """
    xp, rest = namespace(log_gates), log_gates[..., 1:, :]
    falls = xp.concat([xp.zeros_like(log_gates[..., :1, :]), running(rest)], axis=-2)
    fall = falls[..., None, :, :1]
    falls = _of_features(cast(falls, keys.values.dtype), keys.values.shape[-1])
    if log_gates.shape[-1] > 1:
        queries = None if queries is None else _shifted(queries, falls[..., None, :, :])
        fall = xp.zeros_like(fall)
    return queries, _shifted(keys, -falls), fall


def log_factors(queries, keys, log_weights=None):
    """Return the logs of what gates multiply the weights of pairs by, (..., n, m).

    Parameters
    ----------
    queries, keys : array of shape (..., n, r) and (..., m, r)
        Running sums of log gates at their positions, for each of r exponentials.
    log_weights : array of shape (..., r), default=None
        Logs of what the exponentials are multiplied by; None is 1.
    """
    xp, total = namespace(keys), None
    for i in range(keys.shape[-1]):
        logs = queries[..., i][..., :, None] - keys[..., i][..., None, :]
        if log_weights is not None:
            logs = logs + log_weights[..., i][..., None, None]
        total = logs if total is None else xp.logaddexp(total, logs)
    return total


def _shifted(rows, shift):
    """Return features with a shift of their logarithms."""
    if rows.holds_logs:
        return Rows(arithmetic(rows.values).add(rows.values, shift))
    fixed, values = constant(shift), rows.values
    if is_array_api(values):  # no gradient flows through scales
        values = values * namespace(values).exp(shift - fixed)
    return Rows(values, rows.scale + fixed)


def running(log_gates):
    """Return the sums of log gates (..., n, r) up to every position."""
    if not is_array_api(log_gates):
        return np.cumsum(log_gates, axis=-2)
    return namespace(log_gates).cumulative_sum(log_gates, axis=-2)


def _of_features(values, n_features):
    """Return what belongs to exponentials, (..., r), for each of their features; one serves all."""
    n = values.shape[-1]
    return values if n == 1 else namespace(values).repeat(values, n_features // n, axis=-1)


def faded(sums, log_gates):
    """Return `Sums` as they are after some gates."""
    xp, values = namespace(log_gates), sums.sums
    fall = log_gates[..., 0, :] if log_gates.shape[-2] == 1 else xp.sum(log_gates, axis=-2)
    fall = _of_features(fall, values.shape[-2])
    fixed = constant(fall)
    if is_array_api(values):  # no gradient flows through exponents, nor to a gate of 0
        change = xp.where(fixed > -np.inf, fall - fixed, like(0.0, fixed))
        values = values * xp.exp(change)[..., None]
    with np.errstate(over="ignore"):  # to -inf: nothing is left
        return Sums(values, sums.top + fixed)
