"""Rows that occur twice, weights and cells of a design: no search memorises them.

The cases are those that refute simpler rules: leaving single rows out memorises copies, leaving out
all that have equal X ruins designs, whose cells have many rows each.
"""

from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_classification, make_friedman1
from sklearn.metrics import balanced_accuracy_score, log_loss
from sklearn.model_selection import GroupKFold

from skrf import (
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
    ClusterNystroem,
    KernelMachineClassifier,
    KernelMachineRegressor,
    KernelRegressionClassifier,
    KernelRegressor,
    RelevanceScaler,
)
from skrf.regression.data import copy_groups

N = 300
X, Y = make_friedman1(N + 1000, 5, noise=1.0, random_state=0)
X, Q, Y, TRUTH = X[:N], X[N:], Y[:N], Y[N:]
REGRESSORS = {
    "kernel machine": KernelMachineRegressor(random_state=0),
    "kernel regression": KernelRegressor(random_state=0),
    "ridge": ApproxKernelRidgeCV(random_state=0),
    "leverages": ApproxKernelRidgeCV(ClusterNystroem(50), sigmas=None, random_state=0),
    "leaves": ApproxKernelRidgeCV(ClusterNystroem(50), max_leaf_size=100, random_state=0),
}
CLASSIFIERS = {
    "kernel machine": KernelMachineClassifier(random_state=0),
    "kernel regression": KernelRegressionClassifier(random_state=0),
    "ridge": ApproxKernelRidgeClassifierCV(random_state=0),
}
all_regressors = pytest.mark.parametrize("name", REGRESSORS)
all_classifiers = pytest.mark.parametrize("name", CLASSIFIERS)
TWICE = np.tile(np.arange(N), 2)


def score(name, rows, weights=None):
    return REGRESSORS[name].fit(X[rows], Y[rows], weights).score(Q, TRUTH)


@all_regressors
def test_copies_and_weights_are_not_memorised(name):
    tolerance = 0.015 if name.startswith("kernel") else 0.04
    plain = score(name, np.arange(N))
    assert score(name, TWICE) == pytest.approx(plain, abs=tolerance)
    assert score(name, np.arange(N), np.full(N, 2.0)) == pytest.approx(plain, abs=tolerance)
    drawn = np.random.default_rng(0).integers(0, N, N)
    assert score(name, drawn) == pytest.approx(score(name, np.unique(drawn)), abs=0.05)


@pytest.mark.parametrize("name", ["kernel machine", "ridge"])
def test_a_table_of_two_measurements_may_be_repeated(name):
    again = np.append(Y, Y + np.random.default_rng(0).normal(size=N))
    rows = np.vstack([X, X])
    model = REGRESSORS[name]
    expected = model.fit(rows, again).score(Q, TRUTH)
    found = model.fit(np.vstack([rows, rows]), np.tile(again, 2)).score(Q, TRUTH)
    assert found == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(("name", "least"), [("kernel machine", 0.76), ("ridge", 0.74)])
def test_an_oversampled_class_is_not_memorised(name, least):
    rows, y = make_classification(
        1400, 8, n_informative=4, weights=[0.9], flip_y=0.05, random_state=0
    )
    drawn = np.append(np.flatnonzero(y[:400] == 0), np.tile(np.flatnonzero(y[:400] == 1), 10))
    model = CLASSIFIERS[name].fit(rows[drawn], y[drawn])
    assert balanced_accuracy_score(y[400:], model.predict(rows[400:])) > least


@all_classifiers
def test_cells_of_a_design_leave_row_by_row(name):
    """Of a cell that left whole, the other cells would tell the opposite."""
    for cells, n_rows in ((np.array(list(product([0.0, 1.0], repeat=2))), 50),
                          (np.array(list(product([0.0, 1.0, 2.0], repeat=3))), 15)):  # fmt: skip
        rows = np.repeat(cells, n_rows, axis=0)
        assert CLASSIFIERS[name].fit(rows, rows.sum(axis=1) % 2).score(cells, cells.sum(axis=1) % 2)


def test_noisy_cells_leave_row_by_row():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 3, (3405, 3)).astype(float)
    centred = rows - 1
    chances = 1 / (1 + np.exp(-centred[:, 0] - 1.5 * centred[:, 1] * centred[:, 2]))
    y = rng.random(3405) < chances
    for name, model in CLASSIFIERS.items():
        shares = model.fit(rows[:405], y[:405]).predict_proba(rows[405:])
        least = log_loss(y[405:], chances[405:])
        assert log_loss(y[405:], shares) < least + (0.03 if name != "ridge" else 0.06)


@pytest.mark.parametrize("name", ["kernel machine", "kernel regression"])
@pytest.mark.parametrize("k", [2, 4])
def test_repetitions_are_weights_and_neither_matters(name, k):
    rows = X[:120], Y[:120]
    labels = np.digitize(rows[1], [11.0, 17.0])
    for model, y in ((REGRESSORS[name], rows[1]), (CLASSIFIERS[name], labels)):
        predict = "predict_proba" if y is labels else "predict"
        plain = getattr(model.fit(rows[0], y), predict)(Q)
        weighted = getattr(model.fit(rows[0], y, np.full(120, float(k))), predict)(Q)
        repeated = getattr(model.fit(np.tile(rows[0], (k, 1)), np.tile(y, k)), predict)(Q)
        assert_allclose(weighted, plain, rtol=1e-6, atol=1e-9)
        assert_allclose(repeated, plain, rtol=1e-6, atol=1e-9)


def test_kernel_machines_are_continuous_in_weights():
    weights = np.random.default_rng(0).integers(1, 4, N).astype(float)
    model, few = REGRESSORS["kernel machine"], np.arange(0, N, 2)
    whole = model.fit(X[few], Y[few], weights[few]).predict(Q)
    nearly = model.fit(X[few], Y[few], np.where(weights == 2, 1.999, weights)[few]).predict(Q)
    assert np.abs(nearly - whole).max() < 0.002 * Y.std()


def test_levels_are_counted_once_for_all_copies():
    """A level of two rows is rare, however often the table is repeated."""
    rng = np.random.default_rng(0)
    levels = np.repeat([f"level {k}" for k in range(20)], 2)
    rows = np.column_stack([levels.astype(object), rng.normal(size=40)])
    y = rng.normal(size=40)
    plain = KernelMachineRegressor(random_state=0).fit(rows, y)
    twice = KernelMachineRegressor(random_state=0).fit(np.vstack([rows, rows]), np.tile(y, 2))
    assert_array_equal(twice.predict(rows), plain.predict(rows))


def test_claimed_errors_of_leaves_are_those_of_new_rows():
    drawn = np.random.default_rng(0).integers(0, N, 2 * N)
    model = REGRESSORS["leaves"].fit(X[drawn], Y[drawn])
    others = np.setdiff1d(np.arange(N), drawn)
    errors = np.square(model.predict(np.vstack([Q, X[others]])) - np.append(TRUTH, Y[others]))
    assert -model.best_score_ == pytest.approx(errors.mean(), rel=0.1)


def test_splitters_of_the_user_are_left_alone():
    by_user = ApproxKernelRidgeCV(cv=GroupKFold(3), random_state=0)
    by_user.fit(X[TWICE], Y[TWICE], groups=TWICE)
    by_number = ApproxKernelRidgeCV(cv=3, random_state=0).fit(X[TWICE], Y[TWICE])
    assert (by_user.n_samples_searched_, by_number.n_samples_searched_) == (2 * N, N)
    assert min(by_user.score(Q, TRUTH), by_number.score(Q, TRUTH)) > 0.9


@pytest.mark.parametrize("are_classes", [False, True])
def test_relevance_of_a_table_is_that_of_its_copies(are_classes):
    y = np.digitize(Y, [11.0, 17.0]) if are_classes else Y
    plain = RelevanceScaler().fit(X[:100], y[:100]).relevance_
    rows = np.random.default_rng(0).permutation(np.tile(np.arange(100), 3))
    assert_allclose(RelevanceScaler().fit(X[rows], y[rows]).relevance_, plain, rtol=1e-3)


def test_the_rule():
    x = np.array([0, 0, 1, 1, 2, 2, 3, 4])
    y = np.array([0, 0, 1, 2, 3, 3, 3, 0])
    assert_array_equal(copy_groups(x, y, are_classes=False), [0, 0, 1, 2, 3, 3, 4, 5])
    assert_array_equal(copy_groups(x, y, are_classes=True), [0, 0, 1, 2, 3, 3, 4, 5])
    y = np.array([0, 0, 1, 2, 3, 3, 3, 0, 1])  # the second row has two classes, one of them twice
    x = np.append(x, 1)
    assert_array_equal(copy_groups(x, y, are_classes=False), [0, 0, 1, 2, 3, 3, 4, 5, 1])
    assert_array_equal(copy_groups(x, y, are_classes=True), [0, 0, 1, 2, 3, 3, 4, 5, 6])
    cells = np.repeat([0, 1], 5)
    assert_array_equal(copy_groups(cells, cells, are_classes=True), np.arange(10))
