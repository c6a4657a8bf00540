"""How omega is drawn: couplings of Gaussian rows and the projections they make."""

from .base import Coupling, DenseProjection, Projection
from .blocks import NormCoupled, Orthogonal, haar_rows
from .hadamard import HadamardIndependent, HadamardOrthogonal, HadamardProjection, HadamardSimplex
from .independent import Independent, Sobol
from .simplex import Simplex, SimplexPlus

COUPLINGS = {
    "iid": Independent(),
    "orthogonal": Orthogonal(),
    "simplex": Simplex(),
    "simplex+": SimplexPlus(),
    "sobol": Sobol(),
    "norm-coupled": NormCoupled(),
}

# The couplings that every way to hold a projection has.
PROJECTIONS = {
    "dense": COUPLINGS,
    "hadamard": {
        "iid": HadamardIndependent(),
        "orthogonal": HadamardOrthogonal(),
        "simplex": HadamardSimplex(),
    },
}

__all__ = [
    "COUPLINGS",
    "PROJECTIONS",
    "Coupling",
    "DenseProjection",
    "HadamardProjection",
    "Independent",
    "NormCoupled",
    "Orthogonal",
    "Projection",
    "Simplex",
    "SimplexPlus",
    "Sobol",
    "haar_rows",
]
