"""A padded position is as if it were not there: in every row of a batch, however it is cut."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skrf import OptimalPositiveRF
from skrf.attention import (
    ApproxKernelAttention,
    GeneralizedMap,
    ToeplitzMask,
    WindowAttention,
    compare_attention,
    exact_attention,
)

N = 90
RNG = np.random.default_rng(0)
Q, K, V = RNG.normal(size=(3, 4, N, 5)), *RNG.normal(size=(2, 3, 2, N, 5))
GATES = -RNG.exponential(size=(3, 2, N))
RESETS = np.where(np.arange(N) == 50, -np.inf, GATES)  # at padding in one row
HIDDEN = RNG.uniform(size=(3, N)) < 0.3
HIDDEN[0, :9], HIDDEN[1, -20:], HIDDEN[2] = True, True, False
HIDDEN[0, 50], HIDDEN[0, 3] = True, False
CUTS = {"whole": [N], "chunks": [30, 1, 1, 7, 40, 11], "steps": [1] * N}

MAP = OptimalPositiveRF(24, random_state=0)
RELU = GeneralizedMap(24, epsilon=0.1, random_state=0)
ONE, EACH = ToeplitzMask.decay(0.3), ToeplitzMask.decay([0.5, 0.01])
FEATURES = {
    "nothing": (MAP, None),
    "gates": (MAP, None),
    "a reset": (MAP, None),
    "a decay": (MAP, ONE),
    "a decay per head and gates": (MAP, EACH),
    "relu, a decay and gates": (RELU, EACH),
}
pytestmark = pytest.mark.filterwarnings("ignore:Random features have collapsed")
STREAMS = {
    f"features with {name}": ApproxKernelAttention(feature_map, causal=True, mask=mask)
    for name, (feature_map, mask) in FEATURES.items()
}
STREAMS["a window"] = WindowAttention(12)


def options_of(name, rows=slice(None), at=slice(None)):
    gates = RESETS if name.endswith("reset") else GATES
    return {"log_gates": gates[rows][..., at]} if name.endswith(("gates", "reset")) else {}


def expected_of(call, name=""):
    """Return the outputs of every row of the batch without its padding, 0 at the others."""
    out = np.zeros((*Q.shape[:-1], V.shape[-1]))
    for i in range(len(Q)):
        kept, row = np.flatnonzero(~HIDDEN[i]), slice(i, i + 1)
        parts = (array[row][:, :, kept] for array in (Q, K, V))
        out[i][:, kept] = call(*parts, **options_of(name, row, kept))[0]
    return out


def check(out, expected, atol=1e-10):
    out = np.asarray(out)
    assert np.isfinite(out).all()
    real = np.broadcast_to(~HIDDEN[:, None, :, None], expected.shape)
    assert_allclose(out[real], expected[real], rtol=0, atol=atol)


def streamed(operator, name, cut, array=np.asarray):
    state, outs = operator.init_state(), []
    for end, size in zip(np.cumsum(cut), cut, strict=True):
        at = slice(end - size, end)
        options = {key: array(part) for key, part in options_of(name, at=at).items()}
        options["key_padding_mask"] = array(HIDDEN[:, at])
        out, state = operator.step(*(array(x[:, :, at]) for x in (Q, K, V)), state, **options)
        outs.append(np.asarray(out))
    return np.concatenate(outs, axis=2)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", STREAMS)
def test_streams(name, cut):
    operator = STREAMS[name]
    expected = expected_of(operator, name)
    check(streamed(operator, name, CUTS[cut]), expected)
    check(operator(Q, K, V, key_padding_mask=HIDDEN, **options_of(name)), expected)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", STREAMS)
def test_streams_of_modules(name, cut):
    torch = pytest.importorskip("torch")
    from skrf.torch import RandomFeatureAttention

    operator = STREAMS[name]
    if name.startswith("features"):
        feature_map = operator.feature_map
        module = RandomFeatureAttention(feature_map, is_causal=True, mask=operator.mask)
    else:
        module = operator

    def call(*parts, **options):
        options = {key: torch.tensor(part) for key, part in options.items()}
        return module(*map(torch.tensor, parts), **options).numpy()

    expected = expected_of(call, name)
    check(streamed(module, name, CUTS[cut], torch.tensor), expected)
    check(call(Q, K, V, key_padding_mask=HIDDEN, **options_of(name)), expected)


WHOLE = {
    "features": ApproxKernelAttention(MAP),
    "exact": exact_attention,
}


@pytest.mark.parametrize("name", WHOLE)
def test_both_directions(name):
    call = WHOLE[name]
    check(call(Q, K, V, key_padding_mask=HIDDEN), expected_of(call))


@pytest.mark.parametrize("mask", [ONE, EACH])
def test_exact_attention_with_decays(mask):
    def call(*parts, **options):
        return exact_attention(*parts, causal=True, mask=mask, **options)

    check(call(Q, K, V, key_padding_mask=HIDDEN), expected_of(call))


@pytest.mark.parametrize("n_queries", [1, 33])
@pytest.mark.parametrize("name", STREAMS)
def test_fewer_queries(name, n_queries):
    expected = expected_of(STREAMS[name], name)
    out = STREAMS[name](Q[:, :, -n_queries:], K, V, key_padding_mask=HIDDEN, **options_of(name))
    real = np.broadcast_to(~HIDDEN[:, None, -n_queries:, None], out.shape)
    assert_allclose(out[real], expected[:, :, -n_queries:][real], rtol=0, atol=1e-10)
    assert np.isfinite(out).all()


def test_what_stands_at_padded_positions_is_not_read():
    gates, hidden = GATES.copy(), HIDDEN
    gates[np.broadcast_to(hidden[:, None], gates.shape)] = np.nan
    operator = STREAMS["features with gates"]
    out = operator(Q, K, V, key_padding_mask=hidden, log_gates=gates)
    check(out, expected_of(operator, "gates"))


def test_what_padding_holds_is_never_read():
    bad_k, bad_v = (np.where(HIDDEN[:, None, :, None], np.nan, array) for array in (K, V))
    k, v = (np.where(HIDDEN[:, None, :, None], 0.0, array) for array in (K, V))
    options = {"key_padding_mask": HIDDEN}
    calls = {
        "exact": lambda k, v: exact_attention(Q, k, v, **options),
        "features": lambda k, v: ApproxKernelAttention(MAP).fit(Q, k, **options)(
            Q, k, v, **options
        ),
        "partial": lambda k, v: (
            ApproxKernelAttention(MAP, causal=True)
            .fit(Q, k, **options)
            .partial_fit(Q, k, **options)(Q, k, v, **options)
        ),
        "diagnose": lambda k, v: np.array(
            ApproxKernelAttention(MAP, causal=True).diagnose(Q, k, v, **options).relative_error
        ),
        "compare": lambda k, v: np.array(
            [
                row.error
                for row in compare_attention(Q, k, v, {"window": WindowAttention(12)}, **options)
            ]
        ),
    }
    for name, call in calls.items():
        assert_allclose(call(bad_k, bad_v), call(k, v), rtol=0, err_msg=name)


def test_padding_may_have_axes_for_heads_and_queries():
    for call in (exact_attention, ApproxKernelAttention(MAP), WindowAttention(12)):
        expected = call(Q, K, V, key_padding_mask=HIDDEN)
        assert_allclose(call(Q, K, V, key_padding_mask=HIDDEN[:, None, None]), expected, rtol=0)
        with pytest.raises(TypeError, match="attention_mask == 0"):
            call(Q, K, V, key_padding_mask=1 - HIDDEN)


def test_both_masks_of_torch_may_have_axes_for_heads_and_queries():
    torch = pytest.importorskip("torch")
    from skrf.torch import RandomFeatureAttention

    attend = RandomFeatureAttention(MAP)
    parts = [torch.tensor(array) for array in (K, K, V)]
    hidden, kept = torch.tensor(HIDDEN), torch.ones(3, 1, 1, N, dtype=torch.bool)
    kept[1, ..., :30] = False
    expected = attend(*parts, key_padding_mask=hidden | ~kept[:, 0, 0])
    out = attend(*parts, kept, key_padding_mask=hidden[:, None, None])
    assert_allclose(out.numpy(), expected.numpy(), rtol=0)
