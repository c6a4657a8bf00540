"""Exact causal attention to the first keys and the nearest ones, for streams and whole sequences.

A call is its steps, block by block: a state holds the keys that later queries may still see.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from .._arrays import cast, namespace
from .._estimator import EstimatorBase
from .._sums import exp_and_max, transposed
from .._typing import Array
from .._validation import check_integer
from ._inputs import blocks_between, check_flag, check_inputs, check_scale, side_by_side
from ._state import State
from .exact import dtype_of_logits, means_and_logs

_BLOCK_ROWS = 128  # queries that are computed at a time


@dataclass(frozen=True, eq=False)
class WindowState(State):
    """State of `WindowAttention` between steps: the keys that later queries may still see.

    The arrays belong to the library of the inputs and are never modified. They are None before the
    first step. The number m of keys that are held is at most ``n_first + size + 128``.

    Parameters
    ----------
    rows : array of shape (..., m, d + e), default=None
        Keys side by side with their values; leading axes are those of the inputs: batch and heads.
    positions : array of int of shape (..., m), default=None
        Their positions, counted without padding; -1 for padding.
    n_keys : array of int of shape (..., 1), default=None
        Number of keys so far that were not padding.
    maker : tuple of int, default=()
        `size` and `n_first` of the operator, and the width of the keys.

    See Also
    --------
    WindowAttention.step : Returns the next state.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.attention import WindowAttention
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 4, 2, 1, 8))  # four texts, two heads
    >>> attention = WindowAttention(100)
    >>> out, state = attention.step(q, k, v, attention.init_state())
    >>> state.select([2, 2, 0]).rows.shape
    (3, 2, 1, 16)
    """

    rows: Array | None = None
    positions: Array | None = None
    n_keys: Array | None = None
    maker: tuple[int, ...] = ()


class WindowAttention(EstimatorBase):
    """Exact causal softmax attention of each position to the first keys and to the last ones.

    Models that were trained with exact attention put much weight on the first keys of a text, so a
    window without them is useless. Time is linear in the length, and memory of a stream constant.
    Arrays may be of NumPy or torch, which differentiates the output, or of other libraries that
    follow the array API standard.

    Parameters
    ----------
    size : int
        Number of last keys that a query sees, its own included. Padding does not count.
    n_first : int, default=4
        Number of keys at the beginning that every query sees besides.
    scale : float, default=None
        Multiplies the inner products of queries and keys; None means 1/sqrt(d).

    See Also
    --------
    exact_attention : To all keys; cheaper up to about 1,000 positions.
    merge_attention : Merges the result with attention to other keys.

    References
    ----------
    Xiao et al., Efficient streaming language models with attention sinks (2024).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.attention import WindowAttention, exact_attention
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 2, 100, 8))  # two heads
    >>> attention = WindowAttention(20)
    >>> out, exact = attention(q, k, v), exact_attention(q, k, v, causal=True)
    >>> bool(np.allclose(out[:, :24], exact[:, :24]))  # these see all earlier keys
    True
    >>> first, state = attention.step(*(x[:, :60] for x in (q, k, v)), attention.init_state())
    >>> second, state = attention.step(*(x[:, 60:] for x in (q, k, v)), state)
    >>> bool(np.allclose(np.concatenate([first, second], axis=1), out))
    True
    """

    causal = True  # for `compare_attention`
    _foreign_parameters = {"window": "Pass size instead."}

    def __init__(self, size: int, n_first: int = 4, *, scale: float | None = None) -> None:
        self.size = size
        self.n_first = n_first
        self.scale = scale

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        key_padding_mask: Array | None = None,
        return_lse: bool = False,
    ) -> Any:
        """Return the attention of queries to keys.

        Parameters
        ----------
        q : array-like of shape (..., L, d)
            Queries. There may be fewer queries than keys: those of the last positions.
        k : array-like of shape (..., S, d)
            Keys; the number of heads (last leading axis) may be a divisor of that of q.
        v : array-like of shape (..., S, e)
            Values.
        key_padding_mask : array-like of bool, default=None
            True where a key is padding: as if it were not there.
        return_lse : bool, default=False
            Whether to return the log-sum-exp of every query as well, for `merge_attention`.

        Returns
        -------
        out : array of shape (..., L, e)
            Outputs, as from `exact_attention`; 0 without any key.
        lse : array of shape (..., L)
            With `return_lse`: the logarithm of the sum of the weights, -inf without a key.

        Raises
        ------
        ValueError
            If shapes do not fit, an entry is not finite, or a parameter is invalid.
        """
        check_flag("return_lse", return_lse)
        inputs = check_inputs(q, k, v, key_padding_mask, True)
        return self._attend(inputs, WindowState(), return_lse)[0]

    def init_state(self) -> WindowState:
        """Return the state before the first position, for `step`.

        Returns
        -------
        WindowState
            A state that has seen no key.
        """
        return WindowState()

    def step(
        self,
        q: Array,
        k: Array,
        v: Array,
        state: WindowState,
        *,
        key_padding_mask: Array | None = None,
        return_lse: bool = False,
    ) -> tuple:
        """Return the attention of the next positions, and the state after them.

        However a sequence is split into chunks, the result is that of a single call.

        Parameters
        ----------
        q, k, v : array-like of shape (..., n, d), (..., n, d), (..., n, e)
            The next n positions.
        state : WindowState
            From `init_state` or the previous step; it is not changed.
        key_padding_mask : array-like of bool, default=None
            True where a key is padding.
        return_lse : bool, default=False
            Whether to return log-sum-exps as well.

        Returns
        -------
        out : array of shape (..., n, e)
            Attention of these positions.
        lse : array of shape (..., n)
            With `return_lse`: as in a call.
        state : WindowState
            The new state.

        Raises
        ------
        ValueError
            If the state was made for inputs of other shapes, or by an operator that keeps others.
        """
        check_flag("return_lse", return_lse)
        if not isinstance(state, WindowState):
            raise TypeError(f"state must come from init_state() or step(), got {state!r:.60}.")
        inputs = check_inputs(q, k, v, key_padding_mask, True, is_step=True)
        results, state = self._attend(inputs, state, return_lse)
        return (*results, state) if return_lse else (results, state)

    def _attend(self, inputs, state, return_lse):
        """Return the results of a call for checked `Inputs`, and the state after them."""
        check_integer("size", self.size)
        check_integer("n_first", self.n_first, least=0)
        scale = check_scale(self.scale, inputs.q.shape[-1])
        n_keys, lead = inputs.k.shape[1], inputs.key_leading
        xp, entries = namespace(inputs.k), namespace(inputs.k).concat([inputs.k, inputs.v], axis=-1)
        is_key = xp.ones_like(inputs.k[..., 0]) if inputs.padding is None else ~inputs.padding
        is_key, first, results = xp.astype(is_key, xp.int64), n_keys - inputs.q.shape[-2], []
        maker = self.size, self.n_first, inputs.k.shape[-1]
        if state.rows is None:
            state = WindowState(entries[:, :0, :], is_key[:, :0], 0 * is_key[:, :1], maker)
        else:
            state.check_fits(inputs.k, (*lead, entries.shape[-1]))
            if state.maker != maker:
                raise ValueError(
                    "state must come from an operator that keeps the same keys: its size, n_first "
                    f"and width of keys are {state.maker}, here {maker}."
                )
            state = state.mapped(lambda x: xp.reshape(x, (-1, *x.shape[len(lead) :])))
        for rows in blocks_between([0, first, n_keys], _BLOCK_ROWS):
            state, n_seen = _with_rows(state, entries[:, rows, :], is_key[:, rows])
            if rows.start >= first:
                q = inputs.q[..., rows.start - first : rows.stop - first, :]
                results.append(self._read(q, state, n_seen, scale))
            state = self._without_passed(state)
        state = state.mapped(lambda x: xp.reshape(x, (*lead, *x.shape[1:])))
        outs, logs = map(list, zip(*results, strict=True))
        lse = side_by_side(logs, -1) if return_lse else None
        return inputs.results(side_by_side(outs, -2), lse), state

    def _read(self, q, state, n_seen, scale):
        """Return outputs (U, G, n, e) and log-sum-exps; n_seen (U, n) counts keys up to a query."""
        d, positions, xp = q.shape[-1], state.positions[:, None, :], namespace(q)
        k, v = state.rows[:, None, :, :d], state.rows[:, None, :, d:]
        distance = n_seen[..., None] - positions  # 1 for the key at the position of the query
        is_seen = (distance <= self.size) | (positions < self.n_first)
        is_seen = is_seen & (positions >= 0) & (distance > 0)
        dtype = dtype_of_logits(q, k, scale)
        logits = (cast(q, dtype) * scale) @ transposed(cast(k, dtype))
        logits = xp.where(is_seen[:, None, ...], logits, -math.inf)
        weights, level = exp_and_max(logits)
        return means_and_logs(weights, xp.sum(weights, axis=-1, keepdims=True), level, v)

    def _without_passed(self, state):
        """Return the state without the keys that no later query sees, if they are many."""
        n_kept, positions, xp = self.n_first + self.size, state.positions, namespace(state.rows)
        if positions.shape[1] < n_kept + _BLOCK_ROWS:
            return state
        is_kept = (positions < self.n_first) | (positions >= state.n_keys - self.size)
        positions = xp.where(is_kept, positions, xp.full_like(positions, -1))
        order = xp.argsort(positions, axis=1, stable=True)[:, -n_kept:]
        places = xp.broadcast_to(order[..., None], (*order.shape, state.rows.shape[-1]))
        rows = xp.take_along_axis(state.rows, places, axis=1)
        return replace(state, rows=rows, positions=xp.take_along_axis(positions, order, axis=1))


def _with_rows(state, rows, is_key):
    """Return the state with the keys of a block, and how many keys its positions have seen."""
    xp = namespace(rows)
    n_seen = state.n_keys + xp.cumulative_sum(is_key, axis=1)
    positions = xp.concat([state.positions, is_key * n_seen - 1], axis=1)
    rows = xp.concat([state.rows, rows], axis=1)
    return replace(state, rows=rows, positions=positions, n_keys=n_seen[:, -1:]), n_seen
