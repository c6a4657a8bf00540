"""Checks of the parameters of generators, which stand alone."""

import numpy as np
from sklearn.utils import check_random_state


def generator(random_state):
    """Return a RandomState, or raise and name the parameter."""
    try:
        return check_random_state(random_state)
    except ValueError as error:
        raise ValueError(
            "random_state must be an int from 0 to 2**32 - 1, a RandomState instance or None, got "
            f"{random_state!r}"
        ) from error


def check(name, value, kind, allowed):
    """Raise unless a parameter is a positive, finite number of a kind."""
    wrong_type = isinstance(value, bool) or not isinstance(value, kind)
    try:
        is_allowed = not wrong_type and 0 < float(value) < np.inf
    except OverflowError:  # an int beyond all floats
        is_allowed = False
    if not is_allowed:
        error = TypeError if wrong_type else ValueError
        raise error(f"{name} must be {allowed}, got {value!r}")
