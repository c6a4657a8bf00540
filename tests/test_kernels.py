"""Compiled kernels and numba's cache of them: where there is none, damage, several dtypes."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import skrf
from skrf import RFFSampler, _kernels
from skrf._kernels import cpu, plain

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
from skrf import RFFSampler, _kernels

X = np.random.default_rng(0).normal(size=(2**11, 256))
_kernels.MANY_TRANSFORMED = X.shape[0] * 256 * 3 * 2 // 4  # without a cache, four times that
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
    sines = cpu._sine_cosine if dtype == np.float64 else cpu._sine_cosine_single
    for kernel in (cpu._project_rows, sines):
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


def test_distances_are_compiled_once_many_have_been_needed(monkeypatch):
    X, called = np.ones((20, 2)), []
    for module in (cpu, plain):
        name = module.__name__.rpartition(".")[2]
        monkeypatch.setattr(module, "city_block", lambda X, Y, name=name: called.append(name))
    monkeypatch.setattr(_kernels, "_SMALL", 800)
    monkeypatch.setattr(_kernels, "MANY_DIFFERENCES", 2000)
    monkeypatch.setattr(_kernels, "_subtracted", 0)
    for n in (19, 20, 20, 20, 1):  # the first is too small to count
        _kernels.city_block(X, X[:n])
    assert called == ["plain"] * 3 + ["cpu"] * 2


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
