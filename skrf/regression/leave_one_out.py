"""The sigma of kernel regression by leave-one-out in closed form.

A row leaves the sums that it is part of, so that one map per sigma scores all rows at once. With a
share of the class frequencies in all probabilities, a row that sees nothing of its class does not
decide alone.
"""

from dataclasses import replace

import numpy as np
from sklearn.utils import gen_batches

from .._arrays import to_host
from .._sums import exp_max_one, finite
from ..features import by_first, row_codes
from ..statistics import standardised
from .base import Ties, maps_of
from .data import spread_copies
from .rows import ExactMap

_ROWS = 2000  # at most, of other maps than the exact kernel
_BLOCK = 2**21  # features held at once
_STEPS, _FINER = 10, np.array([-1, -2, 1, 2]) / 3  # of the wide grid, and around its best
_SHARES = np.array([0.01, 0.03, 0.1, 0.3])  # beside one over the number of rows
_TIES = Ties()
_LOST = 1e-10  # of what a row sees of itself: less is rounding


def best_sigma(feature_map, data):
    """Return sigma by leave-one-out on at most 2,000 rows, the share, and their score or None.

    A row leaves with its copies and their whole weight; see `copy_groups`.

    Parameters
    ----------
    feature_map : transformer
        Unfitted, with a parameter ``sigma``.
    data : Data
        Validated rows.
    """
    scale, (data, shares) = data.resolved("scale"), _sample(data, _ROWS)
    fit = data.fit_at_sigma(feature_map)
    return _chosen(scale, data, shares, lambda points: lambda sigma: maps_of(fit(sigma)))


def best_exact_sigma(data):
    """Return sigma of the exact kernel by leave-one-out on all rows, the share, and their score."""
    scale, (data, shares) = data.resolved("scale"), _sample(data, len(data.y))

    def maps_of_points(points):
        return lambda sigma: (ExactMap(points, sigma),) * 2

    return _chosen(scale, data, shares, maps_of_points)


def _chosen(scale, data, shares, maps_of_points):
    """Return the best sigma of a wide grid and a finer one around its best, the share, and a score.

    Of nearly equal ones it is the smallest.

    Parameters
    ----------
    scale : float
        The sigma of "scale"; all rows look alike at a tenth of it, where the grid begins.
    data : Data
        Rows on the host, of which none are equal in X and target.
    shares : ndarray of shape (n,)
        Shares of their weights that leave with them.
    maps_of_points : callable
        Given the rows, returns a function that returns both maps at a sigma.
    """
    if row_codes(data.X).max() == 0 or is_constant(data):
        return scale, 0.0, None
    points, score = data.X.astype(np.float64), _Score(data, shares)
    maps_at, loo_sums = maps_of_points(points), None

    def evaluate(sigmas):
        nonlocal loo_sums
        scores = []
        for maps in map(maps_at, sigmas):
            if not maps[1].is_indicator:
                loo_sums = _Features(maps, points, score)
            elif loo_sums is None:  # centres do not depend on sigma
                loo_sums = _Counts(maps[1], points, data, score)
            scores.append(_total(loo_sums, maps[0], score))
        return np.array(scores)

    sigmas = scale * np.logspace(-1, 2, _STEPS)
    scores = evaluate(sigmas)
    finer = sigmas[np.argmax(_TIES(scores.max(axis=1)))] * (sigmas[1] / sigmas[0]) ** _FINER
    sigmas, scores = np.append(sigmas, finer), np.concatenate([scores, evaluate(finer)])
    place = min(np.flatnonzero(_TIES(scores.max(axis=1))), key=lambda k: sigmas[k])
    choice = np.argmax(_TIES(scores[place]))
    return float(sigmas[place]), float(score.shares[choice]), score.of_total(scores[place, choice])


def is_constant(data):
    """Return whether there is nothing to learn: a single class or target."""
    return all((values == values[0]).all() for values in (data.class_codes, data.values))


def _sample(data, most):
    """Return at most so many rows on the host, distinct in X and target, and shares of weights.

    They are spread evenly over the targets. The shares leave with the rows: all of their weight,
    or, of rows that stand for several which leave one by one, that of one of them.
    """
    rng, X = np.random.default_rng(0), to_host(data.X)
    is_of_numbers = data.values.shape[1] > 0
    codes = row_codes(data.values) if is_of_numbers else _by_rows(data.class_codes, X)
    weights = data.weights / data.weights.max()
    rows, weights, shares = spread_copies(X, codes, weights, most, rng, not is_of_numbers)
    return replace(replace(data, X=X).part(rows), sample_weight=weights), shares


def _by_rows(groups, X):
    """Return groups numbered by their first rows in lexicographic order, whatever their names."""
    order = np.argsort(row_codes(X), kind="stable")
    codes = np.empty_like(groups)
    codes[order] = by_first(groups[order])
    return codes


# ---------------------------------------------------------------- what points see of the others


def _total(loo_sums, queries, score):
    """Return the scores of all points, given the sums of the others and the map of queries."""
    widest = max(queries.n_columns or 1, len(score.shares) * score.n_groups)
    blocks = gen_batches(len(score.sums), max(1, _BLOCK // widest))
    return sum(score(loo_sums(queries, rows), rows) for rows in blocks)


class _Counts:
    """Sums that points see of the others, of keys that each are at one centre.

    A point that leaves takes its weight w from its centre. If that is a mean, of the weight W, it
    moves away: the squared distance to it grows by the factor (W / (W - w))^2. A centre without
    others disappears.
    """

    def __init__(self, key_map, points, data, score):
        labels = () if key_map.labels is None else (data.map_y,)
        self.points, self.columns = points, key_map.columns(points, *labels)
        self.leaving = score.leaving
        n_columns = key_map.n_columns
        self.of_centers = np.zeros((n_columns, score.sums.shape[1]))
        np.add.at(self.of_centers, self.columns, score.sums)
        totals = np.bincount(self.columns, score.weights, n_columns)[self.columns]
        remaining = totals - score.weights * score.shares_that_leave
        self.is_alone = remaining <= _LOST * totals
        self.growth = np.ones(len(totals))
        if key_map.are_means:
            self.growth = (totals / np.where(self.is_alone, totals, remaining)) ** 2

    def __call__(self, queries, rows):
        """Return the sums for a slice of points."""
        logs = queries(self.points[rows]).values
        own_centers = np.arange(len(logs)), self.columns[rows]
        logs[own_centers] *= self.growth[rows]
        logs[own_centers] -= np.where(self.is_alone[rows], np.inf, 0.0)
        features = exp_max_one(logs)
        itself = features[own_centers][:, None] * self.leaving[rows]
        return _without(features @ self.of_centers, itself)


class _Features:
    """Sums that points see of the others, of other features."""

    def __init__(self, maps, points, score):
        self.leaving = score.leaving
        queries, keys = (feature_map(points) for feature_map in maps)
        if queries.holds_logs:
            top = finite(keys.values.max(axis=0))
            self.keys = np.exp(keys.values - top)
            self.queries = exp_max_one(queries.values + top)
        else:
            self.queries, self.keys = queries.plain(), keys.plain()
        self.of_all = self.keys.T @ score.sums

    def __call__(self, _, rows):
        """Return the sums for a slice of points."""
        queries = self.queries[rows]
        itself = np.einsum("nm,nm->n", queries, self.keys[rows])
        return _without(queries @ self.of_all, itself[:, None] * self.leaving[rows])


def _without(sums, itself):
    """Return sums less what a point adds to them itself, 0 where only rounding is left."""
    remaining = sums - itself
    remaining[np.abs(remaining) <= _LOST * np.abs(itself)] = 0.0
    return remaining


class _Score:
    """Scores of points whose targets are predicted from those of others.

    For classes the logarithms of probabilities, otherwise negative squared errors.

    Parameters
    ----------
    data : Data
        Rows.
    shares_that_leave : ndarray of shape (n,)
        Shares of their weights that leave with them.
    """

    def __init__(self, data, shares_that_leave):
        self.n_groups, weights = data.n_groups, data.weights / data.weights.max()
        weights /= weights.sum()
        values = standardised(data.values, weights)
        columns = np.column_stack([np.eye(self.n_groups)[data.class_codes], values])
        self.weights, self.shares_that_leave = weights, shares_that_leave
        self.sums = columns * weights[:, None]
        self.leaving = self.sums * shares_that_leave[:, None]
        self.range = values.min(axis=0), values.max(axis=0)
        self.shares, least = np.zeros(1), 1 / (len(self.sums) + 1)
        if not values.shape[1]:
            self.shares = np.append(least, _SHARES[_SHARES > least])

    def of_total(self, total):
        """Return the mean logarithm of probabilities, or the mean R2 of the targets."""
        n_targets = self.sums.shape[1] - self.n_groups
        return float(1 + total / n_targets if n_targets else total)

    def __call__(self, sums, rows):
        """Return the scores of some points for every share, given the sums they see."""
        targets = self.sums[rows]
        class_sums = np.maximum(sums[:, : self.n_groups], 0.0)
        # Compared with one point, the weights of all others may be too small for floats.
        total = class_sums.sum(axis=1, keepdims=True)
        divisor = np.where(total > 0, total, 1.0)
        if sums.shape[1] > self.n_groups:
            weights = targets[:, :1]
            means = np.clip(sums[:, 1:] / divisor, *self.range) * (total > 0)
            truth = targets[:, 1:] / np.where(weights > 0, weights, 1.0)
            return -np.sum(weights * (means - truth) ** 2)[None]
        frequencies, shares = self.sums.sum(axis=0), self.shares[:, None, None]
        chances = (1 - shares) * np.where(total > 0, class_sums / divisor, frequencies)
        chances += shares * frequencies
        return np.sum(targets * np.log(np.where(targets > 0, chances, 1.0)), axis=(1, 2))
