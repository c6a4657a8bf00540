"""What the mechanisms beyond the plain contract promise, each in its own way.

Generalised maps may have two sides, adaptive and clustered ones look at single rows, discrete ones
hold counts, hybrid ones products of columns.
"""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import KERNELS, MECHANISMS, PLAIN, accepts, make
from numpy.testing import assert_allclose, assert_array_equal
from samples import X, Y, fitted
from sklearn.base import clone

ZOO = [name for name in MECHANISMS if name not in PLAIN]
CLOSE = {"rtol": 1e-9, "atol": 1e-11}
every_zoo = pytest.mark.parametrize("name", ZOO)
# Those that look at single rows: they learn centres.
CLUSTERED = ("AdaptiveRF", "HybridRF-clustered", "HybridRF-complex")
every_clustered = pytest.mark.parametrize("name", CLUSTERED)


@every_zoo
def test_sparse_and_float32_rows_have_the_same_features(name):
    reference = fitted(name, kernel="softmax", sigma="scale")
    queries, keys = reference.transform(Y), reference.transform_keys(Y)
    sparse = fitted(name, sp.csr_array(X), sp.csr_array(Y), kernel="softmax", sigma="scale")
    assert_allclose(sparse.transform(sp.csr_matrix(Y)), queries, **CLOSE)
    assert_allclose(sparse.transform_keys(sp.csc_array(Y)), keys, **CLOSE)
    for single in (Y.astype(np.float32), sp.csr_array(Y.astype(np.float32))):
        features = reference.transform(single)
        assert features.dtype == np.float32
        assert_allclose(features, queries, rtol=2e-4, atol=1e-5 * abs(queries).max())


@every_clustered
def test_float32_rows_make_the_choices_of_float64(name):
    """With this seed, rounding before the choice moved a drawn row by 1.1."""
    rows, keys = np.random.default_rng(12).normal(size=(2, 100, 3)).astype(np.float32)
    params = {"asymmetric": True} if accepts(name, "asymmetric") else {}
    params |= {"kernel": "softmax", "sigma": 1.7}
    single = fitted(name, rows, keys, **params)
    double = fitted(name, rows.astype(float), keys.astype(float), **params)
    assert_array_equal(single.omega_, double.omega_)
    for attribute in ("centers_", "query_centers_", "key_centers_"):
        if hasattr(single, attribute):
            assert_array_equal(getattr(single, attribute), getattr(double, attribute))


# ------------------------------------------------------------------ weights are repetitions


def assert_same_map(one, other, tolerance):
    """Compare centres, counts, parameters and log features."""
    # Axes of equal variances are any: what they make is compared with the features.
    other_kinds = ("statistics_", "rotation_")
    learnt = [key for key in vars(other) if key.endswith("_") and key not in other_kinds]
    for key in learnt:
        ours, theirs = getattr(one, key), getattr(other, key)
        if isinstance(theirs, dict):
            assert ours.keys() == theirs.keys()
            ours, theirs = list(ours.values()), list(theirs.values())
        if not isinstance(theirs, str):
            assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, err_msg=key)
    Z = np.random.default_rng(0).normal(size=(5, other.n_features_in_))
    for ours, theirs in zip(one.feature_maps_, other.feature_maps_, strict=True):
        for actual, expected in zip(ours(Z), theirs(Z), strict=True):
            if expected is not None:
                assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    st.sampled_from(CLUSTERED),
    st.sampled_from(KERNELS),
    st.sampled_from(["alone", "labels", "keys"]),
    st.sampled_from(["floats", "lattice", "few"]),
    st.sampled_from([0.5, 2.0, "scale", "median"]),
    st.integers(1, 30),
    st.floats(0.1, 10.0),
    st.integers(0, 2**31),
)
def test_weights_are_repetitions(name, kernel, side, kind, sigma, n_components, factor, seed):
    """A row of weight w is w rows, of weight 0 none; ratios count alone; no order matters."""
    rng = np.random.default_rng(seed)
    n = rng.integers(1, 40)
    rows = rng.normal(size=(n, 3))
    rows = {"floats": rows, "lattice": np.round(rows, 1), "few": np.sign(np.round(rows))}[kind]
    weights = rng.integers(0, 5, n)
    weights[0] += not weights.any()
    y = rng.integers(0, 4, n) if side == "labels" else None
    keys = rng.normal(size=(8, 3))[rng.integers(8, size=12)] if side == "keys" else None
    params = {"n_clusters": 3} if accepts(name, "n_clusters") else {}
    if name == "AdaptiveRF" and kernel == "softmax":
        params["asymmetric"] = side == "keys"
    params |= {"n_components": n_components, "sigma": sigma, "kernel": kernel, "random_state": 0}
    mechanism = make(name, **params)

    def fit(chosen, sample_weight, own_keys=keys, container=np.asarray):
        own_keys = own_keys if own_keys is None else container(own_keys)
        labels = None if y is None else y[chosen]
        return clone(mechanism).fit(
            container(rows[chosen]), labels, sample_weight=sample_weight, keys=own_keys
        )

    every = np.arange(n)
    weighted = fit(every, weights)
    repeated = np.repeat(every, weights)
    other_keys = None if keys is None else keys[rng.permutation(12)]
    assert_same_map(fit(repeated, None), weighted, 1e-9)
    assert_same_map(fit(rng.permutation(repeated), None, other_keys), weighted, 1e-9)
    kept = rng.permutation(every[weights > 0])
    assert_same_map(fit(kept, weights[kept]), weighted, 1e-9)
    assert_same_map(fit(every, factor * weights), weighted, 1e-9)
    assert_same_map(fit(every, weights, container=sp.csr_array), weighted, 1e-9)
    assert weighted.statistics_.queries.weight == weights.sum()
    assert weighted.statistics_.keys.weight == (weights.sum() if keys is None else 12)


@every_clustered
@pytest.mark.parametrize("side", ["labels", "keys"])
def test_weights_are_repetitions_where_rows_are_drawn(name, side):
    """Beyond 1,000 and 20,000 different rows some are drawn, by weight."""
    rng = np.random.default_rng(0)
    rows = np.r_[rng.normal(size=(21_000, 2)), np.round(rng.normal(size=(3000, 2)), 1)]
    weights = rng.integers(0, 3, 24_000)
    y, keys = (np.arange(24_000) % 3, None) if side == "labels" else (None, rows[:22_000] + 1)
    mechanism = make(name, n_components=30, sigma="median", random_state=0)
    weighted = clone(mechanism).fit(rows, y, sample_weight=0.3 * weights, keys=keys)
    repeated = rng.permutation(np.repeat(np.arange(24_000), weights))
    labels = None if y is None else y[repeated]
    other_keys = None if keys is None else keys[::-1]
    again = clone(mechanism).fit(rows[repeated], labels, keys=other_keys)
    assert_same_map(again, weighted, 1e-9)
