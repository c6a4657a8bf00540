"""The searches of sigma: the results of a grid search, weights that are repetitions, and loo."""

import pickle
import tracemalloc
from typing import ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import MECHANISMS, make
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics import make_scorer
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    PredefinedSplit,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state

from skrf import (
    AdaptiveRF,
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
    ClusterNystroem,
    ClusterQuantizer,
    KernelRegressionClassifier,
    KernelRegressor,
    OptimalPositiveRF,
    RFFSampler,
)
from skrf.exceptions import FeatureCollapseWarning
from skrf.features import fit_at_sigma
from skrf.regression.data import Data

_rng = np.random.default_rng(0)
X = _rng.normal(size=(90, 3))
Q = _rng.normal(size=(30, 3)) * 2
y = np.array(["a", "b", "c"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)]
T = np.column_stack([np.sin(X[:, 0]), 100 + X[:, 1] ** 2])
WEIGHTS = _rng.integers(0, 4, 90).astype(float)
SIGMAS = [0.3, 1.0, 3.0, 10.0]
ROWS = np.arange(90)


class Cosines(TransformerMixin, BaseEstimator):
    """A map of another package, with a sigma."""

    def __init__(self, sigma=None, random_state=None):
        self.sigma = sigma
        self.random_state = random_state

    def fit(self, X, y=None):
        rng = check_random_state(self.random_state)
        self.omega_ = rng.normal(size=(X.shape[1], 20))
        return self

    def transform(self, X):
        angles = self.sigma * (X @ self.omega_)
        return np.hstack([np.cos(angles), np.sin(angles)])


# What these learn does not depend on the rows, or no rows were left out where it was learnt.
FIXED = {
    "trigonometric": RFFSampler(40, random_state=0),
    "positive": make("PositiveRF", n_components=30, center=False, random_state=0),
    "of labels": AdaptiveRF(24, random_state=0),
    "landmarks of labels": ClusterNystroem(12, random_state=0),
    "asymmetric": make("HybridRF", n_components=90, center=False, random_state=0),
    "of another package": Cosines(random_state=0),
}


# ------------------------------------------------------------------ as an estimator


def test_faulty_splits_are_named():
    half = np.arange(45), np.arange(45, 90)
    for cv, words in (
        ([half, (np.repeat(np.arange(50), 2), np.arange(50, 90))], "cv must not.*row 0 is 2 times"),
        ([half, (np.arange(90), [])], "cv must leave rows.*split 1"),
        ([], "cv must give at least one split"),
    ):
        model = ApproxKernelRidgeClassifierCV(FIXED["trigonometric"], cv=cv)
        with pytest.raises((ValueError, TypeError), match=words):
            model.fit(X, y)
        assert not hasattr(model, "classes_")
    model = ApproxKernelRidgeClassifierCV(FIXED["trigonometric"], cv=PredefinedSplit(ROWS % 3))
    with pytest.raises(ValueError, match="positive weight.*split 0"):
        model.fit(X, y, sample_weight=(ROWS % 3 > 0).astype(float))


def test_a_score_that_cannot_be_had_is_the_worst():
    missing = make_scorer(lambda true, predicted: np.nan if len(set(predicted)) < 2 else 0.5)
    model = ApproxKernelRidgeClassifierCV(
        FIXED["positive"], sigmas=[1e-9, 1.0], alphas=[0.1], scoring=missing, decision="argmax"
    )
    assert model.fit(X, y).sigma_ == 1.0


def test_a_search_that_raises_changes_nothing_and_arrays_are_fixed():
    model = ApproxKernelRidgeClassifierCV(FIXED["positive"], sigmas=SIGMAS).fit(X, y)
    assert not model.cv_results_["mean_test_score"].flags.writeable
    # Nothing of it is kept beside sums.
    assert len(pickle.dumps(model)) < 40_000
    before = dict(vars(model))
    with pytest.raises(ValueError, match="sample_weight"):
        model.fit(X, y, sample_weight=np.zeros(90))
    with pytest.raises(ValueError, match="sigmas"):
        model.set_params(sigmas=[0.0]).fit(X, y)
    assert vars(model) == {**before, "sigmas": [0.0]}


def test_fits_to_other_libraries(library):
    codes = np.unique(y, return_inverse=True)[1]
    queries = library.array(Q)
    for model in (
        KernelRegressionClassifier(FIXED["positive"]),
        KernelRegressionClassifier("exact"),
    ):
        expected = clone(model).fit(X, codes)
        fitted = clone(model).fit(library.array(X), codes)
        assert_allclose(fitted.sigma_, expected.sigma_)
        probabilities = fitted.predict_proba(queries)
        library.assert_same(probabilities, expected.predict_proba(Q), like=queries, rtol=1e-9)


def test_maps_of_other_packages_are_drawn_once_for_all_sigmas():
    state = np.random.RandomState(0)
    model = KernelRegressionClassifier(Cosines(random_state=state)).fit(X, y)
    assert model.score(X, y) > 0.7
    assert not hasattr(model, "sigma_") and 0.1 < model.feature_map_.sigma < 10


class Cutoff(Cosines):
    """Features that are 0 for distant rows."""

    def transform(self, X):
        return super().transform(X) * (self.sigma * abs(X).max(axis=1, keepdims=True) < 50)

    def learns_from(self, y):
        return y.dtype.kind == "U"


@pytest.mark.parametrize("labels", [y, X[:, 0] > 0], ids=["apart", "together"])
def test_sigmas_that_are_not_chosen_do_not_warn(labels):
    model = KernelRegressionClassifier(Cutoff()).fit(X, labels)
    with pytest.warns(FeatureCollapseWarning):  # but what is asked of it does
        model.predict(1e4 * X)


@pytest.mark.parametrize("name", MECHANISMS)
def test_fits_at_many_sigmas_are_fits(name):
    unfitted = make(name, n_components=24, random_state=7)
    labels = np.unique(y, return_inverse=True)[1]
    fit = fit_at_sigma(unfitted, X, labels)
    for sigma in SIGMAS:
        fitted = fit(sigma)
        expected = clone(unfitted).set_params(sigma=sigma).fit(X, labels)
        for side, expected_side in zip(fitted.feature_maps_, expected.feature_maps_, strict=True):
            assert_allclose(side(Q).values, expected_side(Q).values, rtol=1e-9, atol=1e-9)
        assert fitted.sigma == fitted.sigma_ == sigma
    assert not hasattr(unfitted, "statistics_")
    # A map whose features depend on labels says so, by which searches fit it for every fold.
    one, other = (clone(unfitted).fit(X, given) for given in (labels, np.arange(90) % 2))
    assert unfitted._learns_from(labels) != np.allclose(one.transform(Q), other.transform(Q))


HALVES = slice(50), slice(50, 90)
SEARCHES = ApproxKernelRidgeCV, ApproxKernelRidgeClassifierCV


@pytest.mark.parametrize(
    ("model", "n_fits"), [(ApproxKernelRidgeCV, 1), (ApproxKernelRidgeClassifierCV, 2)]
)
def test_a_map_that_scored_all_rows_is_not_fitted_again(model, n_fits, monkeypatch):
    """Landmarks of a search know no labels: a classifier has others in the end."""
    fits, fit = [], Data.fit_at_sigma
    monkeypatch.setattr(Data, "fit_at_sigma", lambda *given: fits.append(given) or fit(*given))
    model(ClusterNystroem(10), sigmas=[0.5]).fit(X, y if n_fits == 2 else T)
    assert len(fits) == n_fits


@pytest.mark.parametrize("search", SEARCHES)
def test_groups_stay_together(search):
    targets = T[:, 0] if search is ApproxKernelRidgeCV else y
    groups = np.random.default_rng(0).integers(0, 9, 90)
    model = search(RFFSampler(20, random_state=0), sigmas=[0.5, 1.0], cv=GroupKFold(3))
    model.fit(X, targets, groups=groups)
    splits = list(GroupKFold(3).split(X, targets, groups))
    expected = clone(model).set_params(cv=splits).fit(X, targets).cv_results_
    assert_array_equal(model.cv_results_["mean_test_score"], expected["mean_test_score"])
    with pytest.raises(ValueError, match="groups"):
        clone(model).fit(X, targets)


@pytest.mark.parametrize("search", SEARCHES)
def test_folds_of_an_integer_ignore_groups_of_rows_with_copies(search):
    targets, twice = T[:, 0] if search is ApproxKernelRidgeCV else y, np.tile(ROWS, 2)
    model = search(RFFSampler(20, random_state=0), sigmas=[0.5, 1.0], cv=3)
    weights = np.tile(WEIGHTS, 2)
    expected = clone(model).fit(X[twice], targets[twice], weights).cv_results_
    with pytest.warns(UserWarning, match="groups parameter is ignored"):  # as in GridSearchCV
        model.fit(X[twice], targets[twice], weights, groups=twice)
    assert_array_equal(model.cv_results_["mean_test_score"], expected["mean_test_score"])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X[twice], targets[twice], groups=ROWS)


@pytest.mark.parametrize("search", SEARCHES)
def test_few_rows_are_as_many_folds_as_they_allow(search):
    is_classifier = search is ApproxKernelRidgeClassifierCV
    rows, targets = X[:6], [0, 0, 0, 1, 1, 1] if is_classifier else np.arange(6.0)
    model = search(RFFSampler(8, random_state=0), sigmas=[0.5, 1.0], cv=7)
    n_folds = 3  # rows of a class, or pairs
    with pytest.warns(UserWarning, match="cv=7 needs as many .*: 3 folds are used") as told:
        few = model.fit(rows, targets).cv_results_
    assert told[0].filename == __file__
    expected = clone(model).set_params(cv=n_folds).fit(rows, targets).cv_results_
    assert_array_equal(few["mean_test_score"], expected["mean_test_score"])


# ------------------------------------------------------------------ leave-one-out


def test_sigma_is_chosen_where_none_is_given():
    model = KernelRegressionClassifier(random_state=0).fit(X, y)
    assert isinstance(model.feature_map_, ClusterQuantizer)
    assert model.feature_map_.n_components == 256
    same = KernelRegressionClassifier(ClusterQuantizer(256), random_state=0).fit(X, y)
    assert model.sigma_ == same.sigma_ == model.feature_map_.sigma == model.feature_map_.sigma_
    assert_array_equal(model.predict_proba(Q), same.predict_proba(Q))
    assert KernelRegressionClassifier(sigma=2.0).fit(X, y).sigma_ == 2.0
    assert KernelRegressionClassifier(RFFSampler(20, sigma=3.0)).fit(X, y).sigma_ == 3.0
    softmax = KernelRegressionClassifier(RFFSampler(20, kernel="softmax")).fit(X, y)
    assert softmax.sigma_ == 1.0 and softmax.prior_share_ == 0.0
    piped = KernelRegressionClassifier(make_pipeline(StandardScaler(), RFFSampler(20))).fit(X, y)
    assert piped.prior_share_ == 0.0
    assert not hasattr(KernelRegressionClassifier(Nystroem(n_components=20)).fit(X, y), "sigma_")


def test_the_chosen_sigma_is_near_the_best():
    rng = np.random.default_rng(1)
    rows, wave = rng.uniform(-3, 3, size=(400, 1)), lambda rows: np.sin(4 * rows[:, 0])
    grid = np.linspace(-2.8, 2.8, 200)[:, None]
    noisy = wave(rows) + 0.1 * rng.normal(size=400)
    for estimator, targets, truth in (
        (KernelRegressor, noisy, wave(grid)),
        (KernelRegressionClassifier, noisy > 0, wave(grid) > 0),
    ):
        model = estimator(AdaptiveRF(60), random_state=0).fit(rows, targets)
        scores = [
            clone(model).set_params(sigma=sigma).fit(rows, targets).score(grid, truth)
            for sigma in model.sigma_ * np.logspace(-1, 1, 7)
        ]
        assert model.score(grid, truth) > max(scores) - 0.05
        assert estimator is KernelRegressionClassifier or min(scores) < max(scores) - 0.3


class Recorder(Cosines):
    """Notes the numbers of the labels that it is fitted to."""

    seen: ClassVar = []

    def fit(self, X, y=None):
        self.seen.append(np.unique(y, return_counts=True)[1])
        return super().fit(X, y)


def test_2000_samples_have_the_shares_of_all_labels():
    labels = np.repeat([0, 1, 2], [600, 1500, 3900])
    rows = labels[:, None] + np.random.default_rng(0).normal(size=(6000, 2))
    Recorder.seen.clear()
    KernelRegressionClassifier(Recorder(random_state=0)).fit(rows, labels)
    *searched, last = Recorder.seen
    assert last.sum() == 6000 and len(searched) == 14  # sigmas
    assert_allclose(np.mean(searched, axis=0), [200, 500, 1300], atol=1)


def test_the_first_batch_chooses_sigma():
    model = KernelRegressionClassifier(RFFSampler(20), random_state=0)
    both = clone(model)
    for rows in (slice(0, 40), slice(40, 90)):
        both.partial_fit(X[rows], y[rows], classes=np.unique(y))
        assert both.sigma_ == clone(model).fit(X[:40], y[:40]).sigma_
        assert both.sigma_ == both.feature_map_.sigma_
    assert both.class_count_.sum() == 90
    # As many rows as there are are enough.
    assert KernelRegressionClassifier(random_state=0).fit(X[:2], y[:2]).predict(X[:2]).shape == (2,)


AUTOMATIC = [
    KernelRegressionClassifier(RFFSampler(30, random_state=0)),
    KernelRegressionClassifier(AdaptiveRF(30, random_state=0)),
    KernelRegressionClassifier("exact"),
    KernelRegressor(OptimalPositiveRF(30, random_state=0)),
    KernelRegressor("exact"),
]


@pytest.mark.parametrize("model", AUTOMATIC, ids=str)
def test_weights_are_repetitions_in_automatic_sigmas(model):
    targets = y if hasattr(model, "predict_proba") else T
    # Equal rows, in another order; of several classes they leave alone, repeated or not.
    rows, targets = X.copy(), targets.copy()
    rows[60:80] = rows[:20]
    if hasattr(model, "predict_proba"):
        targets[60:80] = targets[:20]
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
    for params in ({}, {"feature_map": RFFSampler(20)}, {"feature_map": "exact"}):
        model = estimator(**params).fit(X, np.ones(90, int))
        assert_allclose(model.sigma_, scale)
        assert_allclose(model.predict(Q), 1.0, rtol=1e-15)
        # Rows that are all alike.
        model = estimator(**params).fit(np.ones((6, 2)), np.arange(6) % 2)
        assert_allclose(model.sigma_, np.sqrt(2))  # what "scale" is of constant rows


@pytest.mark.parametrize("estimator", [KernelRegressionClassifier, KernelRegressor])
def test_strings_of_sigma(estimator):
    targets = T if estimator is KernelRegressor else y
    for feature_map, sigma, words in (
        (Nystroem(), 1.0, "sigma=1.0.*no parameter 'sigma'"),
        (None, "auto", "sigma.*'scale'"),
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


@settings(max_examples=12, deadline=None)
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
        KernelRegressionClassifier(OptimalPositiveRF(8, random_state=0)),
        KernelRegressor(OptimalPositiveRF(8, random_state=0)),
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


@pytest.mark.parametrize(("sigma", "dtype"), [(1e-3, "f8"), (1.0, "f4"), (5.0, "f8"), (5.0, "f4")])
def test_the_exact_kernel_is_brute_force(sigma, dtype):
    rows, queries = X.astype(dtype), Q.astype(dtype)
    K = np.exp(log_kernel(queries.astype(float), rows.astype(float), sigma)) * WEIGHTS
    is_of_class = np.equal.outer(y, np.unique(y))
    rtol = max(1e-9, np.finfo(dtype).eps)  # of rounding the result
    model = KernelRegressionClassifier("exact", sigma=sigma).fit(rows, y, sample_weight=WEIGHTS)
    shares = K / K.sum(axis=1, keepdims=True)
    assert_allclose(model.predict_proba(queries), shares @ is_of_class, rtol=rtol, atol=1e-12)
    assert_allclose(model.class_count_, WEIGHTS @ is_of_class)
    regressor = KernelRegressor("exact", sigma=sigma).fit(rows, T, sample_weight=WEIGHTS)
    assert_allclose(regressor.predict(queries), shares @ T, rtol=rtol)
    sparse = clone(regressor).fit(sp.csr_array(rows), T, sample_weight=WEIGHTS)
    assert_allclose(sparse.predict(sp.csr_array(queries)), regressor.predict(queries), rtol=1e-6)
    assert not hasattr(model, "partial_fit") and not hasattr(model, "feature_map_")


def test_a_method_that_is_missing_says_why():
    for model, method, said in (
        (KernelRegressor("exact"), "partial_fit", "feature_map='exact' keeps all rows"),
        (KernelRegressionClassifier("exact"), "merge", "feature_map='exact' keeps all rows"),
        (ApproxKernelRidgeCV(), "partial_fit", "a search .* fit_batches"),
        (ApproxKernelRidgeCV(), "merge", "a search .* fit_batches"),
        (RFFSampler(), "log_transform", "its features have signs"),
    ):
        words = f"^{type(model).__name__} has no {method} here: {said}"
        with pytest.raises(AttributeError, match=words):
            getattr(model, method)


def test_grids_hold_numbers_and_nothing_that_could_be_read_as_one():
    for model, name in (
        (ApproxKernelRidgeCV(RFFSampler(8)), "sigmas"),
        (ApproxKernelRidgeCV(RFFSampler(8), sigmas=[1.0]), "alphas"),
    ):
        words = f"{name}.* must be .*finite number.* > 0, got"
        for wrong in (["1", 10.0], [True, 10.0], [np.True_, 10.0], [[1.0], [2.0]], []):
            with pytest.raises((TypeError, ValueError), match=words):
                clone(model).set_params(**{name: wrong}).fit(X, T)
        for good in ([1, np.float32(2.0)], np.array([1, 2]), (0.5,)):
            assert np.isfinite(clone(model).set_params(**{name: good}).fit(X, T).best_score_)


@pytest.mark.parametrize("search", SEARCHES)
def test_points_may_stand_in_a_grid_twice(search):
    targets = T[:, 0] if search is ApproxKernelRidgeCV else y
    model = search(FIXED["trigonometric"], sigmas=[0.5, 1.0], alphas=[0.01, 0.1]).fit(X, targets)
    twice = clone(model).set_params(sigmas=[0.5, 1.0, 0.5], alphas=[0.01, 0.1, 0.1])
    twice.fit(X, targets)
    assert len(twice.cv_results_["params"]) == 9
    assert (twice.sigma_, twice.alpha_) == (model.sigma_, model.alpha_)


def test_the_exact_kernel_far_from_the_data():
    model = KernelRegressionClassifier("exact", sigma=50.0).fit(X, y)
    far = X + 100
    nearest = y[log_kernel(far, X, 1.0).argmax(axis=1)]
    assert_array_equal(model.predict(far), nearest)
    logs = model.predict_log_proba(far)
    exact = log_kernel(far, X, 50.0)
    expected = np.stack([np.logaddexp.reduce(exact[:, y == c], axis=1) for c in "abc"], axis=1)
    expected -= np.logaddexp.reduce(expected, axis=1)[:, None]
    assert_allclose(logs, expected, rtol=1e-7, atol=1e-7)
    # Weights and targets of any size.
    weights, unit = 10.0 ** np.linspace(-300, 300, 90), 1e300
    regressor = KernelRegressor("exact", sigma=1.0).fit(X, unit * T[:, 0], sample_weight=weights)
    logs = log_kernel(Q, X, 1.0) + np.log(weights)
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    expected = shares @ T[:, 0] / shares.sum(axis=1)
    assert_allclose(regressor.predict(Q) / unit, expected, rtol=1e-9)


def are_copies(rows, targets):
    """Return which pairs of rows leave together: equal ones, of classes where all agree."""
    targets = targets.reshape(len(rows), -1)
    is_equal = (rows[:, None] == rows).all(axis=2)
    is_copy = is_equal & (targets[:, None] == targets).all(axis=2)
    if targets.dtype.kind != "f":
        is_copy &= (is_equal == is_copy).all(axis=1) | np.eye(len(rows), dtype=bool)
    return is_copy


def loo_score(rows, targets, weights, sigma):
    """The definition, point by point, the row's largest exponent taken out."""
    squares = ((rows[:, None] - rows) ** 2).sum(axis=2)
    squares[are_copies(rows, targets)] = np.inf
    K = np.exp(-(sigma**2) / 2 * (squares - squares.min(axis=1, keepdims=True))) * weights
    K /= K.sum(axis=1, keepdims=True)
    if targets.dtype.kind == "f":
        total = weights @ (targets - weights @ targets / weights.sum()) ** 2
        return -np.sum(weights @ (targets - K @ targets) ** 2 / total)
    is_of_class = np.equal.outer(targets, np.unique(targets))
    frequencies = weights @ is_of_class / weights.sum()
    n = len(np.unique(np.column_stack([rows, targets]), axis=0))
    return max(
        np.log(((1 - share) * (K @ is_of_class) + share * frequencies)[is_of_class])
        @ weights
        / weights.sum()
        for share in (1 / (n + 1), 0.03, 0.1, 0.3)
    )


def refined(scale, score):
    """Return the sigma of the definition."""

    def smallest_of_nearly_best(sigmas):
        scores = np.array([score(sigma) for sigma in sigmas])
        return sigmas[scores >= scores.max() - 1e-4 * abs(scores.max())].min()

    sigmas = scale * np.logspace(-1, 2, 10)
    finer = smallest_of_nearly_best(sigmas) * 10 ** (np.array([-2, -1, 1, 2]) / 9)
    sigmas = np.append(sigmas, finer)
    return smallest_of_nearly_best(sigmas)


def seen_by_others(model, rows, labels, weights, sigma):
    """Return the kernels of all pairs of rows, 0 of rows with themselves and their copies."""
    is_equal = are_copies(rows, labels)
    if isinstance(model.feature_map_, ClusterQuantizer):
        centers, column = model.feature_map_.centers_, np.empty(len(rows), int)
        for i, row in enumerate(rows):
            of_classes = model.feature_map_.center_labels_
            is_far = 0 if of_classes is None else labels[i] != of_classes
            column[i] = np.argmin(((centers - row) ** 2).sum(axis=1) + 1e9 * is_far)
        K = np.zeros((len(rows), len(rows)))
        for i, row in enumerate(rows):
            logs = -(sigma**2) / 2 * ((centers - row) ** 2).sum(axis=1)
            for c in np.unique(column[is_equal[i]]):
                of_center = weights * (column == c)
                left = of_center[~is_equal[i]].sum()
                # The centre of the rows that stay, if it is the mean of all of them.
                is_mean = left and model.feature_map_.centers != "random"
                logs[c] *= (of_center.sum() / left) ** 2 if is_mean else 1.0
                logs[c] -= 0.0 if left else np.inf
            K[i] = np.exp(logs - logs.max())[column] * ~is_equal[i]
        return K
    features = clone(model.feature_map_).set_params(sigma=sigma).fit(rows, labels, weights)
    if features.is_positive:
        queries, keys = features.log_transform(rows), features.log_transform_keys(rows)
        logs = logsumexp(queries[:, None] + keys, axis=2)
        K = np.exp(logs - logs.max(axis=1, keepdims=True))
    else:
        K = features.transform(rows) @ features.transform_keys(rows).T
    return np.where(is_equal, 0.0, K)


@pytest.mark.parametrize(
    "feature_map",
    [
        ClusterQuantizer(16, random_state=0),
        ClusterQuantizer(89, random_state=0),  # of a few rows each, or of one
        ClusterQuantizer(16, centers="random", random_state=0),
        OptimalPositiveRF(24, random_state=0),
        RFFSampler(24, random_state=0),
    ],
    ids=str,
)
def test_a_row_leaves_the_sums_that_it_is_part_of(feature_map):
    rows, labels = X.copy(), np.unique(y, return_inverse=True)[1]
    rows[50:60] = rows[:10]  # some with the same label, some with another
    weights = WEIGHTS + 0.5
    model = KernelRegressionClassifier(feature_map).fit(rows, labels, weights)
    is_of_class = np.equal.outer(labels, np.arange(3))
    frequencies = weights @ is_of_class / weights.sum()
    n = len(np.unique(np.column_stack([rows, labels]), axis=0))
    shares = np.array([1 / (n + 1), 0.03, 0.1, 0.3])

    def scores(sigma):
        kernels = seen_by_others(model, rows, labels, weights, sigma)
        seen = np.maximum(kernels @ (is_of_class * weights[:, None]), 0.0)
        total = seen.sum(axis=1, keepdims=True)
        p = np.where(total > 0, seen / np.where(total > 0, total, 1.0), frequencies)
        mixed = np.multiply.outer(1 - shares, p) + np.multiply.outer(shares, 0 * p + frequencies)
        return np.log(mixed[:, is_of_class]) @ weights / weights.sum()

    scale = RFFSampler().fit(rows, sample_weight=weights).sigma_
    assert_allclose(model.sigma_, refined(scale, lambda sigma: scores(sigma).max()), rtol=1e-9)
    assert_allclose(model.prior_share_, shares[np.argmax(scores(model.sigma_))], rtol=1e-12)
    assert_allclose(model.best_score_, scores(model.sigma_).max(), rtol=1e-9)


def test_probabilities_have_a_share_of_the_class_frequencies():
    labels = np.sin(3 * X[:, 0]) + X[:, 1] > 0.3
    feature_map = OptimalPositiveRF(24, random_state=0)
    model = KernelRegressionClassifier(feature_map).fit(X, labels, WEIGHTS)
    plain = KernelRegressionClassifier(feature_map, sigma=model.sigma_).fit(X, labels, WEIGHTS)
    share, frequencies = model.prior_share_, model.class_count_ / WEIGHTS.sum()
    assert share > 0 == plain.prior_share_ and not hasattr(plain, "best_score_")
    expected = (1 - share) * plain.predict_proba(Q) + share * frequencies
    assert_allclose(model.predict_proba(Q), expected, rtol=1e-12)
    assert_allclose(model.predict_log_proba(Q), np.log(expected), rtol=1e-9)
    assert_array_equal(model.predict(Q), expected.argmax(axis=1) == 1)
    batches = clone(model).partial_fit(X[:45], labels[:45], classes=[False, True])
    assert batches.partial_fit(X[45:], labels[45:]).prior_share_ > 0


@pytest.mark.parametrize("targets", [np.unique(y, return_inverse=True)[1], T], ids=["y", "T"])
def test_loo_leaves_out_copies(targets):
    rows, weights = X.copy(), WEIGHTS + 0.5
    rows[50:60] = rows[:10]
    scale = RFFSampler(sigma="scale").fit(rows, sample_weight=weights).sigma_
    expected = refined(scale, lambda sigma: loo_score(rows, targets, weights, sigma))
    estimator = KernelRegressor if targets is T else KernelRegressionClassifier
    model = estimator("exact").fit(rows, targets, sample_weight=weights)
    assert_allclose(model.sigma_, expected, rtol=1e-9)
    score = loo_score(rows, targets, weights, expected)
    assert_allclose(model.best_score_, 1 + score / 2 if targets is T else score, rtol=1e-9)
    assert_allclose(estimator("exact").fit(rows, targets, weights).sigma_, expected, rtol=1e-9)
    # The optimum is inside of the grid, and finer than its steps.
    assert scale < expected < 20 * scale


def test_loo_keeps_the_digits_of_targets_far_from_0():
    expected = KernelRegressor("exact").fit(X, T[:, 0]).sigma_
    for offset in (1e6, -1e9):
        assert KernelRegressor("exact").fit(X, offset + T[:, 0]).sigma_ == expected


def test_outputs_count_alike():
    rough, smooth = np.sin(9 * X[:, 0]), X[:, 1]
    model = KernelRegressor(OptimalPositiveRF(32), random_state=0)

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
    model.fit(rows, labels).predict(rows)  # compiles
    tracemalloc.start()
    model.fit(rows, labels).predict(rows)
    KernelRegressionClassifier("exact").fit(rows[:3000], labels[:3000])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6  # 128 MB and 72 MB are all


def test_names_of_labels_do_not_matter():
    """On a lattice many rows are equally near to rows of several classes."""
    places = np.indices((9, 9)).reshape(2, -1).T.astype(float)
    codes = (places // 2).sum(axis=1).astype(int) % 3
    model = KernelRegressionClassifier(AdaptiveRF(48, random_state=0))
    models = [
        clone(model).fit(places, names[codes])
        for names in (np.array([1, 2, 3]), np.array([8, 4, 6]))
    ]
    assert models[0].sigma_ == models[1].sigma_
    assert_array_equal(models[0].feature_map_.omega_, models[1].feature_map_.omega_)


def test_of_nearly_equal_scores_the_smallest_sigma_is_best():
    """Scores that lack one part in 10,000 more than the best are as good: here of a fine grid."""
    sigmas = np.linspace(0.7, 1.3, 61)
    noisy = np.sin(3 * X[:, 0]) + 0.3 * X[:, 1]
    for search, lack in (
        (ApproxKernelRidgeCV(FIXED["positive"], scoring="r2"), lambda best: abs(best) / 100),
        (ApproxKernelRidgeCV(FIXED["trigonometric"]), lambda best: abs(best)),
    ):
        model = search.set_params(sigmas=sigmas, alphas=[1.0], cv=KFold(3)).fit(X, noisy)
        scores = model.cv_results_["mean_test_score"]
        good = scores >= scores.max() - 1e-4 * lack(scores.max())
        assert model.sigma_ == model.feature_map_.sigma_ == sigmas[good].min()
        assert_array_equal(model.cv_results_["rank_test_score"] == 1, good)
        assert model.best_score_ == scores[good][0]


def test_the_best_score_and_the_best_map_agree_to_the_last_bit():
    """Scores of a split in another order have another rounding: it must not part them."""
    rng, sigmas = np.random.default_rng(0), [4.0, 3.0, 1.0, 2.0]
    for _ in range(40):
        values = rng.random(3)
        scores = iter(np.concatenate([rng.permutation(values) for _ in sigmas]))
        model = ApproxKernelRidgeCV(
            FIXED["positive"],
            sigmas=sigmas,
            alphas=[1.0],
            cv=3,
            scoring=lambda *_, scores=scores: next(scores),
        ).fit(X[:9], T[:9])
        assert model.sigma_ == model.feature_map_.sigma_ == 1.0
        assert model.best_score_ == pytest.approx(values.mean(), rel=1e-14)
        assert (model.cv_results_["rank_test_score"] == 1).all()


# ---------------------------------------------------------------- fewer rows than features


@pytest.mark.parametrize("kind", [ApproxKernelRidgeCV, ApproxKernelRidgeClassifierCV])
@pytest.mark.parametrize(
    ("feature_map", "weights"),
    [
        (RFFSampler(150, random_state=0), None),
        (OptimalPositiveRF(150, random_state=0), np.arange(90) % 3 + 0.5),
        (AdaptiveRF(150, random_state=0), None),  # reads labels
    ],
    ids=["trigonometric", "positive", "adaptive"],
)
def test_scores_of_few_rows_are_those_of_their_features(kind, feature_map, weights, monkeypatch):
    """Rows are searched in the space that they span, with the same scores and models."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 4))
    y = np.digitize(np.sin(2 * X[:, 0]), [-0.5, 0.5])
    targets = y if kind is ApproxKernelRidgeClassifierCV else np.column_stack([y, 1e3 * X[:, 1]])
    search = kind(feature_map, sigmas=3, alphas=[1e-4, 0.1], cv=4).fit(X, targets, weights)
    monkeypatch.setattr("skrf.regression.search._MOST_NUMBERS", 0)
    expected = clone(search).fit(X, targets, weights)
    for name, values in expected.cv_results_.items():
        if name.endswith("score"):
            assert_allclose(search.cv_results_[name], values, rtol=1e-8)
    assert (search.sigma_, search.alpha_) == (expected.sigma_, expected.alpha_)
    assert_allclose(search.component_coef_, expected.component_coef_, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("feature_map", [None, AdaptiveRF(40), RFFSampler(40)], ids=str)
def test_labels_at_random_score_at_chance(feature_map):
    """Held-out labels reach no map. Of 1,800 rows a share of .3 is 4.9 standard errors above."""
    rng, best = np.random.default_rng(0), []
    for seed in range(3):
        rows, labels = rng.normal(size=(600, 3)), rng.integers(0, 4, 600)
        search = ApproxKernelRidgeClassifierCV(
            feature_map, sigmas=2, scoring="accuracy", random_state=seed
        )
        best.append(search.fit(rows, labels).best_score_)
    assert np.mean(best) < 0.3


def test_all_rows_of_a_search_may_be_more_than_landmarks_are_sought_in(monkeypatch):
    monkeypatch.setattr("skrf.regression.search._CENTER_ROWS", 50)
    rows = np.random.default_rng(0).normal(size=(200, 2))
    model = ApproxKernelRidgeCV(ClusterNystroem(10, random_state=0), sigmas=2, subsample=None)
    assert model.fit(rows, rows[:, 0]).score(rows, rows[:, 0]) > 0.9
