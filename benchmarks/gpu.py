"""Measure transforms, kernel regression, ridge and attention of torch tensors on a GPU.

    python benchmarks/gpu.py [--only transform,regression,attention]

A floor is the least that has to be computed, written with torch itself: the products and the
function of a transform, features and their product with the targets, or the two products of
attention on features. Attention is also compared with torch's scaled_dot_product_attention.
Methods alternate in shuffled order; printed are milliseconds of the fastest of seven rounds and
ratios to the floor. In float32, unless it says otherwise; needs torch and a CUDA device.
"""

import argparse
import random
import time
from functools import partial

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from skrf import (
    ApproxKernelRidgeClassifier,
    KernelRegressionClassifier,
    OptimalPositiveRF,
    RFFSampler,
)
from skrf.attention import WindowAttention
from skrf.torch import RandomFeatureAttention

ROWS, WIDTH, COLUMNS = 2**20, 32, 512  # of transforms and regression
HEADS, LENGTHS, HEAD_WIDTH, FEATURES = 8, (2**14, 2**16), 64, 256
ROUNDS, DEVICE = 7, "cuda"


def compare(what, methods):
    """Print the fastest time of every method, and its ratio to the first, which is the floor."""
    taken = {name: [] for name in methods}
    for method in methods.values():
        method()
    torch.cuda.synchronize()
    for _ in range(ROUNDS):
        for name in random.sample(list(methods), len(methods)):
            start = time.perf_counter()
            methods[name]()
            torch.cuda.synchronize()
            taken[name].append(time.perf_counter() - start)
    floor = min(next(iter(taken.values())))
    parts = (f"{name} {min(t) * 1e3:.3g} ms ({min(t) / floor:.2f})" for name, t in taken.items())
    print(f"{what} | " + " | ".join(parts), flush=True)


def on_device(values):
    """Return host values on the device, in float32."""
    return torch.asarray(values.astype(np.float32), device=DEVICE)


def data():
    """Return rows, numbers of five classes on the host, and weights of a floor."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, WIDTH))
    y = np.argmax(X[:, :5] + X[:, 5:10] ** 2, axis=1)
    return on_device(X), y, on_device(rng.standard_normal((WIDTH, COLUMNS)) / 8)


def measure_transform():
    """Trigonometric and positive features of a million rows."""
    X, _, W = data()
    half = W[:, : COLUMNS // 2]

    def sines():
        P = X @ half
        return torch.cat([torch.cos(P), torch.sin(P)], dim=1)

    def exponentials():
        return torch.exp(X @ W - (X * X).sum(1)[:, None])

    for feature_map, floor in (
        (RFFSampler(COLUMNS, random_state=0), sines),
        (OptimalPositiveRF(COLUMNS, random_state=0), exponentials),
    ):
        feature_map.fit(X[:5000])
        methods = {"floor": floor, "transform": partial(feature_map.transform, X)}
        compare(type(feature_map).__name__, methods)


def measure_regression():
    """Fits and predictions of kernel regression and of ridge."""
    X, y, W = data()
    onehot, labels = on_device(np.eye(5)[y]), torch.asarray(y, device=DEVICE)

    def product():
        return torch.exp(X @ W - (X * X).sum(1)[:, None]).T @ onehot

    def gram():
        Z = torch.cos(X @ W)
        return Z.T @ Z

    for model, floor in (
        (KernelRegressionClassifier(OptimalPositiveRF(COLUMNS), random_state=0), product),
        (KernelRegressionClassifier(RFFSampler(COLUMNS), random_state=0), product),
        (ApproxKernelRidgeClassifier(RFFSampler(COLUMNS), random_state=0), gram),
    ):
        model.fit(X, labels)
        methods = {
            "floor": floor,
            "fit": partial(model.fit, X, labels),
            "predict": partial(model.predict, X),
        }
        compare(f"{type(model).__name__}({type(model.feature_map).__name__})", methods)


def measure_attention():
    """Forward and backward passes, bidirectional and causal."""
    for length in LENGTHS:
        for causal in (False, True):
            compare_attention(length, causal)


def compare_attention(length, causal):
    """Attention of one length."""
    rng = np.random.default_rng(0)
    shape = 1, HEADS, length, HEAD_WIDTH
    q, k, v, G = (on_device(scale * rng.standard_normal(shape)) for scale in (0.25, 0.25, 1, 1))
    W = on_device(rng.standard_normal((HEAD_WIDTH, FEATURES)) / 8)

    def floor():
        left, right = torch.exp(q @ W), torch.exp(k @ W)
        return (left @ (right.mT @ v)) / (left @ right.sum(-2)[..., None])

    def both_ways(attend):
        inputs = [array.clone().requires_grad_() for array in (q, k, v)]
        torch.sum(attend(*inputs) * G).backward()

    exact = partial(scaled_dot_product_attention, is_causal=causal)
    features = OptimalPositiveRF(FEATURES, random_state=0)
    ours = RandomFeatureAttention(features, is_causal=causal)
    methods = {
        "floor": floor,
        "sdpa": partial(exact, q, k, v),
        "sdpa, both ways": partial(both_ways, exact),
        "sdpa, bfloat16": partial(exact, *(part.to(torch.bfloat16) for part in (q, k, v))),
        "features": partial(ours, q, k, v),
        "features, both ways": partial(both_ways, ours),
    }
    if causal:
        methods["window"] = partial(WindowAttention(508), q, k, v)
    compare(f"{length} positions, causal={causal}", methods)


PARTS = {
    "transform": measure_transform,
    "regression": measure_regression,
    "attention": measure_attention,
}


def main():
    """Measure the parts that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    for part in parser.parse_args().only.split(","):
        PARTS[part]()


if __name__ == "__main__":
    main()
