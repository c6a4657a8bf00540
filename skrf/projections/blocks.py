"""Projections made of independent blocks: norms times directions times a random rotation."""

import numpy as np

from .base import Coupling, DenseProjection
from .norms import chi_norms, paired_norms


def haar_rows(n_rows, n_features, rng):
    """Return the first rows of a Haar distributed orthogonal matrix, shape (n_rows, n_features).

    The signs of R's diagonal are folded into Q, because LAPACK's Q alone is not Haar distributed
    and would bias one-sided exponential features.
    """
    q, r = np.linalg.qr(rng.standard_normal((n_features, n_rows)))
    return (q * np.where(np.diagonal(r) < 0, -1.0, 1.0)).T


class BlockCoupling(Coupling):
    """Blocks of at most d rows; the last block may be cut.

    Subclasses define the lengths of the rows and their directions before the rotation.
    """

    norms = staticmethod(chi_norms)

    def directions(self, norms):
        """Return unit rows (b, b) for a block with these norms; None means the identity."""
        return None

    def draw(self, n_projections, n_features, rng):
        """Return a dense projection drawn with `rng`."""
        blocks = []
        for start in range(0, n_projections, n_features):
            norms = self.norms(min(n_features, n_projections - start), n_features, rng)
            rotation, directions = haar_rows(len(norms), n_features, rng), self.directions(norms)
            unit_rows = rotation if directions is None else directions @ rotation
            blocks.append(norms[:, None] * unit_rows)
        return DenseProjection(np.concatenate(blocks))

    def blocks(self, n_projections, n_features):
        """Return {rows in a block: number of such blocks}."""
        whole, cut = divmod(n_projections, n_features)
        return {rows: count for rows, count in ((n_features, whole), (cut, 1)) if rows and count}


class Orthogonal(BlockCoupling):
    """Orthogonal directions, independent norms (Yu et al., Orthogonal random features)."""


class NormCoupled(BlockCoupling):
    """Orthogonal directions, norms coupled in pairs."""

    norms = staticmethod(paired_norms)

    def pair_cosine(self, block_rows):
        """Return None: the norms of a pair are not independent (a lone row has no pair)."""
        return 0.0 if block_rows == 1 else None
