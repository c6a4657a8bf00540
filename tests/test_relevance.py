"""Scales learned from targets: their scores, what is found, and what leaves them as they are."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import approx_fprime

from skrf import RelevanceProjection, RelevanceScaler
from skrf.regression.feature_machine import Directions, Multipliers, halves
from skrf.regression.relevance import _Evidence, _LeaveOneOut, _log_probabilities, _sample

_rng = np.random.default_rng(0)
X = _rng.normal(size=(120, 4))
LABELS = (X[:, 1] > 0).astype(int) + (X[:, 1] > 1)
TARGETS = np.sin(2 * X[:, 2]) + 0.1 * _rng.normal(size=120)


def relevance(rows, y, sample_weight=None, **params):
    return RelevanceScaler(**{"random_state": 0, **params}).fit(rows, y, sample_weight).relevance_


def components(rows, y, sample_weight=None, **params):
    model = RelevanceProjection(**{"random_state": 0, **params})
    return model.fit(rows, y, sample_weight).components_


def by_gradients(rows, y, sample_weight=None, **params):
    return relevance(rows, y, sample_weight, criterion="gradients", **params)


ALL = pytest.mark.parametrize("learned", [relevance, by_gradients, components])
MULTIPLIERS = pytest.mark.parametrize("learned", [relevance, by_gradients])
MACHINES = pytest.mark.parametrize("kind", [Multipliers, Directions])


# ------------------------------------------------------------------ the score


def score_by_hand(rows, weights, leaving, y, is_class):
    """Leave-one-out score, row by row, as the formulas say it."""
    n, shares, scores = len(rows), weights / weights.sum(), []
    for i in range(n):
        others = 1 - leaving[i] * (np.arange(n) == i)
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
    leaving = np.where(np.arange(30) % 3, 1.0, 0.4)
    score = _LeaveOneOut(rows, weights, leaving, targets, kind == "labels")
    for logs in (np.zeros(3), np.array([0.5, -1.0, 1.5])):
        value, gradient = score(logs)
        expected = score_by_hand(rows * np.exp(logs), weights, leaving, y, kind == "labels")
        assert_allclose(value, expected, rtol=1e-12)
        numbers = approx_fprime(logs, lambda at: score(at)[0], 1e-7)
        assert_allclose(gradient, numbers, rtol=1e-4, atol=1e-6)


def test_probabilities_of_left_out_rows_are_their_definition():
    logs, rng = np.array([0.1, -0.4, 0.2, 0.3]), np.random.default_rng(0)
    classes, weights = np.eye(3)[rng.integers(0, 3, 120)], rng.uniform(1, 2, 120)
    parts = X, weights, np.ones(120), classes
    train, test = [part[:90] for part in parts], [part[90:] for part in parts]
    found = _log_probabilities(logs, train, test)
    for row, truth, one in zip(test[0], test[3], found, strict=True):
        kernel = train[1] * np.exp(-np.sum((np.exp(logs) * (row - train[0])) ** 2, axis=1) / 2)
        p = kernel @ train[3] @ truth / kernel.sum()
        assert one == pytest.approx(np.log(p + 1 / (90 * 3)), rel=1e-9)


# ------------------------------------------------------------------ feature machines


def machine_of(kind):
    """Return a machine with scales and a fit, and its regression at any rows."""
    rng = np.random.default_rng(4)
    rows, weights = np.round(rng.normal(size=(25, 3)), 1), rng.uniform(0.5, 3, size=25)
    targets = np.column_stack([np.sin(2 * rows[:, 0]) + rows[:, 1], rows[:, 2] ** 2])
    machine = kind(rows, weights, targets)
    for _ in range(2):
        machine.fit((1.2, 0.3))
        machine.step()
    machine.fit((0.8, 0.1))

    def values(at):
        apart = machine.scaled(at)[:, None] - machine.rows
        size = np.abs(apart).sum(axis=2) if kind is Multipliers else np.sum(apart**2, axis=2)
        return np.exp(-size / (0.8 * machine.unit) ** kind.exponent) @ machine.coef

    return machine, weights, targets, values


@MACHINES
def test_scales_are_the_root_of_gradients_by_finite_differences(kind):
    """As a function of the rows before scaling; where rows tie, the mean of both sides."""
    machine, weights, _, values = machine_of(kind)
    steps = 1e-5 * np.eye(3)
    gradients = np.stack(
        [(values(machine.X + h) - values(machine.X - h)) / 2e-5 for h in steps], axis=2
    )
    outer = np.einsum("n,nca,ncb->ab", weights, gradients, gradients)
    machine.step()
    found = machine.scales
    if kind is Multipliers:
        expected = np.sqrt(np.diagonal(outer))
    else:
        assert_allclose(found, found.T, atol=1e-12)
        found, expected = found @ found, outer
    assert np.ptp(np.linalg.norm(np.atleast_2d(expected), axis=0)) > 0.1 * np.max(expected)
    assert_allclose(found / np.max(found), expected / np.max(expected), rtol=2e-5, atol=1e-6)


@MACHINES
def test_widths_and_penalties_are_chosen_by_leaving_rows_out(kind):
    machine, weights, targets, _ = machine_of(kind)
    shares = weights / weights.sum()
    targets = targets - shares @ targets
    for width, penalty in [(0.5, 0.3), (3.0, 0.01)]:
        kernel, coef, error = machine.regression(width, penalty)
        system = kernel + np.diag(penalty / (25 * shares))
        assert_allclose(coef, np.linalg.solve(system, targets), atol=1e-4 * np.abs(coef).max())
        squares = 0.0
        for i in range(25):
            rest = np.arange(25) != i
            coef = np.linalg.solve(system[np.ix_(rest, rest)], targets[rest])
            squares += shares[i] * np.sum((targets[i] - kernel[i, rest] @ coef) ** 2)
        assert error == pytest.approx(squares, rel=1e-4)
    choices = [(0.5, 0.3), (1.2, 0.1), (3.0, 0.01)]
    errors = [machine.regression(*choice)[2] for choice in choices]
    assert (
        machine.fit(*choices) == np.argmin(errors)
        and machine.width == choices[np.argmin(errors)][0]
    )


@MACHINES
def test_errors_at_other_rows_are_those_of_the_regression(kind):
    machine, weights, targets, values = machine_of(kind)
    rng = np.random.default_rng(5)
    rows, truth, own = rng.normal(size=(9, 3)), rng.normal(3, 1, size=(9, 2)), rng.uniform(size=9)
    predicted = values(rows) + np.average(targets, axis=0, weights=weights)
    expected = np.average(np.sum((predicted - truth) ** 2, axis=1), weights=own)
    assert machine.error(rows, own, truth) == pytest.approx(expected)


def test_halves_have_as_much_of_everything():
    """Every second row of a lattice has the same value in the last column."""
    lattice = np.stack(np.meshgrid(*[[0, 1]] * 7, indexing="ij"), axis=-1).reshape(-1, 7)
    shares = halves(lattice, None) @ lattice / 64
    assert (np.abs(shares - 0.5) < 0.2).all()
    classes = np.repeat([2, 0, 1], [63, 44, 21])
    assert np.abs(np.bincount(classes, halves(lattice, classes) - 0.5)).max() <= 0.5
    renamed = np.array([5, 9, 1])[classes]
    assert_array_equal(halves(lattice, renamed), halves(lattice, classes))


def test_scales_stay_within_bounds():
    machine = machine_of(Multipliers)[0]
    scales = machine.stepped(np.array([1e-3, 0.0, 1e-300]))
    assert_allclose(scales, [1, np.exp(-10), np.exp(-10)])


@pytest.mark.parametrize("learned", [by_gradients, components])
def test_equal_rows_have_the_mean_of_their_targets(learned):
    noise = np.random.default_rng(1).normal(size=120)
    found = learned(np.vstack([X, X]), np.append(TARGETS + noise, TARGETS - noise))
    assert_allclose(found, learned(X, TARGETS), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("learned", [by_gradients, components])
def test_gradients_of_noise_change_nothing(learned):
    """A search of penalties alone gains on noise: the judges ask what the scales add to it."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        rows, y = rng.normal(size=(300, 6)), rng.integers(0, 2, 300)
        assert_allclose(learned(rows, y), np.eye(6) if learned is components else 1, atol=1e-12)


def test_directions():
    """A difference of columns that no multipliers tell from their sum."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 4))
    y = np.sin(2 * (rows[:, 0] - rows[:, 3]))
    found = components(rows, y)
    assert_allclose(found, found.T)
    assert np.abs(np.linalg.eigh(found)[1][:, -1] @ [0.5**0.5, 0, 0, -(0.5**0.5)]) > 0.999
    assert_allclose((rows @ found).var(axis=0).sum(), rows.var(axis=0).sum())
    assert np.linalg.cond(found) < 1e5
    # Labels, and columns that are constant in the sample.
    wide = np.column_stack([rows, np.full(400, 0.1)])
    found = components(wide, y > 0)
    assert np.abs(np.linalg.eigh(found[:4, :4])[1][:, -1] @ [0.5**0.5, 0, 0, -(0.5**0.5)]) > 0.99
    assert_array_equal(found[4, :4], 0)
    assert np.linalg.eigvalsh(found[:4, :4])[0] < found[4, 4] < np.linalg.eigvalsh(found)[-1]


# ------------------------------------------------------------------ what it finds


def test_labels_that_no_column_predicts_change_little():
    """All steps would fit luck: without a stop half of these ratios exceed 1.15, and one is 8."""
    ratios = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        found = relevance(rng.normal(size=(60, 6)), rng.integers(0, 2, 60))
        ratios.append(found.max() / found.min())
    assert np.median(ratios) == pytest.approx(1.0)


@ALL
def test_left_out_parts_do_not_depend_on_names_or_order(learned):
    order = np.random.default_rng(3).permutation(len(X))
    renamed = np.array(["c", "a", "b"])[np.unique(LABELS, return_inverse=True)[1]]
    expected = learned(X, LABELS)
    assert_allclose(learned(X[order], renamed[order]), expected, rtol=1e-5, atol=1e-5)


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
    monkeypatch.setattr("skrf.regression.relevance._N_PROJECTIONS", 16)
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
@MULTIPLIERS
def test_the_column_that_says_something(learned, y, place):
    multipliers = learned(X, y)
    assert multipliers.argmax() == place
    assert multipliers[place] > 3 * np.delete(multipliers, place).max()
    assert_allclose(multipliers**2 @ X.var(axis=0), X.var(axis=0).sum())


@MULTIPLIERS
def test_two_outputs_noise_and_weights(learned):
    two = learned(X, np.column_stack([TARGETS, 50 * (X[:, 0] > 0)]))
    assert set(np.argsort(two)[2:]) == {0, 2}
    noise = np.random.default_rng(3).normal(size=(400, 5))
    assert np.abs(np.log(learned(noise, np.arange(400) % 2))).max() < 1.5
    # Half of the samples follow one column, half another: weights tell which of them count.
    is_first = np.arange(120) < 60
    y = np.where(is_first, X[:, 0] > 0, X[:, 3] > 0)
    assert learned(X, y, np.where(is_first, 1.0, 1e-3)).argmax() == 0
    assert learned(X, y, np.where(is_first, 1e-3, 1.0)).argmax() == 3


@MULTIPLIERS
def test_floats_are_targets_and_integers_labels(learned):
    """Only the order of the numbers tells a column that labels do not see."""
    counts = np.argsort(np.argsort(X[:, 3])) // 8
    as_floats, as_labels = learned(X, counts.astype(float)), learned(X, counts)
    assert as_floats.argmax() == 3 and not np.allclose(as_floats, as_labels, rtol=0.05)


@ALL
def test_units_do_not_matter(learned):
    for y in (LABELS, TARGETS):
        expected = learned(X, y)
        for factor in (1e-100, 1e100):
            assert_allclose(learned(factor * X + 3 * factor, y), expected, rtol=1e-4, atol=1e-5)
    for factor in (1e-300, 1e306):
        assert_allclose(learned(X, factor * TARGETS), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
@MULTIPLIERS
def test_constant_columns_stay_of_average_learned(learned, form):
    wide = np.column_stack([X, np.full(120, 0.1), np.zeros(120)])
    varying, constant = np.split(learned(form(wide), LABELS), [4])
    assert_allclose(varying, learned(X, LABELS), rtol=1e-6)
    assert constant[0] == constant[1] and varying.min() < constant[0] < varying.max()


@MULTIPLIERS
def test_where_nothing_is_to_be_told_columns_stay_as_they_are(learned):
    assert_array_equal(learned(np.ones((9, 2)), np.arange(9) % 2), [1, 1])
    assert_array_equal(learned(X[:1], [0]), np.ones(4))
    for y in (np.zeros(120, int), np.full(120, 0.3)):
        assert_allclose(learned(X, y), 1, rtol=1e-12)
    # A column that varies in samples that were not drawn alone.
    rare = np.column_stack([X, np.zeros(120)])
    rare[np.random.default_rng(5).integers(120), 4] = 1e-3
    assert np.isfinite(learned(rare, LABELS, n_samples=20)).all()


def _hostile():
    rng = np.random.default_rng(6)
    rows = rng.normal(size=(60, 3))
    y = rows[:, 0] * rows[:, 1]
    yield "one row per class", rows, np.arange(60)
    yield "two rows", rows[:2], [0, 1]
    yield "few rows", rows[:5], y[:5]
    yield "equal rows of several classes", np.repeat(rows[:3], 20, 0), np.tile([0, 1, 1], 20)
    yield "equal rows", np.ones((9, 2)), np.arange(9.0)
    yield "duplicated columns", np.column_stack([rows, rows]), y > 0
    yield "heavy tails", rng.standard_cauchy(size=(60, 3)) ** 5, y > 0
    yield "all sizes", rows * [1e-150, 1.0, 1e149], y
    yield "one large row", np.vstack([rows, np.full(3, 1e100)]), np.append(y, 0.0)
    yield "more columns than rows", rng.normal(size=(8, 40)), np.arange(8) % 2
    yield "more outputs than are used", rows, rng.normal(size=(60, 70))


@pytest.mark.parametrize("case", list(_hostile()), ids=lambda case: case[0])
@pytest.mark.parametrize("learned", [by_gradients, components])
def test_gradients_of_hostile_tables(learned, case):
    _, rows, y = case
    wide = 10.0 ** np.random.default_rng(7).uniform(-200, 100, len(rows))
    tiny = np.where(np.arange(len(rows)) % 2, 1.0, 1e-320)
    for sample_weight in (None, wide, tiny):
        found = learned(rows, y, sample_weight)
        assert np.isfinite(found).all()
        assert (np.diagonal(found) if found.ndim == 2 else found).min() > 0


# ------------------------------------------------------------------ rows and weights


@settings(max_examples=20, derandomize=True, deadline=None, database=None)
@given(
    st.sampled_from(["labels", "targets"]),
    st.sampled_from([12, 500]),
    st.booleans(),
    st.integers(0, 2**31),
)
@ALL
def test_weights_are_repetitions(learned, kind, n_samples, is_coarse, seed):
    """Also where rows are drawn; neither the order of rows nor a common factor matters."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(40, 3))
    rows = np.round(rows) if is_coarse else rows
    y = np.round(rng.normal(size=40), 1)
    if kind == "labels":  # equal rows of several classes leave alone, repeated or not
        y = rng.integers(0, 3, 40)[np.unique(rows, axis=0, return_inverse=True)[1]]
    weights = rng.integers(0, 4, 40)
    weights[0] += 1
    expected = learned(rows, y, weights, n_samples=n_samples)
    repeated = rng.permutation(np.repeat(np.arange(40), weights))
    kept = rng.permutation(np.flatnonzero(weights))
    for again in (
        learned(rows[repeated], y[repeated], n_samples=n_samples),
        learned(rows[kept], y[kept], 0.3 * weights[kept], n_samples=n_samples),
        learned(sp.csr_array(rows), y, weights, n_samples=n_samples),
    ):
        # A search amplifies rounding.
        assert_allclose(again, expected, rtol=1e-3, atol=1e-5)


def test_the_sample_is_stratified():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 2))
    labels = np.repeat([0, 1, 2], [2400, 540, 60])
    drawn, weights, _, y = _sample(rows, labels, None, 500, rng, True)
    assert drawn.shape == (500, 2) and (weights == 1).all()
    assert_array_equal(np.bincount(y), [400, 90, 10])
    # In proportion to weights, and evenly over the targets of a regression.
    _, weights, _, y = _sample(rows, labels, 1.0 + 39 * (labels == 2), 500, rng, True)
    assert_allclose(np.bincount(y, weights), 500 * np.array([2400, 540, 2400]) / 5340, atol=1)
    _, _, _, y = _sample(rows, np.arange(3000.0)[:, None], None, 500, rng, False)
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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_containers_of_a_projection(dtype):
    projection = RelevanceProjection(random_state=0).fit(X, TARGETS)
    rows = X.astype(dtype)
    projected = projection.transform(rows)
    assert projected.dtype == dtype
    assert_allclose(projected, X @ projection.components_.T, rtol=1e-5, atol=1e-6)
    of_sparse = projection.transform(sp.csr_array(rows))
    assert isinstance(of_sparse, np.ndarray) and of_sparse.dtype == dtype
    assert_allclose(of_sparse, projected, rtol=1e-5, atol=1e-6)
    assert_allclose(components(sp.csr_array(rows), TARGETS), components(rows, TARGETS), rtol=1e-6)
    names = projection.set_output(transform="pandas").transform(rows).columns
    assert list(names) == [f"relevanceprojection{k}" for k in range(4)]
    far = np.full((2, 4), 1.7e308)
    for large in (far, sp.csr_array(far)):
        with pytest.raises(ValueError, match="X times components_ exceeds the range of float64"):
            projection.transform(large)


def test_array_libraries():
    xp = pytest.importorskip("array_api_strict")
    scaler = RelevanceScaler(random_state=0).fit(X, LABELS)
    other = RelevanceScaler(random_state=0).fit(xp.asarray(X), xp.asarray(LABELS))
    assert_array_equal(other.relevance_, scaler.relevance_)
    assert_array_equal(np.asarray(other.transform(xp.asarray(X))), X * scaler.relevance_)
    projection = RelevanceProjection(random_state=0).fit(xp.asarray(X), xp.asarray(LABELS))
    assert_array_equal(projection.components_, components(X, LABELS))
    projected = projection.transform(xp.asarray(X))
    assert_allclose(np.asarray(projected), X @ projection.components_)


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
