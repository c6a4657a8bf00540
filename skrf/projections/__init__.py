"""How omega is drawn: couplings of Gaussian rows and the projections they make."""

from .base import Coupling, DenseProjection, Projection
from .blocks import NormCoupled, Orthogonal, haar_rows
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

__all__ = [
    "COUPLINGS",
    "Coupling",
    "DenseProjection",
    "Independent",
    "NormCoupled",
    "Orthogonal",
    "Projection",
    "Simplex",
    "SimplexPlus",
    "Sobol",
    "haar_rows",
]
