"""Projections of O(d) numbers per block: products of Walsh-Hadamard matrices and random diagonals.

A block is W = D S R of order d' >= d, the least power of two. Inputs are padded with zeros to d',
so the rows that act on them are W's, cut to d coordinates. R = H D_3 H D_2 H D_1 / d'^{3/2} with
random signs D_i is orthogonal and nearly uniform; D holds independent chi_{d'} norms, which makes a
cut row nearly N(0, I_d). The rows of simplex+, which depend on the norms, come from a few sweeps
over the products with those of a simplex, in plain code. Of few features, where that is faster, the
matrix is stored as well, once something has been multiplied by it: at most 128 numbers in a row.
"""

import math
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from sklearn.utils import gen_batches

from .. import _kernels
from .._arrays import Kept, is_array_api, like, namespace
from .._kernels.plain import next_order, sweep
from .._threads import rows_of_call
from .base import Coupling, Projection
from .norms import chi_norms
from .simplex import N_SWEEPS, swept

SMALLEST_ORDER = 16
_LARGEST_DENSE = 128  # order up to which a product with the whole matrix is faster
_LAYERS = 3

# Numbers in a block of rows, the unit of temporary memory. Other libraries may run on a device,
# which needs larger blocks.
_BLOCK = 2**18
_DEVICE_BLOCK = 2**22


@dataclass(eq=False, repr=False)
class HadamardProjection(Projection):
    """Rows of structured blocks, stored as a matrix only at small orders, where that is faster.

    At larger orders `multiply` works on blocks of rows: besides its output it holds a few arrays of
    at most 2^18 numbers (2^22 for libraries other than NumPy), or of one padded row if that is
    longer.

    Parameters
    ----------
    signs : ndarray of shape (n_blocks, 3, order), int8
        D_1, D_2, D_3 of every block.
    lengths : ndarray of shape (n_projections,)
        Norms of the rows before they are cut to d coordinates, float64.
    n_features : int
        Width d of the inputs, at most the order.
    radii : ndarray of shape (n_blocks, order), default=None
        Sizes that multiply D_3, with mean square 1 in every block; None means 1.
    simplices : bool, default=False
        Whether S is a simplex of the rows that a block keeps, instead of the identity.
    sweeps : ndarray of shape (n_blocks, n_sweeps, order), default=None
        The shares of `swept` that turn simplices into those of simplex+, 0 for rows that are cut.
    norms : ndarray of shape (n_projections,), default=None
        The norms that the sweeps belong to.
    matrix : ndarray of shape (d, d), default=None
        Multiplies the inputs first; None means the identity.

    Attributes
    ----------
    order : int
        Order d' of the transforms.
    """

    signs: np.ndarray
    lengths: np.ndarray
    n_features: int
    _: KW_ONLY
    radii: np.ndarray | None = None
    simplices: bool = False
    sweeps: np.ndarray | None = None
    norms: np.ndarray | None = None
    matrix: np.ndarray | None = None

    def __post_init__(self):
        self.n_projections, self.order = len(self.lengths), self.signs.shape[2]
        self._kept = Kept()

    @property
    def mean_length(self):
        """About the mean length of the rows, without transforms."""
        if self.matrix is not None:
            return super().mean_length
        return float(self.lengths.mean()) * math.sqrt(self.n_features / self.order)

    @cached_property
    def squared_norms(self):
        """Squared lengths of the rows as they act on inputs: cut to d coordinates."""
        if self.matrix is not None:
            return self._sum_of_squares(0, self.n_features)
        # A whole row has the length drawn for it, so only the part cut off must be computed.
        whole = self.lengths**2
        if self.n_features == self.order:
            return whole
        return np.maximum(whole - self._sum_of_squares(self.n_features, self.order), 0.0)

    def dense(self):
        """Return the matrix, computed by multiplying the identity; for small problems."""
        with rows_of_call(0):
            return self._transformed(np.eye(self.n_features)).T

    def after(self, matrix):
        """Return the projection that multiplies matrix @ x for every input x."""
        return replace(self, matrix=matrix if self.matrix is None else self.matrix @ matrix)

    def with_norms(self, norm):
        """Return the projection whose rows keep their directions but all have a given length."""
        return replace(self, lengths=self.lengths * (norm / np.sqrt(self.squared_norms)))

    def scaled(self, factor):
        """Return the projection with all rows multiplied by a number."""
        return replace(self, lengths=factor * self.lengths)

    @property
    def _is_dense(self):
        """Whether products are with the matrix, because that is faster."""
        return self.order <= _LARGEST_DENSE

    def multiply(self, X):
        """Return X @ dense().T in the library, device and dtype of X."""
        if self._is_dense:
            return X @ self._kept.like(X, lambda: self.dense().T)
        return self._transformed(X)

    def _transformed(self, X):
        """Return X @ dense().T by fast transforms, a block of rows at a time."""
        is_other, kernel = is_array_api(X), _kernels.serving(X, self.n_projections)
        # In the precision of the input; kernels move the arrays to its library.
        dtype = np.float32 if "float32" in str(X.dtype) else np.float64
        lengths, sweeps, factors = self.lengths, None, None
        if self.sweeps is not None:  # which belong to these norms
            lengths, sweeps = self.norms, self.sweeps.astype(dtype)
            factors = self.lengths / self.norms
            factors = None if (factors == 1).all() else like(factors, X)
        arrays = self._diagonals().astype(dtype), lengths.astype(dtype), self.simplices
        size = max(1, (_DEVICE_BLOCK if is_other else _BLOCK) // self.order)
        matrix = None if self.matrix is None else like(self.matrix, X)
        X = X.tocsr() if sp.issparse(X) else X
        out = None if is_other else np.empty((X.shape[0], self.n_projections), X.dtype)
        results = []
        for rows in gen_batches(X.shape[0], size):
            block = X[rows, :].toarray() if sp.issparse(X) else X[rows, :]
            if matrix is not None:
                block = block @ matrix.T
            target = None if is_other else out[rows]
            products = kernel.project(block, *arrays, target)
            if sweeps is not None:
                products = sweep(products, sweeps)
            if factors is not None and is_other:
                products = products * factors
            elif factors is not None:
                products *= factors
            results.append(products)
        return namespace(X).concat(results, axis=0) if is_other else out

    def _diagonals(self):
        # H / sqrt(order) is orthogonal: put the root into every diagonal, so that no layer grows.
        diagonals = self.signs / np.sqrt(self.order)
        if self.radii is not None:
            diagonals[:, -1] *= self.radii
        return diagonals

    def _sum_of_squares(self, first, stop):
        """Return sum_l w_l^2 over the coordinates l = first, ..., stop - 1 of rows w.

        Coordinates from d on are not reached by any input. Takes O(d m log d) time.
        """
        widest = max(self.order, self.n_projections)
        total = np.zeros(self.n_projections)
        for block in gen_batches(stop - first, max(1, _BLOCK // widest)):
            n_units = block.stop - block.start
            units = np.eye(n_units, max(stop, self.n_features), first + block.start)
            with rows_of_call(0):
                total += np.ones(n_units) @ self._transformed(units) ** 2
        return total


class Hadamard(Coupling):
    """Base: rows are N(0, I_d) only approximately, so no closed form holds."""

    simplices = False

    def draw(self, n_projections, n_features, rng):
        """Return a `HadamardProjection` drawn with `rng`."""
        order = next_order(n_features)
        if order < SMALLEST_ORDER:
            raise ValueError(
                f"projection='hadamard' needs X of more than 8 features (transforms of order "
                f"{SMALLEST_ORDER} and more; smaller ones are far from Gaussian), got "
                f"{n_features}. Use projection='dense', which is faster there."
            )
        n_blocks = -(-n_projections // order)
        signs = 2 * rng.integers(0, 2, size=(n_blocks, _LAYERS, order), dtype=np.int8) - 1
        lengths = chi_norms(n_projections, order, rng)
        return HadamardProjection(
            signs,
            lengths,
            n_features,
            radii=self.radii(n_blocks, order, rng),
            simplices=self.simplices,
            **self.turned(lengths, order),
        )

    def n_bytes(self, n_projections: int, n_features: int) -> int:
        """Return about how many bytes a drawn projection holds: signs, lengths, squared norms."""
        return (_LAYERS + 16) * n_projections

    def radii(self, n_blocks, order, rng):
        """Return the sizes that multiply the last diagonal; None means 1."""
        return None

    def turned(self, lengths, order):
        """Return what a projection knows about directions that depend on the lengths."""
        return {}

    def pair_cosine(self, block_rows):
        """Return None: rows follow the law only approximately."""
        return None


class HadamardOrthogonal(Hadamard):
    """Rows of a block are orthogonal (in d' dimensions)."""


class HadamardSimplex(Hadamard):
    """Rows of a block are a simplex (in d' dimensions); a cut block is a smaller simplex."""

    simplices = True


class HadamardSimplexPlus(HadamardSimplex):
    """Rows of a block are a simplex that is improved for their norms (in d' dimensions)."""

    def n_bytes(self, n_projections: int, n_features: int) -> int:
        """Return about how many bytes a draw needs: sweeps, and the directions of a block."""
        directions = 8 * min(n_projections, next_order(n_features)) ** 2
        return super().n_bytes(n_projections, n_features) + 48 * n_projections + directions

    def turned(self, lengths, order):
        """Return the sweeps and the lengths that they belong to."""
        whole, cut = divmod(len(lengths), order)
        blocks = lengths[: whole * order].reshape(whole, order)
        sweeps = np.zeros((whole + (cut > 0), N_SWEEPS, order))
        size = max(1, _DEVICE_BLOCK // order**2)
        for start in range(0, whole, size):
            shares = swept(blocks[start : start + size])[1]
            sweeps[start : start + len(shares)] = shares
        if cut:
            sweeps[whole, :, :cut] = swept(lengths[-cut:])[1]
        return {"sweeps": sweeps, "norms": lengths}


class HadamardIndependent(Hadamard):
    """Rows of a block at random angles, like those of independent rows.

    The last diagonal g has signs and exponentially distributed squares of mean square 1. Rows i and
    k then have the cosine sum_j h_ij h_kj g_j^2 / d', of mean 0 and mean square about 1/d' over
    draws, like independent directions. (Gaussian g, as in Fastfood, gives twice that, and more
    error than independent rows.) Rows of a block share their random numbers, so they are
    independent only in this sense.
    """

    def radii(self, n_blocks, order, rng):
        """Return Rayleigh distributed sizes, normalised in every block."""
        squares = rng.standard_exponential((n_blocks, order))
        return np.sqrt(squares / squares.mean(axis=1, keepdims=True))
