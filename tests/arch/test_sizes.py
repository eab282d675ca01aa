"""Files and functions stay small enough to be read."""

from __future__ import annotations

import re

from check_sizes import ROOT, native_functions, python_functions, source_files

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 100
MAX_ARGUMENTS = 8

# name -> why. Commands take their flags as arguments.
FILE_EXCEPTIONS: dict[str, str] = {}
FUNCTION_EXCEPTIONS: dict[str, str] = {}
ARGUMENT_EXCEPTIONS = {
    "generate": "one argument for each flag of the command",
    "bench_step": "one argument for each flag of the command",
    "bench_kernels": "one argument for each flag of the command",
    "bench_concurrency": "one argument for each flag of the command",
}


def test_files_are_small() -> None:
    sizes = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in source_files()
    }
    assert {n: s for n, s in sizes.items() if s >= MAX_FILE_LINES and n not in FILE_EXCEPTIONS} == {}


def test_functions_are_small() -> None:
    offences = []
    for path in source_files():
        text = path.read_text(encoding="utf-8")
        functions = (
            [(name, lines) for name, lines, _ in python_functions(text)]
            if path.suffix == ".py"
            else list(native_functions(text))
        )
        offences += [
            (str(path.relative_to(ROOT)), name, lines)
            for name, lines in functions
            if lines >= MAX_FUNCTION_LINES and name not in FUNCTION_EXCEPTIONS
        ]
    assert offences == []


def test_functions_take_few_arguments() -> None:
    offences = []
    for path in (ROOT / "src").rglob("*.py"):
        for name, _, count in python_functions(path.read_text(encoding="utf-8")):
            # self does not count.
            if count > MAX_ARGUMENTS + 1 and name not in ARGUMENT_EXCEPTIONS:
                offences.append((str(path.relative_to(ROOT)), name, count))
    assert offences == []


def test_measuring_sees_functions() -> None:
    text = (
        "namespace a {\nint f(int x) {\n  if (x) {\n  }\n  return x;\n}\nint g();\nint h() { return 1; }\n}\n"
    )
    assert list(native_functions(text)) == [("int f(int x) {", 5)]
    assert list(python_functions("class A:\n    def f(self, x):\n        return x\n")) == [("f", 2, 2)]


def test_no_open_ends() -> None:
    """Unfinished work is done or filed, not marked."""
    pattern = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in source_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []
