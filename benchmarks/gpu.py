"""Measure transforms, kernel regression, ridge and attention on a GPU against floors.

    python benchmarks/gpu.py [--only transform,regression,attention] [--libraries cupy,torch]

A floor is the least that has to be computed, written with the array library itself: the products
and the function of a transform, features and their product with the targets, or the two products
of attention on features. Attention is also compared with torch's scaled_dot_product_attention.
Methods alternate in shuffled order; printed are milliseconds of the fastest of every method and
ratios to the floor. In float32, unless it says otherwise; needs CuPy or torch and a CUDA device.
"""

import argparse
import random
import time
from functools import partial

import numpy as np

from skrf import (
    ApproxKernelRidgeClassifier,
    KernelRegressionClassifier,
    OptimalPositiveRF,
    RFFSampler,
)
from skrf.attention import ApproxKernelAttention, WindowAttention

ROWS, WIDTH, COLUMNS = 2**20, 32, 512  # of transforms and regression
HEADS, LENGTHS, HEAD_WIDTH, FEATURES = 8, (2**14, 2**16), 64, 256


class CuPy:
    """CuPy on its first device."""

    def __init__(self):
        import cupy

        self.xp, self.wait = cupy, cupy.cuda.get_current_stream().synchronize

    def array(self, values):
        """Return host values on the device."""
        return self.xp.asarray(values)

    def beside(self, arrays):
        """Join columns."""
        return self.xp.concatenate(arrays, axis=1)


class Torch:
    """Torch on its first CUDA device; products of float32 in float32."""

    def __init__(self):
        import torch

        self.xp, self.wait = torch, torch.cuda.synchronize

    def array(self, values):
        """Return host values on the device."""
        return self.xp.asarray(values, device="cuda")

    def beside(self, arrays):
        """Join columns."""
        return self.xp.cat(arrays, dim=1)


LIBRARIES = {"cupy": CuPy, "torch": Torch}


def compare(what, library, methods, rounds):
    """Print the fastest time of every method, and its ratio to the first, which is the floor."""
    taken = {name: [] for name in methods}
    for method in methods.values():
        method()
    library.wait()
    for _ in range(rounds):
        for name in random.sample(list(methods), len(methods)):
            start = time.perf_counter()
            methods[name]()
            library.wait()
            taken[name].append(time.perf_counter() - start)
    floor = min(next(iter(taken.values())))
    parts = (f"{name} {min(t) * 1e3:.3g} ms ({min(t) / floor:.2f})" for name, t in taken.items())
    print(f"{type(library).__name__} | {what} | " + " | ".join(parts), flush=True)


def named(model):
    """Return the names of an estimator and of its map."""
    return f"{type(model).__name__}({type(model.feature_map).__name__})"


def data(library):
    """Return rows, labels of five classes, and weights of a floor."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    y = np.argmax(X[:, :5] + X[:, 5:10] ** 2, axis=1)
    W = rng.standard_normal((WIDTH, COLUMNS)).astype(np.float32) / 8
    return library.array(X), y, library.array(W)


def measure_transform(library, rounds):
    """Trigonometric and positive features of a million rows."""
    xp = library.xp
    X, _, W = data(library)
    half = W[:, : COLUMNS // 2]

    def sines():
        P = X @ half
        return library.beside([xp.cos(P), xp.sin(P)])

    def exponentials():
        return xp.exp(X @ W - (X * X).sum(1)[:, None])

    for feature_map, floor in (
        (RFFSampler(COLUMNS, random_state=0), sines),
        (OptimalPositiveRF(COLUMNS, random_state=0), exponentials),
    ):
        feature_map.fit(X[:5000])
        methods = {"floor": floor, "transform": partial(feature_map.transform, X)}
        compare(type(feature_map).__name__, library, methods, rounds)


def measure_regression(library, rounds):
    """Fits and predictions of kernel regression and of ridge."""
    xp = library.xp
    X, y, W = data(library)
    onehot, labels = library.array(np.eye(5, dtype=np.float32)[y]), library.array(y)

    def product():
        return xp.exp(X @ W - (X * X).sum(1)[:, None]).T @ onehot

    def gram():
        Z = xp.cos(X @ W)
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
        compare(named(model), library, methods, rounds)


def measure_attention(library, rounds):
    """Forward and backward passes, bidirectional and causal."""
    for length in LENGTHS:
        for causal in (False, True):
            compare_attention(library, rounds, length, causal)


def compare_attention(library, rounds, length, causal):
    """Attention of one length."""
    xp = library.xp
    rng = np.random.default_rng(0)
    shape = 1, HEADS, length, HEAD_WIDTH
    q, k, v, G = (
        library.array((scale * rng.standard_normal(shape)).astype(np.float32))
        for scale in (0.25, 0.25, 1, 1)
    )
    W = library.array(rng.standard_normal((HEAD_WIDTH, FEATURES)).astype(np.float32) / 8)

    def floor():
        left, right = xp.exp(q @ W), xp.exp(k @ W)
        return (left @ (xp.swapaxes(right, -1, -2) @ v)) / (left @ right.sum(-2)[..., None])

    def both_ways(attend):
        inputs = [array.clone().requires_grad_() for array in (q, k, v)]
        xp.sum(attend(*inputs) * G).backward()

    methods = {"floor": floor}
    if isinstance(library, Torch):
        sdpa = xp.nn.functional.scaled_dot_product_attention
        exact = partial(sdpa, is_causal=causal)
        methods |= {
            "sdpa": partial(exact, q, k, v),
            "sdpa, both ways": partial(both_ways, exact),
            "sdpa, bfloat16": partial(exact, *(part.to(xp.bfloat16) for part in (q, k, v))),
        }
    features = OptimalPositiveRF(FEATURES, random_state=0)
    model = ApproxKernelAttention(features, causal=causal)
    if isinstance(library, Torch):
        from skrf import torch as modules

        model = modules.RandomFeatureAttention(features, is_causal=causal)
        methods["features, both ways"] = partial(both_ways, model)
    methods["features"] = partial(model, q, k, v)
    if causal:
        methods["window"] = partial(WindowAttention(508), q, k, v)
    compare(f"{length} positions, causal={causal}", library, methods, rounds)


PARTS = {
    "transform": measure_transform,
    "regression": measure_regression,
    "attention": measure_attention,
}


def main():
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="likewise")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    for name in arguments.libraries.split(","):
        for part in arguments.only.split(","):
            PARTS[part](LIBRARIES[name](), arguments.rounds)


if __name__ == "__main__":
    main()
