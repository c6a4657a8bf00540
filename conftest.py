"""What tests and doctests share: modules that are left out, and seeds of global generators."""

import gc
import sys
from importlib.util import find_spec

import numpy as np
import pytest

pytest_plugins = ["costs"]

# Modules that need a package beyond the requirements are not collected where it is missing.
_NEEDED = {"dask": "skrf/dask.py", "torch": "skrf/torch/*"}
collect_ignore_glob = [paths for name, paths in _NEEDED.items() if not find_spec(name)]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the collector of garbage from what imports leave, which stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def seeded():
    """Make what is drawn without a seed the same in every run and in every order of the tests."""
    np.random.seed(0)  # noqa: NPY002, the generator that random_state=None stands for
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
