"""What tests of chains, trees and hidden Markov models share: maps, counts, generated cases."""

import re

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from scipy.stats import chisquare
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator

from skrf import (
    AdaptiveRF,
    DenseExponentialRF,
    DiscreteRF,
    GeometricRF,
    HybridRF,
    OptimalPositiveRF,
    PoissonRF,
    PositiveRF,
    SimplexRF,
    SimplexRFPlus,
)

MAPS = {
    "exact": "exact",
    "optimal": OptimalPositiveRF(6, random_state=0),
    "hyperbolic": PositiveRF(6, variant="hyperbolic", random_state=0),
    "adaptive": AdaptiveRF(6, random_state=0),
    "clustered": HybridRF(12, coefficients="clustered", random_state=0),
}
SMOOTH = {  # all with gradients; most learn something from the embeddings, if only their centre
    **{name: feature_map for name, feature_map in MAPS.items() if name != "exact"},
    "exponential": PositiveRF(6, random_state=0),
    "regularized": PositiveRF(6, variant="regularized", random_state=0),
    "not centred": PositiveRF(6, center=False, random_state=0),
    "independent": OptimalPositiveRF(6, coupling="iid", random_state=0),
    "simplex": SimplexRF(6, random_state=0),
    "simplex+": SimplexRFPlus(6, random_state=0),
    "dense": DenseExponentialRF(6, random_state=0),
    "balanced": DenseExponentialRF(6, asymmetric=True, random_state=0),
    "adaptive balanced": AdaptiveRF(6, asymmetric=True, random_state=0),
    "no centres": AdaptiveRF(6, share=1, random_state=0),
}
TABLE = np.random.default_rng(3).normal(size=(5, 3))
PRIOR = np.array([0.5, 0.2, 0.1, 0.1, 0.1])


def frozen(feature_map, *tables, keys=None, **params):
    """Return a map that has been fitted for the softmax kernel, in a FrozenEstimator."""
    unfitted = clone(feature_map).set_params(kernel="softmax", **params)
    return FrozenEstimator(unfitted.fit(np.vstack(tables), keys=keys))


def assert_gradient(gradient, value, vector, step=1e-5):
    """Assert that a gradient is that of central differences, along five random directions."""
    directions = np.random.default_rng(0).normal(size=(5, len(vector)))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    expected = [value(vector + step * way) - value(vector - step * way) for way in directions]
    room = 1e-6 * (1 + np.linalg.norm(gradient) / np.sqrt(len(vector)))
    assert_allclose(directions @ gradient, np.array(expected) / (2 * step), rtol=0, atol=room)


def precomputed(hmm):
    """Return a hidden Markov model with the same chain, whose rows are log likelihoods."""
    return clone(hmm).set_params(symbols=None, emitters=None, emissions="precomputed")


def joint(logs):
    """Return the probabilities of a table of log weights, and the log of their sum."""
    total = logsumexp(logs)
    return np.exp(logs - total), total


def marginal(shares, i):
    return shares.sum(axis=tuple(j for j in range(shares.ndim) if j != i))


def assert_drawn_from(draws, shares):
    """Chi-square over the cells with an expected count of 5 or more; p above 1e-4."""
    counts = np.zeros(shares.shape)
    np.add.at(counts, tuple(draws.T), 1)
    expected = len(draws) * shares
    large = expected >= 5
    seen = np.append(counts[large], counts[~large].sum())
    wanted = np.append(expected[large], expected[~large].sum())
    if wanted[-1] < 5:
        seen, wanted = seen[:-1], wanted[:-1]
    assert chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue > 1e-4


# ------------------------------------------------------------------ generated cases

# The same cases in every run: a failure is one for everybody.
generated = hypothesis.settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
WIDE = {
    **MAPS,
    "poisson": PoissonRF(6, positive=True, random_state=0),
    "geometric": GeometricRF(6, positive=True, random_state=0),
    "discrete": DiscreteRF(6, positive=True, random_state=0),
}
EPS = np.finfo(np.float64).eps
seeds = st.integers(0, 2**31)
scales = st.sampled_from([1e-150, 1e-3, 0.3, 1.0, 3.0, 8.0, 15.0, 30.0])
dtypes = st.sampled_from(["float64", "float32"])
maps = st.sampled_from(sorted(WIDE))


def made_tables(rng, scale, dtype, width, *sizes):
    """Return embeddings; some rows are equal, some 0, some a hundredth of the others."""
    tables = [scale * rng.normal(size=(n, width)) for n in sizes]
    for table in tables:
        kind = rng.integers(5)
        if kind == 0:
            table[:] = table[0]
        elif kind == 1:
            table[rng.integers(len(table))] = 0.0
        elif kind == 2:
            table[rng.integers(len(table))] /= 100
    return [table.astype(dtype) for table in tables]


def largest_log(*logs):
    return max(np.abs(values[np.isfinite(values)]).max(initial=0.0) for values in logs)


def assert_same_logs(actual, expected, room, rtol=1e-9):
    assert_array_equal(np.isneginf(actual), np.isneginf(expected))
    is_finite = np.isfinite(expected)
    actual, expected = np.asarray(actual)[is_finite], np.asarray(expected)[is_finite]
    assert (np.abs(actual - expected) <= rtol * np.abs(expected) + room).all()


# ------------------------------------------------------------------ what is refused

INTEGERS = (2.9, 2.0, True, -1, "a", None, np.nan, 1j, [1.5], np.ma.array(2), np.float32(2.9))
SEQUENCES = ([], "a", 5.0, [0, 1.5], [True], [-1], [7], [[0, 1], [1]], np.ma.array([0, 1]), {})
TABLES_REFUSED = (
    "a", 5, [], [[]], [1.0, 2.0], [[1, 2], [3]], {}, np.ma.array(TABLE), TABLE * np.nan,
    TABLE * np.inf, TABLE + 1j, TABLE * 1e160, np.full((5, 3), "a"), TABLE[None], TABLE[:0],
    TABLE.astype(int).astype("M8[D]"), TABLE.astype(int).astype("m8[s]").tolist(),
)  # fmt: skip
SHARES = (
    "a", 5, [], [[]], [0.5], [np.nan] * 5, ["a"] * 5, np.ma.array(PRIOR), PRIOR + 1j, {},
    PRIOR.astype(int).astype("m8[s]"),
)  # fmt: skip
SEEDS = ("a", -1, 1.5, [], {}, np.random.default_rng(0))


def assert_refused(refused):
    """Assert that calls raise for all values and name the parameter; return how many there were.

    `refused` yields (call, parameter, values that it refuses).
    """
    silent, unnamed, count = [], [], 0
    for call, name, values in refused:
        for value in values:
            count += 1
            try:
                call(value)
            except (ValueError, TypeError) as error:
                if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(error)):
                    unnamed.append((name, value, str(error)))
            else:
                silent.append((name, value))
    assert (silent, unnamed) == ([], [])
    return count


def assert_refused_by_memory(*calls):
    """Assert that numbers that no array can hold are refused; calls are (call, parameter)."""
    for number in (2**62, 2**63, 10**400):
        for call, name in calls:
            with pytest.raises((ValueError, MemoryError), match=rf"\b{name}\b"):
                call(number)


def corrected_table(pair):
    """Return log psi of all pairs of corrected features by definition, and which are exact."""
    left, right = (side.logs for side in pair.raw)
    logs = logsumexp(left[:, None] + right[None], axis=2)
    exact = pair.embeddings @ pair.embeddings.T
    added = np.minimum(pair.log_factor, np.diag(exact - logs) / 2)
    logs = logs + added + added[:, None]
    is_exact = np.eye(len(logs), dtype=bool) & (logs < exact - 1e-9)
    return np.where(is_exact, exact, logs), is_exact
