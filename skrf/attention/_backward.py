"""Gradients of linear attention by a reverse sweep, with statistics and draws held constant.

The forward pass keeps the sums at the start of every part; the reverse sweep recomputes a part from
its start. Exponents are constants: changing one affects rounding only.
"""

import copy

import numpy as np

from .._arrays import cast, namespace
from .._sums import Sums, differences, in_order, lifted, lowered, transposed
from ._factors import Factors
from ._heads import Output, as_rows, blocks, divisors
from ._linear import (
    FEATURE_ROWS,
    absorb,
    absorbed,
    causal_blocks,
    running,
    steps_of,
    together,
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
        self.by_k.put(rows, self.unit.shown(by_rows, rows))

    def put_values(self, rows, by_values):
        """Write the gradients of some values; padded ones get 0."""
        self.by_v.put(rows, self.unit.shown(by_values, rows))


def pulled(feature_map, X, by_values):
    """Return gradients with respect to rows, given those of the values of their features.

    Those may be of the columns of the part of each row (`Factors`).
    """
    xp = namespace(X)
    flat, by_values = (xp.reshape(part, (-1, part.shape[-1])) for part in (X, by_values))
    if feature_map.n_parts == 1 or by_values.shape[-1] == feature_map.n_columns:
        return xp.reshape(feature_map.pull_back(flat, by_values), X.shape)
    parts = feature_map.parts(flat)
    found = [(rows, own.pull_back(flat[rows], by_values[rows])) for rows, _, own in parts]
    return in_order(found).reshape(X.shape)


def by_sums_of(sums, gradient):
    """Return gradients with respect to the sums, given those of the quotients."""
    xp, inverse = namespace(sums), 1 / divisors(sums)
    scaled = cast(gradient, sums.dtype) * inverse
    quotients = sums[..., 1:] * inverse
    return xp.concat([-xp.sum(scaled * quotients, axis=-1, keepdims=True), scaled], axis=-1)


def bidirectional(unit, gradient, found, size=FEATURE_ROWS):
    """Write the gradients of sum(gradient * attention)."""
    sums = absorb(unit, size)
    sums = sums.balanced() if unit.head.is_positive else sums
    later, state = 0.0, cast(sums.sums, unit.dtype)
    for rows in blocks(unit.q.shape[-2], size):
        left = Factors.at(sums.top, lifted, unit.query_parts(rows))
        by_sums = by_sums_of(left.read(state), as_rows(gradient[..., rows, :]))
        later = later + cast(left.summed(by_sums), sums.sums.dtype)
        found.put_queries(rows, left.gradient(by_sums, state))
    later = cast(later, unit.dtype)
    for rows in blocks(unit.k.shape[-2], size):
        right = Factors.at(sums.top, lowered, unit.key_parts(rows))
        found.put_values(rows, right.read(later)[..., 1:])
        found.put_keys(rows, right.gradient(unit.values(rows), later))


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
    starts, parts = [sums], causal_blocks(unit, size)
    for block in parts[:-1]:
        sums = absorbed(unit, block, sums)
        starts.append(sums)
    for block, start in zip(reversed(parts), reversed(starts), strict=True):
        for rows, step in reversed(list(steps_of(unit, block, start))):
            later = _through(step, rows, gradient[..., rows, :], found, later)
    return later


def _through(step, rows, gradient, found, later):
    """Write the gradients of a step, and return the sums over queries from there on."""
    left, right, values, before = step.left, step.right, step.values, step.before
    by_sums = together(by_sums_of(step.found, gradient), values.shape[-2])
    state = 0.0 * before.sums
    if later is not None:
        state = later.sums * np.exp(differences(before.top, later.top))[..., None]
    seen, total = running(cast(state, values.dtype), left.summed(by_sums), is_reverse=True)
    by_near = triangle(by_sums @ transposed(values))
    found.put_queries(rows, step.apart(left.gradient(by_sums, step.earlier, by_near, right)))
    by_keys = right.gradient(values, seen, transposed(by_near), left)
    found.put_keys(rows, as_rows(by_keys)[..., : step.n, :])
    by_values = right.read(seen) + transposed(step.near) @ by_sums
    found.put_values(rows, as_rows(by_values)[..., : step.n, 1:])
    return Sums(state + cast(total, state.dtype), before.top)
