"""What sigma=None, "scale" and "median" stand for."""

import math

import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import pdist
from sklearn.metrics.pairwise import manhattan_distances

from .._arrays import LARGEST, largest_entry, squared_distances
from .._memory import class_name
from ._clusters import representatives, unique_rows
from .spectra import SPECTRA
from .streams import MEDIAN

_MEDIAN_ROWS = 1000
_SMALLEST = 1e-145  # the square of its rounding error is still a float
_RELATIVE_ROUNDING = 1e-14  # of a mean of thousands of equal numbers, with a margin


def resolve_sigma(feature_map, statistics, sample):
    """Return the multiplier of the inputs as a float.

    Parameters
    ----------
    feature_map : feature map
        Feature map with the parameter ``sigma``.
    statistics : PairStatistics
        Of the rows.
    sample : Sample
        The rows themselves; without queries if only statistics are available.
    """
    sigma = feature_map.sigma
    if sigma is None:  # the softmax kernel is no function of distances: sigma is part of it
        sigma = 1.0 if feature_map.kernel == "softmax" else "scale"
    if isinstance(sigma, str):
        sigma = _of_data(sigma, SPECTRA.get(feature_map.kernel), statistics.queries, sample)
    # float32 would overflow in the comparison, and a huge integer in the conversion to float.
    elif (sigma if isinstance(sigma, int) else float(sigma)) > LARGEST:
        raise ValueError(
            f"The 'sigma' parameter of {class_name(feature_map)} must be 'scale', 'median' or a "
            f"float in the range (0.0, {LARGEST}]. Got {sigma!r} instead."
        )
    sigma = float(sigma)
    _check_scaled("X", sigma, statistics.queries, sample.queries)
    if statistics.keys is not statistics.queries:
        _check_scaled("keys", sigma, statistics.keys, sample.keys)
    return sigma


def _check_scaled(name, sigma, moments, rows):
    """Raise unless squares of the rows, scaled or not, are floats."""
    largest = _least_largest(moments)
    if rows is not None and sigma > 1:
        largest = max(largest, largest_entry(rows))
    check_largest(name, sigma, largest)


def check_largest(name, sigma, largest):
    """Raise unless the square of the largest entry of rows, scaled or not, is a float."""
    if not max(sigma, 1.0) * largest <= LARGEST:
        raise ValueError(
            f"{name} is too large at sigma={sigma:.4g}: its entries, and sigma times these, must "
            f"be at most {LARGEST:g}. The largest entry of {name} is {largest:.4g}."
        )


def _least_largest(moments):
    """Return the least that the largest entry of rows with these moments can be."""
    return float(np.hypot(moments.mean, np.sqrt(moments.variances)).max())


def _of_data(rule, spectrum, queries, sample):
    """Return what "scale" or "median" stands for, without a spectrum of the Gaussian kernel."""
    if rule == "median":
        spread = median_distance(sample, spectrum.metric if spectrum else "euclidean")
    else:
        spread = spectrum.scale(queries) if spectrum else queries.spread
    rows = sample.queries
    largest = _least_largest(queries) if rows is None else largest_entry(rows)
    if 0 < largest < _SMALLEST or not (spread == 0 or 1 / LARGEST <= spread < np.inf):
        raise ValueError(
            f"X is out of the range of sigma={rule!r}: entries of X must not all be below "
            f"{_SMALLEST:g}, and sigma must come out between 0 and {LARGEST:g}, not as one "
            f"over {spread:.4g}. The largest entry of X is {largest:.4g}."
        )
    return math.sqrt(2.0) if spread == 0 else 1 / spread


def median_distance(sample, metric="euclidean"):
    """Return the median distance of at most 1,000 distinct queries, or 0 if all are equal."""
    X, weights, _ = unique_rows(sample.queries, sample.weights)
    indices, weights = representatives(weights, _MEDIAN_ROWS, sample.rng(MEDIAN))
    X = X[indices]
    pairs = np.triu_indices(X.shape[0], 1)
    if not sp.issparse(X):
        distances = pdist(np.asarray(X, dtype=np.float64), metric)
    elif metric == "cityblock":
        distances = manhattan_distances(X.astype(np.float64))[pairs]
    else:
        distances = np.sqrt(squared_distances(X, X)[pairs])
    apart = distances > 0
    if not apart.any():
        return 0.0
    return weighted_median(distances[apart], np.outer(weights, weights)[pairs][apart])


def weighted_median(values, weights):
    """Return the median of values, each repeated as often as its weight."""
    return weighted_quantile(values, weights, 0.5)


def weighted_quantile(values, weights, share):
    """Return a quantile of values, each repeated as often as its weight; 0 < share < 1."""
    order = np.argsort(values)
    shares = np.cumsum(weights[order])
    place, room = shares[-1] * share, shares[-1] * _RELATIVE_ROUNDING
    sides = np.searchsorted(shares, [place - room, place + room])
    return float(np.mean(values[order[sides]]))
