"""Several maps of the same rows as one map with their columns side by side."""

from itertools import accumulate, pairwise

import numpy as np

from .._arrays import namespace
from .._sums import Rows
from ._map import FeatureMap
from .gaussian import GaussianMap


def side_by_side(maps):
    """Return one map with the columns of several, one after the other.

    Parameters
    ----------
    maps : sequence of FeatureMap
        Maps of rows of one width, either all or none of them positive.

    Returns
    -------
    FeatureMap
        One product computes all groups of one mechanism that differ only in their draws.
    """
    first, *others = maps
    if not others:
        return first
    if all(isinstance(own, GaussianMap) for own in maps) and first.is_joinable:
        return first.with_columns_of(others)
    return JoinedMap(tuple(maps))


class JoinedMap(FeatureMap):
    """Maps with their columns side by side.

    Parameters
    ----------
    maps : tuple of FeatureMap
        The maps.
    """

    n_features = n_columns = is_positive = is_parallel = None

    def __init__(self, maps):
        self.maps = maps
        self.n_features, self.is_positive = maps[0].n_features, maps[0].is_positive
        self.is_parallel = all(own.is_parallel for own in maps)
        self.n_sines = sum(own.n_sines for own in maps)
        stops = accumulate((own.n_columns for own in maps), initial=0)
        self._columns = [slice(*pair) for pair in pairwise(stops)]
        self.n_columns = self._columns[-1].stop

    def __call__(self, X):
        """Return the `Rows` of X."""
        rows = [own(X) for own in self.maps]
        xp = namespace(rows[0].values)
        values = xp.concat([own.values for own in rows], axis=-1)
        if self.is_positive:
            return Rows(values)
        scales = [xp.broadcast_to(own.scale, own.values.shape) for own in rows]
        return Rows(values, xp.concat(scales, axis=-1))

    def write(self, X, out, room, lower=None):
        """Write the values of rows on the host, map by map, and return their scale."""
        scales = []
        for own, columns in zip(self.maps, self._columns, strict=True):
            part = out[:, columns]
            scale = own.write(X, part, room, None if lower is None else lower[columns])
            scales.append(scale if self.is_positive else np.broadcast_to(scale, part.shape))
        return None if self.is_positive else np.concatenate(scales, axis=1)

    def pull_back(self, X, by_values):
        """Return the gradient with respect to X, given the gradient with respect to values."""
        parts = zip(self.maps, self._columns, strict=True)
        return sum(own.pull_back(X, by_values[..., columns]) for own, columns in parts)

    def exponent_bound(self, X):
        """Return the largest bound of any of the maps."""
        return float(np.max([own.exponent_bound(X) for own in self.maps]))
