"""The largest error of angular hybrid features against dense grids of the closed form."""

import numpy as np
import pytest

from skrf import HybridRF
from skrf.theory import hybrid_max_error


@pytest.mark.parametrize("radius, n", [(0.3, 8), (1.0, 1), (4.2, 8), (6.0, 1)])
def test_the_largest_error_of_a_hybrid_is_that_of_a_dense_grid(radius, n):
    angles = np.linspace(0, np.pi, 20_001)
    x = np.array([[radius, 0.0]])
    rows = radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    base = ("hyperbolic", "trigonometric")
    hybrid = HybridRF(6 * 4 * (n + 1), base=base, n_coefficients=n, shared=False)
    hybrid.set_params(coupling="iid", kernel="softmax", center=False, random_state=0)
    hybrid.fit(x, keys=rows)
    assert hybrid._n_projections == 6
    logs = hybrid.kernel_variance(x, rows, log=True)[0] / 2 - (x @ rows.T)[0]
    largest = hybrid_max_error(radius, n_projections=6, n_coefficients=n, log=True)
    # The grid misses the maximum by the square of a step in units of its width, 1 / radius.
    assert 0 <= largest - logs.max() + 1e-12 < 2e-6


def test_largest_errors_of_hybrids_leave_the_range_of_floats_in_order():
    of_one = {"n_projections": 1, "n_coefficients": 1}
    assert hybrid_max_error(100.0, **of_one) == np.inf
    # The exponent 2 r^2, to the width of the maximum.
    for radius in (1e4, 4e4):
        log = hybrid_max_error(radius, n_projections=4, n_coefficients=1, log=True)
        assert np.isclose(log, 2 * radius**2, rtol=1e-6)
    for power in (5, 100, 300):  # the square of the last one is 0
        tiny = hybrid_max_error(10.0**-power, **of_one, log=True)
        assert np.isclose(tiny, np.log(2) / 2 - 2 * power * np.log(10), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "value"),
    [("radius", 0.0), ("radius", 1e7), ("n_projections", 0), ("n_coefficients", 0)],
)
def test_wrong_parameters_are_named(name, value):
    params = {"radius": 1.0, "n_projections": 1, "n_coefficients": 1, name: value}
    with pytest.raises(ValueError, match=f"{name} must be"):
        hybrid_max_error(params.pop("radius"), **params)
