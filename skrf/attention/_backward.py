"""Gradients of linear attention by a reverse sweep, with statistics and draws held constant.

The forward pass keeps the sums at the start of every part; the reverse sweep recomputes a part from
its start. Exponents are constants: changing one affects rounding only.
"""

import copy

import numpy as np

from .._arrays import cast, like, namespace
from .._sums import Sums, added, differences, lifted, lowered, product, transposed
from ._heads import Output, as_rows, blocks
from ._linear import (
    FEATURE_ROWS,
    absorb,
    in_parts,
    of_keys,
    running,
    steps_of,
    triangle,
)


class Gradients:
    """Gradients with respect to queries, keys and values of a unit, block by block.

    Parameters
    ----------
    unit : Unit
        The inputs.
    arrays : tuple of ndarray
        Arrays to write to.
    gradient_unit : float, default=1.0
        Divisor of the gradient with respect to the output.
    """

    def __init__(self, unit, arrays, gradient_unit=1.0):
        self.unit = unit
        units = unit.value_unit * gradient_unit, unit.value_unit * gradient_unit, gradient_unit
        self.by_q, self.by_k, self.by_v = map(Output, arrays, units)

    def of(self, unit, adds):
        """Return the gradients for another group of features, which are added to those written."""
        own = copy.copy(self)
        own.unit = unit
        for out in (own.by_q, own.by_k, own.by_v):
            out.adds = adds
        return own

    def put_queries(self, rows, by_values):
        """Write the gradients of some queries, given those of the values of their features."""
        self.by_q.put(rows, pulled(self.unit.head.queries, self.unit.queries(rows), by_values))

    def put_keys(self, rows, by_values):
        """Write the gradients of some keys; padded ones get 0."""
        by_rows = pulled(self.unit.head.keys, self.unit.keys(rows), by_values)
        self.by_k.put(rows, self._kept(by_rows, rows))

    def put_values(self, rows, by_values):
        """Write the gradients of some values; padded ones get 0."""
        self.by_v.put(rows, self._kept(by_values, rows))

    def _kept(self, gradient, rows):
        if self.unit.hidden is None:
            return gradient
        hidden = self.unit.hidden[..., rows, None]
        return namespace(gradient).where(hidden, like(0.0, gradient), gradient)


def pulled(feature_map, X, by_values):
    """Return gradients with respect to rows, given those of the values of their features."""
    xp = namespace(X)
    flat = (xp.reshape(part, (-1, part.shape[-1])) for part in (X, by_values))
    return xp.reshape(feature_map.pull_back(*flat), X.shape)


def by_sums_of(sums, gradient):
    """Return gradients with respect to the sums, given those of the quotients."""
    xp = namespace(sums)
    weight = sums[..., :1]
    inverse = 1 / xp.where(weight == 0, like(np.inf, sums), weight)
    scaled = cast(gradient, sums.dtype) * inverse
    quotients = sums[..., 1:] * inverse
    return xp.concat([-xp.sum(scaled * quotients, axis=-1, keepdims=True), scaled], axis=-1)


def _summed(left, right):
    """Return left' @ right of parts (..., G, B, c, m), summed over the heads of a set."""
    xp = namespace(left)
    left, right = (as_rows(xp.moveaxis(part, -4, -3)) for part in (left, right))
    return transposed(left) @ right


def bidirectional(unit, gradient, found, size=FEATURE_ROWS):
    """Write the gradients of sum(gradient * attention)."""
    sums = absorb(unit, size)
    sums = sums.balanced() if unit.head.is_positive else sums
    top, state = sums.top[..., None, :], sums.sums[..., None, :, :]
    later = 0.0
    for rows in blocks(unit.q.shape[-2], size):
        factors, slopes = lifted(unit.query_rows(rows), top)
        own = cast(state, factors.dtype)
        by_sums = by_sums_of(factors @ own, gradient[..., rows, :])
        later = later + product(as_rows(factors), as_rows(by_sums))
        found.put_queries(rows, by_sums @ transposed(own) * slopes)
    for rows in blocks(unit.k.shape[-2], size):
        factors, slopes = lowered(unit.key_rows(rows), sums.top)
        own = cast(later, factors.dtype)
        found.put_values(rows, (factors @ own)[..., 1:])
        found.put_keys(rows, unit.values(rows) @ transposed(own) * slopes)


def causal(unit, sums, gradient, found, later=None, size=FEATURE_ROWS):
    """Write the gradients of causal attention, and return the sums over queries after these.

    Parameters
    ----------
    unit : Unit
        Inputs of some positions.
    sums : Sums or None
        Over the keys of the positions before; a constant.
    gradient : array of shape (..., G, n, e)
        Gradient with respect to the output.
    found : Gradients
        Arrays to write to.
    later : Sums or None
        From later positions: sums of query features times gradients; None at the end.
    size : int
        Number of rows whose features are held at a time.

    Returns
    -------
    Sums
        For the positions before.
    """
    starts, parts = [sums], blocks(unit.k.shape[-2], size)
    for block in parts[:-1]:
        sums = added(sums, unit.key_rows(block), unit.values(block))
        starts.append(sums)
    for block, start in zip(reversed(parts), reversed(starts), strict=True):
        later = _block(unit, block, start, gradient[..., block, :], found, later)
    return later


def _block(unit, block, sums, gradient, found, later):
    """Process one block, whose features are held at once."""
    xp = namespace(gradient)
    by_queries, by_keys, by_values = Output(), Output(), Output()
    for rows, step in reversed(list(steps_of(unit, block, sums))):
        own = slice(rows.start - block.start, rows.stop - block.start)
        n = own.stop - own.start
        by_sums = in_parts(by_sums_of(step.found, gradient[..., own, :]))
        left, right, values = in_parts(step.left), of_keys(step.right), of_keys(step.values)
        if later is None:
            later = Sums(0.0 * step.far, step.top)
        state = later.sums * xp.exp(differences(step.top, later.top))[..., None]
        seen, total = running(
            cast(state, left.dtype), _summed(left, by_sums)[..., None, :, :, :], is_reverse=True
        )
        by_near = triangle(by_sums @ transposed(values))
        by_left = by_sums @ transposed(step.earlier) + by_near @ right
        by_right = (values @ transposed(seen))[..., 0, :, :, :] + _summed(by_near, left)
        through = (right @ seen)[..., 0, :, :, :] + _summed(step.near, by_sums)
        by_queries.put(own, as_rows(by_left)[..., :n, :] * step.slopes[0])
        by_keys.put(own, as_rows(by_right)[..., :n, :] * step.slopes[1])
        by_values.put(own, as_rows(through)[..., :n, :][..., 1:])
        later = Sums(state + cast(total, state.dtype), step.top)
    found.put_queries(block, by_queries.joined())
    found.put_keys(block, by_keys.joined())
    found.put_values(block, by_values.joined())
    return later
