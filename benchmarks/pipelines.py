"""Random features in a pipeline: what scalers in front of them gain, beside other models.

    SKRF_UCI_DIR=... SKRF_TABLES_DIR=... python benchmarks/pipelines.py
    python benchmarks/pipelines.py --sets letter,car     # these anew, the others as stored

Fourteen sets of classes, categories one-hot; at most 2,000 rows to train on, up to 2,000 others to
predict; means over three splits. Ridge regression of the classes on 256 features, whose sigma and
alpha a fourth of the training rows choose. Scales are learned from the other three fourths, once,
because a cache keeps them for all candidates, and in the end from all training rows. SVC is
searched, too; LightGBM has its defaults, and is left out where it is not installed.

Writes benchmarks/results/pipelines.json and docs/benchmarks/pipelines.csv: accuracy in percent, and
CPU seconds of search and fit. Takes about five minutes on one thread.
"""

import argparse
import csv
import json
import os
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import GridSearchCV, ShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from skrf import OptimalPositiveRF, RelevanceScaler, RFFSampler, SmoothClipScaler
from skrf.datasets import load_uci

FILE = Path(__file__).parents[1] / "docs" / "benchmarks" / "pipelines.csv"
RESULTS = Path(__file__).parent / "results" / "pipelines.json"
UCI = ("abalone", "banknote", "car", "chess", "cmc", "nursery", "wifi", "yeast")
TABLES = ("dry_bean", "letter", "magic04", "satimage", "vehicle", "wine_white")
N_TRAIN, N_TEST, N_COMPONENTS = 2000, 2000, 256
VALIDATION = ShuffleSplit(1, test_size=0.25, random_state=0)
SIGMAS, ALPHAS = 2.0 ** np.arange(-3, 3), (1e-3, 3e-2, 1.0)


def rows_of(name):
    """Return rows, categories one-hot, and labels."""
    if name in TABLES:
        data = pd.read_csv(Path(os.environ["SKRF_TABLES_DIR"]) / f"{name}.csv.gz", header=None)
        return data.iloc[:, :-1].to_numpy(float), data.iloc[:, -1].to_numpy()
    data = load_uci(name)
    is_category = np.isin(np.arange(data.data.shape[1]), data.categorical_features)
    parts = [data.data[:, ~is_category].astype(float)]
    if is_category.any():
        encoder = OneHotEncoder(sparse_output=False)
        parts.append(encoder.fit_transform(data.data[:, is_category]))
    return np.concatenate(parts, axis=1), data.target


def split(name, seed):
    """Return rows and labels to train on and to predict."""
    X, y = rows_of(name)
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = np.split(order, [min(N_TRAIN, len(y) * 7 // 10)])
    return X[train], y[train], X[test[:N_TEST]], y[test[:N_TEST]]


def ours(features, folder, *scalers):
    """Return a search of a pipeline with features of this library."""
    name = type(features).__name__.lower()
    # A pipeline does not cache its last step; the features would fill the cache.
    front = (
        make_pipeline(*scalers, "passthrough", memory=f"{folder}/{name}")
        if scalers
        else StandardScaler()
    )
    steps = [Normalizer()] if features.is_positive else []
    pipeline = make_pipeline(front, features, *steps, RidgeClassifier())
    return GridSearchCV(
        pipeline, {f"{name}__sigma": SIGMAS, "ridgeclassifier__alpha": ALPHAS}, cv=VALIDATION
    )


def peer(features):
    """Return the same search with features of scikit-learn."""
    pipeline = make_pipeline(StandardScaler(), features, RidgeClassifier())
    gammas = {f"{type(features).__name__.lower()}__gamma": SIGMAS**2 / 2}
    return GridSearchCV(pipeline, {**gammas, "ridgeclassifier__alpha": ALPHAS}, cv=VALIDATION)


def models(seed, n_features, folder):
    """Return {name: model}."""
    options = {"n_components": N_COMPONENTS, "random_state": seed}
    clip, relevance = SmoothClipScaler(), RelevanceScaler(random_state=seed)
    found = {}
    for kind in (OptimalPositiveRF, RFFSampler):
        found[kind.__name__] = ours(kind(**options), folder)
        found[f"{kind.__name__}, scalers in front"] = ours(kind(**options), folder, clip, relevance)
    found["RBFSampler"] = peer(RBFSampler(**options))
    found["Nystroem"] = peer(Nystroem(**options))
    grid = {"svc__C": [1, 10, 100], "svc__gamma": np.array([0.1, 0.5, 2.5]) / n_features}
    found["SVC"] = GridSearchCV(make_pipeline(StandardScaler(), SVC()), grid, cv=VALIDATION)
    try:
        from lightgbm import LGBMClassifier
    except ImportError:
        return found
    return {**found, "LightGBM": LGBMClassifier(n_jobs=1, verbose=-1, random_state=seed)}


def stored():
    """Return what earlier runs measured: {set: {model: accuracy and seconds}}."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def measured(model, X, y, Z, z):
    """Return accuracy in percent and CPU seconds of the fit."""
    start = time.process_time()
    model.fit(X, y)
    seconds = time.process_time() - start
    return 100 * np.mean(model.predict(Z) == z), seconds


def report(results):
    """Print means over sets, and write the table once all sets are measured."""
    names = sorted(results)
    accuracies, seconds = np.moveaxis([list(results[name].values()) for name in names], 2, 0)
    means, models = accuracies.mean(axis=0), list(results[names[0]])
    print("\n" + " " * 36 + "accuracy  better on  CPU seconds")
    for j, model in enumerate(models):
        gains = accuracies[:, j] - accuracies[:, j - 1]
        # Than the line before, which has no scalers in front.
        better = f"{np.sum(gains > 0)} of {len(gains)}" if "," in model else ""
        print(f"{model:36}{means[j]:8.2f}{better:>11}{seconds[:, j].mean():13.2f}")
    if set(names) < set(UCI + TABLES):
        return
    with FILE.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["set", *models])
        for name, row in zip(names, accuracies, strict=True):
            writer.writerow([name, *(f"{x:.1f}" for x in row)])
        writer.writerow(["mean", *(f"{x:.2f}" for x in means)])
        writer.writerow(["CPU seconds", *(f"{x:.2f}" for x in seconds.mean(axis=0))])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=",".join(sorted(UCI + TABLES)))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    # The search tries sigmas that are too large for positive maps.
    warnings.filterwarnings("ignore", "Rows of features of X vanished", RuntimeWarning)
    results = {}
    for name in options.sets.split(","):
        runs = []
        for seed in range(options.seeds):
            rows = split(name, seed)
            with tempfile.TemporaryDirectory() as folder:
                found = models(seed, rows[0].shape[1], folder)
                runs.append([measured(model, *rows) for model in found.values()])
        means = np.mean(runs, axis=0).tolist()
        results = {**stored(), name: dict(zip(found, means, strict=True))}
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results))
        print(f"{name:12}" + "".join(f"{x:8.2f}{s:7.2f} s" for x, s in means), flush=True)
    report(results)


if __name__ == "__main__":
    main()
