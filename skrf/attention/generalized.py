"""Generalised attention: a nonlinearity of projections instead of a softmax kernel."""

import copy
import math
from numbers import Integral, Real

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from .._arrays import like, namespace
from ..projections import COUPLINGS


def _falling(z):
    """Return exp(min(z, 0))."""
    xp = namespace(z)
    return xp.exp(xp.clip(z, None, 0.0))


# Name: function, derivative. The derivative of relu at 0 is 0.
_NONLINEARITIES = {
    "relu": (lambda z: namespace(z).clip(z, 0.0, None), lambda z: (z > 0).astype(z.dtype)),
    "elu": (lambda z: namespace(z).where(z > 0, z + 1, _falling(z)), _falling),
    "square": (lambda z: z * z, lambda z: 2 * z),
}


class GeneralizedMap(BaseEstimator):
    """Features g(w.x) of generalised attention, for `ApproxKernelAttention`.

    The attention weight of query x and key y is the mean over projections w of g(w.x) g(w.y): a
    kernel of its own, not softmax. Weights are never negative; a query whose features are all 0
    (relu) attends to nothing and gets 0.

    Parameters
    ----------
    n_components : int, default=256
        Number of projections; unused with ``projection="identity"``.
    nonlinearity : {"relu", "elu", "square"} or callable, default="relu"
        max(z, 0); elu(z) + 1, which is always positive; z^2; or a function of an array, whose
        values should not be negative.
    derivative : callable, default=None
        Derivative of a function given as `nonlinearity`; needed for gradients only.
    projection : {"random", "identity"}, default="random"
        Normal projections, or the inputs themselves.
    coupling : str, default="orthogonal"
        How random projections depend on each other, as in the mechanisms.
    sigma : float, default=1.0
        Multiplier of the inputs; attention sets it to the root of its scale.
    random_state : int, RandomState instance or None, default=None
        Source of the projections; attention sets it.

    Attributes
    ----------
    omega_ : ndarray of shape (n_components, n_features)
        The projections, set by attention.
    n_features_in_ : int
        Width of the inputs, set by attention.

    References
    ----------
    Choromanski et al., Rethinking attention with Performers (2021), section 2.2. The identity with
    "elu": Katharopoulos et al., Transformers are RNNs (2020).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.attention import ApproxKernelAttention, GeneralizedMap
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 100, 8))
    >>> attention = ApproxKernelAttention(GeneralizedMap(nonlinearity="elu"), causal=True)
    >>> attention(q, k, v).shape
    (100, 8)
    """

    _parameter_constraints = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "nonlinearity": [StrOptions(set(_NONLINEARITIES)), callable],
        "derivative": [callable, None],
        "projection": [StrOptions({"random", "identity"})],
        "coupling": [StrOptions(set(COUPLINGS))],
        "sigma": [Interval(Real, 0, None, closed="neither")],
        "random_state": ["random_state"],
    }

    # What attention asks of a map.
    is_positive = False
    _needs_data = False

    def __init__(
        self,
        n_components=256,
        *,
        nonlinearity="relu",
        derivative=None,
        projection="random",
        coupling="orthogonal",
        sigma=1.0,
        random_state=None,
    ):
        self.n_components = n_components
        self.nonlinearity = nonlinearity
        self.derivative = derivative
        self.projection = projection
        self.coupling = coupling
        self.sigma = sigma
        self.random_state = random_state

    def _fit_without_data(self, n_features):
        self._validate_params()
        self.n_features_in_ = n_features
        self._seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        return self.redraw(self._seed)

    def _adapted(self, X, keys):
        return copy.copy(self)

    def redraw(self, random_state=None):
        """Draw the projections anew, as attention's `diagnose` does.

        Parameters
        ----------
        random_state : int, RandomState instance or None, default=None
            Source of the projections.

        Returns
        -------
        self : object
            The map with new projections.
        """
        if self.projection == "identity":
            self.omega_ = np.eye(self.n_features_in_)
        else:
            rng = np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
            coupling = COUPLINGS[self.coupling]
            self.omega_ = coupling.draw(self.n_components, self.n_features_in_, rng).dense()
        return self

    @property
    def sigma_(self):
        """The multiplier of the inputs."""
        return self.sigma

    @property
    def n_components_(self):
        """The number of features."""
        return len(self.omega_)

    def _products(self, X):
        return X @ like((self.sigma * self.omega_).T, X)

    def _features(self, X, *, keys=False):
        function = self.nonlinearity
        if isinstance(function, str):
            function = _NONLINEARITIES[function][0]
        return function(self._products(X)) * (1 / math.sqrt(len(self.omega_)))

    def _pull_back(self, X, gradient, *, keys=False):
        derivative = self.derivative
        if isinstance(self.nonlinearity, str):
            derivative = _NONLINEARITIES[self.nonlinearity][1]
        if derivative is None:
            raise NotImplementedError(
                f"Gradients of nonlinearity={self.nonlinearity!r} need its derivative: pass "
                "derivative=callable."
            )
        by_products = gradient * derivative(self._products(X)) / math.sqrt(len(self.omega_))
        return by_products @ (self.sigma * self.omega_)
