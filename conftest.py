"""What tests and doctests share: modules that are left out, their order, and random numbers."""

import gc
import sys
from importlib.util import find_spec

import numpy as np
import pytest

pytest_plugins = ["costs"]

# Modules that need a package beyond the requirements are not collected where it is missing.
_NEEDED = {"dask": "skrf/dask.py", "torch": "skrf/torch/*"}
collect_ignore_glob = [paths for name, paths in _NEEDED.items() if not find_spec(name)]


def pytest_addoption(parser):
    """Add an option for the order of the tests."""
    parser.addoption("--reverse", action="store_true", help="run the tests from last to first")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    """Reverse what other hooks have chosen."""
    yield
    if config.getoption("reverse"):
        items.reverse()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the collector of garbage from what imports leave, which stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


_states = {}  # of the generators of test modules, as their import left them


@pytest.fixture(autouse=True)
def seeded(request):
    """Make random numbers the same in every run, in every order, and for each test alone."""
    np.random.seed(0)  # noqa: NPY002, the generator that random_state=None stands for
    for name, value in vars(getattr(request.node, "module", None) or object).items():
        if isinstance(value, np.random.Generator):
            state = _states.setdefault((request.node.module, name), value.bit_generator.state)
            value.bit_generator.state = state
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
