"""Sums on a log scale against exact arithmetic, at any size and in any order."""

import copy
from functools import reduce
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from numpy.testing import assert_allclose
from scipy.special import logsumexp

from skrf._sums import (
    LogMatrix,
    Readout,
    Rows,
    Sums,
    log_product,
    log_sum_exp,
)

generated = settings(max_examples=60, deadline=None)
sizes = st.sampled_from([0.0, 1.0, 30.0, 700.0, 1e5, 1e150])
seeds = st.integers(0, 2**32 - 1)
every_kind = pytest.mark.parametrize("kind", ["positive", "by row", "by feature"])


def rows_of(kind, seed, size, n, m=4):
    """Return Rows whose exponents are of a size, some features of them zero."""
    rng = np.random.default_rng(seed)
    logs = size * rng.normal(size=(n, 1 if kind == "by row" else m))
    if kind != "by row":
        logs[rng.random(logs.shape) < 0.2] = -np.inf
    return Rows(logs) if kind == "positive" else Rows(rng.uniform(-1, 1, (n, m)), logs)


def summed(rows, values):
    """Return the sums over some rows, which are left as they are."""
    return Sums.before(rows, values).add(rows.map(np.array), values)


def exactly(rows):
    """Return the features in unlimited range and 50 digits."""
    rows = rows.map(np.array)
    scale = np.broadcast_to(rows.exponents, rows.values.shape)
    factors = np.ones_like(rows.values) if rows.scale is None else rows.values
    with mp.workdps(50):
        return np.vectorize(lambda f, e: mpf(f) * mp.exp(mpf(float(e))), otypes=[object])(
            factors, scale
        )


def attended(queries, keys, values):
    """Return quotients (n, c - 1) of exact sums, and how much cancels in them."""
    with mp.workdps(50):
        terms = exactly(queries)[:, None, :] * exactly(keys)
        products, sizes = terms.sum(axis=-1), np.abs(terms).sum(axis=-1)
        numerators, denominators = products @ values[:, 1:].astype(object), products.sum(axis=1)
        loss = sizes.sum(axis=1) / np.array([abs(d) or mpf(1) for d in denominators])
        quotients = numerators / np.array([d or mpf("inf") for d in denominators])[:, None]
    return quotients.astype(float), loss.astype(float)


def quotients(sums):
    return sums[:, 1:] / np.where(sums[:, :1] == 0, np.inf, sums[:, :1])


def values_of(seed, n):
    return np.column_stack([np.ones(n), np.random.default_rng(seed).uniform(-1, 1, (n, 2))])


@every_kind
@given(seeds, sizes, sizes)
@generated
def test_quotients_are_those_of_unlimited_range(kind, seed, of_queries, of_keys):
    queries, keys = rows_of(kind, seed, of_queries, 3), rows_of(kind, seed + 1, of_keys, 5)
    values = values_of(seed, 5)
    expected, loss = attended(queries, keys, values)
    sums = summed(keys, values)
    is_right, rounding = loss < 1e4, 8 * np.finfo(float).eps * (of_queries + of_keys)
    readout = Readout(sums, kind == "positive")
    for result in (
        sums.weigh(queries.map(np.array))[0],
        readout(SimpleNamespace(n_parts=1), np.zeros((3, 1)), _Given(queries)),
    ):
        assert np.isfinite(result).all()
        if rounding < 1e-6:  # beyond, sums of two exponents have no digits left
            close = {"rtol": 0, "atol": (1e-10 + rounding) * loss[is_right].max(initial=1)}
            assert_allclose(quotients(result)[is_right], expected[is_right], **close)


class _Given:
    """Memory that holds the rows already."""

    def __init__(self, rows):
        self.held = rows

    def rows(self, feature_map, X, lower=None):
        values, scale = self.held.map(np.array)
        return Rows(values if lower is None else values - lower, scale)


@every_kind
@given(seeds, sizes)
@generated
def test_any_order_of_adding_and_merging_is_the_same_sum(kind, seed, size):
    keys, values = rows_of(kind, seed, size, 6), values_of(seed, 6)

    def sums_of(rows):
        return summed(keys.part(rows), values[rows])

    whole, half = sums_of(slice(6)), slice(3, 6)
    single = [sums_of([i]) for i in np.random.default_rng(seed).permutation(6)]
    kept = copy.deepcopy(single)
    for merged in (
        reduce(Sums.merge, single),
        single[0].merge(reduce(Sums.merge, single[1:])),
        sums_of(slice(3)).add(keys.part(half).map(np.array), values[half]),
    ):
        assert np.array_equal(merged.top, whole.top)
        assert_allclose(merged.sums, whole.sums, rtol=1e-12, atol=1e-12)
    single[0].weigh(keys.map(np.array)), single[0].balanced()
    for sums, before in zip(single, kept, strict=True):
        assert np.array_equal(sums.sums, before.sums) and np.array_equal(sums.top, before.top)


@generated
@given(seeds, sizes, sizes)
def test_products_of_a_matrix_of_logarithms(seed, size, width):
    """Both ways, with zeros, also where sums are far below the largest of all."""
    rng = np.random.default_rng(seed)
    logs, vectors = size * rng.normal(size=(6, 4)), [width * rng.normal(size=n) for n in (4, 6)]
    logs[rng.random(logs.shape) < 0.3] = -np.inf
    logs[0], vectors[0][0], vectors[1][1:3] = -np.inf, -np.inf, -np.inf
    matrix = LogMatrix(logs)
    # A few rounding errors of the largest exponent.
    atol = 1e-15 * (1 + abs(logs[logs > -np.inf]).max(initial=0) + 4 * width)
    by_rows, by_columns = logs + vectors[0], logs + vectors[1][:, None]
    assert_allclose(matrix.product(vectors[0]), log_sum_exp(by_rows), 1e-13, atol)
    assert_allclose(matrix.turned.product(vectors[1]), log_sum_exp(by_columns, 0), 1e-13, atol)
    other = LogMatrix(width * rng.normal(size=(5, 4)))
    pairs = log_sum_exp(logs[:, None] + other.logs)
    for block in (slice(0, 4), slice(4, 6)):
        assert_allclose(matrix.log_rows(block, other), pairs[block], 1e-13, atol)
    nothing = np.full(6, -np.inf)
    assert (matrix.product(nothing[:4]) == -np.inf).all()
    assert (matrix.turned.product(nothing) == -np.inf).all()


@pytest.mark.parametrize("size", [1.0, 1e3, 1e5])
def test_logs_of_products_keep_their_digits_in_every_library(size):
    rng = np.random.default_rng(0)
    A, B = size * rng.normal(size=(5, 8)), size * rng.normal(size=(8, 6))
    expected = logsumexp(A[:, :, None] + B, axis=1)
    assert_allclose(log_product(A, B), expected, rtol=1e-12)
    xp = pytest.importorskip("array_api_strict")
    assert_allclose(np.asarray(log_product(xp.asarray(A), xp.asarray(B))), expected, rtol=1e-12)
