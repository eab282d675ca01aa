"""The threads that pass messages: which CPUs they use, and that they sleep when there is nothing to do."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from plait import _native
from plait.config import EngineConfig
from plait.engine import start_engine
from plait.types import FinishReason, GenerateRequest, SamplingParams
from tests.fakes.fake_engine import Collector

pytestmark = pytest.mark.model


def ids_of_threads() -> dict[str, int]:
    """By the name that a thread shows."""
    tasks = Path("/proc/self/task").iterdir()
    return {(task / "comm").read_text(encoding="ascii").strip(): int(task.name) for task in tasks}


def may_be_realtime() -> bool:
    """Whether this process may have such threads. Asked in a thread of its own, which keeps the policy."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: _native.RealtimeMessenger().is_realtime).result()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
@pytest.mark.parametrize("mode", ["threads", "native"])
def test_threads_that_a_step_wakes_keep_off_the_first_compute_cpu(smollm2_path: Path, mode: str) -> None:
    allowed = os.sched_getaffinity(0)
    settings = {"engine_mode": mode, "num_compute_threads": 2, "max_batch_size": 2, "max_model_len": 256}
    client = start_engine(smollm2_path, EngineConfig.model_validate(settings))
    try:
        cpus = {name: os.sched_getaffinity(thread) for name, thread in ids_of_threads().items()}
    finally:
        client.close()
    assert len(cpus["plait-compute"]) == len(cpus["plait-team-1"]) == 1
    assert cpus["plait-compute"].isdisjoint(cpus["plait-team-1"])
    for name in ("plait-main", "plait-io"):
        assert cpus[name] == allowed - cpus["plait-compute"]
    # The thread that started it all is left alone.
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.parametrize("mode", ["threads", "native"])
def test_only_main_runs_before_compute_threads(smollm2_path: Path, mode: str) -> None:
    settings = {"engine_mode": mode, "num_compute_threads": 2, "max_batch_size": 2, "max_model_len": 256}
    client = start_engine(smollm2_path, EngineConfig.model_validate(settings))
    try:
        policies = {
            name: os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK
            for name, thread in ids_of_threads().items()
        }
    finally:
        client.close()
    assert policies["plait-main"] == (os.SCHED_RR if may_be_realtime() else os.SCHED_OTHER)
    for name in ("plait-io", "plait-compute", "plait-team-1"):
        assert policies[name] == os.SCHED_OTHER
    assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER


def cpu_seconds_of(name: str) -> float:
    """Of the thread that shows this name."""
    stat = Path(f"/proc/self/task/{ids_of_threads()[name]}/stat").read_text(encoding="ascii")
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("mode", ["threads", "native"])
def test_main_sleeps_while_planned_steps_of_an_aborted_prompt_run(smollm2_path: Path, mode: str) -> None:
    settings = {"engine_mode": mode, "max_batch_size": 4, "max_model_len": 2048, "enable_prefix_cache": False}
    client = start_engine(smollm2_path, EngineConfig.model_validate(settings))
    try:
        before, begin = cpu_seconds_of("plait-main"), time.monotonic()
        for first in (100, 200):
            aborted, late, next_one = Collector(), Collector(), Collector()
            prompt = tuple(range(first, first + 1800))
            sampling = SamplingParams(temperature=0.0, max_tokens=1)
            request_id = client.submit(GenerateRequest(prompt, sampling), aborted)
            client.submit(GenerateRequest(prompt[::-1], sampling, deadline_s=0.05), late)
            time.sleep(0.1)
            client.abort(request_id)
            client.submit(GenerateRequest((1, 2, 3), sampling), next_one)
            assert aborted.wait().reasons == late.wait().reasons == [FinishReason.ABORT]
            assert next_one.wait().reasons == [FinishReason.LENGTH]
        # Steps of 512 tokens take longer than the wait before the abort: two of each pair had not been done.
        assert client.metrics()["skipped_steps_total"] >= 1
        seconds = time.monotonic() - begin
        assert cpu_seconds_of("plait-main") - before < 0.3 * seconds
    finally:
        client.close()
