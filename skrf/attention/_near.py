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
from numpy.lib.stride_tricks import sliding_window_view

from .._arrays import (
    arithmetic,
    beside,
    cast,
    constant,
    is_array_api,
    largest_norm2,
    like,
    namespace,
)
from .._sums import Rows, added, differences, finite, levelled, transposed
from ._backward import by_sums_of, pulled
from ._far import FarSums
from ._heads import as_blocks, as_rows, blocks, filled, quotients
from ._sampled import free, sampled, scores, taken
from ._shapes import check_logits

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

    @classmethod
    def among(cls, positions, keys, values):
        """Return the anchors among rows: those with a position, the others of which have -1."""
        is_empty = positions < 0
        places = np.argsort(is_empty, axis=-1, kind="stable")
        places = places[..., : np.sum(~is_empty, axis=-1).max(initial=0)]
        positions = np.take_along_axis(positions, places, axis=-1)
        return cls(positions, taken(keys, places), taken(values, places))


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


@dataclass(frozen=True, eq=False)
class NearGradients:
    """Gradients with respect to a `NearState`, which later positions pass to those before it.

    Parameters
    ----------
    sums : tuple of Sums
        Over all later queries, of every group of query heads that share features.
    keys, values : ndarray of shape (n, d), (n, e)
        With respect to those of the last two blocks.
    anchor_keys, anchor_values : ndarray of shape (S, d), (S, e)
        With respect to those of the anchors.
    """

    sums: tuple
    keys: np.ndarray
    values: np.ndarray
    anchor_keys: np.ndarray
    anchor_values: np.ndarray


@dataclass(frozen=True, eq=False)
class Layout:
    """Rows in blocks: those of a state first, then those of the queries.

    Parameters
    ----------
    block : int
        Number of rows in a block.
    causal : bool
        Whether rows do not see later ones.
    start : int
        Number of rows before the first query.
    n : int
        Number of rows.
    """

    block: int
    causal: bool
    start: int
    n: int

    @property
    def n_blocks(self):
        """Number of blocks; the last one may be partial."""
        return -(-self.n // self.block)

    def ranges(self, size):
        """Return (first, stop, rows) that cover the queries, of about `size` rows.

        First and stop are numbers of blocks; only a lone block may be partial.
        """
        block, found, row = self.block, [], self.start
        while row < self.n:
            first = row // block
            stop = first + 1
            if row % block == 0:
                stop = max(stop, min(first + max(1, size // block), self.n // block))
            found.append((first, stop, slice(row, min(stop * block, self.n))))
            row = found[-1][-1].stop
        return found

    def queries(self, rows):
        """Return rows of the queries, which begin at `start`."""
        return slice(rows.start - self.start, rows.stop - self.start)

    def rows(self, start, stop):
        """Return the rows of some blocks."""
        return slice(start * self.block, min(stop * self.block, self.n))

    def window(self, array, first, stop, fill=0.0):
        """Return what the rows of every block see: (..., B, w, c) from an array (..., n, c)."""
        n, sides = stop - first, 1 if self.causal else 2
        begin, end = (first - 1) * self.block, (stop + sides - 1) * self.block
        present = slice(max(begin, 0), min(end, self.n))
        own = array(present)
        if n == 1:
            return own[..., None, :, :]
        own = filled(own, present.start - begin, end - present.stop, fill)
        if isinstance(own, np.ndarray):  # a view: neighbouring windows overlap in memory
            seen = sliding_window_view(own, (sides + 1) * self.block, axis=-2)
            return seen[..., :: self.block, :, :].swapaxes(-1, -2)
        own = as_blocks(own, n + sides)
        parts = [own[..., i : i + n, :, :] for i in range(sides + 1)]
        return namespace(own).concat(parts, axis=-2)

    def spread(self, target, windows, first, stop):
        """Add gradients of windows back to the rows they show: the adjoint of `window`."""
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


@dataclass(frozen=True, eq=False)
class ExactGradients:
    """Sums of the gradients of exact parts, with NumPy or torch.

    Parameters
    ----------
    layout : Layout
        The blocks.
    scale : float
        Factor of the products of queries and keys.
    q, k, v, anchor_keys, anchor_values : array of shape (..., n, c)
        Gradients with respect to queries, keys and values of the rows, and to the anchors'.
    """

    layout: Layout
    scale: float
    q: Any
    k: Any
    v: Any
    anchor_keys: Any
    anchor_values: Any

    def add(self, operands, by_sums, first, stop, rows):
        """Add the gradients of a range, given the operands of its exact part."""
        q, keys, values, near, by_anchor, anchor_keys, anchor_values = operands
        xp, do = namespace(by_sums), arithmetic(by_sums)
        by_near = do.multiply(by_sums @ transposed(values), near)
        by_logit = do.multiply(by_sums @ transposed(anchor_values), by_anchor)
        by_q = do.add(by_near @ keys, by_logit @ anchor_keys)
        self.q[..., self.layout.queries(rows), :] += as_rows(do.multiply(by_q, self.scale))
        by_keys = _sum_of_heads(transposed(transposed(q) @ by_near))
        by_values = _sum_of_heads(transposed(transposed(by_sums) @ near))
        self.layout.spread(self.k, by_keys, first, stop)
        self.layout.spread(self.v, by_values[..., 1:], first, stop)
        self.anchor_keys[...] += xp.sum(transposed(by_logit) @ q, axis=(-4, -3))
        by_values = xp.sum(transposed(by_anchor) @ by_sums, axis=(-4, -3))
        self.anchor_values[...] += by_values[..., 1:]


@dataclass(frozen=True, eq=False)
class Reader:
    """Query heads of a unit that share features, and the sums that they read.

    Parameters
    ----------
    unit : Unit
        The unit, restricted to these query heads and their features.
    queries : slice
        The query heads.
    far : FarSums
        Sums over the far keys.
    """

    unit: Any
    queries: slice
    far: FarSums


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
        Rows processed at a time; None is 2,048, more on a GPU.
    state : NearState, default=None
        State after the earlier positions.
    """

    def __init__(self, unit, field, scale, causal, size=None, state=None):
        self.scale, self._state = scale, state
        self.size = size or unit.rows_at_once(_ROWS)
        self.unit = unit = copy.copy(unit)
        if _largest_logit(unit, scale, state) > LARGEST_SINGLE_LOGIT:
            unit.dtype = namespace(unit.q).float64
        is_anchor = _chosen(unit, field, scale, causal, state)
        hidden, n_before, start = is_anchor | ~free(unit), 0, 0
        if state is not None:
            n_before, start = state.position, state.keys.shape[-2]
        positions = np.where(is_anchor, n_before + np.arange(is_anchor.shape[-1]), -1)
        keys, values = unit.k, unit.v
        if state is not None:
            xp, old = namespace(unit.k), state.anchors
            positions = np.concatenate([old.positions, positions], axis=-1)
            keys, unit.k = (xp.concat([own, unit.k], axis=-2) for own in (old.keys, state.keys))
            values, unit.v = (
                xp.concat([own, unit.v], axis=-2) for own in (old.values, state.values)
            )
            hidden = np.concatenate([state.hidden, hidden], axis=-1)
        self.anchors = Anchors.among(positions, keys, values)
        self.layout = Layout(field.block, causal, start, hidden.shape[-1])
        self.origin = n_before - start  # position of row 0
        self.hidden = hidden
        unit.hidden = beside(hidden, unit.k) if hidden.any() else None
        self._shrink = unit.maps.shrink
        if self._shrink is None:
            self._shrink = np.ones(unit.q.shape[-3])
        with np.errstate(divide="ignore"):
            self._log_shrink = like(np.log(self._shrink), unit.q)[:, None, None, None, None]
        self.n_groups, self._kept = len(unit.maps.groups), None
        if self.layout.n * (unit.v.shape[-1] + 1) <= _KEPT:
            self._kept = unit.values(slice(0, self.layout.n))
        both = cast(self.anchors.keys, unit.dtype), unit.extended(self.anchors.values)
        self._anchors = tuple(part[..., None, None, :, :] for part in both)

    # ---------------------------------------------------------------- rows and blocks

    def _blocks_of(self, rows, features, values):
        """Return features and values as blocks, the last one padded with rows of weight 0."""
        block = self.layout.block
        n_blocks = -(-(rows.stop - rows.start) // block)
        missing = n_blocks * block - (rows.stop - rows.start)
        lowest = -np.inf if features.scale is None else 0.0

        def folded(array, fill=0.0):
            return as_blocks(filled(array, 0, missing, fill), n_blocks)

        scale = None if features.scale is None else folded(features.scale, -np.inf)
        return Rows(folded(features.values, lowest), scale), folded(values)

    def _values(self, rows):
        """Return [1, values] of some keys, with zeros for hidden ones."""
        return self.unit.values(rows) if self._kept is None else self._kept[..., rows, :]

    def readers(self, ranges):
        """Return the `Reader` of all query heads that share features, for some ranges."""
        heads = self.unit.maps.heads if self._shrink.any() else []
        before = [None] * len(heads) if self._state is None else self._state.sums
        parts = [slice(None)] if len(heads) == 1 else [slice(g, g + 1) for g in range(len(heads))]
        return [self._reader(*own, ranges) for own in zip(heads, parts, before, strict=True)]

    def _reader(self, head, queries, sums, ranges):
        unit, layout = self.unit.of(head, queries), self.layout

        def right(start, stop):
            rows = layout.rows(start, stop)
            return self._blocks_of(rows, unit.key_rows(rows), self._values(rows))

        stops = [stop for _, stop, _ in ranges]
        far = FarSums(right, layout.n_blocks, stops, after=not layout.causal, sums=sums)
        return Reader(unit, queries, far)

    # ---------------------------------------------------------------- exact part

    def exact(self, first, stop, rows):
        """Return the exact part of a range, and what its backward pass needs.

        Returns
        -------
        tuple of array
            Denominators and numerators, (..., G, B, n, e + 1), and their log scale.
        operands : tuple of array
            The scaled queries of B blocks, (..., G, B, n, d); keys and [weight, values] that their
            rows see, (..., 1, B, w, d) and (..., 1, B, w, e + 1); weights of these and of the
            anchors, scaled so that the largest of a row is 1; the anchors' keys and values.
        """
        unit, n = self.unit, stop - first
        layout = self.layout
        q = as_blocks(unit.queries(layout.queries(rows)), n) * self.scale
        keys = layout.window(unit.keys, first, stop)[..., None, :, :, :]
        values = layout.window(self._values, first, stop)[..., None, :, :, :]
        do = arithmetic(q)
        with np.errstate(invalid="ignore"):  # BLAS may compute with what its buffers hold
            near = q @ transposed(keys)
        if unit.hidden is not None or n > 1:
            hidden = layout.window(lambda own: self.hidden[..., own, None], first, stop, True)
            if hidden.any():
                hidden = beside(hidden[..., 0], near)[..., None, :, None, :]
                near = do.fill(near, hidden, -np.inf)
        if layout.causal:
            offset = rows.start - max((first - 1) * layout.block, 0 if n == 1 else -layout.block)
            later = np.arange(near.shape[-1]) > offset + np.arange(near.shape[-2])[:, None]
            near = do.fill(near, beside(later, near), -np.inf)
        anchor_keys, anchor_values = self._anchors
        by_anchor = q @ transposed(anchor_keys)
        positions = self.anchors.positions
        last = self.origin + rows.start if layout.causal else layout.n
        if positions.size and not (positions.min() >= 0 and positions.max() <= last):
            own = self.origin + np.arange(rows.start, rows.stop).reshape(n, -1, 1)
            positions = positions[..., None, None, None, :]
            unseen = (positions < 0) | (layout.causal & (positions > own))
            by_anchor = do.fill(by_anchor, beside(unseen, near), -np.inf)
        xp = namespace(near)
        top = xp.max(constant(near), axis=-1, keepdims=True)
        if positions.size:
            top = xp.maximum(top, xp.max(constant(by_anchor), axis=-1, keepdims=True))
        near, by_anchor = (do.exp(do.subtract(part, finite(top))) for part in (near, by_anchor))
        found = do.add(near @ values, by_anchor @ anchor_values)
        return (found, top), (q, keys, values, near, by_anchor, anchor_keys, anchor_values)

    def _exact_sums(self, ranges):
        """Return the sums and log scales of the exact parts of consecutive ranges."""
        if is_torch_array(self.unit.q):
            from ._torch import exact_parts, is_differentiated

            inputs = self.unit.q, self.unit.k, self.unit.v, self.anchors.keys, self.anchors.values
            if is_differentiated(inputs):
                return exact_parts(self, ranges, inputs)
        return (self.exact(*own)[0] for own in ranges)

    # ---------------------------------------------------------------- forward

    def attend(self, out):
        """Write the outputs; return the state after them."""
        ranges = self.layout.ranges(self.size)
        readers = self.readers(ranges)
        for own, exact in zip(ranges, self._exact_sums(ranges), strict=True):
            if readers:
                found = _mean_quotients(self._merged(exact, *self.far_part(readers, *own))[0])
            else:
                found = quotients(exact[0])
            out.put(self.layout.queries(own[-1]), as_rows(found))
        keep = slice(max(0, self.layout.n_blocks - 2) * self.layout.block, None)
        keys, values = (_own(part[..., keep, :]) for part in (self.unit.k, self.unit.v))
        sums, hidden = tuple(own.far.sums for own in readers), self.hidden[..., keep].copy()
        return NearState(self.origin + self.layout.n, sums, keys, values, hidden, self.anchors)

    def errors(self, places, expected, factors):
        """Return the squared errors at sorted positions, for every factor of the far part.

        NumPy only; the result has an axis for the query heads.
        """
        ranges, parts = self.layout.ranges(self.size), []
        readers = self.readers(ranges)
        for own in ranges:
            rows = own[-1]
            at = places[(places >= rows.start) & (places < rows.stop)] - rows.start
            exact = (part[..., None, :, :] for part in self.exact(*own)[0])
            both = *exact, *self.far_part(readers, *own)
            parts.append([as_rows(np.moveaxis(part, -3, 0))[..., at, :] for part in both])
        exact, exact_scale, own, scale = _joined(parts, -2)
        with np.errstate(divide="ignore"):
            logs = np.log(factors).astype(scale.dtype)
        squares = []
        for log in logs:
            total = _merged(exact, exact_scale, own.copy(), scale + log)[0]
            out = quotients(total).mean(axis=0)
            squares.append(np.sum((out - expected) ** 2, axis=(-2, -1)))
        return np.array(squares)

    def _read(self, reader, first, stop, rows):
        """Yield (rows, blocks of the range, found, log scale, slopes, sums) of queries."""
        for part in reader.far.parts(first, stop):
            own = self.layout.rows(part.first, part.stop)
            own = slice(max(own.start, rows.start), min(own.stop, rows.stop))
            blocks = slice(part.first - first, part.stop - first)
            features = reader.unit.query_rows(self.layout.queries(own))
            yield own, blocks, *_found(features, part, self.n_groups)

    def far_part(self, readers, *given):
        """Return the far part of all query heads in a range, and its log scale."""
        found = []
        for reader in readers:
            found.append(_joined([part[2:4] for part in self._read(reader, *given)], -4))
        return _joined(found, -5)

    def _merged(self, exact, found, scale, own=slice(None), blocks=slice(None)):
        """Return sums of exact and far part, their log scale, and the factors of both.

        All query heads or some of them (`own`), and all blocks of the range or some.
        """
        parts = (part[..., own, blocks, None, :, :] for part in exact)
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
        unit, anchors, layout = self.unit, self.anchors, self.layout
        ranges = layout.ranges(self.size)
        inputs = unit.q, unit.k, unit.v, anchors.keys, anchors.values
        zeros = (np.zeros(part.shape, unit.dtype) for part in inputs)
        self._by = by = ExactGradients(layout, self.scale, *zeros)
        if later is not None:
            by.k[layout.n - len(later.keys) :] += later.keys
            by.v[layout.n - len(later.values) :] += later.values
            by.anchor_keys[...] += later.anchor_keys
            by.anchor_values[...] += later.anchor_values
        readers = self.readers(ranges)
        # What every query contributes to its far keys: gradients of its sums, and their log scale.
        left = []
        for reader in readers:
            n_heads, n_queries = reader.unit.q.shape[:2]
            shape = n_heads, self.n_groups, n_queries
            left.append([np.empty((*shape, n), unit.dtype) for n in (unit.v.shape[-1] + 1, 1)])
        for first, stop, rows in ranges:
            exact, operands = self.exact(first, stop, rows)
            own = as_blocks(gradient[:, layout.queries(rows)].astype(unit.dtype), stop - first)
            by_exact = np.zeros_like(exact[0]) if readers else by_sums_of(exact[0], own)
            for reader, kept in zip(readers, left, strict=True):
                for part in self._read(reader, first, stop, rows):
                    self._read_back(reader, exact, part, own, by_exact, kept)
            by.add(operands, by_exact, first, stop, rows)
        before = [None] * len(left) if later is None else later.sums
        sums = [
            self._far_back(reader, *kept, own)
            for reader, kept, own in zip(readers, left, before, strict=True)
        ]
        return self._written(found, tuple(sums))

    def _written(self, found, sums):
        """Write the gradients, and return those with respect to the state before."""
        by, start = self._by, self.layout.start
        n_before = 0 if self._state is None else self._state.anchors.positions.shape[-1]
        rows = self.anchors.positions[n_before:] - self.origin
        by.k[rows] += by.anchor_keys[n_before:]
        by.v[rows] += by.anchor_values[n_before:]
        every = slice(0, self.layout.n - start)
        found.by_q.put(every, by.q)
        found.by_k.put(every, by.k[start:])
        found.by_v.put(every, by.v[start:])
        if self._state is None:
            return None
        kept = by.k[:start].copy(), by.v[:start].copy()
        return NearGradients(sums, *kept, by.anchor_keys[:n_before], by.anchor_values[:n_before])

    def _read_back(self, reader, exact, part, gradient, by_exact, kept):
        """Add the feature-based gradients of some queries, and keep what their far keys need."""
        rows, blocks, read, scale, slopes, matrix = part
        own, unit = reader.queries, reader.unit
        total, top, of_exact, of_far = self._merged(exact, read, scale, own, blocks)
        by_total = by_sums_of(total, gradient[own, blocks, None] / self.n_groups)
        by_exact[own, blocks] += np.sum(by_total * of_exact, axis=-3)
        rows = self.layout.queries(rows)
        for array, values in zip(kept, (by_total, top), strict=True):
            array[:, :, rows] = as_rows(np.moveaxis(values, -3, 1))
        by_values = _ungrouped((by_total * of_far) @ transposed(matrix) * slopes)
        by_values = as_rows(by_values)
        self._by.q[own, rows] += pulled(unit.head.queries, unit.queries(rows), by_values)

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
            rows = self.layout.rows(start, stop)
            queries = self.layout.queries(rows)
            own = gradients[:, :, queries]
            features, values = self._blocks_of(rows, features_of(queries), own)

            def of_all_heads(array):
                return as_rows(np.moveaxis(array, 1, -3))

            return features.map(of_all_heads), of_all_heads(values)

        self._add_far(reader, right, later)
        if self._state is None:
            return None
        for queries in blocks(self.layout.n - self.layout.start, self.size):
            features = features_of(queries).map(as_rows)
            later = added(later, features, as_rows(gradients[:, :, queries]))
        return later

    def _add_far(self, reader, right, later):
        """Add the gradients of the far keys of some queries, given sums over these queries."""
        unit, layout = reader.unit, self.layout
        ranges = [own[:2] for own in layout.ranges(self.size)]
        if layout.causal:  # the last two blocks are not yet far from any query
            n, size = max(0, layout.n_blocks - 2), max(1, self.size // layout.block)
            ranges = [(own.start, own.stop) for own in blocks(n, size)]
        if not ranges:
            return
        stops = [stop for _, stop in ranges]
        far = FarSums(right, layout.n_blocks, stops, before=not layout.causal, later=later)
        for first, stop in ranges:
            for part in far.parts(first, stop):
                rows, n = layout.rows(part.first, part.stop), part.stop - part.first
                features = _apart(unit.key_rows(rows), self.n_groups)
                features = features.map(lambda array: array[:, None])
                read, scale, slopes, matrix = _found(features, part, 1)
                factor = np.exp(scale)
                self._by.v[rows] += np.sum(as_rows((read * factor)[:, 0, :, 0]), axis=0)[:, 1:]
                values = as_blocks(self._values(rows), n)[:, None]
                by_values = (values @ transposed(matrix) * slopes * factor)[:, 0, :, 0]
                by_values = np.moveaxis(as_rows(by_values), 0, -2)
                by_values = by_values.reshape(len(by_values), -1)
                self._by.k[rows] += pulled(unit.head.keys, unit.keys(rows), by_values)


# ---------------------------------------------------------------- rows and blocks


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
    return check_logits(bound, unit.q, unit.k, scale)


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
