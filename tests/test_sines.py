"""Sines and cosines: compiled against plain, and the blocks and threads of `transform`."""

import tracemalloc

import numpy as np
import pytest
from instances import MECHANISMS, make
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_limits

from skrf import (
    OptimalPositiveRF,
)
from skrf._kernels import cpu, plain


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
