"""Sizes, comparisons, conformity and tail bounds against what draws show."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import logsumexp
from sklearn.base import clone

from skrf import (
    GeneralizedExponentialRF,
    OptimalPositiveRF,
    PositiveRF,
    RFFSampler,
    SimplexRFPlus,
    theory,
)
from skrf.datasets import make_regime
from skrf.projections import COUPLINGS

X = np.random.default_rng(0).normal(size=(60, 4)) / 2
Y = np.random.default_rng(1).normal(size=(40, 4)) / 2 + 0.3


@pytest.mark.parametrize("Z", [None, Y])
@pytest.mark.parametrize(
    "mechanism",
    [
        RFFSampler(),
        OptimalPositiveRF(coupling="simplex"),
        OptimalPositiveRF(coupling="iid", sigma=0.5),
    ],
)
def test_the_size_for_an_error_gives_that_error(mechanism, Z):
    n = theory.n_components_for(mechanism, X, Z, rel_error=0.1)
    squares = []
    for seed in range(60):
        fitted = mechanism.set_params(n_components=n, random_state=seed).fit(X, keys=Z)
        exact = fitted.exact_kernel(X, Z)
        squares.append(np.sum((fitted.approximate_kernel(X, Z) - exact) ** 2) / np.sum(exact**2))
    squares = np.array(squares)
    error = squares.std(ddof=1) / np.sqrt(60)
    # 4.4 standard errors; a size wrong by a factor 1.5 would be seen.
    assert 6 * error < 0.5 * 0.01
    assert squares.mean() < 0.01 + 4.4 * error
    columns = mechanism.columns_per_projection
    smaller = mechanism.set_params(n_components=n - columns).fit(X, keys=Z)
    variance, exact = smaller.kernel_variance(X, Z), smaller.exact_kernel(X, Z)
    assert np.sqrt(variance.sum() / (exact**2).sum()) > 0.1


def test_size_refuses_what_it_cannot_know():
    for wrong in (0, -1.0, "small"):
        with pytest.raises(ValueError, match="rel_error"):
            theory.n_components_for(RFFSampler(), X, rel_error=wrong)
    with pytest.raises(NotImplementedError, match="simplex"):
        theory.n_components_for(SimplexRFPlus(), X, rel_error=0.1)
    with pytest.raises(ValueError, match="16777216 columns"):
        theory.n_components_for(PositiveRF(coupling="iid"), 4 * X, rel_error=1e-9)


@pytest.mark.parametrize("n_projections", [8, 11])
@pytest.mark.parametrize("coupling", ["iid", "orthogonal", "simplex"])
def test_expected_conformity_is_the_mean_over_draws(coupling, n_projections):
    values = [
        theory.sample_conformity(
            COUPLINGS[coupling].draw(n_projections, 4, np.random.default_rng(seed)).dense(), 0.8
        )
        for seed in range(1000)
    ]
    error = np.std(values, ddof=1) / np.sqrt(1000)
    expected = theory.expected_conformity(coupling, 0.8, n_projections=n_projections, n_features=4)
    assert error < 0.02
    assert abs(np.mean(values) - expected) < 4.4 * error


def test_conformity_names_what_is_known():
    with pytest.raises(ValueError, match="coupling.*iid.*sobol"):
        theory.expected_conformity("sobol", 1.0, n_projections=8, n_features=4)
    with pytest.raises(ValueError, match="n_projections.*1"):
        theory.expected_conformity("iid", 1.0, n_projections=1, n_features=4)


@pytest.mark.parametrize(
    "mechanism", [RFFSampler(64, coupling="iid"), OptimalPositiveRF(64, coupling="iid")]
)
def test_tails_are_below_their_bounds(mechanism):
    rows = X[:6]
    fitted = mechanism.set_params(random_state=0).fit(X)
    exact = fitted.exact_kernel(rows)
    values = np.array([fitted.redraw(seed).approximate_kernel(rows) for seed in range(1000)])
    for error in (0.05, 0.2, 0.5):
        share = (np.abs(values - exact) >= error).mean(axis=0)
        slack = 4.4 * np.sqrt(share * (1 - share) / 1000)
        for bound in (theory.chebyshev_bound, theory.hoeffding_bound):
            assert (share <= bound(fitted, rows, error=error) + slack).all()
    with pytest.raises(ValueError, match="error"):
        theory.chebyshev_bound(fitted, rows, error=0.0)


def test_hoeffding_is_the_stated_formula():
    fitted = OptimalPositiveRF(10**6, coupling="iid", random_state=0).fit(X)
    A, d = fitted.A_, 4
    rows = X[:3] - fitted.offset_
    norms2 = np.add.outer((rows**2).sum(axis=1), (rows**2).sum(axis=1))
    bound = theory.hoeffding_bound(fitted, X[:3], error=0.05)
    expected = 2 * np.exp(-2e6 * 0.05**2 * (1 - 4 * A) ** -d * np.exp(norms2 / (2 * A)))
    assert_allclose(bound, np.minimum(expected, 1), rtol=1e-9)
    for wrong in (OptimalPositiveRF(), PositiveRF(coupling="iid")):
        with pytest.raises(ValueError, match="hoeffding_bound needs"):
            theory.hoeffding_bound(wrong.set_params(random_state=0).fit(X), X, error=0.1)


def test_comparison_predicts_what_it_measures():
    table = {row.name: row for row in theory.compare(X, Y, n_components=64)}
    assert set(table) == set(theory.default_mechanisms())
    for row in table.values():
        if np.isnan(row.predicted):
            assert row.name == "adaptive"  # no bound is known for its simplex coupling
        elif not row.is_exact:
            assert row.measured < 1.5 * row.predicted
        else:
            # The median of fifty draws of a norm; positive features seldom show their variance.
            assert 0.3 < row.measured / row.predicted < 1.6, row
    assert not table["trigonometric"].is_positive and table["adaptive"].is_positive
    assert table["trigonometric"].cost == 32 * 4 and table["positive"].cost == 64 * 4


def errors_of(mechanism, seed):
    fitted = mechanism.set_params(random_state=seed).fit(X)
    estimate, exact = fitted.approximate_kernel(X), fitted.exact_kernel(X)
    logs = np.log(np.maximum(estimate, 1e-300)) - np.log(exact)
    return {"log": np.median(np.abs(logs)), "frobenius": np.linalg.norm(estimate - exact)}


@pytest.mark.parametrize("criterion", ["log", "frobenius"])
@pytest.mark.parametrize("sigma", [0.3, 3.0])
def test_recommendation_is_the_least_measured_error(sigma, criterion):
    mechanisms = theory.default_mechanisms(64, sigma=sigma)
    errors = {
        repr(mechanism): np.median(
            [errors_of(clone(mechanism), 100 + seed)[criterion] for seed in range(20)]
        )
        for mechanism in mechanisms.values()
    }
    chosen = theory.recommend(X, n_components=64, sigma=sigma, criterion=criterion)
    assert errors[repr(chosen)] < 1.1 * min(errors.values())
    assert not hasattr(chosen, "statistics_")


def test_recommendation_obeys_its_limits():
    positive = theory.recommend(X, n_components=64, sigma=0.3, positive=True)
    assert positive.fit(X).is_positive
    with pytest.raises(ValueError, match="positive=True"):
        theory.recommend(X, positive=True, mechanisms={"trigonometric": RFFSampler()})
    with pytest.raises(ValueError, match="criterion must be"):
        theory.recommend(X, criterion="best")


def test_log_error_needs_no_representable_kernel():
    """Kernel values of exp(-1000): plain features are 0, logarithms are not."""
    rows = np.r_[np.zeros((3, 4)), np.full((3, 4), 25.0)] + 0.01 * np.arange(6)[:, None]
    [row] = theory.compare(
        rows[:3], rows[3:], mechanisms={"positive": PositiveRF(4000, coupling="iid", sigma=0.9)}
    )
    assert row.log_error < 5 and np.isfinite(row.measured)


@pytest.mark.parametrize("sigma", [30.0, 60.0, 300.0])
def test_narrow_kernels_are_compared_by_their_logarithms(sigma):
    """Most pairs lie beyond exp(-745); positive maps know their logarithms, and are chosen."""
    rows = np.random.default_rng(0).normal(size=(40, 2))
    table = {row.name: row for row in theory.compare(
        rows, mechanisms=theory.default_mechanisms(32, sigma=sigma)
    )}  # fmt: skip
    assert all(np.isfinite(row.log_error) for row in table.values() if row.is_positive)
    mechanism = OptimalPositiveRF(32, sigma=sigma, random_state=0)
    [row] = theory.compare(rows, mechanisms={"": mechanism})
    expected = []
    for seed in range(50):
        fitted = clone(mechanism).set_params(random_state=0).fit(rows).redraw(seed)
        logs = logsumexp(
            fitted.log_transform(rows)[:, None] + fitted.log_transform_keys(rows), axis=2
        )
        expected.append(np.median(abs(logs - fitted.exact_kernel(rows, log=True))))
    assert_allclose(row.log_error, np.median(expected), rtol=1e-9)
    best = theory.recommend(rows, mechanisms=theory.default_mechanisms(32, sigma=sigma))
    assert best.fit(rows).is_positive


@pytest.mark.parametrize(
    ("regime", "gain", "of_pairs"), [("normal", 75, 80), ("shifted", 125, 125)]
)
def test_log_variances_are_in_the_published_order(regime, gain, of_pairs):
    """Chefs' random tables, section 5.1: nats gained at sigma = 1, d = 64."""
    queries, keys = make_regime(regime, 100, random_state=0)

    def log_variance(mechanism):
        fitted = mechanism.set_params(random_state=0).fit(queries, keys=keys)
        return fitted.kernel_variance(queries, keys, log=True).mean()

    optimal = log_variance(OptimalPositiveRF(128, center=False))
    assert log_variance(PositiveRF(128, center=False)) - optimal > gain
    generalized = log_variance(GeneralizedExponentialRF(128, center=False))
    assert log_variance(RFFSampler(128)) - generalized > of_pairs
