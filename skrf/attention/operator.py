"""The attention operator: a feature map, and attention in time and memory linear in length."""

import copy
import math
import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.base import BaseEstimator, clone

from .._arrays import is_array_api, like, namespace, to_host
from .._sums import Sums
from .._threads import run_all
from .._validation import NestedParameters, check_integer, check_range, draw_seed, remembered
from ..exceptions import FeatureCollapseWarning
from ..features import OptimalPositiveRF, fit_to, prepared
from . import _backward, _linear
from ._backward import Gradients
from ._heads import Head, Output, for_each_unit, joined
from ._masked import masked, masked_backward
from ._shapes import (
    as_array,
    check_finite,
    check_flag,
    check_qkv,
    check_real,
    check_scale,
    unit_for,
)
from .generalized import GeneralizedMap
from .masks import as_mask

_DIAGNOSED_DRAWS = 5
_FEW_FEATURES = 2.0
_STREAMED = 1e100  # float64 holds sums of values between this and its inverse on any scale


class ApproxKernelAttention(NestedParameters, BaseEstimator):
    """Softmax attention, or generalised attention, with random features: linear in length.

    Calling it returns the estimate of ``softmax(scale * q @ k.T) @ v``. Exponents are taken out
    exactly, so positive maps need no epsilon at any scale of the inputs; the result is that of the
    quadratic product of the same features. Maps that are not positive are allowed, but unsafe:
    their denominators may be near zero or negative.

    Parameters
    ----------
    feature_map : mechanism or GeneralizedMap, default=None
        The unfitted map; None takes ``OptimalPositiveRF(256)``. The operator sets kernel and sigma
        of its own copy: a softmax kernel of sqrt(scale) times the inputs.
    causal : bool, default=False
        Whether position i attends to positions up to i only. Changing a later position changes
        earlier outputs by rounding alone.
    mask : ToeplitzMask, sparse matrix, LinearOperator or array-like of shape (L, S), default=None
        Multiplies the attention weights: entries >= 0, True keeps. With `causal` both apply.
    scale : float, default=None
        Factor of the products of queries and keys; None is 1/sqrt(d).
    block_size : int, default=None
        Rows whose features are held at a time; None is 1,024.

    Attributes
    ----------
    mechanisms_ : list of mechanisms
        After `fit`: one for every head of the keys. They share the draw, not the parameters.

    Notes
    -----
    Random numbers are drawn once for every width of the inputs and kept, so that all methods
    agree. Statistics of the data come from `fit`; without it, bidirectional calls take them from
    their own inputs, and causal calls, which must not see the future, take the member of the
    family that needs none.

    Inputs may be torch tensors, which torch then differentiates, or CuPy arrays; masks and
    `backward` take NumPy arrays only. Statistics are taken on the host: `fit` once, where copying
    queries and keys there in every bidirectional call is too slow.

    Leading axes are batch and heads. Keys and values may have fewer heads than queries: query
    head h reads key head ``h // (query heads / key heads)``.

    References
    ----------
    Choromanski et al., Rethinking attention with Performers (2021). Likhosherstov et al., Chefs'
    random tables (2022). The stabilisation is exact and ours.

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

    def __init__(self, feature_map=None, *, causal=False, mask=None, scale=None, block_size=None):
        self.feature_map = feature_map
        self.causal = causal
        self.mask = mask
        self.scale = scale
        self.block_size = block_size

    # ---------------------------------------------------------------- feature maps

    def _prototype(self, width):
        """Return the map for inputs of a width, with the operator's draw and without data.

        Maps that need data come unfitted.
        """
        feature_map = self._default_map if self.feature_map is None else self.feature_map
        scale = check_scale(self.scale, width)

        def make():
            own = prepared(
                feature_map,
                owner="attention",
                reserved=("sigma", "kernel"),
                hint="Use the operator's parameter scale, and a mechanism of skrf",
                is_deep=True,
                sigma=math.sqrt(scale),
                kernel=None if isinstance(feature_map, GeneralizedMap) else "softmax",
                seed=self._seed,
            )
            return own if needs_data(own) else own.fit_without_data(width)

        return remembered(self, f"_prototype_{width}", (feature_map, scale), make)

    def _seed(self, source):
        if isinstance(source, (int, np.integer)):
            return int(source)
        if not hasattr(self, "_drawn_seed"):
            self._drawn_seed = draw_seed(source)
        return self._drawn_seed

    def _heads(self, groups, n_key_heads):
        """Return the head of every set of keys."""
        n_sets, width = groups.k.shape[0], groups.k.shape[-1]
        prototype = self._prototype(width)
        if hasattr(self, "mechanisms_"):
            fitted = self._fitted_heads
            if self._fitted_width != width or len(fitted) != n_key_heads:
                raise ValueError(
                    f"k has {n_key_heads} heads of width {width}, but the operator was fitted to "
                    f"{len(fitted)} of width {self._fitted_width}."
                )
            if prototype is not self._fitted_prototype:
                raise ValueError(
                    "feature_map or scale has changed after fit: call fit(q, k) again, or clone "
                    "the operator to forget the statistics."
                )
            return [fitted[u % n_key_heads] for u in range(n_sets)]
        if self.causal:
            if needs_data(prototype):
                raise ValueError(
                    f"feature_map={self.feature_map!r} needs statistics, and causal attention must "
                    "not take them from its inputs: call fit(q, k) first."
                )
            return [Head(prototype)] * n_sets
        groups = groups.on_host()
        return run_all(lambda u: Head(_adapted(prototype, groups, [u])), range(n_sets))

    def fit(self, q, k, *, key_padding_mask=None):
        """Take the statistics that all later calls use: one set for every head of the keys.

        Parameters
        ----------
        q : array-like of shape (..., L, d)
            Queries.
        k : array-like of shape (..., S, d)
            Keys; the last leading axis is the heads, all others are pooled.
        key_padding_mask : array-like of bool, default=None
            True where a key is ignored.

        Returns
        -------
        self : object
            The fitted operator.
        """
        groups, n_heads = self._check(q, k, k, key_padding_mask, causal=False)
        prototype = self._prototype(groups.k.shape[-1])
        groups = groups.on_host()
        sets = np.arange(len(groups.k)).reshape(-1, n_heads)
        mechanisms = [_adapted(prototype, groups, sets[:, h]) for h in range(n_heads)]
        self._fitted_prototype, self._fitted_width = prototype, groups.k.shape[-1]
        self._fitted_heads = [Head(mechanism) for mechanism in mechanisms]
        self.mechanisms_ = mechanisms
        return self

    # ---------------------------------------------------------------- calls

    def __call__(self, q, k, v, *, key_padding_mask=None):
        """Return the attention of queries to keys.

        Parameters
        ----------
        q : array-like of shape (..., L, d)
            Queries.
        k : array-like of shape (..., S, d)
            Keys; the last leading axis (heads) may be a divisor of q's.
        v : array-like of shape (..., S, e)
            Values.
        key_padding_mask : array-like of bool, default=None
            True where a key is padding and ignored, as in torch's MultiheadAttention (the boolean
            mask of torch's scaled_dot_product_attention has it the other way round); shape (S,),
            or with the leading axes of k with or without its heads.

        Returns
        -------
        array of shape (..., L, e)
            float32 if all inputs are, else float64. A row without any key is 0. In the library
            and on the device of the inputs.

        Raises
        ------
        ValueError
            Where shapes do not fit or contents are not finite; the message names the input.
        TypeError
            Where an input is not made of real numbers, inputs are of different libraries, or
            there is a `mask` and they are not NumPy arrays.

        Warns
        -----
        FeatureCollapseWarning
            Where a typical query is carried by fewer than two features; not looked for under a
            mask, and not for maps that are not positive. With those, where the weights of a query
            sum to 0, so that its output is 0.
        """
        groups, n_heads = self._check(q, k, v, key_padding_mask)
        heads = self._heads(groups, n_heads)
        out, _, effective, n_lost = self._attend(groups, heads)
        _warn_of_lost(n_lost, groups)
        typical = math.inf if effective is None else float(np.median(effective))
        # With a single key the output is its value, whatever the features.
        if typical < _FEW_FEATURES and groups.k.shape[1] > 1:
            warnings.warn(
                f"Random features have collapsed: a typical query is carried by {typical:.2f} of "
                "them, and the output means little. Take smaller queries and keys (or scale), more "
                "features, or a feature_map that adapts, such as AdaptiveRF(asymmetric=True).",
                FeatureCollapseWarning,
                stacklevel=2,
            )
        return groups.ungroup(out)

    def _attend(self, groups, heads, states=None, is_double=False):
        """Return output, sums by set, effective features of some queries or None, and lost ones."""
        mask, size = self._mask(groups), self.block_size or _linear.FEATURE_ROWS
        out = None
        if not is_array_api(groups.q):
            out = np.empty((*groups.q.shape[:-1], groups.v.shape[-1]), groups.q.dtype)

        def attend(unit, sets):
            if states is None:
                unit.take_units()
            elif is_double:
                unit.dtype = namespace(unit.q).float64
            output = Output(None if out is None else out[sets], unit.value_unit)
            if mask is not None:
                return sets, output, None, None, masked(unit, mask, output)
            before = None if not states else _state_of(states, sets)
            if self.causal:
                sums = _linear.causal(unit, before, output, size)
            else:
                sums = _linear.absorb(unit, size)
                _linear.query(unit, sums, output, size)
            n_lost = _linear.count_lost(unit, before, output, self.causal)
            return sets, output, sums, _linear.effective_features(unit, sums), n_lost

        found = for_each_unit(groups, heads, attend)
        sets, outputs, after, effective, n_lost = zip(*found, strict=True)
        known = [part for part in effective if part is not None]
        out = joined(groups, sets, outputs) if out is None else out
        effective = np.concatenate(known) if known else None
        return out, zip(sets, after, strict=True), effective, sum(n_lost)

    def backward(self, q, k, v, grad_out, *, key_padding_mask=None):
        """Return the gradients of ``sum(grad_out * attention)``, statistics held constant.

        Parameters
        ----------
        q, k, v : array-like
            Inputs, as in a call.
        grad_out : array-like of shape (..., L, e)
            Gradient with respect to the output.
        key_padding_mask : array-like of bool, default=None
            True where a key is ignored.

        Returns
        -------
        dq, dk, dv : ndarray
            Gradients in the shapes of the inputs; float32 if all of them are, else float64.

        Raises
        ------
        TypeError
            For arrays of other libraries than NumPy.
        NotImplementedError
            For feature maps whose gradients are not known (discrete and hybrid ones).
        """
        groups, n_heads = self._check(q, k, v, key_padding_mask)
        if is_array_api(groups.q):
            raise TypeError(
                f"backward takes NumPy arrays, got {type(q)!r}. Convert them, or let torch "
                "differentiate a call."
            )
        heads = self._heads(groups, n_heads)
        gradient = as_array("grad_out", grad_out)
        check_real("grad_out", gradient)
        shape = (*groups.leading, groups.q.shape[-2], groups.v.shape[-1])
        if gradient.shape != shape:
            raise ValueError(
                f"grad_out must have the output's shape {shape}, got {gradient.shape}."
            )
        with np.errstate(over="ignore"):
            gradient = gradient.astype(groups.q.dtype)
        gradient_unit = unit_for(check_finite("grad_out", gradient))
        gradient = gradient.reshape(*groups.q.shape[:-1], -1)
        gradient = gradient if gradient_unit == 1 else gradient / gradient_unit
        arrays = tuple(np.empty_like(part) for part in (groups.q, groups.k, groups.v))
        mask, size = self._mask(groups), self.block_size or _linear.FEATURE_ROWS

        def sweep(unit, u):
            unit.take_units()
            found = Gradients(unit, [array[u] for array in arrays], gradient_unit)
            if mask is not None:
                masked_backward(unit, mask, gradient[u], found)
            elif self.causal:
                _backward.causal(unit, None, gradient[u], found, size=size)
            else:
                _backward.bidirectional(unit, gradient[u], found, size)

        for_each_unit(groups, heads, sweep)
        by_q, by_k, by_v = arrays
        return groups.ungroup(by_q), by_k.reshape(np.shape(k)), by_v.reshape(np.shape(v))

    # ---------------------------------------------------------------- streaming

    def init_state(self):
        """Return the state before the first position, for `step`.

        Returns
        -------
        AttentionState
            A state that has seen no key.

        Raises
        ------
        ValueError
            Where the operator is not causal, or has a mask.
        """
        if not self.causal or self.mask is not None:
            raise ValueError(
                f"Streaming needs causal=True and mask=None, got causal={self.causal!r} and "
                f"mask={type(self.mask).__name__}."
            )
        return AttentionState(())

    def step(self, q, k, v, state, *, key_padding_mask=None):
        """Return causal attention of the next positions, and the state after them.

        Chunks of any sizes give the one-shot result to rounding, in memory that does not grow.

        Parameters
        ----------
        q, k, v : array-like of shape (..., n, d), (..., n, d), (..., n, e)
            The next n positions.
        state : AttentionState
            From `init_state` or the step before; it is not changed.
        key_padding_mask : array-like of bool, default=None
            True where a key is ignored.

        Returns
        -------
        out : ndarray of shape (..., n, e)
            Attention of these positions to all positions so far.
        state : AttentionState
            The new state.

        Raises
        ------
        ValueError
            Where the state was made for other widths or heads, or the largest entry of v is
            neither 0 nor from 1e-100 to 1e100: its sums must serve values to come.
        """
        if not isinstance(state, AttentionState):
            raise TypeError(f"state must come from init_state() or step(), got {state!r:.60}.")
        self.init_state()
        groups, n_heads = self._check(q, k, v, key_padding_mask)
        heads = self._heads(groups, n_heads)
        _check_state(state, groups, heads)
        # Sums outlive the values of a chunk, and have no units.
        largest = check_finite("v", groups.v)
        if largest and not 1 / _STREAMED < largest < _STREAMED:
            raise ValueError(
                f"the largest entry of v is {largest:.4g}: in step it must be 0 or from "
                f"{1 / _STREAMED:g} to {_STREAMED:g}. Scale v, and the output with it."
            )
        is_double = state.is_double or unit_for(largest) != 1
        out, after, _, n_lost = self._attend(groups, heads, state.heads, is_double)
        _warn_of_lost(n_lost, groups)
        states = {}
        for sets, sums in after:
            if isinstance(sets, list):
                states.update(zip(sets, sums.groups(), strict=True))
            else:
                states[sets] = sums
        states = tuple(states[u] for u in range(len(heads)))
        state = AttentionState(states, groups.k.shape[-1], is_double)
        return groups.ungroup(out), state

    # ---------------------------------------------------------------- looking at it

    def attention_matrix(self, q, k, *, key_padding_mask=None):
        """Return the matrix that multiplies the values; quadratic, for small inputs.

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
        groups, _ = self._check(q, k, k, key_padding_mask)
        # Attention to unit vectors: column j is what value j is multiplied with.
        n_keys = groups.k.shape[-2]
        unit = np.broadcast_to(np.eye(n_keys), (*np.shape(k)[:-1], n_keys))
        unit = like(unit, groups.k)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FeatureCollapseWarning)
            return self(q, k, unit, key_padding_mask=key_padding_mask)

    def diagnose(self, q, k, v, *, key_padding_mask=None):
        """Return how far the output can be trusted, estimated without exact attention.

        The call is repeated with four other draws of the features at the same parameters; how far
        draws are apart is how far each of them is from their mean.

        Parameters
        ----------
        q, k, v : array-like
            Inputs, as in a call.
        key_padding_mask : array-like of bool, default=None
            True where a key is ignored.

        Returns
        -------
        AttentionDiagnosis
            ``relative_error``, ``effective_features`` and ``has_collapsed``.
        """
        groups, n_heads = self._check(q, k, v, key_padding_mask)
        heads = self._heads(groups, n_heads)
        out, _, effective, _ = self._attend(groups, heads)
        outputs = [to_host(out)]
        for draw in range(1, _DIAGNOSED_DRAWS):
            redrawn = {id(head): Head(_redrawn(head.mechanism, draw)) for head in heads}
            own = [redrawn[id(head)] for head in heads]
            outputs.append(to_host(self._attend(groups, own)[0]))
        mean = np.mean(outputs, axis=0, dtype=np.float64)
        variance = sum(np.sum((out - mean) ** 2) for out in outputs) / (len(outputs) - 1)
        # The square of the mean less what its own noise adds to it.
        size = np.sum(mean**2) - variance / len(outputs)
        error = math.sqrt(variance / size) if size > 0 else (math.inf if variance else 0.0)
        return AttentionDiagnosis(error, effective)

    # ---------------------------------------------------------------- checks

    def _check(self, q, k, v, key_padding_mask, causal=None):
        """Return the grouped inputs and the number of key heads."""
        check_flag("causal", self.causal)
        if self.block_size is not None:
            check_integer("block_size", self.block_size)
        causal = self.causal if causal is None else causal
        groups = check_qkv(q, k, v, key_padding_mask, causal, is_checked=False)
        leading = np.shape(k)[:-2]
        return groups, (leading[-1] if leading else 1)

    def _mask(self, groups):
        if self.mask is None:
            return None
        if is_array_api(groups.q):
            raise TypeError(
                f"mask={type(self.mask).__name__} works on NumPy arrays, got {type(groups.q)!r}. "
                "Allowed for other libraries: causal and key_padding_mask; or convert q, k and v."
            )
        return as_mask(self.mask, groups.q.shape[2], groups.k.shape[1], self.causal)


@dataclass(frozen=True)
class AttentionState:
    """State of streaming attention, made by `ApproxKernelAttention.init_state`.

    Parameters
    ----------
    heads : tuple
        What is remembered for every set of keys, in the order of the leading axes; of a fixed size.
    width : int, default=None
        Width of the keys; None before the first.
    is_double : bool, default=False
        Whether values were too large or too small for sums in float32.
    """

    heads: tuple
    width: int | None = None
    is_double: bool = False


@dataclass(frozen=True)
class AttentionDiagnosis:
    """What `ApproxKernelAttention.diagnose` returns.

    Parameters
    ----------
    relative_error : float
        Estimated root of the summed squared errors of the output over its summed squares.
    effective_features : ndarray or None
        Effective number of features that carry each of the queries looked at: 1 over the sum of
        squared shares. None for maps that are not positive, with a mask, and without any key.
    """

    relative_error: float
    effective_features: np.ndarray | None

    @property
    def has_collapsed(self):
        """Whether a typical query is carried by fewer than two features."""
        if self.effective_features is None:
            return False
        return bool(np.median(self.effective_features) < _FEW_FEATURES)


def _check_state(state, groups, heads):
    """Raise unless a state has seen nothing, or what these inputs continue."""
    if not state.heads:
        return
    is_other = is_array_api(state.heads[0].sums)
    if is_other != is_array_api(groups.q):
        made = "another library than NumPy" if is_other else "NumPy"
        raise ValueError(f"state was made by {made}; got {type(groups.q)!r}.")
    n_features, n_values = state.heads[0].sums.shape
    expected = len(state.heads), state.width, n_features, n_values - 1
    given = len(heads), groups.k.shape[-1], heads[0].keys.n_columns, groups.v.shape[-1]
    if expected != given:
        raise ValueError(
            "state was made for {} sets of keys of width {}, {} features and values of width {}; "
            "got {}, {}, {} and {}.".format(*expected, *given)
        )


def _warn_of_lost(n_lost, groups):
    """Warn of queries whose weights sum to 0, called by what the user calls."""
    if n_lost:
        warnings.warn(
            f"Some outputs are 0 because the weights of their queries sum to 0 ({n_lost} of "
            f"{math.prod(groups.q.shape[:-1])} queries): the features of feature_map have signs "
            "or zeros. Take a positive map, such as OptimalPositiveRF, or more features.",
            FeatureCollapseWarning,
            stacklevel=3,
        )


def _state_of(states, sets):
    """Return the sums before the positions of one set, or of several sets as one."""
    return Sums.stack([states[u] for u in sets]) if isinstance(sets, list) else states[sets]


def needs_data(feature_map):
    """Tell whether a map can only be fitted to data."""
    return getattr(feature_map, "needs_data", not hasattr(feature_map, "fit_without_data"))


def _adapted(prototype, groups, sets):
    """Return the prototype with the statistics of some sets of keys and all their queries."""
    width = groups.k.shape[-1]
    sets = sets[0] if len(sets) == 1 else sets  # a single one is not copied
    queries, keys = groups.q[sets].reshape(-1, width), groups.k[sets].reshape(-1, width)
    check_range("q", queries), check_range("k", keys)
    if groups.padding is not None:
        keys = keys[~groups.padding[sets].ravel()]
    if not needs_data(prototype):
        return prototype.adapted(queries, keys) if len(keys) else prototype
    return fit_to(clone(prototype), queries, keys if len(keys) else queries)


def _redrawn(mechanism, draw):
    """Return a fitted mechanism with the same parameters and another draw."""
    if not hasattr(mechanism, "redraw"):
        raise ValueError(
            f"diagnose needs a feature_map that can be drawn anew, got {mechanism!r}: take a "
            "mechanism of skrf."
        )
    return copy.copy(mechanism).redraw(mechanism.seed_ + draw)
