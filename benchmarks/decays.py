"""Causal attention with a decay beside the same without: steps of a stream, and whole texts.

    python benchmarks/decays.py

Times are the least of several repetitions with one thread (OPENBLAS_NUM_THREADS=1), in float32 with
256 features, heads of width 64 and a decay of 0.05 a position; and its largest difference, as a
part of the state, from the dense mask that it stands for, in float64. Half a minute.
"""

import time
import warnings
from functools import partial

import numpy as np

from skrf.attention import ApproxKernelAttention, ToeplitzMask
from skrf.exceptions import FeatureCollapseWarning

DECAY = ToeplitzMask.decay(0.05)


def seconds(calls, rounds, n):
    """Return the least seconds of every call, which take turns."""
    best = [np.inf] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            for _ in range(n):
                call()
            best[i] = min(best[i], (time.perf_counter() - start) / n)
    return best


def main():
    warnings.simplefilter("ignore", FeatureCollapseWarning)  # normal inputs: only time counts
    rng = np.random.default_rng(0)
    operators = [
        ApproxKernelAttention(causal=True, mask=mask, random_state=0) for mask in (None, DECAY)
    ]
    for heads in (1, 32):
        q, k, v = rng.normal(size=(3, heads, 4096, 64)).astype(np.float32)
        one = [x[:, :1] for x in (q, k, v)]
        states = [operator.step(*one, operator.init_state())[1] for operator in operators]
        pairs = zip(operators, states, strict=True)
        steps = seconds([partial(op.step, *one, state) for op, state in pairs], 20, 20)
        texts = seconds([partial(op, q, k, v) for op in operators], 3, 1)
        for name, (plain, decayed) in (("a step", steps), ("4,096 positions", texts)):
            times = f"with a decay {1e3 * decayed:.2f} ms ({decayed / plain:.2f} times)"
            print(f"{heads:3} heads, {name:16}{1e3 * plain:9.2f} ms; {times}", flush=True)
    q, k, v = rng.normal(size=(3, 1, 1000, 16))
    dense = ApproxKernelAttention(causal=True, mask=DECAY.toarray(1000), random_state=0)
    gap = np.abs(operators[1](q, k, v) - dense(q, k, v)).max()
    print(f"largest difference from the dense mask, 1,000 positions: {gap:.1e}")


if __name__ == "__main__":
    main()
