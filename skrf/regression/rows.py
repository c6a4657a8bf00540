"""The exact kernel with every training row, and ridge regressions solved in rows by it.

A regression among some classes needs no other rows, so there is no matrix of all of them: pairs of
classes cost the sum of (n_i + n_j)^3 / 3, and the largest matrix is that of the largest pair.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.linalg.lapack import dposv

from .._arrays import largest_entry, like, namespace, scaled_squares, to_host
from .._memory import check_fits
from .._sums import Rows
from .._threads import run_all, serial_blas
from ..features import FeatureMap
from .solve import Solution, shifted

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


# ---------------------------------------------------------------- regressions in rows


@dataclass(frozen=True, eq=False)
class RowSystem:
    """Rows in the order of their classes, and the kernel between them.

    Parameters
    ----------
    kernel : callable
        Returns the kernel of the rows of two slices.
    codes : ndarray of int of shape (n,)
        Classes of the rows, in order.
    weights : ndarray of shape (n,) or None
        Their weights.
    n_classes : int
        Number of classes.
    """

    kernel: Callable
    codes: np.ndarray
    weights: np.ndarray | None
    n_classes: int

    @classmethod
    def of_gram(cls, gram, codes, weights, n_classes):
        """Return the system of rows whose kernel is known."""
        return cls(lambda one, two: gram[one, two], codes, weights, n_classes)

    def solve_duals(self, problems, alphas):
        """Return, for every problem, slices of rows, their coefficients and offsets.

        These are those of the kernel with each row, (n, T, n_alphas), and (T, n_alphas).
        """
        ends = np.searchsorted(self.codes, range(1, self.n_classes + 1))
        slices = [slice(*pair) for pair in pairwise([0, *ends.tolist()])]
        counts = np.bincount(self.codes, minlength=self.n_classes)

        def of_problem(problem):
            rows = [slices[k] for k in problem.groups]
            n_rows = [one.stop - one.start for one in rows]
            targets = np.repeat(problem.targets, n_rows, axis=0)
            if problem.lacks_a_side(counts):
                offset = np.repeat(problem.only_target(counts)[:, None], len(alphas), axis=1)
                return rows, np.zeros((*targets.shape, len(alphas))), offset
            block = self._block(rows, np.cumsum([0, *n_rows]))
            weights = None
            if self.weights is not None:
                weights = np.concatenate([self.weights[one] for one in rows])
            return rows, *duals_of(block, targets, weights, alphas)

        return run_all(of_problem, problems)

    def _block(self, rows, ends):
        """Return the kernel of the rows of some slices."""
        block = np.empty((ends[-1], ends[-1]))
        places = [slice(*pair) for pair in pairwise(ends.tolist())]
        for i, one in enumerate(places):
            for j, two in enumerate(places[: i + 1]):
                block[one, two] = self.kernel(rows[i], rows[j])
                block[two, one] = block[one, two].T
        return block

    def values(self, cross, problems, alphas, known=None):
        """Return the regressions at other rows, (n_alphas, n_others, V).

        Parameters
        ----------
        cross : ndarray of shape (n_others, n)
            The kernel of other rows and these.
        problems : sequence of Problem
            What is solved for.
        alphas : sequence of float
            The ridges.
        known : dict of int to ndarray, default=None
            Values, (n_alphas, n_others, T), by the number of a problem that is not to be solved.
        """
        known = known or {}
        rest = [number for number in range(len(problems)) if number not in known]
        solved = self.solve_duals([problems[number] for number in rest], alphas)
        parts = dict(known)
        for number, (rows, duals, offsets) in zip(rest, solved, strict=True):
            seen = np.concatenate([cross[:, one] for one in rows], axis=1)
            parts[number] = np.moveaxis(np.tensordot(seen, duals, 1) + offsets, 2, 0)
        return np.concatenate([parts[number] for number in range(len(problems))], axis=2)


def duals_of(block, targets, weights, alphas):
    """Return ridge regressions as coefficients of the kernel of their rows, and offsets.

    Parameters
    ----------
    block : ndarray of shape (n, n)
        Kernel of the rows; overwritten.
    targets : ndarray of shape (n, T)
        Their targets.
    weights : ndarray of shape (n,) or None
        Their weights.
    alphas : sequence of float
        The ridges.

    Returns
    -------
    duals : ndarray of shape (n, T, n_alphas)
        Coefficients, whose sum is 0.
    offsets : ndarray of shape (T, n_alphas)
        What is added to the sums.
    """
    root = np.ones(len(targets)) if weights is None else np.sqrt(weights)
    share = root**2 / np.sum(root**2)
    mean = block @ share
    block -= mean
    block -= mean[:, None] - share @ mean
    if weights is not None:
        block *= root
        block *= root[:, None]
    level = share @ targets
    sides, duals = (targets - level) * root[:, None], []
    for alpha in alphas:
        _, dual, info = dposv(shifted(block, alpha), sides, lower=1, overwrite_a=1)
        if info:  # the ridge is lost in rounding
            dual = np.linalg.lstsq(block, sides, rcond=None)[0]
        dual = dual * root[:, None]
        duals.append(dual - share[:, None] * dual.sum(axis=0))
    duals = np.stack(duals, axis=2)
    return duals, level[:, None] - np.tensordot(mean, duals, 1)


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
    def of(cls, data, sigma, n_classes):
        """Return the rows of some data."""
        if not np.isfinite(data.total):
            raise ValueError(
                "sample_weight must add up to at most the largest float, "
                f"{np.finfo(float).max:.2g}: divide it and alpha by the same number."
            )
        data = data.part(np.argsort(data.values.values, kind="stable"))
        rows, within = to_host(data.X), {}

        def kernel(one, two):
            if one != two:
                return kernel_between(rows[one], rows[two], sigma)
            if one.start not in within:  # a class is one of many pairs
                within[one.start] = kernel_between(rows[one], rows[one], sigma)
            return within[one.start]

        system = RowSystem(kernel, data.values.values, data.sample_weight, n_classes)
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
        what = f"feature_map='exact' with {n} rows"
        check_fits(8 * n_numbers, what, "the kernel of two classes, and coefficients of all pairs")
        width = sum(problem.targets.shape[1] for problem in problems)
        coef, intercept, start = np.zeros((n, width)), np.zeros(width), 0
        for rows, duals, offsets in system.solve_duals(problems, [alpha]):
            columns = slice(start, start + duals.shape[1])
            coef[np.r_[tuple(rows)], columns] = duals[:, :, 0]
            intercept[columns], start = offsets[:, 0], columns.stop
        return Solution(alpha, coef, np.ones(width), intercept)
