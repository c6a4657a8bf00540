"""The exact kernel for pairs of classes, each solved in the rows of its two classes.

A regression between two classes needs no other rows, so there is no matrix of all of them: the cost
is the sum of (n_i + n_j)^3 / 3 over the pairs, and the largest matrix is that of the largest pair.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .._arrays import to_host
from .._memory import check_fits
from .._threads import run_all, serial_blas
from .exact import KernelMap, kernel_between
from .scoring import KnownDecisions
from .search import SigmaSearch, split_rows
from .solve import PairRidges, pair_duals, pair_values, pairs_of, signs_of, slices_of

FEW_ROWS = 2048  # of which the exact kernel is a feature map, and all decisions are tried
_MOST_SEARCHED = 4096  # rows that a search looks at, but for those of rare classes
MOST_COMPARED = 9216  # rows at which a few values near the best are compared again
_RARE = 64  # rows of a class that are not too many
_STREAM = 0x5EA2C4  # of random numbers, apart from those of other parts


@dataclass(frozen=True, eq=False)
class ClassRows:
    """Rows of classes, which stand in the place of `ClassMoments` for the exact kernel.

    Parameters
    ----------
    kernel : KernelMap
        The kernel with all rows, in the order of their classes.
    codes : ndarray of int of shape (n,)
        The classes.
    weights : ndarray of shape (n,) or None
        Weights of the rows.
    n_classes : int
        Number of classes.
    """

    kernel: KernelMap
    codes: np.ndarray
    weights: np.ndarray | None
    n_classes: int

    @classmethod
    def of(cls, data, sigma, n_classes):
        """Return the rows of some data."""
        if not np.isfinite(data.total):
            raise ValueError(
                "sample_weight must add up to at most the largest float, "
                f"{np.finfo(float).max:.2g}: divide it and alpha by the same number."
            )
        order = np.argsort(data.values.values, kind="stable")
        data = data.part(order)
        rows = to_host(data.X)
        return cls(KernelMap(rows, sigma), data.values.values, data.sample_weight, n_classes)

    @property
    def n_columns(self):
        """Number of rows of the two largest classes."""
        return int(np.sort(np.bincount(self.codes))[-2:].sum())

    def solved(self, alpha):
        """Return the `PairRidges` of coefficients of the kernel with every row."""
        counts, pairs = np.bincount(self.codes), pairs_of(self.n_classes)
        with serial_blas() as n_threads:
            n_blocks = min(3 * n_threads, 3 * len(pairs))  # every thread copies its own
        n_numbers = n_blocks * self.n_columns**2 + np.square(counts).sum()
        n_numbers += len(self.codes) * len(pairs)
        what = f"feature_map='exact' with {len(self.codes)} rows"
        check_fits(8 * n_numbers, what, "the kernel of two classes, and coefficients of all pairs")
        slices = slices_of(self.codes, self.n_classes)
        rows = [self.kernel.rows[of_class] for of_class in slices]
        sigma = self.kernel.sigma
        within = run_all(lambda one: kernel_between(one, one, sigma), rows)

        def of_pair(pair):
            first, second = pair
            between = kernel_between(rows[first], rows[second], sigma)
            block = np.block([[within[first], between], [between.T, within[second]]])
            given = slices[first], slices[second], self.weights, [alpha]
            return pair_duals(block, *given)

        coef, intercept = np.zeros((len(self.codes), len(pairs))), np.zeros(len(pairs))
        for place, (duals, offsets) in enumerate(run_all(of_pair, pairs)):
            one, two = (slices[k] for k in pairs[place])
            coef[np.r_[one, two], place], intercept[place] = duals[:, 0], offsets[0]
        return PairRidges(alpha, coef, intercept, self.n_classes)


def kernel_pair_values(kernel, train, test, alphas, n_classes):
    """Return the regressions of all pairs at test rows, (n_alphas, n_test, P).

    Parameters
    ----------
    kernel : KernelMap
        The kernel with the training rows.
    train, test : Data
        Rows; those of training in the order of their classes.
    alphas : sequence of float
        The ridges.
    n_classes : int
        Number of classes.
    """
    gram, cross = (
        kernel_between(to_host(rows), kernel.rows, kernel.sigma) for rows in (train.X, test.X)
    )
    given = train.values.values, train.sample_weight, alphas, n_classes
    return pair_values(gram, cross, *given)


def judged_pairs(kernel, train, test, alphas, classes, score=None):
    """Return the negative mean squared errors of pairs at test rows of their classes.

    With `score`, return its results instead. There is one number for every alpha; the arguments are
    those of `kernel_pair_values`.
    """
    codes = test.values.values
    values = kernel_pair_values(kernel, train, test, alphas, len(classes))
    if score is not None:
        known = [KnownDecisions(classes, of_test, "one-vs-one", codes) for of_test in values]
        return np.array([score(one, test) for one in known])
    signs = signs_of(len(classes))[codes]
    errors = np.array([np.square(of_test - signs)[signs != 0] for of_test in values])
    weights = np.ones(len(codes)) if test.sample_weight is None else test.score_weights
    weights = np.repeat(weights, len(classes) - 1)
    return -np.average(errors, axis=1, weights=weights)


def _drawn(codes, most):
    """Return some rows of every class, in proportion to its size but not few."""
    # Not the stream of splitters with the seed 0, whose tests would be what is left out.
    rng, chosen = np.random.default_rng(_STREAM), []
    for k, count in enumerate(np.bincount(codes)):
        share = round(most * count / len(codes))
        rows = rng.permutation(np.flatnonzero(codes == k))
        chosen.append(rows[: max(share, _RARE)])
    return np.sort(np.concatenate(chosen))


class PairSearch(SigmaSearch):
    """A search on the exact kernel of some of the rows, by regressions of pairs of classes."""

    is_of_pairs = True

    @classmethod
    def within(cls, search, most=None):
        """Return the search on some of the rows, with all of rare classes."""
        data, tests, most = search.data, search.tests, most or _MOST_SEARCHED
        if len(data.y) > most:
            chosen = _drawn(data.values.values, most)
            tests = [np.flatnonzero(np.isin(chosen, test)) for test in tests]
            tests = [test for test in tests if len(test)]
            data = data.part(chosen)
        if not tests:
            raise ValueError(
                f"cv must hold out some of the {len(data.y):,} rows that a search on the exact "
                f"kernel looks at, got {search.model.cv!r}."
            )
        return cls(search.model, data, None, search.sigmas, tests)

    @cached_property
    def _splits(self):
        splits = split_rows(self.data, self.tests)
        return [
            (train.part(np.argsort(train.values.values, kind="stable")), test)
            for train, test in splits
        ]

    def fits_at(self, sigma):
        """Return the kernels of all folds at a sigma, each with the training and the test rows."""
        return [(KernelMap(to_host(split[0].X), sigma), *split) for split in self._splits]

    def runs(self, criterion):
        """Return an iterator over every sigma's scores."""
        for sigma in self.sigmas:
            yield [criterion.judge(*fit) for fit in self.fits_at(sigma)], None, None
