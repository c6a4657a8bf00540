"""The first rows of `partial_fit`, kept until there are enough of them for a feature map.

A map learns its sigma, centres and other parameters from rows, and learns nothing useful from a
tiny first batch. While rows are kept, the map is fitted again to all of them whenever the number of
distinct ones has doubled, and a last time when there are enough; then they are dropped.

Law: the model is the fit to the first r rows, with the map that a first batch gets, followed by
`partial_fit` of the others, where r distinct rows are at least half of those so far, or all rows
that were kept, if they are kept no more.
"""

import hashlib
from dataclasses import dataclass, replace
from numbers import Integral

import array_api_compat
import numpy as np
import scipy.sparse as sp
from sklearn.frozen import FrozenEstimator

from .._arrays import constant, is_array_api, namespace, to_host
from ..features import last_step

_ENOUGH = 256  # distinct rows, of which sigma and the like are learned well
_PER_COMPONENT = 4  # distinct rows, where components are placed near rows
_MOST_ROWS, _MOST_NUMBERS = 4096, 2**22


@dataclass(frozen=True, eq=False)
class FirstRows:
    """Validated rows of positive weight; immutable.

    Parameters
    ----------
    enough : int
        Number of distinct rows that the map needs.
    parts : tuple of tuple, default=()
        X, y and weights (or None) of every batch, in the libraries that they came in.
    known : frozenset of bytes, default=frozenset()
        Digests of the distinct rows.
    n_numbers : int, default=0
        Numbers that are stored in X.
    n_mapped : int, default=0
        Number of distinct rows that the map was fitted to.
    """

    enough: int
    parts: tuple = ()
    known: frozenset = frozenset()
    n_numbers: int = 0
    n_mapped: int = 0

    @property
    def n_rows(self):
        """Number of rows."""
        return sum(len(y) for _, y, _ in self.parts)

    @property
    def suffice(self):
        """Whether there are enough distinct rows, or so many rows that no more should be kept."""
        return (
            len(self.known) >= self.enough
            or self.n_rows >= _MOST_ROWS
            or self.n_numbers >= _MOST_NUMBERS
        )

    @property
    def ask_for_a_map(self):
        """Whether the map should be fitted to all of them."""
        return self.suffice or len(self.known) >= 2 * self.n_mapped

    @property
    def mapped(self):
        """The same after such a fit; None if no more rows need to be kept."""
        return None if self.suffice else replace(self, n_mapped=len(self.known))

    def added(self, data):
        """Return these and the rows of a batch, which are not copied yet."""
        n_numbers = data.X.nnz if sp.issparse(data.X) else int(np.prod(data.X.shape))
        more = replace(
            self,
            parts=(*self.parts, (data.X, data.y, data.sample_weight)),
            n_numbers=self.n_numbers + n_numbers,
        )
        if more.suffice:  # however many of so many rows are distinct
            return more
        return replace(more, known=self.known.union(_digests(data.X)))

    @property
    def owned(self):
        """The same with a copy of the latest batch, whose arrays belong to the caller."""
        X, y, weights = self.parts[-1]
        weights = None if weights is None else weights.copy()
        return replace(self, parts=(*self.parts[:-1], (_copied(X), y.copy(), weights)))

    @property
    def together(self):
        """X, y and weights (or None) of all rows, on their device if that is the same for all."""
        X, y, weights = zip(*self.parts, strict=True)
        if any(part is not None for part in weights):
            pairs = zip(weights, y, strict=True)
            weights = np.concatenate([np.ones(len(y)) if w is None else w for w, y in pairs])
        else:
            weights = None
        return _stacked(X), np.concatenate(y), weights


def enough_for(feature_map):
    """Return of how many distinct rows a transformer learns well; 0 if it is fitted already."""
    transformer = last_step(feature_map)
    if isinstance(feature_map, FrozenEstimator):
        return 0
    size = getattr(transformer, "n_components", None)
    # Transformers of other packages may place components near rows, as Nystroem does.
    is_near_rows = getattr(transformer, "_looks_at_rows", True)
    is_counted = is_near_rows and isinstance(size, Integral)
    return max(_ENOUGH, _PER_COMPONENT * int(size)) if is_counted else _ENOUGH


def _digests(X):
    """Yield a digest of every row that depends on its values alone."""
    X = to_host(X)
    if sp.issparse(X):
        X = sp.csr_array(X, dtype=np.float64, copy=True)
        X.eliminate_zeros()
        X.sort_indices()
        ends = zip(X.indptr[:-1], X.indptr[1:], strict=True)
        indices = X.indices.astype(np.int64)
        rows = (indices[a:b].tobytes() + X.data[a:b].tobytes() for a, b in ends)
    else:
        rows = (row.tobytes() for row in X.astype(np.float64) + 0.0)  # no -0
    for row in rows:
        yield hashlib.blake2b(row, digest_size=16).digest()


def _copied(X):
    return namespace(X).asarray(constant(X), copy=True) if is_array_api(X) else X.copy()


def _stacked(parts):
    """Return the rows of batches, which may have come in several libraries."""
    if len(parts) == 1:
        return parts[0]
    if all(map(is_array_api, parts)):
        places = {(namespace(X), str(array_api_compat.device(X))) for X in parts}
        if len(places) == 1:
            return namespace(parts[0]).concat(parts, axis=0)
    parts = list(map(to_host, parts))
    return sp.vstack(parts, format="csr") if any(map(sp.issparse, parts)) else np.concatenate(parts)
