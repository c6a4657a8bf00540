"""Kernel regression on features: equal to the brute-force estimate, and sound where that is 0/0."""

import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from instances import MECHANISMS, make
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp, softmax
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.model_selection import cross_val_predict, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler, StandardScaler
from threadpoolctl import threadpool_limits

from skrf import (
    AdaptiveRF,
    ApproxKernelRidge,
    KernelRegressionClassifier,
    KernelRegressor,
    OptimalPositiveRF,
    PositiveRF,
    RFFSampler,
    _sums,
)
from skrf.exceptions import FeatureCollapseWarning
from skrf.regression import _base, _blocks

CLOSE = {"rtol": 1e-9, "atol": 1e-12}

_rng = np.random.default_rng(0)
X = _rng.normal(size=(60, 4))
Q = _rng.normal(size=(25, 4)) * 1.5
y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
T = np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2, 1e3 + X[:, 2]])
WEIGHTS = _rng.random(60) * (np.arange(60) % 5 > 0)

MAPS = {
    "positive": PositiveRF(n_components=40, sigma=0.8, random_state=0),
    "optimal": OptimalPositiveRF(n_components=40, sigma="scale", random_state=0),
    "softmax": OptimalPositiveRF(n_components=40, sigma=0.5, kernel="softmax", random_state=0),
    "trigonometric": RFFSampler(n_components=40, sigma=0.8, random_state=0),
    "asymmetric": make("HybridRF", n_components=90, sigma=0.8, random_state=0),
    "clustered": make("HybridRF-clustered", n_components=160, sigma=0.8, random_state=0),
    "nystroem": Nystroem(n_components=20, random_state=0),
    "rbfsampler": RBFSampler(n_components=40, random_state=0),
}
every_map = pytest.mark.parametrize("which", MAPS)
weighted_or_not = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])


def kernel(fitted, queries, keys):
    """Estimated kernel of all pairs, of the public features."""
    right = getattr(fitted, "transform_keys", fitted.transform)(keys)
    return fitted.transform(queries) @ right.T


def fit_map(which, weights):
    """Fit a map as an estimator does: on the rows that count, weighted if the map can be."""
    keep = slice(None) if weights is None else weights > 0
    feature_map = clone(MAPS[which])
    if weights is None or which in ("nystroem", "rbfsampler"):
        return feature_map.fit(X[keep])
    return feature_map.fit(X[keep], sample_weight=weights[keep])


# ------------------------------------------------------------------ the estimate itself


@every_map
@weighted_or_not
def test_classifier_is_brute_force(which, weights):
    model = KernelRegressionClassifier(MAPS[which]).fit(X, y, sample_weight=weights)
    w = np.ones(60) if weights is None else weights
    scores = kernel(fit_map(which, weights), Q, X) @ (w[:, None] * np.eye(3)[y])
    positive = np.maximum(scores, 0)
    some = positive.any(axis=1)
    assert_array_equal(model.predict(Q)[some], scores.argmax(axis=1)[some])
    shares = np.bincount(y, w) / w.sum()
    expected = np.where(
        some[:, None], positive / np.where(some, positive.sum(axis=1), 1)[:, None], shares
    )
    assert_allclose(model.predict_proba(Q), expected, **CLOSE)
    assert_allclose(model.class_weight_, np.bincount(y, w), **CLOSE)


@every_map
@weighted_or_not
@pytest.mark.parametrize("n_outputs", [0, 1, 3], ids=["flat", "one", "three"])
def test_regressor_is_brute_force(which, weights, n_outputs):
    targets = T[:, 0] if n_outputs == 0 else T[:, :n_outputs]
    model = KernelRegressor(MAPS[which]).fit(X, targets, sample_weight=weights)
    w = np.ones(60) if weights is None else weights
    estimated = kernel(fit_map(which, weights), Q, X) * w
    total, columns = estimated.sum(axis=1), targets.reshape(60, -1)
    used = columns[w > 0]
    means = np.clip(
        (estimated @ columns) / np.where(total > 0, total, 1)[:, None], used.min(0), used.max(0)
    )
    expected = np.where((total > 0)[:, None], means, np.average(columns, axis=0, weights=w))
    predicted = model.predict(Q)
    assert predicted.shape == (25, *targets.shape[1:])
    # Sums with a sign lose digits where they nearly vanish.
    digits = 1e-9 * np.abs(estimated).sum(axis=1) / np.maximum(np.abs(total), 1e-300)
    error = np.abs(predicted.reshape(25, -1) - expected)
    assert (error <= 1e-9 + digits[:, None] * np.abs(columns).max(axis=0)).all()
    assert_allclose(model.target_mean_, np.average(columns, axis=0, weights=w), **CLOSE)


@pytest.mark.parametrize("sigma", [1.0, 30.0, 1000.0])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_positive_maps_are_summed_in_log_space(sigma, dtype):
    rows, queries = X.astype(dtype), Q.astype(dtype)
    feature_map = OptimalPositiveRF(n_components=40, sigma=sigma, random_state=0)
    model = KernelRegressionClassifier(feature_map).fit(rows, y, sample_weight=WEIGHTS)
    keep = WEIGHTS > 0
    fitted = clone(feature_map).fit(rows[keep], sample_weight=WEIGHTS[keep])
    logs = (
        fitted.log_transform(queries)[:, None].astype(float)
        + fitted.log_transform_keys(rows[keep])[None].astype(float)
        + np.log(WEIGHTS[keep])[None, :, None]
    )
    scores = np.stack([logsumexp(logs[:, y[keep] == c], axis=(1, 2)) for c in range(3)], axis=1)
    expected = scores - logsumexp(scores, axis=1, keepdims=True)
    # Weighted features fit to rounding of the dtype, whose exponents reach 1e7 at sigma = 1000.
    size = np.abs(logs).max() * np.finfo(dtype).eps
    found = model.predict_log_proba(queries)
    assert np.isfinite(found).all()
    assert_allclose(found, expected, rtol=1e-6, atol=10 * size)
    assert_allclose(model.predict_proba(queries), softmax(scores, axis=1), atol=1e-6)
    regressor = KernelRegressor(feature_map).fit(rows, T, sample_weight=WEIGHTS)
    shares = softmax(logsumexp(logs, axis=2), axis=1)
    assert_allclose(regressor.predict(queries), shares @ T[keep], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "sigma, last, answered", [(0.3, 1.0, {True}), (0.3, 70.0, {True, False}), (300.0, 1.0, {False})]
)
def test_a_common_scale_serves_where_it_suits(sigma, last, answered, dtype, monkeypatch):
    """Blocks after the first are lowered by its scale, and summed again where that fails."""
    answers = []
    lowered_sums = _sums._lowered_sums

    def spy(*args):
        found = lowered_sums(*args)
        answers.append(found is not None)
        return found

    monkeypatch.setattr(_sums, "_lowered_sums", spy)
    monkeypatch.setattr(_base, "BLOCK_ROWS", 64)
    monkeypatch.setattr(_blocks, "block_rows", lambda n_rows, n_columns, width: 100)
    # Ordered by class: the first rows know one of them only.
    rng = np.random.default_rng(0)
    labels = np.sort(rng.integers(3, size=3000))
    centres = np.array([0.0, 1.0, last])
    rows = (rng.normal(size=(3000, 4)) + centres[labels][:, None]).astype(dtype)
    weights = rng.random(3000) + 0.1
    model = KernelRegressionClassifier(OptimalPositiveRF(40, sigma=sigma, random_state=0))
    model.fit(rows, labels, sample_weight=weights)
    assert set(answers) == answered
    # The second batch has 8 * 64 rows; where it is not of one scale, no other one is tried.
    assert len(answers) == 6 if sigma == 300.0 else len(answers) > 10
    logs = model.feature_map_.log_transform_keys(rows) + np.log(weights)[:, None]
    expected = np.stack([logsumexp(logs[labels == c], axis=0) for c in range(3)], axis=1)
    sums = model._fitted.sums
    found = (np.log(sums.sums[:, :, 0]) + sums.top).T
    size = max(1.0, np.abs(expected).max()) * np.finfo(dtype).eps
    assert_allclose(found, expected, rtol=0, atol=20 * size)
    # Among all queries some are far from the others; the first ones are alike.
    queries = model.feature_map_.log_transform(rows)
    scores = np.stack([logsumexp(queries + column, axis=1) for column in expected.T], axis=1)
    size = max(size, np.abs(queries).max() * np.finfo(dtype).eps)
    proba = softmax(scores, axis=1)
    assert_allclose(model.predict_proba(rows), proba, rtol=0, atol=20 * size)
    assert_allclose(model.predict_proba(rows[:1200]), proba[:1200], rtol=0, atol=20 * size)


def test_distant_classes_keep_their_logarithms():
    # Probabilities of e^-20000 are 0 as numbers, not as logarithms.
    rows = np.array([[0.0], [1.0], [200.0]])
    model = KernelRegressionClassifier(OptimalPositiveRF(random_state=0)).fit(rows, [0, 0, 1])
    assert model.predict_proba([[0.5]])[0, 1] == 0.0
    logs = model.predict_log_proba([[0.5]])
    assert np.isfinite(logs).all() and logs[0, 1] < -1000 and logs[0, 0] == 0.0


@pytest.mark.parametrize("size", [1e-34, 1e24, 1e34])
def test_targets_of_any_size_in_float32(size):
    """The sums of targets must stay inside the range of float32, not only those of weights."""
    rng = np.random.default_rng(0)
    rows = 0.3 * rng.normal(size=(3000, 3))
    rows[1024:, 0] += 5.0
    rows = rows.astype(np.float32)
    targets = size * (2 + np.sin(rows[:, 0].astype(float)))
    regressor = KernelRegressor(PositiveRF(64, kernel="softmax", sigma=1.0, random_state=0))
    found = clone(regressor).fit(rows, targets).predict(rows)
    exact = clone(regressor).fit(rows.astype(float), targets).predict(rows.astype(float))
    assert_allclose(found / size, exact / size, rtol=0, atol=1e-4)


# ------------------------------------------------------------------ units of weights and targets


def unrounded(model, queries):
    """Return the means of targets that `predict` rounds to float32 for rows of float32."""
    return model._fitted.query(queries, model._means_of())


FACTORS = [1e-300, 1e-46, 1e38, 1e300]


@every_map
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_common_factor_of_the_weights_changes_nothing(which, factor, dtype):
    rows, queries = X.astype(dtype), Q.astype(dtype)
    for weights in (np.ones(60), WEIGHTS):
        plain = KernelRegressionClassifier(MAPS[which]).fit(rows, y, weights)
        model = KernelRegressionClassifier(MAPS[which]).fit(rows, y, factor * weights)
        # Sums with a sign lose digits where they nearly vanish.
        close = {"rtol": 0, "atol": 1e-9 if dtype is np.float64 else 1e-3}
        assert_allclose(model.predict_proba(queries), plain.predict_proba(queries), **close)
        assert_array_equal(model.predict(queries), plain.predict(queries))
        assert_allclose(model.class_weight_, np.bincount(y, factor * weights), rtol=1e-12)
        plain = KernelRegressor(MAPS[which]).fit(rows, T[:, 0], weights)
        model = KernelRegressor(MAPS[which]).fit(rows, T[:, 0], factor * weights)
        assert_allclose(model.predict(queries), plain.predict(queries), **close)
        assert_allclose(model.target_mean_, plain.target_mean_, rtol=1e-12)


def test_weights_whose_sums_overflow():
    """A class weight of 2e308 is infinite, and the model is not."""
    labels = np.arange(60) % 2
    for dtype in (np.float64, np.float32):
        rows = X.astype(dtype)
        plain = KernelRegressionClassifier(MAPS["positive"]).fit(rows, labels)
        model = KernelRegressionClassifier(MAPS["positive"]).fit(rows, labels, np.full(60, 1e307))
        assert np.isinf(model.class_weight_).all()
        assert_allclose(model.predict_proba(Q), plain.predict_proba(Q), rtol=1e-6)
        vanishing = KernelRegressionClassifier(Columns())
        vanishing.fit(rows, np.arange(60) % 3 == 0, np.full(60, 1e307))
        zeros = np.zeros((1, 4))
        assert_allclose(unwarned(vanishing.predict_proba, zeros), [[2 / 3, 1 / 3]])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("which", ["positive", "trigonometric"])
def test_weights_and_targets_may_be_far_apart(which, dtype):
    """Every batch has its own units; within one, weights are over the largest."""
    rows, queries = X.astype(dtype), Q.astype(dtype)
    factors = np.repeat([1e-12, 1.0, 1e12], 20)
    # All at once: only the heaviest rows count, and of a class the heaviest of its own.
    frozen = FrozenEstimator(clone(MAPS[which]).fit(rows))
    labels = np.repeat([0, 1, 2], 20)
    model = KernelRegressionClassifier(frozen).fit(rows, labels, factors)
    assert_allclose(model.class_weight_, 20 * factors[[0, 20, 40]], rtol=1e-12)
    mixed = KernelRegressionClassifier(frozen).fit(rows, np.arange(60) % 3, factors)
    heavy = KernelRegressionClassifier(frozen).fit(rows[40:], np.arange(40, 60) % 3)
    close = {"rtol": 0, "atol": 1e-9 if dtype is np.float64 else 1e-4}
    assert_allclose(mixed.predict_proba(queries), heavy.predict_proba(queries), **close)
    if which == "positive":
        even = KernelRegressionClassifier(frozen).fit(rows, labels)
        logs = even.predict_log_proba(queries) + np.log(factors[[0, 20, 40]])
        logs -= logsumexp(logs, axis=1, keepdims=True)
        assert_allclose(model.predict_log_proba(queries), logs, rtol=1e-9, atol=2e-4)
    # Batches of their own units: products of weights and targets are alike.
    parts, whole = KernelRegressor(frozen), KernelRegressor(frozen)
    for i in range(3):
        own = slice(20 * i, 20 * i + 20)
        factor = [1e-9, 1.0, 1e9][i]
        parts.partial_fit(rows[own], T[own, 0] / factor, np.full(20, factor))
    weights = np.repeat([1e-9, 1.0, 1e9], 20)
    whole.fit(rows, T[:, 0] / weights, weights)
    expected = whole.predict(queries.astype(float))
    size = np.abs(expected).max()
    assert_allclose(unrounded(parts, queries)[:, 0] / size, expected / size, **close)
    assert_allclose(parts.target_mean_, whole.target_mean_, rtol=1e-9)


@every_map
@pytest.mark.parametrize("factor", [1e-300, 1e-46, 1e46, 1e300])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_common_factor_of_the_targets_is_one_of_the_predictions(which, factor, dtype):
    rows, queries = X.astype(dtype), Q.astype(dtype)
    factors = np.array([factor, 1.0, 1 / factor])
    plain = KernelRegressor(MAPS[which]).fit(rows, T[:, [0, 0, 0]])
    model = KernelRegressor(MAPS[which]).fit(rows, T[:, [0, 0, 0]] * factors)
    close = {"rtol": 0, "atol": 1e-9 if dtype is np.float64 else 1e-3}
    assert_allclose(unrounded(model, queries) / factors, plain.predict(queries), **close)
    assert_allclose(model.target_mean_ / factors, plain.target_mean_, rtol=1e-12)
    # The next batch is of another size.
    model.partial_fit(rows, 1e5 * T[:, [0, 0, 0]] * factors)
    both = KernelRegressor(FrozenEstimator(clone(MAPS[which]).fit(rows)))
    both.fit(np.tile(rows, (2, 1)), np.r_[T[:, :1], 1e5 * T[:, :1]])
    found = unrounded(model, queries) / (1e5 * factors)
    assert_allclose(found, both.predict(queries)[:, [0, 0, 0]] / 1e5, **close)


def test_predictions_that_float32_does_not_hold_are_told(library):
    rows, wide = library.array(X.astype(np.float32)), library.array(X)
    for model in (KernelRegressor(MAPS["positive"]), ApproxKernelRidge(MAPS["positive"])):
        plain = model.fit(rows, T[:, 0]).predict(X)
        for factor, limit in ((1e-60, 0.0), (1e60, np.inf)):
            model.fit(rows, factor * T[:, 0])
            with pytest.warns(RuntimeWarning, match="Predictions overflow or vanish in float32"):
                found = library.host(model.predict(rows))
            assert found.dtype == np.float32 and (np.abs(found) == limit).all()
            assert_allclose(library.host(model.predict(wide)) / factor, plain, rtol=0, atol=1e-4)


def test_small_targets_beside_large_ones_in_float32():
    """A kernel so narrow that every query sees its own row alone."""
    rows = np.arange(12, dtype=np.float32)[:, None]
    targets = 10.0 ** np.arange(-60, 60, 10)
    model = KernelRegressor(OptimalPositiveRF(2000, sigma=60.0, random_state=0))
    found = unrounded(model.fit(rows, targets), rows)[:, 0]
    exact = clone(model).fit(rows.astype(float), targets).predict(rows.astype(float))
    assert_allclose(np.log(found), np.log(exact), rtol=1e-2)
    with pytest.warns(RuntimeWarning, match="Targets of y that are 2.500 times smaller"):
        model.fit(rows, np.where(rows[:, 0] > 5, 1e-200, 1.0))
    with pytest.warns(RuntimeWarning, match="Targets of y"):
        model.fit(rows, targets).partial_fit(rows, 1e-200 * targets)


@pytest.mark.parametrize(
    ("dtype", "rtol", "most"), [(np.float64, 1e-12, 300), (np.float32, 1e-6, 36)]
)
def test_small_shares_keep_the_digits_of_their_logarithms(dtype, rtol, most):
    rows = np.array([[0.0], [0.1], [0.2]], dtype=dtype)
    frozen = FrozenEstimator(PositiveRF(8, sigma=0.1, random_state=0).fit(rows))
    even = KernelRegressionClassifier(frozen).fit(rows, [0, 1, 2]).predict_log_proba(rows)
    for power in range(20, most, 7):
        weights = np.array([1.0, 10.0**-power, 10.0 ** -(power / 2)])
        expected = even + np.log(weights)
        expected -= logsumexp(expected, axis=1, keepdims=True)
        found = KernelRegressionClassifier(frozen).fit(rows, [0, 1, 2], weights)
        assert_allclose(found.predict_log_proba(rows), expected, rtol=rtol, atol=rtol)


def test_sums_of_wide_maps_are_not_held_for_all_blocks():
    rows = np.random.default_rng(0).normal(size=(12_000, 4))
    model = KernelRegressionClassifier(OptimalPositiveRF(4096, random_state=0))
    tracemalloc.start()
    model.fit(rows, np.arange(12_000) % 50)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The sums of a block are 3.3 MB; 20 are held at a time (of 64 blocks, 210 MB).
    assert peak < 120e6


# ------------------------------------------------------------------ order, batches and blocks


@every_map
def test_batches_and_order_do_not_matter(which):
    # The first batch sets the map's statistics, so the map is given ready.
    frozen = FrozenEstimator(clone(MAPS[which]).fit(X))
    whole = KernelRegressionClassifier(frozen).fit(X, y, sample_weight=WEIGHTS)
    whole_regressor = KernelRegressor(frozen).fit(X, T, sample_weight=WEIGHTS)
    order = np.random.default_rng(1).permutation(60)
    parts, regressor = KernelRegressionClassifier(frozen), KernelRegressor(frozen)
    for i, batch in enumerate(np.array_split(order, [1, 7, 40])):
        batch = np.append(batch, order[-1]) if i == 0 else batch[: None if i < 3 else -1]
        parts.partial_fit(X[batch], y[batch], [0, 1, 2] if i == 0 else None, WEIGHTS[batch])
        regressor.partial_fit(X[batch], T[batch], WEIGHTS[batch])
    assert_allclose(parts.predict_proba(Q), whole.predict_proba(Q), rtol=1e-8, atol=1e-11)
    assert_allclose(parts.class_weight_, whole.class_weight_, **CLOSE)
    assert_allclose(regressor.target_mean_, whole_regressor.target_mean_, **CLOSE)
    if not which.startswith(("tri", "asy", "nys", "rbf")):
        assert_allclose(regressor.predict(Q), whole_regressor.predict(Q), **CLOSE)


@every_map
@pytest.mark.parametrize("convert", [np.array, sp.csr_array])
def test_blocks_do_not_matter(which, convert, monkeypatch):
    one = KernelRegressionClassifier(MAPS[which]).fit(convert(X), y, sample_weight=WEIGHTS)
    one_regressor = KernelRegressor(MAPS[which]).fit(convert(X), T)
    expected = [one.predict_log_proba(convert(Q)), one_regressor.predict(convert(Q))]
    expected_labels = one.predict(convert(Q))
    for module in (_base, _blocks):
        monkeypatch.setattr(module, "BLOCK_ROWS", 7)
    monkeypatch.setattr(_blocks, "block_rows", lambda n_rows, n_columns, width: 7)
    many = KernelRegressionClassifier(MAPS[which]).fit(convert(X), y, sample_weight=WEIGHTS)
    many_regressor = KernelRegressor(MAPS[which]).fit(convert(X), T)
    assert_allclose(many.predict_log_proba(convert(Q)), expected[0], rtol=1e-7)
    assert_allclose(many_regressor.predict(convert(Q)), expected[1], rtol=1e-7)
    assert_array_equal(many.predict(convert(Q)), expected_labels)


@pytest.mark.parametrize("name", MECHANISMS)
def test_sparse_rows_give_the_results_of_dense_ones(name):
    rows = X * (np.abs(X) > 0.4)
    feature_map = make(name, n_components=30, sigma=0.5, random_state=0)
    for model in (KernelRegressionClassifier(feature_map), KernelRegressor(feature_map)):
        expected = model.fit(rows, y).predict(rows)
        for convert in (sp.csr_array, sp.csc_matrix):
            found = model.predict(convert(rows))
            assert_allclose(found, expected, rtol=1e-8)
            assert_allclose(clone(model).fit(convert(rows), y).predict(convert(rows)), expected)
    proba = KernelRegressionClassifier(feature_map).fit(rows, y).predict_proba
    assert_allclose(proba(sp.csr_array(rows)), proba(rows), rtol=1e-8, atol=1e-12)


def test_the_first_batch_alone_sets_the_map():
    model = KernelRegressionClassifier(AdaptiveRF(16), sigma="scale", random_state=0)
    model.partial_fit(X[:20], y[:20], classes=[0, 1, 2])
    first = clone(model.feature_map_).fit(X[:20], y[:20])
    model.partial_fit(100 * X[20:], y[20:])
    assert model.feature_map_.sigma_ == first.sigma_
    assert_array_equal(model.feature_map_.offset_, first.offset_)
    # `fit` starts anew.
    model.fit(X, y)
    assert_allclose(
        model.predict_proba(Q),
        clone(model).fit(X, y).predict_proba(Q),
        rtol=1e-12,
    )


@pytest.mark.parametrize("estimator", [KernelRegressor, ApproxKernelRidge])
def test_a_first_batch_too_small_for_its_map_warns(estimator):
    model = estimator(AdaptiveRF(32, sigma=1.0, random_state=0))
    with pytest.warns(UserWarning, match="31 rows are too few for the 32 components") as caught:
        model.partial_fit(X[:31], T[:31])
    assert caught[0].filename == __file__
    # Neither later batches, nor enough rows, nor a map that is fitted already.
    model.partial_fit(X[:5], T[:5])
    clone(model).partial_fit(X[:32], T[:32])
    clone(model).fit(X[:31], T[:31])
    fitted = AdaptiveRF(32, sigma=1.0, random_state=0).fit(X)
    estimator(FrozenEstimator(fitted)).partial_fit(X[:31], T[:31])


def test_fit_and_predict_hold_blocks_and_not_features():
    rows = np.random.default_rng(0).normal(size=(60_000, 5))
    model = KernelRegressionClassifier(OptimalPositiveRF(512, sigma=0.3, random_state=0))
    model.fit(rows[:2000], np.arange(2000) % 3).predict(rows[:2000])
    with threadpool_limits(2, user_api="blas"):
        tracemalloc.start()
        model.fit(rows, np.arange(60_000) % 3).predict(rows)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # All features together are 246 MB; a block is 4 MB, and two threads hold two each.
    assert peak < 40e6


def test_the_model_does_not_grow_with_the_rows():
    small, large = (
        KernelRegressionClassifier(sigma=1.0).fit(np.tile(X, (n, 1)), np.tile(y, n))
        for n in (1, 50)
    )
    assert small._fitted.sums.sums.shape == large._fitted.sums.sums.shape == (3, 256, 1)


# ------------------------------------------------------------------ probabilities and decisions


@every_map
def test_probabilities_decisions_and_predictions_agree(which):
    model = KernelRegressionClassifier(MAPS[which]).fit(X, y)
    probabilities, logs = model.predict_proba(Q), model.predict_log_proba(Q)
    assert probabilities.shape == (25, 3) and (probabilities >= 0).all()
    assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-12)
    assert_allclose(np.exp(logs), probabilities, **CLOSE)
    assert_allclose(softmax(logs, axis=1), probabilities, **CLOSE)
    decisions = model.decision_function(Q)
    assert np.isfinite(decisions).all()
    assert_allclose(decisions[np.isfinite(logs)], logs[np.isfinite(logs)], **CLOSE)
    assert (decisions[~np.isfinite(logs)] < -745).all()
    # Also where no score is positive, and the class shares take their place.
    assert_array_equal(model.predict(Q), probabilities.argmax(axis=1))
    assert_array_equal(model.predict(Q), decisions.argmax(axis=1))


@every_map
def test_two_classes_give_one_decision(which):
    labels = np.where(y > 0, "yes", "no")
    model = KernelRegressionClassifier(MAPS[which]).fit(X, labels)
    assert list(model.classes_) == ["no", "yes"]
    decisions, logs = model.decision_function(Q), model.predict_log_proba(Q)
    assert decisions.shape == (25,) and np.isfinite(decisions).all()
    finite = np.isfinite(logs).all(axis=1)
    assert_allclose(decisions[finite], (logs[:, 1] - logs[:, 0])[finite], **CLOSE)
    shares = np.log(model.class_weight_[1] / model.class_weight_[0])
    assert (~np.isclose(decisions, shares)).sum() >= 10
    assert_array_equal(model.predict(Q), np.where(decisions > 0, "yes", "no"))


class Columns(TransformerMixin, BaseEstimator):
    """A map that returns chosen features: the first column is the feature."""

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return X[:, :1]


def test_class_shares_where_no_score_is_positive():
    model = KernelRegressionClassifier(Columns())
    model.fit([[1.0], [1.0], [1.0], [2.0]], ["b", "b", "c", "a"], sample_weight=[1, 2, 3, 2])
    shares = [[0.25, 0.375, 0.375]]
    for query in ([[0.0]], [[-1.0]]):
        assert_allclose(unwarned(model.predict_proba, query), shares)
        assert_allclose(unwarned(model.predict_log_proba, query), np.log(shares))
        assert_allclose(unwarned(model.decision_function, query), np.log(shares))
    assert_allclose(model.predict_proba([[5.0]]), [[0.4, 0.3, 0.3]])
    assert list(unwarned(model.predict, [[0.0], [5.0]])) == ["b", "a"]
    regressor = KernelRegressor(Columns()).fit([[1.0], [1.0], [3.0]], [0.0, 1.0, 5.0])
    assert_allclose(unwarned(regressor.predict, [[0.0], [-1.0], [1.0]]), [2.0, 2.0, 16 / 5])


def unwarned(function, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FeatureCollapseWarning)
        return function(*args)


def test_rows_whose_features_are_zero_are_told():
    model = KernelRegressionClassifier(Columns()).fit([[1.0], [2.0]], [0, 1])
    regressor = KernelRegressor(Columns()).fit([[1.0], [2.0]], [0.0, 1.0])
    functions = model.predict, model.predict_proba, model.predict_log_proba, regressor.predict
    for function in functions:
        function([[1.0], [3.0]])
        with pytest.warns(FeatureCollapseWarning, match="class shares or the mean target") as told:
            function([[1.0], [0.0]])
        assert told[0].filename == __file__


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_features_beyond_the_range_count_as_zero_and_are_told(value):
    """What other packages make of rows that are too large for them."""
    made = FunctionTransformer(lambda rows: np.where(rows > 9, value, rows))
    rows, labels = np.array([[1.0], [2.0], [2.0], [10.0]]), np.array([0, 1, 1, 1])
    for model, expected in (
        (KernelRegressionClassifier(made), [[0.2, 0.8], [0.25, 0.75]]),
        (KernelRegressor(made), [0.8, 0.75]),
    ):
        with pytest.warns(RuntimeWarning, match="feature_map made infinite or NaN features"):
            model.fit(rows, labels)
        predict = getattr(model, "predict_proba", model.predict)
        with pytest.warns(FeatureCollapseWarning), pytest.warns(RuntimeWarning, match="count as 0"):
            found = predict([[3.0], [11.0]])
        # Key rows beyond the range are left out; the shares are those of all rows.
        assert_allclose(found, expected)


def test_ties_go_to_the_first_class():
    rows, labels = np.repeat(X[:10], 2, axis=0), np.tile(["z", "b"], 10)
    for feature_map in (MAPS["positive"], MAPS["trigonometric"]):
        model = KernelRegressionClassifier(feature_map).fit(rows, labels)
        assert set(model.predict(X[:10])) == {"b"}
        assert_allclose(model.predict_proba(X[:10]), 0.5, rtol=1e-12)
        assert_allclose(model.decision_function(X[:10]), 0.0, atol=1e-12)


@pytest.mark.parametrize(
    "labels",
    [np.array(["red", "green", "blue"]), np.array([-5, 0, 70]), np.array([False, True, True])],
    ids=["text", "whole", "bool"],
)
def test_labels_of_any_kind_come_back(labels):
    model = KernelRegressionClassifier(random_state=0).fit(X, labels[y])
    assert_array_equal(model.classes_, np.unique(labels))
    assert model.predict(Q).dtype == labels.dtype
    numbers = KernelRegressionClassifier(random_state=0).fit(
        X, np.searchsorted(np.unique(labels), labels[y])
    )
    assert_array_equal(model.predict(Q), np.unique(labels)[numbers.predict(Q)])


def test_predictions_stay_inside_the_range_of_the_targets():
    for which in MAPS:
        for targets in (T, 1e6 + T, -T):
            model = KernelRegressor(MAPS[which]).fit(X, targets)
            predicted = unwarned(model.predict, 10 * Q)  # Nystroem's kernel is 0 there
            assert (predicted >= targets.min(axis=0)).all(), which
            assert (predicted <= targets.max(axis=0)).all(), which


# ------------------------------------------------------------------ partial_fit and its errors


def test_classes_of_partial_fit():
    model = KernelRegressionClassifier(AdaptiveRF(16), random_state=0)
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        model.partial_fit(X, y)
    with pytest.raises(ValueError, match=r"y contains labels .*2.* not in classes=.*0, 1"):
        model.partial_fit(X, y, classes=[1, 0])
    model = KernelRegressionClassifier(AdaptiveRF(16), random_state=0)
    model.partial_fit(X, y, classes=[2, 0, 1, 9])
    assert list(model.classes_) == [0, 1, 2, 9]
    model.partial_fit(X, y, classes=[9, 2, 1, 0])
    for others in ([0, 1, 2], [0, 1, 2, 8]):
        with pytest.raises(ValueError, match=r"classes=.* not the same as on the first call"):
            model.partial_fit(X, y, classes=others)
    with pytest.raises(ValueError, match=r"labels .*7.* not in classes="):
        model.partial_fit(X, np.full(60, 7))
    with pytest.raises(ValueError, match="4 features"):
        model.partial_fit(X[:, :3], y)


@every_map
def test_a_class_without_rows_has_probability_zero(which):
    model = KernelRegressionClassifier(MAPS[which]).partial_fit(X, y, classes=[0, 1, 2, 9])
    assert (model.predict_proba(Q)[:, 3] == 0).all()
    assert np.isneginf(model.predict_log_proba(Q)[:, 3]).all()
    assert 9 not in model.predict(Q)
    decisions = model.decision_function(Q)
    assert np.isfinite(decisions).all()
    assert (decisions[:, 3] <= decisions.min(axis=1)).all()
    three = KernelRegressionClassifier(MAPS[which]).fit(X, y)
    assert_allclose(model.predict_proba(Q)[:, :3], three.predict_proba(Q), **CLOSE)


def test_labels_of_partial_fit_are_checked():
    with pytest.raises(ValueError, match="classes must hold"):
        KernelRegressionClassifier().partial_fit(X, y, classes=[])
    with pytest.raises(ValueError, match="[Uu]nknown label type"):
        KernelRegressionClassifier().partial_fit(
            X[:2], np.array([0.5, 1.5], object), classes=[0, 1]
        )


def test_outputs_of_partial_fit():
    model = KernelRegressor(AdaptiveRF(16), random_state=0).partial_fit(X, T)
    with pytest.raises(ValueError, match=r"y has .*2.* outputs, but the first batch had .*3"):
        model.partial_fit(X, T[:, :2])


# ------------------------------------------------------------------ feature maps


@pytest.mark.parametrize("estimator", [KernelRegressionClassifier, KernelRegressor])
def test_sigma_and_random_state_reach_the_map(estimator):
    feature_map = RFFSampler(n_components=8, sigma=3.0, random_state=5)
    model = estimator(feature_map, sigma="median", random_state=1).fit(X, y)
    assert model.feature_map_.sigma == "median" and model.feature_map_.random_state == 1
    assert feature_map.sigma == 3.0 and not hasattr(feature_map, "statistics_")
    kept = estimator(feature_map).fit(X, y)
    assert kept.feature_map_.sigma == 3.0 and kept.feature_map_.random_state == 5
    default = estimator(sigma=2.0).fit(X, y).feature_map_
    assert isinstance(default, AdaptiveRF) and default.sigma == 2.0
    assert default.n_components == 256


@pytest.mark.parametrize("estimator", [KernelRegressionClassifier, KernelRegressor])
@pytest.mark.parametrize(
    ("feature_map", "parameter", "value"),
    [
        (Nystroem(n_components=5), "sigma", 0.5),
        (StandardScaler(), "random_state", 0),
        (make_pipeline(StandardScaler(), OptimalPositiveRF()), "sigma", "scale"),
        (FrozenEstimator(RFFSampler().fit(X)), "random_state", 3),
    ],
    ids=["Nystroem", "StandardScaler", "Pipeline", "FrozenEstimator"],
)
def test_a_parameter_that_the_map_lacks_is_an_error(estimator, feature_map, parameter, value):
    with pytest.raises(ValueError) as caught:
        estimator(feature_map, **{parameter: value}).fit(X, y)
    message = str(caught.value)
    assert f"{parameter}={value!r}" in message and f"{parameter}=None" in message
    assert type(feature_map).__name__ in message


PIPELINES = {
    "one step": lambda last: Pipeline([("map", last)]),
    "scaled": lambda last: make_pipeline(FunctionTransformer(), last),
    "passthrough": lambda last: Pipeline([("skip", "passthrough"), ("map", last)]),
    "whole numbers": lambda last: make_pipeline(FunctionTransformer(np.rint), last),
    "nested": lambda last: make_pipeline(FunctionTransformer(), make_pipeline(last)),
    "ends in nothing": lambda last: Pipeline([("map", last), ("skip", "passthrough")]),
}


@pytest.mark.parametrize(
    ("which", "kind"),
    # After a step that follows it, an asymmetric map has no key side any more.
    sorted(
        {(w, k) for w in MAPS for k in PIPELINES}
        - {("asymmetric", "ends in nothing"), ("clustered", "ends in nothing")}
    ),
)
def test_pipelines_are_maps(which, kind):
    rows, queries = (np.rint(Z) if kind == "whole numbers" else Z for Z in (X, Q))
    model = KernelRegressionClassifier(PIPELINES[kind](MAPS[which])).fit(X, y)
    plain = KernelRegressionClassifier(MAPS[which]).fit(rows, y)
    assert_allclose(model.predict_proba(Q), plain.predict_proba(queries), **CLOSE)


def test_a_step_that_makes_whole_numbers_or_tables():
    to_int = FunctionTransformer(lambda rows: np.rint(rows).astype(np.int64))
    pytest.importorskip("pandas")
    to_table = StandardScaler().set_output(transform="pandas")
    for which in ("optimal", "trigonometric", "nystroem"):
        model = KernelRegressionClassifier(make_pipeline(to_int, MAPS[which])).fit(X, y)
        plain = KernelRegressionClassifier(MAPS[which]).fit(np.rint(X), y)
        assert_allclose(model.predict_proba(Q), plain.predict_proba(np.rint(Q)), **CLOSE)
        model = KernelRegressionClassifier(make_pipeline(to_table, MAPS[which])).fit(X, y)
        plain = KernelRegressionClassifier(make_pipeline(StandardScaler(), MAPS[which])).fit(X, y)
        assert_allclose(model.predict_proba(Q), plain.predict_proba(Q), **CLOSE)


@pytest.mark.parametrize("estimator", [KernelRegressionClassifier, KernelRegressor])
def test_a_pipeline_as_map_is_scaling_first(estimator):
    inside = estimator(make_pipeline(StandardScaler(), MAPS["optimal"])).fit(X, y)
    outside = make_pipeline(StandardScaler(), estimator(MAPS["optimal"])).fit(X, y)
    assert_allclose(inside.predict(Q), outside.predict(Q), **CLOSE)
    if estimator is KernelRegressionClassifier:
        # Also where only logarithms are finite.
        far = 100 * Q
        assert_allclose(inside.predict_log_proba(far), outside.predict_log_proba(far), **CLOSE)


def test_a_step_that_breaks_the_rows_is_told():
    logs = FunctionTransformer(np.log)
    model = KernelRegressionClassifier(make_pipeline(logs, OptimalPositiveRF()))
    model.fit(np.abs(X), y)
    with np.errstate(divide="ignore"), pytest.raises(ValueError, match="infinity"):
        model.predict(np.zeros((2, 4)))


def test_sparse_rows_stay_sparse_between_steps():
    # Dense, these rows are 400 MB.
    rows = sp.random_array((500, 100_000), density=1e-4, rng=0, format="csr")
    feature_map = make_pipeline(MaxAbsScaler(), OptimalPositiveRF(n_components=4, random_state=0))
    for chosen in (feature_map, feature_map[-1]):
        tracemalloc.start()
        model = KernelRegressionClassifier(chosen).fit(rows, np.arange(500) % 2)
        probabilities = model.predict_proba(rows)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert probabilities.shape == (500, 2)
        assert peak < 40e6


def test_a_frozen_map_of_another_width_is_told():
    frozen = FrozenEstimator(OptimalPositiveRF().fit(X[:, :3]))
    with pytest.raises(ValueError, match=r"X has 4 features.*FrozenEstimator.*3 features"):
        KernelRegressionClassifier(frozen).fit(X, y)


class OneSided(TransformerMixin, BaseEstimator):
    """Queries are seen as they are, keys doubled, so that a swap of the sides shows."""

    def fit(self, X, y=None):
        self.seen_ = {"queries": 0, "keys": 0}
        return self

    def transform(self, X):
        self.seen_["queries"] += len(X)
        return np.column_stack([np.ones(len(X)), X])

    def transform_keys(self, X):
        self.seen_["keys"] += len(X)
        return np.column_stack([np.full(len(X), 9.0), 2 * X])


def test_keys_go_through_the_key_side():
    rows, queries, labels = np.abs(X), np.abs(Q), y
    model = KernelRegressionClassifier(OneSided()).fit(rows, labels)
    assert model.feature_map_.seen_ == {"queries": 0, "keys": 60}
    scores = (9 + 2 * queries @ rows.T) @ np.eye(3)[labels]
    assert_allclose(model.predict_proba(queries), scores / scores.sum(1, keepdims=True), **CLOSE)
    assert model.feature_map_.seen_ == {"queries": 25, "keys": 60}
    frozen = KernelRegressionClassifier(FrozenEstimator(OneSided().fit(rows))).fit(rows, labels)
    piped = KernelRegressionClassifier(make_pipeline(FunctionTransformer(), OneSided()))
    for other in (frozen, piped.fit(rows, labels)):
        assert_allclose(other.predict_proba(queries), model.predict_proba(queries), **CLOSE)
    regressor = KernelRegressor(OneSided()).fit(rows, labels)
    assert_allclose(regressor.predict(queries), scores @ [0, 1, 2] / scores.sum(1), **CLOSE)


# ------------------------------------------------------------------ inside scikit-learn


@pytest.mark.parametrize("which", ["positive", "trigonometric", "nystroem"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_calibration_and_cross_validation_run(which, n_classes):
    model = KernelRegressionClassifier(MAPS[which])
    labels = np.minimum(y, n_classes - 1)
    for method in ("sigmoid", "isotonic"):
        calibrated = CalibratedClassifierCV(model, method=method, cv=2).fit(X, labels)
        assert_allclose(calibrated.predict_proba(Q).sum(axis=1), 1, rtol=1e-9)
    decisions = cross_val_predict(model, X, labels, cv=3, method="decision_function")
    assert decisions.shape == ((60,) if n_classes == 2 else (60, 3))
    assert np.isfinite(decisions).all()
    scoring = "roc_auc" if n_classes == 2 else "roc_auc_ovr"
    for metric in (scoring, "neg_log_loss", "accuracy"):
        scores = cross_val_score(model, X, labels, cv=3, scoring=metric, error_score="raise")
        assert np.isfinite(scores).all()


def test_decisions_are_finite_where_scores_are_not_positive():
    # With six columns and a narrow kernel many trigonometric scores are negative.
    model = KernelRegressionClassifier(RFFSampler(6, sigma=3.0, random_state=0))
    fitted = model.fit(X, y > 0)
    assert np.isneginf(fitted.predict_log_proba(X)).any()
    assert np.isfinite(fitted.decision_function(X)).all()
    scores = cross_val_score(model, X, y > 0, scoring="roc_auc", error_score="raise")
    assert np.isfinite(scores).all()


# ------------------------------------------------------------------ extremes: digits


POSITIVE = [name for name in MECHANISMS if make(name).is_positive]
SIGMAS = [1e-3, 1e-2, 0.1, 1.0, 10.0]


@pytest.fixture(scope="module")
def digits():
    rows, labels = load_digits(return_X_y=True)
    rows = rows.astype(np.float32)
    spread = rows.std(axis=0)
    standardised = (rows - rows.mean(axis=0)) / np.where(spread > 0, spread, 1)
    return {"raw": rows, "standardised": standardised.astype(np.float32)}, labels


@pytest.mark.parametrize("name", POSITIVE)
@pytest.mark.parametrize("scaling", ["raw", "standardised"])
def test_positive_maps_on_digits_at_every_sigma(name, scaling, digits):
    rows, labels = digits[0][scaling], digits[1]
    train, test = np.arange(1797) % 3 > 0, np.arange(1797) % 3 == 0
    majority = np.bincount(labels[train]).argmax()
    base = np.mean(labels[test] == majority)
    # Three binomial standard errors of the 599 test rows, 0.036 at 0.1: a classifier that is
    # right for fewer than about 0.064 of them fails.
    least = base - 3 * np.sqrt(base * (1 - base) / test.sum())
    for sigma in SIGMAS:
        feature_map = make(name, n_components=50, sigma=sigma, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = KernelRegressionClassifier(feature_map).fit(rows[train], labels[train])
            probabilities = model.predict_proba(rows[test])
            logs, decisions = (
                model.predict_log_proba(rows[test]),
                model.decision_function(rows[test]),
            )
            accuracy = model.score(rows[test], labels[test])
            regressor = KernelRegressor(feature_map).fit(rows[train], labels[train])
            predicted = regressor.predict(rows[test])
        assert np.isfinite(probabilities).all()
        assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)  # of float32
        assert np.isfinite(logs).all() and np.isfinite(decisions).all()
        assert accuracy >= least, sigma
        assert np.isfinite(predicted).all()
        assert ((predicted >= 0) & (predicted <= 9)).all()


@pytest.mark.parametrize("name", POSITIVE)
def test_transform_warns_once_where_rows_of_digits_vanish(name, digits):
    rows = digits[0]["raw"]
    fitted = make(name, n_components=50, sigma=10.0, random_state=0).fit(rows)
    assert (fitted.log_transform(rows).max(axis=1) < -104).any()
    with pytest.warns(RuntimeWarning, match="Rows of features of X vanished in float32") as caught:
        features = fitted.transform(rows)
    assert len(caught) == 1
    assert features.dtype == np.float32 and np.isfinite(features).all()
    tame = make(name, n_components=50, sigma=1e-3, random_state=0)
    features = tame.fit_transform(rows)
    assert (features[tame.log_transform(rows) > -np.inf] > 0).all()


@pytest.mark.parametrize("estimator", [KernelRegressionClassifier, KernelRegressor])
def test_exact_kernels_take_weights_and_rows_far_apart(estimator):
    rows = np.random.default_rng(0).normal(size=(12, 3))
    targets = np.arange(12) % 3
    weights = np.where(np.arange(12) == 5, 1e300, 1e-300)
    model = estimator("exact").fit(rows, targets, sample_weight=weights)
    assert np.isfinite(model.sigma_) and model.predict(rows)[5] == pytest.approx(2)
    heavy = estimator("exact").fit(rows, targets, sample_weight=np.full(12, 1e308))
    assert heavy.sigma_ == pytest.approx(estimator("exact").fit(rows, targets).sigma_, rel=1e-9)
    plain = estimator("exact", sigma=1.0).fit(rows, targets)
    tiny = estimator("exact", sigma=1e145).fit(1e-145 * rows, targets)
    assert_allclose(tiny.predict(1e-145 * rows), plain.predict(rows), rtol=1e-9)
