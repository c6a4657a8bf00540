"""The fitted feature map: one side of an estimate of a kernel, rows in and features out.

A `FeatureMap` is immutable and independent of estimators. Consumers hold feature maps and nothing
else of a feature map; what they do with features is in `skrf._sums`. No map overflows: positive
maps return logarithms, the others features with a log scale per row.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _kernels
from .._arrays import LARGEST, cast, constant, is_array_api, largest_entry, namespace
from .._sums import Rows, finite
from .._threads import Scratch, block_rows, run_rows
from .._typing import Array
from .._warnings import once

_PRECISE_NORM2 = 256.0  # exponents above which float32 rows are mapped in float64 for accuracy
_SMALL = 2**16  # number of entries below which threads cost more than they save


def signed_rows(values: Array, log_amplitude: Array) -> Rows:
    """Return features values * exp(log_amplitude) as `Rows`.

    Values must be at most about 1; log_amplitude has shape (n, M), or (n,) with one number per row.
    If values grow with the row, the caller must normalise them: divide the values of each row by
    their largest absolute value (by 1 if all are 0) and add its logarithm to log_amplitude.

    See Also
    --------
    FeatureMap : Returns such `Rows`.
    mapped : Applies a map to many rows.
    """
    if log_amplitude.ndim == 1:
        log_amplitude = log_amplitude[:, None]
    scale = constant(log_amplitude)
    if scale is not log_amplitude:
        # The gradient stays with the values.
        values = values * namespace(values).exp(log_amplitude - finite(scale))
    return Rows(values, scale)


class FeatureMap(ABC):
    """One side of a fitted feature map.

    Attributes
    ----------
    n_features : int
        Width of the rows.
    n_columns : int
        Number of features.
    is_positive : bool
        Whether features are given as logarithms, -inf where a feature is 0.
    is_parallel : bool
        Whether blocks of rows may be mapped on several threads.
    is_projected : bool
        Whether features are those of a kernel with K(x, x) = 1, projected onto a few directions.
    inner, matrix : FeatureMap and ndarray of shape (n_inner, n_columns), or None
        If not None, features are those of the inner map times the matrix. Consumers that sum
        features, or multiply them by coefficients, apply the matrix once instead of to every row.
    magnification : float
        The largest eigenvalue of the matrix times its transpose.
    gram, cholesky : ndarray, and tuple of (ndarray or None) and float
        The inverse of the product of the matrix and its transpose; the lower Cholesky factor of
        this inverse, or None, with an upper bound on `magnification`.
    is_indicator : bool
        Whether every row has a single nonzero feature, 1; ``columns(X, labels)`` returns its index.
    is_double : bool
        Whether rows of float32 must be passed in float64.
    level : float or None
        Log scale of all rows, if they share one that does not depend on them.
    is_bounded : bool
        Whether no feature can overflow and no row can vanish in all features.
    is_nonnegative : bool
        Whether features that are not given as logarithms are known not to be negative.
    is_fixed : bool
        Whether features of a row stay the same; functions of a caller may be trained.

    See Also
    --------
    as_feature_map : Returns one for any fitted transformer.
    mapped : Applies one to many rows.
    BaseRandomFeatures : The estimators that create them.
    """

    is_parallel = True
    is_projected = False
    inner = matrix = None
    magnification = 1.0
    gram, cholesky = None, (None, math.inf)
    is_indicator = False
    is_double = False
    level = None
    is_bounded = False
    is_nonnegative = False
    is_fixed = True
    columns_per_projection = 1

    @property
    def n_features(self) -> int:
        """Width of the rows, for maps with a projection."""
        return self.projection.n_features

    @property
    def n_columns(self) -> int:
        """Number of features, for maps with a projection."""
        return self.projection.n_projections * self.columns_per_projection

    @abstractmethod
    def __call__(self, X: Array) -> Rows:
        """Return the `Rows` of X of shape (n, n_features), in its library and dtype.

        X may be NumPy, CuPy, torch or SciPy sparse; nothing is changed in place. The arrays of the
        result are new: consumers may overwrite them.
        """

    def write(
        self, X: Array, out: np.ndarray, room: Callable, lower: np.ndarray | None = None
    ) -> np.ndarray | None:
        """Write the values of rows on the host into `out`, and return their scale.

        Parameters
        ----------
        X : ndarray or sparse matrix of shape (n, n_features)
            Rows.
        out : ndarray of shape (n, n_columns)
            Output for the values.
        room : callable
            Allocates scratch memory, like `numpy.empty`.
        lower : ndarray of shape (n_columns,), default=None
            Subtracted from logarithms; positive maps only.

        Returns
        -------
        ndarray of shape (n, 1) or (n, n_columns), or None
            Log scales of rows or features; None for positive maps.
        """
        values, scale = self(X)
        out[...] = values
        if lower is not None:
            out -= lower.astype(out.dtype)
        return scale

    def write_plain(self, X: Array, out: np.ndarray, room: Callable) -> None:
        """Write the features themselves into `out`; they may overflow."""
        scale = self.write(X, out, room)
        if self.is_positive:
            _kernels.exp(out, out)
        else:
            out *= np.exp(scale)

    def pull_back(self, X: Array, by_values: Array) -> Array:
        """Return the gradient with respect to X, given that with respect to logarithms of features.

        Only positive maps have one. Torch's own gradients are for all maps.

        Raises
        ------
        NotImplementedError
            If gradients are not known.
        """
        raise NotImplementedError(
            f"No gradients are available for this feature_map, a {type(self).__name__}. Available: "
            "positive feature maps of Gaussian projections, such as OptimalPositiveRF."
        )

    def projected(self, X: Array) -> tuple[Any, Array] | None:
        """Return the map that projects a kernel on landmarks, and the rows as it reads them.

        It is None for other maps, whose features have a kernel of their own.
        """
        return None

    def largest_log(self, bound: float) -> float:
        """Return an upper bound of the absolute logarithms of features, given `exponent_bound`.

        It is inf if none is known.
        """
        return math.inf

    def exponent_bound(self, X: Array) -> float:
        """Return the approximate largest exponent that rows of X produce, or 0 if unknown.

        Of maps with coordinates `affine`, it is an upper bound of the squared norms of the rows.
        """
        affine = getattr(self, "affine", None)
        return 0.0 if affine is None else affine.exponent_bound(X)


def checked_bound(feature_map, X, name="X"):
    """Return `exponent_bound` of rows; ValueError as `needs_double`."""
    flat = X if X.ndim == 2 else namespace(X).reshape(X, (-1, X.shape[-1]))
    bound = feature_map.exponent_bound(flat)
    if bound <= LARGEST**2:
        return bound
    if not math.isfinite(largest_entry(X)):
        raise ValueError(f"{name} contains NaN or infinity; all entries must be finite.")
    raise ValueError(
        f"{name} is too large for its features: scaled and shifted rows must not be longer "
        f"than {LARGEST:g}. The largest entry of {name} is {largest_entry(X):.4g}."
    )


def needs_double(feature_map: FeatureMap, X: Array, name: str = "X") -> bool:
    """Return whether the exponents of rows require float64.

    They do if logarithms, or angles, would be off by more than about 1e-4 in float32.

    Parameters
    ----------
    feature_map : FeatureMap
        The map.
    X : array or sparse matrix of shape (..., n, n_features)
        Rows; only dense ones may have more than two axes.
    name : str, default="X"
        Name of the rows in error messages.

    Raises
    ------
    ValueError
        If exponents exceed the range of float64.

    See Also
    --------
    in_range : Converts the rows.
    FeatureMap : Bounds the exponents.
    """
    return _is_double(feature_map, checked_bound(feature_map, X, name))


def _is_double(feature_map, bound):
    return feature_map.is_double or bound >= _PRECISE_NORM2


def in_range(feature_map: FeatureMap, X: Array, name: str = "X") -> Array:
    """Return rows in the precision that their exponents require; see `needs_double`.

    See Also
    --------
    needs_double : Decides on the precision.
    mapped : Computes the features of these rows.
    """
    is_double = needs_double(feature_map, X, name)
    return cast(X, namespace(X).float64) if is_double else X


def as_dtype(features, dtype):
    """Return features with the dtype of the input rows; they may leave its range."""
    with np.errstate(over="ignore"):
        return cast(features, dtype)


def mapped(feature_map: FeatureMap, X: Array) -> Rows:
    """Return the `Rows` of X, with the dtype of X.

    Rows on the host are mapped in blocks, by as many threads as are allowed. Besides the output,
    memory holds only the temporaries of one block per thread.

    Parameters
    ----------
    feature_map : FeatureMap
        The map.
    X : array or sparse matrix of shape (n, n_features)
        Validated rows.

    See Also
    --------
    in_range : Returns rows in the precision they require.
    signed_rows : Builds the result of a map with signs.
    """
    if is_array_api(X):
        return feature_map(X)
    values, scales = _by_blocks(feature_map, X, feature_map.write)
    return Rows(values) if feature_map.is_positive else Rows(values, np.concatenate(scales))


def plain_features(feature_map: FeatureMap, X: Array, name: str = "X") -> tuple[Array, bool, bool]:
    """Return the features of X, whether a row of them vanished, and whether one overflowed.

    They are in the precision that exponents require.

    Parameters
    ----------
    feature_map : FeatureMap
        The map.
    X : array or sparse matrix of shape (n, n_features)
        Validated rows.
    name : str, default="X"
        Name of the rows in error messages.

    See Also
    --------
    mapped : Features that neither vanish nor overflow.
    """
    bound = checked_bound(feature_map, X, name)
    if _is_double(feature_map, bound):
        X = cast(X, namespace(X).float64)
    if is_array_api(X):
        features = feature_map(X).plain()
        return features, *out_of_range(feature_map, features)
    scratch, largest = Scratch(), feature_map.largest_log(bound)
    is_safe = largest + math.log(feature_map.n_columns) < -math.log(np.finfo(X.dtype).tiny)

    def write(X, out, room):
        if feature_map.is_positive:  # logarithms stay in the cache: new memory is slow to write to
            logs = scratch(out.shape, out.dtype)
            feature_map.write(X, logs, room)
            _kernels.exp(logs, out)
        else:
            feature_map.write_plain(X, out, room)
        return (False, False) if is_safe else out_of_range(feature_map, out)

    features, flaws = _by_blocks(feature_map, X, write)
    return features, *map(any, zip(*flaws, strict=True))


def out_of_range(feature_map, features):
    """Return whether a row is 0 in all features, and whether one is infinite or NaN."""
    if feature_map.is_bounded:
        return False, False
    if feature_map.is_positive and not is_array_api(features):
        # One pass: a row sum is 0 only if all entries are, and finite only if all are.
        with np.errstate(over="ignore", invalid="ignore"):
            sums = features @ np.ones(features.shape[1], features.dtype)
        return bool((sums == 0).any()), not bool(np.isfinite(sums).all())
    xp = namespace(features)
    top, low = xp.max(features, axis=1), xp.min(features, axis=1)
    has_vanished = bool(xp.any((top == 0) & (low == 0)))
    return has_vanished, not bool(xp.all(xp.isfinite(top) & xp.isfinite(low)))


def _by_blocks(feature_map, X, write):
    """Return what `write(X, out, room)` writes, and what it returned for the blocks in order."""
    out = np.empty((X.shape[0], feature_map.n_columns), dtype=X.dtype)
    returned, room = {}, Scratch()

    def work(rows):
        # Settings of floating-point warnings apply to one thread only.
        with np.errstate(over="ignore", invalid="ignore"):
            returned[rows.start or 0] = write(X[rows], out[rows], room)

    with once():  # maps of other packages may warn in every block
        if out.size < _SMALL:
            work(slice(None))
        else:
            run_rows(work, len(out), block_rows(*out.shape, X.shape[1]))
    return out, [returned[start] for start in sorted(returned)]
