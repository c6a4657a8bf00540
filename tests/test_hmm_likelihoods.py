"""Hidden Markov models of emissions of any kind, given as tables of log likelihoods."""

import numpy as np
import pytest
from fields import precomputed
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skrf import AdaptiveRF
from skrf.graphical import KernelHMM

MAPS = {"exact": "exact", "features": AdaptiveRF(16)}
LENGTHS = [7, 1, 12]
every_map = pytest.mark.parametrize("name", MAPS)


def model(name, **params):
    return KernelHMM.from_random(
        6, 4, 3, scale=1.0, random_state=0, feature_map=MAPS[name], **params
    )


def forward(hmm, table):
    """The log probability and posteriors of one sequence, from dense sums."""
    moves = np.log(hmm.transmat_)
    ahead = [np.log(hmm.startprob_) + table[0]]
    for row in table[1:]:
        ahead.append(logsumexp(ahead[-1][:, None] + moves, axis=0) + row)
    back = [np.zeros(len(moves))]
    for row in table[:0:-1]:
        back.append(logsumexp(moves + row + back[-1], axis=1))
    logs = np.array(ahead) + np.array(back[::-1])
    return logsumexp(ahead[-1]), np.exp(logs - logsumexp(logs, axis=1, keepdims=True))


@every_map
def test_tables_of_symbols_are_the_symbols(name):
    hmm = model(name, start_embedding=np.ones(3))
    X, other = hmm.sample(20, random_state=0)[0][:, 0], precomputed(hmm)
    table = np.log(hmm.emissionprob_).T[X]
    for call in (
        lambda chain, rows: chain.score(rows, LENGTHS),
        lambda chain, rows: chain.predict_proba(rows, LENGTHS),
        lambda chain, rows: chain.predict_proba(rows, filtered=True),
        lambda chain, rows: chain.decode(rows, LENGTHS)[0],
        lambda chain, rows: chain.predict(rows),
        lambda chain, rows: chain.decode(rows, algorithm="posterior")[0],
        lambda chain, rows: chain.filter_step(rows[1], chain.filter_step(rows[0])).posterior,
    ):
        assert_allclose(call(other, table), call(hmm, X), rtol=1e-10)
    shares = hmm.forecast(X, steps=3)
    assert_allclose(other.forecast(table, steps=3) @ hmm.emissionprob_, shares, rtol=1e-9)
    known = np.ones((20, 6), bool)
    known[3, 1:] = False
    hmm, other = (clone(chain).set_params(max_iter=1) for chain in (hmm, other))
    for chain, rows in ((hmm, X), (other, table)):
        with pytest.warns(ConvergenceWarning):
            chain.fit(rows, state_mask=known)
    assert_array_equal(other.emissions_.update(None, table).log_likelihood(table), table)


@every_map
@pytest.mark.parametrize("scale", [1.0, 300.0, 1e5])
def test_tables_of_any_size_equal_dense_sums(name, scale):
    rng = np.random.default_rng(0)
    hmm = precomputed(model(name))
    table = scale * rng.normal(size=(15, 6))
    table[rng.random(table.shape) < 0.3] = -np.inf
    table[:, 0] = np.maximum(table[:, 0], -scale)
    expected, shares = forward(hmm, table)
    assert_allclose(hmm.score(table), expected, rtol=1e-10)
    assert_allclose(hmm.predict_proba(table), shares, rtol=1e-8, atol=1e-12)
    assert_allclose(hmm.predict_proba(table, filtered=True)[-1], shares[-1], atol=1e-9)
    # What is added to a position changes nothing but the sum.
    moved = hmm.score(table + 1000.0 * np.arange(15)[:, None])
    assert_allclose(moved, expected + 105_000.0, rtol=1e-12)


@every_map
@pytest.mark.parametrize("batch_size", [None, 4])
def test_transitions_learn(name, batch_size):
    rng = np.random.default_rng(1)
    truth = KernelHMM.from_random(6, 4, 3, scale=1.5, random_state=5, feature_map="exact")
    states = truth.sample(400, random_state=0)[1]
    table = rng.normal(size=(400, 6))
    table[np.arange(400), states] += 3.0
    lengths, max_iter = [20] * 20, 20 if batch_size else 200
    hmm = precomputed(model(name, start_embedding=np.zeros(3), max_iter=max_iter, tol=1e-4))
    before = hmm.score(table, lengths)
    after = hmm.fit(table, lengths, batch_size=batch_size).score(table, lengths)
    assert after > before + 250
    assert np.abs(hmm.states_ - hmm.states).max() > 0.01
    if batch_size is None:
        assert after == pytest.approx(hmm.history_[-1], rel=1e-10)
    held = precomputed(model(name, max_iter=10))
    for validation in (0.25, (table[:100], lengths[:5])):
        held.fit(table, lengths, batch_size=4, validation=validation)
        assert held.validation_history_[-1] > held.validation_history_[0]


def test_models_without_symbols_say_what_they_lack():
    rng = np.random.default_rng(0)
    hmm = KernelHMM(rng.normal(size=(5, 2)), emissions="precomputed")
    assert hmm.fit(rng.normal(size=(8, 5))).symbols_ is None
    assert hmm.feature_map_ == {"transition": "exact", "emission": None}
    assert list(hmm.report()) == ["transition"] and not hasattr(hmm, "emissionprob_")
    with pytest.raises(ValueError, match="sample needs emissions to draw from"):
        hmm.sample(3)
    with pytest.raises(ValueError, match="predict_next needs symbols"):
        hmm.predict_next()
    hmm.set_params(emissions="categorical")
    for call in (
        lambda: clone(hmm).score([0, 1]),
        lambda: clone(hmm).fit([0, 1]),
        lambda: clone(hmm).partial_fit([0, 1]),
        lambda: clone(hmm).predict_next(),
        lambda: clone(hmm).sample(3),
        lambda: clone(hmm).filter_step(0),
    ):
        with pytest.raises(ValueError, match="needs symbols, which are None: pass their embedd"):
            call()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([np.zeros((3, 5))], r"shape \(n_samples, 6\).*got \(3, 5\)"),
        ([np.full((2, 6), np.nan)], "must not hold NaN"),
        ([[[0.0] * 6, [-np.inf] * 6]], "forbids every state at sample 1"),
        ([np.zeros((3, 6)), [2]], "lengths sum to 2"),
    ],
)
def test_faulty_tables_are_named(args, message):
    for name in ("score", "fit"):
        with pytest.raises(ValueError, match=message):
            getattr(precomputed(model("exact")), name)(*args)


def test_global_models_take_no_tables():
    with pytest.raises(ValueError, match="emissions='precomputed' needs .*normalization='local'"):
        precomputed(model("exact", normalization="global")).score(np.zeros((2, 6)))
