"""Count the lines of code of the package: no comments, docstrings or blank lines.

python benchmarks/code_lines.py            # every file, the largest last, and the total
python benchmarks/code_lines.py path/to/another/skrf
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source):
    """Return the number of lines of a module that hold code."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node
        ):
            text = node.body[0]
            lines -= set(range(text.lineno, text.end_lineno + 1))
    return len(lines)


def main(folder):
    """Print the count of every file below a folder, and their sum."""
    counts = {
        str(path.relative_to(folder)): code_lines(path.read_text(encoding="utf-8"))
        for path in folder.rglob("*.py")
    }
    for name, count in sorted(counts.items(), key=lambda item: item[1]):
        print(f"{count:6d}  {name}")
    print(f"{sum(counts.values()):6d}  in all")


if __name__ == "__main__":
    default = Path(__file__).resolve().parent.parent / "skrf"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
