"""Measure what following `skrf.theory.recommend` loses on the eight UCI sets.

python benchmarks/advice.py [--sets wifi car] [--seeds 5] [--most 5000]

Half of the rows (of at most --most, where SKRF_UCI_DIR says they are) are held back. Every
mechanism that `recommend` chooses from is used for the task with a sigma found in the same way,
and the regret is the accuracy of the one that is best in the mean over seeds less that of the
recommended one, in points, with the standard error of the paired difference. Times are those of
`recommend` and of a grid search over seven sigmas with scikit-learn.
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skrf import ApproxKernelRidgeClassifierCV, KernelRegressionClassifier, theory
from skrf.datasets import load_uci

UCI = ("abalone", "banknote", "car", "yeast", "cmc", "nursery", "wifi", "chess")
N_COMPONENTS = 100
FIRST_SEED = 100  # none of those that were used to design the search


def split(name, seed, most):
    """Return training and test rows and labels, standardised."""
    bunch = load_uci(name)
    rows = np.random.default_rng(seed).permutation(len(bunch.target))[:most]
    parts = train_test_split(bunch.data[rows], bunch.target[rows], test_size=0.5, random_state=seed)
    prepare = make_pipeline(
        make_column_transformer(
            (
                OneHotEncoder(handle_unknown="ignore", sparse_output=False),
                list(bunch.categorical_features),
            ),
            remainder="passthrough",
        ),
        StandardScaler(),
    )
    return prepare.fit_transform(parts[0]), prepare.transform(parts[1]), *parts[2:]


def accuracy(mechanism, task, X, X_test, y, y_test, seed):
    """Return the accuracy on held-out rows of the task's classifier."""
    mechanism = clone(mechanism).set_params(random_state=seed)
    if task == "ridge":
        model = ApproxKernelRidgeClassifierCV(mechanism, sigmas=None)
    else:
        model = KernelRegressionClassifier(mechanism)
    return 100 * model.fit(X, y).score(X_test, y_test)


def grid_search(X, y, seed):
    """Search seven sigmas of scikit-learn's features, and fit."""
    model = make_pipeline(RBFSampler(n_components=N_COMPONENTS, random_state=seed))
    model.steps.append(("logistic", LogisticRegression()))
    gammas = np.logspace(-2, 2, 7) / X.shape[1]
    GridSearchCV(model, {"rbfsampler__gamma": gammas}, cv=5).fit(X, y)


def timed(function, *args, **params):
    """Return a result and the seconds that it took."""
    start = time.perf_counter()
    return function(*args, **params), time.perf_counter() - start


def main():
    """Print a line for every set and task, and the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=UCI)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--most", type=int, default=5000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # unknown categories, classes with a single row
    candidates = theory.default_mechanisms(N_COMPONENTS)
    regrets = []
    for name in options.sets:
        search_times = []
        parts = [split(name, FIRST_SEED + s, options.most) for s in range(options.seeds)]
        for seed, (X, _, y, _) in enumerate(parts):
            search_times.append(timed(grid_search, X, y, seed)[1])
        for task in ("kernel_regression", "ridge"):
            chosen, own, times, names = [], {key: [] for key in candidates}, [], []
            for seed, (X, X_test, y, y_test) in enumerate(parts):
                rest = {"task": task, "n_components": N_COMPONENTS}
                best, seconds = timed(theory.recommend, X, y, **rest)
                times.append(seconds)
                names.append(type(best).__name__)
                chosen.append(accuracy(best, task, X, X_test, y, y_test, seed))
                for key, mechanism in candidates.items():
                    one = theory.recommend(X, y, task=task, mechanisms={key: mechanism})
                    own[key].append(accuracy(one, task, X, X_test, y, y_test, seed))
            best = max(own, key=lambda key: np.mean(own[key]))
            lost = np.array(own[best]) - chosen
            regrets.append(lost.mean())
            error = lost.std(ddof=1) / np.sqrt(len(lost)) if len(lost) > 1 else np.nan
            print(
                f"{name:9s} {task:18s} regret {lost.mean():5.2f} +- {error:.2f}; best {best} "
                f"{np.mean(own[best]):.1f}; recommended {', '.join(sorted(set(names)))} "
                f"{np.mean(chosen):.1f}; {np.mean(times):.1f} s, grid search "
                f"{np.mean(search_times):.1f} s",
                flush=True,
            )
            print("         ", {key: round(float(np.mean(v)), 1) for key, v in own.items()})
    print(f"mean regret {np.mean(regrets):.2f}, largest {np.max(regrets):.2f}")


if __name__ == "__main__":
    main()
