"""Clustered hybrid features (HRF-C): an estimator of its own for every pair of clusters.

A query is non-zero only in the blocks of its cluster, a key in those of its own, so a pair meets in
one block; blocks share their projections.
"""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from scipy.spatial.distance import cdist

from .. import variances
from .._arrays import columns, like, namespace, squared_distances
from ..projections import DenseProjection, Projection
from ._clusters import cluster_centers, on_grid, representatives
from ._coordinates import Coordinates
from ._map import FeatureMap, signed_rows

_CLUSTER_ROWS = 20_000
_FLOOR = 1e-12


@dataclass(frozen=True, eq=False)
class ClusteredMap(FeatureMap):
    """Features in blocks, one for each pair of clusters.

    Parameters
    ----------
    coordinates : Coordinates
        What is projected.
    projection : Projection
        The projections that all blocks share.
    own_centers, other_centers : ndarray of shape (C, d)
        Centres of the clusters of this side and of the other.
    stretches : dict or None
        What `_stretches` returns; None recentres.
    is_keys : bool
        Which side this is.
    """

    coordinates: Coordinates
    projection: Projection
    own_centers: np.ndarray
    other_centers: np.ndarray
    stretches: dict | None
    is_keys: bool
    is_positive = False

    @property
    def columns_per_projection(self):
        """Number of columns that a projection makes in all blocks."""
        n_blocks = len(self.own_centers) * len(self.other_centers)
        return n_blocks * (1 if self.stretches is None else 2)

    def __call__(self, X):
        """Return the `Rows` of X, zero but in the blocks of their cluster."""
        rows = self.coordinates(X)
        products = rows.dot(DenseProjection(self.own_centers))
        xp = namespace(products)
        halves = like(np.sum(self.own_centers**2, axis=1) / 2, products)
        cluster = xp.argmax(products - halves[None, :], axis=1)
        norms2 = rows.squared_norms()
        outer = self.coordinates.outer_term(X) - math.log(self.projection.n_projections) / 2
        outer = outer - norms2 / 2
        make = self._recentred if self.stretches is None else self._stretched
        parts = []
        for pair in self._pairs():
            values, logs = make(rows, norms2, outer, pair)
            member = (cluster == pair[self.is_keys])[:, None]
            parts.append((values, xp.where(member, logs, like(-np.inf, logs))))
        return signed_rows(*(columns(part) for part in zip(*parts, strict=True)))

    def _pairs(self):
        """Return (query cluster, key cluster) in the order of the blocks."""
        sizes = len(self.own_centers), len(self.other_centers)
        n_queries, n_keys = sizes[::-1] if self.is_keys else sizes
        return [(a, b) for a in range(n_queries) for b in range(n_keys)]

    def _recentred(self, rows, norms2, outer, pair):
        own = self.own_centers[pair[self.is_keys]]
        both = own + self.other_centers[pair[not self.is_keys]]
        # K = exp(-|x - y0|^2 / 2) exp(-|y - x0|^2 / 2) exp(|x0 - y0|^2 / 2) exp(u.v), u = x - x0,
        # v = y - y0; the constant is shared by the sides.
        along = rows.dot(DenseProjection(both[None, :]))[:, 0]
        row = outer - norms2 / 2 + along - float(both @ both) / 4
        origin = like(self.projection.multiply(own[None, :])[0], row)
        logs = rows.dot(self.projection) - origin[None, :] + row[:, None]
        return namespace(logs).ones_like(logs), logs

    def _stretched(self, rows, norms2, outer, pair):
        real, imaginary = self.stretches[pair][self.is_keys]
        omega = self.projection.dense()
        level = rows.dot(DenseProjection(omega * real))
        angle = rows.dot(DenseProjection(omega * imaginary))
        dense = rows.values
        if rows.is_sparse:
            dense = like(rows.on_host(), level)
        square = dense**2 @ like(real**2 - imaginary**2, dense)
        xp = namespace(level)
        logs = level + (outer - square / 2)[:, None]
        sign = -1.0 if self.is_keys else 1.0
        return columns([xp.cos(angle), sign * xp.sin(angle)]), columns([logs, logs])

    def exponent_bound(self, X):
        """Return an upper bound of the squared norms of the rows."""
        return self.coordinates.exponent_bound(X)


class Clustered:
    """The steps of a `HybridRF` whose coefficients tell the clusters of a pair."""

    def sizes(self, spec):
        """Return numbers of projections and clusters."""
        width = 1 if self._recentres(spec) else 2
        clusters = min(spec.n_clusters, math.isqrt(spec.n_components // width))
        n_projections = spec.n_components // (width * clusters**2)
        return SimpleNamespace(n_projections=n_projections, clusters=clusters)

    @staticmethod
    def _recentres(spec):
        # The complex diagonal needs two columns; a single one cannot hold them.
        return spec.recenter or spec.n_components == 1

    def learn_from_rows(self, spec, learned, sample):
        """Add the centres of both sides."""
        rng = sample.rng_of_rows()
        queries = self._chosen(spec, learned, sample.queries, sample.weights, rng)
        learned.query_centers_ = _centers(*queries, learned.clusters, rng)
        others, learned.key_centers_ = queries, learned.query_centers_
        if sample.keys is not sample.queries:
            others = self._chosen(spec, learned, sample.keys, sample.key_weights, rng)
            learned.key_centers_ = _centers(*others, learned.clusters, rng)
        centers = learned.query_centers_, learned.key_centers_
        learned.stretches = None
        if not self._recentres(spec):
            learned.stretches = _stretches(queries, others, *centers)

    @staticmethod
    def _chosen(spec, learned, X, weights, rng):
        """Return rows of one side, at most 20,000, as they are projected, and their weights."""
        chosen, weights = representatives(weights, _CLUSTER_ROWS, rng)
        # In float64 before they are shifted: the same choices for float32 rows.
        X = X[chosen].astype(np.float64, copy=False)
        return spec._coordinates(learned).on_host(X), weights

    def assemble(self, spec, learned, draw):
        """Return the maps of both sides."""
        own = spec._coordinates(learned), draw.projection
        sides = learned.query_centers_, learned.key_centers_
        return (
            ClusteredMap(*own, *sides, learned.stretches, is_keys=False),
            ClusteredMap(*own, *sides[::-1], learned.stretches, is_keys=True),
        )

    def log_variance(self, spec, learned, X, Y, geometry):
        """Return the log variance of one projection."""
        centers = learned.query_centers_, learned.key_centers_
        log_own = np.empty_like(geometry.sum2)
        for a, b, in_a, in_b in _pairs_of_clusters(X, Y, *centers):
            x, y = X[in_a], Y[in_b]
            if learned.stretches is None:
                log_size = squared_distances(x - centers[0][a], y - centers[1][b], sign=1)
            else:
                real, imaginary = (
                    squared_distances(x * own, y * other, sign=1)
                    for own, other in zip(*learned.stretches[a, b], strict=True)
                )
                # exp(|a|^2) cosh(|b|^2)
                log_size = real + np.logaddexp(imaginary, -imaginary) - np.log(2)
            log_own[np.ix_(in_a, in_b)] = variances.log_expm1(log_size)
        return -geometry.difference2 + log_own


def _centers(points, weights, n_clusters, rng):
    """Return the centres of clusters of points."""
    grid, origin, step = on_grid(points)
    return origin + step * cluster_centers(grid, weights, n_clusters, rng)


def _invert(values):
    """Return 1 / values where they are not 0, and 0 there."""
    return np.divide(1.0, values, out=np.zeros_like(values), where=values != 0)


def _pairs_of_clusters(queries, others, query_centers, key_centers):
    """Yield the numbers of every pair of clusters, and which queries and keys they hold."""
    nearest_a, nearest_b = (
        cdist(points, centers).argmin(axis=1)
        for points, centers in ((queries, query_centers), (others, key_centers))
    )
    for a in range(len(query_centers)):
        for b in range(len(key_centers)):
            yield a, b, nearest_a == a, nearest_b == b


def _stretches(queries, others, *centers):
    """Return the diagonals of M by pair of clusters: (real, imaginary) of queries and of keys.

    Queries and others are points and their weights.
    """
    table = {}
    (points, weights), (other_points, other_weights) = queries, others
    for a, b, in_a, in_b in _pairs_of_clusters(points, other_points, *centers):
        sides = (points[in_a], weights[in_a]), (other_points[in_b], other_weights[in_b])
        means = [np.average(rows, axis=0, weights=own) for rows, own in sides]
        squares = [
            np.maximum(np.average(rows**2, axis=0, weights=own), _FLOOR) for rows, own in sides
        ]
        size = (squares[1] / squares[0]) ** 0.25
        # Means of nothing but rounding have no sign: they count as equal.
        is_imaginary = means[0] * means[1] >= -_FLOOR * np.prod(np.sqrt(squares), axis=0)
        real, imaginary = np.where(is_imaginary, 0.0, size), np.where(is_imaginary, size, 0.0)
        # 1 / (i r) = -i / r.
        table[a, b] = (real, imaginary), (_invert(real), -_invert(imaginary))
    return table
