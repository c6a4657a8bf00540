"""Attention with a near field: near keys and anchors exactly, features for the far keys.

The output is the mean over groups of features of (N + shrink N_g) / (Z + shrink Z_g): numerator and
denominator over the exact keys, and over the far keys by the features of group g. Each part carries
a log scale per row; they are merged at the larger.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import device, is_torch_array

from .._arrays import (
    arithmetic,
    beside,
    cast,
    constant,
    is_array_api,
    largest_entry,
    largest_norm2,
    like,
    namespace,
)
from .._sums import Rows, added, differences, finite, levelled, transposed
from ._backward import by_sums_of, pulled
from ._far import FarSums
from ._heads import as_blocks, as_rows, blocks, filled, quotients
from ._sampled import free, sampled, scores, taken

_ROWS = 2048  # processed at a time
_SAMPLED = 16  # queries whose weights select the anchors
# A float32 logit is off by up to 3e-5 here.
LARGEST_SINGLE_LOGIT = 512.0
_KEPT = 2**19  # entries of [1, values] up to which the array is kept rather than rebuilt


@dataclass(frozen=True, eq=False)
class Anchors:
    """Keys that every query sees exactly.

    Parameters
    ----------
    positions : ndarray of int of shape (..., S)
        Their positions; -1 marks an empty slot.
    keys, values : array of shape (..., S, d), (..., S, e)
        Their keys and values.
    """

    positions: np.ndarray
    keys: Any
    values: Any

    def joined(self, other):
        """Return these anchors and others, without slots that are empty everywhere."""
        xp = namespace(self.keys)
        positions = np.concatenate([self.positions, other.positions], axis=-1)
        keys = xp.concat([self.keys, other.keys], axis=-2)
        values = xp.concat([self.values, other.values], axis=-2)
        is_empty = positions < 0
        if is_empty.any():
            places = np.argsort(is_empty, axis=-1, kind="stable")
            places = places[..., : np.sum(~is_empty, axis=-1).max()]
            positions = np.take_along_axis(positions, places, axis=-1)
            keys, values = taken(keys, places), taken(values, places)
        return Anchors(positions, keys, values)


@dataclass(frozen=True, eq=False)
class NearState:
    """What causal attention with a near field remembers: at most two blocks, anchors and sums.

    Parameters
    ----------
    position : int
        Positions so far.
    sums : tuple of Sums
        Over the keys of all earlier blocks, of every group.
    keys, values : array of shape (..., n, d), (..., n, e)
        Those of the last two blocks.
    hidden : ndarray of bool of shape (..., n)
        True where one of them is padding or an anchor.
    anchors : Anchors
        The anchors.
    window : Window, default=None
        The same state, laid out for reads by single positions.
    """

    position: int
    sums: tuple
    keys: Any
    values: Any
    hidden: np.ndarray
    anchors: Anchors
    window: Any = None

    @property
    def shape(self):
        """Widths of keys and values, and the number of features of every group."""
        return self.keys.shape[-1], self.values.shape[-1], [s.sums.shape[-2] for s in self.sums]


@dataclass(frozen=True, eq=False)
class NearGradients:
    """Gradients with respect to a `NearState`, which later positions pass to those before it.

    Parameters
    ----------
    sums : tuple of Sums
        Over all later queries, of every group of query heads that share features.
    keys, values : ndarray of shape (n, d), (n, e)
        With respect to those of the last two blocks.
    anchors : list of ndarray of shape (S, d) and (S, e)
        With respect to keys and values of the anchors.
    """

    sums: tuple
    keys: np.ndarray
    values: np.ndarray
    anchors: list


@dataclass(frozen=True, eq=False)
class Exact:
    """The exact part of a range of blocks.

    Parameters
    ----------
    q : array of shape (..., G, B, n, d)
        Scaled queries of B blocks.
    keys, values : array of shape (..., 1, B, w, d), (..., 1, B, w, e + 1)
        What their rows see; column 0 of the values is the weight.
    near, by_anchor : array of shape (..., G, B, n, w), (..., G, B, n, S)
        Weights, scaled so that the largest of a row is 1.
    top : array of shape (..., G, B, n, 1)
        Their log scale.
    found : array of shape (..., G, B, n, e + 1)
        Denominators and numerators.
    """

    q: Any
    keys: Any
    values: Any
    near: Any
    by_anchor: Any
    top: Any
    found: Any

    @property
    def operands(self):
        """What a backward pass needs."""
        return self.q, self.keys, self.values, self.near, self.by_anchor

    def without_weights(self):
        """Return the sums alone, without what only a backward pass needs."""
        return Exact(None, None, None, None, None, self.top, self.found)


@dataclass(frozen=True, eq=False)
class Reader:
    """Query heads of a unit that share features.

    Parameters
    ----------
    unit : Unit
        The unit, restricted to these query heads and their features.
    queries : slice
        The query heads.
    """

    unit: Any
    queries: slice


class NearAttention:
    """Attention of the queries of a unit to its keys.

    Parameters
    ----------
    unit : Unit
        The inputs; in a stream, those after a state.
    field : NearField
        Which keys are attended to exactly.
    scale : float
        Factor of the products of queries and keys.
    causal : bool
        Whether later keys are not seen.
    size : int, default=None
        Rows processed at a time; None is 2,048.
    state : NearState, default=None
        State after the earlier positions.
    """

    def __init__(self, unit, field, scale, causal, size=None, state=None):
        self.block, self.scale, self.causal, self.size = field.block, scale, causal, size or _ROWS
        self.unit = unit = copy.copy(unit)
        if _largest_logit(unit, scale, state) > LARGEST_SINGLE_LOGIT:
            unit.dtype = namespace(unit.q).float64
        n_before = 0 if state is None else state.position
        is_anchor = _chosen(unit, field, scale, causal, state)
        hidden = is_anchor | ~free(unit)
        places = np.argsort(~is_anchor, axis=-1, kind="stable")
        places = places[..., : is_anchor.sum(axis=-1).max(initial=0)]
        positions = np.where(np.take_along_axis(is_anchor, places, -1), places + n_before, -1)
        self.anchors = Anchors(positions, taken(unit.k, places), taken(unit.v, places))
        self.start = 0
        if state is not None:
            xp, self.start = namespace(unit.k), state.keys.shape[-2]
            self.anchors = state.anchors.joined(self.anchors)
            unit.k = xp.concat([state.keys, unit.k], axis=-2)
            unit.v = xp.concat([state.values, unit.v], axis=-2)
            hidden = np.concatenate([state.hidden, hidden], axis=-1)
        self.origin = n_before - self.start  # position of row 0
        self.hidden, self.n = hidden, hidden.shape[-1]
        self.n_blocks = -(-self.n // self.block)
        unit.hidden = beside(hidden, unit.k) if hidden.any() else None
        shrink = unit.maps.shrink
        shrink = np.ones(unit.q.shape[-3]) if shrink is None else shrink
        with np.errstate(divide="ignore"):
            self._log_shrink = like(np.log(shrink), unit.q)[:, None, None, None, None]
        heads = unit.maps.heads if shrink.any() else []
        self.n_groups = len(unit.maps.groups)
        self.readers = [
            Reader(unit.of(head, own), own)
            for head, own in zip(heads, _parts_of(len(heads)), strict=True)
        ]
        self._state, self._kept = state, None
        if self.n * (unit.v.shape[-1] + 1) <= _KEPT:
            self._kept = unit.values(slice(0, self.n))

    def _anchors(self):
        """Return the anchors' keys, and their values behind a weight of 1."""
        both = cast(self.anchors.keys, self.unit.dtype), self.unit.extended(self.anchors.values)
        return tuple(part[..., None, None, :, :] for part in both)

    # ---------------------------------------------------------------- rows and blocks

    def _ranges(self):
        """Return (first, stop, rows) that cover the queries.

        First and stop are numbers of blocks; only a lone block may be partial.
        """
        block, found, row = self.block, [], self.start
        while row < self.n:
            first = row // block
            stop = first + 1
            if row % block == 0:
                stop = max(stop, min(first + max(1, self.size // block), self.n // block))
            found.append((first, stop, slice(row, min(stop * block, self.n))))
            row = found[-1][-1].stop
        return found

    def _queries(self, rows):
        """Return rows of the queries, which begin at `start`."""
        return slice(rows.start - self.start, rows.stop - self.start)

    def _blocks_of(self, rows, features, values):
        """Return features and values as blocks, the last one padded with rows of weight 0."""
        n_blocks = -(-(rows.stop - rows.start) // self.block)
        missing = n_blocks * self.block - (rows.stop - rows.start)
        lowest = -np.inf if features.scale is None else 0.0

        def folded(array, fill=0.0):
            return as_blocks(filled(array, 0, missing, fill), n_blocks)

        scale = None if features.scale is None else folded(features.scale, -np.inf)
        return Rows(folded(features.values, lowest), scale), folded(values)

    def _rows_of(self, start, stop):
        return slice(start * self.block, min(stop * self.block, self.n))

    def _values(self, rows):
        """Return [1, values] of some keys, with zeros for hidden ones."""
        if self._kept is None:
            return self.unit.values(rows)
        return self._kept[..., rows, :]

    def _far_sums(self, ranges):
        """Return the `FarSums` that every reader reads."""
        readers = self.readers
        before = [None] * len(readers) if self._state is None else self._state.sums
        found = [self._sums_of_keys(*pair) for pair in zip(readers, before, strict=True)]
        for sums in found:
            sums.look_ahead([stop for _, stop, _ in ranges])
        return dict(zip(readers, found, strict=True))

    def _sums_of_keys(self, reader, sums):
        def right(start, stop):
            rows, unit = self._rows_of(start, stop), reader.unit
            return self._blocks_of(rows, unit.key_rows(rows), self._values(rows))

        return FarSums(right, self.n_blocks, after=not self.causal, sums=sums)

    def _window(self, array, first, stop, fill=0.0):
        """Return what the rows of every block see: (..., B, w, c) from an array (..., n, c)."""
        n, sides = stop - first, 1 if self.causal else 2
        begin, end = (first - 1) * self.block, (stop + sides - 1) * self.block
        present = slice(max(begin, 0), min(end, self.n))
        own = array(present)
        if n == 1:
            return own[..., None, :, :]
        own = as_blocks(filled(own, present.start - begin, end - present.stop, fill), n + sides)
        if isinstance(own, np.ndarray):  # a view: neighbouring windows overlap in memory
            shape = (*own.shape[:-3], n, (sides + 1) * self.block, own.shape[-1])
            return np.lib.stride_tricks.as_strided(own, shape, own.strides, writeable=False)
        parts = [own[..., i : i + n, :, :] for i in range(sides + 1)]
        return namespace(own).concat(parts, axis=-2)

    # ---------------------------------------------------------------- exact part

    def exact(self, first, stop, rows):
        """Return the `Exact` part of a range."""
        unit, n = self.unit, stop - first
        q = as_blocks(unit.queries(self._queries(rows)), n) * self.scale
        keys = self._window(unit.keys, first, stop)[..., None, :, :, :]
        values = self._window(self._values, first, stop)[..., None, :, :, :]
        do = arithmetic(q)
        near = q @ transposed(keys)
        if unit.hidden is not None or n > 1:
            hidden = self._window(lambda own: self.hidden[..., own, None], first, stop, True)
            if hidden.any():
                hidden = beside(hidden[..., 0], near)[..., None, :, None, :]
                near = do.fill(near, hidden, -np.inf)
        if self.causal:
            offset = rows.start - max((first - 1) * self.block, 0 if n == 1 else -self.block)
            later = np.arange(near.shape[-1]) > offset + np.arange(near.shape[-2])[:, None]
            near = do.fill(near, beside(later, near), -np.inf)
        anchor_keys, anchor_values = self._anchors()
        by_anchor = q @ transposed(anchor_keys)
        positions = self.anchors.positions
        last = self.origin + rows.start if self.causal else self.n
        if positions.size and not (positions.min() >= 0 and positions.max() <= last):
            own = self.origin + np.arange(rows.start, rows.stop).reshape(n, -1, 1)
            positions = positions[..., None, None, None, :]
            unseen = (positions < 0) | (self.causal & (positions > own))
            by_anchor = do.fill(by_anchor, beside(unseen, near), -np.inf)
        xp = namespace(near)
        top = xp.max(constant(near), axis=-1, keepdims=True)
        if positions.size:
            top = xp.maximum(top, xp.max(constant(by_anchor), axis=-1, keepdims=True))
        near, by_anchor = (do.exp(do.subtract(part, finite(top))) for part in (near, by_anchor))
        found = do.add(near @ values, by_anchor @ anchor_values)
        return Exact(q, keys, values, near, by_anchor, top, found)

    def _exact_sums(self, ranges):
        """Return the exact parts of consecutive ranges, without weights."""
        if is_torch_array(self.unit.q):
            from ._torch import exact_parts, is_differentiated

            inputs = self.unit.q, self.unit.k, self.unit.v, self.anchors.keys, self.anchors.values
            if is_differentiated(inputs):
                return exact_parts(self, ranges, inputs)
        return (self.exact(*own).without_weights() for own in ranges)

    # ---------------------------------------------------------------- forward

    def attend(self, out):
        """Write the outputs; return the state after them."""
        ranges = self._ranges()
        far = self._far_sums(ranges)
        for (first, stop, rows), exact in zip(ranges, self._exact_sums(ranges), strict=True):
            if far:
                own = self._far_part(far, first, stop, rows)
                found = _mean_quotients(self._merged(exact, *own)[0])
            else:
                found = quotients(exact.found)
            out.put(self._queries(rows), as_rows(found))
        keep = slice(max(0, self.n_blocks - 2) * self.block, None)
        keys, values = (_own(part[..., keep, :]) for part in (self.unit.k, self.unit.v))
        sums, hidden = tuple(own.sums for own in far.values()), self.hidden[..., keep].copy()
        return NearState(self.origin + self.n, sums, keys, values, hidden, self.anchors)

    def errors(self, places, expected, factors):
        """Return the squared errors at sorted positions, for every factor of the far part.

        NumPy only; the result has an axis for the query heads.
        """
        ranges, parts = self._ranges(), []
        far = self._far_sums(ranges)
        for first, stop, rows in ranges:
            at = places[(places >= rows.start) & (places < rows.stop)] - rows.start
            exact, own = self.exact(first, stop, rows), self._far_part(far, first, stop, rows)
            exact = (part[..., None, :, :] for part in (exact.found, exact.top))
            parts.append([as_rows(np.moveaxis(part, -3, 0))[..., at, :] for part in (*exact, *own)])
        exact, exact_scale, own, scale = _joined(parts, -2)
        with np.errstate(divide="ignore"):
            logs = np.log(factors).astype(scale.dtype)
        squares = []
        for log in logs:
            total = _merged(exact, exact_scale, own.copy(), scale + log)[0]
            out = quotients(total).mean(axis=0)
            squares.append(np.sum((out - expected) ** 2, axis=(-2, -1)))
        return np.array(squares)

    def _read(self, reader, far, first, stop, rows):
        """Yield (rows, blocks of the range, found, log scale, slopes, sums) of queries."""
        for part in far.parts(first, stop):
            own = self._rows_of(part.first, part.stop)
            own = slice(max(own.start, rows.start), min(own.stop, rows.stop))
            blocks = slice(part.first - first, part.stop - first)
            features = reader.unit.query_rows(self._queries(own))
            yield own, blocks, *_found(features, part, self.n_groups)

    def _far_part(self, far, *given):
        """Return the far part of all query heads in a range, and its log scale."""
        found = []
        for reader, sums in far.items():
            found.append(_joined([part[2:4] for part in self._read(reader, sums, *given)], -4))
        return _joined(found, -5)

    def _merged(self, exact, found, scale, own=slice(None), blocks=slice(None)):
        """Return sums of exact and far part, their log scale, and the factors of both.

        All query heads or some of them (`own`), and all blocks of the range or some.
        """
        parts = (part[..., own, blocks, None, :, :] for part in (exact.found, exact.top))
        scale = scale + cast(self._log_shrink[own, ...], scale.dtype)
        return _merged(*parts, found, scale)

    # ---------------------------------------------------------------- backward, NumPy only

    def backward(self, gradient, found, later=None):
        """Write the gradients of sum(gradient * attention) into `Gradients`.

        Parameters
        ----------
        gradient : ndarray of shape (G, L, e)
            Gradient with respect to the output.
        found : Gradients
            What is written.
        later : NearGradients, default=None
            With respect to the state after these positions; None where none come after.

        Returns
        -------
        NearGradients or None
            With respect to the state before; None where there was none.
        """
        unit, ranges = self.unit, self._ranges()
        self._by = {
            name: np.zeros(part.shape, unit.dtype)
            for name, part in (("q", unit.q), ("k", unit.k), ("v", unit.v))
        }
        anchors = self.anchors.keys, self.anchors.values
        self._by_anchor = [np.zeros(part.shape, unit.dtype) for part in anchors]
        if later is not None:
            self._take(later)
        far = self._far_sums(ranges)
        # What every query contributes to its far keys: gradients of its sums, and their log scale.
        widths = unit.v.shape[-1] + 1, 1
        left = {}
        for reader in far:
            n_heads, n_queries = reader.unit.q.shape[:2]
            shape = n_heads, self.n_groups, n_queries
            left[reader] = [np.empty((*shape, n), unit.dtype) for n in widths]
        for first, stop, rows in ranges:
            exact = self.exact(first, stop, rows)
            own = as_blocks(gradient[:, self._queries(rows)].astype(unit.dtype), stop - first)
            by_exact = np.zeros_like(exact.found) if far else by_sums_of(exact.found, own)
            for reader, sums in far.items():
                for part in self._read(reader, sums, first, stop, rows):
                    self._read_back(reader, exact, part, own, by_exact, left[reader])
            self._exact_back(exact, by_exact, first, stop, rows)
        before = [None] * len(left) if later is None else later.sums
        sums = [
            self._far_back(reader, *left[reader], own)
            for reader, own in zip(left, before, strict=True)
        ]
        return self._written(found, tuple(sums))

    def _take(self, later):
        """Add what later positions passed back to the last two blocks and the anchors."""
        for name, part in (("k", later.keys), ("v", later.values)):
            self._by[name][self.n - len(part) :] += part
        for by_anchor, part in zip(self._by_anchor, later.anchors, strict=True):
            by_anchor += part

    def _written(self, found, sums):
        """Write the gradients, and return those with respect to the state before."""
        n_before = 0 if self._state is None else self._state.anchors.positions.shape[-1]
        positions = self.anchors.positions[n_before:]
        for name, by_anchor in zip("kv", self._by_anchor, strict=True):
            is_anchor = positions >= 0
            own = positions[is_anchor] - self.origin
            self._by[name][own] += by_anchor[n_before:][is_anchor]
        by_k, by_v = self._by["k"], self._by["v"]
        every = slice(0, self.n - self.start)
        found.by_q.put(every, self._by["q"])
        found.by_k.put(every, by_k[self.start :])
        found.by_v.put(every, by_v[self.start :])
        if self._state is None:
            return None
        kept = (part[: self.start].copy() for part in (by_k, by_v))
        return NearGradients(sums, *kept, [part[:n_before] for part in self._by_anchor])

    def _read_back(self, reader, exact, part, gradient, by_exact, kept):
        """Add the feature-based gradients of some queries, and keep what their far keys need."""
        rows, blocks, read, scale, slopes, matrix = part
        own, unit = reader.queries, reader.unit
        total, top, of_exact, of_far = self._merged(exact, read, scale, own, blocks)
        by_total = by_sums_of(total, gradient[own, blocks, None] / self.n_groups)
        by_exact[own, blocks] += np.sum(by_total * of_exact, axis=-3)
        rows = self._queries(rows)
        for array, values in zip(kept, (by_total, top), strict=True):
            array[:, :, rows] = as_rows(np.moveaxis(values, -3, 1))
        by_values = _ungrouped((by_total * of_far) @ transposed(matrix) * slopes)
        by_values = as_rows(by_values)
        self._by["q"][own, rows] += pulled(unit.head.queries, unit.queries(rows), by_values)

    def _exact_back(self, exact, by_sums, first, stop, rows):
        """Add the gradients of the exact part of a range, with NumPy or torch."""
        xp, do = namespace(by_sums), arithmetic(by_sums)
        anchor_keys, anchor_values = self._anchors()
        by_near = do.multiply(by_sums @ transposed(exact.values), exact.near)
        by_logit = do.multiply(by_sums @ transposed(anchor_values), exact.by_anchor)
        by_q = do.add(by_near @ exact.keys, by_logit @ anchor_keys)
        self._by["q"][..., self._queries(rows), :] += as_rows(do.multiply(by_q, self.scale))
        for name, by_window in (
            ("k", _sum_of_heads(transposed(transposed(exact.q) @ by_near))),
            ("v", _sum_of_heads(transposed(transposed(by_sums) @ exact.near))[..., 1:]),
        ):
            self._spread(self._by[name], by_window, first, stop)
        by_keys = transposed(by_logit) @ exact.q, transposed(exact.by_anchor) @ by_sums
        by_keys, by_values = (xp.sum(part, axis=(-4, -3)) for part in by_keys)
        self._by_anchor[0] += by_keys
        self._by_anchor[1] += by_values[..., 1:]

    def _spread(self, target, windows, first, stop):
        """Add gradients of windows back to the rows they show: the adjoint of `_window`."""
        n, sides = stop - first, 1 if self.causal else 2
        begin = (first - 1) * self.block
        if n == 1:
            start = max(begin, 0)
            target[..., start : start + windows.shape[-2], :] += windows[..., 0, :, :]
            return
        shape = (*windows.shape[:-3], n + sides, self.block, windows.shape[-1])
        rows = namespace(windows).zeros(shape, dtype=windows.dtype, device=device(windows))
        for i in range(sides + 1):
            rows[..., i : i + n, :, :] += windows[..., i * self.block : (i + 1) * self.block, :]
        rows = as_rows(rows)[..., max(-begin, 0) :, :]
        own = target[..., max(begin, 0) : (stop + sides - 1) * self.block, :]
        own += rows[..., : own.shape[-2], :]

    def without_rows(self):
        """Return what `exact_gradients` needs besides operands and anchors; torch only."""
        own, unit = copy.copy(self), copy.copy(self.unit)
        unit.q, unit.k, unit.v = (
            part.new_empty(()).expand(part.shape) for part in (unit.q, unit.k, unit.v)
        )
        unit.hidden, unit.memory = None, None
        own.unit, own.anchors, own.readers, own._state, own._kept = unit, None, (), None, None
        return own

    def with_anchors(self, keys, values):
        """Return the same with anchors."""
        own = copy.copy(self)
        own.anchors = Anchors(None, keys, values)
        return own

    def exact_gradients(self, exacts, by_sums, ranges):
        """Return the gradients with respect to queries, keys, values and the anchors'.

        Exact parts only, for torch, which differentiates the far part itself.
        """
        own, unit, anchors = copy.copy(self), self.unit, self.anchors
        inputs = unit.q, unit.k, unit.v, anchors.keys, anchors.values
        zeros = [namespace(unit.q).zeros_like(part, dtype=unit.dtype) for part in inputs]
        own._by, own._by_anchor = dict(zip("qkv", zeros, strict=False)), zeros[3:]
        for parts in zip(exacts, by_sums, ranges, strict=True):
            own._exact_back(*parts[:2], *parts[2])
        if unit.value_unit != 1:
            for i in (2, 4):
                zeros[i] /= unit.value_unit
        return zeros

    def _far_back(self, reader, gradients, scales, later):
        """Add the gradients of far keys, which read sums over queries as queries do over keys.

        Returns those sums over all queries if there is an earlier state.
        """
        unit, n_groups = reader.unit, self.n_groups
        shift = self._log_shrink[reader.queries, :, 0] - finite(scales)
        shift = np.where(scales > -np.inf, shift, -np.inf).astype(scales.dtype)
        shift, gradients = (np.moveaxis(part, 1, 0) for part in (shift, gradients))

        def features_of(queries):
            values, scale = _apart(unit.query_rows(queries), n_groups)
            if scale is None:
                return Rows(values + shift[:, :, queries])
            return Rows(values, scale + shift[:, :, queries])

        def right(start, stop):
            rows = self._rows_of(start, stop)
            queries = self._queries(rows)
            own = gradients[:, :, queries]
            features, values = self._blocks_of(rows, features_of(queries), own)

            def of_all_heads(array):
                return as_rows(np.moveaxis(array, 1, -3))

            return features.map(of_all_heads), of_all_heads(values)

        self._add_far(reader, right, later)
        if self._state is None:
            return None
        for queries in blocks(self.n - self.start, self.size):
            features = features_of(queries).map(as_rows)
            later = added(later, features, as_rows(gradients[:, :, queries]))
        return later

    def _add_far(self, reader, right, later):
        """Add the gradients of the far keys of some queries, given sums over these queries."""
        unit, n_groups = reader.unit, self.n_groups
        ranges = [(first, stop) for first, stop, _ in self._ranges()]
        if self.causal:  # the last two blocks are not yet far from any query
            n, size = max(0, self.n_blocks - 2), max(1, self.size // self.block)
            ranges = [(own.start, own.stop) for own in blocks(n, size)]
        if not ranges:
            return
        far = FarSums(right, self.n_blocks, before=not self.causal, later=later)
        far.look_ahead([stop for _, stop in ranges])
        for first, stop in ranges:
            for part in far.parts(first, stop):
                rows, n = self._rows_of(part.first, part.stop), part.stop - part.first
                features = _apart(unit.key_rows(rows), n_groups).map(lambda array: array[:, None])
                read, scale, slopes, matrix = _found(features, part, 1)
                factor = np.exp(scale)
                self._by["v"][rows] += np.sum(as_rows((read * factor)[:, 0, :, 0]), axis=0)[:, 1:]
                values = as_blocks(self._values(rows), n)[:, None]
                by_values = (values @ transposed(matrix) * slopes * factor)[:, 0, :, 0]
                by_values = np.moveaxis(as_rows(by_values), 0, -2)
                by_values = by_values.reshape(len(by_values), -1)
                self._by["k"][rows] += pulled(unit.head.keys, unit.keys(rows), by_values)


# ---------------------------------------------------------------- rows and blocks


def _parts_of(n):
    """Return the query heads of every one of n readers."""
    return [slice(None)] if n == 1 else [slice(g, g + 1) for g in range(n)]


def _joined(parts, axis):
    """Return several (found, scale) pairs as one."""
    if len(parts) == 1:  # the usual case: no copy
        return parts[0]
    return [namespace(own[0]).concat(own, axis=axis) for own in zip(*parts, strict=True)]


def _merged(exact, exact_scale, far, far_scale):
    """Return exact and far sums together, their log scale, and the factors of both.

    NumPy's far sums are overwritten.
    """
    xp, do = namespace(far), arithmetic(far)
    top = xp.maximum(exact_scale, far_scale)
    of_exact, of_far = (xp.exp(differences(part, finite(top))) for part in (exact_scale, far_scale))
    total = do.add(do.multiply(far, cast(of_far, far.dtype)), exact * of_exact)
    return total, top, of_exact, of_far


def _sum_of_heads(array):
    """Return (..., G, B, n, c) summed over the query heads."""
    return array[..., 0, :, :, :] if array.shape[-4] == 1 else namespace(array).sum(array, axis=-4)


def _mean_quotients(sums):
    """Return the means over groups of numerators over denominators; NumPy's are overwritten."""
    if is_torch_array(sums):
        xp, found = namespace(sums), quotients(sums)
        return xp.squeeze(found, axis=-3) if found.shape[-3] == 1 else xp.mean(found, axis=-3)
    weight, n_groups = sums[..., :1], sums.shape[-3]
    divisor = n_groups * namespace(sums).where(weight == 0, like(np.inf, sums), weight)
    return namespace(sums).sum(arithmetic(sums).divide(sums, divisor), axis=-3)[..., 1:]


def _found(features, part, n_groups):
    """Return what rows (..., G, n, M) read from a `FarPart`: (..., G, B, n_groups, n / B, c).

    With it come the log scale, slopes and sums, with an axis for the groups of columns.
    """
    n_blocks = part.stop - part.first
    features = features.map(lambda array: grouped(as_blocks(array, n_blocks), n_groups))
    top = grouped(part.top[..., None, :, None, :], n_groups)
    factors, slopes, scale = (swapped(own) for own in levelled(features, top))
    shape = (*part.sums.shape[:-2], n_groups, -1, part.sums.shape[-1])
    matrix = namespace(factors).reshape(cast(part.sums, factors.dtype), shape)
    matrix = matrix[..., None, :, :, :, :]
    return factors @ matrix, scale, slopes, matrix


def grouped(array, n_groups):
    """Return columns (..., M) as those of groups: (..., n_groups, M / n_groups)."""
    width = array.shape[-1]
    shape = (1, 1) if width == 1 else (n_groups, width // n_groups)
    return namespace(array).reshape(array, (*array.shape[:-1], *shape))


def swapped(array):
    """Return rows and groups with their axes swapped."""
    return namespace(array).moveaxis(array, -3, -2)


def _ungrouped(array):
    """Return columns of groups (..., n_groups, n, m) side by side, (..., n, n_groups m)."""
    array = swapped(array)
    return array.reshape(*array.shape[:-2], -1)


def _apart(rows, n_groups):
    """Return features with the groups of their columns along the first axis; NumPy only."""
    values, scale = rows
    values = np.moveaxis(grouped(values, n_groups), -2, 0)
    if scale is not None:
        scale = np.moveaxis(grouped(scale, n_groups), -2, 0)
        scale = np.broadcast_to(scale, (n_groups, *scale.shape[1:]))
    return Rows(values, scale)


def _largest_logit(unit, scale, state):
    """Return an upper bound of all logits, or raise if they leave the range of float64."""
    keys = [unit.k] if state is None else [unit.k, state.keys, state.anchors.keys]
    bound = scale * longest(unit.q) * max(map(longest, keys))
    if not math.isfinite(bound):
        raise ValueError(
            "q and k are too large: products of theirs may exceed the range of float64; their "
            f"largest entries are {largest_entry(unit.q):.3g} and {largest_entry(unit.k):.3g}, and "
            f"scale={scale:.3g}."
        )
    return bound


def longest(rows):
    """Return the largest length of rows (..., n, c); 0 if there are none."""
    if 0 in rows.shape:
        return 0.0
    return math.sqrt(largest_norm2(namespace(rows).reshape(rows, (-1, rows.shape[-1]))))


def _own(array):
    """Return a part of an array that does not keep the whole array alive."""
    return array if is_array_api(array) else array.copy()


# ---------------------------------------------------------------- anchors


def _chosen(unit, field, scale, causal, state):
    """Return, on the host, which new keys are anchors."""
    is_free = free(unit)
    if isinstance(field.anchors, tuple):
        start = 0 if state is None else state.position
        return is_free & np.isin(start + np.arange(is_free.shape[-1]), field.anchors)
    if causal:
        n_before = 0 if state is None else np.sum(state.anchors.positions >= 0, axis=-1)
        return is_free & (np.cumsum(is_free, -1) + np.asarray(n_before)[..., None] <= field.anchors)
    is_chosen = np.zeros(is_free.shape, bool)
    if field.anchors:
        own = np.where(is_free, scores(unit, sampled(is_free, _SAMPLED), scale), -np.inf)
        best = np.argsort(-own, axis=-1, kind="stable")[..., : field.anchors]
        np.put_along_axis(is_chosen, best, True, axis=-1)
    return is_free & is_chosen
