"""RelevanceScaler: its score, the multipliers that it finds, and what leaves them as they are."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import approx_fprime

from skrf import RelevanceScaler
from skrf.regression.relevance import _Evidence, _LeaveOneOut, _sample

_rng = np.random.default_rng(0)
X = _rng.normal(size=(120, 4))
LABELS = (X[:, 1] > 0).astype(int) + (X[:, 1] > 1)
TARGETS = np.sin(2 * X[:, 2]) + 0.1 * _rng.normal(size=120)


def relevance(rows, y, sample_weight=None, **params):
    return RelevanceScaler(**{"random_state": 0, **params}).fit(rows, y, sample_weight).relevance_


# ------------------------------------------------------------------ the score


def score_by_hand(rows, weights, y, is_class):
    """Leave-one-out score, row by row, as the formulas say it."""
    n, shares, scores = len(rows), weights / weights.sum(), []
    for i in range(n):
        others = (rows != rows[i]).any(axis=1)
        kernel = weights * others * np.exp(-np.sum((rows - rows[i]) ** 2, axis=1) / 2)
        if is_class:
            p = kernel[y == y[i]].sum() / kernel.sum()
            scores.append(np.log(p + shares[y == y[i]].sum() / n))
        else:
            scores.append((y[i] - kernel @ y / kernel.sum()) ** 2)
    if is_class:
        return shares @ scores
    variances = np.average((y - np.average(y, axis=0, weights=weights)) ** 2, 0, weights)
    return -np.mean(np.log(shares @ np.array(scores) / variances + 1 / n)) / 2


@pytest.mark.parametrize("kind", ["labels", "one output", "two outputs"])
def test_the_score_and_its_gradient(kind):
    rng = np.random.default_rng(1)
    rows, weights = rng.normal(size=(30, 3)), rng.uniform(0.5, 3, size=30)
    rows[7] = rows[8] = rows[9]
    y = {
        "labels": rng.integers(0, 3, 30),
        "one output": rng.normal(5, 2, size=(30, 1)),
        "two outputs": rng.normal(size=(30, 2)) * [1, 1e3],
    }[kind]
    targets = np.eye(3)[y] if kind == "labels" else y
    score = _LeaveOneOut(rows, weights, targets, kind == "labels")
    for logs in (np.zeros(3), np.array([0.5, -1.0, 1.5])):
        value, gradient = score(logs)
        expected = score_by_hand(rows * np.exp(logs), weights, y, kind == "labels")
        assert_allclose(value, expected, rtol=1e-12)
        numbers = approx_fprime(logs, lambda at: score(at)[0], 1e-7)
        assert_allclose(gradient, numbers, rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------------ what it finds


def test_labels_that_no_column_predicts_change_little():
    """All steps would fit luck: without a stop half of these ratios exceed 1.15, and one is 8."""
    ratios = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        found = relevance(rng.normal(size=(60, 6)), rng.integers(0, 2, 60))
        ratios.append(found.max() / found.min())
    assert np.median(ratios) == pytest.approx(1.0)


def test_left_out_parts_do_not_depend_on_names_or_order():
    order = np.random.default_rng(3).permutation(len(X))
    renamed = np.array(["c", "a", "b"])[np.unique(LABELS, return_inverse=True)[1]]
    assert_allclose(relevance(X[order], renamed[order]), relevance(X, LABELS), rtol=1e-6)


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_the_evidence_and_its_gradient(n_outputs):
    rng = np.random.default_rng(2)
    rows, weights = rng.normal(size=(30, 3)), rng.integers(1, 4, 30).astype(float)
    y = np.column_stack([np.sin(rows[:, 0]), rows[:, 1]])[:, :n_outputs]
    score = _Evidence(rows, weights, y)
    logs = np.array([0.1, -0.4, 0.2, -1.5])
    value, gradient = score(logs)
    slopes = approx_fprime(logs, lambda logs: score(logs)[0], 1e-7)
    assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-6)
    # A normal law of weighted targets about their mean, of the best scale.
    weights *= 30 / weights.sum()
    products = (rows * np.exp(logs[:3])) @ score.projections.T
    features = np.hstack([np.sin(products), np.cos(products)]) / 16
    shares, roots = weights / 30, np.sqrt(weights)[:, None]
    features = (features - shares @ features) * roots
    covariance = np.eye(30) + features @ features.T / np.exp(-1.5)
    targets = (y - shares @ y) / np.sqrt(shares @ (y - shares @ y) ** 2) * roots
    squares = np.einsum("nt,nt->t", targets, np.linalg.solve(covariance, targets))
    expected = 29 * np.log(squares).sum() + n_outputs * np.linalg.slogdet(covariance)[1]
    assert value == pytest.approx(-expected / 60, rel=1e-9)


def test_length_scales_by_evidence(monkeypatch):
    rng = np.random.default_rng(0)
    rows = rng.uniform(-2, 2, size=(300, 5))
    targets = np.sin(3 * rows[:, 0]) + rows[:, 1] + 0.1 * rng.normal(size=300)
    # Of fewer projections, whose cost is cubic.
    monkeypatch.setattr("skrf.regression.relevance._N_PROJECTIONS", 64)
    by_evidence = relevance(rows, targets, criterion="evidence")
    assert by_evidence[0] > 2 * by_evidence[1] > 4 * by_evidence[2:].max()
    assert_allclose(rows.var(axis=0) @ by_evidence**2, rows.var(axis=0).sum())
    assert_allclose(
        relevance(1e6 * rows, 5 * targets, criterion="evidence"), by_evidence, rtol=1e-3
    )
    with_a_constant = np.column_stack([targets, np.ones(300)])
    assert_allclose(relevance(rows, with_a_constant, criterion="evidence"), by_evidence)
    assert_array_equal(relevance(rows, np.ones(300), criterion="evidence"), np.ones(5))
    both = np.column_stack([targets, rows[:, 4]])
    assert relevance(rows, both, criterion="evidence")[4] > 10 * by_evidence[4]
    with pytest.raises(ValueError, match="criterion='evidence' needs regression targets"):
        relevance(rows, rows[:, 0] > 0, criterion="evidence")


def test_the_evidence_is_judged_by_another_draw(monkeypatch):
    """Multipliers of noise that suit their own few projections alone lose to leave-one-out."""
    monkeypatch.setattr("skrf.features.relevance._N_PROJECTIONS", 16)
    rng = np.random.default_rng(0)
    rows, noise = rng.normal(size=(30, 3)), rng.normal(size=30)
    by_evidence = relevance(rows, noise, criterion="evidence")
    assert_allclose(by_evidence, relevance(rows, noise), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:A column-vector y:sklearn.exceptions.DataConversionWarning")
@pytest.mark.parametrize(
    ("y", "place"),
    [
        (np.array(["low", "middle", "high"])[LABELS], 1),
        (LABELS[:, None] > 0, 1),
        (TARGETS, 2),
        (1e6 + 1e-3 * TARGETS[:, None], 2),
    ],
    ids=["names", "booleans", "targets", "far targets"],
)
def test_the_column_that_says_something(y, place):
    multipliers = relevance(X, y)
    assert multipliers.argmax() == place
    assert multipliers[place] > 3 * np.delete(multipliers, place).max()
    assert_allclose(multipliers**2 @ X.var(axis=0), X.var(axis=0).sum())


def test_two_outputs_noise_and_weights():
    two = relevance(X, np.column_stack([TARGETS, 50 * (X[:, 0] > 0)]))
    assert set(np.argsort(two)[2:]) == {0, 2}
    noise = np.random.default_rng(3).normal(size=(400, 5))
    assert np.abs(np.log(relevance(noise, np.arange(400) % 2))).max() < 1.5
    # Half of the samples follow one column, half another: weights tell which of them count.
    is_first = np.arange(120) < 60
    y = np.where(is_first, X[:, 0] > 0, X[:, 3] > 0)
    assert relevance(X, y, np.where(is_first, 1.0, 1e-3)).argmax() == 0
    assert relevance(X, y, np.where(is_first, 1e-3, 1.0)).argmax() == 3


def test_floats_are_targets_and_integers_labels():
    """Only the order of the numbers tells a column that labels do not see."""
    counts = np.argsort(np.argsort(X[:, 3])) // 8
    as_floats, as_labels = relevance(X, counts.astype(float)), relevance(X, counts)
    assert as_floats.argmax() == 3 and not np.allclose(as_floats, as_labels, rtol=0.05)


def test_units_do_not_matter():
    for y in (LABELS, TARGETS):
        expected = relevance(X, y)
        for factor in (1e-100, 1e100):
            assert_allclose(relevance(factor * X + 3 * factor, y), expected, rtol=1e-4)
    for factor in (1e-300, 1e307):
        assert_allclose(relevance(X, factor * TARGETS), expected, rtol=1e-4)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_constant_columns_stay_of_average_relevance(form):
    wide = np.column_stack([X, np.full(120, 0.1), np.zeros(120)])
    varying, constant = np.split(relevance(form(wide), LABELS), [4])
    assert_allclose(varying, relevance(X, LABELS), rtol=1e-6)
    assert constant[0] == constant[1] and varying.min() < constant[0] < varying.max()


def test_where_nothing_is_to_be_told_columns_stay_as_they_are():
    assert_array_equal(relevance(np.ones((9, 2)), np.arange(9) % 2), [1, 1])
    assert_array_equal(relevance(X[:1], [0]), np.ones(4))
    for y in (np.zeros(120, int), np.full(120, 0.3)):
        assert_allclose(relevance(X, y), 1, rtol=1e-12)
    # A column that varies in samples that were not drawn alone.
    rare = np.column_stack([X, np.zeros(120)])
    rare[np.random.default_rng(5).integers(120), 4] = 1e-3
    assert np.isfinite(relevance(rare, LABELS, n_samples=20)).all()


# ------------------------------------------------------------------ rows and weights


@settings(max_examples=20, derandomize=True, deadline=None, database=None)
@given(
    st.sampled_from(["labels", "targets"]),
    st.sampled_from([12, 500]),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_weights_are_repetitions(kind, n_samples, is_coarse, seed):
    """Also where rows are drawn; neither the order of rows nor a common factor matters."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(40, 3))
    rows = np.round(rows) if is_coarse else rows
    y = rng.integers(0, 3, 40) if kind == "labels" else np.round(rng.normal(size=40), 1)
    weights = rng.integers(0, 4, 40)
    weights[0] += 1
    expected = relevance(rows, y, weights, n_samples=n_samples)
    repeated = rng.permutation(np.repeat(np.arange(40), weights))
    kept = rng.permutation(np.flatnonzero(weights))
    for again in (
        relevance(rows[repeated], y[repeated], n_samples=n_samples),
        relevance(rows[kept], y[kept], 0.3 * weights[kept], n_samples=n_samples),
        relevance(sp.csr_array(rows), y, weights, n_samples=n_samples),
    ):
        # A search amplifies rounding.
        assert_allclose(again, expected, rtol=1e-3)


def test_the_sample_is_stratified():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 2))
    labels = np.repeat([0, 1, 2], [2400, 540, 60])
    drawn, weights, y = _sample(rows, labels, None, 500, rng)
    assert drawn.shape == (500, 2) and (weights == 1).all()
    assert_array_equal(np.bincount(y), [400, 90, 10])
    # In proportion to weights, and evenly over the targets of a regression.
    _, weights, y = _sample(rows, labels, 1.0 + 39 * (labels == 2), 500, rng)
    assert_allclose(np.bincount(y, weights), 500 * np.array([2400, 540, 2400]) / 5340, atol=1)
    _, _, y = _sample(rows, np.arange(3000.0)[:, None], None, 500, rng)
    assert_allclose(np.diff(y[:, 0]), 6, atol=6)


def test_the_draw():
    rows = np.random.default_rng(0).normal(size=(900, 3))
    y = rows[:, 0] > 0
    first = relevance(rows, y, random_state=1)
    assert_array_equal(relevance(rows, y, random_state=1), first)
    assert not np.array_equal(relevance(rows, y, random_state=2), first)
    # Without a draw there is nothing random.
    one, other = (relevance(X, LABELS, random_state=seed) for seed in (1, 2))
    assert_allclose(one, other, rtol=1e-3)


# ------------------------------------------------------------------ a transformer


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_containers(dtype):
    scaler = RelevanceScaler(random_state=0).fit(X, LABELS)
    rows = X.astype(dtype)
    scaled = scaler.transform(rows)
    assert scaled.dtype == dtype
    assert_allclose(scaled, X * scaler.relevance_, rtol=1e-6)
    assert_allclose(scaler.inverse_transform(scaled), rows, rtol=1e-6)
    sparse = scaler.transform(sp.csr_array(rows))
    assert sp.issparse(sparse) and sparse.dtype == dtype
    assert_array_equal(sparse.toarray(), scaled)
    assert sp.issparse(scaler.inverse_transform(sparse))
    assert_allclose(relevance(rows, LABELS), relevance(rows.astype(float), LABELS), rtol=1e-4)
    assert list(scaler.get_feature_names_out(["a", "b", "c", "d"])) == ["a", "b", "c", "d"]


def test_array_libraries():
    xp = pytest.importorskip("array_api_strict")
    scaler = RelevanceScaler(random_state=0).fit(X, LABELS)
    other = RelevanceScaler(random_state=0).fit(xp.asarray(X), xp.asarray(LABELS))
    assert_array_equal(other.relevance_, scaler.relevance_)
    assert_array_equal(np.asarray(other.transform(xp.asarray(X))), X * scaler.relevance_)


def test_a_fit_is_whole_and_cannot_be_overwritten():
    scaler = RelevanceScaler(random_state=0).fit(X, LABELS)
    before = scaler.relevance_.copy()
    for call, message in (
        ((np.where(X == X[3, 2], np.nan, X), LABELS), "NaN"),
        ((X, LABELS, -np.ones(120)), "sample_weight"),
        ((np.array([[1e200], [-1e200]]), [0, 1]), "X is too large"),
    ):
        with pytest.raises(ValueError, match=message):
            scaler.fit(*call)
        assert_array_equal(scaler.relevance_, before)
        assert scaler.n_features_in_ == 4
    with pytest.raises(ValueError, match="'n_samples' parameter"):
        RelevanceScaler(n_samples=1).fit(X, LABELS)
    with pytest.raises(ValueError, match="read-only"):
        scaler.relevance_[0] = 1
    far = np.full((2, 4), 1.7e308)
    for rows in (far, sp.csr_array(far)):
        with pytest.raises(ValueError, match="X times relevance_ exceeds the range of float64"):
            scaler.transform(rows)
