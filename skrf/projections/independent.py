"""Rows without structure: independent draws and scrambled Sobol' points."""

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from .base import Coupling, DenseProjection, dense_bytes

SOBOL_MAX_FEATURES = qmc.Sobol.MAXDIM


class Independent(Coupling):
    """Independent standard normal rows (Rahimi and Recht)."""

    n_bytes = staticmethod(dense_bytes)

    def draw(self, n_projections, n_features, rng):
        """Return a dense projection drawn with `rng`."""
        return DenseProjection(rng.standard_normal((n_projections, n_features)))


class Sobol(Coupling):
    """Scrambled Sobol' points mapped by the normal quantile function, so each row is N(0, I)."""

    n_bytes = staticmethod(dense_bytes)

    def draw(self, n_projections, n_features, rng):
        """Return a dense projection drawn with `rng`."""
        if n_features > SOBOL_MAX_FEATURES:
            raise ValueError(
                f"coupling='sobol' allows at most {SOBOL_MAX_FEATURES} features, "
                f"got X with {n_features}."
            )
        bits = int(np.ceil(np.log2(n_projections)))
        points = qmc.Sobol(n_features, scramble=True, rng=rng).random_base2(bits)[:n_projections]
        # Points are multiples of 2^-30 and can be 0; half a step moves them into the open interval.
        return DenseProjection(ndtri(points + 2.0**-31))

    def pair_cosine(self, block_rows):
        """Return None: all rows are coupled by an unknown law."""
        return None
