"""The threads of a server on this machine, from /proc: which process listens on a port, what its threads have used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

_LISTENING = "0A"
_PROC = Path("/proc")


def find_server(url: str, proc: Path = _PROC) -> int | None:
    """The process that listens at a loopback ``url``; None for other machines, or when it may not be looked at."""
    parts = urlsplit(url)
    if not _is_loopback(parts.hostname or ""):
        return None
    inodes = set(_listeners(parts.port or 80, proc))
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for folder in proc.iterdir():
        if folder.name.isdigit() and _holds(folder, wanted):
            return int(folder.name)
    return None


def read_threads(pid: int, proc: Path = _PROC) -> dict[str, float]:
    """CPU seconds of each thread of a process by its name; a name that several have is counted up. Empty: it is
    gone or may not be looked at."""
    ticks = os.sysconf("SC_CLK_TCK")
    threads: dict[str, float] = {}
    with suppress(OSError):
        for task in sorted((proc / str(pid) / "task").iterdir(), key=lambda path: int(path.name)):
            with suppress(OSError, ValueError, IndexError):
                head, _, tail = (task / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
                fields = tail.split()
                name = head.partition("(")[2]
                seconds = (int(fields[11]) + int(fields[12])) / ticks
                threads[name] = threads.get(name, 0.0) + seconds
    return threads


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _listeners(port: int, proc: Path) -> Iterator[str]:
    """Inodes of sockets that listen on ``port``, on any address."""
    for table in ("net/tcp", "net/tcp6"):
        with suppress(OSError):
            for line in (proc / table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if (
                    len(fields) > 9
                    and fields[3] == _LISTENING
                    and int(fields[1].rpartition(":")[2], 16) == port
                ):
                    yield fields[9]


def _holds(folder: Path, wanted: set[str]) -> bool:
    with suppress(OSError):
        for descriptor in (folder / "fd").iterdir():
            with suppress(OSError):
                if os.readlink(descriptor) in wanted:
                    return True
    return False
