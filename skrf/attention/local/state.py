"""The state of local attention between calls."""

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from ..._arrays import in_library_of, is_array_api, namespace, take, to_host
from ..._typing import Array
from .blocks import Held
from .summaries import Summary, filled

_OF_KEYS = "recent", "is_key", "counts", "n_queries"  # one for every key head


@dataclass(frozen=True, eq=False)
class LocalState:
    """State of streaming local attention, made by `LocalAttention.init_state`.

    Its size does not grow. Arrays are those of the inputs' library, with the batch first, and are
    never changed: every step makes new ones. None before the first step.

    Parameters
    ----------
    recent : array of shape (..., m, d + e), default=None
        The last keys and values.
    is_key : array of bool of shape (..., m), default=None
        Which of them are no padding.
    counts : array of int of shape (...), default=None
        Positions since the first real key.
    heavy : array of shape (..., n_heavy, d + e), default=None
        Heavy keys and values of every query head.
    scores : array of shape (..., n_heavy), default=None
        Their products with the mean query; -inf for none.
    summary : array of shape (..., d + e), default=None
        Mean of all other keys and values beyond the window.
    log_weight : array of shape (...), default=None
        Logarithm of their weight.
    query_sum : array of shape (..., d), default=None
        Sum of the queries of the first block.
    n_queries : array of shape (...), default=None
        How many these are.

    See Also
    --------
    LocalAttention.step : Returns the next state.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.attention import LocalAttention
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 4, 2, 1, 8))  # four texts, two heads
    >>> attention = LocalAttention(causal=True)
    >>> out, state = attention.step(q, k, v, attention.init_state())
    >>> state.select([2, 2, 0]).heavy.shape
    (3, 2, 64, 16)
    """

    recent: Array | None = None
    is_key: Array | None = None
    counts: Array | None = None
    heavy: Array | None = None
    scores: Array | None = None
    summary: Array | None = None
    log_weight: Array | None = None
    query_sum: Array | None = None
    n_queries: Array | None = None

    def select(self, indices: Array) -> Self:
        """Return the state of some entries of the batch, the first axis, as beams need it.

        Parameters
        ----------
        indices : array-like of int
            The entries, which may repeat.

        Returns
        -------
        LocalState
            The state of these entries.
        """
        if self.recent is None:
            return self
        if self.recent.ndim < 4:
            raise ValueError("select needs a batch and heads, but the keys had fewer axes.")
        rows = indices if is_array_api(indices) else np.asarray(indices)
        return self.mapped(lambda _, array: take(array, rows))

    def mapped(self, function: Any) -> Self:
        """Return the state with a function of every name and array.

        Parameters
        ----------
        function : callable
            Takes a name and an array, and returns an array.

        Returns
        -------
        LocalState
            The state.
        """
        arrays = {field.name: getattr(self, field.name) for field in fields(LocalState)}
        changed = {
            name: None if array is None else function(name, array) for name, array in arrays.items()
        }
        return type(self)(**changed)

    def flat(self, inputs: Any) -> Self:
        """Return the state with one axis for all sets of keys, or raise if it does not fit.

        Parameters
        ----------
        inputs : Inputs
            The positions that continue it.

        Returns
        -------
        LocalState
            Arrays of the shapes (U, ...) and (U, G, ...).
        """
        (n_sets, n_heads, _, _), width = inputs.q.shape, inputs.k.shape[-1] + inputs.v.shape[-1]
        given = tuple(self.heavy.shape[:-2]), self.heavy.shape[-1], namespace(self.heavy).__name__
        needed = inputs.leading, width, namespace(inputs.q).__name__
        if given != needed:
            raise ValueError(
                "state must come from earlier positions of the same inputs: it holds heads of "
                f"shape {given[0]} with {given[1]} numbers per key and value of {given[2]}, these "
                f"need {needed[0]}, {needed[1]} and {needed[2]}."
            )
        n_lead = len(inputs.leading), len(inputs.key_leading)
        lead = (n_sets, n_heads), (n_sets,)
        return self._reshaped(n_lead, lead)

    def _reshaped(self, n_lead, lead):
        def reshaped(name, array):
            of_keys = name in _OF_KEYS
            shape = *lead[of_keys], *array.shape[n_lead[of_keys] :]
            return namespace(array).reshape(array, shape)

        return self.mapped(reshaped)

    def held(self, sizes: Any, stretch: Any) -> Held:
        """Return the `Held` of the sets of a `Stretch`; the state is flat."""
        whole = isinstance(stretch.sets, slice)
        state = self if whole else self.mapped(lambda _, array: take(array, stretch.sets))
        m = sizes.n_needed(stretch.count)
        kept = slice(state.recent.shape[-2] - m, None)
        return Held(
            stretch.count,
            state.recent[:, kept, :],
            None if state.is_key is None else state.is_key[:, kept],
            state.heavy,
            state.scores,
            Summary(state.log_weight[..., None], state.summary[..., None, :]),
            state.query_sum,
            state.n_queries[:, None, None],
        )

    @classmethod
    def of_stretches(cls, helds: Any, stretches: Any, inputs: Any) -> Self:
        """Return the state of what is held of every `Stretch`, in the layout of inputs."""
        xp, n_rows = namespace(inputs.q), max(held.rows.shape[-2] for held in helds)
        has_padding = any(held.is_key is not None for held in helds) or len(helds) > 1

        def put(array):  # in front, to the same number of rows
            missing = n_rows - array.shape[1]
            shape = array.shape[0], missing, *array.shape[2:]
            return xp.concat([filled(0, shape, array, array.dtype), array], axis=1)

        parts = []
        for held in helds:
            is_key = None
            if has_padding:
                is_key = held.is_key
                if is_key is None:
                    is_key = xp.ones_like(held.rows[..., 0], dtype=xp.bool)
                is_key = put(is_key)
            counts = in_library_of(np.full(held.rows.shape[0], held.count), inputs.q)
            parts.append(
                cls(
                    put(held.rows),
                    is_key,
                    counts,
                    held.heavy,
                    held.scores,
                    held.summary.mean[..., 0, :],
                    held.summary.log_weight[..., 0],
                    held.query_sum,
                    held.n_queries[:, 0, 0],
                )
            )
        state = parts[0]
        if len(parts) > 1:
            order = np.argsort(np.concatenate([stretch.sets for stretch in stretches]))
            state = state.mapped(
                lambda name, _: take(xp.concat([getattr(p, name) for p in parts], axis=0), order)
            )
        lead = tuple(inputs.leading), tuple(inputs.key_leading)
        return state._reshaped((2, 1), lead)

    def host_counts(self) -> np.ndarray:
        """Return the counts on the host."""
        return to_host(self.counts).reshape(-1)
