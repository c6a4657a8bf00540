"""Kernels in two versions that agree to rounding: plain array-API code and compiled code.

Both modules have `project`, `sine_cosine`, `exp` and `city_block`, and the recursions of hidden
Markov models, `filter_states` to `trace`. `plain` serves every array library and is the
oracle; `cpu` needs numba. Which one serves a call depends on the library, the dtype and the size of
its own arrays, and on nothing that ran before: equal calls return equal bits. The size is that of
the whole public call, whatever blocks and threads it is cut into; see `_threads.rows_of_call`. Both
versions sum in the dtype of the input, and differ by rounding errors alone.
"""

import math
import os
from pathlib import Path

import numpy as np

from .._arrays import is_array_api
from .._threads import n_rows_of_call
from . import plain

# Plain code spends about a millisecond on so much, and smaller calls need no numba at all. Its
# import takes 0.4 s, once in a process, and compiling some more, once on a machine.
ENTRIES = 2**15  # of features or products
DIFFERENCES = 2**19  # of two coordinates, in L1 distances
SYMBOLS = 2**12  # of sequences, times passes over them


def serving(X, per_row, least=None, n_rows=None):
    """Return the module that serves a call: `cpu` if its work is at least `least`, else `plain`.

    Parameters
    ----------
    X : array or sparse matrix of shape (n, d)
        The rows of the call, or a block of them.
    per_row : int
        Work for each row: by default, the number of entries that are written.
    least : int, default=None
        Work from which on compiled code serves; None means `ENTRIES`.
    n_rows : int, default=None
        Number of rows; None means the length of X.
    """
    if is_array_api(X) or X.dtype not in (np.float32, np.float64):
        return plain
    work = n_rows_of_call(X.shape[0] if n_rows is None else n_rows) * per_row
    return _cpu() if work >= (ENTRIES if least is None else least) else plain


def sine_cosine(products, amplitude, out):
    """Write [cos P * a, sin P * a] side by side, one amplitude a per row.

    Parameters
    ----------
    products : ndarray of shape (n, m)
        P, or a block of its rows.
    amplitude : ndarray of shape (n,) or None
        The amplitudes, or None for 1.
    out : ndarray of shape (n, 2 m)
        Array to write to.
    """
    serving(products, out.shape[1]).sine_cosine(products, amplitude, out)


def exp(logs, out):
    """Write the exponentials of a NumPy array (..., n, m) to another array, or to itself."""
    serving(logs, out.shape[-1], n_rows=math.prod(out.shape[:-1])).exp(logs, out)


def city_block(X, Y):
    """Return the L1 distances of all pairs of rows.

    In float64, both versions return the same bits.

    Parameters
    ----------
    X : array of shape (n, d)
        Rows.
    Y : ndarray of shape (m, d)
        Other rows, on the host.

    Returns
    -------
    array of shape (n, m)
        The distances, in the library and the dtype of X.
    """
    return serving(X, X.shape[1] * len(Y), DIFFERENCES).city_block(X, Y)


def of_recursions(n_symbols, tell=None):
    """Return the module whose recursions of hidden Markov models serve a pass over symbols.

    Parameters
    ----------
    n_symbols : int
        Number of symbols, times passes over them.
    tell : callable, default=None
        Called with a line before a compilation that takes seconds.
    """
    if n_rows_of_call(n_symbols) < SYMBOLS:
        return plain
    if tell is not None and not _is_cached("float64", "_filter"):
        tell("compiling the recursions, once on this machine")
    return _cpu()


def _cpu():
    from . import cpu

    return cpu


def _is_cached(dtype, kernel):
    """Return whether numba's cache on disk has a kernel of a dtype, without importing numba.

    A wrong answer costs a line on the screen. Folders are those of numba, in its order.
    """
    source, name = Path(__file__).with_name("cpu.py"), f"cpu.{kernel}-{dtype}-*.nbi"
    try:
        if folder := os.environ.get("NUMBA_CACHE_DIR"):
            files = [*Path(folder).glob(f"*/{name}")]
        else:
            caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            files = [*source.parent.glob(f"__pycache__/{name}"), *caches.glob(f"numba/*/{name}")]
        return any(file.stat().st_mtime >= source.stat().st_mtime for file in files)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return False
