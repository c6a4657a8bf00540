"""Generalised and dense exponential features: their families, axes and sizes."""

import numpy as np
import pytest
import scipy.sparse as sp
from instances import altered
from numpy.testing import assert_allclose, assert_array_equal
from samples import X, data, fitted

from skrf import DenseExponentialRF, OptimalPositiveRF, PositiveRF, RFFSampler
from skrf.features.dense_exponential import balancing_map
from skrf.features.exponential import optimal_rho
from skrf.features.generalized_exponential import GeneralizedExponential, fit_generalized


def test_generalized_contains_its_family():
    rows = data(40, 3, seed=5)
    generalized = fitted("GeneralizedExponentialRF", rows, None, n_components=20)
    for s, other in (
        (-1, RFFSampler(20, sigma=1.0)),
        (1, PositiveRF(10, sigma=1.0)),
        (1, OptimalPositiveRF(10, sigma=1.0)),
    ):
        other = other.set_params(random_state=0).fit(rows)
        A = complex(getattr(other, "A_", 0.0))
        generalized = altered(generalized, A_=A, s_=s, n_projections=10)
        assert_allclose(
            generalized.approximate_kernel(rows), other.approximate_kernel(rows), rtol=1e-12
        )
        assert_allclose(
            generalized.kernel_variance(rows, log=True)[0, 1:],
            other.kernel_variance(rows, log=True)[0, 1:],
            rtol=1e-7,
        )


@pytest.mark.parametrize("n_features", [1, 4, 64])
def test_generalized_is_never_worse_than_its_members(n_features):
    for sums in ((0.1, 0.1), (8.0, 8.0), (1.0, 60.0), (60.0, 1.0), (300.0, 300.0)):
        means = {1: sums[0], -1: sums[1]}
        norms2 = sum(sums) / 2

        def objective(A, s, means=means, norms2=norms2):
            nonlinearity = GeneralizedExponential(A, s)
            return nonlinearity.log_second_moment(means[s], n_features) - (s + 1) * norms2

        best = objective(*fit_generalized(means, norms2, n_features))
        optimal = (1 - 1 / optimal_rho(means[1], n_features)) / 8
        for A, s in ((0j, -1), (0j, 1), (complex(optimal), 1)):
            assert best <= objective(A, s) + 1e-8 * (1 + abs(best))


def test_generalized_fits_data_of_any_size():
    """Steps of the line search left the half plane for a third of such data."""
    for seed, scale in enumerate(3 * (1e3, 1e4, 1e6, 1e9)):
        rows = scale * np.random.default_rng(seed).normal(size=(20, 4))
        generalized = fitted("GeneralizedExponentialRF", rows, rows[:5] + scale)
        assert np.isfinite(generalized.A_) and 1 - 8 * generalized.A_.real > 0
        assert np.isfinite(generalized.feature_maps_[0](rows[:3]).values).all()


def test_dense_follows_the_axes_of_the_data():
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    rows = rng.normal(size=(400, 3)) * [3.0, 1.0, 0.1] @ turn
    dense = fitted("DenseExponentialRF", rows, None)
    second_moment = 2 * np.cov(rows.T, bias=True)
    turned = dense.rotation_ @ second_moment @ dense.rotation_.T
    assert_allclose(turned, np.diag(np.diagonal(turned)), atol=1e-10)
    expected = [optimal_rho(value, 1) for value in np.diagonal(turned)]
    assert_allclose(dense.rho_, expected, rtol=1e-10)


def test_balancing_gives_one_covariance_and_keeps_products():
    rng = np.random.default_rng(0)
    Cx, Cy = (A @ A.T for A in rng.normal(size=(2, 4, 4)))
    S, inverse = balancing_map(Cx, Cy)
    assert_allclose(S.T @ inverse, np.eye(4), atol=1e-10)
    ridged = (C + 1e-3 * np.trace(C) / 4 * np.eye(4) for C in (Cx, Cy))
    x, y = (A @ C @ A.T for A, C in zip((S, inverse), ridged, strict=True))
    assert_allclose(x, y, rtol=1e-10, atol=1e-10)
    for nothing in (balancing_map(0 * Cx, Cy), balancing_map(Cx, 0 * Cy)):
        assert_array_equal(nothing, [np.eye(4), np.eye(4)])
    with pytest.raises(ValueError, match="asymmetric=True.*softmax.*gaussian"):
        DenseExponentialRF(asymmetric=True).fit(X)


def asymmetric():
    return DenseExponentialRF(12, asymmetric=True, kernel="softmax", sigma=0.7, random_state=0)


def test_without_keys_nothing_is_balanced():
    plain = asymmetric().set_params(asymmetric=False).fit(X)
    parts = asymmetric().partial_fit(X[:9]).partial_fit(X[9:])
    for model in (asymmetric().fit(X), parts):
        assert model.is_symmetric
        for method in ("log_transform", "log_transform_keys"):
            values, expected = (getattr(each, method)(X) for each in (model, plain))
            assert_allclose(values, expected, rtol=1e-12, atol=1e-12)
    assert not asymmetric().fit(X, keys=2 * X).is_symmetric


def uneven_sets(kind, d, rng):
    """Return queries and keys with directions in which one of them hardly varies, or not at all."""
    X, Y = rng.normal(size=(2, 60, d))
    if kind == "flat":
        return X[:, :3] @ rng.normal(size=(3, d)), Y[:, :2] @ rng.normal(size=(2, d))
    if kind == "few rows":
        return X[:5], Y[:4]
    if kind == "columns of many sizes":
        return X * np.logspace(-4, 1, d), Y * np.logspace(1, -4, d)
    if kind == "far":
        return X + 30, Y - 20
    return X, np.full_like(Y, 0.1)


@pytest.mark.parametrize(
    "kind, d",
    [("flat", 8), ("few rows", 40), ("columns of many sizes", 8), ("far", 3), ("constant keys", 8)],
)
def test_balancing_does_not_depend_on_order_batches_or_containers(kind, d):
    rng = np.random.default_rng(0)
    X, Y = uneven_sets(kind, d, rng)
    fitted, batches = asymmetric().fit(X, keys=Y), asymmetric()
    for rows, keys in zip(np.array_split(X, 3), np.array_split(Y, 3), strict=True):
        batches.partial_fit(rows, keys=keys)
    others = {
        "order": asymmetric().fit(rng.permutation(X), keys=rng.permutation(Y)),
        "sparse": asymmetric().fit(sp.csr_array(X), keys=sp.csr_array(Y)),
        "batches": batches,
    }
    for name, other in others.items():
        for method, rows in (("log_transform", X), ("log_transform_keys", Y)):
            values, expected = (getattr(each, method)(rows) for each in (other, fitted))
            assert_allclose(values, expected, rtol=0, atol=1e-9, err_msg=name)


def test_rounding_of_the_statistics_does_not_move_the_parameter():
    rng = np.random.default_rng(0)
    for _ in range(60):
        n_features, (plus, minus) = int(rng.integers(1, 30)), 10 ** rng.uniform(-3, 3, 2)
        fits = []
        for noise in np.finfo(float).eps * rng.integers(-2, 3, (2, 3)):
            sums = {1: plus * (1 + noise[0]), -1: minus * (1 + noise[1])}
            fits.append(fit_generalized(sums, (plus + minus) / 2 * (1 + noise[2]), n_features))
        (A, sign), (again, sign_again) = fits
        assert sign == sign_again
        assert_allclose(again, A, rtol=1e-8)
