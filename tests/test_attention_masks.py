"""Masks against the dense definition: kinds of masks, both ways, extremes, gradients, memory."""

import copy
import pickle
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from attention_definitions import attention_of
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse.linalg import aslinearoperator
from sklearn.base import clone
from threadpoolctl import threadpool_limits

from skrf import OptimalPositiveRF
from skrf.attention import (
    ApproxKernelAttention,
    GeneralizedMap,
    ToeplitzMask,
    exact_attention,
)
from skrf.attention._masks import Mask, as_mask

N, M, E = 24, 6, 3
GRIDS = ((24,), (4, 6), (2, 3, 4))
TOLERANCE = 1e-10


def random_weights(shape, seed=0):
    weights = np.random.default_rng(seed).exponential(size=[2 * n - 1 for n in shape])
    weights[weights < 0.2] = 0
    return weights


def random_matrix(seed=0, density=0.4):
    rng = np.random.default_rng(seed)
    return rng.exponential(size=(N, N)) * (rng.random((N, N)) < density)


def matrix_of(weights, grid, n_extra):
    """Return the matrix of weights on a grid, and of ones: the definition."""
    places = np.array(list(np.ndindex(grid)))
    offsets = places[:, None] - places + np.array(grid) - 1
    n = len(places) + n_extra
    matrix = np.ones((n, n), weights.dtype)
    matrix[n_extra:, n_extra:] = weights[tuple(np.moveaxis(offsets, -1, 0))]
    return matrix


# Name: (mask as a user gives it, the same as a matrix).
KINDS = {f"grid {grid}": ToeplitzMask(random_weights(grid)) for grid in GRIDS}
KINDS["grid that decays"] = ToeplitzMask(np.exp(-5.0 * abs(np.arange(1 - N, N))))
KINDS["grid of a window"] = ToeplitzMask.from_function(lambda o: (2.0 - o) * (abs(o) < 2), (N,))
KINDS["grid and a class token"] = ToeplitzMask(random_weights((23,)), n_extra=1)
KINDS["grid and three more"] = ToeplitzMask(random_weights((3, 7)), n_extra=3)
KINDS = {name: (mask, mask.toarray()) for name, mask in KINDS.items()}
KINDS["array"] = random_matrix(1), random_matrix(1)
KINDS["boolean"] = random_matrix(2) > 0, 1.0 * (random_matrix(2) > 0)
KINDS["list"] = random_matrix(3).tolist(), random_matrix(3)
KINDS["csr matrix"] = sp.csr_matrix(random_matrix(4)), random_matrix(4)
few = random_matrix(5, 0.05) > 0
KINDS["sparse boolean"] = sp.coo_array(few), 1.0 * few
CASES = [(name, causal) for name in KINDS for causal in (False, True)]


# Inputs are the logarithms of features, or the features themselves.
LOGS = GeneralizedMap(nonlinearity="exp", projection="identity")
PLAIN = GeneralizedMap(projection="identity")


@pytest.fixture(params=["entries", "products"])
def way(request, monkeypatch):
    """Compute masks that have products in one of the two ways."""
    for kind in (kind for kind in Mask.__subclasses__() if "multiplier" in vars(kind)):
        monkeypatch.setattr(kind, "products_pay", lambda *sizes: request.param == "products")
    return request.param


def features(is_log, n=N, seed=10):
    """Return queries, keys, values, and which keys are padding: at both ends and in between."""
    rng = np.random.default_rng(seed)
    queries, keys = 2 * rng.normal(size=(2, n, M))
    values = rng.normal(size=(n, E)) * [1, 1e6, 1e-6]
    padding = np.isin(np.arange(n), [0, 7 % n, n - 1])
    if not is_log:
        queries, keys = np.exp(queries), np.exp(keys)
    return queries, keys, values, padding


def attend(queries, keys, values, padding, mask, causal=False):
    """Return the attention of one head."""
    feature_map = LOGS if queries.min() < 0 else PLAIN
    attention = ApproxKernelAttention(feature_map, mask=mask, causal=causal, scale=1.0)
    return attention(queries, keys, values, key_padding_mask=padding)


def quadratic(queries, keys, values, padding, matrix):
    """Return the attention from all pairs, in extended precision: independent of the library."""
    is_log = queries.min() < 0
    queries, keys, values, matrix = (
        np.asarray(x, dtype=np.longdouble) for x in (queries, keys, values, matrix * ~padding)
    )
    if is_log:
        logs = queries[:, None] + keys
        logs[matrix == 0] = -np.inf
        top = logs.max(axis=(1, 2), keepdims=True)
        logs -= np.where(np.isfinite(top), top, 0)
        # The weights are far from underflow in extended precision, not so in double.
        with np.errstate(under="ignore"):
            kernel = np.exp(logs).sum(axis=2) * matrix
    else:
        kernel = (queries @ keys.T) * matrix
    sums = kernel.sum(axis=1, keepdims=True)
    return np.where(sums == 0, 0, kernel @ values / np.where(sums == 0, 1, sums))


def assert_equal(out, right, values):
    """Compare rows by their largest entries, every value in its unit."""
    unit = abs(values).max(axis=0)
    largest = (abs(right) / unit).max(axis=1, keepdims=True)
    assert np.isfinite(out).all()
    assert np.all(abs(out - right) / unit <= TOLERANCE * largest)


# ------------------------------------------------------------------ grids


def test_a_grid_is_its_matrix():
    for grid in (*GRIDS, (1,), (5, 1), (1, 1, 3)):
        weights = random_weights(grid)
        for n_extra in (0, 2):
            mask = ToeplitzMask(weights, n_extra=n_extra)
            assert mask.shape == grid and mask.n_positions == np.prod(grid) + n_extra
            assert np.array_equal(mask.toarray(), matrix_of(weights, grid, n_extra))


def test_weights_may_be_longer_than_needed_or_a_function():
    mask = ToeplitzMask.from_function(lambda row, column: 10 * (row + 2) + column + 1, (3, 2))
    assert np.array_equal(mask.weights, 10 * np.arange(5)[:, None] + np.arange(3))
    assert np.array_equal(ToeplitzMask.from_function(lambda o: 1, (4,)).toarray(), np.ones((4, 4)))
    weights = random_weights((5, 4))
    short = ToeplitzMask(weights, shape=(3, 4))
    assert np.array_equal(short.weights, weights[2:7])
    weights[:] = 7
    assert short.weights.max() != 7
    with pytest.raises(ValueError, match="read-only"):
        short.weights[0] = 1


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((np.ones(4),), ValueError, r"weights .* odd, .*; got \(4,\)"),
        ((np.ones((2, 4)), (2,)), ValueError, r"weights .* for heads; got \(2, 4\)"),
        (([0, -2, 3],), ValueError, "weights must be finite and >= 0 everywhere, got -2"),
        (([1, np.nan, 3],), ValueError, "weights .* got nan"),
        (([1, 1j, 3],), TypeError, "weights must hold real numbers"),
        ((np.ones(5), (4,)), ValueError, r"shape must be at most \(3,\)"),
        ((np.ones(5), (3, 1)), ValueError, "shape must be at most"),
        ((np.ones(5), (0,)), ValueError, "shape must be a tuple"),
        ((np.ones(5), 3), ValueError, "shape must be a tuple"),
        ((np.ones(5), None, -1), ValueError, "n_extra must be an integer >= 0, got -1"),
    ],
)
def test_wrong_weights_raise(arguments, error, words):
    with pytest.raises(error, match=words):
        ToeplitzMask(*arguments)


# ------------------------------------------------------------------ refusals


SHAPE = r"mask .*= \(4, 4\).* got a "


@pytest.mark.parametrize(
    ("mask", "causal", "error", "words"),
    [
        (np.ones((4, 5)), False, ValueError, SHAPE + r"ndarray of shape \(4, 5\)"),
        (sp.eye_array(5), False, ValueError, SHAPE),
        (ToeplitzMask(np.ones(9)), False, ValueError, SHAPE + r"ToeplitzMask of shape \(5, 5\)"),
        (np.ones((3, 4, 4)), False, ValueError, r"for 1 query heads in front, .*\(3, 4, 4\)"),
        (ToeplitzMask(np.ones((3, 7)), (4,)), False, ValueError, r"ToeplitzMask .*\(3, 4, 4\)"),
        ([ToeplitzMask(np.ones(7))] * 2, False, TypeError, "got an object of type list"),
        (-np.eye(4), False, ValueError, "mask must be finite and >= 0 everywhere, got -1.0"),
        (np.full((4, 4), 1j), False, TypeError, "mask must hold real numbers"),
        (-sp.eye_array(4), False, ValueError, "mask .* got -1.0"),
        (sp.eye_array(4).tolil() * np.nan, True, ValueError, "mask .* got nan"),
        (aslinearoperator(np.eye(4)), False, TypeError, "got an object of type .*LinearOperator"),
    ],
)
def test_wrong_masks_raise(mask, causal, error, words):
    with pytest.raises(error, match=words):
        attend(*np.ones((3, 4, 2)), None, mask, causal)


def test_sparse_masks_add_up_duplicates_and_are_not_changed():
    mask = sp.csr_array((np.ones(3), [1, 1, 0], [0, 2, 3]), shape=(2, 2))
    out = attend(np.ones((2, 1)), np.ones((2, 1)), np.array([[1.0], [2.0]]), None, mask)
    assert_allclose(out, [[2.0], [1.0]])
    assert mask.nnz == 3
    dense, sparse = random_matrix(7), sp.csr_array(random_matrix(7))
    for mask in (dense, sparse):
        attend(*features(True), mask, True)
    assert np.array_equal(dense, random_matrix(7))
    assert np.array_equal(sparse.toarray(), dense)


# ------------------------------------------------------------------ attention


@pytest.mark.parametrize("is_log", [True, False], ids=["log", "plain"])
def test_attention_is_the_quadratic_product(is_log, way):
    parts = features(is_log)
    for name, causal in CASES:
        given, matrix = KINDS[name]
        matrix = np.tril(matrix) if causal else matrix
        assert_equal(attend(*parts, given, causal), quadratic(*parts, matrix), parts[2])


def test_keys_that_grow_along_a_causal_sequence(way):
    """By products alone the first rows would be wrong: they see only small keys."""
    queries, keys, values, padding = features(True)
    keys += np.linspace(-40, 0, N)[:, None]
    for name in ("grid (24,)", "grid (2, 3, 4)", "grid that decays", "array"):
        given, matrix = KINDS[name]
        for scale in (1, 1e2, 1e4):
            parts = scale * queries, scale * keys, values, padding
            assert_equal(attend(*parts, given, True), quadratic(*parts, np.tril(matrix)), values)


@pytest.mark.parametrize("value", [1e14, (0, 0, 1e8), (0, 0, 0)], ids=["huge", "one huge", "zero"])
def test_what_a_row_does_not_see_does_not_count(value, way):
    """Only the last row sees the last key: a large one, or one with a large value."""
    queries, keys, values, padding = features(True)
    units = abs(values).max(axis=0)
    values[-1], padding[-1] = value, False
    keys[-1] = keys[-2] + (0 if np.any(value) else 20)
    parts = queries, keys, values, padding
    for name in ("grid (24,)", "grid (4, 6)"):
        grid, matrix = KINDS[name]
        right = quadratic(*parts, np.tril(matrix))[:-1] / units
        error = abs(attend(*parts, grid, True)[:-1] / units - right)
        assert np.all(error <= TOLERANCE * abs(right).max(axis=1, keepdims=True))


@pytest.mark.filterwarnings("ignore:Some outputs are 0")
@pytest.mark.parametrize("is_log", [True, False], ids=["log", "plain"])
def test_rows_without_a_key_are_zero(is_log, way):
    queries, keys, values, padding = features(is_log)
    padding[:20] = True
    values[:, 1] = 0
    kinds = {**KINDS, "zeros": (ToeplitzMask(np.zeros(2 * N - 1)), np.zeros((N, N)))}
    for name, (given, matrix) in kinds.items():
        causal = name != "operator"
        matrix = np.tril(matrix) if causal else matrix
        is_empty = ~matrix[:, ~padding].any(axis=1)
        assert is_empty.any()
        out = attend(queries, keys, values, padding, given, causal)
        assert np.array_equal((out == 0).all(axis=1), is_empty)
        assert not out[:, 1].any()
        right = quadratic(queries, keys, values, padding, matrix)
        assert_equal(out[:, ::2], right[:, ::2], values[:, ::2])
        assert not attend(queries, keys, values, np.ones(N, bool), given, causal).any()


def test_weights_of_any_size(way):
    """Only ratios of weights count: those of one row may underflow, all may be huge or tiny."""
    queries, keys, values, padding = features(True)
    offsets = abs(np.arange(1 - N, N))
    keys[12:] += 725  # beside them the others are at the end of what floats can hold
    for logs in (-60.0 * offsets, 600 - 0.1 * offsets, -460 - 0.1 * offsets):
        grid = ToeplitzMask(np.exp(logs))
        matrix = grid.toarray()
        right = quadratic(queries, keys, values, padding, np.tril(matrix))
        for given in (grid, matrix, sp.csr_array(matrix)):
            assert_equal(attend(queries, keys, values, padding, given, True), right, values)


def test_more_queries_than_keys():
    matrix = random_matrix(8)[:, :17]
    queries, *others = features(True)
    parts = queries, *(array[:17] for array in others)
    for kind in (np.asarray, sp.csr_array):
        assert_equal(attend(*parts, kind(matrix)), quadratic(*parts, matrix), parts[2])


@pytest.mark.parametrize("kind", ["array", "sparse", "of heads"])
def test_the_last_queries_of_a_causal_sequence_take_the_last_rows_of_its_mask(kind, way):
    queries, keys, values, _ = features(True)
    queries = np.stack([queries, -queries])[:, -5:]
    full = random_matrix(11)
    if kind == "of heads":
        full = np.stack([full, random_matrix(12)])
    last = full[..., -5:, :]
    if kind == "sparse":
        full, last = sp.csr_array(full), sp.csr_array(last)
    given = queries, keys[None], values[None]
    whole, part = (ApproxKernelAttention(LOGS, mask=m, causal=True)(*given) for m in (full, last))
    assert_allclose(whole, part, rtol=1e-12)
    whole, part = (exact_attention(*given, mask=m, causal=True) for m in (full, last))
    assert_allclose(whole, part, rtol=1e-12)


# ------------------------------------------------------------------ float32


@pytest.mark.parametrize("growth", [0, 30, 300])
def test_float32_is_close_to_float64(growth, way):
    """Sums that leave the range of float32, or lose its digits, are taken again in float64."""
    queries, keys, _, padding = features(True)
    keys += np.linspace(-growth, 0, N)[:, None]
    values = np.random.default_rng(11).normal(size=(N, E))
    single = [array.astype(np.float32) for array in (queries, keys, values)]
    double = [array.astype(np.float64) for array in single]
    for name, causal in CASES:
        out, right = (
            attend(*arrays, padding, KINDS[name][0], causal) for arrays in (single, double)
        )
        assert out.dtype == np.float32
        assert_allclose(out, right, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("decay", [10, 100, 1e9])
def test_float32_by_products_of_long_masks(decay):
    n, rng = 2000, np.random.default_rng(0)
    values = rng.normal(size=(n, E)).astype(np.float32)
    given = ToeplitzMask.from_function(lambda o: np.exp(-abs(o) / decay), (n,))
    for scale in (1e-9, 0.5):
        queries, keys = (scale * rng.normal(size=(2, n, M))).astype(np.float32)
        out = attend(queries, keys, values, None, given, True)
        double = (array.astype(np.float64) for array in (queries, keys, values))
        assert abs(out - attend(*double, None, given, True)).max() < 1e-5


# ------------------------------------------------------------------ the operator


def operator(mask, **parameters):
    return ApproxKernelAttention(OptimalPositiveRF(16, random_state=0), mask=mask, **parameters)


def tokens(n, lead=(2, 4), key_lead=(2, 2), width=4, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(*lead, n, width)) / 2,
        rng.normal(size=(*key_lead, n, width)) / 2,
        rng.normal(size=(*key_lead, n, E)),
    )


def test_random_masks_of_heads(way):
    """Grids of any shape, extra positions, weights per head, padding, grouped heads."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        grid = tuple(int(n) for n in rng.integers(1, 6, size=rng.integers(1, 4)))
        n_extra, causal = int(rng.integers(0, 4)), bool(rng.integers(2))
        weights = random_weights(grid, seed)
        if rng.integers(2):
            weights = np.stack([weights, random_weights(grid, seed + 100)])
        mask = ToeplitzMask(weights, grid, n_extra)
        q, k, v = tokens(mask.n_positions, (2, 2), (2, int(rng.integers(1, 3))), seed=seed)
        padding = rng.random((2, mask.n_positions)) < 0.2
        for given in (mask, mask.toarray()):
            attention = operator(given, causal=causal)
            expected = attention_of(attention, q, k, v, padding)
            out = attention(q, k, v, key_padding_mask=padding)
            assert_allclose(out, expected, rtol=1e-10, atol=1e-10)


# ------------------------------------------------------------------ other libraries


IN_LIBRARIES = {
    "numbers": random_matrix(1),
    "booleans": KINDS["boolean"][0],
    "list": KINDS["list"][0],
    "sparse": KINDS["csr matrix"][0],
    "heads": np.stack([random_matrix(1), random_matrix(2)]),
    "grid and three more": KINDS["grid and three more"][0],
    "grids of heads": ToeplitzMask(
        np.stack([random_weights((4, 6), seed) for seed in (7, 8)]), (4, 6)
    ),
}


def in_library(library, mask):
    """Return a mask whose arrays are those of a library, where it can have such arrays."""
    if isinstance(mask, ToeplitzMask):
        return ToeplitzMask(library.array(mask.weights.copy()), mask.shape, n_extra=mask.n_extra)
    return library.array(mask) if isinstance(mask, np.ndarray) else mask


@pytest.mark.parametrize(("dtype", "causal"), [("float32", True), ("float64", False)])
def test_masks_in_other_libraries(library, causal, dtype, way):
    parts = [array.astype(dtype) for array in tokens(N, (2, 2), (2, 1))]
    padding = np.random.default_rng(1).random((2, N)) < 0.2
    arrays = [library.array(array) for array in parts]
    close = 1e-10 if dtype == "float64" else 1e-4
    for given in IN_LIBRARIES.values():
        expected = operator(given, causal=causal)(*parts, key_padding_mask=padding)
        theirs = in_library(library, given)
        for mask in (given, theirs):
            out = operator(mask, causal=causal)(*arrays, key_padding_mask=padding)
            library.assert_same(out, expected, arrays[0], rtol=close, atol=close)
        # And beside NumPy's inputs.
        out = operator(theirs, causal=causal)(*parts, key_padding_mask=padding)
        assert_allclose(out, expected, rtol=close, atol=close)


# ------------------------------------------------------------------ gradients, by torch


@pytest.mark.parametrize("growth", [0, 900])
def test_gradients_of_rows_on_scales_of_their_own(growth, way):
    """The first rows see only keys that underflow beside the last: they are taken alone."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    queries, keys, values, padding = features(True, n=8)
    keys += np.linspace(-growth, 0, 8)[:, None]
    parts = [torch.tensor(array, requires_grad=True) for array in (queries, keys, values / 1e6)]
    weights = torch.tensor(np.linspace(0.5, 2, 15), requires_grad=True)

    def attend(q, k, v, weights):
        mask = ToeplitzMask(weights)
        attention = ApproxKernelAttention(LOGS, causal=True, mask=mask, scale=1.0)
        return attention(q, k, v, key_padding_mask=torch.tensor(padding))

    assert torch.autograd.gradcheck(attend, (*parts, weights), fast_mode=True)


def definition(attention, q, k, v, matrices):
    """Return masked attention by its definition, in torch, and the sums of weights."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    out, totals, n_shared = [], [], q.shape[1] // k.shape[1]
    for b, h in np.ndindex(*q.shape[:2]):
        j = h // n_shared
        queries, keys = attention.feature_maps_[j].feature_maps_
        kernel = matrices[h] * (queries(q[b, h]).plain() @ keys(k[b, j]).plain().T)
        totals.append(kernel.sum(dim=1, keepdim=True))
        out.append(kernel @ v[b, j] / totals[-1].where(totals[-1] > 0, torch.inf))
    return (torch.stack(rows).unflatten(0, q.shape[:2]) for rows in (out, totals))


MAPS_OF_FEW = {
    "relu": GeneralizedMap(4, random_state=0),
    "positive": OptimalPositiveRF(8, random_state=0),
}


@pytest.mark.filterwarnings("ignore:Some outputs are 0")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["grid", "grids of heads", "array", "arrays of heads"])
@pytest.mark.parametrize("name", MAPS_OF_FEW)
def test_torch_differentiates_masks_and_what_they_weight(name, kind, causal, way):
    """Also with respect to weights of 0, and where some queries of relu have no weight."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    n, rng = 7, np.random.default_rng(2)
    q, k, v = (
        torch.tensor(rng.normal(size=(2, heads, n, 3)) / 2, requires_grad=True)
        for heads in (4, 2, 2)
    )
    is_grid = kind.startswith("grid")  # of n - 1 positions, beside one more
    shape = ((4,) if kind.endswith("heads") else ()) + ((2 * n - 3,) if is_grid else (n, n))
    weights = rng.exponential(size=shape) * (rng.random(shape) < 0.6)
    weights[..., n - 2 if is_grid else np.eye(n, dtype=bool)] = 1
    weights = torch.tensor(weights, requires_grad=True)
    mask = matrices = weights
    if is_grid:
        mask = ToeplitzMask(weights, (n - 1,), n_extra=1)
        offsets = n - 2 + torch.arange(n - 1)[:, None] - torch.arange(n - 1)
        matrices = torch.nn.functional.pad(weights[..., offsets], (1, 0, 1, 0), value=1.0)
    matrices = (matrices.tril() if causal else matrices).expand(4, n, n)
    attention = ApproxKernelAttention(MAPS_OF_FEW[name], causal=causal, mask=mask).fit(q, k)
    result = attention(q, k, v)
    expected, totals = definition(attention, q, k, v, matrices)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    gradient = torch.tensor(rng.normal(size=result.shape)) * (totals > 0)
    grads, expected = (
        torch.autograd.grad((out * gradient).sum(), (weights, q, k, v))
        for out in (result, expected)
    )
    for grad, right in zip(grads, expected, strict=True):
        assert (grad - right).abs().max() <= 1e-10 * max(1, right.abs().max())
    assert (grads[0] * (weights == 0)).any()


@pytest.mark.parametrize("kind", ["array", "grid (4, 6)"])
def test_short_floats(kind):
    """Inputs, outputs and gradients of one short dtype; sums are those of float32."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for dtype in (torch.float16, torch.bfloat16):
        mask = KINDS[kind][0]
        if kind != "array":
            mask = ToeplitzMask(torch.tensor(mask.weights.copy(), dtype=dtype))
        tensors = [torch.tensor(array, dtype=dtype, requires_grad=True) for array in tokens(N)]
        attention = operator(mask, causal=True)
        out = attention(*tensors)
        exact = attention(*(tensor.detach().double() for tensor in tensors))
        assert out.dtype == dtype
        # Half a unit in the last place of values of at most 4, and rounding in float32.
        assert (out.double() - exact).abs().max() <= 2.02 * torch.finfo(dtype).eps
        out.sum().backward()
        assert all(tensor.grad.dtype == dtype for tensor in tensors)


# ------------------------------------------------------------------ time and memory


def peak_of(function):
    """Return the bytes that a call allocates at most at one time."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_a_few_blocks(way):
    n = 4096
    rng = np.random.default_rng(0)
    queries, keys = rng.normal(size=(2, n, 32))
    values = rng.normal(size=(n, 16))
    # All rows at once would be 128 MB, all columns 17 MB.
    mask = ToeplitzMask.from_function(lambda row, column: 1 + row % 2, (64, 64))
    # Features, their copies as factors, and values with a weight; sums are float64.
    held = 10 * values.nbytes + 5 * 2 * queries.nbytes
    with threadpool_limits(1, user_api="blas"):  # blocks are those of a thread
        attend(queries, keys, values, None, mask)  # which compiles loops
        peak = peak_of(lambda: attend(queries, keys, values, None, mask))
    assert peak <= held + 8 * 2**22


def test_sparse_masks_cost_their_entries():
    n, each = 10_000, 4
    rng = np.random.default_rng(0)
    graph = sp.csr_array(
        (np.ones(n * each), rng.integers(n, size=n * each), np.arange(0, n * each + 1, each)),
        shape=(n, n),
    )
    queries, keys = rng.normal(size=(2, n, M))
    values = rng.normal(size=(n, E))
    out = []
    peak = peak_of(lambda: out.append(attend(queries, keys, values, None, graph)))
    assert peak <= 40 * values.nbytes  # where the mask would have 800 MB
    some = np.arange(0, n, 997)
    right = quadratic(queries[some], keys, values, np.zeros(n, bool), graph[some].toarray())
    assert_equal(out[0][some], right, values)


def test_the_faster_way_is_taken():
    def pays(n, window=None, causal=False, sizes=(256, 64)):
        weights = np.ones(2 * n - 1)
        if window is not None:
            weights[: n - window] = weights[n + window :] = 0
        return as_mask(ToeplitzMask(weights), n, n, 1, causal).products_pay(*sizes)

    # The lengths that the guide names.
    for n, *sizes in ((40_000, 256, 64), (20_000, 64, 64), (20_000, 256, 32), (6000, 64, 16)):
        assert pays(n, sizes=sizes) and not pays(int(0.85 * n), sizes=sizes)
    assert not pays(40_000, window=100)
    assert pays(100_000, causal=True)


# ------------------------------------------------------------------ arrays of the caller

OWNED = {
    "array": np.random.default_rng(0).uniform(size=(9, 9)),
    "boolean": np.tri(9, dtype=bool),
    "heads": np.random.default_rng(0).uniform(size=(2, 9, 9)),
    "sparse": sp.csr_array(np.tri(9)),
    "list": np.tri(9).tolist(),
}


def overwrite(mask):
    """Keep the first key of every query alone."""
    if sp.issparse(mask):
        mask.data[:] = np.where(mask.indices == 0, 1.0, 0.0)
    elif isinstance(mask, list):
        mask[:] = np.eye(9)[[0] * 9].tolist()
    else:
        mask[...] = np.eye(9, dtype=mask.dtype)[[0] * 9]


@pytest.mark.parametrize("name", OWNED)
def test_operators_keep_the_mask_of_their_first_call(name):
    q, k, v = np.random.default_rng(1).normal(size=(3, 2, 9, 4))
    mask = copy.deepcopy(OWNED[name])
    operator = ApproxKernelAttention(mask=mask, random_state=0)
    assert clone(operator).mask is not None and operator.get_params()["mask"] is mask
    expected = operator(q, k, v)
    overwrite(mask)
    assert_array_equal(operator(q, k, v), expected)
    assert_array_equal(pickle.loads(pickle.dumps(operator))(q, k, v), expected)
    assert operator.get_params()["mask"] is mask
    changed = operator.set_params(mask=copy.deepcopy(mask))(q, k, v)
    assert_allclose(changed, np.broadcast_to(v[:, :1], v.shape), atol=1e-12)


def test_masks_keep_copies():
    q, k, v = np.random.default_rng(1).normal(size=(3, 2, 9, 4))
    rates, offsets = np.array([0.1, 0.2]), np.ones(17)
    masks = [
        ToeplitzMask.decay(rates),
        ToeplitzMask(offsets),
        ToeplitzMask(offsets, shape=(4,)),
    ]
    before = [copy.deepcopy(vars(mask)) for mask in masks]
    operators = [ApproxKernelAttention(causal=True, mask=m, random_state=0) for m in masks[:2]]
    outs = [operator(q, k, v) for operator in operators]
    for array in (rates, offsets):
        array *= np.arange(len(array))  # which is not read-only
    for operator, out in zip(operators, outs, strict=True):
        assert_array_equal(operator(q, k, v), out)
    for mask, values in zip(masks, before, strict=True):
        for name, value in values.items():
            assert_array_equal(getattr(mask, name), value)


def test_masks_copy_arrays_of_other_libraries(library):
    rates = library.array([0.1, 0.2])
    masks = ToeplitzMask.decay(rates), ToeplitzMask(library.array([1.0, 2.0, 3.0]))
    is_kept = masks[0].rate is rates
    assert is_kept == ("torch" in library.xp.__name__)  # tensors may be trained


def test_modules_keep_copies():
    torch = pytest.importorskip("torch")
    from skrf.torch import RandomFeatureAttention

    parts = torch.randn(3, 1, 2, 9, 4, generator=torch.Generator().manual_seed(0))
    for name in ("array", "sparse"):
        mask = copy.deepcopy(OWNED[name])
        module = RandomFeatureAttention(mask=mask, random_state=0)
        expected = module(*parts)
        overwrite(mask)
        assert torch.equal(module(*parts), expected)
        # Directions have operators of their own.
        module.is_causal = True
        causal = RandomFeatureAttention(mask=OWNED[name], is_causal=True, random_state=0)
        assert torch.equal(module(*parts), causal(*parts))
