"""The one place where threads come from: plain threads, BLAS held to one thread meanwhile.

As many threads are used as BLAS was allowed when the call came in, so the limits of joblib, of
threadpoolctl and of the environment are all obeyed. Nothing is changed for longer than the call.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_controller = None
_limit = None
_users = 0
_allowed = 1


@contextmanager
def _serial_blas():
    """Hold BLAS to one thread and yield how many it was allowed; concurrent users share a limit."""
    global _controller, _limit, _users, _allowed
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


def run_all(function, items):
    """Call function(item) for every item, each exactly once, on the threads that are allowed.

    Parameters
    ----------
    function : callable
        Writes its results itself; calls must not touch the same memory.
    items : sequence
        Shares of the work, of similar size. A single one leaves the threads to BLAS.
    """
    if len(items) == 1:
        function(items[0])
        return
    with _serial_blas() as n_threads:
        if n_threads == 1:
            for item in items:
                function(item)
        else:
            with ThreadPoolExecutor(min(n_threads, len(items))) as pool:
                for _ in pool.map(function, items):
                    pass


def run_rows(function, n_rows, block_rows):
    """Call function(rows) for slices that cover n_rows, no longer than block_rows.

    Every thread takes one contiguous share, so that it is the first to touch its part of the
    output, and walks it in blocks that stay in its cache.

    Parameters
    ----------
    function : callable
        Writes its results itself; calls must not touch the same memory.
    n_rows : int
        Number of rows.
    block_rows : int
        Longest slice.
    """

    def walk(share):
        for start in range(share.start, share.stop, block_rows):
            function(slice(start, min(start + block_rows, share.stop)))

    with _serial_blas() as n_threads:
        size = max(-(-n_rows // n_threads), block_rows)
        shares = [slice(a, min(a + size, n_rows)) for a in range(0, n_rows, size)]
        if len(shares) <= 1 or n_threads == 1:
            walk(slice(0, n_rows))
        else:
            with ThreadPoolExecutor(len(shares)) as pool:
                for _ in pool.map(walk, shares):
                    pass


def map_rows(function, n_rows, block_rows):
    """Return [function(rows), ...] for the slices of `run_rows`, in the order of the rows."""
    found = {}

    def work(rows):
        found[rows.start] = function(rows)

    run_rows(work, n_rows, block_rows)
    return [found[start] for start in sorted(found)]
