"""Time and memory of a Performer's gradient against the size of its chunks (thesis, figure 5.3)."""

import math
import os
import random
from dataclasses import dataclass
from statistics import median

import matplotlib.pyplot as plt
import numpy as np
from _attention_cases import CLOCKS, run_child
from _common import COLOURS, Cache, Progress, markdown, save_figure, save_report

from skrf.attention._checkpoints import KEPT

ROUNDS, ROUNDS_QUICK = 3, 1
SECONDS, SECONDS_QUICK = 2.0, 0.0  # for repetitions; the first call counts where it is longer
HEAD_WIDTH = 64
DISCREPANCY = "II"  # the configuration in which gradients are compared


@dataclass(frozen=True)
class Config:
    """A model of the thesis and the sizes that are measured.

    Parameters
    ----------
    length, n_layers, width : int
        L, s and d_hid.
    chunks : tuple of int
        Sizes E of chunks; the first is L.
    alone : tuple of int
        Lengths of texts that are taken at once: the thesis' lower bound of the memory at E.
    """

    length: int
    n_layers: int
    width: int
    chunks: tuple
    alone: tuple

    def states(self, chunk):
        """Return the bytes of the attention states that the library keeps between chunks."""
        n_kept = min(math.ceil(self.length / chunk) - 1, KEPT)
        one = HEAD_WIDTH * (HEAD_WIDTH + 1) + HEAD_WIDTH  # sums of features times [v, 1], scale
        return n_kept * self.n_layers * (self.width // HEAD_WIDTH) * one * 8


CONFIGS = {
    "I": Config(8192, 1, 1024, (8192, 4096, 2048, 1024, 512, 256, 128, 64, 32), (4096, 1024, 256)),
    "II": Config(1024, 3, 512, (1024, 512, 256, 128, 64, 32, 16, 8, 4, 2), (512, 128, 32)),
    "III": Config(4096, 3, 1024, (4096, 2048, 1366, 512), (2048, 512)),
}
QUICK_CONFIGS = {"II": Config(1024, 3, 512, (1024, 512, 128), (512,))}

# Table 5.2 of the thesis: seconds an iteration and gigabytes of GPU memory at the peak, in which
# are the parameters and the optimiser's state.
PUBLISHED = {
    ("I", 8192): (0.3008, 0.938),
    ("I", 4096): (0.5372, 0.595),
    ("I", 2048): (0.6002, 0.436),
    ("II", 1024): (0.1377, 0.300),
    ("II", 512): (0.2526, 0.257),
    ("II", 256): (0.3060, 0.231),
    ("III", 4096): (0.4598, 1.513),
    ("III", 2048): (0.7922, 1.085),
    ("III", 1366): (0.8654, 0.909),
}


# ---------------------------------------------------------------- measuring


def run(options):
    """Measure, write table and plot."""
    quick = options.quick
    configs = QUICK_CONFIGS if quick else CONFIGS
    n_rounds = options.rounds or (ROUNDS_QUICK if quick else ROUNDS)
    seconds = SECONDS_QUICK if quick else SECONDS
    path = options.results / "attention_cache" / f"chunks{'_quick' if quick else ''}.json"
    if options.fresh:
        path.unlink(missing_ok=True)
    cache = Cache(path, {"seconds": seconds, "threads": options.threads})
    cases = [
        (name, length, chunk)
        for name, config in configs.items()
        for length, chunk in [(config.length, e) for e in config.chunks]
        + [(alone, alone) for alone in config.alone]
    ]
    compared = configs[DISCREPANCY]
    progress = Progress(n_rounds * (len(cases) + 1))
    shuffle = random.Random(0).shuffle
    for i in range(n_rounds):
        order = list(cases)
        shuffle(order)
        for name, length, chunk in order:
            config, key = configs[name], f"{name}/{length}/{chunk}/{i}"
            if key not in cache:
                store(cache, key, run_child(
                    "chunks", length, config.n_layers, config.width, chunk, i, seconds,
                    threads=options.threads,
                ))  # fmt: skip
            progress(f"round {i + 1}, configuration {name}, L = {length}, E = {chunk}")
        key = f"discrepancy/{i}"
        if key not in cache:
            store(cache, key, run_child(
                "discrepancy", compared.length, compared.n_layers, compared.width,
                compared.chunks[1:], i, threads=options.threads,
            ))  # fmt: skip
        progress(f"round {i + 1}, gradients")
    measured = Measurements(configs, cache, n_rounds, options.clock)
    name = "attention_chunks_quick" if quick else "attention_chunks"
    save_report(report(measured, options.threads), options.results, name)
    save_figure(plot(measured), options.results, name, docs=options.docs and not quick, dpi=80)


def store(cache, key, record):
    """Keep what a child returned; a case that failed ends the run with what the child said."""
    if "failed" in record:
        raise RuntimeError(f"{key}: {record['failed']}")
    cache[key] = record


class Measurements:
    """Questions about the records of all rounds; `clock` is that of ratios, slopes and plots."""

    def __init__(self, configs, cache, n_rounds, clock):
        self.configs, self.cache, self.n_rounds, self.clock = configs, cache, n_rounds, clock

    def _all(self, name, chunk, alone):
        length = chunk if alone else self.configs[name].length
        return [self.cache[f"{name}/{length}/{chunk}/{i}"] for i in range(self.n_rounds)]

    def seconds(self, name, chunk, *, alone=False, clock=None, statistic=min):
        """Return the fastest (or the median) gradient of all rounds."""
        own = self._all(name, chunk, alone)
        return statistic([time for record in own for time in record[clock or self.clock]])

    def memory(self, name, chunk, *, alone=False):
        """Return the largest peak over what was resident before the call, in bytes."""
        return max(record["memory"] for record in self._all(name, chunk, alone))

    def parameters(self, name):
        """Return the bytes of the parameters; the gradient has as many."""
        return self._all(name, self.configs[name].length, False)[0]["parameters"]

    def activations(self, name, chunk, *, alone=False):
        """Return the memory less the gradient and the states between chunks, as they are."""
        states = 0 if alone else self.configs[name].states(chunk)
        return self.memory(name, chunk, alone=alone) - self.parameters(name) - states

    def discrepancies(self):
        """Return |gradient in chunks - gradient| / |gradient| by size of chunks, all rounds."""
        own = [self.cache[f"discrepancy/{i}"] for i in range(self.n_rounds)]
        return {int(chunk): [record[chunk] for record in own] for chunk in own[0]}


# ---------------------------------------------------------------- report


def table(measured):
    """Return the Markdown table of all cases."""
    rows = [(
        "config", "E", "fastest, s", "median, s", "processor, s", "time / full", "published",
        "memory, MB", "memory / full", "published", "states, MB", "text of length E alone, MB",
    )]  # fmt: skip
    for name, config in measured.configs.items():
        full = config.length
        for chunk in config.chunks:
            time, memory = measured.seconds(name, chunk), measured.memory(name, chunk)
            published = ("", "")
            if (name, chunk) in PUBLISHED:
                pairs = zip(PUBLISHED[name, chunk], PUBLISHED[name, full], strict=True)
                published = [f"{own / base:.2f}" for own, base in pairs]
            alone = chunk in config.alone
            rows.append((
                name,
                str(chunk),
                f"{measured.seconds(name, chunk, clock='wall'):.2f}",
                f"{measured.seconds(name, chunk, clock='wall', statistic=median):.2f}",
                f"{measured.seconds(name, chunk, clock='cpu'):.2f}",
                f"{time / measured.seconds(name, full):.2f}",
                published[0],
                f"{memory / 1e6:.0f}",
                f"{memory / measured.memory(name, full):.2f}",
                published[1],
                f"{config.states(chunk) / 1e6:.0f}",
                f"{measured.memory(name, chunk, alone=True) / 1e6:.0f}" if alone else "",
            ))  # fmt: skip
    return markdown(rows)


def line(is_met, text):
    """Return the line of a verdict."""
    return f"- {'met' if is_met else 'NOT met'}: {text}"


def verdicts(measured):
    """Return the lines about what the thesis says."""
    lines = []
    for name, config in measured.configs.items():
        full, chunks = config.length, config.chunks
        memory = [measured.memory(name, chunk) for chunk in chunks]
        least = int(np.argmin(memory))
        falls = all(b <= 1.02 * a for a, b in zip(memory, memory[1:], strict=False))
        text = f"{name}: memory falls as E does, to that of the parameters"
        text += f": least at E = {chunks[least]}, {memory[least] / memory[0]:.2f} of full length"
        text += f", {memory[least] / measured.parameters(name):.1f} times the parameters"
        if not falls:
            text += (
                f"; below, it rises again, by {(memory[-1] - memory[least]) / 1e6:.0f} MB to the "
                f"last. The states that the library keeps between chunks grow by "
                f"{(config.states(chunks[-1]) - config.states(chunks[least])) / 1e6:.0f} MB there; "
                f"what is neither states nor gradient goes from "
                f"{measured.activations(name, chunks[least]) / 1e6:.0f} MB to "
                f"{measured.activations(name, chunks[-1]) / 1e6:.0f} MB"
            )
        lines.append(line(falls, text))
        ratios = [
            (measured.memory(name, e) - config.states(e)) / measured.memory(name, e, alone=True)
            for e in config.alone
        ]
        said = ", ".join(
            f"{ratio:.2f} at E = {e}" for e, ratio in zip(config.alone, ratios, strict=True)
        )
        lines.append(
            line(
                max(ratios) <= 1.15,
                f"{name}: only slightly more memory than a text of length E taken at once: times "
                f"{said} (states between chunks left out)",
            )
        )
        for chunk in chunks[1:]:
            if (name, chunk) not in PUBLISHED:
                continue
            own = measured.seconds(name, chunk) / measured.seconds(name, full)
            theirs = PUBLISHED[name, chunk][0] / PUBLISHED[name, full][0]
            lines.append(
                line(
                    own <= theirs,
                    f"{name}, E = {chunk}: time over that of full length at most the published "
                    f"{theirs:.2f} (table 5.2): {own:.2f}",
                )
            )
        own, theirs = slopes(measured, name)
        unit = 4 * config.width * config.n_layers
        lines.append(
            f"- told: {name}: memory a position of a chunk, over the sizes of table 5.2: "
            f"{own / 1e3:.0f} kB (published {theirs / 1e3:.0f} kB), in numbers of float32 a layer "
            f"{own / unit:.0f} d_hid ({theirs / unit:.0f} d_hid)"
        )
    config = measured.configs[DISCREPANCY]
    times = np.array([measured.seconds(DISCREPANCY, chunk) for chunk in config.chunks])
    local = np.diff(np.log(times)) / np.diff(np.log(config.chunks))
    small = f"E = {config.chunks[-1]} to {config.chunks[-2]}"
    large = f"E = {config.chunks[1]} to {config.chunks[2]}"
    lines.append(
        line(
            local[-1] < -0.5 and local[1] > -0.5,
            f"{DISCREPANCY}: two regimes of time, near 1/E for small E and flatter for large: "
            f"slope {local[-1]:.2f} for {small}, {local[1]:.2f} for {large}",
        )
    )
    found = [value for values in measured.discrepancies().values() for value in values]
    lines.append(
        line(
            max(found) <= 1e-4,
            f"{DISCREPANCY}: gradients differ from those of full length by 1e-6 to 1e-4 (figure "
            f"5.5): {min(found):.1e} to {max(found):.1e}",
        )
    )
    return lines


def slopes(measured, name):
    """Return bytes a position over the range of table 5.2, ours and published."""
    known = [e for e in measured.configs[name].chunks if (name, e) in PUBLISHED]
    first, last = known[0], known[-1]
    own = measured.memory(name, first) - measured.memory(name, last)
    theirs = 1e9 * (PUBLISHED[name, first][1] - PUBLISHED[name, last][1])
    return own / (first - last), theirs / (first - last)


def report(measured, threads):
    """Return the report in Markdown."""
    models = "; ".join(
        f"{name}: L = {c.length}, {c.n_layers} layer(s), d_hid = {c.width}"
        for name, c in measured.configs.items()
    )
    lines = "\n".join(verdicts(measured))
    rows = [("E", "relative discrepancy of the gradient, least to most")]
    rows += [(str(e), f"{min(v):.1e} to {max(v):.1e}") for e, v in measured.discrepancies().items()]
    return f"""\
# A Performer's gradient in chunks (thesis, figure 5.3, table 5.2, figure 5.5)

{models}.
Heads of width 64, M = 64 squares of the inputs themselves, d_ff = 4 d_hid, 256 tokens, float32,
batch 1, random text; {threads} thread(s) of {os.cpu_count()} processors; seeds of model and text 0
to {measured.n_rounds - 1}, a round each, in shuffled order. Ratios of time, and the plot, are of
{CLOCKS[measured.clock]}.

Memory is the peak over what was resident before the call, as the operating system counts it in a
process of its own: activations, the gradient and the states between chunks, not the parameters.
"States" is what the library keeps of attention between chunks, by count of its arrays: the thesis'
algorithm recomputes them by subtraction, its figure 5.4 keeps them as the library does.

{table(measured)}

Published: ratios of table 5.2, of an iteration with the optimiser on a P100 GPU; its memory also
holds parameters and the optimiser's state. Figure 5.3 itself has no numbers in the text, and its
configuration IV is III on texts four times as long, with the same memory at each E.

{markdown(rows, left=0)}

## Against what was published

{lines}
"""


def plot(measured):
    """Draw time and memory against the size of the chunks."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5.8), layout="constrained")
    smallest = {}
    for colour, (name, config) in zip(COLOURS, measured.configs.items(), strict=False):
        chunks, style = config.chunks, {"color": colour, "marker": "o", "markersize": 4}
        label = f"{name}: L = {config.length}, {config.n_layers} layer(s), d_hid = {config.width}"
        full = measured.seconds(name, config.length)
        times = [measured.seconds(name, e) / full for e in chunks]
        smallest[chunks[-1]] = times[-1]
        left.plot(chunks, times, label=label, **style)
        right.plot(chunks, [measured.memory(name, e) / 1e6 for e in chunks], **style)
        alone = [measured.memory(name, e, alone=True) / 1e6 for e in config.alone]
        right.plot(config.alone, alone, color=colour, linestyle="none", marker="x", markersize=9)
        states = [config.states(e) / 1e6 for e in chunks]
        right.plot(chunks, states, color=colour, linestyle=":")
        known = [e for e in chunks if (name, e) in PUBLISHED]
        theirs = [PUBLISHED[name, e][0] / PUBLISHED[name, config.length][0] for e in known]
        left.plot(known, theirs, "D", color=colour, markerfacecolor="none")
    least = min(smallest)
    guide = np.array([least, 8 * least])
    left.plot(guide, 0.7 * smallest[least] * least / guide, "k-.", label="proportional to 1/E")
    # Explained once, in black, for all colours.
    left.plot([], [], "kD", markerfacecolor="none", label="published (table 5.2)")
    right.plot([], [], "kx", markersize=9, label="a text of length E, taken at once")
    right.plot([], [], "k:", label="of it the states between chunks")
    left.set(title="time over that of full length", ylim=(0.7, None))
    floor = min(measured.memory(n, e) for n, c in measured.configs.items() for e in c.chunks)
    right.set(title="peak memory over that before the call, MB", ylim=(floor / 4e6, None))
    sizes = sorted({e for config in measured.configs.values() for e in config.chunks} - {1366})
    for axis, ticks in ((left, (1, 2, 5, 10, 20, 50)), (right, (20, 50, 100, 200, 500, 1000))):
        axis.set(xlabel="size of the chunks E", xscale="log", yscale="log")
        axis.set_xticks(sizes, sizes, rotation=45)
        low, high = axis.get_ylim()
        own = [tick for tick in ticks if low < tick < high]
        axis.set_yticks(own, own)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3)
    return figure
