"""The multiplier of the inputs: notations, and what data make of it."""

import re

import numpy as np
import pytest
import scipy.sparse as sp
from contract import X, Y, data, every_mechanism, mechanism, y
from instances import MECHANISMS, make
from numpy.testing import assert_allclose
from sklearn.kernel_approximation import RBFSampler
from sklearn.svm import SVC

from skrf import (
    ApproxKernelRidge,
    ApproxKernelRidgeClassifier,
    ApproxKernelRidgeCV,
    ClusterNystroem,
    KernelRegressionClassifier,
    KernelRegressor,
    KernelRegressorCV,
    RFFSampler,
)


@every_mechanism
@pytest.mark.parametrize("sigma", [0.3, 2, "scale", "median"])
def test_three_notations_of_the_scale_agree(name, sigma):
    fitted = mechanism(name, sigma=sigma).fit(X)
    assert isinstance(fitted.sigma_, float) and fitted.sigma_ > 0
    assert fitted.gamma_ == pytest.approx(fitted.sigma_**2 / 2, rel=1e-15)
    if not isinstance(sigma, str):
        assert fitted.sigma_ == sigma
    assert fitted.sigma == sigma


@every_mechanism
@pytest.mark.parametrize("convert", [np.array, sp.csr_array])
def test_scale_is_the_rule_of_svc_and_rbfsampler(name, convert):
    gamma = mechanism(name, sigma="scale").fit(convert(X)).gamma_
    assert gamma == pytest.approx(1 / (X.shape[1] * X.var()), rel=1e-12)
    assert gamma == pytest.approx(SVC(gamma="scale").fit(X, y)._gamma, rel=1e-12)
    assert gamma == pytest.approx(RBFSampler(gamma="scale").fit(X)._gamma, rel=1e-12)


@every_mechanism
@pytest.mark.parametrize("convert", [np.array, sp.csr_array])
def test_median_is_the_median_of_distances_above_zero(name, convert):
    rows = np.repeat(data(9, seed=8), [3, 1, 1, 5, 2, 1, 4, 1, 1], axis=0)
    distances = np.sqrt(((rows[:, None] - rows) ** 2).sum(-1))[np.triu_indices(len(rows), 1)]
    expected = 1 / np.median(distances[distances > 0])
    assert mechanism(name, sigma="median").fit(convert(rows)).sigma_ == pytest.approx(
        expected, rel=1e-12
    )


def test_median_of_many_rows_does_not_depend_on_their_order():
    rng = np.random.default_rng(0)
    rows, counts = rng.normal(size=(1500, 2)), rng.integers(1, 4, 1500)
    order = rng.permutation(np.repeat(np.arange(1500), counts))
    model = RFFSampler(sigma="median", random_state=0)
    weighted = model.fit(rows, sample_weight=counts).sigma_
    assert model.fit(rows[order]).sigma_ == pytest.approx(weighted, rel=1e-12)
    assert model.fit(rows[order[::-1]]).sigma_ == pytest.approx(weighted, rel=1e-12)
    assert weighted == pytest.approx(0.6, rel=0.02)  # squared distances have median 4 log 2


@pytest.mark.parametrize("sigma", ["scale", "median"])
@pytest.mark.parametrize("convert", [np.array, sp.csr_array])
@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 123.456, 1e8 + 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_constant_data_give_sigma_root_two(sigma, convert, value, weighted):
    # 0.1 and 3 columns, for instance, have a variance of rounding, not of 0.
    weights = np.random.default_rng(0).random(500) if weighted else None
    for d in (1, 3, 10):
        rows = convert(np.full((500, d), value))
        fitted = RFFSampler(sigma=sigma).fit(rows, sample_weight=weights)
        assert fitted.sigma_ == pytest.approx(np.sqrt(2), rel=1e-15)


def test_scale_survives_small_and_large_data():
    for size in (1e-8, 1e8):
        fitted = RFFSampler(sigma="scale").fit(size * X)
        assert fitted.sigma_ == pytest.approx(np.sqrt(2 / (5 * X.var())) / size, rel=1e-12)


@pytest.mark.parametrize("convert", [np.array, sp.csr_array])
@pytest.mark.parametrize("factor", [1e-300, 1e-200, 1e200, 1e300])
@pytest.mark.parametrize("sigma", ["scale", "median"])
def test_a_common_factor_of_weights_does_not_matter(sigma, factor, convert):
    weights = np.random.default_rng(0).uniform(0.5, 1, size=30)
    expected = RFFSampler(sigma=sigma).fit(X, sample_weight=weights).sigma_
    found = RFFSampler(sigma=sigma).fit(convert(X), sample_weight=factor * weights)
    assert found.sigma_ == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("sigma", ["scale", "median"])
@pytest.mark.parametrize("convert", [np.array, sp.csr_array])
@every_mechanism
def test_data_of_any_size_resolve_right_or_are_named(name, convert, sigma):
    expected = mechanism(name, sigma=sigma).fit(X)
    method = "log_transform" if expected.is_positive else "transform"
    for power in (-320, -300, -200, -161, -155, -149, -143, -20, 20, 140, 149, 151, 155, 200, 307):
        size = 10.0**power
        rows = size * np.array([0.5, 1.0, 1.0, 1.0, 1.0]) * X
        unit = mechanism(name, sigma=sigma).fit(np.array([0.5, 1.0, 1.0, 1.0, 1.0]) * X)
        fitted = mechanism(name, sigma=sigma)
        if -145 < power < 150:
            fitted.fit(convert(rows))
            assert fitted.sigma_ * size == pytest.approx(unit.sigma_, rel=1e-12)
            values = getattr(fitted, method)(convert(rows))
            assert_allclose(values, getattr(unit, method)(rows / size), rtol=1e-9, atol=1e-9)
        else:
            largest = f"The largest entry of X is {np.abs(rows).max():.4g}."
            with pytest.raises(ValueError, match=re.escape(largest)):
                fitted.fit(convert(rows))


def test_rows_that_nearly_agree_are_named_where_sigma_would_leave_its_range():
    rows = np.zeros((4, 2))
    rows[:, 0] = np.arange(4) * 1e-160
    rows[0, 1] = 1e-144
    for sigma in ("scale", "median"):
        rows[:, 1] = 0 if sigma == "median" else rows[:, 1]
        with pytest.raises(ValueError, match=f"X is out of the range of sigma='{sigma}'"):
            RFFSampler(sigma=sigma).fit(rows * 1e-8)


def test_sigma_may_be_a_number_of_any_kind():
    for value in (np.float32(0.5), np.float16(0.5), np.float64(0.5), np.int64(2), 2):
        assert RFFSampler(4, sigma=value, random_state=0).fit(X).sigma_ == value


@pytest.mark.parametrize("sigma", ["scale", "median"])
def test_sigma_looks_at_queries_only(sigma):
    alone = RFFSampler(sigma=sigma, random_state=0).fit(X)
    with_keys = RFFSampler(sigma=sigma, random_state=0).fit(X, keys=100 * Y)
    assert alone.sigma_ == with_keys.sigma_


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("sigma", ["scale", "median"])
def test_without_data_sigma_must_be_a_number(name, sigma):
    with pytest.raises(ValueError) as caught:
        make(name, sigma=sigma).fit_without_data(5)
    if not make(name)._needs_data:
        assert "sigma must be a number for fit_without_data" in str(caught.value)
    assert f"sigma={sigma!r}" in str(caught.value)
    assert make(name)._needs_data or make(name, sigma=0.5).fit_without_data(5).sigma_ == 0.5


@pytest.mark.parametrize("estimator", [RFFSampler, ClusterNystroem, ApproxKernelRidge])
def test_values_of_sigma_that_only_others_take_are_told_apart(estimator):
    for sigma, who in (("auto", "KernelRegressor"), ("loo", "feature_map='exact'")):
        said = f"'sigma' parameter of {estimator.__name__} must be.* Got '{sigma}' instead.*{who}"
        with pytest.raises(ValueError, match=said):
            estimator(sigma=sigma).fit(X, y)


@pytest.mark.parametrize(
    "estimator",
    [KernelRegressor, KernelRegressionClassifier, ApproxKernelRidge, ApproxKernelRidgeClassifier],
)
@pytest.mark.parametrize("sigma", [-1.0, 0, np.inf, 1e200, "scales", "a number"])
def test_an_estimator_with_a_faulty_sigma_names_itself(estimator, sigma):
    said = f"'sigma' parameter of {estimator.__name__} must be .*1e\\+150.*{re.escape(repr(sigma))}"
    with pytest.raises(ValueError, match=said):
        estimator(sigma=sigma).fit(X, y)


@pytest.mark.parametrize("estimator", [KernelRegressorCV, ApproxKernelRidgeCV])
def test_a_search_names_sigmas_that_are_too_large(estimator):
    with pytest.raises(ValueError, match=r"sigmas must be at most 1e\+150, got \[1.0, 1e\+200\]"):
        estimator(sigmas=[1.0, 1e200]).fit(X, y)
