"""The largest error of angular hybrid features against dense grids and draws."""

import numpy as np
import pytest

from skrf import HybridRF
from skrf.theory import hybrid_max_error


@pytest.mark.parametrize("radius, n", [(0.3, 8), (1.0, 1), (4.2, 8), (6.0, 1)])
def test_the_largest_error_of_a_hybrid_is_that_of_a_dense_grid(radius, n):
    angles = np.linspace(0, np.pi, 20_001)
    x = np.array([[radius, 0.0]])
    rows = radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    hybrid = HybridRF(
        6 * 4 * (n + 1),
        base=("hyperbolic", "trigonometric"),
        n_coefficients=n,
        shared=False,
        coupling="iid",
        kernel="softmax",
        center=False,
        random_state=0,
    ).fit(x, keys=rows)
    assert hybrid._n_projections == 6
    logs = hybrid.kernel_variance(x, rows, log=True)[0] / 2 - (x @ rows.T)[0]
    found = hybrid_max_error(radius, n_projections=6, n_coefficients=n, log=True)
    # The grid misses the maximum by the square of a step in units of its width, 1 / radius.
    assert 0 <= found - logs.max() + 1e-12 < 2e-6


def test_the_largest_error_of_a_hybrid_is_measured():
    """Near the maximum, where 200,000 draws of two cosh and cos see their moments: radius 0.5."""
    radius, n, n_draws = 0.5, 2, 200_000
    rng = np.random.default_rng(0)
    angles = np.linspace(0.2, np.pi / 2, 12)
    largest = 0.0
    for angle in angles:
        x, y = radius * np.array([[1, 0], [np.cos(angle), np.sin(angle)]])
        far = rng.binomial(n, angle / np.pi, size=n_draws) / n
        first, second = rng.normal(size=(2, n_draws, 2))
        positive = np.cosh(first @ (x + y)) * np.exp(-(radius**2))
        waves = np.cos(second @ (x - y)) * np.exp(radius**2)
        ratio = (far * positive + (1 - far) * waves) / np.exp(x @ y)
        largest = max(largest, np.sqrt(np.mean((ratio - 1) ** 2)))
    found = hybrid_max_error(radius, n_projections=1, n_coefficients=n)
    assert abs(largest / found - 1) < 0.02  # four standard errors, and the grid


def test_largest_errors_of_hybrids_leave_the_range_of_floats_in_order():
    assert hybrid_max_error(100.0, n_projections=1, n_coefficients=1) == np.inf
    # Twice the radius, four times the exponent 2 r^2, to the width of the maximum.
    logs = [
        hybrid_max_error(r, n_projections=4, n_coefficients=1, log=True) for r in (1e4, 2e4, 4e4)
    ]
    assert np.allclose(np.divide(logs, [2e8, 8e8, 32e8]), 1, rtol=1e-6)
    for power in (5, 100, 300):  # the square of the last one is 0
        tiny = hybrid_max_error(10.0**-power, n_projections=1, n_coefficients=1, log=True)
        assert np.isclose(tiny, np.log(2) / 2 - 2 * power * np.log(10), rtol=1e-12)
    for wrong in ({"radius": 0.0}, {"radius": 1e7}, {"n_projections": 0}, {"n_coefficients": 0}):
        (name,) = wrong
        given = {"radius": 1.0, "n_projections": 1, "n_coefficients": 1, **wrong}
        with pytest.raises(ValueError, match=f"{name} must be"):
            hybrid_max_error(given.pop("radius"), **given)
