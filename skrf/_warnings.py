"""Warnings that point at the user's code, and that a call gives once."""

import sys
import threading
import warnings
from contextlib import contextmanager

import numpy as np

# Code of these packages runs between the user's and ours.
_PACKAGES = {"skrf", "sklearn", "joblib", "threading", "concurrent", "contextlib", "functools"}

_local = threading.local()
_shown = {}  # by file, as Python notes it


def warn(text, category, key=None):
    """Warn from the line of the user's code that led here, once inside of `once`.

    Parameters
    ----------
    text : str
        The warning. Where it is the same for all data, Python shows it once per line.
    category : type
        Its class.
    key : object, default=None
        What warnings of one kind share; None means the text.
    """
    key, told = (category, text if key is None else key), getattr(_local, "told", None)
    if told is not None and key in told:
        return
    if told is not None:
        told.add(key)
    frame = sys._getframe(1)
    while frame.f_back and _module(frame).partition(".")[0] in _PACKAGES:
        frame = frame.f_back
    # Functions that processes of joblib get have no module that Python could note this in.
    filename = frame.f_code.co_filename
    shown = _shown.setdefault(filename, {})
    warnings.warn_explicit(text, category, filename, frame.f_lineno, _module(frame), shown)


def _module(frame):
    return frame.f_globals.get("__name__", "")


@contextmanager
def once():
    """Give each kind of warning once, however many blocks and fits there are inside.

    Python itself forgets what it has shown whenever a filter changes, as scikit-learn's tasks do.
    """
    if getattr(_local, "told", None) is not None:  # of a call further out
        yield
        return
    _local.told = set()
    try:
        yield
    finally:
        _local.told = _local.names = None


def note_names(estimator):
    """Keep the names of the columns, inside of `once`, for fits that get arrays."""
    if getattr(_local, "told", None) is not None:
        _local.names = getattr(estimator, "feature_names_in_", None)


def names_of(estimator, n_features):
    """Return the names of the columns, or their numbers."""
    names = getattr(estimator, "feature_names_in_", getattr(_local, "names", None))
    return np.arange(n_features) if names is None or len(names) != n_features else names
