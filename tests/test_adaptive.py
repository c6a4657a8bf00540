"""AdaptiveRF: weights, counts, centres and labels."""

from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from samples import X, Y, fitted
from sklearn.base import clone

from skrf import (
    AdaptiveRF,
    DiscreteRF,
    GeometricRF,
    HybridRF,
    KernelRegressionClassifier,
    KernelRegressor,
    OptimalPositiveRF,
)
from skrf.features._clusters import (
    _proportional_counts,
    representatives,
    spatial_order,
    unique_rows,
)
from skrf.features.adaptive import Mixture, _near_sums, _Points


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_adaptive_weights_make_every_component_exact(share):
    """Gauss-Hermite over each component of the mixture: mean 1 of exp(w.z - |z|^2/2) p/q."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    weights = weights / weights.sum()
    centers = np.array([[1.5], [-0.5]])
    mixture = Mixture(np.array([0.6]), np.eye(1), centers, 0.9, share)
    components = [(share, nodes * np.sqrt((1 + 1 / 0.6) / 2))]
    components += [((1 - share) / 2, center[0] + 0.9 * nodes) for center in centers]
    for z in (-0.7, 0.0, 1.2):
        total = 0.0
        for its_share, w in components:
            log_ratio = -(w**2) / 2 - mixture.log_density(w[:, None])
            total += its_share * (weights @ np.exp(w * z - z**2 / 2 + log_ratio))
        # The ratio is not a polynomial: 120 nodes leave 1e-6.
        assert_allclose(total, 1.0, atol=1e-6)


@pytest.mark.parametrize("tau", [0.6, 0.8, 1.0, 3.0])
def test_the_bound_is_at_least_the_second_moment_of_quadrature(tau):
    """Of exp(w.z - |z|^2 / 2) p / q; it is exact if one component has the draws."""
    w = np.linspace(-40, 40, 20001)[:, None]
    z = np.array([-0.9, 0.0, 0.4, 2.0])
    rho, centers = np.array([0.6]), np.array([[1.5], [-0.5]])
    for share, places in ((1.0, centers[:0]), (1e-9, centers[:1]), (0.3, centers)):
        mixture = Mixture(rho, np.eye(1), places, tau, share)
        log_terms = w * z - z**2 / 2 - w**2 / 2 - mixture.log_density(w)[:, None]
        log_q = mixture.log_density(w)[:, None] - np.log(2 * np.pi) / 2
        expected = np.sum(np.exp(2 * log_terms + log_q), axis=0) * (w[1, 0] - w[0, 0])
        dense = np.log1p((1 - np.sqrt(0.6)) ** 2 / (2 * np.sqrt(0.6))) + 0.6 * z**2
        X, Y = np.array([[0.7]]), z[:, None] - 0.7
        bound = np.exp(mixture.log_second_moment(dense[None], X, Y))[0]
        if share == 1 or (share < 0.1 and tau >= 1):
            assert_allclose(bound, expected, rtol=1e-3)
        assert (bound >= expected * (1 - 1e-9)).all() and (bound < 1.5 / share * expected).all()


def test_adaptive_counts_are_systematic():
    mixture = Mixture(np.ones(1), np.eye(1), 1e6 * np.arange(1.0, 4.0)[:, None], 1.0, 0.25)
    counts = np.zeros(4)
    draws = 400
    for seed in range(draws):
        rows = mixture.draw(np.zeros((10, 1)), np.random.default_rng(seed))
        drawn = np.bincount((rows[:, 0] / 1e6).astype(int), minlength=4)
        assert drawn.sum() == 10 and (abs(drawn - 2.5) < 1).all()
        counts += drawn
    # A count is 2 or 3: standard error 0.5 / 20 of the mean, four of them allowed.
    assert_allclose(counts / draws, 2.5, atol=0.1)


def test_adaptive_with_share_one_is_dense():
    adaptive = fitted("AdaptiveRF", keys=None, share=1.0, coupling="orthogonal")
    dense = fitted("DenseExponentialRF", keys=None)
    assert_allclose(adaptive.transform(Y), dense.transform(Y), rtol=1e-9)
    assert adaptive.centers_.shape[0] == 0 and adaptive.share_ == 1


def test_the_bound_holds_where_the_coupling_draws_opposite_rows():
    """In two columns, even functions of the noise are equal in both rows of a simplex."""
    rows = np.random.default_rng(1).normal(size=(300, 2)) * [1, 0.02]
    Z = np.array([[0.0, 0.0], [1.0, 0.0]])
    adaptive = AdaptiveRF(2, sigma=1.0, share=0.95, coupling="simplex", random_state=0).fit(rows)
    kernel = adaptive.exact_kernel(Z, -Z)
    draws = [adaptive.redraw(seed).approximate_kernel(Z, -Z) for seed in range(600)]
    errors = np.mean((np.array(draws) - kernel) ** 2, axis=0)
    # Up to 1.2 times the bound of independent rows, 0.6 times this one.
    assert (errors < adaptive.kernel_variance(Z, -Z)).all()


@pytest.mark.parametrize("coupling", ["iid", "orthogonal"])
def test_the_bound_holds_where_classes_share_clusters(coupling):
    """Eight classes in two places: class by class, places would be drawn four times or never."""
    rng = np.random.default_rng(0)
    places = np.array([[2.0, 2.0], [-2.0, -2.0]])
    rows = places[np.arange(400) % 2] + 0.1 * rng.normal(size=(400, 2))
    adaptive = AdaptiveRF(8, n_centers=16, share=0.01, coupling=coupling, sigma=1.0, random_state=0)
    adaptive.fit(rows, rng.integers(0, 8, 400))
    draws = [adaptive.redraw(seed).approximate_kernel(places) for seed in range(200)]
    errors = np.mean((np.array(draws) - adaptive.exact_kernel(places)) ** 2, axis=0)
    assert (errors < adaptive.kernel_variance(places)).all()


def test_adaptive_places_its_centers():
    assert len(fitted("AdaptiveRF", keys=None, centers="kmeans").centers_) == 24
    adaptive = fitted("AdaptiveRF", keys=None, centers="random")
    assert adaptive.share_ == 0.1
    twice = 2 * adaptive.sigma_ * (X - adaptive.offset_)
    assert_allclose(np.sort(adaptive.centers_, axis=0), np.sort(twice, axis=0), atol=1e-9)


def test_rows_that_agree_to_rounding_are_one():
    """K-means would warn that it finds fewer clusters."""
    rng = np.random.default_rng(0)
    few = rng.normal(size=(5, 4))
    rows = np.repeat(few, 12, axis=0) * (1 + 1e-15 * rng.normal(size=(60, 4)))
    centers = AdaptiveRF(16, centers="kmeans", random_state=0).fit(rows).centers_
    assert centers.shape == (5, 4)
    assert AdaptiveRF(16, centers="kmeans").fit(rows[:12]).centers_.shape[0] <= 12


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(st.integers(1, 40), st.integers(1, 4), st.booleans(), st.integers(0, 2**31))
def test_equal_rows_count_once_in_lexicographic_order(n, d, is_labelled, seed):
    rng = np.random.default_rng(seed)
    rows = rng.choice([-2.5, -1.0, -0.0, 0.0, 1e-9, 3.0], size=(n, d))
    weights = rng.uniform(0.5, 2, size=n)
    labels = rng.integers(0, 3, n) if is_labelled else None
    both = rows if labels is None else np.c_[rows, labels]
    expected, inverse = np.unique(both, axis=0, return_inverse=True)
    for container in (np.asarray, np.asfortranarray, sp.csr_array):
        distinct, totals, codes = unique_rows(container(rows), weights, labels)
        distinct = distinct.toarray() if sp.issparse(distinct) else distinct
        assert_array_equal(distinct, expected[:, :d])
        assert_allclose(totals, np.bincount(inverse.ravel(), weights), rtol=1e-12)
        assert labels is None or np.array_equal(codes, expected[:, d])
    assert_array_equal(unique_rows(rows, None, labels)[1], np.bincount(inverse.ravel()))


def test_samples_are_drawn_in_proportion_to_their_weights():
    rng = np.random.default_rng(0)
    weights = rng.exponential(size=50)
    for most in (1, 7, 49):
        chosen, counts = representatives(weights, most, rng)
        drawn = np.bincount(chosen, counts, minlength=50)
        assert drawn.sum() == most and (abs(drawn - most * weights / weights.sum()) < 1).all()
    chosen, shares = representatives(weights, 50, rng)
    assert_array_equal(chosen, np.arange(50))
    assert_allclose(shares, weights / weights.max(), rtol=1e-15)
    # Halves are rounded as halves, whatever the common factor of the weights.
    for factor in rng.uniform(0.1, 10, size=100):
        assert_array_equal(_proportional_counts(factor * np.array([1.0, 2.0, 3.0]), 6), [1, 3, 2])


def test_spatial_order_halves_the_widest_axis():
    points = np.random.default_rng(0).normal(size=(64, 2))
    order = spatial_order(points)
    assert_array_equal(np.sort(order), np.arange(64))
    widest = np.ptp(points, axis=0).argmax()
    assert points[order[:32], widest].max() <= points[order[32:], widest].min()


def test_weights_move_centers():
    """One centre is the weighted mean; a class that has lost its weight has none."""
    rng = np.random.default_rng(0)
    Z, weights = rng.normal(size=(60, 2)), rng.uniform(size=60)
    one = AdaptiveRF(16, sigma=1.0, centers="kmeans", n_centers=1, center=False, random_state=0)
    half = np.where(np.arange(60) < 30, 1e-300, 1e300)
    for uneven, mean in ((weights, np.average(Z, axis=0, weights=weights)), (half, Z[30:].mean(0))):
        assert_allclose(one.fit(Z, sample_weight=uneven).centers_, 2 * mean[None], atol=1e-9)
    uneven = AdaptiveRF(16).fit(Z, sample_weight=np.geomspace(1e-300, 1e300, 60))
    assert np.isfinite(uneven.omega_).all()
    labels = np.arange(60) % 3
    classes = AdaptiveRF(2, centers="classes", random_state=0)
    with pytest.raises(ValueError, match="at most 2"):
        classes.fit(Z, labels)
    assert len(classes.fit(Z, labels, sample_weight=1.0 * (labels > 0)).centers_) == 2
    # Of 27 centres beyond one each a class gets its share of the weight: 5.4, 5.4 and 16.2.
    shares = AdaptiveRF(30, centers="classes", share=0.5, random_state=0)
    far = Z + 100 * (labels == 2)[:, None]
    heavy = shares.fit(far, labels, sample_weight=np.where(labels == 2, 3.0, 1.0))
    assert len(heavy.centers_) == 30 and (heavy.centers_[:, 0] > 0).sum() == 17


def test_attention_goes_to_keys_by_their_weights():
    """Two keys at one distance, of weights 1 and 3."""
    queries = _Points(np.zeros((4000, 1)), np.ones(4000), np.zeros(4000), None)
    keys = _Points(np.array([[-1.0], [1.0]]), np.array([0.2, 0.6]), np.zeros(2), None)
    near = _near_sums(queries, keys, np.random.default_rng(0)).rows
    # Standard error 0.007, 4.4 of them allowed.
    assert_allclose(np.mean(near == 1), 0.75, atol=0.03)
    assert_array_equal(np.unique(near), [-1, 1])


def test_equal_keys_draw_centers_by_their_number():
    """Two keys at one distance, of which one occurs nine times as often."""
    queries, keys = np.linspace(-1e-3, 1e-3, 900)[:, None], np.repeat([-1.0, 1.0], [5, 45])[:, None]
    mechanism = AdaptiveRF(32, centers="random", n_centers=400, sigma=1.0, random_state=0)
    centers = mechanism.fit(queries, keys=keys).centers_
    # Standard error 0.015, 4 of them allowed.
    assert_allclose(np.mean(centers > 0), 0.9, atol=0.06)


def test_partial_fit_tells_why_it_is_absent():
    for feature_map, learnt in (
        (AdaptiveRF(), "centres of clusters"),
        (HybridRF(coefficients="gaussian"), "tau='median'"),
        (GeometricRF(per_feature=False), "the mean of"),
        (DiscreteRF(), "the law of every column's powers"),
        (OptimalPositiveRF(sigma="median"), "sigma='median'"),
    ):
        said = f"(?s)^{type(feature_map).__name__} has no partial_fit.*{learnt}.*Call fit"
        with pytest.raises(AttributeError, match=said):
            feature_map.partial_fit(X)


def test_shares_of_the_dense_proposal():
    """More of it if queries are balanced against keys, whose bumps other rows may miss."""
    queries, keys = np.random.default_rng(0).normal(size=(2, 60, 3))
    for centers, balanced in (("auto", 0.3), ("kmeans", 0.3), ("random", 0.2)):
        adaptive = AdaptiveRF(20, kernel="softmax", centers=centers, random_state=0)
        assert adaptive.fit(queries, keys=keys).share_ == 0.1
        adaptive.set_params(asymmetric=True)
        assert adaptive.fit(queries).share_ == 0.1
        assert adaptive.fit(queries, keys=keys).share_ == balanced
        adaptive.set_params(share=0.7)
        assert adaptive.fit(queries, keys=keys).share_ == 0.7
    for few in (1, 2, 3):
        assert np.isfinite(adaptive.fit(queries[:few], keys=keys).log_transform(queries)).all()


def test_parameters_of_bumps_are_refused_without_bumps():
    for params in ({"centers": "kmeans"}, {"n_centers": 3}, {"tau": 2.0}):
        (name, value) = next(iter(params.items()))
        with pytest.raises(ValueError, match=f"^{name}={value!r} has no effect with share=1"):
            AdaptiveRF(8, share=1, **params).fit(X)


def test_adaptive_centers_of_classes():
    rng = np.random.default_rng(0)
    labels = np.repeat(["a", "b", "c"], [60, 39, 1])
    Z = rng.normal(size=(100, 2)) + 6 * (labels == "b")[:, None]
    unfitted = AdaptiveRF(20, sigma=2.0, random_state=0)
    adaptive = clone(unfitted).fit(Z, labels)
    assert len(adaptive.centers_) == 20
    # By size, at least one each: the centres of a class lie among its samples.
    middle = adaptive.centers_ / 2 / adaptive.sigma_ + adaptive.offset_
    assert (middle.min(axis=1) > 3.5).sum() == 8
    assert np.isclose(middle, Z[99], atol=1e-9).all(axis=1).sum() == 1
    # Whatever the classes are called.
    renamed = clone(unfitted).fit(Z, np.repeat([9, 5, 7], [60, 39, 1]))
    assert_array_equal(renamed.centers_, adaptive.centers_)
    # Labels that cannot be used are ignored, or refused where they were asked for.
    plain, asked = clone(unfitted).fit(Z), clone(unfitted).set_params(centers="classes")
    for y in (rng.normal(size=100), np.arange(100)):
        assert_array_equal(clone(unfitted).fit(Z, y).omega_, plain.omega_)
        with pytest.raises(ValueError, match="centers='classes' needs discrete class labels"):
            asked.fit(Z, y)
    with pytest.raises(ValueError, match="keys given"):
        asked.fit(Z, labels, keys=Z)
    with pytest.raises(ValueError, match="inconsistent numbers"):
        asked.fit(Z, labels[:-1])


def test_adaptive_centers_are_sums_of_a_query_and_a_key_it_attends_to():
    """Softmax attention goes to long keys, wherever the query stands."""
    rng = np.random.default_rng(0)
    queries = 0.05 * rng.normal(size=(300, 2)) + [1, 0]
    keys = np.r_[0.05 * rng.normal(size=(299, 2)), [[9.0, 0.0]]]
    adaptive = AdaptiveRF(16, kernel="softmax", centers="kmeans", center=False, random_state=0)
    adaptive.fit(queries, keys=keys)
    # exp(9) against 299 times exp(0): nearly all attention goes to the one long key.
    share = np.mean(np.abs(adaptive.centers_ - [10, 0]).max(axis=1) < 0.5)
    assert share > 0.5
    labelled = AdaptiveRF(8, kernel="softmax", centers="classes", center=False, random_state=0)
    labelled.fit(keys, np.repeat([0, 1], 150))
    assert len(labelled.centers_) == 8
    assert np.abs(labelled.centers_[:, 0]).max() > 8  # a short row attends to the long one


def test_labels_of_every_container():
    """One column is what it holds; what is no list of labels is ignored."""
    rng = np.random.default_rng(0)
    Z, y = rng.normal(size=(60, 3)), np.arange(60) % 2
    names = np.array(["no", "yes"])[y]
    plain, *labelled = (
        AdaptiveRF(16, random_state=0).fit(Z, labels)
        for labels in (None, y, y[:, None], y == 1, y.tolist(), names, names.astype(object))
    )
    assert (labelled[0].omega_ != plain.omega_).any()
    for other in labelled[1:]:
        assert_array_equal(other.omega_, labelled[0].omega_)
    for several in (y.astype(float), np.c_[y, y], sp.csr_array(np.c_[y, 1 - y])):
        assert_array_equal(AdaptiveRF(16, random_state=0).fit(Z, several).omega_, plain.omega_)
    for rows, labels, params, words in (
        (Z, y, {"n_centers": -1, "centers": "classes"}, "The 'n_centers' parameter"),
        (Z, np.where(y, np.nan, 1.0), {}, "y contains NaN"),
        (Z, y, {"tau": 10**400}, r"'tau'.*\[1e-100, 1e\+100\]"),
    ):
        with pytest.raises(ValueError, match=words):
            AdaptiveRF(**params).fit(rows, labels)
    for tau, size in product((1e-100, 1e100), (1.0, 1e100)):
        adaptive = AdaptiveRF(8, tau=tau, random_state=0).fit(size * Z)
        assert np.isfinite(adaptive.log_transform(size * Z)).all()


def test_whole_targets_are_not_classes():
    """A regressor's map must not cluster within each value; a classifier's may, whatever type."""
    Z, y = np.random.default_rng(0).normal(size=(90, 3)), np.arange(90) % 3
    unfitted = AdaptiveRF(16, sigma=1.0, random_state=0)
    plain, labelled = clone(unfitted).fit(Z).omega_, clone(unfitted).fit(Z, y).omega_
    for kind, expected in ((KernelRegressor, plain), (KernelRegressionClassifier, labelled)):
        for targets in (y, y.astype(float)):
            assert_array_equal(kind(unfitted).fit(Z, targets).feature_map_.omega_, expected)
    asked = clone(unfitted).set_params(centers="classes").fit(Z, y.astype(float))
    assert_array_equal(asked.omega_, clone(asked).fit(Z, y).omega_)


def test_more_centres_than_rows_are_all_rows():
    rows = np.random.default_rng(0).normal(size=(12, 3))
    for centers in ("classes", "kmeans", "random"):
        few, many = (
            AdaptiveRF(8, centers=centers, n_centers=n, random_state=0).fit(rows, np.arange(12) % 2)
            for n in (12, 10**400)
        )
        assert many.centers_.shape == few.centers_.shape
        assert_array_equal(np.unique(many.centers_, axis=0), np.unique(few.centers_, axis=0))
