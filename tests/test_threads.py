"""The one place where threads come from."""

import threading
import time

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from skrf._threads import Scratch, map_rows, run_all, run_rows, serial_blas

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
        assert run_all(work, []) == []


def test_single_items_and_short_ones_stay_in_their_thread():
    with threadpool_limits(2, user_api="blas"):
        before, during = blas_threads(), []

        def work(item):
            during.append((item, blas_threads(), threading.get_ident()))

        run_all(work, [7])  # leaves the threads to BLAS
        run_all(work, range(3), is_short=True)
        serial, here = [1] * len(before), threading.get_ident()
        assert during == [(7, before, here), *((item, serial, here) for item in range(3))]


def test_calls_inside_a_worker_are_serial_and_limits_come_back():
    with threadpool_limits(2, user_api="blas"):
        before, workers, total = blas_threads(), set(), np.zeros((4, 4))

        def outer(i):
            worker = threading.get_ident()

            def inner(j):
                workers.add((worker, threading.get_ident()))
                total[i, j] += 1

            run_all(inner, range(4))

        run_all(outer, range(4))
        assert (total == 1).all() and blas_threads() == before
        assert all(outer == inner for outer, inner in workers)
        run_all(outer, [0])  # a single one leaves the threads to calls inside of it
        assert any(outer != inner for outer, inner in workers)

        def fail(item):
            raise KeyError(item)

        with pytest.raises(KeyError):
            run_all(fail, range(4))
        assert blas_threads() == before


def test_limits_come_back_if_another_thread_is_the_last():
    """Thread one limits BLAS first, two is inside as well when one leaves, and one lives on."""
    both_inside, is_one_out, is_two_out = (threading.Event() for _ in range(3))
    before_all, seen = blas_threads(), []

    def one():
        with serial_blas():
            seen.append(blas_threads())
            both_inside.wait(10)
        is_one_out.set()
        is_two_out.wait(10)

    def two():
        with serial_blas():
            both_inside.set()
            is_one_out.wait(10)
            seen.append(blas_threads())
        seen.append(blas_threads())
        is_two_out.set()

    with threadpool_limits(2, user_api="blas"):  # of a third thread
        before = blas_threads()
        threads = [threading.Thread(target=work) for work in (one, two)]
        threads[0].start()
        while not seen:
            time.sleep(0.001)
        threads[1].start()
        for thread in threads:
            thread.join()
        assert [set(numbers) for numbers in seen[:2]] == [{1}, {1}]
        assert seen[2] == blas_threads() == before
    assert blas_threads() == before_all


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_rows_come_once_and_in_order_whatever_the_threads(limit):
    for n_rows in (0, 1, 7, 64, 65):
        with threadpool_limits(limit, user_api="blas"):
            slices = map_rows(lambda rows: rows, n_rows, 8)
        expected = [(start, min(start + 8, n_rows)) for start in range(0, n_rows, 8)]
        assert [(rows.start, rows.stop) for rows in slices] == expected


def test_a_thread_that_is_done_takes_blocks_of_the_others():
    begun, done = threading.Event(), threading.Event()
    by_thread = {}

    def work(rows):
        by_thread.setdefault(threading.get_ident(), []).append(rows.start)
        if rows.start == 0:
            begun.set()
            # Waits for all other blocks, which are no thread's share but this one's to half.
            assert done.wait(timeout=30)
        elif rows.start == 5:  # the first of the other thread
            assert begun.wait(timeout=30)
        elif sum(map(len, by_thread.values())) == 10:
            done.set()

    with threadpool_limits(2, user_api="blas"):
        run_rows(work, 10, 1)
    assert sorted(map(len, by_thread.values())) == [1, 9]


def test_an_error_in_a_block_comes_out_and_ends_the_work():
    begun = []

    def fail(rows):
        begun.append(rows)
        time.sleep(0.01)  # by now the other thread is at work
        if rows.start == 0:
            raise IndexError(rows.start)

    with threadpool_limits(2, user_api="blas"), pytest.raises(IndexError):
        run_rows(fail, 100, 1)
    assert len(begun) < 10


def test_scratch_is_the_same_memory_for_a_thread_and_another_for_another():
    scratch = Scratch()
    first = scratch((4, 6), np.dtype(np.float64))
    again = scratch((8, 3), np.dtype(np.float32))
    assert again.shape == (8, 3) and again.dtype == np.float32
    assert np.shares_memory(first, again)
    assert first.ctypes.data % 64 == again.ctypes.data % 64 == 0  # wide loads straddle no line
    other = []
    thread = threading.Thread(target=lambda: other.append(scratch((4, 6), np.dtype(np.float64))))
    thread.start()
    thread.join()
    assert not np.shares_memory(first, other[0])
