"""What packages, services and hooks are told agrees with the repository."""

import re
import tomllib
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


def test_one_version_and_all_that_distributions_hold():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [skrf.__version__]
    targets = PROJECT["tool"]["hatch"]["build"]["targets"]
    included = [name.removeprefix("/") for name in targets["sdist"]["include"]]
    # Type checkers look for these beside the code.
    included += ["skrf/py.typed", "skrf/__init__.pyi"]
    assert [name for name in included if not (ROOT / name).exists()] == []
    assert targets["wheel"] == {"packages": ["skrf"]}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"/\.stamp-(\w+)", makefile)) - {"venv", "lowest"}
    assert {"tests", "lint", "docs", "dist", "config"} <= named <= {*PROJECT["dependency-groups"]}


def test_files_that_are_named_exist():
    """In comments and prose too; pages are also named relative to docs, and some are built."""
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    built = tuple(line.strip("/") for line in ignored if "/" in line.strip("/"))
    texts = [ROOT / name for name in ("pyproject.toml", "Makefile", "README.md", "CONTRIBUTING.md")]
    for folder in ("skrf", "tests", "docs", "benchmarks", "examples", ".github"):
        for suffix in ("py", "rst", "yml"):
            texts += (ROOT / folder).glob(f"**/*.{suffix}")
    texts = [p for p in texts if not {"_build", "auto_examples", "generated"} & {*p.parts}]
    named = r"(?<![\w/.])((?:skrf|tests|docs|benchmarks|examples)/[\w/.-]*\.[a-z]{2,4})\b"
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in texts
        for name in re.findall(named, path.read_text(encoding="utf-8"))
        if not ((ROOT / name).exists() or (ROOT / "docs" / name).exists() or name.startswith(built))
    }
    assert missing == set()


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
