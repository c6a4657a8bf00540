"""Ridge regression on features: equal to brute force, to a Gaussian process, and to a search."""

import pickle
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import make
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import multivariate_normal
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, DotProduct
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    PredefinedSplit,
    RepeatedKFold,
    ShuffleSplit,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from threadpoolctl import threadpool_limits

from skrf import (
    AdaptiveRF,
    ApproxKernelRidge,
    ApproxKernelRidgeClassifier,
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
    ClusterNystroem,
    OptimalPositiveRF,
    PositiveRF,
    RFFSampler,
)
from skrf.features import as_feature_map
from skrf.regression import _ridge
from skrf.regression._ridge import Moments, moments_of_rows
from skrf.regression.ridge import Targets

_rng = np.random.default_rng(0)
X = _rng.normal(size=(80, 3))
Q = _rng.normal(size=(30, 3)) * 1.5
T = np.column_stack([np.sin(2 * X[:, 0]), X[:, 1] ** 2, 1e3 + X[:, 2]])
y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
WEIGHTS = _rng.random(80) * (np.arange(80) % 5 > 0)

MAPS = {
    "trigonometric": RFFSampler(40, sigma=0.8, random_state=0),
    "positive": PositiveRF(40, sigma=0.8, random_state=0),
    "wide": OptimalPositiveRF(150, sigma="scale", random_state=0),
    "signed": make("GeneralizedExponentialRF", n_components=40, sigma=0.5, random_state=0),
    "asymmetric": make("HybridRF", n_components=90, sigma=0.8, random_state=0),
    "nystroem": Nystroem(n_components=20, random_state=0),
    "piped": make_pipeline(StandardScaler(), RFFSampler(40, random_state=0)),
}
every_map = pytest.mark.parametrize("which", MAPS)
weighted_or_not = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
ESTIMATORS = [
    ApproxKernelRidge(RFFSampler(20), random_state=0),
    ApproxKernelRidgeClassifier(RFFSampler(20), random_state=0),
    ApproxKernelRidgeCV(RFFSampler(20), sigmas=2, random_state=0),
    ApproxKernelRidgeClassifierCV(RFFSampler(20), sigmas=2, random_state=0),
]
every_estimator = pytest.mark.parametrize(
    "estimator", ESTIMATORS, ids=lambda estimator: type(estimator).__name__
)


def features_of(model, rows):
    """The features that a ridge sees: those of positive maps normalised."""
    features = model.feature_map_.transform(rows).astype(float)
    if getattr(model.feature_map_, "is_positive", False):
        features /= np.linalg.norm(features, axis=1, keepdims=True)
    return features


def targets_of(estimator):
    return y if hasattr(estimator, "decision_function") else T[:, 0]


def arrays_of(model):
    """The numbers that a fitted model holds."""
    moments = model._fitted.moments
    return [moments.mean, moments.products, model.coef_, np.asarray(model.intercept_)]


# ------------------------------------------------------------------ the estimate itself


@every_map
@weighted_or_not
@pytest.mark.parametrize("n_outputs", [0, 1, 3], ids=["flat", "one", "three"])
def test_regressor_is_brute_force(which, weights, n_outputs):
    targets = T[:, 0] if n_outputs == 0 else T[:, :n_outputs]
    model = ApproxKernelRidge(MAPS[which], alpha=0.3).fit(X, targets, sample_weight=weights)
    brute = Ridge(0.3).fit(features_of(model, X), targets, sample_weight=weights)
    assert model.coef_.shape == (*targets.shape[1:], features_of(model, X).shape[1])
    coef = brute.coef_.reshape(model.coef_.shape)
    assert_allclose(model.coef_, coef, rtol=1e-8, atol=1e-9)
    assert_allclose(model.intercept_, brute.intercept_, rtol=1e-9, atol=1e-9)
    expected = brute.predict(features_of(model, Q)).reshape(30, *targets.shape[1:])
    assert_allclose(model.predict(Q), expected, rtol=1e-9, atol=1e-9)


@every_map
@weighted_or_not
def test_two_classes_are_a_ridge_classifier(which, weights):
    names = np.array(["a", "b"])[np.minimum(y, 1)]
    model = ApproxKernelRidgeClassifier(MAPS[which], alpha=2.0).fit(X, names, weights)
    brute = RidgeClassifier(alpha=2.0).fit(features_of(model, X), names, weights)
    features = features_of(model, Q)
    expected = brute.decision_function(features)
    assert_allclose(model.decision_function(Q), expected, rtol=1e-9, atol=1e-9)
    assert_array_equal(model.predict(Q), brute.predict(features))
    assert_allclose(model.coef_, np.atleast_2d(brute.coef_), rtol=1e-8, atol=1e-9)
    assert not hasattr(model, "predict_proba")


class WithRidge(BaseEstimator):
    """The covariance of a class plus a ridge."""

    def __init__(self, ridge):
        self.ridge = ridge

    def fit(self, X):
        self.covariance_ = np.cov(X.T, bias=True) + self.ridge * np.eye(X.shape[1])
        return self


@every_map
@pytest.mark.parametrize("repeats", [1, np.arange(80) % 4], ids=["plain", "weighted"])
@pytest.mark.parametrize("alpha", [1e-3, 2.0])
def test_three_classes_are_linear_discriminants(which, repeats, alpha):
    names, weights = np.array(["a", "b", "c"])[y], np.full(80, repeats)
    model = ApproxKernelRidgeClassifier(MAPS[which], alpha=alpha).fit(X, names, weights)
    features = features_of(model, np.repeat(X, weights, axis=0))
    estimator = WithRidge(alpha / weights.sum())
    brute = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=estimator)
    brute.fit(features, np.repeat(names, weights))
    expected = brute.decision_function(features_of(model, Q))
    found = model.decision_function(Q)
    assert_array_equal(model.predict(Q), brute.predict(features_of(model, Q)))
    # Their common term is that of the mean of all features.
    found, expected = (part - part.mean(axis=1, keepdims=True) for part in (found, expected))
    assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert model.coef_.shape == (3, features.shape[1]) and model.intercept_.shape == (3,)


def test_discriminants_are_finite_where_features_explain_the_classes():
    rows = np.repeat(np.eye(3), 5, axis=0)
    labels = np.argmax(rows, axis=1)
    for alpha in (1e-300, 1e-18, 1.0):
        model = ApproxKernelRidgeClassifier(RFFSampler(200, random_state=0), alpha=alpha)
        assert_array_equal(model.fit(rows, labels).predict(rows), labels)
        assert np.isfinite(model.decision_function(rows)).all()
    tiny = np.where(labels == 2, 1e-150, 1.0)  # a share of 0 to rounding
    model.fit(rows, labels, sample_weight=tiny)
    assert np.isfinite(model.intercept_).all()
    assert_array_equal(model.predict(rows[:10]), labels[:10])


def test_a_class_without_rows_is_never_predicted():
    codes = _rng.integers(0, 3, 600)
    rows = np.array([[0, 0], [4, 0], [0, 4.0]])[codes] + 0.2 * _rng.normal(size=(600, 2))
    far = _rng.uniform(-2, 6, size=(500, 2))
    for n_seen in (2, 3):
        own = codes < n_seen
        model = ApproxKernelRidgeClassifier(random_state=0)
        model.partial_fit(rows[own], codes[own], classes=[0, 1, 2, 3])
        assert set(model.predict(far)) == set(range(n_seen))
        assert np.isfinite(model.decision_function(far)).all()
        model.partial_fit(rows, codes)
        assert model.score(rows, codes) == 1


@pytest.mark.parametrize(
    ("dtype", "offset", "alpha"), [("float32", 30, 1e-3), ("float64", 30, 1e-12)]
)
def test_a_class_that_is_explained_does_not_hide_the_others(dtype, offset, alpha):
    rng = np.random.default_rng(0)
    codes, rows = rng.integers(0, 3, 4000), 0.3 * rng.normal(size=(4000, 20))
    rows[:, 0] += 0.6 * (codes == 1)  # overlaps with class 0
    rows[:, 1] = 3.0 * (codes == 2)
    rows = (rows @ np.linalg.qr(rng.normal(size=(20, 20)))[0] + offset).astype(dtype)
    model = ApproxKernelRidgeClassifier(FunctionTransformer(), alpha=alpha)
    found = model.fit(rows[:2000], codes[:2000]).score(rows[2000:], codes[2000:])
    assert found > 0.885
    assert_allclose(np.exp(model.decision_function(rows)).sum(axis=1), 1.0, rtol=1e-5)


def test_a_class_between_two_others_is_seen():
    rows = np.linspace(-1, 1, 300)[:, None]
    labels = np.searchsorted([-0.3, 0.3], rows[:, 0])
    plain = FunctionTransformer().fit(rows)  # one column: least squares masks the class between
    model = ApproxKernelRidgeClassifier(FrozenEstimator(plain), alpha=1e-6).fit(rows, labels)
    assert model.score(rows, labels) > 0.95
    assert RidgeClassifier(alpha=1e-6).fit(rows, labels).score(rows, labels) < 0.75


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("sigma", [1e-3, 1.0, 30.0, 1e3])
def test_rows_of_positive_maps_are_normalised_in_log_space(sigma, dtype):
    feature_map = OptimalPositiveRF(40, sigma=sigma, random_state=0)
    rows, queries = X.astype(dtype), Q.astype(dtype)
    model = ApproxKernelRidge(feature_map, alpha=0.1).fit(rows, T[:, 0])
    fitted = clone(feature_map).fit(rows)

    def normalised(rows):
        logs = fitted.log_transform(rows.astype(float))
        features = np.exp(logs - logs.max(axis=1, keepdims=True))
        return features / np.linalg.norm(features, axis=1, keepdims=True)

    brute = Ridge(0.1).fit(normalised(rows), T[:, 0])
    tolerance = 1e-7 if dtype == np.float64 else 2e-3
    assert_allclose(model.predict(queries), brute.predict(normalised(queries)), atol=tolerance)


@every_estimator
def test_sparse_rows_and_frozen_maps(estimator):
    dense, targets = X * (X > 0), targets_of(estimator)
    plain = clone(estimator).fit(dense, targets)
    sparse = clone(estimator).fit(sp.csr_array(dense), targets)
    assert_allclose(sparse.predict(sp.csr_array(Q)), plain.predict(Q), rtol=1e-9, atol=1e-9)
    pre = RFFSampler(20, sigma=0.3, random_state=3).fit(Q)
    params = {"random_state": None, "feature_map": FrozenEstimator(pre)}
    params |= {"sigmas": None} if hasattr(estimator, "sigmas") else {}
    frozen = clone(estimator).set_params(**params).fit(X, targets)
    assert_array_equal(frozen.feature_map_.transform(X), pre.transform(X))
    with pytest.raises(ValueError, match="fitted with 3"):
        clone(frozen).fit(X[:, :2], targets)


# ------------------------------------------------------------------ a Gaussian process


@pytest.mark.parametrize("which", ["trigonometric", "positive", "wide"])
@pytest.mark.parametrize("noise", [0.01, 0.5])
def test_a_given_noise_is_the_gaussian_process_of_the_features(which, noise):
    model = ApproxKernelRidge(MAPS[which], noise_variance=noise).fit(X, T[:, 0])
    assert model.alpha_ == noise and model.noise_variance_[0] == pytest.approx(noise)
    mean, deviation = model.predict(Q, return_std=True)
    features, queries = features_of(model, X), features_of(model, Q)
    center, level = features.mean(axis=0), T[:, 0].mean()
    process = GaussianProcessRegressor(DotProduct(0.0, "fixed"), alpha=noise, optimizer=None)
    process.fit(features - center, T[:, 0] - level)
    expected, spread = process.predict(queries - center, return_std=True)
    assert_allclose(mean, expected + level, rtol=1e-8, atol=1e-8)
    # The intercept is known as well as the mean of the rows, and targets have noise.
    assert_allclose(deviation, np.sqrt(spread**2 + noise / len(X) + noise), rtol=1e-8)
    # Once more with the kernel as it is and a mean that is not known: universal kriging.
    covariance = cho_factor(features @ features.T + noise * np.eye(len(X)))
    ones, cross = np.ones(len(X)), features @ queries.T
    weights, of_ones = cho_solve(covariance, cross), cho_solve(covariance, ones)
    level = of_ones @ T[:, 0] / of_ones.sum()
    assert_allclose(mean, level + weights.T @ (T[:, 0] - level), rtol=1e-8, atol=1e-8)
    variance = np.sum(queries**2, axis=1) - np.sum(cross * weights, axis=0)
    variance += (1 - of_ones @ cross) ** 2 / of_ones.sum() + noise
    assert_allclose(deviation**2, variance, rtol=1e-8)


def test_many_columns_are_the_exact_process():
    rng = np.random.default_rng(1)
    rows, noise = rng.uniform(-3, 3, size=(150, 1)), 0.01
    grid = np.linspace(-2.8, 2.8, 100)[:, None]
    signal = np.sin(2 * rows[:, 0]) + np.cos(rows[:, 0])
    targets = signal + np.sqrt(noise) * rng.normal(size=150)
    targets -= targets.mean()
    model = ApproxKernelRidge(
        RFFSampler(2000, sigma=1.0, random_state=0), noise_variance=noise
    ).fit(rows, targets)
    mean, deviation = model.predict(grid, return_std=True)
    process = GaussianProcessRegressor(RBF(1.0), alpha=noise, optimizer=None).fit(rows, targets)
    expected, spread = process.predict(grid, return_std=True)
    assert np.linalg.norm(mean - expected) < 0.02 * np.linalg.norm(expected)
    assert_allclose(deviation, np.sqrt(spread**2 + noise), rtol=0.02)


def test_outputs_have_their_own_noise():
    rng = np.random.default_rng(0)
    rows = rng.uniform(-2, 2, size=(2000, 1))
    targets = np.sin(rows) + rng.normal(size=(2000, 2)) * [0.1, 1.0]
    for alpha in (1.0, "evidence"):
        model = ApproxKernelRidge(RFFSampler(30), alpha=alpha, random_state=0).fit(rows, targets)
        assert_allclose(np.sqrt(model.noise_variance_), [0.1, 1.0], rtol=0.06)
        mean, deviation = model.predict(rows[:5], return_std=True)
        assert mean.shape == deviation.shape == (5, 2)
        alone = ApproxKernelRidge(RFFSampler(30), alpha=model.alpha_, random_state=0)
        assert_allclose(alone.fit(rows, targets[:, 0]).predict(rows[:5]), mean[:, 0])


def test_deviations_need_degrees_of_freedom():
    model = ApproxKernelRidge(RFFSampler(20), random_state=0).fit(X, T[:, 0], np.full(80, 1e-3))
    assert np.isfinite(model.predict(Q)).all() and np.isnan(model.noise_variance_).all()
    with pytest.raises(ValueError, match="return_std.*noise_variance"):
        model.predict(Q, return_std=True)


# ------------------------------------------------------------------ evidence


def log_evidence(features, targets, alpha):
    """Restricted likelihood of a model with a flat mean, at the best variance of the noise."""
    n = len(features)
    # Contrasts of the targets do not know the mean.
    contrasts = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, 1:]]))[0][:, 1:]
    covariance = contrasts.T @ (features @ features.T / alpha + np.eye(n)) @ contrasts
    own = contrasts.T @ targets
    noise = own @ np.linalg.solve(covariance, own) / (n - 1)
    return multivariate_normal.logpdf(own, cov=noise * covariance), noise


@pytest.mark.parametrize("which", ["trigonometric", "wide"])
def test_evidence_is_the_marginal_likelihood(which):
    targets = T[:, 0] + 0.3 * np.random.default_rng(0).normal(size=80)
    model = ApproxKernelRidge(MAPS[which], alpha="evidence").fit(X, targets)
    features = features_of(model, X)
    best, noise = log_evidence(features, targets, model.alpha_)
    assert_allclose(model.noise_variance_, noise, rtol=1e-8)
    grid = model.alpha_ * np.array([1e-4, 0.1, 0.9, 0.99, 1.01, 1.1, 10, 1e4])
    found = np.array([log_evidence(features, targets, alpha)[0] for alpha in grid])
    assert (found < best - 1e-7).all()
    brute = Ridge(model.alpha_).fit(features, targets)
    assert_allclose(model.predict(Q), brute.predict(features_of(model, Q)), rtol=1e-8, atol=1e-8)


def test_evidence_without_a_signal_or_without_noise():
    constant = ApproxKernelRidge(RFFSampler(20), alpha="evidence", random_state=0)
    assert_allclose(constant.fit(X, np.full(80, 7.0)).predict(Q), 7.0, rtol=1e-12)
    exact = ApproxKernelRidge(RFFSampler(200), sigma=1.0, alpha="evidence", random_state=0)
    counts = np.arange(20) % 3
    order = np.repeat(np.arange(20), counts)
    repeated = clone(exact).fit(X[order], T[order, 0])
    assert_allclose(repeated.predict(X[order]), T[order, 0], atol=1e-6)
    # Weights are repetitions even here, where rounding differs.
    weighted = clone(exact).fit(X[:20], T[:20, 0], sample_weight=counts)
    assert_allclose(weighted.predict(Q), repeated.predict(Q), atol=1e-6)


def test_evidence_that_is_flat_takes_the_mean():
    """With a feature for every row all alphas are equally likely."""
    rows = np.eye(12)
    model = ApproxKernelRidge(FunctionTransformer(), alpha="evidence").fit(rows, T[:12, 0])
    assert_allclose(model.predict(rows), T[:12, 0].mean(), atol=1e-4)


@pytest.mark.parametrize("d, sigma", [(1, 1.0), (2, 0.7), (3, 1.0)])
def test_intervals_cover_draws_of_a_process(d, sigma):
    rng, inside = np.random.default_rng(d), []
    for _ in range(20):
        rows = rng.normal(size=(500, d))
        distances = np.sum((rows[:, None] - rows[None]) ** 2, axis=2)
        covariance = np.exp(-(sigma**2) * distances / 2) + 1e-10 * np.eye(500)
        targets = np.linalg.cholesky(covariance) @ rng.normal(size=500)
        targets += 0.2 * rng.normal(size=500)
        model = ApproxKernelRidge(
            RFFSampler(256, sigma=sigma, random_state=0), alpha="evidence"
        ).fit(rows[:300], targets[:300])
        mean, deviation = model.predict(rows[300:], return_std=True)
        inside.append(np.abs(targets[300:] - mean) <= 1.959964 * deviation)
    assert 0.92 <= np.mean(inside) <= 0.98


# ------------------------------------------------------------------ batches and merges


@pytest.mark.parametrize("which", ["trigonometric", "positive", "nystroem"])
@weighted_or_not
def test_batches_are_one_fit(which, weights):
    pre = FrozenEstimator(clone(MAPS[which]).fit(X))  # the first batch alone fits the map
    whole = ApproxKernelRidge(pre).fit(X, T, sample_weight=weights)
    model = ApproxKernelRidge(pre)
    for rows in (slice(0, 1), slice(1, 50), slice(50, 80)):
        own = None if weights is None else weights[rows] + (rows.stop == 1)
        model.partial_fit(X[rows], T[rows], sample_weight=own)
    if weights is not None:
        own = weights.copy()
        own[0] += 1
        whole.fit(X, T, sample_weight=own)
    for found, expected in zip(arrays_of(model), arrays_of(whole), strict=True):
        assert_allclose(found, expected, rtol=1e-8, atol=1e-9)
    assert_allclose(model.noise_variance_, whole.noise_variance_, rtol=1e-8)


def test_batches_of_a_classifier():
    model = ApproxKernelRidgeClassifier(RFFSampler(20, sigma=0.5, random_state=0))
    for rows in (slice(0, 30), slice(30, 80)):
        model.partial_fit(X[rows], y[rows], classes=[2, 0, 1] if rows.start == 0 else None)
    whole = clone(model).fit(X, y)
    assert_allclose(model.decision_function(Q), whole.decision_function(Q), rtol=1e-9)
    with pytest.raises(ValueError, match="first call"):
        clone(model).partial_fit(X, y)
    with pytest.raises(ValueError, match="same as on the first call"):
        model.partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match=r"\[7\].*not in classes"):
        model.partial_fit(X, np.full(80, 7))
    with pytest.raises(ValueError, match="classes must hold"):
        clone(model).partial_fit(X, y, classes=[])


def moments(rows, values, unit=1.0, **given):
    feature_map = as_feature_map(RFFSampler(6, random_state=0).fit(X))
    units = np.full(values.shape[1], unit)
    return moments_of_rows(feature_map, rows, Targets(values, units, (2,)), None, **given)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 40), min_size=3, max_size=3),
    st.lists(st.sampled_from([2.0**-300, 1.0, 2.0**40, 2.0**500]), min_size=3, max_size=3),
    st.integers(0, 2**31),
)
def test_merges_are_sums_in_any_order(sizes, units, seed):
    rng = np.random.default_rng(seed)
    pairs = [(rng.normal(size=(n, 3)), rng.normal(size=(n, 2))) for n in sizes]
    a, b, c = (moments(*pair, unit) for pair, unit in zip(pairs, units, strict=True))
    before = pickle.dumps((a, b, c))
    found = a.merge(b).merge(c), a.merge(b.merge(c)), c.merge(a).merge(b)
    assert pickle.dumps((a, b, c)) == before
    whole = moments(*map(np.concatenate, zip(*pairs, strict=True)), max(units))
    assert all(isinstance(other, Moments) for other in found)
    for other in found:
        assert other.weight == whole.weight
        assert_array_equal(other.unit, whole.unit)
        assert_allclose(other.mean, whole.mean, rtol=1e-9, atol=1e-12)
        assert_allclose(other.products, whole.products, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("size", [1e-300, 1e-150, 1e150, 1e300])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_targets_of_any_size(size, dtype):
    feature_map = RFFSampler(20, sigma=0.5, random_state=0)
    rows = X.astype(dtype)
    for model in (
        ApproxKernelRidge(feature_map),
        ApproxKernelRidge(feature_map, alpha="evidence"),
        ApproxKernelRidgeCV(feature_map, sigmas=2),
    ):
        plain, scaled = clone(model).fit(rows, T[:, 0]), clone(model).fit(rows, size * T[:, 0])
        # Before they are rounded to the dtype of the rows, which may not hold them.
        for part in ("means", "deviations"):
            expected, found = (
                m._of_features(Q.astype(dtype), getattr(m._fitted.ridge, part))[0]
                for m in (plain, scaled)
            )
            assert_allclose(found / size, expected, rtol=1e-4 if dtype == np.float32 else 1e-8)
        assert_allclose(scaled.alpha_, plain.alpha_, rtol=1e-5)


@pytest.mark.parametrize("bits", [-900, -200, 200, 900])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_weights_of_any_size_are_units_of_alpha(bits, dtype):
    rows, weights = X.astype(dtype), 1.0 + np.arange(80) % 3
    plain = ApproxKernelRidge(RFFSampler(20, sigma=0.5, random_state=0), alpha=2.0)
    scaled = clone(plain).set_params(alpha=2.0 * 2.0**bits)
    plain.fit(rows, T, sample_weight=weights)
    scaled.fit(rows, T, sample_weight=weights * 2.0**bits)
    assert_allclose(scaled.predict(Q), plain.predict(Q), rtol=1e-9)
    search = ApproxKernelRidgeCV(RFFSampler(20, random_state=0), sigmas=None, alphas=[scaled.alpha])
    assert search.fit(rows, T, sample_weight=weights * 2.0**bits).best_score_ <= 0
    evidence = clone(plain).set_params(alpha="evidence")
    assert np.isfinite(evidence.fit(rows, T, sample_weight=weights * 2.0**bits).coef_).all()


@pytest.mark.parametrize("bits", [60, 300, 600, 950])
def test_alphas_lost_in_rounding_leave_predictions_of_the_size_of_targets(bits):
    rows, weights = np.tile(X[:10], (8, 1)).astype(np.float32), np.full(80, 2.0**bits)
    search = ApproxKernelRidgeCV(RFFSampler(20, random_state=0), sigmas=[0.01, 0.5], alphas=[0.01])
    for model in (ApproxKernelRidge(RFFSampler(20, sigma=0.5, random_state=0), alpha=0.01), search):
        found = model.fit(rows, T, sample_weight=weights).predict(rows)
        assert np.abs(found).max() < 2 * np.abs(T).max()


def test_a_row_that_outweighs_all_others_keeps_their_digits():
    weights = np.ones(400)
    weights[300] = 1e20
    rows, targets = np.tile(X, (5, 1)), np.tile(T[:, 0], 5)
    model = ApproxKernelRidge(RFFSampler(20, sigma=0.5, random_state=0), alpha=100.0)
    model.fit(rows, targets, sample_weight=weights)
    F = model.feature_map_.transform(rows)
    F, centred = F - F[300], targets - targets[300]
    weights[300] = 0.0
    coef = np.linalg.solve((F.T * weights) @ F + 100 * np.eye(20), (F.T * weights) @ centred)
    assert_allclose(model.coef_, coef, rtol=1e-7)


def test_weights_whose_sums_leave_the_range_are_named():
    search = ApproxKernelRidgeCV(RFFSampler(20, random_state=0), sigmas=[0.5])
    for model in (ApproxKernelRidge(), ApproxKernelRidge(alpha="evidence"), search):
        with pytest.raises(ValueError, match="sample_weight.*largest float, 1.8e\\+308"):
            model.fit(X, T, sample_weight=np.full(80, 1.7e308))


@pytest.mark.parametrize("spread", [0.0, 1e-150])
def test_features_that_are_constant_leave_the_mean(spread):
    rows = (0.3 if spread == 0 else 0.0) + spread * X[:40, :1]
    weights = np.random.default_rng(4).uniform(0.5, 2, 40)
    mean = np.average(T[:40], axis=0, weights=weights)
    own = PositiveRF(18, center=False) if spread == 0 else RFFSampler(18)
    for dtype in (np.float32, np.float64):
        model = ApproxKernelRidge(own, alpha="evidence", random_state=0)
        for part in (slice(17), slice(17, 40)):
            model.partial_fit(rows[part].astype(dtype), T[part], sample_weight=weights[part])
        assert_allclose(model.predict(rows.astype(dtype)), np.tile(mean, (40, 1)), rtol=1e-5)


def test_targets_far_from_zero_keep_their_digits():
    model = ApproxKernelRidge(RFFSampler(20, sigma=0.5, random_state=0))
    plain = clone(model).fit(X, T[:, 0]).predict(Q)
    assert_allclose(model.fit(X, T[:, 0] + 1e8).predict(Q) - 1e8, plain, atol=1e-7)
    # The model that float32 rows give; its predictions for such rows are rounded.
    single = model.fit(X.astype(np.float32), T[:, 0] + 1e8)
    assert_allclose(single.predict(Q) - 1e8, plain, atol=1e-5)
    rounded = single.predict(Q.astype(np.float32))
    assert_allclose(rounded, single.predict(Q), rtol=np.finfo(np.float32).eps)


# ------------------------------------------------------------------ precision, memory, threads


def test_products_are_made_in_the_precision_that_alpha_needs(monkeypatch):
    made, transposed = [], _ridge.transposed
    monkeypatch.setattr(_ridge, "transposed", lambda a: made.append(a.dtype) or transposed(a))
    rows = np.repeat(X, 30, axis=0).astype(np.float32)
    targets = np.repeat(T[:, 0], 30)
    feature_map = RFFSampler(100, sigma=0.3, random_state=0)
    for alpha, dtype in ((1e-2, "float32"), (1e-7, "float64"), ("evidence", "float64")):
        model = ApproxKernelRidge(feature_map, alpha=alpha).fit(rows, targets)
        assert {np.dtype(dtype)} == set(made), alpha
        made.clear()
        brute = Ridge(model.alpha_).fit(features_of(model, rows), targets)
        expected = brute.predict(features_of(model, rows[::30]))
        assert_allclose(model.predict(rows[::30]), expected, atol=1e-3)
    # Of many batches the sum counts.
    model = ApproxKernelRidge(feature_map, alpha=2e-6).fit(rows[:600], targets[:600])
    assert np.float32 in made
    made.clear()
    for _ in range(5):
        model.partial_fit(rows, targets)
    assert made[-1] == np.float64


def test_memory_does_not_grow_with_the_rows(monkeypatch):
    monkeypatch.setattr(_ridge, "_BLOCK", 2**18)

    def peak(n):
        rows, labels = np.zeros((n, 2), np.float32), np.arange(n) % 3
        rows[:, 0] = np.linspace(0, 1, n)
        tracemalloc.start()
        ApproxKernelRidgeClassifier(RFFSampler(100), random_state=0).fit(rows, labels)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(85_000)  # loads compiled code
    # Labels and their codes take some numbers for every row, features would take 100.
    assert peak(85_000) - peak(42_000) < 43_000 * 8 * 8


def test_threads_change_nothing_but_rounding():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20_000, 3)).astype(np.float32)
    targets = np.sin(rows[:, 0])
    model = ApproxKernelRidge(RFFSampler(64), random_state=0)
    with threadpool_limits(1):
        one = clone(model).fit(rows, targets)
        expected = one.predict(rows)
    with threadpool_limits(3):
        three, again = (clone(model).fit(rows, targets) for _ in range(2))
        assert_allclose(three.predict(rows), expected, rtol=1e-5, atol=1e-6)
    for a, b in zip(arrays_of(three), arrays_of(again), strict=True):
        assert_array_equal(a, b)


@every_estimator
def test_other_array_libraries(library, estimator):
    targets = targets_of(estimator)
    expected = clone(estimator).fit(X, targets, WEIGHTS)
    model = clone(estimator).fit(library.array(X), library.array(targets), library.array(WEIGHTS))
    assert_allclose(model.coef_, expected.coef_, rtol=1e-7, atol=1e-9)
    rows = library.array(Q)
    if hasattr(model, "decision_function"):
        library.assert_same(
            model.decision_function(rows), expected.decision_function(Q), rows, rtol=1e-7
        )
        assert_array_equal(library.host(model.predict(rows)), expected.predict(Q))
    else:
        for found, own in zip(
            model.predict(rows, return_std=True),
            expected.predict(Q, return_std=True),
            strict=True,
        ):
            library.assert_same(found, own, rows, rtol=1e-7)
    assert model.score(library.array(X), library.array(targets)) == pytest.approx(
        expected.score(X, targets)
    )


# ------------------------------------------------------------------ searches


@weighted_or_not
def test_generalised_cross_validation_is_its_definition(weights):
    alphas = [1e-3, 0.1, 1.0, 30.0]
    model = ApproxKernelRidgeCV(MAPS["trigonometric"], sigmas=None, alphas=alphas)
    model.fit(X, T[:, :2], sample_weight=weights)
    w = np.ones(80) if weights is None else weights * 1.0
    features, expected = features_of(model, X), []
    design = np.sqrt(w)[:, None] * np.column_stack([np.ones(80), features])
    for alpha in alphas:
        penalty = alpha * np.diag(np.arange(design.shape[1]) > 0)
        hat = design @ np.linalg.solve(design.T @ design + penalty, design.T)
        own = np.sqrt(w)[:, None] * T[:, :2]
        errors = np.sum((own - hat @ own) ** 2, axis=0)
        expected.append(-np.mean(w.sum() * errors / (w.sum() - np.trace(hat)) ** 2))
    if weights is None or w.sum() > 41:
        assert_allclose(model.cv_results_["mean_test_score"], expected, rtol=1e-7)
    best = int(np.argmax(expected))
    assert model.alpha_ == alphas[best] == model.cv_results_["params"][best]["alpha"]
    assert model.best_score_ == pytest.approx(expected[best])
    assert model.cv_results_["rank_test_score"][best] == 1


@pytest.mark.parametrize("n_outputs", [0, 2])
def test_a_search_is_a_grid_search(n_outputs):
    targets = T[:, :n_outputs] if n_outputs else T[:, 0]
    grid = {"alpha": [1e-3, 0.1, 10.0], "sigma": [0.1, 0.5, 2.0]}
    cv = KFold(4, shuffle=True, random_state=0)
    search = GridSearchCV(
        ApproxKernelRidge(RFFSampler(30, random_state=0)),
        grid,
        cv=cv,
        scoring="neg_mean_squared_error",
    ).fit(X, targets)
    model = ApproxKernelRidgeCV(
        RFFSampler(30, random_state=0), sigmas=grid["sigma"], alphas=grid["alpha"], cv=cv
    ).fit(X, targets)
    ours, theirs = (
        {(p["sigma"], p["alpha"]): i for i, p in enumerate(results["params"])}
        for results in (model.cv_results_, search.cv_results_)
    )
    assert ours.keys() == theirs.keys()
    names = ["mean", "std", "rank", *(f"split{k}" for k in range(4))]
    for name in [f"{name}_test_score" for name in names]:
        own = model.cv_results_[name][list(ours.values())]
        assert_allclose(own, search.cv_results_[name][[theirs[pair] for pair in ours]], rtol=1e-8)
    assert {"sigma": model.sigma_, "alpha": model.alpha_} == search.best_params_
    assert model.best_score_ == pytest.approx(search.best_score_, rel=1e-8)
    assert_allclose(model.predict(Q), search.predict(Q), rtol=1e-7)


def test_the_search_of_a_classifier_scores_targets():
    model = ApproxKernelRidgeClassifierCV(
        RFFSampler(30, random_state=0), sigmas=[0.3, 1.0], alphas=[0.1, 1.0], cv=3
    ).fit(X, y)
    codes = np.where(y[:, None] == np.arange(3), 1.0, -1.0)
    from sklearn.model_selection import StratifiedKFold

    splits = list(StratifiedKFold(3).split(X, y))
    plain = ApproxKernelRidgeCV(
        RFFSampler(30, random_state=0), sigmas=[0.3, 1.0], alphas=[0.1, 1.0], cv=splits
    ).fit(X, codes)
    for name in ("mean_test_score", "split2_test_score"):
        assert_allclose(model.cv_results_[name], plain.cv_results_[name], rtol=1e-9)
    assert model.sigma_ == plain.sigma_ and model.alpha_ == plain.alpha_
    chosen = {"sigma": model.sigma_, "alpha": model.alpha_}
    chosen = ApproxKernelRidgeClassifier(RFFSampler(30, random_state=0), **chosen).fit(X, y)
    assert_allclose(model.decision_function(Q), chosen.decision_function(Q), rtol=1e-7)


def test_a_number_of_sigmas_lies_around_the_scale():
    model = ApproxKernelRidgeCV(RFFSampler(20), sigmas=5, random_state=0).fit(X, T[:, 0])
    scale = RFFSampler(2, sigma="scale").fit(X).sigma_
    expected = np.repeat(scale * np.logspace(-1, 1, 5), 6)
    assert_allclose(model.cv_results_["param_sigma"], expected)
    # All sigmas have the same draw, that of the estimator without a search.
    plain = ApproxKernelRidge(
        RFFSampler(20), sigma=model.sigma_, alpha=model.alpha_, random_state=0
    )
    assert_allclose(model.predict(Q), plain.fit(X, T[:, 0]).predict(Q), rtol=1e-7)
    drawn = ApproxKernelRidgeCV(RFFSampler(20), sigmas=[0.9, 0.9 + 1e-12], alphas=[1.0])
    scores = drawn.fit(X, T[:, 0]).cv_results_["mean_test_score"]
    assert_allclose(scores[0], scores[1], rtol=1e-6)


@pytest.mark.parametrize("feature_map", [AdaptiveRF(24), ClusterNystroem(12)], ids=str)
@weighted_or_not
def test_maps_of_labels_do_not_see_those_of_held_out_rows(feature_map, weights):
    feature_map, y = clone(feature_map).set_params(random_state=0), X[:, 0] + X[:, 1] ** 2 > 0.5

    def score(model, rows, labels):
        return -np.mean((model.decision_function(rows) - np.where(labels, 1.0, -1.0)) ** 2)

    grid = {"sigma": [0.3, 1.0, 3.0], "alpha": [0.01, 1.0]}
    plain = ApproxKernelRidgeClassifier(feature_map)
    theirs = GridSearchCV(plain, grid, scoring=score, error_score="raise")
    ours = ApproxKernelRidgeClassifierCV(feature_map, sigmas=grid["sigma"], alphas=grid["alpha"])
    if weights is None:
        theirs.fit(X, y)
        ours.fit(X, y)
    else:  # weights are repetitions, of rows that share a fold
        weights, folds = np.arange(80) % 3, np.arange(80) % 4
        ours.set_params(cv=PredefinedSplit(folds)).fit(X, y, weights)
        order = np.repeat(np.arange(80), weights)
        theirs.set_params(cv=PredefinedSplit(folds[order])).fit(X[order], y[order])
    own = {(p["sigma"], p["alpha"]): i for i, p in enumerate(ours.cv_results_["params"])}
    order = [own[p["sigma"], p["alpha"]] for p in theirs.cv_results_["params"]]
    for name in ("mean_test_score", "std_test_score", "split3_test_score"):
        assert_allclose(ours.cv_results_[name][order], theirs.cv_results_[name], rtol=1e-8)
    assert {"sigma": ours.sigma_, "alpha": ours.alpha_} == theirs.best_params_
    assert_allclose(ours.decision_function(Q), theirs.decision_function(Q), rtol=1e-7, atol=1e-9)
    assert ours.feature_map_.sigma_ == ours.sigma_


class Cosines(TransformerMixin, BaseEstimator):
    """A map of another package, whose sigma is a number."""

    def __init__(self, sigma=1.0, random_state=0):
        self.sigma = sigma
        self.random_state = random_state

    def fit(self, X, y=None):
        self.omega_ = np.random.default_rng(self.random_state).normal(size=(X.shape[1], 20))
        return self

    def transform(self, X):
        angles = X @ (self.sigma * self.omega_)
        return np.hstack([np.cos(angles), np.sin(angles)])


@pytest.mark.parametrize("search", [ApproxKernelRidgeCV, ApproxKernelRidgeClassifierCV])
def test_a_number_of_sigmas_for_maps_of_other_packages(search):
    targets = y if search is ApproxKernelRidgeClassifierCV else T[:, 0]
    model = search(Cosines(), sigmas=5).fit(X, targets)
    scale = RFFSampler(2, sigma="scale").fit(X).sigma_
    assert_allclose(np.unique(model.cv_results_["param_sigma"]), scale * np.logspace(-1, 1, 5))
    assert model.sigma_ == model.feature_map_.sigma
    assert model.best_score_ == model.cv_results_["mean_test_score"].max()


def test_training_sets_lose_no_digits_to_heavy_folds():
    """The sums of all rows less those of a fold of weight 1e18 would be noise."""
    folds, heavy = np.arange(80) % 4, np.where(np.arange(80) % 4 == 2, 1e18, 1.0)
    given = {"alphas": [0.1], "sigmas": [0.5], "cv": PredefinedSplit(folds)}
    model = ApproxKernelRidgeCV(RFFSampler(20, random_state=0), **given)
    model.fit(X, T[:, 0], sample_weight=heavy)
    rest = ApproxKernelRidge(RFFSampler(20, random_state=0), sigma=0.5, alpha=0.1)
    rest.fit(X[folds != 2], T[folds != 2, 0])
    error = np.mean((rest.predict(X[folds == 2]) - T[folds == 2, 0]) ** 2)
    assert model.cv_results_["split2_test_score"][0] == pytest.approx(-error, rel=1e-9)


def test_rows_that_are_never_tested_are_trained_on():
    folds = np.where(np.arange(80) < 50, -1, np.arange(80) % 2)
    model = ApproxKernelRidgeCV(
        RFFSampler(20, random_state=0), sigmas=[0.5], alphas=[0.1], cv=PredefinedSplit(folds)
    ).fit(X, T[:, 0])
    plain = ApproxKernelRidge(RFFSampler(20, random_state=0), sigma=0.5, alpha=0.1)
    for k in range(2):
        plain.fit(X[folds != k], T[folds != k, 0])
        error = np.mean((plain.predict(X[folds == k]) - T[folds == k, 0]) ** 2)
        assert model.cv_results_[f"split{k}_test_score"][0] == pytest.approx(-error, rel=1e-9)
    assert model._fitted.moments.weight == 80


@pytest.mark.parametrize(
    "cv",
    [ShuffleSplit(3, test_size=0.4, random_state=0), RepeatedKFold(n_splits=3, n_repeats=2)],
    ids=["overlapping", "repeated"],
)
def test_splits_may_overlap(cv):
    splits = list(cv.split(X))
    model = ApproxKernelRidgeCV(
        RFFSampler(20, random_state=0), sigmas=[0.3, 1.0], alphas=[0.1, 1.0], cv=splits
    ).fit(X, T[:, 0])
    grid = {"sigma": [0.3, 1.0], "alpha": [0.1, 1.0]}
    plain = ApproxKernelRidge(RFFSampler(20, random_state=0))
    search = GridSearchCV(plain, grid, cv=splits, scoring="neg_mean_squared_error").fit(X, T[:, 0])
    own = {(p["sigma"], p["alpha"]): i for i, p in enumerate(model.cv_results_["params"])}
    order = [own[p["sigma"], p["alpha"]] for p in search.cv_results_["params"]]
    for k in range(len(splits)):
        name = f"split{k}_test_score"
        assert_allclose(model.cv_results_[name][order], search.cv_results_[name], rtol=1e-8)


def test_training_sets_are_complements():
    wrong = [
        [(np.arange(40), np.arange(40, 70))],
        [(np.arange(0), np.arange(80))],
        [(np.arange(40), np.arange(30, 80))],
    ]
    for cv in wrong:
        with pytest.raises(ValueError, match="cv must.*split 0"):
            ApproxKernelRidgeCV(RFFSampler(4), cv=cv).fit(X, T[:, 0])
    with pytest.raises(ValueError, match="cv must give at least one split"):
        ApproxKernelRidgeCV(RFFSampler(4), cv=[]).fit(X, T[:, 0])
    with pytest.raises(ValueError, match="cv must leave rows of positive weight"):
        ApproxKernelRidgeCV(RFFSampler(4), cv=KFold(4)).fit(X, y, np.arange(80) >= 20)


def test_generalised_cross_validation_without_degrees_of_freedom():
    model = ApproxKernelRidgeCV(RFFSampler(20), sigmas=None, alphas=[0.1, 10.0], random_state=0)
    model.fit(X[:2], T[:2, 0])
    assert model.alpha_ == 10.0 and model.best_score_ == -np.inf


# ------------------------------------------------------------------ the house


@every_estimator
def test_a_fit_that_raises_changes_nothing_and_arrays_are_fixed(estimator):
    targets = targets_of(estimator)
    model = clone(estimator).fit(X, targets)
    before = {name: id(value) for name, value in vars(model).items()}
    wrong = np.where(np.arange(240).reshape(80, 3) == 7, np.nan, X)
    for fit in (model.fit, getattr(model, "partial_fit", model.fit)):
        for rows, values in ((wrong, targets), (X, targets[:-1]), (X, None)):
            with pytest.raises(ValueError):
                fit(rows, values)
    assert {name: id(value) for name, value in vars(model).items()} == before
    for array in (model.coef_,):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    expected = model.predict(Q)
    model.set_params(feature_map=RFFSampler(2), random_state=5)
    assert_array_equal(model.predict(Q), expected)
    assert_array_equal(pickle.loads(pickle.dumps(model)).predict(Q), expected)
    if hasattr(model, "partial_fit"):
        with pytest.raises(ValueError, match="partial_fit goes on"):
            model.partial_fit(X, targets)


def test_faulty_parameters_are_named():
    ridge, search = ApproxKernelRidge, ApproxKernelRidgeCV
    faults = [
        (ridge(alpha=0.0), "alpha"),
        (ridge(alpha="auto"), "alpha.*evidence"),
        (ridge(alpha=10**400), "alpha"),
        (ridge(noise_variance=-1.0), "noise_variance"),
        (ridge(noise_variance=10**400), "noise_variance"),
        (ridge(Nystroem(), sigma=1.0), "sigma=1.0"),
        (ridge(RFFSampler), "feature_map"),
        (search(sigmas=1), "sigmas"),
        (search(sigmas=[]), r"sigmas.*\[\]"),
        (search(sigmas=[1.0, -2.0]), "sigmas.*-2.0"),
        (search(alphas=[0.0]), "alphas"),
        (search(alphas=["a"]), "alphas.*'a'"),
        (search(Nystroem()), "sigmas=None"),
        (search(cv="five"), "cv"),
        (search(cv=[]), "cv"),
        (search(cv=[1]), "cv"),
        (search(cv=[([0], [1.5])]), "cv"),
    ]
    for model, words in faults:
        with pytest.raises((ValueError, TypeError), match=words):
            model.fit(X, T[:, 0])
    model = ridge(RFFSampler(4), random_state=0).fit(X, T)
    with pytest.raises(ValueError, match=r"y has \(1,\) outputs.*\(3,\)"):
        model.partial_fit(X, T[:, 0])


def test_signed_features_beyond_the_range_are_refused():
    feature_map = RFFSampler(20, kernel="softmax", sigma=1.0, random_state=0)
    with pytest.raises(ValueError, match="range of floats"):
        ApproxKernelRidge(feature_map).fit(60 * X, T[:, 0])
    model = ApproxKernelRidge(feature_map).fit(X, T[:, 0])
    with pytest.raises(ValueError, match="range of floats"):
        model.predict(60 * X)
    with pytest.raises(ValueError, match="range of floats"):
        ApproxKernelRidge(FunctionTransformer()).fit(1e200 * X, T[:, 0])


def test_classes_of_batches_are_named():
    labels = np.arange(80) % 2
    for classes in (None, [], [0, None], [0, "a", 1.5, {}], [[0, 1], [2, 3]], {"a": 1}, 3, np.nan):
        with pytest.raises((ValueError, TypeError), match=r"\bclasses\b"):
            ApproxKernelRidgeClassifier(random_state=0).partial_fit(X, labels, classes=classes)


def test_the_best_pair_and_the_best_map_agree_to_the_last_bit():
    """Scores of a split in another order have another rounding: it must not part them."""
    rng, sigmas = np.random.default_rng(0), np.arange(1.0, 6.0)
    model = ApproxKernelRidgeCV(alphas=[0.1, 1.0, 10.0])
    for _ in range(200):
        values = rng.random(10)
        splits = np.tile(values, (3, 1))
        runs = [(list(rng.permuted(splits, axis=1).T), sigma, sigma) for sigma in sigmas]
        found, _ = model._choose(runs, sigmas)
        assert found == model.sigma_ == 1.0
        table = model.cv_results_
        assert table["mean_test_score"].max() == pytest.approx(model.best_score_, rel=1e-14)
        assert {"sigma": model.sigma_, "alpha": model.alpha_} in [
            table["params"][k] for k in np.flatnonzero(table["rank_test_score"] == 1)
        ]
