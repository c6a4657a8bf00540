"""Hidden Markov models with kernel transitions and emissions, linear in the number of states.

With s_f = sum_z' right_f(z'), the transition exp(u_z . w_z') / normaliser is R T exactly, where
R_zf = softmax over f of (log left_f(z) + log s_f) and T_fz' = right_f(z') / s_f: two matrices of
probabilities, from a state to a feature and from a feature to a state. So a filter step is two
products with vectors, nothing underflows that counts, and a path is drawn through features.
"""

from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np
import scipy.optimize
import scipy.sparse
from scipy.special import logsumexp
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from ._potentials import (
    Factors,
    check_embeddings,
    draw_rows,
    factors,
    fitted_map,
    log_columns,
    log_product,
)

_EMISSION_ENTRIES = 2**24  # states times symbols up to which emissions are kept as matrices
_VITERBI_ENTRIES = 2**22
_GRADIENT_ENTRIES = 2**24  # posteriors of a batch of sequences in `fit`; a longer one goes alone
_GRADIENT_ROWS = 1024  # samples in one product of matrices there
# Sums below this go through log space: what has underflowed may be a share of them.
_LEAST = {np.dtype(np.float64): 1e-280, np.dtype(np.float32): 1e-26}


@dataclass(frozen=True)
class FilterState:
    """What an online filter remembers.

    Parameters
    ----------
    posterior : ndarray of shape (n_states,) or (n_sequences, n_states)
        Distribution of the current state given all symbols so far.
    log_prob : float or ndarray of shape (n_sequences,)
        Log probability of the symbols so far.
    """

    posterior: np.ndarray
    log_prob: float | np.ndarray


class _Channel:
    """Conditional probabilities of a right state given a left one, as two matrices.

    psi(z, z') = exp(log_scale) sum_f R_zf T_fz'. T has rows that sum to 1; R too where it is
    normalised, and then log_scale is 0.

    Parameters
    ----------
    pair : Factors
        Log factors of the potential.
    is_normalised : bool
        Whether every left state's values are divided by their sum.
    dtype : numpy.dtype
        Type of R and T; their logarithms are float64.
    """

    def __init__(self, pair, is_normalised, dtype):
        self.log_sums = logsumexp(pair.right, axis=0)
        seen = np.isfinite(self.log_sums)
        logs = np.where(seen, pair.left + np.where(seen, self.log_sums, 0.0), -np.inf)
        self.log_T = np.where(seen, pair.right - np.where(seen, self.log_sums, 0.0), -np.inf).T
        if is_normalised:
            self.log_R, self.log_scale = logs - logsumexp(logs, axis=1, keepdims=True), 0.0
        else:
            self.log_scale = float(logs.max())
            self.log_R = logs - self.log_scale
        # The states of a feature lie side by side in both: each product of a filter step then
        # reads its matrix once, in order.
        self.R = np.exp(self.log_R, order="F").astype(dtype, copy=False)
        self.T = np.exp(self.log_T, order="C").astype(dtype, copy=False)


class KernelHMM(BaseEstimator):
    r"""A hidden Markov model of categorical symbols with kernel transitions and emissions.

    The probability of a transition from state z to z' is proportional to exp(x_z . y_z'), that of
    symbol x in state z to exp(e_z . o_x); with random features a filter step costs O(n_states *
    n_components), and no matrix of states by states is made. The model with features is a
    probability model of its own, exactly: its likelihood, samples and posteriors agree.

    Embeddings that are all float32 give float32 probabilities, in half the memory and nearly half
    the time; logarithms of probabilities and `fit` are float64 always.

    Parameters
    ----------
    states : array-like of shape (n_states, d)
        Embeddings of the states as the earlier of two.
    symbols : array-like of shape (n_symbols, d)
        Embeddings of the symbols.
    targets : array-like of shape (n_states, d), default=None
        Embeddings of the states as the later of two; None takes `states`.
    emitters : array-like of shape (n_states, d), default=None
        Embeddings of the states as what emits; None takes `states`.
    start_embedding : array-like of shape (d,), default=None
        The first state is drawn as the successor of a state with this embedding.
    start_prob : array-like of shape (n_states,), default=None
        Distribution of the first state, in place of `start_embedding`; None of both is uniform.
    feature_map : mechanism or "exact", default=None
        Positive features for the softmax kernel; None takes ``OptimalPositiveRF(256)``. "exact"
        takes the kernel itself, quadratic in the states.
    normalization : {"local", "global"}, default="local"
        Whether every transition and emission is normalised, or only the product over a sequence of
        a given length.
    max_iter : int, default=100
        Iterations of `fit`.
    tol : float, default=1e-6
        `fit` stops where the log likelihood gains less than this share of itself.
    random_state : int, RandomState instance or None, default=None
        Source of the features' draw, where the map has none.

    Attributes
    ----------
    states_, symbols_, targets_, emitters_, start_embedding_ : ndarray
        After `fit`, the learnt embeddings (`start_embedding_` None where none was given); all
        methods then use them.
    history_ : list of float
        Log likelihood after every iteration of `fit`.
    converged_ : bool
        Whether `fit` stopped before `max_iter`.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.graphical import KernelHMM
    >>> rng = np.random.default_rng(0)
    >>> model = KernelHMM(rng.normal(size=(200, 4)), rng.normal(size=(10, 4)), random_state=0)
    >>> X, states = model.sample(50, random_state=0)
    >>> X.shape, model.predict_proba(X).shape
    ((50, 1), (50, 200))
    >>> bool(model.score(X) < 0)
    True
    """

    _parameter_constraints = {
        "states": "no_validation",
        "symbols": "no_validation",
        "targets": "no_validation",
        "emitters": "no_validation",
        "start_embedding": "no_validation",
        "start_prob": "no_validation",
        "feature_map": "no_validation",
        "normalization": [StrOptions({"local", "global"})],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        states,
        symbols,
        *,
        targets=None,
        emitters=None,
        start_embedding=None,
        start_prob=None,
        feature_map=None,
        normalization="local",
        max_iter=100,
        tol=1e-6,
        random_state=None,
    ):
        self.states = states
        self.symbols = symbols
        self.targets = targets
        self.emitters = emitters
        self.start_embedding = start_embedding
        self.start_prob = start_prob
        self.feature_map = feature_map
        self.normalization = normalization
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    @classmethod
    def from_random(cls, n_states, n_symbols, width=16, *, scale=1.0, random_state=None, **params):
        """Return a model with normal embeddings of its own for every role, as a start for `fit`.

        Parameters
        ----------
        n_states, n_symbols : int
            Numbers of states and symbols.
        width : int, default=16
            Width of the embeddings.
        scale : float, default=1.0
            Standard deviation of their entries.
        random_state : int, RandomState instance or None, default=None
            Source of the embeddings, and of the features' draw.
        **params : dict
            Further parameters of the class.

        Returns
        -------
        KernelHMM
            The model.
        """
        rng = check_random_state(random_state)
        embeddings = {
            name: scale * rng.normal(size=(n, width))
            for name, n in (
                ("states", n_states),
                ("targets", n_states),
                ("emitters", n_states),
                ("symbols", n_symbols),
            )
        }
        return cls(**embeddings, random_state=rng.randint(2**31 - 1), **params)

    # ---------------------------------------------------------------- the model

    @property
    def _model(self):
        """Channels and start of the current parameters, made once."""
        learnt = vars(self).get("_learnt")
        if learnt is not None:
            return learnt
        # Not get_params, which reads the signature anew: every filter step comes through here.
        given = tuple(getattr(self, name) for name in self._parameter_constraints)
        kept = vars(self).get("_kept")
        if kept is None or any(a is not b for a, b in zip(kept[0], given, strict=True)):
            self._validate_params()
            embeddings = self._check_embeddings()
            maps = self._make_maps(embeddings)
            self._kept = (
                given,
                _Model(embeddings, maps, self._start_prob(embeddings), self._is_local, self._dtype),
            )
        return self._kept[1]

    @property
    def _is_local(self):
        return self.normalization == "local"

    @property
    def _dtype(self):
        """float32 where all given embeddings are."""
        given = (
            self.states,
            self.symbols,
            self.targets,
            self.emitters,
            self.start_embedding,
        )
        types = {getattr(value, "dtype", None) for value in given if value is not None}
        return np.dtype(np.float32 if types == {np.dtype(np.float32)} else np.float64)

    def _check_embeddings(self):
        states = check_embeddings(self.states, "states")
        n, width = states.shape
        found = {"states": states, "symbols": check_embeddings(self.symbols, "symbols", width)}
        for name in ("targets", "emitters"):
            value = getattr(self, name)
            found[name] = states if value is None else check_embeddings(value, name, width)
            if len(found[name]) != n:
                raise ValueError(f"{name} has {len(found[name])} rows; states has {n}.")
        found["start_embedding"] = None
        if self.start_embedding is not None:
            if self.start_prob is not None:
                raise ValueError("Give start_embedding or start_prob, not both.")
            start = np.atleast_2d(self.start_embedding)
            found["start_embedding"] = check_embeddings(start, "start_embedding", width)
            if len(start) != 1:
                raise ValueError(f"start_embedding must have shape {(width,)}, got {start.shape}.")
        return found

    def _start_prob(self, embeddings):
        n = len(embeddings["states"])
        if self.start_prob is None:
            return np.full(n, 1 / n) if self._is_local else np.ones(n)
        start = np.asarray(self.start_prob, dtype=np.float64)
        if start.shape != (n,) or not (start >= 0).all() or not np.isclose(start.sum(), 1):
            raise ValueError(
                f"start_prob must hold {n} probabilities that sum to 1, got shape "
                f"{start.shape} and sum {start.sum():.6g}."
            )
        return start

    def _make_maps(self, embeddings):
        left = embeddings["states"]
        if embeddings["start_embedding"] is not None:
            left = np.vstack([left, embeddings["start_embedding"]])
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        return (
            fitted_map(self.feature_map, left, embeddings["targets"], seed),
            fitted_map(self.feature_map, embeddings["emitters"], embeddings["symbols"], seed),
        )

    def _check_symbols(self, X, lengths):
        """Return sequences of symbols."""
        X = np.asarray(X)
        if X.ndim == 2 and X.shape[1] == 1:
            X = X[:, 0]
        if X.ndim != 1 or X.size == 0 or X.dtype.kind not in "iu":
            raise ValueError(
                f"X must hold integers in shape (n_samples, 1) or (n_samples,), got {X.shape} "
                f"of dtype {X.dtype}."
            )
        n_symbols = len(self._model.embeddings["symbols"])
        if X.min() < 0 or X.max() >= n_symbols:
            raise ValueError(
                f"X has unknown symbols: known are 0 to {n_symbols - 1}, got values from {X.min()} "
                f"to {X.max()}."
            )
        if lengths is None:
            return [X]
        lengths = np.asarray(lengths)
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 1).any():
            raise ValueError(f"lengths must be integers >= 1, got {lengths!r}.")
        if lengths.sum() != len(X):
            raise ValueError(f"lengths sum to {lengths.sum()}, but X has {len(X)} samples.")
        return np.split(X, np.cumsum(lengths)[:-1])

    # ---------------------------------------------------------------- inference

    def score(self, X, lengths=None):
        """Return the log probability of the symbols, summed over sequences.

        Parameters
        ----------
        X : array-like of int of shape (n_samples, 1) or (n_samples,)
            Symbols of all sequences, one after the other.
        lengths : array-like of int, default=None
            Lengths of the sequences; None is one sequence.

        Returns
        -------
        float
            The log probability.
        """
        sequences = self._check_symbols(X, lengths)
        model = self._model
        total = float(model.forward(sequences).sum())
        if not self._is_local:
            total -= float(model.log_normalisers([len(part) for part in sequences]).sum())
        return total

    def predict_proba(self, X, lengths=None):
        """Return the posterior distribution of the state at every sample.

        Parameters
        ----------
        X : array-like of int of shape (n_samples, 1) or (n_samples,)
            Symbols.
        lengths : array-like of int, default=None
            Lengths of the sequences; None is one sequence.

        Returns
        -------
        ndarray of shape (n_samples, n_states)
            Rows sum to 1.
        """
        sequences = self._check_symbols(X, lengths)
        model = self._model
        out = np.empty((sum(map(len, sequences)), len(model.start)), dtype=model.dtype)
        for t, posterior in self._posteriors(sequences):
            out[t] = posterior
        return out

    def predict(self, X, lengths=None, *, algorithm="posterior"):
        """Return a state for every sample.

        Parameters
        ----------
        X : array-like of int of shape (n_samples, 1) or (n_samples,)
            Symbols.
        lengths : array-like of int, default=None
            Lengths of the sequences; None is one sequence.
        algorithm : {"posterior", "viterbi"}, default="posterior"
            The state of largest posterior at every sample, linear in the states; or the most
            probable path, which does not factor through features: quadratic in the states, in
            blocks of rows.

        Returns
        -------
        ndarray of int of shape (n_samples,)
            States.
        """
        if algorithm not in ("posterior", "viterbi"):
            raise ValueError(f"algorithm must be 'posterior' or 'viterbi', got {algorithm!r}.")
        sequences = self._check_symbols(X, lengths)
        if algorithm == "viterbi":
            return np.concatenate([self._model.viterbi(part) for part in sequences])
        out = np.empty(sum(map(len, sequences)), dtype=int)
        for t, posterior in self._posteriors(sequences):
            out[t] = posterior.argmax()
        return out

    def _posteriors(self, sequences):
        """Yield (sample, posterior), every sequence from its end; memory of sqrt(length) states."""
        start = 0
        for sequence in sequences:
            for t, posterior in self._model.posteriors(sequence):
                yield start + t, posterior
            start += len(sequence)

    def filter_step(self, symbol, state=None):
        """Take in the next symbol of one or several streams, in memory that does not grow.

        Parameters
        ----------
        symbol : int or array-like of int of shape (n_sequences,)
            The next symbol.
        state : FilterState, default=None
            What the step before returned; None starts.

        Returns
        -------
        FilterState
            ``posterior`` and ``log_prob`` after the symbol.
        """
        if not self._is_local:
            raise ValueError(
                "filter_step needs normalization='local': a global normaliser depends on how long "
                "the sequence will be."
            )
        symbols = np.atleast_1d(symbol)
        self._check_symbols(symbols, None)
        model = self._model
        if state is None:
            before, log_prob = model.start, np.zeros(len(symbols))
            predicted = np.broadcast_to(before, (len(symbols), len(before)))
        else:
            posterior = np.atleast_2d(state.posterior).astype(model.dtype, copy=False)
            if len(posterior) != len(symbols):
                raise ValueError(f"state is of {len(posterior)} streams, symbol of {len(symbols)}.")
            predicted, log_prob = model.predicted(posterior), np.atleast_1d(state.log_prob)
        posterior, log_norms = model.updated(predicted, symbols)
        if np.isnan(log_norms).any():
            raise FloatingPointError(
                f"The symbol is too unlikely for the filter: less than {_LEAST[model.dtype]:.0e} "
                "of the distribution is left. Score the whole sequence instead, or take smaller "
                "embeddings."
            )
        log_prob = log_prob + log_norms
        if np.ndim(symbol) == 0:
            return FilterState(posterior[0], float(log_prob[0]))
        return FilterState(posterior, log_prob)

    def sample(self, n_samples=1, *, random_state=None):
        """Draw one sequence.

        Parameters
        ----------
        n_samples : int, default=1
            Its length.
        random_state : int, RandomState instance or None, default=None
            Source of the draws.

        Returns
        -------
        X : ndarray of int of shape (n_samples, 1)
            Symbols.
        states : ndarray of int of shape (n_samples,)
            States.
        """
        if isinstance(n_samples, bool) or not isinstance(n_samples, Integral) or n_samples < 1:
            raise ValueError(f"n_samples must be an integer >= 1, got {n_samples!r}.")
        symbols, states = self._model.sample(n_samples, check_random_state(random_state))
        return symbols[:, None], states

    def report(self, n_states=200, *, random_state=None):
        """Return how far transitions and emissions are from those of the exact kernel.

        Parameters
        ----------
        n_states : int, default=200
            Number of states that are looked at.
        random_state : int, RandomState instance or None, default=None
            Source of the choice of states.

        Returns
        -------
        dict of str to ndarray of shape (n_states,)
            ``"transition"`` and ``"emission"``: total variation distance, in [0, 1], between the
            distributions that follow each state (locally normalised).
        """
        model = self._model
        rows = check_random_state(random_state).permutation(len(model.embeddings["states"]))
        rows = np.sort(rows[:n_states])
        found = {}
        for name, left, right, channel in (
            ("transition", "states", "targets", model.transition),
            ("emission", "emitters", "symbols", model.emission),
        ):
            logs = model.embeddings[left][rows] @ model.embeddings[right].T
            exact = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
            shares = channel.R[rows] @ channel.T
            shares = shares / shares.sum(axis=1, keepdims=True)
            found[name] = np.abs(exact - shares).sum(axis=1) / 2
        return found

    # ---------------------------------------------------------------- learning

    def fit(self, X, lengths=None):
        """Learn the embeddings: gradient ascent on the exact likelihood of the low-rank model.

        The features are drawn and fitted once, at the first embeddings, and kept; L-BFGS moves the
        embeddings.

        Parameters
        ----------
        X : array-like of int of shape (n_samples, 1) or (n_samples,)
            Symbols.
        lengths : array-like of int, default=None
            Lengths of the sequences; None is one sequence.

        Returns
        -------
        self : object
            The fitted model.

        Raises
        ------
        ValueError
            For ``normalization="global"``.
        NotImplementedError
            For feature maps whose gradients are not known (discrete ones).
        """
        if not self._is_local:
            raise ValueError("fit needs normalization='local'; got 'global'.")
        self._learnt = None
        first = self._model
        sequences = self._check_symbols(X, lengths)
        # Roles that share an array keep sharing it.
        arrays = {}
        for role, value in first.embeddings.items():
            if value is not None:
                arrays.setdefault(id(value), (value, []))[1].append(role)
        arrays = list(arrays.values())
        n_symbols = sum(map(len, sequences))
        self.history_ = []
        latest = {}

        def model_at(vector, dtype=np.float64):
            embeddings, start = dict(first.embeddings), 0
            for value, roles in arrays:
                part = vector[start : start + value.size].reshape(value.shape)
                start += value.size
                embeddings.update(dict.fromkeys(roles, part))
            return _Model(embeddings, first.maps, first.given_start, True, dtype)

        def objective(vector):
            log_prob, gradients = model_at(vector).gradients(sequences)
            if not np.isfinite(log_prob):
                return np.inf, np.zeros_like(vector)  # the line search turns back
            latest["log_prob"] = log_prob
            flat = [sum(gradients[role] for role in roles).ravel() for _, roles in arrays]
            return -log_prob / n_symbols, -np.concatenate(flat) / n_symbols

        result = scipy.optimize.minimize(
            objective,
            np.concatenate([value.ravel() for value, _ in arrays]),
            jac=True,
            method="L-BFGS-B",
            callback=lambda vector: self.history_.append(latest["log_prob"]),
            options={"maxiter": self.max_iter, "ftol": self.tol, "gtol": 0.0},
        )
        self.converged_ = bool(result.nit < self.max_iter)
        self._learnt = model_at(result.x, first.dtype)
        for name, value in self._learnt.embeddings.items():
            setattr(self, f"{name}_", value)
        return self

    @property
    def n_iter_(self):
        """Iterations that `fit` took."""
        if not hasattr(self, "history_"):
            raise NotFittedError("This KernelHMM was not fitted: call fit(X) first.")
        return len(self.history_)


class _Model:
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
        pair = factors(move, embeddings["states"], embeddings["targets"])
        self.transition = _Channel(pair, is_local, dtype)
        self.emission = _Channel(
            factors(emit, embeddings["emitters"], embeddings["symbols"]), is_local, dtype
        )
        self.start, self.start_channel = given_start.astype(dtype, copy=False), None
        if embeddings["start_embedding"] is not None:
            first = factors(move, embeddings["start_embedding"], embeddings["targets"])
            self.start_channel = _Channel(Factors(first.left, pair.right), is_local, dtype)
            self.start = (self.start_channel.R @ self.start_channel.T)[0]
        # Sums over all symbols of what a state emits: 1 where emissions are normalised.
        self.log_totals = logsumexp(self.emission.log_R, axis=1) if not is_local else 0.0
        n, n_symbols = len(embeddings["states"]), len(embeddings["symbols"])
        self._log_emissions = None  # a symbol a row
        if n * n_symbols <= _EMISSION_ENTRIES:
            self._log_emissions = self._make_log_emissions(np.arange(n_symbols))
            self._kept_weights = self._weights(self._log_emissions)

    def _make_log_emissions(self, symbols):
        with np.errstate(invalid="ignore"):  # as in `predicted`
            values = (self.emission.R @ self.emission.T[:, symbols]).T
        if values.min() > _LEAST[self.dtype]:
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
        total = np.where(total > _LEAST[self.dtype], total, np.nan)
        weights *= 1 / total
        return weights, np.log(total[:, 0]) + top

    # ---------------------------------------------------------------- recursions

    def forward(self, sequences):
        """Return log sums over all paths, one a sequence, all sequences side by side."""
        order = np.argsort([-len(part) for part in sequences], kind="stable")
        totals = np.zeros(len(sequences))
        filtered = self._filtered_together([sequences[i] for i in order])
        for t, (_, _, log_norms) in enumerate(filtered):
            totals[: len(log_norms)] += log_norms + self.emission.log_scale
            if t:
                totals[: len(log_norms)] += self.transition.log_scale
        unsorted = np.empty_like(totals)
        unsorted[order] = totals
        for i in np.flatnonzero(np.isnan(unsorted)):
            steps = (len(sequences[i]) - 1) * self.transition.log_scale
            steps += len(sequences[i]) * self.emission.log_scale
            unsorted[i] = self._log_filtered(sequences[i])[1].sum() + steps
        return unsorted + (0.0 if self.start_channel is None else self.start_channel.log_scale)

    def _filtered_together(self, sequences):
        """Yield symbols, posteriors given the past and log normalisers of every position.

        Sequences come from the longest to the shortest: those that have ended are left out.
        """
        lengths = np.array([len(part) for part in sequences])
        padded = np.zeros((lengths[0], len(sequences)), dtype=int)
        for row, part in enumerate(sequences):
            padded[: len(part), row] = part
        posterior = None
        for t, symbols in enumerate(padded):
            symbols = symbols[: np.count_nonzero(lengths > t)]
            if t == 0:
                predicted = np.broadcast_to(self.start, (len(symbols), len(self.start)))
            else:
                predicted = self.predicted(posterior[: len(symbols)])
            posterior, log_norms = self.updated(predicted, symbols)
            yield symbols, posterior, log_norms

    def _log_filtered(self, sequence):
        """Return log posteriors given the past and log normalisers, all in log space: slow."""
        log_emissions = self.log_emissions(np.asarray(sequence))
        with np.errstate(divide="ignore"):
            logs = np.log(self.start)
        posteriors = np.empty_like(log_emissions)
        log_norms = np.empty(len(sequence))
        for t, own in enumerate(log_emissions):
            if t:
                through = log_columns(self.transition.log_R, posteriors[t - 1])
                logs = log_columns(self.transition.log_T, through)
            log_norms[t] = logsumexp(logs + own)
            posteriors[t] = logs + own - log_norms[t]
        return posteriors, log_norms

    def _log_posteriors(self, sequence):
        """Yield (t, posterior) from the end as `posteriors` does, all in log space: slow."""
        posteriors, _ = self._log_filtered(sequence)
        back = np.zeros(len(self.start))
        for t in range(len(sequence) - 1, -1, -1):
            logs = posteriors[t] + back
            yield t, np.exp(logs - logsumexp(logs))
            own = self.log_emissions(sequence[t : t + 1])[0]
            ahead = log_columns(self.transition.log_T.T, own + back)
            back = log_columns(self.transition.log_R.T, ahead)
            back -= back.max()

    def log_normalisers(self, lengths):
        """Return the log sum over all symbols and paths, for every length."""
        found, total, posterior = {}, 0.0, None
        weights, top = self._weights(np.broadcast_to(self.log_totals, self.start.shape)[None])
        for t in range(1, max(lengths) + 1):
            predicted = self.start[None] if posterior is None else self.predicted(posterior)
            total += self.emission.log_scale
            total += 0.0 if posterior is None else self.transition.log_scale
            posterior, log_norms = self._weighed(predicted, weights.copy(), top)
            total += float(log_norms[0])
            found[t] = total
        first = 0.0 if self.start_channel is None else self.start_channel.log_scale
        return np.array([found[n] for n in lengths]) + first

    def filtered(self, sequence, before=None):
        """Return posteriors given the past, and log normalisers, after the state `before`."""
        posteriors = np.empty((len(sequence), len(self.start)), dtype=self.dtype)
        log_norms = np.empty(len(sequence))
        for t, symbol in enumerate(sequence):
            predicted = self.start[None] if before is None else self.predicted(before)
            before, log_norm = self.updated(predicted, np.array([symbol]))
            posteriors[t], log_norms[t] = before[0], log_norm[0]
        return posteriors, log_norms

    def posteriors(self, sequence):
        """Yield (t, posterior given all symbols) from the end.

        A sequence that needs log space is begun again there.
        """
        for t, posterior in self._linear_posteriors(sequence):
            if posterior is None:
                yield from self._log_posteriors(sequence)
                return
            yield t, posterior

    def _linear_posteriors(self, sequence):
        """Yield (t, posterior), None where it underflows; segments are filtered twice."""
        size = max(1, int(np.sqrt(len(sequence))))
        starts, before = [], None
        for begin in range(0, len(sequence), size):
            starts.append((begin, before))
            before = self.filtered(sequence[begin : begin + size], before)[0][-1:]
        back = np.ones(len(self.start), dtype=self.dtype)
        for begin, before in reversed(starts):
            posteriors, _ = self.filtered(sequence[begin : begin + size], before)
            for t in reversed(range(begin, begin + len(posteriors))):
                product = posteriors[t - begin] * back
                total = product.sum()
                yield t, (product / total if total > _LEAST[self.dtype] else None)
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
        with np.errstate(divide="ignore"):
            best = np.log(self.start)
        best = best + self.log_emissions(sequence[:1])[0]
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
        totals = np.broadcast_to(self.log_totals, self.start.shape)
        # ahead[t]: log sum over what follows state t; 0 where channels are normalised.
        ahead = np.zeros((length, len(self.start)))
        through = np.zeros((length, self.transition.R.shape[1]))
        if np.any(totals):
            for t in range(length - 1, 0, -1):
                through[t] = logsumexp(self.transition.log_T + (totals + ahead[t]), axis=1)
                ahead[t - 1] = logsumexp(self.transition.log_R + through[t], axis=1)
                ahead[t - 1] -= ahead[t - 1].max()
        states = np.empty(length, dtype=int)
        with np.errstate(divide="ignore"):
            logs = np.log(self.start) + totals + ahead[0]
        states[0] = draw_rows(logs[None], rng)[0]
        for t in range(1, length):
            feature = draw_rows((self.transition.log_R[states[t - 1]] + through[t])[None], rng)
            logs = self.transition.log_T[feature] + totals + ahead[t]
            states[t] = draw_rows(logs, rng)[0]
        features = draw_rows(self.emission.log_R[states], rng)
        return draw_rows(self.emission.log_T[features], rng), states

    # ---------------------------------------------------------------- gradient

    def gradients(self, sequences):
        """Return the log probability and its gradients with respect to the embeddings.

        The log probability is NaN, and the gradients are not finite, where it needs log space.
        """
        move, emit = self.transition, self.emission
        by_R, by_T, by_start = (np.zeros_like(part) for part in (move.R, move.T, self.start))
        counts = np.zeros((len(self.start), len(self.embeddings["symbols"])))
        total = 0.0
        for batch in self._batches(sequences):
            steps = list(self._filtered_together(batch))
            total += sum(log_norms.sum() for _, _, log_norms in steps)
            for earlier, ahead, weighed, symbols, posteriors in self._backward(steps):
                if earlier is None:
                    by_start += weighed.sum(axis=0)
                else:
                    by_R += earlier.T @ ahead
                    by_T += (earlier @ move.R).T @ weighed
                shape = len(symbols), counts.shape[1]
                chosen = scipy.sparse.csr_array(
                    (np.ones(len(symbols)), (np.arange(len(symbols)), symbols)), shape=shape
                )
                counts += (chosen.T @ posteriors).T
        emissions = np.exp(self.log_emissions(np.arange(counts.shape[1]))).T
        ratio = np.divide(counts, emissions, out=np.zeros_like(counts), where=counts > 0)
        found = dict.fromkeys(self.embeddings, 0.0)
        by_left, by_right = _channel_gradients(emit, ratio @ emit.T.T, emit.R.T @ ratio)
        self._pull(found, self.maps[1], "emitters", "symbols", by_left, by_right)
        by_left, by_right = _channel_gradients(move, by_R, by_T)
        self._pull(found, self.maps[0], "states", "targets", by_left, by_right)
        if self.start_channel is not None:
            first = self.start_channel
            by_left, by_right = _channel_gradients(
                first, (first.T @ by_start)[None], np.outer(first.R[0], by_start)
            )
            self._pull(found, self.maps[0], "start_embedding", "targets", by_left, by_right)
        return float(total), found

    def _batches(self, sequences):
        """Yield lists of sequences of similar length, from long to short, as memory allows."""
        ordered = sorted(sequences, key=len, reverse=True)
        start = 0
        while start < len(ordered):
            size = max(1, _GRADIENT_ENTRIES // (len(ordered[start]) * len(self.start)))
            yield ordered[start : start + size]
            start += size

    def _backward(self, steps):
        """Yield what gradients add up, for many samples at a time.

        These are posteriors one position earlier given the past, messages in feature space,
        weighed messages, symbols and posteriors given all symbols. The first two are None at first
        positions, which come last.
        """
        move = self.transition
        back = np.ones((0, len(self.start)))  # scaled so that posterior . back = 1
        kept, size = [], 0
        for t in range(len(steps) - 1, -1, -1):
            symbols, posterior, log_norms = steps[t]
            if len(back) < len(symbols):  # sequences that end here
                back = np.vstack([back, np.ones((len(symbols) - len(back), len(self.start)))])
            weighed = np.exp(self.log_emissions(symbols) - log_norms[:, None]) * back
            ahead = earlier = None
            if t:
                ahead = weighed @ move.T.T
                earlier = steps[t - 1][1][: len(symbols)]
            kept.append((earlier, ahead, weighed, symbols, posterior * back))
            size += len(symbols)
            if t <= 1 or size >= _GRADIENT_ROWS:
                parts = zip(*kept, strict=True)
                yield [None if part[0] is None else np.concatenate(part) for part in parts]
                kept, size = [], 0
            if t:
                back = ahead @ move.R.T

    def _pull(self, found, own, left, right, by_left, by_right):
        """Add gradients with respect to log factors, pulled back to the embeddings."""
        u, v = self.embeddings[left], self.embeddings[right]
        if isinstance(own, str):
            found[left] = found[left] + by_left @ v
            found[right] = found[right] + by_left.T @ u
        else:
            found[left] = found[left] + own._pull_back(u, by_left)
            found[right] = found[right] + own._pull_back(v, by_right, keys=True)


def _channel_gradients(channel, by_R, by_T):
    """Return gradients with respect to the log factors, (n_left, D) and (n_right, D)."""
    by_log_R = channel.R * by_R
    by_left = by_log_R - channel.R * by_log_R.sum(axis=1, keepdims=True)
    by_log_T = channel.T * by_T
    by_sums = by_left.sum(axis=0) - by_log_T.sum(axis=1)
    return by_left, (by_log_T + channel.T * by_sums[:, None]).T
