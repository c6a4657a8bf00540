"""Rows, centres and their order, for feature maps that look at single rows.

Equal rows are merged, with the sum of their weights, and sorted lexicographically, so that weights
act as repetitions in every later choice, and the order of the input does not matter.
"""

import math
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import cdist
from sklearn import config_context
from sklearn.utils.multiclass import type_of_target

from .._threads import serial_openmp
from .._validation import as_numpy, check_present

_SAME = 1e-7  # of the widest column: k-means cannot separate points that are closer
_MOST_COLUMNS = 64  # in which k-means works: distances are kept to a tenth
_JITTER = 1e-7  # share by which points move, far above the rounding of distances
_PARALLEL_DISTANCES = 2**21  # between points and centres, from which threads save time
_ROUNDING = 1e-14  # of a coordinate, with a margin
_LEAST_WEIGHT = 1e-30  # relative to the largest, because k-means divides by sums of weights


def unique_rows(X, weights=None, labels=None):
    """Return the distinct rows in lexicographic order, with weights and labels.

    Parameters
    ----------
    X : ndarray or sparse matrix of shape (n, d)
        The rows.
    weights : ndarray of shape (n,), default=None
        Their weights; None means 1 for every row.
    labels : ndarray of shape (n,), default=None
        Codes 0, 1, ...; equal rows with different labels are distinct.

    Returns
    -------
    tuple
        The rows, the sums of the weights of equal ones, and the labels.
    """
    codes = row_codes(X)
    if labels is not None:
        codes = codes * (labels.max() + 1) + labels
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    totals = np.bincount(inverse, weights).astype(np.float64)
    return X[first], totals, None if labels is None else labels[first]


def row_codes(X):
    """Return numbers that sort like the rows in lexicographic order."""
    codes, tied = np.zeros(X.shape[0], np.int64), np.arange(X.shape[0])
    # Few columns distinguish most dense rows.
    start, width = 0, X.shape[1] if sp.issparse(X) else 1
    while start < X.shape[1] and len(tied):
        block = X[:, start : start + width][tied]
        codes *= len(tied)
        codes[tied] += np.unique(_row_keys(block), return_inverse=True)[1]
        codes = np.unique(codes, return_inverse=True)[1]
        tied = np.flatnonzero(np.bincount(codes)[codes] > 1)
        start, width = start + width, 4 * width
    return codes


def _row_keys(X):
    """Return a byte string per row that compares like the row."""
    if not sp.issparse(X):
        bits = (X.astype(np.float64, order="C") + 0.0).view(np.int64)  # no -0
        bits = np.where(bits < 0, ~bits, bits | np.int64(-(2**63))).astype(">i8")
        return bits.view(f"V{8 * X.shape[1]}").ravel()
    # Rows compare by the first entry in which they differ. Only nonzero entries are stored: their
    # sign ranks them against entries further right, and the end of a row counts as 0.
    X = sp.csr_array(X, copy=True)
    X.eliminate_zeros()
    X.sort_indices()
    values, ranks = np.unique(X.data, return_inverse=True)
    places = np.where(X.data > 0, X.shape[1] - X.indices, X.indices - X.shape[1])
    codes = np.insert(places.astype(np.int64) * len(values) + ranks, X.indptr[1:], 0)
    packed = (codes - codes.min()).astype(">i8").tobytes()
    ends = 8 * (X.indptr.astype(np.int64) + np.arange(len(X.indptr)))
    return np.array([packed[a:b] for a, b in pairwise(ends.tolist())], dtype=object)


def spread_rows(X, codes, weights, most, rng):
    """Return indices and weights of at most `most` distinct rows, spread evenly over their codes.

    Rows that differ only in their codes are distinct.

    Parameters
    ----------
    X : ndarray or sparse matrix of shape (n, d)
        Rows.
    codes : ndarray of int of shape (n,)
        Codes in the order of the targets; the result has the same order.
    weights : ndarray of shape (n,) or None
        Weights of the rows.
    most : int
        Largest number of rows.
    rng : Generator
        Source of the order of rows with the same code, and of the draw.
    """
    joint_codes = row_codes(X) * (codes.max() + 1) + codes
    _, first, inverse = np.unique(joint_codes, return_index=True, return_inverse=True)
    order = np.lexsort((rng.permutation(len(first)), codes[first]))
    indices, weights = representatives(np.bincount(inverse, weights)[order], most, rng)
    return first[order[indices]], weights


def systematic_counts(weights, total, rng):
    """Return how often each item is drawn in `total` draws by systematic sampling.

    Every count is its expectation, rounded up or down.

    Parameters
    ----------
    weights : ndarray of shape (n,)
        Items are drawn in proportion to these.
    total : int
        Number of draws.
    rng : Generator
        Source of the single random number needed.
    """
    edges = np.floor(total * np.cumsum(weights / np.sum(weights)) + rng.uniform())
    edges[-1] = total
    return np.diff(edges, prepend=0).astype(int)


def representatives(weights, most, rng):
    """Return indices and weights of at most `most` rows that represent all.

    Parameters
    ----------
    weights : ndarray of shape (n,)
        Weights of the rows.
    most : int
        Largest number of rows; if there are more, some are drawn by their weights.
    rng : Generator
        Source of the draw.
    """
    if len(weights) <= most:
        # None may be 0, because callers take logs.
        shares = np.maximum(weights / weights.max(), np.finfo(float).tiny)
        return np.arange(len(weights)), shares
    counts = systematic_counts(weights, most, rng)
    return np.flatnonzero(counts), counts[counts > 0].astype(np.float64)


def nearly_least(values, margin):
    """Return whether values are the least along the last axis, or above it by at most a margin."""
    return values <= values.min(axis=-1, keepdims=True) + margin


def cluster_centers(points, weights, n_clusters, rng, axes=None):
    """Return k-means centres, never more than there are distinct points.

    K-means has ties: points on a lattice are equally far from several centres, and of two points
    that are each other's neighbours either may become a centre. Rounding, which depends on the
    processor and on whether rows are sparse, must not decide them, so clusters are found among
    points that are moved and reweighted a little, always in the same way.

    Parameters
    ----------
    points : ndarray of shape (n, d)
        The points.
    weights : ndarray of shape (n,)
        Their weights.
    n_clusters : int
        Number of centres.
    rng : Generator
        Source of the seed.
    axes : ndarray of shape (d, k), default=None
        The result of `axes_for` if it is at hand.
    """
    seed = int(rng.integers(np.iinfo(np.int32).max))
    places = _places(points, axes_for(points) if axes is None else axes)
    # The step is irrational, because data may lie on a lattice.
    steps = np.round(places / (math.sqrt(2) * _SAME))
    _, first = np.unique(steps, axis=0, return_index=True)
    if len(first) <= n_clusters:
        return points[first]
    from sklearn.cluster import KMeans  # 12 MB that most users never need

    lengths = np.linalg.norm(places - np.median(places, axis=0), axis=1)
    noise = np.random.default_rng(seed).uniform(
        -_JITTER, _JITTER, (len(points), 1 + places.shape[1])
    )
    moved = places + noise[:, 1:] * (lengths + np.median(lengths))[:, None]
    shares = np.maximum(weights / weights.max(), _LEAST_WEIGHT)
    kmeans = KMeans(n_clusters, n_init=1, max_iter=20, random_state=seed)
    # scikit-learn 1.6 fails if array_api_dispatch is set.
    is_small = len(points) * n_clusters < _PARALLEL_DISTANCES
    with (
        config_context(array_api_dispatch=False),
        serial_openmp() if is_small else nullcontext(),
    ):
        labels = kmeans.fit(moved, sample_weight=shares * (1 + noise[:, 0])).labels_
    members = sp.csr_array((shares, (labels, np.arange(len(points)))), (n_clusters, len(points)))
    totals = members.sum(axis=1)
    means = members[totals > 0] @ (points - points[0]) / totals[totals > 0, None]
    return points[0] + means


def axes_for(points):
    """Return few random directions on which wide points are projected, None for others."""
    width = points.shape[1]
    if width <= _MOST_COLUMNS:
        return None
    return np.random.default_rng(0).normal(scale=_MOST_COLUMNS**-0.5, size=(width, _MOST_COLUMNS))


def _places(points, axes):
    """Return the points on the axes in units of their spread."""
    places = points - points[0]
    places = places if axes is None else places @ axes
    return places / (np.ptp(places, axis=0).max() or 1.0)


def nearest(points, centers):
    """Return the centre that is nearest to each point, the first of those that are equally near.

    Parameters
    ----------
    points : ndarray of shape (n, d)
        The points.
    centers : ndarray of shape (C, d)
        The centres.
    """
    squares = cdist(points, centers, "sqeuclidean")
    least = squares.min(axis=1, keepdims=True)
    # Coordinates are rounded, however near to each other the points are.
    rounding = _ROUNDING * max(np.abs(points).max(initial=0), np.abs(centers).max(initial=0))
    return nearly_least(squares, _JITTER * least + rounding * np.sqrt(least)).argmax(axis=1)


def centers_of_classes(points, weights, labels, n_clusters, rng):
    """Return a list of k-means centres of each class, by their weights and at least one each.

    Parameters
    ----------
    points, weights, n_clusters, rng
        As in `cluster_centers`.
    labels : ndarray of shape (n,) or None
        Codes of the classes; None means a single class.
    """
    labels = np.zeros(len(points), int) if labels is None else by_first(labels)
    sizes, axes = np.bincount(labels, weights), axes_for(points)
    return [
        cluster_centers(points[labels == k], weights[labels == k], count, rng, axes)
        for k, count in enumerate(_proportional_counts(sizes, n_clusters))
        if sizes[k] > 0
    ]


def by_first(codes):
    """Return codes numbered by their first occurrence, whatever the labels are called."""
    _, first, numbers = np.unique(codes, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[numbers]


def class_labels(centers, y, kept_rows, keys, most, name):
    """Return the codes of the classes to look for clusters in, or None for all rows.

    Parameters
    ----------
    centers : str
        The parameter: "classes" uses classes, and so does "auto" if there are some.
    y, kept : array-like and ndarray
        Labels, or None, and which of them to keep.
    keys : array or None
        Keys; classes are not used with keys.
    most : int
        Largest number of classes to use.
    name : str
        Name of the parameter with that limit.
    """
    labels = None
    if keys is None and centers in ("auto", "classes"):
        labels = _class_codes(y, kept_rows, most, floats=centers == "classes")
    if centers == "classes" and labels is None:
        raise ValueError(
            f"centers='classes' needs discrete class labels y, at most {most} ({name}) different "
            f"ones, and keys=None; got y={y!r:.60} and keys {'None' if keys is None else 'given'}. "
            "Or use centers='kmeans'."
        )
    return labels


def _class_codes(y, kept_rows, most, *, floats):
    """Return labels 0, 1, ... of the kept rows of y, or None.

    Labels are discrete values, at most `most` different ones, and floats only if `floats` allows
    them: whole numbers stored as floats are more often targets than classes.
    """
    if y is None or sp.issparse(y):
        return None
    y = as_numpy("y", y)[kept_rows]
    check_present("y", y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    with np.errstate(invalid="ignore"):  # casting NaN, which is then rejected
        kind = type_of_target(y, input_name="y")
    if kind not in ("binary", "multiclass") or (y.dtype.kind == "f" and not floats):
        return None
    classes, codes = np.unique(y, return_inverse=True)
    return codes if len(classes) <= most else None


def _proportional_counts(sizes, total):
    """Split `total` by the sizes, at least one each."""
    extra = (total - len(sizes)) * np.cumsum(sizes) / np.sum(sizes)
    # Halves stay halves for any common factor of the weights.
    return 1 + np.diff(np.round(np.round(extra, 9)), prepend=0).astype(int)


def spatial_order(points):
    """Return an order in which neighbours in the list are neighbours in space.

    The leaves of a k-d tree from left to right: every set is split at the median of the coordinate
    with the widest range. Systematic sampling along this order spreads a sample evenly over space.

    Parameters
    ----------
    points : ndarray of shape (n, d)
        The points.
    """
    order, stack = [], [np.arange(len(points))]
    step = math.sqrt(2) * _SAME * np.ptp(points, axis=0).max() or 1.0
    while stack:
        members = stack.pop()
        if len(members) == 1:
            order.append(members[0])
            continue
        values = points[members]
        spreads = -np.ptp(values, axis=0)
        widest = nearly_least(spreads, -_SAME * spreads.min()).argmax()
        # The order of points that differ by rounding stays.
        places = np.round(values[:, widest] / step)
        members = members[np.argsort(places, kind="stable")]
        half = len(members) // 2
        stack += [members[half:], members[:half]]
    return np.array(order)
