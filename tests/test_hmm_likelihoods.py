"""Hidden Markov models of emissions of any kind, given as tables of log likelihoods."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp

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
    X = hmm.sample(20, random_state=0)[0][:, 0]
    table = np.log(hmm.emissionprob_).T[X]
    for of_symbols, of_tables in (
        (hmm.score(X, LENGTHS), hmm.score(lengths=LENGTHS, log_likelihood=table)),
        (hmm.predict_proba(X, LENGTHS), hmm.predict_proba(None, LENGTHS, log_likelihood=table)),
        (
            hmm.predict_proba(X, filtered=True),
            hmm.predict_proba(filtered=True, log_likelihood=table),
        ),
        (hmm.decode(X, LENGTHS)[0], hmm.decode(None, LENGTHS, log_likelihood=table)[0]),
        (hmm.predict(X), hmm.predict(log_likelihood=table)),
        (
            hmm.decode(X, algorithm="posterior")[0],
            hmm.decode(algorithm="posterior", log_likelihood=table)[0],
        ),
    ):
        assert_allclose(of_tables, of_symbols, rtol=1e-10)


@every_map
@pytest.mark.parametrize("scale", [1.0, 300.0, 1e5])
def test_tables_of_any_size_equal_dense_sums(name, scale):
    rng = np.random.default_rng(0)
    hmm = model(name)
    table = scale * rng.normal(size=(15, 6))
    table[rng.random(table.shape) < 0.3] = -np.inf
    table[:, 0] = np.maximum(table[:, 0], -scale)
    expected, shares = forward(hmm, table)
    without = KernelHMM(hmm.states, targets=hmm.targets, feature_map=MAPS[name], random_state=0)
    for one in (hmm, without):
        if name == "exact" or one is hmm:
            assert_allclose(one.score(log_likelihood=table), expected, rtol=1e-10)
            posteriors = one.predict_proba(log_likelihood=table)
            assert_allclose(posteriors, shares, rtol=1e-8, atol=1e-12)
    assert_allclose(
        hmm.predict_proba(filtered=True, log_likelihood=table)[-1], shares[-1], atol=1e-9
    )
    # What is added to a position changes nothing but the sum.
    moved = hmm.score(log_likelihood=table + 1000.0 * np.arange(15)[:, None])
    assert_allclose(moved, expected + 105_000.0, rtol=1e-12)


@every_map
@pytest.mark.parametrize("batch_size", [None, 4])
def test_transitions_learn_and_emissions_stay(name, batch_size):
    rng = np.random.default_rng(1)
    truth = KernelHMM.from_random(6, 4, 3, scale=1.5, random_state=5, feature_map="exact")
    states = truth.sample(400, random_state=0)[1]
    table = rng.normal(size=(400, 6))
    table[np.arange(400), states] += 3.0
    lengths = [20] * 20
    max_iter = 20 if batch_size else 200
    hmm = model(name, start_embedding=np.zeros(3), max_iter=max_iter, tol=1e-4)
    before = hmm.score(None, lengths, log_likelihood=table)
    hmm.fit(None, lengths, log_likelihood=table, batch_size=batch_size)
    after = hmm.score(None, lengths, log_likelihood=table)
    assert after > before + 250
    assert_array_equal(hmm.emitters_, hmm.emitters)
    assert_array_equal(hmm.symbols_, hmm.symbols)
    assert np.abs(hmm.states_ - hmm.states).max() > 0.01
    if batch_size is None:
        assert after == pytest.approx(hmm.history_[-1], rel=1e-10)
    assert hmm.score([0, 1, 2]) < 0 and hmm.emissionprob_.shape == (6, 4)  # symbols are back
    held = model(name, max_iter=10).fit(
        None, lengths, log_likelihood=table, batch_size=4, validation=0.25
    )
    assert held.validation_history_[-1] > held.validation_history_[0]


def test_models_without_symbols_say_what_they_lack():
    rng = np.random.default_rng(0)
    hmm = KernelHMM(rng.normal(size=(5, 2)))
    table = rng.normal(size=(8, 5))
    assert hmm.fit(log_likelihood=table).symbols_ is None
    assert hmm.feature_map_ == {"transition": "exact", "emission": None}
    assert list(hmm.report()) == ["transition"] and not hasattr(hmm, "emissionprob_")
    for call in (
        lambda: hmm.score([0, 1]),
        lambda: hmm.fit([0, 1]),
        lambda: hmm.partial_fit([0, 1]),
        lambda: hmm.predict_next(),
        lambda: hmm.sample(3),
        lambda: hmm.filter_step(0),
    ):
        with pytest.raises(ValueError, match="needs symbols, which are None: pass log_likelihood"):
            call()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"log_likelihood": np.zeros((3, 5))}, r"shape \(n_samples, 6\).*got \(3, 5\)"),
        ({"log_likelihood": np.full((2, 6), np.nan)}, "must not hold NaN"),
        ({"log_likelihood": [[0.0] * 6, [-np.inf] * 6]}, "forbids every state at sample 1"),
        ({"X": [0], "log_likelihood": np.zeros((1, 6))}, "X must be None"),
        ({"lengths": [2], "log_likelihood": np.zeros((3, 6))}, "lengths sum to 2"),
        ({}, "both are None"),
    ],
)
def test_faulty_tables_are_named(given, said):
    with pytest.raises(ValueError, match=said):
        model("exact").score(**given)
    if "log_likelihood" not in given or np.shape(given["log_likelihood"]) != (3, 6):
        return
    with pytest.raises(ValueError, match="lengths sum"):
        model("exact").fit(**given)


def test_global_models_take_no_tables():
    with pytest.raises(ValueError, match="log_likelihood needs normalization='local'"):
        model("exact", normalization="global").score(log_likelihood=np.zeros((2, 6)))
