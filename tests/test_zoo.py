"""What the mechanisms beyond the plain contract promise, each in its own way.

Generalised maps may have two sides, adaptive and clustered ones look at single rows, discrete ones
hold counts, hybrid ones products of columns. What all share is tested over all of them.
"""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from instances import KERNELS, MECHANISMS, PLAIN, accepts, altered, features, make
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import factorial, gammaln
from scipy.stats import geom, poisson
from sklearn.base import clone

import skrf
from skrf import (
    AdaptiveRF,
    DenseExponentialRF,
    GeneralizedExponentialRF,
    HybridRF,
    KernelRegressionClassifier,
    KernelRegressor,
    OptimalPositiveRF,
    PositiveRF,
    RFFSampler,
    variances,
)
from skrf.features._clusters import spatial_order
from skrf.features.adaptive import Mixture
from skrf.features.exponential import balancing_map, fit_generalized, optimal_rho

ZOO = [name for name in MECHANISMS if name not in PLAIN]
CLOSE = {"rtol": 1e-9, "atol": 1e-11}
every_zoo = pytest.mark.parametrize("name", ZOO)
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def data(n=30, d=4, seed=0):
    rng = np.random.default_rng(seed)
    return np.round(rng.normal(0.3, 0.5, (n, d)), 3) * (rng.random((n, d)) < 0.7)


X, Y = data(), data(20, seed=1) + 0.2


def fitted(name, rows=X, keys=Y, **params):
    return make(name, **{"n_components": 24, "random_state": 0, **params}).fit(rows, keys=keys)


@every_zoo
@every_kernel
def test_every_container_gives_the_same_features(name, kernel):
    reference = fitted(name, kernel=kernel, sigma="scale")
    queries, keys = reference.transform(Y), reference.transform_keys(Y)
    assert queries.shape == (20, reference.n_components_)
    assert_allclose(
        reference.approximate_kernel(Y, X), queries @ reference.transform_keys(X).T, **CLOSE
    )
    sparse = fitted(name, sp.csr_array(X), sp.csr_array(Y), kernel=kernel, sigma="scale")
    assert_allclose(sparse.transform(sp.csr_matrix(Y)), queries, **CLOSE)
    assert_allclose(sparse.transform_keys(sp.csc_array(Y)), keys, **CLOSE)
    for single in (Y.astype(np.float32), sp.csr_array(Y.astype(np.float32))):
        half = reference.transform(single)
        assert half.dtype == np.float32
        assert_allclose(half, queries, rtol=2e-4, atol=1e-5 * abs(queries).max())
    for i in (0, 7):
        assert_allclose(reference.transform(Y[i : i + 1]), queries[i : i + 1], **CLOSE)
    copy = pickle.loads(pickle.dumps(reference))
    assert_array_equal(copy.transform_keys(Y), keys)
    assert_array_equal(clone(reference).fit(X, keys=Y).transform(Y), queries)


@pytest.mark.parametrize("name", ["AdaptiveRF", "HybridRF-clustered"])
def test_float32_rows_make_the_choices_of_float64(name):
    """With this seed, rounding before the choice moved a drawn row by 1.1."""
    rows, keys = np.random.default_rng(12).normal(size=(2, 100, 3)).astype(np.float32)
    params = {"asymmetric": True} if accepts(name, "asymmetric") else {}
    params |= {"kernel": "softmax", "sigma": 1.7}
    single = fitted(name, rows, keys, **params)
    double = fitted(name, rows.astype(float), keys.astype(float), **params)
    assert_array_equal(single.omega_, double.omega_)
    for attribute in ("centers_", "query_centers_", "key_centers_"):
        if hasattr(single, attribute):
            assert_array_equal(getattr(single, attribute), getattr(double, attribute))


@every_zoo
def test_claims_hold(name):
    reference = fitted(name)
    queries, keys = reference.transform(X), reference.transform_keys(X)
    assert reference.is_symmetric == np.array_equal(queries, keys)
    if reference.is_positive:
        assert (queries > 0).all() and (keys > 0).all()
        assert_allclose(np.exp(reference.log_transform(X)), queries, **CLOSE)
    else:
        assert not hasattr(reference, "log_transform")


@every_zoo
@pytest.mark.parametrize("sigma", [1e-3, 1e3])
def test_extreme_sigma_and_degenerate_data(name, sigma):
    for rows in (X, X[:1], np.ones((5, 3)), X[:, :1], np.zeros((3, 2))):
        reference = make(name, n_components=6, sigma=sigma, random_state=0).fit(rows)
        values = reference.feature_maps_[0](np.asarray(rows)).values
        assert not np.isnan(values).any()
        if reference.is_positive:
            assert np.isfinite(values).all()


@every_zoo
def test_partial_fit_is_fit_on_the_concatenation(name):
    whole = make(name, n_components=24, sigma="scale", random_state=0)
    if not hasattr(whole, "partial_fit"):
        single_rows = (AdaptiveRF, HybridRF, skrf.GeometricRF)
        assert isinstance(whole, single_rows)
        return
    whole.fit(X)
    parts = clone(whole)
    for rows in np.array_split(X, 3):
        parts.partial_fit(rows)
    assert_allclose(parts.transform(Y), whole.transform(Y), **CLOSE)
    assert not hasattr(clone(whole).set_params(sigma="median"), "partial_fit")


@every_zoo
def test_kernel_regression_takes_it(name):
    y = np.arange(30) % 3
    model = KernelRegressionClassifier(make(name, n_components=24, random_state=0)).fit(X, y)
    shares = model.predict_proba(Y)
    assert_allclose(shares.sum(axis=1), 1.0)
    mapped = model.feature_map_
    scores = mapped.transform(Y) @ (mapped.transform_keys(X).T @ np.eye(3)[y])
    assert_array_equal(model.predict(Y), scores.argmax(axis=1))


# ------------------------------------------------------------------ generalised and dense


def test_generalized_contains_its_family():
    rows = data(40, 3, seed=5)
    generalized = fitted("GeneralizedExponentialRF", rows, None, n_components=20)
    for s, other in ((-1, RFFSampler(20)), (1, PositiveRF(10)), (1, OptimalPositiveRF(10))):
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
@pytest.mark.parametrize("sums", [(0.1, 0.1), (8.0, 8.0), (1.0, 60.0), (60.0, 1.0), (300.0, 300.0)])
def test_generalized_is_never_worse_than_its_members(n_features, sums):
    means = {1: sums[0], -1: sums[1]}
    norms2 = sum(sums) / 2

    def objective(A, s):
        law = variances.Generalized(A, s)
        return law.log_second_moment(means[s], n_features) - (s + 1) * norms2

    best = objective(*fit_generalized(means, norms2, n_features))
    optimal = (1 - 1 / optimal_rho(means[1], n_features)) / 8
    for A, s in ((0j, -1), (0j, 1), (complex(optimal), 1)):
        assert best <= objective(A, s) + 1e-8 * (1 + abs(best))


@pytest.mark.parametrize("scale", [1e3, 1e4, 1e6, 1e9])
def test_generalized_fits_data_of_any_size(scale):
    """Steps of the line search left the half plane for a third of such data."""
    for seed in range(10):
        rows = scale * np.random.default_rng(seed).normal(size=(20, 4))
        generalized = fitted("GeneralizedExponentialRF", rows, rows[:5] + scale)
        assert np.isfinite(generalized.A_) and 1 - 8 * generalized.A_.real > 0
        assert np.isfinite(generalized.feature_maps_[0](rows[:3]).values).all()


def test_dense_with_equal_axes_is_optimal_positive():
    # The four corners of a square and of its negative: a covariance that is a multiple of I.
    rows = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    dense = fitted("DenseExponentialRF", rows, None)
    optimal = OptimalPositiveRF(24, random_state=0).fit(rows)
    assert_allclose(dense.rho_, optimal.rho_, rtol=1e-12)
    assert_allclose(dense.transform(rows), optimal.transform(rows), rtol=1e-10)


def test_dense_follows_the_axes_of_the_data():
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    rows = rng.normal(size=(400, 3)) * [3.0, 1.0, 0.1] @ turn
    dense = fitted("DenseExponentialRF", rows, None)
    second_moment = 2 * np.cov(rows.T, bias=True)
    found = dense.rotation_ @ second_moment @ dense.rotation_.T
    assert_allclose(found, np.diag(np.diagonal(found)), atol=1e-10)
    expected = [optimal_rho(value, 1) for value in np.diagonal(found)]
    assert_allclose(dense.rho_, expected, rtol=1e-10)


def test_balancing_gives_one_covariance_and_keeps_products():
    rng = np.random.default_rng(0)
    Cx, Cy = (A @ A.T for A in rng.normal(size=(2, 4, 4)))
    S, inverse = balancing_map(Cx, Cy)
    assert_allclose(S.T @ inverse, np.eye(4), atol=1e-10)
    assert_allclose(S @ Cx @ S.T, inverse @ Cy @ inverse.T, rtol=1e-4, atol=1e-4)
    for nothing in (balancing_map(0 * Cx, Cy), balancing_map(Cx, 0 * Cy)):
        assert_array_equal(nothing, [np.eye(4), np.eye(4)])
    with pytest.raises(ValueError, match="asymmetric=True.*softmax.*gaussian"):
        DenseExponentialRF(asymmetric=True).fit(X)


# ------------------------------------------------------------------ adaptive


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_adaptive_weights_make_every_component_exact(share):
    """Gauss-Hermite over each component of the mixture: mean 1 of exp(w.z - |z|^2/2) p/q."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    weights = weights / weights.sum()
    centers = np.array([[1.5], [-0.5]])
    mixture = Mixture(np.array([0.6]), np.eye(1), centers, 0.9, share)
    parts = [(share, nodes * np.sqrt((1 + 1 / 0.6) / 2))]
    parts += [((1 - share) / 2, center[0] + 0.9 * nodes) for center in centers]
    for z in (-0.7, 0.0, 1.2):
        total = 0.0
        for part_share, w in parts:
            log_ratio = -(w**2) / 2 - mixture.log_density(w[:, None])
            total += part_share * (weights @ np.exp(w * z - z**2 / 2 + log_ratio))
        # The ratio is not a polynomial: 120 nodes leave 1e-6.
        assert_allclose(total, 1.0, atol=1e-6)


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
    assert adaptive.centers_.shape[0] == 0 and adaptive.choice_scores_ == {}


def test_adaptive_centers_stand_in_spatial_order():
    points = np.random.default_rng(0).normal(size=(64, 2))
    order = spatial_order(points)
    assert_array_equal(np.sort(order), np.arange(64))
    widest = points.var(axis=0).argmax()
    assert points[order[:32], widest].max() <= points[order[32:], widest].min()
    assert_array_equal(spatial_order(np.zeros((3, 2))), np.arange(3))
    step = np.linalg.norm(np.diff(points[order], axis=0), axis=1).mean()
    assert step < 0.7 * np.linalg.norm(np.diff(points, axis=0), axis=1).mean()


@pytest.mark.parametrize(("centers", "expected"), [("kmeans", 24), ("random", 30), ("none", 0)])
def test_adaptive_places_its_centers(centers, expected):
    adaptive = fitted("AdaptiveRF", keys=None, centers=centers)
    assert len(adaptive.centers_) == expected and adaptive.share_ == (0.1 if expected else 1.0)
    if centers == "random":
        twice = 2 * adaptive.sigma_ * (X - adaptive.offset_)
        assert_allclose(np.sort(adaptive.centers_, axis=0), np.sort(twice, axis=0), atol=1e-12)


def test_rows_that_agree_to_rounding_are_one():
    """K-means would warn that it finds fewer clusters."""
    rng = np.random.default_rng(0)
    few = rng.normal(size=(5, 4))
    rows = np.repeat(few, 12, axis=0) * (1 + 1e-15 * rng.normal(size=(60, 4)))
    centers = AdaptiveRF(16, centers="kmeans", random_state=0).fit(rows).centers_
    assert centers.shape == (5, 4)
    assert AdaptiveRF(16, centers="kmeans").fit(rows[:12]).centers_.shape[0] <= 12


def test_adaptive_choice_is_the_least_score():
    adaptive = AdaptiveRF(16, sigma=3.0, random_state=0).fit(X)
    assert set(adaptive.choice_scores_) == {"kmeans", "none"}
    best = min(adaptive.choice_scores_, key=adaptive.choice_scores_.get)
    assert adaptive.share_ == (1.0 if best == "none" else 0.1)
    assert np.isfinite(list(adaptive.choice_scores_.values())).all()
    again = AdaptiveRF(16, sigma=3.0, random_state=0).fit(X)
    assert_array_equal(again.omega_, adaptive.omega_)


def test_adaptive_centers_of_classes():
    rng = np.random.default_rng(0)
    labels = np.repeat(["a", "b", "c"], [60, 39, 1])
    Z = rng.normal(size=(100, 2)) + 6 * (labels == "b")[:, None]
    mechanism = AdaptiveRF(20, sigma=2.0, random_state=0)
    adaptive = mechanism.fit(Z, labels)
    assert set(adaptive.choice_scores_) == {"classes", "none"}
    assert len(adaptive.centers_) == 20
    # By size, at least one each: the centres of a class lie among its rows, in its turn.
    middle = adaptive.centers_ / 2 / adaptive.sigma_ + adaptive.offset_
    assert (middle[:11].max(axis=1) < 3.5).all() and (middle[12:19].min(axis=1) > 1).all()
    assert_allclose(middle[19], Z[99], rtol=1e-12)
    # Labels that cannot be used are ignored, or refused where they were asked for.
    plain = clone(mechanism).fit(Z)
    for y in (rng.normal(size=100), np.arange(100)):
        assert_array_equal(clone(mechanism).fit(Z, y).omega_, plain.omega_)
        with pytest.raises(ValueError, match="centers='classes' needs discrete class labels"):
            clone(mechanism).set_params(centers="classes").fit(Z, y)
    with pytest.raises(ValueError, match="keys given"):
        clone(mechanism).set_params(centers="classes").fit(Z, labels, keys=Z)
    with pytest.raises(ValueError, match="inconsistent numbers"):
        clone(mechanism).fit(Z, labels[:-1])


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
    own = AdaptiveRF(8, kernel="softmax", centers="classes", center=False, random_state=0)
    labels = np.repeat([0, 1], 150)
    assert len(own.fit(keys, labels).centers_) == 8
    assert np.abs(own.centers_[:, 0]).max() > 8  # a short row attends to the long one


def test_labels_of_every_container():
    """One column is what it holds; what is no list of labels is ignored."""
    rng = np.random.default_rng(0)
    Z, y = rng.normal(size=(60, 3)), np.arange(60) % 2
    expected = AdaptiveRF(16, random_state=0).fit(Z, y).omega_
    names = np.array(["no", "yes"])[y]
    for labels in (y[:, None], y == 1, y.tolist(), names, names.astype(object)):
        assert_array_equal(AdaptiveRF(16, random_state=0).fit(Z, labels).omega_, expected)
    plain = AdaptiveRF(16, random_state=0).fit(Z)
    for several in (
        y.astype(float),
        np.c_[y, y],
        sp.csr_array(np.c_[y, 1 - y]),
        sp.csr_matrix(y[:, None]),
    ):
        assert_array_equal(AdaptiveRF(16, random_state=0).fit(Z, several).omega_, plain.omega_)
    for wrong in ({"n_components": "many"}, {"n_centers": -1, "centers": "classes"}):
        with pytest.raises(ValueError, match=f"The '{next(iter(wrong))}' parameter"):
            AdaptiveRF(**wrong).fit(Z, y)
    with pytest.raises(ValueError, match="y contains NaN"):
        plain.fit(Z, np.where(y, np.nan, 1.0))
    with pytest.raises(ValueError, match="X contains NaN"):
        plain.fit(np.full_like(Z, np.nan), y)
    assert "_labels" not in vars(plain)


def test_whole_targets_are_not_classes():
    """A regressor's map must not cluster within each value; a classifier's may, whatever type."""
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(90, 3))
    y = np.arange(90) % 3
    mechanism = AdaptiveRF(16, random_state=0)
    plain, labelled = clone(mechanism).fit(Z).omega_, clone(mechanism).fit(Z, y).omega_
    for estimator, expected in (
        (KernelRegressor(mechanism), plain),
        (KernelRegressionClassifier(mechanism), labelled),
    ):
        for targets in (y, y.astype(float)):
            assert_array_equal(clone(estimator).fit(Z, targets).feature_map_.omega_, expected)
    asked = clone(mechanism).set_params(centers="classes").fit(Z, y.astype(float))
    assert_array_equal(asked.omega_, clone(asked).fit(Z, y).omega_)


def test_labels_make_adaptive_kernel_regression_more_accurate():
    """Two interleaved classes of small clusters: plain centres mix them."""
    rng = np.random.default_rng(0)
    spots = rng.uniform(size=(60, 3)) * 6
    group = rng.integers(60, size=1200)
    Z, y = spots[group] + 0.25 * rng.normal(size=(1200, 3)), group % 2
    gains = []
    for seed in range(12):
        scores = [
            KernelRegressionClassifier(
                AdaptiveRF(32, sigma=4.0, centers=centers, random_state=seed)
            )
            .fit(Z[:800], y[:800])
            .score(Z[800:], y[800:])
            for centers in ("classes", "kmeans")
        ]
        gains.append(scores[0] - scores[1])
    # Seen: 0.10 with a standard error of 0.01; without labels 0.
    assert np.mean(gains) > 0.05


# ------------------------------------------------------------------ discrete


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


def test_a_rate_per_column_is_better_where_columns_differ():
    rows = np.random.default_rng(0).normal(size=(100, 4)) * [2.0, 1.0, 0.2, 0.1]
    each, single = (
        np.median(fitted("PoissonRF", rows, None, per_feature=flag).kernel_variance(rows, log=True))
        for flag in (True, False)
    )
    assert each < single - 0.5


# ------------------------------------------------------------------ hybrid


def test_a_single_cluster_is_its_base():
    hybrid = fitted("HybridRF-clustered", keys=None, n_clusters=1)
    positive = PositiveRF(24, random_state=0).fit(X)
    assert_allclose(hybrid.transform(Y), positive.transform(Y), rtol=1e-10)
    assert_allclose(hybrid.transform_keys(Y), positive.transform(Y), rtol=1e-10)


@pytest.mark.parametrize("name", ["HybridRF", "HybridRF-hyperbolic", "HybridRF-gaussian"])
def test_hybrid_columns_are_counted_as_documented(name):
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


def test_hybrid_equals_its_formula():
    for name in ("HybridRF", "HybridRF-gaussian"):
        reference = fitted(name, keys=None, n_components=100)
        rows = X - reference.offset_
        positive = PositiveRF(len(reference.omega_), random_state=0).fit(X)
        trigonometric = RFFSampler(2 * len(reference.omega_), random_state=0).fit(X)
        P, T = positive.approximate_kernel(X), trigonometric.approximate_kernel(X)
        taus = reference._fitted.queries.taus.dense()
        if name == "HybridRF":
            signs = np.where(rows @ taus.T < 0, -1.0, 1.0)
            weight = (1 - signs @ signs.T / len(taus)) / 2
        else:
            angles = rows @ taus.T
            weight = 1 - np.cos(angles[:, None] - angles).mean(axis=2)
        assert_allclose(
            reference.approximate_kernel(X), weight * P + (1 - weight) * T, rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("recenter", [True, False])
def test_a_pair_of_rows_meets_in_one_block(recenter):
    name = "HybridRF-clustered" if recenter else "HybridRF-complex"
    reference = fitted(name, n_components=48)
    width = 48 // 4
    used = [
        (np.abs(rows).reshape(len(rows), 4, width) > 0).any(axis=2)
        for rows in (reference.transform(X), reference.transform_keys(Y))
    ]
    assert ((used[0][:, None] & used[1]).sum(axis=2) == 1).all()
    with pytest.raises(ValueError, match="sample_weight.*clustered"):
        make(name).fit(X, sample_weight=np.ones(30))


def test_wrong_bases_are_named():
    for base in (("trigonometric", "positive"), ("positive",), ("cosine", "trigonometric")):
        with pytest.raises(ValueError, match="'base'.*hyperbolic"):
            HybridRF(base=base).fit(X)


# ------------------------------------------------------------------ other kernels of RFFSampler


@pytest.mark.parametrize("kernel", ["laplacian", "cauchy", "matern12", "matern32", "matern52"])
def test_other_kernels_refuse_what_is_unknown(kernel):
    features = RFFSampler(24, kernel=kernel, random_state=0).fit(X)
    with pytest.raises(NotImplementedError, match=kernel):
        features.kernel_variance(X)
    assert features.transform(sp.csr_array(X)).shape == (30, 24)
    assert accepts("RFFSampler", "kernel")


@pytest.mark.parametrize(("A", "s"), [(0.02 + 0.05j, 1), (-0.1 + 0.08j, 1), (0.03 - 0.06j, -1)])
@pytest.mark.parametrize("coupling", ["orthogonal", "simplex"])
def test_complex_maps_have_the_pair_term_of_real_ones(A, s, coupling):
    """2,000 draws of 24 projections; 15 % is 4.7 standard errors of a variance of normal values."""
    rows = data(6, 4, seed=3) / 4
    reference = GeneralizedExponentialRF(48, coupling=coupling, random_state=0).fit(rows)
    reference = altered(reference, A_=A, s_=s, n_projections=24)
    values = np.array([reference.redraw(seed).approximate_kernel(rows) for seed in range(2000)])
    far = ~np.eye(6, dtype=bool)
    error = values.mean(axis=0) - reference.exact_kernel(rows)
    assert (np.abs(error) <= 4.4 * values.std(axis=0) / np.sqrt(2000) + 1e-12).all()
    ratio = values.var(axis=0)[far] / reference.kernel_variance(rows)[far]
    assert (np.abs(ratio - 1) < 0.15).all()
