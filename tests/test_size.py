"""Numbers of columns: what is promised is kept, and where it comes from is told."""

import math

import numpy as np
import pytest
from sklearn.base import clone

from skrf import (
    AdaptiveRF,
    ClusterNystroem,
    DenseExponentialRF,
    GeneralizedExponentialRF,
    HybridRF,
    OptimalPositiveRF,
    PositiveRF,
    RFFSampler,
)
from skrf.theory import n_components_for

X = np.random.default_rng(0).normal(size=(60, 4)) / 2
Y = np.random.default_rng(1).normal(size=(40, 4)) / 2 + 0.3


def errors(mechanism, n_components, Z):
    """Return the log relative variance of all pairs, and the relative error of the matrix."""
    fitted = clone(mechanism).set_params(n_components=n_components, random_state=0).fit(X, keys=Z)
    exact, variance = fitted.exact_kernel(X, Z), fitted.kernel_variance(X, Z, log=True)
    of_matrix = math.sqrt(np.exp(variance).sum() / (exact**2).sum())
    return variance - 2 * fitted.exact_kernel(X, Z, log=True), of_matrix


@pytest.mark.parametrize(
    "mechanism",
    [
        RFFSampler(sigma=0.5),
        RFFSampler(sigma=0.5, coupling="simplex"),
        OptimalPositiveRF(sigma=0.5, coupling="simplex", kernel="softmax"),
        GeneralizedExponentialRF(sigma=0.5),
        DenseExponentialRF(sigma=0.5, coupling="iid"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("rel_error", [0.05, 0.5])
def test_it_is_the_least_number_for_that_share_of_pairs(mechanism, rel_error):
    step, wanted = mechanism._columns_per_projection, 2 * math.log(rel_error)
    Z = None if mechanism.coupling == "orthogonal" else Y
    for quantile in (0.1, 0.5, 0.9):
        n = n_components_for(mechanism, X, Z, rel_error=rel_error, quantile=quantile)
        assert (errors(mechanism, n, Z)[0] <= wanted + 1e-9).mean() >= quantile
        if n > step:
            # One projection fewer: a larger share exceeds the error.
            below = errors(mechanism, n - step, Z)[0] <= wanted
            assert below.sum() <= math.ceil(quantile * (below.size - 1))
    # Of the whole matrix: the sum of all variances over that of the squared kernel.
    n = n_components_for(mechanism, X, Z, rel_error=rel_error, quantile=None)
    assert errors(mechanism, n, Z)[1] <= rel_error * (1 + 1e-9)
    assert n == step or errors(mechanism, n - step, Z)[1] > rel_error


def test_of_many_rows_some_stand_for_all():
    rows = np.random.default_rng(0).normal(size=(1500, 4)) / 2
    single = RFFSampler(2, coupling="iid", random_state=0, sigma=1.0).fit(rows)
    logs = single.kernel_variance(rows, log=True) - 2 * single.exact_kernel(rows, log=True)
    expected = 2 * np.exp(np.quantile(logs, 0.9)) / 0.1**2
    n = n_components_for(RFFSampler(coupling="iid", sigma=1.0), rows, rel_error=0.1, quantile=0.9)
    assert n == pytest.approx(expected, rel=0.1)


def measured_error(mechanism, n):
    fitted = clone(mechanism).set_params(n_components=int(n), random_state=0).fit(X)
    exact, squares = fitted.exact_kernel(X), 0.0
    for seed in range(1000, 1150):
        squares = squares + (fitted.redraw(seed).approximate_kernel(X) / exact - 1) ** 2 / 150
    return np.median(np.sqrt(squares))


@pytest.mark.parametrize(
    ("mechanism", "rel_error"),
    [
        (HybridRF(coupling="orthogonal"), 0.15),
        (RFFSampler(coupling="norm-coupled"), 0.15),
        (AdaptiveRF(), 0.05),  # few components have few centres, whose places are luck
    ],
    ids=repr,
)
def test_without_a_closed_form_the_answer_is_measured(mechanism, rel_error):
    n = n_components_for(mechanism, X, rel_error=rel_error)
    assert type(n) is int
    assert abs(measured_error(mechanism, n) / rel_error - 1) < 0.15


def test_enormous_numbers_are_stated():
    mechanism = PositiveRF(coupling="iid", sigma=1.0)
    n = n_components_for(mechanism, 8 * X, rel_error=1e-3)
    logs = (
        PositiveRF(1, coupling="iid", random_state=0, sigma=1.0)
        .fit(8 * X)
        .kernel_variance(8 * X, log=True)
    )
    logs -= 2 * PositiveRF(1, sigma=1.0).fit(8 * X).exact_kernel(8 * X, log=True)
    assert n > 2**24
    assert n == pytest.approx(np.exp(np.sort(logs, axis=None)[1800]) * 1e6, rel=1e-6)
    endless = n_components_for(RFFSampler(sigma=1.0), 300 * X, rel_error=0.1)
    assert endless > 10**299


def test_errors_at_the_ends_of_the_range_are_measured():
    measured = RFFSampler(coupling="norm-coupled", kernel="softmax", sigma=1.0)
    far = 100 * X[:8]
    far[0] *= 5
    assert n_components_for(measured, far, rel_error=0.1) > 1e100
    # Equal rows have no error.
    alike = np.tile(X[:1], (8, 1))
    for mechanism in (RFFSampler(), RFFSampler(coupling="norm-coupled")):
        for quantile in (0.5, None):
            assert n_components_for(mechanism, alike, rel_error=0.1, quantile=quantile) <= 2


def test_size_refuses_what_it_cannot_be_asked():
    for wrong in (0, -1.0, "small", math.inf, math.nan):
        with pytest.raises((ValueError, TypeError), match="rel_error must be a finite number > 0"):
            n_components_for(RFFSampler(), X, rel_error=wrong)
    for wrong in (-0.1, 1.5, "mean"):
        with pytest.raises(ValueError, match="quantile must be None or a number from 0 to 1"):
            n_components_for(RFFSampler(), X, rel_error=0.1, quantile=wrong)
    for wrong, said in ((X[:, :2], "must have the 4 features of X"), (X * 1e200, "too large")):
        with pytest.raises(ValueError, match=rf"^Y .*{said}"):
            n_components_for(RFFSampler(), X, wrong, rel_error=0.1)
    with pytest.raises(NotImplementedError, match="ClusterNystroem.*whose error is bias"):
        n_components_for(ClusterNystroem(), X, rel_error=0.1)
