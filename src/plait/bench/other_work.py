"""What others do on our CPUs while we measure: it spoils figures, and a result must say so."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path

MAX_OTHER_CPUS = 0.1
"""Figures that were taken while others kept more busy are not to be trusted."""


def warning_of(other_cpus: float) -> str:
    """What to print below figures that were taken beside other work; "" where they are to be trusted."""
    if other_cpus <= MAX_OTHER_CPUS:
        return ""
    return f"NOT TO BE TRUSTED: other work kept up to {other_cpus:.1f} CPUs busy during a run"


class OtherWork:
    """Measures what others do on our CPUs, the hypervisor's stolen time included, while we measure."""

    def __init__(self) -> None:
        self._begin = self._now()

    def num_cpus(self) -> float:
        """CPUs that others kept busy on average since the beginning; processes of ours must have ended."""
        seconds, busy, own = (b - a for a, b in zip(self._begin, self._now(), strict=True))
        return max(busy - own, 0.0) / max(seconds, 1e-9)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds: the clock, of all work on our CPUs, of our own and our ended processes' work."""
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        stat = Path("/proc/stat").read_text(encoding="ascii")
        ticks = busy_ticks(stat, os.sched_getaffinity(0))
        return time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), own


def busy_ticks(stat: str, cpus: Iterable[int]) -> int:
    """Ticks that ``cpus`` were not idle, from the text of /proc/stat."""
    names = {f"cpu{cpu}" for cpu in cpus}
    total = 0
    for line in stat.splitlines():
        name, *fields = line.split()
        if name in names:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
            total += user + nice + system + irq + softirq + steal
    return total
