"""Gates and decays of causal attention against the dense mask that they stand for."""

from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skrf import AdaptiveRF, OptimalPositiveRF, RFFSampler
from skrf.attention import (
    ApproxKernelAttention,
    DecayMask,
    GeneralizedMap,
    ToeplitzMask,
    exact_attention,
)

L, D, E = 300, 6, 5
RNG = np.random.default_rng(0)
Q, K, V = RNG.normal(size=(2, 4, L, D)), *RNG.normal(size=(2, 2, 2, L, D))
GATES = -(RNG.exponential(size=(2, 2, L)) ** 3)
MAPS = {
    "optimal": OptimalPositiveRF(24, random_state=0),
    "asymmetric": AdaptiveRF(24, asymmetric=True, random_state=0),
    "relu": GeneralizedMap(64, epsilon=0.1, random_state=0),
}
maps = pytest.mark.parametrize("name", MAPS)


def dense(log_gates):
    """Return exp(G_i - G_j) for j <= i, of shape (..., L, L)."""
    sums = np.cumsum(log_gates, axis=-1)
    logs = sums[..., :, None] - sums[..., None, :]
    return np.where(np.tri(logs.shape[-1], dtype=bool), np.exp(np.minimum(logs, 0)), 0.0)


def first(n):
    """Return the first positions of the inputs."""
    return [array[..., :n, :] for array in (Q, K, V)]


def expected(feature_map, log_gates):
    """Return the attention of the dense mask, a batch entry and head at a time."""
    q, k, v = first(log_gates.shape[-1])
    out = np.empty((*q.shape[:-1], v.shape[-1]))
    for b, h in np.ndindex(2, 4):
        operator = ApproxKernelAttention(feature_map, causal=True, mask=dense(log_gates[b, h // 2]))
        out[b, h] = operator(q[b, h], k[b, h // 2], v[b, h // 2])
    return out


@cache
def expected_of_gates(name):
    """Return the attention of the dense mask of `GATES`."""
    return expected(MAPS[name], GATES)


@pytest.mark.parametrize("block_size", [None, 7, 64])
@maps
def test_gates_are_a_dense_mask_of_products(name, block_size):
    operator = ApproxKernelAttention(MAPS[name], causal=True, block_size=block_size)
    out = operator(Q, K, V, log_gates=GATES)
    assert_allclose(out, expected_of_gates(name), atol=1e-10)
    same = np.broadcast_to(GATES[:1], GATES.shape)
    assert_array_equal(operator(Q, K, V, log_gates=GATES[0]), operator(Q, K, V, log_gates=same))


@pytest.mark.parametrize("rate", [0.0, 0.01, 2.0, 50.0, [0.3, 0.0]])
@maps
def test_a_decay_is_a_toeplitz_mask(name, rate):
    mask, rates = ToeplitzMask.decay(rate), np.broadcast_to(rate, (2,))
    n = 60 if rate == 50.0 else L  # so fast a decay leaves blocks of a few positions
    gates, (q, k, v) = np.broadcast_to(-rates[:, None], (2, 2, n)), first(n)
    operator = ApproxKernelAttention(MAPS[name], causal=True, mask=mask)
    assert_allclose(operator(q, k, v), expected(MAPS[name], gates), atol=1e-10)
    assert_allclose(mask.toarray(9), dense(-np.multiply.outer(np.asarray(rate), np.ones(9))))
    matrix = operator.attention_matrix(q, k)
    assert_allclose(matrix @ np.repeat(v, 2, axis=1), operator(q, k, v), atol=1e-10)
    both = operator(q, k, v, log_gates=GATES[..., :n])
    assert_allclose(both, expected(MAPS[name], GATES[..., :n] + gates), atol=1e-10)


def test_keys_without_leading_axes_are_one_head():
    mask = ToeplitzMask.decay([0.9])
    operators = [ApproxKernelAttention(MAPS["optimal"], causal=True, mask=mask)]
    q, k, v = Q[0, 0], K[0, 0], V[0, 0]
    for operator in operators:
        assert_array_equal(operator(q, k, v), operator(q[None], k[None], v[None])[0])
    gates = GATES[0, 0]
    out = operators[0](q, k, v, log_gates=gates)
    assert_array_equal(operators[0](q, k, v, log_gates=gates[None]), out)
    with pytest.raises(ValueError, match=r"for each of 1 key heads, got shape \(2,\)\."):
        operator = ApproxKernelAttention(causal=True, mask=ToeplitzMask.decay([0.9, 0.1]))
        operator(q, k, v)


@pytest.mark.parametrize("n_queries", [1, 100])
@maps
def test_fewer_queries_are_the_last_positions(name, n_queries):
    mask = ToeplitzMask.decay([0.05, 0.2])
    operator = ApproxKernelAttention(MAPS[name], causal=True, mask=mask, block_size=64)
    out = operator(Q[:, :, -n_queries:], K, V, log_gates=GATES)
    assert_allclose(out, operator(Q, K, V, log_gates=GATES)[:, :, -n_queries:], atol=1e-10)


@pytest.mark.parametrize("sizes", [[L], [1] * L, [100, 1, 150, 49]])
@maps
def test_gates_stream(name, sizes):
    operator = ApproxKernelAttention(MAPS[name], causal=True, mask=ToeplitzMask.decay(0.05))
    whole, state, parts = operator(Q, K, V, log_gates=GATES), operator.init_state(), []
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        rows = slice(end - size, end)
        given = (array[..., rows, :] for array in (Q, K, V))
        out, state = operator.step(*given, state, log_gates=GATES[..., rows])
        parts.append(out)
    assert_allclose(np.concatenate(parts, axis=-2), whole, atol=1e-10)


def test_padding_and_float32():
    padding = RNG.uniform(size=(2, L)) < 0.2
    operator = ApproxKernelAttention(MAPS["optimal"], causal=True)
    out = operator(Q, K, V, log_gates=GATES, key_padding_mask=padding)
    kept = ~padding[0]
    parts = (array[0][:, kept] for array in (Q, K, V))
    assert_allclose(out[0][:, kept], operator(*parts, log_gates=GATES[0][:, kept]), atol=1e-10)
    single = operator(*(x.astype(np.float32) for x in (Q, K, V)), log_gates=GATES)
    assert single.dtype == np.float32
    assert_allclose(single, operator(Q, K, V, log_gates=GATES), atol=2e-4)


def test_a_long_stream_of_decays_neither_overflows_nor_forgets_its_scale():
    operator = ApproxKernelAttention(MAPS["optimal"], causal=True, mask=ToeplitzMask.decay(3.0))
    q, k, v = RNG.normal(size=(3, 2000, D))
    out = operator(q, k, v)
    assert np.isfinite(out).all()
    assert_allclose(out[-20:], operator(q[-40:], k[-40:], v[-40:])[-20:], atol=1e-10)


@pytest.mark.parametrize("gate", [-30.0, -1e4, -1e9, -1e20, -1e300, np.finfo(float).min, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gate_that_keeps_nothing_begins_anew(gate, dtype):
    q, k, v = RNG.normal(size=(3, 60, D)).astype(dtype)
    gates = np.full(60, -0.3)
    gates[[20, 41]] = gate
    operator = ApproxKernelAttention(MAPS["optimal"], causal=True)
    expected = np.concatenate(
        [
            operator(q[rows], k[rows], v[rows], log_gates=np.full(len(q[rows]), -0.3))
            for rows in (slice(0, 20), slice(20, 41), slice(41, 60))
        ]
    )
    room = {"rtol": 0, "atol": 2e-5 if dtype == "float32" or gate == -30 else 1e-10}
    assert_allclose(operator(q, k, v, log_gates=gates), expected, **room)
    for size in (1, 7):
        state, parts = operator.init_state(), []
        for start in range(0, 60, size):
            rows = slice(start, start + size)
            out, state = operator.step(q[rows], k[rows], v[rows], state, log_gates=gates[rows])
            parts.append(out)
        assert_allclose(np.concatenate(parts), expected, **room)


def test_signed_features_are_gated_by_their_scales():
    operator = ApproxKernelAttention(RFFSampler(4000, random_state=0), causal=True)
    q, k, v = first(100)
    small = q / 4, k / 4, v
    gates = np.full(100, -0.1)
    out = operator(*small, log_gates=gates)
    masked = ApproxKernelAttention(
        RFFSampler(4000, random_state=0), causal=True, mask=dense(gates)
    )(*small)
    assert_allclose(out, masked, atol=1e-10)
    mask = ToeplitzMask.decay(0.1)
    out, masked = (
        ApproxKernelAttention(RFFSampler(4000, random_state=0), causal=True, mask=one)(*small)
        for one in (mask, mask.toarray(100))
    )
    assert_allclose(out, masked, atol=1e-10)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ApproxKernelAttention()(Q, K, V, log_gates=GATES), "need causal=True"),
        (
            lambda: ApproxKernelAttention(mask=ToeplitzMask.decay(0.1))(Q, K, V),
            "need causal=True",
        ),
        (
            lambda: ApproxKernelAttention(causal=True, mask=np.ones((L, L)))(
                Q, K, V, log_gates=GATES
            ),
            "log_gates need mask=None or",
        ),
        (lambda: ApproxKernelAttention(causal=True)(Q, K, V, log_gates=-GATES), "numbers <= 0"),
        (
            lambda: ApproxKernelAttention(causal=True)(Q, K, V, log_gates=np.full(L, np.nan)),
            "numbers <= 0",
        ),
        (
            lambda: ApproxKernelAttention(causal=True)(Q, K, V, log_gates=GATES[:, :, 1:]),
            r"log_gates must be \(..., heads, S\)",
        ),
        (
            lambda: ApproxKernelAttention(causal=True, mask=ToeplitzMask.decay([1, 2, 3]))(Q, K, V),
            "a number, or one for each of 2 key heads",
        ),
        (lambda: ToeplitzMask.decay(-1.0), "rate must be finite and >= 0"),
        (lambda: ToeplitzMask.decay(np.ones((2, 2))), "rate must be a number or an array"),
        (
            lambda: ApproxKernelAttention(causal=True, mask=ToeplitzMask([1, 1, 1])).init_state(),
            "only exponentials of the lag",
        ),
    ],
)
def test_gates_that_do_not_fit_are_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


DECAYS = {
    "one": ToeplitzMask.decay(0.05),
    "heads": ToeplitzMask.decay([0.3, 0.0]),
}


def dense_decay(mask, n):
    """Return a decay as a mask of the 4 query heads of 2 key heads."""
    return np.repeat(np.broadcast_to(mask.toarray(n), (2, n, n)), 2, axis=0)


@pytest.mark.parametrize("n_queries", [64, 5])
@pytest.mark.parametrize("name", DECAYS)
def test_exact_attention_takes_decays(name, n_queries, library):
    mask, (q, k, v) = DECAYS[name], (x[:, :, :64] for x in (Q, K, V))
    expected = exact_attention(q, k, v, causal=True, mask=dense_decay(mask, 64))
    q = q[:, :, -n_queries:]
    out = exact_attention(q, k, v, causal=True, mask=mask, block_size=7)
    assert_allclose(out, expected[:, :, -n_queries:], atol=1e-13)
    given = map(library.array, (q, k, v))
    assert_allclose(library.host(exact_attention(*given, causal=True, mask=mask)), out, atol=1e-13)
    with pytest.raises(ValueError, match="need causal=True"):
        exact_attention(q, k, v, mask=mask)


def check_diagnosis(operator, n_keys):
    """All of 64 queries are judged; errors of sets of keys are in units of their values."""
    q, k, v = (x[:, :, :n_keys] for x in (Q, K, V))
    q, v = q[:, :, -64:], v / np.abs(v).max(axis=(-2, -1), keepdims=True)
    errors = operator.diagnose(q, k, v).sampled_errors
    dense = dense_decay(operator.mask, n_keys)[..., -64:, :]
    right = exact_attention(q, k, v, causal=True, mask=dense)
    mean = exact_attention(0 * q, k, v, causal=True, mask=dense)
    for answer, found in ((operator(q, k, v), "attention"), (mean, "mean")):
        error = np.linalg.norm(answer - right) / np.linalg.norm(right)
        assert_allclose(errors[found], error, rtol=1e-9)


@pytest.mark.parametrize("name", DECAYS)
def test_diagnoses_know_decays(name):
    params = {"causal": True, "mask": DECAYS[name]}
    check_diagnosis(ApproxKernelAttention(MAPS["optimal"], **params), 64)


def test_diagnoses_of_the_last_queries_know_decays():
    mask = DECAYS["heads"]
    check_diagnosis(ApproxKernelAttention(MAPS["optimal"], causal=True, mask=mask), 90)


# ------------------------------------------------------------------ torch


def test_torch_differentiates_gates_and_rates_in_calls_steps_and_chunks():
    torch = pytest.importorskip("torch")
    from skrf.torch import RandomFeatureAttention, chunked_loss

    q, k, v = (torch.tensor(x[:, :, :70]) for x in (Q, K, V))
    gates = torch.tensor(GATES[..., :70] - 0.01, requires_grad=True)
    rate = torch.nn.Parameter(torch.tensor([0.2, 0.1], dtype=torch.float64))
    make = {"is_causal": True, "random_state": 0}
    module = RandomFeatureAttention(MAPS["optimal"], mask=ToeplitzMask.decay(rate), **make)
    assert [p is rate for p in module.parameters()] == [True]
    target = torch.tensor(RNG.normal(size=(2, 4, 70, D)))

    def gradients(out):
        return torch.autograd.grad(((out - target) ** 2).sum(), (gates, rate), retain_graph=True)

    # The dense mask, by the features of the same draw.
    plain = RandomFeatureAttention(MAPS["optimal"], **make)
    sums = torch.cumsum(gates - rate[:, None], -1)
    logs = sums[..., :, None] - sums[..., None, :]
    mask = torch.exp(torch.where(torch.ones(70, 70).tril().bool(), logs, -torch.inf))
    rows = []
    for b in range(2):
        operator = plain._operators[True].at(mask=mask[b].repeat_interleave(2, dim=0))
        rows.append(operator(q[b], k[b], v[b]))
    reference = torch.stack(rows)
    wanted = gradients(reference)
    out = module(q, k, v, log_gates=gates)
    assert_allclose(out.detach(), reference.detach(), atol=1e-10)
    for actual, value in zip(gradients(out), wanted, strict=True):
        assert_allclose(actual, value, rtol=1e-7, atol=1e-9)
    state, parts = module.init_state(), []
    for rows in (slice(0, 30), slice(30, 31), slice(31, 70)):
        given = (x[:, :, rows] for x in (q, k, v))
        step, state = module.step(*given, state, log_gates=gates[..., rows])
        parts.append(step)
    for actual, value in zip(gradients(torch.cat(parts, 2)), wanted, strict=True):
        assert_allclose(actual, value, rtol=1e-7, atol=1e-9)
    rate.grad = None

    def loss_of(rows):
        given = (x[:, :, rows] for x in (q, k, v))
        out = module(*given, log_gates=gates.detach()[..., rows])
        return ((out - target[:, :, rows]) ** 2).sum()

    chunked_loss(loss_of, 70, chunk_size=16, modules=module).backward()
    assert_allclose(rate.grad, wanted[1], rtol=1e-7)


@pytest.mark.parametrize("sizes", [[40], [1] * 40, [7] * 5 + [5]])
@pytest.mark.parametrize("name", MAPS)
def test_a_gate_of_0_forgets_the_past_in_torch(name, sizes):
    """Texts of two rows that begin at other positions; gradients do not cross the beginnings."""
    torch = pytest.importorskip("torch")
    from skrf.torch import RandomFeatureAttention

    mask, starts = ToeplitzMask.decay([0.05, 0.3]), (11, 26)
    module = RandomFeatureAttention(MAPS[name], mask=mask, is_causal=True, random_state=0)
    q, k, v = (torch.tensor(x[:, :2, :40], requires_grad=True) for x in (Q, K, V))
    gates = torch.tensor(GATES[..., :40])
    for row, start in enumerate(starts):
        gates[row, :, start] = -torch.inf
    gates.requires_grad_()
    state, parts = module.init_state(), []
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        rows = slice(end - size, end)
        given = (x[:, :, rows] for x in (q, k, v))
        out, state = module.step(*given, state, log_gates=gates[..., rows])
        parts.append(out)
    out = torch.cat(parts, dim=2)
    found = torch.autograd.grad(out.sin().sum(), (q, k, v, gates))
    expected, texts = [], []
    for row, start in enumerate(starts):
        for rows in (slice(0, start), slice(start, 40)):
            own = [x[row, :, rows] for x in (q, k, v, gates.detach())]
            expected.append(module(*(x[None] for x in own[:3]), log_gates=own[3][None])[0])
            texts.append((row, slice(None), rows))
    wanted = torch.autograd.grad(sum(x.sin().sum() for x in expected), (q, k, v))
    for text, one in zip(texts, expected, strict=True):
        assert_allclose(out[text].detach(), one.detach(), atol=1e-10)
    for one, other in zip(found, wanted, strict=False):
        assert_allclose(one, other, atol=1e-9)
    assert found[3].isfinite().all() and not found[3][gates.isinf()].any()
    assert_allclose(module(q, k, v, log_gates=gates).detach(), out.detach(), atol=1e-10)


def test_a_mask_may_be_a_function_that_returns_a_decay():
    torch = pytest.importorskip("torch")
    from skrf.torch import RandomFeatureAttention

    log_rate = torch.zeros(2, requires_grad=True)
    module = RandomFeatureAttention(
        MAPS["optimal"], is_causal=True, mask=lambda: ToeplitzMask.decay(log_rate.exp())
    )
    q, k, v = (torch.tensor(x[:, :, :20]) for x in (Q, K, V))
    out, _ = module.step(q, k, v, module.init_state())
    out.sum().backward()
    assert log_rate.grad.abs().min() > 0
    assert isinstance(module.mask(), DecayMask)
    trained = RandomFeatureAttention(
        is_causal=True, mask=ToeplitzMask.decay(torch.nn.Parameter(torch.tensor(0.1)))
    )
    trained(q, k, v)
    with torch.no_grad():
        trained.mask_rate -= 1.0
    with pytest.raises(ValueError, match="rate must be finite and >= 0"):
        trained(q, k, v)
