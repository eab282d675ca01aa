"""The layers of the project, and that the checker sees what it must."""

from __future__ import annotations

from pathlib import Path

import pytest
from check_layers import ROOT, check_native, check_python, check_python_source, find_cycles


def test_python_layers_hold() -> None:
    assert check_python() == []


def test_native_layers_hold() -> None:
    assert check_native() == []


@pytest.mark.parametrize(
    ("module", "source", "message"),
    [
        ("plait.engine.core", "import plait.server", "engine must not import server"),
        ("plait.engine.core", "from plait import frontend", "engine must not import frontend"),
        (
            "plait.engine.core",
            "def f():\n    from plait.server.app import x",
            "engine must not import server",
        ),
        ("plait.engine.core", "def f():\n    from ..server import app", "engine must not import server"),
        (
            "plait.client",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from plait.engine import EngineCore",
            "client must not import engine",
        ),
        (
            "plait.server.app",
            "import importlib\nimportlib.import_module('plait.engine')",
            "server must not import engine",
        ),
        ("plait.server.app", "from plait import _native", "server must not import _native"),
        ("plait.cli.doctor", "from plait import _native", "cli must not import _native"),
        ("plait.frontend.choice", "import starlette.responses", "frontend must not import starlette"),
        ("plait.weights.gguf", "import numpy as np", "weights must not import numpy"),
        ("plait.helpers", "", "helpers is in no layer"),
    ],
)
def test_offence_is_seen(module: str, source: str, message: str) -> None:
    offences = check_python_source(module, source)
    assert len(offences) == 1
    assert message in offences[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("plait.engine.core", "from plait.client import EngineClient\nfrom plait import _native"),
        ("plait.engine.core", "from plait.engine.steps import build\nimport threading"),
        ("plait.server.app", "from starlette.routing import Route\nfrom plait.frontend import Frontend"),
        ("plait.cli.serve", "def f():\n    from plait.server import run_server"),
    ],
)
def test_allowed_import_is_no_offence(module: str, source: str) -> None:
    assert check_python_source(module, source) == []


def test_native_offences_are_seen(tmp_path: Path) -> None:
    files = {
        "base/a.h": '#include "cpu/b.h"\n',
        "cpu/b.h": '#include "base/a.h"\n',
        "scheduler/s.cc": '#include <chrono>\n#include "plan/step.h"\n#include "plan/runner.h"\n',
        "kernels/k/k.cc": '#include "parallel/team.h"\n#include <nanobind/nanobind.h>\n',
    }
    for name, text in files.items():
        path = tmp_path / "native" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    offences = "\n".join(check_native(tmp_path))
    assert "base must not include cpu/b.h" in offences
    assert "include cycle base/a.h -> cpu/b.h -> base/a.h" in offences
    assert "kernels must not include parallel/team.h" in offences
    assert "scheduler must not include plan/runner.h" in offences
    assert "plan/step.h" not in offences
    assert "the scheduler must not include chrono" in offences
    assert "only bindings may include nanobind/nanobind.h" in offences


def test_find_cycles() -> None:
    assert find_cycles({"a": ["b"], "b": ["c"], "c": ["b"]}) == [["b", "c", "b"]]
    assert find_cycles({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def test_every_part_has_a_line_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    parts = {path.stem for path in (ROOT / "src/plait").iterdir() if path.suffix == ".py" or path.is_dir()}
    missing = [part for part in sorted(parts - {"__init__", "__pycache__", "_native"}) if part not in text]
    assert missing == []
