"""Ways from a table to a model: accuracy, time, imbalanced classes, and what sizes cost.

    python benchmarks/routes.py                  # everything, in about ten minutes of CPU
    python benchmarks/routes.py --only costs

Writes docs/benchmarks/routes.csv, weights.csv and costs.csv, which pages include. One thread; CPU
seconds. The sets of `routes` and `weights` are those of tables.py (SKRF_UCI_DIR, SKRF_TABLES_DIR
and SKRF_MIXED_DIR), with the same parts. Except for the kernel machine and boosting, which take
tables as they are, models get gaps imputed, columns standardised and categories as 0 and 1. Rows of
`costs` are drawn, and memory is what a process needs for a fit beside the rows.
"""

import argparse
import csv
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from _memory import peak_memory
from _tables import encoder, load, losses, parts
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import make_pipeline
from threadpoolctl import threadpool_limits

from skrf import (
    ApproxKernelRidgeClassifierCV,
    ClusterNystroem,
    KernelMachineClassifier,
    RelevanceScaler,
)

FOLDER = Path(__file__).parents[1] / "docs" / "benchmarks"
N_TRAIN, N_TEST, SPLITS = 2000, 3000, 3


def on_landmarks(scaler=None, **options):
    """Return logistic regression on landmarks, after a scaler where there is one."""
    last = LogisticRegression(C=10, max_iter=2000, **options)
    return make_pipeline(scaler or "passthrough", ClusterNystroem(512, random_state=0), last)


ROUTES = {
    "kernel machine": lambda: KernelMachineClassifier(random_state=0),
    "relevance, landmarks, logistic": lambda: on_landmarks(RelevanceScaler(random_state=0)),
    "landmarks, logistic": on_landmarks,
    "ridge search": lambda: ApproxKernelRidgeClassifierCV(random_state=0),
    "boosting": lambda: HistGradientBoostingClassifier(random_state=0),
    "logistic regression": lambda: LogisticRegression(max_iter=2000),
}
AS_THEY_ARE = "kernel machine", "boosting"
SETS = "hdma_deny", "rwm_outwork", "chile_vote", "car", "magic04"
WEIGHED = {
    "kernel machine": lambda **given: KernelMachineClassifier(random_state=0, **given),
    "landmarks, logistic": lambda **given: on_landmarks(**given),
    "ridge search": lambda **given: ApproxKernelRidgeClassifierCV(random_state=0, **given),
    "boosting": lambda **given: HistGradientBoostingClassifier(random_state=0, **given),
}
SETTINGS = {"": {}, 'class_weight="balanced"': {"class_weight": "balanced"}}
SCORING = {'scoring="balanced_accuracy"': {"scoring": "balanced_accuracy"}}
SIZES = (1000, 10, 2), (10_000, 10, 2), (10_000, 100, 2), (10_000, 10, 10), (100_000, 10, 2)
MOST_ROWS_OF = {"kernel machine": 10_000}


def data(name, seed):
    """Return the rows and labels of a training part and of a test part."""
    X, y, _ = load(name)
    n = min(N_TRAIN, int(0.7 * len(y)))
    split = parts(y, False, seed, train_size=n, test_size=min(N_TEST, len(y) - n))
    (train, test) = split
    return X.iloc[train], y[train], X.iloc[test], y[test]


def fitted(name, model, X, y):
    """Return a fitted model and the CPU seconds."""
    model = model if name in AS_THEY_ARE else make_pipeline(encoder(), model)
    start = time.process_time()
    return model.fit(X, y), time.process_time() - start


def routes():
    """Return accuracy of every set, mean log loss and mean seconds of every route."""
    yield ["model", *SETS, "mean", "log loss", "CPU s"]
    for name, make in ROUTES.items():
        found = []
        for of in SETS:
            for seed in range(SPLITS):
                X, y, Z, z = data(of, seed)
                model, seconds = fitted(name, make(), X, y)
                P = model.predict_proba(Z)
                found.append([100 * model.score(Z, z), losses(P, z).mean(), seconds])
        found = np.reshape(found, (len(SETS), SPLITS, 3)).mean(axis=1)
        accuracy, loss, seconds = found.mean(axis=0)
        cells = [f"{value:.1f}" for value in (*found[:, 0], accuracy)]
        yield [name, *cells, f"{loss:.3f}", f"{seconds:.1f}"]


def weights(of="hdma_deny"):
    """Return what weights of classes and scores do to labels and probabilities."""
    yield ["model", "setting", "accuracy", "balanced accuracy", "log loss", "mean probability"]
    shares = []
    for name, make in WEIGHED.items():
        for setting, given in (SETTINGS | (SCORING if name == "ridge search" else {})).items():
            found, moved = [], []
            for seed in range(SPLITS):
                X, y, Z, z = data(of, seed)
                model, _ = fitted(name, make(**given), X, y)
                P = model.predict_proba(Z)
                for labels, into in ((model.predict(Z), found), (P[:, 1] > y.mean(), moved)):
                    scores = np.mean(labels == z), balanced_accuracy_score(z, labels)
                    into.append([*scores, losses(P, z).mean(), P[:, 1].mean()])
                shares.append(z.mean())
            both = {setting: found} if given else {setting: found, "threshold": moved}
            for what, values in both.items():
                accuracy, balanced, loss, mean = np.mean(values, axis=0)
                cells = [f"{100 * accuracy:.1f}", f"{100 * balanced:.1f}", f"{loss:.3f}"]
                yield [name, what, *cells, f"{mean:.2f}"]
    yield ["share of the rarer class", "", "", "", "", f"{np.mean(shares):.2f}"]


def drawn(n, d, n_classes):
    """Return rows and labels of a sum of waves, cut at its quantiles."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    total = np.sin(2 * X[:, :5]).sum(axis=1) + 0.3 * rng.normal(size=n)
    return X, np.searchsorted(np.quantile(total, np.arange(1, n_classes) / n_classes), total)


def cost(name, *size):
    """Print CPU seconds of a fit, MB of memory, MB of the pickle and CPU seconds of predictions."""
    ROUTES[name]().fit(*drawn(500, 10, 2))  # imports and compilation are not counted
    X, y = drawn(*size)
    Z = drawn(10_000, *size[1:])[0]
    before = peak_memory()
    start = time.process_time()
    model = ROUTES[name]().fit(X, y)
    seconds, memory = time.process_time() - start, peak_memory() - before
    start = time.process_time()
    model.predict(Z)
    predicted = time.process_time() - start
    n_bytes = len(pickle.dumps(model))
    print(seconds, memory / 1e6, n_bytes / 1e6, predicted)


def costs():
    """Return seconds and memory of fits by rows, columns and classes, each in its own process."""
    heads = "fit, CPU s", "memory, MB", "model, MB", "10,000 predictions, CPU s"
    yield ["rows", "columns", "classes", "model", *heads]
    for size in SIZES:
        for name in ROUTES:
            if size[0] <= MOST_ROWS_OF.get(name, np.inf):
                command = [sys.executable, __file__, "--cost", name, *map(str, size)]
                found = subprocess.run(command, check=True, capture_output=True, text=True)
                values = [float(value) for value in found.stdout.split()]
                cells = [f"{value:.{1 if value < 10 else 0}f}" for value in values]
                yield [f"{size[0]:,}", *map(str, size[1:]), name, *cells]


PARTS = {"routes": routes, "weights": weights, "costs": costs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, nargs="*", default=list(PARTS))
    parser.add_argument("--cost", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with threadpool_limits(1):
        if options.cost:
            return cost(options.cost[0], *map(int, options.cost[1:]))
        for name in options.only:
            rows = []
            for row in PARTS[name]():
                rows.append(row)
                print("  ".join(f"{cell:>12}" for cell in row), flush=True)
            with (FOLDER / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
