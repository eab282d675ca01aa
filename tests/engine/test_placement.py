"""Which CPUs the engine's threads may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plait.config import EngineConfig
from plait.engine import start_engine

pytestmark = pytest.mark.model


def cpus_of_threads() -> dict[str, set[int]]:
    """By the name that a thread shows."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        name = (task / "comm").read_text(encoding="ascii").strip()
        found[name] = os.sched_getaffinity(int(task.name))
    return found


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
@pytest.mark.parametrize("mode", ["threads", "native"])
def test_threads_that_a_step_wakes_keep_off_the_first_compute_cpu(smollm2_path: Path, mode: str) -> None:
    allowed = os.sched_getaffinity(0)
    settings = {"engine_mode": mode, "num_compute_threads": 2, "max_batch_size": 2, "max_model_len": 256}
    client = start_engine(smollm2_path, EngineConfig.model_validate(settings))
    try:
        cpus = cpus_of_threads()
    finally:
        client.close()
    assert len(cpus["plait-compute"]) == len(cpus["plait-team-1"]) == 1
    assert cpus["plait-compute"].isdisjoint(cpus["plait-team-1"])
    for name in ("plait-main", "plait-io"):
        assert cpus[name] == allowed - cpus["plait-compute"]
    # The thread that started it all is left alone.
    assert os.sched_getaffinity(0) == allowed
