"""Features of few columns against the exact Gaussian process: means, standard deviations, kernels.

    python benchmarks/few_dimensions.py [--only table,far,matern]

The table has rows that are uniform in a box of so many length scales, targets that are a draw of
the process with noise of standard deviation 0.1, and predictions at other rows of the box: mean
absolute difference from the means of the exact process, and mean relative difference from its
standard deviations without the noise. `far` has rows up to 50 length scales outside of the box, and
`matern` the Matern kernels beside eigenfunctions of the Laplacian on a box (Riutort-Mayol and
others, 2023).
"""

import argparse

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from skrf import ApproxKernelRidge, QuadratureFourierFeatures, RFFSampler
from skrf.features.spectra import SPECTRA

NOISE, N_ROWS, N_DRAWS = 0.1, 600, 3
CASES = [(1, 64, 10), (1, 64, 30), (2, 256, 5), (2, 256, 10), (3, 1000, 3), (3, 1000, 5)]


def problem(sides, seed, kernel="gaussian"):
    """Return rows, targets of a draw of the process, and other rows."""
    rng = np.random.default_rng(seed)
    X, Z = (np.array(sides) * rng.random((n, len(sides))) for n in (N_ROWS, 200))
    exact = QuadratureFourierFeatures(1, sigma=1.0, kernel=kernel).fit(X).exact_kernel
    values, vectors = np.linalg.eigh(exact(X))
    draw = vectors @ (np.sqrt(np.maximum(values, 0)) * rng.normal(size=N_ROWS))
    return X, draw + NOISE * rng.normal(size=N_ROWS), Z, exact


def process(X, y, Z, exact):
    """Return means and standard deviations (with noise) of the exact process with a flat mean."""
    factor = cho_factor(exact(X) + NOISE**2 * np.eye(len(X)))
    ones, cross = np.ones(len(X)), exact(X, Z)
    weight = ones @ cho_solve(factor, ones)
    mean = ones @ cho_solve(factor, y) / weight
    solved = cho_solve(factor, cross)
    missing = 1 - ones @ solved
    variance = 1 + NOISE**2 - np.sum(cross * solved, axis=0) + missing**2 / weight
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


class Eigenfunctions:
    """Eigenfunctions of the Laplacian on a box 1.5 times as large, with spectral weights."""

    def __init__(self, n_columns, size, kernel):
        self.n_columns, self.size, self.spectrum = n_columns, size, SPECTRA[kernel]

    def kernel(self, X, Z):
        """Return the approximate kernel of rows in one or two dimensions."""
        d, half = X.shape[1], 0.75 * self.size
        n = round(self.n_columns ** (1 / d))
        numbers = np.stack(np.meshgrid(*[np.arange(1, n + 1)] * d), axis=-1).reshape(-1, d)
        roots = np.pi * numbers / (2 * half)
        density = self.spectrum.density(np.sum(roots**2, axis=1), d)

        def functions(rows):
            angles = roots * (rows - self.size / 2 + half)[:, None, :]
            return np.prod(np.sin(angles) / np.sqrt(half), axis=2)

        return (functions(X) * density) @ functions(Z).T


def matern():
    """Largest errors of the Matern kernels, beside eigenfunctions of as many columns."""
    print("kernel, d, columns, box | lattice, margin 0 | bound | eigenfunctions")
    for kernel in ("matern12", "matern32", "matern52"):
        for d, n_columns, size in ((1, 64, 10), (2, 256, 5)):
            X, _, _, exact = problem([size] * d, 0, kernel)
            fitted = lattice(n_columns, margin=0.0, kernel=kernel)(0).fit(X)
            ours = np.abs(fitted.approximate_kernel(X) - exact(X)).max()
            theirs = np.abs(Eigenfunctions(n_columns, size, kernel).kernel(X, X) - exact(X)).max()
            bound = fitted.kernel_error_bound()
            print(f"{kernel}, {d}, {n_columns}, {size} | {ours:.1e} | {bound:.1e} | {theirs:.1e}")


PARTS = {"table": table, "far": far, "matern": matern}


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    for name in parser.parse_args().only.split(","):
        PARTS[name]()


if __name__ == "__main__":
    main()
