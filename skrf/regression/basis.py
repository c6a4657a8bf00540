"""Features of rows, held at once, and few rows in a basis of their own.

Ridge regression depends on features through their inner products alone. Where there are fewer rows
than features, rows are written in an orthonormal basis of the space that they span: as many numbers
as rows, with the same inner products.
"""

from dataclasses import replace

import numpy as np
from scipy.linalg.lapack import dtrtrs

from .._arrays import to_host
from .._sums import Memory, Rows
from ..features import FeatureMap
from .blocks import blocks_of
from .moments import plain_features

_MAGNIFIED = 1e9  # condition of the landmarks' kernel beyond which the root drops directions


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


def features_of(feature_map, X):
    """Return the features of rows on the host in float64, as ridge regression reads them."""
    if isinstance(feature_map, HeldMap):
        return X
    memory = Memory()

    def block(rows):
        values = to_host(plain_features(feature_map, X[rows, :], memory))
        return values.astype(np.float64)  # a copy: the next block reuses the memory

    size, map_blocks = blocks_of(feature_map, X)
    return np.concatenate(map_blocks(block, X.shape[0], size))


def held_features(feature_map, *parts):
    """Return a map that reads features in place of rows, and the parts with their features.

    Fewer rows than features have fewer numbers instead, with the same inner products.
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
