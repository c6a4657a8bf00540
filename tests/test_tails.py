"""Bounds of tails: their formulas, against draws, and where they are refused."""

import math

import numpy as np
import pytest
from instances import altered, features
from numpy.testing import assert_allclose
from scipy.special import roots_genlaguerre

from skrf import (
    AdaptiveRF,
    DenseExponentialRF,
    DiscreteRF,
    GeneralizedExponentialRF,
    HybridRF,
    OptimalPositiveRF,
    PositiveRF,
    RFFSampler,
    theory,
)

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


@pytest.mark.parametrize("coupling", BLOCKS)
def test_tails_are_below_their_bounds(coupling):
    """600 draws, 4.4 standard errors; where bounds are below 0.1, some just below it."""
    X, n_draws = rows(3, 0.4), 600
    fitted = OptimalPositiveRF(26, coupling=coupling, random_state=0, sigma=1.0).fit(X)
    draws = [fitted.redraw(seed).approximate_kernel(X) for seed in range(n_draws)]
    gaps = np.array(draws) - fitted.exact_kernel(X)
    for bound, sign, given in (
        (theory.hoeffding_bound, 1, {"side": "upper"}),
        (theory.bernstein_bound, 1, {"side": "upper"}),
        (theory.upper_tail_bound, 1, {}),
        (theory.left_tail_bound, -1, {}),
    ):
        just_below = 0
        for error in np.geomspace(gaps.std() / 2, 10.0, 40):
            values = bound(fitted, X, error=error, **given)
            share = (sign * gaps >= error).mean(axis=0)
            counts = values < 0.1
            assert (share <= values + 4.4 * np.sqrt(values / n_draws))[counts].all(), error
            just_below += (values > 0.03)[counts].sum()
        assert just_below >= 5


@pytest.mark.parametrize("kernel", ["gaussian", "softmax"])
@pytest.mark.parametrize("name", POSITIVE)
def test_upper_tails_are_those_of_exponential_moments_by_quadrature(name, kernel):
    """Of one pair: over a normal coordinate along x + y and a chi of the others."""
    d, m, error = 4, 40, 0.35
    X = rows(d, 0.6)
    fitted = POSITIVE[name](m, coupling="iid", kernel=kernel, sigma=1.0, random_state=0).fit(X)
    x, y = (X - fitted.offset_)[:1], (X - fitted.offset_)[4:5]
    v, norms2 = np.linalg.norm(x + y), np.sum(x**2 + y**2)
    if name == "optimal":
        along, weights = np.polynomial.hermite_e.hermegauss(120)
        squares, others = roots_genlaguerre(120, (d - 3) / 2)
        A, weights = fitted.A_, np.outer(weights / weights.sum(), others / others.sum())
        norm2 = along[:, None] ** 2 + 2 * squares
        logs = d / 2 * np.log(1 - 4 * A) + 2 * A * norm2
        logs = logs + np.sqrt(1 - 4 * A) * v * along[:, None] - norms2
    else:
        cosine = np.cos((np.arange(20_000) + 0.5) * np.pi / 20_000)
        weights = (1 - cosine**2) ** ((d - 2) / 2)
        weights, logs = weights / weights.sum(), np.sqrt(d) * v * cosine - norms2
    if kernel == "softmax":
        logs = logs + (np.sum(X[0] ** 2) + np.sum(X[4] ** 2)) / 2
    Z, rates = np.exp(logs), []
    for t in np.geomspace(1e-3, 60, 2000):
        with np.errstate(over="ignore"):
            rates.append(
                np.log(np.sum(weights * np.exp(t * Z))) - t * (np.sum(weights * Z) + error)
            )
    expected = np.exp(m * min(rates))
    actual = theory.upper_tail_bound(fitted, X[:1], X[4:5], error=error)
    assert 1e-12 < expected < 0.5
    assert expected * (1 - 1e-4) <= actual <= expected**0.99


def test_upper_tails_are_far_below_bernsteins():
    """K = .64 between rows at right angles in four dimensions, 64 independent projections."""
    rows_ = np.sqrt(-np.log(0.64)) * np.eye(4)[:2]
    given = {"sigma": 1.0, "coupling": "iid", "center": False, "random_state": 0}
    fitted = OptimalPositiveRF(64, **given).fit(rows_[:1], keys=rows_[1:])
    assert_allclose(fitted.exact_kernel(rows_[:1], rows_[1:]), 0.64, rtol=1e-12)
    for error, most, others in ((0.3, 2.5e-3, 2.7e-2), (0.4, 4e-5, 4.0e-3)):
        pair = {"X": rows_[:1], "Y": rows_[1:], "error": error}
        assert theory.upper_tail_bound(fitted, **pair) < most
        assert theory.bernstein_bound(fitted, side="upper", **pair) > others


def test_upper_tails_are_at_most_bernsteins():
    for d in (1, 2, 9):
        X = rows(d, 0.8)
        for name, make in POSITIVE.items():
            fitted = make(50, sigma=1.0, random_state=0).fit(X)
            for error in (1e-300, 1e-6, 0.1, 1.0, 1e3, 1e300):
                bound = theory.upper_tail_bound(fitted, X, error=error)
                others = theory.bernstein_bound(fitted, X, error=error, side="upper")
                assert (bound <= others).all() and (bound >= 0).all(), (name, error)


# ------------------------------------------------------------------ formulas


@pytest.mark.parametrize("kernel", ["gaussian", "softmax"])
def test_bounds_are_the_stated_formulas(kernel):
    xp = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    X, m = rows(4, 0.8), 50
    fitted = OptimalPositiveRF(m, kernel=kernel, coupling="iid", random_state=0, sigma=1.0).fit(X)
    A, Z = fitted.A_, X - fitted.offset_
    sum2 = ((Z[:, None] + Z) ** 2).sum(axis=2)
    variance, exact = m * fitted.kernel_variance(X), fitted.exact_kernel(X)
    largest = exact * (1 - 4 * A) ** 2 * np.exp(-sum2 / (8 * A))
    for error in (0.3, 3.0):
        bernstein = np.exp(-m * error**2 / (2 * variance + 2 * largest * error / 3))
        hoeffding = np.exp(-2 * m * error**2 / largest**2)
        left = np.exp(-m * error**2 / (2 * (variance + exact**2)))
        for bound, given, expected in (
            (theory.bernstein_bound, {"side": "two"}, 2 * bernstein),
            (theory.bernstein_bound, {"side": "upper"}, bernstein),
            (theory.hoeffding_bound, {"side": "two"}, 2 * hoeffding),
            (theory.hoeffding_bound, {"side": "upper"}, hoeffding),
            (theory.left_tail_bound, {}, left),
            (theory.chebyshev_bound, {}, variance / (m * error**2)),
        ):
            result = bound(fitted, X, error=error, **given)
            assert_allclose(result, np.minimum(expected, 1), rtol=1e-9)
            result = bound(fitted, xp.asarray(X), error=error, **given)
            assert type(result) is np.ndarray
            assert_allclose(result, np.minimum(expected, 1), rtol=1e-9)


BOUNDED = {
    "a pair": RFFSampler(2),
    "a column": RFFSampler(1),
    "softmax": RFFSampler(4, kernel="softmax"),
    "optimal softmax": OptimalPositiveRF(1, kernel="softmax"),
    "real generalized": GeneralizedExponentialRF(4, sigma=3.0),
}
# Parameters that no fit to these data finds: A, s, columns.
GENERALIZED = [(-0.1 + 0.2j, 1, 8), (-0.1 + 0.2j, -1, 1), (-0.3 + 0j, -1, 2), (0j, -1, 1)]


@pytest.mark.parametrize("which", [*BOUNDED, *GENERALIZED])
def test_terms_stay_inside_their_range(which):
    """Those of 5,000 projections."""
    X = np.random.default_rng(0).normal(size=(60, 4)) / 2
    Z, params, n_terms = X[:5], {"coupling": "iid", "random_state": 0}, 5000
    if which in BOUNDED:
        fitted = BOUNDED[which].set_params(**params).fit(X)
    else:
        A, s, n = which
        fitted = GeneralizedExponentialRF(n, **params, sigma=1.0).fit(X)
        fitted = altered(fitted, A_=A, s_=s, n_projections=max(n // 2, 1))
    term_range = np.exp(fitted._of_pairs(Z, None, "_log_term_range", False))
    many = altered(fitted, n_projections=n_terms)
    queries, keys = (f(Z).reshape(5, -1, n_terms) for f in (many.transform, many.transform_keys))
    values = n_terms * np.einsum("icj,kcj->jik", queries, keys)
    assert_allclose(values.mean(axis=0), many.approximate_kernel(Z))
    ranges = np.ptp(values, axis=0)
    assert (ranges <= term_range * (1 + 1e-9)).all()
    # Ranges are no larger than they have to be: 2 cos(a) cos(b) is between -2 and 2.
    expected = {"a pair": 2.0, "a column": 4.0}.get(which)
    if expected:
        assert_allclose(term_range, expected, rtol=1e-12)
        assert ranges.max() > 0.95 * expected


@pytest.mark.parametrize("name, kernel", [("optimal", "softmax"), ("regularised", "gaussian")])
def test_a_term_is_that_of_independent_projections(name, kernel):
    X = rows(4, 0.8)
    single = POSITIVE[name](1, kernel=kernel, coupling="iid", random_state=0).fit(X)
    ranges = single._of_pairs(X, None, "_log_term_range", False)
    for coupling in BLOCKS:
        fitted = POSITIVE[name](11, kernel=kernel, coupling=coupling, random_state=0).fit(X)
        variance = np.exp(fitted._of_pairs(X, None, "_log_term_variance"))
        assert_allclose(variance, single.kernel_variance(X), rtol=1e-9)
        result = fitted._of_pairs(X, None, "_log_term_range", True)
        assert_allclose(result, ranges, rtol=1e-9)


@pytest.mark.parametrize(
    "mechanism",
    [
        *(OptimalPositiveRF(7, coupling=coupling) for coupling in BLOCKS),
        PositiveRF(60, variant="hyperbolic"),
        PositiveRF(40, coupling="simplex", kernel="softmax"),
        DenseExponentialRF(40),
        GeneralizedExponentialRF(30, kernel="softmax"),
        DiscreteRF(200, positive=True),
    ],
    ids=repr,
)
def test_left_tails_are_those_of_the_second_moments_of_blocks(mechanism):
    X = rows(3, 0.5)
    fitted = mechanism.set_params(random_state=0).fit(X)
    if isinstance(mechanism, GeneralizedExponentialRF):
        fitted = altered(fitted, A_=-0.05 + 0j, s_=1, n_projections=30)
    m = fitted._n_projections
    blocks = np.ones(m)
    if getattr(mechanism, "coupling", "iid") != "iid":
        blocks = np.bincount(np.arange(m) // 3)  # of three projections, the last one cut
    second = fitted.kernel_variance(X) + fitted.exact_kernel(X) ** 2 * np.sum((blocks / m) ** 2)
    for error in (0.1, 0.5, 2.0):
        expected = np.exp(-(error**2) / (2 * second))
        assert_allclose(theory.left_tail_bound(fitted, X, error=error), expected, rtol=1e-9)


def test_the_range_of_regularised_features_is_what_they_reach():
    X = rows(3, 0.9)
    fitted = PositiveRF(2000, variant="regularized", coupling="iid", random_state=0, sigma=1.0).fit(
        X
    )
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
    fitted = OptimalPositiveRF(8, coupling="iid", random_state=0, sigma=1.0).fit(sphere(4))
    count = theory.n_components_uniform(fitted, error=0.1, radius=1.0)
    assert 4e7 < count < 6e7
    of_count = altered(fitted, draw={}, n_projections=int(count))
    assert_allclose(theory.uniform_bound(of_count, error=0.1, radius=1.0), 0.05, rtol=1e-3)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_the_uniform_bound_is_the_least_of_the_stated_formula(d):
    R, error = 0.5, 0.2
    fitted = OptimalPositiveRF(8, coupling="iid", random_state=0, sigma=1.0).fit(sphere(d, R))
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
        of_size = altered(fitted, draw={}, n_projections=m)
        assert_allclose(theory.uniform_bound(of_size, error=error, radius=R), expected, rtol=1e-4)


@pytest.mark.parametrize("d", [1, 3])
def test_the_uniform_bound_of_sines_is_the_least_of_the_stated_formula(d):
    R, error = 0.7, 0.3
    fitted = RFFSampler(2, coupling="iid", random_state=0, sigma=1.0).fit(sphere(d, R))
    for m in (10**3, 10**4):
        c = np.geomspace(1e-30, 10, 100_001)
        net = 2 * (1 + 4 * R / c) ** d * math.exp(-m * error**2 / 8)
        slope = (2 * c / error) ** 2 * (math.sqrt(d) + math.exp(-0.5)) ** 2
        of_size = altered(fitted, draw={}, n_projections=m)
        actual = theory.uniform_bound(of_size, error=error, radius=R)
        assert_allclose(actual, min((net + slope).min(), 1), rtol=1e-4)


def test_numbers_of_components_of_sines_are_enough():
    for kernel in ("gaussian", "softmax"):
        fitted = RFFSampler(8, coupling="iid", kernel=kernel, sigma=1.0, random_state=0)
        given = {"error": 0.3, "radius": 0.5}
        count = theory.n_components_uniform(fitted.fit(sphere(2)), **given)
        enough = fitted.set_params(n_components=count).fit(sphere(2))
        assert_allclose(theory.uniform_bound(enough, **given), 0.05, rtol=0.02)


def test_no_draw_of_sines_exceeds_the_uniform_bound():
    """All differences within a ball, on a grid, where the bound is below one in twenty."""
    R, error, grid = 0.5, 0.5, np.linspace(-1, 1, 201)[:, None]
    fitted = RFFSampler(2 * 1000, coupling="iid", random_state=0, sigma=1.0).fit(sphere(1, R))
    bound = theory.uniform_bound(fitted, error=error, radius=R)
    assert bound < 0.05
    gaps = [
        np.abs(
            fitted.redraw(seed).approximate_kernel(grid, np.zeros((1, 1)))
            - fitted.exact_kernel(grid, np.zeros((1, 1)))
        ).max()
        for seed in range(200)
    ]
    assert np.mean(np.array(gaps) >= error) <= bound
    # The Lipschitz constant of the error is what the second term says it is.
    slopes = []
    for seed in range(200):
        values = fitted.redraw(seed).approximate_kernel(grid, np.zeros((1, 1)))
        errors = values - fitted.exact_kernel(grid, np.zeros((1, 1)))
        slopes.append(np.abs(np.diff(errors[:, 0]) / np.diff(grid[:, 0])).max())
    assert np.mean(np.square(slopes)) <= (1 + math.exp(-0.5)) ** 2


@pytest.mark.parametrize(
    ("make", "n_components"), [(RFFSampler, 3000), (OptimalPositiveRF, 100_000)]
)
def test_uniform_bounds_of_softmax_are_those_of_the_gaussian_kernel_at_a_smaller_error(
    make, n_components
):
    R, X = 0.4, sphere(2, 0.4) + 0.1
    soft, gaussian = (
        make(n_components, coupling="iid", kernel=kernel, sigma=1.0, random_state=0).fit(X)
        for kernel in ("softmax", "gaussian")
    )
    far = np.linalg.norm(getattr(soft, "offset_", 0.0))
    error = 0.6
    expected = theory.uniform_bound(gaussian, error=error * math.exp(-((R + far) ** 2)), radius=R)
    assert_allclose(theory.uniform_bound(soft, error=error, radius=R), expected)
    assert 0 < expected < 1


# ------------------------------------------------------------------ what is refused


def fit(mechanism, X=None):
    return mechanism.set_params(random_state=0).fit(rows(3, 0.5) if X is None else X)


@pytest.mark.parametrize("bound", [theory.hoeffding_bound, theory.bernstein_bound])
def test_bounds_need_bounded_independent_terms(bound):
    X, wide = rows(3, 0.5), np.random.default_rng(0).normal(size=(9, 40)) / 9
    for mechanism in (
        RFFSampler(8),
        PositiveRF(8),
        GeneralizedExponentialRF(8, coupling="iid", sigma=0.2),  # A > 0
        OptimalPositiveRF(8, coupling="sobol"),
        HybridRF(40),
        DiscreteRF(8, positive=True),
    ):
        with pytest.raises(ValueError, match="(?s)hoeffding_bound and bernst.*RFFSampler; Op"):
            bound(fit(mechanism), X, error=0.1, side="upper")
    with pytest.raises(ValueError, match="need bounded, independent terms"):
        bound(fit(OptimalPositiveRF(8)), X, error=0.1)
    with pytest.raises(ValueError, match="side must be 'two' or 'upper', got"):
        bound(fit(RFFSampler(8, coupling="iid")), X, error=0.1, side="left")
    hadamard = fit(OptimalPositiveRF(8, projection="hadamard"), wide)
    with pytest.raises(ValueError, match="projection='dense'"):
        bound(hadamard, wide, error=0.1, side="upper")


def test_left_tails_need_positive_features_of_a_known_coupling():
    X = rows(3, 0.5)
    for mechanism in (RFFSampler(8), AdaptiveRF(8), DiscreteRF(8), HybridRF(40)):
        with pytest.raises(ValueError, match="left_tail_bound needs features that are never neg"):
            theory.left_tail_bound(fit(mechanism), X, error=0.1)
        with pytest.raises(ValueError, match="upper_tail_bound needs bounded positive terms"):
            theory.upper_tail_bound(fit(mechanism), X, error=0.1)
    for coupling in ("sobol", "norm-coupled", "simplex+"):
        with pytest.raises(NotImplementedError, match="No closed form or bound is known for Opt"):
            theory.left_tail_bound(fit(OptimalPositiveRF(8, coupling=coupling)), X, error=0.1)
    wide = np.random.default_rng(0).normal(size=(9, 40)) / 9
    with pytest.raises(NotImplementedError, match="projection='dense'"):
        theory.left_tail_bound(
            fit(OptimalPositiveRF(8, projection="hadamard"), wide), wide, error=0.1
        )


@pytest.mark.parametrize(
    "bound", [theory.hoeffding_bound, theory.bernstein_bound, theory.chebyshev_bound]
)
def test_errors_of_bounds_are_positive_numbers(bound):
    X = rows(3, 0.5)
    fitted = fit(RFFSampler(coupling="iid", sigma=1.0))
    for wrong in (None, 1j, [0.1], True):
        with pytest.raises(TypeError, match="error must be a finite number > 0"):
            bound(fitted, X, error=wrong)
    for wrong in (0, np.nan, np.inf, 10**400):
        with pytest.raises(ValueError, match="error must be a finite number > 0"):
            bound(fitted, X, error=wrong)
    with pytest.raises(TypeError, match="feature_map must be an instance of a feature map"):
        bound(RFFSampler, X, error=0.1)


@pytest.mark.parametrize("function", [theory.uniform_bound, theory.n_components_uniform])
def test_uniform_bounds_are_refused_where_they_do_not_hold(function):
    good = fit(OptimalPositiveRF(8, coupling="iid"), sphere(2))
    given = {"error": 0.1, "radius": 1.0}
    for mechanism in (
        PositiveRF(8, coupling="iid"),
        RFFSampler(1, coupling="iid"),
        DiscreteRF(8, positive=True),
    ):
        with pytest.raises(ValueError, match="uniform_bound needs a fitted OptimalPositiveRF"):
            function(fit(mechanism, sphere(2)), **given)
    for mechanism in (OptimalPositiveRF(8), RFFSampler(8)):
        with pytest.raises(ValueError, match="need bounded, independent terms"):
            function(fit(mechanism, sphere(2)), **given)
    for name in given:
        for wrong in (0, math.nan):
            with pytest.raises(ValueError, match=f"{name} must be a finite number > 0"):
                function(good, **{**given, name: wrong})
    with pytest.raises(ValueError, match="probability must be below 1, got 1"):
        theory.n_components_uniform(good, **given, probability=1.0)


@pytest.mark.filterwarnings("error")
def test_uniform_bounds_of_extreme_numbers():
    fitted = OptimalPositiveRF(40, coupling="iid", random_state=0, sigma=1.0).fit(rows(3, 1.0))
    for error, radius in ((1e-200, 1.0), (0.1, 1e100)):
        assert theory.uniform_bound(fitted, error=error, radius=radius) == 1
        with pytest.raises(ValueError, match="error=.* too small at radius="):
            theory.n_components_uniform(fitted, error=error, radius=radius)
    assert theory.uniform_bound(fitted, error=1e200, radius=1e-200) == 0
    assert theory.n_components_uniform(fitted, error=1e200, radius=1e-200) == 1
