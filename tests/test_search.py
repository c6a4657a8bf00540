"""The searches of sigma: the results of a grid search, weights that are repetitions, and loo."""

import pickle
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import MECHANISMS, make
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.metrics import make_scorer, mean_absolute_error
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    PredefinedSplit,
    RepeatedKFold,
    ShuffleSplit,
    check_cv,
)
from sklearn.pipeline import make_pipeline
from sklearn.utils import check_random_state

from skrf import (
    AdaptiveRF,
    ApproxKernelRidgeCV,
    ClusterNystroem,
    DiscreteRF,
    GeometricRF,
    KernelRegressionClassifier,
    KernelRegressionClassifierCV,
    KernelRegressor,
    KernelRegressorCV,
    OptimalPositiveRF,
    PoissonRF,
    RFFSampler,
)
from skrf._sums import Rows, Sums
from skrf.exceptions import FeatureCollapseWarning
from skrf.features import FeatureMap, _clusters, base, fit_at_sigmas, in_range
from skrf.regression import _search
from skrf.regression._search import Kept, KeptMap

_rng = np.random.default_rng(0)
X = _rng.normal(size=(90, 3))
Q = _rng.normal(size=(30, 3)) * 2
y = np.array(["a", "b", "c"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)]
T = np.column_stack([np.sin(X[:, 0]), 100 + X[:, 1] ** 2])
WEIGHTS = _rng.integers(0, 4, 90).astype(float)
SIGMAS = [0.3, 1.0, 3.0, 10.0]

# What these learn does not depend on the rows, or no rows were left out where it was learnt.
FIXED = {
    "trigonometric": RFFSampler(40, random_state=0),
    "positive": make("PositiveRF", n_components=30, center=False, random_state=0),
    "of labels": AdaptiveRF(24, random_state=0),
    "landmarks of labels": ClusterNystroem(12, random_state=0),
    "asymmetric": make("HybridRF", n_components=90, center=False, random_state=0),
}


def searched(search, **options):
    """Return the table of scores of a search, one row for each sigma."""
    search.fit(X, **options)
    names = [f"split{k}_test_score" for k in range(search.n_splits_)]
    return np.column_stack([search.cv_results_[name] for name in names])


# ------------------------------------------------------------------ equal to a grid search


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("which", FIXED)
def test_scores_are_those_of_a_grid_search(which, dtype):
    rows = X.astype(dtype)
    ours = KernelRegressionClassifierCV(FIXED[which], sigmas=SIGMAS).fit(rows, y)
    plain = KernelRegressionClassifier(FIXED[which])
    theirs = GridSearchCV(plain, {"sigma": SIGMAS}, error_score="raise").fit(rows, y)
    for name in theirs.cv_results_:
        if "test_score" in name:
            assert_allclose(ours.cv_results_[name], theirs.cv_results_[name], rtol=1e-12)
    assert_array_equal(ours.cv_results_["param_sigma"], SIGMAS)
    assert ours.cv_results_["params"] == theirs.cv_results_["params"]
    assert (ours.sigma_, ours.best_score_) == (theirs.best_params_["sigma"], theirs.best_score_)
    assert ours.n_splits_ == 5 and 0.5 < ours.best_score_ < 1
    # The merged sums are the model.
    best = theirs.best_estimator_
    tolerance = {"rtol": 1e-9, "atol": 1e-11} if dtype == np.float64 else {"atol": 2e-5}
    assert_allclose(ours.predict_proba(Q), best.predict_proba(Q), **tolerance)
    assert ours.feature_map_.sigma_ == ours.sigma_
    assert_array_equal(ours.class_weight_, best.class_weight_)


@pytest.mark.parametrize("which", ["trigonometric", "positive", "asymmetric"])
@pytest.mark.parametrize("targets", [T, T[:, 0]], ids=["two", "one"])
def test_scores_of_a_regressor(which, targets):
    cv = KFold(4, shuffle=True, random_state=0)
    ours = KernelRegressorCV(FIXED[which], sigmas=SIGMAS, cv=cv).fit(X, targets)
    theirs = GridSearchCV(KernelRegressor(FIXED[which]), {"sigma": SIGMAS}, cv=cv).fit(X, targets)
    for name in ("mean_test_score", "std_test_score"):
        assert_allclose(ours.cv_results_[name], theirs.cv_results_[name], rtol=1e-9)
    assert_allclose(ours.predict(Q), theirs.predict(Q), rtol=1e-9)
    assert_allclose(ours.target_mean_, targets.mean(axis=0))


@pytest.mark.parametrize("scoring", ["neg_log_loss", "balanced_accuracy", "roc_auc_ovr", len])
def test_scorers(scoring):
    if scoring is len:

        def scoring(model, rows, labels):
            # It may ask about rows of its own.
            return -abs(model.predict_proba(Q)[:, 0].sum() - len(labels) / rows.shape[1])

    ours = KernelRegressionClassifierCV(FIXED["positive"], sigmas=SIGMAS, scoring=scoring)
    plain = KernelRegressionClassifier(FIXED["positive"])
    theirs = GridSearchCV(plain, {"sigma": SIGMAS}, scoring=scoring).fit(X, y)
    assert_allclose(
        ours.fit(X, y).cv_results_["mean_test_score"],
        theirs.cv_results_["mean_test_score"],
        rtol=1e-9,
    )


ROWS = np.arange(90)


@pytest.mark.parametrize(
    "cv",
    [
        3,
        KFold(4, shuffle=True, random_state=1),
        ShuffleSplit(3, test_size=0.4, random_state=0),
        RepeatedKFold(n_splits=3, n_repeats=2, random_state=0),
        PredefinedSplit(ROWS % 4 - 1),
        [(ROWS[30:], ROWS[:30]), (ROWS >= 20, ROWS < 20)],
        iter([(ROWS[1:], ROWS[:1])]),
    ],
    ids=["int", "shuffled", "overlapping", "repeated", "predefined", "list", "generator"],
)
def test_splits(cv):
    splits = check_cv(cv, T)
    if not hasattr(cv, "split"):
        cv = splits  # a generator is read once
    scoring = "neg_mean_absolute_error"
    search = KernelRegressorCV(FIXED["positive"], sigmas=SIGMAS, cv=cv, scoring=scoring)
    ours = searched(search, y=T)
    for k, (train, test) in enumerate(splits.split(X, T)):
        for i, sigma in enumerate(SIGMAS):
            model = KernelRegressor(FIXED["positive"], sigma=sigma).fit(X[train], T[train])
            own = -mean_absolute_error(T[test], model.predict(X[test]))
            assert_allclose(ours[i, k], own, rtol=1e-10)


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ([(np.arange(40), np.arange(50, 90))], "row 40 is 0 times"),
        ([(np.arange(60), np.arange(50, 90))], "row 50 is 2 times"),
        ([(np.repeat(np.arange(50), 2), np.arange(50, 90))], "row 0 is 2 times"),
        ([(np.arange(90), [])], "leave rows"),
    ],
)
def test_training_sets_are_complements(splits, words):
    splits = [(np.arange(45), np.arange(45, 90)), *splits]
    model = KernelRegressionClassifierCV(FIXED["trigonometric"], cv=splits)
    with pytest.raises(ValueError, match=f"cv must.*{words}.*split 1|cv must.*split 1"):
        model.fit(X, y)
    assert not hasattr(model, "classes_")
    with pytest.raises(ValueError, match="cv must give at least one split"):
        model.set_params(cv=[]).fit(X, y)


@pytest.mark.parametrize("cv", [[], [1], [(0, 1, 2)], np.array(3), 2**70], ids=repr)
def test_what_gives_no_splits_is_told(cv):
    with pytest.raises((ValueError, TypeError), match=r"\bcv\b"):
        KernelRegressionClassifierCV(FIXED["trigonometric"], cv=cv).fit(X, y)


def test_features_need_not_fit_into_memory(monkeypatch):
    for which in ("trigonometric", "positive"):
        search = KernelRegressionClassifierCV(FIXED[which], sigmas=SIGMAS, scoring="neg_log_loss")
        kept = searched(search, y=y)
        monkeypatch.setattr(_search, "KEPT_BYTES", 0)
        assert_allclose(searched(search, y=y), kept, rtol=1e-10)
        monkeypatch.undo()


def test_scores_of_a_light_class_have_digits(monkeypatch):
    search = KernelRegressionClassifierCV(FIXED["positive"], sigmas=[0.1, 0.3], scoring="roc_auc")
    rows, labels = X.astype(np.float32), y == "a"
    options = {"y": labels, "sample_weight": np.where(labels, 1e-20, 1.0)}
    kept = search.fit(rows, **options).cv_results_["mean_test_score"]
    assert kept.min() > 0.8
    monkeypatch.setattr(_search, "KEPT_BYTES", 0)
    found = search.fit(rows, **options).cv_results_["mean_test_score"]
    assert_allclose(found, kept, rtol=1e-12)


@pytest.mark.parametrize("kind", [PoissonRF, GeometricRF, DiscreteRF])
def test_sums_leave_kept_scales_as_they_are(kind, monkeypatch):
    """Folds that overlap read the scales of features several times."""
    cv = ShuffleSplit(3, test_size=0.4, random_state=0)
    feature_map = kind(14, positive=False, random_state=0)
    search = KernelRegressorCV(feature_map, sigmas=SIGMAS, cv=cv)
    kept, predicted = searched(search, y=T), search.predict(Q)
    monkeypatch.setattr(_search, "KEPT_BYTES", 0)
    assert_allclose(searched(search, y=T), kept, rtol=1e-9)
    assert_allclose(search.predict(Q), predicted, rtol=1e-9)


def test_features_that_are_0_in_all_rows():
    feature_map = PoissonRF(1, positive=False, per_feature=False, random_state=1)
    rows = X * [0, 1, 1]
    assert (feature_map.fit(rows).feature_maps_[0](rows).scale == -np.inf).all()
    search = KernelRegressorCV(feature_map, sigmas=[1.0], cv=3)
    with pytest.warns(FeatureCollapseWarning):  # and of nothing else
        assert_allclose(search.fit(rows, T).predict(rows[:2]), np.tile(T.mean(axis=0), (2, 1)))


@pytest.mark.parametrize("name", MECHANISMS)
def test_kept_features_are_those_of_the_map(name):
    fitted = make(name, n_components=20, random_state=0).fit(X)
    maps = fitted.feature_maps_
    kept = Kept.of((maps[0],) * 2, X, np.empty)
    found, expected = kept.feature_map(kept.rows[5:50]), maps[0](X[5:50])
    if expected.scale is None and found.scale is not None:  # exponentials in place of logarithms
        assert not found.scale.any()
        found = Rows(np.log(found.values) + kept.top)
    assert_allclose(found.values, expected.values, rtol=1e-12, atol=1e-12)
    if expected.scale is None:
        assert found.scale is None
    else:
        scale = found.scale + kept.top + 0 * found.values
        assert_allclose(scale, expected.scale + 0 * found.values, rtol=1e-12)


@pytest.mark.parametrize("projection", ["dense", "hadamard"])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_products_are_kept_for_all_sigmas(projection, form, monkeypatch):
    monkeypatch.setattr(_search, "MANY_SINES", 0)
    rows, kept = form(_rng.normal(size=(90, 20)).astype(np.float32)), None
    feature_map = RFFSampler(20, projection=projection, random_state=0)
    # From 1,000 on angles need float64; the last two are too far from the others.
    sigmas, is_new = [0.3, 1.0, 1e3, 1e5, 3.0, 1e12, 1e-3], [1, 0, 1, 0, 1, 1, 1]
    for fitted, new in zip(fit_at_sigmas(feature_map, sigmas, rows), is_new, strict=True):
        before, (own, _) = kept, fitted.feature_maps_
        kept = Kept.of((own, own), rows, np.empty, before=before)
        assert (before is None or kept.rows is not before.rows) == new
        found, expected = kept.feature_map(kept.rows[5:50]), own(in_range(own, rows)[5:50])
        eps = max(np.finfo(expected.values.dtype).eps, np.finfo(float).eps * fitted.sigma_)
        assert_allclose(found.plain(), expected.plain(), rtol=0, atol=30 * eps)


def test_products_of_another_draw_are_not_read(monkeypatch):
    monkeypatch.setattr(_search, "MANY_SINES", 0)
    kept = None
    for seed in (0, 1):
        own, _ = RFFSampler(20, random_state=seed).fit(X).feature_maps_
        kept = Kept.of((own, own), X, np.empty, before=kept)
        assert_allclose(kept.feature_map(kept.rows).plain(), own(X).plain(), rtol=1e-12)


def test_products_are_kept_of_many_sines_that_are_read_once():
    def is_of_products(feature_map, n_rows=90, is_read_once=True):
        own, _ = feature_map.fit(X).feature_maps_
        rows = np.resize(X, (n_rows, 3))
        return Kept.of((own, own), rows, np.empty, is_read_once=is_read_once).source is not None

    many = _search.MANY_SINES // 16
    sines = RFFSampler(16, random_state=0)
    assert is_of_products(sines, many) and not is_of_products(sines, many - 1)
    assert not is_of_products(sines, many, is_read_once=False)
    assert is_of_products(RFFSampler(1, random_state=0), 16 * many)
    assert not is_of_products(OptimalPositiveRF(16, random_state=0), many)


@pytest.mark.parametrize("cv", [3, RepeatedKFold(n_splits=3, n_repeats=2, random_state=0)], ids=str)
def test_searches_by_products_are_those_by_features(cv, monkeypatch):
    for n_components, most in ((40, 20_000), (1, 1_000)):  # bytes, of products alone
        own = RFFSampler(n_components, random_state=0)
        search = KernelRegressorCV(own, sigmas=SIGMAS, cv=cv)
        expected, predicted = searched(search, y=T), search.predict(Q)
        monkeypatch.setattr(_search, "KEPT_BYTES", most)
        assert_allclose(searched(search, y=T), expected, rtol=1e-9)
        assert_allclose(search.predict(Q), predicted, rtol=1e-9)
        monkeypatch.undo()


@pytest.mark.parametrize("is_shared", [True, False])
def test_scales_of_rows_are_kept_unless_all_rows_share_them(is_shared):
    class Scaled(FeatureMap):
        n_features, n_columns, is_positive = 2, 2, False
        level = -3.0 if is_shared else None

        def __call__(self, X):
            scale = np.full((len(X), 1), -3.0) if is_shared else -np.abs(X[:, :1])
            return Rows(np.cos(X) + 2, scale)

    rows = np.concatenate([np.ones((300, 2)), _rng.normal(size=(100, 2))])
    kept = Kept.of((Scaled(),) * 2, rows, np.empty)
    assert kept.rows.shape == (400, 2 if is_shared else 3)
    assert kept.top == (-3 if is_shared else 0)
    assert_allclose(kept.feature_map(kept.rows).plain() * np.exp(kept.top), Scaled()(rows).plain())


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-4)])
@pytest.mark.parametrize("share", [0.1, 0.95, 1.05, 3.0])
@pytest.mark.parametrize("apart", [0.0, 0.5])
def test_kept_exponentials_have_the_digits_of_logarithms(dtype, tolerance, share, apart):
    """Rows `share` of the widest span from the middles of columns, whose own span is `apart`."""
    widest = _search._NARROW[np.dtype(dtype).name]
    middles = np.array([-0.5, 0.0, 0.5]) * apart * widest
    signs = np.array([[a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)])
    logs = np.tile(middles + share * (1 - apart) * widest * signs, (400, 1)).astype(dtype)
    own = KeptMap(3, None)  # reads logarithms as they are
    kept = Kept.of((own, own), logs, np.empty)
    features = kept.feature_map(kept.rows).values
    if share > 1:
        assert kept.feature_map.is_positive and np.array_equal(features, logs)
        return
    sums = Sums(features.sum(axis=0, dtype=float)[:, None], np.zeros(1))
    found = np.log(features @ kept.seen(sums).sums.astype(dtype))[:, 0]
    logs = logs.astype(float)
    expected = logsumexp(logs + logsumexp(logs, axis=0), axis=1) - 2 * kept.top.max()
    assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("is_wide", [False, True])
def test_searches_by_kept_exponentials_are_those_by_logarithms(dtype, is_wide, monkeypatch):
    """Of rows on one scale, and of rows that leave it after those by which it is chosen."""
    rows = np.concatenate([X] * 4).astype(dtype)
    if is_wide:
        rows[-30:] *= 100
    labels, targets = np.concatenate([y] * 4), np.concatenate([T] * 4)
    own, are_logs, found = Kept.of, [], {}

    def kept(*given):
        made = own(*given)
        are_logs.append(made.feature_map.is_positive)
        return made

    monkeypatch.setattr(Kept, "of", kept)
    for way in ("exponentials", "logarithms"):
        for kind, of_rows in ((KernelRegressionClassifierCV, labels), (KernelRegressorCV, targets)):
            search = kind(FIXED["positive"], sigmas=[0.1, 0.3, 1.0], cv=3).fit(rows, of_rows)
            predict = getattr(search, "predict_proba", search.predict)
            found[way, kind] = search.cv_results_["mean_test_score"], predict(rows)
        assert all(are_logs) == (is_wide or way == "logarithms")
        monkeypatch.setattr(_search, "_NARROW", {"float32": 0.0, "float64": 0.0})
        are_logs.clear()
    tolerance = {"float64": {"rtol": 1e-10}, "float32": {"rtol": 1e-4, "atol": 1e-5}}[dtype]
    for kind in (KernelRegressionClassifierCV, KernelRegressorCV):
        for ours, theirs in zip(
            found["exponentials", kind], found["logarithms", kind], strict=True
        ):
            assert_allclose(ours, theirs, **tolerance)


def test_statistics_and_clusters_are_made_once(monkeypatch):
    counts = {"statistics": 0, "clusters": 0}

    def counted(name, function):
        def call(*given, **options):
            counts[name] += 1
            return function(*given, **options)

        return call

    monkeypatch.setattr(base.PairStatistics, "of", counted("statistics", base.PairStatistics.of))
    own = counted("clusters", _clusters.cluster_centers)
    monkeypatch.setattr(_clusters, "cluster_centers", own)
    KernelRegressionClassifierCV(OptimalPositiveRF(16), sigmas=SIGMAS).fit(X, y)
    assert counts["statistics"] == 1
    counts["statistics"] = 0
    KernelRegressionClassifierCV(AdaptiveRF(16), sigmas=SIGMAS, cv=3).fit(X, y)
    # Three classes in every fold and in the final fit.
    assert counts["clusters"] == 3 * 4 and counts["statistics"] == 4
    KernelRegressorCV(AdaptiveRF(16), sigmas=SIGMAS, cv=3).fit(X, T)
    assert counts["clusters"] == 3 * 4 + 1 and counts["statistics"] == 5


def test_narrow_kernels_keep_their_digits():
    """A fold that holds nearly all of what a query sees: a difference of sums would be rounding."""
    rows = np.vstack([X[:1] + 1e-3 * X[:40], X[40:]])
    targets = np.sin(np.arange(90.0))
    for sigma in (3.0, 30.0):
        search = KernelRegressorCV(FIXED["positive"], sigmas=[sigma, 2 * sigma], cv=KFold(2))
        found = searched_rows(search, rows, targets)
        for k, (train, test) in enumerate(KFold(2).split(rows)):
            own = KernelRegressor(FIXED["positive"], sigma=sigma).fit(rows[train], targets[train])
            assert_allclose(found[k], own.score(rows[test], targets[test]), rtol=1e-9)


def searched_rows(search, rows, targets):
    search.fit(rows, targets)
    return [search.cv_results_[f"split{k}_test_score"][0] for k in range(search.n_splits_)]


# ------------------------------------------------------------------ as an estimator


def test_weights_are_repetitions_and_count_in_scores():
    numbers = np.repeat(np.arange(90), WEIGHTS.astype(int))
    folds = np.arange(90) % 3
    for which in ("trigonometric", "of labels"):
        weighted = KernelRegressionClassifierCV(
            FIXED[which], sigmas=SIGMAS, cv=PredefinedSplit(folds), scoring="neg_log_loss"
        ).fit(X, y, sample_weight=WEIGHTS)
        repeated = clone(weighted).set_params(cv=PredefinedSplit(folds[numbers]))
        repeated.fit(X[numbers], y[numbers])
        for name in ("mean_test_score", "std_test_score"):
            assert_allclose(weighted.cv_results_[name], repeated.cv_results_[name], rtol=1e-9)
        assert_allclose(weighted.predict_proba(Q), repeated.predict_proba(Q), rtol=1e-9)
    accuracy = clone(weighted).set_params(scoring=None).fit(X, y, sample_weight=WEIGHTS)
    assert_allclose(
        accuracy.cv_results_["mean_test_score"],
        repeated.set_params(scoring="accuracy")
        .fit(X[numbers], y[numbers])
        .cv_results_["mean_test_score"],
        rtol=1e-12,
    )
    with pytest.raises(ValueError, match="positive weight.*split 0"):
        weighted.fit(X, y, sample_weight=(folds > 0).astype(float))


@pytest.mark.parametrize("size", [1e-290, 1e290])
def test_scores_have_no_units(size):
    weights = (1.0 + np.arange(90) % 3) * (1e307 if size > 1 else 1e-300)
    own = {"sigmas": [0.3, 3.0], "cv": 3}
    for scoring in (None, "accuracy"):
        search = KernelRegressionClassifierCV(FIXED["positive"], scoring=scoring, **own)
        plain = clone(search).fit(X, y, sample_weight=weights / weights.max())
        assert search.fit(X, y, sample_weight=weights).best_score_ == pytest.approx(
            plain.best_score_, rel=1e-12
        )
    search = KernelRegressorCV(FIXED["positive"], **own)
    plain = clone(search).fit(X, X[:, :2], sample_weight=weights / weights.max())
    search.fit(X, X[:, :2] * size, sample_weight=weights)
    assert search.best_score_ == pytest.approx(plain.best_score_, rel=1e-9)


def test_sigmas():
    model = KernelRegressionClassifierCV(RFFSampler(20, random_state=0), sigmas=4).fit(X, y)
    scale = RFFSampler(sigma="scale").fit(X).sigma_
    assert_allclose(model.sigmas_, scale * np.array([0.1, 1, 10, 100]), rtol=1e-12)
    # Of equal scores the smallest sigma, in whatever order they come.
    constant = make_scorer(lambda *_: 1.0)
    model = KernelRegressionClassifierCV(sigmas=[3.0, 0.5, 1.0], scoring=constant).fit(X, y)
    assert model.sigma_ == 0.5 and list(model.cv_results_["rank_test_score"]) == [1, 1, 1]
    for wrong in ([], [1.0, 0.0], [1.0, np.nan], [[1.0]], 1, "scale"):
        with pytest.raises(ValueError, match="sigmas"):
            KernelRegressionClassifierCV(sigmas=wrong).fit(X, y)
    # A score that cannot be had is the worst.
    missing = make_scorer(lambda true, found: np.nan if len(set(found)) < 2 else 0.5)
    model = KernelRegressionClassifierCV(FIXED["positive"], sigmas=[1e-9, 1.0], scoring=missing)
    assert model.fit(X, y).sigma_ == 1.0


def test_all_sigmas_share_a_draw():
    once = KernelRegressionClassifierCV(RFFSampler(8), sigmas=[0.9, 0.9 + 1e-12], scoring=None)
    scores = searched(once.set_params(scoring="neg_log_loss"), y=y)
    assert_allclose(scores[0], scores[1], rtol=1e-6)


def test_the_search_leaves_a_model_that_cannot_be_added_to():
    model = KernelRegressionClassifierCV(FIXED["positive"], sigmas=SIGMAS).fit(X, y)
    assert not hasattr(model, "partial_fit")
    copy = pickle.loads(pickle.dumps(model))
    assert_array_equal(copy.predict(Q), model.predict(Q))
    for array in (model.sigmas_, model.cv_results_["mean_test_score"]):
        assert not array.flags.writeable
    # Nothing of it is kept beside sums.
    assert len(pickle.dumps(model)) < 40_000
    before = dict(vars(model))
    with pytest.raises(ValueError, match="sample_weight"):
        model.fit(X, y, sample_weight=np.zeros(90))
    with pytest.raises(ValueError, match="sigmas"):
        model.set_params(sigmas=[0.0]).fit(X, y)
    assert vars(model) == {**before, "sigmas": [0.0]}


def test_containers_and_names():
    pandas = pytest.importorskip("pandas")
    frame, series = pandas.DataFrame(X, columns=list("abc")), pandas.Series(y, index=range(5, 95))
    model = KernelRegressionClassifierCV(FIXED["trigonometric"], sigmas=SIGMAS).fit(frame, series)
    expected = clone(model).fit(X, y)
    assert list(model.feature_names_in_) == list("abc")
    assert_array_equal(model.predict(frame), expected.predict(X))
    lists = clone(model).fit(X.tolist(), y.tolist())
    assert lists.best_score_ == expected.best_score_
    rows = X * (np.abs(X) > 0.5)
    dense, sparse = (clone(model).fit(form(rows), y) for form in (np.array, sp.csr_array))
    assert_allclose(
        sparse.cv_results_["mean_test_score"], dense.cv_results_["mean_test_score"], rtol=1e-12
    )


def test_rows_of_other_libraries(library):
    search = KernelRegressionClassifierCV(FIXED["positive"], sigmas=SIGMAS)
    codes = np.unique(y, return_inverse=True)[1]
    expected = clone(search).fit(X, codes)
    found = search.fit(library.array(X), codes)
    assert found.best_score_ == expected.best_score_
    own = library.array(Q)
    library.assert_same(found.predict_proba(own), expected.predict_proba(Q), like=own, rtol=1e-9)
    auto = KernelRegressionClassifier(FIXED["positive"], sigma="auto")
    assert_allclose(auto.fit(library.array(X), codes).sigma_, auto.fit(X, codes).sigma_)
    exact = KernelRegressionClassifier("exact").fit(library.array(X), codes)
    proba = clone(exact).fit(X, codes).predict_proba(Q)
    library.assert_same(exact.predict_proba(own), proba, like=own, rtol=1e-9)


@pytest.mark.parametrize("estimator", [KernelRegressionClassifierCV, KernelRegressorCV])
@pytest.mark.parametrize(
    ("feature_map", "words"),
    [
        (RBFSampler(), "'sigma'"),
        (make_pipeline(RFFSampler()), "'sigma'"),
        (OptimalPositiveRF(kernel="softmax"), "softmax"),
        ("exact", "feature_map"),
    ],
)
def test_maps_that_cannot_be_searched(estimator, feature_map, words):
    with pytest.raises(ValueError, match=words):
        estimator(feature_map).fit(X, T[:, 0] if estimator is KernelRegressorCV else y)


class Cosines(TransformerMixin, BaseEstimator):
    """A map of another package, with a sigma."""

    def __init__(self, sigma=1.0, random_state=None):
        self.sigma = sigma
        self.random_state = random_state

    def fit(self, X, y=None):
        rng = check_random_state(self.random_state)
        self.omega_ = rng.normal(size=(X.shape[1], 20))
        return self

    def transform(self, X):
        angles = self.sigma * (X @ self.omega_)
        return np.hstack([np.cos(angles), np.sin(angles)])


def test_maps_of_other_packages():
    ours = KernelRegressionClassifierCV(Cosines(random_state=0), sigmas=SIGMAS).fit(X, y)
    plain = KernelRegressionClassifier(Cosines(random_state=0))
    theirs = GridSearchCV(plain, {"sigma": SIGMAS}).fit(X, y)
    for name in ("mean_test_score", "std_test_score"):
        assert_allclose(ours.cv_results_[name], theirs.cv_results_[name], rtol=1e-12)
    # Where there is no seed, one is drawn for all sigmas.
    state = np.random.RandomState(0)
    auto = KernelRegressionClassifier(Cosines(random_state=state), sigma="auto").fit(X, y)
    assert auto.score(X, y) > 0.7
    assert not hasattr(auto, "sigma_") and 0.1 < auto.feature_map_.sigma < 10


class Cutoff(Cosines):
    """Features that are 0 for distant rows."""

    def transform(self, X):
        return super().transform(X) * (self.sigma * abs(X).max(axis=1, keepdims=True) < 50)

    def learns_from(self, y):
        return y.dtype.kind == "U"


@pytest.mark.parametrize("labels", [y, X[:, 0] > 0], ids=["apart", "together"])
def test_sigmas_that_are_not_chosen_do_not_warn(labels):
    for model in (
        KernelRegressionClassifierCV(Cutoff(), sigmas=[1.0, 100.0]),
        KernelRegressionClassifier(Cutoff(), sigma="auto"),
    ):
        model.fit(X, labels)
        with pytest.warns(FeatureCollapseWarning):  # but what is asked of it does
            model.predict(1e4 * X)


@pytest.mark.parametrize("name", MECHANISMS)
def test_fits_at_many_sigmas_are_fits(name):
    own = make(name, n_components=24, random_state=7)
    labels = np.unique(y, return_inverse=True)[1]
    for sigma, found in zip(SIGMAS, own._fit_each(SIGMAS, X, labels), strict=True):
        expected = clone(own).set_params(sigma=sigma).fit(X, labels)
        for keys in (False, True):
            a, b = found.feature_maps_[keys](Q), expected.feature_maps_[keys](Q)
            assert_allclose(a.values, b.values, rtol=1e-9, atol=1e-9)
        assert found.sigma == found.sigma_ == sigma
    assert not hasattr(own, "statistics_")
    changed, own = np.arange(90) % 2, clone(own).set_params(sigma=3.0)
    uses = not np.allclose(
        clone(own).fit(X, labels).feature_maps_[0](Q).values.sum(),
        clone(own).fit(X, changed).feature_maps_[0](Q).values.sum(),
    )
    assert uses == own._learns_from(labels)


# ------------------------------------------------------------------ sigma="auto"


def test_auto_is_taken_without_a_map_and_a_sigma():
    model = KernelRegressionClassifier(random_state=0).fit(X, y)
    assert isinstance(model.feature_map_, AdaptiveRF) and model.feature_map_.n_components == 256
    told = KernelRegressionClassifier(AdaptiveRF(256), sigma="auto", random_state=0).fit(X, y)
    assert model.sigma_ == told.sigma_ == model.feature_map_.sigma == model.feature_map_.sigma_
    assert_array_equal(model.predict_proba(Q), told.predict_proba(Q))
    assert KernelRegressionClassifier(sigma=2.0).fit(X, y).sigma_ == 2.0
    assert KernelRegressionClassifier(RFFSampler(20, sigma=3.0)).fit(X, y).sigma_ == 3.0
    assert not hasattr(KernelRegressionClassifier(Nystroem(n_components=20)).fit(X, y), "sigma_")


@pytest.mark.parametrize("feature_map", [OptimalPositiveRF(200), AdaptiveRF(60)])
def test_auto_is_near_the_best(feature_map):
    rng = np.random.default_rng(1)
    rows, wave = rng.uniform(-3, 3, size=(400, 1)), lambda rows: np.sin(4 * rows[:, 0])
    grid = np.linspace(-2.8, 2.8, 200)[:, None]
    noisy = wave(rows) + 0.1 * rng.normal(size=400)
    for estimator, targets, truth in (
        (KernelRegressor, noisy, wave(grid)),
        (KernelRegressionClassifier, noisy > 0, wave(grid) > 0),
    ):
        model = estimator(feature_map, sigma="auto", random_state=0).fit(rows, targets)
        scores = [
            clone(model).set_params(sigma=sigma).fit(rows, targets).score(grid, truth)
            for sigma in model.sigma_ * np.logspace(-1, 1, 11)
        ]
        assert model.score(grid, truth) > max(scores) - 0.05
        assert estimator is KernelRegressionClassifier or min(scores) < max(scores) - 0.3


def test_auto_looks_at_few_rows_and_resolves_on_the_first_batch(monkeypatch):
    seen, fit_each = [], base.BaseRandomFeatures._fit_each

    def noted(self, sigmas, X, y=None, sample_weight=None):
        seen.append(np.unique(y, return_counts=True)[1])
        return fit_each(self, sigmas, X, y, sample_weight)

    monkeypatch.setattr(_search, "_ROWS", 50)
    monkeypatch.setattr(base.BaseRandomFeatures, "_fit_each", noted)
    model = KernelRegressionClassifier(RFFSampler(20), sigma="auto", random_state=0).fit(X, y)
    (counts,) = seen
    shares = 50 * np.unique(y, return_counts=True)[1] / 90
    assert counts.sum() == 50 and (np.abs(counts - shares) <= 1).all()
    first = clone(model).fit(X[:40], y[:40])
    parts = clone(model).partial_fit(X[:40], y[:40], classes=np.unique(y))
    parts.partial_fit(X[40:], y[40:])
    assert parts.sigma_ == first.sigma_ == parts.feature_map_.sigma_ and len(seen) == 3
    assert parts.class_weight_.sum() == 90
    # As many rows as there are are enough.
    assert KernelRegressionClassifier(random_state=0).fit(X[:2], y[:2]).predict(X[:2]).shape == (2,)


AUTOMATIC = [
    KernelRegressionClassifier(RFFSampler(30, random_state=0), sigma="auto"),
    KernelRegressionClassifier(OptimalPositiveRF(30, random_state=0), sigma="auto"),
    KernelRegressionClassifier(random_state=0),
    KernelRegressionClassifier("exact"),
    KernelRegressor(OptimalPositiveRF(30, random_state=0), sigma="auto"),
    KernelRegressor("exact"),
]


@pytest.mark.parametrize("model", AUTOMATIC, ids=str)
def test_weights_are_repetitions_in_automatic_sigmas(model):
    targets = y if hasattr(model, "predict_proba") else T
    # Equal rows with equal and with other targets, in another order.
    rows = X.copy()
    rows[60:80] = rows[:20]
    numbers = np.random.default_rng(0).permutation(np.repeat(np.arange(90), WEIGHTS.astype(int)))
    weighted = clone(model).fit(rows, targets, sample_weight=WEIGHTS)
    scaled = clone(model).fit(rows, targets, sample_weight=3e5 * WEIGHTS)
    repeated = clone(model).fit(rows[numbers], targets[numbers])
    for other in (scaled, repeated):
        assert_allclose(other.sigma_, weighted.sigma_, rtol=1e-9)
        if hasattr(model, "predict_proba"):
            assert_array_equal(other.predict(Q), weighted.predict(Q))
        else:
            assert_allclose(other.predict(Q), weighted.predict(Q), rtol=1e-7)


@pytest.mark.parametrize("estimator", [KernelRegressionClassifier, KernelRegressor])
def test_nothing_to_learn_gives_scale(estimator):
    scale = RFFSampler(sigma="scale").fit(X).sigma_
    for own in ({}, {"feature_map": RFFSampler(20), "sigma": "auto"}, {"feature_map": "exact"}):
        model = estimator(**own).fit(X, np.ones(90, int))
        assert_allclose(model.sigma_, scale)
        assert_allclose(model.predict(Q), 1.0, rtol=1e-15)
        # Rows that are all alike.
        model = estimator(**own).fit(np.ones((6, 2)), np.arange(6) % 2)
        assert_allclose(model.sigma_, np.sqrt(2))  # what "scale" is of constant rows


@pytest.mark.parametrize("estimator", [KernelRegressionClassifier, KernelRegressor])
def test_strings_of_sigma(estimator):
    targets = T if estimator is KernelRegressor else y
    for feature_map, sigma, words in (
        (OptimalPositiveRF(kernel="softmax"), "auto", "softmax"),
        (Nystroem(), "auto", "sigma='auto'.*no parameter 'sigma'"),
        (OptimalPositiveRF(), "loo", "sigma='loo' is for feature_map='exact'"),
        (None, "loo", "sigma='loo'.*sigma='auto'"),
        (RFFSampler(), "scales", f"'sigma' parameter of {estimator.__name__}"),
        ("exact", -1.0, "sigma"),
        (RFFSampler(sigma="auto"), None, "'sigma' parameter of RFFSampler"),
    ):
        model = estimator(feature_map, sigma=sigma)
        with pytest.raises(ValueError, match=words):
            model.fit(X, targets)
        assert not hasattr(model, "n_features_in_")
    for feature_map in (RFFSampler(10), "exact"):
        scale = estimator(feature_map, sigma="scale").fit(X, targets)
        assert_allclose(scale.sigma_, RFFSampler(sigma="scale").fit(X).sigma_)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_automatic_sigmas_of_any_data(data):
    """Few rows, equal ones, extreme scales: a finite sigma that fits, and no warning."""
    n = data.draw(st.integers(1, 12))
    unit = 10.0 ** data.draw(st.integers(-100, 100))
    few = st.integers(0, 3)
    rows = unit * np.array(data.draw(st.lists(st.tuples(few, few), min_size=n, max_size=n)))
    labels = np.array(data.draw(st.lists(few, min_size=n, max_size=n)))
    weights = 10.0 ** np.array(data.draw(st.lists(st.integers(-30, 30), min_size=n, max_size=n)))
    for model in (
        KernelRegressionClassifier(OptimalPositiveRF(8, random_state=0), sigma="auto"),
        KernelRegressor(OptimalPositiveRF(8, random_state=0), sigma="auto"),
        KernelRegressionClassifier("exact"),
        KernelRegressor("exact"),
    ):
        targets = labels if hasattr(model, "predict_proba") else unit * labels
        model.fit(rows, targets, weights)
        assert 0 < model.sigma_ < np.inf
        assert np.isfinite(model.predict(rows)).all()


# ------------------------------------------------------------------ the exact kernel


def log_kernel(A, B, sigma):
    return -(sigma**2) / 2 * ((A[:, None] - B) ** 2).sum(axis=2)


@pytest.mark.parametrize("sigma", [1e-3, 1.0, 5.0])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_exact_kernel_is_brute_force(sigma, dtype):
    rows, queries = X.astype(dtype), Q.astype(dtype)
    K = np.exp(log_kernel(queries.astype(float), rows.astype(float), sigma)) * WEIGHTS
    own = np.equal.outer(y, np.unique(y))
    rtol = max(1e-9, np.finfo(dtype).eps)  # of rounding the result
    model = KernelRegressionClassifier("exact", sigma=sigma).fit(rows, y, sample_weight=WEIGHTS)
    assert_allclose(
        model.predict_proba(queries), K @ own / K.sum(axis=1, keepdims=True), rtol=rtol, atol=1e-12
    )
    assert_allclose(model.class_weight_, WEIGHTS @ own)
    regressor = KernelRegressor("exact", sigma=sigma).fit(rows, T, sample_weight=WEIGHTS)
    assert_allclose(regressor.predict(queries), K @ T / K.sum(axis=1, keepdims=True), rtol=rtol)
    sparse = clone(regressor).fit(sp.csr_array(rows), T, sample_weight=WEIGHTS)
    assert_allclose(sparse.predict(sp.csr_array(queries)), regressor.predict(queries), rtol=1e-6)
    assert not hasattr(model, "partial_fit") and not hasattr(model, "feature_map_")


@pytest.mark.parametrize(
    ("model", "method", "said"),
    [
        (KernelRegressor("exact"), "partial_fit", "feature_map='exact' keeps all rows"),
        (KernelRegressionClassifier("exact"), "partial_fit", "feature_map='exact' keeps all rows"),
        (KernelRegressor("exact"), "merge", "feature_map='exact' keeps all rows"),
        (KernelRegressorCV(), "partial_fit", "a search .* fit_batches"),
        (ApproxKernelRidgeCV(), "merge", "a search .* fit_batches"),
        (RFFSampler(), "log_transform", "its features have signs"),
    ],
)
def test_a_method_that_is_missing_says_why(model, method, said):
    with pytest.raises(
        AttributeError, match=f"^{type(model).__name__} has no {method} here: {said}"
    ):
        getattr(model, method)


@pytest.mark.parametrize("given", [["1", 10.0], [True, 10.0], [np.True_, 10.0], [[1.0], [2.0]], []])
@pytest.mark.parametrize("search", [KernelRegressorCV, ApproxKernelRidgeCV])
def test_grids_hold_numbers_and_nothing_that_could_be_read_as_one(search, given):
    model = search(RFFSampler(8), sigmas=given)
    if search is ApproxKernelRidgeCV:
        model = ApproxKernelRidgeCV(RFFSampler(8), sigmas=[1.0], alphas=given)
    name = "alphas" if search is ApproxKernelRidgeCV else "sigmas"
    with pytest.raises(
        (TypeError, ValueError), match=f"{name}.* must be .*finite number.* > 0, got"
    ):
        model.fit(X, T)
    for good in ([1, np.float32(2.0)], np.array([1, 2]), (0.5,)):
        own = {name: good}
        assert np.isfinite(clone(model).set_params(**own).fit(X, T).best_score_)


def test_the_exact_kernel_far_from_the_data():
    model = KernelRegressionClassifier("exact", sigma=50.0).fit(X, y)
    far = X + 100
    nearest = y[log_kernel(far, X, 1.0).argmax(axis=1)]
    assert_array_equal(model.predict(far), nearest)
    logs = model.predict_log_proba(far)
    exact = log_kernel(far, X, 50.0)
    own = np.stack([np.logaddexp.reduce(exact[:, y == c], axis=1) for c in "abc"], axis=1)
    own -= np.logaddexp.reduce(own, axis=1)[:, None]
    assert_allclose(logs, own, rtol=1e-7, atol=1e-7)
    # Weights and targets of any size.
    weights, unit = 10.0 ** np.linspace(-300, 300, 90), 1e300
    regressor = KernelRegressor("exact", sigma=1.0).fit(X, unit * T[:, 0], sample_weight=weights)
    logs = log_kernel(Q, X, 1.0) + np.log(weights)
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    expected = shares @ T[:, 0] / shares.sum(axis=1)
    assert_allclose(regressor.predict(Q) / unit, expected, rtol=1e-9)


def loo_score(rows, targets, weights, sigma):
    """The definition, point by point, the row's largest exponent taken out."""
    squares = ((rows[:, None] - rows) ** 2).sum(axis=2)
    squares[squares == 0] = np.inf
    K = np.exp(-(sigma**2) / 2 * (squares - squares.min(axis=1, keepdims=True))) * weights
    K /= K.sum(axis=1, keepdims=True)
    if targets.dtype.kind == "f":
        scaled = targets / np.abs(targets).max(axis=0)
        return -weights @ np.sum((scaled - K @ scaled) ** 2, axis=1)
    own = np.equal.outer(targets, np.unique(targets))
    shares, n = weights @ own / weights.sum(), len(np.unique(rows, axis=0))
    return weights @ np.log(((n * (K @ own) + shares) / (n + 1))[own])


@pytest.mark.parametrize("targets", [np.unique(y, return_inverse=True)[1], T], ids=["y", "T"])
def test_loo_leaves_out_all_equal_rows(targets):
    rows, weights = X.copy(), WEIGHTS + 0.5
    rows[50:60] = rows[:10]
    scale = RFFSampler(sigma="scale").fit(rows, sample_weight=weights).sigma_
    scores = {}

    def evaluate(sigmas):
        scores.update((sigma, loo_score(rows, targets, weights, sigma)) for sigma in sigmas)
        return np.array([scores[sigma] for sigma in sigmas])

    expected = _search.refined(scale, evaluate)
    estimator = KernelRegressor if targets is T else KernelRegressionClassifier
    model = estimator("exact", sigma="loo").fit(rows, targets, sample_weight=weights)
    assert_allclose(model.sigma_, expected, rtol=1e-9)
    assert_allclose(estimator("exact").fit(rows, targets, weights).sigma_, expected, rtol=1e-9)
    # The optimum is inside of the grid, and finer than its steps.
    ranked = sorted(scores, key=scores.get)
    assert len(ranked) == 14 and scale < ranked[-1] < 20 * scale


def test_loo_keeps_the_digits_of_targets_far_from_0():
    expected = KernelRegressor("exact").fit(X, T[:, 0]).sigma_
    for offset in (1e6, -1e9):
        assert KernelRegressor("exact").fit(X, offset + T[:, 0]).sigma_ == expected


def test_ties_go_to_the_smallest_sigma():
    assert _search.refined(1.0, lambda s: np.zeros(len(s))) < 0.1
    best = 10 ** (2 / 9)  # two thirds of a step above 1
    assert _search.refined(1.0, lambda s: -abs(np.log(s / best))) == pytest.approx(best)


def test_outputs_count_alike():
    rough, smooth = np.sin(9 * X[:, 0]), X[:, 1]
    model = KernelRegressor(OptimalPositiveRF(32), sigma="auto", random_state=0)

    def sigma(targets):
        return clone(model).fit(X, targets).feature_map_.sigma

    expected = sigma(np.column_stack([rough, smooth]))
    for factor, offset in ((1000, 0), (1e-3, 0), (1, 1e4), (1, -1e4)):
        assert sigma(np.column_stack([factor * rough + offset, smooth])) == expected
        assert sigma(np.column_stack([rough, factor * smooth + offset])) == expected
    assert sigma(rough) != expected or sigma(smooth) != expected


def test_the_exact_kernel_holds_blocks():
    """Neither a fit, nor its search of sigma, nor predictions hold all values of the kernel."""
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(4000, 2)), np.arange(4000) % 2
    model = KernelRegressionClassifier("exact", sigma=3.0)
    model.fit(rows[:50], labels[:50]).predict(rows[:50])
    tracemalloc.start()
    model.fit(rows, labels).predict(rows)
    KernelRegressionClassifier("exact", sigma="loo").fit(rows[:3000], labels[:3000])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6  # 128 MB and 72 MB are all


@pytest.mark.parametrize("n_classes", [2, 3])
def test_names_of_labels_do_not_matter(n_classes):
    """On a lattice many rows are equally near to rows of several classes."""
    places = np.indices((9, 9)).reshape(2, -1).T.astype(float)
    codes = (places // 2).sum(axis=1).astype(int) % n_classes
    models = [
        KernelRegressionClassifier(random_state=0).fit(places, names[codes])
        for names in (np.array([1, 2, 3]), np.array([8, 4, 6]))
    ]
    assert models[0].sigma_ == models[1].sigma_
    assert_array_equal(models[0].feature_map_.omega_, models[1].feature_map_.omega_)


@pytest.mark.parametrize("unit", [3e-9, 7e8])
@pytest.mark.parametrize("search", [KernelRegressor, KernelRegressorCV, ApproxKernelRidgeCV])
def test_units_of_targets_do_not_matter(search, unit):
    models = [search(random_state=0).fit(X, own) for own in (T, unit * T)]
    assert models[0].sigma_ == models[1].sigma_
    assert_allclose(models[1].predict(Q), unit * models[0].predict(Q), rtol=1e-6)


def test_nearly_equal_scores_go_to_the_smallest_sigma():
    """A difference of scores that rounding may turn round decides nothing."""
    for gain, expected in ((1e-15, 0.5), (1e-6, 0.5), (1e-2, 2.0)):
        model = KernelRegressorCV()
        runs = [([0.9 - 0.5 * (s < 0.5) + gain * (s == 2.0)], s, s) for s in (2.0, 0.1, 0.5, 1.0)]
        found, _ = model._choose(runs, [2.0, 0.1, 0.5, 1.0])
        assert found == model.sigma_ == expected
        assert model.cv_results_["rank_test_score"].tolist().count(1) == (3 if gain < 1e-4 else 1)
