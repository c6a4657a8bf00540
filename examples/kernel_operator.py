"""Use SciPy's solvers on a kernel matrix that is never formed.

    python examples/kernel_operator.py

Three uses of features in place of a kernel matrix of 20,000 rows, which would take 3.2 GB:
conjugate gradients for kernel ridge regression, eigenvectors for a spectral embedding, and a linear
support vector machine in place of a kernel one. Each is compared with a plain alternative from
scikit-learn. Takes about 20 seconds; the picture shows the spectral embedding.
"""

import time
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.sparse import diags_array, eye_array
from scipy.sparse.linalg import aslinearoperator, cg, eigsh
from sklearn.cluster import KMeans
from sklearn.datasets import make_circles, make_friedman1, make_moons
from sklearn.linear_model import RidgeCV
from sklearn.metrics import adjusted_rand_score, r2_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from skrf import AdaptiveRF, KernelOperator, OptimalPositiveRF, RFFSampler

OUTPUT = Path(__file__).parent / "output"
N_ROWS = 20_000


def ridge_regression():
    """Solve (K + 1) a = y; predictions are products with the operator of test and training."""
    X, y = make_friedman1(2 * N_ROWS, noise=1.0, random_state=0)
    X = StandardScaler().fit_transform(X)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, random_state=0)
    start = time.perf_counter()
    features = RFFSampler(500, random_state=0).fit(X)
    ridge = aslinearoperator(eye_array(N_ROWS))
    weights, _ = cg(KernelOperator(features, X) + ridge, y - y.mean(), rtol=1e-4)
    guess = KernelOperator(features, X_test, X) @ weights + y.mean()
    seconds = time.perf_counter() - start
    linear = RidgeCV().fit(X, y).predict(X_test)
    print(f"ridge regression: R2 {r2_score(y_test, guess):.3f} in {seconds:.1f} s,")
    print(f"  linear ridge regression {r2_score(y_test, linear):.3f}")


def spectral_embedding():
    """Return points, their embedding and their clusters: eigenvectors of D^-1/2 K D^-1/2."""
    X, truth = make_circles(N_ROWS, noise=0.05, factor=0.4, random_state=0)
    start = time.perf_counter()
    # Positive features: row sums are positive.
    features = AdaptiveRF(400, sigma=8.0, random_state=0).fit(X)
    kernel = KernelOperator(features, X)
    scale = aslinearoperator(diags_array(1 / np.sqrt(kernel @ np.ones(N_ROWS))))
    _, vectors = eigsh(scale @ kernel @ scale, k=2, v0=np.ones(N_ROWS))
    # The first eigenvector is known: D^1/2 1.
    embedding = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = KMeans(2, n_init=5, random_state=0).fit_predict(embedding)
    seconds = time.perf_counter() - start
    plain = KMeans(2, n_init=5, random_state=0).fit_predict(X)
    print(
        f"clusters: adjusted Rand index {adjusted_rand_score(truth, found):.3f} in {seconds:.1f} s,"
    )
    print(f"  k-means on the points {adjusted_rand_score(truth, plain):.3f}")
    return X, embedding, found, plain


def support_vectors():
    """Compare a linear machine on features with a kernel one and a linear one."""
    X, y = make_moons(2 * N_ROWS, noise=0.3, random_state=0)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, random_state=0)
    for name, machine in (
        (
            "features and LinearSVC",
            make_pipeline(OptimalPositiveRF(200, random_state=0), LinearSVC()),
        ),
        ("SVC", SVC(gamma="scale")),
        ("LinearSVC", LinearSVC()),
    ):
        start = time.perf_counter()
        score = machine.fit(X, y).score(X_test, y_test)
        print(f"{name}: accuracy {score:.3f} in {time.perf_counter() - start:.1f} s")


def main():
    """Run the three and draw the embedding."""
    ridge_regression()
    X, embedding, found, plain = spectral_embedding()
    support_vectors()
    figure = Figure(figsize=(12, 4), layout="constrained")
    shown = np.random.default_rng(0).permutation(N_ROWS)[:3000]
    for axis, title, points, colours in zip(
        figure.subplots(1, 3),
        ("k-means on the points", "eigenvectors", "k-means on eigenvectors"),
        (X, embedding, X),
        (plain, found, found),
        strict=True,
    ):
        axis.scatter(*points[shown].T, c=colours[shown], cmap="coolwarm", s=3)
        axis.set(title=title, xticks=[], yticks=[])
    OUTPUT.mkdir(exist_ok=True)
    figure.savefig(OUTPUT / "kernel_operator.png", dpi=110)
    print(f"The picture is {OUTPUT / 'kernel_operator.png'}")


if __name__ == "__main__":
    main()
