"""Measure the error of attention with features: on trained models, and on inputs with clusters.

    SKRF_ATTENTION_DIR=path/to/folder python benchmarks/attention_errors.py
    python benchmarks/attention_errors.py --clusters

The folder holds minilm_a.npz, minilm_b.npz (bidirectional), smollm2_a.npz and smollm2_b.npz
(causal), each with arrays q, k and v of shape (layers, heads, length, width). Operators are fitted
to text a, or where they are bidirectional also to the sequence itself, and measured on text b.
Prints the relative error of the output in the mean over layers, beside the mean of the values, and
an exact window with as many keys as there are features, and CPU seconds of a call for all heads.

`--clusters` compares clustered hybrid features with optimal positive ones of as many columns, on
queries and keys around 2 or 4 centres at a distance from 0. Means over seeds.
"""

import argparse
import itertools
import os
import time
import warnings
from pathlib import Path

import numpy as np

from skrf import AdaptiveRF, ClusterQuantizer, HybridRF, OptimalPositiveRF
from skrf.attention import ApproxKernelAttention, exact_attention
from skrf.exceptions import FeatureCollapseWarning

LENGTH, WIDTH = 1024, 32
COLUMNS = 256  # per cluster
SETTINGS = list(itertools.product((2, 4), (2.0, 4.0), (0.3, 0.5, 0.7)))
N_SEEDS = 20

MAPS = {
    "OptimalPositiveRF": OptimalPositiveRF,
    "AdaptiveRF": lambda n, **params: AdaptiveRF(n, asymmetric=True, **params),
    "ClusterQuantizer": ClusterQuantizer,
}


def load(folder, name):
    """Return q, k and v in float64."""
    with np.load(folder / f"{name}.npz") as arrays:
        return [arrays[part].astype(np.float64) for part in "qkv"]


def windowed(q, k, v, size, *, causal):
    """Return exact attention to the nearest keys, and to the first four if causal."""
    n = q.shape[-2]
    offset = np.arange(n)[:, None] - np.arange(n)
    if causal:
        is_seen = (offset >= 0) & ((offset < size - 4) | (np.arange(n) < 4))
    else:
        is_seen = np.abs(offset) <= size // 2
    logs = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    logs = np.where(is_seen, logs, -np.inf)
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return weights @ v / weights.sum(axis=-1, keepdims=True)


def methods(causal):
    """Return functions of the arrays of both texts by name."""

    def mean(_, q, k, v):
        counts = np.arange(1, v.shape[-2] + 1)[:, None]
        out = v.cumsum(axis=-2) / counts if causal else v.mean(axis=-2, keepdims=True)
        return np.broadcast_to(out, q.shape)

    found = {"mean of the values": mean}
    for n in (64, 256):
        found[f"window of {n}"] = lambda _, q, k, v, n=n: windowed(q, k, v, n, causal=causal)
        for name, kind in MAPS.items():

            def fitted(other, q, k, v, kind=kind, n=n):
                operator = ApproxKernelAttention(kind(n, random_state=0), causal=causal)
                return operator.fit(*other[:2])(q, k, v)

            def unfitted(_, q, k, v, kind=kind, n=n):
                return ApproxKernelAttention(kind(n, random_state=0))(q, k, v)

            found[f"{name}({n}), fitted"] = fitted
            if not causal:
                found[f"{name}({n}), own keys"] = unfitted
    return found


def inputs(n_clusters, distance, width, rng):
    """Return queries, keys and values."""
    sides = []
    for _ in range(2):
        centers = rng.normal(size=(n_clusters, WIDTH))
        centers *= distance / np.linalg.norm(centers, axis=1, keepdims=True)
        chosen = centers[rng.integers(n_clusters, size=LENGTH)]
        sides.append(chosen + width * rng.normal(size=(LENGTH, WIDTH)))
    return *sides, rng.normal(size=(LENGTH, WIDTH))


def clustered_errors(setting, seed):
    """Return the errors of the clustered map, of the optimal map and of the mean."""
    n_clusters, rng = setting[0], np.random.default_rng(seed)
    q, k, v = inputs(*setting, rng)
    exact = exact_attention(q, k, v)
    clustered = HybridRF(
        COLUMNS * n_clusters, coefficients="clustered", n_clusters=n_clusters, random_state=seed
    )
    optimal = OptimalPositiveRF(COLUMNS * n_clusters, random_state=seed)
    outs = [ApproxKernelAttention(own)(q, k, v) for own in (clustered, optimal)]
    size = np.linalg.norm(exact)
    return [np.linalg.norm(out - exact) / size for out in (*outs, v.mean(axis=0))]


def clusters():
    """Print the errors of clustered maps in all settings."""
    names = "clusters", "distance", "width", "clustered", "optimal", "mean", "ratio"
    print("".join(f"{name:>10}" for name in names))
    for setting in SETTINGS:
        runs = [clustered_errors(setting, seed) for seed in range(N_SEEDS)]
        found = np.mean(runs, axis=0)
        cells = *setting, *(f"{x:.3f}" for x in found), f"{found[0] / found[1]:.2f}"
        print("".join(f"{cell:>10}" for cell in cells), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", action="store_true")
    is_clusters = parser.parse_args().clusters
    warnings.simplefilter("ignore", FeatureCollapseWarning)  # the error is what is asked for
    if is_clusters:
        return clusters()
    folder = Path(os.environ["SKRF_ATTENTION_DIR"])
    for model, causal in (("minilm", False), ("smollm2", True)):
        others, texts = (load(folder, f"{model}_{text}") for text in "ab")
        print(f"{model:32}{'error':>8}{'least':>8}{'most':>8}{'seconds':>9}")
        for name, method in methods(causal).items():
            errors, start = [], time.process_time()
            for layer in range(len(texts[0])):
                inputs = [part[layer] for part in texts]
                exact = exact_attention(*inputs, causal=causal)
                out = method([part[layer] for part in others], *inputs)
                errors.append(np.linalg.norm(out - exact) / np.linalg.norm(exact))
            seconds = time.process_time() - start
            row = np.mean(errors), min(errors), max(errors)
            print(
                f"  {name:30}" + "".join(f"{x:8.2f}" for x in row) + f"{seconds:9.2f}", flush=True
            )


if __name__ == "__main__":
    main()
