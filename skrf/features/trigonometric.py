"""Sine-cosine features of Gaussian projections (random Fourier features)."""

import math

from .. import variances
from ._docs import document
from .base import PHASE
from .gaussian import GaussianRandomFeatures
from .nonlinearities import PhasedCosine, SineCosine


@document
class RFFSampler(GaussianRandomFeatures):
    """Random Fourier features: the cosine and the sine of every projection.

    %(sigma)s

    Choose it when features may be negative (linear models, kernel ridge) and the kernel is wide
    enough that most pairs of points are similar: its variance (1 - K^2)^2 / 2 per projection
    vanishes for close pairs and never exceeds 1/2, where positive features grow without bound.
    For kernel regression and attention, which divide by sums of features, take a positive map.

    Parameters
    ----------
    %(n_components)s Every projection makes two: an even number, or 1, which is
        a single cosine with a random phase.
    %(sigma_parameter)s
    %(kernel)s
    %(coupling)s
    %(projection)s
    %(random_state)s

    Attributes
    ----------
    %(attributes)s

    Raises
    ------
    ValueError
        By `fit`, where a parameter is not allowed.

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

    def __init__(
        self,
        n_components=100,
        *,
        sigma=1.0,
        kernel="gaussian",
        coupling="orthogonal",
        projection="dense",
        random_state=None,
    ):
        self.n_components = n_components
        self.sigma = sigma
        self.kernel = kernel
        self.coupling = coupling
        self.projection = projection
        self.random_state = random_state

    @property
    def _is_folded(self):
        return getattr(self, "_n_columns", self.n_components) == 1

    @property
    def _nonlinearity(self):
        return PhasedCosine(getattr(self, "_phase", 0.0)) if self._is_folded else SineCosine()

    @property
    def _law(self):
        return variances.RandomPhase() if self._is_folded else variances.Trigonometric()

    def _fit_parameters(self, statistics):
        """No parameters: trigonometric features do not depend on the data."""

    def _draw(self, seed):
        super()._draw(seed)
        self._phase = self._rng(PHASE).uniform(0, 2 * math.pi)
