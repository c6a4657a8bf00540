"""Measure length scales by evidence: accuracy and error bars of ridge regression and exact ones.

    python benchmarks/length_scales.py --seeds 5

At most 600 training and 1,500 test rows of each set, standardised by the training rows. Beside
ridge regression by evidence, without a scaler and with either criterion of `RelevanceScaler`, stand
scikit-learn's GaussianProcessRegressor with a length scale for every column, five nearest
neighbours and the mean of the targets. Prints R2 in percent, the mean negative log density of the
test targets and CPU seconds. Abalone needs SKRF_UCI_DIR.
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.datasets import (
    load_diabetes,
    make_friedman1,
    make_friedman2,
    make_friedman3,
    make_sparse_uncorrelated,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.metrics import r2_score
from sklearn.neighbors import KNeighborsRegressor
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skrf import ApproxKernelRidge, RelevanceScaler
from skrf.datasets import load_uci

N_TRAIN, N_TEST = 600, 1500


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


SETS = {
    "friedman1": lambda seed: make_friedman1(2100, noise=1.0, random_state=seed),
    "friedman2": lambda seed: make_friedman2(2100, noise=100.0, random_state=seed),
    "friedman3": lambda seed: make_friedman3(2100, noise=0.1, random_state=seed),
    "sparse": lambda seed: make_sparse_uncorrelated(2100, n_features=12, random_state=seed),
    "waves": waves,
    "plane wave": plane_wave,
    "diabetes": lambda seed: load_diabetes(return_X_y=True),
    "abalone": abalone,
}


def ridge(criterion):
    """Return a function that fits and predicts with a scaler, or without one if that is None."""

    def predict(X, y, Z):
        if criterion is not None:
            scaler = RelevanceScaler(N_TRAIN, criterion=criterion, random_state=0).fit(X, y)
            X, Z = scaler.transform(X), scaler.transform(Z)
        model = ApproxKernelRidge(sigma="evidence", alpha="evidence", random_state=0)
        return model.fit(X, y).predict(Z, return_std=True)

    return predict


def exact(X, y, Z):
    """Return predictions of a Gaussian process with a length scale for every column."""
    kernel = ConstantKernel() * RBF(np.full(X.shape[1], 3.0), (1e-2, 1e5)) + WhiteKernel()
    return GaussianProcessRegressor(kernel).fit(X, y).predict(Z, return_std=True)


def neighbours(X, y, Z):
    """Return predictions of nearest neighbours, with one deviation by leave-one-out."""
    model = KNeighborsRegressor(5).fit(X, y)
    return model.predict(Z), np.full(len(Z), np.std(model.predict(None) - y))


METHODS = {
    "ridge": ridge(None),
    "ridge, leave-one-out": ridge("leave-one-out"),
    "ridge, evidence": ridge("evidence"),
    "exact process": exact,
    "neighbours": neighbours,
    "mean": lambda X, y, Z: (np.zeros(len(Z)), np.ones(len(Z))),
}


def measure(method, X, y, Z, z):
    """Return R2 in percent, the mean negative log density, and CPU seconds."""
    start = time.process_time()
    mean, deviation = METHODS[method](X, y, Z)
    seconds = time.process_time() - start
    density = np.log(2 * np.pi * deviation**2) / 2 + (z - mean) ** 2 / (2 * deviation**2)
    return 100 * r2_score(z, mean), density.mean(), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # optima of the exact process at bounds
    means = []
    for name in options.sets.split(","):
        runs = []
        for seed in range(options.seeds):
            X, y = SETS[name](seed)
            order = np.random.default_rng(seed).permutation(len(y))
            train, test = np.split(order, [min(N_TRAIN, len(y) * 2 // 3)])
            test = test[:N_TEST]
            scale = StandardScaler().fit(X[train])
            y = (y - y[train].mean()) / y[train].std()
            given = scale.transform(X[train]), y[train], scale.transform(X[test]), y[test]
            runs.append([measure(method, *given) for method in METHODS])
        means.append(np.mean(runs, axis=0))
        print(name)
        for method, row in zip(METHODS, means[-1], strict=True):
            print("  {:22} {:6.2f} {:7.3f} {:6.2f} s".format(method, *row), flush=True)
    print("mean")
    for method, row in zip(METHODS, np.mean(means, axis=0), strict=True):
        print("  {:22} {:6.2f} {:7.3f} {:6.2f} s".format(method, *row))


if __name__ == "__main__":
    main()
