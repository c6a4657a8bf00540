"""
Error bars, and when to trust them
==================================

Ridge regression on random features is a Gaussian process, and gives error bars in linear time. With
too few components, the bars are too narrow, above all where there are no data.
"""

# %%
# Thirty functions are drawn from a Gaussian process, and 200 noisy values of each are observed,
# with a gap in the middle. The exact process is scikit-learn's; its time grows with the cube of the
# number of rows. All models use the true kernel and noise level, so bars of two standard deviations
# should contain the truth in 95 % of the cases.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.metrics.pairwise import rbf_kernel

from skrf import ApproxKernelRidge, RFFSampler

sigma, noise, n_functions = 1.0, 0.3, 30
rng = np.random.default_rng(0)
X = np.concatenate([rng.uniform(-4, -1, 100), rng.uniform(1, 4, 100)])[:, None]
grid = np.linspace(-5, 5, 201)[:, None]
gap = abs(grid[:, 0]) < 0.5

everywhere = np.concatenate([X, grid])
covariance = rbf_kernel(everywhere, gamma=sigma**2 / 2) + 1e-8 * np.eye(len(everywhere))
functions = rng.normal(size=(n_functions, len(everywhere))) @ np.linalg.cholesky(covariance).T
noisy = functions[:, : len(X)] + noise * rng.normal(size=(n_functions, len(X)))
truths = functions[:, len(X) :]


def bands(n_components, number):
    """Return the mean on the grid and its deviation for one of the functions."""
    if n_components is None:
        kernel = RBF(1 / sigma) + WhiteKernel(noise**2)
        model = GaussianProcessRegressor(kernel, optimizer=None)
    else:
        features = RFFSampler(n_components, sigma=sigma, random_state=number)
        model = ApproxKernelRidge(features, noise_variance=noise**2)
    mean, deviation = model.fit(X, noisy[number]).predict(grid, return_std=True)
    return mean, np.sqrt(deviation**2 - noise**2)  # of the function, without the noise


sizes = {"exact Gaussian process": None, "1,024 components": 1024, "24 components": 24}
found = {
    name: np.array([bands(size, number) for number in range(n_functions)])
    for name, size in sizes.items()
}
beside = (abs(grid[:, 0]) > 1) & (abs(grid[:, 0]) < 4)
coverage = {}
for name, parts in found.items():
    is_within = abs(parts[:, 0] - truths) < 2 * parts[:, 1]
    coverage[name] = is_within[:, gap].mean()
    print(f"{name:23s} bars hold the truth: {coverage[name]:.2f} in the gap", end=", ")
    print(f"{is_within[:, beside].mean():.2f} beside it")

# %%
# A model with 24 components has only 24 coefficients, and 200 rows determine all of them. Its bars
# are therefore narrow everywhere, which is wrong, above all where there are no data. As a check,
# double the number of components: standard deviations should not increase.
#
# The figure shows one of the functions. The titles give how often the bars contain the truth in the
# gap:

figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained", sharey=True)
for axis, (name, parts) in zip(axes, found.items(), strict=True):
    mean, deviation = parts[2]
    band = mean - 2 * deviation, mean + 2 * deviation
    axis.fill_between(grid[:, 0], *band, color="C0", alpha=0.25, label="two deviations")
    axis.plot(grid[:, 0], mean, color="C0", label="mean")
    axis.plot(grid[:, 0], truths[2], "k--", linewidth=1, label="truth")
    axis.plot(X[:, 0], noisy[2], ".", color="0.5", markersize=2, label="data")
    axis.set(title=f"{name}: {coverage[name]:.0%}", xlabel="x", xlim=(-5, 5))
axes[0].set_ylabel("y")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
plt.show()

exact, many, few = coverage.values()
assert exact > 0.85 and many > 0.8 and few < 0.7
