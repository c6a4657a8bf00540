"""Sizes of local attention, and which positions of which sequences are computed together.

Positions count the keys of a sequence that are not padding, and come in blocks whose queries share
the keys that they see exactly, up to the later ones of their own block.
"""

from typing import Any, NamedTuple

import numpy as np

from ..._arrays import filled, namespace, take
from ..._validation import check_integer
from .selection import taken

_CAUSAL_UNITS, _CAUSAL_HEAVY = 256, 64
_UNITS, _HEAVY, _SUMMARIES = 288, 72, 16
_BLOCKS = 3  # that a bidirectional window has at least


class Sizes(NamedTuple):
    """How many keys a query sees.

    Parameters
    ----------
    window : int
        Keys before a block, or around and in it if attention is bidirectional.
    n_heavy : int
        Keys beyond the window that are seen exactly.
    n_summaries : int
        Keys that stand for all others.
    block : int
        Positions in a block.
    causal : bool
        Whether later keys are not seen.
    """

    window: int
    n_heavy: int
    n_summaries: int
    block: int
    causal: bool

    @property
    def units(self):
        """Exact keys per query, in the mean; positions below it see all keys exactly."""
        half = self.block // 2 if self.causal else 0
        return self.window + half + self.n_heavy + self.n_summaries

    def seen_from(self, start):
        """Return the first position that a causal block at a position sees exactly."""
        return 0 if start < self.units else start - self.window

    @property
    def n_first(self):
        """Positions of the causal blocks that see all keys, of which there is at least one.

        Their queries make the mean query.
        """
        return max(-(-self.units // self.block), 1) * self.block

    def n_needed(self, count):
        """Return how many of the last positions later causal blocks need."""
        return count - self.seen_from(self.last_begun(count))

    def last_begun(self, count):
        """Return where the last causal block begins that has any of these positions."""
        last = max(count - 1, 0)
        return last - last % self.block

    def around(self, start, length):
        """Return the slice of positions that a bidirectional block sees exactly."""
        low = max(0, min(start + (self.block - self.window) // 2, length - self.window))
        return slice(low, min(low + self.window, length))


def sizes_of(window, n_heavy, n_summaries, block, causal):
    """Return the `Sizes` of parameters, None being the defaults, or raise and name them."""
    block = check_integer("block", block)
    given = (
        (n_heavy, _CAUSAL_HEAVY if causal else _HEAVY),
        (n_summaries, 1 if causal else _SUMMARIES),
    )
    n_heavy, n_summaries = (
        default if number is None else check_integer(name, number, least=0)
        for name, (number, default) in zip(("n_heavy", "n_summaries"), given, strict=True)
    )
    if causal and n_summaries > 1:
        raise ValueError(
            f"n_summaries must be 0 or 1 with causal=True, got {n_summaries}: keys beyond the "
            "window are added to the summary once they are known."
        )
    least = 0 if causal else _BLOCKS * block
    if window is None:
        rest = n_heavy + n_summaries
        window = max(_CAUSAL_UNITS - block // 2 - rest if causal else _UNITS - rest, least)
    window = check_integer("window", window, least=0)
    if window < least:
        raise ValueError(
            f"window must be at least {_BLOCKS} blocks, {least}, unless causal=True, got {window}."
        )
    return Sizes(window, n_heavy, n_summaries, block, causal)


class Stretch(NamedTuple):
    """Sets of keys whose positions are numbered alike.

    Parameters
    ----------
    sets : ndarray of int or slice
        Which ones; a slice if all.
    rows : ndarray of int of shape (n_sets, m) or None
        Their rows without padding, which may follow in some sets; None is all rows.
    count : int
        Positions before these rows.
    """

    sets: Any
    rows: np.ndarray | None
    count: int


def stretches(padding, counts, is_together):
    """Return the `Stretch` objects of a call.

    Parameters
    ----------
    padding : ndarray of bool of shape (U, n_rows) or None
        True where a key is padding, on the host.
    counts : ndarray of int of shape (U,)
        Positions before these rows.
    is_together : bool
        Whether sets with different numbers of rows may be together, with padding behind theirs: it
        changes nothing before it if attention is causal, but a state would count it.
    """
    n_kept = np.zeros_like(counts) if padding is None else (~padding).sum(axis=1)
    kinds = np.stack([counts, np.full_like(n_kept, n_kept.max()) if is_together else n_kept])
    kinds, numbers = np.unique(kinds, axis=1, return_inverse=True)
    numbers, found = numbers.ravel(), []
    for i, (count, n_rows) in enumerate(kinds.T.tolist()):
        sets = slice(None) if kinds.shape[1] == 1 else np.flatnonzero(numbers == i)
        rows = None
        if padding is not None:  # those that are not padding come first, in their order
            rows = np.argsort(padding[sets], axis=1, kind="stable")[:, :n_rows]
        found.append(Stretch(sets, rows, count))
    return found


def of_sets(array, sets):
    """Return the entries of some sets."""
    return array if isinstance(sets, slice) else take(array, sets)


def in_order(parts, stretches):
    """Return the arrays of every `Stretch` as one, with sets in their order."""
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate([stretch.sets for stretch in stretches]))
    return take(namespace(parts[0]).concat(parts, axis=0), order)


def rows_of(array, part):
    """Return the rows of a `Stretch`, (n_sets, ..., m, w), of an array (U, ..., n, w)."""
    array = of_sets(array, part.sets)
    if part.rows is None:
        return array
    (n_sets, n), lead = part.rows.shape, array.shape[:-2]
    numbers = part.rows.reshape(n_sets, *[1] * (len(lead) - 1), n)
    return taken(array, np.broadcast_to(numbers, (*lead, n)))


def at_their_places(out, fill, hidden, first, n_missing):
    """Return outputs at their places, and a number at those of padding.

    Parameters
    ----------
    out : array of shape (U, G, m, e)
        Outputs of positions without padding from number `first` on.
    fill : float
        The number.
    hidden : ndarray of bool of shape (U, n)
        Which positions are padding.
    first : int
        Number of the first one.
    n_missing : int
        Positions that have no query.
    """
    places = np.where(hidden, 0, np.cumsum(~hidden, axis=1) - first)[:, None, n_missing:]
    out = with_zeros(out, 1, fill)
    return taken(out, np.broadcast_to(places, (*out.shape[:2], places.shape[-1])))


def with_zeros(rows, n, fill=0.0):
    """Return rows (U, G, m, w) with n rows of zeros, or of a number, before them."""
    if not n:
        return rows
    zeros = filled(fill, (*rows.shape[:2], n, rows.shape[-1]), rows, rows.dtype)
    return namespace(rows).concat([zeros, rows], axis=-2)
