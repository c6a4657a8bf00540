"""The only source of threads: plain threads, with BLAS limited to one thread meanwhile.

The number of threads is what BLAS was allowed when the call came in, so the limits of joblib,
threadpoolctl and the environment all apply. Nothing stays changed after the call.
"""

import math
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController

# Smaller blocks spend their time between operations rather than in them; larger ones leave the
# cache.
_LEAST_ENTRIES, _MOST_ENTRIES = 2**18, 2**19
_LEAST_OF_WIDE = 2**15  # of the output if the input is wider: it takes longer and more memory
_PARTS = 16  # of a medium-sized input, so that more than two threads find work
_ALIGNED = 64  # bytes
WIDE = 512  # columns above which threads of BLAS save more than they cost

_lock = threading.Lock()
_local = threading.local()
_controller = None
_limit = None
_users = 0
_allowed = 1
_n_rows = ContextVar("n_rows", default=0)


@contextmanager
def rows_of_call(n_rows):
    """Let what depends on the number of rows depend on those of a whole call, not of its blocks.

    Nested calls are parts of the outermost one. Threads that are started here take it over.

    Parameters
    ----------
    n_rows : int
        Number of rows; 0 for results that are kept for other calls: their own size decides.
    """
    before = _n_rows.set(n_rows and max(n_rows, _n_rows.get()))
    try:
        yield
    finally:
        _n_rows.reset(before)


def n_rows_of_call(n_rows):
    """Return the number of rows of the call that some rows, given by their number, are part of."""
    return max(n_rows, _n_rows.get())


@contextmanager
def serial_blas():
    """Limit BLAS to one thread and yield how many it was allowed; concurrent users share a limit.

    It is also limited for small products between calls of our own threads: for about 0.1 s after
    each call the threads of OpenBLAS keep cores busy that ours need. A thread restricted by
    `one_thread` leaves BLAS as it is, for others to decide.
    """
    global _controller, _limit, _users, _allowed
    if getattr(_local, "is_alone", False):
        yield 1
        return
    with _lock:
        if _users == 0:
            if _controller is None:
                _controller = ThreadpoolController().select(user_api="blas")
            _allowed = max(
                (library.num_threads for library in _controller.lib_controllers), default=1
            )
            _free_control()
            _limit = _controller.limit(limits=1)
        _users += 1
    try:
        yield _allowed
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _free_control()
                _limit.restore_original_limits()
                _free_control()


def _free_control():
    """Let any thread set limits of BLAS: the last of several users restores what the first set.

    From version 3.8 on, threadpoolctl obeys only the thread that first set one, while it lives.
    """
    for library in _controller.lib_controllers:
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)


def narrow_blas(n_columns):
    """Limit BLAS to one thread for matrices that are not wide."""
    return serial_blas() if n_columns <= WIDE else nullcontext()


def serial_openmp():
    """Limit OpenMP to one thread, whose threads wait by keeping cores busy."""
    return _openmp().limit(limits=1)


@cache
def _openmp():
    return ThreadpoolController().select(user_api="openmp")


@contextmanager
def one_thread():
    """Run the work of the calling thread on this thread alone, because others are busy."""
    before, _local.is_alone = getattr(_local, "is_alone", False), True
    try:
        yield
    finally:
        _local.is_alone = before


class Scratch:
    """Scratch memory, called like `numpy.empty`, that gives a thread the same memory every time.

    Allocating memory again for every block costs more than the arithmetic on it.
    """

    def __init__(self):
        self._local = threading.local()

    def __call__(self, shape, dtype):
        """Return an array that still holds the content of its last use."""
        dtype = np.dtype(dtype)
        n_bytes = math.prod(shape) * dtype.itemsize
        kept = getattr(self._local, "kept", None)
        if kept is None or kept.size < n_bytes:
            kept = np.empty(n_bytes + _ALIGNED, np.uint8)
            # Loads of wide vectors then do not straddle lines of the cache.
            kept = self._local.kept = kept[-kept.ctypes.data % _ALIGNED :]
        return kept[:n_bytes].view(dtype).reshape(shape)


def block_rows(n_rows, n_columns, width):
    """Return the number of rows per block, small enough for threads to share but within limits.

    Parameters
    ----------
    n_rows, n_columns : int
        Shape of the output.
    width : int
        Number of columns of the input.
    """
    least = max(_LEAST_OF_WIDE // n_columns, _LEAST_ENTRIES // max(n_columns, width), 1)
    most = max(_MOST_ENTRIES // n_columns, 1)
    return min(max(-(-n_rows // _PARTS), least), most)


def run_all(function, items, *, is_short=False):
    """Return [function(item), ...], each called exactly once, on the threads allowed.

    Parameters
    ----------
    function : callable
        Its calls must not touch the same memory.
    items : sequence
        Parts of the work of similar size. A single part leaves the threads to BLAS or to nested
        calls; a call nested in one of several parts is serial.
    is_short : bool, default=False
        Whether each part takes less than about 3 ms in many operations, for which threads would
        mostly wait for the interpreter: then they are called one by one.
    """
    if len(items) <= 1 or getattr(_local, "is_worker", False):
        return [function(item) for item in items]
    with serial_blas() as n_threads:
        if n_threads == 1 or is_short:
            return [function(item) for item in items]
        contexts = [copy_context() for _ in items]
        with ThreadPoolExecutor(min(n_threads, len(items)), initializer=_begin_worker) as pool:
            return list(pool.map(lambda own, item: own.run(function, item), contexts, items))


def _begin_worker():
    _local.is_worker = True


def run_rows(function, n_rows, size, start=0):
    """Call function(rows) for slices of `size` rows that cover those from `start` to `n_rows`.

    Every thread works through one contiguous share in blocks that fit its cache, and touches that
    part of the output first. A thread that is done takes blocks from the far ends of the other
    shares, because cores are never equally free, especially after a BLAS call, whose threads keep
    spinning.

    Parameters
    ----------
    function : callable
        Writes its results itself; its calls must not touch the same memory.
    n_rows : int
        Number of rows.
    size : int
        Number of rows per slice, except for the last one.
    """
    blocks = [slice(a, min(a + size, n_rows)) for a in range(start, n_rows, size)]
    with rows_of_call(n_rows), serial_blas() as n_threads:
        if len(blocks) <= 1 or n_threads == 1:
            for rows in blocks:
                function(rows)
            return
        n_shares = min(n_threads, len(blocks))
        ends = [len(blocks) * i // n_shares for i in range(n_shares + 1)]
        shares = [deque(blocks[a:b]) for a, b in zip(ends[:-1], ends[1:], strict=True)]

        def walk(first):
            try:
                for rows in _taken(shares, first):
                    function(rows)
            except BaseException:
                # The others stop after their current block.
                for share in shares:
                    share.clear()
                raise

        # The calling thread takes part: its memory has been used before, that of a new one has not.
        with ThreadPoolExecutor(len(shares) - 1) as pool:
            others = [
                pool.submit(copy_context().run, walk, first) for first in range(1, len(shares))
            ]
            walk(0)
        for other in others:
            other.result()  # raises what a thread raised


def _taken(shares, first):
    """Yield blocks of shares[own] from its near end, then of the others from their far ends.

    Every block goes to exactly one thread: taking one is atomic, and none is ever put back.
    """
    for k in range(first, first + len(shares)):
        share = shares[k % len(shares)]
        take = share.popleft if k == first else share.pop
        while True:
            try:
                rows = take()
            except IndexError:
                break
            yield rows


def map_rows(function, n_rows, size, start=0):
    """Return [function(rows), ...] for the slices of `run_rows`, in the order of the rows."""
    results = {}

    def work(rows):
        results[rows.start] = function(rows)

    run_rows(work, n_rows, size, start)
    return [results[start] for start in sorted(results)]
