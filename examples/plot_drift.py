"""
Drift that no column shows
==========================

The mean of random features describes the whole distribution of the rows, not only their mean. The
distance between the mean features of a batch and of a reference (the maximum mean discrepancy)
detects drift in linear time.
"""

# %%
# A stream with two columns arrives in batches of 200 rows. Each column is standard normal
# throughout. From batch 40 on, the correlation between the columns falls from 0.6 to -0.6.

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import ks_2samp

from skrf import RFFSampler

rng = np.random.default_rng(0)
n_batches, start, size = 100, 40, 200
correlations = np.interp(np.arange(n_batches), [start, n_batches - 1], [0.6, -0.6])


def rows(n, correlation):
    """Return n rows of two normal columns."""
    first, noise = rng.normal(size=(2, n))
    return np.stack([first, correlation * first + np.sqrt(1 - correlation**2) * noise], axis=1)


reference = rows(2000, 0.6)
batches = [rows(size, correlation) for correlation in correlations]

# %%
# Of the reference, only the mean of 256 features is kept. The threshold comes from permutations: of
# batches drawn from the reference, one in a hundred is farther than this from the other rows. The
# baseline is a Kolmogorov-Smirnov test of each column, at the same level.

features = RFFSampler(256, sigma="median", random_state=0).fit(reference)
mapped = features.transform(reference)
mean = mapped.mean(axis=0)


def distance(batch, others):
    """Return the distance between the means of two sets of features."""
    return np.linalg.norm(batch.mean(axis=0) - others)


permuted = []
for _ in range(500):
    drawn = mapped[rng.choice(len(mapped), size, replace=False)]
    others = (len(mapped) * mean - drawn.sum(axis=0)) / (len(mapped) - size)
    permuted.append(distance(drawn, others))
threshold = np.quantile(permuted, 0.99)
distances = np.array([distance(features.transform(batch), mean) for batch in batches])
p_values = [[ks_2samp(batch[:, j], reference[:, j]).pvalue for j in (0, 1)] for batch in batches]
by_column = np.min(p_values, axis=1) < 0.01 / 2
alarms = distances > threshold
first = start + np.argmax(alarms[start:])
for name, found in (("features", alarms), ("columns", by_column)):
    before, after = found[:start].mean(), found[start:].mean()
    print(f"{name:9s} share of alarms: {before:.2f} before the drift, {after:.2f} after it began")
print(f"first alarm of the features: batch {first}, correlation {correlations[first]:.2f}")

# %%
# Tests of single columns find nothing, because the distribution of each column stays the same. The
# distance between the mean features grows as the correlation falls, and crosses the threshold.

figure, axis = plt.subplots(figsize=(8, 3.8), layout="constrained")
axis.axvspan(start, n_batches, color="0.92")
axis.annotate("correlation goes from 0.6 to -0.6", (63, 0.02), color="0.3")
axis.plot(distances, color="0.6", linewidth=1)
axis.plot(np.flatnonzero(~alarms), distances[~alarms], "o", color="C0", label="batch")
axis.plot(np.flatnonzero(alarms), distances[alarms], "X", color="C1", label="batch, alarm")
axis.axhline(threshold, color="black", linestyle="--", label="threshold by permutation")
axis.set(xlabel="batch", ylabel="distance of mean features", xlim=(0, n_batches), ylim=(0, None))
axis.legend(loc="upper left")
plt.show()

assert alarms[:start].mean() < 0.1 and by_column.mean() < 0.1
assert alarms[-20:].all()
