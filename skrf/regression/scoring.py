"""Scorers of scikit-learn on held-out rows whose decisions or predictions are known."""

from inspect import signature

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from .probabilities import best_scale, losses, probabilities
from .solve import TIE, votes


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


class KnownDecisions(ClassifierMixin, BaseEstimator):
    """A classifier that decides by the values that it is given.

    Parameters
    ----------
    classes : ndarray of shape (n_classes,)
        Labels.
    values : ndarray of shape (n, n_values)
        Values of the classes, or of the pairs of classes, in the order of the rows.
    decision : str
        What they are; "labels" if a row may have several.
    codes : ndarray of int of shape (n,)
        Numbers of the true classes, to which the scale of probabilities is fitted.
    """

    def __init__(self, classes, values, decision, codes):
        self.classes, self.values, self.decision, self.codes = classes, values, decision, codes
        self.classes_ = classes

    @property
    def _is_of_pairs(self):
        return self.decision == "one-vs-one" or len(self.classes) == 2

    def decision_function(self, X):
        """Return the values of the classes, or of the second of two."""
        if self.decision == "labels":
            return self.values
        if len(self.classes) == 2:
            return self.values[:, 0]
        return votes(self.values, len(self.classes)) if self._is_of_pairs else self.values

    def predict(self, X):
        """Return the labels, the first of equals."""
        values = self.decision_function(X)
        if self.decision == "labels":
            return (values > TIE).astype(int)
        if values.ndim == 1:
            return self.classes[(values > TIE).astype(int)]
        return self.classes[largest(values)]

    def predict_proba(self, X):
        """Return the probabilities of the classes."""
        scale = best_scale(losses(self.values, self.codes, None, self._is_of_pairs))
        return probabilities(self.values, scale, len(self.classes), self._is_of_pairs)


def largest(values):
    """Return the number of the largest value of every row, the first of equals."""
    top = values.max(axis=1, keepdims=True)
    # As in predictions, rounding decides no ties, for rows of float32 neither.
    return (values >= top - TIE * (1 + np.abs(top))).argmax(axis=1)


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
