"""Chains of segments against enumeration of all segmentations."""

import numpy as np
import pytest
from fields import MAPS
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from scipy.stats import chisquare

from skrf.graphical import ChainMRF, SemiMarkovChain

RNG = np.random.default_rng(2)
LEFT, RIGHT = RNG.normal(size=(2, 3, 2))
UNARY = RNG.normal(size=(5, 3))
UNARY[2, 1] = -np.inf
BY_STATE = RNG.normal(size=(3, 3))
BY_STATE[0, 0] = -np.inf
CASES = {
    "exact": dict(durations=BY_STATE, later=RIGHT, feature_map="exact"),
    "features": dict(durations=BY_STATE, later=RIGHT, feature_map=MAPS["optimal"]),
    "corrected": dict(durations=[0.5, -1.0, 0.0, 0.3, 0.1, 2.0], feature_map=MAPS["adaptive"]),
}
cases = pytest.mark.parametrize("case", CASES)


def segmentations(length, most, n_states):
    """Yield all lists of (state, duration)."""
    if length == 0:
        yield ()
    for lasting in range(1, min(length, most) + 1):
        for rest in segmentations(length - lasting, most, n_states):
            for state in range(n_states):
                yield ((state, lasting), *rest)


def enumerated(chain, unary=UNARY):
    """Return all segmentations, and their log weights."""
    table, every = np.atleast_2d(chain.durations), []
    table = np.broadcast_to(table, (3, table.shape[1]))
    pairs, logs = chain._pair.matrix, []
    for segments in segmentations(len(unary), table.shape[1], 3):
        at, log = 0, 0.0
        for i, (state, lasting) in enumerate(segments):
            log += table[state, lasting - 1] + unary[at : at + lasting, state].sum()
            log += pairs[segments[i - 1][0], state] if i else 0.0
            at += lasting
        every.append(np.array(segments))
        logs.append(log)
    return every, np.array(logs)


@cases
def test_sums_over_segmentations_equal_enumeration(case):
    chain = SemiMarkovChain(LEFT, **CASES[case])
    every, logs = enumerated(chain)
    total = logsumexp(logs)
    assert_allclose(chain.log_partition(UNARY), total)
    shares = np.exp(logs - total)
    assert_allclose([chain.log_prob(one, UNARY) for one in every], logs - total)
    paths = np.array([np.repeat(*one.T) for one in every])
    expected = (shares[:, None, None] * (paths[:, :, None] == np.arange(3))).sum(axis=0)
    assert_allclose(chain.marginals(UNARY), expected, atol=1e-14)
    log_prob, best = chain.decode(UNARY)
    assert_allclose(log_prob, logs.max() - total)
    assert_array_equal(best, every[np.argmax(logs)])


@cases
def test_draws_follow_the_model(case):
    """Of three positions, whose few segmentations need fewer draws."""
    chain, n = SemiMarkovChain(LEFT, **CASES[case]), 3300
    every, logs = enumerated(chain, UNARY[:3])
    shares = np.exp(logs - logsumexp(logs))
    numbers = {str(one.tolist()): i for i, one in enumerate(every)}
    draws = chain.sample(UNARY[:3], n, random_state=0)
    counts = np.bincount([numbers[str(one.tolist())] for one in draws], minlength=len(every))
    is_large = shares * n >= 5
    seen = np.append(counts[is_large], counts[~is_large].sum())
    wanted = np.append(shares[is_large], shares[~is_large].sum()) * n
    assert chisquare(seen, wanted).pvalue > 1e-4


def test_segments_of_one_position_make_a_chain():
    chain = SemiMarkovChain(LEFT, [0.0], later=RIGHT)
    other = ChainMRF(LEFT, RIGHT, unary=UNARY)
    assert_allclose(chain.log_partition(UNARY), other.log_partition())
    assert_allclose(chain.marginals(UNARY), other.marginals())
    assert_allclose(chain.decode(UNARY)[0], other.decode()[0])
    assert_array_equal(chain.decode(UNARY)[1][:, 0], other.decode()[1])


def test_large_evidence_and_long_chains_lose_nothing():
    unary = 1e4 * RNG.normal(size=(400, 3))
    chain = SemiMarkovChain(LEFT, [0.0, -1.0], later=RIGHT)
    assert_allclose(chain.marginals(unary).sum(axis=1), 1)
    log_prob, segments = chain.decode(unary)
    assert -700 < log_prob < 0
    assert_allclose(chain.log_prob(segments, unary), log_prob, atol=1e-6)
    shifted = chain.log_partition(unary + 1e6) - 400e6
    assert_allclose(shifted, chain.log_partition(unary), rtol=1e-9)


@pytest.mark.parametrize("lowest", [-1e9, -1e18, -1e300, np.finfo(float).min])
def test_a_very_low_number_forbids_as_minus_infinity_does(lowest):
    chain, unary = SemiMarkovChain(LEFT, [0.0, 0.0, 0.0], later=RIGHT), np.array(UNARY)
    unary[0, 0] = unary[1, 0] = -np.inf
    low = np.where(np.isneginf(unary), lowest, unary)
    assert_allclose(chain.log_partition(low), chain.log_partition(unary))
    assert_allclose(chain.marginals(low), chain.marginals(unary), atol=1e-14)
    assert_allclose(chain.decode(low)[0], chain.decode(unary)[0])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda chain: chain.marginals([UNARY, UNARY]), "unary must be that of one chain"),
        (
            lambda chain: SemiMarkovChain([UNARY, UNARY], [0.0]).marginals(UNARY),
            "embeddings must be one array of shape .* got 2 arrays",
        ),
        (lambda chain: chain.marginals(UNARY[:, :2]), r"unary\[0\] must have shape \(3,\)"),
        (lambda chain: chain.log_prob([[0, 5]], UNARY), "durations 1 to 2 that sum to 5"),
        (lambda chain: chain.log_prob([0, 1], UNARY), r"shape \(n_segments, 2\)"),
        (
            lambda chain: chain.set_params(durations=[]).marginals(UNARY),
            "durations must have shape",
        ),
        (lambda chain: chain.set_params(durations=[np.nan]).decode(UNARY), "durations must have"),
        (lambda chain: chain.set_params(durations=[-np.inf, 0]).marginals(UNARY), "allow no segm"),
        (lambda chain: chain.sample(UNARY, 0), "n must be"),
        (lambda chain: chain.set_params(later=LEFT[:2]).marginals(UNARY), "later must have a row"),
    ],
)
def test_what_does_not_fit_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call(SemiMarkovChain(LEFT, [0.0, 0.0]))
