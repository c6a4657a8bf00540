"""Modules that a package beyond the requirements is needed for are left out where it is not."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["skrf/torch.py"]
