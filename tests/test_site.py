"""What the documentation is built from: versions, inventories, papers, and files that it shows."""

import importlib
import importlib.util
import re
import tomllib
import zlib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
if not DOCS.is_dir():
    pytest.skip("The documentation is not here.", allow_module_level=True)


def module(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages():
    built = {"_build", "auto_examples", "generated"}
    paths = sorted(set(DOCS.glob("**/*.rst")) - {DOCS / "sg_execution_times.rst"})
    return [path for path in paths if not built & set(path.parts)]


def test_numbers_below_one_have_a_zero_before_the_point():
    readers = [*pages(), *DOCS.glob("**/_*.txt"), *ROOT.glob("*.md"), *ROOT.glob("skrf/**/*.py")]
    readers += [*ROOT.glob("examples/*.py"), *ROOT.glob("examples/*.rst")]
    bare = re.compile(r"(?<![\w.)\]:/])\.\d")  # :.3f, as in formats, is no number
    found = []
    for path in readers:
        lines = path.read_text(encoding="utf-8").splitlines()
        found += [f"{path.name}:{n}" for n, line in enumerate(lines, 1) if bare.search(line)]
    assert len(readers) > 100 and found == []


def test_install_has_the_versions_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = module("requirements").table(project)
    assert rows[0][:2] == ("Python", project["requires-python"].replace(">=", "") + " or later")
    wanted = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    assert len(rows) == 1 + len(wanted)
    for (name, versions, _), requirement in zip(rows[1:], wanted, strict=True):
        assert requirement.startswith(name)
        assert re.findall(r"[\d.]+", versions) == re.findall(r"[<=]([\d.]+)", requirement)
    assert module("requirements")._versions(">=2.2,<3") == "2.2 or later, below 3"


def test_inventories_say_what_the_lists_say(tmp_path):
    inventories = module("inventories")
    objects = inventories.mapping(tmp_path)
    assert {"python", "numpy", "scipy", "sklearn"} <= set(objects)
    for name, (address, path) in objects.items():
        listed = (DOCS / "_intersphinx" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        assert listed[0] == f"# {address}" and address.endswith("/")
        head, _, body = Path(path).read_bytes().partition(b"using zlib.\n")
        assert head.startswith(b"# Sphinx inventory version 2\n# Project: ")
        lines = zlib.decompress(body).decode().splitlines()
        found_rows = [tuple(line.split(" ")) for line in lines]
        assert [f"{row[0]} {row[1]} {row[3]}" for row in found_rows] == listed[1:]
        assert {(row[2], row[4]) for row in found_rows} == {("1", "-")}
        assert all(row[3].endswith(f"#{row[0]}") for row in found_rows)


def test_every_key_that_a_page_cites_has_an_entry_and_no_other():
    entries = set(
        re.findall(r"^@\w+\{([^,]+),", (DOCS / "references.bib").read_text("utf-8"), re.M)
    )
    cited = set()
    for page in pages():
        for keys in re.findall(r":cite:[pt]:`([^`]+)`", page.read_text(encoding="utf-8")):
            cited |= set(keys.split(","))
    assert cited == entries


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


def test_commands_that_pages_name_exist():
    """Scripts by their path, and options and names of parts that stand in them."""
    shared = (ROOT / "benchmarks" / "reproduce" / "_common.py").read_text("utf-8")
    missing, n_commands = [], 0
    for page in pages():
        text = re.sub(r"\s+", " ", page.read_text("utf-8"))
        for path, options in re.findall(r"python ((?:benchmarks|examples)/\S+\.py)([^`:]*)", text):
            n_commands += 1
            script = ROOT / path
            source = script.read_text("utf-8") + shared if script.is_file() else ""
            flags = re.findall(r" (--[a-z][\w-]*)", options)
            parts = re.findall(r" --(?:part|parts|only) ([a-z_]+)", options)
            are_known = [f'"{flag}"' in source for flag in flags]
            are_known += [re.search(rf"\b{part}\b", source) is not None for part in parts]
            if not source or not all(are_known):
                missing.append(f"{page.name}: {path} {options}")
    assert n_commands > 50 and missing == []


@pytest.fixture
def front(monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("front")


def test_front_pages_have_the_figures_of_the_benchmarks(front):
    stale = [path.name for path, text in front.files().items() if path.read_text("utf-8") != text]
    assert stale == [], "run python benchmarks/front.py"
    index = (DOCS / "index.rst").read_text(encoding="utf-8")
    assert re.findall(r"include:: benchmarks/_front_(\w+)", index) == list(front.DOORS)


def test_front_pages_have_no_other_figures(front):
    """Outside the tables, code and what the command writes, prose gives no results."""
    index = (DOCS / "index.rst").read_text(encoding="utf-8")
    readme = front.README.read_text(encoding="utf-8")
    for of_door in front.DOORS.values():
        readme = readme.replace(front.markdown(*of_door()), "")
    readme = re.sub(r"```.*?```", "", readme, flags=re.DOTALL)
    assert len(readme.split()) > 200
    allowed = {"2", "3"}  # of sqrt(2 gamma), and of the licence
    options = re.compile(r"^ *(?:\.\. grid::|:).*$", re.MULTILINE)
    assert set(re.findall(r"\d+(?:\.\d+)?", readme + options.sub("", index))) <= allowed


def test_front_pages_are_short(front):
    text = front.README.read_text(encoding="utf-8")
    assert text.count("\n") <= 120
    assert (DOCS / "index.rst").read_text(encoding="utf-8").count("\n") <= 120
    prose = re.sub(r"```.*?```|^\|.*?$|\]\([^)]*\)", "", text, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) <= 560


def test_what_the_first_page_shows_has_won(front):
    """What is called better on the first page is better, by two standard errors."""
    votes, cars, maps = (
        front.door(name).set_index(["model", "map"][name == "maps"])
        for name in ("votes", "cars", "maps")
    )
    ahead = votes.drop(index=["KernelMachineClassifier", front.LINEAR])
    assert (ahead["gap"] > 2 * ahead["gap_se"]).all()
    behind = cars.drop(index="KernelMachineRegressor")
    assert (behind["gap"] < -2 * behind["gap_se"]).all()
    assert maps["logistic loss"].idxmin() == "ClusterNystroem" == maps["logistic accuracy"].idxmax()
    assert maps["regression loss"].idxmin() == "ClusterQuantizer"
    transport = front.door("transport").set_index("features")
    broke = transport["broke in round"].notna()
    assert set(transport.index[broke]) == {"RBFSampler", "Nystroem", "RFFSampler"}
    assert not broke[["OptimalPositiveRF", "AdaptiveRF", "ClusterQuantizer"]].any()


def test_signed_features_break_sums_and_positive_ones_do_not(monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    doors = importlib.import_module("doors")
    X, Y = np.random.default_rng(0).uniform(size=(2, 200, 3))
    broken = {}
    for name, features in doors.transport_maps(256, 0).items():
        features.fit(np.vstack([X, Y]))
        keys = getattr(features, "transform_keys", features.transform)(Y)
        broken[name] = doors.sinkhorn(features.transform(X), keys.T)[1]
    assert broken["RBFSampler"] and broken["RFFSampler"]
    assert not any(broken[name] for name in ("OptimalPositiveRF", "AdaptiveRF", "ClusterQuantizer"))


# Most words of prose and tables; measured detail belongs to the pages of benchmarks.
LENGTHS = {
    **dict.fromkeys(("attention", "graphical", "hmm", "torch"), 900),
    **dict.fromkeys(("fitted", "masks"), 1200),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_guide_pages_are_short_and_open_with_a_block_and_its_picture(name):
    text = (DOCS / "guide" / f"{name}.rst").read_text(encoding="utf-8")
    opening = text[: re.search(r"\n.+\n-+\n", text).start()]
    first = [opening.find(f"\n.. {what}::") for what in ("code-block", "figure")]
    assert 0 < first[0] < first[1]
    unread = r"(?:code-block::|check|math::|literalinclude::|_).*\n(?:\n| .*\n)*"
    prose = re.sub(rf"^\.\. {unread}", "", text, flags=re.MULTILINE)
    prose = re.sub(r"::\n\n(?: .*\n|\n)+", "\n", prose)  # a block of code after a colon
    prose = re.sub(r"^(?:\.\. .*::|--+$|==+$| *:[\w-]+:.*$)", "", prose, flags=re.MULTILINE)
    assert len(prose.split()) <= LENGTHS[name]


# What people come for, and the words by which the page that answers is known.
QUESTIONS = {
    "classify a table": ("KernelMachineClassifier",),
    "error bars": ("return_std=True",),
    "features in a pipeline": ("optimalpositiverf__sigma",),
    "attention on arrays": ("ApproxKernelAttention(",),
    "how large is the error": ("kernel_variance", "n_components_for"),
}


def test_readme_links_to_pages_by_their_titles():
    """GitHub renders their prose; what it leaves out, `make docs` builds."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"(?<!!)\[([^]]+)\]\((docs/[\w/]+\.rst)\)", readme)
    pages = [(ROOT / path).read_text("utf-8") for _, path in links]
    titles = [re.search(r"^(.+)\n=+$", page, re.MULTILINE)[1].lower() for page in pages]
    assert len(links) >= 7 and [text.lower() for text, _ in links] == titles


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_first_page_links_to_answers(question):
    index = (DOCS / "index.rst").read_text(encoding="utf-8")
    cards = re.findall(r"grid-item-card:: (.*)\n +:link: (\S+)", index)
    pages = {title.lower().rstrip("?"): link for title, link in cards}
    text = (DOCS / f"{pages[question]}.rst").read_text(encoding="utf-8")
    assert all(word in text for word in QUESTIONS[question])
