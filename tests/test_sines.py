"""Sines and cosines: compiled against plain, and the blocks and threads of `transform`."""

import tracemalloc

import numpy as np
import pytest
from instances import MECHANISMS, make
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from skrf import (
    ApproxKernelAttention,
    ApproxKernelRidgeClassifier,
    ClusterNystroem,
    GeneralizedExponentialRF,
    HybridRF,
    KernelRegressionClassifier,
    KernelRegressionClassifierCV,
    OptimalPositiveRF,
    PoissonRF,
    RFFSampler,
    _kernels,
    _threads,
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
def test_amplitudes_and_layouts(dtype, monkeypatch):
    rng, eps = np.random.default_rng(1), np.finfo(dtype).eps
    products = rng.normal(size=(20, 11)).astype(dtype)
    amplitude = rng.uniform(size=20).astype(dtype)
    for own in (products, np.asfortranarray(products), products[::2], products[:, ::2]):
        compiled, expected = both(own, amplitude[: len(own)])
        assert_allclose(compiled, expected, rtol=0, atol=2 * eps)
    # Into part of an array, of which compiled code takes what lies in order.
    plain_one = plain.sine_cosine
    in_order = np.s_[:, :22], np.s_[:, 5:27], np.s_[::2, :22], np.s_[:1, 8:30]
    others = np.s_[::-1, :22], np.s_[:, 21::-1], np.s_[:, :44:2], np.s_[:0, :22]
    for place in (*in_order, *others):
        wide, expected = np.full((2, 20, 45), 7.0, dtype)
        n = len(wide[place])
        plain_one(products[:n], amplitude[:n], expected[place])
        monkeypatch.setattr(plain, "sine_cosine", None if place in in_order else plain_one)
        cpu.sine_cosine(products[:n], amplitude[:n], wide[place])
        assert_allclose(wide, expected, rtol=0, atol=2 * eps)


# ------------------------------------------------------------------ blocks and threads


@pytest.mark.parametrize("name", MECHANISMS)
def test_blocks_and_threads_change_nothing(name, monkeypatch):
    monkeypatch.setattr(_threads, "_LEAST_ENTRIES", 2**10)
    monkeypatch.setattr(_threads, "_MOST_ENTRIES", 2**13)
    X = np.random.default_rng(0).normal(size=(1000, 3)) / 3
    mechanism = make(name, n_components=48, random_state=0).fit(X)
    values, scale = mechanism.feature_maps_[0](X)
    expected = np.exp(values) if scale is None else values * np.exp(scale)
    for limit in (1, 2, 3):
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


def test_compiled_sines_are_loaded_when_they_pay(monkeypatch):
    loaded = []
    monkeypatch.setattr(_kernels, "choose", lambda X, work: loaded.append(work))
    many, block = _kernels.MANY_SINES, 2**20
    for dtype, share in ((np.float64, 1), (np.float32, 64)):
        monkeypatch.setattr(_kernels, "_made", 0)
        for _ in range(share * many // block - 1):
            _kernels.load(np.zeros(1, dtype), block)
        for _ in range(200):  # small calls do not count
            _kernels.load(np.zeros(1, dtype), 2**16 - 1)
        assert loaded == []
        _kernels.load(np.zeros(1, dtype), block)
        assert loaded == [_kernels.LARGE]
        loaded.clear()


@pytest.fixture
def counted(monkeypatch):
    """Return the list of (dtype, number of sines) that calls say they make."""
    works = []
    monkeypatch.setattr(_kernels, "load", lambda X, work: works.append((X.dtype, work)))
    return works


def test_calls_count_their_sines(counted):
    X = np.random.default_rng(0).normal(size=(90, 3))
    for model in (
        KernelRegressionClassifier(RFFSampler(20)),
        KernelRegressionClassifierCV(RFFSampler(20), sigmas=[1.0]),
        ApproxKernelRidgeClassifier(RFFSampler(20)),
        ApproxKernelRidgeClassifier(make_pipeline(StandardScaler(), RFFSampler(20))),
    ):
        counted.clear()
        model.fit(X, np.arange(90) % 3)
        assert {dtype for dtype, _ in counted} == {np.dtype(np.float64)}
        assert sum(work for _, work in counted) % (90 * 20) == 0  # of a search, every pass
        counted.clear()
        model.predict(X)
        assert counted == [(np.float64, 90 * 20)]
    for dtype in (np.float32, np.float64):
        counted.clear()
        RFFSampler(20, random_state=0).fit(X.astype(dtype)).transform(X.astype(dtype))
        OptimalPositiveRF(20, random_state=0).fit(X.astype(dtype)).transform(X.astype(dtype))
        assert [own for own in counted if own[1]] == [(dtype, 90 * 20)]


@pytest.mark.filterwarnings("ignore::skrf.exceptions.FeatureCollapseWarning")
def test_rows_of_float32_that_are_mapped_in_float64_count_as_such(counted):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 3)).astype(np.float32)
    model = KernelRegressionClassifier(RFFSampler(20, sigma=1.0)).fit(X, np.arange(90) % 3)
    for size in (1.0, 1e3):
        model.predict(np.float32(size) * X)
    assert [dtype for dtype, _ in counted[-2:]] == [np.float32, np.float64]
    for size, dtype in ((1.0, np.float32), (100.0, np.float64)):
        q, k, v = (size * rng.normal(size=(2, n, 3)).astype(np.float32) for n in (60, 90, 90))
        counted.clear()
        ApproxKernelAttention(RFFSampler(20, kernel="softmax", sigma=1.0, random_state=0))(q, k, v)
        made = [own for own in counted if own[1]]
        assert made == 2 * [(dtype, 60 * 20), (dtype, 90 * 20)]


def test_only_sines_and_cosines_of_projections_count():
    X = np.random.default_rng(0).normal(size=(90, 3))
    for feature_map, n_sines in (
        (RFFSampler(20), 20),
        (RFFSampler(20, kernel="laplacian"), 20),
        (make_pipeline(StandardScaler(), RFFSampler(20)), 20),
        (GeneralizedExponentialRF(20, sigma=0.25), 20),
        (GeneralizedExponentialRF(1, sigma=0.25), 0),
        (RFFSampler(1), 0),
        (OptimalPositiveRF(20), 0),
        (PoissonRF(20), 0),
        (ClusterNystroem(20), 0),
        (Nystroem(n_components=20), 0),
        (HybridRF(n_components=20), 0),
    ):
        assert as_feature_map(feature_map.fit(X)).n_sines == n_sines
