"""Random features that make kernels linear, as scikit-learn transformers."""

from importlib import import_module

__version__ = "0.3.0"

# Public name: module that defines it. Loaded at first use, so that `import skrf` stays light.
_HOME = {
    "AdaptiveRF": "features",
    "ApproxKernelAttention": "attention",
    "ApproxKernelRidge": "regression",
    "ApproxKernelRidgeCV": "regression",
    "ApproxKernelRidgeClassifier": "regression",
    "ApproxKernelRidgeClassifierCV": "regression",
    "ClusterNystroem": "features",
    "ClusterQuantizer": "features",
    "DenseExponentialRF": "features",
    "DiscreteRF": "features",
    "GeneralizedExponentialRF": "features",
    "KernelMachineClassifier": "regression",
    "KernelMachineRegressor": "regression",
    "KernelOperator": "operators",
    "KernelSampler": "sampling",
    "KernelRegressionClassifier": "regression",
    "KernelRegressor": "regression",
    "GeometricRF": "features",
    "HybridRF": "features",
    "OptimalPositiveRF": "features",
    "PoissonRF": "features",
    "PositiveRF": "features",
    "QuadratureFourierFeatures": "features",
    "RFFSampler": "features",
    "RelevanceProjection": "regression",
    "RelevanceScaler": "regression",
    "SimplexRF": "features",
    "SimplexRFPlus": "features",
    "SmoothClipScaler": "features",
    "exact_attention": "attention",
}
_SUBMODULES = (
    "attention",
    "datasets",
    "exceptions",
    "features",
    "graphical",
    "operators",
    "plotting",
    "projections",
    "regression",
    "sampling",
    "statistics",
    "theory",
    "variances",
)
_OPTIONAL = ("dask", "torch")  # submodules that need what may not be installed

__all__ = sorted([*_HOME, *_SUBMODULES])


def __getattr__(name):
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    elif name in _SUBMODULES or name in _OPTIONAL:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    return sorted([*__all__, "__version__"])
