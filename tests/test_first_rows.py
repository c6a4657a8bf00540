"""The first rows of `partial_fit`: a map is fitted to more than a tiny first batch."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skrf import (
    AdaptiveRF,
    ApproxKernelRidge,
    ApproxKernelRidgeClassifier,
    ClusterNystroem,
    ClusterQuantizer,
    KernelRegressionClassifier,
    KernelRegressor,
    OptimalPositiveRF,
    RFFSampler,
)
from skrf.regression import first_rows

RNG = np.random.default_rng(0)
X = RNG.normal(size=(301, 2))
T = np.sin(2 * X[:, 0]) + X[:, 1]
Y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
Q = RNG.normal(size=(200, 2))
WEIGHTS = RNG.random(301) * (np.arange(301) % 7 > 0)
SEEDED = {"random_state": 0}
WEIGHED = {"class_weight": {0: 0.5, 2: 3.0}}
MODELS = {
    "ridge": ApproxKernelRidge(RFFSampler(64), alpha=0.01, **SEEDED),
    "ridge, sigma given": ApproxKernelRidge(OptimalPositiveRF(64), sigma=1.0, alpha=0.01, **SEEDED),
    "ridge classifier": ApproxKernelRidgeClassifier(RFFSampler(64), alpha=0.1, **SEEDED),
    "weighted classes": ApproxKernelRidgeClassifier(RFFSampler(64), alpha=0.1, **WEIGHED, **SEEDED),
    "classifier": KernelRegressionClassifier(**SEEDED),
    "regressor": KernelRegressor(AdaptiveRF(64), **SEEDED),
    "landmarks": ApproxKernelRidge(ClusterNystroem(48), alpha=0.01, **SEEDED),
    "of another package": ApproxKernelRidge(
        make_pipeline(StandardScaler(), RFFSampler(64, **SEEDED)), alpha=0.01
    ),
}


def targets(model):
    return Y if hasattr(model, "decision_function") else T


def streamed(model, cuts, rows=X, weights=None):
    """Return a copy that has seen rows in batches that end at the cuts."""
    model, y = clone(model), targets(model)
    classes, parts = {"classes": [0, 1, 2]} if y is Y else {}, getattr(rows, "iloc", rows)
    for start, end in zip([0, *cuts], cuts, strict=False):
        given = {} if weights is None else {"sample_weight": weights[start:end]}
        model.partial_fit(parts[start:end, :], y[start:end], **classes, **given)
    return model


def answers(model, queries=Q):
    return getattr(model, "decision_function", model.predict)(queries)


every_model = pytest.mark.parametrize("name", MODELS)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"weighted classes"}))
def test_batches_of_one_row_teach_as_much_as_all_rows(name):
    model = MODELS[name]
    truth = np.sin(2 * Q[:, 0]) + Q[:, 1]
    truth = (Q[:, 0] > 0).astype(int) + (Q[:, 1] > 0.5) if targets(model) is Y else truth
    stream = streamed(model, range(1, 302))
    assert stream.score(Q, truth) > clone(model).fit(X, targets(model)).score(Q, truth) - 0.02


@every_model
@pytest.mark.parametrize(
    ("sizes", "n_mapped"),
    [
        ([1] * 5, 4),
        ([1] * 100, 64),
        ([3, 2, 1, 20, 20], 26),
        ([1, 300], 301),
        ([255, 1, 45], 256),
        ([256, 45], 256),
    ],
    ids=lambda value: f"{value}"[:16],
)
def test_the_map_is_that_of_at_least_half_of_the_rows(name, sizes, n_mapped, monkeypatch):
    """The others are added, as if the former had been the first batch."""
    monkeypatch.setattr(first_rows, "_PER_COMPONENT", 1)  # 256 rows suffice for every map
    n_rows, model = sum(sizes), MODELS[name]
    stream = streamed(model, np.cumsum(sizes))
    once = streamed(model, sorted({n_mapped, n_rows}))
    assert_allclose(answers(stream), answers(once), rtol=1e-7, atol=1e-9)
    assert (stream._first_rows_ is None) == (n_rows >= 256)
    # That is the map of a fit, except for sigmas and centres that are chosen by targets.
    if name == "ridge, sigma given":
        alone = clone(model.feature_map).set_params(sigma=1.0, **SEEDED).fit(X[:n_mapped])
        assert_allclose(stream.feature_map_.A_, alone.A_, rtol=1e-12)


@pytest.mark.parametrize("name", ["ridge", "weighted classes", "classifier"])
def test_rows_are_kept_as_they_came(name, library):
    model, cuts = MODELS[name], [1, 2, 40, 90]
    expected = answers(streamed(model, [90]))
    for rows in (sp.csr_array(X), library.array(X), X.astype(np.float32)):
        stream = streamed(model, cuts, rows)
        assert all(type(part[0]) is type(rows) for part in stream._first_rows_.parts)
        assert_allclose(answers(stream), expected, rtol=1e-3, atol=1e-4)
    # Batches of several kinds, some of them without weights.
    y = targets(model)
    stream = streamed(model, [1], sp.csr_array(X))
    stream.partial_fit(library.array(X[1:40]), y[1:40], sample_weight=np.ones(39))
    stream.partial_fit(X[40:90], y[40:90])
    assert_allclose(answers(stream), expected, rtol=1e-7, atol=1e-9)


def test_columns_keep_their_names():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(X, columns=["u", "v"])
    stream = streamed(MODELS["ridge"], [1, 2, 40], table)
    assert_array_equal(stream.feature_names_in_, ["u", "v"])
    with pytest.raises(ValueError, match="feature names"):
        stream.partial_fit(table[["v", "u"]], T)


@every_model
def test_weights_count(name):
    model, cuts = MODELS[name], [1, 2, 40, 90]
    stream = streamed(model, cuts, weights=1 + WEIGHTS)
    once = streamed(model, [90], weights=1 + WEIGHTS)
    assert_allclose(answers(stream), answers(once), rtol=1e-7, atol=1e-9)
    # Rows of weight 0 are not kept.
    stream = streamed(model, [2, 40, 90], weights=WEIGHTS)
    assert stream._first_rows_.n_rows == np.count_nonzero(WEIGHTS[:90])


def test_rows_are_kept_until_they_suffice(monkeypatch):
    ridge, rows = MODELS["ridge"], np.resize(X[:20], (5000, 2))
    assert streamed(ridge, [255])._first_rows_ is not None
    assert streamed(ridge, [255, 256])._first_rows_ is None
    assert streamed(ridge, [256])._first_rows_ is None
    for kind in (ClusterQuantizer, AdaptiveRF, ClusterNystroem, Nystroem):  # placed near rows
        near = clone(ridge).set_params(feature_map=kind(n_components=70))
        assert streamed(near, [279])._first_rows_ is not None
        assert streamed(near, [279, 280])._first_rows_ is None
    # Rows that are repeated, and wide ones.
    model = ApproxKernelRidge(RFFSampler(8, random_state=0))
    model.partial_fit(rows[:4095], rows[:4095, 0])
    assert len(model._first_rows_.known) == 20
    assert model.partial_fit(-rows[:1], [0.0])._first_rows_ is None
    monkeypatch.setattr(first_rows, "_MOST_NUMBERS", 400)
    assert streamed(ridge, [199])._first_rows_ is not None
    assert streamed(ridge, [199, 200])._first_rows_ is None


def test_only_partial_fit_keeps_rows():
    model = MODELS["ridge"]
    fits = [
        clone(model).fit(X[:9], T[:9]),
        clone(model).fit_batches([(X[:9], T[:9])]),
        streamed(model, [9]).fit(X[:9], T[:9]),
        streamed(model, [9]).fit_batches([(X[:9], T[:9])]),
    ]
    for fitted in fits:
        assert fitted._first_rows_ is None
        assert fitted.partial_fit(X[9:99], T[9:99])._first_rows_ is None
        assert_allclose(fitted.feature_map_.sigma_, fits[0].feature_map_.sigma_, rtol=1e-12)
    frozen = FrozenEstimator(RFFSampler(8).fit(X))
    assert streamed(ApproxKernelRidge(frozen), [3])._first_rows_ is None


def test_models_that_keep_rows_are_not_merged():
    stream, whole = streamed(MODELS["ridge"], [9]), clone(MODELS["ridge"]).fit(X[:9], T[:9])
    said = "partial_fit still keeps its first rows.* merge after at least 256 distinct rows, or fit"
    for one, other in ((stream, whole), (whole, stream), (stream, stream)):
        with pytest.raises(ValueError, match=said):
            one.merge(other)
    assert stream.partial_fit(X, T).merge(stream).score(X, T) > 0.9


def test_kept_rows_are_copies_that_pickles_hold_and_nothing_else_changes():
    model, rows, y, weights = MODELS["ridge"], X[:40].copy(), T[:40].copy(), 1 + WEIGHTS[:40]
    stream = clone(model).partial_fit(rows, y, weights)
    before, pickled = dict(vars(stream)), pickle.dumps(stream)
    for array in (rows, y, weights):
        array[...] = 7.0
    stream.predict(Q)
    with pytest.raises(ValueError, match="NaN"):
        stream.partial_fit(np.full((50, 2), np.nan), np.zeros(50))
    assert all(vars(stream)[name] is value for name, value in before.items())
    expected = clone(model).partial_fit(X[:40], T[:40], 1 + WEIGHTS[:40]).partial_fit(X, T)
    for fitted in (pickle.loads(pickled), stream):
        assert_array_equal(fitted.partial_fit(X, T).predict(Q), expected.predict(Q))
