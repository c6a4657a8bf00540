"""Checks at the public edge: inputs, weights and the wording of their errors."""

import re
from contextlib import contextmanager

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _check_sample_weight,
    check_array,
    validate_data,
)

from ._arrays import is_foreign, namespace, take, to_host

_FLOATS = (np.float64, np.float32)


@contextmanager
def _naming(name):
    """Put the name of the input in front of errors that do not tell it."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if re.search(rf"\b{name}\b", str(error)):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}: {error}") from error


def validate_rows(estimator, X, *, reset, name="X"):
    """Return the rows of X as floats, float32 kept and everything else float64.

    Parameters
    ----------
    estimator : BaseEstimator
        Owner of ``n_features_in_`` and ``feature_names_in_``.
    X : array-like, sparse matrix, CuPy array or torch tensor of shape (n, d)
        The rows.
    reset : bool
        Whether X sets the number and names of the features, or is compared with them.
    name : str, default="X"
        What error messages call the input.

    Returns
    -------
    array or csr matrix
        The rows in the library of X.
    """
    if is_foreign(X):
        return _validate_foreign(estimator, X, reset=reset, name=name)
    if name == "X":
        rows = validate_data(
            estimator, X, accept_sparse="csr", dtype=_FLOATS, reset=reset, ensure_min_features=1
        )
        return _canonical(rows)
    _check_feature_names(estimator, X, reset=False)
    with _naming(name):
        rows = check_array(
            X,
            accept_sparse="csr",
            dtype=_FLOATS,
            input_name=name,
            estimator=type(estimator).__name__,
        )
    _same_width(estimator, rows, name)
    return _canonical(rows)


def _canonical(rows):
    """Return sparse rows with every entry stored once: squares of its parts would be wrong."""
    if sp.issparse(rows) and not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


def _validate_foreign(estimator, X, *, reset, name):
    xp = namespace(X)
    if X.ndim != 2:
        raise ValueError(f"Expected 2D array for {name}, got {X.ndim}D array instead.")
    if X.shape[0] < 1 or X.shape[1] < 1:
        raise ValueError(
            f"Found array {name} with shape {tuple(X.shape)} while a minimum of 1 row and "
            "1 feature is required."
        )
    if xp.isdtype(X.dtype, "complex floating"):
        raise ValueError(f"Complex data not supported in {name}, got dtype {X.dtype}.")
    if X.dtype not in (xp.float32, xp.float64):
        X = xp.astype(X, xp.float64)
    if not bool(xp.all(xp.isfinite(X))):
        raise ValueError(f"Input {name} contains NaN or infinity.")
    _check_feature_names(estimator, X, reset=reset)
    if name == "X":
        _check_n_features(estimator, X, reset=reset)
    else:
        _same_width(estimator, X, name)
    return X


def _same_width(estimator, rows, name):
    if rows.shape[1] != estimator.n_features_in_:
        raise ValueError(
            f"{name} has {rows.shape[1]} features, but {type(estimator).__name__} was fitted "
            f"with {estimator.n_features_in_} features in X."
        )


def drop_zero_weights(sample_weight, X, *others):
    """Validate weights and leave out the rows of weight zero: they count as removed.

    Parameters
    ----------
    sample_weight : array-like of shape (n,), float or None
        Weights of the rows of X, at least 0; None is 1 for every row.
    X : array of shape (n, d)
        The rows.
    *others : array of shape (n, ...)
        Arrays of as many rows that are cut alike.

    Returns
    -------
    tuple
        The positive weights (None where none were given), X and the others.
    """
    if sample_weight is None:
        return (None, X, *others)
    with _naming("sample_weight"):
        # Of X it reads the number of rows: those of other libraries stay where they are.
        rows = np.empty((X.shape[0], 0)) if is_foreign(X) else X
        weights = to_host(sample_weight)
        weights = _check_sample_weight(weights, rows, dtype=np.float64, copy=False)
    if weights.min() < 0:
        raise ValueError(f"sample_weight must be >= 0 everywhere, got {float(weights.min())!r}.")
    keep = weights > 0
    if not keep.any():
        raise ValueError("sample_weight must be positive for at least one row, got only 0.")
    if keep.all():
        return (weights, X, *others)
    rows = X.tocsr() if sp.issparse(X) else X
    keep = np.flatnonzero(keep)
    return (weights[keep], take(rows, keep), *(other[keep] for other in others))
