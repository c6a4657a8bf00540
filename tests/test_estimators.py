"""What every exported estimator keeps to: it can be looked at, and saved."""

import inspect
import io
import pickle

import cloudpickle
import joblib
import numpy as np
import pytest
import skops.io
from estimators import ESTIMATORS, exported_estimators
from sklearn.base import clone

from skrf.graphical import KernelHMM

every_estimator = pytest.mark.parametrize("name", ESTIMATORS)


def test_every_exported_estimator_is_listed():
    assert {name.partition("-")[0] for name in ESTIMATORS} >= exported_estimators()


# ------------------------------------------------------------------ looked at


@every_estimator
def test_attributes_are_read_without_an_error(name):
    fitted, _ = ESTIMATORS[name]()
    for estimator in (clone(fitted), fitted):
        found = dict(inspect.getmembers(estimator))
        assert found.keys() >= estimator.get_params(deep=False).keys()
        assert set(dir(estimator)) >= found.keys()


@every_estimator
def test_attributes_are_listed_without_a_computation(name, monkeypatch):
    fitted, _ = ESTIMATORS[name]()
    unfitted = clone(fitted)
    for method in ("_log_variance", "_make_model", "_table"):
        if hasattr(type(fitted), method):
            monkeypatch.setattr(type(fitted), method, None)
    assert {"fit", "get_params"} <= set(dir(unfitted)) & set(dir(fitted))


def test_tables_that_a_model_lacks_are_no_attributes(monkeypatch):
    whole = KernelHMM.from_random(3, 4, random_state=0, normalization="global")
    tables = ("startprob_", "transmat_", "emissionprob_")
    assert not any(hasattr(whole, table) for table in tables)
    large = KernelHMM.from_random(3, 4, random_state=0)
    monkeypatch.setattr("skrf.graphical.hmm._TABLE_ENTRIES", 11)
    assert [hasattr(large, table) for table in tables] == [True, True, False]


# ------------------------------------------------------------------ saved


def _through_skops(estimator):
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
            found = getattr(loaded, method)(*arguments)
            assert np.asarray(found).dtype == np.asarray(value).dtype, (saver, method)
            np.testing.assert_array_equal(found, value, err_msg=f"{method} after {saver}")
