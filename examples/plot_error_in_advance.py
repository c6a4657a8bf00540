"""
The error, known in advance
===========================

How many components do you need for an error of 10 %? The variance of random features has a closed
form, so you can find out without computing features. This example compares the prediction with
measured errors.
"""

# %%
# From the closed form, `skrf.theory.n_components_for` finds the number of components at which half
# of all pairs of rows have a root mean square error of at most 10 % of the kernel. The rows are
# images of digits. Forty draws with this number of components then show the actual errors.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from skrf import OptimalPositiveRF, RFFSampler
from skrf.plotting import KernelErrorDisplay
from skrf.theory import n_components_for

X = load_digits().data[:150] / 16
measured = {}
for feature_map in (RFFSampler, OptimalPositiveRF):
    count = n_components_for(feature_map(), X, rel_error=0.1)
    errors = []
    for seed in range(40):
        features = feature_map(count, random_state=seed).fit(X)
        errors.append(features.approximate_kernel(X) / features.exact_kernel(X) - 1)
    measured[feature_map] = np.median(np.sqrt(np.mean(np.square(errors), axis=0)))
    error = measured[feature_map]
    print(f"{feature_map.__name__:18s}{count!r:20s} components, measured {error:.3f}")

# %%
# `skrf.plotting.KernelErrorDisplay` shows the same for several numbers of components: on the left
# the estimates of one draw, on the right the relative error of the whole kernel matrix, measured
# (median and range of five draws) and predicted. The curve bends at 128 components, which are the
# cosines and sines of 64 frequencies: no more than 64 can be at right angles to each other.

features = RFFSampler(256, random_state=0).fit(X)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
sizes = [32, 64, 128, 256, 512, 1024]
display = KernelErrorDisplay.from_estimator(features, X, n_components=sizes, ax=axes)
plt.show()

ratio = np.median(display.measured, axis=1) / display.predicted
print("measured / predicted", *ratio.round(2))
assert all(0.8 < ratio) and all(ratio < 1.2)
assert 0.08 < min(measured.values()) and max(measured.values()) < 0.12
