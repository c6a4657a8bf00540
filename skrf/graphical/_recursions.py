"""Recursions of hidden Markov models over sequences, for embeddings and feature maps as they are.

With s_f = sum_z' right_f(z'), the transition exp(u_z . w_z') / normaliser is R T exactly, where
R_zf = softmax over f of (log left_f(z) + log s_f) and T_fz' = right_f(z') / s_f: two matrices of
probabilities, from a state to a feature and from a feature to a state. So a filter step is two
products with vectors, nothing underflows that counts, and a path is drawn through features.
"""

import numpy as np

from .._sums import differences, log_columns, log_product, log_sum_exp
from ._potentials import draw_rows, factors

_EMISSION_ENTRIES = 2**24  # states times symbols up to which emissions are kept as matrices
_VITERBI_ENTRIES = 2**22
# Sums below this go through log space: what has underflowed may be a share of them.
LEAST = {np.dtype(np.float64): 1e-280, np.dtype(np.float32): 1e-26}


class Channel:
    """Conditional probabilities of a right state given a left one, as two matrices.

    psi(z, z') = exp(log_scale) sum_f R_zf T_fz'. T has rows that sum to 1; R too where it is
    normalised, and then log_scale is 0.

    Parameters
    ----------
    maps : tuple or "exact"
        What `fitted_maps` returned.
    embeddings : dict of str to ndarray
        By role.
    roles : tuple of str
        Those of the left and of the right states.
    is_normalised : bool
        Whether every left state's values are divided by their sum.
    dtype : numpy.dtype
        Type of R and T; their logarithms are float64.
    """

    def __init__(self, maps, embeddings, roles, is_normalised, dtype):
        self.maps, self.roles = maps, roles
        pair = factors(maps, *(embeddings[role] for role in roles))
        log_sums = log_sum_exp(pair.right, axis=0)
        logs = pair.left + log_sums
        self.log_T = differences(pair.right, log_sums).T
        if is_normalised:
            self.log_R, self.log_scale = logs - log_sum_exp(logs)[:, None], 0.0
        else:
            self.log_scale = float(logs.max())
            self.log_R = logs - self.log_scale
        # The states of a feature lie side by side in both: each product of a filter step then
        # reads its matrix once, in order.
        self.R = np.exp(self.log_R, order="F").astype(dtype, copy=False)
        self.T = np.exp(self.log_T, order="C").astype(dtype, copy=False)


class Model:
    """Channels of given embeddings and maps, and the recursions over sequences.

    Parameters
    ----------
    embeddings : dict of str to ndarray
        By role.
    maps : tuple
        Fitted maps of transitions and emissions.
    given_start : ndarray of shape (n_states,)
        Start distribution where there is no start embedding.
    is_local : bool
        Whether channels are normalised.
    dtype : numpy.dtype, default=float64
        Type of probabilities; what is added up over a sequence is float64.
    """

    def __init__(self, embeddings, maps, given_start, is_local, dtype=np.float64):
        self.embeddings, self.maps, self.given_start = embeddings, maps, given_start
        self.dtype = dtype = np.dtype(dtype)
        move, emit = maps
        shared = is_local, dtype
        self.transition = Channel(move, embeddings, ("states", "targets"), *shared)
        self.emission = Channel(emit, embeddings, ("emitters", "symbols"), *shared)
        self.start, self.start_channel = given_start.astype(dtype, copy=False), None
        if embeddings["start_embedding"] is not None:
            self.start_channel = Channel(move, embeddings, ("start_embedding", "targets"), *shared)
            self.start = (self.start_channel.R @ self.start_channel.T)[0]
        with np.errstate(divide="ignore"):
            self.log_start = np.log(self.start)
        n, n_symbols = len(embeddings["states"]), len(embeddings["symbols"])
        # Sums over all symbols of what a state emits: 1 where emissions are normalised.
        self.log_totals = np.zeros(n) if is_local else log_sum_exp(self.emission.log_R)
        self._log_emissions = None  # one symbol per row
        if n * n_symbols <= _EMISSION_ENTRIES:
            self._log_emissions = self._make_log_emissions(np.arange(n_symbols))
            self._kept_weights = self._weights(self._log_emissions)

    def _make_log_emissions(self, symbols):
        with np.errstate(invalid="ignore"):  # as in `predicted`
            values = (self.emission.R @ self.emission.T[:, symbols]).T
        if values.min() > LEAST[self.dtype]:
            return np.log(values, dtype=np.float64, order="C")
        logs = log_product(self.emission.log_R, self.emission.log_T[:, symbols])
        return np.ascontiguousarray(logs.T)

    def log_emissions(self, symbols):
        """Return log emission values of symbols, (len(symbols), n_states)."""
        if self._log_emissions is not None:
            return self._log_emissions[symbols]
        found, where = np.unique(symbols, return_inverse=True)
        return self._make_log_emissions(found)[where]

    def predicted(self, posterior):
        """Return the next state's distribution before its symbol."""
        # Single-precision BLAS at times raises the flag for finite numbers (unused lanes of small
        # products); a NaN of ours is found by `_weighed`.
        with np.errstate(invalid="ignore"):
            return (posterior @ self.transition.R) @ self.transition.T

    def updated(self, predicted, symbols):
        """Return posteriors after symbols, and the log of what they were divided by."""
        return self._weighed(predicted, *self.emissions(symbols))

    def emissions(self, symbols):
        """Return emission values of symbols over the largest of each, and the logs of these."""
        if self._log_emissions is not None:
            return tuple(part[symbols] for part in self._kept_weights)
        return self._weights(self.log_emissions(symbols))

    def _weights(self, logs):
        """Return exp(logs - top), as probabilities are kept, and top, the largest of each row."""
        top = logs.max(axis=1)
        weights = np.empty(logs.shape, dtype=self.dtype)
        np.subtract(logs, top[:, None], out=weights, casting="same_kind")
        return np.exp(weights, out=weights), top

    def _weighed(self, predicted, weights, top):
        """Return what `updated` does; overwrites weights."""
        weights *= predicted
        total = weights.sum(axis=1, keepdims=True, dtype=np.float64)
        # What has underflowed counts where so little is left that it is a share of it. NaN says
        # so, and the callers go through log space.
        total = np.where(total > LEAST[self.dtype], total, np.nan)
        weights *= 1 / total
        return weights, np.log(total[:, 0]) + top

    # ---------------------------------------------------------------- recursions

    def forward(self, sequences):
        """Return log sums over all paths, one a sequence, all sequences side by side."""
        lengths = np.array([len(part) for part in sequences])
        order = np.argsort(-lengths, kind="stable")
        totals = np.zeros(len(sequences))
        for _, _, log_norms in self.filtered_together([sequences[i] for i in order]):
            totals[: len(log_norms)] += log_norms
        totals = totals[np.argsort(order)]
        for i in np.flatnonzero(np.isnan(totals)):
            totals[i] = self._log_filtered(sequences[i])[1].sum()
        return totals + self._log_scales(lengths)

    def _log_scales(self, lengths):
        """Return the logs of what the channels are divided by, over sequences of these lengths."""
        first = 0.0 if self.start_channel is None else self.start_channel.log_scale
        steps = (lengths - 1) * self.transition.log_scale
        return first + steps + lengths * self.emission.log_scale

    def filtered_together(self, sequences, posterior=None):
        """Yield symbols, posteriors given the past and log normalisers of every position.

        Sequences come from the longest to the shortest: those that have ended are left out. They
        follow a posterior, where one is given.
        """
        lengths = np.array([len(part) for part in sequences])
        padded = np.zeros((lengths[0], len(sequences)), dtype=int)
        for row, part in enumerate(sequences):
            padded[: len(part), row] = part
        counts = np.count_nonzero(np.arange(lengths[0])[:, None] < lengths, axis=1)
        for symbols, count in zip(padded, counts, strict=True):
            symbols = symbols[:count]
            if posterior is None:
                predicted = np.broadcast_to(self.start, (len(symbols), len(self.start)))
            else:
                predicted = self.predicted(posterior[: len(symbols)])
            posterior, log_norms = self.updated(predicted, symbols)
            yield symbols, posterior, log_norms

    def _log_filtered(self, sequence):
        """Return log posteriors given the past and log normalisers, all in log space: slow."""
        log_emissions, logs = self.log_emissions(np.asarray(sequence)), self.log_start
        posteriors = np.empty_like(log_emissions)
        log_norms = np.empty(len(sequence))
        for t, own in enumerate(log_emissions):
            if t:
                through = log_columns(self.transition.log_R, posteriors[t - 1])
                logs = log_columns(self.transition.log_T, through)
            log_norms[t] = log_sum_exp(logs + own)
            posteriors[t] = logs + own - log_norms[t]
        return posteriors, log_norms

    def _log_posteriors(self, sequence):
        """Yield (t, posterior) from the end as `posteriors` does, all in log space: slow."""
        posteriors, _ = self._log_filtered(sequence)
        back = np.zeros(len(self.start))
        for t in range(len(sequence) - 1, -1, -1):
            logs = posteriors[t] + back
            yield t, np.exp(logs - log_sum_exp(logs))
            own = self.log_emissions(sequence[t : t + 1])[0]
            ahead = log_columns(self.transition.log_T.T, own + back)
            back = log_columns(self.transition.log_R.T, ahead)
            back -= back.max()

    def log_normalisers(self, lengths):
        """Return the log sum over all symbols and paths, for every length."""
        lengths, posterior = np.asarray(lengths), None
        weights, top = self._weights(self.log_totals[None])
        log_norms = np.empty(lengths.max())
        for t in range(len(log_norms)):
            predicted = self.start[None] if posterior is None else self.predicted(posterior)
            posterior, log_norms[t : t + 1] = self._weighed(predicted, weights.copy(), top)
        return np.cumsum(log_norms)[lengths - 1] + self._log_scales(lengths)

    def filtered(self, sequence, before=None):
        """Return posteriors given the past, the posterior `before` included."""
        posteriors = np.empty((len(sequence), len(self.start)), dtype=self.dtype)
        for t, (_, posterior, _) in enumerate(self.filtered_together([sequence], before)):
            posteriors[t] = posterior[0]
        return posteriors

    def posteriors(self, sequence):
        """Yield (t, posterior given all symbols) from the end; segments are filtered twice.

        A sequence that needs log space is begun again there.
        """
        size = max(1, int(np.sqrt(len(sequence))))
        starts, before = [], None
        for begin in range(0, len(sequence), size):
            starts.append((begin, before))
            before = self.filtered(sequence[begin : begin + size], before)[-1:]
        back = np.ones(len(self.start), dtype=self.dtype)
        for begin, before in reversed(starts):
            posteriors = self.filtered(sequence[begin : begin + size], before)
            for t in reversed(range(begin, begin + len(posteriors))):
                product = posteriors[t - begin] * back
                total = product.sum()
                if not total > LEAST[self.dtype]:
                    yield from self._log_posteriors(sequence)
                    return
                yield t, product / total
                back = self._back(back, sequence[t])

    def _back(self, back, symbol):
        """Return the scaled backward message one position earlier."""
        weights, _ = self.emissions(np.array([symbol]))
        with np.errstate(invalid="ignore"):  # as in `predicted`
            ahead = self.transition.T @ (weights[0] * back)
            back = self.transition.R @ ahead
        top = back.max()
        return back / (top if top > 0 else 1.0)

    def viterbi(self, sequence):
        """Return the most probable path; never more than a block of transitions at a time."""
        n = len(self.start)
        rows = max(1, _VITERBI_ENTRIES // n)
        pointers = np.empty((len(sequence), n), dtype=np.int32)
        best = self.log_start + self.log_emissions(sequence[:1])[0]
        for t in range(1, len(sequence)):
            top = np.full(n, -np.inf)
            for begin in range(0, n, rows):
                block = slice(begin, begin + rows)
                logs = log_product(self.transition.log_R[block], self.transition.log_T)
                logs += best[block, None]
                choice = logs.argmax(axis=0)
                values = logs[choice, np.arange(n)]
                better = values > top
                top[better], pointers[t, better] = values[better], choice[better] + begin
            best = top + self.log_emissions(sequence[t : t + 1])[0]
        path = np.empty(len(sequence), dtype=int)
        path[-1] = best.argmax()
        for t in range(len(sequence) - 1, 0, -1):
            path[t - 1] = pointers[t, path[t]]
        return path

    def sample(self, length, rng):
        """Return symbols and states of one sequence."""
        totals = self.log_totals
        # ahead[t]: log sum over what follows state t; 0 where channels are normalised.
        ahead = np.zeros((length, len(self.start)))
        through = np.zeros((length, self.transition.R.shape[1]))
        if np.any(totals):
            for t in range(length - 1, 0, -1):
                through[t] = log_sum_exp(self.transition.log_T + (totals + ahead[t]))
                ahead[t - 1] = log_sum_exp(self.transition.log_R + through[t])
                ahead[t - 1] -= ahead[t - 1].max()
        states = np.empty(length, dtype=int)
        states[0] = draw_rows((self.log_start + totals + ahead[0])[None], rng)[0]
        for t in range(1, length):
            feature = draw_rows((self.transition.log_R[states[t - 1]] + through[t])[None], rng)
            logs = self.transition.log_T[feature] + totals + ahead[t]
            states[t] = draw_rows(logs, rng)[0]
        features = draw_rows(self.emission.log_R[states], rng)
        return draw_rows(self.emission.log_T[features], rng), states
