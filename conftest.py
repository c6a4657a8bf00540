"""Modules that a package beyond the requirements is needed for are left out where it is not."""

from importlib.util import find_spec

collect_ignore = [f"skrf/{name}.py" for name in ("dask", "torch") if not find_spec(name)]
