"""Results do not depend on the processor, the number of threads or the dtype, beyond rounding."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import processors
import pytest

# Kernels of OpenBLAS, which other libraries and processors ignore, and numbers of threads.
RUNS = [("Haswell", 1), ("Zen", 2), ("Prescott", 1)]
if {"AVX512_SKX", "X86_V4"} & {*np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])}:
    RUNS += [("SkylakeX", 2)]
TOLERANCE = {"float32": 1e-3, "float64": 1e-6}


def results_of(kernel, threads, folder):
    path = folder / f"{kernel}-{threads}"
    known = {"OPENBLAS_CORETYPE": kernel, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    known |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    command = [sys.executable, Path(processors.__file__), path]
    done = subprocess.run(
        command, env=os.environ | known, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return pickle.loads(path.read_bytes())


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return results_of(*RUNS[0], tmp_path_factory.mktemp("processors"))


def distance(one, two):
    """Return the largest difference of two arrays, relative to the largest entry."""
    if one.shape != two.shape:
        return np.inf
    is_other = one != two
    if not np.isfinite(one[is_other] + two[is_other]).all():
        return np.inf
    apart = np.abs(one[is_other] - two[is_other]).max(initial=0.0)
    return apart / (np.abs(one[np.isfinite(one)]).max(initial=0.0) or 1.0)


@pytest.mark.parametrize("run", RUNS[1:], ids=lambda run: f"{run[0]}-{run[1]}")
def test_processors_and_threads(first, run, tmp_path):
    wrong = []
    for case, (parameters, values) in results_of(*run, tmp_path).items():
        expected, expected_values = first[case]
        assert parameters.keys() == expected.keys()
        apart = {name: distance(parameters[name], expected[name]) for name in parameters}
        wrong += [(case, name, error) for name, error in apart.items() if not error < 1e-6]
        error = distance(values, expected_values)
        wrong += [(case, "predictions", error)] if not error < TOLERANCE[case[1]] else []
    assert not wrong, wrong


def test_dtypes(first):
    wrong = []
    for case, (parameters, _) in first.items():
        data_set, _, key = case
        expected, _ = first[data_set, "float64", key]
        apart = {name: distance(parameters[name], expected[name]) for name in parameters}
        wrong += [(*case, name) for name, value in apart.items() if not value < 1e-4]
    assert not wrong, wrong
