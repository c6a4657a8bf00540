"""Compare the default search of ridge classifiers with a tuned SVC and simple answers.

    python benchmarks/svc.py --rows 1200 --seeds 5
    python benchmarks/svc.py --sets chess --rows 20000 --methods "tuned SVC; ridge search, exact"
    python benchmarks/svc.py --sets digits,spheres,letters,rings --rows 4000 --seeds 3

On the eight UCI sets (SKRF_UCI_DIR), one-hot and standardised by the training rows, at most `rows`
of which are drawn by each seed; up to 3,000 others are predicted, without those that repeat a
training row. Beside them stand digits and three generated sets of many classes, see `_generated`.
SVC is tuned over C and gamma by three folds. Prints accuracy in percent, log loss,
CPU seconds of fit and of predict, and the size of the pickle.
"""

import argparse
import pickle
import time
import warnings

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from skrf import ApproxKernelRidgeClassifierCV, ClusterNystroem, RFFSampler
from skrf.datasets import load_uci

UCI = ("abalone", "banknote", "car", "yeast", "cmc", "nursery", "wifi", "chess")
N_TEST = 3000
LARGE = {  # grids of fewer sigmas and alphas for thousands of landmarks
    n: {"feature_map": ClusterNystroem(n), "sigmas": 5, "alphas": [1e-3, 1e-2, 0.1, 1.0]}
    for n in (768, 1024, 2048, 3072)
}


def _generated(name):
    """Return rows and labels of a generated set, the same for every seed."""
    rng = np.random.default_rng(0)
    if name == "spheres":  # 20 clusters for each of 15 classes, in 12 columns
        X, y = make_classification(
            12_000, 12, n_informative=10, n_redundant=2, n_classes=15, n_clusters_per_class=20,
            class_sep=2.0, random_state=0,
        )  # fmt: skip
    elif name == "letters":  # 26 smooth curves with noise, as of pens
        y = np.arange(12_000) % 26
        curves = rng.normal(size=(26, 4, 3))
        amount = rng.normal(size=(len(y), 3)) / 2
        weights = curves[y] + rng.normal(size=(len(y), 4, 3)) / 2.5
        phase = np.linspace(0, 2, 4)
        terms = np.stack([np.cos(np.pi * k * phase) for k in range(3)])
        X = np.einsum("ncf,fp->ncp", weights, terms) + (amount @ terms)[:, None]
        X = X.reshape(len(y), -1)
    else:  # ten rings about ten centres, in 6 columns: classes that lie between others
        y = np.arange(12_000) % 10
        X = rng.normal(size=(len(y), 6))
        X *= ((1 + y // 2) / np.linalg.norm(X, axis=1))[:, None]
        X += 0.15 * rng.normal(size=X.shape) + 1.5 * (y % 2)[:, None]
    return X, y


def rows_of(name):
    """Return rows, labels, and which columns are categories."""
    if name in UCI:
        bunch = load_uci(name)
        return bunch.data, bunch.target, bunch.categorical_features
    X, y = load_digits(return_X_y=True) if name == "digits" else _generated(name)
    return X, y, []


def split(name, seed, n_rows):
    """Return rows and codes of the labels, for training and for test."""
    data, target, categories = rows_of(name)
    order = np.random.default_rng(seed).permutation(len(target))
    train, test = np.split(order, [min(n_rows, len(order) * 7 // 10)])
    known = {row.tobytes() for row in data[train]}
    test = [i for i in test[:N_TEST] if data[i].tobytes() not in known]
    encode = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), categories),
        remainder=StandardScaler(),
    )
    X, Z = encode.fit_transform(data[train]), encode.transform(data[test])
    return X, target[train], Z, target[test]


def tuned_svc(X, seed):
    """Return a search for C and gamma."""
    grid = {"C": [1, 10, 100], "gamma": np.array([0.1, 0.3, 1, 3]) / X.shape[1]}
    return GridSearchCV(SVC(), grid, cv=3)


METHODS = {
    "tuned SVC": tuned_svc,
    "ridge search": lambda X, seed: ApproxKernelRidgeClassifierCV(random_state=seed),
    **{
        f"ridge search, {n}": lambda X, seed, n=n: ApproxKernelRidgeClassifierCV(
            **LARGE[n], random_state=seed
        )
        for n in LARGE
    },
    "ridge search, exact": lambda X, seed: ApproxKernelRidgeClassifierCV(
        "exact", random_state=seed
    ),
    "ridge search, Fourier": lambda X, seed: ApproxKernelRidgeClassifierCV(
        RFFSampler(512), sigmas=10, cv=5, random_state=seed
    ),
    "ridge search, argmax": lambda X, seed: ApproxKernelRidgeClassifierCV(
        decision="argmax", random_state=seed
    ),
    "ridge search, discriminants": lambda X, seed: ApproxKernelRidgeClassifierCV(
        decision="discriminants", random_state=seed
    ),
    "RBFSampler + logistic": lambda X, seed: make_pipeline(
        RBFSampler(gamma="scale", n_components=512, random_state=seed),
        LogisticRegression(max_iter=1000),
    ),
    "landmarks + logistic": lambda X, seed: make_pipeline(
        ClusterNystroem(512, sigma="scale", random_state=seed), LogisticRegression(max_iter=1000)
    ),
    "RFF + logistic": lambda X, seed: make_pipeline(
        RFFSampler(512, sigma="scale", random_state=seed), LogisticRegression(max_iter=1000)
    ),
    "boosted trees": lambda X, seed: HistGradientBoostingClassifier(random_state=seed),
    "nearest neighbour": lambda X, seed: KNeighborsClassifier(1),
}
OF_MANY_ROWS = ["ridge search, exact", *(f"ridge search, {n}" for n in LARGE)]


def measure(method, X, y, Z, z, seed):
    """Return accuracy in percent, log loss, CPU seconds of fit and predict, kB of the pickle."""
    model = METHODS[method](X, seed)
    start = time.process_time()
    model.fit(X, y)
    fit = time.process_time() - start
    accuracy = 100 * np.mean(model.predict(Z) == z)
    predict = time.process_time() - start - fit
    loss = np.nan
    if hasattr(model, "predict_proba"):
        known = np.isin(z, model.classes_)
        loss = log_loss(z[known], model.predict_proba(Z[known]), labels=model.classes_)
    return accuracy, loss, fit, predict, len(pickle.dumps(model)) / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=",".join(UCI))
    parser.add_argument(
        "--methods", default="; ".join(name for name in METHODS if name not in OF_MANY_ROWS)
    )
    parser.add_argument("--rows", type=int, default=1200)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    methods = options.methods.split("; ")
    warnings.simplefilter("ignore")
    means = []
    for name in options.sets.split(","):
        runs = []
        for seed in range(options.seeds):
            rows = split(name, seed, options.rows)
            runs.append([measure(method, *rows, seed) for method in methods])
        means.append(np.mean(runs, axis=0))
        print(f"{name}: {len(rows[0])} rows, {len(np.unique(rows[1]))} classes")
        for method, row in zip(methods, means[-1], strict=True):
            accuracy, loss, fit, predict, size = row
            print(f"  {method:28} {accuracy:6.2f} {loss:7.3f}", end=" ")
            print(f"{fit:8.2f} s {predict:6.2f} s {size:8.0f} kB")
    print("mean accuracy and log loss, sum of the CPU seconds of fit")
    for method, row, fit in zip(
        methods, np.mean(means, axis=0), np.sum(means, axis=0)[:, 2], strict=True
    ):
        print(f"  {method:28} {row[0]:6.2f} {row[1]:7.3f} {fit:8.2f} s")


if __name__ == "__main__":
    main()
