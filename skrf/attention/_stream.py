"""The state of streaming attention between calls, per set of keys or for all together."""

from dataclasses import dataclass, fields

import numpy as np

from .._arrays import is_array_api
from ._heads import TOGETHER
from ._near import NearState


@dataclass(frozen=True)
class AttentionState:
    """State of streaming attention, made by `ApproxKernelAttention.init_state`.

    Parameters
    ----------
    heads : tuple
        State of every set of keys, or of all together; of a fixed size.
    shape : tuple, default=()
        Sets of keys, their width, features, width of values and the near field.
    is_double : bool, default=False
        Whether values were too large or too small for sums in float32.

    See Also
    --------
    ApproxKernelAttention.init_state : Returns the first state.
    ApproxKernelAttention.step : Returns the next state.

    References
    ----------
    Likhosherstov, Random features for efficient attention approximation (2022), section 3.3;
    logarithms beside the sums, which keep them in range, are ours.
    """

    heads: tuple
    shape: tuple = ()
    is_double: bool = False


def stream_shape(groups, sets, field):
    """Return the shape that a state must match."""
    n_features = sum(head.keys.n_columns for head in sets[0].heads)  # of all groups
    library = "another library than NumPy" if is_array_api(groups.q) else "NumPy"
    return library, len(sets), groups.k.shape[-1], n_features, groups.v.shape[-1], field


def check_state(state, shape):
    """Raise unless a state is empty or these inputs can continue it."""
    if state.heads and state.shape != shape:
        raise ValueError(
            "state was made by {} for {} sets of keys of width {}, {} features, values of width {} "
            "and near={}; got {}, {}, {}, {}, {} and {}.".format(*state.shape, *shape)
        )


def arranged(heads, groups, sets):
    """Return what is remembered as these inputs are worked on, and whether NumPy's sets go jointly.

    Few positions of sets that share their maps do: Python's time for an operation is longer.
    """
    if is_array_api(groups.q) or len(sets) == 1:
        return heads, None
    n_columns = sum(head.keys.n_columns for head in sets[0].heads)
    is_small = groups.q.shape[-2] * n_columns <= TOGETHER
    is_joint = is_small and all(own is sets[0] for own in sets)
    was_joint = len(heads) == 1
    if not heads or is_joint == was_joint:
        return heads, is_joint
    if was_joint:
        return tuple(_of_set(heads[0], u) for u in range(len(sets))), False
    if isinstance(heads[0], NearState) and len({own.anchors.keys.shape for own in heads}) > 1:
        return heads, False  # padding hides the first keys of some sets alone
    return (_joint(heads),), True


def _joint(parts):
    """Return the states of several sets as one with a leading axis for them."""
    first = parts[0]
    if isinstance(first, np.ndarray):
        return np.stack(parts)
    if isinstance(first, tuple):
        return tuple(map(_joint, zip(*parts, strict=True)))
    if isinstance(first, int):
        return first
    return type(first)(*(_joint([getattr(own, name) for own in parts]) for name in _lasting(first)))


def _of_set(part, u):
    """Return the state of one of several sets."""
    if isinstance(part, np.ndarray):
        return part[u]
    if isinstance(part, tuple):
        return tuple(_of_set(own, u) for own in part)
    if isinstance(part, int):
        return part
    return type(part)(*(_of_set(getattr(part, name), u) for name in _lasting(part)))


def _lasting(part):
    """Return the names of what is remembered, without values derived from it for speed."""
    return [f.name for f in fields(part) if f.name != "window"]
