"""Core and memory budgets from fixture trees of /proc, /sys and control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.config import MemoryLedger, PlaitConfig, format_bytes, load_config, read_machine, resolve
from plait.config.cgroup import (
    group_folders,
    parse_cfs,
    parse_cpu_list,
    parse_cpu_max,
    parse_memory_limit,
    parse_mountinfo,
    parse_proc_cgroup,
    read_limits,
)
from plait.config.machine import order_cpus, parse_cpu_model, parse_meminfo
from plait.errors import ConfigError

V2_MOUNT = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V2_CONTAINER = "30 24 0:26 /kube/pod1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
V1_MOUNTS = (
    "31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "32 24 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "33 24 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
)
MEMINFO = "MemTotal:       16000000 kB\nMemFree:  1000 kB\nMemAvailable:    8000000 kB\nHugePages_Total: 3\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def smt_topology(pairs: list[tuple[int, int]]) -> dict[str, str]:
    return {
        f"/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list": f"{pair[0]},{pair[1]}\n"
        for pair in pairs
        for cpu in pair
    }


@pytest.mark.parametrize(
    ("text", "cpus"), [("0\n", {0}), ("0-3\n", {0, 1, 2, 3}), ("0-1,8,10-11", {0, 1, 8, 10, 11}), ("", set())]
)
def test_parse_cpu_list(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


def test_parse_limits() -> None:
    assert parse_cpu_max("max 100000\n") is None
    assert parse_cpu_max("150000 100000\n") == 1.5
    assert parse_cpu_max("50000") == 0.5
    assert parse_cfs("-1\n", "100000\n") is None
    assert parse_cfs("200000\n", "100000\n") == 2
    assert parse_memory_limit("max\n") is None
    assert parse_memory_limit("9223372036854771712\n") is None
    assert parse_memory_limit("1048576\n") == 1 << 20


def test_parse_proc_files() -> None:
    assert parse_proc_cgroup("4:memory:/a\n3:cpu,cpuacct:/b:c\n0::/d\nrubbish\n") == {
        "memory": "/a",
        "cpu": "/b:c",
        "cpuacct": "/b:c",
        "": "/d",
    }
    mounts = parse_mountinfo(V2_MOUNT + V1_MOUNTS + "22 1 8:1 / / rw - ext4 /dev/sda rw\nshort line\n")
    assert [(mount.point, mount.is_v2) for mount in mounts] == [
        ("/sys/fs/cgroup", True),
        ("/sys/fs/cgroup/cpu,cpuacct", False),
        ("/sys/fs/cgroup/memory", False),
        ("/sys/fs/cgroup/cpuset", False),
    ]
    assert "cpuacct" in mounts[1].controllers
    assert parse_meminfo(MEMINFO)["MemAvailable"] == 8_000_000 * 1024
    assert parse_meminfo(MEMINFO)["HugePages_Total"] == 3
    assert parse_cpu_model("processor : 0\nmodel name\t: A CPU\nmodel name : B\n") == "A CPU"
    assert parse_cpu_model("") == "unknown"


def test_group_folders_go_up_to_the_mount() -> None:
    mount = parse_mountinfo(V2_MOUNT)[0]
    assert list(group_folders(mount, "/a/b")) == ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"]
    container = parse_mountinfo(V2_CONTAINER)[0]
    assert list(group_folders(container, "/kube/pod1/x")) == ["/sys/fs/cgroup/x", "/sys/fs/cgroup"]
    assert list(group_folders(container, "/elsewhere")) == ["/sys/fs/cgroup"]


def test_v2_takes_the_least_over_all_parents(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "/proc/self/cgroup": "0::/slice/app\n",
            "/proc/self/mountinfo": V2_MOUNT,
            "/sys/fs/cgroup/slice/app/cpu.max": "max 100000\n",
            "/sys/fs/cgroup/slice/cpu.max": "250000 100000\n",
            "/sys/fs/cgroup/slice/app/memory.max": "4294967296\n",
            "/sys/fs/cgroup/slice/memory.max": "1073741824\n",
            "/sys/fs/cgroup/slice/app/cpuset.cpus.effective": "0-3\n",
            "/sys/fs/cgroup/cpuset.cpus.effective": "0-7\n",
        },
    )
    limits = read_limits(root)
    assert limits.cpu_quota is not None
    assert (limits.cpu_quota.value, limits.cpu_quota.source) == (2.5, "/sys/fs/cgroup/slice/cpu.max")
    assert limits.memory_bytes is not None
    assert limits.memory_bytes.value == 1 << 30
    assert limits.cpus == {0, 1, 2, 3}


def test_v1_limits(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "/proc/self/cgroup": "4:memory:/m/x\n3:cpu,cpuacct:/c\n2:cpuset:/s\n0::/\n",
            "/proc/self/mountinfo": V1_MOUNTS,
            "/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us": "300000\n",
            "/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us": "100000\n",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "/sys/fs/cgroup/memory/m/x/memory.limit_in_bytes": "9223372036854771712\n",
            "/sys/fs/cgroup/memory/m/memory.limit_in_bytes": "2147483648\n",
            "/sys/fs/cgroup/cpuset/s/cpuset.effective_cpus": "2-3\n",
            "/sys/fs/cgroup/cpuset/cpuset.cpus": "0-7\n",
        },
    )
    limits = read_limits(root)
    assert limits.cpu_quota is not None
    assert limits.cpu_quota.value == 3
    assert limits.memory_bytes is not None
    assert limits.memory_bytes.value == 2 << 30
    assert limits.cpus == {2, 3}


def test_damaged_files_set_no_limit(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "/proc/self/cgroup": "0::/a\n",
            "/proc/self/mountinfo": V2_MOUNT,
            "/sys/fs/cgroup/a/cpu.max": "lots\n",
            "/sys/fs/cgroup/a/memory.max": "\n",
            "/sys/fs/cgroup/a/cpuset.cpus.effective": "x-y\n",
            "/sys/fs/cgroup/cpu.max": "1 0\n",
        },
    )
    limits = read_limits(root)
    assert (limits.cpu_quota, limits.memory_bytes, limits.cpus) == (None, None, None)
    assert read_limits(tmp_path / "nothing").cpus is None


def test_physical_cores_come_first(tmp_path: Path) -> None:
    order, num_cores = order_cpus({0, 1, 2, 3}, {cpu: frozenset({cpu % 2, cpu % 2 + 2}) for cpu in range(4)})
    assert (order, num_cores) == ((0, 1, 2, 3), 2)
    root = tree(tmp_path, {**smt_topology([(0, 1), (2, 3)]), "/proc/meminfo": MEMINFO})
    machine = read_machine(root, affinity=range(4))
    assert machine.cpus == (0, 2, 1, 3)
    assert machine.num_usable_cores == 2
    assert "SMT" in machine.cpu_reason


@pytest.mark.parametrize(
    ("quota", "num_usable"), [("400000", 4), ("250000", 2), ("100000", 1), ("50000", 1), ("1600000", 8)]
)
def test_quota_limits_the_team(tmp_path: Path, quota: str, num_usable: int) -> None:
    root = tree(
        tmp_path,
        {
            "/proc/self/cgroup": "0::/\n",
            "/proc/self/mountinfo": V2_MOUNT,
            "/sys/fs/cgroup/cpu.max": f"{quota} 100000\n",
            "/proc/meminfo": MEMINFO,
        },
    )
    machine = read_machine(root, affinity=range(8))
    assert machine.num_usable_cores == num_usable
    assert ("cpu.max" in machine.cpu_reason) == (num_usable < 8)


def test_affinity_and_cpuset_are_cut(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "/proc/self/cgroup": "0::/\n",
            "/proc/self/mountinfo": V2_MOUNT,
            "/sys/fs/cgroup/cpuset.cpus.effective": "2-5\n",
            "/sys/fs/cgroup/memory.high": "1000000\n",
            "/proc/meminfo": MEMINFO,
        },
    )
    machine = read_machine(root, affinity=range(4))
    assert machine.cpus == (2, 3)
    assert "cpuset.cpus.effective" in machine.cpu_reason
    assert machine.memory_bytes == 1_000_000
    assert "memory.high" in machine.memory_reason


def test_this_machine_can_be_read() -> None:
    machine = read_machine()
    assert machine.num_usable_cores >= 1
    assert machine.memory_bytes > 1 << 20


def test_resolve_fills_in_threads_and_says_why(tmp_path: Path) -> None:
    machine = read_machine(tree(tmp_path, {"/proc/meminfo": MEMINFO}), affinity=range(4))
    resolved = resolve(PlaitConfig(), machine)
    assert resolved.config.engine.num_compute_threads == 4
    assert resolved.cpus == (0, 1, 2, 3)
    assert resolved.choices[0].reason == "4 CPUs by the affinity mask"
    assert all(choice.reason for choice in resolved.choices)


def test_resolve_keeps_and_warns(tmp_path: Path) -> None:
    machine = read_machine(tree(tmp_path, {"/proc/meminfo": MEMINFO}), affinity=range(2))
    resolved = resolve(load_config(overrides={"num_compute_threads": 9}), machine)
    assert resolved.config.engine.num_compute_threads == 9
    assert any(choice.name == "warning" for choice in resolved.choices)


def test_resolve_refuses_several_processes(tmp_path: Path) -> None:
    machine = read_machine(tree(tmp_path, {"/proc/meminfo": MEMINFO}), affinity=range(2))
    with pytest.raises(ConfigError, match="process_count is 4, but this version runs one engine process"):
        resolve(load_config(overrides={"process_count": 4}), machine)
    assert resolve(load_config(overrides={"process_count": 1}), machine).config.concurrency.process_count == 1


def test_ledger_refuses_with_the_sum() -> None:
    ledger = MemoryLedger(budget_bytes=100 << 20, reserve_bytes=10 << 20)
    ledger.enter("weights", 60 << 20)
    assert ledger.remaining_bytes == 30 << 20
    with pytest.raises(ConfigError) as caught:
        ledger.enter("kv_cache", 31 << 20)
    message = str(caught.value)
    assert "weights 60.0 MiB + kv_cache 31.0 MiB + reserve 10.0 MiB" in message
    assert "1.0 MiB more than 100.0 MiB" in message


def test_format_bytes() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1536, 5 << 30, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
        "3.0 TiB",
    ]
