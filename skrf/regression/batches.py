"""Fits of estimators to rows in batches: the work per batch, and what follows from it.

`surveyed` collects what is needed to fit a map, `planned` fits it, and `summed` returns the sums of
a batch under it; an engine only calls them and merges.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.frozen import FrozenEstimator

from .._batches import NO_ROWS, Pass, has_weight
from .._validation import check_labels
from ..features._batch_summary import BatchSummary, scope_of
from ..statistics import Moments
from .decide import (
    candidate_sigmas,
    candidates_of,
    judged_values,
    n_scored_folds,
    solutions,
)
from .held import features_of
from .mixins import sorted_classes
from .sample import (
    Folds,
    all_but_one,
    as_slice,
    check_folds,
    labels_of,
    one_stratum,
    ranks_of,
    splitter_of,
)
from .search import choose, learns_from, maps_of, sigma_grid, split_rows

HAS_FOLDS = "a search scores folds of all rows. Call fit, or fit_batches."


def bare(sums):
    """Return sums without what all batches share, so that only arrays are sent."""
    return replace(sums, params=None, maps=None)


# ---------------------------------------------------------------- one map


def passes(model, classes, scope):
    """Return the passes of a fit to batches, as `skrf._batches.run_passes` takes them."""
    _check_has_sums(model)
    feature_map = model._prepared(model.sigma)
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
    if isinstance(model.feature_map, str):
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
    is_new = classes is None and is_classifier(model) and y is not None
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


# ---------------------------------------------------------------- many maps and folds


def searches(model, classes, scope):
    """Return the passes of a search: survey, sums of all sigmas and folds, scores if needed."""
    _check_has_sums(model)
    classes, scope, _ = _begun(model, model._map_at(1.0), classes, scope)
    cv = splitter_of(model)
    strata = labels_of if type(cv).__name__ == "StratifiedKFold" else one_stratum
    summary_of = partial(surveyed, model, scope, classes, strata=strata)
    summary = yield Pass("statistics", summary_of, counts_all=True)
    draft, data = drafted(model, summary)
    folds, sigmas = Folds.of(cv, summary), sigma_grid(model.sigmas, data, model._decades)
    feature_map = model._map_at(float(sigmas[0]), data)
    is_apart = learns_from(feature_map, data)
    model._check_size(feature_map, data, (2 if is_apart else 4) * folds.n_splits * len(sigmas))
    if is_apart:
        fold_of_row = folds.of_sample(strata(summary.sample.X, summary.sample.y), summary.sample)
        tests = [np.flatnonzero(fold_of_row == k) for k in range(folds.n_splits)]
        fits = [train.fit_at_sigma(feature_map) for train, _ in split_rows(data, tests)]
    else:
        fits = [data.fit_at_sigma(feature_map)]
    fits = [[fit(sigma) for fit in fits] for sigma in sigmas]
    draft._fitted = draft._before(maps_of(fits[0][0]), data)
    criterion, maps = draft._criterion(data), [[*map(maps_of, fit)] for fit in fits]
    search = _Search(draft, folds, strata, is_apart, criterion.scores_rows, maps)
    sums = yield Pass("sums of all sigmas and folds", search.sums)
    trains, tests, totals = search.settled(sums)
    if criterion.scores_rows:
        outcomes = partial(search.outcomes, trains, _exponents(data.total, trains))
        record = yield Pass("scores", outcomes, is_last=not is_apart)
        check_folds(record)
        scores = [
            [draft._score_of(outcome, of_rows) for outcome in all_] for of_rows, all_ in record
        ]
        scores = np.transpose(scores)
    else:
        scores = [
            [criterion.judge(train, None, test) for train, test in zip(*pair, strict=True)]
            for pair in zip(trains, tests, strict=True)
        ]
        criterion = replace(criterion, unit=max(trains[0][0].unit, tests[0][0].unit))
    runs = zip(scores, [fit[0] for fit in fits], totals, strict=True)
    draft.feature_map_, total = choose(draft, runs, sigmas, criterion)
    decisions = () if criterion.scores_rows else draft._decisions_to_score()
    if decisions:
        grid, best = draft._decision_grid(decisions), candidate_sigmas(draft.cv_results_)
        places = [int(np.flatnonzero(sigmas == sigma)[0]) for sigma in best]
        draft.decisions_ = "one-vs-one"  # whose sums serve every decision
        draft._fitted = draft._before(draft._fitted.maps, data)
        search = replace(search, maps=[search.maps[k] for k in places])
        sums = yield Pass("sums of classes", search.sums)
        trains, _, totals = search.settled(sums)
        record = yield Pass("decisions", partial(search.outcomes_of, search.solved(trains, grid)))
        check_folds(record)
        scores = np.mean([right / weight for weight, right in record], axis=0)
        draft._take(candidates_of(grid, best, scores), best, int(folds.ends[:, -1].sum()))
        chosen = int(np.flatnonzero(best == draft.sigma_)[0])
        draft.feature_map_, total = fits[places[chosen]][0], totals[chosen]
    if is_apart:
        draft.feature_map_ = data.fit_at_sigma(feature_map)(draft.sigma_)
        draft._fitted = draft._before(maps_of(draft.feature_map_), data)
        total = yield Pass("sums", partial(summed, draft), is_last=True)
        total = _under(draft._fitted, total)
    return draft._finished(total)


@dataclass(frozen=True, eq=False)
class _Search:
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
        Whether every fold has its own maps, fitted to the other rows.
    scores_rows : bool
        Whether rows of a test are scored rather than their sums.
    maps : list of list of tuple
        For every sigma the maps of all folds, or of each.
    """

    draft: Any
    folds: Folds
    strata: Any
    is_apart: bool
    scores_rows: bool
    maps: list

    def _parts(self, X, y, weights, number):
        """Return the rows of a batch and their folds."""
        data = _read(self.draft, X, y, weights, number)
        return data, self.folds(self.strata(X, y), number)[data.numbers]

    def _before(self, s, k):
        return replace(self.draft._fitted, maps=self.maps[s][k if self.is_apart else 0])

    def sums(self, *batch):
        """Return for every sigma the sums of the folds; apart, those of all others come first."""
        (data, fold), n = self._parts(*batch), self.folds.n_splits
        rows = [fold != k for k in range(n if self.is_apart else 0)]
        rows += [fold == k for k in range(0 if self.is_apart and self.scores_rows else n)]
        parts = [_part(data, in_fold) if in_fold.any() else None for in_fold in rows]

        def made(s, k, fold_data):
            return fold_data and bare(self._before(s, k % n).added(fold_data))

        return [
            [made(s, k, fold_data) for k, fold_data in enumerate(parts)]
            for s in range(len(self.maps))
        ]

    def settled(self, sums):
        """Return for every sigma the sums to train on and to test on, and those of all rows."""
        n = self.folds.n_splits
        for of_fold in sums:
            check_folds(of_fold)
        sums = [
            [_under(self._before(s, k % n), of_fold) for k, of_fold in enumerate(of_sigma)]
            for s, of_sigma in enumerate(sums)
        ]
        if self.is_apart:
            return [of_fold[:n] for of_fold in sums], [of_fold[n:] for of_fold in sums], sums
        nothing = self.draft._fitted
        both = [all_but_one(nothing, of_fold) for of_fold in sums]
        return [of_fold[0] for of_fold in both], sums, [of_fold[1] for of_fold in both]

    def outcomes(self, trains, exponents, *batch):
        """Return for every fold the moments of its targets, and the outcomes of all sigmas.

        Parameters
        ----------
        trains : list of list of sums
            Sums to predict from, for sigmas and folds.
        exponents : tuple of int and (array of) int
            Exponents of 2 of the units of weights and targets.
        """
        (data, fold), record = self._parts(*batch), [None] * self.folds.n_splits
        for k in np.unique(fold):
            fold_data = _part(data, fold == k)
            weights = np.ldexp(fold_data.weights, -exponents[0])
            moments = Moments.of(np.ldexp(fold_data.values, -exponents[1]), weights, sizes=False)
            outcomes = (
                self.draft._on(models[k])._outcomes(fold_data, exponents[1]) for models in trains
            )
            record[k] = moments, np.stack([weights @ models for models in outcomes])
        return record

    def solved(self, trains, grid):
        """Return for every sigma, and fold to be scored, the solutions of a grid of decisions."""
        n_classes, n_columns = len(self.draft.classes_), trains[0][0].moments.n_columns
        n_folds = n_scored_folds(self.folds.n_splits, grid, len(trains), n_classes, n_columns)
        return [
            [
                [
                    (name, one)
                    for (name, _), one in zip(grid, solutions(grid, sums.moments), strict=True)
                ]
                for sums in of_sigma[:n_folds]
            ]
            for of_sigma in trains
        ]

    def outcomes_of(self, solutions, *batch):
        """Return for every fold its weight, and this times `judged_values` of the solutions."""
        (data, fold), record = self._parts(*batch), [None] * len(solutions[0])
        for k in set(fold) & set(range(len(record))):
            fold_data, judged = _part(data, fold == k), []
            weight, n_classes = fold_data.weights.sum(), len(self.draft.classes_)
            for s, of_sigma in enumerate(solutions):
                features = features_of(self._before(s, k).maps[0], fold_data.X)
                values = [(decision, one.values(features)) for decision, one in of_sigma[k]]
                judged.append([judged_values(v, name, fold_data, n_classes) for name, v in values])
            record[k] = np.array([weight]), weight * np.array(judged)
        return record


def _part(data, mask):
    """Return the rows of a mask, without a copy if they are contiguous."""
    return data.part(as_slice(np.flatnonzero(mask)))


def _exponents(weight, trains):
    """Return exponents of 2 of the weights together, and of the largest target of each output."""
    known = [sums.targets.most for sums in trains[0] if sums.targets is not None]
    return int(np.frexp(weight)[1]), np.max(known, axis=0) if known else 0
