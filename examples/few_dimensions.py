"""Predict a long series and a map in the plane, with lattice features and with random ones.

    python examples/few_dimensions.py

The series is the weekly carbon dioxide concentration at Mauna Loa, which ships with statsmodels
(``pip install statsmodels``): 2,225 weeks from 1958 to 2001. A parabola and four harmonics of the
year are removed by least squares. The residuals are predicted by an exact Gaussian process and by
ridge regression on a lattice of frequencies and on random Fourier features. Every tenth week and
all of 1985 are held out. The map in the plane is a draw from a Gaussian process at 2,000 places in
a square with sides of 10 length scales. Prints errors and saves a picture to examples/output.
"""

import time
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.linalg import cho_factor, cho_solve
from sklearn.metrics.pairwise import rbf_kernel
from statsmodels.datasets import co2

from skrf import ApproxKernelRidge, QuadratureFourierFeatures, RFFSampler

OUTPUT = Path(__file__).parent / "output"
N_COMPONENTS = 512


def series():
    """Return years and parts per million, and which weeks are held out."""
    table = co2.load_pandas().data["co2"].dropna()
    years = (table.index.year + (table.index.day_of_year - 0.5) / 365.25).to_numpy()
    values = table.to_numpy()
    is_out = (np.arange(len(years)) % 10 == 5) | ((years >= 1985) & (years < 1986))
    return years, values, is_out


def trend(years):
    """Return the columns of a parabola and four harmonics of the year."""
    centred = (years - 1980) / 20
    turns = [2 * np.pi * k * years for k in range(1, 5)]
    waves = [wave(turn) for turn in turns for wave in (np.sin, np.cos)]
    return np.column_stack([np.ones_like(years), centred, centred**2, *waves])


def process(X, y, Z, sigma, noise_variance, signal_variance):
    """Return means and standard deviations, with the noise, of the exact process."""
    ratio = noise_variance / signal_variance
    factor = cho_factor(rbf_kernel(X, gamma=sigma**2 / 2) + ratio * np.eye(len(X)))
    ones, cross = np.ones(len(X)), rbf_kernel(Z, X, gamma=sigma**2 / 2)
    solved = cho_solve(factor, np.column_stack([y, ones, cross.T]))
    weight = ones @ solved[:, 1]
    mean = ones @ solved[:, 0] / weight
    missing = 1 - cross @ solved[:, 1]
    variance = 1 + ratio - np.sum(cross.T * solved[:, 2:], axis=0) + missing**2 / weight
    means = mean + cross @ (solved[:, 0] - mean * solved[:, 1])
    return means, np.sqrt(signal_variance * variance)


def carbon(axis):
    """Predict the series, and draw the weeks about the year that is held out."""
    years, values, is_out = series()
    coef = np.linalg.lstsq(trend(years[~is_out]), values[~is_out])[0]
    left = values - trend(years) @ coef
    X, y, Z = years[~is_out, None], left[~is_out], years[is_out, None]
    start = time.perf_counter()
    lattice = QuadratureFourierFeatures(N_COMPONENTS)
    ours = ApproxKernelRidge(lattice, sigma="evidence", alpha="evidence").fit(X, y)
    seconds = time.perf_counter() - start
    sigma, noise_variance = ours.sigma_, float(ours.noise_variance_[0])
    signal_variance = noise_variance / ours.alpha_
    random = RFFSampler(N_COMPONENTS, sigma=sigma, random_state=0)
    known = {"alpha": ours.alpha_, "noise_variance": noise_variance}
    models = {"lattice": ours, "random": ApproxKernelRidge(random, **known).fit(X, y)}
    exact = process(X, y, Z, sigma, noise_variance, signal_variance)
    print(f"length scale {1 / sigma:.2f} years, chosen and fitted in {seconds:.1f} s")
    print(f"left after the parabola and the harmonics: {np.std(left[is_out]):.2f} ppm")
    for name, (mean, std) in {
        "exact process": exact,
        **{name: model.predict(Z, return_std=True) for name, model in models.items()},
    }.items():
        error = np.sqrt(np.mean((mean - left[is_out]) ** 2))
        apart = np.abs(mean - exact[0]).max(), np.abs(std / exact[1] - 1).max()
        print(f"{name:14} {error:.3f} ppm off; from the exact one {apart[0]:.1e}, {apart[1]:.1e}")
    grid = np.linspace(1983.5, 1987.5, 400)[:, None]
    mean, std = process(X, y, grid, sigma, noise_variance, signal_variance)
    axis.fill_between(grid[:, 0], mean - 2 * std, mean + 2 * std, color="0.8", label="exact")
    for name, colour in (("lattice", "C0"), ("random", "C1")):
        mean, std = models[name].predict(grid, return_std=True)
        for side in (-2, 2):
            label = name if side > 0 else None
            axis.plot(grid[:, 0], mean + side * std, color=colour, linewidth=1, label=label)
    near = (years > 1983.5) & (years < 1987.5)
    for kept, style in ((~is_out, "k."), (is_out, "kx")):
        axis.plot(years[near & kept], left[near & kept], style, markersize=3)
    axis.set(xlabel="year", ylabel="carbon dioxide less its trend (ppm)")
    axis.set(title=f"{N_COMPONENTS} components", ylim=(-2.1, 1.8), xticks=range(1984, 1988))
    axis.legend(frameon=False, loc="lower left", ncols=3)


def plane(axis):
    """Predict a draw of the process in the plane with more and more components."""
    rng = np.random.default_rng(0)
    places, noise = 10 * rng.random((2400, 2)), 0.1
    kernel = rbf_kernel(places, gamma=0.5)
    values, vectors = np.linalg.eigh(kernel)
    y = vectors @ (np.sqrt(np.maximum(values, 0)) * rng.normal(size=len(places)))
    y += noise * rng.normal(size=len(y))
    X, Z = places[:2000], places[2000:]
    exact, _ = process(X, y[:2000], Z, 1.0, noise**2, 1.0)
    sizes = [64, 128, 256, 512, 1024, 2048]
    maps = {
        "lattice": lambda n: QuadratureFourierFeatures(n, sigma=1.0),
        "random": lambda n: RFFSampler(n, sigma=1.0, random_state=0),
        "random, Sobol'": lambda n: RFFSampler(n, sigma=1.0, coupling="sobol", random_state=0),
    }
    for (name, make), colour in zip(maps.items(), ("C0", "C1", "C2"), strict=True):
        apart = []
        for size in sizes:
            model = ApproxKernelRidge(make(size), alpha=noise**2).fit(X, y[:2000])
            apart.append(np.sqrt(np.mean((model.predict(Z) - exact) ** 2)))
        print(f"plane, {name:14}" + "".join(f"{error:9.1e}" for error in apart), flush=True)
        axis.loglog(sizes, apart, "-o", color=colour, label=name)
    axis.set(title="2,000 places in the plane", xlabel="components")
    axis.set(ylabel="difference from the exact process")
    axis.legend(frameon=False)


def main():
    """Run both and save the picture."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    carbon(left)
    plane(right)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    OUTPUT.mkdir(exist_ok=True)
    figure.savefig(OUTPUT / "few_dimensions.png", dpi=150)
    print(f"Picture: {OUTPUT / 'few_dimensions.png'}")


if __name__ == "__main__":
    main()
