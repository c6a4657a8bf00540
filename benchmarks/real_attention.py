"""Measure attention on queries, keys and values of trained models, at equal costs.

python benchmarks/real_attention.py [--quick] [--seeds N]

The folder that SKRF_ATTENTION_DIR names has minilm_a.npz and minilm_b.npz (bidirectional), and
smollm2_a.npz and smollm2_b.npz (causal): arrays q, k, v of shape (layers, heads, L, d) of two
texts. The guide's page on attention shows how such arrays are taken from a model.

Statistics come from text a, and errors are those of text b: the mean over layers and heads of
|out - exact| / |exact|, over seeds where there are draws. A unit is d + e multiplications per
query, which is what an exact key costs. Prints a table for every model, and writes tables and a
plot for the guide; with --quick one seed, and nothing is written. Takes four minutes.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from skrf import (
    AdaptiveRF,
    DenseExponentialRF,
    GeneralizedExponentialRF,
    GeometricRF,
    HybridRF,
    OptimalPositiveRF,
    PoissonRF,
    PositiveRF,
    RFFSampler,
    SimplexRF,
    SimplexRFPlus,
)
from skrf.attention import ApproxKernelAttention, NearField, recommend_attention
from skrf.exceptions import FeatureCollapseWarning

VARIABLE = "SKRF_ATTENTION_DIR"
CAUSAL = {"minilm": False, "smollm2": True}
TITLES = {"minilm": "MiniLM, bidirectional", "smollm2": "SmolLM2, causal"}
GUIDE = Path(__file__).parents[1] / "docs" / "guide"
N_SEEDS = 3
BUDGETS = 32, 64, 128, 256, 512
SHOWN_BUDGETS = 128, 256, 512
N_FIRST = 4  # keys of a window, which language models put much weight on
PERFORMER_EPSILON, PERFORMER_SUM_EPSILON = 1e-4, 1e-6

optimal = OptimalPositiveRF
dense = partial(DenseExponentialRF, asymmetric=True)
adaptive = partial(AdaptiveRF, asymmetric=True)
MECHANISMS = {
    "PositiveRF": PositiveRF,
    "PositiveRF, hyperbolic": partial(PositiveRF, variant="hyperbolic"),
    "OptimalPositiveRF": optimal,
    "SimplexRF": SimplexRF,
    "SimplexRFPlus": SimplexRFPlus,
    "DenseExponentialRF": DenseExponentialRF,
    "DenseExponentialRF, asymmetric": dense,
    "AdaptiveRF": AdaptiveRF,
    "AdaptiveRF, asymmetric": adaptive,
    "RFFSampler": RFFSampler,
    "GeneralizedExponentialRF": GeneralizedExponentialRF,
    "PoissonRF, positive": partial(PoissonRF, positive=True),
    "GeometricRF, positive": partial(GeometricRF, positive=True),
    "HybridRF": HybridRF,
}


# ---------------------------------------------------------------- inputs


@dataclass(frozen=True)
class Layer:
    """One layer of a model on two texts, and exact attention of the second.

    Parameters
    ----------
    a, b : list of ndarray
        q, k and v of shapes (heads, L, d).
    causal : bool
        Whether attention is.
    """

    a: list
    b: list
    causal: bool

    @property
    def n_sharing(self):
        """Query heads of a key head."""
        return len(self.b[0]) // len(self.b[1])

    @property
    def values(self):
        """Values of every query head, in float64."""
        return np.repeat(self.b[2].astype(np.float64), self.n_sharing, axis=0)

    def logits(self):
        """Return logits (heads, L, L), -inf for later positions where causal."""
        q, k = (part.astype(np.float64) for part in self.b[:2])
        k = np.repeat(k, self.n_sharing, axis=0)
        found = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        return np.where(np.tri(len(found[0]), dtype=bool), found, -np.inf) if self.causal else found


def load(folder, model):
    """Return the layers of a model."""
    texts = []
    for text in "ab":
        with np.load(folder / f"{model}_{text}.npz") as arrays:
            texts.append([arrays[name].astype(np.float32) for name in "qkv"])
    return [
        Layer([part[n] for part in texts[0]], [part[n] for part in texts[1]], CAUSAL[model])
        for n in range(len(texts[0][0]))
    ]


def attended(logits, values):
    """Return softmax attention."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ values


# ---------------------------------------------------------------- methods


def mean_of_values(layer, logits, units, seed):
    """Every key that is seen has the same weight."""
    return attended(np.where(logits > -np.inf, 0.0, -np.inf), layer.values)


def random_keys(layer, logits, units, seed):
    """Every query has some of the keys that it sees, drawn for it alone."""
    order = np.random.default_rng(seed).random(logits.shape)
    order[logits == -np.inf] = 2.0
    least = np.sort(order, axis=-1)[..., min(units, logits.shape[-1]) - 1, None]
    return attended(np.where(order <= least, logits, -np.inf), layer.values)


def window(layer, logits, units, seed):
    """Every query has the first keys and the nearest: causal, before it, else on both sides."""
    i = np.arange(logits.shape[-1])
    reach = i[:, None] - i
    reach = reach if layer.causal else 2 * np.abs(reach)
    is_near = (i < N_FIRST) | (reach < units - N_FIRST)
    return attended(np.where(is_near, logits, -np.inf), layer.values)


def performer_pytorch(layer, logits, units, seed):
    """The formula of the package performer-pytorch: FAVOR+, less a largest exponent, plus 1e-4.

    Exponents of a query are taken less their largest, those of keys less the largest of the head.
    Then 1e-4 is added to every feature, and causal 1e-6 to every sum of them.
    """
    rng, (q, k) = np.random.default_rng(seed), (part.astype(np.float64) for part in layer.b[:2])
    width, m = q.shape[-1], int(units / (1 + 1 / layer.n_sharing))
    blocks = [np.linalg.qr(rng.normal(size=(width, width)))[0].T for _ in range(-(-m // width))]
    lengths = np.linalg.norm(rng.normal(size=(m, width)), axis=1)
    projections = lengths[:, None] * np.concatenate(blocks)[:m]

    def features(rows, axes):
        rows = rows / width**0.25
        products = rows @ projections.T
        exponents = products - np.sum(rows**2, axis=-1, keepdims=True) / 2
        exponents -= products.max(axis=axes, keepdims=True)
        return (np.exp(exponents) + PERFORMER_EPSILON) / np.sqrt(m)

    of_q, of_k = features(q, -1), np.repeat(features(k, (-2, -1)), layer.n_sharing, axis=0)
    weights = of_q @ of_k.swapaxes(1, 2)
    if not layer.causal:
        return weights @ layer.values / weights.sum(axis=-1, keepdims=True)
    weights = np.tril(weights)
    added = PERFORMER_SUM_EPSILON * of_q.sum(axis=-1, keepdims=True)
    return weights @ layer.values / (weights.sum(axis=-1, keepdims=True) + added)


def operator(make, layer, logits, units, seed, *, is_fitted=True):
    """One of this library's operators."""
    attention = make(seed, layer.causal)
    if is_fitted:
        attention.fit(*layer.a)
    return attention(*layer.b)


def recommended(layer, logits, units, seed):
    """What `recommend_attention` takes by text a alone."""
    advice = recommend_attention(*layer.a, budget=units, causal=layer.causal, random_state=seed)
    return advice.operator(*layer.b)


@dataclass(frozen=True)
class Method:
    """A way to compute attention.

    Parameters
    ----------
    group, name : str
        Names of the part of the table, and of the row.
    attend : callable
        Takes a layer, its logits, units and a seed, and returns the output.
    units : float
        What it costs a query.
    is_random : bool
        Whether there is anything to draw.
    """

    group: str
    name: str
    attend: Callable
    units: float = 0
    is_random: bool = True


def approximate(group, name, *, n=0, features=None, n_groups=1, field=None, sharing=1):
    """Return the `Method` of an operator of n features and a near field, fitted with values."""

    def make(seed, causal):
        own = features(n, random_state=seed) if n else "none"
        return ApproxKernelAttention(own, causal=causal, near=field, n_groups=n_groups)

    # Beside exact keys every query head has features of its own.
    units = n * (1 + 1 / sharing if field is None else 2)
    units += 0 if field is None else field.n_exact(causal=sharing > 1)
    return Method(group, name, partial(operator, make), units, n > 0)


def near_alone(units, causal, anchors):
    """Return a near field of a cost; `anchors` is their share."""
    n_blocks, n = (2, 4) if causal else (3, 0)
    n = max(n, round(anchors * units))
    return NearField((units - n) // n_blocks, n)


def methods(model, n_sharing):
    """Return the rows of the table."""
    causal = CAUSAL[model]
    own = partial(approximate, sharing=n_sharing)
    found = [Method("simple", "mean of the values", mean_of_values, is_random=False)]
    for units in SHOWN_BUDGETS:
        found += [
            Method("simple", "random keys", random_keys, units),
            Method("simple", "exact window", window, units, False),
            own("simple", "anchors alone", field=anchors_alone(units, causal)),
            Method("recommended", "recommend_attention, by text a", recommended, units),
        ]
    favor = 256 * (1 + 1 / n_sharing)
    alone, grouped = "256 features alone", "256 features alone, in 4 groups"
    found.append(Method(alone, "performer-pytorch (FAVOR+)", performer_pytorch, favor))
    found += [own(alone, name, n=256, features=make) for name, make in MECHANISMS.items()]
    for name in ("OptimalPositiveRF", "DenseExponentialRF, asymmetric", "AdaptiveRF, asymmetric"):
        found.append(own(grouped, name, n=256, features=MECHANISMS[name], n_groups=4))
    both = "near field"
    kinds = {"optimal": optimal, "dense": dense, "adaptive": adaptive}
    if causal:
        for block in (62, 126):
            field = NearField(block, 4)
            found.append(own(both, f"block {block}, 4 first keys alone", field=field))
            for kind in kinds:
                name = f"block {block}, 4 first keys, 128 {kind} features"
                found.append(own(both, name, n=128, features=kinds[kind], field=field))
    else:
        for block, anchors, n in ((16, 64, 144), (8, 16, 24)):
            field = NearField(block, anchors)
            found.append(own(both, f"block {block}, {anchors} anchors alone", field=field))
            for kind in kinds:
                name = f"block {block}, {anchors} anchors, {n} {kind} features in 4 groups"
                found.append(own(both, name, n=n, features=kinds[kind], n_groups=4, field=field))
    found += defaults(causal, n_sharing)
    order = list(dict.fromkeys(method.group for method in found))
    return sorted(found, key=lambda method: order.index(method.group))


def defaults(causal, n_sharing):
    """Return the operator as it comes, not fitted and fitted."""

    def make(seed, causal):
        return ApproxKernelAttention(OptimalPositiveRF(64, random_state=seed), **as_default)

    field = NearField(128, 16) if causal else NearField(32, 64)
    as_default = {"near": field, "n_groups": 1 if causal else 2, "causal": causal}
    exact = field.n_exact(causal=causal)
    return [
        Method("default", name, partial(operator, make, is_fitted=is_fitted), exact + 64 * feature)
        for name, is_fitted, feature in (
            ("default, not fitted", False, 1 + 1 / n_sharing),
            ("default, fitted", True, 2),
        )
    ]


def anchors_alone(units, causal):
    """Return a near field of anchors, and the fewest near keys that there can be."""
    return NearField(1, units - (2 if causal else 3))


def curves(causal, n_sharing):
    """Return {name: [method of every budget]} of the plot."""
    kind, share = (adaptive, 0.25) if causal else (dense, 0.25)
    own = partial(approximate, "", sharing=n_sharing)
    found = {}
    for units in BUDGETS:
        n_alone = int(units / (1 + 1 / n_sharing)) // 4 * 4
        n_both = round(share * units / 2 / 4) * 4
        anchors = 0 if causal else 0.5
        field = near_alone(units, causal, anchors)
        beside = near_alone(units - 2 * n_both, causal, anchors)
        at_these = {
            "random keys": Method("", "", random_keys, units),
            "exact window": Method("", "", window, units, False),
            "anchors alone": own("", field=anchors_alone(units, causal)),
            "performer-pytorch (FAVOR+)": Method("", "", performer_pytorch, units),
            "OptimalPositiveRF alone": own("", n=n_alone, features=optimal),
            "AdaptiveRF in 4 groups alone": own("", n=n_alone, features=adaptive, n_groups=4),
            "near field alone": own("", field=field),
            "near field and features": own(
                "", n=n_both, features=kind, n_groups=1 if causal else 4, field=beside
            ),
            "recommend_attention": Method("", "", recommended, units),
        }
        for name, method in at_these.items():
            found.setdefault(name, []).append(method)
    return found


# ---------------------------------------------------------------- measuring


class Bench:
    """Errors on the layers of a model."""

    def __init__(self, layers, n_seeds):
        self.layers, self.n_seeds = layers, n_seeds
        self.logits = [layer.logits() for layer in layers]
        pairs = zip(layers, self.logits, strict=True)
        self.exact = [attended(logits, layer.values) for layer, logits in pairs]

    def error(self, method, units=None):
        """Return the mean error over seeds, layers and heads."""
        units = round(method.units) if units is None else units
        errors = []
        for layer, logits, exact in zip(self.layers, self.logits, self.exact, strict=True):
            for seed in range(self.n_seeds if method.is_random else 1):
                out = method.attend(layer, logits, units, seed)
                squares = [np.sum(part**2, axis=(1, 2)) for part in (out - exact, exact)]
                errors.append(np.sqrt(squares[0] / squares[1]))
        return np.mean(errors)

    def of_window(self, units):
        """Return the error of an exact window."""
        return self.error(Method("", "", window, units, False))


def table_of(bench, model):
    """Return (group, name, units, error, error of a window of the same cost) of every row."""
    rows = []
    for method in methods(model, bench.layers[0].n_sharing):
        units = round(method.units)
        of_window = bench.of_window(units) if units else np.nan
        rows.append((method.group, method.name, units, bench.error(method), of_window))
        print(f"{model}: {method.name}, {units}: {rows[-1][3]:.3f}", file=sys.stderr, flush=True)
    return rows


# ---------------------------------------------------------------- report

HEADS = "method", "units", "error", "window of as many units"


def cells(row):
    """Return the texts of a row without its group."""
    _, name, units, error, of_window = row
    return name, str(units), f"{error:.3f}", "" if np.isnan(of_window) else f"{of_window:.3f}"


def aligned(rows):
    """Return the table as it is printed."""
    texts = [HEADS, *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines, group = [], None
    for row, text in zip([None, *rows], texts, strict=True):
        if row is not None and row[0] != group:
            group = row[0]
            lines.append(f"-- {group}")
        name, *numbers = text
        padded = [f"{part:>{n}}" for part, n in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([f"{name:{widths[0]}}", *padded]))
    return "\n".join(lines)


def as_rst(title, rows):
    """Return the table as reStructuredText."""
    lines = [f".. list-table:: {title}", "   :header-rows: 1", "   :class: wide", ""]
    for row in [("", *HEADS), *((row[0], *cells(row)) for row in rows)]:
        lines += [f"   * - {row[0]}".rstrip(), *(f"     - {cell}".rstrip() for cell in row[1:])]
    return "\n".join(lines) + "\n"


# Okabe and Ito's palette, which colour-blind readers can tell apart; grey for what is simple.
STYLES = {
    "random keys": {"color": "#7F7F7F", "linestyle": ":"},
    "exact window": {"color": "#000000", "linestyle": "--"},
    "anchors alone": {"color": "#7F7F7F", "linestyle": "-."},
    "performer-pytorch (FAVOR+)": {"color": "#CC79A7", "marker": "v"},
    "OptimalPositiveRF alone": {"color": "#E69F00", "marker": "^"},
    "AdaptiveRF in 4 groups alone": {"color": "#D55E00", "marker": "s"},
    "near field alone": {"color": "#56B4E9", "marker": "D"},
    "near field and features": {"color": "#0072B2", "marker": "o"},
    "recommend_attention": {"color": "#009E73", "marker": "*", "markersize": 9},
}


def plot(benches, path):
    """Draw errors against the cost, a panel for every model."""
    figure, axes = plt.subplots(1, len(benches), figsize=(11, 5), layout="constrained")
    for axis, (model, bench) in zip(axes, benches.items(), strict=True):
        n_sharing = bench.layers[0].n_sharing
        for name, own in curves(CAUSAL[model], n_sharing).items():
            errors = [bench.error(method) for method in own]
            axis.plot([method.units for method in own], errors, label=name, **STYLES[name])
        plain = bench.error(Method("", "", mean_of_values, is_random=False))
        axis.axhline(plain, color="#7F7F7F", linewidth=0.8, label="mean of the values")
        first = defaults(CAUSAL[model], n_sharing)[0]
        style = {"color": "#000000", "marker": "P", "markersize": 9, "linestyle": ""}
        axis.plot(first.units, bench.error(first), label="default, not fitted", **style)
        axis.set(title=TITLES[model], xlabel="units per query", xscale="log", yscale="log")
        axis.set_xticks(BUDGETS, BUDGETS)
        ticks = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
        axis.set_yticks(ticks, ticks)
        axis.set_ylim(ticks[0], 2)  # all 512 keys of MiniLM's sequences have no error
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("relative error of the output")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=110)


def main():
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one seed, nothing is written")
    parser.add_argument("--seeds", type=int, default=N_SEEDS, help="draws of every method")
    arguments = parser.parse_args()
    folder = os.environ.get(VARIABLE)
    if not folder:
        parser.exit(
            1,
            f"{VARIABLE} is not set. Set it to a folder with the files that the head of this file "
            "names; the guide's page on attention shows how to make them.\n",
        )
    n_seeds = 1 if arguments.quick else arguments.seeds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FeatureCollapseWarning)  # the table says it
        benches = {model: Bench(load(Path(folder), model), n_seeds) for model in CAUSAL}
        tables = {model: table_of(bench, model) for model, bench in benches.items()}
        for model, rows in tables.items():
            print(TITLES[model], aligned(rows), "", sep="\n")
        if arguments.quick:
            return
        texts = [as_rst(TITLES[model], rows) for model, rows in tables.items()]
        (GUIDE / "_real_attention.txt").write_text("\n".join(texts))
        plot(benches, GUIDE / "real_attention.png")


if __name__ == "__main__":
    main()
