"""HybridRF over any bases: formula, closed forms, gradients and what is refused."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
from instances import features
from numpy.polynomial.hermite_e import hermegauss
from numpy.testing import assert_allclose, assert_array_equal
from samples import X, Y

from skrf import (
    AdaptiveRF,
    ClusterNystroem,
    DenseExponentialRF,
    DiscreteRF,
    GeneralizedExponentialRF,
    HybridRF,
    OptimalPositiveRF,
    PoissonRF,
    PositiveRF,
    RFFSampler,
    SimplexRF,
    SimplexRFPlus,
    variances,
)
from skrf._sums import log_estimate
from skrf.features._coefficients import Angular, Gaussian

HYPERBOLIC = PositiveRF(variant="hyperbolic")
THREE = OptimalPositiveRF(), HYPERBOLIC, RFFSampler()


def hybrid(base, n_components=300, **params):
    return HybridRF(n_components, base=base, **{"random_state": 0, **params})


# ------------------------------------------------------------------ formula


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("coefficients", ["angular", "gaussian"])
def test_the_estimate_is_the_weighted_sum_of_those_of_the_bases(coefficients, shared):
    base = (*THREE, PoissonRF())
    own = hybrid(base, 600, coefficients=coefficients, n_coefficients=3, shared=shared, sigma=0.7)
    own.fit(X, keys=Y)
    fitted = own._fitted.queries
    taus = fitted.taus.dense().reshape(3, 3, -1)
    sides = [0.7 * (Z - own.offset_) @ taus.transpose(0, 2, 1) for Z in (X, Y)]
    weights = np.zeros((4, len(X), len(Y)))
    if coefficients == "gaussian":
        angles = sides[0][:, :, None] - sides[1][:, None]
        ends = np.stack([np.ones(angles.shape[1:3]), *np.cos(angles).mean(axis=3)])
        weights[:-1], weights[-1] = ends[:-1] - ends[1:], ends[-1]
    else:
        agree = (sides[0] < 0)[:, :, None] == (sides[1] < 0)[:, None]
        first = np.where(agree.all(axis=0), 3, np.argmin(agree, axis=0))
        for k in range(4):
            weights[k] = (first == k).mean(axis=2)
    estimates = []
    for part in fitted.bases:
        logs, sign = log_estimate(part(X), part(Y))
        estimates.append(sign * np.exp(logs))
    expected = sum(weight * estimate for weight, estimate in zip(weights, estimates, strict=True))
    assert_allclose(own.approximate_kernel(X, Y), expected, rtol=1e-9, atol=1e-11)
    assert_allclose(weights.sum(axis=0), 1, rtol=1e-12)
    drawn = own._fitted.draw.bases
    assert shared == np.array_equal(drawn[0].omega_, drawn[2].omega_)


def test_what_bases_learn_is_what_they_learn_alone():
    own = hybrid((DenseExponentialRF(), OptimalPositiveRF(), PoissonRF()), shared=False, sigma=0.8)
    own.fit(X, keys=Y)
    dense, optimal, poisson = own._fitted.learned.bases
    assert_allclose(dense.rho_, DenseExponentialRF(sigma=0.8).fit(X, keys=Y).rho_, rtol=1e-12)
    assert_allclose(optimal.rho_, OptimalPositiveRF(sigma=0.8).fit(X, keys=Y).rho_, rtol=1e-12)
    assert_allclose(poisson.lambda_, PoissonRF(sigma=0.8).fit(X, keys=Y).lambda_, rtol=1e-12)
    parts = hybrid(own.base, shared=False, sigma=0.8)
    for rows, keys in zip(np.array_split(X, 2), np.array_split(Y, 2), strict=True):
        parts.partial_fit(rows, keys=keys)
    assert_allclose(parts.transform(X), own.transform(X), rtol=1e-9, atol=1e-12)
    without = hybrid(own.base, shared=False).fit_without_data(X.shape[1])
    assert_array_equal(without._fitted.learned.bases[2].lambda_, np.ones(X.shape[1]))
    # Counts depend on what is learnt: they are drawn anew, the rest is kept.
    assert_allclose(own._adapted(2 * X).transform(X), own.fit(2 * X).transform(X), rtol=1e-9)


def test_bases_that_look_at_rows_find_their_own_centres():
    """Though `fit_each` finds centres once for all sigmas."""
    params = {"centers": "kmeans", "share": 0.5, "coupling": "orthogonal"}
    base = [AdaptiveRF(n_centers=n, **params) for n in (2, 5)]
    own = hybrid((*base, RFFSampler()), shared=False)
    assert not hasattr(own, "partial_fit")
    for fitted in (own.fit(X), *own._fit_each([0.5, 2.0], X)):
        found = fitted._fitted.learned.bases
        assert [len(part.centers_) for part in found[:2]] == [2, 5]
        assert not fitted.kernel_variance_is_exact_
    assert_allclose(fitted.transform(X), own.set_params(sigma=2.0).fit(X).transform(X), rtol=1e-9)


def test_couplings_seeds_and_names_of_the_bases():
    base = OptimalPositiveRF(coupling="simplex"), RFFSampler(coupling="sobol")
    own = hybrid(base, shared=False, coupling="iid").fit(X)
    assert [part.coupling for part in own._bases()] == ["simplex", "sobol"]
    again = hybrid(base, shared=False, coupling="orthogonal").fit(X)
    assert_array_equal(own.transform(X), again.transform(X))
    assert (own.redraw(1).transform(X) != again.transform(X)).any()
    shared = hybrid((OptimalPositiveRF(), SimplexRF()), coupling="simplex").fit(X)
    assert {part.coupling for part in shared._bases()} == {"simplex"}
    names = hybrid(("hyperbolic", "trigonometric")).fit(X)
    instances = hybrid((HYPERBOLIC, RFFSampler())).fit(X)
    assert_array_equal(names.transform(Y), instances.transform(Y))
    assert_array_equal(names.omega_, instances.omega_)


# ------------------------------------------------------------------ closed forms

LAWS = [
    variances.Exponential(),
    variances.Exponential(0.4),
    variances.Exponential(0.7),
    variances.Hyperbolic(),
    variances.Trigonometric(),
]


def one_projection(law, w, x, y):
    """Return the estimate of the Gaussian kernel by rows w."""
    if isinstance(law, variances.Trigonometric):
        return np.cos(w @ (x - y))
    norms = x @ x + y @ y
    if isinstance(law, variances.Hyperbolic):
        return np.cosh(w @ (x + y)) * np.exp(-norms)
    A = (1 - 1 / law.rho) / 8
    size = (1 - 4 * A) ** (len(x) / 2) * np.exp(2 * A * np.sum(w**2, axis=1) - norms)
    return size * np.exp(np.sqrt(1 - 4 * A) * w @ (x + y))


def test_covariances_of_one_projection_are_those_of_quadrature():
    nodes, weights = hermegauss(100)
    w = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    weights = np.outer(weights, weights).ravel() / weights.sum() ** 2
    pairs = [([0.4, 0.2], [0.1, -0.3]), ([1.0, 0.3], [0.2, 0.9]), ([0.5, 0.1], [-0.5, -0.1])]
    for x, y in np.array(pairs):
        kernel = np.exp(-np.sum((x - y) ** 2) / 2)
        geometry = variances.PairGeometry.of(x[None], y[None])
        values = [one_projection(law, w, x, y) for law in LAWS]
        assert_allclose(values @ weights, kernel, rtol=1e-10)
        for one, other in combinations_with_replacement(range(len(LAWS)), 2):
            expected = weights @ ((values[one] - kernel) * (values[other] - kernel))
            laws, difference = [LAWS[one], LAWS[other]], np.array([[x @ x - y @ y]])
            value, unit = variances.shared_covariance(laws, geometry, difference)
            assert_allclose(value * np.exp(unit), expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("n_bases", [2, 4])
def test_moments_of_angular_weights_are_those_of_counts(n_bases):
    """Of n chains, each with its own first sign on which two samples differ."""
    x = np.array([[0.9, 0.1, 0.3], [0.0, 0.0, 0.0], [-0.2, 0.0, 0.0], [0.5, 0.0, 0.0]])
    y = np.array([[0.5, 0.0, 0.0]])
    # The zero vector has the sign +1 with every tau, the other sample in half of all cases.
    angles = np.array([np.arccos(0.9 / np.sqrt(0.91)), np.pi / 2, np.pi, 0.0])
    for n in (1, 5):
        found = Angular().moments(x, y, n, n_bases, None)[..., 0]
        for i, apart in enumerate(angles / np.pi):
            shares = apart * (1 - apart) ** np.arange(n_bases)
            shares[-1] = (1 - apart) ** (n_bases - 1)
            wanted = (1 - 1 / n) * np.outer(shares, shares) + np.diag(shares) / n
            assert_allclose(found[:, :, i], wanted, rtol=1e-10, atol=1e-14)
    nothing = Angular().moments(x, y, 0, n_bases, None)
    assert_allclose(nothing.sum(axis=(0, 1)), 1, rtol=1e-12)


@pytest.mark.parametrize("widths", [1.5, (3.0, 1.0, 0.5)])
def test_moments_of_gaussian_weights_are_those_of_cosines(widths):
    nodes, weights = hermegauss(120)
    weights = weights / weights.sum()
    X, Y = np.random.default_rng(0).normal(size=(2, 4, 3)) / 2
    distances = np.linalg.norm(X[:, None] - Y[None], axis=2)
    widths_ = np.atleast_1d(widths)
    p = len(widths_)
    # l_0 = 1 - c_1, l_k = c_k - c_(k + 1), l_p = c_p, with means of n independent cosines.
    signs = np.eye(p + 1, p, -1) - np.eye(p + 1, p)
    for n in (1, 3):
        found = Gaussian().moments(X, Y, n, p + 1, np.array(widths) if p > 1 else widths)
        for i, j in np.ndindex(distances.shape):
            cosines = np.cos(nodes[:, None] * distances[i, j] / widths_)
            means = weights @ cosines
            spread = np.diag(weights @ cosines**2 - means**2) / n
            first = np.eye(p + 1)[0] + signs @ means
            wanted = np.outer(first, first) + signs @ spread @ signs.T
            assert_allclose(found[:, :, i, j], wanted, rtol=1e-9, atol=1e-12)
    nothing = Gaussian().moments(X, Y, 0, p + 1, widths_)
    assert (nothing[0, 0] == 1).all() and nothing.sum() == 16


def test_parts_of_the_variance_are_summed():
    """sum_kj E[l_k l_j] Cov(E_k, E_j), as a matrix of numbers."""
    rng = np.random.default_rng(0)
    roots, weights = rng.normal(size=(2, 3, 3, 4))
    moments = np.einsum("kin,jin->kjn", weights, weights)
    covariances = np.einsum("kin,jin->kjn", roots, roots)
    units = {(0, 1): -3.0, (0, 2): 2.0, (1, 2): 0.0}
    logs = variances.hybrid_log_variance(
        moments,
        [np.log(covariances[k, k]) for k in range(3)],
        {pair: (covariances[pair] * np.exp(-unit), unit) for pair, unit in units.items()},
    )
    assert_allclose(np.exp(logs), np.sum(moments * covariances, axis=(0, 1)), rtol=1e-12)
    nothing = variances.hybrid_log_variance(0 * moments, [np.full(4, -np.inf)] * 3, {})
    assert np.isneginf(nothing).all()


CLOSED = {
    # The first two estimates hardly differ: their covariance is most of the variance.
    "shared": (
        (OptimalPositiveRF(), "positive", "trigonometric"),
        {"coupling": "iid", "coefficients": "angular"},
        8,
    ),
    "couplings": (
        (OptimalPositiveRF(coupling="simplex"), PositiveRF(coupling="iid"), RFFSampler()),
        {"shared": False, "coefficients": "gaussian", "tau": (1.0, 0.4)},
        3,
    ),
    "Poisson": (
        (PoissonRF(), OptimalPositiveRF(), RFFSampler()),
        {"coupling": "iid", "coefficients": "gaussian", "tau": (1.0, 0.4)},
        8,
    ),
}


@pytest.mark.parametrize("name", CLOSED)
def test_variances_are_those_of_draws(name):
    """1,000 draws; 4.4 standard errors, for variances from fourth moments.

    At least half of the pairs, |x + y| <= 1, have variances known to 9 %, so that one wrong by half
    is found with probability 0.9; of the others the sample says less.
    """
    base, params, d = CLOSED[name]
    samples = np.random.default_rng(d).normal(size=(4, d))
    samples /= np.linalg.norm(samples, axis=1, keepdims=True) * [[2.0], [2.5], [3.0], [4.0]]
    own = hybrid(base, 16 * 44, n_coefficients=3, center=False, **params).fit(samples)
    pairs, values = np.triu_indices(4, 1), []
    for seed in range(1000):
        own.redraw(seed)
        values.append((features(own, samples) @ features(own, samples, keys=True).T)[pairs])
    gaps = np.array(values) - own.exact_kernel(samples)[pairs]
    errors = gaps.std(axis=0, ddof=1) / np.sqrt(1000)
    assert (np.abs(gaps.mean(axis=0)) < 4.4 * errors).all()
    squares = gaps**2
    spread = squares.std(axis=0) / np.sqrt(1000) / squares.mean(axis=0)
    ratio = squares.mean(axis=0) / own.kernel_variance(samples)[pairs]
    assert (spread < 0.09).sum() >= 3, spread
    assert (np.abs(ratio - 1) < 4.4 * spread).all(), (ratio, spread)
    assert own.kernel_variance_is_exact_


def test_closed_forms_are_known_bounds_or_said_to_be_unknown():
    own = hybrid((DenseExponentialRF(), RFFSampler()), shared=False).fit(X)
    assert not own.kernel_variance_is_exact_
    assert np.isfinite(own.kernel_variance(X, Y)).all()
    exact = hybrid((DenseExponentialRF(coupling="iid"), RFFSampler()), shared=False).fit(X)
    assert exact.kernel_variance_is_exact_
    # Equal samples meet in cosines, opposite ones in hyperbolic cosines.
    x = np.array([[0.6, 0.8, 0.0]])
    own = hybrid((HYPERBOLIC, RFFSampler()), shared=False, center=False).fit(x)
    assert np.isneginf(own.kernel_variance(np.vstack([x, -x]), log=True)).all()
    unknown = [
        ({"coupling": "orthogonal"}, "shared=False every coupling"),
        ({"base": (DenseExponentialRF(), "trigonometric")}, "DenseExponentialRF and RFFSampler"),
        ({"base": (AdaptiveRF(), "positive")}, "AdaptiveRF and PositiveRF"),
        ({"base": (SimplexRFPlus(), "positive"), "shared": False}, "simplex"),
        ({"projection": "hadamard"}, "projection='hadamard'"),
    ]
    wide = np.hstack([X] * 6)
    for params, words in unknown:
        own = hybrid(**{"base": THREE, "coupling": "iid", **params}).fit(wide)
        with pytest.raises(NotImplementedError, match=words):
            own.kernel_variance(wide)


# ------------------------------------------------------------------ numbers


@pytest.mark.parametrize("coefficients", ["angular", "gaussian"])
def test_no_number_is_lost(coefficients):
    """Features that are exactly 0 (counts at columns of 0), samples of 0, and far ones."""
    rows = np.vstack([X, -X[:3], np.zeros((2, X.shape[1])), np.eye(X.shape[1])])
    params = {"coefficients": coefficients, "n_coefficients": 3, "shared": False}
    for sigma in (1e-6, 1.0, 1e3):
        own = hybrid((PoissonRF(), *THREE), 900, sigma=sigma, **params).fit(rows)
        values, scale = own.feature_maps_[0](rows)
        assert np.isfinite(values).all() and not np.isnan(scale).any()
        assert np.isneginf(scale).any() or sigma != 1
        logs = own.kernel_variance(rows, log=True)
        assert not np.isnan(logs).any() and not np.isposinf(logs).any()
        single = own.transform(rows.astype(np.float32))
        assert single.dtype == np.float32
        assert_allclose(single, own.transform(rows), rtol=1e-4, atol=1e-4 * abs(values).max())


# ------------------------------------------------------------------ what is refused


def test_bases_that_do_not_fit_are_refused_by_name():
    for given, words in (
        (PositiveRF(variant="regularized"), "is biased"),
        (OptimalPositiveRF(projection="hadamard"), "is biased"),
        (ClusterNystroem(), "is biased"),
        (PoissonRF(positive=True), "is biased for rows that it clamps"),
        (DenseExponentialRF(asymmetric=True, kernel="softmax"), "differently"),
        (GeneralizedExponentialRF(), "differently"),
        (AdaptiveRF(centers="classes"), "centers='classes'.*without labels"),
        (HybridRF(), "differently"),
        (RFFSampler(kernel="laplacian"), "kernel='laplacian'"),
        (OptimalPositiveRF(sigma=2.0), "sigma=2.0"),
        (OptimalPositiveRF(30), "n_components=30"),
        (OptimalPositiveRF(center=False), "center=False"),
        (OptimalPositiveRF(random_state=3), "random_state=3"),
        (OptimalPositiveRF(coupling="iid"), "coupling='iid'.*shared=False"),
        (SimplexRF(), "coupling='simplex'.*shared=False"),
    ):
        own = hybrid((given, "trigonometric"))
        with pytest.raises(ValueError, match=rf"base\[0\]={type(given).__name__}.*{words}"):
            own.fit(X)
        assert not hasattr(own, "statistics_")
    unknown = hybrid((OptimalPositiveRF(coupling="unknown"), "trigonometric"), shared=False)
    with pytest.raises(ValueError, match="'coupling' parameter of OptimalPositiveRF"):
        unknown.fit(X)
    for given, words in (
        (DiscreteRF(), "the law of every column's powers"),
        (AdaptiveRF(), "centres of clusters"),
    ):
        with pytest.raises(AttributeError, match=words):
            hybrid((given, "trigonometric")).partial_fit(X)
    own = hybrid((PoissonRF(), RFFSampler())).fit(X)
    with pytest.raises(NotImplementedError, match="No gradients are available.*DiscreteMap"):
        own.feature_maps_[0].pull_back(X, own.transform(X))
    for tau in ((1.0,), (1.0, 2.0), (1.0, 0.5, 0.2), (1.0, -1.0), (1.0, "median")):
        with pytest.raises((ValueError, TypeError), match="tau"):
            hybrid(THREE, coefficients="gaussian", tau=tau).fit(X)
    for tau, widths in ((2.0, [2.0, 1.0]), ((3, 1), [3, 1])):
        own = hybrid(THREE, coefficients="gaussian", tau=tau).fit(X)
        assert_array_equal(own.tau_, widths)


def test_bases_that_are_set_after_a_fit_change_nothing_before_the_next():
    base = OptimalPositiveRF(coupling="iid")
    own = hybrid((base, "trigonometric"), shared=False).partial_fit(X)
    expected, drawn = own.kernel_variance(X), own.redraw(1).transform(X)
    base.set_params(coupling="simplex")
    assert own.base[0] is base
    assert_array_equal(own.kernel_variance(X), expected)
    assert_array_equal(own.redraw(1).transform(X), drawn)
    with pytest.raises(ValueError, match="base=.*simplex.* was .*call fit"):
        own.partial_fit(Y)
    assert (own.fit(X).redraw(1).transform(X) != drawn).any()


def test_of_one_component_there_is_one_column():
    """It is the folded pair; 500 draws, 4.4 standard errors: a mean wrong by its spread is far."""
    rows = X[:4]
    for first in ("trigonometric", "hyperbolic"):
        own = hybrid((first, "positive"), 1, coupling="iid", sigma=0.3).fit(rows)
        assert own.transform(X).shape == (len(X), 1)
        draws = np.array([own.redraw(seed).approximate_kernel(rows) for seed in range(500)])
        error = np.sqrt(own.kernel_variance(rows) / 500)
        assert (np.abs(draws.mean(axis=0) - own.exact_kernel(rows)) < 4.4 * error).all()
