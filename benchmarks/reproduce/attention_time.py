"""Time and peak memory of attention against length: figure 3.3 of the thesis.

    python benchmarks/reproduce/attention_time.py            an hour, up to 65,536 positions
    python benchmarks/reproduce/attention_time.py --quick    up to 1,024 positions

Likhosherstov, Random features for efficient attention approximation (thesis), which says "nearly
linear" of Performers and "quadratic" of Transformers. Every case is a process of its own with one
thread. A round runs all methods of a length one after the other in shuffled order; times are those
of the processor, which are wall times on a quiet machine, of the fastest repetition of all rounds.
Memory is the peak over what was resident before the call. Needs torch; performer-pytorch is
measured where it is installed.
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from _common import COLOURS, markdown, parser, publish, set_ticks
from torch.nn.functional import scaled_dot_product_attention

from skrf import OptimalPositiveRF
from skrf.attention import ApproxKernelAttention
from skrf.torch import RandomFeatureAttention

sys.path.append(str(Path(__file__).parents[1]))
from _memory import peak_memory

SEED = 0
HEADS, WIDTH, N_COMPONENTS, STD = 8, 64, 256, 0.5  # "Regular" of the thesis; M is ours
SHORTEST, LONGEST, LONGEST_QUICK = 512, 65_536, 1024
WARM_UP_LENGTH, MOST_REPETITIONS = 64, 7
LIMIT = 10.0  # exact attention gets no longer inputs after a pass of so many seconds
MATRICES = 5  # arrays of the size of the matrix that a gradient through it needs, at most
FROM = 2048  # slopes are those of longer inputs
PASSES = {"forward": "forward", "both": "forward and backward"}
METHODS = {  # and their colours
    "ours": COLOURS[0],
    "ours, causal": COLOURS[0],
    "exact, whole matrix": COLOURS[1],
    "exact, fused": COLOURS[2],
    "exact, fused, causal": COLOURS[2],
    "performer-pytorch": COLOURS[4],
    "performer-pytorch, causal": COLOURS[4],
}


# ---------------------------------------------------------------- one case, in its own process


def attention(name):
    """Return a function of q, k, v for the forward pass, and one that has gradients.

    They differ for ours, which computes with NumPy where no gradient is needed.
    """
    causal = name.endswith(", causal")
    if name.startswith("ours"):
        features = OptimalPositiveRF(N_COMPONENTS, random_state=SEED)
        operator = ApproxKernelAttention(features, causal=causal)
        module = RandomFeatureAttention(features, is_causal=causal)
        return lambda *inputs: operator(*(tensor.numpy() for tensor in inputs)), module
    if name.startswith("performer"):
        from performer_pytorch import FastAttention

        torch.manual_seed(SEED)
        attend = FastAttention(dim_heads=WIDTH, nb_features=N_COMPONENTS, causal=causal)
    elif "fused" in name:
        attend = partial(scaled_dot_product_attention, is_causal=causal)
    else:
        attend = whole_matrix
    return attend, attend


def whole_matrix(q, k, v):
    """Return exact attention that holds its matrix, as Transformers of 2020 did."""
    return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1) @ v


def passes(name, length):
    """Return calls of the forward pass, and of the forward and the backward pass."""
    rng = np.random.default_rng(SEED)
    arrays = rng.standard_normal((4, 1, HEADS, length, WIDTH), dtype=np.float32)
    arrays[:2] *= STD
    *inputs, gradient = map(torch.from_numpy, arrays)
    without_gradient, with_gradient = attention(name)

    def forward():
        with torch.no_grad():
            return without_gradient(*inputs)

    def both():
        own = [tensor.detach().requires_grad_() for tensor in inputs]
        return torch.autograd.grad(with_gradient(*own), own, gradient)

    return {"forward": forward, "both": both}


def measure(call, seconds):
    """Return the least seconds of repeated calls, and the growth of the peak memory in bytes.

    The first call also pays for caches and fresh pages: its time counts where it is the only one.
    """
    # What was freed is given back first, or the call would use it again, unseen.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):  # sets the peak back to what is resident now
        Path("/proc/self/clear_refs").write_text("5")
    before, began, times = peak_memory(), time.perf_counter(), []
    while len(times) <= MOST_REPETITIONS:
        start = time.process_time()
        result = call()
        times.append(time.process_time() - start)
        del result  # or two results would be alive in the next call
        if time.perf_counter() - began > seconds:
            break
    return {"seconds": min(times[1:] or times), "memory": peak_memory() - before}


def run_case(name, length, seconds):
    """Print the measurements of both passes of a method."""
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(sys.stderr):  # packages may print while they load
        for call in passes(name, WARM_UP_LENGTH).values():
            call()
        calls = passes(name, length)
        measurements = {which: measure(call, seconds) for which, call in calls.items()}
    print(json.dumps(measurements))


# ---------------------------------------------------------------- all cases


def run_child(name, length, seconds):
    """Run a case in a process of its own; return its measurements, or the last line of an error."""
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL", "NUMBA")}
    command = [sys.executable, __file__, "--case", name, str(length), str(seconds)]
    done = subprocess.run(command, env=os.environ | threads, capture_output=True, text=True)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
    return json.loads(done.stdout)


def available_memory():
    """Return the bytes that can be had, or infinity where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    return float("inf")


def reason_to_end(name, length, records):
    """Return why a method is not run at a length, or None."""
    shorter = records.get((name, length // 2))
    if isinstance(shorter, str):
        return "shorter inputs ended"
    if "matrix" in name and MATRICES * HEADS * length**2 * 4 > 0.8 * available_memory():
        return "memory"
    if shorter is None or name.startswith("ours"):
        return None
    slowest = max(one_pass["seconds"] for one_pass in shorter.values())
    return f"over {LIMIT:g} s at L = {length // 2}" if slowest > LIMIT else None


def measure_all(methods, lengths, n_rounds, seconds):
    """Return {(method, length): {pass: seconds and memory}, or the text why there are none}."""
    records, shuffle = {}, random.Random(SEED).shuffle
    for number in range(n_rounds):
        for length in lengths:
            order = list(methods)
            shuffle(order)
            for name in order:
                earlier = records.get((name, length))
                if isinstance(earlier, str):
                    continue
                why = None if number else reason_to_end(name, length, records)
                new = why or run_child(name, length, seconds)
                if earlier is None or isinstance(new, str):
                    records[name, length] = new
                    continue
                for which, values in earlier.items():
                    values["seconds"] = min(values["seconds"], new[which]["seconds"])
                    values["memory"] = max(values["memory"], new[which]["memory"])
    return records


# ---------------------------------------------------------------- report


def series(records, name, which, quantity):
    """Return {length: seconds or bytes} of a pass of a method."""
    return {
        length: record[which][quantity]
        for (method, length), record in sorted(records.items())
        if method == name and not isinstance(record, str)
    }


def table(records, methods, lengths):
    """Return the Markdown table of all cases."""
    heads = [f"{label}, {unit}" for label in PASSES.values() for unit in ("ms", "MB")]
    rows = [("L", "method", *heads)]
    for length in lengths:
        for name in methods:
            record, cells = records[name, length], []
            if isinstance(record, str):
                cells = [record, "", "", ""]
            else:
                for which in PASSES:
                    values = 1e3 * record[which]["seconds"], record[which]["memory"] / 1e6
                    cells += [f"{value:.1f}" for value in values]
            rows.append((str(length), name, *cells))
    return markdown(rows, left=2)


def slope(values):
    """Return the power of the length with which values grow from FROM on, as text."""
    points = [(length, value) for length, value in values.items() if length >= FROM]
    if len(points) < 2:
        return ""
    return f"{np.polyfit(*np.log(np.transpose(points)), 1)[0]:.2f}"


def growth(records, methods):
    """Return table rows: powers of the length, and from where on ours is faster."""
    rows = [("method", "pass", "time grows as L^", "memory as L^", "ours faster from", "at last")]
    for which, label in PASSES.items():
        for name in methods:
            theirs = series(records, name, which, "seconds")
            powers = slope(theirs), slope(series(records, name, which, "memory"))
            base = "ours, causal" if name.endswith("causal") else "ours"
            ours, start, ratio = series(records, base, which, "seconds"), "", ""
            if name != base and theirs:
                slower = [length for length in theirs if ours[length] >= theirs[length]]
                longer = [length for length in theirs if length > max(slower, default=0)]
                start, last = f"{longer[0]}" if longer else "nowhere", max(theirs)
                ratio = f"{theirs[last] / ours[last]:.1f} times at {last:,}"
            rows.append((name, label, *powers, start, ratio))
    return rows


def plot(records, methods, lengths):
    """Draw times of both passes, and the memory of the longer one, against length."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 5), dpi=80, layout="constrained")
    panels = [
        ("forward, seconds", "forward", "seconds", 1),
        ("forward and backward, seconds", "both", "seconds", 1),
        ("forward and backward, peak memory in MB", "both", "memory", 1e6),
    ]
    guide = np.array(lengths, dtype=float)
    for axis, (title, which, quantity, unit) in zip(axes, panels, strict=True):
        for name in methods:
            values = series(records, name, which, quantity)
            style = {"color": METHODS[name], "marker": "o", "markersize": 4, "label": name}
            style["linestyle"] = "--" if name.endswith("causal") else "-"
            axis.plot(values.keys(), [value / unit for value in values.values()], **style)
        start = records["ours", lengths[0]][which][quantity] / unit / 2
        for power, line in ((1, ":"), (2, "-.")):
            label = f"slope {power}"
            axis.plot(guide, start * (guide / guide[0]) ** power, line, color="0.6", label=label)
        axis.set(title=title, xlabel="length L", xscale="log", yscale="log")
        set_ticks(axis, lengths)
        axis.minorticks_off()
        axis.tick_params(axis="x", rotation=45)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def main():
    """Measure; write table and plot."""
    made = parser(__doc__)
    made.add_argument("--case", nargs=3, help="for the processes of the cases")
    options = made.parse_args()
    if options.case:
        name, length, seconds = options.case
        return run_case(name, int(length), float(seconds))
    has_peer = importlib.util.find_spec("performer_pytorch")
    methods = [name for name in METHODS if has_peer or "performer" not in name]
    longest = LONGEST_QUICK if options.quick else LONGEST
    lengths = [SHORTEST << i for i in range(32) if SHORTEST << i <= longest]
    n_rounds, seconds = (1, 0.2) if options.quick else (3, 2.0)
    records = measure_all(methods, lengths, n_rounds, seconds)
    text = f"""\
# Time of attention against length (thesis, figure 3.3)

Batch 1, {HEADS} heads, d = {WIDTH}, M = {N_COMPONENTS} (OptimalPositiveRF), float32, q and k normal
with standard deviation {STD}; one thread, {n_rounds} round(s) in shuffled order.

{table(records, methods, lengths)}

## Growth from L = {FROM} on

{markdown(growth(records, methods), left=2)}
"""
    publish(options, "attention_time", text, figure=plot(records, methods, lengths))


if __name__ == "__main__":
    main()
