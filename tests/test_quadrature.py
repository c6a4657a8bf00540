"""QuadratureFourierFeatures: the kernel, its bound, the box, and ridge regression on them."""

import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import solve
from scipy.special import gamma as gamma_function
from scipy.special import kv
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skrf
from skrf import ApproxKernelRidge, KernelRegressor, QuadratureFourierFeatures, theory
from skrf.features.spectra import SPECTRA, Gaussian

KERNELS = "gaussian", "matern12", "matern32", "matern52"


def box_of(d, size, n=80, seed=0):
    """Return rows in a box, with two opposite corners."""
    rows = size * np.random.default_rng(seed).random((n, d))
    return np.concatenate([rows, np.zeros((1, d)), np.full((1, d), float(size))])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("d", "n", "size"), [(1, 41, 10), (2, 151, 4), (3, 400, 2)])
@pytest.mark.parametrize("margin", [0.0, 2.0])
def test_errors_are_within_the_bound(kernel, d, n, size, margin):
    X = box_of(d, size / 1.7)
    features = QuadratureFourierFeatures(n, sigma=1.7, kernel=kernel, margin=margin).fit(X)
    outside = np.random.default_rng(1).uniform(-margin, size + margin, size=(200, d)) / 1.7
    Y = np.concatenate([X, outside])
    error = np.abs(features.approximate_kernel(Y, X) - features.exact_kernel(Y, X)).max()
    bound = features.kernel_error_bound()
    assert error <= max(bound, 1e-13)
    if 1e-10 < bound < 0.5:
        assert error > bound / 20
    assert features.n_components_ <= n
    assert features.n_components_ % 2 == 1
    assert_allclose(np.sum(features.transform(Y) ** 2, axis=1), 1.0, rtol=1e-13)


def test_a_line_is_exact_to_rounding():
    X = np.linspace(0, 10, 300)[:, None]
    features = QuadratureFourierFeatures(64, sigma=1.0).fit(X)
    assert_allclose(features.approximate_kernel(X), features.exact_kernel(X), atol=1e-13)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("d", [1, 2, 3])
def test_densities_are_those_of_the_kernels(kernel, d):
    """The integral of the density is (2 pi)^d, and Matern is Bessel's function."""
    spectrum = SPECTRA.get(kernel, Gaussian())
    w = np.geomspace(1e-6, 1e9, 400_001)
    sphere = 2 * np.pi ** (d / 2) / gamma_function(d / 2)
    total = np.trapezoid(spectrum.density(w**2, d) * sphere * w ** (d - 1), w)
    assert_allclose(total, (2 * np.pi) ** d, rtol=1e-5)
    if kernel == "gaussian":
        return
    nu, r = spectrum.nu, np.linspace(0.1, 5, 20)
    z = np.sqrt(2 * nu) * r
    assert_allclose(
        np.exp(spectrum.log_profile(r)), 2 ** (1 - nu) / gamma_function(nu) * z**nu * kv(nu, z)
    )
    X = np.array([[0.0], [0.7]])
    features = QuadratureFourierFeatures(5, sigma=2.0, kernel=kernel).fit(X)
    assert_allclose(features.exact_kernel(X)[0, 1], np.exp(spectrum.log_profile(1.4)))


def test_frequencies_are_the_nearest_of_a_lattice():
    X = box_of(2, 5)
    features = QuadratureFourierFeatures(60, sigma=1.0, margin=0.0).fit(X)
    lengths = np.linalg.norm(features.omega_, axis=1)
    # The lattice of period 5 + radius: no frequency inside of the radius is missing.
    step = features.omega_[np.argmin(lengths)].max()
    radius = 2 * np.pi / step - 5
    grid = np.stack(np.meshgrid(np.arange(-20, 21), np.arange(-20, 21)), axis=-1).reshape(-1, 2)
    inside = np.linalg.norm(step * grid, axis=1) <= radius * (1 + 1e-9)
    assert inside.sum() == features.n_components_ == 2 * len(features.omega_) + 1
    signed = np.concatenate([features.omega_, -features.omega_])
    assert len(np.unique(signed.round(9), axis=0)) == len(signed)
    assert_allclose(features.weights_.sum(), 1.0)


def test_the_bound_is_its_formula():
    """Images of the kernel, and twice the share of the weights that are left out."""
    X = np.concatenate([box_of(2, 1.0) * [5.0, 3.0]])
    features = QuadratureFourierFeatures(60, sigma=1.0, margin=1.0).fit(X)
    steps = np.abs(np.where(features.omega_ == 0, np.inf, features.omega_)).min(axis=0)
    periods, images, total = 2 * np.pi / steps, 1.0, 1.0
    n = np.arange(1, 6)
    for period, extent in zip(periods, (6.0, 4.0), strict=True):
        images *= 1 + 2 * np.sum(np.exp(-((n * period - extent) ** 2) / 2))
        total *= 1 + 2 * np.sum(np.exp(-((n * period) ** 2) / 2))
    signed = np.concatenate([np.zeros((1, 2)), features.omega_, -features.omega_])
    kept = np.sum(2 * np.pi * np.exp(-np.sum(signed**2, axis=1) / 2)) / np.prod(periods)
    bound = images - 1 + 2 * (1 - kept / total)
    assert_allclose(features.kernel_error_bound(), bound, rtol=1e-9)
    assert_allclose(periods, np.array([6.0, 4.0]) + (periods[0] - 6), rtol=1e-9)


def test_sparse_rows_may_hold_nothing():
    X = box_of(2, 3)
    features, empty = QuadratureFourierFeatures(9).fit(X), np.zeros((4, 2))
    for rows in (sp.csr_array(empty), sp.csr_array((4, 2))):
        assert_array_equal(features.transform(rows), features.transform(empty))
        assert_array_equal(features.exact_kernel(rows, X), features.exact_kernel(empty, X))


def test_no_bound_exceeds_the_largest_error_that_there_is():
    """The images of the kernel add up to 25 where frequencies are this few."""
    features = QuadratureFourierFeatures(3, sigma=1.0, margin=9.0).fit(box_of(3, 30))
    assert features.kernel_error_bound() == 2.0


def test_rows_far_away_are_moved_to_the_edge():
    X = box_of(1, 10)
    features = QuadratureFourierFeatures(64, sigma=1.0).fit(X)
    assert_array_equal(features.box_, [[0.0, 10.0]])
    far = np.array([[14.0], [15.0], [1e6], [1e150], [1e300]])
    out = features.transform(far)
    assert_array_equal(out, np.repeat(out[:1], 5, axis=0))
    assert np.abs(features.approximate_kernel(far, X)).max() < 4e-4
    inside = features.transform([[13.999]])
    assert np.abs(inside - out[0]).max() > 1e-6
    with pytest.raises(ValueError, match="NaN"):
        features.transform([[np.nan]])


def process(X, y, Z, kernel, noise):
    """The exact Gaussian process with a flat mean."""
    K, ones = kernel(X, X) + noise * np.eye(len(X)), np.ones(len(X))
    both = solve(K, np.stack([y, ones], axis=1), assume_a="pos")
    weight = ones @ both[:, 1]
    mean = ones @ both[:, 0] / weight
    cross = kernel(Z, X)
    missing = 1 - cross @ both[:, 1]
    solved = solve(K, cross.T, assume_a="pos")
    variance = 1 - np.sum(cross.T * solved, axis=0) + missing**2 / weight
    return mean + cross @ solve(K, y - mean, assume_a="pos"), np.sqrt(variance + noise)


@pytest.mark.parametrize(("d", "n", "size", "tolerance"), [(1, 64, 10, 1e-10), (2, 600, 5, 1e-3)])
def test_ridge_is_the_exact_process(d, n, size, tolerance):
    rng = np.random.default_rng(0)
    X = box_of(d, size, 200)
    y = np.sin(X).sum(axis=1) + 0.1 * rng.normal(size=len(X))
    features = QuadratureFourierFeatures(n, sigma=1.0)
    model = ApproxKernelRidge(features, alpha=0.01, noise_variance=0.01).fit(X, y)
    exact = features.fit(X).exact_kernel
    Z = box_of(d, size, 50, seed=1)
    mean, std = process(X, y, Z, exact, 0.01)
    ours, our_std = model.predict(Z, return_std=True)
    assert_allclose(ours, mean, atol=tolerance)
    assert_allclose(our_std, std, atol=tolerance)
    far = np.full((3, d), size / 2.0)
    far[:, 0] = size + np.array([4.0, 10.0, 1000.0])
    mean, std = process(X, y, far, exact, 0.01)
    ours, our_std = model.predict(far, return_std=True)
    assert_allclose(ours, mean, atol=0.01)
    assert_allclose(our_std, std, atol=0.01)


def test_ridge_with_a_tiny_alpha_keeps_digits():
    X = box_of(1, 10, 200)
    y = np.sin(X[:, 0])
    model = ApproxKernelRidge(QuadratureFourierFeatures(64, sigma=1.0), alpha=1e-6).fit(X, y)
    features = model.feature_map_.transform(X)
    centred = features - features.mean(axis=0)
    kernel = centred @ centred.T + 1e-6 * np.eye(len(X))
    expected = y.mean() + centred @ centred.T @ np.linalg.solve(kernel, y - y.mean())
    assert_allclose(model.predict(X), expected, atol=1e-8)


def test_one_outlier_does_not_set_the_box():
    X = np.concatenate([box_of(1, 10, 300), [[110.0], [-500.0]]])
    features = QuadratureFourierFeatures(64, sigma=1.0).fit(X)
    assert_array_equal(features.box_, [[0.0, 10.0]])
    rare = np.concatenate([np.zeros(500), np.ones(3)])[:, None]
    assert_array_equal(QuadratureFourierFeatures(9).fit(rare).box_, [[0.0, 1.0]])


def test_the_box_does_not_depend_on_weights_and_repetitions():
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(60, 2)), rng.integers(0, 4, size=60)
    one = QuadratureFourierFeatures(25, sigma=1.0).fit(X, sample_weight=weights)
    other = QuadratureFourierFeatures(25, sigma=1.0).fit(np.repeat(X, weights, axis=0))
    assert_array_equal(one.box_, other.box_)
    assert_allclose(one.transform(X), other.transform(X), rtol=1e-12, atol=1e-14)
    keys = rng.normal(size=(5, 2)) - 3
    box = QuadratureFourierFeatures(25, sigma=1.0).fit(X, keys=keys).box_
    assert_array_equal(box[:, 0], np.minimum(X.min(axis=0), keys.min(axis=0)))


def test_columns_without_extent_are_dropped():
    X = np.column_stack([np.full(50, 3.0), np.linspace(0, 4, 50)])
    features = QuadratureFourierFeatures(21, sigma=1.0).fit(X)
    alone = QuadratureFourierFeatures(21, sigma=1.0).fit(X[:, 1:])
    assert_array_equal(features.transform(X), alone.transform(X[:, 1:]))
    constant = QuadratureFourierFeatures(21).fit(np.ones((4, 3)))
    assert_array_equal(constant.transform(np.zeros((2, 3))), np.ones((2, 1)))


def test_sides_of_different_lengths_have_their_own_extents():
    sides = np.array([20.0, 2.0, 2.0])
    X = box_of(3, 1.0, 200) * sides
    own = QuadratureFourierFeatures(1000, sigma=1.0, margin=0.0).fit(X)
    cube = QuadratureFourierFeatures(1000, sigma=1.0, margin=0.0, box=[[0, 20]] * 3).fit(X)
    assert own.kernel_error_bound() < 0.02 < 0.3 < cube.kernel_error_bound()


def test_batches_need_a_box():
    X = box_of(2, 4)
    with pytest.raises(AttributeError, match="box="):
        QuadratureFourierFeatures(25).partial_fit(X)
    given = QuadratureFourierFeatures(25, box=[[0, 4], [0, 4]])
    whole, parts = clone(given).fit(X), clone(given)
    for part in np.array_split(X, 3):
        parts.partial_fit(part)
    assert_allclose(parts.transform(X), whole.transform(X), rtol=1e-10, atol=1e-12)
    fixed = QuadratureFourierFeatures(25, sigma=1.0, box=[[0, 4], [0, 4]]).fit_without_data(2)
    assert_array_equal(fixed.transform(X), fixed.fit(X).transform(X))
    with pytest.raises(ValueError, match="needs statistics"):
        QuadratureFourierFeatures(25, sigma=1.0).fit_without_data(2)


@pytest.mark.parametrize("kind", [sp.csr_array, np.float32, np.int64])
def test_kinds_of_rows(kind):
    X = np.arange(60.0).reshape(-1, 2) % 7
    rows = kind(X) if kind is sp.csr_array else X.astype(kind)
    features = QuadratureFourierFeatures(45, sigma=1.0).fit(X)
    same = QuadratureFourierFeatures(45, sigma=1.0).fit(rows)
    assert_allclose(same.transform(rows), features.transform(X), atol=1e-6)
    assert same.transform(rows).dtype == (np.float32 if kind is np.float32 else np.float64)
    assert_array_equal(pickle.loads(pickle.dumps(features)).transform(X), features.transform(X))
    assert list(features.get_feature_names_out()[:1]) == ["quadraturefourierfeatures0"]


def test_gradients():
    torch = pytest.importorskip("torch", reason="needs torch")
    X = torch.tensor(box_of(2, 4, 5), dtype=torch.float64, requires_grad=True)
    features = QuadratureFourierFeatures(25, sigma=1.0).fit(X.detach().numpy())
    assert torch.autograd.gradcheck(features.transform, (X,))


def test_how_many_components_an_error_takes():
    X = box_of(1, 10)
    for error in (1e-2, 1e-6):
        n = theory.n_components_for(QuadratureFourierFeatures(sigma=1.0), X, rel_error=error)
        values = QuadratureFourierFeatures(n, sigma=1.0).fit(X)
        least = np.quantile(values.exact_kernel(X), 0.5, method="lower")
        assert values.kernel_error_bound() <= error * least
        fewer = QuadratureFourierFeatures(n - 2, sigma=1.0).fit(X)
        assert fewer.kernel_error_bound() > error * least


def test_what_it_is_not_for():
    X = np.random.default_rng(0).normal(size=(30, 4))
    with pytest.raises(ValueError, match="at most 3 columns, got X with 4: use RFFSampler"):
        QuadratureFourierFeatures().fit(X)
    with pytest.raises(ValueError, match="does not suit kernel regression"):
        KernelRegressor(QuadratureFourierFeatures()).fit(X[:, :2], X[:, 0])
    with pytest.raises(ValueError, match="does not suit kernel regression"):
        piped = make_pipeline(StandardScaler(), QuadratureFourierFeatures())
        KernelRegressor(piped).fit(X[:, :2], X[:, 0])
    with pytest.raises(NotImplementedError, match="nothing is random"):
        QuadratureFourierFeatures().fit(X[:, :2]).kernel_variance(X[:, :2])
    table = theory.compare(X[:, :2], n_components=25)
    assert "quadrature Fourier" in {row.name for row in table}
    assert "quadrature Fourier" not in {row.name for row in theory.compare(X, n_components=4)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"box": [[0, 1]]}, "box must hold a lower and an upper end for each of 2 columns"),
        ({"box": [[0, 1], [3, 2]]}, "box must hold"),
        ({"box": [[0, 1], [3, np.inf]]}, "box must hold"),
        ({"box": [[-1e308, 1e308], [0, 1]]}, r"box is too large at sigma=.* \[\[-1e\+308, 1e"),
        ({"box": [[0, 1e100], [0, 1]], "sigma": 1e60}, r"box is too large at sigma=1e\+60"),
        ({"margin": -1.0}, "'margin' parameter"),
        ({"kernel": "cauchy"}, "'kernel' parameter"),
        ({"n_components": 0}, "'n_components' parameter"),
    ],
)
def test_parameters_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        QuadratureFourierFeatures(**options).fit(box_of(2, 3))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size", [1e17, 1e149])
def test_the_widest_boxes_have_their_frequencies(kernel, size):
    features = QuadratureFourierFeatures(64, sigma=1.0, kernel=kernel, box=[[0, size]])
    assert features.fit(np.zeros((1, 1))).n_components_ == 63
    assert len(np.unique(features.omega_)) == 31


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_laws_hold_at_any_scale(data):
    d, n = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 60))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    size = 10.0 ** data.draw(st.integers(-140, 140))
    X = size * rng.normal(size=(data.draw(st.integers(1, 30)), d))
    kernel = data.draw(st.sampled_from(KERNELS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        features = QuadratureFourierFeatures(n, kernel=kernel).fit(X)
        out = features.transform(X)
        error = np.abs(features.approximate_kernel(X) - features.exact_kernel(X)).max()
    assert out.shape[1] == features.n_components_ <= n
    assert_allclose(np.sum(out**2, axis=1), 1.0, rtol=1e-12)
    if len(X) < 20:  # all rows are in the box
        assert error <= max(features.kernel_error_bound(), 1e-12)
    again = skrf.QuadratureFourierFeatures(n, kernel=kernel).fit(X[::-1])
    assert_allclose(again.transform(X), out, rtol=0, atol=1e-9)
