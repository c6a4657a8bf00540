"""Mechanisms whose omega is Gaussian: a coupling, a nonlinearity and a shift, composed."""

import math
from abc import abstractmethod

from sklearn.utils._param_validation import StrOptions

from .. import variances
from .._arrays import ScaledRows
from ..projections import COUPLINGS
from .base import OMEGA, BaseRandomFeatures


class GaussianRandomFeatures(BaseRandomFeatures):
    """Base of the mechanisms that map products omega.x with a nonlinearity."""

    _parameter_constraints = {
        **BaseRandomFeatures._parameter_constraints,
        "coupling": [StrOptions(set(COUPLINGS))],
        "projection": [StrOptions({"dense"})],
    }

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
        """Whether the mean of the estimate is the kernel."""
        return True

    @property
    def is_symmetric(self):
        """Whether `transform` and `transform_keys` are the same function."""
        return True

    @property
    def _columns_per_projection(self):
        return self._nonlinearity.columns_per_projection

    def _draw(self, seed):
        coupling = COUPLINGS[self.coupling]
        projection = coupling.draw(self._n_projections, self.n_features_in_, self._rng(OMEGA))
        self.omega_ = projection.dense()
        self._projection = self._shape_projection(projection)

    def _shape_projection(self, projection):
        return projection

    def _prepare(self, X):
        """Return products, row terms and squared norms of omega: what a nonlinearity takes."""
        rows = ScaledRows(X, self.sigma_, getattr(self, "offset_", None))
        row = self._nonlinearity.row_term(rows.squared_norms(), self.n_features_in_)
        row = row - math.log(self._n_projections) / 2
        if self.kernel == "softmax":
            # exp(x.y) = exp(|x|^2 / 2) K(x, y) exp(|y|^2 / 2), with the inputs as they are.
            row = row + ScaledRows(X, self.sigma_).squared_norms() / 2
        return rows.dot(self._projection), row, self._projection.squared_norms

    def _log_features(self, X, *, keys=False):
        return self._nonlinearity.log_apply(*self._prepare(X))

    def _features(self, X, *, keys=False):
        if self.is_positive:
            return super()._features(X, keys=keys)
        return self._nonlinearity.apply(*self._prepare(X))

    def _log_variance(self, X, Y):
        coupling = COUPLINGS[self.coupling]
        blocks = coupling.blocks(self._n_projections, self.n_features_in_)
        if any(coupling.pair_cosine(rows) is None for rows in blocks):
            known = [name for name, law in COUPLINGS.items() if law.pair_cosine(2) is not None]
            raise NotImplementedError(
                f"No closed form is known for coupling={self.coupling!r}. "
                f"Known: {', '.join(map(repr, known))}."
            )
        X, Y = (
            ScaledRows(Z, self.sigma_, getattr(self, "offset_", None)).on_host() for Z in (X, Y)
        )
        return variances.log_mean_squared_error(
            self._law,
            variances.PairGeometry.of(X, Y),
            self._n_projections,
            blocks,
            coupling.pair_cosine,
        )
