"""The machine block of a result: what the numbers were measured on, and when."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime

from plait import __version__
from plait.config import read_machine


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
