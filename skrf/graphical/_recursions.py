"""Recursions of hidden Markov models over sequences, for given embeddings and feature maps.

With s_f = sum_z' right_f(z'), the transition exp(u_z . w_z') / normaliser is R T exactly, where
R_zf = softmax over f of (log left_f(z) + log s_f) and T_fz' = right_f(z') / s_f: two matrices of
probabilities, from a state to a feature and from a feature to a state. So a filter step is two
products with vectors, nothing that matters underflows, and a path is drawn through features. With
the exact kernel the features are the right states: R holds the probabilities, and there is no T.
"""

import copy
from bisect import bisect
from collections import deque
from functools import cached_property, partial

import numpy as np
from scipy.special import softmax
from sklearn.utils import gen_batches

from .._kernels import of_recursions, plain
from .._memory import check_fits
from .._sums import LogMatrix, differences, finite, log_product, log_sum_exp
from ._belief_propagation import ANY, BeliefPropagation
from ._corrections import Corrected
from ._few import FewStates, joined
from ._potentials import (
    Dense,
    LowRank,
    draw_rows,
    largest,
    largest_log,
    log_features,
    pull_back,
    rounding_of_logs,
)
from ._rank_space import RankSpace

_EMISSION_ENTRIES = 2**24  # states times symbols up to which emissions are kept as matrices
_MOST_FEW = 128  # states up to which loops beat products with vectors
_ROUNDING = 1e-10  # of posteriors, relative, after the products of long sequences
_BLOCK_ENTRIES = 2**22  # pairs of states held at once
# Smaller sums are computed in log space, because what has underflowed may be a share of them.
LEAST = {np.dtype(np.float64): 1e-280, np.dtype(np.float32): 1e-26}
_SHARE = {np.dtype(np.float64): 1e-9, np.dtype(np.float32): 1e-4}  # share of a sum that may be lost


class Channel:
    """Conditional probabilities of a right state given a left one, as two matrices.

    psi(z, z') = exp(log_scale) sum_f R_zf T_fz'. Rows of T sum to 1, and if normalised so do those
    of R, with log_scale 0. For the exact kernel T is the identity, stored as None.

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
        self.maps, self.roles, self.is_normalised = maps, roles, is_normalised
        self.is_double = dtype == np.float64
        left, right = (embeddings[role] for role in roles)
        if not maps.sides:
            logs, self.log_T, self.T = left @ right.T, None, None
            if mask is not None:
                logs[~mask] = -np.inf
        else:
            left, right = map(log_features, maps.sides, (left, right))
            log_sums = log_sum_exp(right, axis=0)
            logs = left + log_sums
            self.log_T = differences(right, log_sums).T
            self.T = np.exp(self.log_T, order="C").astype(dtype, copy=False)
        self.log_R = logs - (log_sum_exp(logs)[:, None] if is_normalised else logs.max())
        # Store the states of a feature contiguously in both, so that each product of a filter step
        # reads its matrix once, in order.
        self.R = np.exp(self.log_R, order="F").astype(dtype, copy=False)

    def passed(self, shares):
        """Return distributions of right states for rows of distributions of left ones."""
        # Single-precision BLAS sometimes raises the flag for finite numbers (unused lanes of small
        # products); `Model.updated` detects real NaNs.
        if self.is_double:
            return self.spread(shares @ self.R)
        with np.errstate(invalid="ignore"):
            return self.spread(shares @ self.R)

    def spread(self, shares):
        """Return values of right states, sum_f shares_f T_fz', for rows of shares of features."""
        return shares if self.T is None else shares @ self.T

    def gather(self, values):
        """Return values of features, sum_z' T_fz' values_z', for rows of values of right states."""
        return values if self.T is None else values @ self.T.T

    @cached_property
    def pair(self):
        """The same as a `Potential`, for sums in log space; without log_scale."""
        if self.T is None:
            return Dense(self.log_R)
        return LowRank((LogMatrix(self.log_R), LogMatrix(self.log_T.T)), False)

    def log_values(self, right=slice(None)):
        """Return log psi - log_scale of all left and some right states."""
        if self.T is None:
            return self.log_R[:, right]
        return log_product(self.log_R, self.log_T[:, right])

    def log_pairs(self, left, right):
        """Return the sum of log psi - log_scale over paired states."""
        if self.T is None:
            return self.log_R[left, right].sum()
        size = max(1, _BLOCK_ENTRIES // len(self.T))
        blocks = (slice(begin, begin + size) for begin in range(0, len(left), size))
        logs = (self.log_R[left[rows]] + self.log_T.T[right[rows]] for rows in blocks)
        return sum(log_sum_exp(logits).sum() for logits in logs)

    def draw(self, left, rng):
        """Return a right state for every left one, drawn without forming a `Potential`."""
        width = self.log_R.shape[1] if self.T is None else max(self.log_T.shape)
        return _by_blocks(self._draw, left, width, rng)

    def _draw(self, left, rng):
        feature = draw_rows(self.log_R[left], rng)
        return feature if self.T is None else draw_rows(self.log_T[feature], rng)

    def least(self):
        """Return a lower bound on log psi - log_scale over all pairs of states."""
        if self.T is None:
            return self.log_R.min()
        by_left = (self.log_R + self.log_T.min(axis=1)).max(axis=1)
        by_right = (self.log_R.min(axis=0)[:, None] + self.log_T).max(axis=0)
        return max(by_left.min(), by_right.min())

    def distributions(self, left):
        """Return distributions of right states given some left ones."""
        return self.spread(softmax(self.log_R[left], axis=1))

    # Counts are those of a left state with a feature, and of a feature with a right state.

    def no_counts(self):
        """Return zeros for counts."""
        return [np.zeros(self.R.shape), np.zeros(() if self.T is None else self.T.shape)]

    def counts_of(self, counts):
        """Return the counts of a `Potential` as those of the channel."""
        by_left, *by_right = counts
        return [by_left, *(part.T for part in by_right or [np.zeros(())])]

    def pull_back(self, left, right, by_log_R, by_log_T):
        """Return gradients with respect to embeddings, given those for logs of the matrices."""
        by_left, by_right = by_log_R, None
        if self.is_normalised:
            by_left = by_log_R - self.R * by_log_R.sum(axis=1, keepdims=True)
        if self.T is not None:
            by_sums = by_left.sum(axis=0) - by_log_T.sum(axis=1)
            by_right = (by_log_T + self.T * by_sums[:, None]).T
        return pull_back(self.maps.sides, left, right, by_left, by_right)


class CorrectedChannel:
    """Corrected potentials between the same states, not normalised.

    No two matrices hold what is exact for near states: sums are in log space only.

    Parameters
    ----------
    maps : Maps
        With a correction.
    embeddings : dict of str to ndarray
        Embeddings by role.
    roles : tuple of str
        Roles of the left and of the right states, which have the same embeddings.
    """

    def __init__(self, maps, embeddings, roles):
        self.maps, self.roles, states = maps, roles, embeddings[roles[0]]
        sides = tuple(LogMatrix(log_features(side, states)) for side in maps.sides)
        self.pair = Corrected.of(maps, sides, states)

    def log_pairs(self, left, right):
        """Return the sum of log psi over paired states."""
        return self.pair.values(left, right).sum()

    def distributions(self, left):
        """Return distributions of right states given some left ones."""
        return softmax(self.pair.log_rows(left), axis=1)

    def no_counts(self):
        """Return zeros for the counts of the potential."""
        features = [np.zeros(side.logs.shape) for side in self.pair.raw]
        return [*features, np.zeros(self.pair.shape[0])]

    def counts_of(self, counts):
        """Return the counts of the potential."""
        return counts

    def pull_back(self, left, right, *counts):
        """Return gradients with respect to embeddings."""
        return self.pair.pull_back(self.maps.sides, left, right, *counts)


class Model:
    """Channels of given embeddings and maps, and the recursions over sequences.

    Parameters
    ----------
    embeddings : dict of str to ndarray
        Embeddings by role.
    maps : tuple
        Fitted maps of transitions and emissions.
    given_start : ndarray of shape (n_states,)
        Start distribution if there is no start embedding.
    is_local : bool
        Whether channels are normalised. If not, maps of transitions may have a correction, and
        recursions are then those of the log space.
    dtype : numpy.dtype, default=float64
        Type of probabilities; sums over a sequence are float64.
    masks : dict of str to ndarray of bool, default=()
        What is allowed of "transition", "start" and "emission".
    emitter : object, default=None
        Emissions of rows in place of symbols, such as `GaussianEmissions`.
    learns_start : bool, default=False
        Whether `fit` learns `given_start`.
    """

    def __init__(
        self,
        embeddings,
        maps,
        given_start,
        is_local,
        dtype=np.float64,
        *,
        masks=(),
        emitter=None,
        learns_start=False,
    ):
        self.embeddings, self.maps, self.given_start = embeddings, maps, given_start
        self.is_local, self.emitter, self.learns_start = is_local, emitter, learns_start
        self.masks = masks = dict(masks)
        self.dtype = dtype = np.dtype(dtype)
        move, emit = maps
        shared = is_local, dtype
        self.in_logs = move.log_factor is not None
        if self.in_logs:
            self.transition = CorrectedChannel(move, embeddings, ("states", "targets"))
        else:
            roles = "states", "targets"
            self.transition = Channel(move, embeddings, roles, *shared, masks.get("transition"))
        self.emission = self.table = self.base = self.data = self.allowed = None
        if emit is not None:
            roles = "emitters", "symbols"
            self.emission = Channel(emit, embeddings, roles, *shared, masks.get("emission"))
        self.start_channel = None
        if embeddings["start_embedding"] is None:
            with np.errstate(divide="ignore"):
                self.log_start = np.log(given_start)
        else:
            roles, mask = ("start_embedding", "targets"), masks.get("start")
            mask = None if mask is None else mask[None]
            self.start_channel = Channel(move, embeddings, roles, *shared, mask)
            self.log_start = self.start_channel.log_values()[0]
        self.start = np.exp(self.log_start).astype(dtype, copy=False)
        n = len(embeddings["states"])
        # A step predicts every state with a share of the least transition or more, and loses about
        # the least number. Where that may be much of the square of the share, it may outgrow the
        # rest some symbols later: a step then loses up to `floor`, and filters also track what
        # there would be without this loss.
        self.floor = 0.0
        if not self.in_logs and self.transition.least() < np.log(LEAST[dtype]) / 2:
            self.floor = float(self.transition.R.size * np.finfo(dtype).tiny)
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
        return len(self.embeddings["symbols"] if self.table is None else self.table)

    def given(self, table):
        """Return the model with log likelihoods of all states at positions in place of symbols.

        Symbols are then the numbers of positions.
        """
        if table is None:
            return self if self.base is None else self.base
        model = copy.copy(self)
        model.base = self.given(None)
        model.table = model._log_emissions = table
        model._kept_weights = model.weights(table)
        return model

    def observing(self, data, allowed=None):
        """Return the model with what was observed at every position in place of symbols.

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
        model = self.given(table)
        model.data, model.allowed = data, allowed
        return model

    def emission_pairs(self, states, symbols):
        """Return the sum of the log emission values of states with symbols."""
        if self.table is not None:
            return self.table[symbols, states].sum()
        return self.emission.log_pairs(states, symbols)

    def moved(self, embeddings, dtype, given_start=None, emitter=None):
        """Return the model at other embeddings, with the same maps, and the same data if any."""
        model = Model(
            embeddings,
            self.maps,
            self.given_start if given_start is None else given_start,
            self.is_local,
            dtype,
            masks=self.masks,
            emitter=self.emitter if emitter is None else emitter,
            learns_start=self.learns_start,
        )
        if self.data is not None:
            return model.observing(self.data, self.allowed)
        return model.given(self.table)

    def _make_log_emissions(self, symbols):
        emission, is_seen = self.emission, symbols != ANY
        logs, values = np.tile(self.log_totals, (len(symbols), 1)), np.zeros(1)
        if emission.T is not None:
            with np.errstate(invalid="ignore"):  # as in `passed`
                values = (emission.R @ emission.T[:, symbols[is_seen]]).T
        if values.min(initial=np.inf) > LEAST[self.dtype]:
            logs[is_seen] = np.log(values, dtype=np.float64)
        else:
            logs[is_seen] = emission.log_values(symbols[is_seen]).T
        return logs

    def log_emissions(self, symbols):
        """Return log emission values of symbols, (len(symbols), n_states)."""
        if self._log_emissions is not None:
            return self._log_emissions[symbols]
        distinct, where = np.unique(symbols, return_inverse=True)
        return self._make_log_emissions(distinct)[where]

    def updated(self, symbols, posterior=None, upper=None):
        """Return posteriors after symbols, upper bounds of them, and logs of their divisors.

        Bounds are None if nothing that underflows matters; the log is NaN where it may.
        """
        predicted = self.start if posterior is None else self.transition.passed(posterior)
        weights, top = self.emissions(symbols)
        after = np.multiply(weights, predicted, out=None if self.floor else weights)
        total = after.sum(axis=1, keepdims=True, dtype=np.float64)
        # What has underflowed matters if it may be a share of the little that is left. NaN reports
        # this, and the callers switch to log space.
        least = LEAST[self.dtype]
        if posterior is None and not self.floor:
            least = least**0.5  # first states may have no share at all
        total = np.where(total > least, total, np.nan)
        after *= 1 / total
        if self.floor:
            with np.errstate(over="ignore", invalid="ignore"):  # bounds may grow
                if upper is not None:
                    predicted = self.transition.passed(upper)
                weights = (weights + self.floor) * (1 / total)
                upper = (weights * (predicted + self.floor)).astype(self.dtype)
            is_known = self._is_little(upper.sum(axis=1), 1.0)
            total = np.where(is_known[:, None], total, np.nan)
        return after, upper, np.log(total[:, 0]) + top

    def _is_little(self, upper, sums):
        """Return whether what has underflowed is a negligible share of sums, given upper bounds."""
        return upper - sums <= _SHARE[self.dtype] * sums

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
        if self.in_logs or self.dtype != np.float64 or len(self.start) > _MOST_FEW:
            return None
        move = self.transition
        few = FewStates(move.spread(move.R), self.log_start, move.log_values)
        return few if few.is_safe or move.T is None else None

    @property
    def may_be_impossible(self):
        """Whether some symbols may have no probability."""
        is_masked = self.masks or (self.table is not None and np.isneginf(self.table).any())
        return bool(is_masked or np.isneginf(self.log_start).any())

    @property
    def has_few(self):
        """Whether recursions are those of few states."""
        return self._few is not None

    def _kernels(self, sequences):
        """Return the kernels that few states go through, or None for the products below."""
        if self._few is None or self._log_emissions is None:
            return None
        kernels = of_recursions(sum(map(len, sequences)))
        is_wide = len(sequences) > 4 and self._few.is_safe  # products take sequences side by side
        return None if is_wide and kernels is plain else kernels

    def run(self, sequences, keeps=True):
        """Return a pass over sequences by the recursions of few states, or None."""
        kernels = self._kernels(sequences)
        if kernels is None:
            return None
        if keeps:
            n_rows = sum(map(len, sequences))
            check_fits(8 * n_rows * len(self.start), f"X with {n_rows} rows", "posteriors")
        table = self._log_emissions, self._kept_weights
        return self._few.run(kernels, table, *joined(sequences), keeps)

    def field(self, sequence):
        """Return states as a chain with symbols as evidence, for what the recursions underflow."""
        unary = list(self.log_emissions(sequence))
        unary[0] = unary[0] + self.log_start
        parents = {t: t - 1 for t in range(1, len(sequence))}
        return BeliefPropagation(parents, unary, dict.fromkeys(parents, self.transition.pair))

    # The log scales of channels cancel in all probabilities, so sums over paths leave them out.

    def log_prob(self, sequences):
        """Return the log probability of the symbols of every sequence."""
        if run := self.run(sequences, False):
            return run.log_probs - self.log_normaliser(sequences)
        order = np.argsort([-len(sequence) for sequence in sequences], kind="stable")
        ordered, totals = [sequences[i] for i in order], np.zeros(len(sequences))
        if (rank := RankSpace.of(self, ordered)) and rank.filter(keeps=False):
            totals[order] = rank.log_probs
            return totals
        for _, _, log_norms in self.filtered_together(ordered):
            totals[order[: len(log_norms)]] += log_norms
        for i in np.flatnonzero(np.isnan(totals)):
            totals[i] = sum(log_norm for _, log_norm in self._log_filtered(sequences[i]))
        return totals - self.log_normaliser(sequences)

    def first_impossible(self, sequence):
        """Return the first position of a sequence that has no probability."""
        if run := self.run([sequence], False):
            return int(np.argmax(run.log_norms == -np.inf))
        logs = (log_norm for _, log_norm in self._log_filtered(sequence))
        return next(t for t, log_norm in enumerate(logs) if log_norm == -np.inf)

    def log_normaliser(self, sequences):
        """Return the log sums over all symbols and paths of every sequence's length.

        They are 0 if channels are normalised.
        """
        if self.is_local:
            return np.zeros(len(sequences))
        lengths = np.array([len(sequence) for sequence in sequences])
        every = np.full(lengths.max(), ANY)
        if run := self.run([every], False):
            return np.cumsum(run.log_norms)[lengths - 1]
        log_norms = {t: log_norm for t, _, log_norm in self.past(every)}
        return np.cumsum(list(log_norms.values()))[lengths - 1]

    def filtered_together(self, sequences, posterior=None):
        """Yield symbols, posteriors given the past and log normalisers of every position.

        Sequences are ordered from longest to shortest, and those that have ended are left out. They
        continue from a posterior if one is given.
        """
        lengths = np.array([len(sequence) for sequence in sequences])
        padded = np.zeros((lengths[0], len(sequences)), dtype=int)
        for row, sequence in enumerate(sequences):
            padded[: len(sequence), row] = sequence
        if self.in_logs:  # as if all had underflowed at once
            yield padded[0], None, np.full(len(sequences), np.nan)
            return
        counts = np.count_nonzero(np.arange(lengths[0])[:, None] < lengths, axis=1)
        upper = None
        for symbols, count in zip(padded, counts, strict=True):
            before = (None if logs is None else logs[:count] for logs in (posterior, upper))
            posterior, upper, log_norms = self.updated(symbols[:count], *before)
            yield symbols[:count], posterior, log_norms

    def _log_filtered(self, sequence):
        """Yield log posteriors given the past and log normalisers in log space, which is slow."""
        logs = self.log_start
        for t in range(len(sequence)):
            if t:
                logs, _ = self.transition.pair.turned.sums(logs)
            logs = logs + self.log_emissions(sequence[t : t + 1])[0]
            log_norm = log_sum_exp(logs)
            logs = differences(logs, log_norm)
            yield logs, float(log_norm)

    def all_posteriors(self, sequences, filtered=False):
        """Return the posteriors of all positions given all symbols, or those up to each."""
        if run := self.run(sequences):
            return run.posteriors() if filtered else run.smoothed()
        out = np.empty((sum(map(len, sequences)), len(self.start)), dtype=self.dtype)
        begin = 0
        for sequence in sequences:
            for t, posterior, *_ in (self.past if filtered else self.posteriors)(sequence):
                out[begin + t] = posterior
            begin += len(sequence)
        return out

    def likeliest(self, sequences):
        """Return the state of largest posterior at every position."""
        if run := self.run(sequences):
            return run.kernels.largest_places(run.smoothed(), _ROUNDING)
        path, begin = np.empty(sum(map(len, sequences)), dtype=int), 0
        for sequence in sequences:
            for t, posterior in self.posteriors(sequence):
                top = posterior.max()
                path[begin + t] = largest(posterior, top, _ROUNDING * top)
            begin += len(sequence)
        return path

    def last_posterior(self, sequence):
        """Return the posterior of the last position."""
        if run := self.run([sequence], False):
            return run.posteriors()[-1]
        return deque(self.past(sequence), maxlen=1).pop()[1].astype(self.dtype, copy=False)

    def posteriors(self, sequence):
        """Yield (t, posterior given all symbols) from the end; segments are filtered twice.

        A sequence that needs log space is restarted there, from the beginning.
        """
        size = max(1, int(np.sqrt(len(sequence))))
        before = {0: None}
        for t, (_, posterior, log_norms) in enumerate(self.filtered_together([sequence]), 1):
            if np.isnan(log_norms[0]):
                yield from enumerate(self.field(sequence).marginals())
                return
            if t % size == 0:
                before[t] = posterior
        back = np.ones((2 if self.floor else 1, len(self.start)), dtype=self.dtype)
        for begin in reversed(range(0, len(sequence), size)):
            segment = [sequence[begin : begin + size]]
            posteriors = [
                posterior for _, posterior, _ in self.filtered_together(segment, before[begin])
            ]
            for t in reversed(range(begin, begin + len(posteriors))):
                with np.errstate(over="ignore", invalid="ignore"):  # bounds may grow
                    products = posteriors[t - begin] * back
                    total, *upper = products.sum(axis=1)
                    is_known = not upper or self._is_little(upper[0], total)
                if not (total > LEAST[self.dtype] and is_known):
                    yield from enumerate(self.field(sequence).marginals())
                    return
                yield t, products[0] / total
                back = self._back(back, sequence[t])

    def _back(self, back, symbol):
        """Return the scaled backward message one position earlier, and an upper bound on it."""
        weights, _ = self.emissions(np.array([symbol]))
        with np.errstate(over="ignore", invalid="ignore"):  # as in `passed`; bounds may grow
            weighed, lost = weights * back, self.floor * back[1:]
            weighed[1:] += lost
            back = self.transition.gather(weighed) @ self.transition.R.T
            back[1:] += lost.max(initial=0.0)
            top = back[0].max()
            return back / (top if top > 0 else 1.0)

    def past(self, sequence):
        """Yield (t, posterior given the symbols up to t, log normaliser).

        A sequence that needs log space is restarted there.
        """
        for t, (_, posterior, log_norms) in enumerate(self.filtered_together([sequence])):
            if np.isnan(log_norms[0]):
                for t, (logs, log_norm) in enumerate(self._log_filtered(sequence)):
                    yield t, np.exp(logs), log_norm
                return
            yield t, posterior[0], log_norms[0]

    def viterbi(self, sequences):
        """Return the log probability of the best path of every sequence, and all paths joined.

        The logs of all transitions are kept if there are few. Otherwise products are computed block
        by block from factors that hold the best paths so far, without logs of matrices.
        """
        if kernels := self._kernels(sequences):
            return self._few.viterbi(kernels, self._log_emissions, *joined(sequences))
        n, move, logs, paths = len(self.start), self.transition, [], []
        if self.in_logs:
            enter = move.pair.turned.maxima
        elif move.T is None or n**2 <= _BLOCK_ENTRIES:
            enter = Dense(np.ascontiguousarray(move.log_values().T)).maxima
        else:
            enter = partial(self._entered, np.exp(move.log_T.T, order="C"))
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

    def _entered(self, into, best):
        """Return the log probabilities of the best paths to all states, and their origins."""
        logs = self.transition.log_R + best[:, None]
        n, top = len(best), finite(logs.max(keepdims=True))[0, 0]
        leaving = np.exp(logs - top).T
        tops, origins = np.empty(n), np.empty(n, dtype=int)
        for block in gen_batches(n, max(1, _BLOCK_ENTRIES // n)):
            products = into[block] @ leaving
            values = products.max(axis=1)
            choice = largest(products, values, rounding_of_logs(top) * values)
            lost = np.flatnonzero(values <= LEAST[values.dtype])
            with np.errstate(divide="ignore"):
                values = np.log(values) + top
            if lost.size:
                again = log_product(self.transition.log_T.T[block][lost], logs.T)
                choice[lost], values[lost] = largest_log(again)
            tops[block], origins[block] = values, choice
        return tops, origins

    def log_joint(self, sequence, path):
        """Return the log probability of symbols together with states."""
        is_seen = sequence != ANY
        logs = self.emission_pairs(path[is_seen], sequence[is_seen])
        logs += self.log_totals[path[~is_seen]].sum() + self.log_start[path[0]]
        return logs + self.transition.log_pairs(path[:-1], path[1:])

    def sample(self, lengths, rng, first=None):
        """Return symbols and states of sequences, one after the other.

        The first states have the distribution of the start, or another one.
        """
        ends = np.cumsum(lengths)
        starts, states = ends - lengths, np.empty(ends[-1], dtype=int)
        if self.is_local:  # what follows a state does not matter
            with np.errstate(divide="ignore"):
                logs = self.log_start if first is None else np.log(first)
            draw = partial(_draw_from, logs)
            states[starts] = _by_blocks(draw, starts, len(self.start), rng)
            if self.transition.T is None and len(lengths) == 1:
                self._draw_on(states, rng)
                return self._emitted(states, rng), states
            ordered = starts[np.argsort(-lengths, kind="stable")]
            for t in range(1, lengths.max()):
                at = ordered[: np.count_nonzero(lengths > t)] + t
                states[at] = self.transition.draw(states[at - 1], rng)
        else:
            for length in np.unique(lengths):  # one sweep for many of a length
                alike, field = starts[lengths == length], self.field(np.full(length, ANY))
                size = max(1, _BLOCK_ENTRIES // max(length, len(self.start)))
                for some in gen_batches(len(alike), size):
                    drawn = field.sample(len(alike[some]), rng)
                    states[alike[some][:, None] + np.arange(length)] = drawn
        return self._emitted(states, rng), states

    def _emitted(self, states, rng):
        return (self.emission.draw if self.emitter is None else self.emitter.sample)(states, rng)

    def _draw_on(self, states, rng):
        """Write successors of the first state of one sequence."""
        edges = np.cumsum(self.transition.R, axis=1)
        edges = (edges / edges[:, -1:]).tolist()
        state, last = states[0], len(edges) - 1
        for t, point in enumerate(rng.uniform(size=len(states) - 1).tolist(), 1):
            states[t] = state = min(bisect(edges[state], point), last)


def _draw_from(logs, starts, rng):
    """Return a first state for every start of a sequence."""
    return draw_rows(np.tile(logs, (len(starts), 1)), rng)


def _by_blocks(draw, given, width, rng):
    """Return a draw for each of some states, of which each takes arrays of a given width."""
    drawn = np.empty(len(given), dtype=int)
    for rows in gen_batches(len(given), max(1, _BLOCK_ENTRIES // width)):
        drawn[rows] = draw(given[rows], rng)
    return drawn
