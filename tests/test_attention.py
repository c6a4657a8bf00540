"""The attention operator against the quadratic product of the same features, in every mode."""

import pickle
import threading
import time
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from instances import MECHANISMS, make
from numpy.testing import assert_allclose, assert_array_equal
from samples import FUNCTIONS
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info, threadpool_limits

from skrf import (
    AdaptiveRF,
    DenseExponentialRF,
    HybridRF,
    OptimalPositiveRF,
    PositiveRF,
    RFFSampler,
)
from skrf._sums import Rows
from skrf.attention import (
    ApproxKernelAttention,
    GeneralizedMap,
    ToeplitzMask,
    _heads,
    exact_attention,
)
from skrf.attention._heads import Head, HeadSet, Output, Unit
from skrf.attention._linear import causal
from skrf.exceptions import FeatureCollapseWarning
from skrf.features import FeatureMap
from skrf.projections import Simplex

L, S, D, E = 150, 90, 6, 5
RNG = np.random.default_rng(0)
NEAR = np.exp(-np.abs(np.arange(1 - L, L)) / 20.0)
GRID = RNG.uniform(size=(2 * 15 - 1, 2 * 10 - 1))
MASKS = {
    "none": None,
    "toeplitz": ToeplitzMask(NEAR),
    "grid": ToeplitzMask(GRID),
    "sparse": sp.random_array((L, L), density=0.2, rng=1, format="csr"),
    "boolean": RNG.uniform(size=(L, L)) < 0.3,
}
MAPS = {
    "optimal": OptimalPositiveRF(24, random_state=0),
    "hyperbolic": PositiveRF(24, variant="hyperbolic", random_state=0),
    "asymmetric": DenseExponentialRF(24, asymmetric=True, random_state=0),
    "adaptive": AdaptiveRF(24, random_state=0),
    "clustered": HybridRF(24, coefficients="clustered", random_state=0),
    "trigonometric": RFFSampler(400, random_state=0),
    "elu": GeneralizedMap(24, nonlinearity="elu", random_state=0),
    "square": GeneralizedMap(nonlinearity="square", projection="identity", random_state=0),
    "exp": GeneralizedMap(24, nonlinearity="exp", epsilon=0.1, random_state=0),
    "functions": GeneralizedMap(**FUNCTIONS, epsilon=0.1),
}
every_map = pytest.mark.parametrize("name", MAPS)
every_mask = pytest.mark.parametrize("mask", MASKS)
both_modes = pytest.mark.parametrize("causal", [False, True])
pytestmark = pytest.mark.filterwarnings("ignore:Random features have collapsed")


def inputs(scale=0.7, lead=(2, 4), key_lead=(2, 2), n=L, s=L, seed=0):
    rng = np.random.default_rng(seed)
    q = scale * rng.normal(size=(*lead, n, D)) + 0.3
    return q, scale * rng.normal(size=(*key_lead, s, D)), rng.normal(size=(*key_lead, s, E))


def padding_of(s=S, lead=(2,)):
    return np.random.default_rng(1).uniform(size=(*lead, s)) < 0.3


def dense_mask(mask):
    return mask.toarray() if hasattr(mask, "toarray") else np.asarray(mask, dtype=float)


def quadratic(attention, q, k, v, padding=None):
    """Rows of the explicit matrix of feature products, normalised, times the values."""
    groups, n_heads = attention._check(q, k, v, padding)
    out = np.empty((*groups.q.shape[:-1], v.shape[-1]))
    n, s = groups.q.shape[2], groups.k.shape[1]
    weights = np.ones((n, s)) if attention.mask is None else dense_mask(attention.mask)
    weights = np.tril(weights) if attention.causal else weights
    for u, maps in enumerate(attention._sets(groups, n_heads)):
        (head,) = maps.heads
        own = weights if groups.padding is None else weights * ~groups.padding[u]
        for g, queries in enumerate(groups.q[u]):
            (rows, _), (keys, scale) = head.queries(queries), head.keys(groups.k[u])
            if head.is_positive:
                with np.errstate(divide="ignore", invalid="ignore"):
                    logs = logsumexp(rows[:, None] + keys[None], axis=2) + np.log(own)
                    matrix = np.nan_to_num(np.exp(logs - logs.max(axis=1, keepdims=True)))
            else:
                matrix = (rows @ keys.T) * own * np.exp(scale - scale.max()).T
            total = matrix.sum(axis=1, keepdims=True)
            out[u, g] = (matrix / np.where(total == 0, 1, total)) @ groups.v[u]
    return groups.ungroup(out)


# ------------------------------------------------------------------ one result in every mode


@both_modes
@every_mask
@every_map
def test_linear_equals_quadratic(name, mask, causal):
    attention = ApproxKernelAttention(MAPS[name], causal=causal, mask=MASKS[mask])
    q, k, v = inputs()
    padding = padding_of(L)
    if name in ("asymmetric", "adaptive", "clustered"):
        attention.fit(q, k)
    for hidden in (None, padding):
        expected = quadratic(attention, q, k, v, hidden)
        assert_allclose(
            attention(q, k, v, key_padding_mask=hidden), expected, rtol=1e-10, atol=1e-10
        )
    single = [part.astype(np.float32) for part in (q, k, v)]
    result = attention(*single, key_padding_mask=padding)
    assert result.dtype == np.float32
    # Trigonometric denominators may be small: their maps are documented as unsafe.
    atol = 1e-2 if name == "trigonometric" else 1e-4
    assert_allclose(result, expected, rtol=1e-4, atol=atol)


@every_map
def test_cross_attention_equals_quadratic(name):
    q, k, v = inputs(s=S)
    attention = ApproxKernelAttention(MAPS[name], block_size=37)
    padding = padding_of()
    expected = quadratic(attention, q, k, v, padding)
    result = attention(q, k, v, key_padding_mask=padding)
    assert_allclose(result, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "scale"), [("optimal", 0.5), ("optimal", 3.0), ("optimal", 30.0), ("clustered", 3.0)]
)
@pytest.mark.parametrize("sizes", [(1,), (7,), (512,), (1, 7, 64, 200)])
def test_streaming_equals_one_shot(sizes, name, scale):
    n = 700 if sizes != (1,) else 60
    attention = ApproxKernelAttention(MAPS[name], causal=True)
    q, k, v = inputs(scale, n=n, s=n)
    if name == "clustered":
        attention.fit(q, k)
    padding = padding_of(n)
    for dtype, tolerance in ((np.float64, 1e-10), (np.float32, 1e-4)):
        q, k, v = (part.astype(dtype) for part in (q, k, v))
        expected = attention(q, k, v, key_padding_mask=padding)
        state, start, parts, turn = attention.init_state(), 0, [], 0
        while start < n:
            here = slice(start, start + sizes[turn % len(sizes)])
            part, state = attention.step(
                *(z[..., here, :] for z in (q, k, v)), state, key_padding_mask=padding[:, here]
            )
            parts.append(part)
            start, turn = here.stop, turn + 1
        result = np.concatenate(parts, axis=-2)
        assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


def test_a_long_stream_does_not_drift():
    """The state after 200,000 float32 positions is that of float64, in constant memory."""
    attention = ApproxKernelAttention(OptimalPositiveRF(16, random_state=0), causal=True)
    rng = np.random.default_rng(0)
    states = [attention.init_state(), attention.init_state()]
    for _ in range(50):
        q, k, v = rng.normal(size=(3, 4000, 4)).astype(np.float32)
        single, states[0] = attention.step(q, k, v, states[0])
        double, states[1] = attention.step(*(z.astype(np.float64) for z in (q, k, v)), states[1])
    assert_allclose(single, double, rtol=2e-5, atol=2e-6)
    assert states[0].heads[0][0].sums.shape == (16, 5)


@every_mask
@every_map
def test_nothing_comes_from_the_future(name, mask):
    attention = ApproxKernelAttention(MAPS[name], causal=True, mask=MASKS[mask])
    q, k, v = inputs()
    if name == "clustered":
        attention.fit(q, k)
    before = attention(q, k, v)
    cut = 61
    for part in (q, k, v):
        part[..., cut:, :] = 5 * part[..., cut:, :] + 3
    after = attention(q, k, v)
    atol = 1e-9 if name == "trigonometric" else 1e-11
    assert_allclose(after[..., :cut, :], before[..., :cut, :], rtol=1e-11, atol=atol)
    assert np.abs(after[..., cut:, :] - before[..., cut:, :]).max() > 0.1


@both_modes
def test_threads_change_nothing(causal, monkeypatch):
    monkeypatch.setattr(_heads, "_THREADED_ROWS", 0)
    q, k, v = inputs(lead=(2, 6), key_lead=(2, 3))
    results = []
    for limit in (1, 2, 3):
        with threadpool_limits(limit, user_api="blas"):
            results.append(ApproxKernelAttention(MAPS["optimal"], causal=causal)(q, k, v))
    assert_array_equal(results[0], results[1])
    assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("length", [1000, 1024])
def test_heads_get_threads_only_if_they_are_long(length, monkeypatch):
    """Python's overhead dominates the others, and threads would wait for each other."""
    workers, unit_of = set(), _heads.unit_of

    def noted(*args):
        workers.add(threading.get_ident())
        time.sleep(0.01)
        return unit_of(*args)

    monkeypatch.setattr(_heads, "unit_of", noted)
    q = np.random.default_rng(0).normal(size=(4, length, 4))
    with threadpool_limits(2, user_api="blas"):
        ApproxKernelAttention(MAPS["optimal"])(q, q, q)
        libraries = [own for own in threadpool_info() if own["user_api"] == "blas"]
        n_allowed = max(own["num_threads"] for own in libraries)
    assert len(workers) == (n_allowed if length == 1024 else 1)


# ------------------------------------------------------------------ extremes


@both_modes
@pytest.mark.parametrize("name", ["optimal", "hyperbolic", "asymmetric", "adaptive", "clustered"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "shape", [(40, 8), (40, 1), (1, 8), (1, 1)], ids=lambda shape: "x".join(map(str, shape))
)
def test_extreme_inputs_stay_finite(shape, dtype, name, causal):
    """Logits of +-1e4, constant rows, one position, width 1, padded rows: finite and right."""
    n, d = shape
    rng = np.random.default_rng(0)
    cases = []
    for scale in (1e-6, 1.0, np.sqrt(1e4 / np.sqrt(d))):
        x = rng.normal(size=(3, n, d))
        cases.append(scale * x / np.abs(x).max() * np.sqrt(2))
    constant = np.ones((3, n, d))
    cases += [constant, 50 * constant, 0 * constant]
    for q, k, v in cases:
        q, k, v = (part.astype(dtype) for part in (q, k, v))
        for padding in (None, np.ones(n, bool), np.arange(n) < n // 2):
            attention = ApproxKernelAttention(MAPS[name], causal=causal)
            if name == "clustered" and causal:
                attention.fit(q, k)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.simplefilter("ignore", FeatureCollapseWarning)
                out = attention(q, k, v, key_padding_mask=padding)
                gradients = attention.backward(q, k, v, v, key_padding_mask=padding)
            assert np.isfinite(out).all()
            assert all(np.isfinite(part).all() for part in gradients)
            largest = np.abs(v).max() * (1 + 1e-5)
            assert np.abs(out).max() <= largest  # means of values
            if padding is not None and padding.all():
                assert not out.any()
            expected = quadratic(attention, q, k, v, padding)
            assert_allclose(out, expected, atol=(1e-3 if dtype == np.float32 else 1e-9) * largest)


@both_modes
@pytest.mark.parametrize("scale", [3.0, 30.0, 300.0])
def test_single_precision_at_any_size(scale, causal):
    """Exponents of 1e3 and more are formed in float64: the same numbers give the same output."""
    q, k, v = (part.astype(np.float32) for part in inputs(scale))
    attention = ApproxKernelAttention(MAPS["optimal"], causal=causal).fit(q, k)
    expected = attention(*(part.astype(np.float64) for part in (q, k, v)))
    assert_allclose(attention(q, k, v), expected, atol=1e-4)


def test_the_first_keys_of_a_causal_block_may_be_far_below_the_later_ones():
    """Log keys -60, 0, 100: a block-end maximum alone would give 0/0 in the first rows."""
    attention = ApproxKernelAttention(OptimalPositiveRF(8, random_state=0), causal=True, scale=1.0)
    k = np.r_[np.full((3, 2), 11.0), np.zeros((3, 2)), np.full((3, 2), 0.1)]
    q, v = np.random.default_rng(0).normal(size=(2, 9, 2))
    assert_allclose(attention(q, k, v), quadratic(attention, q, k, v), rtol=1e-10)
    for flipped in (k[::-1], -k, 30 * k):
        expected = quadratic(attention, q, flipped, v)
        assert_allclose(attention(q, flipped, v), expected, rtol=1e-9)


@pytest.mark.parametrize("spread", [0.0, 1e-17, 1e-16, 1e-15, 1e-12, 1e-7, 1e-6, 1e-3])
@pytest.mark.parametrize("name", ["optimal", "asymmetric", "adaptive", "clustered"])
def test_keys_that_agree_to_rounding(name, spread):
    """Balancing a spread of rounding against that of queries must not blow rounding up."""
    q, k, v = inputs(s=S)
    k = k[..., :1, :] * (1 + spread * np.random.default_rng(1).normal(size=k.shape))
    attention = ApproxKernelAttention(MAPS[name])
    if name == "adaptive":
        attention.set_params(feature_map__asymmetric=True)
    result, exact = attention(q, k, v), exact_attention(q, k, v)
    assert_allclose(result, exact, atol=30 * spread + 1e-9)
    single = [part.astype(np.float32) for part in (q, k, v)]
    widened = attention(*(part.astype(float) for part in single))
    assert_allclose(attention(*single), widened, rtol=1e-4, atol=1e-4)


def test_collapse_is_said_and_only_then():
    q, k, v = np.random.default_rng(0).normal(size=(3, 200, 16))
    attention = ApproxKernelAttention(OptimalPositiveRF(256, random_state=0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention(0.5 * q, 0.5 * k, v)
    assert not attention.diagnose(0.5 * q, 0.5 * k, v).has_collapsed
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # with one key the output is its value
        attention(6 * q, 6 * k[:1], v[:1])
    with pytest.warns(FeatureCollapseWarning, match="the relative error of the output is 1"):
        attention(6 * q, 6 * k, v)
    diagnosis = attention.diagnose(6 * q, 6 * k, v)
    assert len(repr(diagnosis)) < 250  # without a number for every query
    assert diagnosis.has_collapsed and np.median(diagnosis.effective_features) < 2


@both_modes
@pytest.mark.parametrize("mask", [None, np.tri(6, 6, 3)])
def test_queries_whose_weights_sum_to_0_get_0_and_a_warning(mask, causal):
    map_ = GeneralizedMap(nonlinearity="relu", projection="identity")
    attention = ApproxKernelAttention(map_, mask=mask, causal=causal)
    q, k, v = np.abs(np.random.default_rng(0).normal(size=(3, 2, 6, 3)))
    hidden = np.arange(6) < 1
    expected = attention(q, k, v, key_padding_mask=hidden)
    assert expected[:, 0].any() != causal  # without a key there is no warning
    q[0, 2], q[1, :2] = -1, -1
    with pytest.warns(FeatureCollapseWarning, match=rf"\({2 if causal else 3} of 12 queries\)"):
        found = attention(q, k, v, key_padding_mask=hidden)
    is_lost = (q < 0).all(axis=-1)
    assert not found[is_lost].any()
    assert_allclose(found[~is_lost], expected[~is_lost])
    with pytest.warns(FeatureCollapseWarning, match="weights of their queries sum to 0"):
        attention(q, k, v)


def test_streams_warn_of_queries_whose_weights_sum_to_0():
    map_ = GeneralizedMap(nonlinearity="relu", projection="identity")
    attention = ApproxKernelAttention(map_, causal=True)
    q, k, v = np.abs(np.random.default_rng(0).normal(size=(3, 2, 6, 3)))
    _, state = attention.step(q, k, v, attention.init_state())
    with pytest.warns(FeatureCollapseWarning, match=r"\(2 of 12 queries\)"):
        # A key of before counts, though those of this step are padded.
        attention.step(
            np.where(np.arange(6)[:, None] == 3, -q, q),
            *(k, v, state),
            key_padding_mask=np.ones(6, dtype=bool),
        )


# ------------------------------------------------------------------ gradients


@both_modes
@every_mask
@every_map
def test_gradients_are_those_of_differences(name, mask, causal):
    attention = ApproxKernelAttention(MAPS[name], causal=causal, mask=MASKS[mask])
    if name == "trigonometric":  # more features: denominators away from 0
        attention.set_params(feature_map=RFFSampler(2000, random_state=0))
    q, k, v = inputs(scale=0.4)
    padding = padding_of(L)
    attention.fit(q, k)
    rng = np.random.default_rng(2)
    gradient = rng.normal(size=(*q.shape[:-1], E))
    results = attention.backward(q, k, v, gradient, key_padding_mask=padding)

    def value(parts):
        return np.sum(gradient * attention(*parts, key_padding_mask=padding))

    step = 1e-5
    for i, result in enumerate(results):
        direction = rng.normal(size=result.shape)
        moved = [
            [part + (sign * step * direction if i == j else 0) for j, part in enumerate((q, k, v))]
            for sign in (1, -1)
        ]
        expected = (value(moved[0]) - value(moved[1])) / (2 * step)
        size = np.sqrt(np.sum(result**2))
        assert abs(np.sum(result * direction) - expected) < 1e-6 * max(size, 1)
    single = attention.backward(
        *(part.astype(np.float32) for part in (q, k, v, gradient)), key_padding_mask=padding
    )
    for part, result in zip(single, results, strict=True):
        assert part.dtype == np.float32
        assert_allclose(part, result, atol=1e-3 * np.abs(result).max())


@both_modes
def test_gradients_are_those_of_torch(causal):
    """More positions than three causal parts and two blocks, with keys that grow."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    n = 500
    q, k, v = inputs(lead=(2,), key_lead=(2,), n=n, s=n)
    k = k * np.linspace(0.2, 3, n)[:, None]
    attention = ApproxKernelAttention(OptimalPositiveRF(16, random_state=0), causal=causal).fit(
        q, k
    )
    gradient = np.random.default_rng(0).normal(size=v.shape)
    tensors = [torch.tensor(part, requires_grad=True) for part in (q, k, v)]
    outs = []
    for h, mechanism in enumerate(attention.mechanisms_):
        queries, keys = mechanism.feature_maps_
        rows, keys = queries(tensors[0][h]).values, keys(tensors[1][h]).values
        logs = torch.logsumexp(rows[:, None] + keys[None], dim=2)
        if causal:
            logs = logs.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        outs.append(torch.softmax(logs, dim=1) @ tensors[2][h])
    (torch.stack(outs) * torch.tensor(gradient)).sum().backward()
    assert_allclose(attention(q, k, v), torch.stack(outs).detach().numpy(), rtol=1e-10)
    for result, tensor in zip(attention.backward(q, k, v, gradient), tensors, strict=True):
        assert_allclose(result, tensor.grad.numpy(), rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------ statistics and draws


def test_statistics_come_from_the_call_the_fit_or_nowhere():
    q, k, v = inputs()
    attention = ApproxKernelAttention(MAPS["asymmetric"])
    scale = D**-0.25
    for b in range(2):
        for h in range(4):
            mechanism = clone(MAPS["asymmetric"]).set_params(kernel="softmax", sigma=scale)
            pair = q[b, 2 * (h // 2) : 2 * (h // 2) + 2].reshape(-1, D)
            mechanism.fit(pair, keys=k[b, h // 2])
            weights = mechanism.approximate_kernel(q[b, h], k[b, h // 2])
            expected = weights / weights.sum(axis=1, keepdims=True) @ v[b, h // 2]
            assert_allclose(attention(q, k, v)[b, h], expected, rtol=1e-9)
    causal = ApproxKernelAttention(MAPS["asymmetric"], causal=True)
    mechanism = causal._sets(*causal._check(q, k, v, None))[0].heads[0].mechanism
    assert_array_equal(mechanism.rho_, np.ones(D))
    assert_array_equal(mechanism.offset_, np.zeros(D))
    causal.fit(q, k)
    assert len(causal.mechanisms_) == 2
    assert_array_equal(causal.mechanisms_[0].omega_, causal.mechanisms_[1].omega_)
    assert (causal.mechanisms_[0].rho_ != causal.mechanisms_[1].rho_).all()
    pooled = clone(MAPS["asymmetric"]).set_params(kernel="softmax", sigma=scale)
    pooled.fit(q[:, 2:].reshape(-1, D), keys=k[:, 1].reshape(-1, D))
    assert_allclose(causal.mechanisms_[1].rho_, pooled.rho_, rtol=1e-12)
    with pytest.raises(ValueError, match="fitted to 2 of width 6"):
        causal(q[:, :1], k[:, :1], v[:, :1])


def test_padded_keys_take_no_part_in_statistics():
    q, k, v = inputs(lead=(), key_lead=())
    padding = np.arange(L) >= 100
    changed = k.copy()
    changed[100:] += 50
    for attention in (
        ApproxKernelAttention(MAPS["asymmetric"]),
        ApproxKernelAttention(MAPS["asymmetric"]).fit(q, changed, key_padding_mask=padding),
    ):
        result = attention(q, changed, v, key_padding_mask=padding)[:100]
        expected = ApproxKernelAttention(MAPS["asymmetric"])(q[:100], k[:100], v[:100])
        assert_allclose(result, expected, rtol=1e-10)


def test_random_numbers_are_drawn_once():
    q, k, v = inputs()
    attention = ApproxKernelAttention(OptimalPositiveRF(24))
    first = attention(q, k, v)
    assert_array_equal(attention(q, k, v), first)
    assert not np.allclose(clone(attention)(q, k, v), first, rtol=1e-3)
    attention.set_params(scale=0.01)
    assert not np.allclose(attention(q, k, v), first, rtol=1e-3)


def test_a_changed_map_takes_effect():
    """Its parameters count, not the object: they change in place, and ids come again."""
    q, k, v = inputs()
    attention = ApproxKernelAttention(OptimalPositiveRF(8, random_state=0))
    for n in (8, 9, 24):
        attention.set_params(feature_map__n_components=n)
        expected = ApproxKernelAttention(OptimalPositiveRF(n, random_state=0))(q, k, v)
        assert_array_equal(attention(q, k, v), expected)
    for n in range(1, 40):
        attention.set_params(feature_map=PositiveRF(n, random_state=0))
        assert attention._prototypes(D, attention.feature_map)[0].n_components_ == n
    attention = ApproxKernelAttention(OptimalPositiveRF(8))
    kept = attention(q, k, v)
    attention.set_params(feature_map__n_components=16)(q, k, v)
    attention.set_params(feature_map__n_components=8)
    assert_array_equal(attention(q, k, v), kept)


def test_parameters_that_change_after_fit_are_refused():
    q, k, v = inputs()
    attention = ApproxKernelAttention(OptimalPositiveRF(24, random_state=0)).fit(q, k)
    expected = attention(q, k, v)
    assert_array_equal(pickle.loads(pickle.dumps(attention))(q, k, v), expected)
    for params in ({"scale": 0.1}, {"feature_map__n_components": 32}, {"random_state": 1}):
        with pytest.raises(ValueError, match="has changed after fit"):
            attention.set_params(**params)(q, k, v)
        assert attention.fit(q, k)(q, k, v).shape == expected.shape


@pytest.mark.parametrize("is_fitted", [False, True])
@pytest.mark.parametrize("feature_map", [None, OptimalPositiveRF(24), AdaptiveRF(24)], ids=repr)
def test_what_stands_at_padded_positions_does_not_count(feature_map, is_fitted):
    """Neither as key nor as query: the latter must not enter statistics."""
    q, k, v = inputs(key_lead=(2, 2))
    padding = np.zeros((2, L), bool)
    padding[1, -7:] = True
    attention = ApproxKernelAttention(feature_map, random_state=0)

    def attended(q, k, v):
        own = clone(attention)
        if is_fitted:
            own.fit(q, k, v, key_padding_mask=padding)
        return own(q, k, v, key_padding_mask=padding)[1, :, :-7]

    others = q.copy(), k.copy(), v.copy()
    for part, change in zip(others, (3, -2, 10), strict=True):
        part[1, :, -7:] += change
    assert_array_equal(attended(*others), attended(q, k, v))


def test_random_state_of_the_operator_replaces_that_of_the_map():
    q, k, v = inputs()
    default = ApproxKernelAttention(random_state=3)(q, k, v)
    assert_array_equal(ApproxKernelAttention(random_state=3)(q, k, v), default)
    assert (ApproxKernelAttention(random_state=4)(q, k, v) != default).any()
    expected = ApproxKernelAttention(OptimalPositiveRF(24, random_state=3))(q, k, v)
    attention = ApproxKernelAttention(OptimalPositiveRF(24, random_state=0), random_state=3)
    assert_array_equal(attention(q, k, v), expected)
    state = np.random.RandomState(0)
    attention.set_params(random_state=state)
    assert_array_equal(attention(q, k, v), attention(q, k, v))
    attention.set_params(random_state=None)
    expected = ApproxKernelAttention(OptimalPositiveRF(24, random_state=0))(q, k, v)
    assert_array_equal(attention(q, k, v), expected)
    with pytest.raises(ValueError, match="'seven'"):
        attention.set_params(random_state="seven")(q, k, v)


@pytest.mark.parametrize("is_fitted", [False, True])
def test_a_redraw_stays_until_random_state_changes(is_fitted):
    q, k, v = inputs()

    def called(attention):
        return (attention.fit(q, k) if is_fitted else attention)(q, k, v)

    expected = called(ApproxKernelAttention(OptimalPositiveRF(24), random_state=5000))
    attention = ApproxKernelAttention(OptimalPositiveRF(24), random_state=4000)
    called(attention)
    redrawn = attention.redraw(1)(q, k, v)
    assert_array_equal(pickle.loads(pickle.dumps(attention))(q, k, v), redrawn)
    assert (redrawn != called(clone(attention))).any()
    assert_array_equal(called(attention.set_params(random_state=5000)), expected)


@pytest.mark.parametrize("name", [n for n in MECHANISMS if not n.endswith("positive")])
def test_every_mechanism_serves(name):
    q, k, v = inputs(0.3)
    attention = ApproxKernelAttention(make(name, n_components=512, random_state=0))
    error = attention(q, k, v) - exact_attention(q, k, v)
    # Discrete features are coarse; all others are within a tenth.
    assert np.sqrt(np.mean(error**2)) < (0.3 if name.startswith(("Po", "Geo", "Hyb")) else 0.1)
    attention.set_params(causal=True)
    if attention._prototypes(D, attention.feature_map)[0].needs_data:
        with pytest.raises(ValueError, match=r"call fit\(q, k\) first"):
            attention(q, k, v)
        attention.fit(q, k)
    assert attention(q, k, v).shape == q.shape[:-1] + (E,)


def test_pipelines_and_couplings_of_a_user_serve():
    q, k, v = inputs(0.3)
    pipeline = make_pipeline(StandardScaler(with_mean=False), OptimalPositiveRF(256))
    attention = ApproxKernelAttention(pipeline)
    for step in attention.fit(q, k).mechanisms_:
        assert step[-1].kernel == "softmax" and np.isclose(step[-1].sigma, D**-0.25)
    assert attention(q, k, v).shape == v.shape[:1] + q.shape[1:3] + (E,)
    with pytest.raises(ValueError, match="needs statistics"):
        ApproxKernelAttention(pipeline, causal=True)(q, k, v)
    own = OptimalPositiveRF(64, coupling=Simplex(), random_state=0)
    named = OptimalPositiveRF(64, coupling="simplex", random_state=0)
    assert_array_equal(*(ApproxKernelAttention(m)(q, k, v) for m in (own, named)))
    with pytest.raises(ValueError, match="no parameter 'sigma'"):
        ApproxKernelAttention(Nystroem())(q, k, v)


@pytest.mark.parametrize("causal", [False, True])
def test_error_falls_as_one_over_the_root(causal):
    """32 times the features, 40 seeds: the error falls by sqrt(32) within 20 %."""
    q, k, v = inputs(0.5, lead=(), key_lead=())
    exact = exact_attention(q, k, v, causal=causal)
    errors = [
        np.sqrt(
            np.mean(
                [
                    np.mean(
                        (
                            ApproxKernelAttention(
                                OptimalPositiveRF(m, coupling="iid", random_state=seed),
                                causal=causal,
                            )(q, k, v)
                            - exact
                        )
                        ** 2
                    )
                    for seed in range(40)
                ]
            )
        )
        for m in (64, 2048)
    ]
    assert 0.8 * np.sqrt(32) < errors[0] / errors[1] < 1.2 * np.sqrt(32)


@pytest.mark.parametrize(("scale", "n_groups"), [(0.5, 1), (1.0, 1), (0.3, 4)])
def test_diagnosis_knows_the_error(scale, n_groups):
    q, k, v = np.random.default_rng(3).normal(size=(3, 4, 256, 32))
    q, k = scale * q, scale * k
    exact = exact_attention(q, k, v)
    for seed in range(3):
        features = OptimalPositiveRF(256, random_state=seed)
        attention = ApproxKernelAttention(features, n_groups=n_groups)
        true = np.linalg.norm(attention(q, k, v) - exact) / np.linalg.norm(exact)
        diagnosis = attention.diagnose(q, k, v)
        assert 1 / 1.5 < diagnosis.relative_error / true < 1.5
        assert (diagnosis.effective_features >= 1).all()
        assert (diagnosis.effective_features <= 256).all()


def test_attention_matrix_has_the_rows_that_multiply_the_values():
    q, k, v = inputs(s=S)
    attention = ApproxKernelAttention(MAPS["optimal"])
    padding = padding_of()
    matrix = attention.attention_matrix(q, k, key_padding_mask=padding)
    assert matrix.shape == (2, 4, L, S)
    assert_allclose(matrix.sum(axis=-1), 1)
    out = attention(q, k, v, key_padding_mask=padding)
    assert_allclose(matrix @ np.repeat(v, 2, axis=1), out, rtol=1e-9)


def test_diagnosis_of_nothing():
    q, k, v = inputs(s=S)
    attention = ApproxKernelAttention(MAPS["optimal"])
    assert attention.diagnose(q, k, 0 * v).relative_error == 0
    nothing = attention.diagnose(q, k, v, key_padding_mask=np.ones(S, dtype=bool))
    assert nothing.relative_error == 0 and nothing.effective_features is None


# ------------------------------------------------------------------ refusals


def test_parameters_are_checked():
    q, k, v = inputs()
    for feature_map, said in (
        (OptimalPositiveRF(sigma=2.0), "sigma=2.0, but attention sets it"),
        (RFFSampler(kernel="laplacian"), "kernel='laplacian', but attention sets it"),
    ):
        with pytest.raises(ValueError, match=said):
            ApproxKernelAttention(feature_map)(q, k, v)
    for feature_map in (OptimalPositiveRF, "favor", np.eye(3)):
        with pytest.raises(TypeError, match="feature_map must be an instance"):
            ApproxKernelAttention(feature_map)(q, k, v)
    for params, said in (
        ({"scale": -1.0}, "scale must be"),
        ({"block_size": 0}, "block_size must be"),
        ({"causal": "yes"}, "causal must be True or False"),
    ):
        with pytest.raises(ValueError, match=said):
            ApproxKernelAttention(**params)(q, k, v)
    with pytest.raises(ValueError, match="grad_out must have the output's shape"):
        ApproxKernelAttention().backward(q, k, v, v)
    with pytest.raises(ValueError, match="q must have shape"):
        ApproxKernelAttention().attention_matrix(q[0, 0, 0], k)
    with pytest.raises(ValueError, match="k must have shape"):
        ApproxKernelAttention().attention_matrix(q, k[0, 0, 0])
    with pytest.raises(ValueError, match="Streaming needs causal=True"):
        ApproxKernelAttention().init_state()
    causal = ApproxKernelAttention(causal=True)
    with pytest.raises(TypeError, match="state must come from"):
        causal.step(q, k, v, None)
    _, state = causal.step(q, k, v, causal.init_state())
    with pytest.raises(ValueError, match="state was made by NumPy for 4 sets of keys"):
        causal.step(q[:1], k[:1], v[:1], state)
    for wrong, said in (
        (q[..., :E] * np.nan, "grad_out contains NaN or infinity"),
        (q[..., :E] * np.inf, "grad_out contains NaN or infinity"),
        (q[..., :E] * 1j, "grad_out must hold real numbers, got dtype complex128"),
        ("a", "grad_out must hold real numbers, got dtype <U1"),
        (None, "grad_out must hold real numbers"),
        ([[1.0], [1.0, 2.0]], "grad_out must be an array"),
    ):
        for operator in (ApproxKernelAttention(), causal):
            with pytest.raises((ValueError, TypeError), match=said):
                operator.backward(q[:, :, :L], k, v, wrong)
    with pytest.raises(NotImplementedError, match="need its derivative"):
        ApproxKernelAttention(GeneralizedMap(nonlinearity=np.abs)).backward(q, k, v, q[..., :E])
    with pytest.raises(ValueError, match="feature_map__n_components=8 cannot be set, because fea"):
        ApproxKernelAttention().set_params(feature_map__n_components=8)


def test_no_values_are_no_keys():
    """None among the values once stood for the keys."""
    q, k, v = inputs()
    attention = ApproxKernelAttention(MAPS["optimal"])
    causal = ApproxKernelAttention(MAPS["optimal"], causal=True)
    for call in (
        lambda: attention(q, k, None),
        lambda: attention.diagnose(q, k, None),
        lambda: attention.backward(q, k, None, q),
        lambda: causal.step(q, k, None, causal.init_state()),
    ):
        with pytest.raises(TypeError, match="v must hold real numbers"):
            call()


def test_a_state_is_of_one_width():
    attention = ApproxKernelAttention(MAPS["optimal"], causal=True)
    rng = np.random.default_rng(0)
    wide, narrow, v = rng.normal(size=(5, 4)), rng.normal(size=(5, 2)), rng.normal(size=(5, 3))
    _, state = attention.step(wide, wide, v, attention.init_state())
    with pytest.raises(
        ValueError, match="state was made by NumPy for 1 sets of keys of width 4.* got NumPy, 1, 2"
    ):
        attention.step(narrow, narrow, v, state)
    out, _ = attention.step(wide, wide, v, state)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["plain", "causal", "masked", "stream"])
def test_values_at_the_ends_of_the_range(kind, dtype):
    q, k, v = (part.astype(dtype) for part in inputs())
    mask = np.random.default_rng(0).random((L, L)) if kind == "masked" else None
    attention = ApproxKernelAttention(
        MAPS["optimal"], causal=kind in ("causal", "stream"), mask=mask
    ).fit(q, k)
    v = v / np.abs(v).max()
    info = np.finfo(dtype)
    for unit in (float(info.tiny), float(info.max) / 2):
        if kind != "stream":
            plain, found = attention(q, k, v), attention(q, k, (v * unit).astype(dtype))
        elif dtype is np.float32:
            plain, found = (
                attention.step(q, k, values.astype(dtype), attention.init_state())[0]
                for values in (v, v * unit)
            )
        else:
            with pytest.raises(ValueError, match="the largest entry of v is .* in step it must"):
                attention.step(q, k, v * unit, attention.init_state())
            continue
        assert_allclose(found / unit, plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("unit", [1e-37, 1e37])
def test_streams_remember_values_at_the_ends_of_the_range(unit):
    """The next chunk is usual, or padding alone, and the sums are not."""
    q, k, v = (part.astype(np.float32) for part in inputs())
    attention = ApproxKernelAttention(MAPS["optimal"], causal=True).fit(q, k)
    first, later = v[..., :5, :] * np.float32(unit), v[..., 5:, :] * np.float32(max(unit, 1e-30))
    padding = np.arange(L - 5) >= 0
    _, state = attention.step(q[..., :5, :], k[..., :5, :], first, attention.init_state())
    found, _ = attention.step(q[..., 5:, :], k[..., 5:, :], later, state, key_padding_mask=padding)
    double = np.concatenate([first, later], axis=-2).astype(np.float64)
    hidden = np.arange(L) >= 5
    expected = attention(q.astype(float), k.astype(float), double, key_padding_mask=hidden)
    assert_allclose(found / unit, expected[..., 5:, :] / unit, rtol=0, atol=1e-4)


def test_parameters_survive_cloning():
    attention = ApproxKernelAttention(MAPS["adaptive"], causal=True, scale=0.2, block_size=64)
    copy = clone(attention)
    assert repr(copy) == repr(attention) and "AdaptiveRF" in repr(attention)
    assert copy.get_params()["feature_map__n_components"] == 24


def test_a_function_serves_as_nonlinearity():
    q, k, v = inputs()
    own = ApproxKernelAttention(
        GeneralizedMap(24, nonlinearity=lambda z: z**2, derivative=lambda z: 2 * z, random_state=0)
    )
    named = ApproxKernelAttention(GeneralizedMap(24, nonlinearity="square", random_state=0))
    assert_allclose(own(q, k, v), named(q, k, v), rtol=1e-12)
    gradient = np.ones((*q.shape[:-1], E))
    for result, expected in zip(
        own.backward(q, k, v, gradient), named.backward(q, k, v, gradient), strict=True
    ):
        assert_allclose(result, expected, rtol=1e-9, atol=1e-12)


def test_gradients_beyond_the_range_are_named():
    q, k, v = inputs()
    q, k, v = (part.astype(np.float32) for part in (q, k, v))
    attention = ApproxKernelAttention(MAPS["optimal"])
    gradient = 1e8 * np.ones((*q.shape[:-1], v.shape[-1]), np.float32)
    with pytest.raises(ValueError, match="gradient with respect to q is beyond the range of float"):
        attention.backward(q, k, np.float32(1e34) * v, gradient)
    large = np.float64(1e34) * v.astype(np.float64)
    assert all(np.isfinite(part).all() for part in attention.backward(q, k, large, gradient))


def test_diagnosis_has_no_units():
    q, k, v = inputs()
    attention = ApproxKernelAttention(MAPS["optimal"])
    expected = attention.diagnose(q, k, v)
    for unit in (1e200, 1e-200):
        found = attention.diagnose(q, k, unit * v)
        assert found.relative_error == pytest.approx(expected.relative_error, rel=1e-9)
        assert found.sampled_errors == pytest.approx(expected.sampled_errors, rel=1e-9)


class Logs(FeatureMap):
    """Takes the inputs themselves for logarithms of features."""

    n_features = n_columns = 1
    is_positive = True

    def __call__(self, X):
        return Rows(X)


def test_sums_of_streams_stay_in_the_range_of_float32():
    """Exponents of keys rise as those of queries fall: quotients suit the first scale, not sums."""
    head = Head(make_pipeline(StandardScaler()).fit([[0.0], [1.0]]))
    head.queries = head.keys = Logs()
    head.is_positive = True
    keys = np.float32([[18.0], [18.0], *[[105.5]] * 4, [0.0], [0.0]])
    queries = -np.maximum.accumulate(keys)
    v = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    sums, out = None, np.empty((1, 8, 2), np.float32)
    for rows in (slice(i, i + 2) for i in range(0, 8, 2)):
        unit = Unit(HeadSet(((head,),)), queries[None, rows], keys[rows], v[rows])
        sums = causal(unit, sums, Output(out[:, rows]))
    weights = np.tril(np.exp(keys.T.astype(float) + queries))
    expected = weights / weights.sum(axis=1, keepdims=True) @ v
    assert_allclose(out[0], expected, rtol=1e-4, atol=1e-5)
