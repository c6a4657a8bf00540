"""
Couplings: how projections share the sphere
===========================================

Random features need random directions, but not independent ones. Directions at right angles, or in
simplices, cover the sphere more evenly and reduce the error at no cost.
"""

# %%
# In three dimensions, a block has three directions. Independent ones may be close to each other,
# orthogonal ones are at right angles, and those of a simplex are as far apart as three directions
# can be: in a plane, at 120 degrees. Each direction on its own is uniformly distributed on the
# sphere, so estimates are unbiased.

import matplotlib.pyplot as plt
import numpy as np

from skrf import OptimalPositiveRF, RFFSampler

X = np.random.default_rng(0).normal(size=(60, 3)) / np.sqrt(3)
couplings = {"iid": ("black", "--"), "orthogonal": ("C0", "-"), "simplex": ("C1", "-")}
feature_maps = {RFFSampler: 24, OptimalPositiveRF: 12}  # components of twelve projections
sigmas = np.geomspace(0.25, 2.5, 10)

# %%
# The errors below are root mean squares over all pairs of 60 rows, computed from closed forms:
# nothing has to be drawn.


def error(feature_map, coupling, sigma):
    """Return the root mean square over pairs, in closed form."""
    parameters = {"coupling": coupling, "sigma": sigma, "random_state": 0}
    features = feature_map(feature_maps[feature_map], **parameters).fit(X)
    return np.sqrt(features.kernel_variance(X).mean())


at_half = {}
for feature_map in feature_maps:
    for coupling in couplings:
        ratio = error(feature_map, coupling, 0.5) / error(feature_map, "iid", 0.5)
        at_half[feature_map, coupling] = ratio
        print(f"{feature_map.__name__:18s}{coupling:11s} at sigma 0.5: {ratio:.2f} times iid's")

# %%
# The upper row shows three directions of each coupling, the lower row the error relative to that of
# independent directions. Right angles are best for sines and cosines, and simplices for positive
# features. For narrow kernels (a large sigma), no coupling helps much.

figure = plt.figure(figsize=(9, 6.4), layout="constrained")
above, below = figure.subfigures(2, 1)
circle = np.linspace(0, 2 * np.pi, 60)
for i, (coupling, (color, _)) in enumerate(couplings.items()):
    axis = above.add_subplot(1, 3, i + 1, projection="3d")
    omega = OptimalPositiveRF(3, coupling=coupling, random_state=0).fit(X).omega_
    omega = omega / np.linalg.norm(omega, axis=1, keepdims=True)
    for turn in (0, np.pi / 3, 2 * np.pi / 3):
        x, y = np.cos(turn) * np.cos(circle), np.sin(turn) * np.cos(circle)
        axis.plot(x, y, np.sin(circle), color="0.85", linewidth=0.8)
    axis.quiver(*np.zeros((3, 3)), *omega.T, color=color, linewidth=2.5, arrow_length_ratio=0.15)
    angles = np.degrees(np.arccos((omega @ omega.T)[np.triu_indices(3, 1)]))
    axis.set_title(
        f"{coupling}\nangles {angles[0]:.0f}°, {angles[1]:.0f}°, {angles[2]:.0f}°", y=1.0
    )
    axis.set_box_aspect((1, 1, 1), zoom=1.5)
    axis.set_axis_off()
for axis, feature_map in zip(below.subplots(1, 2, sharey=True), feature_maps, strict=True):
    base = np.array([error(feature_map, "iid", sigma) for sigma in sigmas])
    for coupling, (color, style) in couplings.items():
        errors = [error(feature_map, coupling, sigma) for sigma in sigmas]
        axis.semilogx(sigmas, errors / base, style, color=color, label=coupling)
    axis.set(title=feature_map.__name__, xlabel="sigma", ylim=(0, 1.1))
    axis.set_xticks([0.25, 0.5, 1, 2], ["0.25", "0.5", "1", "2"])
    axis.set_xticks([], minor=True)
below.axes[0].set_ylabel("error, as a multiple of iid's")
below.axes[0].legend(loc="lower right")
plt.show()

assert at_half[RFFSampler, "orthogonal"] < 0.85 < at_half[RFFSampler, "simplex"]
assert at_half[OptimalPositiveRF, "simplex"] < 0.65 < at_half[OptimalPositiveRF, "orthogonal"]
