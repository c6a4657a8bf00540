"""Statistics of queries and keys: one pass, weights, merges, far data; and what is fitted to them.

Deterministic. References are computed on the whole data, two passes, or with mpmath in 50 digits.
"""

import math
import tracemalloc
from functools import reduce

import mpmath as mp
import numpy as np
import pytest
import scipy.sparse as sp
from instances import MECHANISMS, make
from scipy.optimize import minimize_scalar
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
    np.testing.assert_allclose(a.mean, b.mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(a.covariance, b.covariance, rtol=rtol, atol=rtol)


def pick(X, form):
    return sp.csr_array(X) if form == "csr" else X


# ------------------------------------------------------------------- moments of one set


# Blocks of 16 rows, and 16 parts of as many blocks: 256 rows are a border.
@pytest.mark.parametrize("n", [1, 2, 16, 17, 256, 257, 1000, 4097])
@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_one_pass_equals_numpy_on_the_whole(n, form, full, weighted, monkeypatch):
    monkeypatch.setattr("skrf.statistics._ENTRIES", 64)
    monkeypatch.setattr("skrf.statistics._BLOCK_ROWS", 16)
    rng = np.random.default_rng(n)
    X = rng.normal(2.0, 1.5, size=(n, 4)) * (rng.random((n, 4)) < 0.5)
    weights = rng.uniform(0.1, 3, size=n) if weighted else None
    with threadpool_limits(1, user_api="blas"):
        moments = Moments.of(pick(X, form), weights, full=full)
    with threadpool_limits(3, user_api="blas"):
        others = vars(Moments.of(pick(X, form), weights, full=full))
    for name, value in vars(moments).items():
        np.testing.assert_array_equal(value, others[name])
    mean = np.average(X, axis=0, weights=weights)
    np.testing.assert_array_equal(moments.minimum, X.min(axis=0))
    absolute = np.average(np.abs(X), axis=0, weights=weights)
    np.testing.assert_allclose(moments.mean_absolute, absolute, rtol=1e-13)
    covariance = np.atleast_2d(np.cov(X.T, ddof=0, aweights=weights)) if n > 1 else np.zeros((4, 4))
    assert moments.weight == pytest.approx(n if weights is None else weights.sum(), rel=1e-13)
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(moments.variances, np.diag(covariance), rtol=1e-11, atol=1e-13)
    if full:
        np.testing.assert_allclose(moments.covariance, covariance, rtol=1e-11, atol=1e-12)
    entries = np.average((X - X.mean()) ** 2) if weights is None else None
    if entries is not None:
        assert moments.entry_variance == pytest.approx(entries, rel=1e-12, abs=1e-13)


def test_products_of_wide_rows_are_held_only_while_they_are_added():
    n, d = 2000, 600
    X = np.random.default_rng(0).normal(size=(n, d))
    tracemalloc.start()
    found = Moments.of(X, full=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(found.covariance, np.cov(X.T, ddof=0), rtol=0, atol=1e-13)
    assert peak < 8 * 8 * d**2  # eight such matrices; sixteen parts would hold twice as many


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_weights_are_repetitions(form, full):
    X = data("standard")
    counts = np.random.default_rng(1).integers(0, 4, size=len(X)).astype(float)
    weighted = Moments.of(pick(X, form), counts, full=full)
    repeated = Moments.of(pick(np.repeat(X, counts.astype(int), axis=0), form), full=full)
    assert_same_moments(weighted, repeated)


def test_moments_of_float32_are_summed_in_float64():
    X = (1e3 + np.random.default_rng(0).normal(size=(5000, 2))).astype(np.float32)
    assert_same_moments(Moments.of(X), Moments.of(X.astype(np.float64)), rtol=1e-14)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("offset", [1e4, 1e7, 1e9])
def test_statistics_far_from_the_origin_keep_their_digits(offset, form, weighted, full):
    # Sixteenths of whole numbers: nothing is rounded where the offset is added.
    rng = np.random.default_rng(0)
    near = np.round(16 * rng.normal(size=(3000, 3))) / 16
    near[:, 2] -= near[:, 0] / 2
    weights = rng.uniform(0.1, 3, size=3000) if weighted else None
    X, stored = near + offset * np.array([1.0, -1.0, 0.0]), near != 0
    found = Moments.of(pick(X, form), weights, full=full)
    expected = Moments.of(near, weights, full=full)
    assert stored[:, 2].sum() < 3000
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.mean, expected.mean + X[0] - near[0], rtol=1e-15, atol=1e-13)
    parts = np.split(np.arange(3000), [1, 700, 2999])
    own = (None if weights is None else weights[part] for part in parts)
    batches = [
        Moments.of(pick(X[part], form), w, full=full) for part, w in zip(parts, own, strict=True)
    ]
    for order in (batches, batches[::-1]):
        merged = reduce(Moments.merge, order)
        np.testing.assert_allclose(merged.covariance, expected.covariance, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("factor", [1e-307, 1e-200, 1e200, 1e300])
@pytest.mark.parametrize("size", [1e-140, 1.0, 1e140])
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_a_common_factor_of_weights_changes_nothing_but_their_sum(form, size, factor):
    X, weights = size * data("standard"), np.random.default_rng(1).uniform(0.5, 1, size=40)
    found, expected = (Moments.of(pick(X, form), w) for w in (factor * weights, weights))
    assert found.weight == pytest.approx(factor * expected.weight, rel=1e-14)
    for part in ("mean", "covariance", "minimum", "mean_absolute"):
        np.testing.assert_allclose(getattr(found, part), getattr(expected, part), rtol=1e-13)
    both = found.merge(Moments.of(pick(-X, form), factor * weights))
    np.testing.assert_allclose(both.mean, 0, atol=1e-13 * size)
    np.testing.assert_allclose(both.variances, expected.variances + expected.mean**2, rtol=1e-12)


def test_weights_whose_sum_leaves_the_range_can_be_fitted_and_not_merged():
    X, weights = data("standard"), np.full(40, 1e307)
    fitted = OptimalPositiveRF(4, sigma="scale", random_state=0).fit(X, sample_weight=weights)
    expected = OptimalPositiveRF(4, sigma="scale", random_state=0).fit(X)
    np.testing.assert_allclose(fitted.transform(X), expected.transform(X), rtol=1e-12)
    before = fitted.transform(X)
    with pytest.raises(ValueError, match="sample_weight adds up to more than .* 1.8e.308"):
        fitted.partial_fit(X, sample_weight=weights)
    np.testing.assert_array_equal(fitted.transform(X), before)


def test_a_pair_of_one_set_stays_one():
    parts = [PairStatistics.of(data("standard", seed=seed)) for seed in (0, 1)]
    merged = parts[0].merge(parts[1])
    assert merged.keys is merged.queries
    other = PairStatistics.of(data("standard"), data("standard", seed=1))
    assert parts[0].merge(other).keys.weight == other.merge(parts[0]).keys.weight == 80


@pytest.mark.parametrize("full", [False, True])
def test_merge_is_associative_and_commutative_to_rounding(full):
    X = data("standard", n=60)
    a, b, c = (Moments.of(part, full=full) for part in np.split(X, [3, 20]))
    assert_same_moments(a.merge(b).merge(c), a.merge(b.merge(c)))
    assert_same_moments(a.merge(b), b.merge(a))
    assert_same_moments(a.merge(b).merge(c), Moments.of(X, full=full))


# ------------------------------------------------------------------- pairs


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("offset", ["midpoint", "zero", "other"])
@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("name", DATA)
def test_mean_squared_sum_equals_brute_force_over_all_pairs(name, form, offset, sign):
    # In 50 digits and to 1e-10 relative, also where the mean is 1e3 times the spread: the naive
    # formula of raw second moments would lose six digits there.
    X, Y = data(name), data(name, n=25, seed=1)
    weights = np.random.default_rng(2).uniform(0.5, 2, size=len(X))
    statistics = PairStatistics.of(pick(X, form), pick(Y, form), weights)
    midpoint = (np.average(X, axis=0, weights=weights) + Y.mean(axis=0)) / 2
    np.testing.assert_allclose(statistics.midpoint, midpoint, rtol=1e-13)
    shift = {"midpoint": statistics.midpoint, "zero": 0.0, "other": midpoint / 3}[offset]
    with mp.workdps(50):
        exact = [[mp.mpf(float(v)) for v in row] for row in X]
        keys = [[mp.mpf(float(v)) for v in row] for row in Y]
        c = [mp.mpf(float(v)) for v in np.broadcast_to(shift, X.shape[1])]
        total = mp.mpf(0)
        for x, weight in zip(exact, weights, strict=True):
            for y in keys:
                total += mp.mpf(float(weight)) * mp.fsum(
                    ((xl - cl) + sign * (yl - cl)) ** 2 for xl, yl, cl in zip(x, y, c, strict=True)
                )
        expected = total / (mp.fsum(float(w) for w in weights) * len(Y))
        value = statistics.mean_squared_sum(shift, sign)
        assert abs(value / expected - 1) < 1e-10


def test_far_data_in_many_blocks_keep_their_digits():
    X = data("mean 1e3 times its spread", n=10_000)
    Y = data("mean 1e3 times its spread", n=9_000, seed=1)
    statistics = PairStatistics.of(X, Y)
    x, y = X.astype(np.longdouble), Y.astype(np.longdouble)
    for sign in (1, -1):
        total = x.mean(axis=0) + sign * y.mean(axis=0) - (1 + sign) * statistics.midpoint
        expected = float((x.var(axis=0) + y.var(axis=0) + total**2).sum())
        value = statistics.mean_squared_sum(statistics.midpoint, sign)
        assert value == pytest.approx(expected, rel=1e-10)


def test_midpoint_minimises_the_mean_squared_sum():
    statistics = PairStatistics.of(data("standard") + 1, data("standard", seed=1) - 3)
    least = statistics.mean_squared_sum(statistics.midpoint)
    for step in np.vstack([np.eye(3), -np.eye(3)]) * 1e-3:
        moved = statistics.mean_squared_sum(statistics.midpoint + step)
        # |x + y - 2c|^2 grows by |2 step|^2.
        assert moved - least == pytest.approx(4e-6, rel=1e-6)


def test_queries_are_the_keys_where_none_are_given():
    X = data("standard")
    statistics = PairStatistics.of(X)
    assert statistics.keys is statistics.queries
    np.testing.assert_allclose(statistics.midpoint, X.mean(axis=0), rtol=1e-13)
    expected = ((X[:, None] + X) ** 2).sum(axis=2).mean()
    assert statistics.mean_squared_sum() == pytest.approx(expected, rel=1e-13)


def test_pair_statistics_merge_both_sides():
    X, Y = data("standard", n=30), data("standard", n=20, seed=1) + 1
    parts = [PairStatistics.of(X[a:b], Y[a:b]) for a, b in ((0, 3), (3, 11), (11, 30))]
    merged = reduce(PairStatistics.merge, parts)
    whole = PairStatistics.of(X, Y)
    assert_same_moments(merged.queries, whole.queries)
    assert_same_moments(merged.keys, whole.keys)


# ------------------------------------------------------------------- what mechanisms fit


def exact_rho(mean_squared_sum, d):
    """Return the positive root of 2 v^2 r^2 + (2 v^2 + d) r - d = 0, in 50 digits."""
    with mp.workdps(400):
        v2 = mp.mpf(mean_squared_sum)
        b = 2 * v2 + d
        return 2 * d / (b + mp.sqrt(b**2 + 8 * d * v2))


def test_root_of_the_reference_is_a_root():
    # The form above is the stable one; it must still be the root of the quadratic.
    with mp.workdps(400):
        for v2 in ("1e-30", "0.3", "1e20"):
            v2, d = mp.mpf(v2), 7
            rho = exact_rho(v2, d)
            assert rho > 0
            assert abs(2 * v2 * rho**2 + (2 * v2 + d) * rho - d) < mp.mpf(10) ** -300


@pytest.mark.parametrize("d", [1, 3, 64, 10_000])
def test_optimal_rho_over_the_whole_range(d):
    for v2 in [0.0, *np.logspace(-320, 299, 250)]:
        assert abs(optimal_rho(float(v2), d) / exact_rho(float(v2), d) - 1) < 1e-12, v2
    assert optimal_rho(0.0, d) == 1.0
    assert optimal_rho(1e307, d) >= 1e-300


@pytest.mark.parametrize("d", [1, 3, 64])
@pytest.mark.parametrize("v2", [0.01, 1.0, 30.0])
def test_optimal_rho_minimises_the_log_second_moment(v2, d):
    def objective(rho):
        return d * math.log1p((1 - math.sqrt(rho)) ** 2 / (2 * math.sqrt(rho))) + rho * v2

    least = minimize_scalar(objective, bounds=(1e-6, 1.5), options={"xatol": 1e-10}).x
    assert optimal_rho(v2, d) == pytest.approx(least, rel=1e-5)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("name", DATA)
def test_rho_of_a_fit_is_the_root_of_the_fitted_mean(name, center, sigma):
    X, Y = data(name), data(name, n=25, seed=1)
    mechanism = OptimalPositiveRF(8, sigma=sigma, center=center, random_state=0).fit(X, keys=Y)
    expected_offset = (X.mean(axis=0) + Y.mean(axis=0)) / 2 if center else np.zeros(3)
    np.testing.assert_allclose(mechanism.offset_, expected_offset, rtol=1e-13)
    # The mean of |x + y|^2 of scaled, shifted rows over all pairs, by brute force.
    sums = sigma * (X[:, None] + Y - 2 * mechanism.offset_)
    v2 = (sums**2).sum(axis=2).mean()
    assert mechanism.rho_ == pytest.approx(float(exact_rho(v2, 3)), rel=1e-9)
    fitted = sigma**2 * mechanism.statistics_.mean_squared_sum(mechanism.offset_)
    assert fitted == pytest.approx(v2, rel=1e-9)
    assert mechanism.rho_ == pytest.approx(float(exact_rho(fitted, 3)), rel=1e-12)
    assert mechanism.A_ == pytest.approx((1 - 1 / mechanism.rho_) / 8, rel=1e-14)


MERGEABLE = [name for name in MECHANISMS if hasattr(make(name, sigma="scale"), "partial_fit")]


def test_mergeable_mechanisms_are_found():
    assert {"RFFSampler", "OptimalPositiveRF", "DenseExponentialRF", "PoissonRF"} <= {*MERGEABLE}
    assert not hasattr(make("OptimalPositiveRF", sigma="median"), "partial_fit")


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("name", MERGEABLE)
def test_partial_fit_in_batches_equals_fit(name, form):
    X, keys = data("standard", n=50) + 1, data("standard", n=30, seed=1) - 2
    weights = np.random.default_rng(2).uniform(0, 2, size=50)
    weights[[3, 20, 21]] = 0
    whole = make(name, n_components=8, sigma="scale", random_state=0)
    whole.fit(pick(X, form), sample_weight=weights, keys=pick(keys, form))
    parts = make(name, n_components=8, sigma="scale", random_state=0)
    for rows, key_rows in (
        (slice(0, 5), slice(0, 20)),
        (slice(5, 30), slice(20, 21)),
        (slice(30, 50), slice(21, 30)),
    ):
        parts.partial_fit(
            pick(X[rows], form), sample_weight=weights[rows], keys=pick(keys[key_rows], form)
        )
    assert_same_moments(whole.statistics_.queries, parts.statistics_.queries)
    assert_same_moments(whole.statistics_.keys, parts.statistics_.keys)
    assert parts.sigma_ == pytest.approx(whole.sigma_, rel=1e-12)
    np.testing.assert_array_equal(parts.omega_, whole.omega_)
    # Found by a numerical minimum, p and the complex A are known to half the digits.
    rtol = 1e-6 if name.startswith(("Geometric", "Generalized")) else 1e-12
    for attribute in ("offset_", "rho_", "lambda_", "A_", "p_"):
        if hasattr(whole, attribute):
            np.testing.assert_allclose(
                getattr(parts, attribute), getattr(whole, attribute), rtol=rtol, atol=1e-13
            )
    rtol *= 100
    np.testing.assert_allclose(parts.transform(X), whole.transform(X), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("name", MECHANISMS)
def test_rows_of_weight_zero_count_as_removed(name, form):
    X = data("standard", n=20)
    weights = np.random.default_rng(1).uniform(0.5, 2, size=20)
    weights[:7] = 0
    # A removed row may hold anything finite, in any place of the pass.
    X[:7] = 1e6
    with_zeros = make(name, n_components=8, sigma="scale", random_state=0)
    with_zeros.fit(pick(X, form), sample_weight=weights)
    removed = make(name, n_components=8, sigma="scale", random_state=0)
    removed.fit(pick(X[7:], form), sample_weight=weights[7:])
    assert_same_moments(with_zeros.statistics_.queries, removed.statistics_.queries, rtol=1e-14)
    np.testing.assert_array_equal(with_zeros.transform(X[7:]), removed.transform(X[7:]))
