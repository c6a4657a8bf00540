"""Sines and cosines: compiled against plain, and the blocks and threads of `transform`."""

import os
import subprocess
import sys
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from instances import MECHANISMS, make
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

import skrf
from skrf import (
    ApproxKernelAttention,
    ApproxKernelRidgeClassifier,
    GeneralizedExponentialRF,
    HybridRF,
    KernelRegressionClassifier,
    OptimalPositiveRF,
    PoissonRF,
    RFFSampler,
    _kernels,
)
from skrf._kernels import cpu, plain
from skrf.features import as_feature_map


def both(products, amplitude):
    outs = [np.empty((len(products), 2 * products.shape[1]), products.dtype) for _ in range(2)]
    cpu.sine_cosine(products, amplitude, outs[0])
    plain.sine_cosine(products, amplitude, outs[1])
    return outs


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compiled_sines_are_within_one_eps(dtype):
    rng = np.random.default_rng(0)
    quarters = (np.arange(-40, 41) * np.pi / 2)[:, None]
    cases = [quarters + np.array([-1e-9, -1e-16, 0, 1e-16, 1e-9])]  # where two of them meet
    for size in (1e-3, 1.0, 30.0, 1e3, 8e3, 9.9e5, 1e7, 1e15):
        cases.append(size * rng.uniform(-1, 1, size=(50, 37)))
    for case in cases:
        products = case.astype(dtype)
        exact = products.astype(np.longdouble)
        expected = np.hstack([np.cos(exact), np.sin(exact)])
        # Absolute errors are what a feature needs.
        errors = np.abs(both(products, np.ones(len(case), dtype))[0] - expected)
        assert errors.max() <= 1.3 * np.finfo(dtype).eps
    with np.errstate(invalid="ignore"):
        special = np.array([[0.0, -0.0, np.nan, np.inf, -np.inf]], dtype)
        compiled, expected = both(special, np.ones(1, dtype))
    assert_array_equal(np.isnan(compiled), np.isnan(expected))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_amplitudes_and_layouts(dtype):
    rng, eps = np.random.default_rng(1), np.finfo(dtype).eps
    products = rng.normal(size=(20, 11)).astype(dtype)
    amplitude = rng.uniform(size=20).astype(dtype)
    for laid in (products, np.asfortranarray(products), products[::2], products[:, ::2]):
        compiled, expected = both(laid, amplitude[: len(laid)])
        assert_allclose(compiled, expected, rtol=0, atol=2 * eps)
    # Into part of an array, of which compiled code takes what lies in order: it rounds otherwise.
    products = rng.normal(size=(20, 1000)).astype(dtype)
    in_order = np.s_[:, :2000], np.s_[:, 5:2005], np.s_[::2, :2000], np.s_[:1, 8:2008]
    others = np.s_[::-1, :2000], np.s_[:, 1999::-1], np.s_[:, :4000:2], np.s_[:0, :2000]
    for place in (*in_order, *others):
        wide, expected = np.full((2, 20, 4100), 7.0, dtype)
        n = len(wide[place])
        plain.sine_cosine(products[:n], amplitude[:n], expected[place])
        cpu.sine_cosine(products[:n], amplitude[:n], wide[place])
        assert_allclose(wide, expected, rtol=0, atol=2 * eps)
        assert (wide != expected).any() == (place in in_order)


# ------------------------------------------------------------------ blocks and threads


@pytest.mark.parametrize("name", MECHANISMS)
def test_blocks_and_threads_change_nothing(name):
    """Three blocks of at least 2^18 features."""
    X = np.random.default_rng(0).normal(size=(11_000, 3)) / 3
    mechanism = make(name, n_components=48, random_state=0).fit(X)
    values, scale = mechanism.feature_maps_[0](X)
    expected = np.exp(values) if scale is None else values * np.exp(scale)
    for limit in (1, 3):
        with threadpool_limits(limit, user_api="blas"):
            assert_allclose(mechanism.transform(X), expected, rtol=1e-10, atol=1e-14)


def test_transform_holds_little_beside_its_output():
    X = np.random.default_rng(0).normal(size=(40_000, 16)) / 4
    mechanism = OptimalPositiveRF(256, random_state=0).fit(X)
    mechanism.transform(X[:1000])
    with threadpool_limits(2, user_api="blas"):
        tracemalloc.start()
        features = mechanism.transform(X)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # Two threads, blocks of 8 MB of output each, and a few temporaries of that size.
    assert features.nbytes > 80e6 and peak < features.nbytes + 20e6
    # Flaws in any block are said.
    X[39_999] = 60.0
    with pytest.warns(RuntimeWarning, match="Rows of features of X vanished in float64"):
        mechanism.transform(X)


LOADED = """
import sys

import numpy as np
from skrf import _kernels

def load(dtype, work, times=1):
    for _ in range(times):
        _kernels.load(np.zeros(1, dtype), work)
    return "skrf._kernels.cpu" in sys.modules

block, many = 2**20, _kernels.MANY_SINES // 2**20
assert not load(np.float64, block, many // 2)
assert not load(np.float32, block, 32 * (many - many // 2) - 1)
for dtype in (np.float32, np.float64):  # small calls do not count
    assert not load(dtype, 2**16 - 1, 200)
assert load(np.float32, block)
"""


def test_compiled_sines_are_loaded_when_they_pay():
    """Thirty-two in float32 count as one in float64."""
    home = {"PYTHONPATH": str(Path(skrf.__file__).parents[1])}
    command = [sys.executable, "-P", "-c", LOADED]  # -P: not this folder's package
    subprocess.run(command, env={**os.environ, **home}, check=True)


@contextmanager
def counted(*expected):
    """Check which sines the block says it makes: (dtype, number), of 2^16 at least."""
    before = _kernels._made
    yield
    made = (n_sines if dtype == np.float64 else n_sines // 32 for dtype, n_sines in expected)
    assert _kernels._made - before == sum(made)


N_ROWS = 11_000  # of which blocks count too
ALL = N_ROWS * 20


def test_calls_count_their_sines():
    X = np.random.default_rng(0).normal(size=(N_ROWS, 3))
    for model in (
        KernelRegressionClassifier(RFFSampler(20)),
        ApproxKernelRidgeClassifier(RFFSampler(20)),
        ApproxKernelRidgeClassifier(make_pipeline(StandardScaler(), RFFSampler(20))),
    ):
        with counted((np.float64, ALL)):
            model.fit(X, np.arange(N_ROWS) % 3)
        with counted((np.float64, ALL)):
            model.predict(X)


@pytest.mark.filterwarnings("ignore::skrf.exceptions.FeatureCollapseWarning")
@pytest.mark.parametrize(
    ("size", "dtype", "made_in"),
    [(1.0, "f4", np.float32), (1e3, "f4", np.float64), (1.0, "f8", np.float64)],
)
def test_rows_of_float32_that_are_mapped_in_float64_count_as_such(size, dtype, made_in):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, 3)).astype(dtype)
    model = KernelRegressionClassifier(RFFSampler(20, sigma=1.0)).fit(X, np.arange(N_ROWS) % 3)
    for call in (RFFSampler(20, random_state=0).fit(X).transform, model.predict):
        with counted((made_in, ALL)):
            call((size * X).astype(dtype))
    lengths = N_ROWS, N_ROWS + 200, N_ROWS + 200
    q, k, v = ((min(size, 100.0) * rng.normal(size=(2, n, 3))).astype(dtype) for n in lengths)
    with counted(*[(made_in, ALL), (made_in, ALL + 200 * 20)] * 2):
        ApproxKernelAttention(RFFSampler(20, kernel="softmax", random_state=0))(q, k, v)


def test_only_sines_and_cosines_of_projections_count():
    X = np.random.default_rng(0).normal(size=(90, 3))
    for feature_map, n_sines in (
        (RFFSampler(20), 20),
        (make_pipeline(StandardScaler(), RFFSampler(20, kernel="laplacian")), 20),
        (GeneralizedExponentialRF(20, sigma=0.25), 20),
        (GeneralizedExponentialRF(1, sigma=0.25), 0),
        (RFFSampler(1), 0),
        (OptimalPositiveRF(20), 0),
        (PoissonRF(20), 0),
        (Nystroem(n_components=20), 0),
        (HybridRF(n_components=20), 0),
    ):
        assert as_feature_map(feature_map.fit(X)).n_sines == n_sines
