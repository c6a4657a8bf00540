"""A generated classification set on which linear models fail and more rows keep helping."""

import numpy as np

from .._typing import RandomState
from .._validation import as_generator, check_integer

__all__ = ["make_cells"]

_BLOCK = 2**22  # entries of a temporary array


def make_cells(
    n_samples: int = 1000,
    *,
    n_features: int = 8,
    n_classes: int = 5,
    n_cells: int = 40,
    random_state: RandomState = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return normally distributed rows, labelled by the nearest of some random points.

    Every class is a union of cells that lie among those of other classes, so no linear model can
    separate them. The boundaries are sharp: with enough rows, a flexible model may be perfect.

    Parameters
    ----------
    n_samples : int, default=1000
        Number of rows. More rows with the same seed have the same cells.
    n_features : int, default=8
        Number of columns.
    n_classes : int, default=5
        Number of classes, at most `n_cells`.
    n_cells : int, default=40
        Number of points; point i belongs to class i modulo `n_classes`.
    random_state : int, RandomState instance or None, default=None
        Source of the points and rows.

    Returns
    -------
    X : ndarray of shape (n_samples, n_features)
        Rows.
    y : ndarray of int of shape (n_samples,)
        Labels from 0 to ``n_classes - 1``.

    Raises
    ------
    ValueError
        If a parameter is not a positive integer, or there are more classes than cells.

    See Also
    --------
    load_uci : Real rows with labels.
    sklearn.datasets.make_classification : Clusters at the corners of a hypercube.

    Examples
    --------
    >>> from skrf.datasets import make_cells
    >>> X, y = make_cells(1000, random_state=0)
    >>> X.shape, sorted(set(y.tolist()))
    ((1000, 8), [0, 1, 2, 3, 4])
    """
    sizes = {"n_samples": n_samples, "n_features": n_features}
    for name, size in (sizes | {"n_classes": n_classes, "n_cells": n_cells}).items():
        check_integer(name, size)
    if n_classes > n_cells:
        raise ValueError(f"n_classes must be at most n_cells={n_cells}, got {n_classes}.")
    rng = as_generator(random_state)
    points = rng.normal(size=(n_cells, n_features))
    X, y = rng.normal(size=(n_samples, n_features)), np.empty(n_samples, dtype=np.int64)
    size = max(1, _BLOCK // n_cells)
    for start in range(0, n_samples, size):
        rows = X[start : start + size]
        nearness = rows @ points.T - np.sum(points**2, axis=1) / 2
        y[start : start + size] = np.argmax(nearness, axis=1) % n_classes
    return X, y
