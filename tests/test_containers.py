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
    every_mechanism,
    frame,
    mechanism,
    one_warning,
    parameters,
)
from instances import accepts, make
from numpy.testing import assert_allclose, assert_array_equal

# ------------------------------------------------------------------ containers


FORMATS = {
    f"{kind.__name__}-{form}": (kind, form)
    for kind in (sp.csr_array, sp.csr_matrix)
    for form in ("csr", "csc", "coo", "lil", "dok", "bsr", "dia")
}


def sparse_rows(rows, which="csr_array-csr"):
    kind, form = FORMATS[which]
    return kind(rows).asformat(form)


def wide_indices(rows):
    matrix = sp.csr_array(rows)
    matrix.indices, matrix.indptr = (
        part.astype(np.int64) for part in (matrix.indices, matrix.indptr)
    )
    assert matrix.indices.dtype == matrix.indptr.dtype == np.int64
    return matrix


def duplicated(rows):
    """Every entry in two parts, which the format allows; the row norms must join them."""
    rows = sp.csr_array(rows)
    parts = np.repeat(rows.data, 2) / 2
    matrix = sp.csr_array((parts, np.repeat(rows.indices, 2), 2 * rows.indptr), shape=rows.shape)
    assert not matrix.has_canonical_format
    return matrix


@pytest.mark.parametrize("which", FORMATS)
def test_every_sparse_format_is_accepted(which):
    rows, keys = sparse_rows(X, which), sparse_rows(Y, which)
    for name in ("RFFSampler", "OptimalPositiveRF"):
        ours = mechanism(name, sigma="median").fit(rows, sample_weight=np.arange(30), keys=keys)
        dense = mechanism(name, sigma="median").fit(X, sample_weight=np.arange(30), keys=Y)
        assert_same_parameters(ours, dense)
        assert_allclose(ours.transform(rows), dense.transform(X), **CLOSE)


@every_mechanism
@every_kernel
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("convert", [sp.csr_array, wide_indices, duplicated])
def test_sparse_equals_dense(name, kernel, center, convert):
    # Where there is no such parameter, nothing is centred.
    options = {"center": center} if accepts(name, "center") else {}
    fits = [
        mechanism(name, kernel=kernel, sigma="scale", **options).fit(rows, keys=keys)
        for rows, keys in ((X, Y), (convert(X), convert(Y)))
    ]
    assert_same_statistics(*fits)
    assert_same_parameters(*fits)
    dense, sparse = fits
    for method in ("transform", "transform_keys", "exact_kernel", "approximate_kernel"):
        expected, values = getattr(dense, method)(Y), getattr(sparse, method)(convert(Y))
        assert type(values) is np.ndarray and values.dtype == np.float64
        assert_allclose(values, expected, **CLOSE, err_msg=method)
    if name in POSITIVE:
        assert_allclose(sparse.log_transform(convert(Y)), dense.log_transform(Y), **CLOSE)
    assert_allclose(dense.exact_kernel(X, Y), sparse.exact_kernel(convert(X), Y), **CLOSE)
    if name != "SimplexRFPlus":
        expected = dense.kernel_variance(X, Y, log=True)
        values = sparse.kernel_variance(convert(X), convert(Y), log=True)
        assert_allclose(values, expected, **CLOSE)
    assert sparse.transform(convert(Y).astype(np.float32)).dtype == np.float32


@every_mechanism
def test_centring_does_not_densify(name):
    # Dense, these rows are 400 MB.
    rows = sp.random_array((500, 100_000), density=1e-4, rng=0, format="csr")
    tracemalloc.start()
    features = mechanism(name, n_components=2, sigma="scale").fit(rows).transform(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert features.shape == (500, 2) and np.isfinite(features).all()
    assert peak < 40e6


FAR = [*MECHANISMS, "DenseExponentialRF", "GeneralizedExponentialRF", "HybridRF"]


@pytest.mark.parametrize("name", FAR)
@every_kernel
@pytest.mark.parametrize("offset", [1e4, 1e7, 1e9])
@pytest.mark.parametrize("gaps", [0.0, 0.03, 0.7])
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
    for some in (rows, rows[:1], rows[7:9]):
        for fit in fits:
            feature_map = fit.feature_maps_[0]
            dense, sparse = (feature_map(convert(some)) for convert in (np.array, sp.csr_array))
            for ours, theirs in zip(dense, sparse, strict=True):
                if ours is not None:
                    # Angles of signed maps are as exact as products with the largest rows.
                    is_far = gaps > 0 or not hasattr(fit, "offset_")
                    largest = max(np.abs(dense.exponents).max(), offset * is_far)
                    room = 1e-10 + 16 * np.finfo(float).eps * largest
                    assert_allclose(theirs, ours, rtol=0, atol=room)
    if kernel == "gaussian":
        dense, sparse = (fits[0].exact_kernel(Z, log=True) for Z in (rows, sp.csr_array(rows)))
        assert_allclose(sparse, dense, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["RFFSampler", "OptimalPositiveRF", "HybridRF"])
def test_a_full_column_does_not_make_the_others_dense(name):
    rows = sp.random_array((500, 100_000), density=1e-4, rng=0, format="lil")
    rows[:, 3] = 1e9
    rows = rows.tocsr()
    tracemalloc.start()
    features = make(name, n_components=8, sigma=1.0).fit(rows).transform(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.isfinite(features).all() and peak < 60e6


@every_mechanism
@every_kernel
@pytest.mark.parametrize("size", [1e-40, 1e-30, 1e-19, 1e19, 1e30])
def test_float32_rows_of_any_size_are_mapped_as_float64_rows(name, kernel, size):
    # Here sigma or its square, the rows or their squares are no normal float32.
    low = (X * size).astype(np.float32)
    fitted = mechanism(name, kernel=kernel, sigma=0.8 / size).fit(low)
    method = "log_transform" if name in POSITIVE else "transform"
    for convert in (np.array, sp.csr_array):
        values = getattr(fitted, method)(convert(low))
        expected = getattr(fitted, method)(convert(low.astype(np.float64)))
        assert values.dtype == np.float32
        assert_allclose(values, expected, rtol=2e-5, atol=2e-5)
    for matrix in ("exact_kernel", "approximate_kernel", "kernel_variance"):
        if (name, matrix) != ("SimplexRFPlus", "kernel_variance"):
            values, expected = (getattr(fitted, matrix)(Z) for Z in (low, low.astype(np.float64)))
            assert_allclose(values, expected, rtol=1e-4, atol=1e-6)


@every_mechanism
def test_inputs_are_left_alone(name, tmp_path):
    weights = np.arange(30.0)
    held = [X.copy(), Y.copy(), weights]
    on_disk = np.memmap(tmp_path / "rows", dtype=np.float64, mode="w+", shape=X.shape)
    on_disk[:] = X
    on_disk.flush()
    on_disk = np.memmap(tmp_path / "rows", dtype=np.float64, mode="r", shape=X.shape)
    matrix = sp.csr_array(X)
    for array in (*held, matrix.data, matrix.indices, matrix.indptr):
        array.flags.writeable = False
    expected = mechanism(name, sigma="median").fit(X, sample_weight=weights, keys=Y)
    for rows in (held[0], on_disk, matrix):
        fitted = mechanism(name, sigma="median").fit(rows, sample_weight=weights, keys=held[1])
        assert_allclose(fitted.transform(rows), expected.transform(X), **CLOSE)
        assert_allclose(fitted.transform_keys(rows), expected.transform_keys(X), **CLOSE)
        fitted.approximate_kernel(rows, held[1])
        fitted.exact_kernel(rows, held[1])
    assert_array_equal(held[0], X)
    assert_array_equal(matrix.toarray(), X)


@every_mechanism
@every_kernel
@pytest.mark.parametrize("convert", [np.array, sp.csr_array])
def test_float32_stays_float32(name, kernel, convert):
    fitted = mechanism(name, kernel=kernel, sigma="scale").fit(X.astype(np.float32))
    assert_same_parameters(
        fitted,
        mechanism(name, kernel=kernel, sigma="scale").fit(X.astype(np.float32).astype(np.float64)),
    )
    for value in parameters(fitted).values():
        assert np.asarray(value).dtype == np.float64
    narrow = convert(Y.astype(np.float32))
    methods = ["transform", "transform_keys"]
    methods += ["log_transform", "log_transform_keys"] if name in POSITIVE else []
    for method in methods:
        low, high = getattr(fitted, method)(narrow), getattr(fitted, method)(convert(Y))
        assert low.dtype == np.float32 and high.dtype == np.float64
        # Errors of exponents of size up to 20, at 1.2e-7 each.
        assert_allclose(low, high, rtol=2e-5, atol=2e-5)


@every_mechanism
def test_every_other_number_becomes_float64(name):
    whole = np.arange(12).reshape(4, 3) % 5
    fitted = mechanism(name, sigma=0.1).fit(whole)
    expected = fitted.transform(whole.astype(np.float64))
    for rows in (whole, whole.tolist(), whole.astype(np.int8), whole.astype(np.float16)):
        features = fitted.transform(rows)
        assert features.dtype == np.float64
        assert_array_equal(features, expected)
    assert mechanism(name).fit_transform(whole > 2).dtype == np.float64
    assert mechanism(name).fit_transform(sp.csr_array(whole)).dtype == np.float64


# ------------------------------------------------------------------ other array libraries
# Their results and gradients: test_array_libraries.py.


def test_a_fit_on_arrays_forgets_the_names_of_a_table(library):
    fitted = mechanism("OptimalPositiveRF").fit(frame(X))
    fitted.fit(library.array(X))
    assert not hasattr(fitted, "feature_names_in_")
    fitted.transform(library.array(X))


def test_other_libraries_give_float64_for_whole_numbers(library):
    whole = np.arange(12).reshape(4, 3) % 5
    fitted = mechanism("OptimalPositiveRF").fit(library.array(whole))
    features = fitted.transform(library.array(whole))
    assert features.dtype == library.xp.float64
    assert_allclose(library.host(features), fitted.transform(whole), **CLOSE)


def test_other_libraries_warn_of_vanished_rows(library):
    fitted = mechanism("PositiveRF").fit(X)
    with one_warning("Rows of features of X vanished in ", "float64, in PositiveRF"):
        features = fitted.transform(library.array(1e3 + X))
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
