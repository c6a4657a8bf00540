"""Subsamples of rows on which pairs are looked at."""

import numpy as np
from sklearn.utils import check_array, check_random_state

from .._validation import naming

MAX_ROWS = 400


def check_mechanism(mechanism, name="mechanism"):
    """Raise unless an object is a mechanism."""
    if isinstance(mechanism, type) or not hasattr(mechanism, "term_range"):
        raise TypeError(f"{name} must be an instance of a mechanism of skrf, got {mechanism!r}.")


def check_rows(X, name="X"):
    """Return rows, dense or sparse, or raise naming them."""
    with naming(name):
        return check_array(X, accept_sparse="csr", dtype=[np.float64, np.float32], input_name=name)


def sample_rows(X, random_state):
    """Return at most 400 rows of X, drawn without replacement."""
    if X.shape[0] <= MAX_ROWS:
        return X
    rows = check_random_state(random_state).choice(X.shape[0], MAX_ROWS, replace=False)
    return X[np.sort(rows)]


def relative_error(mechanism, X, Y):
    """Return the predicted relative error of the kernel matrix of X and Y.

    The root of the summed closed-form variances over the summed squares of the kernel, in log
    space.
    """
    log_variance = mechanism.kernel_variance(X, Y, log=True)
    log_kernel = mechanism.exact_kernel(X, Y, log=True)
    total = np.logaddexp.reduce(log_variance, axis=None)
    with np.errstate(over="ignore"):  # an infinite error is an answer
        return float(np.exp((total - np.logaddexp.reduce(2 * log_kernel, axis=None)) / 2))
