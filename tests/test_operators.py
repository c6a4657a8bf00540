"""The approximate kernel matrix as an operator, against the matrix itself."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from instances import KERNELS, MECHANISMS, make
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse.linalg import aslinearoperator, cg, eigsh
from sklearn.exceptions import NotFittedError
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from skrf import DiscreteRF, HybridRF, KernelOperator, OptimalPositiveRF, RFFSampler

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 5)) / 2, RNG.normal(size=(25, 5)) / 2


def fitted(*args, **params):
    return OptimalPositiveRF(64, *args, random_state=0, **params).fit(X)


def assert_is_matrix(operator, matrix, rtol=1e-10):
    close = {"rtol": rtol, "atol": rtol * np.abs(matrix).max()}
    assert operator.shape == matrix.shape
    right, left = np.eye(matrix.shape[1], dtype=operator.dtype), np.eye(len(matrix))
    assert_allclose(operator @ right, matrix, **close)
    assert_allclose(operator @ right[:, 0], matrix[:, 0], **close)
    assert_allclose(operator.H @ left.astype(operator.dtype), matrix.T, **close)
    assert_allclose(operator.rmatvec(left[0]), matrix[0], **close)
    assert_allclose(operator.diagonal(), np.diagonal(matrix), **close)


@pytest.mark.parametrize("kernel", KERNELS)
def test_it_is_the_approximate_kernel_of_every_feature_map(kernel):
    rows, keys = (np.random.default_rng(i).normal(size=(n, 5)) / 2 for i, n in ((0, 9), (1, 7)))
    for name in MECHANISMS:
        fitted = make(name, kernel=kernel).fit(rows)
        operator, matrix = KernelOperator(fitted, rows), fitted.approximate_kernel(rows)
        assert operator.is_symmetric == fitted.is_symmetric
        assert_is_matrix(operator, matrix)
        assert_allclose(operator.trace(), np.trace(matrix), rtol=1e-10)
        matrix = fitted.approximate_kernel(rows, keys)
        assert_is_matrix(KernelOperator(fitted, rows, keys), matrix)


@pytest.mark.parametrize("mechanism", [OptimalPositiveRF, RFFSampler])
@pytest.mark.parametrize("size", [1e-3, 30.0, 1e3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_beyond_the_range_are_scaled(mechanism, size, dtype):
    rows = (size * X[:10]).astype(dtype)
    feature_map = mechanism(64, kernel="softmax", random_state=0).fit(rows)
    operator = KernelOperator(feature_map, rows)
    dense = operator @ np.eye(10, dtype=dtype)
    assert operator.dtype == dense.dtype == dtype
    assert np.isfinite(dense).all() and dense.max() > 0
    if size == 1e-3:
        assert operator.log_scale == 0
        assert_allclose(dense, feature_map.approximate_kernel(rows), rtol=1e-5)
    else:
        assert operator.log_scale > 60
    if feature_map.is_positive:
        exact = feature_map.log_transform(rows.astype(np.float64))
        logs = np.logaddexp.reduce(exact[:, None] + exact[None], axis=2) - operator.log_scale
        # Sums of logarithms of size |log|: so many digits are left.
        rtol = 1e-3 if dtype == np.float32 else 1e-8
        large = logs > logs.max() - 30
        assert_allclose(dense[large], np.exp(logs[large]), rtol=rtol)


def test_features_that_are_zero_on_one_side_set_no_scale():
    """Powers of an input that all queries have 0 and the keys large: none is in a product."""
    rows, keys = np.array([[0.0, 1.0], [0.0, 2.0]]), np.array([[100.0, 1.0], [100.0, 0.5]])
    feature_map = DiscreteRF(64, kernel="softmax", random_state=0).fit(np.vstack([rows, keys]))
    for sides in ((rows, keys), (keys, rows)):
        operator = KernelOperator(feature_map, *sides)
        assert operator.log_scale == 0
        assert_is_matrix(operator, feature_map.approximate_kernel(*sides))


def test_sparse_rows_pipelines_and_transformers_of_others():
    feature_map = fitted()
    operator = KernelOperator(feature_map, sp.csr_matrix(X), sp.coo_array(Y))
    assert_is_matrix(operator, feature_map.approximate_kernel(X, Y))
    for transformer in (
        make_pipeline(StandardScaler(), RFFSampler(64, random_state=0)),
        Nystroem(n_components=20, random_state=0),
    ):
        features = transformer.fit(X).transform(X)
        operator = KernelOperator(transformer, X)
        assert operator.is_symmetric
        assert_is_matrix(operator, features @ features.T)
    asymmetric = make_pipeline(StandardScaler(), HybridRF(64, random_state=0)).fit(X)
    assert not KernelOperator(asymmetric, X).is_symmetric


def test_single_precision_is_kept_where_both_sides_have_it():
    feature_map, single_X, single_Y = fitted(), X.astype("f"), Y.astype("f")
    assert KernelOperator(feature_map, single_X, Y).dtype == np.float64
    single = KernelOperator(feature_map, single_X, single_Y)
    assert single.dtype == np.float32
    expected = feature_map.approximate_kernel(X, Y).sum(axis=1)
    assert_allclose(single @ np.ones(25, "f"), expected, rtol=1e-5)


def test_eigenvalues_and_solutions_are_those_of_the_matrix():
    operator, matrix = KernelOperator(fitted(), X), fitted().approximate_kernel(X)
    values, vectors = eigsh(operator, k=4)
    assert_allclose(values, np.linalg.eigvalsh(matrix)[-4:], rtol=1e-9)
    assert_allclose(operator @ vectors, vectors * values, atol=1e-9 * values.max())
    copy = pickle.loads(pickle.dumps(operator)) + 0.1 * aslinearoperator(sp.eye_array(40))
    solution, _ = cg(copy, X[:, 0], rtol=1e-12)
    expected = np.linalg.solve(matrix + 0.1 * np.eye(40), X[:, 0])
    assert_allclose(solution, expected, rtol=1e-8, atol=1e-10)


def test_what_makes_no_sense_is_refused():
    feature_map = fitted()
    for call, arguments, message in (
        (KernelOperator(feature_map, X, Y).trace, (), r"square operator, got shape \(40, 25\)"),
        (KernelOperator, (feature_map, X[:, :3]), "X has 3 features, but feature_map was .* 5"),
        (KernelOperator, (feature_map, X, Y[:, :3]), "Y has 3 features"),
        (KernelOperator, (feature_map, X * np.nan), "X contains NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            call(*arguments)
    with pytest.raises(NotFittedError):
        KernelOperator(OptimalPositiveRF(), X)


def test_rows_that_the_caller_changes_move_nothing():
    rows, keys = X.copy(), Y.copy()
    for feature_map in (fitted(), FunctionTransformer().fit(X)):
        for operator in (
            KernelOperator(feature_map, rows),
            KernelOperator(feature_map, rows, keys),
        ):
            expected = operator @ np.eye(operator.shape[1])
            rows *= 2
            keys *= 2
            assert_array_equal(operator @ np.eye(operator.shape[1]), expected)
            assert rows.flags.writeable and keys.flags.writeable
