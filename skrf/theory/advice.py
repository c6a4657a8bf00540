"""Which mechanism to use for a task."""

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Literal

import numpy as np
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_consistent_length

from .._typing import Array, Kernel, Sigma
from .._validation import check_integer, check_labels
from ..features import BaseRandomFeatures, RFFSampler, fitted_at
from ..regression import (
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
    KernelRegressionClassifier,
    KernelRegressor,
)
from ._sample import check_rows, sample_rows
from .choice import checked_mechanisms, compare, default_mechanisms

_CRITERIA = {"kernel_regression": "sums", "ridge": "frobenius", "kernel": "log"}
_USES = {  # by whether y is continuous
    "kernel_regression": (KernelRegressionClassifier, KernelRegressor),
    "ridge": (
        partial(ApproxKernelRidgeClassifierCV, sigmas=None),
        partial(ApproxKernelRidgeCV, sigmas=None),
    ),
}
_ROUNDS = ((500, 3, 3), (2000, 5, None))  # rows, folds, and how many of the best advance
_LEAST_ROWS = 2  # of a fold, without which there is no coefficient of determination
_SHARES = np.logspace(-0.75, 1.5, 7)  # sigmas relative to "scale"
_FINER = np.logspace(-0.25, 0.25, 5)  # relative to the best of these


def recommend(
    X: Array,
    y: Array | None = None,
    *,
    keys: Array | None = None,
    task: Literal["kernel_regression", "ridge", "kernel"] = "kernel_regression",
    positive: bool = False,
    n_components: int = 100,
    sigma: Sigma | None = None,
    kernel: Kernel = "gaussian",
    mechanisms: Mapping[str, BaseRandomFeatures] | None = None,
    random_state: int = 0,
) -> BaseRandomFeatures:
    """Return the unfitted mechanism that does best at a task, or has the smallest error for it.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Queries.
    y : array-like of shape (n_samples,), default=None
        Targets or class labels. With them, every mechanism is cross-validated on the task with
        seven sigmas on 500 rows, and then the best three with finer ones on 2,000. Without them,
        the error of the kernel decides, as measured by `compare`.
    keys : array-like of shape (n_keys, n_features), default=None
        Keys, only without y; None means X.
    task : {"kernel_regression", "ridge", "kernel"}, default="kernel_regression"
        Purpose of the features: `KernelRegressionClassifier` or `KernelRegressor`; ridge regression
        with a search for alpha, `ApproxKernelRidgeClassifierCV` or `ApproxKernelRidgeCV`; or values
        of the kernel itself. Without y the errors compared are, in this order, those of the
        logarithms of sums over keys, of the matrix, and of the logarithms of its values.
    positive : bool, default=False
        Consider only positive mechanisms.
    n_components : int, default=100
        Number of output columns.
    sigma : float, "scale" or "median", default=None
        Multiplier of the inputs. None means the best one with y, and without y 1 or that of each of
        `mechanisms`.
    kernel : {"gaussian", "softmax"}, default="gaussian"
        The kernel.
    mechanisms : dict of str to mechanism, default=None
        Mechanisms to try; None means `default_mechanisms` with the parameters above.
    random_state : int, default=0
        Seed of draws, subsamples and folds.

    Returns
    -------
    mechanism
        An unfitted clone with the chosen sigma.

    Raises
    ------
    ValueError
        If no positive mechanism is among those to try, if the second argument looks like keys, if
        there are targets for fewer than four rows, or if parameters are invalid or do not go
        together.

    See Also
    --------
    compare : The errors that decide if there are no targets.
    default_mechanisms : The mechanisms that it tries.
    skrf.attention.recommend_attention : The same for attention.

    References
    ----------
    Ours.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skrf.theory import recommend
    >>> X, y = load_iris(return_X_y=True)
    >>> features = recommend(X, y, n_components=20)
    >>> positive = recommend(X, n_components=32, sigma=3.0, positive=True)
    """
    if not isinstance(task, str) or task not in _CRITERIA:
        raise ValueError(f"task must be one of {list(_CRITERIA)}, got {task!r}.")
    if y is not None and np.ndim(y) != 1:
        raise ValueError(
            f"y must be None or of shape (n_samples,), got shape {np.shape(y)}. Keys, which were "
            "the second argument up to version 0.1, are now given as keys=..."
        )
    if y is not None and (keys is not None or task == "kernel"):
        raise ValueError(
            "y is for task='kernel_regression' or 'ridge' without keys, got "
            f"task={task!r} and keys {'None' if keys is None else 'given'}. Leave y=None."
        )
    random_state = check_integer("random_state", random_state, 0)
    if mechanisms is None:
        mechanisms = default_mechanisms(n_components, kernel=kernel)
    mechanisms = checked_mechanisms(mechanisms)
    if sigma is not None:
        mechanisms = {
            name: clone(mechanism).set_params(sigma=sigma) for name, mechanism in mechanisms.items()
        }
    if y is None:
        table = compare(
            X, keys, mechanisms=mechanisms, criterion=_CRITERIA[task], random_state=random_state
        )
        found = [row.mechanism for row in table if row.is_positive or not positive]
    else:
        X, y = check_rows(X, ensure_min_samples=2 * _LEAST_ROWS), check_labels("y", y)
        check_consistent_length(X, y)
        found = _tried(X, y, mechanisms, sigma, task, positive, random_state)
    if not found:
        raise ValueError(f"positive=True, but none of {list(mechanisms)} is positive.")
    return found[0]


def _tried(X, y, mechanisms, sigma, task, positive, random_state):
    """Return unfitted mechanisms with their best sigmas, best at the task first."""
    use = _USES[task][type_of_target(y, input_name="y").startswith("continuous")]
    rng = np.random.default_rng(random_state)
    sigmas = [sigma]
    if sigma is None:
        sigmas = (RFFSampler(2, sigma="scale").fit(X).sigma_ * _SHARES).tolist()
    found = [(mechanism, sigmas) for mechanism in mechanisms.values()]
    for n_rows, n_folds, n_best in _ROUNDS:
        rows = sample_rows(X, random_state, n_rows)
        n_folds = min(n_folds, len(rows) // _LEAST_ROWS)
        fold = _folds(y[rows], n_folds, rng)
        results = []
        for mechanism, sigmas in found:
            scores = [
                _scores(mechanism, sigmas, use, X[rows], y[rows], fold == k, positive, k)
                for k in range(n_folds)
            ]
            scores = np.mean(scores, axis=0)
            best = np.argmax(scores)
            results.append((scores[best], mechanism, sigmas[best]))
        results = sorted((own for own in results if own[0] > -np.inf), key=lambda own: -own[0])
        found = [
            (mechanism, [best] if sigma is not None else (best * _FINER).tolist())
            for _, mechanism, best in results[:n_best]
        ]
    return [clone(mechanism).set_params(sigma=best) for _, mechanism, best in results]


def _folds(y, n_folds, rng):
    """Return the fold of every row, stratified by classes or by the size of targets."""
    fold = np.empty(len(y), int)
    places = np.unique(y, return_inverse=True)[1]
    fold[np.lexsort((rng.permutation(len(y)), places))] = np.arange(len(y)) % n_folds
    return fold


def _scores(mechanism, sigmas, use, X, y, test, positive, seed):
    """Return the test score for every sigma, -inf where the map is not admissible."""
    train = ~test

    def score(fitted):
        if positive and not fitted.is_positive:
            return -np.inf
        return use(FrozenEstimator(fitted)).fit(X[train], y[train]).score(X[test], y[test])

    mechanism = clone(mechanism).set_params(random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [score(fitted) for fitted in fitted_at(mechanism, sigmas, X[train], y[train])]
