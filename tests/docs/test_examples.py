"""What the README and the guide tell users to type: the Python runs, the commands exist with those flags."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from click import Command, Context, Group

from plait.cli.app import build_app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TIMEOUT_S = 120


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """(language, text) of each fenced block."""
    for match in re.finditer(
        r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        yield match[1], match[2]


def name_of(page: Path, text: str) -> str:
    return f"{page.relative_to(ROOT)}: {text.strip().splitlines()[0]}"


PYTHON = [
    pytest.param(text, id=name_of(page, text))
    for page in PAGES
    for language, text in blocks(page)
    if language == "python"
]


@pytest.mark.parametrize("text", PYTHON)
def test_python_examples_run(text: str, smollm2_path: Path, tmp_path: Path) -> None:
    if "await" in text or "async " in text:
        text = f"import asyncio\n\nasync def main():\n{textwrap.indent(text, '    ')}\nasyncio.run(main())\n"
    script = tmp_path / "example.py"
    # Without it, one that fails in a thread would look like one that ended well.
    script.write_text(text + '\nprint("the end of the example")\n', encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    *said, last = run.stdout.splitlines()
    assert last == "the end of the example"
    assert said, "an example shows something"


def commands(page: Path) -> Iterator[str]:
    """Each ``plait …`` of a fenced block or of a code span; a span that only names a flag or an endpoint is none."""
    text = page.read_text(encoding="utf-8")
    fenced = [line for language, block in blocks(page) if not language for line in block.splitlines()]
    without = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    spans = [span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", without)]
    for line in fenced + spans:
        match = re.search(r"(?:^|\| |/)plait ([a-z].*)", line)
        if match:
            yield match[1]


COMMANDS = [
    pytest.param(command, id=f"{page.relative_to(ROOT)}: plait {command}")
    for page in PAGES
    if page.name != "lab-log.md"  # history: its commands were right when they ran
    for command in dict.fromkeys(commands(page))
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist_with_their_flags(command: str) -> None:
    words = shlex.split(command, comments=True)
    words = ["model.gguf" if word == "…" else word.replace("…", "1") for word in words if word != "[URL]"]
    found: Command = typer.main.get_command(build_app(words[0]))
    context = Context(found, info_name="plait")
    while isinstance(found, Group) and words:
        name = words.pop(0)
        inner = found.get_command(context, name)
        assert inner is not None, f"plait has no {name!r}"
        found, context = inner, Context(inner, info_name=name, parent=context)
    if isinstance(found, Group):
        return
    found.make_context(found.name, words)


def test_there_is_something_to_check() -> None:
    assert len(PYTHON) >= 3
    assert len(COMMANDS) >= 20
