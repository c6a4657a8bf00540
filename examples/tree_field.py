"""Clean a field of noisy directions on a tree, exactly and with random features.

    python examples/tree_field.py

Every point of a grid has a direction, one of 360 states, and was observed with noise. A random
spanning tree of the grid says who is similar to whom: the potential exp(x_i . x_j) of an edge, with
x = 1.6 (cos, sin), favours like directions. `TreeMRF` finds the distribution of every point given
all observations, with the kernel itself (360 x 360 numbers an edge) and with random features. A
table tells how far apart the two are for two maps and several numbers of features: errors of the
potential add up over the edges, and the map that places its projections near the embeddings pays.
A picture of the tree, coloured by the mean directions, is saved to examples/output.
"""

import time
from pathlib import Path

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from scipy.sparse import coo_array
from scipy.sparse.csgraph import minimum_spanning_tree

from skrf import AdaptiveRF, OptimalPositiveRF
from skrf.graphical import TreeMRF

OUTPUT = Path(__file__).parent / "output"
SIDE, N_STATES = 15, 360
COUPLING, PRECISION = 2.5, 0.8  # of neighbours, and of the noise
SIZES = (32, 64, 128, 256)
MAPS = (OptimalPositiveRF, AdaptiveRF)
SHOWN = "AdaptiveRF", 128
ANGLES = np.arange(N_STATES) * 2 * np.pi / N_STATES


def spanning_tree(rng):
    """Return the edges of a random spanning tree of the grid, whose points are counted by rows."""
    points = np.arange(SIDE**2).reshape(SIDE, SIDE)
    first = np.concatenate([points[:, :-1].ravel(), points[:-1].ravel()])
    second = np.concatenate([points[:, 1:].ravel(), points[1:].ravel()])
    weights = coo_array((rng.uniform(0.1, 1, len(first)), (first, second)), shape=(SIDE**2,) * 2)
    return np.argwhere(minimum_spanning_tree(weights.tocsr()).toarray())


def observed_field(rng):
    """Return true and observed directions in radians, a vortex and what noise leaves of it."""
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2 + 0.2
    true = (np.arctan2(y, x) + 0.25 * np.hypot(x, y)).ravel() % (2 * np.pi)
    return true, rng.vonmises(true, PRECISION) % (2 * np.pi)


def mean_directions(marginals):
    """Return the mean direction of every distribution, in radians."""
    return np.angle(np.array(marginals) @ np.exp(1j * ANGLES)) % (2 * np.pi)


def degrees_apart(a, b):
    """Return the mean distance of directions, at most 180."""
    return np.degrees(np.abs(np.angle(np.exp(1j * (a - b)))).mean())


def draw(edges, panels):
    """Save the tree with every point in the colour of its direction, once a panel."""
    y, x = np.divmod(np.arange(SIDE**2), SIDE)
    points = np.stack([x, y], axis=1)
    figure = Figure(figsize=(10, 10.4), layout="constrained")
    axes = figure.subplots(2, 2)
    for axis, (title, angles) in zip(axes.flat, panels.items(), strict=True):
        axis.add_collection(LineCollection(points[edges], colors="0.6", linewidths=2, zorder=1))
        shown = axis.scatter(
            x, y, c=np.degrees(angles), cmap="hsv", vmin=0, vmax=360, s=150, zorder=2
        )
        arrows = {"pivot": "mid", "scale": 1.5, "scale_units": "xy", "width": 0.004, "zorder": 3}
        axis.quiver(x, y, np.cos(angles), np.sin(angles), **arrows)
        axis.set(title=title, aspect="equal")
        axis.axis("off")
    figure.colorbar(
        shown, ax=axes, location="bottom", shrink=0.5, ticks=range(0, 361, 90), label="direction"
    )
    figure.savefig(OUTPUT / "tree_field.png", dpi=100)


def main():
    """Clean the field and compare."""
    rng = np.random.default_rng(0)
    edges = spanning_tree(rng)
    true, observed = observed_field(rng)
    embeddings = np.sqrt(COUPLING) * np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
    unary = list(PRECISION * np.cos(ANGLES - observed[:, None]))

    start = time.perf_counter()
    exact = TreeMRF(edges, embeddings, unary, feature_map="exact")
    exact_marginals = np.array(exact.marginals())
    print(f"{SIDE**2} variables of {N_STATES} states, {len(edges)} edges")
    print(f"observed directions: {degrees_apart(observed, true):.0f} degrees off on average")
    found = {"true": true, "observed": observed, "exact": mean_directions(exact_marginals)}
    print(
        f"exact marginals: {degrees_apart(found['exact'], true):.0f} degrees off, "
        f"log partition {exact.log_partition():.2f}, {time.perf_counter() - start:.1f} s"
    )
    print("map, features       total variation  degrees off  log partition  seconds")
    for make in MAPS:
        for size in SIZES:
            start = time.perf_counter()
            tree = TreeMRF(edges, embeddings, unary, feature_map=make(size, random_state=0))
            marginals = np.array(tree.marginals())
            directions = mean_directions(marginals)
            distance = np.abs(marginals - exact_marginals).sum(axis=1).mean() / 2
            print(
                f"{make.__name__:18s}{size:8d}{distance:17.3f}"
                f"{degrees_apart(directions, true):13.0f}{tree.log_partition():15.2f}"
                f"{time.perf_counter() - start:9.1f}"
            )
            if (make.__name__, size) == SHOWN:
                found[f"{size} random features ({make.__name__})"] = directions
    OUTPUT.mkdir(exist_ok=True)
    draw(edges, found)
    print(f"A picture is in {OUTPUT}")


if __name__ == "__main__":
    main()
