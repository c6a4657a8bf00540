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
from .._arrays import columns, constant, like, namespace, squared_distances
from .._sums import Rows
from ..projections import DenseProjection, Projection
from ._clusters import cluster_centers
from ._coordinates import Coordinates
from ._map import LARGEST_NORM, FeatureMap

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
        (real, imaginary) diagonals by pair (query cluster, key cluster); None recentres.
    is_softmax, is_keys : bool
        As in `GaussianMap`.
    """

    coordinates: Coordinates
    projection: Projection
    own_centers: np.ndarray
    other_centers: np.ndarray
    stretches: dict | None
    is_softmax: bool
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
        outer = -norms2 / 2 - math.log(self.projection.n_projections) / 2
        if self.is_softmax:
            outer = outer + self.coordinates.unshifted(X).squared_norms() / 2
        make = self._recentred if self.stretches is None else self._stretched
        parts = []
        for pair in self._pairs():
            logs, sign = make(rows, norms2, outer, pair)
            member = (cluster == pair[self.is_keys])[:, None]
            parts.append((xp.where(member, logs, like(-np.inf, logs)), sign))
        logs = columns([part for part, _ in parts])
        scale = constant(xp.max(logs, axis=1, keepdims=True))
        values = xp.exp(logs - scale)
        if self.stretches is not None:
            values = values * columns([sign for _, sign in parts])
        return Rows(values, scale)

    def _pairs(self):
        """Return (query cluster, key cluster) in the order of the blocks."""
        sizes = len(self.own_centers), len(self.other_centers)
        n_queries, n_keys = sizes[::-1] if self.is_keys else sizes
        return [(a, b) for a in range(n_queries) for b in range(n_keys)]

    def _recentred(self, rows, norms2, outer, pair):
        own, other = (
            self.own_centers[pair[self.is_keys]],
            self.other_centers[pair[not self.is_keys]],
        )
        # K = exp(-|x - y0|^2 / 2) exp(-|y - x0|^2 / 2) exp(|x0 - y0|^2 / 2) exp(u.v), u = x - x0,
        # v = y - y0; the constant is shared by the sides.
        along_own, along_other = (
            rows.dot(DenseProjection(center[None, :]))[:, 0] for center in (own, other)
        )
        shifted2 = norms2 - 2 * along_own + float(own @ own)
        apart = own - other
        row = outer - shifted2 / 2 + along_other - float(other @ other) / 2
        row = row + float(apart @ apart) / 4
        origin = like(self.projection.multiply(own[None, :])[0], row)
        return rows.dot(self.projection) - origin[None, :] + row[:, None], None

    def _stretched(self, rows, norms2, outer, pair):
        """Return logs of sizes, for both columns of a projection, and their factors."""
        real, imaginary = self.stretches[pair]
        if self.is_keys:
            # 1 / (i r) = -i / r.
            real, imaginary = _invert(real), -_invert(imaginary)
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
        return columns([logs, logs]), columns([xp.cos(angle), sign * xp.sin(angle)])

    def exponent_bound(self, X):
        """Return an upper bound of the squared norms of the rows."""
        return self.coordinates.exponent_bound(X, LARGEST_NORM**2, is_softmax=self.is_softmax)


class Clustered:
    """The steps of a `HybridRF` whose coefficients tell the clusters of a pair."""

    needs_data = True

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

    def is_mergeable(self, spec):
        """Return False: clusters are of rows."""
        return False

    def learn_from_rows(self, spec, learned, sample):
        """Add the centres of both sides."""
        rng = sample.rng_of_rows()
        queries = self._chosen(spec, learned, sample.queries, rng)
        learned.query_centers_ = cluster_centers(queries, learned.clusters, rng)
        others, learned.key_centers_ = queries, learned.query_centers_
        if sample.keys is not sample.queries:
            others = self._chosen(spec, learned, sample.keys, rng)
            learned.key_centers_ = cluster_centers(others, learned.clusters, rng)
        centers = learned.query_centers_, learned.key_centers_
        learned.stretches = None
        if not self._recentres(spec):
            learned.stretches = _stretches(queries, others, *centers)

    @staticmethod
    def _chosen(spec, learned, X, rng):
        if X.shape[0] > _CLUSTER_ROWS:
            X = X[rng.choice(X.shape[0], _CLUSTER_ROWS, replace=False)]
        # In float64 before they are shifted: the same choices for float32 rows.
        return spec._coordinates(learned).on_host(X.astype(np.float64, copy=False))

    def draw(self, spec, learned, draw, seed):
        """Add nothing: blocks share the projections."""

    def assemble(self, spec, learned, draw):
        """Return the maps of both sides."""
        sides = learned.query_centers_, learned.key_centers_
        return tuple(
            ClusteredMap(
                spec._coordinates(learned),
                draw.projection,
                *centers,
                learned.stretches,
                spec.kernel == "softmax",
                is_keys,
            )
            for centers, is_keys in ((sides, False), (sides[::-1], True))
        )

    def log_variance(self, spec, learned, X, Y, geometry):
        """Return the log variance of one projection."""
        centers = learned.query_centers_, learned.key_centers_
        labels = [
            cdist(points, own).argmin(axis=1) for points, own in zip((X, Y), centers, strict=True)
        ]
        log_own = np.empty_like(geometry.sum2)
        for a in range(len(centers[0])):
            for b in range(len(centers[1])):
                block = np.ix_(labels[0] == a, labels[1] == b)
                x, y = X[labels[0] == a], Y[labels[1] == b]
                if learned.stretches is None:
                    u, v = x - centers[0][a], y - centers[1][b]
                    log_own[block] = variances.log_expm1(squared_distances(u, v, sign=1))
                else:
                    real, imaginary = learned.stretches[a, b]
                    sizes = [
                        squared_distances(x * part, y * inverse, sign=1)
                        for part, inverse in (
                            (real, _invert(real)),
                            (imaginary, -_invert(imaginary)),
                        )
                    ]
                    # exp(|a|^2) cosh(|b|^2) - 1
                    log_cosh = np.logaddexp(sizes[1], -sizes[1]) - np.log(2)
                    log_own[block] = variances.log_expm1(sizes[0] + log_cosh)
        return -geometry.difference2 + log_own


def _invert(values):
    """Return 1 / values where they are not 0, and 0 there."""
    return np.divide(1.0, values, out=np.zeros_like(values), where=values != 0)


def _stretches(queries, others, query_centers, key_centers):
    """Return {(a, b): (real, imaginary) diagonal of M} for every pair of clusters."""
    members = [
        [points[cdist(points, centers).argmin(axis=1) == k] for k in range(len(centers))]
        for points, centers in ((queries, query_centers), (others, key_centers))
    ]
    table = {}
    for a, x in enumerate(members[0]):
        for b, y in enumerate(members[1]):
            squares = [np.maximum(np.mean(points**2, axis=0), _FLOOR) for points in (x, y)]
            size = (squares[1] / squares[0]) ** 0.25
            is_imaginary = x.mean(axis=0) * y.mean(axis=0) > 0
            table[a, b] = np.where(is_imaginary, 0.0, size), np.where(is_imaginary, size, 0.0)
    return table
