"""Features of the same states on both sides: the cap, the remainder, and what they change."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from fields import assert_drawn_from, assert_gradient, corrected_table
from numpy.testing import assert_allclose
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator

from skrf import AdaptiveRF, OptimalPositiveRF
from skrf.graphical import ChainMRF, TreeMRF
from skrf.graphical._corrections import Corrected

RNG = np.random.default_rng(0)
STATES = RNG.normal(size=(60, 3)) * 0.7
STATES[40:] = STATES[:20] + 0.01 * RNG.normal(size=(20, 3))  # near copies
MAPS = {"adaptive": AdaptiveRF(12, random_state=0), "optimal": OptimalPositiveRF(9, random_state=1)}
MAPS["both sides"] = AdaptiveRF(12, asymmetric=True, random_state=0)
every_map = pytest.mark.parametrize("name", MAPS)


@every_map
def test_potentials_are_their_definition(name):
    chain = ChainMRF(STATES, feature_map=MAPS[name])
    pair = chain._model.pair(0, 1)
    table, is_exact = corrected_table(pair)
    assert isinstance(pair, Corrected) and 0 < is_exact.sum() < 60
    is_capped = pair.log_scales < pair.log_factor
    assert 0 < is_capped.sum() < 60
    assert (np.diag(table) >= np.sum(STATES**2, axis=1) - 1e-9).all()  # the cap is the kernel
    for one, expected in ((pair, table), (pair.turned, corrected_table(pair.turned)[0])):
        assert_allclose(one.matrix, expected, rtol=0, atol=1e-11)
        for logs in (RNG.normal(size=60), 400 * RNG.normal(size=60)):
            assert_allclose(one.sums(logs)[0], logsumexp(expected + logs, axis=1), rtol=1e-12)
            assert_allclose(one.maxima(logs)[0], (expected + logs).max(axis=1), rtol=1e-12)
    left, right = RNG.integers(60, size=(2, 500))
    assert_allclose(pair.values(left, right), table[left, right], rtol=0, atol=1e-11)
    assert_allclose(pair.turned.matrix, pair.matrix.T, rtol=0, atol=1e-11)
    logs = RNG.normal(size=60)
    drawn = pair.draw(np.repeat([7, 45], 4000), logs, pair.sums(logs)[1], RNG)
    shares = np.exp(table + logs - logsumexp(table + logs, axis=1, keepdims=True))
    for state, values in ((7, drawn[:4000]), (45, drawn[4000:])):
        counts = np.bincount(values, minlength=60)
        room = 5 * np.sqrt(4000 * shares[state] * (1 - shares[state])) + 1
        assert (np.abs(counts - 4000 * shares[state]) < room).all()


@every_map
@pytest.mark.parametrize("length", [2, 3, 300])
def test_paths_add_up(name, length):
    chain = ChainMRF(STATES, feature_map=MAPS[name])
    table, logs = corrected_table(chain._model.pair(0, 1))[0], np.zeros(60)
    for _ in range(length - 1):
        logs = logsumexp(table + logs, axis=1)
    assert_allclose(chain.log_partition(length), logsumexp(logs), rtol=1e-13)
    with_evidence = ChainMRF(STATES, feature_map=MAPS[name], unary=np.zeros((length, 60)))
    assert_allclose(with_evidence.log_partition(), logsumexp(logs), rtol=1e-12)
    if length == 3:
        probabilities = np.exp(table[:, :, None] + table - logsumexp(logs))
        assert_allclose(chain.marginals(3)[1], probabilities.sum(axis=(0, 2)), rtol=1e-10)
        assert_allclose(chain.edge_marginals(3, 1), probabilities.sum(axis=0), rtol=1e-9)
        small = ChainMRF(STATES[:5], feature_map=MAPS[name])
        five = corrected_table(small._model.pair(0, 1))[0]
        logs = five[:, :, None] + five
        shares = np.exp(logs - logsumexp(logs))
        assert_drawn_from(small.sample(3, 4000, random_state=0), shares)
        tree = TreeMRF([(0, 1), (1, 2)], STATES[:5], feature_map=MAPS[name])
        assert_allclose(tree.log_partition(), small.log_partition(3), rtol=1e-12)


@every_map
@pytest.mark.parametrize("sigma", [1.0, 0.8])
def test_gradients_hold_the_correction(name, sigma):
    """The factor stays as fit keeps it; the cap and the remainders move."""
    held = MAPS[name]
    if sigma != 1.0:
        held = FrozenEstimator(clone(held).set_params(sigma=sigma, kernel="softmax").fit(STATES))
    chain = ChainMRF(STATES, feature_map=held)
    first, paths = chain._model, np.random.default_rng(1).integers(60, size=(30, 4))

    def at(vector):
        moved = ChainMRF(STATES, feature_map=held)
        moved._fitted = first.with_embeddings(iter([vector.reshape(STATES.shape)]))
        return moved

    vector = STATES.ravel()
    gradient = chain.log_partition_gradient(4)["embeddings"].ravel()
    assert_gradient(gradient, lambda v: at(v).log_partition(4), vector, step=1e-6)
    gradient = chain.log_prob_gradient(paths)["embeddings"].ravel()
    assert_gradient(gradient, lambda v: at(v).log_prob(paths).sum(), vector, step=1e-6)
    if sigma != 1.0:
        return
    chain.set_params(max_iter=5, tol=0.0)
    with pytest.warns(UserWarning, match="max_iter"):
        chain.fit(paths)
    assert_allclose(chain.log_prob(paths).sum(), chain.history_[-1], rtol=1e-12)
    assert chain._model.maps.log_factor == first.maps.log_factor


@pytest.mark.parametrize("make", [lambda k: OptimalPositiveRF(256), lambda k: AdaptiveRF(128)])
def test_chains_are_right_whatever_the_draw(make):
    """Without the correction some of these draws are off by many nats."""
    embeddings = np.random.default_rng(0).normal(size=(700, 8)) / 2
    exact = ChainMRF(embeddings, feature_map="exact")
    value, shares, raw = exact.log_partition(50), exact.marginals(50), []
    for seed in range(6):
        chain = ChainMRF(embeddings, feature_map=make(seed), random_state=seed)
        assert abs(chain.log_partition(50) - value) < 1.5
        assert np.abs(chain.marginals(50) - shares).sum(axis=1).mean() / 2 < 0.12
        other = ChainMRF(embeddings, embeddings, feature_map=make(seed), random_state=seed)
        raw.append(other.log_partition(50) - value)
    assert np.abs(raw).max() > 3


def test_a_step_is_timed_as_fit_takes_it(monkeypatch):
    """The benchmark moves the embeddings, and leaves the chain as it was."""
    folder = Path(__file__).parents[1] / "benchmarks"
    if not folder.is_dir():
        pytest.skip("an installed package has no benchmarks")
    monkeypatch.syspath_prepend(str(folder))
    step = importlib.import_module("chains").step
    chain = ChainMRF(STATES, feature_map=MAPS["adaptive"])
    value, moves = chain.log_partition(4), []
    monkeypatch.setattr(ChainMRF, "log_prob_gradient", lambda self, _: moves.append(self._model))
    model = chain._model
    step(chain, None)
    assert chain.log_partition(4) == value and chain._model is model
    (moved,) = moves
    assert moved is not model and moved.tables["embeddings"][0] is model.tables["embeddings"][0]
