"""Positive features exp(w.x - |x|^2) and their hyperbolic and regularised variants."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .._arrays import columns, namespace
from .._sums import Rows
from .._typing import Kernel, RandomState, Sigma
from .._validation import StrOptions
from ..projections import CouplingLike
from ..variances import exponential_pair, log_expm1, log_hyp0f1
from ._docs import document
from .exponential import Exponential
from .gaussian import CenteredRandomFeatures
from .nonlinearities import PositiveNonlinearity

_NEAR = 4.0  # |x + y|^2 up to which `Regularized` uses its series


@dataclass(frozen=True)
class Hyperbolic(PositiveNonlinearity):
    """Columns [exp(w.x - |x|^2), exp(-w.x - |x|^2)] / sqrt 2."""

    columns_per_projection = 2

    def log_own(self, geometry):
        """Return log(2 sinh(v^2 / 2)^2)."""
        with np.errstate(divide="ignore"):
            return geometry.sum2 - np.log(2) + 2 * np.log(-np.expm1(-geometry.sum2))

    def pair(self, geometry, cosine, log_unit=0.0):
        """Return the pair term over exp(log_unit), averaged over the sign of omega_j."""
        d = geometry.n_features
        signs = (cosine, -cosine)
        return sum(exponential_pair(geometry.sum2, d, t, log_unit, linear=False) for t in signs) / 2

    def row_term(self, norms2, n_features):
        """Return -|x|^2 - log(2) / 2."""
        return super().row_term(norms2, n_features) - math.log(2) / 2

    def apply(self, products, row, bias, *, keys=False):
        """Return the logarithms of the columns."""
        return Rows(columns([products + row[:, None], row[:, None] - products]))

    def pull_back(self, by_values):
        """Return gradients of sum(by_values * logs) with respect to products and row."""
        m = by_values.shape[1] // 2
        by_row = namespace(by_values).sum(by_values, axis=1)
        return by_values[:, :m] - by_values[:, m:], by_row


@dataclass(frozen=True)
class Regularized(PositiveNonlinearity):
    """One column exp(w.x - |x|^2) with every w stretched to the length sqrt(d).

    The mean is a lower kernel, exp(-n) F(v^2 / 2) with F(u) = 0F1(; d/2; d u / 2), and two rows at
    cosine t have |omega_i + omega_j|^2 = 2 d (1 + t), hence the second moment F((1 + t) v^2): every
    pair term is exact. Near v = 0 a series computes their differences. The projections of a simplex
    block add up to 0, so t times the own term would cancel there, and `pair` leaves it out.
    """

    def log_scale(self, geometry):
        """Return the log of the squared lower kernel."""
        grown = np.sqrt(geometry.n_features * geometry.sum2)
        return 2 * (self._log_moment(geometry, 0.5) + grown - geometry.norms2)

    def log_own(self, geometry):
        """Return the log of the one-projection variance."""
        far = log_expm1(np.maximum(self._log_excess(geometry, 1.0), 0.0))
        with np.errstate(divide="ignore"):
            near = np.log(_near_series(geometry)) + self._log_unit(geometry)
        return np.where(geometry.sum2 <= _NEAR, near, far)

    def pair(self, geometry, cosine, log_unit=0.0):
        """Return the pair term over exp(log_unit), less its linear part."""
        excess = self._log_excess(geometry, cosine)
        with np.errstate(over="ignore", invalid="ignore"):  # near 0
            far = np.exp(excess - log_unit) - np.exp(-np.asarray(log_unit))
        near = _near_series(geometry, cosine) * np.exp(self._log_unit(geometry) - log_unit)
        return np.where(geometry.sum2 <= _NEAR, near, far)

    def linear_part(self, geometry):
        """Return the share of cosine times the own term that `pair` leaves out."""
        return (geometry.sum2 <= _NEAR).astype(float)

    def _log_moment(self, geometry, factor):
        """Return log F(factor v^2) minus its growth sqrt(2 factor d) v."""
        d = geometry.n_features
        return log_hyp0f1(d / 2, factor * d / 2 * geometry.sum2)

    def _log_excess(self, geometry, cosine):
        """Return log(F((1 + t) v^2) / F(v^2 / 2)^2); both grow alike for t = 1."""
        grown = np.sqrt(2 * geometry.n_features * geometry.sum2) * (
            np.sqrt(1 + cosine) - np.sqrt(2)
        )
        moments = self._log_moment(geometry, 1 + cosine), self._log_moment(geometry, 0.5)
        return moments[0] - 2 * moments[1] + grown

    def _log_unit(self, geometry):
        """Return the log of the unit of the series, v^2 / F(v^2 / 2)^2."""
        grown = np.sqrt(geometry.n_features * geometry.sum2)
        with np.errstate(divide="ignore"):
            return np.log(geometry.sum2) - 2 * (self._log_moment(geometry, 0.5) + grown)

    def log_range(self, geometry):
        """Return that from exp(-sqrt(d) |x + y| - |x|^2 - |y|^2) to the same without a minus."""
        longest = np.sqrt(geometry.n_features * geometry.sum2)
        with np.errstate(divide="ignore"):
            return longest + np.log(-np.expm1(-2 * longest)) - geometry.norms2

    def log_largest(self, geometry):
        """Return sqrt(d) |x + y| - |x|^2 - |y|^2."""
        return np.sqrt(geometry.n_features * geometry.sum2) - geometry.norms2

    def log_moments(self, n_features, sum2, k):
        """Return those of exp(w.(x + y)), |w| = sqrt(d), over its largest value."""
        return log_hyp0f1(n_features / 2, n_features / 4 * sum2[:, None] * k**2)

    def multiplier(self, projection):
        """Return the projection with rows of one length."""
        return projection.with_norms(math.sqrt(projection.n_features)), None


def _near_series(geometry, cosine=None):
    """Return (F((1 + t) v^2) - F(v^2 / 2)^2) / v^2 for v^2 up to 4, as a power series.

    Without a cosine this is the own term, t = 1; with one it is the pair term minus t times the own
    term. F(v^2 / 2)^2 is the mean over two independent directions.
    """
    d = geometry.n_features
    k, steps = np.arange(1, 51), np.arange(50)
    independent = np.cumsum(np.log1p(steps / np.maximum(d - 1 + steps, 1)))
    terms = 2.0**k - np.exp(independent)
    if cosine is not None:
        with np.errstate(divide="ignore"):
            terms = np.expm1(k * np.log1p(cosine)) - np.expm1(independent) - cosine * terms
        terms[0] = 0.0
    sizes = np.cumprod(d / ((d + 2 * steps) * k))
    return np.polynomial.polynomial.polyval(np.minimum(geometry.sum2, _NEAR), terms * sizes)


_VARIANTS = {
    "exponential": Exponential(),
    "hyperbolic": Hyperbolic(),
    "regularized": Regularized(),
}


@document
class PositiveRF(CenteredRandomFeatures):
    """Positive random features: exponentials of Gaussian projections (FAVOR+).

    Choose `OptimalPositiveRF` instead unless you need the plain form: it costs the same, and its
    log second moment, averaged over the data, is never larger. The hyperbolic variant needs half
    as many projections for the same number of columns. The regularised variant has projections of
    fixed length and estimates a slightly smaller kernel.

    %(sigma)s

    Parameters
    ----------
    %(n_components)s The hyperbolic variant makes two per projection, so the number
        must be even, or 1, which gives a plain exponential.
    variant : {"exponential", "hyperbolic", "regularized"}, default="exponential"
        exp(w.x - |x|^2); the pair exp(+-w.x - |x|^2); or the first with all projections scaled to
        length sqrt(d), which is unbiased for a slightly smaller kernel.
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

    Raises
    ------
    ValueError
        By `fit`, if a parameter is invalid.

    See Also
    --------
    OptimalPositiveRF : The same with the parameter of smallest variance.
    SimplexRF : The same features with simplex coupling.

    Notes
    -----
    A feature is exp(w.x - |x|^2) / sqrt(m) for each of m projections w, and the variance of the
    estimate with independent ones is K^2 (exp(|x + y|^2) - 1) / m: relative to the kernel K it
    depends on the midpoint of the two rows alone.

    References
    ----------
    Choromanski et al., Rethinking attention with performers (2021), lemma 1.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import PositiveRF
    >>> X = np.random.default_rng(0).normal(size=(5, 3))
    >>> features = PositiveRF(n_components=500, sigma=0.5, random_state=0).fit(X)
    >>> bool((features.transform(X) > 0).all())
    True
    """

    _parameter_constraints = {"variant": [StrOptions(set(_VARIANTS))]}

    def __init__(
        self,
        n_components: int = 100,
        *,
        variant: Literal["exponential", "hyperbolic", "regularized"] = "exponential",
        sigma: Sigma | None = None,
        kernel: Kernel = "gaussian",
        coupling: CouplingLike = "orthogonal",
        projection: Literal["dense", "hadamard"] = "dense",
        center: bool = True,
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.variant = variant
        self.sigma = sigma
        self.kernel = kernel
        self.coupling = coupling
        self.projection = projection
        self.center = center
        self.random_state = random_state

    @property
    def _form(self):
        # One column of a hyperbolic pair with a random sign is an exponential feature.
        if self.variant == "hyperbolic" and self.n_components == 1:
            return "exponential"
        return self.variant

    def _nonlinearity(self, parameters=None, draw=None):
        # `fit` reports a wrong name; properties must not raise before.
        return _VARIANTS.get(self._form, _VARIANTS["exponential"])

    @property
    def _is_unbiased(self):
        return super()._is_unbiased and self.variant != "regularized"


@document
class SimplexRF(PositiveRF):
    """Positive features with simplex-coupled projections.

    Choose it for the smallest mean squared error among plain positive features: the directions
    within a block repel each other, which is more accurate than orthogonal blocks for every pair of
    points (except in the hyperbolic variant, whose mirrored columns attract).
    `OptimalPositiveRF(coupling="simplex")` combines this coupling with optimal positive features.

    %(sigma)s

    Parameters
    ----------
    %(n_components)s The hyperbolic variant makes two per projection, so the number
        must be even, or 1, which gives a plain exponential.
    variant : {"exponential", "hyperbolic", "regularized"}, default="exponential"
        As in `PositiveRF`.
    %(sigma_parameter)s
    %(kernel)s
    %(projection)s
    %(center)s
    %(random_state)s

    Attributes
    ----------
    %(attributes)s
    %(offset_)s

    Raises
    ------
    ValueError
        By `fit`, if a parameter is invalid.

    See Also
    --------
    SimplexRFPlus : Directions that also depend on the norms.
    PositiveRF : The same features with other couplings.
    theory.expected_conformity : The property of a coupling that determines the error.

    Notes
    -----
    The features are those of `PositiveRF`. Directions of a block point to the corners of a simplex,
    turned at random: any two of d have the cosine -1 / (d - 1).

    References
    ----------
    Reid et al., Simplex random features (2023), section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import PositiveRF, SimplexRF
    >>> X = np.random.default_rng(0).normal(size=(5, 8)) / 3
    >>> simplex = SimplexRF(n_components=8, random_state=0).fit(X)
    >>> orthogonal = PositiveRF(n_components=8, random_state=0).fit(X)
    >>> bool((simplex.kernel_variance(X) < orthogonal.kernel_variance(X)).all())
    True
    """

    coupling = "simplex"

    def __init__(
        self,
        n_components: int = 100,
        *,
        variant: Literal["exponential", "hyperbolic", "regularized"] = "exponential",
        sigma: Sigma | None = None,
        kernel: Kernel = "gaussian",
        projection: Literal["dense", "hadamard"] = "dense",
        center: bool = True,
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.variant = variant
        self.sigma = sigma
        self.kernel = kernel
        self.projection = projection
        self.center = center
        self.random_state = random_state


@document
class SimplexRFPlus(SimplexRF):
    """Positive features with simplex+ projections: directions fitted to the drawn norms.

    Choose it for wide kernels: close to the centre of the data its error is below that of
    `SimplexRF`, especially with few input features. Farther out the two agree. It has no
    closed-form variance, and drawing it takes a few sweeps over every block. With
    ``projection="hadamard"``, these sweeps go over the products of all rows as well, in plain code:
    it then saves memory and the time to draw, but maps rows several times more slowly.

    %(sigma)s

    Parameters
    ----------
    %(n_components)s The hyperbolic variant makes two per projection, so the number
        must be even, or 1, which gives a plain exponential.
    variant : {"exponential", "hyperbolic", "regularized"}, default="exponential"
        As in `PositiveRF`.
    %(sigma_parameter)s
    %(kernel)s
    %(projection)s
    %(center)s
    %(random_state)s

    Attributes
    ----------
    %(attributes)s
    %(offset_)s

    Raises
    ------
    ValueError
        By `fit`, if a parameter is invalid.

    See Also
    --------
    SimplexRF : Directions that do not depend on the norms, with a closed-form variance.
    PositiveRF : The same features with other couplings.

    Notes
    -----
    The features are those of `PositiveRF`. Given the lengths of a block, each direction in turn is
    made opposite to the sum of the other projections.

    References
    ----------
    Reid et al., Simplex random features (2023), section 3.2, with fresh norms in every block.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import SimplexRFPlus
    >>> X = np.random.default_rng(0).normal(size=(5, 8)) / 3
    >>> SimplexRFPlus(n_components=16, random_state=0).fit_transform(X).shape
    (5, 16)
    """

    coupling = "simplex+"
