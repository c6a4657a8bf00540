"""Decisions: which regressions a classifier solves, and what their values say of the classes.

A decision states problems and reads values; it knows nothing of features or moments, so the same
one serves moments, rows, held-out rows and predictions. One multiplier turns values into logarithms
of odds: of the two classes of a pair, whose odds are coupled, or of every class against the others.
It is the one that suits held-out rows best.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
from scipy.linalg import eigh
from sklearn.utils import gen_batches

from .._arrays import in_library_of, like, namespace, to_host
from .._typing import Array
from .._validation import read_only
from .solve import Solution

_LEAST_SHARE = np.sqrt(np.finfo(float).eps)  # of a contrast of classes: less is decided anyway
# Multiplications of the solutions for all pairs up to which they are worth it: about a minute.
_MOST_OPERATIONS = 2e12
TIE = 1e-5  # values so near to each other may differ by rounding alone, for float32 rows, too
SCALES = 2.0 ** np.arange(-16, 11)  # multipliers to try
_BLOCK = 2**22  # numbers of the systems that are solved at once
_DOUBT = 1e-3


# ---------------------------------------------------------------- problems


@dataclass(frozen=True, eq=False)
class Problem:
    """A ridge regression among the rows of some classes.

    Parameters
    ----------
    groups : ndarray of int of shape (G,)
        Codes of the classes whose rows take part.
    targets : ndarray of shape (G, T)
        Targets of their rows.
    """

    groups: np.ndarray
    targets: np.ndarray

    def lacks_a_side(self, counts: np.ndarray) -> bool:
        """Return whether there are two classes, of which one has no rows."""
        return len(self.groups) == 2 and not all(counts[self.groups] > 0)

    def only_target(self, counts: np.ndarray) -> np.ndarray:
        """Return the target, (T,), of the only class of two that has rows."""
        return self.targets[0 if counts[self.groups[0]] > 0 else 1]


def pairs_of(n_classes):
    """Return all pairs of classes (first, second), in the order of their regressions."""
    return list(combinations(range(n_classes), 2))


def of_all_classes(n_classes):
    """Return the problem with targets -1 and 1 for every class, of two for the second alone."""
    classes = np.arange(n_classes)
    targets = 2.0 * np.eye(n_classes) - 1
    return Problem(classes, targets if n_classes != 2 else targets[:, 1:])


def of_pairs(n_classes):
    """Return a problem for every pair of classes, with target 1 for the second."""
    sides = np.array([[-1.0], [1.0]])
    return [Problem(np.array(pair), sides) for pair in pairs_of(n_classes)]


# ---------------------------------------------------------------- decisions


class Decision(ABC):
    """How a ridge classifier of more than two classes decides.

    A class of your own may be passed as ``decision``: an instance that states the regressions to
    solve, and reads their values.

    Attributes
    ----------
    is_of_pairs : bool
        Whether values are those of all pairs of classes, positive for the second, from which
        probabilities are coupled.
    uses_targets : bool
        Whether its only regressions are those on -1 and 1 for every class, which need no sums of
        each class.
    most_alpha : float
        The largest alpha that a search tries, unless all are larger.

    See Also
    --------
    Argmax : The largest of one regression for each class.
    Discriminants : Linear discriminants.
    OneVsOne : Votes of a regression for every pair of classes.
    """

    is_of_pairs = uses_targets = False
    most_alpha = np.inf

    @abstractmethod
    def problems(self, n_classes: int) -> Sequence[Problem]:
        """Return the regressions to solve for, whose values stand side by side."""

    def read(self, values: Array, solution: Solution) -> Array:
        """Return the scores of the classes, (n, n_classes), given the values, (n, n_values).

        Parameters
        ----------
        values : array of shape (n, n_values)
            Values of the regressions, in float64 and in any library.
        solution : Solution or None
            What they were computed with: ``shares`` of the classes, and ``class_values`` at their
            means; None in a search whose problems have fewer rows than features.
        """
        return values

    def is_affordable(self, n_classes: int, n_columns: int) -> bool:
        """Return whether ``decision="auto"`` may choose it."""
        return True

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self):
        return hash(type(self))

    def __repr__(self):
        return f"{type(self).__name__}()"


class Argmax(Decision):
    """The largest of one regression for each class, -1 and 1."""

    uses_targets = True

    def problems(self, n_classes: int) -> Sequence[Problem]:
        """Return the regressions to solve for."""
        return [of_all_classes(n_classes)]


class Discriminants(Argmax):
    """Linear discriminants, which are combinations of the regressions on -1 and 1.

    They are logarithms of the classes' probabilities for rows scattered about the mean of their
    class with one covariance, that of the features within classes plus alpha. Discriminants of a
    contrast that the features nearly explain are large, so the regressions are combined in float64:
    their rounding is then the same for classes that differ in other contrasts.
    """

    def read(self, values: Array, solution: Solution) -> Array:
        """Return the logarithms of the probabilities."""
        turn, levels = self.turn_of(solution)
        xp = namespace(values)
        values = values @ like(turn, values) + like(levels, values)
        values = values - xp.max(values, axis=1, keepdims=True)
        return values - xp.log(xp.sum(xp.exp(values), axis=1, keepdims=True))

    def turn_of(self, solution: Solution) -> tuple[np.ndarray, np.ndarray]:
        """Return the matrix, (K, K), that multiplies the regressions, and what is added, (K,)."""
        # Classes without rows, or with no more weight than rounding, are left to the end.
        shares, values = np.asarray(solution.shares), np.asarray(solution.class_values)
        is_seen = shares > np.finfo(float).eps
        shares = shares[is_seen]
        values, roots = values[np.ix_(is_seen, is_seen)], np.sqrt(shares)
        explained = shares[:, None] * values / 2 / np.outer(roots, roots)
        # An eigenvalue is the share of a contrast of classes that the features do not explain.
        left, vectors = eigh(np.eye(len(roots)) - (explained + explained.T) / 2)
        left = np.maximum(left, _LEAST_SHARE)
        turn = (vectors / left) @ vectors.T / (2 * np.outer(roots, roots))
        halves = np.einsum("kl,lk->k", values, turn) / 2
        levels = np.log(shares) - halves - (2 * shares - 1) @ turn
        # The others get the mean of these and less, so they are never the largest.
        whole = np.zeros((len(is_seen), len(is_seen)))
        whole[is_seen] = turn.mean(axis=1, keepdims=True)
        whole[np.ix_(is_seen, is_seen)] = turn
        all_levels = np.full(len(is_seen), levels.mean() + np.log(np.finfo(float).eps))
        all_levels[is_seen] = levels
        return whole, all_levels


class OneVsOne(Decision):
    """Votes of a regression for every pair of classes."""

    is_of_pairs = True
    most_alpha = 1.0  # more is of no use between two classes

    def problems(self, n_classes: int) -> Sequence[Problem]:
        """Return the regressions to solve for."""
        return of_pairs(n_classes)

    def read(self, values: Array, solution: Solution) -> Array:
        """Return the votes, with a fraction that breaks ties; see `votes`."""
        return votes(values)

    def is_affordable(self, n_classes: int, n_columns: int) -> bool:
        """Return whether the solutions for all pairs take no more than about a minute."""
        return n_classes * (n_classes - 1) / 2 * n_columns**3 / 3 <= _MOST_OPERATIONS


# The simplest first, which nearly equal scores go to.
DECISIONS = {"argmax": Argmax(), "discriminants": Discriminants(), "one-vs-one": OneVsOne()}
_NAMES = {type(decision): name for name, decision in DECISIONS.items()}


def name_of(decision):
    """Return the name of a decision or of its class if it is the user's own; a name as it is."""
    kind = type(decision)
    return decision if kind is str else _NAMES.get(kind, kind.__name__)


def votes(values):
    """Return how many pairs every class wins, and a fraction by which ties are broken.

    Parameters
    ----------
    values : array of shape (n, P)
        Regressions of the pairs, positive for the second class.

    Returns
    -------
    array of shape (n, n_classes)
        Votes plus less than a third: the sum of tanh of the values for a class, divided by three
        times the number of its pairs. Raw sums would let one far value outvote the others. A value
        that may be 0 but for rounding, as where all features are 0 between two classes of the same
        weight, is half a vote for each.
    """
    xp, n_classes = namespace(values), n_classes_of(values.shape[1])
    wins = xp.where(xp.abs(values) > TIE, xp.sign(values) / 2, like(0.0, values))
    scores = wins + xp.tanh(values) / (3.0 * (n_classes - 1))
    return scores @ like(signs_of(n_classes).T, scores) + (n_classes - 1) / 2


@cache
def n_classes_of(n_pairs):
    """Return how many classes have so many pairs."""
    return int(round((1 + np.sqrt(1 + 8 * n_pairs)) / 2))


@cache
def signs_of(n_classes):
    """Return 1 where a class is the second of a pair and -1 where it is the first, (K, P)."""
    first, second = np.array(pairs_of(n_classes)).T
    signs = np.zeros((n_classes, len(first)))
    signs[first, np.arange(len(first))], signs[second, np.arange(len(first))] = -1.0, 1.0
    return read_only(signs)


def best_classes(scores, tie):
    """Return the code of the best class of every row, the first of equals.

    Two classes may have a single score, positive for the second. Rounding decides no ties, of rows
    of float32 neither.
    """
    xp = namespace(scores)
    if scores.shape[1] == 1:
        return xp.astype(scores[:, 0] > tie, xp.int64)
    top = xp.max(scores, axis=1, keepdims=True)
    return xp.argmax(xp.astype(scores >= top - tie * (1 + xp.abs(top)), xp.int8), axis=1)


# ---------------------------------------------------------------- probabilities


def odds_of(decision, n_classes, values, solution):
    """Return what probabilities come from, and whether it is of pairs: values of pairs, or scores.

    Two classes are a pair.
    """
    is_of_pairs = n_classes == 2 or decision.is_of_pairs
    return values if is_of_pairs else decision.read(values, solution), is_of_pairs


def losses(values, codes, weights, is_of_pairs):
    """Return the summed log losses of rows for every multiplier in `SCALES`.

    A row has its class but for one part in 1,000, so that rows that are told apart without an error
    do not make probabilities 0 and 1.

    Parameters
    ----------
    values : ndarray of shape (n, P) or (n, n_classes)
        Values of the pairs of classes, positive for the second, or of the classes.
    codes : ndarray of int of shape (n,)
        Classes of the rows.
    weights : ndarray of shape (n,) or None
        Their weights.
    is_of_pairs : bool
        Whether values are those of pairs.
    """
    rows = np.arange(len(codes))
    if is_of_pairs:
        signs = signs_of(n_classes_of(values.shape[1]))
        pairs = np.array([np.flatnonzero(of_class) for of_class in signs])[codes]
        margins = values[rows[:, None], pairs] * signs[codes[:, None], pairs]
    else:
        margins = values[rows, codes, None] - values
    gaps = margins.mean(axis=1) * _DOUBT
    shares = np.ones(len(codes)) if weights is None else weights
    # Exponentials at twice the multiplier are squares, and of exponents below 0 none overflows.
    if is_of_pairs:
        largest, exponentials = np.maximum(-margins, 0.0).mean(axis=1), np.abs(margins)
    else:
        largest = -margins.min(axis=1)
        exponentials = margins + largest[:, None]
    exponentials = np.exp(-SCALES[0] * exponentials)
    results = []
    for scale in SCALES:
        if is_of_pairs:
            of_rows = np.log1p(exponentials).mean(axis=1)
        else:
            of_rows = np.log(exponentials.sum(axis=1))
        results.append(shares @ (of_rows + scale * (largest + gaps)))
        exponentials *= exponentials
    return np.array(results)


def probabilities(odds, scale, n_classes, is_of_pairs):
    """Return the probabilities of the classes, (n, n_classes), in the library of the odds.

    A multiplier turns the odds into logarithms of odds. It is less than the `ClassCalibration` of
    the kernel machine, which chooses a map of its values and adds an offset for each class: the
    losses of a single number add up over folds and weights, it is public as
    ``probability_scale_``, and decisions do not depend on it.

    Parameters
    ----------
    odds : array of shape (n, P) or (n, n_classes)
        As `odds_of` returns them.
    scale : float
        The multiplier.
    n_classes : int
        Number of classes.
    is_of_pairs : bool
        Whether odds are those of pairs of classes, or of the classes.
    """
    xp = namespace(odds)
    if not is_of_pairs:
        logs = scale * odds
        shares = xp.exp(logs - xp.max(logs, axis=1, keepdims=True))
        return shares / xp.sum(shares, axis=1, keepdims=True)
    # One less the other would have no digits where it is small.
    firsts, seconds = (
        xp.exp(-xp.logaddexp(like(0.0, odds), sign * scale * odds)) for sign in (1, -1)
    )
    if n_classes == 2:
        return xp.concat([firsts, seconds], axis=1)
    return in_library_of(coupled(to_host(firsts), to_host(seconds), n_classes), odds)


def best_scale(of_scales):
    """Return the multiplier of the least loss, between those of `SCALES` by a parabola."""
    place = int(np.argmin(of_scales))
    if not 0 < place < len(SCALES) - 1:
        return float(SCALES[place])
    before, least, after = of_scales[place - 1 : place + 2]
    bend = before - 2 * least + after
    return float(SCALES[place] * 2.0 ** ((before - after) / (2 * bend) if bend > 0 else 0.0))


def coupled(firsts, seconds, n_classes):
    """Return the class probabilities that agree best with those of all pairs.

    They minimise the sum of (r_ji p_i - r_ij p_j)^2 over the pairs, where r_ij is the probability
    of i against j: Wu, Lin and Weng, Probability estimates for multi-class classification by
    pairwise coupling (2004), their second method.

    Parameters
    ----------
    firsts, seconds : ndarray of shape (n, P)
        Probabilities of the first class of every pair against the second, and the reverse.
    n_classes : int
        Number of classes.
    """
    size = max(1, _BLOCK // (n_classes + 1) ** 2)
    if len(seconds) > size:
        blocks = gen_batches(len(seconds), size)
        return np.concatenate([coupled(firsts[a], seconds[a], n_classes) for a in blocks])
    first, second = np.array(pairs_of(n_classes)).T
    against = np.zeros((len(seconds), n_classes, n_classes))  # of the row's class
    against[:, second, first], against[:, first, second] = seconds, firsts
    system = np.ones((len(seconds), n_classes + 1, n_classes + 1))
    system[:, :n_classes, :n_classes] = -against * against.transpose(0, 2, 1)
    classes = np.arange(n_classes)
    system[:, classes, classes] = (against**2).sum(axis=1)
    system[:, -1, -1] = 0.0
    sides = np.zeros((len(seconds), n_classes + 1, 1))
    sides[:, -1] = 1.0
    shares = np.maximum(np.linalg.solve(system, sides)[:, :-1, 0], 0.0)
    return shares / shares.sum(axis=1, keepdims=True)
