"""Nothing that was published moves: results equal those of version 0.1.0 to rounding."""

import json

import numpy as np
import pytest
from golden import PATH, SUBJECTS, digests

# Of the root mean square of an array.
TOLERANCE = {"float64": 1e-9, "float32": 3e-4}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_results_are_those_of_version_0_1(subject):
    kept = {
        name.removeprefix(f"{subject}: "): row
        for name, row in json.loads(PATH.read_text()).items()
        if name.startswith(f"{subject}: ")
    }
    found = digests(subject)
    assert found.keys() == kept.keys()
    moved = []
    for name, (dtype, size, *products) in kept.items():
        own_dtype, own_size, *own = found[name]
        assert own_dtype == dtype
        # The generalised map's parameter comes from an optimiser, which stops at that.
        tolerance = max(TOLERANCE[dtype], 1e-6 if "eneralized" in name else 0.0)
        same_size = np.isclose(own_size, size, rtol=tolerance, atol=0.0)
        if not (same_size and np.allclose(own, products, rtol=0.0, atol=10 * tolerance)):
            moved.append((name, size, own_size))
    assert not moved, f"{len(moved)} of {len(kept)}: {moved[:8]}"
