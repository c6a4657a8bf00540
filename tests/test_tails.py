"""Bounds of tails against draws, their formulas, and where they are refused.

Bounds are tested where they are below 0.1, at errors so close together that places just below it
are among them (asserted). From 0.02 on the share of draws that violate them has to be below them as
it is: they have a factor of 3 and more to spare, and the standard error is at most 0.018. Below
that 4.4 standard errors are allowed.
"""

import math

import numpy as np
import pytest
from instances import altered, features, make
from numpy.testing import assert_allclose

from skrf import (
    AdaptiveRF,
    DenseExponentialRF,
    DiscreteRF,
    GeneralizedExponentialRF,
    HybridRF,
    OptimalPositiveRF,
    PoissonRF,
    PositiveRF,
    RFFSampler,
    theory,
)

N_DRAWS = 300
BLOCKS = ("iid", "orthogonal", "simplex")
POSITIVE = {
    "optimal": OptimalPositiveRF,
    "regularised": lambda *args, **params: PositiveRF(*args, variant="regularized", **params),
}


def rows(d, length):
    """Return six rows about 0 of lengths up to some number."""
    directions = np.random.default_rng(d).normal(size=(6, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    directions[1] = directions[0]
    directions[2] = -directions[0]
    return length * directions * np.array([1, 1, 1, 0.7, 0.4, 1])[:, None]


def lower_kernel(fitted, X):
    """Return the mean of the estimate, which is the kernel but for regularised features."""
    if fitted.is_unbiased:
        return fitted.exact_kernel(X)
    return fitted.exact_kernel(X) * np.exp(_log_lower(fitted, X))


def _log_lower(fitted, X):
    from mpmath import hyp0f1, log

    Z = X - fitted.offset_
    d, sum2 = X.shape[1], ((Z[:, None] + Z) ** 2).sum(axis=2)
    return np.vectorize(lambda s: float(log(hyp0f1(d / 2, d * s / 4)) - s / 2))(sum2)


def assert_tails_are_below(fitted, X, bounds):
    """Assert it for functions of an error, each with 1, -1 or 0 for the side that it is of."""
    mean = lower_kernel(fitted, X)
    gaps = np.array([fitted.redraw(seed).approximate_kernel(X) for seed in range(N_DRAWS)]) - mean
    spread = gaps.std()
    for bound, side in bounds:
        own = {1: gaps, -1: -gaps, 0: np.abs(gaps)}[side]
        just_below = 0
        for error in np.geomspace(spread / 2, 10.0, 40):
            values = bound(error)
            share = (own >= error).mean(axis=0)
            counts = values < 0.1
            slack = np.where(values < 0.02, 4.4 * np.sqrt(values / N_DRAWS), 0.0)
            assert (share <= values + slack)[counts].all(), (bound, error)
            just_below += (values > 0.03)[counts].sum()
        assert just_below >= 5


@pytest.mark.parametrize("coupling", BLOCKS)
@pytest.mark.parametrize("name", POSITIVE)
@pytest.mark.parametrize("d, m, length", [(3, 26, 0.4), (8, 52, 0.3), (64, 400, 0.1)])
def test_tails_of_positive_features(d, m, length, name, coupling):
    X = rows(d, length)
    fitted = POSITIVE[name](m, coupling=coupling, random_state=0).fit(X)
    if name == "optimal" and d == 64:  # the parameter of least variance has the range e^66
        fitted = altered(fitted, A_=-0.005, rho_=1 / 1.04)
    bounds = [
        (lambda error: theory.hoeffding_bound(fitted, X, error=error, side="upper"), 1),
        (lambda error: theory.bernstein_bound(fitted, X, error=error, side="upper"), 1),
        (lambda error: theory.left_tail_bound(fitted, X, error=error), -1),
    ]
    if coupling == "iid":
        bounds += [
            (lambda error: theory.hoeffding_bound(fitted, X, error=error), 0),
            (lambda error: theory.bernstein_bound(fitted, X, error=error), 0),
        ]
    assert_tails_are_below(fitted, X, bounds)


@pytest.mark.parametrize("m", [1, 2, 40])
def test_tails_of_sines_and_cosines(m):
    X = rows(3, 1.5)
    fitted = RFFSampler(m, coupling="iid", random_state=0).fit(X)
    bounds = (theory.hoeffding_bound, theory.bernstein_bound)
    both = [(lambda error, own=own: own(fitted, X, error=error), 0) for own in bounds]
    upper = [
        (lambda error, own=own: own(fitted, X, error=error, side="upper"), 1) for own in bounds
    ]
    assert_tails_are_below(fitted, X, both + upper)


@pytest.mark.parametrize(
    "mechanism",
    [
        PositiveRF(60, variant="hyperbolic"),
        PositiveRF(40, coupling="simplex"),
        DenseExponentialRF(40),
        GeneralizedExponentialRF(30, kernel="softmax"),
        PoissonRF(200, positive=True),
        DiscreteRF(200, positive=True),
    ],
    ids=repr,
)
def test_left_tails_of_features_without_bounds(mechanism):
    X = rows(3, 0.5)
    fitted = mechanism.set_params(random_state=0).fit(X)
    if isinstance(mechanism, GeneralizedExponentialRF):
        fitted = altered(fitted, A_=-0.05 + 0j, s_=1, n_projections=30)
    assert_tails_are_below(
        fitted, X, [(lambda error: theory.left_tail_bound(fitted, X, error=error), -1)]
    )


# ------------------------------------------------------------------ formulas


@pytest.mark.parametrize("kernel", ["gaussian", "softmax"])
def test_bernstein_and_left_tail_are_the_stated_formulas(kernel):
    X = rows(4, 0.8)
    fitted = OptimalPositiveRF(50, kernel=kernel, coupling="iid", random_state=0).fit(X)
    variance, largest = (
        50 * fitted.kernel_variance(X),
        np.exp(fitted._of_pairs(X, None, "_log_term_range", False)),
    )
    for sides, side in ((2, "two"), (1, "upper")):
        expected = sides * np.exp(-50 * 0.3**2 / (2 * variance + 2 * largest * 0.3 / 3))
        found = theory.bernstein_bound(fitted, X, error=0.3, side=side)
        assert_allclose(found, np.minimum(expected, 1), rtol=1e-9)
    second = variance + fitted.exact_kernel(X) ** 2
    expected = np.exp(-50 * 0.3**2 / (2 * second))
    assert_allclose(theory.left_tail_bound(fitted, X, error=0.3), expected, rtol=1e-9)


@pytest.mark.parametrize("kernel", ["gaussian", "softmax"])
@pytest.mark.parametrize("name", POSITIVE)
def test_a_term_is_that_of_independent_projections(name, kernel):
    X = rows(4, 0.8)
    single = POSITIVE[name](1, kernel=kernel, coupling="iid", random_state=0).fit(X)
    for coupling in BLOCKS:
        fitted = POSITIVE[name](11, kernel=kernel, coupling=coupling, random_state=0).fit(X)
        variance = np.exp(fitted._of_pairs(X, None, "_log_term_variance"))
        assert_allclose(variance, single.kernel_variance(X), rtol=1e-9)
        assert_allclose(
            fitted._of_pairs(X, None, "_log_term_range", True),
            single._of_pairs(X, None, "_log_term_range", False),
            rtol=1e-9,
        )


@pytest.mark.parametrize("coupling", BLOCKS)
def test_second_moments_of_blocks(coupling):
    """7 projections in 3 columns: two blocks and a cut one; 600 draws, within 4.4 errors."""
    X = rows(3, 0.3)
    fitted = OptimalPositiveRF(7, coupling=coupling, random_state=0).fit(X)
    starts = np.arange(7) if coupling == "iid" else np.array([0, 3, 6])
    values = []
    for seed in range(600):
        F = features(fitted.redraw(seed), X)
        parts = np.add.reduceat(F[:, None, :] * F, starts, axis=2)
        values.append((parts**2).sum(axis=2))
    error = np.std(values, axis=0) / math.sqrt(600)
    expected = np.exp(fitted._of_pairs(X, None, "_log_block_moment"))
    assert (error < 0.04 * expected).all()
    assert (np.abs(np.mean(values, axis=0) - expected) < 4.4 * error).all()


def test_the_range_of_regularised_features_is_what_they_reach():
    X = rows(3, 0.9)
    fitted = PositiveRF(2000, variant="regularized", coupling="iid", random_state=0).fit(X)
    F = 2000 * features(fitted, X)[:, None, :] * features(fitted, X)
    ranges = np.exp(fitted._of_pairs(X, None, "_log_term_range", False))
    assert (np.ptp(F, axis=2) <= ranges * (1 + 1e-9) + 1e-12).all()
    assert (np.ptp(F, axis=2) / np.maximum(ranges, 1e-300)).max() > 0.99


# ------------------------------------------------------------------ uniform convergence


def sphere(d, R=1.0):
    """Return data whose fit is that of rows of length R in all directions."""
    return R * np.concatenate([np.eye(d), -np.eye(d)])


def test_uniform_convergence_takes_fifty_million_columns():
    """The statement for d = 4, R = 1 and an error of 0.1."""
    fitted = OptimalPositiveRF(8, coupling="iid", random_state=0).fit(sphere(4))
    given = {"error": 0.1, "radius": 1.0}
    count = theory.n_components_uniform(fitted, **given)
    assert 4e7 < count < 6e7
    assert count > 5000 * theory.n_components_for(fitted, sphere(4), rel_error=0.1)

    def bound(n):
        return theory.uniform_bound(altered(fitted, draw={}, n_projections=n), **given)

    assert_allclose(bound(int(count)), 0.05, rtol=1e-3)
    assert bound(int(0.9 * count)) > 0.2


@pytest.mark.parametrize("d", [1, 2, 4])
def test_the_uniform_bound_is_the_least_of_the_stated_formula(d):
    R, error = 0.5, 0.2
    fitted = OptimalPositiveRF(8, coupling="iid", random_state=0).fit(sphere(d, R))
    A = fitted.A_
    b = (1 - 4 * A) ** (d / 2) * math.exp(-(R**2) / (2 * A))
    edge = R * np.eye(d)[:1]
    ranges = np.exp(fitted._of_pairs(edge, None, "_log_term_range", False))
    assert_allclose(ranges, b, rtol=1e-9)
    for m in (10**3, 10**4, 10**5):
        c = np.geomspace(1e-100, 10, 100_001)
        with np.errstate(over="ignore"):
            net = 2 * (1 + 2 * math.sqrt(2) * R / c) ** (2 * d)
        slope = (2 * c / error) ** 2 * 16 * b**2 * ((1 - 4 * A) * d + 4 * R**2)
        expected = min((net * math.exp(-m * error**2 / (2 * b**2)) + slope).min(), 1)
        own = altered(fitted, draw={}, n_projections=m)
        assert_allclose(theory.uniform_bound(own, error=error, radius=R), expected, rtol=1e-4)


def test_no_pair_of_a_ball_is_off_where_the_uniform_bound_is_small():
    """On a grid over the interval, in 150 draws of 4,000 columns."""
    X = np.linspace(-0.25, 0.25, 21)[:, None]
    fitted = OptimalPositiveRF(4000, coupling="iid", random_state=0).fit(sphere(1, 0.25))
    exact = fitted.exact_kernel(X)
    largest = [abs(fitted.redraw(seed).approximate_kernel(X) - exact).max() for seed in range(150)]
    for error in np.geomspace(0.01, 1.0, 30):
        bound = theory.uniform_bound(fitted, error=error, radius=0.25)
        if bound < 0.1:
            assert np.mean(np.array(largest) >= error) <= bound
    assert theory.uniform_bound(fitted, error=1.0, radius=0.25) < 0.1


def test_the_slope_of_features_is_below_its_share_of_the_uniform_bound():
    """E sup |gradient|^2 <= 4 b^2 ((1 - 4A) d + 4 R^2) for the product of one projection."""
    d, R = 2, 0.7
    fitted = OptimalPositiveRF(2000, coupling="iid", random_state=0).fit(sphere(d, R))
    A, rng = fitted.A_, np.random.default_rng(0)
    b = (1 - 4 * A) ** (d / 2) * math.exp(-(R**2) / (2 * A))
    angles = rng.uniform(0, 2 * math.pi, (2, 200))
    x, y = (R * np.stack([np.cos(a), np.sin(a)], axis=1) for a in angles)
    omega = fitted.omega_
    products = 2000 * features(fitted, x) * features(fitted, y)
    B = math.sqrt(1 - 4 * A)
    gradients = [np.sum((B * omega[None] - 2 * side[:, None]) ** 2, axis=2) for side in (x, y)]
    sup2 = (products**2 * sum(gradients)).max(axis=0)
    assert sup2.mean() < 4 * b**2 * ((1 - 4 * A) * d + 4 * R**2)


# ------------------------------------------------------------------ what is refused


def test_bounds_are_refused_where_they_do_not_hold():
    X = rows(3, 0.5)

    def fit(mechanism):
        return mechanism.set_params(random_state=0).fit(X)

    for bound in (theory.hoeffding_bound, theory.bernstein_bound):
        for mechanism in (
            RFFSampler(8),
            RFFSampler(8, coupling="simplex"),
            PositiveRF(8),
            OptimalPositiveRF(8, coupling="sobol"),
            OptimalPositiveRF(8, coupling="norm-coupled"),
            OptimalPositiveRF(8, coupling="simplex+"),
            DenseExponentialRF(8),
            AdaptiveRF(8),
            HybridRF(40),
            DiscreteRF(8, positive=True),
        ):
            with pytest.raises(ValueError, match="bernstein_bound need bounded.*RFFSampler"):
                bound(fit(mechanism), X, error=0.1, side="upper")
        with pytest.raises(ValueError, match="need bounded, independent terms"):
            bound(fit(OptimalPositiveRF(8)), X, error=0.1)
        for side in ("left", None, 1):
            with pytest.raises(ValueError, match="side must be 'two' or 'upper', got"):
                bound(fit(RFFSampler(8, coupling="iid")), X, error=0.1, side=side)
    wide = np.random.default_rng(0).normal(size=(9, 40)) / 9
    structured = OptimalPositiveRF(8, projection="hadamard", random_state=0).fit(wide)
    with pytest.raises(ValueError, match="projection='dense'"):
        theory.hoeffding_bound(structured, wide, error=0.1, side="upper")
    with pytest.raises(NotImplementedError, match="projection='dense'"):
        theory.left_tail_bound(structured, wide, error=0.1)
    for mechanism in (RFFSampler(8), AdaptiveRF(8), DiscreteRF(8), HybridRF(40)):
        with pytest.raises(ValueError, match="left_tail_bound needs features that are never neg"):
            theory.left_tail_bound(fit(mechanism), X, error=0.1)
    for coupling in ("sobol", "norm-coupled", "simplex+"):
        with pytest.raises(NotImplementedError, match="No closed form is known for coupling"):
            theory.left_tail_bound(fit(OptimalPositiveRF(8, coupling=coupling)), X, error=0.1)


def test_uniform_bounds_are_refused_where_they_do_not_hold():
    good = OptimalPositiveRF(8, coupling="iid", random_state=0).fit(sphere(2))
    given = {"error": 0.1, "radius": 1.0}
    for function in (theory.uniform_bound, theory.n_components_uniform):
        for mechanism in (
            PositiveRF(8, coupling="iid"),
            PositiveRF(8, coupling="iid", variant="regularized"),
            RFFSampler(8, coupling="iid"),
            OptimalPositiveRF(8, coupling="iid", kernel="softmax"),
        ):
            with pytest.raises(ValueError, match="uniform_bound needs a fitted OptimalPositiveRF"):
                function(mechanism.set_params(random_state=0).fit(sphere(2)), **given)
        with pytest.raises(ValueError, match="need bounded, independent terms"):
            function(make("OptimalPositiveRF", random_state=0).fit(sphere(2)), **given)
        for name in given:
            for wrong in (0, -1.0, math.nan):
                with pytest.raises(ValueError, match=f"{name} must be a finite number > 0"):
                    function(good, **{**given, name: wrong})
    with pytest.raises(ValueError, match="probability must be below 1, got 1"):
        theory.n_components_uniform(good, **given, probability=1.0)


@pytest.mark.parametrize("library", ["torch", "array_api_strict"])
@pytest.mark.filterwarnings("error")
def test_bounds_of_rows_of_other_libraries_are_arrays_of_numpy(library):
    xp = pytest.importorskip(library, reason=f"{library} is not installed")
    Z = rows(3, 1.0)
    own = OptimalPositiveRF(40, coupling="iid", random_state=0).fit(Z)
    for bound in (
        theory.chebyshev_bound,
        theory.hoeffding_bound,
        theory.bernstein_bound,
        theory.left_tail_bound,
    ):
        found = bound(own, xp.asarray(Z), error=0.5)
        assert type(found) is np.ndarray
        assert_allclose(found, bound(own, Z, error=0.5), rtol=1e-12)


@pytest.mark.filterwarnings("error")
def test_uniform_bounds_of_extreme_numbers():
    own = OptimalPositiveRF(40, coupling="iid", random_state=0).fit(rows(3, 1.0))
    for error, radius in ((1e-200, 1.0), (0.1, 1e100)):
        assert theory.uniform_bound(own, error=error, radius=radius) == 1
        with pytest.raises(ValueError, match="error=.* too small at radius="):
            theory.n_components_uniform(own, error=error, radius=radius)
    assert theory.uniform_bound(own, error=1e200, radius=1e-200) == 0
    assert theory.n_components_uniform(own, error=1e200, radius=1e-200) == 1
