"""The examples of the gallery have the form that it shows; `make docs` runs them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("plot_*.py"))
CONF = ROOT / "docs" / "conf.py"


def test_examples_have_title_intro_picture_and_claims():
    assert len(EXAMPLES) >= 13
    for path in EXAMPLES:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        title, underline, blank, *intro = ast.get_docstring(tree).splitlines()
        assert underline == "=" * len(title) and not blank, path
        assert 2 <= len(intro) <= 4 and all(intro), path
        assert "\n# %%\n" in text and text.count("plt.show()") == 1, path
        # Claims stand at the end, after the picture, so that all of the page is made.
        assert isinstance(tree.body[-1], ast.Assert), path
        # Neither a path of a machine nor a download.
        assert not re.search(r"""["'](/|~|[A-Z]:\\)""", text), path
        assert not re.search(r"\b(fetch_\w+|load_uci|urlopen|requests)\b", text), path


@pytest.mark.skipif(not CONF.is_file(), reason="no docs/ in this copy")
def test_gallery_orders_every_example():
    tree = ast.parse(CONF.read_text(encoding="utf-8"))
    (listed,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "_gallery"
    )
    assert sorted(f"plot_{name}" for name in listed) == [path.stem for path in EXAMPLES]
