"""The house rules: who imports whom, what `import skrf` loads, what is public and documented."""

import ast
import dataclasses
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
from fnmatch import fnmatch
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from numpydoc.validate import validate

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
# These import nothing of the package but names of types, and any part may use them.
SMALL = ("exceptions", "_estimator", "_progress", "_typing", "_warnings")
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
# What uses features sees feature maps, the way to get them, and those that it takes by default.
CONSUMERS = ("regression", "attention", "graphical", "operators", "sampling")
CONTRACT = set(
    """
    AdaptiveRF BatchSummary ClusterNystroem ClusterQuantizer DenseExponentialRF FeatureMap
    OptimalPositiveRF RFFSampler SmoothClipScaler as_feature_map by_first check_columns columns_of
    difference fit_to fit_at_sigma fit_to_statistics frozen_kernel in_range lacks_rows last_step
    mapped maps_sides_alike needs_double passes_of_fit prepared record_of restored row_codes
    scope_of sigma_of spread_rows suits_ratios
    """.split()
)

# Third-party modules that a file may import anywhere; and where others may be imported.
EVERYWHERE = {"numpy", "scipy", "sklearn", "joblib", "array_api_compat"}
OPTIONAL = ("dask", "torch")  # parts that bear the name of what they need
SOMEWHERE = {
    "numba": ("_kernels/cpu.py",),
    "llvmlite": ("_kernels/cpu.py",),
    "pandas": ("datasets/uci.py", "_tables.py"),
    "matplotlib": ("plotting.py",),
    "threadpoolctl": ("_threads.py",),
    "torch": ("torch/*.py",),
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


def part_of(path):
    """Return the part a file belongs to: a folder or a module right below the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def violations(path):
    part = part_of(path)
    for line, other, names in imported_parts(path):
        where = f"{path.relative_to(PACKAGE)}:{line}: {part} imports {other}"
        if other in (part, "_typing") or (other in SMALL and part not in SMALL):
            continue
        if part in SMALL:
            yield f"{where}: a part that stands alone"
        elif other not in LEVEL:
            yield f"{where}, which is in no layer"
        elif LEVEL[other] >= LEVEL[part]:
            yield f"{where}, which is not below it"
        elif part in CONSUMERS and other == "features" and not set(names) <= CONTRACT:
            yield f"{where}: {sorted(set(names) - CONTRACT)} is not its contract"


# ------------------------------------------------------------------ imports


def test_imports_run_downwards():
    parts = {part_of(path) for path in source_files()} - {"__init__"}
    assert {"_arrays", "features", "regression", "datasets"} <= parts <= {*LEVEL, *SMALL}
    # The first loads names when they are used, and imports nothing of the package itself.
    assert not list(imported_parts(PACKAGE / "__init__.py"))
    paths = [path for path in source_files() if part_of(path) != "__init__"]
    assert [violation for path in paths for violation in violations(path)] == []


@pytest.mark.parametrize(
    ("where", "statement", "words"),
    [
        ("projections/base.py", "def f():\n    from ..statistics import Moments", "not below"),
        ("features/base.py", "from skrf import KernelRegressor", "not below"),
        ("regression.py", "from .features import SimplexRF", "contract"),
        ("features/base.py", "from ..datasets import load_uci", "not below"),
        ("exceptions.py", "from ._validation import naming", "alone"),
    ],
)
def test_a_wrong_import_is_found(where, statement, words, tmp_path, monkeypatch):
    file = tmp_path / where
    file.parent.mkdir(exist_ok=True)
    file.write_text(statement, encoding="utf-8")
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    (violation,) = violations(file)
    assert words in violation


def test_third_party_modules_are_declared():
    anywhere = EVERYWHERE | set(sys.stdlib_module_names) | {"skrf"}
    wrong = []
    for path in source_files():
        name = path.relative_to(PACKAGE).as_posix()
        for line, module, _ in imports(path):
            top = module.split(".")[0]
            patterns = SOMEWHERE.get(top, ())
            if top not in anywhere and not any(fnmatch(name, pattern) for pattern in patterns):
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


def test_importing_loads_nothing_else_and_plain_use_compiles_nothing():
    loaded = loaded_by("import skrf; dir(skrf); skrf.__version__")
    assert loaded - set(sys.stdlib_module_names) == {"skrf"}
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
    """Return the modules of the package whose packages are installed."""
    names = [info.name for info in pkgutil.walk_packages(skrf.__path__, "skrf.")]
    names = [name for name in names if "._" not in name]
    return [name for name in names if name.split(".")[1] not in OPTIONAL or find_spec(name[5:])]


def test_every_public_name_can_be_imported():
    assert list(skrf.__all__) == sorted(set(skrf.__all__))
    assert {*skrf.__all__, "__version__"} == set(dir(skrf))
    namespace = {}
    exec("from skrf import *", namespace)
    assert set(skrf.__all__) <= set(namespace)
    with pytest.raises(AttributeError, match="no attribute 'RFFSamples'"):
        skrf.RFFSamples  # noqa: B018


def test_every_public_part_is_listed():
    folders = {name.split(".")[1] for name in public_modules() if name.count(".") == 1}
    # Statistics are what feature maps learn, reached through their attribute `statistics_`. Torch
    # and Dask are no requirements: their modules are imported by name.
    assert folders - {"statistics", *OPTIONAL} <= set(skrf.__all__)
    # Feature maps and estimators are at the top; parts keep their smaller things to themselves.
    for part in ("features", "regression"):
        module = import_module(f"skrf.{part}")
        for name, value in vars(module).items():
            is_here = hasattr(value, "fit") and value.__module__.startswith(f"skrf.{part}")
            if inspect.isclass(value) and is_here and not inspect.isabstract(value):
                assert name in skrf.__all__, name
    for module in map(import_module, public_modules()):
        assert module.__doc__
        for public in getattr(module, "__all__", []):
            assert hasattr(module, public) and not public.startswith("_")


# ------------------------------------------------------------------ circles


def modules_imported(path):
    """Return the files of the package that a file imports when it is loaded."""
    files = set()
    package = ["skrf", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        module = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
        folder = PACKAGE.joinpath(*filter(None, module[1:]))
        # A name that is a module, or the module that a name is of; a folder's names are not
        # followed, because all of its files are loaded with it.
        candidates = [folder, *(folder / alias.name for alias in node.names)]
        files |= {file.with_suffix(".py") for file in candidates if file != PACKAGE}
    return {file for file in files if file.is_file()}


def test_no_files_import_each_other_in_a_circle():
    waiting = {path: modules_imported(path) for path in source_files()}
    while waiting:
        done = [path for path, needed in waiting.items() if needed.isdisjoint(waiting)]
        assert done, sorted(str(path.relative_to(PACKAGE)) for path in waiting)
        for path in done:
            del waiting[path]


# ------------------------------------------------------------------ documentation

# No docstring, summary, examples; parameters that are missing, unknown or in another order.
CHECKS = {"GL08", "SS01", "PR01", "PR02", "PR03", "PR10"}
# What those read who extend the library; there a sentence may be enough.
OF_AUTHORS = "features.", "projections.", "regression.", "statistics."


REFERENCE = "\n".join(
    page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "api").glob("*.rst"))
)


@pytest.mark.parametrize("name", re.findall(r"^   ([A-Za-z_.]+)$", REFERENCE, re.M))
def test_the_reference_is_documented(name):
    if (optional := name.partition(".")[0]) in OPTIONAL:
        pytest.importorskip(optional)
    home, _, public = f"skrf.{name}".rpartition(".")
    value = getattr(import_module(home), public)
    names = [f"skrf.{name}"]
    checks = {"GL08", "SS01"} if name.startswith(OF_AUTHORS) else CHECKS
    if inspect.isclass(value) and checks is CHECKS:
        # Results have their example where they are returned.
        assert ">>> " in value.__doc__ or dataclasses.is_dataclass(value) or list in value.__mro__
        for method, member in vars(value).items():
            if not method.startswith("_") and inspect.isfunction(member):
                names.append(f"skrf.{name}.{method}")
    for full in names:
        errors = [error for error in validate(full)["errors"] if error[0] in checks]
        assert not errors, full
