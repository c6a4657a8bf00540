"""The error of the partition function of approximate potentials.

It is found from exact sums over windows of the chain: with Z[s, e] the sum over the paths of
positions s to e, log Z is about log Z[0, k] plus log Z[t, t + k] - log Z[t, t + k - 1] for every
later t. A product with the exact matrix lengthens all windows by one, and the ratios of the last
two bound the rest. Products start from ones rather than from messages of the approximate model: if
features have collapsed, these lie on the wrong states, and leaving them takes more products.
"""

import warnings
from dataclasses import dataclass

import numpy as np

from .._sums import log_product, log_sum_exp
from .._threads import map_rows
from ..exceptions import FeatureCollapseWarning

_BLOCK = 2**22  # entries of exact potentials held at once
_N_STATES = 256  # of a position that are taken at least: no more than other sums go over
_TOLERATED = 0.1  # nats by which bounds may exclude the value without a collapse
_ROUNDING = 1e-9  # of the logarithms


@dataclass(frozen=True)
class ErrorReport:
    """Estimated error of an approximate log partition function, in nats.

    Parameters
    ----------
    error : float
        Estimate of the exact kernel's log partition function minus the approximate one.
    log_partition : float
        Estimate of the exact kernel's log partition function.
    lower, upper : float
        Guaranteed bounds, up to rounding, on the exact kernel's log partition function.

    See Also
    --------
    ChainMRF.report, TreeMRF.report : Return this report.
    skrf.exceptions.FeatureCollapseWarning : Issued if the bounds exclude the approximate value.
    """

    error: float
    log_partition: float
    lower: float
    upper: float


def reported(log_partition, bounds):
    """Return an `ErrorReport`, and warn if it says that features have collapsed.

    To be called from a public method, so that the warning points to the user's code.

    Parameters
    ----------
    log_partition : float
        Log partition function of the approximate potentials.
    bounds : tuple of float
        Estimate of the exact one, and its bounds.
    """
    value, lower, upper = bounds
    lower = min(lower, upper)  # rounding
    value = float(min(max(value, lower), upper))
    excess = max(lower - log_partition, log_partition - upper)
    if excess > max(_TOLERATED, _ROUNDING * abs(value)):
        warnings.warn(
            "Random features are too few or have collapsed: the log partition function is "
            f"{log_partition:.6g}, that of the exact kernel lies from {lower:.6g} to {upper:.6g}. "
            'Use feature_map="exact", more columns, AdaptiveRF, or smaller embeddings.',
            FeatureCollapseWarning,
            stacklevel=3,
        )
    return ErrorReport(value - float(log_partition), value, float(lower), float(upper))


def estimate(left, right, length, *, unary=None, n_products=9):
    """Return an estimate of the exact log partition function of a chain, and bounds.

    Parameters
    ----------
    left, right : ndarray of shape (n, d), or sequence of length - 1 ndarrays of shape (n_t, d)
        Embeddings of the states as the earlier and the later of a pair, or those of every edge.
    length : int
        Number of variables.
    unary : sequence of length ndarrays of shape (n_t,), default=None
        Log potentials of single states; -inf forbids one. None is 0.
    n_products : int, default=9
        Number of products of the exact matrix with a vector, or with unaries with one vector per
        position. With embeddings per edge every edge has its own matrix, so this sets the work
        instead, and with fewer products than edges the upper bound is crude.
    """
    is_shared = left[0].ndim == 1
    if is_shared and (unary is None or n_products < length - 1):
        return _from_windows(left, right, length, unary, n_products)
    edges = [(left, right)] * (length - 1) if is_shared else zip(left, right, strict=True)
    parents = {t: t - 1 for t in range(1, length)}
    sides = dict(zip(parents, edges, strict=True))
    if unary is None:
        tables = [left] * length if is_shared else [*left, right[-1]]
        unary = [np.zeros(len(table)) for table in tables]
    return estimate_tree(parents, sides, unary, n_products)


def _product(left, right, logs):
    """Return log(exp(left right') exp(logs)) for logs of shape (n, c), in blocks of rows."""
    size = max(1, _BLOCK // len(right))
    return np.concatenate(
        map_rows(lambda rows: log_product(left[rows] @ right.T, logs), len(left), size)
    )


def _from_windows(left, right, length, unary, n_products):
    """Return an estimate and bounds for embeddings that all positions share.

    Column t of the messages holds what later positions send to position t. Without unaries it is
    the same for all positions, so there is a single column.
    """
    n_products = min(n_products, length - 1)
    if unary is None:
        of_states, repeats = np.zeros((len(left), 1)), np.array([length - 1.0 - n_products])
    else:
        of_states, repeats = np.array(unary).T, np.arange(length) > 0
    messages = before = np.zeros(of_states.shape)
    for _ in range(n_products):
        before, messages = messages, _product(left, right, messages + of_states)
        if unary is not None:
            messages = np.hstack([messages[:, 1:], np.zeros((len(left), 1))])
    totals, ratios = log_sum_exp(of_states + messages, axis=0), messages - before
    rises = totals - log_sum_exp(of_states + before, axis=0)
    # Messages that omit a step lie between the exact ones divided by these ratios.
    allowed = of_states > -np.inf
    least = ratios.min(axis=0, where=allowed, initial=np.inf)
    most = ratios.max(axis=0, where=allowed, initial=-np.inf)
    value, lower, upper = (totals[0] + repeats @ steps for steps in (rises, least, most))
    # A single constant path may be nearly all of the sum.
    stays = (length - 1) * np.sum(left * right, axis=1) + of_states.sum(axis=1)
    return value, max(lower, stays.max()), upper


def estimate_tree(parents, sides, unary, n_products=9):
    """Return an estimate and bounds from exact sums over some of the states of every variable.

    Half of them are those with the largest scores, each representing itself; the others represent
    the rest. The share of pairs used equals the share of edges that the products would cover.

    Parameters
    ----------
    parents : dict of int to int
        As in `BeliefPropagation`.
    sides : dict of int to tuple of ndarray
        By child, the embeddings of its parent's and of its own states for their edge.
    unary : sequence of ndarray of shape (n_i,)
        Log potentials of single states.
    n_products : int, default=9
        As in `estimate`.
    """
    # exp(x.y) is at most exp(|x|^2 / 2) exp(|y|^2 / 2): an upper bound that factorises.
    scores = [np.array(scores_of_one, dtype=np.float64) for scores_of_one in unary]
    for child, (x, y) in sides.items():
        scores[parents[child]] += np.sum(x**2, axis=1) / 2
        scores[child] += np.sum(y**2, axis=1) / 2
    share = min(1.0, np.sqrt(n_products / max(len(parents), 1)))
    states, weights = zip(*(_representatives(score, share) for score in scores), strict=True)
    # One column with the weights, and one without, which sums over only some of the assignments.
    logs = [unary[i][states[i], None] + weights[i] for i in range(len(scores))]
    for child, parent in reversed(parents.items()):
        x, y = sides[child]
        logs[parent] = logs[parent] + _product(x[states[parent]], y[states[child]], logs[child])
    value, lower = sum(log_sum_exp(logs[i], axis=0) for i in range(len(logs)) if i not in parents)
    if sum(map(len, states)) == sum(map(len, scores)):
        return value, lower, lower
    return value, lower, sum(map(log_sum_exp, scores))


def representatives(order, n_states):
    """Return some states, of which half are the first of an order, and logs of what each counts.

    The other half are evenly spaced among the states that remain, and count for them.
    """
    n_states = min(n_states, len(order))
    n_light = n_states // 2
    heavy, light = np.split(order, [n_states - n_light])
    each = len(light) / max(n_light, 1)
    evenly = light[((np.arange(n_light) + 0.5) * each).astype(int)]
    log_counts = np.repeat([0.0, np.log(max(each, 1.0))], [len(heavy), n_light])
    return np.concatenate([heavy, evenly]), log_counts


def _representatives(scores, share):
    """Return states, and log weights of shape (n_chosen, 2), those of the second column 0."""
    order = np.argsort(-scores, kind="stable")
    states, log_counts = representatives(order, max(_N_STATES, int(np.ceil(share * len(scores)))))
    return states, np.column_stack([log_counts, np.zeros(len(states))])
