"""The exact kernel with every training row, as features and for regressions of pairs of classes.

A regression among some classes needs no other rows, so there is no matrix of all of them: pairs of
classes cost the sum of (n_i + n_j)^3 / 3, and the largest matrix is that of the largest pair.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .._arrays import largest_entry, like, namespace, scaled_squares, to_host
from .._memory import check_fits
from .._sums import Rows
from .._threads import serial_blas
from ..features import FeatureMap
from .data import in_order_of_classes
from .solve import RowSystem, Solution

_PRECISE = 256.0  # exponents for which float64 is used


def kernel_between(X, Y, sigma):
    """Return the Gaussian kernel of all pairs of rows, (n, m), without a second array as large."""
    values = scaled_squares(X, Y, sigma)
    values *= -0.5
    return np.exp(values, out=values)


@dataclass(frozen=True, eq=False)
class ExactMap(FeatureMap):
    """The Gaussian kernel with every training row, as one feature per row.

    Parameters
    ----------
    rows : ndarray or sparse matrix of shape (n, d)
        Training rows.
    sigma : float
        Multiplies differences of rows.
    """

    rows: Any
    sigma: float
    is_positive = is_indicator = True
    are_means = False
    labels = None
    n_features = property(lambda self: self.rows.shape[1])
    n_columns = property(lambda self: self.rows.shape[0])

    def __call__(self, X):
        """Return the logarithms of the kernel."""
        return Rows(like(scaled_squares(to_host(X), self.rows, self.sigma) / -2, X))

    def columns(self, X, labels=None):
        """Return the numbers of the training rows, which X must be."""
        return np.arange(X.shape[0])

    def exponent_bound(self, X):
        """Return an upper bound on the exponents, always large enough to force float64."""
        length = self.sigma * (largest_entry(X) + self._largest)
        return max(X.shape[1] * length * length, _PRECISE)

    @cached_property
    def _largest(self):
        return largest_entry(self.rows)


class KernelMap(ExactMap):
    """The same kernel itself in place of its logarithms, for coefficients of both signs."""

    is_positive = is_indicator = False
    is_double = True

    def __call__(self, X):
        """Return the `Rows` of X."""
        logs = super().__call__(X).values
        xp = namespace(logs)
        top = xp.max(logs, axis=1, keepdims=True)
        return Rows(xp.exp(logs - top), top)


@dataclass(frozen=True, eq=False)
class ExactRows:
    """All rows of classes and the exact kernel, in the place of moments of features.

    Parameters
    ----------
    kernel : KernelMap
        The kernel with all rows, in the order of their classes.
    system : RowSystem
        The same.
    """

    kernel: KernelMap
    system: RowSystem

    @classmethod
    def of(cls, data, sigma):
        """Return the rows of some data."""
        if not np.isfinite(data.total):
            raise ValueError(
                "sample_weight must add up to at most the largest float, "
                f"{np.finfo(float).max:.2g}: divide it and alpha by the same number."
            )
        data = in_order_of_classes(data)
        rows, within = to_host(data.X), {}

        def kernel(first, second):
            if first != second:
                return kernel_between(rows[first], rows[second], sigma)
            if first.start not in within:  # a class is one of many pairs
                within[first.start] = kernel_between(rows[first], rows[first], sigma)
            return within[first.start]

        classes = data.class_codes, data.sample_weight, data.targets.n_classes
        system = RowSystem(kernel, *classes)
        return cls(KernelMap(rows, sigma), system)

    @property
    def n_columns(self):
        """Number of rows of the two largest classes."""
        return int(np.sort(np.bincount(self.system.codes))[-2:].sum())

    def solved(self, problems, alpha):
        """Return the `Solution`, whose coefficients are those of the kernel with every row."""
        system, n = self.system, len(self.system.codes)
        with serial_blas() as n_threads:
            n_blocks = min(3 * n_threads, 3 * len(problems))  # every thread copies its own
        n_numbers = n_blocks * self.n_columns**2 + n * len(problems)
        n_numbers += np.square(np.bincount(system.codes)).sum()
        description = f"feature_map='exact' with {n} rows"
        check_fits(
            8 * n_numbers, description, "the kernel of two classes, and coefficients of all pairs"
        )
        width = sum(problem.targets.shape[1] for problem in problems)
        coef, intercept, start = np.zeros((n, width)), np.zeros(width), 0
        for rows, duals, offsets in system.solve_duals(problems, [alpha]):
            columns = slice(start, start + duals.shape[1])
            coef[np.r_[tuple(rows)], columns] = duals[:, :, 0]
            intercept[columns], start = offsets[:, 0], columns.stop
        return Solution(alpha, coef, np.ones(width), intercept)
