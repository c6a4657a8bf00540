"""Near rows exact, far rows through landmarks: equal to dense matrices, row by row."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skrf import (
    ApproxKernelRidge,
    ApproxKernelRidgeClassifier,
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
    ClusterNystroem,
    RFFSampler,
)
from skrf.features import as_feature_map
from skrf.regression import near_far
from skrf.regression.decide import Decision, of_all_classes
from skrf.regression.near_far import (
    NearFarKernel,
    Tree,
    _cut_of,
    factor_of,
    leave_one_out,
    sampled,
    solve_near_far,
)
from skrf.regression.search import HeldOutPredictions

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 3))
X[60:75] = X[:15]  # equal rows, with targets of their own
y = np.column_stack([np.sin(X[:, 0]) + 0.2 * RNG.normal(size=90), X[:, 1] ** 2])
WEIGHTS = RNG.uniform(0.3, 3.0, 90)
Q = np.vstack([RNG.normal(size=(20, 3)), X[:3]])
MAP = ClusterNystroem(12, sigma=0.8, random_state=0)
KERNELS = {
    "gaussian": lambda A, B: rbf_kernel(A, B, gamma=0.5),
    "laplacian": lambda A, B: laplacian_kernel(A, B, gamma=1.0),
}


def near(model=ApproxKernelRidge, **params):
    given = {"alpha": 0.2, "max_leaf_size": 20, **params}
    return model(clone(MAP), **given)


class Dense:
    """The kernel as a matrix of all rows, and what follows from it without any trick."""

    def __init__(self, model, rows, weights, alpha, kernel="gaussian"):
        self.model, self.rows, self.weights = model, rows, weights
        self.kernel = lambda A, B: KERNELS[kernel](A * model.sigma_, B * model.sigma_)
        self.near_far = model._fitted.solution.near_far
        self.A = self.between(rows, rows) + np.diag(alpha / weights)
        inverse = np.linalg.inv(self.A)
        ones = inverse.sum(axis=1)
        self.alpha, self.total, self.ones = alpha, ones.sum(), ones
        self.inverse, self.centred = inverse, inverse - np.outer(ones, ones) / ones.sum()

    def leaves(self, rows):
        return self.near_far.tree.leaf_of(self.near_far.coordinates(rows))

    def between(self, A, B):
        features = [self.model.feature_map_.transform(rows) for rows in (A, B)]
        far = features[0] @ features[1].T
        alike = np.equal.outer(self.leaves(A), self.leaves(B))
        return np.where(alike, self.kernel(A, B), far)

    def predict(self, Q, targets):
        coef = self.centred @ targets
        level = self.ones @ targets / self.total
        return self.between(Q, self.rows) @ coef + level

    def leave_one_out(self, targets):
        """Return predictions of every row by a solve without it."""
        K, predicted = self.between(self.rows, self.rows), []
        for i in range(len(self.rows)):
            kept = np.arange(len(self.rows)) != i
            A = K[np.ix_(kept, kept)] + np.diag(self.alpha / self.weights[kept])
            inverse = np.linalg.inv(A)
            ones = inverse.sum(axis=1)
            level = ones @ targets[kept] / ones.sum()
            predicted.append(K[i, kept] @ inverse @ (targets[kept] - level) + level)
        return np.array(predicted)

    def variances(self, Q):
        cross = self.between(Q, self.rows)
        covariances = self.between(Q, Q) - cross @ self.inverse @ cross.T
        gaps = 1 - cross @ self.ones
        return (covariances + np.outer(gaps, gaps) / self.total) / self.alpha


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize("alpha", [0.2, 1e-5])  # in float32 and float64
def test_predictions_are_those_of_the_dense_kernel(kernel, weights, alpha):
    model = near(alpha=alpha).set_params(feature_map__kernel=kernel).fit(X, y, weights)
    dense = Dense(model, X, np.ones(90) if weights is None else weights, alpha, kernel)
    assert len(np.unique(dense.leaves(X))) > 3
    tolerance = 2e-4 if alpha > 1e-4 else 1e-6
    assert_allclose(model.predict(Q), dense.predict(Q, y), rtol=tolerance, atol=tolerance)
    assert np.linalg.eigvalsh(dense.between(X, X)).min() > -1e-10  # positive definite


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_deviations_and_covariances_are_those_of_the_dense_kernel(weights):
    model = near(noise_variance=0.1).fit(X, y[:, 0], weights)
    dense = Dense(model, X, np.ones(90) if weights is None else weights, 0.1)
    expected = 0.1 * (dense.variances(Q) + np.eye(len(Q)))
    mean, covariances = model.predict(Q, return_cov=True)
    assert_allclose(covariances, expected, rtol=1e-3, atol=1e-4)
    assert_allclose(model.predict(Q, return_std=True)[1], np.sqrt(np.diag(expected)), rtol=1e-4)
    assert_allclose(mean, dense.predict(Q, y[:, 0]), rtol=1e-3, atol=1e-4)
    # The noise as estimated: residuals over what is left of the rows.
    free = near().fit(X, y)
    dense = Dense(free, X, np.ones(90), 0.2)
    residuals = 0.2 * dense.centred @ y
    left = 90 - np.trace(np.eye(90) - 0.2 * dense.centred)
    assert_allclose(free.noise_variance_, (residuals**2).sum(axis=0) / left, rtol=1e-4)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_error_bars_with_the_noise_as_estimated(weights):
    """Weights and repetitions have a scale; one leaf is the exact kernel."""
    exact = ApproxKernelRidge("exact", sigma=0.8, alpha=0.2).fit(X, y, weights)
    leaf, several = (near(max_leaf_size=n).fit(X, y, weights) for n in (90, 20))
    assert_allclose(leaf.noise_variance_, exact.noise_variance_, rtol=1e-6)
    for name in ("return_std", "return_cov"):
        expected, actual = (model.predict(Q, **{name: True})[1] for model in (exact, leaf))
        assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    dense = Dense(several, X, np.ones(90) if weights is None else weights, 0.2)
    variances = np.diagonal(dense.variances(Q)) / several._fitted.sizes.scale + 1
    found = several.predict(Q, return_std=True)[1] ** 2 / several.noise_variance_
    assert_allclose(found, np.outer(variances, [1, 1]), rtol=1e-4)


@pytest.mark.parametrize("alpha", [0.3, 1e-5])
@pytest.mark.parametrize("weights", [np.ones(90), WEIGHTS], ids=["plain", "weighted"])
def test_leave_one_out_is_its_definition(weights, alpha):
    """A row leaves with its whole weight, its equals stay."""
    model = near(alpha=alpha).fit(X, y, weights)
    near_far = NearFarKernel.of(as_feature_map(model.feature_map_), X, 20)
    distinct = near_far.distinct_rows(np.arange(90), weights)
    of_rows = np.full(len(distinct.kept), alpha)  # the same as a number
    solution = solve_near_far(near_far, distinct, distinct.means(y), of_rows)
    predicted, inverse = leave_one_out(solution, distinct, y, of_rows, weights)
    assert_array_equal(predicted, leave_one_out(solution, distinct, y, alpha, weights)[0])
    single = np.bincount(distinct.row_to_distinct)[distinct.row_to_distinct] == 1
    dense = Dense(model, X, weights, alpha)
    assert_allclose(inverse[single], np.diagonal(dense.centred)[single], rtol=1e-3)
    for i in (0, 7, 33, 60, 89):
        kept = np.arange(90) != i
        dense = Dense(model, X[kept], weights[kept], alpha)
        expected = dense.predict(X[i : i + 1], y[kept])[0]
        assert_allclose(predicted[i], expected, rtol=2e-3 if alpha > 1e-4 else 1e-5, atol=1e-4)


def test_a_sample_of_leaves_stands_for_all():
    feature_map = as_feature_map(clone(MAP).fit(X))
    near_far = NearFarKernel.of(feature_map, X, 20)
    errors = []
    for leaves in (range(near_far.tree.n_leaves), [0, 2]):
        rows = np.flatnonzero(np.isin(near_far.tree.leaf_of(X * MAP.sigma), leaves))
        distinct = near_far.distinct_rows(rows, np.ones(len(rows)))
        share = len(rows) / len(X)
        solution = solve_near_far(near_far, distinct, distinct.means(y[rows]), 0.3, share)
        errors.append(np.full(y.shape, np.nan))
        errors[-1][rows] = (
            leave_one_out(solution, distinct, y[rows], 0.3, np.ones(len(rows)))[0] - y[rows]
        )
        if share < 1:  # without the factor, landmarks are penalised too much
            poor = solve_near_far(near_far, distinct, distinct.means(y[rows]), 0.3)
            assert np.abs(poor.beta).max() < np.abs(solution.beta).max()
    known = np.isfinite(errors[1][:, 0])
    assert 30 < known.sum() < 60
    assert np.corrcoef(errors[0][known, 0], errors[1][known, 0])[0, 1] > 0.9


@pytest.mark.parametrize("model", [ApproxKernelRidge, ApproxKernelRidgeClassifier])
def test_one_leaf_is_the_exact_kernel(model):
    targets = y[:, 0] if model is ApproxKernelRidge else (y[:, 0] > 0) + (y[:, 1] > 1)
    exact = model("exact", sigma=0.8, alpha=1e-5).fit(X, targets, WEIGHTS)
    leaf = near(model, alpha=1e-5, max_leaf_size=90).fit(X, targets, WEIGHTS)
    method = "predict" if model is ApproxKernelRidge else "decision_function"
    expected, actual = (getattr(fitted, method)(Q) for fitted in (exact, leaf))
    assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert leaf._fitted.solution.near_far.tree.n_leaves == 1


@pytest.mark.parametrize("decision", ["auto", "argmax", "one-vs-one"])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_classes_are_those_of_dense_problems(decision, n_classes):
    labels = np.digitize(y[:, 0], [0.0] if n_classes == 2 else [-0.5, 0, 0.5])
    model = near(ApproxKernelRidgeClassifier, decision=decision, alpha=1e-3).fit(X, labels)
    pairs = [(0, 1)] if n_classes == 2 else [(i, j) for i in range(4) for j in range(i + 1, 4)]
    if decision == "argmax" and n_classes > 2:
        dense = Dense(model, X, np.ones(90), 1e-3)
        expected = dense.predict(Q, np.where(labels[:, None] == np.arange(4), 1.0, -1.0))
        assert_allclose(model.decision_function(Q), expected, rtol=1e-2, atol=2e-3)
        return
    values = []
    for first, second in pairs:
        rows = np.isin(labels, (first, second))
        dense = Dense(model, X[rows], np.ones(rows.sum()), 1e-3)
        values.append(dense.predict(Q, np.where(labels[rows] == second, 1.0, -1.0)))
    actual, _ = model._values(Q)
    assert_allclose(actual, np.column_stack(values), rtol=1e-2, atol=3e-3)
    assert model.decisions_ == ("argmax" if n_classes == 2 else "one-vs-one")


def test_a_problem_may_have_no_rows_in_a_leaf(capfd):
    labels = np.digitize(X[:, 0], [-1, 0, 1])  # classes lie in some leaves only
    model = near(ApproxKernelRidgeClassifier, max_leaf_size=4, alpha=1e-3).fit(X, labels)
    assert np.isfinite(model.decision_function(Q)).all() and model.score(X, labels) > 0.9
    assert capfd.readouterr().out == ""  # LAPACK prints where it gets no rows


def test_weights_are_repetitions_and_order_does_not_matter():
    counts = np.arange(90) % 3 + 1
    order = RNG.permutation(np.repeat(np.arange(90), counts))
    weighted = near(alpha=1e-5).fit(X, y, counts)
    kept = FrozenEstimator(weighted.feature_map_)
    repeated = ApproxKernelRidge(kept, alpha=1e-5, max_leaf_size=20).fit(X[order], y[order])
    assert_allclose(repeated.predict(Q), weighted.predict(Q), rtol=1e-6, atol=1e-8)


def test_predictions_do_not_depend_on_the_batch():
    model = near().fit(X, y)
    whole = model.predict(Q)
    for i in range(0, len(Q), 5):
        assert_allclose(model.predict(Q[i : i + 1])[0], whole[i], rtol=1e-9)
    assert_allclose(model.predict(Q.astype(np.float32)), whole, rtol=1e-3, atol=1e-3)
    assert_array_equal(pickle.loads(pickle.dumps(model)).predict(Q), whole)


def test_leaves_are_pure_and_never_empty():
    rows = np.round(RNG.normal(size=(500, 4)), 1) * [1, 0, 100, 1]
    distinct = np.unique(rows, axis=0)
    tree = Tree.of(distinct, 40)
    leaves = tree.leaf_of(distinct)
    sizes = np.bincount(leaves, minlength=tree.n_leaves)
    assert sizes.min() >= 1 and sizes.max() <= 40
    assert_array_equal(tree.leaf_of(distinct[::-1])[::-1], leaves)
    ties = np.column_stack([np.arange(60) // 59, np.arange(60) % 2, np.arange(60) // 2])
    assert np.bincount(Tree.of(ties.astype(float), 20).leaf_of(ties)).max() <= 20


def test_cuts_leave_a_fifth_of_the_rows_on_either_side():
    """Of the widest column that allows it, else a tenth, else half of them in order."""
    places = np.arange(1000.0)
    rare, some, few = (1e6 * (places < n) for n in (199, 202, 3))

    def cut(*columns):
        found = _cut_of(np.column_stack(columns))
        return found.columns.tolist(), found.values.tolist()

    assert cut(places, rare) == ([0], [499.5])
    assert cut(places, some) == ([1], [5e5])
    assert cut(10 * few, rare) == ([1], [5e5])
    assert cut(few, places < 99) == ([0, 1], [0, 0])
    columns, _ = cut(*np.eye(50))
    assert columns == list(range(50))


@pytest.mark.parametrize("container", [np.asarray, sp.csr_array])
def test_one_hot_columns_of_many_values_make_no_deep_tree(container):
    rows, targets = np.eye(600)[np.arange(1200) % 600], np.arange(1200) % 600 / 600.0
    model = ApproxKernelRidge(ClusterNystroem(8), sigma=8.0, alpha=1e-3, max_leaf_size=6)
    model.fit(container(rows), targets)
    tree = model._fitted.solution.near_far.tree
    assert 100 <= tree.n_leaves <= 240  # halves of halves, where each row was a leaf before
    assert_allclose(pickle.loads(pickle.dumps(model)).predict(rows), targets, atol=0.05)


@pytest.mark.parametrize(
    "rows",
    [
        np.ones((8, 2)),
        np.repeat(np.eye(3), 40, axis=0),
        np.column_stack([np.arange(50.0), np.zeros(50)]),
        np.outer(np.arange(50.0) ** 6, [1, 1e-3]),
        np.eye(2),
    ],
    ids=["all equal", "three rows", "constant column", "heavy", "two rows"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hostile_tables(rows, dtype):
    targets = np.arange(len(rows)) % 3.0
    model = ApproxKernelRidge(ClusterNystroem(5), alpha=1e-3, max_leaf_size=6)
    model.fit(rows.astype(dtype), targets)
    assert np.isfinite(model.predict(rows.astype(dtype))).all()
    classes = np.arange(len(rows)) % 2
    other = ApproxKernelRidgeClassifier(ClusterNystroem(5), alpha=1e-3, max_leaf_size=6)
    assert np.isfinite(other.fit(rows.astype(dtype), classes).decision_function(rows)).all()


def test_float32_is_used_from_a_limit_on_and_where_its_residual_is_small():
    K, signs = rbf_kernel(X[:60], gamma=0.3), (-1.0) ** np.arange(300)
    assert factor_of(K + 9.8e-5 * np.eye(60), 9.8e-5).dtype == np.float64
    assert factor_of(K + 0.1 * np.eye(60), 0.1).dtype == np.float32
    # A solution at right angles to the one large eigenvalue is rounding, as that for ones here.
    S = np.outer(signs, signs) + 1.1e-4 * np.eye(300)
    assert factor_of(S, 1.1e-4).dtype == np.float64
    assert factor_of(1e300 * np.eye(60), 1e300).dtype == np.float64
    with pytest.raises(np.linalg.LinAlgError, match="alpha is lost in the rounding of a leaf"):
        factor_of(K - np.eye(60), 0.0)


@pytest.mark.parametrize("alpha", [1e-4, 1e-2])
def test_float32_costs_no_accuracy(alpha, monkeypatch):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(600, 3))
    targets = np.sin(rows[:, 0]) + 0.5 * rng.normal(size=600)
    model = near(alpha=alpha, max_leaf_size=600)
    found = model.fit(rows, targets).predict(rows)
    monkeypatch.setattr(near_far, "_SINGLE_ALPHA", np.inf)
    expected = model.fit(rows, targets).predict(rows)
    assert_allclose(found, expected, atol=2e-3)


@pytest.mark.parametrize("sigma", [0.02, 0.2])
def test_sums_of_leaves_keep_small_directions_beside_large_ones(sigma, monkeypatch):
    """Features of a wide kernel have one large direction, whose rounding exceeds the others."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1000, 3))
    targets = np.sin(rows[:, :1]) + 0.5 * rng.normal(size=(1000, 1))
    feature_map = ClusterNystroem(30, sigma=sigma, centers="random", random_state=0).fit(rows)
    kernel = NearFarKernel.of(as_feature_map(feature_map), rows, 250)
    distinct = kernel.distinct_rows(np.arange(1000), np.ones(1000))
    found = []
    for least in (near_far._SINGLE_ALPHA, np.inf):
        monkeypatch.setattr(near_far, "_SINGLE_ALPHA", least)
        solution = solve_near_far(kernel, distinct, targets, 1e-4, share=0.02)
        found.append(leave_one_out(solution, distinct, targets, 1e-4, np.ones(1000))[0])
    assert_allclose(*found, atol=5e-6)


@pytest.mark.parametrize("library", ["torch", "array_api_strict"])
def test_rows_of_other_libraries_are_predicted(library):
    xp = pytest.importorskip(library)
    model, rows = near().fit(X, y), xp.asarray(Q)
    for given in ({}, {"return_std": True}, {"return_cov": True}):
        expected, found = model.predict(Q, **given), model.predict(rows, **given)
        pairs = zip(expected, found, strict=True) if given else [(expected, found)]
        for one, other in pairs:
            assert_allclose(np.asarray(other), one, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("decision", ["auto", "argmax"])
def test_the_last_class_may_have_no_weight(decision):
    codes = np.arange(90) % 3
    model = near(ApproxKernelRidgeClassifier, decision=decision, class_weight={2: 0})
    assert set(model.fit(X, codes).predict(Q)) == {0, 1}


def test_what_near_and_far_cannot_do_is_refused_by_name():
    model = near().fit(X, y)
    assert not hasattr(model, "partial_fit") and not hasattr(model, "merge")
    assert not hasattr(model, "component_coef_")
    with pytest.raises(ValueError, match="max_leaf_size=20 keeps all rows"):
        near().fit_batches([(X, y)])
    with pytest.raises(ValueError, match="sample_y draws no functions.*fitted with max_leaf_size"):
        model.set_params(max_leaf_size=None).sample_y(Q)
    with pytest.raises(ValueError, match="max_leaf_size=20 needs a map of landmarks.*RFFSampler"):
        near().set_params(feature_map=RFFSampler(8)).fit(X, y)
    with pytest.raises(ValueError, match="max_leaf_size=20 needs alpha to be a number"):
        near(alpha="evidence").fit(X, y)
    with pytest.raises(ValueError, match="decision must not be 'discriminants'"):
        near(ApproxKernelRidgeClassifier, decision="discriminants").fit(X, np.arange(90) % 3)
    with pytest.raises(ValueError, match="max_leaf_size"):
        near(max_leaf_size=1).fit(X, y)
    strict = pytest.importorskip("array_api_strict")
    with pytest.raises(TypeError, match="max_leaf_size=20 needs rows of NumPy"):
        near().fit(strict.asarray(X), strict.asarray(y))


def test_pipelines_and_sparse_rows():
    piped = make_pipeline(StandardScaler(), ClusterNystroem(12, sigma=0.8, random_state=0))
    model = ApproxKernelRidge(piped, alpha=1e-5, max_leaf_size=20).fit(X, y)
    scaled = StandardScaler().fit(X)
    plain = near(alpha=1e-5).fit(scaled.transform(X), y)
    assert_allclose(model.predict(Q), plain.predict(scaled.transform(Q)), rtol=1e-6)
    sparse = near(alpha=1e-5).fit(sp.csr_array(X), y)
    assert_allclose(
        sparse.predict(sp.csr_array(Q)), near(alpha=1e-5).fit(X, y).predict(Q), rtol=1e-6
    )


# ---------------------------------------------------------------- searches

SIGMAS, ALPHAS = [0.5, 0.8], [0.2, 1e-3, 3.0]
SOME = slice(30, 80)  # with equal rows
SEARCHES = ApproxKernelRidgeCV, ApproxKernelRidgeClassifierCV


def searched(model=ApproxKernelRidgeCV, **params):
    given = {"sigmas": SIGMAS, "alphas": ALPHAS, "max_leaf_size": 20, **params}
    return model(clone(MAP).set_params(centers="random"), **given)


def dense_at(sigma, alpha, rows=slice(None), weights=None):
    """Return the dense kernel of some of the rows under the landmarks of a search."""
    feature_map = clone(MAP).set_params(centers="random", sigma=sigma)
    model = ApproxKernelRidge(feature_map, alpha=alpha, max_leaf_size=20)
    model.fit(X[SOME], y[SOME], weights)
    weights = np.ones(50) if weights is None else weights
    return Dense(model, X[SOME][rows], weights[rows], alpha)


@pytest.mark.parametrize("weights", [None, WEIGHTS[SOME]], ids=["plain", "weighted"])
def test_a_search_is_judged_by_leave_one_out(weights):
    model = searched().fit(X[SOME], y[SOME], weights)
    expected = []
    for sigma in SIGMAS:
        for alpha in ALPHAS:
            predicted = dense_at(sigma, alpha, weights=weights).leave_one_out(y[SOME])
            errors = np.average((predicted - y[SOME]) ** 2, axis=0, weights=weights)
            expected.append(-errors.mean())
    table = model.cv_results_
    assert_allclose(table["mean_test_score"], expected, rtol=1e-3)
    assert_array_equal(table["param_alpha"], np.tile(ALPHAS, 2))
    place = np.argmax(expected)
    assert (model.sigma_, model.alpha_) == (SIGMAS[place // 3], ALPHAS[place % 3])
    assert_allclose(model.best_score_, max(expected), rtol=1e-3)
    assert model.n_samples_searched_ == 50
    # The fit is that of the plain estimator there.
    plain = ApproxKernelRidge(
        clone(MAP).set_params(centers="random", sigma=model.sigma_),
        alpha=model.alpha_,
        max_leaf_size=20,
    ).fit(X[SOME], y[SOME], weights)
    for one, other in zip(model.predict(Q, True), plain.predict(Q, True), strict=True):
        assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("decision", ["auto", "argmax"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_decisions_of_a_search_read_values_of_rows_left_out(n_classes, decision, monkeypatch):
    """Rows of other classes than those of a pair are predicted by all rows of the pair."""
    labels = np.digitize(y[SOME, 0], [0.0] if n_classes == 2 else [-0.5, 0.5])
    seen, known_decisions = [], HeldOutPredictions.known_decisions

    def noted(predictions, place, *given):
        seen.append(predictions.values[place])
        return known_decisions(predictions, place, *given)

    given = {"sigmas": [0.8], "alphas": [1e-2, 0.2], "decision": decision}
    with monkeypatch.context() as context:
        context.setattr(HeldOutPredictions, "known_decisions", noted)
        searched(ApproxKernelRidgeClassifierCV, scoring="accuracy", **given).fit(X[SOME], labels)
    accuracies = []
    for place, alpha in enumerate(given["alphas"]):
        expected = []
        pairs = [(0, 1)] if n_classes == 2 else [(0, 1), (0, 2), (1, 2)]
        if decision == "argmax" and n_classes > 2:
            targets = np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
            expected = dense_at(0.8, alpha).leave_one_out(targets).T
        for first, second in pairs if not len(expected) else ():
            rows = np.isin(labels, (first, second))
            dense, targets = dense_at(0.8, alpha, rows), 2.0 * (labels[rows] == second) - 1
            values = dense.predict(X[SOME], targets)
            values[rows] = dense.leave_one_out(targets)
            expected.append(values)
        assert_allclose(seen[place], np.transpose(expected), rtol=2e-3, atol=2e-3)
        signs = seen[place]
        best = signs[:, 0] > 0 if n_classes == 2 else _best(signs, decision)
        accuracies.append(np.mean(best == labels))
    model = searched(ApproxKernelRidgeClassifierCV, **given).fit(X[SOME], labels)
    name = "argmax" if n_classes == 2 or decision == "argmax" else "one-vs-one"
    assert model.decisions_ == name
    if n_classes == 2 or decision == "auto":
        best = np.array(accuracies) == max(accuracies)
        assert model.alpha_ == np.max(given["alphas"], where=best, initial=0.0)
    assert_allclose(model.predict_proba(Q).sum(axis=1), 1.0)
    plain = near(ApproxKernelRidgeClassifier, alpha=model.alpha_, decision=model.decisions_)
    plain.set_params(feature_map=FrozenEstimator(model.feature_map_)).fit(X[SOME], labels)
    assert_allclose(model.decision_function(Q), plain.decision_function(Q), rtol=1e-6)


def _best(values, decision):
    if decision == "argmax":
        return values.argmax(axis=1)
    votes = np.zeros((len(values), 3))
    for column, (first, second) in enumerate([(0, 1), (0, 2), (1, 2)]):
        fractions = np.tanh(values[:, column]) / 6
        votes[:, second] += (values[:, column] > 0) + fractions
        votes[:, first] += (values[:, column] <= 0) - fractions
    return votes.argmax(axis=1)


def test_labels_of_several_columns_are_searched():
    labels = (y[SOME] > np.median(y[SOME], axis=0)).astype(int)
    model = searched(ApproxKernelRidgeClassifierCV, sigmas=[0.8]).fit(X[SOME], labels)
    expected = []
    for alpha in ALPHAS:
        predicted = dense_at(0.8, alpha).leave_one_out(2.0 * labels - 1)
        expected.append(-np.mean((predicted - (2.0 * labels - 1)) ** 2))
    assert_allclose(model.cv_results_["mean_test_score"], expected, rtol=1e-3)
    assert model.predict(Q).shape == (len(Q), 2)


def test_weights_of_a_search_are_repetitions():
    counts = np.arange(90) % 3 + 1
    order = RNG.permutation(np.repeat(np.arange(90), counts))
    kept = FrozenEstimator(clone(MAP).fit(X))
    given = {"sigmas": None, "alphas": ALPHAS, "max_leaf_size": 20}
    weighted = ApproxKernelRidgeCV(kept, **given).fit(X, y, counts)
    repeated = ApproxKernelRidgeCV(kept, **given).fit(X[order], y[order])
    scores = [model.cv_results_["mean_test_score"] for model in (weighted, repeated)]
    assert_allclose(*scores, rtol=1e-5)
    assert_allclose(repeated.predict(Q), weighted.predict(Q), rtol=1e-4, atol=1e-5)
    labels = np.digitize(y[:, 0], [-0.5, 0.5])
    labels[60:75] = labels[:15]  # equal rows of several classes leave alone, repeated or not
    weighted = ApproxKernelRidgeClassifierCV(kept, **given).fit(X, labels, counts)
    repeated = ApproxKernelRidgeClassifierCV(kept, **given).fit(X[order], labels[order])
    assert repeated.alpha_ == weighted.alpha_
    assert_allclose(repeated.predict_proba(Q), weighted.predict_proba(Q), rtol=1e-3, atol=1e-4)


def test_factors_of_classes_leave_with_their_rows():
    """A part of a row that stayed would know its class, and the least penalty would win."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 3))
    labels = (rows[:, 0] + rng.normal(size=400) > 1).astype(int)
    given = {"alphas": [1e-3, 1.0], "sigmas": [1.0], "max_leaf_size": 100}
    for weights in (None, {0: 1, 1: 4}, {0: 1.01, 1: 4.04}):
        model = ApproxKernelRidgeClassifierCV(clone(MAP), class_weight=weights, **given)
        assert model.fit(rows, labels).alpha_ == 1.0


@pytest.mark.parametrize("model", SEARCHES)
def test_leaves_of_a_search_are_the_same_for_all_sigmas_and_stand_for_all(model, monkeypatch):
    monkeypatch.setattr(near_far, "_SEARCHED", 30)
    shares, kept, solve = [], [], near_far.solve_near_far

    def spied(near_far, distinct, means, alpha, share=1.0, **options):
        shares.append(share)
        kept.append(len(distinct.kept))
        return solve(near_far, distinct, means, alpha, share, **options)

    monkeypatch.setattr(near_far, "solve_near_far", spied)
    targets = y[:, 0] if model is ApproxKernelRidgeCV else np.digitize(y[:, 0], [-0.5, 0.5])
    rows_of_all = X + 0.01 * RNG.normal(size=X.shape)  # none equal
    found = searched(model).fit(rows_of_all, targets, WEIGHTS)
    assert 30 <= found.n_samples_searched_ < 70
    leaves = NearFarKernel.of(as_feature_map(found.feature_map_), rows_of_all, 20)
    rows = sampled(leaves.bounds, leaves.row_to_distinct, np.random.default_rng(0))
    assert len(rows) == found.n_samples_searched_
    parts = [slice(None)]
    if model is ApproxKernelRidgeClassifierCV:
        parts += [targets != 2, targets != 1, targets != 0]
    expected = []
    for part in parts:
        is_in = np.zeros(90, bool)
        is_in[part] = True
        expected.append(WEIGHTS[rows][is_in[rows]].sum() / WEIGHTS[is_in].sum())
    assert_allclose(np.unique(np.round(shares, 9)), np.sort(np.round([*expected, 1.0], 9)))
    assert set(kept[: len(SIGMAS)]) == {len(np.unique(leaves.row_to_distinct[rows]))}


class AllTogether(Decision):
    """A decision of a user's own."""

    def problems(self, n_classes):
        return [of_all_classes(n_classes)]


def test_classes_may_lack_weight_or_rows_in_the_leaves_of_a_search(monkeypatch):
    codes = np.arange(90) % 3
    for decision in ("auto", "argmax", AllTogether()):
        model = searched(ApproxKernelRidgeClassifierCV, class_weight={2: 0}, decision=decision)
        assert set(model.fit(X, codes).predict(Q)) == {0, 1}
    monkeypatch.setattr(near_far, "_SEARCHED", 2)
    codes = np.digitize(X[:, 0], [-1, 0, 1])
    for decision in ("auto", "argmax"):
        model = searched(ApproxKernelRidgeClassifierCV, decision=decision, max_leaf_size=8)
        assert model.fit(X, codes).n_samples_searched_ < 20
        assert model.score(X, codes) > 0.6 and np.isfinite(model.predict_proba(Q)).all()


@pytest.mark.parametrize("model", SEARCHES)
def test_rows_of_float32_pipelines_and_sparse_rows_are_searched(model):
    targets = y[:, 0] if model is ApproxKernelRidgeCV else np.digitize(y[:, 0], [0.0])
    expected = searched(model).fit(X, targets).cv_results_["mean_test_score"]
    for rows in (X.astype(np.float32), sp.csr_array(X)):
        found = searched(model).fit(rows, targets)
        assert_allclose(found.cv_results_["mean_test_score"], expected, rtol=1e-3)
    piped = make_pipeline(StandardScaler(), clone(MAP))
    found = model(piped, sigmas=None, alphas=ALPHAS, max_leaf_size=20).fit(X, targets)
    assert found.alpha_ in ALPHAS and found.score(X, targets) > 0.8
    default = model(max_leaf_size=20, sigmas=2, random_state=0).fit(X, targets)
    assert default.score(X, targets) > 0.8


@pytest.mark.parametrize("model", SEARCHES)
def test_what_a_search_in_leaves_cannot_do_is_refused_by_name(model):
    labels = np.arange(90) % 3
    fitted = searched(model).fit(X, labels)
    assert not hasattr(fitted, "partial_fit") and not hasattr(fitted, "merge")
    assert not hasattr(fitted, "component_coef_")
    for sigmas in (SIGMAS, None):
        with pytest.raises(ValueError, match="max_leaf_size=20 keeps all rows"):
            searched(model, sigmas=sigmas).fit_batches([(X, labels)])
        for cv in (KFold(3), 10):
            with pytest.raises(ValueError, match="cv must be left.*max_leaf_size=20, which leaves"):
                searched(model, sigmas=sigmas, cv=cv).fit(X, labels)
    with pytest.raises(ValueError, match="max_leaf_size=20 needs a map of landmarks.*RFFSampler"):
        searched(model).set_params(feature_map=RFFSampler(8)).fit(X, labels)
    if model is ApproxKernelRidgeClassifierCV:
        with pytest.raises(ValueError, match="decision must not be 'discriminants'"):
            searched(model, decision="discriminants").fit(X, labels)
    strict = pytest.importorskip("array_api_strict")
    with pytest.raises(TypeError, match="max_leaf_size=20 needs rows of NumPy"):
        searched(model).fit(strict.asarray(X), strict.asarray(labels))
