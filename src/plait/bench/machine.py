"""The machine block of a result: what the numbers were measured on, and when."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from plait import __version__
from plait.config import read_machine

UNKNOWN_CACHE_BYTES = 64 << 20
"""Taken for the last-level caches when the system does not tell."""


def describe_machine(*, isa: str, num_compute_threads: int) -> dict[str, object]:
    """Plain JSON values; ``isa`` and ``num_compute_threads`` are those that the engine really used."""
    machine = read_machine()
    return {
        "cpu": machine.cpu_model,
        "num_cores": machine.num_cores,
        "num_cpus": len(machine.cpus),
        "num_usable_cores": machine.num_usable_cores,
        "isa": isa,
        "num_compute_threads": num_compute_threads,
        "versions": {
            "plait": __version__,
            "python": platform.python_version(),
            "kernel": platform.release(),
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def load_average() -> float:
    """Runnable threads on the whole machine over the last minute: other people's work spoils a measurement."""
    return os.getloadavg()[0]


def last_level_cache_bytes(root: Path = Path("/"), *, cpus: Iterable[int]) -> int:
    """All last-level caches of ``cpus`` together; each is counted once, however many CPUs share it."""
    sizes: dict[str, int] = {}
    for cpu in cpus:
        caches = []
        for folder in (root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"):
            try:
                level = int((folder / "level").read_text(encoding="ascii"))
                size = _cache_bytes((folder / "size").read_text(encoding="ascii").strip())
                shared = (folder / "shared_cpu_list").read_text(encoding="ascii").strip()
            except (OSError, ValueError):
                continue
            caches.append((level, size, shared))
        if caches:
            _, size, shared = max(caches)
            sizes[shared] = size
    return sum(sizes.values()) or UNKNOWN_CACHE_BYTES


def _cache_bytes(text: str) -> int:
    """ "32768K" or "32M"."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)
