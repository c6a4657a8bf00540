"""Measure transformers that learn scales from targets, before the default ridge regression.

    python benchmarks/relevance.py                    # SKRF_TABLES_DIR; about two minutes

At most 2,000 training rows, standardised by them. Accuracy, or R2 where the target is a number, on
all other rows up to 4,000, averaged over splits; CPU seconds are those of the transformer. Beside
ridge regression on rows as they are stand fifteen nearest neighbours.
"""

import argparse
import time

import numpy as np
from near_far import table
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from skrf import (
    ApproxKernelRidge,
    ApproxKernelRidgeClassifier,
    RelevanceProjection,
    RelevanceScaler,
)

SETS = "vehicle,letter,satimage,magic04,dry_bean,wine_white,extent"
TRANSFORMERS = {
    "none": FunctionTransformer(),
    "leave-one-out": RelevanceScaler(random_state=0),
    "gradients": RelevanceScaler(criterion="gradients", random_state=0),
    "gradients, 1,000": RelevanceScaler(1000, criterion="gradients", random_state=0),
    "projection": RelevanceProjection(random_state=0),
}


def rows_of(name):
    """Return rows and a target: labels, the quality of wine, or the extent of beans."""
    if name != "extent":
        return table(name)
    X, _ = table("dry_bean")
    return np.delete(X, 8, axis=1), X[:, 8]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print(f"{'':20}" + "".join(f"{name:>18}" for name in [*TRANSFORMERS, "neighbours"]))
    seconds = []
    for name in options.sets.split(","):
        (X, y), scores = rows_of(name), []
        for seed in range(options.seeds):
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
        print(f"{name:20}" + "".join(f"{x:18.3f}" for x in np.mean(scores, axis=0)), flush=True)
    print(f"{'CPU seconds':20}" + "".join(f"{x:18.2f}" for x in np.mean(seconds, axis=0)))


if __name__ == "__main__":
    main()
