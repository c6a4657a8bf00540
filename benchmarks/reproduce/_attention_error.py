"""Error of approximate attention against the number of features (thesis, figure 3.6)."""

import math
import warnings
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from _common import COLOURS, describe, markdown, save_figure, save_report

from skrf import AdaptiveRF, DenseExponentialRF, OptimalPositiveRF, PositiveRF, RFFSampler
from skrf.exceptions import FeatureCollapseWarning

LENGTH, WIDTH = 4096, 16
QUICK_LENGTH = 1024
ROWS = 512  # queries at a time: the matrix is never whole
SEEDS, QUICK_SEEDS = 10, 2
COMPONENTS, QUICK_COMPONENTS = (16, 32, 64, 128, 256, 512), (16, 64, 256)
STDS, QUICK_STDS = (0.5, 1.0), (0.5,)  # of q and k, against the number of features
SWEPT_STDS, QUICK_SWEPT_STDS = (0.125, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4), (0.25, 0.5, 1.0)
SWEPT_COMPONENTS = 128
# Closed forms of orthogonal maps are series, a few microseconds per pair: some queries, all keys.
CLOSED_ROWS, QUICK_CLOSED_ROWS = 128, 16

# The maps of the papers do not centre; the library's do by default.
METHODS = {
    "trigonometric iid": partial(RFFSampler, coupling="iid"),
    "trigonometric": RFFSampler,
    "positive iid": partial(PositiveRF, coupling="iid", center=False),
    "positive": partial(PositiveRF, center=False),
    "optimal positive": OptimalPositiveRF,
    "dense": DenseExponentialRF,
    "adaptive": AdaptiveRF,
}
CLOSED = tuple(METHODS)[:5]  # those whose variance is known exactly
MEAN = "mean of the values"
KINDS = {"matrix": "matrix A", "output": "output"}


# ---------------------------------------------------------------- measuring


def make_inputs(length, std, seed):
    """Return q, k and v: normal entries, times std in q and k."""
    rng = np.random.default_rng(seed)
    q, k, v = rng.normal(size=(3, length, WIDTH))
    return std * q, std * k, v


def measure(method, length, std, n_components, seed):
    """Return errors of one draw on one set of inputs.

    Errors are mean squares over those of the exact matrix or output: 1 is the error of zeros.
    `negative` is the share of queries whose denominator is not positive.
    """
    q, k, v = make_inputs(length, std, seed)
    if method != MEAN:
        own = fitted(method, q, k, n_components, seed)
        queries, keys = own.transform(q), own.transform_keys(k)
    squares = dict.fromkeys(("A", "dA", "O", "dO"), 0.0)
    n_negative = 0
    for start in range(0, length, ROWS):
        rows = slice(start, start + ROWS)
        A = np.exp(q[rows] @ k.T / math.sqrt(WIDTH))
        out = A @ v / A.sum(axis=1, keepdims=True)
        squares["A"] += np.sum(A**2)
        squares["O"] += np.sum(out**2)
        if method == MEAN:
            squares["dO"] += np.sum((v.mean(axis=0) - out) ** 2)
            continue
        approximate = queries[rows] @ keys.T
        totals = approximate.sum(axis=1, keepdims=True)
        n_negative += int(np.sum(totals <= 0))
        squares["dA"] += np.sum((approximate - A) ** 2)
        squares["dO"] += np.sum((approximate @ v / totals - out) ** 2)
    return {
        "matrix": squares["dA"] / squares["A"],
        "output": squares["dO"] / squares["O"],
        "negative": n_negative / length,
    }


def fitted(method, q, k, n_components, seed):
    """Return a map fitted to queries and keys, for logits divided by sqrt(d)."""
    return METHODS[method](
        n_components, kernel="softmax", sigma=WIDTH**-0.25, random_state=seed
    ).fit(q, keys=k)


def expect(method, length, std, seed, n_rows):
    """Return the expected error of the matrix: its variance in closed form, for some queries."""
    q, k, _ = make_inputs(length, std, seed)
    own = fitted(method, q, k, SWEPT_COMPONENTS, seed)
    exact = np.exp(q[:n_rows] @ k.T / math.sqrt(WIDTH))
    return float(np.sum(own.kernel_variance(q[:n_rows], k)) / np.sum(exact**2))


class Errors:
    """All records: errors by method, std and number of features, an entry a seed."""

    def __init__(self, n_seeds, n_rows):
        self.n_seeds, self.n_rows, self.records, self.closed = n_seeds, n_rows, {}, {}

    def add(self, method, length, std, m):
        """Measure a method."""
        records = [measure(method, length, std, m, seed) for seed in range(self.n_seeds)]
        self.records[method, std, m] = records

    def expected(self, method, std):
        """Return expected errors of the matrix, shape (seeds,); infinite where they overflow."""
        return np.array(self.closed[method, std])

    def __call__(self, kind, method, std, m):
        """Return what was measured, shape (seeds,)."""
        records = self.records[method, std, 0 if method == MEAN else m]
        return np.array([record[kind] for record in records])

    def ratio(self, kind, method, base, std, components):
        """Return error / error of base as text: geometric mean, log and its standard error."""
        logs = np.mean(
            [np.log(self(kind, method, std, m) / self(kind, base, std, m)) for m in components],
            axis=0,
        )
        mean, error = logs.mean(), logs.std(ddof=1) / math.sqrt(len(logs))
        return f"{math.exp(mean):.3g} (log {mean:+.3f} ± {error:.3f})"


def run(options):
    """Measure, write table and plot."""
    quick = options.quick
    length = QUICK_LENGTH if quick else LENGTH
    components = QUICK_COMPONENTS if quick else COMPONENTS
    stds = QUICK_STDS if quick else STDS
    swept = QUICK_SWEPT_STDS if quick else SWEPT_STDS
    n_seeds = options.seeds or (QUICK_SEEDS if quick else SEEDS)
    errors = Errors(n_seeds, QUICK_CLOSED_ROWS if quick else CLOSED_ROWS)
    points = {(std, m) for std in stds for m in components}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FeatureCollapseWarning)  # it shows in the table
        for std, m in sorted(points | {(std, SWEPT_COMPONENTS) for std in swept}):
            for method in METHODS:
                errors.add(method, length, std, m)
        for std in sorted({*stds, *swept}):
            errors.add(MEAN, length, std, 0)
            for method in CLOSED:
                values = [expect(method, length, std, s, errors.n_rows) for s in range(n_seeds)]
                errors.closed[method, std] = values
    name = "attention_error_quick" if quick else "attention_error"
    save_report(report(errors, length, stds, swept, components), options.results, name)
    # The first size of the inputs only: at the larger one all features have collapsed.
    figure = plot(errors, stds[:1], swept, components)
    save_figure(figure, options.results, name, docs=options.docs and not quick, dpi=80)


# ---------------------------------------------------------------- report


def cell(values):
    """Return mean and standard error over seeds as text."""
    mean, error = values.mean(), values.std(ddof=1) / math.sqrt(len(values))
    if 0 < mean < 0.01 or mean >= 1000:
        return f"{mean:.2g} ± {error:.1g}"
    return describe(mean, error, 4 if mean < 1 else 2)


def orders(errors, stds, swept, components):
    """Return table rows: ratios of errors whose order was published."""
    rows = [("std", "matrix", "closed form", "output")]
    for std in sorted({*stds, *swept}):
        own = components if std in stds else (SWEPT_COMPONENTS,)
        for method in ("trigonometric", "positive"):
            cells = [errors.ratio(kind, method, f"{method} iid", std, own) for kind in KINDS]
            closed = errors.expected(method, std) / errors.expected(f"{method} iid", std)
            name = f"{std}, {method}: orthogonal / iid"
            rows.append((name, cells[0], f"{closed.mean():.4f}", cells[1]))
        ratio = errors.ratio("output", "positive", "trigonometric", std, (SWEPT_COMPONENTS,))
        rows.append((f"{std}: positive / trigonometric", "", "", ratio))
    return rows


def report(errors, length, stds, swept, components):
    """Return the report in Markdown."""
    parts = []
    for std in stds:
        rows = [("error of", "method", *(f"M = {m}" for m in components))]
        for kind, label in KINDS.items():
            rows += [
                (label, method, *(cell(errors(kind, method, std, m)) for m in components))
                for method in METHODS
            ]
        plain = cell(errors("output", MEAN, std, 0))
        rows.append(("output", MEAN, *[plain] * len(components)))
        parts.append(f"## Standard deviation {std} of q and k\n\n{markdown(rows, left=2)}\n")
    rows = [("error of", "method", *(f"std {std}" for std in swept))]
    for kind, label in KINDS.items():
        for method in METHODS:
            own = [errors(kind, method, std, SWEPT_COMPONENTS) for std in swept]
            rows.append((label, method, *map(cell, own)))
            if kind == "matrix" and method in CLOSED:
                own = [errors.expected(method, std) for std in swept]
                rows.append((label, "... closed form", *map(cell, own)))
    rows.append(("output", MEAN, *(cell(errors("output", MEAN, std, 0)) for std in swept)))
    negative = [errors("negative", "trigonometric", std, SWEPT_COMPONENTS) for std in swept]
    rows.append(("share of queries", "trigonometric: denominator <= 0", *map(cell, negative)))
    return f"""\
# Error of approximate attention (thesis, figure 3.6)

L = {length}, d = {WIDTH}, one head, float64; entries of q and k normal with the standard deviation
that is said, of v with 1; logits divided by sqrt(d). M counts real columns: trigonometric maps
have M/2 projections. Errors are mean squares over the mean square of the exact matrix
A = exp(q k' / sqrt(d)) or output; mean and standard error over {errors.n_seeds} seeds, each of
which sets inputs and draw.

{chr(10).join(parts)}
## Against the size of the inputs, M = {SWEPT_COMPONENTS}

{markdown(rows, left=2)}

Closed forms: the exact variance of the estimate of A, summed over {errors.n_rows} queries and all
keys. Where it is far above what draws show, rare draws hold most of the error.

## Ratios of errors

Published: orthogonal below independent (thesis; its features are trigonometric), and positive below
trigonometric for the output (Choromanski et al., 2021, figure 4, with the same L and d).

{markdown(orders(errors, stds, swept, components))}
"""


def plot(errors, stds, swept, components):
    """Draw errors of the matrix (above) and of the output, against M and against the inputs."""
    figure, axes = plt.subplots(
        2, len(stds) + 1, figsize=(4.2 * len(stds) + 4.2, 7.6), layout="constrained", squeeze=False
    )
    panels = [
        (f"inputs of standard deviation {std}", "number of features M", components,
         [(std, m) for m in components])
        for std in stds
    ]  # fmt: skip
    panels.append(
        (f"M = {SWEPT_COMPONENTS}", "standard deviation of q and k", swept,
         [(std, SWEPT_COMPONENTS) for std in swept])
    )  # fmt: skip
    for line, (kind, label) in zip(axes, KINDS.items(), strict=True):
        for axis, (title, name, ticks, points) in zip(line, panels, strict=True):
            for i, method in enumerate(METHODS):
                own = np.array([errors(kind, method, *point) for point in points])
                is_iid = method.endswith("iid")
                axis.errorbar(
                    ticks,
                    own.mean(axis=1),
                    own.std(axis=1, ddof=1) / math.sqrt(errors.n_seeds),
                    color=COLOURS[(0, 0, 1, 1, 2, 3, 6)[i]],
                    # Dashed, because dense lies on optimal positive where inputs are isotropic.
                    linestyle=":" if is_iid else "--" if method == "dense" else "-",
                    marker="o" if is_iid else "d" if method == "dense" else "s",
                    markerfacecolor="none" if is_iid else None,
                    markersize=4,
                    label=method,
                )
            if kind == "output":
                plain = [errors("output", MEAN, *point).mean() for point in points]
                axis.plot(ticks, plain, color=COLOURS[7], linewidth=3, alpha=0.5, label=MEAN)
            axis.set(xscale="log", yscale="log", xlabel=name, title=title)
            # Means of trigonometric outputs with denominators near 0 are of any size.
            bottom, top = axis.get_ylim()
            axis.set_ylim(bottom, min(top, 30 if kind == "output" else 1e4))
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
        line[0].set_ylabel(f"relative mean squared error, {label}")
    figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
