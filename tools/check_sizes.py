"""Measures files and functions. Used by tests/arch; prints the largest when run by hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "native", "tests", "tools")

# In the Google style a function at namespace level begins and ends in column 0.
_NO_FUNCTION = re.compile(r"(namespace|class|struct|enum|union|extern|using|template|#|//|\})")


def source_files(root: Path = ROOT) -> Iterator[Path]:
    """Every source file of the project that people write."""
    for folder in FOLDERS:
        for suffix in ("*.py", "*.h", "*.cc"):
            yield from sorted(
                path for path in (root / folder).rglob(suffix) if "__pycache__" not in path.parts
            )


def python_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, lines, arguments) of every function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            count = len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs])
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1, count


def native_functions(text: str) -> Iterator[tuple[str, int]]:
    """(first line, lines) of every function at namespace level."""
    begin: int | None = None
    lines = text.splitlines()
    for idx, line in enumerate(lines):
        is_outer = bool(line) and not line[0].isspace()
        if begin is not None and is_outer and line.startswith("}"):
            yield lines[begin], idx - begin + 1
            begin = None
        elif is_outer and "(" in line and not _NO_FUNCTION.match(line):
            begin = idx
        if line.rstrip().endswith((";", "}")) and is_outer:
            begin = None  # a declaration, or a body on one line


def main() -> None:
    sizes = [(len(path.read_text(encoding="utf-8").splitlines()), path) for path in source_files()]
    for lines, path in sorted(sizes, reverse=True)[:20]:
        print(f"{lines:5} {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
