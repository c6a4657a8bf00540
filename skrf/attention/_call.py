"""A call of the operator: what is decided once for all, and the work on some sets at a time."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from .._sums import Sums
from .._threads import run_all
from ._diagnosis import effective_features, n_lost_of, sampled_distances
from ._feature_maps import differ_in_size
from ._inputs import blocks, side_by_side
from .linear import KeyFeatures, Output, attend_to_all, attend_to_earlier
from .masked import attend_under_mask


class AttentionResult(NamedTuple):
    """What is computed of some sets.

    Parameters
    ----------
    out : array of shape (U, G, L, e)
        Outputs.
    lse : array of shape (U, G, L) or None
        Logarithms of sums of weights.
    sums : Sums or None
        Over all keys, in causal attention that goes on.
    is_double : bool
        Whether values are outside the safe range of float32.
    n_lost : int
        Queries whose weights sum to 0 although they see a key.
    distances : ndarray or float
        As from `sampled_distances`, or 0.
    """

    out: Any
    lse: Any
    sums: Sums | None
    is_double: bool
    n_lost: int
    distances: Any

    @classmethod
    def joined(cls, results):
        """Return the result of all sets, given those of parts of them in their order."""
        if len(results) == 1:
            return results[0]
        outs, logs, sums, is_double, n_lost, distances = zip(*results, strict=True)
        logs = None if logs[0] is None else side_by_side(logs, 0)
        if sums[0] is not None:
            totals, tops = zip(*((of_sets.sums, of_sets.top) for of_sets in sums), strict=True)
            sums = [Sums(side_by_side(totals, 0), side_by_side(tops, 0))]
        outs = side_by_side(outs, 0)
        return cls(outs, logs, sums[0], any(is_double), sum(n_lost), sum(distances))


@dataclass(frozen=True, eq=False)
class Call:
    """A checked call, as the core reads it.

    Parameters
    ----------
    inputs : Inputs
        All sets, with their gates.
    maps : list of HeadMaps
        Of the sets of keys; if they are fewer, they serve the next ones in turn.
    mask : Mask or None
        A mask other than a decay.
    is_causal : bool
        Whether later keys are hidden.
    scale : float
        Factor of the products of queries and keys.
    n_rows : int
        Number of rows of a set whose features are held at a time.
    wants_lse : bool
        Whether logarithms of sums of weights are wanted.
    """

    inputs: Any
    maps: list
    mask: Any
    is_causal: bool
    scale: float
    n_rows: int
    wants_lse: bool

    @cached_property
    def slices(self):
        """Slices of the sets that are computed at a time."""
        if differ_in_size(self.maps):
            return blocks(self.inputs.k.shape[0], 1)
        return self.inputs.slices(self.n_rows, len(self.maps))

    def attend(self, **options):
        """Return the `AttentionResult` of all sets, given the options of `_attend`."""
        work = partial(self._attend, **options)
        return AttentionResult.joined(run_all(work, self.slices, is_short=self.inputs.is_short))

    def _attend(
        self, sets, *, n_sampled=0, window=None, before=None, goes_on=False, is_double=False
    ):
        """Return the `AttentionResult` of some sets.

        Parameters
        ----------
        sets : slice
            Which.
        n_sampled : int, default=0
            Queries per set that are compared with exact attention.
        window : int, default=None
            As in `sampled_distances`.
        before : Sums, default=None
            Over the keys of earlier calls.
        goes_on : bool, default=False
            Whether the sums over all keys are wanted.
        is_double : bool, default=False
            Whether to compute in float64 in any case.
        """
        features = KeyFeatures(self.inputs, self.maps, sets, self.n_rows, is_double)
        output, sums = Output(features, self.wants_lse), None
        if self.mask is not None:
            heads = self.inputs.heads_of(np.arange(sets.start, sets.stop))
            n_lost = attend_under_mask(features, self.mask, heads, output)
            out, lse, _ = output.joined()
        else:
            earlier = None if before is None else before.of(sets)
            if self.is_causal:
                sums = attend_to_earlier(features, output, earlier, goes_on)
            else:
                attend_to_all(features, output)
            out, lse, zeros = output.joined()
            n_lost = 0
            if zeros is not None:
                n_lost = n_lost_of(features.inputs, zeros, self.is_causal, earlier)
        distances = 0.0
        if n_sampled:
            options = n_sampled, self.scale, self.is_causal, window
            distances = sampled_distances(features, out, *options)
        sums = sums if goes_on else None
        return AttentionResult(out, lse, sums, not features.is_usual, n_lost, distances)

    def effective_features(self):
        """Return, on the host, the effective numbers of features of some queries; None if none."""
        numbers = [
            effective_features(KeyFeatures(self.inputs, self.maps, sets, self.n_rows))
            for sets in self.slices
        ]
        return np.concatenate(numbers) if any(map(len, numbers)) else None
