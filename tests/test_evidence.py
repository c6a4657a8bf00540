"""Chains with evidence of their own, hidden states and paths of several lengths."""

import itertools

import numpy as np
import pytest
from fields import MAPS, assert_drawn_from
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from sklearn.frozen import FrozenEstimator

from skrf.graphical import ChainMRF, TreeMRF

RNG = np.random.default_rng(5)
LEFT, RIGHT = RNG.normal(size=(2, 4, 3))
LENGTHS = [3, 1, 2, 3, 5]
UNARIES = [RNG.normal(size=(length, 4)) for length in LENGTHS]
UNARIES[3][1, 2] = -np.inf
STACKED = np.vstack(UNARIES)
SIZES = (2, 3, 4)
TABLES = [RNG.normal(size=(n, 3)) for n in SIZES]
RAGGED = [[RNG.normal(size=n) for n in SIZES] for _ in range(4)]
KINDS = {
    "exact": (dict(embeddings=LEFT, later=RIGHT, feature_map="exact"), UNARIES),
    "features": (dict(embeddings=LEFT, later=RIGHT, feature_map=MAPS["optimal"]), UNARIES),
    "corrected": (dict(embeddings=LEFT, feature_map=MAPS["adaptive"]), UNARIES),
    "sizes": (dict(embeddings=TABLES, feature_map=MAPS["adaptive"]), RAGGED),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def each(kind):
    """Return a chain without evidence, evidence, and a chain with each of them."""
    params, unaries = KINDS[kind]
    return ChainMRF(**params), unaries, [ChainMRF(**params, unary=unary) for unary in unaries]


@kinds
def test_each_chain_of_a_list_is_as_if_its_evidence_were_the_models(kind):
    chain, unaries, alone = each(kind)
    assert_allclose(chain.log_partition(unary=unaries), [one.log_partition() for one in alone])
    logs, paths = chain.decode(unary=unaries)
    assert_allclose(chain.log_prob(paths, unary=unaries), logs)
    for i, one in enumerate(alone):
        of_list, own = chain.marginals(unary=unaries)[i], one.marginals()
        assert len(of_list) == len(own) and type(of_list) is type(own)
        for actual, expected in zip(of_list, own, strict=True):
            assert_allclose(actual, expected, atol=1e-14)
        assert_allclose(logs[i], one.decode()[0])
        assert_array_equal(paths[i], one.decode()[1])
        assert_allclose(chain.log_partition(unary=unaries[i]), one.log_partition())
        assert_allclose(chain.log_prob(paths[i], unary=unaries[i]), logs[i])
    pairs = [unary for unary in unaries if len(unary) > 1]
    joint = chain.edge_marginals(unary=pairs)
    assert_allclose(joint[1], ChainMRF(**KINDS[kind][0], unary=pairs[1]).edge_marginals())


def test_chains_one_after_the_other_come_back_so():
    chain, unaries, _ = each("features")
    given, listed = {"unary": STACKED, "lengths": LENGTHS}, {"unary": unaries}
    assert_allclose(chain.log_partition(**given), chain.log_partition(**listed))
    assert_allclose(chain.marginals(**given), np.vstack(chain.marginals(**listed)))
    logs, path = chain.decode(**given)
    assert_array_equal(path, np.concatenate(chain.decode(**listed)[1]))
    assert_allclose(chain.log_prob(path, **given), logs)
    drawn = chain.sample(n=2, random_state=0, **given)
    assert_array_equal(drawn, np.hstack(chain.sample(n=2, random_state=0, **listed)))
    gradients = chain.log_prob_gradient(path, **given)
    assert gradients["unary"].shape == STACKED.shape
    # Without evidence, lengths cut paths.
    split = np.split(path, np.cumsum(LENGTHS)[:-1])
    assert_allclose(chain.log_prob(path, lengths=LENGTHS), [chain.log_prob(one) for one in split])


def test_samples_follow_the_evidence_of_their_chain():
    chain, unaries, _ = each("corrected")
    for unary, draws in zip(
        unaries[:4], chain.sample(n=4000, unary=unaries[:4], random_state=0), strict=True
    ):
        every = np.array(list(itertools.product(range(4), repeat=len(unary))))
        shares = np.exp(chain.log_prob(every, unary=unary)).reshape(len(unary) * (4,))
        assert_drawn_from(draws, shares)


@kinds
def test_gradients_are_sums_over_chains(kind):
    chain, unaries, alone = each(kind)
    _, paths = chain.decode(unary=unaries)
    calls = (
        (
            chain.log_partition_gradient(unary=unaries),
            [one.log_partition_gradient() for one in alone],
        ),
        (
            chain.log_prob_gradient(paths, unary=unaries),
            [one.log_prob_gradient(path) for one, path in zip(alone, paths, strict=True)],
        ),
    )
    for total, parts in calls:
        for side in set(total) - {"unary"}:
            for i, gradient in enumerate(total[side]):
                assert_allclose(gradient, sum(part[side][i] for part in parts), atol=1e-12)
        for own, part in zip(total["unary"], parts, strict=True):
            for actual, expected in zip(own, part["unary"], strict=True):
                assert_allclose(actual, expected, atol=1e-13)


@kinds
def test_a_hidden_state_is_summed_out(kind):
    chain, unaries, _ = each(kind)
    unary, n_states = unaries[0], [len(values) for values in unaries[0]]
    every = np.array(list(np.ndindex(*n_states)))
    logs = chain.log_prob(every, unary=unary)
    assert_allclose(logsumexp(logs), 0.0, atol=1e-12)
    hidden = np.ma.array([[0, 0, 1], [1, 1, 1], [0, 1, 0]], mask=[[0, 1, 0], [0, 0, 0], [1, 1, 1]])
    expected = [logsumexp(logs[(every[:, 0] == 0) & (every[:, 2] == 1)])]
    expected += [logs[(every == 1).all(axis=1)][0], 0.0]
    assert_allclose(chain.log_prob(hidden, unary=unary), expected, atol=1e-12)
    assert_allclose(chain.log_prob(hidden[0], unary=unary), expected[0])
    # With evidence per path: those of log Z where states are held, less those of log Z.
    lists = [hidden[0], hidden[1]], [unary, unary]
    assert_allclose(chain.log_prob(lists[0], unary=lists[1]), expected[:2], atol=1e-12)
    one, two = chain.log_prob_gradient(lists[0], unary=lists[1])["unary"]
    held = chain.log_prob_gradient(hidden[:2], unary=unary)["unary"]
    for a, b, both in zip(one, two, held, strict=True):
        assert_allclose(a + b, both, atol=1e-13)
    chosen = every[(every[:, 0] == 0) & (every[:, 2] == 1)]
    weights = np.exp(chain.log_prob(chosen, unary=unary) - expected[0])
    middle = np.bincount(chosen[:, 1], weights, minlength=n_states[1])
    assert_allclose(one[1], middle - chain.marginals(unary=unary)[1], atol=1e-12)


def test_masks_count_in_lists_of_paths_of_one_length():
    chain, tree = ChainMRF(LEFT, RIGHT), TreeMRF([(0, 1), (1, 2)], LEFT)
    paths = [np.ma.array([0, 1, 2], mask=[0, 1, 0]), np.ma.array([3, 1, 0], mask=[0, 0, 1])]
    for call in (
        chain.log_prob,
        tree.log_prob,
        lambda paths: chain.log_prob(paths, unary=UNARIES[0]),
        lambda paths: chain.log_prob_gradient(paths)["embeddings"],
    ):
        assert_allclose(call(paths), call(np.ma.stack(paths)))
        assert_allclose(
            call([paths[0], paths[1].data]), call(np.ma.stack([paths[0], paths[1].data]))
        )
    assert_allclose(chain.log_prob(paths[:1])[0], chain.log_prob(paths[0]))


def test_trees_sum_out_hidden_states_too():
    tree = TreeMRF([(0, 1), (1, 2)], TABLES)
    every = np.array(list(np.ndindex(SIZES)))
    logs = tree.log_prob(every)
    hidden = np.ma.array([1, 0, 3], mask=[0, 1, 0])
    rows = (every[:, 0] == 1) & (every[:, 2] == 3)
    assert_allclose(tree.log_prob(hidden), logsumexp(logs[rows]))


@pytest.mark.parametrize("kind", ["exact", "features", "corrected"])
def test_paths_of_several_lengths_have_the_sums_of_their_likelihoods(kind):
    chain = ChainMRF(**KINDS[kind][0])
    paths = [chain.sample(n, k, random_state=n) for n, k in ((1, 2), (2, 3), (5, 4), (9, 1))]
    log_prob, by_tables, _ = chain._log_likelihood([(part, None) for part in paths])
    assert_allclose(log_prob, sum(chain.log_prob(part).sum() for part in paths))
    parts = [chain.log_prob_gradient(part) for part in paths]
    for side, (gradient,) in by_tables.items():
        assert_allclose(gradient, sum(part[side] for part in parts), atol=1e-12)


@pytest.mark.parametrize("kind", ["exact", "features", "corrected"])
def test_fit_climbs_the_likelihood_of_paths_with_their_evidence(kind):
    truth, unaries, _ = each("exact")
    paths = [draws[0] for draws in truth.sample(n=1, unary=20 * unaries, random_state=0)]
    start = {"embeddings": LEFT[::-1] / 2, "later": RIGHT[::-1] / 2, "max_iter": 30, "tol": 1e-4}
    start = {name: value for name, value in start.items() if name in KINDS[kind][0]} | {"tol": 1e-4}
    chain = ChainMRF(**{**KINDS[kind][0], **start})
    before = chain.log_prob(paths, unary=20 * unaries).sum()
    chain.fit(paths, unary=20 * unaries)
    after = chain.log_prob(paths, unary=20 * unaries).sum()
    assert_allclose(after, chain.history_[-1])
    assert after > before + 10
    # At a maximum the gradient is small: the evidence was part of what was climbed.
    gradient = chain.log_prob_gradient(paths, unary=20 * unaries)["embeddings"]
    held = {"feature_map": FrozenEstimator(chain.feature_map_)} if kind != "exact" else {}
    first = ChainMRF(**{**KINDS[kind][0], **start, **held})
    at_start = first.log_prob_gradient(paths, unary=20 * unaries)["embeddings"]
    assert np.linalg.norm(gradient) < 0.1 * np.linalg.norm(at_start)


def test_fit_learns_from_paths_with_hidden_states():
    truth = ChainMRF(2 * LEFT, 2 * RIGHT, feature_map="exact")
    paths = truth.sample(8, 300, random_state=0)
    hidden = np.ma.array(paths, mask=RNG.uniform(size=paths.shape) < 0.3)
    chain = ChainMRF(LEFT / 2, RIGHT / 2, feature_map="exact", tol=1e-5)
    chain.fit(hidden)
    assert_allclose(chain.history_[-1], chain.log_prob(hidden).sum())
    lost = truth.log_prob(paths).mean() - chain.log_prob(paths).mean()
    assert lost < 0.05
    assert lost < truth.log_prob(paths).mean() - ChainMRF(LEFT, RIGHT).log_prob(paths).mean()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda chain: chain.log_partition(3, unary=STACKED), "length must be None"),
        (lambda chain: chain.marginals(lengths=[2]), "lengths are those of chains in unary"),
        (lambda chain: chain.decode(unary=STACKED, lengths=[2, 3]), "lengths sum to 5, but unary"),
        (lambda chain: chain.decode(unary=UNARIES, lengths=[2]), "lengths must be None if unary"),
        (
            lambda chain: chain.decode(unary=[UNARIES[0], UNARIES[0][:, :2]]),
            r"unary\[1\]\[0\] must",
        ),
        (lambda chain: chain.sample(unary=[]), "unary must hold"),
        (
            lambda chain: chain.decode(unary=[UNARIES[0], []]),
            r"unary\[1\] must hold the log potentials",
        ),
        (lambda chain: chain.log_prob([[0, 1]], unary=UNARIES), "paths must be of the lengths of"),
        (lambda chain: chain.log_prob([0, 1], unary=UNARIES[0]), "paths must be of 3 variables"),
        (lambda chain: chain.edge_marginals(unary=UNARIES), "two variables or more"),
        (lambda chain: chain.report(unary=UNARIES), "one chain in a report"),
        (
            lambda chain: chain.fit([[0, 1, 0]], unary=UNARIES[0], learn_unary=True),
            "learn_unary=True needs unary=None",
        ),
        (lambda chain: chain.fit([[0, 2, 0]], unary=UNARIES[3]), "states that unary forbids"),
        (
            lambda chain: chain.set_params(embeddings=[LEFT] * 3, later=None).marginals(
                unary=UNARIES
            ),
            "unary must be of 3 variables, as unary or embeddings, got 1",
        ),
    ],
)
def test_evidence_that_does_not_fit_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call(ChainMRF(LEFT, RIGHT))


def test_a_report_takes_evidence():
    chain, unaries, alone = each("exact")
    report, expected = chain.report(unary=unaries[0]), alone[0].report()
    assert (report.error, report.lower) == (expected.error, expected.lower)
    fitted = ChainMRF(LEFT, RIGHT, tol=0.1).fit([[0, 1, 1]], learn_unary=True)
    assert_allclose(
        fitted.report(unary=unaries[0]).log_partition, fitted.log_partition(unary=unaries[0])
    )


# ------------------------------------------------------------------ forests


def test_the_log_partition_of_a_forest_adds_up():
    edges, others = [(0, 1), (3, 4), (4, 5)], [(0, 1), (1, 2)]
    tables = [*TABLES[:2], LEFT, *TABLES]
    for feature_map in ("exact", MAPS["adaptive"]):
        forest = TreeMRF(edges, tables, feature_map=feature_map)
        if feature_map == "exact":
            parts = [TreeMRF([(0, 1)], tables[:2]), TreeMRF(others, TABLES)]
            total = sum(part.log_partition() for part in parts) + np.log(4)
            assert_allclose(forest.log_partition(), total)
        every = np.array(list(np.ndindex(tuple(map(len, tables)))))
        logs = forest.log_prob(every)
        assert_allclose(logsumexp(logs), 0.0, atol=1e-12)
        shares = np.exp(logs).reshape(tuple(map(len, tables)))
        for i, marginals in enumerate(forest.marginals()):
            assert_allclose(marginals, shares.sum(axis=tuple(set(range(6)) - {i})))
        log_prob, states = forest.decode()
        assert_allclose(log_prob, logs.max())
        assert_allclose(forest.log_prob(states), log_prob)
        draws = forest.sample(4000, random_state=0)
        assert_drawn_from(draws[:, [0, 1, 3]], shares.sum(axis=(2, 4, 5)))
        assert_drawn_from(draws[:, [2, 4, 5]], shares.sum(axis=(0, 1, 3)))
        if feature_map == "exact":
            assert abs(forest.report().error) < 1e-9
    # One table for all: the variables are those that edges name, or as many as unaries.
    shared = TreeMRF([(0, 1), (2, 3)], LEFT, feature_map="exact")
    assert_allclose(shared.log_partition(), 2 * TreeMRF([(0, 1)], LEFT).log_partition())
    apart = TreeMRF([], [LEFT, TABLES[0]])
    assert_allclose(apart.log_partition(), np.log(4) + np.log(2))
    shared.set_params(unary=np.zeros((6, 4)))
    expected = 2 * TreeMRF([(0, 1)], LEFT).log_partition() + 2 * np.log(4)
    assert_allclose(shared.log_partition(), expected)
    shared.fit(shared.sample(50, random_state=0), learn_unary=True)
    assert len(shared.unary_) == 6
