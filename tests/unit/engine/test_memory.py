"""Sums of the memory plan."""

from __future__ import annotations

import msgspec
import pytest

from plait.config import EngineConfig
from plait.engine.memory import MemoryPlan, ModelSizes, check_file_fits, new_ledger, plan_memory
from plait.errors import ConfigError

MIB = 1 << 20
SIZES = ModelSizes(
    weight_bytes=100 * MIB, kv_block_bytes=64 << 10, context_length=8192, arena_bytes=20 * MIB, vocab=49152
)


def plan(budget_mib: int, config: EngineConfig | None = None, sizes: ModelSizes = SIZES) -> MemoryPlan:
    return plan_memory(new_ledger(budget_mib * MIB, 80 * MIB), sizes, config or EngineConfig())


def test_everything_is_entered_and_exported() -> None:
    result = plan(64 * 1024)
    entries = result.ledger.entries
    assert set(entries) == {"python", "weights", "arena", "sampling", "kv_cache"}
    assert entries["kv_cache"] == result.num_kv_blocks * SIZES.kv_block_bytes
    assert result.ledger.remaining_bytes >= 0
    metrics = result.metrics()
    assert metrics["memory_weights_bytes"] == 100 * MIB
    assert metrics["memory_reserve_bytes"] > 0


def test_the_default_pool_holds_a_full_batch_when_memory_allows() -> None:
    result = plan(64 * 1024)
    assert result.num_kv_blocks * 16 == 64 * 2048
    assert result.max_model_len == 8192
    assert "full batch" in result.reasons[0]


def test_memory_for_swapped_blocks_is_entered() -> None:
    result = plan(1024, EngineConfig(kv_swap_bytes=256 * MIB))
    assert result.ledger.entries["kv_swap"] == 256 * MIB
    assert result.ledger.remaining_bytes >= 0
    with pytest.raises(ConfigError, match="kv_swap"):
        plan(400, EngineConfig(kv_swap_bytes=1024 * MIB, kv_cache_bytes=8 * MIB, max_model_len=64))


@pytest.mark.parametrize("swap_mib", [600, 200 * 1024])
def test_memory_for_swapped_blocks_is_named_when_nothing_fits_beside_it(swap_mib: int) -> None:
    sizes = msgspec.structs.replace(SIZES, kv_block_bytes=64 * MIB)
    with pytest.raises(ConfigError) as caught:
        plan(1024, EngineConfig(kv_swap_bytes=swap_mib * MIB), sizes=sizes)
    assert "kv_swap " in str(caught.value)
    assert str(caught.value).endswith("; lower kv_swap_bytes")


def test_a_small_machine_gets_a_smaller_pool_and_says_so() -> None:
    result = plan(400)
    assert result.ledger.remaining_bytes >= 0
    assert result.num_kv_blocks * 16 < 8192
    assert result.max_model_len == result.num_kv_blocks * 16
    assert "half of the memory" in result.reasons[0]
    assert "limited by the KV cache" in result.reasons[1]


def test_explicit_sizes_are_kept_or_refused() -> None:
    result = plan(8192, EngineConfig(kv_cache_bytes=64 * MIB, max_model_len=4096))
    assert result.num_kv_blocks == 1024
    assert result.max_model_len == 4096
    with pytest.raises(ConfigError, match=r"max_model_len 8192 does not fit the KV cache of 1024 tokens"):
        plan(8192, EngineConfig(kv_cache_bytes=4 * MIB, max_model_len=8192))
    with pytest.raises(ConfigError, match="context length is 8192"):
        plan(8192, EngineConfig(max_model_len=8193))
    with pytest.raises(ConfigError, match="one block of 16 tokens takes"):
        plan(8192, EngineConfig(kv_cache_bytes=1000))


@pytest.mark.parametrize(
    ("budget_mib", "config", "what"),
    [
        (300, EngineConfig(), "weights"),
        (1024, EngineConfig(kv_cache_bytes=4096 * MIB), "kv_cache"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_sum(budget_mib: int, config: EngineConfig, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(budget_mib, config)
    message = str(caught.value)
    assert message.startswith(what)
    assert "python 80.0 MiB" in message
    assert "reserve" in message


def test_no_memory_for_a_pool_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no memory is left for a KV cache"):
        plan(1024, sizes=msgspec.structs.replace(SIZES, kv_block_bytes=1024 * MIB))


def test_a_file_larger_than_memory_is_refused_before_it_is_loaded() -> None:
    ledger = new_ledger(1024 * MIB, 80 * MIB)
    check_file_fits(ledger, 500 * MIB)
    assert "weights" not in ledger.entries
    with pytest.raises(ConfigError, match="weights does not fit"):
        check_file_fits(ledger, 2000 * MIB)
