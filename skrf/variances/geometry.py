"""What closed forms depend on: the geometry of a pair of inputs."""

from dataclasses import dataclass

import numpy as np

from .._arrays import squared_distances


def log_expm1(t):
    """Return log(exp(t) - 1) for t >= 0, accurate for tiny and huge t; -inf at 0."""
    t = np.asarray(t, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return t + np.log(-np.expm1(-t))


@dataclass(frozen=True)
class PairGeometry:
    """The quantities that closed forms depend on, for every pair of inputs.

    Parameters
    ----------
    n_features : int
        Dimension d.
    norms2 : ndarray of shape (n_x, n_y)
        |x|^2 + |y|^2.
    sum2, difference2 : ndarray of shape (n_x, n_y)
        |x + y|^2 and |x - y|^2.
    weighted_sum2 : ndarray of shape (n_x, n_y) or None
        A quadratic form of x + y, for the laws that need one.

    See Also
    --------
    log_mean_squared_error : The error of a closed form at these pairs.
    skrf.theory.kernel_variance : The variance for a fitted feature map.

    References
    ----------
    Likhosherstov et al., Chefs' random tables (2022), theorems 3.1 and 3.2.
    """

    n_features: int
    norms2: np.ndarray
    sum2: np.ndarray
    difference2: np.ndarray
    weighted_sum2: np.ndarray | None = None

    @classmethod
    def of(cls, X: np.ndarray, Y: np.ndarray, axes: np.ndarray | None = None) -> "PairGeometry":
        """Return the geometry of all pairs of rows of two dense float64 arrays.

        Parameters
        ----------
        X, Y : ndarray of shape (n_x, d) and (n_y, d)
            The rows.
        axes : ndarray of shape (d, d), default=None
            Matrix of the quadratic form ``weighted_sum2``, |axes (x + y)|^2.
        """
        x2, y2 = (np.einsum("ij,ij->i", Z, Z) for Z in (X, Y))
        return cls(
            X.shape[1],
            np.add.outer(x2, y2),
            squared_distances(X, Y, sign=1),
            squared_distances(X, Y),
            None if axes is None else squared_distances(X @ axes.T, Y @ axes.T, sign=1),
        )
