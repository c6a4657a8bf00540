"""Fit the defaults to small data sets; `test_processors.py` runs this on several kernels of BLAS.

``python tests/processors.py FILE`` saves, for every case, the parameters that were chosen and the
predictions.
"""

import pickle
import sys
import warnings

import numpy as np
from sklearn import datasets
from sklearn.base import is_regressor
from sklearn.preprocessing import StandardScaler

import skrf

CHOSEN = ("sigma_", "alpha_", "share_", "centers_", "query_centers_", "A_", "rho_", "p_")
CHOSEN += ("lambda_", "relevance_", "components_")
ROWS = 50

CLASSIFIERS = {
    "kernel": skrf.KernelRegressionClassifier(random_state=0),
    "kernel-landmarks": skrf.KernelRegressionClassifier(skrf.ClusterNystroem(random_state=0)),
    "kernel-exact": skrf.KernelRegressionClassifier("exact"),
    "ridge": skrf.ApproxKernelRidgeClassifier(random_state=0),
    "ridge-search": skrf.ApproxKernelRidgeClassifierCV(
        skrf.RFFSampler(128), sigmas=5, cv=3, random_state=0
    ),
}
REGRESSORS = {
    "kernel": skrf.KernelRegressor(random_state=0),
    "kernel-scale": skrf.KernelRegressor(sigma="scale", random_state=0),
    "kernel-exact": skrf.KernelRegressor("exact"),
    "ridge": skrf.ApproxKernelRidge(random_state=0),
    "ridge-evidence": skrf.ApproxKernelRidge(alpha="evidence", random_state=0),
    "ridge-search": skrf.ApproxKernelRidgeCV(skrf.RFFSampler(128), sigmas=5, cv=3, random_state=0),
}
# A sigma at which both kinds of centres are about as good, and one that makes rows strangers.
MAPS = {
    "adaptive": skrf.AdaptiveRF(sigma="scale", random_state=0),
    "adaptive-narrow": skrf.AdaptiveRF(sigma=4.0, random_state=0),
    "landmarks": skrf.ClusterNystroem(random_state=0),
    "clustered": skrf.HybridRF(coefficients="clustered", sigma="scale", random_state=0),
    "complex": skrf.HybridRF(
        coefficients="clustered", recenter=False, sigma="scale", random_state=0
    ),
    "generalized": skrf.GeneralizedExponentialRF(sigma="scale", random_state=0),
    "dense": skrf.DenseExponentialRF(sigma="median", random_state=0),
    "discrete": skrf.DiscreteRF(sigma="scale", random_state=0),
    "geometric": skrf.GeometricRF(sigma="scale", random_state=0),
    "simplex+": skrf.SimplexRFPlus(sigma="scale", random_state=0),
    "relevance": skrf.RelevanceScaler(random_state=0),
    "slopes": skrf.RelevanceScaler(criterion="gradients", random_state=0),
    "directions": skrf.RelevanceProjection(random_state=0),
}


def data_sets():
    """Yield names, rows and targets; lattices, one-hot codes and pixels are full of ties."""
    rng = np.random.default_rng(2)

    def some(load, n=2 * ROWS):
        X, y = load(return_X_y=True)
        rows = rng.permutation(len(X))[:n]
        return X[rows], y[rows]

    yield "digits", *some(datasets.load_digits)
    places = np.indices((10, 10)).reshape(2, -1).T.astype(float)
    yield "lattice", places, (places // 3).sum(axis=1).astype(int) % 2
    codes = np.eye(4)[rng.integers(0, 4, (2 * ROWS, 3))].reshape(2 * ROWS, -1)
    yield "one-hot", codes, (codes[:, 0] + codes[:, 5] + (rng.random(2 * ROWS) < 0.1) > 0) + 0
    X, y = some(datasets.load_diabetes)
    yield "diabetes", 20 * X, y
    X, y = datasets.load_linnerud(return_X_y=True)
    yield "linnerud", StandardScaler().fit_transform(X), y


def results():
    """Return {(data set, dtype, estimator): (parameters, predictions)}."""
    chosen_by_case = {}
    for name, X, y in data_sets():
        models = REGRESSORS if y.dtype.kind == "f" else CLASSIFIERS
        for dtype in ("float32", "float64"):
            rows = X.astype("float32").astype(dtype)  # the same values in both
            for key, model in (models | MAPS).items():
                model.fit(rows[::2], y[::2])
                if not hasattr(model, "predict"):
                    values = model.transform(rows[:50])
                elif is_regressor(model):
                    values = model.predict(rows)
                else:
                    values = model.decision_function(rows), model.predict(rows) == y
                    values = np.column_stack(values)
                chosen_by_case[name, dtype, key] = chosen(model), np.asarray(values)
    return chosen_by_case


def chosen(model):
    """Return what a model has chosen, and its map."""
    owners = {"": model, "map.": getattr(model, "feature_map_", None)}
    return {
        prefix + name: np.atleast_1d(getattr(owner, name))
        for prefix, owner in owners.items()
        for name in CHOSEN
        if hasattr(owner, name)
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # rows that are far from all others
    with open(sys.argv[1], "wb") as file:
        pickle.dump(results(), file)
