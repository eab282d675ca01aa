"""A signal that ends a command leaves nothing beside the files that were asked for, and ends it as it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.tiny_gguf import write_tiny_llama

# Many short sleeps: a signal that comes just before one begins is not handled until it ends.
HOLD = "def hold(*_, **__):\n    print('held', flush=True)\n    for _ in range(1200):\n        time.sleep(0.05)\n"
MAIN = "from plait.cli import main\nmain()\n"
HELD_START = f"import time\nfrom plait.engine import core\n{HOLD}core.EngineCore._warm_up = hold\n{MAIN}"
HELD_OUTPUT = f"import time\nfrom plait import output_file\n{HOLD}output_file.put_in_place = hold\n{MAIN}"
HELD_CLOSE = f"""
import time
from plait.engine import threads_driver
join = threads_driver.join_threads
{HOLD}
def hold_once(*arguments):
    threads_driver.join_threads = join
    hold()
threads_driver.join_threads = hold_once
{MAIN}"""
QUICK = (
    "--messages 3 --repeats 1 --rounds 1 --python-messages 1 --python-rounds 1 --intervals-ms 0.5 --json OUT"
)
CODES = {signal.SIGTERM: -signal.SIGTERM, signal.SIGHUP: -signal.SIGHUP, signal.SIGINT: 130}


@contextmanager
def held(program: str, command: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The process, when it does what is held."""
    model = write_tiny_llama(folder / "tiny.gguf", "Q8_0")
    names = {"MODEL": str(model), "OUT": str(folder / "out" / "result.json")}
    (folder / "out").mkdir()
    words = [names.get(word, word) for word in command.split()]
    environment = {**os.environ, "PLAIT_CACHE_DIR": str(folder / "cache")}
    with subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        deadline = threading.Timer(60, child.kill)
        deadline.start()
        try:
            assert child.stdout is not None
            lines = iter(child.stdout.readline, "")
            assert any(line == "held\n" for line in lines), child.communicate()
            yield child
        finally:
            deadline.cancel()
            child.kill()


def expect_clean(child: subprocess.Popen[str], number: signal.Signals, folder: Path) -> None:
    _, err = child.communicate(timeout=30)
    assert child.returncode == CODES[number], err
    assert "Traceback" not in err
    assert list((folder / "out").iterdir()) == []


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
@pytest.mark.parametrize(
    ("program", "command"),
    [
        pytest.param(HELD_START, "serve MODEL --port 0 --trace OUT", id="serve starts"),
        pytest.param(HELD_START, "generate MODEL Hi --trace OUT", id="generate starts"),
        pytest.param(HELD_OUTPUT, f"bench queues {QUICK}", id="a result is put in place"),
        pytest.param(HELD_CLOSE, "generate MODEL Hi --max-tokens 1 --trace OUT", id="an engine ends"),
    ],
)
def test_a_command_that_is_ended_leaves_no_part_of_its_output(
    program: str, command: str, number: signal.Signals, tmp_path: Path
) -> None:
    with held(program, command, tmp_path) as child:
        assert [path.suffix for path in (tmp_path / "out").iterdir()] == [".part"]
        child.send_signal(number)
        expect_clean(child, number, tmp_path)


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    program = f"import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n{HELD_START}"
    with held(program, "generate MODEL Hi --trace OUT", tmp_path) as child:
        child.send_signal(signal.SIGHUP)
        child.send_signal(signal.SIGTERM)
        expect_clean(child, signal.SIGTERM, tmp_path)
