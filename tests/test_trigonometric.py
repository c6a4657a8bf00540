"""Other kernels of RFFSampler."""

import numpy as np
import pytest
import scipy.sparse as sp
from instances import accepts, altered
from numpy.testing import assert_allclose
from samples import X, data

from skrf import GeneralizedExponentialRF, RFFSampler
from skrf.features import in_range, side_by_side


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "softmax"])
@pytest.mark.parametrize("n_components", [1, 24])
def test_a_level_is_the_scale_of_all_rows(kernel, n_components):
    own, _ = RFFSampler(n_components, kernel=kernel, random_state=0).fit(X).feature_maps_
    assert (own.level is None) == (kernel == "softmax")
    if own.level is not None:
        assert_allclose(own(X).scale, np.full((len(X), 1), own.level), rtol=1e-15)


@pytest.mark.parametrize("kernel", ["laplacian", "cauchy", "matern12", "matern32", "matern52"])
def test_other_kernels_refuse_what_is_unknown(kernel):
    features = RFFSampler(24, kernel=kernel, random_state=0).fit(X)
    with pytest.raises(NotImplementedError, match=kernel):
        features.kernel_variance(X)
    assert features.transform(sp.csr_array(X)).shape == (30, 24)
    assert accepts("RFFSampler", "kernel")


@pytest.mark.parametrize(("A", "s"), [(0.02 + 0.05j, 1), (-0.1 + 0.08j, 1), (0.03 - 0.06j, -1)])
@pytest.mark.parametrize("coupling", ["orthogonal", "simplex"])
def test_complex_maps_have_the_pair_term_of_real_ones(A, s, coupling):
    """2,000 draws of 24 projections; 15 % is 4.7 standard errors of a variance of normal values."""
    rows = data(6, 4, seed=3) / 4
    reference = GeneralizedExponentialRF(48, coupling=coupling, random_state=0).fit(rows)
    reference = altered(reference, A_=A, s_=s, n_projections=24)
    values = np.array([reference.redraw(seed).approximate_kernel(rows) for seed in range(2000)])
    far = ~np.eye(6, dtype=bool)
    error = values.mean(axis=0) - reference.exact_kernel(rows)
    assert (np.abs(error) <= 4.4 * values.std(axis=0) / np.sqrt(2000) + 1e-12).all()
    ratio = values.var(axis=0)[far] / reference.kernel_variance(rows)[far]
    assert (np.abs(ratio - 1) < 0.15).all()


@pytest.mark.parametrize("coupling", ["orthogonal", "simplex"])
def test_variances_of_rows_that_nearly_agree_are_powers_of_their_distance(coupling):
    features = RFFSampler(20, coupling=coupling, random_state=0).fit(np.zeros((1, 4)))
    sizes = np.array([1e-3, 1e-40, 1e-100, 1e-140])
    rows = np.array([1.0, -2.0, 0.5, 1.5]) * sizes[:, None]
    logs = features.kernel_variance(np.zeros((1, 4)), rows, log=True)[0]
    assert_allclose(logs - 4 * np.log(sizes), logs[0] - 4 * np.log(sizes[0]), rtol=1e-4)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "matern12"])
@pytest.mark.parametrize("n_features", [1, 5, 20, 300])
def test_long_rows_stay_in_float32_while_their_kernel_is_exact_to_5e_5(kernel, n_features):
    rows = np.random.default_rng(0).normal(size=(100, n_features))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    sampler = RFFSampler(512, kernel=kernel, random_state=0).fit(rows)
    kept = 0
    for length in (1.0, 8.0, 15.0, 30.0, 60.0, 120.0, 240.0, 2e3):
        X = (length * rows).astype(np.float32)
        kept += in_range(sampler.feature_maps_[0], X).dtype == np.float32
        exact, own = (sampler.transform(Z) for Z in (X.astype(np.float64), X))
        assert own.dtype == np.float32
        assert_allclose(own @ own.astype(np.float64).T, exact @ exact.T, rtol=0, atol=5e-5)
    # Norms of 16 are enough where their squares are exponents.
    assert kept <= 7 and (kernel != "gaussian" or kept >= 3 + (n_features < 300))
    softmax = RFFSampler(512, kernel="softmax", random_state=0).fit(rows)
    long = (30.0 * rows).astype(np.float32)
    assert in_range(softmax.feature_maps_[0], long).dtype == np.float64


def test_a_map_with_columns_of_others_is_as_precise_whether_or_not_it_was_used_before():
    X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    samplers = [RFFSampler(1, kernel="laplacian", random_state=seed) for seed in range(40)]
    maps = [sampler.fit(X).feature_maps_[0] for sampler in samplers]
    bound = side_by_side(maps).exponent_bound(X)
    maps[0].exponent_bound(X)
    assert side_by_side(maps).exponent_bound(X) == bound
