"""Masks and the masked product of one head, against matrices and quadratic sums."""

import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, aslinearoperator
from threadpoolctl import threadpool_limits

from skrf import OptimalPositiveRF
from skrf._sums import Rows
from skrf.attention import (
    ApproxKernelAttention,
    GeneralizedMap,
    ToeplitzMask,
    _masked,
    _products,
    exact_attention,
)
from skrf.attention._masked import (
    Inputs,
    assembled,
    masked_attention,
    masked_attention_backward,
)
from skrf.attention.masks import as_mask

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
KINDS["sparse boolean"] = (
    sp.coo_array(random_matrix(5, 0.05) > 0),
    1.0 * (random_matrix(5, 0.05) > 0),
)
KINDS["operator"] = aslinearoperator(random_matrix(6)), random_matrix(6)
# Name: (what is trained, the matrix of that), also where it is 0 or negative.
TRAINED = {
    name: (mask.weights, partial(matrix_of, grid=mask.shape, n_extra=mask.n_extra))
    for name, (mask, _) in KINDS.items()
    if name.startswith("grid")
}
TRAINED |= {name: (KINDS[name][1], lambda matrix: matrix) for name in ("array", "boolean")}
CASES = [
    (name, causal)
    for name in KINDS
    for causal in (False, True)
    if not (causal and name == "operator")
]


def features(is_log, n=N, seed=10, scale=1.0):
    """Return queries, keys, values; padded keys at both ends and in between."""
    rng = np.random.default_rng(seed)
    queries, keys = 2 * scale * rng.normal(size=(2, n, M))
    keys[[0, 7 % n, n - 1]] = -np.inf
    values = rng.normal(size=(n, E)) * [1, 1e6, 1e-6]
    return (queries, keys, values) if is_log else (np.exp(queries), np.exp(keys), values)


def inputs_of(queries, keys, values, is_log):
    """Return the inputs of one head: (log) features and values as attention gets them."""
    parts = (Rows(x) if is_log else Rows(x, np.zeros_like(x[:, :1])) for x in (queries, keys))
    queries, keys = parts
    values = np.column_stack([np.ones_like(values[:, :1]), values])
    return Inputs(queries.map(lambda x: x[None]), keys, values)


def attend(queries, keys, values, mask, is_log):
    """Return the attention of one head, and the pieces that it was made of."""
    pieces = masked_attention(inputs_of(queries, keys, values, is_log), mask)
    return assembled(pieces)[0], pieces


def backward(queries, keys, values, mask, is_log, pieces, grad_out, by_mask=None):
    given = inputs_of(queries, keys, values, is_log)
    grads = masked_attention_backward(given, mask, pieces, grad_out[None], by_mask)
    return grads[0][0], grads[1], grads[2][:, 1:]


def quadratic(queries, keys, values, matrix, is_log):
    """Return the attention from all pairs, in extended precision: independent of the library."""
    queries, keys, values, matrix = (
        np.asarray(x, dtype=np.longdouble) for x in (queries, keys, values, matrix)
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


def internal(mask, causal=False, way="rows", n=N, is_trained=False):
    """Return the internal mask, made to go one of the two ways."""
    mask = as_mask(mask, n, n, causal, is_trained=is_trained)
    mask.columns_pay = lambda *sizes: way == "columns" and hasattr(mask, "product")
    return mask


def assert_equal(out, right, values):
    """Compare rows by their largest entries, every value in its unit."""
    unit = abs(values).max(axis=0)
    largest = (abs(right) / unit).max(axis=1, keepdims=True)
    assert np.isfinite(out).all()
    assert np.all(abs(out - right) / unit <= TOLERANCE * largest)


def make_blocks(monkeypatch, size, rows):
    """Set the bytes and the rows of a block."""
    for module in (_products, _masked):
        monkeypatch.setattr(module, "BLOCK_BYTES", size)
    monkeypatch.setattr(_products, "COLUMN_BYTES", size)
    monkeypatch.setattr(_products, "_LEAST_COLUMNS", 1)
    monkeypatch.setattr(_products.Mask, "block_rows", rows)
    monkeypatch.setattr(_products, "_BLOCK_ROWS", rows)


@pytest.fixture(params=[False, True], ids=["blocks", "tiny blocks"])
def blocks(request, monkeypatch):
    """Run a test again with blocks of a few numbers, so that every loop has many rounds."""
    if request.param:
        make_blocks(monkeypatch, 2**9, 5)


# ------------------------------------------------------------------ grids


@pytest.mark.parametrize("grid", [*GRIDS, (1,), (5, 1), (1, 1, 3)])
def test_a_grid_is_its_matrix(grid):
    weights = random_weights(grid)
    for n_extra, said in ((0, ""), (2, ", n_extra=2")):
        mask = ToeplitzMask(weights, n_extra=n_extra)
        assert mask.shape == grid and mask.n_positions == np.prod(grid) + n_extra
        assert np.array_equal(mask.toarray(), matrix_of(weights, grid, n_extra))
        assert repr(mask) == f"ToeplitzMask(shape={grid}{said})"


def test_weights_for_long_sequences_serve_short_ones():
    weights = random_weights((5, 4))
    short = ToeplitzMask(weights, shape=(3, 4))
    assert np.array_equal(short.weights, weights[2:7])
    weights[:] = 7
    assert short.weights.max() != 7
    with pytest.raises(ValueError, match="read-only"):
        short.weights[0] = 1


def test_weights_from_a_function():
    mask = ToeplitzMask.from_function(lambda row, column: 10 * (row + 2) + column + 1, (3, 2))
    assert np.array_equal(mask.weights, 10 * np.arange(5)[:, None] + np.arange(3))
    assert np.array_equal(ToeplitzMask.from_function(lambda o: 1, (4,)).toarray(), np.ones((4, 4)))


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((np.ones(4),), ValueError, r"weights .* odd; got \(4,\)"),
        ((1.0,), ValueError, r"weights .* got \(\)"),
        (([1, -2, 3],), ValueError, r"weights must be finite and >= 0 everywhere, got -2"),
        (([1, np.nan, 3],), ValueError, "weights .* got nan"),
        (([1, np.inf, 3],), ValueError, "weights .* got inf"),
        (([1, 1j, 3],), TypeError, "weights must hold real numbers"),
        ((np.ones(5), (4,)), ValueError, r"shape must be at most \(3,\)"),
        ((np.ones(5), (3, 1)), ValueError, "shape must be at most"),
        ((np.ones(5), (0,)), ValueError, "shape must be a tuple"),
        ((np.ones(5), 3), ValueError, "shape must be a tuple"),
        ((np.ones(5), (1.5,)), ValueError, "shape must be a tuple"),
        ((np.ones(5), None, -1), ValueError, "n_extra must be an integer >= 0, got -1"),
    ],
)
def test_wrong_weights_raise(arguments, error, said):
    with pytest.raises(error, match=said):
        ToeplitzMask(*arguments)


# ------------------------------------------------------------------ masks as operators


@pytest.mark.parametrize(("name", "causal"), CASES)
def test_products_with_a_mask(name, causal, blocks):
    given, matrix = KINDS[name]
    matrix = np.tril(matrix) if causal else matrix
    mask = internal(given, causal)
    rows, keys = np.array([2, 3, 11, 20]), slice(1, 20)
    X = np.zeros(1)
    for own in (rows, np.arange(7, 19), np.arange(2)):
        assert np.array_equal(mask.entries(own, slice(0, N), X), matrix[own])
        assert np.array_equal(mask.entries(own, keys, X), matrix[own, keys])
    seen = set(np.arange(N)[mask.seen(rows)])
    assert seen >= set(np.flatnonzero(matrix[rows].any(axis=0)))
    if name.startswith("grid (") and causal:
        assert seen <= set(range(21))
    if hasattr(mask, "product"):
        # Those of extra positions are taken by rows.
        Z, own = np.random.default_rng(0).normal(size=(11, N)), slice(mask.n_extra, None)
        found = mask.product(mask.waves(Z), Z)
        assert np.allclose(found[:, own], (Z @ matrix.T)[:, own], rtol=0, atol=1e-13)
        Z[:, : mask.n_extra] = 0
        found = mask.transposed_product(mask.waves(Z), Z)
        assert np.allclose(found, Z @ matrix, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "operator"])
@pytest.mark.parametrize("causal", [False, True])
def test_entries_in_float32(name, causal):
    given, matrix = KINDS[name]
    if name == "grid (24,)":  # beyond the range of float32: over a power of 2 they are not
        given, matrix = ToeplitzMask(given.weights * 1e60), matrix * 1e60
    mask, X, rows = as_mask(given, N, N, causal), np.zeros(1, np.float32), np.arange(N)
    found = mask.entries(rows, np.arange(N) if mask.block_rows == 32 else slice(0, N), X)
    assert found.dtype == np.float32 and found.max() <= 1
    right = np.tril(matrix) if causal else matrix
    # Of what is smaller still float32 has fewer digits, or none.
    np.testing.assert_allclose(found * np.float64(mask.unit(X)), right, rtol=1e-7, atol=1e-37)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("grid", [(5,), (2, 3)])
def test_entries_of_any_rows(grid, causal):
    weights = random_weights(grid)
    matrix = matrix_of(weights, grid, 2)
    mask, X = as_mask(ToeplitzMask(weights, n_extra=2), *matrix.shape, causal), np.zeros(1)
    right = np.tril(matrix) if causal else matrix
    for numbers in range(1, 2 ** len(matrix)):
        rows = np.flatnonzero(numbers >> np.arange(len(matrix)) & 1)
        keys = mask.seen(rows)
        assert np.array_equal(mask.entries(rows, keys, X), right[rows, keys])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("grid", [(8,), (500,), (20, 30), (7, 8, 9)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_of_transforms_is_estimated(grid, causal, dtype):
    n = int(np.prod(grid))
    rng = np.random.default_rng(1)
    shares = []
    for function in (
        lambda *o: 1.0,
        lambda *o: np.exp(-sum(map(abs, o)) / 5),
        lambda *o: np.exp(4 * rng.normal(size=o[0].shape)),
    ):
        given = ToeplitzMask.from_function(function, grid)
        matrix = given.toarray().astype(np.longdouble)
        mask = internal(given, causal, n=n)
        Z = [np.ones(n), rng.normal(size=n), np.exp(np.linspace(-40, 0, n)), (-1.0) ** np.arange(n)]
        Z = np.array(Z).astype(dtype)
        right = Z @ (np.tril(matrix) if causal else matrix).T
        errors = abs(mask.product(mask.waves(Z), Z) - right / mask.unit(Z)).max(axis=1)
        shares.append(errors / (mask.rounding(Z) * np.linalg.norm(Z, axis=1)))
    # An estimate that holds, and not one that would send every row the slow way.
    assert np.max(shares) <= 1
    assert np.max(shares) >= 0.01


def refusing(matrix):
    """Return a LinearOperator without an adjoint."""
    return LinearOperator(matrix.shape, matvec=lambda x: matrix @ x, dtype=float)


@pytest.mark.parametrize(
    ("mask", "causal", "error", "said"),
    [
        (np.ones((4, 5)), False, ValueError, r"mask .*= \(4, 4\), got a ndarray of shape \(4, 5\)"),
        (np.ones(4), False, ValueError, r"mask must have the shape .* shape \(4,\)"),
        (sp.eye_array(5), False, ValueError, r"mask must have the shape .* shape \(5, 5\)"),
        (ToeplitzMask(np.ones(9)), False, ValueError, r"a ToeplitzMask of shape \(5, 5\)"),
        (aslinearoperator(np.eye(5)), False, ValueError, "mask must have the shape"),
        (-np.eye(4), False, ValueError, "mask must be finite and >= 0 everywhere, got -1.0"),
        (np.full((4, 4), np.nan), False, ValueError, "mask .* got nan"),
        (np.full((4, 4), 1j), False, TypeError, "mask must hold real numbers"),
        (np.full((4, 4), "a"), False, TypeError, "mask must hold real numbers"),
        (-sp.eye_array(4), False, ValueError, "mask .* got -1.0"),
        (sp.eye_array(4).tolil() * np.nan, True, ValueError, "mask .* got nan"),
        (aslinearoperator(np.eye(4)), True, ValueError, "LinearOperator cannot be made causal"),
        (aslinearoperator(1j * np.eye(4)), False, TypeError, "mask must be real"),
    ],
)
def test_wrong_masks_raise(mask, causal, error, said):
    with pytest.raises(error, match=said):
        as_mask(mask, 4, 4, causal)


def test_causal_masks_are_square():
    with pytest.raises(ValueError, match="causal=True .* got 5 keys and 4 queries"):
        as_mask(np.ones((4, 5)), 4, 5, True)


def test_masks_are_not_changed():
    dense, sparse = random_matrix(7), sp.csr_array(random_matrix(7))
    for mask in (dense, sparse):
        out, saved = attend(*features(True), as_mask(mask, N, N, True), True)
        backward(*features(True), as_mask(mask, N, N, True), True, saved, out)
    assert np.array_equal(dense, random_matrix(7))
    assert np.array_equal(sparse.toarray(), dense)


def test_duplicate_entries_of_sparse_masks_add_up():
    mask = sp.csr_array((np.ones(3), [1, 1, 0], [0, 2, 3]), shape=(2, 2))
    both = np.arange(2)
    assert np.array_equal(
        as_mask(mask, 2, 2, False).entries(both, both, np.ones(1)), [[0, 2], [1, 0]]
    )
    assert mask.nnz == 3


# ------------------------------------------------------------------ attention


@pytest.mark.parametrize("way", ["rows", "columns"])
@pytest.mark.parametrize("is_log", [True, False], ids=["log", "plain"])
@pytest.mark.parametrize(("name", "causal"), CASES)
def test_attention_is_the_quadratic_product(name, causal, is_log, way, blocks):
    given, matrix = KINDS[name]
    matrix = np.tril(matrix) if causal else matrix
    queries, keys, values = features(is_log)
    out, _ = attend(queries, keys, values, internal(given, causal, way), is_log)
    assert_equal(out, quadratic(queries, keys, values, matrix, is_log), values)


@pytest.mark.parametrize("way", ["rows", "columns"])
@pytest.mark.parametrize("scale", [1, 1e2, 1e4])
@pytest.mark.parametrize("name", ["grid (24,)", "grid (2, 3, 4)", "grid that decays", "array"])
def test_keys_that_grow_along_a_causal_sequence(name, scale, way, blocks):
    given, matrix = KINDS[name]
    queries, keys, values = features(True)
    keys += np.linspace(-40, 0, N)[:, None]
    queries, keys = scale * queries, scale * keys
    right = quadratic(queries, keys, values, np.tril(matrix), True)
    out, _ = attend(queries, keys, values, internal(given, True, way), True)
    assert_equal(out, right, values)


def test_columns_alone_would_be_wrong():
    given, matrix = KINDS["grid (24,)"]
    queries, keys, values = features(True)
    keys += np.linspace(-40, 0, N)[:, None]
    mask = internal(given, True, "columns")
    sums, is_right = _masked._Columns(inputs_of(queries, keys, values, True), mask).sums()
    sums = sums[0]
    right = quadratic(queries, keys, values, np.tril(matrix), True)
    # Row 0 has no key.
    errors = abs(sums[1:, 1] - right[1:, 0] * sums[1:, 0]) / abs(right[1:, 0] * sums[1:, 0])
    is_right = is_right[1:]
    assert errors.max() > 1e-3
    assert 0 < is_right.sum() < N - 1
    assert errors[is_right].max() <= TOLERANCE


@pytest.mark.parametrize("value", [1e14, (0, 0, 1e8), (0, 0, 0)], ids=["huge", "one huge", "zero"])
@pytest.mark.parametrize("name", ["grid (24,)", "grid (4, 6)", "operator"])
def test_what_a_row_does_not_see_does_not_count(name, value):
    # Only the last row sees the last key: a large one, or one with a large value.
    given, matrix = KINDS[name]
    matrix = matrix.copy()
    matrix[:-1, -1] = 0
    given = aslinearoperator(matrix) if name == "operator" else given
    causal = name != "operator"
    matrix = np.tril(matrix) if causal else matrix
    queries, keys, values = features(True)
    units = abs(values).max(axis=0)
    values[-1] = value
    keys[-1] = keys[-2] + (0 if np.any(value) else 20)
    out, saved = attend(queries, keys, values, internal(given, causal, "columns"), True)
    assert len(saved) > 1 and saved[1].rows[0] == 0
    right = quadratic(queries, keys, values, matrix, True)[:-1] / units
    error = abs(out[:-1] / units - right)
    assert np.all(error <= TOLERANCE * abs(right).max(axis=1, keepdims=True))


@pytest.mark.parametrize("way", ["rows", "columns"])
def test_values_that_are_zero(way):
    given, matrix = KINDS["grid (24,)"]
    queries, keys, values = features(True)
    values[:, 1] = 0
    mask = internal(given, False, way)
    out, _ = attend(queries, keys, values, mask, True)
    right = quadratic(queries, keys, values, matrix, True)
    assert_equal(out[:, ::2], right[:, ::2], values[:, ::2])
    assert not out[:, 1].any()


@pytest.mark.parametrize("way", ["rows", "columns"])
@pytest.mark.parametrize("is_log", [True, False], ids=["log", "plain"])
@pytest.mark.parametrize("name", KINDS)
def test_rows_without_a_key_are_zero(name, is_log, way, blocks):
    given, matrix = KINDS[name]
    causal = name != "operator"
    matrix = np.tril(matrix) if causal else matrix
    queries, keys, values = features(is_log)
    padding = -np.inf if is_log else 0
    keys[:20] = padding
    is_empty = ~matrix[:, keys[:, 0] != padding].any(axis=1)
    assert is_empty.any()
    out, _ = attend(queries, keys, values, internal(given, causal, way), is_log)
    assert np.array_equal((out == 0).all(axis=1), is_empty)
    assert_equal(out, quadratic(queries, keys, values, matrix, is_log), values)
    keys[:] = padding
    mask = internal(given, causal, way)
    out, saved = attend(queries, keys, values, mask, is_log)
    assert np.array_equal(out, np.zeros((N, E)))
    grads = backward(queries, keys, values, mask, is_log, saved, out + 1)
    assert all(np.array_equal(grad, np.zeros_like(grad)) for grad in grads)


@pytest.mark.parametrize("kind", [ToeplitzMask, lambda weights: sp.csr_array((N, N))])
def test_a_mask_of_zeros_beside_padding(kind):
    q, k, v = np.random.default_rng(0).normal(size=(3, N, 4))
    attention = ApproxKernelAttention(OptimalPositiveRF(8), mask=kind(np.zeros(2 * N - 1)))
    padding = np.arange(N) < 1
    assert not attention(q, k, v, key_padding_mask=padding).any()
    assert not np.any(attention.backward(q, k, v, v, key_padding_mask=padding))


@pytest.mark.parametrize("way", ["rows", "columns"])
def test_weights_of_any_size(way):
    # Only ratios of weights count: those of one row may underflow, all may be huge or tiny.
    queries, keys, values = features(True)
    offsets = abs(np.arange(1 - N, N))
    keys[12:] += 725  # beside them the others are at the end of what floats can hold
    for logs in (-60.0 * offsets, 600 - 0.1 * offsets, -460 - 0.1 * offsets):
        given = ToeplitzMask(np.exp(logs))
        right = quadratic(queries, keys, values, np.tril(given.toarray()), True)
        out, _ = attend(queries, keys, values, internal(given, True, way), True)
        assert_equal(out, right, values)


@pytest.mark.parametrize("way", ["rows", "columns"])
def test_one_position(way):
    queries, keys, values = features(True, n=2)
    keys[:] = 1e4
    mask = internal(ToeplitzMask([0.0, 3.0, 0.0]), True, way, n=2)
    out, _ = attend(queries, keys, values, mask, True)
    assert np.allclose(out, values, rtol=1e-15)
    mask = internal(ToeplitzMask([3.0]), True, way, n=1)
    out, _ = attend(queries[:1], keys[:1], values[:1], mask, True)
    assert np.allclose(out, values[:1], rtol=1e-15)


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array, aslinearoperator])
def test_more_queries_than_keys(kind):
    matrix = random_matrix(8)[:, :17]
    queries, keys, values = features(True)
    mask = as_mask(kind(matrix), N, 17, False)
    out, _ = attend(queries, keys[:17], values[:17], mask, True)
    assert_equal(out, quadratic(queries, keys[:17], values[:17], matrix, True), values[:17])


def test_operators_with_work_arrays():
    """Heads are worked on in threads; an operator is called by one at a time."""
    matrix, work = random_matrix(), np.empty((N, 16))

    def product(Z, of=matrix):
        own = work[:, : Z.shape[1]]
        own[:] = Z
        time.sleep(1e-3)
        own[:] = of @ own
        return own

    operator = LinearOperator(
        (N, N),
        dtype=float,
        matvec=matrix.dot,
        matmat=product,
        rmatmat=lambda Z: product(Z, matrix.T),
    )
    mask = as_mask(operator, N, N, False)
    columns = np.random.default_rng(0).normal(size=(20, 5, N))
    with ThreadPoolExecutor(4) as pool:
        for apply, of in ((mask.product, matrix), (mask.transposed_product, matrix.T)):
            for result, Z in zip(pool.map(apply, columns, columns), columns, strict=True):
                np.testing.assert_allclose(result, Z @ of.T, rtol=1e-10, atol=1e-12)


def test_operators_that_cannot_be_trusted():
    matrix = np.tril(KINDS["array"][1]) + np.eye(N)
    queries, keys, values = features(True)
    keys = 0.1 * queries
    mask = as_mask(refusing(matrix), N, N, False)
    out, saved = attend(queries, keys, values, mask, True)
    assert_equal(out, quadratic(queries, keys, values, matrix, True), values)
    with pytest.raises(ValueError, match=r"mask: this LinearOperator has no adjoint \(rmatvec"):
        backward(queries, keys, values, mask, True, saved, out)
    keys += np.linspace(-40, 0, N)[:, None]
    with pytest.raises(ValueError, match="has no adjoint"):
        attend(queries, keys, values, mask, True)
    mask = as_mask(aslinearoperator(-matrix), N, N, False)
    with pytest.raises(ValueError, match="mask must be finite and >= 0 everywhere, got -"):
        attend(queries, keys, values, mask, True)


# ------------------------------------------------------------------ gradients


def differences(function, x, step=1e-7):
    """Return central differences of a function of the finite entries of x."""
    gradient = np.zeros_like(x)
    for place in zip(*np.nonzero(np.isfinite(x)), strict=True):
        ends = []
        for sign in (1, -1):
            moved = x.astype(np.longdouble)
            moved[place] += sign * step
            ends.append(function(moved))
        gradient[place] = (ends[0] - ends[1]) / (2 * step)
    return gradient


@pytest.mark.parametrize(
    ("name", "causal", "is_log", "growth"),
    [(*case, is_log, 0) for case in CASES for is_log in (True, False)]
    + [(name, True, True, 40) for name, causal in CASES if causal],
)
def test_gradients(name, causal, is_log, growth, monkeypatch):
    given, matrix = KINDS[name]
    matrix = np.tril(matrix) if causal else matrix
    queries, keys, _ = features(is_log, scale=0.3)
    keys += np.linspace(-growth, 0, N)[:, None]
    values, grad_out = np.random.default_rng(11).normal(size=(2, N, E))
    arguments = [queries, keys, values]
    right = []
    for number in range(3):

        def loss(x, number=number):
            moved = [*arguments[:number], x, *arguments[number + 1 :]]
            return np.sum(quadratic(*moved, matrix, is_log) * grad_out)

        right.append(differences(loss, arguments[number]))
    # A step of one entry is no small one for a row whose keys are e^-40 of others.
    is_trained = name in TRAINED and (name.startswith("grid") or not growth)
    if is_trained:
        weights, to_matrix = TRAINED[name]

        def loss_of_mask(x):
            own = np.tril(to_matrix(x)) if causal else to_matrix(x)
            return np.sum(quadratic(*arguments, own, is_log) * grad_out)

        right.append(differences(loss_of_mask, weights))
    for way in ("rows", "columns", "rows in tiny blocks", "columns in tiny blocks"):
        with monkeypatch.context() as context:
            if "tiny" in way:
                make_blocks(context, 2**9, 5)
            mask = internal(given, causal, way.split()[0], is_trained=is_trained)
            _, saved = attend(*arguments, mask, is_log)
            by_mask = mask.no_gradient(grad_out) if is_trained else None
            grads = backward(*arguments, mask, is_log, saved, grad_out, by_mask)
            grads += (by_mask,) if is_trained else ()
        if growth and name in ("grid (24,)", "grid (4, 6)") and way == "columns":
            # Some rows went the other way, and some did not.
            assert len(saved) > 1
        for grad, truth in zip(grads, right, strict=True):
            assert np.allclose(grad, truth, rtol=0, atol=2e-9 * abs(truth).max())
        if is_log:
            # A constant added to all features of a query changes nothing.
            assert abs(grads[0].sum(axis=1)).max() <= 1e-10 * abs(grads[0]).max()


def log_gradients(queries, keys, values, matrix, grad_out):
    """Return the gradients for log features, values and entries of the mask, and the kernel.

    Everything is on a log scale, so that no size is too large; rows that see no key are left out.
    """
    terms = queries[:, None] + keys
    with np.errstate(divide="ignore"):
        logs = np.logaddexp.reduce(terms, axis=2)
        weighted = logs + np.log(matrix)
        totals = np.logaddexp.reduce(weighted, axis=1, keepdims=True)
    shares = np.exp(weighted - totals)
    by_weights = grad_out @ values.T - np.sum(grad_out * (shares @ values), axis=1, keepdims=True)
    by_terms = (shares * by_weights)[..., None] * np.exp(terms - logs[..., None])
    with np.errstate(over="ignore"):
        kernel = np.exp(logs - totals)
    by_inputs = by_terms.sum(axis=1), by_terms.sum(axis=0), shares.T @ grad_out
    return by_inputs, np.minimum(kernel, 1e250) * by_weights, kernel


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_rows_on_scales_of_their_own(causal):
    """Keys of weight 0 may be e^1000 times as large as those that a row sees."""
    matrix = KINDS["array"][1] + np.eye(N)  # every row sees a key
    mask, matrix = internal(matrix, causal), np.tril(matrix) if causal else matrix
    rng = np.random.default_rng(1)
    queries, keys = rng.normal(size=(2, N, M)) * rng.choice([1, 500], size=(2, N, 1))
    values, grad_out = rng.normal(size=(2, N, E))
    _, saved = attend(queries, keys, values, mask, True)
    sizes = {is_alone: [] for is_alone in (False, True)}
    for piece in saved:
        sizes[piece.way.args[3]].append(len(piece.rows))
    assert sizes[True] and max(sizes[False]) > 1
    by_mask = mask.no_gradient(grad_out)
    grads = backward(queries, keys, values, mask, True, saved, grad_out, by_mask)
    right, by_matrix, kernel = log_gradients(queries, keys, values, matrix, grad_out)
    for grad, truth in zip(grads, right, strict=True):
        assert abs(grad - truth).max() <= 1e-10 * max(1, abs(truth).max())
    is_told = kernel < 1e250
    if causal:
        by_matrix, is_told = np.tril(by_matrix), np.tri(N, dtype=bool) & is_told
    assert np.count_nonzero((matrix == 0) & is_told & (kernel > 1)) > 5
    # Terms that underflow beside the largest of a row are 0.
    assert np.all(abs(by_mask - by_matrix)[is_told] <= 1e-10 * kernel[is_told] + 1e-30)


# ------------------------------------------------------------------ float32


@pytest.mark.parametrize("way", ["rows", "columns"])
@pytest.mark.parametrize("is_log", [True, False], ids=["log", "plain"])
@pytest.mark.parametrize("growth", [0, 30, 300])
@pytest.mark.parametrize(("name", "causal"), CASES)
def test_float32_is_close_to_float64(name, causal, growth, is_log, way):
    """Sums that leave the range of float32, or lose its digits, are taken again in float64."""
    if growth and not is_log:
        pytest.skip("Growing exponents are scales there.")
    given, _ = KINDS[name]
    queries, keys, _ = features(is_log)
    keys += np.linspace(-growth, 0, N)[:, None] if is_log else 0
    values, gradient = np.random.default_rng(11).normal(size=(2, N, E))
    single = [part.astype(np.float32) for part in (queries, keys, values)]
    double = [part.astype(np.float64) for part in single]
    # Entries of 0 at keys that are exp(300) of the others: their gradient leaves float32.
    is_trained, results = name in TRAINED and growth < 300, []
    for parts in (single, double):
        mask = internal(given, causal, way, is_trained=is_trained)
        out, pieces = attend(*parts, mask, is_log)
        by_mask = mask.no_gradient(parts[2]) if is_trained else None
        own = gradient.astype(parts[2].dtype)
        grads = backward(*parts, mask, is_log, pieces, own, by_mask)
        results.append([out, *grads, *([] if by_mask is None else [by_mask])])
    for found, right in zip(*results, strict=True):
        # Gradients are differences of terms of about 1, and may be far smaller.
        size = max(abs(right).max(), 1)
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4 * size)
    assert {piece.sums.dtype for piece in pieces} == {np.dtype(np.float64)}


@pytest.mark.parametrize("decay", [10, 100, 1e9])
def test_few_rows_of_float32_go_the_slow_way(decay):
    n, rng = 2000, np.random.default_rng(0)
    values = rng.normal(size=(n, E)).astype(np.float32)
    given = ToeplitzMask.from_function(lambda o: np.exp(-abs(o) / decay), (n,))
    # Of keys that are all the same the errors of all features add up: the worst there is.
    for scale, few in ((0.0, 0.02), (0.5, 0.1)):
        queries, keys = (scale * rng.normal(size=(2, n, M))).astype(np.float32)
        out, pieces = attend(queries, keys, values, internal(given, True, "columns", n), True)
        assert len(pieces[0].rows) > (1 - few) * n
        double = [part.astype(np.float64) for part in (queries, keys, values)]
        right, _ = attend(*double, internal(given, True, "rows", n), True)
        assert abs(out - right).max() < 1e-5


# ------------------------------------------------------------------ random grids


@pytest.mark.parametrize("seed", range(30))
def test_random_grids(seed):
    """Grids of any shape, extra positions, more query heads than one, padding, both ways."""
    rng = np.random.default_rng(seed)
    grid = tuple(int(n) for n in rng.integers(1, 6, size=rng.integers(1, 4)))
    n_extra, causal = int(rng.integers(0, 4)), bool(rng.integers(2))
    given = ToeplitzMask(random_weights(grid, seed), n_extra=n_extra)
    n, matrix = given.n_positions, given.toarray()
    matrix = np.tril(matrix) if causal else matrix
    queries, keys = rng.normal(size=(2, n, M)), rng.normal(size=(n, M))
    keys[rng.random(n) < 0.2] = -np.inf
    values, gradient = rng.normal(size=(n, E)), rng.normal(size=(2, n, E))
    extended = np.column_stack([np.ones(n), values])
    inputs, found = Inputs(Rows(queries), Rows(keys), extended), []
    for way in ("rows", "columns"):
        mask = internal(given, causal, way, n, is_trained=True)
        pieces, by_mask = masked_attention(inputs, mask), mask.no_gradient(values)
        out, grads = (
            assembled(pieces),
            masked_attention_backward(inputs, mask, pieces, gradient, by_mask),
        )
        for own, part in zip(queries, out, strict=True):
            assert_equal(part, quadratic(own, keys, values, matrix, True), values)
        found.append([*grads, by_mask])
    for by_rows, by_columns in zip(*found, strict=True):
        np.testing.assert_allclose(by_columns, by_rows, rtol=0, atol=1e-11 * abs(by_rows).max())


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


@pytest.mark.parametrize("way", ["rows", "columns"])
@pytest.mark.parametrize("causal", [False, True])
def test_an_image_and_a_class_token_are_their_dense_mask(causal, way, monkeypatch):
    monkeypatch.setattr(_products.GridMask, "columns_pay", lambda *sizes: way == "columns")
    n = 14 * 14 + 1
    image = ToeplitzMask.from_function(lambda y, x: np.exp(-np.hypot(y, x) / 4), (14, 14), 1)
    dense = image.toarray()
    assert dense.shape == (n, n) and (dense[0] == 1).all() and (dense[:, 0] == 1).all()
    inner = ToeplitzMask(image.weights).toarray()
    assert np.array_equal(dense[1:, 1:], inner)
    arrays, rng = tokens(n), np.random.default_rng(1)
    padding = rng.random((2, n)) < 0.1
    by_grid, by_array = operator(image, causal=causal), operator(dense, causal=causal)
    out = by_grid(*arrays, key_padding_mask=padding)
    np.testing.assert_allclose(
        out, by_array(*arrays, key_padding_mask=padding), rtol=1e-10, atol=1e-12
    )
    gradient = rng.normal(size=out.shape)
    options = {"key_padding_mask": padding, "with_mask": True}
    of_grid = by_grid.backward(*arrays, gradient, **options)
    *of_array, by_entries = by_array.backward(*arrays, gradient, **options)
    # An offset's weight is many entries of the dense mask; those of the token are constants.
    sums = np.zeros((27, 27))
    y, x = np.unravel_index(np.arange(196), (14, 14))
    np.add.at(sums, (y[:, None] - y + 13, x[:, None] - x + 13), by_entries[1:, 1:])
    for found, right in zip(of_grid, [*of_array, sums], strict=True):
        np.testing.assert_allclose(found, right, rtol=0, atol=1e-11 * abs(right).max())


def of_heads(kind):
    """Return masks of four query heads, in the form of a kind."""
    dense = [random_matrix(seed) for seed in range(4)]
    if kind == "array":
        return np.stack(dense)
    if kind == "grids":
        return tuple(ToeplitzMask(random_weights((4, 6), seed)) for seed in range(4))
    return [dense[0], sp.csr_array(dense[1]), ToeplitzMask(random_weights((24,))), dense[3] > 0]


@pytest.mark.parametrize("kind", ["array", "grids", "list"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("key_lead", [(2, 4), (2, 2), (2, 1), ()])
def test_one_mask_per_head(kind, causal, key_lead):
    masks, arrays = of_heads(kind), tokens(N, key_lead=key_lead)
    padding = np.random.default_rng(2).random(N) < 0.2
    gradient = np.random.default_rng(3).normal(size=(2, 4, N, E))
    everywhere = {"key_padding_mask": padding}
    attention = operator(masks, causal=causal).fit(*arrays[:2])
    out = attention(*arrays, **everywhere)
    grads = attention.backward(*arrays, gradient, **everywhere)
    sums = [0.0, 0.0, 0.0]
    for h, mask in enumerate(masks):
        own = attention.set_params(mask=mask)
        assert np.allclose(out[:, h], own(*arrays, **everywhere)[:, h], rtol=1e-12)
        of_head = np.zeros_like(gradient)
        of_head[:, h] = gradient[:, h]
        found = own.backward(*arrays, of_head, **everywhere)
        sums = [a + b for a, b in zip(sums, found, strict=True)]
        if kind != "list":
            by_mask = own.backward(*arrays, of_head, **everywhere, with_mask=True)[3]
            attention.set_params(mask=masks)
            every = attention.backward(*arrays, gradient, **everywhere, with_mask=True)[3]
            assert isinstance(every, np.ndarray if kind == "array" else list)
            assert np.allclose(every[h], by_mask, rtol=1e-9, atol=1e-13)
    for found, right in zip(grads, sums, strict=True):
        assert np.allclose(found, right, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    ("mask", "error", "said"),
    [
        (np.ones((3, N, N)), ValueError, r"list of 4 masks or an array of shape \(4, 24, 24\)"),
        ([ToeplitzMask(np.ones(2 * N - 1))], ValueError, "one for each query head.* got 1"),
        (np.ones((4, N, N - 1)), ValueError, r"\(24, 24\), got a ndarray of shape \(24, 23\)"),
        ([ToeplitzMask([1.0])] * 4, ValueError, r"a ToeplitzMask of shape \(1, 1\)"),
    ],
)
def test_wrong_masks_of_heads_raise(mask, error, said):
    with pytest.raises(error, match=said):
        operator(mask)(*tokens(N))


@pytest.mark.parametrize("mask", [sp.eye_array(N), aslinearoperator(np.eye(N))])
def test_masks_without_gradients(mask):
    arrays = tokens(N)
    attention, out = operator(mask), np.ones((2, 4, N, E))
    attention.backward(*arrays, out)
    with pytest.raises(TypeError, match="with_mask=True needs a ToeplitzMask or an array"):
        attention.backward(*arrays, out, with_mask=True)
    with pytest.raises(ValueError, match="with_mask=True needs a mask, got mask=None"):
        operator(None).backward(*arrays, out, with_mask=True)
    with pytest.raises(ValueError, match="with_mask must be True or False"):
        attention.backward(*arrays, out, with_mask="yes")


@pytest.mark.parametrize("kind", ["grid (4, 6)", "array"])
@pytest.mark.parametrize("n_groups", [1, 2])
@pytest.mark.parametrize("unit", [1.0, 1e30])
def test_gradients_to_the_mask_are_those_of_differences(kind, n_groups, unit):
    """Through the whole operator: batches, grouped heads, padding, groups of features, units."""
    weights, to_matrix = TRAINED[kind]
    q, k, v = tokens(N)
    v, rng = v * unit, np.random.default_rng(1)
    padding, gradient = rng.random((2, N)) < 0.2, rng.normal(size=(2, 4, N, E))
    attention = operator(KINDS[kind][0], n_groups=n_groups).fit(q, k)
    found = attention.backward(q, k, v, gradient, key_padding_mask=padding, with_mask=True)[3]
    assert found.shape == weights.shape
    direction, step = rng.exponential(size=weights.shape), 1e-6

    def value(n_steps):
        attention.set_params(mask=to_matrix(weights + n_steps * step * direction))
        return np.sum(gradient * attention(q, k, v, key_padding_mask=padding))

    # Weights of 0 may only rise; three values leave a third order.
    expected = (4 * value(1) - value(2) - 3 * value(0)) / (2 * step)
    assert abs(np.sum(found * direction) - expected) < 1e-6 * unit * abs(found / unit).sum()
    single = [part.astype(np.float32) for part in (q, k, v, gradient)]
    attention.set_params(mask=KINDS[kind][0])
    short = attention.backward(*single, key_padding_mask=padding, with_mask=True)[3]
    assert short.dtype == np.float32
    assert abs(short / unit - found / unit).max() < 1e-4 * abs(found / unit).max()


# ------------------------------------------------------------------ other libraries


@pytest.mark.parametrize("way", ["rows", "columns"])
@pytest.mark.parametrize(("dtype", "causal"), [("float32", True), ("float64", False)])
@pytest.mark.parametrize("name", [name for name in KINDS if name != "operator"])
def test_masks_in_other_libraries(library, name, causal, dtype, way, monkeypatch):
    if way == "columns" and not name.startswith("grid"):
        pytest.skip("There are entries only.")
    monkeypatch.setattr(_products.GridMask, "columns_pay", lambda *sizes: way == "columns")
    given, _ = KINDS[name]
    parts = [part.astype(dtype) for part in tokens(N)]
    padding = np.random.default_rng(1).random((2, N)) < 0.2
    arrays = [library.array(part) for part in parts]
    expected = operator(given, causal=causal)(*parts, key_padding_mask=padding)
    masks = [given]
    if isinstance(given, ToeplitzMask):
        masks.append(ToeplitzMask(library.array(given.weights.copy()), n_extra=given.n_extra))
    elif isinstance(given, np.ndarray):
        masks.append(library.array(given))
    tolerance = 1e-10 if dtype == "float64" else 1e-4
    for mask in masks:
        out = operator(mask, causal=causal)(*arrays, key_padding_mask=padding)
        library.assert_same(out, expected, arrays[0], rtol=tolerance, atol=tolerance)
        # And beside NumPy's inputs.
        out = operator(mask, causal=causal)(*parts, key_padding_mask=padding)
        np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)


def test_masks_of_heads_in_other_libraries(library):
    for is_fitted in (False, True):
        for kind in ("array", "grids", "list"):
            masks, parts = of_heads(kind), tokens(N)
            ours, theirs = operator(masks, causal=True), operator(masks, causal=True)
            if is_fitted:
                ours.fit(*parts[:2]), theirs.fit(*parts[:2])
            arrays = [library.array(part) for part in parts]
            library.assert_same(theirs(*arrays), ours(*parts), arrays[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("way", ["rows", "columns"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["grid", "array", "heads", "boolean"])
def test_torch_differentiates_masks(kind, causal, way, monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(_products.GridMask, "columns_pay", lambda *sizes: way == "columns")
    n, rng = 7, np.random.default_rng(0)
    parts = [torch.tensor(part, requires_grad=True) for part in tokens(n, (2, 2), (2, 1), 3)]
    shape = {"grid": (3, 5), "array": (n, n), "heads": (2, 2 * n - 1), "boolean": (n, n)}[kind]
    weights = torch.tensor(rng.exponential(size=shape), requires_grad=True)

    attention = ApproxKernelAttention(OptimalPositiveRF(4, random_state=0), causal=causal)
    attention.fit(*(part.detach() for part in parts[:2]))

    def attend(q, k, v, weights):
        if kind == "grid":
            mask = ToeplitzMask(weights, n_extra=1)
        elif kind == "heads":
            mask = [ToeplitzMask(own) for own in weights]
        else:
            mask = weights if kind == "array" else weights.detach() > 0.5
        return attention.set_params(mask=mask)(q, k, v)

    if kind == "boolean":
        weights.requires_grad_(False)
    assert torch.autograd.gradcheck(attend, (*parts, weights), fast_mode=True)


def defined(attention, q, k, v, matrix):
    """Return masked attention by its definition, from the features of a fitted operator in torch.

    Also where no weight is 0 in any group, so that outputs are continuous.
    """
    torch = pytest.importorskip("torch", reason="torch is not installed")
    out, totals, n_shared = [], [], q.shape[1] // k.shape[1]
    for b, h in np.ndindex(*q.shape[:2]):
        own, parts = matrix[h] if matrix.ndim == 3 else matrix, []
        for (head,) in attention._fitted_sets[h // n_shared].groups:
            queries = head.queries(q[b, h]).plain()
            kernel = own * (queries @ head.keys(k[b, h // n_shared]).plain().T)
            totals.append(kernel.sum(dim=1, keepdim=True))
            parts.append(kernel @ v[b, h // n_shared] / totals[-1].where(totals[-1] > 0, torch.inf))
        out.append(sum(parts) / len(parts))
    totals = torch.stack(totals).unflatten(0, (len(out), -1)).amin(dim=1)
    return (part.unflatten(0, q.shape[:2]) for part in (torch.stack(out), totals > 0))


MAPS_OF_FEW = {
    "relu": GeneralizedMap(4, random_state=0),
    "square": GeneralizedMap(4, nonlinearity="square", random_state=0),
    "positive": OptimalPositiveRF(8, random_state=0),
}


@pytest.mark.filterwarnings("ignore:Some outputs are 0")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["grid", "array", "heads"])
@pytest.mark.parametrize("name", MAPS_OF_FEW)
def test_torch_differentiates_weights_of_zero(name, kind, causal):
    """Also where some queries of relu have no weight, in one or several sets and groups."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    n, rng = 6, np.random.default_rng(2)
    for n_heads, n_key_heads, n_groups in ((1, 1, 1), (4, 2, 1), (2, 2, 2)):
        q, k, v = (
            torch.tensor(rng.normal(size=(2, heads, n, 3)) / 2, requires_grad=True)
            for heads in (n_heads, n_key_heads, n_key_heads)
        )
        shape = {"grid": (2 * n - 1,), "array": (n, n), "heads": (n_heads, n, n)}[kind]
        weights = rng.exponential(size=shape) * (rng.random(shape) < 0.6)
        if kind == "grid":
            weights[n - 1] = 1
        else:
            weights[..., range(n), range(n)] = 1
        weights = torch.tensor(weights, requires_grad=True)
        offsets = n - 1 + torch.arange(n)[:, None] - torch.arange(n)
        attention = ApproxKernelAttention(MAPS_OF_FEW[name], causal=causal, n_groups=n_groups)
        attention.fit(q, k)

        def attend(weights, attention=attention, parts=(q, k, v)):
            mask = ToeplitzMask(weights) if kind == "grid" else weights
            return attention.set_params(mask=mask)(*parts)

        matrix = weights[offsets] if kind == "grid" else weights
        matrix = matrix.tril() if causal else matrix
        right, is_continuous = defined(attention, q, k, v, matrix)
        found = attend(weights)
        gradient = torch.tensor(rng.normal(size=found.shape))
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)
        inputs = weights, q, k, v
        found, right = (
            torch.autograd.grad((own * gradient).sum(), inputs) for own in (found, right)
        )
        for own, truth in zip(found, right, strict=True):
            assert (own - truth).abs().max() <= 1e-10 * max(1, truth.abs().max())
        assert (found[0] * (weights == 0)).any()
        # Weights of 0 may only rise; three values leave a third order.
        gradient = gradient * is_continuous
        (slopes,) = torch.autograd.grad((gradient * attend(weights)).sum(), weights)
        direction, step = torch.tensor(rng.exponential(size=shape)), 1e-7
        with torch.no_grad():
            low, middle, high = (
                float((gradient * attend(weights + steps * step * direction)).sum())
                for steps in range(3)
            )
        expected = (4 * middle - high - 3 * low) / (2 * step)
        products = slopes * direction
        assert abs(float(products.sum()) - expected) < 1e-6 * float(products.abs().sum())


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["grid (4, 6)", "array", None])
def test_short_floats(name, kind):
    """Inputs, outputs and gradients of one short dtype; sums are those of float32."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    dtype, mask = getattr(torch, name), None if kind is None else KINDS[kind][0]
    tensors = [torch.tensor(part, dtype=dtype, requires_grad=True) for part in tokens(N)]
    if kind == "grid (4, 6)":
        mask = ToeplitzMask(torch.tensor(mask.weights.copy(), dtype=dtype))
    attention = operator(mask, causal=True)
    out = attention(*tensors)
    exact = attention(*(part.detach().double() for part in tensors))
    assert out.dtype == dtype
    # Half a unit in the last place of values of at most 4, and rounding in float32.
    assert (out.double() - exact).abs().max() <= 2.02 * torch.finfo(dtype).eps
    out.sum().backward()
    assert all(part.grad.dtype == dtype for part in tensors)
    if name == "float16" and mask is not None:
        parts = [part.detach().numpy() for part in tensors]
        grads = attention.backward(*parts, np.ones(out.shape), with_mask=True)
        assert {part.dtype for part in (*grads, attention(*parts))} == {np.dtype(np.float16)}


# ------------------------------------------------------------------ training


def words(seed, n=32, n_words=8):
    """Return queries and keys that tell nothing, and words: rows of a unit matrix."""
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(2, 16, n, 4)) / 2
    return q, k, np.eye(n_words)[rng.integers(n_words, size=(16, n))]


@pytest.mark.parametrize("kind", ["ToeplitzMask", "dense", "ToeplitzMask, torch"])
def test_relative_positions_are_learned(kind):
    """Copy the word of three positions before: the mask has to find the offset."""
    shape = (32, 32) if kind == "dense" else (63,)
    logs, momentum = np.zeros(shape), 0.0
    attention = operator(None, causal=True)

    def mask_of(weights):
        return weights if kind == "dense" else ToeplitzMask(weights)

    def accuracy(attend):
        q, k, v = words(1000)
        return np.mean(attend(q, k, v)[:, 3:].argmax(-1) == v[:, :-3].argmax(-1))

    def gradient(q, k, v):
        wanted = np.concatenate([np.zeros_like(v[:, :3]), v[:, :-3]], axis=1)
        if kind.endswith("torch"):
            torch = pytest.importorskip("torch", reason="torch is not installed")
            own = torch.tensor(logs, requires_grad=True)
            attention.set_params(mask=mask_of(own.exp()))
            found = attention(*map(torch.tensor, (q, k, v)))
            ((found - torch.tensor(wanted))[:, 3:] ** 2).sum().backward()
            return own.grad.numpy()
        attention.set_params(mask=mask_of(np.exp(logs)))
        slope = 2 * (attention(q, k, v) - wanted)
        slope[:, :3] = 0
        return attention.backward(q, k, v, slope, with_mask=True)[3] * np.exp(logs)

    assert accuracy(attention.set_params(mask=mask_of(np.exp(logs)))) < 0.5
    for step in range(20):
        momentum = 0.9 * momentum + gradient(*words(step))
        logs = logs - 0.2 * momentum / np.sqrt(np.mean(momentum**2))
    weights = np.exp(logs)
    assert accuracy(attention.set_params(mask=mask_of(weights))) == 1
    # The accuracy of exact attention under the mask that was learned.
    dense = weights if kind == "dense" else matrix_of(weights, (32,), 0)
    assert accuracy(partial(exact_attention, causal=True, mask=dense)) == 1


# ------------------------------------------------------------------ time and memory


def peak_of(function):
    """Return the bytes that a call allocates at most at one time."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("block", [2**18, 2**20])
@pytest.mark.parametrize(
    ("grid", "way"), [((4096,), "rows"), ((4096,), "columns"), ((64, 64), "columns")]
)
def test_memory_is_a_few_blocks(grid, way, block, monkeypatch):
    n, n_features, n_values = 4096, 32, 16
    rng = np.random.default_rng(0)
    queries, keys = rng.normal(size=(2, n, n_features))
    values = rng.normal(size=(n, n_values))
    # All rows at once would be 128 MB, all columns 17 MB.
    make_blocks(monkeypatch, block, 128)
    mask = internal(ToeplitzMask.from_function(lambda *o: 1 + o[0] % 2, grid), False, way, n=n)
    given = queries, keys, values, mask, True
    out, saved = attend(*given)
    # Inputs are joined with a weight, and by columns features become factors; sums are float64.
    held = 8 * values.nbytes + (2 if way == "columns" else 0) * 2 * queries.nbytes
    with threadpool_limits(1, user_api="blas"):  # blocks are those of a thread
        peak = peak_of(lambda: attend(*given))
    assert peak <= held + 6 * block
    # Every share of the work has sums of its own.
    held += 5 * (keys.nbytes + values.nbytes) + queries.nbytes
    with threadpool_limits(1, user_api="blas"):
        peak = peak_of(lambda: backward(*given, saved, out))
    assert peak <= held + 6 * block


def test_sparse_masks_cost_their_entries():
    n, each = 20_000, 4
    rng = np.random.default_rng(0)
    graph = sp.csr_array(
        (np.ones(n * each), rng.integers(n, size=n * each), np.arange(0, n * each + 1, each)),
        shape=(n, n),
    )
    queries, keys = rng.normal(size=(2, n, M))
    values = rng.normal(size=(n, E))
    out = []
    mask = as_mask(graph, n, n, False)
    peak = peak_of(lambda: out.append(attend(queries, keys, values, mask, True)[0]))
    assert peak <= 10 * values.nbytes  # where the mask would have 3.2 GB
    some = np.arange(0, n, 997)
    right = quadratic(queries[some], keys, values, graph[some].toarray(), True)
    assert_equal(out[0][some], right, values)


def test_the_faster_way_is_taken():
    def pays(n, window=None, causal=False):
        weights = np.ones(2 * n - 1)
        if window is not None:
            weights[: n - window] = weights[n + window :] = 0
        return as_mask(ToeplitzMask(weights), n, n, causal).columns_pay(256, 64)

    assert not pays(4096)
    assert pays(40_000)
    assert not pays(40_000, window=100)
    assert pays(100_000, causal=True)
