"""Features of few columns against the exact Gaussian process: means, standard deviations, kernels.

    python benchmarks/few_dimensions.py [--only series]

`series` predicts the weekly carbon dioxide concentration at Mauna Loa, which ships with statsmodels
(``pip install statsmodels``): 2,225 weeks from 1958 to 2001, less a parabola and four harmonics of
the year. Every tenth week and all of 1985 are held out. It saves docs/guide/few_dimensions.png.
`table` has rows that are uniform in a box of so many length scales, targets that are a draw of
the process with noise of standard deviation 0.1, and predictions at other rows of the box: mean
absolute difference from the means of the exact process, and mean relative difference from its
standard deviations without the noise. `far` has rows up to 50 length scales outside of the box, and
`matern` the Matern kernels.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.linalg import cho_factor, cho_solve
from sklearn.metrics.pairwise import rbf_kernel

from skrf import ApproxKernelRidge, QuadratureFourierFeatures, RFFSampler

NOISE, N_ROWS, N_DRAWS = 0.1, 600, 3
N_COMPONENTS = 512  # of the series
PICTURE = Path(__file__).parents[1] / "docs" / "guide" / "few_dimensions.png"
CASES = [(1, 64, 10), (1, 64, 30), (2, 256, 5), (2, 256, 10), (3, 1000, 3), (3, 1000, 5)]


def problem(sides, seed, kernel="gaussian"):
    """Return rows, targets of a draw of the process, and other rows."""
    rng = np.random.default_rng(seed)
    X, Z = (np.array(sides) * rng.random((n, len(sides))) for n in (N_ROWS, 200))
    exact = QuadratureFourierFeatures(1, sigma=1.0, kernel=kernel).fit(X).exact_kernel
    values, vectors = np.linalg.eigh(exact(X))
    draw = vectors @ (np.sqrt(np.maximum(values, 0)) * rng.normal(size=N_ROWS))
    return X, draw + NOISE * rng.normal(size=N_ROWS), Z, exact


def process(X, y, Z, exact, noise_variance=NOISE**2):
    """Return means and standard deviations (with noise) of the exact process with a flat mean."""
    factor = cho_factor(exact(X) + noise_variance * np.eye(len(X)))
    ones, cross = np.ones(len(X)), exact(X, Z)
    weight = ones @ cho_solve(factor, ones)
    mean = ones @ cho_solve(factor, y) / weight
    solved = cho_solve(factor, cross)
    missing = 1 - ones @ solved
    variance = 1 + noise_variance - np.sum(cross * solved, axis=0) + missing**2 / weight
    return mean + solved.T @ (y - mean), np.sqrt(variance)


def predicted(feature_map, X, y, Z):
    """Return the same from ridge regression on features."""
    model = ApproxKernelRidge(feature_map, alpha=NOISE**2, noise_variance=NOISE**2)
    return model.fit(X, y).predict(Z, return_std=True)


def errors(feature_map_of, sides, kernel="gaussian"):
    """Return the errors of means and standard deviations, over some draws."""
    found = []
    for seed in range(N_DRAWS):
        X, y, Z, exact = problem(sides, seed, kernel)
        mean, std = process(X, y, Z, exact)
        ours, our_std = predicted(feature_map_of(seed), X, y, Z)
        ours_alone, alone = (np.sqrt(both**2 - NOISE**2) for both in (our_std, std))
        found.append((np.mean(np.abs(ours - mean)), np.mean(np.abs(ours_alone / alone - 1))))
    return np.mean(found, axis=0)


def lattice(n_columns, **options):
    """Return a function that makes the lattice features of a draw."""
    return lambda seed: QuadratureFourierFeatures(n_columns, sigma=1.0, **options)


def random_features(n_columns, coupling):
    """Return a function that makes random Fourier features of a draw."""
    return lambda seed: RFFSampler(n_columns, sigma=1.0, coupling=coupling, random_state=seed)


def table():
    """Errors of all maps in boxes of several sizes, and those of the kernel beside their bound."""
    print("d, columns, box | orthogonal | Sobol' | lattice, margin 0 | margin 4 | kernel / bound")
    for d, n_columns, size in CASES:
        sides = [size] * d
        maps = {
            "orthogonal": random_features(n_columns, "orthogonal"),
            "sobol": random_features(n_columns, "sobol"),
            "margin 0": lattice(n_columns, margin=0.0, box=[[0, size]] * d),
            "margin 4": lattice(n_columns, box=[[0, size]] * d),
        }
        cells = ["{:.1e} / {:.1e}".format(*errors(make, sides)) for make in maps.values()]
        X, _, Z, exact = problem(sides, 0)
        ends = np.concatenate([X, Z, np.zeros((1, d)), np.full((1, d), float(size))])
        fitted = lattice(n_columns, margin=0.0)(0).fit(ends)
        error = np.abs(fitted.approximate_kernel(ends) - exact(ends)).max()
        cells.append(f"{error:.1e} / {fitted.kernel_error_bound():.1e}")
        print(f"{d}, {n_columns}, {size} | " + " | ".join(cells), flush=True)


def far():
    """Largest differences from the exact process at rows outside of the box."""
    for d, n_columns, size in ((1, 64, 10), (2, 600, 5), (3, 4000, 3)):
        X, y, _, exact = problem([size] * d, 0)
        Z = np.full((60, d), size / 2)
        Z[:, 0] = size + np.linspace(1, 50, 60)
        mean, std = process(X, y, Z, exact)
        ours, our_std = predicted(lattice(n_columns)(0), X, y, Z)
        away = Z[:, 0] > size + 4
        largest = [np.abs(ours - mean)[away].max(), np.abs(our_std - std)[away].max()]
        print(
            f"d = {d}, {n_columns} columns: mean {largest[0]:.1e}, "
            f"standard deviation {largest[1]:.1e}"
        )


def matern():
    """Largest errors of the Matern kernels, beside their bounds."""
    print("kernel, d, columns, box | lattice, margin 0 | bound")
    for kernel in ("matern12", "matern32", "matern52"):
        for d, n_columns, size in ((1, 64, 10), (2, 256, 5)):
            X, _, _, exact = problem([size] * d, 0, kernel)
            fitted = lattice(n_columns, margin=0.0, kernel=kernel)(0).fit(X)
            error = np.abs(fitted.approximate_kernel(X) - exact(X)).max()
            bound = fitted.kernel_error_bound()
            print(f"{kernel}, {d}, {n_columns}, {size} | {error:.1e} | {bound:.1e}")


def trend(years):
    """Return the columns of a parabola and four harmonics of the year."""
    centred = (years - 1980) / 20
    turns = [2 * np.pi * k * years for k in range(1, 5)]
    waves = [wave(turn) for turn in turns for wave in (np.sin, np.cos)]
    return np.column_stack([np.ones_like(years), centred, centred**2, *waves])


def series():
    """Errors on the weeks that are held out, and distances from the exact process."""
    from statsmodels.datasets import co2

    table = co2.load_pandas().data["co2"].dropna()
    years = (table.index.year + (table.index.day_of_year - 0.5) / 365.25).to_numpy()
    is_out = (np.arange(len(years)) % 10 == 5) | ((years >= 1985) & (years < 1986))
    coef = np.linalg.lstsq(trend(years[~is_out]), table.to_numpy()[~is_out])[0]
    left = table.to_numpy() - trend(years) @ coef
    X, y, Z = years[~is_out, None], left[~is_out], years[is_out, None]
    start = time.perf_counter()
    ours = ApproxKernelRidge(
        QuadratureFourierFeatures(N_COMPONENTS), sigma="evidence", alpha="evidence"
    ).fit(X, y)
    seconds = time.perf_counter() - start
    sigma, noise_variance = ours.sigma_, float(ours.noise_variance_[0])
    random = RFFSampler(N_COMPONENTS, sigma=sigma, random_state=0)
    known = {"alpha": ours.alpha_, "noise_variance": noise_variance}
    models = {"lattice": ours, "random": ApproxKernelRidge(random, **known).fit(X, y)}

    def exact(rows):
        kernel = partial(rbf_kernel, gamma=sigma**2 / 2)
        mean, std = process(X, y, rows, kernel, ours.alpha_)
        return mean, std * np.sqrt(noise_variance / ours.alpha_)

    print(f"length scale {1 / sigma:.2f} years, chosen and fitted in {seconds:.1f} s")
    print(f"left after the parabola and the harmonics: {np.std(left[is_out]):.2f} ppm")
    of_process = exact(Z)
    for name, (mean, std) in {
        "exact process": of_process,
        **{name: model.predict(Z, return_std=True) for name, model in models.items()},
    }.items():
        error = np.sqrt(np.mean((mean - left[is_out]) ** 2))
        apart = np.abs(mean - of_process[0]).max(), np.abs(std / of_process[1] - 1).max()
        print(f"{name:14} {error:.3f} ppm off; from the exact one {apart[0]:.1e}, {apart[1]:.1e}")
    plot_series(years, left, is_out, exact, models)


def plot_series(years, left, is_out, exact, models):
    """Draw the weeks about the year that is held out, and bands of two standard deviations."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axis = figure.add_subplot()
    grid = np.linspace(1983.5, 1987.5, 400)[:, None]
    mean, std = exact(grid)
    axis.fill_between(grid[:, 0], mean - 2 * std, mean + 2 * std, color="0.8", label="exact")
    for (name, model), colour in zip(models.items(), ("C0", "C1"), strict=True):
        mean, std = model.predict(grid, return_std=True)
        axis.plot(grid, mean + 2 * std, color=colour, linewidth=1, label=name)
        axis.plot(grid, mean - 2 * std, color=colour, linewidth=1)
    near = (years > 1983.5) & (years < 1987.5)
    for shown, style in ((~is_out, "k."), (is_out, "kx")):
        axis.plot(years[near & shown], left[near & shown], style, markersize=3)
    axis.set(xlabel="year", ylabel="carbon dioxide less its trend (ppm)")
    axis.set(title=f"{N_COMPONENTS} components", ylim=(-2.1, 1.8), xticks=range(1984, 1988))
    axis.legend(frameon=False, loc="lower left", ncols=3)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURE, dpi=150)


PARTS = {"table": table, "far": far, "matern": matern, "series": series}


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    for name in parser.parse_args().only.split(","):
        PARTS[name]()


if __name__ == "__main__":
    main()
