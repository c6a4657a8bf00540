"""Compare the standard deviations of ridge regression with those of the exact Gaussian process.

    python benchmarks/uncertainty.py --seeds 5

On 600 rows of functions with noise. The exact process has the sigma and the noise that evidence
chose for the features. Prints, over test rows, the mean relative difference of standard deviations
of the function (without noise) and of means (in units of the exact deviation), the mean negative
log density of standardised targets, and the share of targets within intervals of 90 %, of all rows
and of the thirds with the least and with the most noise. "scaled" divides squared residuals of
left-out rows by a kernel regression of them, as the page on uncertainty does.
"""

import argparse

import numpy as np
from sklearn.datasets import make_friedman1
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.model_selection import cross_val_predict

from skrf import ApproxKernelRidge, KernelRegressor, RFFSampler

ROWS, TEST = 600, 2000
QUANTILE = 1.6448536269514722  # of 90 % intervals
MAPS = {"landmarks, 512": None, "Fourier, 512": RFFSampler(512), "Fourier, 128": RFFSampler(128)}


def friedman(rng):
    """Ten columns of which five matter, and noise of deviation 1."""
    X, y = make_friedman1(ROWS + TEST, random_state=int(rng.integers(2**31)))
    return X, y, np.ones(len(y))


def sine(rng):
    """A sine whose noise grows from 0.05 to 0.5."""
    X = rng.uniform(size=(ROWS + TEST, 1))
    return X, np.sin(9 * X[:, 0]), 0.05 + 0.45 * X[:, 0]


def steps(rng):
    """A sum of waves in two columns, and five times the noise in half of the square."""
    X = rng.uniform(size=(ROWS + TEST, 2))
    return X, np.sin(7 * X[:, 0]) + np.cos(5 * X[:, 1]), np.where(X[:, 0] > 0.5, 0.5, 0.1)


SETS = {"friedman1": friedman, "growing noise": sine, "two levels": steps}


def density(truth, mean, deviation):
    """Return the mean negative log density."""
    terms = ((truth - mean) / deviation) ** 2 + np.log(2 * np.pi * deviation**2)
    return terms.mean() / 2


def measures(truth, mean, deviation, noise):
    """Return the negative log density, and the coverage of all, the quietest, the noisiest rows."""
    inside, order = np.abs(truth - mean) < QUANTILE * deviation, np.argsort(noise, kind="stable")
    third = len(order) // 3
    parts = (slice(None), order[:third], order[-third:])
    return [density(truth, mean, deviation), *(inside[part].mean() for part in parts)]


def scaled_noise(model, X, y, Z):
    """Return the variance of the noise at Z, a kernel regression of squared residuals."""
    residuals = y - cross_val_predict(model, X, y, cv=5)
    return KernelRegressor(random_state=0).fit(X, residuals**2).predict(Z)


def measure(name, seed):
    """Return the measures of every method."""
    rng = np.random.default_rng(seed)
    X, y, noise = SETS[name](rng)
    y = y + noise * rng.normal(size=len(y))
    y, noise = (y - y[:ROWS].mean()) / y[:ROWS].std(), noise / y[:ROWS].std()
    Z, truth, noise = X[ROWS:], y[ROWS:], noise[ROWS:]
    X, y = X[:ROWS], y[:ROWS]
    results = {}
    for method, feature_map in MAPS.items():
        model = ApproxKernelRidge(
            feature_map, sigma="evidence", alpha="evidence", random_state=seed
        ).fit(X, y)
        mean, deviation = model.predict(Z, return_std=True)
        variance, sigma = model.noise_variance_[0], model.sigma_
        kernel = ConstantKernel(variance / model.alpha_) * RBF(1 / sigma) + ConstantKernel(1e6)
        exact = GaussianProcessRegressor(kernel, alpha=variance, optimizer=None).fit(X, y)
        exact_mean, function = exact.predict(Z, return_std=True)
        own = np.sqrt(np.maximum(deviation**2 - variance, 0))
        gaps = [np.mean(np.abs(own / function - 1)), np.mean(np.abs(mean - exact_mean) / function)]
        results[method] = [*gaps, *measures(truth, mean, deviation, noise)]
        if feature_map is None:
            total = np.sqrt(function**2 + variance)
            results["exact process"] = [0, 0, *measures(truth, exact_mean, total, noise)]
            own = np.sqrt(scaled_noise(model, X, y, Z))
            results["landmarks, scaled"] = [np.nan, 0, *measures(truth, mean, own, noise)]
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    titles = "deviation", "mean", "density", "covered", "quiet", "noisy"
    for name in SETS:
        runs = [measure(name, seed) for seed in range(arguments.seeds)]
        print(f"{name:20}" + "".join(f"{title:>10}" for title in titles))
        for method in runs[0]:
            values = np.mean([run[method] for run in runs], axis=0)
            print(f"  {method:18}" + "".join(f"{value:10.3f}" for value in values), flush=True)


if __name__ == "__main__":
    main()
