"""Hints of public signatures: all are there, they hold, and type checkers see them.

`make lint` checks this file with mypy as the code of a user; a hint that is too wide leaves a
``type: ignore`` unused, which is an error.
"""

import ast
import inspect
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, assert_type, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import skrf
from skrf import (
    ApproxKernelAttention,
    ApproxKernelRidge,
    HybridRF,
    KernelRegressionClassifier,
    OptimalPositiveRF,
    RFFSampler,
    theory,
)
from skrf.graphical import ChainMRF, ErrorReport

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "api.rst"
LISTED = re.findall(r"^   ([A-Za-z_.]+)$", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)
# Operators that users call; other magic methods have the signatures of the language.
CALLED = ("__init__", "__new__", "__call__")


def functions(name):
    """Yield (name, function) of what a listed name lets users call."""
    home, _, own = f"skrf.{name}".rpartition(".")
    value = getattr(import_module(home), own)
    if not inspect.isclass(value):
        yield name, value
        return
    for method in dir(value):
        member = inspect.getattr_static(value, method)
        member = getattr(member, "fn", member)  # behind available_if
        member = getattr(member, "__func__", member)
        member = member.fget if isinstance(member, property) else member
        member = inspect.unwrap(member) if callable(member) else member
        ours = (getattr(member, "__module__", None) or "").startswith(
            "skrf"
        ) and inspect.isfunction(member)
        if ours and (method in CALLED or not method.startswith("_")):
            yield f"{name}.{method}", member


def test_checkers_see_the_names_that_are_loaded_late():
    stub = ast.parse((Path(skrf.__file__).parent / "__init__.pyi").read_text(encoding="utf-8"))
    imported = {
        own.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for own in node.names
    }
    assert imported == {**dict.fromkeys(skrf._SUBMODULES), **skrf._HOME}
    (names,) = [
        ast.literal_eval(node.value)
        for node in stub.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert names == skrf.__all__


def test_public_signatures_have_hints_that_agree_with_defaults():
    """A parameter whose default is None says so, which no checker looks for in private code."""
    wrong, seen = [], set()
    for name in LISTED:
        if name.partition(".")[0] in ("dask", "torch") and not find_spec(name.partition(".")[0]):
            continue
        for what, function in functions(name):
            signature = inspect.signature(function)
            seen.add(what)
            if signature.return_annotation is signature.empty:
                wrong.append(f"{what}: no hint of what is returned")
            for own in signature.parameters.values():
                text = inspect.formatannotation(own.annotation)
                if own.annotation is own.empty and own.name not in ("self", "cls"):
                    wrong.append(f"{what}: no hint of {own}")
                elif own.default is None and not re.search(r"None|Optional|Any", text):
                    wrong.append(f"{what}: {own}")
    assert wrong == []
    assert {"RFFSampler.fit", "theory.compare", "graphical.KernelHMM.__init__"} <= seen


def test_hints_of_parameters_say_what_validation_accepts():
    """None and texts; intervals of numbers have no hint."""
    classes = [getattr(skrf, name) for name in skrf.__all__]
    for cls in classes:
        if not hasattr(cls, "_parameter_constraints"):
            continue
        hints = get_type_hints(inspect.unwrap(cls.__init__))
        for parameter, constraints in cls._parameter_constraints.items():
            hint = hints.get(parameter, Any)
            parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
            if hint is Any or str in parts or constraints == "no_validation":
                continue
            takes_none = not {None, "random_state"}.isdisjoint(
                own for own in constraints if isinstance(own, str | None)
            )
            assert (NoneType in parts) == takes_none, (cls, parameter)
            texts = set().union(*(own.options for own in constraints if hasattr(own, "options")))
            named = {text for own in parts if get_origin(own) is Literal for text in get_args(own)}
            # Some transformers are texts for other classes alone.
            assert named == texts or (Any in parts and named < texts), (cls, parameter)


# ------------------------------------------------------------------ what a user's checker sees


def test_hints_hold_for_mechanisms() -> None:
    X = np.random.default_rng(0).normal(size=(9, 2))
    mechanism = RFFSampler(8, sigma="median", kernel="softmax", random_state=0)
    assert isinstance(assert_type(mechanism.fit(X), RFFSampler), RFFSampler)
    assert isinstance(assert_type(mechanism.redraw(1), RFFSampler), RFFSampler)
    assert isinstance(assert_type(mechanism.sigma_, float), float)
    assert isinstance(assert_type(mechanism.n_components_, int), int)
    base = HybridRF(8, base=(OptimalPositiveRF(), "trigonometric"), tau=[0.5, 1.0])
    assert isinstance(assert_type(base.shared, bool), bool)
    for wrong in (
        RFFSampler(8, sigma="widest"),  # type: ignore[arg-type]
        RFFSampler(8, random_state="0"),  # type: ignore[arg-type]
        RFFSampler(8, coupling="orthogonals"),  # type: ignore[arg-type]
        OptimalPositiveRF(8, kernel="laplacian"),  # type: ignore[arg-type]
        OptimalPositiveRF(None),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError):
            wrong.fit(X)


def test_hints_hold_for_consumers() -> None:
    X = np.random.default_rng(0).normal(size=(9, 2))
    classifier = KernelRegressionClassifier(RFFSampler(8), sigma="scale", random_state=0)
    assert_type(classifier.fit(X, X[:, 0] > 0), KernelRegressionClassifier)
    assert isinstance(assert_type(classifier.score(X, X[:, 0] > 0), float), float)
    ridge = ApproxKernelRidge(RFFSampler(8), sigma=None, alpha="evidence").fit(X, X[:, 0])
    assert_type(ridge, ApproxKernelRidge)
    assert len(ridge.predict(X, return_std=True)) == 2
    attention = ApproxKernelAttention(RFFSampler(8), causal=True)
    assert isinstance(assert_type(attention.fit(X, X), ApproxKernelAttention), object)
    with pytest.raises(TypeError):
        attention(X, X)  # type: ignore[call-arg]
    chain = ChainMRF([X[:4], X[4:]], feature_map="exact")
    log_prob, path = chain.decode()
    assert isinstance(assert_type(log_prob, float), float)
    assert isinstance(assert_type(path, np.ndarray), np.ndarray)
    assert ErrorReport.__annotations__["error"] is float


def test_hints_hold_for_results() -> None:
    X = np.random.default_rng(0).normal(size=(9, 2))
    table = theory.compare(X, feature_maps={"trigonometric": RFFSampler(8)})
    assert_type(table, theory.ComparisonTable)
    assert isinstance(assert_type(table[0], theory.Comparison), theory.Comparison)
    assert isinstance(assert_type(table[0].cost, int), int)
    count = theory.n_components_for(RFFSampler(8), X, rel_error=0.5)
    assert isinstance(assert_type(count, int), int)
