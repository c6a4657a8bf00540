"""Wall time and peak memory of attention against length (thesis, figure 3.3)."""

import importlib.util
import os
import random
from dataclasses import dataclass
from statistics import median

import matplotlib.pyplot as plt
import numpy as np
from _attention_cases import CLOCKS, run_child
from _common import COLOURS, markdown, save_figure, save_report

SEED = 0
HEADS, WIDTH, N_COMPONENTS, STD = 8, 64, 256, 0.5  # "Regular" of the thesis; M is ours
SHORTEST, LONGEST, LONGEST_QUICK = 512, 65_536, 1024
ROUNDS, ROUNDS_QUICK = 3, 1
SECONDS, SECONDS_QUICK = 2.0, 0.2  # for the repetitions of a pass
LIMIT = 10.0  # exact attention gets no longer inputs after a pass of so many seconds
MATRICES = 5  # arrays of the size of the matrix that a gradient through it needs, at most
FROM = 2048  # slopes are those of longer inputs
PASSES = {"forward": "forward", "both": "forward and backward"}


@dataclass(frozen=True)
class Method:
    """How a method is called in the report, and how it is drawn."""

    label: str
    colour: str
    needs_torch: bool = False

    def style(self, name):
        """Return how its line looks."""
        causal = name.endswith("causal")
        return {"color": self.colour, "linestyle": "--" if causal else "-", "marker": "o"}


METHODS = {
    "ours": Method("ours", COLOURS[0]),
    "ours-causal": Method("ours, causal", COLOURS[0]),
    "matrix": Method("exact, whole matrix (torch)", COLOURS[1], True),
    "sdpa": Method("exact, fused (torch)", COLOURS[2], True),
    "sdpa-causal": Method("exact, fused (torch), causal", COLOURS[2], True),
    "performer": Method("performer-pytorch", COLOURS[4], True),
    "performer-causal": Method("performer-pytorch, causal", COLOURS[4], True),
    "exact": Method("exact_attention", COLOURS[3]),
    "exact-causal": Method("exact_attention, causal", COLOURS[3]),
}


# ---------------------------------------------------------------- measuring


def installed():
    """Return the methods of this machine: exact attention is PyTorch's where there is one."""
    has_torch, has_peer = map(importlib.util.find_spec, ("torch", "performer_pytorch"))
    return [
        name
        for name, method in METHODS.items()
        if (method.needs_torch if has_torch else not method.needs_torch) or "ours" in name
        if has_peer or "performer" not in name
    ]


def available_memory():
    """Return the bytes that can be had, or infinity where the system does not tell."""
    try:
        with open("/proc/meminfo") as lines:
            return next(int(s.split()[1]) * 1024 for s in lines if s.startswith("MemAvailable"))
    except OSError:
        return float("inf")


def reason_to_end(name, length, records, ends, clock):
    """Return why a method is not run at a length, or None."""
    if (name, length // 2) in ends:
        return "shorter inputs ended"
    if name == "matrix" and MATRICES * HEADS * length**2 * 4 > 0.8 * available_memory():
        return "memory"
    shorter = records.get((name, length // 2))
    if shorter is None or name.startswith("ours"):
        return None
    slowest = max(min(part[clock]) for part in shorter[0].values())
    return f"over {LIMIT:g} s at L = {length // 2}" if slowest > LIMIT else None


def run(options):
    """Measure, write table and plot."""
    quick = options.quick
    longest = LONGEST_QUICK if quick else LONGEST
    lengths = [SHORTEST << i for i in range(32) if SHORTEST << i <= longest]
    n_rounds = options.rounds or (ROUNDS_QUICK if quick else ROUNDS)
    settings = HEADS, WIDTH, N_COMPONENTS, STD, SEED, SECONDS_QUICK if quick else SECONDS
    methods, records, ends = installed(), {}, {}
    shuffle = random.Random(SEED).shuffle
    for i in range(n_rounds):
        for length in lengths:
            order = list(methods)
            shuffle(order)
            for name in order:
                case = name, length
                why = reason_to_end(name, length, records, ends, options.clock) if i == 0 else None
                if why:  # which decides for the later rounds, too
                    ends[case] = why
                if case in ends:
                    continue
                record = run_child("attention", *case, *settings, threads=options.threads)
                if "failed" in record:
                    ends[case] = record["failed"]
                else:
                    records.setdefault(case, []).append(record)
    measured = Measurements(methods, lengths, records, ends, options.clock)
    name = "attention_time_quick" if quick else "attention_time"
    save_report(report(measured, n_rounds, options.threads), options.results, name)
    save_figure(plot(measured), options.results, name, docs=options.docs and not quick, dpi=80)


class Measurements:
    """Questions about the records of all rounds; `clock` is that of ratios, slopes and plots."""

    def __init__(self, methods, lengths, records, ends, clock):
        self.methods, self.lengths, self.clock = methods, lengths, clock
        self.records, self.ended = records, ends

    def has(self, name, length, which):
        """Tell whether a pass of a method was measured at a length."""
        return which in self.records.get((name, length), [{}])[0]

    def own_lengths(self, name, which):
        """Return the lengths at which a pass of a method was measured."""
        return [length for length in self.lengths if self.has(name, length, which)]

    def seconds(self, name, length, which, clock=None, statistic=min):
        """Return the fastest (or the median) repetition of all rounds."""
        own = self.records[name, length]
        return statistic([time for record in own for time in record[which][clock or self.clock]])

    def memory(self, name, length, which):
        """Return the largest peak over the inputs, in bytes."""
        return max(record[which]["memory"] for record in self.records[name, length])

    def slope(self, name, which, quantity):
        """Return the slope of log quantity against log length from FROM on, or None."""
        lengths = [n for n in self.own_lengths(name, which) if n >= FROM]
        if len(lengths) < 2:
            return None
        values = [quantity(name, length, which) for length in lengths]
        return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])

    def crossover(self, name, base, which):
        """Return the least common length from which on `name` is faster than `base`, or None."""
        lengths = [n for n in self.own_lengths(base, which) if self.has(name, n, which)]
        faster = [self.seconds(name, n, which) < self.seconds(base, n, which) for n in lengths]
        if not faster or not faster[-1]:
            return None
        return lengths[len(faster) - faster[::-1].index(False) if False in faster else 0]


# ---------------------------------------------------------------- report


def table(measured):
    """Return the Markdown table of all cases."""
    rows = [
        ("L", "method")
        + tuple(
            f"{label}, {what}"
            for label in PASSES.values()
            for what in ("fastest, ms", "median, ms", "processor, ms", "memory, MB")
        )
    ]
    for length in measured.lengths:
        for name in measured.methods:
            cells = []
            for which in PASSES:
                if not measured.has(name, length, which):
                    cells += [measured.ended.get((name, length), ""), "", "", ""]
                    continue
                case = name, length, which
                cells += [
                    f"{1e3 * measured.seconds(*case, 'wall'):.1f}",
                    f"{1e3 * measured.seconds(*case, 'wall', median):.1f}",
                    f"{1e3 * measured.seconds(*case, 'cpu'):.1f}",
                    f"{measured.memory(*case) / 1e6:.1f}",
                ]
            rows.append((str(length), METHODS[name].label, *cells))
    return markdown(rows, left=2)


def growth(measured):
    """Return table rows: powers of the length, and from where on ours is faster."""
    rows = [("method", "pass", "time grows as L^", "memory as L^", "ours faster from", "at last")]
    for which, label in PASSES.items():
        for name in measured.methods:
            slopes = [measured.slope(name, which, q) for q in (measured.seconds, measured.memory)]
            own = "ours-causal" if name.endswith("causal") else "ours"
            common = measured.own_lengths(name, which)
            start, ratio = "", ""
            if name != own and common:
                start = measured.crossover(own, name, which) or "nowhere"
                pair = (measured.seconds(of, common[-1], which) for of in (name, own))
                ratio = f"{np.divide(*pair):.1f} times at {common[-1]:,}"
            powers = ("" if slope is None else f"{slope:.2f}" for slope in slopes)
            rows.append((METHODS[name].label, label, *powers, str(start), ratio))
    return rows


def report(measured, n_rounds, threads):
    """Return the report in Markdown."""
    return f"""\
# Time of attention against length (thesis, figure 3.3)

Batch 1, {HEADS} heads, d = {WIDTH}, M = {N_COMPONENTS} (OptimalPositiveRF), float32, q and k normal
with standard deviation {STD}, seed {SEED}; {threads} thread(s) of {os.cpu_count()} processors,
{n_rounds} round(s) in shuffled order. Memory is the peak over what was resident before the call,
as the operating system counts it in a process of its own; the output (and the gradients) are in
it. Where PyTorch is not installed, exact attention is the library's, forward only. Orders below and
the plot are of {CLOCKS[measured.clock]}.

{table(measured)}

## Growth from L = {FROM} on

The thesis says "nearly linear" of Performers and "quadratic" of Transformers. It measured on a V100
and gives a plot without numbers. Its exact attention holds the matrix; the fused one did not exist
then.

{markdown(growth(measured), left=2)}
"""


def plot(measured):
    """Draw times of both passes, and the memory of the longer one, against length."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 5), layout="constrained")
    panels = [
        ("forward, seconds", "forward", measured.seconds),
        ("forward and backward, seconds", "both", measured.seconds),
        ("forward and backward, peak memory in MB", "both", measured.memory),
    ]
    for axis, (title, which, quantity) in zip(axes, panels, strict=True):
        unit = 1e6 if quantity == measured.memory else 1
        for name in measured.methods:
            lengths = measured.own_lengths(name, which)
            values = [quantity(name, length, which) / unit for length in lengths]
            if lengths:
                style = METHODS[name].style(name)
                axis.plot(lengths, values, label=METHODS[name].label, markersize=4, **style)
        guide = np.array(measured.lengths, dtype=float)
        start = quantity("ours", measured.lengths[0], which) / unit
        for power, line in ((1, ":"), (2, "-.")):
            axis.plot(
                guide,
                start / 2 * (guide / guide[0]) ** power,
                color="0.6",
                linestyle=line,
                label=f"slope {power}",
            )
        axis.set(title=title, xlabel="length L", xscale="log", yscale="log")
        axis.set_xticks(measured.lengths, measured.lengths, rotation=45)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
