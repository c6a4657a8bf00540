"""Features of few rows in a basis of their own.

Ridge regression depends on features through their inner products alone. Where there are fewer rows
than features, rows are written in an orthonormal basis of the space that they span: as many numbers
as rows, with the same inner products. A search then solves for these numbers.
"""

from dataclasses import replace

import numpy as np
from scipy.linalg.lapack import dtrtrs

from .._arrays import to_host
from .._sums import Memory, Rows
from ..features import FeatureMap, as_feature_map, columns_of
from .blocks import blocks_of
from .moments import plain_features
from .search import judged

_MAGNIFIED = 1e9  # condition of the landmarks' kernel beyond which the root drops directions
# Of features that are held at once: 64 MB, or 256 MB where their moments take more.
HELD_NUMBERS, _MOST_NUMBERS = 2**23, 2**25


def features_of(feature_map, X):
    """Return the features of rows on the host in float64, as ridge regression reads them."""
    memory = Memory()

    def block(rows):
        values = to_host(plain_features(feature_map, X[rows, :], memory))
        return values.astype(np.float64)  # a copy: the next block reuses the memory

    size, map_blocks = blocks_of(feature_map, X)
    return np.concatenate(map_blocks(block, X.shape[0], size))


class HeldMap(FeatureMap):
    """Map that reads features in place of rows.

    Parameters
    ----------
    n_columns : int
        Number of features.
    """

    n_features = n_columns = None
    is_positive = False

    def __init__(self, n_columns):
        self.n_columns = n_columns

    def __call__(self, X):
        """Return the `Rows`."""
        return Rows(X, np.zeros((len(X), 1), X.dtype))


def held(feature_map, *parts):
    """Return rows with their features, or with fewer numbers instead, and the map that reads them.

    Parameters
    ----------
    feature_map : FeatureMap
        The map.
    *parts : Data
        Rows.

    Returns
    -------
    HeldMap, list of Data
        What to use in place of the map and the parts.
    """
    features = np.concatenate([_coordinates(feature_map, part.X) for part in parts])
    if len(features) < features.shape[1]:
        features = np.ascontiguousarray(np.linalg.qr(features.T, mode="r").T)
    ends = np.cumsum([part.X.shape[0] for part in parts])
    rows = np.split(features, ends[:-1])
    return HeldMap(features.shape[1]), [
        replace(part, X=values) for part, values in zip(parts, rows, strict=True)
    ]


def in_basis(feature_map, X):
    """Return an orthonormal basis of few rows' features, and a map and rows of the coordinates."""
    basis, triangle = np.linalg.qr(features_of(feature_map, X).T)
    return basis, HeldMap(len(triangle)), np.ascontiguousarray(triangle.T)


def _coordinates(feature_map, X):
    """Return the features of rows, or others with the same inner products that are cheaper."""
    lower, magnification = feature_map.cholesky
    if lower is None or magnification * feature_map.n_columns > _MAGNIFIED:
        return features_of(feature_map, X)
    features = features_of(feature_map.inner, X)
    return dtrtrs(lower, features.T, lower=1)[0].T


def is_smaller(feature_map, n_rows):
    """Return whether an unfitted map has more features than there are rows, and they fit."""
    n_columns = columns_of(feature_map, n_rows)
    return n_columns is not None and n_rows < n_columns <= _MOST_NUMBERS // n_rows


def judged_in_row_space(search, criterion):
    """Yield what `judged_together` does, but no map and sums, which the best sigma alone gets."""
    data, model = search.data, search.model
    splits = [(np.setdiff1d(np.arange(len(data.y)), test), test) for test in search.tests]
    for fitted in map(search.fit, search.sigmas):
        feature_map, (rows,) = held(as_feature_map(fitted), data)
        parts = (map(rows.part, split) for split in splits)
        yield [judged(model, feature_map, *pair, criterion) for pair in parts], None, None


def judged_apart_in_row_space(search, criterion):
    """Yield the same with maps that are fitted only to the rows outside a test."""
    for fits in map(search.fits_at, search.sigmas):
        scores = []
        for fitted, *parts in fits:
            feature_map, parts = held(as_feature_map(fitted), *parts)
            scores.append(judged(search.model, feature_map, *parts, criterion))
        yield scores, None, None
