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
        The shapes of the fit, `shrink_`, and the `record_of` every mechanism.

    Raises
    ------
    ValueError
        If a mechanism learned anything other than arrays and numbers.
    """
    record = {
        "lengths": np.array(attention._fitted_lengths),
        "shape": np.array(attention._fitted_shape),
        "shrink": attention.shrink_.copy(),
    }
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
    lengths, shape = (tuple(record[name].tolist()) for name in ("lengths", "shape"))
    width, n_heads, n_query_heads = shape
    plan = attention._plan(*lengths, width)
    shrink = record["shrink"].reshape(n_heads, -1)
    n_maps = 1 if plan.field is None else n_query_heads // n_heads
    sets, mechanisms = [], []
    for h in range(n_heads):
        own = []
        for i in range(h * n_maps, (h + 1) * n_maps) if plan.prototypes else ():
            learned = below(record, f"mechanisms/{i}/")
            own.append(restored(plan.prototypes[0], learned) if learned else plan.prototypes[0])
        sets.append(plan.maps(own, shrink[h]))
        mechanisms += own
    return attention._keep(lengths, shape, plan.prototypes, sets, mechanisms, shrink)


def below(record, prefix):
    """Return what a record holds under a prefix of its names, named without it."""
    return {
        name.removeprefix(prefix): array
        for name, array in record.items()
        if name.startswith(prefix)
    }
