"""Inventories of other projects for intersphinx, from lists that the repository keeps.

A build may have no network, so that their own objects.inv cannot be fetched. A list in
`_intersphinx` begins with the address of the documentation, and has a name, a role and a page
with an anchor in every other line: the names that our pages link to.
"""

import zlib
from pathlib import Path

LISTS = Path(__file__).with_name("_intersphinx")


def mapping(folder):
    """Write an inventory for every list into `folder`; return the mapping for intersphinx."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for path in sorted(LISTS.glob("*.txt")):
        address, rows = read(path)
        inventory = folder / f"{path.stem}.inv"
        inventory.write_bytes(compiled(path.stem, rows))
        found[path.stem] = (address, str(inventory))
    return found


def read(path):
    """Return the address of a list and its rows (name, role, page)."""
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    return first.removeprefix("# "), [tuple(line.split(" ")) for line in lines]


def compiled(project, rows):
    """Return an inventory in the second version of Sphinx's format."""
    header = (
        f"# Sphinx inventory version 2\n# Project: {project}\n# Version:\n"
        "# The remainder of this file is compressed using zlib.\n"
    )
    body = "".join(f"{name} {role} 1 {page} -\n" for name, role, page in rows)
    return header.encode() + zlib.compress(body.encode())
