"""Compare the probabilities of kernel regression and ridge regression on the eight UCI sets.

    python benchmarks/probabilities.py --seeds 5

The splits are those of reproduce/uci_accuracy.py (SKRF_UCI_DIR): a twentieth of the rows is for
testing, the other rows are for fitting. Maps have 128 components. Prints accuracy in percent, log
loss, the log loss of rows that are left out where the fit knows it, and CPU seconds of the fit. The
exact kernel takes minutes on chess; --methods leaves it out.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline

from skrf import (
    AdaptiveRF,
    ApproxKernelRidgeClassifierCV,
    ClusterNystroem,
    ClusterQuantizer,
    KernelRegressionClassifier,
)

sys.path.append(str(Path(__file__).parent / "reproduce"))
from uci_accuracy import N_COMPONENTS, SETS, split

METHODS = {
    "ridge search": lambda seed: ApproxKernelRidgeClassifierCV(
        ClusterNystroem(N_COMPONENTS), random_state=seed
    ),
    "landmarks + logistic": lambda seed: make_pipeline(
        ClusterNystroem(N_COMPONENTS, random_state=seed), LogisticRegression(max_iter=1000)
    ),
    "kernel regression": lambda seed: KernelRegressionClassifier(
        ClusterQuantizer(N_COMPONENTS), random_state=seed
    ),
    "AdaptiveRF": lambda seed: KernelRegressionClassifier(
        AdaptiveRF(N_COMPONENTS), random_state=seed
    ),
    "exact kernel": lambda seed: KernelRegressionClassifier("exact"),
    "logistic": lambda seed: LogisticRegression(max_iter=1000),
    "class shares": lambda seed: DummyClassifier(strategy="prior"),
}


def measure(method, name, seed):
    """Return accuracy, log loss, that of rows left out, and CPU seconds, or NaN."""
    (train, valid, test), (y, of_valid, truth) = split(name, seed)
    train, y = np.concatenate([train, valid]), np.concatenate([y, of_valid])
    model, start = METHODS[method](seed), time.process_time()
    model.fit(train, y)
    seconds = time.process_time() - start
    known = np.isin(truth, model.classes_)
    loss = log_loss(truth[known], model.predict_proba(test[known]), labels=model.classes_)
    is_left_out = isinstance(model, KernelRegressionClassifier)
    left_out = -model.best_score_ if is_left_out else np.nan
    return 100 * np.mean(model.predict(test) == truth), loss, left_out, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--methods", default="; ".join(METHODS), help="separated by ;")
    arguments = parser.parse_args()
    sets, methods = arguments.sets.split(","), arguments.methods.split("; ")
    results = {}
    for name in sets:
        print(f"{name:24}{'accuracy':>9}{'log loss':>9}{'left out':>9}{'seconds':>9}")
        for method in methods:
            runs = [measure(method, name, seed) for seed in range(arguments.seeds)]
            results[name, method] = np.mean(runs, axis=0)
            print(
                f"  {method:22}" + "".join(f"{x:9.3f}" for x in results[name, method]), flush=True
            )
    print("mean, and mean absolute difference of log loss and that of rows left out")
    for method in methods:
        table = np.array([results[name, method] for name in sets])
        gap = np.abs(table[:, 1] - table[:, 2])
        print(f"  {method:22}" + "".join(f"{x:9.3f}" for x in [*table.mean(axis=0), gap.mean()]))


if __name__ == "__main__":
    main()
