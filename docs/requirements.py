"""The table of supported versions on the page Install, read from pyproject.toml.

`conf.py` writes it when the documentation is built.
"""

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def table(project):
    """Return rows (what, versions, how to install it) for the table `project` of a pyproject."""
    rows = [("Python", _versions(project["requires-python"]), "")]
    rows += [(*_parts(requirement), "") for requirement in project["dependencies"]]
    for extra, requirements in project["optional-dependencies"].items():
        command = f"``pip install '.[{extra}]'``"
        rows += [(*_parts(requirement), command) for requirement in requirements]
    return rows


def _parts(requirement):
    name, bound = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?(.*)", requirement).groups()
    return name, _versions(bound)


def _versions(bound):
    """Return the words for bounds such as ">=1.2" or ">=1.2,<3"."""
    words = {">=": "{} or later", "<": "below {}"}
    parts = (re.fullmatch(r"(>=|<)([\d.]+)", part.strip()).groups() for part in bound.split(","))
    return ", ".join(words[sign].format(version) for sign, version in parts)


def as_rst():
    """Return the table as reStructuredText."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    lines = [".. list-table::", "   :header-rows: 1", "   :class: wide", ""]
    for row in [("package", "version", "only with"), *table(project)]:
        lines += [f"   * - {row[0]}", *(f"     - {cell}".rstrip() for cell in row[1:])]
    return "\n".join(lines) + "\n"
