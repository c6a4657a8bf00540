"""Accuracy against seconds, for a thousand to a million rows: the picture of the README.

    SKRF_UCI_DIR=... python benchmarks/accuracy.py
    SKRF_UCI_DIR=... python benchmarks/accuracy.py --methods SVC "gradient boosting"

Two sets: cells of points in eight columns (skrf.datasets.make_cells; 10,000 other rows are
predicted) and the end games of chess, of which up to 20,000 rows are learned and 8,000 others
predicted (one-hot, and standardised by the training rows; trees get the codes). Ridge on landmarks,
SVC and models on the features of scikit-learn find their parameters by three folds of at most 5,000
training rows, and are then fitted to all; both count. The others have their defaults.
SVC, whose time grows with the square of the rows, is fitted to at most 20,000, and models on the
features of scikit-learn to at most 100,000, whose features fill the memory beyond.

Writes docs/benchmarks/accuracy.csv and .png, with the means over the seeds: three for sizes up to
10,000, one beyond. Seconds are those of one thread: others wait for it on the processor, and some
libraries count that. Takes about 20 minutes; with ``--methods`` the rows of the others stay as they
are. Gradient boosting has l2_regularization=1, because without
it it diverges on rare classes of chess.
"""

import argparse
import csv
import time
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

from skrf import ApproxKernelRidgeClassifier, ApproxKernelRidgeClassifierCV, ClusterNystroem
from skrf.datasets import load_uci, make_cells

FOLDER = Path(__file__).parents[1] / "docs" / "benchmarks"
SIZES = (1_000, 10_000, 100_000, 1_000_000)
N_SEEDS = 3
N_TUNED, N_TEST, LARGEST_OF_CHESS = 5_000, {"cells": 10_000, "chess": 8_000}, 20_000
STEPS = (0.3, 1.0, 3.0)  # of gamma, in units of SVC's "scale"


class Tuned:
    """A scikit-learn model whose grid is searched on some of the rows."""

    takes_codes = False

    def __init__(self, model, grid, most=np.inf):
        self.model, self.grid, self.most = model, grid, most

    def fit(self, X, y):
        gamma = 1 / (X.shape[1] * X.var())
        grid = {
            name: [gamma * step for step in STEPS] if values == "gamma" else values
            for name, values in self.grid.items()
        }
        search = GridSearchCV(clone(self.model), grid, cv=3, refit=False)
        search.fit(X[:N_TUNED], y[:N_TUNED])
        self.fitted = clone(self.model).set_params(**search.best_params_).fit(X, y)
        return self

    def score(self, X, y):
        return self.fitted.score(X, y)


class Ours:
    """Ridge on landmarks: the search on some of the rows, and a fit to all with what it found."""

    most, takes_codes = np.inf, False

    def __init__(self, n_landmarks):
        self.n_landmarks = n_landmarks

    def fit(self, X, y):
        search = ApproxKernelRidgeClassifierCV(random_state=0).fit(X[:N_TUNED], y[:N_TUNED])
        landmarks = ClusterNystroem(self.n_landmarks, sigma=search.sigma_)
        self.fitted = ApproxKernelRidgeClassifier(
            landmarks, alpha=search.alpha_, decision=search.decisions_, random_state=0
        ).fit(X, y)
        return self

    def score(self, X, y):
        return self.fitted.score(X, y)


class Plain:
    """A model as it is, perhaps one that takes the codes of categories."""

    def __init__(self, model, most=np.inf, takes_codes=False):
        self.model, self.most, self.takes_codes = model, most, takes_codes

    def fit(self, X, y):
        self.fitted = clone(self.model).fit(X, y)
        return self

    def score(self, X, y):
        return self.fitted.score(X, y)


def of_features(kind):
    """Return a tuned linear model on the features of scikit-learn."""
    name = kind.__name__.lower()
    model = make_pipeline(kind(n_components=512, random_state=0), LogisticRegression(max_iter=200))
    return Tuned(model, {f"{name}__gamma": "gamma", "logisticregression__C": [1, 100]}, 100_000)


METHODS = {
    "skrf, 512 landmarks": lambda: Ours(512),
    "skrf, 2,048 landmarks": lambda: Ours(2048),
    "SVC": lambda: Tuned(SVC(), {"C": [1, 10, 100], "gamma": "gamma"}, 20_000),
    "Nystroem, logistic": lambda: of_features(Nystroem),
    "RBFSampler, logistic": lambda: of_features(RBFSampler),
    "gradient boosting": lambda: Plain(
        HistGradientBoostingClassifier(l2_regularization=1.0, random_state=0), takes_codes=True
    ),
    "nearest neighbours": lambda: Plain(KNeighborsClassifier(), 100_000),
    "logistic": lambda: Plain(LogisticRegression()),
}
COLOURS = ("#0072B2", "#56B4E9", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#7F7F7F", "#000000")
MARKERS = ("o-", "s--", "^-.", "D:", "v-", "P--", "X-.", "*:")


def rows_of(name, n, seed, takes_codes=False):
    """Return training and test rows and labels."""
    n_test = N_TEST[name]
    if name == "cells":
        X, y = make_cells(n + n_test, random_state=seed)
        return X[n_test:], y[n_test:], X[:n_test], y[:n_test]
    X, y = load_uci("chess", return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = order[:n_test], order[n_test : n_test + n]
    encoder = make_pipeline(OneHotEncoder(sparse_output=False), StandardScaler())
    encoder = (OrdinalEncoder() if takes_codes else encoder).fit(X[train])
    return encoder.transform(X[train]), y[train], encoder.transform(X[test]), y[test]


def measured(make, rows):
    """Return accuracy and seconds of fit and of prediction."""
    X, y, X_test, y_test = rows
    start = time.process_time()
    model = make().fit(X, y)
    fit, start = time.process_time() - start, time.process_time()
    accuracy = model.score(X_test, y_test)
    return accuracy, fit, time.process_time() - start


def plot(table):
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
    for axis, name in zip(axes, N_TEST, strict=True):
        for method, colour, marker in zip(METHODS, COLOURS, MARKERS, strict=True):
            points = sorted(
                (n, *row) for (of, by, n), row in table.items() if (of, by) == (name, method)
            )
            if not points:
                continue
            sizes, accuracies, fits, predictions = zip(*points, strict=True)
            seconds = np.add(fits, predictions)
            axis.plot(seconds, accuracies, marker, color=colour, ms=5, label=method)
            text = f"{sizes[-1] // 1000:,}k".replace("1,000k", "1M")
            place = {"xytext": (4, -9), "textcoords": "offset points", "color": colour}
            axis.annotate(text, (seconds[-1], accuracies[-1]), fontsize=8, **place)
        axis.set(xscale="log", xlabel="CPU seconds of search, fit and prediction", title=name)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy")
    axes[1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.02, 1))
    figure.savefig(FOLDER / "accuracy.png", dpi=90)


def stored():
    """Return what the table of an earlier run has, {(set, method, rows): numbers}."""
    path = FOLDER / "accuracy.csv"
    if not path.exists():
        return {}
    with open(path, newline="") as file:
        _, *rows = csv.reader(file)
    return {
        (name, method, int(n.replace(",", ""))): tuple(map(float, numbers))
        for name, method, n, *numbers in rows
    }


def store(table):
    """Write the table, by set, rows and method."""
    order = list(METHODS)
    with open(FOLDER / "accuracy.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("set", "method", "rows", "accuracy", "fit, s", "prediction, s"))
        for key in sorted(table, key=lambda key: (key[0], key[2], order.index(key[1]))):
            name, method, n = key
            accuracy, *seconds = table[key]
            times = (f"{value:.2f}" for value in seconds)
            writer.writerow((name, method, f"{n:,}", f"{accuracy:.3f}", *times))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=tuple(N_TEST), default=tuple(N_TEST))
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=tuple(METHODS))
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # max_iter bounds the time of peers
    warnings.filterwarnings("ignore", "The least populated class")  # 27 rows of chess in 28,056
    threadpool_limits(1)
    table = stored()
    for name in options.sets:
        sizes = SIZES
        if name == "chess":
            sizes = sorted({min(n, LARGEST_OF_CHESS) for n in SIZES})
        for n in sizes:
            for method in options.methods:
                model = METHODS[method]()
                if n > model.most:
                    continue
                seeds = range(N_SEEDS if n <= 10_000 else 1)
                results = [
                    measured(METHODS[method], rows_of(name, n, seed, model.takes_codes))
                    for seed in seeds
                ]
                table[name, method, n] = accuracy, fit, predict = tuple(np.mean(results, axis=0))
                print(
                    f"{name:8}{n:10,}  {method:24}{accuracy:8.3f}{fit:10.2f} s{predict:9.2f} s",
                    flush=True,
                )
    store(table)
    plot(stored())


if __name__ == "__main__":
    main()
