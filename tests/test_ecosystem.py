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

from skrf import KernelRegressionClassifier


@pytest.mark.parametrize("name", ["RFFSampler", "OptimalPositiveRF"])
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


@pytest.mark.parametrize("name", ["RFFSampler", "OptimalPositiveRF"])
def test_pandas_output_set_globally(name):
    table, plain = frame(X), mechanism(name).fit(X)
    models = [
        KernelRegressionClassifier(mechanism(name)),
        KernelRegressionClassifier(make_pipeline(StandardScaler(), mechanism(name))),
        KernelRegressionClassifier(Nystroem(n_components=10, random_state=0)),
        make_pipeline(StandardScaler(), mechanism(name), LogisticRegression()),
    ]
    expected = [clone(model).fit(X, y).predict_proba(X) for model in models]
    with sklearn.config_context(transform_output="pandas"):
        fitted = mechanism(name).fit(table)
        assert list(fitted.transform(table).columns) == list(fitted.get_feature_names_out())
        assert_allclose(fitted.transform(table).to_numpy(), plain.transform(X), **CLOSE)
        assert type(fitted.transform_keys(table)) is np.ndarray
        assert type(fitted.exact_kernel(table)) is np.ndarray
        if name in POSITIVE:
            assert type(fitted.log_transform(table)) is np.ndarray
        for model, wanted in zip(models, expected, strict=True):
            assert_allclose(model.fit(table, y).predict_proba(table), wanted, rtol=1e-6)


@pytest.mark.parametrize("name", ["RFFSampler", "OptimalPositiveRF"])
def test_grid_search_reaches_everything(name):
    model = KernelRegressionClassifier(mechanism(name))
    step = Pipeline([("map", mechanism(name)), ("model", LogisticRegression())])
    sizes = [2, 6]
    for estimator, grid in (
        (model, {"sigma": [0.1, 1.0], "feature_map__n_components": sizes}),
        (model, {"feature_map__sigma": [0.1, "scale", "median"]}),
        (step, {"map__sigma": [0.1, 1.0], "map__n_components": sizes}),
    ):
        search = GridSearchCV(estimator, grid, cv=2, error_score="raise").fit(X, y)
        best, chosen = search.best_estimator_, search.best_params_
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()
        own = best["map"] if estimator is step else best.feature_map_
        for parameter, value in chosen.items():
            found = getattr(own, parameter.rpartition("__")[2])
            assert found == value or own.sigma_ == value


@pytest.mark.parametrize("name", ["RFFSampler", "OptimalPositiveRF"])
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


@pytest.mark.parametrize("name", ["RFFSampler", "OptimalPositiveRF"])
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
