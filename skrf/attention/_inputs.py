"""Inputs of an attention call, checked once and brought into the one layout of this folder.

There are U sets of keys and values (batch times key heads), each read by G query heads.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from .._arrays import (
    Library,
    in_library_of,
    is_array_api,
    largest_entry,
    library,
    namespace,
    rows_at_once,
    to_host,
)
from .._validation import check_not_masked, check_positive

FEATURE_ROWS = 1024  # rows whose features are held at a time
_ROW_ENTRIES = 512  # of features and sums, roughly, for a query of one head
_THREADED_ROWS = 2**11  # queries and keys of a set, from which on threads pay
_SHAPES = {"q": "(..., L, d)", "k": "(..., S, d)", "v": "(..., S, e)"}


@dataclass(frozen=True, eq=False)
class Inputs:
    """Validated inputs of an attention call, float64 if one of them is, otherwise float32.

    Parameters
    ----------
    q : ndarray of shape (U, G, L, d)
        Queries; those of row u read keys and values u.
    k : ndarray of shape (U, S, d)
        Keys.
    v : ndarray of shape (U, S, e)
        Values.
    padding : ndarray of shape (U, S) or None
        True where a key is ignored.
    leading, key_leading : tuple of int
        Leading axes of the given queries and keys.
    dtype : dtype
        Type of results: that of the inputs if they are short floats, which are computed in float32.
    library : Library
        The array library of all of these.
    log_gates : ndarray of shape (U, S), default=None
        Logs of the share of the past that a position keeps, in float64.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    padding: np.ndarray | None
    leading: tuple[int, ...]
    key_leading: tuple[int, ...]
    dtype: Any
    library: Library
    log_gates: Any = None

    @property
    def n_key_heads(self):
        """Number of heads of the keys."""
        return self.key_leading[-1] if self.key_leading else 1

    @property
    def n_query_heads(self):
        """Number of heads of the queries."""
        return self.leading[-1] if self.leading else 1

    @property
    def is_numpy(self):
        """Whether these are NumPy arrays."""
        return self.library.xp is np

    @property
    def fit_shape(self):
        """The width, and the heads of keys and of queries, which a fit fixes."""
        n_heads = self.n_key_heads
        return self.k.shape[-1], n_heads, n_heads * self.q.shape[1]

    @property
    def is_short(self):
        """Whether a set takes less time than it takes to begin threads."""
        return self.q.shape[-2] + self.k.shape[-2] < _THREADED_ROWS

    def rows_at_once(self):
        """Return how many rows of every head to work on at once: more on a GPU."""
        n_heads = math.prod(self.q.shape[:-2])
        return rows_at_once(self.q, n_heads * _ROW_ENTRIES, FEATURE_ROWS)

    def slices(self, n_rows, n_maps=1):
        """Return slices of sets that are computed at a time: of NumPy, about `n_rows` positions.

        Slices of more sets than there are maps begin with a set of the first map.
        """
        n_sets = size = self.k.shape[0]
        if self.is_numpy:
            size = max(1, n_rows // max(self.q.shape[-2], self.k.shape[-2]))
            size = size if size <= n_maps else size - size % n_maps
        return blocks(n_sets, size)

    def of(self, sets):
        """Return a slice of the sets, without their leading axes."""
        if sets == slice(0, self.k.shape[0]):
            return self
        return self._mapped(lambda array: array[sets, ...])

    def largest_entries(self, *names):
        """Return the largest absolute values of some inputs, or raise unless they are finite."""
        largest = []
        for name in names:
            largest.append(largest_entry(getattr(self, name)))
            if not math.isfinite(largest[-1]):
                raise ValueError(f"{name} contains NaN or infinity; all entries must be finite.")
        return largest

    def results(self, out, lse=None):
        """Return outputs (U, G, L, n) in the leading axes of q, with logs (U, G, L) if given."""
        xp, cast = self.library.xp, self.library.cast
        out = cast(xp.reshape(out, (*self.leading, *out.shape[-2:])), self.dtype)
        if lse is None:
            return out
        dtype = xp.float64 if self.dtype == xp.float64 else xp.float32
        with np.errstate(over="ignore"):
            return out, cast(xp.reshape(lse, (*self.leading, lse.shape[-1])), dtype)

    def on_host(self):
        """Return the same with arrays of NumPy, which statistics need."""
        inputs = self._mapped(to_host)
        return replace(inputs, library=library(inputs.q))

    def constants(self):
        """Return the same without gradients."""
        return self._mapped(self.library.constant) if self.library.is_torch else self

    def _mapped(self, function):
        """Return the inputs with a function of their arrays."""
        names = "q", "k", "v", "padding", "log_gates"
        arrays = {name: getattr(self, name) for name in names}
        changes = {name: function(x) for name, x in arrays.items() if x is not None}
        return replace(self, **changes)

    def heads_of(self, sets):
        """Return the query heads that read some sets, shape (G,) for one and (n, G) for a list."""
        n_readers = self.q.shape[1]
        first = np.asarray(sets)[..., None] % self.n_key_heads * n_readers
        return (first + np.arange(n_readers)) % self.n_query_heads


def check_inputs(q, k, v, key_padding_mask=None, causal=False, *, is_step=False, is_checked=True):
    """Validate the inputs of an attention call and arrange their heads, by views where possible.

    Parameters
    ----------
    q : array-like of shape (..., L, d)
        Queries.
    k : array-like of shape (..., S, d)
        Keys. The leading axes are those of q, but the last of them may be a divisor of q's:
        query head h reads key head h // (heads of q / heads of k). Without any leading axis, the
        keys are shared by all queries.
    v : array-like of shape (..., S, e)
        Values, with the leading axes of k.
    key_padding_mask : array-like of bool, default=None
        True where a key is ignored; shape (S,), or with the leading axes of k, with or without
        the last of them, its heads, or (batch, 1, 1, S). What padding holds is never read.
    causal : bool, default=False
        Whether position i reads only positions up to i; queries are those of the last positions.
    is_step : bool, default=False
        Whether these positions continue earlier ones, so that every one has a query.
    is_checked : bool, default=True
        Whether contents are checked here. False is for callers that make `KeyFeatures` of every
        set, which check their own, on threads.

    Returns
    -------
    Inputs
        The inputs in the one layout that attention works in.

    Raises
    ------
    ValueError
        If shapes do not fit, an axis is empty, or a value is NaN or infinite.
    TypeError
        If an input is not made of real numbers, or the padding not of booleans.
    """
    q, k, v = _arrays({"q": q, "k": k, "v": v})
    check_flag("causal", causal)
    dtypes, shapes = (q.dtype, k.dtype, v.dtype), (tuple(q.shape), tuple(k.shape), tuple(v.shape))
    arrays = library(q)
    xp, cast = arrays.xp, arrays.cast
    dtype, result_dtype = _dtypes(xp, dtypes)
    leading, key_leading, n_sets = _layout(shapes, bool(causal), is_step)
    q, k, v = cast(q, dtype), cast(k, dtype), cast(v, dtype)
    padding = _check_padding(key_padding_mask, k.shape)
    # Heads that share keys are contiguous, so this splits an axis and moves nothing.
    q = xp.reshape(q, (n_sets, -1, *shapes[0][-2:]))
    k, v = xp.reshape(k, (n_sets, *shapes[1][-2:])), xp.reshape(v, (n_sets, *shapes[2][-2:]))
    if padding is not None:
        padding = in_library_of(padding, k)
        # Padded entries must not decide the precision used for the others.
        k, v = (xp.where(padding[..., None], 0.0, array) for array in (k, v))
    inputs = Inputs(q, k, v, padding, leading, key_leading, result_dtype, arrays)
    if is_checked:  # only what is not padding
        inputs.largest_entries("q", "k", "v")
    return inputs


def check_scale(scale, width):
    """Return the factor of the products q.k: `scale`, or one over the root of their width d."""
    if scale is None:
        return 1 / math.sqrt(width)
    try:
        return check_positive("scale", scale)
    except (TypeError, ValueError):
        raise ValueError(f"scale must be a finite number > 0 or None, got {scale!r}.") from None


def check_real(name, xp, dtype):
    """Raise unless arrays of a dtype of a library hold real numbers or booleans."""
    if not xp.isdtype(dtype, ("bool", "integral", "real floating")):
        raise TypeError(f"{name} must hold real numbers, got dtype {dtype}.")


def check_flag(name, value):
    """Raise unless a parameter is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r}.")


def _arrays(inputs):
    """Return the inputs as arrays of one library."""
    arrays = inputs.values()
    if {type(values) for values in arrays} == {np.ndarray}:
        return arrays
    if not any(map(is_array_api, arrays)):
        return [as_array(name, values) for name, values in inputs.items()]
    if len({library(values) for values in arrays}) == 1:
        return arrays
    kinds = ", ".join(f"{name} {type(values)!r}" for name, values in inputs.items())
    raise TypeError(f"q, k and v must be arrays of one library, got {kinds}.")


@lru_cache(maxsize=64)  # asked for by every position of a stream
def _dtypes(xp, dtypes):
    """Return the dtype in which to compute, float32 if no input is longer, and that of results."""
    for name, dtype in zip("qkv", dtypes, strict=True):
        check_real(name, xp, dtype)
    is_single = all(
        xp.isdtype(dtype, "real floating") and xp.finfo(dtype).bits <= 32 for dtype in dtypes
    )
    dtype = xp.float32 if is_single else xp.float64
    # Short floats of one kind keep their dtype.
    is_kept = is_single and len(set(dtypes)) == 1 and xp.finfo(dtypes[0]).bits >= 16
    return dtype, dtypes[0] if is_kept else dtype


def as_array(name, values):
    """Return values as a NumPy array, or raise and name them."""
    check_not_masked(name, values)
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} must be an array: {error}") from error


@lru_cache(maxsize=64)
def _layout(shapes, is_causal, is_step):
    """Return the leading axes of queries and of keys, and the number of sets, or raise."""
    for name, shape in zip("qkv", shapes, strict=True):
        if len(shape) < 2:
            raise ValueError(
                f"{name} must have shape {_SHAPES[name]}, got {len(shape)} axes: {shape}."
            )
        if 0 in shape:
            raise ValueError(
                f"{name} has an empty axis: shape {shape}; every axis must be at least 1."
            )
    q, k, v = shapes
    if q[-1] != k[-1]:
        raise ValueError(
            f"q and k must have the same width d, got {q[-1]} in q of shape {q} and {k[-1]} in k "
            f"of shape {k}."
        )
    if k[:-1] != v[:-1]:
        raise ValueError(
            "k and v must agree in all axes but the last, got k of shape "
            f"{k} and v of shape {v}, for q of shape {q}."
        )
    queries, keys = q[:-2], k[:-2]
    is_shared = not keys or (queries[:-1] == keys[:-1] and len(queries) == len(keys))
    if not is_shared or (keys and queries[-1] % keys[-1]):
        raise ValueError(
            "The leading axes of k must be those of q, the last of them (heads) a divisor of q's, "
            f"or absent, got {keys} in k and {queries} in q."
        )
    n_queries, n_keys, needed = q[-2], k[-2], None
    if is_step and n_queries != n_keys:
        needed = "step needs as many keys as queries"
    elif is_causal and n_queries > n_keys:
        needed = "causal=True needs no more queries than keys"
    if needed is not None:
        raise ValueError(f"{needed}, got {n_queries} queries in q and {n_keys} keys in k.")
    return queries, keys, math.prod(keys)


def _check_padding(mask, k_shape):
    """Return the padding as (U, S), or None if no key is padded."""
    if mask is None:
        return None
    mask = as_array("key_padding_mask", to_host(mask))
    if mask.dtype != bool:
        raise TypeError(
            f"key_padding_mask must be boolean (True = padding, ignored), got dtype {mask.dtype}. "
            "The attention mask of a tokenizer is 1 where there is a token: pass "
            "attention_mask == 0."
        )
    *leading, n_keys, _ = k_shape
    if leading and mask.shape == (*leading[:-1], 1, 1, n_keys):
        mask = mask.reshape(*leading[:-1], n_keys)
    allowed = {(n_keys,), (*leading[:-1], n_keys), (*leading, n_keys)}
    if mask.shape not in allowed:
        choices = " or ".join(str(shape) for shape in sorted(allowed, key=len))
        raise ValueError(f"key_padding_mask must have shape {choices}, got {mask.shape}.")
    if not mask.any():
        return None
    if 1 < mask.ndim == len(leading):
        mask = mask[..., None, :]
    return np.broadcast_to(mask, (*leading, n_keys)).reshape(-1, n_keys)


def blocks(n, size):
    """Return slices of `size` numbers that cover n."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def blocks_between(edges, size):
    """Return slices of at most `size` numbers that cover those between edges, and cross none."""
    return [
        slice(start + block.start, start + block.stop)
        for start, stop in pairwise(edges)
        for block in blocks(stop - start, size)
    ]


def side_by_side(arrays, axis):
    """Return arrays joined along an axis."""
    return arrays[0] if len(arrays) == 1 else namespace(arrays[0]).concat(arrays, axis=axis)
