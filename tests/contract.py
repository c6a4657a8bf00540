"""Data, mechanisms and comparisons of the tests of what every mechanism promises.

Comparisons of two computations of the same numbers allow 1e-10 relative for float64 unless a test
says otherwise. The mathematics of the features is tested elsewhere.
"""

import os
from contextlib import contextmanager

import numpy as np
import pytest
from instances import KERNELS, PLAIN, couplings, make
from numpy.testing import assert_allclose

MECHANISMS = PLAIN
COMBINATIONS = [(name, coupling) for name in PLAIN for coupling in couplings(name)]
CLOSE = {"rtol": 1e-10, "atol": 1e-12}
KNOWN_COUPLINGS = ("iid", "orthogonal", "simplex")
POSITIVE = [name for name in MECHANISMS if make(name).is_positive]
# All parameters that mechanisms learn from data.
PARAMETERS = ("sigma_", "gamma_", "offset_", "rho_", "A_")

every_mechanism = pytest.mark.parametrize("name", MECHANISMS)
every_kernel = pytest.mark.parametrize("kernel", KERNELS)
every_positive = pytest.mark.parametrize("name", POSITIVE)


def data(n=30, d=5, seed=0):
    """Rows with a mean, some coordinates exactly 0, so that sparse and dense differ in kind."""
    rng = np.random.default_rng(seed)
    return np.round(rng.normal(0.3, 0.5, (n, d)), 3) * (rng.random((n, d)) < 0.7)


def labels(n=30):
    return np.arange(n) % 3


X = data()
Y = data(20, seed=1) + 0.2
y = labels()


def mechanism(name, **params):
    return make(name, **{"n_components": 12, "random_state": 0, **params})


def parameters(fitted):
    return {key: getattr(fitted, key) for key in PARAMETERS if hasattr(fitted, key)}


def assert_same_parameters(one, other):
    ours, theirs = parameters(one), parameters(other)
    assert ours.keys() == theirs.keys() >= {"sigma_"}
    for key, value in ours.items():
        assert_allclose(value, theirs[key], **CLOSE, err_msg=key)


def assert_same_statistics(one, other):
    for side in ("queries", "keys"):
        ours, theirs = getattr(one.statistics_, side), getattr(other.statistics_, side)
        for part in ("weight", "mean", "covariance"):
            assert_allclose(getattr(ours, part), getattr(theirs, part), **CLOSE, err_msg=part)


def frame(rows):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(rows, columns=list("abcde"), index=range(100, 100 + len(rows)))


@contextmanager
def one_warning(*words):
    """Check that the block gives one RuntimeWarning, which holds all the words."""
    with pytest.warns(RuntimeWarning) as caught:
        yield
    assert len(caught) == 1
    for word in words:
        assert word in str(caught[0].message)
    # It points at the caller.
    assert os.path.basename(caught[0].filename).startswith("test_")
