"""Measure the searches of sigma in kernel regression: speed against GridSearchCV, accuracy on UCI.

    python benchmarks/search.py --only speed --rounds 3

`speed` compares KernelRegressionClassifierCV with GridSearchCV, 10 sigmas and 5 folds, on 100,000 x
20 rows with five classes; `fit` times sigma="auto" on 2,000 rows; `auto` compares the accuracy of
sigma="auto" with grid searches on all training rows, of the same map and of Nystroem, on the eight
UCI sets (SKRF_UCI_DIR), at most 5,000 rows of each. Ratios and differences are taken in one run, on
the threads that BLAS is allowed.
"""

import argparse
import random
import time
import warnings
from statistics import mean

import numpy as np
from ridge import SETS, split
from sklearn.datasets import make_classification
from sklearn.kernel_approximation import Nystroem
from sklearn.model_selection import GridSearchCV, KFold
from speed import judge, note

from skrf import (
    AdaptiveRF,
    KernelRegressionClassifier,
    KernelRegressionClassifierCV,
    OptimalPositiveRF,
    RFFSampler,
)

STEPS = np.logspace(-1, 2, 10)  # of sigma="scale": the grid that an int stands for


def seconds(work, *arguments):
    """Return how long a call takes."""
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def measure_speed(rounds):
    """Both searches on 100,000 rows, and what they choose."""
    X, y = make_classification(100_000, 20, n_informative=10, n_classes=5, random_state=0)
    sigmas = np.logspace(-2, 1, 10)
    for feature_map, bound in ((RFFSampler(256), 3.5), (OptimalPositiveRF(100), 3.0)):
        own = feature_map.set_params(random_state=0)
        KernelRegressionClassifier(own).fit(X, y)  # compiles
        searches = {
            "CV": KernelRegressionClassifierCV(own, sigmas=sigmas),
            "grid": GridSearchCV(KernelRegressionClassifier(own), {"sigma": sigmas}),
        }
        taken = {name: [] for name in searches}
        for _ in range(rounds):
            for name in random.sample(list(searches), 2):
                taken[name].append(seconds(searches[name].fit, X, y))
        ours, theirs = (search.cv_results_["mean_test_score"] for search in searches.values())
        a, b = np.argmax(ours), np.argmax(theirs)
        error = searches["grid"].cv_results_["std_test_score"][b] / np.sqrt(5)
        note(f"{own}: chosen {a} and {b} of 10, {(theirs[b] - theirs[a]) / error:.2g} errors apart")
        judge(f"{own}: fit, grid / CV", taken["grid"], taken["CV"], bound)
        largest, allowed = abs(ours - theirs).max(), 1e-12 if "RFF" in repr(own) else 0.005
        judge(f"{own}: scores apart", [largest], [1.0], allowed, at_most=True, unit=" ")


def measure_fit(rounds):
    """sigma="auto" on 2,000 rows."""
    X, y = make_classification(2000, 20, n_informative=10, n_classes=5, random_state=0)
    for feature_map, bound in (
        (OptimalPositiveRF(256), 1.0),
        (RFFSampler(256), 1.0),
        ("exact", 1.0),
        (AdaptiveRF(256), 3.0),
    ):
        model = KernelRegressionClassifier(feature_map, sigma="auto")
        taken = [seconds(model.fit, X, y) for _ in range(rounds)]
        judge(f"{feature_map}: auto", taken, [1.0] * rounds, bound, at_most=True, unit=" s")


def measure_auto(rounds):
    """Accuracy of automatic and of searched sigmas on the UCI sets."""
    found = {name: [] for name in SETS}
    for name in SETS:
        for seed in range(rounds):
            train, test, y, truth = split(name, seed)
            folds = KFold(5, shuffle=True, random_state=seed)
            scale = OptimalPositiveRF(1, sigma="scale").fit(train).sigma_
            nystroem = KernelRegressionClassifier(Nystroem(n_components=256, random_state=seed))
            gammas = (scale * STEPS) ** 2 / 2
            optimal, seeded = OptimalPositiveRF(256), {"random_state": seed}
            models = {
                "OptimalPositiveRF": KernelRegressionClassifier(optimal, sigma="auto", **seeded),
                "its grid": KernelRegressionClassifierCV(optimal, cv=folds, **seeded),
                "default": KernelRegressionClassifier(**seeded),
                "default's grid": KernelRegressionClassifierCV(cv=folds, **seeded),
                "Nystroem": GridSearchCV(nystroem, {"feature_map__gamma": gammas}, cv=folds),
            }
            labels, sizes = np.unique(y, return_counts=True)
            record = {"majority": 100 * np.mean(truth == labels[np.argmax(sizes)])}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Nystroem's fewer rows than components
                for method, model in models.items():
                    record[method] = 100 * model.fit(train, y).score(test, truth)
            found[name].append(record)
        means = {method: mean(r[method] for r in found[name]) for method in record}
        note(" | ".join([name, *(f"{method} {value:.1f}" for method, value in means.items())]))
        found[name] = means
    for ours, grid in (("OptimalPositiveRF", "its grid"), ("default", "default's grid")):
        gaps = [means[grid] - means[ours] for means in found.values()]
        what = f"grid less auto, {ours}"
        judge(f"{what}: mean", [mean(gaps)], [1.0], 1.5, at_most=True, unit=" points")
        judge(f"{what}: worst set", [max(gaps)], [1.0], 5, at_most=True, unit=" points")
        behind = [means[ours] <= means["majority"] < means[grid] for means in found.values()]
        judge(f"{ours}: sets behind the majority", [sum(behind)], [1.0], 0, at_most=True)
    gap = mean(means["Nystroem"] - means["default"] for means in found.values())
    judge("Nystroem less default: mean", [gap], [1.0], 0.5, at_most=True, unit=" points")


PARTS = {"speed": measure_speed, "fit": measure_fit, "auto": measure_auto}


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(PARTS), help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    random.seed(0)
    for part in options.only.split(","):
        PARTS[part](options.rounds)


if __name__ == "__main__":
    main()
