"""The one place where threads come from: plain threads, BLAS held to one thread meanwhile.

As many threads are used as BLAS was allowed when the call came in, so the limits of joblib, of
threadpoolctl and of the environment are all obeyed. Nothing is changed for longer than the call.
"""

import math
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from threadpoolctl import ThreadpoolController

# Smaller blocks spend their time between operations and not in them, larger ones leave the cache.
_LEAST_ENTRIES, _MOST_ENTRIES = 2**15, 2**19
_PARTS = 16  # of an input of middle size, so that more threads than two find work

_lock = threading.Lock()
_own = threading.local()
_controller = None
_limit = None
_users = 0
_allowed = 1


@contextmanager
def serial_blas():
    """Hold BLAS to one thread and yield how many it was allowed; concurrent users share a limit.

    A thread that is alone by `one_thread` leaves BLAS as it is: others decide.
    """
    global _controller, _limit, _users, _allowed
    if getattr(_own, "is_alone", False):
        yield 1
        return
    with _lock:
        if _users == 0:
            if _controller is None:
                _controller = ThreadpoolController().select(user_api="blas")
            _allowed = max(
                (library.num_threads for library in _controller.lib_controllers), default=1
            )
            _limit = _controller.limit(limits=1)
        _users += 1
    try:
        yield _allowed
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _limit.restore_original_limits()


@contextmanager
def one_thread():
    """Keep what the calling thread does to this thread: others have work of their own."""
    before, _own.is_alone = getattr(_own, "is_alone", False), True
    try:
        yield
    finally:
        _own.is_alone = before


class Scratch:
    """Memory to work in: called like `numpy.empty`, but a thread gets the same memory every time.

    Memory that is asked for anew in every block costs more than the arithmetic on it.
    """

    def __init__(self):
        self._local = threading.local()

    def __call__(self, shape, dtype):
        """Return an array with whatever the last use left in it."""
        dtype = np.dtype(dtype)
        n_bytes = math.prod(shape) * dtype.itemsize
        kept = getattr(self._local, "kept", None)
        if kept is None or kept.size < n_bytes:
            kept = self._local.kept = np.empty(n_bytes, np.uint8)
        return kept[:n_bytes].view(dtype).reshape(shape)


def block_rows(n_rows, n_columns):
    """Return how many rows make a block: a part of them, for threads to share, within limits."""
    least, most = (max(1, entries // n_columns) for entries in (_LEAST_ENTRIES, _MOST_ENTRIES))
    return min(max(-(-n_rows // _PARTS), least), most)


def run_all(function, items):
    """Return [function(item), ...], each called exactly once, on the threads that are allowed.

    Parameters
    ----------
    function : callable
        Calls must not touch the same memory.
    items : sequence
        Shares of the work, of similar size. A single one leaves the threads to BLAS, or to calls
        inside of it; a call inside one of several is serial.
    """
    if len(items) <= 1 or getattr(_own, "is_worker", False):
        return [function(item) for item in items]
    with serial_blas() as n_threads:
        if n_threads == 1:
            return [function(item) for item in items]
        with ThreadPoolExecutor(min(n_threads, len(items)), initializer=_begin_worker) as pool:
            return list(pool.map(function, items))


def _begin_worker():
    _own.is_worker = True


def run_rows(function, n_rows, size):
    """Call function(rows) for slices of `size` rows that cover n_rows.

    Every thread walks one contiguous share in blocks that stay in its cache, and touches that part
    of the output first. A thread that is done takes blocks from the far ends of the other shares:
    the cores are never equally free, least of all after a call of BLAS, whose threads spin on.

    Parameters
    ----------
    function : callable
        Writes its results itself; calls must not touch the same memory.
    n_rows : int
        Number of rows.
    size : int
        Rows of a slice, but for the last one.
    """
    blocks = [slice(a, min(a + size, n_rows)) for a in range(0, n_rows, size)]
    with serial_blas() as n_threads:
        if len(blocks) <= 1 or n_threads == 1:
            for rows in blocks:
                function(rows)
            return
        n_shares = min(n_threads, len(blocks))
        ends = [len(blocks) * i // n_shares for i in range(n_shares + 1)]
        shares = [deque(blocks[a:b]) for a, b in zip(ends[:-1], ends[1:], strict=True)]

        def walk(own):
            try:
                for rows in _taken(shares, own):
                    function(rows)
            except BaseException:
                # The others stop after the block they have.
                for share in shares:
                    share.clear()
                raise

        with ThreadPoolExecutor(len(shares)) as pool:
            list(pool.map(walk, range(len(shares))))  # raises what a thread raised


def _taken(shares, own):
    """Yield what is left of shares[own] from its near end, then of the others from their far ends.

    Every block goes to one thread: to take one is atomic, and none is ever put back.
    """
    for k in range(own, own + len(shares)):
        share = shares[k % len(shares)]
        take = share.popleft if k == own else share.pop
        while True:
            try:
                rows = take()
            except IndexError:
                break
            yield rows


def map_rows(function, n_rows, size):
    """Return [function(rows), ...] for the slices of `run_rows`, in the order of the rows."""
    found = {}

    def work(rows):
        found[rows.start] = function(rows)

    run_rows(work, n_rows, size)
    return [found[start] for start in sorted(found)]
