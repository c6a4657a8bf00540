"""Sums of features on a log scale: the only place where exponents are added up.

Positive maps return logarithms, the others numbers with log scales (`Rows`). Sums over keys store
the largest exponent of every feature separately (one for all if rows share a scale), and queries
factor out the largest exponent of their row: nothing overflows, no epsilon is added, and with a
positive map a row that has a key has a denominator of at least 1. Zero features have the logarithm
-inf and are left out; -inf is never subtracted from -inf.

Everything is plain array-API code. With NumPy, arrays of the size of the features are overwritten
(`_arrays.Library`), but nothing else.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from . import _kernels
from ._arrays import (
    Kept,
    cast,
    constant,
    filled,
    in_library_of,
    is_array_api,
    largest_entry,
    library,
    like,
    namespace,
    to_host,
)
from ._threads import Scratch

_TINY = -690.0  # logs of sums below this have lost some or all digits
_SURE = 1e-280  # sums above this lose none, however many terms they have
_LOG_SURE = np.log(_SURE)
_BLOCK = 2**22  # entries of a temporary array
_CANCELLED = 32.0  # sums below as many roundings of their terms have no digits
# Half of the range of a dtype on the log scale: if sums on a guessed scale lie that far inside it,
# whatever has left the range does not matter.
_ROOM = {"float32": 46.0, "float64": 300.0}


class Rows(NamedTuple):
    """Features of rows: ``exp(values)`` for positive maps, otherwise ``values * exp(scale)``.

    Parameters
    ----------
    values : array of shape (..., n, M)
        Logarithms for positive maps, -inf where a feature is 0; for others, numbers of at most
        about 1.
    scale : array of shape (..., n, 1) or (..., n, M), or None
        Log scales of rows or of single features, for maps that are not positive. They are
        constants, through which no gradient flows.
    """

    values: Any
    scale: Any = None

    @property
    def holds_logs(self):
        """Whether the values are logarithms, of a positive map."""
        return self.scale is None

    @property
    def shares_scale(self):
        """Whether the features of a row have one log scale."""
        return not self.holds_logs and self.scale.shape[-1] == 1

    @property
    def exponents(self):
        """Exponents that sums take the maximum of: the logarithms or the scale."""
        return self.values if self.scale is None else self.scale

    def part(self, rows):
        """Return some of the rows: views for a slice, new arrays for indices (NumPy only)."""
        if isinstance(rows, slice) and rows == slice(0, self.values.shape[-2]):
            return self  # torch would copy the gradient of a part
        return self.map(lambda array: array[..., rows, :])

    def map(self, function):
        """Apply a function to the values, and to the scale if there is one."""
        return Rows(function(self.values), None if self.holds_logs else function(self.scale))

    def plain(self):
        """Return the features themselves, which may overflow."""
        xp = namespace(self.values)
        if self.holds_logs:
            return xp.exp(self.values)
        return self.values * xp.exp(self.scale)


# ---------------------------------------------------------------- functions of logarithms


def finite(top):
    """Return exponents with 0 in place of -inf, which must not be subtracted."""
    return namespace(top).where(top > -np.inf, top, 0.0)


def differences(low, high):
    """Return low - high, -inf where low is -inf (also where both are)."""
    return low - namespace(low).where(low > -np.inf, high, 0.0)


def log_sum_exp(logs, axis=-1):
    """Return log(sum(exp(logs))) along an axis, -inf where all entries are."""
    xp = namespace(logs)
    top = finite(constant(xp.max(logs, axis=axis, keepdims=True)))
    with np.errstate(divide="ignore"):
        sums = xp.log(xp.sum(xp.exp(logs - top), axis=axis, keepdims=True)) + top
    return xp.squeeze(sums, axis=axis)


def log_signed_sum(logs, signs, axis=-1):
    """Return the log absolute values of sums of signs * exp(logs), and their signs; NumPy."""
    top = finite(logs.max(axis=axis, keepdims=True))
    sums = np.sum(signs * np.exp(logs - top), axis=axis, keepdims=True)
    with np.errstate(divide="ignore"):
        sizes = np.log(np.abs(sums)) + top
    return sizes.squeeze(axis), np.sign(sums).squeeze(axis)


def log_columns(matrix, logs):
    """Return log sum_i exp(matrix_ij + logs_i) for every column j; NumPy, in blocks of columns."""
    n, m = matrix.shape
    size = max(1, _BLOCK // max(n, 1))
    starts = range(0, m, size)
    parts = [log_sum_exp(matrix[:, a : a + size] + logs[:, None], axis=0) for a in starts]
    return np.concatenate(parts)


def signed_product(queries, keys):
    """Return the products of two `Rows` with signs, and log scales of rows and columns."""
    xp, sides = namespace(queries.values), []
    for values, scale in (queries, keys):
        top = finite(constant(xp.max(scale, axis=1, keepdims=True)))
        sides.append((values * xp.exp(scale - top), top))
    (left, top_x), (right, top_y) = sides
    return left @ right.T, top_x + top_y.T


def log_estimate(queries, keys, *, is_exact=True):
    """Return the log absolute values of all products of two `Rows` on the host, and signs.

    Unless `is_exact`, products that are tiny compared with the largest of a row or a column may
    have lost their digits or be -inf, because recomputing them costs more than all others.
    """
    if queries.holds_logs:
        return log_product(queries.values, keys.values.T, is_exact=is_exact), 1.0
    products, scale = signed_product(queries, keys)
    lost = np.abs(products) < (np.exp(_TINY) if is_exact else 0.0)
    with np.errstate(divide="ignore"):
        logs, signs = np.log(np.abs(products)) + scale, np.sign(products)
        a, b = (np.log(np.abs(side.values)) + side.scale for side in (queries, keys))
        for i in np.flatnonzero(lost.any(axis=1)):
            columns = lost[i]
            product_signs = np.sign(queries.values[i] * keys.values[columns])
            logs[i, columns], signs[i, columns] = log_signed_sum(a[i] + b[columns], product_signs)
    return logs, signs


def log_product(A, B, *, is_exact=True):
    """Return log(exp(A) @ exp(B)), computed with the largest exponents factored out.

    If `is_exact`, sums so far below the largest of their row and column that digits are lost are
    recomputed term by term.
    """
    xp = namespace(A)
    top_a = finite(constant(xp.max(A, axis=1, keepdims=True)))
    top_b = finite(constant(xp.max(B, axis=0, keepdims=True)))
    own_a, own_b = A - top_a, B - top_b
    with np.errstate(divide="ignore"):
        logs = xp.log(xp.exp(own_a) @ xp.exp(own_b))
    tiny = _TINY if A.dtype == xp.float64 else _TINY / 8
    lost = logs < (tiny if is_exact else -np.inf)
    for i in np.flatnonzero(to_host(xp.any(lost, axis=1))).tolist():
        if is_array_api(A):
            again = log_sum_exp(own_a[i, :][:, None] + own_b, axis=0)
            row = xp.where(lost[i, :], again, logs[i, :])
            logs = xp.concat([logs[:i, :], row[None, :], logs[i + 1 :, :]], axis=0)
        else:
            columns = lost[i]
            logs[i, columns] = log_sum_exp(own_a[i][:, None] + own_b[:, columns], axis=0)
    return logs + top_a + top_b


class LogMatrix:
    """A matrix of logarithms, kept with its exponentials for products with many vectors.

    Parameters
    ----------
    logs : ndarray of shape (m, n)
        The logarithms.
    """

    def __init__(self, logs):
        self.logs = logs
        self.top = finite(logs.max(axis=1))
        self.values = np.exp(logs - self.top[:, None])

    @cached_property
    def turned(self):
        """The transposed matrix."""
        return LogMatrix(self.logs.T)

    def product(self, vector):
        """Return log sum_j exp(logs_ij + vector_j) for every row i, and for every vector."""
        return _log_matvec(self.values, vector, self.top, self.logs, vector)

    def log_rows(self, block, other):
        """Return log sum_f exp(logs_if + other.logs_jf) for a slice of rows i and all rows j."""
        with np.errstate(divide="ignore"):
            logs = np.log(self.values[block] @ other.values.T)
        for i in np.flatnonzero(logs.min(axis=1) < _LOG_SURE):
            columns = np.flatnonzero(logs[i] < _LOG_SURE)
            relative = self.logs[block][i] - self.top[block][i]
            terms = relative[:, None] + (other.logs[columns] - other.top[columns, None]).T
            logs[i, columns] = log_sum_exp(terms, axis=0)
        return logs + self.top[block, None] + other.top


def _log_matvec(values, exponents, top, logs, vector):
    """Return log(values @ exp(exponents)) + top, which is log sum_j exp(logs_ij + vector_j).

    Vectors of logarithms may be rows of a matrix.
    """
    scale = finite(exponents.max(axis=-1, keepdims=True))
    sums = np.exp(exponents - scale) @ values.T
    lost = sums < _SURE
    with np.errstate(divide="ignore"):
        result = np.log(sums) + (top + scale)
    if lost.any():
        rows = (array.reshape(-1, array.shape[-1]) for array in (lost, result, vector))
        for places, row, one in zip(*rows, strict=True):
            if places.any():
                row[places] = log_columns(logs[places].T, one)
    return result


# ---------------------------------------------------------------- factors


def scale_keys(rows, top):
    """Return key features (..., n, M) as factors of sums on the scale of `top`.

    Parameters
    ----------
    rows : Rows of shape (..., n, M)
        Features of keys; NumPy's are overwritten.
    top : array of shape (..., M) or (..., 1)
        Exponents, as in `Sums`.
    """
    values, do = rows.values, library(rows.values)
    level = do.xp.where(top > -np.inf, top, 0.0)[..., None, :]
    factors = _exp(do.subtract(rows.exponents, do.cast(level, values.dtype)), do)
    return factors if rows.holds_logs else do.multiply(values, factors)


def scale_queries(rows, top):
    """Return query features as factors of sums at `top`, and log scales of rows (..., n, 1).

    The largest exponential of a row is 1, and its log scale cancels in its quotient. NumPy arrays
    are overwritten.
    """
    values, do = rows.values, library(rows.values)
    exponents = do.cast(top[..., None, :], values.dtype)
    if rows.shares_scale:
        return values, rows.scale + finite(exponents)
    factors, level = exp_and_max(do.add(rows.exponents, exponents), do)
    return factors if rows.holds_logs else do.multiply(values, factors), level


def exp_max_one(logs):
    """Return exponentials of logarithms with row maxima of 1; NumPy arrays are overwritten."""
    return exp_and_max(logs)[0]


def exp_and_max(logs, do=None):
    """Return the same, and the maxima of the logarithms of rows, 0 where they are -inf.

    `do` is their `Library`, if the caller knows it.
    """
    do = do or library(logs)
    top = do.constant(do.xp.max(logs, axis=-1, keepdims=True))
    top = do.xp.where(top > -np.inf, top, 0.0)
    return _exp(do.subtract(logs, top), do), top


def _exp(logs, do=None):
    """Return exponentials of logarithms; NumPy arrays are overwritten."""
    do = do or library(logs)
    if do.xp is not np:
        return do.exp(logs)
    _kernels.exp(logs, logs)
    return logs


# ---------------------------------------------------------------- sums


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of features times values over keys: feature f holds ``sums[f] * exp(top[f])``.

    Laws: ``add`` and ``merge`` are associative and commutative to rounding; they change neither
    their object nor their argument.

    Parameters
    ----------
    sums : array of shape (..., M, c)
        Always float64. The first value of a row is its weight.
    top : array of shape (..., M) or (..., 1)
        Exponents of every feature, or one for all if rows share a scale; -inf before the first
        key. They are constants that affect only rounding.
    """

    sums: Any
    top: Any

    @classmethod
    def before(cls, rows, values):
        """Return the sums before the first of these keys."""
        *leading, _, n_columns = rows.values.shape
        sums = filled(0.0, (*leading, n_columns, values.shape[-1]), rows.values)
        return cls(sums, filled(-np.inf, (*leading, rows.exponents.shape[-1]), rows.values))

    @classmethod
    def stack(cls, parts):
        """Return sums of several groups with a leading axis for the groups."""
        xp = namespace(parts[0].sums)
        sums, tops = (xp.stack([getattr(one, name) for one in parts]) for name in ("sums", "top"))
        return cls(sums, tops)

    def of(self, number):
        """Return the sums of one group of a stack."""
        return Sums(self.sums[number, ...], self.top[number, ...])

    def groups(self):
        """Return the sums of every group of a stack."""
        return [self.of(i) for i in range(self.top.shape[0])]

    def in_library_of(self, X):
        """Return the sums in the library and on the device of X."""
        return Sums(in_library_of(self.sums, X), in_library_of(self.top, X))

    def joined(self):
        """Return the sums of all groups (C, M, c) side by side on one scale, (M, C c)."""
        xp = namespace(self.top)
        top = xp.max(self.top, axis=0)
        sums = xp.permute_dims(self.at(top[None, :]), (1, 0, 2))
        return Sums(xp.reshape(sums, (sums.shape[0], -1)), top)

    def balanced(self, weights=slice(0, 1)):
        """Return the sums of a positive map on scales where every feature's weight is 1.

        Denominators are then at least 1, whatever the original scale of the sums. `weights` says
        which values are weights.
        """
        xp = namespace(self.sums)
        size = xp.sum(self.sums[..., weights], axis=-1)
        size = xp.where(size > 0, size, 1.0)
        return Sums(self.sums / size[..., None], self.top + xp.log(size))

    def at(self, top):
        """Return the sums on the scale of other exponents."""
        return self.sums * namespace(top).exp(differences(self.top, top))[..., None]

    def raised(self, rows):
        """Return the exponents after more keys."""
        do = library(self.top)
        highest = do.constant(do.xp.max(rows.exponents, axis=-2))
        return do.xp.maximum(self.top, do.cast(highest, do.xp.float64))

    def add(self, rows, values):
        """Return the sums after more keys, features (..., n, M) and values.

        NumPy features are overwritten, unless they share the scale of their row.
        """
        top, factors = self.raised(rows), rows.values
        if rows.shares_scale:
            # The scale of a row multiplies its values, which are fewer than its features.
            exponents = rows.scale - cast(finite(top)[..., None, :], factors.dtype)
            values = values * namespace(values).exp(exponents)
        else:
            factors = scale_keys(rows, top)
        return Sums(self.at(top) + product(factors, values), top)

    def merge(self, other):
        """Return the sums over the keys of both."""
        top = namespace(self.top).maximum(self.top, other.top)
        return Sums(self.at(top) + other.at(top), top)

    def weigh(self, rows):
        """Return sums weighted by query features (..., n, M), and log scales of rows (..., n, 1).

        NumPy arrays are overwritten. For positive maps the largest term of a row is 1.
        """
        factors, level = scale_queries(rows, self.top)
        return factors @ cast(self.sums, factors.dtype), level

    def log_weigh(self, logs):
        """Return the log weights seen by log features (..., n, M) of queries."""
        with np.errstate(divide="ignore"):
            log_totals = self.top + namespace(self.top).log(self.sums[..., 0])
        return log_sum_exp(logs + cast(log_totals[..., None, :], logs.dtype))


def product(factors, values):
    """Return factors' @ values in float64, computed in the dtype of the factors."""
    made = transposed(factors) @ cast(values, factors.dtype)
    return cast(made, namespace(made).float64)


def transposed(matrices):
    """Return the matrices of the last two axes transposed."""
    if isinstance(matrices, np.ndarray):
        return matrices.swapaxes(-1, -2)
    return namespace(matrices).matrix_transpose(matrices)


def is_inside(totals, dtype, room=0.5):
    """Return whether totals on a guessed scale are far inside the range of a dtype."""
    xp, room = namespace(totals), math.exp(room * _ROOM[str(dtype).rsplit(".", 1)[-1]])
    return bool(xp.min(totals) > 1 / room and xp.max(totals) < room)


# ---------------------------------------------------------------- blocks of rows


class Memory:
    """Scratch memory for blocks, reused for every block of a thread unless it is given."""

    def __init__(self, *given):
        self.features, self.room = given or (Scratch(), Scratch())

    def rows(self, feature_map, X, lower=None):
        """Return the features of a block; positive ones minus `lower`, a number per column.

        Parameters
        ----------
        feature_map : FeatureMap
            The map.
        X : array or sparse matrix of shape (n, d)
            Rows.
        lower : array of shape (M,), default=None
            On the host or in the library of X.
        """
        if is_array_api(X):
            values, scale = feature_map(X)
            return Rows(values if lower is None else values - like(lower, values), scale)
        if (n_columns := feature_map.n_columns) is None:
            # A transformer may return its own array or its input, so do not overwrite it.
            return feature_map(X).map(np.array)
        out = self.features((X.shape[0], n_columns), X.dtype)
        return Rows(out, feature_map.write(X, out, self.room, lower))


def sums_of_block(feature_map, X, values, memory, bounds, reference=None):
    """Return the sums over a block of keys, and whether they are on the scale of the reference.

    Parameters
    ----------
    feature_map : FeatureMap
        The map of the keys.
    X : array or sparse matrix of shape (n, d)
        Keys.
    values : array of shape (n, c)
        Their values, the weight first.
    memory : Memory
        Scratch memory.
    bounds : list of int
        Where groups of rows begin and end.
    reference : ndarray of shape (M,), default=None
        Exponents close to those of the keys, only for positive maps with NumPy. They save the pass
        that finds the maxima. They are tried first, and dropped if any sum is far from them.

    Returns
    -------
    sums : Sums
        Sums with a leading axis for groups.
    suits : bool
        Whether the reference was used.
    """
    groups = [slice(*pair) for pair in pairwise(bounds)]
    if reference is not None:
        sums = _lowered_sums(memory.rows(feature_map, X, reference), values, groups, reference)
        if sums is not None:
            return sums, True
    rows = memory.rows(feature_map, X)
    if rows.shares_scale and not is_array_api(X):
        return _scaled_sums(rows, values, bounds), False
    nothing = Sums.before(rows, values)
    parts = [
        nothing.add(rows.part(group), values[group, :]) if group.start < group.stop else nothing
        for group in groups
    ]
    return Sums.stack(parts), False


def _lowered_sums(rows, values, groups, reference):
    """Return the sums of groups of lowered log features, or None if the reference is bad."""
    same_type = values.astype(rows.values.dtype, copy=False)
    weights = np.array([values[group, 0].sum() for group in groups])
    is_weighted = weights > 0
    with np.errstate(over="ignore", invalid="ignore"):
        factors = _exp(rows.values)
        sums = np.stack([factors[group].T @ same_type[group] for group in groups])
        sums = sums.astype(np.float64)
        means = sums[is_weighted, :, 0] / weights[is_weighted, None]
    # Values besides the weight may be small as well, so they get more room.
    room = 1.0 if same_type.shape[1] == 1 else 0.5
    if not (means.size and is_inside(means, factors.dtype, room) and np.isfinite(sums).all()):
        return None
    return Sums(sums, np.where(is_weighted[:, None], reference, -np.inf))


def _scaled_sums(rows, values, bounds):
    """Return the sums of groups of features that share the scale of their row.

    There are few calls for small arrays, during which other threads would wait.
    """
    starts, sizes = np.array(bounds[:-1]), np.diff(bounds)
    top = np.full((len(sizes), 1), -np.inf)
    top[sizes > 0, 0] = np.maximum.reduceat(rows.scale[:, 0], starts[sizes > 0])
    level = np.repeat(finite(top), sizes, axis=0).astype(rows.scale.dtype)
    values = (values * np.exp(rows.scale - level)).astype(rows.values.dtype, copy=False)
    sums = np.stack([rows.values[a:b].T @ values[a:b] for a, b in pairwise(bounds)])
    return Sums(sums.astype(np.float64), top)


class Readout:
    """Sums over keys in the form that queries read, prepared once for all blocks of queries.

    Parameters
    ----------
    sums : Sums
        Sums of shape (M, c), or (..., M, c) for libraries other than NumPy.
    is_positive : bool
        Whether features are logarithms.
    n_values : int, default=None
        Number of values per group, the weight first; None means one group.
    """

    def __init__(self, sums, is_positive, n_values=None):
        self.weights = slice(None, None, n_values or sums.sums.shape[-1])
        if is_positive:
            even = sums.balanced(self.weights)
            # Keep the size of the largest exponents, so that totals are about 1.
            rise = namespace(even.top).max(differences(even.top, sums.top), axis=-1, keepdims=True)
            sums = Sums(even.sums, even.top - finite(rise))
        self.sums, self.is_positive = sums, is_positive
        # Values outside the safe range of float32 would overflow.
        self._is_level = is_positive and largest_entry(sums.sums) < 1e15
        self._kept = Kept()

    def __call__(self, feature_map, X, memory):
        """Return sums weighted by the features of queries X (n, d), up to factors of rows.

        Positive maps first try the exponents as they are, which saves two passes and is correct if
        all totals are far inside the range of the dtype.
        """
        if not self.is_positive or is_array_api(X):
            return self.sums.weigh(memory.rows(feature_map, X))[0]
        matrix = self._kept.like(X, lambda: self.sums.sums)
        if self._is_level:
            factors = self._raised(feature_map, X, memory)
            with np.errstate(over="ignore", invalid="ignore"):
                products = _exp(factors) @ matrix
                totals = products[..., self.weights].sum(axis=-1)
            if is_inside(totals, factors.dtype):
                return products
            self._is_level = False
        return exp_max_one(self._raised(feature_map, X, memory)) @ matrix

    def _raised(self, feature_map, X, memory):
        return memory.rows(feature_map, X, -self.sums.top).values


class SignedReadout:
    """As `Readout`, for features with signs, where weights that are only rounding are 0.

    Terms of both signs may cancel, and then nothing is left but rounding, which must not decide
    between keys.

    Parameters
    ----------
    sums : Sums
        Sums of shape (M, c).
    n_values : int
        Number of values per group, the weight first.
    matrix : ndarray of shape (M, n), default=None
        The sums of the features (n, c) are multiplied by it, because those of the queries are.
    """

    def __init__(self, sums, n_values, matrix=None):
        xp, self._is_weight = namespace(sums.sums), slice(None, None, n_values)
        self._lost = 0.0
        if matrix is not None:
            # Every entry of the matrix is known to the rounding of the largest.
            norms = xp.linalg.vector_norm(sums.sums[:, self._is_weight], axis=0)
            self._lost = float(np.linalg.norm(matrix)) * norms
            sums = Sums(like(matrix, sums.sums) @ sums.sums, sums.top)
        self.sums, self._sizes = sums, xp.abs(sums.sums[:, self._is_weight])
        with np.errstate(over="ignore"):
            self._norms = xp.linalg.vector_norm(self._sizes, axis=0) + self._lost

    def __call__(self, feature_map, X, memory):
        """Return sums weighted by the features of queries X (n, d), up to factors of rows."""
        factors, _ = scale_queries(memory.rows(feature_map, X), self.sums.top)
        products = factors @ cast(self.sums.sums, factors.dtype)
        xp, weights = namespace(factors), products[:, self._is_weight]
        rounding = _CANCELLED * xp.finfo(factors.dtype).eps
        with np.errstate(over="ignore", invalid="ignore"):
            norms = xp.linalg.vecdot(factors, factors)[:, None] ** 0.5
            is_suspect = xp.abs(weights) <= rounding * norms * cast(self._norms, factors.dtype)
        if xp.any(is_suspect):  # the norms bound the sum of the sizes of all terms
            terms = xp.abs(factors) @ cast(self._sizes, factors.dtype) + norms * self._lost
            is_clear = xp.abs(weights) > rounding * terms
            products[:, self._is_weight] = xp.where(is_clear, weights, 0.0)
        return products
