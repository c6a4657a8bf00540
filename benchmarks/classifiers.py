"""Kernel classifiers beside a tuned SVC and simple answers: accuracy, log loss, seconds.

    SKRF_UCI_DIR=... python benchmarks/classifiers.py --part svc --seeds 3
    SKRF_UCI_DIR=... python benchmarks/classifiers.py --part svc --rows 20000 --seeds 1 \\
        --sets chess --methods "tuned SVC; ridge search; ridge search, exact"
    SKRF_UCI_DIR=... python benchmarks/classifiers.py --part probabilities --seeds 5
    SKRF_UCI_DIR=... python benchmarks/classifiers.py --part sigma --seeds 3

On eight UCI sets, one-hot and standardised by the training rows. `svc` draws at most `rows` rows by
each seed and predicts up to 3,000 others, without those that repeat a training row. `probabilities`
has the splits of reproduce/uci_accuracy.py, a twentieth of the rows for testing, and maps of 128
components; its exact kernel takes minutes on chess. `sigma` compares the sigma that kernel
regression chooses by leave-one-out with that of GridSearchCV, on 5,000 rows of each set, of which
three tenths are for testing. Prints accuracy in percent, log loss, CPU seconds of fit and of
predict, the size of the pickle, and the log loss of rows that were left out where the fit knows it.
"""

import argparse
import pickle
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from skrf import (
    AdaptiveRF,
    ApproxKernelRidgeClassifierCV,
    ClusterNystroem,
    ClusterQuantizer,
    KernelRegressionClassifier,
    OptimalPositiveRF,
    RFFSampler,
)
from skrf.datasets import load_uci

sys.path.append(str(Path(__file__).parent / "reproduce"))
import uci_accuracy

SETS = ("abalone", "banknote", "car", "yeast", "cmc", "nursery", "wifi", "chess")
N_TEST = 3000


def drawn(name, seed, n_rows, n_test=N_TEST, is_new=True):
    """Return prepared rows and labels, for training and for test."""
    bunch = load_uci(name)
    order = np.random.default_rng(seed).permutation(len(bunch.target))
    train, test = np.split(order, [min(n_rows, len(order) * 7 // 10)])
    known = {row.tobytes() for row in bunch.data[train]} if is_new else set()
    test = [i for i in test[:n_test] if bunch.data[i].tobytes() not in known]
    encode = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), bunch.categorical_features),
        remainder=StandardScaler(),
    )
    X, Z = encode.fit_transform(bunch.data[train]), encode.transform(bunch.data[test])
    return X, bunch.target[train], Z, bunch.target[test]


def twentieth(name, seed):
    """Return the parts of reproduce/uci_accuracy.py, training and validation in one."""
    (train, valid, test), (y, of_valid, truth) = uci_accuracy.split(name, seed)
    return np.concatenate([train, valid]), np.concatenate([y, of_valid]), test, truth


def logistic(features=None):
    """Return logistic regression on features, or on the columns."""
    model = LogisticRegression(max_iter=1000)
    return model if features is None else make_pipeline(features, model)


def search(feature_map=None, **options):
    """Return a search of ridge regression."""
    return ApproxKernelRidgeClassifierCV(feature_map, **options)


def svc(X, seed):
    """Return the methods beside a tuned SVC."""
    own = {"random_state": seed}
    grid = {"C": [1, 10, 100], "gamma": np.array([0.1, 0.3, 1, 3]) / X.shape[1]}
    sampler = RBFSampler(gamma="scale", n_components=512, **own)
    return {
        "tuned SVC": GridSearchCV(SVC(), grid, cv=3),
        "ridge search": search(**own),
        "ridge search, exact": search("exact", **own),
        "ridge search, Fourier": search(RFFSampler(512), sigmas=10, cv=5, **own),
        "ridge search, argmax": search(decision="argmax", **own),
        "ridge search, discriminants": search(decision="discriminants", **own),
        "RBFSampler + logistic": logistic(sampler),
        "landmarks + logistic": logistic(ClusterNystroem(512, sigma="scale", **own)),
        "RFF + logistic": logistic(RFFSampler(512, sigma="scale", **own)),
        "boosted trees": HistGradientBoostingClassifier(**own),
        "nearest neighbour": KNeighborsClassifier(1),
    }


def probabilities(X, seed):
    """Return classifiers that predict probabilities, with 128 components."""
    own, n = {"random_state": seed}, uci_accuracy.N_COMPONENTS
    return {
        "ridge search": search(ClusterNystroem(n), **own),
        "landmarks + logistic": logistic(ClusterNystroem(n, **own)),
        "kernel regression": KernelRegressionClassifier(ClusterQuantizer(n), **own),
        "AdaptiveRF": KernelRegressionClassifier(AdaptiveRF(n), **own),
        "exact kernel": KernelRegressionClassifier("exact"),
        "logistic": logistic(),
        "class shares": DummyClassifier(strategy="prior"),
    }


def sigma(X, seed):
    """Return kernel regression with the sigma of leave-one-out and of a search."""
    own = {"random_state": seed}
    grid = {"sigma": RFFSampler().fit(X).sigma_ * np.logspace(-1, 2, 10)}
    default = KernelRegressionClassifier(**own)
    adaptive = KernelRegressionClassifier(AdaptiveRF(256), **own)
    return {
        "default": default,
        "default, GridSearchCV": GridSearchCV(default, grid),
        "AdaptiveRF": adaptive,
        "AdaptiveRF, GridSearchCV": GridSearchCV(adaptive, grid),
        "OptimalPositiveRF": KernelRegressionClassifier(OptimalPositiveRF(256), **own),
        "5 neighbours": KNeighborsClassifier(5),
        "RBFSampler + logistic": logistic(RBFSampler(gamma="scale", n_components=256, **own)),
        "logistic": logistic(),
        "majority": DummyClassifier(),
    }


PARTS = {"svc": svc, "probabilities": probabilities, "sigma": sigma}


def measure(model, X, y, Z, z):
    """Return accuracy, log loss, that of rows left out, CPU seconds twice, kB of the pickle."""
    start = time.process_time()
    model.fit(X, y)
    fit = time.process_time() - start
    accuracy = 100 * np.mean(model.predict(Z) == z)
    predict = time.process_time() - start - fit
    loss = np.nan
    if hasattr(model, "predict_proba"):
        known = np.isin(z, model.classes_)
        loss = log_loss(z[known], model.predict_proba(Z[known]), labels=model.classes_)
    is_left_out = isinstance(model, KernelRegressionClassifier)
    left_out = -model.best_score_ if is_left_out else np.nan
    return accuracy, loss, left_out, fit, predict, len(pickle.dumps(model)) / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, default="svc")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--methods", help="some of the part, with ; between")
    parser.add_argument("--rows", type=int, default=1200, help="of svc")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # rare classes, iterations that end early
    means = []
    head = f"{'':30}accuracy  log loss  left out     fit s  predict s      kB"
    for name in options.sets.split(","):
        runs = []
        for seed in range(options.seeds):
            if options.part == "probabilities":
                rows = twentieth(name, seed)
            else:
                is_svc = options.part == "svc"
                sizes = (options.rows, N_TEST) if is_svc else (3500, 1500)
                rows = drawn(name, seed, *sizes, is_new=is_svc)
            models = PARTS[options.part](rows[0], seed)
            if options.methods:
                models = {method: models[method] for method in options.methods.split("; ")}
            elif options.part == "svc":
                models.pop("ridge search, exact")
            runs.append([measure(model, *rows) for model in models.values()])
        means.append(np.mean(runs, axis=0))
        print(f"{name}: {len(rows[0])} rows\n{head}")
        for method, row in zip(models, means[-1], strict=True):
            print(f"  {method:28}" + "".join(f"{value:10.3f}" for value in row), flush=True)
    print(f"mean, and sum of the seconds\n{head}")
    for method, row, seconds in zip(
        models, np.mean(means, axis=0), np.sum(means, axis=0)[:, 3], strict=True
    ):
        values = *row[:3], seconds, *row[4:]
        print(f"  {method:28}" + "".join(f"{value:10.3f}" for value in values))


if __name__ == "__main__":
    main()
