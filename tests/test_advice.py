"""Tables and recommendations: what they say is what one sees who does the task."""

import os
import warnings
from functools import partial

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, make_regression
from sklearn.model_selection import train_test_split

from skrf import (
    AdaptiveRF,
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
    KernelRegressionClassifier,
    KernelRegressor,
    OptimalPositiveRF,
    PositiveRF,
    RFFSampler,
    theory,
)
from skrf.datasets import load_uci
from skrf.features import fitted_at

X = np.random.default_rng(0).normal(size=(60, 4)) / 2
Y = np.random.default_rng(1).normal(size=(40, 4)) / 2 + 0.3
FEW = {"trigonometric": RFFSampler(32), "optimal": OptimalPositiveRF(32)}


# ------------------------------------------------------------------ compare


def test_a_table_prints_aligned_and_becomes_a_frame():
    table = theory.compare(X, mechanisms=FEW)
    lines = repr(table).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split()[:2] == ["name", "predicted"]
    assert [line.split()[0] for line in lines[1:]] == [row.name for row in table]
    assert isinstance(table, list) and len(table) == 2
    pandas = pytest.importorskip("pandas")
    frame = table.to_frame()
    assert list(frame.index) == [row.name for row in table]
    assert frame.loc["optimal", "log_error"] == next(
        row.log_error for row in table if row.name == "optimal"
    )
    assert isinstance(frame, pandas.DataFrame) and "mechanism" in frame
    assert theory.ComparisonTable().to_frame().empty
    assert repr(theory.ComparisonTable()).startswith("name")


@pytest.mark.parametrize("kernel", ["gaussian", "softmax"])
def test_default_mechanisms_take_sigma_and_kernel(kernel):
    table = theory.compare(X, Y, n_components=16, sigma=0.3, kernel=kernel)
    assert all(row.mechanism.sigma == 0.3 for row in table)
    assert all(row.mechanism.kernel == kernel for row in table)
    names = {row.name for row in table}
    assert ("cluster Nystroem" in names) == (kernel == "gaussian")
    assert ("dense, asymmetric" in names) == (kernel == "softmax")
    assert ("adaptive, asymmetric" in names) == (kernel == "softmax")


@pytest.mark.parametrize("Z", [None, Y])
@pytest.mark.parametrize("mechanism", [OptimalPositiveRF(64), RFFSampler(64, sigma=2.0)])
def test_sum_errors_are_those_of_row_sums(mechanism, Z):
    [row] = theory.compare(X, Z, mechanisms={"": mechanism})
    fitted = clone(mechanism).set_params(random_state=0).fit(X, keys=Z)
    others = 1 - np.eye(len(X)) if Z is None else 1.0
    exact = np.sum(fitted.exact_kernel(X, Z) * others, axis=1)
    errors = []
    for seed in range(50):
        sums = np.sum(fitted.redraw(seed).approximate_kernel(X, Z) * others, axis=1)
        ratios = np.where(sums > 0, np.maximum(sums, 1e-300) / exact, 0.0)
        with np.errstate(divide="ignore"):
            errors.append(np.median(np.abs(np.log(ratios))))
    assert row.sum_error == pytest.approx(np.median(errors), rel=1e-9)


def test_a_row_without_others_has_no_sum_to_estimate():
    for row in theory.compare(X[:1], mechanisms=FEW):
        assert row.sum_error == np.inf and row.log_error < 1e-9


def test_sums_of_narrow_kernels_are_compared_by_their_logarithms():
    table = theory.compare(X, mechanisms={"": OptimalPositiveRF(16, sigma=100.0)})
    assert 1e3 < table[0].sum_error < np.inf
    ranked = theory.compare(X, mechanisms=FEW, criterion="sums")
    assert ranked[0].sum_error <= ranked[1].sum_error


# ------------------------------------------------------------------ recommend


def test_without_targets_the_task_says_which_error_counts():
    for task, criterion in (
        ("kernel_regression", "sums"),
        ("ridge", "frobenius"),
        ("kernel", "log"),
    ):
        table = theory.compare(X, sigma=0.7, n_components=32, criterion=criterion)
        chosen = theory.recommend(X, task=task, sigma=0.7, n_components=32)
        assert repr(chosen) == repr(table[0].mechanism)


def test_keys_as_second_argument_are_told_apart_from_targets():
    with pytest.raises(ValueError, match=r"(?s)y must be None or of shape .*\(40, 4\).*keys="):
        theory.recommend(X, Y)
    table = theory.compare(X, Y, mechanisms=FEW, criterion="sums")
    assert repr(theory.recommend(X, keys=Y, mechanisms=FEW)) == repr(table[0].mechanism)


def test_what_cannot_be_asked_is_refused():
    y = np.arange(60) % 2
    for params, said in (
        ({"task": "svm"}, "task must be one of"),
        ({"task": ["ridge"]}, "task must be one of"),
        ({"y": y, "task": "kernel"}, "task='kernel'"),
        ({"y": y, "keys": Y}, "keys given"),
        ({"y": y[:5]}, "inconsistent numbers of samples"),
        ({"y": y, "positive": True, "mechanisms": {"a": RFFSampler(4)}}, "positive=True"),
        ({"positive": True, "mechanisms": {"a": RFFSampler(4)}}, "positive=True"),
        ({"mechanisms": [RFFSampler(4)]}, "mechanisms must be a dict"),
        ({"random_state": None}, "random_state must be an integer"),
        ({"y": np.where(y, np.nan, 1.0)}, "NaN"),
        ({"X": X[:3], "y": y[:3]}, "3 sample.s. .* minimum of 4"),
    ):
        with pytest.raises((ValueError, TypeError), match=said):
            theory.recommend(**{"X": X, **params})


@pytest.mark.parametrize("task", ["kernel_regression", "ridge"])
def test_recommended_features_are_unfitted_and_have_the_sigma_that_was_found(task):
    rows, y = load_iris(return_X_y=True)
    found = theory.recommend(rows, y, task=task, mechanisms=FEW)
    assert not hasattr(found, "statistics_") and found.random_state is None
    assert type(found.sigma) is float and found.sigma != 1.0
    assert theory.recommend(rows, y, task=task, mechanisms=FEW, sigma=0.3).sigma == 0.3
    assert theory.recommend(rows, y, task=task, mechanisms=FEW, sigma="scale").sigma == "scale"
    positive = theory.recommend(rows, y, task=task, mechanisms=FEW, positive=True)
    assert isinstance(positive, OptimalPositiveRF)
    assert all(not hasattr(mechanism, "statistics_") for mechanism in FEW.values())
    assert repr(theory.recommend(rows, y, task=task, mechanisms=FEW)) == repr(found)


def test_a_mechanism_that_fails_at_the_task_is_not_recommended():
    """Points on a line, classes in turns: a wide kernel sees nothing, few columns not enough."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(0, 8, size=(400, 1))
    y = np.floor(rows[:, 0]).astype(int) % 2
    mechanisms = {"one": PositiveRF(1), "clustered": AdaptiveRF(64)}
    found = theory.recommend(rows, y, mechanisms=mechanisms)
    assert isinstance(found, AdaptiveRF)
    model = KernelRegressionClassifier(found.set_params(random_state=1)).fit(rows[:300], y[:300])
    assert model.score(rows[300:], y[300:]) > 0.9


@pytest.mark.parametrize(
    ("task", "use"), [("kernel_regression", KernelRegressor), ("ridge", ApproxKernelRidgeCV)]
)
def test_continuous_targets_are_a_regression(task, use):
    rows, y = make_regression(200, 3, noise=1.0, random_state=0)
    found = theory.recommend(rows, y, task=task, mechanisms=FEW).set_params(random_state=0)
    params = {"sigmas": None} if task == "ridge" else {}
    scores = {
        name: use(clone(own).set_params(random_state=0), **params).fit(rows[:150], y[:150])
        for name, own in {**FEW, "found": found}.items()
    }
    scores = {name: model.score(rows[150:], y[150:]) for name, model in scores.items()}
    assert scores["found"] > 0.5 and scores["found"] > max(scores[name] for name in FEW) - 0.05


def test_the_best_are_tried_again_on_more_rows_with_finer_sigmas(monkeypatch):
    tried = []

    def spied(mechanism, sigmas, *rows):
        tried.append((mechanism.n_components, sigmas, len(rows[0])))
        return fitted_at(mechanism, sigmas, *rows)

    monkeypatch.setattr(theory.advice, "fitted_at", spied)
    rows = np.random.default_rng(0).normal(size=(2500, 2))
    mechanisms = {f"{n}": PositiveRF(n) for n in (1, 8, 16, 32)}
    found = theory.recommend(rows, rows[:, 0] * rows[:, 1] > 0, mechanisms=mechanisms)
    first, second = tried[: 4 * 3], tried[4 * 3 :]
    assert {(len(sigmas), n_rows // 10) for _, sigmas, n_rows in first} == {(7, 33)}
    assert {(len(sigmas), n_rows) for _, sigmas, n_rows in second} == {(5, 1600)}
    assert len(second) == 3 * 5 and len({n for n, *_ in second} & {8, 16, 32}) == 3
    assert all(sigmas[2] in first[0][1] for _, sigmas, _ in second)
    assert any(found.sigma in sigmas for _, sigmas, _ in second)


@pytest.mark.parametrize("task", ["kernel_regression", "ridge"])
@pytest.mark.parametrize("n", [4, 5, 9])
def test_few_rows_make_fewer_folds(task, n):
    for y in (X[:n, 0], np.arange(n) % 2):
        assert theory.recommend(X[:n], y, task=task, mechanisms=FEW).sigma > 0


def test_nothing_warns_and_rare_classes_are_taken():
    rows, y = load_digits(return_X_y=True)
    rows, y = rows[:120], y[:120].copy()
    y[0] = 77
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = theory.recommend(rows, y, mechanisms=FEW)
    assert found.sigma < 1


@pytest.mark.skipif("SKRF_UCI_DIR" not in os.environ, reason="SKRF_UCI_DIR is not set")
@pytest.mark.parametrize(
    ("task", "use"),
    [
        ("kernel_regression", KernelRegressionClassifier),
        ("ridge", partial(ApproxKernelRidgeClassifierCV, sigmas=None)),
    ],
)
def test_no_other_mechanism_is_much_better_on_a_uci_set(task, use):
    rows, y = load_uci("wifi", return_X_y=True)
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    rows, X_test, y, y_test = train_test_split(rows, y, test_size=0.5, random_state=3)
    every = theory.default_mechanisms(64)

    def accuracy(mechanisms):
        found = theory.recommend(rows, y, task=task, mechanisms=mechanisms)
        return use(found.set_params(random_state=0)).fit(rows, y).score(X_test, y_test)

    names = ("trigonometric", "optimal positive", "dense", "cluster Nystroem")
    assert accuracy(every) > max(accuracy({name: every[name]}) for name in names) - 0.03
