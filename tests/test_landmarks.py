"""ClusterNystroem and ClusterQuantizer: what they compute, and where their centres stand."""

import pickle
import warnings
from itertools import product

import array_api_strict
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import laplacian_kernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from threadpoolctl import threadpool_limits

from skrf import (
    ApproxKernelAttention,
    ApproxKernelRidge,
    ApproxKernelRidgeClassifier,
    ApproxKernelRidgeCV,
    ClusterNystroem,
    ClusterQuantizer,
    KernelRegressionClassifier,
    KernelRegressor,
    RFFSampler,
)
from skrf.exceptions import FeatureCollapseWarning
from skrf.features import landmarks

X, y = load_iris(return_X_y=True)
Q = X[::7] + 0.1
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def kernel(X, Y, sigma):
    return np.exp(-(sigma**2) / 2 * cdist(X, Y, "sqeuclidean"))


def make(n_components=12, **params):
    return ClusterNystroem(n_components, **{"random_state": 0, **params})


# ------------------------------------------------------------------ the estimate


@pytest.mark.parametrize("exponent", [1, 0.6, 0.05])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix, array_api_strict.asarray])
def test_the_laplacian_kernel_is_exact_with_all_rows_as_landmarks(form, exponent):
    rows, sigma = np.unique(X, axis=0), 0.4
    fitted = make(500, kernel="laplacian", exponent=exponent, sigma=sigma).fit(rows)
    expected = np.exp(-((sigma * cdist(Q, rows, "cityblock")) ** exponent))
    features = np.asarray(fitted.transform(form(Q))) @ fitted.transform(rows).T
    assert_allclose(features, expected, rtol=1e-9)
    assert_allclose(fitted.exact_kernel(Q, rows), expected, rtol=1e-12)
    single = fitted.transform(Q.astype(np.float32))
    assert single.dtype == np.float32
    assert_allclose(single, fitted.transform(Q), rtol=0, atol=1e-6)


def test_an_exponent_of_1_is_the_laplacian_kernel_of_scikit_learn():
    fitted = make(kernel="laplacian", sigma=0.7).fit(X)
    assert fitted.exponent == 1
    assert_allclose(fitted.exact_kernel(Q, X), laplacian_kernel(Q, X, gamma=0.7), rtol=1e-12)


def test_exponents_are_those_of_the_laplacian_kernel_and_at_most_1():
    for wrong in (0.0, -1.0, 1.01, "auto", None):
        with pytest.raises(ValueError, match=r"'exponent' parameter.*\(0.0, 1.0\]"):
            make(kernel="laplacian", exponent=wrong).fit(X)
    with pytest.raises(ValueError, match="exponent=0.5 needs kernel='laplacian', got kernel='gau"):
        make(exponent=0.5).fit(X)
    with pytest.raises(TypeError, match="'exponent', got exponent=0.5.*use ClusterNystroem"):
        RFFSampler(kernel="laplacian", exponent=0.5)


@pytest.mark.parametrize("exponent", [1.0, 0.3])
def test_laplacian_ridge_is_exact_with_all_rows_as_landmarks(exponent):
    rows, queries = np.unique(X, axis=0)[::3], Q[::3]
    target = np.sin(rows).sum(axis=1)
    exact = KernelRidge(alpha=0.1, kernel="precomputed")
    matrix, across = (
        np.exp(-((0.4 * cdist(Z, rows, "cityblock")) ** exponent)) for Z in (rows, queries)
    )
    center = np.eye(len(rows)) - 1 / len(rows)  # the intercept
    exact.fit(center @ matrix @ center, target - target.mean())
    expected = target.mean() + (across - matrix.mean(axis=0)) @ center @ exact.dual_coef_
    feature_map = make(500, kernel="laplacian", exponent=exponent, sigma=0.4)
    model = ApproxKernelRidge(feature_map, alpha=0.1).fit(rows, target)
    assert_allclose(model.predict(queries), expected, rtol=1e-9)


@pytest.mark.parametrize("exponent", [1.0, 0.6])
def test_laplacian_kernels_of_rows_of_any_size(exponent):
    """Also of rows that are equal but for one column, and of one that is far from the others."""
    rows = np.repeat(X[:12], 2, axis=0)
    rows[1::4, 0] += 0.5
    rows[0] = 1e4
    near = make(9, kernel="laplacian", exponent=exponent, sigma=0.4).fit(rows)
    for size in (2.0**-480, 2.0**480):  # about 1e-144 and 1e144
        far = clone(near).set_params(sigma=0.4 / size).fit(size * rows)
        kernel, features = far.exact_kernel(size * rows), far.transform(size * rows)
        assert (np.diag(kernel) == 1).all()
        assert_allclose(kernel, near.exact_kernel(rows), rtol=1e-12)
        assert_allclose(features, near.transform(rows), rtol=0, atol=1e-9)


def test_gradients_of_a_laplacian_kernel_are_finite_at_landmarks():
    torch = pytest.importorskip("torch")
    fitted = make(500, kernel="laplacian", exponent=0.6, sigma=0.4).fit(X[::10])
    rows = torch.tensor(np.vstack([X[:1], Q[:1]]), requires_grad=True)
    (gradient,) = torch.autograd.grad(fitted.transform(rows).sum(), rows)
    assert torch.isfinite(gradient).all()
    moved = torch.tensor(Q[:2] + 0.037, requires_grad=True)  # no column has a kink there
    assert torch.autograd.gradcheck(fitted.transform, moved, fast_mode=True)


def test_the_estimate_is_the_projection_on_the_landmarks():
    places = make().fit(X, y).centers_
    for sigma in (0.3, 1.0, 4.0):
        fitted = make(sigma=sigma).fit(X, y)
        C = fitted.centers_
        assert_array_equal(C, places)
        assert C.shape == (12, 4) and fitted.n_components_ == 12 and fitted.sigma_ == sigma
        inner = np.linalg.pinv(kernel(C, C, sigma), rcond=1e-13, hermitian=True)
        expected = kernel(Q, C, sigma) @ inner @ kernel(C, X, sigma)
        # The inverse magnifies rounding, most where the kernel is flat.
        close = {"rtol": 0, "atol": 1e-9}
        assert_allclose(fitted.approximate_kernel(Q, X), expected, **close)
        assert_allclose(fitted.transform(Q) @ fitted.transform_keys(X).T, expected, **close)
        assert_allclose(fitted.approximate_kernel(C, C), kernel(C, C, sigma), **close)
        assert_allclose(fitted.exact_kernel(Q, X), kernel(Q, X, sigma), **CLOSE)
    # scikit-learn's map, given all landmarks as its data, has the same root.
    fitted = make(sigma=1.0).fit(X, y)
    theirs = Nystroem(gamma=0.5, n_components=12, random_state=0).fit(fitted.centers_)
    order = theirs.component_indices_
    assert_allclose(fitted.transform(Q)[:, order], theirs.transform(Q), rtol=0, atol=1e-8)
    # Of a flat kernel what is left besides a constant is rounding, whose root is left out.
    for sigma in (1e-9, 1e-4):
        fitted = make(sigma=sigma).fit(X, y)
        assert_allclose(fitted.approximate_kernel(Q, X), kernel(Q, X, sigma), **close)


def test_what_it_claims():
    for mechanism in (make(), make().fit(X, y)):
        assert not mechanism.is_positive and not mechanism.is_unbiased and mechanism.is_symmetric
        assert not hasattr(mechanism, "log_transform") and not hasattr(mechanism, "partial_fit")
    with pytest.raises(NotImplementedError, match="nothing is random"):
        make().fit(X).kernel_variance(Q)
    with pytest.raises(ValueError, match="call fit"):
        make().fit_without_data(3)
    with pytest.raises(ValueError, match="'kernel'"):
        ApproxKernelAttention(make())(Q, Q, Q)
    # No sum below 0 is promised, and there are some.
    assert make(sigma=3.0).fit(X, y).approximate_kernel(Q, X).min() < -1e-3


def test_extreme_sigmas_stay_finite():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", FeatureCollapseWarning)  # all features are 0 far away
        for sigma in (1e-9, 1e-4, 1e3, 1e140):
            for model in (KernelRegressionClassifier(make()), KernelRegressor(make())):
                model.set_params(sigma=sigma).fit(X, y)
                assert np.isfinite(model.predict(Q)).all()


# ------------------------------------------------------------------ where landmarks stand


def test_clusters_are_found_within_classes():
    """Two classes in the same places: centres of classes are those of their own rows."""
    rng = np.random.default_rng(0)
    places = np.repeat([[0.0, 0.0], [9.0, 0.0]], 40, axis=0)
    rows = np.vstack([places + rng.normal(size=(80, 2)), places + rng.normal(size=(80, 2)) + 0.3])
    labels = np.repeat(["b", "a"], 80)
    expected = [rows[start : start + 40].mean(axis=0) for start in (0, 40, 80, 120)]
    for centers in ("auto", "classes"):
        places = make(4, centers=centers).fit(rows, labels).centers_
        assert_allclose(np.sort(places, axis=0), np.sort(expected, axis=0), rtol=0, atol=1e-8)
    plain = make(4, centers="kmeans").fit(rows)
    assert_array_equal(make(4, centers="kmeans").fit(rows, labels).centers_, plain.centers_)
    assert_array_equal(make(4).fit(rows).centers_, plain.centers_)
    distances = cdist(rows, plain.centers_).min(axis=1)
    assert distances @ distances < 1.2 * KMeans(4, n_init=5, random_state=0).fit(rows).inertia_


def test_classes_get_landmarks_by_their_size_and_keys_some_too():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [300, 99, 1])
    rows = rng.normal(size=(400, 2)) + 100 * labels[:, None]
    nearest = np.round(make(43).fit(rows, labels).centers_[:, 0] / 100)
    assert_array_equal(np.bincount(nearest.astype(int)), [31, 11, 1])
    fitted = make(2, sigma=1.0).fit(X, keys=X + 50)
    assert_allclose(np.sort(fitted.centers_[:, 0]), [X[:, 0].mean(), X[:, 0].mean() + 50])


def test_more_components_than_samples_take_the_samples():
    """149 of the 150 are different."""
    for centers in ("auto", "classes", "kmeans", "random"):
        fitted = make(149 if centers == "auto" else 500, centers=centers, sigma=1.0).fit(X, y)
        assert_array_equal(fitted.centers_, np.unique(X, axis=0))
        assert len(fitted.get_feature_names_out()) == fitted.n_components_ == 149
        assert_allclose(fitted.approximate_kernel(X), kernel(X, X, 1.0), rtol=0, atol=1e-8)


def test_random_landmarks_are_different_rows_drawn_by_weight():
    rows = np.repeat(np.arange(40.0)[:, None], 3, axis=0)
    weights = np.where(rows[:, 0] < 20, 1.0, 9.0)
    heavy = 0
    for seed in range(100):
        places = ClusterNystroem(4, centers="random", random_state=seed)
        places = places.fit(rows, sample_weight=weights).centers_[:, 0]
        assert len(np.unique(places)) == 4 and np.isin(places, rows).all()
        heavy += np.sum(places >= 20)
    # 400 draws of a share of 0.9, a little less as heavy rows are used up: 5 standard errors.
    assert 0.8 < heavy / 400 < 0.95


# ------------------------------------------------------------------ rows and weights


@pytest.mark.parametrize("centers", ["auto", "kmeans", "random"])
def test_weights_are_repetitions(centers):
    """Ratios of weights count alone, and no order of samples."""
    for seed, sigma in product(range(6), (1.0, "median")):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(25, 2)) if seed < 3 else np.round(rng.normal(size=(25, 2)))
        labels, weights = rng.integers(0, 3, 25), rng.integers(0, 4, 25)
        feature_map = make(rng.integers(1, 20), centers=centers, sigma=sigma)
        weighted = clone(feature_map).fit(rows, labels, sample_weight=weights)
        repeated = rng.permutation(np.repeat(np.arange(25), weights))
        for again in (
            clone(feature_map).fit(rows[repeated], labels[repeated]),
            clone(feature_map).fit(sp.csr_array(rows), labels, sample_weight=0.3 * weights),
        ):
            assert_allclose(again.centers_, weighted.centers_, rtol=1e-9, atol=1e-9)
            assert_allclose(again.sigma_, weighted.sigma_, rtol=1e-9)


def test_many_rows_are_drawn_by_weight():
    """Beyond 20,000 different rows k-means sees some; weights still move it."""
    rows = np.random.default_rng(0).uniform(size=(21_000, 1))
    weights = np.where(rows[:, 0] < 0.5, 0.0001, 1.0)
    fitted = make(4).fit(rows, sample_weight=weights)
    assert (fitted.centers_ > 0.5).all()


def test_wide_samples_are_clustered_by_fewer(monkeypatch):
    """As many as fit into memory, and at least as many as landmarks, which they then are."""
    for entries in (1, 8 * 4):
        monkeypatch.setattr(landmarks, "_CENTER_ENTRIES", entries)
        places = make(8).fit(X).centers_
        assert len(places) == 8 and (cdist(places, X).min(axis=1) == 0).all()


@pytest.mark.parametrize("sigma", ["scale", 100.0])
def test_containers(sigma):
    """Also far outside of the data, where features vanish and only their scale is known."""
    rows = np.vstack([Q, Q + 100.0])
    reference = make(sigma=sigma).fit(X, y)
    feature_map = reference.feature_maps_[0]
    values, scale = feature_map(rows)
    assert np.isfinite(values).all() and np.isfinite(scale).all()
    assert np.abs(values).max(axis=1).min() > 1e-4
    assert_allclose(feature_map(sp.csr_array(rows)).values, values, rtol=0, atol=1e-6)
    single = X.astype(np.float32)
    fitted, half = (clone(reference).fit(rows, y) for rows in (single.astype(float), single))
    assert_array_equal(half.centers_, fitted.centers_)
    fitted = make().fit(X)
    features, double = (fitted.transform(rows) for rows in (single, single.astype(float)))
    assert features.dtype == np.float32
    assert_allclose(features, double, rtol=1e-6, atol=1e-6)
    copy = pickle.loads(pickle.dumps(reference)).feature_maps_[0]
    assert_array_equal(copy(rows).values, values)
    with pytest.raises(ValueError, match="X is too large"):
        reference.transform(np.full((1, 4), 1e160))


def test_other_array_libraries():
    xp = pytest.importorskip("array_api_strict")
    fitted = make().fit(X, y)
    values = fitted.transform(xp.asarray(Q))
    assert_allclose(np.asarray(values), fitted.transform(Q), **CLOSE)
    assert fitted.transform(xp.asarray(Q, dtype=xp.float32)).dtype == xp.float32
    model = KernelRegressionClassifier(make()).fit(xp.asarray(X), xp.asarray(y))
    plain = KernelRegressionClassifier(make()).fit(X, y)
    assert_allclose(np.asarray(model.predict_proba(xp.asarray(Q))), plain.predict_proba(Q), **CLOSE)


def test_a_fit_is_whole_and_cannot_be_overwritten():
    fitted = make(sigma=1.0).fit(X, y)
    before = fitted.transform(Q)
    for wrong in ({"centers": "none"}, {"n_components": 0}, {"sigma": -1.0}, {"sigma": 1e200}):
        broken = clone(fitted).fit(X, y).set_params(**wrong)
        with pytest.raises(ValueError, match=next(iter(wrong))):
            broken.fit(X[:5], y[:5])
        assert_array_equal(broken.transform(Q), before)
    for array in (
        fitted.centers_,
        fitted.statistics_.queries.origin,
        fitted.feature_maps_[0].matrix,
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    assert_array_equal(fitted.redraw(5).transform(Q), before)
    assert fitted.get_feature_names_out()[-1] == "clusternystroem11"


# ------------------------------------------------------------------ given landmarks


@pytest.mark.parametrize("convert", [np.array, np.ndarray.tolist, sp.csr_array, np.float32])
def test_given_rows_are_the_landmarks(convert):
    rows = np.round(Q[:9], 2).astype(np.float32).astype(float)
    nystroem = ClusterNystroem(centers=convert(rows), sigma=0.7).fit(X, y)
    assert_array_equal(nystroem.centers_, rows)
    assert nystroem.n_components_ == 9
    inner = kernel(rows, rows, 0.7)
    expected = kernel(Q, rows, 0.7) @ np.linalg.solve(inner, kernel(rows, X, 0.7))
    assert_allclose(nystroem.approximate_kernel(Q, X), expected, rtol=0, atol=1e-9)
    # Searches find them as `fit` does, clones have them, and the caller's rows stay writable.
    for fitted in (clone(nystroem).fit(X), nystroem._fit_at_sigma(X)(0.7)):
        assert_array_equal(fitted.transform(Q), nystroem.transform(Q))
    own = rows.copy()
    ClusterNystroem(centers=own).fit(X)
    own[0] = 0.0


def test_landmarks_and_rows_may_have_names_of_columns_or_not():
    pd, names = pytest.importorskip("pandas"), list("abcd")
    table, named = pd.DataFrame(X, columns=names), pd.DataFrame(Q, columns=names)
    expected = ClusterNystroem(centers=Q, sigma=0.7).fit(X).centers_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows, own in product((X, table), (Q, named)):
            assert_array_equal(ClusterNystroem(centers=own, sigma=0.7).fit(rows).centers_, expected)
    with pytest.raises(ValueError, match="feature names should match"):
        ClusterNystroem(centers=named[names[::-1]]).fit(table)


@pytest.mark.parametrize("sigmas", [3, None])
def test_searches_keep_given_landmarks(sigmas):
    model = ApproxKernelRidgeCV(ClusterNystroem(centers=Q[:9]), sigmas=sigmas).fit(X, y)
    assert_array_equal(model.feature_map_.centers_, Q[:9])


def test_equal_landmarks_count_once():
    rows = Q[:5]
    doubled = ClusterNystroem(centers=np.vstack([rows, rows]), sigma=0.7).fit(X)
    once = ClusterNystroem(centers=rows, sigma=0.7).fit(X)
    assert_allclose(doubled.approximate_kernel(Q), once.approximate_kernel(Q), atol=1e-9)


def test_given_rows_are_checked_like_X():
    for wrong, words in (
        (Q[:3, :2], "centers.*2 features"),
        (np.where(Q[:3] > 0, np.nan, Q[:3]), "centers.*NaN"),
        (Q[0], "centers.*1D"),
        (Q[:0], "centers.*minimum of 1"),
        ("none", "'centers' parameter"),
        (3, "'centers' parameter"),
        ([[1.0], [1.0, 2.0]], "^centers: "),
        (1e200 * Q[:3], "^centers is too large at sigma=.* entry of centers is"),
    ):
        with pytest.raises(ValueError, match=f"(?is){words}"):
            ClusterNystroem(centers=wrong).fit(X)
    with pytest.raises(TypeError, match="centers: .* at least 1 dimension"):
        ClusterNystroem(centers=np.array(3.0)).fit(X)
    with pytest.raises(ValueError, match="^n_components=7 has no effect with centers of 3 rows"):
        ClusterNystroem(7, centers=Q[:3]).fit(X)


# ------------------------------------------------------------------ consumers


@pytest.mark.parametrize("sigma", [0.05, 0.5, 20.0])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_consumers_that_apply_the_root_once_predict_from_the_features(sigma, dtype):
    close = {"rtol": 0, "atol": 1e-7 if dtype == np.float64 else 1e-5}
    rows, queries, target = X.astype(dtype), Q.astype(dtype), np.sin(X[:, 0])
    # With the smallest, coefficients are too large for the root to be applied to them.
    for alpha in (1e-9, 1e-3, 1.0)[dtype == np.float32 :]:
        for model in (
            ApproxKernelRidge(make(30), sigma=sigma, alpha=alpha).fit(rows, target),
            ApproxKernelRidgeClassifier(make(30), sigma=sigma, alpha=alpha, decision="argmax").fit(
                rows, y
            ),
        ):
            features = model.feature_map_.transform(queries.astype(float))
            expected = features @ model.component_coef_.T + model.intercept_
            if hasattr(model, "classes_"):
                assert_allclose(model.decision_function(queries), expected, **close)
            else:
                assert_allclose(model.predict(queries), expected, **close)
    smooth = KernelRegressor(make(30), sigma=sigma).fit(rows, target)
    weights = smooth.feature_map_.approximate_kernel(queries.astype(float), rows.astype(float))
    assert (weights.sum(axis=1) > 0).all()
    expected = weights @ target / weights.sum(axis=1)
    assert_allclose(smooth.predict(queries), np.clip(expected, target.min(), target.max()), **close)


def test_kernel_regression_passes_labels_and_sets_sigma():
    for weights in (None, np.arange(150) % 4):
        model = KernelRegressionClassifier(ClusterNystroem(12), sigma=2.0, random_state=3)
        model.fit(X, y, sample_weight=weights)
        feature_map = ClusterNystroem(12, sigma=2.0, random_state=3).fit(
            X, y, sample_weight=weights
        )
        assert_array_equal(model.feature_map_.centers_, feature_map.centers_)
        counts = np.ones(150) if weights is None else weights
        sums = np.maximum(
            feature_map.approximate_kernel(Q, X) @ (counts[:, None] * np.eye(3)[y]), 0
        )
        shares = sums / sums.sum(axis=1, keepdims=True)
        assert_allclose(model.predict_proba(Q), shares, rtol=1e-8, atol=1e-10)
    regressor = KernelRegressor(ClusterNystroem(12), sigma=2.0, random_state=3).fit(X, y)
    plain = ClusterNystroem(12, centers="kmeans", sigma=2.0, random_state=3).fit(X)
    assert_array_equal(regressor.feature_map_.centers_, plain.centers_)


@pytest.mark.parametrize("convert", [np.array, sp.csr_array])
def test_wide_rows_have_centres_in_their_own_columns(convert):
    """k-means works in 64 random directions of the 300 columns."""
    rng = np.random.default_rng(0)
    codes, shift = rng.integers(0, 5, 200), np.repeat([[0.0], [1.0]], [295, 5], axis=0)[:, 0]
    places = rng.normal(size=(5, 300)) + 1e3 * shift
    rows = places[codes] + 0.01 * rng.normal(size=(200, 300))
    fitted = make(5, centers="kmeans").fit(convert(rows))
    expected = np.array([rows[codes == code].mean(axis=0) for code in range(5)])
    assert_allclose(
        fitted.centers_[np.argsort(fitted.centers_[:, 0])],
        expected[np.argsort(expected[:, 0])],
        rtol=1e-12,
        atol=1e-12,
    )


def test_landmarks_away_from_the_origin():
    same = np.full((6, 2), 5.0)
    assert_allclose(ClusterNystroem(10).fit(same).transform(same), np.ones((6, 1)))
    denormal = np.column_stack([np.full(9, 1e5), np.arange(9) * 1e-310])
    for rows in (same, denormal):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = KernelRegressor(ClusterNystroem(5), sigma=1.0).fit(rows, np.arange(len(rows)))
            assert_allclose(model.predict(rows), np.arange(len(rows)).mean())


def test_places_that_no_row_is_near_get_the_mean():
    """The weights there are 1e-140; what is left of them is the rounding of the root."""
    rng = np.random.default_rng(0)
    near, away = rng.normal(size=(60, 2)), rng.normal(size=(60, 2)) + [30.0, 0.0]
    both = FrozenEstimator(make(40, sigma=1.0).fit(np.vstack([near, away])))
    regressor = KernelRegressor(both).fit(near, near[:, 0])
    with pytest.warns(FeatureCollapseWarning):
        assert_allclose(regressor.predict(away), near[:, 0].mean())
    classifier = KernelRegressionClassifier(both).fit(near, near[:, 0] > 0)
    with pytest.warns(FeatureCollapseWarning):
        assert_allclose(classifier.predict_proba(away)[:, 1], np.mean(near[:, 0] > 0))


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize(("alpha", "rounding"), [(1e-2, 2e-9), (1e-8, 2e-3)])
def test_deviations_are_those_of_the_kernel_in_float32_and_in_a_pipeline(
    alpha, rounding, n_threads
):
    """With several threads BLAS adds up the products of a pipeline in another order.

    That is rounding, which a small alpha magnifies: deviations change by up to 1e-9 of themselves
    with 1e-2, and by 1e-3 with 1e-8, if entries of the rows change in their last bit.
    """
    rows = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    queries = np.vstack([rows[:20], [[50.0, 50.0]]]).astype(np.float32)
    double, target = rows.astype(float), np.sin(rows[:, 0])
    model = ApproxKernelRidge(make(100), alpha=alpha)
    piped = ApproxKernelRidge(make_pipeline(FunctionTransformer(), make(100)), alpha=alpha)
    with threadpool_limits(n_threads, user_api="blas"):
        deviations, of_pipeline = (
            fitted.fit(double, target).predict(queries.astype(float), return_std=True)[1]
            for fitted in (model, piped)
        )
    assert deviations[-1] > 5 * deviations[0]
    assert_allclose(of_pipeline, deviations, rtol=rounding)
    assert_allclose(model.predict(queries, return_std=True)[1], deviations, rtol=1e-5)
    assert_allclose(model.predict(queries[:-1], return_std=True)[1], deviations[:-1], rtol=1e-5)


def test_denominators_that_are_not_positive():
    """On either side of all landmarks rows see each other with a negative weight."""
    feature_map = FrozenEstimator(make(sigma=1.0).fit([[0.0], [1.0]]))
    rows, queries = [[-2.0], [-2.1], [-2.2]], [[3.0], [-1.0]]
    assert (feature_map.estimator.approximate_kernel(rows, queries)[:, 0] < -1e-3).all()
    predicted = KernelRegressor(feature_map).fit(rows, [1.0, 2.0, 6.0]).predict(queries)
    assert_allclose(predicted[0], 3.0)
    assert 1.0 < predicted[1] < 3.0
    proba = KernelRegressionClassifier(feature_map).fit(rows, [0, 1, 1]).predict_proba(queries)
    assert_allclose(proba[0], [1 / 3, 2 / 3])
    assert 1 / 3 < proba[1, 0] < 1


# ------------------------------------------------------------------ keys at the nearest centre


def test_keys_are_at_the_nearest_centre():
    for sigma in (0.3, 4.0):
        fitted = ClusterQuantizer(12, sigma=sigma, random_state=0).fit(X, y)
        C, nearest = fitted.centers_, cdist(X, fitted.centers_).argmin(axis=1)
        assert C.shape == (12, 4) and np.bincount(fitted.center_labels_).min() >= 3
        assert_array_equal(fitted.transform_keys(X), np.eye(12)[nearest])
        assert_allclose(fitted.transform(Q), kernel(Q, C, sigma), **CLOSE)
        assert_allclose(fitted.approximate_kernel(Q, X), kernel(Q, C[nearest], sigma), **CLOSE)
        assert fitted.is_positive and not (fitted.is_symmetric or fitted.is_unbiased)
        for rows in (sp.csr_array(X), X.astype(np.float32), X[::-1][::-1]):
            assert_allclose(fitted.transform(rows), fitted.transform(X), rtol=1e-4, atol=1e-6)
            assert_array_equal(fitted.transform_keys(rows), fitted.transform_keys(X))
        rows = array_api_strict.asarray(X)
        assert_array_equal(np.asarray(fitted.transform_keys(rows)), fitted.transform_keys(X))
    keys = X + 1.5  # centres are those of the keys, far from the origin
    softmax = ClusterQuantizer(12, kernel="softmax", sigma=0.4, random_state=0).fit(Q, keys=keys)
    C = softmax.centers_
    assert_allclose(softmax.approximate_kernel(Q, C), np.exp(0.16 * Q @ C.T), **CLOSE)
    assert_allclose(softmax.exact_kernel(Q, C), np.exp(0.16 * Q @ C.T), **CLOSE)
    assert cdist(C, keys).min(axis=1).max() < 1.5
    assert ClusterQuantizer(12).fit(X).center_labels_ is None
    with pytest.raises(NotImplementedError, match="ClusterQuantizer has no variance"):
        fitted.kernel_variance(X)


@pytest.mark.parametrize("labels", [y, np.array(["a", "b", "c"])[y], y.astype(float)], ids=str)
def test_training_rows_go_to_centres_of_their_class(labels):
    weights = 10.0 ** np.linspace(-3, 3, len(y))
    model = KernelRegressionClassifier(ClusterQuantizer(20, random_state=0), sigma=2.0)
    model.fit(X, labels, weights)
    C, of_centers = model.feature_map_.centers_, model.feature_map_.center_labels_
    of_classes = np.arange(3) if labels.dtype.kind == "f" else np.unique(labels)
    counts = np.zeros((20, 3))
    for row, k, weight in zip(X, y, weights, strict=True):
        squares = np.where(of_centers == of_classes[k], ((C - row) ** 2).sum(axis=1), np.inf)
        counts[squares.argmin(), k] += weight
    scores = kernel(Q, C, 2.0) @ counts
    expected = scores / scores.sum(axis=1, keepdims=True)
    assert_allclose(model.predict_proba(Q), expected, rtol=1e-9)
    # In batches, whatever their classes and the size of the weights.
    frozen = FrozenEstimator(model.feature_map_)
    batches = KernelRegressionClassifier(frozen)
    names = of_classes[y] if labels.dtype.kind == "f" else labels
    for rows in (slice(60), slice(60, 150)):
        batches.partial_fit(X[rows], names[rows], np.unique(names), 1e200 * weights[rows])
    assert_allclose(batches.predict_proba(Q), expected, rtol=1e-9)


def test_as_many_centres_as_rows_are_the_exact_kernel():
    targets = np.sin(X).sum(axis=1)
    for kind, values in ((KernelRegressionClassifier, y), (KernelRegressor, targets)):
        exact = kind("exact", sigma=3.0).fit(X, values)
        model = kind(ClusterQuantizer(500), sigma=3.0).fit(X, values)
        predict = "predict" if kind is KernelRegressor else "predict_proba"
        assert_allclose(getattr(model, predict)(Q), getattr(exact, predict)(Q), rtol=1e-8)


def test_weights_and_targets_of_any_size_at_centres():
    weights, targets = 10.0 ** np.linspace(-300, 300, 150), 1e300 * np.sin(X)
    model = KernelRegressor(ClusterQuantizer(30, random_state=0), sigma=1.0)
    model.fit(X, targets, sample_weight=weights)
    nearest = cdist(X, model.feature_map_.centers_).argmin(axis=1)
    logs = -cdist(Q, model.feature_map_.centers_[nearest], "sqeuclidean") / 2 + np.log(weights)
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    expected = shares @ np.sin(X) / shares.sum(axis=1, keepdims=True)
    assert_allclose(model.predict(Q) / 1e300, expected, rtol=1e-8)


def test_an_outlier_does_not_blur_the_nearest_centre():
    rows = np.random.default_rng(0).uniform(-3, 3, size=(600, 1))
    rows[0] = -9999
    fitted = ClusterQuantizer(50, sigma=5.0, random_state=0).fit(rows)
    nearest = cdist(rows, fitted.centers_).argmin(axis=1)
    assert_array_equal(fitted.transform_keys(rows).argmax(axis=1), nearest)
    assert len(np.unique(nearest)) > 30
