"""The program with streams that are closed, full or ASCII-only, and with Ctrl-C at any time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

PROGRAM = [sys.executable, "-c", "from plait.cli import main; main()"]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
COMMANDS = [["version"], ["--version"], ["--help"], ["pull"], ["doctor"], ["serve", "--help"]]
"""Each ends with 0 and writes to stdout, without a model."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "PLAIT_MODEL_DIR": str(tmp_path)}


def run(redirection: str, arguments: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Exit code and stderr of the program under a shell's redirection."""
    done = subprocess.run(
        ["bash", "-c", f'"$@" {redirection}', "bash", *PROGRAM, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_stdout_that_takes_nothing_is_one_line(arguments: list[str], environment: dict[str, str]) -> None:
    for redirection, reason in ((">&-", "it is closed"), (">/dev/full", "No space left on device")):
        code, err = run(redirection, arguments, environment)
        assert (code, err) == (1, f"plait: cannot write to standard output: {reason}\n")


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_reader_that_left_is_no_error_to_tell(arguments: list[str], environment: dict[str, str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*PROGRAM, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "<&-", "<&- 2>&-"])
def test_other_streams_do_not_matter(redirection: str, environment: dict[str, str]) -> None:
    assert run(redirection, ["doctor"], environment)[0] == 0
    assert run(redirection, ["inspect", "/nowhere.gguf"], environment)[0] == 1
    assert run(redirection, ["serve", "--port", "x"], environment)[0] == 2


def test_a_closed_stdout_s_number_is_given_to_no_file(environment: dict[str, str]) -> None:
    program = (
        "import os, sys; from plait.cli.streams import take_over_streams\n"
        "take_over_streams()\n"
        "file = os.open('/dev/null', os.O_RDONLY)\n"
        "print('number', file, file=sys.stderr)"
    )
    script = '"$@" <&- >&-'
    done = subprocess.run(
        ["bash", "-c", script, "bash", sys.executable, "-c", program],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert int(done.stderr.split()[1]) > 2


def print_under(environment: dict[str, str], statement: str) -> bytes:
    program = (
        f"import json; from plait.cli.streams import take_over_streams\ntake_over_streams()\n{statement}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, timeout=60, check=True
    )
    return done.stdout


@pytest.mark.parametrize("text", ["caf\u00e9", "\u65e5\u672c \U0001f642", "plain", "half \ud83d"])
def test_characters_that_a_terminal_lacks_are_escaped(text: str, environment: dict[str, str]) -> None:
    statement = f"print(json.dumps({text!a}, ensure_ascii=False))"
    shown = print_under({**environment, **ASCII}, statement)
    assert shown.isascii()
    assert json.loads(shown) == text
    assert json.loads(print_under(environment, statement)) == text


def test_stdin_of_an_ascii_machine_is_utf_8(environment: dict[str, str]) -> None:
    program = "import plait.cli.streams as s\ns.take_over_streams()\nprint(ascii(s.read_input()))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, **ASCII},
        input="caf\u00e9".encode(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == b"'caf\\xe9'\n"


def test_a_stdin_that_is_no_text_is_one_line(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [*PROGRAM, "generate", "-"],
        env=environment,
        input=b"a\xff",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == b"plait: standard input is no UTF-8 text: invalid start byte\n"


def interrupt_after(seconds: float, arguments: list[str], environment: dict[str, str]) -> Any:
    process = subprocess.Popen(
        [sys.executable, "-c", "from plait.cli import main; print(flush=True); main()", *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert (
        process.stdout.read(1) == b"\n"
    )  # Python's own start, and the moment until main() runs, are not ours
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.mark.parametrize("seconds", [0.05, 0.1, 0.15, 0.2, 0.3])
def test_ctrl_c_while_modules_load_is_silent(seconds: float, environment: dict[str, str]) -> None:
    """The command would read stdin, so that it never ends by itself."""
    assert interrupt_after(seconds, ["generate", "-"], environment) == (130, b"")


def test_an_ignored_interrupt_stays_ignored(environment: dict[str, str]) -> None:
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "import os, sys; sys.argv[1:] = ['version']\n"
        "from plait.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"plait 0.1.0\n")
