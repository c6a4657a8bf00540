"""Log-sum-exps of attention by their definition, and attention to disjoint keys, merged."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skrf import DenseExponentialRF, OptimalPositiveRF, PositiveRF, RFFSampler
from skrf.attention import (
    ApproxKernelAttention,
    GeneralizedMap,
    ToeplitzMask,
    WindowAttention,
    exact_attention,
    merge_attention,
)

pytestmark = pytest.mark.filterwarnings("ignore::skrf.exceptions.FeatureCollapseWarning")
N, WIDTH, SCALE = 30, 4, 0.5
MAPS = {
    # Without random numbers, so that the sums of weights are known.
    "exp": GeneralizedMap(nonlinearity="exp", projection="identity"),
    "elu": GeneralizedMap(nonlinearity="elu", projection="identity"),
}
MASKS = {
    "none": (None, 1.0),
    "array": (lambda rng: 5 * rng.random((N, N)) * (rng.random((N, N)) < 0.7), None),
    "grid": (lambda rng: ToeplitzMask(3 * rng.random(2 * N - 1)), None),
    "decay": (lambda rng: ToeplitzMask.decay([0.1, 0.3]), "lags"),
}


def draw(seed=0, n=N, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=(3, 2, n, WIDTH)).astype(dtype)


def weights_of(kind, q, k):
    """Return the weights (heads, L, S) that an operator estimates or has."""
    root = np.sqrt(SCALE)
    if kind == "exact":
        return np.exp(SCALE * q @ k.swapaxes(-1, -2))
    g = np.exp if kind == "exp" else lambda z: np.where(z > 0, z + 1, np.exp(np.minimum(z, 0)))
    return g(root * q) @ g(root * k).swapaxes(-1, -2) / q.shape[-1]


def called(kind, *parts, causal=False, mask=None, **options):
    if kind == "exact":
        options = {**options, "causal": causal, "mask": mask, "scale": SCALE}
        return exact_attention(*parts, return_lse=True, **options)
    operator = ApproxKernelAttention(MAPS[kind], causal=causal, mask=mask, scale=SCALE)
    return operator(*parts, return_lse=True, **options)


def log_of(sums):
    with np.errstate(divide="ignore"):
        return np.log(sums)


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", ["exact", *MAPS])
def test_it_is_the_logarithm_of_the_sum_of_weights(kind, mask, causal, is_padded):
    rng, (q, k, v) = np.random.default_rng(1), draw()
    padding = rng.random(N) < 0.3 if is_padded else None
    if is_padded:
        padding[:3] = True  # so that the first queries of causal attention see no key
    make, form = MASKS[mask]
    made = None if make is None else make(rng)
    if form == "lags" and not causal:
        pytest.skip("decays are causal")
    factors = np.tri(N) if causal else np.ones((N, N))
    if form == "lags":
        counts = np.arange(N) if padding is None else np.cumsum(~padding)
        lags = np.maximum(np.subtract.outer(counts, counts), 0)
        own = np.array([np.exp(-rate * lags) for rate in (0.1, 0.3)])
        factors = factors * (own if mask == "decay" else 2 * own[0] + 5 * own[1])
    elif made is not None:
        factors = factors * (made.toarray() if hasattr(made, "toarray") else made)
    if is_padded:
        factors = factors * ~padding
    expected = log_of((weights_of(kind, q, k) * factors).sum(axis=-1))
    out, lse = called(kind, q, k, v, causal=causal, mask=made, key_padding_mask=padding)
    assert lse.shape == out.shape[:-1] and lse.dtype == np.float64
    assert_allclose(lse, expected, atol=1e-12)
    assert (out[np.isneginf(lse)] == 0).all()
    single = [x.astype(np.float32) for x in (q, k, v)]
    _, lse = called(kind, *single, causal=causal, mask=made, key_padding_mask=padding)
    assert lse.dtype == np.float32
    assert_allclose(lse, expected, atol=1e-5)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("n_gates", [0, 1])
def test_gates_and_steps_count_from_the_first_position(library, n_gates):
    q, k, v = draw()
    gates = -np.random.default_rng(2).random((2, N)) * n_gates
    gates[:, 7] = -np.inf if n_gates else 0.0
    falls = np.array([[gates[:, j + 1 : i + 1].sum(axis=1) for j in range(N)] for i in range(N)])
    factors = np.exp(np.moveaxis(falls, -1, 0)) * np.tri(N)
    for kind in MAPS:
        expected = log_of((weights_of(kind, q, k) * factors).sum(axis=-1))
        parts = [q, k, v, gates]
        if library == "torch":
            torch = pytest.importorskip("torch")
            parts = [torch.tensor(part) for part in parts]
        operator = ApproxKernelAttention(MAPS[kind], causal=True, scale=SCALE)
        _, lse = operator(*parts[:3], log_gates=parts[3], return_lse=True)
        assert_allclose(np.asarray(lse), expected, atol=1e-12)
        state, found, start = operator.init_state(), [], 0
        for n in (1, 1, 5, 1, N - 8):
            own = [part[:, start : start + n] for part in parts]
            _, lse, state = operator.step(*own[:3], state, log_gates=own[3], return_lse=True)
            found.append(np.asarray(lse))
            start += n
        assert_allclose(np.concatenate(found, axis=-1), expected, atol=1e-12)


def test_its_exponential_is_unbiased():
    q, k, v = draw() / 3
    exact = np.exp(called("exact", q, k, v)[1])
    operator = ApproxKernelAttention(PositiveRF(16), causal=False, scale=SCALE)
    draws = [
        np.exp(operator.redraw(seed)(q, k, v, return_lse=True)[1]) / exact for seed in range(200)
    ]
    deviation = np.std(draws, axis=0) / np.sqrt(len(draws))
    assert (np.abs(np.mean(draws, axis=0) - 1) / deviation).max() < 5  # 9 for a factor of 1.02


@pytest.mark.parametrize(
    "feature_map", [OptimalPositiveRF(16), DenseExponentialRF(16, asymmetric=True)], ids=str
)
def test_it_has_the_scales_of_fits(feature_map):
    q, k, v = draw() * [[[[3.0]]], [[[0.5]]], [[[1.0]]]]
    operator = ApproxKernelAttention(feature_map, scale=SCALE, random_state=0).fit(q, k)
    _, lse = operator(q, k, v, return_lse=True)
    for head, fitted in enumerate(operator.feature_maps_):
        features = fitted.transform(q[head]), fitted.transform_keys(k[head])
        assert_allclose(lse[head], np.log(features[0] @ features[1].sum(axis=0)), atol=1e-12)


def operators(causal):
    """Return callables whose results merge exactly, with one fit and one draw."""
    q, k, _ = draw(5)
    fitted = ApproxKernelAttention(OptimalPositiveRF(32, random_state=0), causal=False).fit(q, k)
    quantity = ApproxKernelAttention(GeneralizedMap(16, nonlinearity="relu", random_state=0))
    return [exact_attention, fitted, quantity]


@pytest.mark.parametrize("number", range(3))
def test_parts_merge_to_the_whole(number):
    call = operators(False)[number]
    for seed in range(20):
        rng, size = np.random.default_rng(seed), np.random.default_rng(seed).choice([1.0, 5.0])
        q, k, v = draw(seed) * [[[[size]]], [[[size]]], [[[1.0]]]]
        padding = rng.random((2, N)) < rng.choice([0.0, 0.5])
        edges = np.sort(rng.choice(np.arange(1, N), size=rng.integers(1, 4), replace=False))
        parts = np.split(rng.permutation(N), edges)
        found = [
            call(q, k[:, p], v[:, p], key_padding_mask=padding[:, p], return_lse=True)
            for p in parts
        ]
        out, lse = merge_attention(*zip(*found, strict=True))
        whole, whole_lse = call(q, k, v, key_padding_mask=padding, return_lse=True)
        assert_allclose(out, whole, atol=1e-11 * np.abs(v).max())
        assert_allclose(lse, whole_lse, atol=1e-10)


def test_merging_checks_what_it_gets_and_knows_no_nan():
    q, k, v = draw()
    out, lse = called("exact", q, k, v)
    nothing = np.zeros_like(out), np.full_like(lse, -np.inf)
    for pairs in ([(out, lse), nothing], [nothing, (out, lse)]):
        merged = merge_attention(*zip(*pairs, strict=True))
        assert_allclose(merged[0], out, rtol=1e-15)
        assert_allclose(merged[1], lse, rtol=1e-15)
    merged = merge_attention([nothing[0]] * 2, [nothing[1]] * 2)
    assert (merged[0] == 0).all() and np.isneginf(merged[1]).all()
    with pytest.raises(ValueError, match="as many"):
        merge_attention([out], [])
    with pytest.raises(ValueError, match=r"lses\[0\]"):
        merge_attention([out], [lse[..., None]])
    with pytest.raises(TypeError, match=r"outputs\[0\] must hold real"):
        merge_attention([out.astype(complex)], [lse])


def test_it_is_in_float32_for_short_floats():
    torch = pytest.importorskip("torch")
    import skrf.torch

    feature_map = OptimalPositiveRF(16)
    module = skrf.torch.RandomFeatureAttention(feature_map, is_causal=True, random_state=0)
    approximate = ApproxKernelAttention(feature_map, random_state=0)
    calls = exact_attention, approximate, WindowAttention(9), module
    for dtype in (torch.float16, torch.bfloat16):
        parts = [torch.tensor(x)[None].to(dtype) for x in draw()]
        for call in calls:
            out, lse = call(*parts, return_lse=True)
            assert out.dtype == dtype and lse.dtype == torch.float32
            out, lse = merge_attention([out], [lse])
            assert out.dtype == dtype and lse.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, lse = module(*(torch.tensor(x)[None] for x in draw(dtype=np.float32)), return_lse=True)
    assert lse.dtype == torch.float32


@pytest.mark.parametrize(
    "feature_map", [RFFSampler(32), GeneralizedMap(8, nonlinearity=np.tanh)], ids=["sines", "tanh"]
)
def test_features_with_signs_have_none(feature_map):
    q, k, v = draw()
    operator = ApproxKernelAttention(feature_map, random_state=0, causal=True)
    with pytest.raises(ValueError, match=r"return_lse.*never negative.*feature_map="):
        operator(q, k, v, return_lse=True)
    with pytest.raises(ValueError, match=r"return_lse.*never negative"):
        operator.step(q, k, v, operator.init_state(), return_lse=True)


@pytest.mark.parametrize("kind", ["features", "causal features", "window", "exact"])
def test_gradients_flow_through_it(kind):
    torch = pytest.importorskip("torch")
    import skrf.torch

    q, k, v = (torch.tensor(x)[None].requires_grad_() for x in draw(n=14) / 2)
    padding = torch.arange(14)[None] < 2
    causal = kind.startswith("causal")
    if kind == "exact":
        call = exact_attention
    elif kind == "window":
        call = WindowAttention(4, 2)
    else:
        call = skrf.torch.RandomFeatureAttention(
            OptimalPositiveRF(8), is_causal=causal, random_state=0
        ).fit(q, k, v)

    def both(q, k, v):
        out, lse = call(q, k, v, key_padding_mask=padding, return_lse=True)
        return out, torch.where(lse.isfinite(), lse, 0.0)

    assert torch.autograd.gradcheck(both, (q, k, v), fast_mode=True)


def test_queries_without_keys_have_gradients_of_zero():
    torch = pytest.importorskip("torch")
    import skrf.torch

    padding = torch.ones(1, 20, dtype=torch.bool)
    for call in (
        exact_attention,
        skrf.torch.RandomFeatureAttention(OptimalPositiveRF(8), is_causal=True, random_state=0),
        skrf.torch.RandomFeatureAttention(GeneralizedMap(8, random_state=0), is_causal=True),
    ):
        parts = [torch.tensor(x)[None].requires_grad_() for x in draw(n=20)]
        out, lse = call(*parts, key_padding_mask=padding, return_lse=True)
        assert (out == 0).all() and torch.isneginf(lse).all()
        (out.sum() + lse.exp().sum()).backward()
        for part in parts:
            assert part.grad is None or (part.grad == 0).all()


def test_chunks_of_a_loss_may_use_it():
    torch = pytest.importorskip("torch")
    from skrf.torch import RandomFeatureAttention, chunked_loss

    parts = [torch.tensor(x)[None] for x in draw(n=60)]
    mix = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
    attend = RandomFeatureAttention(OptimalPositiveRF(8), is_causal=True, random_state=0)

    def loss_of(some):
        q, k, v = (part[..., some, :] for part in parts)
        out, lse = attend(mix(q), mix(k), v, return_lse=True)
        return out.square().sum() + lse.sum()

    losses = loss_of(slice(None)), chunked_loss(loss_of, 60, chunk_size=13, modules=[mix, attend])
    assert_allclose(*(float(loss.detach()) for loss in losses), rtol=1e-12)
    gradients = [torch.autograd.grad(loss, list(mix.parameters())) for loss in losses]
    for one, other in zip(*gradients, strict=True):
        assert_allclose(one, other, rtol=1e-9)


def test_a_part_without_keys_may_have_any_output():
    out = np.random.default_rng(0).normal(size=(2, 5, WIDTH))
    empty, lse = np.full_like(out, np.nan), np.full((2, 5), -np.inf)
    merged, total = merge_attention([empty, out], [lse, np.zeros((2, 5))])
    assert_allclose(merged, out, rtol=0, atol=0)
    assert_allclose(total, 0)
    neither, total = merge_attention([empty, empty], [lse, lse])
    assert (neither == 0).all()
    assert (total == -np.inf).all()
