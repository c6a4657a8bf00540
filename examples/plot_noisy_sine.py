"""
Why positive features: a noisy sine
===================================

Kernel regression predicts the mean of the targets, weighted by the kernel. With sines and cosines,
some estimated weights are negative, their sum can come close to zero, and the prediction then
strays from the data. With positive features, this cannot happen.
"""

# %%
# The data are 400 noisy values of a sine. Kernel regression uses either the full kernel matrix or
# 32 components of a feature map. All three models use the same kernel.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.kernel_approximation import RBFSampler

from skrf import AdaptiveRF, KernelRegressor

n_components, sigma = 32, 5.0
rng = np.random.default_rng(0)
X = rng.uniform(-3, 3, size=(400, 1))
y = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=400)
grid = np.linspace(-3, 3, 400)[:, None]
truth = np.sin(2 * grid[:, 0])

fourier = RBFSampler(gamma=sigma**2 / 2, n_components=n_components, random_state=0)
models = {
    "exact kernel regression": KernelRegressor("exact", sigma=sigma),
    f"RBFSampler, {n_components} components": KernelRegressor(fourier),
    f"AdaptiveRF, {n_components} components": KernelRegressor(
        AdaptiveRF(n_components, sigma=sigma, random_state=0)
    ),
}
curves = {name: model.fit(X, y).predict(grid) for name, model in models.items()}
errors = {name: np.sqrt(np.mean((curve - truth) ** 2)) for name, curve in curves.items()}
for name, error in errors.items():
    print(f"{name:26s} root mean square error {error:.3f}")

# %%
# The curve of the adaptive features is close to that of the exact kernel. The curve of
# ``RBFSampler`` strays from the data wherever the sum of its weights comes close to zero.

figure, axis = plt.subplots(figsize=(9, 3.6), layout="constrained")
axis.plot(X[:, 0], y, ".", color="0.75", markersize=4, label="data")
styles = (("black", "--", 2.0), ("C3", "-", 1.3), ("C0", "-", 2.2))
for (name, curve), (color, style, width) in zip(curves.items(), styles, strict=True):
    axis.plot(grid[:, 0], curve, style, color=color, linewidth=width, label=name)
axis.set(ylim=(-1.9, 3.0), xlim=(-3, 3), xticks=[], yticks=[])
axis.legend(loc="upper center", ncols=2, framealpha=1.0)
plt.show()

exact, signed, positive = errors.values()
assert positive < 1.5 * exact and signed > 2 * exact
