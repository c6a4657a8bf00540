"""
Error bars, and functions drawn from a posterior
================================================

Left: the standard deviations of targets grow where there are no data, as they should. Right: six
functions that agree with the same data; what they say of a maximum is how well it is known.
"""

# %%
# The data are 120 noisy values of a function, with a gap in the middle. The kernel machine needs
# one call; ridge regression whose prior is fitted by evidence also draws functions.

import matplotlib.pyplot as plt
import numpy as np

from skrf import ApproxKernelRidge, KernelMachineRegressor

rng = np.random.default_rng(0)
X = np.concatenate([rng.uniform(-4, -1, 60), rng.uniform(1, 4, 60)])[:, None]


def truth(x):
    """Return what the targets are without noise."""
    return np.sin(2 * x) + 0.3 * x


y = truth(X[:, 0]) + 0.3 * rng.normal(size=len(X))
grid = np.linspace(-6, 6, 241)[:, None]
mean, std = KernelMachineRegressor(random_state=0).fit(X, y).predict(grid, return_std=True)
ridge = ApproxKernelRidge(sigma="evidence", alpha="evidence", random_state=0).fit(X, y)
functions = ridge.sample_y(grid, 6, random_state=0)

near = (abs(grid[:, 0]) > 1) & (abs(grid[:, 0]) < 4)
new = truth(grid[:, 0]) + 0.3 * rng.normal(size=(200, len(grid)))
coverage = np.mean(abs(new - mean) < 1.645 * std, axis=0)
print(f"intervals of 90 % hold {coverage[near].mean():.0%} of new targets near the data")
print(f"deviation of a target: {std[near].mean():.2f} near the data, {std[0]:.2f} at the end")

# %%
# Both models are least sure where there are no data: the bars are wider in the gap, and far from
# the data as wide as the targets vary.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
for axis in axes:
    axis.plot(X[:, 0], y, ".", color="0.5", markersize=3, label="data")
    axis.plot(grid[:, 0], truth(grid[:, 0]), "k--", linewidth=1, label="truth")
    axis.set(xlabel="x", xlim=(-6, 6), ylim=(-5, 5))
band = mean - 1.645 * std, mean + 1.645 * std
axes[0].fill_between(grid[:, 0], *band, color="C0", alpha=0.25, label="interval of 90 %")
axes[0].plot(grid[:, 0], mean, color="C0", label="mean")
axes[1].plot(grid[:, 0], functions, linewidth=1)
axes[0].set(title="KernelMachineRegressor", ylabel="y")
axes[1].set(title="ApproxKernelRidge, six samples")
axes[0].legend(loc="upper center", ncols=2, fontsize=8)
plt.show()

assert 0.85 < coverage[near].mean() < 0.97 and std[0] > 3 * std[near].mean()
