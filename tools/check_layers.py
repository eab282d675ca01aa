"""Checks who imports whom: Python (function-local and TYPE_CHECKING imports included) and native includes.

The tables are the rule; ARCHITECTURE.md tells the reasons. Prints each offence; exits with 1 if there is one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

LEVEL_0 = {"errors", "types", "validation", "output_file", "config"}
LEVEL_1 = {"messages", "metrics", "client", "tokenizer", "weights", "plan"}

# What each part of plait may import from plait; a part may always import itself.
PYTHON: dict[str, set[str]] = {
    "__init__": {"errors", "offline", "types"},
    "errors": set(),
    "types": set(),
    "validation": {"errors", "types"},
    "output_file": {"errors"},
    "config": {"errors", "types"},
    "messages": LEVEL_0,
    "metrics": LEVEL_0,
    "client": LEVEL_0 | {"messages"},
    "tokenizer": LEVEL_0 | {"_native"},
    "weights": LEVEL_0 | {"_native"},
    "plan": LEVEL_0 | {"_native"},
    "models": LEVEL_0 | {"plan", "weights"},
    "engine": LEVEL_0 | LEVEL_1 | {"models", "_native"},
    "frontend": LEVEL_0 | {"client", "tokenizer", "metrics"},
    "worker": LEVEL_0 | {"engine", "messages", "metrics", "_native"},
    "router": LEVEL_0 | {"client", "messages", "metrics", "_native"},
    "supervisor": {"config", "errors", "messages", "metrics"},
    "server": LEVEL_0 | {"client", "frontend", "tokenizer", "metrics"},
    "offline": LEVEL_0 | {"client", "frontend", "tokenizer", "metrics", "engine", "weights"},
}
# Parts that may import everything public, which `_native` is not.
TOP = {"bench", "cli"}

# Libraries that only some parts may know.
LIBRARIES: dict[str, set[str]] = {
    "starlette": {"server"},
    "fastapi": {"server"},
    "uvicorn": {"server"},
    "uvloop": {"server"},
    "httptools": {"server"},
    "prometheus_client": {"metrics", "server"},
    "jinja2": {"tokenizer"},
    "tokenizers": {"tokenizer"},
    "huggingface_hub": {"weights"},
    "yaml": {"config"},
    "pydantic": {"config"},
    "typer": {"cli", "bench"},
    "rich": {"cli", "bench"},
    "numpy": set(),
    "torch": set(),
    "transformers": set(),
    "pickle": set(),
}
# What each native folder may include: whole folders, or single headers; a folder may always include itself.
NATIVE: dict[str, set[str]] = {
    "base": set(),
    "cpu": {"base"},
    "sync": {"base", "cpu"},
    "trace": {"base", "cpu", "sync"},
    "parallel": {"base", "cpu", "sync", "trace"},
    "ipc": {"base", "cpu", "sync", "trace"},
    "fileio": {"base", "cpu", "sync", "trace"},
    "kv": {"base", "cpu", "sync", "trace"},
    "kernels": {"base", "cpu"},
    "plan": {"base", "cpu", "sync", "trace", "parallel", "kv", "kernels"},
    "bench": {"base", "cpu", "sync", "trace", "parallel", "kernels"},
    "scheduler": {"base", "kv", "plan/step.h", "kernels/sample/sample.h"},
    "runtime": {
        "base",
        "cpu",
        "sync",
        "trace",
        "parallel",
        "kv",
        "kernels",
        "plan",
        "ipc",
        "fileio",
        "scheduler",
    },
}
NATIVE["bindings"] = set(NATIVE)
# The scheduler is pure policy: it can be run with a fake clock and no threads.
SCHEDULER_FORBIDDEN = {"chrono", "thread", "mutex", "condition_variable", "time.h", "base/clock.h"}

_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def part_of(module: str) -> str:
    """``"plait.weights.gguf"`` belongs to ``"weights"``, ``"plait.__init__"`` to ``"__init__"``."""
    return module.split(".")[1]


def imports_of(source: str, module: str) -> Iterator[tuple[int, str]]:
    """(line, imported module) of every import in the text of ``module``, wherever it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                stem = module.split(".")[: -node.level]
                base = ".".join([*stem, base] if base else stem)
            if base == "plait":
                # `from plait import weights` names a part; `from plait import __version__` names a value.
                yield from ((node.lineno, f"plait.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, base
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def check_python_source(name: str, source: str, public_names: frozenset[str] = frozenset()) -> list[str]:
    """Offences of one module, e.g. ``check_python_source("plait.server.app", text)``."""
    part = part_of(name)
    if part not in PYTHON and part not in TOP:
        return [f"{name}: {part} is in no layer; give it one in tools/check_layers.py"]
    offences = []
    for line, module in imports_of(source, name):
        top, _, rest = module.partition(".")
        if top == "plait" and rest:
            target = rest.split(".")[0]
            allowed = PYTHON.get(part)
            is_free = target in public_names or target == part
            if not is_free and (target == "_native" if allowed is None else target not in allowed):
                offences.append(f"{name}:{line}: {part} must not import {target}")
        elif part not in LIBRARIES.get(top, {part}):
            offences.append(f"{name}:{line}: {part} must not import {top}")
    return offences


def check_python(root: Path = ROOT) -> list[str]:
    """Offences of all modules below src/plait."""
    source_root = root / "src"
    offences = []
    public_names = frozenset({"__version__", "LLM", "AsyncLLM", "SamplingParams"})
    for path in sorted(source_root.rglob("*.py")):
        name = ".".join(path.relative_to(source_root).with_suffix("").parts)
        offences += check_python_source(name, path.read_text(encoding="utf-8"), public_names)
    return offences


def check_native(root: Path = ROOT) -> list[str]:
    """Upward includes, includes of Python outside bindings, and include cycles."""
    native = root / "native"
    offences = []
    graph: dict[str, list[str]] = {}
    for path in sorted([*native.rglob("*.h"), *native.rglob("*.cc")]):
        name = path.relative_to(native).as_posix()
        folder = name.split("/")[0]
        if folder not in NATIVE:
            offences.append(f"native/{name}: {folder} is in no layer; give it one in tools/check_layers.py")
            continue
        graph[name] = []
        for quote, included in _INCLUDE.findall(path.read_text(encoding="utf-8")):
            target = included.split("/")[0]
            if folder == "scheduler" and included in SCHEDULER_FORBIDDEN and not name.endswith("_bench.cc"):
                offences.append(f"native/{name}: the scheduler must not include {included}")
            if quote == '"':
                graph[name].append(included)
                is_allowed = target == folder or not {target, included}.isdisjoint(NATIVE[folder])
                if "/" in included and not is_allowed:
                    offences.append(f"native/{name}: {folder} must not include {included}")
            elif (target == "nanobind" or included == "Python.h") and folder != "bindings":
                offences.append(f"native/{name}: only bindings may include {included}")
    return offences + [f"native: include cycle {' -> '.join(cycle)}" for cycle in find_cycles(graph)]


def find_cycles(graph: dict[str, list[str]]) -> list[list[str]]:
    """One cycle for each node that closes one, found depth first."""
    cycles = []
    done: set[str] = set()

    def visit(node: str, trail: list[str]) -> None:
        if node in trail:
            cycles.append([*trail[trail.index(node) :], node])
            return
        if node in done:
            return
        for target in graph.get(node, []):
            visit(target, [*trail, node])
        done.add(node)

    for node in graph:
        visit(node, [])
    return cycles


def main() -> int:
    offences = check_python() + check_native()
    for offence in offences:
        print(offence)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
