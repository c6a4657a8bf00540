"""Which decision a ridge classifier makes, by its accuracy on held-out rows.

argmax takes the largest of K regressions on -1 and 1, discriminants turn them into linear
discriminants, and one-vs-one lets a regression for every pair of classes vote.
"""

from dataclasses import dataclass

import numpy as np

from ..features import as_feature_map
from .blocks import beside_threads
from .exact import KernelMap
from .held import HELD_NUMBERS, features_of, held
from .moments import ClassMoments, moments_of_rows
from .probabilities import losses
from .rows import kernel_pair_values
from .scoring import KnownDecisions, largest
from .search import nearly_best
from .solve import (
    PairRidges,
    discriminants,
    n_operations,
    pair_solutions,
    pair_values,
    ridge_of,
    solve,
    votes,
)

# The simplest first, which nearly equal scores go to.
DECISIONS = ("argmax", "discriminants", "one-vs-one")
SAME_ACCURACY = 1e-6  # differences below it do not matter: a row of a million
_N_SMALLER = 2  # values of sigma than the best, at which decisions are scored, too
_LARGEST_PAIR_ALPHA = 1.0  # more is of no use between two classes
_RACE = 2.0  # standard errors of an accuracy
_MOST_ROWS = 4096  # products of all pairs of so many training rows are held
_MOST_OPERATIONS = 4e12  # of the solutions for all pairs in a search: some minutes


@dataclass(frozen=True)
class Candidate:
    """A decision with its parameters, its accuracy on held-out rows, and losses by scale."""

    decision: str
    sigma: float
    alpha: float
    score: float
    losses: np.ndarray


def candidate_sigmas(table):
    """Return the two best values of sigma in a table of squared errors, and smaller ones.

    Squared errors are least where the kernel is narrower than suits votes of pairs. The best comes
    first, the least of equals.
    """
    sigmas = np.unique(table["param_sigma"])
    scores = [table["mean_test_score"][table["param_sigma"] == sigma].max() for sigma in sigmas]
    scores, left, best = np.nan_to_num(scores, nan=-np.inf), np.arange(len(sigmas)), []
    for _ in range(min(2, len(sigmas))):
        best.append(left[np.argmax(nearly_best(scores[left]))])
        left = left[left != best[-1]]
    smaller = range(best[0] - 1, max(best[0] - 1 - _N_SMALLER, -1), -1)
    return sigmas[best + [place for place in smaller if place not in best]]


def grid_of(decisions, alphas):
    """Return all pairs (decision, alpha) to try."""
    largest = max(_LARGEST_PAIR_ALPHA, min(alphas))
    return [
        (decision, float(alpha))
        for decision in decisions
        for alpha in alphas
        if decision != "one-vs-one" or alpha <= largest
    ]


def candidates_of(grid, sigmas, scores):
    """Return a `Candidate` for every sigma and pair of a grid.

    Scores, (n_sigmas, n_pairs, 1 + n_scales), are those of `judged_values`.
    """
    return [
        Candidate(decision, float(sigma), alpha, float(score), of_scales)
        for sigma, of_sigma in zip(sigmas, scores, strict=True)
        for (decision, alpha), (score, *of_scales) in zip(grid, of_sigma, strict=True)
    ]


def simplest(candidates, is_good):
    """Return the simplest of the good candidates: its decision, then least sigma, most alpha."""
    chosen = [one for one, good in zip(candidates, is_good, strict=True) if good]
    return min(chosen, key=lambda one: (DECISIONS.index(one.decision), one.sigma, -one.alpha))


def at_one_sigma(candidates, sigmas, n_rows):
    """Return the candidates of the better of two values of sigma, or of a clearly better one.

    That is by a standard error of its accuracy on so many rows: squared errors, which put the two
    first, have less noise than accuracies.
    """
    chosen, best, margin = [], -np.inf, 0.0
    for number, sigma in enumerate(sigmas):
        others = [one for one in candidates if one.sigma == sigma]
        score = max((one.score for one in others), default=-np.inf)
        if number > 1 and others:
            margin = _standard_error(score, n_rows)
        if score > best + margin:
            chosen, best = others, score
    return chosen


def of_two_classes(candidates, sigma, alpha, n_rows):
    """Return the candidate of the least squared error, or all if one is clearly more accurate.

    That is by a standard error of its accuracy on so many rows. Where classes touch at a sharp
    border, squared errors are least at a kernel much narrower than is good for decisions.
    """
    best = max(one.score for one in candidates)
    least = best - _standard_error(best, n_rows)
    first = [one for one in candidates if (one.sigma, one.alpha) == (sigma, alpha)]
    return first if first and first[0].score >= least else candidates


def _standard_error(accuracy, n_rows):
    """Return the standard error of an accuracy, which rounding may have put above 1."""
    return np.sqrt(max(accuracy * (1 - accuracy), 0.0) / n_rows)


def n_scored_folds(n_folds, grid, n_sigmas, n_classes, n_columns):
    """Return of how many folds decisions are scored, so that pairs do not take too long."""
    n_solutions = sum(decision == "one-vs-one" for decision, _ in grid) * n_sigmas
    cost = n_operations(n_classes, n_columns) * n_solutions
    return int(np.clip(_MOST_OPERATIONS / max(cost, 1), 1, n_folds))


# ---------------------------------------------------------------- solutions and their accuracy


def solutions(grid, moments):
    """Return the solution of every pair (decision, alpha).

    Moments are `ClassMoments` if there are pairs of classes among the decisions.
    """
    together = moments.together
    alphas = {alpha for decision, alpha in grid if decision != "one-vs-one"}
    ridges = {alpha: ridge_of(together, alpha, solve(together, alpha)) for alpha in alphas}

    def of_pair(decision, alpha):
        if decision == "one-vs-one":
            return PairRidges.solved(moments, alpha)
        ridge = ridges[alpha]
        return ridge if decision == "argmax" else discriminants(ridge, together)

    return [of_pair(*pair) for pair in grid]


def hits(values, codes, weights):
    """Return the weight of the rows whose class has the largest value, the first of equals."""
    is_right = largest(values) == codes
    return float(is_right.sum() if weights is None else weights @ is_right)


def judged_values(values, decision, test, n_classes):
    """Return the share of test rows that values get right, and their losses for every scale."""
    codes, weights = test.values.values, test.score_weights
    is_of_pairs = decision == "one-vs-one" or n_classes == 2
    scores = votes(values, n_classes) if is_of_pairs else values
    right = hits(scores, codes, weights)
    both = np.append(right, losses(values, codes, weights, is_of_pairs))
    return both / (len(codes) if weights is None else weights.sum())


def judged_decisions(transformer, train, test, grid, classes, score=None):
    """Return what `judged_values` does for every pair (decision, alpha) of a grid.

    With `score`, its results are in the place of the shares of test rows.
    """
    n_classes, feature_map = len(classes), as_feature_map(transformer)
    with beside_threads(feature_map):
        if isinstance(feature_map, KernelMap):
            alphas = [alpha for _, alpha in grid]
            values = kernel_pair_values(feature_map, train, test, alphas, n_classes)
        else:
            values = _values(feature_map, train, test, grid, n_classes)
    pairs = [(decision, of_test) for (decision, _), of_test in zip(grid, values, strict=True)]
    results = np.array([judged_values(of_test, name, test, n_classes) for name, of_test in pairs])
    if score is not None:
        codes = test.values.values
        known = [KnownDecisions(classes, of_test, name, codes) for name, of_test in pairs]
        results[:, 0] = [score(one, test) for one in known]
    return results


def _values(feature_map, train, test, grid, n_classes):
    """Return the values at test rows for every pair (decision, alpha) of a grid."""
    codes, weights = train.values.values, train.sample_weight
    of_pairs = [alpha for decision, alpha in grid if decision == "one-vs-one"]
    least = min(alpha for _, alpha in grid)
    if (len(codes) + len(test.y)) * (feature_map.n_columns or np.inf) <= HELD_NUMBERS:
        feature_map, (train, test) = held(feature_map, train, test)
    features, values = features_of(feature_map, test.X), {}
    if of_pairs:
        moments = ClassMoments.of_rows(feature_map, train.X, codes, n_classes, weights, least)
    else:
        moments = moments_of_rows(feature_map, train.X, train.values, weights, least)
    n_columns = moments.n_columns
    smallest = np.sort(np.bincount(codes, minlength=n_classes))[:2].sum()
    if of_pairs and len(codes) <= _MOST_ROWS and smallest < n_columns:
        order = np.argsort(codes, kind="stable")
        of_train = features_of(feature_map, train.X)[order]

        def of_large(pair, n_rows):
            if n_rows < n_columns:
                return None
            coefs, intercepts = pair_solutions(moments, of_pairs, pair)
            return features @ coefs + intercepts

        given = codes[order], None if weights is None else weights[order], of_pairs, n_classes
        known = pair_values(of_train @ of_train.T, features @ of_train.T, *given, of_large)
        of_alphas = zip(of_pairs, known, strict=True)
        values = {("one-vs-one", alpha): of_alpha for alpha, of_alpha in of_alphas}
    rest = [pair for pair in grid if pair not in values]
    for pair, solution in zip(rest, solutions(rest, moments), strict=True):
        values[pair] = solution.values(features)
    return [values[pair] for pair in grid]


def raced(fits, grid, sigmas, classes, score=None):
    """Return the candidates that all folds score: those that the first do not show to be worse.

    A wider kernel needs less of a ridge: on the first fold the pairs of classes are solved at a
    smaller sigma for alphas up to the best one at the larger, and the other way round. Of the
    smaller values, each is tried if the one before is the best so far. After every fold, a
    candidate leaves whose accuracy is two standard errors below the best, unless it is the best of
    its decision. Other scores have no such error.

    Parameters
    ----------
    fits : list of list of tuple
        For every sigma the (transformer, train, test) of all folds.
    grid : list of tuple
        All pairs (decision, alpha).
    sigmas : sequence of float
        The values of sigma, as `candidate_sigmas` orders them.
    classes : ndarray
        Labels.
    score : callable, default=None
        As in `judged_decisions`.
    """
    results, n_rows = {}, 0
    for number, folds in enumerate(zip(*fits, strict=True)):
        for sigma, fold in zip(sigmas, folds, strict=True):
            if number == 0:
                pairs = _worth_trying(grid, sigma, sigmas, results)
            else:
                pairs = [(decision, alpha) for decision, at, alpha in results if at == sigma]
            scores = judged_decisions(*fold, pairs, classes, score) if pairs else []
            for (decision, alpha), of_pair in zip(pairs, scores, strict=True):
                results.setdefault((decision, sigma, alpha), []).append(of_pair)
        n_rows += len(folds[0][2].y)
        if score is None:
            results = _survivors(results, n_rows)
    means = {key: np.mean(of_folds, axis=0) for key, of_folds in results.items()}
    return [
        Candidate(decision, float(sigma), alpha, float(mean[0]), mean[1:])
        for (decision, sigma, alpha), mean in means.items()
    ]


def _worth_trying(grid, sigma, sigmas, results):
    """Return the pairs (decision, alpha) for the first fold of a sigma, given those before."""
    scores = {key: of_folds[0][0] for key, of_folds in results.items()}
    if sigma in sigmas[2:]:
        _, best, _ = max(scores, key=scores.get)
        if best != min(at for _, at, _ in scores):
            return []
    least, most = 0.0, np.inf
    for other in {at for _, at, _ in scores}:
        of_pairs = [key for key in scores if key[:2] == ("one-vs-one", other)]
        if of_pairs:
            alpha = max(of_pairs, key=scores.get)[2]
            least, most = (least, min(most, alpha)) if sigma < other else (max(least, alpha), most)
    is_open = least > most
    return [
        (decision, alpha)
        for decision, alpha in grid
        if decision != "one-vs-one" or is_open or least <= alpha <= most
    ]


def _survivors(results, n_rows):
    """Return the results of candidates that may yet be the best, or are the best of a decision."""
    scores = {key: np.mean(of_folds, axis=0)[0] for key, of_folds in results.items()}
    best = max(scores.values())
    least = best - _RACE * _standard_error(best, n_rows)
    firsts = {}
    for key in sorted(scores, key=scores.get):
        firsts[key[0]] = key
    return {
        key: of_folds
        for key, of_folds in results.items()
        if scores[key] >= least or key in firsts.values()
    }
