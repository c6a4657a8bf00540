"""
What a feature map does
=======================

A feature map turns a number x into a row of features. A model that is linear in the features is not
linear in x: with cosines and sines of random frequencies, it is a sum of waves.
"""

# %%
# `skrf.RFFSampler` makes a cosine and a sine of each of 30 random frequencies. Products of two such
# rows estimate a Gaussian kernel, and ridge regression fits a coefficient for every feature.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import Ridge

from skrf import RFFSampler

rng = np.random.default_rng(0)
x = np.sort(rng.uniform(0, 10, 80))[:, None]
y = np.sin(x[:, 0]) + 0.1 * x[:, 0] + 0.2 * rng.normal(size=80)
line = np.linspace(0, 10, 400)[:, None]

features = RFFSampler(60, sigma=1.0, random_state=0).fit(x)
model = Ridge(alpha=0.01).fit(features.transform(x), y)
curve = model.predict(features.transform(line))
straight = Ridge(alpha=0.01).fit(x, y).predict(line)
truth = np.sin(line[:, 0]) + 0.1 * line[:, 0]
errors = {name: np.abs(found - truth).mean() for name, found in (("x", straight), ("map", curve))}
print(f"mean error, linear in x: {errors['x']:.2f}, linear in the features: {errors['map']:.2f}")

# %%
# The middle shows the kernel of x and 5, exact and as the product of the two rows of features.

figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
axes[0].plot(line, features.transform(line)[:, :4])
axes[0].set(title="four of 60 features", xlabel="x")
middle = np.array([[5.0]])
axes[1].plot(line, features.exact_kernel(line, middle), "k", label="exact")
axes[1].plot(line, features.approximate_kernel(line, middle), "C0", label="features")
axes[1].set(title="their products: a kernel", xlabel="x")
axes[1].legend(frameon=False)
axes[2].plot(x, y, ".", color="0.6")
axes[2].plot(line, straight, "k:", label="linear in x")
axes[2].plot(line, curve, "C0", label="linear in features")
axes[2].set(title="a linear model of them", xlabel="x")
axes[2].legend(frameon=False)
plt.show()

assert errors["map"] < 0.15 < errors["x"]
