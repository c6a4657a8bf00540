"""Entries of masks, as callers give them: copies of their own, checked."""

import copy

import numpy as np
import scipy.sparse as sp

from .._arrays import cast, constant, is_array_api, is_torch, namespace, to_host
from .._validation import check_not_masked


def owned(values):
    """Return a copy of the arrays of a caller.

    Tensors of torch, which may be trained, and objects with entries of their own stay as they are.
    """
    if isinstance(values, (np.ndarray, list, tuple)) or sp.issparse(values):
        return copy.deepcopy(values)
    if is_array_api(values) and not is_torch(values):
        return namespace(values).asarray(values, copy=True)
    return values


def as_doubles(values):
    """Return entries of any library as float64 on the host, which lacks some short floats."""
    if is_array_api(values) and namespace(values).isdtype(values.dtype, "real floating"):
        values = cast(constant(values), namespace(values).float64)
    values = np.asarray(to_host(values))
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def checked_entries(entries, name):
    """Return entries as an array of real, finite numbers >= 0, or raise."""
    check_not_masked(name, entries)
    entries = np.asarray(as_doubles(entries) if is_array_api(entries) else entries)
    if entries.dtype.kind not in "buif":
        raise TypeError(f"{name} must hold real numbers or booleans, got {entries.dtype}.")
    # Minimum and maximum need no temporary arrays, and NaN fails both comparisons.
    if entries.size and not (entries.min() >= 0 and entries.max() < np.inf):
        wrong, hint = entries[~((entries >= 0) & (entries < np.inf))], ""
        if (wrong == -np.inf).any():
            hint = (
                ". It multiplies weights, but one with -inf is meant to be added to logarithms: "
                f"pass exp({name})"
            )
        raise ValueError(f"{name} must be finite and >= 0 everywhere, got {wrong[0]}{hint}.")
    return entries


def check_decay(rate):
    """Raise a ValueError unless these are rates of a decay."""
    shape = checked_entries(rate, "rate").shape
    if len(shape) > 1:
        raise ValueError(f"rate must be a number or an array of shape (n_heads,), got {shape}.")
