"""Mechanisms inside scikit-learn: tables, searches, frozen maps, metadata."""

import numpy as np
import pytest
import sklearn
from contract import (
    CLOSE,
    POSITIVE,
    X,
    Y,
    assert_same_parameters,
    assert_same_statistics,
    every_mechanism,
    frame,
    mechanism,
    y,
)
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.fixes import parse_version

from skrf import AdaptiveRF, KernelRegressionClassifier


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
    assert isinstance(search.best_estimator_.feature_map_, AdaptiveRF)
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
        # Before version 1.7 scikit-learn refused this for every transformer.
        if parse_version(sklearn.__version__) >= parse_version("1.7"):
            params = {"sample_weight": weights}
            scores = cross_validate(pipe, X, y, cv=2, params=params, error_score="raise")
            assert np.isfinite(scores["test_score"]).all()
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
