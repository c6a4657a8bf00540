"""HybridRF: columns, formula and blocks."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from samples import X, Y, fitted
from scipy.spatial.distance import cdist
from sklearn.base import clone

from skrf import HybridRF, OptimalPositiveRF, PositiveRF, RFFSampler, theory
from skrf._sums import log_estimate
from skrf.features import Coefficients


def test_a_single_cluster_is_its_base_and_pairs_meet_in_one_block():
    hybrid = fitted("HybridRF-clustered", keys=None, n_clusters=1)
    positive = OptimalPositiveRF(24, random_state=0, sigma=1.0).fit(X)
    assert_allclose(hybrid.rho_, positive.rho_, rtol=1e-9)
    # Centres stand where they should to 1e-10 of the width of the data.
    assert_allclose(hybrid.transform(Y), positive.transform(Y), rtol=1e-9)
    assert_allclose(hybrid.transform_keys(Y), positive.transform(Y), rtol=1e-9)
    for name in ("HybridRF-clustered", "HybridRF-complex"):
        reference = fitted(name, n_components=48)
        queries, keys = (
            (np.abs(rows).reshape(len(rows), 4, 12) > 0).any(axis=2)
            for rows in (reference.transform(X), reference.transform_keys(Y))
        )
        assert ((queries[:, None] & keys).sum(axis=2) == 1).all()


def test_variance_of_clusters_is_that_of_optimal_features_about_their_centres():
    hybrid = fitted("HybridRF-clustered", keys=Y, n_clusters=2, coupling="iid")
    queries, keys = hybrid.query_centers_, hybrid.key_centers_
    x, y = (hybrid.sigma_ * (Z - hybrid.offset_) for Z in (X, Y))
    a, b = cdist(x, queries).argmin(axis=1), cdist(y, keys).argmin(axis=1)
    assert len(np.unique(a)) == len(np.unique(b)) == 2
    sums = (x - queries[a])[:, None] + (y - keys[b])[None]
    rho, d = hybrid.rho_[np.ix_(a, b)], X.shape[1]
    delta = d * np.log1p((1 - np.sqrt(rho)) ** 2 / (2 * np.sqrt(rho))) + rho * np.sum(sums**2, -1)
    n_projections = hybrid.n_components_ // 4
    expected = hybrid.exact_kernel(X, Y) ** 2 * np.expm1(delta) / n_projections
    assert_allclose(hybrid.kernel_variance(X, Y), expected, rtol=1e-9)


@pytest.mark.parametrize("keys", [None, Y])
@pytest.mark.parametrize("recenter", [True, False])
def test_sides_may_have_different_numbers_of_clusters(recenter, keys):
    """HRF-C(2, 3): unbiased, with the variance of the clusters that a pair of rows is in."""
    params = {"coefficients": "clustered", "n_clusters": (2, 3), "recenter": recenter}
    hybrid = HybridRF(120, **params, coupling="iid", sigma=0.5, random_state=0).fit(X, keys=keys)
    assert len(hybrid.query_centers_) == 2 and len(hybrid.key_centers_) == 3
    assert hybrid.n_components_ == 120 and hybrid.omega_.shape[0] == 120 // (6 if recenter else 12)
    draws = np.array([hybrid.redraw(seed).approximate_kernel(X[:8], Y[:9]) for seed in range(400)])
    exact, variance = hybrid.exact_kernel(X[:8], Y[:9]), hybrid.kernel_variance(X[:8], Y[:9])
    assert (np.abs(draws.mean(axis=0) - exact) < 5 * np.sqrt(variance / 400)).all()
    ratios = draws.var(axis=0) / variance
    assert 0.8 < np.median(ratios) < 1.2
    for n_components, asked, got in (
        (64, (100, 3), (21, 3)),
        (64, (60, 60), (8, 8)),
        (5, (2, 3), (2, 2)),
        (8, (60, 60), (2, 2)),
    ):
        params = {"coefficients": "clustered", "n_clusters": asked, "random_state": 0}
        small = HybridRF(n_components, **params).fit(X, keys=keys)
        assert (len(small.query_centers_), len(small.key_centers_)) == got
        assert small.n_components_ <= n_components
    with pytest.raises(ValueError, match="n_clusters must be a number or a pair"):
        HybridRF(coefficients="clustered", n_clusters=(2, 3, 4)).fit(X)
    with pytest.raises(ValueError, match="n_clusters must be an integer"):
        HybridRF(coefficients="clustered", n_clusters=(2, 0)).fit(X)


def cosines(width):
    """Return the coefficients of "gaussian" with one width as a user writes them."""

    def sampler(n_rows, n_features, rng):
        return rng.normal(size=(n_rows, n_features)) / width

    return Coefficients(0.0, [(np.cos, np.cos), (np.sin, np.sin)], sampler)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (Coefficients(0.5, [(lambda z: np.sign(z) / 2, np.sign)]), {"coefficients": "angular"}),
        (cosines(0.8), {"coefficients": "gaussian", "tau": 0.8}),
        (Coefficients(1.3, [(lambda z: 0 * z, np.tanh)]), None),
    ],
    ids=["angular", "gaussian", "constant"],
)
def test_coefficients_of_a_user_are_the_weights_of_the_bases(given, named):
    """Draw by draw, and so without bias and with the variance of the named ones that they are."""
    params = {"coupling": "iid", "sigma": 0.5, "n_coefficients": 3}
    hybrid = HybridRF(120, coefficients=given, **params, random_state=0).fit(X)
    if named is not None:
        of_name = HybridRF(120, **named, **params, random_state=0).fit(X)
        m = hybrid.omega_.shape[0]
        # The same number of projections, whose columns differ.
        sized = next(
            sized
            for n_components in range(20, 400)
            if (sized := of_name.set_params(n_components=n_components).fit(X)).omega_.shape[0] == m
        )
    for seed in range(5):
        drawn = hybrid.redraw(seed)
        estimate, fitted = drawn.approximate_kernel(X[:7], Y[:8]), drawn._fitted.queries
        taus = fitted.taus.dense().reshape(3, -1)
        x, y = (0.5 * (Z - drawn.offset_) @ taus.T for Z in (X[:7], Y[:8]))
        share = given.constant + sum(f(x) @ g(y).T / 3 for f, g in given.functions)
        expected = 0
        for weight, base_map in zip((1 - share, share), fitted.bases, strict=True):
            logs, sign = log_estimate(base_map(X[:7]), base_map(Y[:8]))
            expected += weight * sign * np.exp(logs)
        assert_allclose(estimate, expected, rtol=1e-9, atol=1e-11)
        if named is not None:
            other = sized.redraw(seed)
            expected = other.approximate_kernel(X[:7], Y[:8])
            assert_allclose(estimate, expected, rtol=1e-9, atol=1e-11)
            assert_allclose(taus, other._fitted.queries.taus.dense().reshape(3, -1))
    with pytest.raises(NotImplementedError, match="Coefficients of a user. theory.compare"):
        hybrid.kernel_variance(X)
    assert_allclose(clone(hybrid).fit(X).transform(X), hybrid.redraw(0).transform(X))


def test_coefficients_that_make_no_sense_are_refused():
    for wrong, said in (
        ((0.5, []), "functions must hold pairs"),
        ((0.5, [(np.sin,)]), "functions must hold pairs"),
        ((np.nan, [(np.sin, np.cos)]), "constant must be a finite number"),
        ((0.5, [(np.sin, np.cos)], 3), "sampler must be a callable"),
    ):
        with pytest.raises(ValueError, match=said):
            Coefficients(*wrong)
    narrow = Coefficients(0.5, [(np.sin, np.sin)], lambda n, d, rng: rng.normal(size=(n, d + 1)))
    with pytest.raises(ValueError, match="sampler must return finite rows of shape"):
        HybridRF(coefficients=narrow).fit(X)
    three = "positive", "hyperbolic", "trigonometric"
    with pytest.raises(ValueError, match="coefficients of a user are for two bases"):
        HybridRF(coefficients=cosines(1.0), base=three).fit(X)


@pytest.mark.parametrize("coefficients", ["angular", "clustered"])
def test_errors_after_a_fit_name_the_class_that_users_know(coefficients):
    hybrid = HybridRF(100, coefficients=coefficients, coupling="iid", random_state=0)
    with pytest.raises(ValueError, match=r"but HybridRF\(.*random_state=0\) has none"):
        theory.hoeffding_bound(hybrid.fit(X), X, error=0.1)
    with pytest.raises(ValueError, match="parameter of HybridRF must be"):
        clone(hybrid).set_params(sigma=1e300).fit(X)
    with pytest.raises(MemoryError, match="of HybridRF needs"):
        clone(hybrid).set_params(n_components=10**15).fit(X)


@pytest.mark.parametrize("name", ["HybridRF", "HybridRF-hyperbolic", "HybridRF-gaussian"])
def test_hybrid_components_are_counted_as_documented(name):
    for n_components in (7, 24, 100, 333):
        reference = fitted(name, n_components=n_components)
        m, n = reference.omega_.shape[0], reference.n_coefficients_
        positive = 2 * m if name.endswith("hyperbolic") else m
        if name.endswith("gaussian"):
            expected = positive + 2 * n * (positive + 2 * m)
        else:
            expected = (n + 1) * (positive + 2 * m)
        assert reference.n_components_ == expected <= n_components
        assert reference.transform(X).shape == (30, expected)
    with pytest.raises(ValueError, match="n_components=7.*n_coefficients=5"):
        fitted(name, n_components=7, n_coefficients=5)


@pytest.mark.parametrize(
    "base", [("positive",), ("cosine", "trigonometric"), (PositiveRF(), RFFSampler), (None, 3)]
)
def test_wrong_bases_are_refused(base):
    with pytest.raises(ValueError, match="'base'.*hyperbolic"):
        fitted("HybridRF", base=base)


@pytest.mark.parametrize("recenter", [True, False])
def test_weights_move_clusters_and_stretches(recenter):
    """With one cluster the centre is the weighted mean, and M is made of weighted squares."""
    rng = np.random.default_rng(0)
    Z, weights = rng.uniform(0, 1, size=(60, 2)), rng.exponential(size=60)
    keys = np.repeat(rng.uniform(-2, -1, size=(20, 2)), [1, 3] * 10, axis=0)
    hybrid = HybridRF(
        16,
        coefficients="clustered",
        n_clusters=1,
        recenter=recenter,
        sigma=1.0,
        center=False,
        random_state=0,
    ).fit(Z, sample_weight=weights, keys=keys)
    assert_allclose(hybrid.query_centers_[0], np.average(Z, axis=0, weights=weights), atol=1e-9)
    assert_allclose(hybrid.key_centers_[0], keys.mean(axis=0), atol=1e-9)
    if recenter:
        return
    real, imaginary = hybrid._fitted.queries.stretches[0][0, 0]
    squares = np.average(Z**2, axis=0, weights=weights)
    assert_allclose(real, (np.mean(keys**2, axis=0) / squares) ** 0.25, rtol=1e-12)
    assert not imaginary.any()
    # Where the mean is 0, which any weights know to rounding alone, rounding decides nothing.
    rows = rng.normal(size=(30, 2))
    rows = np.r_[rows, -rows]
    hybrid.set_params(center=True)
    for factor in (1.0, 0.1, 0.7):
        for exact in (rows, np.round(rows)):
            hybrid.fit(exact, sample_weight=np.full(60, factor))
            real, imaginary = hybrid._fitted.queries.stretches[0][0, 0]
            assert_allclose(imaginary, 1, rtol=1e-12)
            assert not real.any()


def test_every_pair_of_clusters_has_the_root_of_least_mean_log_second_moment():
    rng = np.random.default_rng(0)
    rows, keys = rng.normal(size=(80, 3)), np.array([1.0, 0.5, 0.2]) * rng.normal(size=(50, 3))
    rows[:40] *= 0.3
    rows[:, 0] += np.where(np.arange(80) < 40, 4, -4)
    keys[:, 0] += np.where(np.arange(50) < 10, 3, -3)
    weights = rng.exponential(size=80)
    hybrid = HybridRF(32, coefficients="clustered", sigma=0.8, random_state=0)
    hybrid.fit(rows, sample_weight=weights, keys=keys)
    x, y = (0.8 * (Z - hybrid.offset_) for Z in (rows, keys))
    of_x = cdist(x, hybrid.query_centers_).argmin(axis=1)
    of_y = cdist(y, hybrid.key_centers_).argmin(axis=1)
    assert np.ptp(hybrid.rho_) > 0.1

    def mean_log_second_moment(rho, mean):
        return 3 * np.log1p((1 - np.sqrt(rho)) ** 2 / (2 * np.sqrt(rho))) + rho * mean

    for a, b in np.ndindex(2, 2):
        u, v = x[of_x == a] - hybrid.query_centers_[a], y[of_y == b] - hybrid.key_centers_[b]
        squares = np.sum((u[:, None] + v) ** 2, axis=2)
        mean, rho = np.average(squares.mean(axis=1), weights=weights[of_x == a]), hybrid.rho_[a, b]
        best = mean_log_second_moment(rho, mean)
        assert best < min(mean_log_second_moment(rho * factor, mean) for factor in (1.01, 1 / 1.01))


@pytest.mark.parametrize("coefficients", ["angular", "gaussian"])
def test_coefficients_of_float32_rows_far_from_zero_have_their_signs_and_phases(coefficients):
    rows = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32) * 8 + np.float32(1e7)
    model = HybridRF(34, n_coefficients=2, coefficients=coefficients, sigma=1e-7, random_state=0)
    model.fit(rows.astype(float))
    for kind in (np.asarray, sp.csr_array):
        result = model.transform(kind(rows))
        assert result.dtype == np.float32
        assert_allclose(result, model.transform(rows.astype(float)), atol=1e-5)
