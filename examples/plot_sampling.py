"""
Keys drawn in proportion to their kernel
========================================

Sampled softmax needs negatives that resemble the query. A sampler draws them in proportion to the
kernel of features, and knows the probability of each draw, without a pass over all keys.
"""

# %%
# The query lies at the cross, among 20,000 keys in the plane. Each draw takes a time that hardly
# depends on the number of keys.

import matplotlib.pyplot as plt
import numpy as np

from skrf import KernelSampler, OptimalPositiveRF

rng = np.random.default_rng(0)
keys = rng.normal(size=(20_000, 2))
query = np.array([[1.0, 0.5]])
features = OptimalPositiveRF(256, sigma=2.0, random_state=0)
sampler = KernelSampler(features, random_state=0).fit(keys)
drawn = sampler.sample(query, 500, random_state=0)[0]

everything = np.arange(len(keys))[None]
found = np.exp(sampler.log_prob(query, everything)[0])
kernel = np.exp(-2 * np.sum((keys - query) ** 2, axis=1))
wanted = kernel / kernel.sum()
overlap = np.minimum(found, wanted).sum()
print(f"the draws and the kernel share {overlap:.0%} of their probability")

# %%
# Left: the draws surround the query. Right: probabilities of the draws follow the kernel over
# many orders of magnitude; importance weights correct what is left.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.plot(*keys[::10].T, ".", color="0.8", markersize=2, label="keys")
left.plot(*keys[drawn].T, "o", color="C0", markersize=3, alpha=0.5, label="drawn")
left.plot(*query.T, "X", color="C1", markersize=12, markeredgecolor="white", label="query")
left.set(xlabel="first column", ylabel="second column", xlim=(-3.5, 3.5), ylim=(-3.5, 3.5))
left.legend(loc="lower left")
right.loglog(wanted[::10], found[::10], ".", markersize=2)
limits = [1e-9, 2 * wanted.max()]
right.loglog(limits, limits, "k--", linewidth=1)
right.set(xlabel="share of the kernel", ylabel="probability of a draw", xlim=limits)
right.set(ylim=limits)
plt.show()

assert overlap > 0.8 and abs(found.sum() - 1) < 1e-6
