"""Feature maps with a Gaussian omega: a coupling, a nonlinearity and a shift, composed."""

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Literal

import numpy as np

from .. import variances
from .._arrays import LARGEST, Kept, is_array_api, namespace, squared_norms, to_host
from .._sums import Rows
from .._typing import Kernel, RandomState, Sigma
from .._validation import StrOptions
from ..projections import (
    COUPLINGS,
    PROJECTIONS,
    Coupling,
    CouplingLike,
    DenseProjection,
    Independent,
    Projection,
    coupling_of,
    drawn,
)
from ._affine import Affine
from ._map import FeatureMap
from .base import BaseRandomFeatures
from .nonlinearities import Nonlinearity
from .streams import OMEGA, rng_of


@dataclass(frozen=True, eq=False)
class GaussianMap(FeatureMap):
    """Features f(omega, x) of Gaussian projections of one side.

    Parameters
    ----------
    affine : Affine
        Coordinates that are projected.
    drawn : Projection
        The projections that were drawn.
    nonlinearity : Nonlinearity
        Turns products into features.
    projection : Projection
        The drawn one as the nonlinearity multiplies it.
    bias : ndarray of shape (n_projections,) or None
        What the nonlinearity adds to products.
    is_keys : bool, default=False
        Which side this is.
    """

    affine: Affine
    drawn: Projection
    nonlinearity: Nonlinearity
    projection: Projection
    bias: np.ndarray | None
    is_keys: bool = False
    _kept: Kept = field(init=False, default_factory=Kept)

    @classmethod
    def of(cls, affine, drawn, nonlinearity):
        """Return the map of queries for drawn projections."""
        return cls(affine, drawn, nonlinearity, *nonlinearity.multiplier(drawn))

    @cached_property
    def columns_per_projection(self):
        """Number of columns that a projection makes."""
        return self.nonlinearity.columns_per_projection

    @cached_property
    def is_positive(self):
        """Whether features are given as logarithms."""
        return self.nonlinearity.is_positive

    @property
    def is_bounded(self):
        """Whether no feature can overflow, and no row vanish in all of them."""
        return self.nonlinearity.is_bounded and not self.affine.is_softmax

    @property
    def level(self):
        """Log scale of all rows, if they share one: that of an average."""
        if not self.nonlinearity.has_level or self.affine.is_softmax:
            return None
        row = self.nonlinearity.row_term(0.0, self.n_features)
        return row - math.log(self.drawn.n_projections) / 2

    def __call__(self, X):
        """Return the `Rows` of X."""
        if is_array_api(X) and self._is_wide:
            xp, rows = namespace(X), self.affine.less_factor(X)
            wide = [rows, self._wide_slope * squared_norms(rows)[:, None], xp.ones_like(X[:, :1])]
            return Rows(xp.concat(wide, axis=1) @ self._kept.like(X, self._make_wide))
        products, row = self._projected(X)
        return self.nonlinearity.apply(products, row, self.bias, keys=self.is_keys)

    def _projected(self, X, room=None):
        """Return products of rows, and the exponents that depend only on the row."""
        rows, out = self.affine(X), None
        if room is not None and isinstance(self.projection, DenseProjection):
            out = room((len(X), self.projection.n_projections), X.dtype)
        products = rows.scaled(self.nonlinearity.slope).dot(self.projection, out)
        if room is not None and not self.nonlinearity.norm_slope:
            norms2 = np.zeros(len(X), X.dtype)
        else:  # before the slope is applied: an enormous one would overflow squares
            norms2 = rows.squared_norms()
        row = self.nonlinearity.row_term(norms2, self.n_features)
        row = row + (self.affine.outer_term(X) - math.log(self.drawn.n_projections) / 2)
        return products, row

    def write(self, X, out, room, lower=None):
        """Write the values of rows on the host and return their scale."""
        if isinstance(X, np.ndarray) and not self.is_positive:
            return self._write(X, out, room)
        if isinstance(X, np.ndarray) and self._is_wide:
            return self._write_wide(X, out, room, lower)
        return super().write(X, out, room, lower)

    def write_plain(self, X, out, room):
        """Write the features themselves."""
        if self.is_positive or not isinstance(X, np.ndarray):
            super().write_plain(X, out, room)
        else:
            self._write(X, out, room, plain=True)

    def _write(self, X, out, room, plain=False):
        products, row = self._projected(X, room)
        options = {"keys": self.is_keys, "plain": plain}
        return self.nonlinearity.write(products, row, self.bias, out, **options)

    @cached_property
    def _is_wide(self):
        """Whether logarithms are sums of a product, a row term and a column term.

        A single matrix product with two more columns then computes them.
        """
        is_dense = isinstance(self.projection, DenseProjection)
        is_linear = self.nonlinearity.is_log_linear
        return is_linear and self.columns_per_projection == 1 and is_dense

    @cached_property
    def _wide_slope(self):
        """The factor of |x|^2, for rows less their factor."""
        slope = self.nonlinearity.norm_slope + (0.5 if self.affine.is_softmax else 0.0)
        return slope * self.affine.factor**2

    def _write_wide(self, X, out, room, lower):
        """Write logarithms, which are sums of a product, a row term and a column term."""
        wide = room((len(X), X.shape[1] + 2), X.dtype)
        norms2 = squared_norms(self.affine.less_factor(X, wide[:, :-2]))
        np.multiply(norms2, self._wide_slope, out=wide[:, -2])
        wide[:, -1] = 1.0
        matrix = self._kept.like(X, self._make_wide)
        if lower is not None:
            matrix = np.vstack([matrix[:-1], matrix[-1] - lower.astype(X.dtype)])
        np.matmul(wide, matrix, out=out)

    def _make_wide(self):
        """Return the matrix that multiplies [x, slope |x|^2, 1], x less its factor."""
        matrix = self.nonlinearity.slope * self.projection.dense().T
        bias = self.nonlinearity.row_term(np.zeros(matrix.shape[1]), self.n_features)
        bias -= math.log(self.drawn.n_projections) / 2
        bias = bias if self.bias is None else bias + self.bias
        if self.affine.is_softmax and self.affine.is_shifted:
            # |x|^2 / 2 of the raw inputs is |r|^2 / 2 + r.c + |c|^2 / 2 of the shifted ones.
            shift = self.affine.sigma * self.affine.offset
            matrix, bias = matrix + shift[:, None], bias + shift @ shift / 2
        return np.vstack([self.affine.factor * matrix, np.ones_like(bias), bias])

    def pull_back(self, X, by_values):
        """Return the gradient with respect to X, given the gradient with respect to values."""
        nonlinearity = self.nonlinearity
        if not hasattr(nonlinearity, "pull_back"):
            return super().pull_back(X, by_values)
        rows = self.affine(X)
        by_product, by_row = nonlinearity.pull_back(by_values)
        by_rows = nonlinearity.slope * self.projection.pull_back(by_product)
        by_rows = by_rows + (2 * nonlinearity.norm_slope) * by_row[:, None] * rows.values
        if self.affine.is_softmax:
            by_rows = by_rows + by_row[:, None] * self.affine.unshifted(X).values
        return self.affine.pull_back(by_rows)

    def largest_log(self, bound):
        """Return an upper bound of the absolute logarithms of positive features."""
        if not self.is_positive:
            return math.inf
        half = 0.5 if self.affine.is_softmax else 0.0
        largest = self.nonlinearity.slope * self._longest * math.sqrt(bound)
        return largest + (half - self.nonlinearity.norm_slope) * bound + self._largest_constant

    @cached_property
    def _longest(self):
        """The largest length of the projections."""
        return math.sqrt(self.projection.squared_norms.max())

    @cached_property
    def _largest_constant(self):
        """The largest part of a logarithm that does not depend on the row."""
        row = self.nonlinearity.row_term(0.0, self.n_features)
        row -= math.log(self.drawn.n_projections) / 2
        return float(np.abs(row + (0.0 if self.bias is None else self.bias)).max())

    def exponent_bound(self, X):
        """Return an upper bound of the squared norms of rows, slopes and biases.

        Where norms do not enter the values, they are replaced by large products.
        """
        bound = self.affine.exponent_bound(X)
        if not self._wide_slope and bound <= LARGEST**2:
            bound = self._half_length * math.sqrt(bound)
        return max(bound, self._reach)

    @cached_property
    def _reach(self):
        """The largest of slope and biases, as a bound of exponents."""
        return max(self.nonlinearity.slope**2, 0 if self.bias is None else abs(self.bias).max())

    @cached_property
    def _half_length(self):
        """Half of the mean length of the projections."""
        return self.projection.mean_length / 2


class GaussianRandomFeatures(BaseRandomFeatures):
    """Base class of the feature maps that apply a nonlinearity to the products omega.x.

    See Also
    --------
    CenteredRandomFeatures : Maps whose error depends on the origin.
    skrf.projections.Coupling : How projections are drawn.

    References
    ----------
    Rahimi and Recht, Random features for large-scale kernel machines (2007).
    """

    _parameter_constraints = {
        "coupling": [StrOptions(set(COUPLINGS)), Coupling],
        "projection": [StrOptions(set(PROJECTIONS))],
    }

    @abstractmethod
    def _nonlinearity(self, parameters=None, draw=None):
        """Return the nonlinearity at the fitted parameters, or for None the one before `fit`.

        Its closed form must be the same without a draw.
        """

    @property
    def _is_positive(self):
        return self._nonlinearity().is_positive

    @property
    def _is_symmetric(self):
        return self._nonlinearity().is_symmetric

    @property
    def _storage(self):
        """How projections are stored: feature maps without the parameter store a matrix."""
        return getattr(self, "projection", "dense")

    @property
    def _is_unbiased(self):
        return self._storage == "dense"

    @property
    def _columns_per_projection(self):
        """Number of columns that a projection makes."""
        return self._nonlinearity().columns_per_projection

    @property
    def _joint(self):
        """The `Coupling` of the projections."""
        return coupling_of(self.coupling, self._storage)

    def _n_bytes(self, parameters, sample):
        return self._joint.n_bytes(parameters.n_projections, parameters.n_features)

    def _draw(self, parameters, seed):
        rng = rng_of(seed, OMEGA)
        projection = drawn(self._joint, parameters.n_projections, parameters.n_features, rng)
        draw = SimpleNamespace(projection=projection)
        if isinstance(projection, DenseProjection):
            draw.omega_ = projection.dense()
        return draw

    def _affine(self, parameters, *, keys=False):
        """Return the coordinates of one side."""
        offset, balance = getattr(parameters, "offset_", None), getattr(parameters, "balance", None)
        matrix = None if balance is None else balance[keys]
        return Affine(parameters.sigma, offset, matrix, self.kernel == "softmax")

    def _assemble(self, parameters, draw):
        nonlinearity, affine = self._nonlinearity(parameters, draw), self._affine(parameters)
        queries = GaussianMap.of(affine, draw.projection, nonlinearity)
        if nonlinearity.is_symmetric and affine.matrix is None:
            return queries, queries
        keys = self._affine(parameters, keys=True)
        return queries, replace(queries, affine=keys, is_keys=True)

    def _check_variance(self, parameters):
        self._check_is_dense()
        nonlinearity = self._nonlinearity(parameters)

        def is_known(coupling, *size):
            cosines = {rows: coupling.pair_cosine(rows) for rows in coupling.blocks(*size)}
            return None not in cosines.values() and all(
                rows == 1 or nonlinearity.knows_pairs(cosine) for rows, cosine in cosines.items()
            )

        if not is_known(self._joint, parameters.n_projections, parameters.n_features):
            names = [name for name, other in COUPLINGS.items() if is_known(other, 2, 2)]
            raise NotImplementedError(
                f"No closed form or bound is known for {type(self).__name__} with coupling="
                f"{self.coupling!r}. Known: {', '.join(map(repr, names))}. "
                "theory.compare estimates the error from draws."
            )

    def _variance_is_exact(self, parameters):
        blocks = self._joint.blocks(parameters.n_projections, parameters.n_features)
        return hasattr(self._nonlinearity(parameters), "pair") or max(blocks) == 1

    def _log_variance(self, fitted, X, Y):
        self._check_variance(fitted.parameters)
        coupling, parameters = self._joint, fitted.parameters
        blocks = {1: parameters.n_projections}
        if hasattr(self._nonlinearity(parameters), "pair"):
            blocks = coupling.blocks(parameters.n_projections, parameters.n_features)
        return self._log_mean_squared_error(parameters, X, Y, blocks, coupling.pair_cosine)

    def _terms(self, fitted):
        """Return the nonlinearity of the terms, or None if they are not identically distributed."""
        return getattr(fitted.queries, "nonlinearity", None)

    def _log_term_range(self, fitted, X, Y, upper):
        parameters, nonlinearity = fitted.parameters, self._terms(fitted)
        is_allowed = type(self._joint) is Independent or (upper and self._repels(fitted))
        if nonlinearity is not None and is_allowed:
            geometry = variances.PairGeometry.of(*self._dense_sides(parameters, X, Y))
            logs = nonlinearity.log_range(geometry)
            if logs is not None:
                return logs + self._log_outer_factor(parameters, X, Y) / 2
        return super()._log_term_range(fitted, X, Y, upper)

    def _log_upper_tail(self, fitted, X, Y, log_error):
        parameters, nonlinearity = fitted.parameters, self._terms(fitted)
        geometry = variances.PairGeometry.of(*self._dense_sides(parameters, X, Y))
        log_largest = None
        if nonlinearity is not None and nonlinearity.is_positive and self._repels(fitted):
            log_largest = nonlinearity.log_largest(geometry)
        if log_largest is None:
            return super()._log_upper_tail(fitted, X, Y, log_error)
        log_largest = log_largest + self._log_outer_factor(parameters, X, Y) / 2
        sum2 = geometry.sum2.ravel()

        def log_moments(rows, k):
            return nonlinearity.log_moments(parameters.n_features, sum2[rows], k)

        with np.errstate(over="ignore"):
            shares = np.exp(log_error - log_largest).ravel()
        logs = variances.log_upper_tail(log_moments, shares, parameters.n_projections)
        return logs.reshape(log_largest.shape)

    def _repels(self, fitted):
        """Return whether no mixed moment of terms exceeds that of independent projections.

        Terms of log-linear features are positive mixtures of exp(k omega.z). Given the lengths, a
        mixed moment grows with the length of sum_i k_i omega_i, which is smallest at the smallest
        cosine. At right angles it has moments of Dirichlet variables, which are below the products
        of single moments.
        """
        coupling, parameters = self._joint, fitted.parameters
        blocks = coupling.blocks(parameters.n_projections, parameters.n_features)
        cosines = [coupling.pair_cosine(rows) for rows in blocks]
        is_known = self._storage == "dense" and None not in cosines
        nonlinearity = self._terms(fitted)
        is_mixture = nonlinearity is not None and nonlinearity.is_log_linear
        return is_known and is_mixture and max(cosines) <= 0

    def _log_term_variance(self, fitted, X, Y):
        is_independent = type(self._joint) is Independent
        if self._terms(fitted) is None or not (is_independent or self._repels(fitted)):
            raise NotImplementedError(
                f"No variance of one term is known for {self!r}. Known: with coupling='iid', and "
                "for positive maps with 'orthogonal' or 'simplex'."
            )
        if is_independent:
            return super()._log_term_variance(fitted, X, Y)
        m = fitted.parameters.n_projections
        return self._log_mean_squared_error(fitted.parameters, X, Y, {1: m}) + math.log(m)

    def _log_block_moment(self, fitted, X, Y):
        parameters, nonlinearity = fitted.parameters, self._terms(fitted)
        if nonlinearity is None or not nonlinearity.is_positive:
            return super()._log_block_moment(fitted, X, Y)
        logs = self._log_variance(fitted, X, Y)
        blocks = self._joint.blocks(parameters.n_projections, parameters.n_features)
        shares2 = (
            sum(count * rows**2 for rows, count in blocks.items()) / parameters.n_projections**2
        )
        # Regularised features have a mean that is below the kernel.
        log_mean2 = 2 * self._log_exact_kernel(to_host(X), to_host(Y), parameters.sigma)
        return np.logaddexp(logs, log_mean2 + np.log(shares2))

    def _check_is_dense(self):
        if self._storage != "dense":
            raise NotImplementedError(
                f"No closed form or bound is known for projection={self.projection!r}, whose rows "
                "are only nearly Gaussian. Known: projection='dense'; with the same coupling its "
                "values are close."
            )

    def _log_mean_squared_error(self, parameters, X, Y, blocks, cosine=None):
        self._check_is_dense()
        nonlinearity, sides = self._nonlinearity(parameters), self._dense_sides(parameters, X, Y)
        geometry = variances.PairGeometry.of(*sides, nonlinearity.quadratic_form)
        logs = variances.log_mean_squared_error(
            nonlinearity, geometry, parameters.n_projections, blocks, cosine
        )
        return logs + self._log_outer_factor(parameters, X, Y)

    def _dense_sides(self, parameters, X, Y):
        """Return dense rows of both sides in projected coordinates, those of the closed form."""
        return [
            self._affine(parameters, keys=keys).on_host(Z) for Z, keys in ((X, False), (Y, True))
        ]

    def _log_outer_factor(self, parameters, X, Y):
        """Return the log factor of the squared kernel that the geometry does not hold.

        The closed form, at the rows of `_dense_sides`, is multiplied by its exponential. The log is
        0 for the Gaussian kernel and |x|^2 + |y|^2 for softmax.
        """
        terms = [
            self._affine(parameters, keys=keys).outer_term(Affine(1.0).on_host(Z))
            for Z, keys in ((X, False), (Y, True))
        ]
        return 2 * np.add.outer(*terms)


class CenteredRandomFeatures(GaussianRandomFeatures):
    """Base class of the maps whose variance depends on the origin; they shift it to the midpoint.

    See Also
    --------
    GaussianRandomFeatures : The base class without the shift.
    skrf.OptimalPositiveRF : An example.

    References
    ----------
    Choromanski et al., Rethinking attention with Performers (2021), lemma 1; the shift to the
    midpoint is ours.
    """

    _parameter_constraints = {"center": ["boolean"]}

    def __init__(
        self,
        n_components: int = 100,
        *,
        sigma: Sigma | None = None,
        kernel: Kernel = "gaussian",
        coupling: CouplingLike = "orthogonal",
        projection: Literal["dense", "hadamard"] = "dense",
        center: bool = True,
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.sigma = sigma
        self.kernel = kernel
        self.coupling = coupling
        self.projection = projection
        self.center = center
        self.random_state = random_state

    def _learn(self, parameters, statistics):
        parameters.offset_ = statistics.midpoint
        if not self.center:
            parameters.offset_ = np.zeros_like(parameters.offset_)
