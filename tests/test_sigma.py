"""The multiplier of the inputs: notations, and what data make of it."""

import numpy as np
import pytest
import scipy.sparse as sp
from contract import X, Y, data, every_mechanism, mechanism, y
from sklearn.kernel_approximation import RBFSampler
from sklearn.svm import SVC

from skrf import RFFSampler


@every_mechanism
@pytest.mark.parametrize("sigma", [0.3, 2, "scale", "median"])
def test_three_notations_of_the_scale_agree(name, sigma):
    fitted = mechanism(name, sigma=sigma).fit(X)
    assert isinstance(fitted.sigma_, float) and fitted.sigma_ > 0
    assert fitted.gamma_ == pytest.approx(fitted.sigma_**2 / 2, rel=1e-15)
    assert fitted.length_scale_ == pytest.approx(1 / fitted.sigma_, rel=1e-15)
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


@pytest.mark.parametrize("sigma", ["scale", "median"])
def test_sigma_looks_at_queries_only(sigma):
    alone = RFFSampler(sigma=sigma, random_state=0).fit(X)
    with_keys = RFFSampler(sigma=sigma, random_state=0).fit(X, keys=100 * Y)
    assert alone.sigma_ == with_keys.sigma_
