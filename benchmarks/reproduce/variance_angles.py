"""Closed-form variances against the angle, the length and the width.

    python benchmarks/reproduce/variance_angles.py

Likhosherstov's thesis, figures 4.1 and 6.1: the variance of trigonometric, positive and hybrid
features for the Gaussian kernel and two points of one length, at every angle between them. All have
the columns of the least hybrid features: one projection, shared by both bases, and one for the
angular coefficient. Optimal positive features, fitted to the same points, stand beside them.

Likhosherstov et al., Chefs' random tables (2022), figure 1, and thesis, figure 6.2: the utility,
the log of the variance of optimal positive features over that of positive ones, against
|x + y|^2; each parameter is the best of its pair. Published: below -60 at d = 64 and 100.

Nothing is drawn. Takes seconds.
"""

import matplotlib.pyplot as plt
import numpy as np
from _common import COLOURS, markdown, parser, publish

from skrf import HybridRF, OptimalPositiveRF, PositiveRF, RFFSampler

LENGTHS = (0.5, 1.0, 1.5)
ANGLES = np.linspace(0.0, np.pi, 181)
WIDTHS = (4, 16, 64, 256)
SUMS = np.linspace(1.0, 150.0, 150)  # |x + y|^2
COMMON = {"sigma": 1.0, "coupling": "iid", "random_state": 0}
COLUMNS = 6
ROUNDING = -30.0  # log variances below are rounding, where there is none
FEATURE_MAPS = {
    "trigonometric": RFFSampler(COLUMNS, **COMMON),
    "positive": PositiveRF(COLUMNS, center=False, **COMMON),
    "hybrid, angular": HybridRF(
        COLUMNS,
        base=("positive", "trigonometric"),
        coefficients="angular",
        n_coefficients=1,
        center=False,
        **COMMON,
    ),
    "optimal positive": OptimalPositiveRF(COLUMNS, center=False, **COMMON),
}


def log_variances(name, length):
    """Return the log variance at every angle, for points of one length in the plane."""
    rows = length * np.column_stack([np.cos(ANGLES), np.sin(ANGLES)])
    feature_map = FEATURE_MAPS[name].fit(rows[:1], keys=rows)
    return feature_map.kernel_variance(rows[:1], rows, log=True)[0]


def utility(width):
    """Return the log of what optimal positive features leave of the variance, by |x + y|^2."""
    logs = []
    for total in SUMS:
        point = np.zeros((1, width))
        point[0, 0] = np.sqrt(total) / 2
        optimal, positive = (
            kind(1, center=False, **COMMON).fit(point).kernel_variance(point, log=True).item()
            for kind in (OptimalPositiveRF, PositiveRF)
        )
        logs.append(optimal - positive)
    return np.array(logs)


def plot(by_length, utilities):
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.4), dpi=80, layout="constrained")
    for axis, (length, curves) in zip(axes[:3], by_length.items(), strict=True):
        for (name, logs), colour in zip(curves.items(), COLOURS, strict=False):
            style = "--" if name == "optimal positive" else "-"
            shown = np.where(logs > ROUNDING, logs, np.nan)
            axis.plot(np.degrees(ANGLES), shown, color=colour, linestyle=style, label=name)
        axis.set(title=f"|x| = |y| = {length}", xlabel="angle, degrees", ylim=(-10, 8))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("log variance")
    axes[0].legend(fontsize=8)
    for (width, logs), colour in zip(utilities.items(), COLOURS, strict=False):
        axes[3].plot(SUMS, logs, color=colour, label=f"d = {width}")
    axes[3].set(xlabel="|x + y|², for the best parameters", ylabel="log ratio of variances")
    axes[3].set_title("optimal positive over positive")
    axes[3].legend(fontsize=8)
    axes[3].grid(alpha=0.3)
    return figure


def report(by_length, utilities):
    degrees = (0, 45, 90, 135, 180)
    places = [np.argmin(np.abs(np.degrees(ANGLES) - angle)) for angle in degrees]
    parts = ["# Closed-form variances\n\nLog variance at some angles, in degrees.\n"]
    for length, curves in by_length.items():
        table = [(f"length {length}", *map(str, degrees))]
        for name, logs in curves.items():
            values = ("none" if log < ROUNDING else f"{log:.2f}" for log in logs[places])
            table.append((name, *values))
        parts.append(markdown(table) + "\n")
    sums = (1, 10, 50, 100, 150)
    table = [("log ratio, squared length of x + y", *map(str, sums))]
    table += [
        (f"d = {width}", *(f"{logs[s - 1]:.1f}" for s in sums)) for width, logs in utilities.items()
    ]
    reached = utilities[64][99]
    verdict = "met" if reached < -60 else "not met"
    parts.append(
        markdown(table) + f"\n\nPublished, d = 64, 100: below -60. Here {reached:.1f}: {verdict}.\n"
    )
    return "\n".join(parts)


def main():
    options = parser(__doc__).parse_args()
    by_length = {
        length: {name: log_variances(name, length) for name in FEATURE_MAPS} for length in LENGTHS
    }
    utilities = {width: utility(width) for width in WIDTHS}
    text = report(by_length, utilities)
    publish(options, "variance_angles", text, figure=plot(by_length, utilities))


if __name__ == "__main__":
    main()
