"""Ridge regressions of all pairs of classes, from the moments of each class."""

import pickle
from itertools import combinations

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.datasets import load_digits, load_iris, make_hastie_10_2
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import KFold, StratifiedKFold, StratifiedShuffleSplit
from sklearn.multiclass import OneVsOneClassifier
from sklearn.preprocessing import KernelCenterer

from skrf import (
    ApproxKernelRidgeClassifier,
    ApproxKernelRidgeClassifierCV,
    ClusterNystroem,
    KernelRegressionClassifier,
    OptimalPositiveRF,
    RFFSampler,
)
from skrf.regression import OneVsOne, decide
from skrf.regression.base import Ties
from skrf.regression.data import Targets, stratified
from skrf.regression.decide import Argmax, best_classes, of_pairs, votes
from skrf.regression.moments import moments_of_groups, moments_of_rows
from skrf.regression.search import RidgeSearch, simplest, two_best_sigmas
from skrf.regression.solve import RowSystem, solve_problems

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 3))
y = np.digitize(X[:, 0] + 0.3 * RNG.normal(size=240), [-0.7, 0, 0.7])
WEIGHTS = RNG.uniform(0.5, 2.0, 240)
MAP = RFFSampler(24, sigma=0.7, random_state=0)
DECISIONS = ("argmax", "discriminants", "one-vs-one")
Q = RNG.normal(size=(40, 3)) * 2


def model(**params):
    given = {"alpha": 0.1, "decision": "one-vs-one", **params}
    return clone(ApproxKernelRidgeClassifier(MAP)).set_params(**given)


def score_at_choice(search):
    """Return the only score of a table at the values that were chosen."""
    table = search.cv_results_
    is_chosen = table["param_sigma"] == search.sigma_
    is_chosen &= table["param_alpha"] == search.alpha_
    (score,) = table["mean_test_score"][is_chosen]
    return score


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize(("alpha", "n_components"), [(1e-4, 24), (1.0, 24), (0.01, 600)])
def test_coefficients_are_those_of_a_ridge_for_every_pair(weights, alpha, n_components):
    fitted = model(alpha=alpha, feature_map__n_components=n_components)
    fitted.fit(X, y, weights)
    F = fitted.feature_map_.transform(X)
    for number, (first, second) in enumerate(combinations(range(4), 2)):
        rows = np.isin(y, (first, second))
        peer = RidgeClassifier(alpha=alpha).fit(
            F[rows], y[rows] == second, None if weights is None else weights[rows]
        )
        assert_allclose(fitted.component_coef_[number], np.ravel(peer.coef_), rtol=1e-8, atol=1e-8)
        assert_allclose(fitted.intercept_[number], peer.intercept_[0], rtol=1e-8, atol=1e-8)


def test_predictions_are_those_of_scikit_learn_but_for_ties():
    Z, labels = load_digits(return_X_y=True)
    fitted = model(alpha=1.0).set_params(feature_map=RFFSampler(128, sigma="scale", random_state=0))
    fitted.fit(Z[:600], labels[:600])
    F = fitted.feature_map_.transform(Z)
    peer = OneVsOneClassifier(RidgeClassifier(alpha=1.0)).fit(F[:600], labels[:600])
    values = F[600:] @ fitted.component_coef_.T + fitted.intercept_
    counts = np.zeros((len(values), 10))
    for number, pair in enumerate(combinations(range(10), 2)):
        is_level = np.abs(values[:, number]) <= 1e-5  # half a vote for each
        wins = np.where(is_level, 0.5, values[:, number] > 0)
        counts[:, pair] += np.column_stack([1 - wins, wins])
    top = np.sort(counts, axis=1)
    is_clear = top[:, -1] > top[:, -2]
    assert is_clear.mean() > 0.9
    assert_array_equal(fitted.predict(Z[600:])[is_clear], peer.predict(F[600:])[is_clear])
    # Each decision value is the votes, and less than half a vote more or less.
    assert_allclose(fitted.decision_function(Z[600:]), counts, rtol=0, atol=0.34)


def test_ties_go_to_the_class_with_the_larger_sum_of_tanh():
    # A cycle of wins: 0 beats 1 by 1.4, 1 beats 2 by 40, 2 beats 0 by .1. Raw sums would choose 1.
    values = np.array([[-1.4, 0.1, -40.0]])
    margins = np.tanh([1.4, 0.1, 40.0]) @ [[1, -1, 0], [-1, 0, 1], [0, 1, -1]]
    assert_allclose(votes(values), [1 + margins / 6], rtol=1e-12)
    assert votes(values).argmax() == 0


def test_a_pair_that_is_level_but_for_rounding_gives_half_a_vote_to_each():
    # 2 is ahead of both; between 0 and 1 there is nothing but rounding.
    for noise in (0.0, 1e-9, -1e-9):
        totals = votes(np.array([[noise, 0.4, 0.3]]))
        expected = [
            0.5 - np.tanh(0.4) / 6,
            0.5 - np.tanh(0.3) / 6,
            2 + np.tanh([0.4, 0.3]).sum() / 6,
        ]
        assert_allclose(totals, [expected], rtol=1e-8)


def test_a_second_look_is_taken_at_two_best_sigmas():
    """The best is the least of those that are equal but for rounding."""
    sigmas = [0.5, 1.0, 2.0, 3.0, 4.0]
    params = [{"sigma": sigma, "alpha": alpha} for sigma in sigmas for alpha in (0.1, 1.0)]
    for noise in (0.0, 1e-15, -1e-15):
        scores = np.array([-9, -8, -9, -0.5, -9, -0.6, -9, -0.3, -9, -0.3 + noise])
        table = {"params": params, "mean_test_score": scores}
        assert two_best_sigmas(table) == [3.0, 4.0]
        table["mean_test_score"] = scores[::-1]
        assert two_best_sigmas(table) == [0.5, 1.0]


def test_of_equal_points_the_least_sigma_and_the_largest_alpha_win():
    scores = {(2.0, 1.0): 0.9, (1.0, 0.1): 0.9, (1.0, 1.0): 0.9 - 1e-9, (0.5, 1.0): 0.8}
    assert simplest(scores, Ties(1.0)) == (1.0, 1.0)


def test_batches_and_merged_parts_equal_one_fit():
    whole = model().fit(X, y, WEIGHTS)
    batches = model()
    for rows in (slice(0, 100), slice(100, 101), slice(101, 240)):
        batches.partial_fit(X[rows], y[rows], classes=np.arange(4), sample_weight=WEIGHTS[rows])
    streamed = model().fit_batches([(X[:90], y[:90]), (X[90:], y[90:])])
    assert_allclose(batches.component_coef_, whole.component_coef_, rtol=1e-10, atol=1e-10)
    assert_allclose(
        streamed.component_coef_, model().fit(X, y).component_coef_, rtol=1e-10, atol=1e-10
    )


def test_the_sum_of_the_classes_are_the_moments_of_all_rows():
    feature_map = MAP.fit(X).feature_maps_[0]
    of_classes = moments_of_groups(feature_map, X, y, 5, WEIGHTS)
    of_classes = of_classes.pooled(np.arange(5), 2 * np.eye(5) - 1)
    targets = Targets.of_classes(y, 5)
    expected = moments_of_rows(feature_map, X, targets, WEIGHTS)
    assert_allclose(of_classes.weight, expected.weight, rtol=1e-14)
    assert_allclose(of_classes.mean, expected.mean, rtol=1e-12, atol=1e-14)
    assert_allclose(of_classes.products, expected.products, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("n", [30, 80])  # pairs of fewer and of more rows than features
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_pairs_solved_in_their_rows_are_the_same(weights, n):
    given = None if weights is None else weights[:n]
    fitted = model(alpha=1e-3).fit(X[:n], y[:n], given)
    F = fitted.feature_map_.transform(X)
    order, alphas, problems = np.argsort(y[:n], kind="stable"), [10.0, 1e-3], of_pairs(4)
    solved = solve_problems(fitted._fitted.moments, problems, alphas)
    of_moments = np.stack([solution.values_at(F[n:], None) for solution in solved])
    assert_allclose(of_moments[1], F[n:] @ fitted.component_coef_.T + fitted.intercept_, rtol=1e-9)
    of_rows = F[:n][order]
    rest = y[:n][order], None if given is None else given[order], 4
    system = RowSystem.of_gram(of_rows @ of_rows.T, *rest)
    values = np.concatenate(system.values(F[n:] @ of_rows.T, problems, alphas), axis=2)
    assert_allclose(values, of_moments, rtol=1e-8, atol=1e-9)


def test_a_class_without_rows_never_wins():
    fitted = model().partial_fit(X[:50], np.minimum(y[:50], 2), classes=[0, 1, 2, 3, 4])
    assert set(fitted.predict(X)) <= {0, 1, 2}
    system = RowSystem.of_gram(np.eye(3), np.array([0, 1, 1]), None, 4)
    values = np.concatenate(system.values(np.eye(3), of_pairs(4), [1.0]), axis=2)
    assert (votes(values[0])[:, 2:].max(axis=1) < votes(values[0])[:, :2].max(axis=1)).all()


def test_float32_and_positive_maps():
    exact = model().fit(X, y).decision_function(X)
    single = model().fit(X.astype(np.float32), y).decision_function(X.astype(np.float32))
    assert single.dtype == np.float32
    assert np.mean(np.abs(single - exact) < 1e-3) > 0.98  # a vote may turn
    positive = model().set_params(feature_map=OptimalPositiveRF(64, sigma=0.7, random_state=0))
    assert positive.fit(X, y).score(X, y) > 0.75


def test_two_classes_have_one_regression():
    for decision in ("auto", *DECISIONS):
        fitted = model(decision=decision).fit(X, y > 1)
        assert fitted.decisions_ == "argmax" and fitted.component_coef_.shape == (1, 24)
        assert_array_equal(fitted.predict(X), model(decision="argmax").fit(X, y > 1).predict(X))


@pytest.mark.parametrize("feature_map", [MAP, ClusterNystroem(30, random_state=0)], ids=repr)
@pytest.mark.parametrize("decision", ["auto", *DECISIONS])
def test_the_most_accurate_point_of_two_sigmas_wins(feature_map, decision):
    """The definition, by fits to every fold under the map of all rows."""
    folds, alphas = list(StratifiedKFold(3).split(X, y)), [1e-3, 0.1, 1.0]
    search = ApproxKernelRidgeClassifierCV(
        feature_map, sigmas=[0.3, 0.8, 2.0], alphas=alphas, decision=decision
    ).fit(X, y)
    name = "one-vs-one" if decision == "auto" else decision
    assert search.decisions_ == name
    table, sigmas = search.cv_results_["mean_test_score"].reshape(3, -1), np.array([0.3, 0.8, 2.0])
    scores = {}
    for sigma in sigmas[np.argsort(-table.max(axis=1))[:2]]:
        whole = FrozenEstimator(clone(feature_map).set_params(sigma=sigma).fit(X))
        for alpha in alphas:
            plain = ApproxKernelRidgeClassifier(whole, alpha=alpha, decision=name)
            right = [plain.fit(X[train], y[train]).score(X[test], y[test]) for train, test in folds]
            scores[sigma, alpha] = np.mean(right)
    assert scores[search.sigma_, search.alpha_] == pytest.approx(max(scores.values()), abs=1e-4)
    # The model is a plain one with the parameters that were chosen.
    plain = ApproxKernelRidgeClassifier(
        feature_map, sigma=search.sigma_, alpha=search.alpha_, decision=name
    )
    assert_allclose(search.component_coef_, plain.fit(X, y).component_coef_, rtol=1e-8, atol=1e-10)
    assert search.best_score_ == score_at_choice(search)


class Memory(TransformerMixin, BaseEstimator):
    """Features that give away the labels of the rows seen in `fit`, and no others."""

    def __init__(self, sigma=1.0):
        self.sigma = sigma

    def fit(self, X, y):
        self.codes_ = dict(zip(map(bytes, X), np.unique(y, return_inverse=True)[1], strict=True))
        return self

    def transform(self, X):
        return np.array(
            [np.eye(4)[3 if k is None else k] for k in map(self.codes_.get, map(bytes, X))]
        )


@pytest.mark.parametrize("decision", ["auto", "one-vs-one"])
def test_permuted_labels_score_at_chance(decision):
    """A map that reads labels is fitted inside the folds, so nothing leaks."""
    Z, labels = load_iris(return_X_y=True)
    Z = Z + RNG.normal(scale=1e-3, size=Z.shape)  # no equal rows
    labels = RNG.permutation(labels)
    search = ApproxKernelRidgeClassifierCV(
        Memory(), sigmas=[1.0], cv=3, decision=decision, scoring="accuracy"
    ).fit(Z, labels)
    assert search.best_score_ < 0.5  # 1 if a held-out row was seen
    assert search.score(Z, labels) == 1.0


def test_held_out_ties_go_to_the_first_class_whatever_the_rounding():
    values = np.array([[0.3, 0.7, 0.7], [0.5, 0.5, 0.1]])
    for noise in (0.0, 1e-7, -1e-7):
        turned = values + noise * np.array([[0, 0, 1], [0, 1, 0]])
        assert_array_equal(best_classes(turned, 1e-5), [1, 0])


def test_alphas_above_one_are_not_tried_for_pairs_unless_there_are_no_others():
    def tried(decision, alphas):
        search = RidgeSearch(None, None, None, np.array(alphas), decision=decision)
        return search._decided_alphas.tolist()

    assert tried(OneVsOne(), [1.0, 10.0, 0.1]) == [0.1, 1.0]
    assert tried(Argmax(), [0.1, 10.0]) == [0.1, 10.0]
    assert tried(OneVsOne(), [10.0, 5.0]) == [5.0]


def test_votes_follow_the_classes_whatever_their_names():
    names = np.array(["d", "a", "c", "b"])
    fitted = model().fit(X, names[y])
    assert np.mean(fitted.predict(X) == names[y]) == pytest.approx(model().fit(X, y).score(X, y))


def test_faulty_decisions_are_named():
    with pytest.raises(ValueError, match="decision"):
        model(decision="votes").fit(X, y)


# ---------------------------------------------------------------- weights of classes


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize("kind", [ApproxKernelRidgeClassifier, ApproxKernelRidgeClassifierCV])
def test_weights_of_classes_multiply_those_of_rows(kind, weights):
    rows = np.ones(240) if weights is None else weights
    balanced = (rows.sum() / 4 / np.bincount(y, rows))[y]
    given = np.where(y == 2, 5.0, 1.0)
    for class_weight, factors in (("balanced", balanced), ({2: 5.0}, given), ({}, np.ones(240))):
        weighted = kind(MAP, class_weight=class_weight).fit(X, y, weights)
        plain = kind(MAP).fit(X, y, rows * factors)
        assert_allclose(weighted.component_coef_, plain.component_coef_, rtol=1e-9, atol=1e-12)
        assert_array_equal(weighted.predict(X), plain.predict(X))
    names = np.array(["a", "b", "c", "d"])
    dropped = kind(MAP, class_weight={"c": 0}).fit(X, names[y], weights)
    assert set(dropped.predict(X)) <= {"a", "b", "d"}


def test_balanced_classes_are_those_of_scikit_learn():
    rare = np.flatnonzero((y == 0) | (np.arange(240) % 7 == 0))
    fitted = model(class_weight="balanced", decision="argmax").fit(X[rare], y[rare])
    peer = RidgeClassifier(alpha=0.1, class_weight="balanced")
    peer.fit(fitted.feature_map_.transform(X[rare]), y[rare])
    assert_allclose(fitted.component_coef_, peer.coef_, rtol=1e-8, atol=1e-10)


def test_weights_of_classes_in_batches():
    whole = model(class_weight={0: 3.0}).fit(X, y)
    batches = model(class_weight={0: 3.0})
    for rows in (slice(0, 100), slice(100, 240)):
        batches.partial_fit(X[rows], y[rows], classes=np.arange(4))
    assert_allclose(batches.component_coef_, whole.component_coef_, rtol=1e-9, atol=1e-12)
    balanced = model(class_weight="balanced")
    with pytest.raises(ValueError, match="class_weight='balanced' needs all rows at once"):
        balanced.partial_fit(X, y, classes=np.arange(4))
    with pytest.raises(ValueError, match="class_weight='balanced' needs all rows at once"):
        balanced.fit_batches([(X[:90], y[:90]), (X[90:], y[90:])])
    with pytest.raises(ValueError, match="class_weight='balanced'"):
        balanced.fit(X, y).merge(balanced.fit(X, y))


@pytest.mark.parametrize("factors", [{2: 4.0}, {1: 0.0, 3: 2.0}], ids=["one", "without a class"])
@pytest.mark.parametrize(
    "case",
    [
        ApproxKernelRidgeClassifier(RFFSampler(24, random_state=0)),
        ApproxKernelRidgeClassifier(FrozenEstimator(clone(MAP).fit(X)), decision="argmax"),
        ApproxKernelRidgeClassifier(Nystroem(n_components=12, random_state=0)),  # of rows
        ApproxKernelRidgeClassifierCV(MAP, sigmas=2, cv=2),
        ApproxKernelRidgeClassifierCV(MAP, sigmas=None),
    ],
    ids=["statistics", "frozen", "rows", "search", "alpha alone"],
)
def test_weights_of_classes_that_some_batches_lack(case, factors):
    order = np.argsort(y, kind="stable")  # so that every batch has one or two of the classes
    rows, labels = X[order], y[order]
    whole = clone(case).set_params(class_weight=factors).fit(rows, labels)
    parts = [slice(start, start + 30) for start in range(0, 240, 30)]
    batches = clone(whole).fit_batches([(rows[part], labels[part]) for part in parts])
    assert_array_equal(batches.classes_, whole.classes_)
    if case.get_params().get("sigmas", ()) is None:  # batches choose it by another score
        return
    assert_allclose(batches.component_coef_, whole.component_coef_, rtol=1e-8, atol=1e-10)
    unknown = clone(whole).set_params(class_weight={9: 1.0})
    with pytest.raises(
        ValueError, match=r"class_weight names \[9\], which are not in array\(\[0, 1"
    ):
        unknown.fit_batches([(rows[part], labels[part]) for part in parts])


@pytest.mark.parametrize(
    "faulty", [{7: 1.0}, {0: -1.0}, {0: np.nan}, dict.fromkeys(range(4), 0), 3]
)
def test_faulty_weights_of_classes_are_named(faulty):
    with pytest.raises(ValueError, match="class_weight"):
        model(class_weight=faulty).fit(X, y)


@pytest.mark.parametrize("kind", [ApproxKernelRidgeClassifier, KernelRegressionClassifier])
def test_huge_weights_of_rows_and_classes(kind):
    model = kind(OptimalPositiveRF(24, random_state=0))
    huge = clone(model).set_params(class_weight={0: 1e200})
    with pytest.raises(ValueError, match="class_weight times sample_weight must be at most"):
        huge.fit(X, y, np.full(240, 1e200))
    tiny = clone(model).set_params(class_weight={0: 1e-200}).fit(X, y, np.full(240, 1e-200))
    dropped = clone(model).set_params(class_weight={0: 0}).fit(X, y, np.full(240, 1e-200))
    assert_array_equal(tiny.decision_function(X), dropped.decision_function(X))


def test_balanced_classes_of_rows_whose_weights_add_up_to_infinity():
    model = KernelRegressionClassifier(
        OptimalPositiveRF(24, random_state=0), class_weight="balanced"
    )
    expected = clone(model).fit(X, y).predict_proba(X)
    assert_allclose(model.fit(X, y, np.full(240, 1e307)).predict_proba(X), expected, rtol=1e-12)


# ------------------------------------------------------------------ probabilities


def coupled_by_iteration(seconds, n_classes):
    """Return the fixed point of Wu, Lin and Weng (2004), equation 33, for a row of pairs."""
    r = np.zeros((n_classes, n_classes))
    for (i, j), p in zip(combinations(range(n_classes), 2), seconds, strict=True):
        r[j, i], r[i, j] = p, 1 - p
    Q = -r * r.T
    Q[np.diag_indices(n_classes)] = (r**2).sum(axis=0)
    p = np.full(n_classes, 1 / n_classes)
    for _ in range(2000):
        for t in range(n_classes):
            p[t] = (p @ Q @ p - Q[t] @ p + Q[t, t] * p[t]) / Q[t, t]
            p /= p.sum()
    return p


def test_probabilities_are_coupled_from_those_of_pairs():
    search = ApproxKernelRidgeClassifierCV(MAP, decision="one-vs-one", sigmas=3, random_state=0)
    search.fit(X, y)
    values = search.feature_map_.transform(Q) @ search.component_coef_.T + search.intercept_
    seconds = 1 / (1 + np.exp(-search.probability_scale_ * values))
    n_classes = len(search.classes_)
    expected = [coupled_by_iteration(row, n_classes) for row in seconds]
    assert_allclose(search.predict_proba(Q), expected, rtol=1e-6, atol=1e-9)
    assert_allclose(search.predict_log_proba(Q), np.log(search.predict_proba(Q)), rtol=1e-12)
    single = search.predict_proba(Q.astype(np.float32))
    assert single.dtype == np.float64
    assert_allclose(single, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("decision", [*DECISIONS, "binary"])
def test_the_scale_of_probabilities_is_best_on_held_out_rows(decision):
    """Held-out decisions, fold by fold, and the scale of their least log loss."""
    labels, name = (y > 1, "argmax") if decision == "binary" else (y, decision)
    n_classes = len(np.unique(labels))
    params = {} if decision == "binary" else {"decision": decision}
    search = ApproxKernelRidgeClassifierCV(MAP, sigmas=3, random_state=0, **params)
    search.fit(X, labels)
    plain = ApproxKernelRidgeClassifier(
        MAP, sigma=search.sigma_, alpha=search.alpha_, random_state=0, **params
    )
    whole = FrozenEstimator(clone(search.feature_map_).fit(X))  # as the search fits it: to all rows
    losses, scales = (
        [],
        np.geomspace(search.probability_scale_ / 4, 4 * search.probability_scale_, 65),
    )
    for train, test in StratifiedKFold(3).split(X, labels):
        fitted = clone(plain).set_params(feature_map=whole, sigma=None, random_state=None)
        fitted.fit(X[train], labels[train])
        codes = np.searchsorted(search.classes_, labels[test])
        if name == "one-vs-one" or n_classes == 2:
            values = whole.transform(X[test]) @ fitted.component_coef_.T + fitted.intercept_
            pairs = list(combinations(range(n_classes), 2))
            margins = np.array(
                [
                    [
                        value * (1 if k == j else -1)
                        for value, (i, j) in zip(row, pairs, strict=True)
                        if k in (i, j)
                    ]
                    for k, row in zip(codes, values, strict=True)
                ]
            )
            of_rows = np.log1p(np.exp(-scales[:, None, None] * margins)).mean(axis=2)
        else:
            values = fitted.decision_function(X[test])
            margins = values[np.arange(len(codes)), codes, None] - values
            of_rows = np.log(np.exp(-scales[:, None, None] * margins).sum(axis=2))
        smooth = scales[:, None] * margins.mean(axis=1) / 1000
        losses.append((of_rows + smooth).mean(axis=1))
    best = scales[np.argmin(np.mean(losses, axis=0))]
    assert 0.85 < search.probability_scale_ / best < 1.18  # of a parabola through powers of 2


def test_probabilities_of_many_rows_are_those_of_each(monkeypatch):
    firsts = RNG.uniform(size=(50, 10))
    expected = decide.coupled(firsts, 1 - firsts, 5)
    monkeypatch.setattr(decide, "_BLOCK", 36 * 7)
    assert_allclose(decide.coupled(firsts, 1 - firsts, 5), expected, rtol=1e-12)


@pytest.mark.parametrize("is_of_pairs", [True, False])
@pytest.mark.parametrize("weights", [None, WEIGHTS[:40]], ids=["plain", "weighted"])
def test_losses_are_their_definition(is_of_pairs, weights):
    """-log of the odds of the own class, and a thousandth of its mean margin."""
    rng, scales = np.random.default_rng(0), decide.SCALES[8:22]
    codes, values = rng.integers(0, 4, 40), rng.normal(size=(40, 6 if is_of_pairs else 4))
    shares, expected = np.ones(40) if weights is None else weights, np.zeros(14)
    for k, row, share in zip(codes, values, shares, strict=True):
        if is_of_pairs:
            pairs = zip(row, combinations(range(4), 2), strict=True)
            margins = np.array([v if k == j else -v for v, (i, j) in pairs if k in (i, j)])
            of_row = np.log1p(np.exp(-scales[:, None] * margins)).mean(axis=1)
        else:
            margins = row[k] - row
            of_row = np.log(np.exp(-scales[:, None] * margins).sum(axis=1))
        expected += share * (of_row + scales * margins.mean() / 1000)
    found = decide.losses(values, codes, weights, is_of_pairs)
    assert_allclose(found[8:22], expected, rtol=1e-9)


@pytest.mark.parametrize("factor", [1.0, 1e-3, 1e3])
def test_the_best_scale_is_found_for_values_of_any_size(factor):
    values = RNG.normal(size=(400, 3))
    codes = (values + RNG.gumbel(size=(400, 3))).argmax(axis=1)  # softmax of the values
    of_scales = decide.losses(factor * values, codes, None, False)
    assert 0.7 < factor * decide.best_scale(of_scales) < 1.4


def test_the_best_scale_is_that_of_a_parabola():
    for exponent in (1.3, -2.4, 5.0):
        of_scales = (np.log2(decide.SCALES) - exponent) ** 2
        assert decide.best_scale(of_scales) == pytest.approx(2.0**exponent, rel=1e-12)


def test_probabilities_of_batches_and_without_any():
    search = ApproxKernelRidgeClassifierCV(MAP, sigmas=3, random_state=0)
    expected = search.fit(X, y).predict_proba(Q)
    assert_allclose(expected.sum(axis=1), 1, rtol=1e-12)
    parts = [(X[:50], y[:50]), (X[50:], y[50:])]
    batches = clone(search).fit_batches(parts)
    assert_allclose(batches.predict_proba(Q), expected, rtol=1e-6)
    # Rows that are told apart without an error are not certain.
    apart = clone(search).fit(np.vstack([X, X + 50]), np.repeat([0, 1], len(X)))
    assert apart.score(X, np.zeros(len(X))) == 1
    assert 1e-5 < apart.predict_proba(X)[:, 1].max() < 0.2
    two = [(rows, labels > 1) for rows, labels in parts]
    whole = clone(search).fit(X, y > 1).predict_proba(Q)
    assert_allclose(clone(search).fit_batches(two).predict_proba(Q), whole, rtol=1e-6)
    argmax = clone(search).set_params(decision="argmax")
    whole = argmax.fit(X, y).predict_proba(Q)
    assert_allclose(clone(argmax).fit_batches(parts).predict_proba(Q), whole, rtol=1e-6)
    without = clone(search).set_params(sigmas=None, feature_map=MAP).fit(X, y)
    with pytest.raises(AttributeError, match="probabilities need"):
        without.predict_proba(Q)


def test_two_classes_are_told_apart_by_accuracy():
    """Squared errors are least at a penalty that is too small for a sharp, smooth border."""
    X, y = make_hastie_10_2(5000, random_state=0)
    search = ApproxKernelRidgeClassifierCV(random_state=0).fit(X[:3000], y[:3000])
    table = search.cv_results_
    least = np.argmax(table["mean_test_score"])
    sigma, alpha = table["param_sigma"][least], table["param_alpha"][least]
    assert (search.sigma_, search.alpha_) != (sigma, alpha) and search.sigma_ <= sigma
    assert search.best_score_ < table["mean_test_score"][least]
    plain = ApproxKernelRidgeClassifier(
        ClusterNystroem(512, sigma=sigma), alpha=alpha, random_state=0
    )
    before = plain.fit(X[:3000], y[:3000]).score(X[3000:], y[3000:])
    assert search.score(X[3000:], y[3000:]) > before + 0.01


def test_a_single_class_is_served_by_searches():
    for decision in ("auto", "one-vs-one", "argmax"):
        search = ApproxKernelRidgeClassifierCV(MAP, sigmas=2, decision=decision)
        for fitted in (
            search.fit(X, np.zeros(240, int)),
            clone(search).fit_batches([(X[:100], np.zeros(100)), (X[100:], np.zeros(140))]),
        ):
            assert_array_equal(fitted.predict(Q), 0)
        assert_array_equal(search.predict_proba(Q), np.ones((len(Q), 1)))


# ---------------------------------------------------------------- exact, in the rows of pairs


EXACT = ApproxKernelRidgeClassifier("exact", sigma=0.7, alpha=0.05, decision="one-vs-one")


@pytest.fixture
def in_rows(monkeypatch):
    """Solve pairs of 50 and more rows in these, and compare on at most 200 rows."""
    monkeypatch.setattr("skrf.regression.ridge.FEW_ROWS", 49)
    monkeypatch.setattr("skrf.regression.search._MOST_EXACT", 200)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize("class_weight", [None, {0: 0.0, 2: 3.0}], ids=["alike", "by class"])
def test_pairs_are_kernel_ridges_of_their_rows(in_rows, weights, class_weight):
    rows, labels = np.vstack([X, X[:9]]), np.append(y, (y[:9] + 1) % 4)  # some in two classes
    given = None if weights is None else np.append(weights, weights[:9])
    model = clone(EXACT).set_params(class_weight=class_weight)
    fitted = model.fit(rows, labels, given)
    assert fitted.decisions_ == "one-vs-one" and fitted.alpha_ == 0.05 and fitted.sigma_ == 0.7
    assert len(fitted.dual_coef_) == len(fitted.intercept_) == 6 and not hasattr(
        fitted, "component_coef_"
    )
    factors = np.ones(len(labels)) if given is None else given
    factors = factors * [(class_weight or {}).get(label, 1.0) for label in labels]
    values = []
    for first, second in combinations(range(4), 2):
        of_pair = np.isin(labels, (first, second)) & (factors > 0)
        sides = np.append(np.where(labels[of_pair] == second, 1.0, -1.0), 0.0)
        system = np.ones((len(sides), len(sides)))  # coefficients that add up to 0, and an offset
        system[:-1, :-1] = rbf_kernel(rows[of_pair], gamma=0.245)
        system[:-1, :-1] += np.diag(0.05 / factors[of_pair])
        system[-1, -1] = 0.0
        solution = np.linalg.solve(system, sides)
        values.append(rbf_kernel(Q, rows[of_pair], gamma=0.245) @ solution[:-1] + solution[-1])
    values = votes(np.column_stack(values))
    assert_allclose(fitted.decision_function(Q), values, rtol=1e-9, atol=1e-9)
    for kind in (sp.csr_array, lambda Z: Z.astype(np.float32)):
        other = clone(model).fit(kind(rows), labels, given).decision_function(kind(Q))
        assert_allclose(other, values, rtol=1e-4, atol=1e-4)
    kept = pickle.dumps(clone(EXACT).fit(*load_digits(return_X_y=True)))
    assert len(kept) < 1.2 * 8 * 1797 * (64 + 45)
    copy = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(copy.decision_function(Q), fitted.decision_function(Q))
    few = fitted.set_params(class_weight=None).fit(rows[:40], labels[:40])
    assert hasattr(few, "component_coef_") and not hasattr(few, "dual_coef_")


def test_repeated_exact_rows_have_their_weights(in_rows):
    repeated = clone(EXACT).fit(np.repeat(X, y + 1, axis=0), np.repeat(y, y + 1))
    weighted = clone(EXACT).fit(X, y, y + 1.0)
    assert_allclose(repeated.decision_function(Q), weighted.decision_function(Q), rtol=1e-8)


def test_other_decisions_and_labels_have_landmarks_still(in_rows):
    for given in ({"decision": "argmax"}, {"decision": "auto", "alpha": "evidence"}):
        assert hasattr(clone(EXACT).set_params(**given).fit(X, y), "feature_map_")
    alone = ApproxKernelRidgeClassifierCV("exact", sigmas=None).fit(X, y)
    assert hasattr(alone, "feature_map_")


@pytest.mark.parametrize("decision", ["auto", "argmax"])
def test_two_classes_are_one_pair(in_rows, decision):
    fitted = clone(EXACT).set_params(decision=decision).fit(X, y > 1)
    assert fitted.decisions_ == "argmax" and fitted.dual_coef_.shape == (1, 240)
    centred = KernelCenterer()
    K = centred.fit_transform(rbf_kernel(X, gamma=0.245))
    dual = np.linalg.solve(K + 0.05 * np.eye(240), 2.0 * (y > 1) - 2 * np.mean(y > 1))
    values = centred.transform(rbf_kernel(Q, X, gamma=0.245)) @ dual + 2 * np.mean(y > 1) - 1
    assert_allclose(fitted.decision_function(Q), values, rtol=1e-9, atol=1e-9)
    given = {"sigmas": [0.7], "alphas": [0.05, 10.0], "decision": decision}
    search = ApproxKernelRidgeClassifierCV("exact", **given).fit(X, y > 1)
    assert len(search.cv_results_["param_alpha"]) == 2 and search.decisions_ == "argmax"
    assert search.score(X, y > 1) > 0.9
    scored = clone(search).set_params(scoring="roc_auc").fit(X, y > 1)
    assert 0.9 < scored.best_score_ <= scored.cv_results_["mean_test_score"].max()
    assert_allclose(search.predict_proba(Q).sum(axis=1), 1.0)


def test_a_search_in_rows_scores_folds_of_pairs(in_rows):
    given = {"sigmas": [0.5, 1.0], "alphas": [1e-2, 1.0, 100.0], "cv": KFold(4)}
    model = ApproxKernelRidgeClassifierCV("exact", **given).fit(X[:120], y[:120])
    table = model.cv_results_
    assert_array_equal(table["param_alpha"], [1e-2, 1.0] * 2)  # those of pairs
    train, test = next(KFold(4).split(X[:120]))
    peer = clone(EXACT).set_params(sigma=1.0, alpha=1e-2).fit(X[train], y[train])
    kernel = rbf_kernel(X[test], X[train][np.argsort(y[train], kind="stable")], gamma=0.5)
    values = kernel @ peer.dual_coef_.T + peer.intercept_
    errors = []
    for number, pair in enumerate(combinations(range(4), 2)):
        for code, row in zip(y[test], values, strict=True):
            if code in pair:
                errors.append((row[number] - (1 if code == pair[1] else -1)) ** 2)
    assert table["split0_test_score"][2] == pytest.approx(-np.mean(errors), rel=1e-8)
    assert model.decisions_ == "one-vs-one"
    rest = {"sigma": model.sigma_, "alpha": model.alpha_}
    again = clone(EXACT).set_params(**rest).fit(X[:120], y[:120])
    assert_allclose(model.decision_function(Q), again.decision_function(Q), rtol=1e-9)
    assert_allclose(model.predict_proba(Q).sum(axis=1), 1.0)
    assert not hasattr(model, "partial_fit") and not hasattr(model, "merge")


def test_a_search_in_rows_looks_at_a_part_of_many_rows(in_rows):
    search = ApproxKernelRidgeClassifierCV(
        "exact", sigmas=3, scoring="balanced_accuracy", subsample=150
    )
    model = search.fit(X, y)
    assert model.dual_coef_.shape == (6, 240)  # all rows
    assert 0.6 < model.best_score_ == score_at_choice(model)
    assert model.n_samples_searched_ == len(stratified(y, 150, 64)) < 240
    assert_array_equal(clone(search).fit(X, y).dual_coef_, model.dual_coef_)
    shuffled = np.random.default_rng(0).permutation(y)
    chance = clone(search).set_params(scoring="accuracy").fit(X, shuffled)
    assert chance.best_score_ < 0.45  # a quarter by chance


def test_the_rows_of_a_search_are_not_those_of_splitters(in_rows, monkeypatch):
    monkeypatch.setattr("skrf.regression.search._RARE", 3)
    cv = StratifiedShuffleSplit(3, test_size=0.2, random_state=0)
    search = ApproxKernelRidgeClassifierCV(
        "exact", sigmas=[1.0], alphas=[0.1], cv=cv, subsample=150
    ).fit(X, y)
    assert "split2_test_score" in search.cv_results_
    drawn = stratified(y, 150, 3)
    shares = np.bincount(y[drawn]) / np.bincount(y)
    assert len(drawn) == pytest.approx(150, abs=2) and (abs(shares - 150 / 240) < 0.02).all()
    few = np.setdiff1d(np.arange(240), drawn)[:2]
    search.set_params(cv=[(np.setdiff1d(np.arange(240), few), few)])
    with pytest.raises(ValueError, match="cv must hold out some of the 150 rows"):
        search.fit(X, y)


def test_more_rows_may_ask_for_a_narrower_kernel(monkeypatch, in_rows):
    rows = np.random.default_rng(3).uniform(-3, 3, size=(900, 2))
    cells = np.floor(1.2 * rows).astype(int) @ [1, 3] % 4  # a checkerboard of four classes
    monkeypatch.setattr("skrf.regression.search._RARE", 3)
    given = {"sigmas": [0.3, 1.0, 3.0], "alphas": [1e-3, 1e-1, 10.0], "subsample": 120}
    few = ApproxKernelRidgeClassifierCV("exact", **given)
    with monkeypatch.context() as context:
        compared = "skrf.regression.search.RidgeSearch._compared"
        context.setattr(compared, lambda search, source, best, scores, looks: (best, looks))
        plain = few.fit(rows, cells)
    monkeypatch.setattr("skrf.regression.search._MOST_EXACT", 900)
    monkeypatch.setattr("skrf.regression.search._BEST", 1)  # it goes on from the best alone
    model = ApproxKernelRidgeClassifierCV("exact", **given).fit(rows, cells)
    assert (model.sigma_, model.alpha_) != (plain.sigma_, plain.alpha_)
    assert model.sigma_ >= plain.sigma_ and model.alpha_ <= plain.alpha_
    tested = np.random.default_rng(4).uniform(-3, 3, size=(500, 2))
    truth = np.floor(1.2 * tested).astype(int) @ [1, 3] % 4
    assert model.score(tested, truth) > plain.score(tested, truth) + 0.02
    assert model.best_score_ == score_at_choice(model)


def test_rare_classes_are_searched_with_all_their_rows(in_rows):
    rare = np.zeros(240, int)
    rare[np.argsort(X[:, 0])[-7:]] = 1
    given = {"sigmas": [1e-3, 0.3, 100.0], "alphas": [1e-3, 0.1, 1e3], "scoring": "roc_auc"}
    search = ApproxKernelRidgeClassifierCV("exact", **given, subsample=150).fit(X, rare)
    assert search.best_score_ > 0.9 and np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_huge_weights_of_pairs(in_rows):
    model = ApproxKernelRidgeClassifierCV("exact", sigmas=[0.7], alphas=[1e300])
    fitted = model.fit(X, y, np.full(240, 1e305))
    scaled = model.set_params(alphas=[1e-5]).fit(X, y)
    assert fitted.best_score_ == pytest.approx(scaled.best_score_, rel=1e-6)
    with pytest.raises(ValueError, match="sample_weight must add up to at most the largest float"):
        clone(EXACT).fit(X, y, np.full(240, 1e307))
