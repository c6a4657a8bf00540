"""Positive features exp(w.x - |x|^2) and their hyperbolic and regularised variants."""

from typing import Literal

import numpy as np

from .. import variances
from .._typing import Kernel, RandomState, Sigma
from .._validation import StrOptions
from ..projections import CouplingLike
from ._docs import document
from .gaussian import GaussianRandomFeatures
from .nonlinearities import Exponential, Hyperbolic, Regularized

# Variant: nonlinearity, closed form.
_VARIANTS = {
    "exponential": (Exponential(), variances.Exponential()),
    "hyperbolic": (Hyperbolic(), variances.Hyperbolic()),
    "regularized": (Regularized(), variances.Regularized()),
}


class CenteredRandomFeatures(GaussianRandomFeatures):
    """Base class of the maps whose variance depends on the origin; they shift it to the midpoint.

    See Also
    --------
    skrf.features.gaussian.GaussianRandomFeatures : The base class without the shift.
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

    def _learn(self, learned, statistics):
        learned.offset_ = statistics.midpoint
        if not self.center:
            learned.offset_ = np.zeros_like(learned.offset_)


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

    def _nonlinearity(self, learned=None, draw=None):
        # `fit` reports a wrong name; properties must not raise before.
        return _VARIANTS.get(self._form, _VARIANTS["exponential"])[0]

    def _law(self, learned):
        return _VARIANTS[self._form][1]

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
