"""Other kernels of RFFSampler."""

import math
import re

import numpy as np
import pytest
from instances import altered
from numpy.testing import assert_allclose, assert_array_equal
from samples import X, data

from skrf import GeneralizedExponentialRF, RFFSampler
from skrf.features import in_range
from skrf.features.spectra import SPECTRA
from skrf.projections import Orthogonal


@pytest.mark.parametrize("n", [1, 24])
def test_a_level_is_the_scale_of_all_rows(n):
    for kernel in ("gaussian", "laplacian"):
        queries, _ = RFFSampler(n, kernel=kernel, random_state=0, sigma=1.0).fit(X).feature_maps_
        assert_allclose(queries(X).scale, np.full((len(X), 1), queries.level), rtol=1e-15)
    queries, _ = RFFSampler(n, kernel="softmax", random_state=0, sigma=1.0).fit(X).feature_maps_
    assert queries.level is None


EXACT, BOUNDED = ("matern12", "matern32", "matern52"), ("laplacian", "cauchy")
every_spectrum = pytest.mark.parametrize("kernel", [*EXACT, *BOUNDED])


@every_spectrum
def test_other_kernels_refuse_what_is_unknown(kernel):
    known = "'iid', 'orthogonal'" + (" (bound)" if kernel in BOUNDED else "")
    for coupling in ("simplex", "simplex+", "sobol", "norm-coupled"):
        features = RFFSampler(24, kernel=kernel, coupling=coupling, random_state=0, sigma=1.0).fit(
            X
        )
        for said in (f"{kernel!r} with coupling={coupling!r}", f"Known: {known}."):
            with pytest.raises(NotImplementedError, match=re.escape(said)):
                features.kernel_variance(X)


@pytest.mark.parametrize(
    "kernel, d",
    [("matern12", 2), ("matern32", 3), ("matern52", 5), ("laplacian", 3), ("cauchy", 20)],
)
def test_variances_of_other_kernels_in_simulation(kernel, d):
    """The last block is cut; 4.4 standard errors. Nearer rows differ in rare draws alone."""
    n, cut, rng = 100_000 // max(d, 5), d // 2, np.random.default_rng(d)
    directions = rng.normal(size=(5, d))
    directions[2, 1:] = 0.0  # a single column
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    sides = np.zeros((1, d)), directions * np.array([[0.4], [0.8], [1.0], [2.0], [5.0]])
    sums = np.zeros((n, 5))
    for rows in (d, cut):
        omega = SPECTRA[kernel].frequencies(Orthogonal().draw(n * d, d, rng).dense(), rng)
        sums += np.cos(omega.reshape(n, d, d)[:, :rows] @ sides[1].T).sum(axis=1)
    features = RFFSampler(2 * (d + cut), kernel=kernel, random_state=0, sigma=1.0).fit(sides[1])
    squares = (sums / (d + cut) - features.exact_kernel(*sides)) ** 2
    error = 4.4 * squares.std(axis=0) / math.sqrt(n)
    variance, mean_square = features.kernel_variance(*sides)[0], squares.mean(axis=0)
    assert features.kernel_variance_is_exact_ == (kernel in EXACT)
    assert (mean_square < variance + error).all()
    if kernel in EXACT:
        assert (mean_square > variance - error).all()


@every_spectrum
def test_projections_without_a_partner_have_the_variance_of_independent_ones(kernel):
    for rows, n in ((X[:, :1], 24), (X, 2), (X, 1)):
        orthogonal, iid = (
            RFFSampler(n, kernel=kernel, coupling=coupling, random_state=0, sigma=1.0).fit(rows)
            for coupling in ("orthogonal", "iid")
        )
        assert orthogonal.kernel_variance_is_exact_
        assert_array_equal(
            *(features.kernel_variance(rows, log=True) for features in (orthogonal, iid))
        )


@every_spectrum
def test_variances_of_other_kernels_are_0_for_equal_rows_alone(kernel):
    rows = np.random.default_rng(0).normal(size=(60, 4)) * np.geomspace(1e-3, 1e3, 60)[:, None]
    features = RFFSampler(64, kernel=kernel, random_state=0, sigma=1.0).fit(rows)
    variances = features.kernel_variance(rows)
    assert_array_equal(variances == 0, np.eye(60, dtype=bool))
    assert (variances >= 0).all() and variances.max() < 0.55 * (1 + 3 / 5) / 32


@pytest.mark.parametrize(
    "A, s, coupling", [(0.02 + 0.05j, 1, "simplex"), (0.03 - 0.06j, -1, "orthogonal")]
)
def test_complex_maps_have_the_pair_term_of_real_ones(A, s, coupling):
    """Of 24 projections, from 50,000 blocks of four: 10 % is 4.3 standard errors of a variance.

    Without pairs variances would differ by up to 30 % (orthogonal) and 70 % (simplex).
    """
    rows, n = data(6, 4, seed=3) / 2, 50_000
    reference = GeneralizedExponentialRF(48, coupling=coupling, random_state=0, sigma=1.0).fit(rows)
    reference = altered(reference, A_=A, s_=s, n_projections=24)
    many = altered(reference, n_projections=4 * n)
    queries, keys = (f(rows).reshape(6, -1, n, 4) for f in (many.transform, many.transform_keys))
    values = n * np.einsum("icbj,kcbj->bik", queries, keys)
    far = ~np.eye(6, dtype=bool)
    error = values.mean(axis=0) - reference.exact_kernel(rows)
    assert (np.abs(error) <= 4.4 * values.std(axis=0) / np.sqrt(n) + 1e-12).all()
    ratio = values.var(axis=0)[far] / 6 / reference.kernel_variance(rows)[far]
    assert (np.abs(ratio - 1) < 0.1).all()


def test_variances_of_rows_that_nearly_agree_are_powers_of_their_distance():
    sizes = np.array([1e-3, 1e-40, 1e-100, 1e-140])
    rows = np.array([1.0, -2.0, 0.5, 1.5]) * sizes[:, None]
    for coupling in ("orthogonal", "simplex"):
        features = RFFSampler(20, coupling=coupling, random_state=0, sigma=1.0).fit(
            np.zeros((1, 4))
        )
        logs = features.kernel_variance(np.zeros((1, 4)), rows, log=True)[0]
        assert_allclose(logs - 4 * np.log(sizes), logs[0] - 4 * np.log(sizes[0]), rtol=1e-4)


@pytest.mark.parametrize(
    "kernel, n_features",
    [("gaussian", 1), ("gaussian", 20), ("gaussian", 300), ("laplacian", 5), ("matern12", 300)],
)
def test_long_rows_stay_in_float32_while_their_kernel_is_exact_to_5e_5(kernel, n_features):
    rows = np.random.default_rng(0).normal(size=(100, n_features))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    sampler = RFFSampler(512, kernel=kernel, random_state=0, sigma=1.0).fit(rows)
    kept = 0
    for length in (1.0, 8.0, 15.0, 30.0, 60.0, 120.0, 240.0, 2e3):
        X = (length * rows).astype(np.float32)
        kept += in_range(sampler.feature_maps_[0], X).dtype == np.float32
        exact, single = (sampler.transform(Z) for Z in (X.astype(np.float64), X))
        assert single.dtype == np.float32
        assert_allclose(single @ single.astype(np.float64).T, exact @ exact.T, rtol=0, atol=5e-5)
    # Norms of 16 are enough where their squares are exponents.
    assert kept <= 7 and (kernel != "gaussian" or kept >= 3 + (n_features < 300))
    softmax = RFFSampler(512, kernel="softmax", random_state=0).fit(rows)
    long = (30.0 * rows).astype(np.float32)
    assert in_range(softmax.feature_maps_[0], long).dtype == np.float64
