"""Keys that are drawn in proportion to their kernel with a query, against the dense softmax."""

import array_api_strict
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from scipy.stats import chisquare
from sklearn.frozen import FrozenEstimator

from skrf import AdaptiveRF, KernelSampler, OptimalPositiveRF, PositiveRF, RFFSampler
from skrf.features import as_feature_map

RNG = np.random.default_rng(0)
MAPS = {
    "default": None,
    "adaptive": AdaptiveRF(16, kernel="softmax", random_state=0),
    "asymmetric": AdaptiveRF(16, kernel="softmax", asymmetric=True, random_state=0),
    "gaussian": OptimalPositiveRF(16, sigma=0.7, random_state=0),
}


def log_kernel(sampler, q):
    """Return the logs of the products of features of queries and keys, term by term."""
    maps = [as_feature_map(sampler.feature_map_, keys=side) for side in (False, True)]
    logs = maps[0](q).values[:, None] + maps[1](sampler._keys).values[None]
    return logsumexp(logs, axis=2)


def dense(sampler, q):
    """Return the log probabilities of all keys by definition."""
    logs = log_kernel(sampler, q)
    return logs - logsumexp(logs, axis=1, keepdims=True)


@pytest.mark.parametrize("n_keys", [1, 2, 64, 65, 4097])
@pytest.mark.parametrize("name", MAPS)
def test_probabilities_are_those_of_the_features(name, n_keys):
    keys, q = RNG.normal(size=(n_keys, 3)) / 2, RNG.normal(size=(4, 3)) / 2
    sampler = KernelSampler(MAPS[name], random_state=0).fit(keys, queries=q)
    every = np.tile(np.arange(n_keys), (4, 1))
    expected = dense(sampler, q)
    assert_allclose(sampler.log_prob(q, every), expected, atol=1e-10)
    logs = log_kernel(sampler, q)
    assert_allclose(sampler.log_partition(q), logsumexp(logs, axis=1))
    assert_allclose(sampler.log_partition(q[0]), logsumexp(logs[0]))
    assert_allclose(sampler.log_prob(q[0], [0, 0]), expected[0, [0, 0]], atol=1e-10)


@pytest.mark.parametrize("name", MAPS)
def test_draws_follow_the_probabilities(name):
    keys, q = RNG.normal(size=(200, 3)), RNG.normal(size=(3, 3))
    sampler = KernelSampler(MAPS[name], random_state=0).fit(keys)
    for i in (3, 77, 199):
        sampler.update(i, 2 * RNG.normal(size=3))
    drawn, shares = sampler.sample(q, 20_000, random_state=0), np.exp(dense(sampler, q))
    for row, expected in zip(drawn, 20_000 * shares, strict=True):
        order = np.argsort(-expected)
        # Rare keys count together.
        first = order[: np.count_nonzero(expected >= 5)]
        groups = np.full(200, len(first))
        groups[first] = np.arange(len(first))
        seen, wanted = (
            np.bincount(groups, each) for each in (np.bincount(row, minlength=200), expected)
        )
        assert chisquare(seen, wanted).pvalue > 1e-4
    one = sampler.sample(q[1], 5, random_state=3)
    assert one.shape == (5,) and sampler.sample(q, random_state=0).shape == (3, 1)
    assert_array_equal(one, sampler.sample(q[1], 5, random_state=3))


def test_a_key_may_be_replaced_by_one_of_any_size():
    keys = RNG.normal(size=(150, 4)) / 2
    q = RNG.normal(size=(2, 4)) / 2
    sampler = KernelSampler(PositiveRF(8, kernel="softmax", random_state=0)).fit(keys)
    for i, scale in ((0, 0.0), (149, 3.0), (64, 300.0), (64, 0.5)):
        sampler.update(i, scale * RNG.normal(size=4))
        every = np.tile(np.arange(150), (2, 1))
        assert_allclose(np.exp(sampler.log_prob(q, every)).sum(axis=1), 1)
        finite = dense(sampler, q) > -600
        logs = sampler.log_prob(q, every)
        assert_allclose(logs[finite], dense(sampler, q)[finite], atol=1e-8)
    again = KernelSampler(FrozenEstimator(sampler.feature_map_)).fit(sampler._keys)
    assert_allclose(again.log_partition(q), sampler.log_partition(q))


def test_weights_multiply_probabilities():
    keys, q = RNG.normal(size=(70, 3)), RNG.normal(size=(2, 3))
    weights = RNG.uniform(size=70)
    weights[5] = 0.0
    plain, sampler = (
        KernelSampler(random_state=0).fit(keys, sample_weight=given) for given in (None, weights)
    )
    every = np.tile(np.arange(70), (2, 1))
    with np.errstate(divide="ignore"):
        expected = plain.log_prob(q, every) + np.log(weights)
    expected -= logsumexp(expected, axis=1, keepdims=True)
    assert_allclose(sampler.log_prob(q, every), expected, atol=1e-10)
    assert 5 not in sampler.sample(q, 5000, random_state=0)
    sampler.update(6, keys[7])
    logs = sampler.log_prob(q, every)
    assert_allclose(logs[:, 6] - logs[:, 7], np.log(weights[6] / weights[7]))
    for wrong in (-weights, 0 * weights, weights[:3]):
        with pytest.raises(ValueError, match="sample_weight"):
            KernelSampler().fit(keys, sample_weight=wrong)


@pytest.mark.parametrize("move", [20.0, -30.0])
def test_keys_may_move_far_from_where_they_were_fitted(move):
    rng = np.random.default_rng(3)
    keys, q = rng.normal(size=(300, 16)) / 4, rng.normal(size=(2, 16)) / 4
    far = np.r_[move, np.zeros(15)]
    for first, then in ((keys + far, keys - far), (100 * keys, 10 * keys), (keys, 10 * keys)):
        sampler = KernelSampler(random_state=0).fit(first)
        for i, key in enumerate(then):
            sampler.update(i, key)
        again = KernelSampler(FrozenEstimator(sampler.feature_map_)).fit(then)
        every = np.tile(np.arange(300), (2, 1))
        assert_allclose(sampler.log_partition(q), again.log_partition(q))
        assert_allclose(np.exp(sampler.log_prob(q, every)).sum(axis=1), 1)
        actual, expected = sampler.log_prob(q, every), again.log_prob(q, every)
        is_there = expected > -400
        assert_allclose(actual[is_there], expected[is_there], atol=1e-8)


def test_a_new_key_may_come_as_a_table_or_sparse():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(RNG.normal(size=(9, 3)), columns=list("abc"))
    sampler = KernelSampler(random_state=0).fit(table)
    sampler.update(0, table.iloc[[1]])
    assert_array_equal(sampler._keys[0], sampler._keys[1])
    with pytest.raises(ValueError, match="feature names"):
        sampler.update(0, table.iloc[[1]][list("cba")])
    sparse = KernelSampler(random_state=0).fit(sp.csr_array(table.to_numpy()))
    sparse.update(0, sp.csr_array(table.to_numpy()[[1]]))
    assert_array_equal(sparse._keys[0], sparse._keys[1])


def test_rows_of_other_libraries_are_brought_to_the_host():
    keys, q = RNG.normal(size=(90, 4)), RNG.normal(size=(2, 4))
    sampler = KernelSampler(random_state=0).fit(array_api_strict.asarray(keys))
    for rows in (q, q[0]):
        given, seeds = array_api_strict.asarray(rows), {"random_state": 0}
        assert_allclose(sampler.log_partition(given), sampler.log_partition(rows))
        drawn = sampler.sample(given, 5, **seeds)
        assert_array_equal(drawn, sampler.sample(rows, 5, **seeds))
        assert_allclose(sampler.log_prob(given, drawn), sampler.log_prob(rows, drawn))


def test_float32_agrees_and_keys_are_copied():
    keys = (RNG.normal(size=(90, 4)) / 2).astype(np.float32)
    given = keys.copy()
    single = KernelSampler(random_state=0).fit(keys)
    double = KernelSampler(random_state=0).fit(keys.astype(float))
    q = RNG.normal(size=(2, 4)) / 2
    assert_allclose(single.log_partition(q), double.log_partition(q), rtol=1e-5)
    single.update(0, q[0])
    assert_array_equal(keys, given)
    expected, new = double.log_partition(q), q[1].copy()
    double.update(0, q[1]).update(0, given[0])
    keys *= 2
    assert_allclose(double.log_partition(q), expected, rtol=1e-12)
    double.update(0, new)
    expected, new[:] = double.log_partition(q), 9.0
    double._build()
    assert_allclose(double.log_partition(q), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: KernelSampler(RFFSampler(8)).fit(np.eye(3)), "is not positive"),
        (lambda s: s.sample(np.ones(3), 0), "n_samples must be"),
        (lambda s: s.sample(np.ones(3), random_state="a"), "random_state"),
        (lambda s: s.sample(np.ones(2)), "q"),
        (lambda s: s.log_prob(np.ones(3), [9]), "indices must lie in 0 to 8"),
        (lambda s: s.log_prob(np.ones((2, 3)), [[0]]), "a row for every query"),
        (lambda s: s.log_prob(np.ones(3), [0.5]), "indices must be integers"),
        (lambda s: s.update(9, np.ones(3)), "i must lie in 0 to 8"),
        (lambda s: s.update(0, np.ones((2, 3))), r"key must have shape \(3,\)"),
        (lambda s: s.update(0, [np.nan] * 3), "key"),
    ],
)
def test_what_makes_no_sense_is_refused(call, said):
    sampler = KernelSampler(random_state=0).fit(RNG.normal(size=(9, 3)))
    with pytest.raises(ValueError, match=said):
        call(sampler)
