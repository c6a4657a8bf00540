"""Kernels in two versions that agree to rounding: plain array-API code and compiled code.

Both modules have `project`, `pull_back`, `sweep`, `sweep_back`, `sine_cosine` and `city_block`,
and the recursions of hidden Markov models, `filter_states` to `trace`.
`plain` serves every array library and is the oracle; `cpu` needs numba, whose import and first
calls cost as much as many small calls. Public calls tell `load` how much they are about to do; once
all calls of the process together have done so much that compiled code repays what it costs, `cpu`
serves them. Both sum in the dtype of the input: which one ran moves results by rounding errors,
never more.
"""

import os
from pathlib import Path

import numpy as np

from .._arrays import is_array_api
from . import plain

# NumPy's sines and cosines are scalar in float64, fifty times slower than the compiled ones: over
# this many they lose a third of that time. In float32 they are vectorised; 1/`_SINGLE` is lost.
MANY_SINES, _SINGLE = 2**23, 32
# Elements of 4 bytes that transforms go through; those of 8 take twice as long. On two threads,
# plain ones take 0.8 s, and compiled ones half as long after 0.5 s for the import and the first
# call, with 1.5 s more where numba's cache on disk has nothing.
MANY_TRANSFORMED, _TO_COMPILE = 2**29, 4
_SMALL = 2**16  # work of calls that do not count: many single rows need no compiled code

_made = 0  # features in float64, or as many in float32 as lose the same time
_transformed = {"float32": 0, "float64": 0}  # inf where compiled code is in use


def load(X, n_sines, n_transformed=0):
    """Take note of the work of a call, and use compiled code from when all calls repay it.

    Parameters
    ----------
    X : array or sparse matrix
        The input, or an empty array of its dtype.
    n_sines : int
        Number of sines and cosines that the call makes.
    n_transformed : int, default=0
        Number of elements that its fast transforms go through.
    """
    global _made
    if not _is_compiled(X):
        return
    if n_sines >= _SMALL:
        _made += n_sines // _SINGLE if X.dtype == np.float32 else n_sines
    if n_transformed >= _SMALL:
        name = X.dtype.name
        _transformed[name] += n_transformed * X.dtype.itemsize // 4
        if _transformed[name] >= MANY_TRANSFORMED * (1 if _is_cached(name) else _TO_COMPILE):
            _transformed[name] = np.inf
    if _made >= MANY_SINES or np.inf in _transformed.values():
        _cpu()


def load_all():
    """Use compiled code from now on, however small the calls are."""
    global _made, _subtracted, _passed
    _made, _subtracted = max(_made, MANY_SINES), max(_subtracted, MANY_DIFFERENCES)
    _passed = max(_passed, MANY_SYMBOLS)
    _transformed.update(float32=np.inf, float64=np.inf)


def of_transforms(X):
    """Return the module whose transforms serve X: `plain` or `cpu`."""
    return _cpu() if _is_compiled(X) and _transformed[X.dtype.name] == np.inf else plain


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
    is_compiled = _made >= MANY_SINES and _is_compiled(products)
    (_cpu() if is_compiled else plain).sine_cosine(products, amplitude, out)


def _is_compiled(X):
    """Return whether there is compiled code for the library and the dtype of X."""
    return not is_array_api(X) and X.dtype in (np.float32, np.float64)


def _cpu():
    from . import cpu

    return cpu


def _is_cached(dtype, kernel="_project_rows"):
    """Return whether numba's cache on disk has a kernel of a dtype, without importing numba.

    A wrong answer costs time alone. Folders are those that numba looks into, in its order.
    """
    source, name = Path(__file__).with_name("cpu.py"), f"cpu.{kernel}-{dtype}-*.nbi"
    try:
        if given := os.environ.get("NUMBA_CACHE_DIR"):
            files = [*Path(given).glob(f"*/{name}")]
        else:
            caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            files = [*source.parent.glob(f"__pycache__/{name}"), *caches.glob(f"numba/*/{name}")]
        return any(file.stat().st_mtime >= source.stat().st_mtime for file in files)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return False


# Compiled code saves 0.2 ns a difference of two coordinates: so many repay the time to load it.
MANY_DIFFERENCES = 2**31
_subtracted = 0


def city_block(X, Y):
    """Return the L1 distances of all pairs of rows, once many have been needed by compiled code.

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
    global _subtracted
    if not _is_compiled(X):
        return plain.city_block(X, Y)
    work = X.size * len(Y)
    if work >= _SMALL:
        _subtracted += work
    return (_cpu() if _subtracted >= MANY_DIFFERENCES else plain).city_block(X, Y)


# Plain recursions take 5 microseconds a symbol. Loading compiled ones takes 0.75 s, or 4.4 s where
# numba's cache on disk has nothing.
MANY_SYMBOLS = 2**17
_passed = 0


def of_recursions(n_symbols, tell=None):
    """Return the module whose recursions of hidden Markov models serve so many symbols more.

    Parameters
    ----------
    n_symbols : int
        Number of symbols, times passes over them.
    tell : callable, default=None
        Called with a line before a compilation that takes seconds.
    """
    global _passed
    is_new = _passed < MANY_SYMBOLS
    _passed += n_symbols
    if _passed < MANY_SYMBOLS:
        return plain
    if is_new and tell is not None and not _is_cached("float64", "_filter"):
        tell("compiling the recursions, once on this machine")
    return _cpu()
