"""Code shared by chains and trees as estimators: embeddings, potentials and learning."""

from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from .._memory import check_fits
from .._sums import LogMatrix
from .._validation import naming
from ._belief_propagation import BeliefPropagation
from ._corrections import Corrected, corrected
from ._evidence import check_unary
from ._maximum_likelihood import MaximumLikelihood, maximize
from ._potentials import Dense, LowRank, Maps, check_embeddings, fitted_maps, log_features


@dataclass(frozen=True, eq=False)
class Model:
    """Embeddings and the maps fitted to them.

    Parameters
    ----------
    tables : dict of str to tuple of ndarray
        By side, "embeddings" and "later" (left out if one serves both): one array for all
        variables, or one per variable.
    maps : Maps
        Maps of the earlier and of the later side. They have a correction if all variables have the
        same states and both sides the same embeddings.
    """

    tables: dict
    maps: Maps | None = None

    _pairs: dict = field(init=False, default_factory=dict)
    _features: dict = field(init=False, default_factory=dict)

    def __reduce__(self):
        return Model, (self.tables, self.maps)  # the rest can be recomputed

    def sizes(self, length):
        """Return the number of states of every variable."""
        tables = self.tables["embeddings"]
        if len(tables) > 1:
            return [len(X) for X in tables]
        check_fits(8 * length * len(tables[0]), f"length={length!r}", "messages of all variables")
        with naming("length"):
            return np.full(length, len(tables[0]))

    def slots(self, i, j):
        """Return the places of the embeddings of an edge's earlier and later variables."""
        sides = (("embeddings", i), ("later" if "later" in self.tables else "embeddings", j))
        return tuple((side, at if len(self.tables[side]) > 1 else 0) for side, at in sides)

    def pair(self, i, j):
        """Return the potential of an edge from i to j; edges of the same embeddings share one."""
        slots = self.slots(i, j)
        if slots not in self._pairs:
            if self.maps.sides:
                sides = tuple(self._features_at(k, slot) for k, slot in enumerate(slots))
                if self.maps.log_factor is None:
                    pair = LowRank(sides, all(len(tables) == 1 for tables in self.tables.values()))
                else:
                    pair = Corrected.of(self.maps, sides, self.tables["embeddings"][0])
            else:
                u, v = self._tables_at(slots)
                pair = Dense(u @ v.T)
            self._pairs[slots] = pair
        return self._pairs[slots]

    def _tables_at(self, slots):
        return (self.tables[side][at] for side, at in slots)

    def _features_at(self, k, slot):
        """Return features of a table under the map of the earlier or the later side."""
        if (k, slot) not in self._features:
            side, at = slot
            logs = log_features(self.maps.sides[k], self.tables[side][at])
            self._features[k, slot] = LogMatrix(logs)
        return self._features[k, slot]

    def belief_propagation(self, parents, unary, edges=()):
        """Return sums over trees; the parent comes later in edges (child, parent) of `edges`."""
        pairs = {
            i: self.pair(i, parent).turned if (i, parent) in edges else self.pair(parent, i)
            for i, parent in parents.items()
        }
        return BeliefPropagation(parents, unary, pairs)

    def gradients(self, of_pairs):
        """Return gradients with respect to all embeddings, given counts of pairs."""
        totals = {
            side: [np.zeros(table.shape) for table in tables]
            for side, tables in self.tables.items()
        }
        for slots, pair in self._pairs.items():
            for direction, step in ((pair, 1), (pair.turned, -1)):
                if direction in of_pairs:
                    order, maps = slots[::step], self.maps.sides[::step]
                    counts, tables = of_pairs[direction], self._tables_at(order)
                    pulled = direction.pull_back(maps, *tables, *counts)
                    for (side, at), gradient in zip(order, pulled, strict=True):
                        totals[side][at] += gradient
        return totals

    def with_embeddings(self, arrays):
        """Return the model with embeddings from an iterator over arrays."""
        tables = {side: tuple(islice(arrays, len(old))) for side, old in self.tables.items()}
        return replace(self, tables=tables)


def stacked(arrays):
    """Return arrays as one if their shapes agree, otherwise as a list."""
    return np.array(arrays) if len({array.shape for array in arrays}) == 1 else arrays


def shaped(tables):
    """Return arrays by side in the shapes of the parameters."""
    return {
        side: arrays[0] if len(arrays) == 1 else stacked(list(arrays))
        for side, arrays in tables.items()
    }


def added(one, other):
    """Return the sums of arrays by side."""
    return {side: list(map(np.add, arrays, other[side])) for side, arrays in one.items()}


class FieldModel(MaximumLikelihood):
    """Chains and trees of variables with potentials exp(x_i . y_j).

    A subclass has ``_edges(n)``, the edges of n tables, and ``_belief_propagation(n_variables,
    unary)``; and ``_is_single`` if there is one array of embeddings, which may come in a list.
    """

    _is_single = False

    def _make_model(self):
        embeddings, is_single = self._own("embeddings"), self._is_single
        tables = {"embeddings": check_tables("embeddings", embeddings, is_single)}
        first = tables["embeddings"]
        if self.later is not None:
            tables["later"] = check_tables("later", self._own("later"), is_single, like=first)
        model = Model(tables)
        edges = self._edges(len(first)) or [(0, 0)]
        slots = dict.fromkeys(model.slots(i, j) for i, j in edges)
        sizes = [tuple(len(tables[side][at]) for side, at in slot) for slot in slots]
        earlier, later = (list(dict.fromkeys(places)) for places in zip(*slots, strict=True))
        left = right = np.vstack([tables[side][at] for side, at in earlier])
        if earlier != later:
            right = np.vstack([tables[side][at] for side, at in later])
        maps = fitted_maps(self.feature_map, left, right, self.random_state, sizes)
        if maps.sides and len(tables) == len(first) == 1:
            maps = corrected(maps, first[0])
        return replace(model, maps=maps)

    @property
    def feature_map_(self) -> Any:
        """The source of potentials: "exact" or the fitted feature map."""
        return self._model.maps.feature_map

    def _unary_of(self, sizes):
        """Return log potentials of the states of every variable, learned ones if available."""
        unary = self._evidence_given
        return [np.zeros(n) for n in sizes] if unary is None else check_unary(unary, sizes)

    @property
    def _evidence_given(self):
        """The learned log potentials of states, or those of the parameter, or None."""
        return self.unary_ if hasattr(self, "unary_") else self._own("unary")

    # ---------------------------------------------------------------- learning

    def _log_likelihood(self, groups):
        """Return the log probability of all assignments, and its gradients.

        Parameters
        ----------
        groups : list of tuple
            Assignments, (n, n_variables), and their unary potentials, or None for those of the
            model, by number of variables.

        Returns
        -------
        log_prob : float
            The log probability.
        by_tables : dict of str to list of ndarray
            Gradients with respect to embeddings.
        by_unary : list of list of ndarray
            Those with respect to the unaries of every group.
        """
        log_prob, by_tables, by_unary = 0.0, self._model.gradients({}), []
        for states, unary in groups:
            propagation = self._belief_propagation(states.shape[1], unary)
            conditioned = propagation.conditioned(states)
            weights = propagation.log_weights(states, conditioned)
            if np.isneginf(weights).any():
                raise ValueError(
                    "paths and assignments must not hold states that unary forbids; row "
                    f"{np.flatnonzero(np.isneginf(weights))[0]} does."
                )
            log_prob += (weights - propagation.log_partition).sum()
            of_states, of_pairs = propagation.surplus(states, conditioned)
            by_unary.append(of_states)
            by_tables = added(by_tables, self._model.gradients(of_pairs))
        return float(log_prob), by_tables, by_unary

    def _fit(self, groups, learn_unary):
        """Climb the likelihood of assignments from the given embeddings, keeping the draw."""
        limits = self._limits()
        if not isinstance(learn_unary, (bool, np.bool_)):
            raise ValueError(f"learn_unary must be True or False, got {learn_unary!r}.")
        draft = self._draft()
        initial = draft._model
        unary = draft._belief_propagation(groups[0][0].shape[1]).unary if learn_unary else []
        # Forbidden states have no gradient: the value that is learned for them stays 0.
        forbidden = [np.where(np.isfinite(values), 0.0, -np.inf) for values in unary]
        allowed = [np.where(np.isfinite(values), values, 0.0) for values in unary]

        def move(arrays):
            arrays = iter(arrays)
            draft._fitted = initial.with_embeddings(arrays)
            if learn_unary:
                draft.unary_ = stacked(list(map(np.add, arrays, forbidden)))

        def objective(arrays):
            move(arrays)
            log_prob, by_tables, by_unary = draft._log_likelihood(groups)
            return log_prob, sum(by_tables.values(), []) + (by_unary[0] if learn_unary else [])

        start = [table for tables in initial.tables.values() for table in tables]
        n_samples = sum(states.size for states, _ in groups)
        arrays, *progress = maximize(objective, start + allowed, n_samples, **limits)
        move(arrays)
        return self._commit(draft, shaped(draft._fitted.tables), *progress, stacklevel=4)


# ---------------------------------------------------------------- checks


def check_tables(name, arrays, is_single, like=None):
    """Return embeddings as a tuple of arrays: one for all variables, or one per variable.

    Parameters
    ----------
    name : str
        Name of the parameter.
    arrays : array-like
        An array of shape (n, d), or a sequence of such arrays.
    is_single : bool
        Whether a sequence must hold one array, rather than several.
    like : tuple of ndarray, default=None
        Embeddings of the other side, whose numbers of states must agree.
    """
    width = None if like is None else like[0].shape[1]
    is_one = getattr(arrays, "ndim", 0) == 2
    if not is_one:
        with naming(name):
            arrays = list(arrays)
            is_one = bool(arrays) and np.ndim(arrays[0]) < 2
    if is_one:
        tables = (check_embeddings(arrays, name, width),)
    else:
        if is_single and len(arrays) != 1:
            raise ValueError(f"{name} must be one array of shape (n, d), got {len(arrays)} arrays.")
        if not is_single and len(arrays) < 2:
            raise ValueError(
                f"{name} must be one array for all variables or an array for each of at least 2, "
                f"got a sequence of {len(arrays)}."
            )
        tables = ()
        for i, table in enumerate(arrays):
            tables += (check_embeddings(table, f"{name}[{i}]", width),)
            width = tables[0].shape[1]
    if like is not None and [len(X) for X in tables] != [len(X) for X in like]:
        sizes = [[len(X) for X in arrays] for arrays in (tables, like)]
        raise ValueError(
            f"{name} must have a row for every state, as embeddings does: got {sizes[0]} rows, "
            f"embeddings has {sizes[1]}."
        )
    return tables
