"""What repeated and weighted rows are worth to the marginal likelihood and to error bars."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skrf import ApproxKernelRidge, ApproxKernelRidgeClassifier, ClusterNystroem, RFFSampler
from skrf.regression.data import Data, Targets, merged_rows

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
TRUTH = np.sin(X[:, 0])
y = TRUTH + 0.5 * RNG.normal(size=200)
Q = RNG.normal(size=(300, 3))
MAP = RFFSampler(300, sigma=0.6, random_state=0)


def fitted(X, y, weights=None, **params):
    params = {"alpha": "evidence", **params}
    return ApproxKernelRidge(MAP, **params).fit(X, y, weights)


def results(model):
    return np.append(model.predict(Q[:20], return_std=True), model.noise_variance_)


PLAIN = fitted(X, y)


@pytest.mark.parametrize(
    ("rows", "weight"), [(np.tile(np.arange(200), 2), 1.0), (np.arange(200), 2.0)]
)
def test_repetitions_of_all_rows_and_equal_weights_change_nothing(rows, weight):
    for factor in (weight, 1 / 200):
        model = fitted(X[rows], y[rows], np.full(len(rows), factor))
        assert_allclose(results(model), results(PLAIN), rtol=1e-6)
        assert model.alpha_ == pytest.approx(PLAIN.alpha_ * factor * len(rows) / 200, rel=1e-6)


@pytest.mark.parametrize("kind", ["repeated", "weighted", "light", "half of no weight"])
def test_the_marginal_likelihood_does_not_collapse(kind):
    rows, weights = np.arange(200), np.ones(200)
    if kind == "repeated":
        rows, weights = np.append(rows, np.arange(10)), np.ones(210)
    elif kind == "weighted":
        weights[:10] = 3.0
    elif kind == "light":
        weights = np.full(200, 1e-3)
    else:
        rows, weights = np.tile(rows, 2), np.repeat([1.0, 1e-9], 200)
    with_new_x = X[rows] + (np.arange(len(rows)) >= 200)[:, None] * (kind == "half of no weight")
    model = fitted(with_new_x, y[rows], weights, sigma="evidence")
    assert 0.45 < np.sqrt(model.noise_variance_[0]) < 0.55
    assert np.sqrt(np.mean((model.predict(X) - TRUTH) ** 2)) < 0.25


def test_the_same_row_with_other_targets_is_information():
    rows = np.append(np.tile(np.arange(200), 2), np.arange(60))
    fresh = np.append(np.tile(y, 2), TRUTH[:60] + 0.5 * RNG.normal(size=60))
    model = fitted(X[rows], fresh, sigma="evidence")
    assert 0.45 < np.sqrt(model.noise_variance_[0]) < 0.55
    assert np.sqrt(np.mean((model.predict(X) - TRUTH) ** 2)) < 0.25
    steps = RNG.integers(0, 10, size=(400, 1)).astype(float)
    shares = 0.2 + 0.06 * np.arange(10)
    hits = (RNG.random(400) < shares[steps[:, 0].astype(int)]).astype(float)
    discrete = ApproxKernelRidge(sigma="evidence", alpha="evidence", random_state=0)
    predicted = discrete.fit(steps, hits).predict(np.arange(10.0)[:, None])
    assert np.sqrt(np.mean((predicted - shares) ** 2)) < 0.08  # .25 if they did not count


def test_the_penalty_found_fits_the_same_coefficients():
    rows = np.append(np.arange(200), np.arange(50))
    model = fitted(X[rows], y[rows])
    again = ApproxKernelRidge(MAP, alpha=model.alpha_).fit(X[rows], y[rows])
    assert_allclose(again.predict(Q), model.predict(Q), rtol=1e-6, atol=1e-8)


def test_the_noise_of_a_given_penalty_counts_rows_and_not_weights():
    alpha = 2.0
    once = ApproxKernelRidge(MAP, alpha=alpha).fit(X, y)
    for factor in (3.0, 0.01):
        heavy = ApproxKernelRidge(MAP, alpha=factor * alpha).fit(X, y, np.full(200, factor))
        assert_allclose(results(heavy), results(once), rtol=1e-7)
    # A given noise says what a unit of weight is.
    given = ApproxKernelRidge(MAP, noise_variance=0.3).fit(X, y, np.full(200, 2.0))
    repeated = ApproxKernelRidge(MAP, noise_variance=0.3).fit(np.tile(X, (2, 1)), np.tile(y, 2))
    assert_allclose(results(given), results(repeated), rtol=1e-7)


def test_classifiers_merge_repeated_rows():
    rows = np.append(np.arange(200), np.arange(40))
    counts = np.bincount(rows)
    for labels in (y > 0, np.digitize(y, [-0.5, 0.5])):
        given = {"feature_map": MAP, "alpha": "evidence", "decision": "argmax"}
        weighted = ApproxKernelRidgeClassifier(**given).fit(X, labels, counts)
        repeated = ApproxKernelRidgeClassifier(**given).fit(X[rows], labels[rows])
        assert repeated.alpha_ == pytest.approx(weighted.alpha_, rel=1e-6)


def test_sizes_are_their_definition():
    rows, targets = np.array([[0.0], [-0.0], [1], [1], [2], [2], [3]]), np.array([5.0] * 7)
    targets[3] = 6.0
    weights = np.array([1.0, 2, 3, 4, 5, 6, 7])
    data, sizes = merged_rows(
        Data(rows, targets, weights, np.arange(7), targets, Targets.of_numbers(targets))
    )
    assert_allclose(data.sample_weight, [3, 3, 4, 11, 7])
    assert (sizes.several, sizes.single, sizes.n_distinct) == (7.0, 21.0, 5)
    assert sizes.roots == pytest.approx(np.sqrt([3, 11, 7]).sum())
    assert sizes.freedom == pytest.approx(7 + sizes.roots**2 / 21)
    assert sizes.scale == pytest.approx(sizes.freedom / 28)


def test_few_rows_that_count_and_noise_that_is_lost_are_told():
    heavy = np.ones(200)
    heavy[0] = 1e6
    with pytest.warns(UserWarning, match="200 distinct rows worth 1.4") as told:
        ApproxKernelRidge(MAP, alpha="evidence").fit(X, y, heavy)
    assert told[0].filename == __file__
    nearly = np.vstack([X, X[:60] + 1e-6 * RNG.normal(size=(60, 3))])
    with pytest.warns(UserWarning, match="finds no noise in y, but rows that are left out"):
        fitted(nearly, np.append(y, y[:60]), sigma="evidence")


# ------------------------------------------------------------------ what landmarks lack


LINE = np.linspace(0, 2, 9)[:, None]


@pytest.mark.parametrize("feature_map", [None, "exact", ClusterNystroem(6)], ids=str)
def test_far_from_all_rows_functions_are_those_of_the_process(feature_map):
    """Two near rows move together there, although no landmark sees either."""
    noise, far = 0.01, np.array([[0.5], [6.0], [6.1], [9.0]])
    model = ApproxKernelRidge(feature_map, sigma=1.0, noise_variance=noise).fit(
        LINE, np.sin(LINE)[:, 0]
    )
    if feature_map is None:
        model.set_params(feature_map=ClusterNystroem(6)).fit(LINE, np.sin(LINE)[:, 0])
    process = GaussianProcessRegressor(RBF(1.0, "fixed"), alpha=noise, optimizer=None)
    _, expected = process.fit(LINE, np.sin(LINE)[:, 0]).predict(far, return_cov=True)
    _, covariance = model.predict(far, return_cov=True)
    _, deviations = model.predict(far, return_std=True)
    assert_allclose(np.diag(covariance), deviations**2, rtol=1e-12)
    assert covariance[1, 2] > 0.9 * expected[1, 2]
    samples = model.sample_y(far, 4000)
    assert np.std(samples[1] - samples[2]) == pytest.approx(
        0.0998, rel=0.06
    )  # sqrt(2 - 2 exp(-.005))
    sampled = np.cov(samples)
    sizes = np.sqrt(np.diag(covariance) - noise)
    assert_allclose(np.sqrt(np.diag(sampled)), sizes, rtol=0.06)
    errors = (sampled - covariance + noise * np.eye(4)) / np.outer(sizes, sizes)
    assert np.abs(errors).max() < 0.2
    # A function has the same value at a row in every call.
    assert_allclose(model.sample_y(far[2:3], 3), model.sample_y(far, 3)[2:3], rtol=1e-10)


def test_kernels_of_pipelines_and_of_laplace():
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    for last in (ClusterNystroem(8, sigma=1.0), ClusterNystroem(8, sigma=1.0, kernel="laplacian")):
        piped = make_pipeline(StandardScaler(), last)
        model = ApproxKernelRidge(piped, noise_variance=0.01).fit(LINE, np.sin(LINE)[:, 0])
        far = np.array([[30.0], [30.05]])
        _, covariance = model.predict(far, return_cov=True)
        samples = model.sample_y(far, 4000)
        exact = piped.fit(LINE)[-1].exact_kernel(piped[:-1].transform(far))[0, 1]
        left = np.diag(covariance).mean() - 0.01 - (1 - exact)
        assert covariance[0, 1] == pytest.approx(left, abs=0.01)
        assert np.cov(samples)[0, 1] == pytest.approx(covariance[0, 1], rel=0.12)


def test_covariances_of_a_laplacian_kernel_of_any_exponent():
    feature_map = ClusterNystroem(8, sigma=1.0, kernel="laplacian", exponent=0.6)
    model = ApproxKernelRidge(feature_map, noise_variance=0.01).fit(LINE, np.sin(LINE)[:, 0])
    far = np.array([[1e4], [1e4 + 0.05]])
    _, covariance = model.predict(far, return_cov=True)
    left = np.diag(covariance).mean() - 0.01 - (1 - np.exp(-(0.05**0.6)))
    assert covariance[0, 1] == pytest.approx(left, abs=1e-9)
    with pytest.raises(ValueError, match="sample_y needs .* exponent=1, got exponent=0.6"):
        model.sample_y(far)


def test_evidence_of_rows_without_repetitions_is_that_of_a_process():
    kernel = ConstantKernel(1.0) * RBF(1.0)
    model = ApproxKernelRidge("exact", sigma="evidence", alpha="evidence").fit(X, y)
    process = GaussianProcessRegressor(kernel, alpha=model.noise_variance_[0], normalize_y=False)
    process.fit(X, y - y.mean())
    length = process.kernel_.k2.length_scale
    assert 0.5 < model.sigma_ * length < 2
