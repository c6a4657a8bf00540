"""Ridge regression: scales of columns, error bars, and exact kernels among near rows.

    python benchmarks/ridge.py --part length-scales     beside a Gaussian process (SKRF_UCI_DIR)
    python benchmarks/ridge.py --part error-bars        beside the exact Gaussian process
    python benchmarks/ridge.py --part relevance         transformers before it (SKRF_TABLES_DIR)
    python benchmarks/ridge.py --part near-far          12 minutes (SKRF_TABLES_DIR)
    python benchmarks/ridge.py --part sizes             time, memory and size of the last by rows

- length-scales: at most 600 training and 1,500 test rows, standardised. Ridge regression by
  evidence without a scaler and with either criterion of `RelevanceScaler`, scikit-learn's
  GaussianProcessRegressor with a length scale for every column, five nearest neighbours. R2 in
  percent, the mean negative log density of the test targets and CPU seconds.
- error-bars: 600 rows of functions with noise; the exact process has the sigma and the noise that
  evidence chose. The mean relative difference of standard deviations of the function and of means
  (in units of the exact deviation), the mean negative log density of standardised targets, and the
  share of targets within intervals of 90 %, of all rows and of the thirds with the least and the
  most noise. "scaled" divides squared residuals of left-out rows by a kernel regression of them.
- relevance: at most 2,000 training rows and 4,000 others; accuracy or R2, CPU seconds of the
  transformer; fifteen nearest neighbours beside.
- near-far: at most 6,000 training rows, classes by the largest regression, the Laplacian kernel;
  400 landmarks beside leaves of 1,500 rows, with a penalty by a validation part or searched on
  whole leaves, as many landmarks as take the same CPU time, and the exact kernel.
"""

import argparse
import os
import pickle
import resource
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from sklearn import datasets
from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.metrics import r2_score
from sklearn.model_selection import cross_val_predict
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from skrf import (
    ApproxKernelRidge,
    ApproxKernelRidgeClassifier,
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
    ClusterNystroem,
    KernelRegressor,
    RelevanceProjection,
    RelevanceScaler,
    RFFSampler,
)
from skrf.datasets import load_uci


def show(name, values, form):
    """Print a line of numbers."""
    print(f"{name:22}" + "".join(f"{value:{form}}" for value in values), flush=True)


def table(name):
    """Return rows and a target: labels, the quality of wine or the extent of beans as numbers."""
    import pandas as pd

    stem = "dry_bean" if name == "extent" else name
    data = pd.read_csv(Path(os.environ["SKRF_TABLES_DIR"]) / f"{stem}.csv.gz", header=None)
    X, y = data.iloc[:, :-1].to_numpy(float), data.iloc[:, -1].to_numpy()
    if name == "extent":
        return np.delete(X, 8, axis=1), X[:, 8]
    return X, y.astype(float) if name == "wine_white" else y


# ---------------------------------------------------------------- length scales


def abalone(_seed):
    """Return rows and ages."""
    bunch = load_uci("abalone")
    encode = make_column_transformer(
        (OneHotEncoder(sparse_output=False), bunch.categorical_features), remainder="passthrough"
    )
    return encode.fit_transform(bunch.data), bunch.target.astype(float)


def waves(seed):
    """Return rows of six columns, and a sum of waves of growing frequency."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(2100, 6))
    return X, np.sin(X * np.arange(1, 7)).sum(axis=1) + 0.3 * rng.normal(size=len(X))


def plane_wave(seed):
    """Return rows of eight columns, and a wave along one direction."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(2100, 8))
    return X, np.sin(X @ rng.normal(size=8)) + 0.3 * rng.normal(size=len(X))


FUNCTIONS = {
    "friedman1": lambda seed: datasets.make_friedman1(2100, noise=1.0, random_state=seed),
    "friedman2": lambda seed: datasets.make_friedman2(2100, noise=100.0, random_state=seed),
    "friedman3": lambda seed: datasets.make_friedman3(2100, noise=0.1, random_state=seed),
    "sparse": lambda seed: datasets.make_sparse_uncorrelated(
        2100, n_features=12, random_state=seed
    ),
    "waves": waves,
    "plane wave": plane_wave,
    "diabetes": lambda seed: datasets.load_diabetes(return_X_y=True),
    "abalone": abalone,
}


def by_evidence(criterion):
    """Return a function that fits and predicts with a scaler, or without one if that is None."""

    def predict(X, y, Z):
        if criterion is not None:
            scaler = RelevanceScaler(600, criterion=criterion, random_state=0).fit(X, y)
            X, Z = scaler.transform(X), scaler.transform(Z)
        model = ApproxKernelRidge(sigma="evidence", alpha="evidence", random_state=0)
        return model.fit(X, y).predict(Z, return_std=True)

    return predict


def process(X, y, Z):
    """Return predictions of a Gaussian process with a length scale for every column."""
    kernel = ConstantKernel() * RBF(np.full(X.shape[1], 3.0), (1e-2, 1e5)) + WhiteKernel()
    return GaussianProcessRegressor(kernel).fit(X, y).predict(Z, return_std=True)


def neighbours(X, y, Z):
    """Return predictions of nearest neighbours, with one deviation by leave-one-out."""
    model = KNeighborsRegressor(5).fit(X, y)
    return model.predict(Z), np.full(len(Z), np.std(model.predict(None) - y))


PREDICTIONS = {
    "ridge": by_evidence(None),
    "ridge, leave-one-out": by_evidence("leave-one-out"),
    "ridge, evidence": by_evidence("evidence"),
    "exact process": process,
    "neighbours": neighbours,
    "mean": lambda X, y, Z: (np.zeros(len(Z)), np.ones(len(Z))),
}


def density(truth, mean, deviation):
    """Return the mean negative log density."""
    terms = ((truth - mean) / deviation) ** 2 + np.log(2 * np.pi * deviation**2)
    return terms.mean() / 2


def length_scales(seeds):
    """Print R2, densities and seconds of all sets and methods."""
    warnings.simplefilter("ignore", ConvergenceWarning)  # optima of the exact process at bounds
    means = []
    for name, make in FUNCTIONS.items():
        runs = []
        for seed in range(seeds):
            X, y = make(seed)
            order = np.random.default_rng(seed).permutation(len(y))
            train, test = np.split(order, [min(600, len(y) * 2 // 3)])
            test = test[:1500]
            scale = StandardScaler().fit(X[train])
            y = (y - y[train].mean()) / y[train].std()
            A, b, Z, z = scale.transform(X[train]), y[train], scale.transform(X[test]), y[test]
            runs.append([])
            for predict in PREDICTIONS.values():
                start = time.process_time()
                mean, deviation = predict(A, b, Z)
                seconds = time.process_time() - start
                runs[-1].append([100 * r2_score(z, mean), density(z, mean, deviation), seconds])
        means.append(np.mean(runs, axis=0))
        print(name)
        for method, row in zip(PREDICTIONS, means[-1], strict=True):
            show(f"  {method}", row, "9.3f")
    print("mean")
    for method, row in zip(PREDICTIONS, np.mean(means, axis=0), strict=True):
        show(f"  {method}", row, "9.3f")


# ---------------------------------------------------------------- error bars


def growing(rng):
    """Return a sine whose noise grows from 0.05 to 0.5."""
    X = rng.uniform(size=(2600, 1))
    return X, np.sin(9 * X[:, 0]), 0.05 + 0.45 * X[:, 0]


def two_levels(rng):
    """Return a sum of waves in two columns, and five times the noise in half of the square."""
    X = rng.uniform(size=(2600, 2))
    return X, np.sin(7 * X[:, 0]) + np.cos(5 * X[:, 1]), np.where(X[:, 0] > 0.5, 0.5, 0.1)


def friedman(rng):
    """Return ten columns of which five matter, and noise of deviation 1."""
    X, y = datasets.make_friedman1(2600, random_state=int(rng.integers(2**31)))
    return X, y, np.ones(len(y))


NOISY = {"friedman1": friedman, "growing noise": growing, "two levels": two_levels}
MAPS = {"landmarks, 512": None, "Fourier, 512": RFFSampler(512), "Fourier, 128": RFFSampler(128)}


def coverages(truth, mean, deviation, noise):
    """Return the negative log density, and the coverage of all, the quietest, the noisiest rows."""
    inside, order = np.abs(truth - mean) < 1.645 * deviation, np.argsort(noise, kind="stable")
    third = len(order) // 3
    parts = (slice(None), order[:third], order[-third:])
    return [density(truth, mean, deviation), *(inside[part].mean() for part in parts)]


def bars(name, seed):
    """Return the measures of every method."""
    rng = np.random.default_rng(seed)
    X, y, noise = NOISY[name](rng)
    y = y + noise * rng.normal(size=len(y))
    y, noise = (y - y[:600].mean()) / y[:600].std(), noise / y[:600].std()
    X, Z, y, truth, noise = X[:600], X[600:], y[:600], y[600:], noise[600:]
    results = {}
    for method, feature_map in MAPS.items():
        model = ApproxKernelRidge(
            feature_map, sigma="evidence", alpha="evidence", random_state=seed
        ).fit(X, y)
        mean, deviation = model.predict(Z, return_std=True)
        variance, sigma = model.noise_variance_[0], model.sigma_
        kernel = ConstantKernel(variance / model.alpha_) * RBF(1 / sigma) + ConstantKernel(1e6)
        exact = GaussianProcessRegressor(kernel, alpha=variance, optimizer=None).fit(X, y)
        exact_mean, function = exact.predict(Z, return_std=True)
        own = np.sqrt(np.maximum(deviation**2 - variance, 0))
        gaps = [np.mean(np.abs(own / function - 1)), np.mean(np.abs(mean - exact_mean) / function)]
        results[method] = [*gaps, *coverages(truth, mean, deviation, noise)]
        if feature_map is None:
            total = np.sqrt(function**2 + variance)
            results["exact process"] = [0, 0, *coverages(truth, exact_mean, total, noise)]
            squares = (y - cross_val_predict(model, X, y, cv=5)) ** 2
            own = np.sqrt(KernelRegressor(random_state=0).fit(X, squares).predict(Z))
            results["landmarks, scaled"] = [np.nan, 0, *coverages(truth, mean, own, noise)]
    return results


def error_bars(seeds):
    """Print how far deviations are from exact ones, and how many targets they cover."""
    for name in NOISY:
        print(f"{name:22}deviation     mean  density  covered    quiet    noisy")
        runs = [bars(name, seed) for seed in range(seeds)]
        for method in runs[0]:
            show(f"  {method}", np.mean([run[method] for run in runs], axis=0), "9.3f")


# ---------------------------------------------------------------- scales learned from targets

TRANSFORMERS = {
    "none": FunctionTransformer(),
    "leave-one-out": RelevanceScaler(random_state=0),
    "gradients": RelevanceScaler(criterion="gradients", random_state=0),
    "gradients, 1,000": RelevanceScaler(1000, criterion="gradients", random_state=0),
    "projection": RelevanceProjection(random_state=0),
}


def relevance(seeds):
    """Print scores of ridge regression after transformers."""
    print(f"{'':22}" + "".join(f"{name:>18}" for name in [*TRANSFORMERS, "neighbours"]))
    seconds = []
    for name in "vehicle letter satimage magic04 dry_bean wine_white extent".split():
        (X, y), scores = table(name), []
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(y))
            train, test = np.split(order, [min(2000, len(y) * 7 // 10)])
            scaler, test = StandardScaler().fit(X[train]), test[:4000]
            A, b, Z, z = scaler.transform(X[train]), y[train], scaler.transform(X[test]), y[test]
            is_number = y.dtype == float
            if is_number:
                b, z = ((values - b.mean()) / b.std() for values in (b, z))
            ridge = ApproxKernelRidge if is_number else ApproxKernelRidgeClassifier
            near = KNeighborsRegressor if is_number else KNeighborsClassifier
            scores.append([])
            seconds.append([])
            for transformer in TRANSFORMERS.values():
                start = time.process_time()
                transformer.fit(A, b)
                seconds[-1].append(time.process_time() - start)
                model = ridge(alpha=0.1, random_state=0).fit(transformer.transform(A), b)
                scores[-1].append(model.score(transformer.transform(Z), z))
            scores[-1].append(near(15).fit(A, b).score(Z, z))
        show(name, np.mean(scores, axis=0), "18.3f")
    show("CPU seconds", np.mean(seconds, axis=0), "18.2f")


# ---------------------------------------------------------------- near and far

ALPHAS = (0.003, 0.03, 0.3)


def landmarks_for(X, n):
    """Return a map of random landmarks whose sigma is at the median distance."""
    sigma = 2 / np.median(np.abs(X[:500, None] - X[None, :500]).sum(axis=2))
    return ClusterNystroem(n, kernel="laplacian", sigma=sigma, centers="random", random_state=0)


def timed(kind, X, y, n_landmarks, **options):
    """Return a fitted model and CPU seconds; pairs of thousands of landmarks would take hours."""
    regressor, classifier = kind
    model = (regressor if y.dtype == float else classifier)(
        landmarks_for(X, n_landmarks), **options
    )
    if y.dtype != float:
        model.set_params(decision="argmax")
    start = time.process_time()
    return model.fit(X, y), time.process_time() - start


PLAIN = ApproxKernelRidge, ApproxKernelRidgeClassifier
SEARCH = ApproxKernelRidgeCV, ApproxKernelRidgeClassifierCV


def best(parts, n_landmarks, leaf=None):
    """Return the test score at the penalty that is best on the validation part, and seconds."""
    (X, y), (V, w), (Z, z) = parts
    results = []
    for alpha in ALPHAS:
        model, seconds = timed(PLAIN, X, y, n_landmarks, alpha=alpha, max_leaf_size=leaf)
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
    options = {"sigmas": None, "alphas": ALPHAS, "max_leaf_size": 1500}
    model, of_search = timed(SEARCH, *parts[0], 400, **options)
    return near, model.score(*parts[2]), of_landmarks, exact, seconds, of_search, other, n


def near_far(seeds):
    """Print scores of leaves, landmarks and the exact kernel."""
    heads = "leaves searched landmarks exact seconds search seconds landmarks".split()
    print(f"{'':22}" + "".join(f"{head:>11}" for head in heads))
    for name in "letter magic04 satimage wine_white".split():
        X, y = table(name)
        orders = [np.random.default_rng(seed).permutation(len(y))[:9000] for seed in range(seeds)]
        show(name, np.mean([compared(X, y, order) for order in orders], axis=0), "11.4f")


def size(n):
    """Return seconds, memory and sizes of a fit to n rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 20))
    y = (X[:, 0] * X[:, 1] + X[:, 2] + 0.3 * rng.normal(size=n) > 0).astype(int)
    # Imports and compilation are not counted.
    timed(PLAIN, X[:500], y[:500], 100, alpha=0.5, max_leaf_size=200)
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model, seconds = timed(PLAIN, X, y, 400, alpha=0.5, max_leaf_size=1500)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024
    start = time.process_time()
    model.predict(rng.normal(size=(10_000, 20)))
    predicted = time.process_time() - start
    _, searched = timed(SEARCH, X, y, 400, max_leaf_size=1500)
    return seconds, predicted, len(pickle.dumps(model)) / 2**20, peak, searched


def sizes(_seeds):
    """Print seconds, memory and sizes by rows; the peak of a process is that of all it has done."""
    print(f"{'rows':22}   CPU s  predict  model MB  peak MB   search")
    for n in (2000, 10_000, 100_000):
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            show(f"{n:,}", process.submit(size, n).result(), "9.2f")


PARTS = {
    "length-scales": length_scales,
    "error-bars": error_bars,
    "relevance": relevance,
    "near-far": near_far,
    "sizes": sizes,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    PARTS[options.part](options.seeds)
