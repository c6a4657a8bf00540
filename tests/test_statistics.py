"""Statistics of queries and keys: one pass, weights, merges, far data; and what is fitted to them.

Deterministic. References are computed on the whole data, two passes, or with mpmath in 50 digits.
"""

import math
import tracemalloc
from functools import reduce
from itertools import product

import mpmath as mp
import numpy as np
import pytest
import scipy.sparse as sp
from instances import MECHANISMS, make
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize_scalar
from sklearn.base import clone
from threadpoolctl import threadpool_limits

from skrf import OptimalPositiveRF
from skrf.features.exponential import optimal_rho
from skrf.statistics import Moments, PairStatistics

# Name: (centre, spread) of data; each is seen by one fit.
DATA = {
    "standard": (0.0, 1.0),
    "mean 1e3 times its spread": (1e3, 1.0),
    "mean -1e3 times its spread": (-1e3, 1.0),
    "size 1e-8": (3e-8, 1e-8),
    "size 1e8": (3e8, 1e8),
}


def data(name, n=40, d=3, seed=0):
    centre, spread = DATA[name]
    return np.random.default_rng(seed).normal(centre, spread, size=(n, d))


def assert_same_moments(a, b, rtol=1e-12):
    assert a.weight == pytest.approx(b.weight, rel=rtol)
    assert_allclose(a.mean, b.mean, rtol=rtol, atol=rtol)
    assert_allclose(a.covariance, b.covariance, rtol=rtol, atol=rtol)


FORMS = np.asarray, sp.csr_array


# ------------------------------------------------------------------- moments of one set


# Blocks of 2048 rows of 64 columns, of 1024 sparse rows; 16 parts of as many blocks: 32,768 rows
# are a border.
# Blocks of 2048 rows of 64 columns, of 1024 sparse rows; 16 parts of as many blocks: 32,768 rows
# are a border.
@pytest.mark.parametrize(("n", "d"), [(1, 4), (17, 4), (2100, 64), (33_000, 64)])
def test_one_pass_equals_numpy_on_the_whole(n, d):
    rng = np.random.default_rng(n)
    X = rng.normal(2.0, 1.5, size=(n, d)) * (rng.random((n, d)) < 0.5)
    forms = FORMS if n < 30_000 else [np.asarray]  # sparse rows have no other border
    for form, full, weights in product(forms, (False, True), (None, rng.uniform(0.1, 3, size=n))):
        with threadpool_limits(1, user_api="blas"):
            moments = Moments.of(form(X), weights, full=full)
        with threadpool_limits(3, user_api="blas"):
            others = vars(Moments.of(form(X), weights, full=full))
        for name, value in vars(moments).items():
            assert_array_equal(value, others[name])
        mean = np.average(X, axis=0, weights=weights)
        covariance = np.cov(X.T, ddof=0, aweights=weights) if n > 1 else np.zeros((d, d))
        assert moments.weight == pytest.approx(n if weights is None else weights.sum(), rel=1e-13)
        assert_array_equal(moments.minimum, X.min(axis=0))
        absolute = np.average(np.abs(X), axis=0, weights=weights)
        assert_allclose(moments.mean_absolute, absolute, rtol=1e-13)
        assert_allclose(moments.mean, mean, rtol=1e-12, atol=1e-13)
        assert_allclose(moments.variances, np.diag(covariance), rtol=1e-11, atol=1e-13)
        if full:
            assert_allclose(moments.covariance, covariance, rtol=1e-11, atol=1e-12)
        if weights is None:
            assert moments.entry_variance == pytest.approx(X.var(), rel=1e-12, abs=1e-13)


def test_products_of_wide_rows_are_held_only_while_they_are_added():
    n, d = 2000, 600
    X = np.random.default_rng(0).normal(size=(n, d))
    tracemalloc.start()
    moments = Moments.of(X, full=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert_allclose(moments.covariance, np.cov(X.T, ddof=0), rtol=0, atol=1e-13)
    assert peak < 8 * 8 * d**2  # eight such matrices; sixteen parts would hold twice as many


def test_moments_of_float32_are_summed_in_float64():
    X = (1e3 + np.random.default_rng(0).normal(size=(5000, 2))).astype(np.float32)
    assert_same_moments(Moments.of(X), Moments.of(X.astype(np.float64)), rtol=1e-14)


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e9])
def test_statistics_and_their_merges_keep_their_digits(offset):
    # Sixteenths of whole numbers: nothing is rounded where the offset is added.
    rng = np.random.default_rng(0)
    near = np.round(16 * rng.normal(size=(3000, 3))) / 16
    near[:, 2] -= near[:, 0] / 2
    X, weights = near + offset * np.array([1.0, -1.0, 0.0]), rng.uniform(0.1, 3, size=3000)
    for form, full in product(FORMS, (False, True)):
        whole, expected = (Moments.of(form(Z), weights, full=full) for Z in (X, near))
        mean = expected.mean + X[0] - near[0]
        places = np.split(np.arange(3000), [1, 700, 2999])
        batches = [Moments.of(form(X[batch]), weights[batch], full=full) for batch in places]
        merged, turned = reduce(Moments.merge, batches), reduce(Moments.merge, batches[::-1])
        for moments in (whole, merged, turned):
            assert_allclose(moments.covariance, expected.covariance, rtol=1e-10, atol=1e-12)
            assert_allclose(moments.mean, mean, rtol=1e-15, atol=1e-13)
            assert moments.weight == pytest.approx(weights.sum(), rel=1e-13)
            assert_allclose(moments.minimum, whole.minimum, rtol=1e-12)
            assert_allclose(moments.mean_absolute, whole.mean_absolute, rtol=1e-12)


def test_a_common_factor_of_weights_changes_nothing_but_their_sum():
    weights = np.random.default_rng(1).uniform(0.5, 1, size=40)
    for factor, size, form in product((1e-307, 1e-200, 1e300), (1e-140, 1.0, 1e140), FORMS):
        X = size * data("standard")
        scaled, expected = (Moments.of(form(X), w) for w in (factor * weights, weights))
        assert scaled.weight == pytest.approx(factor * expected.weight, rel=1e-14)
        for name in ("mean", "covariance", "minimum", "mean_absolute"):
            assert_allclose(getattr(scaled, name), getattr(expected, name), rtol=1e-13)
        both = scaled.merge(Moments.of(form(-X), factor * weights))
        assert_allclose(both.mean, 0, atol=1e-13 * size)
        assert_allclose(both.variances, expected.variances + expected.mean**2, rtol=1e-12)


def test_weights_whose_sum_leaves_the_range_can_be_fitted_and_not_merged():
    X, weights = data("standard"), np.full(40, 1e307)
    fitted = OptimalPositiveRF(4, sigma="scale", random_state=0).fit(X, sample_weight=weights)
    expected = OptimalPositiveRF(4, sigma="scale", random_state=0).fit_transform(X)
    assert_allclose(fitted.transform(X), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="sample_weight adds up to more than .* 1.8e.308"):
        fitted.partial_fit(X, sample_weight=weights)
    assert_allclose(fitted.transform(X), expected, rtol=1e-12)


# ------------------------------------------------------------------- pairs


@pytest.mark.parametrize("name", DATA)
def test_mean_squared_sum_equals_brute_force_over_all_pairs(name):
    # In 50 digits and to 1e-10 relative, also where the mean is 1e3 times the spread: the naive
    # formula of raw second moments would lose six digits there.
    X, Y = data(name), data(name, n=25, seed=1)
    weights = np.random.default_rng(2).uniform(0.5, 2, size=len(X))
    midpoint = (np.average(X, axis=0, weights=weights) + Y.mean(axis=0)) / 2
    kinds = [PairStatistics.of(form(X), form(Y), weights) for form in FORMS]
    for statistics in kinds:
        assert_allclose(statistics.midpoint, midpoint, rtol=1e-13)
    exact = np.vectorize(mp.mpf, otypes=[object])
    for shift, sign in ((midpoint, 1), (midpoint / 3, 1), (midpoint / 3, -1)):
        with mp.workdps(50):
            x, y = exact(X) - exact(shift), exact(Y) - exact(shift)
            squares = np.sum((x[:, None] + sign * y) ** 2, axis=2).sum(axis=1) / len(Y)
            expected = exact(weights) @ squares / exact(weights).sum()
            for statistics in kinds:
                assert abs(statistics.mean_squared_sum(shift, sign) / expected - 1) < 1e-10


def test_pair_statistics_merge_both_sides():
    X, Y = data("standard", n=30), data("standard", n=20, seed=1) + 1
    parts = [PairStatistics.of(X[a:b], Y[a:b]) for a, b in ((0, 3), (3, 11), (11, 30))]
    merged, whole = reduce(PairStatistics.merge, parts), PairStatistics.of(X, Y)
    assert_same_moments(merged.queries, whole.queries)
    assert_same_moments(merged.keys, whole.keys)
    # Keys that are the queries stay so, unless other keys join them.
    alone = PairStatistics.of(X)
    assert_allclose(alone.midpoint, X.mean(axis=0), rtol=1e-13)
    expected = ((X[:, None] + X) ** 2).sum(axis=2).mean()
    assert alone.mean_squared_sum() == pytest.approx(expected, rel=1e-13)
    both = alone.merge(PairStatistics.of(Y))
    assert both.keys is both.queries
    assert alone.merge(whole).keys.weight == whole.merge(alone).keys.weight == 50


# ------------------------------------------------------------------- what mechanisms fit


def exact_rho(mean_squared_sum, d):
    """Return the positive root of 2 v^2 r^2 + (2 v^2 + d) r - d = 0, in 50 digits."""
    with mp.workdps(400):
        v2 = mp.mpf(mean_squared_sum)
        b = 2 * v2 + d
        return 2 * d / (b + mp.sqrt(b**2 + 8 * d * v2))


def test_optimal_rho_over_the_whole_range():
    for d in (1, 3, 64, 10_000):
        for v2 in [0.0, *np.logspace(-320, 299, 63)]:
            assert abs(optimal_rho(float(v2), d) / exact_rho(float(v2), d) - 1) < 1e-12, v2
        assert optimal_rho(0.0, d) == 1.0
        assert optimal_rho(1e307, d) >= 1e-300


def test_optimal_rho_minimises_the_log_second_moment():
    for d, v2 in product((1, 3, 64), (0.01, 1.0, 30.0)):

        def objective(rho, d=d, v2=v2):
            return d * math.log1p((1 - math.sqrt(rho)) ** 2 / (2 * math.sqrt(rho))) + rho * v2

        least = minimize_scalar(objective, bounds=(1e-6, 1.5), options={"xatol": 1e-10}).x
        assert optimal_rho(v2, d) == pytest.approx(least, rel=1e-5)


@pytest.mark.parametrize("name", DATA)
def test_rho_of_a_fit_is_the_root_of_the_mean_over_all_pairs(name):
    X, Y = data(name), data(name, n=25, seed=1)
    for sigma, center in ((0.3, True), (2.5, True), (1.0, False)):
        fitted = OptimalPositiveRF(8, sigma=sigma, center=center, random_state=0).fit(X, keys=Y)
        expected_offset = (X.mean(axis=0) + Y.mean(axis=0)) / 2 if center else np.zeros(3)
        assert_allclose(fitted.offset_, expected_offset, rtol=1e-13)
        sums = sigma * (X[:, None] + Y - 2 * fitted.offset_)
        v2 = (sums**2).sum(axis=2).mean()
        assert fitted.rho_ == pytest.approx(float(exact_rho(v2, 3)), rel=1e-9)
        learnt = sigma**2 * fitted.statistics_.mean_squared_sum(fitted.offset_)
        assert fitted.rho_ == pytest.approx(float(exact_rho(learnt, 3)), rel=1e-12)
        assert fitted.A_ == pytest.approx((1 - 1 / fitted.rho_) / 8, rel=1e-14)


MERGEABLE = [name for name in MECHANISMS if hasattr(make(name, sigma="scale"), "partial_fit")]
assert {"RFFSampler", "OptimalPositiveRF", "DenseExponentialRF", "PoissonRF"} <= {*MERGEABLE}


@pytest.mark.parametrize("name", MERGEABLE)
def test_partial_fit_in_batches_equals_fit(name):
    X, keys = data("standard", n=50) + 1, data("standard", n=30, seed=1) - 2
    weights = np.random.default_rng(2).uniform(0, 2, size=50)
    weights[[3, 20, 21]] = 0
    # Found by a numerical minimum, p and the complex A are known to half the digits.
    rtol = 1e-6 if name.startswith(("Geometric", "Generalized")) else 1e-12
    for form in FORMS:
        whole = make(name, n_components=8, sigma="scale", random_state=0)
        batched = clone(whole)
        whole.fit(form(X), sample_weight=weights, keys=form(keys))
        for a, b, first, last in ((0, 5, 0, 20), (5, 30, 20, 21), (30, 50, 21, 30)):
            given = {"sample_weight": weights[a:b], "keys": form(keys[first:last])}
            assert batched.partial_fit(form(X[a:b]), **given) is batched
        assert_same_moments(whole.statistics_.queries, batched.statistics_.queries)
        assert_same_moments(whole.statistics_.keys, batched.statistics_.keys)
        assert batched.sigma_ == pytest.approx(whole.sigma_, rel=1e-12)
        assert_array_equal(batched.omega_, whole.omega_)
        for attribute in ("offset_", "rho_", "lambda_", "A_", "p_"):
            if hasattr(whole, attribute):
                learnt, expected = getattr(batched, attribute), getattr(whole, attribute)
                assert_allclose(learnt, expected, rtol=rtol, atol=1e-13)
        expected = whole.transform(X)
        assert_allclose(batched.transform(X), expected, rtol=100 * rtol, atol=100 * rtol)
