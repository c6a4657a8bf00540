"""Chains and trees against enumeration and dense computations."""

import itertools

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
    TABLE,
    TABLES_REFUSED,
    WIDE,
    assert_drawn_from,
    assert_refused,
    assert_same_logs,
    dtypes,
    every_map,
    generated,
    joint,
    largest_log,
    log_of_all_pairs,
    made_tables,
    maps,
    marginal,
    scales,
    seeds,
)
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import logsumexp

from skrf import OptimalPositiveRF, RFFSampler
from skrf.graphical import ChainMRF, TreeMRF

RNG = np.random.default_rng(0)


# ------------------------------------------------------------------ chains

LEFT, RIGHT = RNG.normal(size=(2, 4, 3))


def dense_chain(chain, length):
    """Return the log weight of every path, from the log potentials of all pairs."""
    pair, _ = chain._model
    n = len(pair.left)
    logs = np.zeros((n,) * length)
    for t in range(length - 1):
        shape = [1] * length
        shape[t] = shape[t + 1] = n
        logs = logs + pair.matrix().reshape(shape)
    return logs


@pytest.mark.parametrize("later", [None, RIGHT])
@pytest.mark.parametrize("length", [1, 2, 3, 5])
@every_map
def test_chain_equals_enumeration(name, length, later):
    chain = ChainMRF(LEFT, later, feature_map=MAPS[name])
    if name == "exact":
        expected = LEFT @ (LEFT if later is None else later).T
        assert_allclose(chain._model[0].matrix(), expected, rtol=1e-12)
    logs = dense_chain(chain, length)
    shares, total = joint(logs)
    assert_allclose(chain.log_partition(length), total, rtol=1e-10)
    paths = np.array(list(itertools.product(range(4), repeat=length)))
    assert_allclose(chain.log_prob(paths), np.log(shares).ravel(), rtol=1e-9, atol=1e-9)
    assert chain.log_prob(paths[1]) == pytest.approx(np.log(shares).ravel()[1])
    found = chain.marginals(length)
    for t in range(length):
        assert_allclose(found[t], marginal(shares, t), rtol=1e-10)
    for t in range(length - 1):
        others = tuple(i for i in range(length) if i not in (t, t + 1))
        assert_allclose(chain.edge_marginals(length, t), shares.sum(axis=others), rtol=1e-10)
    assert_drawn_from(chain.sample(length, 4000, random_state=0), shares)


def test_squaring_equals_stepping():
    chain = ChainMRF(LEFT, RIGHT, feature_map=MAPS["optimal"])
    lengths = [1, 2, 14, 15, 16, 17, 40, 333]
    values = chain.log_partition(lengths)
    pair, transfer = chain._model
    last = logsumexp(pair.right, axis=0)
    for length in range(2, 334):
        if length in lengths:
            expected = logsumexp(logsumexp(pair.left, axis=0) + last)
            assert_allclose(values[lengths.index(length)], expected, rtol=1e-10)
        last = logsumexp(transfer + last, axis=1)


@pytest.mark.parametrize("scale", [0.3, 3.0, 12.0])
def test_long_chains_do_not_underflow(scale):
    embeddings = scale * np.random.default_rng(1).normal(size=(30, 5))
    chain = ChainMRF(embeddings, feature_map=OptimalPositiveRF(16, random_state=0))
    logs = chain.log_partition([99_999, 100_000])
    # The ratio of successive sums is the largest eigenvalue of the potentials.
    matrix = chain._model[0].matrix()
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


def test_chain_refuses():
    chain = ChainMRF(LEFT, feature_map="exact")
    for call, said in (
        (lambda: chain.log_partition(0), "length must be an integer >= 1, got 0"),
        (lambda: chain.log_prob([0, 9]), "paths must hold states from 0 to 3"),
        (lambda: chain.log_prob([0.5]), "paths must be integers"),
        (lambda: chain.edge_marginals(3, 2), "position must lie in 0 to 1"),
        (lambda: ChainMRF(LEFT, RIGHT[:2]).log_partition(2), "later has 2 rows"),
        (lambda: ChainMRF(LEFT, RIGHT[:, :2]).log_partition(2), "later has width 2"),
        (
            lambda: ChainMRF(LEFT, feature_map=RFFSampler()).log_partition(2),
            "is not positive",
        ),
        (
            lambda: ChainMRF(LEFT, feature_map=OptimalPositiveRF(sigma=2.0)).log_partition(2),
            "leave the default",
        ),
        (lambda: ChainMRF(LEFT, feature_map="rff").log_partition(2), "or 'exact', got 'rff'"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    with pytest.raises(TypeError, match="must be an instance"):
        ChainMRF(LEFT, feature_map=OptimalPositiveRF).log_partition(2)


# ------------------------------------------------------------------ trees

EDGES = [(3, 1), (1, 0), (1, 4), (4, 2)]
TABLES = [RNG.normal(size=(n, 3)) / 1.5 for n in (2, 3, 4, 2, 3)]
UNARY = [RNG.normal(size=len(table)) for table in TABLES]
UNARY[2][1] = -np.inf


def dense_tree(tree):
    order, parents, unary, pairs = tree._model
    sizes = [len(values) for values in unary]
    logs = np.zeros(sizes)
    for i, values in enumerate(unary):
        logs = logs + values.reshape([-1 if j == i else 1 for j in range(len(sizes))])
    for child, parent in parents.items():
        table = pairs[child].matrix()
        table = table if parent < child else table.T
        shape = [n if j in (child, parent) else 1 for j, n in enumerate(sizes)]
        logs = logs + table.reshape(shape)
    return logs


@pytest.mark.parametrize("unary", [None, UNARY])
@every_map
def test_tree_equals_enumeration(name, unary):
    tree = TreeMRF(EDGES, TABLES, unary, feature_map=MAPS[name])
    if name == "exact":
        for child, parent in tree._model[1].items():
            expected = TABLES[parent] @ TABLES[child].T
            assert_allclose(tree._model[3][child].matrix(), expected, rtol=1e-12)
    shares, total = joint(dense_tree(tree))
    assert_allclose(tree.log_partition(), total, rtol=1e-10)
    for i, found in enumerate(tree.marginals()):
        assert_allclose(found, marginal(shares, i), rtol=1e-10, atol=1e-300)
    for i, j in EDGES + [(0, 1)]:
        others = tuple(k for k in range(5) if k not in (i, j))
        expected = shares.sum(axis=others)
        found = tree.edge_marginals(i, j)
        assert_allclose(found, expected if i < j else expected.T, rtol=1e-10, atol=1e-300)
    states = np.array(list(itertools.product(*(range(len(table)) for table in TABLES))))
    with np.errstate(divide="ignore"):
        assert_allclose(tree.log_prob(states), np.log(shares).ravel(), rtol=1e-9, atol=1e-9)
    assert tree.log_prob(states[0]) == pytest.approx(np.log(shares.ravel()[0]))
    assert_drawn_from(tree.sample(6000, random_state=0), shares)


def test_a_path_is_a_chain_and_a_hub_needs_no_products():
    embeddings = 4 * np.random.default_rng(1).normal(size=(20, 4))
    own = OptimalPositiveRF(8, random_state=0)
    path = TreeMRF([(i, i + 1) for i in range(30)], embeddings, feature_map="exact")
    chain = ChainMRF(embeddings, feature_map="exact")
    assert_allclose(path.log_partition(), chain.log_partition(31), rtol=1e-12)
    assert_allclose(np.array(path.marginals()), chain.marginals(31), rtol=1e-9, atol=1e-15)
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
    ("edges", "said"),
    [
        ([(0, 1), (1, 2), (2, 0)], "cycle|not connected"),
        ([(0, 1), (0, 1), (2, 3)], "cycle"),
        ([(0, 1), (2, 3), (3, 2)], "cycle|not connected"),
        ([(0, 0)], "cycle"),
        ([(0, 5)], "names variables from 0 to 5"),
        ([(0, 1, 2)], "edges must be integers of shape"),
        ([(0.0, 1.0)], "edges must be integers of shape"),
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
    ):
        with pytest.raises(ValueError, match=said):
            tree.log_partition()
    tree = TreeMRF(EDGES, TABLES)
    with pytest.raises(ValueError, match="no edge between 0 and 2"):
        tree.edge_marginals(0, 2)
    with pytest.raises(ValueError, match="assignments must give a state"):
        tree.log_prob([0, 0, 0, 5, 0])


# ------------------------------------------------------------------ generated cases


@generated
@hypothesis.given(maps, scales, dtypes, st.integers(1, 7), st.booleans(), seeds)
def test_chains_of_any_scale_equal_sums_in_log_space(name, scale, dtype, length, is_tied, seed):
    rng = np.random.default_rng(seed)
    left, right = made_tables(rng, scale, dtype, rng.integers(1, 5), *[rng.integers(1, 7)] * 2)
    chain = ChainMRF(left, None if is_tied else right, feature_map=WIDE[name])
    pair, _ = chain._model
    logs = log_of_all_pairs(pair)
    room = (1 + length) * 8 * EPS * (1 + largest_log(pair.left, pair.right))
    if name == "exact":
        expected = left.astype(float) @ (left if is_tied else right).astype(float).T
        assert_allclose(logs, expected, rtol=1e-12, atol=room)
    below, above = [np.zeros(len(logs))], [np.zeros(len(logs))]
    for _ in range(length - 1):
        below.append(logsumexp(below[-1][:, None] + logs, axis=0))
        above.insert(0, logsumexp(logs + above[0], axis=1))
    total = logsumexp(below[-1])
    assert_same_logs(chain.log_partition(length), total, room)
    assert_same_logs(chain.log_partition([length, 1]), [total, np.log(len(logs))], room)
    paths = chain.sample(length, 5, random_state=0)
    weights = logs[paths[:, :-1], paths[:, 1:]].sum(axis=1)
    assert_same_logs(chain.log_prob(paths), weights - total, room)
    expected = np.exp(np.array(below) + above - total)
    assert_allclose(chain.marginals(length), expected, rtol=1e-6 + room, atol=1e-300)
    for t in range(length - 1):
        expected = np.exp(below[t][:, None] + logs + above[t + 1] - total)
        assert_allclose(chain.edge_marginals(length, t), expected, rtol=1e-6 + room, atol=1e-300)


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
    logs, pairs = np.zeros([len(table) for table in tables]), tree._model[3]
    for i, values in enumerate(unary or []):
        logs = logs + values.reshape([-1 if j == i else 1 for j in range(n)])
    for child, parent in tree._model[1].items():
        own = log_of_all_pairs(pairs[child])
        own = own if parent < child else own.T
        logs = logs + own.reshape([m if j in (child, parent) else 1 for j, m in
                                   enumerate(logs.shape)])  # fmt: skip
    parts = [part for pair in pairs.values() for part in (pair.left, pair.right)]
    room = (1 + n) * 8 * EPS * (1 + largest_log(logs, *parts))
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
        expected = shares.sum(axis=tuple(k for k in range(n) if k not in (i, j)))
        expected = expected if i < j else expected.T
        assert_allclose(tree.edge_marginals(i, j), expected, rtol=1e-6 + room, atol=1e-300)


# ------------------------------------------------------------------ what is refused


def refused():
    """Yield (call, parameter, values that it refuses)."""
    chain, tree = ChainMRF(TABLE, feature_map="exact"), TreeMRF(EDGES, TABLE, feature_map="exact")
    for name, call in (
        ("length", chain.log_partition),
        ("length", chain.marginals),
        ("length", chain.sample),
        ("length", lambda value: chain.edge_marginals(value, 0)),
        ("position", lambda value: chain.edge_marginals(3, value)),
        ("n", lambda value: chain.sample(3, value)),
        ("n", tree.sample),
        ("i", lambda value: tree.edge_marginals(value, 0)),
        ("j", lambda value: tree.edge_marginals(1, value)),
    ):
        yield call, name, INTEGERS
    yield chain.log_prob, "paths", SEQUENCES
    yield tree.log_prob, "assignments", SEQUENCES
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
            with pytest.raises(ValueError, match=rf"\b{name}\b"):
                call(number)
