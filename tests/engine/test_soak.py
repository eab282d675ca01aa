"""Load for long, a third of it aborted at random moments: no block, request, thread, descriptor or byte is lost.

PLAIT_STRESS=1 (``make soak``) lets each mode work for PLAIT_SOAK_SECONDS; otherwise all of them share 20 seconds.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.bench.concurrency.job import has_setting, offered, read_kv_block_bytes
from plait.client import EngineClient
from plait.config import EngineConfig
from plait.engine import start_engine
from tests.fakes.soak import Holdings, Soak, SoakResult, growth, make_kinds
from tests.fakes.tiny_gguf import VOCAB, write_tiny_llama

pytest.importorskip("plait._native")

MODES = offered("engine_mode", "threads")
# Read here: tests themselves do not see what is set outside.
IS_LONG = os.environ.get("PLAIT_STRESS") == "1"
SECONDS = float(os.environ.get("PLAIT_SOAK_SECONDS", "600")) if IS_LONG else 20.0 / len(MODES)
NUM_CLIENTS = 16
NUM_BLOCKS = 40
LONGEST = 200
# Of allocators and of Python itself; what leaks a little with each request is more by far.
MAX_GROWTH_BYTES = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", "Q4_0")


def config(model: Path, mode: str) -> EngineConfig:
    """A pool that is far too small for its clients: sequences are preempted all the time."""
    values: dict[str, Any] = {
        "kv_cache_bytes": NUM_BLOCKS * read_kv_block_bytes(model),
        "max_model_len": 2 * LONGEST,
        "max_batch_size": 12,
        "max_batch_tokens": 128,
        "num_compute_threads": 2,
    }
    for name, value in (("engine_mode", mode), ("kv_swap_bytes", 1 << 20)):
        if has_setting(name):
            values[name] = value
    return EngineConfig.model_validate(values)


def wait_until(claim: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not claim():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def check_idle(client: EngineClient) -> None:
    """Everything that the load had is back."""

    def is_idle() -> bool:
        metrics = client.metrics()
        return (
            metrics["kv_blocks_free"] == metrics["kv_blocks"]
            and metrics["requests_live"] == metrics["requests_running"] == metrics["requests_waiting"] == 0
            and all(value == 0 for name, value in metrics.items() if name.startswith("queue_depth"))
        )

    assert wait_until(is_idle), client.metrics()


def soak_engine(settings: EngineConfig, model: Path, seconds: float) -> tuple[SoakResult, dict[str, float]]:
    """One engine from start to end; what it held is gone with the last reference to it, which is here."""
    client = start_engine(model, settings)
    try:
        started = Holdings.now()
        result = Soak(client, make_kinds(VOCAB, LONGEST), NUM_CLIENTS).run(seconds)
        assert result.failures == []
        check_idle(client)
        assert wait_until(lambda: Holdings.now().is_within(started)), (Holdings.now(), started)
        health = client.health()
        assert health.is_alive
        assert health.is_progressing
        return result, client.metrics()
    finally:
        client.close()


def settled() -> Holdings:
    """When no thread of an engine is left."""
    gc.collect()
    assert wait_until(lambda: not any(name.startswith("plait-") for name in Holdings.thread_names()))
    return Holdings.now()


@pytest.mark.stress
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("mode", MODES)
def test_nothing_leaks(model: Path, mode: str) -> None:
    settings = config(model, mode)
    settled()
    # What is made once for all engines of a process is there before anything is counted.
    soak_engine(settings, model, 0.2)
    before = settled()
    result, metrics = soak_engine(settings, model, SECONDS)
    assert settled() == before
    assert result.num_whole > 0
    assert result.num_aborted > 0
    share = result.num_abort_calls / (result.num_whole + result.num_aborted)
    assert 0.2 < share < 0.5, "a third was to be aborted"
    assert metrics["preemptions_total"] > 0
    assert metrics["cached_tokens_total"] > 0
    # The first quarter fills caches and pools.
    samples = result.private_bytes[len(result.private_bytes) // 4 :]
    assert growth(samples) < MAX_GROWTH_BYTES, [size >> 10 for size in result.private_bytes]


def test_growth_sees_a_leak_and_no_noise() -> None:
    draw = random.Random(1)
    flat = [100e6 + draw.uniform(-1e6, 1e6) for _ in range(60)]
    assert abs(growth(flat)) < 1e6
    spikes = [value + (50e6 if i % 10 == 9 else 0) for i, value in enumerate(flat)]
    assert abs(growth(spikes)) < 2e6
    one_step = [value + (8e6 if i > 55 else 0) for i, value in enumerate(flat)]
    assert growth(one_step) < 2e6
    leak = [value + i * 0.1e6 for i, value in enumerate(flat)]
    assert growth(leak) == pytest.approx(5.9e6, rel=0.2)


def test_holdings_see_a_descriptor() -> None:
    before = Holdings.now()
    with open(os.devnull, encoding="ascii"):
        assert Holdings.now().descriptors == before.descriptors + 1
    assert Holdings.now() == before
