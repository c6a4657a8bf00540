"""Measure fits to Dask: memory and CPU, and the same bits after the death of a worker.

    make bench-scale
    python benchmarks/scale.py --only cpu

`kill` fits 2,000,000 rows on two workers, once with the worker of the first finished partial
killed; `large` fits 20,000,000 x 20 rows, drawn lazily, on two workers of at most 600 MB; `cpu`
compares the CPU of all processes with that of `fit_batches` on the same 100,000-row chunks, and the
wall time of two workers with that of one.
"""

import argparse
import os
import re
import signal
import sys
import time
from contextlib import contextmanager
from statistics import median

import dask
import dask.array as da
import numpy as np
import psutil
from _memory import peak_memory
from dask.distributed import Client, LocalCluster
from dask.distributed.diagnostics.plugin import SchedulerPlugin

import skrf.dask
from skrf import KernelRegressionClassifier, OptimalPositiveRF

MODEL = KernelRegressionClassifier(OptimalPositiveRF(128, sigma="scale", random_state=0))
CHUNK, WIDTH = 100_000, 20
MOST_MEMORY, MOST_CPU = 450e6, 1.9
FAILED = []


def judge(what, is_kept):
    """Print a result and whether it meets its target."""
    print(f"{'ok  ' if is_kept else 'FAIL'} {what}", flush=True)
    if not is_kept:
        FAILED.append(what)


@contextmanager
def cluster(n_workers, **options):
    """Yield a client of a cluster of processes with one thread each."""
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", **options}
    with LocalCluster(n_workers=n_workers, **options) as own, Client(own) as client:
        yield client


def rows(n):
    """Return rows that are drawn when they are wanted, and two classes of them."""
    X = da.random.default_rng(0).normal(size=(n, WIDTH), chunks=(CHUNK, WIDTH))
    return X, (X[:, 0] + X[:, 1] > 0).astype(np.int8)


def chunk(number):
    """Return one chunk, the same for every engine."""
    X = np.random.default_rng(number).normal(size=(CHUNK, WIDTH))
    return X, (X[:, 0] + X[:, 1] > 0).astype(np.int8)


class KillAtFirstPartial(SchedulerPlugin):
    """Kills the process of the worker that has the first finished sums."""

    name = "kill-at-first-partial"

    def __init__(self, pids):
        self.pids, self.killed = pids, None

    def transition(self, key, start, finish, *args, worker=None, **kwargs):
        """Look at a task that has changed its state."""
        is_partial = re.fullmatch(r"skrf-sums-\w+-\d+", str(key))
        if is_partial and finish == "memory" and self.killed is None:
            self.killed = self.pids[worker]
            os.kill(self.killed, signal.SIGKILL)


async def _add(scheduler, plugin):
    scheduler.add_plugin(plugin)


def measure_kill(rounds):
    """2,000,000 rows, and a worker that dies."""
    X, y = rows(2_000_000)
    with cluster(2) as client:
        undisturbed = skrf.dask.fit(MODEL, X, y)
        plugin = KillAtFirstPartial(client.run(os.getpid))
        client.cluster.sync(_add, client.cluster.scheduler, plugin)
        disturbed = skrf.dask.fit(MODEL, X, y)
        client.wait_for_workers(2, timeout=60)
        is_dead = plugin.killed not in client.run(os.getpid).values()
    judge(f"kill: the worker of process {plugin.killed} died", plugin.killed and is_dead)
    sums = [model._fitted.sums for model in (undisturbed, disturbed)]
    is_same = all(np.array_equal(*pair) for pair in zip(*map(_arrays, sums), strict=True))
    judge("kill: 2,000,000 rows, the same bits as without", is_same)


def _arrays(sums):
    return sums.sums, sums.top


def measure_large(rounds):
    """20,000,000 x 20 rows, 3.2 GB, in little memory."""
    X, y = rows(20_000_000)
    with cluster(2, memory_limit="600MB") as client:
        start = time.perf_counter()
        model = skrf.dask.fit(MODEL, X, y)
        taken = time.perf_counter() - start
        peaks = client.run(peak_memory).values()
    assert model.class_count_.sum() == 20_000_000
    judge(
        f"large: 20,000,000 rows in {taken:.0f} s, peak of a worker {max(peaks) / 1e6:.0f} MB "
        f"(at most {MOST_MEMORY / 1e6:.0f})",
        max(peaks) < MOST_MEMORY,
    )


def cpu_of(client):
    """Return the CPU seconds of this process and of the workers."""
    return time.process_time() + sum(client.run(time.process_time).values())


def measure_cpu(rounds):
    """CPU of Dask beside that of batches in turn, of 20 chunks."""
    numbers, plain, spread, walls = range(20), [], [], {1: [], 2: []}
    chunks = [dask.delayed(chunk)(number) for number in numbers]
    for n_workers in (1, 2):
        with cluster(n_workers) as client:
            skrf.dask.fit(MODEL, chunks[:4])  # loads what is loaded once
            for _ in range(rounds):
                if n_workers == 2:
                    start = time.process_time()
                    MODEL.fit_batches(lambda: map(chunk, numbers))
                    plain.append(time.process_time() - start)
                start, clock = cpu_of(client), time.perf_counter()
                skrf.dask.fit(MODEL, chunks)
                walls[n_workers].append(time.perf_counter() - clock)
                spread.append(cpu_of(client) - start)
    ratio = median(spread[rounds:]) / median(plain)
    judge(
        f"cpu: {median(spread[rounds:]):.2f} s of two workers, {median(plain):.2f} s of fit_batches"
        f", ratio {ratio:.2f} (at most {MOST_CPU})",
        ratio <= MOST_CPU,
    )
    n_cores = os.cpu_count()
    idle = n_cores * (1 - psutil.cpu_percent(interval=2) / 100)
    two, one = (median(walls[n]) for n in (2, 1))
    print(
        f"     cpu: wall time of two workers {two:.2f} s, of one {one:.2f} s, ratio "
        f"{two / one:.2f}, with {idle:.1f} of {n_cores} cores idle afterwards"
    )


MEASURES = {
    "kill": measure_kill,
    "large": measure_large,
    "cpu": measure_cpu,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=MEASURES)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for name, measure in MEASURES.items():
        if arguments.only in (None, name):
            measure(arguments.rounds)
    sys.exit(1 if FAILED else 0)
