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
REFERENCE = "\n".join(
    page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "api").glob("*.rst"))
)
LISTED = re.findall(r"^   ([A-Za-z_.]+)$", REFERENCE, re.MULTILINE)
# Operators that users call; other magic methods have the signatures of the language.
CALLED = ("__init__", "__new__", "__call__")


def functions(name):
    """Yield (name, function) of what a listed name lets users call."""
    home, _, attribute = f"skrf.{name}".rpartition(".")
    value = getattr(import_module(home), attribute)
    if not inspect.isclass(value):
        yield name, value
        return
    for method in dir(value):
        if method.startswith("_") and method not in CALLED:
            continue
        member = inspect.getattr_static(value, method)
        member = getattr(member, "fn", member)  # behind available_if
        member = getattr(member, "__func__", member)
        member = member.fget if isinstance(member, property) else member
        member = inspect.unwrap(member) if callable(member) else member
        if inspect.isfunction(member) and member.__module__.startswith("skrf"):
            yield f"{name}.{method}", member


def test_checkers_see_the_names_that_are_loaded_late():
    stub = ast.parse((Path(skrf.__file__).parent / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    imported = {alias.name: node.module for node in imports for alias in node.names}
    assert imported == {**dict.fromkeys([*skrf._SUBMODULES, *skrf._OPTIONAL]), **skrf._HOME}
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
        home = name.partition(".")[0]
        if home in ("dask", "torch") and not find_spec(home):
            continue
        for what, function in functions(name):
            signature = inspect.signature(function)
            seen.add(what)
            if signature.return_annotation is signature.empty:
                wrong.append(f"{what}: no hint of what is returned")
            for parameter in signature.parameters.values():
                if parameter.name in ("self", "cls"):
                    continue
                text = inspect.formatannotation(parameter.annotation)
                is_optional = re.search(r"None|Optional|Any", text)
                if parameter.annotation is parameter.empty:
                    wrong.append(f"{what}: no hint of {parameter}")
                elif parameter.default is None and not is_optional:
                    wrong.append(f"{what}: {parameter}")
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
            kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
            if hint is Any or str in kinds or constraints == "no_validation":
                continue
            takes_none = None in constraints or "random_state" in constraints
            assert (NoneType in kinds) == takes_none, (cls, parameter)
            options = [value.options for value in constraints if hasattr(value, "options")]
            texts = set().union(*options)
            literals = [get_args(kind) for kind in kinds if get_origin(kind) is Literal]
            named = set().union(*literals)
            # Some transformers are texts for other classes alone.
            assert named == texts or (Any in kinds and named < texts), (cls, parameter)


# ------------------------------------------------------------------ what a user's checker sees


def test_hints_hold_for_mechanisms() -> None:
    X = np.random.default_rng(0).normal(size=(9, 2))
    mechanism = RFFSampler(8, sigma="median", kernel="softmax", random_state=0)
    assert_type(mechanism.fit(X), RFFSampler)
    for features in (mechanism.transform(X), mechanism.fit_transform(X)):
        assert isinstance(assert_type(features, np.ndarray), np.ndarray)
    assert_type(mechanism.redraw(1), RFFSampler)
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
    assert isinstance(assert_type(ridge.predict(X), np.ndarray), np.ndarray)
    means, _ = assert_type(ridge.predict(X, return_std=True), tuple[np.ndarray, np.ndarray])
    assert isinstance(means, np.ndarray)
    assert len(ridge.predict(X, return_std=True)) == 2
    attention = ApproxKernelAttention(RFFSampler(8), causal=True)
    assert_type(attention.fit(X, X), ApproxKernelAttention)
    with pytest.raises(TypeError):
        attention(X, X)  # type: ignore[call-arg]
    chain = ChainMRF([X[:4], X[4:]], feature_map="exact")
    log_prob, path = chain.decode()
    assert isinstance(assert_type(log_prob, float | np.ndarray), float)
    assert isinstance(assert_type(path, np.ndarray | list[np.ndarray]), np.ndarray)
    assert ErrorReport.__annotations__["error"] is float


def test_hints_hold_for_results() -> None:
    X = np.random.default_rng(0).normal(size=(9, 2))
    table = theory.compare(X, feature_maps={"trigonometric": RFFSampler(8)})
    assert_type(table, theory.ComparisonTable)
    assert_type(table[0], theory.Comparison)
    assert isinstance(assert_type(table[0].cost, int), int)
    count = theory.n_components_for(RFFSampler(8), X, rel_error=0.5)
    assert isinstance(assert_type(count, int), int)
