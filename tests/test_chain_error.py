"""The estimated error of a chain's log partition function against dense sums over all states."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import logsumexp

from skrf import AdaptiveRF
from skrf.exceptions import FeatureCollapseWarning
from skrf.graphical import ChainMRF, TreeMRF
from skrf.graphical._error import estimate, reported

N, LENGTH = 12, 8
KINDS = ("alike", "later", "unary", "later and unary", "edges", "sizes", "sizes and unary")


def told(left, right, length, log_partition, **options):
    """Return the report of an approximate log partition function."""
    return reported(log_partition, estimate(left, right, length, **options))


def make(kind, scale, seed, n_states=N):
    """Return left and right embeddings and unaries of a small chain."""
    rng = np.random.default_rng(seed)
    unary = 2 * rng.normal(size=(LENGTH, n_states)) if "unary" in kind else None
    if "sizes" in kind or kind == "edges":
        sizes = np.full(LENGTH, n_states)
        if "sizes" in kind:
            sizes = rng.integers(1, 2 * n_states, size=LENGTH)
        tables = [scale * rng.normal(size=(n, 3)) for n in sizes]
        unary = None if unary is None else [2 * rng.normal(size=n) for n in sizes]
        return tables[:-1], tables[1:], unary
    left = scale * rng.normal(size=(n_states, 3))
    return left, scale * rng.normal(size=(n_states, 3)) if "later" in kind else left, unary


def dense(left, right, unary, first=0, last=LENGTH - 1):
    """Return the log of the sum over all paths of the positions first to last."""
    if isinstance(left, np.ndarray):
        left, right = [left] * (LENGTH - 1), [right] * (LENGTH - 1)
    if unary is None:
        unary = [np.zeros(len(x)) for x in (*left, right[-1])]
    logs = unary[first]
    for t in range(first, last):
        logs = logsumexp(left[t] @ right[t].T + logs[:, None], axis=0) + unary[t + 1]
    return logsumexp(logs)


ignore_collapse = pytest.mark.filterwarnings("ignore::skrf.exceptions.FeatureCollapseWarning")


# ---------------------------------------------------------------- estimates and bounds


@ignore_collapse
@pytest.mark.parametrize("kind", KINDS)
def test_bounds_contain_the_exact_value(kind):
    """With as many products as edges they meet. Sums over some states take at least 256 of them."""
    n_states, n_seeds = (280, 1) if kind in KINDS[3:] else (N, 4)
    for scale, seed in itertools.product([0.1, 1.0, 3.0, 1e3], range(n_seeds)):
        left, right, unary = make(kind, scale, seed, n_states)
        exact = dense(left, right, unary)
        room = 1e-12 * abs(exact)
        widths = []
        for n_products in (1, 3, 5, LENGTH - 1, 100):
            report = told(left, right, LENGTH, 7.0, unary=unary, n_products=n_products)
            assert report.lower - room <= exact <= report.upper + room
            assert report.lower <= report.log_partition <= report.upper
            assert_allclose(report.error, report.log_partition - 7, atol=room)
            widths.append(report.upper - report.lower)
        assert max(widths[3:]) <= 2 * room
        if "sizes" not in kind and kind != "edges":
            assert widths[2] <= widths[0] + room  # more products, closer bounds


@ignore_collapse
@pytest.mark.parametrize("kind", KINDS[:4])
@pytest.mark.parametrize("n_products", [1, 5])
def test_windows_are_exact_and_ratios_bound_the_rest(kind, n_products):
    left, right, unary = make(kind, 0.4, 1)
    report = told(left, right, LENGTH, 0.0, unary=unary, n_products=n_products)
    value = dense(left, right, unary, 0, n_products)
    for first in range(1, LENGTH - n_products):
        last = first + n_products
        value += dense(left, right, unary, first, last)
        value -= dense(left, right, unary, first, last - 1)
    assert_allclose(report.log_partition, value, rtol=1e-12)
    if unary is None and n_products == 1:
        # A row's sum is its ratio to the message before, 1.
        sums = logsumexp(left @ right.T, axis=1)
        assert_allclose(report.upper, logsumexp(sums) + (LENGTH - 2) * sums.max(), rtol=1e-12)
        assert_allclose(report.lower, logsumexp(sums) + (LENGTH - 2) * sums.min(), rtol=1e-12)


@ignore_collapse
@pytest.mark.parametrize("n_products", [3, LENGTH])
def test_forbidden_states_are_as_if_they_were_not_there(n_products):
    left, right, unary = make("later and unary", 1.0, 0)
    kept = np.arange(N) % 3 > 0
    options = {"length": LENGTH, "log_partition": 0.0, "n_products": n_products}
    few = told(left[kept], right[kept], unary=unary[:, kept], **options)
    unary[:, ~kept] = -np.inf
    report = told(left, right, unary=unary, **options)
    for name in ("error", "log_partition", "lower", "upper"):
        assert_allclose(getattr(report, name), getattr(few, name), rtol=1e-12)


@ignore_collapse
def test_some_states_of_every_position_tell_nearly_all():
    """A tenth of the pairs: 285 of 900 states, whose own sum lacks up to 41 log(900/285) = 47."""
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(900, 8)) / 2 for _ in range(41)]
    left, right = tables[:-1], tables[1:]
    exact = dense(left, right, None, last=40)
    # With half of the pairs it is 636 of 900, and 14.
    for n_products, gap in ((4, 47), (20, 14)):
        report = told(left, right, 41, 0.0, n_products=n_products)
        assert abs(report.log_partition - exact) < 1
        assert exact - gap < report.lower < exact - gap / 10


# ---------------------------------------------------------------- the method


@ignore_collapse
@pytest.mark.parametrize("is_corrected", [True, False])
@pytest.mark.parametrize("deviation", [0.4, 0.8])
def test_report_is_within_a_factor_of_two(deviation, is_corrected):
    """Chains as in benchmarks/chains.py; all five draws, where four of five were promised."""
    embeddings = deviation * np.random.default_rng(0).normal(size=(320, 16))
    later = None if is_corrected else embeddings
    exact = ChainMRF(embeddings, feature_map="exact").log_partition(50)
    feature_map = AdaptiveRF(128, centers="random", n_centers=128)
    for seed in range(5):
        chain = ChainMRF(embeddings, later, feature_map=feature_map, random_state=seed)
        report = chain.report(50)
        true = exact - chain.log_partition(50)
        # At 0.4, all draws share 0.0115 that the sums over some of the states leave.
        assert 0.5 < report.error / true < 2 or abs(report.error - true) < 0.015
        assert report.lower - 1e-9 <= exact <= report.upper + 1e-9
        # The ratios alone leave 73 at 0.8; there, one state that stays is nearly all.
        assert exact - report.lower < 1


def test_collapse_warns_with_numbers_and_the_callers_line():
    embeddings = 2.0 * np.random.default_rng(0).normal(size=(60, 16))
    chain = ChainMRF(embeddings, embeddings, feature_map=AdaptiveRF(16), random_state=0)
    with pytest.warns(FeatureCollapseWarning) as caught:
        report = chain.report(50)
    assert caught[0].filename == __file__
    for value in (chain.log_partition(50), report.lower, report.upper):
        assert f"{value:.6g}" in str(caught[0].message)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e100])
def test_exact_chain_has_no_error_and_no_warning(scale):
    embeddings = scale * np.random.default_rng(0).normal(size=(20, 3))
    chain = ChainMRF(embeddings, feature_map="exact")
    for length in (1, 2, 11, 10**6):
        report, exact = chain.report(length), chain.log_partition(length)
        assert abs(report.error) <= 1e-3 * max(1, abs(exact))
        assert report.lower - 1e-9 * abs(exact) <= exact <= report.upper + 1e-9 * abs(exact)


def test_small_excess_and_rounding_are_no_collapse():
    left, right, _ = make("alike", 0.5, 0)
    exact = dense(left, right, None)
    for gap in (-0.09, 0.09):
        told(left, right, LENGTH, exact + gap, n_products=LENGTH)  # without a warning
    for gap in (-0.11, 0.11):
        with pytest.warns(FeatureCollapseWarning):
            told(left, right, LENGTH, exact + gap, n_products=LENGTH)
    left, right, _ = make("alike", 1e6, 0)
    exact = dense(left, right, None)
    assert 1e-11 * exact > 100
    told(left, right, LENGTH, exact * (1 + 1e-11), n_products=3)


# ---------------------------------------------------------------- trees


@ignore_collapse
@pytest.mark.parametrize("has_later", [False, True])
def test_trees_are_reported_as_they_are(has_later):
    rng, edges = np.random.default_rng(1), [(0, 1), (2, 1), (1, 3)]
    tables, later = ([rng.normal(size=(n, 3)) for n in (4, 3, 5, 2)] for _ in range(2))
    unary = [rng.normal(size=len(table)) for table in tables]
    later = later if has_later else None
    exact = TreeMRF(edges, tables, unary, later=later, feature_map="exact")
    report = exact.report()
    assert_allclose([report.lower, report.log_partition], exact.log_partition(), rtol=1e-12)
    assert report.upper == report.lower and abs(report.error) < 1e-9
    model = TreeMRF(edges, tables, unary, later=later, feature_map=AdaptiveRF(64), random_state=0)
    error = exact.log_partition() - model.log_partition()
    assert model.report().error == pytest.approx(error, rel=1e-9)
    assert TreeMRF([], tables[:1], unary[:1]).report().error == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match="n_products"):
        model.report(n_products=0)


@ignore_collapse
def test_reports_after_a_fit_are_those_of_what_was_learned():
    rng = np.random.default_rng(0)
    chain = ChainMRF(rng.normal(size=(40, 3)), feature_map=AdaptiveRF(64), tol=0.01, random_state=0)
    chain.fit(rng.integers(3, size=(50, 6)))  # of the first three states alone
    exact = ChainMRF(chain.embeddings_, feature_map="exact")
    assert chain.report(20).log_partition == pytest.approx(exact.log_partition(20), abs=0.01)
