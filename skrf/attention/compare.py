"""Errors and times of attention operators on given inputs, side by side."""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from .._arrays import is_array_api, to_host
from .._tables import Table
from .._typing import Array
from ..exceptions import FeatureCollapseWarning
from .exact import exact_attention


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

    See Also
    --------
    compare_attention : Returns them.
    """

    name: str
    error: float
    seconds: float


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


def compare_attention(
    q: Array,
    k: Array,
    v: Array,
    operators: Mapping[str, Callable[[Array, Array, Array], Array]],
    *,
    causal: bool = False,
    scale: float | None = None,
    key_padding_mask: Array | None = None,
) -> AttentionTable:
    """Compare attention operators with exact softmax attention on given inputs.

    The table also contains exact attention and the mean of the values: an operator that is no more
    accurate than the mean is of no use on these inputs. Fit the operators on other inputs;
    otherwise their errors are underestimated.

    Parameters
    ----------
    q, k, v : array-like of shape (..., L, d), (..., S, d), (..., S, e)
        Queries, keys and values, as in `exact_attention`.
    operators : dict of str to callable
        Operators by name, such as `ApproxKernelAttention` and `LocalAttention`. They are called
        with q, k and v, and with `key_padding_mask` if it is given.
    causal : bool, default=False
        Whether position i of exact attention attends only to positions up to i.
    scale : float, default=None
        Multiplies the inner products of queries and keys; None means 1/sqrt(d).
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
        If an operator has a mask.

    See Also
    --------
    LocalAttention : For models that were trained with exact attention.
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
    for name, operator in operators.items():
        if getattr(operator, "mask", None) is not None:
            raise ValueError(
                f"operators must have no mask, because exact attention here has none, got "
                f"mask={operator.mask!r:.200} in {name!r}."
            )
    q, k, v = (array if is_array_api(array) else np.asarray(array) for array in (q, k, v))
    options = {} if key_padding_mask is None else {"key_padding_mask": key_padding_mask}

    def exact(q, k, v):
        return exact_attention(q, k, v, causal=causal, scale=scale, **options)

    def mean(q, k, v):
        return exact_attention(0 * q, k, v, causal=causal, scale=scale, **options)

    right, rows = to_host(exact(q, k, v)), []
    for name, call, given in [
        ("exact", exact, {}),
        ("mean of the values", mean, {}),
        *((name, call, options) for name, call in operators.items()),
    ]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FeatureCollapseWarning)  # the table says it
            call(q, k, v, **given)
            start = time.perf_counter()
            out = to_host(call(q, k, v, **given))
        seconds = time.perf_counter() - start
        error = np.linalg.norm(out - right) / (np.linalg.norm(right) or 1.0)
        rows.append(AttentionComparison(name, float(error), seconds))
    return AttentionTable(sorted(rows, key=lambda row: row.error))
