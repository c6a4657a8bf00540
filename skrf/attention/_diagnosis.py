"""How far an output is from exact attention, measured at a few queries beside simple answers."""

import math
import warnings
from dataclasses import dataclass, field

import numpy as np

from .._arrays import (
    largest_entry,
    like,
    to_host,
)
from .._sums import exp_max_one, scale_queries
from ..exceptions import FeatureCollapseWarning
from ._feature_maps import real_queries
from ._inputs import blocks
from .exact import exact_logits, rows_of_each_set
from .linear import key_sums

TOLERATED = 0.3  # relative error up to which there is no collapse
_MOST_OF_A_MEAN = 1.5  # outputs larger than this many times all values are no means
_LOGITS = 2**16  # that are held at a time
_FIRST = 4  # keys of a window: language models put much weight on them
_LOOKED_AT = 16  # queries per head whose effective number of features is counted


@dataclass(frozen=True)
class AttentionDiagnosis:
    """Result of `ApproxKernelAttention.diagnose`.

    Parameters
    ----------
    relative_error : float
        Estimated relative error of the output: the square root of its summed squared errors over
        its summed squares.
    effective_features : ndarray or None
        Effective number of features behind the weights of each sampled query, over all keys: one
        over the sum of the squared shares. None if the map is not positive, if there is a mask, or
        if there are no keys.
    sampled_errors : dict or None
        Relative errors, measured at a sample of queries, of the output ("attention"), of the mean
        of the values ("mean") and of an exact window of the same cost ("window"). None with a mask
        other than a decay and for generalised attention.

    See Also
    --------
    ApproxKernelAttention.diagnose : Returns it.
    compare_attention : Errors and times of several operators.
    skrf.exceptions.FeatureCollapseWarning : The warning that calls issue.
    """

    relative_error: float
    effective_features: np.ndarray | None = field(repr=False)  # hundreds of numbers
    sampled_errors: dict | None = None

    @property
    def has_collapsed(self) -> bool:
        """Whether the mean of the values is closer to softmax attention than the output is."""
        errors = self.sampled_errors
        return errors is not None and errors["attention"] > max(errors["mean"], TOLERATED)


def spread(outputs):
    """Return the relative error of an output, estimated from those of independent draws."""
    largest = max(map(largest_entry, outputs)) or 1.0
    outputs = [out / largest for out in outputs]  # keeps squares within the range of floats
    mean = np.mean(outputs, axis=0, dtype=np.float64)
    variance = sum(np.sum((out - mean) ** 2) for out in outputs) / (len(outputs) - 1)
    # The square of the mean minus the part that its own noise adds.
    size = np.sum(mean**2) - variance / len(outputs)
    return math.sqrt(variance / size) if size > 0 else (math.inf if variance else 0.0)


def warn_of_result(result, inputs, is_sampled=False, may_cancel=False):
    """Warn of outputs that features spoil; to be called from a public method.

    Parameters
    ----------
    result : AttentionResult
        What was computed.
    inputs : Inputs
        From what.
    is_sampled : bool, default=False
        Whether it has distances from exact attention. They are compared rather than their squares,
        which a single query can dominate.
    may_cancel : bool, default=False
        Whether weights may have both signs, so that outputs may exceed all values, as no mean does.
    """
    messages = []
    if result.n_lost:
        messages.append(
            "Some outputs are 0 because the weights of their queries sum to 0 "
            f"({result.n_lost} of {math.prod(inputs.q.shape[:-1])} queries): the features of "
            "feature_map have signs or zeros. Use a positive map, such as OptimalPositiveRF, or "
            "more features."
        )
    error, of_mean, size = result.distances[1] if is_sampled else (0.0, 0.0, 0.0)
    if error > of_mean and error > TOLERATED * size:
        messages.append(
            "Random features have collapsed: at a few queries the relative error of the output is "
            f"{error / size:.2g}, and that of the mean of the values is {of_mean / size:.2g}. Try "
            "alternatives on your inputs with compare_attention: WindowAttention (for trained "
            "models), more features, or a fitted AdaptiveRF(asymmetric=True). If none of them "
            "beats the mean of the values, use exact attention."
        )
    largest, most = map(largest_entry, (result.out, inputs.v)) if may_cancel else (0.0, 0.0)
    if largest > _MOST_OF_A_MEAN * most:
        messages.append(
            f"Outputs reach {largest:.3g}, values only {most:.3g}: the weights of a query have "
            "both signs and nearly cancel. Use features that are never negative: a positive map, "
            "such as OptimalPositiveRF, or a nonlinearity such as 'relu' or 'elu'."
        )
    for message in messages:
        warnings.warn(message, FeatureCollapseWarning, stacklevel=3)


def sampled_distances(features, out, n_queries, scale, is_causal, window=None):
    """Return distances of answers from exact attention at some queries.

    Parameters
    ----------
    features : KeyFeatures
        What the output was computed from.
    out : array of shape (U, G, L, e)
        The output.
    n_queries : int
        Number of queries per head, spread over all.
    scale : float
        Factor of the products of queries and keys.
    is_causal : bool
        Whether queries read only keys up to their own.
    window : int, default=None
        Number of keys of an exact window to judge as well: the first 4 and the nearest.

    Returns
    -------
    ndarray of shape (2, n_answers)
        Squared distances and distances, summed over the queries, of the output, the mean of the
        values, the window if there is one, and 0. Values are over the largest of their set, for
        squares to be floats.
    """
    inputs, do, dtype = features.inputs.constants(), features.library, features.dtype
    xp, values, out, total = do.xp, do.cast(inputs.v, dtype), do.constant(out), 0.0
    n_sets, n_keys, _ = values.shape
    largest = xp.max(xp.abs(xp.reshape(values, (n_sets, -1))), axis=1)[:, None, None, None]
    largest = xp.where(largest == 0, 1.0, largest)
    values = values[:, None, :, :] / largest
    is_free = _is_free(inputs)
    n_rows = inputs.q.shape[-2]
    first = n_keys - n_rows if is_causal else 0  # queries are those of the last positions
    places = sampled(real_queries(~is_free[..., first:], n_rows), n_queries)

    def mean(weights):
        """Return the weighted means of the values, 0 without a weight."""
        total = xp.sum(weights, axis=-1, keepdims=True)
        return weights @ values / xp.where(total == 0, 1.0, total)

    is_first = (np.cumsum(is_free, axis=-1) <= _FIRST)[:, None, None, :]
    for block in blocks(places.shape[-1], max(8, _LOGITS // n_keys)):
        rows = places[:, block]
        logits = exact_logits(inputs, rows, n_keys, dtype, scale, is_causal)
        if inputs.log_gates is None:
            factors = do.cast(logits > -np.inf, dtype)  # weights of equal keys
        else:
            factors = exp_max_one(exact_logits(inputs, rows, n_keys, dtype, 0.0, is_causal))
        weights = exp_max_one(logits)
        exact = mean(weights)
        estimate = do.cast(rows_of_each_set(out, rows, xp), dtype) / largest
        answers = [estimate, mean(factors)]
        if window is not None:
            width = window - _FIRST
            low = rows + first - (width - 1 if is_causal else width // 2)
            if not is_causal:  # at the ends it moves inwards
                low = np.clip(low, 0, max(n_keys - width, 0))
            reach = np.arange(n_keys) - low[:, None, :, None]
            is_near = is_first | ((reach >= 0) & (reach < width))
            answers.append(mean(weights * like(is_near, weights)))
        answers.append(0.0)
        squares = [xp.sum((answer - exact) ** 2, axis=-1) for answer in answers]
        roots = [xp.sqrt(distances) for distances in squares]
        total = total + np.array([[float(xp.sum(d)) for d in both] for both in (squares, roots)])
    return total


def effective_features(features):
    """Return, on the host, the effective number of features of some queries that see a key."""
    n_queries, do, xp = features.inputs.q.shape[-2], features.library, features.xp
    sums = key_sums(features)
    thinned = slice(None, None, -(-n_queries // _LOOKED_AT))
    factors, _ = scale_queries(features.queries(thinned), sums.top[:, None, :])
    weights = do.cast(do.constant(sums.sums)[:, None, None, :, 0], factors.dtype)
    shares = do.constant(factors) * weights
    total, squares = (
        to_host(xp.sum(values, axis=-1)).ravel() for values in (shares, shares * shares)
    )
    return total[squares > 0] ** 2 / squares[squares > 0]


def sampled(is_free, n):
    """Return indices (..., n) of free rows, spread over all of them with a fixed seed.

    If there are fewer than n, some occur more than once.
    """
    shares = (np.arange(n) + np.random.default_rng(0).random(n)) / n
    order = np.argsort(~is_free, axis=-1, kind="stable")
    numbers = np.floor(shares * np.maximum(is_free.sum(axis=-1, keepdims=True), 1)).astype(int)
    return np.take_along_axis(order, numbers, axis=-1)


def _is_free(inputs):
    """Return, on the host, which keys are not padding."""
    if inputs.padding is None:
        return np.ones(inputs.k.shape[:-1], bool)
    return ~to_host(inputs.padding)


def n_lost_of(inputs, zeros, is_causal, earlier=None):
    """Return the number of queries whose weights sum to 0 although they see a key.

    `zeros` are those whose weights sum to 0; `earlier` are the `Sums` over the keys of earlier
    calls, or None.
    """
    if not zeros.any():
        return 0
    n_keys = np.cumsum(_is_free(inputs), axis=-1)
    # Queries of causal attention are those of the last positions.
    n_keys = n_keys[:, -inputs.q.shape[-2] :] if is_causal else n_keys[:, -1:]
    if earlier is not None:
        n_keys = n_keys + (to_host(earlier.top).max(axis=-1, keepdims=True) > -np.inf)
    return int((zeros & (n_keys[:, None, :] > 0)).sum())
