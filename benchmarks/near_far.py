"""Near rows exact, far rows through landmarks: how much of the way to the exact kernel it goes.

    python benchmarks/near_far.py              # four sets (SKRF_TABLES_DIR), about 12 minutes
    python benchmarks/near_far.py --sizes      # time, memory and size of the model by rows; and
                                               # the time of a search of sigma and alpha

Means of three splits with at most 6,000 rows to train on, standardised; classes by the largest
regression; the kernel exp(-2 |x - y|_1 / median) and the penalty by a validation part. Compared are
400 landmarks beside leaves of 1,500 rows, as many landmarks as take the same CPU time, and the
exact kernel; and leaves whose penalty is searched without a validation part, by leaving out rows of
whole leaves.
"""

import argparse
import os
import pickle
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from skrf import (
    ApproxKernelRidge,
    ApproxKernelRidgeClassifier,
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
    ClusterNystroem,
)

SETS = ("letter", "magic04", "satimage", "wine_white")
ALPHAS = (0.003, 0.03, 0.3)


def table(name):
    """Return rows and a target: labels, or the quality of wine as a number."""
    import pandas as pd

    data = pd.read_csv(Path(os.environ["SKRF_TABLES_DIR"]) / f"{name}.csv.gz", header=None)
    y = data.iloc[:, -1].to_numpy()
    return data.iloc[:, :-1].to_numpy(float), y.astype(float) if name == "wine_white" else y


def landmarks_for(X, n):
    """Return a map of random landmarks whose sigma is at the median distance."""
    sigma = 2 / np.median(np.abs(X[:500, None] - X[None, :500]).sum(axis=2))
    return ClusterNystroem(n, kernel="laplacian", sigma=sigma, centers="random", random_state=0)


def options_for(y):
    """Return the decision: pairs of thousands of landmarks would take hours."""
    return {} if y.dtype == float else {"decision": "argmax"}


def timed(model, X, y):
    """Return a fitted model, and the CPU seconds of its fit."""
    start = time.process_time()
    return model.fit(X, y), time.process_time() - start


def fitted(n_landmarks, alpha, X, y, leaf=None):
    """Return a model, and the CPU seconds of its fit."""
    kind = ApproxKernelRidge if y.dtype == float else ApproxKernelRidgeClassifier
    given = {"alpha": alpha, "max_leaf_size": leaf, **options_for(y)}
    return timed(kind(landmarks_for(X, n_landmarks), **given), X, y)


def searched(parts):
    """Return the test score of leaves whose penalty is searched in them, and CPU seconds."""
    (X, y), _, (Z, z) = parts
    kind = ApproxKernelRidgeCV if y.dtype == float else ApproxKernelRidgeClassifierCV
    given = {"sigmas": None, "alphas": ALPHAS, "max_leaf_size": 1500, **options_for(y)}
    model, seconds = timed(kind(landmarks_for(X, 400), **given), X, y)
    return model.score(Z, z), seconds


def best(parts, *given):
    """Return the test score at the penalty that is best on the validation part, and seconds."""
    (X, y), (V, w), (Z, z) = parts
    results = []
    for alpha in ALPHAS:
        model, seconds = fitted(given[0], alpha, X, y, *given[1:])
        results.append((model.score(V, w), model.score(Z, z), seconds))
    return max(results, key=lambda result: result[0])[1:]


def compared(X, y, order):
    """Return four test scores and the CPU seconds of three of them for one split of the rows."""
    train, valid, test = np.split(order, [len(order) * 2 // 3, len(order) * 5 // 6])
    X = (X - X[train].mean(axis=0)) / (X[train].std(axis=0) + 1e-12)
    parts = [(X[rows], y[rows]) for rows in (train, valid, test)]
    near, seconds = best(parts, 400, 1500)
    n, (of_landmarks, other) = 400, best(parts, 400)
    while other < seconds and n < len(train):
        n = min(n + n // 4, len(train))
        of_landmarks, other = best(parts, n)
    exact, _ = best(parts, 400, len(train))
    found, of_search = searched(parts)
    return near, found, of_landmarks, exact, seconds, other, of_search, n


def compare():
    print(f"{'':12s}{'near + far':>12s}{'searched':>12s}{'landmarks':>12s}{'exact':>8s}   CPU s")
    means = []
    for name in SETS:
        X, y = table(name)
        orders = [np.random.default_rng(seed).permutation(len(y))[:9000] for seed in range(3)]
        means.append(np.mean([compared(X, y, order) for order in orders], axis=0))
        near, found, of_landmarks, exact, seconds, other, of_search, n = means[-1]
        print(
            f"{name:12s}{near:12.4f}{found:12.4f}{of_landmarks:12.4f}{exact:8.4f}"
            f"   {seconds:.1f}, {of_search:.1f} and {other:.1f} with {n:.0f} landmarks",
            flush=True,
        )
    near, found, of_landmarks, exact = np.array(means).T[:4]
    for name, scores in (("leaves", near), ("searched ones", found)):
        gains, gaps = scores - of_landmarks, exact - of_landmarks
        shares = ", ".join(f"{share:.2f}" for share in gains / gaps)
        print(
            f"of the gap, {name} close {shares}: in the mean {np.mean(gains / gaps):.2f}, "
            f"in the sum {gains.sum() / gaps.sum():.2f}"
        )


def size(n):
    """Return the line of n rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 20))
    y = (X[:, 0] * X[:, 1] + X[:, 2] + 0.3 * rng.normal(size=n) > 0).astype(int)
    fitted(100, 0.5, X[:500], y[:500], 200)  # imports and compilation are not counted
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model, seconds = fitted(400, 0.5, X, y, 1500)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024
    start = time.process_time()
    model.predict(rng.normal(size=(10_000, 20)))
    predicted = time.process_time() - start
    n_bytes = len(pickle.dumps(model)) / 2**20
    search = ApproxKernelRidgeClassifierCV(landmarks_for(X, 400), max_leaf_size=1500)
    _, searched = timed(search.set_params(**options_for(y)), X, y)
    return f"{n:9,d}{seconds:8.2f}{predicted:17.2f}{n_bytes:11.1f}{peak:19.0f}{searched:15.1f}"


def sizes():
    print("     rows   CPU s   predict 10,000   model MB   peak MB beside X   search of 49")
    for n in (2000, 10_000, 100_000):
        # The peak of a process is that of all that it has done.
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            print(process.submit(size, n).result(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--sizes", action="store_true")
    sizes() if parser.parse_args().sizes else compare()
