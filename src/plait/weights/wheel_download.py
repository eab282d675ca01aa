"""Downloads one wheel through pip, so that index, proxy and certificates are those that pip is set up with.

Knows: pip's command line and how it says what went wrong. Must not know: models.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from plait.errors import ModelFileError

POLL_S = 0.2
STALL_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 5.0

_NETWORK_SIGNS = (
    "NewConnectionError",
    "NameResolutionError",
    "Temporary failure in name resolution",
    "Name or service not known",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
    "SSLError",
    "Network is unreachable",
    "Connection refused",
    "Connection reset",
    "Max retries exceeded",
)

# A pip that outlives a killed plait would go on writing into the folder of the next pull: 1 is PR_SET_PDEATHSIG.
_PIP_TIED_TO_US = """
import ctypes, os, runpy, signal
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != {parent}: os._exit(1)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


def download_wheel(requirement: str, directory: Path, on_bytes: Callable[[int], None]) -> Path:
    """Downloads the wheel of ``requirement`` (``name==version``) into the empty ``directory``.

    Blocks until done; ``on_bytes`` is told now and then how many bytes are there. pip is stopped when this is
    left by an exception, when nothing arrives for ``STALL_TIMEOUT_S``, and by the kernel when this process dies.

    Raises:
        ModelFileError: pip is missing, failed or stalled; the message says why and what helps.
    """
    log_path = directory / "pip.log"
    scratch = directory / "tmp"
    scratch.mkdir()
    command = [sys.executable, "-c", _PIP_TIED_TO_US.format(parent=os.getpid())]
    command += ["download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--retries=2"]
    command += ["-d", str(directory), requirement]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
        )
        try:
            _wait(process, requirement, directory, on_bytes)
        finally:
            _stop(process)
    if process.returncode != 0:
        raise ModelFileError(explain_failure(requirement, log_path.read_text(errors="replace")))
    wheels = list(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelFileError(f"pip brought {len(wheels)} wheels for {requirement}, not one")
    return wheels[0]


def _wait(
    process: subprocess.Popen[bytes], requirement: str, directory: Path, on_bytes: Callable[[int], None]
) -> None:
    seen = most = 0
    changed_at = time.monotonic()
    while True:
        try:
            process.wait(POLL_S)
            return
        except subprocess.TimeoutExpired:
            pass
        size = _size_of_tree(directory)
        if size != seen:
            seen = size
            changed_at = time.monotonic()
            # Files that pip moves or writes anew are missed now and then; progress does not go back.
            most = max(most, size)
            on_bytes(most)
        elif time.monotonic() - changed_at > STALL_TIMEOUT_S:
            raise ModelFileError(
                f"downloading {requirement} stalled: nothing arrived for {STALL_TIMEOUT_S:.0f} s"
            )


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _size_of_tree(directory: Path) -> int:
    """Bytes of the files below; what pip removes meanwhile does not count."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total


def explain_failure(requirement: str, log: str) -> str:
    """One line for the person from what pip printed."""
    if "No module named pip" in log:
        return (
            f"cannot download {requirement}: pip is not installed for {sys.executable}; "
            f"run '{sys.executable} -m ensurepip'"
        )
    if "No space left on device" in log:
        return f"cannot download {requirement}: the disk is full"
    errors = [line.removeprefix("ERROR:").strip() for line in log.splitlines() if line.startswith("ERROR:")]
    if any(sign in log for sign in _NETWORK_SIGNS):
        return (
            f"cannot download {requirement}: the package index cannot be reached; "
            "check the network and pip's settings (pip config list)"
        )
    if "No matching distribution found" in log:
        return f"cannot download {requirement}: the package index that pip uses does not have it"
    lines = log.strip().splitlines()
    reason = errors[-1] if errors else lines[-1] if lines else "pip printed nothing"
    return f"cannot download {requirement}: {reason[:300]}"
