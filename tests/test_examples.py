"""The examples of the gallery have the form that it shows; `make docs` runs them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("plot_*.py"))
CONF = ROOT / "docs" / "conf.py"


def test_examples_are_found():
    assert len(EXAMPLES) >= 13


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_has_title_intro_picture_and_claims(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    title, underline, blank, *intro = ast.get_docstring(tree).splitlines()
    assert underline == "=" * len(title) and not blank
    assert 2 <= len(intro) <= 4 and all(intro)
    assert "\n# %%\n" in text
    assert text.count("plt.show()") == 1
    # Claims stand at the end, after the picture, so that all of the page is made.
    assert isinstance(tree.body[-1], ast.Assert)
    # Seconds are printed and drawn; they are no claims.
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            assert "seconds" not in ast.unparse(node)
    assert not re.search(r"""["'](/|~|[A-Z]:\\)""", text), "a path of a machine"
    assert not re.search(r"\b(fetch_\w+|load_uci|urlopen|requests)\b", text), "a download"


@pytest.mark.skipif(not CONF.is_file(), reason="no docs/ in this copy")
def test_gallery_orders_every_example():
    tree = ast.parse(CONF.read_text(encoding="utf-8"))
    (listed,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "_gallery"
    )
    assert sorted(f"plot_{name}" for name in listed) == [path.stem for path in EXAMPLES]
