"""What every mechanism promises: parameters, random numbers, statistics, weights, columns."""

import inspect

import numpy as np
import pytest
import scipy.sparse as sp
from contract import (
    CLOSE,
    POSITIVE,
    X,
    Y,
    assert_same_parameters,
    assert_same_statistics,
    every_mechanism,
    mechanism,
    parameters,
)
from instances import make
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.exceptions import NotFittedError

from skrf import PositiveRF
from skrf.features import streams
from skrf.features.streams import rng_of

# ------------------------------------------------------------------ construction and parameters


@every_mechanism
def test_all_parameters_but_the_first_are_keywords(name):
    _, first, *others = inspect.signature(type(make(name)).__init__).parameters.values()
    assert (first.name, first.kind) == ("n_components", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    assert {parameter.kind for parameter in others} == {inspect.Parameter.KEYWORD_ONLY}


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
    assert len(firsts) == len(names) > 9
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
        for factor in (1e-300, 1e-9, 7.0, 1e300):
            scaled = clone(unfitted).fit(convert(X), sample_weight=factor * weights)
            assert_same_parameters(scaled, weighted)


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


@every_mechanism
def test_a_fitted_map_shows_at_most_24_names_of_its_own(name):
    fitted = mechanism(name).fit(X)
    usual = {*dir(BaseEstimator), *dir(TransformerMixin), *fitted.get_params()}
    usual |= {"fit", "partial_fit", "transform", "n_features_in_", "feature_names_in_"}
    names = {n for n in dir(fitted) if not n.startswith(("_", "set_"))} - usual
    assert len(names - {"get_feature_names_out"}) <= 24, sorted(names)
