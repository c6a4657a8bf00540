"""Clustered hybrid features (HRF-C): a separate estimator for every pair of clusters.

A query is nonzero only in the blocks of its cluster, and a key in those of its own, so a pair meets
in exactly one block; blocks share their projections.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace

import numpy as np
from scipy.spatial.distance import cdist

from .. import variances
from .._arrays import Kept, library, like, namespace, squared_distances
from .._sums import Rows
from .._validation import check_integer
from ..projections import DenseProjection, Projection
from ._affine import Affine
from ._clusters import cluster_centers, nearest
from ._map import FeatureMap, signed_rows
from .exponential import Exponential, optimal_rho
from .gaussian import CenteredRandomFeatures
from .streams import CENTERS

_CLUSTER_ROWS = 20_000
_FLOOR = 1e-12
_ALIKE = 1e-5  # share of squared distances that float32 rounds, so that float64 counts it as well


@dataclass(frozen=True, eq=False)
class ClusteredMap(FeatureMap):
    """Base: features in blocks, one for each pair of clusters.

    Parameters
    ----------
    affine : Affine
        Coordinates that are projected.
    projection : Projection
        The projections that all blocks share.
    own_centers, other_centers : ndarray of shape (C, d)
        Centres of the clusters of this side and of the other.
    is_keys : bool
        Which side this is.
    """

    affine: Affine
    projection: Projection
    own_centers: np.ndarray
    other_centers: np.ndarray
    is_keys: bool
    columns_per_pair = 1  # columns per projection and pair of clusters

    @property
    def columns_per_projection(self):
        """Number of columns per projection in all blocks."""
        return len(self.own_centers) * len(self.other_centers) * self.columns_per_pair

    @cached_property
    def _sides(self):
        """Clusters of this side, and of the other, of every pair in the order of the blocks."""
        pairs = np.indices((len(self.own_centers), len(self.other_centers)))
        return (pairs.swapaxes(1, 2) if self.is_keys else pairs).reshape(2, -1)

    def _clusters(self, rows):
        """Return the cluster of every row, the first of those that are equally near."""
        products = rows.dot(DenseProjection(self.own_centers))
        halves = np.sum(self.own_centers**2, axis=1) / 2
        # Half of the squared distances, less a term of the row.
        distances = like(halves, products)[None, :] - products
        xp = namespace(distances)
        reach = _ALIKE * (rows.squared_norms() / 2 + float(halves.max()))
        least = xp.min(distances, axis=1) + reach
        return xp.argmax(xp.astype(distances <= least[:, None], xp.int8), axis=1)

    def _sees(self, rows):
        """Return which pairs of clusters rows are in, (n, n_pairs, 1)."""
        clusters = self._clusters(rows)
        return clusters[:, None, None] == like(self._sides[0], clusters)[None, :, None]


@dataclass(frozen=True, eq=False)
class RecentredMap(ClusteredMap):
    """Positive features of every pair of clusters about its own origin; 0 in the other blocks.

    With centres x0 and y0, u = x - x0 and v = y - y0, the kernel is exp(-|x|^2 / 2 + x.y0)
    exp(-|y|^2 / 2 + x0.y - x0.y0) exp(u.v), and exp(u.v) the mean of products of optimal positive
    features, D exp(A |w|^2 + B w.u - |u|^2 / 2). Each side takes half of the constants.

    Parameters
    ----------
    roots : ndarray of shape (C_queries, C_keys)
        The root rho of every pair: A = (1 - 1 / rho) / 8, B^2 = 1 - 4A, D = B^(d / 2).
    """

    roots: np.ndarray
    is_positive = True
    _kept: Kept = field(init=False, default_factory=Kept)

    @cached_property
    def _sums(self):
        """x0 + y0 of every pair, which multiply the rows."""
        first, other = self._sides
        return DenseProjection(self.own_centers[first] + self.other_centers[other])

    @cached_property
    def _bias(self):
        """Terms that columns add to every row, (n_pairs, n_projections)."""
        A = (1 - 1 / self.roots.reshape(-1, 1)) / 8
        origins = self.projection.multiply(self.own_centers[self._sides[0]])
        terms = A * self.projection.squared_norms - self._slopes[:, None] * origins
        constants = self._sums.squared_norms / 4 + math.log(self.projection.n_projections) / 2
        return terms + self.n_features / 4 * np.log1p(-4 * A) - constants[:, None]

    @cached_property
    def _slopes(self):
        """B of every pair."""
        return np.sqrt((1 + 1 / self.roots.ravel()) / 2)

    def __call__(self, X):
        """Return the `Rows` of X."""
        rows = self.affine(X)
        row = self.affine.outer_term(X) - rows.squared_norms()
        levels = rows.dot(self._sums) + row[:, None]
        logs = rows.dot(self.projection)[:, None, :] * like(self._slopes, levels)[:, None]
        do, bias = library(logs), self._kept.like(logs, lambda: self._bias)
        logs = do.add(do.add(logs, levels[:, :, None]), bias)
        if len(self.own_centers) > 1:
            logs = namespace(X).where(self._sees(rows), logs, like(-np.inf, logs))
        return Rows(namespace(X).reshape(logs, (X.shape[0], self.n_columns)))

    def write(self, X, out, room, lower=None):
        """Write the logarithms of rows on the host, computing only blocks that see a row."""
        if len(self.own_centers) == 1:
            return super().write(X, out, room, lower)
        out[...] = -np.inf
        blocks = out.reshape(len(out), *self.roots.shape, -1).swapaxes(1, 1 + self.is_keys)
        clusters = self._clusters(self.affine(X))
        for c, (columns, cluster_map) in enumerate(self._by_cluster):
            rows = np.flatnonzero(clusters == c)
            logs = cluster_map(X[rows]).values
            if lower is not None:
                logs -= lower[columns].astype(logs.dtype)
            blocks[rows, c] = logs.reshape(-1, *blocks.shape[2:])
        return None

    @cached_property
    def _by_cluster(self):
        """Columns of each cluster of this side, and their map."""
        numbers, axis = np.arange(self.n_columns).reshape(*self.roots.shape, -1), int(self.is_keys)
        pairs = []
        for c, center in enumerate(self.own_centers):
            cluster_map = replace(self, own_centers=center[None], roots=self.roots.take([c], axis))
            pairs.append((numbers.take(c, axis).ravel(), cluster_map))
        return pairs

    def pull_back(self, X, by_values):
        """Return the gradient with respect to X, given the gradient with respect to values."""
        xp, rows = namespace(X), self.affine(X)
        by_logs = xp.reshape(by_values, (X.shape[0], *self._bias.shape))
        by_logs = xp.where(self._sees(rows), by_logs, like(0.0, by_logs))
        by_products, totals = like(self._slopes, by_logs) @ by_logs, xp.sum(by_logs, axis=2)
        total = xp.sum(totals, axis=1, keepdims=True)
        by_rows = self.projection.pull_back(by_products) + self._sums.pull_back(totals)
        by_rows = by_rows - 2 * total * rows.values
        if self.affine.is_softmax:
            by_rows = by_rows + total * self.affine.unshifted(X).values
        return self.affine.pull_back(by_rows)

    def exponent_bound(self, X):
        """Return an upper bound of the squared norms of rows, slopes and biases."""
        reach = max(self._slopes.max() ** 2, abs(self._bias).max())
        return max(super().exponent_bound(X), float(reach))


@dataclass(frozen=True, eq=False)
class StretchedMap(ClusteredMap):
    """Features of every pair of clusters with a complex diagonal scaling, which have signs.

    Parameters
    ----------
    stretches : tuple of ndarray of shape (C_queries, C_keys, 2, d)
        The result of `_stretches`.
    """

    stretches: tuple
    is_positive = False
    columns_per_pair = 2

    def __call__(self, X):
        """Return the `Rows` of X, zero except in the blocks of their cluster."""
        xp, rows = namespace(X), self.affine(X)
        outer = self.affine.outer_term(X) - math.log(self.projection.n_projections) / 2
        outer = outer - rows.squared_norms() / 2
        real, imaginary = (
            self.stretches[self.is_keys][:, :, i].reshape(-1, self.n_features) for i in (0, 1)
        )
        logs, angles = self._products(rows, real), self._products(rows, imaginary)
        dense = like(rows.on_host(), logs) if rows.is_sparse else rows.values
        squares = dense**2 @ like(real**2 - imaginary**2, dense).T
        logs = logs + (outer[:, None] - squares / 2)[:, :, None]
        logs = xp.where(self._sees(rows), logs, like(-np.inf, logs))
        sines = (-1.0 if self.is_keys else 1.0) * xp.sin(angles)
        values, logs = xp.concat([xp.cos(angles), sines], axis=2), xp.concat([logs, logs], axis=2)
        shape = X.shape[0], self.n_columns
        return signed_rows(xp.reshape(values, shape), xp.reshape(logs, shape))

    def exponent_bound(self, X):
        """Return an upper bound of the squared norms of the rows, stretched or not."""
        reach = float(np.abs(self.stretches[self.is_keys]).max(initial=1.0))
        return super().exponent_bound(X) * reach * reach

    def _products(self, rows, stretches):
        """Return products with the projections, stretched for every pair, (n, n_pairs, m)."""
        stretched = self.projection.dense() * stretches[:, None]
        products = rows.dot(DenseProjection(stretched.reshape(-1, self.n_features)))
        return namespace(products).reshape(products, (-1, len(stretches), len(stretched[0])))


def check_clusters(n_clusters):
    """Raise unless the number of clusters is one, or one per side."""
    if isinstance(n_clusters, tuple):
        if len(n_clusters) != 2:
            raise ValueError(f"n_clusters must be a number or a pair of them, got {n_clusters!r}.")
        for value in n_clusters:
            check_integer("n_clusters", value)


class ClusterSteps(CenteredRandomFeatures):
    """The steps of ``HybridRF(coefficients="clustered")``."""

    _looks_at_rows = _needs_data = True
    _columns_per_projection = 1

    @property
    def _is_positive(self):
        """Whether the clusters are recentred."""
        # The complex diagonal needs two columns; a single one cannot hold them.
        return self.recenter or self.n_components == 1

    def _sizes(self):
        """Return the numbers of projections, and of clusters of both sides."""
        most = int(self.n_components) // (1 if self._is_positive else 2)
        is_pair = isinstance(self.n_clusters, tuple)
        p, q = self.n_clusters if is_pair else (int(self.n_clusters),) * 2
        few = min(p, q, math.isqrt(most))
        many = few if p == q else min(max(p, q), most // few)
        clusters = (few, many) if p <= q else (many, few)
        return SimpleNamespace(n_projections=most // math.prod(clusters), clusters=clusters)

    def _n_columns(self, n_rows):
        sizes = self._sizes()
        per_pair = sizes.n_projections * (1 if self._is_positive else 2)
        return per_pair * _n_pairs(sizes.clusters, n_rows)

    def _n_bytes(self, parameters, sample):
        n_rows = min(sample.queries.shape[0], sample.keys.shape[0])
        per_pair = 8 * (1 if self._is_positive else 4 * parameters.n_features)
        return super()._n_bytes(parameters, sample) + per_pair * _n_pairs(
            parameters.clusters, n_rows
        )

    def _learn_from_rows(self, parameters, sample):
        queries = self._points_of(parameters, sample)
        p, q = parameters.clusters
        parameters.query_centers_ = cluster_centers(*queries, p, sample.rng(CENTERS, 0))
        keys, parameters.key_centers_ = queries, parameters.query_centers_
        if sample.has_keys:
            keys = self._points_of(parameters, sample, keys=True)
        if keys is not queries or p != q:
            parameters.key_centers_ = cluster_centers(*keys, q, sample.rng(CENTERS, 1))
        centers = parameters.query_centers_, parameters.key_centers_
        if self._is_positive:
            parameters.rho_ = _roots(queries, keys, *centers)
        else:
            parameters.stretches = _stretches(queries, keys, *centers)

    def _points_of(self, parameters, sample, *, keys=False):
        """Return at most 20,000 rows of one side in projected coordinates, and their weights."""
        X, weights, _ = sample.representatives(_CLUSTER_ROWS, keys=keys)
        return self._affine(parameters).on_host(X), weights

    def _assemble(self, parameters, draw):
        kind = RecentredMap if self._is_positive else StretchedMap
        of_pairs = parameters.rho_ if self._is_positive else parameters.stretches
        shared = self._affine(parameters), draw.projection
        sides = parameters.query_centers_, parameters.key_centers_
        return (
            kind(*shared, *sides, False, of_pairs),
            kind(*shared, *sides[::-1], True, of_pairs),
        )

    def _check_variance(self, parameters):
        self._check_is_dense()
        if self.coupling != "iid":
            raise NotImplementedError(
                f"No closed form is known for HybridRF with coupling={self.coupling!r}. Known: "
                "'iid'. theory.compare estimates the error from draws."
            )

    def _variance_is_exact(self, parameters):
        return True

    def _log_variance(self, fitted, X, Y):
        parameters = fitted.parameters
        self._check_variance(parameters)
        logs = self._log_own(parameters, *self._dense_sides(parameters, X, Y))
        return logs - np.log(parameters.n_projections) + self._log_outer_factor(parameters, X, Y)

    def _log_own(self, parameters, X, Y):
        """Return the log variance of one projection."""
        centers = parameters.query_centers_, parameters.key_centers_
        a, b = map(nearest, (X, Y), centers)
        if self._is_positive:
            geometry = variances.PairGeometry.of(X - centers[0][a], Y - centers[1][b])
            logs = Exponential((1 - 1 / parameters.rho_[np.ix_(a, b)]) / 8).log_own(geometry)
            return logs - squared_distances(X, Y)
        logs = -squared_distances(X, Y)
        for i, j in np.ndindex(len(centers[0]), len(centers[1])):
            in_i, in_j = np.flatnonzero(a == i), np.flatnonzero(b == j)
            (r, s), (t, u) = (side[i, j] for side in parameters.stretches)
            real = squared_distances(X[in_i] * r, Y[in_j] * t, sign=1)
            imaginary = squared_distances(X[in_i] * s, Y[in_j] * u, sign=1)
            # exp(|a|^2) cosh(|b|^2)
            excess = real + np.logaddexp(imaginary, -imaginary) - np.log(2)
            logs[np.ix_(in_i, in_j)] += variances.log_expm1(excess)
        return logs


def _n_pairs(clusters, n_rows):
    """Return the number of pairs of clusters after a fit to this many rows."""
    return math.prod(min(count, n_rows) for count in clusters)


def _roots(queries, keys, *centers):
    """Return the root of optimal positive features for every pair of clusters.

    Queries and others are points and their weights.
    """
    spreads = []
    for (points, weights), side_centers in zip((queries, keys), centers, strict=True):
        distances2 = cdist(points, side_centers, "sqeuclidean")
        spreads.append(np.sum(_shares(points, weights, side_centers) * distances2.T, axis=1))
    # Centres are means, so the mean of |u + v|^2 is that of |u|^2 + |v|^2.
    sums = np.add.outer(*spreads)
    return np.array([[optimal_rho(spread, points.shape[1]) for spread in row] for row in sums])


def _stretches(queries, keys, *centers):
    """Return the diagonals of M by pair of clusters: (real, imaginary) of queries and of keys.

    Queries and others are points and their weights. Both results have the shape
    (C_queries, C_keys, 2, d).
    """
    means, squares = [], []
    for axis, (points, weights), side_centers in zip((1, 0), (queries, keys), centers, strict=True):
        shares = _shares(points, weights, side_centers)
        means.append(np.expand_dims(shares @ points, axis))
        squares.append(np.expand_dims(np.maximum(shares @ points**2, _FLOOR), axis))
    size = squares[1] ** 0.25 / squares[0] ** 0.25
    # Means that are only rounding have no sign, so they count as equal.
    is_imaginary = means[0] * means[1] >= -_FLOOR * np.sqrt(squares[0]) * np.sqrt(squares[1])
    shown = np.stack([~is_imaginary, is_imaginary], axis=2)
    # 1 / (i r) = -i / r.
    inverse = np.stack([1 / size, -1 / size], axis=2)
    return shown * size[:, :, None], shown * inverse


def _shares(points, weights, centers):
    """Return the share of every row in the weight of every cluster, (C, n); 0 in the others."""
    shares = weights * (nearest(points, centers) == np.arange(len(centers))[:, None])
    sums = shares.sum(axis=1, keepdims=True)
    # No row is nearest to a centre whose distance from another one vanishes when squared.
    return shares / np.where(sums > 0, sums, 1.0)
