"""Importances of the columns of a table: how much worse rows are predicted when one is permuted."""

from dataclasses import dataclass, replace

import numpy as np

from .._threads import serial_blas
from .members import Limits, TrainingData, refit

_ROWS = 1000  # of a half that are learned from or predicted
_MOST_BYTES = 2e7  # of the rows that are kept
_REPEATS = 8  # permutations of a column, whose mean counts,
_PERMUTATIONS = 80  # but fewer where these are more in all


@dataclass(eq=False)
class HeldOutRows:
    """Some rows of every half, which the members of the other half predict.

    Parameters
    ----------
    data : TrainingData
        The rows, whose columns are those of the Laplacian kernels.
    validation_rows : list of ndarray of int
        For every half, the rows that its scales have not seen; the others are learned from.
    """

    data: TrainingData
    validation_rows: list
    _importances: np.ndarray | None = None

    @classmethod
    def of(cls, data, halves):
        """Return a sample of training rows."""
        n, rng = len(data.weights), data.rng()
        validation = [half.validation_rows for half in halves]
        if len(validation[0]) == n:  # no scales were learned, so that any halves will do
            validation = np.array_split(rng.permutation(n), 2)
        most = min(_ROWS, int(_MOST_BYTES / 2 / data.X["laplacian"][0].nbytes))
        order = rng.permutation(n)
        sides = [
            order[np.isin(order, rows, invert=invert)][:most]
            for rows in validation
            for invert in (False, True)
        ]
        kept = np.unique(np.concatenate(sides))
        sample = replace(data, X={"laplacian": data.X["laplacian"]}, limits=Limits(1, len(kept)))
        validation = [np.flatnonzero(np.isin(kept, rows)) for rows in validation]
        return cls(sample.subset(kept), validation)

    @serial_blas()
    def importances(self, table, members, n_columns, losses_of):
        """Return the increases of the mean loss, at least 0 and with sum 1, unless all are 0.

        Parameters
        ----------
        table : Table
            The columns.
        members : list of list of Member
            For every kernel, those of each half.
        n_columns : int
            Number of columns of the table.
        losses_of : callable
            Returns the losses of rows, given each kernel's predictions and `TrainingData` of them.
        """
        if self._importances is not None:
            return self._importances
        increases, rng = np.zeros(n_columns), self.data.rng()
        sources = np.unique(table.sources)
        n_repeats = int(np.clip(_PERMUTATIONS // len(sources), 1, _REPEATS))
        for place, rows in enumerate(self.validation_rows):
            learning = self.data.subset(np.setdiff1d(np.arange(len(self.data.weights)), rows))
            learning = replace(learning, X=table.columns_of_kernels(learning.X["laplacian"]))
            refitted = [refit(halves[place % len(halves)], learning) for halves in members]
            judged = self.data.subset(rows)
            encoded = judged.X["laplacian"]

            def total_loss(encoded, refitted=refitted, judged=judged):
                columns = table.columns_of_kernels(encoded)
                predictions = [
                    member.predict_in_leaf(columns[member.kernel_]) for member in refitted
                ]
                return judged.weights @ losses_of(predictions, judged)

            before = total_loss(encoded)
            for source in np.repeat(sources, n_repeats):
                permuted, is_column = encoded.copy(), table.sources == source
                permuted[:, is_column] = rng.permutation(encoded[:, is_column])
                increases[source] += total_loss(permuted) - before
        increases = np.maximum(increases, 0.0)
        self._importances = increases / (increases.sum() or 1.0)
        return self._importances
