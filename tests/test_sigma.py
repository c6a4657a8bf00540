"""The multiplier of the inputs: notations, and what data make of it."""

import re
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from contract import X, Y, data, every_mechanism, mechanism, y
from instances import MECHANISMS, make
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import pdist
from sklearn.base import clone
from sklearn.kernel_approximation import RBFSampler
from sklearn.svm import SVC

from skrf import (
    ApproxKernelAttention,
    ApproxKernelRidgeClassifier,
    ApproxKernelRidgeCV,
    ClusterNystroem,
    KernelRegressionClassifier,
    KernelRegressor,
    OptimalPositiveRF,
    QuadratureFourierFeatures,
    RFFSampler,
)
from skrf.features.spectra import SPECTRA
from skrf.graphical import ChainMRF
from skrf.statistics import PairStatistics


@every_mechanism
def test_sigma_is_a_number_or_a_rule_of_the_queries(name):
    samples = np.repeat(data(9, seed=8), [3, 1, 1, 5, 2, 1, 4, 1, 1], axis=0)
    distances = pdist(samples)
    median = 1 / np.median(distances[distances > 0])
    gamma = 1 / (samples.shape[1] * samples.var())
    assert gamma == pytest.approx(SVC(gamma="scale").fit(samples, y[:19])._gamma, rel=1e-12)
    assert gamma == pytest.approx(RBFSampler(gamma="scale").fit(samples)._gamma, rel=1e-12)
    for sigma, wanted in ((2, 2), ("scale", np.sqrt(2 * gamma)), ("median", median)):
        for convert in (np.array, sp.csr_array):
            fitted = mechanism(name, sigma=sigma).fit(convert(samples), keys=100 * Y)
            assert isinstance(fitted.sigma_, float) and fitted.sigma == sigma
            assert fitted.sigma_ == pytest.approx(wanted, rel=1e-12)
            assert fitted.gamma_ == pytest.approx(fitted.sigma_**2 / 2, rel=1e-15)


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
def test_constant_data_give_sigma_root_two(sigma):
    # 0.1 and 3 columns, for instance, have a variance of rounding, not of 0.
    values, forms = (0.0, 0.1, 1 / 3, 123.456, 1e8 + 0.1), (np.array, sp.csr_array)
    for value, convert, d in product(values, forms, (1, 3, 10)):
        rows = convert(np.full((500, d), value))
        for weights in (None, np.random.default_rng(0).random(500)):
            fitted = RFFSampler(sigma=sigma).fit(rows, sample_weight=weights)
            assert fitted.sigma_ == pytest.approx(np.sqrt(2), rel=1e-15)


@every_mechanism
@pytest.mark.parametrize("sigma", ["scale", "median"])
def test_data_of_any_size_resolve_right_or_are_named(name, sigma):
    powers = (-320, -300, -200, -161, -149, -143, -20, 20, 140, 149, 151, 200, 307)
    uneven = np.array([0.5, 1.0, 1.0, 1.0, 1.0]) * X
    unit = mechanism(name, sigma=sigma).fit(uneven)
    for power, convert in product(powers, (np.array, sp.csr_array)):
        size = 10.0**power
        rows, fitted = convert(size * uneven), mechanism(name, sigma=sigma)
        if -145 < power < 150:
            fitted.fit(rows)
            assert fitted.sigma_ * size == pytest.approx(unit.sigma_, rel=1e-12)
            method = "log_transform" if unit.is_positive else "transform"
            values = getattr(fitted, method)(rows)
            assert_allclose(values, getattr(unit, method)(uneven), rtol=1e-9, atol=1e-9)
        else:
            largest = f"The largest entry of X is {np.abs(rows).max():.4g}."
            with pytest.raises(ValueError, match=re.escape(largest)):
                fitted.fit(rows)


def test_sigma_may_be_a_number_of_any_kind():
    for value in (np.float32(0.5), np.float16(0.5), np.float64(0.5), np.int64(2)):
        assert RFFSampler(4, sigma=value, random_state=0).fit(X).sigma_ == value


@pytest.mark.parametrize("name", MECHANISMS)
def test_without_data_sigma_must_be_a_number(name):
    needs_data = make(name)._needs_data
    for sigma in ("scale", "median"):
        with pytest.raises(ValueError) as caught:
            make(name, sigma=sigma).fit_without_data(5)
        assert f"sigma={sigma!r}" in str(caught.value)
        assert needs_data or "sigma must be a number for fit_without_data" in str(caught.value)
    assert needs_data or make(name, sigma=0.5).fit_without_data(5).sigma_ == 0.5


def test_faulty_values_of_sigma_are_named_by_the_estimator():
    for estimator in (KernelRegressor, KernelRegressionClassifier, ApproxKernelRidgeClassifier):
        for sigma in (-1.0, 0, np.inf, 1e200, "scales"):
            said = f"'sigma' parameter of {estimator.__name__} must be .*1e\\+150.*"
            with pytest.raises(ValueError, match=said + re.escape(repr(sigma))):
                estimator(sigma=sigma).fit(X, y)
    said = r"sigmas must be at most 1e\+150, got \[1.0, 1e\+200\]"
    with pytest.raises(ValueError, match=said):
        ApproxKernelRidgeCV(sigmas=[1.0, 1e200]).fit(X, y)
    # Samples that nearly agree, so that sigma would leave its range.
    for sigma, other in (("scale", 1e-152), ("median", 0.0)):
        rows = np.array([[0.0, other], [1e-168, 0.0], [2e-168, 0.0], [3e-168, 0.0]])
        with pytest.raises(ValueError, match=f"X is out of the range of sigma='{sigma}'"):
            RFFSampler(sigma=sigma).fit(rows)


# ------------------------------------------------------------------ the default, None


def assert_none_is(sigma, kind, **params):
    params = {"n_components": 14, "random_state": 0, **params}
    default, given = kind(**params), kind(**params, sigma=sigma)
    assert default.sigma is None
    default.fit(X, keys=Y)
    given.fit(X, keys=Y)
    assert default.sigma is None and default.sigma_ == given.sigma_
    assert_array_equal(default.transform(X), given.transform(X))
    assert_array_equal(default.transform_keys(Y), given.transform_keys(Y))


@pytest.mark.parametrize(("kernel", "sigma"), [("gaussian", "scale"), ("softmax", 1.0)])
@pytest.mark.parametrize("name", MECHANISMS)
def test_none_is_scale_or_one_by_the_kernel(name, kernel, sigma):
    assert_none_is(sigma, MECHANISMS[name], kernel=kernel)


@pytest.mark.parametrize("kernel", ["laplacian", "cauchy", "matern12", "matern32", "matern52"])
def test_none_is_scale_for_every_kernel_of_differences(kernel):
    assert_none_is("scale", RFFSampler, kernel=kernel)


def test_none_is_scale_at_landmarks():
    assert_none_is("scale", ClusterNystroem)


# ------------------------------------------------------------------ kernels that are not Gaussian

OTHERS = [(RFFSampler, kernel) for kernel in ("softmax", *SPECTRA)]
OTHERS += [(ClusterNystroem, "laplacian"), (QuadratureFourierFeatures, "matern32")]


@pytest.mark.parametrize(("kind", "kernel"), OTHERS)
def test_only_the_gaussian_kernel_has_gamma(kind, kernel):
    fitted = kind(8, kernel=kernel, sigma=0.5, random_state=0).fit(X[:, :2])
    assert not hasattr(fitted, "gamma_")
    with pytest.raises(AttributeError, match=f"kernel='gaussian' only, got '{kernel}'"):
        _ = fitted.gamma_
    assert kind(8, sigma=0.5).fit(X[:, :2]).gamma_ == 0.125


@pytest.mark.parametrize("d", [5, 20, 100])
@pytest.mark.parametrize("kernel", ["gaussian", *SPECTRA])
def test_scale_suits_every_kernel(kernel, d):
    rows = np.random.default_rng(d).normal(size=(2000, d))
    fitted = RFFSampler(2, kernel=kernel, random_state=0).fit(rows)
    values = fitted.exact_kernel(rows[:200])[np.triu_indices(200, 1)]
    assert 0.1 < np.median(values) < 0.3
    # A function of distances, so shifts do nothing, and units cancel.
    moved = RFFSampler(2, kernel=kernel, random_state=0).fit(10 * (rows + 3))
    assert 10 * moved.sigma_ == pytest.approx(fitted.sigma_, rel=1e-9)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "cauchy", "matern32"])
def test_scale_is_its_formula(kernel):
    """The Laplacian kernel takes of each column a share of its deviation, or its mean if less."""
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(3, 2, size=500), rng.random(500) < 0.05, rng.random(500)])
    spread = 1 / RFFSampler(2, kernel=kernel, random_state=0).fit(rows).sigma_
    expected = np.sqrt(3 * rows.var() / 2)
    if kernel == "cauchy":
        expected *= np.sqrt(2)
    elif kernel == "laplacian":
        halves = rows.std(axis=0) / np.sqrt(np.pi), rows.mean(axis=0) - rows.min(axis=0)
        assert (halves[0] < halves[1]).tolist() == [True, False, True]
        expected = np.minimum(*halves).sum()
    assert spread == pytest.approx(expected, rel=1e-12)


def test_sigmas_of_the_laplacian_kernel_follow_l1_distances():
    rng = np.random.default_rng(0)
    codes = np.eye(10)[rng.integers(0, 10, 300)]  # a category as columns of zeros and ones
    rows = np.hstack([codes, 100 + rng.normal(size=(300, 3)), np.full((300, 2), 0.1)])
    distances = pdist(rows, "cityblock")
    for convert in (np.array, sp.csr_array):
        for kind in (RFFSampler, ClusterNystroem):
            scale = kind(8, kernel="laplacian", random_state=0).fit(convert(rows))
            assert 2 / scale.sigma_ == pytest.approx(np.mean(distances), rel=0.05)
            median = kind(8, kernel="laplacian", sigma="median", random_state=0)
            median.fit(convert(rows))
            assert 1 / median.sigma_ == pytest.approx(np.median(distances), rel=1e-12)
    parts = RFFSampler(8, kernel="laplacian", random_state=0)
    for part in np.array_split(rows, 7):
        parts.partial_fit(part)
    assert parts.sigma_ == pytest.approx(scale.sigma_, rel=1e-12)
    # Columns that do not vary say nothing, whatever their means are.
    constant = RFFSampler(8, kernel="laplacian").fit(np.tile(rows[:1], (300, 1)))
    assert constant.sigma_ == pytest.approx(np.sqrt(2), rel=1e-15)
    with pytest.raises(ValueError, match="needs statistics with minimum"):
        RFFSampler(kernel="laplacian").fit_statistics(PairStatistics.of(rows, sizes=False))


@pytest.mark.parametrize("name", MECHANISMS)
def test_without_data_none_needs_the_softmax_kernel(name):
    default, softmax = MECHANISMS[name](), MECHANISMS[name](kernel="softmax")
    if default._needs_data:
        said = "needs statistics of data"
    else:
        said = "sigma must be a number for fit_without_data, because sigma=None"
        assert softmax.fit_without_data(5).sigma_ == 1.0
    with pytest.raises(ValueError, match=said):
        default.fit_without_data(5)


def attention_of(feature_map):
    return ApproxKernelAttention(feature_map)(X, Y, Y)


def chain_of(feature_map):
    return ChainMRF(X, feature_map=feature_map).marginals(4)


@pytest.mark.parametrize("results_of", [attention_of, chain_of])
def test_none_and_one_leave_sigma_to_those_who_set_it(results_of):
    default = OptimalPositiveRF(16, random_state=0)
    assert_array_equal(results_of(default), results_of(clone(default).set_params(sigma=1.0)))
    with pytest.raises(ValueError, match=r"sigma=2\.0, but .* sets it"):
        results_of(clone(default).set_params(sigma=2.0))
