"""Fits to rows in batches, and merges of fitted estimators: laws that hold for any cut of the rows.

`fit` on all rows together is the reference, to 1e-12 in float64; other tolerances say why.
"""

import pickle
from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from instances import MECHANISMS, make
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import Nystroem
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    ShuffleSplit,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from skrf import (
    AdaptiveRF,
    ApproxKernelRidge,
    ApproxKernelRidgeClassifier,
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
    ClusterNystroem,
    DenseExponentialRF,
    KernelRegressionClassifier,
    KernelRegressor,
    OptimalPositiveRF,
    PoissonRF,
    RelevanceProjection,
    RelevanceScaler,
    RFFSampler,
)
from skrf._batches import Scope
from skrf.features._batch_summary import BatchSummary
from skrf.statistics import Moments, PairStatistics

N = 240
_rng = np.random.default_rng(0)
X = _rng.normal(size=(N, 3))
NAMES = np.array(["a", "b", "c"])
Y = NAMES[(X[:, 0] > 0).astype(int) + (X[:, 1] > 1)]
T = np.column_stack([np.sin(2 * X[:, 0]), 1e3 + X[:, 2]])
WEIGHTS = _rng.random(N) * (np.arange(N) % 5 > 0)
# An empty batch, and single rows, the first of which has no weight.
CUTS = [0, 0, 1, 2, 90, 91, 91, 200, N]

SIGNED = RFFSampler(24, sigma="scale", random_state=0)
POSITIVE = OptimalPositiveRF(24, sigma="scale", random_state=0)
BY_LABELS = AdaptiveRF(12, random_state=0)
FROZEN = FrozenEstimator(RFFSampler(24, random_state=0).fit(X))

CLASSIFIERS = {
    "kernel": KernelRegressionClassifier(POSITIVE),
    "kernel-auto": KernelRegressionClassifier(POSITIVE),
    "kernel-labels": KernelRegressionClassifier(BY_LABELS, sigma="median"),
    "kernel-nystroem": KernelRegressionClassifier(Nystroem(n_components=20, random_state=0)),
    "kernel-piped": KernelRegressionClassifier(make_pipeline(StandardScaler(), POSITIVE)),
    "ridge": ApproxKernelRidgeClassifier(SIGNED),
    "ridge-search": ApproxKernelRidgeClassifierCV(SIGNED, sigmas=3, cv=3),
    "ridge-search-labels": ApproxKernelRidgeClassifierCV(BY_LABELS, sigmas=3, cv=3),
}
REGRESSORS = {
    "kernel": KernelRegressor(POSITIVE),
    "kernel-signed": KernelRegressor(SIGNED),
    "kernel-auto": KernelRegressor(AdaptiveRF(12, random_state=0)),
    "ridge": ApproxKernelRidge(SIGNED),
    "ridge-dense": ApproxKernelRidge(DenseExponentialRF(24, random_state=0)),
    "ridge-evidence": ApproxKernelRidge(SIGNED, alpha="evidence"),
    "ridge-search": ApproxKernelRidgeCV(SIGNED, sigmas=3, cv=3),
}
ESTIMATORS = [
    *(pytest.param(model, Y, id=f"classifier-{name}") for name, model in CLASSIFIERS.items()),
    *(pytest.param(model, T, id=f"regressor-{name}") for name, model in REGRESSORS.items()),
]
every_estimator = pytest.mark.parametrize(("estimator", "targets"), ESTIMATORS)
MERGEABLE = [name for name in MECHANISMS if hasattr(make(name, n_components=32), "partial_fit")]


def cut(*arrays, cuts=CUTS):
    """Return batches of arrays, those that are None left out."""
    arrays = [array for array in arrays if array is not None]
    return [tuple(array[a:b] for array in arrays) for a, b in pairwise(cuts)]


def answers(model, rows=X):
    """Return what a model says of rows, as numbers."""
    for method in ("predict_proba", "decision_function", "predict"):
        if hasattr(model, method):
            return getattr(model, method)(rows)
    return model.transform(rows)


def assert_same_model(one, two, *, rtol=1e-12, rows=X):
    """Check predictions, relative to the largest, and the fitted attributes that are numbers."""
    expected = answers(one, rows)
    assert_allclose(answers(two, rows), expected, rtol=0, atol=rtol * np.abs(expected).max())
    assert set(vars(one)) == set(vars(two))
    for name in ("alpha_", "sigma_", "best_score_", "target_mean_", "class_count_"):
        if hasattr(one, name):
            # Scores are differences of sums: they lose a digit or two.
            assert_allclose(getattr(two, name), getattr(one, name), rtol=30 * rtol, err_msg=name)
    for name, scores in getattr(one, "cv_results_", {}).items():
        if name.endswith("test_score"):
            assert_allclose(two.cv_results_[name], scores, rtol=1e3 * rtol, err_msg=name)
    if hasattr(one, "classes_"):
        assert_array_equal(two.classes_, one.classes_)


def assert_batches_equal_fit(estimator, *arrays, rows=X):
    """Check that a fit to batches is one to all samples."""
    whole, batched = clone(estimator).fit(*arrays), clone(estimator)
    assert batched.fit_batches(cut(*arrays)) is batched
    assert_same_model(whole, batched, rows=rows)


# ------------------------------------------------------------------ fit_batches is fit


@every_estimator
def test_batches_equal_all_samples(estimator, targets):
    assert_batches_equal_fit(estimator, X, targets, WEIGHTS)


@every_estimator
def test_batches_of_sorted_samples_equal_all_samples(estimator, targets):
    """Batches of a single class, the last of whose names is seen in the last batch alone."""
    column = targets if targets.ndim == 1 else targets[:, 0]
    order = np.argsort(column, kind="stable")
    assert_batches_equal_fit(estimator, X[order], targets[order])


@pytest.mark.parametrize("name", ["kernel", "kernel-labels", "ridge"])
def test_batches_of_sparse_rows(name):
    rows = sp.csr_array(X * (_rng.random(X.shape) < 0.5))
    assert_batches_equal_fit(CLASSIFIERS[name], rows, Y, WEIGHTS, rows=rows)


@pytest.mark.parametrize("name", ["kernel", "kernel-labels", "ridge-search-labels", "ridge-search"])
def test_batches_of_float32(name):
    """Features are float32, whose rounding is 6e-8 of numbers that are added in other blocks.

    The systems of ridge regression enlarge it, by up to a thousand here.
    """
    rows, model = X.astype(np.float32), CLASSIFIERS[name]
    whole, batched = clone(model).fit(rows, Y), clone(model).fit_batches(cut(rows, Y))
    atol = 1e-4 if name.startswith("ridge") else 3e-5
    assert_allclose(answers(batched), answers(whole), rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["kernel-signed", "ridge", "ridge-evidence"])
def test_batches_of_targets_of_very_different_size(name):
    sizes = np.where(np.arange(N) < 91, 2.0**20, 2.0**-20)
    assert_batches_equal_fit(REGRESSORS[name], X, np.sin(2 * X[:, 0]) * sizes)


def test_batches_at_a_sigma_where_sums_underflow():
    model = KernelRegressionClassifier(OptimalPositiveRF(24, sigma=1e3, random_state=0))
    whole, batched = clone(model).fit(X, Y), model.fit_batches(cut(X, Y))
    logs = whole.predict_log_proba(X + 1)
    assert logs.min() < -1e4 and np.exp(logs.min()) == 0
    assert_allclose(batched.predict_log_proba(X + 1), logs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", MECHANISMS)
def test_feature_maps_are_fitted_to_batches(name):
    feature_map = make(name, n_components=32, random_state=0)
    expected = clone(feature_map).fit(X, sample_weight=WEIGHTS).transform(X)
    # Its complex parameter is sought by an optimiser that stops at 1e-9 of its objective.
    rtol = 1e-6 if name == "GeneralizedExponentialRF" else 1e-12
    close = {"rtol": 0, "atol": rtol * np.abs(expected).max()}
    batched = clone(feature_map)
    assert batched.fit_batches([(x, None, w) for x, w in cut(X, WEIGHTS)]) is batched
    assert_allclose(batched.transform(X), expected, **close)
    if name in MERGEABLE:
        batches = cut(X, WEIGHTS, cuts=[0, 7, 100, N])
        parts = [PairStatistics.of(x[w > 0], None, w[w > 0], full=True) for x, w in batches]
        merged = clone(feature_map).fit_statistics(reduce(PairStatistics.merge, parts))
        assert merged.n_features_in_ == 3
        assert_allclose(merged.transform(X), expected, **close)
    # Batches may be rows alone, and an iterator is enough for one pass.
    assert_array_equal(
        clone(feature_map).fit_batches(x for (x,) in cut(X)).transform(X),
        clone(feature_map).fit_batches([x for (x,) in cut(X)]).transform(X),
    )


def test_what_needs_samples_gets_labels_and_weights():
    for model in (
        AdaptiveRF(12, random_state=0),
        ClusterNystroem(12, random_state=0),
        RelevanceScaler(random_state=0),
        RelevanceScaler(criterion="gradients", random_state=0),
        RelevanceProjection(random_state=0),
        RFFSampler(12, sigma="median", random_state=0),
    ):
        whole = clone(model).fit(X, Y, WEIGHTS)
        batched = model.fit_batches(cut(X, Y, WEIGHTS))
        assert_array_equal(batched.transform(X), whole.transform(X))


def test_tables_in_batches(tmp_path):
    pd, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    pl = pytest.importorskip("polars")
    names, model = ["u", "v", "w"], KernelRegressionClassifier(POSITIVE)
    table = pd.DataFrame(X, columns=names)
    expected = clone(model).fit(table, Y).predict_proba(table)
    arrow = pa.table({**dict(zip(names, X.T, strict=True)), "y": Y})
    frames = [pl.from_arrow(arrow.slice(k, 70)) for k in range(0, N, 70)]
    np.save(tmp_path / "rows.npy", X)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    for batches in (
        [(table.iloc[a:b], pd.Series(Y[a:b])) for a, b in pairwise(CUTS)],
        [(frame.select(names), frame["y"]) for frame in frames],
        [(frame.select(names), frame["y"]) for frame in arrow.to_batches(max_chunksize=70)],
        cut(mapped, Y),
    ):
        batched = clone(model).fit_batches(batches)
        # Whether the names of a pyarrow table are seen depends on scikit-learn's version.
        has_names = hasattr(batched, "feature_names_in_")
        assert has_names or not isinstance(batches[0][0], pd.DataFrame | pl.DataFrame)
        assert_allclose(batched.predict_proba(table if has_names else X), expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["kernel", "ridge-search-labels", "ridge", "ridge-search"])
def test_batches_of_other_libraries(name, library):
    codes = np.searchsorted(NAMES, Y)
    whole = clone(CLASSIFIERS[name]).fit(X, codes, WEIGHTS)
    batches = [
        tuple(map(library.array, batch)) for batch in cut(X, codes, WEIGHTS, cuts=[0, 90, N])
    ]
    assert_same_model(whole, clone(CLASSIFIERS[name]).fit_batches(batches))


# ------------------------------------------------------------------ batches that are read again


def test_what_batches_may_be(capsys):
    model = KernelRegressionClassifier(POSITIVE)
    whole = answers(clone(model).fit_batches(cut(X, Y)))
    assert_array_equal(answers(clone(model).fit_batches(lambda: iter(cut(X, Y)))), whole)
    assert capsys.readouterr().out == ""
    for verbose, n_lines in ((1, 2), (2, 16)):  # of 2 passes, or of 8 batches in each
        clone(model).fit_batches(cut(X, Y), verbose=verbose)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == n_lines and lines[-1].startswith("[fit_batches] sums: ")
    # Later batches go on with the map of all the former.
    model.fit_batches(cut(X, Y)).partial_fit(X[:60], Y[:60])
    assert model.class_count_.sum() == N + 60


def test_an_iterator_is_enough_for_one_pass_alone():
    with pytest.raises(TypeError, match="read once.*several passes.*statistics"):
        KernelRegressor(POSITIVE).fit_batches(iter(cut(X, T)))
    with pytest.raises(TypeError, match="FrozenEstimator.*classes"):
        KernelRegressionClassifier(FROZEN).fit_batches(iter(cut(X, Y)))
    for estimator, targets in [
        (KernelRegressor(FROZEN), T),
        (ApproxKernelRidge(FROZEN), T),
        (KernelRegressionClassifier(FROZEN), Y),
    ]:
        model = clone(estimator).fit_batches(iter(cut(X, targets, WEIGHTS)), classes=NAMES)
        assert_same_model(estimator.fit(X, targets, WEIGHTS), model)


def test_batches_that_are_no_batches():
    pd = pytest.importorskip("pandas")
    model, classifier = KernelRegressor(POSITIVE), KernelRegressionClassifier(POSITIVE)
    once, calls = iter(cut(X, T)), []

    def changing():
        calls.append(None)
        return cut(X, T)[: -1 if len(calls) == 1 else None] + [(X[:9], T[:9])] * (len(calls) == 1)

    def unread():
        raise AssertionError

    numbers, no_row = (X[:, 0] > 0).astype(int), "at least one row of positive weight"
    large = 2**63 + numbers.astype(np.uint64)
    tables = [pd.DataFrame(X, columns=list(names)) for names in ("uvw", "vuw")]
    for estimator, words, batches, options in (
        (model, "8 batches in the first pass and 0 in the next", lambda: once, {}),
        (model, "the same batches in the same order", changing, {}),
        (model, no_row, [], {}),
        (model, no_row, [(X[:0], T[:0])], {}),
        (ApproxKernelRidgeCV(POSITIVE), no_row, [(X, T, np.zeros(N))], {}),
        (model, "tuple of 4 parts", [(X, T, WEIGHTS, WEIGHTS)], {}),
        (model, "same features, got 3 and 2", [(X, T), (X[:, :2], T)], {}),
        (model, r"same outputs, got \(2,\) and \(\)", [(X, T), (X, T[:, 0])], {}),
        (model, "requires y", [X], {}),
        (RFFSampler(), "same names of features", tables, {}),
        (classifier, "not in classes", cut(X, Y), {"classes": ["a", "b"]}),
        (classifier, "classes must hold all labels", [(X, numbers)], {"classes": []}),
        (classifier, "got numbers and text or objects", [(X, numbers), (X, Y)], {}),
        (classifier, "got numbers and integers above", [(X, numbers), (X, large)], {}),
        (KernelRegressor("exact"), "keeps all rows", cut(X, T), {}),
        (KernelRegressor(RFFSampler(-3)), "n_components", unread, {}),
    ):
        with pytest.raises(ValueError, match=words):
            estimator.fit_batches(batches, **options)
        assert not hasattr(estimator, "feature_map_") and not hasattr(estimator, "n_features_in_")
    with pytest.raises(TypeError, match="batches must be an iterable"):
        model.fit_batches(3)


def test_classes_that_never_come_are_kept_and_those_without_weight_are_not():
    model = KernelRegressionClassifier(POSITIVE).fit_batches(cut(X, Y), classes=[*"dabc"])
    assert_array_equal(model.classes_, [*"abcd"])
    assert model.class_count_[3] == 0
    assert_array_equal(model.predict(X), clone(model).fit(X, Y).predict(X))
    labels = np.where(WEIGHTS > 0, Y, "z")
    for name in ("kernel", "ridge-search"):
        model = clone(CLASSIFIERS[name]).fit_batches(cut(X, labels, WEIGHTS))
        assert_array_equal(model.classes_, NAMES)


@pytest.mark.parametrize("name", ["kernel", "kernel-labels"])
def test_batches_with_and_without_weights(name):
    """Those without have weights of 1, in sums as in the sample."""
    weights = np.where(np.arange(N) < 100, 1.0, 7 * WEIGHTS)
    batches = [(X[:40], Y[:40]), (X[40:100], Y[40:100]), (X[100:], Y[100:], weights[100:])]
    whole = clone(CLASSIFIERS[name]).fit(X, Y, weights)
    assert_same_model(whole, clone(CLASSIFIERS[name]).fit_batches(batches))


def test_products_of_float32_are_as_precise_as_those_of_all_samples():
    """Alpha beside the products of all samples, not of a batch, decides whether they are float64.

    Here it is 0.6 of the limit for all samples, and 5 times that of a batch: products in float32
    would change coefficients by about 1e-2.
    """
    rows, targets = X.astype(np.float32), np.sin(X[:, 0])
    model = ApproxKernelRidge(RFFSampler(24, sigma=0.3, random_state=0), alpha=1.0)
    features = model.fit(rows, targets).feature_map_.transform(rows)
    model.set_params(alpha=0.6 * 1e-7 * N * features.var(axis=0).mean())
    whole = clone(model).fit(rows, targets)
    batched = model.fit_batches(cut(rows, targets, cuts=range(0, N + 1, 30)))
    assert_allclose(
        batched.component_coef_,
        whole.component_coef_,
        rtol=0,
        atol=1e-4 * np.abs(whole.component_coef_).max(),
    )


# ------------------------------------------------------------------ the sample


def survey_of(batches, n_rows, seed=0, most_key=np.inf):
    """Return summaries of batches, and their merge."""
    scope = Scope(n_rows, most_key, seed=seed)
    summaries = [
        BatchSummary.of(None, (rows, None, None), number, np.arange(len(rows)), scope)
        for number, rows in enumerate(batches)
    ]
    return summaries, reduce(BatchSummary.merge, summaries)


def test_the_sample_is_the_same_however_it_is_merged():
    rows = np.arange(1000.0)[:, None]
    batches = np.split(rows, [10, 20, 400])
    parts, survey = survey_of(batches, 50)
    other = parts[0].merge(parts[1].merge(parts[2].merge(parts[3])))
    assert_array_equal(other.sample.X, survey.sample.X)
    assert len(survey.sample.X) == 50 and (np.diff(survey.sample.X[:, 0]) > 0).all()
    assert len(survey_of(batches, 2000)[1].sample.X) == 1000
    # Where their number is known, few more rows are sent than are kept, and the same ones are.
    parts, again = survey_of(batches, 50, 0, Scope.among(50, 1000).most_key)
    assert_array_equal(again.sample.X, survey.sample.X)
    assert 50 < sum(len(summary.sample.X) for summary in parts) < 200
    assert not np.array_equal(survey_of(batches, 50, seed=1)[1].sample.X, survey.sample.X)
    # Of two batches of 500 samples 50 each are drawn, independently: about 5 places in both.
    sample = survey_of(np.split(rows, 2), 100)[1].sample
    places = [
        set((part % 500).tolist()) for part in np.split(sample.X[:, 0], [np.sum(sample.X < 500)])
    ]
    assert len(places[0] & places[1]) < 20


def test_the_sample_is_uniform():
    """Every row is in the sample with the same probability, 0.1, whichever batch it is in.

    400 samples of 40 of 400 rows: a count has the mean 40 and the variance 36, less a little, for
    the rows of a sample differ. Batches of 4, 96 and 300 rows: their means, and all counts.
    """
    rows, counts = np.arange(400.0)[:, None], np.zeros(400)
    for seed in range(400):
        sample = survey_of(np.split(rows, [4, 100]), 40, seed)[1].sample
        counts[sample.X[:, 0].astype(int)] += 1
    assert counts.sum() == 400 * 40
    for of_batch in np.split(counts, [4, 100]):
        assert abs(of_batch.mean() - 40) < 4.4 * np.sqrt(36 / len(of_batch))
    # Chi-square of 399 degrees of freedom: 399 with a standard deviation of 28.
    assert abs(np.sum((counts - 40) ** 2 / 36) - 399) < 4.4 * np.sqrt(2 * 399)


def test_more_samples_than_are_drawn():
    rows, targets = np.tile(X, (500, 1)), np.tile(T[:, 0], 500)
    rows += np.random.default_rng(0).normal(size=rows.shape)
    batches = cut(rows, targets, cuts=range(0, 120_001, 10_000))
    model = KernelRegressor(RFFSampler(4, sigma="median", random_state=0))
    batched = clone(model).fit_batches(batches)
    assert_same_model(batched, clone(model).fit_batches(batches), rtol=0)
    # The sums are those of all samples under a map that has seen some.
    frozen = KernelRegressor(FrozenEstimator(batched.feature_map_)).fit(rows, targets)
    assert_allclose(batched.predict(X), frozen.predict(X), rtol=1e-9, atol=1e-9)
    assert batched.feature_map_.statistics_.queries.weight == 100_000
    # Where statistics are enough, no samples are drawn.
    feature_map = RFFSampler(4, sigma="scale", random_state=0).fit_batches(batches)
    assert feature_map.statistics_.queries.weight == 120_000


# ------------------------------------------------------------------ folds


def test_folds_at_random():
    cv, order = KFold(4, shuffle=True, random_state=3), np.argsort(T[:, 0])
    model = ApproxKernelRidgeCV(POSITIVE, sigmas=[1.0], cv=cv, scoring="r2")
    batches = cut(X[order], T[order])
    one, two = clone(model).fit_batches(batches), clone(model).fit_batches(batches)
    assert_array_equal(one.cv_results_["mean_test_score"], two.cv_results_["mean_test_score"])
    # Rows in their order would be predicted from others than those near them.
    in_order = clone(model).set_params(cv=4).fit_batches(batches)
    assert one.best_score_ > in_order.best_score_ + 0.05
    # Scores vary with the folds, by less than 0.1 here.
    assert abs(one.best_score_ - model.fit(X, T).best_score_) < 0.1
    apart = ApproxKernelRidgeClassifierCV(BY_LABELS, sigmas=[1.0], cv=cv)
    score = clone(apart).fit_batches(cut(X, Y)).best_score_
    assert abs(score - apart.fit(X, Y).best_score_) < 0.1


@pytest.mark.parametrize(
    "model",
    [
        ApproxKernelRidgeClassifierCV(SIGNED, sigmas=3, scoring="accuracy"),
        ApproxKernelRidgeCV(SIGNED, sigmas=3, scoring="neg_median_absolute_error"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "cv", [None, ShuffleSplit(3, random_state=0), KFold(3, shuffle=True, random_state=1)], ids=str
)
def test_batches_take_any_splitter_and_scorer(model, cv):
    targets = Y if hasattr(model, "predict_proba") else T[:, 0]
    model = clone(model).set_params(cv=cv)
    whole, parts = clone(model).fit(X, targets), model.fit_batches(cut(X, targets))
    for name in ("mean_test_score", "std_test_score"):
        assert_allclose(parts.cv_results_[name], whole.cv_results_[name], rtol=1e-6)
    assert parts.sigma_ == pytest.approx(whole.sigma_)


def test_searches_in_batches_refuse_rows_as_splits_and_look_at_a_sample():
    with pytest.raises(ValueError, match="cv must be None, an integer or a splitter"):
        ApproxKernelRidgeClassifierCV(SIGNED, cv=[([0], [1])]).fit_batches(cut(X, Y))
    with pytest.raises(ValueError, match="cv must be None.*splitter that needs no groups.*GroupKF"):
        ApproxKernelRidgeCV(SIGNED, cv=GroupKFold(3)).fit_batches(cut(X, T))


# ------------------------------------------------------------------ statistics


def test_statistics_of_keys():
    keys = X[:50] + 1
    for mechanism in (
        OptimalPositiveRF(8, random_state=0),
        DenseExponentialRF(8, kernel="softmax", sigma=0.5, asymmetric=True, random_state=0),
    ):
        whole = clone(mechanism).fit(X, keys=keys)
        fitted = mechanism.fit_statistics(PairStatistics.of(X, keys, full=True))
        assert_allclose(fitted.transform_keys(keys), whole.transform_keys(keys), rtol=1e-12)


def test_statistics_of_a_fit_are_those_of_the_rows():
    """Other mechanisms can use them, and models of maps fitted in other ways can be merged."""
    fitted = OptimalPositiveRF(8, random_state=0).fit(X)
    expected = PoissonRF(8, random_state=0).fit(X).transform(X)
    poisson = PoissonRF(8, random_state=0).fit_statistics(fitted.statistics_)
    assert_allclose(poisson.transform(X), expected, rtol=1e-12)
    for other in (
        clone(fitted).fit_statistics(PairStatistics.of(X)),
        clone(fitted).fit_batches([X]),
    ):
        parts = [
            KernelRegressor(FrozenEstimator(feature_map)).fit(X, X[:, 0])
            for feature_map in (fitted, other)
        ]
        assert_allclose(parts[0].merge(parts[1]).predict(X), parts[0].predict(X))


def test_statistics_of_the_caller_are_copied():
    moments = Moments.of(X)
    given = [array.copy() for array in vars(moments).values() if isinstance(array, np.ndarray)]
    statistics = PairStatistics(*(Moments(moments.weight, *given),) * 2)
    feature_map = OptimalPositiveRF(8, random_state=0).fit_statistics(statistics)
    expected = feature_map.transform(X)
    for array in given:
        array *= 2  # which must not have become read-only
    assert_array_equal(feature_map.transform(X), expected)
    assert_array_equal(feature_map.redraw(1).redraw(0).statistics_.queries.origin, moments.origin)


def test_statistics_that_are_not_enough():
    statistics = PairStatistics.of(X)
    for mechanism in (AdaptiveRF(), ClusterNystroem(), RFFSampler(sigma="median")):
        with pytest.raises(AttributeError, match="has no fit_statistics here: it learns"):
            mechanism.fit_statistics(statistics)
    # What counts is the parameter, and not that of an earlier fit.
    fitted = RFFSampler(sigma="scale").fit(X).set_params(sigma="median")
    assert not hasattr(fitted, "fit_statistics") and hasattr(fitted, "partial_fit")
    with pytest.raises(TypeError, match="must be a PairStatistics, got array"):
        RFFSampler().fit_statistics(X)
    with pytest.raises(ValueError, match="needs statistics with covariances"):
        DenseExponentialRF().fit_statistics(statistics)
    with pytest.raises(ValueError, match="minimum and mean_absolute"):
        PoissonRF().fit_statistics(PairStatistics.of(X, sizes=False))
    with pytest.raises(ValueError, match="out of the range of sigma='scale'"):
        RFFSampler(sigma="scale").fit_statistics(PairStatistics.of(np.eye(3) * 1e-160))


# ------------------------------------------------------------------ merges of estimators


def fitted_parts(estimator, targets, weights=WEIGHTS):
    """Return estimators that were fitted to three parts, with one map."""
    frozen = clone(estimator).set_params(feature_map=FROZEN)
    batches = cut(X, targets, weights, cuts=[0, 5, 100, N])
    if not hasattr(frozen, "classes_") and targets.ndim == 1:
        return [clone(frozen).partial_fit(*b[:2], NAMES, b[2]) for b in batches]
    return [clone(frozen).fit(*batch) for batch in batches]


SUMMABLE = [
    pytest.param(CLASSIFIERS["kernel"], Y, id="KernelRegressionClassifier"),
    pytest.param(CLASSIFIERS["ridge"], Y, id="ApproxKernelRidgeClassifier"),
    pytest.param(REGRESSORS["kernel"], T, id="KernelRegressor"),
    pytest.param(REGRESSORS["ridge"], T, id="ApproxKernelRidge"),
    pytest.param(REGRESSORS["ridge-evidence"], T, id="evidence"),
]
every_sum = pytest.mark.parametrize(("estimator", "targets"), SUMMABLE)


@every_sum
def test_merge_commutes_associates_and_is_pure(estimator, targets):
    a, b, c = parts = fitted_parts(estimator, targets)
    before = pickle.dumps(parts)
    merged = [a.merge(b).merge(c), a.merge(b.merge(c)), c.merge(a).merge(b)]
    assert pickle.dumps(parts) == before
    whole = clone(a).fit(X, targets, WEIGHTS)
    for model in merged:
        assert type(model) is type(a) and model not in parts
        assert_same_model(whole, model)
    # It goes on where both ended.
    more = merged[0].partial_fit(X[:9], targets[:9])
    given = (NAMES,) if targets.ndim == 1 else ()
    last = merged[1].merge(clone(a).partial_fit(X[:9], targets[:9], *given))
    assert_allclose(answers(last), answers(more), rtol=1e-9, atol=1e-12)


@every_sum
def test_merge_names_what_differs(estimator, targets):
    feature_map, model = estimator.feature_map, clone(estimator).fit(X, targets)
    cases = [
        ("n_components=", {"feature_map": clone(feature_map).set_params(n_components=12)}, X),
        ("draw", {"random_state": 5}, X),
        ("statistics", {}, X + 1),
        ("n_features_in=3 against 2", {}, X[:, :2]),
        ("class, (RFFSampler|Optimal)", {"feature_map": Nystroem(n_components=3)}, X),
    ]
    if hasattr(estimator, "alpha"):
        cases.append(("parameter alpha", {"alpha": 7.0}, X))
    others = [
        (words, clone(estimator).set_params(**params).fit(rows, targets))
        for words, params, rows in cases
    ]
    if targets.ndim == 1:
        few = targets != "c"
        others.append(("classes=", clone(estimator).fit(X[few], targets[few])))
    else:
        others.append((r"outputs=\(2,\) against \(\)", clone(estimator).fit(X, targets[:, 0])))
    for words, other in others:
        with pytest.raises(ValueError, match=f"cannot merge with other: .*{words}"):
            model.merge(other)
    with pytest.raises(TypeError, match="other must be a"):
        model.merge(RFFSampler().fit(X))


def test_a_merge_of_maps_that_are_copies_or_have_no_pickle():
    """Maps that came through pickles are the same, bit for bit."""

    def pickled(model):
        return pickle.loads(pickle.dumps(model))

    steps = make_pipeline(FunctionTransformer(lambda rows: rows / 2), SIGNED)
    for feature_map, copied in (
        (DenseExponentialRF(12, random_state=0), pickled),
        (BY_LABELS, pickled),
        (Nystroem(n_components=3, random_state=0), pickled),
        (steps, lambda model: model),
    ):
        model = KernelRegressor(FrozenEstimator(clone(feature_map).fit(X)))
        one, two = (clone(model).fit(X[k::2], T[k::2]) for k in (0, 1))
        assert_same_model(clone(model).fit(X, T), one.merge(copied(two)))
    one, two = (KernelRegressor(Nystroem(n_components=3, random_state=k)).fit(X, T) for k in (0, 1))
    with pytest.raises(ValueError, match="what was fitted"):
        one.merge(two)


# ------------------------------------------------------------------ other laws


@pytest.mark.parametrize("feature_map", [AdaptiveRF(16, random_state=0), ClusterNystroem(20)])
def test_batches_may_come_in_the_same_memory(feature_map):
    order = np.argsort(X[:, 0])
    rows, labels = np.empty((40, 3)), np.empty(40, Y.dtype)

    def batches():
        for start in range(0, N, 40):
            rows[:], labels[:] = X[order[start : start + 40]], Y[order[start : start + 40]]
            yield rows, labels

    model = KernelRegressionClassifier(feature_map, sigma=1.0, random_state=0)
    expected = clone(model).fit(X[order], Y[order]).predict_proba(X)
    assert_allclose(model.fit_batches(batches).predict_proba(X), expected, atol=1e-12)


@pytest.mark.parametrize("sizes", [(1e-170, 1e-170), (1e150, 1e-90)])
def test_searches_of_targets_of_any_size(sizes):
    targets = np.column_stack([np.sin(2 * X[:, 0]), X[:, 1]]) * sizes
    assert_batches_equal_fit(ApproxKernelRidgeCV(POSITIVE, sigmas=[0.3, 1, 3], cv=3), X, targets)


def test_a_search_may_have_a_single_sigma():
    search = ApproxKernelRidgeCV(POSITIVE, sigmas=[1.0], alphas=[0.1, 1.0], cv=3, random_state=0)
    targets = np.sin(X[:, 0])
    batches = clone(search).fit_batches(cut(X, targets))
    assert_allclose(batches.predict(X), search.fit(X, targets).predict(X), rtol=1e-8)
    assert batches.alpha_ == search.alpha_


def test_searches_draw_from_a_random_state_once():
    def search():
        random_state = np.random.RandomState(0)
        feature_map = OptimalPositiveRF(24, sigma="scale", random_state=random_state)
        return ApproxKernelRidgeClassifierCV(feature_map, sigmas=[0.5, 1.0])

    expected = search().fit(X, Y).predict_proba(X)
    assert_allclose(search().fit_batches(cut(X, Y)).predict_proba(X), expected, atol=1e-12)


def test_merges_take_models_as_they_were_fitted():
    parts = [ApproxKernelRidge(FROZEN).fit(X[k::2], T[k::2]) for k in range(2)]
    integer = ApproxKernelRidge(FROZEN, alpha=1).fit(X[1::2], T[1::2])
    assert_array_equal(
        parts[0].merge(integer).component_coef_, parts[0].merge(parts[1]).component_coef_
    )
    parts[0].set_params(alpha=100.0)
    for one, other in (parts, parts[::-1]):
        with pytest.raises(ValueError, match=r"as they were fitted, but alpha=100.0 was 1.0"):
            one.merge(other)
    parts = [KernelRegressionClassifier(FROZEN).fit(X[Y == name], Y[Y == name]) for name in "ab"]
    with pytest.raises(ValueError, match=r"partial_fit\(X, y, classes=...\)"):
        parts[0].merge(parts[1])
    for model in (KernelRegressor("exact"), ApproxKernelRidgeCV()):
        assert not hasattr(model, "merge")
    with pytest.raises(ValueError, match="is not fitted yet"):
        KernelRegressor(POSITIVE).merge(KernelRegressor(POSITIVE).fit(X, T))
