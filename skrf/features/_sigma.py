"""What sigma="scale" and sigma="median" stand for."""

import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import pdist

_MEDIAN_ROWS = 1000
_LARGEST_SIGMA = 1e150  # its square still is a float
_RELATIVE_ROUNDING = 1e-14  # of a mean of thousands of equal numbers, with room


def resolve_sigma(mechanism, statistics, sample):
    """Return the multiplier of the inputs as a float.

    Parameters
    ----------
    mechanism : mechanism
        Owner of the parameter ``sigma``.
    statistics : PairStatistics
        Of the rows.
    sample : Sample
        The rows themselves.
    """
    sigma = mechanism.sigma
    if sigma == "scale":
        queries = statistics.queries
        variance = queries.entry_variance
        # Constant data have the variance of rounding, which would make an enormous sigma.
        is_constant = variance <= _RELATIVE_ROUNDING**2 * np.mean(queries.mean**2)
        gamma = 1.0 if is_constant else 1 / (len(queries.mean) * variance)
        return float(np.sqrt(2 * gamma))
    if sigma == "median":
        median = median_distance(sample)
        return float(np.sqrt(2.0)) if median == 0 else 1 / median
    if sigma > _LARGEST_SIGMA:
        raise ValueError(
            f"The 'sigma' parameter of {type(mechanism).__name__} must be 'scale', 'median' or a "
            f"float in the range (0.0, {_LARGEST_SIGMA}]. Got {sigma!r} instead."
        )
    return float(sigma)


def median_distance(sample):
    """Return the median distance of at most 1,000 queries that differ; 0 where none do."""
    X = sample.queries
    weights = np.ones(X.shape[0]) if sample.weights is None else sample.weights
    if X.shape[0] > _MEDIAN_ROWS:
        chosen = sample.rng_of_rows().choice(X.shape[0], _MEDIAN_ROWS, replace=False)
        rows = np.sort(chosen)
        X, weights = X[rows], weights[rows]
    pairs = np.triu_indices(X.shape[0], 1)
    if sp.issparse(X):
        X = X.astype(np.float64)
        products = (X @ X.T).toarray()
        norms = np.diagonal(products)
        # Equal rows have equal products, so their distance comes out as 0 and is left out.
        squares = np.add.outer(norms, norms) - 2 * products
        distances = np.sqrt(np.maximum(squares[pairs], 0))
    else:
        distances = pdist(np.asarray(X, dtype=np.float64))
    apart = distances > 0
    if not apart.any():
        return 0.0
    return weighted_median(distances[apart], np.outer(weights, weights)[pairs][apart])


def weighted_median(values, weights):
    """Return the median of values that are each repeated as often as their weight says."""
    order = np.argsort(values)
    shares = np.cumsum(weights[order])
    half, room = shares[-1] / 2, shares[-1] * _RELATIVE_ROUNDING
    sides = np.searchsorted(shares, [half - room, half + room])
    return float(np.mean(values[order[sides]]))
