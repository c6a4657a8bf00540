"""What a fitted feature map learned, as arrays by name, and the feature map restored from them."""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
from sklearn.frozen import FrozenEstimator

from .._validation import draft_of, draw_seed, same
from ..statistics import Moments, PairStatistics
from ._fitted import Fitted
from .base import BaseRandomFeatures

# Parts of a `Fitted` in which two feature maps may differ.
_PARTS = {
    "statistics": "their statistics",
    "parameters": "what they learnt",
    "draw": "their draw of random numbers",
}
_NUMBERS = bool, int, float, complex


def record_of(feature_map):
    """Return what a fitted feature map learned: everything but its parameters and its seed.

    Parameters
    ----------
    feature_map : BaseRandomFeatures
        Fitted.

    Returns
    -------
    dict of str to ndarray
        Values by name. Numbers become arrays without axes, None a boolean array of shape (0,).

    Raises
    ------
    ValueError
        If it learned anything other than arrays and numbers.
    """
    if not isinstance(feature_map, BaseRandomFeatures):
        raise ValueError(_refusal(feature_map, "is none of skrf's"))
    fitted, record = feature_map._known, {}
    for side in fields(PairStatistics):
        moments = getattr(fitted.statistics, side.name)
        for name, value in vars(moments).items():
            if not np.isnan(value).any():  # not known
                record[f"statistics/{side.name}/{name}"] = np.array(value)
    record["statistics/is_one"] = np.array(fitted.statistics.keys is fitted.statistics.queries)
    for path, value in _leaves("learned", fitted.parameters):
        record[path] = _as_array(feature_map, path.removeprefix("learned/"), value)
    return record


def _leaves(path, value):
    """Yield paths and values of the contents of tuples and namespaces."""
    if type(value) is tuple:
        items = enumerate(value)
    elif isinstance(value, SimpleNamespace):
        items = vars(value).items()
    else:
        yield path, value
        return
    for name, item in items:
        yield from _leaves(f"{path}/{name}", item)


def restored(feature_map, record):
    """Return a feature map with the learned values of a record.

    Parameters
    ----------
    feature_map : BaseRandomFeatures
        Fitted, or with an integer as ``random_state``; provides the parameters and the seed.
    record : dict of str to ndarray
        From `record_of`.

    Returns
    -------
    feature_map
        A fitted copy whose maps are bitwise equal to those of the recorded feature map.
    """
    tree = {}
    for path, array in record.items():
        *folders, name = path.split("/")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[name] = array
    parameters = _grown(tree["learned"])
    sides = [_moments(record, side.name) for side in fields(PairStatistics)]
    if record["statistics/is_one"]:
        sides = sides[:1] * 2
    fitted = feature_map._fitted
    if fitted is not None:
        spec, seed, draft = fitted.spec, fitted.seed, feature_map
    else:
        spec, draft = feature_map._as_spec(), draft_of(feature_map)
        seed, draft.n_features_in_ = draw_seed(feature_map.random_state), parameters.n_features
    items = PairStatistics(*sides), parameters, spec._draw(parameters, seed)
    return draft._with(Fitted.assemble(spec, seed, *items))


def _moments(record, side):
    unknown = np.full_like(record[f"statistics/{side}/step"], np.nan)
    names = [moment.name for moment in fields(Moments)]
    values = {name: record.get(f"statistics/{side}/{name}", unknown) for name in names}
    return Moments(**{**values, "weight": values["weight"].item()})


def _as_array(feature_map, name, value):
    """Return an array, a number or None as an array."""
    if value is None:
        return np.zeros(0, bool)
    if type(value) in _NUMBERS or (isinstance(value, np.ndarray) and value.ndim):
        return np.array(value)
    raise ValueError(_refusal(feature_map, f"learns {name}={value!r:.60}, which is not an array"))


def _grown(tree):
    """Return the namespace, tuple or value of a branch of paths."""
    if not isinstance(tree, dict):
        return _from_array(tree)
    items = {name: _grown(branch) for name, branch in tree.items()}
    if all(name.isdigit() for name in items):
        return tuple(items[name] for name in sorted(items, key=int))
    return SimpleNamespace(**items)


def _from_array(array):
    if array.ndim == 0:
        return array.item()
    return None if array.dtype == bool and array.shape == (0,) else array


def _refusal(feature_map, reason):
    return (
        f"{type(feature_map).__name__} cannot be written as arrays: it {reason}. Allowed: "
        "feature maps of skrf whose parameters are arrays and numbers, such as OptimalPositiveRF "
        "and DenseExponentialRF."
    )


def difference(first, second):
    """Return what two fitted transformers differ in, or None if their features are the same.

    Parameters
    ----------
    first, second : transformer
        Fitted.

    Returns
    -------
    str or None
        For feature maps of this library: parameters, statistics, learned values or the draw.
    """
    if type(first) is not type(second):
        return f"their class, {type(first).__name__} against {type(second).__name__}"
    if isinstance(first, FrozenEstimator):
        return difference(first.estimator, second.estimator)
    if not isinstance(first, BaseRandomFeatures):
        return None if same(vars(first), vars(second)) else "what was fitted"
    sides = [side._known for side in (first, second)]
    params = [side.spec.get_params() for side in sides]
    for name in params[0]:
        pair = [side[name] for side in params]
        if name != "random_state" and not same(*pair):
            return f"the parameter {name}={pair[0]!r} against {pair[1]!r}"
    for name, description in _PARTS.items():
        if not same(*(getattr(side, name) for side in sides)):
            return description
    return None
