"""The table of facts in the guide: complete, and true of the mechanisms."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from instances import LANDMARKS, exported_mechanisms

PATH = Path(__file__).parents[1] / "docs" / "facts.py"


@pytest.fixture(scope="module")
def facts():
    if not PATH.exists():
        pytest.skip("The documentation is not here.")
    spec = importlib.util.spec_from_file_location("facts", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows(facts):
    return facts.table()


def test_every_mechanism_has_its_facts(facts, rows):
    assert {row[0].split("`")[1] for row in rows} == {
        f"skrf.{name}" for name in exported_mechanisms() | LANDMARKS
    }
    assert all(len(row) == len(facts.COLUMNS) for row in rows)


def test_facts_that_are_known(facts, rows):
    known = {row[0]: dict(zip(facts.COLUMNS[1:], row[1:], strict=True)) for row in rows}
    hybrid, dense = known["`skrf.HybridRF`"], known["`skrf.DenseExponentialRF`"]
    assert (hybrid["symmetric"], hybrid["positive"], hybrid["unbiased"]) == ("no", "no", "yes")
    assert hybrid["variance in closed form"] == "iid"
    assert dense["variance in closed form"] == "iid; bound: orthogonal"
    regularized = known["`skrf.PositiveRF` with ``variant='regularized'``"]
    assert regularized["unbiased"] == "no"
    assert known["`skrf.SimplexRFPlus`"]["variance in closed form"] == "no"
    assert known["`skrf.AdaptiveRF`"]["``partial_fit``"] == "no"
    landmarks = known["`skrf.ClusterNystroem`"]
    assert landmarks["positive"] == landmarks["unbiased"] == "no"
    assert landmarks["variance in closed form"] == "no"


def test_a_fact_is_asked_and_not_written(facts):
    """A variant with a variance of its own changes the table."""
    kind = type("Known", (facts.skrf.SimplexRFPlus,), {})
    kind.kernel_variance = lambda self, X: np.zeros((len(X), len(X)))
    kind.kernel_variance_is_exact_ = True
    assert facts._known(kind, {}, np.zeros((4, 2)) + np.eye(4, 2)) == "yes"
