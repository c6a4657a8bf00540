"""Potentials of features between variables with the same states, where a few would be too large.

The products phi(x).phi(y) of positive features are right in the mean and far too large for a few
states with themselves. A chain stays in one such state, so that its sum is wrong by many nats. So

    psi(x, y) = exp(a(x) + a(y)) phi(x).phi(y) + r(x) if x = y,
    a(x) = min(b, log(K(x, x) / phi(x).phi(x)) / 2).

No state's product with itself exceeds the kernel K, and the remainder r makes it exact where it is
smaller. The factor b is the same for all states: with it, products give exact sums of K over the
neighbours of 200 states.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from .._sums import LogMatrix, exp_max_one, finite, log_product, log_sum_exp
from ._error import representatives
from ._potentials import LowRank, Potential, draw_rows, log_features, of_total, pull_back

_N_SUMS = 200  # states whose sums are exact, half of them those that weigh most
_ROUNDS, _WEIGHINGS, _STEPS = 9, 5, 2  # of the factor, of these with new weights by messages
_MOST = np.log(5.0)  # change of the factor's logarithm in a round
_LEAST_SLOPE = 0.1  # of the sums' logarithms in that of the factor, so that steps stay small
_MARGIN = 1e-9  # share of an exact potential that a remainder must exceed
_NEGLIGIBLE = 1e-16


def corrected(maps, embeddings):
    """Return maps with the correction for states that are on both sides."""
    sides = tuple(LogMatrix(log_features(side, embeddings)) for side in maps.sides)
    return replace(maps, log_factor=_log_factor(Corrected.of(maps, sides, embeddings)))


def _log_factor(potential):
    """Return the logarithm of the factor that makes sums of some states exact."""
    weights, factor, before, slope = np.zeros(potential.shape[0]), 0.0, None, -2.0
    order = np.argsort(-potential.log_kernel, kind="stable")
    for number in range(_ROUNDS):
        if 0 < number <= _WEIGHINGS:
            for _ in range(_STEPS):
                weights = potential.sums(weights)[0]
                weights = weights - finite(weights.max())
            order = np.argsort(-weights, kind="stable")
        change = _log_change(potential, weights, *representatives(order, _N_SUMS))
        # Pairs that are exact or capped do not follow the factor: where weights stay, steps are
        # those of secants.
        if number > _WEIGHINGS and factor != before[0]:
            slope = np.clip((change - before[1]) / (factor - before[0]), -2.0, -_LEAST_SLOPE)
        before = factor, change
        factor = float(factor - change / slope)
        potential = replace(potential, log_factor=factor)
    return factor


def _log_change(potential, weights, states, log_counts):
    """Return the logarithm of the factor of products that makes sums of some states exact."""
    (left, right), log_scales, X = potential.raw, potential.log_scales, potential.embeddings
    exact = LogMatrix(X[states] @ X.T).product(weights)
    products = left.logs[states] + right.turned.product(weights + log_scales)
    products = log_sum_exp(products) + log_scales[states]
    # Relative to the exact sums: those of products and those wanted, without the state itself.
    relative = weights[states] - exact
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        sums = np.exp(products - exact) - np.exp(potential.log_products[states] + relative)
        wanted = 1 - np.exp(potential.log_kernel[states] + relative)
        logs = log_counts + 2 * exact
        shares = np.exp(logs - finite(logs.max()))
        change = np.log(shares @ np.maximum(wanted, 0.0)) - np.log(shares @ np.maximum(sums, 0.0))
    return float(np.clip(change, -_MOST, _MOST)) if not np.isnan(change) else 0.0


@dataclass(frozen=True, eq=False)
class Corrected(Potential):
    """Features of the same states on both sides, capped, and exact pairs of a state with itself.

    Parameters
    ----------
    raw : tuple of LogMatrix
        Logarithms of the features of both sides, (n, D).
    raw_products : ndarray of shape (n,)
        Logarithms of the products of every state's features of both sides.
    embeddings : ndarray of shape (n, d)
        Embeddings times sigma, so that their products are the logarithms of the kernel.
    log_factor : float
        The largest a(x).
    sigma : float
        Factor of the embeddings of the model.
    """

    raw: tuple
    raw_products: np.ndarray
    embeddings: np.ndarray
    log_factor: float
    sigma: float = 1.0

    is_kept = True
    shape = property(lambda self: 2 * (len(self.embeddings),))

    @classmethod
    def of(cls, maps, sides, embeddings):
        """Return the potential for the features of embeddings; a map without a factor has 0."""
        products, log_factor = log_sum_exp(sides[0].logs + sides[1].logs), maps.log_factor or 0.0
        return cls(sides, products, maps.sigma * embeddings, log_factor, maps.sigma)

    def _exchanged(self):
        return replace(self, raw=self.raw[::-1])

    @cached_property
    def log_kernel(self):
        """Logs of the kernel of every state with itself."""
        return np.sum(self.embeddings**2, axis=1)

    @cached_property
    def log_scales(self):
        """The a(x), which are added to the logs of every state's features."""
        return np.minimum(self.log_factor, (self.log_kernel - self.raw_products) / 2)

    @property
    def log_products(self):
        """Logs of the products of every state's capped features."""
        return self.raw_products + 2 * self.log_scales

    @cached_property
    def capped(self):
        """The potential without remainders."""
        sides = (LogMatrix(side.logs + self.log_scales[:, None]) for side in self.raw)
        return LowRank(tuple(sides), is_kept=False)

    @cached_property
    def remainders(self):
        """Logs of r of every state, -inf for 0."""
        gaps = self.log_products - self.log_kernel
        logs = self.log_kernel + np.log1p(-np.exp(np.where(gaps < -_MARGIN, gaps, -1.0)))
        return np.where(gaps < -_MARGIN, logs, -np.inf)

    def _rows(self, block):
        rows, states = self.capped.log_rows(block), np.arange(self.shape[0])[block]
        is_exact = np.flatnonzero(self.remainders[states] > -np.inf)
        rows[is_exact, states[is_exact]] = self.log_kernel[states[is_exact]]
        return rows

    def sums(self, logs):
        """Return log sum_v psi(u, v) exp(logs_v) for every u, and the same for every feature."""
        features = self.raw[1].turned.product(logs + self.log_scales)
        sums = self.raw[0].product(features) + self.log_scales
        return np.logaddexp(sums, self.remainders + logs), features

    def values(self, left, right):
        """Return log psi of paired states, given by index."""
        is_exact = self._is_exact(left, right)
        return np.where(is_exact, self.log_kernel[left], self.capped.values(left, right))

    def _is_exact(self, left, right):
        return (left == right) & (self.remainders[left] > -np.inf)

    def draw(self, left, logs, features, rng):
        """Draw a right state for every left one, in proportion to psi(u, v) exp(logs_v)."""
        staying = self.remainders[left] + logs[left]
        ways = np.column_stack([self.capped.sides[0].logs[left] + features, staying])
        way = draw_rows(ways, rng)
        feature = np.minimum(way, len(features) - 1)
        drawn = draw_rows(self.capped.sides[1].turned.logs[feature] + logs, rng)
        return np.where(way < len(features), drawn, left)

    # ---------------------------------------------------------------- counts, for gradients

    def counts(self, left, right, weights):
        """Return the counts of weighted pairs of states, as `pull_back` expects them."""
        is_exact = self._is_exact(left, right)
        of_states = np.bincount(left[is_exact], weights[is_exact], self.shape[0])
        pairs = (values[~is_exact] for values in (left, right, weights))
        return [*self.capped.counts(*pairs), of_states]

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
        staying = log_sum_exp(left + right, axis=0) + self.remainders
        sides = zip(self.capped.sides, (left, right), (from_right, from_left), strict=True)
        (by_left, of_remainders), (by_right, _) = (
            np.split(of_total(np.column_stack([logs, staying]), total), [-1], axis=1)
            for logs in (side.logs + log_product(at.T, other) for side, at, other in sides)
        )
        # What goes through features is a known part of an exact pair and does not change with them.
        ratios = np.where(self.remainders > -np.inf, self.log_products - self.remainders, -np.inf)
        through = of_remainders[:, 0] * np.exp(ratios)
        states = np.flatnonzero(through > _NEGLIGIBLE * total)
        less_left, less_right = self.capped.counts(states, states, through[states])
        return [by_left - less_left, by_right - less_right, through + of_remainders[:, 0]]

    def pull_back(self, maps, u, v, by_left, by_right, of_states):
        """Return gradients with respect to the embeddings of both sides, which are the same."""
        is_capped = self.log_scales < self.log_factor
        # a(x) counts on both sides; it is half of |x|^2 less the log of phi(x)^2.
        total = np.where(is_capped, by_left.sum(axis=1) + by_right.sum(axis=1), 0.0)
        shares = exp_max_one(self.raw[0].logs + self.raw[1].logs)
        shares *= (total / shares.sum(axis=1) / 2)[:, None]
        of_left, of_right = pull_back(maps, u, v, by_left - shares, by_right - shares)
        by_embeddings = self.sigma * self.embeddings
        of_left = of_left + (of_states + total)[:, None] * by_embeddings
        return of_left, of_right + of_states[:, None] * by_embeddings
