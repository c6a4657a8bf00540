"""Rules of a user, in this file alone: a decision, landmarks, and a criterion for alpha."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from sklearn.datasets import load_iris

from skrf import (
    ApproxKernelRidge,
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
    ClusterNystroem,
    RFFSampler,
)
from skrf.regression import OneVsOne
from skrf.regression.solve import Spectrum


class Sums(OneVsOne):
    """The class with the largest sum of the regressions of its pairs."""

    def read(self, values, solution):
        first, second, third = values.T
        return np.stack([-first - second, first - third, second + third], axis=1)


def test_a_decision():
    X, y = load_iris(return_X_y=True)
    search = ApproxKernelRidgeClassifierCV(RFFSampler(40), sigmas=3, decision=Sums())
    search.set_params(random_state=0).fit(X, y)
    assert search.decisions_ == "Sums" and search.score(X, y) > 0.95
    values = np.stack(
        [search.feature_map_.transform(X) @ one for one in search.component_coef_], axis=1
    )
    sums = Sums().read(values + search.intercept_, None)
    assert_allclose(search.decision_function(X), sums, atol=1e-8)


class FarthestPoints(ClusterNystroem):
    """Landmarks that are each the row farthest from those before."""

    def _place_centers(self, rows, weights, labels, rng):
        chosen = [0]
        while len(chosen) < min(self.n_components, len(rows)):
            chosen.append(int(np.argmax(cdist(rows, rows[chosen]).min(axis=1))))
        return rows[chosen], None


@pytest.mark.parametrize("search", [ApproxKernelRidgeCV, ApproxKernelRidgeClassifierCV])
def test_landmarks(search):
    X = np.random.default_rng(0).normal(size=(90, 2))
    model = search(FarthestPoints(12), sigmas=2, random_state=0).fit(X, (X[:, 0] > 0).astype(int))
    centers = model.feature_map_.centers_
    assert len(centers) == 12 and (cdist(centers, X).min(axis=1) < 1e-12).all()
    # No two are as near to each other as rows are to the nearest of them.
    apart = cdist(centers, centers)[np.triu_indices(12, 1)].min()
    assert cdist(X, centers).min(axis=1).max() <= apart * (1 + 1e-12)


def akaike(spectrum, alphas):
    """Return Akaike's criterion for every alpha, up to a constant, with the noise unknown."""
    shrunk = alphas / (spectrum.values[:, None] + alphas)
    squares = spectrum.unexplained[:, None] + spectrum.explained.T @ shrunk**2
    total = spectrum.moments.total
    return total * np.log(squares / total).sum(axis=0) + 2 * len(squares) * (1 - shrunk).sum(axis=0)


def test_a_criterion_for_alpha():
    rng, alphas = np.random.default_rng(0), np.logspace(-4, 2, 13)
    X = rng.uniform(-3, 3, size=(200, 1))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=200)
    model = ApproxKernelRidge(RFFSampler(60, sigma=1.0), random_state=0).fit(X, y)
    found = akaike(Spectrum(model._fitted.moments), alphas)
    F, expected = model.feature_map_.transform(X), []
    centred = F - F.mean(axis=0)
    for alpha in alphas:
        hat = centred @ np.linalg.solve(centred.T @ centred + alpha * np.eye(60), centred.T)
        rest = y - y.mean() - hat @ (y - y.mean())
        expected.append(200 * np.log(rest @ rest / 200) + 2 * np.trace(hat))
    assert_array_equal(np.argsort(found), np.argsort(expected))
    assert_allclose(np.diff(found), np.diff(expected), rtol=1e-6, atol=1e-6)
