"""What every mechanism promises: parameters, random numbers, statistics, weights, columns."""

import inspect
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from contract import (
    CLOSE,
    COMBINATIONS,
    POSITIVE,
    X,
    Y,
    assert_same_parameters,
    assert_same_statistics,
    data,
    every_kernel,
    every_mechanism,
    mechanism,
    parameters,
)
from instances import accepts, make
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from skrf import PositiveRF
from skrf.features import streams
from skrf.features.streams import rng_of

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
    for attribute in ("sigma_", "gamma_", "n_components_"):
        with pytest.raises(NotFittedError):
            getattr(unfitted, attribute)
    # What the class declares can be asked before `fit`.
    assert {unfitted.is_positive, unfitted.is_symmetric, unfitted.is_unbiased} <= {True, False}


@every_mechanism
def test_what_fit_learns_cannot_be_overwritten(name):
    fitted = mechanism(name).fit(X)
    for attribute in ("sigma_", "gamma_", "n_components_"):
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
    assert first._seed == seed
    assert not np.array_equal(first.omega_, mechanism(name, random_state=4).fit(X).omega_)


def test_the_streams_of_one_seed_differ():
    fitted = mechanism("RFFSampler").fit(X)
    names = [name for name in vars(streams) if name.isupper()]
    firsts = {rng_of(fitted._seed, getattr(streams, name)).random() for name in names}
    assert len(firsts) == len(names) > 10
    one, other = (rng_of(fitted._seed, streams.OMEGA).random() for _ in range(2))
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
    assert_allclose(fitted.statistics_.keys.covariance, rows.var(axis=0), **CLOSE)
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
