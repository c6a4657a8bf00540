"""Random features versus the exact kernel, from raw columns to a table and a picture.

Four maps from skrf and two from scikit-learn are used in kernel regression and in ridge
classification. Sigma (and the penalty of ridge classification) is chosen on the training rows; the
accuracy is measured on held-out rows. For comparison, the methods that use the
full kernel matrix are included: exact kernel regression, SVC and KernelRidge; and the kernel
machine, which needs no search. Every seed gives a new split and a new draw.

    python examples/uci_grid_search.py          four UCI sets; without their folder, two of
                                                scikit-learn and a synthetic one; a minute of CPU
    python examples/uci_grid_search.py --full   eight UCI sets, with more rows; some minutes

The UCI sets are read by `skrf.datasets.load_uci` from the folder --data-dir or SKRF_UCI_DIR.
"""

import argparse
import os
import sys
import time
import warnings
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from joblib import Parallel, cpu_count, delayed
from matplotlib.figure import Figure
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.dummy import DummyClassifier
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelBinarizer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

import skrf
from skrf.datasets import load_uci
from skrf.exceptions import FeatureCollapseWarning

SMALL = ("banknote", "car", "cmc", "wifi")
UCI_NAMES = (*SMALL, "abalone", "yeast", "nursery", "chess")
SIZES = (16, 64)  # numbers of components
SHOWN_SIZE = 64  # in the table
MAX_TEST_ROWS = 2000
PROGRESS = 10  # seconds between two lines
FOLDS = 3
GAMMAS = np.logspace(-3, 1, 7)  # of the exact methods, for standardised columns


class WithSigma(TransformerMixin, BaseEstimator):
    """A map of scikit-learn with sigma in place of gamma, which skrf's searches set."""

    def __init__(self, feature_map, sigma=None, random_state=None):
        self.feature_map = feature_map
        self.sigma = sigma
        self.random_state = random_state

    def fit(self, X, y=None):
        kernel = skrf.RFFSampler(2, sigma=self.sigma).fit(X)  # knows what "scale" stands for
        self.sigma_ = kernel.sigma_
        parameters = {"gamma": kernel.gamma_, "random_state": self.random_state}
        self.feature_map_ = clone(self.feature_map).set_params(**parameters).fit(X)
        return self

    def transform(self, X):
        return self.feature_map_.transform(X)


class KernelRidgeClassifier(ClassifierMixin, KernelRidge):
    """KernelRidge of scikit-learn on targets -1 and 1 for every class."""

    def fit(self, X, y):
        self.labels_ = LabelBinarizer(neg_label=-1).fit(y)
        return super().fit(X, self.labels_.transform(y))

    def predict(self, X):
        return self.labels_.inverse_transform(super().predict(X), threshold=0)


# One line adds a map; each makes one of a given number of components.
MAPS = {
    "ClusterNystroem": skrf.ClusterNystroem,
    "AdaptiveRF": skrf.AdaptiveRF,
    "OptimalPositiveRF": skrf.OptimalPositiveRF,
    "RFFSampler": skrf.RFFSampler,
    "Nystroem (scikit-learn)": lambda size: WithSigma(Nystroem(n_components=size)),
    "RBFSampler (scikit-learn)": lambda size: WithSigma(RBFSampler(n_components=size)),
}
# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLORS = dict(zip(MAPS, "#D55E00 #0072B2 #CC79A7 #009E73 #E69F00 #56B4E9".split(), strict=True))

KERNEL_REGRESSION, RIDGE, MAJORITY = "kernel regression", "ridge", "majority class"
MACHINE = "kernel machine"
CONSUMERS = {
    KERNEL_REGRESSION: skrf.KernelRegressionClassifier,
    RIDGE: partial(skrf.ApproxKernelRidgeClassifierCV, sigmas=5),
}
# What each consumer is measured against.
svc = GridSearchCV(SVC(), {"gamma": GAMMAS, "C": [1, 10, 100]}, cv=FOLDS)
kernel_ridge = KernelRidgeClassifier(kernel="rbf")
kernel_ridge = GridSearchCV(kernel_ridge, {"gamma": GAMMAS, "alpha": [0.01, 0.1, 1]}, cv=FOLDS)
REFERENCES = {
    KERNEL_REGRESSION: {
        "exact kernel regression": skrf.KernelRegressionClassifier("exact"),
        MAJORITY: DummyClassifier(),
    },
    RIDGE: {
        MACHINE: skrf.KernelMachineClassifier(),
        "SVC": svc,
        "KernelRidge": kernel_ridge,
        MAJORITY: DummyClassifier(),
    },
}


def load(full, data_dir):
    """Return {name: (X, y, indices of categorical columns)}."""
    if full or data_dir:
        names = UCI_NAMES if full else SMALL
        try:
            sets = {name: load_uci(name, data_dir=data_dir) for name in names}
        except FileNotFoundError as error:
            sys.exit(f"The UCI sets {', '.join(names)} are needed, see --data-dir. {error}")
        return {k: (own.data, own.target, own.categorical_features) for k, own in sets.items()}
    clusters = make_classification(
        3000, 10, n_informative=8, n_classes=4, n_clusters_per_class=4, random_state=0
    )
    return {
        "digits": (*load_digits(return_X_y=True), []),
        "breast cancer": (*load_breast_cancer(return_X_y=True), []),
        "clusters": (*clusters, []),
    }


def measure(data, max_rows, dataset, consumer, method, size, seed):
    """Search on the training rows and measure on the others; return a row of the results."""
    X, y, categorical = data
    n_train = min(max_rows, 2 * len(y) // 3)
    n_test = min(MAX_TEST_ROWS, len(y) - n_train)
    # Not stratified: some UCI sets have classes of one row, which cannot be divided.
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, train_size=n_train, test_size=n_test, random_state=seed
    )
    if method in MAPS:
        model = CONSUMERS[consumer](MAPS[method](size), random_state=seed)
    else:
        model = clone(REFERENCES[consumer][method])
    if method == MACHINE:  # takes the columns as they are
        model.set_params(categorical_features=categorical or None, random_state=seed)
    else:
        one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        prepare = ColumnTransformer([("one_hot", one_hot, categorical)], remainder=StandardScaler())
        model = make_pipeline(prepare, model)
    # There are as many workers as cores; more threads in each would wait for one another.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # Every grid has values at which landmarks see nothing; the searches pass over them.
        warnings.simplefilter("ignore", FeatureCollapseWarning)
        # Small sets have fewer rows than columns are asked for, and classes of one row.
        warnings.filterwarnings("ignore", "n_components > n_samples|The least populated class")
        start = time.perf_counter()
        model.fit(X_train, y_train)
        seconds = time.perf_counter() - start
        accuracy = 100 * model.score(X_test, y_test)
    return dataset, consumer, method, size, seed, accuracy, seconds


def measure_all(datasets, seeds, max_rows, n_jobs):
    """Run everything in parallel and return a DataFrame with a row for each."""
    methods = [(consumer, name, 0) for consumer in CONSUMERS for name in REFERENCES[consumer]]
    methods += product(CONSUMERS, MAPS, SIZES)
    plan = [(own, *method, seed) for own, method, seed in product(datasets, methods, range(seeds))]
    jobs = (delayed(measure)(datasets[task[0]], max_rows, *task) for task in plan)
    rows, start = [], time.perf_counter()
    print(f"{len(plan)} searches on {', '.join(datasets)}, in {n_jobs} processes", flush=True)
    shown = start
    for row in Parallel(n_jobs, return_as="generator_unordered")(jobs):
        rows.append(row)
        now = time.perf_counter()
        if now - shown >= PROGRESS:
            shown = now
            print(f"{len(rows)} of {len(plan)} after {now - start:.0f} s", flush=True)
    columns = ["dataset", "consumer", "method", "size", "seed", "accuracy", "seconds"]
    return pd.DataFrame(rows, columns=columns)


def text(values):
    """Return the mean and its standard error; a single seed has none."""
    return f"{values.mean():.1f}" + ("" if len(values) == 1 else f" ± {values.sem():.1f}")


def mean_over_sets(results):
    """Return results with the mean over the data sets of every method and seed."""
    keys = ["consumer", "method", "size", "seed"]
    return results.groupby(keys, as_index=False)[["accuracy", "seconds"]].mean()


def print_table(results):
    """Print the accuracies of each consumer: a row for a method, a column for a data set."""
    results = results[results["size"].isin([0, SHOWN_SIZE])]
    means = mean_over_sets(results).assign(dataset="mean")
    for consumer, references in REFERENCES.items():
        own = pd.concat([results, means]).query("consumer == @consumer")
        table = own.pivot_table("accuracy", "method", "dataset", aggfunc=text, sort=False)
        table["search, s"] = own.groupby("method")["seconds"].mean().map("{:.2f}".format)
        print(f"\n{consumer}: accuracy in % on held-out rows, maps with {SHOWN_SIZE} components")
        print(table.loc[[*MAPS, *references]].rename_axis(index=None, columns=None).to_string())


def plot(results, path):
    """Draw the accuracy, mean over the sets, against the number of components."""
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots(1, len(CONSUMERS))
    means = mean_over_sets(results).set_index(["consumer", "method", "size"])["accuracy"]
    for axis, (consumer, references) in zip(axes, REFERENCES.items(), strict=True):
        for marker, (name, color) in zip("osD^os", COLORS.items(), strict=True):
            runs = means[consumer, name].groupby("size")
            theirs = {"ls": "--", "mfc": "white"} if "scikit" in name else {}
            style = {"color": color, "marker": marker, "capsize": 2, **theirs}
            axis.errorbar(SIZES, runs.mean(), runs.sem().fillna(0), label=name, **style)
        levels = {name: means[consumer, name].mean() for name in references}
        floor = levels.pop(MAJORITY)
        # All names stand above the best line: lines may be too close for one at each.
        names = sorted(levels, key=levels.get, reverse=True)
        for name, style in zip(names, ("-", "--", ":"), strict=False):
            axis.axhline(levels[name], color="black", ls=style, lw=1)
        label = ", ".join(f"{name} {levels[name]:.1f}" for name in names)
        place = {"xytext": (0, 2), "textcoords": "offset points", "fontsize": 8}
        axis.annotate(label, (SIZES[0], levels[names[0]]), **place)
        label = f"{MAJORITY} {floor:.1f}"
        axis.text(0.98, 0.02, label, ha="right", color="0.35", transform=axis.transAxes)
        axis.set(title=consumer, xlabel="components")
        axis.margins(y=0.08)  # room for the names of the lines
        axis.set_xscale("log", base=2)
        axis.set_xticks(SIZES, labels=map(str, SIZES))
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("accuracy in %, mean over the sets")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"\nSaved {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    output = Path(__file__).resolve().parent / "output"
    add("--full", action="store_true", help="the eight UCI sets")
    add("--seeds", type=int, default=2, help="splits and draws (default 2)")
    add("--rows", type=int, help="most training rows (default 400; with --full 2000)")
    add("--jobs", type=int, default=cpu_count(), help="processes (default: one a core)")
    folder = os.environ.get("SKRF_UCI_DIR")
    add("--data-dir", default=folder, help="folder of the UCI files (default: SKRF_UCI_DIR)")
    add("--output", type=Path, default=output, help="folder of the picture (examples/output)")
    args = parser.parse_args()
    max_rows = (2000 if args.full else 400) if args.rows is None else args.rows
    if min(max_rows, args.seeds, args.jobs) < 1:
        parser.error("--rows, --seeds and --jobs must be at least 1")
    try:
        results = measure_all(load(args.full, args.data_dir), args.seeds, max_rows, args.jobs)
    except KeyboardInterrupt:
        sys.exit("Stopped; nothing was written.")
    print_table(results)
    plot(results, args.output / "demo.png")


if __name__ == "__main__":
    main()
