"""Centres and their order for the mechanisms that look at single rows."""

import numpy as np

_SAME = 1e-7  # of the widest column


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
    # Points that agree to about the rounding of a distance are one: k-means cannot part them.
    step = _SAME * np.ptp(points, axis=0).max() or 1.0
    first = np.unique(np.round((points - points[0]) / step), axis=0, return_index=True)[1]
    if len(first) <= n_clusters:
        return np.unique(points[first], axis=0)
    from sklearn.cluster import KMeans  # 12 MB that most users never need

    return KMeans(n_clusters, n_init=1, max_iter=20, random_state=seed).fit(points).cluster_centers_


def spatial_order(points):
    """Return an order in which neighbours in the list are neighbours in space.

    The leaves of a k-d tree from left to right: every set is split at the median of its widest
    coordinate. Systematic sampling along this order spreads a sample evenly over the points.

    Parameters
    ----------
    points : ndarray of shape (n, d)
        The points.
    """
    order, stack = [], [np.arange(len(points))]
    while stack:
        members = stack.pop()
        if len(members) == 1:
            order.append(members[0])
            continue
        values = points[members]
        widest = values[:, values.var(axis=0).argmax()]
        members = members[np.argsort(widest, kind="stable")]
        half = len(members) // 2
        stack += [members[half:], members[:half]]
    return np.array(order)
