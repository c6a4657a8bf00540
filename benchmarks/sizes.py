"""Measure what a fit to many machines moves and takes.

    python benchmarks/sizes.py

Bytes are those of pickles; seconds are the least CPU of several calls, on one thread. The scheduler
of Dask is measured with tasks that do nothing, in the tree of skrf.dask: the CPU of its process, in
which the client is, too.
"""

import argparse
import pickle
import time

import dask
import numpy as np
from dask.distributed import Client, LocalCluster
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from threadpoolctl import threadpool_limits

import skrf.dask
from skrf import ApproxKernelRidge, KernelRegressionClassifier, OptimalPositiveRF, RFFSampler
from skrf._batches import SAMPLE_ROWS, Pass, Scope, driven

WIDTH, CLASSES = 20, 5
MODELS = {
    "kernel regression, M = 256, C = 5": KernelRegressionClassifier(
        OptimalPositiveRF(256, sigma="scale", random_state=0)
    ),
    "ridge, M = 512": ApproxKernelRidge(RFFSampler(512, sigma="scale", random_state=0)),
}
ROWS, CHUNK = 10**8, 100_000


def chunk(n):
    """Return rows and labels."""
    X = np.random.default_rng(0).normal(size=(n, WIDTH))
    return X, np.arange(n) % CLASSES


def fastest(call, rounds):
    """Return the fewest seconds of CPU that a call took in this process."""
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return min(seconds)


def measured(model, n, rounds):
    """Return (bytes, seconds) of what each pass makes of a chunk, by name."""
    batch, found = chunk(n), {}

    def engine(step):
        record = step(batch, 0)
        seconds = fastest(lambda: step(batch, 0), rounds)
        found[step.name] = len(pickle.dumps(record)), seconds
        return record

    driven(model._passes(None, Scope()), engine)
    return found


def model_bytes(model):
    """Return the bytes of a partial of the public kind: a model on a map that is fitted."""
    X, y = chunk(1_000)
    frozen = FrozenEstimator(clone(model.feature_map).fit(X))
    return len(pickle.dumps(clone(model).set_params(feature_map=frozen).fit(X, y)))


def sample_bytes(scope):
    """Return the bytes of what a chunk sends first where a map needs a sample of rows."""
    model = KernelRegressionClassifier(OptimalPositiveRF(256, sigma="median", random_state=0))
    return len(pickle.dumps(next(model._passes(None, scope))(chunk(CHUNK), 0)))


def n_tasks(n_chunks):
    """Return the number of tasks of a pass: to read chunks, to sum them, and the tree."""
    total, level = 2 * n_chunks, n_chunks
    while level > 1:
        level = -(-level // skrf.dask._FAN_IN)
        total += level
    return total


def nothing(*_):
    """Return a row, in no time."""
    return np.zeros((1, 1))


def seconds_of_task(n_chunks, rounds):
    """Return what a task costs on the scheduler that Dask finds, in a pass that does nothing."""
    rows = [dask.delayed(nothing)(k) for k in range(n_chunks)]
    chunks, step = skrf.dask._aligned(X=rows, y=None, sample_weight=None), Pass("nothing", nothing)
    seconds = fastest(lambda: skrf.dask._scheduled(*chunks, step), rounds)
    return seconds / n_tasks(n_chunks)


def seconds_of_tasks(rounds):
    """Return the seconds of a task on threads and on processes."""
    with dask.config.set(scheduler="threads", num_workers=2):
        found = {"threads": seconds_of_task(5_000, rounds)}
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=2, **options) as cluster, Client(cluster):
        found["distributed"] = seconds_of_task(5_000, rounds)
    return found


def main(rounds):
    """Print sizes and seconds."""
    with threadpool_limits(1):
        for name, model in MODELS.items():
            for n in (10_000, CHUNK):
                for what, (n_bytes, seconds) in measured(model, n, rounds).items():
                    print(f"{name}, {n:,} rows, {what}: {n_bytes:,} bytes, {seconds:.3f} s")
            print(f"{name}, pickled model: {model_bytes(model):,} bytes", flush=True)
    known, unknown = sample_bytes(Scope.among(SAMPLE_ROWS, ROWS)), sample_bytes(Scope())
    print(f"sample, of {CHUNK:,} rows: {unknown:,} bytes, of {ROWS:,} known rows: {known:,} bytes")
    for scheduler, seconds in seconds_of_tasks(rounds).items():
        print(f"scheduler, {scheduler}: {1e3 * seconds:.2f} ms a task")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    main(parser.parse_args().rounds)
