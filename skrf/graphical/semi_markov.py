"""Chains of segments: a state lasts for some positions before another follows."""

from operator import attrgetter
from typing import Literal

import numpy as np

from .._memory import check_fits
from .._sums import log_sum_exp
from .._typing import Array, RandomState, Transformer
from .._validation import as_generator, check_integer
from ._evidence import Evidence
from ._model import FieldModel
from ._potentials import as_array, draw_rows, largest_log

_BYTES = 128  # of an array of one segment


class SemiMarkovChain(FieldModel):
    r"""A chain of segments with the potential exp(x . y) between states of neighbouring segments.

    A segment has a state and a duration of 1 to K positions. Its weight is the exponential of a
    sum: the log potential of its duration, and the evidence for its state at each of its positions.
    Sums over all segmentations of T positions cost O(T n (D + K)) with n states and D features, and
    no n x n matrix is formed.

    Parameters
    ----------
    embeddings : array-like of shape (n, d)
        Embeddings of the states as the earlier of a pair.
    durations : array-like of shape (n, K) or (K,)
        Log potentials of lasting 1 to K positions, per state or shared by all; -inf forbids a
        duration.
    later : array-like of shape (n, d), default=None
        Embeddings of the states as the later of a pair; None means `embeddings`.
    feature_map : feature map, "exact" or None, default=None
        As in `ChainMRF`.
    random_state : int, RandomState instance or None, default=None
        Source of the draw of the features, if the map has no random_state.

    Attributes
    ----------
    feature_map_ : "exact" or feature map
        What the potentials are computed with.

    See Also
    --------
    ChainMRF : Chains in which every position has its own state.

    References
    ----------
    Random Fourier features for scaling Markov random fields (2020), section 2, for the features.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.graphical import SemiMarkovChain
    >>> rng = np.random.default_rng(0)
    >>> chain = SemiMarkovChain(rng.normal(size=(20, 3)) / 2, [-np.inf, 0.0, 0.0, -1.0])
    >>> evidence = np.repeat(4 * rng.normal(size=(4, 20)), 3, axis=0)
    >>> log_prob, segments = chain.decode(evidence)
    >>> int(segments[:, 1].sum()), chain.marginals(evidence).shape
    (12, (12, 20))
    >>> bool(np.isclose(chain.log_prob(segments, evidence), log_prob))
    True
    """

    def __init__(
        self,
        embeddings: Array,
        durations: Array,
        *,
        later: Array | None = None,
        feature_map: Transformer | Literal["exact"] | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.embeddings = embeddings
        self.durations = durations
        self.later = later
        self.feature_map = feature_map
        self.random_state = random_state

    _arrays = "embeddings", "later"
    _settings = property(attrgetter("feature_map", "random_state"))
    _is_single = True
    _pair = property(lambda self: self._model.pair(0, 1))

    def _edges(self, n_tables):
        return []

    def _lattice(self, unary):
        evidence = Evidence.of(unary, None)
        n_states = self._pair.shape[0]
        if evidence.layout != "one":
            raise ValueError("unary must be that of one chain, of shape (length, n).")
        (rows,) = evidence.checked(lambda length: [n_states] * length).chains
        durations = np.atleast_2d(as_array("durations", self._own("durations"), np.float64))
        is_shaped = durations.ndim == 2 and len(durations) in (1, n_states) and durations.size
        if not is_shaped or not (durations < np.inf).all():
            raise ValueError(
                f"durations must have shape ({n_states}, K) or (K,), without NaN or +inf, got "
                f"shape {durations.shape}."
            )
        return _Lattice(self._pair, np.array(rows), np.ascontiguousarray(durations.T))

    def log_partition(self, unary: Array) -> float:
        """Return the logarithm of the sum over all segmentations.

        Parameters
        ----------
        unary : array-like of shape (length, n)
            Evidence: log potentials of the states of every position; -inf forbids a state.

        Returns
        -------
        float
            The log partition function.
        """
        lattice = self._lattice(unary)
        return lattice.total(lattice.forward()[0]) + lattice.top

    def log_prob(self, segments: Array, unary: Array) -> float:
        """Return the log probability of a segmentation.

        Parameters
        ----------
        segments : array-like of int of shape (n_segments, 2)
            States and durations; the durations sum to the length.
        unary : array-like of shape (length, n)
            Evidence, as in `log_partition`.

        Returns
        -------
        float
            Its log probability.
        """
        lattice, segments = self._lattice(unary), as_array("segments", segments)
        is_shaped = segments.ndim == 2 and segments.shape[1:] == (2,)
        if not is_shaped or segments.dtype.kind not in "iu" or not len(segments):
            raise ValueError("segments must hold integers in shape (n_segments, 2).")
        states, lasting = segments.T
        n_states, most = self._pair.shape[0], len(lattice.durations)
        in_range = (states >= 0) & (states < n_states) & (lasting > 0) & (lasting <= most)
        if not in_range.all() or lasting.sum() != lattice.length:
            raise ValueError(
                f"segments must have states 0 to {n_states - 1} and durations 1 to {most} that sum "
                f"to {lattice.length}, got {segments.tolist()}."
            )
        ends, nothing = np.cumsum(lasting), np.zeros((lattice.length + 1, n_states))
        weight = self._pair.values(states[:-1], states[1:]).sum()
        for state, n, end in zip(states, lasting, ends, strict=True):
            weight += lattice.terms(nothing, end)[n - 1, state]
        return float(weight - lattice.total(lattice.forward()[0]))

    def marginals(self, unary: Array) -> np.ndarray:
        """Return the distribution of the state at every position.

        Parameters
        ----------
        unary : array-like of shape (length, n)
            Evidence, as in `log_partition`.

        Returns
        -------
        ndarray of shape (length, n)
            Distributions, which sum to 1.
        """
        lattice = self._lattice(unary)
        (ending, starts, _), (following, after) = lattice.forward(), lattice.backward()
        total = lattice.total(ending)
        begun, ended = np.exp(starts[:-1] + after[:-1] - total), np.exp(ending + following - total)
        inside = np.cumsum(begun, axis=0)
        inside[1:] -= np.cumsum(ended[1:-1], axis=0)
        inside = np.maximum(inside, 0.0)  # of rounding
        return inside / inside.sum(axis=1, keepdims=True)

    def decode(self, unary: Array) -> tuple[float, np.ndarray]:
        """Return the most probable segmentation, in time quadratic in the states.

        Parameters
        ----------
        unary : array-like of shape (length, n)
            Evidence, as in `log_partition`.

        Returns
        -------
        log_prob : float
            Its log probability.
        segments : ndarray of int of shape (n_segments, 2)
            States and durations; ``numpy.repeat(*segments.T)`` gives the path of states.
        """
        lattice = self._lattice(unary)
        total = lattice.total(lattice.forward()[0])
        ending, starts, origins = lattice.forward("maxima")
        state, best = largest_log(ending[-1])
        end, segments = lattice.length, []
        while end:
            lasting = 1 + int(largest_log(lattice.terms(starts, end)[:, state])[0])
            segments.append((int(state), lasting))
            end -= lasting
            state = origins[end][state] if end else None
        return float(best - total), np.array(segments[::-1])

    def sample(
        self, unary: Array, n: int = 1, *, random_state: RandomState = None
    ) -> list[np.ndarray]:
        """Draw segmentations exactly from the model with the approximate potentials.

        Parameters
        ----------
        unary : array-like of shape (length, n)
            Evidence, as in `log_partition`.
        n : int, default=1
            Number of segmentations.
        random_state : int, RandomState instance or None, default=None
            Source of the draws.

        Returns
        -------
        list of ndarray of int of shape (n_segments, 2)
            States and durations.
        """
        lattice, rng, turned = self._lattice(unary), as_generator(random_state), self._pair.turned
        check_fits(_BYTES * check_integer("n", n), f"n={n!r}", "segmentations")
        ending, starts, features = lattice.forward()
        lattice.total(ending)
        draws = []
        for _ in range(n):
            end, segments = lattice.length, []
            state = int(draw_rows(ending[-1][None], rng)[0])
            while end:
                lasting = 1 + int(draw_rows(lattice.terms(starts, end)[None, :, state], rng)[0])
                segments.append((state, lasting))
                end -= lasting
                if end:
                    left = np.array([state])
                    state = int(turned.draw(left, ending[end], features[end], rng)[0])
            draws.append(np.array(segments[::-1]))
        return draws


class _Lattice:
    """Sums over segments that end and begin at every position.

    Parameters
    ----------
    pair : Potential
        That of a segment's state on the left and the next one's on the right.
    unary : ndarray of shape (length, n)
        Log potentials.
    durations : ndarray of shape (K, n) or (K, 1)
        Log potentials of durations.
    """

    def __init__(self, pair, unary, durations):
        self.pair, self.length = pair, len(unary)
        self.durations = durations[: self.length]
        tops = unary.max(axis=1, keepdims=True)
        with np.errstate(over="ignore"):  # to -inf
            self.top, self.unary = float(tops.sum()), unary - tops

    def terms(self, starts, end):
        """Return the log weights of what ends at a position, by duration of the last segment."""
        n = min(end, len(self.durations))
        return starts[end - n : end][::-1] + _running(
            self.unary[end - n : end][::-1], self.durations
        )

    def _terms_from(self, following, start):
        """Return the log weights of what begins at a position, by duration of the first segment."""
        n = min(self.length - start, len(self.durations))
        sums = _running(self.unary[start : start + n], self.durations)
        return following[start + 1 : start + n + 1] + sums

    def total(self, ending):
        """Return the log sum over all segmentations but for `top`, of which there must be some."""
        total = float(log_sum_exp(ending[-1]))
        if total == -np.inf:
            raise ValueError("unary and durations allow no segmentation.")
        return total

    def forward(self, kind="sums"):
        """Return log weights of what ends in a state and leads to one, and details, by position."""
        shape = self.length + 1, self.unary.shape[1]
        ending, starts = np.full(shape, -np.inf), np.full(shape, -np.inf)
        starts[0], details = 0.0, {}
        for t in range(1, self.length + 1):
            terms = self.terms(starts, t)
            ending[t] = log_sum_exp(terms, axis=0) if kind == "sums" else terms.max(axis=0)
            if t < self.length:
                starts[t], details[t] = getattr(self.pair.turned, kind)(ending[t])
        return ending, starts, details

    def backward(self):
        """Return log weights of what follows a state that ends, and of one that begins."""
        shape = self.length + 1, self.unary.shape[1]
        following, after = np.full(shape, -np.inf), np.full(shape, -np.inf)
        following[-1] = 0.0
        for t in range(self.length - 1, -1, -1):
            after[t] = log_sum_exp(self._terms_from(following, t), axis=0)
            if t:
                following[t], _ = self.pair.sums(after[t])
        return following, after


def _running(rows, durations):
    """Return the sums of the first 1, 2, ... rows, and of their durations.

    Each is summed anew: differences of sums over the whole chain would lose digits.
    """
    with np.errstate(over="ignore"):  # to -inf
        return np.cumsum(rows, axis=0) + durations[: len(rows)]
