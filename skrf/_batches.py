"""Fits to rows that come in batches: the passes over them, and what drives the passes.

A fit is a generator of passes. A pass makes a record of every batch and merges the records in
pairs, in a tree whose shape depends only on the number of batches; the result is sent back to the
generator, which finally returns the fitted estimator. An engine only decides where the work is
done: `InTurn` here, Dask in `skrf.dask`. The same batches give the same bits.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from ._arrays import to_host
from ._progress import Progress
from ._typing import Array
from ._validation import commit
from ._warnings import once

SAMPLE_ROWS = 100_000
_SPARE = 6  # standard deviations of the number of rows below a key


class Scope(NamedTuple):
    """What to collect before a map is fitted.

    Parameters
    ----------
    n_rows : int, default=100_000
        Number of rows to draw at random.
    most_key : float, default=inf
        Upper bound on the random numbers of rows to keep, so that less is sent.
    full : bool, default=False
        Whether statistics have covariances.
    seed : int, default=0
        Selects the rows together with the index of a batch, so that an engine may repeat a batch.
    """

    n_rows: int = SAMPLE_ROWS
    most_key: float = float("inf")
    full: bool = False
    seed: int = 0

    @classmethod
    def among(cls, n_rows, total):
        """Return the scope of draws from a known number of rows; keys are uniform from 0 to 1."""
        return cls(n_rows, (n_rows + _SPARE * (n_rows**0.5 + _SPARE)) / max(total, 1))


@dataclass(frozen=True)
class Pass:
    """A pass over all batches.

    Parameters
    ----------
    name : str
        What it computes, for progress lines.
    of_rows : callable
        Returns the record of a batch, given its X, y, weights (None where missing) and index.
    is_last : bool, default=False
        Whether this is the last pass.
    """

    name: str
    of_rows: Callable
    is_last: bool = False

    def __call__(self, batch, number):
        """Return the record of a batch, given it and its index; None if no row counts.

        A batch is a tuple ``(X, y, sample_weight)``, of which the last may be missing, or X alone.
        """
        parts = batch if isinstance(batch, tuple) else (batch,)
        if not 1 <= len(parts) <= 3:
            raise ValueError(
                "A batch must be X, or a tuple (X, y) or (X, y, sample_weight), got a tuple of "
                f"{len(parts)} parts."
            )
        X, y, weights = (*parts, None, None)[:3]
        if n_rows_of(batch) and has_weight(weights):
            return self.of_rows(X, y, weights, number)
        return None


@once()
def run_passes(passes, engine):
    """Run each pass of a generator on an engine, and return the generator's result."""
    record = None
    while True:
        try:
            step = passes.send(record)
        except StopIteration as end:
            return end.value
        record = engine(step)
        if record is None:
            raise ValueError(NO_ROWS)


def merged(records):
    """Return all records joined in a binary tree, holding one per level at a time."""
    waiting = []  # (level, record), levels falling
    for record in records:
        level = 0
        while waiting and waiting[-1][0] == level:
            record, level = joined(waiting.pop()[1], record), level + 1
        waiting.append((level, record))
    total = None
    while waiting:
        total = joined(waiting.pop()[1], total)
    return total


def joined(one, other):
    """Return the record of two consecutive parts, item by item of a list; None adds nothing."""
    if one is None or other is None:
        return one if other is None else other
    if isinstance(one, (list, tuple)):
        return [joined(*pair) for pair in zip(one, other, strict=True)]
    return one + other if isinstance(one, np.ndarray) else one.merge(other)


NO_ROWS = "batches must hold at least one row of positive weight, got none."


def n_rows_of(batch):
    """Return the number of rows of a batch."""
    X = batch[0] if isinstance(batch, tuple) else batch
    return X.shape[0] if hasattr(X, "shape") else len(X)


def has_weight(weights):
    """Return whether any row counts."""
    return weights is None or bool(np.any(np.asarray(to_host(weights))))


class InTurn:
    """Engine that processes one batch after the other, in this process.

    Parameters
    ----------
    batches : iterable or callable
        As in `TakesBatches.fit_batches`.
    verbose : int
        Whether to print a line for every pass, and from 2 on for every batch.
    """

    def __init__(self, batches, verbose):
        if not (callable(batches) or hasattr(batches, "__iter__")):
            raise TypeError(
                "batches must be an iterable of batches that can be read again, or a callable that "
                f"returns an iterator, got {batches!r:.60}."
            )
        self.batches, self.verbose, self.lengths = batches, verbose, None
        self.is_once = not callable(batches) and iter(batches) is batches

    def __call__(self, step):
        """Return the record of all batches."""
        if self.is_once and not step.is_last:
            raise TypeError(
                f"batches={self.batches!r:.60} is an iterator, which can be read once, but this "
                f"fit needs several passes: what later ones do depends on {step.name}. Pass a "
                "list, another iterable that can be read again, or a callable that returns a new "
                "iterator. A single pass is enough for a map that is fitted, in a FrozenEstimator, "
                "and where a classifier is told its classes."
            )
        self.progress, self.seen = Progress(self.verbose, "fit_batches"), []
        record = merged(self._records(step))
        if self.lengths not in (None, self.seen):
            raise ValueError(
                f"batches gave {len(self.lengths)} batches in the first pass and {len(self.seen)} "
                "in the next, or different ones: every pass must give the same batches in the same "
                "order."
            )
        self.lengths = self.seen
        if self.verbose == 1:
            self._tell(step)
        return record

    def _records(self, step):
        batches = self.batches() if callable(self.batches) else self.batches
        for number, batch in enumerate(batches):
            yield step(batch, number)
            self.seen.append(n_rows_of(batch))
            if self.verbose > 1:
                self._tell(step)

    def _tell(self, step):
        self.progress(f"{step.name}: {len(self.seen)} batches")


class TakesBatches:
    """Mixin of estimators that can be fitted to batches; they have a method `_passes`."""

    def fit_batches(
        self,
        batches: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        classes: Array | None = None,
        verbose: int = 0,
    ) -> Self:
        """Fit to rows in batches, which need not be in memory together.

        Equals `fit` on all rows, to rounding: the first pass over the batches collects statistics,
        to which the feature map is fitted, and the next one sums. (`partial_fit` fits the map to
        the first batch.) What cannot be learned from statistics is learned from 100,000 rows drawn
        at random, or from all if there are fewer: searches, the sigma that kernel regression
        chooses, ``sigma="median"``, maps that look at single rows, such as `AdaptiveRF`, and
        transformers of other packages. Copies of a row in different batches are recognised within
        this sample alone.

        Parameters
        ----------
        batches : iterable or callable
            Source of the same batches in the same order every time: a list or another iterable
            that is not an iterator, or a callable that returns an iterable. A batch is X, or a
            tuple ``(X, y)`` or ``(X, y, sample_weight)``, in any form that `fit` accepts, including
            pandas, polars and pyarrow tables. Batches without rows are skipped.
        classes : array-like of shape (n_classes,), default=None
            All labels that a classifier will see; None finds them in the first pass. Other
            estimators ignore it.
        verbose : int, default=0
            1 prints a line per pass, 2 also one per batch.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        TypeError
            If `batches` is an iterator, which can be read only once, and more passes are needed.
        ValueError
            If batches do not match or are not what `fit` accepts.
        """
        draft = run_passes(self._passes(classes, Scope()), InTurn(batches, verbose))
        return commit(self, draft)
