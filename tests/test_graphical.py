"""Chains and trees against enumeration and dense computations."""

import copy
import pickle
import warnings

import hypothesis
import numpy as np
import pytest
from fields import (
    EPS,
    INTEGERS,
    MAPS,
    PRIOR,
    SEEDS,
    SEQUENCES,
    SHARES,
    SMOOTH,
    TABLE,
    TABLES_REFUSED,
    WIDE,
    assert_drawn_from,
    assert_gradient,
    assert_refused,
    assert_same_logs,
    dtypes,
    every_map,
    every_smooth_map,
    frozen,
    generated,
    joint,
    largest_log,
    made_tables,
    maps,
    marginal,
    scales,
    seeds,
)
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler

from skrf import AdaptiveRF, OptimalPositiveRF, RFFSampler
from skrf.graphical import ChainMRF, KernelHMM, TreeMRF, _belief_propagation, _model, _potentials
from skrf.graphical._maximum_likelihood import unpacked

RNG = np.random.default_rng(0)
LEFT, RIGHT = RNG.normal(size=(2, 4, 3))
LENGTH = 4
EVIDENCE = RNG.normal(size=(LENGTH, 4))
EVIDENCE[2, 1] = -np.inf
STEPS, LATER_STEPS = RNG.normal(size=(2, LENGTH, 4, 3))
EDGES = [(3, 1), (1, 0), (1, 4), (4, 2)]
TABLES, LATER_TABLES = ([RNG.normal(size=(n, 3)) / 1.5 for n in (2, 3, 4, 2, 3)] for _ in "ab")
UNARY = [RNG.normal(size=len(table)) for table in TABLES]
UNARY[2][1] = -np.inf

CHAINS = {
    "plain": {"embeddings": LEFT},
    "later": {"embeddings": LEFT, "later": RIGHT},
    "evidence": {"embeddings": LEFT, "later": RIGHT, "unary": EVIDENCE},
    "steps": {"embeddings": STEPS, "unary": EVIDENCE},
    "sizes": {"embeddings": TABLES[:LENGTH], "later": LATER_TABLES[:LENGTH]},
}
TREES = {
    "plain": {"embeddings": TABLES},
    "unary": {"embeddings": TABLES, "unary": UNARY},
    "later": {"embeddings": TABLES, "later": LATER_TABLES, "unary": UNARY},
    "shared": {"embeddings": LEFT, "later": RIGHT},
}


def dense(field, pair_logs=lambda pair: pair.matrix):
    """Return the log weight of every assignment of a field."""
    sizes = [len(values) for values in field.unary]
    logs = np.zeros(sizes)
    for i, values in enumerate(field.unary):
        logs = logs + values.reshape([-1 if j == i else 1 for j in range(len(sizes))])
    for child, parent in field.parents.items():
        own = pair_logs(field.pairs[child])
        own = own if parent < child else own.T
        logs = logs + own.reshape([n if j in (child, parent) else 1 for j, n in enumerate(sizes)])
    return logs


def others(n, *kept):
    return tuple(i for i in range(n) if i not in kept)


def assert_enumerated(model, logs, *length):
    """Assert that all that a model says agrees with the log weights of all assignments."""
    shares, total = joint(logs)
    n = logs.ndim
    with np.errstate(divide="ignore"):
        log_shares = np.log(shares)
    close = {"rtol": 1e-9, "atol": 1e-9}
    assert_allclose(model.log_partition(*length), total, rtol=1e-10)
    every = np.array(list(np.ndindex(logs.shape)))
    assert_allclose(model.log_prob(every), log_shares.ravel(), **close)
    assert model.log_prob(every[0]) == pytest.approx(log_shares.ravel()[0])
    log_prob, best = model.decode(*length)
    assert_allclose(log_prob, log_shares.max(), **close)
    assert_allclose(logs[tuple(best)], logs.max(), rtol=1e-12)
    found = zip(model.marginals(*length), model.max_marginals(*length), strict=True)
    for i, (own, largest) in enumerate(found):
        assert_allclose(own, marginal(shares, i), rtol=1e-9, atol=1e-300)
        assert_allclose(largest, log_shares.max(axis=others(n, i)), **close)
    assert_drawn_from(model.sample(*length, 4000, random_state=0), shares)
    return shares


# ------------------------------------------------------------------ chains


@pytest.mark.parametrize("kind", ["plain", "later"])
@pytest.mark.parametrize("length", [1, 2, 3, 5])
@every_map
def test_chain_equals_enumeration(name, length, kind):
    chain = ChainMRF(**CHAINS[kind], feature_map=MAPS[name])
    shares = assert_enumerated(chain, dense(chain._belief_propagation(length)), length)
    for t in range(length - 1):
        expected = shares.sum(axis=others(length, t, t + 1))
        assert_allclose(chain.edge_marginals(length, t), expected, rtol=1e-10)


@pytest.mark.parametrize("kind", ["evidence", "steps", "sizes"])
@every_map
def test_chain_with_a_length_of_its_own_equals_enumeration(name, kind):
    chain = ChainMRF(**CHAINS[kind], feature_map=MAPS[name])
    shares = assert_enumerated(chain, dense(chain._belief_propagation(LENGTH)), None)
    for t in range(LENGTH - 1):
        expected = shares.sum(axis=others(LENGTH, t, t + 1))
        assert_allclose(chain.edge_marginals(position=t), expected, rtol=1e-9, atol=1e-300)
    assert_array_equal(chain.log_partition([LENGTH, LENGTH]), [chain.log_partition()] * 2)
    with pytest.raises(ValueError, match="length must be 4, as unary or embeddings have it"):
        chain.marginals(3)


@pytest.mark.parametrize("kind", CHAINS)
def test_the_exact_potentials_are_those_of_the_definition(kind):
    given = CHAINS[kind]
    chain, u = ChainMRF(**given, feature_map="exact"), given["embeddings"]
    v = given.get("later", u)
    field = chain._belief_propagation(LENGTH)
    for t in range(LENGTH - 1):
        a, b = (u, v) if np.ndim(u[0]) == 1 else (u[t], v[t + 1])
        assert_allclose(field.pairs[t + 1].matrix, a @ b.T, rtol=1e-12)
        assert_allclose(field.pairs[t + 1].turned.matrix, b @ a.T, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::skrf.exceptions.FeatureCollapseWarning")
@pytest.mark.parametrize("kind", CHAINS)
def test_report_compares_the_chain_with_the_exact_one(kind):
    chain = ChainMRF(**CHAINS[kind], feature_map=MAPS["optimal"])
    exact = ChainMRF(**CHAINS[kind], feature_map="exact").log_partition(LENGTH)
    told = chain.report(LENGTH)
    assert_allclose([told.log_partition, told.lower, told.upper], exact, rtol=1e-9)
    assert_allclose(told.error, exact - chain.log_partition(LENGTH), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["exact", "adaptive"])
def test_evidence_changes_from_call_to_call_and_factors_stay(name, monkeypatch):
    chain = ChainMRF(LEFT, feature_map=MAPS[name], unary=np.zeros((3, 4)))
    assert_allclose(chain.log_partition(), ChainMRF(LEFT, feature_map=MAPS[name]).log_partition(3))
    model = chain._model
    chain.set_params(unary=EVIDENCE)
    assert chain._model is model
    expected = logsumexp(dense(chain._belief_propagation(LENGTH)))
    assert_allclose(chain.log_partition(), expected, rtol=1e-12)


@every_map
def test_squaring_equals_stepping(name):
    chain = ChainMRF(LEFT, RIGHT, feature_map=MAPS[name])
    lengths = [1, 2, 14, 15, 16, 17, 40, 333]
    values = chain.log_partition(lengths)
    matrix, message = chain._model.pair(0, 1).matrix, np.zeros(4)
    for length in range(1, 334):
        if length in lengths:
            expected = logsumexp(message)
            assert_allclose(values[lengths.index(length)], expected, rtol=1e-10)
        message = logsumexp(matrix + message, axis=1)


@pytest.mark.parametrize("scale", [0.3, 3.0, 12.0])
def test_long_chains_do_not_underflow(scale):
    embeddings = scale * np.random.default_rng(1).normal(size=(30, 5))
    chain = ChainMRF(embeddings, feature_map=OptimalPositiveRF(16, random_state=0))
    logs = chain.log_partition([99_999, 100_000])
    # The ratio of successive sums is the largest eigenvalue of the potentials.
    matrix = chain._model.pair(0, 1).matrix
    top = matrix.max()
    eigenvalue = np.abs(np.linalg.eigvals(np.exp(matrix - top))).max()
    assert_allclose(logs[1] - logs[0], np.log(eigenvalue) + top, rtol=1e-6)
    found = chain.marginals(2000)
    assert_allclose(found.sum(axis=1), 1, rtol=1e-12)


def test_chain_error_falls_as_one_over_the_root():
    embeddings = np.random.default_rng(2).normal(size=(40, 3)) / 2
    exact = ChainMRF(embeddings, feature_map="exact").log_partition(10)
    errors = []
    for m in (64, 1024):
        values = [
            ChainMRF(
                embeddings, feature_map=OptimalPositiveRF(m, coupling="iid", random_state=seed)
            ).log_partition(10)
            for seed in range(60)
        ]
        errors.append(np.sqrt(np.mean((np.array(values) - exact) ** 2)))
    # 16 times the features: a quarter of the error. 60 seeds know a root mean square to 9 %.
    assert 4 * 0.65 < errors[0] / errors[1] < 4 * 1.5


@pytest.mark.parametrize("scale", [0.4, 0.8])
def test_the_default_is_exact_where_that_is_no_dearer(scale):
    embeddings = scale * np.random.default_rng(0).normal(size=(400, 16))
    default, exact = ChainMRF(embeddings), ChainMRF(embeddings, feature_map="exact")
    assert default.feature_map_ == "exact"
    assert_allclose(default.log_partition(50), exact.log_partition(50), rtol=1e-9)
    assert_allclose(default.marginals(50), exact.marginals(50), rtol=1e-9)
    matrix, message = embeddings @ embeddings.T, np.zeros(400)
    for _ in range(49):
        message = logsumexp(matrix + message, axis=1)
    assert_allclose(default.log_partition(50), logsumexp(message), rtol=1e-12)
    wide = np.vstack([embeddings, embeddings[:112]])
    assert ChainMRF(wide).feature_map_ == "exact"
    assert isinstance(ChainMRF(np.vstack([wide, wide[:1]])).feature_map_, AdaptiveRF)
    # Few states beside many are no dearer either: 10 x 2,000 < 256 x 2,010.
    many = np.vstack([wide] * 4)
    assert TreeMRF([(0, 1)], [wide[:10], many]).feature_map_ == "exact"
    assert isinstance(TreeMRF([(0, 1)], [many, many]).feature_map_, AdaptiveRF)


def test_chain_refuses():
    chain = ChainMRF(LEFT, feature_map="exact")
    for call, said in (
        (lambda: chain.log_partition(0), "length must be an integer >= 1, got 0"),
        (lambda: chain.log_partition(), "length must be .* unary=None .* got length=None"),
        (lambda: chain.log_prob([0, 9]), "paths must hold states from 0 to 3 of variable 1, got 9"),
        (lambda: chain.log_prob([0.5]), "paths must be integers"),
        (lambda: chain.edge_marginals(3, 2), "position must lie in 0 to 1"),
        (lambda: chain.log_prob_gradient([[0], [0, 1]]), "paths must have one length"),
        (lambda: chain.fit([[0], [0, 1]], learn_unary=True), "learn_unary needs paths of one"),
        (lambda: ChainMRF(LEFT, RIGHT[:2]).log_partition(2), r"later must have a row .* \[2\] row"),
        (lambda: ChainMRF(LEFT, RIGHT[:, :2]).log_partition(2), "later has width 2"),
        (lambda: ChainMRF(LEFT, STEPS).log_partition(2), "later must have a row for every state"),
        (lambda: ChainMRF([LEFT]).log_partition(2), "at least 2, got a sequence of 1"),
        (lambda: ChainMRF(LEFT, unary=[[0.0] * 3]).marginals(), r"unary\[0\] must have shape"),
        (lambda: ChainMRF(STEPS, unary=EVIDENCE[:3]).marginals(), "unary has 3 entries; 4"),
        (
            lambda: ChainMRF(LEFT, feature_map=RFFSampler()).log_partition(2),
            "is not positive",
        ),
        (
            lambda: ChainMRF(LEFT, feature_map=OptimalPositiveRF(sigma=2.0)).log_partition(2),
            "leave the default",
        ),
        (lambda: ChainMRF(LEFT, feature_map="rff").log_partition(2), "or 'exact', got 'rff'"),
        (lambda: ChainMRF(LEFT, max_iter=0).fit([[0, 1]]), "max_iter"),
        (lambda: ChainMRF(LEFT, tol=-1.0).fit([[0, 1]]), "tol"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    with pytest.raises(TypeError, match="must be an instance"):
        ChainMRF(LEFT, feature_map=OptimalPositiveRF).log_partition(2)
    with pytest.raises(NotFittedError, match="This ChainMRF was not fitted"):
        _ = chain.n_iter_


# ------------------------------------------------------------------ trees


@pytest.mark.parametrize("kind", TREES)
@every_map
def test_tree_equals_enumeration(name, kind):
    tree = TreeMRF(EDGES, **TREES[kind], feature_map=MAPS[name])
    shares = assert_enumerated(tree, dense(tree._belief_propagation()))
    for i, j in [*EDGES, (0, 1)]:
        expected = shares.sum(axis=others(5, i, j))
        found = tree.edge_marginals(i, j)
        assert_allclose(found, expected if i < j else expected.T, rtol=1e-9, atol=1e-300)


def test_an_edge_has_its_first_variable_on_the_left():
    tree = TreeMRF(EDGES, TABLES, later=LATER_TABLES, feature_map="exact")
    states = np.array([[1, 2, 3, 0, 1], [0, 1, 2, 1, 2]])
    expected = [
        sum(TABLES[i][own[i]] @ LATER_TABLES[j][own[j]] for i, j in EDGES) for own in states
    ]
    found = tree.log_prob(states)
    assert_allclose(found[1] - found[0], expected[1] - expected[0], rtol=1e-12)


@pytest.mark.parametrize("name", ["exact", "adaptive"])
def test_a_path_is_a_chain(name):
    embeddings = 2 * np.random.default_rng(1).normal(size=(20, 4))
    unary = np.random.default_rng(2).normal(size=(31, 20))
    own = {"unary": unary, "feature_map": MAPS[name]}
    path = TreeMRF([(i, i + 1) for i in range(30)], embeddings, **own)
    chain = ChainMRF(embeddings, **own)
    assert_allclose(path.log_partition(), chain.log_partition(), rtol=1e-12)
    assert_allclose(np.array(path.marginals()), chain.marginals(), rtol=1e-9, atol=1e-15)
    assert_array_equal(path.decode()[1], chain.decode()[1])


def test_a_hub_needs_no_products():
    embeddings = 4 * np.random.default_rng(1).normal(size=(20, 4))
    own = OptimalPositiveRF(8, random_state=0)
    star = TreeMRF([(0, i) for i in range(1, 3001)], embeddings, feature_map=own)
    assert np.isfinite(star.log_partition())
    assert_allclose([part.sum() for part in star.marginals()], 1, rtol=1e-9)
    single = TreeMRF([], embeddings)
    assert_allclose(single.log_partition(), np.log(20))
    # Features are fitted to each pair of tables once, however many edges share it.
    once = TreeMRF([(0, 1)], embeddings, feature_map=MAPS["adaptive"])
    many = TreeMRF([(0, i) for i in range(1, 9)], embeddings, feature_map=MAPS["adaptive"])
    assert_allclose(
        many.log_prob([3] * 9) - many.log_prob([3] * 8 + [5]),
        once.log_prob([3, 3]) - once.log_prob([3, 5]),
        rtol=1e-9,
    )


@pytest.mark.parametrize(
    "edges, said",
    [
        ([(0, 1), (1, 2), (2, 0)], "there is a cycle|a cycle through"),
        ([(0, 1), (0, 1)], "a cycle through variables"),
        ([(0, 1), (2, 3), (3, 2)], "cycle|not connected"),
        ([(0, 0)], "a cycle through variables"),
        ([(0, 5)], "names variables from 0 to 5"),
        ([(0, -1)], "names variables from -1 to 0"),
        ([[0, 1, 2]], r"shape \(n_edges, 2\)"),
        ([(0.5, 1)], "edges must be integers"),
    ],
)
def test_what_is_no_tree_is_refused(edges, said):
    with pytest.raises(ValueError, match=said):
        TreeMRF(edges, LEFT).log_partition()


def test_tree_refuses():
    for tree, said in (
        (TreeMRF(EDGES, TABLES[:3]), "embeddings has 3 arrays; the edges name 5"),
        (TreeMRF(EDGES, [*TABLES[:4], LEFT[:, :2]]), r"embeddings\[4\] has width 2"),
        (TreeMRF(EDGES, TABLES, UNARY[:2]), "unary has 2 entries"),
        (TreeMRF(EDGES, TABLES, [*UNARY[:4], [0.0]]), r"unary\[4\] must have shape"),
        (TreeMRF(EDGES, TABLES, [*UNARY[:4], [-np.inf] * 3]), "forbids every state"),
        (TreeMRF(EDGES, TABLES, [*UNARY[:4], [np.nan] * 3]), "must not hold NaN"),
        (TreeMRF(EDGES, TABLES, later=TABLES[:3]), "later has 3 arrays; the edges name 5"),
    ):
        with pytest.raises(ValueError, match=said):
            tree.log_partition()
    tree = TreeMRF(EDGES, TABLES)
    with pytest.raises(ValueError, match="no edge between 0 and 2"):
        tree.edge_marginals(0, 2)
    with pytest.raises(ValueError, match="assignments must hold states from 0 to 1 of variable 3"):
        tree.log_prob([0, 0, 0, 5, 0])
    with pytest.raises(ValueError, match="assignments must give a state to each of 5 variables"):
        tree.log_prob([0, 0, 0])


# ------------------------------------------------------------------ maxima


@pytest.mark.parametrize("name", ["exact", "adaptive"])
@pytest.mark.parametrize("block", [1, 10, 37])
def test_maxima_in_blocks_of_rows_are_the_same(name, block, monkeypatch):
    chain = ChainMRF(LEFT, RIGHT, unary=EVIDENCE, feature_map=MAPS[name])
    expected = chain.decode(), chain.max_marginals()
    monkeypatch.setattr(_potentials, "_BLOCK", block)
    again = ChainMRF(LEFT, RIGHT, unary=EVIDENCE, feature_map=MAPS[name])
    assert_allclose(again.decode()[0], expected[0][0], rtol=1e-12)
    assert_array_equal(again.decode()[1], expected[0][1])
    assert_allclose(again.max_marginals(), expected[1], rtol=1e-12)


# ------------------------------------------------------------------ gradients and learning


def by_differences(value, vector, step=1e-5):
    found = np.empty_like(vector)
    for i in range(len(vector)):
        sides = []
        for sign in (1, -1):
            moved = vector.copy()
            moved[i] += sign * step
            sides.append(value(moved))
        found[i] = (sides[0] - sides[1]) / (2 * step)
    return found


def flat(model, gradients):
    """Return gradients of a model in the order of its parameters."""
    parts = [gradients[side] for side in model._model.tables]
    return np.concatenate([np.ravel(part) for of in parts for part in of])


GRADIENT_CASES = {
    **{f"chain {kind}": (lambda kind=kind, **own: ChainMRF(**CHAINS[kind], **own), LENGTH)
       for kind in CHAINS},
    **{f"tree {kind}": (lambda kind=kind, **own: TreeMRF(EDGES, **TREES[kind], **own), 5)
       for kind in TREES},
}  # fmt: skip


@pytest.mark.parametrize("case", GRADIENT_CASES)
@pytest.mark.parametrize("name", ["exact", "optimal", "adaptive"])
def test_gradients_are_those_of_differences(name, case):
    made, n = GRADIENT_CASES[case]
    model = made(feature_map=MAPS[name])
    own, length = model._model, {"length": n} if case.startswith("chain") else {}
    tables = [X for of in own.tables.values() for X in of]
    vector, field = np.concatenate([X.ravel() for X in tables]), model._belief_propagation(n)

    def field_at(vector):
        moved = copy.copy(model)
        moved._fitted = own.moved(iter(unpacked(vector, tables)))
        return moved._belief_propagation(n)

    def log_partition(vector):
        return field_at(vector).log_partition

    gradients = model.log_partition_gradient(**length)
    expected = by_differences(log_partition, vector)
    assert_allclose(flat(model, gradients), expected, rtol=1e-6, atol=1e-7)
    for found, shares in zip(gradients["unary"], field.marginals(), strict=True):
        assert_allclose(found, shares, rtol=1e-9, atol=1e-12)

    states = model.sample(**length, n=7, random_state=1)

    def log_likelihood(vector):
        at = field_at(vector)
        return at.log_weights(states).sum() - 7 * at.log_partition

    gradients = model.log_prob_gradient(states)
    assert_allclose(flat(model, gradients), by_differences(log_likelihood, vector), 1e-6, 1e-6)
    for i, found in enumerate(gradients["unary"]):
        seen = np.bincount(states[:, i], minlength=len(found))
        assert_allclose(found, seen - 7 * field.marginals()[i], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["chain", "tree"])
@every_smooth_map
def test_gradients_are_those_of_models_with_the_map_that_was_fitted(name, kind):
    """What a user can check: the map stays, the embeddings move."""
    sides = [TABLES[:LENGTH], LATER_TABLES[:LENGTH]] if kind == "chain" else [TABLES, LATER_TABLES]
    vector = np.concatenate([X.ravel() for of in sides for X in of])
    feature_map = frozen(SMOOTH[name], *sides[0], keys=np.vstack(sides[1]))

    def made(vector):
        u, v = (unpacked(part, sides[0]) for part in np.split(vector, 2))
        if kind == "chain":
            return ChainMRF(u, v, feature_map=feature_map)
        return TreeMRF(EDGES, u, later=v, feature_map=feature_map)

    model = made(vector)
    assert model.feature_map_ is feature_map
    found = flat(model, model.log_partition_gradient())
    assert_gradient(found, lambda at: made(at).log_partition(), vector)
    states = model.sample(n=7, random_state=1)
    found = flat(model, model.log_prob_gradient(states))
    assert_gradient(found, lambda at: made(at).log_prob(states).sum(), vector)


@pytest.mark.parametrize("learn_unary", [False, True])
@pytest.mark.parametrize("kind", ["chain", "tree"])
@every_smooth_map
def test_the_objective_of_fit_is_one_function(name, kind, learn_unary, monkeypatch):
    """The map is fitted for the first embeddings, moves with nothing, and is what fit leaves."""
    model = ChainMRF(LEFT / 2, RIGHT / 2, feature_map=SMOOTH[name], max_iter=4)
    if kind == "tree":
        model = TreeMRF(EDGES, LEFT / 2, later=RIGHT / 2, feature_map=SMOOTH[name], max_iter=4)
    paths = ChainMRF(LEFT, RIGHT).sample(5, 20, random_state=0)
    begin, climb = model.log_prob(paths).sum(), _model.maximize
    map_before = model.feature_map_

    def checked(objective, arrays, *args, **limits):
        assert_allclose(objective(arrays)[0], begin, rtol=1e-12)
        end, *told = climb(objective, arrays, *args, **limits)
        vector = np.concatenate([part.ravel() for part in end])
        found = np.concatenate([np.ravel(part) for part in objective(end)[1]])
        assert_gradient(found, lambda at: objective(unpacked(at, end))[0], vector)
        return end, *told

    monkeypatch.setattr(_model, "maximize", checked)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(paths, learn_unary=learn_unary)
    assert model.feature_map_ is map_before
    assert_allclose(model.log_prob(paths).sum(), model.history_[-1], rtol=1e-12)
    # The same function, for a user who holds the map and the embeddings.
    given = {"later": model.later_, "feature_map": FrozenEstimator(model.feature_map_)}
    again = clone(model).set_params(embeddings=model.embeddings_, **given)
    again.set_params(unary=getattr(model, "unary_", None))
    assert_allclose(again.log_prob(paths).sum(), model.history_[-1], rtol=1e-12)


def test_a_fitted_map_is_taken_as_it_is():
    chain = ChainMRF(LEFT, RIGHT, feature_map=frozen(SMOOTH["adaptive"], LEFT), random_state=3)
    held, expected = chain.feature_map, chain.log_partition(5)
    own = held.estimator
    logs = logsumexp(own.log_transform(LEFT)[:, None] + own.log_transform_keys(RIGHT)[None], axis=2)
    assert_allclose(chain._model.pair(0, 1).matrix, logs, rtol=1e-12)
    for again in (clone(chain), copy.deepcopy(chain), pickle.loads(pickle.dumps(chain))):
        assert again.log_partition(5) == expected
    assert clone(chain).feature_map is held  # scikit-learn does not copy what is frozen
    assert chain.get_params()["feature_map__estimator"] is own
    paths = chain.sample(5, 30, random_state=0)
    assert chain.set_params(tol=0.1).fit(paths).feature_map_ is held
    assert pickle.loads(pickle.dumps(chain)).log_partition(5) == chain.log_partition(5)


@pytest.mark.parametrize("is_piped", [False, True], ids=["alone", "in a Pipeline"])
def test_another_fit_of_a_frozen_map_is_another_model(is_piped):
    """Its parameters are the same, so nothing but the fit tells."""
    own = clone(SMOOTH["dense"]).set_params(kernel="softmax")
    whole = make_pipeline(MaxAbsScaler(), own) if is_piped else own
    held = FrozenEstimator(whole.fit(LEFT))
    chain = ChainMRF(LEFT, feature_map=held)
    first = chain.log_partition(5)
    assert chain._model is chain._model
    other = FrozenEstimator(clone(whole).fit(3 * LEFT + 1))
    expected = ChainMRF(LEFT, feature_map=other).log_partition(5)
    assert abs(first - expected) > 0.01
    assert chain.set_params(feature_map=other).log_partition(5) == expected
    assert chain.set_params(feature_map=held).log_partition(5) == first
    whole.fit(3 * LEFT + 1)
    assert chain.log_partition(5) == expected


@pytest.mark.filterwarnings("ignore::skrf.exceptions.FeatureCollapseWarning")
def test_a_fitted_map_keeps_its_sigma():
    """Which the report knows."""
    feature_map = frozen(OptimalPositiveRF(64, random_state=0), LEFT, sigma=0.5)
    chain = ChainMRF(LEFT, RIGHT, feature_map=feature_map)
    exact = ChainMRF(LEFT / 2, RIGHT / 2, feature_map="exact")
    told = chain.report(5)
    assert_allclose(told.log_partition, exact.log_partition(5), rtol=1e-9)
    assert_allclose(told.error, exact.log_partition(5) - chain.log_partition(5), atol=1e-9)


@pytest.mark.parametrize(
    ("feature_map", "said"),
    [
        (AdaptiveRF(6).fit(LEFT), r"AdaptiveRF\(.* was fitted with kernel='gaussian'; .*softmax"),
        (AdaptiveRF(6, kernel="softmax").fit(LEFT[:, :2]), "with 2 features, .* have width 3"),
        (RFFSampler(6, kernel="softmax").fit(LEFT), "RFFSampler.* is not positive"),
        (Nystroem(n_components=2).fit(LEFT), "Nystroem.* is not positive"),
        (
            AdaptiveRF(6).fit(LEFT).set_params(kernel="softmax"),
            "was fitted with kernel='gaussian'",
        ),
        (AdaptiveRF(6, kernel="softmax"), "AdaptiveRF instance is not fitted yet"),
    ],
    ids=["kernel", "width", "signs", "other package", "parameter", "unfitted"],
)
def test_fitted_maps_that_do_not_fit_are_refused(feature_map, said):
    own = {"feature_map": FrozenEstimator(feature_map)}
    for call in (
        lambda: ChainMRF(LEFT, **own).log_partition(2),
        lambda: ChainMRF(LEFT, **own).fit([[0, 1]]),
        lambda: TreeMRF([(0, 1)], LEFT, **own).log_partition(),
        lambda: KernelHMM(LEFT, RIGHT, **own).score([0, 1]),
    ):
        with pytest.raises(ValueError, match=said):
            call()


@pytest.mark.parametrize("name", ["exact", "adaptive"])
def test_counts_of_many_pairs_add_up_over_blocks(name, monkeypatch):
    chain = ChainMRF(LEFT, feature_map=MAPS[name])
    paths = chain.sample(6, 20, random_state=0)
    expected = chain.log_prob_gradient(paths)["embeddings"]
    monkeypatch.setattr(_potentials, "_BLOCK", 20)
    assert_allclose(chain.log_prob_gradient(paths)["embeddings"], expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["exact", "optimal"])
def test_fit_recovers_the_likelihood_of_a_planted_chain(name):
    rng = np.random.default_rng(3)
    truth = ChainMRF(1.5 * rng.normal(size=(6, 3)), 1.5 * rng.normal(size=(6, 3)))
    train, held_out = (truth.sample(12, 400, random_state=seed) for seed in (0, 1))
    start = {"later": rng.normal(size=(6, 3)) / 2, "feature_map": MAPS[name], "tol": 1e-7}
    chain = ChainMRF(rng.normal(size=(6, 3)) / 2, **start, max_iter=300)
    flat_score = chain.log_prob(held_out).mean()
    assert chain.fit(train).converged_
    assert chain.n_iter_ == len(chain.history_) and np.all(np.diff(chain.history_) > 0)
    assert_allclose(chain.log_prob(train).sum(), chain.history_[-1], rtol=1e-9)
    wanted = truth.log_prob(held_out).mean()
    # 36 parameters cost about 36 / 2 / 400 nats per path; features of rank 6 nothing beyond that.
    assert flat_score < wanted - 2 and chain.log_prob(held_out).mean() > wanted - 0.15
    assert chain.embeddings_.shape == chain.later_.shape == (6, 3)
    assert_array_equal(chain.embeddings, ChainMRF(chain.embeddings).embeddings)
    # What was learnt serves other lengths, and evidence.
    assert np.isfinite(chain.set_params(unary=rng.normal(size=(3, 6))).log_partition())


def test_verbose_prints_the_history(capsys):
    paths = ChainMRF(LEFT).sample(5, 50, random_state=0)
    chain = ChainMRF(LEFT / 2, tol=0.01, verbose=True).fit(paths)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == chain.n_iter_ and f"{chain.history_[-1]:.6f}" in lines[-1]


def test_fit_takes_paths_of_several_lengths_and_forbidden_states():
    truth = ChainMRF(LEFT, RIGHT)
    paths = [path for n in (1, 3, 5) for path in truth.sample(n, 50, random_state=n)]
    chain = ChainMRF(LEFT / 2, RIGHT / 2, tol=1e-4).fit(paths)
    assert chain.log_prob(paths).sum() == pytest.approx(chain.history_[-1])
    assert chain.log_prob(paths).sum() > truth.log_prob(paths).sum()
    one = ChainMRF(LEFT / 2, RIGHT / 2, tol=1e-4).fit(np.array(paths[50:100]))
    two = ChainMRF(LEFT / 2, RIGHT / 2, tol=1e-4).fit(paths[50:100])
    assert one.history_ == two.history_


@pytest.mark.parametrize("name", ["exact", "adaptive"])
def test_fit_recovers_a_planted_tree_with_unaries(name):
    truth = TreeMRF(EDGES, TABLES, UNARY, later=LATER_TABLES)
    train, held_out = (truth.sample(2000, random_state=seed) for seed in (0, 1))
    unary = [np.where(np.isfinite(values), 0.0, -np.inf) for values in UNARY]
    given = {"later": [X / 2 for X in LATER_TABLES], "feature_map": MAPS[name], "tol": 1e-7}
    tree = TreeMRF(EDGES, [X / 2 for X in TABLES], unary, **given, max_iter=300)
    tree.fit(train, learn_unary=True)
    wanted = truth.log_prob(held_out).mean()
    assert tree.log_prob(held_out).mean() > wanted - 0.02
    assert np.isneginf(tree.unary_[2][1]) and tree.marginals()[2][1] == 0
    assert len(tree.embeddings_) == 5
    held = TreeMRF(EDGES, [X / 2 for X in TABLES], UNARY, **given).fit(train)
    assert not hasattr(held, "unary_") and held.log_prob(held_out).mean() > wanted - 0.02


def test_a_fit_that_does_not_converge_says_why_and_one_that_raises_changes_nothing():
    paths = ChainMRF(LEFT).sample(5, 50, random_state=0)
    chain = ChainMRF(LEFT / 3, max_iter=1, tol=0.0)
    with pytest.warns(ConvergenceWarning, match="fit reached max_iter=1"):
        chain.fit(paths)
    before = vars(chain).copy()
    with pytest.raises(ValueError, match="paths"):
        chain.fit([[0.5]])
    assert vars(chain) == before
    with warnings.catch_warnings(), pytest.raises(NotImplementedError, match="No gradients"):
        warnings.simplefilter("error")
        ChainMRF(LEFT, feature_map=WIDE["poisson"]).fit(paths)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64])
def test_counts_do_not_depend_on_the_type_of_states(dtype):
    chain = ChainMRF(*np.random.default_rng(0).normal(size=(2, 20, 3)))
    paths = chain.sample(6, 30, random_state=0)
    expected = chain.log_prob_gradient(paths)["embeddings"]
    assert_array_equal(chain.log_prob_gradient(paths.astype(dtype))["embeddings"], expected)


def test_a_fit_knows_nothing_of_the_fit_before():
    paths = ChainMRF(LEFT).sample(6, 50, random_state=0)
    chain = ChainMRF(LEFT, tol=0.1).fit(paths, learn_unary=True)
    assert chain.unary_.shape == (6, 4)
    assert not hasattr(chain.fit(paths[:, :4]), "unary_")
    wide = np.random.default_rng(0).normal(size=(9, 3))
    assert chain.set_params(embeddings=wide).fit(paths + 5).embeddings_.shape == (9, 3)
    tree = TreeMRF([(0, 1), (1, 2)], [LEFT] * 3, tol=0.1).fit(paths[:, :3])
    tree.set_params(edges=[(0, 1), (1, 2), (2, 3)], embeddings=[LEFT] * 4)
    with pytest.raises(ValueError, match="edges were changed after fit and name 4 variables"):
        tree.marginals()
    assert tree.fit(paths[:, :4]).embeddings_.shape == (4, 4, 3)


def test_forbidden_states_in_paths_are_named():
    paths = ChainMRF(LEFT).sample(LENGTH, 5, random_state=0)
    paths[3, 2] = 1  # forbidden by EVIDENCE
    chain = ChainMRF(LEFT, unary=EVIDENCE)
    for call in (chain.fit, chain.log_prob_gradient):
        with pytest.raises(ValueError, match="states that unary forbids; row [0-3] does"):
            call(paths)
    assert chain.log_prob(paths)[3] == -np.inf
    with pytest.raises(ValueError, match="learn_unary must be True or False, got 'no'"):
        chain.fit(paths, learn_unary="no")
    with pytest.raises(ValueError, match="paths must have 4 states, as unary .* got 5"):
        chain.log_prob([0] * 5)


# ------------------------------------------------------------------ digits, copies and memory


def test_constants_cost_no_digits():
    evidence = np.round(8 * EVIDENCE) / 8
    chain = ChainMRF(LEFT, RIGHT, unary=evidence)
    moved = evidence.copy()
    moved[2] -= 2.0**48  # exactly: beside it, three digits after the binary point are left
    other = ChainMRF(LEFT, RIGHT, unary=moved)
    assert_allclose(other.marginals(), chain.marginals(), rtol=0, atol=1e-12)
    for side, gradient in chain.log_partition_gradient().items():
        assert_allclose(other.log_partition_gradient()[side], gradient, rtol=0, atol=1e-9)
    long = ChainMRF(100 * LEFT, unary=3e4 * np.random.default_rng(0).normal(size=(5000, 4)))
    (counts,) = long._belief_propagation(5000).expected_counts()[1].values()
    assert_allclose(counts[0].sum(), 4999, rtol=1e-12)
    assert_allclose(long.max_marginals().max(axis=1), long.decode()[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["exact", "optimal"])
@pytest.mark.parametrize("scale", [1.0, 1e8, 1e100])
def test_counts_sum_to_the_number_of_edges(name, scale):
    field = ChainMRF(scale * LEFT, feature_map=MAPS[name])._belief_propagation(6)
    (counts,) = field.expected_counts()[1].values()
    assert_allclose([part.sum() for part in counts], 5, rtol=1e-12)


@pytest.mark.parametrize("name", ["adaptive", "exact"])
def test_copies_of_tables_change_nothing(name):
    A, B = (np.random.default_rng(i).normal(size=(n, 3)) for i, n in enumerate((40, 30)))
    edges = [(0, 1), (1, 2), (2, 3), (3, 4)]
    tree = TreeMRF(edges, [A, A, A, A, B], feature_map=MAPS[name])
    expected = tree.log_partition()
    for tables in ([A, A[:], A.copy(), A.tolist(), B], clone(tree).embeddings):
        assert TreeMRF(edges, tables, feature_map=MAPS[name]).log_partition() == expected
    again = pickle.loads(pickle.dumps(tree))
    assert again.log_partition() == expected


def test_pickles_do_not_hold_what_is_made_anew():
    chain = ChainMRF(np.random.default_rng(0).normal(size=(600, 3)), random_state=0)
    chain.decode(5), chain.marginals(5)
    assert len(pickle.dumps(chain)) < 100_000  # embeddings twice; all pairs would be 2.9 MB
    chain.fit([[0, 1, 2]])
    assert_allclose(pickle.loads(pickle.dumps(chain)).log_partition(5), chain.log_partition(5))


def test_samples_are_drawn_in_blocks(monkeypatch):
    chain = ChainMRF(LEFT, unary=EVIDENCE)
    monkeypatch.setattr(_belief_propagation, "_BLOCK", 4 * 700)
    assert_drawn_from(
        chain.sample(n=4000, random_state=0), joint(dense(chain._belief_propagation(4)))[0]
    )


def test_evidence_may_be_a_data_frame():
    pandas = pytest.importorskip("pandas")
    chain = ChainMRF(LEFT, unary=pandas.DataFrame(EVIDENCE))
    assert_array_equal(chain.marginals(), ChainMRF(LEFT, unary=EVIDENCE).marginals())


# ------------------------------------------------------------------ generated cases


def log_of_all_pairs(pair):
    """Return log psi of all pairs, term by term."""
    if not hasattr(pair, "sides"):
        return pair.logs
    left, right = (side.logs for side in pair.sides)
    return logsumexp(left[:, None] + right[None], axis=2)


def parts_of(field):
    """Return the logarithms that a field is made of."""
    return [
        part
        for pair in field.pairs.values()
        for part in ([side.logs for side in getattr(pair, "sides", ())] or [pair.matrix])
    ]


@generated
@hypothesis.given(
    maps, scales, dtypes, st.integers(1, 6), st.booleans(), st.booleans(), st.booleans(), seeds
)
def test_chains_of_any_scale_equal_sums_in_log_space(
    name, scale, dtype, length, is_tied, has_unary, is_even, seed
):
    rng = np.random.default_rng(seed)
    n = rng.integers(1, 7)
    left, right = made_tables(rng, scale, dtype, rng.integers(1, 5), n, n)
    unary = None
    if has_unary:
        unary = rng.normal(size=(length, n)) * rng.choice([1, 300])
        unary[rng.random(unary.shape) < 0.3] = -np.inf
        unary[:, 0] = np.maximum(unary[:, 0], -300.0)
    chain = ChainMRF(left, None if is_tied else right, unary=unary, feature_map=WIDE[name])
    field = chain._belief_propagation(length)
    logs = log_of_all_pairs(chain._model.pair(0, 1))
    evidence = np.zeros((length, n)) if unary is None else unary
    room = (1 + length) * 8 * EPS * (1 + largest_log(logs, evidence, *parts_of(field)))
    below, above = [np.zeros(n)], [np.zeros(n)]
    for t in range(length - 1):
        arrived = (below[-1] + evidence[t])[:, None] + logs
        below.append(logsumexp(arrived, axis=0))
        above.insert(0, logsumexp(logs + above[0] + evidence[length - 1 - t], axis=1))
    total = logsumexp(below[-1] + evidence[-1])
    assert_same_logs(chain.log_partition(length), total, room)
    if unary is None:
        assert_same_logs(chain.log_partition([length, 1]), [total, np.log(n)], room)
    paths = chain.sample(length, 5, random_state=0)
    weights = logs[paths[:, :-1], paths[:, 1:]].sum(axis=1)
    weights = weights + evidence[np.arange(length), paths].sum(axis=1)
    assert_same_logs(chain.log_prob(paths), weights - total, room)
    expected = np.exp(np.array(below) + above + evidence - total)
    assert_allclose(chain.marginals(length), expected, rtol=1e-6 + room, atol=1e-300)
    for t in range(length - 1):
        sides = (below[t] + evidence[t])[:, None], above[t + 1] + evidence[t + 1]
        expected = np.exp(sides[0] + logs + sides[1] - total)
        assert_allclose(chain.edge_marginals(length, t), expected, rtol=1e-6 + room, atol=1e-300)
    log_prob, path = chain.decode(length)
    assert_allclose(chain.log_prob(path), log_prob, rtol=1e-9, atol=10 * room)
    assert log_prob >= chain.log_prob(paths).max() - 10 * room


@generated
@hypothesis.given(maps, scales, dtypes, st.integers(1, 6), st.booleans(), seeds)
def test_trees_of_any_scale_equal_sums_in_log_space(name, scale, dtype, n, has_unary, seed):
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    edges = [(order[i], order[rng.integers(i)]) for i in range(1, n)]
    tables = made_tables(rng, scale, dtype, rng.integers(1, 5), *rng.integers(1, 4, size=n))
    unary = None
    if has_unary:
        unary = [rng.normal(size=len(table)) * rng.choice([1, 300]) for table in tables]
        for values in unary:
            values[rng.random(len(values)) < 0.3] = -np.inf
            values[0] = max(values[0], -300.0)
    tree = TreeMRF(edges, tables, unary, feature_map=WIDE[name])
    field = tree._belief_propagation()
    logs = dense(field, log_of_all_pairs)
    room = (1 + n) * 8 * EPS * (1 + largest_log(logs, *parts_of(field)))
    total = logsumexp(logs)
    assert_same_logs(tree.log_partition(), total, room)
    states = tree.sample(5, random_state=0)
    assert_same_logs(tree.log_prob(states), logs[tuple(states.T)] - total, room)
    every = np.array(list(np.ndindex(logs.shape)))
    assert_same_logs(tree.log_prob(every), logs.ravel() - total, room)
    shares = np.exp(logs - total)
    for i, found in enumerate(tree.marginals()):
        assert_allclose(found, marginal(shares, i), rtol=1e-6 + room, atol=1e-300)
    for i, j in edges:
        expected = shares.sum(axis=others(n, i, j))
        expected = expected if i < j else expected.T
        assert_allclose(tree.edge_marginals(i, j), expected, rtol=1e-6 + room, atol=1e-300)
    assert_same_logs(tree.decode()[0], logs.max() - total, room)
    for i, found in enumerate(tree.max_marginals()):
        assert_same_logs(found, logs.max(axis=others(n, i)) - total, room)


# ------------------------------------------------------------------ what is refused


def refused():
    """Yield (call, parameter, values that it refuses)."""
    chain, tree = ChainMRF(TABLE, feature_map="exact"), TreeMRF(EDGES, TABLE, feature_map="exact")
    for name, call in (
        ("length", chain.log_partition),
        ("length", chain.marginals),
        ("length", chain.sample),
        ("length", chain.decode),
        ("length", chain.max_marginals),
        ("length", chain.log_partition_gradient),
        ("length", lambda value: chain.edge_marginals(value, 0)),
        ("position", lambda value: chain.edge_marginals(3, value)),
        ("n", lambda value: chain.sample(3, value)),
        ("n", tree.sample),
        ("i", lambda value: tree.edge_marginals(value, 0)),
        ("j", lambda value: tree.edge_marginals(1, value)),
        ("max_iter", lambda value: ChainMRF(TABLE, max_iter=value).fit([[0, 1]])),
        ("max_iter", lambda value: TreeMRF([(0, 1)], TABLE, max_iter=value).fit([[0, 1]])),
    ):
        yield call, name, INTEGERS
    yield chain.log_prob, "paths", (*SEQUENCES[:7], *SEQUENCES[8:])  # lengths may differ
    yield tree.log_prob, "assignments", SEQUENCES
    yield tree.fit, "assignments", SEQUENCES
    yield chain.fit, "paths", (*SEQUENCES[:7], *SEQUENCES[8:])
    yield lambda value: TreeMRF(value, TABLE).log_partition(), "edges", SEQUENCES[1:]
    for name, call in (
        ("embeddings", lambda value: ChainMRF(value).log_partition(3)),
        ("embeddings", lambda value: TreeMRF(EDGES, value).log_partition()),
        (
            "embeddings[1]",
            lambda value: TreeMRF(EDGES, [TABLE, value, *[TABLE] * 3]).log_partition(),
        ),
        ("later", lambda value: ChainMRF(TABLE, value, feature_map="exact").log_partition(3)),
    ):
        yield call, name, TABLES_REFUSED
    yield lambda value: TreeMRF(EDGES, TABLE, value).log_partition(), "unary", SHARES
    yield lambda value: ChainMRF(TABLE, unary=value).log_partition(), "unary", SHARES
    yield (
        lambda value: TreeMRF(EDGES, TABLE, [PRIOR, value, *[PRIOR] * 3]).log_partition(),
        "unary[1]",
        SHARES,
    )
    for call in (
        lambda value: chain.sample(3, random_state=value),
        lambda value: tree.sample(3, random_state=value),
        lambda value: ChainMRF(TABLE, random_state=value).log_partition(3),
        lambda value: TreeMRF(EDGES, TABLE, random_state=value).log_partition(),
    ):
        yield call, "random_state", SEEDS


def test_what_makes_no_sense_is_refused_by_name():
    assert assert_refused(refused()) > 200


def test_numbers_that_no_array_can_hold_are_named():
    chain, tree = ChainMRF(TABLE, feature_map="exact"), TreeMRF(EDGES, TABLE, feature_map="exact")
    for number in (2**62, 2**63, 10**400):
        for call, name in (
            (lambda number: chain.sample(3, number), "n"),
            (lambda number: chain.sample(number), "length"),
            (tree.sample, "n"),
        ):
            with pytest.raises((ValueError, MemoryError), match=rf"\b{name}\b"):
                call(number)
