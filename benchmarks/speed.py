"""Measure the speed and memory of transforms, kernel regression, searches and the start.

    make bench                                  everything, about five minutes
    python benchmarks/speed.py --only transform attention --rounds 25   some parts

Every figure is a ratio taken inside one run: methods alternate in shuffled order, and both the
median over rounds of the ratio and the ratio of the fastest repetitions are printed. The verdict is
that of the fastest: on a shared or virtual machine the scheduler at times puts two threads on one
core, which doubles the time of either side at random. As many threads are used as the environment
allows, and the number is printed. Memory is that of a fresh process, from the operating system.

Prints a table; writes benchmarks/results/speed.csv and speed.png. The Walsh-Hadamard
transform is compared with the package fht-cpu of the group `bench`, where it is installed.
"""

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median

import numpy as np
import scipy.sparse
from _memory import peak_memory
from scipy.spatial.distance import cdist
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import SGDClassifier
from threadpoolctl import threadpool_info, threadpool_limits

from skrf import (
    ApproxKernelAttention,
    ClusterNystroem,
    KernelRegressionClassifier,
    OptimalPositiveRF,
    RFFSampler,
)
from skrf._threads import run_all
from skrf.attention import ToeplitzMask, exact_attention
from skrf.exceptions import FeatureCollapseWarning
from skrf.projections import PROJECTIONS

RESULTS = Path(__file__).parent / "results"
TARGETS = []


PAUSE = 0.1  # threads of BLAS spin on for some 25 ms after a call: every call begins at rest


def alternate(methods, rounds):
    """Return {name: seconds of every round}, after one call of each that is not counted."""
    for method in methods.values():
        method()
    times = {name: [] for name in methods}
    order = list(methods)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            time.sleep(PAUSE)
            start = time.perf_counter()
            methods[name]()
            times[name].append(time.perf_counter() - start)
    return times


def compare(what, above, below, rounds, bound, *, at_most=False):
    """Judge the ratio of the times of two calls, which alternate."""
    times = alternate({"above": above, "below": below}, rounds)
    judge(what, times["above"], times["below"], bound, at_most=at_most)


def judge(what, slow, fast, bound, *, at_most=False, unit=""):
    """Tell and keep a ratio of two lists of times (or a number with a unit) against a bound."""
    middle = median(a / b for a, b in zip(slow, fast, strict=True))
    best = min(slow) / min(fast)
    kept = best <= bound if at_most else best >= bound
    target = {
        "what": what,
        "best": best,
        "median": middle,
        "bound": bound,
        "at_most": at_most,
        "unit": unit,
        "met": kept,
    }
    TARGETS.append(target)
    print(" | ".join(cells(target)), flush=True)


def cells(target):
    """Return a target as the cells of a table."""
    sign = "at most" if target["at_most"] else "at least"
    unit = target["unit"]
    return (
        target["what"],
        f"{target['best']:.3g}{unit}",
        f"{target['median']:.3g}{unit}",
        f"{sign} {target['bound']:g}{unit}",
        "met" if target["met"] else "MISSED",
    )


def measure_transform(rounds):
    """RFFSampler against RBFSampler, OptimalPositiveRF against the floor."""
    halves = [slice(0, 10_000), slice(10_000, 20_000)]
    for dtype, times_faster, over_floor in ((np.float64, 7, 1.25), (np.float32, 1.6, 1.3)):
        X = np.random.default_rng(0).normal(size=(20_000, 64)).astype(dtype) / 8
        peer = RBFSampler(gamma=0.5, n_components=512, random_state=0).fit(X)
        ours = RFFSampler(512, sigma=1.0, random_state=0).fit(X)
        positive = OptimalPositiveRF(512, sigma=1.0, random_state=0).fit(X)
        matrix, out = positive.omega_.T.astype(dtype), np.empty((len(X), 512), dtype)

        def floor(X=X, matrix=matrix, out=out):
            np.matmul(X, matrix, out=out)
            run_all(lambda rows: np.exp(out[rows], out=out[rows]), halves)

        methods = {
            "peer": lambda X=X, peer=peer: peer.transform(X),
            "ours": lambda X=X, ours=ours: ours.transform(X),
            "positive": lambda X=X, positive=positive: positive.transform(X),
            "floor": floor,
        }
        times = alternate(methods, rounds)
        name = np.dtype(dtype).name
        judge(f"RBFSampler / RFFSampler, {name}", times["peer"], times["ours"], times_faster)
        judge(
            f"OptimalPositiveRF / floor, {name}",
            times["positive"],
            times["floor"],
            over_floor,
            at_most=True,
        )
        exact = ours.exact_kernel(X[:500])
        errors = [
            np.sqrt(np.mean((Z @ Z.T - exact) ** 2))
            for Z in (peer.transform(X[:500]), ours.transform(X[:500]))
        ]
        print(f"kernel error, {name}: RBFSampler {errors[0]:.4f}, ours {errors[1]:.4f}")


def measure_wide(rounds):
    """Fits to wide sparse rows, which draw a block of orthogonal rows, and RBFSampler's."""
    X = scipy.sparse.random(300, 200_000, density=0.001, format="csr", random_state=0)
    peer, ours = RBFSampler(n_components=128, random_state=0), RFFSampler(256, random_state=0)
    what = "fit of 128 projections, 300 x 200,000 sparse: RFFSampler / RBFSampler"
    few = max(rounds // 3, 3)
    compare(what, lambda: ours.fit(X), lambda: peer.fit(X), few, 1.5, at_most=True)


def measure_hadamard(rounds):
    """Fast projections by public calls, against dense ones."""
    few = max(rounds // 5, 3)
    X = np.random.default_rng(0).normal(size=(2000, 4096)).astype(np.float32) / 64
    dense, fast = (
        OptimalPositiveRF(8192, coupling="simplex", projection=name, random_state=0).fit(X)
        for name in ("dense", "hadamard")
    )
    what = "dense / hadamard, d = 4096, 8192 columns"
    compare(what, lambda: dense.transform(X), lambda: fast.transform(X), few, 15)
    arrays = vars(fast.feature_maps_[0].projection).values()
    held = sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
    whole = dense.omega_.nbytes
    judge("memory of the projection, % of dense", [held], [whole / 100], 0.2, at_most=True)
    measure_widths(few)
    measure_bare(rounds)


def measure_distances(rounds):
    """Landmarks of a Laplacian kernel against the L1 distances of SciPy."""
    X = np.random.default_rng(0).normal(size=(8000, 100))
    landmarks = ClusterNystroem(1000, kernel="laplacian", centers="random", random_state=0).fit(X)
    peer = partial(cdist, X, landmarks.centers_, "cityblock")
    what = "8,000 rows, 1,000 landmarks, d = 100: cdist / transform by a Laplacian kernel"
    compare(what, peer, lambda: landmarks.transform(X), max(rounds // 5, 3), 1.5)


def measure_widths(rounds):
    """From which width on fast projections pay, by public calls with compiled code."""
    for dtype in (np.float32, np.float64):
        found = []
        for d in (64, 128, 256, 300, 512, 784, 1024, 2048, 4096):
            X = (np.random.default_rng(0).normal(size=(4096, d)) / d**0.5).astype(dtype)
            calls = {}
            for name in ("dense", "hadamard"):
                features = OptimalPositiveRF(2048, projection=name, random_state=0).fit(X)
                calls[name] = partial(features.transform, X)
            times = alternate(calls, rounds)
            found.append(f"d = {d}: {min(times['dense']) / min(times['hadamard']):.2f}")
        print(f"dense / hadamard, 2048 columns, {np.dtype(dtype).name}: {', '.join(found)}")


def measure_bare(rounds):
    """Three transforms with signs between them against as many of fht-cpu, and a dense product."""
    with threadpool_limits(1):
        for order in (256, 1024):
            X = np.random.default_rng(0).normal(size=(4096, order)).astype(np.float32)
            draw = PROJECTIONS["hadamard"]["orthogonal"].draw
            projection = draw(order, order, np.random.default_rng(0))
            matrix, signs = projection.dense().T.astype(np.float32), np.float32(projection.signs[0])
            lengths = np.float32(projection.lengths)
            methods = {"ours": lambda p=projection, X=X: p.multiply(X)}
            methods["dense"] = lambda X=X, matrix=matrix: X @ matrix
            try:
                from fht_cpu import fht
            except ImportError:
                print("fht-cpu is not installed: its line is left out")
            else:

                def peer(X=X, signs=signs, lengths=lengths):
                    for sign in signs:
                        X = fht(X * sign, inplace=True, num_threads=1)
                    return X * lengths

                methods["peer"] = peer
            times = alternate(methods, rounds)
            what = f"fast projection 4096 x {order}, float32, one thread"
            judge(f"{what}: dense / ours", times["dense"], times["ours"], 1)
            if "peer" in times and order == 1024:
                judge(f"{what}: ours / fht-cpu", times["ours"], times["peer"], 1.7, at_most=True)


def measure_attention(rounds):
    """Attention against a floor: four products and two exponentials in blocks of 1,024 rows."""
    length, n_heads, width, n_features, size = 4096, 8, 64, 256, 1024
    blocks = [slice(start, start + size) for start in range(0, length, size)]
    for dtype, *bounds in ((np.float64, 1.4, 1.6), (np.float32, 1.6, 1.75)):
        rng = np.random.default_rng(0)
        q, k, v = (rng.normal(size=(3, n_heads, length, width)) / 2).astype(dtype)
        matrix = (rng.normal(size=(width, n_features)) / 3).astype(dtype)
        unfitted = ApproxKernelAttention(OptimalPositiveRF(n_features, random_state=0))
        fitted = ApproxKernelAttention(OptimalPositiveRF(n_features, random_state=0)).fit(q, k)
        out, rooms = np.empty_like(v), np.empty((n_heads, size, n_features), dtype)

        def head(h, q=q, k=k, v=v, matrix=matrix, out=out, rooms=rooms):
            room, sums, extended = rooms[h], 0.0, np.ones((size, width + 1), q.dtype)
            for rows in blocks:
                np.exp(np.matmul(k[h, rows], matrix, out=room), out=room)
                extended[:, 1:] = v[h, rows]
                sums = sums + room.T @ extended
            for rows in blocks:
                np.exp(np.matmul(q[h, rows], matrix, out=room), out=room)
                found = room @ sums
                np.divide(found[:, 1:], found[:, :1], out=out[h, rows])

        methods = {
            "fitted": lambda q=q, k=k, v=v, call=fitted: call(q, k, v),
            "unfitted": lambda q=q, k=k, v=v, call=unfitted: call(q, k, v),
            "floor": lambda head=head: run_all(head, range(n_heads)),
        }
        times, name = alternate(methods, rounds), np.dtype(dtype).name
        for what, bound in zip(("fitted", "unfitted"), bounds, strict=True):
            title = f"attention, {what} / floor, {name}"
            judge(title, times[what], times["floor"], bound, at_most=True)


class Recurrence:
    """Causal attention of one position after the other, written down plainly.

    Exponential features of one matrix, or of one for every head; sums on a log scale for every
    feature.
    """

    def __init__(self, xp, n_heads, width, n_features, is_shared=True):
        self.xp = xp
        rng = np.random.default_rng(0)
        shape = (width, n_features) if is_shared else (n_heads, width, n_features)
        self.matrix = xp.asarray(rng.normal(size=shape).astype(np.float32))
        self.shift = float(np.log(n_features)) / 2
        self.sums = xp.zeros((n_heads, n_features, width + 1), dtype=xp.float64)
        self.top = xp.full((n_heads, n_features), -np.inf, dtype=xp.float32)
        self.one = xp.ones((n_heads, 1), dtype=xp.float32)

    def features(self, rows):
        size = self.xp.sum(rows * rows, axis=-1, keepdims=True) / 2
        if self.matrix.ndim == 2:
            return rows @ self.matrix - (size + self.shift)
        return (rows[:, None, :] @ self.matrix)[:, 0, :] - (size + self.shift)

    def absorb(self, key, values):
        logs, xp = self.features(key), self.xp
        top = xp.maximum(self.top, logs)
        self.sums *= xp.exp(self.top - top)[..., None]
        self.sums += xp.exp(logs - top)[..., None] * values[:, None, :]
        self.top = top

    def step(self, q, k, v):
        """Return attention of one position; q, k and v have the shape (heads, width)."""
        xp, width = self.xp, q.shape[-1]
        q, k = q / width**0.25, k / width**0.25
        row = xp.concat([k, self.one, v], axis=-1)
        self.absorb(k, row[:, width:])
        logs = self.features(q) + self.top
        scale = xp.max(logs, axis=-1, keepdims=True)
        found = xp.exp(logs - scale)[:, None, :] @ xp.astype(self.sums, xp.float32)
        return found[:, 0, 1:] / found[:, 0, :1]


def measure_step(rounds):
    """One position of a stream against a plain recurrence, of maps that heads share and of fitted.

    The recurrence of fitted maps has a matrix for every head.
    """
    width, n_steps = 64, 200
    for library, of_fitted in (("numpy", 3), ("torch", 5)):
        try:
            xp = import_module(f"array_api_compat.{library}")
        except ImportError:
            print("torch is not installed: nothing of it is measured")
            continue
        for n_heads in (4, 8):
            shape = 3, n_steps, n_heads, width
            parts = np.random.default_rng(0).normal(size=shape).astype(np.float32)
            q, k, v = (xp.asarray(part) for part in parts)
            for is_fitted in (False, True):
                operator = ApproxKernelAttention(OptimalPositiveRF(256), causal=True)
                if is_fitted:
                    operator.fit(*parts[:2].swapaxes(1, 2))

                def ours(q=q, k=k, v=v, operator=operator):
                    state = operator.init_state()
                    for i in range(n_steps):
                        now = (part[i, :, None, :] for part in (q, k, v))
                        _, state = operator.step(*now, state)

                def plain(xp=xp, q=q, k=k, v=v, is_shared=not is_fitted):
                    own = Recurrence(xp, q.shape[1], width, 256, is_shared)
                    for i in range(n_steps):
                        own.step(q[i], k[i], v[i])

                what, bound = ("fitted", of_fitted) if is_fitted else ("shared maps", 3)
                title = f"a step of {n_heads} heads, {what}, {library}: ours / plain recurrence"
                compare(title, ours, plain, max(rounds // 5, 3), bound, at_most=True)


def measure_training(rounds):
    """Forward and backward pass of torch, causal, against its exact attention."""
    try:
        import torch
    except ImportError:
        print("torch is not installed: no gradients are measured")
        return
    from skrf.torch import RandomFeatureAttention

    warnings.simplefilter("ignore", FeatureCollapseWarning)  # of random inputs: time is measured
    exact = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)
    ours = RandomFeatureAttention(OptimalPositiveRF(256, random_state=0), is_causal=True)
    few = max(rounds // 3, 3)
    for length in (2048, 4096):
        parts = [torch.randn(1, 8, length, 64, requires_grad=True) for _ in "qkv"]
        gradient = torch.randn(1, 8, length, 64)

        def both(call, parts=parts, gradient=gradient):
            return torch.autograd.grad(call(*parts), parts, gradient)

        what = f"torch forward and backward, causal, L = {length}: ours / exact"
        compare(what, partial(both, ours), partial(both, exact), few, 1, at_most=True)
    parts, edges = [torch.randn(1, 8, 1600, 64) for _ in "qkv"], torch.arange(0, 1601, 20)
    packed, whole = partial(ours, *parts, cu_seqlens=edges), partial(ours, *parts)
    compare("80 packed sequences of 20 / one of 1,600", packed, whole, few, 2, at_most=True)


def measure_masks(rounds):
    """Masked attention against the floor of the transforms alone, and against dense masks."""
    import scipy.fft

    def transforms(length, n_columns, batch=8):
        """Real transforms of all columns of the padded length and back, on all threads."""
        size = scipy.fft.next_fast_len(2 * length - 1, real=True)
        column = np.random.default_rng(0).normal(size=(batch, length)).astype(np.float32)

        def some(_):
            scipy.fft.irfft(scipy.fft.rfft(column, size), size)

        run_all(some, range(-(-n_columns // batch)))

    cases = (
        ("by rows", 2048, 64, 128),
        ("by rows", 4096, 64, 128),
        ("by FFT", 32_768, 32, 32),
    )
    for way, length, width, n_features in cases:
        rng = np.random.default_rng(0)
        q, k = (rng.normal(size=(2, length, 64)) / 2).astype(np.float32)
        v = rng.normal(size=(length, width)).astype(np.float32)
        mask = ToeplitzMask.from_function(lambda o, n=length: np.exp(-abs(o) / n), (length,))
        features = OptimalPositiveRF(n_features, random_state=0)
        masks = {"ours": mask} | ({"dense": mask.toarray()} if way == "by rows" else {})
        methods = {
            name: ApproxKernelAttention(features, mask=own).fit(q, k) for name, own in masks.items()
        }
        calls = {
            name: lambda call=call, q=q, k=k, v=v: call(q, k, v) for name, call in methods.items()
        }
        n_columns = n_features * (width + 1)
        calls["floor"] = lambda length=length, n=n_columns: transforms(length, n)
        times = alternate(calls, max(rounds // 5, 3))
        what = f"masked attention, {way}, L = {length}, float32"
        judge(f"{what}: time / transforms", times["ours"], times["floor"], 2, at_most=True)
        if "dense" in times:
            judge(f"{what}: time / dense mask", times["ours"], times["dense"], 1, at_most=True)
    # The guide recommends exact attention while entries are formed.
    q, k, v = (np.random.default_rng(0).normal(size=(3, 4096, 64)) / 2).astype(np.float32)
    mask = ToeplitzMask.from_function(lambda o: np.exp(-abs(o) / 4096), (4096,))
    features = ApproxKernelAttention(OptimalPositiveRF(256), mask=mask).fit(q, k)
    exact, ours = partial(exact_attention, q, k, v, mask=mask), partial(features, q, k, v)
    what = "exact attention with a mask / 256 features, L = 4,096, float32"
    compare(what, exact, ours, max(rounds // 5, 3), 1.1, at_most=True)


def measure_regression(rounds):
    """KernelRegressionClassifier on a million rows against SGD on random features, in children."""
    from sklearn.datasets import make_classification

    X, y = make_classification(1_000_000, 20, n_informative=10, n_classes=5, random_state=0)
    found = {"ours": [], "peer": []}
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "X.npy", X.astype(np.float32))
        np.save(Path(folder) / "y.npy", y)
        for _ in range(max(rounds // 8, 1)):
            for name in random.sample(list(found), 2):
                command = [sys.executable, __file__, "--case", name, folder]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found[name].append(json.loads(done.stdout.splitlines()[-1]))
                print(f"{name}: {found[name][-1]}")
    ours, peer = (
        {key: [record[key] for record in found[name]] for key in found[name][0]} for name in found
    )
    rows = "a million rows, 512 columns, SGD pipeline / ours"
    judge(f"{rows}: fit", peer["fit"], ours["fit"], 8)
    judge(f"{rows}: predict", peer["predict"], ours["predict"], 1.5)
    ones = [1.0] * len(ours["memory"])
    judge("peak of the process beside X", ours["memory"], ones, 150, at_most=True, unit=" MB")


def run_case(name, folder):
    """Print times, accuracy and memory of one method on a million rows in batches."""
    X, y = (np.load(Path(folder) / f"{name}.npy") for name in "Xy")
    batches = [slice(a, a + 20_000) for a in range(0, len(X), 20_000)]
    start = time.perf_counter()
    if name == "ours":
        model = KernelRegressionClassifier(OptimalPositiveRF(512, sigma=0.3, random_state=0))
        for batch in batches:
            model.partial_fit(X[batch], y[batch], classes=range(5))
        fitted = time.perf_counter()
        right = [np.mean(model.predict(X[batch]) == y[batch]) for batch in batches]
    else:
        features = RBFSampler(gamma=0.045, n_components=512, random_state=0).fit(X[:2])
        model = SGDClassifier(random_state=0)
        for batch in batches:
            model.partial_fit(features.transform(X[batch]), y[batch], classes=range(5))
        fitted = time.perf_counter()
        right = [
            np.mean(model.predict(features.transform(X[batch])) == y[batch]) for batch in batches
        ]
    end = time.perf_counter()
    report = {
        "fit": round(fitted - start, 2),
        "predict": round(end - fitted, 2),
        "accuracy": round(float(np.mean(right)), 4),
        "memory": round((peak_memory() - X.nbytes) / 2**20, 1),
    }
    print(json.dumps(report))


def measure_search(rounds):
    """Ten sigmas with one job on one thread, one job as it comes, and two jobs."""
    from sklearn.datasets import make_classification
    from sklearn.model_selection import GridSearchCV

    X, y = make_classification(30_000, 20, n_informative=10, n_classes=5, random_state=0)

    def search(n_jobs):
        model = KernelRegressionClassifier(OptimalPositiveRF(512, random_state=0))
        GridSearchCV(model, {"sigma": np.logspace(-2, 2, 10)}, cv=3, n_jobs=n_jobs).fit(X, y)

    def one_thread():
        with threadpool_limits(1):
            search(1)

    methods = {
        "one thread": one_thread,
        "one job": lambda: search(1),
        "two jobs": lambda: search(2),
    }
    times = alternate(methods, max(rounds // 5, 3))
    judge("one thread / two jobs, GridSearchCV", times["one thread"], times["two jobs"], 1.5)
    judge("two jobs / one job", times["two jobs"], times["one job"], 1.1, at_most=True)


def measure_start(rounds):
    """Importing the library, and first calls."""

    def run(code):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    peer = partial(run, "import sklearn.kernel_approximation")
    what = "import skrf / import peer"
    compare(what, partial(run, "import skrf"), peer, rounds, 1.1, at_most=True)
    code = """
import sys, time, numpy as np, skrf
assert "numba" not in sys.modules
X = np.random.default_rng(0).normal(size=(100, 8))
f = skrf.RFFSampler(64, random_state=0).fit(X)
t = [time.perf_counter()]
for _ in range(2):
    f.transform(X); t.append(time.perf_counter())
assert "numba" not in sys.modules
Y = np.random.default_rng(0).normal(size=(20000, 64))
g = skrf.RFFSampler(512, random_state=0).fit(Y)
import numba
s = [time.perf_counter()]
for _ in range(2):
    g.transform(Y); s.append(time.perf_counter())
print(t[1] - t[0] - (t[2] - t[1]), s[1] - s[0] - (s[2] - s[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    small, large = map(float, done.stdout.split())
    judge("first small transform over the second", [small], [1.0], 0.05, at_most=True, unit=" s")
    judge("first large one beyond numba", [large], [1.0], 0.3, at_most=True, unit=" s")


def draw(path):
    """Plot every ratio relative to its bound: what is right of the line meets its target."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 0.6 + 0.32 * len(TARGETS)), layout="constrained")
    for i, target in enumerate(TARGETS):
        power = -1 if target["at_most"] else 1
        values = [(max(target[k], 1e-6) / target["bound"]) ** power for k in ("best", "median")]
        axis.plot(values[0], i, "o", color="#0072B2", label="ratio of the fastest")
        axis.plot(values[1], i, "|", color="#D55E00", markersize=12, label="median ratio")
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_yticks(range(len(TARGETS)), [target["what"] for target in TARGETS])
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlim(0.5, 1000)
    axis.set_xlabel("how many times better than its bound")
    axis.grid(alpha=0.3)
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles[:2], labels[:2], loc="outside upper right", ncols=2)
    figure.savefig(path, dpi=100)


PARTS = {
    "transform": measure_transform,
    "wide": measure_wide,
    "hadamard": measure_hadamard,
    "distances": measure_distances,
    "attention": measure_attention,
    "masks": measure_masks,
    "step": measure_step,
    "training": measure_training,
    "regression": measure_regression,
    "search": measure_search,
    "start": measure_start,
}


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=PARTS, nargs="*", default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument(
        "--docs", action="store_true", help="write table and plot into docs/benchmarks"
    )
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        name, folder = options.case
        run_case(name, folder)
        return
    random.seed(0)
    title = ("what", "ratio of the fastest", "median ratio", "target", "verdict")
    print(" | ".join(title))
    for part in options.only:
        PARTS[part](options.rounds)
    threads = max(library["num_threads"] for library in threadpool_info())
    where = f"{os.cpu_count()} cores, {threads} threads, load {os.getloadavg()[0]:.1f} at the end"
    folder = RESULTS
    if options.docs:
        folder = Path(__file__).parent.parent / "docs" / "benchmarks"
    folder.mkdir(exist_ok=True)
    with open(folder / "speed.csv", "w", newline="") as file:
        csv.writer(file).writerows([title, *map(cells, TARGETS)])
    draw(folder / "speed.png")
    print(where)


if __name__ == "__main__":
    main()
