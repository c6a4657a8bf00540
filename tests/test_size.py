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
    SimplexRFPlus,
)
from skrf.theory import (
    bernstein_bound,
    chebyshev_bound,
    hoeffding_bound,
    left_tail_bound,
    n_components_for,
    upper_tail_bound,
)
from skrf.theory.concentration import least_bound

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
        (HybridRF(coupling="orthogonal"), 0.3),
        (RFFSampler(coupling="norm-coupled"), 0.15),
        (AdaptiveRF(), 0.1),  # few components have few centres, whose places are luck
    ],
    ids=repr,
)
def test_without_a_closed_form_the_answer_is_measured(mechanism, rel_error):
    n = n_components_for(mechanism, X, rel_error=rel_error)
    assert type(n) is int
    assert abs(measured_error(mechanism, n) / rel_error - 1) < 0.15


def test_enormous_numbers_are_stated():
    mechanism = PositiveRF(coupling="iid", sigma=1.0)
    with pytest.warns(UserWarning, match=r"components of PositiveRF.* AdaptiveRF and Dense"):
        n = n_components_for(mechanism, 8 * X, rel_error=1e-3)
    logs = (
        PositiveRF(1, coupling="iid", random_state=0, sigma=1.0)
        .fit(8 * X)
        .kernel_variance(8 * X, log=True)
    )
    logs -= 2 * PositiveRF(1, sigma=1.0).fit(8 * X).exact_kernel(8 * X, log=True)
    assert n > 2**24
    assert n == pytest.approx(np.exp(np.sort(logs, axis=None)[1800]) * 1e6, rel=1e-6)
    with pytest.warns(UserWarning, match=r"rel_error=0.1 takes [0-9.]+e\+"):
        endless = n_components_for(RFFSampler(sigma=1.0), 300 * X, rel_error=0.1)
    assert endless > 10**299
    # Kernel values near 1 take many components as well, if the error is to be small.
    with pytest.warns(UserWarning, match="errors fall with the root of their number") as warned:
        n_components_for(AdaptiveRF(sigma=0.1), X, rel_error=1e-6)
    assert "most kernel values are" not in str(warned[0].message)
    for many in (RFFSampler(sigma=1.0), DenseExponentialRF(sigma=3.0)):  # without a warning
        assert n_components_for(many, X, rel_error=0.5) < 2**20


def test_errors_at_the_ends_of_the_range_are_measured():
    measured = RFFSampler(coupling="norm-coupled", kernel="softmax", sigma=1.0)
    far = 100 * X[:8]
    far[0] *= 5
    with pytest.warns(UserWarning, match=r"takes [0-9.]+e\+"):
        assert n_components_for(measured, far, rel_error=0.1) > 1e100
    # Equal rows have no error.
    alike = np.tile(X[:1], (8, 1))
    for mechanism in (RFFSampler(), RFFSampler(coupling="norm-coupled")):
        for quantile in (0.5, None):
            assert n_components_for(mechanism, alike, rel_error=0.1, quantile=quantile) <= 2


@pytest.mark.parametrize(
    "mechanism",
    [
        RFFSampler(sigma=0.5, coupling="iid"),
        OptimalPositiveRF(sigma=0.5),
        PositiveRF(sigma=0.3, variant="hyperbolic"),
        DenseExponentialRF(sigma=0.5, coupling="iid"),
    ],
    ids=repr,
)
def test_errors_are_as_probable_as_asked_for(mechanism):
    """The number is the least whose bound is small enough; draws are off less often than that."""
    asked = {"rel_error": 0.3, "quantile": 0.8}
    n = n_components_for(mechanism, X, Y, probability=0.9, **asked)
    step = mechanism._columns_per_projection
    assert n % step == 0 and n > n_components_for(mechanism, X, Y, **asked)
    bounds = []
    for count in (n, n - step):
        fitted = clone(mechanism).set_params(n_components=count, random_state=0).fit(X, keys=Y)
        errors = 0.3 * fitted.exact_kernel(X, Y)
        bounds.append(np.quantile(least_bound(fitted, X, Y, np.log(errors)), 0.8, method="higher"))
    assert bounds[0] <= 0.1 < bounds[1]
    sized, off = clone(mechanism).set_params(n_components=n), np.zeros(errors.shape)
    for seed in range(60):
        features = sized.set_params(random_state=seed).fit(X, keys=Y)
        off += np.abs(features.approximate_kernel(X, Y) - features.exact_kernel(X, Y)) >= errors
    assert np.quantile(off / 60, 0.8, method="higher") <= 0.1


def test_the_least_bound_is_the_smallest_that_is_known():
    fitted = OptimalPositiveRF(400, sigma=0.5, coupling="iid", random_state=0).fit(X, keys=Y)
    given = {"X": X[:3], "Y": Y[:2], "error": 0.2}
    found = least_bound(fitted, X[:3], Y[:2], np.full((3, 2), np.log(0.2)))
    tails = upper_tail_bound(fitted, **given) + left_tail_bound(fitted, **given)
    others = [bound(fitted, **given) for bound in (chebyshev_bound, hoeffding_bound)]
    np.testing.assert_array_equal(
        found, np.minimum.reduce([tails, bernstein_bound(fitted, **given), *others])
    )
    # A kernel that underflows is a small error, not one of 0: no warning.
    far = np.vstack([X[:20], 200 * X[:1]])
    assert n_components_for(RFFSampler(sigma=1.0), far, rel_error=0.3, probability=0.9) > 100
    with pytest.raises(NotImplementedError, match=r"No bound of the tails of SimplexRFPlus\(\)"):
        n_components_for(SimplexRFPlus(), X, rel_error=0.1, probability=0.9)
    with pytest.raises(NotImplementedError, match="regularized.*probability must be None"):
        n_components_for(PositiveRF(variant="regularized"), X, rel_error=0.1, probability=0.9)
    with pytest.raises(ValueError, match="probability=0.9 takes more than 1048576 components"):
        n_components_for(RFFSampler(), X, rel_error=1e-4, probability=0.9)


@pytest.mark.parametrize("probability", [None, 0.9])
def test_parameters_set_after_a_fit_count(probability):
    rows = np.random.default_rng(0).normal(size=(30, 3))
    own = PositiveRF(10, coupling="iid", sigma=0.3).fit(rows).set_params(variant="hyperbolic")
    question = {"X": rows, "rel_error": 0.3, "probability": probability}
    assert n_components_for(own, **question) == n_components_for(clone(own), **question)


def test_size_refuses_what_it_cannot_be_asked():
    for wrong in (0, 1, -0.5, "high"):
        with pytest.raises(ValueError, match=r"probability must be None or a number in \(0, 1\)"):
            n_components_for(RFFSampler(), X, rel_error=0.1, probability=wrong)
    with pytest.raises(ValueError, match="with quantile=None"):
        n_components_for(RFFSampler(), X, rel_error=0.1, quantile=None, probability=0.9)
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
