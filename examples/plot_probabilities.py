"""
Probabilities that can be believed
==================================

Of all rows to which a model gives a probability near 0.8, eighty percent should belong to the
class. Kernel models come close to that; boosting with its defaults is too sure of itself.
"""

# %%
# The data have ten columns and two classes that overlap: 500 rows to learn from, and 8,000 others
# to compare probabilities with shares.

import matplotlib.pyplot as plt
from sklearn.calibration import calibration_curve
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss

from skrf import ApproxKernelRidgeClassifierCV, KernelMachineClassifier, KernelRegressionClassifier

X, y = make_classification(
    8500, 10, n_informative=5, n_clusters_per_class=3, flip_y=0.2, random_state=0
)
models = {
    "kernel machine": KernelMachineClassifier(random_state=0),
    "ridge search": ApproxKernelRidgeClassifierCV(random_state=0),
    "kernel regression": KernelRegressionClassifier(random_state=0),
    "boosting": HistGradientBoostingClassifier(random_state=0),
}
given, losses = {}, {}
for name, model in models.items():
    given[name] = model.fit(X[:500], y[:500]).predict_proba(X[500:])[:, 1]
    losses[name] = log_loss(y[500:], given[name])
    print(f"{name:18s} log loss {losses[name]:.3f}")

# %%
# A curve that is above the diagonal on the left and below it on the right belongs to probabilities
# that are too extreme, like those of boosting.

figure, axis = plt.subplots(figsize=(6.5, 4), layout="constrained")
axis.plot([0, 1], [0, 1], color="0.5", linewidth=1, label="as they should be")
looks = ("o-", "s--", "^-.", "D:")
for (name, P), look in zip(given.items(), looks, strict=True):
    shares, means = calibration_curve(y[500:], P, n_bins=8, strategy="quantile")
    axis.plot(means, shares, look, label=f"{name}: log loss {losses[name]:.2f}")
axis.set(xlabel="mean probability of the rows of a bin", ylabel="share of the class")
axis.legend()
plt.show()

assert losses["kernel machine"] < losses["ridge search"] + 0.02 < losses["boosting"]
