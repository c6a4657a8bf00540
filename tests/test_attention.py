"""The attention operator against the quadratic product of the same features, in every mode."""

import pickle
import warnings
from functools import partial
from itertools import cycle

import numpy as np
import pytest
import scipy.sparse as sp
from attention_definitions import attention_of
from numpy.testing import assert_allclose, assert_array_equal
from samples import FUNCTIONS
from scipy.special import ndtr
from sklearn.base import clone
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from skrf import (
    AdaptiveRF,
    ClusterQuantizer,
    DenseExponentialRF,
    HybridRF,
    OptimalPositiveRF,
    PositiveRF,
    RFFSampler,
)
from skrf.attention import ApproxKernelAttention, GeneralizedMap, ToeplitzMask, exact_attention
from skrf.attention._inputs import Inputs
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
both_modes = pytest.mark.parametrize("causal", [False, True])
pytestmark = pytest.mark.filterwarnings(
    "ignore:Random features have collapsed", "ignore:Outputs reach"
)


def inputs(scale=0.7, lead=(2, 4), key_lead=(2, 2), n=L, s=L, seed=0):
    rng = np.random.default_rng(seed)
    q = scale * rng.normal(size=(*lead, n, D)) + 0.3
    return q, scale * rng.normal(size=(*key_lead, s, D)), rng.normal(size=(*key_lead, s, E))


def padding_of(s=S):
    return np.random.default_rng(1).uniform(size=(2, s)) < 0.3


def streamed(attention, parts, sizes, padding=None):
    """Return the outputs of chunks of some sizes, which repeat until the positions end."""
    n, outputs, state, start = parts[0].shape[-2], [], attention.init_state(), 0
    for size in cycle(sizes):
        if start >= n:
            return np.concatenate(outputs, axis=-2)
        rows = slice(start, start + size)
        chunk = [array[..., rows, :] for array in parts]
        hidden = None if padding is None else padding[:, rows]
        out, state = attention.step(*chunk, state, key_padding_mask=hidden)
        outputs.append(out)
        start += size


def by_definition(attention, q, k, v):
    """Return the attention of one head without leading axes."""
    return attention_of(attention, q[None, None], k[None, None], v[None, None])[0, 0]


# ------------------------------------------------------------------ one result in every mode


CASES = [(name, "none") for name in MAPS]
CASES += [("optimal", mask) for mask in ("toeplitz", "grid", "sparse", "boolean")]
CASES += [("trigonometric", "boolean"), ("clustered", "toeplitz"), ("functions", "toeplitz")]


@both_modes
@pytest.mark.parametrize(("name", "mask"), CASES)
def test_linear_equals_quadratic(name, mask, causal):
    attention = ApproxKernelAttention(MAPS[name], causal=causal, mask=MASKS[mask])
    parts, padding = inputs(), padding_of(L)
    if name in ("asymmetric", "adaptive", "clustered"):
        attention.fit(*parts[:2])
    expected = attention_of(attention, *parts, padding)
    result = attention(*parts, key_padding_mask=padding)
    assert_allclose(result, expected, rtol=1e-10, atol=1e-10)
    single = [array.astype(np.float32) for array in parts]
    result = attention(*single, key_padding_mask=padding)
    assert result.dtype == np.float32
    # Trigonometric denominators may be small: their maps are documented as unsafe.
    atol = 1e-2 if name == "trigonometric" else 1e-4
    assert_allclose(result, expected, rtol=1e-4, atol=atol)


@pytest.mark.parametrize("is_fitted", [False, True])
@pytest.mark.parametrize("name", ["optimal", "asymmetric", "trigonometric", "functions"])
@both_modes
def test_short_sets_are_computed_together_as_if_alone(name, is_fitted, causal, monkeypatch):
    """25 sets of 40 positions are 1,000, of which slices hold 24: those of all three heads."""
    q, k, v = inputs(lead=(9, 6), key_lead=(9, 3), n=40, s=40)[:3]
    gates = {"log_gates": -RNG.exponential(0.1, size=(9, 3, 40))} if causal else {}
    attention = ApproxKernelAttention(MAPS[name], causal=causal)
    if is_fitted:
        attention.fit(q, k)
    sizes = []
    of = Inputs.of
    monkeypatch.setattr(Inputs, "of", lambda self, sets: sizes.append(sets) or of(self, sets))
    out = attention(q, k, v, **gates)
    assert [sets.stop for sets in sizes] == ([24, 27] if is_fitted else [25, 27])
    for size, rows in ((1, 40), (2, 80), (4, 170)):
        attention.block_size = rows
        sizes.clear()
        assert_allclose(attention(q, k, v, **gates), out, rtol=0, atol=1e-10 * abs(out).max())
        assert sizes[0].stop == (3 if is_fitted and size == 4 else size)


def test_sets_may_have_different_numbers_of_features():
    """Clusters are at most as many as rows: a text of one word has fewer features."""
    q, k, v = inputs(n=40, s=40)
    padding = np.zeros((2, 40), bool)
    padding[1, 1:] = True
    attention = ApproxKernelAttention(MAPS["clustered"])
    expected = attention_of(attention, q, k, v, padding)
    result = attention(q, k, v, key_padding_mask=padding)
    assert_allclose(result, expected, rtol=1e-10, atol=1e-10)
    attention = ApproxKernelAttention(MAPS["clustered"], causal=True)
    k = k[0, :, :20].copy()
    k[1] = k[1, 0]
    attention.fit(k, k)
    assert len({head.n_components_ for head in attention.feature_maps_}) == 2
    expected = attention_of(attention, k[None], k[None], v[:1, :, :20])[0]
    assert_allclose(attention(k, k, v[0, :, :20]), expected, rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match="A state needs as many features for every head, got"):
        attention.step(k, k, v[0, :, :20], attention.init_state())


@pytest.mark.parametrize("n_queries", [1, 40])
@pytest.mark.parametrize(("name", "mask"), CASES)
def test_fewer_queries_are_the_last_positions(name, mask, n_queries):
    q, k, v = inputs()
    attention = ApproxKernelAttention(MAPS[name], causal=True, mask=MASKS[mask], block_size=16)
    if name in ("asymmetric", "adaptive", "clustered"):
        attention.fit(q, k)
    for padding in (None, padding_of(L)):
        expected = attention(q, k, v, key_padding_mask=padding)[:, :, -n_queries:]
        out = attention(q[:, :, -n_queries:], k, v, key_padding_mask=padding)
        assert_allclose(out, expected, atol=1e-10)
    if mask in ("sparse", "boolean"):  # rows of the given queries serve as well
        attention.set_params(mask=MASKS[mask][-n_queries:])
        assert_allclose(
            attention(q[:, :, -n_queries:], k, v), attention_of_last(attention, q, k, v)
        )
    with pytest.raises(ValueError, match="no more queries than keys, got 150 .* and 90 keys"):
        attention(q, k[:, :, :S], v[:, :, :S])


def attention_of_last(attention, q, k, v):
    """Return the outputs of the last queries under the rows of a mask that are theirs."""
    n = attention.mask.shape[0]
    mask = np.zeros((L, L))
    mask[-n:] = attention.mask.toarray() if sp.issparse(attention.mask) else attention.mask
    return clone(attention).set_params(mask=mask)(q, k, v)[:, :, -n:]


@pytest.mark.filterwarnings("error")
def test_missing_queries_are_neither_judged_nor_lost():
    """Those of zeros would be means, which hide a collapse, and lost by features such as relu."""
    q, k, v = (8 * array for array in inputs())
    collapsed = ApproxKernelAttention(MAPS["optimal"], causal=True)
    with pytest.warns(FeatureCollapseWarning, match="Random features have collapsed"):
        collapsed(q[:, :, -2:], k, v)
    relu = ApproxKernelAttention(GeneralizedMap(64, random_state=0), causal=True)
    relu(q[:, :, -2:], k, v)


@pytest.mark.parametrize("name", ["optimal", "asymmetric", "adaptive", "clustered", "functions"])
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
        ("optimal", 3.0, (1,), 60),
        ("optimal", 30.0, (1, 7, 64, 200), 700),
        ("clustered", 3.0, (1, 7, 64), 150),
    ],
)
def test_streaming_equals_one_shot(name, scale, sizes, n):
    attention = ApproxKernelAttention(MAPS[name], causal=True)
    parts, padding = inputs(scale, n=n, s=n), padding_of(n)
    if name == "clustered":
        attention.fit(*parts[:2])
    for dtype, tolerance in ((np.float64, 1e-10), (np.float32, 1e-4)):
        parts = [array.astype(dtype) for array in parts]
        expected = attention(*parts, key_padding_mask=padding)
        result = streamed(attention, parts, sizes, padding)
        assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


@both_modes
def test_quantised_keys_are_keys_at_their_centres(causal):
    """Exact attention to the centres of the keys; with a centre for each, exact attention."""
    rng = np.random.default_rng(5)
    q, k, v = rng.normal(size=(3, 2, 40, 6))
    for n in (9, 40):
        operator = ApproxKernelAttention(ClusterQuantizer(n, random_state=0), causal=causal)
        operator.fit(q, k)
        moved = np.empty_like(k)
        for head, transformer in enumerate(operator.feature_maps_):
            centers = transformer.centers_
            places = ((k[head][:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
            moved[head] = centers[places]
        assert np.allclose(moved, k) == (n == 40)
        expected = exact_attention(q, moved, v, causal=causal)
        assert_allclose(operator(q, k, v), expected, rtol=1e-10, atol=1e-12)


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


@both_modes
def test_threads_change_nothing(causal):
    parts = inputs(lead=(2, 6), key_lead=(2, 3), n=1100, s=1100)
    results = []
    for limit in (1, 3):
        with threadpool_limits(limit, user_api="blas"):
            results.append(ApproxKernelAttention(MAPS["optimal"], causal=causal)(*parts))
    assert_array_equal(*results)


# ------------------------------------------------------------------ extremes


@both_modes
@pytest.mark.parametrize("name", ["optimal", "hyperbolic", "asymmetric", "adaptive", "clustered"])
@pytest.mark.parametrize(("shape", "dtype"), [((40, 8), np.float64), ((1, 1), np.float32)])
def test_extreme_inputs_stay_finite(shape, dtype, name, causal):
    """Logits of +-1e4, constant rows, one position, width 1, padded rows: finite and right."""
    n, d = shape
    rng = np.random.default_rng(0)
    cases = [size * np.ones((3, n, d)) for size in (0, 1, 50)]
    for scale in (1e-6, 1.0, np.sqrt(1e4 / np.sqrt(d))):
        x = rng.normal(size=(3, n, d))
        cases.append(scale * x / np.abs(x).max() * np.sqrt(2))
    for parts in cases:
        parts = parts.astype(dtype)
        largest = np.abs(parts[2]).max() * (1 + 1e-5)
        atol = (1e-3 if dtype == np.float32 else 1e-9) * largest
        for padding in (np.zeros(n, bool), np.ones(n, bool), np.arange(n) < n // 2):
            attention = ApproxKernelAttention(MAPS[name], causal=causal)
            if name == "clustered" and causal:
                attention.fit(*parts[:2])
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.simplefilter("ignore", FeatureCollapseWarning)
                out = attention(*parts, key_padding_mask=padding)
            assert np.abs(out).max() <= largest  # means of values
            assert out.any() or padding.all() or not largest
            expected = attention_of(attention, *parts[:, None, None], padding[None])[0, 0]
            assert_allclose(out, expected, atol=atol)


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
        single = [array.astype(np.float32) for array in (q, keys, v)]
        widened = attention(*(array.astype(float) for array in single))
        assert_allclose(attention(*single), widened, rtol=1e-4, atol=1e-4)


def test_collapse_is_said_and_only_then():
    q, k, v = np.random.default_rng(0).normal(size=(3, 200, 16))
    attention = ApproxKernelAttention(OptimalPositiveRF(256, random_state=0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention(0.5 * q, 0.5 * k, v)
        attention(6 * q, 6 * k[:1], v[:1])  # with one key the output is its value
    assert not attention.diagnose(0.5 * q, 0.5 * k, v).has_collapsed
    with pytest.warns(FeatureCollapseWarning, match="the relative error of the output is 1"):
        attention(6 * q, 6 * k, v)
    diagnosis = attention.diagnose(6 * q, 6 * k, v)
    assert diagnosis.has_collapsed and np.median(diagnosis.effective_features) < 2
    assert len(repr(diagnosis)) < 250  # without a number for every query


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
    is_lost = (q < 0).all(axis=-1)
    with pytest.warns(FeatureCollapseWarning, match=rf"\({2 if causal else 3} of 12 queries\)"):
        result = attention(q, k, v, key_padding_mask=hidden)
    assert not result[is_lost].any()
    assert_allclose(result[~is_lost], expected[~is_lost])
    if causal and mask is None:
        _, state = attention.step(k, k, v, attention.init_state())
        with pytest.warns(FeatureCollapseWarning, match=r"\(3 of 12 queries\)"):
            # A key of before counts, though those of this step are padded.
            attention.step(q, k, v, state, key_padding_mask=np.ones(6, dtype=bool))


# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("asymmetric", "none"),
        ("clustered", "none"),
        ("trigonometric", "none"),
        ("trigonometric", "boolean"),
        ("optimal", "toeplitz"),
    ],
)
@both_modes
def test_gradients_are_those_of_differences(name, mask, causal):
    """In several blocks; test_array_libraries.py has other feature maps."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    attention = ApproxKernelAttention(MAPS[name], causal=causal, mask=MASKS[mask])
    if name == "trigonometric":  # more features: denominators away from 0
        attention.set_params(feature_map=RFFSampler(2000, random_state=0))
    parts = inputs(scale=0.4, lead=(2, 2), key_lead=(2, 1))
    attention.fit(*parts[:2])
    tensors = [torch.tensor(array, requires_grad=True) for array in parts]

    def attend(q, k, v):
        return attention(q, k, v, key_padding_mask=torch.tensor(padding_of(L)))

    assert torch.autograd.gradcheck(attend, tensors, fast_mode=True)


# ------------------------------------------------------------------ statistics and draws


def test_statistics_come_from_the_fit_or_nowhere():
    """Those that come from the call are in the comparisons with the definition."""
    q, k, v = inputs()
    causal = ApproxKernelAttention(MAPS["asymmetric"], causal=True)
    assert_allclose(causal(q, k, v), attention_of(causal, q, k, v), rtol=1e-9)
    first, second = causal.fit(q, k).feature_maps_
    assert_array_equal(first.omega_, second.omega_)
    assert (first.rho_ != second.rho_).all()
    pooled = clone(MAPS["asymmetric"]).set_params(kernel="softmax", sigma=D**-0.25)
    pooled.fit(q[:, 2:].reshape(-1, D), keys=k[:, 1].reshape(-1, D))
    assert_allclose(second.rho_, pooled.rho_, rtol=1e-12)
    with pytest.raises(ValueError, match="q has 1 heads and k 1 .* fitted to 4 heads of q and 2"):
        causal(q[:, :1], k[:, :1], v[:, :1])


def test_statistics_of_batches_are_those_of_all_rows():
    q, k, v = inputs()
    padding = padding_of(L)
    attention = ApproxKernelAttention(MAPS["asymmetric"])
    expected = clone(attention).fit(q, k, key_padding_mask=padding)(q, k, v)
    for text in (slice(0, 1), slice(1, 2)):
        attention.partial_fit(q[text], k[text], key_padding_mask=padding[text])
    assert_allclose(attention(q, k, v), expected, rtol=1e-10)
    with pytest.raises(ValueError, match=r"partial_fit needs width and heads of fit, .* got \(2,"):
        attention.partial_fit(q[..., :2], k[..., :2])


def test_a_changed_map_takes_effect():
    """Its parameters count, not the object: they change in place, and ids come again."""
    parts = inputs()
    attention = ApproxKernelAttention(OptimalPositiveRF(8))
    kept = attention(*parts)
    assert not np.allclose(clone(attention)(*parts), kept, rtol=1e-3)
    for n in (8, 9, 24):
        attention.set_params(feature_map__n_components=n, random_state=0)
        expected = ApproxKernelAttention(OptimalPositiveRF(n, random_state=0))(*parts)
        assert_array_equal(attention(*parts), expected)
    for n in range(1, 8):
        attention.set_params(feature_map=PositiveRF(n))
        expected = ApproxKernelAttention(PositiveRF(n, random_state=0))(*parts)
        assert_array_equal(attention(*parts), expected)
    attention.set_params(feature_map=OptimalPositiveRF(8), random_state=None)
    expected = attention(*parts)
    attention.set_params(feature_map__n_components=16)(*parts)
    attention.set_params(feature_map__n_components=8)
    assert_array_equal(attention(*parts), expected)


@pytest.mark.parametrize(
    "params", [{"scale": 0.1}, {"feature_map__n_components": 32}, {"random_state": 1}], ids=str
)
def test_parameters_that_change_after_fit_are_refused(params):
    q, k, v = inputs()
    attention = ApproxKernelAttention(OptimalPositiveRF(24, random_state=0)).fit(q, k)
    before = {name: attention.get_params()[name] for name in params}
    expected = attention(q, k, v)
    attention.set_params(**params)
    for call in (partial(attention, q, k, v), partial(attention.partial_fit, q, k)):
        with pytest.raises(ValueError, match="has changed after fit"):
            call()
    assert_array_equal(attention.set_params(**before)(q, k, v), expected)
    assert np.isfinite(attention.set_params(**params).fit(q, k)(q, k, v)).all()


@pytest.mark.parametrize("is_fitted", [False, True])
@pytest.mark.parametrize("feature_map", [MAPS["asymmetric"], AdaptiveRF(24)], ids=repr)
def test_what_stands_at_padded_positions_does_not_count(feature_map, is_fitted):
    """Neither as key nor as query: the latter must not enter statistics."""
    padding = np.arange(L) >= np.array([[L], [L - 7]])

    def attended(q, k, v):
        attention = ApproxKernelAttention(feature_map, random_state=0)
        if is_fitted:
            attention.fit(q, k, key_padding_mask=padding)
        return attention(q, k, v, key_padding_mask=padding)[1, :, :-7]

    parts = inputs()
    expected = attended(*parts)
    for array, change in zip(parts, (3, -2, 10), strict=True):
        array[1, :, -7:] += change
    assert_array_equal(attended(*parts), expected)


def test_random_state_of_the_operator_replaces_that_of_the_map():
    parts = inputs()
    expected = {
        seed: ApproxKernelAttention(OptimalPositiveRF(24, random_state=seed))(*parts)
        for seed in (0, 3)
    }
    attention = ApproxKernelAttention(OptimalPositiveRF(24, random_state=0), random_state=3)
    assert_array_equal(attention(*parts), expected[3])
    attention.set_params(random_state=np.random.RandomState(0))
    assert_array_equal(attention(*parts), attention(*parts))
    attention.set_params(random_state=None)
    assert_array_equal(attention(*parts), expected[0])
    with pytest.raises(ValueError, match="'seven'"):
        attention.set_params(random_state="seven")(*parts)


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


def test_pipelines_and_couplings_of_a_user_serve():
    parts = inputs(0.3)
    pipeline = make_pipeline(StandardScaler(with_mean=False), OptimalPositiveRF(256))
    attention = ApproxKernelAttention(pipeline).fit(*parts[:2])
    for scaler, features in attention.feature_maps_:
        assert hasattr(scaler, "scale_") and features.kernel == "softmax"
        assert np.isclose(features.sigma, D**-0.25)
    assert attention(*parts).shape == (2, 4, L, E)
    with pytest.raises(ValueError, match="needs statistics"):
        ApproxKernelAttention(pipeline, causal=True)(*parts)
    instance, name = (
        ApproxKernelAttention(OptimalPositiveRF(64, coupling=coupling, random_state=0))
        for coupling in (Simplex(), "simplex")
    )
    assert_array_equal(instance(*parts), name(*parts))


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_diagnosis_knows_the_error(scale):
    q, k, v = np.random.default_rng(3).normal(size=(3, 4, 256, 32))
    parts = scale * q, scale * k, v
    exact = exact_attention(*parts)
    attention = ApproxKernelAttention(OptimalPositiveRF(256, random_state=0))
    error = np.linalg.norm(attention(*parts) - exact) / np.linalg.norm(exact)
    diagnosis = attention.diagnose(*parts)
    assert 1 / 1.5 < diagnosis.relative_error / error < 1.5
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


@pytest.mark.parametrize(
    ("params", "error", "words"),
    [
        ({"feature_map": OptimalPositiveRF(sigma=2.0)}, ValueError, "sigma=2.0, but attention"),
        ({"feature_map": RFFSampler(kernel="laplacian")}, ValueError, "kernel='laplacian', but"),
        ({"feature_map": OptimalPositiveRF}, TypeError, "feature_map must be an"),
        ({"feature_map": Nystroem()}, ValueError, "no parameter 'sigma'"),
        ({"feature_map": MAPS["clustered"], "causal": True}, ValueError, r"call fit\(q, k\) first"),
        ({"scale": -1.0}, ValueError, "scale must be"),
        ({"block_size": 0}, ValueError, "block_size must be"),
        ({"causal": "yes"}, ValueError, "causal must be True or False"),
    ],
)
def test_wrong_parameters_are_named(params, error, words):
    with pytest.raises(error, match=words):
        ApproxKernelAttention(**params)(*inputs())


def test_wrong_calls_are_named():
    q, k, v = inputs()
    attention = ApproxKernelAttention(MAPS["optimal"])
    causal = ApproxKernelAttention(MAPS["optimal"], causal=True)
    _, state = causal.step(q, k, v, causal.init_state())
    # None among the values once stood for the keys.
    for call in (attention, attention.diagnose, partial(causal.step, state=causal.init_state())):
        with pytest.raises(TypeError, match="v must hold real numbers"):
            call(q, k, None)
    for sides, name in (((q[0, 0, 0], k), "q"), ((q, k[0, 0, 0]), "k")):
        with pytest.raises(ValueError, match=f"{name} must have shape"):
            attention.attention_matrix(*sides)
    with pytest.raises(ValueError, match="feature_map__n_components=8 cannot be set"):
        ApproxKernelAttention().set_params(feature_map__n_components=8)
    with pytest.raises(ValueError, match="Streaming needs causal=True"):
        attention.init_state()
    with pytest.raises(TypeError, match="state must come from"):
        causal.step(q, k, v, None)
    with pytest.raises(ValueError, match=r"holds sums of shape \(2, 2, 24, 6\) of numpy"):
        causal.step(q[:1], k[:1], v[:1], state)
    with pytest.raises(ValueError, match=r"keys of width 6, these .* width 2"):
        causal.step(q[..., :2], k[..., :2], v, state)


@pytest.mark.parametrize("unit", [1e-37, 1e37])
def test_streams_remember_values_at_the_ends_of_the_range(unit):
    """The next chunk is usual, or padding alone, and the sums are not."""
    q, k, v = (array.astype(np.float32) for array in inputs())
    attention = ApproxKernelAttention(MAPS["optimal"], causal=True).fit(q, k)
    first, later = v[..., :5, :] * np.float32(unit), v[..., 5:, :] * np.float32(max(unit, 1e-30))
    padding = np.arange(L - 5) >= 0
    _, state = attention.step(q[..., :5, :], k[..., :5, :], first, attention.init_state())
    result, _ = attention.step(q[..., 5:, :], k[..., 5:, :], later, state, key_padding_mask=padding)
    double = np.concatenate([first, later], axis=-2).astype(np.float64)
    hidden = np.arange(L) >= 5
    expected = attention(q.astype(float), k.astype(float), double, key_padding_mask=hidden)
    assert_allclose(result / unit, expected[..., 5:, :] / unit, rtol=0, atol=1e-4)


def test_diagnosis_has_no_units():
    q, k, v = inputs()
    attention = ApproxKernelAttention(MAPS["optimal"])
    assert attention.diagnose(q, k, 0 * v).relative_error == 0
    nothing = attention.diagnose(q, k, v, key_padding_mask=np.ones(L, dtype=bool))
    assert nothing.relative_error == 0 and nothing.effective_features is None
    expected = attention.diagnose(q, k, v)
    for unit in (1e200, 1e-200):
        diagnosis = attention.diagnose(q, k, unit * v)
        assert diagnosis.relative_error == pytest.approx(expected.relative_error, rel=1e-9)
        assert diagnosis.sampled_errors == pytest.approx(expected.sampled_errors, rel=1e-9)


def test_sums_of_streams_stay_in_the_range_of_float32():
    """Exponents of keys rise as those of queries fall: quotients suit the first scale, not sums."""
    map_ = GeneralizedMap(nonlinearity="exp", projection="identity")
    attention = ApproxKernelAttention(map_, causal=True, scale=1.0)
    k = np.float32([[18.0], [18.0], *[[105.5]] * 4, [0.0], [0.0]])
    q = -np.maximum.accumulate(k)
    v = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    result = streamed(attention, (q, k, v), (2,))
    assert_allclose(result, by_definition(attention, q, k, v), rtol=1e-4, atol=1e-5)


def test_short_heads_of_which_some_need_several_scales():
    """Each is as it is alone, and as in a longer text."""
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 40, 4))
    k[0] *= np.linspace(0, 60, 40)[:, None]
    attention = ApproxKernelAttention(OptimalPositiveRF(24, random_state=0), causal=True)
    out = attention(q, k, v)
    for head in range(2):
        assert_allclose(out[head], attention(q[head], k[head], v[head]), atol=1e-12)
    longer = (np.concatenate([x] * 3, axis=1) for x in (q, k, v))
    assert_allclose(out, attention(*longer)[:, :40], atol=1e-12)


def test_states_of_beams():
    """The state of selected texts continues them, and no state is changed."""
    attention = ApproxKernelAttention(MAPS["optimal"], causal=True)
    parts, chosen = inputs(n=20, s=20), [1, 1, 0]
    first, last = ([array[..., rows, :] for array in parts] for rows in (slice(12), slice(12, 20)))
    _, state = attention.step(*first, attention.init_state())
    kept = pickle.loads(pickle.dumps(state))
    expected = attention(*parts)[..., 12:, :]
    result, _ = attention.step(*(array[chosen] for array in last), state.select(chosen))
    assert_allclose(result, expected[chosen], rtol=1e-10)
    assert_array_equal(state.sums, kept.sums)
    assert_array_equal(state.log_scale, kept.log_scale)
    result, _ = attention.step(*last, kept)
    assert_allclose(result, expected, rtol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("nonlinearity", "has_signs"),
    [
        ("sigmoid", False),
        ("abs", False),
        (lambda z: z * ndtr(z), False),  # gelu, whose negative values are small
        (np.tanh, True),
        (np.cos, True),
        (lambda z: z, True),
    ],
    ids=["sigmoid", "abs", "gelu", "tanh", "cos", "identity"],
)
def test_weights_of_both_signs_that_cancel_are_named(nonlinearity, has_signs, causal):
    q, k, v = np.random.default_rng(0).normal(size=(3, 4, 256, 32))
    feature_map = GeneralizedMap(nonlinearity=nonlinearity, random_state=0)
    attention = ApproxKernelAttention(feature_map, causal=causal)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outputs = attention(q, k, v)
    assert (np.abs(outputs).max() > 1.5 * np.abs(v).max()) == has_signs
    assert [w.category for w in caught] == [FeatureCollapseWarning] * has_signs
    if has_signs:
        assert "Outputs reach" in str(caught[0].message)
