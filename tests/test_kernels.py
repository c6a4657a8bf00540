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
from skrf import RFFSampler
from skrf._kernels import cpu

SINES = """
import numpy as np
from skrf._kernels import cpu

X = np.eye(16)
for dtype in (np.float32, np.float64):
    for is_writeable in (True, False):
        X, out = X.astype(dtype), np.empty((16, 32), dtype)
        X.flags.writeable = is_writeable
        cpu.sine_cosine(X, None, out)
        assert np.allclose(out, np.hstack([np.cos(X), np.sin(X)]), rtol=0, atol=1e-6)
"""
PRODUCTS = """
for dtype in (np.float32, np.float64):
    for is_writeable in (True, False):
        X, ones = np.eye(16, dtype=dtype), np.ones((1, 3, 16), dtype)
        X.flags.writeable = is_writeable
        assert np.isfinite(cpu.project(X, ones, ones[0, 0], False, np.empty_like(X))).all()
"""
HERE = {"PYTHONPATH": str(Path(skrf.__file__).parents[1])}
LARGE = """
import sys

import numpy as np
from skrf import RFFSampler

X = np.random.default_rng(0).normal(size=(2**15, 144))
sampler = RFFSampler(512, projection="hadamard", random_state=0, sigma=1.0)
np.save(sys.stdout.buffer, sampler.fit_transform(X)[:50])
assert "skrf._kernels.cpu" in sys.modules
"""


def run(script, **environment):
    """Return what a script prints in a process of its own."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    command = [sys.executable, "-P", "-W", "error", "-c", script]  # -P: not this folder's package
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
    (tmp_path / "out.npy").write_bytes(run(LARGE, **sealed))
    X = np.random.default_rng(0).normal(size=(2**15, 144))[:50]
    expected = RFFSampler(512, projection="hadamard", random_state=0, sigma=1.0).fit(X).transform(X)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=0, atol=1e-13)


def test_no_two_compiled_versions_share_a_file_and_damaged_ones_cost_only_time(tmp_path):
    # Numba numbers the versions, and two processes at once give two of them the same number.
    folder = {"NUMBA_CACHE_DIR": str(tmp_path), **HERE}
    run(SINES + PRODUCTS, **folder)
    run(SINES, NUMBA_CPU_NAME="generic", **folder)
    files = sorted(tmp_path.rglob("*.nb[ic]"))
    assert len(files) == 2 * 6 and not any(path.name.endswith(".2.nbc") for path in files)
    for path in files:
        path.write_bytes(path.read_bytes()[:20] if path is files[0] else b"")
    run(SINES, **folder)


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
