"""Features that vanish or overflow: one warning each, logarithms instead."""

import numpy as np
import pytest
import scipy.sparse as sp
from contract import POSITIVE, X, Y, every_mechanism, every_positive, mechanism, one_warning
from instances import KERNELS, couplings
from numpy.testing import assert_array_equal

from skrf import SimplexRF


@every_positive
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("convert", [np.array, sp.csr_array])
def test_vanished_rows_give_one_warning_a_call(name, dtype, convert):
    fitted = mechanism(name, sigma=2.5).fit(X)
    far = X.astype(dtype)
    far[[0, 3, 4]] = 400.0
    words = (type(fitted).__name__, "sigma=2.5", f"norm {400 * np.sqrt(5):.4g}", "log_transform")
    with one_warning(*words, "X"):
        features = fitted.transform(convert(far))
    assert features.dtype == dtype and not features[[0, 3, 4]].any()
    with one_warning(*words, "Y"):
        fitted.transform_keys(convert(far))
    with one_warning(*words):
        mechanism(name, sigma=2.5).set_output(transform="default").fit(X).transform(convert(far))
    for method in ("log_transform", "log_transform_keys"):
        assert np.isfinite(getattr(fitted, method)(convert(far))).all()


@every_positive
def test_single_zeros_in_a_row_give_no_warning(name):
    fitted = mechanism(name, n_components=60).fit(X)
    rows = np.linspace(1, 40, 400)[:, None] * X[1]
    logs = fitted.log_transform(rows)
    # exp is 0 in float64 below -745.
    rows = rows[(logs.max(axis=1) > -740) & (logs.min(axis=1) < -750)]
    assert len(rows)
    features = fitted.transform(rows)
    assert (features == 0).any(axis=1).all() and features.any(axis=1).all()


@every_mechanism
def test_softmax_overflow_gives_one_warning_a_call(name):
    # Centred, positive features too are near exp(|sigma x|^2 / 2) here.
    far = X + 100.0
    fitted = mechanism(name, kernel="softmax", sigma=0.5).fit(far)
    largest = np.sqrt((far**2).sum(axis=1).max())
    methods = ["transform", "transform_keys", "exact_kernel", "approximate_kernel"]
    methods += ["kernel_variance"] if name != "SimplexRFPlus" else []
    for method in methods:
        with one_warning("overflow", "sigma=0.5 ", f"norm {largest:.4g}", type(fitted).__name__):
            assert not np.isfinite(getattr(fitted, method)(far)).all()
    if name in POSITIVE:
        logs = fitted.log_transform(far)
        assert np.isfinite(logs).all() and (logs > 710).all()
    if name != "SimplexRFPlus":
        pairs = fitted.kernel_variance(far, log=True)
        assert not np.isnan(pairs).any() and (pairs < np.inf).all()


@every_positive
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("sigma", "size"),
    [(1e-8, 1e-8), (1e-8, 1), (1e-8, 1e8), (1e-3, 1), (1, 1e8), (1e3, 1), (1e8, 1)],
)
def test_log_features_are_finite_at_every_scale(name, sigma, size, dtype):
    for kernel in KERNELS:
        fitted = mechanism(name, kernel=kernel, sigma=sigma).fit((size * X).astype(dtype))
        assert np.isfinite(fitted.log_transform((size * Y).astype(dtype))).all()


def test_coupling_simplex_suits_the_optimal_map():
    assert "simplex" in couplings("OptimalPositiveRF")
    joined = mechanism("OptimalPositiveRF", coupling="simplex").fit(X)
    assert_array_equal(joined.omega_, SimplexRF(n_components=12, random_state=0).fit(X).omega_)
