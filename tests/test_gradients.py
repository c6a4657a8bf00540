"""Gradients of features with respect to rows, and the steps that attention takes besides `fit`."""

import numpy as np
import pytest
from instances import KERNELS, MECHANISMS, accepts, make
from numpy.testing import assert_allclose, assert_array_equal

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 3)) / 2, RNG.normal(size=(9, 3)) / 3 + 0.2
WITHOUT = "PoissonRF", "GeometricRF", "DiscreteRF"
DIFFERENTIABLE = [
    name for name in MECHANISMS if make(name).is_positive and not name.startswith(WITHOUT)
]
EXTRA = {
    "DenseExponentialRF-asymmetric": (
        "DenseExponentialRF",
        {"asymmetric": True, "kernel": "softmax"},
    ),
    "OptimalPositiveRF-hadamard": ("OptimalPositiveRF", {"projection": "hadamard"}),
    "HybridRF-hadamard": ("HybridRF-clustered", {"projection": "hadamard", "n_components": 24}),
}
CASES = [(name, {"kernel": kernel}) for name in DIFFERENTIABLE for kernel in KERNELS]
CASES += list(EXTRA.values())


def logs_of(features, Z, keys):
    """Return logarithms of features, 0 for those that are 0, which stay so."""
    logs = features.feature_maps_[keys](Z).values
    return np.where(logs > -np.inf, logs, 0.0)


@pytest.mark.parametrize(("name", "params"), CASES, ids=str)
def test_gradients_are_those_of_differences(name, params):
    wide = np.hstack([X] * 6) / 2 if "projection" in params else X
    n_components = 70 if name.startswith("HybridRF") else 6
    params = {"n_components": n_components, "sigma": 0.8, "random_state": 0, **params}
    features = make(name, **params).fit(wide, keys=None if "projection" in params else Y)
    Z, step = wide[:4], 1e-6
    for keys, feature_map in zip((False, True), features.feature_maps_, strict=True):
        gradient = RNG.normal(size=feature_map(Z).values.shape)
        result = feature_map.pull_back(Z, gradient)
        for j, moved in enumerate(step * np.eye(Z.shape[1])):
            ends = (logs_of(features, Z + sign * moved, keys) for sign in (1, -1))
            slope = next(ends) - next(ends)
            expected = (gradient * slope).sum(axis=1) / (2 * step)
            assert_allclose(result[:, j], expected, rtol=2e-8, atol=2e-8)


@pytest.mark.parametrize("name", [n for n in MECHANISMS if n not in DIFFERENTIABLE])
def test_unknown_gradients_are_said_to_be(name):
    features = make(name, n_components=24, random_state=0).fit(X)
    with pytest.raises(NotImplementedError, match="No gradients are available"):
        features.feature_maps_[0].pull_back(X, features.transform(X))


@pytest.mark.parametrize("name", MECHANISMS)
def test_an_adapted_copy_is_a_fit_with_the_same_seed(name):
    features = make(name, n_components=24, random_state=3)
    before = make(name, n_components=24, random_state=3).fit(X)
    prototype = features.fit(X)
    adapted = prototype._adapted(2 * X, Y)
    fitted = make(name, n_components=24, random_state=3).fit(2 * X, keys=Y)
    assert_allclose(adapted.transform(Y), fitted.transform(Y), rtol=1e-12)
    assert_allclose(adapted.transform_keys(Y), fitted.transform_keys(Y), rtol=1e-12)
    assert_array_equal(prototype.transform(Y), before.transform(Y))


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_member_without_data(name):
    features = make(name, n_components=24, random_state=0)
    if features._needs_data:
        kinds = "PoissonRF", "GeometricRF", "DiscreteRF"
        assert name in [f"{kind}-positive" for kind in kinds] or "clustered" in repr(features)
        return
    free = features.fit_without_data(3)
    if accepts(name, "center"):
        assert_array_equal(free.offset_, np.zeros(3))
    for parameter, value in {"A_": 0, "rho_": 1, "lambda_": 1, "p_": 0.5, "share_": 1}.items():
        if hasattr(free, parameter):
            assert_allclose(getattr(free, parameter), value, atol=1e-12)
    assert np.isfinite(free.transform(X)).all()
