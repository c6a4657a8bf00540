"""HybridRF over any bases: formula, closed forms, gradients and what is refused."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
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
from skrf.features._covariances import hybrid_log_variance, shared_covariance
from skrf.features.exponential import Exponential
from skrf.features.positive import Hyperbolic
from skrf.features.trigonometric import SineCosine

HYPERBOLIC = PositiveRF(variant="hyperbolic")
THREE = OptimalPositiveRF(), HYPERBOLIC, RFFSampler()


def hybrid(base, n_components=300, **params):
    return HybridRF(n_components, base=base, **{"random_state": 0, **params})


# ------------------------------------------------------------------ formula


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("coefficients", ["angular", "gaussian"])
def test_the_estimate_is_the_weighted_sum_of_those_of_the_bases(coefficients, shared):
    base = (*THREE, PoissonRF())
    model = hybrid(base, 600, coefficients=coefficients, n_coefficients=3, shared=shared, sigma=0.7)
    model.fit(X, keys=Y)
    fitted, drawn = model._fitted.queries, model._fitted.draw.bases
    assert shared == np.array_equal(drawn[0].omega_, drawn[2].omega_)
    taus = fitted.taus.dense().reshape(3, 3, -1)
    sides = [0.7 * (Z - model.offset_) @ taus.transpose(0, 2, 1) for Z in (X, Y)]
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
    expected = np.zeros((len(X), len(Y)))
    for weight, base_map in zip(weights, fitted.bases, strict=True):
        logs, sign = log_estimate(base_map(X), base_map(Y))
        expected += weight * sign * np.exp(logs)
    assert_allclose(model.approximate_kernel(X, Y), expected, rtol=1e-9, atol=1e-11)


def test_what_bases_learn_is_what_they_learn_alone():
    base = DenseExponentialRF(), OptimalPositiveRF(), PoissonRF()
    model = hybrid(base, shared=False, sigma=0.8).fit(X, keys=Y)
    dense, optimal, poisson = model._fitted.parameters.bases
    assert_allclose(dense.rho_, DenseExponentialRF(sigma=0.8).fit(X, keys=Y).rho_, rtol=1e-12)
    assert_allclose(optimal.rho_, OptimalPositiveRF(sigma=0.8).fit(X, keys=Y).rho_, rtol=1e-12)
    assert_allclose(poisson.lambda_, PoissonRF(sigma=0.8).fit(X, keys=Y).lambda_, rtol=1e-12)
    in_parts = hybrid(base, shared=False, sigma=0.8)
    for rows, keys in zip(np.array_split(X, 2), np.array_split(Y, 2), strict=True):
        in_parts.partial_fit(rows, keys=keys)
    assert_allclose(in_parts.transform(X), model.transform(X), rtol=1e-9, atol=1e-12)


def test_bases_that_look_at_rows_find_their_own_centres():
    """Though `_fit_at_sigma` finds centres once for all sigmas."""
    params = {"centers": "kmeans", "share": 0.5, "coupling": "orthogonal"}
    base = [AdaptiveRF(n_centers=n, **params) for n in (2, 5)]
    model = hybrid((*base, RFFSampler()), shared=False)
    for fitted in (model.fit(X), *map(model._fit_at_sigma(X), [0.5, 2.0])):
        adaptive = fitted._fitted.parameters.bases[:2]
        assert [len(base.centers_) for base in adaptive] == [2, 5]
    assert not fitted.kernel_variance_is_exact_
    model.set_params(sigma=2.0).fit(X)
    assert_allclose(fitted.transform(X), model.transform(X), rtol=1e-9)


def test_couplings_seeds_and_names_of_the_bases():
    base = OptimalPositiveRF(coupling="simplex"), RFFSampler(coupling="sobol")
    model, again = (
        hybrid(base, shared=False, coupling=coupling).fit(X) for coupling in ("iid", "orthogonal")
    )
    assert [features.coupling for features in model._fitted.spec._bases] == ["simplex", "sobol"]
    assert_array_equal(model.transform(X), again.transform(X))
    assert (model.redraw(1).transform(X) != again.transform(X)).any()
    shared = hybrid((OptimalPositiveRF(), SimplexRF()), coupling="simplex").fit(X)
    assert {features.coupling for features in shared._fitted.spec._bases} == {"simplex"}
    names = hybrid(("hyperbolic", "trigonometric")).fit(X)
    instances = hybrid((HYPERBOLIC, RFFSampler())).fit(X)
    assert_array_equal(names.transform(Y), instances.transform(Y))


# ------------------------------------------------------------------ closed forms

NONLINEARITIES = [
    Exponential(),
    Exponential((1 - 1 / 0.4) / 8),
    Exponential((1 - 1 / 0.7) / 8),
    Hyperbolic(),
    SineCosine(),
]


def one_projection(nonlinearity, w, x, y):
    """Return the estimate of the Gaussian kernel by rows w."""
    if isinstance(nonlinearity, SineCosine):
        return np.cos(w @ (x - y))
    norms = x @ x + y @ y
    if isinstance(nonlinearity, Hyperbolic):
        return np.cosh(w @ (x + y)) * np.exp(-norms)
    A = nonlinearity.A
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
        values = [one_projection(nonlinearity, w, x, y) for nonlinearity in NONLINEARITIES]
        assert_allclose(values @ weights, kernel, rtol=1e-10)
        gap = np.array([[x @ x - y @ y]])
        for i, j in combinations_with_replacement(range(len(NONLINEARITIES)), 2):
            expected = weights @ ((values[i] - kernel) * (values[j] - kernel))
            pair = NONLINEARITIES[i], NONLINEARITIES[j]
            value, unit = shared_covariance(pair, geometry, gap)
            assert_allclose(value * np.exp(unit), expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("n_bases", [2, 4])
def test_moments_of_angular_weights_are_those_of_counts(n_bases):
    """Of n chains, each with its own first sign on which two samples differ."""
    x = np.array([[0.9, 0.1, 0.3], [0.0, 0.0, 0.0], [-0.2, 0.0, 0.0], [0.5, 0.0, 0.0]])
    y = np.array([[0.5, 0.0, 0.0]])
    # The zero vector has the sign +1 with every tau, the other sample in half of all cases.
    angles = np.array([np.arccos(0.9 / np.sqrt(0.91)), np.pi / 2, np.pi, 0.0])
    for n in (1, 5):
        moments = Angular().moments(x, y, n, n_bases, None)[..., 0]
        for i, apart in enumerate(angles / np.pi):
            shares = apart * (1 - apart) ** np.arange(n_bases)
            shares[-1] = (1 - apart) ** (n_bases - 1)
            expected = (1 - 1 / n) * np.outer(shares, shares) + np.diag(shares) / n
            assert_allclose(moments[:, :, i], expected, rtol=1e-10, atol=1e-14)


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
        moments = Gaussian().moments(X, Y, n, p + 1, np.array(widths) if p > 1 else widths)
        for i, j in np.ndindex(distances.shape):
            cosines = np.cos(nodes[:, None] * distances[i, j] / widths_)
            means = weights @ cosines
            spread = np.diag(weights @ cosines**2 - means**2) / n
            first = np.eye(p + 1)[0] + signs @ means
            expected = np.outer(first, first) + signs @ spread @ signs.T
            assert_allclose(moments[:, :, i, j], expected, rtol=1e-9, atol=1e-12)


def test_parts_of_the_variance_are_summed():
    """sum_kj E[l_k l_j] Cov(E_k, E_j), as a matrix of numbers; test_unbiased.py has the draws."""
    rng = np.random.default_rng(0)
    roots, weights = rng.normal(size=(2, 3, 3, 4))
    moments = np.einsum("kin,jin->kjn", weights, weights)
    covariances = np.einsum("kin,jin->kjn", roots, roots)
    units = {(0, 1): -3.0, (0, 2): 2.0, (1, 2): 0.0}
    logs = hybrid_log_variance(
        moments,
        [np.log(covariances[k, k]) for k in range(3)],
        {pair: (covariances[pair] * np.exp(-unit), unit) for pair, unit in units.items()},
    )
    assert_allclose(np.exp(logs), np.sum(moments * covariances, axis=(0, 1)), rtol=1e-12)


def test_closed_forms_are_known_bounds_or_said_to_be_unknown():
    for coupling, is_exact in (("orthogonal", False), ("iid", True)):
        model = hybrid((DenseExponentialRF(coupling=coupling), RFFSampler()), shared=False).fit(X)
        assert model.kernel_variance_is_exact_ == is_exact
        assert np.isfinite(model.kernel_variance(X, Y)).all()
    # Equal samples meet in cosines, opposite ones in hyperbolic cosines.
    x = np.array([[0.6, 0.8, 0.0]])
    model = hybrid((HYPERBOLIC, RFFSampler()), shared=False, center=False).fit(x)
    assert np.isneginf(model.kernel_variance(np.vstack([x, -x]), log=True)).all()


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"coupling": "orthogonal"}, "shared=False every coupling"),
        ({"base": (DenseExponentialRF(), "trigonometric")}, "DenseExponentialRF and RFFSampler"),
        ({"base": (AdaptiveRF(), "positive")}, "AdaptiveRF and PositiveRF"),
        ({"base": (SimplexRFPlus(), "positive"), "shared": False}, "simplex"),
        ({"projection": "hadamard"}, "projection='hadamard'"),
    ],
    ids=str,
)
def test_unknown_variances_are_said_to_be(params, words):
    wide = np.hstack([X] * 6)
    model = hybrid(**{"base": THREE, "coupling": "iid", **params}).fit(wide)
    with pytest.raises(NotImplementedError, match=words):
        model.kernel_variance(wide)


# ------------------------------------------------------------------ numbers


@pytest.mark.parametrize("coefficients", ["angular", "gaussian"])
def test_no_number_is_lost(coefficients):
    """Features that are exactly 0 (counts at columns of 0), samples of 0, and far ones."""
    rows = np.vstack([X, -X[:3], np.zeros((2, X.shape[1])), np.eye(X.shape[1])])
    params = {"coefficients": coefficients, "n_coefficients": 3, "shared": False}
    for sigma in (1e-6, 1.0, 1e3):
        model = hybrid((PoissonRF(), *THREE), 900, sigma=sigma, **params).fit(rows)
        values, scale = model.feature_maps_[0](rows)
        assert np.isfinite(values).all() and not np.isnan(scale).any()
        assert np.isneginf(scale).any() or sigma != 1
        logs = model.kernel_variance(rows, log=True)
        assert not np.isnan(logs).any() and not np.isposinf(logs).any()
        single = model.transform(rows.astype(np.float32))
        assert single.dtype == np.float32
        assert_allclose(single, model.transform(rows), rtol=1e-4, atol=1e-4 * abs(values).max())


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("base", "words"),
    [
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
    ],
)
def test_bases_that_do_not_fit_are_refused_by_name(base, words):
    model = hybrid((base, "trigonometric"))
    with pytest.raises(ValueError, match=rf"base\[0\]={type(base).__name__}.*{words}"):
        model.fit(X)
    assert not hasattr(model, "statistics_")


def test_what_else_is_refused():
    unknown = hybrid((OptimalPositiveRF(coupling="unknown"), "trigonometric"), shared=False)
    with pytest.raises(ValueError, match="'coupling' parameter of OptimalPositiveRF"):
        unknown.fit(X)
    for base in (DiscreteRF(), AdaptiveRF()):
        with pytest.raises(AttributeError, match="partial_fit"):
            hybrid((base, "trigonometric")).partial_fit(X)
    for tau in ((1.0,), (1.0, 2.0), (1.0, -1.0), (1.0, "median")):
        with pytest.raises((ValueError, TypeError), match="tau"):
            hybrid(THREE, coefficients="gaussian", tau=tau).fit(X)


def test_parameters_without_effect_on_clusters_are_refused():
    for name, value in {"base": THREE, "n_coefficients": 2, "tau": 1.0, "shared": False}.items():
        model = HybridRF(60, coefficients="clustered", **{name: value})
        with pytest.raises(ValueError, match=f"^{name}=.* has no effect with coefficients="):
            model.fit(X)
    HybridRF(60, coefficients="clustered", base=["positive", "trigonometric"]).fit(X)


def test_widths_of_gaussian_coefficients():
    for tau, widths in ((2.0, [2.0, 1.0]), ((3, 1), [3, 1])):
        model = hybrid(THREE, coefficients="gaussian", tau=tau).fit(X)
        assert_array_equal(model.tau_, widths)


def test_bases_that_are_set_after_a_fit_change_nothing_before_the_next():
    base = OptimalPositiveRF(coupling="iid")
    model = hybrid((base, "trigonometric"), shared=False).partial_fit(X)
    expected, drawn = model.kernel_variance(X), model.redraw(1).transform(X)
    base.set_params(coupling="simplex")
    assert model.base[0] is base
    assert_array_equal(model.kernel_variance(X), expected)
    assert_array_equal(model.redraw(1).transform(X), drawn)
    with pytest.raises(ValueError, match="base=.*simplex.* was .*call fit"):
        model.partial_fit(Y)
    assert (model.fit(X).redraw(1).transform(X) != drawn).any()


def test_of_one_component_there_is_one_column():
    """It is the folded pair; 500 draws, 4.4 standard errors: a mean wrong by its spread is far."""
    rows = X[:4]
    for first in ("trigonometric", "hyperbolic"):
        model = hybrid((first, "positive"), 1, coupling="iid", sigma=0.3).fit(rows)
        assert model.transform(X).shape == (len(X), 1)
        draws = np.array([model.redraw(seed).approximate_kernel(rows) for seed in range(500)])
        error = np.sqrt(model.kernel_variance(rows) / 500)
        assert (np.abs(draws.mean(axis=0) - model.exact_kernel(rows)) < 4.4 * error).all()
