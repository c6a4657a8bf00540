"""Measure the speed of transforms, kernel regression, searches and the start, as ratios.

python benchmarks/speed.py [--only transform,hadamard,regression,search,start] [--rounds 9]

Every ratio is taken inside one run: methods alternate in shuffled order, and the median over rounds
of the ratio and the ratio of the fastest repetitions are told. A promise is kept if both keep it,
missed if neither does, and else undecided. Threads are those that the environment allows (two on
the machine the promises are about). Prints a table and writes benchmarks/results/speed.json.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results"
PROMISES = []


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


def judge(what, slow, fast, bound, *, at_most=False):
    """Tell and keep the ratio of two lists of times against a promised bound."""
    ratios = median(a / b for a, b in zip(slow, fast, strict=True)), min(slow) / min(fast)
    kept = [ratio <= bound if at_most else ratio >= bound for ratio in ratios]
    verdict = {2: "KEPT", 1: "UNDECIDED", 0: "MISSED"}[sum(kept)]
    sign = "<=" if at_most else ">="
    PROMISES.append((verdict, what, f"{sign} {bound}", ratios))
    print(
        f"{verdict:9s} {what}: {ratios[0]:.2f} (median), {ratios[1]:.2f} (fastest); {sign} {bound}"
    )


def measure_transform(rounds):
    """RFFSampler against RBFSampler, OptimalPositiveRF against the floor."""
    import numpy as np
    from sklearn.kernel_approximation import RBFSampler

    from skrf import OptimalPositiveRF, RFFSampler
    from skrf._threads import run_all

    halves = [slice(0, 10_000), slice(10_000, 20_000)]
    for dtype, times_faster, over_floor in ((np.float32, 2, 1.35), (np.float64, 7, 1.25)):
        X = np.random.default_rng(0).normal(size=(20_000, 64)).astype(dtype) / 8
        peer = RBFSampler(gamma=0.5, n_components=512, random_state=0).fit(X)
        ours = RFFSampler(512, random_state=0).fit(X)
        positive = OptimalPositiveRF(512, random_state=0).fit(X)
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
        print(f"          kernel error, {name}: RBFSampler {errors[0]:.4f}, ours {errors[1]:.4f}")


def measure_hadamard(rounds):
    """The fast projection against the dense one."""
    import numpy as np

    from skrf import OptimalPositiveRF

    X = np.random.default_rng(0).normal(size=(2000, 4096)).astype(np.float32) / 64
    fitted = {
        name: OptimalPositiveRF(8192, coupling="simplex", projection=name, random_state=0).fit(X)
        for name in ("dense", "hadamard")
    }
    times = alternate(
        {n: lambda f=f: f.transform(X) for n, f in fitted.items()}, max(rounds // 3, 2)
    )
    judge("dense / hadamard, d = 4096, 8192 columns", times["dense"], times["hadamard"], 6)


def measure_regression():
    """KernelRegressionClassifier on a million rows against SGD on random features, in children."""
    found = {}
    for name in ("ours", "peer"):
        command = [sys.executable, __file__, "--case", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
        print(f"          {name}: {found[name]}")
    judge("SGD pipeline / ours, fit", [found["peer"]["fit"]], [found["ours"]["fit"]], 8)
    judge(
        "SGD pipeline / ours, predict", [found["peer"]["predict"]], [found["ours"]["predict"]], 1.5
    )
    judge("peak over the data, MB", [found["ours"]["memory"]], [1.0], 150, at_most=True)


def run_case(name):
    """Print times, accuracy and memory of one method on a million rows in batches."""
    import numpy as np
    from sklearn.datasets import make_classification
    from sklearn.kernel_approximation import RBFSampler
    from sklearn.linear_model import SGDClassifier

    from skrf import KernelRegressionClassifier, OptimalPositiveRF

    X, y = make_classification(1_000_000, 20, n_informative=10, n_classes=5, random_state=0)
    X = X.astype(np.float32)
    batches = [slice(a, a + 20_000) for a in range(0, len(X), 20_000)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    if name == "ours":
        model = KernelRegressionClassifier(OptimalPositiveRF(512, sigma=0.3, random_state=0))
        for batch in batches:
            model.partial_fit(X[batch], y[batch], classes=range(5))
        fitted = time.perf_counter()
        guess = np.concatenate([model.predict(X[batch]) for batch in batches])
    else:
        features = RBFSampler(gamma=0.045, n_components=512, random_state=0).fit(X[:2])
        model = SGDClassifier(random_state=0)
        for batch in batches:
            model.partial_fit(features.transform(X[batch]), y[batch], classes=range(5))
        fitted = time.perf_counter()
        guess = np.concatenate([model.predict(features.transform(X[batch])) for batch in batches])
    end = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = {
        "fit": round(fitted - start, 2),
        "predict": round(end - fitted, 2),
        "accuracy": round(float(np.mean(guess == y)), 4),
        "memory": round((peak - before) / 1024, 1),
    }
    print(json.dumps(report))


def measure_search(rounds):
    """Ten sigmas with one job on one thread, one job as it comes, and two jobs."""
    import numpy as np
    from sklearn.datasets import make_classification
    from sklearn.model_selection import GridSearchCV
    from threadpoolctl import threadpool_limits

    from skrf import KernelRegressionClassifier, OptimalPositiveRF

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
    times = alternate(methods, max(rounds // 3, 2))
    judge("one thread / two jobs, GridSearchCV", times["one thread"], times["two jobs"], 1.5)
    judge("two jobs / one job", times["two jobs"], times["one job"], 1.1, at_most=True)


def measure_start(rounds):
    """Importing the library, and first calls."""

    def run(code):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    methods = {
        "skrf": lambda: run("import skrf"),
        "peer": lambda: run("import sklearn.kernel_approximation"),
    }
    times = alternate(methods, rounds)
    judge("import skrf / import peer", times["skrf"], times["peer"], 1.1, at_most=True)
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
    judge("first small transform over the second, s", [small], [1.0], 0.05, at_most=True)
    judge("first large one beyond importing numba, s", [large], [1.0], 0.3, at_most=True)


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="transform,hadamard,regression,search,start")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        run_case(options.case)
        return
    random.seed(0)
    parts = options.only.split(",")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for part in parts:
        if part == "regression":
            measure_regression()
        else:
            globals()[f"measure_{part}"](options.rounds)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "speed.json").write_text(json.dumps(PROMISES, indent=1))


if __name__ == "__main__":
    main()
