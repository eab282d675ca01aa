"""``import plait`` and ``plait --help`` answer at once: nothing heavy is imported."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = (
    "plait._native",
    "plait.config",
    "plait.engine",
    "plait.frontend",
    "plait.server",
    "plait.tokenizer",
    "pydantic",
    "starlette",
    "uvicorn",
    "jinja2",
    "tokenizers",
    "msgspec",
    "numpy",
    "yaml",
    "rich",
    "asyncio",
)


def run_and_list_modules(code: str) -> tuple[list[str], float]:
    """The modules that ``code`` imported and how many seconds it took, in a fresh interpreter."""
    program = (
        "import sys, time, json, os\n"
        "begin = time.perf_counter()\n"
        f"{code}\n"
        "seconds = time.perf_counter() - begin\n"
        "sys.stderr.write('\\n' + json.dumps([sorted(sys.modules), seconds]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    modules, seconds = json.loads(done.stderr.splitlines()[-1])
    return modules, seconds


def test_import_plait_is_light() -> None:
    modules, seconds = min((run_and_list_modules("import plait") for _ in range(3)), key=lambda run: run[1])
    assert [name for name in HEAVY if name in modules] == []
    assert seconds < 0.05


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_is_light(arguments: list[str]) -> None:
    code = f"from plait.cli import main\ntry:\n    main({arguments!r})\nexcept SystemExit:\n    pass"
    modules, seconds = run_and_list_modules(code)
    assert [name for name in HEAVY if name in modules] == []
    assert seconds < 5  # under 0.5 on an idle machine; this bound only catches an import storm


def test_public_names() -> None:
    import plait

    assert plait.__all__ == [
        "LLM",
        "AsyncLLM",
        "CompletionOutput",
        "PlaitError",
        "RequestOutput",
        "SamplingParams",
        "__version__",
    ]
    assert all(getattr(plait, name) is not None for name in plait.__all__)
    assert plait.SamplingParams(temperature=0).temperature == 0
    assert set(plait.__all__) <= set(dir(plait))
    with pytest.raises(AttributeError, match="no attribute 'LLN'"):
        plait.__getattr__("LLN")
