"""Pairwise potentials exp(u.v) of two sets of embeddings, as products of positive features.

Everything in this package works on the logarithms of two matrices: psi(u, v) = sum_f left_f(u)
right_f(v). The exact kernel is the case of one feature per column: left_f(u) = psi(u, f), right the
identity. So there is one algorithm for both, and the exact one is its test.
"""

from dataclasses import dataclass

import numpy as np
from sklearn.utils import check_array, check_random_state

from .._sums import log_columns, log_product, log_sum_exp, peaked
from .._validation import draw_seed, naming
from ..features import AdaptiveRF, as_feature_map, fit_to, in_range, mapped, prepared

_LARGEST = 1e140  # entries of embeddings, whose products are finite
_N_COMPONENTS = 256  # of the features that None takes


@dataclass(frozen=True)
class Factors:
    """Logarithms of the two factors of a potential.

    Parameters
    ----------
    left : ndarray of shape (n_left, D)
        log left_f(u).
    right : ndarray of shape (n_right, D)
        log right_f(v).
    """

    left: np.ndarray
    right: np.ndarray

    def gather(self, logs):
        """Return log sum_v right_f(v) exp(logs_v) for every feature; logs of shape (n_right,)."""
        return log_columns(self.right, logs)

    def spread(self, features):
        """Return log sum_f left_f(u) exp(features_f) for every u; features of shape (D,)."""
        return log_columns(self.left.T, features)

    def values(self, left, right):
        """Return log psi of paired states, given by index."""
        return log_sum_exp(self.left[left] + self.right[right])

    def matrix(self):
        """Return log psi for all pairs; quadratic."""
        return log_product(self.left, self.right.T)


def as_array(name, value, dtype=None):
    """Return a value as an array of any shape, or raise naming it: entries may be NaN."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must not be a masked array: missing entries have no meaning here.")
    if isinstance(value, (np.ndarray, np.number, int, float)) and dtype is None:
        return np.asarray(value)  # a filter step comes here
    with naming(name):
        if dtype is None:
            return np.asarray(value)
        return check_array(
            value,
            dtype=dtype,
            ensure_2d=False,
            allow_nd=True,
            ensure_all_finite=False,
            ensure_min_samples=0,
        )


def check_embeddings(embeddings, name="embeddings", width=None):
    """Return embeddings as a float64 array, or raise naming them."""
    with naming(name), np.errstate(invalid="ignore"):  # inf - inf
        embeddings = check_array(
            as_array(name, embeddings, np.float64), dtype=np.float64, input_name=name
        )
    largest = np.abs(embeddings).max()
    if largest > _LARGEST:
        raise ValueError(f"{name} must hold entries up to {_LARGEST:g}, got one of {largest:.4g}.")
    if width is not None and embeddings.shape[1] != width:
        raise ValueError(f"{name} has width {embeddings.shape[1]}; {width} is needed.")
    return embeddings


def as_generator(random_state):
    """Return a RandomState, or raise naming the parameter."""
    with naming("random_state"):
        return check_random_state(random_state)


def fitted_maps(feature_map, left, right, random_state, sizes=None):
    """Return the feature maps of both sides for exp(u.v), fitted to all embeddings, or "exact".

    Parameters
    ----------
    feature_map : mechanism, "exact" or None
        Unfitted; None takes "exact" where products with the matrices of all pairs cost no more
        than those with features, else ``AdaptiveRF(256)``.
    left, right : ndarray of shape (n, d)
        Embeddings of the two sides.
    random_state : int, RandomState instance or None
        Replaces the map's own where it is None there.
    sizes : list of tuple of int, default=None
        Numbers of left and of right states of every pair of variables; None is one pair.
    """
    rng = as_generator(random_state)
    if feature_map is None:
        sizes = [(len(left), len(right))] if sizes is None else sizes
        exact = sum(n * m for n, m in sizes)
        is_cheap = exact <= _N_COMPONENTS * sum(n + m for n, m in sizes)
        feature_map = "exact" if is_cheap else AdaptiveRF(_N_COMPONENTS)
    if isinstance(feature_map, str):
        if feature_map != "exact":
            raise ValueError(f"feature_map must be a mechanism or 'exact', got {feature_map!r}.")
        return "exact"
    own = prepared(
        feature_map,
        owner="a graphical model",
        reserved=("sigma", "kernel"),
        hint="Scale the embeddings, and take a positive mechanism of skrf",
        is_deep=True,
        seed=lambda own: draw_seed(rng) if own is None else own,
        sigma=1.0,
        kernel="softmax",
    )
    fit_to(own, left, right)
    maps = tuple(as_feature_map(own, keys=keys) for keys in (False, True))
    if not maps[0].is_positive:
        raise ValueError(
            f"feature_map={feature_map!r} is not positive: potentials must be. Take a positive "
            "mechanism, such as OptimalPositiveRF or AdaptiveRF."
        )
    return maps


def factors(maps, left, right):
    """Return the factors of exp(u.v) for fitted maps or "exact"."""
    if isinstance(maps, str):
        with np.errstate(divide="ignore"):
            return Factors(left @ right.T, np.log(np.eye(len(right))))
    sides = zip(maps, (left, right), strict=True)
    return Factors(*(mapped(side, in_range(side, X, "embeddings")).values for side, X in sides))


def draw_rows(logs, rng):
    """Draw an index from every row of unnormalised log weights."""
    edges = np.cumsum(peaked(np.array(logs)), axis=1)
    points = rng.uniform(size=len(logs)) * edges[:, -1]
    # The first edge above the point has weight; the last one guards against rounding.
    return np.minimum((edges <= points[:, None]).sum(axis=1), logs.shape[1] - 1)
