"""The contract of a projection (a drawn matrix) and of a coupling (a way to draw its rows)."""

from abc import ABC, abstractmethod

import numpy as np
import scipy.sparse as sp

from .._arrays import Kept, like
from .._typing import Array


class Projection(ABC):
    """Rows omega_1, ..., omega_m in R^d that multiply inputs.

    A fast projection need not store its matrix: consumers use `multiply` and `squared_norms`;
    `pull_back`, and `dense`, which makes the matrix, are for small problems.

    Attributes
    ----------
    n_projections : int
        Number of rows m.
    n_features : int
        Width d of the inputs.
    squared_norms : ndarray of shape (n_projections,)
        Squared lengths of the rows, float64.

    See Also
    --------
    DenseProjection : A projection stored as a matrix.
    Coupling : Draws projections.

    References
    ----------
    Rahimi and Recht, Random features for large-scale kernel machines (2007).
    """

    @property
    def mean_length(self) -> float:
        """About the mean length of the rows."""
        return float(np.sqrt(self.squared_norms).mean())

    @abstractmethod
    def dense(self) -> np.ndarray:
        """Return the matrix, shape (n_projections, n_features), float64."""

    @abstractmethod
    def multiply(self, X: Array) -> Array:
        """Return X @ dense().T in the library, device and dtype of X (dense result)."""

    def pull_back(self, by_products: Array) -> Array:
        """Return by_products @ dense(): the gradient of `multiply` (dense arrays)."""
        return by_products @ like(self.dense(), by_products)

    @abstractmethod
    def after(self, matrix: np.ndarray) -> "Projection":
        """Return the projection that multiplies matrix @ x for every input x."""

    @abstractmethod
    def with_norms(self, norm: float) -> "Projection":
        """Return the projection whose rows keep their directions but all have a given length."""

    def scaled(self, factor: float) -> "Projection":
        """Return the projection with all rows multiplied by a number."""
        return self.after(factor * np.eye(self.n_features))


class DenseProjection(Projection):
    """A projection stored as a matrix.

    Parameters
    ----------
    matrix : ndarray of shape (n_projections, n_features)
        The rows, float64.

    See Also
    --------
    Projection : The interface.
    Coupling : Draws projections.

    References
    ----------
    Rahimi and Recht, Random features for large-scale kernel machines (2007).
    """

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = matrix
        self.n_projections, self.n_features = matrix.shape
        self.squared_norms = np.einsum("ij,ij->i", matrix, matrix)
        self._kept, self._kept_for_sparse = Kept(), Kept()

    def dense(self) -> np.ndarray:
        """Return the matrix itself."""
        return self.matrix

    def multiply(self, X: Array, out: np.ndarray | None = None) -> Array:
        """Return X @ matrix.T, written into `out` if that is given (dense NumPy input)."""
        if sp.issparse(X):  # SciPy would copy a transposed view in every call
            return X @ self._kept_for_sparse.like(X, lambda: np.ascontiguousarray(self.matrix.T))
        matrix = self._kept.like(X, lambda: self.matrix).T
        if out is not None:
            return np.matmul(X, matrix, out=out)
        return X @ matrix

    def after(self, matrix: np.ndarray) -> "DenseProjection":
        """Return the projection multiplied by a matrix."""
        return DenseProjection(self.matrix @ matrix)

    def with_norms(self, norm: float) -> "DenseProjection":
        """Return the projection whose rows keep their directions but all have a given length."""
        return DenseProjection(self.matrix * (norm / np.sqrt(self.squared_norms))[:, None])

    def scaled(self, factor: float) -> "DenseProjection":
        """Return the projection with all rows multiplied by a number."""
        return DenseProjection(factor * self.matrix)


def dense_bytes(n_projections: int, n_features: int) -> int:
    """Return how many bytes a `DenseProjection` holds: its matrix and its squared norms."""
    return 8 * n_projections * (n_features + 1)


class Coupling(ABC):
    """A joint distribution of the rows of a projection; each row is N(0, I_d).

    See Also
    --------
    Projection : The object that it draws.
    skrf.theory.expected_conformity : The property of a coupling that determines the error.

    References
    ----------
    Yu et al., Orthogonal random features (2016); Reid et al., Variance-reducing couplings for
    random features (2024).
    """

    @abstractmethod
    def draw(self, n_projections: int, n_features: int, rng: np.random.Generator) -> Projection:
        """Return a `Projection` drawn with the NumPy Generator `rng`."""

    def n_bytes(self, n_projections: int, n_features: int) -> int:
        """Return about how many bytes a drawn projection holds; too few rather than too many."""
        return 8 * n_projections  # `squared_norms`

    def blocks(self, n_projections: int, n_features: int) -> dict[int, int]:
        """Return {rows in a block: number of such blocks}; blocks are independent."""
        return {1: n_projections}

    def pair_cosine(self, block_rows: int) -> float | None:
        """Return the cosine between two rows of a block if the rows follow the block law.

        Under that law, the norms are independent and follow chi_d, all pairs of directions have
        the same fixed cosine, and the rotation is uniform. Return None if the rows of a block are
        coupled in another way: closed forms of pair terms are known only for this law.
        """
        return 0.0
