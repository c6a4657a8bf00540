"""The attention operator: its parameters, its maps, and the calls that a `Call` computes."""

import math
from dataclasses import replace
from typing import Any, Self

import numpy as np

from .._arrays import like, to_host
from .._estimator import EstimatorBase
from .._threads import run_all, serial_blas
from .._typing import Array, RandomState, Result, Transformer
from .._validation import check_integer, draw_seed, snapshot
from ..features import OptimalPositiveRF, prepared
from ._call import Call
from ._diagnosis import AttentionDiagnosis, spread, warn_of_result
from ._feature_maps import (
    HeadMaps,
    check_lse,
    differ_in_size,
    fitted,
    ignores_data,
    needs_data,
    redrawn_maps,
    rows_of_sets,
)
from ._gates import with_gates
from ._inputs import blocks, check_flag, check_inputs, check_scale
from ._masks import as_mask, owned
from ._state import AttentionState, state_after, sums_of_sets
from .generalized import GeneralizedMap
from .masks import DecayMask

_DIAGNOSED_DRAWS, _DIAGNOSED_QUERIES = 5, 64
_STATISTICS_ROWS = 1024  # queries and keys per set that a call takes statistics from
_SAMPLED_QUERIES = 16  # queries checked by every call, at least one per set of keys


class ApproxKernelAttention(EstimatorBase):
    """Softmax or generalised attention with random features, in time linear in the length.

    Calling it returns an estimate of ``softmax(scale * q @ k.T) @ v``. Exponents are factored out
    exactly, so positive maps need no epsilon at any scale of the inputs, and the result equals that
    of the quadratic computation with the same features. Maps that are not positive are allowed but
    unsafe: their denominators may be near zero or negative.

    Parameters
    ----------
    feature_map : transformer or GeneralizedMap, default=None
        The unfitted map; None means ``OptimalPositiveRF(256)``. The operator makes its own copy,
        with the softmax kernel and sigma = sqrt(scale).
    causal : bool, default=False
        Whether position i attends only to positions up to i. Changing a later position changes
        earlier outputs only by rounding error.
    mask : ToeplitzMask, sparse matrix or array-like of shape (L, S), default=None
        Multiplies the attention weights: entries >= 0, or booleans (True keeps). With `causal`,
        both masks apply. For one mask per query head, pass an array of shape (heads, L, S), or a
        ToeplitzMask whose weights have an axis for heads. ``ToeplitzMask.decay(rate)`` is for
        causal attention of any length and can be streamed. Arrays are copied at the first call.
    scale : float, default=None
        Multiplies the inner products of queries and keys; None means 1/sqrt(d).
    block_size : int, default=None
        Number of rows whose features are held at a time; None means 1,024, or more on a GPU.
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None keeps it.

    Attributes
    ----------
    feature_maps_ : list of transformers
        After `fit`: one fitted map per key head. All share one draw but not their parameters.

    See Also
    --------
    exact_attention : The attention that this estimates.
    compare_attention : Errors and times of several operators on given inputs.
    skrf.torch.RandomFeatureAttention : The same as a torch module.

    Notes
    -----
    Random numbers are drawn once for every input width and then kept, so all methods agree.
    Statistics of the data come from `fit`. Without it, bidirectional calls compute them from up to
    1,024 of their own queries and keys per head. Causal calls, which must not see the future, then
    use the member of the map's family that needs no statistics.

    Inputs may be CuPy arrays or torch tensors; torch can differentiate the output, also with
    respect to a mask of tensors. `fit` runs on the host; calls compute statistics on the device of
    the inputs, except for maps that need individual rows.

    Leading axes are batch and heads, and the length comes after the heads, as in torch's
    ``scaled_dot_product_attention``. Arrays of shape (batch, length, heads, width) must be
    transposed first, with ``x.swapaxes(-2, -3)``: shapes do not tell them apart, so nothing warns.
    Keys and values may have fewer heads than queries: query head h reads key head
    ``h // (query heads / key heads)``.

    References
    ----------
    Choromanski et al., Rethinking attention with Performers (2021). Likhosherstov et al., Chefs'
    random tables (2022).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import OptimalPositiveRF
    >>> from skrf.attention import ApproxKernelAttention, exact_attention
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 2, 500, 8)) / 2  # 2 heads
    >>> attention = ApproxKernelAttention(OptimalPositiveRF(512, random_state=0))
    >>> error = attention(q, k, v) - exact_attention(q, k, v)
    >>> bool(np.abs(error).max() < 0.05)
    True
    """

    _default_map = OptimalPositiveRF(256)
    _foreign_parameters = {"is_causal": "Pass causal instead."}

    def __init__(
        self,
        feature_map: Transformer | None = None,
        *,
        causal: bool = False,
        mask: Any = None,
        scale: float | None = None,
        block_size: int | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.feature_map = feature_map
        self.causal = causal
        self.mask = mask
        self.scale = scale
        self.block_size = block_size
        self.random_state = random_state

    # ---------------------------------------------------------------- feature maps

    def fit(self, q: Array, k: Array, *, key_padding_mask: Array | None = None) -> Self:
        """Compute the statistics that all later calls use, one set per key head.

        Parameters
        ----------
        q : array-like of shape (..., L, d)
            Queries.
        k : array-like of shape (..., S, d)
            Keys; the last leading axis is the heads, and all others are pooled.
        key_padding_mask : array-like of bool, default=None
            True where a key is ignored.

        Returns
        -------
        self : object
            The fitted operator.
        """
        return self._fit(q, k, key_padding_mask)

    def partial_fit(self, q: Array, k: Array, *, key_padding_mask: Array | None = None) -> Self:
        """Update the statistics with more queries and keys.

        Parameters
        ----------
        q, k : array-like of shape (..., L, d), (..., S, d)
            Queries and keys, as in `fit`.
        key_padding_mask : array-like of bool, default=None
            True where a key is ignored.

        Returns
        -------
        self : object
            The fitted operator.

        Raises
        ------
        AttributeError
            If the map has no `partial_fit`: `AdaptiveRF`, for example, needs individual rows.
        """
        return self._fit(q, k, key_padding_mask, vars(self).get("feature_maps_"))

    @serial_blas()
    def _fit(self, q, k, key_padding_mask, before=None):
        check_flag("causal", self.causal)
        inputs = check_inputs(q, k, k, key_padding_mask, is_checked=False)
        _, prototype, _ = self._draw(inputs.k.shape[-1])
        shape = inputs.fit_shape
        if before is not None:
            if shape != self._fitted_shape:
                raise ValueError(
                    f"partial_fit needs width and heads of fit, {self._fitted_shape}, got {shape}."
                )
            self._check_as_fitted(shape[0])
        host, n_heads = inputs.on_host(), inputs.n_key_heads
        before = before or [None] * n_heads
        transformers = [
            fitted(prototype, *rows_of_sets(host, slice(head, None, n_heads)), before[head])
            for head in range(n_heads)
        ]
        return self._keep(shape, transformers)

    def _keep(self, shape, transformers):
        """Store the results of a fit, and return the operator."""
        self._fitted_shape = shape
        self._fitted_parameters, *_ = self._draw(shape[0])
        self.feature_maps_ = transformers
        self._fitted_maps = [HeadMaps(transformer) for transformer in transformers]
        return self

    def redraw(self, random_state: RandomState = None) -> Self:
        """Redraw the random numbers, keeping the statistics.

        Parameters
        ----------
        random_state : int, RandomState instance or None, default=None
            Source of the new seed, which is used until the parameter `random_state` changes.

        Returns
        -------
        self : object
            The operator with new random numbers.
        """
        seed = draw_seed(random_state)
        self._redrawn = snapshot(self.random_state), seed
        if hasattr(self, "feature_maps_"):
            self._fitted_maps = redrawn_maps(self._fitted_maps, lambda _: seed)
            self.feature_maps_ = [head.transformer for head in self._fitted_maps]
        else:
            self._drawn = {}
        return self

    def _draw(self, width):
        """Return what was drawn for a width; kept until parameters change.

        These are the parameters, the map without data, which is unfitted if it needs some, and a
        list of its `HeadMaps`.
        """
        scale = check_scale(self.scale, width)
        feature_map = self._default_map if self.feature_map is None else self.feature_map
        parameters = snapshot((feature_map, scale, self.random_state))
        drawn = vars(self).setdefault("_drawn", {})  # copies of the operator share it
        if width not in drawn or drawn[width][0] != parameters:
            prototype = prepared(
                feature_map,
                owner="attention",
                reserved=("sigma", "kernel"),
                hint="Use the operator's parameter scale, and a feature map of skrf",
                is_deep=True,
                sigma=math.sqrt(scale),
                kernel=None if isinstance(feature_map, GeneralizedMap) else "softmax",
                seed=self._seed,
            )
            prototype = prototype if needs_data(prototype) else prototype.fit_without_data(width)
            drawn[width] = parameters, prototype, [HeadMaps(prototype)]
        return drawn[width]

    def _seed(self, source):
        """Return the seed in effect, given the random_state of the map."""
        replaced, seed = vars(self).get("_redrawn", (None, None))
        if seed is not None and replaced == snapshot(self.random_state):
            return seed
        source = source if self.random_state is None else self.random_state
        if isinstance(source, (int, np.integer)):
            return int(source)
        seeded_from, seed = vars(self).get("_seeded", (None, None))
        if seed is None or seeded_from != snapshot(source):
            self._seeded = snapshot(source), draw_seed(source)
        return self._seeded[1]

    def _check_as_fitted(self, width):
        """Raise if keys have another width than in `fit`, or parameters have changed since."""
        if width != self._fitted_shape[0]:
            raise ValueError(
                f"Keys have width {width}, but the operator was fitted to {self._fitted_shape[0]}."
            )
        parameters, *_ = self._draw(width)
        # Models saved by version 0.3.0 do not know what they were fitted with.
        if parameters != vars(self).get("_fitted_parameters", parameters):
            raise ValueError(
                "feature_map, scale or random_state has changed after fit: call fit(q, k) "
                "again, or clone the operator to forget the statistics."
            )

    def _maps_without_data(self, width):
        """Return the `HeadMaps` of the fit, or those that need none; None if there are none."""
        if hasattr(self, "feature_maps_"):
            self._check_as_fitted(width)
            return self._fitted_maps
        _, prototype, maps = self._draw(width)
        if needs_data(prototype) or not (self.causal or ignores_data(prototype)):
            return None
        return maps

    def _maps(self, inputs):
        """Return the `HeadMaps` of sets of keys; if they are fewer, they serve the next in turn."""
        shape = inputs.fit_shape
        if hasattr(self, "feature_maps_") and shape != self._fitted_shape:
            raise ValueError(
                "q has {2} heads and k {1} of width {0}, but the operator was fitted to {5} "
                "heads of q and {4} of k of width {3}.".format(*shape, *self._fitted_shape)
            )
        maps = self._maps_without_data(shape[0])
        if maps is not None:
            return maps
        if self.causal:
            raise ValueError(
                f"feature_map={self.feature_map!r} needs statistics, and causal attention must "
                "not take them from its inputs: call fit(q, k) first."
            )
        _, prototype, _ = self._draw(shape[0])

        def maps_of(sets):
            return HeadMaps(fitted(prototype, *rows_of_sets(inputs, sets, _STATISTICS_ROWS)))

        sets = blocks(inputs.k.shape[0], 1)
        if not inputs.is_numpy:  # on a device each thread queues work in an order of its own
            return [maps_of(own) for own in sets]
        return run_all(maps_of, sets, is_short=inputs.is_short)

    # ---------------------------------------------------------------- calls

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        key_padding_mask: Array | None = None,
        log_gates: Array | None = None,
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
            True where a key is padding and ignored, as in torch's MultiheadAttention (in the
            boolean mask of torch's scaled_dot_product_attention, True has the opposite meaning).
            The shape is (S,), or has the leading axes of k, with or without its heads.
        log_gates : array-like of shape (S,), (heads, S) or (..., S), default=None
            For causal attention: logarithms, at most 0, of the share of the past that each position
            keeps; -inf forgets it, as between two texts. For query i, the weight of key j is
            multiplied by the exponential of the sum of the log gates at positions j + 1 to i that
            are not padding.
        return_lse : bool, default=False
            Whether to return the logarithm of the sum of the weights of every query as well, for
            `merge_attention`. Features must not be negative.

        Returns
        -------
        out : array of shape (..., L, e)
            Outputs, in the library and on the device of the inputs. The dtype is float64 if any
            input is float64, float16 or bfloat16 if all inputs are, and float32 otherwise; sums are
            in float32 or better. Rows without any key are 0.
        lse : array of shape (..., L)
            With `return_lse`: the logarithm of the estimated sum of weights, -inf without a key. It
            is in float64 if the outputs are, and in float32 otherwise. Masks count as given, gates
            from the first position on.

        Raises
        ------
        ValueError
            If shapes do not fit or contents are not finite; the message names the input. With
            `return_lse`, also if features may be negative.
        TypeError
            If an input is not made of real numbers, or if the inputs belong to different libraries.

        Warns
        -----
        FeatureCollapseWarning
            If, at a few queries, the mean of the values is closer to softmax attention than the
            output is; this is not checked under a mask. With maps that are not positive, also if
            the weights of a query sum to 0, so that its output is 0; and, with a `GeneralizedMap`
            or a mask, if weights of both signs nearly cancel, so that outputs exceed all values.
        """
        call = self._checked(q, k, v, key_padding_mask, log_gates, return_lse)
        inputs, n_sampled = call.inputs, 0
        if self._is_softmax and inputs.log_gates is None:
            n_sampled = max(1, _SAMPLED_QUERIES // inputs.k.shape[0])
        result = call.attend(n_sampled=n_sampled)
        may_cancel = not (n_sampled or call.maps[0].is_positive)
        warn_of_result(result, inputs, n_sampled > 0, may_cancel)
        return inputs.results(result.out, result.lse)

    # ---------------------------------------------------------------- streaming

    def init_state(self) -> AttentionState:
        """Return the state before the first position, for `step`.

        Returns
        -------
        AttentionState
            A state that has seen no key.

        Raises
        ------
        ValueError
            If the operator is not causal, or has a mask other than a decay.
        """
        if not self.causal or not (self.mask is None or isinstance(self.mask, DecayMask)):
            raise ValueError(
                "Streaming needs causal=True, and mask=None or ToeplitzMask.decay(rate), got "
                f"causal={self.causal!r} and mask={type(self.mask).__name__}. Other masks need all "
                "earlier keys: only exponentials of the lag can be part of a state."
            )
        return AttentionState()

    def step(
        self,
        q: Array,
        k: Array,
        v: Array,
        state: AttentionState,
        *,
        key_padding_mask: Array | None = None,
        log_gates: Array | None = None,
        return_lse: bool = False,
    ) -> tuple:
        """Return causal attention of the next positions, and the state after them.

        However a sequence is split into chunks, the result is that of a single call, up to
        rounding, and memory does not grow with the length.

        Parameters
        ----------
        q, k, v : array-like of shape (..., n, d), (..., n, d), (..., n, e)
            The next n positions.
        state : AttentionState
            From `init_state` or the previous step; it is not changed.
        key_padding_mask : array-like of bool, default=None
            True where a key is ignored.
        log_gates : array-like of shape (n,), (heads, n) or (..., n), default=None
            As in a call.
        return_lse : bool, default=False
            Whether to return the logarithms of sums of weights as well, as in a call.

        Returns
        -------
        out : ndarray of shape (..., n, e)
            Attention of these positions to all positions so far.
        lse : array of shape (..., n)
            With `return_lse`: as in a call, gates counting from the first position of the stream.
        state : AttentionState
            The new state.

        Raises
        ------
        ValueError
            If the state was made for other widths or heads.
        """
        if not isinstance(state, AttentionState):
            raise TypeError(f"state must come from init_state() or step(), got {state!r:.60}.")
        self.init_state()
        options = key_padding_mask, log_gates, return_lse
        call = self._checked(q, k, v, *options, is_step=True)
        inputs, maps = call.inputs, call.maps
        width = inputs.k.shape[-1]
        if differ_in_size(maps):
            raise ValueError(
                "A state needs as many features for every head, got "
                f"{[head.n_features for head in maps]} from feature_map={self.feature_map!r}: "
                "fit to heads of more distinct rows."
            )
        # Numbers that tell these maps from others.
        maker = tuple(number for head in maps for number in head.mark(width))
        before = sums_of_sets(state, inputs, maps[0].n_features, maker)
        is_double = state.is_double or inputs.q.shape[-2] == 1  # which costs less than to ask
        result = call.attend(before=before, goes_on=True, is_double=is_double)
        warn_of_result(result, inputs)
        state = state_after(state, result, inputs, maker)
        results = inputs.results(result.out, result.lse)
        return (*results, state) if return_lse else (results, state)

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
        ndarray of shape (..., L, S)
            Rows sum to 1, or to 0 where no key is left.
        """
        call = self._checked(q, k, k, key_padding_mask)
        # Attention to unit vectors: column j holds the factors of value j.
        inputs, n_keys = call.inputs, call.inputs.k.shape[-2]
        unit = np.broadcast_to(np.eye(n_keys), (*inputs.k.shape[:-1], n_keys))
        inputs = replace(inputs, v=like(unit, inputs.k), dtype=inputs.q.dtype)
        return inputs.results(replace(call, inputs=inputs).attend().out)

    def diagnose(
        self, q: Array, k: Array, v: Array, *, key_padding_mask: Array | None = None
    ) -> AttentionDiagnosis:
        """Return how accurate the output is, and whether something simpler is better.

        The error of the whole output is estimated from the spread of five draws. At a sample of 64
        queries per set of keys, the output, the mean of the values and an exact window of the same
        cost are compared with exact attention; a decay weighs the keys of all of them.

        Parameters
        ----------
        q, k, v : array-like
            Inputs, as in a call.
        key_padding_mask : array-like of bool, default=None
            True where a key is ignored.

        Returns
        -------
        AttentionDiagnosis
            ``relative_error``, ``effective_features``, ``sampled_errors`` and ``has_collapsed``.
        """
        call = self._checked(q, k, v, key_padding_mask)
        # A feature costs as much as an exact key, and once more for the heads that share keys.
        window = round(call.maps[0].n_features * (1 + 1 / call.inputs.q.shape[1]))
        n_sampled = _DIAGNOSED_QUERIES if self._is_softmax else 0
        result = call.attend(n_sampled=n_sampled, window=window)
        outputs = [result.out]
        for n in range(1, _DIAGNOSED_DRAWS):
            maps = redrawn_maps(call.maps, lambda transformer, n=n: transformer._seed + n)
            outputs.append(replace(call, maps=maps).attend().out)
        error, effective = spread([to_host(out) for out in outputs]), None
        if self.mask is None and call.maps[0].is_positive:
            effective = call.effective_features()
        if not n_sampled:
            return AttentionDiagnosis(error, effective)
        *squares, size = result.distances[0]
        names = "attention", "mean", "window"
        errors = [math.sqrt(square / size) if size else 0.0 for square in squares]
        return AttentionDiagnosis(error, effective, dict(zip(names, errors, strict=True)))

    @property
    def _is_softmax(self):
        """Whether the output estimates softmax attention, without a mask or with a decay."""
        has_no_other_mask = self.mask is None or isinstance(self.mask, DecayMask)
        return has_no_other_mask and not isinstance(self.feature_map, GeneralizedMap)

    def _mask_in_use(self):
        """Return the mask as it was when it was first used, whatever its owner does to it later."""
        original, mask = vars(self).get("_used_mask", (None, None))
        if original is self.mask:
            return mask
        mask = owned(self.mask)
        if mask is not self.mask:
            self._used_mask = self.mask, mask
        return mask

    def _checked(self, q, k, v, padding, log_gates=None, return_lse=False, is_step=False):
        """Return the `Call` of some inputs; their contents are checked later, on threads."""
        if self.block_size is not None:
            check_integer("block_size", self.block_size)
        inputs = check_inputs(q, k, v, padding, self.causal, is_step=is_step, is_checked=False)
        is_decay = isinstance(self.mask, DecayMask)
        if log_gates is not None or is_decay:
            inputs = with_gates(inputs, log_gates, self.mask, self.causal)
        maps, mask = self._maps(inputs), None
        check_flag("return_lse", return_lse)
        if return_lse:
            check_lse(maps)
        if self.mask is not None and not is_decay:
            sizes = inputs.q.shape[-2], inputs.k.shape[-2], inputs.n_query_heads
            mask = as_mask(self._mask_in_use(), *sizes, self.causal, inputs.q)
        scale, n_rows = check_scale(self.scale, inputs.k.shape[-1]), inputs.rows_at_once()
        return Call(inputs, maps, mask, self.causal, scale, self.block_size or n_rows, return_lse)
