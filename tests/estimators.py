"""Every exported estimator, fitted to a few rows, with calls that it answers.

`test_estimators.py` fails while an exported one is missing.
"""

import inspect
from functools import partial

import numpy as np
from instances import MECHANISMS
from samples import X, Y, fitted

import skrf
from skrf import attention, graphical

PREDICTIONS = ("predict", "predict_proba", "predict_log_proba", "decision_function")
TARGETS = X @ [1.0, -0.5, 0.25, 0.0]
LABELS = np.where(X[:, 0] > 0, "some", "none")
SYMBOLS = np.arange(24) % 4


def _mechanism(name):
    return fitted(name), {"transform": (X,), "transform_keys": (Y,), "exact_kernel": (X, Y)}


def _transformer(kind, **params):
    return kind(random_state=0, **params).fit(X, TARGETS), {"transform": (X,)}


def _scaler():
    return skrf.SmoothClipScaler(ranks=True).fit(X), {"transform": (X,)}


def _quadrature():
    model = skrf.QuadratureFourierFeatures(9, margin=1.0).fit(X[:, :2])
    return model, {"transform": (X[:, :2],), "exact_kernel": (X[:, :2], Y[:, :2])}


def _predictor(kind, feature_map=None, **params):
    if feature_map != "exact":
        params["random_state"] = 0
    model = kind(feature_map, **params)
    model.fit(X, LABELS if hasattr(kind, "decision_function") else TARGETS)
    return model, {name: (X,) for name in PREDICTIONS if hasattr(model, name)}


def _attention():
    model = skrf.ApproxKernelAttention(random_state=0).fit(X, Y)
    return model, {"__call__": (X, Y, Y[:, :2])}


def _window_attention():
    model = attention.WindowAttention(3, 2)
    return model, {"__call__": (X, X, X[:, :2])}


def _sampler():
    model = skrf.KernelSampler(skrf.OptimalPositiveRF(8, random_state=0)).fit(X)
    return model, {"log_partition": (Y,), "log_prob": (Y, np.zeros((len(Y), 2), dtype=int))}


def _hmm(normalization):
    model = graphical.KernelHMM.from_random(
        3, 4, width=2, random_state=0, normalization=normalization, max_iter=2, tol=1.0
    )
    return model.fit(SYMBOLS), {name: (SYMBOLS,) for name in ("score", "predict", "predict_proba")}


def _field(kind, *arguments):
    small = skrf.OptimalPositiveRF(8, random_state=0)
    model = kind(*arguments, X[:3, :2], feature_map=small, max_iter=2, tol=1.0)
    paths = SYMBOLS.reshape(8, 3) % 3
    return model.fit(paths), {"log_prob": (paths,)}


_RIDGES = (
    skrf.ApproxKernelRidge,
    skrf.ApproxKernelRidgeCV,
    skrf.ApproxKernelRidgeClassifier,
    skrf.ApproxKernelRidgeClassifierCV,
)

_MACHINES = skrf.KernelMachineClassifier, skrf.KernelMachineRegressor


def _machine(kind):
    y = LABELS if kind is skrf.KernelMachineClassifier else TARGETS
    model = kind(kernels=["laplacian", "gaussian"], random_state=0).fit(X, y)
    return model, {name: (X,) for name in PREDICTIONS if hasattr(model, name)}


# Name: callable() that returns a fitted estimator, and the arguments of its methods by name.
ESTIMATORS = {
    **{name: partial(_mechanism, name) for name in MECHANISMS},
    "ClusterNystroem": partial(_transformer, skrf.ClusterNystroem, n_components=6),
    "ClusterQuantizer": partial(_transformer, skrf.ClusterQuantizer, n_components=6),
    "QuadratureFourierFeatures": _quadrature,
    "RelevanceScaler": partial(_transformer, skrf.RelevanceScaler),
    "RelevanceScaler-gradients": partial(_transformer, skrf.RelevanceScaler, criterion="gradients"),
    "RelevanceProjection": partial(_transformer, skrf.RelevanceProjection),
    "SmoothClipScaler": _scaler,
    **{
        kind.__name__: partial(_predictor, kind, skrf.AdaptiveRF(8))
        for kind in (skrf.KernelRegressor, skrf.KernelRegressionClassifier)
    },
    **{kind.__name__: partial(_predictor, kind, skrf.RFFSampler(8)) for kind in _RIDGES},
    **{kind.__name__: partial(_machine, kind) for kind in _MACHINES},
    "KernelRegressor-exact": partial(_predictor, skrf.KernelRegressor, "exact"),
    "ApproxKernelAttention": _attention,
    "WindowAttention": _window_attention,
    "KernelSampler": _sampler,
    "KernelHMM": partial(_hmm, "local"),
    "KernelHMM-global": partial(_hmm, "global"),
    "ChainMRF": partial(_field, graphical.ChainMRF),
    "TreeMRF": partial(_field, graphical.TreeMRF, [(0, 1), (1, 2)]),
}


def exported_estimators():
    """Return the names of all estimator classes that `skrf` and its parts export."""
    exported = [
        getattr(home, name) for home in (skrf, attention, graphical) for name in home.__all__
    ]
    return {kind.__name__ for kind in exported if inspect.isclass(kind) and hasattr(kind, "fit")}
