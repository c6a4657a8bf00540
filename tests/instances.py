"""The one list of mechanisms: every test of "all mechanisms" goes through it.

A new mechanism is added here once. `test_instances.py` fails while an exported one is missing.
"""

import inspect
from functools import partial
from types import SimpleNamespace

import skrf
from skrf.features import BaseRandomFeatures
from skrf.features._fitted import Fitted
from skrf.features._map import plain_features
from skrf.projections import COUPLINGS

# Name: callable(**params) that returns an unfitted mechanism.
MECHANISMS = {
    "RFFSampler": skrf.RFFSampler,
    "PositiveRF": skrf.PositiveRF,
    "PositiveRF-hyperbolic": partial(skrf.PositiveRF, variant="hyperbolic"),
    "PositiveRF-regularized": partial(skrf.PositiveRF, variant="regularized"),
    "OptimalPositiveRF": skrf.OptimalPositiveRF,
    "SimplexRF": skrf.SimplexRF,
    "SimplexRFPlus": skrf.SimplexRFPlus,
    "GeneralizedExponentialRF": skrf.GeneralizedExponentialRF,
    "DenseExponentialRF": skrf.DenseExponentialRF,
    "AdaptiveRF": skrf.AdaptiveRF,
    "PoissonRF": skrf.PoissonRF,
    "PoissonRF-positive": partial(skrf.PoissonRF, positive=True),
    "PoissonRF-single": partial(skrf.PoissonRF, per_feature=False),
    "GeometricRF": skrf.GeometricRF,
    "GeometricRF-positive": partial(skrf.GeometricRF, positive=True),
    "GeometricRF-single": partial(skrf.GeometricRF, per_feature=False),
    "DiscreteRF": skrf.DiscreteRF,
    "DiscreteRF-positive": partial(skrf.DiscreteRF, positive=True),
    "DiscreteRF-single": partial(skrf.DiscreteRF, per_feature=False),
    "HybridRF": skrf.HybridRF,
    "HybridRF-hyperbolic": partial(skrf.HybridRF, base=("hyperbolic", "trigonometric")),
    "HybridRF-gaussian": partial(skrf.HybridRF, coefficients="gaussian"),
    "HybridRF-independent": partial(skrf.HybridRF, shared=False),
    "HybridRF-optimal": partial(skrf.HybridRF, base=(skrf.OptimalPositiveRF(), "trigonometric")),
    "HybridRF-three": partial(
        skrf.HybridRF,
        base=(skrf.OptimalPositiveRF(), "positive", skrf.RFFSampler()),
        coefficients="gaussian",
    ),
    "HybridRF-clustered": partial(skrf.HybridRF, coefficients="clustered"),
    "HybridRF-complex": partial(skrf.HybridRF, coefficients="clustered", recenter=False),
}

KERNELS = ("gaussian", "softmax")


def accepts(name, parameter):
    """Tell whether a mechanism of the list takes a parameter."""
    return parameter in inspect.signature(MECHANISMS[name]).parameters


def couplings(name):
    """Return the couplings that a mechanism takes; (None,) where it has no choice."""
    return tuple(COUPLINGS) if accepts(name, "coupling") else (None,)


def make(name, coupling=None, **params):
    """Return an unfitted mechanism; a coupling of None leaves the default or preset one.

    Sigma is 1, the unit of the formulas, unless it is given.
    """
    if coupling is not None:
        params["coupling"] = coupling
    return MECHANISMS[name](**{"sigma": 1.0, **params})


def features(mechanism, X, *, keys=False):
    """Return the features of a fitted mechanism, whatever their size."""
    return plain_features(mechanism.feature_maps_[keys], X)[0]


def altered(mechanism, *, draw=None, **parameters):
    """Return a fitted mechanism with other parameters, or other random numbers, than it found."""
    fitted = mechanism._fitted
    changed = SimpleNamespace(**{**vars(fitted.parameters), **parameters})
    if draw is None:
        numbers = fitted.spec._draw(changed, fitted.seed)
    else:
        numbers = SimpleNamespace(**{**vars(fitted.draw), **draw})
    parts = fitted.spec, fitted.seed, fitted.statistics, changed, numbers
    return mechanism._with(Fitted.assemble(*parts))


# All (name, coupling) there are.
COMBINATIONS = [(name, coupling) for name in MECHANISMS for coupling in couplings(name)]

# Those of the plain contract: sides agree, statistics merge, rows are weighted, the number of
# projections depends on n_components alone. The others each depart from it somewhere.
PLAIN = (
    "RFFSampler",
    "PositiveRF",
    "PositiveRF-hyperbolic",
    "PositiveRF-regularized",
    "OptimalPositiveRF",
    "SimplexRF",
    "SimplexRFPlus",
)


# Draw nothing, are biased: test_landmarks.py and test_quadrature.py have their tests.
LANDMARKS = {"ClusterNystroem", "ClusterQuantizer", "QuadratureFourierFeatures"}


def exported_mechanisms():
    """Return the names of all mechanism classes that `skrf` exports."""
    exported = {name: getattr(skrf, name) for name in skrf.__all__}
    return {
        name
        for name, value in exported.items()
        if inspect.isclass(value) and issubclass(value, BaseRandomFeatures)
    } - LANDMARKS
