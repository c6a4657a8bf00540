"""No result moves unnoticed: digests of arrays equal those that were written to a file.

The generalised map's parameter comes from an optimiser, which stops at 1e-8 or so. Attention by
features of both signs divides by sums that may cancel, so rounding is larger there.
"""

import json

import numpy as np
import pytest
from golden import PATH, SUBJECTS, digests

# Of the root mean square of an array.
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
SIGNED = ("attention trigonometric", "attention hybrid")


def tolerance_of(name, dtype):
    """Return what rounding may change, beside a processor's own order of sums."""
    if "eneralized" in name:
        return 1e-6
    return TOLERANCE[dtype] * (100.0 if name.startswith(SIGNED) else 1.0)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_results_are_those_in_the_file(subject):
    if subject == "torch gradients":
        pytest.importorskip("torch", reason="torch is not installed")
    kept = {
        name.removeprefix(f"{subject}: "): row
        for name, row in json.loads(PATH.read_text()).items()
        if name.startswith(f"{subject}: ")
    }
    results = digests(subject)
    assert results.keys() == kept.keys()
    moved = []
    for name, (dtype, size, *products) in kept.items():
        new_dtype, new_size, *new_products = results[name]
        assert new_dtype == dtype
        tolerance = tolerance_of(name, dtype)
        same_size = np.isclose(new_size, size, rtol=tolerance, atol=0.0)
        if not (same_size and np.allclose(new_products, products, rtol=0.0, atol=10 * tolerance)):
            moved.append((name, size, new_size))
    assert not moved, f"{len(moved)} of {len(kept)}: {moved[:8]}"
