"""Trees and forests of variables with their own embeddings, potentials and numbers of states."""

from operator import attrgetter
from typing import Any, Literal, Self

import numpy as np

from .._memory import check_fits
from .._typing import Array, RandomState, Transformer
from .._validation import as_generator, check_integer, naming
from ._error import ErrorReport, estimate_tree, reported
from ._evidence import check_states, count_variables
from ._model import FieldModel, shaped, stacked
from ._potentials import as_array


class TreeMRF(FieldModel):
    """A tree or forest of variables with the potential exp(x_i . y_j) on every edge (i, j).

    A message costs O(n D) for a variable with n states and D features; with the exact kernel it
    costs O(n^2). With random features, all methods are exact for the model with the approximate
    potentials, so they agree with each other.

    Parameters
    ----------
    edges : array-like of int of shape (n_edges, 2)
        Pairs of variables, without a cycle. Variables are numbered from 0 to the largest number
        here, or there are as many as arrays in `embeddings` or `unary`. A variable without an edge
        is a tree of its own.
    embeddings : array-like of shape (n, d), or sequence of such arrays
        Embeddings x of the states: one array for all variables, or one per variable with the same
        width.
    unary : sequence of array-like of shape (n_i,), default=None
        Log potentials of the states of every variable; -inf forbids a state. None means 0 for all
        states.
    later : array-like of shape (n, d), or sequence of such arrays, default=None
        Embeddings y of the states of the second variable of an edge; None means `embeddings`. With
        None and one array for all variables, features are corrected as in `ChainMRF`.
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
        them.
    unary_ : list of ndarray
        After ``fit(..., learn_unary=True)``, the learned values, which replace `unary`.
    history_ : list of float
        Log likelihood after every iteration of `fit`.
    converged_ : bool
        Whether `fit` stopped because of `tol`; otherwise a warning gave the reason.

    Raises
    ------
    ValueError
        By every method, if edges have a cycle or name unknown variables, or if shapes do not match.

    See Also
    --------
    ChainMRF : Chains, which may be of any length.
    KernelHMM : Hidden states with observed symbols.

    References
    ----------
    Random Fourier features for scaling Markov random fields (2020), section 4.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.graphical import TreeMRF
    >>> embeddings = np.random.default_rng(0).normal(size=(30, 4)) / 2
    >>> tree = TreeMRF([(0, 1), (0, 2), (2, 3)], embeddings)
    >>> tree.feature_map_
    'exact'
    >>> [marginal.shape for marginal in tree.marginals()]
    [(30,), (30,), (30,), (30,)]
    """

    def __init__(
        self,
        edges: Array,
        embeddings: Array,
        unary: Array | None = None,
        *,
        later: Array | None = None,
        feature_map: Transformer | Literal["exact"] | None = None,
        max_iter: int = 100,
        tol: float = 1e-6,
        verbose: int = False,
        random_state: RandomState = None,
    ) -> None:
        self.edges = edges
        self.embeddings = embeddings
        self.unary = unary
        self.later = later
        self.feature_map = feature_map
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state

    # ---------------------------------------------------------------- the model

    _arrays = "edges", "embeddings", "later"
    _settings = property(attrgetter("feature_map", "random_state"))

    @property
    def _is_single(self):
        with naming("embeddings"):
            is_one = len(self._own("embeddings")) == 1
        return is_one and len(_checked(self._own("edges"))) == 0

    def _edges(self, n_tables):
        return _checked(self._own("edges"), n_tables if n_tables > 1 else None).tolist()

    @property
    def _size(self):
        """Number of variables."""
        tables, unary = self._model.tables["embeddings"], self._evidence_given
        if len(tables) > 1:
            return len(tables)
        if unary is not None:
            return count_variables(unary)
        n_variables = int(_checked(self._own("edges")).max(initial=0)) + 1
        check_fits(100 * n_variables, f"edges of {n_variables} variables", "messages")
        return n_variables

    def _belief_propagation(self, _=None, unary=None):
        model, n_variables = self._model, self._size
        edges = _checked(self._own("edges"), n_variables).tolist()
        parents = _rooted(edges, n_variables)
        unary = self._unary_of(model.sizes(n_variables)) if unary is None else unary
        return model.belief_propagation(parents, unary, set(map(tuple, edges)))

    def _check_states(self, assignments):
        sizes = [len(values) for values in self._belief_propagation().unary]

        def sizes_of(n_variables):
            if n_variables != len(sizes):
                raise ValueError(
                    f"assignments must give a state to each of {len(sizes)} variables, got "
                    f"{n_variables}."
                )
            return sizes

        return check_states("assignments", assignments, sizes_of)

    # ---------------------------------------------------------------- public

    def log_partition(self) -> float:
        """Return the logarithm of the sum over all assignments.

        Returns
        -------
        float
            The log partition function.
        """
        return self._belief_propagation().log_partition

    def log_prob(self, assignments: Array) -> float | np.ndarray:
        """Return the log probability of assignments.

        Parameters
        ----------
        assignments : array-like of int of shape (n_variables,) or (n, n_variables)
            A state per variable. Masked entries of a `numpy.ma.MaskedArray` are unknown and are
            summed out.

        Returns
        -------
        float or ndarray of shape (n,)
            Normalised log probabilities under the approximate potentials.
        """
        return self._belief_propagation().log_prob(self._check_states(assignments))

    def marginals(self) -> list[np.ndarray]:
        """Return the distribution of every variable.

        Returns
        -------
        list of ndarray of shape (n_i,)
            Distributions, which sum to 1.
        """
        return self._belief_propagation().marginals()

    def edge_marginals(self, i: int, j: int) -> np.ndarray:
        """Return the joint distribution of two neighbours, in time quadratic in the states.

        Parameters
        ----------
        i, j : int
            Two variables connected by an edge.

        Returns
        -------
        ndarray of shape (n_i, n_j)
            Joint distribution, which sums to 1.
        """
        propagation = self._belief_propagation()
        last = len(propagation.unary) - 1
        for name, value in (("i", i), ("j", j)):
            if check_integer(name, value, 0) > last:
                raise ValueError(f"{name} must lie in 0 to {last}, got {value!r}.")
        for child, parent in ((j, i), (i, j)):
            if propagation.parents.get(child, -1) == parent:
                joint = propagation.edge_marginals(child)
                return joint if parent == i else joint.T
        raise ValueError(f"i and j must have an edge; there is no edge between {i!r} and {j!r}.")

    def decode(self) -> tuple[float, np.ndarray]:
        """Return the most probable assignment.

        The maximum does not factor through features, so this takes time quadratic in the number of
        states; it works in blocks of rows.

        Returns
        -------
        log_prob : float
            Its log probability.
        states : ndarray of int of shape (n_variables,)
            A state per variable.
        """
        return self._belief_propagation().decode()

    def sample(self, n: int = 1, *, random_state: RandomState = None) -> np.ndarray:
        """Draw assignments exactly from the model with the approximate potentials.

        Parameters
        ----------
        n : int, default=1
            Number of assignments.
        random_state : int, RandomState instance or None, default=None
            Source of the draws.

        Returns
        -------
        ndarray of int of shape (n, n_variables)
            States.
        """
        return self._belief_propagation().sample(n, as_generator(random_state))

    def report(self, *, n_products: int = 9) -> ErrorReport:
        """Estimate and bound the error of `log_partition` relative to the exact kernel.

        The error is estimated from exact sums over some of the states of every variable, in time
        quadratic in their number.

        Parameters
        ----------
        n_products : int, default=9
            Sets how many pairs of states are used: as many as this number of edges have in total.

        Returns
        -------
        ErrorReport
            As returned by `ChainMRF.report`; the upper bound is crude unless all states are used.

        Warns
        -----
        FeatureCollapseWarning
            If the bounds exclude the approximate log partition function by more than 0.1.

        Examples
        --------
        >>> import numpy as np
        >>> from skrf import AdaptiveRF
        >>> from skrf.graphical import TreeMRF
        >>> embeddings = np.random.default_rng(0).normal(size=(50, 4)) / 4
        >>> edges = [(0, 1), (0, 2), (2, 3)]
        >>> tree = TreeMRF(edges, embeddings, feature_map=AdaptiveRF(64), random_state=0)
        >>> report = tree.report()
        >>> abs(report.error) < 0.1 and report.lower <= report.log_partition <= report.upper
        True
        """
        check_integer("n_products", n_products)
        model, propagation, sides = self._model, self._belief_propagation(), {}
        unary, parents = propagation.unary, propagation.parents
        edges = set(map(tuple, self._edges(self._size)))
        for child, parent in parents.items():
            is_up = (child, parent) in edges
            slots = model.slots(*((child, parent) if is_up else (parent, child)))
            embeddings = [model.maps.sigma * model.tables[side][at] for side, at in slots]
            sides[child] = tuple(embeddings[::-1] if is_up else embeddings)
        return reported(propagation.log_partition, estimate_tree(parents, sides, unary, n_products))

    # ---------------------------------------------------------------- learning

    def log_partition_gradient(self) -> dict[str, Any]:
        """Return the gradient of `log_partition` with the feature map as fitted.

        If the map learns from the embeddings, a model with other embeddings has another map. To
        compare the two, hold the map fixed: ``feature_map=FrozenEstimator(model.feature_map_)``.

        Returns
        -------
        dict of str to ndarray or list of ndarray
            Gradients with respect to ``"embeddings"``, ``"later"`` (if given) and ``"unary"``, in
            the shapes of these parameters.
        """
        of_states, of_pairs = self._belief_propagation().expected_counts()
        return shaped(self._model.gradients(of_pairs)) | {"unary": stacked(of_states)}

    def log_prob_gradient(self, assignments: Array) -> dict[str, Any]:
        """Return the gradient of the sum of `log_prob` over assignments, with the map as fitted.

        Parameters
        ----------
        assignments : array-like of int of shape (n_variables,) or (n, n_variables)
            A state per variable.

        Returns
        -------
        dict of str to ndarray or list of ndarray
            As in `log_partition_gradient`.
        """
        states = np.atleast_2d(self._check_states(assignments))
        _, gradients, (of_states,) = self._log_likelihood([(states, None)])
        return shaped(gradients) | {"unary": stacked(of_states)}

    def fit(self, assignments: Array, *, learn_unary: bool = False) -> Self:
        """Learn the embeddings from assignments by maximum likelihood, with the map held fixed.

        L-BFGS maximises the exact likelihood of the low-rank model, starting from the given
        embeddings. A map that learns from them is fitted once, before the first step, so the
        objective does not change during the fit: afterwards, `log_prob` sums to its last value,
        ``history_[-1]``.

        Parameters
        ----------
        assignments : array-like of int of shape (n, n_variables)
            A state per variable.
        learn_unary : bool, default=False
            Whether to learn unary potentials too; forbidden states stay forbidden.

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
        states = np.atleast_2d(self._draft()._check_states(assignments))
        return self._fit([(states, None)], learn_unary)


def _checked(edges, n_variables=None):
    """Return edges as an array of pairs of known variables."""
    edges = as_array("edges", edges)
    edges = edges.reshape(0, 2).astype(int) if edges.size == 0 else edges
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
        raise ValueError(
            f"edges must be integers of shape (n_edges, 2), got shape {edges.shape} and dtype "
            f"{edges.dtype}."
        )
    end = np.inf if n_variables is None else n_variables
    if edges.size and (edges.min() < 0 or edges.max() >= end):
        known = "0" if n_variables is None else f"0 to {n_variables - 1}, of embeddings or unary"
        raise ValueError(
            f"edges must name variables from {known}; got {edges.min()} to {edges.max()}."
        )
    return edges


def _rooted(edges, n_variables):
    """Return the parent of every variable except the first of each tree, ordered from these."""
    neighbours = [[] for _ in range(n_variables)]
    for i, j in edges:
        neighbours[i].append(j)
        neighbours[j].append(i)
    parents = {}
    for root in range(n_variables):
        order = [] if root in parents else [root]
        parents.setdefault(root)
        for i in order:
            for j in neighbours[i]:
                if j != parents[i]:
                    if j in parents:
                        raise ValueError(f"edges has a cycle through variables {i} and {j}.")
                    parents[j] = i
                    order.append(j)
    return {i: parent for i, parent in parents.items() if parent is not None}
