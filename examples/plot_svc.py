"""
SVC's accuracy at linear cost
=============================

The training time of a support vector machine grows with the square of the number of rows or faster.
Ridge regression on 512 random features is as accurate here, in time proportional to that number.
"""

# %%
# The data have five columns and two classes: targets of ``make_friedman1`` above and below their
# median. Both kernel methods use the same Gaussian kernel, their default: ``gamma="scale"`` in
# ``SVC`` and ``sigma="scale"`` in the features. ``SVC`` keeps its default penalty; ridge regression
# chooses its penalty by closed-form leave-one-out (``sigmas=None``).

import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_friedman1
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from skrf import ApproxKernelRidgeClassifierCV, RFFSampler

X, target = make_friedman1(20_000, n_features=5, noise=1.0, random_state=0)
X = (X - X.mean(axis=0)) / X.std(axis=0)
y = (target > np.median(target)).astype(int)
X_test, y_test = X[16_000:], y[16_000:]

features = RFFSampler(512)
models = {
    "SVC": SVC(gamma="scale"),
    "ridge on 512 features": ApproxKernelRidgeClassifierCV(features, sigmas=None, random_state=0),
    "logistic regression": LogisticRegression(),
}
sizes = {name: [500, 1000, 2000, 4000, 8000, 16_000] for name in models}
sizes["SVC"] = sizes["SVC"][:-1]  # it would take the longest of all by far
RFFSampler(512).fit(X).transform(X)  # so many that sines are compiled, once
seconds, scores = {name: [] for name in models}, {name: [] for name in models}
for name, model in models.items():
    for n in sizes[name]:
        start = time.process_time()
        scores[name].append(model.fit(X[:n], y[:n]).score(X_test, y_test))
        seconds[name].append(time.process_time() - start)
    print(f"{name:22s} {sizes[name][-1]:6d} rows  accuracy {scores[name][-1]:.3f}")
    print(f"{'':22s} fit and {len(y_test)} predictions {seconds[name][-1]:.2f} CPU s")

# %%
# Times were taken when this page was built; they differ between machines, but slopes do not. On the
# same rows, ``SVC`` and ridge regression are equally accurate here, to within half a point. Up to a
# few thousand rows, ``SVC`` is as fast, and there is no reason to avoid it. Beyond that, features
# learn from more rows in less time.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
looks = (("black", "s--"), ("C0", "o-"), ("C1", "^-"))
for name, (color, style) in zip(models, looks, strict=True):
    left.loglog(sizes[name], seconds[name], style, color=color)
    right.semilogx(sizes[name], scores[name], style, color=color, label=name)
left.set(xlabel="rows", ylabel="fit and predictions, CPU seconds")
right.set(xlabel="rows", ylabel="accuracy on other rows", ylim=(0.8, 0.96))
right.legend(loc="center right")
plt.show()

svc, ridge, linear = scores.values()
assert abs(svc[-1] - ridge[-2]) < 0.01 and ridge[-1] > ridge[0] + 0.01
assert ridge[-1] > linear[-1] + 0.05
