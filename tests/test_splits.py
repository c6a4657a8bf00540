"""Splits of every kind: each row is summed once, whatever a splitter does."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneOut,
    ShuffleSplit,
    TimeSeriesSplit,
)

from skrf import (
    ApproxKernelRidge,
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
    OptimalPositiveRF,
    RFFSampler,
)
from skrf.regression.data import Splits, contiguous, stratified, sums_of_splits

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=60)
HOLES = [(np.arange(5, 40), np.arange(45, 50)), (np.arange(0, 60, 2), np.arange(1, 60, 4))]
SPLITTERS = [
    TimeSeriesSplit(3),
    TimeSeriesSplit(3, gap=4, max_train_size=20, test_size=9),
    HOLES,
    LeaveOneOut(),
]
every_splitter = pytest.mark.parametrize("cv", SPLITTERS, ids=lambda cv: str(cv)[:40])
SIGMAS, ALPHAS = [0.3, 1.0], [1e-2, 1.0]


@every_splitter
@pytest.mark.parametrize("columns", [12, 80])
def test_ridge_is_a_grid_search(cv, columns):
    n = 12 if isinstance(cv, LeaveOneOut) else 60
    grid, feature_map = {"sigma": SIGMAS, "alpha": ALPHAS}, RFFSampler(columns, random_state=0)
    theirs = GridSearchCV(
        ApproxKernelRidge(feature_map), grid, cv=cv, scoring="neg_mean_squared_error"
    ).fit(X[:n], y[:n])
    ours = ApproxKernelRidgeCV(feature_map, sigmas=SIGMAS, alphas=ALPHAS, cv=cv).fit(X[:n], y[:n])
    scores = theirs.cv_results_["mean_test_score"].reshape(2, 2).T  # alphas come first there
    assert_allclose(ours.cv_results_["mean_test_score"], scores.ravel(), rtol=1e-8)
    assert {"sigma": ours.sigma_, "alpha": ours.alpha_} == theirs.best_params_


@pytest.mark.parametrize("cv", SPLITTERS[:2], ids=str)
def test_series_in_batches_count_rows_in_order(cv):
    given = {"sigmas": SIGMAS, "cv": cv, "random_state": 0}
    whole = ApproxKernelRidgeCV(OptimalPositiveRF(12), **given).fit(X, y)
    parts = [slice(0, 7), slice(7, 31), slice(31, 60)]
    batches = ApproxKernelRidgeCV(OptimalPositiveRF(12), **given)
    batches.fit_batches([(X[part], y[part]) for part in parts])
    for name in ("mean_test_score", "split0_test_score", "split2_test_score"):
        assert_allclose(batches.cv_results_[name], whole.cv_results_[name], rtol=1e-7)
    assert batches.sigma_ == whole.sigma_
    assert_allclose(batches.predict(X), whole.predict(X), rtol=1e-6)


def test_splits_choose_alpha_for_a_sigma_that_is_kept():
    feature_map, cv = RFFSampler(12, sigma=0.8, random_state=0), TimeSeriesSplit(3)
    ours = ApproxKernelRidgeCV(feature_map, sigmas=None, alphas=ALPHAS, cv=cv).fit(X, y)
    theirs = GridSearchCV(
        ApproxKernelRidge(feature_map), {"alpha": ALPHAS}, cv=cv, scoring="neg_mean_squared_error"
    ).fit(X, y)
    scores = theirs.cv_results_["mean_test_score"]
    assert_allclose(ours.cv_results_["mean_test_score"], scores, rtol=1e-8)
    assert ours.alpha_ == theirs.best_params_["alpha"] and ours.sigma_ == 0.8
    assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-8)
    groups = np.arange(60) % 5
    grouped = ApproxKernelRidgeCV(feature_map, sigmas=SIGMAS, cv=GroupKFold(5))
    assert len(grouped.fit(X, y, groups=groups).cv_results_["split4_test_score"]) == 12


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("decision", ["auto", "one-vs-one"])
def test_splits_choose_alpha_and_decision_for_a_sigma_that_is_kept(n_classes, decision):
    labels = np.digitize(y, [-0.3, 0.3]) if n_classes > 2 else (y > 0).astype(int)
    given = {"feature_map": RFFSampler(20, sigma=0.7, random_state=0), "cv": GroupKFold(3)}
    model = ApproxKernelRidgeClassifierCV(sigmas=None, decision=decision, **given)
    model.fit(X, labels, groups=np.arange(60) // 5)
    peer = ApproxKernelRidgeClassifierCV(sigmas=[0.7], decision=decision, **given)
    peer.fit(X, labels, groups=np.arange(60) // 5)
    assert (model.alpha_, model.decisions_) == (peer.alpha_, peer.decisions_)
    assert_allclose(model.predict_proba(X), peer.predict_proba(X), rtol=1e-7)
    with pytest.raises(ValueError, match="cv must be an integer with sigmas=None.*GroupKFold"):
        model.fit_batches([(X, labels)])


def test_folds_are_read_as_slices_and_other_splits_as_they_are():
    class Rows:
        def part(self, rows):
            return rows

    folds = [np.arange(k, 60, 3) for k in range(3)]
    splits = Splits([np.setdiff1d(np.arange(60), test) for test in folds], folds, 60)
    order, moved = contiguous(Rows(), splits)
    for k, test in enumerate(folds):
        assert_array_equal(moved.tests[k], np.arange(20 * k, 20 * k + 20))
        assert_array_equal(order[moved.tests[k]], test)
        assert_array_equal(np.sort(order[moved.trains[k]]), splits.trains[k])
    # Too few rows to train on, as many as needed but others, and rows that are tested twice.
    for trains, tests in (
        ([splits.trains[0][1:], *splits.trains[1:]], folds),
        (folds, splits.trains),
        ([np.arange(20, 60), np.r_[0:10, 30:60]], [np.arange(20), np.arange(10, 30)]),
        ([np.arange(1, 60), np.arange(1)], [np.arange(1), np.arange(1)]),
    ):
        rows = Rows()
        assert contiguous(rows, Splits(list(trains), list(tests), 60))[0] is rows


class Kept:
    """Sums that remember which rows they are of, in the order in which they were added."""

    def __init__(self, rows=()):
        self.rows = tuple(rows)

    def added(self, rows):
        return Kept(self.rows + tuple(np.arange(60)[rows]))

    def merge(self, other):
        return Kept(self.rows + other.rows)


@pytest.mark.parametrize("n_splits", [2, 3, 5])
def test_sums_of_splits_are_those_of_the_rows_that_they_train_on(n_splits):
    class Rows:
        def part(self, rows):
            return rows

    for cv in (KFold(n_splits), ShuffleSplit(n_splits, random_state=0)):
        trains, tests = map(list, zip(*cv.split(X), strict=True))
        splits = Splits([np.sort(train) for train in trains], [np.sort(t) for t in tests], 60)
        sums = sums_of_splits(Kept(), Rows(), splits)
        for of_split, train in zip(sums, trains, strict=True):
            assert_array_equal(np.sort(of_split.rows), np.sort(train))


def test_a_sample_has_all_classes_in_proportion():
    codes = np.repeat([0, 1, 2], [10_000, 1000, 30])
    rows = stratified(codes, 1000, 20)
    assert_array_equal(np.bincount(codes[rows]), [907, 91, 20])
    assert (np.diff(rows) > 0).all()
    assert_array_equal(stratified(codes, 1000, 20), rows)


def test_many_rows_are_searched_on_some_and_compared_on_more():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(900, 2))
    targets = np.sin(4 * rows[:, 0]) + 0.1 * rng.normal(size=900)
    given = {"sigmas": [0.5, 2.0, 4.0], "alphas": [1e-3, 0.1, 10.0], "random_state": 0}
    some = ApproxKernelRidgeCV(RFFSampler(60), subsample=100, **given).fit(rows, targets)
    whole = ApproxKernelRidgeCV(RFFSampler(60), subsample=None, **given).fit(rows, targets)
    assert some.n_samples_searched_ == 100 and whole.n_samples_searched_ == 900
    assert (some.sigma_, some.alpha_) == (whole.sigma_, whole.alpha_)
    assert_allclose(some.predict(rows), whole.predict(rows), rtol=1e-7)
    few = ApproxKernelRidgeCV(RFFSampler(60), subsample=100, **given).fit(rows[:100], targets[:100])
    assert few.n_samples_searched_ == 100
    labels = np.digitize(targets, [-0.5, 0.5])
    search = ApproxKernelRidgeClassifierCV(subsample=150, **given).fit(rows, labels)
    assert 140 < search.n_samples_searched_ < 240
    assert search.component_coef_.shape[1] == 512 and search.score(rows, labels) > 0.85
    with pytest.raises(ValueError, match="subsample"):
        ApproxKernelRidgeCV(subsample=1).fit(rows, targets)


def test_labels_at_random_score_one_half():
    """Means over the grid and ten permutations, within two standard errors."""
    rng = np.random.default_rng(2)
    rows, scores = rng.normal(size=(160, 2)), []
    for _ in range(10):
        labels = rng.permutation(np.arange(160) % 2)
        given = {"sigmas": 3, "alphas": [0.01, 1.0], "scoring": "accuracy", "random_state": 0}
        search = ApproxKernelRidgeClassifierCV(**given).fit(rows, labels)
        scores.append(np.mean(search.cv_results_["mean_test_score"]))
    margin = 2 * max(np.std(scores) / np.sqrt(10), 0.5 / np.sqrt(1600))
    assert abs(np.mean(scores) - 0.5) < margin
