"""What every exported estimator keeps to: it can be looked at and saved, and its predictions have
the dtype of the rows.
"""

import inspect
import io
import pickle

import cloudpickle
import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from estimators import ESTIMATORS, PREDICTIONS, TARGETS, exported_estimators
from samples import X
from sklearn.base import clone, is_regressor

every_estimator = pytest.mark.parametrize("name", ESTIMATORS)
every_predictor = pytest.mark.parametrize(
    "name", [name for name in ESTIMATORS if name.startswith(("KernelReg", "ApproxKernelRidge"))]
)


def test_every_exported_estimator_is_listed():
    assert {name.partition("-")[0] for name in ESTIMATORS} >= exported_estimators()


# ------------------------------------------------------------------ looked at


@every_estimator
def test_attributes_are_read_without_an_error_and_listed_without_a_computation(name, monkeypatch):
    fitted, _ = ESTIMATORS[name]()
    for estimator in (clone(fitted), fitted):
        values = dict(inspect.getmembers(estimator))
        assert values.keys() >= estimator.get_params(deep=False).keys()
        assert set(dir(estimator)) >= values.keys()
    for method in ("_log_variance", "_make_model"):
        if hasattr(type(fitted), method):
            monkeypatch.setattr(type(fitted), method, None)
    callables = {"get_params", "fit" if hasattr(type(fitted), "fit") else "__call__"}
    assert callables <= set(dir(clone(fitted))) & set(dir(fitted))


# ------------------------------------------------------------------ saved


def _through_skops(estimator):
    import skops.io  # imports all of scikit-learn, and PyTorch

    saved = skops.io.dumps(estimator)
    return skops.io.loads(saved, trusted=skops.io.get_untrusted_types(data=saved))


def _through_joblib(estimator):
    file = io.BytesIO()
    joblib.dump(estimator, file)
    file.seek(0)
    return joblib.load(file)


SAVED_BY = {
    "skops": _through_skops,
    "joblib": _through_joblib,
    "pickle": lambda estimator: pickle.loads(pickle.dumps(estimator)),
    "cloudpickle": lambda estimator: pickle.loads(cloudpickle.dumps(estimator)),
}


@every_estimator
def test_a_saved_estimator_answers_bit_for_bit(name):
    fitted, calls = ESTIMATORS[name]()
    expected = [getattr(fitted, method)(*arguments) for method, arguments in calls.items()]
    for saver, through in SAVED_BY.items():
        loaded = through(fitted)
        for (method, arguments), value in zip(calls.items(), expected, strict=True):
            values = getattr(loaded, method)(*arguments)
            assert np.asarray(values).dtype == np.asarray(value).dtype, (saver, method)
            np.testing.assert_array_equal(values, value, err_msg=f"{method} after {saver}")


# ------------------------------------------------------------------ predictions


def predictions(estimator, rows):
    """Yield the names and the results of everything that is predicted but labels."""
    for method in PREDICTIONS:
        if hasattr(estimator, method) and (method != "predict" or is_regressor(estimator)):
            yield method, getattr(estimator, method)(rows)
    if hasattr(estimator, "noise_variance_"):
        yield from zip(("mean", "std"), estimator.predict(rows, return_std=True), strict=True)


SCALES = 1, 100  # features of large rows are computed in float64


@every_predictor
def test_predictions_have_the_dtype_of_the_rows(name):
    pandas = pytest.importorskip("pandas")
    models = [ESTIMATORS[name]()[0]]
    if is_regressor(models[0]):
        models.append(clone(models[0]).fit(X, np.column_stack([TARGETS, TARGETS**2])))
    for scale in SCALES:
        rows = scale * np.round(4 * X)
        single = rows.astype(np.float32)
        narrow = [single, sp.csr_array(single), pandas.DataFrame(single)]
        wide = [rows, rows.tolist(), rows.astype(int), sp.csr_array(rows), pandas.DataFrame(rows)]
        for model in models:
            for dtype, forms in ((np.float32, narrow), (np.float64, wide)):
                for form in forms:
                    for what, values in predictions(model, form):
                        given = np.float64 if "proba" in what else dtype
                        assert values.dtype == given, (what, scale, type(form))


@every_predictor
def test_predictions_have_the_dtype_of_the_rows_of_a_library(name, library):
    fitted, _ = ESTIMATORS[name]()
    for dtype, tolerance in (("float32", 1e-3), ("float64", 1e-9)):
        for scale in SCALES:
            rows = (scale * X).astype(dtype)
            arrays, expected = library.array(rows), dict(predictions(fitted, rows))
            for what, values in predictions(fitted, arrays):
                library.assert_same(values, expected[what], arrays, rtol=tolerance, atol=tolerance)
