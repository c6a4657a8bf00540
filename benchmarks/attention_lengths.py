"""Time of attention against the length: exact, a window and random features.

    python benchmarks/attention_lengths.py [--decays]

Eight heads of width 64 in float32 on one thread, normal inputs: only time counts, not the error,
which whole_models.py measures. Every number is the fastest of three calls, or of one call where a
call takes more than ten seconds; methods alternate. Exact attention is that of torch where torch is
installed, and this library's otherwise. Statistics are fitted before; a window is causal. Writes
docs/guide/attention_lengths.csv and .png. Takes a minute and a half. `--decays` compares causal
calls with a decay of 0.05 a position with those without, with 1 and 32 heads, in half a minute.
"""

import argparse
import csv
import time
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from threadpoolctl import threadpool_limits

from skrf import OptimalPositiveRF
from skrf.attention import (
    ApproxKernelAttention,
    ToeplitzMask,
    WindowAttention,
    exact_attention,
)
from skrf.exceptions import FeatureCollapseWarning

FOLDER = Path(__file__).parent.parent / "docs" / "guide"
LENGTHS = [2**i for i in range(9, 16)]
LONG = 10.0  # seconds of a call that is made once
LONGEST_EXACT = 2**14
STYLES = {"exact": "ko-", "WindowAttention(508)": "C0s--", "256 features": "C1^-"}
FIELDS = "direction", "method", "positions", "seconds"


def exact(causal):
    """Return exact attention of arrays."""
    try:
        import torch
    except ImportError:
        return lambda q, k, v: exact_attention(q, k, v, causal=causal)
    torch.set_num_threads(1)
    attend = torch.nn.functional.scaled_dot_product_attention

    def call(*arrays):
        with torch.inference_mode():
            q, k, v = (torch.from_numpy(array)[None] for array in arrays)
            return attend(q, k, v, is_causal=causal)[0].numpy()

    return call


def methods(causal, q, k):
    """Return what is measured, by name."""
    features = ApproxKernelAttention(OptimalPositiveRF(256, random_state=0), causal=causal)
    found = {"exact": exact(causal), "256 features": features.fit(q, k)}
    if causal:
        found["WindowAttention(508)"] = WindowAttention(508)
    return found


def measure():
    """Return the rows of the table."""
    rows, rng = [], np.random.default_rng(0)
    for causal in (False, True):
        for length in LENGTHS:
            q, k, v = rng.standard_normal((3, 8, length, 64)).astype(np.float32) / 2
            calls = methods(causal, q, k)
            best = dict.fromkeys(calls, np.inf)
            for _ in range(3):
                for name, call in calls.items():
                    if LONG < best[name] < np.inf or (name == "exact" and length > LONGEST_EXACT):
                        continue
                    start = time.perf_counter()
                    call(q, k, v)
                    best[name] = min(best[name], time.perf_counter() - start)
            direction = "causal" if causal else "bidirectional"
            new = [(direction, name, length, s) for name, s in best.items() if s < np.inf]
            print(
                *(f"{what[1]} {what[2]:,}: {what[3]:.3g} s" for what in new), sep=", ", flush=True
            )
            rows += new
    return rows


def plot(rows):
    """Save the picture."""
    figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.4), sharey=True, layout="constrained")
    for axis, direction in zip(axes, ("bidirectional", "causal"), strict=True):
        for name, style in STYLES.items():
            points = [row[2:] for row in rows if row[:2] == (direction, name)]
            if points:
                axis.loglog(*zip(*points, strict=True), style, base=2, ms=4, label=name)
        axis.set(xlabel="positions", title=direction)
        axis.set_yscale("log", base=10)
        axis.set_xticks(LENGTHS[::3], [f"{n:,}" for n in LENGTHS[::3]])
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("seconds of a call, one core")
    axes[1].legend(frameon=False)
    figure.savefig(FOLDER / "attention_lengths.png", dpi=150)


def decays():
    """Print the least milliseconds of calls without and with a decay."""
    rng = np.random.default_rng(0)
    operators = [
        ApproxKernelAttention(causal=True, mask=mask, random_state=0)
        for mask in (None, ToeplitzMask.decay(0.05))
    ]
    for heads in (1, 32):
        q, k, v = rng.normal(size=(3, heads, 4096, 64)).astype(np.float32)
        best = [np.inf, np.inf]
        for _ in range(4):
            for i, operator in enumerate(operators):
                start = time.perf_counter()
                operator(q, k, v)
                best[i] = min(best[i], 1000 * (time.perf_counter() - start))
        print(f"{heads:3} heads: {best[0]:.1f} ms, with a decay {best[1] / best[0]:.2f} times")


def main():
    """Measure, and write the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--decays", action="store_true")
    is_decays = parser.parse_args().decays
    warnings.simplefilter("ignore", FeatureCollapseWarning)  # only time counts
    with threadpool_limits(1):
        if is_decays:
            return decays()
        rows = measure()
    with open(FOLDER / "attention_lengths.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FIELDS)
        writer.writerows((*row[:3], f"{row[3]:.4f}") for row in rows)
    plot(rows)


if __name__ == "__main__":
    main()
