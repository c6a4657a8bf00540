"""Whole transformers with attention by random features: time, and how errors grow with depth.

    python benchmarks/reproduce/transformer.py --only time      a quarter of an hour
    python benchmarks/reproduce/transformer.py --only errors    some minutes
    python benchmarks/reproduce/transformer.py --quick          both, smaller, under a minute

Likhosherstov's thesis, figures 3.4 and 3.5: seconds of a forward and a backward pass against the
length, for two sizes of a model and several numbers of layers. "returns V" leaves attention out:
the rest of the model is what no attention can undercut. Figure 3.7: the error of the output
after every layer of a model with random weights, against the same model with exact attention. There
stands beside it what attention to the mean of the values, which ignores queries, would do.

Needs torch. One thread; seconds are those of the processor, the least of several runs.
"""

import time
import warnings

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from _common import COLOURS, markdown, names, parser, publish, set_ticks
from torch import nn

from skrf import OptimalPositiveRF, PositiveRF
from skrf.exceptions import FeatureCollapseWarning
from skrf.torch import RandomFeatureAttention

SIZES = {"small": (1, 64, 64), "regular": (8, 512, 2048)}  # heads, width, width of the network
LENGTHS = {"small": (512, 1024, 2048, 4096, 8192, 16384), "regular": (512, 1024, 2048, 4096)}
DEPTHS, N_LAYERS = (1, 5, 10, 20), 6
M = 256  # components
METHODS = {
    "exact": lambda: F.scaled_dot_product_attention,
    "positive features": lambda: RandomFeatureAttention(PositiveRF(M), random_state=0),
    "returns V": lambda: lambda query, key, value: value,
}
ERRORS = {
    **{
        f"{what}, {m} components": lambda m=m, kind=kind: RandomFeatureAttention(
            kind(m), random_state=0
        )
        for what, kind in (("positive", PositiveRF), ("optimal positive", OptimalPositiveRF))
        for m in (64, 256)
    },
    "mean of the values": lambda: (
        lambda query, key, value: value.mean(dim=-2, keepdim=True).expand(value.shape)
    ),
}
SCALES = (1.0, 3.0, 6.0)  # of the projections to queries and keys, as at the start and sharper


class Layer(nn.Module):
    """Attention and a network, each on normalised rows and added to what came in."""

    def __init__(self, n_heads, width, hidden, scale):
        super().__init__()
        self.n_heads, self.scale = n_heads, scale
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.to_parts, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, rows, attend):
        """Return rows of the same shape (batch, length, width)."""
        parts = self.to_parts(self.norms[0](rows)).unflatten(-1, (3, self.n_heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        root = self.scale**0.5
        rows = rows + self.out(attend(root * query, root * key, value).transpose(1, 2).flatten(2))
        return rows + self.network(self.norms[1](rows))


def layers_of(size, n_layers, scale=1.0):
    torch.manual_seed(0)
    return nn.ModuleList([Layer(*SIZES[size], scale) for _ in range(n_layers)])


def seconds(size, n_layers, length, method, most=6.0):
    """Return the least seconds of a forward and a backward pass, of several up to some in all."""
    layers, attend = layers_of(size, n_layers), METHODS[method]()
    rows, found = torch.randn(1, length, SIZES[size][1]), []
    while len(found) < 2 or (sum(found) < most and len(found) < 5):
        start, output = time.process_time(), rows
        for layer in layers:
            output = layer(output, attend)
        output.sum().backward()
        found.append(time.process_time() - start)
        if found[0] > most:
            break
    return min(found)


def measure_time(quick):
    """Return {(size, layers): {method: seconds by length}}."""
    sizes = {"small": (256, 512)} if quick else LENGTHS
    cases = [(size, N_LAYERS, lengths) for size, lengths in sizes.items()]
    depths = (1, 2) if quick else DEPTHS
    cases += [("small", depth, sizes["small"][:4]) for depth in depths if depth != N_LAYERS]
    found = {}
    for size, depth, lengths in cases:
        rows = found[size, depth] = {method: {} for method in METHODS}
        for length in lengths:
            for method in METHODS:
                rows[method][length] = seconds(size, depth, length, method)
    return found


@torch.no_grad()
def measure_errors(quick):
    """Return {scale: {method: relative error after every layer}}."""
    size, length, n_layers = ("small", 128, 2) if quick else ("regular", 1024, 12)
    found = {}
    torch.manual_seed(1)
    start = torch.randn(1, length, SIZES[size][1])
    for scale in SCALES:
        layers, exact = layers_of(size, n_layers, scale), [start]
        for layer in layers:
            exact.append(layer(exact[-1], F.scaled_dot_product_attention))
        found[scale] = {}
        for name, make in ERRORS.items():
            attend, rows, errors = make(), start, []
            for layer, truth in zip(layers, exact[1:], strict=True):
                rows = layer(rows, attend)
                errors.append(((rows - truth).norm() / (truth - start).norm()).item())
            found[scale][name] = errors
    return found


def plot_time(found):
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), dpi=80, layout="constrained")
    shown = [key for key in found if key[1] == N_LAYERS]
    for axis, (size, depth) in zip(axes, shown, strict=False):
        for (method, values), colour in zip(found[size, depth].items(), COLOURS, strict=False):
            axis.loglog(values.keys(), values.values(), "o-", ms=3, color=colour, label=method)
        axis.set(title=f"{size} model, {depth} layers", xlabel="length")
        set_ticks(axis, list(values))
        axis.tick_params(axis="x", labelsize=8)
    depths = sorted(depth for size, depth in found if size == "small")
    length = max(found["small", depths[0]]["exact"])
    for method, colour in zip(METHODS, COLOURS, strict=False):
        values = [found["small", depth][method][length] for depth in depths]
        axes[2].loglog(depths, values, "o-", ms=3, color=colour)
    axes[2].set(title=f"small model, length {length}", xlabel="layers")
    set_ticks(axes[2], depths)
    axes[0].set_ylabel("seconds, forward and backward")
    axes[0].legend(fontsize=8)
    return figure


def report_time(found):
    parts = ["# Seconds of a forward and a backward pass\n"]
    for (size, depth), rows in found.items():
        lengths = list(rows["exact"])
        table = [(f"{size}, {depth} layers", *map(str, lengths))]
        table += [(name, *(f"{values[n]:.3g}" for n in lengths)) for name, values in rows.items()]
        over = [rows["positive features"][n] / rows["returns V"][n] for n in lengths]
        table.append(("features over returns V", *(f"{ratio:.2f}" for ratio in over)))
        parts.append(markdown(table) + "\n")
    return "\n".join(parts)


def plot_errors(found):
    options = {"sharey": True, "dpi": 80, "layout": "constrained"}
    figure, axes = plt.subplots(1, len(found), figsize=(10, 3.2), **options)
    for axis, (scale, rows) in zip(axes, found.items(), strict=True):
        for (name, errors), colour in zip(rows.items(), COLOURS, strict=False):
            axis.semilogy(range(1, len(errors) + 1), errors, "o-", ms=3, color=colour, label=name)
        axis.set(title=f"logits times {scale:g}", xlabel="layers")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("relative error of the output")
    axes[0].legend(fontsize=7)
    return figure


def report_errors(found):
    parts = ["# Relative errors of what layers add\n"]
    for scale, rows in found.items():
        n_layers = len(next(iter(rows.values())))
        shown = sorted({1, 2, 4, 8, n_layers} & set(range(1, n_layers + 1)))
        table = [(f"logits times {scale:g}, after layer", *map(str, shown))]
        table += [(name, *(f"{errors[n - 1]:.2g}" for n in shown)) for name, errors in rows.items()]
        parts.append(markdown(table) + "\n")
    return "\n".join(parts)


PARTS = {
    "time": (measure_time, plot_time, report_time),
    "errors": (measure_errors, plot_errors, report_errors),
}


def main():
    made = parser(__doc__)
    made.add_argument("--only", type=names(PARTS), default=tuple(PARTS), help="parts, by commas")
    options = made.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FeatureCollapseWarning)  # the errors show it
    for part in options.only:
        measure, plot, report = PARTS[part]
        found = measure(options.quick)
        publish(options, f"transformer_{part}", report(found), figure=plot(found))


if __name__ == "__main__":
    main()
