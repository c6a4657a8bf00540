"""Modules that a package beyond the requirements is needed for are left out where it is not."""

from importlib.util import find_spec

# Package that is needed: modules.
_NEEDED = {
    "dask": ("skrf/dask.py",),
    "torch": ("skrf/torch/__init__.py", "skrf/torch/module.py", "skrf/torch/_causal.py"),
}
collect_ignore = [path for name, paths in _NEEDED.items() if not find_spec(name) for path in paths]
