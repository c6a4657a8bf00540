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
from ..features import by_first, row_codes, spread_rows
from ..statistics import standardised
from .moments import maps_of
from .rows import ExactMap
from .search import Equal

_ROWS = 2000  # at most, of other maps than the exact kernel
_BLOCK = 2**21  # features held at once
_STEPS, _FINER = 10, np.array([-1, -2, 1, 2]) / 3  # of the wide grid, and around its best
_SHARES = np.array([0.01, 0.03, 0.1, 0.3])  # beside one over the number of rows
_EQUAL = Equal()
_LOST = 1e-10  # of what a row sees of itself: less is rounding


def best_sigma(feature_map, data):
    """Return sigma by leave-one-out on at most 2,000 rows, the share, and their score or None.

    Weights are repetitions: a row leaves with all that equal it, whatever their labels, and with
    its whole weight.

    Parameters
    ----------
    feature_map : transformer
        Unfitted, with a parameter ``sigma``.
    data : Data
        Validated rows.
    """
    scale, data = data.resolved("scale"), _sample(data)
    fit = data.fit_at_sigma(feature_map)
    return _chosen(scale, data, lambda points: lambda sigma: maps_of(fit(sigma)))


def best_exact_sigma(data):
    """Return sigma of the exact kernel by leave-one-out on all rows, the share, and their score."""
    data = replace(data, X=to_host(data.X))

    def maps_of_points(points):
        return lambda sigma: (ExactMap(points, sigma),) * 2

    return _chosen(data.resolved("scale"), data, maps_of_points)


def _chosen(scale, data, maps_of_points):
    """Return the best sigma of a wide grid and a finer one around its best, the share, and a score.

    Of nearly equal ones it is the smallest.

    Parameters
    ----------
    scale : float
        The sigma of "scale"; all rows look alike at a tenth of it, where the grid begins.
    data : Data
        Rows on the host.
    maps_of_points : callable
        Given the distinct rows, returns a function that returns both maps at a sigma.
    """
    _, first, number = np.unique(row_codes(data.X), return_index=True, return_inverse=True)
    if len(first) < 2 or is_constant(data):
        return scale, 0.0, None
    points, score = data.X[first].astype(np.float64), _Score(data, number)
    maps_at, seen = maps_of_points(points), None

    def evaluate(sigmas):
        nonlocal seen
        scores = []
        for maps in map(maps_at, sigmas):
            if not maps[1].is_indicator:
                seen = _Features(maps, points, score.sums)
            elif seen is None:  # centres do not depend on sigma
                seen = _Counts(maps[1], points, number, data, score)
            scores.append(_total(seen, maps[0], score))
        return np.array(scores)

    sigmas = scale * np.logspace(-1, 2, _STEPS)
    scores = evaluate(sigmas)
    finer = sigmas[np.argmax(_EQUAL(scores.max(axis=1)))] * (sigmas[1] / sigmas[0]) ** _FINER
    sigmas, scores = np.append(sigmas, finer), np.concatenate([scores, evaluate(finer)])
    place = min(np.flatnonzero(_EQUAL(scores.max(axis=1))), key=lambda k: sigmas[k])
    choice = np.argmax(_EQUAL(scores[place]))
    return float(sigmas[place]), float(score.shares[choice]), score.of_total(scores[place, choice])


def is_constant(data):
    """Return whether there is nothing to learn: a single class or target."""
    return all((values == values[0]).all() for values in (data.groups, data.values))


def _sample(data):
    """Return at most 2,000 distinct rows on the host, spread evenly over the targets."""
    rng, X = np.random.default_rng(0), to_host(data.X)
    codes = row_codes(data.values) if data.values.shape[1] else _by_rows(data.groups, X)
    rows, weights = spread_rows(X, codes, data.weights / data.weights.max(), _ROWS, rng)
    return replace(replace(data, X=X).part(rows), sample_weight=weights)


def _by_rows(groups, X):
    """Return groups numbered by their first rows in lexicographic order, whatever their names."""
    order = np.argsort(row_codes(X), kind="stable")
    codes = np.empty_like(groups)
    codes[order] = by_first(groups[order])
    return codes


# ---------------------------------------------------------------- what points see of the others


def _total(seen, queries, score):
    """Return the scores of all points, given what sees the others and the map of queries."""
    widest = max(queries.n_columns or 1, len(score.shares) * score.n_groups)
    blocks = gen_batches(len(score.sums), max(1, _BLOCK // widest))
    return sum(score(seen(queries, rows), rows) for rows in blocks)


class _Counts:
    """Sums that points see of the others, of keys that each are at one centre.

    A point that leaves takes its weight w from its centre. If that is a mean, of the weight W, it
    moves away: the squared distance to it grows by the factor (W / (W - w))^2. A centre without
    others disappears.
    """

    def __init__(self, key_map, points, number, data, score):
        if key_map.labels is None:
            columns = key_map.columns(points)[number]
        else:  # rows of a point may go to centres of several classes
            columns = key_map.columns(data.X, data.target)
        n_columns, n_values = key_map.n_columns, score.of_rows.shape[1]
        self.points, self.of_centers = points, np.zeros((n_columns, n_values))
        np.add.at(self.of_centers, columns, score.of_rows)
        # Parts of points: their rows at one centre, sorted by points.
        codes, part = np.unique(number * n_columns + columns, return_inverse=True)
        self.places, self.columns = codes // n_columns, codes % n_columns
        self.of_parts = np.zeros((len(codes), n_values))
        np.add.at(self.of_parts, part, score.of_rows)
        weights = np.bincount(part, score.row_weights)
        totals = np.bincount(columns, score.row_weights, n_columns)[self.columns]
        rest = totals - weights
        self.is_alone = rest <= _LOST * totals
        self.growth = np.ones(len(codes))
        if key_map.are_means:
            self.growth = (totals / np.where(self.is_alone, totals, rest)) ** 2

    def __call__(self, queries, rows):
        """Return the sums for a slice of points."""
        parts = slice(*np.searchsorted(self.places, [rows.start, rows.stop]))
        logs, of_points = queries(self.points[rows]).values, self.places[parts] - rows.start
        places = of_points, self.columns[parts]
        logs[places] *= self.growth[parts]
        logs[places] -= np.where(self.is_alone[parts], np.inf, 0.0)
        features = exp_max_one(logs)
        itself = np.zeros((len(logs), self.of_centers.shape[1]))
        np.add.at(itself, of_points, features[places][:, None] * self.of_parts[parts])
        return _without(features @ self.of_centers, itself)


class _Features:
    """Sums that points see of the others, of other features."""

    def __init__(self, maps, points, sums):
        self.sums = sums
        queries, keys = (feature_map(points) for feature_map in maps)
        if queries.holds_logs:
            top = finite(keys.values.max(axis=0))
            self.keys = np.exp(keys.values - top)
            self.queries = exp_max_one(queries.values + top)
        else:
            self.queries, self.keys = queries.plain(), keys.plain()
        self.of_all = self.keys.T @ sums

    def __call__(self, _, rows):
        """Return the sums for a slice of points."""
        queries = self.queries[rows]
        itself = np.einsum("nm,nm->n", queries, self.keys[rows])
        return _without(queries @ self.of_all, itself[:, None] * self.sums[rows])


def _without(sums, itself):
    """Return sums less what a point adds to them itself, 0 where only rounding is left."""
    rest = sums - itself
    rest[np.abs(rest) <= _LOST * np.abs(itself)] = 0.0
    return rest


class _Score:
    """Scores of points whose targets are predicted from those of others.

    For classes the logarithms of probabilities, otherwise negative squared errors.

    Parameters
    ----------
    data : Data
        Rows.
    number : ndarray of int of shape (n,)
        The point that each row is.
    """

    def __init__(self, data, number):
        self.n_groups, weights = data.n_groups, data.weights / data.weights.max()
        weights /= weights.sum()
        values = standardised(data.values, weights)
        columns = np.column_stack([np.eye(self.n_groups)[data.groups], values])
        self.of_rows, self.row_weights = columns * weights[:, None], weights
        self.sums = np.zeros((number.max() + 1, columns.shape[1]))
        np.add.at(self.sums, number, self.of_rows)
        self.range = values.min(axis=0), values.max(axis=0)
        # Squares of targets about the mean of those of equal rows, which no sigma changes.
        of_points, points = self.sums[:, self.n_groups :], np.bincount(number, weights)
        points[points == 0] = 1.0  # weights that underflow
        means = of_points / points[:, None]
        self.apart = np.sum(weights @ values**2 - np.sum(of_points * means, axis=0))
        self.shares, least = np.zeros(1), 1 / (len(self.sums) + 1)
        if not values.shape[1]:
            self.shares = np.append(least, _SHARES[_SHARES > least])

    def of_total(self, total):
        """Return the mean logarithm of probabilities, or the mean R2 of the targets."""
        n_targets = self.sums.shape[1] - self.n_groups
        return float(1 + (total - self.apart) / n_targets if n_targets else total)

    def __call__(self, sums, rows):
        """Return the scores of some points for every share, given the sums they see."""
        targets = self.sums[rows]
        seen = np.maximum(sums[:, : self.n_groups], 0.0)
        # Compared with one point, the weights of all others may be too small for floats.
        total = seen.sum(axis=1, keepdims=True)
        divisor = np.where(total > 0, total, 1.0)
        if sums.shape[1] > self.n_groups:
            weights = targets[:, :1]
            means = np.clip(sums[:, 1:] / divisor, *self.range) * (total > 0)
            truth = targets[:, 1:] / np.where(weights > 0, weights, 1.0)
            return -np.sum(weights * (means - truth) ** 2)[None]
        frequencies, shares = self.sums.sum(axis=0), self.shares[:, None, None]
        chances = (1 - shares) * np.where(total > 0, seen / divisor, frequencies)
        chances += shares * frequencies
        return np.sum(targets * np.log(np.where(targets > 0, chances, 1.0)), axis=(1, 2))
