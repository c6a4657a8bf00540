"""What every mechanism promises, whatever its formulas: containers, parameters, statistics, claims.

The mathematics of the features is tested elsewhere. Comparisons of two computations of the same
numbers allow 1e-10 relative for float64 unless a test says otherwise.
"""

import inspect
import os
import pickle
import subprocess
import sys
import tracemalloc
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn
from instances import KERNELS, PLAIN, accepts, couplings, make
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import linear_kernel, rbf_kernel
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from skrf import KernelRegressionClassifier, OptimalPositiveRF, PositiveRF, RFFSampler, SimplexRF
from skrf.features import base

MECHANISMS = PLAIN
COMBINATIONS = [(name, coupling) for name in PLAIN for coupling in couplings(name)]
CLOSE = {"rtol": 1e-10, "atol": 1e-12}
KNOWN_COUPLINGS = ("iid", "orthogonal", "simplex")
POSITIVE = [name for name in MECHANISMS if make(name).is_positive]
# All parameters that mechanisms learn from data.
PARAMETERS = ("sigma_", "gamma_", "length_scale_", "offset_", "rho_", "A_")

every_mechanism = pytest.mark.parametrize("name", MECHANISMS)
every_kernel = pytest.mark.parametrize("kernel", KERNELS)
every_positive = pytest.mark.parametrize("name", POSITIVE)


def data(n=30, d=5, seed=0):
    """Rows with a mean, some coordinates exactly 0, so that sparse and dense differ in kind."""
    rng = np.random.default_rng(seed)
    return np.round(rng.normal(0.3, 0.5, (n, d)), 3) * (rng.random((n, d)) < 0.7)


def labels(n=30):
    return np.arange(n) % 3


X = data()
Y = data(20, seed=1) + 0.2
y = labels()


def mechanism(name, **params):
    return make(name, **{"n_components": 12, "random_state": 0, **params})


def parameters(fitted):
    return {key: getattr(fitted, key) for key in PARAMETERS if hasattr(fitted, key)}


def assert_same_parameters(one, other):
    ours, theirs = parameters(one), parameters(other)
    assert ours.keys() == theirs.keys() >= {"sigma_"}
    for key, value in ours.items():
        assert_allclose(value, theirs[key], **CLOSE, err_msg=key)


def assert_same_statistics(one, other):
    for side in ("queries", "keys"):
        ours, theirs = getattr(one.statistics_, side), getattr(other.statistics_, side)
        for part in ("weight", "mean", "scatter"):
            assert_allclose(getattr(ours, part), getattr(theirs, part), **CLOSE, err_msg=part)


@contextmanager
def one_warning(*words):
    """Check that the block gives one RuntimeWarning, which holds all the words."""
    with pytest.warns(RuntimeWarning) as caught:
        yield
    assert len(caught) == 1
    for word in words:
        assert word in str(caught[0].message)
    # It points at the caller.
    assert os.path.basename(caught[0].filename) in (os.path.basename(__file__), "_set_output.py")


# ------------------------------------------------------------------ construction and parameters


@every_mechanism
def test_the_constructor_stores_parameters_and_nothing_else(name):
    unfitted = make(name)
    assert vars(unfitted) == unfitted.get_params(deep=False)
    assert not [key for key in unfitted.get_params() if key.endswith("_")]
    signature = inspect.signature(type(unfitted).__init__)
    kinds = [p.kind for p in signature.parameters.values()][1:]
    assert kinds[0] is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert set(kinds[1:]) == {inspect.Parameter.KEYWORD_ONLY}
    assert list(signature.parameters)[1] == "n_components"
    assert unfitted.n_components == 100 and unfitted.sigma == 1.0


@every_mechanism
def test_no_method_bears_the_name_of_a_parameter(name):
    for parameter in make(name).get_params():
        assert not callable(getattr(type(make(name)), parameter, None))


@pytest.mark.parametrize("name", ["SimplexRF", "SimplexRFPlus"])
def test_a_preset_coupling_is_no_parameter(name):
    assert "coupling" not in make(name).get_params()
    with pytest.raises(TypeError, match="coupling"):
        make(name, coupling="iid")
    assert isinstance(make(name), PositiveRF)


def test_simplex_maps_are_positive_maps_with_their_coupling():
    for name, coupling in (("SimplexRF", "simplex"), ("SimplexRFPlus", "simplex+")):
        preset = mechanism(name).fit_transform(X)
        assert_array_equal(preset, mechanism("PositiveRF", coupling=coupling).fit_transform(X))


@every_mechanism
def test_unfitted_mechanisms_say_so(name):
    unfitted = make(name)
    methods = ["transform", "transform_keys", "exact_kernel", "approximate_kernel"]
    methods += ["kernel_variance"]
    methods += ["log_transform", "log_transform_keys"] if name in POSITIVE else []
    for method in methods:
        with pytest.raises(NotFittedError):
            getattr(unfitted, method)(X)
    with pytest.raises(NotFittedError):
        unfitted.redraw(0)
    with pytest.raises(NotFittedError):
        unfitted.get_feature_names_out()
    for attribute in ("sigma_", "gamma_", "length_scale_", "n_components_"):
        with pytest.raises(NotFittedError):
            getattr(unfitted, attribute)
    # What the class declares can be asked before `fit`.
    assert {unfitted.is_positive, unfitted.is_symmetric, unfitted.is_unbiased} <= {True, False}


@every_mechanism
def test_what_fit_learns_cannot_be_overwritten(name):
    fitted = mechanism(name).fit(X)
    for attribute in ("sigma_", "gamma_", "length_scale_", "n_components_"):
        with pytest.raises(AttributeError):
            setattr(fitted, attribute, 3)
    for claim in ("is_positive", "is_symmetric", "is_unbiased", "kernel_variance_is_exact_"):
        with pytest.raises(AttributeError):
            setattr(fitted, claim, True)


@every_mechanism
def test_clone_forgets_the_fit(name):
    fitted = mechanism(name, sigma=0.7).fit(X)
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert vars(copy) == copy.get_params(deep=False)
    assert_array_equal(copy.fit_transform(X), fitted.transform(X))


@every_mechanism
@every_kernel
def test_a_pickle_maps_as_the_original(name, kernel):
    fitted = mechanism(name, kernel=kernel, sigma="scale").fit(X, keys=Y)
    copy = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(copy.transform(Y), fitted.transform(Y))
    assert_array_equal(copy.transform_keys(X), fitted.transform_keys(X))
    assert_array_equal(copy.redraw(1).transform(Y), fitted.redraw(1).transform(Y))


# ------------------------------------------------------------------ random numbers


@every_mechanism
def test_one_integer_is_taken_from_random_state(name):
    state, expected = np.random.RandomState(3), np.random.RandomState(3)
    first = mechanism(name, random_state=state).fit(X)
    seed = expected.randint(np.iinfo(np.int32).max)
    assert state.randint(1000) == expected.randint(1000)
    assert_array_equal(mechanism(name, random_state=3).fit(X).omega_, first.omega_)
    assert first.seed_ == seed
    assert not np.array_equal(first.omega_, mechanism(name, random_state=4).fit(X).omega_)


def test_the_streams_of_one_seed_differ():
    fitted = mechanism("RFFSampler").fit(X)
    streams = (base.OMEGA, base.PHASE, base.SUBSAMPLE, base.CHOICE)
    assert len({base.rng_of(fitted.seed_, stream).random() for stream in streams}) == len(streams)
    one, other = (base.rng_of(fitted.seed_, base.OMEGA).random() for _ in range(2))
    assert one == other


@every_mechanism
def test_none_draws_anew_at_every_fit(name):
    unseeded = mechanism(name, random_state=None)
    assert not np.array_equal(unseeded.fit(X).omega_, unseeded.fit(X).omega_)


@pytest.mark.parametrize(("name", "coupling"), COMBINATIONS)
def test_one_seed_is_one_draw_for_every_container(name, coupling):
    fits = [
        mechanism(name, coupling=coupling).fit(rows)
        for rows in (X, X.astype(np.float32), sp.csr_array(X), sp.coo_matrix(X), X.tolist())
    ]
    for other in fits[1:]:
        assert_array_equal(other.omega_, fits[0].omega_)
        assert other.omega_.dtype == np.float64
    assert fits[0].omega_.shape[1] == X.shape[1]


@every_mechanism
@pytest.mark.parametrize("coupling", ["iid", None])
def test_sigma_from_data_leaves_the_draw_alone(name, coupling):
    if coupling and not accepts(name, "coupling"):
        coupling = None
    # More rows than the median looks at: a subsample is drawn as well.
    rows = data(1100, 3)
    by_name = mechanism(name, coupling=coupling, sigma="median").fit(rows)
    by_value = mechanism(name, coupling=coupling, sigma=by_name.sigma_).fit(rows)
    assert_array_equal(by_name.omega_, by_value.omega_)
    assert_array_equal(by_name.transform(rows), by_value.transform(rows))


@every_mechanism
def test_redraw_keeps_the_parameters(name):
    fitted = mechanism(name, sigma="scale").fit(X, keys=Y)
    before, omega, features = parameters(fitted), fitted.omega_, fitted.transform(X)
    assert fitted.redraw(7) is fitted
    assert not np.array_equal(fitted.omega_, omega)
    after = parameters(fitted)
    assert all(np.array_equal(after[key], before[key]) for key in before)
    # The draw is that of a fit with this seed; the old seed gives the old draw back.
    assert_array_equal(
        fitted.transform(X),
        mechanism(name, sigma="scale", random_state=7).fit(X, keys=Y).transform(X),
    )
    assert_array_equal(fitted.redraw(0).transform(X), features)


@pytest.mark.parametrize("name", ["RFFSampler", "PositiveRF-hyperbolic"])
def test_redraw_of_a_folded_column(name):
    fitted = mechanism(name, n_components=1).fit(X)
    features = fitted.transform(X)
    assert not np.allclose(fitted.redraw(5).transform(X), features)


@every_mechanism
def test_refit_forgets_everything(name):
    used = mechanism(name, sigma="scale").fit(data(40, 7, seed=5), keys=data(9, 7))
    used.partial_fit(data(10, 7))
    used.set_params(n_components=6).fit(X)
    fresh = mechanism(name, sigma="scale", n_components=6).fit(X)
    assert_same_statistics(used, fresh)
    assert_same_parameters(used, fresh)
    assert_array_equal(used.transform(Y), fresh.transform(Y))
    assert used.n_components_ == 6 and used.n_features_in_ == 5


# ------------------------------------------------------------------ sigma


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


# ------------------------------------------------------------------ statistics, weights and keys


@every_mechanism
@pytest.mark.parametrize("sigma", ["scale", "median"])
@pytest.mark.parametrize("convert", [np.array, sp.csr_array])
def test_weight_zero_is_a_removed_row(name, sigma, convert):
    weights = np.where(np.arange(30) % 4 == 0, 0.0, 1.0)
    outlier = X + 1e3 * (weights == 0)[:, None]
    weighted = mechanism(name, sigma=sigma).fit(convert(outlier), sample_weight=weights)
    removed = mechanism(name, sigma=sigma).fit(convert(X[weights > 0]))
    assert_same_statistics(weighted, removed)
    assert_same_parameters(weighted, removed)
    assert_allclose(weighted.transform(Y), removed.transform(Y), **CLOSE)


@every_mechanism
@pytest.mark.parametrize("sigma", ["scale", "median"])
@pytest.mark.parametrize("convert", [np.array, sp.csr_array])
def test_whole_weights_are_repeated_rows(name, sigma, convert):
    weights = np.arange(30) % 4
    weighted = mechanism(name, sigma=sigma).fit(convert(X), sample_weight=weights)
    repeated = mechanism(name, sigma=sigma).fit(convert(np.repeat(X, weights, axis=0)))
    assert weighted.statistics_.queries.weight == weights.sum()
    assert_same_statistics(weighted, repeated)
    assert_same_parameters(weighted, repeated)


@every_mechanism
def test_only_ratios_of_weights_count(name):
    weights = np.random.default_rng(1).random(30) + 0.1
    fits = [
        mechanism(name, sigma="median").fit(X, sample_weight=f * weights) for f in (1.0, 1e-9, 7.0)
    ]
    for other in fits[1:]:
        assert_same_parameters(other, fits[0])


@every_mechanism
@pytest.mark.parametrize("convert", [np.array, sp.csr_array, np.float32])
def test_keys_have_statistics_of_their_own(name, convert):
    fitted = mechanism(name).fit(X, keys=convert(Y))
    rows = np.asarray(convert(Y).astype(np.float64) if convert is np.float32 else Y)
    assert_allclose(fitted.statistics_.queries.mean, X.mean(axis=0), **CLOSE)
    assert_allclose(fitted.statistics_.keys.mean, rows.mean(axis=0), **CLOSE)
    assert_allclose(fitted.statistics_.keys.scatter, rows.var(axis=0) * len(rows), **CLOSE)
    if hasattr(fitted, "offset_"):
        assert_allclose(fitted.offset_, (X.mean(axis=0) + rows.mean(axis=0)) / 2, **CLOSE)
    assert_same_statistics(mechanism(name).fit(X), mechanism(name).fit(X, keys=X))


@every_mechanism
def test_weights_are_those_of_queries(name):
    weights = np.arange(30.0)
    fitted = mechanism(name).fit(X, sample_weight=weights, keys=Y)
    assert_allclose(fitted.statistics_.queries.mean, weights @ X / weights.sum(), **CLOSE)
    assert_allclose(fitted.statistics_.keys.mean, Y.mean(axis=0), **CLOSE)
    assert fitted.statistics_.keys.weight == len(Y)


@every_mechanism
@pytest.mark.parametrize("sigma", [0.7, "scale"])
@pytest.mark.parametrize("convert", [np.array, sp.csr_array])
@pytest.mark.parametrize("keyed", [False, True])
def test_partial_fit_is_fit_on_the_concatenation(name, sigma, convert, keyed):
    weights = np.random.default_rng(2).random(30)
    whole = mechanism(name, sigma=sigma)
    whole.fit(convert(X), sample_weight=weights, keys=convert(Y) if keyed else None)
    parts = mechanism(name, sigma=sigma)
    bounds = (0, 11, 12, 30)
    for i, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        keys = convert(np.array_split(Y, 3)[i]) if keyed else None
        batch = slice(start, stop)
        assert (
            parts.partial_fit(convert(X[batch]), sample_weight=weights[batch], keys=keys) is parts
        )
        assert_array_equal(parts.omega_, whole.omega_)
    assert_same_statistics(parts, whole)
    assert_same_parameters(parts, whole)
    assert_allclose(parts.transform(Y), whole.transform(Y), rtol=1e-9)


@every_mechanism
def test_partial_fit_goes_on_from_fit_and_fit_starts_anew(name):
    split = mechanism(name, sigma="scale", random_state=None).fit(X[:10])
    omega = split.omega_
    split.partial_fit(X[10:])
    assert_array_equal(split.omega_, omega)
    assert_same_parameters(split, mechanism(name, sigma="scale").fit(X))
    assert_same_statistics(split.fit(Y), mechanism(name).fit(Y))


@every_mechanism
def test_partial_fit_is_absent_where_statistics_do_not_merge(name):
    assert hasattr(make(name), "partial_fit")
    assert hasattr(make(name, sigma="scale"), "partial_fit")
    assert not hasattr(make(name, sigma="median"), "partial_fit")


# ------------------------------------------------------------------ columns


@every_mechanism
@pytest.mark.parametrize("n_components", [1, 2, 4, 10, 12])
def test_n_components_counts_columns(name, n_components):
    fitted = mechanism(name, n_components=n_components)
    assert fitted.fit_transform(X).shape == (30, n_components)
    assert fitted.transform_keys(Y).shape == (20, n_components)
    assert fitted.n_components_ == n_components
    kind = type(fitted).__name__.lower()
    assert list(fitted.get_feature_names_out()) == [f"{kind}{i}" for i in range(n_components)]


@every_mechanism
def test_a_pair_takes_one_projection(name):
    columns = 2 if name in ("RFFSampler", "PositiveRF-hyperbolic") else 1
    assert mechanism(name, n_components=12).fit(X).omega_.shape == (12 // columns, 5)
    assert mechanism(name, n_components=1).fit(X).omega_.shape == (1, 5)


@pytest.mark.parametrize(("name", "coupling"), COMBINATIONS)
@every_kernel
def test_one_row_and_one_column_are_enough(name, coupling, kernel):
    rows = data(8, 3, seed=4)
    fitted = mechanism(name, coupling=coupling, kernel=kernel).fit(rows)
    whole = fitted.transform(rows)
    for i in range(8):
        assert_allclose(fitted.transform(rows[i : i + 1]), whole[i : i + 1], **CLOSE)
    single = mechanism(name, coupling=coupling, kernel=kernel, n_components=1)
    assert np.isfinite(single.fit(rows[:1, :1]).transform(rows[:, :1])).all()


# ------------------------------------------------------------------ containers


FORMATS = {
    f"{kind.__name__}-{form}": (kind, form)
    for kind in (sp.csr_array, sp.csr_matrix)
    for form in ("csr", "csc", "coo", "lil", "dok", "bsr", "dia")
}


def sparse_rows(rows, which="csr_array-csr"):
    kind, form = FORMATS[which]
    return kind(rows).asformat(form)


def wide_indices(rows):
    matrix = sp.csr_array(rows)
    matrix.indices, matrix.indptr = (
        part.astype(np.int64) for part in (matrix.indices, matrix.indptr)
    )
    assert matrix.indices.dtype == matrix.indptr.dtype == np.int64
    return matrix


def duplicated(rows):
    """Every entry in two parts, which the format allows; the row norms must join them."""
    rows = sp.csr_array(rows)
    parts = np.repeat(rows.data, 2) / 2
    matrix = sp.csr_array((parts, np.repeat(rows.indices, 2), 2 * rows.indptr), shape=rows.shape)
    assert not matrix.has_canonical_format
    return matrix


@pytest.mark.parametrize("which", FORMATS)
def test_every_sparse_format_is_accepted(which):
    rows, keys = sparse_rows(X, which), sparse_rows(Y, which)
    for name in ("RFFSampler", "OptimalPositiveRF"):
        ours = mechanism(name, sigma="median").fit(rows, sample_weight=np.arange(30), keys=keys)
        dense = mechanism(name, sigma="median").fit(X, sample_weight=np.arange(30), keys=Y)
        assert_same_parameters(ours, dense)
        assert_allclose(ours.transform(rows), dense.transform(X), **CLOSE)


@every_mechanism
@every_kernel
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("convert", [sp.csr_array, wide_indices, duplicated])
def test_sparse_equals_dense(name, kernel, center, convert):
    # Where there is no such parameter, nothing is centred.
    options = {"center": center} if accepts(name, "center") else {}
    fits = [
        mechanism(name, kernel=kernel, sigma="scale", **options).fit(rows, keys=keys)
        for rows, keys in ((X, Y), (convert(X), convert(Y)))
    ]
    assert_same_statistics(*fits)
    assert_same_parameters(*fits)
    dense, sparse = fits
    for method in ("transform", "transform_keys", "exact_kernel", "approximate_kernel"):
        expected, values = getattr(dense, method)(Y), getattr(sparse, method)(convert(Y))
        assert type(values) is np.ndarray and values.dtype == np.float64
        assert_allclose(values, expected, **CLOSE, err_msg=method)
    if name in POSITIVE:
        assert_allclose(sparse.log_transform(convert(Y)), dense.log_transform(Y), **CLOSE)
    assert_allclose(dense.exact_kernel(X, Y), sparse.exact_kernel(convert(X), Y), **CLOSE)
    if name != "SimplexRFPlus":
        expected = dense.kernel_variance(X, Y, log=True)
        values = sparse.kernel_variance(convert(X), convert(Y), log=True)
        assert_allclose(values, expected, **CLOSE)
    assert sparse.transform(convert(Y).astype(np.float32)).dtype == np.float32


@every_mechanism
def test_centring_does_not_densify(name):
    # Dense, these rows are 400 MB.
    rows = sp.random_array((500, 100_000), density=1e-4, rng=0, format="csr")
    tracemalloc.start()
    features = mechanism(name, n_components=2, sigma="scale").fit(rows).transform(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert features.shape == (500, 2) and np.isfinite(features).all()
    assert peak < 40e6


@every_mechanism
def test_inputs_are_left_alone(name, tmp_path):
    weights = np.arange(30.0)
    held = [X.copy(), Y.copy(), weights]
    on_disk = np.memmap(tmp_path / "rows", dtype=np.float64, mode="w+", shape=X.shape)
    on_disk[:] = X
    on_disk.flush()
    on_disk = np.memmap(tmp_path / "rows", dtype=np.float64, mode="r", shape=X.shape)
    matrix = sp.csr_array(X)
    for array in (*held, matrix.data, matrix.indices, matrix.indptr):
        array.flags.writeable = False
    expected = mechanism(name, sigma="median").fit(X, sample_weight=weights, keys=Y)
    for rows in (held[0], on_disk, matrix):
        fitted = mechanism(name, sigma="median").fit(rows, sample_weight=weights, keys=held[1])
        assert_allclose(fitted.transform(rows), expected.transform(X), **CLOSE)
        assert_allclose(fitted.transform_keys(rows), expected.transform_keys(X), **CLOSE)
        fitted.approximate_kernel(rows, held[1])
        fitted.exact_kernel(rows, held[1])
    assert_array_equal(held[0], X)
    assert_array_equal(matrix.toarray(), X)


@every_mechanism
@every_kernel
@pytest.mark.parametrize("convert", [np.array, sp.csr_array])
def test_float32_stays_float32(name, kernel, convert):
    fitted = mechanism(name, kernel=kernel, sigma="scale").fit(X.astype(np.float32))
    assert_same_parameters(
        fitted,
        mechanism(name, kernel=kernel, sigma="scale").fit(X.astype(np.float32).astype(np.float64)),
    )
    for value in parameters(fitted).values():
        assert np.asarray(value).dtype == np.float64
    narrow = convert(Y.astype(np.float32))
    methods = ["transform", "transform_keys"]
    methods += ["log_transform", "log_transform_keys"] if name in POSITIVE else []
    for method in methods:
        low, high = getattr(fitted, method)(narrow), getattr(fitted, method)(convert(Y))
        assert low.dtype == np.float32 and high.dtype == np.float64
        # Errors of exponents of size up to 20, at 1.2e-7 each.
        assert_allclose(low, high, rtol=2e-5, atol=2e-5)


@every_mechanism
def test_every_other_number_becomes_float64(name):
    whole = np.arange(12).reshape(4, 3) % 5
    fitted = mechanism(name, sigma=0.1).fit(whole)
    expected = fitted.transform(whole.astype(np.float64))
    for rows in (whole, whole.tolist(), whole.astype(np.int8), whole.astype(np.float16)):
        features = fitted.transform(rows)
        assert features.dtype == np.float64
        assert_array_equal(features, expected)
    assert mechanism(name).fit_transform(whole > 2).dtype == np.float64
    assert mechanism(name).fit_transform(sp.csr_array(whole)).dtype == np.float64


# ------------------------------------------------------------------ other array libraries
# Their results and gradients: test_array_libraries.py.


def test_a_fit_on_arrays_forgets_the_names_of_a_table(library):
    fitted = mechanism("OptimalPositiveRF").fit(frame(X))
    fitted.fit(library.array(X))
    assert not hasattr(fitted, "feature_names_in_")
    fitted.transform(library.array(X))


def test_other_libraries_give_float64_for_whole_numbers(library):
    whole = np.arange(12).reshape(4, 3) % 5
    fitted = mechanism("OptimalPositiveRF").fit(library.array(whole))
    features = fitted.transform(library.array(whole))
    assert features.dtype == library.xp.float64
    assert_allclose(library.host(features), fitted.transform(whole), **CLOSE)


def test_other_libraries_warn_of_vanished_rows(library):
    fitted = mechanism("PositiveRF").fit(X)
    with one_warning("vanished", "sigma=1 "):
        features = fitted.transform(library.array(1e3 + X))
    assert not library.host(features).any()


def test_array_api_dispatch_changes_nothing():
    # SciPy reads the variable when it is first imported, so this needs a process of its own.
    pytest.importorskip("array_api_strict")
    program = """
import array_api_strict as xp, numpy as np, sklearn, warnings
warnings.simplefilter("error")
from instances import MECHANISMS, make
from sklearn.utils.estimator_checks import check_array_api_input
from skrf import KernelRegressionClassifier, KernelRegressor

rows = np.random.default_rng(0).normal(size=(10, 3))
for name in MECHANISMS:
    fitted = make(name, n_components=4, random_state=0).fit(rows)
    expected = fitted.transform(rows)
    with sklearn.config_context(array_api_dispatch=True):
        for fit in (fitted, make(name, n_components=4, random_state=0).fit(xp.asarray(rows))):
            out = fit.transform(xp.asarray(rows))
            assert type(out) is type(xp.asarray(rows)), type(out)
            np.testing.assert_allclose(np.asarray(out), expected, rtol=1e-10)
        np.testing.assert_array_equal(fitted.transform(rows), expected)
for estimator in (KernelRegressionClassifier(), KernelRegressor(), *(make(n) for n in MECHANISMS)):
    check_array_api_input(
        type(estimator).__name__, estimator, array_namespace="numpy",
        expect_only_array_outputs=False,
    )
print("done")
"""
    paths = [os.path.dirname(__file__), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "SCIPY_ARRAY_API": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "done"


# ------------------------------------------------------------------ inside scikit-learn


def frame(rows):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(rows, columns=list("abcde"), index=range(100, 100 + len(rows)))


@every_mechanism
def test_pandas_output_by_instance(name):
    table = frame(X)
    fitted = mechanism(name).set_output(transform="pandas").fit(table)
    plain = mechanism(name).fit(X)
    for out in (fitted.transform(table), fitted.fit_transform(table)):
        assert list(out.columns) == list(fitted.get_feature_names_out())
        assert list(out.index) == list(table.index)
        assert_allclose(out.to_numpy(), plain.transform(X), **CLOSE)
    assert type(fitted.transform_keys(table)) is np.ndarray
    assert type(fitted.approximate_kernel(table)) is np.ndarray
    if name in POSITIVE:
        assert type(fitted.log_transform(table)) is np.ndarray
        assert type(fitted.log_transform_keys(table)) is np.ndarray
    fitted.set_output(transform="default")
    assert type(fitted.transform(table)) is np.ndarray
    # Names are compared, those of keys as well.
    with pytest.raises(ValueError, match="feature names"):
        fitted.transform_keys(table[list("edcba")])


@every_mechanism
def test_pandas_output_set_globally(name):
    table, plain = frame(X), mechanism(name).fit(X)
    model = KernelRegressionClassifier(mechanism(name))
    expected = clone(model).fit(X, y).predict_log_proba(X)
    pipe = make_pipeline(StandardScaler(), mechanism(name), LogisticRegression())
    expected_pipe = clone(pipe).fit(X, y).predict_proba(X)
    nested = KernelRegressionClassifier(make_pipeline(StandardScaler(), mechanism(name)))
    expected_nested = clone(nested).fit(X, y).predict_proba(X)
    with sklearn.config_context(transform_output="pandas"):
        fitted = mechanism(name).fit(table)
        assert list(fitted.transform(table).columns) == list(fitted.get_feature_names_out())
        assert_allclose(fitted.transform(table).to_numpy(), plain.transform(X), **CLOSE)
        assert type(fitted.transform_keys(table)) is np.ndarray
        assert type(fitted.exact_kernel(table)) is np.ndarray
        if name in POSITIVE:
            assert type(fitted.log_transform(table)) is np.ndarray
        assert_allclose(model.fit(table, y).predict_log_proba(table), expected, **CLOSE)
        assert_allclose(pipe.fit(table, y).predict_proba(table), expected_pipe, rtol=1e-6)
        assert_allclose(nested.fit(table, y).predict_proba(table), expected_nested, **CLOSE)


def test_pandas_output_of_a_map_of_another_package():
    model = KernelRegressionClassifier(Nystroem(n_components=10, random_state=0))
    expected = clone(model).fit(X, y).predict_proba(X)
    with sklearn.config_context(transform_output="pandas"):
        assert_allclose(model.fit(frame(X), y).predict_proba(frame(X)), expected, **CLOSE)


@every_mechanism
def test_grid_search_reaches_everything(name):
    outer = GridSearchCV(
        KernelRegressionClassifier(mechanism(name)),
        {"sigma": [0.1, 1.0], "feature_map__n_components": [2, 6]},
        cv=2,
        error_score="raise",
    ).fit(X, y)
    best = outer.best_estimator_
    assert best.feature_map_.n_components_ == outer.best_params_["feature_map__n_components"]
    assert best.feature_map_.sigma_ == outer.best_params_["sigma"]
    assert len(outer.cv_results_["params"]) == 4
    nested = GridSearchCV(
        KernelRegressionClassifier(mechanism(name)),
        {"feature_map__sigma": [0.1, "scale", "median"]},
        cv=2,
        error_score="raise",
    ).fit(X, y)
    assert nested.best_estimator_.feature_map_.sigma == nested.best_params_["feature_map__sigma"]
    step = GridSearchCV(
        Pipeline([("map", mechanism(name)), ("model", LogisticRegression())]),
        {"map__sigma": [0.1, 1.0], "map__n_components": [2, 6]},
        cv=2,
        error_score="raise",
    ).fit(X, y)
    assert np.isfinite(step.cv_results_["mean_test_score"]).all()


def test_grid_search_of_the_default_map():
    search = GridSearchCV(
        KernelRegressionClassifier(random_state=0),
        {"sigma": np.logspace(-2, 2, 10)},
        cv=2,
        error_score="raise",
    ).fit(X, y)
    assert isinstance(search.best_estimator_.feature_map_, OptimalPositiveRF)
    assert search.best_estimator_.feature_map_.sigma_ == search.best_params_["sigma"]


@every_mechanism
@pytest.mark.parametrize("piped", [False, True])
def test_a_frozen_map_is_used_as_it_is(name, piped):
    pre = make_pipeline(StandardScaler(), mechanism(name)) if piped else mechanism(name)
    pre.fit(Y)
    model = KernelRegressionClassifier(FrozenEstimator(pre)).fit(X, y)
    assert_array_equal(model.feature_map_.transform(X), pre.transform(X))
    # It was not fitted again, on X: the scores are those of the features given.
    scores = np.maximum(pre.transform(X) @ (pre.transform(X).T @ np.eye(3)[y]), 0)
    some = scores.any(axis=1)
    assert some.sum() > 20
    probabilities = scores[some] / scores[some].sum(axis=1, keepdims=True)
    assert_allclose(model.predict_proba(X)[some], probabilities, rtol=1e-9, atol=1e-12)


@every_mechanism
def test_metadata_routing(name):
    weights = np.where(np.arange(30) < 20, 1.0, 0.0)
    with sklearn.config_context(enable_metadata_routing=True):
        request = mechanism(name, sigma="scale").set_fit_request(sample_weight=True)
        last = LogisticRegression().set_fit_request(sample_weight=False)
        pipe = make_pipeline(request, last.set_score_request(sample_weight=True))
        pipe.fit(X, y, sample_weight=weights)
        assert_same_statistics(pipe[0], mechanism(name).fit(X[:20]))
        assert_same_parameters(pipe[0], mechanism(name, sigma="scale").fit(X[:20]))
        scores = cross_validate(
            pipe, X, y, cv=2, params={"sample_weight": weights}, error_score="raise"
        )["test_score"]
        assert np.isfinite(scores).all()
        model = KernelRegressionClassifier(mechanism(name, sigma="scale"))
        model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        search = GridSearchCV(
            model, {"feature_map__n_components": [2, 6]}, cv=2, error_score="raise"
        )
        search.fit(X, y, sample_weight=weights)
        assert_allclose(
            search.best_estimator_.predict_proba(X),
            clone(search.best_estimator_).fit(X[:20], y[:20]).predict_proba(X),
            rtol=1e-9,
        )


# ------------------------------------------------------------------ claims and kernels


@every_mechanism
@every_kernel
def test_claims_hold(name, kernel):
    fitted = mechanism(name, kernel=kernel, sigma=0.7, n_components=200).fit(X, keys=Y)
    features = fitted.transform(Y)
    assert (features > 0).all() == fitted.is_positive
    assert hasattr(fitted, "log_transform") == fitted.is_positive
    assert hasattr(fitted, "log_transform_keys") == fitted.is_positive
    assert np.array_equal(features, fitted.transform_keys(Y)) == fitted.is_symmetric
    if fitted.is_positive:
        assert_allclose(np.exp(fitted.log_transform(Y)), features, **CLOSE)
        assert_allclose(np.exp(fitted.log_transform_keys(Y)), fitted.transform_keys(Y), **CLOSE)
    assert fitted.is_unbiased == ("regularized" not in name)


@every_mechanism
@pytest.mark.parametrize("sigma", [0.3, "scale"])
def test_exact_kernels_are_those_of_scikit_learn(name, sigma):
    gaussian = mechanism(name, sigma=sigma).fit(X, keys=Y)
    assert_allclose(gaussian.exact_kernel(X, Y), rbf_kernel(X, Y, gamma=gaussian.gamma_), **CLOSE)
    assert_allclose(np.diagonal(gaussian.exact_kernel(X)), 1.0, rtol=1e-15)
    softmax = mechanism(name, sigma=sigma, kernel="softmax").fit(X, keys=Y)
    assert_allclose(
        softmax.exact_kernel(X, Y), np.exp(softmax.sigma_**2 * linear_kernel(X, Y)), **CLOSE
    )


@every_mechanism
@every_kernel
def test_approximate_kernel_is_the_product_of_features(name, kernel):
    fitted = mechanism(name, kernel=kernel).fit(X, keys=Y)
    assert_allclose(
        fitted.approximate_kernel(X, Y), fitted.transform(X) @ fitted.transform_keys(Y).T, **CLOSE
    )
    assert_allclose(fitted.approximate_kernel(X), fitted.approximate_kernel(X, X), **CLOSE)


@every_positive
def test_the_estimate_survives_where_features_underflow(name):
    # At sigma = 100 the features of these rows are below e^-2000, but those of near pairs are not
    # negligible against each other: the estimate on the log scale is the sum of exponents.
    fitted = mechanism(name, sigma=100.0).fit(X, keys=Y)
    logs = fitted.log_transform(X)[:, None] + fitted.log_transform_keys(Y)
    top = logs.max(axis=2)
    expected = np.exp(top + np.log(np.exp(logs - top[:, :, None]).sum(axis=2)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert_allclose(fitted.approximate_kernel(X, Y), expected, rtol=1e-8)
    assert np.isfinite(logs).all()


def test_a_shared_shift_of_the_data_changes_nothing_when_centred():
    shift = np.array([3.0, -2.0, 0.5, 1.0, 4.0])
    for name in MECHANISMS:
        here, there = mechanism(name).fit(X), mechanism(name).fit(X + shift)
        moved = there.approximate_kernel(X + shift)
        assert_allclose(moved, here.approximate_kernel(X), rtol=1e-8)
    plain = PositiveRF(n_components=12, center=False, random_state=0)
    moved = clone(plain).fit(X + shift).approximate_kernel(X + shift)
    assert not np.allclose(moved, plain.fit(X).approximate_kernel(X), rtol=0.1)


@every_positive
@every_kernel
def test_without_centring_the_offset_is_zero(name, kernel):
    fitted = mechanism(name, kernel=kernel, center=False).fit(X, keys=Y)
    assert_array_equal(fitted.offset_, np.zeros(5))
    assert_allclose(
        fitted.transform(np.zeros((1, 5))).shape, mechanism(name).fit(X).transform(X[:1]).shape
    )
    centred = mechanism(name, kernel=kernel).fit(X - X.mean(axis=0))
    plain = mechanism(name, kernel=kernel, center=False).fit(X - X.mean(axis=0))
    assert_allclose(plain.transform(Y), centred.transform(Y), rtol=1e-9)


@pytest.mark.parametrize(("name", "coupling"), COMBINATIONS)
@every_kernel
def test_variances_are_known_or_say_what_is(name, coupling, kernel):
    fitted = mechanism(name, coupling=coupling, kernel=kernel, sigma=0.7).fit(X, keys=Y)
    used = coupling or fitted.coupling
    if used not in KNOWN_COUPLINGS:
        with pytest.raises(NotImplementedError) as caught:
            fitted.kernel_variance(X, Y)
        for word in (repr(used), *map(repr, KNOWN_COUPLINGS)):
            assert word in str(caught.value)
        return
    plain, logs = fitted.kernel_variance(X, Y), fitted.kernel_variance(X, Y, log=True)
    assert plain.shape == logs.shape == (30, 20)
    assert (plain > 0).all() and np.isfinite(logs).all()
    assert_allclose(np.log(plain), logs, rtol=1e-10, atol=1e-10)
    assert fitted.kernel_variance_is_exact_ is True
    assert_allclose(fitted.kernel_variance(X), fitted.kernel_variance(X, X), **CLOSE)


def test_the_variance_of_an_exact_estimate_is_zero():
    fitted = mechanism("RFFSampler").fit(X)
    assert_array_equal(np.diagonal(fitted.kernel_variance(X)), np.zeros(30))
    assert_array_equal(np.diagonal(fitted.kernel_variance(X, log=True)), np.full(30, -np.inf))


# ------------------------------------------------------------------ warnings


@every_positive
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("convert", [np.array, sp.csr_array])
def test_vanished_rows_give_one_warning_a_call(name, dtype, convert):
    fitted = mechanism(name, sigma=2.5).fit(X)
    far = X.astype(dtype)
    far[[0, 3, 4]] = 400.0
    words = (type(fitted).__name__, "sigma=2.5", f"norm {400 * np.sqrt(5):.4g}", "log_transform")
    with one_warning(*words, "X"):
        features = fitted.transform(convert(far))
    assert features.dtype == dtype and not features[[0, 3, 4]].any()
    with one_warning(*words, "Y"):
        fitted.transform_keys(convert(far))
    with one_warning(*words):
        mechanism(name, sigma=2.5).set_output(transform="default").fit(X).transform(convert(far))
    for method in ("log_transform", "log_transform_keys"):
        assert np.isfinite(getattr(fitted, method)(convert(far))).all()


@every_positive
def test_single_zeros_in_a_row_give_no_warning(name):
    fitted = mechanism(name, n_components=60).fit(X)
    rows = np.linspace(1, 40, 400)[:, None] * X[1]
    logs = fitted.log_transform(rows)
    # exp is 0 in float64 below -745.
    rows = rows[(logs.max(axis=1) > -740) & (logs.min(axis=1) < -750)]
    assert len(rows)
    features = fitted.transform(rows)
    assert (features == 0).any(axis=1).all() and features.any(axis=1).all()


@every_mechanism
def test_softmax_overflow_gives_one_warning_a_call(name):
    # Centred, positive features too are near exp(|sigma x|^2 / 2) here.
    far = X + 100.0
    fitted = mechanism(name, kernel="softmax", sigma=0.5).fit(far)
    largest = np.sqrt((far**2).sum(axis=1).max())
    methods = ["transform", "transform_keys", "exact_kernel", "approximate_kernel"]
    methods += ["kernel_variance"] if name != "SimplexRFPlus" else []
    for method in methods:
        with one_warning("overflow", "sigma=0.5 ", f"norm {largest:.4g}", type(fitted).__name__):
            assert not np.isfinite(getattr(fitted, method)(far)).all()
    if name in POSITIVE:
        logs = fitted.log_transform(far)
        assert np.isfinite(logs).all() and (logs > 710).all()
    if name != "SimplexRFPlus":
        pairs = fitted.kernel_variance(far, log=True)
        assert not np.isnan(pairs).any() and (pairs < np.inf).all()


@every_positive
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("sigma", "size"),
    [(1e-8, 1e-8), (1e-8, 1), (1e-8, 1e8), (1e-3, 1), (1, 1e8), (1e3, 1), (1e8, 1)],
)
def test_log_features_are_finite_at_every_scale(name, sigma, size, dtype):
    for kernel in KERNELS:
        fitted = mechanism(name, kernel=kernel, sigma=sigma).fit((size * X).astype(dtype))
        assert np.isfinite(fitted.log_transform((size * Y).astype(dtype))).all()


def test_coupling_simplex_suits_the_optimal_map():
    assert "simplex" in couplings("OptimalPositiveRF")
    joined = mechanism("OptimalPositiveRF", coupling="simplex").fit(X)
    assert_array_equal(joined.omega_, SimplexRF(n_components=12, random_state=0).fit(X).omega_)
