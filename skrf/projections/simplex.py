"""Blocks whose directions repel each other: simplex and simplex+.

Source: Reid et al., Simplex random features (2023); a truncated block is a smaller simplex.
"""

import numpy as np

from .._kernels import plain
from .blocks import BlockCoupling

N_SWEEPS = 5  # of simplex+, after which rows hardly turn any more


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


def swept(norms):
    """Return unit rows that each oppose the sum of the others, and how simplices turn into them.

    A sweep turns one row s_i after the other: to -r_i / |r_i| with the sum r_i of the other rows
    times their norms.

    Parameters
    ----------
    norms : ndarray of shape (..., b)
        Norms w of the rows.

    Returns
    -------
    rows : ndarray of shape (..., b, b)
        The directions after the sweeps.
    shares : ndarray of shape (..., N_SWEEPS, b)
        The w_i / |r_i| of every sweep; 0 for a lone row, which stays.
    """
    b = norms.shape[-1]
    rows = np.broadcast_to(simplex_rows(b), (*norms.shape, b)).copy()
    shares = np.zeros((*norms.shape[:-1], N_SWEEPS, b))
    if b == 1:
        return rows, shares
    total = np.einsum("...i,...ij->...j", norms, rows)
    for sweep in range(N_SWEEPS):
        for i in range(b):
            norm = norms[..., i, None]
            other_rows = total - norm * rows[..., i, :]
            size = np.linalg.norm(other_rows, axis=-1, keepdims=True)
            rows[..., i, :] = -other_rows / size
            shares[..., sweep, i] = (norm / size)[..., 0]
            total = other_rows + norm * rows[..., i, :]
    return rows, shares


class SimplexPlus(BlockCoupling):
    """Simplex directions improved for the drawn norms: each row opposes the sum of the others."""

    def directions(self, norms):
        """Return the directions after the sweeps."""
        return swept(norms)[0]

    def pair_cosine(self, block_rows):
        """Return None: directions depend on the norms (a lone row has no pair)."""
        return 0.0 if block_rows == 1 else None
