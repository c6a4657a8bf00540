"""The fit of ridge regression: maps, moments of all rows so far, and the solution; immutable."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from .._memory import check_fits
from .basis import in_basis
from .blocks import beside_threads
from .moments import Moments, bytes_of_moments, moments_of_groups, moments_of_rows
from .near_far import NearFarRows, NearFarSolution
from .problems import merged
from .rows import ExactRows
from .solve import Sizes, Solution

FEW_ROWS = 2048  # up to which the exact kernel is a feature map, with every row a landmark
# Rounding of exponentials times coefficients stays below 1e-9 of the targets.
_LARGEST_COEF = 1e-9 / np.finfo(float).eps


def choose_solver(feature_map, n_rows, n_columns, *, is_of_pairs=False):
    """Return what a ridge regression is solved in: "pairs", "rows" or "columns".

    Parameters
    ----------
    feature_map : str or object
        The parameter.
    n_rows : int
        Number of rows.
    n_columns : int or None
        Number of features, if it is known.
    is_of_pairs : bool, default=False
        Whether classes are decided in pairs, with a given alpha.

    Returns
    -------
    str
        In this order, with n rows and M columns:

        - "pairs", for the exact kernel of more than 2,048 rows, if classes are decided in pairs:
          matrices of the rows of two classes.
        - "rows", for at most M / 2 rows: features in a basis of the rows, so n^3 in place of M^3.
        - "columns", otherwise: second moments of the features, n M^2 + M^3.
    """
    if isinstance(feature_map, str) and is_of_pairs and n_rows > FEW_ROWS:
        return "pairs"
    if n_columns is not None and 2 * n_rows <= n_columns:
        return "rows"
    return "columns"


@dataclass(frozen=True, eq=False)
class RidgeSums:
    """Feature maps with the moments of all rows so far and, at the end, the solution; immutable.

    Parameters
    ----------
    params : dict
        Parameters of the estimator at its first fit.
    maps : tuple of FeatureMap
        Maps of queries and keys; only the first is used.
    shape : tuple
        As in `Targets`.
    n_groups : int
        Number of classes whose moments are kept apart; 0 if all rows are summed together.
    least_alpha : float
        The smallest ridge that may be added, or 0 if that is not known.
    total : float, default=None
        Weight of all rows that will be solved for, if they are known to come at once.
    has_sizes : bool, default=False
        Whether to count what repeated and weighted rows are worth.
    moments : Moments, default=None
        Moments of all rows so far.
    sizes : Sizes, default=None
        What these are worth.
    basis : ndarray of shape (M, r), default=None
        Orthonormal columns that span few rows, if moments are those of coordinates in them.
    exact : ExactRows or NearFarRows, default=None
        All rows themselves, for the exact kernel of pairs of classes, or within leaves.
    solution : Solution, default=None
        The solution.
    """

    params: dict
    maps: tuple
    shape: tuple
    n_groups: int
    least_alpha: float
    total: float | None = None
    has_sizes: bool = False
    moments: Moments | None = None
    sizes: Sizes | None = None
    basis: np.ndarray | None = None
    exact: ExactRows | NearFarRows | None = None
    solution: Solution | None = None

    @property
    def emptied(self):
        """The fit before the first row."""
        return replace(self, moments=None, sizes=None, basis=None)

    @property
    def n_columns(self):
        """Number of numbers that are solved for at once."""
        return self.moments.n_columns if self.exact is None else self.exact.n_columns

    @cached_property
    def reader(self):
        """What predicts: the map and the solution, or those of the inner map where it is precise.

        Targets are about 1 in the units of the coefficients.
        """
        feature_map = self.maps[0]
        if feature_map.inner is None or isinstance(self.solution, NearFarSolution):
            return feature_map, self.solution
        coef = feature_map.matrix @ self.solution.coef
        if np.abs(coef).sum(axis=0).max() > _LARGEST_COEF:
            return feature_map, self.solution
        return feature_map.inner, replace(self.solution, coef=coef)

    def added(self, data):
        """Return an unsolved fit with more rows."""
        if self.exact is not None:  # it has them
            return self
        sizes = merged(data)[1] if self.has_sizes else None
        total = self.total or (
            data.total if self.moments is None else self.moments.total + data.total
        )
        share = data.total / total if total < np.inf else 0.0
        feature_map, X, basis, least = self.maps[0], data.X, None, share * self.least_alpha
        is_whole = self.moments is None and data.total == self.total
        with beside_threads(feature_map):
            if is_whole and choose_solver(None, len(data.y), feature_map.n_columns) == "rows":
                basis, feature_map, X = in_basis(feature_map, X)
            if self.n_groups:
                rows = X, data.values.values, self.n_groups, data.sample_weight
                moments = moments_of_groups(feature_map, *rows, least)
            else:
                moments = moments_of_rows(feature_map, X, data.values, data.sample_weight, least)
        return self.merge(replace(self, moments=moments, sizes=sizes, basis=basis))

    def merge(self, other):
        """Return an unsolved fit to the rows of both."""
        if self.moments is None or other.moments is None:
            return self if other.moments is None else other
        moments = self._of_features.merge(other._of_features)
        sizes = self.sizes and self.sizes.merge(other.sizes)
        return replace(self, moments=moments, sizes=sizes, basis=None, solution=None)

    @property
    def _of_features(self):
        """The moments of the features themselves."""
        if self.basis is None:
            return self.moments
        n_columns, n_targets = len(self.basis), len(self.moments.unit)
        n_bytes = max(self.n_groups, 1) * bytes_of_moments(n_columns, n_targets)
        check_fits(n_bytes, f"feature_map with {n_columns} columns", "their second moments")
        return self.moments.times(self.basis.T)
