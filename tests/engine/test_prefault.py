"""Memory of the KV cache that is taken at start."""

from __future__ import annotations

import gc
import logging
import re
from pathlib import Path

import pytest

from plait.config import EngineConfig
from plait.engine import start_engine
from plait.types import GenerateRequest, SamplingParams
from tests.fakes.fake_engine import Collector

pytestmark = pytest.mark.model

MIB = 1 << 20


def resident_bytes() -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) * 1024


def start_and_ask(model: Path, **settings: object) -> tuple[int, list[list[int]]]:
    """(resident memory that the engine took until it was ready, answer)"""
    config = EngineConfig.model_validate({"kv_cache_bytes": 256 * MIB, "max_batch_size": 2, **settings})
    gc.collect()  # the engine before this one
    before = resident_bytes()
    client = start_engine(model, config)
    try:
        taken = resident_bytes() - before
        collector = Collector(1)
        client.submit(
            GenerateRequest(tuple(range(100, 140)), SamplingParams(temperature=0.0, max_tokens=8)), collector
        )
        collector.wait()
        return taken, collector.tokens
    finally:
        client.close()


def test_memory_of_the_cache_is_there_at_start_if_asked(
    smollm2_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    start_and_ask(smollm2_path)  # what the first engine of a process takes for good
    lazy, expected = start_and_ask(smollm2_path)
    assert "taken in" not in caplog.text
    part, answer = start_and_ask(smollm2_path, kv_prefault_bytes=96 * MIB)
    assert answer == expected
    assert 80 * MIB < part - lazy < 128 * MIB
    whole, answer = start_and_ask(smollm2_path, kv_prefault_bytes="1TiB")
    assert answer == expected
    assert 240 * MIB < whole - lazy < 288 * MIB
    assert re.search(r"kv_cache: 25\d\.\d MiB taken in \d+\.\d\d s", caplog.text)
