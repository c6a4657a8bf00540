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
    """Return all products of a column of one and a column of the other, row by row."""
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
        made = [_signed(base(X)) for base in self.bases]
        one = namespace(made[0].values).ones_like(made[0].values[:, :1])
        parts = [
            (_products(by, made[i].values), _products(0 * by + 1, made[i].scale))
            for by, i in self._blocks(self._angles(X), one)
        ]
        return Rows(*(columns(blocks) for blocks in zip(*parts, strict=True)))

    def write_plain(self, X, out, room):
        """Write the features themselves, with few exponentials: those of the bases."""
        made, start = [base(X).plain() for base in self.bases], 0
        for by, i in self._blocks(self._angles(X), np.ones_like(made[0][:, :1])):
            shape = len(by), by.shape[1], made[i].shape[1]
            stop = start + shape[1] * shape[2]
            block, start = out[:, start:stop].reshape(shape), stop
            np.multiply(by[:, :, None], made[i][:, None, :], out=block)

    def _angles(self, X):
        """Return products with the tau rows; signs and phases need more digits than kernels."""
        return self.affine(cast(X, namespace(X).float64)).dot(self.taus)

    def _blocks(self, angles, one):
        """Return the multipliers of every block and the indices of their bases."""
        wide = cast(one, angles.dtype)
        blocks = self.combination.blocks(angles, wide, len(self.bases), keys=self.is_keys)
        return [(cast(by, one.dtype), i) for by, i in blocks]

    def pull_back(self, X, by_values):
        """Return the gradient with respect to X, given the gradient with respect to values."""
        made, angles = [_signed(base(X)).values for base in self.bases], self._angles(X)
        xp, by_bases, by_multipliers, start = namespace(by_values), [0.0] * len(made), [], 0
        for by, i in self._blocks(angles, xp.ones_like(by_values[:, :1])):
            shape = (by_values.shape[0], by.shape[1], made[i].shape[1])
            stop = start + shape[1] * shape[2]
            block, start = xp.reshape(by_values[:, start:stop], shape), stop
            by_bases[i] = by_bases[i] + xp.sum(block * by[:, :, None], axis=1)
            by_multipliers.append(xp.sum(block * made[i][:, None, :], axis=2))
        result = sum(base.pull_back(X, by) for base, by in zip(self.bases, by_bases, strict=True))
        by_angles = self.combination.pull_back(angles, by_multipliers, keys=self.is_keys)
        if by_angles is None:
            return result
        by_rows = self.affine.pull_back(self.taus.pull_back(by_angles))
        return result + cast(by_rows, result.dtype)

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

    def _parts(self, learned):
        """Return pairs of a base and what it learned."""
        return list(zip(self._bases, learned.bases, strict=True))

    @property
    def _columns_per_projection(self):
        """Number of components per projection in the first base."""
        return next((base._columns_per_projection for base in self._unsized_bases), 1)

    @property
    def _is_unbiased(self):
        return all(base._is_unbiased for base in self._unsized_bases)

    def _variance_is_exact(self, learned):
        return all(
            base._variance_is_exact(base_learned) for base, base_learned in self._parts(learned)
        )

    @property
    def _needs_data(self):
        """Whether every member of the family needs statistics of data."""
        return any(base._needs_data for base in self._unsized_bases)

    @property
    def _looks_at_rows(self):
        return any(base._looks_at_rows for base in self._unsized_bases)

    @property
    def _needs_full_statistics(self):
        return any(base._needs_full_statistics for base in self._unsized_bases)

    @property
    def _needs_sizes(self):
        return any(base._needs_sizes for base in self._unsized_bases)

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

    def _n_bytes(self, learned, sample):
        n_bytes = super()._n_bytes(learned, sample)
        n_taus = learned.n_coefficients_ * (len(self.base) - 1)
        # A few projections make many columns: a row of them must have room as well.
        return n_bytes + 8 * (n_taus * learned.n_features + learned.n_columns)

    def _combination(self, learned):
        """Return the coefficients; signs without any tau give a single base the weight 1."""
        return NAMED_COEFFICIENTS["angular"] if learned.is_alone else self._kind

    @property
    def _kind(self):
        """The kind of coefficients."""
        if isinstance(self.coefficients, Coefficients):
            return self.coefficients
        return NAMED_COEFFICIENTS[self.coefficients]

    def _widths(self, learned, sample):
        """Return the widths of the Gaussian coefficients; one number is halved repeatedly."""
        if isinstance(self.tau, (tuple, list)):
            widths = np.array(self.tau, dtype=float)
        else:
            is_median = self.tau == "median"
            first = learned.sigma * median_distance(sample) or 1.0 if is_median else self.tau
            widths = first / 2.0 ** np.arange(len(self.base) - 1)
        widths = np.maximum(widths, _LEAST_WIDTH)
        return widths if len(widths) > 1 else float(widths[0])

    def _learn(self, learned, statistics):
        super()._learn(learned, statistics)
        parts = []
        for base in self._bases:
            base_learned = base._sizes()
            # All share one shift, so that cosines of rows far from zero keep their digits.
            for name in ("n_features", "sigma", "offset_"):
                setattr(base_learned, name, getattr(learned, name))
            base._learn(base_learned, statistics)
            parts.append(base_learned)
        learned.bases = tuple(parts)

    def _learn_from_rows(self, learned, sample):
        for k, (base, base_learned) in enumerate(self._parts(learned)):
            base._learn_from_rows(base_learned, sample.for_part(k))
        learned.width = 1.0
        if self.coefficients == "gaussian":
            learned.tau_ = learned.width = self._widths(learned, sample)

    def _forget_data(self, learned):
        for base, base_learned in self._parts(learned):
            base._forget_data(base_learned)

    def _keeps_draw(self, before, learned):
        sizes = [
            (side.n_projections, side.n_coefficients_, len(side.bases))
            for side in (before, learned)
        ]
        return sizes[0] == sizes[1] and all(
            base._keeps_draw(earlier, base_learned)
            for earlier, (base, base_learned) in zip(
                before.bases, self._parts(learned), strict=True
            )
        )

    def _draw(self, learned, seed):
        parts, made = self._parts(learned), []
        seeds = rng_of(seed, BASES).integers(2**31, size=len(parts)).tolist()
        draw = super()._draw(learned, seed) if self.shared else SimpleNamespace()
        for (base, base_learned), base_seed in zip(parts, seeds, strict=True):
            if self.shared and isinstance(base, GaussianRandomFeatures):
                base, base_seed = copy.copy(base), seed
                base.coupling = _Drawn(draw.projection)
            made.append(base._draw(base_learned, base_seed))
        if not self.shared and hasattr(made[0], "omega_"):
            draw.omega_ = made[0].omega_
        draw.bases = tuple(made)
        # Projections of the coefficients for a width of 1.
        n_taus = learned.n_coefficients_ * (len(self.base) - 1)
        rng, shape = rng_of(seed, COEFFICIENTS), (n_taus, learned.n_features)
        is_given = isinstance(self.coefficients, Coefficients) and n_taus
        draw.taus = self.coefficients.draw(*shape, rng) if is_given else rng.standard_normal(shape)
        return draw

    def _assemble(self, learned, draw):
        parts = zip(self._parts(learned), draw.bases, strict=True)
        bases = tuple(
            base._assemble(base_learned, drawn)[0] for (base, base_learned), drawn in parts
        )
        widths = np.ravel(learned.width)
        widths = np.repeat(widths, len(draw.taus) // len(widths))
        taus = DenseProjection(draw.taus / widths[:, None])
        made = HybridMap(bases, self._affine(learned), taus, self._combination(learned))
        return made, replace(made, is_keys=True) if learned.n_coefficients_ else made

    # ---------------------------------------------------------------- error

    def _check_variance(self, learned):
        if isinstance(self.coefficients, Coefficients) and not learned.is_alone:
            raise NotImplementedError(
                "No closed form is known for Coefficients of a user. theory.compare estimates the "
                "error from draws."
            )
        sharing = self._sharing(learned)
        if len(sharing) > 1:
            self._check_is_dense()
            if self.coupling != "iid":
                raise NotImplementedError(
                    f"No closed form is known for HybridRF with coupling={self.coupling!r}. Known: "
                    "'iid', and with shared=False every coupling that the bases know. "
                    "theory.compare estimates the error from draws."
                )
        for (_, one, one_learned), (_, other, other_learned) in combinations(sharing, 2):
            if not is_covariance_known(
                one._nonlinearity(one_learned), other._nonlinearity(other_learned)
            ):
                raise NotImplementedError(
                    f"No covariance is known of {type(one).__name__} and {type(other).__name__} "
                    "with shared projections. Known: PositiveRF (exponential, hyperbolic), "
                    "OptimalPositiveRF and RFFSampler; with shared=False all bases that have a "
                    "variance in closed form."
                )
        for base, base_learned in self._parts(learned):
            base._check_variance(base_learned)

    def _log_variance(self, fitted, X, Y):
        learned = fitted.learned
        self._check_variance(learned)
        covariances = self._covariances(learned, X, Y)
        known = [
            base._log_variance(replace(fitted, learned=base_learned, queries=side, keys=side), X, Y)
            for (base, base_learned), side in zip(
                self._parts(learned), fitted.queries.bases, strict=True
            )
        ]
        sides, n = self._dense_sides(learned, X, Y), learned.n_coefficients_
        moments = self._combination(learned).moments(*sides, n, len(known), learned.width)
        return hybrid_log_variance(moments, known, covariances)

    def _sharing(self, learned):
        """Return the bases that share projections: their numbers, copies and what they learned."""
        return [
            (k, base, base_learned)
            for k, (base, base_learned) in enumerate(self._parts(learned))
            if self.shared and isinstance(base, GaussianRandomFeatures)
        ]

    def _covariances(self, learned, X, Y):
        """Return covariances of bases that share projections, in the form the law expects."""
        sharing = self._sharing(learned)
        if len(sharing) < 2:
            return {}
        sides = self._dense_sides(learned, X, Y)
        gap = np.subtract.outer(*(np.sum(Z**2, axis=1) for Z in sides))
        scale = self._log_outer_factor(learned, X, Y) - np.log(learned.n_projections)
        covariances, geometry = {}, variances.PairGeometry.of(*sides)
        for (k, one, one_learned), (j, other, other_learned) in combinations(sharing, 2):
            nonlinearities = one._nonlinearity(one_learned), other._nonlinearity(other_learned)
            value, unit = shared_covariance(nonlinearities, geometry, gap)
            covariances[k, j] = value, unit + scale
        return covariances
