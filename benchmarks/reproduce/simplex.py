"""Simplex random features: figures 4, 6, 7 and 8 and tables 2 and 3 of the paper.

    python benchmarks/reproduce/simplex.py            everything, six minutes of one core
    python benchmarks/reproduce/simplex.py --quick    few draws, two sets, under a minute

Reid et al., Simplex random features (2023). Every draw has its own seed: draw i of a measurement
takes seed i, so couplings are compared on the same seeds. The classification sets are read by
`skrf.datasets.load_uci` from the folder SKRF_UCI_DIR; "--parts conformity,ratios,gram" needs none.

The classification follows the code that the paper names (github.com/isaac-reid/
simplex_random_features), which says what the text leaves open: rows permuted with NumPy's seed 42
after the last row is dropped, 95 % for training and 5 % for testing, one-hot columns, all columns
standardised by the training rows, and the sigma of every set. What our copy of the text has lost in
conversion (dimension of figure 4, sizes of figure 7, all numbers of table 3) is chosen here.
"""

from functools import lru_cache

import matplotlib.pyplot as plt
import numpy as np
from _common import (
    COLOURS,
    describe,
    markdown,
    names,
    parser,
    publish,
    set_ticks,
    summarize,
    verdict,
)
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from scipy.special import hyp0f1
from sklearn.compose import make_column_transformer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skrf import PositiveRF
from skrf.datasets import load_uci
from skrf.projections import COUPLINGS
from skrf.projections.norms import chi_norms
from skrf.theory import expected_conformity, sample_conformity

METHODS = ("iid", "orthogonal", "simplex", "simplex+")
KNOWN = METHODS[:3]  # couplings with a closed form
COLOUR = dict(zip(METHODS, COLOURS, strict=False))
MARKER = dict(zip(METHODS, "osD^", strict=True))

CONFORMITY_SIZE = 6  # d and m of figure 4
CONFORMITY_V = tuple(np.linspace(0.5, 4.0, 8).tolist())
RATIO_SIZE = 64
RATIO_V = (0.25, 0.5, 1.0)  # sample variances beyond mislead
GRAM_SIZE, GRAM_SIGMA = 64, 0.1
GRAM_PROJECTIONS = (16, 32, 64, 128, 256, 512)
MULTIPLES = (1, 2, 4, 10)  # numbers of features over d in figure 8
VARIANTS = [("iid", "dense")] + [
    (coupling, projection)
    for coupling in ("orthogonal", "simplex")
    for projection in ("dense", "hadamard")
]

LARGE_SETS, QUICK_SETS = ("nursery", "chess"), ("banknote", "wifi")
# Sigmas of the authors' code; of table 2, a first column without a head, then accuracies and
# standard errors of simplex and simplex+. Names of the sets are lost as well; the first column,
# which is the mean |x + y|, restores them.
SETS = {
    "abalone": (0.41331138, 1.7, (0.1421, 0.0002), (0.1419, 0.0002)),
    "banknote": (1.06445901, 2.6, (0.7229, 0.0012), (0.7132, 0.0012)),
    "car": (0.77656608, 5.0, (0.6754, 0.0004), (0.6751, 0.0004)),
    "yeast": (0.90918797, 3.1, (0.3202, 0.0004), (0.3208, 0.0004)),
    "cmc": (0.48389667, 2.0, (0.4047, 0.0005), (0.4065, 0.0005)),
    "nursery": (0.18788887, 1.4, (0.6874, 0.0005), (0.6917, 0.0004)),
    "wifi": (0.21997651, 0.8, (0.6314, 0.0018), (0.6473, 0.0018)),
    "chess": (0.25754408, 2.3, (0.2000, 0.0001), (0.2000, 0.0001)),
}
SPLIT, OTHER_SPLITS = 42, tuple(range(100, 120))


# ---------------------------------------------------------------- figure 4: conformity


def optimised_conformity(norms, sum2, seed, n_starts=3):
    """Return the least conformity that L-BFGS finds for vectors of these norms."""
    d = len(norms)
    first, second = np.triu_indices(d, 1)

    def value(flat):
        raw = flat.reshape(d, d)
        lengths = np.linalg.norm(raw, axis=1, keepdims=True)
        units = raw / lengths
        rows = norms[:, None] * units
        sums = rows[first] + rows[second]
        z = np.sum(sums**2, axis=1) * sum2 / 4
        slope = hyp0f1(d / 2 + 1, z)[:, None] * (sum2 / d) * sums
        gradient = np.zeros_like(rows)
        np.add.at(gradient, first, slope)
        np.add.at(gradient, second, slope)
        gradient *= norms[:, None]
        # Directions only: the part along a row changes nothing.
        gradient -= np.sum(gradient * units, axis=1, keepdims=True) * units
        return hyp0f1(d / 2, z).mean(), (gradient / lengths / len(first)).ravel()

    rng = np.random.default_rng(seed)
    starts = [COUPLINGS["simplex+"].directions(norms)]
    starts += [rng.standard_normal((d, d)) for _ in range(n_starts - 1)]
    return min(minimize(value, s.ravel(), jac=True, method="L-BFGS-B").fun for s in starts)


def conformities(seed):
    """Return, for one draw of norms, conformities by v: simplex, simplex+, the optimum."""
    d = CONFORMITY_SIZE
    norms = chi_norms(d, d, np.random.default_rng(seed))
    rows = [norms[:, None] * COUPLINGS[c].directions(norms) for c in METHODS[2:]]
    return [
        [*(sample_conformity(part, v**2) for part in rows), optimised_conformity(norms, v**2, seed)]
        for v in CONFORMITY_V
    ]


def conformity(quick):
    """Return the table of figure 4, and means by coupling."""
    d, draws = CONFORMITY_SIZE, 20 if quick else 300
    samples = np.array([conformities(seed) for seed in range(draws)])
    v2 = np.square(CONFORMITY_V)
    means = {c: expected_conformity(c, v2, n_projections=d, n_features=d) for c in KNOWN}
    errors = dict.fromkeys(KNOWN, np.full(len(v2), np.nan))
    # The norms make most of the spread: the difference to the simplex of the same norms does not.
    for i, name in ((1, "simplex+"), (2, "numerically optimised")):
        difference = samples[:, :, i] - samples[:, :, 0]
        means[name] = means["simplex"] + difference.mean(axis=0)
        errors[name] = difference.std(axis=0, ddof=1) / np.sqrt(draws)
    rows = [("conformity, below simplex by", *(f"v = {v:g}" for v in CONFORMITY_V))]
    for name, values in means.items():
        gains = 1 - values / means["simplex"]
        cells = zip(values, errors[name], gains, strict=True)
        rows.append((name, *(f"{describe(m, e, digits=4)}, {gain:.1%}" for m, e, gain in cells)))
    return f"## Conformity (figure 4), d = m = {d}, {draws} draws\n\n{markdown(rows)}\n", means


# ---------------------------------------------------------------- figures 6 and 7: errors


def positive_map(size, coupling, sigma=1.0, projection="dense"):
    """Return positive features without a shift of the origin."""
    return PositiveRF(
        size,
        sigma=sigma,
        coupling=coupling,
        projection=projection,
        center=False,
        random_state=0,
    )


def relative_mse(coupling, v):
    """Return the closed-form MSE over K^2 of m = d = 64 positive features."""
    half = np.zeros((1, RATIO_SIZE))
    half[0, 0] = v / 2
    features = positive_map(RATIO_SIZE, coupling).fit(half)
    return float(features.kernel_variance(half)[0, 0])  # K = 1 at x = y


def squared_errors(coupling, n_draws):
    """Return squared errors of drawn estimates, (n_draws, n_v)."""
    rows = np.zeros((len(RATIO_V), RATIO_SIZE))
    rows[:, 0] = np.divide(RATIO_V, 2)
    features = positive_map(RATIO_SIZE, coupling).fit(rows)
    draws = (features.redraw(seed).transform(rows) for seed in range(n_draws))
    return np.array([((values**2).sum(axis=1) - 1) ** 2 for values in draws])


def ratios(quick):
    """Return the table of figure 6, and its curves."""
    n_draws = 400 if quick else 4000
    measured = {c: [summarize(column) for column in squared_errors(c, n_draws).T] for c in METHODS}
    grid = np.linspace(0.05, 16, 120)
    curves = {c: np.array([relative_mse(c, v) for v in grid]) for c in KNOWN}
    rows = [("MSE over K^2", *(f"v = {v:g}" for v in RATIO_V), "closed form, z")]
    for c in METHODS:
        cells, scores = [describe(*value, digits=6) for value in measured[c]], ""
        if c in KNOWN:
            exact = [relative_mse(c, v) for v in RATIO_V]
            pairs = zip(measured[c], exact, strict=True)
            scores = ", ".join(f"{e:.6f} ({(m - e) / s:+.1f})" for (m, s), e in pairs)
        rows.append((c, *cells, scores))
    best = curves["simplex"] / curves["orthogonal"]
    orthogonal = curves["orthogonal"] / curves["iid"]
    small = relative_mse("simplex", 1e-3) / relative_mse("iid", 1e-3)
    text = f"""\
## Ratios of mean squared errors (figure 6), d = m = {RATIO_SIZE}, x = y, {n_draws} draws

{markdown(rows)}

For v to 16, simplex over orthogonal lies between {best.min():.4f} and {best.max():.4f}, orthogonal
over iid between {orthogonal.min():.4f} and {orthogonal.max():.4f}; stated: below 1. For small v,
simplex over iid is {small:.4f}; over 99 % of the gain is gone at
v = {grid[np.argmax(best > 0.99)]:.1f}.
"""
    return text, (grid, best, orthogonal, measured)


def gram_errors(coupling, n_projections, seeds):
    """Return squared relative Frobenius errors and their expectation (None where unknown)."""
    rows = np.random.default_rng(0).normal(size=(GRAM_SIZE, GRAM_SIZE))
    features = positive_map(n_projections, coupling, GRAM_SIGMA).fit(rows)
    exact = features.exact_kernel(rows)
    size = np.sum(exact**2)
    errors = [
        np.sum((features.redraw(seed).approximate_kernel(rows) - exact) ** 2) / size
        for seed in seeds
    ]
    known = np.sum(features.kernel_variance(rows)) / size if coupling in KNOWN else None
    return errors, known


def gram(quick):
    """Return the table of figure 7, and its curves."""
    draws = 10 if quick else 200
    rows = [("relative error", *(f"m = {m}" for m in GRAM_PROJECTIONS))]
    curves, scores = {}, []
    for coupling in METHODS:
        line, roots, expected = [], [], []
        for m in GRAM_PROJECTIONS:
            squares, known = gram_errors(coupling, m, range(draws))
            line.append(describe(*summarize(np.sqrt(squares)), digits=4))
            mean, error = summarize(squares)
            roots.append((np.sqrt(mean), error / (2 * np.sqrt(mean))))
            if known is not None:
                scores.append((mean - known) / error)
                expected.append(np.sqrt(known))
        curves[coupling] = np.array(roots), np.array(expected)
        rows.append((coupling, *line))
    text = f"""\
## Error of the Gram matrix (figure 7), {GRAM_SIZE} normal rows, sigma = {GRAM_SIGMA}, {draws} draws

{markdown(rows)}

Of {len(scores)} mean squares, the largest deviation from a closed form is
{max(map(abs, scores)):.1f} standard errors. Stated: simplex below orthogonal below independent.
"""
    return text, curves


# ---------------------------------------------------------------- figure 8 and table 2


@lru_cache(maxsize=4)
def prepared(name, split, padded=False):
    """Return training rows, one-hot labels, test rows and codes of test labels."""
    data = load_uci(name)
    encode = make_column_transformer(
        (OneHotEncoder(sparse_output=False), list(data.categorical_features)),
        remainder="passthrough",
    )
    n = len(data.target) - 1  # the authors' code drops a row, for a blank line of some files
    rows = np.asarray(encode.fit_transform(data.data[:n]), dtype=float)
    classes, codes = np.unique(data.target[:n], return_inverse=True)
    order = np.random.default_rng(split).permutation(n)
    training, test = order[: int(0.95 * n)], order[-int(0.05 * n) :]
    rows = StandardScaler().fit(rows[training]).transform(rows)
    if padded:
        width = max(16, 2 ** int(np.ceil(np.log2(rows.shape[1]))))
        rows = np.pad(rows, ((0, 0), (0, width - rows.shape[1])))
    return rows[training], np.eye(len(classes))[codes[training]], rows[test], codes[test]


def accuracies(name, coupling, n_projections, seeds, *, rows, projection="dense"):
    """Return the test accuracy of every draw; `rows` as from `prepared`."""
    training, one_hot, test, codes = rows
    features = positive_map(n_projections, coupling, SETS[name][0], projection)
    features.fit(training)
    correct = []
    for seed in seeds:
        features.redraw(int(seed))
        weights = features.transform(training).T @ one_hot
        predicted = np.argmax(features.transform(test) @ weights, axis=1)
        correct.append(float(np.mean(predicted == codes)))
    return correct


def exact_accuracy(name):
    """Return the test accuracy of the kernel itself."""
    training, one_hot, test, codes = prepared(name, SPLIT)
    scores = [
        np.exp(-(SETS[name][0] ** 2) / 2 * cdist(block, training, "sqeuclidean")) @ one_hot
        for block in np.array_split(test, -(-len(test) // 128))
    ]
    return float(np.mean(np.argmax(np.concatenate(scores), axis=1) == codes))


def mean_sum(name):
    """Return the mean of |x + y| over pairs of training and test rows."""
    training, _, test, _ = prepared(name, SPLIT)
    return float(SETS[name][0] * cdist(training[:2000], -test[:200]).mean())


def n_draws_of(name, multiple, quick):
    """Return the number of draws: accuracies of banknote and wifi spread most, and cost least."""
    if quick:
        return 50
    if multiple > 1:
        return 20 if name in LARGE_SETS else 200
    return 300 if name in LARGE_SETS else 10_000 if name in ("banknote", "wifi") else 2000


def classification(quick):
    """Return table 2 beside the published one and other splits, figure 8, and its data."""
    sets, multiples = (QUICK_SETS, MULTIPLES[:2]) if quick else (tuple(SETS), MULTIPLES)
    splits = OTHER_SPLITS[: 3 if quick else None]
    results, exact = {}, {name: exact_accuracy(name) for name in sets}
    table = [("set", "mean v", "published", "coupling", "ours", "published", "verdict")]
    cases = [("simplex, m = d", "published", "other splits", "published there")]
    for name in sets:
        rows, (_, v, *published) = prepared(name, SPLIT), SETS[name]
        d = rows[0].shape[1]
        for coupling in METHODS:
            for multiple in multiples:
                seeds = range(n_draws_of(name, multiple, quick))
                values = accuracies(name, coupling, multiple * d, seeds, rows=rows)
                results[name, coupling, multiple] = summarize(values)
        for coupling, theirs in zip(METHODS[2:], published, strict=True):
            own = results[name, coupling, 1]
            numbers = f"{mean_sum(name):.1f}", f"{v:.1f}"
            texts = describe(*own, digits=4), describe(*theirs, digits=4)
            table.append((name, *numbers, coupling, *texts, verdict(own, theirs, digits=4)))
        n, means = 20 if quick else 50 if name in LARGE_SETS else 200, []
        for i, split in enumerate(splits):  # draws of their own
            seeds = range(10_000 * (i + 1), 10_000 * (i + 1) + n)
            values = accuracies(name, "simplex", d, seeds, rows=prepared(name, split))
            means.append(np.mean(values))
        stated, mean, spread = published[0][0], np.mean(means), np.std(means, ddof=1)
        place = f"{(stated - mean) / spread:+.1f} sd"
        cases.append((name, f"{stated:.4f}", f"{mean:.4f}, sd {spread:.4f}", place))
    averages = [("average over the sets", *(f"m = {k} d" for k in multiples))]
    for coupling in METHODS:
        values = (average(results, sets, coupling, k) for k in multiples)
        averages.append((coupling, *(describe(*value, digits=4) for value in values)))
    text = f"""\
## Classification with m = d features (table 2), the split of the authors' code

{markdown(table)}

What another split changes: the mean and the standard deviation over {len(splits)} random splits,
and where the published number lies among them.

{markdown(cases)}

## Classification against the number of features (figure 8)

{markdown(averages)}

Stated: simplex features consistently perform best.
"""
    return text, (results, exact, sets, multiples)


def average(results, sets, coupling, multiple):
    """Return the mean accuracy over sets, which are independent, and its standard error."""
    means, errors = np.transpose([results[name, coupling, multiple] for name in sets])
    return means.mean(), np.sqrt(np.sum(errors**2)) / len(sets)


# ---------------------------------------------------------------- table 3: fast projections


def fast(quick):
    """Return table 3."""
    draws = 20 if quick else 200
    table = [("set", "m = d'", *(f"{c} {p}" for c, p in VARIANTS), "largest z")]
    for name in QUICK_SETS if quick else SETS:
        rows = prepared(name, SPLIT, padded=True)
        width, seeds = rows[0].shape[1], range(draws // 5 if name in LARGE_SETS else draws)
        values = {
            (c, p): summarize(accuracies(name, c, width, seeds, rows=rows, projection=p))
            for c, p in VARIANTS
        }
        scores = []
        for c in ("orthogonal", "simplex"):
            (dense, error), (other, its_error) = values[c, "dense"], values[c, "hadamard"]
            scores.append(abs(dense - other) / np.hypot(error, its_error))
        cells = (describe(*value, digits=4) for value in values.values())
        table.append((name, str(width), *cells, f"{max(scores):.1f}"))
    text = f"""\
## Fast against regular projections (table 3)

Inputs are padded with zeros to d' columns, a power of two and at least 16, and m = d'. The last
column is the larger difference, regular less fast, in standard errors. {draws} draws, a fifth for
nursery and chess.

{markdown(table)}
"""
    return text, None


# ---------------------------------------------------------------- plots


def plot_errors(conformity, ratios, gram):
    """Return figures 4, 6 and 7 as three panels."""
    figure, axes = plt.subplots(1, 3, figsize=(12.5, 4), layout="constrained")
    for name, means in conformity.items():
        style = {"color": COLOUR.get(name, COLOURS[6]), "marker": MARKER.get(name, "x")}
        line = "-" if name in METHODS else ":"
        values = means / conformity["iid"]
        axes[0].plot(CONFORMITY_V, values, linestyle=line, markersize=4, label=name, **style)
    axes[0].set(title="conformity over that of iid, d = m = 6", xlabel="v = |x + y|", yscale="log")
    axes[0].legend(loc="lower left")
    grid, simplex, orthogonal, measured = ratios
    axes[1].plot(grid, simplex, color=COLOUR["simplex"], label="simplex / orthogonal")
    axes[1].plot(grid, orthogonal, color=COLOUR["orthogonal"], label="orthogonal / iid")
    for above, below in (("simplex", "orthogonal"), ("orthogonal", "iid")):
        top, bottom = (np.array(measured[c]) for c in (above, below))
        ratio = top[:, 0] / bottom[:, 0]
        error = 2 * ratio * np.hypot(top[:, 1] / top[:, 0], bottom[:, 1] / bottom[:, 0])
        axes[1].errorbar(RATIO_V, ratio, error, fmt=MARKER[above], color=COLOUR[above], ms=4)
    axes[1].set(title="ratio of mean squared errors, d = m = 64", xlabel="v = |x + y|")
    axes[1].set(xlim=(0, 5), ylim=(0, 1.05))
    axes[1].legend(loc="lower right", title="line: closed form\npoint: measured, 2 s.e.")
    for name, (values, expected) in gram.items():
        style = {"fmt": MARKER[name], "color": COLOUR[name], "markersize": 4, "label": name}
        style["linestyle"] = "none" if len(expected) else ":"
        axes[2].errorbar(GRAM_PROJECTIONS, values[:, 0], values[:, 1], **style)
        if len(expected):
            axes[2].plot(GRAM_PROJECTIONS, expected, color=COLOUR[name], linewidth=1)
    axes[2].set(xscale="log", yscale="log", xlabel="number of projections m")
    set_ticks(axes[2], GRAM_PROJECTIONS)
    axes[2].set_yticks((0.05, 0.1, 0.2, 0.4), (0.05, 0.1, 0.2, 0.4))
    axes[2].minorticks_off()
    axes[2].set_title("r.m.s. error of the Gram matrix, d = 64")
    axes[2].legend(title="line: closed form")
    for axis in axes[:2]:
        axis.grid(alpha=0.3)
    return figure


def plot_classification(results, exact, sets, multiples):
    """Return figure 8."""
    n = len(sets) + 1
    shape = -(-n // min(n, 3)), min(n, 3)
    size = 3.4 * shape[1], 2.3 * shape[0] + 0.6
    figure, axes = plt.subplots(*shape, figsize=size, layout="constrained", squeeze=False)
    for axis, name in zip(axes.flat, [*sets, "average"], strict=False):
        members = sets if name == "average" else (name,)
        for coupling in METHODS:
            values = [average(results, members, coupling, k) for k in multiples]
            style = {"color": COLOUR[coupling], "marker": MARKER[coupling], "label": coupling}
            axis.errorbar(multiples, *np.transpose(values), markersize=4, linewidth=1, **style)
        level = np.mean([exact[s] for s in members])
        axis.axhline(level, color="black", linestyle=":", label="exact kernel")
        if name in SETS:
            axis.plot(1, SETS[name][2][0], "k*", label="simplex, published (table 2)")
        axis.set(title=name, xscale="log")
        set_ticks(axis, multiples)
    for axis in list(axes.flat)[n:]:
        axis.set_visible(False)
    figure.supxlabel("number of features over d")
    figure.supylabel("test accuracy")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    return figure


PARTS = {
    "conformity": conformity,
    "ratios": ratios,
    "gram": gram,
    "classification": classification,
    "fast": fast,
}


def main():
    """Run the parts that the command line asks for."""
    made = parser(__doc__)
    made.add_argument("--parts", type=names(PARTS), default=tuple(PARTS), help=", ".join(PARTS))
    options = made.parse_args()
    parts = {part: PARTS[part](options.quick) for part in options.parts}
    data, figures = {part: values for part, (_, values) in parts.items()}, {}
    if {"conformity", "ratios", "gram"} <= set(data):
        figures["errors"] = plot_errors(data["conformity"], data["ratios"], data["gram"])
    if "classification" in data:
        figures["classification"] = plot_classification(*data["classification"])
    text = "# Simplex random features\n\n" + "\n".join(text for text, _ in parts.values())
    publish(options, "simplex", text, **figures)


if __name__ == "__main__":
    main()
