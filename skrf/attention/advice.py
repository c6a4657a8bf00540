"""Which attention operator to use for given inputs: the best one on rows it has not seen."""

import math
import warnings
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from sklearn.base import clone

from .._arrays import constant, to_host
from .._tables import Table
from .._typing import Array, RandomState
from .._validation import check_integer, draw_seed
from ..exceptions import FeatureCollapseWarning
from ..features import AdaptiveRF, DenseExponentialRF, OptimalPositiveRF
from ._heads import HeadSet, Unit
from ._sampled import errors_of, sampled
from ._shapes import check_qkv, check_scale
from .near import NearField
from .operator import ApproxKernelAttention

_JUDGED = 128  # queries of every head
_GROUPS = 1, 4
_UNITS_BESIDE = 2  # cost of a feature with exact keys, when every query head has its own features
_FEW_ANCHORS = 4
_LEAST_BUDGET = 16
_ANCHOR_SHARES = 0.0, 0.15, 0.5  # shares of the cost of exact keys
_FEATURE_SHARES = 0.5, 0.7, 0.25, 0.12  # the first is tried with all maps
_MEAN, _WINDOW, _EXACT = "mean of the values", "exact window", "exact attention"


@dataclass(frozen=True)
class AttentionCandidate:
    """One row of `recommend_attention`.

    Parameters
    ----------
    name : str
        Name of the feature map, or of what replaces features.
    operator : ApproxKernelAttention or None
        The unfitted operator; None for the mean of the values and the exact window.
    n_features : int
        Number of features of all groups together.
    n_groups : int
        Number of groups that the features are divided into.
    block : int
        Number of positions in a block of near keys.
    anchors : int
        Number of anchors.
    cost : int
        Units per query: multiplications divided by the sum of the widths of keys and values.
    error : float
        Relative error of the output at rows that were not fitted, averaged over heads.

    See Also
    --------
    recommend_attention : Returns them.
    AttentionTable : A table of them.

    References
    ----------
    Ours.
    """

    name: str
    operator: ApproxKernelAttention | None = field(repr=False)
    n_features: int
    n_groups: int
    block: int
    anchors: int
    cost: int
    error: float


class AttentionTable(Table[AttentionCandidate]):
    """The rows of `recommend_attention`, a list that prints as a table.

    Parameters
    ----------
    iterable : iterable of AttentionCandidate, default=()
        The rows.

    See Also
    --------
    recommend_attention : Returns it.
    AttentionCandidate : A row.

    References
    ----------
    Ours.

    Examples
    --------
    >>> from skrf.attention import AttentionCandidate, AttentionTable
    >>> AttentionTable([AttentionCandidate("exact window", None, 0, 0, 0, 0, 256, 0.25)])
    name          n_features  n_groups  block  anchors  cost  error
    exact window           0         0      0        0   256   0.25
    """

    row_type = AttentionCandidate


@dataclass(frozen=True, repr=False)
class AttentionAdvice:
    """Result of `recommend_attention`, which prints the table and the conclusion from it.

    Parameters
    ----------
    table : AttentionTable
        All candidates and the two simple answers, smallest error first.
    operator : ApproxKernelAttention
        The best candidate, fitted to all rows.

    See Also
    --------
    recommend_attention : Returns it.
    AttentionTable : Its table.

    References
    ----------
    Ours.
    """

    table: AttentionTable
    operator: ApproxKernelAttention

    @property
    def best(self) -> AttentionCandidate:
        """Row of the table for `operator`."""
        return next(row for row in self.table if row.operator is not None)

    @property
    def simpler(self) -> AttentionCandidate | None:
        """Row of a simple answer that beats every candidate, or None."""
        return None if self.table[0] is self.best else self.table[0]

    def __repr__(self):
        best, simpler = self.best, self.simpler
        lines = [repr(self.table), f"Best operator (error {best.error:.3g}): {best.operator!r}"]
        if simpler is not None:
            lines.append(
                f"Better than every operator of this budget: {simpler.name}, error "
                f"{simpler.error:.3g} at a cost of {simpler.cost}."
            )
        return "\n".join(lines)


def recommend_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    budget: int = 256,
    causal: bool = False,
    scale: float | None = None,
    random_state: RandomState = None,
) -> AttentionAdvice:
    """Rank attention operators of equal cost by their error on rows they were not fitted to.

    Candidates are features alone, exact keys alone (a `NearField`) and both together, with three
    feature maps, one group or four, and different shares of the budget. They are compared with the
    mean of the values and with an exact window of as many keys as the budget: the first 4 and the
    nearest. Exact attention is computed for only 128 queries per head. With several sequences,
    operators are fitted to one half and judged on the other. With a single one, they are fitted to
    a random one of every two rows, or with `causal` to the first half.

    Parameters
    ----------
    q : array-like of shape (..., L, d)
        Queries of one layer; the last leading axis is the heads, all others are sequences.
    k : array-like of shape (..., S, d)
        Keys. If their number differs from that of queries, all candidates are features alone.
    v : array-like of shape (..., S, e)
        Values.
    budget : int, default=256
        Largest cost of a candidate in units per query, at least 16. A unit is d + e
        multiplications, the cost of an exact key. A feature costs 1 + 1/r if r query heads share a
        key head, and 2 if combined with exact keys.
    causal : bool, default=False
        Whether position i attends only to positions up to i.
    scale : float, default=None
        Factor of the products of queries and keys; None is 1/sqrt(d).
    random_state : int, RandomState or None, default=None
        Seed of the draws and of the choice of rows to fit.

    Returns
    -------
    AttentionAdvice
        The ``table`` of all candidates, smallest error first, and the best ``operator``, fitted to
        all rows. When printed, it says if the mean or the window is better.

    Raises
    ------
    ValueError
        If shapes do not fit, contents are not finite, a single sequence has fewer than 4 rows,
        or a parameter is invalid.

    See Also
    --------
    AttentionAdvice : The result.
    ApproxKernelAttention.diagnose : The error of one operator.
    skrf.theory.recommend : The same for other tasks.

    References
    ----------
    Ours.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.attention import recommend_attention
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 2, 256, 8))  # 2 heads
    >>> advice = recommend_attention(q, k, v, budget=64, random_state=0)
    >>> advice.best.cost <= 64
    True
    >>> out = advice.operator(q, k, v)
    """
    budget = check_integer("budget", budget, _LEAST_BUDGET)
    seed = draw_seed(random_state)
    groups = check_qkv(q, k, v, None, causal)
    trial = _Trial(groups, np.shape(k)[:-2], causal, scale, budget, seed)
    rows = trial.simple() + [trial.row(name, n, 1) for name in _MAPS for n in _GROUPS]
    if trial.has_near:
        exact = [trial.row("exact keys alone", 1, 0, share) for share in _ANCHOR_SHARES]
        anchors = _ANCHOR_SHARES[np.argmin([row.error for row in exact])]
        first, *others = _FEATURE_SHARES
        both = [trial.row(name, n, first, anchors) for name in _MAPS for n in _GROUPS]
        best = min(both, key=lambda row: row.error)
        rows += exact + both
        rows += [trial.row(best.name, best.n_groups, share, anchors) for share in others]
    advice = AttentionAdvice(AttentionTable(sorted(rows, key=lambda row: row.error)), None)
    return replace(advice, operator=clone(advice.best.operator).fit(*trial.rows))


_MAPS = {
    "optimal positive": OptimalPositiveRF,
    "dense, asymmetric": partial(DenseExponentialRF, asymmetric=True),
    "adaptive, asymmetric": partial(AdaptiveRF, asymmetric=True),
}


def _whole(n):
    """Return the largest number of features up to n that groups divide, at least one per group."""
    return max(int(n) // max(_GROUPS), 1) * max(_GROUPS)


class _Trial:
    """Candidates within a budget, fitted to some rows and judged by exact attention of others."""

    def __init__(self, groups, leading, causal, scale, budget, seed):
        (n_sets, self.n_sharing, n_queries), self.n_keys = groups.q.shape[:3], groups.k.shape[1]
        self.causal, self.scale, self.budget, self.seed = causal, scale, budget, seed
        self.has_near, rng = n_queries == self.n_keys, np.random.default_rng(seed)
        n_heads = leading[-1] if leading else 1
        q, k, v = self.rows = [
            to_host(constant(part)).reshape(n_sets // n_heads, -1, *part.shape[-2:])
            for part in (groups.q, groups.k, groups.v)
        ]
        is_judged = np.ones(n_queries, bool)
        if len(q) > 1:
            order = rng.permutation(len(q))
            own, others = np.split(order, [(len(q) + 1) // 2])
            self._fitted, self._judged = [[part[n] for part in (q, k, v)] for n in (own, others)]
        elif min(n_queries, self.n_keys) < 4:
            raise ValueError(
                "q and k must have at least 4 rows where there is a single sequence, got "
                f"{n_queries} and {self.n_keys}."
            )
        else:
            of_q = self._half(n_queries, rng)
            of_k = of_q if self.has_near else self._half(self.n_keys, rng)
            self._fitted = q[..., of_q, :], k[..., of_k, :], v[..., of_k, :]
            self._judged = self.rows
            is_judged[of_q] = False
        n = min(max(_JUDGED // len(self._judged[0]), 1), is_judged.sum())
        self._places = sampled(is_judged, n)

    def _half(self, n, rng):
        """Return the indices of the rows of a single sequence to fit to."""
        n = n // 2
        return np.arange(n) if self.causal else 2 * np.arange(n) + rng.integers(2, size=n)

    def simple(self):
        """Return the rows of the mean and, with as many keys as queries, of the window."""
        of_mean, of_window = self._errors([], self.budget)
        rows = [AttentionCandidate(_MEAN, None, 0, 0, 0, 0, 0, of_mean)]
        if self.budget >= self.n_keys:
            rows.append(AttentionCandidate(_EXACT, None, 0, 0, 0, 0, self.n_keys, 0.0))
        elif self.has_near:
            rows.append(AttentionCandidate(_WINDOW, None, 0, 0, 0, 0, self.budget, of_window))
        return rows

    def row(self, name, n_groups, of_features, of_anchors=None):
        """Return the row of a share of the budget for features, and the rest for exact keys.

        `of_anchors` is the share of anchors in that rest; None means features alone.
        """
        unit = 1 + 1 / self.n_sharing if of_anchors is None else _UNITS_BESIDE
        n = _whole(of_features * self.budget / unit) if of_features else 0
        cost, field, block, anchors = math.ceil(n * unit), None, 0, 0
        if of_anchors is not None:
            rest, n_blocks = self.budget - cost, 2 if self.causal else 3
            anchors = min(max(int(of_anchors * rest), _FEW_ANCHORS), rest - n_blocks, self.n_keys)
            block, anchors = (rest - anchors) // n_blocks, max(anchors, 0)
            field = NearField(block, anchors)
            cost += field.n_exact(causal=self.causal)
        features = _MAPS[name](n, random_state=self.seed) if n else "none"
        operator = ApproxKernelAttention(
            features, causal=self.causal, scale=self.scale, near=field, n_groups=n_groups
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FeatureCollapseWarning)  # the table shows it
            out = clone(operator).fit(*self._fitted)(*self._judged)
        error = self._errors([out])[0]
        return AttentionCandidate(name, operator, n, n_groups, block, anchors, cost, error)

    def _errors(self, outputs, window=None):
        """Return the errors of outputs, of the mean, and of a window, averaged over heads."""
        q, k, v = self._judged
        scale, errors = check_scale(self.scale, q.shape[-1]), []
        for h in range(q.shape[1]):
            squares = 0.0
            for n in range(len(q)):
                own = k[n, h // self.n_sharing], v[n, h // self.n_sharing]
                unit = Unit(HeadSet(()), q[n, h : h + 1], *own)
                unit.take_units()
                places, own = self._places, [out[n, h : h + 1] for out in outputs]
                squares += errors_of(unit, own, places, scale, self.causal, window)[0]
            *squares, total = squares
            errors.append(np.sqrt(squares / total) if total else np.zeros(len(squares)))
        return np.mean(errors, axis=0).tolist()
