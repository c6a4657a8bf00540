"""Embed 20,000 points by eigenvectors of a kernel matrix that is never formed.

    python examples/kernel_operator.py

The matrix would take 3.2 GB. SciPy's solver needs only its products with vectors, which features
give. The clusters of the embedding are compared with those of k-means on the points. Takes a few
seconds, and saves a picture to examples/output.
"""

import time
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.sparse import diags_array
from scipy.sparse.linalg import aslinearoperator, eigsh
from sklearn.cluster import KMeans
from sklearn.datasets import make_circles
from sklearn.metrics import adjusted_rand_score

from skrf import AdaptiveRF, KernelOperator

OUTPUT = Path(__file__).parent / "output"
N_ROWS = 20_000


def embedded(X):
    """Return rows of the two largest eigenvectors of D^-1/2 K D^-1/2, each of length 1."""
    # Positive features: row sums are positive.
    features = AdaptiveRF(400, sigma=8.0, random_state=0).fit(X)
    kernel = KernelOperator(features, X)
    scale = aslinearoperator(diags_array(1 / np.sqrt(kernel @ np.ones(N_ROWS))))
    _, vectors = eigsh(scale @ kernel @ scale, k=2, v0=np.ones(N_ROWS))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def main():
    """Cluster points and their embedding, and draw both."""
    X, truth = make_circles(N_ROWS, noise=0.05, factor=0.4, random_state=0)
    start = time.perf_counter()
    embedding = embedded(X)
    print(f"eigenvectors in {time.perf_counter() - start:.1f} s")
    clusters = [KMeans(2, n_init=5, random_state=0).fit_predict(rows) for rows in (X, embedding)]
    scores = [adjusted_rand_score(truth, labels) for labels in clusters]
    print(f"adjusted Rand index {scores[1]:.3f}, of k-means on the points {scores[0]:.3f}")
    figure = Figure(figsize=(12, 4), layout="constrained")
    shown = np.random.default_rng(0).permutation(N_ROWS)[:3000]
    panels = {
        "k-means on the points": (X, clusters[0]),
        "eigenvectors": (embedding, clusters[1]),
        "k-means on eigenvectors": (X, clusters[1]),
    }
    for axis, (title, (points, colours)) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        axis.scatter(*points[shown].T, c=colours[shown], cmap="coolwarm", s=3)
        axis.set(title=title, xticks=[], yticks=[])
    OUTPUT.mkdir(exist_ok=True)
    figure.savefig(OUTPUT / "kernel_operator.png", dpi=110)
    print(f"The picture is {OUTPUT / 'kernel_operator.png'}")


if __name__ == "__main__":
    main()
