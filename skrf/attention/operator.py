"""The attention operator: a feature map, and attention in time and memory linear in length."""

import inspect
import math
import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state

from .._arrays import is_foreign, like, to_host
from .._sums import FeatureSums
from .._threads import run_all
from ..exceptions import FeatureCollapseWarning
from ..features import BaseRandomFeatures, OptimalPositiveRF
from . import _foreign, _linear
from ._masked import masked_attention, masked_attention_backward
from ._shapes import check_block_size, check_flag, check_qkv, check_scale
from .generalized import GeneralizedMap
from .masks import as_mask

_DIAGNOSED_DRAWS = 5
_FEW_FEATURES = 2.0


class ApproxKernelAttention(BaseEstimator):
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

    def __init__(self, feature_map=None, *, causal=False, mask=None, scale=None, block_size=None):
        self.feature_map = feature_map
        self.causal = causal
        self.mask = mask
        self.scale = scale
        self.block_size = block_size

    # ---------------------------------------------------------------- feature maps

    def _prototype(self, width):
        """Return the map for inputs of a width, with the operator's draw and without data."""
        feature_map = OptimalPositiveRF(256) if self.feature_map is None else self.feature_map
        scale = check_scale(self.scale, width)
        _check_map(feature_map)
        given = type(feature_map), feature_map.get_params(deep=False)
        kept = vars(self).setdefault("_prototypes", {})
        key = width, scale
        # By its parameters: they may be changed in place, and an id may belong to another one.
        if key not in kept or kept[key][0] != given:
            own = _own_copy(feature_map, scale).set_params(random_state=self._seed(feature_map))
            kept[key] = given, own._fit_without_data(width)
        return kept[key][1]

    def _seed(self, feature_map):
        source = feature_map.get_params().get("random_state")
        if isinstance(source, (int, np.integer)):
            return int(source)
        if not hasattr(self, "_drawn_seed"):
            self._drawn_seed = int(check_random_state(source).randint(np.iinfo(np.int32).max))
        return self._drawn_seed

    def _heads(self, groups, n_key_heads):
        """Return the head of every set of keys."""
        n_sets, width = groups.k.shape[0], groups.k.shape[-1]
        if hasattr(self, "mechanisms_"):
            fitted = self.mechanisms_
            if fitted[0].n_features_in_ != width or len(fitted) != n_key_heads:
                raise ValueError(
                    f"k has {n_key_heads} heads of width {width}, but the operator was fitted to "
                    f"{len(fitted)} of width {fitted[0].n_features_in_}."
                )
            if self._prototype(width) is not self._fitted_prototype:
                raise ValueError(
                    "feature_map or scale has changed after fit: call fit(q, k) again, or clone "
                    "the operator to forget the statistics."
                )
            return [_linear.Head(fitted[u % n_key_heads]) for u in range(n_sets)]
        prototype = self._prototype(width)
        if self.causal:
            if prototype._needs_data:
                raise ValueError(
                    f"feature_map={self.feature_map!r} needs statistics, and causal attention must "
                    "not take them from its inputs: call fit(q, k) first."
                )
            return [_linear.Head(prototype)] * n_sets
        groups, heads = groups.on_host(), [None] * n_sets

        def adapt(u):
            heads[u] = _linear.Head(_adapted(prototype, groups, [u]))

        run_all(adapt, range(n_sets))
        return heads

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
        groups, n_heads = self._check(q, k, None, key_padding_mask, causal=False)
        prototype = self._prototype(groups.k.shape[-1])
        groups = groups.on_host()
        sets = np.arange(len(groups.k)).reshape(-1, n_heads)
        self._fitted_prototype = prototype
        self.mechanisms_ = [_adapted(prototype, groups, sets[:, h]) for h in range(n_heads)]
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
            mask, and not for maps that are not positive.
        """
        groups, n_heads = self._check(q, k, v, key_padding_mask)
        heads = self._heads(groups, n_heads)
        out, effective = self._attend(groups, heads)
        # With a single key the output is its value, whatever the features.
        if effective is not None and groups.k.shape[1] > 1:
            _warn_of_collapse(float(np.median(effective)))
        return groups.ungroup(out)

    def _attend(self, groups, heads):
        """Return the output, and effective numbers of features of some queries (None: unknown)."""
        mask = self._mask(groups)
        if is_foreign(groups.q):
            out, _, effective = _foreign.attend(groups, heads, self.causal, self._block_rows)
            return out, effective
        out = np.empty((*groups.q.shape[:-1], groups.v.shape[-1]), groups.q.dtype)
        effective = [None] * len(heads)

        def attend(u):
            head, unit = heads[u], _unit(groups, u)
            queries, keys, values, padding = unit
            if mask is not None:
                for g in range(len(queries)):
                    out[u, g] = _masked(head, queries[g], keys, values, padding, mask)[0]
                return
            state = head.empty_state(values)
            if self.causal:
                state = _linear.causal(head, state, *unit, out[u], self._block_rows)
            else:
                state = _linear.absorb(head, state, keys, values, padding, self._block_rows)
                _linear.query(head, state, queries, out[u], self._block_rows)
            effective[u] = _effective_features(head, state, queries)

        run_all(attend, range(len(heads)))
        known = [part.ravel() for part in effective if part is not None]
        return out, (np.concatenate(known) if known else None)

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
        if is_foreign(groups.q):
            raise TypeError(
                f"backward takes NumPy arrays, got {type(q)!r}. Convert them, or let torch "
                "differentiate a call."
            )
        heads = self._heads(groups, n_heads)
        shape = (*groups.q.shape[:-1], groups.v.shape[-1])
        gradient = np.asarray(grad_out, dtype=groups.q.dtype)
        if gradient.shape != (*groups.leading, *shape[-2:]):
            raise ValueError(
                f"grad_out must have the output's shape {(*groups.leading, *shape[-2:])}, got "
                f"{gradient.shape}."
            )
        gradient = gradient.reshape(shape)
        by_q, by_k, by_v = (np.empty_like(part) for part in (groups.q, groups.k, groups.v))
        mask = self._mask(groups)

        def sweep(u):
            head, unit = heads[u], _unit(groups, u)
            if mask is not None:
                by_q[u], by_k[u], by_v[u] = _masked_backward(head, *unit, mask, gradient[u])
            elif self.causal:
                state = head.empty_state(unit[2])
                by_q[u], by_k[u], by_v[u], _ = _linear.causal_backward(
                    head, state, *unit, gradient[u], block_size=self._block_rows
                )
            else:
                by_q[u], by_k[u], by_v[u] = _linear.backward(
                    head, *unit, gradient[u], self._block_rows
                )

        run_all(sweep, range(len(heads)))
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
        """
        if not isinstance(state, AttentionState):
            raise TypeError(f"state must come from init_state() or step(), got {state!r:.60}.")
        self.init_state()
        groups, n_heads = self._check(q, k, v, key_padding_mask)
        heads = self._heads(groups, n_heads)
        _check_state(state, groups, heads)
        if is_foreign(groups.q):
            out, states, _ = _foreign.attend(
                groups, heads, True, self._block_rows, state.heads or None
            )
            return groups.ungroup(out), AttentionState(tuple(states))
        states = list(state.heads) or [head.empty_state(groups.v[0]) for head in heads]
        out = np.empty((*groups.q.shape[:-1], groups.v.shape[-1]), groups.q.dtype)

        def advance(u):
            states[u] = _linear.causal(
                heads[u], states[u], *_unit(groups, u), out[u], self._block_rows
            )

        run_all(advance, range(len(heads)))
        return groups.ungroup(out), AttentionState(tuple(states))

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
        self._check(q, k, None, key_padding_mask)
        # Attention to unit vectors: column j is what value j is multiplied with.
        n_keys = np.shape(k)[-2]
        unit = np.broadcast_to(np.eye(n_keys), (*np.shape(k)[:-1], n_keys))
        if is_foreign(k):
            unit = like(unit.copy(), k)
        elif np.asarray(q).dtype == np.float32 and np.asarray(k).dtype == np.float32:
            unit = unit.astype(np.float32)
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
        out, effective = self._attend(groups, heads)
        outputs = [to_host(out)]
        for draw in range(1, _DIAGNOSED_DRAWS):
            redrawn = [_linear.Head(_redrawn(head.mechanism, draw)) for head in heads]
            outputs.append(to_host(self._attend(groups, redrawn)[0]))
        mean = np.mean(outputs, axis=0, dtype=np.float64)
        variance = sum(np.sum((out - mean) ** 2) for out in outputs) / (len(outputs) - 1)
        # The square of the mean less what its own noise adds to it.
        size = np.sum(mean**2) - variance / len(outputs)
        error = math.sqrt(variance / size) if size > 0 else (math.inf if variance else 0.0)
        return AttentionDiagnosis(error, effective)

    # ---------------------------------------------------------------- checks

    @property
    def _block_rows(self):
        return _linear._FEATURE_ROWS if self.block_size is None else self.block_size

    def _check(self, q, k, v, key_padding_mask, causal=None):
        """Return the grouped inputs and the number of key heads; v None stands for no values."""
        check_flag("causal", self.causal)
        if self.block_size is not None:
            check_block_size(self.block_size)
        groups = check_qkv(
            q, k, k if v is None else v, key_padding_mask, self.causal if causal is None else causal
        )
        leading = np.shape(k)[:-2]
        return groups, (leading[-1] if leading else 1)

    def _mask(self, groups):
        if self.mask is None:
            return None
        if is_foreign(groups.q):
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
    """

    heads: tuple


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


def _check_map(feature_map):
    if isinstance(feature_map, type) or not isinstance(
        feature_map, (BaseRandomFeatures, GeneralizedMap)
    ):
        raise TypeError(
            f"feature_map must be an instance of a mechanism of skrf or of GeneralizedMap, got "
            f"{feature_map!r}."
        )


def _own_copy(feature_map, scale):
    """Return an unfitted copy of the map for softmax attention of a scale."""
    own = clone(feature_map)
    params = own.get_params()
    defaults = inspect.signature(type(own)).parameters
    for name, others in (("sigma", ()), ("kernel", ("softmax",))):
        if name in params and params[name] not in (defaults[name].default, *others):
            raise ValueError(
                f"feature_map={feature_map!r} has {name}={params[name]!r}, but attention sets it: "
                "leave the default, and use the operator's parameter scale."
            )
    own.set_params(sigma=math.sqrt(scale))
    return own.set_params(kernel="softmax") if "kernel" in params else own


def _check_state(state, groups, heads):
    """Raise unless a state has seen nothing, or what these inputs continue."""
    if not state.heads:
        return
    is_other = isinstance(state.heads[0], FeatureSums)
    if is_other != is_foreign(groups.q):
        made = "another library than NumPy" if is_other else "NumPy"
        raise ValueError(f"state was made by {made}; got {type(groups.q)!r}.")
    expected = (len(state.heads), *state.heads[0].sums.shape)
    given = (len(heads), heads[0].mechanism.n_components_, groups.v.shape[-1] + 1)
    if expected != given:
        raise ValueError(
            f"state was made for {expected[0]} sets of keys, {expected[1]} features and values "
            f"of width {expected[2] - 1}; got {given[0]}, {given[1]} and {given[2] - 1}."
        )


def _unit(groups, u):
    padding = None if groups.padding is None else groups.padding[u]
    return groups.q[u], groups.k[u], groups.v[u], padding


def _adapted(prototype, groups, sets):
    """Return the prototype with the statistics of some sets of keys and all their queries."""
    width = groups.k.shape[-1]
    sets = sets[0] if len(sets) == 1 else sets  # a single one is not copied
    queries, keys = groups.q[sets].reshape(-1, width), groups.k[sets].reshape(-1, width)
    if groups.padding is not None:
        keys = keys[~groups.padding[sets].ravel()]
    if not len(keys):
        return prototype
    return prototype._adapted(queries, keys)


def _redrawn(mechanism, draw):
    """Return a fitted mechanism with the same parameters and another draw."""
    other = clone(mechanism)
    vars(other).update(vars(mechanism))
    return other.redraw(mechanism._seed + draw)


def _effective_features(head, state, queries):
    """Return the effective number of features of some queries; None for maps with signs."""
    if not head.is_log or not np.isfinite(state.top).any():
        return None
    thinned = queries[:, :: -(-queries.shape[1] // _linear._CHECKED_QUERIES)]
    shares = head.lift(head.query_features(thinned), state.top) * state.sums[:, -1]
    return shares.sum(axis=-1) ** 2 / (shares**2).sum(axis=-1)


def _warn_of_collapse(typical):
    if typical < _FEW_FEATURES:
        warnings.warn(
            f"Random features have collapsed: a typical query is carried by {typical:.2f} of them, "
            "and the output means little. Take smaller queries and keys (or scale), more features, "
            "or a feature_map that adapts, such as AdaptiveRF(asymmetric=True).",
            FeatureCollapseWarning,
            stacklevel=3,
        )


def _masked(head, queries, keys, values, padding, mask):
    """Return the output of one masked head and what its gradient needs."""
    wide = [np.asarray(part, dtype=np.float64) for part in (queries, keys, values)]
    query_features = head.features(wide[0])
    key_features = head.features(wide[1], padding, keys=True)
    if padding is not None and not head.is_log:
        key_features[padding] = 0.0
    out, saved = masked_attention(query_features, key_features, wide[2], mask, head.is_log)
    return out, (wide, query_features, key_features, saved)


def _masked_backward(head, queries, keys, values, padding, mask, gradient):
    by_q = np.empty_like(queries)
    by_k, by_v = 0.0, 0.0
    for g, rows in enumerate(queries):
        out, (wide, query_features, key_features, saved) = _masked(
            head, rows, keys, values, padding, mask
        )
        by_queries, by_keys, by_values = masked_attention_backward(
            query_features, key_features, wide[2], mask, head.is_log, out, saved,
            gradient[g].astype(np.float64),
        )  # fmt: skip
        if padding is not None:
            by_keys[padding] = 0.0
        by_q[g] = head.pull_back(wide[0], by_queries)
        by_k = by_k + head.pull_back(wide[1], by_keys, keys=True)
        by_v = by_v + by_values
    return by_q, by_k, by_v
