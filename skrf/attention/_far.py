"""Sums of features over far blocks of rows: those that are two or more blocks away.

Serves both directions: queries that read sums over keys, and keys that receive the gradients of
queries. Nothing is subtracted from a sum: blocks before and blocks after are summed separately.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._arrays import (
    arithmetic,
    beside,
    cast,
    constant,
    is_array_api,
    is_on_gpu,
    like,
    namespace,
    to_host,
)
from .._sums import Rows, Sums, added, finite, lowered, rise_limit, transposed
from .._threads import Scratch
from ._heads import as_rows


@dataclass(frozen=True, eq=False)
class FarPart:
    """What some blocks of rows read.

    Parameters
    ----------
    first, stop : int
        The blocks.
    sums : array of shape (..., stop - first, M, c) or (..., 1, M, c)
        Sums over the rows that are far from each of them.
    top : array of shape (..., stop - first, M) or (..., 1, M), the last axis M or 1
        Their exponents, shared by all blocks, but -inf where a block reads nothing: otherwise its
        rows would take zeros for a far part of that size, next to which their exact part vanishes.
    """

    first: int
    stop: int
    sums: Any
    top: Any


class FarSums:
    """Sums over far blocks, for ranges of blocks requested in order.

    Sums over the blocks that follow each of the ranges are computed in advance.

    Parameters
    ----------
    right : callable
        Returns for a range of blocks the features of their rows, `Rows` of shape
        (..., n_blocks, r, M), and values (..., n_blocks, r, c). NumPy's features are overwritten.
        Rows that do not count have zero features.
    n_blocks : int
        Number of blocks.
    stops : list of int
        The ends of the ranges.
    before, after : bool, default=True
        Whether earlier and later blocks are read.
    sums : Sums, default=None
        Over what comes before the first block.
    later : Sums, default=None
        Over what comes after the last block.
    """

    def __init__(self, right, n_blocks, stops, *, before=True, after=True, sums=None, later=None):
        self.right, self.n_blocks, self.before, self.after = right, n_blocks, before, after
        if sums is None:
            rows, values = right(n_blocks - 1, n_blocks)
            sums = Sums.before(rows.map(as_rows), as_rows(values))
        self.sums, self._done, self._later = sums, 0, {}
        self._nothing = Sums(0.0 * sums.sums, sums.top - np.inf)
        self._rooms = Scratch(), Scratch()
        later, end = self._nothing if later is None else later, n_blocks
        for stop in reversed(stops if after else ()):
            later = self._more(later, min(stop + 2, end), end)
            self._later[stop], end = later, min(stop + 2, end)

    def _more(self, sums, start, stop):
        """Return sums with the rows of more blocks."""
        if start >= stop:
            return sums
        rows, values = self.right(start, stop)
        return added(sums, rows.map(as_rows), as_rows(values))

    def parts(self, first, stop, later=None):
        """Yield the `FarPart` of a range, in as few parts as its exponents allow.

        `later` are the sums over the blocks after it, if it is a part of those given.
        """
        later = self._later.get(stop, self._nothing) if later is None else later
        n = stop - first
        # Number j of the range reads the window up to its number j, and from number j - n on.
        window = first - 2 if self.before else first + 2, stop + 2 if self.after else stop - 2
        start = max(window[0], self._done if self.before else 0)
        end = max(start, min(window[1], self.n_blocks))
        if start == end:
            sums = self.sums.merge(later)
            yield FarPart(first, stop, sums.sums[..., None, :, :], sums.top[..., None, :])
            return
        rows, values = self.right(start, end)
        present = slice(start - window[0], end - window[0])
        tops = self._tops(rows, present, window[1] - window[0])
        own, to_come = self._read_tops(tops, n, later)
        highest = np.maximum(own, to_come)
        top = highest.max(axis=-2)
        if n > 1 and _rise(highest, top[..., None, :]) > rise_limit(rows.values):
            middle, known = (first + stop) // 2, min(stop + 2, self.n_blocks)
            between = self._more(later, min(middle + 2, known), known) if self.after else later
            yield from self.parts(first, middle, between)
            yield from self.parts(middle, stop, later)
            return
        top, dtype = beside(top, self.sums.top), rows.values.dtype
        sums, later = (cast(part.at(top), dtype) for part in (self.sums, later))
        if self.before and self.after and n < 4:
            rows = _clipped(rows, top)  # nobody reads some in the middle
        products = self._products(
            lowered(rows, top[..., None, :])[0], values, present, tops.shape[-2]
        )
        if self.before:
            found = _running(sums, products[..., :n, :, :], self._rooms[1])
            self._absorb(stop - 2, beside(own[..., -1, :], top), top, products[..., :n, :, :])
        if self.after:
            ends = _running(later, products[..., -n:, :, :], is_reverse=True)
            found = arithmetic(found).add(found, ends) if self.before else ends
        read_top = np.where(highest > -np.inf, highest.max(axis=-2, keepdims=True), -np.inf)
        yield FarPart(first, stop, found, beside(read_top, top))

    def _tops(self, rows, present, n_blocks):
        """Return, on the host, the largest exponents of every block of a window."""
        highest = constant(namespace(rows.values).max(rows.exponents, axis=-2))
        highest = to_host(highest).astype(np.float64)
        tops = np.full((*highest.shape[:-2], n_blocks, highest.shape[-1]), -np.inf)
        tops[..., present, :] = highest
        return tops

    def _read_tops(self, tops, n, later):
        """Return the largest exponents that every block of a range reads before and after it."""
        before, after = (to_host(sums.top)[..., None, :] for sums in (self.sums, later))
        if self.before:
            before = np.maximum(before, np.maximum.accumulate(tops[..., :n, :], axis=-2))
        if self.after:
            ends = tops[..., tops.shape[-2] - n :, :][..., ::-1, :]
            after = np.maximum(after, np.maximum.accumulate(ends, axis=-2)[..., ::-1, :])
        return before, after

    def _absorb(self, stop, own, top, products):
        """Add blocks that no later window holds to the sums, on the scale of their exponents."""
        if stop <= self._done:
            return
        xp = namespace(products)
        # Absorbed blocks without any key have no exponents, and may be far below the top.
        rise = xp.where(own > -np.inf, top - finite(own), like(0.0, own))
        if float(xp.max(rise)) > rise_limit(products):
            self.sums = self._more(self.sums, self._done, stop)
        else:
            total = cast(xp.sum(products, axis=-3), xp.float64) * xp.exp(rise)[..., None]
            self.sums = Sums(self.sums.at(own) + total, own)
        self._done = stop

    def _products(self, factors, values, present, n_blocks):
        """Return the sums over every block of a window, 0 for absent ones."""
        left, values = transposed(factors), cast(values, factors.dtype)
        if not is_array_api(factors):
            shape = (*left.shape[:-3], n_blocks, left.shape[-2], values.shape[-1])
            out = self._rooms[0](shape, factors.dtype)
            out[..., : present.start, :, :] = out[..., present.stop :, :, :] = 0
            np.matmul(left, values, out=out[..., present, :, :])
            return out
        found = left @ values
        zero = 0.0 * found[..., :1, :, :]
        parts = [zero] * present.start + [found] + [zero] * (n_blocks - present.stop)
        return namespace(found).concat(parts, axis=-3)


def _running(first, products, room=None, is_reverse=False):
    """Return first + the sums of all products up to each, or from each on.

    NumPy sums are written into a room; without one they overwrite the products.
    """
    if is_on_gpu(products):
        xp = namespace(products)
        ordered = xp.flip(products, axis=-3) if is_reverse else products
        found = xp.cumulative_sum(ordered, axis=-3, dtype=products.dtype)
        return (xp.flip(found, axis=-3) if is_reverse else found) + first[..., None, :, :]
    if is_array_api(products):
        n = products.shape[-3]
        chosen = like(np.tri(n).T if is_reverse else np.tri(n), products)
        flat = namespace(products).reshape(products, (*products.shape[:-2], -1))
        found = namespace(products).reshape(chosen @ flat, products.shape)
        return found + first[..., None, :, :]
    out = products if room is None else room(products.shape, products.dtype)
    if is_reverse:
        products, found = products[..., ::-1, :, :], out[..., ::-1, :, :]
    else:
        found = out
    # NumPy's cumulative sum takes ten times as long along this axis. A few long stretches: many
    # short steps would make threads compete for the interpreter.
    n = products.shape[-3]
    size = max(1, math.isqrt(n))
    found[..., ::size, :, :] = products[..., ::size, :, :]
    for j in range(1, size):
        ends = found[..., j::size, :, :]
        n_ends = ends.shape[-3]
        before = found[..., j - 1 :: size, :, :][..., :n_ends, :, :]
        np.add(before, products[..., j::size, :, :], out=ends)
    total = first
    for start in range(0, n, size):
        stretch = found[..., start : start + size, :, :]
        stretch += total[..., None, :, :]
        total = stretch[..., -1, :, :]
    return out


def _clipped(rows, top):
    """Return features with exponents of at most `top`."""
    top, exponents = cast(top, rows.values.dtype)[..., None, None, :], rows.exponents
    # A minimum would halve the gradients of ties.
    exponents = namespace(top).where(exponents > top, top, exponents)
    return Rows(exponents) if rows.scale is None else Rows(rows.values, exponents)


def _rise(highest, top):
    """Return the spread of exponents among the blocks that read anything."""
    return np.max(np.where(highest > -np.inf, top - np.where(highest > -np.inf, highest, 0.0), 0.0))
