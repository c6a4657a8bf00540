"""Chains of variables with potentials exp(x_t . y_{t+1}), with or without evidence."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Literal, Self

import numpy as np

from .._typing import Array, RandomState, Transformer
from .._validation import check_integer, draft_of, naming
from ._error import ErrorReport, estimate, reported
from ._model import FieldModel, check_states, stacked
from ._potentials import as_array, as_generator

_REPORTED = 50  # variables whose marginals a report compares, where the length is free


class ChainMRF(FieldModel):
    r"""A chain of variables with the potential exp(x_t . y_{t+1}) between neighbours.

    Every state has an embedding x as the earlier and y as the later of a pair. Without evidence and
    with one set of states for all variables, the chain has whatever length is passed to a method;
    otherwise its length is that of `unary` or of the sequence of embeddings. A message costs O(n D)
    with D features, and no n x n matrix is formed. With random features, all methods are exact for
    the model of the approximate potentials, so they agree with each other.

    Parameters
    ----------
    embeddings : array-like of shape (n, d) or (length, n, d), or sequence of arrays (n_t, d)
        Embeddings of the states, for all variables or one array per variable; the potential of a
        pair is the exponential of their product.
    later : array-like of shape (n, d) or (length, n, d), or sequence, default=None
        Embeddings of the states as the later of a pair; None means `embeddings`. Without them, and
        with one array for all variables, features are corrected so that no state's potential with
        itself is too large.
    unary : array-like of shape (length, n), or sequence of arrays (n_t,), default=None
        Evidence: log potentials of the states of every variable; -inf forbids a state. None is 0.
    feature_map : feature map, "exact" or None, default=None
        Positive features for the softmax kernel, or "exact", the kernel itself. None takes "exact"
        where that costs no more (up to 512 states), otherwise ``AdaptiveRF(256)``. A map is fitted
        to the given embeddings, and `fit` keeps it while they move. A FrozenEstimator stays as it
        was fitted, with its sigma: potentials are then those of sigma times the embeddings.
    max_iter : int, default=100
        Iterations of `fit`.
    tol : float, default=1e-6
        `fit` stops when the log likelihood gains less than this share of itself.
    verbose : int or bool, default=False
        Whether `fit` prints the log likelihood of every iteration.
    random_state : int, RandomState instance or None, default=None
        Source of the draw if the map has none.

    Attributes
    ----------
    feature_map_ : "exact" or feature map
        The kernel or map behind the potentials; available before `fit`.
    embeddings_, later_ : ndarray or list of ndarray
        After `fit`, the learned embeddings (`later_` if `later` was given); all methods then use
        them, with the current `unary`.
    unary_ : list of ndarray
        After ``fit(..., learn_unary=True)``, learned values that replace `unary`.
    history_ : list of float
        Log likelihood after every iteration of `fit`.
    converged_ : bool
        Whether `fit` stopped by `tol`; otherwise it warned about the reason.

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
        embeddings: Array | Sequence[Array],
        later: Array | Sequence[Array] | None = None,
        *,
        unary: Array | Sequence[Array] | None = None,
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

    _given = property(attrgetter("embeddings", "later", "feature_map", "random_state"))
    _n_variables = None

    def _edges(self, n_tables):
        return [(t, t + 1) for t in range(n_tables - 1)]

    @property
    def _own_length(self):
        """The length that evidence or embeddings fix, or None."""
        unary, of = getattr(self, "unary_", self.unary), self._model.tables["embeddings"]
        if unary is None:
            return len(of) if len(of) > 1 else None
        with naming("unary"):
            if len(unary) == 0:
                raise ValueError("unary must hold the log potentials of at least one variable.")
            return len(unary)

    def _length(self, length, least=1):
        """Return the number of variables requested from a method."""
        fitted_length = self._own_length
        if fitted_length is None and length is None:
            raise ValueError(
                f"length must be an integer >= {least}, because neither unary=None nor one array "
                "of embeddings for all variables says how many there are; got length=None."
            )
        length = check_integer("length", fitted_length if length is None else length, least)
        if fitted_length not in (None, length):
            raise ValueError(
                f"length must be {fitted_length}, as unary or embeddings have it, or None; "
                f"got {length!r}."
            )
        return length

    def _belief_propagation(self, length):
        model = self._model
        unary = self._unary_of(model.sizes(length))
        return model.field({t: t - 1 for t in range(1, length)}, unary)

    def _check_paths(self, paths):
        """Return an array of paths, or a list of paths of different lengths."""
        if isinstance(paths, (list, tuple)) and len({np.shape(path) for path in paths}) > 1:
            return [self._check_paths(path) for path in paths]

        def sizes_of(length):
            if self._own_length not in (None, length):
                raise ValueError(
                    f"paths must have {self._own_length} states, as unary or embeddings have it, "
                    f"got {length}."
                )
            return self._model.sizes(length)

        return check_states("paths", paths, sizes_of)

    # ---------------------------------------------------------------- sums over all paths

    def log_partition(self, length: int | Array | None = None) -> float | np.ndarray:
        """Return the logarithm of the sum of the products of potentials over all paths.

        Parameters
        ----------
        length : int or array-like of int, default=None
            Number of variables, or several of them at once. None means that of the evidence or of
            the embeddings.

        Returns
        -------
        float or ndarray
            One value per length.
        """
        lengths = as_array("length", self._length(None) if length is None else length)
        if lengths.size == 0:
            raise ValueError(f"length must hold integers >= 1, got {length!r}.")
        wanted = [self._length(n) for n in lengths.ravel().tolist()]
        known = {n: self._log_partition(n) for n in set(wanted)}
        values = np.array([known[n] for n in wanted], dtype=np.float64).reshape(lengths.shape)
        return values if lengths.ndim else float(values)

    def _log_partition(self, length):
        if self._own_length is not None or length == 1:
            return self._belief_propagation(length).log_partition
        return self._model.pair(0, 1).log_paths(length)

    def log_prob(self, paths: Array | Sequence[Array]) -> float | np.ndarray:
        """Return the log probability of paths.

        Parameters
        ----------
        paths : array-like of int of shape (length,) or (n_paths, length), or list of paths
            States; a list may hold paths of different lengths.

        Returns
        -------
        float or ndarray of shape (n_paths,)
            Normalised log probabilities under the approximate potentials.
        """
        paths = self._check_paths(paths)
        if isinstance(paths, list):
            return np.array([self.log_prob(path) for path in paths])
        return self._belief_propagation(paths.shape[-1]).log_prob(paths)

    def report(self, length: int | None = None, *, n_products: int = 9) -> ErrorReport:
        """Estimate and bound the difference of log_partition from that of the exact kernel.

        A product with the exact matrix costs O(n^2 d) and is computed in blocks of rows. Each
        product lengthens the windows of positions over which sums are exact; the rest is
        extrapolated. With length - 1 products or more everything is exact, and the bounds meet.
        With evidence a product has one column per position. With embeddings per position, exact
        sums over some of the states of each position replace it, and the upper bound is crude. The
        error of marginals is estimated from two other draws, for at most 50 variables where the
        length is free.

        Parameters
        ----------
        length : int, default=None
            Number of variables; None means that of the evidence or of the embeddings.
        n_products : int, default=9
            Number of products.

        Returns
        -------
        ErrorReport
            The estimated ``error`` in nats, exact minus approximate, the estimate of the exact
            ``log_partition``, its ``lower`` and ``upper`` bounds, the ``marginal_error``, and
            ``trapped`` states.

        Warns
        -----
        FeatureCollapseWarning
            If the bounds exclude the approximate log partition function by more than 0.1, or the
            error of marginals is above .15.

        Examples
        --------
        >>> import numpy as np
        >>> from skrf import AdaptiveRF
        >>> from skrf.graphical import ChainMRF
        >>> embeddings = np.random.default_rng(0).normal(size=(50, 4)) / 4
        >>> chain = ChainMRF(embeddings, feature_map=AdaptiveRF(64), random_state=0)
        >>> report = chain.report(20)
        >>> abs(report.error) < 0.1 and report.lower <= report.log_partition <= report.upper
        True
        """
        length, n_products = self._length(length), check_integer("n_products", n_products)
        tables, sigma = self._model.tables, self._model.maps.sigma
        left = [sigma * X for X in tables["embeddings"]]
        right = [sigma * X for X in tables.get("later", tables["embeddings"])]
        sides = (left[0], right[0]) if len(left) == 1 else (left[:-1], right[1:])
        unary = None
        if getattr(self, "unary_", self.unary) is not None:
            unary = self._unary_of(self._model.sizes(length))
        bounds = estimate(*sides, length, unary=unary, n_products=n_products)
        size = length if self._own_length is not None else min(length, _REPORTED)
        others = self._of_other_draws(lambda model: model.marginals(size))
        return reported(self._log_partition(length), bounds, self.marginals(size), others)

    # ---------------------------------------------------------------- marginals and samples

    def marginals(self, length: int | None = None) -> np.ndarray | list[np.ndarray]:
        """Return the distribution of every variable.

        Parameters
        ----------
        length : int, default=None
            Number of variables; None means that of the evidence or of the embeddings.

        Returns
        -------
        ndarray of shape (length, n), or list of ndarray of shape (n_t,)
            Distributions, which sum to 1.
        """
        return stacked(self._belief_propagation(self._length(length)).marginals())

    def edge_marginals(self, length: int | None = None, position: int = 0) -> np.ndarray:
        """Return the joint distribution of two neighbours; quadratic in the states.

        Parameters
        ----------
        length : int, default=None
            Number of variables; None means that of the evidence or of the embeddings.
        position : int, default=0
            The earlier of the two variables, 0 to length - 2.

        Returns
        -------
        ndarray of shape (n, n)
            Joint distribution, which sums to 1.
        """
        length = self._length(length, 2)
        if check_integer("position", position, 0) > length - 2:
            raise ValueError(f"position must lie in 0 to {length - 2}, got {position!r}.")
        return self._belief_propagation(length).edge_marginals(position + 1)

    def decode(self, length: int | None = None) -> tuple[float, np.ndarray]:
        """Return the most probable path.

        The maximum does not factor through features: this is quadratic in the states, in blocks of
        rows.

        Parameters
        ----------
        length : int, default=None
            Number of variables; None means that of the evidence or of the embeddings.

        Returns
        -------
        log_prob : float
            Its log probability.
        path : ndarray of int of shape (length,)
            States.
        """
        return self._belief_propagation(self._length(length)).decode()

    def max_marginals(self, length: int | None = None) -> np.ndarray | list[np.ndarray]:
        """Return, for every state, the log probability of the best path through it.

        Quadratic in the states, like `decode`.

        Parameters
        ----------
        length : int, default=None
            Number of variables; None means that of the evidence or of the embeddings.

        Returns
        -------
        ndarray of shape (length, n), or list of ndarray of shape (n_t,)
            The largest entry of every row is that of `decode`.
        """
        return stacked(self._belief_propagation(self._length(length)).max_marginals())

    def sample(
        self, length: int | None = None, n: int = 1, *, random_state: RandomState = None
    ) -> np.ndarray:
        """Draw paths, exactly from the model of the approximate potentials.

        Parameters
        ----------
        length : int, default=None
            Number of variables; None means that of the evidence or of the embeddings.
        n : int, default=1
            Number of paths.
        random_state : int, RandomState instance or None, default=None
            Source of the draws.

        Returns
        -------
        ndarray of int of shape (n, length)
            States.
        """
        return self._belief_propagation(self._length(length)).sample(n, as_generator(random_state))

    # ---------------------------------------------------------------- learning

    def log_partition_gradient(self, length: int | None = None) -> dict[str, Any]:
        """Return the gradient of `log_partition` with the feature map as fitted.

        Other embeddings in the parameter would have another map, if it learns from them. To
        compare, hold it: ``feature_map=FrozenEstimator(model.feature_map_)``.

        Parameters
        ----------
        length : int, default=None
            Number of variables; None means that of the evidence or of the embeddings.

        Returns
        -------
        dict of str to ndarray or list of ndarray
            With respect to ``"embeddings"``, ``"later"`` (if given) and ``"unary"``, in their
            shapes.
        """
        return self._log_partition_gradient(self._belief_propagation(self._length(length)))

    def log_prob_gradient(self, paths: Array | Sequence[Array]) -> dict[str, Any]:
        """Return the gradient of the sum of `log_prob` over paths, with the map as fitted.

        Parameters
        ----------
        paths : array-like of int of shape (length,) or (n_paths, length)
            States.

        Returns
        -------
        dict of str to ndarray or list of ndarray
            As in `log_partition_gradient`.
        """
        paths = self._check_paths(paths)
        if isinstance(paths, list):
            raise ValueError("paths must have one length: a gradient has the shape of the unaries.")
        return self._log_prob_gradient(paths)

    def fit(self, paths: Array | Sequence[Array], *, learn_unary: bool = False) -> Self:
        """Learn the embeddings from paths by maximum likelihood, with the map as it is.

        L-BFGS climbs the exact likelihood of the low-rank model from the given embeddings. A map
        that learns from them is fitted once, before the first step, so the objective does not
        change on the way: `log_prob` afterwards adds up to its last value, ``history_[-1]``.

        Parameters
        ----------
        paths : array-like of int of shape (n_paths, length), or list of paths
            States; a list may hold paths of different lengths if the chain's length is not fixed.
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
        paths = draft_of(self)._check_paths(paths)
        by_length = {}
        for path in paths if isinstance(paths, list) else [paths]:
            by_length.setdefault(path.shape[-1], []).append(np.atleast_2d(path))
        if learn_unary and len(by_length) > 1:
            raise ValueError(f"learn_unary needs paths of one length, got {sorted(by_length)}.")
        return self._fit([np.vstack(parts) for parts in by_length.values()], learn_unary)
