"""Chains of variables with potentials exp(x_t . y_{t+1}), with or without evidence."""

from operator import attrgetter
from typing import Any, Literal, Self

import numpy as np

from .._sums import log_sum_exp
from .._typing import Array, RandomState, Transformer
from .._validation import as_generator, check_integer
from ._belief_propagation import ANY, BeliefPropagation, check_draws, distinct_pairs
from ._error import ErrorReport, estimate, reported
from ._evidence import Evidence, check_states, count_variables, split, together, unary_of
from ._model import FieldModel, added, shaped, stacked


class ChainMRF(FieldModel):
    r"""A chain of variables with the potential exp(x_t . y_{t+1}) between neighbours.

    Every state has two embeddings: x as the earlier of a pair and y as the later. Without evidence,
    and with one set of states for all variables, the chain has whatever length is passed to a
    method; otherwise its length is that of `unary` or of the sequence of embeddings. A message
    costs O(n D) with D features, and no n x n matrix is formed. With random features, all methods
    are exact for the model with the approximate potentials, so they agree with each other.

    Parameters
    ----------
    embeddings : array-like of shape (n, d) or (length, n, d), or sequence of arrays (n_t, d)
        Embeddings of the states: one array for all variables, or one per variable. The potential of
        a pair is the exponential of the inner product of its embeddings.
    later : array-like of shape (n, d) or (length, n, d), or sequence, default=None
        Embeddings of the states as the later of a pair; None means `embeddings`. With None and one
        array for all variables, features are corrected so that no state's potential with itself is
        too large.
    unary : array-like of shape (length, n), or sequence of arrays (n_t,), default=None
        Evidence: log potentials of the states of every variable; -inf forbids a state. None means 0
        for all states.
    feature_map : feature map, "exact" or None, default=None
        A positive feature map for the softmax kernel, or "exact" for the kernel itself. None is
        "exact" where features would save at most half of the time (up to 1,024 states), otherwise
        ``AdaptiveRF(256)``. A map is fitted to the given embeddings, and `fit` holds it fixed while
        the embeddings move. A FrozenEstimator stays as it was fitted, including its sigma:
        potentials are then those of sigma times the embeddings.
    max_iter : int, default=100
        Maximum number of iterations of `fit`.
    tol : float, default=1e-6
        `fit` stops when the relative gain of the log likelihood falls below this value.
    verbose : int or bool, default=False
        Whether `fit` prints the log likelihood of every iteration.
    random_state : int, RandomState instance or None, default=None
        Source of the draw of the features, if the map has no random_state.

    Attributes
    ----------
    feature_map_ : "exact" or feature map
        What the potentials are computed with; available before `fit`.
    embeddings_, later_ : ndarray or list of ndarray
        After `fit`, the learned embeddings (`later_` if `later` was given); all methods then use
        them, with the current `unary`.
    unary_ : list of ndarray
        After ``fit(..., learn_unary=True)``, the learned values, which replace `unary`.
    history_ : list of float
        Log likelihood after every iteration of `fit`.
    converged_ : bool
        Whether `fit` stopped because of `tol`; otherwise a warning gave the reason.

    See Also
    --------
    TreeMRF : Trees of variables.
    KernelHMM : Directed, with observed symbols.
    ErrorReport : Bounds on the error of features.

    References
    ----------
    Random Fourier features for scaling Markov random fields (2020), section 2.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.graphical import ChainMRF
    >>> rng = np.random.default_rng(0)
    >>> chain = ChainMRF(rng.normal(size=(50, 4)) / 2)
    >>> chain.marginals(20).shape, chain.sample(20, 3, random_state=0).shape
    ((20, 50), (3, 20))
    >>> evidence = rng.normal(size=(6, 50))
    >>> log_prob, path = chain.set_params(unary=evidence).decode()
    >>> bool(np.isclose(chain.log_prob(path), log_prob))
    True
    """

    def __init__(
        self,
        embeddings: Array,
        later: Array | None = None,
        *,
        unary: Array | None = None,
        feature_map: Transformer | Literal["exact"] | None = None,
        max_iter: int = 100,
        tol: float = 1e-6,
        verbose: int = False,
        random_state: RandomState = None,
    ) -> None:
        self.embeddings = embeddings
        self.later = later
        self.unary = unary
        self.feature_map = feature_map
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state

    # ---------------------------------------------------------------- the model

    _arrays = "embeddings", "later"
    _settings = property(attrgetter("feature_map", "random_state"))

    def _edges(self, n_tables):
        return [(t, t + 1) for t in range(n_tables - 1)]

    @property
    def _own_length(self):
        """The length that evidence or embeddings fix, or None."""
        unary = self._evidence_given
        return self._table_length if unary is None else count_variables(unary)

    @property
    def _table_length(self):
        """The length that embeddings per variable fix, or None."""
        tables = self._model.tables["embeddings"]
        return len(tables) if len(tables) > 1 else None

    def _length(self, length, least=1):
        """Return the number of variables requested from a method."""
        fitted_length = self._own_length
        if fitted_length is None and length is None:
            raise ValueError(
                f"length must be an integer >= {least}, because unary=None and one array of "
                "embeddings for all variables leave the number of variables open; got length=None."
            )
        length = check_integer("length", fitted_length if length is None else length, least)
        if fitted_length not in (None, length):
            raise ValueError(
                f"length must be {fitted_length}, the length of unary or embeddings, or None; "
                f"got {length!r}."
            )
        return length

    def _belief_propagation(self, length, unary=None):
        model = self._model
        unary = self._unary_of(model.sizes(length)) if unary is None else unary
        return model.belief_propagation({t: t - 1 for t in range(1, length)}, unary)

    # ---------------------------------------------------------------- evidence and paths

    def _evidence(self, length, unary, lengths, least=1):
        """Return the evidence that was passed to a method, or that of the model."""
        if unary is None:
            if lengths is not None:
                raise ValueError("lengths are those of chains in unary, which is None.")
            sizes = self._model.sizes(self._length(length, least))
            return Evidence([self._unary_of(sizes)], "one")
        if length is not None:
            raise ValueError(f"length must be None if unary is given, got {length!r}.")
        return Evidence.of(unary, lengths).checked(self._sizes_of("unary", self._table_length))

    def _each(self, evidence, function):
        """Return what a function returns for the sums of every chain."""
        chains = evidence.chains
        return [function(self._belief_propagation(len(chain), chain)) for chain in chains]

    def _together(self, evidence):
        """Yield places of chains, and sums that hold them all, as samples."""
        for places in together(evidence.chains, len(evidence.chains[0][0])):
            unary = unary_of([evidence.chains[i] for i in places])
            yield places, self._belief_propagation(len(unary), unary)

    def _sizes_of(self, name, fixed):
        """Return a function of the length of a chain that returns the numbers of states."""

        def sizes_of(length):
            if fixed not in (None, length):
                raise ValueError(
                    f"{name} must be of {fixed} variables, as unary or embeddings, got {length}."
                )
            return self._model.sizes(length)

        return sizes_of

    def _check_path(self, paths, fixed):
        return check_states("paths", paths, self._sizes_of("paths", fixed))

    def _groups(self, paths, unary=None, lengths=None):
        """Return paths by length, and the shape of one value for each.

        Returns
        -------
        groups : list of tuple
            Places, states of shape (n_paths, length), and their unary potentials, or None for those
            of the model.
        shape : tuple of int
            () for one path, otherwise (n_paths,).
        """
        shared = chains = fixed = None
        if unary is None:
            fixed = self._own_length
            paths = paths if lengths is None else split(paths, lengths, "paths")
        else:
            evidence = self._evidence(None, unary, lengths)
            if evidence.layout == "one":
                (shared,) = evidence.chains
                fixed = len(shared)
            else:
                chains, paths = evidence.chains, evidence.split_paths(paths)
        is_list = isinstance(paths, (list, tuple))
        is_apart = is_list and (lengths is not None or len(set(map(np.shape, paths))) > 1)
        if chains is None and (shared is not None or not is_apart):
            states = self._check_path(paths, fixed)
            rows = np.atleast_2d(states)
            return [(np.arange(len(rows)), rows, shared)], states.shape[:-1]
        checked = [np.atleast_2d(self._check_path(path, fixed)) for path in paths]
        paths = [path for rows in checked for path in rows]
        groups, n_states = [], 0 if chains is None else len(chains[0][0])
        for places in together(paths, n_states):
            unary = None if chains is None else unary_of([chains[i] for i in places])
            groups.append((places, np.stack([paths[i] for i in places]), unary))
        return groups, (len(paths),)

    # ---------------------------------------------------------------- sums over all paths

    def log_partition(
        self, length: int | None = None, *, unary: Array | None = None, lengths: Array | None = None
    ) -> float | np.ndarray:
        """Return the logarithm of the sum of the products of potentials over all paths.

        Parameters
        ----------
        length : int, default=None
            Number of variables; None takes it from the evidence or the embeddings.
        unary : array-like or list of array-like, default=None
            Evidence that replaces the constructor's: an array (length, n) for one chain, or a list
            of such arrays; with `lengths`, an array of concatenated chains.
        lengths : array-like of int, default=None
            Lengths of the concatenated chains.

        Returns
        -------
        float or ndarray
            One value per chain of the evidence.
        """
        if unary is not None or lengths is not None:
            evidence = self._evidence(length, unary, lengths)
            values = np.empty(len(evidence.chains))
            for places, propagation in self._together(evidence):
                values[places] = propagation.log_partition
            return float(values[0]) if evidence.layout == "one" else values
        return self._log_partition(self._length(length))

    def _log_partition(self, length):
        if self._own_length is not None or length == 1:
            return self._belief_propagation(length).log_partition
        return self._model.pair(0, 1).log_paths(length)

    def log_prob(
        self, paths: Array, *, unary: Array | None = None, lengths: Array | None = None
    ) -> float | np.ndarray:
        """Return the log probability of paths.

        Parameters
        ----------
        paths : array-like of int of shape (length,) or (n_paths, length), or list of paths
            States; a list may hold paths of different lengths. Masked entries of a
            `numpy.ma.MaskedArray` are unknown and are summed out.
        unary : array-like or list of array-like, default=None
            Evidence that replaces the constructor's: an array (length, n) for all paths, or a list
            of such arrays, one per path.
        lengths : array-like of int, default=None
            Lengths of the paths. These are then concatenated in an array of shape (n_samples,), and
            their evidence, if given, in one of shape (n_samples, n).

        Returns
        -------
        float or ndarray of shape (n_paths,)
            Normalised log probabilities under the approximate potentials.

        Examples
        --------
        >>> import numpy as np
        >>> from skrf.graphical import ChainMRF
        >>> rng = np.random.default_rng(0)
        >>> chain = ChainMRF(rng.normal(size=(50, 4)) / 2)
        >>> evidence, lengths = rng.normal(size=(9, 50)), [6, 3]
        >>> logs, states = chain.decode(unary=evidence, lengths=lengths)
        >>> bool(np.allclose(chain.log_prob(states, unary=evidence, lengths=lengths), logs))
        True
        """
        groups, shape = self._groups(paths, unary, lengths)
        logs = np.empty(shape or (1,))
        for places, states, unaries in groups:
            logs[places] = self._belief_propagation(states.shape[1], unaries).log_prob(states)
        return logs if shape else float(logs[0])

    def report(
        self, length: int | None = None, *, unary: Array | None = None, n_products: int = 9
    ) -> ErrorReport:
        """Estimate and bound the error of `log_partition` relative to the exact kernel.

        A product with the exact matrix costs O(n^2 d) and is computed in blocks of rows. Each
        product lengthens the windows of positions over which sums are exact; the rest is
        extrapolated. With length - 1 products or more, everything is exact and the bounds meet.
        With evidence, a product has one column per position. With separate embeddings per position,
        exact sums over some of the states of each position replace the products, and the upper
        bound is crude.

        Parameters
        ----------
        length : int, default=None
            Number of variables; None takes it from the evidence or the embeddings.
        unary : array-like of shape (length, n), default=None
            Evidence of one chain, which replaces the constructor's.
        n_products : int, default=9
            Number of products.

        Returns
        -------
        ErrorReport
            The estimated ``error`` in nats, exact minus approximate, the estimate of the exact
            ``log_partition``, and its ``lower`` and ``upper`` bounds.

        Warns
        -----
        FeatureCollapseWarning
            If the bounds exclude the approximate log partition function by more than 0.1.

        Examples
        --------
        >>> import numpy as np
        >>> from skrf import AdaptiveRF
        >>> from skrf.graphical import ChainMRF
        >>> embeddings = np.random.default_rng(0).normal(size=(50, 4)) / 4
        >>> chain = ChainMRF(embeddings, feature_map=AdaptiveRF(256), random_state=0)
        >>> report = chain.report(20)
        >>> abs(report.error) < 0.1 and report.lower <= report.log_partition <= report.upper
        True
        """
        check_integer("n_products", n_products)
        if unary is not None:
            evidence = self._evidence(length, unary, None)
            if evidence.layout != "one":
                raise ValueError("unary must be the evidence of one chain in a report.")
            (unary,) = evidence.chains
            length = len(unary)
            log_partition = self._belief_propagation(length, unary).log_partition
        else:
            length = self._length(length)
            log_partition = self._log_partition(length)
            if self._evidence_given is not None:
                unary = self._unary_of(self._model.sizes(length))
        tables, sigma = self._model.tables, self._model.maps.sigma
        left = [sigma * X for X in tables["embeddings"]]
        right = [sigma * X for X in tables.get("later", tables["embeddings"])]
        sides = (left[0], right[0]) if len(left) == 1 else (left[:-1], right[1:])
        bounds = estimate(*sides, length, unary=unary, n_products=n_products)
        return reported(log_partition, bounds)

    # ---------------------------------------------------------------- marginals and samples

    def marginals(
        self, length: int | None = None, *, unary: Array | None = None, lengths: Array | None = None
    ) -> np.ndarray | list[np.ndarray]:
        """Return the distribution of every variable.

        Parameters
        ----------
        length : int, default=None
            Number of variables; None takes it from the evidence or the embeddings.
        unary : array-like or list of array-like, default=None
            Evidence that replaces the constructor's: an array (length, n) for one chain, or a list
            of such arrays; with `lengths`, an array of concatenated chains.
        lengths : array-like of int, default=None
            Lengths of the concatenated chains.

        Returns
        -------
        ndarray of shape (length, n), or list of ndarray of shape (n_t,)
            Distributions, which sum to 1, in the layout of the evidence.
        """
        evidence = self._evidence(length, unary, lengths)
        groups = self._together(evidence)
        return evidence.arranged(_by_chain((places, of.marginals()) for places, of in groups))

    def edge_marginals(
        self,
        length: int | None = None,
        position: int = 0,
        *,
        unary: Array | None = None,
        lengths: Array | None = None,
    ) -> np.ndarray | list[np.ndarray]:
        """Return the joint distribution of two neighbours, in time quadratic in the states.

        Parameters
        ----------
        length : int, default=None
            Number of variables; None takes it from the evidence or the embeddings.
        position : int, default=0
            The earlier of the two variables, 0 to length - 2.
        unary : array-like or list of array-like, default=None
            Evidence that replaces the constructor's: an array (length, n) for one chain, or a list
            of such arrays; with `lengths`, an array of concatenated chains.
        lengths : array-like of int, default=None
            Lengths of the concatenated chains.

        Returns
        -------
        ndarray of shape (n, n), or list of them
            Joint distribution, which sums to 1; one per chain of the evidence.
        """
        evidence = self._evidence(length, unary, lengths, 2)
        last = min(map(len, evidence.chains)) - 2
        if last < 0:
            raise ValueError("unary must have two variables or more for edge_marginals.")
        if check_integer("position", position, 0) > last:
            raise ValueError(f"position must lie in 0 to {last}, got {position!r}.")
        joint = self._each(evidence, lambda propagation: propagation.edge_marginals(position + 1))
        return joint[0] if evidence.layout == "one" else joint

    def decode(
        self, length: int | None = None, *, unary: Array | None = None, lengths: Array | None = None
    ) -> tuple[float | np.ndarray, np.ndarray | list[np.ndarray]]:
        """Return the most probable path.

        The maximum does not factor through features, so this takes time quadratic in the number of
        states; it works in blocks of rows.

        Parameters
        ----------
        length : int, default=None
            Number of variables; None takes it from the evidence or the embeddings.
        unary : array-like or list of array-like, default=None
            Evidence that replaces the constructor's: an array (length, n) for one chain, or a list
            of such arrays; with `lengths`, an array of concatenated chains.
        lengths : array-like of int, default=None
            Lengths of the concatenated chains.

        Returns
        -------
        log_prob : float or ndarray of shape (n_chains,)
            Its log probability.
        path : ndarray of int of shape (length,)
            States, in the layout of the evidence.
        """
        evidence = self._evidence(length, unary, lengths)
        logs, paths = zip(*self._each(evidence, BeliefPropagation.decode), strict=True)
        value = logs[0] if evidence.layout == "one" else np.array(logs)
        return value, evidence.arranged(list(paths))

    def sample(
        self,
        length: int | None = None,
        n: int = 1,
        *,
        unary: Array | None = None,
        lengths: Array | None = None,
        random_state: RandomState = None,
    ) -> np.ndarray | list[np.ndarray]:
        """Draw paths exactly from the model with the approximate potentials.

        Parameters
        ----------
        length : int, default=None
            Number of variables; None takes it from the evidence or the embeddings.
        n : int, default=1
            Number of paths per chain of the evidence.
        unary : array-like or list of array-like, default=None
            Evidence that replaces the constructor's: an array (length, n) for one chain, or a list
            of such arrays; with `lengths`, an array of concatenated chains.
        lengths : array-like of int, default=None
            Lengths of the concatenated chains.
        random_state : int, RandomState instance or None, default=None
            Source of the draws.

        Returns
        -------
        ndarray of int of shape (n, length)
            States, in the layout of the evidence.
        """
        evidence, rng = self._evidence(length, unary, lengths), as_generator(random_state)
        check_draws(n, sum(map(len, evidence.chains)))
        paths = self._each(evidence, lambda propagation: propagation.sample(n, rng))
        return evidence.arranged(paths, axis=1)

    # ---------------------------------------------------------------- learning

    def log_partition_gradient(
        self, length: int | None = None, *, unary: Array | None = None, lengths: Array | None = None
    ) -> dict[str, Any]:
        """Return the gradient of `log_partition` with the feature map as fitted.

        If the map learns from the embeddings, a model with other embeddings has another map. To
        compare the two, hold the map fixed: ``feature_map=FrozenEstimator(model.feature_map_)``.

        Parameters
        ----------
        length : int, default=None
            Number of variables; None takes it from the evidence or the embeddings.
        unary : array-like or list of array-like, default=None
            Evidence that replaces the constructor's: an array (length, n) for one chain, or a list
            of such arrays; with `lengths`, an array of concatenated chains.
        lengths : array-like of int, default=None
            Lengths of the concatenated chains.

        Returns
        -------
        dict of str to ndarray or list of ndarray
            Gradients with respect to ``"embeddings"``, ``"later"`` (if given) and ``"unary"``, in
            the shapes of these parameters; those of embeddings are summed over the chains of the
            evidence.
        """
        evidence = self._evidence(length, unary, lengths)
        total, by_unary = self._model.gradients({}), []
        for places, propagation in self._together(evidence):
            of_states, of_pairs = propagation.expected_counts()
            total = added(total, self._model.gradients(of_pairs))
            by_unary.append((places, of_states))
        return shaped(total) | {"unary": evidence.arranged(_by_chain(by_unary))}

    def log_prob_gradient(
        self, paths: Array, *, unary: Array | None = None, lengths: Array | None = None
    ) -> dict[str, Any]:
        """Return the gradient of the sum of `log_prob` over paths, with the map as fitted.

        Parameters
        ----------
        paths : array-like of int of shape (length,) or (n_paths, length), or list of paths
            States, as in `log_prob`. All paths must have the same length, unless each has its own
            evidence.
        unary : array-like or list of array-like, default=None
            Evidence that replaces the constructor's, as in `log_prob`.
        lengths : array-like of int, default=None
            Lengths of the paths, as in `log_prob`.

        Returns
        -------
        dict of str to ndarray or list of ndarray
            As in `log_partition_gradient`.
        """
        groups, _ = self._groups(paths, unary, lengths)
        _, gradients, by_group = self._log_likelihood([group[1:] for group in groups])
        if groups[0][2] is None or groups[0][2][0].ndim == 1:
            if len(groups) > 1:
                raise ValueError(
                    "paths must have one length, or unary for each of them: a gradient has the "
                    "shape of the unaries."
                )
            return shaped(gradients) | {"unary": stacked(by_group[0])}
        ordered = _by_chain(zip((places for places, _, _ in groups), by_group, strict=True))
        layout = "list" if lengths is None else "stacked"
        return shaped(gradients) | {"unary": Evidence(ordered, layout).arranged(ordered)}

    def fit(
        self,
        paths: Array,
        *,
        unary: Array | None = None,
        lengths: Array | None = None,
        learn_unary: bool = False,
    ) -> Self:
        """Learn the embeddings from paths by maximum likelihood, with the map held fixed.

        L-BFGS maximises the exact likelihood of the low-rank model, starting from the given
        embeddings. A map that learns from them is fitted once, before the first step, so the
        objective does not change during the fit: afterwards, `log_prob` sums to its last value,
        ``history_[-1]``.

        Parameters
        ----------
        paths : array-like of int of shape (n_paths, length), or list of paths
            States; a list may hold paths of different lengths if the chain's length is not fixed.
            Masked entries of a `numpy.ma.MaskedArray` are unknown and are summed out.
        unary : array-like or list of array-like, default=None
            Evidence that replaces the constructor's, as in `log_prob`. It is used in this call
            only: pass the evidence of new chains to the other methods.
        lengths : array-like of int, default=None
            Lengths of the paths, as in `log_prob`.
        learn_unary : bool, default=False
            Whether to learn unary potentials too, one per position; forbidden states stay
            forbidden.

        Returns
        -------
        self : object
            The fitted model.

        Raises
        ------
        NotImplementedError
            For feature maps whose gradients are not known (discrete ones).

        Warns
        -----
        ConvergenceWarning
            If it did not converge: it reached `max_iter`, its line search failed, or a gradient
            was not finite.
        """
        groups, _ = self._draft()._groups(paths, unary, lengths)
        if learn_unary:
            if unary is not None:
                raise ValueError("learn_unary=True needs unary=None: evidence is not learned.")
            if len(groups) > 1:
                lengths_of_paths = sorted(states.shape[1] for _, states, _ in groups)
                raise ValueError(f"learn_unary needs paths of one length, got {lengths_of_paths}.")
        return self._fit([group[1:] for group in groups], learn_unary)

    def _log_likelihood(self, groups):
        is_free = self._own_length is None and all(unary is None for _, unary in groups)
        if not is_free or len(groups) == 1 or any((states == ANY).any() for states, _ in groups):
            return super()._log_likelihood(groups)
        return self._log_likelihood_of_lengths([states for states, _ in groups])

    def _log_likelihood_of_lengths(self, groups):
        """Return the log probability of paths of several lengths, without evidence, and gradients.

        A message that arrives from the left does not depend on the length, so one sweep serves
        all. On the way back, paths join where they end, each with the weight of its length.
        """
        pair, n_paths = self._model.pair(0, 1), np.zeros(1 + max(s.shape[1] for s in groups))
        for states in groups:
            n_paths[states.shape[1]] += len(states)
        n, last = pair.shape[0], len(n_paths) - 1
        arriving, ahead = [None, np.zeros(n)], [None]
        log_partitions = np.array([0.0, np.log(n), *np.zeros(last - 1)])
        for t in range(2, last + 1):
            message, features = pair.turned.sums(arriving[-1])
            arriving.append(message)
            ahead.append(features)
            log_partitions[t] = log_sum_exp(message)
        with np.errstate(divide="ignore"):
            log_ends = np.log(n_paths) - log_partitions
        edges, back = [], np.full(n, log_ends[last])
        for t in range(last - 1, 0, -1):
            message, features = pair.sums(back)
            edges.append((arriving[t], back, ahead[t], features))
            back = np.logaddexp(message, log_ends[t])
        left, right = (
            np.concatenate([s[:, at].ravel() for s in groups]) for at in (np.s_[:-1], np.s_[1:])
        )
        left, right, counts = distinct_pairs(left, right, n)
        log_prob = counts @ pair.values(left, right) - n_paths @ log_partitions
        of_pairs = pair.counts(left, right, counts)
        if edges:
            tops = np.array([edge[0].max() for edge in edges])[:, None]
            sides = [
                np.array(side) + sign * tops
                for side, sign in zip(zip(*edges, strict=True), (-1, 1, -1, 1), strict=True)
            ]
            expected = pair.expected(*sides, counts.sum())
            of_pairs = list(map(np.subtract, of_pairs, expected))
        return float(log_prob), self._model.gradients({pair: of_pairs}), []


def _by_chain(groups):
    """Return values by chain, those of a chain in one array if they fit.

    They come as places of chains of one length, and values of each variable for all of these.
    """
    by_place = {}
    for places, by_variable in groups:
        for place, *values in zip(places, *by_variable, strict=True):
            by_place[place] = stacked(values)
    return [by_place[place] for place in sorted(by_place)]
