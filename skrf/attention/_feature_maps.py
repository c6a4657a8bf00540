"""Feature maps of heads: their random numbers, and the statistics that they are fitted to."""

import copy
from functools import cached_property

import numpy as np
from sklearn.base import clone

from .._arrays import LARGEST, constant, namespace, take, to_host
from .._validation import check_range
from ..features import as_feature_map, fit_to
from ._state import marks_of

_FAR = 1e60  # size of entries that a call does not reach


class HeadMaps:
    """Feature maps of queries and of keys, and the fitted transformer that they belong to.

    Parameters
    ----------
    transformer : transformer
        Fitted.
    """

    def __init__(self, transformer):
        self.transformer = transformer
        self.queries = as_feature_map(transformer)
        self.keys = as_feature_map(transformer, keys=True)
        self.is_positive, self._reach, self._mark = self.keys.is_positive, None, None

    @cached_property
    def n_features(self):
        """Number of features."""
        return self.keys.n_columns

    def reach(self, d):
        """Return up to which entries d numbers in float64 have exponents in its range, or 0."""
        if self._reach is None:
            # A row is a sum of d unit rows, and bounds are at most squares of lengths.
            bounds = [side.exponent_bound(_FAR * np.eye(d)) for side in (self.queries, self.keys)]
            self._reach = _FAR if d**3 * max(bounds) <= LARGEST**2 else 0.0
        return self._reach

    def mark(self, d):
        """Return numbers that tell maps of d numbers of other draws and fits; none for functions.

        Functions of a user may be trained while a stream goes on.
        """
        if self._mark is None:
            row, marks = np.cos(np.arange(1.0, d + 1))[None], ()
            for side in (self.queries, self.keys) if self.keys.is_fixed else ():
                for array in (array for array in side(row) if array is not None):
                    marks += marks_of(np.nan_to_num(array, neginf=0.0))
            self._mark = marks
        return self._mark


def check_lse(maps):
    """Raise if features of maps may be negative."""
    for head in maps:
        for side in (head.queries, head.keys):
            if not (side.is_positive or side.is_indicator or side.is_nonnegative):
                raise ValueError(
                    "return_lse=True needs features that are never negative, because sums of "
                    f"weights must have logarithms, got feature_map={head.transformer!r}."
                )


def needs_data(feature_map):
    """Return whether a map can only be fitted to data."""
    return getattr(feature_map, "_needs_data", not hasattr(feature_map, "fit_without_data"))


def fitted(prototype, queries, keys, before=None):
    """Return a map with the statistics of rows.

    Parameters
    ----------
    prototype : transformer
        With the random numbers to use, or unfitted if it needs data.
    queries, keys : array of shape (n, d) and (n_keys, d)
        Rows.
    before : transformer, default=None
        One whose statistics are merged with them.
    """
    check_range("q", queries)
    if keys.shape[0]:
        check_range("k", keys)
    if before is not None:
        return copy.copy(before).partial_fit(queries, keys=keys) if keys.shape[0] else before
    if needs_data(prototype):
        queries, keys = to_host(queries), to_host(keys)
        return fit_to(clone(prototype), queries, keys if keys.shape[0] else queries)
    is_fixed = not hasattr(prototype, "_adapted") or not keys.shape[0]
    return prototype if is_fixed else prototype._adapted(queries, keys)


def differ_in_size(maps):
    """Return whether maps have different numbers of features, such as clusters of few rows."""
    if len({id(head.transformer) for head in maps}) == 1:
        return False  # one draw for all, and functions may not know their number yet
    return len({head.n_features for head in maps}) > 1


def ignores_data(prototype):
    """Return whether a map is the same whatever the data are."""
    return not (needs_data(prototype) or hasattr(prototype, "_adapted"))


def redrawn_maps(maps, seed_of):
    """Return maps with the same parameters and other draws, shared where they were shared."""
    heads = {}
    for head in maps:
        transformer = head.transformer
        if not hasattr(transformer, "redraw"):
            raise ValueError(
                "redraw and diagnose need a feature_map that can be drawn anew, got "
                f"{transformer!r}: use one of skrf."
            )
        if id(head) not in heads:
            heads[id(head)] = HeadMaps(copy.copy(transformer).redraw(seed_of(transformer)))
    return [heads[id(head)] for head in maps]


def rows_of_sets(inputs, sets, n_most=None):
    """Return the queries (n, d) and keys (m, d) of some sets without their padding.

    Parameters
    ----------
    inputs : Inputs
        All sets.
    sets : slice
        Which of them.
    n_most : int, default=None
        How many rows to return at most, spread over all; None means all rows.
    """
    q, k, hidden = inputs.q[sets, ...], inputs.k[sets, ...], None
    is_query = is_key = None
    if inputs.padding is not None:
        hidden = to_host(inputs.padding)[sets]
        is_query = np.broadcast_to(real_queries(hidden, q.shape[2])[:, None, :], q.shape[:3])
        is_key = ~hidden
    return _without_padding(q, is_query, n_most), _without_padding(k, is_key, n_most)


def _without_padding(X, is_free, n_most):
    """Return rows of X (..., d), at most some of them if not None."""
    rows = constant(namespace(X).reshape(X, (-1, X.shape[-1])))
    if is_free is None and n_most is None:
        return rows
    numbers = np.arange(rows.shape[0]) if is_free is None else np.flatnonzero(is_free)
    return take(rows, numbers if n_most is None else numbers[:: max(1, -(-len(numbers) // n_most))])


def real_queries(hidden, n_queries):
    """Return which queries are real, given which keys (..., S) are padding.

    Where there are as many queries as keys, a padded position is padding as a query, too, unless
    all are.
    """
    if hidden.shape[-1] != n_queries:
        return np.ones((*hidden.shape[:-1], n_queries), bool)
    return ~hidden | hidden.all(axis=-1, keepdims=True)
