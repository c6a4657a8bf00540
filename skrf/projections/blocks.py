"""Projections made of independent blocks: norms times directions times a random rotation."""

import numpy as np
from scipy.linalg.blas import dtrmm

from .base import Coupling, DenseProjection, dense_bytes
from .norms import mirrored

_WIDE = 4  # ratio of columns to rows from which normal rows are so well conditioned
_ORTHOGONAL = 1e-14  # error of products of unit rows, over which rows are made orthogonal again
_NUMBERS = 2**18  # of rotations drawn at once, because there may be a block for every few rows


def haar_rows(n_rows, n_features, rng):
    """Return the first rows of a Haar distributed orthogonal matrix, shape (n_rows, n_features).

    The signs of R's diagonal are folded into Q, because LAPACK's Q alone is not Haar distributed
    and would bias one-sided exponential features.
    """
    return _haar(rng.standard_normal((n_features, n_rows)))


def _haar(normals):
    """Return the rows of `haar_rows` for normal matrices (..., n_features, n_rows)."""
    *lead, n_features, n_rows = normals.shape
    if n_features >= _WIDE * n_rows:  # there is one matrix
        return _orthonormal(normals.reshape(n_features, n_rows)).reshape(*lead, n_rows, n_features)
    q, r = np.linalg.qr(normals)
    signs = np.where(np.diagonal(r, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
    return np.ascontiguousarray((q * signs[..., None, :]).swapaxes(-1, -2))


def _orthonormal(columns):
    """Return Q' of the QR decomposition of far fewer columns than rows, which are overwritten.

    The Q whose R has a positive diagonal is unique, so it is that of `_haar`. Normal columns of
    this shape are well conditioned: Cholesky's factor of their products, which is R', gives it to
    rounding, several times as fast as reflections.
    """
    rows = columns.T
    for _ in range(2):
        inverse = np.linalg.inv(np.linalg.cholesky(rows @ rows.T))
        rows = dtrmm(1.0, inverse, rows, lower=1, overwrite_b=1)
        if np.abs(rows @ rows.T - np.eye(len(rows))).max() <= _ORTHOGONAL:
            break
    return rows


class BlockCoupling(Coupling):
    """Blocks of at most d rows; the last block may be cut.

    Subclasses define the lengths of the rows and their directions before the rotation.
    """

    n_bytes = staticmethod(dense_bytes)

    def lengths(self, norms, n_features):
        """Return the lengths of the rows of blocks (..., b), given independent ones."""
        return norms

    def directions(self, norms):
        """Return unit rows (..., b, b) for blocks with these norms; None means the identity."""
        return None

    def draw(self, n_projections, n_features, rng):
        """Return a dense projection drawn with `rng`."""
        shape, start = (n_projections, n_features), 0
        rows = np.empty(shape)
        most = max(_NUMBERS // n_features**2, 1)
        while start < n_projections:
            left = n_projections - start
            count, b = max(min(left // n_features, most), 1), min(left, n_features)
            norms = rng.chisquare(n_features, size=(count, b))
            normals = rng.standard_normal((count, n_features, b))
            norms = self.lengths(np.sqrt(norms), n_features)
            unit_rows, directions = _haar(normals), self.directions(norms)
            unit_rows = unit_rows if directions is None else directions @ unit_rows
            unit_rows *= norms[..., None]
            if unit_rows.size == rows.size:
                return DenseProjection(unit_rows.reshape(shape))  # without a copy
            rows[start : start + count * b] = unit_rows.reshape(count * b, n_features)
            start += count * b
        return DenseProjection(rows)

    def blocks(self, n_projections, n_features):
        """Return {rows in a block: number of such blocks}."""
        whole, cut = divmod(n_projections, n_features)
        return {rows: count for rows, count in ((n_features, whole), (cut, 1)) if rows and count}


class Orthogonal(BlockCoupling):
    """Orthogonal directions, independent norms (Yu et al., Orthogonal random features)."""


class NormCoupled(BlockCoupling):
    """Orthogonal directions, norms coupled in pairs."""

    def lengths(self, norms, n_features):
        """Return the lengths with each pair coupled."""
        return mirrored(norms, n_features)

    def pair_cosine(self, block_rows):
        """Return None: the norms of a pair are not independent (a lone row has no pair)."""
        return 0.0 if block_rows == 1 else None
