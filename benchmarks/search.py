"""Measure how kernel regression chooses sigma: the time of a fit, and accuracy on UCI sets.

    python benchmarks/search.py --only sigma --rounds 3

`fit` times fits that choose sigma by leave-one-out, on 1,500 rows; `sigma` compares their accuracy
and log loss with those of GridSearchCV and of simple answers, on the eight UCI sets (SKRF_UCI_DIR),
at most 5,000 rows of each.
"""

import argparse
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
    OptimalPositiveRF,
    RFFSampler,
)


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
            sigmas = RFFSampler().fit(train).sigma_ * np.logspace(-1, 2, 10)
            models = {
                "default": KernelRegressionClassifier(**seeded),
                "default, GridSearchCV": GridSearchCV(
                    KernelRegressionClassifier(**seeded), {"sigma": sigmas}
                ),
                "AdaptiveRF": KernelRegressionClassifier(AdaptiveRF(256), **seeded),
                "AdaptiveRF, GridSearchCV": GridSearchCV(
                    KernelRegressionClassifier(AdaptiveRF(256), **seeded), {"sigma": sigmas}
                ),
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
    gap = means["AdaptiveRF, GridSearchCV"][0] - means["default"][0]
    judge("default behind AdaptiveRF, GridSearchCV", [gap], [1.0], 0, at_most=True, unit=" points")


PARTS = {"fit": measure_fit, "sigma": measure_sigma}


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(PARTS), help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for part in options.only.split(","):
        PARTS[part](options.rounds)


if __name__ == "__main__":
    main()
