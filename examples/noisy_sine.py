"""Why features of kernel regression must be positive: a noisy sine and 32 columns.

    python examples/noisy_sine.py

Kernel regression predicts the mean of the targets, weighted by the kernel. With sines and cosines
(RBFSampler, RFFSampler) estimated weights are negative in places, their sum comes near to zero, and
the quotient leaves the data; positive features cannot do that. Takes two seconds; the picture is
that of the README.
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.kernel_approximation import RBFSampler

from skrf import AdaptiveRF, KernelRegressor

OUTPUT = Path(__file__).parent / "output"
N_COLUMNS, SIGMA = 32, 5.0


def main():
    """Fit, print errors, draw."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(400, 1))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=400)
    grid = np.linspace(-3, 3, 400)[:, None]
    maps = {
        "exact kernel regression": "exact",
        f"RBFSampler, {N_COLUMNS} columns": RBFSampler(
            gamma=SIGMA**2 / 2, n_components=N_COLUMNS, random_state=0
        ),
        f"AdaptiveRF, {N_COLUMNS} columns": AdaptiveRF(N_COLUMNS, sigma=SIGMA, random_state=0),
    }
    curves = {}
    for name, feature_map in maps.items():
        sigma = SIGMA if feature_map == "exact" else None
        model = KernelRegressor(feature_map, sigma=sigma).fit(X, y)
        curves[name] = model.predict(grid)
        error = np.sqrt(np.mean((curves[name] - np.sin(2 * grid[:, 0])) ** 2))
        print(f"{name:26s} root mean square error {error:.3f}")

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axis = figure.subplots()
    axis.plot(X[:, 0], y, ".", color="0.75", markersize=4, label="data")
    styles = (("black", "--", 2.0), ("C3", "-", 1.3), ("C0", "-", 2.2))
    for (name, curve), (color, style, width) in zip(curves.items(), styles, strict=True):
        axis.plot(grid[:, 0], curve, style, color=color, linewidth=width, label=name)
    axis.set(ylim=(-1.9, 2.6), xlim=(-3, 3), xticks=[], yticks=[])
    axis.legend(loc="upper center", ncols=4, framealpha=1.0)
    OUTPUT.mkdir(exist_ok=True)
    figure.savefig(OUTPUT / "noisy_sine.png", dpi=110)
    print(f"The picture is {OUTPUT / 'noisy_sine.png'}")


if __name__ == "__main__":
    main()
