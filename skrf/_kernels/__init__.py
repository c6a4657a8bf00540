"""Kernels in two versions that agree to rounding: plain array-API code and compiled code.

Both modules have `project`, `pull_back` and `sine_cosine`; `choose` picks one for an
input. `plain` serves every array library and is the oracle; `cpu` needs numba, whose import costs
as much as many small calls, so only a large call loads it. Both sum in the dtype of the input:
which one ran moves results by rounding errors, never more.
"""

import sys

import numpy as np

from .._arrays import is_array_api
from . import plain

# Loading numba and the cached kernels takes about 0.4 s; the compiled transform saves 1.5 to 7 ns
# an element, so this many elements earn back a good part of it in one call.
LARGE = 2**25
# NumPy's sines and cosines are scalar in float64, fifty times slower than the compiled ones: over
# this many they lose a third of that time. In float32 they are vectorised; 1/`_SINGLE` is lost.
MANY_SINES, _SINGLE = 2**23, 64
_SMALL = 2**16  # features of calls that do not count: many single rows need no compiled code
_made = 0  # features in float64, or as many in float32 as lose the same time


def choose(X, work):
    """Return the module whose functions serve X.

    The rule: `plain` for arrays of other libraries and for dtypes other than float32 and float64;
    `cpu` if it is loaded already or the work is large; otherwise `plain`.

    Parameters
    ----------
    X : array or sparse matrix
        Rows to be transformed, at once or in blocks.
    work : int
        Number of elements that all transforms of the call produce together.

    Returns
    -------
    module
        `plain` or `cpu`.
    """
    if is_array_api(X) or X.dtype not in (np.float32, np.float64):
        return plain
    if f"{__name__}.cpu" in sys.modules or work >= LARGE:
        from . import cpu

        return cpu
    return plain


def sine_cosine(products, amplitude, out):
    """Write [cos P * a, sin P * a] side by side, one amplitude a per row.

    Parameters
    ----------
    products : ndarray of shape (n, m)
        P, or a block of its rows; `load` decides when compiled code pays.
    amplitude : ndarray of shape (n,) or None
        The amplitudes, or None for 1.
    out : ndarray of shape (n, 2 m)
        Array to write to.
    """
    choose(products, 0).sine_cosine(products, amplitude, out)


def load(X, work):
    """Load compiled sines and cosines once the features of all calls are so many that they pay.

    Parameters
    ----------
    X : array or sparse matrix
        The input.
    work : int
        Number of elements that the call produces.
    """
    global _made
    if work >= _SMALL:
        _made += work // _SINGLE if X.dtype == np.float32 else work
    if _made >= MANY_SINES:
        choose(X, LARGE)
