"""Features as factors of sums, in parts that leave out what is zero.

A query of one part of a feature map shares one block of columns with a key of another: the columns
of a part are in as many blocks of one size as the other side has parts, in the order of these
(`FeatureMap.parts`). Maps without zero blocks have one part.
"""

import numpy as np

from .._sums import Sums, transposed


def raised(parts, sums, n_values):
    """Return sums of earlier keys, None or of NumPy, at exponents that serve parts of keys, too."""
    highest = [(columns, own.values.max(-2, initial=-np.inf)[:, None]) for _, columns, own in parts]
    top = in_order(highest)[:, 0].astype(np.float64)
    sums = Sums(np.zeros((len(top), n_values)), top) if sums is None else sums
    top = np.maximum(sums.top, top)
    return Sums(sums.at(top), top)


class Factors:
    """Factors of sums.

    Parameters
    ----------
    parts : list of tuple
        Of every part its rows and columns (an ndarray of int, or everything as a slice), factors
        (..., n, M), and their slopes, of their shape or (..., n, 1). Gradients with respect to
        values of features have the columns of a part, whichever is that of the row.
    """

    def __init__(self, parts):
        self.parts = parts

    @classmethod
    def at(cls, top, change, parts):
        """Return the factors of features in parts by `lifted` or `lowered`, at exponents."""
        return cls([(rows, own, *change(X, top[..., own])) for rows, own, X in parts])

    def read(self, state):
        """Return the sums (..., n, c) that rows see of a state (..., M, c)."""
        return in_order([(rows, X @ state[..., columns, :]) for rows, columns, X, _ in self.parts])

    def summed(self, values):
        """Return the sums (..., M, c) of values (..., n, c) of the rows."""
        found = ((own, transposed(X) @ values[..., rows, :]) for rows, own, X, _ in self.parts)
        return in_order(list(found))

    def products(self, other):
        """Return the products (..., n, n') with other rows."""
        found = []
        for i, (rows, _, X, _) in enumerate(self.parts):
            pairs = zip(_split(X, len(other.parts)), self._facing(i, other), strict=True)
            own = [(others, x @ transposed(y)) for x, (others, y) in pairs]
            found.append((rows, in_order(own, axis=-1)))
        return in_order(found)

    def gradient(self, values, state, by_products=None, other=None):
        """Return the gradient of sum(values * read(state)) with respect to values of features.

        That of sum(by_products * products(other)) is added.
        """
        found = []
        for i, (rows, columns, _, slopes) in enumerate(self.parts):
            by_factors = values[..., rows, :] @ transposed(state[..., columns, :])
            if other is not None:
                own, products = _split(by_factors, len(other.parts)), by_products[..., rows, :]
                for by, (others, Y) in zip(own, self._facing(i, other), strict=True):
                    by += products[..., others] @ Y
            found.append((rows, by_factors * slopes))
        return in_order(found)

    def _facing(self, i, other):
        """Yield the rows of parts of other rows, and their columns that part i shares."""
        for rows, _, X, _ in other.parts:
            yield rows, _split(X, len(self.parts))[i]


def _split(X, n):
    """Return n blocks of columns of one size: views."""
    return [X] if n == 1 else np.split(X, n, axis=-1)


def in_order(parts, axis=-2):
    """Return arrays of several places along an axis as one array."""
    if len(parts) == 1:
        return parts[0][1]
    places, arrays = zip(*parts, strict=True)
    # Places of a part rise, and merging runs is what a stable sort is fast at.
    order = np.argsort(np.concatenate(places), kind="stable")
    return np.concatenate(arrays, axis).take(order, axis)
