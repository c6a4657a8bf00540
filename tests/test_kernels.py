"""Compiled kernels and numba's cache of them: where there is none, damage, several dtypes."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import array_api_strict
import numpy as np
import pytest
from sklearn.base import clone
from threadpoolctl import threadpool_limits

import skrf
from skrf import (
    ClusterNystroem,
    KernelRegressor,
    OptimalPositiveRF,
    RFFSampler,
    _kernels,
    _threads,
)
from skrf._kernels import cpu, plain
from skrf.attention import ApproxKernelAttention

BOTH = """
import numpy as np
from skrf._kernels import cpu

@cpu._Kernel
def both(x):
    return x[0] + x[1]

for dtype in (np.float32, np.float64):
    assert both(np.arange(3, 5, dtype=dtype)) == 7
"""
HERE = {"PYTHONPATH": str(Path(skrf.__file__).parents[1])}
LARGE = """
import sys

import numpy as np
from skrf import RFFSampler

X = np.random.default_rng(0).normal(size=(2**11, 256))
sampler = RFFSampler(512, projection="hadamard", random_state=0, sigma=1.0)
np.save(sys.argv[1], sampler.fit_transform(X)[:50])
assert "skrf._kernels.cpu" in sys.modules
"""


def run(*script, **environment):
    """Return what a script prints in a process of its own."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    command = [sys.executable, "-P", "-W", "error", *script]  # -P: not this folder's package
    done = subprocess.run(command, env={**known, **environment}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return done.stdout


@pytest.fixture
def sealed(tmp_path):
    """Environment of a copy of the package beside which, or at home, no one can write a folder."""
    package = tmp_path / "skrf"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(skrf.__file__).parent, package, ignore=ignore)
    # Files in place of folders, because permissions do not hold for a superuser.
    for blocked in (package / "_kernels" / "__pycache__", tmp_path / "home"):
        blocked.write_text("")
    home = str(tmp_path / "home")
    return {"PYTHONPATH": str(tmp_path), "HOME": home, "XDG_CACHE_HOME": home}


def test_a_large_call_needs_no_cache(sealed, tmp_path):
    run("-c", LARGE, str(tmp_path / "out.npy"), **sealed)
    X = np.random.default_rng(0).normal(size=(2**11, 256))[:50]
    expected = RFFSampler(512, projection="hadamard", random_state=0, sigma=1.0).fit(X).transform(X)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=0, atol=1e-13)


def test_no_two_compiled_versions_share_a_file_and_damaged_ones_cost_only_time(tmp_path):
    # Numba numbers the versions, and two processes at once give two of them the same number.
    script, folder = tmp_path / "both.py", {"NUMBA_CACHE_DIR": str(tmp_path), **HERE}
    script.write_text(BOTH)
    run(script, **folder)
    run(script, NUMBA_CPU_NAME="generic", **folder)
    files = sorted(tmp_path.rglob("*.nb[ic]"))
    assert len(files) == 2 * 4 and not any(path.name.endswith(".2.nbc") for path in files)
    for path in files:
        path.write_bytes(path.read_bytes()[:20] if path is files[0] else b"")
    run(script, **folder)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kernels_are_cached_in_one_version_whoever_may_write_to_the_rows(dtype):
    for is_writeable in (True, False):
        X, ones = np.eye(16, dtype=dtype), np.ones((1, 3, 16), dtype)
        X.flags.writeable = is_writeable
        cpu.project(X, ones, ones[0, 0], False, np.empty_like(X))
        cpu.sine_cosine(X, None, np.empty((16, 32), dtype))
    for kernel in (cpu._project_rows, cpu._sine_cosine):
        compiled = kernel._compiled[np.dtype(dtype)]
        assert len(compiled.signatures) == 1 and compiled.stats.cache_path is not None


@pytest.mark.parametrize("d", [1, 3, 70])
def test_compiled_distances_are_those_of_plain_code(d):
    rng = np.random.default_rng(0)
    X, Y = rng.standard_cauchy((12, d)), rng.standard_cauchy((9, 2 * d))[:, ::2]
    Y[:3] = X[:3]
    expected = plain.city_block(X, Y)
    for rows in (X, np.asfortranarray(X), X[::2]):
        np.testing.assert_array_equal(cpu.city_block(rows, Y), plain.city_block(rows, Y))
    assert (np.diag(expected)[:3] == 0).all() and cpu.city_block(X[:0], Y).shape == (0, 9)
    single = cpu.city_block(X.astype(np.float32), Y)
    assert single.dtype == plain.city_block(X.astype(np.float32), Y).dtype == np.float32
    np.testing.assert_allclose(single, expected, rtol=1e-5, atol=1e-5)
    for dtype in (np.float32, np.float64):
        assert len(cpu._city_block._compiled[np.dtype(dtype)].signatures) == 1


@pytest.mark.parametrize("dtype, low, high", [("f4", -110, 92), ("f8", -760, 720)])
def test_compiled_exponentials_have_two_units_in_the_last_place(dtype, low, high):
    rng = np.random.default_rng(0)
    logs = rng.uniform(low, high, size=(1000, 1000)).astype(dtype)
    result = np.empty_like(logs)
    cpu.exp(logs, result)
    with np.errstate(over="ignore", under="ignore"):
        exact = np.exp(logs.astype(np.longdouble))
        rounded = exact.astype(dtype)
    is_finite = np.isfinite(rounded)
    error = abs(result - exact)[is_finite] / np.spacing(rounded[is_finite])
    assert error.max() <= 2 and (result[~is_finite] == np.inf).all()
    cpu.exp(logs, logs)  # in place
    np.testing.assert_array_equal(logs, result)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_edges_of_compiled_exponentials_are_those_of_numpy(dtype):
    info = np.finfo(dtype)
    top, low, least = (np.log(x) for x in (info.max, info.tiny, info.smallest_subnormal))
    edges = [0, -0.0, np.nan, np.inf, -np.inf, info.max, info.min, info.tiny, top, low, least]
    edges = np.array([[*edges, *(np.array([top, low, least]) * 1.001), least * 1.1]], dtype)
    expected, result = np.empty_like(edges), np.empty_like(edges)
    with np.errstate(over="ignore", under="ignore"):
        plain.exp(edges, expected)
    cpu.exp(edges, result)
    np.testing.assert_allclose(result, expected, rtol=2 * info.eps, atol=info.smallest_subnormal)
    assert np.array_equal(np.isinf(result), np.isinf(expected))
    turned = np.asfortranarray(np.tile(edges, (3, 1)))  # rows that are not contiguous
    with np.errstate(over="ignore", under="ignore"):
        cpu.exp(turned, turned)
    bounds = {"rtol": 2 * info.eps, "atol": info.smallest_subnormal}
    np.testing.assert_allclose(turned[1:2], expected, **bounds)


def test_library_dtype_and_size_choose_the_code():
    n_rows = 2**10
    for dtype in (np.float32, np.float64):
        X = np.zeros((n_rows, 3), dtype)
        assert _kernels.serving(X, 31) is plain and _kernels.serving(X, 32) is cpu
        assert _kernels.serving(X[:1], 32) is plain
        with _threads.rows_of_call(n_rows):
            assert _kernels.serving(X[:1], 32) is cpu
            with _threads.rows_of_call(0):
                assert _kernels.serving(X[:1], 32) is plain
            with _threads.rows_of_call(1):
                assert _kernels.serving(X[:1], 32) is cpu
        assert _kernels.serving(array_api_strict.asarray(X), 32) is plain
    assert _kernels.serving(np.zeros((n_rows, 3), np.longdouble), 32) is plain
    assert _kernels.of_recursions(2**12 - 1) is plain and _kernels.of_recursions(2**12) is cpu


def test_a_line_tells_of_a_compilation(monkeypatch):
    lines = []
    _kernels.of_recursions(2**12 - 1, lines.append)
    monkeypatch.setattr(_kernels, "_is_cached", lambda *names: False)
    _kernels.of_recursions(2**12, lines.append)
    _kernels.of_recursions(2**12)
    assert len(lines) == 1 and "compiling" in lines[0]


def _nystroem(X):
    return ClusterNystroem(300, kernel="laplacian", centers="random", random_state=0).fit(X)


def _attention(X):
    return ApproxKernelAttention(OptimalPositiveRF(64, random_state=0))(X / 8, X / 8, X)


SAMPLER = RFFSampler(300, random_state=0)
CALLS = {
    "sines": lambda X: clone(SAMPLER).fit(X).transform,
    "exponentials": lambda X: OptimalPositiveRF(300, random_state=0).fit(X).transform,
    "transforms": lambda X: clone(SAMPLER).set_params(projection="hadamard").fit(X).transform,
    "distances": lambda X: _nystroem(X).transform,
    "attention": lambda X: _attention,
    "regression": lambda X: KernelRegressor(SAMPLER).fit(X, X[:, 0]).predict,
}


@pytest.mark.filterwarnings("ignore::skrf.exceptions.FeatureCollapseWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CALLS)
def test_equal_calls_return_equal_bits(name, dtype):
    """After large and small calls, and with any number of threads but where BLAS uses them."""
    X = np.random.default_rng(0).normal(size=(3001, 140)).astype(dtype) / 12
    call = CALLS[name](X)
    few = call(X[:20])
    expected = call(X)
    for n_threads in (1,) if name == "attention" else (1, 2, 4):
        with threadpool_limits(n_threads, user_api="blas"):
            np.testing.assert_array_equal(call(X), expected)
    np.testing.assert_array_equal(call(X[:20]), few)
    np.testing.assert_array_equal(CALLS[name](X)(X), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["sines", "exponentials", "transforms"])
def test_rows_alone_are_those_of_a_batch_to_rounding(name, dtype):
    """Products of 140 terms, of size 1, and exponentials that have them as logarithms."""
    X = np.random.default_rng(0).normal(size=(3001, 140)).astype(dtype) / 12
    call = CALLS[name](X)
    together = call(X)
    largest = abs(together).max(axis=1, keepdims=True)
    for i in (0, 1500, 3000):
        error = abs(call(X[i : i + 1]) - together[i])
        assert (error <= 64 * np.finfo(dtype).eps * largest[i]).all()


def test_threads_of_a_first_call_compile_once(monkeypatch):
    made = []

    def slow(**options):
        made.append(options["cache"])
        return lambda function: lambda *args: threading.Event().wait(0.05) or function(*args)

    monkeypatch.setattr(cpu, "njit", slow)
    kernel, results = cpu._Kernel(_total), []
    threads = [
        threading.Thread(target=lambda: results.append(kernel(np.arange(4.0)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [True] and results == [6.0] * 4

    monkeypatch.undo()

    def broken(x):
        raise ValueError("of its own")

    with pytest.raises(ValueError, match="of its own"):
        cpu._Kernel(broken)(np.zeros(1))


def _total(x):
    return x.sum()
