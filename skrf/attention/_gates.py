"""Gates and decays of a call, checked: the share of the past that every position keeps."""

from dataclasses import replace

from .._arrays import cast, in_library_of, is_array_api, namespace, to_host
from ._inputs import as_array, check_real
from ._masks import check_decay
from .masks import DecayMask


def with_gates(inputs, log_gates, mask, is_causal):
    """Return inputs with the log gates of a call and of a mask that is a decay, (U, S)."""
    is_decay = isinstance(mask, DecayMask)
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
        check_real("log_gates", namespace(log_gates), log_gates.dtype)
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
        total = xp.where(inputs.padding, 0.0, total)
    return replace(inputs, log_gates=total)


def _broadcast(values, k, shape, name, allowed):
    """Return values in float64, in the library of k and in a shape, or raise and name them."""
    if not (is_array_api(values) and is_array_api(k)):
        values = in_library_of(to_host(values), k)
    try:
        return namespace(k).broadcast_to(cast(values, namespace(k).float64), shape)
    except (ValueError, RuntimeError):
        raise ValueError(f"{name} must be {allowed}, got shape {tuple(values.shape)}.") from None


def gate_sums(log_gates):
    """Return the sums of log gates (..., n) up to every position."""
    return namespace(log_gates).cumulative_sum(log_gates, axis=-1)
