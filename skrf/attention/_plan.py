"""The exact part of an attention call, and the fitted maps for the rest."""

import copy
from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np
from sklearn.base import clone

from .._arrays import constant, namespace, take, to_host
from .._validation import check_range
from ..features import fit_to
from ._heads import Head, HeadSet
from ._sampled import real_queries
from .near import NearField


@dataclass(frozen=True, eq=False)
class Plan:
    """The exact keys and the features of a call.

    Parameters
    ----------
    field : NearField or None
        The keys to attend to exactly.
    n_groups : int
        Number of groups of features.
    prototypes : tuple of mechanisms
        Maps of all groups without data, or a single one that needs data; empty without features.
    """

    field: NearField | None
    n_groups: int
    prototypes: tuple

    def maps(self, mechanisms, shrink=None):
        """Return the `HeadSet` of one mechanism, or of one for every query head."""
        drawn = self.prototypes
        groups = zip(*(in_groups(own, self.n_groups, drawn) for own in mechanisms), strict=True)
        return HeadSet(tuple(tuple(map(Head, group)) for group in groups), shrink)


def needs_data(feature_map):
    """Return whether a map can only be fitted to data."""
    return getattr(feature_map, "needs_data", not hasattr(feature_map, "fit_without_data"))


def is_none(feature_map):
    """Return whether far keys are left out."""
    return isinstance(feature_map, str) and feature_map == "none"


def share_of(feature_map, n_groups):
    """Return the number of components per group."""
    n_components = getattr(feature_map, "n_components", None)
    if not isinstance(n_components, Integral) or n_components % n_groups:
        raise ValueError(
            f"n_groups={n_groups} must divide the n_components of feature_map, got {feature_map!r}."
        )
    return n_components // n_groups


def adapted(plan, queries, keys, before=None):
    """Return the map with the statistics of rows.

    `before` is a mechanism whose statistics are merged with them.
    """
    prototype = plan.prototypes[0]
    check_range("q", queries)
    if keys.shape[0]:
        check_range("k", keys)
    if before is not None:
        return copy.copy(before).partial_fit(queries, keys=keys) if keys.shape[0] else before
    if needs_data(prototype):
        queries, keys = to_host(queries), to_host(keys)
        return fit_to(clone(prototype), queries, keys if keys.shape[0] else queries)
    return prototype.adapted(queries, keys) if keys.shape[0] else prototype


def pooled(groups, numbers, own):
    """Return queries of some query heads, and keys, of some sets on the host, without padding."""
    width = groups.k.shape[-1]
    numbers = numbers[0] if len(numbers) == 1 else numbers  # no copy for a single set
    queries, keys = groups.q[numbers][..., own, :, :], groups.k[numbers].reshape(-1, width)
    if groups.padding is not None:
        keys = keys[~groups.padding[numbers].ravel()]
        counts = real_queries(groups.padding[numbers], queries.shape[-2])
        queries = queries[np.broadcast_to(counts[..., None, :], queries.shape[:-1])]
    return queries.reshape(-1, width), keys


def rows_of_sets(groups, most):
    """Return a limited number of queries and keys of every set, in their library."""
    hidden = to_host(groups.padding)
    n_sets, n_heads, n_queries, _ = groups.q.shape
    queries = [_some(np.arange(n_heads * n_queries), most)] * n_sets
    keys = [_some(np.arange(groups.k.shape[1]), most)] * n_sets
    if hidden is not None:
        keys = [_some(np.flatnonzero(~own), most) for own in hidden]
        counts = np.tile(real_queries(hidden, n_queries), n_heads)
        queries = [_some(np.flatnonzero(own), most) for own in counts]
    return list(zip(_taken(groups.q, queries), _taken(groups.k, keys), strict=True))


def _taken(X, places):
    """Return rows of every set, given their indices per set, in one copy."""
    rows = constant(namespace(X).reshape(X, (-1, X.shape[-1])))
    starts = np.arange(len(places)) * (rows.shape[0] // len(places))
    numbers = [start + own for start, own in zip(starts, places, strict=True)]
    found, stops = take(rows, np.concatenate(numbers)), np.cumsum([len(own) for own in places])
    return [found[stop - len(own) : stop, :] for own, stop in zip(places, stops, strict=True)]


def _some(rows, most):
    """Return at most `most` rows, spread over all of them."""
    return rows[:: max(1, -(-len(rows) // most))]


def in_groups(mechanism, n_groups, drawn=()):
    """Return a fitted mechanism and others with the same parameters, drawn separately.

    Random numbers that groups with the same seed have already `drawn` are reused.
    """
    if 1 < n_groups == len(drawn) and hasattr(mechanism, "drawn_as"):
        if drawn[0].seed_ == mechanism.seed_:
            return mechanism, *map(mechanism.drawn_as, drawn[1:])
    seeds = (seed_of(mechanism.seed_, g) for g in range(1, n_groups))
    return mechanism, *(_redrawn(mechanism, seed) for seed in seeds)


def seed_of(seed, group):
    """Return the seed of a group; neighbouring seeds have no group seeds in common."""
    return seed if group == 0 else int(np.random.default_rng([seed, group]).integers(2**31))


def cost_of(maps, n_queries):
    """Return the cost of features per query in exact keys; query heads share those of keys."""
    return sum(
        head.keys.n_columns * (1 / len(group) + 1 / n_queries)
        for group in maps.groups
        for head in group
    )


def redrawn_sets(sets, seed):
    """Return sets whose mechanisms have the same parameters but other draws.

    `seed` returns the seed of a mechanism, given the mechanism and the index of its group.
    """

    def redrawn(own):
        groups = (
            tuple(Head(_redrawn(head.mechanism, seed(head.mechanism, g))) for head in group)
            for g, group in enumerate(own.groups)
        )
        return replace(own, groups=tuple(groups))

    found = {id(own): redrawn(own) for own in sets}
    return [found[id(own)] for own in sets]


def _redrawn(mechanism, seed):
    """Return a fitted mechanism with the same parameters and another draw."""
    if not hasattr(mechanism, "redraw"):
        raise ValueError(
            "groups, redraw and diagnose need a feature_map that can be drawn anew, got "
            f"{mechanism!r}: use a mechanism of skrf."
        )
    return copy.copy(mechanism).redraw(seed)
