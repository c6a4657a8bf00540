"""What `--quick` leaves out, and how it is found (costs.py)."""

from types import SimpleNamespace

import costs

CASES = {
    "test_new": 9.0,
    "test_single": 0.1,
    "test_slow[a]": 0.4,
    "test_slow[b]": 0.5,
    "test_mixed[a]": 2.0,
    "test_mixed[b]": 0.2,
    "test_even[a]": 0.13,
    "test_even[b]": 0.11,
    "test_little[a]": 0.03,
    "test_little[b]": 0.1,
}


class Item:
    def __init__(self, nodeid):
        self.nodeid = nodeid


def run_quick(record, monkeypatch):
    """Return the names of the cases that run, and of those that do not."""
    left_out = []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    config = SimpleNamespace(getoption=lambda name: name == "quick", hook=hook)
    items = [Item(case) for case in CASES]
    monkeypatch.setattr(costs, "_read", lambda: record)
    costs.pytest_collection_modifyitems(config, items)
    return [item.nodeid for item in items], {item.nodeid for item in left_out}


def test_cheap_cases_are_recorded_and_run_and_what_is_not_known_runs(monkeypatch):
    record = costs.recorded({case: CASES[case] for case in CASES if case != "test_new"})
    assert record == {"test_slow": None, "test_mixed": "[b]", "test_little": "all"}
    run, left_out = run_quick(record, monkeypatch)
    of_little = ["test_little[a]", "test_little[b]"]
    assert run == ["test_new", "test_single", "test_mixed[b]", "test_even[a]", *of_little]
    assert left_out == CASES.keys() - set(run)
    # A case that has another name since is not known either.
    run, _ = run_quick({"test_mixed": "[gone]"}, monkeypatch)
    assert run[3] == "test_mixed[a]"
