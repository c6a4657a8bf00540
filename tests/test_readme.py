"""README and documentation: their code runs, and they name everything that there is."""

import re
import sys
import textwrap
import types
from pathlib import Path

import pytest

import skrf
from skrf.projections import COUPLINGS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
GUIDE = ROOT / "docs" / "guide"

# The wheel is tested with the README alone.
needs_docs = pytest.mark.skipif(not GUIDE.is_dir(), reason="no docs/ in this copy")

_MARKDOWN = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
# A comment after a block, which the built page leaves out, may hold its assertions.
_REST = re.compile(
    r"^(?P<margin> *)\.\. code-block:: python\n\n(?P<code>(?:(?:(?P=margin) {3}.*)?\n)+)"
    r"(?:(?P=margin)\.\. check\n\n(?P<check>(?:(?:(?P=margin) {3}.*)?\n)+))?",
    re.MULTILINE,
)


def python_blocks(path):
    """Return pytest parameters (path, line number, code) for the Python blocks of a file."""
    text = path.read_text(encoding="utf-8")
    blocks = (_MARKDOWN if path.suffix == ".md" else _REST).finditer(text)
    for match in blocks:
        line = text.count("\n", 0, match.start("code")) + 1
        parts = match.groupdict()
        code = textwrap.dedent(parts["code"]) + textwrap.dedent(parts.get("check") or "")
        yield pytest.param(path, line, code, id=f"{path.relative_to(ROOT).as_posix()}:{line}")


PAGES = [README, *sorted((ROOT / "docs").glob("**/*.rst"))]
BLOCKS = [block for page in PAGES if "generated" not in page.parts for block in python_blocks(page)]
PUBLIC_CLASSES = sorted(set(skrf.__all__) - set(skrf._SUBMODULES))


@pytest.mark.parametrize(("path", "line", "code"), BLOCKS)
def test_block_runs_on_its_own(path, line, code, tmp_path, monkeypatch):
    """Every block can be copied alone, and states in an assertion what it promises."""
    assert re.search(r"^ *assert ", code, re.MULTILINE), "a block without an assertion"
    signs = {"pandas": "|as_frame=True", "PIL": "|load_sample_image"}
    for name in ("dask", "hmmlearn", "pandas", "performer_pytorch", "PIL", "statsmodels", "torch"):
        sign = rf"^(import|from) {name}" + signs.get(name, "")
        if re.search(sign, code, re.MULTILINE):
            pytest.importorskip(name, reason=f"{name} is not installed")
    monkeypatch.chdir(tmp_path)
    # Lines are counted from the top of the page, so that a traceback names the place. As in a
    # script, the namespace is that of a module: dataclasses look for it by name.
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    exec(compile("\n" * (line - 1) + code, str(path), "exec"), vars(module))
    if path == README:  # what a comment says of an assertion is what the block gives
        claims = re.findall(r"^assert ([^<>]+) [<>].*#.*?(\d\.\d+)", code, re.MULTILINE)
        assert len(claims) == len(re.findall("^assert .*#", code, re.MULTILINE))
        for asserted, said in claims:
            unit = 10.0 ** -len(said.partition(".")[2])
            assert eval(asserted, vars(module)) == pytest.approx(float(said), abs=unit), asserted


@needs_docs
def test_documentation_names_all_that_is_public():
    text = "\n".join(page.read_text(encoding="utf-8") for page in GUIDE.glob("*.rst"))
    mechanisms = [name for name in PUBLIC_CLASSES if skrf._HOME[name] == "features"]
    missing = [name for name in mechanisms if not re.search(rf"\b{name}\b", text)]
    missing += [name for name in COUPLINGS if f'"{name}"' not in text]
    reference = (ROOT / "docs" / "api").glob("*.rst")
    listed = "\n".join(page.read_text(encoding="utf-8") for page in reference).split()
    names = {name: {name, f"{skrf._HOME[name]}.{name}"} for name in PUBLIC_CLASSES}
    missing += [name for name, allowed in names.items() if not allowed & set(listed)]
    # `make recipes` alone runs these, which need Ray and Spark.
    shown = re.findall(r"^\.\. literalinclude:: \.\./recipes/(\S+)$", text, re.MULTILINE)
    missing += {path.name for path in (ROOT / "docs" / "recipes").glob("*.py")} ^ set(shown)
    assert missing == []


def test_files_and_targets_that_the_readme_names_exist():
    text = README.read_text(encoding="utf-8")
    named = set(re.findall(r"\]\(([^):]+)\)", text))
    named |= set(re.findall(r"\b(?:docs|examples)/[\w/]+\.\w+", text))
    assert "LICENSE" in named
    if not (ROOT / "docs").is_dir():
        named = {name for name in named if not name.startswith("docs/")}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    # As code in backticks, or at the start of a line of a shell block.
    targets = set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE))
    assert {"demo", "test"} <= targets <= set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
