"""Blocks whose directions repel each other: simplex and simplex+.

Source: Reid et al., Simplex random features (2023); a truncated block is a smaller simplex.
"""

import numpy as np

from .._kernels import plain
from .blocks import BlockCoupling


def simplex_rows(n_rows):
    """Return n unit rows in R^n with pairwise cosine -1/(n - 1) and sum zero (one row: [[1]])."""
    return np.ascontiguousarray(plain.simplex(np.eye(n_rows)).T)


class Simplex(BlockCoupling):
    """Directions of a randomly rotated simplex; a truncated block is a smaller simplex."""

    def directions(self, norms):
        """Return the simplex of as many rows as there are norms."""
        return simplex_rows(norms.shape[-1])

    def pair_cosine(self, block_rows):
        """Return -1/(b - 1)."""
        return 0.0 if block_rows == 1 else -1 / (block_rows - 1)


class SimplexPlus(BlockCoupling):
    """Simplex directions improved for the drawn norms: each row opposes the sum of the others."""

    n_sweeps = 5

    def directions(self, norms):
        """Return the directions after the sweeps."""
        b = norms.shape[-1]
        rows = np.broadcast_to(simplex_rows(b), (*norms.shape, b)).copy()
        if b == 1:
            return rows
        total = np.einsum("...i,...ij->...j", norms, rows)
        for _ in range(self.n_sweeps):
            for i in range(b):
                norm = norms[..., i, None]
                rest = total - norm * rows[..., i, :]
                rows[..., i, :] = -rest / np.linalg.norm(rest, axis=-1, keepdims=True)
                total = rest + norm * rows[..., i, :]
        return rows

    def pair_cosine(self, block_rows):
        """Return None: directions depend on the norms (a lone row has no pair)."""
        return 0.0 if block_rows == 1 else None
