"""
Sigma, and what a feature map does
==================================

A feature map turns each row into new columns, and a linear model on these columns is a curve in the
original inputs. Sigma sets how fast the new columns vary: if it is too small, the model is nearly a
straight line; if it is too large, the model follows the noise.
"""

# %%
# The data have a single column here, so that the features can be plotted. Ridge regression is
# fitted to 64 features, eight of which are shown in the upper panels.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline

from skrf import RFFSampler

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(-3, 3, size=(80, 1)), axis=0)
y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 0] + 0.3 * rng.normal(size=80)
grid = np.linspace(-3, 3, 400)[:, None]
truth = np.sin(2 * grid[:, 0]) + 0.3 * grid[:, 0]

sigmas = {"too wide a kernel": 0.2, "right": 1.5, "too narrow": 15.0}
figure, axes = plt.subplots(2, 3, figsize=(10, 5), sharex=True, layout="constrained")
errors = []
for (title, sigma), (upper, lower) in zip(sigmas.items(), axes.T, strict=True):
    features = RFFSampler(64, sigma=sigma, random_state=0)
    model = make_pipeline(features, Ridge(alpha=0.01)).fit(X, y)
    upper.plot(grid, features.transform(grid)[:, :64:8])
    upper.set(title=f"sigma = {sigma:g}: {title}", yticks=[])
    lower.plot(X, y, ".", color="0.6", ms=4)
    lower.plot(grid, truth, "k:", lw=1)
    lower.plot(grid, model.predict(grid))
    errors.append(np.sqrt(np.mean((model.predict(grid) - truth) ** 2)))
    lower.set(xlabel=f"error {errors[-1]:.2f}", ylim=(-2.8, 2.8))
axes[0, 0].set_ylabel("features")
axes[1, 0].set_ylabel("predictions")
plt.show()

# %%
# Cross-validation finds sigma without knowing the true curve. For most data, a search over a few
# values, evenly spaced on a log scale, is enough.

model = make_pipeline(RFFSampler(64, random_state=0), Ridge(alpha=0.01))
folds = KFold(5, shuffle=True, random_state=0)
search = GridSearchCV(model, {"rffsampler__sigma": np.geomspace(0.2, 15, 7)}, cv=folds)
best = search.fit(X, y).best_params_["rffsampler__sigma"]
print(f"best sigma: {best:.2f}")

assert errors[1] < 0.6 * min(errors[0], errors[2]) and 0.5 < best < 4
