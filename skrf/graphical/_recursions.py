"""Recursions of hidden Markov models over sequences, for given embeddings and feature maps.

With s_f = sum_z' right_f(z'), the transition exp(u_z . w_z') / normaliser is R T exactly, where
R_zf = softmax over f of (log left_f(z) + log s_f) and T_fz' = right_f(z') / s_f: two matrices of
probabilities, from a state to a feature and from a feature to a state. So a filter step is two
products with vectors, and a path is drawn through features. With the exact kernel the features are
the right states: R holds the probabilities, and there is no T. Where transitions are so rare that
something that matters may underflow, or forbidden, the same steps take sums of logarithms.
"""

import copy
from bisect import bisect
from collections import deque
from dataclasses import replace
from functools import cached_property

import numpy as np
from scipy.special import softmax
from sklearn.utils import gen_batches

from .._kernels import of_recursions, plain
from .._memory import check_fits
from .._sums import LogMatrix, differences, finite, log_sum_exp
from ._belief_propagation import ANY, BeliefPropagation
from ._corrections import Corrected
from ._few import FEW, MOST, FewStates, joined, loops_pay
from ._potentials import Dense, LowRank, largest, largest_log, log_features, pull_back
from ._rank_space import RankSpace

_EMISSION_ENTRIES = 2**24  # states times symbols up to which emissions are kept as matrices
_ROUNDING = 1e-10  # of posteriors, relative, after the products of long sequences
_BLOCK_ENTRIES = 2**22  # pairs of states held at once
_KEPT_ENTRIES = 2**27  # posteriors that loops keep at once where there are many states
# Sums above this lose no more than a negligible part of what has underflowed.
LEAST = {np.dtype(np.float64): 1e-280, np.dtype(np.float32): 1e-26}


class Factor:
    """The potential of states of two roles: conditional probabilities if it is normalised.

    With features, psi(z, z') = exp(log_scale) sum_f R_zf T_fz'. Rows of T sum to 1, and if
    normalised so do those of R, with log_scale 0. For the exact kernel T is the identity, stored as
    None. Corrected potentials have no such matrices.

    Parameters
    ----------
    maps : Maps
        Result of `fitted_maps`.
    embeddings : dict of str to ndarray
        Embeddings by role.
    roles : tuple of str
        Roles of the left and of the right states.
    is_normalised : bool
        Whether every left state's values are divided by their sum.
    dtype : numpy.dtype
        Type of R and T; their logarithms are float64.
    mask : ndarray of bool, default=None
        Which pairs are allowed, for the exact kernel.
    """

    def __init__(self, maps, embeddings, roles, is_normalised, dtype, mask=None):
        self.maps, self.roles, self.is_normalised, self.dtype = maps, roles, is_normalised, dtype
        left, right = (embeddings[role] for role in roles)
        if maps.sides:
            logs, log_T = map(log_features, maps.sides, (left, right))
            if maps.log_factor is not None:
                self.pair = Corrected.of(maps, (LogMatrix(logs), LogMatrix(log_T)), left)
                return
            log_sums = log_sum_exp(log_T, axis=0)
            logs, log_T = logs + log_sums, differences(log_T, log_sums)
        else:
            logs, log_T = left @ right.T, None
            if mask is not None:
                logs[~mask] = -np.inf
        logs -= log_sum_exp(logs)[:, None] if is_normalised else logs.max()
        if log_T is None:
            self.pair = Dense(logs)
        else:
            self.pair = LowRank((LogMatrix(logs), LogMatrix(log_T)), is_kept=False)

    @property
    def log_R(self):
        """Logarithms of R."""
        return self.pair.logs if isinstance(self.pair, Dense) else self.pair.sides[0].logs

    # Both matrices hold the states of a feature contiguously, so that each product of a filter step
    # reads its matrix once, in order.

    @cached_property
    def R(self):
        """Probabilities of features, or of right states, by left state."""
        return np.exp(self.log_R, order="F").astype(self.dtype, copy=False)

    @cached_property
    def T(self):
        """Probabilities of right states by feature, or None."""
        if isinstance(self.pair, Dense):
            return None
        return np.exp(self.pair.sides[1].logs.T, order="C").astype(self.dtype, copy=False)

    def passed(self, shares):
        """Return distributions of right states for rows of distributions of left ones."""
        # Single-precision BLAS sometimes raises the flag for finite numbers (unused lanes of small
        # products).
        with np.errstate(invalid="ignore"):
            shares = shares @ self.R
            return shares if self.T is None else shares @ self.T

    def gather(self, values):
        """Return values of features, sum_z' T_fz' values_z', for rows of values of right states."""
        return values if self.T is None else values @ self.T.T

    def log_least(self):
        """Return a lower bound on log psi - log_scale over all pairs of states."""
        if isinstance(self.pair, Corrected):
            return -np.inf
        if isinstance(self.pair, Dense):
            return self.pair.logs.min()
        left, right = (side.logs for side in self.pair.sides)
        by_left = (left + right.min(axis=0)).max(axis=1)
        by_right = (left.min(axis=0) + right).max(axis=1)
        return max(by_left.min(), by_right.min())

    # Counts are those of a left state with a feature, and of a right state with a feature; with the
    # exact kernel of pairs of states.

    def expected(self, left, right):
        """Return expected counts over edges, given shares of left states and what they meet."""
        ahead = self.gather(right)
        by_left = self.R * (left.T @ ahead)
        return [by_left] if self.T is None else [by_left, right.T @ (left @ self.R) * self.T.T]

    def pull_back(self, left, right, by_left, *by_right):
        """Return gradients with respect to embeddings, given counts."""
        if self.maps.log_factor is not None:
            return self.pair.pull_back(self.maps.sides, left, right, by_left, *by_right)
        if self.is_normalised:
            by_left = by_left - np.exp(self.log_R) * by_left.sum(axis=1, keepdims=True)
        if by_right:
            by_sums = by_left.sum(axis=0) - by_right[0].sum(axis=0)
            by_right = [by_right[0] + np.exp(self.pair.sides[1].logs) * by_sums]
        return pull_back(self.maps.sides, left, right, by_left, *by_right)


class Model:
    """Factors of given embeddings and maps, and the recursions over sequences.

    Parameters
    ----------
    embeddings : dict of str to ndarray
        Embeddings by role.
    maps : tuple
        Fitted maps of transitions and emissions.
    start_prob : ndarray of shape (n_states,)
        Start distribution if there is no start embedding.
    is_local : bool
        Whether factors are normalised. If not, maps of transitions may have a correction.
    dtype : numpy.dtype, default=float64
        Type of probabilities; sums over a sequence are float64.
    masks : dict of str to ndarray of bool, default=()
        What is allowed of "transition", "start" and "emission".
    emitter : object, default=None
        Emissions of rows in place of symbols, such as `GaussianEmissions`.
    learns_start : bool, default=False
        Whether `fit` learns `start_prob`.
    """

    def __init__(
        self,
        embeddings,
        maps,
        start_prob,
        is_local,
        dtype=np.float64,
        *,
        masks=(),
        emitter=None,
        learns_start=False,
    ):
        self.embeddings, self.maps, self.start_prob = embeddings, maps, start_prob
        self.is_local, self.emitter, self.learns_start = is_local, emitter, learns_start
        self.masks = masks = dict(masks)
        self.dtype = dtype = np.dtype(dtype)
        (move, emit), shared = maps, (is_local, dtype)
        roles = "states", "targets"
        self.transition = Factor(move, embeddings, roles, *shared, masks.get("transition"))
        # A step predicts every state with a share of the least transition or more, and loses about
        # the least number, which may outgrow the rest some symbols later where transitions are rare
        # or forbidden. Distributions are then logarithms.
        self.in_logs = bool(self.transition.log_least() < np.log(LEAST[dtype]) / 2)
        self.emission = self.base = self.data = self.allowed = None
        if emit is not None:
            roles = "emitters", "symbols"
            self.emission = Factor(emit, embeddings, roles, *shared, masks.get("emission"))
        self.start_factor = None
        if embeddings["start_embedding"] is None:
            with np.errstate(divide="ignore"):
                self.log_start = np.log(start_prob)
        else:
            roles, mask = ("start_embedding", "targets"), masks.get("start")
            mask = None if mask is None else mask[None]
            move = replace(move, log_factor=None)  # the start is no state
            self.start_factor = Factor(move, embeddings, roles, *shared, mask)
            self.log_start = self.start_factor.pair.matrix[0]
        self.start = np.exp(self.log_start).astype(dtype, copy=False)
        n = len(embeddings["states"])
        # Sums of a state's emissions over all symbols: 1 if emissions are normalised.
        self.log_totals, self._log_emissions = np.zeros(n), None  # one symbol per row
        if self.emission is None:
            return
        if not is_local:
            self.log_totals = log_sum_exp(self.emission.log_R)
        if n * self.n_symbols <= _EMISSION_ENTRIES:
            every = np.append(np.arange(self.n_symbols), ANY)
            self._log_emissions = self._make_log_emissions(every)
            self._kept_weights = self.weights(self._log_emissions)

    @property
    def n_symbols(self):
        """Number of symbols, or of positions with log likelihoods."""
        return len(self.embeddings["symbols"] if self.base is None else self._log_emissions)

    @property
    def unobserved(self):
        """The model without what was observed."""
        return self if self.base is None else self.base

    def observing(self, data, allowed=None):
        """Return the model with what was observed at every position in place of symbols.

        Symbols are then the numbers of positions.

        Parameters
        ----------
        data : ndarray
            Rows for an emitter, or symbols.
        allowed : ndarray of bool of shape (n_positions, n_states), default=None
            What is known of the states.
        """
        if self.emitter is None:
            table = self.log_emissions(data)
        else:
            table = self.emitter.log_likelihood(data)
        if allowed is not None:
            table = np.where(allowed, table, -np.inf)
        model = copy.copy(self)
        model.base, model.data, model.allowed = self.unobserved, data, allowed
        model._log_emissions, model._kept_weights = table, model.weights(table)
        return model

    def with_embeddings(self, embeddings, dtype, start_prob=None, emitter=None):
        """Return the model at other embeddings, with the same maps, and the same data if any."""
        model = Model(
            embeddings,
            self.maps,
            self.start_prob if start_prob is None else start_prob,
            self.is_local,
            dtype,
            masks=self.masks,
            emitter=self.emitter if emitter is None else emitter,
            learns_start=self.learns_start,
        )
        if self.data is not None:
            return model.observing(self.data, self.allowed)
        return model

    def _make_log_emissions(self, symbols):
        logs, is_seen = np.tile(self.log_totals, (len(symbols), 1)), symbols != ANY
        logs[is_seen] = self.emission.pair.turned.log_rows(symbols[is_seen])
        return logs

    def log_emissions(self, symbols):
        """Return log emission values of symbols, (len(symbols), n_states)."""
        if self._log_emissions is not None:
            return self._log_emissions[symbols]
        distinct, where = np.unique(symbols, return_inverse=True)
        return self._make_log_emissions(distinct)[where]

    def emissions(self, symbols):
        """Return emission values of symbols divided by each largest one, and the logs of these."""
        if self._log_emissions is not None:
            return tuple(weights[symbols] for weights in self._kept_weights)
        return self.weights(self.log_emissions(symbols))

    def weights(self, logs):
        """Return exp(logs - top) in the dtype of probabilities, and the row maxima top."""
        top = finite(logs.max(axis=1))
        weights = np.empty(logs.shape, dtype=self.dtype)
        with np.errstate(over="ignore"):  # of float32, to -inf: e to the power of that is 0
            np.subtract(logs, top[:, None], out=weights, casting="same_kind")
        return np.exp(weights, out=weights), top

    # ---------------------------------------------------------------- recursions

    @cached_property
    def _few(self):
        """The recursions of few states, or None where there are none."""
        move, n = self.transition, len(self.start)
        is_dense = isinstance(move.pair, Dense)
        is_possible = is_dense or not self.in_logs
        if not is_possible or self.dtype != np.float64 or n > MOST:
            return None
        A = move.R if move.T is None else move.R @ move.T
        few = FewStates(A, self.log_start, move.pair if is_dense else None)
        return few if few.is_safe or is_dense else None

    @property
    def may_be_impossible(self):
        """Whether some symbols may have no probability."""
        is_masked = self.masks or (self.base and np.isneginf(self._log_emissions).any())
        return bool(is_masked or np.isneginf(self.log_start).any())

    @property
    def has_few(self):
        """Whether all recursions are those of few states."""
        return len(self.start) <= FEW and self._few is not None

    def _kernels(self, task, sequences):
        """Return the kernels that few states go through, or None for the products below."""
        move = self.transition
        if self._log_emissions is None or isinstance(move.pair, Corrected):
            return None
        n_features = None if move.T is None else len(move.T)
        pays = loops_pay(task, len(self.start), len(sequences), n_features)
        if not (pays or self.in_logs) or self._few is None:
            return None
        kernels = of_recursions(sum(map(len, sequences)))
        is_wide = len(sequences) > 4 and self._few.is_safe  # products take sequences side by side
        return None if is_wide and kernels is plain else kernels

    def run(self, task, sequences):
        """Return a pass over sequences by the recursions of few states, or None.

        The task is "score", "posteriors" or "gradients".
        """
        kernels, keeps = self._kernels(task, sequences), task != "score"
        n_rows = sum(map(len, sequences))
        if kernels is None:
            return None
        if keeps:
            if len(self.start) > FEW and n_rows * len(self.start) > _KEPT_ENTRIES:
                return None  # products keep segments alone
            check_fits(8 * n_rows * len(self.start), f"X with {n_rows} rows", "posteriors")
        table = self._log_emissions, self._kept_weights
        return self._few.run(kernels, table, *joined(sequences), keeps)

    def as_chain(self, sequence):
        """Return states as a chain with symbols as evidence, for draws given what follows."""
        unary = list(self.log_emissions(sequence))
        unary[0] = unary[0] + self.log_start
        parents = {t: t - 1 for t in range(1, len(sequence))}
        return BeliefPropagation(parents, unary, dict.fromkeys(parents, self.transition.pair))

    # The log scales of factors cancel in all probabilities, so sums over paths leave them out.

    def log_prob(self, sequences):
        """Return the log probability of the symbols of every sequence."""
        if run := self.run("score", sequences):
            return run.log_probs - self.log_normaliser(sequences)
        order = np.argsort([-len(sequence) for sequence in sequences], kind="stable")
        ordered, totals = [sequences[i] for i in order], np.zeros(len(sequences))
        if (rank := RankSpace.of(self, ordered)) and rank.filter(keeps=False):
            totals[order] = rank.log_probs
            return totals
        for _, _, log_norms in self.filtered(ordered):
            totals[order[: len(log_norms)]] += log_norms
        return totals - self.log_normaliser(sequences)

    def log_norms(self, sequence):
        """Return the logs of the divisors of all positions of a sequence."""
        if run := self.run("score", [sequence]):
            return run.log_norms
        return np.array([log_norms[0] for _, _, log_norms in self.filtered([sequence])])

    def log_normaliser(self, sequences):
        """Return the log sums over all symbols and paths of every sequence's length.

        They are 0 if factors are normalised.
        """
        if self.is_local:
            return np.zeros(len(sequences))
        lengths = np.array([len(sequence) for sequence in sequences])
        return np.cumsum(self.log_norms(np.full(lengths.max(), ANY)))[lengths - 1]

    # Distributions of states are shares, or logarithms where `in_logs`.

    def shares(self, distributions):
        """Return distributions as shares."""
        return np.exp(distributions) if self.in_logs else distributions

    def step(self, symbols, before=None):
        """Return distributions after symbols, given those before, and logs of their divisors."""
        if before is None or self.in_logs:
            logs = self.log_start
            if before is not None:
                logs, _ = self.transition.pair.turned.sums(before)
            logs = logs + self.log_emissions(symbols)
            log_norms = log_sum_exp(logs)
            logs = differences(logs, log_norms[:, None])
            return logs if self.in_logs else np.exp(logs).astype(self.dtype), log_norms
        shares, tops = self.emissions(symbols)
        shares *= self.transition.passed(before)
        totals = shares.sum(axis=1, dtype=np.float64)
        shares *= np.divide(1.0, totals, out=np.zeros(len(totals)), where=totals != 0)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):  # impossible, or no distribution
            return shares, np.log(totals) + tops

    def step_back(self, symbols, log_norms, back):
        """Return messages from later positions one position earlier, and what they are sums of."""
        if self.in_logs:
            ahead = self.log_emissions(symbols) + back
            ahead -= log_norms[:, None]
            return self.transition.pair.sums(ahead)[0], ahead
        weights, tops = self.emissions(symbols)
        weights *= np.exp(tops - log_norms)[:, None]
        weights *= back
        with np.errstate(invalid="ignore"):  # as in `Factor.passed`
            return self.transition.gather(weights) @ self.transition.R.T, weights

    def filtered(self, sequences, before=None):
        """Yield symbols, distributions given the past and log divisors of every position.

        Sequences are ordered from longest to shortest, and those that have ended are left out. They
        continue from distributions if these are given.
        """
        lengths = np.array([len(sequence) for sequence in sequences])
        padded = np.zeros((lengths[0], len(sequences)), dtype=int)
        for row, sequence in enumerate(sequences):
            padded[: len(sequence), row] = sequence
        counts = np.count_nonzero(np.arange(lengths[0])[:, None] < lengths, axis=1)
        for symbols, count in zip(padded, counts, strict=True):
            before = None if before is None else before[:count]
            before, log_norms = self.step(symbols[:count], before)
            yield symbols[:count], before, log_norms

    def all_posteriors(self, sequences, filtered=False):
        """Return the posteriors of all positions given all symbols, or those up to each."""
        if run := self.run("posteriors", sequences):
            return run.posteriors() if filtered else run.smoothed()
        out = np.empty((sum(map(len, sequences)), len(self.start)), dtype=self.dtype)
        for row, posterior in self._rows(sequences, self.past if filtered else self.posteriors):
            out[row] = posterior
        return out

    def _rows(self, sequences, posteriors):
        """Yield rows and posteriors of sequences, one after the other."""
        begins = np.cumsum([0, *map(len, sequences)]).tolist()
        for begin, sequence in zip(begins, sequences, strict=False):
            yield from ((begin + t, posterior) for t, posterior in posteriors(sequence))

    def likeliest(self, sequences):
        """Return the state of largest posterior at every position."""
        if run := self.run("posteriors", sequences):
            return run.kernels.largest_places(run.smoothed(), _ROUNDING)
        path = np.empty(sum(map(len, sequences)), dtype=int)
        for row, posterior in self._rows(sequences, self.posteriors):
            path[row] = largest(posterior, posterior.max(), _ROUNDING * posterior.max())
        return path

    def last_posterior(self, sequence):
        """Return the posterior of the last position."""
        if run := self.run("score", [sequence]):
            return run.posteriors()[-1]
        return deque(self.past(sequence), maxlen=1).pop()[1].astype(self.dtype, copy=False)

    def posteriors(self, sequence):
        """Yield (t, posterior given all symbols) from the end; segments are filtered twice."""
        size, before = max(1, int(np.sqrt(len(sequence)))), {0: None}
        for t, (_, distributions, _) in enumerate(self.filtered([sequence]), 1):
            if t % size == 0:
                before[t] = distributions
        shape = 1, len(self.start)
        back = np.zeros(shape) if self.in_logs else np.ones(shape, dtype=self.dtype)
        for begin in reversed(range(0, len(sequence), size)):
            steps = list(self.filtered([sequence[begin : begin + size]], before[begin]))
            for t, (symbols, distributions, log_norms) in reversed([*enumerate(steps, begin)]):
                if self.in_logs:
                    yield t, softmax(distributions[0] + back[0])
                else:
                    shares = distributions[0] * back[0]
                    yield t, shares / shares.sum()
                back, _ = self.step_back(symbols, log_norms, back)

    def past(self, sequence):
        """Yield (t, posterior given the symbols up to t)."""
        for t, (_, distributions, _) in enumerate(self.filtered([sequence])):
            yield t, self.shares(distributions[0])

    def viterbi(self, sequences):
        """Return the log probability of the best path of every sequence, and all paths joined.

        The logs of all transitions are kept if there are few, and otherwise computed in blocks.
        """
        n, n_rows = len(self.start), sum(map(len, sequences))
        check_fits(8 * n * n_rows, f"X with {n_rows} rows", "best paths")
        if kernels := self._kernels("paths", sequences):
            return self._few.viterbi(kernels, self._log_emissions, *joined(sequences))
        logs, paths, turned = [], [], self.transition.pair.turned
        enter = Dense(turned.matrix).maxima if n**2 <= _BLOCK_ENTRIES else turned.maxima
        for sequence in sequences:
            pointers = np.empty((len(sequence), n), dtype=np.int32)
            best = self.log_start + self.log_emissions(sequence[:1])[0]
            for t in range(1, len(sequence)):
                top, pointers[t] = enter(best)
                best = top + self.log_emissions(sequence[t : t + 1])[0]
            path = np.empty(len(sequence), dtype=int)
            path[-1], log_probability = largest_log(best)
            for t in range(len(sequence) - 1, 0, -1):
                path[t - 1] = pointers[t, path[t]]
            logs.append(log_probability)
            paths.append(path)
        return np.array(logs), np.concatenate(paths)

    def log_joint(self, sequence, path):
        """Return the log probability of symbols together with states."""
        logs = self.log_start[path[0]] + self.transition.pair.values(path[:-1], path[1:]).sum()
        if self._log_emissions is not None:
            return logs + self._log_emissions[sequence, path].sum()
        is_seen = sequence != ANY
        logs += self.emission.pair.values(path[is_seen], sequence[is_seen]).sum()
        return logs + self.log_totals[path[~is_seen]].sum()

    def sample(self, lengths, rng, first_shares=None):
        """Return symbols and states of sequences, one after the other.

        The first states have the distribution of the start, or another one.
        """
        ends = np.cumsum(lengths)
        starts, states = ends - lengths, np.empty(ends[-1], dtype=int)
        if self.is_local:  # what follows a state does not matter
            with np.errstate(divide="ignore"):
                logs = self.log_start if first_shares is None else np.log(first_shares)
            first_state = Dense(logs[None])
            states[starts] = _drawn(first_state, np.zeros(len(starts), int), rng)
            if self.transition.T is None and len(lengths) == 1:
                self._draw_on(states, rng)
            else:
                ordered = starts[np.argsort(-lengths, kind="stable")]
                for t in range(1, lengths.max()):
                    at = ordered[: np.count_nonzero(lengths > t)] + t
                    states[at] = _drawn(self.transition.pair, states[at - 1], rng)
        else:
            for length in np.unique(lengths):  # one sweep for many of a length
                begins, chain = starts[lengths == length], self.as_chain(np.full(length, ANY))
                size = max(1, _BLOCK_ENTRIES // max(length, len(self.start)))
                for rows in gen_batches(len(begins), size):
                    drawn = chain.sample(len(begins[rows]), rng)
                    states[begins[rows][:, None] + np.arange(length)] = drawn
        if self.emitter is None:
            return _drawn(self.emission.pair, states, rng), states
        return self.emitter.sample(states, rng), states

    def _draw_on(self, states, rng):
        """Write successors of the first state of one sequence."""
        edges = np.cumsum(self.transition.R, axis=1)
        edges = (edges / edges[:, -1:]).tolist()
        state, last = states[0], len(edges) - 1
        for t, point in enumerate(rng.uniform(size=len(states) - 1).tolist(), 1):
            states[t] = state = min(bisect(edges[state], point), last)


def _drawn(pair, left, rng):
    """Return a right state for every left one, in proportion to the potential."""
    states, width = np.empty(len(left), dtype=int), max(pair.shape)
    for rows in gen_batches(len(left), max(1, _BLOCK_ENTRIES // width)):
        states[rows] = pair.draw(left[rows], 0.0, 0.0, rng)
    return states
