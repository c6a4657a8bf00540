"""The one place where threads come from."""

import threading
import time

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from skrf._threads import run_all

CONTROLLER = ThreadpoolController().select(user_api="blas")


def blas_threads():
    return [library.num_threads for library in CONTROLLER.lib_controllers]


@pytest.mark.parametrize("limit", [1, 2])
def test_every_item_once_on_the_threads_that_are_allowed(limit):
    with threadpool_limits(limit, user_api="blas"):
        before, seen, workers, during = blas_threads(), [], set(), []

        def work(item):
            time.sleep(0.01)
            workers.add(threading.get_ident())
            during.append(blas_threads())
            seen.append(item)

        run_all(work, range(8))
        assert sorted(seen) == list(range(8))
        assert len(workers) == min(limit, max(before))
        assert all(set(numbers) == {1} for numbers in during)
        assert blas_threads() == before


def test_a_single_item_leaves_the_threads_to_blas():
    with threadpool_limits(2, user_api="blas"):
        before, during = blas_threads(), []
        run_all(lambda item: during.append((blas_threads(), threading.get_ident())), [0])
        assert during == [(before, threading.get_ident())]


def test_limits_come_back_after_an_error_and_after_nested_calls():
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()

        def fail(item):
            raise KeyError(item)

        with pytest.raises(KeyError):
            run_all(fail, range(4))
        assert blas_threads() == before
        total = np.zeros((4, 4))

        def outer(i):
            def inner(j):
                total[i, j] += 1

            run_all(inner, range(4))

        run_all(outer, range(4))
        assert (total == 1).all()
        assert blas_threads() == before
