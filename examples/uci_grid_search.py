"""Tune sigma of random-feature classifiers: from raw columns to a table and two plots.

Every mechanism is used twice: as the feature map of kernel regression, whose training is one pass
over the rows, and as a pipeline step in front of logistic regression. A grid search with three
folds chooses sigma out of ten values; accuracy is then measured on rows held out from the search.
Each seed is a new split of the rows and a new draw of the random features.

    python examples/uci_grid_search.py          three sets that come with scikit-learn, a minute
    python examples/uci_grid_search.py --full   and eight UCI sets, more mechanisms, hours

The eight UCI sets are read by `skrf.datasets.load_uci` from the folder --data-dir or SKRF_UCI_DIR.
"""

import argparse
import sys
import time
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from joblib import Parallel, cpu_count, delayed
from matplotlib.figure import Figure
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import Normalizer, OneHotEncoder, StandardScaler
from threadpoolctl import threadpool_limits

from skrf import (
    AdaptiveRF,
    ClusterNystroem,
    DenseExponentialRF,
    GeneralizedExponentialRF,
    GeometricRF,
    HybridRF,
    KernelRegressionClassifier,
    OptimalPositiveRF,
    PoissonRF,
    PositiveRF,
    RFFSampler,
    SimplexRF,
    SimplexRFPlus,
)
from skrf.datasets import load_uci

# One line adds a mechanism, to every run or to --full.
MECHANISMS = {
    "RFFSampler": RFFSampler(),
    "PositiveRF": PositiveRF(),
    "OptimalPositiveRF": OptimalPositiveRF(),
    "SimplexRF": SimplexRF(),
    "SimplexRFPlus": SimplexRFPlus(),
}
FULL_MECHANISMS = MECHANISMS | {
    "RFFSampler, iid": RFFSampler(coupling="iid"),
    "RFFSampler, sobol": RFFSampler(coupling="sobol"),
    "RFFSampler, norm-coupled": RFFSampler(coupling="norm-coupled"),
    "PositiveRF, iid": PositiveRF(coupling="iid"),
    "PositiveRF, hyperbolic": PositiveRF(variant="hyperbolic"),
    "PositiveRF, regularized": PositiveRF(variant="regularized"),
    "OptimalPositiveRF, iid": OptimalPositiveRF(coupling="iid"),
    "OptimalPositiveRF, sobol": OptimalPositiveRF(coupling="sobol"),
    "OptimalPositiveRF, simplex": OptimalPositiveRF(coupling="simplex"),
    "GeneralizedExponentialRF": GeneralizedExponentialRF(),
    "DenseExponentialRF": DenseExponentialRF(),
    "AdaptiveRF": AdaptiveRF(),
    "ClusterNystroem": ClusterNystroem(),
    "PoissonRF": PoissonRF(),
    "GeometricRF": GeometricRF(),
    "HybridRF": HybridRF(),
}
EXACT = "exact kernel regression"

LOADERS = {"digits": load_digits, "wine": load_wine, "breast cancer": load_breast_cancer}
UCI_NAMES = ("abalone", "banknote", "car", "yeast", "cmc", "nursery", "wifi", "chess")
MAX_TEST_ROWS = 4000

# A larger sigma is a narrower kernel.
SIGMAS = np.logspace(-2, 2, 10)
# Sizes tried, as shares of --n-components. That is a multiple of 16, so that an eighth of it is
# even: sines and cosines come in pairs.
SIZE_SHARES = (1 / 8, 1 / 4, 1 / 2, 1, 2)

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8C510A")
LINES = ("-", "-.", ":", (0, (6, 2)))
MARKERS = "os^Dv*P<>Xp"  # more than colours: together they tell eleven classes apart


def kernel_regression(feature_map):
    """Return the steps after the preparation, and the prefix of the map's parameters in them."""
    return [("classifier", KernelRegressionClassifier(feature_map))], "classifier__feature_map__"


def logistic_regression(feature_map):
    """Return the steps after the preparation, and the prefix of the map's parameters in them."""
    # A row of sines and cosines has length 1; rows of positive features differ by orders of
    # magnitude.
    normalizer = Normalizer() if feature_map.is_positive else "passthrough"
    # The entries of a row of length 1 are small, which asks for a weak penalty.
    classifier = LogisticRegression(C=100.0, max_iter=2000)
    steps = [("features", feature_map), ("normalizer", normalizer), ("classifier", classifier)]
    return steps, "features__"


CONSUMERS = {"kernel regression": kernel_regression, "logistic regression": logistic_regression}


class ExactKernelRegression(ClassifierMixin, BaseEstimator):
    """What kernel regression on features approximates, at a cost quadratic in the rows."""

    def __init__(self, sigma=1.0):
        self.sigma = sigma

    def fit(self, X, y):
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.X_, self.one_hot_ = X, np.eye(len(self.classes_))[codes]
        return self

    def predict(self, X):
        logs = -(self.sigma**2) / 2 * euclidean_distances(X, self.X_, squared=True)
        # The nearest training row gets weight 1, so that no query is 0/0 at a large sigma.
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        return self.classes_[(weights @ self.one_hot_).argmax(axis=1)]


def build(consumer, mechanism, categorical, **parameters):
    """Return a pipeline from raw columns to labels, and the prefix of sigma's name in it."""
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    prepare = ColumnTransformer([("one_hot", one_hot, categorical)], remainder=StandardScaler())
    if mechanism == EXACT:
        steps, prefix = [("classifier", ExactKernelRegression())], "classifier__"
    else:
        feature_map = clone(FULL_MECHANISMS[mechanism]).set_params(**parameters)
        steps, prefix = CONSUMERS[consumer](feature_map)
    return Pipeline([("prepare", prepare), *steps]), prefix


def search(data, dataset, consumer, mechanism, n_components, seed, max_rows):
    """Tune sigma on the training rows; measure accuracy and times on the held-out rows."""
    X, y, categorical = data
    n_train = min(max_rows, 2 * len(y) // 3)
    n_test = min(MAX_TEST_ROWS, len(y) - n_train)
    # Not stratified: some sets have classes of one or two rows, which cannot be divided.
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, train_size=n_train, test_size=n_test, random_state=seed
    )
    folds = KFold(3, shuffle=True, random_state=seed)
    # The seed is an integer, which gives the same draw in every fold and at every sigma.
    model, prefix = build(
        consumer, mechanism, categorical, n_components=n_components, random_state=seed
    )
    tuned = GridSearchCV(model, {f"{prefix}sigma": SIGMAS}, cv=folds, error_score="raise")
    # There are as many workers as cores; more threads in each would wait for one another.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # The largest sigmas of the grid make positive features underflow in front of a linear
        # model. That costs accuracy, the search passes over them, and nobody needs a warning.
        # Kernel regression takes the logarithms of positive features and works at any sigma.
        warnings.filterwarnings("ignore", ".*features of X vanished", RuntimeWarning)
        tuned.fit(X_train, y_train)
        start = time.perf_counter()
        accuracy = tuned.score(X_test, y_test)
        predict_time = time.perf_counter() - start
    majority = DummyClassifier()
    return {
        "dataset": dataset,
        "mechanism": mechanism,
        "consumer": consumer,
        "n_components": n_components,
        "seed": seed,
        "accuracy": accuracy,
        "sigma": tuned.best_params_[f"{prefix}sigma"],
        "fit_ms": 1e3 * tuned.refit_time_,
        "predict_ms": 1e3 * predict_time,
        "majority": majority.fit(X_train, y_train).score(X_test, y_test),
        "cv_accuracy": tuned.cv_results_["mean_test_score"],
        "cv_majority": cross_val_score(majority, X_train, y_train, cv=folds).mean(),
        "size": f"{n_train} training rows, {n_test} test rows, {len(set(y))} classes",
    }


def search_all(datasets, mechanisms, sizes, seeds, max_rows, n_jobs):
    """Run all searches in parallel, show progress, and return a DataFrame with a row for each."""
    plan = [
        (dataset, consumer, mechanism, size, seed)
        for dataset in datasets
        for consumer, mechanism, size in [
            ("kernel regression", EXACT, 0),
            *product(CONSUMERS, mechanisms, sizes),
        ]
        for seed in range(seeds)
    ]
    jobs = (delayed(search)(datasets[task[0]], *task, max_rows) for task in plan)
    rows, shown, start = [], 0.0, time.perf_counter()
    for row in Parallel(n_jobs, return_as="generator")(jobs):
        rows.append(row)
        share, elapsed = len(rows) / len(plan), time.perf_counter() - start
        line = f"{share:4.0%}  {len(rows)} of {len(plan)} searches, {elapsed:.0f} s, "
        line += f"about {elapsed / share - elapsed:.0f} s to go, now at {row['dataset']}"
        if sys.stdout.isatty():  # one changing line in a terminal, some lines in a log file
            print(f"\r{line:<79}", end="\n" if share == 1 else "", flush=True)
        elif share >= shown + 0.1 or share == 1:
            print(line, flush=True)
            shown = share
    return pd.DataFrame(rows)


def print_table(rows):
    """Print means over seeds, the standard error of the accuracy and the range of sigmas."""
    rule = "-" * 108
    titles = ("mechanism", "consumer", "accuracy", "std error", "sigma", "fit ms", "predict ms")
    print("\n{:<29}{:<21}{:>8}{:>11}{:>17}{:>9}{:>13}".format(*titles))
    for dataset, found in rows.groupby("dataset", sort=False):
        print(f"{rule}\n{dataset}: {found['size'].iloc[0]}")
        print(f"{'majority class':<50}{found['majority'].mean():>8.3f}")
        groups = found.groupby(["consumer", "mechanism"], sort=False)
        for (consumer, mechanism), runs in groups:
            accuracy = runs["accuracy"].mean()
            # One seed has no standard error.
            error = f"{runs['accuracy'].sem():.3f}".replace("nan", "-")
            chosen = dict.fromkeys(f"{f(runs['sigma']):.3g}" for f in (min, max))
            print(
                f"{mechanism:<29}{consumer:<21}{accuracy:>8.3f}{error:>11}"
                f"{' to '.join(chosen):>17}{runs['fit_ms'].mean():>9.1f}"
                f"{runs['predict_ms'].mean():>13.1f}"
            )


def against_sigma(runs):
    """Return sigmas and cross-validated accuracies, a row for each seed."""
    return SIGMAS, np.stack(list(runs["cv_accuracy"]))


def against_size(runs):
    """Return numbers of components and accuracies, a row for each seed."""
    table = runs.pivot(index="seed", columns="n_components", values="accuracy")
    return table.columns.to_numpy(), table.to_numpy()


def style_of(mechanism, mechanisms):
    """Return colour, line and marker: a colour for each class, a line for each variant of it."""
    families = [name.split(",")[0] for name in mechanisms]
    i = list(mechanisms).index(mechanism)
    color = list(dict.fromkeys(families)).index(families[i])
    line = families[:i].count(families[i])
    return {
        "color": COLORS[color % len(COLORS)],
        "ls": LINES[line % len(LINES)],
        "marker": MARKERS[color % len(MARKERS)],
    }


def plot(rows, curve, majority, xlabel, ylabel, path):
    """Save a figure with a panel for each dataset and consumer."""
    mechanisms = [name for name in rows["mechanism"].unique() if name != EXACT]
    panels = list(product(rows["dataset"].unique(), CONSUMERS))
    n_columns = len(CONSUMERS) * (1 if len(panels) <= 8 else 2)
    n_rows = -(-len(panels) // n_columns)
    figure = Figure(figsize=(5 * n_columns, 1.5 + 2.7 * n_rows), layout="constrained")
    axes = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for spare in axes[len(panels) :]:
        spare.set_axis_off()
    for i, (dataset, consumer) in enumerate(panels):
        axis = axes[i]
        axis.sharey(axes[i - i % len(CONSUMERS)])  # the consumers of a dataset are compared
        found = rows[rows["dataset"] == dataset]
        axis.axhline(found[majority].mean(), color="0.45", ls=":", label="majority class")
        for name in (EXACT, *mechanisms):
            runs = found[found["mechanism"] == name]
            style, shift = {"color": "black", "ls": "--", "zorder": 3}, 0.0
            if name != EXACT:
                runs, style = runs[runs["consumer"] == consumer], style_of(name, mechanisms)
                shift = (mechanisms.index(name) + 0.5) / len(mechanisms) - 0.5
            x, values = curve(runs)
            mean, error = values.mean(axis=0), pd.DataFrame(values).sem().to_numpy()
            if len(x) == 1:  # the exact kernel has no number of components
                axis.axhline(mean[0], label=name, **style)
                continue
            # Curves that agree are drawn a little beside each other.
            beside = x * (x[1] / x[0]) ** (0.3 * shift)
            axis.plot(beside, mean, ms=5, mec="white", mew=0.5, label=name, **style)
            low, high = mean - error, mean + error
            axis.fill_between(beside, low, high, color=style["color"], alpha=0.12, lw=0)
        axis.set_title(f"{dataset}, {consumer}", fontsize=10)
        axis.set_xscale("log")
        axis.grid(alpha=0.3)
        if curve is against_size:
            axis.set_xticks(x, labels=map(str, x))
            axis.minorticks_off()
    figure.supxlabel(xlabel)
    figure.supylabel(f"{ylabel}, mean and standard error over seeds (band)")
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=n_columns + 2, frameon=False)
    figure.savefig(path, dpi=150)
    print(f"Saved {path}")


def load(full, data_dir):
    """Return {name: (X, y, indices of categorical columns)}."""
    datasets = {name: (*loader(return_X_y=True), []) for name, loader in LOADERS.items()}
    for name in UCI_NAMES if full else ():
        try:
            bunch = load_uci(name, data_dir=data_dir)
        except FileNotFoundError as error:
            sys.exit(
                f"--full needs the sets {', '.join(UCI_NAMES)}, a file NAME.csv for each: give "
                f"their folder as --data-dir or in SKRF_UCI_DIR. The first one missing:\n{error}"
            )
        datasets[name] = bunch.data, bunch.target, bunch.categorical_features
    return datasets


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    output = Path(__file__).resolve().parent / "output"
    add("--full", action="store_true", help="eight UCI sets and more mechanisms; takes hours")
    add("--seeds", type=int, help="splits and draws (default 2; with --full 5)")
    add("--rows", type=int, help="most training rows (default 600; with --full 2000)")
    add("--n-components", type=int, default=128, help="a multiple of 16 (default 128)")
    add("--jobs", type=int, default=cpu_count(), help="processes (default: one a core)")
    add("--data-dir", help="folder of the UCI files (default: the variable SKRF_UCI_DIR)")
    add("--output", type=Path, default=output, help="folder for the plots (examples/output)")
    args = parser.parse_args()
    max_rows = (2000 if args.full else 600) if args.rows is None else args.rows
    seeds = (5 if args.full else 2) if args.seeds is None else args.seeds
    if args.n_components < 16 or args.n_components % 16:
        parser.error(f"--n-components must be a multiple of 16, got {args.n_components}")
    if min(max_rows, seeds, args.jobs) < 1:
        parser.error("--rows, --seeds and --jobs must be at least 1")
    mechanisms = FULL_MECHANISMS if args.full else MECHANISMS
    datasets = load(args.full, args.data_dir)
    sizes = [int(share * args.n_components) for share in SIZE_SHARES]

    print(
        f"{len(datasets)} datasets, at most {max_rows} training and {MAX_TEST_ROWS} test rows each;"
        f" {len(mechanisms)} mechanisms, {seeds} seeds, {args.jobs} processes"
    )
    rows = search_all(datasets, mechanisms, sizes, seeds, max_rows, args.jobs)
    usual = rows[rows["n_components"].isin([0, args.n_components])]
    print(f"\nResults with {args.n_components} components:")
    print_table(usual)

    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / "accuracy_against_sigma.png"
    plot(usual, against_sigma, "cv_majority", "sigma", "cross-validated accuracy", path)
    path = args.output / "accuracy_against_n_components.png"
    plot(rows, against_size, "majority", "n_components", "accuracy on held-out rows", path)


if __name__ == "__main__":
    main()
