"""Compiled twins of `plain` for NumPy arrays of float32 and float64.

Only `skrf._kernels` loads it, because it imports numba. The kernels are serial and release
the GIL; numba compiles each one per dtype at its first call and, where it can, caches it on disk.

The fast transform has constant geometry (Pease): every pass joins neighbours x_{4g}, ..., x_{4g+3}
and writes the four results a quarter of the row apart. After all passes every index is back in
place, whatever the power of two. All passes are one loop over contiguous memory between two
different arrays, which the compiler turns into full vectors; butterflies in place at strides 1, 2,
4, 8 are not vectorised.
"""

import math
import threading
from functools import partial
from types import FunctionType

import llvmlite.binding
import numba
import numpy as np
from numba import njit
from numpy.lib.stride_tricks import as_strided

from . import plain

_OPTIONS = {"nogil": True, "error_model": "numpy"}
# Compiled into other functions alone: wrappers for Python and C would take a third of the time.
_INNER = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_CPU = numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name()


class _Kernel:
    """A function that is compiled for a dtype at its first call with it, and cached if possible.

    numba's cache fails where no folder for it can be written (a package installed by another user
    who has no home, a full disk), and where its files are damaged; the call then compiles without.

    Every dtype and processor has files of its own. In a common one, numba numbers the compiled
    versions, and two processes that add one at the same time give both the same number: from then
    on a call finds the code of the other.

    Parameters
    ----------
    function : function
        The function; those it calls are compiled into it.
    **options : dict
        Further options of `numba.njit`.
    """

    def __init__(self, function, **options):
        self.function, self.options = function, {**_OPTIONS, **options}
        self._compiled, self._lock = {}, threading.Lock()

    def __call__(self, first, *arguments):
        compiled = self._compiled.get(first.dtype)
        if compiled is not None:
            return compiled(first, *arguments)
        with self._lock:  # else every thread of a first call would compile
            return self._first_call(first, *arguments)

    def _first_call(self, *args):
        dtype = args[0].dtype
        if dtype in self._compiled:
            return self._compiled[dtype](*args)
        names = self.function.__globals__
        names = {**names, **_SINGLE} if dtype == np.float32 else names
        function = FunctionType(self.function.__code__, names)
        function.__qualname__ = f"{self.function.__name__}-{dtype}-{_CPU}"  # names the files
        try:
            compiled = njit(cache=True, **self.options)(function)
            result = compiled(*args)  # before it runs, it is read from the cache or written there
        except Exception:  # whatever reading and writing of files and pickles raise
            compiled = njit(**self.options)(function)
            result = compiled(*args)
        self._compiled[dtype] = compiled
        return result


def _read_only(array):
    """Return a contiguous array that numba compiles only one version for, as it may be of users."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@njit(**_INNER)
def _transform(buffers, side):
    """Transform both[side] of length 2^k by H, and return the side that holds the result."""
    order = buffers.shape[1]
    quarter, half, left = order // 4, order // 2, order
    while left >= 4:
        x, y = buffers[side], buffers[1 - side]
        for g in range(quarter):
            a, b, c, d = x[4 * g], x[4 * g + 1], x[4 * g + 2], x[4 * g + 3]
            y[g] = (a + b) + (c + d)
            y[quarter + g] = (a - b) + (c - d)
            y[2 * quarter + g] = (a + b) - (c + d)
            y[3 * quarter + g] = (a - b) - (c - d)
        side, left = 1 - side, left // 4
    if left == 2:
        x, y = buffers[side], buffers[1 - side]
        for g in range(half):
            a, b = x[2 * g], x[2 * g + 1]
            y[g] = a + b
            y[half + g] = a - b
        side = 1 - side
    return side


# The row sum is vectorised only if its terms may be added in another order.
@njit(fastmath={"reassoc", "nsz", "contract"}, **_INNER)
def _sum(x):
    total = x[0] - x[0]
    for j in range(x.shape[0]):
        total += x[j]
    return total


@_Kernel
def _project_rows(X, diagonals, lengths, weights, out):
    # Both arrays of a row stay in the L1 cache through all layers.
    n_blocks, n_layers, order = diagonals.shape
    d = X.shape[1]
    buffers = np.empty((2, order), X.dtype)
    for k in range(n_blocks):
        cut = lengths[k * order : (k + 1) * order]
        m = cut.shape[0]
        a, b, c = weights[k]
        for i in range(X.shape[0]):
            side, row, x = np.intp(0), buffers[0], X[i]
            for j in range(d):  # slices would take seconds to compile
                row[j] = x[j]
            for j in range(d, order):
                row[j] = 0
            for layer in range(n_layers):
                row, diagonal = buffers[side], diagonals[k, layer]
                for j in range(order):
                    row[j] *= diagonal[j]
                side = _transform(buffers, side)
            row, target = buffers[side], out[i, k * order : k * order + m]
            if a != 0:
                total = _sum(row[: m - 1])
                for j in range(m - 1):
                    row[j] = a * row[j] - b * total
                row[m - 1] = c * total
            for j in range(m):
                target[j] = cut[j] * row[j]


def project(X, diagonals, lengths, simplices, out):
    """Write products with the rows of structured blocks into `out`; see `plain.project`."""
    weights = _weights(diagonals, lengths, simplices)
    _project_rows(_read_only(X), diagonals, lengths, weights, out)
    return out


def _weights(diagonals, lengths, simplices):
    """Return the simplex weights of every block; zeros, as for a block of one row, mean none."""
    n_blocks, _, order = diagonals.shape
    weights = np.zeros((n_blocks, 3), diagonals.dtype)
    for k in range(n_blocks):
        rows = min(order, len(lengths) - k * order)
        if simplices and rows > 1:
            weights[k] = plain.simplex_weights(rows)
    return weights


# ---------------------------------------------------------------- elementary functions
#
# Names that the kernels below read stand for these values in float64, and for those of `_SINGLE` in
# float32: with another type among them, loops would turn to float64.

# Other reordering would undo the reductions.
_CONTRACTS = {"contract", "nsz"}


# Parts of polynomials, terms[0] + x (terms[1] + ... x last); loops would not be vectorised.
@njit(inline="always", fastmath=_CONTRACTS, **_INNER)
def _nested(terms, x, last):
    return terms[0] + x * (terms[1] + x * (terms[2] + x * (terms[3] + x * (terms[4] + x * last))))


@njit(inline="always", fastmath=_CONTRACTS, **_INNER)
def _nested_single(terms, x, last):
    return terms[0] + x * (terms[1] + x * last)


_FLOAT, _INT, _ONE, _HALF = np.float64, np.int64, 1.0, 0.5

_FAR = 1e6  # beyond this the reduction loses digits
_PER_QUARTER = 2 / np.pi
_QUARTER = 1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624879595063154e-21
_SINES = (
    -1.66666666666666324348e-01,
    8.33333333332248946124e-03,
    -1.98412698298579493134e-04,
    2.75573137070700676789e-06,
    -2.50507602534068634195e-08,
    1.58969099521155010221e-10,
)
_COSINES = (
    4.16666666666666019037e-02,
    -1.38888888888741095749e-03,
    2.48015872894767294178e-05,
    -2.75573143513906633035e-07,
    2.08757232129817482790e-09,
    -1.13596475577881948265e-11,
)

_LOWEST, _HIGHEST = -746.0, 710.0  # beyond these, exponentials are 0 and inf
_PER_LOG_2 = 1 / np.log(2)
_LOG_2 = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # of fdlibm
_TAYLOR = tuple(tuple(1 / math.factorial(n) for n in range(k, k + 5)) for k in (2, 7, 12))
_ROUND = 1.5 * 2.0**52
_ROUND_BITS = np.float64(_ROUND).view(np.int64)
_BIAS, _N_BITS = np.int64(1023), np.int64(52)  # of an exponent, and of the digits after it


def _singles(*numbers):
    return tuple(map(np.float32, numbers))


_SINGLE = {
    "_FLOAT": np.float32,
    "_INT": np.int32,
    "_ONE": np.float32(1),
    "_HALF": np.float32(0.5),
    "_FAR": np.float32(8192),
    "_PER_QUARTER": np.float32(_PER_QUARTER),
    "_QUARTER": _singles(1.5703125, 4.83751296997e-4, 7.54978995489e-8),
    "_SINES": _singles(-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4),
    "_COSINES": _singles(4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5),
    "_LOWEST": np.float32(-104),
    "_HIGHEST": np.float32(89),
    "_PER_LOG_2": np.float32(_PER_LOG_2),
    "_LOG_2": _singles(0.693359375, -2.12194440e-4),  # of Cephes
    "_TAYLOR": (_singles(1 / 2, 1 / 6), _singles(1 / 24, 1 / 120), _singles(1 / 720, 1 / 5040)),
    "_nested": _nested_single,
    "_ROUND": np.float32(1.5 * 2.0**23),
    "_ROUND_BITS": np.float32(1.5 * 2.0**23).view(np.int32),
    "_BIAS": np.int32(127),
    "_N_BITS": np.int32(23),
}

# The compiler does not vectorise calls of sin and cos. Written out they are: reduction by multiples
# of pi/2 in three parts, the polynomials of fdlibm (float64) and Cephes (float32), and selects
# instead of branches.


@partial(_Kernel, fastmath=_CONTRACTS)
def _sine_cosine(products, amplitude, out):
    n, m = products.shape
    is_far = _INT(0)  # as wide as the rows: a wider type would halve the vectors
    for i in range(n):
        a = amplitude[i]
        # Views of rows: indices that count from an offset are not vectorised.
        x_row, cosines, sines = products[i], out[i, :m], out[i, m : 2 * m]
        for j in range(m):
            x = x_row[j]
            is_far = _INT(is_far | _INT(abs(x) > _FAR))
            k = np.rint(x * _PER_QUARTER)
            r = ((x - k * _QUARTER[0]) - k * _QUARTER[1]) - k * _QUARTER[2]
            q = np.int32(k)
            z = r * r
            s = r + r * z * _nested(_SINES, z, _SINES[-1])
            c = _ONE - (z * _HALF - z * z * _nested(_COSINES, z, _COSINES[-1]))
            sine = c if q & 1 else s
            cosine = s if q & 1 else c
            sine = -sine if q & 2 else sine
            cosine = -cosine if (q + 1) & 2 else cosine
            cosines[j] = cosine * a
            sines[j] = sine * a
    return is_far


def sine_cosine(products, amplitude, out):
    """Write [cos P * a, sin P * a] side by side into `out`, one amplitude a per row."""
    # The loop is vectorised for whole arrays, whose strides it knows, not for slices of columns:
    # it gets whole rows, of which it writes only these columns. The stride of an axis of length 1
    # is arbitrary.
    to_next, step = out.strides
    width, remainder = divmod(to_next, out.itemsize) if len(out) > 1 else (out.shape[1], 0)
    is_whole = step == out.itemsize and remainder == 0 and width >= out.shape[1]
    is_ready = products.flags.c_contiguous and is_whole
    sizes = np.ones(len(out), out.dtype) if amplitude is None else amplitude
    whole_rows = as_strided(out, (len(out), width)) if is_ready else None
    if not is_ready or _sine_cosine(_read_only(products), sizes, whole_rows):
        plain.sine_cosine(products, amplitude, out)


# exp(x) = 2^k exp(r), r = x - k log(2) from -0.35 to 0.35 in two parts, by Taylor's polynomial.
# Adding 1.5 * 2^52 (2^23) rounds x / log(2) to k, and leaves k in the last bits. 2^k is the product
# of two powers, of which none leaves the range of normal numbers: so overflow and gradual underflow
# are those of one multiplication. Comparisons are false for NaN, which passes through.

_CHUNK = 512  # copied to memory of its own, or the compiler would fear that `out` is `logs`


@partial(_Kernel, fastmath=_CONTRACTS)
def _exp(logs, out):
    chunk = np.empty(_CHUNK, logs.dtype)
    for start in range(0, len(logs), _CHUNK):
        x_part, target = logs[start : start + _CHUNK], out[start : start + _CHUNK]
        for j in range(len(x_part)):
            chunk[j] = x_part[j]
        for j in range(len(x_part)):
            x = chunk[j]
            x = _LOWEST if x < _LOWEST else x
            x = _HIGHEST if x > _HIGHEST else x
            rounded = x * _PER_LOG_2 + _ROUND
            power = _INT(_FLOAT(rounded).view(_INT) - _ROUND_BITS)
            k = rounded - _ROUND
            r = (x - k * _LOG_2[0]) - k * _LOG_2[1]
            last = _nested(_TAYLOR[1], r, _TAYLOR[2][0] + r * _TAYLOR[2][1])
            half = _INT(power >> _INT(1))
            first = _INT((half + _BIAS) << _N_BITS).view(_FLOAT)
            second = _INT((power - half + _BIAS) << _N_BITS).view(_FLOAT)
            target[j] = (_ONE + (r + r * r * _nested(_TAYLOR[0], r, last))) * first * second


def exp(logs, out):
    """Write exponentials to another array or to the same one; see `plain.exp`."""
    if not (logs.flags.c_contiguous and out.flags.c_contiguous and logs.dtype == out.dtype):
        return plain.exp(logs, out)
    _exp(_read_only(logs).reshape(-1), out.reshape(-1))


# ---------------------------------------------------------------- L1 distances
#
# The inner loop goes across the rows of Y, and so is vectorised without another order of the sums.


@_Kernel
def _city_block(X, columns, out):
    for i in range(X.shape[0]):
        x, distances = X[i], out[i]
        for j in range(columns.shape[0]):
            value, column = x[j], columns[j]
            for k in range(column.shape[0]):
                distances[k] += abs(value - column[k])


def city_block(X, Y):
    """Return the L1 distances of all pairs of rows; see `plain.city_block`."""
    out = np.zeros((len(X), len(Y)), X.dtype)
    _city_block(_read_only(X), _read_only(Y.T.astype(X.dtype, copy=False)), out)
    return out


# ---------------------------------------------------------------- hidden Markov models
#
# Sequences lie one after the other; `starts` says where one begins. `plain` has the formulas.

_TIES = plain.TIES

# Loops of few states take as long as what surrounds them, unless their number is a constant.
_Unrolled = partial(njit, inline="always", **_INNER)


@_Unrolled()
def _product(n, x, A, out):
    """Write x @ A: eight or four rows at a time, or the sums would wait for their stores."""
    many = n // 8 * 8
    for i in range(0, many, 8):
        x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
        x4, x5, x6, x7 = x[i + 4], x[i + 5], x[i + 6], x[i + 7]
        for j in range(n):
            y = (x0 * A[i, j] + x1 * A[i + 1, j]) + (x2 * A[i + 2, j] + x3 * A[i + 3, j])
            z = (x4 * A[i + 4, j] + x5 * A[i + 5, j]) + (x6 * A[i + 6, j] + x7 * A[i + 7, j])
            out[j] = y + z if i == 0 else out[j] + (y + z)
    for i in range(many, n, 4):
        b, c, d = min(i + 1, n - 1), min(i + 2, n - 1), min(i + 3, n - 1)
        x0, x1 = x[i], x[b] if b == i + 1 else 0.0
        x2, x3 = x[c] if c == i + 2 else 0.0, x[d] if d == i + 3 else 0.0
        for j in range(n):
            y = (x0 * A[i, j] + x1 * A[b, j]) + (x2 * A[c, j] + x3 * A[d, j])
            out[j] = y if i == 0 else out[j] + y


@_Unrolled()
def _total(n, x):
    # Four sums, as one waits for its last term. The compiler's own order would depend on where
    # arrays lie, and so would the last bit.
    t0, t1, t2, t3, many = 0.0, 0.0, 0.0, 0.0, n // 4 * 4
    for j in range(0, many, 4):
        t0, t1, t2, t3 = t0 + x[j], t1 + x[j + 1], t2 + x[j + 2], t3 + x[j + 3]
    for j in range(many, n):
        t0 += x[j]
    return (t0 + t1) + (t2 + t3)


@_Unrolled()
def _filter_few(n, A, start, weights, symbols, starts, least, posteriors, totals):
    # The next product goes on from shares that are not yet divided: nothing waits for divisions.
    keeps, inverse = len(posteriors) > 1, 1.0
    last, ahead = np.empty(n), np.empty(n)
    for t in range(len(symbols)):
        w = weights[symbols[t]]
        if starts[t]:
            inverse = 1.0
            for j in range(n):
                ahead[j] = start[j]
        else:
            _product(n, last, A, ahead)
        for j in range(n):
            last[j] = ahead[j] * (w[j] * inverse)
        total = _total(n, last)
        if not total > least:
            return False
        totals[t], inverse, post = total, 1 / total, posteriors[t if keeps else 0]
        for j in range(n):
            post[j] = last[j] * inverse
    return True


@_Kernel
def _filter(A, start, weights, symbols, starts, least, posteriors, totals):
    n = len(start)
    if n == 3:
        return _filter_few(3, A, start, weights, symbols, starts, least, posteriors, totals)
    if n == 4:
        return _filter_few(4, A, start, weights, symbols, starts, least, posteriors, totals)
    return _filter_few(n, A, start, weights, symbols, starts, least, posteriors, totals)


@_Unrolled()
def _smooth_few(
    n, turned, weights, symbols, starts, totals, posteriors, moves, by_symbol, by_start
):
    counts, back, ahead = len(moves) > 0, np.empty(n), np.empty(n)
    for t in range(len(symbols) - 1, -1, -1):
        if t + 1 == len(symbols) or starts[t + 1]:
            for j in range(n):
                back[j] = 1.0
        post, w, total, inverse = posteriors[t], weights[symbols[t]], 0.0, 1 / totals[t]
        for j in range(n):
            ahead[j] = w[j] * inverse * back[j]
            post[j] *= back[j]
            total += post[j]
        one = 1 / total  # but for rounding it is 1
        for j in range(n):
            post[j] *= one
        if not starts[t]:
            _product(n, ahead, turned, back)
        if counts:
            row = by_symbol[symbols[t]]
            for j in range(n):
                row[j] += post[j]
                ahead[j] *= one
            if starts[t]:
                for j in range(n):
                    by_start[j] += ahead[j]
            else:
                before = posteriors[t - 1]
                for i in range(n):
                    for j in range(n):
                        moves[i, j] += before[i] * ahead[j]


@_Kernel
def _smooth(turned, w, symbols, starts, totals, posteriors, moves, by_symbol, by_start):
    n = len(turned)
    if n == 3:
        _smooth_few(3, turned, w, symbols, starts, totals, posteriors, moves, by_symbol, by_start)
    elif n == 4:
        _smooth_few(4, turned, w, symbols, starts, totals, posteriors, moves, by_symbol, by_start)
    else:
        _smooth_few(n, turned, w, symbols, starts, totals, posteriors, moves, by_symbol, by_start)


@partial(_Kernel, fastmath={"reassoc", "nsz", "nnan"})
def _largest(values, margin, places):
    for t in range(len(values)):
        row, top, j = values[t], 0.0, 0
        for i in range(len(row)):
            top = row[i] if row[i] > top else top
        top -= margin * top
        while row[j] < top:
            j += 1
        places[t] = j


@njit(**_INNER)
def _log_sums(turned, log_turned, logs, exps, sums):
    """Write logs of turned @ exp(logs), of which small ones are summed term by term."""
    n, top = len(logs), -np.inf
    for i in range(n):  # methods and slices of arrays, here and below, would compile for seconds
        top = max(top, logs[i])
    for i in range(n):
        exps[i] = np.exp(logs[i] - top) if top > -np.inf else 0.0
    for j in range(n):
        total, row = 0.0, turned[j]
        for i in range(n):
            total += row[i] * exps[i]
        if total > 1e-280:
            sums[j] = np.log(total) + top
            continue
        row, most, total = log_turned[j], -np.inf, 0.0
        for i in range(n):
            most = max(most, row[i] + logs[i])
        if most > -np.inf:
            for i in range(n):
                total += np.exp(row[i] + logs[i] - most)
            most += np.log(total)
        sums[j] = most


@_Kernel
def _filter_logs(turned, log_turned, log_start, log_weights, symbols, starts, posteriors, norms):
    n, keeps = len(log_start), len(posteriors) > 1
    ahead, exps, last = np.empty(n), np.empty(n), posteriors[0]
    for t in range(len(symbols)):
        row = log_weights[symbols[t]]
        if starts[t]:
            for j in range(n):
                ahead[j] = log_start[j]
        else:
            _log_sums(turned, log_turned, last, exps, ahead)
        top, total = -np.inf, 0.0
        for j in range(n):
            ahead[j] += row[j]
            top = max(top, ahead[j])
        last = posteriors[t if keeps else 0]
        if top > -np.inf:
            for j in range(n):
                total += np.exp(ahead[j] - top)
            top += np.log(total)
        norms[t] = top
        for j in range(n):
            last[j] = ahead[j] - top if top > -np.inf else top


@_Kernel
def _smooth_logs(
    A, log_A, log_weights, symbols, starts, norms, posteriors, moves, by_symbol, by_start
):
    n, counts = len(A), len(moves) > 0
    back, ahead, exps = np.empty(n), np.empty(n), np.empty(n)
    for t in range(len(symbols) - 1, -1, -1):
        if t + 1 == len(symbols) or starts[t + 1]:
            for j in range(n):
                back[j] = 0.0
        post, row, total = posteriors[t], log_weights[symbols[t]], 0.0
        for j in range(n):
            ahead[j] = row[j] + back[j] - norms[t]
            post[j] = np.exp(post[j] + back[j])
            total += post[j]
        for j in range(n):
            post[j] /= total
        if counts:
            row = by_symbol[symbols[t]]
            for j in range(n):
                row[j] += post[j]
        if not starts[t]:
            if counts:
                before = posteriors[t - 1]
                for i in range(n):
                    x, row, out = before[i], log_A[i], moves[i]
                    for j in range(n):
                        log = x + row[j] + ahead[j]
                        if log > -740.0:
                            out[j] += np.exp(log)
            _log_sums(A, log_A, ahead, exps, back)
        elif counts:
            for j in range(n):
                by_start[j] += post[j]


@_Kernel
def _best(log_A, log_start, log_weights, symbols, starts, best):
    n, new = len(log_start), np.empty(len(log_start))
    p = best[0]
    for t in range(len(symbols)):
        row, out = log_weights[symbols[t]], best[t]
        for j in range(n):
            new[j] = log_start[j] if starts[t] else -np.inf
        if not starts[t]:
            for i in range(0, n, 4):  # the last row again if there are no more
                b, c, d = min(i + 1, n - 1), min(i + 2, n - 1), min(i + 3, n - 1)
                x0, x1, x2, x3 = p[i], p[b], p[c], p[d]
                a0, a1, a2, a3 = log_A[i], log_A[b], log_A[c], log_A[d]
                for j in range(n):
                    y0, y1, y2, y3 = x0 + a0[j], x1 + a1[j], x2 + a2[j], x3 + a3[j]
                    y0 = y0 if y0 > y1 else y1
                    y2 = y2 if y2 > y3 else y3
                    y0 = y0 if y0 > y2 else y2
                    new[j] = y0 if y0 > new[j] else new[j]
        for j in range(n):
            out[j] = new[j] + row[j]
        p = out


@_Kernel
def _trace(log_turned, best, ends, path):
    n, after = best.shape[1], 0
    for t in range(len(best) - 1, -1, -1):
        p, a, top, is_end = best[t], log_turned[after], -np.inf, ends[t]
        for i in range(n):
            y = p[i] if is_end else p[i] + a[i]
            top = y if y > top else top
        top -= _TIES * (1.0 + abs(top))
        after = 0
        while (p[after] if is_end else p[after] + a[after]) < top:
            after += 1
        path[t] = after


def filter_states(A, start, weights, symbols, starts, least, posteriors, totals):
    """Write posteriors given the past, or the last alone, and divisors; see `plain`."""
    arrays = map(_read_only, (A, start, weights, symbols, starts))
    return _filter(*arrays, least, posteriors, totals)


def smooth_states(A, weights, symbols, starts, totals, posteriors, counts=None):
    """Turn posteriors given the past into those given all, and add to counts; see `plain`."""
    arrays = map(_read_only, (A.T, weights, symbols, starts, totals))
    _smooth(*arrays, posteriors, *_counts(counts))


def largest_places(values, margin):
    """Return the place of the largest value of every row; see `plain`."""
    places = np.empty(len(values), np.intp)
    _largest(_read_only(values), margin, places)
    return places


def filter_logs(A, log_A, log_start, log_weights, symbols, starts, posteriors, norms):
    """Do the same as `filter_states` with logarithms; see `plain`."""
    arrays = map(_read_only, (A.T, log_A.T, log_start, log_weights, symbols, starts))
    _filter_logs(*arrays, posteriors, norms)


def smooth_logs(A, log_A, log_weights, symbols, starts, norms, posteriors, counts=None):
    """Do the same as `smooth_states` with logarithms; see `plain`."""
    arrays = map(_read_only, (A, log_A, log_weights, symbols, starts, norms))
    _smooth_logs(*arrays, posteriors, *_counts(counts))


def best_values(log_A, log_start, log_weights, symbols, starts, best):
    """Write log probabilities of the best paths to every state; see `plain`."""
    arrays = map(_read_only, (log_A, log_start, log_weights, symbols, starts))
    _best(*arrays, best)


def trace(log_A, best, ends, path):
    """Write the best path, from its end; see `plain`."""
    _trace(*map(_read_only, (log_A.T, best, ends)), path)


def _counts(counts):
    return (np.empty((0, 0)), np.empty((0, 0)), np.empty(0)) if counts is None else counts
