"""How projections are drawn: couplings of Gaussian rows, and the matrices that they produce."""

import copy
from typing import Literal, TypeAlias

from .base import Coupling, DenseProjection, Projection
from .blocks import NormCoupled, Orthogonal, haar_rows
from .hadamard import (
    HadamardIndependent,
    HadamardOrthogonal,
    HadamardProjection,
    HadamardSimplex,
    HadamardSimplexPlus,
)
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

CouplingLike: TypeAlias = (
    Literal["iid", "orthogonal", "simplex", "simplex+", "sobol", "norm-coupled"] | Coupling
)

# The couplings available for each way to store a projection.
PROJECTIONS = {
    "dense": COUPLINGS,
    "hadamard": {
        "iid": HadamardIndependent(),
        "orthogonal": HadamardOrthogonal(),
        "simplex": HadamardSimplex(),
        "simplex+": HadamardSimplexPlus(),
    },
}


def coupling_of(coupling, projection="dense"):
    """Return a coupling, given as an object or by name, for one way of storing the projection."""
    if isinstance(coupling, Coupling):
        return coupling
    allowed = PROJECTIONS[projection]
    if coupling not in allowed:
        raise ValueError(
            f"coupling={coupling!r} is not available with projection={projection!r}. "
            f"Allowed: {', '.join(map(repr, allowed))}."
        )
    return allowed[coupling]


def drawn(coupling, n_projections, n_features, rng):
    """Return a projection that a coupling draws; a user's coupling may keep what it returns."""
    projection = coupling.draw(n_projections, n_features, rng)
    is_own = type(coupling).__module__.startswith(f"{__name__}.")
    return projection if is_own else copy.deepcopy(projection)


__all__ = [
    "COUPLINGS",
    "PROJECTIONS",
    "Coupling",
    "CouplingLike",
    "DenseProjection",
    "HadamardProjection",
    "Independent",
    "NormCoupled",
    "Orthogonal",
    "Projection",
    "Simplex",
    "SimplexPlus",
    "Sobol",
    "coupling_of",
    "drawn",
    "haar_rows",
]
