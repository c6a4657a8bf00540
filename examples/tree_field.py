"""Clean up noisy labels on a tree: exact messages against random features, in a picture.

    python examples/tree_field.py

A tree spans the pixels of a small image at random. Every pixel has one of many states, points on
a colour wheel, and neighbours on the tree like similar ones. Each pixel is observed with noise,
which is its unary potential. The marginals are computed with the kernel itself, quadratic in the
number of states, and with random features, linear in it. The picture shows the truth, the
observation, and the state of largest marginal of both, with the tree drawn over the pixels.
"""

import time
from pathlib import Path

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from skrf import AdaptiveRF
from skrf.graphical import TreeMRF

OUTPUT = Path(__file__).parent / "output"
SIDE, N_STATES = 14, 360
CONCENTRATION = 4.0  # of neighbours: the potential is exp(CONCENTRATION cos(difference))
NOISE = 0.8  # standard deviation of the observed angle


def spanning_tree(rng):
    """Return the edges of a random spanning tree of the grid of pixels."""
    links = [
        (y * SIDE + x, (y + dy) * SIDE + x + dx)
        for y in range(SIDE)
        for x in range(SIDE)
        for dy, dx in ((0, 1), (1, 0))
        if y + dy < SIDE and x + dx < SIDE
    ]
    root = list(range(SIDE * SIDE))

    def find(i):
        while root[i] != i:
            i = root[i]
        return i

    edges = []
    for i, j in rng.permutation(links):
        if find(i) != find(j):
            root[find(i)] = find(j)
            edges.append((int(i), int(j)))
    return edges


def main():
    """Draw, infer, report and show."""
    rng = np.random.default_rng(0)
    angles = 2 * np.pi * np.arange(N_STATES) / N_STATES
    embeddings = np.sqrt(CONCENTRATION) * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    edges = spanning_tree(rng)

    # The truth is drawn from the model itself, without observations.
    prior = TreeMRF(edges, embeddings, feature_map="exact")
    truth = angles[prior.sample(random_state=1)[0]]
    observed = truth + NOISE * rng.normal(size=SIDE * SIDE)
    unary = np.cos(observed[:, None] - angles) / NOISE**2

    panels = {"truth": truth, "observed": observed % (2 * np.pi)}
    beliefs = {}
    for name, feature_map in (
        ("exact kernel", "exact"),
        ("256 random features", AdaptiveRF(256, random_state=0)),
    ):
        start = time.perf_counter()
        tree = TreeMRF(edges, embeddings, unary, feature_map=feature_map)
        beliefs[name] = np.array(tree.marginals())
        seconds = time.perf_counter() - start
        panels[name] = angles[beliefs[name].argmax(axis=1)]
        error = np.abs(np.angle(np.exp(1j * (panels[name] - truth)))).mean()
        print(f"{name}: {seconds:.2f} s, mean error {np.degrees(error):.1f} degrees")
    error = np.abs(np.angle(np.exp(1j * (observed - truth)))).mean()
    print(f"observed: mean error {np.degrees(error):.1f} degrees")
    exact, approximate = beliefs.values()
    distance = np.abs(exact - approximate).sum(axis=1).mean() / 2
    print(f"mean total variation distance between the marginals: {distance:.3f}")

    figure = Figure(figsize=(13, 4), layout="constrained")
    places = np.array([(i % SIDE, i // SIDE) for i in range(SIDE * SIDE)])
    for axis, (name, values) in zip(figure.subplots(1, 4), panels.items(), strict=True):
        axis.add_collection(LineCollection(places[edges], color="0.6", linewidth=1, zorder=1))
        image = axis.scatter(
            *places.T, c=np.degrees(values), cmap="twilight", vmin=0, vmax=360, s=38, zorder=2
        )
        axis.set(title=name, xticks=[], yticks=[], aspect="equal")
    figure.colorbar(image, ax=figure.axes, label="state, degrees", ticks=[0, 90, 180, 270, 360])
    OUTPUT.mkdir(exist_ok=True)
    figure.savefig(OUTPUT / "tree_field.png", dpi=110)
    print(f"The picture is {OUTPUT / 'tree_field.png'}")


if __name__ == "__main__":
    main()
