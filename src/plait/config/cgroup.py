"""What control groups (version 1 and 2) allow this process: CPUs, CPU time, memory.

Pure functions over text, and a reader that takes the root of the file system: tests give it a fixture tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

# Version 1 spells "no limit" as a number near 2**63 rounded to pages.
_NO_LIMIT_BYTES = 1 << 60


class Limit(msgspec.Struct, frozen=True):
    """One limit and the file that sets it."""

    value: float
    source: str


class CgroupLimits(msgspec.Struct, frozen=True):
    """The tightest limit of each kind over the group and all its parents; None: none is set."""

    cpu_quota: Limit | None = None
    """In CPUs: 1.5 is one and a half CPU's time."""
    memory_bytes: Limit | None = None
    cpus: frozenset[int] | None = None
    cpus_source: str = ""


class Mount(msgspec.Struct, frozen=True):
    """A mounted cgroup hierarchy. ``controllers`` is empty for version 2."""

    root: str
    point: str
    controllers: frozenset[str]
    is_v2: bool


def parse_cpu_list(text: str) -> frozenset[int]:
    """``"0-2,8"`` as {0, 1, 2, 8}. Raises ValueError for anything else."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def parse_cpu_max(text: str) -> float | None:
    """``"150000 100000"`` as 1.5 CPUs; ``"max 100000"`` as None."""
    quota, _, period = text.strip().partition(" ")
    return None if quota == "max" else int(quota) / int(period or 100_000)


def parse_cfs(quota: str, period: str) -> float | None:
    """Version 1's cpu.cfs_quota_us and cpu.cfs_period_us in CPUs; a negative quota is none."""
    return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None


def parse_memory_limit(text: str) -> int | None:
    """Bytes of memory.max, memory.high or memory.limit_in_bytes; None: no limit."""
    text = text.strip()
    return None if text == "max" or int(text) >= _NO_LIMIT_BYTES else int(text)


def parse_proc_cgroup(text: str) -> dict[str, str]:
    """Group path by controller from /proc/self/cgroup; the key of version 2 is ``""``."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            paths.update(dict.fromkeys(parts[1].split(","), parts[2]))
    return paths


def parse_mountinfo(text: str) -> list[Mount]:
    """The cgroup mounts of /proc/self/mountinfo."""
    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if separator and len(fields) >= 5 and len(tail) >= 3 and tail[0] in ("cgroup", "cgroup2"):
            is_v2 = tail[0] == "cgroup2"
            controllers = frozenset() if is_v2 else frozenset(tail[2].split(","))
            mounts.append(Mount(fields[3], fields[4], controllers, is_v2))
    return mounts


def group_folders(mount: Mount, path: str) -> Iterator[str]:
    """The folder of group ``path`` and of each parent, inside a mount; innermost first.

    In a container the mount often shows the group itself as its root; then the mount point is the group.
    """
    group, root = PurePosixPath(path), PurePosixPath(mount.root)
    inner = group.relative_to(root) if group.is_relative_to(root) else PurePosixPath()
    point = PurePosixPath(mount.point)
    folder = point / inner
    while True:
        yield str(folder)
        if folder == point:
            return
        folder = folder.parent


def read_limits(root: Path = Path("/")) -> CgroupLimits:
    """The limits of this process as the files below ``root`` tell. Unreadable files set no limit."""
    paths = parse_proc_cgroup(_read(root, "/proc/self/cgroup") or "")
    quotas: list[Limit] = []
    memory: list[Limit] = []
    cpus: frozenset[int] | None = None
    cpus_source = ""
    for mount in parse_mountinfo(_read(root, "/proc/self/mountinfo") or ""):
        for controller in [""] if mount.is_v2 else sorted(mount.controllers & {"cpu", "cpuset", "memory"}):
            if controller not in paths:
                continue
            for folder in group_folders(mount, paths[controller]):
                quotas += _quotas_of(root, folder)
                memory += _memory_limits_of(root, folder)
                found = _cpus_of(root, folder)
                if found is not None:
                    # The effective set of a parent always holds its children's; version 1's may be wider.
                    cpus = found[0] if cpus is None else cpus & found[0]
                    cpus_source = cpus_source or found[1]
    return CgroupLimits(
        cpu_quota=min(quotas, key=lambda limit: limit.value, default=None),
        memory_bytes=min(memory, key=lambda limit: limit.value, default=None),
        cpus=cpus,
        cpus_source=cpus_source,
    )


def _read(root: Path, name: str) -> str | None:
    try:
        return (root / name.lstrip("/")).read_text(encoding="ascii", errors="replace")
    except OSError:
        return None


def _quotas_of(root: Path, folder: str) -> list[Limit]:
    v2 = _read(root, f"{folder}/cpu.max")
    quota, period = _read(root, f"{folder}/cpu.cfs_quota_us"), _read(root, f"{folder}/cpu.cfs_period_us")
    try:
        if v2 is not None and (value := parse_cpu_max(v2)) is not None:
            return [Limit(value, f"{folder}/cpu.max")]
        if quota is not None and period is not None and (value := parse_cfs(quota, period)) is not None:
            return [Limit(value, f"{folder}/cpu.cfs_quota_us")]
    except (ValueError, ZeroDivisionError):
        return []
    return []


def _memory_limits_of(root: Path, folder: str) -> list[Limit]:
    limits = []
    for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
        text = _read(root, f"{folder}/{name}")
        try:
            value = None if text is None else parse_memory_limit(text)
        except ValueError:
            continue
        if value is not None:
            limits.append(Limit(value, f"{folder}/{name}"))
    return limits


def _cpus_of(root: Path, folder: str) -> tuple[frozenset[int], str] | None:
    for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
        text = _read(root, f"{folder}/{name}")
        try:
            cpus = None if text is None else parse_cpu_list(text)
        except ValueError:
            continue
        if cpus:
            return cpus, f"{folder}/{name}"
    return None
