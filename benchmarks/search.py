"""Measure the searches of sigma in kernel regression: speed against GridSearchCV, accuracy on UCI.

    python benchmarks/search.py --only speed --rounds 3

`speed` compares KernelRegressionClassifierCV with GridSearchCV, 10 sigmas and 5 folds, on 100,000 x
20 rows with five classes; `fit` times fits that choose sigma by leave-one-out, on 1,500 rows;
`sigma` compares their accuracy and log loss with those of searches by folds and of simple answers,
on the eight UCI sets (SKRF_UCI_DIR), at most 5,000 rows of each. Ratios and differences are taken
in one run, on the threads that BLAS is allowed.
"""

import argparse
import random
import time

import numpy as np
from ridge import SETS, split
from sklearn.datasets import make_classification
from sklearn.dummy import DummyClassifier
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from speed import judge, note

from skrf import (
    AdaptiveRF,
    KernelRegressionClassifier,
    KernelRegressionClassifierCV,
    OptimalPositiveRF,
    RFFSampler,
)


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
    """Fits that choose sigma by leave-one-out, on 1,500 rows of 20 columns."""
    X, y = make_classification(1500, 20, n_informative=10, n_classes=5, random_state=0)
    for feature_map in (None, OptimalPositiveRF(256), RFFSampler(256), AdaptiveRF(256), "exact"):
        model = KernelRegressionClassifier(feature_map, random_state=0).fit(X, y)
        taken = []
        for _ in range(rounds):
            start = time.process_time()
            model.fit(X, y)
            taken.append(time.process_time() - start)
        bound = 0.5 if feature_map is None else 1.5
        name = model.feature_map if feature_map else model.feature_map_
        judge(f"{name}: CPU of fit", taken, [1.0] * rounds, bound, at_most=True, unit=" s")


def measure_sigma(rounds):
    """Accuracy and log loss with the sigma of leave-one-out, on the UCI sets."""
    sums = {}
    for name in SETS:
        records = {}
        for seed in range(rounds):
            train, test, y, truth = split(name, seed)
            is_known = np.isin(truth, y)
            seeded = {"random_state": seed}
            models = {
                "default": KernelRegressionClassifier(**seeded),
                "default's search": KernelRegressionClassifierCV(**seeded),
                "AdaptiveRF": KernelRegressionClassifier(AdaptiveRF(256), **seeded),
                "AdaptiveRF's search": KernelRegressionClassifierCV(AdaptiveRF(256), **seeded),
                "OptimalPositiveRF": KernelRegressionClassifier(OptimalPositiveRF(256), **seeded),
                "5 neighbours": KNeighborsClassifier(5),
                "RBFSampler + logistic": make_pipeline(
                    RBFSampler(gamma="scale", n_components=256, **seeded),
                    LogisticRegression(max_iter=1000),
                ),
                "logistic": LogisticRegression(max_iter=1000),
                "majority": DummyClassifier(),
            }
            for method, model in models.items():
                model.fit(train, y)
                accuracy = 100 * np.mean(model.predict(test) == truth)
                loss = log_loss(
                    truth[is_known], model.predict_proba(test[is_known]), labels=model.classes_
                )
                records.setdefault(method, []).append((accuracy, loss))
        means = {method: np.mean(values, axis=0) for method, values in records.items()}
        note(name)
        for method, (accuracy, loss) in means.items():
            note(f"  {method:24} {accuracy:6.2f} % {loss:7.3f}")
            sums.setdefault(method, []).append((accuracy, loss))
    note("mean")
    means = {method: np.mean(values, axis=0) for method, values in sums.items()}
    for method, (accuracy, loss) in means.items():
        note(f"  {method:24} {accuracy:6.2f} % {loss:7.3f}")
    gap = means["AdaptiveRF's search"][0] - means["default"][0]
    judge("default behind AdaptiveRF's search", [gap], [1.0], 0, at_most=True, unit=" points")


PARTS = {"speed": measure_speed, "fit": measure_fit, "sigma": measure_sigma}


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
