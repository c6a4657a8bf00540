"""Hybrid features: estimators combined pair by pair, with coefficients that are features too.

K_hat = sum_k l_k E_k combines estimates E_k that are accurate for different pairs, such as a
positive one for distant pairs and a trigonometric one for close pairs, with weights that add up to
1. The weights are products of features, so the combination is one linear map whose columns are
products; it costs O(nd + md + mn) per row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from numbers import Integral, Real
from types import SimpleNamespace
from typing import Literal

import numpy as np

from .. import variances
from .._arrays import cast, columns, namespace
from .._sums import Rows
from .._typing import Kernel, RandomState, Sigma
from .._validation import Interval, StrOptions, check_positive, draft_of
from ..projections import Coupling, CouplingLike, DenseProjection, Projection
from . import _clustered
from ._affine import Affine
from ._coefficients import Angular, Coefficients, Gaussian
from ._docs import document
from ._map import FeatureMap, signed_rows
from ._sigma import median_distance
from .base import BaseRandomFeatures
from .gaussian import GaussianRandomFeatures
from .nonlinearities import Exponential
from .positive import CenteredRandomFeatures, PositiveRF
from .streams import BASES, COEFFICIENTS, rng_of
from .trigonometric import RFFSampler

_NAMED = {
    "positive": PositiveRF(),
    "hyperbolic": PositiveRF(variant="hyperbolic"),
    "trigonometric": RFFSampler(),
}
_COEFFICIENTS = {"angular": Angular(), "gaussian": Gaussian()}
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


@document
class HybridRF(CenteredRandomFeatures):
    r"""Hybrid random features: estimates of several feature maps combined pair by pair.

    Choose it if both close and distant pairs must be accurate and features may be negative. With
    ``coefficients="clustered"``, every pair of a query cluster and a key cluster has its own
    estimator, and by default features are positive, or 0 in the columns of other clusters. Queries
    and keys are mapped differently; for linear models on ``transform`` alone, prefer a symmetric
    feature map.

    %(sigma)s

    Parameters
    ----------
    n_components : int, default=100
        Upper limit on the number of components, which are products of features; ``n_components_``
        is the actual number. If not even the smallest product fits, the first base is used alone.
    base : tuple of str or feature map, default=("positive", "trigonometric")
        Two or more bases, from the one for distant pairs to the one for close pairs: "positive",
        "hyperbolic", "trigonometric" or an unfitted instance such as ``OptimalPositiveRF()``.
        Instances must be unbiased and symmetric, and do not receive labels. HybridRF sets their
        sigma, kernel, center, sizes and seeds and, with ``shared=True``, their coupling and
        projection. Not used with clusters.
    coefficients : {"angular", "gaussian", "clustered"} or Coefficients, default="angular"
        Weights of p + 1 bases. "angular": f, f (1 - f), ..., (1 - f)^p, where f is the angle
        between the inputs, divided by pi; "gaussian": 1 - g_1, g_1 - g_2, ..., g_p with Gaussians
        g_k of their distance; "clustered": membership in clusters; or, for two bases, your own
        `skrf.features.Coefficients`.
    n_coefficients : int, default=None
        Number of coefficient features. None means sqrt(n_components / c) - 1, rounded down and
        limited to between 0 and 8, where c is the number of components per projection that one
        coefficient feature adds (for two bases, the number of columns of both).
    tau : float, tuple of float or "median", default="median"
        Widths of the Gaussian coefficients, in units of the scaled inputs: p numbers, the largest
        first. A single number tau means tau, tau/2, tau/4 and so on; "median" uses the median
        distance as tau.
    shared : bool, default=True
        Whether bases with Gaussian projections share one set of them, drawn with `coupling`; other
        bases are independent. With False, all bases are independent, instances keep their own
        coupling, and ``omega_`` is that of the first base.
    n_clusters : int or tuple of two int, default=2
        Numbers of query clusters and of key clusters; an int stands for both. They are reduced if
        n_components is too small.
    recenter : bool, default=True
        With clusters, shift every pair of clusters to its own origin and use optimal positive
        features. False uses the complex diagonal scaling of the paper.
    %(sigma_parameter)s
    %(kernel)s
    %(coupling)s
    %(projection)s
    %(center)s
    %(random_state)s

    Attributes
    ----------
    %(attributes)s
    %(offset_)s
    n_coefficients_ : int
        Number of coefficient features.
    tau_ : float or ndarray of shape (p,)
        Widths of the Gaussian coefficients; a float for two bases.
    query_centers_, key_centers_ : ndarray of shape (p, n_features) and (q, n_features)
        Centres of the clusters, in coordinates of the scaled, shifted inputs.
    rho_ : ndarray of shape (p, q)
        Root rho of the features of every pair of clusters, as in `OptimalPositiveRF`; only with
        recentred clusters.

    Raises
    ------
    ValueError
        By `fit`, if a parameter is invalid.

    See Also
    --------
    theory.hybrid_max_error : Largest relative error of the angular form.
    OptimalPositiveRF : Accurate where the kernel is small.
    RFFSampler : Accurate where the kernel is large.

    Notes
    -----
    The estimate is sum_k lambda_k E_k, with the estimate E_k of the kernel by base k and estimates
    lambda_k of the coefficients, whose exact values add up to 1. A component is a product of a
    feature of a coefficient and one of a base.

    References
    ----------
    Choromanski et al., Hybrid random features (2022), definition 2; the angular weights of more
    than two bases and recentring are ours.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import HybridRF
    >>> X = np.random.default_rng(0).normal(size=(20, 3)) / 2
    >>> features = HybridRF(1000, random_state=0).fit(X)
    >>> features.n_components_ <= 1000
    True
    >>> error = features.approximate_kernel(X) - features.exact_kernel(X)
    >>> bool(abs(error).mean() < 0.1)
    True

    Any unbiased, symmetric feature maps can be combined; optimal positive features are more
    accurate than plain ones:

    >>> from skrf import OptimalPositiveRF
    >>> better = HybridRF(
    ...     1000,
    ...     base=(OptimalPositiveRF(), "trigonometric"),
    ...     coupling="iid",
    ...     sigma=3.0,
    ...     random_state=0,
    ... ).fit(X)
    >>> plain = HybridRF(1000, coupling="iid", sigma=3.0, random_state=0).fit(X)
    >>> bool(better.kernel_variance(X).max() < plain.kernel_variance(X).max())
    True
    """

    _parameter_constraints = {
        "base": [tuple, list],
        "coefficients": [StrOptions({*_COEFFICIENTS, "clustered"}), Coefficients],
        "n_coefficients": [Interval(Integral, 1, None, closed="left"), None],
        "tau": [StrOptions({"median"}), Interval(Real, 0, None, closed="neither"), tuple, list],
        "shared": ["boolean"],
        "n_clusters": [Interval(Integral, 1, None, closed="left"), tuple],
        "recenter": ["boolean"],
    }

    def __init__(
        self,
        n_components: int = 100,
        *,
        base: Sequence[str | BaseRandomFeatures] = ("positive", "trigonometric"),
        coefficients: Literal["angular", "gaussian", "clustered"] | Coefficients = "angular",
        n_coefficients: int | None = None,
        tau: float | Sequence[float] | Literal["median"] = "median",
        shared: bool = True,
        n_clusters: int | tuple[int, int] = 2,
        recenter: bool = True,
        sigma: Sigma | None = None,
        kernel: Kernel = "gaussian",
        coupling: CouplingLike = "orthogonal",
        projection: Literal["dense", "hadamard"] = "dense",
        center: bool = True,
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.base = base
        self.coefficients = coefficients
        self.n_coefficients = n_coefficients
        self.tau = tau
        self.shared = shared
        self.n_clusters = n_clusters
        self.recenter = recenter
        self.sigma = sigma
        self.kernel = kernel
        self.coupling = coupling
        self.projection = projection
        self.center = center
        self.random_state = random_state

    _is_symmetric = False

    @property
    def _is_positive(self):
        return self._is_clustered and _clustered.is_positive(self)

    @property
    def _is_clustered(self):
        return self.coefficients == "clustered"

    # ---------------------------------------------------------------- bases

    def _as_spec(self):
        """Return an unfitted copy with copies of the bases, which users may change."""
        copied = super()._as_spec()
        copied.base = tuple(
            base if isinstance(base, str) else draft_of(base) for base in copied.base
        )
        return copied

    def _bases(self, learned=None):
        """Return unfitted copies of the bases with the settings from here; clusters have none."""
        if self._is_clustered or not isinstance(self.base, (tuple, list)):
            return []
        made = []
        for given in self.base:
            base = _NAMED.get(given) if isinstance(given, str) else given
            if not isinstance(base, BaseRandomFeatures):
                continue  # reported by `fit`
            base = draft_of(base)
            base.sigma, base.kernel, base.center = self.sigma, self.kernel, self.center
            if self.shared or isinstance(given, str):
                base.coupling, base.projection = self.coupling, self.projection
            if learned is not None:
                base.n_components = learned.n_projections * base._columns_per_projection
            made.append(base)
        if getattr(learned, "is_alone", False):
            made = made[:1]
            made[0].n_components = min(made[0].n_components, self.n_components)  # a folded pair
        return made

    def _parts(self, learned):
        """Return pairs of a base and what it learned."""
        return list(zip(self._bases(learned), learned.bases, strict=True))

    def _check_base(self):
        is_known = [
            given in _NAMED if isinstance(given, str) else isinstance(given, BaseRandomFeatures)
            for given in self.base
        ]
        if len(self.base) < 2 or not all(is_known):
            raise ValueError(
                "The 'base' parameter of HybridRF must be a tuple of two or more of "
                f"{', '.join(map(repr, _NAMED))} and instances of feature maps. "
                f"Got {self.base!r} instead."
            )
        for i, given in enumerate(self.base):
            if not isinstance(given, str):
                self._check_instance(f"base[{i}]={given!r}", given)

    def _check_instance(self, shown, given):
        """Raise unless a base is unbiased and symmetric, and leaves alone what is set here."""
        given._validate_params()
        flaws = {
            "is biased": not given._is_unbiased,
            "is biased for rows that it clamps": getattr(given, "positive", False),
            "maps queries and keys differently": not given._is_symmetric,
            "has centers='classes'": getattr(given, "centers", None) == "classes",
        }
        for flaw, has in flaws.items():
            if has:
                raise ValueError(
                    f"{shown} {flaw}, and HybridRF needs bases that are unbiased for one kernel, "
                    "symmetric and without labels, such as OptimalPositiveRF, PositiveRF, "
                    "DenseExponentialRF, AdaptiveRF, RFFSampler, PoissonRF, GeometricRF and "
                    "DiscreteRF."
                )
        names = "n_components", "sigma", "kernel", "center", "random_state"
        names += ("coupling", "projection") if self.shared else ()
        defaults = type(given)().get_params(deep=False)
        for name in names:
            setting = getattr(self, name)
            value = getattr(given, name, setting)
            allowed = [setting, defaults.get(name, setting), *([1.0] if name == "sigma" else [])]
            if value not in allowed:
                hint = " or take shared=False" if name in ("coupling", "projection") else ""
                raise ValueError(
                    f"{shown} has {name}={value!r}, but HybridRF sets it from its own {name}="
                    f"{setting!r}: leave the default{hint}."
                )

    def _nonlinearity(self, learned=None, draw=None):
        return Exponential()  # for clusters; bases have their own

    def _law(self, learned):
        return variances.Exponential()

    @property
    def _columns_per_projection(self):
        """Number of components per projection in the first base."""
        return next((base._columns_per_projection for base in self._bases()), 1)

    @property
    def _is_unbiased(self):
        bases = self._bases()
        return all(base._is_unbiased for base in bases) if bases else super()._is_unbiased

    def _variance_is_exact(self, learned):
        return all(
            base._variance_is_exact(base_learned) for base, base_learned in self._parts(learned)
        )

    @property
    def _needs_data(self):
        """Whether every member of the family needs statistics of data."""
        return self._is_clustered or any(base._needs_data for base in self._bases())

    @property
    def _looks_at_rows(self):
        return self._is_clustered or any(base._looks_at_rows for base in self._bases())

    @property
    def _needs_full_statistics(self):
        return any(base._needs_full_statistics for base in self._bases())

    @property
    def _needs_sizes(self):
        return any(base._needs_sizes for base in self._bases())

    def _obstacle_to_merging(self):
        if self.coefficients == "gaussian" and self.tau == "median":
            return "tau='median'"
        obstacles = [base._obstacle_to_merging() for base in self._bases()]
        return next(filter(None, obstacles), None) or super()._obstacle_to_merging()

    # ---------------------------------------------------------------- steps

    def _sizes(self):
        self._check_base()
        if self._is_clustered:
            _clustered.check_clusters(self)
            return _clustered.sizes(self)
        if self.coefficients == "gaussian" and isinstance(self.tau, (tuple, list)):
            self._check_widths()
        combination = self._kind
        if isinstance(combination, Coefficients) and len(self.base) != 2:
            raise ValueError(f"coefficients of a user are for two bases, got base={self.base!r}.")
        widths = [base._columns_per_projection for base in self._bases()]
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
        if self._is_clustered:
            return _clustered.n_columns(self, n_rows)
        return self._sizes().n_columns

    def _n_bytes(self, learned, sample):
        n_bytes = super()._n_bytes(learned, sample)
        if self._is_clustered:
            n_rows = min(sample.queries.shape[0], sample.keys.shape[0])
            return n_bytes + _clustered.n_bytes(self, learned, n_rows)
        n_taus = learned.n_coefficients_ * (len(self.base) - 1)
        # A few projections make many columns: a row of them must have room as well.
        return n_bytes + 8 * (n_taus * learned.n_features + learned.n_columns)

    def _combination(self, learned):
        """Return the coefficients; signs without any tau give a single base the weight 1."""
        return _COEFFICIENTS["angular"] if learned.is_alone else self._kind

    @property
    def _kind(self):
        """The kind of coefficients; None with clusters."""
        given = self.coefficients
        return given if isinstance(given, Coefficients) else _COEFFICIENTS.get(given)

    def _check_widths(self):
        widths = [check_positive("tau", width) for width in self.tau]
        count = len(self.base) - 1
        if len(widths) != count or sorted(widths, reverse=True) != widths:
            raise ValueError(
                f"tau={self.tau!r} must hold {count} widths, one fewer than bases, from the "
                "largest to the smallest."
            )

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
        for base in self._bases(learned):
            base_learned = base._sizes()
            # All share one shift, so that cosines of rows far from zero keep their digits.
            for name in ("n_features", "sigma", "offset_"):
                setattr(base_learned, name, getattr(learned, name))
            base._learn(base_learned, statistics)
            parts.append(base_learned)
        learned.bases = tuple(parts)

    def _learn_from_rows(self, learned, sample):
        if self._is_clustered:
            _clustered.learn_from_rows(self, learned, sample)
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
            (side.n_projections, getattr(side, "n_coefficients_", 0), len(side.bases))
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
        is_shared = self.shared or not parts
        draw = super()._draw(learned, seed) if is_shared else SimpleNamespace()
        for (base, base_learned), base_seed in zip(parts, seeds, strict=True):
            if self.shared and isinstance(base, GaussianRandomFeatures):
                base.coupling, base_seed = _Drawn(draw.projection), seed
            made.append(base._draw(base_learned, base_seed))
        if not is_shared and hasattr(made[0], "omega_"):
            draw.omega_ = made[0].omega_
        draw.bases = tuple(made)
        # Projections of the coefficients for a width of 1; clusters have none.
        n_taus = getattr(learned, "n_coefficients_", 0) * (len(self.base) - 1)
        rng, shape = rng_of(seed, COEFFICIENTS), (n_taus, learned.n_features)
        is_given = isinstance(self.coefficients, Coefficients) and n_taus
        draw.taus = self.coefficients.draw(*shape, rng) if is_given else rng.standard_normal(shape)
        return draw

    def _assemble(self, learned, draw):
        if self._is_clustered:
            return _clustered.assemble(self, learned, draw)
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
        if self._is_clustered:
            self._check_is_dense()
            self._check_is_iid()
        if isinstance(self.coefficients, Coefficients) and not learned.is_alone:
            raise NotImplementedError(
                "No closed form is known for Coefficients of a user. theory.compare estimates the "
                "error from draws."
            )
        sharing = self._sharing(learned)
        if len(sharing) > 1:
            self._check_is_dense()
            self._check_is_iid(", and with shared=False every coupling that the bases know")
        for (_, one, one_learned), (_, other, other_learned) in combinations(sharing, 2):
            if not variances.is_covariance_known(one._law(one_learned), other._law(other_learned)):
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
        if self._is_clustered:
            logs = _clustered.log_variance(self, learned, *self._dense_sides(learned, X, Y))
            return logs - np.log(learned.n_projections) + self._log_outer_factor(learned, X, Y)
        covariances = self._covariances(learned, X, Y)
        known = [
            base._log_variance(replace(fitted, learned=base_learned, queries=side, keys=side), X, Y)
            for (base, base_learned), side in zip(
                self._parts(learned), fitted.queries.bases, strict=True
            )
        ]
        sides, n = self._dense_sides(learned, X, Y), learned.n_coefficients_
        moments = self._combination(learned).moments(*sides, n, len(known), learned.width)
        return variances.hybrid_log_variance(moments, known, covariances)

    def _check_is_iid(self, hint=""):
        if self.coupling != "iid":
            raise NotImplementedError(
                f"No closed form is known for HybridRF with coupling={self.coupling!r}. "
                f"Known: 'iid'{hint}. theory.compare estimates the error from draws."
            )

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
            laws = one._law(one_learned), other._law(other_learned)
            value, unit = variances.shared_covariance(laws, geometry, gap)
            covariances[k, j] = value, unit + scale
        return covariances
