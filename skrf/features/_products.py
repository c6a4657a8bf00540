"""Products of features of coefficients with features of bases: the steps of `HybridRF`."""

import copy
import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from types import SimpleNamespace

import numpy as np

from .. import variances
from .._arrays import cast, columns, namespace
from .._sums import Rows
from .._validation import draft_of
from ..projections import Coupling, DenseProjection, Projection
from ._affine import Affine
from ._coefficients import Angular, Coefficients, Gaussian
from ._covariances import hybrid_log_variance, is_covariance_known, shared_covariance
from ._map import FeatureMap, signed_rows
from ._sigma import median_distance
from .base import BaseRandomFeatures
from .gaussian import CenteredRandomFeatures, GaussianRandomFeatures
from .positive import PositiveRF
from .streams import BASES, COEFFICIENTS, rng_of
from .trigonometric import RFFSampler

NAMED_BASES = {
    "positive": PositiveRF(),
    "hyperbolic": PositiveRF(variant="hyperbolic"),
    "trigonometric": RFFSampler(),
}
NAMED_COEFFICIENTS = {"angular": Angular(), "gaussian": Gaussian()}
_MAX_DEFAULT_COEFFICIENTS = 8
_LEAST_WIDTH = 1e-300  # by which normal numbers can be divided


def _products(multipliers, values):
    """Return all products of a column of multipliers and a column of values, row by row."""
    joined = multipliers[:, :, None] * values[:, None, :]
    return namespace(values).reshape(joined, (values.shape[0], -1))


@dataclass(frozen=True, eq=False)
class HybridMap(FeatureMap):
    """Products of coefficient features with the features of the bases.

    Parameters
    ----------
    bases : tuple of FeatureMap
        The bases, symmetric.
    affine : Affine
        Coordinates of the rows that coefficients see.
    taus : Projection
        Projections of the coefficients.
    combination : Angular, Gaussian or Coefficients
        Kind of coefficients.
    is_keys : bool, default=False
        Which side this is.
    """

    bases: tuple
    affine: Affine
    taus: Projection
    combination: Angular | Gaussian | Coefficients
    is_keys: bool = False
    is_positive = False

    @property
    def n_features(self):
        """Width of the rows."""
        return self.bases[0].n_features

    @property
    def n_columns(self):
        """Number of features."""
        n_coefficients = self.taus.n_projections // max(len(self.bases) - 1, 1)
        return self.combination.n_columns(n_coefficients, [base.n_columns for base in self.bases])

    @property
    def is_parallel(self):
        """Whether blocks of rows may be mapped on several threads."""
        return all(base.is_parallel for base in self.bases)

    def __call__(self, X):
        """Return the `Rows` of X."""
        features = [_signed(base(X)) for base in self.bases]
        ones = namespace(features[0].values).ones_like(features[0].values[:, :1])
        blocks = [
            (_products(by, features[i].values), _products(0 * by + 1, features[i].scale))
            for by, i in self._blocks(self._angles(X), ones)
        ]
        return Rows(*(columns(pieces) for pieces in zip(*blocks, strict=True)))

    def write_plain(self, X, out, room):
        """Write the features themselves, with few exponentials: those of the bases."""
        features, start = [base(X).plain() for base in self.bases], 0
        for by, i in self._blocks(self._angles(X), np.ones_like(features[0][:, :1])):
            shape = len(by), by.shape[1], features[i].shape[1]
            stop = start + shape[1] * shape[2]
            block, start = out[:, start:stop].reshape(shape), stop
            np.multiply(by[:, :, None], features[i][:, None, :], out=block)

    def _angles(self, X):
        """Return products with the tau rows; signs and phases need more digits than kernels."""
        return self.affine(cast(X, namespace(X).float64)).dot(self.taus)

    def _blocks(self, angles, ones):
        """Return the multipliers of every block and the indices of their bases."""
        wide = cast(ones, angles.dtype)
        blocks = self.combination.blocks(angles, wide, len(self.bases), keys=self.is_keys)
        return [(cast(by, ones.dtype), i) for by, i in blocks]

    def exponent_bound(self, X):
        """Return the largest bound of the bases."""
        return max(base.exponent_bound(X) for base in self.bases)


def _signed(rows):
    """Return rows of a base, positive or not, as values with log scales."""
    if rows.holds_logs:
        return signed_rows(namespace(rows.values).ones_like(rows.values), rows.values)
    return Rows(rows.values, rows.scale + 0 * rows.values)


@dataclass(frozen=True, eq=False)
class _Drawn(Coupling):
    """The law of projections drawn earlier, for the bases that share them."""

    projection: Projection

    def draw(self, n_projections, n_features, rng):
        """Return these projections."""
        return self.projection


def _of_any_base(name):
    """Return a property that tells whether an attribute of a base is true."""
    return property(lambda self: any(getattr(base, name) for base in self._unsized_bases))


class ProductSteps(CenteredRandomFeatures):
    """The steps of a `HybridRF` whose coefficients multiply features of bases."""

    _is_positive = False

    @cached_property
    def _unsized_bases(self):
        """Copies of the bases with the settings from here."""
        bases = []
        for base in self.base if isinstance(self.base, (tuple, list)) else ():
            copied = NAMED_BASES.get(base) if isinstance(base, str) else base
            if not isinstance(copied, BaseRandomFeatures):
                continue  # reported by `fit`
            copied = draft_of(copied)
            copied.sigma, copied.kernel, copied.center = self.sigma, self.kernel, self.center
            if self.shared or isinstance(base, str):
                copied.coupling, copied.projection = self.coupling, self.projection
            bases.append(copied)
        return bases

    @cached_property
    def _bases(self):
        """The bases of a fit, with their sizes."""
        sizes, bases = self._sizes(), [draft_of(base) for base in self._unsized_bases]
        for base in bases:
            base.n_components = sizes.n_projections * base._columns_per_projection
        if sizes.is_alone:
            bases = bases[:1]
            # A single column holds a folded pair.
            bases[0].n_components = min(bases[0].n_components, self.n_components)
        return bases

    def _pairs(self, parameters):
        """Return pairs of a base and its parameters."""
        return list(zip(self._bases, parameters.bases, strict=True))

    @property
    def _columns_per_projection(self):
        """Number of components per projection in the first base."""
        return next((base._columns_per_projection for base in self._unsized_bases), 1)

    @property
    def _is_unbiased(self):
        return all(base._is_unbiased for base in self._unsized_bases)

    def _variance_is_exact(self, parameters):
        return all(
            base._variance_is_exact(base_parameters)
            for base, base_parameters in self._pairs(parameters)
        )

    _needs_data = _of_any_base("_needs_data")
    _looks_at_rows = _of_any_base("_looks_at_rows")
    _needs_full_statistics = _of_any_base("_needs_full_statistics")
    _needs_sizes = _of_any_base("_needs_sizes")

    def _obstacle_to_merging(self):
        if self.coefficients == "gaussian" and self.tau == "median":
            return "tau='median'"
        obstacles = [base._obstacle_to_merging() for base in self._unsized_bases]
        return next(filter(None, obstacles), None) or super()._obstacle_to_merging()

    # ---------------------------------------------------------------- steps

    def _sizes(self):
        combination = self._kind
        widths = [base._columns_per_projection for base in self._unsized_bases]
        n, growth = self.n_coefficients, combination.growth(widths)
        if n is None:
            n = min(_MAX_DEFAULT_COEFFICIENTS, math.isqrt(self.n_components // growth) - 1)
        smallest = combination.n_columns(max(n, 0), widths)
        fits = smallest <= self.n_components
        if self.n_coefficients is not None and not fits:
            raise ValueError(
                f"n_components={self.n_components} cannot hold n_coefficients={n}: the nearest "
                f"allowed n_components is {smallest}."
            )
        is_alone = n < 0 or not fits
        if is_alone:
            # If not even one product fits, use the first base alone.
            n, smallest = 0, widths[0]
        n_projections = max(1, int(self.n_components) // smallest)
        return SimpleNamespace(
            n_projections=n_projections,
            n_coefficients_=n,
            is_alone=is_alone,
            n_columns=min(n_projections * smallest, int(self.n_components)),
        )

    def _n_columns(self, n_rows):
        return self._sizes().n_columns

    def _n_bytes(self, parameters, sample):
        n_bytes = super()._n_bytes(parameters, sample)
        n_taus = parameters.n_coefficients_ * (len(self.base) - 1)
        # A few projections make many columns: a row of them must have room as well.
        return n_bytes + 8 * (n_taus * parameters.n_features + parameters.n_columns)

    def _combination(self, parameters):
        """Return the coefficients; signs without any tau give a single base the weight 1."""
        return NAMED_COEFFICIENTS["angular"] if parameters.is_alone else self._kind

    @property
    def _kind(self):
        """The kind of coefficients."""
        if isinstance(self.coefficients, Coefficients):
            return self.coefficients
        return NAMED_COEFFICIENTS[self.coefficients]

    def _widths(self, parameters, sample):
        """Return the widths of the Gaussian coefficients; one number is halved repeatedly."""
        if isinstance(self.tau, (tuple, list)):
            widths = np.array(self.tau, dtype=float)
        else:
            is_median = self.tau == "median"
            first = parameters.sigma * median_distance(sample) or 1.0 if is_median else self.tau
            widths = first / 2.0 ** np.arange(len(self.base) - 1)
        widths = np.maximum(widths, _LEAST_WIDTH)
        return widths if len(widths) > 1 else float(widths[0])

    def _learn(self, parameters, statistics):
        super()._learn(parameters, statistics)
        of_bases = []
        for base in self._bases:
            base_parameters = base._sizes()
            # All share one shift, so that cosines of rows far from zero keep their digits.
            for name in ("n_features", "sigma", "offset_"):
                setattr(base_parameters, name, getattr(parameters, name))
            base._learn(base_parameters, statistics)
            of_bases.append(base_parameters)
        parameters.bases = tuple(of_bases)

    def _learn_from_rows(self, parameters, sample):
        for k, (base, base_parameters) in enumerate(self._pairs(parameters)):
            base._learn_from_rows(base_parameters, sample.for_base(k))
        parameters.width = 1.0
        if self.coefficients == "gaussian":
            parameters.tau_ = parameters.width = self._widths(parameters, sample)

    def _forget_data(self, parameters):
        for base, base_parameters in self._pairs(parameters):
            base._forget_data(base_parameters)

    def _keeps_draw(self, before, parameters):
        triples = zip(self._bases, before.bases, parameters.bases, strict=True)
        return all(base._keeps_draw(earlier, later) for base, earlier, later in triples)

    def _draw(self, parameters, seed):
        pairs, draws = self._pairs(parameters), []
        seeds = rng_of(seed, BASES).integers(2**31, size=len(pairs)).tolist()
        draw = super()._draw(parameters, seed) if self.shared else SimpleNamespace()
        for (base, base_parameters), base_seed in zip(pairs, seeds, strict=True):
            if self.shared and isinstance(base, GaussianRandomFeatures):
                base, base_seed = copy.copy(base), seed
                base.coupling = _Drawn(draw.projection)
            draws.append(base._draw(base_parameters, base_seed))
        if not self.shared and hasattr(draws[0], "omega_"):
            draw.omega_ = draws[0].omega_
        draw.bases = tuple(draws)
        # Projections of the coefficients for a width of 1.
        n_taus = parameters.n_coefficients_ * (len(self.base) - 1)
        rng, shape = rng_of(seed, COEFFICIENTS), (n_taus, parameters.n_features)
        is_given = isinstance(self.coefficients, Coefficients) and n_taus
        draw.taus = self.coefficients.draw(*shape, rng) if is_given else rng.standard_normal(shape)
        return draw

    def _assemble(self, parameters, draw):
        triples = zip(self._pairs(parameters), draw.bases, strict=True)
        bases = tuple(
            base._assemble(base_parameters, drawn)[0] for (base, base_parameters), drawn in triples
        )
        widths = np.ravel(parameters.width)
        widths = np.repeat(widths, len(draw.taus) // len(widths))
        taus = DenseProjection(draw.taus / widths[:, None])
        queries = HybridMap(bases, self._affine(parameters), taus, self._combination(parameters))
        return queries, replace(queries, is_keys=True) if parameters.n_coefficients_ else queries

    # ---------------------------------------------------------------- error

    def _check_variance(self, parameters):
        if isinstance(self.coefficients, Coefficients) and not parameters.is_alone:
            raise NotImplementedError(
                "No closed form is known for Coefficients of a user. theory.compare estimates the "
                "error from draws."
            )
        sharing = self._sharing(parameters)
        if len(sharing) > 1:
            self._check_is_dense()
            if self.coupling != "iid":
                raise NotImplementedError(
                    f"No closed form is known for HybridRF with coupling={self.coupling!r}. Known: "
                    "'iid', and with shared=False every coupling that the bases know. "
                    "theory.compare estimates the error from draws."
                )
        for pair in combinations(sharing, 2):
            if not is_covariance_known(*(sharing[k] for k in pair)):
                names = " and ".join(type(self._bases[k]).__name__ for k in pair)
                raise NotImplementedError(
                    f"No covariance is known of {names} with shared projections. Known: "
                    "PositiveRF (exponential, hyperbolic), OptimalPositiveRF and RFFSampler; with "
                    "shared=False all bases that have a variance in closed form."
                )
        for base, base_parameters in self._pairs(parameters):
            base._check_variance(base_parameters)

    def _log_variance(self, fitted, X, Y):
        parameters = fitted.parameters
        self._check_variance(parameters)
        covariances = self._covariances(parameters, X, Y)
        log_variances = [
            base._log_variance(
                replace(fitted, parameters=base_parameters, queries=side, keys=side), X, Y
            )
            for (base, base_parameters), side in zip(
                self._pairs(parameters), fitted.queries.bases, strict=True
            )
        ]
        sides, n = self._dense_sides(parameters, X, Y), parameters.n_coefficients_
        moments = self._combination(parameters).moments(
            *sides, n, len(log_variances), parameters.width
        )
        return hybrid_log_variance(moments, log_variances, covariances)

    def _sharing(self, parameters):
        """Return the nonlinearities of the bases that share projections, by number of the base."""
        return {
            k: base._nonlinearity(base_parameters)
            for k, (base, base_parameters) in enumerate(self._pairs(parameters))
            if self.shared and isinstance(base, GaussianRandomFeatures)
        }

    def _covariances(self, parameters, X, Y):
        """Return covariances of bases that share projections, in the form the law expects."""
        sharing = self._sharing(parameters)
        if len(sharing) < 2:
            return {}
        sides = self._dense_sides(parameters, X, Y)
        gap = np.subtract.outer(*(np.sum(Z**2, axis=1) for Z in sides))
        scale = self._log_outer_factor(parameters, X, Y) - np.log(parameters.n_projections)
        covariances, geometry = {}, variances.PairGeometry.of(*sides)
        for k, j in combinations(sharing, 2):
            value, unit = shared_covariance((sharing[k], sharing[j]), geometry, gap)
            covariances[k, j] = value, unit + scale
        return covariances
