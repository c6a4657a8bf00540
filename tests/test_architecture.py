"""The house rules: who imports whom, what `import skrf` loads, what is public and documented."""

import ast
import dataclasses
import inspect
import json
import os
import pkgutil
import pydoc
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from sklearn.base import ClassifierMixin, RegressorMixin, TransformerMixin

import skrf

PACKAGE = Path(skrf.__file__).parent
ROOT = PACKAGE.parent


def layers():
    """Return the layers of docs/architecture.rst, the lowest first."""
    text = (ROOT / "docs" / "architecture.rst").read_text(encoding="utf-8")
    table = text[text.index("\nLayers\n") : text.index("stand beside these")]
    rows = re.findall(r"^   \* - (``.*``)$", table, flags=re.MULTILINE)
    return [tuple(re.findall(r"``(\w+)``", row)) for row in reversed(rows)]


# Imports run downwards, and parts of one layer do not import each other. Parts that do not exist
# yet have their place already.
LAYERS = layers()
# These import nothing of the package but names of types. Any part may use all but the data sets.
SMALL = ("exceptions", "_estimator", "_progress", "_typing")
FREE = (*SMALL, "datasets")
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
# What uses features sees feature maps, the way to get them, and those that it takes by default.
CONSUMERS = ("regression", "attention", "graphical", "operators")
CONTRACT = {
    "AdaptiveRF",
    "DenseExponentialRF",
    "FeatureMap",
    "OptimalPositiveRF",
    "RFFSampler",
    "scope_of",
    "Survey",
    "as_feature_map",
    "by_first",
    "check_columns",
    "difference",
    "fit_to",
    "fitted_at",
    "fitted_to",
    "frozen_kernel",
    "in_range",
    "lacks_rows",
    "mapped",
    "maps_sides_alike",
    "needs_double",
    "prepared",
    "record_of",
    "restored",
    "side_by_side",
    "row_codes",
    "spread_rows",
}

# Third-party modules that a file may import anywhere; and where others may be imported.
EVERYWHERE = {"numpy", "scipy", "sklearn", "joblib", "array_api_compat"}
OPTIONAL = ("dask", "torch")  # parts that bear the name of what they need
SOMEWHERE = {
    "numba": ("_kernels/cpu.py",),
    "llvmlite": ("_kernels/cpu.py",),
    "pandas": ("datasets/uci.py", "_tables.py"),
    "matplotlib": ("plotting.py",),
    "threadpoolctl": ("_threads.py",),
    "torch": ("torch.py", "attention/_torch.py"),
    "dask": ("dask.py",),
}


def source_files():
    return sorted(PACKAGE.rglob("*.py"))


def imports(path):
    """Yield (line, dotted module, imported names) of every import, also inside functions."""
    package = ["skrf", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ()
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module.split(".") if node.module else [])])
            yield node.lineno, module, tuple(alias.name for alias in node.names)


def part_of(path):
    """Return the part a file belongs to: a folder or a module right below the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(path):
    """Yield (line, part of skrf, names) for imports of the package's own parts."""
    for line, module, names in imports(path):
        first, *rest = module.split(".")
        if first != "skrf":
            continue
        if rest:
            yield line, rest[0], names
        else:
            # from .. import variances, or from skrf import RFFSampler: a part or a public name.
            for name in names:
                yield line, skrf._HOME.get(name, name), (name,)


def violations(path):
    part = part_of(path)
    for line, other, names in imported_parts(path):
        where = f"{path.relative_to(PACKAGE)}:{line}: {part} imports {other}"
        if other in (part, "_typing") or (
            other in ("exceptions", "_estimator", "_progress") and part not in FREE
        ):
            continue
        if part in FREE or other in FREE:
            yield f"{where}: a part that stands alone"
        elif other not in LEVEL:
            yield f"{where}, which is in no layer"
        elif LEVEL[other] >= LEVEL[part]:
            yield f"{where}, which is not below it"
        elif part in CONSUMERS and other == "features" and not set(names) <= CONTRACT:
            yield f"{where}: {sorted(set(names) - CONTRACT)} is not its contract"


# ------------------------------------------------------------------ imports


def test_the_layers_of_the_docs_are_read():
    assert LAYERS[0] == ("_arrays", "_threads", "_memory") and LAYERS[-1] == ("plotting",)
    assert (
        LAYERS[-2] == ("theory", "torch", "dask")
        and "attention" in LAYERS[-3]
        and ("features",) in LAYERS
    )


def test_every_part_has_a_layer():
    parts = {part_of(path) for path in source_files()} - {"__init__"}
    assert parts <= {*LEVEL, *FREE}
    assert {"_arrays", "features", "regression", "datasets"} <= parts


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_downwards(path):
    if part_of(path) == "__init__":
        # It loads names when they are used, and imports nothing of the package itself.
        assert not list(imported_parts(path))
    else:
        assert list(violations(path)) == []


@pytest.mark.parametrize(
    ("where", "statement", "said"),
    [
        ("statistics.py", "from .features import SimplexRF", "not below"),
        ("projections/base.py", "def f():\n    from ..statistics import Moments", "not below"),
        ("graphical/hmm.py", "import skrf.regression", "not below"),
        ("regression/_base.py", "from .. import theory", "not below"),
        ("features/base.py", "from .. import regression", "not below"),
        ("features/base.py", "from skrf import KernelRegressor", "not below"),
        ("regression.py", "from .features import SimplexRF", "contract"),
        ("features/base.py", "from ..datasets import load_uci", "alone"),
        ("exceptions.py", "from . import _arrays", "alone"),
        ("features/base.py", "from .._helpers import f", "no layer"),
    ],
)
def test_a_wrong_import_is_found(where, statement, said, tmp_path, monkeypatch):
    package = tmp_path / "skrf"
    (package / where).parent.mkdir(parents=True)
    (package / where).write_text(statement, encoding="utf-8")
    monkeypatch.setitem(globals(), "PACKAGE", package)
    (found,) = violations(package / where)
    assert said in found


def test_a_right_import_is_let_through(tmp_path, monkeypatch):
    package = tmp_path / "skrf"
    package.mkdir()
    path = package / "regression.py"
    path.write_text(
        "import skrf\nfrom . import variances\nfrom .exceptions import FeatureCollapseWarning\n"
        "from .features import FeatureMap\nfrom ._arrays import like\n",
        encoding="utf-8",
    )
    monkeypatch.setitem(globals(), "PACKAGE", package)
    assert len(list(imported_parts(path))) == 4
    assert list(violations(path)) == []


def test_third_party_modules_are_declared():
    wrong = []
    for path in source_files():
        name = path.relative_to(PACKAGE).as_posix()
        for line, module, _ in imports(path):
            top = module.split(".")[0]
            if top == "skrf" or top in sys.stdlib_module_names or top in EVERYWHERE:
                continue
            if name not in SOMEWHERE.get(top, ()):
                wrong.append(f"{name}:{line}: {top}")
    assert wrong == []


def loaded_by(program):
    """Return the top-level modules that a program loads in a process of its own."""
    program = f"import json, sys\nbefore = set(sys.modules)\n{program}\n"
    program += "print(json.dumps(sorted({m.split('.')[0] for m in set(sys.modules) - before})))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_importing_the_package_loads_nothing_else():
    loaded = loaded_by("import skrf; dir(skrf); skrf.__version__")
    assert loaded - set(sys.stdlib_module_names) == {"skrf"}


def test_plain_use_compiles_nothing():
    loaded = loaded_by(
        "import numpy, skrf\n"
        "X = numpy.ones((3, 2))\n"
        "skrf.RFFSampler(2).fit_transform(X)\n"
        "skrf.KernelRegressionClassifier().fit(X, [0, 1, 1]).predict(X)\n"
        "[getattr(skrf, name) for name in skrf.__all__]"
    )
    assert {"skrf", "sklearn"} <= loaded
    # scikit-learn itself may load pandas.
    assert loaded.isdisjoint({"numba", "llvmlite", "cupy", "torch", "matplotlib", "dask"})


# ------------------------------------------------------------------ public names


def public_modules():
    names = ["skrf"]
    for info in pkgutil.walk_packages(skrf.__path__, "skrf."):
        if not any(part.startswith("_") for part in info.name.split(".")):
            names.append(info.name)
    return names


def test_every_public_name_can_be_imported():
    assert list(skrf.__all__) == sorted(set(skrf.__all__))
    for name in skrf.__all__:
        assert getattr(skrf, name) is not None
    assert {*skrf.__all__, "__version__"} == set(dir(skrf))
    namespace = {}
    exec("from skrf import *", namespace)
    assert set(skrf.__all__) <= set(namespace)
    with pytest.raises(AttributeError, match="no attribute 'RFFSamples'"):
        skrf.RFFSamples  # noqa: B018
    with pytest.raises(ImportError):
        exec("from skrf import RFFSamples")


def test_doctests_leave_out_what_an_optional_package_is_needed_for():
    text = (ROOT / "conftest.py").read_text(encoding="utf-8")
    assert [
        path for name in OPTIONAL for path in SOMEWHERE[name] if f'"skrf/{path}"' not in text
    ] == []


def test_every_public_part_is_listed():
    folders = {name.split(".")[1] for name in public_modules() if name.count(".") == 1}
    # Statistics are what mechanisms learn, reached through their attribute `statistics_`. Torch and
    # Dask are no requirements: their modules are imported by name.
    assert folders - {"statistics", *OPTIONAL} <= set(skrf.__all__)
    # Mechanisms and estimators are at the top; parts keep their smaller things to themselves.
    for part in ("features", "regression"):
        module = import_module(f"skrf.{part}")
        for name, value in vars(module).items():
            own = inspect.isclass(value) and value.__module__.startswith(f"skrf.{part}")
            if own and not name.startswith("_") and not inspect.isabstract(value):
                assert name in skrf.__all__, name


@pytest.mark.parametrize("name", public_modules())
def test_what_a_module_lists_exists(name):
    if name.removeprefix("skrf.") in OPTIONAL:
        pytest.importorskip(name.removeprefix("skrf."))
    module = import_module(name)
    assert module.__doc__
    for public in getattr(module, "__all__", []):
        assert hasattr(module, public)
        assert not public.startswith("_")


# ------------------------------------------------------------------ documentation


def sections(docstring):
    """Return {title: text} of a numpydoc docstring; what comes first has the title ''."""
    lines = inspect.cleandoc(docstring).splitlines()
    found, title = {"": []}, ""
    for i, line in enumerate(lines):
        below = lines[i + 1] if i + 1 < len(lines) else ""
        if line and len(below) >= 3 and set(below) == {"-"}:
            title = line
            found[title] = []
        else:
            found[title].append(line)
    return {title: "\n".join(text) for title, text in found.items()}


def entries(section):
    """Return the names that a Parameters or Attributes section describes."""
    names = []
    for line in section.splitlines():
        if line and not line.startswith((" ", "-")):
            names += [name.strip().lstrip("*") for name in line.split(" : ")[0].split(",")]
    return names


def arguments(function):
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


# Parts that users address by name; the others are for those who extend the library.
ADDRESSED = ("attention", "datasets", "exceptions", "graphical", "plotting", "theory", *OPTIONAL)


def public_objects():
    """Yield (name, class or function) of what users get."""
    found = {name: import_module(f"skrf.{name}") for name in OPTIONAL if find_spec(name)}
    for name, value in {**{name: getattr(skrf, name) for name in skrf.__all__}, **found}.items():
        if not inspect.ismodule(value):
            yield name, value
        elif name in ADDRESSED:
            for inner in value.__all__:
                yield f"{name}.{inner}", getattr(value, inner)


OBJECTS = dict(public_objects())
CLASSES = {name: value for name, value in OBJECTS.items() if inspect.isclass(value)}
FUNCTIONS = {name: value for name, value in OBJECTS.items() if not inspect.isclass(value)}


def public_methods(cls):
    """Yield (name, function or property) of the public members that the package itself defines."""
    for name in dir(cls):
        if name.startswith("_"):
            continue
        member = inspect.getattr_static(cls, name)
        # Behind available_if stands a function.
        member = getattr(member, "fn", member)
        if isinstance(member, (classmethod, staticmethod)):
            member = member.__func__
        home = member.fget if isinstance(member, property) else member
        # What set_output and others wrap is read from below the wrapper.
        home = inspect.unwrap(home) if callable(home) else home
        if getattr(home, "__module__", "").startswith("skrf") and not inspect.isclass(home):
            yield name, member if isinstance(member, property) else home


def assert_describes(docstring, wanted, what):
    described = entries(sections(docstring).get("Parameters", ""))
    assert described == wanted, what


@pytest.mark.parametrize("name", CLASSES)
def test_classes_are_documented(name):
    cls = CLASSES[name]
    parts = sections(cls.__doc__ or "")
    assert parts[""].strip()
    # A dataclass holds results: what returns it has the example.
    assert ">>> " in parts.get("Examples", "") or dataclasses.is_dataclass(cls)
    wanted = [] if issubclass(cls, Warning) else arguments(cls)
    assert_describes(cls.__doc__, wanted, name)
    if issubclass(cls, (TransformerMixin, ClassifierMixin, RegressorMixin)):
        described = entries(parts["Attributes"])
        assert "n_features_in_" in described
        assert all(attribute.endswith("_") for attribute in described)


@pytest.mark.parametrize("name", CLASSES)
def test_methods_are_documented(name):
    seen = 0
    for method, member in public_methods(CLASSES[name]):
        what = f"{name}.{method}"
        assert member.__doc__, what
        seen += 1
        if isinstance(member, property):
            continue
        parts = sections(member.__doc__)
        assert parts[""].strip(), what
        assert_describes(member.__doc__, arguments(member), what)
        assert "Returns" in parts or "Yields" in parts, what
    if hasattr(CLASSES[name], "fit"):
        assert seen >= 3


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_documented(name):
    function = FUNCTIONS[name]
    parts = sections(function.__doc__ or "")
    assert parts[""].strip()
    assert "Returns" in parts
    assert_describes(function.__doc__, arguments(function), name)


def reference():
    """Return the names that docs/api.rst lists."""
    text = (ROOT / "docs" / "api.rst").read_text(encoding="utf-8")
    return re.findall(r"^   ([A-Za-z_.]+)$", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", reference())
def test_entries_of_the_reference_say_what_is_related_and_where_it_comes_from(name):
    if (optional := name.partition(".")[0]) in OPTIONAL:
        pytest.importorskip(optional)
    home, _, own = f"skrf.{name}".rpartition(".")
    parts = sections(getattr(import_module(home), own).__doc__)
    related = re.findall(r"^([\w.]+) : .+\.$", parts["See Also"], flags=re.MULTILINE)
    assert 2 <= len(related) == len(parts["See Also"].split("\n")[1:-1]) <= 4
    for other in related:
        full = {f"{home}.{other}", other} - {f"skrf.{name}"}  # its own module may be left out
        listed = not full.isdisjoint(f"skrf.{public}" for public in reference())
        assert listed or any(map(pydoc.locate, full)), other
    assert parts["References"].strip()


def test_every_mechanism_begins_with_the_meaning_of_sigma():
    for name, cls in CLASSES.items():
        if issubclass(cls, skrf.features.BaseRandomFeatures):
            assert (
                sections(cls.__doc__)[""]
                .split("\n\n")[1]
                .startswith(
                    "Multiplies the inputs: a LARGER sigma is a NARROWER kernel (the inverse of a "
                )
            ), name


def test_fitted_attributes_are_documented():
    for name, cls in CLASSES.items():
        if not issubclass(cls, skrf.features.BaseRandomFeatures):
            continue
        fitted = cls(n_components=6, random_state=0).fit([[0.0, 1.0], [1.0, 0.5], [2.0, 0.1]])
        attributes = {key for key in vars(fitted) if key.endswith("_") and key[0] != "_"}
        missing = attributes - set(entries(sections(cls.__doc__)["Attributes"]))
        assert not missing, (name, missing)


# ------------------------------------------------------------------ the house


def private_names(path):
    """Yield (line, name) of private attributes that are read of other objects than self."""
    own = {"self", "cls", "draft"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in own):
                yield node.lineno, node.attr


def names_defined(part):
    """Return the names that the files of a part define, also as attributes of self."""
    found = set()
    for path in source_files():
        if part_of(path) == part:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    found.add(node.name)
                elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    found.add(node.attr)
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    found.add(node.id)
    return found


@pytest.mark.parametrize("part", [*CONSUMERS, "theory"])
def test_consumers_use_no_private_name_of_a_mechanism(part):
    """What a consumer reads of another object is public, or its own."""
    own = names_defined(part)
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in source_files()
        if part_of(path) == part
        for line, name in private_names(path)
        if name not in own
    ]
    assert wrong == []


@pytest.mark.parametrize("words", [r"logsumexp", r"np\.exp\([^()]* - [^()]*max\("])
def test_sums_on_a_log_scale_have_one_home(words):
    """No file that makes or uses features takes largest exponents out of sums, but `_sums.py`."""
    found = {
        path.name
        for path in source_files()
        if part_of(path) in ("features", "theory", *CONSUMERS)
        and re.search(words, path.read_text(encoding="utf-8"))
    }
    assert found == set()


def test_no_file_has_more_than_500_lines_of_code():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from code_lines import code_lines
    finally:
        sys.path.pop(0)
    sizes = {path.name: code_lines(path.read_text(encoding="utf-8")) for path in source_files()}
    assert {name: size for name, size in sizes.items() if size > 500} == {}


# ------------------------------------------------------------------ the repository


def test_no_file_names_a_machine():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    # A source distribution that is unpacked within a clone lies in a checkout that is not its own.
    if listed.returncode != 0 or not (ROOT / ".git").exists():
        pytest.skip("no git checkout: the files of the repository are not known")
    # In pieces, so that this file does not match itself.
    forbidden = re.compile("|".join(["/wor" + "k/", "/tmp/ve" + "nv", r"\.\./sha" + "red"]))
    found = []
    names = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    for name in names:
        if name == ".ci/run":
            continue
        text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
        found += [
            f"{name}:{i}: {line.strip()}"
            for i, line in enumerate(text.splitlines(), 1)
            if forbidden.search(line)
        ]
    assert "pyproject.toml" in names
    assert found == []
