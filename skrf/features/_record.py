"""What a fitted mechanism learned, as arrays by name, and the mechanism restored from them."""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
from sklearn.frozen import FrozenEstimator

from .._validation import draft_of, draw_seed, same
from ..statistics import Moments, PairStatistics
from .base import BaseRandomFeatures, Fitted

# Parts of a `Fitted` in which two mechanisms may differ.
_PARTS = {
    "statistics": "their statistics",
    "learned": "what they learnt",
    "draw": "their draw of random numbers",
}
_NUMBERS = bool, int, float, complex


def record_of(mechanism):
    """Return what a fitted mechanism learned: everything but parameters and the seed of its draw.

    Parameters
    ----------
    mechanism : BaseRandomFeatures
        Fitted.

    Returns
    -------
    dict of str to ndarray
        Numbers become arrays without axes, None a boolean array of shape (0,).

    Raises
    ------
    ValueError
        If it learned anything other than arrays and numbers.
    """
    if not isinstance(mechanism, BaseRandomFeatures):
        raise ValueError(_refusal(mechanism, "is none of skrf's"))
    fitted, record = mechanism._known, {}
    for side in fields(PairStatistics):
        moments = getattr(fitted.statistics, side.name)
        for name, value in vars(moments).items():
            if not np.isnan(value).any():  # not known
                record[f"statistics/{side.name}/{name}"] = np.array(value)
    record["statistics/is_one"] = np.array(fitted.statistics.keys is fitted.statistics.queries)
    for path, value in _leaves("learned", fitted.learned):
        record[path] = _as_array(mechanism, path.removeprefix("learned/"), value)
    return record


def _leaves(path, value):
    """Yield paths and values of the contents of tuples and namespaces."""
    if type(value) is tuple:
        parts = enumerate(value)
    elif isinstance(value, SimpleNamespace):
        parts = vars(value).items()
    else:
        yield path, value
        return
    for name, part in parts:
        yield from _leaves(f"{path}/{name}", part)


def restored(mechanism, record):
    """Return a mechanism with the learned values of a record.

    Parameters
    ----------
    mechanism : BaseRandomFeatures
        Fitted, or with an integer as ``random_state``; provides the parameters and the seed.
    record : dict of str to ndarray
        From `record_of`.

    Returns
    -------
    mechanism
        A fitted copy, whose maps equal those of the recorded mechanism in every bit.
    """
    tree = {}
    for path, array in record.items():
        *folders, name = path.split("/")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[name] = array
    learned = _grown(tree["learned"])
    sides = [_moments(record, side.name) for side in fields(PairStatistics)]
    if record["statistics/is_one"]:
        sides = sides[:1] * 2
    fitted = mechanism._fitted
    if fitted is not None:
        spec, seed, draft = fitted.spec, fitted.seed, mechanism
    else:
        spec, draft = mechanism._as_spec(), draft_of(mechanism)
        seed, draft.n_features_in_ = draw_seed(mechanism.random_state), learned.n_features
    parts = PairStatistics(*sides), learned, spec._draw(learned, seed)
    return draft._with(Fitted.assemble(spec, seed, *parts))


def _moments(record, side):
    unknown = np.full_like(record[f"statistics/{side}/step"], np.nan)
    names = [own.name for own in fields(Moments)]
    found = {name: record.get(f"statistics/{side}/{name}", unknown) for name in names}
    return Moments(**{**found, "weight": found["weight"].item()})


def _as_array(mechanism, name, value):
    """Return an array, a number or None as an array."""
    if value is None:
        return np.zeros(0, bool)
    if type(value) in _NUMBERS or (isinstance(value, np.ndarray) and value.ndim):
        return np.array(value)
    raise ValueError(_refusal(mechanism, f"learns {name}={value!r:.60}, which is not an array"))


def _grown(tree):
    """Return the namespace, tuple or value of a branch of paths."""
    if not isinstance(tree, dict):
        return _from_array(tree)
    parts = {name: _grown(part) for name, part in tree.items()}
    if all(name.isdigit() for name in parts):
        return tuple(parts[name] for name in sorted(parts, key=int))
    return SimpleNamespace(**parts)


def _from_array(array):
    if array.ndim == 0:
        return array.item()
    return None if array.dtype == bool and array.shape == (0,) else array


def _refusal(mechanism, reason):
    return (
        f"{type(mechanism).__name__} cannot be written as arrays: it {reason}. Allowed: "
        "mechanisms of skrf whose parameters are arrays and numbers, such as OptimalPositiveRF and "
        "DenseExponentialRF."
    )


def difference(one, other):
    """Return what two fitted transformers differ in, or None if their features are the same.

    Parameters
    ----------
    one, other : transformer
        Fitted.

    Returns
    -------
    str or None
        For mechanisms of this library: the parameters, statistics, what was learned, or the draw.
    """
    if type(one) is not type(other):
        return f"their class, {type(one).__name__} against {type(other).__name__}"
    if isinstance(one, FrozenEstimator):
        return difference(one.estimator, other.estimator)
    if not isinstance(one, BaseRandomFeatures):
        return None if same(vars(one), vars(other)) else "what was fitted"
    sides = [own._known for own in (one, other)]
    params = [own.spec.get_params() for own in sides]
    for name in params[0]:
        pair = [own[name] for own in params]
        if name != "random_state" and not same(*pair):
            return f"the parameter {name}={pair[0]!r} against {pair[1]!r}"
    for name, what in _PARTS.items():
        if not same(*(getattr(own, name) for own in sides)):
            return what
    return None
