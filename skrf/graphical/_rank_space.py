"""Sums over paths in the space of features: a matrix for every symbol.

With R and T of `_recursions`, shares a of features after a symbol x follow from those before as
a M_x / (sum of the same), where M_x = T diag(emission values of x) R: n states are summed once for
every distinct symbol instead of once for every position (Chiu, Deng and Rush, 2021; Yang, Liu and
Tu, 2022). Rows of R sum to 1, so the sum of a M_x is the probability of the symbol.
"""

import numpy as np

from ._few import SURE

_MATRIX_ENTRIES = 2**25
_GAIN = 16  # symbols times features per position, up to which matrices for all symbols pay off


class RankSpace:
    """Passes over sequences in the space of features.

    Parameters
    ----------
    model : Model
        With features that are normalised, and sums of shares.
    symbols : ndarray
        The symbols that there are.
    codes : list of ndarray
        Sequences of their places, from the longest to the shortest.
    """

    def __init__(self, model, symbols, codes):
        self.model, self.move = model, model.transition
        self.symbols, self.codes = symbols, codes
        self.weights, tops = model.emissions(symbols)
        self.matrices = np.stack([(self.move.T * row) @ self.move.R for row in self.weights])
        self.start_shares = (model.start * self.weights) @ self.move.R
        self.log_probs = np.array([tops[of_one].sum() for of_one in self.codes])
        self.steps = []  # codes, shares and sums of every position

    @classmethod
    def of(cls, model, sequences):
        """Return a pass over sequences, longest first, or None where it does not pay."""
        move = model.transition
        is_plain = model.is_local and not model.in_logs and model.base is None
        if not is_plain or model.dtype != np.float64 or move.T is None:
            return None
        symbols, codes = np.unique(np.concatenate(sequences), return_inverse=True)
        n_features = len(move.T)
        if len(symbols) * n_features > min(_GAIN * len(codes), _MATRIX_ENTRIES / n_features):
            return None
        ends = np.cumsum([len(sequence) for sequence in sequences])
        return cls(model, symbols, np.split(codes, ends[:-1]))

    def filter(self, keeps):
        """Add up log probabilities, and return whether no sum is too small."""
        shares = None
        for t in range(len(self.codes[0])):
            codes = np.array([of_one[t] for of_one in self.codes if len(of_one) > t])
            shares = (
                self.start_shares[codes] if t == 0 else self._product(shares[: len(codes)], codes)
            )
            totals = shares.sum(axis=1)
            if not totals.min() > SURE:
                return False
            shares /= totals[:, None]
            self.log_probs[: len(codes)] += np.log(totals)
            if keeps:
                self.steps.append((codes, shares, totals))
        return True

    def _product(self, rows, codes, turned=False):
        out = np.empty(rows.shape)
        for code in np.unique(codes) if len(codes) > 1 else codes:
            matrix, of = self.matrices[code], codes == code
            out[of] = rows[of] @ (matrix.T if turned else matrix)
        return out

    def counts(self, repeats):
        """Return expected counts as `_learning` has them: of symbols, first states, transitions."""
        n_features, R, T = len(self.move.T), self.move.R, self.move.T
        of_moves, of_start_shares = np.zeros(self.matrices.shape), np.zeros(self.start_shares.shape)
        back = np.ones((0, n_features))
        for t in range(len(self.steps) - 1, -1, -1):
            codes, _, totals = self.steps[t]
            ended = repeats[len(back) : len(codes), None]
            back = np.vstack([back, np.repeat(ended, n_features, axis=1)]) / totals[:, None]
            if t == 0:
                np.add.at(of_start_shares, codes, back)
                break
            before = self.steps[t - 1][1][: len(codes)]
            for code in np.unique(codes):
                of_moves[code] += before[codes == code].T @ back[codes == code]
            back = self._product(back, codes, turned=True)
        counts = np.zeros((len(self.model.start), self.model.n_symbols + 1))
        by_R, by_T = np.zeros(R.shape), np.zeros(T.shape)
        starts = self.model.start * self.weights
        for symbol, row, of in zip(self.symbols, self.weights, of_moves, strict=True):
            ahead = (T * row).T @ of
            counts[:, symbol] += (ahead * R).sum(axis=1)
            by_R += ahead
            by_T += (of @ R.T) * row
        of_starts = starts * (of_start_shares @ R.T)
        counts[:, self.symbols] += of_starts.T
        by_R += starts.T @ of_start_shares
        return counts, of_starts.sum(axis=0), [R * by_R, (T * by_T).T]
