"""What the documentation is built from: versions, inventories, papers, and files that it shows."""

import importlib.util
import re
import tomllib
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
if not DOCS.is_dir():
    pytest.skip("The documentation is not here.", allow_module_level=True)


def module(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def pages():
    built = {"_build", "auto_examples", "generated"}
    paths = sorted(set(DOCS.glob("**/*.rst")) - {DOCS / "sg_execution_times.rst"})
    return [path for path in paths if not built & set(path.parts)]


def test_install_has_the_versions_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = module("requirements").table(project)
    assert rows[0][:2] == ("Python", project["requires-python"].replace(">=", "") + " or later")
    wanted = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    assert len(rows) == 1 + len(wanted)
    for (name, versions, _), requirement in zip(rows[1:], wanted, strict=True):
        assert requirement.startswith(name)
        assert re.findall(r"[\d.]+", versions) == re.findall(r"[<=]([\d.]+)", requirement)


def test_versions_with_an_upper_bound():
    assert module("requirements")._versions(">=2.2,<3") == "2.2 or later, below 3"


def test_inventories_say_what_the_lists_say(tmp_path):
    inventories = module("inventories")
    found = inventories.mapping(tmp_path)
    assert {"python", "numpy", "scipy", "sklearn"} <= set(found)
    for name, (address, path) in found.items():
        listed = (DOCS / "_intersphinx" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        assert listed[0] == f"# {address}" and address.endswith("/")
        head, _, body = Path(path).read_bytes().partition(b"using zlib.\n")
        assert head.startswith(b"# Sphinx inventory version 2\n# Project: ")
        lines = zlib.decompress(body).decode().splitlines()
        found_rows = [tuple(line.split(" ")) for line in lines]
        assert [f"{row[0]} {row[1]} {row[3]}" for row in found_rows] == listed[1:]
        assert {(row[2], row[4]) for row in found_rows} == {("1", "-")}
        assert all(row[3].endswith(f"#{row[0]}") for row in found_rows)


def test_every_key_that_a_page_cites_has_an_entry():
    entries = set(
        re.findall(r"^@\w+\{([^,]+),", (DOCS / "references.bib").read_text("utf-8"), re.M)
    )
    cited = set()
    for page in pages():
        for keys in re.findall(r":cite:[pt]:`([^`]+)`", page.read_text(encoding="utf-8")):
            cited |= set(keys.split(","))
    assert len(cited) >= 10 and cited <= entries


def sources_by_year():
    """Return {year: surnames, or titles of works without authors} of references.bib."""
    found = {}
    for entry in (DOCS / "references.bib").read_text(encoding="utf-8").split("\n@"):
        year = re.search(r"year = \{(\d+)\}", entry)
        if year:
            authors = re.search(r"author = \{(.+)\}", entry)
            title = re.search(r"title = \{(.+)\}", entry)[1]
            names = authors[1].split(" and ") if authors else [title]
            found.setdefault(year[1], set()).update(name.split(",")[0] for name in names)
    return found


def test_papers_of_docstrings_have_entries():
    """What stands before a year in parentheses, under References, names an author or the work."""
    known, missing, n_papers = sources_by_year(), [], 0
    for path in sorted((ROOT / "skrf").glob("**/*.py")):
        text = path.read_text(encoding="utf-8")
        for section in re.findall(r"^ +References\n +-+\n(.*?)(?:\n\n|\"\"\")", text, re.M | re.S):
            *parts, _ = re.split(r"\((\d{4})\)", section)
            for before, year in zip(parts[::2], parts[1::2], strict=True):
                n_papers += 1
                if not any(name in before for name in known.get(year, ())):
                    missing.append(f"{path.name}: {before.strip()} ({year})")
    assert missing == [] and n_papers >= 20


def test_pictures_that_pages_show_exist():
    missing = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"^\.\. (?:figure|image):: (\S+)$", text, re.MULTILINE):
            made_by = re.match(r"/auto_examples/images/sphx_glr_(\w+)_\d{3}\.png$", name)
            source = ROOT / "examples" / f"{made_by[1]}.py" if made_by else page.parent / name
            if not source.is_file():
                missing.append(f"{page.name}: {name}")
    assert missing == []


def test_every_page_says_what_it_is_for_before_its_first_section():
    silent = []
    for page in pages():
        if "include::" in page.read_text(encoding="utf-8")[:200] or "_templates" in page.parts:
            continue
        text = page.read_text(encoding="utf-8")
        first = re.sub(r"\A(?:\.\. [^\n]*\n\n)?[^\n]+\n=+\n", "", text).strip().split("\n\n")[0]
        if not re.match(r"[A-Z:`]", first):
            silent.append(f"{page.name}: {first[:40]}")
    assert silent == []
