"""Trees of variables: sums, maxima, draws and expected counts for given potentials.

A belief is the log potential of a variable's states plus the messages that have arrived. Messages
go up to the root, variable 0, and down again. A variable sends each neighbour its belief without
that neighbour's message, which is removed only once, so a hub costs no more than its edges.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import softmax
from sklearn.utils import gen_batches

from .._sums import differences, finite, log_sum_exp
from .._validation import check_integer, naming
from ._potentials import draw_rows, largest_log

_BLOCK = 2**22  # entries of a temporary array


class Upward(NamedTuple):
    """Result of a sweep to the root.

    Parameters
    ----------
    beliefs : list of ndarray of shape (n_i,)
        Belief of every variable, with the messages from below.
    messages : dict of int to ndarray
        By child, its message to its parent.
    details : dict of int to ndarray
        By child, what `Potential.sums` or `Potential.maxima` returns besides the message.
    scale : float
        Total subtracted from all beliefs, so that no digits are lost along the way.
    """

    beliefs: list
    messages: dict
    details: dict
    scale: float


@dataclass(frozen=True, eq=False)
class BeliefPropagation:
    """A tree of variables with log unary potentials, and a potential on every edge.

    Parameters
    ----------
    parents : dict of int to int
        The parent of every variable except 0, ordered from the root.
    unary : sequence of ndarray of shape (n_i,)
        Log potentials of states.
    pairs : dict of int to Potential
        By child: its parent is on the left, the child on the right.
    """

    parents: dict
    unary: list
    pairs: dict

    def upward(self, kind="sums"):
        """Return the result of a sweep to the root, with sums or "maxima"."""
        tops = [finite(values.max()) for values in self.unary]
        beliefs = [values - top for values, top in zip(self.unary, tops, strict=True)]
        messages, details, scale = {}, {}, float(sum(tops))
        for i in [*reversed(self.parents), 0]:
            top = finite(beliefs[i].max())
            beliefs[i] -= top
            scale += float(top)
            if i:
                messages[i], details[i] = getattr(self.pairs[i], kind)(beliefs[i])
                beliefs[self.parents[i]] += messages[i]
        return Upward(beliefs, messages, details, scale)

    @cached_property
    def _up(self):
        """The sweep of sums to the root, which all results of a field build on."""
        return self.upward()

    def downward(self, up, kind="sums"):
        """Return the result of a sweep from the root, given one to it.

        Returns
        -------
        beliefs : list of ndarray of shape (n_i,)
            Belief of every variable, with all messages.
        rests : dict of int to ndarray
            By child, the belief of its parent without the child's message.
        details : dict of int to ndarray
            As in `Upward`, for the messages from parents.
        """
        beliefs, rests, details = list(up.beliefs), {}, {}
        for i, parent in self.parents.items():
            rest = differences(beliefs[parent], up.messages[i])
            rests[i] = rest - finite(rest.max())
            message, details[i] = getattr(self.pairs[i].turned, kind)(rests[i])
            beliefs[i] = beliefs[i] + message
        return beliefs, rests, details

    @cached_property
    def _children(self):
        """Children by potential, which many edges may share."""
        children = {}
        for i, pair in self.pairs.items():
            children.setdefault(pair, []).append(i)
        return children

    @cached_property
    def log_partition(self):
        """The log sum over all assignments."""
        return float(log_sum_exp(self._up.beliefs[0])) + self._up.scale

    def log_weights(self, states):
        """Return the sum of the log potentials of assignments, (n, n_variables)."""
        total = sum(values[state] for values, state in zip(self.unary, states.T, strict=True))
        for i, parent in self.parents.items():
            total = total + self.pairs[i].values(states[:, parent], states[:, i])
        return total

    def log_prob(self, states):
        """Return the log probabilities of assignments, or a float for one, (n_variables,)."""
        logs = self.log_weights(np.atleast_2d(states)) - self.log_partition
        return float(logs[0]) if states.ndim == 1 else logs

    def marginals(self):
        """Return the distribution of every variable."""
        beliefs, _, _ = self.downward(self._up)
        return list(map(softmax, beliefs))

    def edge_marginals(self, child):
        """Return the joint distribution of a variable and its parent, (n_parent, n_child)."""
        _, rests, _ = self.downward(self._up)
        return softmax(rests[child][:, None] + self.pairs[child].matrix + self._up.beliefs[child])

    def decode(self):
        """Return the log probability of the most probable assignment, and that assignment."""
        up = self.upward("maxima")
        states = np.empty(len(self.unary), dtype=int)
        states[0], top = largest_log(up.beliefs[0])
        for i, parent in self.parents.items():
            states[i] = up.details[i][states[parent]]
        return float(top) + up.scale - self.log_partition, states

    def max_marginals(self):
        """Return the largest log probability with every state of every variable."""
        up = self.upward("maxima")
        top = up.beliefs[0].max() + up.scale - self.log_partition
        beliefs, _, _ = self.downward(up, "maxima")
        return [values - values.max() + top for values in beliefs]

    def sample(self, n, rng):
        """Return draws, (n, n_variables)."""
        with naming("n"):
            states = np.empty((check_integer("n", n), len(self.unary)), dtype=int)
        up = self._up
        widest = max(map(len, (*up.beliefs, *up.details.values())))
        for rows in gen_batches(n, max(1, _BLOCK // widest)):
            drawn, root = states[rows], up.beliefs[0]
            drawn[:, 0] = draw_rows(np.broadcast_to(root, (len(drawn), len(root))), rng)
            for i, parent in self.parents.items():
                given = drawn[:, parent], up.beliefs[i], up.details[i]
                drawn[:, i] = self.pairs[i].draw(*given, rng)
        return states

    def expected_counts(self):
        """Return probabilities of all states, and counts of pairs by potential.

        Returns
        -------
        of_states : list of ndarray of shape (n_i,)
            Marginals.
        of_pairs : dict of Potential to list of ndarray
            Expected counts of the edges that have it, as `pull_back` expects them.
        """
        up = self._up
        beliefs, rests, details = self.downward(up)
        of_pairs = {}
        for pair, edges in self._children.items():
            left, from_left, right, from_right, messages = (
                np.array([of_nodes[i] for i in edges])
                for of_nodes in (rests, details, up.beliefs, up.details, up.messages)
            )
            total = log_sum_exp(left + messages)[:, None]
            of_pairs[pair] = pair.expected(left - total, right, from_left - total, from_right)
        return list(map(softmax, beliefs)), of_pairs

    def surplus(self, states):
        """Return the counts of assignments, (n, n_variables), minus those expected of n."""
        n, (expected, expected_pairs) = len(states), self.expected_counts()
        of_states = [
            np.bincount(values, minlength=len(shares)) - n * shares
            for values, shares in zip(states.T, expected, strict=True)
        ]
        of_pairs = {}
        for pair, edges in self._children.items():
            m = pair.shape[1]
            codes = states[:, [self.parents[i] for i in edges]] * m + states[:, edges]
            codes, total = np.unique(codes, return_counts=True)
            seen = pair.counts(codes // m, codes % m, total)
            both = zip(seen, expected_pairs[pair], strict=True)
            of_pairs[pair] = [counts - n * shares for counts, shares in both]
        return of_states, of_pairs
