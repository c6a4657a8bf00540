"""Features as factors of sums, in parts that leave out what is zero.

A query of one part of a feature map shares one block of columns with a key of another: the columns
of a part are in as many blocks of one size as the other side has parts, in the order of these
(`FeatureMap.parts`). Maps without zero blocks have one part.
"""

import numpy as np

from .._arrays import beside, cast, constant, namespace
from .._sums import Sums, in_order, transposed
from ._heads import some


def raised(parts, sums, n_values):
    """Return sums of earlier keys, or None, at exponents that serve parts of keys, too."""
    highest = [(columns, _highest(constant(own.values))) for _, columns, own in parts]
    xp, top = namespace(highest[0][1]), in_order(highest, axis=-1)
    top = cast(top, xp.float64)
    if sums is None:
        sums = Sums(beside(np.zeros((*top.shape, n_values)), top), top)
    top = xp.maximum(sums.top, top)
    return Sums(sums.at(top), top)


def _highest(logs):
    """Return the largest logarithm of every column, -inf without any row."""
    xp = namespace(logs)
    return xp.max(logs, axis=-2) if logs.shape[-2] else xp.sum(logs, axis=-2) - np.inf


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
        return cls([(rows, own, *change(X, some(top, own, -1))) for rows, own, X in parts])

    def read(self, state):
        """Return the sums (..., n, c) that rows see of a state (..., M, c)."""
        return in_order([(rows, X @ some(state, columns)) for rows, columns, X, _ in self.parts])

    def summed(self, values):
        """Return the sums (..., M, c) of values (..., n, c) of the rows."""
        found = ((own, transposed(X) @ some(values, rows)) for rows, own, X, _ in self.parts)
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
            by_factors = some(values, rows) @ transposed(some(state, columns))
            if other is not None:
                own, products = _split(by_factors, len(other.parts)), some(by_products, rows)
                for by, (others, Y) in zip(own, self._facing(i, other), strict=True):
                    by += some(products, others, -1) @ Y
            found.append((rows, by_factors * slopes))
        return in_order(found)

    def _facing(self, i, other):
        """Yield the rows of parts of other rows, and their columns that part i shares."""
        for rows, _, X, _ in other.parts:
            yield rows, _split(X, len(self.parts))[i]


def _split(X, n):
    """Return n blocks of columns of one size: views."""
    size = X.shape[-1] // n
    return [X[..., j * size : (j + 1) * size] for j in range(n)]
