"""Fits of estimators to rows in batches: the work per batch, and what follows from it.

`surveyed` collects what is needed to fit a map, `planned` fits it, and `summed` returns the sums of
a batch under it; an engine only calls them and merges.
"""

from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.frozen import FrozenEstimator

from .._batches import NO_ROWS, Pass, has_weight
from .._validation import check_labels, naming
from ..features._batch_summary import BatchSummary, scope_of
from ..statistics import Moments
from .data import as_slice, is_multilabel, sorted_classes, sums_of_cells
from .decide import best_scale
from .held import Held
from .moments import features_of, maps_of
from .search import (
    Candidate,
    Choice,
    Equal,
    Grid,
    Task,
    best_of,
    best_scores,
    candidate_sigmas,
    decided,
    learns_from,
    positive_array,
    search,
    sigma_grid,
)
from .solve import solve_cholesky, solve_problems, values_of

_STREAM = 0xF01D5  # of random numbers, apart from those of other parts
HAS_FOLDS = "a search scores folds of all rows. Call fit, or fit_batches."


def bare(sums):
    """Return sums without what all batches share, so that only arrays are sent."""
    return replace(sums, params=None, maps=None)


# ---------------------------------------------------------------- one map


def passes(model, classes, scope):
    """Return the passes of a fit to batches, as `skrf._batches.run_passes` takes them."""
    _check_has_sums(model)
    feature_map = model._map_of_batches(model.sigma)
    is_searched = model._leaves_sigma_open(feature_map)
    started = _begun(model, feature_map, classes, scope, needs_rows=is_searched)
    classes, scope, is_fitted = started
    summary_of = partial(surveyed, model, scope, classes)
    if is_fitted and not (is_classifier(model) and classes is None):
        both = partial(_summary_and_sums, model, summary_of)
        summary, sums = yield Pass("sums", both, is_last=True)
        draft = planned(model, summary)
    else:
        summary = yield Pass("statistics", summary_of)
        draft = planned(model, summary)
        sums = yield Pass("sums", partial(summed, draft), is_last=True)
    return draft._finished(_under(draft._fitted, sums))


def _check_has_sums(model):
    """Raise if a model keeps all rows."""
    if isinstance(model.feature_map, str) or getattr(model, "max_leaf_size", None) is not None:
        raise ValueError(model._obstacle_to_batches())


def _begun(model, feature_map, classes, scope, *, needs_rows=False):
    """Return all classes if they are known, the scope, and whether the map is fitted."""
    is_told = is_classifier(model) and classes is not None
    classes = sorted_classes(classes) if is_told else None
    seed = getattr(feature_map, "random_state", model.random_state)
    scope = scope_of(feature_map, scope, seed, needs_rows=needs_rows)
    return classes, scope, isinstance(feature_map, FrozenEstimator) and not needs_rows


def surveyed(model, scope, classes, X, y, weights, number, strata=None):
    """Return the survey of a batch.

    With `strata`, a function that returns labels of y or None, rows are counted as well.
    """
    counts, codes = None, None
    if strata is not None:
        names, first, codes = np.unique(strata(X, y), return_index=True, return_inverse=True)
        counts = names, np.bincount(codes), first
        if not has_weight(weights):
            return BatchSummary(scope, {number: counts})
    is_new = classes is None and is_classifier(model) and y is not None and not is_multilabel(y)
    # With given classes, a batch of few rows may well have a class per row.
    names = np.unique(check_labels("y", y)) if is_new else classes
    draft, data = model._read_rows(X, y, weights, classes=names)
    # Those of rows without weight do not count, but those without a weight of their class do.
    known = np.unique(data.y) if is_new else None
    data = draft._weighted_by_class(data, is_batch=True)
    if is_new:
        draft.classes_ = known
    if not len(data.y):
        counts = {} if counts is None else {number: counts}
        return BatchSummary(scope, counts, classes=getattr(draft, "classes_", None))
    ranks = None if codes is None else ranks_of(codes)[data.numbers]
    rows = data.X, data.y, data.sample_weight
    return BatchSummary.of(draft, rows, number, data.numbers, scope, ranks=ranks, counts=counts)


def planned(model, summary):
    """Return a draft with a fitted map and empty sums."""
    draft, data = drafted(model, summary)
    draft._fitted = draft._fit_map(data)
    return draft


def drafted(model, summary):
    """Return a draft with columns and classes set, and the rows of the sample."""
    sample = summary.sample
    if sample is None:
        raise ValueError(NO_ROWS)
    # Their weights are already those of their classes.
    draft, data = model._read_rows(sample.X, sample.y, sample.weights, classes=summary.classes)
    draft._check_class_weight()
    if summary.names is not None:
        draft.feature_names_in_ = summary.names
    return draft, replace(data, statistics=summary.statistics)


def summed(draft, *batch):
    """Return the sums of a batch, None if its classes have no weight."""
    data = _read(draft, *batch)
    return bare(draft._fitted.added(data)) if len(data.y) else None


def _read(draft, X, y, weights, _number):
    """Return the rows of a batch under a planned draft."""
    classes = getattr(draft, "classes_", None)
    draft, data = draft._read_rows(X, y, weights, forget=False, classes=classes)
    return draft._weighted_by_class(data, is_batch=True)


def _under(before, sums):
    return replace(sums, params=before.params, maps=before.maps)


def _summary_and_sums(model, summary_of, *batch):
    summary = summary_of(*batch)
    if summary.sample is None:
        return summary, None
    return summary, summed(planned(model, summary), *batch)


# ---------------------------------------------------------------- folds


@dataclass(frozen=True, eq=False)
class Folds:
    """Folds of rows in batches: those of an integer `cv` for all rows in order.

    Parameters
    ----------
    labels : ndarray of shape (n_strata,)
        Labels that rows are stratified by.
    ends : ndarray of int of shape (n_strata, n_cells)
        Number of rows of a stratum in a cell and the ones before it.
    starts : dict of int to ndarray
        Number of rows of every stratum in earlier batches.
    seed : int or None
        Seed of random folds.
    trained, tested : ndarray of bool of shape (n_splits, n_cells)
        Which cells a split trains and tests on.
    """

    labels: np.ndarray
    ends: np.ndarray
    starts: dict
    seed: int | None
    trained: np.ndarray
    tested: np.ndarray

    @classmethod
    def of(cls, cv, summary):
        """Return the folds of a splitter, given the counts of a survey."""
        numbers = sorted(summary.counts)
        labels = np.unique(np.concatenate([summary.counts[k][0] for k in numbers]))
        # In order of their first row, as scikit-learn stratifies.
        totals, starts, order = np.zeros(len(labels), int), {}, []
        for number in numbers:
            names, counts, first = summary.counts[number]
            codes, starts[number] = np.searchsorted(labels, names), totals
            order += [code for code in codes[np.argsort(first)] if not totals[code]]
            totals = totals + np.bincount(codes, counts, len(labels)).astype(int)
        if hasattr(cv, "max_train_size"):
            return cls._in_order(cv, labels, int(totals[0]), starts)
        with naming("cv"):  # complains about too few rows, as it does for all rows
            few = np.repeat(labels, np.minimum(totals, cv.n_splits))
            next(cv.split(np.zeros((len(few), 1)), few))
        k, sizes = np.arange(cv.n_splits), np.empty((len(labels), cv.n_splits), int)
        if len(labels) == 1:  # the first folds have one more
            sizes[0] = totals[0] // cv.n_splits + (k < totals[0] % cv.n_splits)
        else:
            ends = np.cumsum(totals[order])[:, None]
            before = ends - totals[order][:, None]
            # Every n_splits-th of the sorted rows belongs to a fold.
            sizes[order] = (ends - k - 1) // cv.n_splits - (before - k - 1) // cv.n_splits
        seed, tested = cv.random_state if cv.shuffle else None, np.eye(cv.n_splits, dtype=bool)
        return cls(labels, sizes.cumsum(axis=1), starts, seed, ~tested, tested)

    @classmethod
    def _in_order(cls, cv, labels, n, starts):
        """Return the folds of TimeSeriesSplit, whose sides are stretches of rows."""
        with naming("cv"):
            splits = [
                [(rows[0], rows[-1] + 1) for rows in split] for split in cv.split(np.zeros((n, 1)))
            ]
        ends = np.unique([0, n, *np.ravel(splits)])
        begins, ends = ends[:-1], ends[1:]
        trained, tested = (
            np.array([(side[k][0] <= begins) & (ends <= side[k][1]) for side in splits])
            for k in (0, 1)
        )
        return cls(labels, ends[None], starts, None, trained, tested)

    @property
    def n_cells(self):
        """Number of cells."""
        return self.ends.shape[1]

    def __call__(self, labels, number):
        """Return the cell of every row of a batch, given the labels to stratify by."""
        codes = np.searchsorted(self.labels, labels)
        return self.of_ranks(codes, ranks_of(codes), number)

    def of_ranks(self, codes, ranks, number):
        """Return the cells of rows that are the ranks-th of their stratum in a batch."""
        if self.seed is not None:
            rng = np.random.default_rng([self.seed, _STREAM, number])
            return (self.n_cells * rng.random(ranks.max() + 1)).astype(int)[ranks]
        ranks = ranks + self.starts[number][codes]
        return np.sum(self.ends[codes] <= ranks[:, None], axis=1)

    def of_sample(self, labels, sample):
        """Return the cells of the rows of a sample."""
        codes, folds = np.searchsorted(self.labels, labels), np.empty(len(labels), int)
        for number in np.unique(sample.batches):
            in_batch = sample.batches == number
            folds[in_batch] = self.of_ranks(codes[in_batch], sample.ranks[in_batch], number)
        return folds


def ranks_of(codes):
    """Return for every row the number of earlier rows of its kind."""
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    ranks = np.empty(len(codes), int)
    ranks[order] = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks


def splitter_of(model):
    """Return the splitter that `cv` stands for, if its folds can be found in batches."""
    from sklearn.model_selection import KFold, StratifiedKFold, TimeSeriesSplit, check_cv

    with naming("cv"):
        cv = check_cv(model.cv, [0, 1], classifier=is_classifier(model))
    is_seeded = isinstance(getattr(cv, "random_state", None), Integral)
    if type(cv) is KFold and (not cv.shuffle or is_seeded):
        return cv
    if type(cv) is StratifiedKFold and not cv.shuffle and is_classifier(model):
        return cv
    if type(cv) is TimeSeriesSplit:
        return cv
    raise ValueError(
        "cv must be an integer, KFold (with an integer random_state if it shuffles), "
        "TimeSeriesSplit or, for classifiers, StratifiedKFold(shuffle=False), if rows come in "
        "batches; got "
        f"{model.cv!r}."
    )


def check_folds(records):
    """Raise if a fold has no record."""
    if any(record is None for record in records):
        raise ValueError(
            "cv must leave rows of positive weight to train and to test on in every fold, but one "
            "has none."
        )


def labels_of(X, y):
    """Return the labels that rows are stratified by, the same for all rows of several labels."""
    return one_stratum(X, y) if is_multilabel(y) else check_labels("y", y)


def one_stratum(X, y):
    """Return the same label for all rows."""
    return np.zeros(X.shape[0] if hasattr(X, "shape") else len(X), int)


# ---------------------------------------------------------------- many maps and folds


def _begun_search(model, classes, scope, decades):
    """Survey all batches, and return a draft, the rows of the sample, and the work of a search."""
    _check_has_sums(model)
    classes, scope, _ = _begun(model, model._map_of_batches(1.0), classes, scope)
    cv = splitter_of(model)
    strata = labels_of if type(cv).__name__ == "StratifiedKFold" else one_stratum
    summary_of = partial(surveyed, model, scope, classes, strata=strata)
    summary = yield Pass("statistics", summary_of, counts_all=True)
    draft, data = drafted(model, summary)
    folds, sigmas = Folds.of(cv, summary), sigma_grid(model.sigmas, data, decades)
    feature_map = model._map_of_batches(float(sigmas[0]), data)
    is_apart, n_splits = learns_from(feature_map, data.target), len(folds.tested)
    model._check_size(feature_map, data, (2 if is_apart else 4) * n_splits * len(sigmas))
    if is_apart:
        cell = folds.of_sample(strata(summary.sample.X, summary.sample.y), summary.sample)
        trains = [np.flatnonzero(is_trained[cell]) for is_trained in folds.trained]
        fits = [data.part(train).fit_at_sigma(feature_map) for train in trains]
    else:
        fits = [data.fit_at_sigma(feature_map)]
    fits = [[fit(sigma) for fit in fits] for sigma in sigmas]
    draft._fitted = draft._before(maps_of(fits[0][0]), data)
    work = _Work(draft, folds, strata, is_apart, [[*map(maps_of, fit)] for fit in fits])
    return work, data, feature_map, sigmas, [fit[0] for fit in fits]


def _finished(work, data, feature_map, draft, total):
    """Return the fitted draft; where splits had maps of their own, all rows are summed again."""
    if work.is_apart:
        draft.feature_map_ = data.fit_at_sigma(feature_map)(draft.sigma_)
        draft._fitted = draft._before(maps_of(draft.feature_map_), data)
        total = yield Pass("sums", partial(summed, draft), is_last=True)
        total = _under(draft._fitted, total)
    return draft._finished(total)


def kernel_searches(model, classes, scope, decades):
    """Return the passes of a search of kernel regression: survey, sums, scores of rows."""
    started = yield from _begun_search(model, classes, scope, decades)
    work, data, feature_map, sigmas, fits = started
    draft = work.draft
    sums = yield Pass("sums of all sigmas and folds", partial(work.sums, tests_too=False))
    trains, _, totals = work.settled(sums)
    outcomes = partial(work.outcomes, trains, _exponents(data.total, trains))
    record = yield Pass("scores", outcomes, is_last=not work.is_apart)
    check_folds(record)
    scores = [[draft._score_of(outcome, of_rows) for outcome in all_] for of_rows, all_ in record]
    scores = iter(np.transpose(scores))
    found = search(Grid(sigmas), lambda point: (next(scores), None), Equal(ceiling=1.0))
    draft._take(found)
    place = int(np.flatnonzero(sigmas == draft.sigma_)[0])
    draft.feature_map_ = fits[place]
    return (yield from _finished(work, data, feature_map, draft, totals[place]))


def ridge_searches(model, classes, scope, decades):
    """Return the passes of a search of ridge regression: survey, sums, and scores of decisions."""
    started = yield from _begun_search(model, classes, scope, decades)
    work, data, feature_map, sigmas, fits = started
    draft, alphas = work.draft, positive_array("alphas", model.alphas)
    draft._fitted = replace(draft._fitted, n_groups=0)  # squared errors need targets
    sums = yield Pass("sums of all sigmas and folds", work.sums)
    trains, tests, totals = work.settled(sums)
    pairs = iter(zip(trains, tests, strict=True))

    def judge(_):
        return [_errors(*pair, alphas) for pair in zip(*next(pairs), strict=True)], None

    unit, targets = totals[0].moments.unit.max(), totals[0].moments
    rounding = Equal().rounding
    if not is_classifier(draft):
        rounding *= np.mean(targets.squares) / targets.total
    equal = Equal(rounding=rounding, unit=unit)
    found = search(Grid(sigmas, {"alpha": alphas}), judge, equal)
    chosen, n_rows = best_of(found), int(work.folds.ends[:, -1].sum())
    scores, scale = {}, None
    places = {sigma: k for k, sigma in enumerate(sigmas.tolist())}
    task = Task(None, feature_map, sigmas, alphas, **draft._of_classes())
    if task.is_decided_again:
        best = candidate_sigmas(found.table)
        n_classes, at = task.n_classes, [places[sigma] for sigma in best.tolist()]
        draft._fitted = replace(draft._fitted, n_groups=n_classes)
        work = replace(work, maps=[work.maps[k] for k in at])
        sums = yield Pass("sums of classes", partial(work.sums, tests_too=False))
        trains, _, totals = work.settled(sums)
        rules = [(one, one.problems(n_classes), task.alphas_for(one)) for one in task.decisions]

        def solved(sums):
            return [(one, solve_problems(sums.moments, *given)) for one, *given in rules]

        solutions = [[solved(sums) for sums in of_sigma] for of_sigma in trains]
        record = yield Pass("decisions", partial(work.judged, solutions))
        check_folds(record)
        points = [
            (one, float(sigma), float(alpha))
            for sigma in best
            for one, _, alphas in rules
            for alpha in alphas
        ]
        judged = np.mean([right / weight for weight, right in record], axis=0)
        judged = judged.reshape(len(points), -1)
        candidates = [
            Candidate(*point, float(right))
            for point, right in zip(points, judged[:, 0], strict=True)
        ]
        chosen = decided(task, candidates, best, (chosen.sigma, chosen.alpha), n_rows)
        scores = best_scores(candidates)
        scale = best_scale(judged[candidates.index(chosen), 1:])
        total = totals[best.tolist().index(chosen.sigma)]
    else:
        total = totals[places[chosen.sigma]]
    draft._take(Choice(chosen, found.table, n_rows, scores, scale))
    draft.feature_map_ = fits[places[draft.sigma_]]
    return (yield from _finished(work, data, feature_map, draft, total))


def _errors(train, test, alphas):
    """Return the negative mean squared errors of all alphas, in the largest unit of targets."""
    train, test = train.moments, test.moments
    # Together they hold all rows, so the unit is the same for all folds.
    unit = np.maximum(train.unit, test.unit)
    train, test = train.in_units(unit), test.in_units(unit)
    return -test.errors(train, np.stack(solve_cholesky(train, alphas), axis=2))


@dataclass(frozen=True, eq=False)
class _Work:
    """The work of a search's passes on a batch.

    Parameters
    ----------
    draft : estimator
        Draft with empty sums.
    folds : Folds
        The folds.
    strata : callable
        Returns the labels to stratify the rows of X and y by.
    is_apart : bool
        Whether every split has its own maps, fitted to the rows that it trains on.
    maps : list of list of tuple
        For every sigma the maps of all splits, or of each.
    """

    draft: Any
    folds: Folds
    strata: Any
    is_apart: bool
    maps: list

    def _parts(self, X, y, weights, number):
        """Return the rows of a batch and their cells."""
        data = _read(self.draft, X, y, weights, number)
        return data, self.folds(self.strata(X, y), number)[data.numbers]

    def _before(self, s, k):
        return replace(self.draft._fitted, maps=self.maps[s][k if self.is_apart else 0])

    def sums(self, *batch, tests_too=True):
        """Return for every sigma the sums of the cells; apart, those of both sides of splits."""
        data, cell = self._parts(*batch)
        if self.is_apart:
            sides = [self.folds.trained, *([self.folds.tested] if tests_too else [])]
            rows = [is_in[cell] for side in sides for is_in in side]
        else:
            rows = [cell == k for k in range(self.folds.n_cells)]
        parts = [_part(data, is_in) if is_in.any() else None for is_in in rows]
        n = len(self.folds.trained)

        def made(s, k, part):
            return part and bare(self._before(s, k % n).added(part))

        return [[made(s, k, part) for k, part in enumerate(parts)] for s in range(len(self.maps))]

    def settled(self, sums):
        """Return for every sigma the sums to train on and to test on, and those of all rows."""
        n, trains, tests, totals = len(self.folds.trained), [], [], []
        for s, of_sigma in enumerate(sums):
            if self.is_apart:
                check_folds(of_sigma)
                parts = [_under(self._before(s, k % n), one) for k, one in enumerate(of_sigma)]
                trains.append(parts[:n])
                tests.append(parts[n:])
                totals.append(parts[0])
                continue
            parts = [one and _under(self._before(s, 0), one) for one in of_sigma]
            both = [sums_of_cells(parts, side) for side in (self.folds.trained, self.folds.tested)]
            check_folds([*both[0][0], *both[1][0]])
            trains.append(both[0][0])
            tests.append(both[1][0])
            totals.append(both[0][1])
        return trains, tests, totals

    def _tested(self, *batch):
        """Yield the numbers of splits that test rows of a batch, and these rows."""
        data, cell = self._parts(*batch)
        for k, tested in enumerate(self.folds.tested):
            if tested[cell].any():
                yield k, _part(data, tested[cell])

    def outcomes(self, trains, exponents, *batch):
        """Return for every split the moments of its targets, and the outcomes of all sigmas.

        Parameters
        ----------
        trains : list of list of sums
            Sums to predict from, for sigmas and splits.
        exponents : tuple of int and (array of) int
            Exponents of 2 of the units of weights and targets.
        """
        record = [None] * len(self.folds.tested)
        for k, part in self._tested(*batch):
            weights = np.ldexp(part.weights, -exponents[0])
            moments = Moments.of(np.ldexp(part.values, -exponents[1]), weights, sizes=False)
            outcomes = (
                self.draft._on(models[k])._outcomes(part, exponents[1]) for models in trains
            )
            record[k] = moments, np.stack([weights @ models for models in outcomes])
        return record

    def judged(self, solutions, *batch):
        """Return for every split its weight, and this times what is judged of all decisions.

        `solutions` are those of all decisions for sigmas and splits.
        """
        record = [None] * len(self.folds.tested)
        for k, part in self._tested(*batch):
            judged = []
            for s, of_sigma in enumerate(solutions):
                features = features_of(self._before(s, k).maps[0], part.X)
                for decision, of_alphas in of_sigma[k]:
                    values = values_of(of_alphas, features)
                    held = Held(values, part, of_alphas)
                    judged += [held.judged(place, decision) for place in range(len(values))]
            weight = part.weights.sum()
            record[k] = np.array([weight]), weight * np.array(judged)
        return record


def _part(data, mask):
    """Return the rows of a mask, without a copy if they are contiguous."""
    return data.part(as_slice(np.flatnonzero(mask)))


def _exponents(weight, trains):
    """Return exponents of 2 of the weights together, and of the largest target of each output."""
    known = [sums.targets.most for sums in trains[0] if sums.targets is not None]
    return int(np.frexp(weight)[1]), np.max(known, axis=0) if known else 0
