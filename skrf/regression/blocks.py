"""Blocks of rows, in which features are made and summed."""

from contextlib import nullcontext

from .. import _kernels
from .._arrays import is_array_api, rows_at_once
from .._threads import block_rows, map_rows, serial_blas
from .._warnings import once
from ..features import in_range

BLOCK_ROWS = 1024
_TORCH_ROWS = 2**14  # of a block: other libraries use threads inside an operation


def blocks_of(feature_map, X):
    """Return the size of a block of rows, and a `map` over blocks, threaded where allowed.

    Compiled sines and cosines are loaded if the features are many.
    """
    n_columns = feature_map.n_columns
    if is_array_api(X):
        size = _TORCH_ROWS if n_columns is None else rows_at_once(X, n_columns, _TORCH_ROWS)
        return size, _map_in_turn
    work = [X.shape[0] * n for n in (feature_map.n_sines, feature_map.n_transformed)]
    if any(work):
        # Long rows of float32 are mapped in float64; the first ones tell.
        _kernels.load(in_range(feature_map, X[:BLOCK_ROWS]), *work)
    if not feature_map.is_parallel:
        return BLOCK_ROWS, _map_in_turn
    size = block_rows(X.shape[0], n_columns, X.shape[1])
    return size, map_rows


def beside_threads(feature_map):
    """Limit BLAS to one thread if features of a map come from our threads."""
    is_feature_map = hasattr(feature_map, "_learns_from")
    is_parallel = is_feature_map or getattr(feature_map, "is_parallel", False)
    return serial_blas() if is_parallel else nullcontext()


def _map_in_turn(function, n_rows, size, start=0):
    with once():  # maps of other packages may hold ours, and warn in every block
        return [function(slice(a, min(a + size, n_rows))) for a in range(start, n_rows, size)]
