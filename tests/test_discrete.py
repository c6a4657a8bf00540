"""Poisson, geometric and best discrete features against their products and sums."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import features, make
from numpy.testing import assert_allclose
from samples import X, Y, fitted
from scipy.special import factorial, gammaln, logsumexp
from scipy.stats import chisquare, geom, poisson

from skrf import DiscreteRF, GeometricRF, PoissonRF
from skrf.features.discrete import TabulatedCounts

NAMES = ["PoissonRF", "GeometricRF", "DiscreteRF"]


def log_masses(fitted, counts):
    """Return log probabilities of counts of shape (n, d) at the public parameters."""
    d = counts.shape[1]
    if hasattr(fitted, "lambda_"):
        return poisson.logpmf(counts, np.broadcast_to(fitted.lambda_, d))
    if hasattr(fitted, "p_"):
        return geom.logpmf(counts + 1, np.broadcast_to(fitted.p_, d))
    table = np.broadcast_to(np.exp(fitted.log_p_), (d, fitted.log_p_.shape[1]))
    table = np.pad(table, ((0, 0), (0, int(counts.max()) + 1)))
    tail = geom.pmf(counts + 1, fitted.tail_p_)
    masses = table[np.arange(d), counts.astype(int)]
    with np.errstate(divide="ignore"):
        return np.log((1 - fitted.tail_share_) * masses + fitted.tail_share_ * tail)


@pytest.mark.parametrize("per_feature", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_discrete_features_are_products_of_powers(name, per_feature):
    reference = fitted(name, keys=None, per_feature=per_feature, n_components=12)
    counts, Z = reference.omega_, X - reference.offset_
    masses = np.exp(log_masses(reference, counts))
    powers = Z[:, None, :] ** counts / np.sqrt(factorial(counts) * masses)
    expected = np.exp(-(Z**2).sum(axis=1) / 2)[:, None] * powers.prod(axis=2) / np.sqrt(12)
    assert_allclose(reference.transform(X), expected, rtol=1e-10, atol=1e-14)
    assert (expected < 0).any()
    assert (expected == 0).any() == per_feature  # a shared parameter shifts the zeros away


@pytest.mark.parametrize("name", NAMES)
def test_discrete_variance_is_the_sum_over_all_counts(name):
    """One column, counts to 400: the second moment by brute force, per_feature and positive."""
    k = np.arange(400)
    for positive in (False, True):
        reference = fitted(name, X[:, :1], None, positive=positive, n_components=1)
        log_mass = log_masses(reference, k[:, None])[:, 0]
        z = X[:5, :1] - reference.offset_
        product = z @ z.T
        # 0^0 = 1: a product of 0 has its whole second moment at a count of 0.
        size = np.maximum(np.abs(product), 1e-300)[..., None]
        logs = 2 * (k * np.log(size) - gammaln(k + 1)) - log_mass
        outer = np.exp(-np.add.outer((z**2).ravel(), (z**2).ravel()))
        second = outer * np.exp(logs).sum(axis=-1)
        expected = second - reference.exact_kernel(X[:5, :1]) ** 2
        assert_allclose(reference.kernel_variance(X[:5, :1]), expected, rtol=1e-8, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_discrete_features_survive_huge_inputs(name):
    rows = np.array([[0.0, 1e6, -1e6], [1e-6, 0.0, 1e3], [1.0, 2.0, 3.0]])
    with pytest.warns(UserWarning, match="differ in scale"):
        reference = make(name, positive=True, n_components=50, random_state=0).fit(rows)
    assert np.isfinite(features(reference, rows)).all()
    reference.set_params(sigma=40.0).fit(X)
    assert reference.omega_.max() > 100
    assert np.isfinite(features(reference, X)).all()


def test_a_logarithm_of_a_variance_may_be_infinite():
    rows = np.array([[1e80], [-1e80], [3e79]])
    fitted = make("PoissonRF", n_components=4, sigma=1.0, random_state=0).fit(rows)
    squares = (rows[0] - fitted.offset_) ** 2
    logs = fitted.kernel_variance(rows, log=True)
    assert_allclose(logs[0, 0], squares[0] * (squares[0] / fitted.lambda_), rtol=1e-6)
    assert (fitted.kernel_variance(1e20 * rows, log=True) == np.inf).all()


@pytest.mark.parametrize("name", [*NAMES, "GeometricRF-single", "DiscreteRF-single"])
def test_a_common_factor_of_weights_does_not_matter(name):
    weights = np.random.default_rng(0).uniform(50, 100, size=len(X))
    expected, *others = (
        make(name, n_components=8, random_state=0)
        .fit(X, sample_weight=factor * weights)
        .transform(X)
        for factor in (1, 1e-300, 1e306)
    )
    for values in others:
        assert_allclose(values, expected, rtol=1e-9, atol=1e-12)


def test_weights_count_in_sizes_about_a_shift():
    """One p for all columns follows from the mean of |x - c|, in which weights are repetitions."""
    weights, shared = np.arange(len(X)) % 3 + 1, make("GeometricRF-single", random_state=0)
    fitted = shared.fit(X, sample_weight=weights)
    assert fitted.offset_.any()
    repeated = make("GeometricRF-single", random_state=0).fit(np.repeat(X, weights, axis=0))
    assert_allclose(fitted.p_, repeated.p_, rtol=1e-10)


# ------------------------------------------------------------------ the best law


def log_second_moments(fitted, X, Y):
    """Return the log of the mean over all pairs of every column's second moment."""
    law = fitted._fitted.spec._counts(fitted._fitted.parameters)
    inside = [fitted.feature_maps_[0].clamped(Z)[0] for Z in (X, Y)]
    products = inside[0][:, None, :] * inside[1]
    gaps2 = (inside[0][:, None, :] - inside[1]) ** 2
    logs = law.coordinate_delta(products) - gaps2
    return logsumexp(logs, axis=(0, 1)) - math.log(len(X) * len(Y))


def mean_powers(rows, weights, n_counts):
    """Return E[exp(-x^2) x^2k] by column and k, term by term."""
    k = np.arange(n_counts)
    terms = np.exp(-(rows**2))[..., None] * (rows**2)[..., None] ** k
    return np.average(terms, axis=0, weights=weights)


@pytest.mark.parametrize("positive, per_feature", [(True, True), (False, True), (True, False)])
def test_the_best_law_is_the_stated_formula(positive, per_feature):
    weights = np.random.default_rng(1).uniform(0.5, 2, size=len(X))
    best = DiscreteRF(8, sigma=0.7, positive=positive, per_feature=per_feature, random_state=0)
    best.fit(X, sample_weight=weights, keys=Y[:7])
    n_counts = 60
    A, B = (
        mean_powers(0.7 * (Z - best.offset_), w, n_counts) for Z, w in ((X, weights), (Y[:7], None))
    )
    law = np.sqrt(A * B) / factorial(np.arange(n_counts))
    if not per_feature:
        law = np.sqrt(np.sum((law / law.sum(axis=1, keepdims=True)) ** 2, axis=0, keepdims=True))
    result = np.zeros_like(law)
    result[:, : best.log_p_.shape[1]] = np.exp(best.log_p_[:, :n_counts])
    assert_allclose(result, law / law.sum(axis=1, keepdims=True), rtol=1e-10, atol=1e-17)
    if per_feature:  # the minimum of Cauchy and Schwarz, and what the geometric share adds to it
        plain = DiscreteRF(8, sigma=0.7, positive=positive, random_state=0).fit(X, keys=Y[:7])
        A = mean_powers(0.7 * (X - plain.offset_), None, n_counts)
        least = 2 * np.log((np.sqrt(A * B) / factorial(np.arange(n_counts))).sum(axis=1))
        excess = log_second_moments(plain, X, Y[:7]) - least
        assert (excess >= 0).all() and (excess <= -math.log1p(-1e-4) + 1e-12).all()


@st.composite
def sides(draw):
    """Queries and keys whose products are at most 256: zeros, levels, outliers, any balance."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    scale = draw(st.sampled_from([0.1, 1.0, 5.0]))
    balance = 10.0 ** draw(st.integers(-100, 100))
    pair = []
    for factor in (balance, 1 / balance):
        rows = np.round(rng.normal(size=(draw(st.integers(1, 12)), 3)), draw(st.integers(0, 3)))
        rows[0] *= draw(st.sampled_from([0, 1, 5]))
        pair.append(np.clip(rows * scale, -16, 16) * factor)
    return pair


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(sides())
def test_no_other_law_of_a_column_is_better(pair):
    queries, keys = pair
    products = queries[:, None] * keys
    # The Gaussian's factors alone, which differ by hundreds of orders of magnitude between rows.
    gains = 2 * products - (queries**2)[:, None] - keys**2
    logs = []
    for kind in (DiscreteRF, PoissonRF, GeometricRF):
        fitted = kind(2, sigma=1.0, random_state=0).fit(queries, keys=keys)._fitted
        with np.errstate(over="ignore"):
            delta = fitted.spec._counts(fitted.parameters).coordinate_delta(products)
            logs.append(logsumexp(delta + gains, axis=(0, 1)))
    for other in logs[1:]:
        assert (logs[0] <= other + 1.1e-4 + 1e-12 * np.abs(other)).all()


def test_counts_are_drawn_from_the_law():
    """Table and tail, by chi-square over the cells with an expected count of 5 or more."""
    law = DiscreteRF(20_000, random_state=0, sigma=1.0).fit(X[:, :2]).set_params()
    parameters = law._fitted.parameters
    parameters = type(parameters)(**{**vars(parameters), "tail_share_": np.array([0.5, 1e-4])})
    counts = law._counts(parameters).draw((20_000, 2), np.random.default_rng(0))
    masses = np.exp(law._counts(parameters).log_mass(np.repeat(np.arange(80)[:, None], 2, axis=1)))
    assert_allclose(masses.sum(axis=0), 1, rtol=1e-12)
    for column in range(2):
        expected = 20_000 * masses[:, column]
        seen = np.bincount(counts[:, column], minlength=80)[:80]
        large = expected >= 5
        seen, expected = (np.append(Z[large], Z[~large].sum()) for Z in (seen, expected))
        assert len(seen) > 5
        assert chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > 1e-4


@pytest.mark.parametrize(
    "size, positive, per_feature",
    [(1e-149, True, True), (1e-30, False, False), (1e10, True, True), (1e149, False, False)],
)
def test_a_law_for_sizes_of_any_order(size, positive, per_feature):
    rows = X * size
    best = DiscreteRF(
        30, positive=positive, per_feature=per_feature, random_state=0, sigma=1.0
    ).fit(rows)
    total = logsumexp(best.log_p_, axis=1)
    assert_allclose(total, 0, atol=1e-12)
    assert (best.tail_p_ > 0).all() and (best.tail_share_ <= 1).all()
    if size > 1:  # nothing is left to the table
        assert (best.tail_share_ > 0.5).all()
        assert_allclose(best.tail_p_, 1e-6)
    else:
        assert_allclose(best.tail_share_, 1e-4)
    assert np.isfinite(best.omega_).all()
    assert not np.isnan(features(best, rows)).any()
    assert not np.isnan(best.kernel_variance(rows, log=True)).any()
    unbalanced = DiscreteRF(30, random_state=0, sigma=1.0).fit(rows, keys=X / size)
    counts = unbalanced._fitted.spec._counts(unbalanced._fitted.parameters)
    balanced = counts.log_relative_second_moment(rows[:1], X[:1] / size)
    assert np.isfinite(balanced).all()


def test_an_outlier_does_not_spoil_the_law_of_the_others():
    """A row that the table is too short for is left to the geometric law, with its own share."""
    rows = np.random.default_rng(0).normal(size=(400, 1))
    with_one = np.vstack([rows, [[1e6]]])
    best, plain = (DiscreteRF(8, random_state=0, sigma=1.0).fit(Z) for Z in (with_one, rows))
    assert best.tail_share_ == pytest.approx(1 / 401)
    loss = log_second_moments(best, rows, rows) - log_second_moments(plain, rows, rows)
    assert 0 < loss < 0.01
    assert (
        log_second_moments(PoissonRF(8, random_state=0, sigma=1.0).fit(with_one), rows, rows) > 100
    ).all()


def test_series_of_a_table_are_right_to_the_last_term_and_beyond():
    """From terms that vanish to sums that leave the range of floats, against the plain series."""
    k = np.arange(60)
    both = np.logaddexp(poisson.logpmf(k, 30.0), poisson.logpmf(k, 1.0)) - math.log(2)
    table = np.stack([poisson.logpmf(k, 3.0), np.where(k == 0, 0.0, -np.inf), both])
    law = TabulatedCounts(table, np.array([1e-4, 1.0, 0.5]), np.array([0.3, 0.5, 0.01]))
    counts = np.arange(30_000)[:, None]
    logs = law.log_mass(np.repeat(counts, 3, axis=1))
    for product in (0.0, 1e-200, 1e-3, 0.7, 3.0, -3.0, 30.0, 100.0, 169.0, 171.0, 400.0, 1e4):
        powers = counts * math.log(abs(product) or 1e-300) - gammaln(counts + 1)
        expected = logsumexp(2 * powers - logs, axis=0) - 2 * product
        # With another product, which decides on the number of terms.
        result = law.coordinate_delta(np.array([[product] * 3, [1.0] * 3]))[0]
        assert_allclose(result, expected, rtol=1e-10, atol=1e-12)


def test_of_many_rows_some_stand_for_all():
    """10,000 rows, of which 2,048 are drawn by their weights: the law hardly differs."""
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(10_000, 2)), rng.uniform(0, 2, size=10_000)
    rows[:5000] *= 3
    weights[:5000] *= 2
    best = DiscreteRF(8, random_state=0, sigma=1.0).fit(rows, sample_weight=weights)
    masses = poisson.pmf(np.arange(best.log_p_.shape[1]), (rows**2)[..., None])
    weighted, plain = np.average(masses, axis=0, weights=weights), masses.mean(axis=0)
    most = 4 * 0.5 / math.sqrt(2048)  # standard errors of a share
    gaps = [np.cumsum(np.exp(best.log_p_) - law, axis=1) for law in (weighted, plain)]
    assert np.abs(gaps[0]).max() < most < np.abs(gaps[1]).max(axis=1).min()
