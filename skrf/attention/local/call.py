"""What a call of local attention reads, and the part of it that belongs to one stretch."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .decay import decaying, split
from .layout import at_their_places, of_sets, rows_of
from .selection import Statistics


@dataclass(frozen=True, eq=False)
class Call:
    """The positions of a call, or of one `Stretch` of it.

    Parameters
    ----------
    q : array of shape (U, G, n, d)
        Queries, not scaled; zeros for positions without one.
    rows : array of shape (U, n, d + e)
        Keys and values.
    known : Statistics or None
        Of queries and keys of a fit.
    rates : array of shape (U,) or None
        Rates of a decay, which adds a number to queries and keys of a stretch.
    scale : float
        Factor of the products of queries and keys.
    hidden : ndarray of bool of shape (U, n) or None
        True where a key is padding, on the host.
    n_missing : int
        Number of leading positions that have no query, padding included.
    count : int, default=0
        Positions before these rows, of a stretch.
    first : int, default=0
        Number of leading rows that have no query, of a stretch.
    """

    q: Any
    rows: Any
    known: Statistics | None
    rates: Any
    scale: float
    hidden: np.ndarray | None
    n_missing: int
    count: int = 0
    first: int = 0

    def of(self, stretch):
        """Return the positions of a `Stretch`, without padding and with its decay."""
        q, rows = (rows_of(array, stretch) for array in (self.q, self.rows))
        known, rates, hidden, first = self.known, self.rates, self.hidden, self.n_missing
        if known is not None:
            known = Statistics(*(of_sets(array, stretch.sets) for array in known))
        if rates is not None:
            rates = of_sets(rates, stretch.sets)
            q, rows, known = decaying(q, rows, known, rates, stretch.count, self.scale)
        if hidden is not None:
            hidden = hidden[stretch.sets]
            first = int((~hidden[:, : self.n_missing]).sum(axis=1).min())
        given = self.scale, hidden, self.n_missing, stretch.count, first
        return Call(q, rows, known, rates, *given)

    def placed(self, out):
        """Return outputs and log-sum-exps of all queries, from both of rows without padding."""
        out, lse = split(out, self.rates, self.count + self.first)
        if self.hidden is None:
            return out, lse
        places = self.hidden, self.first, self.n_missing
        lse = at_their_places(lse[..., None], -np.inf, *places)[..., 0]
        return at_their_places(out, 0.0, *places), lse
