"""Pairwise potentials exp(u.v) of two sets of embeddings, as products of positive features.

Everything in this package works on the logarithms of two matrices: psi(u, v) = sum_f left_f(u)
right_f(v). The exact kernel is the case of one feature a column: left_f(u) = psi(u, f), right the
identity. So there is one algorithm for both, and the exact one is its test.
"""

import inspect
from dataclasses import dataclass
from numbers import Integral

import numpy as np
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.utils import check_array, check_random_state

from ..features import BaseRandomFeatures, OptimalPositiveRF

_BLOCK = 2**22  # entries of a temporary array


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

    @property
    def swapped(self):
        """The potential with its two sides exchanged."""
        return Factors(self.right, self.left)

    def gather(self, logs):
        """Return log sum_v right_f(v) exp(logs_v) for every feature; logs of shape (n_right,)."""
        return log_columns(self.right, logs)

    def spread(self, features):
        """Return log sum_f left_f(u) exp(features_f) for every u; features of shape (D,)."""
        return log_columns(self.left.T, features)

    def values(self, left, right):
        """Return log psi of paired states, given by index."""
        return logsumexp(self.left[left] + self.right[right], axis=-1)

    def matrix(self):
        """Return log psi for all pairs; quadratic."""
        return log_product(self.left, self.right.T)


def log_columns(matrix, logs):
    """Return log sum_i exp(matrix_ij + logs_i) for every column j, in blocks of columns."""
    n, m = matrix.shape
    size = max(1, _BLOCK // max(n, 1))
    parts = [
        logsumexp(matrix[:, start : start + size] + logs[:, None], axis=0)
        for start in range(0, m, size)
    ]
    return np.concatenate(parts)


def log_product(A, B):
    """Return log(exp(A) @ exp(B)), the largest exponents of rows and columns taken out.

    Where a sum underflows although it has terms, it is taken again term by term.
    """
    top_a, top_b = (_finite(part) for part in (A.max(axis=1), B.max(axis=0)))
    with np.errstate(divide="ignore"):
        logs = np.log(np.exp(A - top_a[:, None]) @ np.exp(B - top_b))
    # Sums below the smallest normal number have lost digits.
    for row in np.flatnonzero((logs < -690).any(axis=1)):
        columns = np.flatnonzero(logs[row] < -690)
        terms = (A[row] - top_a[row])[:, None] + (B[:, columns] - top_b[columns])
        logs[row, columns] = logsumexp(terms, axis=0)
    return logs + top_a[:, None] + top_b


def _finite(top):
    return np.where(np.isfinite(top), top, 0.0)


def check_embeddings(embeddings, name="embeddings", width=None):
    """Return embeddings as a float64 array, or raise naming them."""
    embeddings = check_array(embeddings, dtype=np.float64, input_name=name)
    if width is not None and embeddings.shape[1] != width:
        raise ValueError(f"{name} has width {embeddings.shape[1]}; {width} is needed.")
    return embeddings


def check_length(length):
    """Return a chain length, or raise."""
    if isinstance(length, bool) or not isinstance(length, Integral) or length < 1:
        raise ValueError(f"length must be an integer >= 1, got {length!r}.")
    return int(length)


def fitted_map(feature_map, left, right, random_state):
    """Return a map for exp(u.v), fitted to all embeddings of both sides, or "exact".

    Parameters
    ----------
    feature_map : mechanism, "exact" or None
        Unfitted; None takes ``OptimalPositiveRF(256)``.
    left, right : ndarray of shape (n, d)
        Embeddings of the two sides.
    random_state : int, RandomState instance or None
        Replaces the map's own where it is None there.
    """
    if isinstance(feature_map, str):
        if feature_map != "exact":
            raise ValueError(f"feature_map must be a mechanism or 'exact', got {feature_map!r}.")
        return "exact"
    if feature_map is None:
        feature_map = OptimalPositiveRF(256)
    if isinstance(feature_map, type) or not isinstance(feature_map, BaseRandomFeatures):
        raise TypeError(
            f"feature_map must be an instance of a positive mechanism, or 'exact', got "
            f"{feature_map!r}."
        )
    own = clone(feature_map)
    params, defaults = own.get_params(), inspect.signature(type(own)).parameters
    if params["sigma"] != defaults["sigma"].default:
        raise ValueError(
            f"feature_map={feature_map!r} has sigma={params['sigma']!r}: leave the default and "
            "scale the embeddings."
        )
    own.set_params(kernel="softmax")
    if params["random_state"] is None:
        own.set_params(random_state=check_random_state(random_state).randint(2**31 - 1))
    own.fit(left, keys=None if right is left else right)
    if not own.is_positive:
        raise ValueError(
            f"feature_map={feature_map!r} is not positive: potentials must be. Take a positive "
            "mechanism, such as OptimalPositiveRF or AdaptiveRF."
        )
    return own


def factors(feature_map, left, right):
    """Return the factors of exp(u.v) for a fitted map or "exact"."""
    if isinstance(feature_map, str):
        with np.errstate(divide="ignore"):
            return Factors(left @ right.T, np.log(np.eye(len(right))))
    return Factors(feature_map._log_features(left), feature_map._log_features(right, keys=True))


def draw_rows(logs, rng):
    """Draw an index from every row of unnormalised log weights."""
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    edges = np.cumsum(shares, axis=1)
    points = rng.uniform(size=len(logs)) * edges[:, -1]
    # The first edge above the point has weight; the last one guards against rounding.
    return np.minimum((edges <= points[:, None]).sum(axis=1), logs.shape[1] - 1)
