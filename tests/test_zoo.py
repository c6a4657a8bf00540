"""What the mechanisms beyond the plain contract promise, each in its own way.

Generalised maps may have two sides, adaptive and clustered ones look at single rows, discrete ones
hold counts, hybrid ones products of columns. What all share is tested over all of them.
"""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from instances import KERNELS, MECHANISMS, PLAIN, accepts, make
from numpy.testing import assert_allclose, assert_array_equal
from samples import X, Y, fitted
from sklearn.base import clone

import skrf
from skrf import AdaptiveRF, HybridRF, KernelRegressionClassifier

ZOO = [name for name in MECHANISMS if name not in PLAIN]
CLOSE = {"rtol": 1e-9, "atol": 1e-11}
every_zoo = pytest.mark.parametrize("name", ZOO)
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


@every_zoo
@every_kernel
def test_every_container_gives_the_same_features(name, kernel):
    reference = fitted(name, kernel=kernel, sigma="scale")
    queries, keys = reference.transform(Y), reference.transform_keys(Y)
    assert queries.shape == (20, reference.n_components_)
    assert_allclose(
        reference.approximate_kernel(Y, X), queries @ reference.transform_keys(X).T, **CLOSE
    )
    sparse = fitted(name, sp.csr_array(X), sp.csr_array(Y), kernel=kernel, sigma="scale")
    assert_allclose(sparse.transform(sp.csr_matrix(Y)), queries, **CLOSE)
    assert_allclose(sparse.transform_keys(sp.csc_array(Y)), keys, **CLOSE)
    for single in (Y.astype(np.float32), sp.csr_array(Y.astype(np.float32))):
        half = reference.transform(single)
        assert half.dtype == np.float32
        assert_allclose(half, queries, rtol=2e-4, atol=1e-5 * abs(queries).max())
    for i in (0, 7):
        assert_allclose(reference.transform(Y[i : i + 1]), queries[i : i + 1], **CLOSE)
    copy = pickle.loads(pickle.dumps(reference))
    assert_array_equal(copy.transform_keys(Y), keys)
    assert_array_equal(clone(reference).fit(X, keys=Y).transform(Y), queries)


@pytest.mark.parametrize("name", ["AdaptiveRF", "HybridRF-clustered"])
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


@every_zoo
def test_claims_hold(name):
    reference = fitted(name)
    queries, keys = reference.transform(X), reference.transform_keys(X)
    assert reference.is_symmetric == np.array_equal(queries, keys)
    if reference.is_positive:
        assert (queries > 0).all() and (keys > 0).all()
        assert_allclose(np.exp(reference.log_transform(X)), queries, **CLOSE)
    else:
        assert not hasattr(reference, "log_transform")


@every_zoo
@pytest.mark.parametrize("sigma", [1e-3, 1e3])
def test_extreme_sigma_and_degenerate_data(name, sigma):
    for rows in (X, X[:1], np.ones((5, 3)), X[:, :1], np.zeros((3, 2))):
        reference = make(name, n_components=6, sigma=sigma, random_state=0).fit(rows)
        values = reference.feature_maps_[0](np.asarray(rows)).values
        assert not np.isnan(values).any()
        if reference.is_positive:
            assert np.isfinite(values).all()


@every_zoo
def test_partial_fit_is_fit_on_the_concatenation(name):
    whole = make(name, n_components=24, sigma="scale", random_state=0)
    if not hasattr(whole, "partial_fit"):
        single_rows = (AdaptiveRF, HybridRF, skrf.GeometricRF)
        assert isinstance(whole, single_rows)
        return
    whole.fit(X)
    parts = clone(whole)
    for rows in np.array_split(X, 3):
        parts.partial_fit(rows)
    assert_allclose(parts.transform(Y), whole.transform(Y), **CLOSE)
    assert not hasattr(clone(whole).set_params(sigma="median"), "partial_fit")


@every_zoo
def test_kernel_regression_takes_it(name):
    y = np.arange(30) % 3
    model = KernelRegressionClassifier(make(name, n_components=24, random_state=0)).fit(X, y)
    shares = model.predict_proba(Y)
    assert_allclose(shares.sum(axis=1), 1.0)
    mapped = model.feature_map_
    scores = mapped.transform(Y) @ (mapped.transform_keys(X).T @ np.eye(3)[y])
    assert_array_equal(model.predict(Y), scores.argmax(axis=1))
