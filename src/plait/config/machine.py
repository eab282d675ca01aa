"""What this process may use of the machine: which CPUs, how many at once, how much memory, and why."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from plait.config.cgroup import CgroupLimits, parse_cpu_list, read_limits


class Machine(msgspec.Struct, frozen=True):
    """A budget, not a description of the hardware: limits are already applied."""

    cpus: tuple[int, ...]
    """CPUs that may be used: one per physical core first, then their SMT siblings."""
    num_cores: int
    """Physical cores among them."""
    cpu_quota: float | None
    """CPU time per second, in CPUs; None: no quota."""
    memory_bytes: int
    cpu_model: str
    cpu_reason: str
    memory_reason: str

    @property
    def num_usable_cores(self) -> int:
        """How many compute threads make sense: physical cores, at most the quota, at least one."""
        limit = self.num_cores if self.cpu_quota is None else min(self.num_cores, int(self.cpu_quota))
        return max(1, limit)

    def cpus_to_pin(self, num_threads: int) -> tuple[int, ...]:
        """A CPU for each thread; none when there are more threads than CPUs: the kernel places them better then than
        a fixed plan would."""
        return self.cpus[:num_threads] if num_threads <= len(self.cpus) else ()


def read_machine(root: Path = Path("/"), affinity: Iterable[int] | None = None) -> Machine:
    """The budget of this process.

    Args:
        root: where /proc and /sys are; tests give a fixture tree.
        affinity: the CPUs that the scheduler may use; None asks the kernel.
    """
    allowed = frozenset(os.sched_getaffinity(0) if affinity is None else affinity)
    limits = read_limits(root)
    cpus, cpu_reason = _allowed_cpus(allowed, limits)
    siblings = {cpu: _siblings_of(root, cpu) for cpu in cpus}
    order, num_cores = order_cpus(cpus, siblings)
    reasons = [cpu_reason]
    if num_cores < len(cpus):
        reasons.append(f"{num_cores} physical cores with SMT siblings")
    quota = limits.cpu_quota
    if quota is not None and quota.value < num_cores:
        reasons.append(f"limited to {quota.value:g} CPUs by {quota.source}")
    memory_bytes, memory_reason = _memory_budget(_read(root / "proc/meminfo"), limits)
    return Machine(
        cpus=order,
        num_cores=num_cores,
        cpu_quota=None if quota is None else quota.value,
        memory_bytes=memory_bytes,
        cpu_model=parse_cpu_model(_read(root / "proc/cpuinfo")),
        cpu_reason=", ".join(reasons),
        memory_reason=memory_reason,
    )


def order_cpus(cpus: Iterable[int], siblings: Mapping[int, frozenset[int]]) -> tuple[tuple[int, ...], int]:
    """CPUs with one of each physical core first, then the rest; and the number of physical cores."""
    firsts: list[int] = []
    rest: list[int] = []
    seen: set[int] = set()
    for cpu in sorted(cpus):
        (rest if cpu in seen else firsts).append(cpu)
        seen |= siblings.get(cpu, frozenset()) | {cpu}
    return (*firsts, *rest), len(firsts)


def parse_meminfo(text: str) -> dict[str, int]:
    """Bytes by name from /proc/meminfo."""
    values = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields and fields[0].isdigit():
            values[name] = int(fields[0]) * (1024 if fields[-1] == "kB" else 1)
    return values


def parse_cpu_model(text: str) -> str:
    """The first model name of /proc/cpuinfo, or "unknown"."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "CPU part"):
            return value.strip()
    return "unknown"


def _allowed_cpus(affinity: frozenset[int], limits: CgroupLimits) -> tuple[frozenset[int], str]:
    """The CPUs and the tightest of what limits them."""
    cpuset = limits.cpus
    # The kernel keeps affinity inside the cpuset; an empty cut means that one of the two is stale.
    if cpuset is None or not (affinity & cpuset) or affinity <= cpuset:
        return affinity, f"{len(affinity)} CPUs by the affinity mask"
    cpus = affinity & cpuset
    return cpus, f"{len(cpus)} CPUs by {limits.cpus_source}"


def _memory_budget(meminfo: str, limits: CgroupLimits) -> tuple[int, str]:
    values = parse_meminfo(meminfo)
    available = values.get("MemAvailable", values.get("MemTotal", 0))
    limit = limits.memory_bytes
    if limit is not None and (not available or limit.value < available):
        return int(limit.value), f"limited by {limit.source}"
    return available, "MemAvailable of /proc/meminfo"


def _siblings_of(root: Path, cpu: int) -> frozenset[int]:
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):
        try:
            return parse_cpu_list((topology / name).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
    return frozenset({cpu})


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
