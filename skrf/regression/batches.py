"""Fits of estimators to rows in batches: the work per batch, and what follows from it.

`survey` collects what is needed to fit a map, `plan` fits it, and `sum_batch` returns the sums of
a batch under it; an engine only calls them and merges.
"""

from dataclasses import replace
from functools import partial

import numpy as np
from sklearn.base import is_classifier
from sklearn.frozen import FrozenEstimator

from .._batches import NO_ROWS, Pass
from .._validation import check_labels
from ..features._batch_summary import BatchSummary, scope_of
from .data import is_multilabel, makes_folds, sorted_classes


def bare(sums):
    """Return sums without what all batches share, so that only arrays are sent."""
    return replace(sums, params=None, maps=None)


HAS_FOLDS = "a search scores folds of all rows. Call fit, or fit_batches."


def check_splitter(cv):
    """Raise if splits are given as rows, of which a search in batches sees a sample."""
    if not (makes_folds(cv) or hasattr(cv, "split")):
        raise ValueError(
            "cv must be None, an integer or a splitter for rows that come in batches, of which a "
            f"search sees a sample, got {cv!r}."
        )


def passes(model, classes, scope):
    """Return the passes of a fit to batches, as `skrf._batches.run_passes` takes them."""
    if isinstance(model.feature_map, str) or getattr(model, "max_leaf_size", None) is not None:
        raise ValueError(model._obstacle_to_batches())  # it keeps all rows
    feature_map = model._map_of_batches(model.sigma)
    is_searched = model._leaves_sigma_open(feature_map)
    is_told = is_classifier(model) and classes is not None
    classes = sorted_classes(classes) if is_told else None
    seed = getattr(feature_map, "random_state", model.random_state)
    scope = scope_of(feature_map, scope, seed, needs_rows=is_searched)
    is_fitted = isinstance(feature_map, FrozenEstimator) and not is_searched
    summary_of = partial(survey, model, scope, classes)
    if is_fitted and not (is_classifier(model) and classes is None):
        summary_and_sums = partial(_summary_and_sums, model, summary_of)
        summary, sums = yield Pass("sums", summary_and_sums, is_last=True)
        draft = plan(model, summary)
    else:
        summary = yield Pass("statistics", summary_of)
        draft = plan(model, summary)
        sums = yield Pass("sums", partial(sum_batch, draft), is_last=True)
    return draft._finish(_under(draft._fitted, sums))


def survey(model, scope, classes, X, y, weights, number):
    """Return the survey of a batch."""
    is_new = classes is None and is_classifier(model) and y is not None and not is_multilabel(y)
    # With given classes, a batch of few rows may well have a class per row.
    names = np.unique(check_labels("y", y)) if is_new else classes
    draft, data = model._read_rows(X, y, weights, classes=names)
    # Those of rows without weight do not count, but those without a weight of their class do.
    names_of_weight = np.unique(data.y) if is_new else None
    data = draft._weighted_by_class(data, is_batch=True)
    if is_new:
        draft.classes_ = names_of_weight
    if not len(data.y):
        return BatchSummary(scope, classes=getattr(draft, "classes_", None))
    rows = data.X, data.y, data.sample_weight
    return BatchSummary.of(draft, rows, number, data.numbers, scope)


def plan(model, summary):
    """Return a draft with a fitted map and empty sums."""
    sample = summary.sample
    if sample is None:
        raise ValueError(NO_ROWS)
    # Their weights are already those of their classes.
    draft, data = model._read_rows(sample.X, sample.y, sample.weights, classes=summary.classes)
    draft._check_class_weight()
    if summary.names is not None:
        draft.feature_names_in_ = summary.names
    draft._fitted = draft._fit_map(replace(data, statistics=summary.statistics))
    return draft


def sum_batch(draft, X, y, weights, _number):
    """Return the sums of a batch under a planned draft, None if its classes have no weight."""
    classes = getattr(draft, "classes_", None)
    draft, data = draft._read_rows(X, y, weights, forget=False, classes=classes)
    data = draft._weighted_by_class(data, is_batch=True)
    return bare(draft._fitted.added(data)) if len(data.y) else None


def _under(before, sums):
    return replace(sums, params=before.params, maps=before.maps)


def _summary_and_sums(model, summary_of, *batch):
    summary = summary_of(*batch)
    if summary.sample is None:
        return summary, None
    return summary, sum_batch(plan(model, summary), *batch)
