"""Evidence: log potentials of the states of every variable, for one chain or for several."""

from dataclasses import dataclass, replace

import numpy as np

from .._validation import naming
from ._belief_propagation import ANY
from ._potentials import as_array, unmasked

_BLOCK = 2**22  # entries of the unary potentials of chains whose sums are taken together


@dataclass(frozen=True, eq=False)
class Evidence:
    """Log potentials of chains, and how results for them are laid out.

    Parameters
    ----------
    chains : list
        For every chain a list of arrays (n_t,), or an array of shape (length, n).
    layout : {"one", "stacked", "list"}
        A single chain; chains one after the other, with lengths; or a list.
    """

    chains: list
    layout: str

    @classmethod
    def of(cls, unary, lengths):
        """Return what was passed to a method, unchecked but for its layout."""
        count_variables(unary)
        if _depth(unary) > 2:
            if lengths is not None:
                raise ValueError("lengths must be None if unary is a list of chains.")
            return cls(list(unary), "list")
        if lengths is None:
            return cls([unary], "one")
        ends = np.cumsum(check_lengths(lengths, len(unary), "unary"))
        return cls([unary[end - n : end] for n, end in zip(lengths, ends, strict=True)], "stacked")

    def checked(self, sizes_of):
        """Return the evidence with arrays whose shapes fit, given the states for a length."""
        name, chains = "unary" if self.layout == "one" else "unary[{}]", []
        for i, chain in enumerate(self.chains):
            sizes = sizes_of(count_variables(chain, name.format(i)))
            chains.append(check_unary(chain, sizes, name.format(i)))
        return replace(self, chains=chains)

    def arranged(self, results, axis=0):
        """Return one result per chain in the layout of the evidence."""
        if self.layout == "one":
            return results[0]
        if self.layout == "list":
            return results
        if isinstance(results[0], list):
            return sum(results, [])
        return np.concatenate(results, axis=axis)

    def split_paths(self, paths):
        """Return a path for every chain."""
        if self.layout == "stacked":
            paths = split(paths, list(map(len, self.chains)), "paths")
        paths = list(paths)
        if [np.shape(path) for path in paths] != [(len(chain),) for chain in self.chains]:
            raise ValueError(
                f"paths must be of the lengths of unary, {list(map(len, self.chains))[:10]}, got "
                f"shapes {[np.shape(path) for path in paths][:10]}."
            )
        return paths


def _depth(values):
    """Return the number of axes, of which later ones may be ragged."""
    if hasattr(values, "__array__"):
        return np.ndim(values)
    return 1 + _depth(values[0]) if isinstance(values, (list, tuple)) and values else 0


def together(chains, n_states=0):
    """Yield the places of chains of one length, with a few million states in all at most."""
    by_length = {}
    for i, chain in enumerate(chains):
        by_length.setdefault(len(chain), []).append(i)
    for length, places in sorted(by_length.items()):
        size = max(1, _BLOCK // max(1, length * n_states))
        for start in range(0, len(places), size):
            yield places[start : start + size]


def unary_of(chains):
    """Return the log potentials of chains of one length by variable, (n_chains, n_t)."""
    return list(map(np.stack, zip(*chains, strict=True)))


def check_lengths(lengths, n_samples=None, name=None):
    """Return lengths of sequences, one after the other in an array of n_samples if it is given."""
    lengths = as_array("lengths", lengths)
    is_wrong = lengths.ndim != 1 or lengths.size == 0 or lengths.dtype.kind not in "iu"
    if is_wrong or (lengths < 1).any():
        raise ValueError(f"lengths must be integers >= 1, got {lengths!r}.")
    if n_samples is not None and lengths.sum() != n_samples:
        raise ValueError(f"lengths sum to {lengths.sum()}, but {name} has {n_samples} samples.")
    return lengths


def split(X, lengths, name="X"):
    """Return sequences of given lengths, which may be masked; None means one."""
    if lengths is None:
        return [X]
    X = X if isinstance(X, np.ma.MaskedArray) else as_array(name, X)
    return np.split(X, np.cumsum(check_lengths(lengths, len(X), name))[:-1])


def count_variables(unary, name="unary"):
    """Return the number of variables that have log potentials, or raise if there are none."""
    with naming(name):
        n_variables = len(unary)
    if n_variables == 0:
        raise ValueError(f"{name} must hold the log potentials of at least one variable.")
    return n_variables


def check_unary(unary, sizes, name="unary"):
    """Return log potentials as a list of arrays, one value per state of every variable."""
    unary = as_array(name, unary) if hasattr(unary, "__array__") else unary
    with naming(name):
        unary = list(unary)
    if len(unary) != len(sizes):
        raise ValueError(f"{name} has {len(unary)} entries; {len(sizes)} are needed.")
    checked = []
    for i, (values, n) in enumerate(zip(unary, sizes, strict=True)):
        values = as_array(f"{name}[{i}]", values, np.float64)
        if values.shape != (n,):
            raise ValueError(
                f"{name}[{i}] must have shape {(int(n),)}, one value per state, got {values.shape}."
            )
        top = values.max()
        if not top < np.inf:
            raise ValueError(f"{name}[{i}] must not hold NaN or +inf.")
        if top == -np.inf:
            raise ValueError(f"{name}[{i}] forbids every state of variable {i}.")
        checked.append(values)
    return checked


def check_states(name, states, sizes):
    """Return assignments as integers of shape (n, n_variables), or (n_variables,).

    States that are masked are `ANY`.

    Parameters
    ----------
    name : str
        Name of the parameter.
    states : array-like of int
        The assignments.
    sizes : callable
        Returns the numbers of states, given the number of variables.
    """
    if isinstance(states, (list, tuple)) and any(map(np.ma.isMaskedArray, states)):
        with naming(name):
            states = np.ma.stack(states)
    states, is_hidden = unmasked(states)
    states = as_array(name, states)
    if states.ndim not in (1, 2) or states.size == 0 or states.dtype.kind not in "iu":
        raise ValueError(
            f"{name} must be integers of shape (n_variables,) or (n, n_variables), got shape "
            f"{states.shape} and dtype {states.dtype}."
        )
    limits = np.array(sizes(states.shape[-1]))
    wrong = (states < 0) | (states >= limits)
    if wrong.any():
        at = np.argwhere(wrong)[0][-1]
        raise ValueError(
            f"{name} must hold states from 0 to {limits[at] - 1} of variable {at}, got "
            f"{states[wrong][0]}."
        )
    return np.where(is_hidden, ANY, states.astype(np.intp, copy=False))
