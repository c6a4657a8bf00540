"""Exact and estimated kernels, and what mechanisms claim about their errors."""

import re
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from contract import (
    CLOSE,
    KNOWN_COUPLINGS,
    X,
    Y,
    every_kernel,
    every_mechanism,
    every_positive,
    mechanism,
)
from instances import COMBINATIONS, KERNELS, MECHANISMS, PLAIN, make
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.metrics.pairwise import linear_kernel, rbf_kernel

from skrf import RFFSampler
from skrf._arrays import squared_distances


@pytest.mark.parametrize("name", MECHANISMS)
def test_claims_hold(name):
    fitted = make(name, n_components=24, random_state=0).fit(X, keys=Y)
    sides = fitted.transform(X), fitted.transform_keys(X)
    assert np.array_equal(*sides) == fitted.is_symmetric
    assert fitted.is_unbiased == ("regularized" not in name)
    assert hasattr(fitted, "log_transform") == fitted.is_positive
    assert hasattr(fitted, "log_transform_keys") == fitted.is_positive
    if not fitted.is_positive:
        assert (sides[0] < 0).any()
        return
    logs = fitted.log_transform(X), fitted.log_transform_keys(X)
    for log_features, features in zip(logs, sides, strict=True):
        assert_allclose(np.exp(log_features), features, **CLOSE)
        assert (features > 0).any(axis=1).all()
        # Zero only in blocks of other clusters, which no draw moves.
        assert (features == 0).any() == (name == "HybridRF-clustered")
    assert_array_equal(sides[0] == 0, fitted.redraw(1).log_transform(X) == -np.inf)


@every_mechanism
def test_exact_kernels_are_those_of_scikit_learn(name):
    for sigma in (0.3, "scale"):
        gaussian = mechanism(name, sigma=sigma).fit(X, keys=Y)
        expected = rbf_kernel(X, Y, gamma=gaussian.gamma_)
        assert_allclose(gaussian.exact_kernel(X, Y), expected, **CLOSE)
        assert_allclose(np.diagonal(gaussian.exact_kernel(X)), 1.0, rtol=1e-15)
        softmax = mechanism(name, sigma=sigma, kernel="softmax").fit(X, keys=Y)
        expected = np.exp(softmax.sigma_**2 * linear_kernel(X, Y))
        assert_allclose(softmax.exact_kernel(X, Y), expected, **CLOSE)


@every_positive
@every_kernel
def test_centring_takes_out_a_shift_of_the_data(name, kernel):
    shift = np.array([3.0, -2.0, 0.5, 1.0, 4.0])
    fitted = mechanism(name, kernel=kernel, center=False).fit(X, keys=Y)
    assert_array_equal(fitted.offset_, np.zeros(5))
    centred = mechanism(name, kernel=kernel).fit(X - X.mean(axis=0))
    plain = mechanism(name, kernel=kernel, center=False).fit(X - X.mean(axis=0))
    assert_allclose(plain.transform(Y), centred.transform(Y), rtol=1e-9)
    if kernel == "gaussian":
        here, there = mechanism(name).fit(X), mechanism(name).fit(X + shift)
        moved = there.approximate_kernel(X + shift)
        assert_allclose(moved, here.approximate_kernel(X), rtol=1e-8)
        off_centre = plain.fit(X + shift).approximate_kernel(X + shift)
        assert not np.allclose(off_centre, plain.fit(X).approximate_kernel(X), rtol=0.1)


@pytest.mark.parametrize(("name", "coupling"), COMBINATIONS)
def test_variances_are_known_or_say_what_is(name, coupling):
    for kernel in KERNELS:
        params = {"n_components": 24, "kernel": kernel, "sigma": 0.7, "random_state": 0}
        fitted = make(name, coupling, **params).fit(X, keys=Y)
        try:
            variances = fitted.kernel_variance(X, Y)
        except NotImplementedError as error:
            with pytest.raises(AttributeError, match=re.escape(str(error))):
                fitted.kernel_variance_is_exact_  # noqa: B018
            if name in PLAIN:
                assert fitted.coupling not in KNOWN_COUPLINGS
                assert all(repr(word) in str(error) for word in (fitted.coupling, *KNOWN_COUPLINGS))
            continue
        logs = fitted.kernel_variance(X, Y, log=True)
        assert variances.shape == logs.shape == (30, 20)
        assert (variances > 0).all() and np.isfinite(logs).all()
        assert_allclose(np.log(variances), logs, rtol=1e-10, atol=1e-10)
        assert fitted.kernel_variance_is_exact_ in ({True} if name in PLAIN else {True, False})
        assert name not in PLAIN or fitted.coupling in KNOWN_COUPLINGS
        assert_allclose(fitted.kernel_variance(X), fitted.kernel_variance(X, X), **CLOSE)
        if name == "RFFSampler":  # estimates on the diagonal are exact
            logs = fitted.kernel_variance(X, log=True)
            assert kernel == "softmax" or np.isneginf(np.diagonal(logs)).all()


def test_rows_far_from_zero_keep_the_digits_of_their_differences():
    steps = np.random.default_rng(0).integers(-8, 9, (12, 3)) / 8.0  # sums with 1e9 are exact
    for kernel, convert in product(
        ("gaussian", "laplacian", "matern32"), (np.asarray, sp.csr_array)
    ):
        features = RFFSampler(8, coupling="iid", kernel=kernel, sigma=0.3, random_state=0)
        near, far = (convert(offset + steps) for offset in (0.0, 1e9))
        for method in ("exact_kernel", "kernel_variance"):
            here, there = (
                getattr(clone(features).fit(rows), method)(rows, log=True) for rows in (near, far)
            )
            assert_allclose(there, here, rtol=1e-12)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_many_near_rows_keep_the_digits_of_their_differences(form):
    """More pairs than are subtracted at once where rows are wide or sparse."""
    rows = 1.0 + 1e-6 * np.random.default_rng(0).normal(size=(70, 256))
    expected = cdist(rows, rows, "sqeuclidean")
    assert_allclose(squared_distances(form(rows), form(rows)), expected, rtol=1e-9)


@pytest.mark.parametrize("kernel", ["gaussian", "softmax"])
def test_rows_beyond_the_range_are_named(kernel):
    fitted = mechanism("OptimalPositiveRF", kernel=kernel).fit(X)
    for method in ("exact_kernel", "approximate_kernel", "kernel_variance"):
        for rows, said in (((1e160 * X, Y), "X"), ((X, -1e160 * Y), "Y")):
            with pytest.raises(ValueError, match=f"{said} is too large .* entry of {said} is"):
                getattr(fitted, method)(*rows)
