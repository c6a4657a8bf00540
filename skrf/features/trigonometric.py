"""Sine-cosine features of Gaussian projections (random Fourier features)."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .. import _kernels
from .._arrays import columns, namespace
from .._estimator import GAMMA
from .._typing import RandomState, Sigma
from .._validation import StrOptions
from ..projections import CouplingLike, DenseProjection
from ..variances import cosine_pair
from ._affine import about_a_row
from ._docs import document
from ._map import signed_rows
from .gaussian import GaussianRandomFeatures
from .nonlinearities import Nonlinearity
from .spectra import SPECTRA
from .streams import PHASE, SPECTRUM, rng_of


@dataclass(frozen=True)
class SineCosine(Nonlinearity):
    """Columns [cos w.x, sin w.x]: unbiased for exp(-|x - y|^2 / 2).

    The variance of one projection is (1 - K^2)^2 / 2: Sutherland and Schneider, On the error of
    random Fourier features (2015).
    """

    columns_per_projection = 2
    has_level = is_bounded = True

    def log_scale(self, geometry):
        """Return 0."""
        return np.zeros_like(geometry.difference2)

    def log_own(self, geometry):
        """Return log((1 - K^2)^2 / 2)."""
        with np.errstate(divide="ignore"):
            return 2 * np.log(-np.expm1(-geometry.difference2)) - np.log(2)

    def pair(self, geometry, cosine, log_unit=0.0):
        """Return the pair term over exp(log_unit)."""
        return cosine_pair(geometry.difference2, geometry.n_features, cosine, log_unit)

    def log_range(self, geometry):
        """Return that of cos w.(x - y), from -1 to 1."""
        return math.log(2) + 0 * geometry.norms2

    def apply(self, products, row, bias, *, keys=False):
        """Return the columns, on the scale `row`."""
        xp = namespace(products)
        return signed_rows(columns([xp.cos(products), xp.sin(products)]), row)

    def write(self, products, row, bias, out, *, keys=False, plain=False):
        """Write the columns and return their scale; NumPy only."""
        _kernels.sine_cosine(products, np.exp(row) if plain else None, out)
        return row[:, None]


@dataclass(frozen=True)
class PhasedCosine(Nonlinearity):
    """One column sqrt(2) cos(w.x + phase), phase uniform on (0, 2 pi): the pair folded into one."""

    phase: float = 0.0
    has_level = True

    def log_scale(self, geometry):
        """Return 0."""
        return np.zeros_like(geometry.difference2)

    def log_own(self, geometry):
        """Return log((1 - K^2)^2 / 2 + 1 / 2)."""
        return np.log1p(np.expm1(-geometry.difference2) ** 2) - np.log(2)

    def log_range(self, geometry):
        """Return that of a product of two such columns, from -2 to 2."""
        return math.log(4) + 0 * geometry.norms2

    def row_term(self, norms2, n_features):
        """Return log(2) / 2."""
        return 0 * norms2 + math.log(2) / 2

    def apply(self, products, row, bias, *, keys=False):
        """Return the column, on the scale `row`."""
        return signed_rows(namespace(products).cos(products + self.phase), row)


@document
class RFFSampler(GaussianRandomFeatures):
    r"""Random Fourier features: the cosine and the sine of every projection.

    Choose it when features may be negative (linear models, kernel ridge) and the kernel is wide
    enough that most pairs of points are similar: its variance (1 - K^2)^2 / 2 per projection
    vanishes for close pairs and never exceeds 1/2, whereas that of positive features is unbounded.
    For kernel regression and attention, which divide by sums of features, use a positive map.

    %(sigma)s

    Parameters
    ----------
    %(n_components)s Every projection makes two, so the number must be even, or 1,
        which gives a single cosine with a random phase.
    %(sigma_parameter)s
        With ``kernel="laplacian"``, both follow L1 distances, and "scale" is 2 over an estimate of
        their mean; with ``kernel="cauchy"``, "scale" is 1/sqrt(d Var X).
    kernel : str, default="gaussian"
        "gaussian", exp(-sigma^2 \|x - y\|^2 / 2); "softmax", exp(sigma^2 x.y); "laplacian",
        exp(-sigma \|x - y\|_1); "cauchy", the product over columns of
        1 / (1 + sigma^2 (x_l - y_l)^2); "matern12", "matern32" or "matern52", the Matern
        kernel of smoothness 1/2, 3/2 or 5/2 and length scale 1/sigma.
    %(coupling)s
    %(projection)s
    %(random_state)s

    Attributes
    ----------
    %(attributes)s

    Raises
    ------
    ValueError
        By `fit`, if a parameter is invalid.

    See Also
    --------
    OptimalPositiveRF : Positive features, for ratios of sums such as attention.
    theory.compare : Errors of feature maps on data, side by side.
    sklearn.kernel_approximation.RBFSampler : Independent cosines with random phases.

    Notes
    -----
    With orthogonal projections, the closed form is exact for the Matern kernels. For "laplacian"
    and "cauchy" it is an upper bound: 1 + 3 (b - 1) / (d^2 - 1) times the variance of independent
    projections, where b is the number of rows in a block; the actual variance is usually smaller.

    References
    ----------
    Rahimi and Recht, Random features for large-scale kernel machines (2007). Variance: MSE of
    sine-cosine pairs as in Sutherland and Schneider, On the error of random Fourier features
    (2015); orthogonal blocks: Yu et al., Orthogonal random features (2016).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import RFFSampler
    >>> X = np.random.default_rng(0).normal(size=(5, 3))
    >>> features = RFFSampler(n_components=2000, random_state=0).fit(X)
    >>> error = features.approximate_kernel(X) - features.exact_kernel(X)
    >>> bool(abs(error).max() < 0.1)
    True
    """

    _parameter_constraints = {"kernel": [StrOptions({"gaussian", "softmax", *SPECTRA})]}
    _foreign_parameters = {
        **GAMMA,
        "exponent": "Its Laplacian kernel has the exponent 1. With one below 1 the kernel is no "
        "product over columns: use ClusterNystroem(kernel='laplacian', exponent=...).",
    }

    def __init__(
        self,
        n_components: int = 100,
        *,
        sigma: Sigma | None = None,
        kernel: str = "gaussian",
        coupling: CouplingLike = "orthogonal",
        projection: Literal["dense", "hadamard"] = "dense",
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.sigma = sigma
        self.kernel = kernel
        self.coupling = coupling
        self.projection = projection
        self.random_state = random_state

    @property
    def _needs_sizes(self):
        return self.kernel == "laplacian" and self.sigma in (None, "scale")

    @property
    def _is_folded(self):
        return self.n_components == 1

    def _nonlinearity(self, parameters=None, draw=None):
        return PhasedCosine(getattr(draw, "phase", 0.0)) if self._is_folded else SineCosine()

    def _learn(self, parameters, statistics):
        """Learn nothing: trigonometric features do not depend on the data."""

    def _draw(self, parameters, seed):
        draw = super()._draw(parameters, seed)
        draw.phase = rng_of(seed, PHASE).uniform(0, 2 * math.pi)
        if self.kernel in SPECTRA:
            if self.projection != "dense":
                raise ValueError(
                    f"kernel={self.kernel!r} needs projection='dense', got {self.projection!r}: "
                    "structured rows are Gaussian only approximately."
                )
            spectrum = SPECTRA[self.kernel]
            draw.omega_ = spectrum.frequencies(draw.omega_, rng_of(seed, SPECTRUM))
            draw.projection = DenseProjection(draw.omega_)
        return draw

    def _log_exact_kernel(self, X, Y, sigma):
        if self.kernel not in SPECTRA:
            return super()._log_exact_kernel(X, Y, sigma)
        return SPECTRA[self.kernel].log_kernel(*about_a_row(sigma, X, Y))

    def _dense_sides(self, parameters, X, Y):
        return about_a_row(parameters.sigma, X, Y)

    def _check_variance(self, parameters):
        if self.kernel not in SPECTRA:
            super()._check_variance(parameters)
        elif any(self._joint.pair_cosine(rows) != 0 for rows in self._blocks(parameters)):
            is_bound = not SPECTRA[self.kernel].has_exact_pairs
            raise NotImplementedError(
                f"No closed form or bound is known for kernel={self.kernel!r} with "
                f"coupling={self.coupling!r}. Known: 'iid', 'orthogonal'"
                f"{' (bound)' if is_bound else ''}."
            )

    def _log_variance(self, fitted, X, Y):
        if self.kernel not in SPECTRA:
            return super()._log_variance(fitted, X, Y)
        self._check_variance(fitted.parameters)
        spectrum, blocks = SPECTRA[self.kernel], self._blocks(fitted.parameters)
        X, Y = self._dense_sides(fitted.parameters, X, Y)
        m, value = fitted.parameters.n_projections, spectrum.variance(X, Y)
        if self._is_folded:
            value = value + 0.5
        n_pairs = sum(count * rows * (rows - 1) for rows, count in blocks.items())
        if n_pairs:
            value = value + n_pairs / m * spectrum.pair(X, Y)
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(value, 0.0)) - np.log(m)

    def _variance_is_exact(self, parameters):
        if self.kernel not in SPECTRA or SPECTRA[self.kernel].has_exact_pairs:
            return True
        return max(self._blocks(parameters)) == 1

    def _blocks(self, parameters):
        return self._joint.blocks(parameters.n_projections, parameters.n_features)
