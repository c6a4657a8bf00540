"""Rows of every kind: sparse, float32, tables, arrays of other libraries."""

import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from contract import (
    CLOSE,
    MECHANISMS,
    POSITIVE,
    X,
    Y,
    assert_same_parameters,
    assert_same_statistics,
    every_kernel,
    frame,
    mechanism,
    one_warning,
    parameters,
)
from instances import accepts, make
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone


def wide_indices(rows):
    matrix = sp.csr_array(rows)
    matrix.indices, matrix.indptr = matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)
    assert matrix.indices.dtype == matrix.indptr.dtype == np.int64
    return matrix


def duplicated(rows):
    """Every entry in two parts, which the format allows; the row norms must join them."""
    rows = sp.csr_array(rows)
    parts = np.repeat(rows.data, 2) / 2
    matrix = sp.csr_array((parts, np.repeat(rows.indices, 2), 2 * rows.indptr), shape=rows.shape)
    assert not matrix.has_canonical_format
    return matrix


def test_every_sparse_format_is_accepted():
    dense = mechanism("OptimalPositiveRF", sigma="median")
    dense.fit(X, sample_weight=np.arange(30), keys=Y)
    for kind in (sp.csr_array, sp.csr_matrix):
        for form in ("csr", "csc", "coo", "lil", "dok", "bsr", "dia"):
            rows, keys = kind(X).asformat(form), kind(Y).asformat(form)
            sparse = clone(dense).fit(rows, sample_weight=np.arange(30), keys=keys)
            assert_same_parameters(sparse, dense)
            assert_allclose(sparse.transform(rows), dense.transform(X), **CLOSE)


@every_kernel
@pytest.mark.parametrize(
    ("center", "convert"), [(True, wide_indices), (False, sp.csr_array), (True, duplicated)]
)
def test_sparse_equals_dense(kernel, center, convert):
    for name in MECHANISMS:
        # Where there is no such parameter, nothing is centred.
        options = {"center": center} if accepts(name, "center") else {}
        dense, sparse = (
            mechanism(name, kernel=kernel, sigma="scale", **options).fit(rows, keys=keys)
            for rows, keys in ((X, Y), (convert(X), convert(Y)))
        )
        assert_same_statistics(dense, sparse)
        assert_same_parameters(dense, sparse)
        logs = ["log_transform"] if name in POSITIVE else []
        for method in ("transform", "transform_keys", "exact_kernel", "approximate_kernel", *logs):
            expected, values = getattr(dense, method)(Y), getattr(sparse, method)(convert(Y))
            assert type(values) is np.ndarray and values.dtype == np.float64
            assert_allclose(values, expected, **CLOSE, err_msg=method)
        assert_allclose(dense.exact_kernel(X, Y), sparse.exact_kernel(convert(X), Y), **CLOSE)
        if name != "SimplexRFPlus":
            expected = dense.kernel_variance(X, Y, log=True)
            values = sparse.kernel_variance(convert(X), convert(Y), log=True)
            assert_allclose(values, expected, **CLOSE)


@pytest.mark.parametrize("name", ["RFFSampler", "OptimalPositiveRF", "HybridRF"])
@pytest.mark.parametrize("has_full_column", [False, True])
def test_centring_does_not_densify(name, has_full_column):
    # Dense, these rows are 400 MB.
    rows = sp.random_array((500, 100_000), density=1e-4, rng=0, format="lil")
    if has_full_column:
        rows[:, 3] = 1e9
    rows = rows.tocsr()
    tracemalloc.start()
    feature_map = make(name, n_components=8, sigma=1.0 if has_full_column else "scale")
    features = feature_map.fit(rows).transform(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(features) == 500 and np.isfinite(features).all()
    assert peak < (60e6 if has_full_column else 40e6)


@pytest.mark.parametrize(
    "name", ["RFFSampler", "OptimalPositiveRF", "DenseExponentialRF", "HybridRF"]
)
@pytest.mark.parametrize(
    ("kernel", "offset", "gaps"),
    [("gaussian", 1e4, 0.03), ("softmax", 1e7, 0.7), ("softmax", 1e9, 0.0)],
)
def test_sparse_rows_far_from_the_origin_equal_dense_ones(name, kernel, offset, gaps):
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(60, 5)) + offset) * (rng.random((60, 5)) >= gaps)
    fits = [
        make(name, n_components=24, sigma=0.5, kernel=kernel, random_state=0).fit(convert(rows))
        for convert in (np.array, sp.csr_array)
    ]
    for attribute in ("offset_", "rho_", "A_"):
        # With gaps, some variances are below the rounding of others.
        if hasattr(fits[0], attribute) and not (name.startswith("Dense") and gaps):
            assert_allclose(*(getattr(fit, attribute) for fit in fits), rtol=1e-9)
    # Angles of signed maps are as exact as products with the largest rows.
    largest_row = offset if gaps > 0 or not hasattr(fits[0], "offset_") else 0
    for some in (rows, rows[:1], rows[7:9]):
        for fit in fits:
            feature_map = fit.feature_maps_[0]
            dense, sparse = (feature_map(convert(some)) for convert in (np.array, sp.csr_array))
            largest = max(np.abs(dense.exponents).max(), largest_row)
            room = 1e-10 + 16 * np.finfo(float).eps * largest
            assert_allclose(sparse.values, dense.values, rtol=0, atol=room)
            if dense.scale is not None:
                assert_allclose(sparse.scale, dense.scale, rtol=0, atol=room)


@every_kernel
@pytest.mark.parametrize("size", [1e-40, 1e-19, 1.0, 1e19, 1e30])
def test_float32_samples_of_any_size_are_mapped_as_float64_ones(kernel, size):
    # Here sigma or its square, the rows or their squares are no normal float32.
    low = (X * size).astype(np.float32)
    high = low.astype(np.float64)
    for name in MECHANISMS:
        fitted = mechanism(name, kernel=kernel, sigma=0.8 / size).fit(low)
        assert_same_parameters(fitted, clone(fitted).fit(high))
        assert all(np.asarray(value).dtype == np.float64 for value in parameters(fitted).values())
        transform = "log_transform" if name in POSITIVE else "transform"
        for method in (transform, f"{transform}_keys", "transform"):
            for convert in (np.array, sp.csr_array):
                values, expected = (getattr(fitted, method)(convert(Z)) for Z in (low, high))
                assert values.dtype == np.float32 and expected.dtype == np.float64
                assert_allclose(values, expected, rtol=2e-5, atol=2e-5)
        for matrix in ("exact_kernel", "approximate_kernel", "kernel_variance"):
            if (name, matrix) != ("SimplexRFPlus", "kernel_variance"):
                values, expected = (getattr(fitted, matrix)(Z) for Z in (low, high))
                assert_allclose(values, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MECHANISMS)
def test_sparse_samples_are_left_alone(name):
    """Arrays are in test_layouts.py."""
    matrix, dense = sp.csr_array(X), mechanism(name, sigma="median").fit(X, keys=Y)
    for array in (matrix.data, matrix.indices, matrix.indptr):
        array.flags.writeable = False
    fitted = mechanism(name, sigma="median").fit(matrix, keys=Y)
    assert_allclose(fitted.transform(matrix), dense.transform(X), **CLOSE)
    assert_allclose(fitted.transform_keys(matrix), dense.transform_keys(X), **CLOSE)
    for method in ("approximate_kernel", "exact_kernel"):
        expected = getattr(dense, method)(X, Y)
        assert_allclose(getattr(fitted, method)(matrix, Y), expected, **CLOSE)


# ------------------------------------------------------------------ other array libraries
# Their results and gradients: test_array_libraries.py.


def test_samples_of_other_numbers():
    whole = np.arange(12).reshape(4, 3) % 5
    fitted = mechanism("OptimalPositiveRF", sigma=0.1).fit(whole)
    expected = fitted.transform(whole.astype(np.float64))
    for rows in (whole, whole.tolist(), whole.astype(np.int8), whole.astype(np.float16)):
        assert fitted.transform(rows).dtype == np.float64
        assert_array_equal(fitted.transform(rows), expected)
    for rows in (whole > 2, sp.csr_array(whole)):
        assert fitted.fit_transform(rows).dtype == np.float64


def test_samples_of_other_libraries(library):
    whole = np.arange(12).reshape(4, 3) % 5
    fitted = mechanism("OptimalPositiveRF", sigma=0.1).fit(library.array(whole))
    features = fitted.transform(library.array(whole))
    assert features.dtype == library.xp.float64
    assert_allclose(library.host(features), clone(fitted).fit_transform(whole), **CLOSE)
    # The names of a table are forgotten.
    fitted.fit(frame(X)).fit(library.array(X))
    assert not hasattr(fitted, "feature_names_in_")
    positive = mechanism("PositiveRF").fit(X)
    with one_warning("Rows of features of X vanished in ", "float64, in PositiveRF"):
        features = positive.transform(library.array(1e3 + X))
    assert not library.host(features).any()


def test_array_api_dispatch_changes_nothing():
    # SciPy reads the variable when it is first imported, so this needs a process of its own.
    pytest.importorskip("array_api_strict")
    program = """
import array_api_strict as xp, inspect, numpy as np, sklearn, warnings
warnings.simplefilter("error")
from instances import MECHANISMS, make
from sklearn.utils.estimator_checks import check_array_api_input
from skrf import KernelRegressionClassifier, KernelRegressor

rows = np.random.default_rng(0).normal(size=(10, 3))
for name in MECHANISMS:
    fitted = make(name, n_components=4, random_state=0).fit(rows)
    expected = fitted.transform(rows)
    with sklearn.config_context(array_api_dispatch=True):
        for fit in (fitted, make(name, n_components=4, random_state=0).fit(xp.asarray(rows))):
            out = fit.transform(xp.asarray(rows))
            assert type(out) is type(xp.asarray(rows)), type(out)
            np.testing.assert_allclose(np.asarray(out), expected, rtol=1e-10)
        np.testing.assert_array_equal(fitted.transform(rows), expected)
options = {"array_namespace": "numpy"}
if "expect_only_array_outputs" in inspect.signature(check_array_api_input).parameters:
    options["expect_only_array_outputs"] = False
for estimator in (KernelRegressionClassifier(), KernelRegressor(), *(make(n) for n in MECHANISMS)):
    check_array_api_input(type(estimator).__name__, estimator, **options)
print("done")
"""
    paths = [os.path.dirname(__file__), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "SCIPY_ARRAY_API": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "done"
