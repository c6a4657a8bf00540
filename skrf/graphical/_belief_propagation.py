"""Trees and forests of variables: sums, maxima, draws and expected counts for given potentials.

A belief is the log potential of a variable's states plus the messages that have arrived. Messages
go up to the roots, one per tree, and down again. A variable sends each neighbour its belief without
that neighbour's message, which is removed only once, so a hub costs no more than its edges.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import softmax
from sklearn.utils import gen_batches

from .._memory import check_fits
from .._sums import differences, finite, log_sum_exp
from .._validation import check_integer
from ._potentials import draw_rows, largest_log

_BLOCK = 2**22  # entries of a temporary array
ANY = -1  # the state or symbol that stands for all of them, whose potentials are summed


class Upward(NamedTuple):
    """Result of a sweep to the root.

    Parameters
    ----------
    beliefs : list of ndarray of shape (n_i,) or (n_samples, n_i)
        Belief of every variable, with the messages from below.
    messages : dict of int to ndarray
        By child, its message to its parent.
    details : dict of int to ndarray
        By child, what `Potential.sums` or `Potential.maxima` returns besides the message.
    scale : ndarray of shape () or (n_samples,)
        Total subtracted from all beliefs, so that no digits are lost along the way.
    """

    beliefs: list
    messages: dict
    details: dict
    scale: np.ndarray


@dataclass(frozen=True, eq=False)
class BeliefPropagation:
    """Trees of variables with log unary potentials, and a potential on every edge.

    Sums may be taken for several samples at once, each with unary potentials of its own.

    Parameters
    ----------
    parents : dict of int to int
        The parent of every variable except the roots, ordered from these.
    unary : sequence of ndarray of shape (n_i,) or (n_samples, n_i)
        Log potentials of states.
    pairs : dict of int to Potential
        By child: its parent is on the left, the child on the right.
    """

    parents: dict
    unary: list
    pairs: dict

    @cached_property
    def roots(self):
        """A variable of every tree, which has no parent."""
        return [i for i in range(len(self.unary)) if i not in self.parents]

    def upward(self, kind="sums"):
        """Return the result of a sweep to the roots, with sums or "maxima"."""
        tops = [_tops(values) for values in self.unary]
        beliefs = [values - top for values, top in zip(self.unary, tops, strict=True)]
        messages, details, scale = {}, {}, sum(tops)
        for i in [*reversed(self.parents), *self.roots]:
            top = _tops(beliefs[i])
            beliefs[i] -= top
            scale = scale + top
            if i in self.parents:
                messages[i], details[i] = getattr(self.pairs[i], kind)(beliefs[i])
                beliefs[self.parents[i]] += messages[i]
        return Upward(beliefs, messages, details, scale[..., 0])

    @cached_property
    def _up(self):
        """The sweep of sums to the roots, which all results build on."""
        return self.upward()

    def downward(self):
        """Return the result of a sweep from the roots, after that of sums to them.

        Returns
        -------
        beliefs : list of ndarray of shape (n_i,) or (n_samples, n_i)
            Belief of every variable, with all messages.
        remaining : dict of int to ndarray
            By child, the belief of its parent without the child's message.
        details : dict of int to ndarray
            As in `Upward`, for the messages from parents.
        """
        beliefs, remaining, details = list(self._up.beliefs), {}, {}
        for i, parent in self.parents.items():
            logs = differences(beliefs[parent], self._up.messages[i])
            remaining[i] = logs - _tops(logs)
            message, details[i] = self.pairs[i].turned.sums(remaining[i])
            beliefs[i] = beliefs[i] + message
        return beliefs, remaining, details

    @cached_property
    def _children(self):
        """Children by potential, which many edges may share."""
        children = {}
        for i, pair in self.pairs.items():
            children.setdefault(pair, []).append(i)
        return children

    @cached_property
    def log_partition(self):
        """The log sum over all assignments, or one per sample."""
        logs = sum(log_sum_exp(self._up.beliefs[i]) for i in self.roots) + self._up.scale
        return logs if np.ndim(logs) else float(logs)

    def conditioned(self, states):
        """Return the same for n samples in which states are known, except `ANY` ones.

        None if there are no such states: counts and potentials are then looked up.
        """
        if not (states == ANY).any():
            return None
        unary = []
        for values, column in zip(self.unary, states.T, strict=True):
            is_other = (column[:, None] != np.arange(values.shape[-1])) & (column != ANY)[:, None]
            unary.append(np.where(is_other, -np.inf, values))
        return BeliefPropagation(self.parents, unary, self.pairs)

    def log_weights(self, states, conditioned):
        """Return logs of the potentials of assignments, (n, n_variables), summed over `ANY`.

        `conditioned` is what `conditioned` returns for the states.
        """
        if conditioned is not None:
            return conditioned.log_partition
        total = 0.0
        for values, column in zip(self.unary, states.T, strict=True):
            total = total + (values[column] if values.ndim == 1 else _taken(values, column))
        for i, parent in self.parents.items():
            total = total + self.pairs[i].values(states[:, parent], states[:, i])
        return total

    def log_prob(self, states):
        """Return the log probabilities of assignments, or a float for one, (n_variables,)."""
        rows = np.atleast_2d(states)
        logs = self.log_weights(rows, self.conditioned(rows)) - self.log_partition
        return float(logs[0]) if states.ndim == 1 else logs

    def marginals(self):
        """Return the distribution of every variable."""
        return [softmax(values, axis=-1) for values in self.downward()[0]]

    def edge_marginals(self, child):
        """Return the joint distribution of a variable and its parent, (n_parent, n_child)."""
        n, m = self.pairs[child].shape
        check_fits(16 * n * m, f"embeddings of {n} and {m} states", "their joint distribution")
        remaining = self.downward()[1][child][:, None]
        return softmax(remaining + self.pairs[child].matrix + self._up.beliefs[child])

    def decode(self):
        """Return the log probability of the most probable assignment, and that assignment."""
        up, total = self.upward("maxima"), 0.0
        states = np.empty(len(self.unary), dtype=int)
        for i in self.roots:
            states[i], top = largest_log(up.beliefs[i])
            total += top
        for i, parent in self.parents.items():
            states[i] = up.details[i][states[parent]]
        return float(total + up.scale) - self.log_partition, states

    def sample(self, n, rng):
        """Return draws, (n, n_variables)."""
        check_draws(n, len(self.unary))
        states, up = np.empty((n, len(self.unary)), dtype=int), self._up
        widest = max(map(len, (*up.beliefs, *up.details.values())))
        for rows in gen_batches(n, max(1, _BLOCK // widest)):
            drawn = states[rows]
            for i in self.roots:
                root = up.beliefs[i]
                drawn[:, i] = draw_rows(np.broadcast_to(root, (len(drawn), len(root))), rng)
            for i, parent in self.parents.items():
                left, logs, features = drawn[:, parent], up.beliefs[i], up.details[i]
                drawn[:, i] = self.pairs[i].draw(left, logs, features, rng)
        return states

    def expected_counts(self):
        """Return probabilities of all states, and counts of pairs by potential.

        Returns
        -------
        of_states : list of ndarray of shape (n_i,) or (n_samples, n_i)
            Marginals.
        of_pairs : dict of Potential to list of ndarray
            Expected counts of the edges that have it, as `pull_back` expects them, summed over
            samples.
        """
        up = self._up
        beliefs, remaining, details = self.downward()
        of_pairs = {}
        for pair, edges in self._children.items():
            left, from_left, right, from_right, messages = (
                np.vstack([of_nodes[i] for i in edges])
                for of_nodes in (remaining, details, up.beliefs, up.details, up.messages)
            )
            total = log_sum_exp(left + messages)[:, None]
            sides = left - total, right, from_left - total, from_right
            of_pairs[pair] = pair.expected(*sides, len(left))
        return [softmax(values, axis=-1) for values in beliefs], of_pairs

    def _counts(self, states, conditioned):
        """Return the counts of assignments, as `expected_counts` does; `ANY` ones expected."""
        is_apart = self.unary[0].ndim > 1  # samples have counts of their own
        if conditioned is not None:
            of_states, of_pairs = conditioned.expected_counts()
            return [of if is_apart else of.sum(axis=0) for of in of_states], of_pairs
        of_states, of_pairs = [], {}
        for column, values in zip(states.T, self.unary, strict=True):
            if is_apart:
                counts = np.arange(values.shape[-1]) == column[:, None]
            else:
                counts = np.bincount(column, minlength=len(values))
            of_states.append(counts.astype(np.float64))
        for pair, edges in self._children.items():
            left = states[:, [self.parents[i] for i in edges]]
            of_pairs[pair] = pair.counts(*distinct_pairs(left, states[:, edges], pair.shape[1]))
        return of_states, of_pairs

    def surplus(self, states, conditioned):
        """Return the counts of assignments, (n, n_variables), minus those expected of them.

        `conditioned` is what `conditioned` returns for the states.
        """
        n = 1 if self.unary[0].ndim > 1 else len(states)
        of_states, of_pairs = self._counts(states, conditioned)
        expected, expected_pairs = self.expected_counts()
        of_states = [a - n * b for a, b in zip(of_states, expected, strict=True)]
        for pair, counts in of_pairs.items():
            both = zip(counts, expected_pairs[pair], strict=True)
            of_pairs[pair] = [a - n * b for a, b in both]
        return of_states, of_pairs


def check_draws(n, n_variables):
    """Raise unless a number of draws of so many variables is an integer >= 1 that memory holds."""
    check_fits(8 * check_integer("n", n) * n_variables, f"n={n!r}", "states")


def distinct_pairs(left, right, m):
    """Return the different pairs of states, of which the right ones are below m, and counts."""
    codes, total = np.unique(left * m + right, return_counts=True)
    return codes // m, codes % m, total


def _tops(logs):
    return finite(logs.max(axis=-1, keepdims=True))


def _taken(values, places):
    """Return the value of every row at a place."""
    return np.take_along_axis(values, places[:, None], axis=1)[:, 0]
