"""Every coupling draws standard normal rows, coupled as it says.

Statistical tests use fixed seeds 0, ..., n - 1, one draw each. Means are compared in standard
errors (4.4: 1e-5 two-sided), distributions by the Kolmogorov-Smirnov distance, with threshold
2.6 / sqrt(n) (probability 3e-6 under the null). At n = 3,000 draws a distribution is seen to be
wrong when its distance from the truth exceeds 7 %: chi norms with one degree of freedom too few
differ by 14 % at d = 5.
"""

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr
from scipy.stats import qmc

from skrf.projections import COUPLINGS, blocks, haar_rows
from skrf.projections.norms import mirrored
from skrf.projections.simplex import SimplexPlus, simplex_rows

DRAWS = 3000
STANDARD_ERRORS = 4.4
BLOCKED = ["orthogonal", "simplex", "simplex+", "norm-coupled"]
D, M = 5, 13  # two whole blocks and a cut one of three rows


def draw(name, m=M, d=D, seed=0):
    return COUPLINGS[name].draw(m, d, np.random.default_rng(seed)).dense()


@pytest.fixture(scope="module")
def draws():
    """DRAWS matrices of every coupling, shape (DRAWS, M, D).

    Whole blocks are drawn together: they are those that would be drawn apart, as is seen below.
    """

    def of_seeds(name, m):
        return np.stack([draw(name, m, seed=s) for s in range(DRAWS)])

    def of_blocks(name):
        whole = draw(name, 2 * D * DRAWS, seed=DRAWS).reshape(DRAWS, 2 * D, D)
        return np.concatenate([whole, of_seeds(name, M - 2 * D)], axis=1)

    return {name: of_blocks(name) if name in BLOCKED else of_seeds(name, M) for name in COUPLINGS}


def assert_mean(values, expected):
    """Compare means over draws (axis 0) in standard errors."""
    values = np.asarray(values)
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    z = (values.mean(axis=0) - expected) / error
    assert np.abs(z).max() < STANDARD_ERRORS, z


def assert_distribution(values, cdf):
    """Compare the distribution of every column with a cdf."""
    ordered = cdf(np.sort(values, axis=0))
    steps = np.arange(len(values) + 1)[:, None] / len(values)
    distance = np.maximum(np.abs(ordered - steps[1:]), np.abs(ordered - steps[:-1])).max(axis=0)
    assert distance.max() < 2.6 / np.sqrt(len(values)), distance


# ------------------------------------------------------------------- every coupling


@pytest.mark.parametrize("m, d", [(7, 1), (3, 4), (4, 4), (11, 4)])
@pytest.mark.parametrize("name", COUPLINGS)
def test_shape_blocks_and_seeds(name, m, d):
    omega = draw(name, m, d)
    assert np.array_equal(draw(name, m, d), omega)
    assert not np.any(draw(name, m, d, seed=1) == omega)
    assert omega.shape == (m, d) and omega.dtype == np.float64
    assert np.isfinite(omega).all() and (omega != 0).all()
    assert len(np.unique(omega[:, 0])) == m
    blocks = COUPLINGS[name].blocks(m, d)
    assert sum(rows * count for rows, count in blocks.items()) == m
    if name in BLOCKED:
        whole = {d: m // d} if m >= d else {}
        assert blocks == {**whole, **({m % d: 1} if m % d else {})}
    else:
        assert blocks == {1: m}


@pytest.mark.parametrize("name", COUPLINGS)
def test_every_row_is_standard_normal(draws, name):
    omega = draws[name]
    # Five coordinates and the diagonal, where a QR without sign repair is one-sided, of each row.
    assert_distribution(omega.reshape(DRAWS, -1), stats.norm.cdf)
    assert_distribution(omega.sum(axis=2) / np.sqrt(D), stats.norm.cdf)
    products = omega[:, :, :, None] * omega[:, :, None, :]
    assert_mean(products.reshape(DRAWS, -1), np.tile(np.eye(D).ravel(), M))


@pytest.mark.parametrize("name", COUPLINGS)
def test_norms_are_chi_distributed(draws, name):
    norms = np.linalg.norm(draws[name], axis=2)
    assert_distribution(norms, stats.chi(D).cdf)
    # Over all 13 rows together the mean of |omega|^2 is seen to be wrong from 2 % on.
    error = (norms**2).mean(axis=1).std() / np.sqrt(DRAWS)
    assert (STANDARD_ERRORS + 1.3) * error < 0.02 * D
    assert_mean((norms**2).mean(axis=1), D)
    assert_mean(norms**2, D)
    assert_mean(norms**4, D * (D + 2))


# ------------------------------------------------------------------- blocks


def test_haar_rows_are_uniformly_distributed():
    n_rows = 4
    rows = np.stack([haar_rows(n_rows, 6, np.random.default_rng(s)) for s in range(DRAWS)])
    grams = rows @ rows.transpose(0, 2, 1)
    np.testing.assert_allclose(grams - np.eye(n_rows), 0, atol=1e-13)
    # Every entry has the law of a coordinate of a uniform point on the sphere.
    entries = rows.reshape(DRAWS, -1)
    assert_distribution(entries, lambda x: stats.beta(2.5, 2.5).cdf((1 + x) / 2))
    assert_mean(np.trace(rows, axis1=1, axis2=2), 0.0)


@pytest.mark.parametrize("n_rows, d", [(1, 4), (5, 20), (64, 1000)])
def test_wide_draws_are_those_of_qr_at_less_than_its_cost(n_rows, d, monkeypatch):
    normals = np.random.default_rng(3).standard_normal((d, n_rows))
    q, r = np.linalg.qr(normals)
    expected = (q * np.sign(np.diagonal(r))).T
    # Reflections take several times as long as products of matrices.
    monkeypatch.setattr(np.linalg, "qr", lambda *args: pytest.fail("a wide draw uses QR"))
    for gap in (1e-14, 0.0):  # the last makes rows orthogonal again
        monkeypatch.setattr(blocks, "_ORTHOGONAL", gap)
        rows = haar_rows(n_rows, d, np.random.default_rng(3))
        np.testing.assert_allclose(rows, expected, rtol=0, atol=2e-15)
        np.testing.assert_allclose(rows @ rows.T, np.eye(n_rows), rtol=0, atol=5e-15)


def test_simplex_rows():
    for n in (1, 2, 3, 10, 64):
        rows = simplex_rows(n)
        gram = np.full((n, n), -1 / max(n - 1, 1))
        np.fill_diagonal(gram, 1.0)
        np.testing.assert_allclose(rows @ rows.T, gram, atol=1e-13)


@pytest.mark.parametrize("name", BLOCKED)
def test_blocks_at_once_are_what_each_block_alone_would_be(name):
    """The lengths of all whole blocks are drawn first, then their directions, then the rest."""
    rows, rng = draw(name, 23, 3, 0), np.random.default_rng(0)
    for count, b in ((7, 3), (1, 2)):
        norms = np.sqrt(rng.chisquare(3, size=(count, b)))
        rotations = [haar_rows(b, 3, rng) for _ in range(count)]
        for lengths, expected in zip(norms, rotations, strict=True):
            lengths = mirrored(lengths, 3) if name == "norm-coupled" else lengths
            if name == "simplex":
                expected = simplex_rows(b) @ expected
            elif name == "simplex+":
                expected = SimplexPlus().directions(lengths) @ expected
            block, rows = rows[:b], rows[b:]
            np.testing.assert_allclose(block, lengths[:, None] * expected, rtol=1e-12)


# Five sweeps: exact for eight rows; three may miss by 1e-3 where one norm outweighs the others.
@pytest.mark.parametrize("n, miss", [(3, 2e-3), (8, 1e-12)])
def test_simplex_plus_directions_oppose_the_rest(n, miss):
    for seed in range(50):
        omega = draw("simplex+", n, n, seed)
        rest = omega.sum(axis=0) - omega
        lengths = np.linalg.norm(omega, axis=1) * np.linalg.norm(rest, axis=1)
        cosines = np.einsum("ij,ij->i", omega, rest) / lengths
        assert cosines.max() < miss - 1
        # The last row of the last sweep opposes the others exactly.
        assert cosines[-1] < 1e-12 - 1


# ------------------------------------------------------------------- norm-coupled


@pytest.mark.parametrize("d", [1, 2, 5, 64, 1000])
def test_paired_norms_are_mirrored_quantiles(d):
    # Quantiles down to 1e-14 on either side; other entries are replaced or, the last, kept.
    low = np.array([1e-14, 1e-6, 0.1, 0.4999, 0.5])
    firsts = np.concatenate([stats.chi2.ppf(low, d), stats.chi2.isf(low, d)])
    given = np.append(np.repeat(firsts, 2), 1.2345)
    norms = mirrored(np.sqrt(given), d)
    np.testing.assert_array_equal(norms[:-1:2] ** 2, np.sqrt(firsts) ** 2)
    seconds = norms[1:-1:2] ** 2
    np.testing.assert_allclose(stats.chi2.sf(seconds[:5], d), low, rtol=1e-9)
    np.testing.assert_allclose(stats.chi2.cdf(seconds[5:], d), low, rtol=1e-9)
    assert norms[-1] == np.sqrt(1.2345)


# ------------------------------------------------------------------- Sobol'


def test_sobol_points_fill_every_coordinate_evenly():
    # m = 2^k scrambled points have one value in each of the m intervals, in each coordinate.
    cells = np.floor(ndtr(draw("sobol", 16, 6)) * 16).astype(int)
    np.testing.assert_array_equal(np.sort(cells, axis=0), np.repeat(np.arange(16)[:, None], 6, 1))


def test_sobol_point_at_zero_is_finite(monkeypatch):
    monkeypatch.setattr(qmc.Sobol, "random_base2", lambda self, m: np.zeros((2**m, self.d)))
    omega = draw("sobol", 4, 3)
    np.testing.assert_allclose(ndtr(omega), 2.0**-31)
