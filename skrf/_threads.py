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
