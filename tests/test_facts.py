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


def test_facts_that_are_known(facts):
    rows = facts.table()
    names = {f"skrf.{name}" for name in exported_mechanisms() | LANDMARKS}
    assert {row[0].split("`")[1] for row in rows} == names
    known = {row[0]: dict(zip(facts.COLUMNS[1:], row[1:], strict=True)) for row in rows}
    closed = "variance in closed form"
    for name, column, value in (
        ("`skrf.HybridRF`", "symmetric", "no"),
        ("`skrf.AdaptiveRF`", "symmetric", "yes"),
        ("`skrf.AdaptiveRF` with ``asymmetric=True``", "symmetric", "no"),
        ("`skrf.DenseExponentialRF` with ``asymmetric=True``", "symmetric", "no"),
        ("`skrf.HybridRF`", "positive", "no"),
        ("`skrf.HybridRF`", "unbiased", "yes"),
        ("`skrf.HybridRF`", closed, "iid"),
        ("`skrf.DenseExponentialRF`", closed, "iid; bound: orthogonal"),
        ("`skrf.PositiveRF` with ``variant='regularized'``", "unbiased", "no"),
        ("`skrf.SimplexRFPlus`", closed, "no"),
        ("`skrf.AdaptiveRF`", "``partial_fit``", "no"),
        ("`skrf.ClusterNystroem`", "unbiased", "no"),
    ):
        assert known[name][column] == value, (name, column)


def test_a_fact_is_asked_and_not_written(facts):
    """A variant with a variance of its own changes the table."""
    kind = type("Known", (facts.skrf.SimplexRFPlus,), {})
    kind.kernel_variance = lambda self, X: np.zeros((len(X), len(X)))
    kind.kernel_variance_is_exact_ = True
    assert facts._known(kind, {}, np.zeros((4, 2)) + np.eye(4, 2)) == "yes"
