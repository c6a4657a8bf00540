"""Cluster centres for the mechanisms that look at single rows."""

import numpy as np
from sklearn.cluster import KMeans


def cluster_centers(points, n_clusters, rng):
    """Return k-means centres, never more than there are distinct points.

    Parameters
    ----------
    points : ndarray of shape (n, d)
        The points.
    n_clusters : int
        Number of centres wanted.
    rng : Generator
        Source of the seed.
    """
    seed = int(rng.integers(np.iinfo(np.int32).max))
    distinct = np.unique(points, axis=0)
    if len(distinct) <= n_clusters:
        return distinct
    return KMeans(n_clusters, n_init=1, max_iter=20, random_state=seed).fit(points).cluster_centers_
