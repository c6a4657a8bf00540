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
    assert_refused_by_memory,
    assert_same_logs,
    corrected_table,
    dtypes,
    frozen,
    generated,
    joint,
    largest_log,
    made_tables,
    maps,
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
from skrf.graphical import ChainMRF, KernelHMM, SemiMarkovChain, TreeMRF
from skrf.graphical._maximum_likelihood import unpacked
from skrf.graphical._potentials import Dense, LowRank

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


def log_of_all_pairs(pair):
    """Return log psi of all pairs, term by term."""
    if isinstance(pair, Dense):
        return pair.logs
    if isinstance(pair, LowRank):
        left, right = (side.logs for side in pair.sides)
        return logsumexp(left[:, None] + right[None], axis=2)
    return corrected_table(pair)[0]


def dense(field):
    """Return the log weight of every assignment of a field."""
    sizes = [len(values) for values in field.unary]
    logs = np.zeros(sizes)
    for i, values in enumerate(field.unary):
        logs = logs + values.reshape([-1 if j == i else 1 for j in range(len(sizes))])
    for child, parent in field.parents.items():
        table = log_of_all_pairs(field.pairs[child])
        table = table if parent < child else table.T
        logs = logs + table.reshape([n if j in (child, parent) else 1 for j, n in enumerate(sizes)])
    return logs


def assert_enumerated(model, length=None):
    """Assert that what a model says agrees with all assignments; return their probabilities."""
    asked = (length,) if isinstance(model, ChainMRF) else ()
    field = model._belief_propagation(length)
    logs, n = dense(field), len(field.unary)
    potentials = []
    for pair in field.pairs.values():
        has_sides = isinstance(pair, LowRank)
        potentials += [side.logs for side in pair.sides] if has_sides else [pair.matrix]
    room = (1 + n) * 8 * EPS * (1 + largest_log(logs, *potentials))
    close = {"rtol": 1e-9 + room, "atol": 1e-300}
    shares, total = joint(logs)
    every = np.array(list(np.ndindex(logs.shape)))
    assert_same_logs(model.log_partition(*asked), total, room)
    assert_same_logs(model.log_prob(every), logs.ravel() - total, room)
    assert_same_logs(model.log_prob(every[0]), logs.flat[0] - total, room)
    log_prob, best = model.decode(*asked)
    assert_same_logs(log_prob, logs.max() - total, room)
    assert logs[tuple(best)] >= logs.max() - room
    for i, marginals in enumerate(model.marginals(*asked)):
        rest = tuple(j for j in range(n) if j != i)
        assert_allclose(marginals, shares.sum(axis=rest), **close)
    for j, i in field.parents.items():
        actual = model.edge_marginals(*((length, i) if asked else (i, j)))
        expected = shares.sum(axis=tuple(k for k in range(n) if k not in (i, j)))
        assert_allclose(actual, expected if i < j else expected.T, **close)
    return shares


# ------------------------------------------------------------------ sums over all assignments


@pytest.mark.parametrize(
    ("name", "kind", "length"),
    [
        ("exact", "plain", 1),
        ("adaptive", "plain", 3),
        ("optimal", "later", 5),
        ("clustered", "evidence", None),
        *((name, kind, None) for name in ("exact", "optimal") for kind in ("steps", "sizes")),
    ],
)
def test_a_chain_equals_enumeration(name, kind, length):
    chain, n = ChainMRF(**CHAINS[kind], feature_map=MAPS[name]), length or LENGTH
    shares = assert_enumerated(chain, n)
    assert_drawn_from(chain.sample(length, 4000, random_state=0), shares)
    assert chain.decode(length)[0] == chain.decode(n)[0]
    assert chain.log_partition(n) == chain.log_partition(length)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in ("exact", "adaptive") for kind in TREES),
        ("clustered", "unary"),
    ],
)
def test_a_tree_equals_enumeration(name, kind):
    tree = TreeMRF(EDGES, **TREES[kind], feature_map=MAPS[name])
    shares = assert_enumerated(tree)
    assert_drawn_from(tree.sample(4000, random_state=0), shares)
    assert_array_equal(tree.edge_marginals(0, 1), tree.edge_marginals(1, 0).T)


def test_the_exact_potentials_are_those_of_the_definition():
    """Of chains, and of trees, where the first variable of an edge is on the left."""
    for given in CHAINS.values():
        chain, u = ChainMRF(**given, feature_map="exact"), given["embeddings"]
        v = given.get("later", u)
        field = chain._belief_propagation(LENGTH)
        for t in range(LENGTH - 1):
            a, b = (u, v) if np.ndim(u[0]) == 1 else (u[t], v[t + 1])
            assert_allclose(field.pairs[t + 1].matrix, a @ b.T, rtol=1e-12)
            assert_allclose(field.pairs[t + 1].turned.matrix, b @ a.T, rtol=1e-12)
    tree = TreeMRF(EDGES, TABLES, later=LATER_TABLES, feature_map="exact")
    assignments = np.array([[1, 2, 3, 0, 1], [0, 1, 2, 1, 2]])
    expected = [sum(TABLES[i][x[i]] @ LATER_TABLES[j][x[j]] for i, j in EDGES) for x in assignments]
    assert_allclose(np.diff(tree.log_prob(assignments)), np.diff(expected), rtol=1e-12)


@pytest.mark.filterwarnings("ignore::skrf.exceptions.FeatureCollapseWarning")
def test_report_compares_the_chain_with_the_exact_one():
    """Also where a fitted map keeps its sigma."""
    half = frozen(OptimalPositiveRF(64, random_state=0), LEFT, sigma=0.5)
    halves = {"embeddings": LEFT / 2, "later": RIGHT / 2}
    cases = [({**given, "feature_map": MAPS["optimal"]}, given) for given in CHAINS.values()]
    for given, same in [*cases, ({**CHAINS["later"], "feature_map": half}, halves)]:
        chain = ChainMRF(**given)
        exact = ChainMRF(**same, feature_map="exact").log_partition(LENGTH)
        report = chain.report(LENGTH)
        assert_allclose([report.log_partition, report.lower, report.upper], exact, rtol=1e-9)
        error = exact - chain.log_partition(LENGTH)
        assert_allclose(report.error, error, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["exact", "adaptive"])
def test_evidence_changes_from_call_to_call_and_factors_stay(name):
    pandas = pytest.importorskip("pandas")
    chain = ChainMRF(LEFT, feature_map=MAPS[name], unary=np.zeros((3, 4)))
    assert_allclose(chain.log_partition(), ChainMRF(LEFT, feature_map=MAPS[name]).log_partition(3))
    model = chain._model
    for evidence in (EVIDENCE, pandas.DataFrame(EVIDENCE)):
        chain.set_params(unary=evidence)
        assert chain._model is model
        expected = logsumexp(dense(chain._belief_propagation(LENGTH)))
        assert_allclose(chain.log_partition(), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["exact", "optimal"])
def test_squaring_equals_stepping(name):
    chain = ChainMRF(LEFT, RIGHT, feature_map=MAPS[name])
    lengths = [1, 2, 14, 15, 16, 17, 40, 1333]
    values = [chain.log_partition(length) for length in lengths]
    matrix, message = chain._model.pair(0, 1).matrix, np.zeros(4)
    for length in range(1, 1334):
        if length in lengths:
            expected = logsumexp(message)
            assert_allclose(values[lengths.index(length)], expected, rtol=1e-10)
        message = logsumexp(matrix + message, axis=1)


def test_a_hub_needs_no_products():
    embeddings = 4 * np.random.default_rng(1).normal(size=(20, 4))
    feature_map = OptimalPositiveRF(8, random_state=0)
    star = TreeMRF([(0, i) for i in range(1, 3001)], embeddings, feature_map=feature_map)
    pair, alone = (TreeMRF([(0, 1)] * n, embeddings, feature_map=feature_map) for n in (1, 0))
    logs = np.log(np.sum(np.exp(pair._belief_propagation().pairs[1].matrix), axis=1))
    assert_allclose(star.log_partition(), logsumexp(3000 * logs), rtol=1e-9)
    assert_allclose([marginals.sum() for marginals in star.marginals()], 1, rtol=1e-9)
    assert_allclose(alone.log_partition(), np.log(20))


def test_the_default_is_exact_where_that_is_no_dearer():
    wide = 0.8 * np.random.default_rng(0).normal(size=(1024, 16))
    assert ChainMRF(wide).feature_map_ == "exact"
    assert isinstance(ChainMRF(np.vstack([wide, wide[:1]])).feature_map_, AdaptiveRF)
    # Few states beside many are no dearer either: 10 x 4,096 < 512 x 4,106.
    many = np.vstack([wide] * 4)
    assert TreeMRF([(0, 1)], [wide[:10], many]).feature_map_ == "exact"
    assert isinstance(TreeMRF([(0, 1)], [many, many]).feature_map_, AdaptiveRF)


@pytest.mark.parametrize("name", ["exact", "adaptive"])
def test_blocks_change_nothing(name):
    """Of maxima and of draws: arrays have at most 2^22 entries."""
    feature_map = "exact" if name == "exact" else frozen(SMOOTH[name], LEFT, RIGHT)

    def chain(n_copies):
        """Return a chain with every state so many times."""
        tables = (np.repeat(table, n_copies, axis=0) for table in (LEFT, RIGHT))
        unary = np.repeat(np.maximum(EVIDENCE[2:], -9.0), n_copies, axis=1)
        return ChainMRF(*tables, unary=unary, feature_map=feature_map)

    small, large = chain(1), chain(513)  # 2052^2 pairs
    (log_prob, states), (wanted, path) = large.decode(), small.decode()
    shift = 2 * np.log(513)  # of the log partition function
    assert_allclose(log_prob + shift, wanted, rtol=1e-9)
    assert_array_equal(states // 513, path)
    shares = joint(dense(small._belief_propagation(2)))[0]
    assert_drawn_from(large.sample(n=2500, random_state=0) // 513, shares)


def test_counts_of_pairs_in_blocks_are_those_of_all(monkeypatch):
    """Pairs that occur unequally often, two at a time."""
    chain = ChainMRF(LEFT, RIGHT, feature_map=frozen(SMOOTH["adaptive"], LEFT, RIGHT))
    paths = np.random.default_rng(0).integers(4, size=(300, 5)) ** 2 // 3
    wanted = chain.log_prob_gradient(paths)
    n_features = chain.feature_map_.n_components_
    monkeypatch.setattr("skrf.graphical._potentials._BLOCK", 2 * n_features)
    for side, gradient in chain.log_prob_gradient(paths).items():
        assert_allclose(gradient, wanted[side], rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------ gradients and learning


def flat(model, gradients):
    """Return gradients of a model in the order of its parameters."""
    sides = [gradients[side] for side in model._model.tables]
    return np.concatenate([np.ravel(table) for tables in sides for table in tables])


@pytest.mark.parametrize(
    ("name", "kind", "case"),
    [
        # One table for both sides has statistics that a new model learns anew: test_corrections.py.
        *(("optimal", "chain", case) for case in CHAINS if case != "plain"),
        *(("exact", "tree", case) for case in TREES),
        ("exact", "chain", "later"),
        ("adaptive", "tree", "later"),
        ("clustered", "chain", "sizes"),
        ("balanced", "chain", "later"),
        ("simplex+", "tree", "later"),
        ("dense", "tree", "plain"),
    ],
)
def test_gradients_are_those_of_models_with_the_map_that_was_fitted(name, kind, case):
    """What a user can check: the map stays, the embeddings move."""
    model = ChainMRF(**CHAINS[case]) if kind == "chain" else TreeMRF(EDGES, **TREES[case])
    tables, length = model._model.tables, (LENGTH,) if kind == "chain" else ()
    every = [X for of in tables.values() for X in of]
    held = "exact"
    if name != "exact":
        held = frozen(SMOOTH[name], *tables["embeddings"], keys=np.vstack(every))
    model.set_params(feature_map=held)
    assert model.feature_map_ is held

    def at(vector):
        arrays = iter(unpacked(vector, every))
        moved = {
            side: next(arrays) if len(of) == 1 else [next(arrays) for _ in of]
            for side, of in tables.items()
        }
        return clone(model).set_params(**moved)

    vector, marginals = np.concatenate([X.ravel() for X in every]), model.marginals(*length)
    gradients = model.log_partition_gradient(*length)
    value = flat(model, gradients)
    assert_gradient(value, lambda vector: at(vector).log_partition(*length), vector)
    for gradient, shares in zip(gradients["unary"], marginals, strict=True):
        assert_allclose(gradient, shares, rtol=1e-9, atol=1e-12)
    states = model.sample(*length, n=7, random_state=1)
    gradients = model.log_prob_gradient(states)
    value = flat(model, gradients)
    assert_gradient(value, lambda vector: at(vector).log_prob(states).sum(), vector)
    for i, gradient in enumerate(gradients["unary"]):
        seen = np.bincount(states[:, i], minlength=len(gradient))
        assert_allclose(gradient, seen - 7 * marginals[i], rtol=1e-9, atol=1e-9)
    for dtype in (np.uint8, np.uint64):
        again = flat(model, model.log_prob_gradient(states.astype(dtype)))
        assert_array_equal(again, value)


@pytest.mark.parametrize(
    ("name", "kind", "learn_unary", "share"),
    [
        ("adaptive", "chain", True, 0.03),
        ("clustered", "chain", False, 0.15),  # not everywhere differentiable
        ("balanced", "tree", True, 0.03),
    ],
)
def test_the_objective_of_fit_is_one_function(name, kind, learn_unary, share):
    """The map is fitted for the first embeddings, moves with nothing, and is what fit leaves.

    The gradient of this function vanishes where fit ends.
    """
    given = {"later": RIGHT / 2, "feature_map": SMOOTH[name], "max_iter": 60, "tol": 1e-12}
    model = ChainMRF(LEFT / 2, **given)
    if kind == "tree":
        model = TreeMRF(EDGES, LEFT / 2, **given)
    paths = ChainMRF(LEFT, RIGHT).sample(5, 20, random_state=0)
    map_before, before = model.feature_map_, learnt_gradient(model, paths, learn_unary)
    with warnings.catch_warnings(record=True) as caught:  # that it reached or stopped
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(paths, learn_unary=learn_unary)
    assert {warning.filename for warning in caught} <= {__file__}
    assert model.feature_map_ is map_before
    assert_allclose(model.log_prob(paths).sum(), model.history_[-1], rtol=1e-12)
    # The same function, for a user who holds the map and the embeddings.
    given = {"later": model.later_, "feature_map": FrozenEstimator(model.feature_map_)}
    again = clone(model).set_params(embeddings=model.embeddings_, **given)
    again.set_params(unary=getattr(model, "unary_", None))
    assert_allclose(again.log_prob(paths).sum(), model.history_[-1], rtol=1e-12)
    after = learnt_gradient(again, paths, learn_unary)
    assert np.linalg.norm(after) < share * np.linalg.norm(before)


def learnt_gradient(model, paths, learn_unary):
    """Return the gradient of the log probability of paths for what `fit` learns."""
    gradients = model.log_prob_gradient(paths)
    sides = [*model._model.tables, *["unary"] * learn_unary]
    return np.concatenate([np.ravel(values) for side in sides for values in gradients[side]])


def test_a_fitted_map_is_taken_as_it_is():
    chain = ChainMRF(LEFT, RIGHT, feature_map=frozen(SMOOTH["adaptive"], LEFT), random_state=3)
    held, expected = chain.feature_map, chain.log_partition(5)
    features = held.estimator.log_transform(LEFT), held.estimator.log_transform_keys(RIGHT)
    logs = logsumexp(features[0][:, None] + features[1][None], axis=2)
    assert_allclose(chain._model.pair(0, 1).matrix, logs, rtol=1e-12)
    for again in (clone(chain), copy.deepcopy(chain), pickle.loads(pickle.dumps(chain))):
        assert again.log_partition(5) == expected
    assert clone(chain).feature_map is held  # scikit-learn does not copy what is frozen
    paths = chain.sample(5, 30, random_state=0)
    assert chain.set_params(tol=0.1).fit(paths).feature_map_ is held
    assert pickle.loads(pickle.dumps(chain)).log_partition(5) == chain.log_partition(5)


@pytest.mark.parametrize("is_piped", [False, True], ids=["alone", "in a Pipeline"])
def test_another_fit_of_a_frozen_map_is_another_model(is_piped):
    """Its parameters are the same, so nothing but the fit tells."""
    dense_map = clone(SMOOTH["dense"]).set_params(kernel="softmax")
    whole = make_pipeline(MaxAbsScaler(), dense_map) if is_piped else dense_map
    held = FrozenEstimator(whole.fit(LEFT))
    chain = ChainMRF(LEFT, RIGHT, feature_map=held)
    first = chain.log_partition(5)
    assert chain._model is chain._model
    other = FrozenEstimator(clone(whole).fit(3 * LEFT + 1))
    expected = ChainMRF(LEFT, RIGHT, feature_map=other).log_partition(5)
    assert abs(first - expected) > 0.01
    assert chain.set_params(feature_map=other).log_partition(5) == expected
    assert chain.set_params(feature_map=held).log_partition(5) == first
    whole.fit(3 * LEFT + 1)
    assert chain.log_partition(5) == expected


def test_fit_takes_paths_of_several_lengths():
    truth = ChainMRF(LEFT, RIGHT)
    paths = [path for n in (1, 3, 5) for path in truth.sample(n, 50, random_state=n)]
    chain = ChainMRF(LEFT / 2, RIGHT / 2, tol=1e-4).fit(paths)
    assert chain.converged_ and np.all(np.diff(chain.history_) > 0)
    assert chain.n_iter_ == len(chain.history_)
    assert chain.log_prob(paths).sum() == pytest.approx(chain.history_[-1])
    assert chain.log_prob(paths).sum() > truth.log_prob(paths).sum()
    one = ChainMRF(LEFT / 2, RIGHT / 2, tol=1e-4).fit(np.array(paths[50:100]))
    two = ChainMRF(LEFT / 2, RIGHT / 2, tol=1e-4).fit(paths[50:100])
    assert one.history_ == two.history_


def test_fit_recovers_a_planted_tree_with_unaries():
    truth = TreeMRF(EDGES, TABLES, UNARY, later=LATER_TABLES)
    train, held_out = (truth.sample(2000, random_state=seed) for seed in (0, 1))
    unary = [np.where(np.isfinite(values), 0.0, -np.inf) for values in UNARY]
    given = {"later": [X / 2 for X in LATER_TABLES], "feature_map": MAPS["adaptive"], "tol": 1e-6}
    tree = TreeMRF(EDGES, [X / 2 for X in TABLES], unary, **given, max_iter=300)
    tree.fit(train, learn_unary=True)
    wanted = truth.log_prob(held_out).mean()
    assert tree.log_prob(held_out).mean() > wanted - 0.02
    assert np.isneginf(tree.unary_[2][1]) and tree.marginals()[2][1] == 0
    assert len(tree.embeddings_) == 5
    held = TreeMRF(EDGES, [X / 2 for X in TABLES], UNARY, **given).fit(train)
    assert not hasattr(held, "unary_") and held.log_prob(held_out).mean() > wanted - 0.02


def test_a_fit_knows_nothing_of_the_fit_before_and_one_that_raises_changes_nothing():
    paths = ChainMRF(LEFT).sample(6, 50, random_state=0)
    chain = ChainMRF(LEFT, tol=0.1).fit(paths, learn_unary=True)
    assert chain.unary_.shape == (6, 4)
    before = vars(chain).copy()
    with pytest.raises(ValueError, match="paths"):
        chain.fit([[0.5]])
    assert vars(chain) == before
    assert not hasattr(chain.fit(paths[:, :4]), "unary_")
    wide = np.random.default_rng(0).normal(size=(9, 3))
    assert chain.set_params(embeddings=wide).fit(paths + 5).embeddings_.shape == (9, 3)
    tree = TreeMRF([(0, 1), (1, 2)], [LEFT] * 3, tol=0.1).fit(paths[:, :3])
    tree.set_params(edges=[(0, 1), (1, 2), (2, 3)], embeddings=[LEFT] * 4)
    with pytest.raises(ValueError, match="edges must name variables from 0 to 2, of embeddings"):
        tree.marginals()
    assert tree.fit(paths[:, :4]).embeddings_.shape == (4, 4, 3)


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
    long = ChainMRF(100 * LEFT, unary=3e4 * np.random.default_rng(0).normal(size=(1000, 4)))
    (counts,) = long._belief_propagation(1000).expected_counts()[1].values()
    assert_allclose(counts[0].sum(), 999, rtol=1e-12)
    for name in ("exact", "optimal"):
        field = ChainMRF(1e100 * LEFT, feature_map=MAPS[name])._belief_propagation(6)
        (counts,) = field.expected_counts()[1].values()
        of_pairs = counts.pop() if len(counts) > 1 else np.zeros(1)
        assert_allclose([side.sum() + of_pairs.sum() for side in counts], 5, rtol=1e-12)


@pytest.mark.parametrize("name", ["adaptive", "exact"])
def test_copies_of_tables_change_nothing(name):
    A, B = (np.random.default_rng(i).normal(size=(n, 3)) for i, n in enumerate((40, 30)))
    edges = [(0, 1), (1, 2), (2, 3), (3, 4)]
    tree = TreeMRF(edges, [A, A, A, A, B], feature_map=MAPS[name])
    expected = tree.log_partition()
    for tables in ([A, A[:], A.copy(), A.tolist(), B], clone(tree).embeddings):
        assert TreeMRF(edges, tables, feature_map=MAPS[name]).log_partition() == expected
    # Features are fitted to each pair of tables once, however many edges share it.
    changes = []
    for n in (1, 8):
        star = TreeMRF([(0, i) for i in range(1, n + 1)], A, feature_map=MAPS[name])
        changes.append(star.log_prob([3] * n + [3]) - star.log_prob([3] * n + [5]))
    assert_allclose(*changes, rtol=1e-9)


def held_arrays(model):
    """Return what a model was given, by name, without its settings."""
    kinds = np.ndarray, list
    return {name: of for name, of in model.get_params(False).items() if isinstance(of, kinds)}


def scale_in_place(value, factor):
    """Multiply an array, or each of a list, by a number, where it stands."""
    for array in value if isinstance(value, list) else [value]:
        array *= factor


SEEN, SEGMENTS = np.array([0, 2, 1, 3, 3]), np.full((5, 4), 0.5)
MODELS = {
    "chain": (ChainMRF, {"embeddings": LEFT, "later": RIGHT}, lambda model: model.log_prob(SEEN)),
    "evidence": (ChainMRF, CHAINS["evidence"], lambda model: model.log_partition()),
    "tables": (ChainMRF, CHAINS["sizes"], lambda model: model.log_partition()),
    "tree": (
        TreeMRF,
        {"edges": np.array(EDGES), **TREES["later"]},
        lambda model: model.log_partition(),
    ),
    "hmm": (
        KernelHMM,
        {
            "states": LEFT,
            "symbols": RIGHT,
            "targets": RIGHT[::-1],
            "emitters": LEFT[::-1],
            "start_embedding": RIGHT[0],
        },
        lambda model: model.score(SEEN),
    ),
    "start": (
        KernelHMM,
        {"states": LEFT, "symbols": RIGHT, "start_prob": np.array([0.5, 0.25, 0.25, 0.0])},
        lambda model: model.score(SEEN),
    ),
    "segments": (
        SemiMarkovChain,
        {"embeddings": LEFT, "later": RIGHT, "durations": np.array([0.0, 1.0, -1.0])},
        lambda model: model.log_partition(SEGMENTS),
    ),
}


@pytest.mark.parametrize("feature_map", ["exact", "optimal"])
@pytest.mark.parametrize("name", MODELS)
def test_arrays_that_the_caller_changes_move_nothing_until_they_are_given_again(name, feature_map):
    cls, params, value = MODELS[name]
    model = cls(**copy.deepcopy(params), feature_map=MAPS[feature_map])
    given, expected = held_arrays(model), value(model)
    assert given.keys() == params.keys()
    for array in given.values():
        scale_in_place(array, 3)
    for copied in (model, copy.copy(model), pickle.loads(pickle.dumps(model))):
        assert value(copied) == expected
    assert all(getattr(model, key) is array for key, array in given.items())
    for key in given:
        again = cls(**copy.deepcopy(params), feature_map=MAPS[feature_map])
        buffer = held_arrays(again)[key]
        assert value(again) == expected
        if key in ("edges", "start_prob"):
            buffer[...] = params[key][::-1].copy()
        else:
            scale_in_place(buffer, 2)
        fresh = cls(**again.get_params(False))
        assert value(again) == expected
        # Given again, the same object counts as it is now.
        assert value(again.set_params(**{key: buffer})) == value(fresh)


@pytest.mark.parametrize("name", ["chain", "tree", "hmm"])
def test_fit_begins_with_arrays_as_they_are_then(name):
    cls, params, value = MODELS[name]
    model = cls(**copy.deepcopy(params), max_iter=2, tol=0.0)
    value(model)
    for array in held_arrays(model).values():
        if array is not model.get_params(False).get("edges"):
            scale_in_place(array, 1.25)
    paths = {"chain": [SEEN[:4]], "tree": [[1, 1, 0, 0, 2]], "hmm": SEEN}[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        other = clone(model).fit(paths)
        model.fit(paths)
    assert model.history_ == other.history_
    expected = value(model)
    for array in held_arrays(model).values():
        scale_in_place(array, 3)
    assert value(model) == expected


def test_pickles_do_not_hold_what_is_made_anew():
    chain = ChainMRF(np.random.default_rng(0).normal(size=(1100, 3)), random_state=0, tol=0.5)
    chain.decode(2)
    chain.marginals(2)
    # Embeddings twice, and near states; all pairs would be 9.7 MB.
    assert len(pickle.dumps(chain)) < 250_000
    chain.fit([[0, 1, 2]])
    assert_allclose(pickle.loads(pickle.dumps(chain)).log_partition(5), chain.log_partition(5))


# ------------------------------------------------------------------ generated cases


def made_unary(rng, sizes):
    """Return log potentials of which some are large, and some forbid a state."""
    unary = [rng.normal(size=n) * rng.choice([1, 300]) for n in sizes]
    for values in unary:
        values[rng.random(len(values)) < 0.3] = -np.inf
        values[0] = max(values[0], -300.0)
    return unary


@generated
@hypothesis.given(maps, scales, dtypes, st.integers(1, 5), st.booleans(), st.booleans(), seeds)
def test_chains_of_any_scale_equal_enumeration(
    name, scale, dtype, length, is_tied, has_unary, seed
):
    rng = np.random.default_rng(seed)
    n = rng.integers(1, 5)
    left, right = made_tables(rng, scale, dtype, rng.integers(1, 5), n, n)
    unary = made_unary(rng, [n] * length) if has_unary else None
    later = None if is_tied else right
    assert_enumerated(ChainMRF(left, later, unary=unary, feature_map=WIDE[name]), length)


@generated
@hypothesis.given(maps, scales, dtypes, st.integers(1, 6), st.booleans(), seeds)
def test_trees_of_any_scale_equal_enumeration(name, scale, dtype, n, has_unary, seed):
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    edges = [(order[i], order[rng.integers(i)]) for i in range(1, n)]
    tables = made_tables(rng, scale, dtype, rng.integers(1, 5), *rng.integers(1, 4, size=n))
    unary = made_unary(rng, map(len, tables)) if has_unary else None
    assert_enumerated(TreeMRF(edges, tables, unary, feature_map=WIDE[name]))


# ------------------------------------------------------------------ what is refused


def refused():
    """Yield (call, parameter, values that it refuses)."""
    chain, tree = ChainMRF(TABLE, feature_map="exact"), TreeMRF(EDGES, TABLE, feature_map="exact")
    long, seen = ChainMRF(STEPS), ChainMRF(LEFT, unary=EVIDENCE)

    def of_chains(embeddings=TABLE, later=None, unary=None, **params):
        return ChainMRF(embeddings, later, unary=unary, **params).log_partition(LENGTH)

    def of_trees(embeddings=TABLE, unary=None, later=None, edges=EDGES):
        return TreeMRF(edges, embeddings, unary, later=later).log_partition()

    def learnt(**params):
        return ChainMRF(TABLE, **params).fit([[0, 1]])

    for name, call in (
        *(("length", getattr(chain, of)) for of in ("log_partition", "sample", "report")),
        ("length", lambda value: chain.edge_marginals(value, 0)),
        ("position", lambda value: chain.edge_marginals(3, value)),
        ("n_products", lambda value: chain.report(3, n_products=value)),
        ("n", lambda value: chain.sample(3, value)),
        ("n", tree.sample),
        ("i", lambda value: tree.edge_marginals(value, 0)),
        ("j", lambda value: tree.edge_marginals(1, value)),
        ("max_iter", lambda value: learnt(max_iter=value)),
    ):
        yield call, name, INTEGERS
    yield chain.log_partition, "length", [0]
    yield seen.marginals, "length", [3, 5]
    yield long.marginals, "length", [3, 5]
    yield lambda value: chain.edge_marginals(3, value), "position", [2]
    yield lambda value: learnt(tol=value), "tol", [-1.0]
    # Sequences, whose lengths may differ where there is no unary.
    for call in (chain.log_prob, chain.fit):
        yield call, "paths", (*SEQUENCES[:7], SEQUENCES[9])
    yield seen.log_prob, "paths", [[0] * 5]
    yield chain.log_prob_gradient, "paths", [[[0], [0, 1]]]
    yield lambda value: chain.fit(value, learn_unary=True), "paths", [[[0], [0, 1]]]
    yield lambda value: chain.fit([[0, 1]], learn_unary=value), "learn_unary", ["no", 1]
    for call in (tree.log_prob, tree.fit):
        yield call, "assignments", (*SEQUENCES, [0, 0, 0], [0, 0, 0, 5, 0])
    cycles = [(0, 1), (1, 2), (2, 0)], [(0, 1), (0, 1)], [(0, 1), (2, 3), (3, 2)], [(0, 0)]
    faulty = [(0, -1)], [[0, 1, 2]], *SEQUENCES[1:]
    yield lambda value: of_trees(edges=value), "edges", (*cycles, *faulty)
    # Tables.
    for name, call, values in (
        ("embeddings", of_chains, [[TABLE]]),
        ("embeddings", of_trees, [TABLES[:3]]),
        ("embeddings[1]", lambda value: of_trees([TABLE, value, *[TABLE] * 3]), [TABLE[:, :2]]),
        ("later", lambda value: of_chains(later=value), [TABLE[:2], TABLE[:, :2], STEPS]),
        ("later", lambda value: of_trees(later=value), [TABLES[:3]]),
    ):
        yield call, name, (*TABLES_REFUSED, *values)
    unaries = [0.0], [-np.inf] * 5, [0.0] * 4 + [np.inf]
    for name, call, values in (
        ("unary", lambda value: of_trees(unary=value), [[PRIOR] * 2]),
        ("unary", lambda value: of_chains(unary=value), [[[0.0] * 3]]),
        ("unary", lambda value: of_chains(STEPS, unary=value), [EVIDENCE[:3]]),
        ("unary[4]", lambda value: of_trees(unary=[*[PRIOR] * 4, value]), unaries),
    ):
        yield call, name, (*SHARES, *values)
    maps = RFFSampler(), OptimalPositiveRF(sigma=2.0), "rff", OptimalPositiveRF
    yield lambda value: of_chains(feature_map=value), "feature_map", maps
    for call in (
        lambda value: chain.sample(3, random_state=value),
        lambda value: tree.sample(3, random_state=value),
        lambda value: of_chains(random_state=value),
    ):
        yield call, "random_state", SEEDS


def test_what_makes_no_sense_is_refused_by_name():
    assert assert_refused(refused()) > 200
    chain, tree = ChainMRF(TABLE, feature_map="exact"), TreeMRF(EDGES, TABLE, feature_map="exact")
    assert_refused_by_memory(
        (lambda number: chain.sample(3, number), "n"),
        (lambda number: chain.sample(number), "length"),
        (tree.sample, "n"),
    )


def test_times_are_no_embeddings():
    """Objects of NumPy become floats without an error."""
    times = np.empty((5, 3), dtype=object)
    times.fill(np.timedelta64(1, "s"))
    with pytest.raises(TypeError, match="embeddings has dates or times"):
        ChainMRF(times).log_partition(LENGTH)


def test_what_does_not_go_together_is_refused():
    chain, tree = ChainMRF(LEFT, feature_map="exact"), TreeMRF(EDGES, TABLES)
    seen = ChainMRF(LEFT, unary=EVIDENCE)
    paths = ChainMRF(LEFT).sample(LENGTH, 5, random_state=0)
    paths[3, 2] = 1  # forbidden by EVIDENCE
    assert seen.log_prob(paths)[3] == -np.inf
    for call, said in (
        (seen.fit, "states that unary forbids; row [0-3] does"),
        (seen.log_prob_gradient, "states that unary forbids; row 3 does"),
        (lambda paths: tree.edge_marginals(0, 2), "no edge between 0 and 2"),
    ):
        with pytest.raises(ValueError, match=said):
            call(paths)
    with pytest.raises(NotFittedError, match="This ChainMRF was not fitted"):
        _ = chain.n_iter_
    with pytest.raises(NotImplementedError, match="No gradients"):
        ChainMRF(LEFT, feature_map=WIDE["poisson"]).fit(paths)


@pytest.mark.parametrize(
    ("feature_map", "said"),
    [
        (AdaptiveRF(6).fit(LEFT), r"AdaptiveRF\(.* was fitted with kernel='gaussian'; .*softmax"),
        (AdaptiveRF(6, kernel="softmax").fit(LEFT[:, :2]), "with 2 features, .* have width 3"),
        (RFFSampler(6, kernel="softmax").fit(LEFT), "RFFSampler.* is not positive"),
        (Nystroem(n_components=2).fit(LEFT), "Nystroem.* is not positive"),
        (AdaptiveRF(6).fit(LEFT).set_params(kernel="softmax"), "fitted with kernel='gaussian'"),
        (AdaptiveRF(6, kernel="softmax"), "AdaptiveRF instance is not fitted yet"),
    ],
    ids=["kernel", "width", "signs", "other package", "parameter", "unfitted"],
)
def test_fitted_maps_that_do_not_fit_are_refused(feature_map, said):
    params = {"feature_map": FrozenEstimator(feature_map)}
    for call in (
        lambda: ChainMRF(LEFT, **params).log_partition(2),
        lambda: ChainMRF(LEFT, **params).fit([[0, 1]]),
        lambda: KernelHMM(LEFT, RIGHT, **params).score([0, 1]),
    ):
        with pytest.raises(ValueError, match=said):
            call()
