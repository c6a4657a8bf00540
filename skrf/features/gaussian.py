"""Mechanisms whose omega is Gaussian: a coupling, a nonlinearity and a shift, composed."""

import math
from abc import abstractmethod

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .. import variances
from .._arrays import like
from ..projections import COUPLINGS, PROJECTIONS, DenseProjection
from .base import OMEGA, BaseRandomFeatures


class GaussianRandomFeatures(BaseRandomFeatures):
    """Base of the mechanisms that map products omega.x with a nonlinearity."""

    _parameter_constraints = {
        **BaseRandomFeatures._parameter_constraints,
        "coupling": [StrOptions(set(COUPLINGS))],
        "projection": [StrOptions(set(PROJECTIONS))],
    }

    # Mechanisms without the parameter hold a matrix.
    projection = "dense"

    @property
    @abstractmethod
    def _nonlinearity(self):
        """The nonlinearity at the fitted parameters (its class's defaults before `fit`)."""

    @property
    @abstractmethod
    def _law(self):
        """The closed form of `skrf.variances` at the fitted parameters."""

    @property
    def is_positive(self):
        """Whether every feature is positive."""
        return self._nonlinearity.is_positive

    @property
    def is_unbiased(self):
        """Whether the mean of the estimate is the kernel: only nearly so for hadamard."""
        return self.projection == "dense"

    @property
    def is_symmetric(self):
        """Whether `transform` and `transform_keys` are the same function."""
        return self._nonlinearity.is_symmetric

    @property
    def _columns_per_projection(self):
        return self._nonlinearity.columns_per_projection

    def _draw(self, seed):
        allowed = PROJECTIONS[self.projection]
        if self.coupling not in allowed:
            raise ValueError(
                f"coupling={self.coupling!r} cannot be had with projection={self.projection!r}. "
                f"Allowed: {', '.join(map(repr, allowed))}."
            )
        coupling = allowed[self.coupling]
        self._drawn = coupling.draw(self._n_projections, self.n_features_in_, self._rng(OMEGA))
        if isinstance(self._drawn, DenseProjection):
            self.omega_ = self._drawn.dense()
        else:
            vars(self).pop("omega_", None)  # of an earlier fit

    def _assemble(self):
        self._projection, self._bias = self._nonlinearity.shape(self._drawn)
        self._wide = {}  # see `_widened`

    def _prepare(self, X, *, keys, out=None):
        """Return products (in `out`, if given), row terms and biases: what a nonlinearity takes."""
        rows, row = self._rows_and_terms(X, keys=keys)
        return rows.dot(self._projection, out), row, self._bias

    def _rows_and_terms(self, X, *, keys):
        """Return the rows that are projected, and the exponents that depend on a row alone."""
        nonlinearity = self._nonlinearity
        rows = self._rows(X, getattr(self, "offset_", None), keys=keys)
        # Norms before the slope: an enormous slope would overflow their squares.
        row = nonlinearity.row_term(rows.squared_norms(), self.n_features_in_)
        row = row - math.log(self._n_projections) / 2
        if self.kernel == "softmax":
            # exp(x.y) = exp(|x|^2 / 2) K(x, y) exp(|y|^2 / 2), with the inputs as they are.
            row = row + self._rows(X, keys=keys).squared_norms() / 2
        return rows.scaled(nonlinearity.slope), row

    def _log_features(self, X, *, keys=False):
        return self._nonlinearity.log_apply(*self._prepare(X, keys=keys), keys=keys)

    def _features(self, X, *, keys=False):
        if self.is_positive:
            return super()._features(X, keys=keys)
        return self._nonlinearity.apply(*self._prepare(X, keys=keys), keys=keys)

    def _log_features_into(self, X, out, scratch, *, keys=False, lower=None):
        if not (self._writes_products(X) and self._columns_per_projection == 1):
            super()._log_features_into(X, out, scratch, keys=keys, lower=lower)
            return
        # A logarithm is a product plus a term of the row and one of the column: one product of
        # matrices with two more columns.
        rows, row = self._rows_and_terms(X, keys=keys)
        wide = scratch((len(X), X.shape[1] + 2), X.dtype)
        wide[:, :-2], wide[:, -2], wide[:, -1] = rows.values, row, 1.0
        matrix = self._widened(X.dtype)
        if lower is not None:
            matrix = np.vstack([matrix[:-1], matrix[-1] - lower.astype(X.dtype)])
        np.matmul(wide, matrix, out=out)

    def _widened(self, dtype):
        """Return the matrix that multiplies [x, row term, 1], made once for a dtype."""
        if dtype not in self._wide:
            matrix = self._projection.dense().T
            bias = np.zeros(matrix.shape[1]) if self._bias is None else self._bias
            self._wide[dtype] = np.vstack([matrix, np.ones_like(bias), bias]).astype(dtype)
        return self._wide[dtype]

    def _features_into(self, X, out, scratch, *, keys=False):
        if self.is_positive:
            super()._features_into(X, out, scratch, keys=keys)
            return
        products = None
        if self._writes_products(X):
            products = scratch((len(X), self._projection.n_projections), X.dtype)
        prepared = self._prepare(X, keys=keys, out=products)
        self._nonlinearity.apply_into(*prepared, out, keys=keys)

    def _writes_products(self, X):
        return isinstance(X, np.ndarray) and isinstance(self._projection, DenseProjection)

    def _pull_back(self, X, gradient, *, keys=False):
        nonlinearity = self._nonlinearity
        by_product, by_row = nonlinearity.pull_back(
            *self._prepare(X, keys=keys), gradient, keys=keys
        )
        rows = self._rows(X, getattr(self, "offset_", None), keys=keys).values
        by_rows = nonlinearity.slope * (by_product @ like(self._projection.dense(), X))
        by_rows = by_rows + (2 * nonlinearity.norm_slope) * by_row[:, None] * rows
        if self.kernel == "softmax":
            by_rows = by_rows + by_row[:, None] * self._rows(X, keys=keys).values
        return self._pull_back_rows(by_rows, keys=keys)

    def _log_variance(self, X, Y):
        coupling = COUPLINGS[self.coupling]
        blocks = coupling.blocks(self._n_projections, self.n_features_in_)
        if any(coupling.pair_cosine(rows) is None for rows in blocks):
            known = [name for name, law in COUPLINGS.items() if law.pair_cosine(2) is not None]
            raise NotImplementedError(
                f"No closed form is known for coupling={self.coupling!r}. "
                f"Known: {', '.join(map(repr, known))}."
            )
        return self._log_mean_squared_error(X, Y, blocks, coupling.pair_cosine)

    # Matrix of a quadratic form of x + y that the law needs.
    _axes = None

    def _log_mean_squared_error(self, X, Y, blocks, cosine=None):
        if self.projection != "dense":
            raise NotImplementedError(
                f"No closed form or bound is known for projection={self.projection!r}, whose rows "
                "are only nearly Gaussian. Known: projection='dense'; with the same coupling its "
                "values are close."
            )
        offset = getattr(self, "offset_", None)
        rows = (self._rows(Z, offset, keys=k).on_host() for Z, k in ((X, False), (Y, True)))
        geometry = variances.PairGeometry.of(*rows, self._axes)
        logs = variances.log_mean_squared_error(
            self._law, geometry, self._n_projections, blocks, cosine
        )
        return logs + self._log_outer_factor(X, Y)
