"""Ray: a task makes a model of its chunks; models are merged; a task that dies is run again."""

import os
import tempfile
from functools import reduce
from pathlib import Path

import numpy as np
import ray
from sklearn.frozen import FrozenEstimator

from skrf import KernelRegressionClassifier, OptimalPositiveRF
from skrf.statistics import PairStatistics

MAP = OptimalPositiveRF(64, sigma="scale", random_state=0)


def chunk(number):
    """Return rows and labels; elsewhere this reads a file."""
    X = np.random.default_rng(number).normal(size=(5_000, 4))
    return X, (X[:, 0] > 0) + (X[:, 1] > 0).astype(int)


@ray.remote(max_retries=3)
def statistics_of(numbers):
    return reduce(PairStatistics.merge, (PairStatistics.of(chunk(number)[0]) for number in numbers))


@ray.remote(max_retries=3)
def model_of(feature_map, numbers, marker):
    if 3 in numbers and not marker.exists():
        marker.touch()
        os._exit(1)  # as where a machine is taken away; leave it out elsewhere
    model = KernelRegressionClassifier(FrozenEstimator(feature_map))
    return model.fit_batches(map(chunk, numbers), classes=[0, 1, 2])  # a chunk may lack a class


@ray.remote(max_retries=3)
def merged(*parts):
    return reduce(lambda one, other: one.merge(other), parts)


def total(parts):
    """Merge the results of tasks, in a tree, and return what comes out."""
    while len(parts) > 1:
        parts = [merged.remote(*parts[k : k + 4]) for k in range(0, len(parts), 4)]
    return ray.get(parts[0])


ray.init(num_cpus=2, include_dashboard=False)
tasks = [range(first, first + 2) for first in range(0, 12, 2)]  # the chunks of each
feature_map = MAP.fit_statistics(total([statistics_of.remote(numbers) for numbers in tasks]))
sent = ray.put(feature_map)  # once, and not with every task
with tempfile.TemporaryDirectory() as folder:
    marker = Path(folder) / "died"
    model = total([model_of.remote(sent, numbers, marker) for numbers in tasks])
    assert marker.exists()

X, y = map(np.concatenate, zip(*map(chunk, range(12)), strict=True))
expected = KernelRegressionClassifier(MAP).fit(X, y)
assert abs(model.predict_proba(X) - expected.predict_proba(X)).max() < 1e-12
