"""Sizes, comparisons, conformity and tail bounds against what draws show."""

import numpy as np
import pytest
from instances import altered
from numpy.testing import assert_allclose
from scipy.special import hyp0f1, logsumexp
from sklearn.base import clone

from skrf import (
    AdaptiveRF,
    DenseExponentialRF,
    GeneralizedExponentialRF,
    HybridRF,
    OptimalPositiveRF,
    PoissonRF,
    PositiveRF,
    RFFSampler,
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
    n = theory.n_components_for(mechanism, X, Z, rel_error=0.1, quantile=None)
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
    columns = mechanism._columns_per_projection
    smaller = mechanism.set_params(n_components=n - columns).fit(X, keys=Z)
    variance, exact = smaller.kernel_variance(X, Z), smaller.exact_kernel(X, Z)
    assert np.sqrt(variance.sum() / (exact**2).sum()) > 0.1


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
    for wrong in (2.5, "a", None):
        with pytest.raises(ValueError, match="n_projections must be an integer >= 2"):
            theory.expected_conformity("iid", 1.0, n_projections=wrong, n_features=4)
        with pytest.raises(ValueError, match="n_features must be an integer >= 1"):
            theory.expected_conformity("iid", 1.0, n_projections=4, n_features=wrong)
    with pytest.raises(ValueError, match="coupling must be one of"):
        theory.expected_conformity(["iid"], 1.0, n_projections=4, n_features=4)


def test_conformity_of_what_is_no_sample():
    omega = np.random.default_rng(0).normal(size=(3, 2))
    for wrong in ("a", omega[:1], omega[0], None, np.nan * omega, 1j * omega, omega[:, :0]):
        with pytest.raises((ValueError, TypeError), match=r"\bomega\b"):
            theory.sample_conformity(wrong, 1.0)
    for wrong in ("a", None, -1.0, np.nan, np.inf, [1.0, 2.0], 1j):
        with pytest.raises((ValueError, TypeError), match="sum2 must"):
            theory.sample_conformity(omega, wrong)
    for wrong in ("a", None, [1.0, -1.0], np.nan):
        with pytest.raises((ValueError, TypeError), match="sum2 must"):
            theory.expected_conformity("iid", wrong, n_projections=4, n_features=4)
    assert theory.sample_conformity(omega.tolist(), 1.0) == theory.sample_conformity(omega, 1.0)
    # Beyond the range of floats it is infinite, and nothing warns.
    assert theory.sample_conformity(omega, 1e6) == np.inf
    assert theory.expected_conformity("iid", 1e6, n_projections=4, n_features=4) == np.inf


def test_comparisons_name_what_they_cannot_take():
    good = {"trigonometric": RFFSampler(4)}
    for params, said in (
        ({"feature_maps": [RFFSampler()]}, "feature_maps must be a dict"),
        ({"feature_maps": {"own": RFFSampler}}, "feature_maps.'own'. must be an instance"),
        ({"feature_maps": good, "criterion": ["log"]}, "criterion must be"),
        ({"feature_maps": good, "random_state": None}, "random_state must be an integer >= 0"),
        ({"feature_maps": good, "Y": "a"}, "Y: "),
        ({"n_components": 2.5}, "n_components must be an integer"),
    ):
        with pytest.raises((ValueError, TypeError), match=said):
            theory.compare(X, **params)
    with pytest.raises(ValueError, match="X: Expected 2D array"):
        theory.compare(X[0])
    assert theory.compare(X > 0, feature_maps=good)[0].measured > 0
    with pytest.raises(TypeError, match="feature_map must be an instance"):
        theory.n_components_for(RFFSampler, X, rel_error=0.1)
    with pytest.raises(ValueError, match=r"\bY\b"):
        theory.n_components_for(RFFSampler(), X, "a", rel_error=0.1)


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
    sum2 = ((rows[:, None] + rows) ** 2).sum(axis=2)
    largest = fitted.exact_kernel(X[:3]) * (1 - 4 * A) ** (d / 2) * np.exp(-sum2 / (8 * A))
    for sides, side in ((2, "two"), (1, "upper")):
        bound = theory.hoeffding_bound(fitted, X[:3], error=0.05, side=side)
        expected = sides * np.exp(-2e6 * 0.05**2 / largest**2)
        assert_allclose(bound, np.minimum(expected, 1), rtol=1e-9)
    # Never above the theorem's, which has a bound of the largest value.
    norms2 = np.add.outer((rows**2).sum(axis=1), (rows**2).sum(axis=1))
    assert (largest <= (1 - 4 * A) ** (d / 2) * np.exp(-norms2 / (4 * A)) * (1 + 1e-12)).all()
    for wrong in (OptimalPositiveRF(), PositiveRF(coupling="iid")):
        with pytest.raises(ValueError, match="hoeffding_bound and bernstein_bound need"):
            theory.hoeffding_bound(wrong.set_params(random_state=0).fit(X), X, error=0.1)


def draws(fitted, rows, n):
    return np.array([fitted.redraw(seed).approximate_kernel(rows) for seed in range(n)])


BOUNDED = {
    "pairs": RFFSampler(20),
    "a pair": RFFSampler(2),
    "a column": RFFSampler(1),
    "softmax": RFFSampler(4, kernel="softmax"),
    "laplacian": RFFSampler(4, kernel="laplacian"),
    "optimal": OptimalPositiveRF(4, sigma=2.0),
    "optimal softmax": OptimalPositiveRF(1, kernel="softmax"),
    "real generalized": GeneralizedExponentialRF(4, sigma=3.0),
}
# Parameters that no fit to these data finds: A, s, columns.
GENERALIZED = [(-0.1 + 0.2j, 1, 8), (-0.1 + 0.2j, -1, 1), (-0.3 + 0j, -1, 2), (0j, -1, 1)]


@pytest.mark.parametrize("which", [*BOUNDED, *GENERALIZED])
def test_terms_stay_inside_their_range_and_tails_below_their_bound(which):
    rows, params = X[:5], {"coupling": "iid", "random_state": 0}
    if which in BOUNDED:
        fitted = clone(BOUNDED[which]).set_params(**params).fit(X)
    else:
        A, s, n = which
        fitted = GeneralizedExponentialRF(n, **params).fit(X)
        fitted = altered(fitted, A_=A, s_=s, n_projections=max(n // 2, 1))
    term_range = np.exp(fitted._of_pairs(rows, None, "_log_term_range", False))
    assert_allclose(
        np.log(term_range), fitted._of_pairs(rows, None, "_log_term_range", False), rtol=1e-9
    )
    values = draws(fitted, rows, 600)
    ranges, errors = np.ptp(values, axis=0), np.abs(values - fitted.exact_kernel(rows))
    assert (ranges <= term_range * (1 + 1e-9)).all()
    for error in (0.1, 0.7, 2.0):
        share = (errors >= error).mean(axis=0)
        slack = 4.4 * np.sqrt(share * (1 - share) / 600)
        assert (share - slack <= theory.hoeffding_bound(fitted, rows, error=error)).all()
    # Ranges are no larger than they have to be: 2 cos(a) cos(b) is between -2 and 2.
    expected = {"a pair": 2.0, "a column": 4.0}.get(which)
    if expected:
        assert_allclose(term_range, expected, rtol=1e-12)
        assert ranges.max() > 0.95 * expected


def test_mechanisms_without_a_range_are_refused():
    points = np.array([[1.5, 0.0], [-1.5, 0.0], [0.0, 1.5], [0.0, -1.5]])
    hybrid = HybridRF(60, coupling="iid", n_coefficients=1, tau=1.0, random_state=0).fit(points)
    # The bound of sines and cosines would be 4e-9 here, and 1.3e-3 of the draws exceed it.
    errors = np.abs(draws(hybrid, points, 2000) - hybrid.exact_kernel(points))
    assert (errors >= 2.0).any()
    rows = np.random.default_rng(0).normal(size=(30, 16)) * 1.5
    for mechanism in (
        hybrid,
        GeneralizedExponentialRF(coupling="iid", sigma=0.2),
        PositiveRF(coupling="iid"),
        AdaptiveRF(coupling="iid"),
        DenseExponentialRF(coupling="iid"),
        RFFSampler(),
        RFFSampler(coupling="iid", projection="hadamard"),
        PoissonRF(),
    ):
        fitted = clone(mechanism).set_params(random_state=0).fit(rows / 4)
        assert np.real(getattr(fitted, "A_", 1.0)) > 0  # not bounded
        with pytest.raises(ValueError, match="(?s)hoeffding_bound and .* RFFSampler; Optim"):
            theory.hoeffding_bound(fitted, rows, error=2.0)


@pytest.mark.parametrize(
    "bound", [theory.hoeffding_bound, theory.bernstein_bound, theory.chebyshev_bound]
)
def test_errors_of_bounds_are_positive_numbers(bound):
    fitted = RFFSampler(coupling="iid", random_state=0).fit(X)
    for wrong in (None, "a", 1j, [0.1], True, np.array([0.1, 0.2])):
        with pytest.raises(TypeError, match="error must be a finite number > 0"):
            bound(fitted, X, error=wrong)
    for wrong in (0, -1.0, np.nan, np.inf, 10**400):
        with pytest.raises(ValueError, match="error must be a finite number > 0"):
            bound(fitted, X, error=wrong)
    for wrong in (None, RFFSampler, "RFFSampler"):
        with pytest.raises(TypeError, match="feature_map must be an instance of a feature map"):
            bound(wrong, X, error=0.1)


def test_comparison_predicts_what_it_measures():
    table = {row.name: row for row in theory.compare(X, Y, n_components=64)}
    assert set(table) == set(theory.default_feature_maps())
    for row in table.values():
        if np.isnan(row.predicted):
            # The simplex coupling of the first has no known bound, and the other no variance.
            assert row.name in ("adaptive", "cluster Nystroem")
        elif not row.is_exact:
            assert row.measured < 1.5 * row.predicted
        else:
            # The median of fifty draws of a norm; positive features seldom show their variance.
            assert 0.3 < row.measured / row.predicted < 1.6, row
    assert not table["trigonometric"].is_positive and table["adaptive"].is_positive
    assert table["trigonometric"].cost == 32 * 4 and table["positive"].cost == 64 * 4


def test_log_error_needs_no_representable_kernel():
    """Kernel values of exp(-1000): plain features are 0, logarithms are not."""
    rows = np.r_[np.zeros((3, 4)), np.full((3, 4), 25.0)] + 0.01 * np.arange(6)[:, None]
    [row] = theory.compare(
        rows[:3], rows[3:], feature_maps={"positive": PositiveRF(4000, coupling="iid", sigma=0.9)}
    )
    assert row.log_error < 5 and np.isfinite(row.measured)


def test_enormous_mechanisms_are_compared_by_fewer_draws(monkeypatch):
    drawn, redraw = [], RFFSampler.redraw
    monkeypatch.setattr(RFFSampler, "redraw", lambda *args: drawn.append(args[1]) or redraw(*args))
    for projections, n_draws in ((2**19, 50), (64 * 10, 10), (64 * 2 - 1, 1), (1, 1)):
        monkeypatch.setattr("skrf.theory.choice._PROJECTIONS", projections)
        [row] = theory.compare(X, feature_maps={"": RFFSampler(128)})
        assert drawn == list(range(1, n_draws)) and 0 < row.measured < 1  # that of fit is first
        drawn.clear()


@pytest.mark.parametrize("sigma", [30.0, 60.0, 300.0])
def test_narrow_kernels_are_compared_by_their_logarithms(sigma):
    """Most pairs lie beyond exp(-745); positive maps know their logarithms, and are chosen."""
    rows = np.random.default_rng(0).normal(size=(40, 2))
    table = {row.name: row for row in theory.compare(
        rows, feature_maps=theory.default_feature_maps(32, sigma=sigma)
    )}  # fmt: skip
    assert all(np.isfinite(row.log_error) for row in table.values() if row.is_positive)
    mechanism = OptimalPositiveRF(32, sigma=sigma, random_state=0)
    [row] = theory.compare(rows, feature_maps={"": mechanism})
    expected = []
    for seed in range(50):
        fitted = clone(mechanism).set_params(random_state=0).fit(rows).redraw(seed)
        logs = logsumexp(
            fitted.log_transform(rows)[:, None] + fitted.log_transform_keys(rows), axis=2
        )
        expected.append(np.median(abs(logs - fitted.exact_kernel(rows, log=True))))
    assert_allclose(row.log_error, np.median(expected), rtol=1e-9)
    assert next(iter(table.values())).is_positive


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


@pytest.mark.parametrize("d", [1, 2, 5, 40])
def test_the_conformity_of_a_sample_is_right_at_any_size_or_infinite(d):
    omega = np.random.default_rng(d).normal(size=(3, d))
    pairs = [(0, 1), (0, 2), (1, 2)]
    squares = [np.sum((omega[i] + omega[j]) ** 2) for i, j in pairs]
    for sum2 in (0.0, 1e-200, 1e-3, 1.0, 300.0):
        expected = np.mean([float(hyp0f1(d / 2, z * sum2 / 4)) for z in squares])
        assert_allclose(theory.sample_conformity(omega, sum2), expected, rtol=1e-10)
    for sum2, size in ((1e300, 1.0), (1.0, 1e200), (1e300, 1e300), (1e-300, 1e307)):
        assert theory.sample_conformity(size * omega, sum2) == np.inf
