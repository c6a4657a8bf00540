"""Relative error of softmax-kernel estimates against the angle: figure 2 of the hybrid slides.

    python benchmarks/reproduce/hybrid_angles.py            10,000 draws, a few minutes
    python benchmarks/reproduce/hybrid_angles.py --quick    300 draws, under a minute

Choromanski et al., Hybrid random features (2022): estimates of exp(x.y) for x and y of 64 columns
and one length r at several angles, 10,000 draws (seeds 0 to 9999), independent projections. The
trigonometric and the positive estimator (FAVOR+, exp(w.u) and exp(-w.u)) have 128 projections. The
hybrid ones have what costs no more: of all numbers n of coefficient features the one of least
largest closed-form relative error, with as many projections as the operations allow.

Operations of a map of one row: d for every projection and coefficient row, one for every sine,
cosine and exponential, one for every product of a coefficient with a value. The slides say that
operations were matched, not how, and give no width of the Gaussian coefficient: it is chosen in the
same way. All hybrid features share the projections of their two parts. Beside those of the slides
stand optimal positive features, alone and as the first part of hybrid ones: they have one column a
projection, and their parameter is fitted to the rows at all angles.
"""

import matplotlib.pyplot as plt
import numpy as np
from _common import COLOURS, markdown, parser, positive, save_figure, save_report
from matplotlib.ticker import NullFormatter
from scipy.stats import norm

from skrf import HybridRF, OptimalPositiveRF, PositiveRF, RFFSampler
from skrf.theory import hybrid_max_error

DIMENSION = 64
RADII = (1.0, 1.5)
N_PROJECTIONS = 128
N_DRAWS = 10_000
ANGLES = tuple(np.linspace(0, np.pi, 17).tolist())
N_COEFFICIENTS = (1, 2, 4, 8, 16, 32)
# Widths tau that are tried; the angular coefficient has none and ignores it.
COEFFICIENTS = {"angular": (1.0,), "gaussian": (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)}
# Name: the first base, its columns per projection, and the coefficients.
HYBRIDS = {
    "hybrid, angular": ("hyperbolic", 2, "angular"),
    "hybrid, gaussian": ("hyperbolic", 2, "gaussian"),
    "hybrid, angular, optimal": (OptimalPositiveRF(), 1, "angular"),
    "hybrid, gaussian, optimal": (OptimalPositiveRF(), 1, "gaussian"),
}
# The others have a curve of errors alone.
WITH_BANDS = ("trigonometric", "positive", *list(HYBRIDS)[:3])
ROUNDING = 1e-7  # of an error where there is none: the root of that of an angle
RELIABLE_SUM = 1.0 + 1e-9  # |x + y| up to which measured variances of positive maps can be trusted
COMMON = {"kernel": "softmax", "coupling": "iid", "random_state": 0}


def points(r):
    """Return x, shape (1, d), and y at every angle, shape (n_angles, d), all of length r."""
    rows = np.zeros((len(ANGLES), DIMENSION))
    rows[:, 0], rows[:, 1] = r * np.cos(ANGLES), r * np.sin(ANGLES)
    x = np.zeros((1, DIMENSION))
    x[0, 0] = r
    return x, rows


def operations(n_projections, n_coefficients=0, factors=1, values=2):
    """Return the operations of a map of one row.

    Parameters
    ----------
    n_projections : int
        Number of projections.
    n_coefficients : int, default=0
        Rows of the coefficients; 0 is no hybrid.
    factors : int, default=1
        Numbers that a row of coefficients gives: 1 sign, or 2, a cosine and a sine.
    values : int, default=2
        Numbers that a projection gives in all bases together.
    """
    values = n_projections * values
    products = factors * n_coefficients * values
    return (n_projections + n_coefficients) * DIMENSION + values + products


def hybrid(name, n_coefficients, tau, budget=None):
    """Return the hybrid map with as many projections as the budget allows (None: not one).

    Without a budget of operations it has no more columns than the two bases alone.
    """
    first, width, coefficients = HYBRIDS[name]
    factors, values = 2 if coefficients == "gaussian" else 1, width + 2
    alone = width if coefficients == "gaussian" else values
    columns = alone + factors * n_coefficients * values
    if budget is None:
        m = 2 * N_PROJECTIONS // columns
    else:
        fixed = n_coefficients * DIMENSION
        m = (budget - fixed) // (DIMENSION + values + values * factors * n_coefficients)
    if m < 1:
        return None
    return HybridRF(
        m * columns,
        base=(first, "trigonometric"),
        coefficients=coefficients,
        n_coefficients=n_coefficients,
        tau=tau,
        center=False,
        **COMMON,
    )


def closed_form(feature_map, r):
    """Return the relative error at every angle."""
    x, rows = points(r)
    feature_map.fit(x, keys=rows)
    logs = feature_map.kernel_variance(x, rows, log=True)[0] / 2
    return np.exp(logs - (x @ rows.T)[0])


def feature_maps(r):
    """Return the maps, the hybrid ones of least largest relative error."""
    budget = operations(N_PROJECTIONS)
    chosen = {
        "trigonometric": RFFSampler(2 * N_PROJECTIONS, **COMMON),
        "positive": PositiveRF(2 * N_PROJECTIONS, variant="hyperbolic", center=False, **COMMON),
        "optimal positive": OptimalPositiveRF(budget // (DIMENSION + 1), center=False, **COMMON),
    }
    for name in HYBRIDS:
        chosen[name] = best_hybrid(name, r, budget)
    return chosen


def best_hybrid(name, r, budget=None):
    """Return the hybrid map of least largest relative error."""
    tried = [
        hybrid(name, n, tau, budget)
        for n in N_COEFFICIENTS
        for tau in COEFFICIENTS[HYBRIDS[name][2]]
    ]
    tried = [feature_map for feature_map in tried if feature_map is not None]
    return min(tried, key=lambda feature_map: closed_form(feature_map, r).max())


def with_equal_columns():
    """Return table rows: largest and mean closed-form errors with the columns of the bases."""
    rows = [("r", "map", "projections", "coefficients", "largest", "mean over angles")]
    for r in RADII:
        errors = lemma(r, ANGLES)
        numbers = f"{errors.max():.3f}", f"{errors.mean():.3f}"
        rows.append((f"{r}", "either base", str(N_PROJECTIONS), "0", *numbers))
        optimal = OptimalPositiveRF(2 * N_PROJECTIONS, center=False, **COMMON)
        own = {"optimal positive": optimal, **{name: best_hybrid(name, r) for name in HYBRIDS}}
        for name, feature_map in own.items():
            errors = closed_form(feature_map, r)
            m, n, _ = sizes(feature_map, name)
            numbers = f"{errors.max():.3f}", f"{errors.mean():.3f}"
            rows.append((f"{r}", name, str(m), str(n), *numbers))
    return rows


def estimates(feature_map, r, seeds):
    """Return estimates of exp(x.y), shape (n_seeds, n_angles)."""
    x, rows = points(r)
    feature_map.fit(x, keys=rows)
    found = []
    for seed in seeds:
        feature_map.redraw(int(seed))
        found.append(feature_map.transform_keys(rows) @ feature_map.transform(x)[0])
    return np.array(found)


def statistics(values, exact):
    """Return arrays over the angles: relative error, its standard error, mean, its, quantiles."""
    n = len(values)
    ratios = values / exact - 1
    squares = ratios**2
    error = np.sqrt(squares.mean(axis=0))
    spread = squares.std(axis=0, ddof=1) / np.sqrt(n)
    return {
        "error": error,
        # Of a root by its derivative; nothing where the error is rounding.
        "error_se": spread / np.maximum(2 * error, 1e-12),
        "bias_z": ratios.mean(axis=0) / np.maximum(ratios.std(axis=0) / np.sqrt(n), 1e-12),
        "top_share": squares.max(axis=0) / np.maximum(squares.sum(axis=0), 1e-300),
        "low": np.quantile(values, 0.05, axis=0),
        "high": np.quantile(values, 0.95, axis=0),
    }


def measure(n_draws):
    """Return {(r, name): (feature_map, statistics, closed form)}."""
    found = {}
    for r in RADII:
        x, rows = points(r)
        exact = np.exp((x @ rows.T)[0])
        for name, feature_map in feature_maps(r).items():
            predicted = closed_form(feature_map, r)
            values = statistics(estimates(feature_map, r, range(n_draws)), exact)
            found[r, name] = feature_map, values, predicted
    return found


def lemma(r, angles):
    """Return the relative error of trigonometric features by lemma 3.4 of the slides."""
    half = np.square(r * np.sin(np.asarray(angles) / 2))
    return np.exp(2 * half) * -np.expm1(-4 * half) / np.sqrt(2 * N_PROJECTIONS)


def bound(r, n_projections, n_coefficients):
    """Return the bound of theorem 3.5 on the relative error of the angular hybrid."""
    width = np.exp(2 * r**2) * -np.expm1(-4 * r**2)
    inside = 1 / np.pi - 1 / (n_coefficients * np.pi) + 1 / (n_coefficients * np.sqrt(np.pi))
    return width / r * np.sqrt(inside / (2 * n_projections))


def sizes(feature_map, name):
    """Return projections, coefficient rows and operations."""
    m = feature_map._n_projections
    if name not in HYBRIDS:
        return m, 0, operations(m, values=feature_map.n_components_ // m)
    _, width, coefficients = HYBRIDS[name]
    factors, n = 2 if coefficients == "gaussian" else 1, feature_map.n_coefficients_
    return m, n, operations(m, n, factors, width + 2)


def beyond_the_bound():
    """Return table rows: the exact largest error of independent bases over theorem 3.5's bound."""
    rows = [("r", *(f"n = {n}" for n in (1, 2, 8)))]
    for r in (1.0, 1.5, 3.0, 4.2, 6.0, 10.0):
        ratios = [
            hybrid_max_error(r, n_projections=N_PROJECTIONS, n_coefficients=n)
            / bound(r, N_PROJECTIONS, n)
            for n in (1, 2, 8)
        ]
        rows.append((f"{r}", *(f"{ratio:.3f}" for ratio in ratios)))
    return rows


def report(found, n_draws):
    """Return the Markdown."""
    shown = [0, 2, 4, 8, 12, 14, 16]
    angles = (f"{np.degrees(ANGLES[i]):.4g} deg" for i in shown)
    head = "r, map", "projections", "coefficients", "operations", "columns"
    rows = [(*head, *angles, "largest", "closed form", "worst z", "share of one draw", "bias, z")]
    for (r, name), (feature_map, values, predicted) in found.items():
        m, n, cost = sizes(feature_map, name)
        errors, spread = values["error"], values["error_se"]
        scores = np.abs(errors - predicted) / np.maximum(spread, 1e-300)
        is_error = predicted > ROUNDING
        is_reliable = is_error & (2 * r * np.cos(np.divide(ANGLES, 2)) <= RELIABLE_SUM)
        numbers = *(errors[i] for i in shown), errors.max(), predicted.max()
        tau = f", tau = {feature_map.tau}" if "gaussian" in name else ""
        counts = str(m), str(n), str(cost), str(feature_map.n_components_)
        rows.append(
            (
                f"{r}, {name}{tau}",
                *counts,
                *(f"{number:.3f}" for number in numbers),
                f"{scores[is_reliable].max():.1f}",
                f"{values['top_share'][1:-1].max():.1%}",
                f"{np.abs(values['bias_z'][is_error]).max():.1f}",
            )
        )
    return f"""\
# Relative error against the angle

exp(x.y), d = {DIMENSION}, |x| = |y| = r, independent projections, {n_draws} draws. Root mean
squared error over exp(x.y). "Largest" is over the angles: measured, then by the library's formula.
"Worst z": the largest distance of a measured error from the formula in standard errors, at angles
with |x + y| <= 1; beyond, sample variances of positive features mislead. The share of one draw is
the largest that it has in a measured mean square.

{markdown(rows)}

## Statements of the slides

{markdown(statements(found))}

The exact maximum over all angles, of independent bases, over the bound of theorem 3.5, which does
not hold:

{markdown(beyond_the_bound())}

## With equal columns

Operations are matched, columns are not: hybrid features are products. With no more than
{2 * N_PROJECTIONS} columns, by the closed forms:

{markdown(with_equal_columns(), left=2)}

## Why the measured error of positive features is below the lemma at 0 degrees

There one positive feature is cosh(v w) exp(-v^2/2) with w normal and v = |x + y| = 2r. Its second
moment comes from |w| near 2v, where plain draws never are. Draws from N(2v, 1) with their weights
reach it:

{markdown(tail_experiment(n_draws))}
"""


def statements(found):
    """Return table rows: the statements of the slides beside ours."""
    rows = [("r", "statement", "slides", "ours")]
    for r in RADII:
        stated, maps = lemma(r, [np.pi])[0], {q: own for (p, q), own in found.items() if p == r}
        for name, index in (("trigonometric", len(ANGLES) - 1), ("positive", 0)):
            values = maps[name][1]
            ours = f"{values['error'][index]:.3f} ± {values['error_se'][index]:.3f}"
            rows.append((f"{r}", f"largest error, {name} (lemma 3.4)", f"{stated:.3f}", ours))
        feature_map, values, law = maps["hybrid, angular"]
        m, n, _ = sizes(feature_map, "hybrid, angular")
        limit, ends = f"< {bound(r, m, n):.3f}", max(values["error"][0], values["error"][-1])
        rows.append((f"{r}", "angular hybrid (theorem 3.5)", limit, f"{law.max():.3f}"))
        rows.append((f"{r}", "no error at 0 and 180 degrees", "0", f"{ends:.1e}"))
        laws = maps["trigonometric"][2], maps["positive"][2][::-1]
        apart = max(np.abs(own - lemma(r, ANGLES)).max() for own in laws)
        rows.append((f"{r}", "lemma 3.4 at all angles, both bases", "0", f"{apart:.1e} away"))
        base = min(maps[name][2].max() for name in ("trigonometric", "positive"))
        for name in HYBRIDS:
            ours = f"{maps[name][2].max():.3f}, {base:.3f}"
            rows.append((f"{r}", f"largest error, {name} below both bases", "yes", ours))
    return rows


def tail_experiment(n_draws):
    """Return table rows: errors of positive features at x = y from plain and weighted draws."""
    rows = [
        (
            "r",
            "lemma 3.4",
            "plain draws",
            "weighted draws",
            "2v",
            "largest plain abs(w)",
            "P(abs(w) > 2v)",
        )
    ]
    n = n_draws * N_PROJECTIONS
    for r in RADII:
        v = 2 * r
        plain = np.random.default_rng(0).standard_normal(n)
        shifted = np.random.default_rng(1).standard_normal(100_000) + 2 * v
        errors = []
        for w, log_weight in ((plain, 0.0), (shifted, 2 * v * v - 2 * v * shifted)):
            log_square = 2 * np.logaddexp(v * w, -v * w) - 2 * np.log(2) - v * v + log_weight
            second = np.mean(np.exp(log_square))
            # cosh is even: one side of w holds half of the moment, but for a tiny part.
            second *= 1 if w is plain else 2
            errors.append(np.sqrt((second - 1) / N_PROJECTIONS))
        rows.append(
            (
                f"{r}",
                f"{lemma(r, [np.pi])[0]:.3f}",
                *(f"{error:.3f}" for error in errors),
                f"{2 * v:.0f}",
                f"{np.abs(plain).max():.1f}",
                f"{2 * norm.sf(2 * v):.0e}",
            )
        )
    return rows


def plot(found):
    """Draw quantile bands and relative errors."""
    figure, axes = plt.subplots(
        len(WITH_BANDS) + 1,
        len(RADII),
        figsize=(10, 14),
        height_ratios=[1] * len(WITH_BANDS) + [2],
        sharex=True,
        layout="constrained",
    )
    names = list(dict.fromkeys(name for _, name in found))
    degrees = np.degrees(ANGLES)
    for line, r in zip(axes.T, RADII, strict=True):
        x, rows = points(r)
        exact = np.exp((x @ rows.T)[0])
        top = 1.6 * exact[0]
        largest = max(law.max() for (q, _), (_, _, law) in found.items() if q == r)
        for name, colour in zip(names, COLOURS, strict=False):
            feature_map, values, predicted = found[r, name]
            line[-1].plot(degrees, values["error"], color=colour, label=name, linewidth=1.5)
            line[-1].plot(degrees, predicted, color=colour, linestyle=":", linewidth=1.2)
            if name not in WITH_BANDS:
                continue
            axis = line[WITH_BANDS.index(name)]
            axis.fill_between(degrees, values["low"], values["high"], color=colour, alpha=0.35)
            axis.plot(degrees, exact, color="black", linewidth=1)
            axis.axhline(0, color="#D55E00", linestyle=":", linewidth=1)
            axis.set_ylim(-0.35 * top, top)
            m, n, _ = sizes(feature_map, name)
            count = f"m = {m}" + (f", n = {n}" if n else "")
            axis.set_title(f"{name}, r = {r}, {count}", fontsize=10)
        line[-1].set_title(f"relative error, r = {r}, dotted: closed form", fontsize=10)
        line[-1].set_yscale("log")
        line[-1].set_ylim(0.01, 1.5 * largest)
        line[-1].yaxis.set_minor_formatter(NullFormatter())
        line[-1].grid(alpha=0.3)
    figure.supylabel("exp(x.y), 5 % to 95 % of the estimates")
    figure.legend(*axes[-1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    for axis in axes[-1]:
        axis.set_xlabel("angle in degrees")
        axis.set_xticks([0, 45, 90, 135, 180])
    return figure


def main():
    """Run what the command line asks for."""
    options = parser(__doc__)
    options.add_argument("--draws", type=positive, help=f"number of draws ({N_DRAWS})")
    arguments = options.parse_args()
    quick = arguments.quick
    n_draws = arguments.draws or (300 if quick else N_DRAWS)
    stem = "hybrid_angles_quick" if quick else "hybrid_angles"
    found = measure(n_draws)
    save_figure(plot(found), arguments.results, stem, docs=arguments.docs and not quick, dpi=80)
    save_report(report(found, n_draws), arguments.results, stem)


if __name__ == "__main__":
    main()
