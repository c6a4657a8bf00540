"""The operator of local attention: parameters, checks, and the order of its parts."""

import math
from dataclasses import replace
from typing import Any, Self

import numpy as np

from ..._arrays import (
    cast,
    in_library_of,
    largest_entry,
    like,
    namespace,
    to_host,
)
from ..._estimator import EstimatorBase
from ..._typing import Array, Result
from .._gates import exponentials_of, with_gates
from .._groups import KeySet
from .._groups import blocks as slices
from .._inputs import check_finite, check_flag, check_inputs, check_scale
from .._judging import AttentionDiagnosis, judged
from .._state import marks_of
from ..exact import dtype_of_logits
from ..masks import DecayMask
from . import blocks
from .bidirectional import attend_around
from .call import Call
from .causal import attend_causal, nothing_held
from .layout import (
    Sizes,
    Stretch,
    in_order,
    sizes_of,
    stretches,
    with_zeros,
)
from .selection import Statistics, statistics_of
from .state import LocalState, checked_counts, flat, goes_on, held_of, state_of

_DIAGNOSED_QUERIES = 64
_BLOCKS_AT_ONCE = 256  # of causal attention, which bounds its memory
_FAR = 512.0  # nats that float32 holds to 3e-5
_FASTEST = 1e6  # rate of a decay after which nothing is left of a key at the next position


class LocalAttention(EstimatorBase):
    """Softmax attention to nearby keys, a few heavy ones, and summaries of the rest.

    Calling it returns an approximation of ``softmax(scale * q @ k.T) @ v`` in time linear in the
    length, without random numbers. Positions are grouped into blocks. Two kinds of keys are treated
    exactly: those in a window, which all queries of a block share, and, beyond it, the heavy keys,
    to which queries give the largest weights in the mean. Summaries replace all other keys. Every
    key counts once, in a single softmax.

    Parameters
    ----------
    window : int, default=None
        Number of keys before a block of positions; with ``causal=False``, of keys in and around it,
        at least three blocks. None gives 256 units in total, or 288 with ``causal=False``.
    n_heavy : int, default=None
        Number of heavy keys, which lie beyond the window and are treated exactly; None means 64,
        or 72 with ``causal=False``.
    n_summaries : int, default=None
        Number of summaries of all other keys; None means 1, or 16 with ``causal=False``. At most 1
        with `causal`.
    block : int, default=32
        Number of positions in a block.
    causal : bool, default=False
        Whether position i attends only to positions up to i.
    scale : float, default=None
        Multiplies the inner products of queries and keys; None means 1/sqrt(d).
    mask : DecayMask, default=None
        ``ToeplitzMask.decay(rate)``, which multiplies all weights by exp(-rate * lag), as ALiBi
        does; only with `causal`.

    Attributes
    ----------
    mean_queries_ : ndarray of shape (n_heads, d)
        After `fit`: the mean query of every head.
    mean_keys_ : ndarray of shape (n_heads, d)
        After `fit`: the mean of the keys that every head sees.
    query_variances_, key_variances_ : ndarray of shape (n_heads, d)
        After `fit`: the variances of the numbers of queries and keys.
    n_queries_, n_keys_ : ndarray of shape (n_heads,)
        After `fit`: the numbers of queries and keys behind these.

    See Also
    --------
    ApproxKernelAttention : Random features, for models that are trained with them.
    exact_attention : The attention that this approximates.
    compare_attention : Errors and times of several operators on given inputs.
    skrf.torch.LocalAttention : The same as a torch module.

    Notes
    -----
    The cost is measured in units, the average number of keys per query: ``units = window + n_heavy
    + n_summaries``, plus half a block with `causal`. Inputs with at most this many positions are
    computed exactly.

    Heavy keys are those of the largest mean weights, estimated as if the numbers of queries and
    keys were independent and normal, from their means and variances. These come from `fit`, which
    should see texts as long as later ones. Without `fit`, they are those of a call or, with
    `causal`, which must not see the future, of the first positions, which still see all keys. On
    some texts, a window that keeps the first keys is as good; `diagnose` shows whether it is. With
    `causal`, the first four keys of a text always count as heavy, because language models give them
    much weight. Gradients treat the choice of keys as constant.

    A padded position is as if it were not there. A single call, chunks and single positions give
    the same result, up to rounding. There is one window per key head, but every query head has its
    own heavy keys and summary. With `causal`, G query heads per key head make a state hold ``window
    + block / 2 + G * (n_heavy + n_summaries)`` keys per key head, on average: 256 with the defaults
    for G = 1, and 386 for G = 3, as many as a window of 386 keys.

    As a function of the query, the log weight of a summary is the tangent, at the mean query, to
    the exact log weight of its keys, and never exceeds it. Random features estimate the same
    weights for every query, but with variance.

    References
    ----------
    Zheng et al., Efficient attention via control variates (2023), for using sums over sets of keys
    as terms of attention.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.attention import LocalAttention, exact_attention
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 2, 500, 8)) / 2  # 2 heads
    >>> attention = LocalAttention(causal=True)
    >>> error = attention(q, k, v) - exact_attention(q, k, v, causal=True)
    >>> bool(np.abs(error).max() < 0.1)
    True
    """

    _foreign_parameters = {"is_causal": "Pass causal instead."}
    _blocks = staticmethod(blocks.attend)  # skrf.torch has its own

    def __init__(
        self,
        window: int | None = None,
        n_heavy: int | None = None,
        n_summaries: int | None = None,
        *,
        block: int = 32,
        causal: bool = False,
        scale: float | None = None,
        mask: DecayMask | None = None,
    ) -> None:
        self.window = window
        self.n_heavy = n_heavy
        self.n_summaries = n_summaries
        self.block = block
        self.causal = causal
        self.scale = scale
        self.mask = mask

    @property
    def units(self) -> int:
        """Average number of keys per query, summaries included."""
        return self._sizes().units

    def _sizes(self) -> Sizes:
        check_flag("causal", self.causal)
        return sizes_of(self.window, self.n_heavy, self.n_summaries, self.block, self.causal)

    # ---------------------------------------------------------------- statistics

    def fit(self, q: Array, k: Array, *, key_padding_mask: Array | None = None) -> Self:
        """Compute means and variances of the queries and keys of heads, which later calls use.

        Parameters
        ----------
        q : array-like of shape (..., L, d)
            Queries; the last leading axis is the heads, and all others are pooled.
        k : array-like of shape (..., S, d)
            Keys.
        key_padding_mask : array-like of bool, default=None
            True where a key is padding. If there are as many queries as keys, the query at the same
            position is then padding, too.

        Returns
        -------
        self : object
            The fitted operator.
        """
        return self._merge(q, k, key_padding_mask, before=None)

    def partial_fit(self, q: Array, k: Array, *, key_padding_mask: Array | None = None) -> Self:
        """Update means and variances with more queries and keys.

        Parameters
        ----------
        q, k : array-like of shape (..., L, d), (..., S, d)
            Queries and keys, as in `fit`.
        key_padding_mask : array-like of bool, default=None
            True where a key is padding.

        Returns
        -------
        self : object
            The fitted operator.
        """
        return self._merge(q, k, key_padding_mask, vars(self).get("mean_queries_"))

    @np.errstate(over="ignore")  # of squares
    def _merge(self, q, k, key_padding_mask, before):
        """Set the statistics of more queries and keys, and of those before."""
        self._sizes()
        inputs = check_inputs(q, k, k, key_padding_mask).on_host()
        n_heads, n_readers, n_rows, width = inputs.n_key_heads, *inputs.q.shape[1:]
        is_key = np.ones(inputs.k.shape[:2]) if inputs.padding is None else 1.0 - inputs.padding
        is_query = is_key if is_key.shape[1] == n_rows else np.ones((len(is_key), n_rows))
        sums, numbers = [], []
        for rows, is_real in ((inputs.q, is_query), (inputs.k[:, None], is_key)):
            rows = rows * is_real[:, None, :, None]
            both = [np.einsum("ugnd,un->ugd", part, is_real) for part in (rows, rows * rows)]
            # Sets are batch times key heads.
            both = np.stack(both).reshape(2, -1, n_heads, rows.shape[1], width).sum(axis=1)
            number = is_real.sum(axis=1).reshape(-1, n_heads).sum(axis=0)
            sums += [np.broadcast_to(part, (n_heads, n_readers, width)) for part in both]
            numbers += [np.repeat(number, n_readers)] * 2
        sums = np.stack(sums, axis=2).reshape(-1, 4, width)
        numbers = np.stack(numbers, axis=1)
        if before is not None:
            if sums[:, 0].shape != before.shape:
                raise ValueError(
                    "partial_fit needs heads and width of fit, "
                    f"{before.shape}, got {sums[:, 0].shape}."
                )
            mean, key_mean, known = self.mean_queries_, self.mean_keys_, self._fitted_numbers()
            squares = self.query_variances_ + mean**2, self.key_variances_ + key_mean**2
            moments = np.stack([mean, squares[0], key_mean, squares[1]], axis=1)
            sums = sums + moments * known[:, :, None]
            numbers = numbers + known
        if not numbers.all():
            raise ValueError("key_padding_mask must leave a key in every head, got none.")
        found = Statistics.of(sums / numbers[:, :, None])
        self.mean_queries_, self.query_variances_ = found[:2]
        self.mean_keys_, self.key_variances_ = found[2:]
        self.n_queries_, self.n_keys_ = numbers[:, 0], numbers[:, 2]
        return self

    def _fitted_numbers(self):
        """Return how many queries and keys the four means of `Statistics.of` have, (H, 4)."""
        return np.repeat(np.stack([self.n_queries_, self.n_keys_], axis=1), 2, axis=1)

    def _known(self, inputs):
        """Return the fitted `Statistics` of every set, or None without a fit."""
        if not hasattr(self, "mean_queries_"):
            return None
        shape = inputs.n_query_heads, inputs.q.shape[-1]
        if self.mean_queries_.shape != shape:
            raise ValueError(
                f"q has {shape[0]} heads of width {shape[1]}, but the operator was fitted to "
                f"{self.mean_queries_.shape[0]} of width {self.mean_queries_.shape[1]}."
            )
        xp, heads = namespace(inputs.q), inputs.heads_of(np.arange(inputs.q.shape[0]))
        of_queries = self.mean_queries_, self.query_variances_
        fitted = (array[heads] for array in (*of_queries, self.mean_keys_, self.key_variances_))
        return Statistics(*(cast(in_library_of(array, inputs.q), xp.float64) for array in fitted))

    # ---------------------------------------------------------------- calls

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
            Queries. With `causal`, there may be fewer queries than keys: those of the last
            positions.
        k : array-like of shape (..., S, d)
            Keys; the number of heads (last leading axis) may be a divisor of that of q.
        v : array-like of shape (..., S, e)
            Values.
        key_padding_mask : array-like of bool, default=None
            True where a key is padding and ignored. The shape is (S,), or has the leading axes of
            k, with or without its heads.
        return_lse : bool, default=False
            Whether to return the logarithm of what divides the output of every query as well, for
            `merge_attention`.

        Returns
        -------
        out : array of shape (..., L, e)
            Outputs, in the library and on the device of the inputs. The dtype is float64 if any
            input is float64, float16 or bfloat16 if all inputs are, and float32 otherwise; sums are
            in float32 or better. Rows of padding are 0.
        lse : array of shape (..., L)
            With `return_lse`: the logarithm of the sum of the weights of exact keys and summaries;
            -inf at padding. It is in float64 if the outputs are, and in float32 otherwise.

        Raises
        ------
        ValueError
            If shapes do not fit or contents are not finite; the message names the input.
        TypeError
            If an input is not made of real numbers, or if the inputs belong to different libraries.
        """
        check_flag("return_lse", return_lse)
        inputs = check_inputs(q, k, v, key_padding_mask, is_checked=False)
        out, lse, _ = self._attend(inputs)
        out = inputs.given_layout(out)
        return (out, inputs.given_rows(lse)) if return_lse else out

    def init_state(self) -> LocalState:
        """Return the state before the first position, for `step`.

        Returns
        -------
        LocalState
            A state that has seen no key.

        Raises
        ------
        ValueError
            If the operator is not causal.
        """
        if not self.causal:
            raise ValueError(f"Streaming needs causal=True, got causal={self.causal!r}.")
        return LocalState()

    def step(
        self,
        q: Array,
        k: Array,
        v: Array,
        state: LocalState,
        *,
        key_padding_mask: Array | None = None,
        return_lse: bool = False,
    ) -> tuple:
        """Return causal attention of the next positions, and the state after them.

        However a sequence is split into chunks, the result is that of a single call, up to
        rounding, and memory does not grow with the length.

        Parameters
        ----------
        q, k, v : array-like of shape (..., n, d), (..., n, d), (..., n, e)
            The next n positions.
        state : LocalState
            From `init_state` or the previous step; it is not changed.
        key_padding_mask : array-like of bool, default=None
            True where a key is ignored.
        return_lse : bool, default=False
            Whether to return the logarithms of what divides the outputs as well, as in a call.

        Returns
        -------
        out : array of shape (..., n, e)
            Attention of these positions to all positions so far.
        lse : array of shape (..., n)
            With `return_lse`: as in a call.
        state : LocalState
            The new state.

        Raises
        ------
        ValueError
            If the state was made for other widths or heads.
        """
        if not isinstance(state, LocalState):
            raise TypeError(f"state must come from init_state() or step(), got {state!r:.60}.")
        self.init_state()
        inputs = check_inputs(q, k, v, key_padding_mask, is_step=True, is_checked=False)
        check_flag("return_lse", return_lse)
        out, lse, state = self._attend(inputs, state)
        out = inputs.given_layout(out)
        return (out, inputs.given_rows(lse), state) if return_lse else (out, state)

    # ---------------------------------------------------------------- inspection

    def attention_matrix(
        self, q: Array, k: Array, *, key_padding_mask: Array | None = None
    ) -> Result:
        """Return the matrix that multiplies the values, of quadratic size: for small inputs only.

        Parameters
        ----------
        q : array-like of shape (..., L, d)
            Queries.
        k : array-like of shape (..., S, d)
            Keys.
        key_padding_mask : array-like of bool, default=None
            True where a key is ignored.

        Returns
        -------
        array of shape (..., L, S)
            Rows sum to 1, or to 0 where no key is left.
        """
        inputs = check_inputs(q, k, k, key_padding_mask)
        # Attention to unit vectors: column j holds the factors of value j.
        n_keys = inputs.k.shape[-2]
        unit = np.broadcast_to(np.eye(n_keys), (*inputs.k.shape[:-1], n_keys))
        inputs = replace(inputs, v=like(unit, inputs.k), dtype=inputs.q.dtype)
        return inputs.given_layout(self._attend(inputs)[0])

    def diagnose(
        self, q: Array, k: Array, v: Array, *, key_padding_mask: Array | None = None
    ) -> AttentionDiagnosis:
        """Return how accurate the output is, and whether something simpler is better.

        At a sample of 64 queries per set of keys, the output, the mean of the values and an exact
        window with as many keys as there are units are compared with exact attention; a decay
        weighs the keys of all of them.

        Parameters
        ----------
        q, k, v : array-like
            Inputs, as in a call.
        key_padding_mask : array-like of bool, default=None
            True where a key is ignored.

        Returns
        -------
        AttentionDiagnosis
            ``relative_error`` and ``sampled_errors``; in the latter, "window" is smaller than
            "attention" if a window of the same cost is better.
        """
        inputs = check_inputs(q, k, v, key_padding_mask)
        out, scale = self._attend(inputs)[0], check_scale(self.scale, inputs.k.shape[-1])
        inputs = with_gates(inputs, None, self.mask, self.causal)
        dtype = dtype_of_logits(inputs, scale)
        given = KeySet.of(inputs, dtype=dtype), out, _DIAGNOSED_QUERIES, scale, self.causal
        *squares, size = judged(*given, window=self.units)[0]
        errors = [math.sqrt(square / size) if size else 0.0 for square in squares]
        names = "attention", "mean", "window"
        return AttentionDiagnosis(errors[0], None, dict(zip(names, errors, strict=True)))

    # ---------------------------------------------------------------- the order of the parts

    def _attend(self, inputs, state=None):
        """Return outputs (U, G, L, e), log-sum-exps, and the state after them if one is given."""
        sizes, scale = self._sizes(), check_scale(self.scale, inputs.k.shape[-1])
        xp, n_queries, n_keys = namespace(inputs.q), inputs.q.shape[2], inputs.k.shape[1]
        known = self._known(inputs)
        self._check_lengths(sizes, known is not None, n_queries, n_keys)
        check_finite("v", inputs.v)
        dtype = dtype_of_logits(inputs, scale)  # which checks q and k
        counts, rates = np.zeros(inputs.q.shape[0], int), self._rates(inputs)
        width = inputs.k.shape[-1] + (rates is not None)
        key, maker = (*sizes, width, known is not None), self._maker(scale)  # of states
        is_continued = state is not None and state.recent is not None
        if is_continued:
            counts = checked_counts(state, key, maker, inputs)
        if rates is not None and largest_entry(rates) * (counts.max() + n_keys) > _FAR:
            dtype = xp.float64
        q, n_missing = inputs.q, n_keys - n_queries
        rows = xp.concat([cast(inputs.k, dtype), cast(inputs.v, dtype)], axis=-1)
        hidden = to_host(inputs.padding)
        is_one = is_continued and hidden is None and goes_on(state, sizes, counts, rows)
        known = None if is_one else known  # no key leaves the window
        call = Call(with_zeros(q, n_missing), rows, known, rates, scale, hidden, n_missing)
        if is_one:
            one = Stretch(slice(None), None, int(counts[0]))
            return self._attend_one(sizes, call.of(one), state)
        before = flat(state, inputs) if is_continued else None
        parts, outs, helds = stretches(hidden, counts, sizes.causal and state is None), [], []
        for part in parts:
            own, held = call.of(part), None if before is None else held_of(before, part)
            out, held = self._attend_part(sizes, own, held)
            outs.append(own.placed(out))
            helds.append(held)
        out, lse = (in_order(arrays, parts) for arrays in zip(*outs, strict=True))
        if state is not None:
            state = state_of(type(state), key, maker, helds, parts, inputs)
        return out, lse, state

    def _attend_part(self, sizes, call, held):
        """Return outputs of the rows of a stretch with log-sum-exps, and what is `Held` after it.

        What is held before it is None before the first position.
        """
        q, rows, known, width = call.q, call.rows, call.known, call.q.shape[-1]
        # No outputs, but with the graph of the inputs.
        empty = cast(q[..., :0, :1], rows.dtype) + rows[:, None, :0, width - 1 :]
        if not sizes.causal:
            if not rows.shape[-2]:
                return empty, None
            if known is None:
                known = statistics_of(q, rows[..., :width])
            q, known = cast(q, rows.dtype) * call.scale, known.scaled(call.scale)
            return attend_around(sizes, q, rows, known, self._blocks), None
        held, outs = nothing_held(q, rows) if held is None else held, []
        for some in slices(rows.shape[-2], _BLOCKS_AT_ONCE * sizes.block):
            given = call.scale, known, max(call.first - some.start, 0), self._blocks
            out, held = attend_causal(sizes, held, q[..., some, :], rows[:, some, :], *given)
            outs.append(out)
        return namespace(q).concat(outs, axis=-2) if len(outs) > 1 else (*outs, empty)[0], held

    def _attend_one(self, sizes, call, state):
        """Return what `_attend` does for one position within a block: in less time.

        The state is as it was, but for the last rows.
        """
        q, rows, count = cast(call.q, call.rows.dtype) * call.scale, call.rows, call.count
        xp, (n_sets, n_heads, _, _), width = namespace(q), q.shape, rows.shape[-1]
        before, far = xp.reshape(state.recent, (n_sets, -1, width)), None
        recent = xp.concat([before, rows], axis=1)
        m, seen_from = recent.shape[1], sizes.seen_from(count - count % sizes.block)
        if seen_from:
            pool = xp.reshape(state.far, (n_sets, n_heads, 1, -1, width))
            far = blocks.Far(pool, None, None, xp.reshape(state.bias, pool.shape[:-1]))
        near = slice(m - (count + 1 - seen_from), m)
        block = blocks.Block(slice(0, 1), near, None if far is None else 0)
        out = self._blocks(q, recent, [block], far, True)
        recent = xp.reshape(recent, (*state.recent.shape[:-2], m, width))
        return *call.placed(out), replace(state, recent=recent, counts=state.counts + 1)

    def _maker(self, scale):
        """Return the scale, and numbers that tell a fit from others."""
        if not hasattr(self, "mean_queries_"):
            return (scale,)
        of_queries = self.mean_queries_, self.query_variances_
        return scale, *marks_of(*of_queries, self.mean_keys_, self.key_variances_)

    def _rates(self, inputs):
        """Return the rate of the decay of every set, (U,), or None."""
        if self.mask is None:
            return None
        is_plain = isinstance(self.mask, DecayMask) and self.mask.weights is None
        if not (is_plain and self.causal):
            raise ValueError(
                "mask must be None or ToeplitzMask.decay(rate), and needs causal=True, got "
                f"mask={self.mask!r} and causal={self.causal!r}. Summaries of keys allow only a "
                "single exponential of the lag."
            )
        rates = exponentials_of(self.mask, inputs)[0][:, 0]
        return namespace(rates).minimum(rates, like(_FASTEST, rates))

    def _check_lengths(self, sizes, is_fitted, n_queries, n_keys):
        if n_queries == n_keys:
            return
        if not sizes.causal or n_queries > n_keys:
            raise ValueError(
                "LocalAttention needs as many queries as keys, or fewer with causal=True, got "
                f"{n_queries} queries in q and {n_keys} keys in k with causal={sizes.causal!r}."
            )
        if n_keys > sizes.units and not is_fitted:
            raise ValueError(
                f"{n_queries} queries in q for {n_keys} keys in k: the mean query is neither that "
                "of a fit nor that of the first positions, whose queries are missing. Call "
                "fit(q, k) first, or pass all queries."
            )
