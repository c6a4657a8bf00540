"""What ridge regressions are asked: targets of rows, problems among classes, and weights."""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from .._arrays import to_host
from .._validation import naming
from ..features import row_codes
from .solve import Sizes


@dataclass(frozen=True, eq=False)
class Targets:
    """Targets of rows, computed block by block: scaled numbers, or -1 and 1 for every class.

    Parameters
    ----------
    values : ndarray of shape (n, T), or (n,) with classes
        Numbers, or the codes of the classes.
    unit : ndarray of shape (T,)
        Powers of 2.
    shape : tuple
        () for a single target without an axis, otherwise (T,).
    classes : ndarray of shape (T,), default=None
        Codes of the classes whose targets are 1.
    """

    values: np.ndarray
    unit: np.ndarray
    shape: tuple
    classes: np.ndarray | None = None

    @classmethod
    def of_numbers(cls, y):
        """Return the targets of numbers, in units that make them about 1."""
        values = y.reshape(len(y), -1)
        largest = np.maximum(values.max(axis=0), -values.min(axis=0))
        unit = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1.0))))
        return cls(values, unit, y.shape[1:])

    @classmethod
    def of_classes(cls, codes, n_classes):
        """Return -1 and 1 for every class, of two for the second alone."""
        ones = np.arange(n_classes) if n_classes > 2 else np.array([1])
        return cls(codes, np.ones(len(ones)), (), ones)

    def __call__(self, rows):
        """Return the targets of a slice of rows, or of their indices, (n, T)."""
        if self.classes is None:
            return self.values[rows] / self.unit
        return np.where(self.values[rows, None] == self.classes, 1.0, -1.0)

    def __getitem__(self, rows):
        """Return the targets of some rows."""
        return Targets(self.values[rows], self.unit, self.shape, self.classes)


@dataclass(frozen=True, eq=False)
class Problem:
    """A ridge regression among the rows of some classes.

    Parameters
    ----------
    groups : ndarray of int of shape (G,)
        Codes of the classes whose rows take part.
    targets : ndarray of shape (G, T)
        Targets of their rows.
    """

    groups: np.ndarray
    targets: np.ndarray

    def lacks_a_side(self, counts: np.ndarray) -> bool:
        """Return whether there are two classes, of which one has no rows."""
        return len(self.groups) == 2 and not all(counts[self.groups] > 0)

    def only_target(self, counts: np.ndarray) -> np.ndarray:
        """Return the target, (T,), of the only class of two that has rows."""
        return self.targets[0 if counts[self.groups[0]] > 0 else 1]


def pairs_of(n_classes):
    """Return all pairs of classes (first, second), in the order of their regressions."""
    return list(combinations(range(n_classes), 2))


def of_all_classes(n_classes):
    """Return the problem with targets -1 and 1 for every class, of two for the second alone."""
    classes = np.arange(n_classes)
    targets = 2.0 * np.eye(n_classes) - 1
    return Problem(classes, targets if n_classes != 2 else targets[:, 1:])


def of_pairs(n_classes):
    """Return a problem for every pair of classes, with target 1 for the second."""
    sides = np.array([[-1.0], [1.0]])
    return [Problem(np.array(pair), sides) for pair in pairs_of(n_classes)]


def class_factors(class_weight, classes, codes, weights, is_batch):
    """Return the factors by which the weights of the rows of every class are multiplied."""
    if isinstance(class_weight, dict):
        with naming("class_weight"):
            factors = np.array([class_weight.get(label, 1.0) for label in classes.tolist()], float)
        if not ((factors >= 0) & (factors < np.inf)).all():
            raise ValueError(f"class_weight must hold finite numbers >= 0, got {class_weight!r}.")
        return factors
    if is_batch:
        raise ValueError(
            "class_weight='balanced' needs all rows at once: pass a dict of factors, "
            "or sample_weight, with batches."
        )
    totals = np.bincount(codes, weights, minlength=len(classes))
    return totals.sum() / (len(totals) * totals)


# ---------------------------------------------------------------- repetitions


def merged(data):
    """Return the data with rows that are equal in X and targets merged, and their `Sizes`."""
    of_x = row_codes(to_host(data.X))
    labels = data.values.values
    if labels.ndim == 2:
        labels = labels[:, 0] if labels.shape[1] == 1 else row_codes(labels)
    _, of_y = np.unique(labels, return_inverse=True)  # 0 is -0
    _, first, number = np.unique(
        of_x * (of_y.max() + 1) + of_y, return_index=True, return_inverse=True
    )
    if len(first) == len(number):
        return data, _sizes(of_x, data.weights)
    with np.errstate(over="ignore"):
        weights = np.bincount(number, data.weights)
    order = np.argsort(first)
    data = data.part(first[order])
    data = replace(data, sample_weight=weights[order])
    return data, _sizes(of_x[first[order]], data.weights)


@np.errstate(over="ignore")  # moments tell
def _sizes(of_x, weights):
    """Return the `Sizes` of distinct rows, given numbers of their X."""
    is_several = np.bincount(of_x)[of_x] > 1
    single = weights[~is_several]
    return Sizes(
        float(weights[is_several].sum()),
        float(np.sqrt(single).sum()),
        float(single.sum()),
        len(weights),
    )
