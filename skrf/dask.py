"""Fits to Dask collections on any Dask scheduler, and lazy predictions.

Dask only decides where work is done; chunks are processed and sums merged as in `fit_batches`.
Chunks are reduced to sums of fixed size on their workers, and these sums are merged in a tree whose
shape depends only on the number of chunks, so the same chunks give bit-identical results, whichever
workers come and go.
"""

import copy
import uuid
import warnings
from functools import partial
from typing import TypeVar

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from ._batches import SAMPLE_ROWS, Scope, TakesBatches, merged, run_passes
from ._threads import one_thread, serial_blas
from ._typing import Array, Estimator
from ._validation import check_integer

try:
    import dask
    import dask.array as da
    from dask.core import flatten
    from dask.delayed import Delayed
    from dask.highlevelgraph import HighLevelGraph
except ImportError as error:
    raise ImportError(
        "skrf.dask needs Dask, which is not installed: pip install 'scikit-random-features[dask]'."
    ) from error

__all__ = ["apply", "fit"]

Own = TypeVar("Own")

_METHODS = ("predict", "decision_function", "transform", "inverse_transform", "log_transform")
_FAN_IN = 8  # records that a task merges: a power of 2, which keeps the tree of pairs


def fit(
    estimator: Own,
    X: Array,
    y: Array | None = None,
    *,
    sample_weight: Array | None = None,
    classes: Array | None = None,
    sample_rows: int = SAMPLE_ROWS,
) -> Own:
    """Fit an estimator to Dask collections; the result is a plain estimator that needs no Dask.

    Like `fit_batches`, this equals `fit` on all rows, up to rounding. The passes are the same: one
    for statistics, and one for sums. Every pass recomputes a lazy collection: ``persist`` it if
    that is slow and there is enough memory. The scheduler is Dask's: a `distributed.Client` if
    there is one, otherwise threads. Each task uses one thread.

    Parameters
    ----------
    estimator : estimator
        A feature map, `RelevanceScaler`, kernel regression, ridge regression, or one of their
        searches; it is not changed.
    X : dask array, dask DataFrame or list of Delayed
        Rows, in chunks of at most about 100,000: dense or sparse matrices, or tables. Without `y`,
        each Delayed in a list may be a tuple (X, y) or (X, y, sample_weight).
    y : dask array, dask Series or DataFrame, list of Delayed, or array-like, default=None
        Labels or targets, in the same chunks as X. A plain array is split like X if X is a dask
        array with known chunks.
    sample_weight : as y, default=None
        Weights, at least 0; rows of weight 0 are dropped.
    classes : array-like of shape (n_classes,), default=None
        All labels that a classifier will see; None finds them.
    sample_rows : int, default=100_000
        Number of randomly drawn rows from which to learn what statistics do not provide.

    Returns
    -------
    estimator
        A fitted copy.

    Raises
    ------
    TypeError
        If a parameter has the wrong type.
    ValueError
        If collections do not match, and as in the estimator's `fit`.

    See Also
    --------
    apply : Predict for collections.
    skrf.KernelRegressionClassifier.fit_batches : The same passes over batches on one machine.

    References
    ----------
    Ours: the passes and records are those of ``fit_batches``; the collections are those of
    https://www.dask.org.

    Examples
    --------
    >>> import dask.array as da
    >>> import skrf.dask
    >>> from skrf import KernelRegressionClassifier, OptimalPositiveRF
    >>> X = da.random.default_rng(0).normal(size=(1000, 3), chunks=(250, 3))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> model = KernelRegressionClassifier(OptimalPositiveRF(64, random_state=0), sigma=1.0)
    >>> model = skrf.dask.fit(model, X, y)
    >>> labels = skrf.dask.apply(model, X)
    >>> labels.shape, bool((labels == y).mean() > 0.9)
    ((1000,), True)
    """
    sample_rows = check_integer("sample_rows", sample_rows)
    if not isinstance(estimator, TakesBatches):
        raise TypeError(
            "estimator must be an instance of a feature map or of an estimator of skrf that has "
            f"fit_batches, got {estimator!r:.60}."
        )
    scope = Scope(sample_rows)
    is_known = isinstance(X, da.Array) and not np.isnan(X.shape[0])
    if is_known and sample_weight is None:  # otherwise some rows may be dropped
        scope = Scope.among(sample_rows, X.shape[0])  # chunks send no more rows than may be needed
    engine = partial(_scheduled, *_aligned(X=X, y=y, sample_weight=sample_weight))
    return run_passes(clone(estimator)._passes(classes, scope), engine)


def apply(estimator: Estimator, X: Array, method: str = "predict") -> da.Array:
    """Apply a method to the rows of a collection, lazily.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator, whether or not `fit` of this module has fitted it.
    X : dask array, dask DataFrame or list of Delayed
        Rows, as in `fit`.
    method : str, default="predict"
        Name of a method that returns an array with one row per row of X, such as "predict_proba"
        or "transform".

    Returns
    -------
    dask array
        The result, in the chunks of X; chunk lengths that are unknown in X are unknown here, too.

    Raises
    ------
    TypeError
        If `X` has the wrong type.
    ValueError
        If the estimator has no such method.

    See Also
    --------
    fit : Fit to collections.
    skrf.KernelRegressionClassifier.fit_batches : Fit to batches, without Dask.

    References
    ----------
    Ours; like ``map_blocks`` of https://www.dask.org on the rows of a chunk.
    """
    if not (method.startswith(_METHODS) and callable(getattr(estimator, method, None))):
        raise ValueError(
            f"method must name a method of {estimator!r:.60} that returns a row per row of X, "
            f"such as predict or transform; got {method!r}."
        )
    check_is_fitted(estimator)
    batches, collections = _aligned(X=X)
    with warnings.catch_warnings():  # about feature names, which the example rows lack
        warnings.simplefilter("ignore")
        example = _called(method, estimator, _example(estimator, X), None)[:0]
    name = _new_name(method)
    frozen = copy.copy(estimator)  # so that a later fit does not change it
    of, tail = {f"{name}-of": frozen, f"{name}-example": example}, (0,) * (example.ndim - 1)
    # Pass keys instead of the arguments, which are then sent once and not with every task.
    tasks = {
        (name, k, *tail): (partial(_called, method), f"{name}-of", *keys, f"{name}-example")
        for k, keys in enumerate(batches)
    }
    graph = HighLevelGraph.from_collections(name, of | tasks, dependencies=collections)
    lengths = X.chunks[0] if isinstance(X, da.Array) else (np.nan,) * len(batches)
    chunks = lengths, *((n_columns,) for n_columns in example.shape[1:])
    return da.Array(graph, name, chunks, meta=example)


def _called(method, estimator, X, example):
    """Return a method's result for a chunk, in the dtype of an example."""
    if example is not None and X.shape[0] == 0:
        return example
    with one_thread():
        result = np.asarray(getattr(estimator, method)(X))
    return result if example is None else result.astype(example.dtype, copy=False)


def _example(estimator, X):
    """Return rows of the kind of X."""
    if hasattr(X, "_meta_nonempty"):
        return X._meta_nonempty
    return np.zeros((1, estimator.n_features_in_), getattr(X, "dtype", float))


# ---------------------------------------------------------------- chunks


def _aligned(X, **others):
    """Return the keys of the chunks, a tuple for each, and the collections they come from."""
    given = {"X": X} | {name: array for name, array in others.items() if array is not None}
    if isinstance(X, da.Array):
        given = {name: _like_rows(name, array, X) for name, array in given.items()}
        # Together, so that shared inputs are computed once.
        arrays = {name: array for name, array in given.items() if isinstance(array, da.Array)}
        given |= dict(zip(arrays, dask.optimize(*arrays.values()), strict=True))
    keys, collections = {}, []
    for name, array in given.items():
        keys[name], parts = _chunks(name, array)
        collections += parts
        if len(keys[name]) != len(keys["X"]):
            raise ValueError(f"{name} has {len(keys[name])} chunks, but X has {len(keys['X'])}.")
    columns = [keys.get(name, [None] * len(keys["X"])) for name in ("X", *others)]
    return list(zip(*columns, strict=True)), collections


def _like_rows(name, array, X):
    """Return an array in the chunks of the rows of X, each with all columns."""
    if not isinstance(array, da.Array):
        if dask.is_dask_collection(array) or _is_of_delayed(array):
            return array
        array = da.from_array(np.asarray(array), chunks=-1)
    whole = {axis: -1 for axis in range(1, array.ndim)}
    if np.isnan([X.shape[0], array.shape[0]]).any():  # unknown, so compare numbers of chunks
        return array.rechunk(whole) if whole else array
    if array.shape[0] != X.shape[0]:
        raise ValueError(f"{name} has {array.shape[0]} rows, but X has {X.shape[0]}.")
    return array.rechunk({0: X.chunks[0], **whole})


def _is_of_delayed(array):
    """Return whether chunks are given individually."""
    return (
        isinstance(array, list) and bool(array) and all(isinstance(item, Delayed) for item in array)
    )


def _chunks(name, array):
    """Return the keys of the chunks of a collection, and the collection they come from."""
    if isinstance(array, da.Array):
        return list(flatten(array.__dask_keys__())), [array]
    if hasattr(array, "to_delayed") and not isinstance(array, Delayed):
        # Read no other columns than these. Full optimisation would also join files by the share of
        # their columns that is read, so that X and y no longer had the same chunks.
        array = array.simplify() if hasattr(array, "simplify") else array
        array = list(array.to_delayed(optimize_graph=False))
    if not _is_of_delayed(array):
        raise TypeError(
            f"{name} must be a dask array, a dask DataFrame or Series, or a list of Delayed, or, "
            f"with a dask array X of known chunks, an array; got {array!r:.60}. Without Dask, use "
            "fit or fit_batches of the estimator."
        )
    return [delayed.key for delayed in array], array


# ---------------------------------------------------------------- passes


def _new_name(what):
    return f"skrf-{what.replace(' ', '-')}-{uuid.uuid4().hex}"


def _scheduled(batches, collections, step):
    """Return the record of all chunks, on the scheduler that Dask finds."""
    name = _new_name(step.name)
    level = [f"{name}-{number}" for number in range(len(batches))]
    # Pass the key of the pass, which is then sent once and not with every task.
    graph = {f"{name}-of": step}
    for number, (key, keys) in enumerate(zip(level, batches, strict=True)):
        graph[key] = partial(_record, number), f"{name}-of", *keys
    while len(level) > 1:
        groups = [level[k : k + _FAN_IN] for k in range(0, len(level), _FAN_IN)]
        level = [f"{name}-of-{len(level)}-{number}" for number in range(len(groups))]
        for key, group in zip(level, groups, strict=True):
            graph[key] = merged, group
    graph = HighLevelGraph.from_collections(name, graph, dependencies=collections)
    # In this process, each task gets one thread; other processes limit their threads themselves.
    with serial_blas():
        return dask.compute(Delayed(level[0], graph, layer=name))[0]


def _record(number, step, X, y, weights):
    # With a list of Delayed, X may hold all parts.
    is_whole = isinstance(X, tuple) and y is None and weights is None
    with one_thread():
        return step(X if is_whole else (X, y, weights), number)
