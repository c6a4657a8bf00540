"""
Rows that arrive in batches
===========================

A model that is computed from sums over rows learns the same from a stream, in any order, as from
all rows at once. Features that depend on the data must first see all of it, though: use fit_batches
or Dask.
"""

# %%
# Images of digits arrive in batches of 50, after a first one of 400. Ridge regression on
# `skrf.RFFSampler` and kernel regression on `skrf.AdaptiveRF` learn with ``partial_fit``; ridge
# regression is also trained on a stream sorted by digit. After every batch, the accuracy on
# held-out images is measured.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skrf import AdaptiveRF, ApproxKernelRidgeClassifier, KernelRegressionClassifier, RFFSampler

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X / 16, y, test_size=497, random_state=0)
ENDS = [*range(400, len(y), 50), len(y)]
ridge = ApproxKernelRidgeClassifier(RFFSampler(256), random_state=0)
smooth = KernelRegressionClassifier(AdaptiveRF(256), sigma=5.0, random_state=0)


def in_batches(order):
    """Return batches of 50 rows, after one of 400."""
    return [(X[rows], y[rows]) for rows in np.split(order, ENDS[:-1])]


def accuracies(model, order):
    """Return the accuracy on other images after every batch."""
    model, found = clone(model), []
    for batch in in_batches(order):
        model.partial_fit(*batch, classes=range(10))
        found.append(model.score(X_test, y_test))
    return found


as_they_come, by_digit = np.arange(len(y)), np.argsort(y, kind="stable")
streams = {
    "ridge on RFFSampler": accuracies(ridge, as_they_come),
    "ridge on RFFSampler, sorted by digit": accuracies(ridge, by_digit),
    "kernel regression on AdaptiveRF": accuracies(smooth, as_they_come),
}
for name, found in streams.items():
    print(f"{name:38s} accuracy after the last batch {found[-1]:.3f}")

# %%
# ``partial_fit`` fits the map to the first batch alone, so that this should not be small:
# `skrf.RFFSampler` learns its sigma from it, and `skrf.AdaptiveRF` places its projections near its
# images. From then on the map stays as it is. ``fit_batches`` reads all batches twice, first for
# the features and then for the sums, and gives the same model as ``fit`` on all rows, whatever
# their order.

fitted = {"ridge": clone(ridge).fit(X, y), "kernel regression": clone(smooth).fit(X, y)}
scores = {name: model.score(X_test, y_test) for name, model in fitted.items()}
others = []
for name, model in fitted.items():
    others.append((model, clone(model).fit_batches(in_batches(by_digit))))
    print(f"{name:18s} accuracy of fit_batches {others[-1][1].score(X_test, y_test):.3f}")

differences = [
    abs(other.decision_function(X_test) - model.decision_function(X_test)).max()
    for model, other in others
]
print(f"largest difference from fit: {max(differences):.0e}")

# %%
# Dashed lines show ``fit`` and ``fit_batches``; `skrf.dask.fit` gives the same. Ridge regression
# reaches its line with either stream. Kernel regression stays below its line, because its
# projections are placed near the first 400 images.

figure, axis = plt.subplots(figsize=(8, 4.2), layout="constrained")
looks = (("C0", "o-"), ("0.5", "^-"), ("C1", "s-"))
for (name, found), (color, style) in zip(streams.items(), looks, strict=True):
    axis.plot(ENDS, found, style, color=color, markersize=4, label=name)
for score, color in zip(scores.values(), ("C0", "C1"), strict=True):
    axis.axhline(score, color=color, linestyle="--", linewidth=1)
axis.set(xlabel="rows seen", ylabel="accuracy on other rows", ylim=(0, 1.02))
axis.legend(loc="lower right", bbox_to_anchor=(1.0, 0.05))
plt.show()

mixed, in_order, adaptive = (found[-1] for found in streams.values())
assert abs(mixed - scores["ridge"]) < 0.01 and abs(in_order - scores["ridge"]) < 0.01
assert adaptive > scores["kernel regression"] - 0.03 and max(differences) < 1e-6
