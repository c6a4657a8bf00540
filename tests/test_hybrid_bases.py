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
from skrf.attention import ApproxKernelAttention
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


def test_names_are_instances_in_brief():
    names = hybrid(("hyperbolic", "trigonometric")).fit(X)
    instances = hybrid((HYPERBOLIC, RFFSampler())).fit(X)
    assert_array_equal(names.transform(Y), instances.transform(Y))
    assert_array_equal(names.omega_, instances.omega_)


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


def test_couplings_and_seeds_of_the_bases():
    base = OptimalPositiveRF(coupling="simplex"), RFFSampler(coupling="sobol")
    own = hybrid(base, shared=False, coupling="iid").fit(X)
    assert [part.coupling for part in own._bases()] == ["simplex", "sobol"]
    again = hybrid(base, shared=False, coupling="orthogonal").fit(X)
    assert_array_equal(own.transform(X), again.transform(X))
    assert (own.redraw(1).transform(X) != again.transform(X)).any()
    shared = hybrid((OptimalPositiveRF(), SimplexRF()), coupling="simplex").fit(X)
    assert {part.coupling for part in shared._bases()} == {"simplex"}


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


@pytest.mark.parametrize("laws", list(combinations_with_replacement(LAWS, 2)), ids=str)
def test_covariances_of_one_projection_are_those_of_quadrature(laws):
    nodes, weights = hermegauss(100)
    w = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    weights = np.outer(weights, weights).ravel() / weights.sum() ** 2
    pairs = [([0.4, 0.2], [0.1, -0.3]), ([1.0, 0.3], [0.2, 0.9]), ([0.5, 0.1], [-0.5, -0.1])]
    for x, y in np.array(pairs):
        values = [one_projection(law, w, x, y) for law in laws]
        kernel = np.exp(-np.sum((x - y) ** 2) / 2)
        assert_allclose([weights @ own for own in values], kernel, rtol=1e-10)
        expected = weights @ ((values[0] - kernel) * (values[1] - kernel))
        geometry = variances.PairGeometry.of(x[None], y[None])
        value, unit = variances.shared_covariance(laws, geometry, np.array([[x @ x - y @ y]]))
        assert_allclose(value * np.exp(unit), expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("n_bases", [2, 4])
@pytest.mark.parametrize("combination", [Angular(), Gaussian()])
def test_moments_of_weights(combination, n_bases):
    """A weight of n rows is a mean of n: the mean square of one tells those of all; 10^5 draws."""
    n_draws, width = 100_000, np.array([2.0, 1.0, 0.5])[: n_bases - 1]
    x, y = np.array([[0.9, 0.1, 0.3], [0.0, 0.0, 0.0], [0.9, 0.1, 0.3]]), np.eye(3)[:1] / 2
    own = combination.moments(x, y, 1, n_bases, width)
    many = combination.moments(x, y, 5, n_bases, width)
    assert_allclose(own.sum(axis=(0, 1)), 1, rtol=1e-12)
    means = own.sum(axis=1)
    outer = means[:, None] * means[None]
    assert_allclose(many - outer, (own - outer) / 5, atol=1e-14)
    taus = np.random.default_rng(0).normal(size=(n_bases - 1, n_draws, 3))
    for i in range(2):
        products = [tau @ row for tau in taus for row in (x[i], y[0])]
        if isinstance(combination, Angular):
            agree = [(a < 0) == (b < 0) for a, b in zip(products[::2], products[1::2], strict=True)]
            first = np.where(np.all(agree, axis=0), n_bases - 1, np.argmin(agree, axis=0))
            weights = first == np.arange(n_bases)[:, None]
        else:
            gaps = zip(products[::2], products[1::2], width, strict=True)
            g = [np.ones(n_draws), *(np.cos((a - b) / w) for a, b, w in gaps), np.zeros(n_draws)]
            weights = -np.diff(g, axis=0)
        products = weights[:, None] * weights[None]
        errors = products.std(axis=2) / np.sqrt(n_draws) + 1e-12
        assert (np.abs(products.mean(axis=2) - own[:, :, i, 0]) < 4.4 * errors).all()
        assert errors.max() < 0.005
    nothing = combination.moments(x, y, 0, n_bases, width)
    assert_allclose(nothing.sum(axis=(0, 1)), 1, rtol=1e-12)


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
    "shared": ((OptimalPositiveRF(), "positive", "trigonometric"), {"coupling": "iid"}),
    "couplings": (
        (OptimalPositiveRF(coupling="simplex"), PositiveRF(coupling="iid"), RFFSampler()),
        {"shared": False},
    ),
    "Poisson": ((PoissonRF(), OptimalPositiveRF(), RFFSampler()), {"coupling": "iid"}),
}


@pytest.mark.parametrize(
    ("name", "coefficients", "d"),
    [
        ("shared", "angular", 8),
        ("couplings", "angular", 64),
        ("couplings", "gaussian", 3),
        ("Poisson", "gaussian", 8),
    ],
)
def test_variances_are_those_of_draws(name, coefficients, d):
    """1,000 draws; 4.4 standard errors, for variances from fourth moments.

    At least half of the pairs, |x + y| <= 1, have variances known to 9 %, so that one wrong by half
    is found with probability 0.9; of the others the sample says less.
    """
    base, params = CLOSED[name]
    rng = np.random.default_rng(d)
    rows = rng.normal(size=(4, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True) * np.array([[2.0], [2.5], [3.0], [4.0]])
    own = hybrid(base, 16 * 44, coefficients=coefficients, n_coefficients=3, **params)
    tau = {"tau": (1.0, 0.4)} if coefficients == "gaussian" else {}
    own.set_params(center=False, **tau).fit(rows)
    pairs, values = np.triu_indices(4, 1), []
    for seed in range(1000):
        own.redraw(seed)
        values.append((features(own, rows) @ features(own, rows, keys=True).T)[pairs])
    values = np.array(values)
    gaps = values - own.exact_kernel(rows)[pairs]
    assert (np.abs(gaps.mean(axis=0)) < 4.4 * values.std(axis=0, ddof=1) / np.sqrt(1000)).all()
    squares = gaps**2
    spread = squares.std(axis=0) / np.sqrt(1000) / squares.mean(axis=0)
    ratio = squares.mean(axis=0) / own.kernel_variance(rows)[pairs]
    assert (spread < 0.09).sum() >= 3, spread
    assert (np.abs(ratio - 1) < 4.4 * spread).all(), (ratio, spread)
    assert own.kernel_variance_is_exact_


def test_bounds_of_a_base_make_bounds():
    own = hybrid((DenseExponentialRF(), RFFSampler()), shared=False).fit(X)
    assert not own.kernel_variance_is_exact_
    assert np.isfinite(own.kernel_variance(X, Y)).all()
    exact = hybrid((DenseExponentialRF(coupling="iid"), RFFSampler()), shared=False).fit(X)
    assert exact.kernel_variance_is_exact_


def test_unknown_closed_forms_are_said_to_be():
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


@pytest.mark.parametrize("sigma", [1e-6, 1.0, 1e3])
@pytest.mark.parametrize("coefficients", ["angular", "gaussian"])
def test_no_number_is_lost(coefficients, sigma):
    """Features that are exactly 0 (counts at columns of 0), rows of 0, and far ones."""
    rows = np.vstack([X, -X[:3], np.zeros((2, X.shape[1])), np.eye(X.shape[1])])
    base = (PoissonRF(), *THREE)
    own = hybrid(base, 900, coefficients=coefficients, n_coefficients=3, sigma=sigma, shared=False)
    own.fit(rows)
    values, scale = own.feature_maps_[0](rows)
    assert np.isfinite(values).all() and not np.isnan(scale).any()
    if sigma == 1:
        assert np.isneginf(scale).any()
    logs = own.kernel_variance(rows, log=True)
    assert not np.isnan(logs).any() and not np.isposinf(logs).any()
    single = own.transform(rows.astype(np.float32))
    assert single.dtype == np.float32
    assert_allclose(single, own.transform(rows), rtol=1e-4, atol=1e-4 * abs(values).max())


def test_there_is_no_error_where_every_base_that_counts_has_none():
    x = np.array([[0.6, 0.8, 0.0]])
    own = hybrid((HYPERBOLIC, RFFSampler()), shared=False, center=False).fit(x)
    logs = own.kernel_variance(np.vstack([x, -x]), log=True)
    # Equal rows meet in cosines, opposite ones in hyperbolic cosines.
    assert np.isneginf(logs).all()


# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("coefficients", ["angular", "gaussian"])
def test_gradients_through_attention_are_those_of_differences(coefficients, causal):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(2, 40, 4)) / 3 for _ in range(3)]
    own = hybrid(THREE, 2000, coefficients=coefficients, shared=False)
    attention = ApproxKernelAttention(own, causal=causal).fit(*parts[:2])
    gradient = rng.normal(size=parts[2].shape)
    tensors = [torch.tensor(part, requires_grad=True) for part in parts]
    (attention(*tensors) * torch.tensor(gradient)).sum().backward()
    for i, tensor in enumerate(tensors):
        direction = rng.normal(size=tensor.shape)
        sides = []
        for sign in (-1, 1):
            moved = list(parts)
            moved[i] = moved[i] + sign * 1e-6 * direction
            sides.append(np.sum(gradient * attention(*moved)))
        slope = np.sum(tensor.grad.numpy() * direction)
        assert_allclose(slope, (sides[1] - sides[0]) / 2e-6, rtol=1e-5)


def test_a_base_without_gradients_is_named():
    own = hybrid((PoissonRF(), RFFSampler())).fit(X)
    with pytest.raises(NotImplementedError, match="No gradients are available.*DiscreteMap"):
        own.feature_maps_[0].pull_back(X, own.transform(X))


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("given", "words"),
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
    ids=str,
)
def test_bases_that_do_not_fit_are_refused_by_name(given, words):
    own = hybrid((given, "trigonometric"))
    with pytest.raises(ValueError, match=rf"base\[0\]={type(given).__name__}.*{words}"):
        own.fit(X)
    assert not hasattr(own, "statistics_")


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


def test_no_batches_because_of_a_base():
    with pytest.raises(AttributeError, match="the law of every column's powers"):
        hybrid((DiscreteRF(), "trigonometric")).partial_fit(X)
    with pytest.raises(AttributeError, match="centres of clusters"):
        hybrid((AdaptiveRF(), "trigonometric")).partial_fit(X)


@pytest.mark.parametrize("first", ["trigonometric", "hyperbolic"])
def test_of_one_component_there_is_one_column(first):
    """It is the folded pair; 2,000 draws, 4.4 standard errors."""
    own = hybrid((first, "positive"), 1, coupling="iid", sigma=0.3).fit(X[:4])
    assert own.transform(X).shape == (len(X), 1)
    draws = np.array([own.redraw(seed).approximate_kernel(X[:4]) for seed in range(2000)])
    error = np.sqrt(own.kernel_variance(X[:4]) / 2000)
    assert (np.abs(draws.mean(axis=0) - own.exact_kernel(X[:4])) < 4.4 * error).all()


def test_parameters_of_bases_are_checked():
    own = hybrid((OptimalPositiveRF(coupling="unknown"), "trigonometric"), shared=False)
    with pytest.raises(ValueError, match="'coupling' parameter of OptimalPositiveRF"):
        own.fit(X)


def test_widths_that_do_not_fit_are_named():
    for tau in ((1.0,), (1.0, 2.0), (1.0, 0.5, 0.2), (1.0, -1.0), (1.0, "median")):
        with pytest.raises((ValueError, TypeError), match="tau"):
            hybrid(THREE, coefficients="gaussian", tau=tau).fit(X)
    widths = hybrid(THREE, coefficients="gaussian", tau=2.0).fit(X).tau_
    assert_array_equal(widths, [2.0, 1.0])
    assert_array_equal(hybrid(THREE, coefficients="gaussian", tau=(3, 1)).fit(X).tau_, [3, 1])


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("widths", [1.5, (2.0, 0.8), (3.0, 1.0, 0.5)])
def test_moments_of_gaussian_weights_are_those_of_cosines(n, widths):
    nodes, weights = hermegauss(120)
    weights = weights / weights.sum()
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(2, 4, 3)) / 2
    distances = np.linalg.norm(X[:, None] - Y[None], axis=2)
    widths_ = np.atleast_1d(widths)
    p = len(widths_)
    found = Gaussian().moments(X, Y, n, p + 1, np.array(widths) if p > 1 else widths)
    # l_0 = 1 - c_1, l_k = c_k - c_(k + 1), l_p = c_p, with means of n independent cosines.
    signs = np.eye(p + 1, p, -1) - np.eye(p + 1, p)
    for i, j in np.ndindex(distances.shape):
        cosines = np.cos(nodes[:, None] * distances[i, j] / widths_)
        means = weights @ cosines
        spread = np.diag(weights @ cosines**2 - means**2) / n
        first = np.eye(p + 1)[0] + signs @ means
        wanted = np.outer(first, first) + signs @ spread @ signs.T
        assert_allclose(found[:, :, i, j], wanted, rtol=1e-9, atol=1e-12)
