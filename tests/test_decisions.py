"""Decisions state problems and read values: those of the library, and those of a user."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from skrf import (
    ApproxKernelRidgeClassifier,
    ApproxKernelRidgeClassifierCV,
    KernelRegressionClassifier,
    KernelRegressor,
    OptimalPositiveRF,
    RFFSampler,
)
from skrf.regression import Argmax, Decision, OneVsOne, Problem
from skrf.regression.decide import DECISIONS, name_of

IRIS = load_iris(return_X_y=True)
MAP = RFFSampler(40, sigma=0.4, random_state=0)


class Ordinal(Decision):
    """Is the class above each threshold? The number of thresholds that are passed is the class."""

    def problems(self, n_classes):
        classes = np.arange(n_classes)
        return [
            Problem(classes, np.where(classes[:, None] > k, 1.0, -1.0))
            for k in range(n_classes - 1)
        ]

    def read(self, values, solution):
        passed = (values > 0).sum(axis=1)
        return -abs(passed[:, None] - np.arange(values.shape[1] + 1)).astype(float)


def test_a_decision_of_a_user_serves_fits_searches_and_batches():
    X, y = IRIS
    model = ApproxKernelRidgeClassifier(MAP, alpha=0.1, decision=Ordinal()).fit(X, y)
    F = model.feature_map_.transform(X)
    for k in range(2):
        peer = Ridge(0.1).fit(F, np.where(y > k, 1.0, -1.0))
        assert_allclose(model.component_coef_[k], peer.coef_, rtol=1e-7, atol=1e-9)
    assert model.decisions_ == "Ordinal" and model.score(X, y) > 0.95
    batches = clone(model).fit_batches([(X[::2], y[::2]), (X[1::2], y[1::2])])
    assert_allclose(batches.component_coef_, model.component_coef_, rtol=1e-7, atol=1e-9)
    search = ApproxKernelRidgeClassifierCV(MAP, sigmas=3, decision=Ordinal(), scoring="accuracy")
    assert search.fit(X, y).decisions_ == "Ordinal" and search.best_score_ > 0.9
    assert_array_equal(pickle.loads(pickle.dumps(search)).predict(X), search.predict(X))


class Level(Decision):
    """Which class has the number that is nearest to a single regression?"""

    def problems(self, n_classes):
        return [Problem(np.arange(n_classes), np.arange(n_classes)[:, None])]

    def read(self, values, solution):
        return -((values - np.arange(3.0)) ** 2)


@pytest.mark.parametrize("scoring", [None, "neg_log_loss"])
def test_a_decision_of_a_user_may_need_a_single_regression(scoring):
    X, y = IRIS
    model = ApproxKernelRidgeClassifier(MAP, alpha=0.1, decision=Level()).fit(X, y)
    assert model.component_coef_.shape == (1, 40) and model.score(X, y) > 0.95
    search = ApproxKernelRidgeClassifierCV(MAP, sigmas=3, decision=Level(), scoring=scoring)
    assert search.fit(X, y).score(X, y) > 0.95 and len(search.predict_proba(X).T) == 3


def test_held_out_rows_are_decided_as_new_ones_however_small_their_values():
    X = np.random.default_rng(0).normal(size=(300, 2))
    y = (X[:, 0] > np.median(X[:, 0])).astype(int)
    search = ApproxKernelRidgeClassifierCV(MAP, sigmas=[0.4], alphas=[1e7], scoring="accuracy")
    assert search.fit(X, y).best_score_ > 0.9 and abs(search.decision_function(X)).max() < 1e-5


@pytest.mark.parametrize("name", list(DECISIONS))
def test_every_decision_may_be_given_by_name_or_as_an_instance(name):
    X, y = IRIS
    assert name_of(DECISIONS[name]) == name
    by_name = ApproxKernelRidgeClassifier(MAP, decision=name).fit(X, y)
    instance = ApproxKernelRidgeClassifier(MAP, decision=type(DECISIONS[name])()).fit(X, y)
    assert_array_equal(by_name.decision_function(X), instance.decision_function(X))
    problems = DECISIONS[name].problems(4)
    values = np.random.default_rng(0).normal(size=(5, sum(p.targets.shape[1] for p in problems)))
    if name != "discriminants":  # which needs more than values
        assert DECISIONS[name].read(values, None).shape == (5, 4)


@pytest.mark.parametrize("decision", [*DECISIONS, Ordinal()], ids=str)
def test_a_search_in_batches_decides_as_it_is_told(decision):
    X, y = IRIS
    cv, few = StratifiedKFold(3), slice(0, None, 2)
    search = ApproxKernelRidgeClassifierCV(
        RFFSampler(40, random_state=0), sigmas=[0.1, 0.5], decision=decision, cv=cv
    )
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order], y[order]
    whole, parts = clone(search).fit(X, y), [(X[:70], y[:70]), (X[70:], y[70:])]
    batches = clone(search).fit_batches(parts)
    assert batches.decisions_ == whole.decisions_ == name_of(decision)
    assert (batches.sigma_, batches.alpha_) == (whole.sigma_, whole.alpha_)
    assert_allclose(
        batches.decision_function(X[few]), whole.decision_function(X[few]), rtol=1e-6, atol=1e-8
    )


def test_a_fitted_model_keeps_its_decision():
    X, y = IRIS
    model = ApproxKernelRidgeClassifier(MAP, decision=Ordinal()).fit(X, y)
    before = model.predict(X)
    assert_array_equal(model.set_params(decision="argmax").predict(X), before)


def test_instances_are_their_names_for_several_labels_and_in_rows(monkeypatch):
    monkeypatch.setattr("skrf.regression.ridge.FEW_ROWS", 50)
    X, y = IRIS
    assert ApproxKernelRidgeClassifier("exact", decision=OneVsOne()).fit(X, y).dual_coef_.any()
    labels = (X > X.mean(axis=0)).astype(int)
    assert ApproxKernelRidgeClassifier(MAP, decision=Argmax()).fit(X, labels).multilabel_


@pytest.mark.parametrize("decision", [*DECISIONS, OneVsOne()], ids=str)
@pytest.mark.parametrize("scoring", ["accuracy", "f1_macro"])
def test_a_search_with_a_score_is_a_grid_search(decision, scoring):
    """Values of pairs were once read as those of classes: best_score_ was .1 where .97 is meant."""
    X, y = IRIS
    grid, cv = {"sigma": [0.1, 0.5], "alpha": [1e-2, 1.0]}, StratifiedKFold(3)
    model = ApproxKernelRidgeClassifier(RFFSampler(40, random_state=0), decision=decision)
    theirs = GridSearchCV(model, grid, cv=cv, scoring=scoring).fit(X, y)
    ours = ApproxKernelRidgeClassifierCV(
        model.feature_map, sigmas=grid["sigma"], alphas=grid["alpha"], cv=cv, decision=decision,
        scoring=scoring,
    ).fit(X, y)  # fmt: skip
    expected = {tuple(p.values()): s for p, s in zip(
        theirs.cv_results_["params"], theirs.cv_results_["mean_test_score"], strict=True
    )}  # fmt: skip
    params = [(p["alpha"], p["sigma"]) for p in ours.cv_results_["params"]]
    assert_allclose(ours.cv_results_["mean_test_score"], [expected[p] for p in params])
    assert ours.best_score_ == pytest.approx(theirs.best_score_)


@pytest.mark.parametrize(
    ("n_rows", "params", "is_in_rows"),
    [
        (51, {}, True),
        (51, {"decision": OneVsOne()}, True),
        (50, {}, False),
        (51, {"decision": "argmax"}, False),
        (51, {"alpha": "evidence"}, False),
        (51, {"feature_map": MAP}, False),
    ],
)
def test_pairs_of_many_rows_are_solved_in_these(n_rows, params, is_in_rows, monkeypatch):
    monkeypatch.setattr("skrf.regression.ridge.FEW_ROWS", 50)
    rows = np.random.default_rng(0).permutation(150)[:n_rows]
    X, y = (values[rows] for values in IRIS)
    model = ApproxKernelRidgeClassifier(**{"feature_map": "exact", "alpha": 0.1, **params})
    assert hasattr(model.fit(X, y), "dual_coef_") == is_in_rows
    assert hasattr(model, "component_coef_") != is_in_rows


# ------------------------------------------------------------------ several labels per row

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(120, 3))
LABELS = np.column_stack([ROWS[:, 0] > 0, ROWS[:, 1] > 0.5, ROWS.sum(axis=1) > 0]).astype(int)
MANY = [
    ApproxKernelRidgeClassifier(MAP),
    ApproxKernelRidgeClassifierCV(RFFSampler(40), sigmas=2, random_state=0),
    KernelRegressionClassifier(OptimalPositiveRF(40), sigma=1.0, random_state=0),
    KernelRegressionClassifier("exact"),
]


@pytest.mark.parametrize("model", MANY, ids=lambda model: type(model).__name__)
def test_several_labels_per_row_dense_sparse_and_in_batches(model):
    dense = clone(model).fit(ROWS, LABELS)
    assert dense.multilabel_ and dense.predict(ROWS).shape == LABELS.shape
    assert_array_equal(dense.classes_, [0, 1, 2])
    assert dense.score(ROWS, LABELS) > 0.6
    for kind in (sp.csr_array, sp.coo_matrix):
        sparse = clone(model).fit(ROWS, kind(LABELS))
        assert_array_equal(sparse.predict(ROWS), dense.predict(ROWS))
    if isinstance(model.feature_map, str):
        return
    parts = [slice(0, 50), slice(50, 120)]
    for kind in (np.asarray, sp.csr_matrix):
        batches = clone(model).fit_batches([(ROWS[part], kind(LABELS[part])) for part in parts])
        assert_allclose(
            batches.decision_function(ROWS), dense.decision_function(ROWS), rtol=1e-6, atol=1e-8
        )


@pytest.mark.parametrize("model", MANY[:3], ids=lambda m: type(m).__name__)
def test_several_labels_per_row_on_dask(model):
    da, skrf_dask = pytest.importorskip("dask.array"), pytest.importorskip("skrf.dask")
    X, Y = (da.from_array(part, chunks=(40, 3)) for part in (ROWS, LABELS))
    remote, local = skrf_dask.fit(clone(model), X, Y), clone(model).fit(ROWS, LABELS)
    assert_array_equal(remote.predict(ROWS), local.predict(ROWS))


def test_labels_of_kernel_regression_are_weighted_means():
    model = clone(MANY[2]).fit(ROWS, LABELS)
    means = KernelRegressor(OptimalPositiveRF(40), sigma=1.0, random_state=0).fit(ROWS, LABELS)
    assert_allclose(model.predict_proba(ROWS), means.predict(ROWS), rtol=1e-10)
    assert_array_equal(model.predict(ROWS), model.predict_proba(ROWS) > 0.5)
    assert_allclose(model.class_count_, LABELS.sum(axis=0))
    assert_allclose(model.predict_log_proba(ROWS), np.log(model.predict_proba(ROWS)))
