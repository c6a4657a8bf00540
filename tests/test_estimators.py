"""What every exported estimator keeps to: it can be looked at."""

import inspect

import pytest
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
