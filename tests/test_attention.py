"""The attention operator against the quadratic product of the same features, in every mode."""

import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from attention_definitions import attention_of
from instances import MECHANISMS, make
from numpy.testing import assert_allclose, assert_array_equal
from samples import FUNCTIONS
from sklearn.base import clone
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from skrf import AdaptiveRF, DenseExponentialRF, HybridRF, OptimalPositiveRF, PositiveRF, RFFSampler
from skrf.attention import ApproxKernelAttention, GeneralizedMap, ToeplitzMask, exact_attention
from skrf.exceptions import FeatureCollapseWarning
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
    "functions": GeneralizedMap(**FUNCTIONS, epsilon=0.1),
}
NEEDS_DATA = {"HybridRF-clustered", "HybridRF-complex"}
both_modes = pytest.mark.parametrize("causal", [False, True])
pytestmark = pytest.mark.filterwarnings("ignore:Random features have collapsed")


def inputs(scale=0.7, lead=(2, 4), key_lead=(2, 2), n=L, s=L, seed=0):
    rng = np.random.default_rng(seed)
    q = scale * rng.normal(size=(*lead, n, D)) + 0.3
    return q, scale * rng.normal(size=(*key_lead, s, D)), rng.normal(size=(*key_lead, s, E))


def padding_of(s=S, lead=(2,)):
    return np.random.default_rng(1).uniform(size=(*lead, s)) < 0.3


# ------------------------------------------------------------------ one result in every mode


CASES = [(name, "none") for name in MAPS]
CASES += [("optimal", mask) for mask in ("toeplitz", "grid", "sparse", "boolean")]
CASES += [("trigonometric", "boolean"), ("clustered", "toeplitz"), ("functions", "toeplitz")]


@both_modes
@pytest.mark.parametrize(("name", "mask"), CASES)
def test_linear_equals_quadratic(name, mask, causal):
    attention = ApproxKernelAttention(MAPS[name], causal=causal, mask=MASKS[mask])
    q, k, v = inputs()
    padding = padding_of(L)
    if name in ("asymmetric", "adaptive", "clustered"):
        attention.fit(q, k)
    expected = attention_of(attention, q, k, v, padding)
    found = attention(q, k, v, key_padding_mask=padding)
    assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    single = [part.astype(np.float32) for part in (q, k, v)]
    result = attention(*single, key_padding_mask=padding)
    assert result.dtype == np.float32
    # Trigonometric denominators may be small: their maps are documented as unsafe.
    atol = 1e-2 if name == "trigonometric" else 1e-4
    assert_allclose(result, expected, rtol=1e-4, atol=atol)


@pytest.mark.parametrize("name", ["optimal", "adaptive", "clustered", "functions"])
def test_cross_attention_equals_quadratic(name):
    q, k, v = inputs(s=S)
    attention = ApproxKernelAttention(MAPS[name], block_size=37)
    for padding in (None, padding_of()):
        expected = attention_of(attention, q, k, v, padding)
        result = attention(q, k, v, key_padding_mask=padding)
        assert_allclose(result, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "scale", "sizes", "n"),
    [
        ("optimal", 0.5, (512,), 700),
        ("optimal", 3.0, (1,), 60),
        ("optimal", 30.0, (1, 7, 64, 200), 300),
        ("clustered", 3.0, (1, 7, 64), 150),
    ],
)
def test_streaming_equals_one_shot(name, scale, sizes, n):
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
    assert states[0].sums.shape == (16, 5) and states[0].log_scale.shape == (16,)


def test_nothing_comes_from_the_future():
    """Not even by rounding, which the dense definition would not tell."""
    for name, mask in (("optimal", "none"), ("clustered", "none"), ("optimal", "toeplitz")):
        attention = ApproxKernelAttention(MAPS[name], causal=True, mask=MASKS[mask])
        q, k, v = inputs()
        attention.fit(q, k)
        before, cut = attention(q, k, v), 61
        for part in (q, k, v):
            part[..., cut:, :] = 5 * part[..., cut:, :] + 3
        after = attention(q, k, v)
        assert_allclose(after[..., :cut, :], before[..., :cut, :], rtol=1e-11, atol=1e-11)
        assert np.abs(after[..., cut:, :] - before[..., cut:, :]).max() > 0.1


@both_modes
def test_threads_change_nothing(causal):
    q, k, v = inputs(lead=(2, 6), key_lead=(2, 3), n=1100, s=1100)
    results = []
    for limit in (1, 2, 3):
        with threadpool_limits(limit, user_api="blas"):
            results.append(ApproxKernelAttention(MAPS["optimal"], causal=causal)(q, k, v))
    assert_array_equal(results[0], results[1])
    assert_array_equal(results[0], results[2])


# ------------------------------------------------------------------ extremes


@both_modes
@pytest.mark.parametrize("name", ["optimal", "hyperbolic", "asymmetric", "adaptive", "clustered"])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((40, 8), np.float32), ((40, 8), np.float64), ((40, 1), np.float64), ((1, 1), np.float32)],
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
            assert np.isfinite(out).all()
            largest = np.abs(v).max() * (1 + 1e-5)
            assert np.abs(out).max() <= largest  # means of values
            if padding is not None and padding.all():
                assert not out.any()
            sides = (part[None, None] for part in (q, k, v))
            hidden = None if padding is None else padding[None]
            expected = attention_of(attention, *sides, hidden)[0, 0]
            assert_allclose(out, expected, atol=(1e-3 if dtype == np.float32 else 1e-9) * largest)


def test_the_first_keys_of_a_causal_block_may_be_far_below_the_later_ones():
    """Log keys -60, 0, 100: a block-end maximum alone would give 0/0 in the first rows."""
    attention = ApproxKernelAttention(OptimalPositiveRF(8, random_state=0), causal=True, scale=1.0)
    k = np.r_[np.full((3, 2), 11.0), np.zeros((3, 2)), np.full((3, 2), 0.1)]
    q, v = np.random.default_rng(0).normal(size=(2, 9, 2))
    for keys in (k, k[::-1], -k, 30 * k):
        expected = attention_of(attention, *(part[None, None] for part in (q, keys, v)))
        assert_allclose(attention(q, keys, v), expected[0, 0], rtol=1e-9)


@pytest.mark.parametrize("name", ["optimal", "asymmetric", "adaptive", "clustered"])
def test_keys_that_agree_to_rounding(name):
    """Balancing a spread of rounding against that of queries must not blow rounding up."""
    q, k, v = inputs(lead=(1, 2), key_lead=(1, 1), s=S)
    attention = ApproxKernelAttention(MAPS[name])
    if name == "adaptive":
        attention.set_params(feature_map__asymmetric=True)
    steps = np.random.default_rng(1).normal(size=k.shape)
    for spread in (0.0, 1e-16, 1e-15, 1e-12, 1e-6):
        keys = k[..., :1, :] * (1 + spread * steps)
        result, exact = attention(q, keys, v), exact_attention(q, keys, v)
        assert_allclose(result, exact, atol=30 * spread + 1e-9)
        single = [part.astype(np.float32) for part in (q, keys, v)]
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
    with pytest.warns(FeatureCollapseWarning, match=r"\(3 of 12 queries\)"):
        attention(q, k, v)
    if causal and mask is None:
        _, state = attention.step(k, k, v, attention.init_state())
        with pytest.warns(FeatureCollapseWarning, match=r"\(3 of 12 queries\)"):
            # A key of before counts, though those of this step are padded.
            attention.step(q, k, v, state, key_padding_mask=np.ones(6, dtype=bool))


# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize(
    ("name", "mask"),
    [(name, "none") for name in ("optimal", "hyperbolic", "asymmetric", "clustered")]
    + [("trigonometric", "none"), ("trigonometric", "boolean"), ("optimal", "toeplitz")],
)
@both_modes
def test_gradients_are_those_of_differences(name, mask, causal):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    attention = ApproxKernelAttention(MAPS[name], causal=causal, mask=MASKS[mask])
    if name == "trigonometric":  # more features: denominators away from 0
        attention.set_params(feature_map=RFFSampler(2000, random_state=0))
    parts = inputs(scale=0.4, lead=(2, 2), key_lead=(2, 1))
    attention.fit(*parts[:2])
    padding = torch.tensor(padding_of(L))
    rng = np.random.default_rng(2)
    gradient = torch.tensor(rng.normal(size=(*parts[0].shape[:-1], E)))

    def value(parts):
        return torch.sum(gradient * attention(*parts, key_padding_mask=padding))

    tensors = [torch.tensor(part, requires_grad=True) for part in parts]
    found = torch.autograd.grad(value(tensors), tensors)
    step = 1e-5
    for i, result in enumerate(found):
        direction = torch.tensor(rng.normal(size=result.shape))
        moved = [
            [own.detach() + (sign * step * direction if i == j else 0)
             for j, own in enumerate(tensors)]
            for sign in (1, -1)
        ]  # fmt: skip
        expected = (value(moved[0]) - value(moved[1])) / (2 * step)
        assert abs(torch.sum(result * direction) - expected) < 1e-6 * max(result.norm(), 1)


# ------------------------------------------------------------------ statistics and draws


def test_statistics_come_from_the_call_the_fit_or_nowhere():
    q, k, v = inputs()
    attention = ApproxKernelAttention(MAPS["asymmetric"])
    scale = D**-0.25
    for b in range(2):
        for h in range(4):
            own = clone(MAPS["asymmetric"]).set_params(kernel="softmax", sigma=scale)
            pair = q[b, 2 * (h // 2) : 2 * (h // 2) + 2].reshape(-1, D)
            own.fit(pair, keys=k[b, h // 2])
            weights = own.approximate_kernel(q[b, h], k[b, h // 2])
            expected = weights / weights.sum(axis=1, keepdims=True) @ v[b, h // 2]
            assert_allclose(attention(q, k, v)[b, h], expected, rtol=1e-9)
    causal = ApproxKernelAttention(MAPS["asymmetric"], causal=True)
    assert_allclose(causal(q, k, v), attention_of(causal, q, k, v), rtol=1e-9)
    causal.fit(q, k)
    assert len(causal.feature_maps_) == 2
    assert_array_equal(causal.feature_maps_[0].omega_, causal.feature_maps_[1].omega_)
    assert (causal.feature_maps_[0].rho_ != causal.feature_maps_[1].rho_).all()
    pooled = clone(MAPS["asymmetric"]).set_params(kernel="softmax", sigma=scale)
    pooled.fit(q[:, 2:].reshape(-1, D), keys=k[:, 1].reshape(-1, D))
    assert_allclose(causal.feature_maps_[1].rho_, pooled.rho_, rtol=1e-12)
    with pytest.raises(ValueError, match="fitted to 2 of width 6"):
        causal(q[:, :1], k[:, :1], v[:, :1])


def test_a_changed_map_takes_effect():
    """Its parameters count, not the object: they change in place, and ids come again."""
    q, k, v = inputs()
    attention = ApproxKernelAttention(OptimalPositiveRF(8, random_state=0))
    for n in (8, 9, 24):
        attention.set_params(feature_map__n_components=n)
        expected = ApproxKernelAttention(OptimalPositiveRF(n, random_state=0))(q, k, v)
        assert_array_equal(attention(q, k, v), expected)
    for n in range(1, 8):
        attention.set_params(feature_map=PositiveRF(n, random_state=0))
        expected = ApproxKernelAttention(PositiveRF(n, random_state=0))(q, k, v)
        assert_array_equal(attention(q, k, v), expected)
    attention = ApproxKernelAttention(OptimalPositiveRF(8))
    kept = attention(q, k, v)
    assert not np.allclose(clone(attention)(q, k, v), kept, rtol=1e-3)
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
@pytest.mark.parametrize("feature_map", [MAPS["asymmetric"], AdaptiveRF(24)], ids=repr)
def test_what_stands_at_padded_positions_does_not_count(feature_map, is_fitted):
    """Neither as key nor as query: the latter must not enter statistics."""
    q, k, v = inputs()
    padding = np.zeros((2, L), bool)
    padding[1, -7:] = True
    attention = ApproxKernelAttention(feature_map, random_state=0)

    def attended(q, k, v):
        own = clone(attention)
        if is_fitted:
            own.fit(q, k, key_padding_mask=padding)
        return own(q, k, v, key_padding_mask=padding)[1, :, :-7]

    others = q.copy(), k.copy(), v.copy()
    for part, change in zip(others, (3, -2, 10), strict=True):
        part[1, :, -7:] += change
    found = attended(*others)
    assert_array_equal(found, attended(q, k, v))
    if not is_fitted:
        alone = clone(attention)(*(part[1:, :, :-7] for part in (q, k, v)))
        assert_allclose(found, alone[0], rtol=1e-10)


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
def test_every_feature_map_serves(name):
    q, k, v = inputs(0.3, lead=(1, 2), key_lead=(1, 1), n=80, s=80)
    attention = ApproxKernelAttention(make(name, n_components=512, random_state=0))
    error = attention(q, k, v) - exact_attention(q, k, v)
    # Discrete features are coarse; all others are within a tenth.
    assert np.sqrt(np.mean(error**2)) < (0.3 if name.startswith(("Po", "Geo", "Hyb")) else 0.1)
    attention.set_params(causal=True)
    if name in NEEDS_DATA:
        with pytest.raises(ValueError, match=r"call fit\(q, k\) first"):
            attention(q, k, v)
        attention.fit(q, k)
    expected = attention_of(attention, q, k, v)
    assert_allclose(attention(q, k, v), expected, rtol=1e-9, atol=1e-9)


def test_pipelines_and_couplings_of_a_user_serve():
    q, k, v = inputs(0.3)
    pipeline = make_pipeline(StandardScaler(with_mean=False), OptimalPositiveRF(256))
    attention = ApproxKernelAttention(pipeline)
    for step in attention.fit(q, k).feature_maps_:
        assert step[-1].kernel == "softmax" and np.isclose(step[-1].sigma, D**-0.25)
    assert attention(q, k, v).shape == v.shape[:1] + q.shape[1:3] + (E,)
    with pytest.raises(ValueError, match="needs statistics"):
        ApproxKernelAttention(pipeline, causal=True)(q, k, v)
    own = OptimalPositiveRF(64, coupling=Simplex(), random_state=0)
    named = OptimalPositiveRF(64, coupling="simplex", random_state=0)
    assert_array_equal(*(ApproxKernelAttention(m)(q, k, v) for m in (own, named)))


def test_error_falls_as_one_over_the_root():
    """32 times the features, 40 seeds: the error falls by sqrt(32) within 20 %."""
    q, k, v = inputs(0.5, lead=(), key_lead=(), n=50, s=50)
    exact = exact_attention(q, k, v)

    def error_of(n_components, seed):
        feature_map = OptimalPositiveRF(n_components, coupling="iid", random_state=seed)
        return np.mean((ApproxKernelAttention(feature_map)(q, k, v) - exact) ** 2)

    few, many = (np.sqrt(np.mean([error_of(m, s) for s in range(40)])) for m in (64, 2048))
    assert 0.8 * np.sqrt(32) < few / many < 1.2 * np.sqrt(32)


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_diagnosis_knows_the_error(scale):
    q, k, v = np.random.default_rng(3).normal(size=(3, 4, 256, 32))
    q, k = scale * q, scale * k
    exact = exact_attention(q, k, v)
    for seed in range(2):
        attention = ApproxKernelAttention(OptimalPositiveRF(256, random_state=seed))
        true = np.linalg.norm(attention(q, k, v) - exact) / np.linalg.norm(exact)
        diagnosis = attention.diagnose(q, k, v)
        assert 1 / 1.5 < diagnosis.relative_error / true < 1.5
        assert (diagnosis.effective_features >= 1).all()
        assert (diagnosis.effective_features <= 256).all()


def test_attention_matrix_has_the_rows_that_multiply_the_values():
    q, k, v = inputs(s=S)
    attention, padding = ApproxKernelAttention(MAPS["optimal"]), padding_of()
    matrix = attention.attention_matrix(q, k, key_padding_mask=padding)
    assert matrix.shape == (2, 4, L, S)
    assert_allclose(matrix.sum(axis=-1), 1)
    out = attention(q, k, v, key_padding_mask=padding)
    assert_allclose(matrix @ np.repeat(v, 2, axis=1), out, rtol=1e-9)


# ------------------------------------------------------------------ refusals


def test_wrong_calls_are_named():
    q, k, v = inputs()
    attention = ApproxKernelAttention(MAPS["optimal"])
    causal = ApproxKernelAttention(MAPS["optimal"], causal=True)
    _, state = causal.step(q, k, v, causal.init_state())
    narrow = q[..., :2], k[..., :2], v
    wrong_maps = [
        (OptimalPositiveRF(sigma=2.0), ValueError, "sigma=2.0, but attention sets it"),
        (RFFSampler(kernel="laplacian"), ValueError, "kernel='laplacian', but attention sets it"),
        *(
            (own, TypeError, "feature_map must be an")
            for own in (OptimalPositiveRF, "a", np.eye(3))
        ),
    ]
    wrong = [({"feature_map": own}, error, said) for own, error, said in wrong_maps] + [
        ({"scale": -1.0}, ValueError, "scale must be"),
        ({"block_size": 0}, ValueError, "block_size must be"),
        ({"causal": "yes"}, ValueError, "causal must be True or False"),
    ]
    no_values = TypeError, "v must hold real numbers"
    cases = [
        *((lambda own=own: ApproxKernelAttention(**own)(q, k, v), *said) for own, *said in wrong),
        (lambda: attention.attention_matrix(q[0, 0, 0], k), ValueError, "q must have shape"),
        (lambda: attention.attention_matrix(q, k[0, 0, 0]), ValueError, "k must have shape"),
        (attention.init_state, ValueError, "Streaming needs causal=True"),
        (lambda: causal.step(q, k, v, None), TypeError, "state must come from"),
        (
            lambda: causal.step(q[:1], k[:1], v[:1], state),
            ValueError,
            r"holds sums of shape \(2, 2, 24, 6\) of numpy",
        ),
        (lambda: causal.step(*narrow, state), ValueError, r"keys of width 6, these .* width 2"),
        (
            lambda: ApproxKernelAttention().set_params(feature_map__n_components=8),
            ValueError,
            "feature_map__n_components=8 cannot be set, because fea",
        ),
        (
            lambda: ApproxKernelAttention(Nystroem())(q, k, v),
            ValueError,
            "no parameter 'sigma'",
        ),
        # None among the values once stood for the keys.
        (lambda: attention(q, k, None), *no_values),
        (lambda: attention.diagnose(q, k, None), *no_values),
        (lambda: causal.step(q, k, None, causal.init_state()), *no_values),
    ]
    for call, error, said in cases:
        with pytest.raises(error, match=said):
            call()
    assert np.isfinite(causal.step(q, k, v, state)[0]).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["plain", "causal", "masked", "stream"])
def test_values_of_any_size(kind, dtype):
    q, k, v = (part.astype(dtype) for part in inputs())
    mask = np.random.default_rng(0).random((L, L)) if kind == "masked" else None
    attention = ApproxKernelAttention(
        MAPS["optimal"], causal=kind in ("causal", "stream"), mask=mask
    ).fit(q, k)

    def attend(values):
        if kind == "stream":
            return attention.step(q, k, values, attention.init_state())[0]
        return attention(q, k, values)

    v = v / np.abs(v).max()
    info = np.finfo(np.float32)
    sizes = (float(info.tiny), float(info.max) / 2) if dtype is np.float32 else (1e-150, 1e150)
    for size in sizes:
        found = attend((v * size).astype(dtype))
        assert_allclose(found / size, attend(v), rtol=0, atol=1e-6)


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


def test_diagnosis_has_no_units():
    q, k, v = inputs()
    attention = ApproxKernelAttention(MAPS["optimal"])
    assert attention.diagnose(q, k, 0 * v).relative_error == 0
    nothing = attention.diagnose(q, k, v, key_padding_mask=np.ones(L, dtype=bool))
    assert nothing.relative_error == 0 and nothing.effective_features is None
    expected = attention.diagnose(q, k, v)
    for unit in (1e200, 1e-200):
        found = attention.diagnose(q, k, unit * v)
        assert found.relative_error == pytest.approx(expected.relative_error, rel=1e-9)
        assert found.sampled_errors == pytest.approx(expected.sampled_errors, rel=1e-9)


def test_sums_of_streams_stay_in_the_range_of_float32():
    """Exponents of keys rise as those of queries fall: quotients suit the first scale, not sums."""
    map_ = GeneralizedMap(nonlinearity="exp", projection="identity")
    attention = ApproxKernelAttention(map_, causal=True, scale=1.0)
    k = np.float32([[18.0], [18.0], *[[105.5]] * 4, [0.0], [0.0]])
    q = -np.maximum.accumulate(k)
    v = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    state, parts = attention.init_state(), []
    for rows in (slice(i, i + 2) for i in range(0, 8, 2)):
        out, state = attention.step(q[rows], k[rows], v[rows], state)
        parts.append(out)
    expected = attention_of(attention, *(part[None, None] for part in (q, k, v)))[0, 0]
    assert_allclose(np.concatenate(parts), expected, rtol=1e-4, atol=1e-5)


def test_states_of_beams():
    """The state of selected texts continues them, and no state is changed."""
    attention = ApproxKernelAttention(MAPS["optimal"], causal=True)
    parts = inputs(n=20, s=20)
    first, last = ([part[..., rows, :] for part in parts] for rows in (slice(12), slice(12, 20)))
    _, state = attention.step(*first, attention.init_state())
    kept, chosen = (state.sums.copy(), state.log_scale.copy()), [1, 1, 0]
    expected = attention(*(part[chosen] for part in parts))[..., 12:, :]
    found, _ = attention.step(*(part[chosen] for part in last), state.select(chosen))
    assert_allclose(found, expected, rtol=1e-10)
    assert_array_equal(state.sums, kept[0])
    assert_array_equal(state.log_scale, kept[1])
    found, _ = attention.step(*last, pickle.loads(pickle.dumps(state)))
    assert_allclose(found, attention(*parts)[..., 12:, :], rtol=1e-10)
