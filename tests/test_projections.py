"""Every coupling draws standard normal rows, coupled as it says.

Statistical tests use fixed seeds 0, ..., n - 1, one draw each. Means are compared in standard
errors (4.4: 1e-5 two-sided), distributions by the Kolmogorov-Smirnov distance, with threshold
2.6 / sqrt(n) (probability 3e-6 under the null). At n = 3,000 draws a distribution is seen to be
wrong when its distance from the truth exceeds 7 %: chi norms with one degree of freedom too few
differ by 14 % at d = 5.
"""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats
from scipy.special import ndtr
from scipy.stats import qmc

from skrf.projections import COUPLINGS, DenseProjection, haar_rows
from skrf.projections.independent import SOBOL_MAX_FEATURES
from skrf.projections.norms import chi_norms, mirrored
from skrf.projections.simplex import SimplexPlus, simplex_rows

DRAWS = 3000
STANDARD_ERRORS = 4.4
BLOCKED = ["orthogonal", "simplex", "simplex+", "norm-coupled"]
D, M = 5, 13  # two whole blocks and a cut one of three rows


def draw(name, m=M, d=D, seed=0):
    return COUPLINGS[name].draw(m, d, np.random.default_rng(seed)).dense()


@pytest.fixture(scope="module")
def draws():
    """DRAWS matrices of every coupling, shape (DRAWS, M, D)."""
    return {name: np.stack([draw(name, seed=s) for s in range(DRAWS)]) for name in COUPLINGS}


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


@pytest.mark.parametrize("m, d", [(1, 1), (7, 1), (1, 4), (3, 4), (4, 4), (11, 4), (64, 3)])
@pytest.mark.parametrize("name", COUPLINGS)
def test_shape_and_blocks(name, m, d):
    omega = draw(name, m, d)
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
def test_same_seed_is_the_same_draw(name):
    assert np.array_equal(draw(name, seed=3), draw(name, seed=3))
    assert not np.any(draw(name, seed=3) == draw(name, seed=4))


@pytest.mark.parametrize("name", COUPLINGS)
def test_every_row_is_standard_normal(draws, name):
    omega = draws[name]
    # Five coordinates and one oblique direction, of each of the thirteen rows.
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


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", COUPLINGS)
def test_one_sided_exponentials_along_the_diagonal(draws, name, sign):
    # Where a QR without sign repair is biased: E exp(omega.u - 1/2) = 1 for every unit u.
    products = sign * draws[name].sum(axis=2) / np.sqrt(D)
    values = np.exp(products - 0.5).mean(axis=1)
    assert STANDARD_ERRORS * values.std() / np.sqrt(DRAWS) < 0.05  # smallest error seen: 5 %
    assert_mean(values, 1.0)


@pytest.mark.parametrize("name", [name for name in COUPLINGS if name != "sobol"])
def test_blocks_are_independent(draws, name):
    # First rows of the first two blocks, and of the first and the cut one.
    omega = draws[name]
    norms = np.linalg.norm(omega, axis=2)
    assert_distribution(norms[:, [0, D, 2 * D]], stats.chi(D).cdf)
    for other in (D, 2 * D):
        cosines = np.einsum("ni,ni->n", omega[:, 0], omega[:, other])
        cosines /= norms[:, 0] * norms[:, other]
        assert_mean(cosines, 0.0)
        assert_mean(cosines**2, 1 / D)
        # All of the first block against all of another: no linear relation.
        product = (norms[:, 0] - norms[:, 0].mean()) * (norms[:, other] - norms[:, other].mean())
        assert_mean(product, 0.0)


# ------------------------------------------------------------------- orthogonal


@pytest.mark.parametrize("name", ["orthogonal", "norm-coupled"])
@pytest.mark.parametrize("m, d", [(13, 5), (3, 5), (64, 64), (5, 1)])
def test_orthogonal_rows_inside_blocks(name, m, d):
    omega = draw(name, m, d)
    for start in range(0, m, d):
        block = omega[start : start + d]
        gram = block @ block.T
        np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-12 * d)


@pytest.mark.parametrize("n_rows", [1, 3, 6])
def test_haar_rows_are_uniformly_distributed(n_rows):
    rows = np.stack([haar_rows(n_rows, 6, np.random.default_rng(s)) for s in range(DRAWS)])
    grams = rows @ rows.transpose(0, 2, 1)
    np.testing.assert_allclose(grams - np.eye(n_rows), 0, atol=1e-13)
    # Every entry has the law of a coordinate of a uniform point on the sphere.
    entries = rows.reshape(DRAWS, -1)
    assert_distribution(entries, lambda x: stats.beta(2.5, 2.5).cdf((1 + x) / 2))
    assert_mean(np.trace(rows, axis1=1, axis2=2), 0.0)


# ------------------------------------------------------------------- simplex and simplex+


@pytest.mark.parametrize("n", [1, 2, 3, 10, 64])
def test_simplex_rows(n):
    rows = simplex_rows(n)
    gram = np.full((n, n), -1 / max(n - 1, 1))
    np.fill_diagonal(gram, 1.0)
    np.testing.assert_allclose(rows @ rows.T, gram, atol=1e-13)
    if n > 1:
        np.testing.assert_allclose(rows.sum(axis=0), 0, atol=1e-13)


@pytest.mark.parametrize("m, d", [(13, 5), (3, 5), (4, 2), (16, 64), (6, 5)])
def test_simplex_blocks_whole_and_cut(m, d):
    omega = draw("simplex", m, d)
    coupling = COUPLINGS["simplex"]
    for start in range(0, m, d):
        block = omega[start : start + d]
        unit = block / np.linalg.norm(block, axis=1, keepdims=True)
        cosines = (unit @ unit.T)[~np.eye(len(unit), dtype=bool)]
        if len(unit) > 1:
            np.testing.assert_allclose(cosines, -1 / (len(unit) - 1), atol=1e-12)
            np.testing.assert_allclose(unit.sum(axis=0), 0, atol=1e-12)
            assert coupling.pair_cosine(len(unit)) == -1 / (len(unit) - 1)
        else:
            assert coupling.pair_cosine(1) == 0.0


def test_norms_of_a_simplex_block_are_independent(draws):
    norms = np.linalg.norm(draws["simplex"], axis=2)
    deviations = norms - norms.mean(axis=0)
    for i, j in [(0, 1), (3, 4), (10, 12)]:
        assert_mean(deviations[:, i] * deviations[:, j], 0.0)


BLOCKS = "orthogonal", "simplex", "simplex+", "norm-coupled"


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_drawn_many_at_once(name, monkeypatch):
    decomposed, qr = [], np.linalg.qr
    monkeypatch.setattr(np.linalg, "qr", lambda X: decomposed.append(X.shape) or qr(X))
    assert draw(name, 1001, 2, 0).shape == (1001, 2)
    assert decomposed == [(500, 2, 2), (1, 2, 1)]


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_at_once_are_what_each_block_alone_would_be(name):
    """The lengths of all whole blocks are drawn first, then their directions, then the rest."""
    rows, rng = draw(name, 23, 3, 0), np.random.default_rng(0)
    for count, b in ((7, 3), (1, 2)):
        norms = np.sqrt(rng.chisquare(3, size=(count, b)))
        rotations = [haar_rows(b, 3, rng) for _ in range(count)]
        for lengths, expected in zip(norms, rotations, strict=True):
            lengths = mirrored(lengths, 3) if name == "norm-coupled" else lengths
            directions = COUPLINGS[name].directions(lengths)
            expected = expected if directions is None else directions @ expected
            found, rows = rows[:b], rows[b:]
            np.testing.assert_allclose(found, lengths[:, None] * expected, rtol=1e-12)


@pytest.mark.parametrize("n_rows", [2, 3, 8])
def test_simplex_plus_shortens_the_sum_with_every_sweep(n_rows):
    for seed in range(50):
        norms = np.sqrt(np.random.default_rng(seed).chisquare(8, n_rows))
        lengths = []
        for n_sweeps in range(6):
            coupling = SimplexPlus()
            coupling.n_sweeps = n_sweeps
            directions = coupling.directions(norms)
            np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1.0, rtol=1e-13)
            lengths.append(np.linalg.norm(norms @ directions))
        assert lengths[0] == pytest.approx(np.linalg.norm(norms @ simplex_rows(n_rows)))
        assert (np.diff(lengths) <= 1e-13).all()
        if n_rows > 2:
            assert lengths[5] < 0.5 * lengths[0]


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


def test_fixed_cosines_are_told_where_there_are_any():
    known = {name: coupling.pair_cosine(4) for name, coupling in COUPLINGS.items()}
    assert known.pop("simplex") == -1 / 3
    assert known.pop("iid") == known.pop("orthogonal") == 0.0
    assert known == {"simplex+": None, "sobol": None, "norm-coupled": None}


# ------------------------------------------------------------------- norm-coupled


class GivenChiSquares:
    """Stands for a random generator whose draws of one chi-square law are known."""

    def __init__(self, values, df):
        self.values, self.df = np.asarray(values), df

    def chisquare(self, df, size):
        assert (df, size) == (self.df, len(self.values))
        return self.values.copy()


def test_chi_norms_have_as_many_degrees_of_freedom_as_features():
    norms = chi_norms(3, 7, GivenChiSquares([1.0, 4.0, 9.0], df=7))
    np.testing.assert_array_equal(norms, [1, 2, 3])


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


def test_norms_of_drawn_pairs_are_mirrored_and_pairs_independent(draws):
    quantiles = stats.chi(D).cdf(np.linalg.norm(draws["norm-coupled"], axis=2))
    # Blocks of 5, 5 and 3 rows: two pairs and a lone row, twice, then a pair and a lone row.
    for i in (0, 2, 5, 7, 10):
        np.testing.assert_allclose(quantiles[:, i] + quantiles[:, i + 1], 1, atol=1e-10)
    for i, j in [(0, 2), (0, 4), (3, 4), (5, 10), (10, 12), (4, 9)]:
        assert_mean((quantiles[:, i] - 0.5) * (quantiles[:, j] - 0.5), 0.0)


# ------------------------------------------------------------------- Sobol'


@pytest.mark.parametrize("m", [16, 64])
def test_sobol_points_fill_every_coordinate_evenly(m):
    # m = 2^k scrambled points have one value in each of the m intervals, in each coordinate.
    cells = np.floor(ndtr(draw("sobol", m, 6)) * m).astype(int)
    for column in cells.T:
        assert sorted(column) == list(range(m))


def test_sobol_keeps_the_first_points_of_the_next_power_of_two():
    np.testing.assert_array_equal(draw("sobol", 11, 3), draw("sobol", 16, 3)[:11])


def test_sobol_point_at_zero_is_finite(monkeypatch):
    monkeypatch.setattr(qmc.Sobol, "random_base2", lambda self, m: np.zeros((2**m, self.d)))
    omega = draw("sobol", 4, 3)
    np.testing.assert_allclose(ndtr(omega), 2.0**-31)


def test_sobol_names_its_limit():
    assert SOBOL_MAX_FEATURES == 21201
    with pytest.raises(ValueError, match="coupling='sobol'.* 21201 features.* 21202"):
        draw("sobol", 2, 21202)


# ------------------------------------------------------------------- the projection object


@pytest.mark.parametrize("name", COUPLINGS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_projection_multiplies_as_its_matrix(name, dtype):
    projection = COUPLINGS[name].draw(M, D, np.random.default_rng(0))
    matrix = projection.dense()
    assert (projection.n_projections, projection.n_features) == (M, D)
    np.testing.assert_allclose(projection.squared_norms, (matrix**2).sum(axis=1), rtol=1e-14)
    X = np.random.default_rng(1).normal(size=(6, D)).astype(dtype)
    X[np.abs(X) < 0.4] = 0
    expected = X.astype(np.float64) @ matrix.T
    tolerance = 1e-14 if dtype == np.float64 else 1e-5
    for rows in (X, sp.csr_array(X), sp.csr_matrix(X)):
        product = projection.multiply(rows)
        assert isinstance(product, np.ndarray) and product.dtype == dtype
        np.testing.assert_allclose(product, expected, rtol=tolerance, atol=tolerance)


def test_with_norms_keeps_directions():
    matrix = np.random.default_rng(0).normal(size=(4, 3))
    projection = DenseProjection(matrix).with_norms(2.5)
    np.testing.assert_allclose(projection.squared_norms, 6.25, rtol=1e-14)
    units = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    np.testing.assert_allclose(projection.dense(), 2.5 * units, rtol=1e-14)
