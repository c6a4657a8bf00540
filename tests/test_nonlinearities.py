"""Every feature of one projection has the mean and the variance of its closed form: no randomness.

Quadrature takes the place of the draw: its nodes become the projections of a fitted mechanism,
and the weighted mean over them is the mean over omega. Whole mechanisms are checked in this way
(sigma, shift, softmax factor, fitted parameters), then the nonlinearities alone where a mechanism
shows only one value of a parameter. All comparisons are relative, to 1e-10.
"""

import numpy as np
import pytest
from instances import MECHANISMS, altered, features, make
from numpy.polynomial.hermite_e import hermegauss
from numpy.polynomial.legendre import leggauss
from scipy.special import hyp0f1

import skrf
from skrf import variances
from skrf.features.exponential import Exponential
from skrf.features.gaussian import GaussianRandomFeatures
from skrf.features.generalized_exponential import GeneralizedExponential
from skrf.projections import DenseProjection

# Not those with a proposal of their own (test_adaptive.py) or products of columns (test_hybrid.py).
# The parameters of generalised maps are given, not fitted, further below.
OTHERS = (skrf.AdaptiveRF, skrf.HybridRF, skrf.GeneralizedExponentialRF)
GAUSSIAN = [
    name
    for name in MECHANISMS
    if isinstance(make(name), GaussianRandomFeatures) and not isinstance(make(name), OTHERS)
]
NODES = {1: 150, 2: 100, 3: 50}
TOLERANCE = {"rtol": 1e-10, "atol": 1e-14}


def normal_rule(n_features):
    """Return nodes (n, d) and weights of the mean over N(0, I_d): tensor Gauss-Hermite."""
    nodes, weights = hermegauss(NODES[n_features])
    grid = np.stack(np.meshgrid(*[nodes] * n_features, indexing="ij"), axis=-1)
    product = np.ones(1)
    for _ in range(n_features):
        product = np.multiply.outer(product, weights)
    return grid.reshape(-1, n_features), product.ravel() / product.sum()


def sphere_rule(n_features):
    """Return nodes and weights of the mean over the directions in R^d, d = 1, 2, 3.

    Nodes have the length 2, so that a map that fixes lengths has to change it.
    """
    if n_features == 1:
        return np.array([[2.0], [-2.0]]), np.full(2, 0.5)
    angles = 2 * np.pi * np.arange(48) / 48
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if n_features == 2:
        return 2 * circle, np.full(48, 1 / 48)
    height, weights = leggauss(40)
    flat = np.sqrt(1 - height**2)[:, None, None] * circle
    nodes = np.concatenate([flat, np.broadcast_to(height[:, None, None], (40, 48, 1))], axis=2)
    return 2 * nodes.reshape(-1, 3), np.repeat(weights, 48) / 96


def moments(queries, keys, weights):
    """Return mean and variance of the products of one projection, for all pairs of rows.

    The columns of a pair of features lie one after the other, each as long as the weights.
    """
    parts = queries.shape[1] // len(weights)
    queries, keys = (Z.reshape(len(Z), parts, -1) for Z in (queries, keys))
    products = np.einsum("ipn,jpn->ijn", queries, keys)
    mean = products @ weights
    return mean, (products - mean[:, :, None]) ** 2 @ weights


def rows(n_features, sigma, offset):
    """Return queries and keys: |sigma (x + y - 2 offset)| is at most 1, and 0 for no pair."""
    rng = np.random.default_rng(n_features)
    queries, keys = rng.uniform(-1, 1, size=(2, 4, n_features))
    largest = np.linalg.norm(queries[:, None] + keys, axis=2).max()
    return offset + queries / (largest * sigma), offset + keys / (largest * sigma)


def fitted(name, n_features, kernel, *, folded=False):
    """Return a mechanism of one projection, fitted far from the origin, and rows near its data."""
    rng = np.random.default_rng(10 + n_features)
    sigma = 1.3
    X = rng.normal(scale=0.6 / sigma, size=(30, n_features)) + 0.7
    keys = rng.normal(scale=0.4 / sigma, size=(20, n_features)) - 0.2
    mechanism = make(name, sigma=sigma, kernel=kernel, random_state=0)
    columns = 1 if folded else mechanism._columns_per_projection
    mechanism.set_params(n_components=columns).fit(X, keys=keys)
    assert mechanism.omega_.shape == (1, n_features)
    return mechanism, *rows(n_features, sigma, (X.mean(axis=0) + keys.mean(axis=0)) / 2)


def products(mechanism, nodes, X, Y, **draw):
    """Return features of both sides as if of one projection, the nodes one after the other."""
    replaced = altered(mechanism, draw={"projection": DenseProjection(nodes), **draw})
    # The average over projections is the test's own.
    size = len(nodes) ** 0.5
    return size * features(replaced, X), size * features(replaced, Y, keys=True)


def exact_mean(mechanism, X, Y, offset):
    """Return what the estimate has as its mean: the kernel, or the regularised lower kernel."""
    sigma, d = mechanism.sigma, X.shape[1]
    if mechanism.is_unbiased:
        kernel = np.exp(-(sigma**2) * ((X[:, None] - Y) ** 2).sum(axis=2) / 2)
    else:
        a, b = sigma * (X - offset), sigma * (Y - offset)
        norms2 = np.add.outer((a**2).sum(axis=1), (b**2).sum(axis=1))
        sum2 = ((a[:, None] + b) ** 2).sum(axis=2)
        kernel = np.exp(-norms2) * hyp0f1(d / 2, d * sum2 / 4)
    if mechanism.kernel == "softmax":
        kernel *= np.exp(sigma**2 * np.add.outer((X**2).sum(axis=1), (Y**2).sum(axis=1)) / 2)
    return kernel


PHASES = 2 * np.pi * (np.arange(8) + 0.3) / 8


@pytest.mark.parametrize(
    "name, n_features, kernel, folded",
    [
        *((name, 1, "softmax", False) for name in GAUSSIAN),
        *((name, 2, "softmax", False) for name in GAUSSIAN),
        *((name, 3, "gaussian", False) for name in GAUSSIAN),
        ("RFFSampler", 2, "softmax", True),
        ("PositiveRF-hyperbolic", 2, "softmax", True),
    ],
)
def test_feature_map_has_the_mean_and_variance_of_its_law(name, n_features, kernel, folded):
    mechanism, X, Y = fitted(name, n_features, kernel, folded=folded)
    rule = normal_rule if mechanism.is_unbiased else sphere_rule
    nodes, weights = rule(n_features)
    draws = [{}]
    if folded and name == "RFFSampler":
        # The products are trigonometric polynomials of degree 4 in the phase: 8 phases are exact.
        draws = [{"phase": phase} for phase in PHASES]
    queries, keys = zip(*(products(mechanism, nodes, X, Y, **draw) for draw in draws), strict=True)
    weights = np.tile(weights, len(draws)) / len(draws)
    mean, variance = moments(np.hstack(queries), np.hstack(keys), weights)
    offset = getattr(mechanism, "offset_", 0.0)
    np.testing.assert_allclose(mean, exact_mean(mechanism, X, Y, offset), **TOLERANCE)
    np.testing.assert_allclose(mechanism.kernel_variance(X, Y), variance, **TOLERANCE)


def assert_moments(nonlinearities, n_features):
    """Compare the mean over nodes and nonlinearities with the closed form of each of them."""
    X, Y = rows(n_features, 1.0, 0.0)
    nodes, weights = normal_rule(n_features)
    sides = ([], [])
    for nonlinearity in nonlinearities:
        projection, bias = nonlinearity.multiplier(DenseProjection(nodes))
        for side, Z, keys in zip(sides, (X, Y), (False, True), strict=True):
            row = nonlinearity.row_term((Z**2).sum(axis=1), n_features)
            products = projection.multiply(Z * nonlinearity.slope)
            values, scale = nonlinearity.apply(products, row, bias, keys=keys)
            side.append(np.exp(values) if scale is None else values * np.exp(scale))
    weights = np.tile(weights, len(nonlinearities)) / len(nonlinearities)
    mean, variance = moments(*map(np.hstack, sides), weights)
    geometry = variances.PairGeometry.of(X, Y)
    np.testing.assert_allclose(mean, np.exp(-geometry.difference2 / 2), **TOLERANCE)
    logs = nonlinearity.log_scale(geometry) + nonlinearity.log_own(geometry)
    np.testing.assert_allclose(np.exp(logs), variance, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("n_features", [1, 2])
@pytest.mark.parametrize("rho", [0.3, 0.7, 1.0, 1.5])
def test_exponential_for_every_parameter(rho, n_features):
    assert_moments([Exponential((1 - 1 / rho) / 8)], n_features)


COMPLEX = [
    (0.02 + 0.04j, 1),
    (-0.1 + 0.08j, 1),
    (-0.1, 1),
    (0.03 - 0.05j, -1),
    (-0.06, -1),
    (0.0, -1),
]


@pytest.mark.parametrize("n_features, folded", [(1, True), (2, False), (2, True)])
@pytest.mark.parametrize(("A", "s"), COMPLEX)
def test_generalized_for_every_parameter(A, s, n_features, folded):
    phases = PHASES if folded else [None]
    assert_moments([GeneralizedExponential(complex(A), s, phase) for phase in phases], n_features)
