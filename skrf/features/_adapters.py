"""The single entry for feature maps: how consumers configure, fit and read what they are given.

A feature map is read through its attribute ``feature_maps_``, a FrozenEstimator through what it
wraps, a Pipeline through its last step after the others, and any other transformer through an
adapter. If a map lacks something that a consumer needs, an error names it.
"""

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, clone
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter

from .._arrays import is_array_api, like, to_host
from .._memory import check_fits, components
from .._sums import Rows
from .._typing import Transformer
from .._validation import draw_seed, validate_rows
from ._map import FeatureMap, in_range

_RANGE = 1e100  # features of other packages between the inverse of this and this need no scale


def prepared(
    feature_map: Transformer,
    *,
    owner: str,
    reserved: Sequence[str] = (),
    hint: str | None = None,
    is_deep: bool = False,
    seed: Callable | None = None,
    **settings: Any,
) -> Transformer:
    """Return an unfitted copy of a map, with the parameters that its consumer sets.

    Parameters
    ----------
    feature_map : transformer
        The map, an instance.
    owner : str
        Name of the consumer, for error messages.
    reserved : sequence of str, default=()
        Parameters that must still have their defaults, because the consumer sets them; "kernel"
        may already have the value to be set.
    hint : str, default=None
        What to do instead, for error messages.
    is_deep : bool, default=False
        Whether the parameters to set in a Pipeline are those of its last step.
    seed : callable, default=None
        Returns the random_state to set, given the map's own; not called for maps without one.
    **settings : dict
        Parameter values by name; None keeps the current value.

    Returns
    -------
    transformer
        The copy.

    Raises
    ------
    TypeError
        If `feature_map` is not an instance with ``fit`` and ``transform``, or ``feature_maps_``.
    ValueError
        If it lacks a parameter, or a reserved one has been set.

    See Also
    --------
    fit_to : Fits the copy.
    as_feature_map : Returns the map of a fitted transformer.
    """
    is_map = hasattr(feature_map, "transform") or hasattr(feature_map, "fit_without_data")
    if isinstance(feature_map, type) or not (is_map and hasattr(feature_map, "get_params")):
        raise TypeError(
            "feature_map must be an instance of a feature map of skrf, or of another transformer "
            f"with the methods fit and transform, not a class; {owner} got {feature_map!r}."
        )
    copied = clone(feature_map)
    held = last_step(copied) if is_deep else copied
    params = held.get_params(deep=False)
    signature = inspect.signature(type(held)).parameters
    for name, value in settings.items():
        if value is None:
            continue
        if name not in params or isinstance(held, FrozenEstimator):
            raise ValueError(
                f"{owner} got {name}={value!r}, but feature_map={feature_map!r} has no parameter "
                f"{name!r}. {hint or f'Leave {name}=None or use a feature map that has it'}."
            )
        usual = {1.0} if name == "sigma" else set()  # None is 1 where the kernel is softmax
        if name in reserved and params[name] not in (signature[name].default, value, *usual):
            raise ValueError(
                f"feature_map={feature_map!r} has {name}={params[name]!r}, but {owner} sets it: "
                f"leave the default. {hint}."
            )
        held.set_params(**{name: value})
    if seed is not None and "random_state" in params:
        held.set_params(random_state=seed(params["random_state"]))
    return copied


def check_columns(feature_map, n_rows, bytes_of, purpose):
    """Raise MemoryError, before a map is drawn, if what is kept of its columns is too large.

    Maps that are already fitted are not checked, nor are those of other packages, whose number of
    columns is unknown before `fit`: their consumers check these.

    Parameters
    ----------
    feature_map : transformer
        Unfitted.
    n_rows : int
        Number of rows that it will be fitted to.
    bytes_of : callable
        Returns the approximate number of bytes kept, given the number of columns.
    purpose : str
        What the bytes are for.
    """
    n_columns = columns_of(feature_map, n_rows)
    if n_columns is not None:
        check_fits(bytes_of(n_columns), components(last_step(feature_map)), purpose)


def columns_of(feature_map, n_rows):
    """Return how many columns an unfitted map will have, or None if that is unknown."""
    transformer = last_step(feature_map)
    if isinstance(transformer, FrozenEstimator) or not hasattr(transformer, "_checked_spec"):
        return None
    return transformer._checked_spec()._n_columns(n_rows)


def learns_from_sums(feature_map):
    """Return whether an unfitted map needs nothing but statistics."""
    is_frozen = isinstance(feature_map, FrozenEstimator)  # would refit what it wraps
    return not is_frozen and hasattr(feature_map, "fit_statistics")


def fit_to_statistics(feature_map, statistics, **rows):
    """Fit a map to given statistics if they suffice, otherwise to rows, and return it."""
    if statistics is not None and learns_from_sums(feature_map):
        return feature_map.fit_statistics(statistics)
    return feature_map.fit(**rows)


def fit_at_sigma(feature_map, X, y=None, *, statistics=None, **weights):
    """Return a function that returns a fitted copy of a transformer, given sigma.

    The copies share a draw, and feature maps compute statistics and clusters once.

    Parameters
    ----------
    feature_map : transformer
        Unfitted, with a parameter ``sigma``.
    X : ndarray or sparse matrix of shape (n, d)
        Rows.
    y : ndarray of shape (n,), default=None
        Their labels or targets.
    statistics : PairStatistics, default=None
        Statistics of all rows, if X is only a sample of them.
    **weights : dict
        ``sample_weight``, if the transformer accepts it.

    Returns
    -------
    callable
        The function.
    """
    needs_rows = statistics is None or not learns_from_sums(feature_map)
    if needs_rows and hasattr(feature_map, "_fit_at_sigma"):
        return feature_map._fit_at_sigma(X, y, **weights)
    template = clone(feature_map)
    if getattr(template, "random_state", 0) is None:  # copies of a RandomState draw the same
        template.set_params(random_state=draw_seed(None))

    def fit(sigma):
        copied = clone(template).set_params(sigma=sigma)
        return fit_to_statistics(copied, statistics, X=X, y=y, **weights)

    return fit


def fit_to(feature_map: Transformer, X: np.ndarray, keys: np.ndarray) -> Transformer:
    """Fit a transformer to queries and keys, or to all rows if it does not accept keys.

    Parameters
    ----------
    feature_map : transformer
        Unfitted, or frozen.
    X, keys : ndarray of shape (n, d) and (n_keys, d)
        Rows; the same object if there are no separate keys.

    Returns
    -------
    transformer
        The fitted transformer.

    See Also
    --------
    prepared : Returns the transformer to fit.
    as_feature_map : Returns the map of a fitted transformer.
    """
    if isinstance(feature_map, FrozenEstimator):
        return feature_map.fit(X, None)  # it checks that the estimator is fitted
    if keys is X:
        return feature_map.fit(X)
    if has_fit_parameter(feature_map, "keys"):
        return feature_map.fit(X, keys=keys)
    return feature_map.fit(np.concatenate([X, keys]))


def frozen_kernel(feature_map):
    """Return the kernel and sigma that a frozen map was fitted for, or None if it is not frozen.

    Parameters
    ----------
    feature_map : feature map, FrozenEstimator, Pipeline or transformer
        The map; kernel and sigma are both None for feature maps of other packages.
    """
    held = last_step(feature_map)
    if not isinstance(held, FrozenEstimator):
        return None
    while isinstance(held, FrozenEstimator):
        held = last_step(held.estimator)
    fitted = getattr(held, "_known", None)  # parameters may have been set after the fit
    return (None, None) if fitted is None else (fitted.spec.kernel, fitted.parameters.sigma)


def last_step(feature_map):
    """Return the transformer that makes the features: the last step of a Pipeline."""
    while isinstance(feature_map, Pipeline) and isinstance(feature_map.steps[-1][1], BaseEstimator):
        feature_map = feature_map.steps[-1][1]
    return feature_map


def as_feature_map(transformer: Transformer, *, keys: bool = False) -> FeatureMap:
    """Return the fitted feature map of one side of a transformer.

    Parameters
    ----------
    transformer : feature map, FrozenEstimator, Pipeline or transformer
        Fitted.
    keys : bool, default=False
        Whether to return the key side. A transformer without ``transform_keys`` is symmetric.

    Returns
    -------
    FeatureMap
        The map.

    See Also
    --------
    prepared : Returns the unfitted copy.
    mapped : Computes the features of many rows.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import OptimalPositiveRF
    >>> from skrf.features import as_feature_map
    >>> X = np.zeros((2, 3))
    >>> feature_map = as_feature_map(OptimalPositiveRF(8, random_state=0).fit(X))
    >>> feature_map(X).values.shape, feature_map.is_positive
    ((2, 8), True)
    """
    if isinstance(transformer, FeatureMap):
        return transformer
    if isinstance(transformer, FrozenEstimator):
        return as_feature_map(transformer.estimator, keys=keys)
    if hasattr(transformer, "feature_maps_"):
        return transformer.feature_maps_[keys]
    if isinstance(transformer, Pipeline):
        *steps, last = (step for _, step in transformer.steps)
        if not _is_identity(last):
            steps = tuple(step for step in steps if not _is_identity(step))
            return PipelineMap(steps, last, as_feature_map(last, keys=keys))
    name = "transform_keys" if keys and hasattr(transformer, "transform_keys") else "transform"
    return TransformerMap(getattr(transformer, name))


def suits_ratios(transformer):
    """Return whether sums of a transformer's features may be used as denominators.

    Parameters
    ----------
    transformer : feature map, FrozenEstimator, Pipeline or transformer
        Fitted or not.
    """
    if isinstance(transformer, FrozenEstimator):
        return suits_ratios(transformer.estimator)
    if isinstance(transformer, Pipeline):
        return all(suits_ratios(step) for _, step in transformer.steps)
    return getattr(transformer, "_suits_ratios", True)


def maps_sides_alike(transformer):
    """Return whether a fitted transformer maps queries and keys alike.

    Parameters
    ----------
    transformer : feature map, FrozenEstimator, Pipeline or transformer
        Fitted.
    """
    if isinstance(transformer, FrozenEstimator):
        return maps_sides_alike(transformer.estimator)
    if isinstance(transformer, Pipeline):
        steps = [step for _, step in transformer.steps if not _is_identity(step)]
        return maps_sides_alike(steps[-1]) if steps else True
    return getattr(transformer, "is_symmetric", not hasattr(transformer, "transform_keys"))


def _is_identity(step):
    return step is None or isinstance(step, str)


@dataclass(frozen=True, eq=False)
class TransformerMap(FeatureMap):
    """A transformer from another package, which runs on the host.

    Parameters
    ----------
    transform : callable
        Its ``transform`` or ``transform_keys``.
    """

    transform: Any
    is_positive = False
    is_parallel = False
    n_features = None
    n_columns = None  # unknown before the first call

    def __call__(self, X):
        """Return the `Rows` of X."""
        features = self.transform(to_host(X))
        values = features.toarray() if sp.issparse(features) else np.asarray(features)
        if values.dtype not in (np.float32, np.float64):
            values = values.astype(np.float64)
        scale = np.zeros((len(values), 1), values.dtype)
        largest = np.abs(values).max(axis=1, keepdims=True)
        if not 1 / _RANGE < float(largest.min()) <= float(largest.max()) < _RANGE:
            is_finite = np.isfinite(largest)
            if not is_finite.all():
                warnings.warn(
                    "feature_map made infinite or NaN features for some rows: all features of "
                    "these rows count as 0. Scale the rows down.",
                    RuntimeWarning,
                    stacklevel=2,
                )
                values, largest = np.where(is_finite, values, 0), np.where(is_finite, largest, 0)
            largest[largest == 0] = 1
            values, scale = values / largest, np.log(largest)
        return _in_library(Rows(values, scale), X)


def _in_library(rows, X):
    """Return rows on the host in the library of X, as copies that may be overwritten."""
    return rows.map(lambda array: like(array.copy(), X)) if is_array_api(X) else rows


@dataclass(frozen=True, eq=False)
class PipelineMap(FeatureMap):
    """The map of a Pipeline's last step, preceded by the other steps, which run on the host.

    Parameters
    ----------
    steps : tuple of transformer
        Fitted steps.
    last : transformer
        The fitted last step.
    feature_map : FeatureMap
        One side of the last step.
    """

    steps: tuple
    last: Any
    feature_map: FeatureMap
    is_parallel = False
    n_features = None

    @property
    def n_columns(self):
        """Number of features."""
        return self.feature_map.n_columns

    @property
    def is_positive(self):
        """Whether features are given as logarithms."""
        return self.feature_map.is_positive

    @property
    def is_projected(self):
        """Whether features lack something of a kernel with K(x, x) = 1."""
        return self.feature_map.is_projected

    def projected(self, X):
        """Return the map that projects a kernel on landmarks, and the rows as it reads them."""
        return self.feature_map.projected(self._before(X)) if self.is_projected else None

    def _before(self, X):
        X = to_host(X)
        for step in self.steps:
            X = step.transform(X)
        if hasattr(self.last, "feature_maps_"):
            # Its maps require floats, but earlier steps may return integers or a table.
            X = in_range(self.feature_map, validate_rows(self.last, X, reset=False))
        return X

    def __call__(self, X):
        """Return the `Rows` of X."""
        return _in_library(self.feature_map(self._before(X)), X)

    def write(self, X, out, room, lower=None):
        """Write the values of rows on the host and return their scale."""
        before = self._before(X)
        if getattr(before, "dtype", None) != out.dtype:
            return super().write(X, out, room, lower)
        return self.feature_map.write(before, out, room, lower)
