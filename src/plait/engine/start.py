"""Starts an engine in this process: model, memory, parts, threads, warm-up.

Knows: how the parts fit together. Must not know: text, HTTP, where the settings came from.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from plait import _native
from plait.config import EngineConfig, MemoryLedger, format_bytes, read_machine
from plait.engine.core import EngineCore
from plait.engine.in_process import InProcessClient
from plait.engine.loading import LoadedModel, load_model
from plait.engine.parts import EngineParts
from plait.errors import ConfigError
from plait.types import EngineInfo

_log = logging.getLogger(__name__)

# What the interpreter, its modules and the tokenizer take; measured with SmolLM2 and rounded up.
PYTHON_BASELINE_BYTES = 192 << 20
# Left to the rest of the machine.
RESERVE_SHARE = 0.1
# Without kv_cache_bytes, the pool is this share of what is left, but at most so many positions.
KV_SHARE = 0.5
DEFAULT_KV_TOKENS = 131_072


def start_engine(
    model_path: Path,
    config: EngineConfig,
    *,
    eos_token_ids: Sequence[int] | None = None,
    memory_bytes: int | None = None,
) -> InProcessClient:
    """Load a model and start an engine for it; returns when one prefill and one decode step have run.

    Args:
        eos_token_ids: tokens that end an answer, as the tokenizer knows them; default: the file's EOS alone.
        memory_bytes: the memory budget; default: what the machine and its cgroups allow.

    Raises:
        ModelFileError: the file is bad or not supported.
        ConfigError: the model does not fit the memory budget, or a setting does not fit the model.
        EngineDeadError: the warm-up failed.
    """
    begin = time.monotonic()
    machine = read_machine() if memory_bytes is None or config.num_compute_threads is None else None
    num_threads = config.num_compute_threads or (machine.num_usable_cores if machine else 1)
    budget = machine.memory_bytes if machine and memory_bytes is None else int(memory_bytes or 0)
    _check_block_tokens(config.block_tokens)
    model = load_model(model_path, num_threads=num_threads, block_tokens=config.block_tokens)
    ledger, num_blocks, max_model_len = plan_memory(model, config, budget)
    core = EngineCore(
        native_parts(model, config, num_blocks, num_threads),
        _engine_info(model, num_blocks, max_model_len, num_threads, eos_token_ids),
        config,
        memory=dict(ledger.entries),
    )
    core.start()
    phases = ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in model.phases_s.items())
    _log.info("%s: ready after %.2f s (%s)", model_path.name, time.monotonic() - begin, phases)
    return InProcessClient(core)


def plan_memory(model: LoadedModel, config: EngineConfig, budget_bytes: int) -> tuple[MemoryLedger, int, int]:
    """(ledger, number of KV blocks, max_model_len).

    Raises:
        ConfigError: the sum exceeds the budget, or not one request of max_model_len fits the pool.
    """
    ledger = MemoryLedger(budget_bytes, int(budget_bytes * RESERVE_SHARE))
    ledger.enter("weights", model.weights.used_bytes)
    ledger.enter("python", PYTHON_BASELINE_BYTES)
    ledger.enter("arena", model.arena_bytes(config.max_batch_tokens))
    trained_len = model.hyperparameters.context_length
    max_model_len = config.max_model_len or trained_len
    if max_model_len > trained_len:
        raise ConfigError(
            f"max_model_len is {max_model_len}, but the model was trained for {trained_len} tokens: lower it"
        )
    block_bytes = model.kv_layout.block_bytes
    block_tokens = model.kv_layout.block_tokens
    if config.kv_cache_bytes is not None:
        num_blocks = config.kv_cache_bytes // block_bytes
    else:
        wanted_tokens = max(DEFAULT_KV_TOKENS, 2 * max_model_len)
        num_blocks = min(
            wanted_tokens // block_tokens, int(max(ledger.remaining_bytes, 0) * KV_SHARE) // block_bytes
        )
    if num_blocks < 2:
        raise ConfigError(
            f"the KV cache has room for {num_blocks} blocks of {format_bytes(block_bytes)}: raise kv_cache_bytes"
        )
    ledger.enter("kv_cache", num_blocks * block_bytes)
    # A request that fills max_model_len must fit the pool, or it could never be served.
    max_model_len = min(max_model_len, num_blocks * block_tokens)
    return ledger, num_blocks, max_model_len


def native_parts(model: LoadedModel, config: EngineConfig, num_blocks: int, num_threads: int) -> EngineParts:
    main_bell = _native.Doorbell()
    executor = _native.ComputeThread(
        model.plan,
        model.weights,
        _native.KvStorage(model.kv_layout, num_blocks),
        main_bell,
        model.isa,
        num_threads,
        [],
        config.max_batch_tokens,
        config.max_batch_size,
    )
    return EngineParts(
        executor=executor,
        kv=_native.KvManager(num_blocks, config.block_tokens, str(model.path.resolve()).encode()),
        main_bell=main_bell,
        new_bell=_native.Doorbell,
        new_mpsc_ring=_native.ObjectRing,
        new_spsc_ring=_native.SpscObjectRing,
        new_step=_native.StepInput,
        new_slot_start=_native.SlotStart,
    )


def _engine_info(
    model: LoadedModel,
    num_blocks: int,
    max_model_len: int,
    num_threads: int,
    eos_token_ids: Sequence[int] | None,
) -> EngineInfo:
    hp = model.hyperparameters
    if eos_token_ids is None:
        eos = model.metadata.get("tokenizer.ggml.eos_token_id")
        eos_token_ids = [eos] if isinstance(eos, int) else []
    return EngineInfo(
        model_name=hp.name,
        architecture=hp.architecture,
        vocab_size=hp.shape.vocab,
        max_model_len=max_model_len,
        eos_token_ids=tuple(eos_token_ids),
        num_kv_blocks=num_blocks,
        block_tokens=model.kv_layout.block_tokens,
        num_compute_threads=num_threads,
        isa=model.isa,
    )


def _check_block_tokens(block_tokens: int) -> None:
    if block_tokens not in (16, 32, 64, 128, 256, 512):
        raise ConfigError(f"block_tokens is {block_tokens}; use 16, 32, 64, 128, 256 or 512")
