"""Attention with near keys exact: against the dense definition, in every mode."""

import copy
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from sklearn.base import clone

from skrf import AdaptiveRF, DenseExponentialRF, HybridRF, OptimalPositiveRF, RFFSampler
from skrf._arrays import namespace, to_host
from skrf.attention import ApproxKernelAttention, GeneralizedMap, NearField, exact_attention
from skrf.attention._heads import Head, HeadSet, Unit
from skrf.attention._near import NearAttention

# Few features of large inputs are poor, and the operator says so.
pytestmark = pytest.mark.filterwarnings("ignore::skrf.exceptions.FeatureCollapseWarning")

L, D, E, SCALE = 90, 5, 4, 1 / np.sqrt(5)


def inputs(n_heads=2, n_key_heads=2, length=L, dtype="float64", seed=0, size=1.0):
    rng = np.random.default_rng(seed)
    q, k, v = (
        rng.normal(size=(2, heads, length, width)).astype(dtype)
        for heads, width in ((n_heads, D), (n_key_heads, D), (n_key_heads, E))
    )
    return size * q, size * k, v


def dense(attention, q, k, v, padding=None):
    """The definition, one query head of one batch after the other, in float64."""
    q, k, v = (part.astype(np.float64) for part in (q, k, v))
    out = np.empty((*q.shape[:-1], v.shape[-1]))
    share = q.shape[1] // k.shape[1]
    groups, n_key_heads = attention._check(q, k, v, padding)
    sets = attention._sets(groups, n_key_heads)
    field = attention._field(q.shape[-2], k.shape[-2])
    for b, h in np.ndindex(q.shape[:2]):
        u = b * n_key_heads + h // share
        own = sets[u]
        hidden = np.zeros(q.shape[-2], bool) if padding is None else padding[b]
        shrink = 1.0 if own.shrink is None else own.shrink[h % share]
        keys, values = k[b, h // share], v[b, h // share]
        anchors = chosen(field, attention.causal, q[b], k[b], v[b], h // share, share, hidden)
        logits = SCALE * q[b, h] @ keys.T
        i = np.arange(q.shape[-2])
        seen = ~hidden[None] & ((i[None] <= i[:, None]) | (not attention.causal))
        blocks = i // field.block
        is_exact = np.abs(blocks[:, None] - blocks) <= 1
        is_exact[:, anchors] = True
        exact = np.where(seen & is_exact, logits, -np.inf)
        parts = []
        for group in own.groups:
            head = group[h % share if len(group) > 1 else 0]
            left, right = head.queries(q[b, h]), head.keys(keys)
            if left.scale is None:
                product, shift = 1.0, logsumexp(left.values[:, None] + right.values, axis=-1)
            else:
                product, shift = left.values @ right.values.T, left.scale + right.scale.T
            shift = np.where(seen & ~is_exact, shift, -np.inf)
            top = np.maximum(exact, shift).max(axis=1, keepdims=True)
            top = np.where(top > -np.inf, top, 0)
            weights = np.exp(exact - top) + shrink * product * np.exp(shift - top)
            parts.append(normalised(weights) @ values)
        if not own.groups:
            weights = np.exp(exact)
            parts.append(normalised(weights) @ values)
        out[b, h] = np.mean(parts, axis=0)
    return out


def normalised(weights):
    total = weights.sum(axis=1, keepdims=True)
    return weights / np.where(total == 0, 1, total)


def chosen(field, causal, q, k, v, h, share, hidden):
    if isinstance(field.anchors, tuple):
        return [j for j in field.anchors if not hidden[j]]
    free = np.flatnonzero(~hidden)
    if causal:
        return free[: field.anchors]
    numbers = (np.arange(16) + np.random.default_rng(0).random(16)) / 16 * len(free)
    total = 0.0
    for queries in q[h * share : (h + 1) * share, free[numbers.astype(int)]]:
        weights = np.exp(SCALE * queries @ k[h].T) * ~hidden
        weights /= weights.sum(axis=1, keepdims=True)
        distances = ((weights @ v[h])[:, None] - v[h]) ** 2
        total = total + (weights**2 * distances.sum(axis=-1)).sum(axis=0)
    return np.argsort(-np.where(hidden, -np.inf, total), kind="stable")[: field.anchors]


PADDING = np.zeros((2, L), bool)
PADDING[0, :30] = PADDING[0, 44] = PADDING[1, 70:] = True

MAPS = {
    "optimal": OptimalPositiveRF(24, random_state=0),
    "dense": DenseExponentialRF(24, asymmetric=True, random_state=0),
    "trigonometric": RFFSampler(24, random_state=0),
    "adaptive": AdaptiveRF(24, asymmetric=True, random_state=0),
}
FITTED = [name for name in MAPS if name != "adaptive"]
FIELDS = [NearField(8, 3), NearField(1, 0), NearField(13, (0, 5, 80)), NearField(200, 2)]
TOLERANCES = {"float64": {"rtol": 1e-10, "atol": 1e-10}, "float32": {"rtol": 1e-4, "atol": 1e-4}}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize("name", FITTED)
def test_it_is_the_dense_definition(name, field, causal, dtype):
    if name == "trigonometric" and dtype == "float32":
        pytest.skip("Denominators with signs may be near zero, where float32 has no digits.")
    attention = ApproxKernelAttention(
        MAPS[name], near=field, causal=causal, n_groups=2, block_size=40
    )
    for heads in ((2, 2), (4, 2)):
        q, k, v = inputs(*heads, dtype=dtype)
        for padding in (None, PADDING):
            out = attention(q, k, v, key_padding_mask=padding)
            assert out.dtype == dtype
            assert_allclose(out, dense(attention, q, k, v, padding), **TOLERANCES[dtype])
        fitted = clone(attention).fit(q, k, v)
        assert len(fitted.mechanisms_) == len(fitted.shrink_) == heads[0]
        fitted.shrink_[:] = np.linspace(0.1, 0.9, heads[0])
        assert_allclose(fitted(q, k, v), dense(fitted, q, k, v), **TOLERANCES[dtype])


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize(("dtype", "is_late"), [("float64", True), ("float32", False)])
def test_features_that_are_zero_for_other_clusters(library, dtype, causal, is_late):
    """Also where the first far keys are all of one cluster."""
    q, k, v = (part[:1] for part in inputs(2, 1))
    sides = np.where(np.arange(L) < 60, 1, -1) if is_late else np.sign(k[:1, :1, :, 0])
    k = k / 2 + 2 * sides[..., None]
    q, k, v = (part.astype(dtype) for part in (q, k, v))
    clustered = HybridRF(48, coefficients="clustered", random_state=0)
    attention = ApproxKernelAttention(
        clustered, near=NearField(8, 3), causal=causal, n_groups=2, block_size=40
    ).fit(q, k, v)
    assert not np.isfinite(attention.mechanisms_[0].log_transform_keys(k[0, 0])).all()
    expected = dense(attention, q, k, v, PADDING[1:])
    out = attention(*map(library.array, (q, k, v)), key_padding_mask=PADDING[1:])
    assert_allclose(to_host(out), expected, **TOLERANCES[dtype])
    if causal:
        found, _ = streamed(attention, (q, k, v))
        assert_allclose(found, dense(attention, q, k, v), **TOLERANCES[dtype])


@pytest.mark.parametrize(
    "field", [NearField(8, 3), NearField(3, 0), NearField(8, (2, 60))], ids=str
)
@pytest.mark.parametrize("chunks", [[1] * L, [7] * 12 + [6], [L], [40, 1, 1, 30, 18]], ids=len)
def test_streams_are_one_shot(field, chunks):
    attention = ApproxKernelAttention(MAPS["optimal"], near=field, causal=True, n_groups=2)
    q, k, v = inputs(4, 2)
    expected = attention(q, k, v, key_padding_mask=PADDING)
    state, start = attention.init_state(), 0
    for n in chunks:
        own = slice(start, start + n)
        parts = (part[..., own, :] for part in (q, k, v))
        out, state = attention.step(*parts, state, key_padding_mask=PADDING[:, own])
        assert_allclose(out, expected[..., own, :], rtol=1e-10, atol=1e-12)
        start += n
    for own in state.heads:
        assert own.position == L and own.keys.shape[-2] <= 2 * field.block
        assert own.anchors.keys.shape[-2] <= field.n_anchors


SINGLES = [1] * 21 + [6] + [1] * 40 + [9] + [1] * 14


def at(parts, i):
    return [part[..., i : i + 1, :] for part in parts]


def streamed(attention, parts, chunks=SINGLES, sent=lambda state: state):
    """Return the outputs of a stream, and how many positions took the short way."""
    state, start, found, n_short = attention.init_state(), 0, [], 0
    for n in chunks:
        own = (part[..., start : start + n, :] for part in parts)
        out, state = attention.step(*own, sent(state))
        found.append(out)
        n_short += all(getattr(own, "window", None) is not None for own in state.heads)
        start += n
    return namespace(found[0]).concat(found, axis=-2), n_short


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    ("near", "n_groups"),
    [
        (NearField(8, 3), 1),
        (NearField(8, (2, 60)), 2),
        (NearField(13, 0), 2),
        (NearField(200, 2), 1),
        (None, 2),
    ],
    ids=str,
)
def test_single_positions_are_one_shot(library, near, n_groups, dtype):
    q, k, v = inputs(4, 2, dtype=dtype)
    attention = ApproxKernelAttention(MAPS["optimal"], near=near, causal=True, n_groups=n_groups)
    cases = [(attention, (q, k, v)), (attention, [part[0, 0] for part in (q, k, v)])]
    if near is not None:
        cases.append((clone(attention).set_params(feature_map="none"), (q, k, v)))
    for own, parts in cases:
        expected = own(*(part.astype(np.float64) for part in parts))
        for to in (np.asarray, library.array):
            found, n_short = streamed(own, [to(part) for part in parts])
            assert_allclose(to_host(found), expected, **TOLERANCES[dtype])
            assert to_host(found).dtype == dtype
            assert near is None or n_short > 55


@pytest.mark.parametrize(
    ("name", "n_heads"), [("optimal", 2), ("optimal", 4), ("trigonometric", 2)]
)
def test_single_positions_of_fitted_operators(library, name, n_heads):
    attention = ApproxKernelAttention(MAPS[name], near=NearField(8, 3), causal=True)
    q, k, v = inputs(n_heads, 2)
    attention.fit(q, k, v)
    for shrink in (np.linspace(0.1, 0.9, n_heads), 0.0):
        attention.shrink_[:] = shrink
        expected = attention(q, k, v)
        for to in (np.asarray, library.array):
            found, n_short = streamed(attention, [to(part) for part in (q, k, v)])
            assert_allclose(to_host(found), expected, rtol=1e-10, atol=1e-12)
            assert (n_short > 55) == (n_heads == 2 and name != "trigonometric")


def test_single_positions_of_both_precisions():
    attention = ApproxKernelAttention("none", near=NearField(40, 3), causal=True)
    parts = inputs(dtype="float32")
    double = [part.astype(np.float64) for part in parts]
    expected, state = attention(*double), attention.init_state()
    for i in range(L):
        is_double = i % 20 > 15
        out, state = attention.step(*at(double if is_double else parts, i), state)
        assert out.dtype == ("float64" if is_double else "float32")
        assert_allclose(out, *at([expected], i), **TOLERANCES[str(out.dtype)])


def test_single_positions_of_short_floats():
    attention = ApproxKernelAttention(MAPS["optimal"], near=NearField(40, 3), causal=True)
    parts = [part.astype(np.float16) for part in inputs()]
    expected = attention(*(part.astype(np.float64) for part in parts))
    found, n_short = streamed(attention, parts)
    assert found.dtype == np.float16 and n_short > 55
    assert_allclose(found, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("near", [NearField(8, 3), None], ids=str)
def test_maps_of_causal_operators_follow_their_parameters(near):
    attention = ApproxKernelAttention(MAPS["optimal"], near=near, causal=True)
    parts = inputs()
    first = attention(*parts)
    assert np.abs(attention.redraw(1)(*parts) - first).max() > 1e-3
    attention.set_params(feature_map=OptimalPositiveRF(16, random_state=0))
    assert_array_equal(attention(*parts), clone(attention).redraw(1)(*parts))


@pytest.mark.parametrize("near", [NearField(8, 3), None], ids=str)
def test_a_state_serves_several_futures(library, near):
    """Rows that one future wrote in place are not seen by the others."""
    attention = ApproxKernelAttention(MAPS["optimal"], near=near, causal=True)
    futures = [inputs(seed=seed) for seed in range(3)]
    for parts in futures[1:]:
        for part, first in zip(parts, futures[0], strict=True):
            part[..., :20, :] = first[..., :20, :]
    expected = [attention(*parts) for parts in futures]
    for to in (np.asarray, library.array):
        arrays = [[to(part) for part in parts] for parts in futures]
        states = [attention.init_state()] * len(futures)
        for i in range(L):
            if i <= 20:  # until here they have one state
                states = [states[0]] * len(futures)
            for j, parts in enumerate(arrays):
                out, states[j] = attention.step(
                    *(part[..., i : i + 1, :] for part in parts), states[j]
                )
                assert_allclose(
                    to_host(out), expected[j][..., i : i + 1, :], rtol=1e-10, atol=1e-12
                )


@pytest.mark.parametrize("near", [NearField(8, 3), None], ids=str)
@pytest.mark.parametrize("send", [copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))])
def test_states_may_be_sent(library, near, send):
    attention = ApproxKernelAttention(MAPS["optimal"], near=near, causal=True)
    parts = inputs(4, 2)
    try:
        send(library.array(parts[0]))
    except TypeError as error:  # old versions of array_api_strict
        pytest.skip(f"arrays cannot be sent: {error}")
    expected = attention(*parts)
    for to in (np.asarray, library.array):
        found, n_short = streamed(attention, [to(part) for part in parts], sent=send)
        assert_allclose(to_host(found), expected, rtol=1e-10, atol=1e-12)
        assert near is None or n_short > 55


@pytest.mark.parametrize("near", [NearField(8, 3), None], ids=str)
@pytest.mark.parametrize(
    ("dtype", "value"),
    [("float64", 0), ("float64", 1e90), ("float64", 1e-90), ("float32", 1e38), ("float32", 1e-30)],
)
def test_values_of_any_size_in_single_positions(near, dtype, value):
    attention = ApproxKernelAttention(MAPS["optimal"], near=near, causal=True)
    q, k, v = inputs(dtype=dtype)
    v *= np.where(np.arange(L) % 9 < 5, value, 1.0)[:, None].astype(dtype)
    with np.errstate(all="raise", under="ignore"):
        found, _ = streamed(attention, (q, k, v))
    expected = attention(*(part.astype(np.float64) for part in (q, k, v)))
    size = np.abs(expected).max()
    assert_allclose(found / size, expected / size, **TOLERANCES[dtype])


def test_large_keys_are_remembered():
    """Logits of float32 are off where any key is large, be it of an earlier step."""
    attention = ApproxKernelAttention("none", near=NearField(40, 2), causal=True)
    q, k, v = inputs(dtype="float32")
    q[..., 1::2, :] *= 30
    for places in (slice(0, 2), slice(3, 6), slice(50, 51)):
        k[..., places, :] = np.float32(200 + 0.01 * k[..., places, :])
    expected = attention(*(part.astype(np.float64) for part in (q, k, v)))
    for chunks in ([1] * L, [2] * 45):
        found, _ = streamed(attention, (q, k, v), chunks)
        assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("near", [NearField(8, 3), None], ids=str)
def test_torch_differentiates_single_positions(near):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    attention = ApproxKernelAttention(MAPS["optimal"], near=near, causal=True)
    parts = [torch.from_numpy(part) for part in inputs(4, 2)]
    weights = torch.from_numpy(np.random.default_rng(1).normal(size=(2, 4, L, E)))
    for places in (slice(0, L), slice(30, L), slice(0, 30)):  # that have gradients
        found = []
        for is_stream in (False, True):
            own, both = [], [part.clone() for part in parts]
            for part in both:
                own.append(part[..., places, :].clone().requires_grad_())
                part[..., places, :] = own[-1]
            if is_stream:
                state, outs = attention.init_state(), []
                for i in range(L):
                    is_own = places.start <= i < places.stop
                    now = both if is_own else [part.detach() for part in both]
                    out, state = attention.step(*at(now, i), state)
                    outs.append(out)
                out = torch.cat(outs, -2)
            else:
                out = attention(*both)
            (out * weights).sum().backward()
            found.append([part.grad for part in own])
        for one, other in zip(*found, strict=True):
            assert_allclose(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("feature_map", "near"),
    [
        (MAPS["optimal"], None),
        (MAPS["optimal"], NearField(8, 3)),
        (GeneralizedMap(16, nonlinearity="exp", random_state=0), None),
    ],
    ids=["far", "near", "generalized"],
)
def test_torch_differentiates_positions_and_chunks(feature_map, near):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    attention = ApproxKernelAttention(feature_map, near=near, causal=True)
    weights, found = torch.from_numpy(np.random.default_rng(1).normal(size=(2, 4, L, E))), []
    for chunks in ([L], [2, 1, 9] + [1] * 18 + [30, 1, L - 61]):
        parts = [torch.from_numpy(part).requires_grad_() for part in inputs(4, 2)]
        state, outs, start = attention.init_state(), [], 0
        for n in chunks:
            now = [part[..., start : start + n, :] for part in parts]
            out, state = attention.step(*now, state)
            outs.append(out)
            start += n
        (torch.cat(outs, -2) * weights).sum().backward()
        found.append([part.grad for part in parts])
    for one, other in zip(*found, strict=True):
        assert_allclose(one, other, rtol=1e-8, atol=1e-10)


def test_streams_enter_and_leave_the_inference_mode_of_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    attention = ApproxKernelAttention(MAPS["optimal"], near=NearField(8, 3), causal=True)
    parts = [torch.from_numpy(part) for part in inputs()]
    expected, state = attention(*parts), attention.init_state()
    for i in range(L):
        with torch.inference_mode(i % 5 < 3):
            out, state = attention.step(*at(parts, i), state)
        assert_allclose(out, *at([expected], i), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("factor", [1e30, -1e30, 1e-30])
def test_the_future_changes_nothing(factor):
    attention = ApproxKernelAttention(MAPS["optimal"], near=NearField(8, 2), causal=True)
    q, k, v = inputs()
    expected = attention(q, k, v)
    for place in (70, 30, 1):
        changed = k.copy()
        changed[..., place, :] *= factor
        out = attention(q, changed, v)[..., :place, :]
        assert_allclose(out, expected[..., :place, :], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("name", MAPS)
def test_gradients_are_differences(name, causal):
    field = NearField(7, (3, 40))
    attention = ApproxKernelAttention(
        MAPS[name], near=field, causal=causal, n_groups=2, block_size=30
    )
    q, k, v = inputs(4, 2)
    attention.fit(q, k, v).shrink_[:] = [0.2, 0.5, 0.8, 1.0]
    grad_out = np.random.default_rng(1).normal(size=(*q.shape[:-1], E))
    gradients = attention.backward(q, k, v, grad_out, key_padding_mask=PADDING)
    rng = np.random.default_rng(2)
    for i, own in enumerate(gradients):
        direction = rng.normal(size=own.shape)
        sides = []
        for sign in (-1, 1):
            moved = [q, k, v]
            moved[i] = moved[i] + sign * 1e-6 * direction
            sides.append(np.sum(grad_out * attention(*moved, key_padding_mask=PADDING)))
        assert_allclose(np.sum(own * direction), (sides[1] - sides[0]) / 2e-6, rtol=1e-5)
        if i:
            hidden = np.broadcast_to(PADDING[:, None], own.shape[:-1])
            assert not own[hidden].any()


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("size", [6.0, 30.0])
def test_exponents_of_any_size(causal, size):
    attention = ApproxKernelAttention(
        MAPS["optimal"], near=NearField(4, 0), causal=causal, block_size=64
    )
    q, k, v = inputs()
    steps = np.where(np.arange(L) // 20 % 2, 1.0, size)[:, None]  # blocks of unlike exponents
    for dtype, tolerance in (("float64", 1e-9), ("float32", 1e-4)):
        parts = [(part * steps).astype(dtype) for part in (q, k)] + [v.astype(dtype)]
        with np.errstate(all="raise", under="ignore"):
            out = attention(*parts)
        # Parts of one block have the exponents of what they read, and none is split.
        single = clone(attention).set_params(block_size=1)
        assert_allclose(out, single(*parts), rtol=tolerance, atol=tolerance)
    if size < 10:
        parts = [part.astype(np.float64) for part in parts]
        assert_allclose(attention(*parts), dense(attention, *parts), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("name", ["optimal", "trigonometric"])
def test_huge_features_of_others_leave_rows_without_far_keys_alone(name, causal, dtype):
    attention = ApproxKernelAttention(MAPS[name], near=NearField(8, 0), causal=causal, n_groups=2)
    for length in (20, 28):  # the middle one of three blocks has no far keys even without padding
        q, k, v = inputs(length=length, dtype=dtype)
        q *= 40
        padding = np.zeros((2, length), bool)
        padding[1, :8] = True  # all far keys of the third block
        out = attention(q, k, v, key_padding_mask=padding)
        assert_allclose(out, dense(attention, q, k, v, padding), **TOLERANCES[dtype])
        # Parts of one block have the exponents of what they read.
        single = clone(attention).set_params(block_size=1)
        grad_out = np.random.default_rng(1).normal(size=out.shape).astype(dtype)
        with np.errstate(all="raise", under="ignore"):
            gradients, expected = (
                own.backward(q, k, v, grad_out, key_padding_mask=padding)
                for own in (attention, single)
            )
        for own, other in zip(gradients, expected, strict=True):
            scale = np.abs(other).max()
            assert_allclose(own / scale, other / scale, **TOLERANCES[dtype])
        state = attention.init_state() if causal else None
        for start in range(0, length if causal else 0, 3):
            own = slice(start, start + 3)
            parts = (part[..., own, :] for part in (q, k, v))
            found, state = attention.step(*parts, state, key_padding_mask=padding[:, own])
            assert_allclose(found, out[..., own, :], **TOLERANCES[dtype])


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("n_hidden", [0, 24])
def test_blocks_without_far_keys_before_huge_features(n_hidden, causal):
    field = NearField(8, tuple(range(n_hidden, 24)))  # every key there is an anchor, or padding
    attention = ApproxKernelAttention(MAPS["optimal"], near=field, causal=causal, block_size=32)
    q, k, v = inputs()
    q[..., 40:, :] *= 30
    k[..., 40:, :] *= 30
    padding = np.broadcast_to(np.arange(L) < n_hidden, (2, L))
    with np.errstate(all="raise", under="ignore"):
        out = attention(q, k, v, key_padding_mask=padding)
    single = clone(attention).set_params(block_size=1)
    assert_allclose(out, single(q, k, v, key_padding_mask=padding), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("name", ["optimal", "dense", "adaptive"])
def test_far_sums_are_unbiased(name, causal):
    """Given the statistics, in every group, by 1,000 draws: 4.4 standard errors of every entry."""
    q, k, v = inputs(1, 1, length=24, size=0.5)
    attention = ApproxKernelAttention(
        MAPS[name], near=NearField(3, 1), causal=causal, n_groups=2, block_size=9
    ).fit(q, k)
    exact = attention._check(q, k, v, None)[0]
    (maps,) = attention._fitted_sets
    expected = SCALE * q[0, 0] @ k[0, 0].T
    found = []
    for seed in range(1000):
        drawn = [
            tuple(Head(copy.copy(head.mechanism).redraw(7 * seed + g)) for head in group)
            for g, group in enumerate(maps.groups)
        ]
        unit = Unit(HeadSet(tuple(drawn)), exact.q[0], exact.k[0], exact.v[0])
        near = NearAttention(unit, attention.near, SCALE, causal, 9)
        ranges, rows = near.layout.ranges(9), []
        readers = near.readers(ranges)
        for given in ranges:
            sums, scale = near.far_part(readers, *given)
            rows.append((sums * np.exp(scale))[0].swapaxes(0, 1).reshape(2, -1, E + 1))
        found.append(np.concatenate(rows, axis=1))
    i = np.arange(24)
    is_far = np.abs(i[:, None] // 3 - i // 3) > 1
    is_far[:, near.anchors.positions] = False
    is_far &= (i <= i[:, None]) | (not causal)
    values = np.column_stack([np.ones(24), v[0, 0]])
    expected = np.where(is_far, np.exp(expected), 0) @ values
    error = np.std(found, axis=0) / np.sqrt(len(found))
    assert (np.abs(np.mean(found, axis=0) - expected) <= 4.4 * error + 1e-12).all()
    assert (error[:, 12:] < 0.2 * np.abs(expected[12:]).max()).all()


def test_everything_near_is_exact():
    q, k, v = inputs(4, 2)
    for causal in (False, True):
        for field in (NearField(L, 0), NearField(4, L), NearField(45, 0)):
            for feature_map in ("none", MAPS["optimal"]):
                attention = ApproxKernelAttention(feature_map, near=field, causal=causal)
                out = attention(q, k, v, key_padding_mask=PADDING)
                expected = exact_attention(q, k, v, causal=causal, key_padding_mask=PADDING)
                assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


def test_statistics_are_merged_and_kept():
    q, k, v = inputs(4, 2)
    far = OptimalPositiveRF(24, random_state=0)
    attention = ApproxKernelAttention(far, near=NearField(8, 3)).fit(q, k, v)
    shrink = attention.shrink_.copy()
    assert ((shrink >= 0) & (shrink <= 1)).all()
    unlike, some = 2 * q, 2 * k
    mechanisms = attention.partial_fit(unlike, some).mechanisms_
    assert_array_equal(attention.shrink_, shrink)
    for h, own in enumerate(mechanisms):
        rows = np.concatenate([part[:, h].reshape(-1, D) for part in (q, unlike)])
        keys = np.concatenate([part[:, h // 2].reshape(-1, D) for part in (k, some)])
        expected = (
            clone(far).set_params(kernel="softmax", sigma=np.sqrt(SCALE)).fit(rows, keys=keys)
        )
        assert_allclose(own.rho_, expected.rho_, rtol=1e-10)
    with pytest.raises(ValueError, match="partial_fit needs width and heads of fit"):
        attention.partial_fit(q[:, :2], k)


@pytest.mark.parametrize("is_fitted", [False, True])
@pytest.mark.parametrize("near", [None, NearField(8, 3)], ids=["far", "near"])
def test_draws_are_made_anew(near, is_fitted):
    q, k, v = inputs()
    attention = ApproxKernelAttention(MAPS["optimal"], near=near, n_groups=2)
    attention = attention.fit(q, k, v) if is_fitted else attention
    before = attention(q, k, v)
    again, other = (attention.redraw(seed)(q, k, v) for seed in (1, 2))
    assert_array_equal(attention.redraw(1)(q, k, v), again)
    assert np.abs(again - before).max() > 1e-3 and np.abs(again - other).max() > 1e-3
    if is_fitted:
        rho = [own.rho_ for own in clone(attention).fit(q, k, v).mechanisms_]
        assert_allclose([own.rho_ for own in attention.mechanisms_], rho)


def test_groups_of_neighbouring_seeds_differ():
    omega = []
    for seed in range(3):
        far = OptimalPositiveRF(24, random_state=seed)
        attention = ApproxKernelAttention(far, near=NearField(8, 3), n_groups=3).fit(*inputs()[:2])
        groups = attention._fitted_sets[0].groups
        omega += [head.mechanism.omega_ for (head, *_) in groups]
    pairs = [abs(a - b).max() for i, a in enumerate(omega) for b in omega[:i]]
    assert min(pairs) > 0.1


def test_what_is_refused():
    q, k, v = inputs()
    for params, said in (
        ({"near": 5}, "near must be a NearField, 'auto' or None, got 5"),
        ({"near": "far"}, "near must be a NearField"),
        ({"n_groups": 0}, "n_groups must be an integer >= 1, got 0"),
        ({"feature_map": OptimalPositiveRF(24), "n_groups": 5}, "n_groups=5 must divide"),
        ({"feature_map": "none", "near": None}, "needs a near field, got near=None"),
        ({"near": NearField(8, [L])}, f"anchors must be positions below {L}, got {L}"),
        ({"near": NearField(8, 3), "mask": np.ones((L, L))}, "no mask"),
    ):
        with pytest.raises(ValueError, match=said):
            ApproxKernelAttention(**params)(q, k, v)
    with pytest.raises(ValueError, match="as many keys as queries"):
        ApproxKernelAttention(near=NearField(8, 3))(q, k[..., :5, :], v[..., :5, :])
    near = ApproxKernelAttention("none", near=NearField(8, 3))
    with pytest.raises(ValueError, match="q and k are too large: .* entries are .*e\\+200"):
        near(1e200 * q, 1e200 * k, v)
    assert np.isfinite(near(1e150 * q, 1e150 * k, v)).all()
    assert ApproxKernelAttention()(q, k[..., :5, :], v[..., :5, :]).shape == q.shape[:-1] + (E,)
    for given, said in (
        ((0, 3), "block must be an integer >= 1, got 0"),
        ((4, -1), "anchors must be an integer >= 0, got -1"),
        ((4, [3, -2]), "anchors must be positions >= 0, got -2"),
        ((4, [0.5]), "anchors must be an integer >= 0 or a list of positions"),
    ):
        with pytest.raises(ValueError, match=said):
            NearField(*given)
    assert NearField(4, [5, 1, 5]).anchors == (1, 5) and NearField(4, [5, 1, 5]).n_anchors == 2


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_the_far_part_is_shrunk_to_what_suits_a_sample(causal):
    q, k, v = inputs(1, 1, length=400, size=2.5)
    far = OptimalPositiveRF(8, random_state=0)
    attention = ApproxKernelAttention(far, near=NearField(8, 2), causal=causal, n_groups=1)
    exact = exact_attention(q, k, v, causal=causal)
    attention.fit(q, k, v)

    def error(shrink):
        attention.shrink_[:] = shrink
        return np.sum((attention(q, k, v) - exact) ** 2)

    chosen = attention.shrink_.item()
    assert error(chosen) < 1.02 * min(error(shrink) for shrink in np.linspace(0, 1, 11))


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_large_logits_of_float32_have_their_digits(causal):
    rng = np.random.default_rng(0)
    # Nearly parallel rows: logits of 10,000 that differ by about 1.
    q, k = (np.float32(100 + 0.01 * rng.normal(size=(40, 4))) for _ in range(2))
    v = rng.normal(size=(40, 3)).astype(np.float32)
    attention = ApproxKernelAttention("none", near=NearField(40, 2), causal=causal)
    expected = attention(*(part.astype(np.float64) for part in (q, k, v)))
    assert_allclose(attention(q, k, v), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("near", [None, NearField(8, 3)], ids=str)
@pytest.mark.parametrize("is_padded", [False, True])
def test_few_positions_of_all_heads_go_together(near, is_padded):
    """Long and short chunks in turn: what is remembered of the heads is joined and taken apart."""
    features = OptimalPositiveRF(64, random_state=0)
    attention = ApproxKernelAttention(features, near=near, causal=True, n_groups=2)
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2, 2, 520, 4))
    padding = np.zeros((2, 520), bool)
    padding[1, : 3 * is_padded] = True  # hides the anchors of one text
    expected = attention(q, k, v, key_padding_mask=padding)
    state, start, n_parts = attention.init_state(), 0, []
    for n in (1, 2, 250, 1, 16, 250):
        own = slice(start, start + n)
        parts = (part[..., own, :] for part in (q, k, v))
        out, state = attention.step(*parts, state, key_padding_mask=padding[:, own])
        assert_allclose(out, expected[..., own, :], rtol=1e-10, atol=1e-12)
        n_parts.append(len(state.heads))
        start += n
    assert n_parts == [1, 1, 4, 1, 1, 4]
