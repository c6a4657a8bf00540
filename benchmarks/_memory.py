"""The largest memory that this process had, from the operating system."""

import resource
import sys
from pathlib import Path


def peak_memory():
    """Return the largest resident memory that this process had, in bytes.

    Linux tells it for the program itself. Elsewhere, getrusage may count what the parent held
    before it started this program.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
