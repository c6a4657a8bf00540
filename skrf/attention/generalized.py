"""Generalised attention: a nonlinearity of projections instead of a softmax kernel."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, Self

import numpy as np
from sklearn.base import clone

from .._arrays import (
    cast,
    constant,
    largest_entry,
    largest_norm2,
    library,
    like,
    namespace,
)
from .._estimator import EstimatorBase
from .._memory import check_fits, components
from .._sums import Rows
from .._typing import RandomState
from .._validation import Interval, StrOptions, draw_seed
from ..features import FeatureMap
from ..projections import (
    COUPLINGS,
    Coupling,
    CouplingLike,
    DenseProjection,
    Projection,
    coupling_of,
    drawn,
)


def _relu(z):
    """Return max(z, 0)."""
    return namespace(z).clip(z, 0.0, None)


def _falling(z):
    """Return exp(min(z, 0))."""
    xp = namespace(z)
    return xp.exp(xp.clip(z, None, 0.0))


def _elu(z):
    """Return elu(z) + 1."""
    return namespace(z).where(z > 0, z + 1, _falling(z))


def _square(z):
    """Return z^2."""
    return z * z


def _sigmoid(z):
    """Return 1 / (1 + exp(-z))."""
    xp = namespace(z)
    return _falling(z) / (1 + xp.exp(-xp.abs(z)))


def _abs(z):
    """Return |z|."""
    return namespace(z).abs(z)


_NONLINEARITIES = {
    "relu": _relu,
    "elu": _elu,
    "square": _square,
    "sigmoid": _sigmoid,
    "abs": _abs,
}
_HELD_AS = {"random": "dense", "hadamard": "hadamard"}
# Parameters that do not apply to functions of rows, with their defaults.
_OF_PROJECTIONS = {"nonlinearity": "relu", "projection": "random", "coupling": "orthogonal"}


class GeneralizedMap(EstimatorBase):
    """Features g(w.x) of generalised attention, for `ApproxKernelAttention`.

    The attention weight of query x and key y is the mean of g(w.x) g(w.y) over projections w, or
    the inner product g1(x).g2(y) of two functions of rows. This is a kernel in its own right, not
    an estimate of softmax. Weights are nonnegative if the functions are. A query whose features are
    all 0 (possible with relu) attends to nothing: its output is 0, and a warning is issued.

    Parameters
    ----------
    n_components : int, default=256
        Number of projections; unused with ``projection="identity"`` and with `functions`.
    nonlinearity : {"relu", "elu", "square", "sigmoid", "abs", "exp"} or callable, default="relu"
        The function g. In this order: max(z, 0); elu(z) + 1, which is always positive; z^2;
        1 / (1 + exp(-z)); ``|z|``; exp(z), which does not overflow at any scale of the inputs. Any
        other function of an array may be passed; if its values can be negative (tanh, cos), the
        weights of a query may cancel, which triggers a warning.
    functions : tuple of two callables, default=None
        g1 for queries and g2 for keys: functions that take rows of shape (n, d), already multiplied
        by `sigma`, and return features of shape (n, M). They receive arrays in the library of the
        inputs; torch differentiates through them, also with respect to their own parameters.
        `nonlinearity`, `projection` and `coupling` must then keep their defaults.
    epsilon : float, default=0.0
        Added to every feature. If a function is 0 for many rows (relu), this keeps the weights of a
        query away from 0, at the price of giving every key some weight.
    projection : {"random", "hadamard", "identity"}, default="random"
        "random" draws normal projections. "hadamard" uses fast transforms, whose projections are
        nearly normal, and needs more than 8 input features. "identity" takes the inputs as they
        are.
    coupling : str or Coupling, default="orthogonal"
        How random projections depend on each other, as in the feature maps.
    sigma : float, default=1.0
        Multiplier of the inputs; attention sets it to the square root of its scale.
    random_state : int, RandomState instance or None, default=None
        Source of the projections; attention sets it.

    Attributes
    ----------
    omega_ : ndarray of shape (n_components, n_features)
        The projections, set by attention; absent with "hadamard" and with `functions`.
    n_features_in_ : int
        Width of the inputs, set by attention.

    See Also
    --------
    ApproxKernelAttention : The operator that uses it.
    skrf.OptimalPositiveRF : Features that estimate softmax attention.

    References
    ----------
    Choromanski et al., Rethinking attention with Performers (2021), section 2.2. For "identity"
    with "elu": Katharopoulos et al., Transformers are RNNs (2020).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.attention import ApproxKernelAttention, GeneralizedMap
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 100, 8))
    >>> attention = ApproxKernelAttention(GeneralizedMap(nonlinearity="elu"), causal=True)
    >>> attention(q, k, v).shape
    (100, 8)

    With two functions of rows, chosen so that only the direction of a key matters:

    >>> def of_queries(X):
    ...     return np.exp(X)
    >>> def of_keys(X):
    ...     return np.exp(X / np.linalg.norm(X, axis=1, keepdims=True))
    >>> attention = ApproxKernelAttention(GeneralizedMap(functions=(of_queries, of_keys)))
    >>> bool(np.allclose(attention(q, 5 * k, v), attention(q, k, v)))
    True
    """

    _parameter_constraints = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "nonlinearity": [StrOptions({*_NONLINEARITIES, "exp"}), callable],
        "functions": [tuple, None],
        "epsilon": [Interval(Real, 0, None, closed="left")],
        "projection": [StrOptions({*_HELD_AS, "identity"})],
        "coupling": [StrOptions(set(COUPLINGS)), Coupling],
        "sigma": [Interval(Real, 0, None, closed="neither")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_components: int = 256,
        *,
        nonlinearity: Literal["relu", "elu", "square", "sigmoid", "abs", "exp"] | Callable = "relu",
        functions: tuple[Callable, Callable] | None = None,
        epsilon: float = 0.0,
        projection: Literal["random", "hadamard", "identity"] = "random",
        coupling: CouplingLike = "orthogonal",
        sigma: float = 1.0,
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.nonlinearity = nonlinearity
        self.functions = functions
        self.epsilon = epsilon
        self.projection = projection
        self.coupling = coupling
        self.sigma = sigma
        self.random_state = random_state

    def __sklearn_clone__(self):
        """Return an unfitted map with the same functions, whose parameters may be trained."""
        params = self.get_params(deep=False)
        params["random_state"] = clone(params["random_state"], safe=False)
        return type(self)(**params)

    def fit_without_data(self, n_features: int) -> Self:
        """Draw the projections for rows of a given width.

        Parameters
        ----------
        n_features : int
            Width of the rows.

        Returns
        -------
        self : object
            The map.
        """
        self._validate_params()
        self._check_functions()
        self.n_features_in_ = n_features
        self._seed = draw_seed(self.random_state)
        return self.redraw(self._seed)

    def redraw(self, random_state: RandomState = None) -> Self:
        """Redraw the projections, as attention's `diagnose` does.

        Parameters
        ----------
        random_state : int, RandomState instance or None, default=None
            Source of the projections.

        Returns
        -------
        self : object
            The map with new projections.
        """
        self.feature_maps_ = tuple(self._maps(random_state))
        return self

    def _maps(self, random_state):
        """Return the feature maps of both sides."""
        epsilon, width = self.epsilon, self.n_features_in_
        if self.functions is not None:
            shared = epsilon, None, self.sigma, width, Shape(), False, False
            return [Generalized(f"functions: {g!r}", g, *shared) for g in self.functions]
        drawn = self._projection(random_state)
        if isinstance(drawn, DenseProjection):
            self.omega_ = drawn.dense()
        g, name = self.nonlinearity, f"nonlinearity={self.nonlinearity!r}"
        is_known = isinstance(g, str)
        g = _NONLINEARITIES.get(g) if is_known else g  # none is the exponential
        shared = epsilon, drawn.scaled(self.sigma), self.sigma, width, None, is_known, is_known
        return [Generalized(name, g, *shared)] * 2

    def _projection(self, random_state):
        """Return the drawn projection."""
        if self.projection == "identity":
            return DenseProjection(np.eye(self.n_features_in_))
        rng = np.random.default_rng(draw_seed(random_state))
        joint = coupling_of(self.coupling, _HELD_AS[self.projection])
        n_bytes = joint.n_bytes(self.n_components, self.n_features_in_)
        check_fits(n_bytes, components(self), "its projections")
        return drawn(joint, self.n_components, self.n_features_in_, rng)

    def _check_functions(self):
        """Raise unless functions are a pair, and nothing else is given."""
        functions = self.functions
        if functions is None:
            return
        if len(functions) != 2 or not all(map(callable, functions)):
            raise ValueError(f"functions must be a tuple of two callables, got {functions!r}.")
        for name, default in _OF_PROJECTIONS.items():
            if getattr(self, name) != default:
                raise ValueError(
                    f"functions exclude {name}: they take the rows themselves. Got functions="
                    f"{functions!r} and {name}={getattr(self, name)!r}; leave {default!r}."
                )

    @property
    def sigma_(self) -> float:
        """The multiplier of the inputs."""
        return self.sigma

    @property
    def n_components_(self) -> int:
        """The number of features."""
        return self.feature_maps_[0].n_columns

    @property
    def is_positive(self) -> bool:
        """Whether features are given as logarithms."""
        return self.nonlinearity == "exp"


def _on_scale(values, name):
    """Return features as `Rows`, scaled by the largest of each row."""
    size = _size(values)
    if not bool(namespace(size).all(namespace(size).isfinite(size))):
        raise ValueError(
            f"{name} made features that are NaN or infinite, but features must be finite. For "
            "exponentials, nonlinearity='exp' has the logarithms, which do not overflow."
        )
    return Rows(values / size, namespace(values).log(size))


def _size(values):
    """Return a divisor per row: its largest absolute value, or 1 if that is not extreme."""
    xp, low, high = namespace(values), 1e-9, 1e9
    if xp is np and low < values.min() and values.max() < high:
        return np.ones((len(values), 1), dtype=values.dtype)
    size = constant(xp.max(xp.abs(values), axis=1, keepdims=True))
    is_extreme = ~(size <= high) | ((size < low) & (size > 0))
    return xp.where(is_extreme, size, like(1.0, size))


class Shape:
    """The number of features that functions return for rows, once it is known."""

    def __init__(self):
        self.n_columns = None

    def check(self, features, X):
        """Raise unless features match the rows X, and their number the one seen before."""
        shape, n = tuple(getattr(features, "shape", ())), X.shape[0]
        if len(shape) != 2 or shape[0] != n or self.n_columns not in (None, shape[1]):
            width = "M" if self.n_columns is None else self.n_columns
            raise ValueError(
                f"functions must return features of shape (n, M), M the same for both; for rows of "
                f"shape {tuple(X.shape)} that is ({n}, {width}), got {shape}."
            )
        self.n_columns = shape[1]


@dataclass(frozen=True, eq=False)
class Generalized(FeatureMap):
    """Features (g(w.x) + epsilon) / sqrt(m) of one side, or g(sigma x) + epsilon.

    Parameters
    ----------
    name : str
        What gives the function, in error messages.
    function : callable or None
        g, a function of an array; None is the exponential, of which features are the logarithms.
    epsilon : float
        Added to every feature.
    projection : Projection or None
        The rows w.
    sigma : float
        Multiplies rows that are not projected.
    width : int
        Width of the rows.
    shape : Shape or None
        Of functions of rows, shared by both sides.
    is_nonnegative : bool
        Whether g is known not to be negative.
    is_fixed : bool
        Whether g is no function of a caller.
    """

    name: str
    function: Callable | None
    epsilon: float
    projection: Projection | None
    sigma: float
    width: int
    shape: Shape | None
    is_nonnegative: bool
    is_fixed: bool

    @property
    def n_features(self):
        """Width of the rows."""
        return self.width

    @property
    def is_positive(self):
        """Whether features are given as logarithms."""
        return self.function is None

    @property
    def n_columns(self):
        """Number of features; tries a NumPy row of a function if none have been seen before."""
        if self.shape is None:
            return self.projection.n_projections
        if self.shape.n_columns is None:
            try:
                self._values(np.ones((1, self.n_features)))
            except (AttributeError, TypeError) as error:
                raise ValueError(
                    f"functions: {self.function!r} must take a NumPy array, from which its number "
                    "of features is found; otherwise call the operator on whole inputs first."
                ) from error
        return self.shape.n_columns

    def __call__(self, X):
        """Return the `Rows` of X."""
        if self.shape is not None:
            return _on_scale(self._values(X * self.sigma), self.name)
        products, share = self.projection.multiply(X), math.log(self.n_columns) / 2
        if self.is_positive:
            if self.epsilon:
                least = like(math.log(self.epsilon), products)
                products = namespace(products).logaddexp(products, least)
            return Rows(library(products).subtract(products, share))
        values, scale = _on_scale(self._values(products), self.name)
        return Rows(values, scale - share)

    def _values(self, rows):
        values = self.function(rows)
        if self.shape is not None:
            self.shape.check(values, rows)
            values = cast(values, rows.dtype)
        return values + self.epsilon if self.epsilon else values

    def exponent_bound(self, X):
        """Return a bound on squared norms of rows, 0 if it is small, or on the logarithms."""
        stretch = self.sigma**2
        if self.projection is not None:
            stretch = float(self.projection.squared_norms.max())
        if self.is_positive:
            return math.sqrt(largest_norm2(X)) * math.sqrt(stretch)
        norm2 = X.shape[-1] * largest_entry(X) ** 2 * stretch
        return 0.0 if norm2 <= 1e30 else norm2  # which may be NaN
