"""Pair terms and mean squared errors equal independent references; nothing here is random.

The reference of pair terms is, in many digits, the mean over the angle of 1F1 (a closed form at
right angles).
"""

import math
import tracemalloc
from functools import cache

import mpmath as mp
import numpy as np
import pytest
from mpmath.calculus.quadrature import GaussLegendre
from numpy.polynomial.legendre import leggauss
from numpy.testing import assert_allclose
from scipy.special import eval_genlaguerre

from skrf import PositiveRF, variances
from skrf.features.exponential import Exponential
from skrf.features.positive import Hyperbolic, Regularized
from skrf.features.trigonometric import SineCosine
from skrf.projections import COUPLINGS
from skrf.variances import cosine_pair, exponential_pair

DIGITS = 60
COSINES = {
    "right angle": lambda d: 0.0,
    "simplex": lambda d: -1 / (d - 1),
}
SQUARES = [1e-8, 0.3, 2.0, 3.9, 4.1, 30.0, 100.0, 500.0]


@cache
def nodes():
    """Return the 96 nodes and weights of Gauss and Legendre on (-1, 1)."""
    with mp.workdps(DIGITS):
        return GaussLegendre(mp.mp).calc_nodes(6, mp.mp.prec)


@cache
def sines(d):
    """Return the nodes sin a of `mean_sine` and their weights."""
    with mp.workdps(DIGITS):
        values = [(mp.sin(mp.pi * (1 + x) / 4), w) for x, w in nodes()]
        unit = mp.pi / 2 / mp.beta(mp.mpf(d) / 2, mp.mpf(1) / 2)
        return [(s, w * s ** (d - 1) * unit) for s, w in values]


def mean_sine(f, d):
    """Return the mean of f(sin a), a of density proportional to sin(a)^(d - 1) on (0, pi)."""
    return sum(w * f(s) for s, w in sines(d))


@cache
def c(v2, d, t):
    """Return c_t(v^2) = E exp((omega_i + omega_j).z), |z| = v, by the mean over the angle."""
    with mp.workdps(DIGITS):
        t, v2 = mp.mpf(t), mp.mpf(v2)

        def at(s):
            z = v2 * (1 + t * s) / 2
            return mp.hyp1f1(d, mp.mpf(d) / 2, z, zeroprec=500, maxterms=10**6)

        return at(0) if t == 0 else mean_sine(at, d)


def exponential_reference(v2, d, t):
    with mp.workdps(DIGITS):
        return c(v2, d, t) * mp.exp(-mp.mpf(v2)) - 1


def hyperbolic_reference(v2, d, t):
    with mp.workdps(DIGITS):
        return (c(v2, d, t) + c(v2, d, -t)) / 2 * mp.exp(-mp.mpf(v2)) - 1


def trigonometric_reference(delta2, d, t):
    with mp.workdps(DIGITS):
        return (c(-delta2, d, t) + c(-delta2, d, -t)) / 2 - mp.exp(-mp.mpf(delta2))


def geometry(d, sum2, difference2):
    sum2, difference2 = np.broadcast_arrays(
        np.atleast_2d(np.asarray(sum2, dtype=float)), np.asarray(difference2, dtype=float)
    )
    return variances.PairGeometry(d, (sum2 + difference2) / 2, sum2, difference2)


def log_mse(nonlinearity, geometry, coupling, m):
    coupling, d = COUPLINGS[coupling], geometry.n_features
    blocks = coupling.blocks(m, d)
    cosine = coupling.pair_cosine
    return variances.log_mean_squared_error(nonlinearity, geometry, m, blocks, cosine)[0]


# ------------------------------------------------------------------- pair terms


def assert_pairs(values, reference, d, t, slack):
    for square, value in zip(SQUARES, values, strict=True):
        expected = reference(square, d, t)
        assert abs(value - expected) <= 1e-12 * abs(expected) + slack(square), (square, value)


@pytest.mark.parametrize("d", [2, 3, 8, 63, 64])
def test_the_reference_has_converged(d):
    """Means of powers, also of ones as high as matter to the largest pairs, in closed form."""
    with mp.workdps(DIGITS):
        for power in (0, 1, 2, 7, 300):
            expected = mp.beta(mp.mpf(d + power) / 2, mp.mpf(1) / 2)
            expected /= mp.beta(mp.mpf(d) / 2, mp.mpf(1) / 2)
            assert abs(mean_sine(lambda s, k=power: s**k, d) / expected - 1) < 1e-35


# In two dimensions the rows of a simplex are opposite.
@pytest.mark.parametrize("cosine", COSINES)
@pytest.mark.parametrize("d", [2, 3, 64])
def test_pair_terms(d, cosine):
    t, squares = COSINES[cosine](d), np.array(SQUARES)

    # Against an own term of e^v2 the pair term needs no digits beyond this.
    def of_exponentials(v2, largest=60):
        return 1e-17 * math.exp(v2) if v2 > largest else 0.0

    assert_pairs(exponential_pair(squares, d, t), exponential_reference, d, t, of_exponentials)
    values = cosine_pair(squares, d, t)
    assert_pairs(values, trigonometric_reference, d, t, lambda z: 0.0 if z <= 4 else 1e-14)
    if cosine == "simplex":  # hyperbolic features also have pairs of the opposite cosine
        values = exponential_pair(squares, d, -t)
        assert_pairs(
            values, exponential_reference, d, -t, lambda v2: of_exponentials(v2, largest=60 + d)
        )


@pytest.mark.parametrize("d", [2, 3, 4, 64])
def test_pairs_far_apart_have_no_cosine(d):
    """SciPy gives NaN at 1e30, and does not come back from 1e13."""
    for cosine in (0.0, -0.3):
        for delta2 in (1e30, 1e300, 1e13):
            assert abs(cosine_pair(np.array([delta2]), d, cosine)[0]) < 1e-14


@pytest.mark.parametrize("d", [3, 64])
def test_interpolated_mean_cosine_equals_the_direct_one(d):
    t = -1 / (d - 1)
    delta2 = np.linspace(4.0, 400.0, 1001)
    direct = np.concatenate([cosine_pair(delta2[i : i + 1], d, t) for i in range(0, 1001, 20)])
    assert_allclose(cosine_pair(delta2, d, t)[::20], direct, rtol=0, atol=1e-13)


# ------------------------------------------------------------------- mean squared errors


def reference_log_mse(nonlinearity, d, v2, delta2, m, blocks, cosine):
    """Return log MSE by the formulas of the definitions, in many digits."""
    with mp.workdps(DIGITS):
        v2, delta2 = mp.mpf(v2), mp.mpf(delta2)
        scale, single, pair, square = mp.exp(-delta2), mp.exp(v2) - 1, exponential_reference, v2
        if isinstance(nonlinearity, SineCosine):
            scale, single = mp.mpf(1), (1 - mp.exp(-delta2)) ** 2 / 2
            pair, square = trigonometric_reference, delta2
        if isinstance(nonlinearity, Hyperbolic):
            single, pair = 2 * mp.sinh(v2 / 2) ** 2, hyperbolic_reference
        if isinstance(nonlinearity, Exponential):
            A = mp.mpf(nonlinearity.A)
            # E Z^2 / K^2 as the Gaussian integral that it is: D^4 E exp(4 A w^2 + 2 B w.z).
            B2, spread = 1 - 4 * A, 1 - 8 * A
            single = B2**d * spread ** (-mp.mpf(d) / 2) * mp.exp(2 * B2 * v2 / spread - v2) - 1
        total = single / m
        for rows, count in blocks.items():
            if rows > 1:
                share = mp.mpf(count * rows * (rows - 1)) / m**2
                total += share * pair(float(square), d, cosine(rows))
        return mp.log(scale * total)


NONLINEARITIES = [
    Exponential(),
    Exponential((1 - 1 / 0.3) / 8),
    Hyperbolic(),
    SineCosine(),
]


# m = 1 cuts the only block, 8 fills it, the others cut the last one to two rows: with a simplex
# they are opposite, and in 63 dimensions high moments of their sum are 0 to rounding.
@pytest.mark.parametrize("nonlinearity", NONLINEARITIES, ids=str)
def test_mean_squared_error_of_whole_and_cut_blocks(nonlinearity):
    sums = [1e-8, 0.3, 2.0, 30.0, 500.0]
    differences = [1e-8, 0.3, 2.0, 30.0, 100.0]
    for d, m in ((2, 1), (3, 11), (8, 8), (63, 65)):
        whole, cut = divmod(m, d)
        cuts = {cut: 1} if cut else {}
        for coupling, blocks, cosine in (
            ("iid", {1: m}, None),
            ("orthogonal", {d: whole, **cuts}, lambda rows: 0.0),
            ("simplex", {d: whole, **cuts}, lambda rows: -1 / (rows - 1)),
        ):
            values = log_mse(nonlinearity, geometry(d, sums, [differences]), coupling, m)
            for v2, delta2, value in zip(sums, differences, values, strict=True):
                expected = reference_log_mse(nonlinearity, d, v2, delta2, m, blocks, cosine)
                assert abs(value - expected) < 1e-11 * max(1, abs(expected)), (coupling, d, v2)


@cache
def log_0f1(d, z):
    """Return log 0F1(; d/2; z)."""
    return mp.log(mp.hyp0f1(mp.mpf(d) / 2, z))


def regularized_reference(d, v, delta2, coupling, m):
    """Return the log variance by its definition; sums of a block cancel to order v^4."""
    with mp.workdps(60 + 4 * max(0, -round(math.log10(v)))):
        v2 = mp.mpf(v) ** 2
        mean = 2 * log_0f1(d, d * v2 / 4)

        def excess(t):
            return mp.exp(log_0f1(d, (1 + t) * d * v2 / 2) - mean) - 1

        total = m * excess(mp.mpf(1))
        for rows, count in COUPLINGS[coupling].blocks(m, d).items():
            if rows > 1:
                t = mp.mpf(0) if coupling == "orthogonal" else -1 / mp.mpf(rows - 1)
                total += count * rows * (rows - 1) * excess(t)
        return mean - v2 - mp.mpf(delta2) + mp.log(total / m**2)


def test_what_orthogonal_directions_gain_at_least():
    """Theorem 18 of the thesis, with exp(-n) in place of the printed exp(-n / 2)."""
    d, angles = 64, np.radians([120, 150, 170])
    x, y = np.zeros((1, d)), np.zeros((3, d))
    x[0, 0], y[:, 0], y[:, 1] = 1.0, np.cos(angles), np.sin(angles)
    errors = [
        PositiveRF(d, sigma=1.0, coupling=coupling, center=False).fit(x).kernel_variance(x, y)[0]
        for coupling in ("iid", "orthogonal")
    ]
    gains = (errors[0] - errors[1]) / ((1 - 1 / d) * 2 / (d + 2))
    kernel = np.exp(np.cos(angles) - 1)
    assert_allclose(gains / (kernel - np.exp(-2)) ** 2, [1.56, 1.13, 1.01], atol=0.005)
    assert_allclose(gains / (kernel - np.exp(-1)) ** 2, [0.58, 0.0094, 0.000082], rtol=0.01)


@pytest.mark.parametrize("d", [1, 2, 17, 1000])
def test_regularised_error_is_right_from_the_smallest_to_the_largest_sums(d):
    lengths = [1e-30, 1e-6, 1e-3, 0.3, 1.99, 2.01, 4.0, 30.0, 1e3, 1e6]
    nonlinearity = Regularized()
    pairs = geometry(d, np.square(lengths), 0.3)
    for coupling, m in (
        ("iid", 1),
        ("iid", d + 2),
        ("orthogonal", d + 2),
        ("simplex", d),
        ("simplex", 2 * d + 2),
    ):
        values = log_mse(nonlinearity, pairs, coupling, m)
        for v, value in zip(lengths, values, strict=True):
            expected = regularized_reference(d, v, 0.3, coupling, m)
            assert abs(value - expected) < 2e-12 * max(1, abs(expected)), (coupling, m, v)
    # The own term alone, against which log K^2 of distant pairs is enormous.
    for v in (30.0, 1e3, 1e6):
        with mp.workdps(60):
            z = d * mp.mpf(v) ** 2
            expected = mp.log(mp.expm1(log_0f1(d, z) - 2 * log_0f1(d, z / 4)))
        value = nonlinearity.log_own(geometry(d, v**2, 0.3))[0, 0]
        assert abs(value - expected) < 1e-12 * max(1, abs(expected))


@pytest.mark.parametrize("variant", ["exponential", "hyperbolic", "regularized"])
def test_an_outlier_costs_no_more_than_another_row(variant):
    rows = np.random.default_rng(0).normal(size=(60, 4))
    features = PositiveRF(8, variant=variant, coupling="simplex", random_state=0).fit(rows)
    rows[0] = 1e6
    tracemalloc.start()
    logs = features.kernel_variance(rows, log=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not np.isnan(logs).any() and peak < 5e6


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES[:3], ids=str)
def test_logarithms_reach_beyond_the_range_of_doubles(nonlinearity):
    # d = 8, m = 8 orthogonal projections: plain positive features from e^-1002 to e^3988.
    sums, differences = [1.0, 1.0, 1.0, 852.0, 4000.0], [150.0, 700.0, 1000.0, 150.0, 10.0]
    values = log_mse(nonlinearity, geometry(8, sums, [differences]), "orthogonal", 8)
    for v2, delta2, value in zip(sums, differences, values, strict=True):
        # From v^2 = 852 on the pair term is below rounding: the own term stands alone.
        blocks = {8: 1} if v2 < 100 else {1: 8}
        expected = reference_log_mse(nonlinearity, 8, v2, delta2, 8, blocks, lambda rows: 0.0)
        assert abs(value - expected) < 1e-11 * abs(expected)


def test_an_exact_estimate_has_log_error_minus_infinity():
    # x = y is exact for trigonometric features, x = -y for the positive ones.
    exact = geometry(3, 0.0, [[0.0]])
    for nonlinearity in (NONLINEARITIES[0], NONLINEARITIES[2], NONLINEARITIES[3], Regularized()):
        for coupling in ("iid", "orthogonal", "simplex"):
            assert log_mse(nonlinearity, exact, coupling, 7) == -np.inf


def test_tiny_arguments_keep_their_digits_where_odd_terms_cancel():
    # E[t sin a] cancels between the signs of omega_j; left in, it drowns terms of order v^4.
    for v2 in (1e-12, 1e-18):
        expected = float(hyperbolic_reference(v2, 3, -0.5))
        value = Hyperbolic().pair(geometry(3, v2, 0.0), -0.5)[0, 0]
        assert math.isclose(value, expected, rel_tol=1e-9)
        expected = float(trigonometric_reference(v2, 3, -0.5))
        assert math.isclose(cosine_pair(np.array([v2]), 3, -0.5)[0], expected, rel_tol=1e-9)


# ------------------------------------------------------------------- Matern spectra


def matern(r, nu):
    """Return the Matern kernel of a scaled distance."""
    with mp.workdps(300):
        s = mp.sqrt(2 * nu) * mp.mpf(r)
        return (1 + {0.5: 0, 1.5: s, 2.5: s + s * s / 3}[nu]) * mp.exp(-s)


def both_rows_by_scales(r, d, nu):
    """Return E[cos(omega_i.Delta) cos(omega_j.Delta)], d even, as the mean over the rows' scales.

    Given both scales, it is the mean of 1F1(d; d/2; -x) = e^-x 1F1(-d/2; d/2; x) over the share of
    the first row, x = |Delta|^2 / 2 times the mean squared scale.
    """
    log_x, step = np.arange(-25 / min(nu, 1), 4.6, 0.2), 0.2
    shares = step * np.exp(nu * log_x - np.exp(log_x) - math.lgamma(nu))
    squares = nu * r**2 / (2 * np.exp(log_x))
    nodes, weights = leggauss(24)
    weights = weights * np.sin(np.pi * (nodes + 1) / 2) ** (d - 1)
    total, half = 0.0, d // 2
    unit = math.lgamma(half + 1) + math.lgamma(half) - math.lgamma(2 * half)
    for share, weight in zip((1 - np.sin(np.pi * nodes / 2)) / 2, weights, strict=True):
        x = np.minimum(np.add.outer(share * squares, (1 - share) * squares), 700.0)
        values = np.exp(unit - x) * eval_genlaguerre(half, half - 1, x)
        total += weight * (shares @ values @ shares)
    return total / weights.sum()


@pytest.mark.parametrize(("d", "nu"), [(2, 0.5), (8, 1.5), (2, 2.5), (8, 2.5)])
def test_matern_pair(d, nu):
    distances = np.array([0.1, 0.7, 2.0, 6.0, 50.0])
    expected = [both_rows_by_scales(r, d, nu) - float(matern(r, nu)) ** 2 for r in distances]
    assert_allclose(variances.matern_pair(distances, d, nu), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_matern_variance(nu):
    for r in (1e-60, 1e-8, 1e-3, 0.3, 2.0, 30.0, 1e150):
        with mp.workdps(300):
            expected = (1 + matern(2 * mp.mpf(r), nu) - 2 * matern(r, nu) ** 2) / 2
            assert abs(variances.matern_variance(np.array(r), nu) / expected - 1) < 1e-13


@pytest.mark.parametrize("d", [2, 3, 64, 10_000])
def test_matern_pairs_of_near_rows_are_those_of_polynomials(d):
    """1 - cos(w.Delta) is (w.Delta)^2 / 2: E (w.Delta)^2 = r^2 nu / (nu - 1)."""
    distances = np.array([1e-60, 1e-30, 1e-9, 1e-6, 1e-4])
    expected = -2 / (d + 2) * (distances**2 / 2 * 2.5 / 1.5) ** 2
    assert_allclose(variances.matern_pair(distances, d, 2.5), expected, rtol=2e-3)
    assert_allclose(variances.matern_pair(distances[:4], d, 2.5), expected[:4], rtol=d * 1e-5)
    assert variances.matern_pair(np.array(0.0), d, 2.5) == 0
