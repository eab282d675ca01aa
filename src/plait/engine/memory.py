"""How much memory an engine takes, decided before it takes it.

Knows: sums. Must not know: native code. Every large thing has an entry in one ledger; what does not fit is
refused at start with the sums shown.
"""

from __future__ import annotations

import msgspec

from plait.config import EngineConfig, MemoryLedger, format_bytes
from plait.errors import ConfigError

_MIN_RESERVE_BYTES = 128 << 20
_RESERVE_SHARE = 20
# Without a setting, the pool is to hold this many tokens for each sequence of a full batch.
_DEFAULT_TOKENS_PER_SEQUENCE = 2048
_DEFAULT_MIN_CONTEXTS = 4


class ModelSizes(msgspec.Struct, frozen=True):
    """What the sums need of a model."""

    weight_bytes: int
    kv_block_bytes: int
    context_length: int
    arena_bytes: int
    """What one step writes to."""
    vocab: int


class MemoryPlan(msgspec.Struct, frozen=True):
    ledger: MemoryLedger
    num_kv_blocks: int
    max_model_len: int
    reasons: tuple[str, ...]
    """Why the pool and the context have these sizes; for the start log."""

    def metrics(self) -> dict[str, float]:
        """Gauges, one per entry."""
        entries = {f"memory_{name}_bytes": float(size) for name, size in self.ledger.entries.items()}
        return {**entries, "memory_reserve_bytes": float(self.ledger.reserve_bytes)}


def new_ledger(budget_bytes: int, baseline_bytes: int) -> MemoryLedger:
    """A ledger that holds the interpreter already. ``baseline_bytes`` is its resident size now."""
    reserve = max(_MIN_RESERVE_BYTES, budget_bytes // _RESERVE_SHARE)
    ledger = MemoryLedger(budget_bytes=budget_bytes, reserve_bytes=reserve)
    ledger.enter("python", baseline_bytes)
    return ledger


def check_file_fits(ledger: MemoryLedger, file_bytes: int) -> None:
    """Before a model is loaded: packed weights take about as much as the file.

    Raises:
        ConfigError: they cannot fit.
    """
    probe = MemoryLedger(ledger.budget_bytes, ledger.reserve_bytes, dict(ledger.entries))
    probe.enter("weights", file_bytes)


def plan_memory(ledger: MemoryLedger, sizes: ModelSizes, config: EngineConfig) -> MemoryPlan:
    """Enters everything into ``ledger`` and chooses the pool's and the context's sizes.

    Raises:
        ConfigError: the sum does not fit, or one request of max_model_len does not fit the pool.
    """
    wanted_len = _wanted_len(sizes, config)
    ledger.enter("weights", sizes.weight_bytes)
    ledger.enter("arena", sizes.arena_bytes)
    # Penalties count tokens: one number for each of the vocabulary in each slot, at most.
    ledger.enter("sampling", config.max_batch_size * sizes.vocab * 4)
    if config.kv_swap_bytes:
        ledger.enter("kv_swap", config.kv_swap_bytes, "kv_swap_bytes")
    num_blocks, reason = _num_blocks(ledger, sizes, config, wanted_len)
    ledger.enter("kv_cache", num_blocks * sizes.kv_block_bytes, "kv_cache_bytes")
    reasons = [
        f"kv_cache: {num_blocks} blocks of {config.block_tokens} tokens in {config.kv_cache_dtype}, {reason}"
    ]
    pool_tokens = num_blocks * config.block_tokens
    max_model_len = min(wanted_len, pool_tokens)
    if config.max_model_len is not None and max_model_len < config.max_model_len:
        raise ConfigError(
            f"max_model_len {config.max_model_len} does not fit the KV cache of {pool_tokens} tokens "
            f"({format_bytes(num_blocks * sizes.kv_block_bytes)}); raise kv_cache_bytes or lower max_model_len"
        )
    if max_model_len < 2:
        raise ConfigError("the KV cache has no room for a prompt token and an answer token")
    limit = "as configured" if config.max_model_len is not None else "the model's context length"
    reasons.append(
        f"max_model_len: {max_model_len}, "
        + ("limited by the KV cache" if max_model_len < wanted_len else limit)
    )
    return MemoryPlan(ledger, num_blocks, max_model_len, tuple(reasons))


def _wanted_len(sizes: ModelSizes, config: EngineConfig) -> int:
    if config.max_model_len is None:
        return sizes.context_length
    if config.max_model_len > sizes.context_length:
        raise ConfigError(
            f"max_model_len is {config.max_model_len}, but the model's context length is {sizes.context_length}"
        )
    return config.max_model_len


def _num_blocks(
    ledger: MemoryLedger, sizes: ModelSizes, config: EngineConfig, max_model_len: int
) -> tuple[int, str]:
    if config.kv_cache_bytes is not None:
        num_blocks = config.kv_cache_bytes // sizes.kv_block_bytes
        if num_blocks < 1:
            raise ConfigError(
                f"kv_cache_bytes is {format_bytes(config.kv_cache_bytes)}, but one block of "
                f"{config.block_tokens} tokens takes {format_bytes(sizes.kv_block_bytes)}"
            )
        return num_blocks, "as configured"
    num_tokens = max(
        _DEFAULT_MIN_CONTEXTS * max_model_len,
        config.max_batch_size * min(max_model_len, _DEFAULT_TOKENS_PER_SEQUENCE),
    )
    wanted = -(-num_tokens // config.block_tokens)
    affordable = ledger.remaining_bytes // 2 // sizes.kv_block_bytes
    if affordable < 1:
        advice = "; lower kv_swap_bytes" if config.kv_swap_bytes else ""
        raise ConfigError(
            f"no memory is left for a KV cache: {ledger.describe()} of {format_bytes(ledger.budget_bytes)}{advice}"
        )
    if affordable < wanted:
        return affordable, "half of the memory that is left"
    return wanted, "enough for a full batch"
