"""Every test passes alone and in any order; `make order` runs them so (conftest.py of the root)."""

import numpy as np
import pytest

RNG = np.random.default_rng(0)
SHIFT = RNG.normal()  # drawn by the import, which happens once


@pytest.mark.parametrize("time", [1, 2])
def test_generators_of_modules_begin_anew_in_each_test(time):
    expected = np.random.default_rng(0).normal(size=2)
    assert [SHIFT, RNG.normal()] == expected.tolist()
