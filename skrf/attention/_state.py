"""The state of streaming attention between calls: arrays of a fixed size."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from .._arrays import is_array_api, namespace, take
from .._sums import Sums
from .._typing import Array


class State:
    """Base of the states of streaming attention: a dataclass whose first field is None at first."""

    def select(self, indices: Array) -> Self:
        """Return the state of some entries of the batch (first axis), for example in a beam search.

        Parameters
        ----------
        indices : array-like of int
            The entries, which may repeat.

        Returns
        -------
        AttentionState or WindowState
            The state of these entries.
        """
        first, *_ = self.arrays().values() or [None]
        if first is None:
            return self
        if first.ndim < 3:
            raise ValueError("select needs a batch, but the keys had no leading axis.")
        rows = indices if is_array_api(indices) else np.asarray(indices)
        if not namespace(rows).isdtype(rows.dtype, "integral"):
            raise TypeError(
                f"indices must be integers, got dtype {rows.dtype}: pass the numbers of the "
                "entries, not a mask of them."
            )
        return self.mapped(lambda array: take(array, rows))

    def arrays(self) -> dict:
        """Return the arrays of the state by name; none before the first step."""
        return {name: x for name, x in vars(self).items() if hasattr(x, "shape")}

    def mapped(self, function: Callable) -> Self:
        """Return the state with a function of its arrays."""
        arrays = {name: function(x) for name, x in self.arrays().items()}
        return type(self)(**vars(self) | arrays)

    def check_fits(self, k: Array, shape: tuple[int, ...]) -> None:
        """Raise unless the first array has the library of the keys k and a shape but its rows."""
        name, array = next(iter(self.arrays().items()))
        xp, held_shape = namespace(array), (*array.shape[:-2], array.shape[-1])
        if held_shape != shape or xp is not namespace(k):
            raise ValueError(
                "state must come from earlier positions of the same inputs: without its axis of "
                f"rows, {name} has the shape {held_shape} in {xp.__name__}, these need {shape} in "
                f"{namespace(k).__name__}."
            )


@dataclass(frozen=True, eq=False)
class AttentionState(State):
    """State of streaming attention, made by `ApproxKernelAttention.init_state`.

    For feature f of a key head, the sum over all earlier keys of the feature times ``[1, values]``
    is ``sums[..., f, :] * exp(log_scale[..., f])``. The arrays belong to the library of the inputs,
    are in float64 and are never modified: every step returns new ones. They are None before the
    first step.

    Parameters
    ----------
    sums : array of shape (..., n_features, e + 1), default=None
        The sums, with the leading axes of the keys: batch and heads.
    log_scale : array of shape (..., n_features) or (..., 1), default=None
        One exponent per feature, or a single one for all; -inf before the first key.
    width : int, default=None
        Width of queries and keys.
    is_double : bool, default=False
        Whether values were too large or too small for sums in float32.
    maker : tuple of float, default=()
        Numbers that tell the draw and the fit of the operator from others.

    See Also
    --------
    ApproxKernelAttention.init_state : Returns the first state.
    ApproxKernelAttention.step : Returns the next state.

    References
    ----------
    Likhosherstov, Random features for efficient attention approximation (2022), section 3.3.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.attention import ApproxKernelAttention
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 4, 2, 1, 8))  # four texts, two heads
    >>> attention = ApproxKernelAttention(causal=True, random_state=0)
    >>> out, state = attention.step(q, k, v, attention.init_state())
    >>> state.sums.shape
    (4, 2, 256, 9)
    >>> state.select([2, 2, 0]).sums.shape
    (3, 2, 256, 9)
    """

    sums: Array | None = None
    log_scale: Array | None = None
    width: int | None = None
    is_double: bool = False
    maker: tuple[float, ...] = ()


def marks_of(*arrays):
    """Return a number for each of several finite arrays of one size, which tells it from others."""
    weights = np.cos(np.arange(np.size(arrays[0])))
    return tuple(float(np.ravel(array) @ weights) for array in arrays)


def sums_of_sets(state, inputs, n_features, maker):
    """Return the `Sums` of a state with one axis for all sets, or None; raise if it does not fit.

    Parameters
    ----------
    state : AttentionState
        The state.
    inputs : Inputs
        The positions that continue it.
    n_features : int
        Number of features of a head.
    maker : tuple of float
        Marks of the feature maps.
    """
    if state.sums is None:
        return None
    xp, shape = inputs.library.xp, (*inputs.key_leading, n_features, inputs.v.shape[-1] + 1)
    width, held = inputs.k.shape[-1], namespace(state.sums)
    if (tuple(state.sums.shape), state.width) != (shape, width) or held is not xp:
        raise ValueError(
            "state must come from earlier positions of the same inputs: it holds sums of shape "
            f"{tuple(state.sums.shape)} of {held.__name__} for keys of width {state.width}, these "
            f"need {shape} of {xp.__name__} and width {width}."
        )
    is_same = state.maker == maker  # which takes less time
    if not is_same and len(state.maker) == len(maker):
        is_same = np.allclose(state.maker, maker, rtol=1e-6)
    if not is_same:
        raise ValueError(
            "state was made by another operator, or before another draw or fit of this one: its "
            "sums mean nothing here. Start again with init_state()."
        )
    sums, top, n_lead = state.sums, state.log_scale, len(inputs.key_leading)
    sums = xp.reshape(sums, (-1, *sums.shape[n_lead:]))
    return Sums(sums, xp.reshape(top, (-1, *top.shape[n_lead:])))


def state_after(state, result, inputs, maker):
    """Return the state after some inputs, given the one before and the `AttentionResult`."""
    xp, lead, sums = inputs.library.xp, inputs.key_leading, result.sums
    totals = xp.reshape(sums.sums, (*lead, *sums.sums.shape[1:]))
    top = xp.reshape(sums.top, (*lead, *sums.top.shape[1:]))
    is_double = state.is_double or result.is_double
    return type(state)(totals, top, inputs.k.shape[-1], is_double, maker)
