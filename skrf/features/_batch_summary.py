"""What a map is fitted to when rows come in batches: statistics, and rows drawn at random."""

from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_consistent_length

from .._arrays import to_host
from .._batches import Pass, Scope
from .._validation import as_numpy, draft_of, drop_zero_weights, validate_rows
from ..statistics import PairStatistics
from ._adapters import fit_to_statistics, learns_from_sums

_STREAM = 0x5A3B1E  # of random numbers, apart from the streams that feature maps draw from a seed


def scope_of(feature_map, scope, random_state, *, needs_rows=False):
    """Return the scope that a map needs, with a single row if statistics are enough.

    The seed is ``random_state`` if that is an integer.
    """
    if hasattr(feature_map, "_checked_spec"):  # raise before any work
        feature_map._checked_spec()
    is_enough, is_fitted = learns_from_sums(feature_map), isinstance(feature_map, FrozenEstimator)
    n_rows = scope.n_rows if needs_rows or not (is_enough or is_fitted) else 1
    return scope._replace(
        n_rows=n_rows,
        most_key=scope.most_key if n_rows > 1 else np.inf,
        full=is_enough and feature_map._as_spec()._needs_full_statistics,
        seed=random_state if isinstance(random_state, Integral) else 0,
    )


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows drawn at random, ordered by batch and by position within it.

    Parameters
    ----------
    keys : ndarray of shape (n,)
        Random numbers; the rows with the smallest are kept.
    X : ndarray or sparse matrix of shape (n, d)
        Rows.
    y : ndarray of shape (n,) or (n, n_outputs), or None
        Their targets.
    weights : ndarray of shape (n,) or None
        Their weights.
    """

    keys: np.ndarray
    X: Any
    y: np.ndarray | None
    weights: np.ndarray | None

    def least(self, n_rows, most_key=np.inf):
        """Return the rows with the smallest keys, all below `most_key`."""
        rows = np.flatnonzero(self.keys < most_key)
        if len(rows) > n_rows:
            rows = np.sort(rows[np.argpartition(self.keys[rows], n_rows - 1)[:n_rows]])
        # Copy, because the next batch may reuse the memory.
        fields_kept = {
            name: None if values is None else values[rows] for name, values in vars(self).items()
        }
        return Sample(**fields_kept)

    def joined(self, other):
        """Return the rows of both; rows without weights get weight 1 if the others have some."""
        pairs = {name: [values, getattr(other, name)] for name, values in vars(self).items()}
        if any(side is not None for side in pairs["weights"]):
            sides = (self, other)
            pairs["weights"] = [
                np.ones(len(side.keys)) if side.weights is None else side.weights for side in sides
            ]
        return Sample(**{name: _stacked(pair) for name, pair in pairs.items()})


def _stacked(pair):
    if pair[0] is None:
        return None
    return sp.vstack(pair, format="csr") if any(map(sp.issparse, pair)) else np.concatenate(pair)


@dataclass(frozen=True, eq=False)
class BatchSummary:
    """What is known about batches before a map is fitted.

    Law: `merge` is associative (statistics to rounding) and changes neither side.

    Parameters
    ----------
    scope : Scope
        What is kept.
    statistics : PairStatistics or None
        Statistics of the rows; None if there are none of positive weight.
    sample : Sample or None
        Some of the rows.
    names : ndarray of shape (d,) or None
        Names of the features.
    classes : ndarray of shape (n_classes,) or None
        Labels.
    """

    scope: Scope
    statistics: PairStatistics | None = None
    sample: Sample | None = None
    names: np.ndarray | None = None
    classes: np.ndarray | None = None

    @classmethod
    def of(cls, draft, rows, number, places, scope):
        """Return the survey of a batch.

        Parameters
        ----------
        draft : estimator
            Holds the classes and names found in the rows.
        rows : tuple
            X, y and weights, None or positive.
        number : int
            Index of the batch.
        places : ndarray of int of shape (n,)
            Positions of the rows in the batch.
        scope : Scope
            What is kept.
        """
        X, y, weights = rows
        X = to_host(X)
        keys = np.random.default_rng([scope.seed, _STREAM, number]).random(places[-1] + 1)[places]
        sample = Sample(keys, X, y, weights)
        names, classes = (getattr(draft, name, None) for name in ("feature_names_in_", "classes_"))
        statistics = PairStatistics.of(X, None, weights, full=scope.full)
        return cls(scope, statistics, sample.least(scope.n_rows, scope.most_key), names, classes)

    def merge(self, other):
        """Return the survey of both, this one first."""
        classes = self.classes
        if classes is None or other.classes is None:
            classes = other.classes if classes is None else classes
        else:
            check_alike("y", "kind of labels", *map(_kind, (classes, other.classes)))
            classes = np.union1d(classes, other.classes)
        if self.sample is None or other.sample is None:
            sampled = self if other.sample is None else other
            return replace(sampled, classes=classes)
        names = [None if side.names is None else side.names.tolist() for side in (self, other)]
        check_alike("X", "features", self.sample.X.shape[1], other.sample.X.shape[1])
        check_alike("X", "names of features", *names)
        if self.sample.y is not None and other.sample.y is not None:
            check_alike("y", "outputs", self.sample.y.shape[1:], other.sample.y.shape[1:])
        return BatchSummary(
            self.scope,
            self.statistics.merge(other.statistics),
            self.sample.joined(other.sample).least(self.scope.n_rows),
            self.names,
            classes,
        )


def passes_of_fit(feature_map, scope):
    """Return the passes that fit a map of this library to batches."""
    draft = draft_of(feature_map)
    scope = scope_of(draft, scope, draft.random_state)
    of_rows = partial(_summary_of, draft, scope)
    summary = yield Pass("statistics", of_rows, is_last=True)
    sample = summary.sample
    rows = {"X": sample.X, "y": sample.y, "sample_weight": sample.weights}
    fit_to_statistics(draft, summary.statistics, **rows)
    if summary.names is not None:
        draft.feature_names_in_ = summary.names
    return draft


def _summary_of(feature_map, scope, X, y, weights, number):
    draft = draft_of(feature_map)
    X = to_host(validate_rows(draft, X, reset=True))
    if y is not None:
        check_consistent_length(X, y)
    weights, X, rows = drop_zero_weights(weights, X, np.arange(X.shape[0]))
    y = None if y is None else as_numpy("y", y)[rows]
    return BatchSummary.of(draft, (X, y, weights), number, rows, scope)


def _kind(labels):
    """Return the kind that labels must share to be compared."""
    if labels.dtype.kind in "iu" and labels.size and labels.max() > np.iinfo(np.int64).max:
        return "integers above 2**63"
    return "numbers" if labels.dtype.kind in "biuf" else "text or objects"


def check_alike(name, what, one, other):
    """Raise if two batches differ."""
    if one != other:
        raise ValueError(f"All batches of {name} must have the same {what}, got {one} and {other}.")
