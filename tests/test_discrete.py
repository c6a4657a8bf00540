"""Poisson and geometric features against their products and sums."""

import numpy as np
import pytest
from instances import features, make
from numpy.testing import assert_allclose
from samples import X, fitted
from scipy.special import factorial, gammaln
from scipy.stats import geom, poisson


@pytest.mark.parametrize("per_feature", [True, False])
@pytest.mark.parametrize("name", ["PoissonRF", "GeometricRF"])
def test_discrete_features_are_products_of_powers(name, per_feature):
    reference = fitted(name, keys=None, per_feature=per_feature, n_components=12)
    counts, Z = reference.omega_, X - reference.offset_
    if name == "PoissonRF":
        masses = poisson.pmf(counts, np.broadcast_to(reference.lambda_, 4))
    else:
        masses = geom.pmf(counts + 1, np.broadcast_to(reference.p_, 4))
    powers = Z[:, None, :] ** counts / np.sqrt(factorial(counts) * masses)
    expected = np.exp(-(Z**2).sum(axis=1) / 2)[:, None] * powers.prod(axis=2) / np.sqrt(12)
    assert_allclose(reference.transform(X), expected, rtol=1e-10, atol=1e-14)
    assert (expected < 0).any()
    assert (expected == 0).any() == per_feature  # a shared parameter shifts the zeros away


@pytest.mark.parametrize("name", ["PoissonRF", "GeometricRF"])
def test_discrete_variance_is_the_sum_over_all_counts(name):
    """One column, counts to 400: the second moment by brute force, per_feature and positive."""
    k = np.arange(400)
    for positive in (False, True):
        reference = fitted(name, X[:, :1], None, positive=positive, n_components=1)
        law = reference._fitted.spec._law(reference._fitted.learned)
        log_mass = (
            poisson.logpmf(k, law.lam[0]) if name == "PoissonRF" else geom.logpmf(k + 1, law.p[0])
        )
        z = X[:5, :1] - reference.offset_
        product = z @ z.T
        # 0^0 = 1: a product of 0 has its whole second moment at a count of 0.
        size = np.maximum(np.abs(product), 1e-300)[..., None]
        logs = 2 * (k * np.log(size) - gammaln(k + 1)) - log_mass
        outer = np.exp(-np.add.outer((z**2).ravel(), (z**2).ravel()))
        second = outer * np.exp(logs).sum(axis=-1)
        expected = second - reference.exact_kernel(X[:5, :1]) ** 2
        assert_allclose(reference.kernel_variance(X[:5, :1]), expected, rtol=1e-8, atol=1e-13)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("name", ["PoissonRF", "GeometricRF"])
def test_discrete_features_survive_huge_inputs(name, positive):
    rows = np.array([[0.0, 1e6, -1e6], [1e-6, 0.0, 1e3], [1.0, 2.0, 3.0]])
    reference = make(name, positive=positive, n_components=50, random_state=0).fit(rows)
    values = features(reference, rows)
    assert np.isfinite(values).all()
    reference = make(name, positive=positive, n_components=50, sigma=40.0, random_state=0)
    assert reference.fit(X).omega_.max() > 100
    assert np.isfinite(features(reference, X)).all()


def test_enormous_rates_are_limited():
    reference = make("PoissonRF", n_components=4, sigma=1e12, random_state=0).fit(X)
    assert reference.lambda_.max() == 1e15
    assert not np.isnan(reference.feature_maps_[0](X).values).any()


def test_a_logarithm_of_a_variance_may_be_infinite():
    rows = np.array([[1e80], [-1e80], [3e79]])
    fitted = make("PoissonRF", n_components=4, sigma=1.0, random_state=0).fit(rows)
    squares = (rows[0] - fitted.offset_) ** 2
    logs = fitted.kernel_variance(rows, log=True)
    assert_allclose(logs[0, 0], squares[0] * (squares[0] / fitted.lambda_), rtol=1e-6)
    assert (fitted.kernel_variance(1e20 * rows, log=True) == np.inf).all()


def test_a_rate_per_column_is_better_where_columns_differ():
    rows = np.random.default_rng(0).normal(size=(100, 4)) * [2.0, 1.0, 0.2, 0.1]
    each, single = (
        np.median(fitted("PoissonRF", rows, None, per_feature=flag).kernel_variance(rows, log=True))
        for flag in (True, False)
    )
    assert each < single - 0.5


@pytest.mark.parametrize("name", ["PoissonRF", "GeometricRF", "GeometricRF-single"])
@pytest.mark.parametrize("factor", [1e-300, 1e303, 1e306])
def test_a_common_factor_of_weights_does_not_matter(name, factor):
    weights = np.random.default_rng(0).uniform(50, 100, size=len(X))
    fits = [
        make(name, n_components=8, random_state=0).fit(X, sample_weight=w)
        for w in (weights, factor * weights)
    ]
    values, expected = (own.transform(X) for own in fits)
    assert_allclose(values, expected, rtol=1e-9, atol=1e-12)
