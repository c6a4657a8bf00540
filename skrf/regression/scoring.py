"""Scorers of scikit-learn on held-out rows whose decisions or predictions are known."""

from inspect import signature

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from .._arrays import rounding_of
from .decide import Calibration, best_classes


class KnownPredictions(RegressorMixin, BaseEstimator):
    """A regressor that predicts what it is given.

    Parameters
    ----------
    predictions : ndarray of shape (n,) or (n, n_outputs)
        What it predicts, in the order of the rows.
    """

    def __init__(self, predictions):
        self.predictions = predictions

    def __sklearn_is_fitted__(self):
        return True

    def predict(self, X):
        """Return the predictions."""
        return self.predictions


class KnownLabels(ClassifierMixin, KnownPredictions):
    """A classifier of several labels per row by the values that it is given."""

    @property
    def classes_(self):
        """Numbers of the labels."""
        return np.arange(self.predictions.shape[1])

    def decision_function(self, X):
        """Return the values of the labels."""
        return self.predictions

    def predict(self, X):
        """Return the labels."""
        return (self.predictions > rounding_of(X)).astype(int)


class KnownDecisions(ClassifierMixin, BaseEstimator):
    """A classifier that decides by the values that it is given.

    Parameters
    ----------
    classes : ndarray of shape (n_classes,)
        Labels.
    values : ndarray of shape (n, n_values)
        Values of the regressions, in the order of the rows.
    scores : ndarray of shape (n, n_classes) or (n, 1)
        What a decision reads from them.
    codes : ndarray of int of shape (n,)
        Numbers of the true classes, to which the scale of probabilities is fitted.
    is_of_pairs : bool
        Whether values are those of pairs.
    """

    def __init__(self, classes, values, scores, codes, is_of_pairs):
        self.classes_, self.values, self.scores, self.codes = classes, values, scores, codes
        self.is_of_pairs = is_of_pairs

    def decision_function(self, X):
        """Return the scores of the classes, or of the second of two."""
        return self.scores[:, 0] if len(self.classes_) == 2 else self.scores

    def predict(self, X):
        """Return the labels, the first of equals."""
        return self.classes_[best_classes(self.scores, rounding_of(X))]

    def predict_proba(self, X):
        """Return the probabilities of the classes."""
        seen = self.values if self.is_of_pairs else self.scores
        return Calibration.of(seen, self.codes, None, self.is_of_pairs)(seen, len(self.classes_))


def scorer_of(estimator):
    """Return a function of an estimator, or what stands for one, and of held-out rows; or None."""
    if estimator.scoring is None:
        return None
    from sklearn.metrics import check_scoring  # megabytes

    scorer = check_scoring(estimator, scoring=estimator.scoring)
    takes_weights = "sample_weight" in signature(scorer).parameters

    def score(fitted, test):
        weights = {"sample_weight": test.score_weights} if takes_weights else {}
        return scorer(fitted, test.X, test.y, **weights)

    return score
