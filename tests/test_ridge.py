"""Ridge regression on features: equal to brute force, to a Gaussian process, and to a search."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import make
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import multivariate_normal
from sklearn.base import BaseEstimator, clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge, RidgeClassifier, RidgeCV
from sklearn.metrics import get_scorer
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    PredefinedSplit,
    RepeatedKFold,
    ShuffleSplit,
    StratifiedKFold,
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
from skrf.regression import ridge
from skrf.regression.decide import best_scale, losses, probabilities, votes
from skrf.regression.search import KnownDecisions

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
    "many columns": RFFSampler(200, sigma=0.8, random_state=0),  # solved in a basis of the rows
    "piped": make_pipeline(StandardScaler(), RFFSampler(40, random_state=0)),
}
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


# ------------------------------------------------------------------ the estimate itself


@pytest.mark.parametrize(
    ("which", "weights", "shape"),
    [
        *((which, WEIGHTS, (3,)) for which in MAPS),
        ("trigonometric", None, ()),
        ("positive", None, (1,)),
    ],
)
def test_regressor_is_brute_force(which, weights, shape):
    targets = T[:, : shape[0]] if shape else T[:, 0]
    model = ApproxKernelRidge(MAPS[which], alpha=0.3).fit(X, targets, sample_weight=weights)
    brute = Ridge(0.3).fit(features_of(model, X), targets, sample_weight=weights)
    assert model.component_coef_.shape == (*shape, features_of(model, X).shape[1])
    coef = brute.coef_.reshape(model.component_coef_.shape)
    assert_allclose(model.component_coef_, coef, rtol=1e-8, atol=1e-9)
    assert_allclose(model.intercept_, brute.intercept_, rtol=1e-9, atol=1e-9)
    expected = brute.predict(features_of(model, Q)).reshape(30, *shape)
    assert_allclose(model.predict(Q), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("which", "weights"), [("signed", None), ("positive", WEIGHTS), ("many columns", WEIGHTS)]
)
def test_two_classes_are_a_ridge_classifier(which, weights):
    names = np.array(["a", "b"])[np.minimum(y, 1)]
    model = ApproxKernelRidgeClassifier(MAPS[which], alpha=2.0).fit(X, names, weights)
    brute = RidgeClassifier(alpha=2.0).fit(features_of(model, X), names, weights)
    features = features_of(model, Q)
    expected = brute.decision_function(features)
    assert_allclose(model.decision_function(Q), expected, rtol=1e-9, atol=1e-9)
    assert_array_equal(model.predict(Q), brute.predict(features))
    assert_allclose(model.component_coef_, np.atleast_2d(brute.coef_), rtol=1e-8, atol=1e-9)
    assert not hasattr(model, "predict_proba")


class WithRidge(BaseEstimator):
    """The covariance of a class plus a ridge."""

    def __init__(self, ridge):
        self.ridge = ridge

    def fit(self, X):
        self.covariance_ = np.cov(X.T, bias=True) + self.ridge * np.eye(X.shape[1])
        return self


@pytest.mark.parametrize(
    ("which", "alpha", "repeats"),
    [
        ("trigonometric", 1e-3, 1),
        ("positive", 2.0, np.arange(80) % 4),
        ("asymmetric", 1e-3, 1),
        ("many columns", 0.1, np.arange(80) % 2 + 1),
    ],
)
def test_three_classes_are_linear_discriminants(which, repeats, alpha):
    names, weights = np.array(["a", "b", "c"])[y], np.full(80, repeats)
    model = ApproxKernelRidgeClassifier(MAPS[which], alpha=alpha, decision="discriminants")
    model.fit(X, names, weights)
    features = features_of(model, np.repeat(X, weights, axis=0))
    estimator = WithRidge(alpha / weights.sum())
    brute = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=estimator)
    brute.fit(features, np.repeat(names, weights))
    expected = brute.decision_function(features_of(model, Q))
    actual = model.decision_function(Q)
    assert_array_equal(model.predict(Q), brute.predict(features_of(model, Q)))
    # Their common term is that of the mean of all features.
    actual, expected = (part - part.mean(axis=1, keepdims=True) for part in (actual, expected))
    assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
    assert model.component_coef_.shape == (3, features.shape[1]) and model.intercept_.shape == (3,)


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


def test_several_labels_per_row_are_a_ridge_classifier():
    labels = np.column_stack([X[:, 0] > 0, X[:, 1] > 0.5, X.sum(axis=1) > 0]).astype(int)
    options = {"feature_map": RFFSampler(40, sigma=0.5, random_state=0), "alpha": 0.1}
    model = ApproxKernelRidgeClassifier(**options).fit(X, labels)
    features = model.feature_map_.transform
    expected = RidgeClassifier(alpha=0.1).fit(features(X), labels)
    assert_array_equal(model.predict(Q), expected.predict(features(Q)))
    assert_allclose(model.decision_function(Q), expected.decision_function(features(Q)), rtol=1e-9)
    assert model.score(X, labels) == expected.score(features(X), labels)
    assert_array_equal(
        model.fit(X, sp.csr_matrix(labels)).predict(Q), expected.predict(features(Q))
    )
    parts = ApproxKernelRidgeClassifier(**options).partial_fit(
        X[:50], labels[:50], classes=range(3)
    )
    assert_array_equal(parts.partial_fit(X[50:], labels[50:]).classes_, [0, 1, 2])
    two = ApproxKernelRidgeClassifier(**options).fit(X, labels[:, :2])
    assert_allclose(two.decision_function(Q), model.decision_function(Q)[:, :2], rtol=1e-9)
    for scoring in (None, "f1_macro", "roc_auc"):
        search = ApproxKernelRidgeClassifierCV(
            options["feature_map"], sigmas=[0.1, 0.5], alphas=[0.1, 1.0], scoring=scoring
        ).fit(X, labels)
        assert search.multilabel_ and search.predict(Q).shape == (30, 3)
        assert not hasattr(search, "predict_proba")
    one_vs_one = ApproxKernelRidgeClassifier(decision="one-vs-one")
    with pytest.raises(ValueError, match="decision must be 'auto' or 'argmax'.*'one-vs-one'"):
        one_vs_one.fit(X, labels)
    with pytest.raises(ValueError, match="y must hold one label per row, or 0 and 1"):
        ApproxKernelRidgeClassifier().fit(X, 2 * labels)


def test_a_class_without_rows_is_never_predicted():
    codes = _rng.integers(0, 3, 600)
    rows = np.array([[0, 0], [4, 0], [0, 4.0]])[codes] + 0.2 * _rng.normal(size=(600, 2))
    far = _rng.uniform(-2, 6, size=(500, 2))
    for n_seen in (2, 3):
        is_seen = codes < n_seen
        model = ApproxKernelRidgeClassifier(random_state=0)
        model.partial_fit(rows[is_seen], codes[is_seen], classes=[0, 1, 2, 3])
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
    model = ApproxKernelRidgeClassifier(
        FunctionTransformer(), alpha=alpha, decision="discriminants"
    )
    accuracy = model.fit(rows[:2000], codes[:2000]).score(rows[2000:], codes[2000:])
    assert accuracy > 0.885
    assert_allclose(np.exp(model.decision_function(rows)).sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize(
    ("sigma", "dtype"),
    [(1e-3, np.float64), (1.0, np.float32), (30.0, np.float32), (1e3, np.float64)],
)
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


@pytest.mark.parametrize(
    ("which", "noise"), [("positive", 0.5), ("wide", 0.01), ("many columns", 0.01)]
)
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


class UnitVectors:
    """Gives the unit vectors one after the other, and zeros, in place of normal numbers."""

    def standard_normal(self, size):
        return np.eye(size[0], np.prod(size[1:])).reshape(size)


@pytest.mark.parametrize("targets", [T[:, 0], T[:, :2]], ids=["one target", "two targets"])
@pytest.mark.parametrize(
    "feature_map",
    [MAPS["trigonometric"], MAPS["many columns"], ClusterNystroem(30, sigma=1.0)],
    ids=["trigonometric", "many columns", "landmarks"],
)
def test_covariances_and_samples_are_those_of_the_posterior(feature_map, targets, monkeypatch):
    model = ApproxKernelRidge(feature_map, alpha=0.05, random_state=0).fit(X, targets, WEIGHTS)
    mean, deviation = model.predict(Q, return_std=True)
    again, covariance = model.predict(Q, return_cov=True)
    assert_allclose(again, mean, rtol=1e-9, atol=1e-9)
    assert_allclose(np.einsum("ii...->i...", covariance), deviation**2, rtol=1e-9)
    is_projected = isinstance(feature_map, ClusterNystroem)
    noise, covariance = model.noise_variance_, covariance.reshape(len(Q), len(Q), -1)
    mean, expected = mean.reshape(len(Q), -1), np.zeros(2 * (len(Q), len(noise)))
    for t, variance in enumerate(noise):
        expected[:, t, :, t] = covariance[:, :, t] - variance * np.eye(len(Q))
    if not is_projected:
        # Functions are linear in normal numbers: one of them at a time makes the covariance exact.
        n_numbers = (np.shape(model.component_coef_)[-1] + 1) * len(noise)
        with monkeypatch.context() as patch:
            patch.setattr(np.random, "default_rng", lambda seed: UnitVectors())
            samples = model.sample_y(Q, n_numbers + 1).reshape(len(Q), -1, n_numbers + 1)
        assert_allclose(samples[..., -1], mean, rtol=1e-9, atol=1e-9)  # of all zeros
        parts = samples[..., :-1] - mean[..., None]
        close = 1e-9 * np.abs(expected).max()
        assert_allclose(np.einsum("itk,jsk->itjs", parts, parts), expected, rtol=1e-7, atol=close)
    n = 2000  # and drawn
    samples = model.sample_y(Q, n).reshape(len(Q), -1, n)
    for t in range(len(noise)):
        deviations = np.sqrt(np.diag(expected[:, t, :, t]))
        assert (np.abs(samples[:, t].mean(axis=1) - mean[:, t]) < 4.5 * deviations / n**0.5).all()
        errors = np.cov(samples[:, t]) - expected[:, t, :, t]
        errors = np.abs(errors / np.outer(deviations, deviations))
        assert np.diag(errors).max() < 5 * 2**0.5 / n**0.5
        # What landmarks lack is drawn with 1,024 frequencies.
        assert errors.max() < (0.25 if is_projected else 5 * 2**0.5 / n**0.5)
    # Functions: the same at a row, whatever the others are.
    few, many = (model.sample_y(rows, 3, random_state=5) for rows in (Q[4:6], Q))
    assert_allclose(few, many[4:6], rtol=1e-10)
    assert np.abs(few - model.sample_y(Q[4:6], 3, random_state=6)).max() > 1e-6
    with pytest.raises(ValueError, match="return_std and return_cov must not both"):
        model.predict(Q, return_std=True, return_cov=True)
    with pytest.raises(ValueError, match="n_samples must be an integer >= 1, got 0"):
        model.sample_y(Q, 0)


class UnitWeights(UnitVectors):
    """Frequencies as drawn, and unit vectors in place of the weights of waves."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def standard_normal(self, size):
        is_weights = len(size) > 2
        return super().standard_normal(size) if is_weights else self.rng.standard_normal(size)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_what_landmarks_lack_is_drawn_with_its_variance(kernel, monkeypatch):
    """Functions are linear in normal numbers: one of them at a time makes the variance exact."""
    feature_map = ClusterNystroem(10, sigma=1.0, kernel=kernel)
    model = ApproxKernelRidge(feature_map, alpha=0.05, random_state=0).fit(X, T[:, :2], WEIGHTS)
    monkeypatch.setattr(ridge, "_WAVES", 8)
    parts = model._drawn_beyond(Q, 2 * 8 * 2, UnitWeights())
    beyond = 1 - np.sum(model.feature_map_.transform(Q) ** 2, axis=1)
    assert beyond.max() > 0.3
    expected = np.outer(beyond, model.noise_variance_ * model._fitted.solution.posterior.prior)
    assert_allclose(np.sum(parts**2, axis=2), expected, rtol=1e-9, atol=1e-12)


def test_samples_at_rows_of_other_libraries_are_those_of_numpy():
    torch = pytest.importorskip("torch")
    model = ApproxKernelRidge(ClusterNystroem(10), random_state=0).fit(X, T)
    assert_array_equal(model.sample_y(torch.tensor(Q), 3), model.sample_y(Q, 3))


@pytest.mark.parametrize("feature_map", [MAPS["trigonometric"], ClusterNystroem(30)], ids=str)
def test_sigma_by_evidence_is_a_maximum(feature_map):
    targets = np.sin(2 * X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=80)
    model = ApproxKernelRidge(feature_map, sigma="evidence", alpha="evidence", random_state=0)
    chosen = model.fit(X, targets).feature_map_.sigma_

    def evidence(sigma):
        other = clone(model).set_params(sigma=sigma).fit(X, targets)
        return log_evidence(other.feature_map_.transform(X), targets[:, None], other.alpha_)[0]

    assert evidence(chosen) > max(evidence(chosen * factor) for factor in (0.5, 0.8, 1.25, 2.0))
    assert evidence(chosen) >= evidence("scale")
    parts = [(X[:50], targets[:50]), (X[50:], targets[50:])]
    assert clone(model).fit_batches(parts).feature_map_.sigma_ == pytest.approx(chosen)
    with pytest.raises(ValueError, match="sigma='evidence' needs alpha='evidence'.*alpha=1.0"):
        clone(model).set_params(alpha=1.0).fit(X, targets)


def test_deviations_need_degrees_of_freedom():
    model = ApproxKernelRidge(RFFSampler(20), random_state=0).fit(X[:1], T[:1, 0])
    assert np.isfinite(model.predict(Q)).all() and np.isnan(model.noise_variance_).all()
    with pytest.raises(ValueError, match="return_std.*noise_variance"):
        model.predict(Q, return_std=True)


def test_deviations_of_few_rows_with_many_features_keep_small_residuals():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = np.sin(X[:, 0]) + 0.3 * rng.normal(size=60)
    features = RFFSampler(1000, sigma=1.0, random_state=0).fit_transform(X)
    coordinates = np.linalg.qr(features.T)[1].T  # with the same inner products
    model = ApproxKernelRidge(FunctionTransformer(), alpha=1e-8)
    actual, expected = (
        model.fit(rows, y).predict(rows, return_std=True)[1] for rows in (features, coordinates)
    )
    assert_allclose(actual, expected, rtol=0.01)


# ------------------------------------------------------------------ evidence


def log_evidence(features, targets, alpha):
    """Restricted likelihood of a model with a flat mean, at the best variance of each noise."""
    n = len(features)
    # Contrasts of the targets do not know the mean.
    contrasts = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, 1:]]))[0][:, 1:]
    covariance = contrasts.T @ (features @ features.T / alpha + np.eye(n)) @ contrasts
    turned = contrasts.T @ targets
    noise = np.sum(turned * np.linalg.solve(covariance, turned), axis=0) / (n - 1)
    pairs = zip(turned.T, noise, strict=True)
    return sum(multivariate_normal.logpdf(x, cov=v * covariance) for x, v in pairs), noise


@pytest.mark.parametrize("which", ["trigonometric", "wide"])
def test_evidence_is_the_marginal_likelihood(which):
    targets = T[:, :2] + [0.3, 1.0] * np.random.default_rng(0).normal(size=(80, 2))
    model = ApproxKernelRidge(MAPS[which], alpha="evidence").fit(X, targets)
    features = features_of(model, X)
    best, noise = log_evidence(features, targets, model.alpha_)
    assert_allclose(model.noise_variance_, noise, rtol=1e-8)
    grid = model.alpha_ * np.array([1e-4, 0.1, 0.9, 0.99, 1.01, 1.1, 10, 1e4])
    evidences = np.array([log_evidence(features, targets, alpha)[0] for alpha in grid])
    assert (evidences < best - 1e-7).all()
    # Of a parabola through three points the maximum is within 1e-4 of log alpha.
    left, right = (
        log_evidence(features, targets, model.alpha_ * np.exp(h))[0] for h in (-0.01, 0.01)
    )
    assert abs(0.01 * (right - left) / (2 * (2 * best - left - right))) < 1e-4
    brute = Ridge(model.alpha_).fit(features, targets)
    assert_allclose(model.predict(Q), brute.predict(features_of(model, Q)), rtol=1e-8, atol=1e-8)


def test_evidence_without_a_signal_or_without_noise():
    constant = ApproxKernelRidge(RFFSampler(20), alpha="evidence", random_state=0)
    assert_allclose(constant.fit(X, np.full(80, 7.0)).predict(Q), 7.0, rtol=1e-12)
    exact = ApproxKernelRidge(RFFSampler(200), sigma=0.5, alpha="evidence", random_state=0)
    smooth = np.sin(X[:, 0])
    counts = np.arange(80) % 3
    order = np.repeat(np.arange(80), counts)
    repeated = clone(exact).fit(X[order], smooth[order])
    assert_allclose(repeated.predict(X[order]), smooth[order], atol=1e-3)
    # Weights are repetitions even here, where rounding differs.
    weighted = clone(exact).fit(X, smooth, sample_weight=counts)
    assert_allclose(weighted.predict(Q), repeated.predict(Q), atol=1e-6)


def test_evidence_that_is_flat_takes_the_mean():
    """With a feature for every row all alphas are equally likely."""
    rows = np.eye(12)
    model = ApproxKernelRidge(FunctionTransformer(), alpha="evidence").fit(rows, T[:12, 0])
    assert_allclose(model.predict(rows), T[:12, 0].mean(), atol=1e-4)


# ------------------------------------------------------------------ batches and merges


@pytest.mark.parametrize("which", ["trigonometric", "positive", "nystroem", "many columns"])
@weighted_or_not
def test_batches_are_one_fit(which, weights):
    pre = FrozenEstimator(clone(MAPS[which]).fit(X))  # the first batch alone fits the map
    whole = ApproxKernelRidge(pre).fit(X, T, sample_weight=weights)
    model = ApproxKernelRidge(pre)
    for rows in (slice(0, 2), slice(2, 50), slice(50, 80)):
        some_weights = None if weights is None else weights[rows]
        model.partial_fit(X[rows], T[rows], sample_weight=some_weights)
    for name in ("component_coef_", "intercept_", "noise_variance_"):
        assert_allclose(getattr(model, name), getattr(whole, name), rtol=1e-8, atol=1e-9)


def test_batches_of_a_classifier():
    model = ApproxKernelRidgeClassifier(RFFSampler(20, sigma=0.5, random_state=0))
    for rows in (slice(0, 30), slice(30, 80)):
        model.partial_fit(X[rows], y[rows], classes=[2, 0, 1] if rows.start == 0 else None)
    whole = clone(model).fit(X, y)
    assert_allclose(model.decision_function(Q), whole.decision_function(Q), rtol=1e-9)
    for classes in (None, [], [0, None], [0, "a", 1.5, {}], [[0, 1], [2, 3]], {"a": 1}, 3, np.nan):
        with pytest.raises((ValueError, TypeError), match=r"\bclasses\b"):
            clone(model).partial_fit(X, y, classes=classes)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 40), min_size=3, max_size=3),
    st.lists(st.sampled_from([2.0**-300, 1.0, 2.0**40, 2.0**500]), min_size=3, max_size=3),
    st.integers(0, 2**31),
)
def test_merges_are_sums_in_any_order(sizes, units, seed):
    rng = np.random.default_rng(seed)
    frozen = FrozenEstimator(RFFSampler(6, random_state=0).fit(X))
    rows = [rng.normal(size=(n, 3)) for n in sizes]
    targets = [
        unit * rng.normal(size=(len(block), 2)) for block, unit in zip(rows, units, strict=True)
    ]
    a, b, c = (ApproxKernelRidge(frozen).fit(*pair) for pair in zip(rows, targets, strict=True))
    before = pickle.dumps((a, b, c))
    merged = a.merge(b).merge(c), a.merge(b.merge(c)), c.merge(a).merge(b)
    assert pickle.dumps((a, b, c)) == before
    whole = ApproxKernelRidge(frozen).fit(np.concatenate(rows), np.concatenate(targets))
    for other in merged:
        for name in ("component_coef_", "intercept_"):
            pair = (getattr(model, name) / max(units) for model in (other, whole))
            assert_allclose(*pair, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("size", [1e-300, 1e-150, 1e150, 1e300])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_targets_of_any_size(size, dtype):
    feature_map = RFFSampler(20, sigma=0.5, random_state=0)
    rows, rtol = X.astype(dtype), 1e-4 if dtype == np.float32 else 1e-8
    for model in (
        ApproxKernelRidge(feature_map),
        ApproxKernelRidge(feature_map, alpha="evidence"),
        ApproxKernelRidgeCV(feature_map, sigmas=2),
    ):
        plain, scaled = clone(model).fit(rows, T[:, 0]), clone(model).fit(rows, size * T[:, 0])
        actual, expected = scaled.predict(Q, return_std=True), plain.predict(Q, return_std=True)
        for pair in zip(actual, expected, strict=True):
            assert_allclose(pair[0] / size, pair[1], rtol=rtol)
        assert_allclose(scaled.alpha_, plain.alpha_, rtol=1e-5)


def test_none_is_landmarks_unless_rows_are_sparse_or_a_first_batch():
    y = (T[:, 0] > 0).astype(int) + (T[:, 0] > 1)
    sparse, parts = sp.csr_array(X), [(X[:50], y[:50]), (X[50:], y[50:])]
    for kind in (ApproxKernelRidge, ApproxKernelRidgeClassifier, ApproxKernelRidgeCV):
        assert isinstance(kind().fit(X, y).feature_map_, ClusterNystroem)
        assert isinstance(kind().fit_batches(parts).feature_map_, ClusterNystroem)
        features = kind().fit(sparse, y).feature_map_
        assert isinstance(features, RFFSampler) and features.n_components_ == 512
    first = ApproxKernelRidge().partial_fit(X, y).feature_map_
    assert isinstance(first, RFFSampler) and first.sigma is None


def test_the_exact_kernel_is_kernel_ridge():
    rows, values = np.vstack([X, X[:5]]), np.append(T[:, 0], T[:5, 0] + 1)
    centred = values - values.mean()
    model = ApproxKernelRidge("exact", sigma=0.7, alpha=0.1).fit(rows, values)
    # The intercept centres the kernel, too.
    K = rbf_kernel(rows, gamma=0.245)
    mean = K.mean(axis=0)
    K = K - mean - mean[:, None] + mean.mean()
    of_queries = rbf_kernel(Q, rows, gamma=0.245)
    of_queries = of_queries - of_queries.mean(axis=1, keepdims=True) - mean + mean.mean()
    expected = of_queries @ np.linalg.solve(K + 0.1 * np.eye(len(K)), centred) + values.mean()
    assert_allclose(model.predict(Q), expected, rtol=1e-7, atol=1e-7)
    assert model.feature_map_.n_components_ == len(X)
    for kind in (ApproxKernelRidgeCV, ApproxKernelRidgeClassifierCV, ApproxKernelRidgeClassifier):
        targets = values if kind is ApproxKernelRidgeCV else np.arange(len(values)) % 3
        fitted = kind("exact").fit(rows, targets)
        assert fitted.feature_map_.n_components_ == len(X)
        with pytest.raises(ValueError, match="feature_map='exact' keeps all rows"):
            kind("exact").fit_batches([(rows, targets)])
    with pytest.raises(AttributeError, match="feature_map='exact' keeps all rows"):
        ApproxKernelRidge("exact").partial_fit(rows, values)


def test_landmarks_are_uncertain_where_there_are_no_rows():
    rng = np.random.default_rng(0)
    rows, targets = rng.normal(size=(40, 2)), rng.normal(size=40)
    asked = np.vstack([rows, 1.1 * rows, [[30.0, 0.0], [0.0, 3.0]]])
    model = ApproxKernelRidge(sigma=1.0, noise_variance=0.01).fit(rows, targets)
    # All rows are landmarks of the default map. The intercept is a constant of any size.
    kernel = RBF(1.0, "fixed") + ConstantKernel(1e7, "fixed")
    process = GaussianProcessRegressor(kernel, alpha=0.01, optimizer=None).fit(rows, targets)
    _, deviations = model.predict(asked, return_std=True)
    _, spread = process.predict(asked, return_std=True)  # without the noise
    assert_allclose(deviations**2, spread**2 + 0.01, rtol=1e-3, atol=1e-4)
    assert deviations[80] > 1


@pytest.mark.parametrize(
    ("bits", "dtype"),
    [(-900, np.float64), (-200, np.float32), (200, np.float64), (900, np.float32)],
)
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
    assert np.isfinite(
        evidence.fit(rows, T, sample_weight=weights * 2.0**bits).component_coef_
    ).all()


@pytest.mark.parametrize("bits", [60, 950])
def test_alphas_lost_in_rounding_leave_predictions_of_the_size_of_targets(bits):
    rows, weights = np.tile(X[:10], (8, 1)).astype(np.float32), np.full(80, 2.0**bits)
    search = ApproxKernelRidgeCV(RFFSampler(20, random_state=0), sigmas=[0.01, 0.5], alphas=[0.01])
    for model in (ApproxKernelRidge(RFFSampler(20, sigma=0.5, random_state=0), alpha=0.01), search):
        predictions = model.fit(rows, T, sample_weight=weights).predict(rows)
        assert np.abs(predictions).max() < 2 * np.abs(T).max()


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
    assert_allclose(model.component_coef_, coef, rtol=1e-7)


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
    features = PositiveRF(18, center=False) if spread == 0 else RFFSampler(18, sigma=1.0)
    for dtype in (np.float32, np.float64):
        model = ApproxKernelRidge(features, alpha="evidence", random_state=0)
        for part in (slice(33), slice(33, 40)):
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


def test_products_are_made_in_the_precision_that_alpha_needs():
    """Products of float32 would change predictions by 0.1 at the second alpha."""
    rows = np.repeat(X, 30, axis=0).astype(np.float32)
    targets = np.repeat(T[:, 0], 30)
    feature_map = RFFSampler(100, sigma=0.3, random_state=0)
    for alpha in (1e-2, 1e-7, "evidence"):
        model = ApproxKernelRidge(feature_map, alpha=alpha).fit(rows, targets)
        brute = Ridge(model.alpha_).fit(features_of(model, rows), targets)
        expected = brute.predict(features_of(model, rows[::30]))
        assert_allclose(model.predict(rows[::30]), expected, atol=1e-3)


@pytest.mark.parametrize(("sigma", "alpha"), [(1.0, 1e-3), (0.3, 0.1), (0.1, 1e-3), (0.05, 1e-4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_root_is_applied_to_sums_where_that_costs_no_digits(sigma, alpha, dtype):
    rows = np.random.default_rng(1).normal(size=(400, 3)).astype(dtype)
    targets = np.sin(2 * rows[:, 0])
    feature_map = ClusterNystroem(40, sigma=sigma, random_state=0)
    model = ApproxKernelRidge(feature_map, alpha=alpha).fit(rows, targets)
    features = model.feature_map_.transform(rows.astype(np.float64))
    expected = Ridge(alpha).fit(features, targets).predict(features)
    assert_allclose(model.predict(rows.astype(np.float64)), expected, rtol=0, atol=1e-8)
    assert_allclose(
        model.component_coef_ @ features.T + model.intercept_, expected, rtol=0, atol=1e-8
    )


def test_threads_change_nothing_but_rounding():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20_000, 3)).astype(np.float32)
    targets = np.sin(rows[:, 0])
    model = ApproxKernelRidge(RFFSampler(64), random_state=0)
    with threadpool_limits(1):
        expected = clone(model).fit(rows, targets).predict(rows)
    with threadpool_limits(3):
        three, again = (clone(model).fit(rows, targets) for _ in range(2))
        assert_allclose(three.predict(rows), expected, rtol=1e-5, atol=1e-6)
    assert_array_equal(three.component_coef_, again.component_coef_)


@every_estimator
def test_fits_to_other_array_libraries(library, estimator):
    targets = targets_of(estimator)
    expected = clone(estimator).fit(X, targets, WEIGHTS)
    model = clone(estimator).fit(library.array(X), library.array(targets), library.array(WEIGHTS))
    assert_allclose(model.component_coef_, expected.component_coef_, rtol=1e-7, atol=1e-9)
    rows = library.array(Q)
    assert_allclose(library.host(model.predict(rows)), expected.predict(Q), rtol=1e-7)
    score = model.score(library.array(X), library.array(targets))
    assert score == pytest.approx(expected.score(X, targets))


# ------------------------------------------------------------------ searches


@pytest.mark.parametrize("kind", [ApproxKernelRidgeCV, ApproxKernelRidgeClassifierCV])
@pytest.mark.parametrize(
    "feature_map", [MAPS["trigonometric"], MAPS["many columns"], ClusterNystroem(12)], ids=str
)
def test_leave_one_out_is_its_definition(kind, feature_map):
    rows, weights = np.vstack([X[:45], X[:9]]), np.arange(54) % 3 + 0.5
    targets = np.vstack([T[:45, :2], T[:4, :2], T[4:9, :2] + 1])  # copies, and other targets
    group = np.append(np.arange(45), [0, 1, 2, 3, *range(45, 50)])
    if kind is ApproxKernelRidgeClassifierCV:
        targets = np.digitize(targets[:, 0], [-0.5, 0.5])
        agree = targets[49:] == targets[4:9]
        group[49:][agree] = np.arange(4, 9)[agree]
        assert 0 < agree.sum() < 5
    alphas = [1e-3, 0.1, 1.0, 30.0]
    model = kind(feature_map, sigmas=None, alphas=alphas).fit(rows, targets, weights)
    features = features_of(model, rows)
    values = targets if targets.ndim == 2 else 2.0 * np.equal.outer(targets, np.arange(3)) - 1
    scores = np.zeros(4)
    for number in np.unique(group):
        is_left = group != number
        for k, alpha in enumerate(alphas):
            ridge = Ridge(alpha=alpha).fit(features[is_left], values[is_left], weights[is_left])
            errors = values[~is_left] - ridge.predict(features[~is_left])
            scores[k] -= weights[~is_left] @ np.mean(errors**2, axis=1) / weights.sum()
    assert_allclose(model.cv_results_["mean_test_score"], scores, rtol=1e-7)
    assert model.alpha_ == alphas[np.argmax(scores)]
    # Of distinct rows it is RidgeCV's.
    model.fit(X, T[:, 0] > 0 if kind is ApproxKernelRidgeClassifierCV else T[:, 0])
    values = np.where(T[:, 0] > 0, 1.0, -1.0) if hasattr(model, "classes_") else T[:, 0]
    peer = RidgeCV(alphas=alphas).fit(features_of(model, X), values)
    assert_allclose(model.best_score_, peer.best_score_, rtol=1e-7)
    assert model.alpha_ == peer.alpha_


@weighted_or_not
def test_generalised_cross_validation_is_its_definition(weights):
    alphas = [1e-3, 0.1, 1.0, 30.0]
    model = ApproxKernelRidgeCV(MAPS["trigonometric"], sigmas=None, alphas=alphas)
    rows = X, T[:, :2], *([] if weights is None else [weights])
    model.fit_batches([tuple(part[:50] for part in rows), tuple(part[50:] for part in rows)])
    w = np.ones(80) if weights is None else weights * 1.0
    features, expected = features_of(model, X), []
    design = np.sqrt(w)[:, None] * np.column_stack([np.ones(80), features])
    for alpha in alphas:
        penalty = alpha * np.diag(np.arange(design.shape[1]) > 0)
        hat = design @ np.linalg.solve(design.T @ design + penalty, design.T)
        scaled = np.sqrt(w)[:, None] * T[:, :2]
        errors = np.sum((scaled - hat @ scaled) ** 2, axis=0)
        expected.append(-np.mean(w.sum() * errors / (w.sum() - np.trace(hat)) ** 2))
    if weights is None or w.sum() > 41:
        assert_allclose(model.cv_results_["mean_test_score"], expected, rtol=1e-7)
    best = int(np.argmax(expected))
    assert model.alpha_ == alphas[best] == model.cv_results_["params"][best]["alpha"]
    assert model.best_score_ == pytest.approx(expected[best])
    assert model.cv_results_["rank_test_score"][best] == 1


def assert_same_scores(ours, theirs):
    """Compare the scores of all pairs, which come in another order."""
    places = {(p["sigma"], p["alpha"]): i for i, p in enumerate(ours.cv_results_["params"])}
    order = [places[p["sigma"], p["alpha"]] for p in theirs.cv_results_["params"]]
    assert len(order) == len(places)
    for name in theirs.cv_results_:
        if name.endswith("test_score"):
            actual = ours.cv_results_[name][order]
            assert_allclose(actual, theirs.cv_results_[name], rtol=1e-8, err_msg=name)


def assert_same_table(ours, theirs):
    """Compare the scores of all pairs, and the best pair."""
    assert_same_scores(ours, theirs)
    assert {"sigma": ours.sigma_, "alpha": ours.alpha_} == theirs.best_params_
    assert ours.best_score_ == pytest.approx(theirs.best_score_, rel=1e-8)


@pytest.mark.parametrize(
    ("cv", "targets"),
    [
        (KFold(4, shuffle=True, random_state=0), T[:, :2]),
        (ShuffleSplit(3, test_size=0.4, random_state=0), T[:, 0]),
        (RepeatedKFold(n_splits=3, n_repeats=2, random_state=0), T[:, 0]),
        (PredefinedSplit(np.where(np.arange(80) < 50, -1, np.arange(80) % 2)), T[:, 0]),
    ],
    ids=["shuffled", "overlapping", "repeated", "some never tested"],
)
def test_a_search_is_a_grid_search(cv, targets):
    grid = {"alpha": [1e-3, 0.1, 10.0], "sigma": [0.1, 0.5, 2.0]}
    feature_map = RFFSampler(30, random_state=0)
    theirs = GridSearchCV(
        ApproxKernelRidge(feature_map), grid, cv=cv, scoring="neg_mean_squared_error"
    ).fit(X, targets)
    ours = ApproxKernelRidgeCV(feature_map, sigmas=grid["sigma"], alphas=grid["alpha"], cv=cv)
    assert_same_table(ours.fit(X, targets), theirs)
    assert_allclose(ours.predict(Q), theirs.predict(Q), rtol=1e-7)


@pytest.mark.parametrize("n_components", [30, 100])  # fewer and more than rows
@pytest.mark.parametrize(
    ("scoring", "targets"),
    [("r2", T[:, :2]), ("neg_mean_absolute_error", T[:, 0]), ("neg_max_error", T[:, 0])],
)
def test_other_scores_are_those_of_a_grid_search(n_components, scoring, targets):
    grid = {"alpha": [1e-3, 0.1, 10.0], "sigma": [0.1, 0.5, 2.0]}
    feature_map = RFFSampler(n_components, random_state=0)
    theirs = GridSearchCV(ApproxKernelRidge(feature_map), grid, cv=KFold(4), scoring=scoring)
    ours = ApproxKernelRidgeCV(
        feature_map, sigmas=grid["sigma"], alphas=grid["alpha"], cv=4, scoring=scoring
    )
    assert_same_table(ours.fit(X, targets), theirs.fit(X, targets))


@pytest.mark.parametrize("decision", ["argmax", "discriminants", "one-vs-one"])
@pytest.mark.parametrize("scoring", ["f1_macro", "balanced_accuracy", "roc_auc_ovr"])
def test_other_scores_of_classes_are_those_of_a_grid_search(decision, scoring):
    """Of probabilities all searches are monotone: one scale for a fold changes no order."""
    feature_map, alphas = RFFSampler(60, sigma=0.5, random_state=0), [1e-2, 0.1, 1.0]
    ours = ApproxKernelRidgeClassifierCV(
        feature_map, sigmas=[0.5], alphas=alphas, decision=decision, scoring=scoring, cv=3
    ).fit(X, y)
    scores = np.zeros(3)
    for train, test in StratifiedKFold(3).split(X, y):
        for k, alpha in enumerate(alphas):
            model = ApproxKernelRidgeClassifier(feature_map, alpha=alpha, decision=decision)
            model.fit(X[train], y[train])
            scorer = get_scorer(scoring)
            if scoring == "roc_auc_ovr":
                known = known_of(model, X[test], y[test])
                scores[k] += scorer(known, X[test], y[test]) / 3
            else:
                scores[k] += scorer(model, X[test], y[test]) / 3
    assert_allclose(ours.cv_results_["mean_test_score"], scores)
    assert ours.best_score_ == pytest.approx(scores.max())


def known_of(model, rows, codes):
    """Return what stands for a model whose probabilities are fitted to rows."""
    values = model.feature_map_.transform(rows) @ model.component_coef_.T + model.intercept_
    is_of_pairs = model.decisions_ == "one-vs-one"
    scale = best_scale(losses(values, codes, None, is_of_pairs))
    shares = probabilities(values, scale, len(model.classes_), is_of_pairs)

    def predict_proba(X):
        return shares

    scores = votes(values) if is_of_pairs else values
    return KnownDecisions(model.classes_, model.predict(rows), scores, predict_proba)


def test_a_callable_score():
    def least(model, rows, targets):
        return -float(np.abs(model.predict(rows) - targets).max())

    options = {"feature_map": RFFSampler(20, random_state=0), "sigmas": [0.5, 1.0], "cv": 3}
    ours = ApproxKernelRidgeCV(**options, scoring=least).fit(X, T[:, 0])
    theirs = ApproxKernelRidgeCV(**options, scoring="neg_max_error").fit(X, T[:, 0])
    assert_array_equal(*(m.cv_results_["mean_test_score"] for m in (ours, theirs)))


@pytest.mark.parametrize("feature_map", [None, AdaptiveRF(20)], ids=["shared", "apart"])
def test_a_callable_score_is_given_the_rows_themselves(feature_map):
    known = set(map(tuple, X))

    def share_of_known_rows(model, rows, labels):
        return float(np.mean([tuple(row) in known for row in rows]))

    search = ApproxKernelRidgeClassifierCV(feature_map, sigmas=2, scoring=share_of_known_rows)
    assert search.fit(X, np.arange(len(X)) % 3).best_score_ == 1


def test_the_exact_kernel_of_a_search_has_all_rows_as_landmarks():
    search = ApproxKernelRidgeCV("exact", sigmas=[1.0], alphas=[0.1], subsample=20).fit(X, T)
    model = ApproxKernelRidge("exact", sigma=1.0, alpha=0.1).fit(X, T)
    assert search.n_samples_searched_ == 20
    assert_allclose(search.predict(X), model.predict(X), rtol=1e-6, atol=1e-8)


def test_the_search_of_a_classifier_scores_targets():
    grid = {"sigmas": [0.3, 1.0], "alphas": [0.1, 1.0]}
    feature_map = RFFSampler(30, random_state=0)
    model = ApproxKernelRidgeClassifierCV(feature_map, cv=3, decision="argmax", **grid).fit(X, y)
    codes = np.where(y[:, None] == np.arange(3), 1.0, -1.0)
    splits = list(StratifiedKFold(3).split(X, y))
    plain = ApproxKernelRidgeCV(feature_map, cv=splits, **grid).fit(X, codes)
    for name in ("mean_test_score", "split2_test_score"):
        assert_allclose(model.cv_results_[name], plain.cv_results_[name], rtol=1e-9)
    chosen = {"sigma": model.sigma_, "alpha": model.alpha_}
    chosen = ApproxKernelRidgeClassifier(feature_map, decision="argmax", **chosen).fit(X, y)
    assert_allclose(model.decision_function(Q), chosen.decision_function(Q), rtol=1e-7)


def test_a_number_of_sigmas_lies_around_the_scale():
    model = ApproxKernelRidgeCV(RFFSampler(20), sigmas=5, random_state=0).fit(X, T[:, 0])
    scale = RFFSampler(2, sigma="scale").fit(X).sigma_
    expected = np.repeat(scale * np.logspace(-1, 1, 5), 6)
    assert_allclose(model.cv_results_["param_sigma"], expected)
    # All sigmas have the same draw, that of the estimator without a search.
    best = {"sigma": model.sigma_, "alpha": model.alpha_}
    plain = ApproxKernelRidge(RFFSampler(20), random_state=0, **best).fit(X, T[:, 0])
    assert_allclose(model.predict(Q), plain.predict(Q), rtol=1e-7)


@pytest.mark.parametrize(
    ("feature_map", "weights"),
    [(AdaptiveRF(24), np.arange(80) % 3), (ClusterNystroem(12, centers="classes"), None)],
)
def test_maps_of_labels_do_not_see_those_of_held_out_samples(feature_map, weights):
    feature_map, y = clone(feature_map).set_params(random_state=0), X[:, 0] + X[:, 1] ** 2 > 0.5

    def score(model, rows, labels):
        return -np.mean((model.decision_function(rows) - np.where(labels, 1.0, -1.0)) ** 2)

    grid, folds = {"sigma": [0.3, 1.0, 3.0], "alpha": [0.01, 1.0]}, np.arange(80) % 4
    # Weights are repetitions, of samples that share a fold.
    order = np.arange(80) if weights is None else np.repeat(np.arange(80), weights)
    theirs = GridSearchCV(
        ApproxKernelRidgeClassifier(feature_map),
        grid,
        scoring=score,
        cv=PredefinedSplit(folds[order]),
        error_score="raise",
    ).fit(X[order], y[order])
    ours = ApproxKernelRidgeClassifierCV(
        feature_map, sigmas=grid["sigma"], alphas=grid["alpha"], cv=PredefinedSplit(folds)
    ).fit(X, y, weights)
    assert_same_scores(ours, theirs)
    best = clone(theirs.estimator).set_params(sigma=ours.sigma_, alpha=ours.alpha_)
    best.fit(X[order], y[order])
    assert_allclose(ours.decision_function(Q), best.decision_function(Q), rtol=1e-7, atol=1e-9)
    assert ours.feature_map_.sigma_ == ours.sigma_


def test_landmarks_of_a_search_see_no_labels_and_those_of_the_model_do():
    given = {"sigmas": [0.3, 1.0], "alphas": [0.1, 1.0], "random_state": 0}
    search = ApproxKernelRidgeClassifierCV(ClusterNystroem(12), **given).fit(X, y)
    blind = ApproxKernelRidgeClassifierCV(ClusterNystroem(12, centers="kmeans"), **given).fit(X, y)
    for name in ("mean_test_score", "split1_test_score"):
        assert_array_equal(search.cv_results_[name], blind.cv_results_[name])
    assert (search.sigma_, search.alpha_) == (blind.sigma_, blind.alpha_)
    plain = ClusterNystroem(12, sigma=search.sigma_, random_state=0).fit(X, y)
    assert_array_equal(search.feature_map_.centers_, plain.centers_)


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


def test_generalised_cross_validation_without_degrees_of_freedom():
    model = ApproxKernelRidgeCV(RFFSampler(20), sigmas=None, alphas=[0.1, 10.0], random_state=0)
    model.fit_batches([(X[:2], T[:2, 0])])
    assert model.alpha_ == 10.0 and model.best_score_ == -np.inf
    assert model.fit(X[:2], T[:2, 0]).best_score_ > -np.inf


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
    with pytest.raises(ValueError, match="read-only"):
        model.component_coef_[...] = 0
    expected = model.predict(Q)
    model.set_params(feature_map=RFFSampler(2), random_state=5)
    assert_array_equal(model.predict(Q), expected)
    assert_array_equal(pickle.loads(pickle.dumps(model)).predict(Q), expected)
    if hasattr(model, "partial_fit"):
        with pytest.raises(ValueError, match="partial_fit goes on"):
            model.partial_fit(X, targets)


def test_a_fitted_search_holds_no_moments():
    """A square matrix for standard deviations, and not a second one."""
    search = ApproxKernelRidgeCV(RFFSampler(200), sigmas=2, cv=2, random_state=0).fit(X, X[:, 0])
    assert len(pickle.dumps(search)) < 1.5 * 8 * 200**2


def test_faulty_parameters_are_named():
    ridge, search = ApproxKernelRidge, ApproxKernelRidgeCV
    for model, words in (
        (ridge(alpha=0.0), "alpha"),
        (ridge(alpha="auto"), "alpha.*evidence"),
        (ridge(alpha=10**400), "alpha"),
        (ridge(noise_variance=-1.0), "noise_variance"),
        (ridge(noise_variance=10**400), "noise_variance"),
        (ridge(Nystroem(), sigma=1.0), "sigma=1.0"),
        (ridge(RFFSampler), "feature_map"),
        (search(sigmas=1), "sigmas"),
        (search(sigmas=[1.0, -2.0]), "sigmas.*-2.0"),
        (search(alphas=["a"]), "alphas.*'a'"),
        (search(Nystroem()), "sigmas=None"),
        (search(cv="five"), "cv"),
        (search(cv=[([0], [1.5])]), "cv"),
    ):
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
