"""
Where a walk may have been
==========================

A point walks around a circle and is seen through noise, with two gaps. The marginals of a chain
with 1,440 states show where it may have been: exactly, and with 128 features in place of all pairs
of states.
"""

# %%
# Neighbours in time are near each other on the circle: their potential is a Gaussian kernel of the
# two places, which on a circle is the exponential of a product. The evidence is the log likelihood
# of every place given what was seen, and 0 in the gaps.

import matplotlib.pyplot as plt
import numpy as np

from skrf import AdaptiveRF
from skrf.graphical import ChainMRF

n_states, length, closeness, noise = 1440, 120, 20.0, 0.3
rng = np.random.default_rng(0)
walk = np.cumsum(rng.normal(scale=closeness**-0.5, size=length))
seen = walk + rng.normal(scale=noise, size=length)
gaps = np.r_[30:50, 80:95]

angles = 2 * np.pi * np.arange(n_states) / n_states
places = np.sqrt(closeness) * np.stack([np.cos(angles), np.sin(angles)], axis=1)
evidence = np.cos(seen[:, None] - angles) / noise**2
evidence[gaps] = 0.0

# %%
# ``embeddings`` and ``later`` are the same, so potentials are unbiased; on a circle no state has a
# larger embedding than another.

chains = {
    "exact": ChainMRF(places, places, unary=evidence, feature_map="exact"),
    "128 features": ChainMRF(
        places, places, unary=evidence, feature_map=AdaptiveRF(128), random_state=0
    ),
}
marginals = {name: chain.marginals() for name, chain in chains.items()}
distance = np.abs(marginals["exact"] - marginals["128 features"]).sum(axis=1).mean() / 2
print(f"total variation, mean over positions: {distance:.3f}")

# %%
# Marginals are narrow where the point was seen, and spread in the gaps between what was seen before
# and after.

figure, axes = plt.subplots(2, 1, figsize=(7, 5), sharex=True, layout="constrained")
for axis, (name, probabilities) in zip(axes, marginals.items(), strict=True):
    axis.pcolormesh(np.arange(length), np.degrees(angles), np.sqrt(probabilities.T), cmap="Blues")
    axis.plot(np.degrees(walk) % 360, ".", color="C3", ms=3)
    axis.set(ylabel="degrees", title=name)
axes[1].set_xlabel("position; red: the walk")
plt.show()

assert distance < 0.15
