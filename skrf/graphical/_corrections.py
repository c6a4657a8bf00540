"""Potentials of features between variables with the same states, where a few would be too large.

The products phi(x).phi(y) of positive features are right in the mean and far too large for a few
states with themselves. A chain stays in one such state, so that its sum is wrong by many nats. So

    psi(x, y) = exp(a(x) + a(y)) phi(x).phi(y) + r(x, y),
    a(x) = min(b, log(K(x, x) / phi(x).phi(x)) / 2).

No state's product with itself exceeds the kernel K. The factor b is the same for all states:
with it, products give exact sums of K over the neighbours of 200 states. The rest r makes pairs of
a state with itself and with near states exact where products are smaller: as |phi(x).phi(y)| is at
most exp(|x - y|^2 / 2) K(x, y) after the cap, they are hardly ever larger.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import gen_batches

from .._sums import LogMatrix, exp_max_one, finite, log_product, log_sum_exp
from .._threads import serial_openmp
from ._potentials import LowRank, Potential, draw_rows, log_features, of_total, pull_back

_N_NEAR = 32  # near states of a state, at most
_MOST_STATES = 20_000  # whose near states are sought, in quadratic time
_APART = 1e-3  # of the extent of the states, by which equally near ones are told apart
_N_SUMS, _N_HEAVY = 200, 100  # states whose sums are exact, and those of them that weigh most
_ROUNDS, _WEIGHINGS, _STEPS = 9, 5, 2  # of the factor, of these with new weights by messages
_MOST = np.log(5.0)  # change of the factor's logarithm in a round
_LEAST_SLOPE = 0.1  # of the sums' logarithms in that of the factor, so that steps stay small
_MARGIN = 1e-9  # share of an exact potential that a rest must exceed
_NEGLIGIBLE = 1e-16
_SURE = 1e-250  # sums of products that have not underflowed
_BLOCK = 2**22  # entries of a temporary array
_REPEATS = 4e-15  # change of a message, relative to its logarithms, that is rounding


def corrected(maps, embeddings):
    """Return maps with the correction for states that are on both sides."""
    sides = tuple(LogMatrix(log_features(side, embeddings)) for side in maps.sides)
    scaled = maps.sigma * embeddings
    near = near_states(scaled)
    return replace(maps, correction=(_factor(Corrected(sides, scaled, 0.0, near)), near))


def _factor(potential):
    """Return the logarithm of the factor that makes sums of some states exact."""
    weights, factor, before, slope = np.zeros(potential.shape[0]), 0.0, None, -2.0
    order = np.argsort(-potential.own_exact, kind="stable")
    for number in range(_ROUNDS):
        if 0 < number <= _WEIGHINGS:
            for _ in range(_STEPS):
                weights = potential.sums(weights)[0]
                weights = weights - finite(weights.max())
            order = np.argsort(-weights, kind="stable")
        change = _missing(potential, weights, *_sampled(order))
        # Pairs that are exact or capped do not follow the factor: where weights stay, steps are
        # those of secants.
        if number > _WEIGHINGS and factor != before[0]:
            slope = np.clip((change - before[1]) / (factor - before[0]), -2.0, -_LEAST_SLOPE)
        before = factor, change
        factor = float(factor - change / slope)
        potential = potential.at(factor)
    return factor


def near_states(embeddings):
    """Return every state, and states that are among the nearest of each other, (n, k).

    Of very many states, whose distances would take too long, only every state itself.
    """
    n = len(embeddings)
    if n > _MOST_STATES:
        return np.arange(n, dtype=np.int32)[:, None]
    size = np.abs(embeddings).max()
    scaled = embeddings / size if size > 0 else embeddings
    number = _APART * scaled.std() * np.linspace(0.0, 1.0, n)
    with serial_openmp():
        points = np.column_stack([scaled, number])
        search = NearestNeighbors(n_neighbors=min(_N_NEAR + 1, n), algorithm="brute").fit(points)
        found = search.kneighbors(points, return_distance=False)
    rows = np.repeat(np.arange(n), found.shape[1])
    codes = np.union1d(rows * n + found.ravel(), np.arange(n) * (n + 1))
    codes = codes[np.isin(codes, codes % n * n + codes // n)]
    rows, columns = codes // n, codes % n
    counts = np.bincount(rows)
    near = np.tile(np.arange(n, dtype=np.int32)[:, None], counts.max())
    near[rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)] = columns
    return near


def _sampled(order):
    """Return states, the first of an order and some of the rest, and logs of how many each is."""
    n_heavy = min(_N_HEAVY, len(order))
    n_rest = min(_N_SUMS - _N_HEAVY, len(order) - n_heavy)
    heavy, rest = order[:n_heavy], order[n_heavy:]
    each = len(rest) / max(n_rest, 1)
    evenly = rest[((np.arange(n_rest) + 0.5) * each).astype(int)]
    logs = np.repeat([0.0, np.log(max(each, 1.0))], [n_heavy, n_rest])
    return np.concatenate([heavy, evenly]), logs


def _missing(potential, weights, states, log_counts):
    """Return the logarithm of the factor of products that makes sums of some states exact."""
    (left, right), added, X = potential.raw, potential.added, potential.embeddings
    exact = LogMatrix(X[states] @ X.T).product(weights)
    products = left.logs[states] + right.turned.product(weights + added)
    products = log_sum_exp(products) + added[states]
    rests = potential.rests[states] + weights[potential.near[states]]
    # Relative to the exact sums: what products give and what they should, but for the state itself.
    own, own_exact = (logs[states] + weights[states] - exact for logs in potential.own)
    is_other = potential.near[states] != states[:, None]
    others = np.where(is_other, rests - exact[:, None], -np.inf)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        given = np.exp(products - exact) - np.exp(own)
        wanted = 1 - np.exp(own_exact) - np.exp(others).sum(axis=1)
        logs = log_counts + 2 * exact
        shares = np.exp(logs - finite(logs.max()))
        change = np.log(shares @ np.maximum(wanted, 0.0)) - np.log(shares @ np.maximum(given, 0.0))
    return float(np.clip(change, -_MOST, _MOST)) if not np.isnan(change) else 0.0


@dataclass(frozen=True, eq=False)
class Corrected(Potential):
    """Features of the same states on both sides, capped, and the rests of near pairs.

    Parameters
    ----------
    raw : tuple of LogMatrix
        Logarithms of the features of both sides, (n, D).
    embeddings : ndarray of shape (n, d)
        Embeddings times sigma, so that their products are the logarithms of the kernel.
    log_factor : float
        The largest a(x).
    near : ndarray of int of shape (n, k)
        Every state and its near states, which are mutual; the state itself fills the rest.
    sigma : float
        Factor of the embeddings of the model.
    """

    raw: tuple
    embeddings: np.ndarray
    log_factor: float
    near: np.ndarray
    sigma: float = 1.0

    is_kept = True
    shape = property(lambda self: 2 * (len(self.embeddings),))

    @classmethod
    def of(cls, maps, sides, embeddings):
        """Return the potential for the features of embeddings under corrected maps."""
        return cls(sides, maps.sigma * embeddings, *maps.correction, maps.sigma)

    def at(self, log_factor):
        """Return the potential with another factor."""
        other = replace(self, log_factor=log_factor)
        names = "_raw_own", "_raw_products", "own_exact"
        vars(other).update({name: getattr(self, name) for name in names})
        return other

    def _exchanged(self):
        return replace(self, raw=self.raw[::-1])

    @cached_property
    def own_exact(self):
        """Logs of the kernel of every state with itself."""
        return np.sum(self.embeddings**2, axis=1)

    @cached_property
    def _raw_own(self):
        return log_sum_exp(self.raw[0].logs + self.raw[1].logs)

    @cached_property
    def _raw_products(self):
        return _products_of(*self.raw, self.near)

    @cached_property
    def added(self):
        """What is added to the logs of every state's features."""
        return np.minimum(self.log_factor, (self.own_exact - self._raw_own) / 2)

    @property
    def own(self):
        """Logs of the products of every state with itself, of features and exact."""
        return self._raw_own + 2 * self.added, self.own_exact

    @cached_property
    def plain(self):
        """The potential without rests."""
        sides = (LogMatrix(side.logs + self.added[:, None]) for side in self.raw)
        return LowRank(tuple(sides), is_kept=False)

    @cached_property
    def _pairs(self):
        """Logs of exact potentials of near pairs, of features' products, and of the rests."""
        near, X = self.near, self.embeddings
        exact = np.stack([np.sum(X * X[column], axis=1) for column in near.T], axis=1)
        products = self._raw_products + self.added[:, None] + self.added[near]
        is_first = np.ones(near.shape, dtype=bool)
        is_own = near == np.arange(len(near))[:, None]
        is_first[is_own & (np.cumsum(is_own, axis=1) > 1)] = False  # what fills the rest
        gap = products - exact
        is_exact = is_first & (gap < -_MARGIN)
        rests = exact + np.log1p(-np.exp(np.where(is_exact, gap, -1.0)))
        return exact, products, np.where(is_exact, rests, -np.inf)

    @property
    def rests(self):
        """Logs of r for near pairs, (n, k); -inf for 0."""
        return self._pairs[2]

    @cached_property
    def _scaled_rests(self):
        """Logs of the largest rest of every state, rests divided by these, and the least sure sum.

        States without rests have nothing to lose: for them any sum is sure.
        """
        n, k = self.near.shape
        top = finite(self.rests.max(axis=1))
        values = np.exp(self.rests - top[:, None]).ravel()
        shape, ends = (n, n), np.arange(0, n * k + 1, k, dtype=self.near.dtype)
        # A copy of the places, because zeros are taken out of it.
        places = self.near.ravel().copy()
        matrix = scipy.sparse.csr_array((values, places, ends), shape=shape)
        matrix.eliminate_zeros()
        return top, matrix, np.where(self.rests.max(axis=1) > -np.inf, _SURE, 0.0)

    def _rows(self, block):
        rows, (exact, _, rests) = self.plain.log_rows(block), self._pairs
        u, place = np.nonzero(rests[block] > -np.inf)
        rows[u, self.near[block][u, place]] = exact[block][u, place]
        return rows

    def sums(self, logs):
        """Return log sum_v psi(u, v) exp(logs_v) for every u, and the same for every feature."""
        features = self.raw[1].turned.product(logs + self.added)
        sums = self.raw[0].product(features) + self.added
        top, matrix, least = self._scaled_rests
        scale = finite(logs.max(axis=-1, keepdims=True))
        of_rests = (matrix @ np.exp(logs - scale).T).T
        with np.errstate(over="ignore", invalid="ignore"):
            both = np.exp(top + scale - sums)
            both *= of_rests
            both = np.log1p(both, out=both)
            both += sums
        lost = np.nonzero((of_rests < least) | ~np.isfinite(both))
        if len(lost[0]):
            *samples, states = lost
            at = *(sample[:, None] for sample in samples), self.near[states]
            rests = log_sum_exp(self.rests[states] + logs[at])
            both[lost] = np.logaddexp(sums[lost], rests)
        return both, features

    def values(self, left, right):
        """Return log psi of paired states, given by index."""
        values, (pair, place) = self.plain.values(left, right), self._found(left, right)
        values[pair] = self._pairs[0][left[pair], place]
        return values

    def _found(self, left, right):
        """Return which pairs are exact, and their places among the near states."""
        is_near = (self.near[left] == right[:, None]) & (self.rests[left] > -np.inf)
        return np.nonzero(is_near)

    def draw(self, left, logs, features, rng):
        """Draw a right state for every left one, in proportion to psi(u, v) exp(logs_v)."""
        n_features = len(features)
        of_rests = self.rests[left] + logs[self.near[left]]
        way = draw_rows(np.hstack([self.plain.sides[0].logs[left] + features, of_rests]), rng)
        feature, place = np.minimum(way, n_features - 1), np.maximum(way - n_features, 0)
        drawn = draw_rows(self.plain.sides[1].turned.logs[feature] + logs, rng)
        return np.where(way < n_features, drawn, self.near[left, place])

    def log_paths(self, length):
        """Return the log sum over the paths of a chain of more than one variable."""
        logs, total = np.zeros(len(self.near)), 0.0
        for done in range(1, length):
            before, (logs, _) = logs, self.sums(logs)
            growth = logs.max()
            logs = logs - growth
            total += growth
            room = _REPEATS * (1 + np.abs(growth) + np.abs(logs))
            if done > 1 and (np.abs(logs - before) <= room).all():
                total += (length - 1 - done) * growth
                break
        return float(total + log_sum_exp(logs))

    # ---------------------------------------------------------------- counts, for gradients

    def counts(self, left, right, weights):
        """Return the counts of weighted pairs of states, as `pull_back` expects them."""
        of_pairs, (pair, place) = np.zeros(self.near.shape), self._found(left, right)
        np.add.at(of_pairs, (left[pair], place), weights[pair])
        rest = np.setdiff1d(np.arange(len(left)), pair)
        return [*self.plain.counts(left[rest], right[rest], weights[rest]), of_pairs]

    def expected(self, left, right, from_left, from_right, total):
        """Return the expected counts of pairs over edges, given the logs that meet at each edge.

        Parameters
        ----------
        left, right : ndarray of shape (n_edges, n)
            Logs that arrive at both sides.
        from_left, from_right : ndarray of shape (n_edges, D)
            Features of both, as returned by `sums`.
        total : float
            What the counts of all edges sum to.
        """
        (_, products, rests), near = self._pairs, self.near
        meeting = np.full(near.shape, -np.inf)
        for at, other in zip(left, right, strict=True):
            np.logaddexp(meeting, at[:, None] + other[near], out=meeting)
        sides = zip(self.plain.sides, (left, right), (from_right, from_left), strict=True)
        by_left, by_right = (
            of_total(np.hstack([side.logs + log_product(at.T, other), meeting + rests]), total)
            for side, at, other in sides
        )
        by_left, of_rests = np.hsplit(by_left, [from_left.shape[1]])
        # What goes through features is a known part of an exact pair and does not change with them.
        through = of_rests * np.exp(np.where(rests > -np.inf, products - rests, -np.inf))
        u, place = np.nonzero(through > _NEGLIGIBLE * total)
        less_left, less_right = self.plain.counts(u, near[u, place], through[u, place])
        by_right = by_right[:, : from_left.shape[1]]
        return [by_left - less_left, by_right - less_right, through + of_rests]

    def pull_back(self, maps, u, v, by_left, by_right, of_pairs):
        """Return gradients with respect to the embeddings of both sides, which are the same."""
        n, k = self.near.shape
        is_capped = self.added < self.log_factor
        # a(x) counts on both sides; it is half of |x|^2 less the log of phi(x)^2.
        total = np.where(is_capped, by_left.sum(axis=1) + by_right.sum(axis=1), 0.0)
        shares = exp_max_one(self.raw[0].logs + self.raw[1].logs)
        shares *= (total / shares.sum(axis=1) / 2)[:, None]
        of_left, of_right = pull_back(maps, u, v, by_left - shares, by_right - shares)
        ends = np.arange(0, n * k + 1, k)
        pairs = scipy.sparse.csr_array((of_pairs.ravel(), self.near.ravel(), ends), shape=(n, n))
        X = self.sigma * self.embeddings
        return of_left + pairs @ X + total[:, None] * X, of_right + pairs.T @ X


def _products_of(left, right, near):
    """Return the logs of the products of features of near states, (n, k)."""
    n, k = near.shape
    products = np.empty((n, k))
    for rows in gen_batches(n, max(1, _BLOCK // (k * left.values.shape[1]))):
        there = near[rows]
        values = np.einsum("nd,nkd->nk", left.values[rows], right.values[there])
        lost = values < _SURE
        with np.errstate(divide="ignore"):
            logs = np.log(values) + left.top[rows, None] + right.top[there]
        u, place = np.nonzero(lost)
        logs[lost] = log_sum_exp(left.logs[rows][u] + right.logs[there[u, place]])
        products[rows] = logs
    return products
