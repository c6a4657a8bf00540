"""Searches: a strategy asks for points and is told their scores; the result is a value."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from numbers import Integral
from typing import Any

import numpy as np
from scipy.stats import rankdata

from .._arrays import LARGEST
from .._progress import Progress
from .._validation import check_positive, read_only
from ..features import as_feature_map

# Scores count as equal within this share of what the best one lacks, and within their rounding.
_EQUAL, ROUNDING = 1e-4, 1e-13


def maps_of(transformer):
    """Return the maps of queries and keys of a fitted transformer."""
    return tuple(as_feature_map(transformer, keys=keys) for keys in (False, True))


# ---------------------------------------------------------------- points


def sigma_grid(sigmas, data, decades):
    """Return the values of a search: those given, or as many over decades around "scale"."""
    if isinstance(sigmas, Integral):
        return data.resolved("scale") * np.logspace(*decades, sigmas)
    values = positive_array("sigmas", sigmas)
    if values.max() > LARGEST:
        raise ValueError(f"sigmas must be at most {LARGEST:g}, got {sigmas!r}.")
    return values


def positive_array(name, values):
    """Return a sequence of positive numbers as an array, or raise and name it."""
    given = np.array(values, dtype=object)  # of text beside numbers NumPy would make numbers
    if given.ndim != 1 or len(given) == 0:
        raise ValueError(f"{name} must be a sequence of finite numbers > 0, got {values!r}.")
    return np.array([check_positive(f"{name}[{i}]", value) for i, value in enumerate(given)])


def check_gaussian(feature_map):
    """Raise for the softmax kernel, which does not smooth."""
    if getattr(feature_map, "kernel", None) == "softmax":
        raise ValueError(
            "sigma cannot be searched for kernel='softmax', which is not a function of distances; "
            f"got feature_map={feature_map!r}. Pass sigma, or use kernel='gaussian'."
        )


def learns_from(feature_map, target):
    """Return whether a map learns from the targets, which is assumed if it does not say."""
    return not hasattr(feature_map, "_learns_from") or feature_map._learns_from(target)


# ---------------------------------------------------------------- what counts as equal


@dataclass(frozen=True)
class Equal:
    """Which scores are as good as the best but for rounding and tiny differences.

    Parameters
    ----------
    ceiling : float or None, default=0.0
        The best possible score, if there is one.
    rounding : float, default=1e-13
        Rounding error of scores, with a margin.
    unit : float, default=1.0
        Scores are in units of its square.
    """

    ceiling: float | None = 0.0
    rounding: float = ROUNDING
    unit: float = 1.0

    def __call__(self, scores):
        """Return a mask of the scores."""
        best = scores.max()
        lack = abs(best) / 100 if self.ceiling is None else abs(self.ceiling - best)
        with np.errstate(over="ignore"):  # if all are as bad as can be
            return scores >= best - _EQUAL * lack - self.rounding


# ---------------------------------------------------------------- searches


@dataclass(frozen=True)
class Grid:
    """The strategy that asks for all values of sigma, whatever their scores.

    Parameters
    ----------
    sigmas : ndarray of float
        The values; none if the map has no sigma.
    others : dict, default={}
        Values of parameters that are scored together at every sigma, by name.
    """

    sigmas: np.ndarray
    others: dict = field(default_factory=dict)

    def points(self) -> Iterator[dict]:
        """Yield the points to judge, and be sent their scores."""
        for sigma in self.sigmas if len(self.sigmas) else [0.0]:
            yield {"sigma": float(sigma)}

    @property
    def values(self):
        """All values by name, in the order of the table."""
        return ({"sigma": self.sigmas} if len(self.sigmas) else {}) | self.others


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found.

    Parameters
    ----------
    point : dict
        The best values, by name.
    score : float
        Their mean score.
    table : dict of ndarray
        Scores of all points, named as in GridSearchCV.
    kept : object
        What the judge made at the best sigma, if anything.
    """

    point: dict
    score: float
    table: dict
    kept: Any = None


def search(
    strategy: Grid,
    judge: Callable,
    equal: Equal,
    *,
    verbose: int = 0,
    is_split: bool = True,
) -> Found:
    """Return what is `Found` by judging the points that a strategy asks for.

    Parameters
    ----------
    strategy : Grid
        Yields points, and is sent the scores of each.
    judge : callable
        Given a point, returns scores of all splits, (n_splits,), or (n_splits, n_others) if
        there are other parameters; and anything to keep.
    equal : Equal
        Which scores are nearly the best. Of these, the smallest sigma and the largest alpha win.
    verbose : int, default=0
        With 1, print a line for every point.
    is_split : bool, default=True
        Whether scores are those of splits.
    """
    progress, points = Progress(verbose), strategy.points()
    scores, means, good, n = [], [], [], max(len(strategy.sigmas), 1)
    point = next(points)
    while point is not None:
        judged, kept = judge(point)
        scores.append(np.atleast_2d(np.array(np.transpose(judged), order="C")))
        means.append(np.nan_to_num(scores[-1].mean(axis=1), nan=-np.inf))
        if verbose:
            best = means[-1].max() * equal.unit * equal.unit
            sigma = point["sigma"]
            progress(f"sigma {len(scores)} of {n} ({sigma:.3g}): score {best:.4g}")
        good = _nearly_best(good, (means[-1].max(), point["sigma"], kept), equal)
        try:
            point = points.send(means[-1])
        except StopIteration:
            point = None
    place, table = _table(strategy.values, np.concatenate(scores), equal, is_split)
    kept = min(good, key=lambda one: one[1])[2]
    return Found(dict(table["params"][place]), float(table["mean_test_score"][place]), table, kept)


def _nearly_best(good, new, equal):
    """Return the (score, sigma, kept) that may yet be chosen, so that little is held at once."""
    score, sigma, _ = new
    # Of those that are kept, every larger sigma has a better score.
    good = [one for one in good if one[1] < sigma or one[0] > score]
    if not any(one[1] <= sigma and one[0] >= score for one in good):
        good = [*good, new]
    are_best = equal(np.array([one[0] for one in good]))
    return [one for one, is_best in zip(good, are_best, strict=True) if is_best]


def _table(grid, scores, equal, is_split):
    """Return the place of the best point, and the table of scores."""
    points = product(*(np.asarray(values).tolist() for values in grid.values()))
    params = [dict(zip(grid, values, strict=True)) for values in points]
    means = np.nan_to_num(scores.mean(axis=1), nan=-np.inf)
    means[equal(means)] = means.max()
    ranks = rankdata(-means, method="min").astype(int)
    table = {f"param_{name}": np.array([values[name] for values in params]) for name in grid}
    table |= {"params": params, "rank_test_score": ranks}
    with np.errstate(over="ignore", invalid="ignore"):
        scores = scores * equal.unit * equal.unit
        table["mean_test_score"] = scores.mean(axis=1)
        if is_split:
            table["std_test_score"] = scores.std(axis=1)
            table |= {f"split{k}_test_score": score.copy() for k, score in enumerate(scores.T)}
    place = max(
        np.flatnonzero(ranks == 1),
        key=lambda k: (-params[k].get("sigma", 0.0), params[k].get("alpha", 0.0)),
    )
    return place, {name: read_only(values) for name, values in table.items()}
