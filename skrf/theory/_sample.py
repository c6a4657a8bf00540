"""Subsamples of rows, and errors on the pairs that they form."""

import numpy as np

from .._sums import log_estimate
from .._validation import as_generator, check_range, check_rows
from ..features import BaseRandomFeatures, in_range, mapped

MAX_ROWS = 400


def check_feature_map(feature_map, name="feature_map"):
    """Raise unless an object is a feature map."""
    if isinstance(feature_map, type) or not isinstance(feature_map, BaseRandomFeatures):
        raise TypeError(
            f"{name} must be an instance of a feature map of skrf, got {feature_map!r}."
        )


def check_sides(X, Y):
    """Return queries, and keys unless they are None, or raise and name them."""
    X, Y = check_rows("X", X), None if Y is None else check_rows("Y", Y)
    check_range("X", X)
    if Y is not None:
        check_range("Y", Y)
    if Y is not None and Y.shape[1] != X.shape[1]:
        raise ValueError(f"Y must have the {X.shape[1]} features of X, got {Y.shape[1]}.")
    return X, Y


def sample_rows(X, random_state, most=MAX_ROWS):
    """Return sorted indices of at most so many rows of X, drawn without replacement."""
    n = X.shape[0]
    return np.sort(as_generator(random_state).choice(n, min(n, most), replace=False))


def log_ratio(log_squares, log_kernel):
    """Return the log of summed squares of errors over summed squares of the kernel."""
    total = np.logaddexp.reduce(log_squares, axis=None)
    return total - np.logaddexp.reduce(2 * log_kernel, axis=None)


def sides_of(feature_map, X, Y):
    """Return the features of queries and keys, as `skrf._sums` takes them."""
    pairs = zip(feature_map.feature_maps_, (X, Y), strict=True)
    return [mapped(side, in_range(side, Z)) for side, Z in pairs]


def log_errors_of(feature_map, X, Y, seeds):
    """Return the log of the measured mean squared error of every pair, the mean over seeds."""
    log_kernel, total = feature_map.exact_kernel(X, Y, log=True), -np.inf
    for seed in seeds:
        logs, sign = log_estimate(*sides_of(feature_map.redraw(seed), X, Y), is_exact=False)
        top = np.maximum(logs, log_kernel)
        with np.errstate(divide="ignore"):  # an error may be 0
            errors = np.log(np.abs(sign * np.exp(logs - top) - np.exp(log_kernel - top))) + top
        total = np.logaddexp(total, 2 * errors)
    return total - np.log(len(seeds))
