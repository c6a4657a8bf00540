"""Pairwise potentials of states: of the kernel exp(u.v) itself, or of features of embeddings.

A `Potential` has the states u of one variable on its left and the states v of another on its right.
`Dense` holds log psi(u, v) of all pairs. `LowRank` holds logarithms of positive features, psi(u, v)
= sum_f left_f(u) right_f(v), and forms matrices of all pairs only in blocks. Chains and trees need
sums, maxima and draws over the states of one side, and expected counts of pairs, which
`pull_back` turns into gradients.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse
from sklearn.utils import check_array

from .._memory import check_fits
from .._sums import LogMatrix, exp_max_one, log_columns, log_product, log_sum_exp
from .._validation import as_generator, check_are_numbers, draw_seed, naming
from ..features import (
    AdaptiveRF,
    as_feature_map,
    check_columns,
    fit_to,
    frozen_kernel,
    in_range,
    mapped,
    prepared,
)

_LARGEST = 1e140  # entries up to which products and sums of squares are finite
_N_COMPONENTS = 256  # of the default features
_N_EXACT = 1024  # states up to which the kernel itself takes about twice as long at most
_REPEATS = 4e-15  # change of a message, relative to its logarithms, that is rounding
_BLOCK = 2**22  # entries of a temporary array, or of a matrix of all pairs kept for maxima


class Potential:
    """Base of both kinds of potentials."""

    @cached_property
    def turned(self):
        """The same potential with left and right exchanged."""
        other = self._exchanged()
        vars(other)["turned"] = self
        return other

    def __getstate__(self):
        # The two refer to each other, which not every format can hold.
        return {name: value for name, value in vars(self).items() if name != "turned"}

    @cached_property
    def _kept_rows(self):
        return self._rows(slice(None))

    def log_rows(self, block):
        """Return log psi of some left states with all right ones."""
        if self.is_kept and np.prod(self.shape) <= _BLOCK:
            return self._kept_rows[block]
        return self._rows(block)

    @property
    def matrix(self):
        """Log psi of all pairs, which is quadratic."""
        return self.log_rows(slice(None))

    def log_paths(self, length):
        """Return the log sum over the paths of a chain of more than one variable."""
        logs, total = np.zeros(self.shape[0]), 0.0
        for n_steps in range(1, length):
            before, (logs, _) = logs, self.sums(logs)
            growth = logs.max()
            logs = logs - growth
            total += growth
            room = _REPEATS * (1 + np.abs(growth) + np.abs(logs))
            if n_steps > 1 and (np.abs(logs - before) <= room).all():
                total += (length - 1 - n_steps) * growth
                break
        return float(total + log_sum_exp(logs))

    def pull_back(self, maps, u, v, *counts):
        """Return gradients with respect to the embeddings of both sides; see `pull_back`."""
        return pull_back(maps, u, v, *counts)

    def maxima(self, logs):
        """Return the maximum over v of log psi(u, v) + logs_v for every u, and its index."""
        n, m = self.shape
        tops, places = np.empty(n), np.empty(n, dtype=int)
        for block in _blocks(n, m):
            places[block], tops[block] = largest_log(self.log_rows(block) + logs)
        return tops, places


@dataclass(frozen=True, eq=False)
class Dense(Potential):
    """The kernel itself: a feature is a right state.

    Parameters
    ----------
    logs : ndarray of shape (n, m)
        Log psi of all pairs.
    """

    logs: np.ndarray

    shape = property(lambda self: self.logs.shape)

    def _exchanged(self):
        return Dense(np.ascontiguousarray(self.logs.T))

    @cached_property
    def _kept(self):
        return LogMatrix(self.logs)

    def log_paths(self, length):
        """Return the log sum over the paths of a chain of more than one variable."""
        logs, transfer, n_steps = np.zeros(len(self.logs)), self.logs, length - 1
        # Squaring costs n^3 per bit of the length, going step by step n^2 per position.
        if n_steps <= 2 * len(logs):
            return super().log_paths(length)
        while n_steps:
            if n_steps & 1:
                logs = log_columns(transfer.T, logs)
            n_steps >>= 1
            if n_steps:
                transfer = log_product(transfer, transfer)
        return float(log_sum_exp(logs))

    def log_rows(self, block):
        """Return log psi of some left states with all right ones."""
        return self.logs[block]

    def sums(self, logs):
        """Return log sum_v psi(u, v) exp(logs_v) for every u, and the same for every feature.

        The logs may be those of several samples, (n_samples, m).
        """
        return self._kept.product(logs), logs

    def values(self, left, right):
        """Return log psi of paired states, given by index."""
        return self.logs[left, right]

    def draw(self, left, logs, features, rng):
        """Draw a right state for every left one, in proportion to psi(u, v) exp(logs_v)."""
        return draw_rows(self.logs[left] + logs, rng)

    def counts(self, left, right, weights):
        """Return the counts of weighted pairs of states, as `pull_back` expects them."""
        return (scipy.sparse.csr_array((weights, (left, right)), shape=self.shape).toarray(),)

    def expected(self, left, right, from_left, from_right, total):
        """Return the expected counts of pairs over edges, given the logs that meet at each edge.

        Parameters
        ----------
        left, right : ndarray of shape (n_edges, n) and (n_edges, m)
            Logs that arrive at both sides.
        from_left, from_right : ndarray of shape (n_edges, m) and (n_edges, n)
            Not used.
        total : float
            What the counts of all edges sum to.
        """
        return (of_total(self.logs + log_product(left.T, right), total),)


@dataclass(frozen=True, eq=False)
class LowRank(Potential):
    """Positive features of both sides.

    Parameters
    ----------
    sides : tuple of LogMatrix
        Logarithms of the features of both sides, (n, D).
    is_kept : bool
        Whether to keep the matrix of all pairs for maxima if it is small, because many edges share
        this potential.
    """

    sides: tuple
    is_kept: bool

    shape = property(lambda self: tuple(len(side.logs) for side in self.sides))

    def _exchanged(self):
        return LowRank(self.sides[::-1], self.is_kept)

    def _rows(self, block):
        return self.sides[0].log_rows(block, self.sides[1])

    def sums(self, logs):
        """Return log sum_v psi(u, v) exp(logs_v) for every u, and the same for every feature."""
        features = self.sides[1].turned.product(logs)
        return self.sides[0].product(features), features

    def values(self, left, right):
        """Return log psi of paired states, given by index."""
        values, (u, v) = np.empty(len(left)), (side.logs for side in self.sides)
        for block in _blocks(len(left), u.shape[1]):
            values[block] = log_sum_exp(u[left[block]] + v[right[block]])
        return values

    def draw(self, left, logs, features, rng):
        """Draw a right state for every left one, in proportion to psi(u, v) exp(logs_v)."""
        feature = draw_rows(self.sides[0].logs[left] + features, rng)
        return draw_rows(self.sides[1].turned.logs[feature] + logs, rng)

    def counts(self, left, right, weights):
        """Return the counts of weighted pairs of states, as `pull_back` expects them."""
        totals = [np.zeros(side.logs.shape) for side in self.sides]
        for block in _blocks(len(left), self.sides[0].logs.shape[1]):
            u, v = left[block], right[block]
            shares = exp_max_one(self.sides[0].logs[u] + self.sides[1].logs[v])
            shares *= (weights[block] / shares.sum(axis=1))[:, None]
            for states, total in zip((u, v), totals, strict=True):
                add_rows(total, states, shares)
        return totals

    def expected(self, left, right, from_left, from_right, total):
        """Return the expected counts of pairs over edges, given the logs that meet at each edge.

        Parameters
        ----------
        left, right : ndarray of shape (n_edges, n) and (n_edges, m)
            Logs that arrive at both sides.
        from_left, from_right : ndarray of shape (n_edges, D)
            Features of both, as returned by `sums`.
        total : float
            What the counts of all edges sum to.
        """
        sides = zip(self.sides, (left, right), (from_right, from_left), strict=True)
        return [of_total(side.logs + log_product(at.T, other), total) for side, at, other in sides]


def pull_back(maps, u, v, by_left, by_right=None):
    """Return gradients of sum counts * log psi with respect to the embeddings of both sides.

    Parameters
    ----------
    maps : tuple of FeatureMap
        Maps of both sides; empty for the kernel itself.
    u, v : ndarray of shape (n, d) and (m, d)
        Embeddings of the left and of the right states.
    by_left, by_right : ndarray of shape (n, D) and (m, D)
        Counts of a state with a feature. For the kernel itself there are only those of pairs.
    """
    if not maps:
        return by_left @ v, by_left.T @ u
    return maps[0].pull_back(u, by_left), maps[1].pull_back(v, by_right)


def _blocks(n_rows, width):
    """Yield slices of rows for temporary arrays of a given width."""
    size = max(1, _BLOCK // width)
    for begin in range(0, n_rows, size):
        yield slice(begin, begin + size)


def add_rows(total, places, rows):
    """Add rows to those of a total at some places, which may repeat."""
    one_hot = np.ones(len(places)), places, np.arange(len(places) + 1)
    total += scipy.sparse.csr_array(one_hot, shape=(len(places), len(total))).T @ rows


def of_total(logs, total):
    """Return exp(logs), scaled to their known sum so that rounding of large logs cancels."""
    shares = exp_max_one(logs.reshape(1, -1))
    return (shares * (total / shares.sum())).reshape(logs.shape)


def as_array(name, value, dtype=None):
    """Return a value as an array of any shape, or raise and name it; entries may be NaN."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must not be a masked array: missing entries have no meaning here.")
    # Every filter step and every variable's evidence comes here, and check_array is slow.
    if isinstance(value, (np.ndarray, np.number, int, float)) and dtype is None:
        return np.asarray(value)
    if type(value) is np.ndarray and value.dtype == dtype:
        return value
    with naming(name):
        if dtype is None:
            return np.asarray(value)
        check_are_numbers(name, value)
        return check_array(
            value,
            dtype=dtype,
            ensure_2d=False,
            allow_nd=True,
            ensure_all_finite=False,
            ensure_min_samples=0,
        )


def unmasked(values):
    """Return what a masked array holds, 0 where it is masked, and where that is."""
    if not isinstance(values, np.ma.MaskedArray):
        return values, np.False_
    is_masked = np.ma.getmaskarray(values)
    # If all are masked the type is meaningless: numpy.ma.masked is a float.
    return (np.zeros(values.shape, int) if is_masked.all() else values.filled(0)), is_masked


def check_entries(name, values):
    """Raise if sums of squares and products of entries may overflow."""
    largest = np.abs(values).max()
    if largest > _LARGEST:
        raise ValueError(f"{name} must hold entries up to {_LARGEST:g}, got one of {largest:.4g}.")


def check_embeddings(embeddings, name="embeddings", width=None):
    """Return embeddings as a float64 array, or raise and name them."""
    with naming(name), np.errstate(invalid="ignore"):  # inf - inf
        embeddings = check_array(
            as_array(name, embeddings, np.float64), dtype=np.float64, input_name=name
        )
    check_entries(name, embeddings)
    if width is not None and embeddings.shape[1] != width:
        raise ValueError(f"{name} has width {embeddings.shape[1]}; {width} is needed.")
    return embeddings


@dataclass(frozen=True, eq=False)
class Maps:
    """The source of potentials, and its feature maps for the left and the right side.

    Parameters
    ----------
    feature_map : feature map or "exact"
        Fitted.
    sides : tuple of FeatureMap
        Maps of the left and of the right side; empty for "exact".
    sigma : float, default=1.0
        Features are those of exp(sigma^2 u.v).
    log_factor : float, default=None
        That of `Corrected` if the states of both sides are the same; None means no correction.
    """

    feature_map: object
    sides: tuple
    sigma: float = 1.0
    log_factor: float | None = None


def fitted_maps(feature_map, left, right, random_state, sizes=None):
    """Return the `Maps` of both sides for exp(u.v), fitted to all embeddings.

    Parameters
    ----------
    feature_map : feature map, "exact" or None
        A FrozenEstimator stays as it was fitted, with its sigma. None means "exact" if products
        with the matrices of all pairs cost at most about twice those with features, otherwise
        ``AdaptiveRF(256)``.
    left, right : ndarray of shape (n, d)
        Embeddings of the two sides.
    random_state : int, RandomState instance or None
        Replaces the map's own if that is None.
    sizes : list of tuple of int, default=None
        Numbers of left and right states of every pair of variables; None means one pair.
    """
    rng = as_generator(random_state)
    sizes = [(len(left), len(right))] if sizes is None else sizes
    if feature_map is None:
        exact = sum(n * m for n, m in sizes)
        is_cheap = exact <= _N_EXACT / 2 * sum(n + m for n, m in sizes)
        feature_map = "exact" if is_cheap else AdaptiveRF(_N_COMPONENTS)
    if isinstance(feature_map, str):
        if feature_map != "exact":
            raise ValueError(f"feature_map must be a feature map or 'exact', got {feature_map!r}.")
        n_pairs = sum(n * m for n, m in sizes)
        check_fits(16 * n_pairs, f"feature_map='exact' of {n_pairs} pairs of states", "potentials")
        return Maps("exact", ())
    frozen, settings = frozen_kernel(feature_map), {}
    if frozen is None:
        settings = {
            "reserved": ("sigma", "kernel"),
            "hint": "Scale the embeddings, and use a positive feature map of skrf",
            "seed": lambda seed: draw_seed(rng) if seed is None else seed,
            "sigma": 1.0,
            "kernel": "softmax",
        }
    prepared_map = prepared(feature_map, owner="a graphical model", is_deep=True, **settings)
    n_states = len(left) + len(right)
    check_columns(
        prepared_map, n_states, lambda n_columns: 16 * n_states * n_columns, "features of states"
    )
    fit_to(prepared_map, left, right)
    sides = tuple(as_feature_map(prepared_map, keys=keys) for keys in (False, True))
    if not sides[0].is_positive:
        raise ValueError(
            f"feature_map={feature_map!r} is not positive: potentials must be. Use a positive "
            "feature map, such as OptimalPositiveRF or AdaptiveRF."
        )
    if frozen is None:
        return Maps(prepared_map, sides)
    kernel, sigma = frozen
    if kernel != "softmax":
        raise ValueError(
            f"feature_map={feature_map!r} was fitted with kernel={kernel!r}; a graphical model "
            "needs kernel='softmax'."
        )
    if prepared_map.n_features_in_ != left.shape[1]:
        raise ValueError(
            f"feature_map={feature_map!r} was fitted with {prepared_map.n_features_in_} features, "
            f"but the embeddings have width {left.shape[1]}."
        )
    return Maps(prepared_map, sides, sigma)


def log_features(feature_map, embeddings):
    """Return the logarithms of the features of embeddings, (n, D)."""
    return mapped(feature_map, in_range(feature_map, embeddings, "embeddings")).values


def largest(values, tops, margin):
    """Return the index of the maximum along the last axis, given the maxima.

    Paths that visit the same transitions in another order are equally probable but for rounding,
    which must not choose among them: of the values that lack at most a margin, the first is taken.
    """
    return (values >= (tops - margin)[..., None]).argmax(axis=-1)


def largest_log(logs):
    """Return the index and the value of the maximum of logs of probabilities, along the last axis.

    After sums of many of them, some of their last digits are rounding.
    """
    tops = logs.max(axis=-1)
    rounding = 256 * np.finfo(tops.dtype).eps * (1.0 + np.abs(tops))
    return largest(logs, tops, np.where(tops == -np.inf, 0.0, rounding)), tops


def draw_rows(logs, rng):
    """Draw an index from every row of unnormalised log weights."""
    edges = np.cumsum(exp_max_one(np.array(logs)), axis=1)
    points = rng.uniform(size=len(logs)) * edges[:, -1]
    # The first bin edge above the point has weight; the last one guards against rounding.
    return np.minimum((edges <= points[:, None]).sum(axis=1), logs.shape[1] - 1)
