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
from instances import KERNELS, make
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
    for parameter in unfitted.get_params():
        assert not parameter.endswith("_")
        assert not callable(getattr(type(unfitted), parameter, None))
    signature = inspect.signature(type(unfitted).__init__)
    kinds = [p.kind for p in signature.parameters.values()][1:]
    assert kinds[0] is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert set(kinds[1:]) == {inspect.Parameter.KEYWORD_ONLY}
    assert list(signature.parameters)[1] == "n_components"
    assert unfitted.n_components == 100 and unfitted.sigma == 1.0


def test_simplex_maps_are_positive_maps_with_a_preset_coupling():
    for name, coupling in (("SimplexRF", "simplex"), ("SimplexRFPlus", "simplex+")):
        assert "coupling" not in make(name).get_params()
        with pytest.raises(TypeError, match="coupling"):
            make(name, coupling="iid")
        assert isinstance(make(name), PositiveRF)
        preset = mechanism(name).fit_transform(X)
        assert_array_equal(preset, mechanism("PositiveRF", coupling=coupling).fit_transform(X))


@every_mechanism
def test_what_fit_learns_cannot_be_asked_before_nor_overwritten(name):
    unfitted, fitted = make(name), mechanism(name).fit(X)
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
        with pytest.raises(AttributeError):
            setattr(fitted, attribute, 3)
    # What the class declares can be asked before `fit`.
    for claim in ("is_positive", "is_symmetric", "is_unbiased"):
        assert getattr(unfitted, claim) == getattr(fitted, claim)
        with pytest.raises(AttributeError):
            setattr(fitted, claim, True)
    with pytest.raises(AttributeError):
        fitted.kernel_variance_is_exact_ = True


@every_mechanism
@every_kernel
def test_a_pickle_maps_as_the_original_and_a_clone_forgets_the_fit(name, kernel):
    fitted = mechanism(name, kernel=kernel, sigma="scale").fit(X, keys=Y)
    copy = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(copy.transform(Y), fitted.transform(Y))
    assert_array_equal(copy.transform_keys(X), fitted.transform_keys(X))
    unfitted = clone(fitted)
    assert vars(unfitted) == unfitted.get_params(deep=False) == fitted.get_params(deep=False)
    assert_array_equal(unfitted.fit(X, keys=Y).transform(X), fitted.transform(X))
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
    unseeded = mechanism(name, random_state=None)
    assert not np.array_equal(unseeded.fit(X).omega_, unseeded.fit(X).omega_)


def test_the_streams_of_one_seed_differ():
    fitted = mechanism("RFFSampler").fit(X)
    names = [name for name in vars(streams) if name.isupper()]
    firsts = {rng_of(fitted._seed, getattr(streams, name)).random() for name in names}
    assert len(firsts) == len(names) > 10
    one, other = (rng_of(fitted._seed, streams.OMEGA).random() for _ in range(2))
    assert one == other


@every_mechanism
@pytest.mark.parametrize("n_components", [1, 12])
def test_redraw_keeps_the_parameters(name, n_components):
    params = {"n_components": n_components, "sigma": "scale"}
    fitted = mechanism(name, **params).fit(X, keys=Y)
    before, omega, features = parameters(fitted), fitted.omega_, fitted.transform(X)
    assert fitted.redraw(7) is fitted
    assert not np.array_equal(fitted.omega_, omega)
    assert not np.allclose(fitted.transform(X), features)
    after = parameters(fitted)
    assert all(np.array_equal(after[key], before[key]) for key in before)
    # The draw is that of a fit with this seed; the old seed gives the old draw back.
    other = mechanism(name, **params, random_state=7).fit(X, keys=Y)
    assert_array_equal(fitted.transform(X), other.transform(X))
    assert_array_equal(fitted.redraw(0).transform(X), features)


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
def test_weights_are_repetitions_of_which_ratios_count_alone(name, sigma):
    weights = np.arange(30) % 4
    unfitted = mechanism(name, sigma=sigma)
    for convert in (np.array, sp.csr_array):
        weighted = clone(unfitted).fit(convert(X), sample_weight=weights)
        repeated = clone(unfitted).fit(convert(np.repeat(X, weights, axis=0)))
        assert weighted.statistics_.queries.weight == weights.sum()
        assert_same_statistics(weighted, repeated)
        assert_same_parameters(weighted, repeated)
        assert_allclose(weighted.transform(Y), repeated.transform(Y), **CLOSE)
        for factor in (1e-9, 7.0):
            scaled = clone(unfitted).fit(convert(X), sample_weight=factor * weights)
            assert_same_parameters(scaled, weighted)


@every_mechanism
def test_keys_have_statistics_of_their_own_and_weights_are_those_of_queries(name):
    weights = np.arange(30.0)
    fitted = mechanism(name).fit(X, sample_weight=weights, keys=sp.csr_array(Y))
    queries, keys = fitted.statistics_.queries, fitted.statistics_.keys
    assert_allclose(queries.mean, weights @ X / weights.sum(), **CLOSE)
    assert_allclose(keys.mean, Y.mean(axis=0), **CLOSE)
    assert_allclose(keys.covariance, Y.var(axis=0), **CLOSE)
    assert keys.weight == len(Y)
    assert fitted.omega_.dtype == np.float64
    if hasattr(fitted, "offset_"):
        assert_allclose(fitted.offset_, (queries.mean + keys.mean) / 2, **CLOSE)
    assert_same_statistics(mechanism(name).fit(X), mechanism(name).fit(X, keys=X))


@every_mechanism
def test_partial_fit_goes_on_from_fit_and_fit_starts_anew(name):
    split = mechanism(name, sigma="scale", random_state=None).fit(X[:10])
    omega = split.omega_
    split.partial_fit(X[10:])
    assert_array_equal(split.omega_, omega)
    assert_same_parameters(split, mechanism(name, sigma="scale").fit(X))
    assert_same_statistics(split.fit(Y), mechanism(name).fit(Y))
    assert hasattr(make(name), "partial_fit")
    assert not hasattr(make(name, sigma="median"), "partial_fit")


# ------------------------------------------------------------------ columns


@every_mechanism
def test_n_components_counts_columns(name):
    columns = 2 if name in ("RFFSampler", "PositiveRF-hyperbolic") else 1
    for n_components in (1, 2, 4, 10, 12):
        fitted = mechanism(name, n_components=n_components)
        assert fitted.fit_transform(X).shape == (30, n_components)
        assert fitted.transform_keys(Y).shape == (20, n_components)
        assert fitted.n_components_ == n_components
        assert fitted.omega_.shape == (max(n_components // columns, 1), 5)
        kind = type(fitted).__name__.lower()
        assert list(fitted.get_feature_names_out()) == [f"{kind}{i}" for i in range(n_components)]


@pytest.mark.parametrize(("name", "coupling"), COMBINATIONS)
def test_one_row_and_one_column_are_enough(name, coupling):
    rows = data(8, 3, seed=4)
    for kernel in KERNELS:
        fitted = mechanism(name, coupling=coupling, kernel=kernel).fit(rows)
        whole = fitted.transform(rows)
        for i in (0, 7):
            assert_allclose(fitted.transform(rows[i : i + 1]), whole[i : i + 1], **CLOSE)
        single = mechanism(name, coupling=coupling, kernel=kernel, n_components=1)
        assert np.isfinite(single.fit(rows[:1, :1]).transform(rows[:, :1])).all()
