"""Sines and cosines: compiled against plain, and the blocks and threads of `transform`."""

import re
import tracemalloc

import llvmlite.binding
import numpy as np
import pytest
from instances import MECHANISMS, make
from numba import config, njit
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
@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0, 1e3, 8e3, 9.9e5, 1e7, 1e15])
def test_compiled_sines_are_within_one_eps(size, dtype):
    rng = np.random.default_rng(0)
    products = (size * rng.uniform(-1, 1, size=(50, 37))).astype(dtype)
    compiled, _ = both(products, np.ones(50, dtype))
    exact = products.astype(np.longdouble)
    expected = np.hstack([np.cos(exact), np.sin(exact)])
    # Absolute errors are what a feature needs.
    assert np.abs(compiled - expected).max() <= 1.3 * np.finfo(dtype).eps


def test_compiled_sines_where_quarters_meet():
    quarters = np.arange(-40, 41) * np.pi / 2
    near = quarters[:, None] + np.array([-1e-9, -1e-16, 0, 1e-16, 1e-9])
    compiled, expected = both(near, np.ones(81))
    assert_allclose(compiled, expected, rtol=0, atol=2e-16)
    with np.errstate(invalid="ignore"):
        compiled, expected = both(np.array([[0.0, -0.0, np.nan, np.inf, -np.inf]]), np.ones(1))
    assert_array_equal(np.isnan(compiled), np.isnan(expected))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_amplitudes_and_layouts(dtype):
    rng = np.random.default_rng(1)
    products = rng.normal(size=(20, 11)).astype(dtype)
    amplitude = rng.uniform(size=20).astype(dtype)
    for own in (products, np.asfortranarray(products), products[::2], products[:, ::2]):
        compiled, expected = both(own, amplitude[: len(own)])
        assert_allclose(compiled, expected, rtol=0, atol=2 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("place", [np.s_[:, :22], np.s_[:, 5:27], np.s_[::2, :22], np.s_[:1, 8:]])
def test_columns_of_a_wider_array_are_written_compiled(place, dtype, monkeypatch):
    wide = np.full((20, 30), 7.0, dtype)
    out, rng = wide[place], np.random.default_rng(1)
    products, amplitude = rng.normal(size=(len(out), 11)).astype(dtype), np.ones(len(out), dtype)
    expected = np.full_like(wide, 7.0)
    plain.sine_cosine(products, amplitude, expected[place])
    monkeypatch.setattr(plain, "sine_cosine", None)
    cpu.sine_cosine(products, amplitude, out)
    assert_allclose(wide, expected, rtol=0, atol=2 * np.finfo(dtype).eps)


@pytest.mark.parametrize("place", [np.s_[::-1, :22], np.s_[:, 21::-1], np.s_[:, :44:2], np.s_[:0]])
def test_other_layouts_of_the_output(place):
    wide = np.full((20, 45), 7.0)
    out, expected = wide[place][:, :22], np.full_like(wide, 7.0)
    products, amplitude = np.random.default_rng(1).normal(size=(len(out), 11)), np.ones(len(out))
    plain.sine_cosine(products, amplitude, expected[place][:, :22])
    cpu.sine_cosine(products, amplitude, out)
    assert_allclose(wide, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_compiled_loop_is_vectorised(dtype):
    """Its instructions work on full vectors, except for a copy of the loop for the last columns."""
    own = cpu._sine_cosine if dtype == np.float64 else cpu._sine_cosine_single
    kernel = njit(fastmath={"contract", "nsz"}, nogil=True, error_model="numpy")(own.function)
    kernel(cpu._read_only(np.ones((2, 8), dtype)), np.ones(2, dtype), np.empty((2, 16), dtype))
    [assembly] = kernel.inspect_asm().values()
    suffix = "pd" if dtype == np.float64 else "ps"
    if f"mul{suffix}" not in assembly:
        pytest.skip("not an x86 machine")
    if config.CPU_NAME == "generic" or not llvmlite.binding.get_host_cpu_features().get("avx2"):
        pytest.skip("vectors have 16 bytes on this machine, or by NUMBA_CPU_NAME")
    lines = re.findall(r"\sv?(?:fn?m|mul)\w*[ps][sd]\s.*", assembly)
    assert sum("ymm" in line or "zmm" in line for line in lines) > len(lines) / 3
    if dtype == np.float32:
        assert "cvtss2sd" not in assembly and "cvtps2pd" not in assembly


# ------------------------------------------------------------------ blocks and threads


@pytest.mark.parametrize("name", MECHANISMS)
def test_blocks_and_threads_change_nothing(name, monkeypatch):
    monkeypatch.setattr(_threads, "_LEAST_ENTRIES", 2**10)
    monkeypatch.setattr(_threads, "_MOST_ENTRIES", 2**13)
    X = np.random.default_rng(0).normal(size=(3000, 3)) / 3
    mechanism = make(name, n_components=48, random_state=0).fit(X)
    maps = mechanism.feature_maps_[0]
    values, scale = maps(X)
    expected = np.exp(values) if scale is None else values * np.exp(scale)
    for limit in (1, 2, 3):
        with threadpool_limits(limit, user_api="blas"):
            assert_allclose(mechanism.transform(X), expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("mechanism", [RFFSampler(256), OptimalPositiveRF(256)])
def test_transform_holds_little_beside_its_output(mechanism):
    X = np.random.default_rng(0).normal(size=(40_000, 16)) / 4
    mechanism.set_params(random_state=0).fit(X).transform(X[:1000])
    with threadpool_limits(2, user_api="blas"):
        tracemalloc.start()
        features = mechanism.transform(X)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # Two threads, blocks of 8 MB of output each, and a few temporaries of that size.
    assert features.nbytes > 80e6 and peak < features.nbytes + 20e6


def test_flaws_in_any_block_are_said():
    X = np.zeros((40_000, 4))
    X[39_999] = 60.0
    mechanism = OptimalPositiveRF(16, center=False, random_state=0).fit(X[:10] + 0.1)
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


@pytest.mark.parametrize(
    "model",
    [
        KernelRegressionClassifier(RFFSampler(20)),
        KernelRegressionClassifierCV(RFFSampler(20), sigmas=[1.0]),
        ApproxKernelRidgeClassifier(RFFSampler(20)),
        ApproxKernelRidgeClassifier(make_pipeline(StandardScaler(), RFFSampler(20))),
    ],
)
def test_regression_loads_compiled_sines_for_many_features(model, monkeypatch):
    works = []
    monkeypatch.setattr(_kernels, "load", lambda X, work: works.append((X.dtype, work)))
    X = np.random.default_rng(0).normal(size=(90, 3))
    model.fit(X, np.arange(90) % 3)
    assert works[0] == (np.float64, 90 * 20)
    works.clear()
    model.predict(X)
    assert works == [(np.float64, 90 * 20)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_transforms_count_their_sines(dtype, monkeypatch):
    works = []
    monkeypatch.setattr(_kernels, "load", lambda X, work: works.append((X.dtype, work)))
    X = np.random.default_rng(0).normal(size=(90, 3)).astype(dtype)
    RFFSampler(20, random_state=0).fit(X).transform(X)
    OptimalPositiveRF(20, random_state=0).fit(X).transform(X)
    assert [own for own in works if own[1]] == [(dtype, 90 * 20)]


@pytest.mark.filterwarnings("ignore::skrf.exceptions.FeatureCollapseWarning")
@pytest.mark.parametrize("size, dtype", [(1.0, np.float32), (100.0, np.float64)])
def test_attention_loads_compiled_sines_for_many_features(size, dtype, monkeypatch):
    works = []
    monkeypatch.setattr(_kernels, "load", lambda X, work: works.append((X.dtype, work)))
    rng = np.random.default_rng(0)
    q, k, v = (size * rng.normal(size=(2, n, 3)).astype(np.float32) for n in (60, 90, 90))
    feature_map = RFFSampler(20, kernel="softmax", sigma=1.0, random_state=0)
    ApproxKernelAttention(feature_map)(q, k, v)
    assert [own for own in works if own[1]] == 2 * [(dtype, 60 * 20), (dtype, 90 * 20)]


@pytest.mark.parametrize(
    "feature_map, n_sines",
    [
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
    ],
)
def test_only_sines_and_cosines_of_projections_count(feature_map, n_sines):
    feature_map.fit(np.random.default_rng(0).normal(size=(90, 3)))
    assert as_feature_map(feature_map).n_sines == n_sines


def test_rows_of_float32_that_are_mapped_in_float64_count_as_such(monkeypatch):
    dtypes, X = [], np.random.default_rng(0).normal(size=(90, 3)).astype(np.float32)
    monkeypatch.setattr(_kernels, "load", lambda X, work: dtypes.append(X.dtype))
    model = KernelRegressionClassifier(RFFSampler(20, sigma=1.0)).fit(X, np.arange(90) % 3)
    for size in (1.0, 1e3):
        model.predict(np.float32(size) * X)
    assert dtypes[-2:] == [np.float32, np.float64]
