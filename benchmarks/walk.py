"""Count what a call of the package walks through: files of skrf that it enters, and calls in them.

    python benchmarks/walk.py            # a few calls, each counted the second time
    python benchmarks/walk.py --files    # and the files, with their calls

A reader who follows a call opens these files. Calls of functions of skrf are counted by
sys.setprofile, in all threads, those of comprehensions and generators with them. The first call
loads modules and compiles; the second is counted.
"""

import argparse
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np

import skrf
from skrf.attention import ApproxKernelAttention
from skrf.graphical import KernelHMM

ROOT = Path(skrf.__file__).parent
RNG = np.random.default_rng(0)
X, Y, T = RNG.normal(size=(60, 4)), np.arange(60) % 3, RNG.normal(size=60)


def walked(call):
    """Return how often a call enters functions of every file of skrf."""
    counts, inside = Counter(), f"{ROOT}/"

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(inside):
            counts[frame.f_code.co_filename] += 1

    before = sys.getprofile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return Counter({str(Path(name).relative_to(ROOT)): n for name, n in counts.items()})


def calls():
    """Return calls of the public face, by name."""
    fitted = skrf.KernelRegressionClassifier(random_state=0).fit(X, Y)
    queries = X[None, :, :]
    return {
        "RFFSampler.fit": lambda: skrf.RFFSampler(16, random_state=0).fit(X),
        "ApproxKernelRidge.fit": lambda: skrf.ApproxKernelRidge(random_state=0).fit(X, T),
        "ApproxKernelRidgeClassifierCV.fit": lambda: skrf.ApproxKernelRidgeClassifierCV(
            random_state=0
        ).fit(X, Y),
        "KernelRegressionClassifier.fit": lambda: skrf.KernelRegressionClassifier(
            random_state=0
        ).fit(X, Y),
        "KernelRegressionClassifier.predict_proba": lambda: fitted.predict_proba(X),
        "KernelMachineClassifier.fit": lambda: skrf.KernelMachineClassifier(random_state=0).fit(
            X, Y
        ),
        "ApproxKernelAttention": lambda: ApproxKernelAttention(random_state=0)(
            queries, queries, queries
        ),
        "KernelHMM.fit": lambda: KernelHMM(3, 3, max_iter=2, random_state=0).fit(Y),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="a part of the names of calls", default="")
    parser.add_argument("--files", action="store_true", help="list the files, too")
    args = parser.parse_args()
    for name, call in calls().items():
        if args.only not in name:
            continue
        call()
        counts = walked(call)
        print(f"{name:42s} {len(counts):3d} files {counts.total():7d} calls")
        if args.files:
            for file, count in counts.most_common():
                print(f"    {file:38s} {count:7d}")


if __name__ == "__main__":
    main()
