"""Measure clustered hybrid features beside optimal positive ones, on inputs that have clusters.

    python benchmarks/clustered.py [--quick]

Relative error |out - exact| / |exact| (Frobenius) of bidirectional attention, one head. Queries and
keys lie around centres of their own: the centres at a distance from 0 in random directions, the
rows around them with a standard deviation (the width) in each of 32 columns. A row of clustered
features is non-zero only in the blocks of its own cluster; the optimal positive map gets as many
columns as the clustered one has in all. Beside them stands the clustered map with plain positive
features in all its blocks (rho = 1 for every pair of clusters), and the plain mean of the values,
which looks at no query. A seed sets inputs and draw; what is printed is the mean over seeds. The
exit status is 1 where the clustered map has the larger error in a setting whose centres are far
apart.
"""

import argparse
import itertools
import warnings
from unittest.mock import patch

import numpy as np

from skrf import HybridRF, OptimalPositiveRF
from skrf.attention import ApproxKernelAttention, exact_attention
from skrf.exceptions import FeatureCollapseWarning
from skrf.features import _clustered

LENGTH, WIDTH = 1024, 32
COLUMNS = 256  # per cluster
FAR = 4.0
SETTINGS = list(itertools.product((2, 4), (2.0, FAR), (0.3, 0.5, 0.7)))
N_SEEDS, N_SEEDS_QUICK = 20, 3


def inputs(n_clusters, distance, width, rng):
    """Return queries, keys and values."""
    sides = []
    for _ in range(2):
        centers = rng.normal(size=(n_clusters, WIDTH))
        centers *= distance / np.linalg.norm(centers, axis=1, keepdims=True)
        chosen = centers[rng.integers(n_clusters, size=LENGTH)]
        sides.append(chosen + width * rng.normal(size=(LENGTH, WIDTH)))
    return *sides, rng.normal(size=(LENGTH, WIDTH))


def errors(setting, seed):
    """Return the errors of the clustered map, the optimal map, rho = 1 and the mean."""
    n_clusters, rng = setting[0], np.random.default_rng(seed)
    q, k, v = inputs(*setting, rng)
    exact = exact_attention(q, k, v)
    clustered = HybridRF(
        COLUMNS * n_clusters, coefficients="clustered", n_clusters=n_clusters, random_state=seed
    )
    optimal = OptimalPositiveRF(COLUMNS * n_clusters, random_state=seed)
    outs = [ApproxKernelAttention(own)(q, k, v) for own in (clustered, optimal)]
    with patch.object(_clustered, "optimal_rho", lambda *_: 1.0):
        outs.append(ApproxKernelAttention(clustered)(q, k, v))
    return [relative_error(out, exact) for out in (*outs, v.mean(axis=0))]


def relative_error(out, exact):
    """Return |out - exact| / |exact|."""
    return np.linalg.norm(out - exact) / np.linalg.norm(exact)


def main():
    """Print the table and the count."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer seeds")
    n_seeds = N_SEEDS_QUICK if parser.parse_args().quick else N_SEEDS
    warnings.simplefilter("ignore", FeatureCollapseWarning)
    names = "clusters", "distance", "width", "clustered", "optimal", "rho = 1", "mean", "ratio"
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    n_kept, logs = 0, []
    for setting in SETTINGS:
        found = np.mean([errors(setting, seed) for seed in range(n_seeds)], axis=0)
        n_kept += setting[1] == FAR and found[0] <= found[1]
        logs.append(np.log(found))
        cells = [*map(str, setting), *(f"{x:.3f}" for x in found), f"{found[0] / found[1]:.2f}"]
        print("| " + " | ".join(cells) + " |", flush=True)
    means = np.exp(np.mean(logs, axis=0))
    print("\nGeometric means: " + ", ".join(f"{x:.3f}" for x in means))
    n_far = sum(setting[1] == FAR for setting in SETTINGS)
    word = "KEPT" if n_kept == n_far else "MISSED"
    print(f"{word}: no larger error than the optimal map in {n_kept} of {n_far} settings at {FAR}")
    return 0 if n_kept == n_far else 1


if __name__ == "__main__":
    raise SystemExit(main())
