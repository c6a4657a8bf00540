"""The attention operator: a feature map, and attention in time and memory linear in length."""

import math
import warnings
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, Self

import numpy as np

from .._arrays import is_array_api, like, namespace, to_host
from .._estimator import EstimatorBase
from .._threads import run_all, serial_blas
from .._typing import Array, RandomState, Transformer
from .._validation import NestedParameters, check_integer, draw_seed, remembered
from ..exceptions import FeatureCollapseWarning
from ..features import OptimalPositiveRF, prepared
from . import _backward, _linear, _position
from ._backward import Gradients
from ._diagnosis import TOLERATED, AttentionDiagnosis, spread, warn_of_lost
from ._heads import Output, Unit, are_short, for_each_unit, joined
from ._masked import masked, masked_backward
from ._near import NearAttention
from ._plan import (
    Plan,
    adapted,
    cost_of,
    in_groups,
    is_none,
    needs_data,
    pooled,
    redrawn_sets,
    rows_of_sets,
    seed_of,
    share_of,
)
from ._sampled import errors_of, exact_weights, free, real_queries, sampled
from ._shapes import (
    as_array,
    check_finite,
    check_flag,
    check_gradient,
    check_gradients,
    check_qkv,
    check_scale,
    unit_for,
)
from ._stream import AttentionState, arranged, check_state, stream_shape
from .generalized import GeneralizedMap
from .masks import as_masks
from .near import NearField

_NEAR = {False: NearField(32, anchors=64), True: NearField(128, anchors=16)}  # by causal
_FAR_MAP, _ONLY_MAP = OptimalPositiveRF(64), OptimalPositiveRF(256)  # with and without near keys
_DIAGNOSED_DRAWS, _DIAGNOSED_QUERIES = 5, 64
_FITTED_QUERIES = 256  # queries per set of keys that `shrink_` is fitted to
_STATISTICS_ROWS = 1024  # queries and keys per set that a call takes statistics from
_RANDOM_VALUES = 16
_CLEARLY = {True: 0.8, False: 0.5}  # largest ratio of squared errors, with and without values
_JUDGED_QUERIES = 16  # queries checked by every call, at least one per set of keys
_STREAMED = 1e100  # sums of values between the inverse of this and this fit float64 on any scale


class ApproxKernelAttention(NestedParameters, EstimatorBase):
    """Softmax attention, or generalised attention, with random features: linear in length.

    Calling it returns an estimate of ``softmax(scale * q @ k.T) @ v``. Exponents are factored out
    exactly, so positive maps need no epsilon at any scale of the inputs; the result equals the
    quadratic product of the same features. Maps that are not positive are allowed but unsafe:
    their denominators may be near zero or negative.

    Parameters
    ----------
    feature_map : mechanism, GeneralizedMap or "none", default=None
        The unfitted map. None uses ``OptimalPositiveRF(64)`` with a near field, or 256 components
        where a near field is impossible; "none" is the near field alone. The operator sets kernel
        and sigma of its own copy: a softmax kernel of sqrt(scale) times the inputs.
    causal : bool, default=False
        Whether position i attends only to positions up to i. Changing a later position changes
        earlier outputs only by rounding.
    mask : ToeplitzMask, sparse matrix, LinearOperator or array-like of shape (L, S), default=None
        Multiplies the attention weights: entries >= 0, True keeps. With `causal` both apply. For
        one mask per query head, pass a list or an array of shape (heads, L, S).
    scale : float, default=None
        Factor of the products of queries and keys; None is 1/sqrt(d).
    near : NearField, "auto" or None, default="auto"
        Keys that are attended to exactly; features approximate the others. With
        ``feature_map=None``, "auto" is ``NearField(32, anchors=64)``, or
        ``NearField(128, anchors=16)`` if `causal`, and None under a `mask` or if the numbers of
        keys and queries differ. With a `feature_map`, "auto" is None: features alone.
    n_groups : int or "auto", default="auto"
        Groups that the features are divided into; the output is the mean of the groups' outputs.
        "auto" is 2 with a near field, 4 without one if `feature_map` is None, and 1 for other maps
        alone, with `causal` and with a `mask`.
    block_size : int, default=None
        Rows whose features are held at once; None is 1,024, or 2,048 with a near field, and more on
        a GPU.
    random_state : int, RandomState instance or None, default=None
        Replaces the map's own random_state; None keeps it.

    Attributes
    ----------
    mechanisms_ : list of mechanisms
        After `fit`: one per key head, or per query head with a near field. They share the draw but
        not the parameters.
    shrink_ : ndarray of shape (n_query_heads,)
        After `fit`: weight of the far keys' features relative to exact keys, from 0 to 1.

    See Also
    --------
    exact_attention : The attention that it estimates.
    recommend_attention : The best operator for given queries, keys and values.
    NearField : Exact keys beside the features.
    skrf.torch.RandomFeatureAttention : The same as a torch module.

    Notes
    -----
    Random numbers are drawn once for every width of the inputs and kept, so that all methods
    agree. Statistics of the data come from `fit`. Without it, bidirectional calls take them from
    1,024 of their own queries and keys per head. Causal calls, which must not see the future, use
    the member of the family that needs none.

    Inputs may be CuPy arrays or torch tensors; torch can differentiate the latter, also with
    respect to a mask of tensors. LinearOperators and `backward` require NumPy arrays. Causal
    attention and near fields have no second derivatives in torch. `fit` runs on the host; calls
    compute statistics where the inputs are, except for maps that look at single rows.

    Leading axes are batch and heads, and the length comes after the heads, as in torch's
    ``scaled_dot_product_attention``. Arrays of shape (batch, length, heads, width) must be
    transposed first, with ``x.swapaxes(-2, -3)``: shapes do not tell them apart, so nothing warns.
    Keys and values may have fewer heads than queries: query head h reads key head
    ``h // (query heads / key heads)``.

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

    _foreign_parameters = {"is_causal": "Pass causal instead."}

    def __init__(
        self,
        feature_map: Transformer | Literal["none"] | None = None,
        *,
        causal: bool = False,
        mask: Any = None,
        scale: float | None = None,
        near: NearField | Literal["auto"] | None = "auto",
        n_groups: int | Literal["auto"] = "auto",
        block_size: int | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.feature_map = feature_map
        self.causal = causal
        self.mask = mask
        self.scale = scale
        self.near = near
        self.n_groups = n_groups
        self.block_size = block_size
        self.random_state = random_state

    # ---------------------------------------------------------------- exact and approximate parts

    def _field(self, n_queries, n_keys):
        """Return the near field of a call, or None."""
        near, feature_map = self.near, self.feature_map
        is_auto = isinstance(near, str) and near == "auto"
        if not (is_auto or near is None or isinstance(near, NearField)):
            raise ValueError(f"near must be a NearField, 'auto' or None, got {near!r}.")
        if near is None and is_none(feature_map):
            raise ValueError(f"feature_map={feature_map!r} needs a near field, got near=None.")
        if near is None or (is_auto and not (feature_map is None or is_none(feature_map))):
            return None
        field = _NEAR[bool(self.causal)] if is_auto else near
        is_general = isinstance(feature_map, GeneralizedMap)
        if n_queries != n_keys or self.mask is not None or is_general:
            if not is_auto or feature_map is not None:
                raise ValueError(
                    f"near={near!r} needs as many keys as queries, no mask and a map of the "
                    f"softmax kernel; got {n_queries} queries, {n_keys} keys, "
                    f"mask={type(self.mask).__name__} and feature_map={feature_map!r}."
                )
            return None
        last = max(field.anchors, default=0) if isinstance(field.anchors, tuple) else 0
        if last >= n_keys and not self.causal:
            raise ValueError(f"anchors must be positions below {n_keys}, got {last}.")
        return field

    def _plan(self, n_queries, n_keys, width):
        """Return the `Plan` of a call."""
        field = self._field(n_queries, n_keys)
        feature_map, n_groups = self.feature_map, self.n_groups
        if isinstance(n_groups, str) and n_groups == "auto":
            many = 2 if field is not None else 4 if feature_map is None else 1
            n_groups = 1 if self.causal or self.mask is not None else many
        check_integer("n_groups", n_groups)
        if feature_map is None:
            feature_map = _FAR_MAP if field is not None else _ONLY_MAP
        return Plan(field, n_groups, self._prototypes(width, feature_map, n_groups))

    # ---------------------------------------------------------------- feature maps

    def _prototypes(self, width, feature_map, n_groups=1):
        """Return the maps of all groups for a width: the operator's draws, without data.

        A map that needs data is returned unfitted, once.
        """
        if is_none(feature_map):
            return ()
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
                n_components=None if n_groups == 1 else share_of(feature_map, n_groups),
                seed=self._seed,
            )
            return (own,) if needs_data(own) else in_groups(own.fit_without_data(width), n_groups)

        given = feature_map, scale, n_groups, self.random_state
        return remembered(self, f"_prototypes_{width}", given, make)

    def redraw(self, random_state: RandomState = None) -> Self:
        """Redraw the random numbers, keeping statistics and `shrink_`.

        Parameters
        ----------
        random_state : int, RandomState instance or None, default=None
            Source of the new seed, which stays until the parameter `random_state` changes.

        Returns
        -------
        self : object
            The operator with new random numbers.
        """
        seed = draw_seed(random_state)
        self._redrawn = self.random_state, seed
        if hasattr(self, "mechanisms_"):
            self._fitted_sets = redrawn_sets(self._fitted_sets, lambda _, g: seed_of(seed, g))
            groups = [own.groups[0] for own in self._fitted_sets if own.groups]
            self.mechanisms_ = [head.mechanism for group in groups for head in group]
        else:
            for name in [name for name in vars(self) if name.startswith("_prototypes_")]:
                delattr(self, name)
        return self

    def _seed(self, source):
        replaced, seed = vars(self).get("_redrawn", (None, None))
        if seed is not None and replaced == self.random_state:
            return seed
        source = source if self.random_state is None else self.random_state
        if isinstance(source, (int, np.integer)):
            return int(source)
        return remembered(self, "_drawn", (source,), lambda: draw_seed(source))

    def _sets(self, groups, n_key_heads):
        """Return the `HeadSet` of every set of keys."""
        n_sets, n_keys, width = groups.k.shape
        plan = self._plan(groups.q.shape[-2], n_keys, width)
        prototypes = plan.prototypes
        if hasattr(self, "mechanisms_"):
            sets, n_query_heads = self._fitted_sets, n_key_heads * groups.q.shape[1]
            if (width, n_key_heads, n_query_heads) != self._fitted_shape:
                raise ValueError(
                    f"k has {n_key_heads} heads of width {width} for {n_query_heads} of q, but the "
                    "operator was fitted to {1} of width {0} for {2}.".format(*self._fitted_shape)
                )
            if prototypes is not self._fitted_prototypes:
                raise ValueError(
                    "feature_map, scale, n_groups, random_state or the use of a near field has "
                    "changed after fit: call fit(q, k) again, or clone the operator to forget the "
                    "statistics."
                )
            return [sets[u % n_key_heads] for u in range(n_sets)]
        if self.causal or not prototypes:
            if any(map(needs_data, prototypes)):
                raise ValueError(
                    f"feature_map={self.feature_map!r} needs statistics, and causal attention must "
                    "not take them from its inputs: call fit(q, k) first."
                )
            kept = vars(self).get("_plain_set", (None, None))
            if kept[0] is not prototypes:
                self._plain_set = kept = prototypes, plan.maps(prototypes[:1])
            return [kept[1]] * n_sets
        samples = rows_of_sets(groups, _STATISTICS_ROWS)
        # On a device each thread queues work in an order of its own, so stay in this thread.
        run = map if is_array_api(groups.q) else partial(run_all, is_short=are_short(groups))
        return list(run(lambda rows: plan.maps([adapted(plan, *rows)]), samples))

    def fit(
        self, q: Array, k: Array, v: Array | None = None, *, key_padding_mask: Array | None = None
    ) -> Self:
        """Compute the statistics that all later calls use, one set per head.

        Parameters
        ----------
        q : array-like of shape (..., L, d)
            Queries.
        k : array-like of shape (..., S, d)
            Keys; the last leading axis is the heads, all others are pooled.
        v : array-like of shape (..., S, e), default=None
            Values. With a near field, they make `shrink_` the best one for a sample of queries.
        key_padding_mask : array-like of bool, default=None
            True where a key is ignored.

        Returns
        -------
        self : object
            The fitted operator.
        """
        return self._fit(q, k, v, key_padding_mask)

    def partial_fit(self, q: Array, k: Array, *, key_padding_mask: Array | None = None) -> Self:
        """Merge the statistics of more queries and keys with earlier ones, keeping `shrink_`.

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
            If the map has no `partial_fit`, such as `AdaptiveRF`, which looks at single rows.
        """
        return self._fit(q, k, None, key_padding_mask, vars(self).get("mechanisms_"))

    @serial_blas()
    def _fit(self, q, k, v, key_padding_mask, before=None):
        values = v
        if v is None:  # random values show the errors of all weights
            k = k if is_array_api(k) else as_array("k", k)
            shape = (*k.shape[:-1], _RANDOM_VALUES)
            values = like(np.random.default_rng(0).normal(size=shape), k)
        groups, n_heads = self._check(q, k, values, key_padding_mask, causal=False)
        (n_sets, n_queries), width = groups.q.shape[:2], groups.k.shape[-1]
        shape = width, n_heads, n_heads * n_queries
        if before is not None and shape != self._fitted_shape:
            raise ValueError(
                f"partial_fit needs width and heads of fit, {self._fitted_shape}, got {shape}."
            )
        lengths = groups.q.shape[-2], groups.k.shape[-2]
        plan = self._plan(*lengths, width)
        field = plan.field
        # With exact keys, a query head does better with its own features.
        apart = [slice(None)] if field is None else [slice(g, g + 1) for g in range(n_queries)]
        host, prototypes, sets, mechanisms = groups.on_host(), plan.prototypes, [], []
        shrink = np.ones((n_heads, n_queries))
        shrink = shrink if before is None else self.shrink_.reshape(shrink.shape)
        for h in range(n_heads):
            numbers = np.arange(h, n_sets, n_heads)
            n = len(apart)
            earlier = before[h * n : (h + 1) * n] if before else [None] * n
            pairs = zip(apart, earlier, strict=True) if prototypes else ()
            own = [adapted(plan, *pooled(host, numbers, part), old) for part, old in pairs]
            if own and field is not None and before is None:
                own, shrink[h] = self._judged(plan, own, host, numbers, v is not None)
            sets.append(plan.maps(own, shrink[h]))
            mechanisms += own
        return self._keep(lengths, shape, prototypes, sets, mechanisms, shrink)

    def _keep(self, lengths, shape, prototypes, sets, mechanisms, shrink):
        """Store the results of a fit, and return the operator."""
        self._fitted_lengths, self._fitted_shape = lengths, shape
        self._fitted_prototypes, self._fitted_sets = prototypes, sets
        self.mechanisms_, self.shrink_ = mechanisms, shrink.ravel()
        return self

    def _judged(self, plan, mechanisms, groups, numbers, has_values):
        """Return the better mechanism for every query head, and the factor of its far part.

        Statistics of other sequences may be worse than none, so a causal operator uses them only
        if they clearly reduce the error for a sample of queries. Without values, random ones take
        their place, and the error is that of the attention weights.
        """
        factors, prototype = np.linspace(0, 1, 21), plan.prototypes[0]
        errors = self._far_errors(plan, mechanisms, groups, numbers, factors)
        best = np.argmin(errors, axis=0) if has_values else np.full(len(mechanisms), -1)
        if self.causal and not needs_data(prototype):
            plain = [prototype] * len(mechanisms)
            known = self._far_errors(plan, plain, groups, numbers, np.ones(1))[0]
            clearly = _CLEARLY[bool(has_values)]
            is_better = np.take_along_axis(errors, best[None], axis=0)[0] < clearly * known
            best = np.where(is_better, best, -1)
            pairs = zip(is_better, mechanisms, strict=True)
            mechanisms = [own if better else prototype for better, own in pairs]
        return mechanisms, factors[best]

    def _far_errors(self, plan, mechanisms, groups, numbers, factors):
        """Return the squared errors of a sample of queries for factors of the far part: (n, G)."""
        total, scale = 0.0, check_scale(self.scale, groups.k.shape[-1])
        for n in numbers:
            padding = None if groups.padding is None else groups.padding[n]
            parts = groups.q[n], groups.k[n], groups.v[n], padding
            unit = Unit(plan.maps(mechanisms), *parts)
            unit.take_units()
            places = np.unique(sampled(free(unit), _FITTED_QUERIES))
            weights = [part for _, part, _ in exact_weights(unit, places, scale, self.causal)]
            expected = np.concatenate(weights, axis=-2) @ unit.values(slice(None))[:, 1:]
            near = NearAttention(unit, plan.field, scale, self.causal)
            total = total + near.errors(places, expected, factors)
        return total

    # ---------------------------------------------------------------- calls

    def __call__(
        self, q: Array, k: Array, v: Array, *, key_padding_mask: Array | None = None
    ) -> Array:
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
            mask of torch's scaled_dot_product_attention means the opposite). Shape (S,), or with
            the leading axes of k, with or without its heads.

        Returns
        -------
        array of shape (..., L, e)
            float64 if an input is, otherwise float32, or float16 or bfloat16 if all inputs are,
            with sums in float32 or better. Rows without any key are 0. In the library and on the
            device of the inputs.

        Raises
        ------
        ValueError
            If shapes do not fit or contents are not finite; the message names the input.
        TypeError
            If an input is not made of real numbers, inputs are of different libraries, or the
            `mask` is a LinearOperator and they are not NumPy arrays.

        Warns
        -----
        FeatureCollapseWarning
            If the mean of the values would be closer to softmax attention, checked at a few
            queries, but not under a mask. With maps that are not positive, also if the weights of
            a query sum to 0, so that its output is 0.
        """
        groups, n_heads = self._check(q, k, v, key_padding_mask)
        sets = self._sets(groups, n_heads)
        n_judged = max(1, _JUDGED_QUERIES // len(sets)) if self._is_softmax else 0
        found = self._attend(groups, sets, self._masks(groups), n_judged=n_judged)
        warn_of_lost(found.n_lost, groups)
        # Compare distances rather than their squares, which a single query can dominate.
        error, of_mean, size = found.errors[1]
        if error > of_mean and error > TOLERATED * size:
            warnings.warn(
                "Random features have collapsed: at a few queries the relative error of the output "
                f"is {error / size:.2g}, that of the mean of the values "
                f"{of_mean / size:.2g}. recommend_attention compares what may help on your inputs: "
                "a larger near field, more features or groups, AdaptiveRF(asymmetric=True). If "
                "nothing beats the mean or an exact window there, do not use features.",
                FeatureCollapseWarning,
                stacklevel=2,
            )
        return groups.ungroup(found.out)

    def _attend(
        self,
        groups,
        sets,
        masks=None,
        states=None,
        is_double=False,
        n_judged=0,
        window=None,
        is_looked_at=False,
        is_joint=None,
    ):
        """Return output, states, lost queries, some errors, and on request effective features."""
        field = self._field(groups.q.shape[-2], groups.k.shape[-2])
        scale = check_scale(self.scale, groups.k.shape[-1])
        out = None
        if not is_array_api(groups.q):
            out = np.empty((*groups.q.shape[:-1], groups.v.shape[-1]), groups.q.dtype)

        def attend(i, unit, numbers):
            mask = None if masks is None else masks.of(numbers)
            if states is None:
                unit.take_units()
            elif is_double:
                unit.dtype = namespace(unit.q).float64
            own = out if out is None or is_joint else out[i]
            output = Output(own, unit.value_unit)
            before = states[i] if states else None
            if field is not None:
                after = _position.near(unit, field, scale, before, output)
                if after is None:
                    near = NearAttention(unit, field, scale, self.causal, self.block_size, before)
                    after = near.attend(output)
                found = after, 0
            else:
                found = self._by_features(unit, output, before, mask)
            errors, effective = np.zeros((2, 3)), []
            if is_looked_at and field is None and mask is None:
                pairs = zip(unit.maps.groups, found[0], strict=True)
                for (head,), sums in pairs:
                    effective.append(_linear.effective_features(unit.of(head), sums))
            if n_judged:
                is_query = real_queries(~free(unit), unit.q.shape[-2])
                places = sampled(is_query, max(1, n_judged // unit.q.shape[-3]))
                errors = errors_of(unit, [output.joined()], places, scale, self.causal, window)
            return output, *found, errors, effective

        units, found = for_each_unit(groups, sets, attend, is_joint=is_joint)
        outputs, after, n_lost, errors, effective = zip(*found, strict=True)
        effective = [own for part in effective for own in part if own is not None]
        return SimpleNamespace(
            out=joined(groups, units, outputs) if out is None else out,
            states=after,
            effective=np.concatenate(effective) if effective else None,
            n_lost=sum(n_lost),
            errors=sum(errors),
        )

    def _by_features(self, unit, output, before, mask):
        """Write attention by features alone; return the sums of groups and lost queries."""
        after, n_lost, size = [], 0, self.block_size or unit.rows_at_once(_linear.FEATURE_ROWS)
        output.unit /= len(unit.maps.groups)
        for g, (head,) in enumerate(unit.maps.groups):
            own, sums, output.zeros, output.adds = unit.of(head), None, [], g > 0
            earlier = None if before is None else before[g]
            if mask is not None:
                n_lost += masked(own, mask, output)
                continue
            if before is not None and own.q.shape[-2] == 1:
                sums = _position.by_features(own, earlier, output)
            elif self.causal:
                sums = _linear.causal(own, earlier, output, size)
            else:
                sums = _linear.absorb(own, size)
                _linear.query(own, sums, output, size)
            after.append(sums)
            n_lost += _linear.count_lost(own, earlier, output, self.causal)
        return tuple(after), n_lost

    def backward(
        self,
        q: Array,
        k: Array,
        v: Array,
        grad_out: Array,
        *,
        key_padding_mask: Array | None = None,
        with_mask: bool = False,
    ) -> tuple[Any, ...]:
        """Return the gradients of ``sum(grad_out * attention)`` with statistics held constant.

        Parameters
        ----------
        q, k, v : array-like
            Inputs, as in a call.
        grad_out : array-like of shape (..., L, e)
            Gradient with respect to the output.
        key_padding_mask : array-like of bool, default=None
            True where a key is ignored.
        with_mask : bool, default=False
            Whether to return the gradient with respect to the `mask` as well.

        Returns
        -------
        dq, dk, dv : ndarray
            Gradients with the shapes of the inputs and the dtype of the output.
        dmask : ndarray or list of ndarray
            Only with `with_mask`: with respect to the weights of a ToeplitzMask, the entries of an
            array, or a list of these with one item per head. Entries that `causal` removes get 0.

        Raises
        ------
        TypeError
            For arrays of libraries other than NumPy; with `with_mask`, for sparse matrices and
            LinearOperators.
        NotImplementedError
            For feature maps whose gradients are not known (discrete ones).
        """
        groups, n_heads = self._check(q, k, v, key_padding_mask)
        if is_array_api(groups.q):
            raise TypeError(
                f"backward takes NumPy arrays, got {type(q)!r}. Convert them, or let torch "
                "differentiate a call."
            )
        sets = self._sets(groups, n_heads)
        gradient, gradient_unit = check_gradient(grad_out, groups)
        arrays = tuple(np.empty_like(part) for part in (groups.q, groups.k, groups.v))
        check_flag("with_mask", with_mask)
        if with_mask and self.mask is None:
            raise ValueError("with_mask=True needs a mask, got mask=None.")
        field, by_masks = self._field(groups.q.shape[-2], groups.k.shape[-2]), {}
        masks = self._masks(groups, is_trained=with_mask)

        def sweep(u, unit, _):
            unit.take_units()
            found = Gradients(unit, [array[u] for array in arrays], gradient_unit)
            plan = field, None if masks is None else masks.of(u), by_masks if with_mask else None
            with np.errstate(over="ignore"):  # float32 overflow is reported below
                self._sweep(unit, plan, gradient[u], found)

        # With one gradient for all sets, go through them in turn; threads work inside each set.
        for_each_unit(groups, sets, sweep, is_serial=with_mask)
        with np.errstate(over="ignore"):
            by_q, by_k, by_v = (array.astype(groups.dtype, copy=False) for array in arrays)
            found = groups.ungroup(by_q), by_k.reshape(np.shape(k)), by_v.reshape(np.shape(v))
            found += (masks.gradients(by_masks, groups.dtype),) if with_mask else ()
        check_gradients(found)
        return found

    def _sweep(self, unit, plan, gradient, found, before=None, later=None):
        """Write the gradients of a unit between two states; return what earlier positions need.

        `before` is the state before it, `later` what the positions after it returned.
        """
        (field, mask, by_masks), size = plan, self.block_size or _linear.FEATURE_ROWS
        if field is not None:
            scale = check_scale(self.scale, unit.q.shape[-1])
            near = NearAttention(unit, field, scale, self.causal, self.block_size, before)
            return near.backward(gradient, found, later)
        gradient, sweeps = gradient / len(unit.maps.groups), []
        for g, (head,) in enumerate(unit.maps.groups):
            own = found.of(unit.of(head), adds=g > 0)
            if mask is not None:
                masked_backward(own.unit, mask, gradient, own, by_masks)
            elif self.causal:
                start, end = (part[g] if part else None for part in (before, later))
                sweeps.append(_backward.causal(own.unit, start, gradient, own, end, size))
            else:
                _backward.bidirectional(own.unit, gradient, own, size)
        return tuple(sweeps)

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
            If the operator is not causal, or has a mask.
        """
        if not self.causal or self.mask is not None:
            raise ValueError(
                f"Streaming needs causal=True and mask=None, got causal={self.causal!r} and "
                f"mask={type(self.mask).__name__}."
            )
        return AttentionState(())

    def step(
        self,
        q: Array,
        k: Array,
        v: Array,
        state: AttentionState,
        *,
        key_padding_mask: Array | None = None,
    ) -> tuple[Array, AttentionState]:
        """Return causal attention of the next positions, and the state after them.

        Chunks of any size give the one-shot result to rounding, in memory that does not grow.

        Parameters
        ----------
        q, k, v : array-like of shape (..., n, d), (..., n, d), (..., n, e)
            The next n positions.
        state : AttentionState
            From `init_state` or the previous step; it is not changed.
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
            If the state was made for other widths or heads, or if the largest entry of v is
            neither 0 nor from 1e-100 to 1e100, because its sums must suit later values.
        """
        if not isinstance(state, AttentionState):
            raise TypeError(f"state must come from init_state() or step(), got {state!r:.60}.")
        self.init_state()
        groups, n_heads = self._check(q, k, v, key_padding_mask)
        sets = self._sets(groups, n_heads)
        shape = stream_shape(groups, sets, self._field(1, 1))
        check_state(state, shape)
        # Sums outlive the values of a chunk, so they have no units.
        largest = check_finite("v", groups.v)
        if largest and not 1 / _STREAMED < largest < _STREAMED:
            raise ValueError(
                f"the largest entry of v is {largest:.4g}: in step it must be 0 or from "
                f"{1 / _STREAMED:g} to {_STREAMED:g}. Scale v, and the output with it."
            )
        is_double = state.is_double or unit_for(largest) != 1
        heads, is_joint = arranged(state.heads, groups, sets)
        found = self._attend(groups, sets, None, heads, is_double, is_joint=is_joint)
        warn_of_lost(found.n_lost, groups)
        state = AttentionState(tuple(found.states), shape, is_double)
        return groups.ungroup(found.out), state

    # ---------------------------------------------------------------- inspection

    def attention_matrix(
        self, q: Array, k: Array, *, key_padding_mask: Array | None = None
    ) -> Array:
        """Return the matrix that multiplies the values; quadratic, so for small inputs only.

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
        groups, n_heads = self._check(q, k, k, key_padding_mask)
        # Attention to unit vectors: column j holds the factors of value j.
        n_keys = groups.k.shape[-2]
        unit = np.broadcast_to(np.eye(n_keys), (*groups.k.shape[:-1], n_keys))
        groups = replace(groups, v=like(unit, groups.k), dtype=groups.q.dtype)
        found = self._attend(groups, self._sets(groups, n_heads), self._masks(groups))
        return groups.ungroup(found.out)

    def diagnose(
        self, q: Array, k: Array, v: Array, *, key_padding_mask: Array | None = None
    ) -> AttentionDiagnosis:
        """Return how accurate the output is, and whether something simpler is better.

        The error of all outputs is estimated from the spread of the groups of features, or of five
        draws if there is a single group. At a sample of 64 queries per set of keys, the output, the
        exact part alone, the mean of the values and an exact window of the same cost are compared
        with exact attention.

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
        groups, n_heads = self._check(q, k, v, key_padding_mask)
        sets = self._sets(groups, n_heads)
        masks, n_groups = self._masks(groups), len(sets[0].groups)
        if n_groups > 1:
            draws = [
                [replace(own, groups=own.groups[g : g + 1]) for own in sets]
                for g in range(n_groups)
            ]
        elif n_groups:
            others = range(1, _DIAGNOSED_DRAWS)
            draws = [sets, *(redrawn_sets(sets, lambda own, _, n=n: own.seed_ + n) for n in others)]
        else:
            draws = [sets]
        error = spread([to_host(self._attend(groups, own, masks).out) for own in draws], n_groups)
        field = self._field(groups.q.shape[-2], groups.k.shape[-2])
        window = cost_of(sets[0], groups.q.shape[1])
        window += 0 if field is None else field.n_exact(causal=self.causal)
        n_judged = _DIAGNOSED_QUERIES if self._is_softmax else 0
        attend = partial(self._attend, groups, n_judged=n_judged, window=round(window))
        found = attend(sets, masks, is_looked_at=True)
        if not n_judged:
            return AttentionDiagnosis(error, found.effective)
        of_output, of_mean, of_window, size = found.errors[0]
        squares = {"attention": of_output}
        if field is not None:
            squares["exact part"] = attend([replace(own, groups=()) for own in sets]).errors[0, 0]
        squares |= {"mean": of_mean, "window": of_window}
        errors = {name: math.sqrt(own / size) if size else 0.0 for name, own in squares.items()}
        return AttentionDiagnosis(error, found.effective, errors)

    @property
    def _is_softmax(self):
        """Whether the output estimates softmax attention without a mask."""
        return self.mask is None and not isinstance(self.feature_map, GeneralizedMap)

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

    def _masks(self, groups, is_trained=False):
        if self.mask is None:
            return None
        return as_masks(self.mask, groups, self.causal, is_trained)
