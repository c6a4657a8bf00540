"""The one place where threads come from."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from sklearn.kernel_approximation import Nystroem
from threadpoolctl import ThreadpoolController, threadpool_limits

from skrf import ApproxKernelRidge, RFFSampler
from skrf._threads import Scratch, map_rows, run_all, run_rows, serial_blas
from skrf.features import mapped
from skrf.regression import ridge
from skrf.regression._blocks import blocks_of
from skrf.regression._ridge import moments_of_rows

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


def test_short_items_are_serial():
    with threadpool_limits(2, user_api="blas"):
        during = []

        def work(item):
            during.append((item, set(blas_threads()), threading.get_ident()))

        run_all(work, range(3), is_short=True)
        assert during == [(item, {1}, threading.get_ident()) for item in range(3)]


def test_calls_inside_a_worker_are_serial():
    with threadpool_limits(2, user_api="blas"):
        workers = set()

        def outer(_):
            own = threading.get_ident()
            run_all(lambda _: workers.add((own, threading.get_ident())), range(4))

        run_all(outer, range(4))
        assert all(outer == inner for outer, inner in workers)
        run_all(outer, [0])  # a single one leaves the threads to calls inside of it
        assert any(outer != inner for outer, inner in workers)
        assert run_all(outer, []) == []


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


def test_other_threads_may_set_limits_after_a_call():
    seen = []

    def other():
        with threadpool_limits(1, user_api="blas"):
            seen.append(blas_threads())

    with threadpool_limits(2, user_api="blas"):
        run_all(len, [[], []])
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert set(seen[0]) == {1}


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("n_rows", [0, 1, 7, 64, 65])
def test_rows_come_once_and_in_order_whatever_the_threads(limit, n_rows):
    with threadpool_limits(limit, user_api="blas"):
        slices = map_rows(lambda rows: rows, n_rows, 8)
    assert [(rows.start, rows.stop) for rows in slices] == [
        (start, min(start + 8, n_rows)) for start in range(0, n_rows, 8)
    ]


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


def test_every_thread_has_a_share():
    # The number of threads is what BLAS was allowed, whatever this machine has.
    at_once = threading.Barrier(4)
    with threadpool_limits(4, user_api="blas"):
        if max(blas_threads()) < 4:
            pytest.skip("BLAS allows fewer than four threads here")
        run_rows(lambda rows: at_once.wait(timeout=30) if rows.start % 2 == 0 else None, 8, 1)


def test_blocks_of_wide_rows_are_many_although_they_make_few_features(monkeypatch):
    """A copy of a block takes as much memory as its rows, and one block gets only one thread."""
    X, sizes = np.zeros((4100, 1000), np.float32), []
    feature_map = RFFSampler(16, sigma=1.0, random_state=0).fit(X[:2]).feature_maps_[0]
    write = type(feature_map).write
    monkeypatch.setattr(
        type(feature_map),
        "write",
        lambda self, rows, *args: sizes.append(len(rows)) or write(self, rows, *args),
    )
    mapped(feature_map, X)
    assert sum(sizes) == len(X) and max(sizes) <= 2048
    assert blocks_of(feature_map, X)[0] <= 2048


def test_scratch_is_the_same_memory_for_a_thread_and_another_for_another():
    scratch = Scratch()
    first = scratch((4, 6), np.dtype(np.float64))
    again = scratch((8, 3), np.dtype(np.float32))
    assert again.shape == (8, 3) and again.dtype == np.float32
    assert np.shares_memory(first, again)
    other = []
    thread = threading.Thread(target=lambda: other.append(scratch((4, 6), np.dtype(np.float64))))
    thread.start()
    thread.join()
    assert not np.shares_memory(first, other[0])


BUSY = """
import os, threading, time
import numpy as np
from scipy.linalg import eigh
import skrf

rng = np.random.default_rng(0)
X, y = rng.normal(size=(4000, 20)), rng.integers(3, size=4000)
A = rng.normal(size=(512, 512))
own = {str(threading.get_native_id())}
known = set(os.listdir("/proc/self/task")) - own  # those of BLAS, which were started by imports

def busy():
    paths = [f"/proc/self/task/{number}/schedstat" for number in known]
    return sum(int(open(path).read().split()[0]) for path in paths) / 1e9

def taken(work):
    while True:  # until they have gone to sleep
        before = busy()
        time.sleep(0.1)
        if busy() == before:
            break
    work()
    return busy() - before

heads = X.reshape(1, 4000, 20)
calls = [
    lambda: skrf.DenseExponentialRF().fit(X),
    lambda: skrf.AdaptiveRF(64).fit(X, y).transform(X.astype("float32")),
    lambda: skrf.ClusterNystroem(64).fit(X, y).transform(X),
    lambda: skrf.RelevanceScaler().fit(X, y),
    lambda: skrf.KernelRegressor(random_state=0).fit(X, X[:, 0]).predict(X),
    lambda: skrf.KernelRegressionClassifierCV(sigmas=2).fit(X, y).predict(X),
    lambda: skrf.ApproxKernelRidge().fit(X, y).predict(X, return_std=True),
    lambda: skrf.ApproxKernelRidgeClassifierCV(sigmas=2).fit(X, y).predict(X),
    lambda: skrf.ApproxKernelAttention().fit(heads, heads),
]
print(taken(lambda: (A @ A, eigh(A @ A.T))), *map(taken, calls))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="reads Linux's accounts")
def test_threads_of_blas_take_no_core_from_ours():
    """They would keep waiting for .1 s after every small product between our own calls."""
    env = {**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", BUSY],
        env={**env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    usual, *ours = map(float, done.stdout.split())
    if usual < 0.01:
        pytest.skip("BLAS has no threads of its own here, or they do not wait busily")
    assert max(ours) < 0.005, ours


@pytest.mark.parametrize("is_own", [True, False])
def test_maps_of_other_packages_keep_the_threads_of_blas(is_own, monkeypatch):
    """Their rows are not shared among our threads."""
    X, during = np.random.default_rng(0).normal(size=(60, 4)), []

    def noted(*args, **kwargs):
        during.append(max(blas_threads()))
        return moments_of_rows(*args, **kwargs)

    monkeypatch.setattr(ridge, "moments_of_rows", noted)
    feature_map = RFFSampler(8) if is_own else Nystroem(n_components=8)
    with threadpool_limits(2, user_api="blas"):
        ApproxKernelRidge(feature_map).fit(X, X[:, 0])
        assert during == [1 if is_own else max(blas_threads())]
