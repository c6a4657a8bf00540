"""Generalised attention: a nonlinearity of projections instead of a softmax kernel."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np
from sklearn.base import BaseEstimator

from .._arrays import cast, constant, largest_entry, like, namespace
from .._sums import Rows
from .._validation import Interval, StrOptions, draw_seed
from ..features import FeatureMap
from ..projections import COUPLINGS, Coupling, DenseProjection


def _falling(z):
    """Return exp(min(z, 0))."""
    xp = namespace(z)
    return xp.exp(xp.clip(z, None, 0.0))


# Name: function, derivative. The derivative of relu at 0 is 0.
_NONLINEARITIES = {
    "relu": (lambda z: namespace(z).clip(z, 0.0, None), lambda z: cast(z > 0, z.dtype)),
    "elu": (lambda z: namespace(z).where(z > 0, z + 1, _falling(z)), _falling),
    "square": (lambda z: z * z, lambda z: 2 * z),
}


class GeneralizedMap(BaseEstimator):
    """Features g(w.x) of generalised attention, for `ApproxKernelAttention`.

    The attention weight of query x and key y is the mean over projections w of g(w.x) g(w.y): a
    kernel of its own, not softmax. Weights are never negative; a query whose features are all 0
    (relu) attends to nothing and gets 0, with a warning.

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
        "coupling": [StrOptions(set(COUPLINGS)), Coupling],
        "sigma": [Interval(Real, 0, None, closed="neither")],
        "random_state": ["random_state"],
    }

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

    def fit_without_data(self, n_features):
        """Draw the projections for rows of a width.

        Parameters
        ----------
        n_features : int
            The width.

        Returns
        -------
        self : object
            The map.
        """
        self._validate_params()
        self.n_features_in_ = n_features
        self.seed_ = draw_seed(self.random_state)
        return self.redraw(self.seed_)

    def adapted(self, X, keys=None):
        """Return the map itself: it learns nothing of data.

        Parameters
        ----------
        X, keys : ndarray
            Ignored.

        Returns
        -------
        self : object
            The map.
        """
        return self

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
            rng = np.random.default_rng(draw_seed(random_state))
            coupling = self.coupling
            coupling = coupling if isinstance(coupling, Coupling) else COUPLINGS[coupling]
            self.omega_ = coupling.draw(self.n_components, self.n_features_in_, rng).dense()
        function, derivative = self.nonlinearity, self.derivative
        if isinstance(function, str):
            function, derivative = _NONLINEARITIES[function]
        made = NonlinearMap(DenseProjection(self.sigma * self.omega_), function, derivative)
        self.feature_maps_ = made, made
        return self

    @property
    def sigma_(self):
        """The multiplier of the inputs."""
        return self.sigma

    @property
    def n_components_(self):
        """The number of features."""
        return len(self.omega_)


@dataclass(frozen=True, eq=False)
class NonlinearMap(FeatureMap):
    """Features g(w.x) / sqrt(m).

    Parameters
    ----------
    projection : DenseProjection
        The rows w.
    function, derivative : callable
        g and its derivative, functions of an array; the derivative may be None.
    """

    projection: DenseProjection
    function: Callable
    derivative: Callable | None
    is_positive = False

    def __call__(self, X):
        """Return the `Rows` of X, on the scale of the largest of a row."""
        values = self.function(self.projection.multiply(X))
        size = self._size(values)
        return Rows(values / size, namespace(values).log(size / math.sqrt(self.n_columns)))

    @staticmethod
    def _size(values):
        """Return what every row is divided by: its largest absolute value, or 1 if that is fine."""
        xp, low, high = namespace(values), 1e-9, 1e9
        if xp is np and low < values.min() and values.max() < high:
            return np.ones((len(values), 1), dtype=values.dtype)
        size = constant(xp.max(xp.abs(values), axis=1, keepdims=True))
        is_extreme = (size > high) | ((size < low) & (size > 0))
        return xp.where(is_extreme, size, like(1.0, size))

    def pull_back(self, X, by_values):
        """Return the gradient with respect to X, given that with respect to values."""
        if self.derivative is None:
            raise NotImplementedError(
                f"Gradients of nonlinearity={self.function!r} need its derivative: pass "
                "derivative=callable."
            )
        products = self.projection.multiply(X)
        size = self._size(self.function(products))
        by_products = by_values * self.derivative(products) / size
        return by_products @ like(self.projection.dense(), X)

    def exponent_bound(self, X):
        """Return a bound of the squared norms of a product's rows, where it is not small."""
        norm2 = X.shape[-1] * largest_entry(X) ** 2 * float(self.projection.squared_norms.max())
        return norm2 if norm2 > 1e30 else 0.0
