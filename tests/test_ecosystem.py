"""Mechanisms inside scikit-learn: tables, searches, frozen maps, metadata."""

import numpy as np
import pytest
import sklearn
from contract import (
    CLOSE,
    POSITIVE,
    X,
    assert_same_parameters,
    assert_same_statistics,
    frame,
    mechanism,
    y,
)
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.feature_selection import RFE, SelectFromModel
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skrf import (
    ApproxKernelRidge,
    ApproxKernelRidgeClassifier,
    KernelRegressionClassifier,
    RelevanceScaler,
    RFFSampler,
)

both_kinds = pytest.mark.parametrize("name", ["RFFSampler", "OptimalPositiveRF"])


@both_kinds
@pytest.mark.parametrize("is_global", [False, True])
def test_pandas_output(name, is_global):
    table, expected = frame(X), mechanism(name).fit(X).transform(X)
    fitted = mechanism(name)
    if not is_global:
        fitted.set_output(transform="pandas")
    with sklearn.config_context(transform_output="pandas" if is_global else "default"):
        for out in (fitted.fit_transform(table), fitted.transform(table)):
            assert list(out.columns) == list(fitted.get_feature_names_out())
            assert list(out.index) == list(table.index)
            assert_allclose(out.to_numpy(), expected, **CLOSE)
        methods = ["transform_keys", "exact_kernel", "approximate_kernel"]
        methods += ["log_transform", "log_transform_keys"] if name in POSITIVE else []
        for method in methods:
            assert type(getattr(fitted, method)(table)) is np.ndarray
        # Names are compared, those of keys as well.
        with pytest.raises(ValueError, match="feature names"):
            fitted.transform_keys(table[list("edcba")])
    assert type(fitted.set_output(transform="default").transform(table)) is np.ndarray


@both_kinds
def test_estimators_use_maps_whose_output_is_pandas(name):
    for model in (
        KernelRegressionClassifier(mechanism(name)),
        KernelRegressionClassifier(make_pipeline(StandardScaler(), mechanism(name))),
        KernelRegressionClassifier(Nystroem(n_components=10, random_state=0)),
        make_pipeline(StandardScaler(), mechanism(name), LogisticRegression()),
    ):
        expected = clone(model).fit(X, y).predict_proba(X)
        with sklearn.config_context(transform_output="pandas"):
            probabilities = model.fit(frame(X), y).predict_proba(frame(X))
        assert_allclose(probabilities, expected, rtol=1e-6)


@both_kinds
def test_metadata_routing(name):
    weights = np.where(np.arange(30) < 20, 1.0, 0.0)
    with sklearn.config_context(enable_metadata_routing=True):
        feature_map = mechanism(name, sigma="scale").set_fit_request(sample_weight=True)
        last = LogisticRegression().set_fit_request(sample_weight=False)
        pipe = make_pipeline(feature_map, last).fit(X, y, sample_weight=weights)
        assert_same_statistics(pipe[0], mechanism(name).fit(X[:20]))
        assert_same_parameters(pipe[0], mechanism(name, sigma="scale").fit(X[:20]))
        model = KernelRegressionClassifier(mechanism(name, sigma="scale"))
        model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        grid = {"feature_map__n_components": [2, 6]}
        search = GridSearchCV(model, grid, cv=2, error_score="raise")
        best = search.fit(X, y, sample_weight=weights).best_estimator_
        expected = clone(best).fit(X[:20], y[:20]).predict_proba(X)
        assert_allclose(best.predict_proba(X), expected, rtol=1e-9)


@pytest.mark.parametrize("kind", [ApproxKernelRidge, ApproxKernelRidgeClassifier])
def test_coefficients_of_components_are_not_those_of_columns(kind):
    rows = X[:, :4]
    model = kind(RFFSampler(4, random_state=0)).fit(rows, y)
    assert model.component_coef_.shape[-1] == 4 and hasattr(model, "intercept_")
    with pytest.raises(AttributeError, match="component_coef_ holds those of the components"):
        _ = model.coef_
    for selection in (SelectFromModel, RFE):  # which read it as an importance of each column
        with pytest.raises((ValueError, AttributeError), match="coef_"):
            selection(clone(model)).fit_transform(rows, y)


def test_columns_are_selected_by_relevance():
    rows = np.random.default_rng(0).normal(size=(150, 5))
    scaler = RelevanceScaler(random_state=0)
    selection = SelectFromModel(scaler, importance_getter="relevance_").fit(rows, rows[:, 3] > 0)
    assert selection.get_support(indices=True).tolist() == [3]
