"""Errors and times of attention operators on given inputs, side by side."""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from .._arrays import is_array_api, to_host
from .._tables import Table
from .._typing import Array
from ..exceptions import FeatureCollapseWarning
from ._inputs import as_array, check_flag, check_scale
from .exact import exact_attention
from .generalized import GeneralizedMap
from .masks import DecayMask, ToeplitzMask

_MASKS = {DecayMask: ("rate",), ToeplitzMask: ("weights", "shape", "n_extra")}


@dataclass(frozen=True)
class AttentionComparison:
    """One row of `compare_attention`.

    Parameters
    ----------
    name : str
        Name of the operator.
    error : float
        Relative error of its output in the Frobenius norm.
    seconds : float
        Time of one call, after a first call that fills any caches.
    is_softmax : bool
        Whether it approximates softmax attention. Operators with a `GeneralizedMap` do not: their
        error is only the distance from it.

    See Also
    --------
    compare_attention : Returns them.
    """

    name: str
    error: float
    seconds: float
    is_softmax: bool = field(default=True, repr=False)


class AttentionTable(Table[AttentionComparison]):
    """The rows of `compare_attention`, a list that prints as a table.

    Parameters
    ----------
    iterable : iterable of AttentionComparison, default=()
        The rows.

    See Also
    --------
    compare_attention : Returns it.
    """

    row_type = AttentionComparison

    def __repr__(self):
        others = ", ".join(repr(row.name) for row in self if not row.is_softmax)
        note = f"\nNot an approximation of softmax attention: {others}" if others else ""
        return super().__repr__() + note


def compare_attention(
    q: Array,
    k: Array,
    v: Array,
    operators: Mapping[str, Callable[[Array, Array, Array], Array]],
    *,
    causal: bool | None = None,
    scale: float | None = None,
    mask: Any = None,
    key_padding_mask: Array | None = None,
) -> AttentionTable:
    """Compare attention operators with exact softmax attention on given inputs.

    Exact attention has the direction, the scale and the mask of the operators. The table also
    contains exact attention itself and the mean of the values that a query sees, weighted by the
    mask if there is one: an operator that is no more accurate than the mean is of no use on these
    inputs. Fit the operators on other inputs; otherwise their errors are underestimated.

    Parameters
    ----------
    q, k, v : array-like of shape (..., L, d), (..., S, d), (..., S, e)
        Queries, keys and values, as in `exact_attention`.
    operators : dict of str to callable
        Operators by name, such as `ApproxKernelAttention`, `WindowAttention` and the modules of
        `skrf.torch`. They are called with q, k and v, and with `key_padding_mask` if it is given.
    causal : bool, default=None
        Whether position i of exact attention attends only to positions up to i. None takes it from
        the operators that have an attribute ``causal`` or ``is_causal``; plain functions follow the
        others. If no operator has one, it is False.
    scale : float, default=None
        Multiplies the inner products of queries and keys. None takes it from the operators that
        have an attribute ``scale``; 1/sqrt(d) if none has.
    mask : mask of exact_attention, default=None
        Multiplies the weights of exact attention. None takes it from the operators that have an
        attribute ``mask``.
    key_padding_mask : array-like of bool, default=None
        True where a key is ignored.

    Returns
    -------
    AttentionTable
        A list of `AttentionComparison`, smallest error first.

    Raises
    ------
    TypeError
        If `operators` is not a dict of callables.
    ValueError
        If operators differ in direction, scale or mask, or contradict an argument.

    See Also
    --------
    WindowAttention : For models that were trained with exact attention.
    ApproxKernelAttention.diagnose : The error of one operator, on inputs of any length.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import AdaptiveRF, OptimalPositiveRF
    >>> from skrf.attention import ApproxKernelAttention, compare_attention
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 2, 400, 8)) / 2
    >>> maps = {"optimal": OptimalPositiveRF(128), "adaptive": AdaptiveRF(128)}
    >>> operators = {
    ...     name: ApproxKernelAttention(own, random_state=0).fit(q[:, :200], k[:, :200])
    ...     for name, own in maps.items()
    ... }
    >>> table = compare_attention(q[:, 200:], k[:, 200:], v[:, 200:], operators)
    >>> table[0].name, table[-1].name
    ('exact', 'mean of the values')
    """
    if not (isinstance(operators, Mapping) and all(map(callable, operators.values()))):
        raise TypeError(f"operators must be a dict of str to callable, got {operators!r:.200}.")
    q, k, v = (
        array if is_array_api(array) else as_array(name, array)
        for name, array in (("q", q), ("k", k), ("v", v))
    )
    options = {} if key_padding_mask is None else {"key_padding_mask": key_padding_mask}

    settings = _settings(operators, {"causal": causal, "scale": scale, "mask": mask}, q.shape[-1])

    def exact(q, k, v):
        return exact_attention(q, k, v, **settings, **options)

    def mean(q, k, v):
        return exact_attention(0 * q, k, v, **settings, **options)

    right, rows = to_host(exact(q, k, v)), []
    for name, call, keywords in [
        ("exact", exact, {}),
        ("mean of the values", mean, {}),
        *((name, call, options) for name, call in operators.items()),
    ]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FeatureCollapseWarning)  # the table says it
            call(q, k, v, **keywords)
            start = time.perf_counter()
            out = to_host(call(q, k, v, **keywords))
        seconds = time.perf_counter() - start
        error = np.linalg.norm(out - right) / (np.linalg.norm(right) or 1.0)
        is_softmax = not isinstance(getattr(call, "feature_map", None), GeneralizedMap)
        rows.append(AttentionComparison(name, float(error), seconds, is_softmax))
    return AttentionTable(sorted(rows, key=lambda row: row.error))


def _settings(operators, arguments, width):
    """Return the direction, scale and mask that operators and arguments agree on, or raise."""
    if arguments["causal"] is not None:
        check_flag("causal", arguments["causal"])
    if arguments["scale"] is not None:
        check_scale(arguments["scale"], width)
    sources = {"the argument": {name: x for name, x in arguments.items() if x is not None}}
    for name, operator in operators.items():
        sources[f"operator {name!r}"] = _stated(operator, width)
    settings = {"causal": False, "scale": None, "mask": None}
    for parameter in settings:
        values = [(source, x[parameter]) for source, x in sources.items() if parameter in x]
        for source, value in values:
            first, settings[parameter] = values[0]
            if not _is_same(value, settings[parameter]):
                raise ValueError(
                    f"operators are compared with one exact attention, but {parameter} is "
                    f"{_shown(settings[parameter])} in {first} and {_shown(value)} in {source}. "
                    "Compare them in separate calls."
                )
    return settings


def _stated(operator, width):
    """Return what an operator says about its direction, scale and mask."""
    settings = {}
    for name in ("causal", "is_causal"):
        if isinstance(getattr(operator, name, None), (bool, np.bool_)):
            settings["causal"] = bool(getattr(operator, name))
    scale = getattr(operator, "scale", "")
    if scale is None or isinstance(scale, Real):
        settings["scale"] = check_scale(scale, width)
    if hasattr(operator, "mask"):
        of_call = getattr(operator, "_mask_of_call", None)  # of modules, whose masks may be trained
        settings["mask"] = operator.mask if of_call is None else of_call()
    return settings


def _shown(value):
    """Return a setting on one line."""
    return " ".join(repr(value).split())[:100]


def _is_same(value, other):
    """Return whether two settings are equal: masks also by what they are made of."""
    if value is other:
        return True
    if isinstance(value, Real) and isinstance(other, Real):
        return bool(np.isclose(value, other, rtol=1e-12, atol=0.0))
    if type(value) is type(other) and type(value) in _MASKS:
        return all(
            _is_same(getattr(value, part), getattr(other, part)) for part in _MASKS[type(value)]
        )
    arrays = to_host(value), to_host(other)
    return all(isinstance(part, (np.ndarray, tuple)) for part in arrays) and np.array_equal(*arrays)
