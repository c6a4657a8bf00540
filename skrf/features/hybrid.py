"""Hybrid features: estimators combined pair by pair, by coefficients that are features themselves.

K_hat = lam_hat P + (1 - lam_hat) T joins a positive estimate P, accurate for distant pairs, and a
trigonometric one T, accurate for close pairs. The coefficients are products of features, so the
combination is one linear map whose columns are products; it is built in O(nd + md + mn) per row.
"""

import math
from dataclasses import dataclass
from numbers import Integral, Real
from types import SimpleNamespace

import numpy as np

from .. import variances
from .._arrays import cast, columns, like, namespace
from .._sums import Rows
from .._validation import Interval, StrOptions
from ..projections import DenseProjection, Projection
from ._clustered import Clustered
from ._docs import document
from ._map import FeatureMap, signed_rows
from ._sigma import median_distance
from .base import COEFFICIENTS, rng_of
from .gaussian import GaussianMap
from .nonlinearities import Exponential, Hyperbolic, SineCosine
from .positive import CenteredRandomFeatures

_POSITIVE = {
    "positive": (Exponential(), variances.Exponential()),
    "hyperbolic": (Hyperbolic(), variances.Hyperbolic()),
}
_MAX_DEFAULT_COEFFICIENTS = 8


class Angular:
    """lam_hat = (1 - a) / 2, a = mean of sgn(tau.x) sgn(tau.y): E lam_hat = angle / pi."""

    def n_columns(self, n_coefficients, n_positive, n_trigonometric):
        """Return the columns of one projection."""
        return (n_coefficients + 1) * (n_positive + n_trigonometric)

    def features(self, products):
        """Return coefficient features for products with the tau rows."""
        xp = namespace(products)
        signs = xp.where(products < 0, like(-1.0, products), like(1.0, products))
        return signs / math.sqrt(max(products.shape[1], 1))

    def blocks(self, coefficient, one, *, keys):
        """Return the blocks of one side as (multipliers, base): 0 positive, 1 trigonometric."""
        one, coefficient = one / math.sqrt(2), coefficient / math.sqrt(2)
        return [(one, 0), (one, 1), (-coefficient if keys else coefficient, 0), (coefficient, 1)]

    def moments(self, X, Y, n_coefficients, tau):
        """Return E lam_hat and E lam_hat^2 for all pairs."""
        if n_coefficients == 0:
            half = np.full((len(X), len(Y)), 0.5)
            return half, half**2
        unit = [Z / np.maximum(np.linalg.norm(Z, axis=1, keepdims=True), 1e-300) for Z in (X, Y)]
        # The angle from chords: right for nearly equal and nearly opposite directions.
        chords = variances.PairGeometry.of(*unit)
        share = 2 * np.arctan2(np.sqrt(chords.difference2), np.sqrt(chords.sum2)) / np.pi
        n = n_coefficients
        return share, share * (share - share / n + 1 / n)


class Gaussian:
    """lam_hat = 1 - g, g = mean of cos(tau.(x - y) / w): E g = exp(-|x - y|^2 / (2 w^2))."""

    def n_columns(self, n_coefficients, n_positive, n_trigonometric):
        """Return the columns of one projection."""
        return n_positive + 2 * n_coefficients * (n_positive + n_trigonometric)

    def features(self, products):
        """Return coefficient features for products with the tau rows."""
        xp = namespace(products)
        both = columns([xp.cos(products), xp.sin(products)])
        return both / math.sqrt(max(products.shape[1], 1))

    def blocks(self, coefficient, one, *, keys):
        """Return the blocks of one side as (multipliers, base): 0 positive, 1 trigonometric."""
        return [(one, 0), (-coefficient if keys else coefficient, 0), (coefficient, 1)]

    def moments(self, X, Y, n_coefficients, tau):
        """Return E lam_hat and E lam_hat^2 for all pairs."""
        difference2 = variances.PairGeometry.of(X, Y).difference2
        if n_coefficients == 0:
            one = np.ones_like(difference2)
            return one, one
        far = -np.expm1(-difference2 / (2 * tau**2))
        spread = np.expm1(-difference2 / tau**2) ** 2 / (2 * n_coefficients)
        return far, far**2 + spread


def _products(multipliers, values):
    """Return all products of a column of one with a column of the other, row by row."""
    joined = multipliers[:, :, None] * values[:, None, :]
    return namespace(values).reshape(joined, (values.shape[0], -1))


@dataclass(frozen=True, eq=False)
class HybridMap(FeatureMap):
    """Products of coefficient features with the features of two bases on shared projections.

    Parameters
    ----------
    positive, trigonometric : GaussianMap
        The bases.
    taus : Projection or None
        Projections of the coefficients; None leaves the positive base alone.
    combination : Angular or Gaussian
        What the coefficients are.
    is_keys : bool
        Which side this is.
    """

    positive: GaussianMap
    trigonometric: GaussianMap
    taus: Projection | None
    combination: Angular | Gaussian
    is_keys: bool = False
    is_positive = False

    @property
    def n_features(self):
        """Width of the rows."""
        return self.positive.n_features

    @property
    def n_columns(self):
        """Number of features."""
        sizes = self.positive.n_columns, self.trigonometric.n_columns
        if self.taus is None:
            return sizes[0]
        return self.combination.n_columns(self.taus.n_projections, *sizes)

    def __call__(self, X):
        """Return the `Rows` of X."""
        logs = self.positive(X).values
        one = namespace(logs).ones_like(logs)
        bases = [signed_rows(one, logs)]
        if self.taus is None:
            return bases[0]
        values, scale = self.trigonometric(X)
        bases.append(Rows(values, scale + 0 * values))
        # Signs and phases need digits where kernels do not.
        wide = cast(X, namespace(X).float64)
        products = self.positive.coordinates(wide).dot(self.taus)
        coefficient = cast(self.combination.features(products), one.dtype)
        blocks = self.combination.blocks(coefficient, one[:, :1], keys=self.is_keys)
        parts = [
            (_products(by, bases[i].values), _products(0 * by + 1, bases[i].scale))
            for by, i in blocks
        ]
        return Rows(*(columns(part) for part in zip(*parts, strict=True)))

    def exponent_bound(self, X):
        """Return that of the positive base."""
        return self.positive.exponent_bound(X)


@dataclass(frozen=True)
class Combined:
    """The steps of a `HybridRF` whose coefficients are products of features.

    Parameters
    ----------
    combination : Angular or Gaussian
        What the coefficients are.
    """

    combination: Angular | Gaussian

    def sizes(self, spec):
        """Return numbers of projections and of coefficient features."""
        positive = spec._nonlinearity().columns_per_projection
        widths = positive, SineCosine.columns_per_projection
        n = spec.n_coefficients
        if n is None:
            n = min(_MAX_DEFAULT_COEFFICIENTS, math.isqrt(spec.n_components // sum(widths)) - 1)
        smallest = self.combination.n_columns(max(n, 0), *widths)
        fits = smallest <= spec.n_components
        if spec.n_coefficients is not None and not fits:
            raise ValueError(
                f"n_components={spec.n_components} cannot hold n_coefficients={n}: the nearest "
                f"allowed n_components is {smallest}."
            )
        is_alone = n < 0 or not fits
        if is_alone:
            # Where not even one product fits, the positive base stands alone.
            n, smallest = 0, positive
        n_projections = max(1, spec.n_components // smallest)
        return SimpleNamespace(n_projections=n_projections, n_coefficients_=n, is_alone=is_alone)

    @staticmethod
    def is_positive(spec):
        """Tell whether features are positive: what joins the bases has signs."""
        return False

    def learn_from_rows(self, spec, learned, sample):
        """Add the width of Gaussian coefficients."""
        learned.width = 1.0
        if spec.coefficients == "gaussian":
            learned.tau_ = learned.width = (
                learned.sigma * median_distance(sample) or 1.0
                if spec.tau == "median"
                else float(spec.tau)
            )

    def assemble(self, spec, learned, draw):
        """Return the maps of both sides."""
        own = spec._coordinates(learned), draw.projection
        bases = (GaussianMap(*own, nonlinearity) for nonlinearity in spec._bases)
        taus = None if learned.is_alone else DenseProjection(draw.taus / learned.width)
        parts = *bases, taus, self.combination
        return HybridMap(*parts), HybridMap(*parts, is_keys=True)

    def log_variance(self, spec, learned, X, Y, geometry):
        """Return the log variance of one projection."""
        law = spec._law(learned)
        log_positive = law.log_scale(geometry) + law.log_own(geometry)
        if learned.is_alone:
            return log_positive
        mean, square = self.combination.moments(X, Y, learned.n_coefficients_, learned.width)
        x2, y2 = (np.sum(Z**2, axis=1) for Z in (X, Y))
        covariance = -2 * np.sin(np.subtract.outer(x2, y2) / 2) ** 2
        log_trigonometric = variances.Trigonometric().log_own(geometry)
        return variances.hybrid_log_variance(
            mean, square, log_positive, log_trigonometric, covariance, -geometry.difference2
        )


_FAMILIES = {
    "angular": Combined(Angular()),
    "gaussian": Combined(Gaussian()),
    "clustered": Clustered(),
}


@document
class HybridRF(CenteredRandomFeatures):
    r"""Hybrid random features: positive and trigonometric estimates joined pair by pair.

    %(sigma)s

    Choose it where both close and distant pairs must be right and features may be negative. With
    ``coefficients="clustered"`` every pair of clusters of queries and keys has an estimator of
    its own, and features are positive, or 0 where they belong to other clusters. The two sides are
    mapped differently; for linear models on ``transform`` alone prefer a symmetric mechanism.

    Parameters
    ----------
    n_components : int, default=100
        Upper limit of the number of output columns, which are products; ``n_components_`` tells
        what was made. Below the smallest product the positive base alone is used.
    base : tuple of two str, default=("positive", "trigonometric")
        The first of "positive", "hyperbolic", the second "trigonometric".
    coefficients : {"angular", "gaussian", "clustered"}, default="angular"
        Weight of the positive estimate: the angle between the inputs over pi; one minus a
        Gaussian of their distance; or the membership in clusters.
    n_coefficients : int, default=None
        Number of coefficient features. None is sqrt(n_components / c) - 1 rounded down, from 0
        to 8, with c columns of the two bases a projection.
    tau : float or "median", default="median"
        Width of the Gaussian coefficient, in scaled inputs; "median" is the median distance.
    n_clusters : int, default=2
        Clusters of queries and clusters of keys; fewer where n_components does not hold them.
    recenter : bool, default=True
        Clustered: shift every pair of clusters to its own origin, with optimal positive features.
        False takes the complex diagonal scaling of the paper.
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
    tau_ : float
        Width of the Gaussian coefficient.
    query_centers_, key_centers_ : ndarray of shape (n_clusters, n_features)
        Centres of the clusters, in scaled, shifted inputs.
    rho_ : ndarray of shape (n_clusters, n_clusters)
        Root rho of the features of every pair of clusters, as of `OptimalPositiveRF`; recentred
        clusters only.

    Raises
    ------
    ValueError
        By `fit`, where a parameter is not allowed.

    References
    ----------
    Choromanski et al., Hybrid random features (2022). Recentring is ours.

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
    """

    _parameter_constraints = {
        "base": [tuple, list],
        "coefficients": [StrOptions(set(_FAMILIES))],
        "n_coefficients": [Interval(Integral, 1, None, closed="left"), None],
        "tau": [StrOptions({"median"}), Interval(Real, 0, None, closed="neither")],
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "recenter": ["boolean"],
    }

    def __init__(
        self,
        n_components=100,
        *,
        base=("positive", "trigonometric"),
        coefficients="angular",
        n_coefficients=None,
        tau="median",
        n_clusters=2,
        recenter=True,
        sigma=1.0,
        kernel="gaussian",
        coupling="orthogonal",
        projection="dense",
        center=True,
        random_state=None,
    ):
        self.n_components = n_components
        self.base = base
        self.coefficients = coefficients
        self.n_coefficients = n_coefficients
        self.tau = tau
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
        return self._family.is_positive(self)

    @property
    def _family(self):
        # A wrong name is reported by `fit`; properties must not raise before.
        return _FAMILIES.get(self.coefficients, _FAMILIES["angular"])

    @property
    def _bases(self):
        return _POSITIVE.get(self.base[0], _POSITIVE["positive"])[0], SineCosine()

    def _nonlinearity(self, learned=None, draw=None):
        return self._bases[0]

    def _law(self, learned):
        return _POSITIVE[self.base[0]][1]

    def _sizes(self):
        base = tuple(self.base)
        if len(base) != 2 or base[0] not in _POSITIVE or base[1] != "trigonometric":
            raise ValueError(
                "The 'base' parameter of HybridRF must be ('positive', 'trigonometric') or "
                f"('hyperbolic', 'trigonometric'). Got {self.base!r} instead."
            )
        return self._family.sizes(self)

    @property
    def needs_data(self):
        """Whether no member of the family does without statistics of data."""
        return self.coefficients == "clustered"

    _looks_at_rows = needs_data

    def _obstacle_to_merging(self):
        is_median = self.coefficients == "gaussian" and self.tau == "median"
        return "tau='median'" if is_median else super()._obstacle_to_merging()

    def _learn_from_rows(self, learned, sample):
        self._family.learn_from_rows(self, learned, sample)

    def _draw(self, learned, seed):
        draw = super()._draw(learned, seed)
        # Projections of the coefficients, for a width of 1; clusters have none.
        shape = getattr(learned, "n_coefficients_", 0), learned.n_features
        draw.taus = rng_of(seed, COEFFICIENTS).standard_normal(shape)
        return draw

    def _assemble(self, learned, draw):
        return self._family.assemble(self, learned, draw)

    def _log_variance(self, fitted, X, Y):
        self._check_is_dense()
        if self.coupling != "iid":
            raise NotImplementedError(
                f"No closed form is known for HybridRF with coupling={self.coupling!r}. "
                "Known: 'iid'."
            )
        learned = fitted.learned
        sides = self._dense_sides(learned, X, Y)
        geometry = variances.PairGeometry.of(*sides)
        logs = self._family.log_variance(self, learned, *sides, geometry)
        return logs - np.log(learned.n_projections) + self._log_outer_factor(learned, X, Y)
