"""Kernel machines: members equal dense matrices, and tables are read as people have them."""

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import approx_fprime
from scipy.special import expit
from sklearn.datasets import load_diabetes, load_wine
from sklearn.feature_selection import SelectFromModel
from sklearn.model_selection import cross_val_score, train_test_split
from threadpoolctl import ThreadpoolController, threadpool_limits

from skrf import ClusterNystroem, KernelMachineClassifier, KernelMachineRegressor, _memory
from skrf.regression import blend, kernel_machine, members, near_far
from skrf.regression.blend import ClassCalibration, class_logs
from skrf.regression.decide import of_all_classes, of_pairs
from skrf.regression.feature_machine import (
    GaussianMultipliers,
    Multipliers,
    l1_distances,
    l2_distances,
)
from skrf.regression.members import (
    HalfScales,
    Hyperparameters,
    Kernel,
    Limits,
    MemberSearch,
    TrainingData,
    fit_member,
)
from skrf.regression.table import Levels, Table, categories_of, read_columns

RNG = np.random.default_rng(0)
N = 60
NUMBER = np.concatenate([np.arange(45), RNG.integers(45, size=15)])  # some rows are equal
COLUMNS = RNG.normal(size=(45, 3)).astype(np.float32)
CODES = np.digitize(COLUMNS[NUMBER, 0] + 0.5 * RNG.normal(size=N), [-0.5, 0.5])
WEIGHTS = RNG.choice([0.5, 1.0, 2.0], N)
SCALES = {
    "laplacian": np.float32([1.0, 0.5, 0.2]),
    "gaussian": np.float32([[1.0, 0.2, 0.0], [0.2, 0.5, 0.1], [0.0, 0.1, 0.3]]),
}
KERNELS = [Kernel("laplacian", 1.0), Kernel("laplacian", 0.6), Kernel("gaussian", 2.0)]
SMALL = Limits(12, 15)  # several leaves
LARGE = Limits(12, 100)  # one
JUDGES = np.flatnonzero(NUMBER % 2 == 0)


def data(kind, limits=SMALL, weights=WEIGHTS):
    """Return what is asked about numbers, or two or three classes."""
    X = dict.fromkeys(SCALES, COLUMNS)
    if kind == "numbers":
        targets, codes, problems = np.sin(COLUMNS[NUMBER, :1]) + CODES[:, None], None, None
        targets = (targets - targets.mean()) / targets.std()
    else:
        codes = np.minimum(CODES, kind - 1)
        targets, problems = np.eye(kind)[codes], of_pairs(kind)
    return TrainingData(X, NUMBER, weights, targets, codes, problems, limits, 0)


def between(member, X, Y):
    """Return the member's kernel of two sets of rows, from its definition."""
    near_far, kernel = member.near_far, member.kernel
    X, Y = near_far.coordinates(X), near_far.coordinates(Y)
    leaves, others = near_far.tree.leaf_of(X), near_far.tree.leaf_of(Y)
    X, Y, order = X.astype(float), Y.astype(float), 1 if kernel.name == "laplacian" else 2
    distances = np.linalg.norm(X[:, None] - Y[None], ord=order, axis=2)
    near = np.exp(-((distances / near_far.landmarks.width) ** kernel.exponent))
    if near_far.tree.n_leaves == 1:
        return near
    far = near_far.features(X) @ near_far.features(Y).T
    return np.where(np.equal.outer(leaves, others), near, far)


def solved(member, rows, targets, noise, at):
    """Return kernel ridge regression with a flat intercept at other rows, by dense inverses."""
    X = COLUMNS[NUMBER[rows]]
    inverse = np.linalg.inv(between(member, X, X) + np.diag(noise))
    level = inverse.sum(axis=0) @ targets / inverse.sum()
    return between(member, at, X) @ (inverse @ (targets - level)) + level


def leave_one_out(member, rows, targets, alphas, weights):
    """Return the values of some rows by all others."""
    found = {}
    for i in np.flatnonzero(np.isin(rows, JUDGES))[::4]:
        kept = np.arange(len(rows)) != i
        given = rows[kept], targets[kept], alphas[kept] / weights[rows[kept]]
        found[rows[i]] = solved(member, *given, COLUMNS[NUMBER[rows[i : i + 1]]])[0]
    return found


ALL_KERNELS = pytest.mark.parametrize("kernel", KERNELS, ids=str)
ALL_LIMITS = pytest.mark.parametrize("limits", [SMALL, LARGE], ids=["leaves", "exact"])


def fitted(kind, kernel, limits, weights=WEIGHTS, alpha=0.3):
    half = HalfScales({kernel.name: [None, SCALES[kernel.name]]}, JUDGES)
    given = data(kind, limits, weights)
    return given, *fit_member(given, kernel, Hyperparameters(1, 1.1, alpha), half)


# ---------------------------------------------------------------- members


@ALL_LIMITS
@ALL_KERNELS
def test_members_are_dense_regressions_of_numbers(kernel, limits):
    given, member, judged, variances = fitted("numbers", kernel, limits)
    assert (member.near_far.tree.n_leaves > 2) == (limits is SMALL)
    rows, noise = np.arange(N), 0.3 / WEIGHTS
    targets = given.targets[:, 0]
    expected = solved(member, rows, targets, noise, COLUMNS)
    assert_allclose(member.predict(COLUMNS)[:, 0], expected, rtol=1e-4, atol=1e-4)
    for row, value in leave_one_out(member, rows, targets, np.full(N, 0.3), WEIGHTS).items():
        assert judged[list(JUDGES).index(row), 0] == pytest.approx(value, abs=2e-4)
    # Posterior deviations in units of the noise, and those of judges who were left out.
    X = COLUMNS[NUMBER]
    inverse = np.linalg.inv(between(member, X, X) + np.diag(noise))
    cross = between(member, COLUMNS, X)
    gaps = 1 - cross @ inverse.sum(axis=1)
    around = between(member, COLUMNS, COLUMNS) - cross @ inverse @ cross.T
    around = np.diagonal(around) + gaps**2 / inverse.sum()
    assert_allclose(
        member.predict(COLUMNS, return_std=True)[1], np.sqrt(1 + around / 0.3), rtol=1e-3
    )
    centred = inverse - np.outer(inverse.sum(axis=0), inverse.sum(axis=0)) / inverse.sum()
    places = [list(JUDGES).index(row) for row in JUDGES]
    wanted = WEIGHTS / np.diagonal(centred) / 0.3  # in units of the noise of the row
    counts = np.bincount(NUMBER, minlength=45)[NUMBER[JUDGES]]
    assert_allclose(variances[places][counts == 1], wanted[JUDGES][counts == 1], rtol=1e-3)


@ALL_LIMITS
@ALL_KERNELS
@pytest.mark.parametrize("n_classes", [2, 3])
def test_members_are_dense_regressions_of_classes(n_classes, kernel, limits):
    """Of all pairs: ridge regression, and one Newton step of the logistic loss from it."""
    given, member, judged, _ = fitted(n_classes, kernel, limits)
    column, checked = 0, 0
    for is_logistic in (False, True) if n_classes > 2 else (True,):
        for first, second in itertools.combinations(range(n_classes), 2):
            rows = np.flatnonzero(np.isin(given.codes, (first, second)))
            signs = np.where(given.codes[rows] == second, 1.0, -1.0)
            alphas, targets = np.full(len(rows), 0.3), signs
            if is_logistic:
                at = COLUMNS[NUMBER[rows]]
                half = solved(member, rows, signs, alphas / WEIGHTS[rows], at)
                # Equal rows share their values, so that these are those of the merged problem.
                shares = expit(np.clip(2 * half, -6, 6))
                slopes = np.maximum(shares * (1 - shares), 0.02)
                targets = (np.clip(2 * half, -6, 6) + ((signs > 0) - shares) / slopes) / 2
                alphas = alphas / (4 * slopes)
            expected = solved(member, rows, targets, alphas / WEIGHTS[rows], COLUMNS)
            assert_allclose(member.predict(COLUMNS)[:, column], expected, rtol=1e-3, atol=1e-3)
            for row, value in leave_one_out(member, rows, targets, alphas, WEIGHTS).items():
                place = list(JUDGES).index(row)
                assert judged[place, column] == pytest.approx(value, abs=3e-3)
                checked += 1
            others = np.setdiff1d(JUDGES, rows)  # rows of other classes have plain values
            places = [list(JUDGES).index(row) for row in others]
            plain = member.predict(COLUMNS[NUMBER[others]])[:, column] if len(others) else []
            assert_allclose(judged[places, column], plain, atol=1e-3)
            column += 1
    assert checked > 5


@ALL_LIMITS
def test_members_of_many_classes_are_dense_regressions_of_each(limits):
    given = replace(data(3, limits), problems=[of_all_classes(3)])
    half = HalfScales({"laplacian": [None, SCALES["laplacian"]]}, JUDGES)
    member, judged, _ = fit_member(given, KERNELS[0], Hyperparameters(1, 1.1, 0.3), half)
    rows, predicted = np.arange(N), member.predict(COLUMNS)
    for k in range(3):
        signs = np.where(given.codes == k, 1.0, -1.0)
        expected = solved(member, rows, signs, 0.3 / WEIGHTS, COLUMNS)
        assert_allclose(predicted[:, k], expected, rtol=1e-3, atol=1e-3)
        for row, value in leave_one_out(member, rows, signs, np.full(N, 0.3), WEIGHTS).items():
            assert judged[list(JUDGES).index(row), k] == pytest.approx(value, abs=2e-4)


@ALL_KERNELS
def test_sigma_is_that_of_the_same_kernel_elsewhere(kernel):
    _, member, _, _ = fitted("numbers", kernel, LARGE)
    X = COLUMNS[:4] @ member.relevance_ if kernel.name == "gaussian" else None
    X = COLUMNS[:4] * member.relevance_ if X is None else X
    exponent = 1.0 if kernel.name == "gaussian" else kernel.exponent
    given = {"kernel": kernel.name, "exponent": exponent, "sigma": member.sigma_}
    expected = ClusterNystroem(4, **given).fit(X).exact_kernel(X, X)
    assert_allclose(between(member, COLUMNS[:4], COLUMNS[:4]), expected, rtol=1e-5)


def test_exponents_below_those_of_float32_are_its_least():
    values = Kernel("laplacian", 1e-50).evaluate(np.float32([0.0, 0.5, 1.0, 2.0]), 1.0)
    assert_allclose(values, np.exp([0, -1, -1, -1]), rtol=1e-6)


def test_residuals_that_are_not_kept_are_computed_again(monkeypatch):
    _, kept, judged, _ = fitted(3, KERNELS[0], SMALL)
    monkeypatch.setattr(members, "_KEPT", 0)
    _, member, others, _ = fitted(3, KERNELS[0], SMALL)
    assert not member.near_far.residuals and not kept.near_far.residuals
    assert_allclose(others, judged, atol=1e-5)
    assert_allclose(member.predict(COLUMNS), kept.predict(COLUMNS), atol=1e-5)


def test_a_row_that_outweighs_all_others_has_a_variance(monkeypatch):
    weights = np.append(1e10, np.ones(N - 1))
    _, _, _, variances = fitted("numbers", KERNELS[0], SMALL, weights / weights.mean(), alpha=32.0)
    monkeypatch.setattr(near_far, "_SINGLE_PRODUCTS", np.inf)
    _, _, _, exact = fitted("numbers", KERNELS[0], SMALL, weights / weights.mean(), alpha=32.0)
    assert (exact > 0).all()
    assert_allclose(variances, exact, rtol=1e-3)


def test_a_scale_of_nothing_makes_rows_equal():
    given = data("numbers", SMALL)
    half = HalfScales({"laplacian": [None, np.float32([1, 0, 0])]}, JUDGES)
    coarse = np.round(COLUMNS)
    given.X["laplacian"] = coarse
    member, _, _ = fit_member(given, KERNELS[0], Hyperparameters(1, 1.0, 0.3), half)
    assert len(member.near_far.X) == len(np.unique(coarse[:, 0]))
    assert np.isfinite(member.predict(coarse)).all()


# ---------------------------------------------------------------- trials


def search_of(limits):
    given, kernel = data("numbers", limits), KERNELS[0]
    halves = [HalfScales({"laplacian": [None, SCALES["laplacian"]]}, JUDGES)]
    halves.append(HalfScales({"laplacian": [None]}, np.setdiff1d(np.arange(N), JUDGES)))
    return MemberSearch(given, halves, kernel, in_leaves=limits is SMALL)


@ALL_LIMITS
def test_trials_are_errors_of_rows_that_scales_have_not_seen(limits, monkeypatch):
    monkeypatch.setattr(near_far, "_SEARCHED", 10**6)  # all leaves
    search = search_of(limits)
    search(KERNELS[1], 1, 0.8, [0.1, 2.0])
    given = replace(search.data, limits=limits.of_trials if limits is SMALL else limits)
    for alpha in (0.1, 2.0):
        errors, weight = 0.0, 0.0
        for half in search.halves:
            point = Hyperparameters(1, 0.8, alpha)
            _, judged, _ = fit_member(given, KERNELS[1], point, half)
            weights = WEIGHTS[half.validation_rows]
            errors += weights @ np.square(judged - search.data.targets[half.validation_rows])[:, 0]
            weight += weights.sum()
        assert search.errors[KERNELS[1], point] == pytest.approx(errors / weight, rel=1e-4)


def test_many_rows_are_judged_by_some_of_them(monkeypatch):
    monkeypatch.setattr(members, "_ALL_ROWS", 30)
    monkeypatch.setattr(members, "_TRIAL_ROWS", 12)
    monkeypatch.setattr(near_far, "_SEARCHED", 20)
    few = search_of(LARGE)
    scaled_rows, rows, share = few.sample(1, few.halves[0])
    assert len(scaled_rows.X) == 12 and share == 1 and np.isin(rows, JUDGES).all()
    assert set(rows) == set(np.flatnonzero(np.isin(NUMBER, NUMBER[rows])))  # with their equals
    assert_array_equal(few.sample(0, few.halves[0])[1], rows)  # so that rounds compare
    leaves = search_of(SMALL)
    scaled_rows, rows, share = leaves.sample(1, leaves.halves[0])
    distinct = len(np.unique(NUMBER[rows]))
    assert 20 <= distinct < 45 and share == pytest.approx(distinct / 45)
    for one in (few, leaves):
        one(KERNELS[0], 0, 1.0, [0.3])
        assert 0.1 < one.errors[KERNELS[0], Hyperparameters(0, 1.0, 0.3)] < 1.5


def test_of_equal_points_the_simplest_is_chosen():
    search = search_of(LARGE)
    search.errors = {
        (KERNELS[0], Hyperparameters(1, 2.0, 1.0)): 0.5,
        (KERNELS[0], Hyperparameters(0, 1.0, 1.0)): 0.5 * (1 + 5e-6),
        (KERNELS[0], Hyperparameters(0, 1.0, 0.1)): 0.5,
        (KERNELS[1], Hyperparameters(2, 1.0, 1.0)): 0.4,
        (KERNELS[0], Hyperparameters(0, 3.0, 1.0)): 0.6,
    }
    assert search.best(KERNELS[0]) == Hyperparameters(0, 1.0, 1.0)
    assert search.best(*KERNELS) == Hyperparameters(2, 1.0, 1.0)
    assert search.best_kernel() == KERNELS[1]
    search.errors[KERNELS[0], Hyperparameters(2, 1.0, 0.1)] = 0.4 * (1 + 5e-6)
    assert search.best_kernel() == KERNELS[0]


def test_a_search_climbs_to_a_local_minimum():
    search = search_of(LARGE)
    best = search.search(KERNELS[0])
    error = search.errors[KERNELS[0], best]
    assert error == min(search.errors.values())
    for width, alpha in ((1, 4), (1, 1 / 4), (2.5, 1), (1 / 2.5, 1)):
        search(KERNELS[0], best.round, best.width * width, [best.alpha * alpha])
    near = [search.errors[key] for key in search.errors]
    assert error <= min(near) * (1 + 1e-5)


def test_one_landmark_is_enough_for_leaves():
    X = RNG.normal(size=(60, 2))
    model = KernelMachineRegressor(1, max_leaf_size=20, kernels=["laplacian"], random_state=0)
    assert model.fit(X, X[:, 0]).score(X, X[:, 0]) > 0.8


# ---------------------------------------------------------------- blends


@pytest.mark.parametrize("kind, by", blend._CLASS_MAPS)
def test_logs_of_many_classes_are_their_definition(kind, by):
    values = np.linspace(-1.5, 1.5, 12).reshape(4, 3)
    logs = class_logs(values, 3, kind, by)
    shares = (1 + values) / 2
    expected = np.exp(2 * values) if kind == "softmax" else np.maximum(shares, 0)
    gaps = np.abs(np.exp(logs) - expected)
    assert (np.diff(logs) > 0).all() and gaps.max() <= (by / 2 if kind == "share" else 0)


@pytest.mark.parametrize("kind, by", blend._MAPS)
def test_class_logs_are_their_definition(kind, by):
    values = RNG.normal(size=(5, 6))
    logs = class_logs(values, 4, kind, by)
    against = np.zeros((5, 4, 4))
    for place, (i, j) in enumerate(itertools.combinations(range(4), 2)):
        if by > 0:
            second = expit(by * values[:, place])
        else:
            second = (1 - by + np.clip(values[:, place], 0.8 * by - 1, 1 - 0.8 * by)) / (2 - 2 * by)
        against[:, i, j], against[:, j, i] = 1 - second, second
    if kind == "mean":
        masked = np.where(np.eye(4, dtype=bool), 1.0, against)
        assert_allclose(logs, np.log(masked).sum(axis=2) / 3)
        return
    for row, shares in zip(against, np.exp(logs), strict=True):
        assert shares.sum() == pytest.approx(1)
        # Stationary on the simplex: (sum of squares)' is the same for all classes.
        of_pairs = row.T * shares[:, None] - row * shares  # r_ji p_i - r_ij p_j
        slopes = (of_pairs * row.T).sum(axis=1)
        assert np.ptp(slopes) < 1e-6 * max(1, np.abs(slopes).max())


def test_calibrations_make_probabilities_of_least_loss():
    codes = RNG.integers(3, size=400)
    signs = np.array([[-1, -1, 0], [1, 0, -1], [0, 1, 1]])[codes]
    values = 0.3 * signs + 0.4 * RNG.normal(size=(400, 3))
    weights = RNG.uniform(0.5, 2, 400)
    found = ClassCalibration.of(values, codes, weights, 3)
    logs = found(values)
    assert_allclose(np.exp(logs).sum(axis=1), 1)

    def loss(one):
        logs = one(values)[np.arange(400), codes]
        penalty = 5 / 2 / weights.sum() * one.offsets @ one.offsets
        return -np.average(logs, weights=weights) + penalty

    for name, step in (("scale", 0.05), ("offsets", np.array([0.05, 0, -0.05]))):
        for sign in (-1, 1):
            moved = vars(found) | {name: getattr(found, name) + sign * step}
            assert loss(found) < loss(ClassCalibration(**moved)) + 2e-5
    assert loss(found) < loss(ClassCalibration(("mean", 1.0), 1.0, np.zeros(3), found.smoothing))


def test_weights_of_blends_are_optimal():
    targets = RNG.normal(size=(300, 1))
    values = np.stack([targets + RNG.normal(size=(300, 1)) * size for size in (0.3, 0.6, 3.0)])
    weights = RNG.uniform(0.5, 2, 300)
    found = blend.weights_of_numbers(values, targets, weights)

    def squares(w):
        rest = np.tensordot(w, values, 1) - targets
        return weights @ rest[:, 0] ** 2 + 5 * np.sum((w - 1 / 3) ** 2)

    assert found.sum() == pytest.approx(1) and (found >= 0).all()
    for i, j in itertools.permutations(range(3), 2):
        moved = found + 0.01 * (np.eye(3)[i] - np.eye(3)[j])
        if (moved >= 0).all():
            assert squares(found) < squares(moved)
    codes, logits = (targets[:, 0] > 0).astype(int), 2 * values[:, :, 0]
    found, offset = blend.weights_of_two_classes(logits, codes, weights)

    def loss(w, offset):
        margins = (2 * codes - 1) * (w @ logits + offset)
        apart = 5 / 2 / weights.sum() * (np.sum((w - 1 / 3) ** 2) + offset**2)
        return np.average(np.logaddexp(0, -margins), weights=weights) + apart

    slopes = approx_fprime(found, lambda w: loss(w, offset))
    assert_allclose(slopes[found > 0], 0, atol=1e-3)
    assert (slopes > -1e-3).all()  # of weights that are 0, the loss may rise
    assert loss(found, offset) < min(loss(found, offset + 0.05), loss(found, offset - 0.05))
    logs = np.log(np.stack([expit(-logits), expit(logits)], axis=2))
    found = blend.weights_of_classes(logs, codes, weights)
    assert found.sum() == pytest.approx(1) and found[0] > found[1] > found[2] > 0


# ---------------------------------------------------------------- tables


def frame(n=60, seed=0):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({
        "number": rng.normal(size=n),
        "count": rng.integers(5, size=n),
        "text": rng.choice(["a", "b", "c"], n),
        "flag": rng.random(n) > 0.5,
        "kind": pd.Categorical(rng.choice(["x", "y"], n)),
    })  # fmt: skip
    table.loc[::7, "number"] = np.nan
    table.loc[::9, "text"] = None
    return table


def read(X):
    class Holder:
        pass

    return read_columns(Holder(), X, reset=True)


def test_columns_are_read_by_what_they_hold():
    X = frame()
    columns, kinds = read(X)
    assert kinds == ["number", "number", "text", "category", "category"]
    assert_array_equal(columns[0], X["number"])
    assert columns[2][0] is None and columns[2][1] == X["text"][1]
    nullable = X.assign(count=X["count"].astype("Int64").where(X["count"] > 0))
    assert np.isnan(read(nullable)[0][1]).sum() == (X["count"] == 0).sum()
    objects, of_objects = read(X.to_numpy(dtype=object))
    assert of_objects == ["number", "number", "text", "category", "text"]
    assert_array_equal(objects[0], columns[0])
    polars = pytest.importorskip("polars")
    others, of_others = read(polars.from_pandas(X) if hasattr(polars, "from_pandas") else X)
    assert of_others == kinds
    assert_array_equal(others[0], columns[0])
    assert others[2].tolist() == columns[2].tolist()


def test_what_is_no_table_is_refused_by_name():
    model, y = KernelMachineClassifier(), np.arange(60) % 2
    for X, message in (
        (sp.eye_array(60), "sparse"),
        (frame().assign(day=pd.Timestamp("2020-01-01")), "day"),
        (frame().assign(number=np.inf), "infinity in column 'number'"),
        (np.full((60, 2), np.inf), "infinity"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            model.fit(X, y)
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="NumPy"):
        model.fit(torch.ones(60, 2), y)


def test_kernels_and_categories_are_checked_by_name():
    X, y = frame(), np.arange(60) % 2
    for kernels in (["rbf"], [], [("laplacian", 2.0)], ["gaussian", "gaussian"], [("gaussian", 1)]):
        with pytest.raises(ValueError, match="kernels must"):
            KernelMachineClassifier(kernels=kernels).fit(X, y)
    for categorical in ([9], ["other"], [True]):
        with pytest.raises(ValueError, match="categorical_features must"):
            KernelMachineClassifier(categorical_features=categorical).fit(X, y)
    with pytest.raises(ValueError, match="must name column 'text'"):
        KernelMachineClassifier(categorical_features=["flag", "kind"]).fit(X, y)
    names, by_dtype = np.array(list("abc")), [False, True, False]
    for given in ([0, 1], ["b", "a"], [True, True, False]):
        assert categories_of(given, by_dtype, names).tolist() == [True, True, False]


def test_levels_are_columns_and_rare_ones_share_one():
    values = np.array(["a"] * 20 + ["b"] * 15 + ["c"] * 2 + ["d"] * 1 + [None] * 11, dtype=object)
    levels = Levels.of(values)
    assert levels.n_columns == 4  # a, b, gaps, and the rest
    columns = levels(np.array(["a", "b", None, "c", "d", "new"], dtype=object))
    assert_array_equal(columns, np.eye(4)[[0, 1, 2, 3, 3, 3]])
    two = Levels.of(np.array(["no"] * 30 + ["yes"] * 2, dtype=object))
    assert two.n_columns == 1
    assert two(np.array(["no", "yes", "new"], dtype=object)).ravel().tolist() == [0, 1, 0]
    three = Levels.of(np.repeat(np.array([1.0, 2.0, 3.0]), 12))
    assert_array_equal(three(np.array([2, 7, np.nan])), [[0, 1, 0], [0, 0, 0], [0, 0, 0]])
    many = Levels.of(np.repeat(np.arange(300), 12).astype(object))
    assert many.n_columns == 129  # 128 and the rest


def test_tables_become_bent_numbers_ranks_marks_and_levels():
    X = frame()
    columns, kinds = read(X)
    columns.append(np.full(60, 3.0))  # constant
    table, encoded = Table.of(columns, np.array([*kinds, "number"]) != "number", None)
    # Two numbers and their ranks, a mark of gaps, three levels and gaps, two columns of two levels.
    assert encoded.shape == (60, 4 + 1 + 4 + 2) and encoded.dtype == np.float32
    assert table.sources.tolist() == [0, 1, 0, 1, 0, 2, 2, 2, 2, 3, 4]
    assert table.are_ranks.tolist() == [False] * 2 + [True] * 2 + [False] * 7
    assert_array_equal(encoded[::7, 4], np.ones(9))
    assert np.abs(encoded[::7, 0]).max() == 0  # the median
    known = encoded[encoded[:, 4] == 0]
    assert np.std(known[:, 2]) == pytest.approx(1, rel=1e-3)  # uniform ranks of variance 1
    assert_array_equal(table(columns), encoded)


# ---------------------------------------------------------------- estimators


def test_a_table_of_all_sorts_is_learned_from():
    X = frame(300)
    y = np.where(X["text"].isna(), "gap", np.where(X["flag"], "yes", "no"))
    model = KernelMachineClassifier(random_state=0).fit(X, y)
    assert model.score(X, y) > 0.97
    assert model.feature_names_in_.tolist() == list(X) and model.n_features_in_ == 5
    important = model.feature_importances_
    assert important.sum() == pytest.approx(1) and important[[2, 3]].sum() > 0.5
    shares = model.predict_proba(X)
    assert_allclose(shares.sum(axis=1), 1)
    assert_array_equal(model.classes_[shares.argmax(axis=1)], model.predict(X))
    assert_allclose(model.decision_function(X), np.log(shares))
    assert model.best_score_ == pytest.approx(np.log(0.95), abs=0.1)
    unseen = X.assign(text="new", kind=None)
    with pytest.warns(UserWarning, match="no level in column 'text'"):
        assert np.isfinite(model.predict_proba(unseen)).all()


@pytest.mark.parametrize("limits", [{}, {"max_leaf_size": 40, "n_components": 30}])
def test_predictions_depend_on_no_order_batch_or_names(limits):
    X, y = (part[::2] for part in load_wine(return_X_y=True))
    given = {"kernels": ["laplacian", "gaussian"], "random_state": 0, **limits}
    model = KernelMachineClassifier(**given).fit(X, y)
    shares = model.predict_proba(X)
    order = np.random.default_rng(1).permutation(len(X))
    again = KernelMachineClassifier(**given).fit(X[order], y[order])
    assert_allclose(again.predict_proba(X), shares, atol=1e-4)
    assert_allclose(model.predict_proba(X[5:7]), shares[5:7], rtol=1e-10)
    names = np.array(["a", "b", "c"])
    named = KernelMachineClassifier(**given).fit(X, names[y])
    assert_array_equal(named.predict_proba(X), shares)
    assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), shares)
    doubled = KernelMachineClassifier(**given)
    doubled.fit(np.vstack([X, X[:50]]), np.append(y, y[:50]))
    weights = np.where(np.arange(len(X)) < 50, 2, 1)
    weighted = KernelMachineClassifier(**given).fit(X, y, weights)
    assert_allclose(weighted.predict_proba(X), doubled.predict_proba(X), atol=1e-4)
    tiny = KernelMachineClassifier(**given).fit(X, y, np.full(len(X), 1e-9))
    assert_allclose(tiny.predict_proba(X), shares, atol=1e-4)


def test_members_of_no_weight_are_not_asked(monkeypatch):
    """They would take time and say nothing."""
    X, y = load_wine(return_X_y=True)
    chosen = np.array([0.0, 1.0, 0.0])
    monkeypatch.setattr(kernel_machine, "weights_of_two_classes", lambda *given: (chosen, 0.0))
    model = KernelMachineClassifier(random_state=0).fit(X, y > 0)
    assert model.estimator_weights_.tolist() == [0, 0, 0.5, 0.5, 0, 0]
    (halves,) = model._fitted.members
    assert halves == model.estimators_[2:4] and model.score(X, y > 0) > 0.95


def test_members_that_all_mislead_leave_a_prediction_for_every_row():
    X = np.array([[0.0], [1.0]])
    model = KernelMachineClassifier(random_state=0).fit(X, [0, 1])
    assert not model.estimator_weights_.any()
    assert model.predict([[0.0], [1.0], [2.0]]).shape == (3,)
    assert_allclose(model.predict_proba([[0.0], [1.0], [2.0]]), 0.5)
    assert_array_equal(model.feature_importances_, 0)


def test_deviations_cover_nine_rows_of_ten():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 2))
    y = 1e6 * (np.sin(2 * X[:, 0]) + 0.5 * rng.normal(size=900))
    model = KernelMachineRegressor(random_state=0).fit(X[:400], y[:400])
    mean, std = model.predict(X[400:], return_std=True)
    assert 0.86 < np.mean(np.abs(mean - y[400:]) < 1.645 * std) < 0.94
    assert np.median(std) == pytest.approx(5e5, rel=0.15)
    far = model.predict([[9.0, 9.0]], return_std=True)[1]
    assert far[0] > 1.1 * np.median(std)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_deviations_cover_as_many_where_members_differ_more_than_targets_are_noisy(noise):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + noise * rng.normal(size=1500)
    model = KernelMachineRegressor(random_state=0).fit(X[:400], y[:400])
    mean, std = model.predict(X[400:], return_std=True)
    assert 0.86 < np.mean(np.abs(mean - y[400:]) < 1.645 * std) < 0.94


def test_factors_of_error_bars_are_kept_but_not_pickled(monkeypatch):
    X, y = load_diabetes(return_X_y=True)
    for parameters in ({}, {"max_leaf_size": 40, "n_components": 20}):
        model = KernelMachineRegressor(random_state=0, **parameters).fit(X[:120], y[:120])
        stored = pickle.dumps(model)
        mean, std = model.predict(X, return_std=True)
        assert_array_equal(mean, model.predict(X))
        assert len(pickle.dumps(model)) == len(stored)
        with monkeypatch.context() as patch:
            patch.setattr(near_far, "factor_of", None)
            assert_array_equal(model.predict(X, return_std=True)[1], std)
        with monkeypatch.context() as patch:
            patch.setattr(near_far, "_MOST_KEPT", 0)
            other = pickle.loads(stored)
            for _ in range(2):
                assert_array_equal(other.predict(X, return_std=True)[1], std)
            assert not other.estimators_[0].posterior.factors
            patch.setattr(near_far, "_SINGLE_ALPHA", np.inf)
            assert_allclose(other.predict(X, return_std=True)[1], std, rtol=5e-5)


def test_of_many_rows_a_sample_learns_scales_and_the_others_judge(monkeypatch):
    monkeypatch.setattr(kernel_machine, "_MOST_HALVED", 300)
    for module in (kernel_machine, members):
        monkeypatch.setattr(module, "SCALE_ROWS", 100)
    judged, fit = [], members.fit_member
    monkeypatch.setattr(
        kernel_machine, "fit_member", lambda *given: judged.append(given[-1]) or fit(*given)
    )
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 3))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=900)
    model = KernelMachineRegressor(random_state=0, max_leaf_size=150).fit(X[:400], y[:400])
    assert [member.kernel_ for member in model.estimators_] == ["laplacian", "gaussian"]
    assert all(len(half.validation_rows) == 300 for half in judged)
    mean, std = model.predict(X[400:], return_std=True)
    errors = np.square(mean - y[400:]).mean() / y[:400].var()
    assert -model.best_score_ == pytest.approx(errors, rel=0.15)
    assert 0.86 < np.mean(np.abs(mean - y[400:]) < 1.645 * std) < 0.94
    assert model.feature_importances_[0] > 0.95
    few = KernelMachineClassifier(random_state=0).fit(X[:400], y[:400] > 0)
    assert few.score(X[400:], y[400:] > 0) > 0.8 and few.best_score_ > -0.5


def test_several_targets_and_scales_of_targets():
    X, y = load_diabetes(return_X_y=True)
    X, y = X[:120], np.column_stack([y, -y])[:120]
    model = KernelMachineRegressor(random_state=0).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == y.shape
    assert_allclose(mean[:, 0], -mean[:, 1], rtol=1e-3)
    for unit in (1e-150, 1e150):
        other = KernelMachineRegressor(random_state=0).fit(X, unit * y)
        assert_allclose(other.predict(X) / unit, mean, rtol=1e-3)


def test_without_relevance_all_columns_count_alike():
    X, y = load_wine(return_X_y=True)
    given = {"relevance": None, "kernels": ["gaussian", ("laplacian", 0.5)]}
    model = KernelMachineClassifier(random_state=0, **given).fit(X, y)
    assert [one.kernel_ for one in model.estimators_] == ["laplacian", "gaussian"]
    assert [one.exponent_ for one in model.estimators_] == [0.5, 2.0]
    assert all(one.relevance_ is None for one in model.estimators_)
    assert model.feature_importances_.sum() == pytest.approx(1)
    assert model.score(X, y) > 0.97


# ---------------------------------------------------------------- wide tables


@pytest.mark.parametrize("n_numbers", [0, 3, 300])
def test_distances_of_many_columns_are_their_definition(n_numbers):
    rng = np.random.default_rng(0)
    scales = rng.uniform(0.1, 2, 300).astype(np.float32)
    marks = [(rng.random((n, 300)) < 0.05) * scales for n in (40, 30)]
    X, Y = (np.hstack([part, rng.normal(size=(len(part), n_numbers))]) for part in marks)
    Y[:3] = X[:3]
    X, Y = X.astype(np.float32), Y.astype(np.float32)
    for of, order in ((l1_distances, 1), (l2_distances, 2)):
        expected = np.linalg.norm(X[:, None].astype(float) - Y[None], ord=order, axis=2)
        assert of(X, Y).dtype == np.float32
        for rows in (X, X.astype(float)):  # roots of rounding are large
            assert_allclose(of(rows, Y), expected, rtol=1e-5, atol=1e-4 if order == 1 else 0.02)


@pytest.mark.parametrize("learner", [Multipliers, GaussianMultipliers])
def test_slopes_of_many_columns_are_those_of_columns_one_by_one(learner):
    rng = np.random.default_rng(0)
    marks = (rng.random((50, 297)) < 0.1).astype(np.float32)
    X = np.hstack([rng.normal(size=(50, 3)).astype(np.float32), marks])
    targets = X[:, :1] + X[:, 5:6] + 0.1 * rng.normal(size=(50, 1))
    machine = learner(X, np.ones(50), targets)
    machine.fit((1.0, 0.1))
    at = np.arange(0, 50, 7)
    differences = X[at, None] - X
    if learner is Multipliers:
        differences = np.sign(differences)
    gradients = np.einsum("nm,mt,nmd->ntd", machine.kernel[at], machine.coef, differences)
    expected = np.einsum("n,ntd->d", machine.shares[at], gradients**2)
    assert_allclose(machine.slopes(at), expected, rtol=1e-3, atol=1e-6 * expected.max())


def test_levels_share_a_scale_and_many_columns_get_none():
    rng = np.random.default_rng(0)
    codes = rng.integers(10, size=(300, 90))
    X = pd.DataFrame(np.char.add("v", codes.astype(str)))
    y = (codes[:, 0] < 5) + 0.3 * rng.normal(size=300)
    model = KernelMachineRegressor(random_state=0).fit(X, y)
    for member in model.estimators_:
        scales = member.relevance_.reshape(90, 10)
        assert scales.ndim == 2 and np.ptp(scales, axis=1).max() == 0
        assert scales[0, 0] == scales.max() == 1 and 1 < np.sum(scales[:, 0] > 0) < 40
        assert member.near_far.X.shape[1] == np.sum(scales > 0)
    assert model.score(X, y) > 0.5


def test_tables_that_do_not_fit_are_refused_before_they_are_encoded(monkeypatch):
    monkeypatch.setattr(_memory, "available", lambda: 10**6)
    X = np.random.default_rng(0).normal(size=(200, 400))
    with pytest.raises(MemoryError, match="X of 200 rows, whose columns become 800 columns of"):
        KernelMachineRegressor().fit(X, X[:, 0])
    assert KernelMachineRegressor(kernels=["gaussian"]).fit(X[:, :20], X[:, 0]).n_features_in_ == 20


# ---------------------------------------------------------------- importances


def test_importances_are_what_permuted_columns_lose():
    """Squared errors rise by twice the variance of the part of the column."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 3))
    y = X[:, 0] + 2 * X[:, 1] + 0.1 * rng.normal(size=500)
    kernel = {"kernels": ["gaussian"], "random_state": 0}
    for parameters in ({}, {"relevance": None}, {"max_leaf_size": 100, "n_components": 50}):
        model = KernelMachineRegressor(**kernel, **parameters).fit(X, y)
        assert_allclose(model.feature_importances_, [0.2, 0.8, 0], atol=0.04)
    labels = np.digitize(X[:, 1], [-1, 1])
    model = KernelMachineClassifier(**kernel).fit(np.column_stack([X, np.ones(500)]), labels)
    assert_allclose(model.feature_importances_, [0, 1, 0, 0], atol=0.01)


@pytest.mark.filterwarnings("error")
def test_importances_of_very_few_rows_do_not_warn():
    X = np.random.default_rng(0).normal(size=(3, 4))
    model = KernelMachineRegressor(random_state=0).fit(X, X[:, 0])
    assert np.isfinite(model.feature_importances_).all()


def test_noise_of_many_levels_is_not_important():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {"x": rng.normal(size=500), "postcode": rng.integers(60, size=500).astype(str)}
    )
    X["postcode"] = "P" + X["postcode"]
    model = KernelMachineRegressor(random_state=0).fit(X, X["x"] + rng.normal(size=500))
    assert model.feature_importances_[1] < 0.05
    scales = [np.abs(member.relevance_) for member in model.estimators_[:2]]
    assert max(scale[2:].sum() / scale.sum() for scale in scales) > 0.3  # which say otherwise


def test_importances_are_computed_when_they_are_read():
    X, y = load_wine(return_X_y=True)
    model = KernelMachineClassifier(random_state=0)
    assert not hasattr(model, "feature_importances_")
    stored = pickle.dumps(model.fit(X, y))
    important = model.feature_importances_
    assert model.feature_importances_ is important
    assert_array_equal(pickle.loads(stored).feature_importances_, important)
    assert_array_equal(pickle.loads(pickle.dumps(model)).feature_importances_, important)
    chosen = SelectFromModel(model).fit(X, y).get_support()
    assert_array_equal(chosen, important >= important.mean())
    assert_array_equal(model.fit(X[:, ::-1], y).feature_importances_.shape, important.shape)
    assert model.feature_importances_ is not important


def test_lines_of_progress(capsys, monkeypatch):
    X, y = load_wine(return_X_y=True)
    model = KernelMachineClassifier(random_state=0, verbose=1)
    model.fit(X[::2], y[::2])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9 and all(line.startswith("[fit]") for line in lines)
    monkeypatch.setattr(kernel_machine, "_LONG", 0.0)
    model.fit(X[::2], y[::2])
    assert " s are expected, " in capsys.readouterr().out.splitlines()[1]


def test_long_fits_are_expected_to_be_long():
    """About 50 s for 200,000 rows, and ten times as many take ten times as long."""
    seconds = []
    for n in (200_000, 2_000_000):
        X, limits = dict.fromkeys(SCALES, np.zeros((n, 1), np.float32)), Limits(400, 2500)
        given = replace(data("numbers"), X=X, limits=limits)
        seconds.append(given.expected_seconds(n_members=2))
    assert 30 < seconds[0] < 90 and seconds[1] == pytest.approx(10 * seconds[0], rel=0.01)
    two, three = (data(kind).expected_seconds(n_members=2) for kind in (2, 3))
    assert three > 2 * two


def test_many_classes_share_one_regression():
    rng = np.random.default_rng(0)
    centers, codes = 3 * rng.normal(size=(35, 6)), np.arange(35 * 16) % 35
    X = centers[codes] + rng.normal(size=(len(codes), 6))
    model = KernelMachineClassifier(random_state=0).fit(X[:280], codes[:280])
    assert all(member.coef.shape[1] == 35 for member in model.estimators_)
    assert len(pickle.dumps(model)) < 3e6
    shares = model.predict_proba(X[280:])
    assert_allclose(shares.sum(axis=1), 1)
    loss = -np.mean(np.log(shares[np.arange(280), codes[280:]]))
    assert model.score(X[280:], codes[280:]) > 0.8
    assert loss == pytest.approx(-model.best_score_, abs=0.2)
    assert model.feature_importances_.min() > 0.05


@pytest.mark.filterwarnings("ignore:The number of unique classes:UserWarning")
@pytest.mark.parametrize("rows", ["two", "one a class", "equal", "one class", "gaps"])
def test_hostile_tables(rows):
    X, y = RNG.normal(size=(24, 3)), np.arange(24) % 3
    if rows == "two":
        X, y = X[:2], [0, 1]
    elif rows == "one a class":
        y = np.arange(24)
    elif rows == "equal":
        X = np.ones((24, 3))
    elif rows == "one class":
        y = np.full(24, "a")
    elif rows == "gaps":
        X[:, 1] = np.nan
    model = KernelMachineClassifier(random_state=0).fit(X, y)
    shares = model.predict_proba(X)
    assert_allclose(shares.sum(axis=1), 1)
    assert np.isin(model.predict(X), y).all() and np.isfinite(model.decision_function(X)).all()
    total = model.feature_importances_.sum()
    assert total == 0 or total == pytest.approx(1)  # y is noise
    if rows == "equal":
        assert_allclose(shares, 1 / 3, atol=0.02)
    if rows != "one class":
        model = KernelMachineRegressor(random_state=0).fit(X, y)
        mean, std = model.predict(X, return_std=True)
        assert np.isfinite(mean).all() and np.isfinite(std).all()


@pytest.mark.parametrize("unit", [1e-150, 1e146])
def test_units_of_columns_do_not_matter(unit):
    X, y = load_wine(return_X_y=True)
    expected = KernelMachineClassifier(random_state=0).fit(X, y).predict_proba(X)
    found = KernelMachineClassifier(random_state=0).fit(unit * X, y).predict_proba(unit * X)
    assert_allclose(found, expected, atol=1e-3)


def test_real_tables_are_learned(mixed_tables=("psid_earnings", "tuna_choice")):
    import os

    folder = os.environ.get("SKRF_MIXED_DIR")
    if not folder:
        pytest.skip("SKRF_MIXED_DIR is not set")
    for name in mixed_tables:
        table = pd.read_csv(f"{folder}/{name}.csv.gz").sample(600, random_state=0)
        X, y = table.drop(columns="target"), table["target"]
        is_number = name == "psid_earnings"
        kind = KernelMachineRegressor if is_number else KernelMachineClassifier
        parts = train_test_split(X, y, random_state=0, test_size=200)
        model = kind(random_state=0).fit(parts[0], parts[2])
        assert model.score(parts[1], parts[3]) > (0.2 if is_number else 0.4)


def test_weights_are_no_twins():
    """A part of a row that stays would know its target, and leave-one-out would memorise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    y = X[:, 0] + rng.normal(size=400)
    plain = KernelMachineRegressor(random_state=0).fit(X[:200], y[:200]).predict(X[200:])
    for weights in (np.full(200, 1.1), np.full(200, 1e6 + 0.5), np.full(200, 1e-300)):
        other = KernelMachineRegressor(random_state=0).fit(X[:200], y[:200], weights)
        assert_allclose(other.predict(X[200:]), plain, atol=1e-3)
    odd = np.ones(200)
    odd[::10] = 1e-300
    found = KernelMachineRegressor(random_state=0).fit(X[:200], y[:200], odd)
    assert found.score(X[200:], y[200:]) > 0.3


def test_factors_of_classes_leave_with_their_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1600, 3))
    y = (X[:, 0] + 0.7 * rng.normal(size=1600) > 1.5).astype(int)
    for weights in ("balanced", {0: 1, 1: 12}):
        model = KernelMachineClassifier(class_weight=weights, random_state=0).fit(X[:600], y[:600])
        found = model.predict(X[600:])
        shares = [np.mean(found[y[600:] == k] == k) for k in range(2)]
        assert min(shares) > 0.65
    # Of two classes, a share of one row of 600 is unknown.
    known = expit(model.decision_function(X[600:])) * (1 - 1 / 600) + 0.5 / 600
    assert_allclose(model.predict_proba(X[600:])[:, 1], known)
    rest = KernelMachineClassifier(class_weight={2: 0}, random_state=0)
    rest.fit(X[:200], np.arange(200) % 3)
    assert rest.classes_.tolist() == [0, 1]


def test_weights_of_classes_name_classes():
    X, y = np.arange(30.0)[:, None], np.arange(30) % 3
    message = r"class_weight names \['1', 7\], which are not in array\(\[0, 1, 2\]\)"
    with pytest.raises(ValueError, match=message):
        KernelMachineClassifier(class_weight={0: 2, "1": 3, 7: 1}).fit(X, y)
    model = KernelMachineClassifier(class_weight={2: 3.0}, kernels=["laplacian"])
    assert model.fit(X, y, y < 2).classes_.tolist() == [0, 1]  # a class whose rows have weight 0


@pytest.mark.parametrize("kernels", [["gaussian"], ["laplacian", "gaussian"]])
def test_penalties_that_are_lost_in_rounding_are_not_chosen(kernels):
    """Smooth kernels of many rows, near to each other or equal, are singular in float32."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 200, (1000, 1)).astype(float)
    y = np.sin(X[:, 0] / 40)
    model = KernelMachineRegressor(kernels=kernels, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.999
    X = rng.normal(size=(900, 3))
    given = {"kernels": kernels, "max_leaf_size": 150, "n_components": 60, "random_state": 0}
    model = KernelMachineClassifier(**given).fit(X, X[:, 0] + X[:, 1] > 0)
    assert model.score(X, X[:, 0] + X[:, 1] > 0) > 0.97


def test_deviations_of_several_targets_are_their_own():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    y = np.column_stack([X[:, 0], rng.normal(size=600)])
    model = KernelMachineRegressor(random_state=0).fit(X[:300], y[:300])
    mean, std = model.predict(X[300:], return_std=True)
    covered = np.mean(np.abs(mean - y[300:]) < 1.645 * std, axis=0)
    assert covered[0] > 0.84 and 0.84 < covered[1] < 0.95  # of both together .80


def test_rows_that_are_no_longer_numbers_are_refused():
    X = pd.DataFrame({"a": np.arange(40.0), "b": np.arange(40) % 3})
    model = KernelMachineRegressor(random_state=0).fit(X, X["a"])
    with pytest.raises(TypeError, match="numbers in column 'a'"):
        model.predict(X.astype({"a": str}))
    assert np.isfinite(model.predict(pd.DataFrame({"a": [1e300, -1e300], "b": [1, 1e308]}))).all()
    for column, message in ([{"k": 1}] * 40, "dict"), ([1j] * 40, "complex"):
        with pytest.raises(TypeError, match=f"{message} in column"):
            model.fit(X.assign(b=pd.Series(column, dtype=object)), X["a"])


def test_one_thread_of_blas_serves_fits_predictions_and_importances(monkeypatch):
    """Two made the fit of 1,000 rows take twice as long."""
    controller, n_threads = ThreadpoolController().select(user_api="blas"), []

    def counted(function):
        def call(*args, **kwargs):
            n_threads.append(max(library.num_threads for library in controller.lib_controllers))
            return function(*args, **kwargs)

        return call

    X, y = load_diabetes(return_X_y=True)
    with threadpool_limits(2, user_api="blas"):
        monkeypatch.setattr(kernel_machine, "fit_member", counted(fit_member))
        model = KernelMachineRegressor(kernels=["laplacian"], random_state=0).fit(X[:80], y[:80])
        kind = type(model.estimators_[0])
        for name in ("predict", "predict_in_leaf"):
            monkeypatch.setattr(kind, name, counted(getattr(kind, name)))
        model.predict(X[:2])
        model.predict(X[:2], return_std=True)
        assert model.feature_importances_.sum() == pytest.approx(1)
        assert max(library.num_threads for library in controller.lib_controllers) == 2
    assert len(n_threads) > 6 and set(n_threads) == {1}


def test_meta_estimators_take_it():
    X, y = frame(100), np.arange(100) % 2
    scores = cross_val_score(KernelMachineClassifier(kernels=["laplacian"]), X, y, cv=2)
    assert scores.shape == (2,)
