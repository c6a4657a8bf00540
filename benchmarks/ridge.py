"""Measure ridge regression on random features: speed against SGD, accuracy against logistic.

    python benchmarks/ridge.py --only million,search --rounds 3

`million` fits 1,000,000 x 20 rows of float32 with 512 columns in processes of their own, by
`ApproxKernelRidgeClassifier` and by RBFSampler with SGDClassifier in one pass, of the same kernel;
`search` compares ApproxKernelRidgeClassifierCV with a grid search of RFFSampler and
LogisticRegression over sigma and C on the eight UCI sets (SKRF_UCI_DIR), at most 5,000 rows of
each. Every figure is a ratio, or a difference, taken in one run.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from _memory import peak_memory
from speed import judge, note

SETS = ("abalone", "banknote", "car", "yeast", "cmc", "nursery", "wifi", "chess")


def measure_million(rounds):
    """A million rows, five classes on one thread and two classes on two."""
    import numpy as np
    from sklearn.datasets import make_classification

    for n_classes, n_threads, bound in ((5, 1, 0.8), (5, 2, 0.5), (2, 2, 1.0)):
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(n_threads))
        found = {"ours": [], "peer": []}
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(rounds):
                X, y = make_classification(
                    1_000_000, 20, n_informative=10, n_classes=n_classes, random_state=seed
                )
                np.save(Path(folder) / "X.npy", X.astype(np.float32))
                np.save(Path(folder) / "y.npy", y)
                for name in random.sample(list(found), 2):
                    done = subprocess.run(
                        [sys.executable, __file__, "--case", name, folder, str(seed)],
                        env={**os.environ, **threads},
                        capture_output=True,
                        text=True,
                        check=True,
                    )
                    found[name].append(json.loads(done.stdout.splitlines()[-1]))
                    note(f"{name}: {found[name][-1]}")
        ours, peer = (
            {key: [record[key] for record in records] for key in records[0]}
            for records in found.values()
        )
        what = f"{n_classes} classes, {n_threads} threads"
        judge(f"{what}: fit, ours / SGD", ours["fit"], peer["fit"], bound, at_most=True)
        # Squared or hinge loss, which is better depends on the data: every round has its own.
        means = [sum(side["accuracy"]) / rounds for side in (ours, peer)]
        judge(f"{what}: mean accuracy, ours / SGD", means[:1], means[1:], 1.0)
        ones = [1.0] * rounds
        judge(f"{what}: memory beside X", ours["memory"], ones, 256, at_most=True, unit=" MB")


def run_case(name, folder, seed):
    """Print time, accuracy and memory of one method on a million rows, in one pass."""
    import numpy as np
    from sklearn.kernel_approximation import RBFSampler
    from sklearn.linear_model import SGDClassifier

    from skrf import ApproxKernelRidgeClassifier, RFFSampler

    seed = int(seed)
    X, y = (np.load(Path(folder) / f"{name}.npy") for name in "Xy")
    batches, classes = [slice(a, a + 20_000) for a in range(0, len(X), 20_000)], np.unique(y)
    before, start = peak_memory(), time.perf_counter()
    if name == "ours":
        model = ApproxKernelRidgeClassifier(RFFSampler(512, sigma="scale", random_state=seed))
        model.fit(X, y)
        predict = model.predict
    else:
        features = RBFSampler(gamma="scale", n_components=512, random_state=seed).fit(X)
        model = SGDClassifier(random_state=seed)
        for batch in batches:
            model.partial_fit(features.transform(X[batch]), y[batch], classes=classes)

        def predict(rows):
            return model.predict(features.transform(rows))

    report = {
        "fit": round(time.perf_counter() - start, 2),
        "memory": round((peak_memory() - before) / 2**20, 1),
        "accuracy": float(np.mean([np.mean(predict(X[rows]) == y[rows]) for rows in batches[:10]])),
    }
    print(json.dumps(report))


def split(name, seed):
    """Return prepared rows and labels of a UCI set for training and for test."""
    import numpy as np
    from sklearn.compose import make_column_transformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    from skrf.datasets import load_uci

    bunch = load_uci(name)
    order = np.random.default_rng(seed).permutation(len(bunch.target))[:5000]
    parts = np.split(order, [len(order) * 7 // 10])
    labelled = bunch.categorical_features
    numbers = [j for j in range(bunch.data.shape[1]) if j not in labelled]
    prepare = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), labelled),
        (StandardScaler(), numbers),
    )
    prepare.fit(bunch.data[parts[0]])
    X = [np.ascontiguousarray(prepare.transform(bunch.data[rows]), float) for rows in parts]
    return *X, *(bunch.target[rows] for rows in parts)


def measure_search(rounds):
    """Accuracy and time of both searches on the UCI sets; sigmas over the same two decades."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline

    from skrf import ApproxKernelRidge, ApproxKernelRidgeClassifierCV, RFFSampler

    def largest_regression():
        """Return the accuracy of the class of the largest regression, with the same parameters."""
        found = methods["ridge"]
        plain = ApproxKernelRidge(RFFSampler(512, random_state=seed), sigma=found.sigma_)
        plain.set_params(alpha=found.alpha_).fit(train, 2.0 * (y[:, None] == found.classes_) - 1)
        return np.mean(found.classes_[plain.predict(test).argmax(axis=1)] == truth)

    records, plain = [], []
    for seed in range(100, 100 + rounds):
        for name in SETS:
            train, test, y, truth = split(name, seed)
            scale = RFFSampler(2, sigma="scale").fit(train).sigma_
            pipe = make_pipeline(RFFSampler(512, random_state=seed), LogisticRegression())
            grid = {
                "rffsampler__sigma": scale * np.logspace(-1, 1, 7),
                "logisticregression__C": [1, 10, 100],
            }
            methods = {
                "ridge": ApproxKernelRidgeClassifierCV(RFFSampler(512), random_state=seed),
                "logistic": GridSearchCV(pipe, grid, cv=3),
            }
            record = {}
            for method, model in methods.items():
                start = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # rare classes, and iterations that end early
                    model.fit(train, y)
                record[method] = 100 * model.score(test, truth), time.perf_counter() - start
            cells = [f"{m} {score:.1f} {taken:.1f} s" for m, (score, taken) in record.items()]
            plain.append(100 * largest_regression())
            note(" | ".join([name, str(seed), *cells, f"largest regression {plain[-1]:.1f}"]))
            records.append(record)
    ridge, logistic = (np.array([r[m] for r in records]).T for m in ("ridge", "logistic"))
    gap = logistic[0].mean() - ridge[0].mean()
    judge("mean accuracy: logistic less ridge", [gap], [1.0], 2.0, at_most=True, unit=" points")
    gain = ridge[0].mean() - np.mean(plain)
    judge("mean accuracy: ridge less largest regression", [gain], [1.0], 0.0, unit=" points")
    total = [ridge[1].sum()], [logistic[1].sum()]
    judge("search of all sets: ridge / logistic", *total, 0.2, at_most=True)


PARTS = {"million": measure_million, "search": measure_search}


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(PARTS), help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        run_case(*options.case)
        return
    random.seed(0)
    for part in options.only.split(","):
        PARTS[part](options.rounds)


if __name__ == "__main__":
    main()
