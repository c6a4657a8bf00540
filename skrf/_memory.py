"""The one rule about sizes: what a fit will hold must fit into the memory that it may use.

Without it, Linux promises any amount, and a fit with too many components grows until its process,
or another one, is ended; or it draws row by row for hours before an allocation fails.
"""

import math
import os
import sys
from functools import cache
from pathlib import Path, PurePosixPath

try:
    import resource
except ImportError:  # Windows
    resource = None

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def check_fits(n_bytes, asked, purpose):
    """Raise MemoryError if more bytes are needed than this process may use.

    Parameters
    ----------
    n_bytes : int
        About what will be held at the same time, rather too little than too much.
    asked : str
        What asks for it: a parameter and its value.
    purpose : str
        What the bytes are for.
    """
    if n_bytes <= available():
        return
    _of_machine.cache_clear()  # limits of a container may have been raised
    if n_bytes > available():
        raise MemoryError(
            f"{asked} needs {_shown(n_bytes)} of memory for {purpose}, but this process may use "
            f"only {_shown(available())}."
        )


def class_name(estimator):
    """Return the name by which users know the class of an estimator."""
    return getattr(estimator, "_class_name", type(estimator).__name__)


def components(estimator):
    """Return the parameter of a feature map that asks for its size."""
    return f"n_components={estimator.n_components!r} of {class_name(estimator)}"


def available():
    """Return how many bytes this process may use: all memory of the machine, or its limit."""
    most = _of_machine()
    if resource is not None:
        for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
            limit = resource.getrlimit(kind)[0]
            if limit != resource.RLIM_INFINITY:
                most = min(most, limit)
    return most


@cache
def _of_machine():
    """Return the bytes of physical memory, or of the control groups of this process."""
    return min([_physical(), *_group_limits()])


def _physical():
    """Return the bytes of physical memory, inf if they are unknown."""
    if sys.platform == "win32":
        return _physical_of_windows()
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return math.inf


def _physical_of_windows():
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ulong), ("load", ctypes.c_ulong)]
        _fields_ += [(f"size{k}", ctypes.c_ulonglong) for k in range(7)]  # the total comes first

    status = Status(length=ctypes.sizeof(Status))
    succeeded = ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
    return status.size0 if succeeded else math.inf


def _group_limits():
    """Yield the limits of the control groups that this process is in, of both versions of Linux."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        controllers, path = line.split(":", 2)[1:]
        if not controllers:
            root, name = _GROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _GROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        group_path = PurePosixPath(path.lstrip("/"))
        # All groups above limit it too. A container may see only its own, as the root.
        for group in (group_path, *group_path.parents):
            try:
                limit = (root / group / name).read_text().strip()
            except OSError:
                continue
            if limit.isdigit():  # and not "max"
                yield int(limit)


def _shown(n_bytes):
    size = math.log2(max(n_bytes, 1))
    power = int(size) // 10
    if power >= len(_UNITS):
        return f"2^{size:.0f} bytes"
    return f"{n_bytes / 1024**power:.4g} {_UNITS[power]}"
