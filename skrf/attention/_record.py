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
        The shape of the fit, and the `record_of` of every feature map.

    Raises
    ------
    ValueError
        If a feature map learned anything other than arrays and numbers.
    """
    record = {"shape": np.array(attention._fitted_shape)}
    for i, feature_map in enumerate(attention.feature_maps_):
        if not isinstance(feature_map, GeneralizedMap):  # which learns nothing
            parameters = record_of(feature_map)
            record.update({f"feature_maps/{i}/{name}": array for name, array in parameters.items()})
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
    _, prototype, _ = attention._draw(width)
    transformers = []
    for i in range(n_heads):
        parameters = below(record, f"feature_maps/{i}/")
        transformers.append(restored(prototype, parameters) if parameters else prototype)
    return attention._keep(shape, transformers)


def below(record, prefix):
    """Return what a record holds under a prefix of its names, named without it."""
    return {
        name.removeprefix(prefix): array
        for name, array in record.items()
        if name.startswith(prefix)
    }
