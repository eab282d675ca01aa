"""From a model file and settings to a running engine: the one place that puts the native parts together."""

from __future__ import annotations

import logging
import resource
import time
from pathlib import Path

from plait import _native
from plait.config import EngineConfig, Machine, format_bytes, read_machine
from plait.config.engine import BLOCK_TOKENS
from plait.engine.core import EngineCore
from plait.engine.in_process import InProcessClient
from plait.engine.loading import LoadedModel, load_model
from plait.engine.memory import MemoryPlan, ModelSizes, check_file_fits, new_ledger, plan_memory
from plait.engine.parts import EngineParts
from plait.engine.scheduling import scheduler_limits
from plait.engine.tracing import Trace, new_span
from plait.errors import ConfigError, ModelFileError
from plait.tokenizer import Tokenizer
from plait.types import EngineInfo
from plait.weights.cache_folder import CacheError, default_folder
from plait.weights.gguf import GgufFile
from plait.weights.packed import CacheSettings

_log = logging.getLogger(__name__)

_PREFAULT_SLICE_BYTES = 256 << 20


def start_native_engine(
    source: Path | GgufFile, config: EngineConfig, eos_token_ids: tuple[int, ...] | None = None
) -> InProcessClient:
    """See plait.engine.start_engine."""
    path = source.path if isinstance(source, GgufFile) else source
    trace = None
    try:
        if config.trace is not None:
            trace = Trace(Path(config.trace), [path])
        return _start(source, config, eos_token_ids, trace)
    except BaseException:
        if trace is not None:
            trace.discard()
        raise


def _start(
    source: Path | GgufFile, config: EngineConfig, eos_token_ids: tuple[int, ...] | None, trace: Trace | None
) -> InProcessClient:
    begin = time.monotonic()
    if config.block_tokens not in BLOCK_TOKENS:
        sizes = ", ".join(str(size) for size in BLOCK_TOKENS)
        raise ConfigError(f"block_tokens is {config.block_tokens}; use one of {sizes}")
    machine = read_machine()
    num_threads = config.num_compute_threads or machine.num_usable_cores
    config.check_num_threads(num_threads)
    ledger = new_ledger(machine.memory_bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    check_file_fits(ledger, _file_bytes(source))
    with new_span("load", "io"):
        model = load_model(
            source,
            num_threads=num_threads,
            block_tokens=config.block_tokens,
            kv_cache_dtype=config.kv_cache_dtype,
            cache=_cache_of(config),
        )
    memory = plan_memory(ledger, _sizes_of(model, config), config)
    if eos_token_ids is None:
        eos_token_ids = tuple(Tokenizer.from_metadata(model.metadata).eos_token_ids)
    info = _info_of(model, memory, config, num_threads, eos_token_ids)
    parts = _native_parts(model, info, config, machine)
    metrics = {**memory.metrics(), **_load_metrics(model)}
    core = EngineCore(parts, info, config, constant_metrics=metrics, trace=trace)
    loaded = time.monotonic()
    try:
        core.start()
    except BaseException:
        core.close()
        raise
    phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in model.phases_s.items())
    _log.info(
        "%s: ready after %.2f s (%s, warm-up %.2f s); %s; %s; memory: %s",
        info.model_name,
        time.monotonic() - begin,
        phases,
        time.monotonic() - loaded,
        _describe_weights(model),
        "; ".join(memory.reasons),
        memory.ledger.describe(),
    )
    return InProcessClient(core)


def _file_bytes(source: Path | GgufFile) -> int:
    if isinstance(source, GgufFile):
        return source.stamp[1]
    try:
        return source.stat().st_size
    except OSError as error:
        raise ModelFileError(f"{source}: {error.strerror}") from None


def _cache_of(config: EngineConfig) -> CacheSettings | None:
    if not config.weight_cache:
        return None
    try:
        return CacheSettings(default_folder(), config.weight_cache_bytes, config.share_weights)
    except CacheError as error:
        _log.warning("the weight cache is not used: %s", error)
        return None


def _describe_weights(model: LoadedModel) -> str:
    if not model.has_shared_weights:
        return "weights in memory of this process"
    return f"weights in shared memory, {format_bytes(model.num_huge_bytes)} in huge pages"


def _load_metrics(model: LoadedModel) -> dict[str, float]:
    return {
        "weights_are_shared": float(model.has_shared_weights),
        "weights_from_cache": float("fetch" in model.phases_s),
        **{f"load_{name}_seconds": seconds for name, seconds in model.phases_s.items()},
    }


def _sizes_of(model: LoadedModel, config: EngineConfig) -> ModelSizes:
    return ModelSizes(
        weight_bytes=model.weights.used_bytes,
        kv_block_bytes=model.kv_layout.block_bytes,
        context_length=model.hyperparameters.context_length,
        arena_bytes=model.arena_bytes(config.max_batch_tokens),
        vocab=model.hyperparameters.shape.vocab,
    )


def _info_of(
    model: LoadedModel,
    memory: MemoryPlan,
    config: EngineConfig,
    num_threads: int,
    eos_token_ids: tuple[int, ...],
) -> EngineInfo:
    return EngineInfo(
        model_name=model.path.stem,
        architecture=model.hyperparameters.architecture,
        vocab_size=model.hyperparameters.shape.vocab,
        max_model_len=memory.max_model_len,
        eos_token_ids=eos_token_ids,
        num_kv_blocks=memory.num_kv_blocks,
        block_tokens=config.block_tokens,
        num_compute_threads=num_threads,
        isa=model.isa,
    )


def _native_parts(
    model: LoadedModel, info: EngineInfo, config: EngineConfig, machine: Machine
) -> EngineParts:
    num_threads = info.num_compute_threads
    bell = _native.Doorbell()
    try:
        storage = _native.KvStorage(model.kv_layout, info.num_kv_blocks)
        _prefault(storage, config.kv_prefault_bytes, model.kv_layout.block_bytes, num_threads)
        arguments = (
            model.isa,
            num_threads,
            list(machine.cpus_to_pin(num_threads)),
            config.max_batch_tokens,
            scheduler_limits(info, config).num_slots,
            config.compute_parallelism,
        )
        executor: _native.ComputeThread | _native.InlineExecutor
        run_next = None
        if config.engine_mode == "coroutine":
            executor = _native.InlineExecutor(model.plan, model.weights, storage, *arguments)
            run_next = executor.run_next
        else:
            executor = _native.ComputeThread(model.plan, model.weights, storage, bell, *arguments)
        kv = _native.KvManager(info.num_kv_blocks, config.block_tokens, str(model.path.resolve()).encode())
        swap = _swap_of(config, storage, kv, bell)
    except _native.NativeError as error:
        raise ConfigError(f"the engine cannot be built: {error.args[1]}") from None
    return EngineParts(
        executor=executor,
        kv=kv,
        main_bell=bell,
        new_bell=_native.Doorbell,
        new_mpsc_ring=_native.ObjectRing,
        new_spsc_ring=_native.SpscObjectRing,
        swap=swap,
        kv_block_bytes=0 if swap is None else model.kv_layout.block_bytes,
        run_next=run_next,
        compute_cpu=executor.cpu if isinstance(executor, _native.ComputeThread) else -1,
    )


def _prefault(storage: _native.KvStorage, num_bytes: int, block_bytes: int, num_threads: int) -> None:
    num_blocks = min(-(-num_bytes // block_bytes), storage.num_blocks)
    if num_blocks == 0:
        return
    begin = time.monotonic()
    # In slices, so that a signal that ends the start need not wait for all of it.
    step = max(_PREFAULT_SLICE_BYTES // block_bytes, 1)
    for first in range(0, num_blocks, step):
        storage.prefault(first, min(step, num_blocks - first), num_threads)
    size = format_bytes(num_blocks * block_bytes)
    _log.info("kv_cache: %s taken in %.2f s", size, time.monotonic() - begin)


def _swap_of(
    config: EngineConfig, storage: _native.KvStorage, kv: _native.KvManager, bell: _native.Doorbell
) -> _native.KvSwap | None:
    if not config.kv_swap_bytes and config.kv_swap_dir is None:
        return None
    return _native.KvSwap(storage, kv, bell, ram_bytes=config.kv_swap_bytes, dir=config.kv_swap_dir or "")
