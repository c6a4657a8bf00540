"""Kernel regression on features: equal to the brute-force estimate, and sound where that is 0/0."""

import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from instances import make
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp, softmax
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler, StandardScaler
from threadpoolctl import threadpool_limits

from skrf import (
    AdaptiveRF,
    ApproxKernelRidge,
    ApproxKernelRidgeClassifier,
    ClusterNystroem,
    ClusterQuantizer,
    KernelRegressionClassifier,
    KernelRegressor,
    OptimalPositiveRF,
    PositiveRF,
    RFFSampler,
)
from skrf.exceptions import FeatureCollapseWarning

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


@pytest.mark.parametrize(
    ("which", "weights"),
    [*((which, WEIGHTS) for which in MAPS), ("positive", None), ("trigonometric", None)],
)
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
    assert_allclose(model.class_count_, np.bincount(y, w), **CLOSE)


@pytest.mark.parametrize(
    ("which", "weights", "shape"),
    [
        *((which, WEIGHTS, (3,)) for which in MAPS),
        ("positive", None, ()),
        ("trigonometric", None, (1,)),
    ],
)
def test_regressor_is_brute_force(which, weights, shape):
    targets = T[:, : shape[0]] if shape else T[:, 0]
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
    assert predicted.shape == (25, *shape)
    # Sums with a sign lose digits where they nearly vanish.
    digits = 1e-9 * np.abs(estimated).sum(axis=1) / np.maximum(np.abs(total), 1e-300)
    error = np.abs(predicted.reshape(25, -1) - expected)
    assert (error <= 1e-9 + digits[:, None] * np.abs(columns).max(axis=0)).all()
    assert_allclose(model.target_mean_, np.average(columns, axis=0, weights=w), **CLOSE)


@pytest.mark.parametrize(
    ("sigma", "dtype"),
    [(1.0, np.float32), (30.0, np.float64), (1e3, np.float64), (1e3, np.float32)],
)
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
    actual = model.predict_log_proba(queries)
    assert np.isfinite(actual).all()
    assert_allclose(actual, expected, rtol=1e-6, atol=10 * size)
    assert_allclose(model.predict_proba(queries), softmax(scores, axis=1), atol=1e-6)
    regressor = KernelRegressor(feature_map).fit(rows, T, sample_weight=WEIGHTS)
    shares = softmax(logsumexp(logs, axis=2), axis=1)
    assert_allclose(regressor.predict(queries), shares @ T[keep], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("sigma, last", [(0.3, 1.0), (0.3, 70.0), (300.0, 1.0)])
def test_sums_keep_their_digits_whatever_the_scale_of_blocks(sigma, last, dtype):
    """Sums on the scale of earlier blocks suit all, some or none of the later ones."""
    # Ordered by class: the first blocks know one of them only.
    rng = np.random.default_rng(0)
    labels = np.sort(rng.integers(3, size=30_000))
    rows = (rng.normal(size=(30_000, 4)) + np.array([0.0, 1.0, last])[labels][:, None]).astype(
        dtype
    )
    weights = rng.random(30_000) + 0.1
    model = KernelRegressionClassifier(OptimalPositiveRF(40, sigma=sigma, random_state=0))
    model.fit(rows, labels, sample_weight=weights)
    logs = model.feature_map_.log_transform_keys(rows) + np.log(weights)[:, None]
    sums = np.stack([logsumexp(logs[labels == c], axis=0) for c in range(3)], axis=1)
    # Among all queries some are far from the others; the first ones are alike.
    queries = model.feature_map_.log_transform(rows)
    scores = np.stack([logsumexp(queries + column, axis=1) for column in sums.T], axis=1)
    size = max(1.0, np.abs(sums).max(), np.abs(queries).max()) * np.finfo(dtype).eps
    close = {"rtol": 0, "atol": 20 * size}
    proba = softmax(scores, axis=1)
    assert_allclose(model.predict_proba(rows), proba, **close)
    assert_allclose(model.predict_proba(rows[:1200]), proba[:1200], **close)
    expected = scores - logsumexp(scores, axis=1, keepdims=True)
    assert_allclose(
        model.predict_log_proba(rows[::100]), expected[::100], rtol=1e-5, atol=50 * size
    )


@pytest.mark.parametrize("size", [1e-34, 1e24, 1e34])
def test_targets_of_any_size_in_float32(size):
    """The sums of targets must stay inside the range of float32, not only those of weights."""
    rng = np.random.default_rng(0)
    rows = 0.3 * rng.normal(size=(3000, 3))
    rows[1024:, 0] += 5.0
    rows = rows.astype(np.float32)
    targets = size * (2 + np.sin(rows[:, 0].astype(float)))
    regressor = KernelRegressor(PositiveRF(64, kernel="softmax", sigma=1.0, random_state=0))
    actual = clone(regressor).fit(rows, targets).predict(rows)
    exact = clone(regressor).fit(rows.astype(float), targets).predict(rows.astype(float))
    assert_allclose(actual / size, exact / size, rtol=0, atol=1e-4)


# ------------------------------------------------------------------ large and small numbers


def test_weights_whose_sums_overflow():
    """A class weight of 2e308 is infinite, and the model is not."""
    labels = np.arange(60) % 2
    for dtype in (np.float64, np.float32):
        rows = X.astype(dtype)
        plain = KernelRegressionClassifier(MAPS["positive"]).fit(rows, labels)
        model = KernelRegressionClassifier(MAPS["positive"]).fit(rows, labels, np.full(60, 1e307))
        assert np.isinf(model.class_count_).all()
        assert_allclose(model.predict_proba(Q), plain.predict_proba(Q), rtol=1e-6)
        vanishing = KernelRegressionClassifier(Columns())
        vanishing.fit(rows, np.arange(60) % 3 == 0, np.full(60, 1e307))
        zeros = np.zeros((1, 4))
        assert_allclose(unwarned(vanishing.predict_proba, zeros), [[2 / 3, 1 / 3]])


def test_predictions_that_float32_does_not_hold_are_told(library):
    rows, wide = library.array(X.astype(np.float32)), library.array(X)
    for model in (KernelRegressor(MAPS["positive"]), ApproxKernelRidge(MAPS["positive"])):
        plain = model.fit(rows, T[:, 0]).predict(X)
        for factor, limit in ((1e-60, 0.0), (1e60, np.inf)):
            model.fit(rows, factor * T[:, 0])
            with pytest.warns(RuntimeWarning, match="Predictions overflow or vanish in float32"):
                actual = library.host(model.predict(rows))
            assert actual.dtype == np.float32 and (np.abs(actual) == limit).all()
            assert_allclose(library.host(model.predict(wide)) / factor, plain, rtol=0, atol=1e-4)


def test_small_targets_beside_large_ones_in_float32():
    """A kernel so narrow that every query sees its own row alone."""
    rows = np.arange(15, dtype=np.float32)[:, None]
    targets = 10.0 ** np.arange(-35, 36, 5)
    model = KernelRegressor(OptimalPositiveRF(2000, sigma=60.0, random_state=0))
    actual = model.fit(rows, targets).predict(rows)
    exact = clone(model).fit(rows.astype(float), targets).predict(rows.astype(float))
    assert actual.dtype == np.float32
    assert_allclose(np.log(actual), np.log(exact), rtol=0, atol=1e-2)
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
        model = KernelRegressionClassifier(frozen).fit(rows, [0, 1, 2], weights)
        assert_allclose(model.predict_log_proba(rows), expected, rtol=rtol, atol=rtol)


# ------------------------------------------------------------------ order, batches and blocks


@pytest.mark.parametrize("which", ["positive", "trigonometric", "asymmetric", "nystroem"])
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
    assert_allclose(parts.class_count_, whole.class_count_, **CLOSE)
    assert_allclose(regressor.target_mean_, whole_regressor.target_mean_, **CLOSE)
    if not which.startswith(("tri", "asy", "nys", "rbf")):
        assert_allclose(regressor.predict(Q), whole_regressor.predict(Q), **CLOSE)


@pytest.mark.parametrize("which", ["positive", "trigonometric", "clustered", "nystroem"])
def test_blocks_and_sparse_rows_do_not_matter(which):
    """A block of rows, and many blocks of the same rows again and again, in any order."""
    rows, queries = (array * (np.abs(array) > 0.4) for array in (X, Q))
    feature_map = FrozenEstimator(clone(MAPS[which]).fit(rows))
    one = KernelRegressionClassifier(feature_map).fit(rows, y, sample_weight=WEIGHTS)
    one_regressor = KernelRegressor(feature_map).fit(rows, T)
    log_shares, values = one.predict_log_proba(queries), one_regressor.predict(queries)
    # Blocks of maps of skrf have at least 2^18 features, others 1024 rows.
    n = min(5 * 2**17 // feature_map.transform(rows).shape[1], 16_384)
    again = np.random.default_rng(0).permutation(np.resize(np.arange(60), n // 60 * 60))
    asked = np.resize(np.arange(25), n)
    for convert in (np.array, sp.csr_array, sp.csc_matrix):
        many = clone(one).fit(convert(rows[again]), y[again], sample_weight=WEIGHTS[again])
        assert_allclose(
            many.predict_log_proba(convert(queries[asked])), log_shares[asked], rtol=1e-7
        )
        assert_array_equal(many.predict(convert(queries[asked])), one.predict(queries)[asked])
        many = clone(one_regressor).fit(convert(rows[again]), T[again])
        assert_allclose(many.predict(convert(queries[asked])), values[asked], rtol=1e-7)


def test_the_first_batch_alone_sets_the_map():
    model = KernelRegressionClassifier(OptimalPositiveRF(16), sigma="scale", random_state=0)
    rows, labels = np.random.default_rng(0).normal(size=(256, 4)), np.arange(256) % 3
    model.partial_fit(rows, labels, classes=[0, 1, 2])
    first = clone(model.feature_map_).fit(rows)
    model.partial_fit(100 * X[20:], y[20:])
    assert model.feature_map_.sigma_ == first.sigma_
    assert_array_equal(model.feature_map_.offset_, first.offset_)
    # `fit` starts anew.
    expected = clone(model).fit(X, y).predict_proba(Q)
    assert_allclose(model.fit(X, y).predict_proba(Q), expected, rtol=1e-12)


@pytest.mark.parametrize("estimator", [KernelRegressor, ApproxKernelRidge])
@pytest.mark.parametrize(
    ("feature_map", "n_rows", "purpose"),
    [
        (AdaptiveRF(40, sigma=1.0, random_state=0), 40, "the 40 components of AdaptiveRF"),
        (ClusterQuantizer(40, sigma=1.0, random_state=0), 40, "the 40 components"),
        (OptimalPositiveRF(8, random_state=0), 32, "sigma"),
    ],
)
def test_a_first_batch_with_too_few_rows_for_its_map_warns(estimator, feature_map, n_rows, purpose):
    model, few, enough = estimator(feature_map), slice(n_rows - 1), slice(n_rows)
    with pytest.warns(UserWarning, match=f"{n_rows - 1} rows are too few for {purpose}") as caught:
        model.partial_fit(X[few], T[few])
    assert caught[0].filename == __file__
    # Neither later batches, nor enough rows, nor a fit, nor a map that is fitted already.
    model.partial_fit(X[:5], T[:5])
    clone(model).partial_fit(X[enough], T[enough])
    clone(model).fit(X[few], T[few])
    estimator(FrozenEstimator(clone(feature_map).fit(X))).partial_fit(X[few], T[few])


@pytest.mark.parametrize("estimator", [KernelRegressionClassifier, ApproxKernelRidgeClassifier])
def test_batches_of_classes_without_weight_add_nothing_but_the_classes(estimator):
    model = estimator(RFFSampler(16, random_state=0), sigma=0.5, class_weight={0: 0.0})
    of_class = y == 0
    expected = clone(model).partial_fit(X, y, classes=[0, 1, 2]).decision_function(Q)
    first = clone(model).partial_fit(X[of_class], y[of_class], classes=[0, 1, 2])
    assert not hasattr(first, "feature_map_") and list(first.classes_) == [0, 1, 2]
    with pytest.raises(ValueError, match="is not the same as on the first call to partial_fit"):
        clone(first).partial_fit(X[of_class], y[of_class], [0, 1]).partial_fit(X, y, [0, 1, 2])
    for batch in (slice(None), of_class):
        first.partial_fit(X[batch], y[batch])
        assert_array_equal(first.decision_function(Q), expected)
    with pytest.raises(ValueError, match="class_weight must be positive for the class of at least"):
        model.fit(X[of_class], y[of_class])


def test_landmarks_are_placed_near_the_rows_of_the_first_batch():
    model = ApproxKernelRidge(ClusterNystroem(40, sigma=1.0, random_state=0))
    with pytest.warns(UserWarning, match="39 rows are too few for the 40 components of Cluster"):
        model.partial_fit(X[:39], T[:39])
    clone(model).partial_fit(X[:40], T[:40])
    ApproxKernelRidge(ClusterNystroem(centers=X[:9], sigma=1.0)).partial_fit(X[:1], T[:1])


def test_a_first_batch_of_one_row_is_named_in_the_singular():
    with pytest.warns(UserWarning, match="alone, and 1 row is too few for sigma"):
        ApproxKernelRidge(RFFSampler(8, random_state=0)).partial_fit(X[:1], T[:1])


def test_a_map_without_sigma_needs_no_rows_for_it():
    ApproxKernelRidge(RBFSampler(n_components=8, random_state=0)).partial_fit(X[:1], T[:1])


def test_a_sigma_that_is_given_needs_no_rows():
    KernelRegressor(OptimalPositiveRF(8, sigma=1.0, random_state=0)).partial_fit(X[:1], T[:1])
    KernelRegressor(OptimalPositiveRF(8), sigma=1.0, random_state=0).partial_fit(X[:1], T[:1])


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


@pytest.mark.parametrize("feature_map", [OptimalPositiveRF(16, random_state=0), "exact"], ids=str)
def test_weights_of_classes_multiply_those_of_rows(feature_map):
    model = KernelRegressionClassifier(feature_map, random_state=0)
    totals = np.bincount(y, WEIGHTS)
    balanced = totals.sum() / (len(totals) * totals)
    for class_weight, factors in (
        ("balanced", balanced),
        ({2: 5.0}, np.array([1.0, 1.0, 5.0])),
        ({1: 0}, np.array([1.0, 0.0, 1.0])),
    ):
        weighted = clone(model).set_params(class_weight=class_weight).fit(X, y, WEIGHTS)
        plain = clone(model).fit(X, y, WEIGHTS * factors[y])
        of_all = weighted.predict_proba(Q)[:, factors > 0]
        assert_allclose(of_all, plain.predict_proba(Q), rtol=1e-9)
        assert weighted.sigma_ == pytest.approx(plain.sigma_, rel=1e-9)


def test_weights_of_classes_in_batches():
    model = KernelRegressionClassifier(
        OptimalPositiveRF(16, random_state=0), sigma="scale", class_weight={2: 5.0}
    )
    whole = clone(model).fit(X, y).predict_proba(Q)
    parts = [(X[:50], y[:50]), (X[50:], y[50:])]
    assert_allclose(clone(model).fit_batches(parts).predict_proba(Q), whole, rtol=1e-9)
    frozen = model.set_params(
        sigma=None, feature_map=FrozenEstimator(clone(model).fit(X, y).feature_map_)
    )
    for part in parts:
        frozen.partial_fit(*part, classes=[0, 1, 2])
    assert_allclose(frozen.predict_proba(Q), whole, rtol=1e-9)
    balanced = clone(frozen).set_params(class_weight="balanced")
    with pytest.raises(ValueError, match="class_weight='balanced' needs all rows at once"):
        balanced.partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="class_weight='balanced'"):
        balanced.fit(X, y).merge(balanced)
    with pytest.raises(ValueError, match=r"class_weight names \[9\]"):
        clone(frozen).set_params(class_weight={9: 1.0}).fit(X, y)
    with pytest.raises(ValueError, match="class_weight must be None where y has several labels"):
        frozen.fit(X, np.stack([y == 0, y > 1], axis=1).astype(int))


# ------------------------------------------------------------------ probabilities and decisions


@every_map
def test_probabilities_decisions_and_predictions_agree(which):
    model = KernelRegressionClassifier(MAPS[which]).fit(X, y)
    probabilities, logs = model.predict_proba(Q), model.predict_log_proba(Q)
    assert_allclose(np.exp(logs), probabilities, **CLOSE)
    decisions = model.decision_function(Q)
    assert np.isfinite(decisions).all()
    assert_allclose(decisions[np.isfinite(logs)], logs[np.isfinite(logs)], **CLOSE)
    assert (decisions[~np.isfinite(logs)] < -745).all()
    # Also where no score is positive, and the class shares take their place.
    assert_array_equal(model.predict(Q), probabilities.argmax(axis=1))
    assert_array_equal(model.predict(Q), decisions.argmax(axis=1))
    # Two classes have one decision.
    model = KernelRegressionClassifier(MAPS[which]).fit(X, np.where(y > 0, "yes", "no"))
    decisions, logs = model.decision_function(Q), model.predict_log_proba(Q)
    assert decisions.shape == (25,) and np.isfinite(decisions).all()
    finite = np.isfinite(logs).all(axis=1)
    assert_allclose(decisions[finite], (logs[:, 1] - logs[:, 0])[finite], **CLOSE)
    shares = np.log(model.class_count_[1] / model.class_count_[0])
    assert (~np.isclose(decisions, shares)).sum() >= 10
    assert_array_equal(model.predict(Q), np.where(decisions > 0, "yes", "no"))


@pytest.mark.parametrize(
    "feature_map", [None, OptimalPositiveRF(64, random_state=0)], ids=["centres", "positive"]
)
def test_small_probabilities_of_float32_rows_agree_with_their_logarithms(feature_map):
    rows = X.astype(np.float32)
    model = KernelRegressionClassifier(feature_map, sigma=9.0, random_state=0).fit(rows, y)
    probabilities, logs = model.predict_proba(rows), model.predict_log_proba(rows)
    assert probabilities.dtype == logs.dtype == np.float64
    assert -700 < logs.min() < -150  # in float32, 1e-45 is the least
    assert_allclose(np.log(probabilities), logs, rtol=1e-12, atol=1e-15)
    assert model.decision_function(rows).dtype == np.float32


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


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("sign", [1, -1])
def test_scores_that_are_only_rounding_decide_nothing(dtype, sign):
    rng = np.random.default_rng(0)
    first, targets = rng.uniform(size=(64, 1)), rng.uniform(size=65)
    # The scores of class 0 for the row [1, 1] cancel, those of class 1 are negative.
    rows = np.vstack([np.hstack([sign * first, 0 * first]), [[0, -sign * first.sum()], [-1, -1]]])
    labels = np.repeat([0, 1], [65, 1])
    classifier = KernelRegressionClassifier(FunctionTransformer()).fit(rows.astype(dtype), labels)
    regressor = KernelRegressor(FunctionTransformer()).fit(rows[:65].astype(dtype), targets)
    asked = np.array([[1, 1], [1, 0.999]], dtype)
    shares, clear = [65 / 66, 1 / 66], [1, 0]
    actual = unwarned(classifier.predict_proba, asked)
    assert_allclose(actual, [shares, clear if sign > 0 else shares], rtol=1e-5)
    with pytest.warns(FeatureCollapseWarning):
        assert_allclose(regressor.predict(asked[:1]), targets.mean(), rtol=1e-5)


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
        with pytest.warns(
            FeatureCollapseWarning, match="class shares or the mean target"
        ) as caught:
            function([[1.0], [0.0]])
        assert caught[0].filename == __file__


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
            actual = predict([[3.0], [11.0]])
        # Key rows beyond the range are left out; the shares are those of all rows.
        assert_allclose(actual, expected)


def test_ties_go_to_the_first_class():
    rows, labels = np.repeat(X[:10], 2, axis=0), np.tile(["z", "b"], 10)
    for feature_map in (MAPS["positive"], MAPS["trigonometric"]):
        model = KernelRegressionClassifier(feature_map).fit(rows, labels)
        assert set(model.predict(X[:10])) == {"b"}
        assert_allclose(model.predict_proba(X[:10]), 0.5, rtol=1e-12)
        assert_allclose(model.decision_function(X[:10]), 0.0, atol=1e-12)


# ------------------------------------------------------------------ partial_fit and its errors


def test_what_later_batches_may_not_change():
    unfitted = KernelRegressionClassifier(AdaptiveRF(16), random_state=0)
    model = clone(unfitted).partial_fit(X, y, classes=[2, 0, 1, 9])
    assert list(model.classes_) == [0, 1, 2, 9]
    model.partial_fit(X, y, classes=[9, 2, 1, 0])
    regressor = KernelRegressor(AdaptiveRF(16), random_state=0).partial_fit(X, T)
    odd = np.array([0.5, 1.5] * 30, object)
    for estimator, words, *batch in (
        (unfitted, "classes must be passed on the first call", X, y),
        (unfitted, "labels .*2.* not in classes=.*0, 1", X, y, [1, 0]),
        (unfitted, "classes must hold", X, y, []),
        (unfitted, "[Uu]nknown label type", X, odd, [0, 1]),
        (model, "classes=.* not the same as on the first call", X, y, [0, 1, 2]),
        (model, "classes=.* not the same as on the first call", X, y, [0, 1, 2, 8]),
        (model, "labels .*7.* not in classes=", X, np.full(60, 7)),
        (model, "4 features", X[:, :3], y),
        (regressor, "y has .*2.* outputs, but the first batch had .*3", X, T[:, :2]),
    ):
        with pytest.raises(ValueError, match=words):
            estimator.partial_fit(*batch)


@pytest.mark.parametrize("which", ["positive", "trigonometric", "asymmetric"])
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
    assert isinstance(default, ClusterQuantizer) and default.sigma == 2.0
    assert default.n_components == 256


def test_a_parameter_that_the_map_lacks_is_an_error():
    for feature_map, parameter, value in (
        (Nystroem(n_components=5), "sigma", 0.5),
        (StandardScaler(), "random_state", 0),
        (make_pipeline(StandardScaler(), OptimalPositiveRF()), "sigma", "scale"),
        (FrozenEstimator(RFFSampler().fit(X)), "random_state", 3),
    ):
        for estimator in (KernelRegressionClassifier, KernelRegressor):
            with pytest.raises(ValueError) as caught:
                estimator(feature_map, **{parameter: value}).fit(X, y)
            for words in (
                f"{parameter}={value!r}",
                f"{parameter}=None",
                type(feature_map).__name__,
            ):
                assert words in str(caught.value)
    frozen = FrozenEstimator(OptimalPositiveRF().fit(X[:, :3]))
    with pytest.raises(ValueError, match=r"X has 4 features.*FrozenEstimator.*3 features"):
        KernelRegressionClassifier(frozen).fit(X, y)


SCALER = StandardScaler()
TO_INT = FunctionTransformer(lambda rows: np.rint(rows).astype(np.int64))
PIPELINES = {
    "one step": lambda last: Pipeline([("map", last)]),
    "scaled": lambda last: make_pipeline(SCALER, last),
    "passthrough": lambda last: Pipeline([("skip", "passthrough"), ("map", last)]),
    "whole numbers": lambda last: make_pipeline(TO_INT, last),
    "nested": lambda last: make_pipeline(FunctionTransformer(), make_pipeline(last)),
    "ends in nothing": lambda last: Pipeline([("map", last), ("skip", "passthrough")]),
    "tables": lambda last: make_pipeline(clone(SCALER).set_output(transform="pandas"), last),
}


@pytest.mark.parametrize("which", ["optimal", "trigonometric", "asymmetric", "nystroem"])
def test_pipelines_are_maps(which):
    pytest.importorskip("pandas")
    scaler = StandardScaler().fit(X)
    for kind, pipeline in PIPELINES.items():
        if which == "asymmetric" and kind == "ends in nothing":
            continue  # after a step that follows it, it has no key side any more
        rows, queries = X, Q
        if kind == "whole numbers":
            rows, queries = np.rint(X), np.rint(Q)
        elif kind in ("scaled", "tables"):
            rows, queries = scaler.transform(X), scaler.transform(Q)
        model = KernelRegressionClassifier(pipeline(MAPS[which])).fit(X, y)
        plain = KernelRegressionClassifier(MAPS[which]).fit(rows, y)
        assert_allclose(model.predict_proba(Q), plain.predict_proba(queries), **CLOSE, err_msg=kind)


def test_a_pipeline_as_map_keeps_logarithms():
    inside = KernelRegressionClassifier(make_pipeline(StandardScaler(), MAPS["optimal"])).fit(X, y)
    outside = make_pipeline(StandardScaler(), KernelRegressionClassifier(MAPS["optimal"])).fit(X, y)
    far = 100 * Q  # where only logarithms are finite
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


class OneSided(TransformerMixin, BaseEstimator):
    """Queries are seen as they are, keys doubled, so that a swap of the sides shows."""

    def fit(self, X, y=None):
        self.is_fitted_ = True
        return self

    def transform(self, X):
        return np.column_stack([np.ones(len(X)), X])

    def transform_keys(self, X):
        return np.column_stack([np.full(len(X), 9.0), 2 * X])


def test_keys_go_through_the_key_side():
    rows, queries = np.abs(X), np.abs(Q)
    scores = (9 + 2 * queries @ rows.T) @ np.eye(3)[y]
    expected = scores / scores.sum(axis=1, keepdims=True)
    frozen = FrozenEstimator(OneSided().fit(rows))
    for feature_map in (OneSided(), frozen, make_pipeline(FunctionTransformer(), OneSided())):
        model = KernelRegressionClassifier(feature_map).fit(rows, y)
        assert_allclose(model.predict_proba(queries), expected, **CLOSE)
        regressor = KernelRegressor(feature_map).fit(rows, y)
        assert_allclose(regressor.predict(queries), expected @ [0, 1, 2], **CLOSE)


def test_decisions_are_finite_where_scores_are_not_positive():
    # With six columns and a narrow kernel many trigonometric scores are negative.
    model = KernelRegressionClassifier(RFFSampler(6, sigma=3.0, random_state=0)).fit(X, y > 0)
    assert np.isneginf(model.predict_log_proba(X)).any()
    assert np.isfinite(model.decision_function(X)).all()


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
