"""What a fit reads, the rows and a seed, and the immutable result that it leaves."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from .._memory import check_fits, components
from .._threads import narrow_blas
from .._validation import draw_seed, rng_of
from ..statistics import PairStatistics
from ._clusters import representatives, unique_rows
from ._map import FeatureMap
from ._sigma import resolve_sigma
from .streams import KEYS, QUERIES


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows that a feature map may look at one by one.

    Parameters
    ----------
    queries : ndarray or sparse matrix of shape (n, d)
        Queries.
    keys : ndarray or sparse matrix of shape (n_keys, d)
        Keys; the same object if there are no separate keys.
    weights : ndarray of shape (n,) or None
        Positive weights of the queries.
    seed : int
        Seed of the fit.
    labels : ndarray of shape (n,) or None, default=None
        Class codes of the queries.
    key_weights : ndarray of shape (n_keys,) or None, default=None
        Positive weights of the keys.
    classes : ndarray of shape (n_classes,) or None, default=None
        Labels that the class codes stand for.
    """

    queries: object
    keys: object
    weights: np.ndarray | None
    seed: int
    labels: np.ndarray | None = None
    key_weights: np.ndarray | None = None
    classes: np.ndarray | None = None
    _cache: dict = field(default_factory=dict)

    def once(self, key, make):
        """Return make(), kept under a key because it is the same for every sigma."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def for_base(self, base):
        """Return the same rows, which keep what they make for a base of a hybrid apart."""
        return replace(self, _cache=self.once(base, dict))

    def distinct(self):
        """Return the distinct rows in lexicographic order, weighted by how often they occur."""
        queries, weights, labels = unique_rows(self.queries, self.weights, self.labels)
        keys, key_weights = queries, weights
        if self.has_keys:
            keys, key_weights, _ = unique_rows(self.keys)
        return Sample(queries, keys, weights, self.seed, labels, key_weights)

    def statistics(self, **options):
        """Return the `PairStatistics` of both sides."""
        keys = self.keys if self.has_keys else None
        return PairStatistics.of(self.queries, keys, self.weights, self.key_weights, **options)

    @property
    def has_keys(self):
        """Whether the keys are rows of their own."""
        return self.keys is not self.queries

    def representatives(self, most, *, keys=False):
        """Return at most so many rows of one side that represent all, their weights and labels."""
        X, weights, labels, stream = self.queries, self.weights, self.labels, QUERIES
        if keys:
            X, weights, labels, stream = self.keys, self.key_weights, None, KEYS
        indices, weights = representatives(weights, most, self.rng(stream))
        return X[indices], weights, None if labels is None else labels[indices]

    def rng(self, *stream):
        """Return the generator of a stream of the fit's seed; see `rng_of`."""
        return rng_of(self.seed, *stream)


def sigma_of(sigma, X, weights=None, statistics=None, kernel="gaussian"):
    """Return the sigma that a number, "scale" or "median" stands for.

    Parameters
    ----------
    sigma : float or str
        As of a feature map.
    X : ndarray or sparse matrix of shape (n, d)
        Rows on the host.
    weights : ndarray of shape (n,), default=None
        Their weights.
    statistics : PairStatistics, default=None
        Statistics of all rows, if X is a sample of them.
    kernel : str, default="gaussian"
        Name of the kernel.
    """
    spec, sample = SimpleNamespace(sigma=sigma, kernel=kernel), Sample(X, X, weights, draw_seed(0))
    return resolve_sigma(spec, statistics or sample.statistics(), sample)


@dataclass(frozen=True, eq=False)
class Fitted:
    """The immutable result of a fit.

    Parameters
    ----------
    spec : feature map
        An unfitted copy with the parameters of the fit.
    seed : int
        Source of all random numbers.
    statistics : PairStatistics
        Of the data.
    parameters, draw : SimpleNamespace
        Parameters and random numbers; names that end with an underscore are public.
    queries, keys : FeatureMap
        The two sides, the same object for symmetric feature maps.
    """

    spec: Any
    seed: int
    statistics: PairStatistics
    parameters: SimpleNamespace
    draw: SimpleNamespace
    queries: FeatureMap
    keys: FeatureMap

    @classmethod
    def assemble(cls, spec, seed, statistics, parameters, draw):
        """Combine parameters and random numbers into maps; what users can read is read-only."""
        fitted = cls(spec, seed, statistics, parameters, draw, *spec._assemble(parameters, draw))
        sides = statistics.queries, statistics.keys, fitted.queries, fitted.keys
        for values in (fitted.attributes, *map(vars, sides)):
            for value in values.values():
                if isinstance(value, np.ndarray):
                    value.flags.writeable = False
        return fitted

    @classmethod
    def to(cls, spec, statistics, sample, *, before=None):
        """Return the result of fitting a feature map to statistics and rows.

        Parameters
        ----------
        spec : feature map
            Unfitted, with the parameters to use.
        statistics : PairStatistics
            Of all data.
        sample : Sample
            The latest rows.
        before : Fitted, default=None
            An earlier result, whose random numbers are kept if the parameters allow it.
        """
        parameters = spec._sizes()
        parameters.n_features = len(statistics.queries.mean)
        check_fits(
            spec._n_bytes(parameters, sample), components(spec), "its projections or centres"
        )
        with narrow_blas(parameters.n_features):
            parameters.sigma = resolve_sigma(spec, statistics, sample)
            spec._learn(parameters, statistics)
            spec._learn_from_rows(parameters, sample)
            if before is not None and spec._keeps_draw(before.parameters, parameters):
                draw = before.draw
            else:
                draw = spec._draw(parameters, sample.seed)
            return cls.assemble(spec, sample.seed, statistics, parameters, draw)

    def redrawn(self, seed):
        """Return the same result with other random numbers."""
        draw = self.spec._draw(self.parameters, seed)
        return self.assemble(self.spec, seed, self.statistics, self.parameters, draw)

    @cached_property
    def attributes(self):
        """Public attributes by name."""
        values = {**vars(self.parameters), **vars(self.draw)}
        return {name: value for name, value in values.items() if name.endswith("_")}
