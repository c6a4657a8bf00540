"""Error of approximate attention against the number of features: figure 3.6 of the thesis.

    python benchmarks/reproduce/attention_error.py            some minutes
    python benchmarks/reproduce/attention_error.py --quick    shorter inputs, two seeds

Likhosherstov, Random features for efficient attention approximation (thesis). Its figure has no
numbers in the text; what is checked are the orders that it states. Errors are mean squares over
those of the exact matrix or output, so that 1 is the error of zeros; every seed sets inputs and
draw.
"""

import math
import warnings
from dataclasses import dataclass
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from _common import COLOURS, describe, markdown, parser, publish, set_ticks, summarize

from skrf import AdaptiveRF, DenseExponentialRF, OptimalPositiveRF, PositiveRF, RFFSampler
from skrf.exceptions import FeatureCollapseWarning

WIDTH = 16
ROWS = 512  # queries at a time: the matrix is never whole
N_SWEPT = 128  # components where the size of the inputs varies

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
KINDS = {"matrix": "matrix A", "output": "output"}
MEAN = "mean of the values"


@dataclass(frozen=True)
class Setting:
    """What is measured; the closed forms are sums over some queries and all keys.

    Those of orthogonal maps are series, which take microseconds a pair.
    """

    length: int = 4096
    n_seeds: int = 10
    n_rows: int = 128  # of the closed forms
    components: tuple = (16, 32, 64, 128, 256, 512)
    stds: tuple = (0.5, 1.0)  # of q and k, against the number of components
    swept: tuple = (0.125, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4)


QUICK = Setting(1024, 2, 16, (16, 64, 256), (0.5,), (0.25, 0.5, 1.0))


# ---------------------------------------------------------------- measuring


def make_inputs(length, std, seed):
    """Return q, k and v: normal entries, times std in q and k."""
    q, k, v = np.random.default_rng(seed).normal(size=(3, length, WIDTH))
    return std * q, std * k, v


def fitted(method, q, k, n_components, seed):
    """Return a map fitted to queries and keys, for logits divided by sqrt(d)."""
    own = METHODS[method](n_components, kernel="softmax", sigma=WIDTH**-0.25, random_state=seed)
    return own.fit(q, keys=k)


def measure(method, length, std, n_components, seed):
    """Return errors of one draw on one set of inputs.

    They are those of the matrix, of the output, and of the mean of the values in place of the
    output ("mean"). "negative" is the share of queries whose denominator is not positive.
    """
    q, k, v = make_inputs(length, std, seed)
    own = fitted(method, q, k, n_components, seed)
    queries, keys = own.transform(q), own.transform_keys(k)
    squares, n_negative = np.zeros(5), 0
    for start in range(0, length, ROWS):
        rows = slice(start, start + ROWS)
        A = np.exp(q[rows] @ k.T / math.sqrt(WIDTH))
        out = A @ v / A.sum(axis=1, keepdims=True)
        approximate = queries[rows] @ keys.T
        totals = approximate.sum(axis=1, keepdims=True)
        n_negative += int(np.sum(totals <= 0))
        differences = approximate - A, approximate @ v / totals - out, v.mean(axis=0) - out
        squares += [np.sum(part**2) for part in (*differences, A, out)]
    matrix, output, mean = squares[:3] / squares[[3, 4, 4]]
    return {"matrix": matrix, "output": output, "mean": mean, "negative": n_negative / length}


def expect(method, length, std, seed, n_rows):
    """Return the expected error of the matrix: its variance in closed form, for some queries."""
    q, k, _ = make_inputs(length, std, seed)
    own = fitted(method, q, k, N_SWEPT, seed)
    exact = np.exp(q[:n_rows] @ k.T / math.sqrt(WIDTH))
    return np.sum(own.kernel_variance(q[:n_rows], k)) / np.sum(exact**2)


def measure_all(setting):
    """Return errors {(method, std, components): {kind: by seed}}, and expected ones of the matrix.

    The latter are {(method, std): by seed}, for 128 components.
    """
    seeds = range(setting.n_seeds)
    points = {(std, m) for std in setting.stds for m in setting.components}
    points |= {(std, N_SWEPT) for std in setting.swept}
    errors, closed = {}, {}
    for std, m in sorted(points):
        for method in METHODS:
            runs = [measure(method, setting.length, std, m, seed) for seed in seeds]
            kinds = runs[0]
            errors[method, std, m] = {kind: np.array([run[kind] for run in runs]) for kind in kinds}
    for std in sorted({*setting.stds, *setting.swept}):
        for method in CLOSED:
            values = [expect(method, setting.length, std, s, setting.n_rows) for s in seeds]
            closed[method, std] = np.array(values)
    return errors, closed


# ---------------------------------------------------------------- report


def cell(values):
    """Return mean and standard error over seeds as text."""
    mean, error = summarize(values)
    if 0 < mean < 0.01 or mean >= 1000:
        return f"{mean:.2g} ± {error:.1g}"
    return describe(mean, error, 4 if mean < 1 else 2)


def ratio(errors, kind, method, base, std, components):
    """Return error over error of base as text: geometric mean, log and its standard error."""
    logs = [np.log(errors[method, std, m][kind] / errors[base, std, m][kind]) for m in components]
    mean, error = summarize(np.mean(logs, axis=0))
    return f"{math.exp(mean):.3g} (log {mean:+.3f} ± {error:.3f})"


def orders(setting, errors, closed):
    """Return table rows: ratios of errors whose order was published."""
    rows = [("std", "matrix", "closed form", "output")]
    for std in sorted({*setting.stds, *setting.swept}):
        own = setting.components if std in setting.stds else (N_SWEPT,)
        for method in ("trigonometric", "positive"):
            base = f"{method} iid"
            matrix, output = (ratio(errors, kind, method, base, std, own) for kind in KINDS)
            known = (closed[method, std] / closed[base, std]).mean()
            rows.append((f"{std}, {method}: orthogonal / iid", matrix, f"{known:.4f}", output))
        text = ratio(errors, "output", "positive", "trigonometric", std, (N_SWEPT,))
        rows.append((f"{std}: positive / trigonometric", "", "", text))
    return rows


def table(errors, head, points):
    """Return table rows: the errors of all methods at some points (std, components)."""
    rows = [("error of", "method", *head)]
    for kind, label in KINDS.items():
        for method in METHODS:
            rows.append((label, method, *(cell(errors[method, *point][kind]) for point in points)))
    plain = (cell(errors["positive", *point]["mean"]) for point in points)
    return [*rows, ("output", MEAN, *plain)]


def report(setting, errors, closed):
    """Return the report in Markdown."""
    sections, swept = [], setting.swept
    for std in setting.stds:
        points = [(std, m) for m in setting.components]
        rows = table(errors, [f"M = {m}" for _, m in points], points)
        sections.append(f"## Standard deviation {std} of q and k\n\n{markdown(rows, left=2)}\n")
    points = [(std, N_SWEPT) for std in swept]
    rows = table(errors, [f"std {std}" for std in swept], points)
    for method in CLOSED:
        values = (cell(closed[method, std]) for std in swept)
        rows.append(("matrix A, closed form", method, *values))
    negative = (cell(errors["trigonometric", *point]["negative"]) for point in points)
    rows.append(("share of queries", "trigonometric: denominator <= 0", *negative))
    return f"""\
# Error of approximate attention (thesis, figure 3.6)

L = {setting.length}, d = {WIDTH}, one head, float64; entries of q and k normal with the standard
deviation that is said, of v with 1; logits divided by sqrt(d). M counts real columns: trigonometric
maps have M/2 projections. Mean and standard error over {setting.n_seeds} seeds.

{chr(10).join(sections)}
## Against the size of the inputs, M = {N_SWEPT}

{markdown(rows, left=2)}

Closed forms: the exact variance of the estimate of A, summed over {setting.n_rows} queries and
all keys. Where it is far above what draws show, rare draws hold most of the error.

## Ratios of errors

Published: orthogonal below independent (thesis; its features are trigonometric), and positive below
trigonometric for the output (Choromanski et al., 2021, figure 4, with the same L and d).

{markdown(orders(setting, errors, closed))}
"""


def plot(setting, errors):
    """Draw errors of the matrix (above) and of the output, against M and against the inputs.

    Against M for the first size of the inputs only: at the larger one all features have collapsed.
    """
    figure, axes = plt.subplots(2, 2, figsize=(8.4, 7.6), dpi=80, layout="constrained")
    std = setting.stds[0]
    by_size = [(std, m) for m in setting.components]
    by_input = [(std, N_SWEPT) for std in setting.swept]
    panels = [
        (f"inputs of standard deviation {std}", "number of features M", 1, by_size),
        (f"M = {N_SWEPT}", "standard deviation of q and k", 0, by_input),
    ]
    for line, (kind, label) in zip(axes, KINDS.items(), strict=True):
        for axis, (title, name, place, points) in zip(line, panels, strict=True):
            ticks = [point[place] for point in points]
            for i, method in enumerate(METHODS):
                values = [summarize(errors[method, *point][kind]) for point in points]
                is_iid = method.endswith("iid")
                axis.errorbar(
                    ticks,
                    *np.transpose(values),
                    color=COLOURS[(0, 0, 1, 1, 2, 3, 6)[i]],
                    # Dashed, because dense lies on optimal positive where inputs are isotropic.
                    linestyle=":" if is_iid else "--" if method == "dense" else "-",
                    marker="o" if is_iid else "d" if method == "dense" else "s",
                    markerfacecolor="none" if is_iid else None,
                    markersize=4,
                    label=method,
                )
            if kind == "output":
                plain = [errors["positive", *point]["mean"].mean() for point in points]
                axis.plot(ticks, plain, color=COLOURS[7], linewidth=3, alpha=0.5, label=MEAN)
            axis.set(xscale="log", yscale="log", xlabel=name, title=title)
            # Means of trigonometric outputs with denominators near 0 are of any size.
            bottom, top = axis.get_ylim()
            axis.set_ylim(bottom, min(top, 30 if kind == "output" else 1e4))
            set_ticks(axis, ticks)
            axis.minorticks_off()
        line[0].set_ylabel(f"relative mean squared error, {label}")
    figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def main():
    """Measure; write table and plot."""
    options = parser(__doc__).parse_args()
    warnings.simplefilter("ignore", FeatureCollapseWarning)  # the table shows it
    setting = QUICK if options.quick else Setting()
    errors, closed = measure_all(setting)
    text = report(setting, errors, closed)
    publish(options, "attention_error", text, figure=plot(setting, errors))


if __name__ == "__main__":
    main()
