"""Generalised attention against its definition: nonlinearities, functions of rows, projections."""

import pickle

import numpy as np
import pytest
from array_api_compat import array_namespace
from numpy.testing import assert_allclose, assert_array_equal
from samples import FUNCTIONS, of_keys, of_queries
from scipy.special import expit, logsumexp
from sklearn.base import clone

from skrf.attention import ApproxKernelAttention, GeneralizedMap
from skrf.exceptions import FeatureCollapseWarning

L, D, E, SCALE = 70, 16, 3, 0.25
both_modes = pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])


def inputs(size=0.5, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    q, k, v = (factor * rng.normal(size=(2, L, n)) for factor, n in ((size, D), (size, D), (1, E)))
    return [array.astype(dtype) for array in (q, k, v)]


def exponentials(X):
    with np.errstate(over="ignore"):  # here, since threads do not inherit it
        return array_namespace(X).exp(X)


MAPS = {
    "relu": GeneralizedMap(24, epsilon=0.2, random_state=0),
    "square": GeneralizedMap(24, nonlinearity="square", projection="hadamard", random_state=0),
    "exp": GeneralizedMap(24, nonlinearity="exp", epsilon=0.2, random_state=0),
    "structured exp": GeneralizedMap(
        24, nonlinearity="exp", projection="hadamard", coupling="simplex", random_state=0
    ),
    "function": GeneralizedMap(24, nonlinearity=np.square, epsilon=0.1, random_state=0),
    "sigmoid": GeneralizedMap(24, nonlinearity="sigmoid", random_state=0),
    "abs": GeneralizedMap(24, nonlinearity="abs", random_state=0),
    "identity": GeneralizedMap(nonlinearity="elu", projection="identity"),
    "functions": GeneralizedMap(**FUNCTIONS),
    "functions and epsilon": GeneralizedMap(**FUNCTIONS, epsilon=0.2),
}
SMOOTH = {
    "relu": lambda z: np.maximum(z, 0),
    "elu": lambda z: np.where(z > 0, z + 1, np.exp(np.minimum(z, 0))),
    "square": np.square,
    "sigmoid": expit,
    "abs": np.abs,
    "exp": np.exp,
    np.square: np.square,
}


def definition(map_, q, k, v, causal):
    """Weights g1(x).g2(y) of plain features, in float64."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))

    def features(X, keys):
        rows = np.sqrt(SCALE) * X
        if map_.functions is not None:
            return map_.functions[keys](rows) + map_.epsilon
        omega = clone(map_).fit_without_data(D).feature_maps_[0].projection.dense()
        return SMOOTH[map_.nonlinearity](rows @ omega.T) + map_.epsilon

    out = []
    for rows, keys, values in zip(q, k, v, strict=True):
        weights = features(rows, False) @ features(keys, True).T
        weights = np.tril(weights) if causal else weights
        out.append(weights @ values / weights.sum(axis=1, keepdims=True))
    return np.array(out)


# ------------------------------------------------------------------ the definition


@both_modes
@pytest.mark.parametrize("name", MAPS)
def test_it_is_the_definition(name, causal):
    attention = ApproxKernelAttention(MAPS[name], causal=causal, block_size=32)
    for dtype, tolerance in (("float64", 1e-11), ("float32", 1e-5)):
        parts = inputs(dtype=dtype)
        out = attention(*parts)
        assert out.dtype == dtype
        expected = definition(MAPS[name], *parts, causal)
        assert_allclose(out, expected, rtol=tolerance, atol=tolerance)
    assert attention.diagnose(*inputs()).relative_error < 1
    if causal:
        parts, state, start = inputs(), attention.init_state(), 0
        expected = attention(*parts)
        for n in (1, 30, 39):
            chunk = [array[:, start : start + n] for array in parts]
            out, state = attention.step(*chunk, state)
            assert_allclose(out, expected[:, start : start + n], rtol=1e-11, atol=1e-12)
            start += n


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_the_size_of_functions_changes_nothing(size):
    sized = {"functions": (lambda X: size * of_queries(X), lambda X: of_keys(X) / size)}
    elementwise = {"nonlinearity": np.exp}
    elementwise_sized = {"nonlinearity": lambda z: size * np.exp(z)}
    for plain, other in ((FUNCTIONS, sized), (elementwise, elementwise_sized)):
        for dtype, tolerance in (("float64", 1e-11), ("float32", 1e-5)):
            parts = inputs(dtype=dtype)
            out, expected = (
                ApproxKernelAttention(GeneralizedMap(random_state=0, **params))(*parts)
                for params in (other, plain)
            )
            assert_allclose(out, expected, rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------ exponentials of any size


def log_definition(q, k, v, omega, causal):
    """Attention by logarithms, which do not overflow."""
    out = []
    for rows, keys, values in zip(*(array.astype(np.float64) for array in (q, k, v)), strict=True):
        logs = logsumexp((rows @ omega.T)[:, None] + (keys @ omega.T)[None], axis=2)
        logs = np.where(np.tri(L) > 0, logs, -np.inf) if causal else logs
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        out.append(weights @ values / weights.sum(axis=1, keepdims=True))
    return np.array(out)


@both_modes
def test_exponentials_do_not_overflow(causal):
    map_ = GeneralizedMap(24, nonlinearity="exp", random_state=0)
    assert map_.is_positive and not MAPS["relu"].is_positive
    attention = ApproxKernelAttention(map_, causal=causal, block_size=32)
    omega = np.sqrt(SCALE) * clone(map_).fit_without_data(D).omega_
    for size in (300.0, 1e30):
        for dtype in ("float64", "float32"):
            parts = inputs(size, dtype=dtype)
            with np.errstate(all="raise", under="ignore"):
                out = attention(*parts)
            assert_allclose(out, log_definition(*parts, omega, causal), rtol=1e-5, atol=1e-5)


def test_functions_that_overflow_are_refused():
    plain = GeneralizedMap(functions=(exponentials, exponentials))
    for map_ in (GeneralizedMap(nonlinearity=exponentials), plain):
        with pytest.raises(ValueError, match="='exp' has the logarith"):
            ApproxKernelAttention(map_)(*inputs(3000.0))


# ------------------------------------------------------------------ torch


@both_modes
@pytest.mark.parametrize("name", [name for name in MAPS if name != "function"])
def test_torch_differentiates_it(name, causal):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    attention = ApproxKernelAttention(MAPS[name], causal=causal)
    tensors = [torch.tensor(array, requires_grad=True) for array in inputs()]
    assert torch.autograd.gradcheck(attention, tensors, fast_mode=True)


def test_streams_of_modules_know_the_number_of_features_after_a_call():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    linear = torch.nn.Linear(D, 8, dtype=torch.float64)
    module = torch.nn.Sequential(linear, torch.nn.Softplus())
    attention = ApproxKernelAttention(GeneralizedMap(functions=(module, module)), causal=True)
    parts = [torch.tensor(array) for array in inputs()]
    with pytest.raises(ValueError, match="must take a NumPy array"):
        attention.step(*parts, attention.init_state())
    expected = attention(*parts)
    out, _ = attention.step(*parts, attention.init_state())
    assert_allclose(out.detach(), expected.detach(), rtol=1e-12)


# ------------------------------------------------------------------ parameters


def test_epsilon_leaves_no_query_alone():
    q, k, v = (np.abs(array) for array in inputs())
    map_ = GeneralizedMap(projection="identity", epsilon=0.1)
    assert_allclose(ApproxKernelAttention(map_)(-q, k, v).std(axis=1), 0, atol=1e-12)
    with pytest.warns(FeatureCollapseWarning, match="weights of their queries sum to 0"):
        assert not ApproxKernelAttention(clone(map_).set_params(epsilon=0))(-q, k, v).any()


@pytest.mark.parametrize("name", ["square", "function", "functions"])
def test_copies_and_pickles(name):
    attention = ApproxKernelAttention(MAPS[name])
    expected = attention(*inputs())
    for again in (clone(attention), pickle.loads(pickle.dumps(attention))):
        assert_array_equal(again(*inputs()), expected)
    n_components = 2 * D if MAPS[name].functions else 24
    assert clone(MAPS[name]).fit_without_data(D).n_components_ == n_components


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"functions": (of_queries,)}, "functions must be a tuple of two callables, got"),
        ({"functions": (of_queries, 3)}, "functions must be a tuple of two callables, got"),
        ({"functions": of_queries}, "'functions' parameter of GeneralizedMap must be"),
        ({**FUNCTIONS, "projection": "hadamard"}, "functions exclude projection.*'hadamard'"),
        ({**FUNCTIONS, "nonlinearity": "exp"}, "functions exclude nonlinearity"),
        ({**FUNCTIONS, "coupling": "iid"}, "functions exclude coupling"),
        ({"functions": (of_queries, np.negative)}, r"M the same for both; .* \(140, .*, got"),
        ({"functions": (np.sum, np.sum)}, r"must return features of shape \(n, M\).*got \(\)"),
        ({"epsilon": -1.0}, "'epsilon' parameter of GeneralizedMap must be"),
        ({"projection": "hadamard", "coupling": "sobol"}, "coupling='sobol' is not available"),
    ],
)
def test_what_is_refused(params, words):
    with pytest.raises(ValueError, match=words):
        ApproxKernelAttention(GeneralizedMap(**params))(*inputs())


@both_modes
@pytest.mark.parametrize("name", ["relu", "exp", "functions"])
def test_an_input_that_is_not_finite_is_named(name, causal):
    attention = ApproxKernelAttention(MAPS[name], causal=causal)
    for side in "qkv":
        parts = dict(zip("qkv", inputs(), strict=True))
        parts[side][(-1,) * 3] = np.nan
        with pytest.raises(ValueError, match=f"^{side} contains NaN or infinity"):
            attention(**parts)
