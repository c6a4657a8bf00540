"""Masks and the masked product of one head, against matrices and quadratic sums."""

import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from skrf._sums import Rows
from skrf.attention import ToeplitzMask, _masked, _products
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


# Name: (mask as a user gives it, the same as a matrix).
KINDS = {f"grid {grid}": ToeplitzMask(random_weights(grid)) for grid in GRIDS}
KINDS["grid that decays"] = ToeplitzMask(np.exp(-5.0 * abs(np.arange(1 - N, N))))
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
    parts = (Rows(x) if is_log else Rows(x, np.zeros((len(x), 1))) for x in (queries, keys))
    queries, keys = parts
    values = np.column_stack([np.ones(len(values)), values])
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
    mask = ToeplitzMask(weights)
    assert mask.shape == grid and mask.n_positions == np.prod(grid)
    places = list(np.ndindex(grid))
    matrix = [
        [weights[tuple(a - b + n - 1 for a, b, n in zip(i, j, grid, strict=True))] for j in places]
        for i in places
    ]
    assert np.array_equal(mask.toarray(), matrix)
    assert repr(mask) == f"ToeplitzMask(shape={grid})"


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
    assert np.array_equal(as_mask(mask, 2, 2, False).entries(both, both, np.ones(1)), [[0, 2], [1, 0]])
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
    for way in ("rows", "columns", "rows in tiny blocks", "columns in tiny blocks"):
        with monkeypatch.context() as context:
            if "tiny" in way:
                make_blocks(context, 2**9, 5)
            mask = internal(given, causal, way.split()[0])
            out, saved = attend(*arguments, mask, is_log)
            grads = backward(*arguments, mask, is_log, saved, grad_out)
        if growth and name in ("grid (24,)", "grid (4, 6)") and way == "columns":
            # Some rows went the other way, and some did not.
            assert len(saved) > 1
        for grad, truth in zip(grads, right, strict=True):
            assert np.allclose(grad, truth, rtol=0, atol=2e-9 * abs(truth).max())
        if is_log:
            # A constant added to all features of a query changes nothing.
            assert abs(grads[0].sum(axis=1)).max() <= 1e-10 * abs(grads[0]).max()


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
    assert peak_of(lambda: attend(*given)) <= held + 6 * block
    # Every share of the work has sums of its own.
    held += 5 * (keys.nbytes + values.nbytes) + queries.nbytes
    assert peak_of(lambda: backward(*given, saved, out)) <= held + 6 * block


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
