"""
A filter with 5,000 states
==========================

Forty beacons observe a walk on the sphere. A hidden Markov model with 5,000 places and 256 features
tracks it as closely as the exact filter, in a fraction of the time.
"""

# %%
# The walk takes small steps on the sphere. After each step, one beacon is heard, usually a nearby
# one. Steps and beacons are drawn from the exact probabilities, not from those of the features.

import time

import matplotlib.pyplot as plt
import numpy as np

from skrf import AdaptiveRF
from skrf.graphical import KernelHMM

n_states, n_beacons, n_steps = 5000, 40, 80
closeness, loudness = 60.0, 10.0  # of successive places, and of beacons


def on_sphere(n):
    """Return points that are spread evenly on the sphere."""
    height = 1 - (2 * np.arange(n) + 1) / n
    turn = np.pi * (1 + np.sqrt(5)) * np.arange(n)
    radius = np.sqrt(1 - height**2)
    return np.stack([radius * np.cos(turn), radius * np.sin(turn), height], axis=1)


def drawn(logits):
    """Return an index, drawn with probabilities proportional to the exponentials."""
    weights = np.exp(logits - logits.max())
    return rng.choice(len(weights), p=weights / weights.sum())


rng = np.random.default_rng(0)
places, beacons = on_sphere(n_states), on_sphere(n_beacons)
states, symbols = [], []
state = 0
for _ in range(n_steps):
    state = drawn(closeness * places @ places[state])
    states.append(state)
    symbols.append(drawn(loudness * beacons @ places[state]))
walk = places[states]

# %%
# ``filter_step`` takes one symbol and returns the distribution over places. With the exact kernel,
# it multiplies by a 5,000 x 5,000 matrix; with features, by two 5,000 x 256 matrices.


def tracked(feature_map):
    """Return the mean place after every step, and the seconds of a step."""
    model = KernelHMM(
        np.sqrt(closeness) * places, loudness * beacons, emitters=places, feature_map=feature_map
    )
    now = model.filter_step(symbols[0])  # makes what all steps need
    found = [now.posterior @ places]
    start = time.perf_counter()
    for symbol in symbols[1:]:
        now = model.filter_step(symbol, now)
        found.append(now.posterior @ places)
    seconds = (time.perf_counter() - start) / (n_steps - 1)
    return found / np.linalg.norm(found, axis=1, keepdims=True), seconds


def degrees_off(found):
    """Return the angle between places on the walk and estimates."""
    return np.degrees(np.arccos(np.clip(np.sum(found * walk, axis=1), -1, 1)))


exact, exact_seconds = tracked("exact")
draws = [tracked(AdaptiveRF(256, random_state=seed)) for seed in range(3)]
features, seconds = draws[0][0], min(draw[1] for draw in draws)
off = {
    "last beacon": degrees_off(beacons[symbols]).mean(),
    "exact filter": degrees_off(exact).mean(),
    "256 features": np.mean([degrees_off(draw[0]) for draw in draws]),
}
for name, error in off.items():
    print(f"{name:14s}{error:5.1f} degrees off")
print(f"a step takes {1e3 * exact_seconds:.0f} ms exactly, {1e3 * seconds:.0f} ms with features")

# %%
# On the map, both filters follow nearly the same path, close to the walk. The remaining error comes
# from the small number of beacons; the exact filter has it, too.


def on_map(points):
    """Return longitude and latitude, with gaps where the path leaves the map."""
    longitude, latitude = np.arctan2(points[:, 1], points[:, 0]), np.arcsin(points[:, 2])
    leaves = np.flatnonzero(abs(np.diff(longitude)) > np.pi) + 1
    return np.insert(longitude, leaves, np.nan), np.insert(latitude, leaves, np.nan)


figure = plt.figure(figsize=(6.6, 4.2), layout="constrained")
axis = figure.add_subplot(projection="mollweide")
axis.plot(*on_map(beacons), "x", color="0.6", label="beacons")
axis.plot(*on_map(walk), "k.--", linewidth=1, markersize=5, label="walk")
axis.plot(*on_map(exact), color="C1", linewidth=1.5, label="exact filter")
axis.plot(*on_map(features), color="C0", linewidth=2.5, label="filter with 256 features")
axis.set_xticks([], [])
axis.set_yticks([], [])
axis.grid(False)
figure.legend(loc="outside lower center", ncols=2)
plt.show()

assert off["256 features"] < off["exact filter"] + 2 < off["last beacon"]
