"""What packages, services and hooks are told agrees with the repository."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import skrf

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SERVICES = [
    *sorted((ROOT / ".github").glob("**/*.yml")),
    *(ROOT / name for name in (".readthedocs.yaml", ".pre-commit-config.yaml")),
]

# Source distributions hold nothing for services.
needs_services = pytest.mark.skipif(not SERVICES[-1].is_file(), reason="no clone of the repository")


def test_one_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [skrf.__version__]


def test_what_the_source_distribution_names_exists():
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert [name for name in included if not (ROOT / name.removeprefix("/")).exists()] == []


def test_files_that_are_named_exist():
    """In comments and prose too; pages are also named relative to docs, and some are built."""
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    built = [line.strip("/") for line in ignored if "/" in line.strip("/")]
    texts = [
        path
        for folder in ("skrf", "tests", "docs", "benchmarks", "examples", ".github")
        for path in (ROOT / folder).glob("**/*")
        if path.suffix in (".py", ".rst", ".yml")
        and not {"_build", "auto_examples", "generated"} & set(path.parts)
    ]
    texts += [
        ROOT / name for name in ("pyproject.toml", "Makefile", "README.md", "CONTRIBUTING.md")
    ]
    named = re.compile(
        r"(?<![\w/.])((?:skrf|tests|docs|benchmarks|examples)/[\w/.-]*\.[a-z]{2,4})\b"
    )
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in texts
        for name in named.findall(path.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
        and not (ROOT / "docs" / name).exists()
        and not any(name.startswith(folder) for folder in built)
    }
    assert found == set()


def test_type_checkers_find_the_hints_in_what_is_installed():
    """Both files lie in the folder that the wheel holds, and git keeps them: so does hatchling."""
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["skrf"]}
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    for name in ("py.typed", "__init__.pyi"):
        assert (ROOT / "skrf" / name).is_file()
        assert not any(fnmatch(name, pattern) for pattern in ignored)


def test_groups_that_make_installs_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"/\.stamp-(\w+)", makefile)) - {"venv", "lowest"}
    assert {"tests", "lint", "docs", "dist", "config"} <= named
    assert named <= set(PROJECT["dependency-groups"])


@needs_services
def test_services_call_targets_that_exist_and_say_that_they_never_ran():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    called = set()
    for path in SERVICES:
        text = path.read_text(encoding="utf-8")
        assert text.startswith("# Never run so far") or path.name == "zizmor.yml", path.name
        called |= set(re.findall(r"(?:- run:|entry:|^ +-) make ([\w-]+)", text, re.MULTILINE))
    assert {"test", "test-lowest", "test-sdist", "test-wheel", "lint", "docs"} <= called <= targets


@needs_services
def test_workflows_run_what_is_supported():
    """The classifiers are those Pythons that the tests have seen: the workflow may know more."""
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    run = [set(re.findall(r"3\.\d+", row)) for row in re.findall(r"python: \[(.+)\]", text)]
    prefix = "Programming Language :: Python :: 3."
    classifiers = PROJECT["project"]["classifiers"]
    stated = {f"3.{name.removeprefix(prefix)}" for name in classifiers if name.startswith(prefix)}
    assert len(stated) >= 3 and len(run) == 2 and all(stated <= versions for versions in run)
