"""Values of rows by regressions that have not seen them; whoever judges reads these alone.

A source makes them for all alphas at a sigma: `FeatureSource` from features, `KernelSource` by the
exact kernel in the rows of every problem, and `LeafSource` in whole leaves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from sklearn.base import clone

from .._arrays import rounding_of, take, to_host
from ..features import ClusterNystroem, as_feature_map, columns_of
from .data import Data, Splits, as_slice, stratified, sums_of_splits
from .decide import best_classes, losses
from .moments import RidgeSums, beside_threads, features_of, moments_of_groups, store_features
from .near_far import NearFarKernel, NearFarRows, check_leaves, sampled
from .rows import kernel_between
from .solve import RowSystem, Solution, solve_problems, values_of

_MOST_NUMBERS = 2**25  # of features that are held at once: 256 MB
_MOST_ROWS = 4096  # whose products are held, where pairs are solved in their rows
_CENTER_ROWS = 5000  # in which a search looks for landmarks


@dataclass(frozen=True, eq=False)
class HeldOutPredictions:
    """Values of rows that were left out of a fit, for every alpha.

    Parameters
    ----------
    values : ndarray of shape (n_alphas, n, V)
        Values of the regressions.
    rows : Data
        The rows.
    solutions : list of Solution
        What the values come from, which decisions read; it may lack coefficients.
    """

    values: np.ndarray
    rows: Data
    solutions: list

    def for_alpha(self, place):
        """Return the same for one alpha."""
        alpha = slice(place, place + 1)
        return HeldOutPredictions(self.values[alpha], self.rows, self.solutions[alpha])

    def errors(self):
        """Return the mean squared errors of the targets, (n_alphas,), in their largest unit."""
        targets, weights = self.rows.targets, self.rows.score_weights
        unit = self.solutions[0].unit
        # Coefficients may be only rounding, if alpha is lost in it.
        with np.errstate(over="ignore", invalid="ignore"):
            gaps = self.values / unit - targets(slice(None)) * (targets.unit / unit)
            errors = np.average(gaps**2, axis=1, weights=weights)
            errors = errors @ ((unit / unit.max()) ** 2 / len(unit))
        return np.where(np.isnan(errors), np.inf, errors)

    def pair_errors(self, signs):
        """Return the mean squared errors of pairs at rows of their classes, (n_alphas,)."""
        signs = signs[self.rows.class_codes]
        errors = np.square(self.values - signs)[:, signs != 0]
        weights = self.rows.score_weights
        if weights is not None:
            weights = np.repeat(weights, np.count_nonzero(signs, axis=1))
        return np.average(errors, axis=1, weights=weights)

    def scores_at(self, place, decision):
        """Return the scores of the classes for an alpha, (n, n_classes), of two for the second."""
        return decision.read(self.values[place], self.solutions[place])

    def log_losses(self, place, decision):
        """Return the mean log losses of a decision for all multipliers; see `losses`."""
        codes, weights = self.rows.class_codes, self.rows.score_weights
        scores = self.scores_at(place, decision)
        is_of_pairs = scores.shape[1] == 1 or decision.is_of_pairs
        values = self.values[place] if is_of_pairs else scores
        total = len(codes) if weights is None else weights.sum()
        return losses(values, codes, weights, is_of_pairs) / total

    def accuracies(self, decision):
        """Return the shares of the rows that a decision gets right, (n_alphas,)."""
        codes, weights = self.rows.class_codes, self.rows.score_weights
        tie, places = rounding_of(self.rows.X), zip(self.values, self.solutions, strict=True)
        right = [best_classes(decision.read(*place), tie) == codes for place in places]
        return np.average(right, axis=1, weights=weights)


# ---------------------------------------------------------------- sources


@dataclass(frozen=True, eq=False)
class FeatureSource:
    """Values of held-out rows by regressions on features.

    Parameters
    ----------
    feature_map : transformer
        Unfitted.
    data : Data
        All rows.
    splits : Splits
        Of the rows.
    least_alpha : float
        The smallest ridge.
    map_per_split : bool
        Whether every split has its own map, fitted to the rows that it trains on. Otherwise all
        share one, fitted to all rows without their labels.
    n_classes : int
        Number of classes; 0 for numbers.
    has_sigma : bool, default=True
        Whether maps are fitted at values of sigma, or as they are.
    shared_fit : callable, default=None
        Returns a fitted map at a sigma, for all splits.
    """

    feature_map: Any
    data: Data
    splits: Splits
    least_alpha: float
    map_per_split: bool
    n_classes: int
    has_sigma: bool = True
    shared_fit: Callable | None = None

    @cached_property
    def fit(self):
        """A function that returns the map fitted to all rows at a sigma."""
        data = self.data if self.map_per_split else replace(self.data, map_y=None)
        return self.shared_fit or self._fit_to(data)

    def _fit_to(self, data):
        if isinstance(self.feature_map, ClusterNystroem) and len(data.y) > _CENTER_ROWS:
            data = data.part(stratified(data.class_codes, _CENTER_ROWS))
        if self.has_sigma:
            return data.fit_at_sigma(self.feature_map)
        fitted = data.fitted(clone(self.feature_map))
        return lambda sigma: fitted

    @cached_property
    def n_columns(self):
        """Number of features, if it is known."""
        return columns_of(self.feature_map, len(self.data.y))

    @cached_property
    def _sides(self):
        """Of every split, what fits maps to the rows to train on, and the rows on both sides."""
        pairs = zip(self.splits.trains, self.splits.tests, strict=True)
        sides = [[self.data.part(rows) for rows in pair] for pair in pairs]
        return [(self._fit_to(train), train, test) for train, test in sides]

    @cached_property
    def _tests(self):
        return [self.data.part(as_slice(test)) for test in self.splits.tests]

    def _nothing(self, feature_map, data):
        return RidgeSums({}, (feature_map,) * 2, data.targets.shape, 0, self.least_alpha)

    def _read(self, sigma, has_sums):
        """Yield the map, rows to train on, X to test on and sums to train on, of every split."""
        if self.map_per_split:
            for fit, *sides in self._sides:
                feature_map, (train, test) = self._stored(as_feature_map(fit(sigma)), *sides)
                sums = has_sums and self._nothing(feature_map, train).added(train)
                yield feature_map, train, test.X, sums
            return
        feature_map, (data,) = self._stored(as_feature_map(self.fit(sigma)), self.data)
        trains = [None] * len(self.splits)
        if has_sums:
            trains = sums_of_splits(self._nothing(feature_map, data), data, self.splits)
        for sums, train, test in zip(trains, self.splits.trains, self.splits.tests, strict=True):
            of_train = None if has_sums else data.part(train)  # which takes a copy
            yield feature_map, of_train, take(data.X, as_slice(test)), sums

    def _stored(self, feature_map, *data):
        """Return what to use in place of a map and of rows: features, if they fit in memory."""
        n_rows = sum(len(side.y) for side in data)
        if n_rows * (feature_map.n_columns or 1) > _MOST_NUMBERS:
            return feature_map, data
        return store_features(feature_map, *data)

    def predict(self, sigma: float, alphas: Sequence[float], problems=None, n_splits=None):
        """Return the `HeldOutPredictions` of every split, or of the first few.

        Parameters
        ----------
        sigma : float
            Multiplies differences of rows.
        alphas : sequence of float
            The ridges.
        problems : sequence of Problem, default=None
            What is solved for among the classes; None is the targets of all rows.
        n_splits : int, default=None
            Number of splits; None is all.
        """
        results = []
        with beside_threads(self.feature_map):
            reads = self._read(sigma, problems is None)
            for test, (feature_map, train, X, sums) in zip(
                self._tests, islice(reads, n_splits), strict=False
            ):
                features = features_of(feature_map, X)
                if problems is None:
                    solutions = solve_problems(sums.moments, problems, alphas)
                    values = values_of(solutions, features)
                else:
                    values, solutions = self._of_classes(
                        feature_map, train, features, alphas, problems
                    )
                results.append(HeldOutPredictions(values, test, solutions))
        return results

    def _of_classes(self, feature_map, train, features, alphas, problems):
        """Return the values of problems among classes, and solutions without coefficients."""
        codes, n_columns = train.class_codes, features.shape[1]
        counts = np.bincount(codes, minlength=self.n_classes)
        n_rows = [counts[problem.groups].sum() for problem in problems]
        in_rows = {k for k, n in enumerate(n_rows) if n < n_columns and len(codes) <= _MOST_ROWS}
        in_columns = [k for k in range(len(problems)) if k not in in_rows]
        solved, solutions, values = {}, [None] * len(alphas), None
        if in_columns:
            classes = codes, self.n_classes, train.sample_weight
            moments = moments_of_groups(feature_map, train.X, *classes, min(alphas))
            solutions = solve_problems(moments, [problems[k] for k in in_columns], alphas)
            values = values_of(solutions, features)
            ends = np.cumsum([problems[k].targets.shape[1] for k in in_columns])
            solved = dict(zip(in_columns, np.split(values, ends[:-1], axis=2), strict=True))
        if in_rows:
            train = train.part(np.argsort(codes, kind="stable"))
            rows = features_of(feature_map, train.X)
            classes = train.class_codes, train.sample_weight, self.n_classes
            system = RowSystem.of_gram(rows @ rows.T, *classes)
            values = system.values(features @ rows.T, problems, alphas, solved)
        return values, solutions


@dataclass(frozen=True, eq=False)
class KernelSource:
    """Values of held-out rows by regressions with the exact kernel, in the rows of each problem.

    Parameters
    ----------
    data : Data
        All rows.
    splits : Splits
        Of the rows.
    n_classes : int
        Number of classes.
    """

    data: Data
    splits: Splits
    n_classes: int

    @cached_property
    def _pairs(self):
        pairs = []
        for train, test in zip(self.splits.trains, self.splits.tests, strict=True):
            train = self.data.part(train)
            order = np.argsort(train.class_codes, kind="stable")
            pairs.append((train.part(order), self.data.part(test)))
        return pairs

    n_columns = None

    def predict(self, sigma: float, alphas: Sequence[float], problems, n_splits=None):
        """Return the `HeldOutPredictions` of every split; see `FeatureSource`."""
        results = []
        for train, test in self._pairs[:n_splits]:
            rows = to_host(train.X)
            gram, cross = (kernel_between(to_host(side.X), rows, sigma) for side in (train, test))
            classes = train.class_codes, train.sample_weight, self.n_classes
            values = RowSystem.of_gram(gram, *classes).values(cross, problems, alphas)
            nothing = Solution(0.0, np.empty((0, 0)), np.ones(values.shape[2]), np.empty(0))
            results.append(HeldOutPredictions(values, test, [nothing] * len(alphas)))
        return results


@dataclass(frozen=True, eq=False)
class LeafSource:
    """Values of the rows of whole leaves, each by regressions on all others.

    The leaves and their rows are the same for every sigma.

    Parameters
    ----------
    fit : callable
        Returns the map fitted at a sigma.
    everything : Data
        All rows.
    most : int
        Distinct rows of a leaf, at most.
    sigma : float
        Where leaves are cut.
    """

    fit: Callable
    everything: Data
    most: int
    sigma: float

    n_columns = None

    @cached_property
    def _near_far(self):
        fitted = self.fit(self.sigma)
        check_leaves(fitted, self.everything.X, self.most)
        return NearFarKernel.of(as_feature_map(fitted), self.everything.X, self.most)

    @cached_property
    def _rows(self):
        near_far = self._near_far
        return sampled(near_far.bounds, near_far.row_to_distinct, np.random.default_rng(0))

    @cached_property
    def data(self):
        """The rows of some leaves, which stand for all."""
        return self.everything.part(self._rows)

    @property
    def splits(self):
        """All of these rows, which are left out one by one."""
        rows = [np.arange(len(self._rows))]
        return Splits(rows, rows, len(self._rows))

    def _total(self, problem):
        """Return the weight of all rows of a problem's classes, or of all."""
        weights = self.everything.weights
        if problem is None:
            return weights.sum()
        return weights[np.isin(self.everything.class_codes, problem.groups)].sum()

    def predict(self, sigma: float, alphas: Sequence[float], problems=None, n_splits=None):
        """Return a list of the only `HeldOutPredictions`; see `FeatureSource`."""
        data, feature_map = self.data, as_feature_map(self.fit(sigma))
        with beside_threads(feature_map):
            leaves = self._near_far.subset(feature_map, data.X, self._rows)
            values = NearFarRows.under(leaves, data).held(problems, alphas, self._total)
        unit = data.targets.unit if problems is None else np.ones(values.shape[2])
        nothing = Solution(0.0, np.empty((0, 0)), unit, np.empty(0))
        return [HeldOutPredictions(values * unit, data, [nothing] * len(alphas))]
