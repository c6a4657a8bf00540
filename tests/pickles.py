"""Fitted estimators as one version of skrf pickled them, which later versions still read.

`python tests/pickles.py` writes the file of this version anew. Until a version is released that is
right wherever what estimators hold has changed; the file of a released version stays as it is.
"""

import pickle
from pathlib import Path

import numpy as np
import sklearn

import skrf

FOLDER = Path(__file__).with_name("pickles")


def _data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    return X, X @ [1.0, -0.5, 0.25] + 0.1 * rng.normal(size=40)


def _cases():
    """Yield (fitted estimator, method, arguments)."""
    X, y = _data()
    labels = np.where(y > 0, "above", "below")
    small = {"n_components": 8, "random_state": 0}
    for mechanism in (
        skrf.RFFSampler(**small),
        skrf.OptimalPositiveRF(**small),
        skrf.AdaptiveRF(**small),
        skrf.PoissonRF(**small),
        skrf.HybridRF(random_state=0, n_components=4),
        skrf.ClusterNystroem(**small),
        skrf.ClusterQuantizer(**small),
    ):
        yield mechanism.fit(X), "transform", (X,)
    for model, target in (
        (skrf.KernelRegressor(skrf.OptimalPositiveRF(**small)), y),
        (skrf.KernelRegressionClassifier(skrf.OptimalPositiveRF(**small)), labels),
        (skrf.ApproxKernelRidge(skrf.RFFSampler(**small)), y),
        (skrf.ApproxKernelRidgeClassifier(skrf.RFFSampler(**small)), labels),
    ):
        yield model.fit(X, target), "predict", (X,)
    attention = skrf.ApproxKernelAttention(skrf.OptimalPositiveRF(**small))
    yield attention.fit(X, X), "__call__", (X, X, X[:, :2])


def main():
    """Write every estimator with the name of a method, its arguments and what it returned."""
    cases = [
        (model, method, arguments, getattr(model, method)(*arguments))
        for model, method, arguments in _cases()
    ]
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"skrf-{skrf.__version__}-sklearn-{sklearn.__version__}.pickle"
    path.write_bytes(pickle.dumps(cases, protocol=5))
    print(f"{len(cases)} estimators, {path.stat().st_size / 1000:.1f} kB in {path.name}")


if __name__ == "__main__":
    main()
