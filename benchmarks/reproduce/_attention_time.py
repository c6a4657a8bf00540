"""Wall time and peak memory of attention against length (thesis, figure 3.3)."""

import importlib.util
import os
import random
from dataclasses import dataclass
from statistics import median

import matplotlib.pyplot as plt
import numpy as np
from _attention_cases import CLOCKS, run_child
from _common import COLOURS, Cache, Progress, markdown, save_figure, save_report

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
    seconds = SECONDS_QUICK if quick else SECONDS
    settings = {
        "heads": HEADS,
        "width": WIDTH,
        "n_components": N_COMPONENTS,
        "std": STD,
        "seed": SEED,
        "seconds": seconds,
    }
    path = options.results / "attention_cache" / f"time{'_quick' if quick else ''}.json"
    if options.fresh:
        path.unlink(missing_ok=True)
    cache = Cache(path, {**settings, "threads": options.threads})
    methods = installed()
    records, ends = {}, {}
    progress = Progress(n_rounds * len(lengths) * len(methods))
    shuffle = random.Random(SEED).shuffle
    for i in range(n_rounds):
        for length in lengths:
            order = list(methods)
            shuffle(order)
            for name in order:
                case, key = (name, length), f"{name}/{length}/{i}"
                if key not in cache and i == 0:  # which decides for the later rounds, too
                    why = reason_to_end(name, length, records, ends, options.clock)
                    if why:
                        ends[case] = why
                if key not in cache and case not in ends:
                    made = run_child(
                        "attention", name, length, *settings.values(), threads=options.threads
                    )
                    if "failed" in made:
                        ends[case] = made["failed"]
                    else:
                        cache[key] = made
                if key in cache:
                    records.setdefault(case, []).append(cache[key])
                progress(f"round {i + 1}, L = {length}, {name}")
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


def word(is_met):
    """Return how a verdict is called."""
    return "too short to tell" if is_met is None else "met" if is_met else "NOT met"


def verdicts(measured):
    """Return the lines about what the thesis says."""
    lines = []
    for which, label in PASSES.items():
        for name in measured.methods:
            slope = measured.slope(name, which, measured.seconds)
            if slope is None:
                continue
            ours = "ours" in name
            is_met = slope <= 1.15 if ours else slope >= 1.7
            order = "nearly linear" if ours else "at least quadratic"
            lines.append(
                f"- {word(is_met)}: {METHODS[name].label}, {label}: {order} in L (section 3.8.1): "
                f"time grows as L^{slope:.2f} from L = {FROM} on"
            )
        for base in measured.methods:
            name = "ours-causal" if base.endswith("causal") else "ours"
            common = [n for n in measured.own_lengths(base, which) if n >= SHORTEST]
            if base == name or not common:
                continue
            start = measured.crossover(name, base, which)
            longest = common[-1]
            ratio = measured.seconds(base, longest, which) / measured.seconds(name, longest, which)
            is_met = None if start is None and longest < 2 * FROM else start is not None
            lines.append(
                f"- {word(is_met)}: {METHODS[name].label}, {label}: faster than "
                f"{METHODS[base].label} for long inputs: "
                + (f"from L = {start} on; " if start else "")
                + f"at L = {longest}, its last, {ratio:.1f} times as fast"
            )
    for name in measured.methods:
        slope = measured.slope(name, "both", measured.memory)
        if slope is None or "exact" in name:
            continue
        is_met = slope > 1.7 if name == "matrix" else slope <= 1.15 if "ours" in name else None
        lines.append(
            f"- {'told' if is_met is None else word(is_met)}: {METHODS[name].label}: memory of "
            f"forward and backward grows as L^{slope:.2f} (section 3.8.1: sub-quadratic for "
            "Performers, quadratic for the matrix of a Transformer)"
        )
    ends = {}
    for (name, length), why in measured.ended.items():
        if why != "shorter inputs ended":
            ends.setdefault(name, f"- {METHODS[name].label} ends before L = {length}: {why}")
    return [*lines, *ends.values()]


def report(measured, n_rounds, threads):
    """Return the report in Markdown."""
    lines = "\n".join(verdicts(measured))
    return f"""\
# Time of attention against length (thesis, figure 3.3)

Batch 1, {HEADS} heads, d = {WIDTH}, M = {N_COMPONENTS} (OptimalPositiveRF), float32, q and k normal
with standard deviation {STD}, seed {SEED}; {threads} thread(s) of {os.cpu_count()} processors,
{n_rounds} round(s) in shuffled order. Memory is the peak over what was resident before the call,
as the operating system counts it in a process of its own; the output (and the gradients) are in
it. Where PyTorch is not installed, exact attention is the library's, forward only. Orders below and
the plot are of {CLOCKS[measured.clock]}.

{table(measured)}

## Against what was published

The thesis measured on a V100 and gives a plot without numbers: orders are what can be compared.
Its exact attention holds the matrix; the fused one did not exist then.

{lines}
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
