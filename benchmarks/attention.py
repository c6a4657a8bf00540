"""Measure attention: time and memory against length, or the error against the number of features.

python benchmarks/attention.py [--quick] [--max-length N] [--rounds R]
python benchmarks/attention.py --error [--quick] [--std S]

The first command compares `ApproxKernelAttention` with exact attention (this library's blocked
NumPy, PyTorch's scaled_dot_product_attention) and with the package performer-pytorch, and says
which of the targets about speed and memory hold here; with --quick it takes three minutes. The
second measures the error of the outputs (benchmarks/attention_error.py) in less than two.

Both print tables as Markdown and write benchmarks/results/attention*.json and .png. The peers are
in the extra `bench-torch`; what is not installed is left out, and said so. For PyTorch without
CUDA packages install its CPU build first.

How it measures. Every case is a process of its own with two threads. It prepares its inputs, makes
one small call (L = 64), reads its peak resident memory, and then runs the case: one call that
is not timed, and repetitions that are; all count for memory. Machines are noisy, so every round
runs all methods of a length one after the other in shuffled order, and ratios are taken within a
round: the table has their median over rounds, and beside it the ratio of the fastest repetitions
of all rounds. A target is met if both meet it, missed if neither does, and else undecided.
"""

import argparse
import contextlib
import json
import math
import mmap
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from statistics import median

from _memory import peak_memory

# No NumPy up here: a child's peak memory begins at what its parent held when it started it, so
# the parent must stay smaller than any child.

RESULTS = Path(__file__).parent / "results"
N_THREADS = 2
SEED = 0
BATCH, HEADS, WIDTH, N_COMPONENTS, STD = 1, 8, 64, 256, 0.5
SHORTEST, LONGEST, LONGEST_QUICK = 512, 65_536, 4096
WARM_UP_LENGTH = 64
MOST_REPETITIONS, SECONDS_A_CASE = 7, 2.0
MB = 1e6


# ---------------------------------------------------------------- methods (run in the child)


def ours(causal):
    """Return this library's operator."""
    from skrf import OptimalPositiveRF
    from skrf.attention import ApproxKernelAttention

    features = OptimalPositiveRF(N_COMPONENTS, random_state=SEED)
    return ApproxKernelAttention(features, causal=causal)


def exact(causal):
    """Return this library's exact attention."""
    from skrf.attention import exact_attention

    return partial(exact_attention, causal=causal)


def torch_sdpa(causal):
    """Return PyTorch's exact attention for NumPy arrays."""
    import torch

    return on_tensors(
        partial(torch.nn.functional.scaled_dot_product_attention, is_causal=causal), torch
    )


def performer_pytorch(causal):
    """Return performer-pytorch's module for NumPy arrays; causal, it falls back to its CPU code."""
    import torch
    from performer_pytorch import FastAttention

    torch.manual_seed(SEED)
    module = FastAttention(dim_heads=WIDTH, nb_features=N_COMPONENTS, causal=causal)
    return on_tensors(module.eval(), torch)


def on_tensors(function, torch):
    """Return a function of NumPy arrays that calls one of tensors, without gradients or copies."""
    torch.set_num_threads(N_THREADS)

    def call(*arrays):
        with torch.inference_mode():
            return function(*(torch.from_numpy(array) for array in arrays)).numpy()

    return call


@dataclass(frozen=True)
class Method:
    """A way to compute attention, and the longest inputs on which it is worth the wait."""

    label: str
    make: Callable
    causal: bool
    longest: int = LONGEST


METHODS = {
    "ours": Method("ours", ours, False),
    "exact": Method("exact, NumPy", exact, False, 8192),
    "sdpa": Method("torch SDPA", torch_sdpa, False, 16_384),
    "performer": Method("performer-pytorch", performer_pytorch, False, 16_384),
    "ours-causal": Method("ours", ours, True),
    "exact-causal": Method("exact, NumPy", exact, True, 8192),
    "sdpa-causal": Method("torch SDPA", torch_sdpa, True, 16_384),
    "performer-causal": Method("performer-pytorch", performer_pytorch, True, 4096),
}


# ---------------------------------------------------------------- one case (the child)


def resident_memory():
    """Return the resident memory of this process in bytes, or None where it is not told."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * resource.getpagesize()


def fill_up_to_peak():
    """Return memory that brings the resident memory up to its peak, to be kept during the case.

    Without it the case would use what was freed before it, and its own peak would not be seen.
    """
    gap = peak_memory() - (resident_memory() or math.inf)
    if gap <= 0:
        return None
    ballast = mmap.mmap(-1, gap)
    for i in range(0, gap, mmap.PAGESIZE):
        ballast[i] = 1
    return ballast


def make_inputs(length):
    """Return q, k and v; made in place, so that nothing but them is left in the peak memory."""
    import numpy as np

    rng = np.random.default_rng(SEED)
    shape = (BATCH, HEADS, length, WIDTH)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in range(3))
    q *= STD
    k *= STD
    return q, k, v


def run_case(name, length):
    """Run one method at one length and return what was measured."""
    inputs = make_inputs(length)
    attend = METHODS[name].make(METHODS[name].causal)
    attend(*make_inputs(WARM_UP_LENGTH))
    ballast = fill_up_to_peak()
    before = peak_memory()
    times, output_bytes = [], 0
    began = time.perf_counter()
    while True:
        start = time.perf_counter()
        out = attend(*inputs)
        now = time.perf_counter()
        times.append(now - start)
        output_bytes = out.nbytes
        del out  # or two outputs would be alive in the next call
        if len(times) > MOST_REPETITIONS or now - began > SECONDS_A_CASE:
            break
    return {
        "method": name,
        "length": length,
        # The first call also pays for threads and caches; it counts where it is the only one.
        "times": times[1:] or times,
        "first": times[0],
        "memory": peak_memory() - before - output_bytes,
        "output": output_bytes,
        "ballast": 0 if ballast is None else len(ballast),
    }


# ---------------------------------------------------------------- all cases (the parent)


def measure(lengths, n_rounds):
    """Return the records of all cases, and {method: reason} for what could not run."""
    records, failed = [], {}
    shuffle = random.Random(SEED).shuffle
    environment = {
        **os.environ,
        **{f"{name}_NUM_THREADS": str(N_THREADS) for name in ("OPENBLAS", "OMP", "MKL", "NUMBA")},
    }
    for i in range(n_rounds):
        for length in lengths:
            names = [name for name in METHODS if METHODS[name].longest >= length]
            shuffle(names)
            for name in names:
                if name in failed:
                    continue
                done = subprocess.run(
                    [sys.executable, __file__, "--case", name, str(length)],
                    env=environment,
                    capture_output=True,
                    text=True,
                )
                if done.returncode == 0:
                    record = {**json.loads(done.stdout), "round": i}
                    records.append(record)
                    said = f"{1e3 * median(record['times']):.1f} ms"
                else:
                    said = (done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1]
                    failed[name] = f"at length {length}: {said}"
                print(f"round {i + 1}, L = {length}, {name}: {said}", file=sys.stderr, flush=True)
    return records, failed


class Measurements:
    """Questions about the records of all rounds."""

    def __init__(self, records):
        self._by_case = {}
        for record in records:
            case = self._by_case.setdefault((record["method"], record["length"]), {})
            case[record["round"]] = record

    def __contains__(self, case):
        return case in self._by_case

    @property
    def lengths(self):
        """All lengths, ascending."""
        return sorted({length for _, length in self._by_case})

    def typical_time(self, *case):
        """Return the median over rounds of a round's median time."""
        return median(median(r["times"]) for r in self._by_case[case].values())

    def fastest_time(self, *case):
        """Return the shortest time of all rounds."""
        return min(min(r["times"]) for r in self._by_case[case].values())

    def memory(self, *case):
        """Return the largest peak over inputs and output of all rounds, in bytes."""
        return max(r["memory"] for r in self._by_case[case].values())

    def time_ratio(self, case, base):
        """Return time(case) / time(base): median over shared rounds, and of the fastest; or None.

        Cases are pairs of method and length.
        """
        if case not in self or base not in self:
            return None
        a, b = self._by_case[case], self._by_case[base]
        shared = [median(a[i]["times"]) / median(b[i]["times"]) for i in a.keys() & b.keys()]
        if not shared:
            return None
        return median(shared), self.fastest_time(*case) / self.fastest_time(*base)


# ---------------------------------------------------------------- report


def table(measured):
    """Return the Markdown table of all cases."""
    lines = [
        "| mode | L | method | time, ms | fastest, ms | memory over inputs and output, MB "
        "| time / ours | fastest / ours | time(L) / time(L/2) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, method in METHODS.items():
        mode = "causal" if method.causal else "bidirectional"
        for length in measured.lengths:
            case = (name, length)
            if case not in measured:
                continue
            to_ours = measured.time_ratio(
                case, ("ours-causal" if method.causal else "ours", length)
            )
            growth = measured.time_ratio(case, (name, length // 2))
            cells = [
                mode,
                length,
                method.label,
                f"{1e3 * measured.typical_time(*case):.1f}",
                f"{1e3 * measured.fastest_time(*case):.1f}",
                f"{measured.memory(*case) / MB:.1f}",
                *(["", ""] if to_ours is None else [f"{ratio:.2f}" for ratio in to_ours]),
                "" if growth is None else f"{growth[0]:.2f}",
            ]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def verdict(target, values, is_kept):
    """Return the line about one target; values are (by medians, by fastest) or None."""
    if values is None:
        return f"- NOT MEASURED: {target}"
    kept = [is_kept(value) for value in values]
    word = "MET" if all(kept) else "UNDECIDED" if any(kept) else "MISSED"
    seen = " and ".join(f"{value:.2f}" for value in values)
    return f"- {word}: {target}: {seen} (medians, fastest)"


def verdicts(measured):
    """Return a line for every target, and one for what is only told."""
    lines = []
    for name, mode in (("ours", "bidirectional"), ("ours-causal", "causal")):
        growths = [measured.time_ratio((name, 2 * n), (name, n)) for n in measured.lengths]
        growths = [growth for growth in growths if growth is not None]
        worst = tuple(map(max, zip(*growths, strict=True))) if growths else None
        lines.append(
            verdict(f"{mode}: largest time(2L)/time(L) <= 2.2", worst, lambda ratio: ratio <= 2.2)
        )
    for peer, own, length, factor in (
        ("performer", "ours", 4096, 1.6),
        ("performer-causal", "ours-causal", 4096, 8),
        ("sdpa", "ours", 4096, 2),
        ("sdpa", "ours", 16_384, 10),
    ):
        ratio = measured.time_ratio((peer, length), (own, length))
        lines.append(
            verdict(
                f"{METHODS[peer].label} takes >= {factor} times {own} at L = {length}",
                ratio,
                lambda ratio, factor=factor: ratio >= factor,
            )
        )
    for length in measured.lengths:
        if length >= 4096:
            ratio = measured.time_ratio(("ours-causal", length), ("ours", length))
            lines.append(
                verdict(
                    f"causal takes <= 1.8 times bidirectional at L = {length}",
                    ratio,
                    lambda ratio: ratio <= 1.8,
                )
            )
    for name in ("ours", "ours-causal"):
        target = f"{name}: peak memory over inputs and output <= 16 MB at L = 16384"
        if (name, 16_384) not in measured:
            lines.append(f"- NOT MEASURED: {target}")
            continue
        used = measured.memory(name, 16_384) / MB
        lines.append(f"- {'MET' if used <= 16 else 'MISSED'}: {target}: {used:.1f} MB")
    return lines


def describe(n_rounds, load):
    """Return the lines that say what was measured, where and how."""
    versions = []
    for package in ("scikit-random-features", "numpy", "torch", "performer-pytorch"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{package} {metadata.version(package)}")
    return [
        f"Batch {BATCH}, {HEADS} heads, d = {WIDTH}, {N_COMPONENTS} features, float32, q and k of "
        f"standard deviation {STD}, seed {SEED}.",
        f"{N_THREADS} threads a process (OPENBLAS_NUM_THREADS = OMP_NUM_THREADS = {N_THREADS}), "
        f"{os.cpu_count()} cores with a load of {load:.1f} from others at the start, {n_rounds} "
        f"rounds; {', '.join(versions)}.",
        "Memory is the growth of the peak of the process from before the first call to after the "
        "last, less the output.",
    ]


def plot(measured, path):
    """Draw time and memory against length."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
    labels = list(dict.fromkeys(method.label for method in METHODS.values()))
    for name, method in METHODS.items():
        lengths = [length for length in measured.lengths if (name, length) in measured]
        if not lengths:
            continue
        style = {
            "color": f"C{labels.index(method.label)}",
            "linestyle": "--" if method.causal else "-",
            "marker": ".",
            "label": method.label + (", causal" if method.causal else ""),
        }
        left.plot(lengths, [measured.typical_time(name, n) for n in lengths], **style)
        # On a logarithmic axis what is below 0.1 MB is drawn there.
        right.plot(lengths, [max(measured.memory(name, n) / MB, 0.1) for n in lengths], **style)
    left.set(ylabel="time, s", title="Time")
    right.set(ylabel="peak over inputs and output, MB", title="Memory")
    for axis in (left, right):
        axis.set(xscale="log", yscale="log", xlabel="L")
        axis.set_xticks(measured.lengths, measured.lengths, rotation=45)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=110)


def compare_speed(longest, n_rounds):
    """Measure all cases, print what was seen and write it down."""
    lengths = [SHORTEST << i for i in range(32) if SHORTEST << i <= longest]
    load = os.getloadavg()[0]
    records, failed = measure(lengths, n_rounds)
    measured = Measurements(records)
    targets = verdicts(measured)
    missing = [f"- NOT RUN: {name} {reason}" for name, reason in failed.items()]
    about = describe(n_rounds, load)
    print("\n".join(about), "", table(measured), "", *targets, *missing, sep="\n")
    RESULTS.mkdir(exist_ok=True)
    summary = {"about": about, "verdicts": targets + missing, "records": records}
    (RESULTS / "attention.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
    if records:
        plot(measured, RESULTS / "attention.png")


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short inputs, two rounds, few seeds")
    parser.add_argument("--max-length", type=int, help=f"default {LONGEST}, quick {LONGEST_QUICK}")
    parser.add_argument("--rounds", type=int, help="default 3, quick 2")
    parser.add_argument("--error", action="store_true", help="measure the error of the outputs")
    parser.add_argument("--std", type=float, default=0.5, help="with --error: factor of q and k")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        name, length = options.case
        # Peers print while they load; standard output is for the result.
        with contextlib.redirect_stdout(sys.stderr):
            record = run_case(name, int(length))
        print(json.dumps(record))
    elif options.error:
        import attention_error

        attention_error.main(RESULTS, std=options.std, quick=options.quick)
    else:
        longest = options.max_length or (LONGEST_QUICK if options.quick else LONGEST)
        if longest < SHORTEST:
            parser.error(f"--max-length must be at least {SHORTEST}, got {longest}.")
        compare_speed(longest, options.rounds or (2 if options.quick else 3))


if __name__ == "__main__":
    main()
