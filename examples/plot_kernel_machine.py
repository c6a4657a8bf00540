"""
Near rows exact, far rows through landmarks; and which columns matter
=====================================================================

Two ideas of the kernel machine. Left: a few landmarks cannot follow a wiggly function; with the
exact kernel within leaves of 50 rows they can, in time linear in the rows. Right: how much each
column matters, as the fit finds from its own rows, beside what is lost on new rows when a column
is shuffled.
"""

# %%
# Six landmarks see the whole line, but smooth over a width that is far too large. Leaves add what
# they miss between rows that are near each other.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.inspection import permutation_importance

from skrf import ApproxKernelRidge, ClusterNystroem, KernelMachineRegressor

rng = np.random.default_rng(0)
x = np.sort(rng.uniform(0, 10, 400))[:, None]
y = np.sin(x[:, 0] ** 1.6) + 0.2 * rng.normal(size=400)
grid = np.linspace(0, 10, 600)[:, None]
landmarks = ClusterNystroem(6, sigma=3.0, centers="kmeans", random_state=0)
curves = {
    "6 landmarks": ApproxKernelRidge(landmarks, alpha=0.1),
    "and leaves of 50 rows": ApproxKernelRidge(landmarks, alpha=0.1, max_leaf_size=50),
    "the exact kernel": ApproxKernelRidge("exact", sigma=3.0, alpha=0.1),
}
curves = {name: model.fit(x, y).predict(grid) for name, model in curves.items()}

# %%
# Ten columns, of which four say something. ``feature_importances_`` permutes each column in one
# half of the rows, which members that are fitted to the other half predict.

X = rng.normal(size=(1000, 10))
target = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * np.abs(X[:, 3])
target += 0.3 * rng.normal(size=len(X))
model = KernelMachineRegressor(random_state=0).fit(X[:600], target[:600])
lost = permutation_importance(model, X[600:], target[600:], n_repeats=2, random_state=0)
lost = np.maximum(lost.importances_mean, 0)
print(f"R2 {model.score(X[600:], target[600:]):.3f}")

# %%

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.plot(x, y, ".", color="0.75", ms=3)
styles = ("C1", ":"), ("C0", "-"), ("C2", "--")
for (name, curve), (colour, line) in zip(curves.items(), styles, strict=True):
    left.plot(grid, curve, color=colour, ls=line, label=name)
left.set(xlabel="x", ylabel="y", ylim=(-1.8, 2.6))
left.legend(loc="upper left", fontsize=8, ncols=2)
places = np.arange(10)
right.barh(places - 0.2, model.feature_importances_, 0.4, label="feature_importances_")
right.barh(places + 0.2, lost / lost.sum(), 0.4, hatch="xx", label="permutation importance")
right.set(xlabel="share", yticks=places, yticklabels=[f"column {k}" for k in places])
right.invert_yaxis()
right.legend(fontsize=8)
plt.show()

# %%
# Leaves are as good as the exact kernel here, and the four columns that matter are found.

errors = {name: np.std(curve - np.sin(grid[:, 0] ** 1.6)) for name, curve in curves.items()}
assert errors["and leaves of 50 rows"] < errors["6 landmarks"] / 4
assert set(np.argsort(-model.feature_importances_)[:4]) == {0, 1, 2, 3}
