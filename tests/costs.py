"""What tests cost: every run ends with CPU seconds, and `--quick` leaves out what is expensive.

    pytest --costs            # prints the CPU seconds of every function, not only the largest
    pytest --quick            # cheap cases of every function
    make costs                # writes costs.json anew

The quick case of a function is its first, unless costs.json says otherwise: "all" where all cases
together cost little, the name of a cheaper one, or null where none is cheap. A test that it does
not know is run.
"""

import json
import os
import time
from collections import defaultdict
from pathlib import Path

import pytest

PATH = Path(__file__).with_name("costs.json")
ALL = "all"
LITTLE = 0.2  # CPU seconds of all cases of a function
CHEAP = 0.3  # CPU seconds of a case
NEAR = 0.05  # a case is named where another costs as much more: noise names none
LIMIT = 4.0  # CPU seconds of a function, all its cases together, less those of other processes
LIMITS = {  # of functions whose cases are tests of their own
    "tests/test_common.py::test_scikit_learn_check": 60.0,
    "tests/test_readme.py::test_block_runs_on_its_own": 56.0,
}

_START = pytest.StashKey()
_costs = defaultdict(dict)  # by case and phase: CPU seconds here and of processes that ended
_passed = set()
_workers = []  # CPU seconds of whole workers


def pytest_addoption(parser):
    group = parser.getgroup("costs of tests")
    group.addoption("--quick", action="store_true", help="run cheap cases of every test")
    group.addoption("--costs", action="store_true", help="print the CPU seconds of every test")
    group.addoption("--record-costs", action="store_true", help="write what --quick reads anew")


def _function(case):
    return case.partition("[")[0]


def _read():
    return json.loads(PATH.read_text(encoding="utf-8"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if not config.getoption("quick"):
        return
    record, cases = _read(), defaultdict(dict)
    for item in items:
        cases[_function(item.nodeid)][item.nodeid] = item
    chosen = []
    for function, known in cases.items():
        first = next(iter(known))
        parameters = record.get(function, "")
        if parameters == ALL:
            chosen += known.values()
        elif parameters is not None:
            chosen.append(known.get(function + parameters, known[first]))
    config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
    items[:] = chosen


def _now():
    times = os.times()
    return time.process_time(), times.children_user + times.children_system


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    item.stash[_START] = _now()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report, now = (yield), _now()
    report.costs = [end - start for end, start in zip(now, item.stash[_START], strict=True)]
    item.stash[_START] = now
    return report


def pytest_runtest_logreport(report):
    if hasattr(report, "costs"):
        _costs[report.nodeid][report.when] = report.costs
    if report.when == "call" and report.passed:
        _passed.add(report.nodeid)


def pytest_sessionfinish(session, exitstatus):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["costs"] = sum(_now())
    elif session.config.getoption("record_costs") and exitstatus == pytest.ExitCode.OK:
        # A case may be cheap only where another has computed what both need: `--quick` finds out.
        old = _read() if session.config.getoption("quick") else {}
        calls = {case: sum(_costs[case]["call"]) for case in _passed}  # others share fixtures
        new = json.dumps({**old, **recorded(calls)}, indent=0, sort_keys=True)
        PATH.write_text(new + "\n", encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    _workers.append(getattr(node, "workeroutput", {}).get("costs", 0.0))


def recorded(costs_of_cases):
    """Return what --quick runs of functions, beside the first case of those that are left out."""
    cases, record = defaultdict(dict), {}
    for case, seconds in costs_of_cases.items():
        cases[_function(case)][case] = seconds
    for function, costs in cases.items():
        cheapest = min(costs, key=costs.get)
        if len(costs) > 1 and sum(costs.values()) <= LITTLE:
            record[function] = ALL
        elif costs[cheapest] > CHEAP:
            record[function] = None
        elif max(costs.values()) > costs[cheapest] + NEAR:
            record[function] = cheapest.removeprefix(function)
    return record


def pytest_terminal_summary(terminalreporter, config):
    functions = defaultdict(lambda: [0.0, 0.0])
    for case, phases in _costs.items():
        for seconds in phases.values():
            for place, value in enumerate(seconds):
                functions[_function(case)][place] += value
    in_tests = sum(map(sum, functions.values()))
    write = terminalreporter.write_line
    terminalreporter.section("CPU seconds")
    write(f"{in_tests:7.2f} in tests")
    here, elsewhere = _now()
    write(f"{here + (sum(_workers) or elsewhere) - in_tests:7.2f} in imports, collection, reports")
    for function, (here, elsewhere) in sorted(functions.items(), key=lambda item: -sum(item[1])):
        limit = LIMITS.get(function, LIMIT)
        if config.getoption("costs") or here + elsewhere > LIMIT:
            words = f", {elsewhere:.2f} of them in other processes" if elsewhere else ""
            words += f", above the limit of {limit:g}" * (here > limit)
            write(f"{here + elsewhere:7.2f} in {function}{words}")
