"""What a fitted operator learned, as arrays by name, and the operator restored from them."""

import numpy as np

from ..features import record_of, restored
from .generalized import GeneralizedMap


def record_of_fit(attention):
    """Return what a fitted operator learned: everything but its parameters and seed.

    Parameters
    ----------
    attention : ApproxKernelAttention
        Fitted.

    Returns
    -------
    dict of str to ndarray
        The shape of the fit, and the `record_of` every mechanism.

    Raises
    ------
    ValueError
        If a mechanism learned anything other than arrays and numbers.
    """
    record = {"shape": np.array(attention._fitted_shape)}
    for i, mechanism in enumerate(attention.mechanisms_):
        if not isinstance(mechanism, GeneralizedMap):  # which learns nothing
            own = record_of(mechanism)
            record.update({f"mechanisms/{i}/{name}": array for name, array in own.items()})
    return record


def restore_fit(attention, record):
    """Fit an operator of the same parameters and seed to what a record says.

    Parameters
    ----------
    attention : ApproxKernelAttention
        As it was before the fit.
    record : dict of str to ndarray
        From `record_of_fit`.

    Returns
    -------
    ApproxKernelAttention
        The operator itself, equal to that of the record in every bit of its outputs.
    """
    shape = tuple(record["shape"].tolist())
    width, n_heads, _ = shape
    prototype = attention._prototype(width)
    transformers = []
    for i in range(n_heads):
        learned = below(record, f"mechanisms/{i}/")
        transformers.append(restored(prototype, learned) if learned else prototype)
    return attention._keep(shape, prototype, transformers)


def below(record, prefix):
    """Return what a record holds under a prefix of its names, named without it."""
    return {
        name.removeprefix(prefix): array
        for name, array in record.items()
        if name.startswith(prefix)
    }
