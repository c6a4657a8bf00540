"""Recursions over sequences for few states: loops over their matrix of transitions.

Posteriors are shares, divided by their sum at every position. Where no transition is below the
root of the least number, every state is predicted with at least that share: what has underflowed
stays a negligible part of everything, whatever the emissions are. Otherwise, as where transitions
are forbidden, the same sums are those of logarithms.
"""

from functools import cached_property

import numpy as np

SURE = 1e-140  # least share with which losses of 1e-308, relative to its square, stay negligible
FEW = 128  # states up to which loops beat products in all tasks
MOST = 800  # states up to which they do in some


def loops_pay(task, n_states, n_sequences, n_features=None):
    """Return whether loops over the matrix of transitions beat products of all sequences at once.

    ``python benchmarks/hmm.py --loops`` prints the times of both. A product reads the matrix once
    for all sequences, loops once for each; beyond some hundred states that is most of the time.

    Parameters
    ----------
    task : {"score", "posteriors", "gradients", "paths"}
        What is computed.
    n_states, n_sequences : int
        Numbers of states and of sequences.
    n_features : int, default=None
        Number of features of transitions; None for the exact kernel.
    """
    if n_features is not None and n_states > max(FEW, 2 * n_features):
        return False  # products with features go over fewer numbers
    if n_states <= FEW or task in ("posteriors", "paths"):
        return n_states <= MOST
    return n_sequences <= 4 and n_states <= (MOST if task == "score" else MOST // 2)


class FewStates:
    """Transitions and starts of a model whose states are few.

    Parameters
    ----------
    A : ndarray of shape (n_states, n_states)
        Values of transitions.
    log_start : ndarray of shape (n_states,)
        Logarithms of the values of first states.
    pair : Dense, default=None
        Holds the logarithms of A, to all digits; None takes those of A.
    """

    def __init__(self, A, log_start, pair=None):
        self.log_start, self.start = log_start, np.exp(log_start)
        self.A = np.ascontiguousarray(A)
        self.is_safe = self.A.min() > SURE
        self.pair = pair

    @cached_property
    def log_A(self):
        """Logarithms of transitions."""
        with np.errstate(divide="ignore"):
            return np.log(self.A) if self.pair is None else np.ascontiguousarray(self.pair.logs)

    def run(self, kernels, table, symbols, starts, keeps):
        """Return what a pass over sequences leaves.

        Parameters
        ----------
        kernels : module
            Result of `_kernels.of_recursions`.
        table : tuple of ndarray
            Logs of emissions, and what `Model.weights` makes of them.
        symbols, starts : ndarray of shape (n_positions,)
            Rows of these, of which `ANY` is the last, and where sequences begin; see `joined`.
        keeps : bool
            Whether to keep all posteriors or only the last one.
        """
        logs, (weights, tops) = table
        posteriors = np.empty((len(symbols) if keeps else 1, len(self.start)))
        norms = np.empty(len(symbols))
        in_logs = not self.is_safe or not kernels.filter_states(
            self.A, self.start, weights, symbols, starts, SURE, posteriors, norms
        )
        if in_logs:
            kernels.filter_logs(
                self.A, self.log_A, self.log_start, logs, symbols, starts, posteriors, norms
            )
        return Pass(self, kernels, table, symbols, starts, posteriors, norms, in_logs)

    def viterbi(self, kernels, logs, symbols, starts):
        """Return the log probability of the best path of every sequence, and all paths joined."""
        ends, best = np.append(starts[1:], True), np.empty((len(symbols), len(self.start)))
        kernels.best_values(self.log_A, self.log_start, logs, symbols, starts, best)
        path = np.empty(len(symbols), np.intp)
        kernels.trace(self.log_A, best, ends, path)
        return best[ends].max(axis=1), path


class Pass:
    """What a pass over sequences has left, in logs or not."""

    def __init__(self, few, kernels, table, symbols, starts, posteriors, norms, in_logs):
        self.few, self.kernels, self.table = few, kernels, table
        self.symbols, self.starts, self.in_logs = symbols, starts, in_logs
        self.raw, self.norms = posteriors, norms

    @property
    def log_norms(self):
        """Log divisors of all positions."""
        if self.in_logs:
            return self.norms
        return np.log(self.norms) + self.table[1][1][self.symbols]

    @property
    def log_probs(self):
        """Log probabilities of all sequences."""
        return np.add.reduceat(self.log_norms, np.flatnonzero(self.starts))

    def posteriors(self):
        """Return posteriors given the past."""
        return np.exp(self.raw) if self.in_logs else self.raw

    def smoothed(self, counts=False):
        """Return posteriors given all, once; and expected counts if asked for.

        Counts are those of transitions, (n, n), divided by them, of symbols with states, and of
        first states, divided by the start: divided so that features can have a share in them.
        Logarithms give counts that are not divided, for the exact kernel alone.
        """
        few, (logs, (weights, _)) = self.few, self.table
        n, of = len(few.start), None
        if counts:
            of = np.zeros((n, n)), np.zeros((len(logs), n)), np.zeros(n)
        if self.in_logs:
            self.kernels.smooth_logs(
                few.A, few.log_A, logs, self.symbols, self.starts, self.norms, self.raw, of
            )
        else:
            self.kernels.smooth_states(
                few.A, weights, self.symbols, self.starts, self.norms, self.raw, of
            )
        return (self.raw, of) if counts else self.raw


def joined(sequences):
    """Return sequences one after the other, and where each begins."""
    symbols = np.concatenate(sequences, dtype=np.intp, casting="same_kind")
    starts = np.zeros(len(symbols), bool)
    starts[np.cumsum([0, *map(len, sequences[:-1])])] = True
    return symbols, starts
