"""Trees of variables, each with its own embeddings, unary potentials and number of states."""

import numpy as np
from sklearn.base import BaseEstimator

from .._sums import log_columns, log_sum_exp
from .._validation import check_integer, naming, remembered
from ._potentials import (
    as_array,
    as_generator,
    check_embeddings,
    draw_rows,
    factors,
    fitted_maps,
)


class TreeMRF(BaseEstimator):
    """A tree of variables with the potential exp(x_i . x_j) on every edge.

    A message costs O(n D) for a variable with n states and D features, where the exact one costs
    n^2. With random features this is the model of the approximate potentials, exactly: all
    methods agree with each other.

    Parameters
    ----------
    edges : array-like of int of shape (n_variables - 1, 2)
        Pairs of variables, which must form one tree.
    embeddings : array-like of shape (n, d), or sequence of such arrays
        Embeddings of the states: one array for all variables, or one a variable, of one width.
    unary : sequence of array-like of shape (n_i,), default=None
        Log potentials of the states of every variable; -inf forbids a state. None is 0.
    feature_map : mechanism, "exact" or None, default=None
        Positive features for the softmax kernel, or "exact", the kernel itself. None takes "exact"
        where that is no dearer (up to 512 states), else ``AdaptiveRF(256)``.
    random_state : int, RandomState instance or None, default=None
        Source of the draw, where the map has none.

    Raises
    ------
    ValueError
        By every method, where the edges are not a tree (cycles, parts that are not connected,
        unknown variables) or shapes do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.graphical import TreeMRF
    >>> embeddings = np.random.default_rng(0).normal(size=(30, 4)) / 2
    >>> tree = TreeMRF([(0, 1), (0, 2), (2, 3)], embeddings, feature_map="exact")
    >>> [marginal.shape for marginal in tree.marginals()]
    [(30,), (30,), (30,), (30,)]
    """

    def __init__(self, edges, embeddings, unary=None, *, feature_map=None, random_state=None):
        self.edges = edges
        self.embeddings = embeddings
        self.unary = unary
        self.feature_map = feature_map
        self.random_state = random_state

    # ---------------------------------------------------------------- the model

    @property
    def _model(self):
        """Order from the root, parents, unary potentials and factors (parent left)."""
        given = (self.edges, self.embeddings, self.unary, self.feature_map, self.random_state)

        def make():
            order, parents = _rooted(self.edges)
            tables = self._check_embeddings(len(order))
            unary = self._check_unary(tables)
            # Pairs of tables that differ: many edges may share one.
            keys = {i: (id(tables[parents[i]]), id(tables[i])) for i in order[1:]}
            sides = {keys[i]: (tables[parents[i]], tables[i]) for i in order[1:]}
            left = np.vstack([parent for parent, _ in sides.values()] or tables)
            right = left
            if any(parent is not child for parent, child in sides.values()):
                right = np.vstack([child for _, child in sides.values()])
            maps = fitted_maps(self.feature_map, left, right, self.random_state)
            shared = {key: factors(maps, *tables) for key, tables in sides.items()}
            return order, parents, unary, {i: shared[keys[i]] for i in order[1:]}

        return remembered(self, "_kept", given, make)

    def _check_embeddings(self, n_variables):
        given = self.embeddings
        if getattr(given, "ndim", 0) == 2:
            return [check_embeddings(given)] * n_variables
        with naming("embeddings"):
            given = list(given)
            is_one = bool(given) and np.ndim(given[0]) == 1
        if is_one:
            return [check_embeddings(given)] * n_variables
        if len(given) != n_variables:
            raise ValueError(
                f"embeddings has {len(given)} arrays; the edges name {n_variables} variables."
            )
        tables = []
        for i, part in enumerate(given):
            width = tables[0].shape[1] if tables else None
            tables.append(check_embeddings(part, f"embeddings[{i}]", width))
        return tables

    def _check_unary(self, tables):
        if self.unary is None:
            return [np.zeros(len(table)) for table in tables]
        with naming("unary"):
            given = list(self.unary)
        if len(given) != len(tables):
            raise ValueError(f"unary has {len(given)} entries; {len(tables)} are needed.")
        checked = []
        for i, (values, table) in enumerate(zip(given, tables, strict=True)):
            values = as_array(f"unary[{i}]", values, np.float64)
            if values.shape != (len(table),):
                raise ValueError(
                    f"unary[{i}] must have shape {(len(table),)}, one value a state, got "
                    f"{values.shape}."
                )
            if np.isnan(values).any() or (values == np.inf).any():
                raise ValueError(f"unary[{i}] must not hold NaN or +inf.")
            if not np.isfinite(values).any():
                raise ValueError(f"unary[{i}] forbids every state of variable {i}.")
            checked.append(values)
        return checked

    def _upward(self):
        """Return, for every variable, its log potential with all messages from below."""
        order, parents, unary, pairs = self._model
        beliefs = [values.copy() for values in unary]
        features = {}
        for i in reversed(order[1:]):
            features[i] = pairs[i].gather(beliefs[i])
            beliefs[parents[i]] += pairs[i].spread(features[i])
        return beliefs, features

    # ---------------------------------------------------------------- public

    def log_partition(self):
        """Return the logarithm of the sum over all assignments.

        Returns
        -------
        float
            The log partition function.
        """
        beliefs, _ = self._upward()
        return float(log_sum_exp(beliefs[self._model[0][0]]))

    def log_prob(self, assignments):
        """Return the log probability of assignments.

        Parameters
        ----------
        assignments : array-like of int of shape (n_variables,) or (n, n_variables)
            A state for every variable.

        Returns
        -------
        float or ndarray of shape (n,)
            Log probabilities under the approximate potentials, which are normalised.
        """
        order, parents, unary, pairs = self._model
        states = as_array("assignments", assignments)
        sizes = np.array([len(values) for values in unary])
        if states.dtype.kind not in "iu" or states.ndim not in (1, 2):
            raise ValueError(
                "assignments must be integers of shape (n_variables,) or (n, n_variables), got "
                f"shape {states.shape} and dtype {states.dtype}."
            )
        if states.shape[-1] != len(order) or (states < 0).any() or (states >= sizes).any():
            raise ValueError(
                f"assignments must give a state to each of {len(order)} variables, which have "
                f"{sizes.tolist()} states; got shape {states.shape}."
            )
        total = -self.log_partition() + sum(unary[i][states[..., i]] for i in range(len(order)))
        for i in order[1:]:
            total = total + pairs[i].values(states[..., parents[i]], states[..., i])
        return float(total) if states.ndim == 1 else total

    def marginals(self):
        """Return the distribution of every variable.

        Returns
        -------
        list of ndarray of shape (n_i,)
            Each sums to 1.
        """
        return [np.exp(logs - log_sum_exp(logs)) for logs in self._all_beliefs()[0]]

    def _all_beliefs(self):
        """Return full log beliefs, and for every variable what its parent tells its edge."""
        order, parents, _, pairs = self._model
        beliefs, features = self._upward()
        from_above = {}
        for i in order[1:]:
            # The parent's belief holds the message from i: take it out once.
            rest = beliefs[parents[i]] - pairs[i].spread(features[i])
            from_above[i] = rest
            down = log_columns(pairs[i].right.T, log_columns(pairs[i].left, rest))
            beliefs[i] = beliefs[i] + down
        return beliefs, from_above

    def edge_marginals(self, i, j):
        """Return the joint distribution of two neighbours; quadratic in the states.

        Parameters
        ----------
        i, j : int
            Two variables with an edge.

        Returns
        -------
        ndarray of shape (n_i, n_j)
            Sums to 1.
        """
        order, parents, _, pairs = self._model
        for name, value in (("i", i), ("j", j)):
            if check_integer(name, value, 0) >= len(order):
                raise ValueError(f"{name} must lie in 0 to {len(order) - 1}, got {value!r}.")
        for child, parent in ((j, i), (i, j)):
            if parents.get(child, -1) == parent:
                rest = self._all_beliefs()[1][child]
                below = self._upward()[0][child]
                logs = rest[:, None] + pairs[child].matrix() + below
                joint = np.exp(logs - log_sum_exp(logs.ravel()))
                return joint if parent == i else joint.T
        raise ValueError(f"i and j must have an edge; there is no edge between {i!r} and {j!r}.")

    def sample(self, n=1, *, random_state=None):
        """Draw assignments, exactly from the model of the approximate potentials.

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
        order, parents, _, pairs = self._model
        rng = as_generator(random_state)
        beliefs, features = self._upward()
        with naming("n"):
            states = np.empty((check_integer("n", n), len(order)), dtype=int)
        root = beliefs[order[0]]
        states[:, order[0]] = draw_rows(np.broadcast_to(root, (n, len(root))), rng)
        for i in order[1:]:
            # A feature of the edge, given the parent's state; then the state, given the feature.
            feature = draw_rows(pairs[i].left[states[:, parents[i]]] + features[i], rng)
            states[:, i] = draw_rows(pairs[i].right.T[feature] + beliefs[i], rng)
        return states


def _rooted(edges):
    """Return variables in an order from a root, and the parent of every other one."""
    edges = as_array("edges", edges)
    if edges.size == 0:
        return [0], {}
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
        raise ValueError(
            f"edges must be integers of shape (n_edges, 2), got shape {edges.shape} and dtype "
            f"{edges.dtype}."
        )
    n_variables = len(edges) + 1
    if edges.min() < 0 or edges.max() >= n_variables:
        raise ValueError(
            f"{len(edges)} edges make a tree of the variables 0 to {n_variables - 1}; edges names "
            f"variables from {edges.min()} to {edges.max()}. There is a cycle, or a variable "
            "without an edge."
        )
    neighbours = [[] for _ in range(n_variables)]
    for i, j in edges.tolist():
        neighbours[i].append(j)
        neighbours[j].append(i)
    order, parents = [0], {}
    for i in order:
        for j in neighbours[i]:
            if j != parents.get(i, -1):
                if j in parents or j == order[0]:
                    raise ValueError(f"edges has a cycle through variables {i} and {j}.")
                parents[j] = i
                order.append(j)
    if len(order) < n_variables:
        apart = sorted(set(range(n_variables)) - set(order))
        raise ValueError(f"edges is not connected: no path from variable 0 to {apart[:5]}.")
    return order, parents
