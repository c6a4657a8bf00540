"""Measure which random features are best in four regimes of pairs.

python benchmarks/which_features.py

Writes a table and a plot for the pages "Choosing" and "Feature maps compared" of the documentation.
"""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import clone

from skrf import GeometricRF, HybridRF, PoissonRF, theory
from skrf.datasets import REGIMES, make_regime

N_COMPONENTS = 128
SIGMAS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
SHOWN_SIGMAS = (0.1, 0.3, 0.5, 1.0)
DOCS = Path(__file__).parents[1] / "docs" / "benchmarks"
MARKERS = "os^Dv*PX<>"
MEASURED_SEED = 1000  # draws and rows that recommend has not seen

MORE = {
    "Poisson, positive": PoissonRF(N_COMPONENTS, positive=True, sigma=1.0),
    "geometric, positive": GeometricRF(N_COMPONENTS, positive=True, sigma=1.0),
    "hybrid, Gaussian": HybridRF(N_COMPONENTS, coefficients="gaussian", sigma=1.0),
}


def random_maps(sigma=1.0):
    """Return the default feature maps but landmarks, which know 128 of the 400 rows exactly."""
    feature_maps = theory.default_feature_maps(N_COMPONENTS, sigma=sigma)
    return {name: own for name, own in feature_maps.items() if name != "cluster Nystroem"}


def mean_log_variance(feature_map, X, Y):
    """Return the mean over pairs of the closed-form log variance, NaN where none is known."""
    fitted = clone(feature_map).set_params(random_state=0).fit(X, keys=Y)
    try:
        return fitted.kernel_variance(X, Y, log=True).mean()
    except NotImplementedError:
        return np.nan


def measure_regimes():
    """Return a record for every regime, sigma and feature map."""
    records = []
    for regime in REGIMES:
        for sigma in SIGMAS:
            X, Y = make_regime(regime, 200, sigma=sigma, random_state=0)
            feature_maps = random_maps() | MORE
            rows = theory.compare(X, Y, feature_maps=feature_maps, random_state=MEASURED_SEED)
            measured = {row.name: row.log_error for row in rows}
            for name, feature_map in feature_maps.items():
                records.append(
                    {
                        "regime": regime,
                        "sigma": sigma,
                        "feature_map": name,
                        "error": measured[name],
                        "log_variance": mean_log_variance(feature_map, X, Y),
                    }
                )
            print(f"{regime}, sigma={sigma}", flush=True)
    return records


def write_table(records):
    """Write the errors of every regime and map as CSV."""
    rows = {}
    for record in records:
        if record["sigma"] in SHOWN_SIGMAS:
            errors = rows.setdefault((record["regime"], record["feature_map"]), [])
            errors.append(f"{record['error']:.2g}")
    head = ["regime", "feature map", *(f"sigma = {sigma}" for sigma in SHOWN_SIGMAS)]
    with (DOCS / "which_features.csv").open("w", newline="", encoding="utf-8") as file:
        lines = [head, *([*names, *errors] for names, errors in rows.items())]
        csv.writer(file, lineterminator="\n").writerows(lines)


def plot(records):
    """Draw mean log variances, as in the figure of the paper."""
    figure, axes = plt.subplots(2, 2, figsize=(8, 6.5), sharex=True, layout="constrained")
    names = list(dict.fromkeys(r["feature_map"] for r in records))
    for axis, regime in zip(axes.flat, REGIMES, strict=True):
        for i, name in enumerate(names):  # a map that is left out keeps its look for other panels
            look = {"color": f"C{i}", "marker": MARKERS[i], "ms": 4}
            own = [r for r in records if r["regime"] == regime and r["feature_map"] == name]
            values = [r["log_variance"] for r in own]
            if np.isfinite(values).all():
                axis.plot([r["sigma"] for r in own], values, label=name, **look)
        axis.set(title=regime)
    figure.supxlabel("sigma")
    figure.supylabel("mean log variance")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4)
    figure.savefig(DOCS / "which_features.png", dpi=110)


def main():
    """Measure, and write the table and the figure."""
    records = measure_regimes()
    write_table(records)
    plot(records)


if __name__ == "__main__":
    main()
